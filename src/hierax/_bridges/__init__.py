"""Bridges to other libraries: SciPy's conventions, lower levels in CVXPY, upper objectives in PyTorch."""
