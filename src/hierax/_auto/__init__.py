"""The solver without settings: routes, oracle and validation behind `hierax.Auto`."""
