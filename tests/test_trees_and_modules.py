"""Pytrees, Equinox modules, scalars, no constraint and very many, equalities and upper constraints, finite data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx

QUICK = hx.SALM(steps=5)


def test_dicts_and_lists_with_every_kind_of_constraint():
    """min (a-1)^2 + |b|^2 + |u-2|^2 + s^2, lower |u - a|^2 + (s - b)^2 with u <= 1.5 and sum u + s = 2.5, a >= 0.5.

    With u1 = u2 by symmetry the lower level is min 2 (u - a)^2 + (s - b)^2 over 2u + s = 2.5, u <= 1.5.
    """
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x["a"] - 1.0) ** 2 + x["b"] ** 2 + jnp.sum((y[0] - 2.0) ** 2) + y[1][0] ** 2,
        lower=lambda x, y, xi: jnp.sum((y[0] - x["a"]) ** 2) + jnp.sum((y[1] - x["b"]) ** 2),
        constraints=lambda x, y: {"cap": y[0] - 1.5},
        equalities=lambda x, y: [jnp.sum(y[0]) + y[1][0] - 2.5],
        upper_constraints=lambda x, y: (x["a"] - 1.2,),
        x_set={"a": hx.Box(0.0, 3.0), "b": hx.Free()},
        y_set=[hx.Box(-5.0, 5.0), hx.Free()],
    )
    x0, y0 = {"a": 0.7, "b": np.float64(0.2)}, [np.zeros(2), jnp.zeros(1)]
    sol = hx.solve(problem, x0, y0, hx.SALVF(c1=20.0, inner=QUICK), max_steps=30_000)
    assert jax.tree.structure(sol.x) == jax.tree.structure(x0)
    assert [leaf.shape for leaf in jax.tree.leaves(sol.y)] == [(2,), (1,)]

    # By hand: lam_e from stationarity; u = a + k, s = b + k with k = (2.5 - 2a - b)/3 (cap inactive).
    # F(a, b) = (a-1)^2 + b^2 + 2 (u-2)^2 + s^2 is quadratic: solve for its minimiser over a <= 1.2.
    def hyper(v):
        k = (2.5 - 2 * v[0] - v[1]) / 3
        return (v[0] - 1) ** 2 + v[1] ** 2 + 2 * (v[0] + k - 2) ** 2 + (v[1] + k) ** 2

    free = np.linalg.solve(jax.hessian(hyper)(jnp.zeros(2)), -jax.grad(hyper)(jnp.zeros(2)))
    assert free[0] > 1.2  # the upper constraint binds
    b = -float(jax.grad(lambda b: hyper(jnp.array([1.2, b])))(0.0)) / float(jax.hessian(hyper)(jnp.zeros(2))[1, 1])
    k = (2.5 - 2.4 - b) / 3
    assert 1.2 + k < 1.5
    np.testing.assert_allclose(sol.x["a"], 1.2, atol=0.02)
    np.testing.assert_allclose(sol.x["b"], b, atol=0.04)
    np.testing.assert_allclose(sol.y[0], 1.2 + k, atol=0.04)
    np.testing.assert_allclose(sol.y[1], b + k, atol=0.04)
    assert float(sol.history["violation"][-1]) < 1e-3
    lam = sol.multipliers
    np.testing.assert_allclose(lam.inequalities["cap"], 0.0, atol=1e-6)
    np.testing.assert_allclose(lam.equalities[0], -2 * k, atol=0.08)  # 2 (u - a) + lam = 0, free in sign
    assert lam.upper[0] > 0.01


@pytest.mark.usefixtures("promotion")  # Equinox's layers, and x and y of different precision
def test_an_equinox_module_as_lower_variable():
    """A network as y: its functions are set aside and put back, its weights learn, under a bound on their norm."""
    inputs = np.linspace(-1, 1, 16)[:, None]
    targets = np.sin(3 * inputs)
    network = eqx.nn.MLP(1, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    x0 = np.asarray(-3.0)

    def fit(model, data):
        features, values = data
        return jnp.mean((jax.vmap(model)(features) - values) ** 2)

    def norm(model):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))

    problem = hx.Problem(
        upper=lambda x, y, zeta: fit(y, zeta),
        lower=lambda x, y, xi: fit(y, xi) + jnp.exp(x) * norm(y),
        constraints=lambda x, y: norm(y) - 9.0,
        x_set=hx.Box(-6.0, 0.0),
        zeta=hx.Finite((inputs, targets), replace=False),
        xi=hx.Finite((inputs, targets)),
    )
    sol = hx.solve(problem, x0, network, hx.SALVF(inner=QUICK, batch_zeta=8, batch_xi=8), max_steps=300)
    assert isinstance(sol.y, eqx.nn.MLP)
    assert sol.y.activation is network.activation
    assert sol.y(jnp.zeros(1)).shape == (1,)
    assert fit(sol.y, (inputs, targets)) < 0.7 * fit(network, (inputs, targets))
    assert norm(sol.y) < 9.1
    assert sol.counts.zeta == 300 * 8
    assert sol.counts.xi == 300 * (8 + 5 * 8) + 20 * 5 * 8


def test_no_constraint_and_the_control_variate_on_the_boundary_of_y():
    """Y = [0,1], G = (y - 2x)^2, F = (y - .2)^2 + (x - 2)^2: y*(2) = 1 sits on the bound, the answer is (2, 1).

    Subtracting the whole inner gradient, not its tangential part, gives x = 0.667 instead.
    """
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 0.2) ** 2 + (x - 2.0) ** 2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 1.0),
    )
    for x0 in (0.8, 2.5):
        sol = hx.solve(problem, x0, 0.5, hx.SALVF(c1=5.0, control_variate=True), max_steps=2000)
        np.testing.assert_allclose((sol.x, sol.y), (2.0, 1.0), atol=1e-3)
    assert jax.tree.leaves(sol.multipliers) == []
    assert sol.method.control_variate is True


def test_ten_thousand_constraints():
    """y <= x entry by entry, 10,000 of them; y* = x, lam* = 2x, and F = |y - 1|^2 + |x - 1|^2 asks for x = y = 1."""
    p = 10_000
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean((y - 1.0) ** 2) + (x - 1.0) ** 2,
        lower=lambda x, y, xi: jnp.mean((y - 2.0 * x) ** 2),
        constraints=lambda x, y: y - x,
        y_set=hx.Box(-5.0, 5.0),
    )
    sol = hx.solve(problem, 0.5, np.full(p, 0.5), hx.SALVF(inner=QUICK), max_steps=300)
    assert sol.multipliers.inequalities.shape == (p,)
    np.testing.assert_allclose(sol.y, float(sol.x), atol=5e-3)
    np.testing.assert_allclose(sol.multipliers.inequalities, 2 * sol.x / p, rtol=0.02)
    np.testing.assert_allclose(sol.x, 1.0, atol=0.1)


def test_python_numpy_and_jax_scalars_are_the_same_start():
    from cases import METHOD, TOY, same

    ends = [
        hx.solve(TOY.problem, make(1.5), make(1.5), METHOD, max_steps=3).x
        for make in (float, np.float64, np.asarray, jnp.asarray)
    ]
    for end in ends:
        assert end.shape == ()
        same(end, ends[0])


@pytest.mark.parametrize("replace", [True, False])
def test_finite_data_find_the_mean(replace):
    """G = mean |y - x - a_i|^2, F = mean |y - b_i|^2: x = mean b - mean a, whichever way the rows are drawn."""
    rng = np.random.default_rng(0)
    a, b = 0.3 * rng.standard_normal((20, 2)), 0.3 * rng.standard_normal((12, 2)) + 1.0
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean(jnp.sum((y[None] - zeta["b"]) ** 2, 1)),
        lower=lambda x, y, xi: jnp.mean(jnp.sum(((y - x)[None] - xi) ** 2, 1)),
        zeta=hx.Finite({"b": b}, replace),
        xi=hx.Finite(a, replace),
    )
    method = hx.SALVF(batch_zeta=4, batch_xi=5, inner=QUICK)
    sol = hx.solve(problem, np.zeros(2), np.zeros(2), method, max_steps=4000, output="tail")
    np.testing.assert_allclose(sol.x, b.mean(0) - a.mean(0), atol=0.05)
    np.testing.assert_allclose(sol.y, b.mean(0), atol=0.05)
    assert sol.counts.zeta == 4000 * 4
