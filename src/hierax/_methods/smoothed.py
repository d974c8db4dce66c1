"""Descent on a family of smooth functions phi_s(x) that tend to F(x, y*(x)): what six published methods share.

    GAM       phi(x)   = F(x, y*(x)),   y* by an exact solver                            s: none
    SIGD      phi_s(x) = F(x, y_q(x)),  y_q of the lower objective plus q'y              s: the draw of q
    IG-AL     phi(x)   = F(x, y*(x)),   y* by an augmented Lagrangian method             s: none
    Barrier   phi_t(x) = F(x, y_t(x)),  y_t of the lower objective plus a barrier        s: t, decreasing
    Moreau    phi_c(x) = min over y of F + c (G - v_g)                                   s: c, increasing
    penalty   phi_r(x) = min over y of F + r (G_m(x, y) - min over z of G_m(x, z))       s: r and m, increasing

A method says how phi_s and its gradient are evaluated (`look`, `slope`); s is a function of the number of the line
search, so that it stays the same within one. Where f is exact x moves by Armijo's rule (below), one trial point
per outer step; where it is sampled by x <- Proj_X(x - eta_k d) with d on the step's batch of zeta. The lower level is
solved on all of xi: y*(x) of a batch would be the solution of another problem. Where phi has kinks d is no gradient:
GAM has a `direction` of its own, and remembers how fine it is.

Armijo's rule for x, one trial point per outer step, with Barzilai-Borwein lengths.

    x' = Proj_X(x - t d) is taken where phi(x') <= phi(x) - 1e-4 ||x' - x||^2 / t, else t is halved

A long first step leaves the basin, so the first one is 1/100 of ||x||; after a success t is the Barzilai-Borwein
length, at most doubled.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import ARMIJO, LITTLE, MUCH, NEGLIGIBLE
from hierax._base.trees import dtype_of, move, or_one, select
from hierax._math.convexity import lower_curvatures
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution, blocks_at
from hierax._math.psi import Iterate
from hierax._math.spectrum import curvature, unit_scales
from hierax._methods import common
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows
from hierax._problem.samples import Tickets
from hierax._run.method import Advice, Begun, Costs, Metrics, Residual, RunCosts

Flag = Bool[Array, ""]


class LineSearch(NamedTuple):
    """What the rule remembers.

    Attributes:
        length: the next trial length t; zero before the first step.
        good: the length of the last success.
        x: where the last step began.
        d: its direction.
    """

    length: Scalar
    good: Scalar
    x: PyTree
    d: PyTree


def trial(search: LineSearch, x: PyTree, d: PyTree) -> LineSearch:
    """The search at x along d, with the length to try."""
    first = search.length == 0
    start = 1 / MUCH**2 * size_of(x) / or_one(trees.norm(d))
    length = jnp.where(first, start, _next_length(search, x, d))
    return LineSearch(length, jnp.where(first, start, search.good), x, d)


def tried(search: LineSearch, taken: Flag, way: Scalar) -> LineSearch:
    """After a trial: the length stays, or is halved; one too short to move x says nothing, and the last good one is
    tried again.
    """
    nowhere = leads_nowhere(search.x, way)
    shorter = jnp.where(nowhere, search.good, 0.5 * search.length)
    return search._replace(
        length=jnp.where(taken, search.length, shorter), good=jnp.where(taken & ~nowhere, search.length, search.good)
    )


def leads_nowhere(x: PyTree, way: Scalar) -> Flag:
    """Whether a step is too short to move x."""
    return way <= 10 * jnp.finfo(way.dtype).eps * size_of(x)


def size_of(x: PyTree) -> Scalar:
    """||x||, or one at zero."""
    return or_one(trees.norm(x))


def _next_length(search: LineSearch, x: PyTree, d: PyTree) -> Scalar:
    """The Barzilai-Borwein length after a step that moved x, within bounds; else the length that is waiting."""
    s, turned = trees.sub(x, search.x), trees.sub(d, search.d)
    square, product = trees.norm_squared(s), trees.vdot(s, turned)
    curved = product > 0
    length = jnp.where(curved, square / jnp.where(curved, product, 1.0), jnp.inf)
    return jnp.where(square > 0, jnp.clip(length, LITTLE * search.length, 2 * search.length), search.length)


class Round(NamedTuple):
    """What phi_s is on: the number of the line search (where f is sampled: of the step) and the run's key, the batch of
    zeta of this step, and all of xi.
    """

    number: Int[Array, ""]
    key: PRNGKeyArray
    zeta: PyTree = None
    xi: PyTree = None


class Look(NamedTuple):
    """What solving the inner problems at one x gave.

    Attributes:
        value: phi_s(x).
        noise: what rounding and the solvers' residuals may make of it.
        y: the y that the run reports.
        multipliers: of the lower level, in the user's units.
        inner: what the next solve starts from.
        lower: G(x, y).
        distance: how far the method knows y to be from the lower level's solution.
        residual: of the inner solves.
        status: how they ended, as in `LowerSolution`.
    """

    value: Scalar
    noise: Scalar
    y: PyTree
    multipliers: Rows
    inner: PyTree
    lower: Scalar
    distance: Scalar
    residual: Scalar
    status: Int[Array, ""]


class SmoothedState(NamedTuple):
    """Everything that changes from step to step; `look` belongs to the point, `memory` is the method's own."""

    point: Iterate
    look: Look
    line: LineSearch
    rule: PyTree
    memory: PyTree
    round: Int[Array, ""]
    step: Int[Array, ""]
    key: PRNGKeyArray


class Prepared(NamedTuple):
    """The method with its own numbers filled in, what the first look starts from, reasons to refuse, and a memory."""

    method: "Smoothed"
    inner: PyTree
    doubts: Mapping[str, Flag]
    memory: PyTree = ()


def eta_advice(name: str, bring_y_closer: str) -> Advice:
    """The advice of a method whose x-step is called eta."""
    return Advice(
        bring_y_closer=bring_y_closer,
        shorten_steps="Give a smaller eta, or leave it unset.",
        lengthen_x_step=f"lengthen its step, hx.{name}(eta=...).",
    )


class Smoothed(common.PublishedMethod, common.WithSmoothness):
    """Base of the methods above. A subclass writes `prepared`, `look` and `slope`.

    Args:
        eta: x-step: a number, a schedule or an optax transformation. None: Armijo's rule where f is exact, a decaying
            step eta_k = min(1, 1.5 (k+1)^(-1/3)) / L where it is sampled, L the curvature of phi met along its gradient
            at the start (at least ||d||/||x||).
    """

    eta: common.StepRule = dataclasses.field(default=None, kw_only=True, metadata={"rule": common.check_rule})

    solves: ClassVar[int] = 1  # lower solves of a look
    changes: ClassVar[bool] = True  # whether phi differs from line search to line search
    sees_zeta: ClassVar[bool] = False  # whether the inner problems contain F
    measures_before: ClassVar[bool] = False  # whether stationarity is that for the last success before the trial
    state_settings: ClassVar[dict[str, str]] = {"eta": "Armijo's"}

    # -- what a method writes ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """Estimate what is unset at (x0, y0) and say what does not fit."""

    @abc.abstractmethod
    def look(self, problem: Problem, x: PyTree, inner: PyTree, at: Round) -> Look:
        """phi_s at x, warm from `inner`."""

    @abc.abstractmethod
    def slope(self, problem: Problem, x: PyTree, look: Look, at: Round) -> PyTree:
        """The gradient of phi_s at x, where `look` was taken."""

    # -- what a method may write ------------------------------------------------------------------------------------

    def doubts_at(self, problem: Problem, x: PyTree, look: Look, at: Round) -> Mapping[str, Flag]:
        """Further reasons to refuse, from the first look."""
        return {}

    def direction(self, problem: Problem, state: SmoothedState, here: Look, at: Round) -> tuple[PyTree, PyTree]:
        """The direction d of a step from x, which goes along -d, and what else the method found out about it."""
        return self.slope(problem, state.point.x, here, at), ()

    def remembered(self, problem: Problem, state: SmoothedState, known: PyTree, there: Look, taken: Flag) -> PyTree:
        """The memory after a trial point of the line search `state.line`, from what `direction` found out."""
        return state.memory

    # -- before the first step --------------------------------------------------------------------------------------

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """The first look at x0; unless Armijo's rule does without, the step estimated there."""
        dtype = dtype_of(x0, y0)
        none = jnp.zeros((), jnp.int32)
        at = Round(none, key, *common.first_batches(self, problem, key, look))
        method, inner, doubts, memory = self.sized(problem).prepared(problem, x0, y0, at, key)
        if self.searches(problem):
            first = method.look(problem, x0, inner, at)
        else:
            first, curved = _probed(method, problem, x0, inner, at)
            eta = common.filled_rule(self.eta, common.Decay(1 / curved), dtype)
            method = common.with_defaults(dataclasses.replace(method, eta=eta), dtype, smoothness=curved)
        doubts = {**doubts, **method.doubts_at(problem, x0, first, at)}
        line = LineSearch(jnp.zeros((), dtype), jnp.zeros((), dtype), x0, jax.tree.map(jnp.zeros_like, x0))
        state = SmoothedState(
            Iterate(x0, first.y), first, line, common.init_rule(method.eta, x0), memory, none, none, key
        )
        return Begun(method, state, doubts)

    def searches(self, problem: Problem) -> bool:
        """Whether Armijo's rule sets the step: it compares values of phi, so they must be exact."""
        return self.eta is None and problem.zeta is None

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, problem: Problem, state: SmoothedState, tickets: Tickets) -> tuple[SmoothedState, Metrics]:
        """One trial point (Armijo's rule), or one step of the given rule."""
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.whole(problem.xi, state.key)
        at = Round(state.round, state.key, zeta, xi)
        step = _trial_step if self.searches(problem) else _rule_step
        new, here, d, smoothness, status = step(self, problem, state, at)
        upper, distance, inner = problem.upper(state.point.x, here.y, at.zeta), new.look.distance, new.look.residual
        taken = common.StepTaken(state.point, new.point, d, (), upper, here.lower, distance, inner, status=status)
        smoothness = smoothness if self.smoothness is None else self.smoothness
        return new, common.step_metrics(problem, unit_scales(problem, *new.point[:2]), taken, smoothness)

    # -- what the loop asks -----------------------------------------------------------------------------------------

    def zero_residual(self, state: SmoothedState) -> Residual:
        """Zeros like x; y has no residual of its own, and that of the inner solves is a number."""
        return jax.tree.map(jnp.zeros_like, Residual(state.point.x, inner=state.look.residual))

    def multipliers(self, problem: Problem, state: SmoothedState) -> Multipliers:
        """Those of the lower level."""
        return common.of_lower_level(problem, *state.point[:2], state.look.multipliers)

    def moved_to(self, state: SmoothedState, x: PyTree, y: PyTree, multipliers: Multipliers) -> SmoothedState:
        """The state at another point of the run."""
        look = state.look._replace(y=y, multipliers=Rows(*multipliers[:2]))
        return state._replace(point=Iterate(x, y), look=look)

    def costs(self, problem: Problem) -> RunCosts:
        """In lower solves, which are nearly all of it; second derivatives are not counted."""
        # Armijo's rule needs no gradient before the first step; an estimated step those at two points.
        looks, start, slopes = (1 + self.changes, 1, 0) if self.searches(problem) else (1, 2, 2)
        first = Costs(0, 0, slopes, 2 * slopes, 2 * slopes, start * self.solves)
        zeta = common.batch_costs(self, problem).zeta
        return RunCosts(first, Costs(zeta, 0, 2, 2, 2, lower_solves=looks * self.solves))


def _probed(method: Smoothed, problem: Problem, x0: PyTree, inner: PyTree, at: Round) -> tuple[Look, Scalar]:
    """The look at x0, and how fast the gradient of phi changes along itself there."""
    size = size_of(x0)

    def visit(x: PyTree, _: None) -> tuple[PyTree, tuple[PyTree, PyTree, Look]]:
        found = method.look(problem, x, inner, at)
        d = method.slope(problem, x, found, at)
        step = NEGLIGIBLE * size / or_one(trees.norm(d))
        return sets.project(problem.x_set, move(x, step, d)), (x, d, found)

    _, (xs, ds, both) = jax.lax.scan(visit, x0, None, length=2)  # a loop, so that the solver compiles once
    moved, turned = (trees.norm(jax.tree.map(lambda a: a[1] - a[0], tree)) for tree in (xs, ds))
    steep = trees.norm(jax.tree.map(lambda a: a[0], ds))
    curved = or_one(jnp.maximum(turned / or_one(moved), steep / size))
    return jax.tree.map(lambda a: a[0], both), curved


Taken = tuple[SmoothedState, Look, PyTree, Scalar, Int[Array, ""]]
"""The state after a step, the look and the direction that it began with, 1/step of the stationarity, the status."""


def _rule_step(method: Smoothed, problem: Problem, state: SmoothedState, at: Round) -> Taken:
    """One step of the rule that was given."""
    x = state.point.x
    here = method.look(problem, x, state.look.inner, at) if method.sees_zeta else state.look
    d, _ = method.direction(problem, state, here, at)
    moved, rule = common.apply_rule(method.eta, state.rule, problem.x_set, x, d, state.step)
    following = at._replace(number=state.round + 1)
    after = here if method.sees_zeta else method.look(problem, moved, here.inner, following)
    point = Iterate(moved, after.y)
    new = state._replace(point=point, look=after, rule=rule, round=following.number, step=state.step + 1)
    return new, here, d, method.smoothness, after.status


def _trial_step(method: Smoothed, problem: Problem, state: SmoothedState, at: Round) -> Taken:
    """A trial point of Armijo's rule; after a success, or the last digit, phi_s is the next one."""
    x, here = state.point.x, state.look
    d, known = method.direction(problem, state, here, at)
    line = trial(state.line, x, d)
    target = sets.project(problem.x_set, move(x, line.length, d))
    way = trees.norm(trees.sub(target, x))

    def visit(reached: tuple[PyTree, ...], first: Flag) -> tuple[tuple[PyTree, ...], Look]:
        """The look at the trial point, and what follows from it; then the next phi_s at the point reached."""
        place, inner = select(first, (target, here.inner), reached[:2])
        found = method.look(problem, place, inner, at._replace(number=reached[2]))
        sound = (found.status == SOLVED) | ((found.status == INACCURATE) & (here.status == INACCURATE))
        taken = sound & (found.value - found.noise <= here.value - ARMIJO * way**2 / line.length + here.noise)
        # Where nothing is left to gain from this phi_s but rounding errors, its line search is over too.
        over = taken | (way <= jnp.sqrt(jnp.finfo(way.dtype).eps) * size_of(x))
        landed, warm = select(taken, (target, found.inner), (x, here.inner))
        return select(first, (landed, warm, state.round + over.astype(jnp.int32), taken), reached), found

    begin = (x, here.inner, state.round, jnp.array(False))
    # A loop, so that the solver compiles once.
    (landed, _, number, taken), looks = jax.lax.scan(visit, begin, jnp.arange(1 + method.changes) == 0)
    there = jax.tree.map(lambda a: a[0], looks)
    after = jax.tree.map(lambda a: a[1], looks) if method.changes else select(taken, there, here)
    new = state._replace(
        point=Iterate(landed, after.y),
        look=after,
        line=tried(line, taken, way),
        memory=method.remembered(problem, state._replace(line=line), known, there, taken),
        round=number,
        step=state.step + 1,
    )
    # A trial x without a lower solution only shortens the step, unless no step is short enough.
    hopeless = leads_nowhere(x, way) & (there.status > INACCURATE)
    kept = jnp.where(here.status > INACCURATE, here.status, after.status)
    status = jnp.where(hopeless, there.status, kept)
    measured = line if method.measures_before else new.line
    return new, here, d, 1 / measured.good, status


def blank(problem: Problem, x: PyTree, y: PyTree) -> LowerSolution:
    """What the first solve starts from: y, and multipliers that are zero."""
    zero, none = jnp.zeros((), dtype_of(x, y)), jnp.zeros((), jnp.int32)
    own, faces = jax.tree.map(jnp.zeros_like, blocks_at(problem, x, y)).parts()
    return LowerSolution(y, own, faces, zero, zero, none, none)


def look_through(problem: Problem, x: PyTree, found: LowerSolution, inner: PyTree, distance: Scalar, at: Round) -> Look:
    """The look where phi is F at a lower solution.

    The noise is what rounding, and a y that is off by the residual of its size, make of F: without it the last digits
    never pass. F may be a small sum of large terms, so its slope times the size of y counts as one of them.
    """
    value, slope = jax.value_and_grad(problem.upper, 1)(x, found.y, at.zeta)
    length = or_one(trees.norm(found.y)) * trees.norm(slope)
    eps = jnp.finfo(value.dtype).eps
    terms = jnp.abs(value) + length
    return Look(
        value=value,
        noise=jnp.minimum(length * found.residual, jnp.sqrt(eps) * terms) + 10 * eps * terms,
        y=found.y,
        multipliers=found.multipliers,
        inner=inner,
        lower=problem.lower(x, found.y, at.xi),
        distance=distance,
        residual=found.residual,
        status=found.status,
    )


def gap_unit(
    problem: Problem, rescaled: Problem, x: PyTree, y: PyTree, at: Round
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """The unit of a gap's weight, (curvature of F) / sqrt(L_G mu_G); mu_G with its sign, L_G, and mu_G in size.

    All in y; the constraints of `rescaled` are divided by their scales.
    """
    seen = curvature(rescaled, x, y, common.no_multipliers(problem, x, y), at.zeta, at.xi)
    bottom, top = lower_curvatures(problem, x, y, at.xi)
    top = or_one(jnp.abs(top))
    weakest = jnp.maximum(jnp.abs(bottom), NEGLIGIBLE * top)
    return or_one(common.upper_curvature(seen)) / jnp.sqrt(top * weakest), bottom, top, weakest
