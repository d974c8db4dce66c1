"""Versions of what the numbers of a run may depend on."""

import platform
from importlib.metadata import version

import hierax


def versions() -> dict[str, str]:
    """Versions by name."""
    names = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
    system = {"python": platform.python_version(), "machine": platform.machine()}
    return {"hierax": hierax.__version__} | {name: version(name) for name in names} | system
