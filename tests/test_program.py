"""Tracing, hoisting of closed-over arrays, and the cache of compiled programs.

Unit tests of hierax._compile.bound and hierax._compile.tracing.
"""

import gc
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import hierax as hx
from hierax._base.trees import split_variable
from hierax._compile import bound as program
from hierax._compile.bound import Bound

METHOD = hx.SALVF(c1=5.0, c2=100.0, inner=hx.SALM(steps=3))
SHAPE = (37, 11)  # unlike any other array of the suite, so that a leaked one is recognised


def compiled():
    """How many programs the cache holds."""
    return len(program._programs)


class Compilations:
    """Counts what XLA compiles while it is open."""

    def __enter__(self):
        self.count = 0
        monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *error):
        monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, name, duration, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            self.count += 1


def fresh(seed):
    """A problem from new lambdas that close over new arrays; G's minimiser is the mean of the rows."""
    rows = np.random.default_rng(seed).standard_normal(SHAPE)
    return rows, hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1.0) ** 2) + jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.mean(jnp.sum(((y - x)[None] - rows) ** 2, 1)),
        constraints=lambda x, y: y[0] - 5.0,
        xi=None,
    )


def solve(problem, method=METHOD, **call):
    return hx.solve(problem, np.zeros(11), np.zeros(11), method, max_steps=30, **call)


def test_five_problems_from_fresh_lambdas_compile_once():
    solve(fresh(0)[1])
    known = compiled()
    with Compilations() as seen:
        found = [(rows, solve(problem)) for rows, problem in map(fresh, range(1, 6))]
    assert compiled() == known
    assert seen.count == 0
    assert len({float(sol.x[0]) for _, sol in found}) == 5
    for rows, sol in found:  # each program ran on its own data: y is near x + the mean of *these* rows
        assert np.max(np.abs(sol.state.run.state.w - sol.x - rows.mean(0))) < 0.1
        assert sol.counts.compile_seconds == 0


def test_a_sweep_over_numbers_compiles_once():
    problem = fresh(0)[1]
    solve(problem)
    known = compiled()
    with Compilations() as seen:
        ends = [solve(problem, hx.SALVF(c1=c1, c2=100.0, inner=hx.SALM(steps=3))) for c1 in (2.0, 4.0, 8.0)]
        solve(problem, hx.SALVF(c1=np.float64(3.0), c2=jnp.asarray(90.0), inner=hx.SALM(steps=3)), seed=4)
    assert compiled() == known
    assert seen.count <= 3  # eager helpers (a key, a copy), never a program
    assert len({float(sol.y[0]) for sol in ends}) == 3


def test_a_dropped_problems_data_is_freed():
    rows, problem = fresh(3)
    solution = solve(problem)
    gc.collect()
    del rows, problem
    gc.collect()
    assert not [a for a in jax.live_arrays() if a.shape == SHAPE]
    assert np.all(np.isfinite(solution.x))  # the solution itself needs none of it


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(program, "MAX_PROGRAMS", compiled())
    before = compiled()
    bound, x, y = bind(lambda x, y: y - x)
    for k in range(3):
        bound.run(f"bounded{k}", lambda problem, x, y: problem.constraints(x, y), x, y)
    assert compiled() == max(before, 1)


# -- hoisting, function by function ------------------------------------------------------------------------------------


def bind(constraints):
    problem = hx.Problem(lambda x, y, zeta: x, lambda x, y, xi: y, constraints)
    x, x_rest = split_variable("x", jnp.asarray(2.0))
    y, y_rest = split_variable("y", jnp.asarray(3.0))
    return Bound(problem, x_rest, y_rest), x, y


def value_and_slope(constraints):
    bound, x, y = bind(constraints)

    def both(problem, x, y):
        return jax.value_and_grad(lambda v: jnp.sum(problem.constraints(x, v)))(y)

    return tuple(map(float, bound.run("both", both, x, y)))


def test_closed_over_arrays_are_arguments_not_constants():
    def linear(number):
        array = jnp.full(4, number)
        return lambda x, y: jnp.sum(array) * y * x

    known = None
    for number in (1.0, 2.0, 3.0):
        assert value_and_slope(linear(number)) == (24 * number, 8 * number)
        known = known or compiled()
        assert compiled() == known


def test_jitted_functions_are_hoisted_too():
    def make(number):
        array = jnp.full(5, number)
        inner = jax.jit(lambda y: jnp.sum(array) * y)
        return jax.jit(lambda x, y: inner(y) + x)

    assert value_and_slope(make(1.0)) == (17.0, 5.0)
    known = compiled()
    assert value_and_slope(make(3.0)) == (47.0, 15.0)
    assert compiled() == known


def test_custom_derivatives_that_close_over_arrays_get_their_own_program():
    def make(number):
        array = jnp.asarray(number)

        @jax.custom_vjp
        def double(y):
            return 2.0 * y

        double.defvjp(lambda y: (2.0 * y, None), lambda _, ct: (array * ct,))
        return lambda x, y: double(y)

    program._programs.clear()  # a full cache does not grow
    known = compiled()
    first, second = make(10.0), make(20.0)  # equal values, different derivative rules
    assert value_and_slope(first) == (6.0, 10.0)
    assert value_and_slope(second) == (6.0, 20.0)
    assert value_and_slope(first) == (6.0, 10.0)
    assert compiled() > known
    del first, second
    gc.collect()
    assert compiled() == known  # gone with their functions


def test_labels_of_the_output_are_part_of_a_program():
    def answer(names):
        problem = hx.Problem(
            upper=lambda x, y, zeta: (y - 1.0) ** 2 + x**2,
            lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
            constraints=lambda x, y: dict(zip(names, (y - x, y - 3.0), strict=True)),
        )
        return set(hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=2).multipliers.inequalities)

    assert answer("ab") == {"a", "b"}
    assert answer("cd") == {"c", "d"}


def test_custom_derivatives_without_arrays_share_a_program():
    def make():
        @jax.custom_jvp
        def triple(y):
            return 3.0 * y

        triple.defjvp(lambda primals, tangents: (3.0 * primals[0], 7.0 * tangents[0]))
        return lambda x, y: triple(y)

    assert value_and_slope(make()) == (9.0, 7.0)
    gc.collect()
    known = compiled()
    assert value_and_slope(make()) == (9.0, 7.0)
    assert compiled() == known


def test_host_callbacks_are_told_apart_by_identity():
    def make(number):
        def host(y):
            return np.asarray(number * y)

        def constraints(x, y):
            seen = jax.lax.stop_gradient(y)  # a callback has no derivative
            found = jax.pure_callback(host, jax.ShapeDtypeStruct((), y.dtype), seen, vmap_method="sequential")
            return x * found + y

        return constraints

    first, second = make(10.0), make(20.0)
    assert value_and_slope(first) == (63.0, 1.0)
    assert value_and_slope(second) == (123.0, 1.0)
    assert value_and_slope(first) == (63.0, 1.0)


def test_callable_pytrees_are_welcome():
    class Linear(eqx.Module):
        weight: jax.Array

        def __call__(self, x, y):
            return jnp.sum(self.weight) * y

    assert value_and_slope(Linear(jnp.ones(6))) == (18.0, 6.0)
    known = compiled()
    assert value_and_slope(Linear(2.0 * jnp.ones(6))) == (36.0, 12.0)
    partial = jax.tree_util.Partial(lambda w, x, y: jnp.sum(w) * y, jnp.ones(3))
    assert value_and_slope(partial) == (9.0, 3.0)
    assert compiled() == known + 1


def test_arrays_deep_inside_a_loop_are_right():
    def make(number):
        table = jnp.full(3, number)

        def constraints(x, y):
            jitted = jax.jit(lambda carry, t: carry + jnp.sum(table) * t)
            return jax.lax.scan(lambda c, t: (jitted(c, t), None), y, jnp.arange(2.0))[0]

        return constraints

    assert value_and_slope(make(1.0)) == (6.0, 1.0)
    assert value_and_slope(make(2.0)) == (9.0, 1.0)


def test_a_traced_function_that_fails_is_named():
    bound, x, y = bind(lambda x, y: y @ x)
    with pytest.raises(hx.InputError, match=r"constraints failed when it was traced .*ValueError"):
        bound.trace("constraints", (x, y))


def test_importing_hierax_starts_no_backend():
    code = (
        "import hierax, jax._src.xla_bridge as bridge\n"
        "hierax.Problem(lambda x, y, z: x, lambda x, y, z: y, x_set=hierax.Box(0.0, 1.0)), hierax.SALVF(c1=5.0)\n"
        "print(len(bridge._backends))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("kind", [float, np.asarray, np.float64, jnp.asarray])
def test_fresh_lambdas_that_close_over_other_numbers_compile_once(kind):
    def answer(value):
        number = kind(value)
        problem = hx.Problem(
            upper=lambda x, y, zeta: (y - number) ** 2 + x**2,
            lower=lambda x, y, xi: jnp.where(y > number, 2.0, 1.0) * (y - number * x) ** 2,
            constraints=lambda x, y: y - 5.0 * number,
        )
        return hx.solve(problem, 0.5, 0.5, hx.GAM(), max_steps=30)

    for value in (0.0, 1.5):  # the second is compiled without what the first has done once for all
        answer(value)
    before = compiled()
    with Compilations() as compilations:
        found = answer(2.0)
    assert compilations.count == 0
    assert compiled() == before
    assert found.x == pytest.approx(0.8, abs=1e-4)  # of (2 x - 2)^2 + x^2


def test_numbers_are_lifted_in_their_precision_and_order():
    small = np.float32(0.1)

    def constraints(x, y):
        return 0.1 * x + 0.3 * y, small * jnp.asarray(y, jnp.float32) - small, jnp.full(2, 0.7) * y

    bound, x, y = bind(constraints)
    found = bound.run("numbers", lambda problem, x, y: problem.constraints(x, y), x, y)
    for one, other in zip(found, jax.jit(constraints)(x, y), strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * float(jnp.finfo(other.dtype).eps))
        assert one.dtype == other.dtype
    first, second = (bind(lambda x, y, c=c: c * x + 2.0 * y) for c in (3.0, 4.0))
    for (problem, x, y), c in ((first, 3.0), (second, 4.0)):
        assert problem.run("sum", lambda problem, x, y: problem.constraints(x, y), x, y) == c * x + 2.0 * y


def test_a_run_compiles_its_own_programs_and_nothing_else():
    """An array moved or a key made outside of them would each be a program of JAX's own, in every fresh process."""
    jax.clear_caches()
    program.forget_programs()
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(zeta),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        zeta=hx.Sampler(lambda key, n: jax.random.normal(key, (n,))),
    )
    with Compilations() as compilations:
        hx.solve(problem, 0.5, 0.5, hx.LVHBA(), max_steps=3)
    assert compilations.count == 3  # start, chunk, finish


@pytest.mark.parametrize("method", [hx.LVHBA(), METHOD], ids=["LVHBA", "SALVF"])
def test_going_on_compiles_nothing_but_its_first_step(method):
    """It meets the functions in another order than the run that it continues, with fresh lambdas in another problem."""
    _, problem = fresh(1)
    first = solve(problem, method)
    with Compilations() as compilations:
        second = solve(problem, method, state=first.state)
        again = solve(fresh(1)[1], method, state=second.state)
    assert compilations.count == 1  # making the state ready to go on
    assert again.state.run.state.step == 90


@pytest.mark.parametrize("seed", [0, 7, 2**31 + 5, 2**40 + 3])
def test_the_key_of_a_run_is_start_0_of_its_seed(seed):
    """Keys are made inside of a program, from an array; a large seed must give what it gives outside."""
    problem = hx.Problem(upper=lambda x, y, zeta: (y - 1.0) ** 2, lower=lambda x, y, xi: (y - 2.0 * x) ** 2)
    key = hx.solve(problem, 0.5, 0.5, hx.LVHBA(), max_steps=1, seed=seed).state.run.state.key
    np.testing.assert_array_equal(
        jax.random.key_data(key), jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 0))
    )
