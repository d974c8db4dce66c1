"""The paper's experiments, one family of modules per experiment: toy, rates, svm, decay.

Of each, `*_run` is the entry, `*_claims` says what it shows, `*_report` or `*_figures` prints and draws it; the rest is
what it runs. `*_published` is the same experiment with the paper's settings. `experiment`, the frame of all of them,
and `comparison`, `published`, `recorded`, `verdict` and `workers` are shared.
"""
