"""How far a point can be trusted."""
