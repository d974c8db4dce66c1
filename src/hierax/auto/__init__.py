"""The solver without settings."""
