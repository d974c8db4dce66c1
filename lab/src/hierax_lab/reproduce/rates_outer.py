r"""What every measurement of the outer loop needs: cases, runs that keep all their points, exact stationarity.

The runs are made of the library's own `method.begin` and `method.step`. S is the squared stationarity

    S = ||u - Proj(u - a grad Psi(u))||^2 / a^2,   a = 1/L_Psi,   u = (x, y, z)

with the exact inner solution (w*, lam*), which no method sees.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, PRNGKeyArray, PyTree, Scalar

from hierax import SALM, SALVF, Decay, Plain, Problem, Steps, Storm
from hierax.extend import Rows, Tickets, no_multipliers, psi_stationarity
from hierax.extend import first_state as salvf_state
from hierax.problems import toy, toy_inner_solution
from hierax.problems.toy import SIDE, local_minimisers
from hierax_lab.problems import synthetic

C1 = 5.0  # weight of the value function, unless it is varied
Z_STEP = 0.3  # in units of 1/(c1 gamma2)
TAU = 0.1  # step of the outer multiplier
SEGMENT = 500  # steps per compiled call: runs of all lengths share one program
TAIL = 0.1  # S is averaged over this last part of a run
TAIL_STRIDE = 4  # every fourth point of the tail is used: neighbours are nearly the same
NEWTON_STEPS = 12  # from y; 3 to 5 are needed near the solution, where w* is close to y
Numbers = Float64[np.ndarray, "..."]
State = Any  # of a run of SALVF: a tree of arrays
Point = Any  # of a state: x, y, z and nu
EnvelopePoint = Callable[[Problem, PyTree, Rows, PyTree, Scalar | float, Scalar], PyTree]


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
    """A problem with noise of level 1, where to look at it, and how to solve its envelope exactly."""

    name: str
    problem: Problem
    x: Array  # a typical point, the solution where there is only one
    y: Array
    lam: Array | None  # the solution's multiplier, where runs are to start there
    minimisers: Numbers  # (number of local minimisers, dimension of x)
    envelope_point: EnvelopePoint
    x_factor: float  # step of x in units of the step of y


def toy_case() -> Case:
    """The toy, whose w* has a closed form."""

    def point(problem: Problem, x: Array, z: Rows, w: Array, gamma1: Scalar | float, gamma2: Scalar) -> Array:
        del problem, w
        return toy_inner_solution(x, z.inequalities, gamma1, gamma2)[0]

    example = toy(1.0)
    x, y = jnp.asarray(example.x0), jnp.asarray(example.y0)
    return Case("toy", example.problem, x, y, None, local_minimisers()[:, None], point, 1.0)


def synthetic_case(noise: Literal["additive", "multiplicative"] = "additive") -> Case:
    """The synthetic problem, whose w* comes from Newton's method. x needs longer steps than y: its curvature is low."""
    example = synthetic(1.0, noise)
    known = example.solutions[0]
    x, y, lam = (jnp.asarray(part) for part in (known.x, known.y, known.multipliers))
    return Case("synthetic", example.problem, x, y, lam, known.x[None], newton_point, 6.0)


def best_multiplier(problem: Problem, x: PyTree, w: PyTree, z: Rows, gamma1: Scalar | float, gamma2: Scalar) -> Rows:
    r"""The lam that maximises ell(x, z, w, lam) at the given w, of a problem with inequalities alone.

    lam = max(z + H(x, w)/gamma2, gamma2 z/(gamma1 + gamma2))
    """
    values, centre = problem.constraints(x, w), z.inequalities
    return Rows(jnp.maximum(centre + values / gamma2, gamma2 * centre / (gamma1 + gamma2)), None)


def newton_point(problem: Problem, x: Array, z: Rows, w: Array, gamma1: Scalar | float, gamma2: Scalar) -> Array:
    """w* = argmin G + A_g by Newton's method from w, 1/g = 1/gamma1 + 1/gamma2; where no bound of Y is active.

    A_g is the augmented term: the maximum over lam of what ell adds to G.
    """
    g = gamma1 * gamma2 / (gamma1 + gamma2)

    def value(w: Array) -> Scalar:
        rows, centre = problem.constraints(x, w), g * z.inequalities
        return problem.lower(x, w, None) + jnp.sum(jnp.maximum(centre + rows, 0.0) ** 2 - centre**2) / (2 * g)

    def step(_: Array, w: Array) -> Array:
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
        gamma1: Scalar | float,
        gamma2: Scalar,
        k: Array | int = 0,
    ) -> Any:
        """The saddle point at (x, z) in the form of SALM's answer, of which nothing else is used."""
        assert self.envelope_point is not None
        form = super().solve(problem, x, z, w, lam, plan, gamma1, gamma2, k)
        w = self.envelope_point(problem, x, z, w, gamma1, gamma2)
        lam = best_multiplier(problem, x, w, z, gamma1, gamma2)
        return form._replace(w=w, lam=lam, residual=jax.tree.map(jnp.zeros_like, w))


def exact_inner(case: Case) -> ExactInner:
    """The exact inner solver of a case; it plans one unused sample per step."""
    return ExactInner(steps=1, batch=1, envelope_point=case.envelope_point)


def toy_smoothness(c1: float, c2: float) -> float:
    """L_Psi of the toy, a bound by hand."""
    return 2.0 * c2 + 10.0 * c1 + 20.0


@eqx.filter_jit
def _resolved(problem: Problem, method: SALVF, x: Array, y: Array) -> SALVF:
    return method.begin(problem, x, y, jax.random.key(0)).method


def _numbers(tree: PyTree) -> PyTree:
    # Arrays are arguments of a compiled program, Python floats constants: a sweep must not compile anew.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, tree)


def filled(case: Case, method: SALVF, smoothness: float | None = None) -> SALVF:
    """The method with every number filled in, estimated where it is not set, and L_Psi if it is known."""
    found = _resolved(case.problem, _numbers(method), case.x, case.y)
    return found if smoothness is None else dataclasses.replace(found, smoothness=jnp.asarray(smoothness))


def make_method(
    case: Case,
    c1: float,
    c2: float,
    a: float,
    inner: SALM,
    *,
    penalty: Literal["multiplier", "quadratic"] = "multiplier",
    direction: Plain | Storm = Plain(),
    power: float = 0.0,
    r: int = 1,
    q: int = 1,
) -> SALVF:
    """SALVF with alpha_k = min(1, a (k+1)^-power)/L_Psi, gamma = 1, no control variate and nothing adapted."""
    bare = SALVF(
        c1=c1,
        c2=c2,
        gamma1=1.0,
        gamma2=1.0,
        tau=TAU,
        inner=SALM(dual_free=inner.dual_free),
        direction=direction,
        control_variate=False,
        adapt=(),
        start="given",
    )
    # What is structure and not a number is set afterwards: the estimate compiles once for all batch sizes and lengths.
    method = filled(case, bare)
    smooth = toy_smoothness(c1, c2) if case.name == "toy" else float(method.smoothness)
    numbers = {name: getattr(method.inner, name) for name in ("eta", "rho", "eta_max", "rho_max")}
    steps = Steps(x=Decay(case.x_factor / smooth, a, power), y=Decay(1 / smooth, a, power), z=Z_STEP / c1)
    return dataclasses.replace(
        method,
        penalty=penalty,
        steps=_numbers(steps),
        inner=dataclasses.replace(inner, **numbers),
        batch_zeta=r,
        batch_xi=q,
        smoothness=jnp.asarray(smooth),
    )


def first_state(case: Case, method: SALVF, key: PRNGKeyArray) -> State:
    """A start: a uniform point of [0, 3]^2 with z = 0 on the toy, elsewhere the point and multiplier of the case.

    The synthetic runs ask for floors only, so they begin at the solution, where the noise takes over.
    """
    if case.lam is None:
        x0, y0 = jax.random.uniform(jax.random.fold_in(key, 9), (2,), maxval=SIDE)
        return salvf_state(method, case.problem, x0, y0, no_multipliers(case.problem, x0, y0), key)
    z = Rows(case.lam, None)
    state = salvf_state(method, case.problem, case.x, case.y, z, key)
    if method.penalty == "quadratic":
        return state
    point = state.point._replace(nu=state.point.nu._replace(inequalities=method.c1 * case.lam))
    return state._replace(point=point, memory=method.direction.init(point))


@eqx.filter_jit
def _first_states(case: Case, method: SALVF, keys: PRNGKeyArray) -> State:
    return jax.vmap(functools.partial(first_state, case, method))(keys)


@eqx.filter_jit
def _segment(case: Case, method: SALVF, states: State, levels: Array) -> tuple[State, Point]:
    """About SEGMENT steps of every run, and the points after each of them."""
    blocks = math.ceil(SEGMENT / method.batches(case.problem).block(case.problem))

    def step(state: State, tickets: Tickets) -> tuple[State, Point]:
        state, _ = method.step(case.problem, state, tickets)
        return state, state.point

    def block(state: State, _: None) -> tuple[State, Point]:
        plans = zip(levels, method.batches(case.problem).draws(case.problem, state), strict=True)
        scaled = [jax.tree.map(lambda a, level=level: level.astype(a.dtype) * a, plan) for level, plan in plans]
        return jax.lax.scan(step, state, Tickets(*scaled))

    def one(state: State) -> tuple[State, Point]:
        state, points = jax.lax.scan(block, state, None, length=blocks)
        return state, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), points)

    return jax.vmap(one)(states)


def follow(case: Case, method: SALVF, noise: Noise, steps: int, seeds: int, seed: int = 0) -> Point:
    """The points after steps 1..`steps` of every seed (leading axes: seed, step)."""
    # The first state does not depend on batch sizes or the inner loop; without them this compiles once.
    least = dataclasses.replace(method, inner=SALM(steps=1, batch=1), batch_zeta=1, batch_xi=1)
    states = _first_states(case, least, jax.random.split(jax.random.key(seed), seeds))
    parts: list[Point] = []
    done = 0
    while done < steps:
        states, points = _segment(case, method, states, jnp.asarray(noise))
        parts.append(jax.tree.map(np.asarray, points))
        done += parts[-1].x.shape[1]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1)[:, :steps], *parts)


@eqx.filter_jit
def _squared_stationarity(case: Case, weights: dict[str, Scalar], points: Point) -> Array:
    gammas = weights["gamma1"], weights["gamma2"]

    def one(point: Point) -> Array:
        w = case.envelope_point(case.problem, point.x, point.z, point.y, *gammas)
        lam = best_multiplier(case.problem, point.x, w, point.z, *gammas)
        return psi_stationarity(case.problem, point, w, lam, **weights) ** 2

    return jax.vmap(jax.vmap(one))(points)


def squared_stationarity(case: Case, method: SALVF, points: Point) -> Numbers:
    """S at every point (axes: seed, step)."""
    weights = {name: getattr(method, name) for name in ("c1", "c2", "gamma1", "gamma2")}
    return np.asarray(_squared_stationarity(case, {**weights, "step": 1 / method.smoothness}, points))


def tail(points: Point, every: int = 1) -> Point:
    """Every `every`-th point of the last tenth of the runs."""
    steps = jax.tree.leaves(points)[0].shape[1]
    return jax.tree.map(lambda a: a[:, steps - math.ceil(TAIL * steps) :: every], points)


def tail_mean(values: Numbers, step: int | None = None) -> Numbers:
    """Mean over the last tenth of the first `step` steps, for every seed."""
    steps = step or values.shape[1]
    return values[:, steps - math.ceil(TAIL * steps) : steps].mean(axis=1)


def distances(case: Case, points: Point) -> Numbers:
    """Distance of every run's last x to the nearest local minimiser."""
    x = np.asarray(points.x)[:, -1].reshape(len(points.x), 1, -1)
    return np.linalg.norm(x - case.minimisers[None], axis=-1).min(axis=1)
