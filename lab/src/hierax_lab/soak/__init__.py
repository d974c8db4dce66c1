"""Long tests under load, `make soak`: each part is a module with `run(options) -> bool`, named in `__main__`."""
