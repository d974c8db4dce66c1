"""Every number that `Auto` has inside, with what it means and what is known about it.

"Chosen, not measured" is said of numbers that were never varied by themselves; what the whole of them does is measured
by `hierax bench bolib`, `medium`, `fuzz` and `stochastic` (docs/methods/auto.md). What was measured beyond that stands
with the number. "Prototype" is the study that the small route comes from, on the same 71 problems,
one or two seeds: differences of 1 to 3 are noise there.
Numbers that other packages must agree on are in `hierax._base.constants`.
"""

# -- which route, and what it may spend -------------------------------------------------------------------------------

SMALL_ROUTE_SIZE = 100
"""Variables, and rows of the lower level, together, up to which the small route is taken. Chosen, not measured as a
limit: BOLIB's largest have 20 variables and 20 rows. One SLSQP run on a KKT system takes 0.35 s at a size of 200 and
2.4 s at 440, so the limit could be higher."""

PENALTY_ROUTE_VARIABLES = 3000
"""Variables up to which the penalty route, which forms matrices of that order, is taken. Chosen, not measured: at 1,010
variables and 1,300 rows a problem takes 16 CPU s."""

BENT_ROUTE_VARIABLES = 1000
"""The same for lower levels that are not convex, whose local solutions cannot all be looked at. Chosen, not measured.
Those that are means over data, as networks, are trained rather than solved from 200 entries on
(`hierax._judge.retraining`): a certificate by 24 exact solves took more than ten minutes with 875."""

IMPLICIT_ROUTE_SECONDS = 120.0
"""Time limit of the implicit route, compilation included: that of the large route, which takes over where it has no
answer."""

IMPLICIT_FLAT = 1e-9
"""Gradient at which its descents end, relative to that at the start: systems are solved to 1e-8. Chosen, not
measured."""

MOST_UPPER_ROWS, SQP_VARIABLES = 50, 300
"""Upper constraints of the implicit route, each of which takes a system per point, and entries of x that SLSQP takes
with them. Chosen, not measured; an iteration of SLSQP takes 44 ms at 500 entries."""

WHOLE_DATA = 2_000_000
"""Numbers in all data up to which a problem whose expectations are known (`Finite` data, a `Sampler` with `exact`) is
solved on all of them, as a deterministic one. Chosen, not measured. Beyond, `ROWS_WORK` decides."""

FEWER_ROWS, ROWS_PER_VARIABLE, FEWER_ROWS_SHARE, FEWER_ROWS_ENDS = 4_000, 40, 0.25, 4
"""Rows of much data on which it is solved first, at least; the same per variable; the share of the time for it; and how
many of the optima found there are tried on all rows before other starts. Chosen, not measured; of a ridge regression
on 12,000 rows the only optimum on 4,000 rows led to one 1e-4 above the best of all rows."""

ROWS_NUMBERS, ROWS_WORK = 2e7, 1e9
"""Numbers in all data, those included that the objectives make on the way, and the same times the variables, up to
which data are solved on all rows after that: second derivatives take as many operations a few times over, 0.1 s at half
of it, and an answer with its certificate a few hundred of them; 16 tangents at a time take 16 times the first in
memory, at most."""

FEWER_ROWS_SECONDS = 20.0
"""A shorter time limit is left to the large route: two searches, on some and on all rows, have no time to compile."""

STARTS = 16
"""Starts of the small and of the penalty route. Prototype: 71 of 71 with 16 starts (two seeds), 66 with 4."""

SMALL_ROUTE_SECONDS, PENALTY_ROUTE_SECONDS, LARGE_ROUTE_SECONDS = 30.0, 60.0, 120.0
"""Time limits, compilation included. Chosen: the slowest BOLIB problems take 14 to 20 s by the small route."""

SEARCH_SHARE, DESCENT_SHARE = 0.75, 0.92
"""Shares of the time after which the search, and the descent from its best point, have to end: the rest is for the
certificate. Chosen, not measured."""

SAME_END = 1e-5
"""Difference in F, in its unit, of starts that ended at the same value. Chosen, not measured."""

DOUBTFUL_STARTS = 1
"""Starts without an accepted point after which it is asked whether any point satisfies all constraints. Chosen, not
measured."""

FURTHER_STARTS, LIKELY_NEW = 48, 0.1
"""Further starts of the small route, as long as time is left and the chance that one of them ends somewhere new is
above this. Reckoned, not measured: with 25 optima that are met equally often, 16 starts find a given one in about half
of all searches, 64 in nine of ten."""

AGREEING_STARTS = 8
"""Starts after which the search ends where all of them ended at the same F. Chosen, not measured."""

PHASE_ONE_MORE = 64
"""Further starts of that, for small problems: before a problem is called infeasible. Chosen, not measured."""

PHASE_ONE_VARIABLES = 400
"""Variables up to which such a point is looked for by SLSQP on the larger route. Chosen, not measured."""

TANGENTS = 30
"""Linear programs, each with tangents at the solution of the last one, by which it is proved that convex constraints
exclude each other. Chosen, not measured; with affine rows one is enough."""

PHASE_ONE_STARTS = 6
"""Starts from which a point that satisfies all constraints is looked for, where the lower level has no feasible y at
any start of the search. Chosen, not measured."""

DESCENTS = 4
"""Times that the search goes on from a lower point which the certificate found. Chosen, not measured."""

# -- how points of the small and the penalty route are judged ---------------------------------------------------------

ACCEPTED_VIOLATION, ACCEPTED_GAP = 1e-6, 1e-5
"""What a point may be off by, at most, to be returned as an answer (prototype). Accepting only tight points would
discard the only good one of problems without multipliers (Dempe1992b: gap 6e-6)."""

TIGHT = 1e-7
"""Violation and gap below which nothing of a point's F is owed to the tolerances (prototype)."""

TIGHT_RESIDUAL = 1e-5
"""KKT residual of a tight point's y. Chosen, not measured."""

NO_GAP = 1e-9
"""Gap that lower solves leave by themselves. Chosen, not measured."""

NEARLY_AS_LOW = 1e-2
"""Relative difference in F within which a tight point is preferred to a lower one that is not (prototype). With
selection by F alone and a last VALUE_SLACKS of 1e-6, only 58 to 63 of 68 answers were within 1e-3 of the optimum on
both sides; with this rule and 1e-8, 69 of 69."""

OWED_TO_GAP = 1e-3
"""Relative difference in F within which, of tight points without multipliers, the one of least gap is preferred.
Chosen, not measured."""

OWED_TO_VIOLATION = 0.1
"""Share of a point's violation that the lower level's own solution beside it must not exceed to be taken in its place
although F is higher there. Chosen, not measured: of Dempe1992b (no Slater point) the two differ by a factor of 1e4."""

SAME_PLACE = 1e-2
"""Distance, in units of the variables, within which points belong to one local optimum, or to one branch of the lower
level. Chosen, not measured."""

# -- sample averages ---------------------------------------------------------------------------------------------------

FIRST_AVERAGE, AVERAGE_GROWTH, MOST_AVERAGED = 1024, 4, 65_536
"""Samples of the first average, their growth, and where it ends. Chosen, not measured."""

AVERAGE_SECONDS = 60.0
"""Time limit of all averages together, compilation included. Chosen, not measured."""

# -- small route: the polishes ----------------------------------------------------------------------------------------

RELAXATIONS = (1e-1, 1e-4, 1e-8)
"""Bounds t on the complementarity products -mu_i row_i, one after another. The prototype had four (1e-1, 1e-3, 1e-5,
1e-8); that three are enough is not measured separately."""

LAST_RELAXATIONS = (1e-3, 1e-6, 1e-9)
"""The same for the last polish, from the best point (prototype)."""

SHARPER = 0.1
"""Where t was too large for the units of f: share of the next t that would bring the gap down to TIGHT. Chosen, not
measured."""

VALUE_SLACKS = (1e-2, 1e-5, 1e-8)
"""How far f may exceed the value function, in units of f, one after another: the polish uses up the last of them (see
NEARLY_AS_LOW). The prototype had 1e-4 and 1e-6 in the middle; the difference is not measured."""

CUT_SLACK = 0.0
"""How far f may exceed the value of a cut beside the KKT system, in units of f (prototype)."""

SAME_WAY = 1e-6
"""Distance, in units, within which two polishes between the same stages go the same way: what is left of their
difference is less than what the next stage of either would change. Chosen, not measured."""

SQP_ITERATIONS, VALUE_SQP_ITERATIONS = 60, 30
"""Iterations of SLSQP per value of t (prototype) and per slack (chosen, not measured)."""

SQP_CHANGE, SQP_CHANGE_WITH_VALUES = 1e-12, 1e-9
"""Change of F, in its unit, at which SLSQP stops: by itself, and with value functions among the constraints, which are
known to about 1e-9. Chosen, not measured."""

RUN_OFF = 1e8
"""Entries beyond this, in units of the variables, belong to iterates on their way to infinity; values that are not
finite are shown to SLSQP as this (prototype)."""

# -- small route: the search ------------------------------------------------------------------------------------------

CUT_GAP = 1e-5
"""Relative gap above which a better branch becomes a cut: a smaller one is no other branch but the effect of t. The
prototype cut from 1e-6 on; the difference is not measured."""

CUTS_IN_A_ROW, POLISHES_PER_START = 3, 6
"""At most so many cuts one after another, and so many polishes, from one start (prototype)."""

VALUE_STARTS_AT_LEAST, VALUE_STARTS_FLAT, VALUE_STARTS_AT_MOST = 1, 3, 5
"""Starts of value polishes: where every start arrived at an accepted point; the same, but with a lower level without
curvature in some direction, whose solutions jump; and where some start arrived nowhere. The prototype polished from
every start; that few are enough is what `hierax bench bolib` shows, the three numbers are not measured separately."""

NO_CURVATURE = 1e-9
"""Relative curvature of the lower level that counts as none. Chosen, not measured."""

SIDE_STEP = 0.3
"""Distance, in units of x, at which F is looked at on both sides of the best point: Dempe1992b has an inflection at
x = 1, where the KKT polish stops. Chosen, not measured."""

LINES_AFTER, LINE_ROUNDS = 4, 3
"""After how many starts that end apart F is looked at along every entry of x, and again at the end; and how often each
time, from the best point so far. Chosen, not measured."""

# -- descent on F(x, y*(x)) -------------------------------------------------------------------------------------------

IMPLICIT_STEPS = 200
"""Iterations of one descent on F(x, y*(x)). Chosen, not measured."""

NO_PROGRESS, UNIMPROVED = 1e-10, 12
"""A descent ends where so many evaluations in a row lowered F by less than this, in units. Chosen, not measured."""

KINK_NEAR = 1e-2
"""Distance of x to a kink, in lengths, up to which a descent goes on along it. Chosen, not measured."""

KINK_REACH, KINKS_HELD = (1e-5, 0.3), 40
"""Rows that change sides within this distance of x, in lengths, have a choice at the end of a piece; those within the
second are told to the search on a piece, at most so many. Chosen, not measured."""

PIECES, PIECE_STEPS, PIECE_GAIN = 12, 60, 1e-9
"""Pieces that a descent along kinks visits, iterations of SLSQP on each, and the gain in F, in units, for which it goes
on. Chosen, not measured."""

PIECE_VARIABLES = 100
"""Entries of x up to which a descent follows kinks: an iteration of SLSQP takes 44 ms at 500."""

CENTRAL_WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5)
"""Values of t of descents along the lower level's central path, in units of G. With these, descents from two starts of
four problems (60 y, 100 to 160 rows, linear levels or levels with many solutions) ended within 1 % of each other, at
values 20 to 40 % below those of descents on F(x, y*(x)); other sequences were not measured."""

CENTRAL_STEPS, CENTRAL_FLAT, CENTRAL_INSIDE = 60, 1e-5, 0.05
"""Iterations per t, gradient (in units) at which the next t comes, and distance of the first y from the bounds of Y, as
a share of their distance. Chosen, not measured."""

CENTRAL_SIZE = 600
"""Entries of y and rows, faces of Y included, up to which descents follow the central path: with 220 they take 2 to 6 s
of 150 to 350 points, each a few dense systems of the order of y."""

GLOBALITY_SECONDS, GLOBALITY_SHARE = 8.0, 2.5
"""After the first descent others may take so many seconds, or so many times what the first took. Chosen, not measured:
on the SVM's sample weights (500 x, diabetes), where every start ends at a place of its own, the ends of five starts lay
within 0.0035 of each other, of a decrease of 0.21."""

DESCENT_STARTS, KKT_STARTS = 6, 2
"""On the small route: starts of descents on F(x, y*(x)), and searches for KKT points, that must all end at the same F
before no more starts are tried; for lower levels that look convex. Chosen, not measured."""

AGREEING_DESCENTS = 3
"""Descents that must end at the lowest F before no more starts are tried. Chosen, not measured."""

# -- penalty route ----------------------------------------------------------------------------------------------------

PENALTY_WEIGHTS = tuple(5.0**k for k in range(6))
"""The weights c = 1, 5, .., 3125 of f - v (prototype: 57 of 71; what matters among its parts was not separated)."""

MULTIPLIER_UPDATES = 2
"""Updates of the upper constraints' multipliers per weight (prototype)."""

QUASI_NEWTON_STEPS = 12
"""BFGS steps between updates. The prototype made 15; the difference is not measured."""

FIRST_AL_WEIGHT, AL_GROWTH = 10.0, 3.0
"""Weight of the augmented Lagrangian of the upper constraints, and its growth with every weight c (prototype)."""

PENALTY_LOWER_STARTS = 4
"""Points that the lower level is solved from: its last solution, y, and two that cover Y. Chosen, not measured."""

PENALTY_LOWER_STEPS = 100
"""Newton steps of each of those solves, at most. The prototype made 120; the difference is not measured."""

HALVINGS = 8
"""Times that a BFGS step is halved, at most. Chosen, not measured."""

STANDSTILL = 1e-10
"""Relative movement of x at which BFGS stops. Chosen, not measured."""

LEAST_SLOPE = 1e-12
"""Size of a gradient below which the first inverse Hessian grows no further. Chosen, not measured."""

LEAST_CURVATURE = 1e-12
"""Cosine between step and change of gradient from which BFGS learns from a step. Chosen, not measured."""

# -- the verdict on a search ------------------------------------------------------------------------------------------

AGREE, SAME_VALUE = 1e-3, 1e-7
"""Difference in F, in its unit, up to which starts agree: where their x are close, and wherever they are. The first is
the benchmark's own criterion; with it alone, 14 starts on SMD7 with eight different ends counted as one."""

FAR_AWAY = 1e5
"""Distance, in units of the variables, at which a point belongs to a search on its way to infinity. Chosen, not
measured; neither are the next three."""

FAR_GAP = 1e-4
"""Relative gap of such points that still counts as optimal below."""

FAR_FALL = 1e-2
"""F is unbounded below where it fell beyond this share of FAR_AWAY, in units of F."""

OPTIMAL_BELOW, BEYOND_REPAIR = 1e-4, 1e-3
"""Where no point was accepted: the upper constraints are to blame if points of at most this relative gap all violate
something by more than the second number. Chosen, not measured."""

LISTED_OPTIMA = 4
"""Other local optima that the log names."""

# -- large route: which effort a size allows --------------------------------------------------------------------------

JUDGED_EXACTLY = 200
"""Entries of y and of the multipliers up to which every end of a run is judged at the exact y*(x). Chosen, not
measured."""

CERTIFIED = 2000
"""Entries up to which the lower level is solved exactly in the end, and certificates are made. Chosen, not measured:
dense matrices of that order."""

LARGE_ROUTE_STARTS, SEVERAL_STARTS_SIZE = 8, 200
"""Starts of the first race, for problems of up to so many variables and multipliers. On the toy about half of uniform
starts end in the global basin by themselves; with 8 all of 200 runs found a minimiser."""

EXACT_INNER_STEPS = 50
"""Inner steps where the lower level is known exactly, so that longer inner loops cost no samples. Chosen, not
measured."""

# -- large route: the stages ------------------------------------------------------------------------------------------

FIRST_STEPS, STEPS_GROWTH, MOST_STEPS = 250, 1.5, 100_000
"""Steps of the first race, their growth from stage to stage, and where it ends. Chosen, not measured."""

C1_GROWTH = 4.0
"""c1 is its estimate times a power of this. Chosen, not measured. The bias of the penalty falls like 1/c1."""

FIRST_C1_POWERS = (0, -2, -4)
"""Powers of c1 in the first race: its estimate, and far below it, where steps are longer. Chosen, not measured; which
of them wins depends on the problem (on the toy, where a constraint pins y, small c1 wins)."""

C1_POWER_ENOUGH, C1_POWER_MOST = 1, 3
"""Power of c1 from which the route may end without progress, and up to which c1 is raised as long as the certificate
still names a slope. Chosen, not measured."""

FIRST_STEP_RATIO, LEAST_STEP_RATIO = 10.0, 1.8
"""Ratio of the two x-steps that compete in a stage, at first and at last. Chosen, not measured. Good x-steps are up to
15 times the y-step on the synthetic problem."""

X_STEP_DECAY = 2.0
"""The a of the x-steps alpha min(1, a (k + 1)^(-1/3)): they stay at full length for a^3 = 8 steps. Chosen, not
measured; 1.5 is what was measured to be good for all blocks alike."""

DAMPING = 0.25
"""Factor of the inner steps after a run that failed. Chosen, not measured."""

GAIN = 2e-3
"""Relative decrease of F that counts as progress. Chosen, not measured."""

PATIENCE, PATIENCE_WITH_LONGER_STEPS = 2, 6
"""Stages without progress before c1 grows: where the longer step does not win either, and at all. Chosen, not
measured."""

ALLOWED_VIOLATION = 1e-3
"""Violation of upper constraints that is let pass: the certificate's tolerance."""

PRICE_OF_VIOLATION = 10.0
"""What violation beyond that adds to F when stages are compared, times 1 + |F|. Chosen, not measured."""

RAN_FAR, STRETCHES = 30.0, (10.0, 100.0, 1000.0)
"""Where the best point is this many lengths from the start, F is looked at further along the ray, at these multiples:
it is unbounded where it doubles its fall every time. Chosen, not measured."""

# -- large route: lower levels that are trained, not solved -----------------------------------------------------------

FEW_X = 8
"""Entries of x up to which a search without derivatives moves each of them. Chosen, not measured."""

RETRAINED_RADII = (0.5, 0.02)
"""First and last radius of that search, as shares of the size of x. The last is where the noise of eight trainings
begins on the digits: F changes by a standard error."""

RETRAINED_EVALUATIONS = 15
"""Points that the search looks at, at most, for every entry of x and one more. Chosen, not measured."""

WAY_AT_MOST = 16.0
"""How many times as far as SALVF has come the search along its way goes at most. Chosen, not measured."""

STAGES_BEFORE_RETRAINING = 0.5
"""Share of the time after which SALVF's stages end and the search along their way begins. Chosen, not measured."""
