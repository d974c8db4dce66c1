"""The paper's experiments, external benchmarks and data sets; imported by the command line only."""
