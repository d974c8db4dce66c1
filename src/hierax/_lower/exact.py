r"""Exact: the lower level to machine-like precision, by the proximal method of multipliers.

With rows r (the constraints, the equalities and the faces of Y), penalties rho_i and a weight delta, each outer step
minimises, by a semismooth Newton method with Armijo's rule,

    phi(v) = G(v) + sum_i ([mu_i + rho_i r_i(v)]_+^2 - mu_i^2) / (2 rho_i) + delta/2 ||v - centre||^2

and then sets mu <- [mu + rho r]_+ (equalities: without [.]_+) and centre <- v. The proximal term is what makes it work
where G is merely convex: linear in some coordinates, or flat. Near the solution mu and the set of active rows settle,
and one Newton step per outer step is a step of Newton's method on the KKT system.

Everything is one loop of Newton steps (an outer step is made within a Newton step whenever phi is minimised well
enough), so that many problems can be mapped over at once without waiting for each other's inner loops.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from hierax._base.constants import ARMIJO, LITTLE, MUCH
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN, check_settings
from hierax._base.trees import Number
from hierax._lower.base import CLEAR, AbstractLowerSolver, compiled_where_called, completed
from hierax._lower.linear import MAX_PRODUCTS
from hierax._math.lower_level import (
    INACCURATE,
    INFEASIBLE,
    RUNNING,
    SOLVED,
    UNBOUNDED,
    Level,
    LowerSolution,
    RowVector,
    Units,
    Vector,
    continued_outside,
    level_at,
    reachable,
    residual,
    units_at,
)
from hierax._math.scatter import cover, unit_cube
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows

FIRST_PENALTY = 30.0  # first penalty, in units of curvature of G per squared gradient of the row
FIRST_PROXIMAL = 1e-4  # first proximal weight, in units of curvature of G
GROWTH = MUCH  # factor of the penalty, and divisor of the proximal weight, after an outer step that changes more than
# the last change divided by it; the longest step along one eigenvector, in sizes of y
RUN_OFF = 1e8  # an iterate this many lengths away has run off


Product = Callable[[Vector], Vector]
Direction = tuple[Vector, Bool[Array, ""]]
Newton = Callable[[Product, Vector, Scalar, Units, Vector], Direction]
"""(product with the Hessian, gradient, damping, units, point) -> (direction, whether the Hessian failed to give one)"""


class _Phi(NamedTuple):
    """What phi is made of; changes with outer steps only."""

    centre: Vector
    mu: RowVector
    units: Units
    penalty: Scalar
    proximal: Scalar

    @property
    def weights(self) -> RowVector:
        """rho, a number per row."""
        return self.penalty * self.units.curvature / self.units.row**2


class State(NamedTuple):
    """The iterate, what is known about it, and phi.

    Attributes:
        v: the point.
        mu: the multipliers that go with it.
        value: G there.
        residual: of the KKT conditions at (v, mu).
        status: SOLVED, INACCURATE, INFEASIBLE or UNBOUNDED, or RUNNING.
        steps: Newton steps so far.
        stuck: whether the last line search found nothing better.
        damping: added to the Hessian of phi, relative to its diagonal, after a factorisation failed.
        phi: the function being minimised.
        moved_mu: change of mu in the last outer step, as a violation in lengths.
        moved_v: what the proximal term contributed to the gradient then.
        at_start: G at the start.
    """

    v: Vector
    mu: RowVector
    value: Scalar
    residual: Scalar
    status: Int[Array, ""]
    steps: Int[Array, ""]
    stuck: Bool[Array, ""]
    damping: Scalar
    phi: _Phi
    moved_mu: Scalar
    moved_v: Scalar
    at_start: Scalar


class Exact(AbstractLowerSolver):
    """Solver of lower levels: nonlinear constraints, equalities, any Y that states its faces.

        y*(x) = argmin over y in Y of {G(x, y) : h(x, y) <= 0, e(x, y) = 0}

    by the proximal method of multipliers, with rows r (constraints and faces of Y) and Newton steps in v:

        v  <- argmin of G(v) + sum_i ([mu_i + rho_i r_i(v)]_+^2 - mu_i^2)/(2 rho_i) + delta/2 ||v - centre||^2
        mu <- [mu + rho r(v)]_+,   centre <- v

    With one start it is meant for convex lower levels. With more, all of them are solved in one batched program, steps
    take negative curvature into account, and the best KKT point found counts: v(x) is then the best of `starts`.

    The first derivatives of G and the constraints must be continuous. Matrices of size dim(y) are formed while dim(y)
    plus the number of constraints is at most `dense_limit`; above it Newton steps come from conjugate gradients.

    SOLVED is said only where the KKT residual at the returned point is at most `tol`. INFEASIBLE: the point minimises
    the squared violation and still violates (for convex constraints, proof that no feasible point is anywhere near).
    UNBOUNDED: feasible iterates of falling objective went 1e8 times further than the start (or than one).

    Args:
        tol: KKT residual (see `hierax._math.lower_level`) that counts as solved; in single precision at least 200
            times the rounding unit.
        max_steps: bound on the number of Newton steps.
        dense_limit: up to here matrices are formed.
        starts: from how many points the lower level is solved: the given y and `starts` - 1 that cover Y (or the
            surroundings of y). More than one for lower levels that are not convex.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> from hierax._lower.exact import Exact
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: y, lower=lambda x, y, xi: (y - 2 * x) ** 2, constraints=lambda x, y: y - x
        ... )
        >>> found = Exact().solve(problem, jnp.asarray(1.5), jnp.asarray(0.0))
        >>> round(float(found.y), 3), round(float(found.multipliers.inequalities), 3)
        (1.5, 3.0)

    References:
        Rockafellar: Augmented Lagrangians and applications of the proximal point algorithm in convex programming,
            Mathematics of Operations Research 1, 1976.
        docs/methods/lower-solvers.md
    """

    tol: Number = 1e-8
    max_steps: int = eqx.field(static=True, default=200)
    dense_limit: int = eqx.field(static=True, default=2000)
    starts: int = eqx.field(static=True, default=1)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        counts = dict.fromkeys(("max_steps", "dense_limit", "starts"), COUNT_GIVEN)
        check_settings(self, {"tol": POSITIVE_GIVEN} | counts)

    @compiled_where_called
    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """y*(x) and its multipliers on the batch xi, from y and, where given, good multipliers."""
        level = continued_outside(level_at(problem, x, y, xi), problem.y_set)
        if multipliers is None:
            mu = jnp.zeros(level.equal.size, level.start.dtype)
        else:
            mu = completed(level, level.signed(level.multipliers(multipliers)), level.face)
        if self.starts == 1:
            end = self._minimise(level, jax.flatten_util.ravel_pytree(sets.project(problem.y_set, y))[0], mu)
        else:
            points = cover(problem.y_set, y, unit_cube(level.start.size, self.starts - 1))
            end = _best(jax.vmap(lambda v: self._minimise(level, v, mu))(points))
        at = sets.project(problem.y_set, level.tree(end.v))
        return LowerSolution(at, *level.split(end.mu), end.value, end.residual, end.status, end.steps)

    def _minimise(self, level: Level, start: Vector, mu: RowVector) -> State:
        return self.went_on(level, begun(start, mu), start)

    def went_on(self, level: Level, state: State, start: Vector, until: Array | None = None) -> State:
        """The loop that began at `start` from where it stands, to its end, or at most to the Newton step `until`."""
        tol = reachable(self.tol, start.dtype)
        dense = start.size + int((~level.face).sum()) <= self.dense_limit
        newton = (cholesky if self.starts == 1 else eigenvectors) if dense else conjugate_gradients
        return continued(level, state, start, tol, self.max_steps, newton, until)


def _best(ends: State) -> State:
    """The solved one of lowest value; else one that proves unboundedness; else the most nearly solved."""
    rank = jnp.where(ends.status == SOLVED, 1, jnp.where(ends.status == UNBOUNDED, 0, 2))
    nearly = jnp.where(ends.status == INFEASIBLE, jnp.inf, ends.residual)
    order = jnp.lexsort((jnp.where(rank == 1, ends.value, nearly), rank))
    return jax.tree.map(lambda leaf: leaf[order[0]], ends)


def begun(start: Vector, mu: RowVector) -> State:
    """Where the loop begins."""
    one = jnp.ones((), start.dtype)
    unknown = Units(jnp.ones_like(mu), one, one, one)
    return State(
        v=start,
        mu=mu,
        value=one,
        residual=jnp.inf * one,
        status=jnp.asarray(RUNNING, jnp.int32),
        steps=jnp.asarray(-1, jnp.int32),
        stuck=jnp.asarray(True),
        damping=0 * one,
        phi=_Phi(start, mu, unknown, FIRST_PENALTY * one, FIRST_PROXIMAL * one),
        moved_mu=jnp.inf * one,
        moved_v=jnp.inf * one,
        at_start=one,
    )


def continued(
    level: Level, state: State, start: Vector, tol: Scalar, max_steps: int, newton: Newton, until: Array | None = None
) -> State:
    """The loop from where it stands, to its end, or at most to the Newton step `until`."""

    def unfinished(state: State) -> Bool[Array, ""]:
        running = state.status == RUNNING
        return running if until is None else running & (state.steps < until)

    def body(state: State) -> State:
        state = _outer_step(level, state, start, tol, max_steps)
        return jax.lax.cond(state.status == RUNNING, lambda: _newton_step(level, state, newton), lambda: state)

    return jax.lax.while_loop(unfinished, body, state)


def _outer_step(level: Level, state: State, start: Vector, tol: Scalar, max_steps: int) -> State:
    """Judge the point, and where phi is minimised well enough go on to the next phi."""
    v, phi, eps = state.v, state.phi, jnp.finfo(state.v.dtype).eps
    first = state.steps < 0
    rows, pull = jax.vjp(level.rows, v)
    value, downhill = jax.value_and_grad(level.objective)(v)
    mu = jnp.where(first, phi.mu, level.signed(phi.mu + phi.weights * rows))
    along = pull(mu)[0]
    units = units_at(level, v, rows, downhill, tol)
    # Multipliers from elsewhere that do not even balance G's gradient are worse than none.
    useless = first & (jnp.linalg.norm(downhill + along) > jnp.linalg.norm(downhill) + units.slope)
    mu, along = jnp.where(useless, 0.0, mu), jnp.where(useless, 0.0, along)
    gradient = downhill + along
    left = residual(level, units, rows, mu, gradient)

    pulled = phi.proximal * (v - phi.centre)
    inner = jnp.max(jnp.abs(gradient / phi.units.curvature + pulled), initial=0.0)
    moved_mu = jnp.where(first, jnp.inf, jnp.max(jnp.abs(mu - phi.mu) / (phi.weights * phi.units.row), initial=0.0))
    moved_v = jnp.where(first, jnp.inf, jnp.max(jnp.abs(pulled), initial=0.0))
    small = 0.1 * tol * phi.units.slope / phi.units.curvature
    # phi is minimised well enough where its gradient is half of what the outer step will change.
    ready = state.stuck | (inner <= jnp.maximum(0.5 * jnp.maximum(moved_mu, moved_v), small))

    # What moved by less than the tolerance is not slow: a penalty raised for rounding errors only spoils the Hessian.
    slow_mu = moved_mu > jnp.maximum(state.moved_mu / GROWTH, 0.01 * tol * units.length)
    slow_v = moved_v > state.moved_v / GROWTH
    # Beyond the largest penalty rounding in a row, times the penalty, exceeds the tolerance.
    largest = 0.2 * tol * units.slope / (units.curvature * eps * jnp.maximum(1.0, jnp.max(jnp.abs(v), initial=0.0)))
    grown = jnp.where(slow_mu, jnp.minimum(GROWTH * phi.penalty, largest), phi.penalty)
    grown = jnp.where(first, jnp.minimum(phi.penalty * jnp.clip(0.1 / left, 1.0, 1e3), largest), grown)  # a good start
    weaker = jnp.where(slow_v, jnp.maximum(phi.proximal / GROWTH, jnp.maximum(1e-10, 10 * eps)), phi.proximal)
    following = state._replace(phi=_Phi(v, mu, units, grown, weaker), moved_mu=moved_mu, moved_v=moved_v)

    violation = level.signed(rows) / units.row
    in_vain = (phi.penalty >= largest) & (moved_mu > 0.9 * state.moved_mu)
    hopeless = ready & _hopeless(violation, pull(violation / units.row)[0], v, units.length, in_vain, tol)
    at_start = jnp.where(first, value, state.at_start)
    falling = (value < at_start) & (jnp.vdot(downhill, v - start) < 0)  # still: a steep start may have thrown v there
    gone = _gone(v, start, violation) & falling
    # No step leads away from a point where G or its gradient is not finite (line searches never accept one).
    lost = ~(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient)))
    status = jnp.where((state.steps < max_steps) & ~lost, RUNNING, INACCURATE)
    # Convergence is superlinear by then: one more step for a tenth of the tolerance, which G pays multipliers times.
    solved = (left <= 0.1 * tol) | ((left <= tol) & (first | (state.residual <= tol) | (state.steps >= max_steps)))
    status = jnp.where(solved, SOLVED, jnp.where(hopeless, INFEASIBLE, jnp.where(gone, UNBOUNDED, status)))
    state = jax.tree.map(lambda a, b: jnp.where(ready, a, b), following, state)
    status, steps = status.astype(state.status.dtype), jnp.maximum(state.steps, 0)
    return state._replace(mu=mu, value=value, residual=left, status=status, steps=steps, at_start=at_start)


def _newton_step(level: Level, state: State, newton: Newton) -> State:
    """One step of the semismooth Newton method on phi."""
    value = functools.partial(_phi, level, state.phi)

    def derivative(v: Vector) -> tuple[Vector, tuple[Scalar, Scalar]]:
        both, slope = jax.value_and_grad(value, has_aux=True)(v)
        return slope, both

    slope, curved, here = jax.linearize(derivative, state.v, has_aux=True)
    direction, failed = newton(curved, slope, state.damping, state.phi.units, state.v)
    v, stuck = armijo(value, state.v, here, direction, jnp.vdot(slope, direction), state.status == RUNNING)
    damping = jnp.where(failed, jnp.maximum(10 * state.damping, 1e-8), 0.1 * state.damping)
    return state._replace(v=v, steps=state.steps + 1, stuck=stuck, damping=damping)


def _phi(level: Level, phi: _Phi, v: Vector) -> tuple[Scalar, Scalar]:
    """phi(v), and the sum of its terms' magnitudes (for the size of rounding errors).

    What G changes over a length is one of them: its value alone may be small because a constant was subtracted.
    """
    objective = level.objective(v)
    shifted = level.signed(phi.mu + phi.weights * level.rows(v))
    away = v - phi.centre
    rest = 0.5 * (jnp.sum(shifted**2 / phi.weights) + phi.proximal * phi.units.curvature * jnp.vdot(away, away))
    return objective + rest, jnp.abs(objective) + phi.units.slope * phi.units.length + rest


def _hopeless(
    violation: RowVector, push: Vector, v: Vector, length: Scalar, in_vain: Bool[Array, ""], tol: Scalar
) -> Bool[Array, ""]:
    """Whether v is stationary for the squared violation (`push` is its gradient) and yet violates.

    For convex rows and u >= 0, u.rows(y) >= u.rows(v) + (J'u).(y - v). With u the violation at v, no y closer to v than
    |u|^2 / |J'u| is feasible: a huge radius is a proof of infeasibility. Where curved rows exclude each other the
    radius grows slowly; there a large one is enough once the penalty has been raised to its limit in vain.
    """
    size = jnp.linalg.norm(violation)
    huge = jnp.minimum(1e7, 0.1 / jnp.finfo(v.dtype).eps)
    radius = jnp.where(in_vain, 1e3, huge) * jnp.maximum(1.0, jnp.linalg.norm(v))
    return (size > jnp.maximum(CLEAR, tol) * length) & (radius * jnp.linalg.norm(push) <= size**2)


def _gone(v: Vector, start: Vector, violation: RowVector) -> Bool[Array, ""]:
    """Whether v has run off along feasible points."""
    distance = jnp.max(jnp.abs(v), initial=0.0)
    far = distance > RUN_OFF * jnp.maximum(1.0, jnp.max(jnp.abs(start), initial=0.0))
    share = jnp.where(distance > RUN_OFF**2, LITTLE, CLEAR)  # out there rounding alone moves rows
    return far & (jnp.max(jnp.abs(violation), initial=0.0) <= share * distance)


# -- directions of Newton's method, and the line search along them ----------------------------------------------------


def cholesky(curved: Product, slope: Vector, damping: Scalar, units: Units, v: Vector) -> Direction:
    """Newton's direction from a factorisation; where the Hessian is not positive definite, a short way downhill."""
    del units, v
    n = slope.size
    identity = jnp.eye(n, dtype=slope.dtype)
    hessian = jax.vmap(curved)(identity)
    typical = jnp.mean(jnp.abs(jnp.diag(hessian)))
    factor = jnp.linalg.cholesky(hessian + (damping + 4 * n * jnp.finfo(slope.dtype).eps) * typical * identity)
    direction = -jax.scipy.linalg.cho_solve((factor, True), slope)
    failed = ~jnp.all(jnp.isfinite(direction))
    return jnp.where(failed, -slope / jnp.linalg.norm(hessian), direction), failed


def eigenvectors(curved: Product, slope: Vector, damping: Scalar, units: Units, v: Vector) -> Direction:
    """Newton's direction with the magnitudes of the eigenvalues: downhill also where the Hessian is indefinite.

    Each component along an eigenvector is held back for itself. A bound on the whole step would let the huge component
    of a flat direction (a linear lower level has them) shrink the useful ones.
    """
    del damping
    hessian = jax.vmap(curved)(jnp.eye(slope.size, dtype=slope.dtype))
    failed = ~jnp.all(jnp.isfinite(hessian))
    hessian = jnp.where(failed, units.curvature * jnp.eye(slope.size, dtype=slope.dtype), hessian)
    values, vectors = jnp.linalg.eigh(0.5 * (hessian + hessian.T))
    least = jnp.finfo(slope.dtype).eps * jnp.max(jnp.abs(values)) + jnp.finfo(slope.dtype).tiny
    magnitudes = jnp.maximum(jnp.abs(values), least)
    longest = GROWTH * (units.length + jnp.max(jnp.abs(v)))
    along = jnp.clip(-(vectors.T @ slope) / magnitudes, -longest, longest)
    return vectors @ along, failed


def conjugate_gradients(curved: Product, slope: Vector, damping: Scalar, units: Units, v: Vector) -> Direction:
    """Newton's direction as far as it matters: the closer to the minimum, the more exact."""
    del v
    enough = jnp.minimum(0.1, jnp.sqrt(jnp.linalg.norm(slope) / units.slope))
    direction, _ = jax.scipy.sparse.linalg.cg(
        lambda u: curved(u) + damping * units.curvature * u, -slope, tol=enough, maxiter=MAX_PRODUCTS
    )
    downhill = jnp.vdot(direction, slope) < 0
    return jnp.where(downhill, direction, -slope / units.curvature), ~downhill


def armijo(
    function: Callable[[Vector], tuple[Scalar, Scalar]],
    v: Vector,
    here: tuple[Scalar, Scalar],
    direction: Vector,
    slope: Scalar,
    wanted: Bool[Array, ""] | bool = True,
) -> tuple[Vector, Bool[Array, ""]]:
    """The point after the first of the steps 1, 1/2, 1/4, ... that lowers the function enough, and whether none did.

    `here` is the function at v: its value, and the size of what it was summed from. Close to the minimum the values are
    too blunt to judge by, as their last digits are noise. Where they differ by less than half their digits the slope
    after the step decides (Hager and Zhang's approximate rule: both rules agree for quadratic functions). A value that
    is not a number never passes. Where nothing is `wanted` no step is looked for: of many starts in one batch those
    that are done would take all of the halvings while others go on.
    """
    shortest = float(jnp.finfo(float).eps)  # below it the function is minimised as far as rounding allows
    noise = jnp.sqrt(jnp.finfo(v.dtype).eps) * here[1]

    def too_high(carry: tuple[Scalar, Scalar, Scalar]) -> Bool[Array, ""]:
        length, reached, after = carry
        lower = reached <= here[0] + ARMIJO * length * slope
        flatter = (reached <= here[0] + noise) & (after <= (2 * ARMIJO - 1) * slope)
        return ~(lower | flatter) & (length > shortest) & wanted

    def halve(carry: tuple[Scalar, Scalar, Scalar]) -> tuple[Scalar, Scalar, Scalar]:
        length = 0.5 * carry[0]
        (reached, _), (after, _) = jax.jvp(function, (v + length * direction,), (direction,))
        return length, reached, after

    high = jnp.full((), jnp.inf, v.dtype)
    length, _, _ = jax.lax.while_loop(too_high, halve, (jnp.full((), 2.0, v.dtype), high, high))
    stuck = length <= shortest
    return jnp.where(stuck, v, v + length * direction), stuck
