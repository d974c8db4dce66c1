"""`hierax bench`: solvers on collections of problems, on random problems and on sampled ones, judged from outside.

`external` runs BOLIB and SMD, `medium_*` larger problems, `sampled` stochastic ones, `methods_*` every method on
problems with known answers, `fuzz_*` random problems, `cold` the seconds of a first call.
"""
