"""One suite for every method: known solution, jit, vmap, pytrees, seeds, sets, counts, resume, failures.

One problem serves all properties. Its noise, its bounds and the wall behind which F is not finite are arrays, so each
method compiles once for single runs and once for a step that is mapped.
"""

import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import same
from test_directions import of_the_docs

import hierax as hx
from hierax import BLOCC, GAM, LVHBA, BiCGAFFA, Exact, MaxMin
from hierax.extend import Costs

SHORT = MaxMin(dual_steps=20, primal_steps=5)


def method_of_the_docs() -> hx.AbstractMethod:
    """The example of docs/guides/own-method.md, from the page itself."""
    page = (Path(__file__).parents[1] / "docs" / "guides" / "own-method.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict = {"__name__": "own_method"}
    exec(compile(code, "docs/guides/own-method.md", "exec"), names)
    return names["Perturbed"]()


# A method, the steps it needs to come within 0.03 of the solution, and how many lower levels a step, and the start,
# solve. A new method is a new line.
METHODS = {
    "SALVF": (hx.SALVF(c1=5.0), 2500, 1, 1),
    "SALVF_VR": (hx.SALVF_VR(c1=5.0), 2500, 1, 1),
    "SALVF exact": (hx.SALVF(c1=5.0, inner=Exact()), 2500, 1, 1),
    "BLOCC": (BLOCC(lower=SHORT, penalised=SHORT), 200, 2, 1),
    "BiCGAFFA": (BiCGAFFA(), 2500, 0, 1),
    "GAM": (GAM(), 200, 1, 2),
    "LVHBA": (LVHBA(c=1.0), 2000, 1, 1),
    "Barrier": (hx.Barrier(), 200, 1, 2),
    "SIGD": (hx.SIGD(), 200, 1, 2),
    "IGAL": (hx.IGAL(), 200, 1, 2),
    "Moreau": (hx.Moreau(), 200, 2, 4),
    "FirstOrderPenalty": (hx.FirstOrderPenalty(eps_last=1e-2), 200, 2, 4),
    "Perturbed": (method_of_the_docs(), 400, 2, 1),
} | {f"SALVF {name}": (hx.SALVF(c1=5.0, direction=one()), 2500, 1, 1) for name, one in of_the_docs().items()}
BASELINES = [name for name in METHODS if not name.startswith(("SALVF", "Perturbed"))]
EVERY = pytest.mark.parametrize("name", METHODS)

SOLUTION = 4.0 / 4.2  # of 2 (a - 1)^2 + 0.1 a^2
X0, Y0 = {"a": 0.4}, {"u": np.array([0.4, 0.4])}


def problem(sigma=0.0, low=-3.0, high=3.0, wall=np.inf):
    """F = |u - 1|^2 + a^2/10, G = |u - (2a, a)|^2, u <= (a, a + 1): u* = (a, a), lam* = (2a, 0) for a > 0."""
    sigma, wall = jnp.asarray(sigma), jnp.asarray(wall)

    def noise(samples, x, y):
        return jnp.vdot(jnp.mean(samples, 0), jnp.append(y["u"], x["a"]))

    def draw(key, n):
        return sigma * jax.random.normal(key, (n, 3))

    def upper(x, y, zeta):
        value = jnp.sum((y["u"] - 1.0) ** 2) + 0.1 * x["a"] ** 2 + noise(zeta, x, y)
        return jnp.where(x["a"] > wall, jnp.nan, value)

    return hx.Problem(
        upper=upper,
        lower=lambda x, y, xi: jnp.sum((y["u"] - x["a"] * jnp.array([2.0, 1.0])) ** 2) + noise(xi, x, y),
        constraints=lambda x, y: {"cap": y["u"] - x["a"] - jnp.array([0.0, 1.0])},
        x_set={"a": hx.Box(low, high)},
        y_set={"u": hx.Box(-5.0, 5.0)},
        zeta=hx.Sampler(draw, exact=jnp.zeros((1, 3))),
        xi=hx.Sampler(draw, exact=jnp.zeros((1, 3))),
    )


def run(name, steps, of=None, **call):
    of = problem(sigma=0.1) if of is None else of
    return hx.solve(of, X0, Y0, METHODS[name][0], **{"max_steps": steps, "record_every": 5, **call})


@EVERY
def test_reaches_the_known_solution_and_keeps_the_trees(name):
    _, steps, _, _ = METHODS[name]
    sol = run(name, steps, problem(), record_every=50)
    assert sol.status.name == "max_steps"
    np.testing.assert_allclose(sol.x["a"], SOLUTION, atol=0.03)
    np.testing.assert_allclose(sol.y["u"], SOLUTION, atol=0.1)  # off by O(1/c)
    lam = sol.multipliers.inequalities["cap"]
    np.testing.assert_allclose(lam, [2 * SOLUTION, 0.0], atol=0.1)
    assert sol.multipliers.equalities is None
    assert jax.tree.structure((sol.x, sol.y)) == jax.tree.structure((X0, Y0))
    assert sol.y["u"].shape == (2,)
    assert sol.history["violation"][-1] < 0.02
    assert sol.history["distance"][-1] < 0.2


@EVERY
def test_noise_does_not_lead_elsewhere(name):
    """One sample of each kind per step, a tenth of the gradients' size; the error stays that of the noise."""
    sol = run(name, METHODS[name][1], record_every=50, seed=1)
    np.testing.assert_allclose(sol.x["a"], SOLUTION, atol=0.06)
    np.testing.assert_allclose(sol.multipliers.inequalities["cap"], [2 * SOLUTION, 0.0], atol=0.2)


@EVERY
def test_equal_seeds_equal_results(name):
    first, again, other = (run(name, 10, seed=seed) for seed in (3, 3, 4))
    same((first.x, first.y, first.state.run), (again.x, again.y, again.state.run))
    assert first.x["a"] != other.x["a"]


@EVERY
def test_goes_on_bit_for_bit(name):
    whole = run(name, 30)
    first = run(name, 15)
    second = run(name, 15, state=first.state)
    same(
        (whole.x, whole.y, whole.multipliers, whole.state.run),
        (second.x, second.y, second.multipliers, second.state.run),
    )
    assert whole.counts.zeta == second.counts.zeta
    np.testing.assert_array_equal(
        np.concatenate([first.history["upper"], second.history["upper"]]), whole.history["upper"]
    )


@EVERY
def test_resumes_bit_for_bit_from_a_checkpoint(name, tmp_path):
    """The run is ended in its midst by an error of the caller's, and goes on in the next call."""

    def fail(info):
        if info.step == 15:
            raise ZeroDivisionError

    whole = run(name, 30)
    with pytest.raises(ZeroDivisionError) as caught:
        run(name, 30, callback=fail, checkpoint=tmp_path)
    assert caught.value.solution.status.step == 15
    on = run(name, 30, checkpoint=tmp_path)
    assert "(step 15)" in on.log[0]
    same((whole.x, whole.y, whole.multipliers, whole.state.run), (on.x, on.y, on.multipliers, on.state.run))
    same(whole.method, on.method)
    assert whole.status == on.status
    for column in set(whole.history) - {"seconds"}:
        np.testing.assert_array_equal(whole.history[column], on.history[column])
    untimed = {"seconds": 0.0, "compile_seconds": 0.0}
    assert dataclasses.replace(whole.counts, **untimed) == dataclasses.replace(on.counts, **untimed)


@EVERY
def test_iterates_respect_the_sets(name):
    """With a <= 1/2 the solution is on the bound of X, and noise pushes against it."""
    seen = []
    sol = run(name, 60, problem(sigma=0.3, high=0.5), callback=lambda info: seen.append((info.x["a"], *info.y["u"])))
    a, *u = np.array(seen).T
    assert len(a) == 12
    assert np.all(a <= 0.5)
    assert np.any(a == 0.5)
    assert np.all(np.abs(u) <= 5.0)
    assert sol.status.name == "max_steps"


@EVERY
def test_counts_are_the_costs_of_the_steps_and_the_start(name):
    method, _, solves, at_start = METHODS[name]
    sol, n = run(name, 10), 10
    start, step, _ = method.costs(problem())
    for field in Costs._fields:
        assert getattr(sol.counts, field) == getattr(start, field) + n * getattr(step, field), field
    assert sol.counts.zeta == n * method.batches(problem()).zeta
    assert sol.counts.lower_solves == at_start + n * solves
    planned = method.batches(problem()).tickets(problem(), sol.state.run.state)
    drawn = sum(np.size(leaf) for leaf in jax.tree.leaves((planned.xi, planned.inner))) / 3
    assert step.xi in (drawn, 0)  # a method that solves on all of xi leaves the planned batch alone
    assert step.grad_upper >= 1


@pytest.mark.parametrize("name", [*BASELINES, "Perturbed"])
def test_a_value_that_turns_nan_ends_the_run(name):
    """SALVF: test_failures.py."""
    with pytest.raises(hx.RunFailed, match="the last point at which all are finite is returned") as caught:
        run(name, METHODS[name][1], problem(wall=0.7))
    sol = caught.value.solution
    assert sol.status.name == "nonfinite"
    assert sol.status.failed
    assert np.isfinite(sol.value)
    assert np.isfinite(sol.x["a"])
    assert np.all(np.isfinite(sol.y["u"]))
    assert np.all(np.isfinite(sol.history["upper"]))


# Those of the others are run inside of `solve` by every test above, and never see the difference between the two loops.
USERS_LOOP = ("SALVF exact", "BLOCC", "GAM", "Perturbed")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in BASELINES if name not in USERS_LOOP]


@pytest.mark.parametrize("name", [*USERS_LOOP, *OTHERS])
def test_the_step_is_the_users_to_jit_and_to_map(name):
    """The methods and states of two runs, stacked, go on like `solve` (the other SALVFs: test_own_loop.py)."""
    of, firsts = problem(sigma=0.1), [run(name, 5, seed=seed) for seed in (1, 2)]
    methods, states = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0],
        *((first.method, first.state.run.state) for first in firsts),
    )

    @eqx.filter_jit
    @eqx.filter_vmap(in_axes=eqx.if_array(0))
    def step(method, state):
        return method.step(of, state, method.batches(of).tickets(of, state))

    for _ in range(5):
        states, metrics = step(methods, states)
    for i, first in enumerate(firsts):
        sol = run(name, 5, state=first.state)
        np.testing.assert_allclose(states.point.x["a"][i], sol.x["a"], rtol=1e-8)
        np.testing.assert_allclose(states.point.y["u"][i], sol.y["u"], rtol=1e-8)
        assert int(states.step[i]) == int(sol.state.run.state.step) == 10
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(metrics))


@pytest.mark.parametrize("name", ["BLOCC", "BiCGAFFA", pytest.param("Perturbed", marks=pytest.mark.slow)])
def test_many_starts_are_single_runs(name):
    """SALVF: test_solve_many.py; the others: many starts of the toy, in the file of each method."""
    x0s, y0s = {"a": np.array([0.2, 0.4])}, {"u": np.array([[0.2, 0.2], [0.4, 0.4]])}
    many = hx.solve_many(problem(sigma=0.1), x0s, y0s, METHODS[name][0], max_steps=10, seed=7)
    assert many.x["a"].shape == (2,)
    assert many.y["u"].shape == (2, 2)
    assert [status.name for status in many.status] == ["max_steps"] * 2
    one = run(name, 10, seed=jax.random.fold_in(jax.random.key(7), 1), record_every=None)
    np.testing.assert_allclose(many.x["a"][1], one.x["a"], rtol=1e-8)
    np.testing.assert_allclose(many.y["u"][1], one.y["u"], rtol=1e-8)
    np.testing.assert_allclose(many.history["upper"][:, 1], one.history["upper"], rtol=1e-7)
    assert many.counts == dataclasses.replace(
        one.counts, seconds=many.counts.seconds, compile_seconds=many.counts.compile_seconds
    )


@pytest.mark.parametrize("name", BASELINES)
def test_published_methods_refuse_upper_constraints(name):
    of = dataclasses.replace(problem(), upper_constraints=lambda x, y: x["a"] - 1.0)
    with pytest.raises(hx.InputError, match=f"{name}: the published method has no constraints at the upper level"):
        hx.solve(of, X0, Y0, METHODS[name][0])
