"""How user functions become compiled programs."""
