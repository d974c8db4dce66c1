"""What the paper's theorems ask for on a given problem (docs/pictures/constants.md)."""
