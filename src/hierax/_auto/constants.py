"""Every number that `Auto` has inside: what it means, its unit, and what measurement stands behind it.

Every number has its lines in lab/results/ablation.txt: multiplied and divided by three, one at a time. "Not measured"
is said of numbers behind which there is nothing else; what the whole of them does is measured by `hierax bench
bolib`, `medium`, `fuzz` and `stochastic` (docs/methods/auto.md). "Prototype" is the study that the small route comes
from, on the same 71 problems, one or two seeds: differences of 1 to 3 are noise there. Units of F, G, rows and
variables are those of `hierax._engine.programs`. Numbers that other packages must agree on are in
`hierax._base.constants`, MUCH and LITTLE among them: how much further F is looked at along a ray, how many times more
data are used whole where their way is counted, the ratio of the first two x-steps that compete on the large route;
the share of a violation, of a relaxation t and of a gain that counts as much less, and the chance of ending somewhere
new up to which no further starts are made. The violation of a point that counts as feasible is
`hierax._engine.programs.FEASIBLE`.
"""

from hierax._base.constants import FRESH_SAMPLES, MUCH

# -- routes and limits ------------------------------------------------------------------------------------------------

SMALL_ROUTE_SIZE = 100
"""Variables and rows of the lower level, together, up to which the small route is taken; also entries of x, and rows
near a kink, that SLSQP takes on a piece. Not measured as a limit: BOLIB's largest have 20 variables and 20 rows."""

DENSE_SIZE = 600
"""Unknowns up to which SLSQP is used on KKT systems, and y is followed along the central path. One SLSQP run takes 0.35
s with 200 unknowns and 2.4 s with 440; the limit itself is not measured."""

MATRIX_ORDER = 2000
"""Order of the largest dense matrices: variables up to which the penalty route is taken, entries of y and rows up to
which the large route makes certificates. At 1,010 variables and 1,300 rows a problem takes 16 CPU s; not measured."""

WHOLE_DATA = 2e6
"""Numbers in all data up to which they are used whole whatever the objectives do with them. Not measured."""

MUCH_DATA = MUCH * WHOLE_DATA
"""Numbers up to which data are used whole if what the objectives make of them on the way is counted."""

SECONDS = 120.0
"""Time limit in seconds, compilation included; on the small route a quarter of it, on the penalty and the average route
half of it. Searches are bounded by work: of BOLIB's problems four take longer than that quarter, whose lower levels
have many minima, and with the whole of it they took up to 89 CPU s for the same answers."""

SEARCH_SHARE = 0.75
"""Share of the time limit after which the search has to end: the rest is for the certificate. Not measured."""

# -- starts -----------------------------------------------------------------------------------------------------------

STARTS = 16
"""Starts of a search; three times as many further ones on the small route. Prototype:
71 of 71 with 16 starts (two seeds), 66 with 4. With 25 optima that are met equally often, 16 starts find a given one in
about half of all searches, 64 in nine of ten."""

AGREEING_STARTS = STARTS // 2
"""Starts that must all end at one optimum for the small route to end early; feasible points that are enough; starts of
the large route. Not measured."""

AGREEING_DESCENTS = 3
"""Descents that must end at the lowest F for the penalty route to try no more starts; further ones may take twice as
many evaluations as the first, or as many as one may have iterations where the lower level is small. Where every start
of the SVM's sample weights (500 x) ends at a place of its own, the ends of five starts lay within 0.0035 of each other,
of a decrease of 0.21."""

TURNS = 4
"""Times that the search goes on from a lower point which the certificate, or a look along the entries of x, has found;
starts before the first such look; starts of value polishes where some start arrived nowhere. Not measured."""

STRETCHES = tuple(MUCH**power for power in range(1, TURNS))
"""How much further along a ray, one after another, F must fall on for a problem to count as unbounded."""

# -- how points are judged --------------------------------------------------------------------------------------------

NEGLIGIBLE = 1e-5
"""Relative gap, KKT residual, difference in F and distance to a kink, in units, that count for nothing; a point is far
away where a unit is less than this of its distance. Accepting only smaller gaps would discard the only good point of
problems without multipliers (Dempe1992b: gap 6e-6)."""

TIGHT = 1e-7
"""Violation and gap below which nothing of a point's F is owed to the tolerances, and difference in F, in units, of
ends that are one optimum wherever they are. Prototype."""

ROUNDING = 1e-9
"""What lower solves leave by themselves: gap, violation and gain in F in units, relative curvature. Not measured."""

NOTICEABLE = 1e-3
"""Violation, in units, beyond which constraints count as violated, and relative difference in F within which ends at
one place agree, and that counts as progress of a stage: the tolerance of certificates, and the benchmark's own
criterion. F is far below where a unit is less than this of it. By F alone, 14 starts on SMD7 with eight different ends
counted as one."""

NEAR = 1e-2
"""Distance, in units of the variables, within which points belong to one local optimum, one branch of the lower level,
or one kink (not measured); relative difference in F within which a tight point is preferred to a lower one that is not.
With selection by F alone and a last slack of 1e-6, 58 to 63 of 68 answers were within 1e-3 of the optimum; with this
rule and 1e-8, 69 of 69."""

LISTED = 4
"""Other optima, and rows that exclude each other, that are named in words."""

# -- polishes and descents --------------------------------------------------------------------------------------------

RELAXATIONS = (1e-1, 1e-4, 1e-8)
"""Bounds t on the products -mu_i row_i, in units, one after another. The prototype had 1e-1, 1e-3, 1e-5, 1e-8; with
1e-2, 1e-5, 1e-8 MitsosBarton2006Ex326 of BOLIB ends at another optimum."""

SQP_ITERATIONS, DESCENT_ITERATIONS = 60, 600
"""Iterations of one run of SLSQP (prototype), and of a descent on F(x, y*(x)). With 200, the first descent on the SVM's
sample weights (500 x) ended at a slope that the certificate objects to, and so did four more from there: 1,699
evaluations and no claim; with 600 the first one ends certified after 616."""

SQP_CHANGE = 1e-12
"""Change of F, in units, at which SLSQP stops; with value functions among the rows it is ROUNDING. Not measured."""

MAX_STALLED_EVALUATIONS = 12
"""Evaluations in a row without progress after which a descent ends. Not measured."""

RUN_OFF = 1e8
"""Entries beyond this, in units, belong to iterates on their way to infinity; values that are not finite are shown to
searches as this. Prototype."""

MOST_CUTS = 3
"""Cuts one after another from one start; twice as many polishes. Prototype."""

NEARBY = 0.3
"""Distance, in lengths of x, at which F is looked at beside the best point, and within which rows that change sides are
told to the search on a piece. Dempe1992b has an inflection at x = 1, where the KKT polish stops. Not measured."""

# -- samples, and the large route --------------------------------------------------------------------------------------

GROWTH = 4
"""Growth of the samples from average to average, and of c1 where the stages of the large route bring no progress: the
bias of the penalty falls like 1/c1. Not measured."""

MOST_SAMPLES = GROWTH * GROWTH * FRESH_SAMPLES
"""Samples that are averaged, or judge a point, at most. Not measured."""

INNER_STEPS = 50
"""Inner steps where the lower level is known exactly, so that longer inner loops cost no samples. Not measured."""

FIRST_STEPS, STEPS_GROWTH = 250, 1.5
"""Outer steps of the first runs, and their growth from stage to stage. Not measured."""

FEW_X, LAST_RADIUS = 8, 0.02
"""Entries of x up to which a search by training moves each of them (else twice as many stages of SALVF show it a way),
and its last radius as a share of the size of x, where the noise of eight trainings begins on the digits. The first is
not measured."""
