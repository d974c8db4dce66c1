r"""What every measurement of the outer loop needs: cases, runs that keep all their points, exact stationarity.

The runs are made of the library's own `method.init` and `method.step`. S is the squared stationarity

    S = ||u - Proj(u - a grad Psi(u))||^2 / a^2,   a = 1/L_Psi,   u = (x, y, z)

with the exact inner solution (w*, lam*), which no method sees.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, PRNGKeyArray, PyTree, Scalar

from hierax.lower.salm import SALM, InnerSolution
from hierax.methods.directions import Plain, Storm
from hierax.methods.salvf import SALVF, SALVFState
from hierax.methods.steps import Decay, Steps
from hierax.problem import Problem, Rows
from hierax.problems import synthetic, toy, toy_inner_solution
from hierax.problems.toy import SIDE, local_minimisers
from hierax.reformulation.envelope import best_multiplier, eliminated_value
from hierax.reformulation.penalty import Inner, Point, Weights, psi_gradient, stationarity
from hierax.samples import Tickets

Z_STEP = 0.3  # in units of 1/(c1 gamma2)
TAIL = 0.1  # S is averaged over this last part of a run
NEWTON_STEPS = 12  # from y; 3 to 5 are needed near the solution, where w* is close to y
CORNER = 0.005  # a y within this distance of a bound of [0, 3] counts as stuck there
Numbers = Float64[np.ndarray, "..."]
EnvelopePoint = Callable[[Problem, PyTree, Rows, PyTree, Scalar, Scalar], PyTree]


class Noise(NamedTuple):
    """Standard deviations of the three sources of noise.

    The problems are built with sigma = 1 and are affine in their samples: multiplying a planned sample sets its sigma,
    0 switches the source off, and one compiled program serves all levels.
    """

    zeta: float = 0.0
    xi: float = 0.0
    inner: float = 0.0


def all_sources(sigma: float) -> Noise:
    """The same level everywhere, as in the paper."""
    return Noise(sigma, sigma, sigma)


class Case(NamedTuple):
    """A problem with noise of level 1, its minimisers, and how to solve its envelope exactly."""

    name: str
    problem: Problem
    minimisers: Numbers  # (number of local minimisers, dimension of x)
    envelope_point: EnvelopePoint
    x_factor: float  # step of x in units of the step of y
    seeds: int


def toy_case(seeds: int) -> Case:
    """The toy, whose w* has a closed form."""

    def point(problem: Problem, x: Array, z: Rows, w: Array, gamma1: Scalar, gamma2: Scalar) -> Array:
        del problem, w
        return toy_inner_solution(x, z.inequalities, gamma1, gamma2)[0]

    return Case("toy", toy(1.0).problem, local_minimisers()[:, None], point, 1.0, seeds)


def synthetic_case(seeds: int, noise: Literal["additive", "multiplicative"] = "additive") -> Case:
    """The synthetic problem, whose w* comes from Newton's method. x needs longer steps than y: its curvature is low."""
    example = synthetic(1.0, noise)
    return Case("synthetic", example.problem, example.solutions[0].x[None], newton_point, 6.0, seeds)


def newton_point(problem: Problem, x: Array, z: Rows, w: Array, gamma1: Scalar, gamma2: Scalar) -> Array:
    """w* = argmin G + A_{g'} by Newton's method from w; for problems where no bound of Y is active."""

    def value(w: Array) -> Scalar:
        return eliminated_value(problem, x, z, w, gamma1, gamma2, None)

    def step(_: Any, w: Array) -> Array:
        return w - jax.scipy.linalg.solve(jax.hessian(value)(w), jax.grad(value)(w), assume_a="pos")

    return jax.lax.fori_loop(0, NEWTON_STEPS, step, w)


class ExactInner(SALM):
    """An inner solver without error, to measure the other sources of error alone."""

    envelope_point: EnvelopePoint | None = eqx.field(static=True, default=None)

    def solve(
        self,
        problem: Problem,
        x: PyTree,
        z: Rows,
        w: PyTree,
        lam: Rows,
        plan: PyTree,
        gamma1: Scalar,
        gamma2: Scalar,
    ) -> InnerSolution:
        """The saddle point at (x, z); samples are not looked at."""
        del lam, plan
        assert self.envelope_point is not None
        w = self.envelope_point(problem, x, z, w, gamma1, gamma2)
        lam = best_multiplier(problem.rows(x, w), z, gamma1, gamma2)
        return InnerSolution(w, lam, jax.tree.map(jnp.zeros_like, w))


def exact_inner(case: Case) -> ExactInner:
    """The exact inner solver of a case; it plans one unused sample per step."""
    return ExactInner(steps=1, batch=1, envelope_point=case.envelope_point)


def smoothness(case: Case, c1: float, c2: float) -> float:
    """L_Psi: by hand on the toy, by the library's estimate at the solution otherwise."""
    if case.name == "toy":
        return 2.0 * c2 + 10.0 * c1 + 20.0
    method = SALVF(c1=c1, c2=c2, gamma1=1.0, gamma2=1.0, start="given")
    x, y = _known(case)[:2]
    return float(method.resolve(case.problem, x, y, jax.random.key(0)).smoothness)  # type: ignore[arg-type]


def _known(case: Case) -> tuple[Array, Array, Array]:
    known = synthetic(0.0).solutions[0]
    return jnp.asarray(known.x), jnp.asarray(known.y), jnp.asarray(known.multipliers)


def make_method(
    case: Case,
    c1: float,
    c2: float,
    a: float,
    inner: SALM,
    *,
    penalty: Literal["multiplier", "quadratic"] = "multiplier",
    direction: Plain | Storm = Plain(),
    decay: bool = False,
    r: int = 1,
    q: int = 1,
) -> SALVF:
    """SALVF with step a/L_Psi (or its decaying version), gamma = 1 and no control variate; ready to run."""
    smooth = smoothness(case, c1, c2)

    def step(factor: float) -> Any:
        return Decay(factor / smooth, a) if decay else factor * a / smooth

    method = SALVF(
        c1=c1,
        c2=c2,
        gamma1=1.0,
        gamma2=1.0,
        penalty=penalty,
        steps=Steps(x=step(case.x_factor), y=step(1.0), z=Z_STEP / c1),
        batch_zeta=r,
        batch_xi=q,
        inner=inner,
        direction=direction,
        control_variate=False,
        start="given",
        smoothness=smooth,
    )
    return method.resolve(case.problem, *_typical(case), jax.random.key(0))


def _typical(case: Case) -> tuple[Array, Array]:
    if case.name == "toy":
        return jnp.asarray(1.5), jnp.asarray(1.5)
    return _known(case)[:2]


def starts(case: Case, method: SALVF, seed: int) -> SALVFState:
    """One state per seed: uniform points of [0, 3]^2 on the toy, the solution on the synthetic problem.

    The synthetic runs ask for floors only, so they begin where the noise takes over.
    """
    keys = jax.random.split(jax.random.key(seed), case.seeds)
    if case.name == "toy":
        return jax.vmap(functools.partial(_toy_start, case, method))(keys)
    x, y, lam = _known(case)
    at_solution = method.init(case.problem, x, y, keys[0])
    z = Rows(lam, None)
    nu = at_solution.point.nu._replace(inequalities=method.c1 * lam)
    state = at_solution._replace(point=Point(x, y, z, nu), lam=z)
    state = state._replace(memory=method.direction.init(state.point))
    return jax.vmap(lambda key: state._replace(key=key))(keys)


def _toy_start(case: Case, method: SALVF, key: PRNGKeyArray) -> SALVFState:
    x0, y0 = jax.random.uniform(jax.random.fold_in(key, 9), (2,), maxval=SIDE)
    return method.init(case.problem, x0, y0, key)


@eqx.filter_jit
def _follow(problem: Problem, method: SALVF, states: SALVFState, levels: Array, steps: int) -> Point:
    blocks = math.ceil(steps / method.block(problem))

    def step(state: SALVFState, tickets: Tickets) -> tuple[SALVFState, Point]:
        state, _ = method.step(problem, state, tickets)
        return state, state.point

    def block(state: SALVFState, _: None) -> tuple[SALVFState, Point]:
        plans = method.draws(problem, state)
        scaled = [jax.tree.map(functools.partial(jnp.multiply, level), part) for level, part in zip(levels, plans)]
        return jax.lax.scan(step, state, Tickets(*scaled))

    def one(state: SALVFState) -> Point:
        _, points = jax.lax.scan(block, state, None, length=blocks)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:steps], points)

    return jax.vmap(one)(states)


def follow(case: Case, method: SALVF, noise: Noise, steps: int, seed: int) -> Point:
    """The points after steps 1..`steps` of every seed (leading axes: seed, step)."""
    return _follow(case.problem, method, starts(case, method, seed), jnp.asarray(noise), steps)


@eqx.filter_jit
def _squared_stationarity(
    problem: Problem, envelope_point: EnvelopePoint, method: SALVF, points: Point
) -> Array:
    def one(point: Point) -> Array:
        weights = Weights(method.c1, method.c2, method.gamma1, method.gamma2)  # type: ignore[arg-type]
        w = envelope_point(problem, point.x, point.z, point.y, weights.gamma1, weights.gamma2)
        lam = best_multiplier(problem.rows(point.x, w), point.z, weights.gamma1, weights.gamma2)
        gradient = psi_gradient(problem, point, Inner(w, lam), weights, None, None)
        return stationarity(problem, point, gradient, 1 / method.smoothness) ** 2  # type: ignore[operator]

    return jax.vmap(jax.vmap(one))(points)


def squared_stationarity(case: Case, method: SALVF, points: Point) -> Numbers:
    """S at every point (axes: seed, step)."""
    return np.asarray(_squared_stationarity(case.problem, case.envelope_point, method, points))
