"""SALVF is at home in any units: scaled by powers of two, a run is the same bit for bit after scaling back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax.problems import toy

UNITS = (
    {"x": 7},
    {"y": -9},
    {"upper": 11},
    {"lower": -8},
    {"rows": 6, "above": -5},
    {"x": -6, "y": 5, "upper": -9, "lower": 10, "rows": -7, "above": 8},
)


def in_units(problem, x0, y0, x=0, y=0, upper=0, lower=0, rows=0, above=0):
    """The problem with x, y, F, G and the rows multiplied by powers of two, given by their exponents."""
    # An array, so that problems in other units share a compiled program.
    factors = 2.0 ** np.array([-x, -y, upper, lower, rows, above])

    def function(name, place):
        inner = getattr(problem, name)

        def stated(a, b, *sample):
            scale = jnp.asarray(factors, b.dtype)
            return inner(scale[0] * a, scale[1] * b, *sample) * scale[place]

        told = name in ("upper", "lower") or inner(jnp.asarray(x0), jnp.asarray(y0)) is not None
        return stated if told else inner

    names = {"upper": 2, "lower": 3, "constraints": 4, "equalities": 4, "upper_constraints": 5}
    stated = {name: function(name, place) for name, place in names.items()}
    stated |= {"x_set": _set_times(problem.x_set, x), "y_set": _set_times(problem.y_set, y)}
    return dataclasses.replace(problem, **stated), _times(x0, x), _times(y0, y)


def _times(tree, exponent):
    return jax.tree.map(lambda a: a * 2.0**exponent, tree)


def _set_times(kind, exponent):
    if isinstance(kind, hx.Box):
        return hx.Box(_times(kind.lower, exponent), _times(kind.upper, exponent))
    if isinstance(kind, hx.Ball):
        return hx.Ball(_times(kind.radius, exponent))
    return kind


def curved(sampled):
    """A nonlinear row that moves with x, an equality, an upper constraint, and x in a ball; one entry of x is far."""
    rng = np.random.default_rng(0)
    mixed, target = rng.standard_normal((4, 3)), rng.standard_normal(4)

    def noise(batch, like):
        return 0.0 if batch is None else jnp.mean(batch, axis=0).astype(like.dtype)

    source = hx.Sampler(lambda key, n: 0.1 * jax.random.normal(key, (n, 4))) if sampled else None
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - target + noise(zeta, y)) ** 2) + 0.1 * jnp.sum((x - 1.0) ** 2),
        lower=lambda x, y, xi: jnp.sum((y - mixed @ x + noise(xi, y)) ** 2 * jnp.arange(1.0, 5.0)),
        constraints=lambda x, y: jnp.sum(y**2) - 2.0 - x[0],
        equalities=lambda x, y: y[0] - y[1] - x[2],
        upper_constraints=lambda x, y: y[2] - 0.5,
        x_set=hx.Ball(3.0),
        zeta=source,
        xi=source,
    )
    return problem, np.array([0.5, -0.25, 0.125]), np.array([0.5, 0.5, -0.5, 0.25])


def centred():
    """A row whose gradient vanishes at the start, and a free x that has no length but from curvature."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - jnp.array([1.5, 0.5])) ** 2) + 0.1 * jnp.sum((x - 1.0) ** 2),
        lower=lambda x, y, xi: jnp.sum((y - x - 0.25) ** 2),
        constraints=lambda x, y: jnp.sum(y**2) - 1.0,
    )
    return problem, np.zeros(2), np.zeros(2)


PROBLEMS = {
    "toy": (toy(0.0).problem, 1.4, 0.5),
    "toy, sampled": (toy(0.1).problem, 1.4, 0.5),
    "curved": curved(False),
    "curved, sampled": curved(True),
    "centred": centred(),
}
METHODS = {
    "SALVF": hx.SALVF(),
    "exact": hx.SALVF(inner=hx.Exact()),
    "VR": hx.SALVF_VR(),
    "VR, exact": hx.SALVF_VR(inner=hx.Exact()),
}
QUICK = [
    ("toy", "SALVF"),
    ("toy", "exact"),
    ("toy, sampled", "VR"),
    ("curved", "exact"),
    ("curved, sampled", "SALVF"),
    ("curved, sampled", "VR"),
    ("centred", "SALVF"),
]
CASES = [
    pytest.param(problem, method, marks=() if (problem, method) in QUICK else pytest.mark.slow)
    for problem in PROBLEMS
    for method in METHODS
]


@pytest.mark.parametrize(("problem", "method"), CASES)
def test_a_run_does_not_depend_on_units(problem, method):
    """Bit for bit, 150 steps: c1 has begun to grow. The run moves, and ends in the units it was stated in."""

    def run(**units):
        sol = hx.solve(*in_units(*PROBLEMS[problem], **units), METHODS[method], max_steps=150, progress=False)
        assert sol.status.step == 150
        return sol, *(np.asarray(_times(part, -units.get(name, 0))) for name, part in (("x", sol.x), ("y", sol.y)))

    plain, x, y = run()
    assert np.isfinite(x).all()
    assert np.all(x != PROBLEMS[problem][1])
    for units in UNITS:
        sol, *found = run(**units)
        assert float(sol.value) == 2.0 ** units.get("upper", 0) * float(plain.value)
        for one, other in zip((x, y), found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(units))
