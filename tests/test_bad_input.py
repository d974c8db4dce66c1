"""Wrong calls and the text each gets: the argument's name, what it got, what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hierax as hx
from hierax.problems import toy
from hierax_lab import datasets

TOY = toy(0.0).problem


def problem(**changes):
    """The exact toy with some arguments of Problem replaced."""
    names = ("upper", "lower", "constraints", "x_set", "y_set")
    return hx.Problem(**{**{name: getattr(TOY, name) for name in names}, **changes})


def call(stated=TOY, x0=1.0, y0=1.0, method=hx.SALVF(), **settings):
    return lambda: hx.solve(stated, x0, y0, method, **settings)


def normal(key, n):
    return jax.random.normal(key, (n, 2))


def inside(transformed, **changes):
    """`solve` inside of a transformation of JAX."""
    return lambda: transformed(lambda x: hx.solve(problem(**changes), x, 1.0, hx.SALVF(), max_steps=2).x)


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
    **{
        f"{name} without return": (call(problem(**{name: lambda *args: None})), f"{name}: gives None where numbers")
        for name in ("upper", "lower", "constraints", "equalities", "upper_constraints")
    },
    "a row without return": (
        call(problem(constraints=lambda x, y: {"a": y - x, "b": None})),
        r"constraints: gives None at \['b'\] where numbers are needed. Is its `return` missing\?",
    ),
    "draw without return": (
        call(problem(xi=hx.Sampler(lambda key, n: (jax.random.normal(key, (n,)), None)))),
        r"xi.draw: gives None at \[1\] where numbers are needed",
    ),
    "constant upper": (
        call(problem(upper=lambda x, y, zeta: 1.0)),
        r"Problem\(upper\): returns the same number whatever x and y are",
    ),
    "constant lower": (
        call(problem(lower=lambda x, y, xi: jnp.ones(()))),
        r"Problem\(lower\): returns the same number",
    ),
    "y of another shape": (
        call(problem(upper=lambda x, y, zeta: jnp.sum(x + y)), np.ones(3), np.ones(2)),
        r"upper failed when it was traced with arguments of shapes \(\(3,\), \(2,\)",
    ),
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
        r"upper is not finite at \(x0, y0\)\. Start from a point where every function is finite",
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
    "gamma2 below zero": (lambda: hx.SALVF(gamma2=-1.0), r"SALVF\(gamma2=-1.0\): needs a positive"),
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
    "array c1": (lambda: hx.SALVF(c1=np.array([1.0, 2.0])), r"SALVF\(c1=array\(\[1., 2.\]\)\): needs a positive"),
    "boolean c1": (lambda: hx.SALVF(c1=True), r"SALVF\(c1=True\): needs a positive, finite number"),
    "word as step": (lambda: hx.Steps(x="a"), r"Steps\(x\): needs a positive number, a schedule .* got 'a'"),
    "negative schedule": (
        lambda: hx.Steps(x=lambda k: -1.0),
        r"Steps\(x\): a schedule must return .* got -1.0 at step 0",
    ),
    "failing schedule": (lambda: hx.Steps(y=lambda: 1.0), r"Steps\(y\): the schedule failed at step 0: TypeError"),
    "negative decay": (lambda: hx.Decay(-1.0), r"Decay\(scale=-1.0\): needs a positive, finite number"),
    "control_variate": (lambda: hx.SALVF(control_variate=3), r"SALVF\(control_variate=3\): needs True, False, or None"),
    "follow": (lambda: hx.SALVF(follow="a"), r"SALVF\(follow='a'\): needs True, False, or None"),
    "boolean repair": (lambda: hx.SALVF(repair=True), r"SALVF\(repair=True\): needs a number of steps"),
    "scales": (lambda: hx.SALVF(scales=3.0), r"SALVF\(scales\): needs hx.Multipliers of divisors.* got float"),
    "word as q": (lambda: hx.LVHBA(q="a"), r"LVHBA\(q='a'\): must lie in"),
    # sets and samples
    "word as bound": (lambda: hx.Box(0.0, "3"), r"Box\(upper\): needs numbers or arrays.* got '3'"),
    "no bound": (lambda: hx.Box(None, 3.0), r"Box\(lower\): needs numbers or arrays; -jnp.inf .* got None"),
    "word as radius": (lambda: hx.Ball("1"), r"Ball\(radius\): needs a number > 0, got '1'"),
    "radius zero": (lambda: hx.Ball(0.0), r"Ball\(radius=0.0\): the radius must be one number > 0"),
    "word as scale": (lambda: hx.Simplex("1"), r"Simplex\(scale\): needs a number > 0, got '1'"),
    "words as data": (lambda: hx.Finite(np.array(["a", "b"])), r"Finite\(arrays\): needs arrays of numbers"),
    "replace": (lambda: hx.Finite(np.zeros(3), replace="no"), r"Finite\(replace='no'\): needs True or False"),
    "prefetch": (lambda: hx.Stream([np.zeros(3)], prefetch=1.5), r"Stream\(prefetch=1.5\): needs a whole number >= 1"),
    "random numbers of its own": (
        call(problem(zeta=hx.Sampler(lambda key, n: np.random.default_rng().normal(size=(n, 2))))),
        r"Sampler\(draw\) of zeta: draw\(key, n\) gives other samples .* same key.* Use the key",
    ),
    "key not used": (
        call(problem(xi=hx.Sampler(lambda key, n: jnp.ones((n, 2))))),
        r"Sampler\(draw\) of xi: draw\(key, n\) does not use its key.* hx.Finite\(arrays\)",
    ),
    "data set": (lambda: datasets.load(["diabetes"]), r"name=\['diabetes'\]: there is no such data set"),
    "NaN in a column": (
        lambda: datasets.scale(np.array([[1.0, np.nan], [2.0, 0.0]])),
        "features: column 1 holds NaN or infinite entries",
    ),
    "float batch": (lambda: hx.SALVF(batch_xi=2.0), r"SALVF\(batch_xi=2.0\): needs a whole number >= 1"),
    "steps": (lambda: hx.SALVF(steps=0.1), r"SALVF\(steps\): needs hx.Steps\(x=, y=, z=\), got float"),
    "negative step": (
        lambda: hx.SALVF(steps=hx.Steps(x=-0.1)),
        r"Steps\(x\): needs a positive number, a schedule or an optax transformation, got -0.1",
    ),
    "direction": (
        lambda: hx.SALVF(direction="storm"),
        r"SALVF\(direction\): needs hx.Plain\(\), hx.Storm\(\) or another",
    ),
    "schedule": (
        lambda: hx.SALVF_VR(direction=hx.Storm(schedule="fast")),
        r"Storm\(schedule='fast'\): choose one of None, 'paper'",
    ),
    "storm with adam": (
        lambda: hx.SALVF_VR(steps=hx.Steps(y=optax.adam(0.1))),
        r"alpha_k is hidden inside it.* Give a constant, hx.Storm\(beta=0.1\)",
    ),
    "negative repair": (
        lambda: hx.SALVF(repair=-1),
        r"SALVF\(repair=-1\): needs a number of steps, which cannot be negative",
    ),
    # the call
    "max_steps": (call(max_steps=0), "max_steps=0: needs a whole number >= 1"),
    "float max_steps": (call(max_steps=1e3), "max_steps=1000.0: needs a whole number >= 1"),
    "record_every": (call(record_every=-5), "record_every=-5: needs a whole number >= 1"),
    "seconds": (call(seconds=-1), "seconds=-1: needs a positive number or None"),
    "tol": (call(tol=0.0), "tol=0.0: needs a positive number or None"),
    "output": (call(output="mean"), "output='mean': choose one of 'last', 'tail', 'best', 'random', 'random_after'"),
    "callback": (call(callback=3), "callback: needs a function of one argument, got int"),
    "too many steps": (call(max_steps=2**40), r"max_steps=1099511627776: needs a whole number >= 1, and below 2\*\*31"),
    "large seed": (call(seed=2**70), r"seed=\d+: needs a whole number or a JAX key; the number >= 0, below 2\*\*63"),
    "negative seed": (call(seed=-3), "seed=-3: needs a whole number or a JAX key"),
    "boolean tol": (call(tol=True), "tol=True: needs a positive number"),
    "inside jit": (inside(lambda f: jax.jit(f)(1.0)), "solve: was called inside jax.jit, jax.vmap or jax.grad"),
    "inside vmap": (inside(lambda f: jax.vmap(f)(jnp.ones(2))), "call it outside"),
    "inside grad": (inside(lambda f: jax.grad(f)(1.0)), "sol.certificate.hypergradient"),
    "grad of a number in it": (
        lambda: jax.grad(
            lambda a: hx.solve(problem(upper=lambda x, y, zeta: a * x + y), 1.0, 1.0, hx.SALVF(), max_steps=2).x
        )(1.0),
        "solve: was called inside",
    ),
    "no starts": (lambda: hx.solve_many(TOY, [], []), r"x0s holds no floating-point array.* x0s = \[\]"),
    "empty starts": (lambda: hx.solve_many(TOY, np.zeros(0), np.zeros(0)), r"x0s: has no entries \(shapes \[\(0,\)\]"),
    "empty x0": (call(x0=np.zeros(0)), r"x0: has no entries"),
    "empty y0": (call(y0=np.zeros(0)), r"y0: has no entries"),
    "seed": (call(seed=0.5), "seed=0.5: needs a whole number or a JAX key"),
    "boolean seed": (call(seed=True), "seed=True: needs a whole number or a JAX key"),
    "state": (call(state={"x": 1.0}), "state: needs the state of an earlier solution, got dict"),
}


@pytest.mark.parametrize("name", TABLE)
def test_wrong_calls_are_refused_by_name(name):
    wrong, text = TABLE[name]
    with pytest.raises(hx.InputError, match=f"(?s){text}"):
        wrong()


def test_numbers_of_numpy_are_numbers():
    assert hx.SALVF(batch_zeta=np.int64(3)).batch_zeta == 3
    noise = hx.Sampler(lambda key, n: 0.0 * jax.random.normal(key, (n, 2)))  # no noise, and yet drawn from the key
    sol = hx.solve(problem(zeta=noise), 1.0, 1.0, hx.SALVF(c1=np.float32(5.0)), max_steps=np.int64(2), seed=np.int32(1))
    assert sol.status.step == 2


def test_a_schedule_may_begin_at_zero():
    warm = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 20)
    assert callable(hx.Steps(x=warm).x)


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


# -- certify and check -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda p: hx.certify(p, 1.0, 1.0, lower="exact"), "lower='exact': needs a lower solver"),
        (lambda p: hx.certify(p, 1.0, 1.0, multipliers=3.0), "multipliers=3.0: needs hx.Multipliers"),
        (lambda p: hx.certify(p, 1.0, 1.0, state=5), "state=5: needs the state of a run"),
        (lambda p: hx.certify(p, np.nan, 1.0), "x: has entries that are not finite"),
        (lambda p: hx.certify(p, 1.0, 1.0, lengths=3.0), "lengths=3.0: needs a pair"),
        (lambda p: hx.certify(p, 1.0, 1.0, lengths=(-1.0, 1.0)), "lengths of x: must be positive"),
        (lambda p: jax.jit(lambda v: hx.certify(p, v, v).lower_gap)(1.0), "certify: was called inside jax.jit"),
        (lambda p: jax.jit(lambda v: hx.check(p, v, v).ok)(1.0), "check: was called inside jax.jit"),
        (lambda p: hx.Auto(tol=-1), r"Auto\(tol=-1\): needs a positive number"),
    ],
)
def test_wrong_calls_of_certify_and_check(call, text):
    with pytest.raises(hx.InputError, match=text):
        call(TOY)


@pytest.mark.parametrize("checked", [jax.debug_nans, jax.debug_infs])
def test_checks_for_values_that_are_not_finite_stay_the_users_own(checked):
    with checked(True):
        assert hx.certify(TOY, 1.5, 1.5).verdict() == "no"
