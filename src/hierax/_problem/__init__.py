"""What a user states: problem, sets, sources of samples."""
