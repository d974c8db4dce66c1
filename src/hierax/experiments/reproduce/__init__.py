"""The experiments of the paper and the measurements behind the defaults, one module per figure or question."""
