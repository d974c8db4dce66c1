"""Wrong calls and the text each gets: the argument's name, what it got, what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hierax as hx
from hierax.problems import toy

TOY = toy(0.0).problem


def problem(**changes):
    """The exact toy with some arguments of Problem replaced."""
    names = ("upper", "lower", "constraints", "x_set", "y_set")
    return hx.Problem(**{**{name: getattr(TOY, name) for name in names}, **changes})


def call(stated=TOY, x0=1.0, y0=1.0, method=hx.SALVF(), **settings):
    return lambda: hx.solve(stated, x0, y0, method, **settings)


def normal(key, n):
    return jax.random.normal(key, (n, 2))


TABLE = {
    # the problem
    "problem": (call("toy"), "problem: needs a hx.Problem, got str"),
    "upper": (call(problem(upper=3.0)), r"Problem\(upper\): needs a function, got float"),
    "lower": (call(problem(lower="g")), r"Problem\(lower\): needs a function, got str"),
    "constraints": (call(problem(constraints=np.ones(2))), r"Problem\(constraints\): needs a function, got ndarray"),
    "x_set": (call(problem(x_set=(0.0, 3.0))), r"Problem\(x_set\): needs a set \(hx.Box, hx.Ball, ...\).* got 0.0"),
    "xi": (call(problem(xi=np.zeros(3))), r"Problem\(xi\): needs hx.Finite.* got ndarray. Arrays go in as hx.Finite"),
    "zeta": (call(problem(zeta=normal)), r"Problem\(zeta\): needs hx.Finite\(arrays\), hx.Sampler\(draw\)"),
    # functions
    "vector upper": (
        call(problem(upper=lambda x, y, zeta: jnp.stack([x, y]))),
        r"upper\(x, y, zeta\): must return a scalar, the mean over the batch; got shapes \[\(2,\)\]",
    ),
    "mean forgotten": (
        call(problem(lower=lambda x, y, xi: (y - xi[:, 0]) ** 2, xi=hx.Sampler(normal)), method=hx.SALVF(batch_xi=3)),
        r"lower\(x, y, xi\): must return a scalar.*\[\(3,\)\].*jnp.mean",
    ),
    "two arguments": (
        call(problem(upper=lambda x, y: x)),
        "upper failed when it was traced with arguments of shapes .*TypeError.*positional argument",
    ),
    "two arguments, and what to do": (
        call(problem(upper=lambda x, y: x)),
        r"it is always called as upper\(x, y, zeta\), so it must take 3 arguments \(the batch is None where nothing",
    ),
    "three arguments for a constraint": (
        call(problem(constraints=lambda x, y, xi: y - x)),
        r"it is always called as constraints\(x, y\), so it must take 2 arguments\. TypeError",
    ),
    "numpy inside": (
        call(problem(upper=lambda x, y, zeta: np.sin(x) + y)),
        r"upper failed when it was traced .* use jax.numpy in the place of numpy .*TracerArrayConversionError",
    ),
    "float of a traced value": (
        call(problem(lower=lambda x, y, xi: (y - float(x)) ** 2)),
        "lower failed when it was traced .* use jax.numpy in the place of numpy",
    ),
    "what to do about a branch": (
        call(problem(lower=lambda x, y, xi: y if y > 0 else -y)),
        "it branches on a value .* use jnp.where",
    ),
    "inner shapes": (
        call(problem(constraints=lambda x, y: jnp.ones((2, 3)) @ y)),
        r"constraints failed when it was traced with arguments of shapes \(\(\), \(\)\)",
    ),
    "branch on a value": (
        call(problem(lower=lambda x, y, xi: y if y > 0 else -y)),
        "lower failed when it was traced.*TracerBoolConversionError",
    ),
    "integer upper": (
        call(problem(upper=lambda x, y, zeta: jnp.asarray(1))),
        r"upper\(x, y, zeta\): must return floating-point numbers, got dtype int64",
    ),
    "boolean constraint": (
        call(problem(constraints=lambda x, y: {"a": y <= x})),
        r"constraints\(x, y\)\['a'\]: must return floating-point numbers, got dtype bool",
    ),
    # variables
    "integer array": (call(x0=np.array(1)), r"x0 has dtype int64; .* Convert it \(for example with .astype\(float\)\)"),
    "boolean x0": (call(x0=True), r"x0 has dtype bool; hierax optimises real"),
    "integer leaf": (call(y0={"w": np.arange(3)}), r"y0\['w'\] has dtype int64"),
    "complex": (call(y0=1j), "y0 has dtype complex128; hierax optimises real"),
    "nothing to optimise": (call(x0={"f": "relu"}), "x0 holds no floating-point array, so there is nothing"),
    "nan start": (call(x0=float("nan")), "x0: holds NaN or infinite entries; start from a finite point"),
    "infinite start": (call(y0=np.inf), "y0: holds NaN or infinite entries"),
    "set structure": (
        call(problem(x_set={"a": hx.Free()})),
        r"Problem\(x_set\): does not fit x0 of structure \(\)",
    ),
    "bounds do not broadcast": (
        call(problem(y_set=hx.Box(np.zeros(3), np.ones(3)), constraints=None), y0=np.ones(2)),
        r"Problem\(y_set\): (does not fit|bounds do not broadcast)",
    ),
    "not finite at the start": (
        call(problem(upper=lambda x, y, zeta: jnp.log(x - 1.0))),
        r"upper is not finite at \(x0, y0\); start from a point where every function is finite",
    ),
    # batches
    "batch without source": (
        call(method=hx.SALVF(batch_zeta=4)),
        r"batch size 4 for zeta, but Problem\(zeta=None\) has no samples; leave it unset",
    ),
    "batch above the data": (
        call(
            problem(lower=lambda x, y, xi: jnp.mean((y - xi) ** 2), xi=hx.Finite(np.ones(5), replace=False)),
            method=hx.SALVF(batch_xi=6),
        ),
        r"batch size 6 for xi exceeds the 5 rows of Finite\(replace=False\)",
    ),
    "draw ignores n": (
        call(problem(zeta=hx.Sampler(lambda key, n: jax.random.normal(key, (7, 2))))),
        r"Sampler\(draw\) of zeta: draw\(key, \d+\) must return leaves with leading axis",
    ),
    # settings
    "method": (call(method="salvf"), r"method: needs hx.SALVF\(...\) or another method of hierax, got str"),
    "a class as method": (call(method=hx.GAM), r"method: got the class GAM; write hx.GAM\(\)"),
    "negative c1": (lambda: hx.SALVF(c1=-1.0), r"SALVF\(c1=-1.0\): needs a positive, finite number, or None"),
    "zero gamma2": (lambda: hx.SALVF(gamma2=0.0), r"SALVF\(gamma2=0.0\): needs a positive"),
    "c2 is text": (lambda: hx.SALVF(c2="large"), r"SALVF\(c2='large'\): needs a positive, finite number"),
    "nan eta": (lambda: hx.SALVF(inner=hx.SALM(eta=np.nan)), r"SALM\(eta=nan\): needs a positive, finite number"),
    "tau above one": (lambda: hx.SALVF(tau=1.5), r"SALVF\(tau=1.5\): must lie in \(0, 1\]"),
    "penalty": (
        lambda: hx.SALVF(penalty="log"),
        r"SALVF\(penalty='log'\): choose one of 'multiplier', 'quadratic'",
    ),
    "start": (lambda: hx.SALVF(start="cold"), r"SALVF\(start='cold'\): choose one of 'solve', 'given'"),
    "rule": (lambda: hx.SALVF(inner=hx.SALM(rule="fast")), r"SALM\(rule='fast'\): choose one of 'capped', 'paper'"),
    "no inner step": (lambda: hx.SALVF(inner=hx.SALM(steps=0)), r"SALM\(steps=0\): needs a whole number >= 1"),
    "float batch": (lambda: hx.SALVF(batch_xi=2.0), r"SALVF\(batch_xi=2.0\): needs a whole number >= 1"),
    "steps": (lambda: hx.SALVF(steps=0.1), r"SALVF\(steps\): needs hx.Steps\(x=, y=, z=\), got float"),
    "negative step": (
        lambda: hx.SALVF(steps=hx.Steps(x=-0.1)),
        "steps.x: needs a positive number, a schedule or an optax transformation, got -0.1",
    ),
    "direction": (lambda: hx.SALVF(direction="storm"), r"SALVF\(direction\): needs hx.Plain\(\) or hx.Storm\(\)"),
    "schedule": (
        lambda: hx.SALVF_VR(direction=hx.Storm(schedule="fast")),
        r"Storm\(schedule='fast'\): choose one of None, 'paper'",
    ),
    "storm with adam": (
        lambda: hx.SALVF_VR(steps=hx.Steps(y=optax.adam(0.1))),
        r"alpha_k is hidden inside it.* Give a constant, hx.Storm\(beta=0.1\)",
    ),
    "negative repair": (lambda: hx.SALVF(repair=-1), r"SALVF\(repair=-1\): the number of repair steps"),
    # the call
    "max_steps": (call(max_steps=0), "max_steps=0: needs a whole number >= 1"),
    "float max_steps": (call(max_steps=1e3), "max_steps=1000.0: needs a whole number >= 1"),
    "record_every": (call(record_every=-5), "record_every=-5: needs a whole number >= 1"),
    "seconds": (call(seconds=-1), "seconds=-1: needs a positive number or None"),
    "tol": (call(tol=0.0), "tol=0.0: needs a positive number or None"),
    "output": (call(output="mean"), "output='mean': choose 'last', 'tail', 'best' or 'random'"),
    "callback": (call(callback=3), "callback: needs a function of one argument, got int"),
    "seed": (call(seed=0.5), "seed=0.5: needs a whole number or a JAX key"),
    "boolean seed": (call(seed=True), "seed=True: needs a whole number or a JAX key"),
    "state": (call(state={"x": 1.0}), "state: needs the state of an earlier solution, got dict"),
}


@pytest.mark.parametrize("name", TABLE)
def test_wrong_calls_are_refused_by_name(name):
    wrong, text = TABLE[name]
    with pytest.raises(hx.InputError, match=f"(?s){text}"):
        wrong()


def test_the_table_is_long_enough():
    assert len(TABLE) >= 25


@pytest.mark.parametrize(
    ("given", "shape"),
    [(1, ()), (0.5, ()), ([0.5, 1], (2,)), ([[1, 2], [3, 4]], (2, 2)), ([np.float32(1.0), 2.0], (2,))],
)
def test_plain_numbers_and_lists_of_numbers_become_arrays(given, shape):
    square = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((x - 1.0) ** 2) + jnp.sum(y**2), lower=lambda x, y, xi: jnp.sum((y - x) ** 2)
    )
    sol = hx.solve(square, given, given, hx.SALVF(), max_steps=2)
    assert sol.x.shape == sol.y.shape == shape
    assert sol.x.dtype == jnp.dtype(float)


def test_a_list_of_arrays_stays_a_list():
    uneven = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(x[0] ** 2) + jnp.sum((x[1] - 1.0) ** 2) + jnp.sum(y**2),
        lower=lambda x, y, xi: jnp.sum((y - x[0]) ** 2),
    )
    sol = hx.solve(uneven, [np.ones(2), np.ones(3)], np.ones(2), hx.SALVF(), max_steps=2)
    assert [leaf.shape for leaf in sol.x] == [(2,), (3,)]


def test_an_entry_on_its_bound_is_on_it_exactly():
    """The lower level's solution y = max(x - 1, 0) is 0: no rounding error of a solver is left below it."""
    stated = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((x - 0.3) ** 2) + jnp.sum(y**2),
        lower=lambda x, y, xi: jnp.sum((y - x + 1.0) ** 2),
        y_set=hx.NonNegative(),
    )
    for method in (hx.GAM(), hx.Auto(starts=1)):  # every method ends in the same loop as GAM
        call = {} if isinstance(method, hx.Auto) else {"max_steps": 5}
        sol = hx.solve(stated, np.full(3, 0.5), np.ones(3), method, **call)
        assert np.all(np.asarray(sol.y) >= 0.0)


def test_input_errors_are_value_errors():
    assert issubclass(hx.InputError, ValueError)
    assert issubclass(hx.RunFailed, RuntimeError)
    assert issubclass(hx.HieraxWarning, UserWarning)


def test_y0_outside_its_set_is_projected_with_a_warning():
    with (
        pytest.warns(hx.HieraxWarning, match=r"y0 lies outside Problem\(y_set\), by up to 4; its projection is used"),
        pytest.raises(hx.InputError, match="upper is not finite"),
    ):
        hx.solve(problem(upper=lambda x, y, zeta: jnp.log(x - 1.0)), 1.0, 7.0)
