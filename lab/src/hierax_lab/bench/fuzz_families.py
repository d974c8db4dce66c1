"""Families of problems on which success was claimed wrongly: `hierax bench fuzz --families claims`.

A case depends on (seed, family, number) alone. Its truth comes from outside hierax, in NumPy: a grid of y, a closed
form, or the corners of a linear program. Formulas take `xp`, NumPy or JAX, so that judge and hierax see the same
problem; their numbers are arrays, so that the cases of a family share compiled programs.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax_lab.bench.fuzz_case import Letters, Numbers, Values, as_problem, to_core, to_user
from hierax_lab.bench.fuzz_draw import draw_case
from hierax_lab.bench.fuzz_forms import FORMS
from hierax_lab.bench.fuzz_judge import judge
from hierax_lab.bench.fuzz_truth import FamilyCase, Fault, Followers, OneX, Point, separable

Formula = Callable[[Letters, Values, Values, Any], Values]  # of (numbers, x as a number, y, np or jnp)
UNIT_FORMS = ("rows", "disc")  # forms of the random problems that are drawn in units from 1e-6 to 1e6
RARE_ERROR = 0.2  # of x and y: at least twice the sampling error of a run that has seen the rare event
SADDLE_SIZE = 40  # entries of x and of y


def _with_one_x(
    c: Numbers,
    start: Point,
    upper: Formula,
    lower: Formula,
    followers: Followers,
    constraints: Formula | None = None,
    x_bounds: tuple[float, float] = (-2.0, 2.0),
    points: dict[str, Point] | None = None,
    y_set: hx.AbstractSet | None = None,
) -> FamilyCase:
    """A case with one x whose lower solutions are known; `certify` is asked about its optimum and further points."""
    numbers = {name: jnp.asarray(value) for name, value in c.items()}
    rows = None if constraints is None else lambda x, y: constraints(numbers, x[0], y, jnp)
    problem = hx.Problem(
        upper=lambda x, y, _: upper(numbers, x[0], y, jnp),
        lower=lambda x, y, _: lower(numbers, x[0], y, jnp),
        constraints=rows,  # type: ignore[arg-type]
        x_set=hx.Box(*x_bounds),
        y_set=y_set or hx.Free(),
    )
    truth = OneX(lambda x, y: upper(c, x, y, np), followers, x_bounds)
    return FamilyCase(c, problem, truth.fault, start, truth.best, {"optimum": truth.point} | (points or {}))


def _drawn(rng: np.random.Generator, **ranges: tuple[float, float] | tuple[float, float, int]) -> Numbers:
    """Numbers that are uniform in (low, high), or arrays of them with (low, high, size)."""
    return {name: np.asarray(rng.uniform(given[0], given[1], given[2:])) for name, given in ranges.items()}


def _start(rng: np.random.Generator, size: int) -> Point:
    return rng.uniform(-1.5, 1.5, 1), rng.uniform(-1.5, 1.5, size)


def hidden_wells(rng: np.random.Generator, number: int) -> FamilyCase:
    """G = (y + x)^2 / 5 less a narrow well, in which the follower sits for all x or for some; F = (x - a)^2 + b y."""
    c = _drawn(rng, depth=(1.0, 3.0), centre=(-1.5, 1.5), width=(-2.5, -1.0), a=(-1.5, 1.5), b=(-1.0, 1.0))
    c["width"] = 10 ** c["width"]

    def lower(c: Letters, x: Values, y: Values, xp: Any) -> Values:
        return 0.2 * (y + x) ** 2 - c["depth"] * xp.exp(-(((y - c["centre"]) / c["width"]) ** 2))

    grid = np.union1d(np.linspace(-3.0, 3.0, 2001), c["centre"] + c["width"] * np.linspace(-4.0, 4.0, 401))
    outside = np.clip(c["a"] + c["b"] / 2, -2.0, 2.0)[None]  # the optimum if there were no well: y = -x
    return _with_one_x(
        c,
        _start(rng, 1),
        upper=lambda c, x, y, xp: (x - c["a"]) ** 2 + c["b"] * y[..., 0],
        lower=lambda c, x, y, xp: lower(c, x, y[0], xp),
        followers=separable([lambda x, y: lower(c, x, y, np)], grid),
        points={"outside the well": (outside, -outside)},
        y_set=hx.Box(-3.0, 3.0),
    )


def many_minima(rng: np.random.Generator, number: int) -> FamilyCase:
    """G = sum of a_i cos(w_i y_i + p_i) + 0.3 (y_i - s_i x)^2 for two y with up to 100 minima; F = (x - t)^2 + b'y."""
    c = _drawn(rng, a=(0.3, 1, 2), w=(7, 11, 2), p=(0, 6.28, 2), s=(-1.5, 1.5, 2), t=(-1.5, 1.5), b=(-1, 1, 2))

    def terms(c: Letters, i: Any, x: Values, y: Values, xp: Any) -> Values:
        return c["a"][i] * xp.cos(c["w"][i] * y + c["p"][i]) + 0.3 * (y - c["s"][i] * x) ** 2

    parts = [lambda x, y, i=i: terms(c, i, x, y, np) for i in range(2)]
    return _with_one_x(
        c,
        _start(rng, 2),
        upper=lambda c, x, y, xp: (x - c["t"]) ** 2 + y @ c["b"],
        lower=lambda c, x, y, xp: terms(c, slice(None), x, y, xp).sum(),
        followers=separable(parts, np.linspace(-3.0, 3.0, 2001)),
        y_set=hx.Box(-3.0, 3.0),
    )


def parallel_costs(rng: np.random.Generator, number: int) -> FamilyCase:
    """Follower: min eps y_0 - y_1 with sin(k x + p) <= y_0, y_1 <= x; F = -a y_0 + b (y_1 - t)^2: y_0 costs little."""
    c = _drawn(rng, eps=(-10, -4), k=(2, 4), p=(0, 6.28), a=(0.5, 1.5), b=(0.05, 0.3), t=(-1, 1))
    c["eps"] = 10 ** c["eps"]
    case = _with_one_x(
        c,
        _start(rng, 2),
        upper=lambda c, x, y, xp: -c["a"] * y[..., 0] + c["b"] * (y[..., 1] - c["t"]) ** 2,
        lower=lambda c, x, y, xp: c["eps"] * y[0] - y[1],
        constraints=lambda c, x, y, xp: xp.stack([xp.sin(c["k"] * x + c["p"]) - y[0], y[1] - x]),
        followers=lambda x, tie: np.stack([np.sin(c["k"] * x + c["p"]), x], axis=-1)[:, None, :],
        y_set=hx.Box(-3.0, 3.0),
    )
    x, y = case.points["optimum"]
    case.points["y_0 too large by 0.36"] = (x, y + np.array([0.36, 0.0]))
    return case


def kinks(rng: np.random.Generator, number: int) -> FamilyCase:
    """Lower levels written with `jnp.abs`, with `jnp.maximum`, and lasso with `jnp.abs`, in turn."""
    if number % 3 == 2:
        return _lasso(rng)
    c = _drawn(rng, goal=(-1.5, 1.5), weight=(0.03, 1), centre=(-1.5, 1.5), k=(0.5, 2), l=(0.3, 1.5), t=(0.3, 1.5))
    c |= _drawn(rng, u=(-1, 1), v=(-1, 1), w=(-1, 1))

    def soft_threshold(x: np.ndarray, tie: float) -> np.ndarray:
        away = c["k"] * x - c["w"]
        return np.asarray(c["w"] + np.sign(away) * np.maximum(np.abs(away) - c["l"], 0.0))[:, None, None]

    def clipped(x: np.ndarray, tie: float) -> np.ndarray:  # between the minima of the two pieces, at the kink if it can
        kink = ((c["v"] - c["u"]) * x + c["w"]) / (c["l"] + c["t"])
        return np.asarray(np.clip(kink, c["k"] * x - c["l"], c["k"] * x + c["t"]))[:, None, None]

    def of_absolute_value(c: Letters, x: Values, y: Values, xp: Any) -> Values:
        return 0.5 * (y[0] - c["k"] * x) ** 2 + c["l"] * xp.abs(y[0] - c["w"])

    def of_maximum(c: Letters, x: Values, y: Values, xp: Any) -> Values:
        pieces = xp.maximum(c["l"] * y[0] + c["u"] * x, -c["t"] * y[0] + c["v"] * x + c["w"])
        return pieces + 0.5 * (y[0] - c["k"] * x) ** 2

    return _with_one_x(
        c,
        _start(rng, 1),
        upper=lambda c, x, y, xp: (y[..., 0] - c["goal"]) ** 2 + c["weight"] * (x - c["centre"]) ** 2,
        lower=of_maximum if number % 3 else of_absolute_value,
        followers=clipped if number % 3 else soft_threshold,
    )


def _lasso(rng: np.random.Generator) -> FamilyCase:
    """The penalty x of a lasso with four coefficients, chosen by the loss on other rows."""
    signal = np.array([2.0, -1.0, 0.0, 0.0]) * rng.uniform(0.5, 1.5, 4)
    c = {"A": rng.normal(size=(8, 4)), "V": rng.normal(size=(8, 4))}
    c |= {"b": c["A"] @ signal + rng.normal(size=8), "d": c["V"] @ signal + rng.normal(size=8)}
    return _with_one_x(
        c,
        (np.ones(1), np.zeros(4)),
        upper=lambda c, x, y, xp: ((y @ c["V"].T - c["d"]) ** 2).mean(-1),
        lower=lambda c, x, y, xp: 0.5 * ((c["A"] @ y - c["b"]) ** 2).mean() + x * xp.abs(y).sum(),
        followers=lambda x, tie: lasso_path(c["A"], c["b"], x)[:, None, :],
        x_bounds=(0.0, 3.0),
    )


def lasso_path(rows: np.ndarray, target: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """Minimisers of |A y - b|^2 / 2n + x |y|_1 for every penalty x, by coordinate descent on all of them at once."""
    square, linear = rows.T @ rows / len(rows), rows.T @ target / len(rows)
    y = np.zeros((len(penalties), rows.shape[1]))
    for _ in range(5000):
        before = y.copy()
        for i in range(y.shape[1]):
            rest = linear[i] - y @ square[i] + square[i, i] * y[:, i]
            y[:, i] = np.sign(rest) * np.maximum(np.abs(rest) - penalties, 0.0) / square[i, i]
        if np.abs(y - before).max() < 1e-11:
            break
    return y


def shifted_units(rng: np.random.Generator, number: int) -> FamilyCase:
    """Min cost'z with A z <= b + B x, a triangle, and z = y - shift, shift up to 1e5; every other: units 1e-6 to 1e6.

    F = (x - t)^2 + |z - goal|^2.
    """
    if number % 2:
        return _in_units(rng, UNIT_FORMS[number // 2 % len(UNIT_FORMS)])
    c = _drawn(rng, B=(-0.3, 0.3, 3), b=(1, 2, 3), cost=(-1, 1, 2), t=(-0.7, 0.7), goal=(-1, 1, 2), shift=(0, 5, 2))
    c["shift"] = rng.choice([-1.0, 1.0], 2) * 10 ** c["shift"]
    angles = rng.uniform(0.0, 6.28) + np.array([0.0, 2.0, 4.2])
    c["A"] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return _with_one_x(
        c,
        (rng.uniform(-0.7, 0.7, 1), c["shift"]),
        upper=lambda c, x, y, xp: (x - c["t"]) ** 2 + ((y - c["shift"] - c["goal"]) ** 2).sum(-1),
        lower=lambda c, x, y, xp: c["cost"] @ (y - c["shift"]),
        constraints=lambda c, x, y, xp: c["A"] @ (y - c["shift"]) - c["b"] - c["B"] * x,
        followers=lambda x, tie: c["shift"] + best_corners(c, x)[:, None, :],
        x_bounds=(-1.0, 1.0),
    )


def best_corners(c: Numbers, x: np.ndarray) -> np.ndarray:
    """The corner with the least cost of {z: A z <= b + B x}, for every x."""
    sides, pairs = c["b"] + x[:, None] * c["B"], itertools.combinations(range(3), 2)
    corners = np.stack([np.linalg.solve(c["A"][list(pair)], sides[:, list(pair)].T).T for pair in pairs], axis=1)
    inside = (corners @ c["A"].T <= sides[:, None, :] + 1e-9).all(-1)
    best = np.where(inside, corners @ c["cost"], np.inf).argmin(1)
    return np.asarray(corners[np.arange(len(x)), best])


def _in_units(rng: np.random.Generator, name: str) -> FamilyCase:
    """A random problem of the older forms, with its own judge."""
    case = draw_case(next(form for form in FORMS if form.name == name), "plain", rng, 6.0)

    def fault(x: np.ndarray, y: np.ndarray) -> Fault:
        verdict = judge(case, *to_core(case, x, y))
        return Fault("; ".join(verdict.faults()), verdict.missed())

    shown = {"form": name} | {unit: value for unit, value in vars(case.units).items() if value.size}
    x0, y0 = to_user(case, *case.start)
    return FamilyCase(shown, as_problem(case), fault, (np.asarray(x0), np.asarray(y0)))


def flat_infinity(rng: np.random.Generator, number: int) -> FamilyCase:
    """G falls for ever in y, towards minus infinity or a value that it never has: whatever is claimed is false."""
    c = _drawn(rng, k=(0.5, 2.0), t=(-2.0, 2.0), b=(0.1, 1.0))
    k, t, b = (jnp.asarray(value) for value in c.values())
    shape = ("-log(1 + exp(z))", "exp(-z)", "1 / (1 + z^2)")[number % 3]
    goal = ("t", "infinity")[number // 3 % 2]

    def upper(x: Values, y: Values, _: None) -> Values:
        return jnp.sum((x - t) ** 2 + b * (y - t) ** 2 if goal == "t" else jnp.exp(-0.1 * x) + b * jnp.tanh(y))

    def lower(x: Values, y: Values, _: None) -> Values:
        z = k * (y[0] - x[0])
        return {"-": -jnp.logaddexp(0.0, z), "e": jnp.exp(-z), "1": 1.0 / (1.0 + z**2)}[shape[0]]

    fault = Fault("the lower level has no minimum at any x")
    shown = c | {"G with z = k (y - x)": shape, "F draws x to": goal}
    return FamilyCase(shown, hx.Problem(upper=upper, lower=lower), lambda x, y: fault, _start(rng, 1))


def rare_events(rng: np.random.Generator, number: int) -> FamilyCase:
    """F = (y - a)^2 + r x^2 and G = (y - 2 x)^2 with y <= x, each plus s z y; z = 1/p - 1 with chance p, else -1."""
    c = _drawn(rng, p=(-5.0, -3.0), s=(0.8, 1.5), a=(0.7, 1.3), r=(0.05, 0.2))
    c["p"] = 10 ** c["p"]
    p, s, a, r = (jnp.asarray(value) for value in c.values())
    noise = hx.Sampler(lambda key, n: jnp.where(jax.random.uniform(key, (n,)) < p, 1.0 / p, 0.0) - 1.0)
    problem = hx.Problem(
        upper=lambda x, y, z: (y[0] - a) ** 2 + r * x[0] ** 2 + s * jnp.mean(z) * y[0],
        lower=lambda x, y, z: (y[0] - 2.0 * x[0]) ** 2 + s * jnp.mean(z) * y[0],
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
        zeta=noise,
        xi=noise,
    )
    best = float(c["a"] / (1.0 + c["r"]))  # y = x for x >= 0

    def fault(x: np.ndarray, y: np.ndarray) -> Fault:
        far = max(abs(x[0] - best), abs(y[0] - best))
        return Fault(f"x = {x[0]:.4g} and y = {y[0]:.4g}, both are {best:.4g}" if far > RARE_ERROR else "")

    value = float((best - c["a"]) ** 2 + c["r"] * best**2)
    return FamilyCase(c, problem, fault, (np.full(1, 0.5), np.full(1, 0.5)), value, seed=number)


def saddles(rng: np.random.Generator, number: int) -> FamilyCase:
    """`certify` at x = y = 0 with y = x below: F = y'Sy with one eigenvalue below 0; y_0^2 - y_1^4; and a minimum."""
    kind = ("one eigenvalue below 0", "y_0^2 - bend y_1^4", "minimum")[number % 3]
    bend, size = rng.uniform(0.03, 1.0), 2 if number % 3 == 1 else SADDLE_SIZE
    rotation = np.linalg.qr(rng.normal(size=(size, size)))[0]
    eigenvalues = np.concatenate([[bend if kind == "minimum" else -bend], np.ones(size - 1)])
    square, quartic = jnp.asarray(rotation * eigenvalues @ rotation.T), jnp.asarray(bend)
    problem = hx.Problem(
        upper=lambda x, y, _: y @ square @ y if size == SADDLE_SIZE else y[0] ** 2 - quartic * y[1] ** 4,
        lower=lambda x, y, _: jnp.sum((y - x) ** 2),
    )
    fault = Fault("" if kind == "minimum" else "a saddle, not a minimum above")
    points = {kind: (np.zeros(size), np.zeros(size))}
    return FamilyCase({"kind": kind, "bend": bend}, problem, lambda x, y: fault, points=points)


FAMILIES: dict[str, Callable[[np.random.Generator, int], FamilyCase]] = {
    "hidden-wells": hidden_wells,
    "many-minima": many_minima,
    "parallel-costs": parallel_costs,
    "kinks": kinks,
    "shifted-units": shifted_units,
    "flat-infinity": flat_infinity,
    "rare-events": rare_events,
    "saddles": saddles,
}


def draw_family(seed: int, family: str, number: int) -> FamilyCase:
    """Case `number` of a family, a name of `FAMILIES`."""
    return FAMILIES[family](np.random.default_rng([seed, list(FAMILIES).index(family), number]), number)
