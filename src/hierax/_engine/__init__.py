"""The engine: a problem as float64 vectors in units; its lower level followed and differentiated on the host."""
