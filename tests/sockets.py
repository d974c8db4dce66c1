"""Sockets that HTTP clients leave to the garbage collector."""

import gc
import warnings


def drop_sockets():
    """Collect the sockets that the client leaves open here, and not in some later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
