"""One run: prepared once, stepped in compiled chunks, told as a solution."""
