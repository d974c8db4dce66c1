"""Every element of the paper that can be set, against Algorithms 1 to 3 transcribed in NumPy (tests/printed.py)."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import printed
import pytest

import hierax as hx

K = 100
X0, Y0 = np.array([0.6, -0.4]), np.array([0.2, 0.9, 0.1])
BY_HAND = printed.Curved()
SIZES = {"s": {0: 3, 40: 6}, "r": {0: 2, 40: 5}, "q": {0: 1, 40: 4}}
INNER_BATCH = 2
BOUND = 0.1


def curved():
    """The problem of `printed.Curved` as the library takes it."""
    matrix, weights = jnp.asarray(BY_HAND.M), jnp.asarray(BY_HAND.D)

    def lower(x, y, xi):
        r = y[None, :] - (matrix @ x)[None, :] - xi
        return 0.5 * jnp.mean(jnp.sum(weights[None, :] * r**2, axis=1))

    def upper(x, y, zeta):
        away = 0.5 * jnp.mean(jnp.sum((y[None, :] - 1.0 - zeta) ** 2, axis=1))
        return away + jnp.sin(x[0]) * y[1] + 0.1 * jnp.sum(x**2)

    return hx.Problem(
        upper,
        lower,
        lambda x, y: jnp.stack([y[0] ** 2 + y[1] ** 2 + 0.5 * x[0] - 0.2, y[2] + x[1] * y[0] + 0.4]),
        x_set=hx.Box(*BY_HAND.X),
        y_set=hx.Box(*BY_HAND.Y),
        zeta=hx.Sampler(lambda key, n: 0.3 * jax.random.normal(key, (n, 3))),
        xi=hx.Sampler(lambda key, n: 0.2 * jax.random.normal(key, (n, 3))),
    )


def eta(k, j):
    return 0.4 / (j + 1.0 + 0.01 * k)


def rho(k, j):
    return 0.7 / (j + 1.0) ** 0.8


def falling(k):
    return 0.02 / (1.0 + 0.05 * k)


def falling_rule(k):
    return falling(jnp.asarray(k, float))


FALLING = hx.Steps(x=falling_rule, y=falling_rule, z=falling_rule)


def settings(direction, **changed):
    """SALVF to the letter, with schedules for everything."""
    base = {
        "c1": 4.0,
        "c2": 30.0,
        "gamma1": 0.7,
        "gamma2": 0.3,
        "bound": BOUND,
        "penalty": "quadratic",
        "start": "given",
        "control_variate": False,
        "inner": hx.SALM(steps=hx.Staircase(SIZES["s"]), batch=INNER_BATCH, eta=eta, rho=rho, rule="paper", warm=False),
        "batch_zeta": hx.Staircase(SIZES["r"]),
        "batch_xi": hx.Staircase(SIZES["q"]),
        "direction": direction,
    }
    return hx.SALVF(**base | changed)


def drawn(method, problem, key):
    """The samples that a run draws, step by step, from its own plans."""
    tickets = {}
    for k in range(K):
        now, _ = method.staged(k)
        if now.stage not in tickets:
            batches = now.batches(problem)
            tickets[now.stage] = jax.jit(
                lambda step, b=batches: b.tickets(problem, SimpleNamespace(key=key, step=step))
            )
        zeta, xi, inner = tickets[now.stage](jnp.asarray(k))
        yield printed.Batches(*(np.asarray(part) for part in (zeta, xi, inner)))


def uniforms(key):
    """The numbers by which a run chooses R."""
    keys = (jax.random.fold_in(jax.random.fold_in(key, 4), k + 1) for k in range(K))
    return [float(jax.random.uniform(one, dtype=jnp.float64)) for one in keys]


def followed(method, problem, **call):
    """A run with all of its iterates (x, y)."""
    path = []
    sol = hx.solve(
        problem,
        X0,
        Y0,
        method,
        max_steps=K,
        seed=3,
        record_every=1,
        callback=lambda info: path.append((np.asarray(info.x), np.asarray(info.y))),
        **call,
    )
    return sol, path


def compared(method, alpha, beta=None, z0=(0.0, 0.0), **call):
    problem = curved()
    key = jax.random.fold_in(jax.random.key(3), 0)  # of start 0
    sol, path = followed(method, problem, **call)
    numbers = {name: float(getattr(method, name)) for name in ("c1", "c2", "gamma1", "gamma2", "bound")}
    given = printed.Settings(**numbers, alpha=alpha, beta=beta, eta=eta, rho=rho)
    batches = list(drawn(method, problem, key))
    known = printed.salvf(BY_HAND, X0, Y0, np.array(z0), given, batches)
    for (x, y), (known_x, known_y, _) in zip(path, known[1:], strict=True):
        np.testing.assert_allclose(x, known_x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(y, known_y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sol.state.run.state.point.z.inequalities, known[-1][2], rtol=0, atol=1e-12)
    return sol, known, batches, key


@pytest.mark.slow
def test_algorithm_2_with_sequences_is_the_transcription():
    """s_k, r_k, q_k, eta_j^k, rho_j^k, alpha_k, Z with a given B, over 100 steps."""

    sol, known, batches, _ = compared(settings(hx.Plain(), steps=FALLING), falling)
    z = np.array([u[2] for u in known])
    assert np.any(z == BOUND / np.sqrt(2))  # the bound is met, so that leaving it out would fail
    assert [len(b.zeta) for b in batches] == [2] * 40 + [5] * 60
    assert [len(b.xi) for b in batches] == [1] * 40 + [4] * 60
    assert [b.inner.shape[:2] for b in batches] == [(3, INNER_BATCH)] * 40 + [(6, INNER_BATCH)] * 60
    assert sol.counts.zeta == sum(len(b.zeta) for b in batches) == sol.history["zeta"][-1]
    assert sol.counts.xi == sum(len(b.xi) + b.inner.shape[0] * INNER_BATCH for b in batches)  # and no other
    assert sol.history["zeta"][39] == 80


def test_algorithm_3_with_z_random_output_and_repair_is_the_transcription():
    """u = (x, y, z) in the recursion, beta_{k+1} = beta alpha_k^2, R of eq. 2.13, (y', z') of eq. 2.14."""

    def alpha(k):
        return 0.03 * (k + 1.0) ** (-1 / 3)

    rule = hx.Decay(0.03, a=1.0)
    method = settings(
        hx.Storm(schedule="paper", beta=300.0, z=True), steps=hx.Steps(x=rule, y=rule, z=rule), repair=25, bound=5.0
    )
    with pytest.warns(hx.HieraxWarning, match="unstable"):
        sol, known, _, key = compared(method, alpha, beta=300.0, output="random")
    index = printed.random_index([alpha(k) for k in range(K)], uniforms(key))
    x, y, _ = known[index]
    np.testing.assert_allclose(sol.x, x, rtol=0, atol=1e-12)
    draw = curved().xi.draw(jax.random.fold_in(jax.random.fold_in(key, 2), K), 25 * INNER_BATCH)
    batches = np.asarray(draw).reshape(25, INNER_BATCH, 3)
    final = (lambda j: eta(K, j)), (lambda j: rho(K, j))
    y, z = printed.salm(BY_HAND, x, np.zeros(2), y, batches, *final, 0.7, 0.0)
    np.testing.assert_allclose(sol.y, y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sol.multipliers.inequalities, z, rtol=0, atol=1e-12)
    assert np.all(z > 0.01)  # a z' that was dropped or zero would be seen


def harmonic(k):
    return 1.0 / (1.0 + 0.1 * k)


GIVEN_BETAS = {"function": (harmonic, 0.3, 0.7), "array": (np.array([harmonic(k) for k in range(K)]), 0.3, 0.7)}
GIVEN_BETAS["gamma2 = 0"] = (harmonic, 0.0, 0.7)


@pytest.mark.parametrize(("beta", "gamma2", "gamma1"), GIVEN_BETAS.values(), ids=GIVEN_BETAS)
@pytest.mark.slow  # one of them is fast, below
def test_algorithm_3_with_given_sequences_is_the_transcription(beta, gamma2, gamma1):
    """beta_k as an input, z^0 as an input, R over 1..K (Corollary C.3), and gamma2 = 0 in the inner loop."""
    z0 = np.array([0.3, 0.05])
    method = settings(hx.Storm(beta=beta, z=True), steps=FALLING, gamma2=gamma2, gamma1=gamma1, z0=z0, bound=5.0)
    sol, known, _, key = compared(method, falling, beta=harmonic, z0=z0, output="random_after")
    index = printed.random_index([falling(k) for k in range(K)], uniforms(key))
    x, y, _ = known[index + 1]
    np.testing.assert_allclose(sol.x, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sol.y, y, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(known[0][2], z0)
    assert (gamma2 == 0) == np.all(known[-1][2] == z0)


@pytest.mark.slow  # the augmented one takes the same way: the transcriptions above
def test_the_plain_lagrangian_is_the_transcription():
    """gamma1 = inf: mu = lam and d_lam = H."""

    def alpha(k):
        return 0.01 + 0.0 * k

    method = settings(
        hx.Plain(),
        steps=hx.Steps(x=0.01, y=0.01, z=0.01),
        gamma1=math.inf,
        inner=hx.SALM(steps=5, batch=1, eta=eta, rho=rho, rule="paper", warm=False),
        batch_zeta=1,
        batch_xi=1,
    )
    compared(method, alpha)


@pytest.mark.slow
def test_stairs_are_solves_one_after_the_other():
    """One run over a staircase, and the same run in two pieces that meet elsewhere than its edge, bit for bit."""
    problem, method = curved(), settings(hx.Plain(), steps=FALLING)
    whole = hx.solve(problem, X0, Y0, method, max_steps=80, seed=1)
    half = hx.solve(problem, X0, Y0, method, max_steps=55, seed=1)
    rest = hx.solve(problem, X0, Y0, state=half.state, max_steps=25)
    for a, b in zip(
        jax.tree.leaves(whole.state.run.state.point), jax.tree.leaves(rest.state.run.state.point), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert rest.counts.zeta == whole.counts.zeta
    assert rest.counts.xi == whole.counts.xi


def test_stages_are_told_by_their_sizes():
    """Equal sizes are one stage, whenever they come, and share a program."""
    method = hx.SALVF(
        batch_zeta=hx.Staircase({0: 2, 10: 3, 20: 2}), inner=hx.SALM(steps=hx.Staircase({0: 5, 15: 5, 30: 7}))
    )
    stages = [(method.staged(k)[0].stage, method.staged(k)[1]) for k in (0, 9, 10, 15, 20, 29, 30, 99)]
    never = 2**31 - 1
    assert stages == [(0, 10), (0, 10), (10, 20), (10, 20), (0, 30), (0, 30), (30, never), (30, never)]
    assert method.staged(20)[0] == method


def test_a_staircase_of_one_size_is_that_size():
    problem = curved()
    one, same = (hx.SALVF(batch_zeta=size, batch_xi=3) for size in (2, hx.Staircase({0: 2})))
    assert same.staged(50)[0].batches(problem) == one.batches(problem)
    assert same.costs(problem) == one.costs(problem)


def test_stages_draw_other_samples():
    """A stage whose blocks of steps are longer would otherwise begin with samples that were used before."""
    problem, method = curved(), hx.SALVF(batch_zeta=hx.Staircase({0: 1, 70: 2}))
    seen = []
    for k in (0, 70):
        batches = method.staged(k)[0].batches(problem)
        seen.append(np.ravel(batches.rows(problem, SimpleNamespace(key=jax.random.key(0), step=jnp.asarray(k))).zeta))
    assert not set(seen[0]) & set(seen[1])


def test_an_explicit_gamma2_of_zero_is_the_exact_solvers_own():
    problem = hx.Problem(
        lambda x, y, _: (y - 1.0) ** 2 + 0.1 * x**2, lambda x, y, _: (y - 2 * x) ** 2, lambda x, y: y - x
    )
    unset = hx.solve(problem, 0.5, 0.5, hx.SALVF(inner=hx.Exact()), max_steps=5)
    zero = hx.solve(problem, 0.5, 0.5, hx.SALVF(inner=hx.Exact(), gamma2=0.0), max_steps=5)
    np.testing.assert_array_equal(unset.x, zero.x)
    np.testing.assert_array_equal(unset.y, zero.y)
    assert hx.SALVF(gamma2=0.0, inner=hx.Conic()).gamma2 == 0.0


REFUSED = {
    "no size at step 0": (lambda: hx.Staircase({5: 2}), r"Staircase\(sizes=\{5: 2\}\): needs a size for outer step 0"),
    "no dict": (lambda: hx.Staircase([1, 2]), r"Staircase\(sizes\): needs a dict"),
    "size zero": (lambda: hx.Staircase({0: 0}), r"Staircase\(sizes\): 0 from step 0 on"),
    "broken step": (lambda: hx.Staircase({0: 1, 2.5: 3}), r"Staircase\(sizes\): 2.5 is no outer step"),
    "stairs elsewhere": (lambda: hx.BLOCC(batch_zeta=hx.Staircase({0: 1})), r"BLOCC\(batch_zeta=Staircase"),
    "bound": (lambda: hx.SALVF(bound=-1.0), r"SALVF\(bound=-1.0\): needs a positive"),
    "gamma1": (lambda: hx.SALVF(gamma1=-math.inf), r"SALVF\(gamma1=-inf\): needs a positive number, inf for"),
    "gamma2": (lambda: hx.SALVF(gamma2=-1.0), r"SALVF\(gamma2=-1.0\): needs a positive"),
    "gamma2 = 0 without dual steps": (
        lambda: hx.SALVF(gamma2=0.0, inner=hx.SALM(dual_free=True)),
        r"SALVF\(gamma2=0\): needs SALM with dual steps",
    ),
    "gamma2 = 0 cold": (lambda: hx.SALVF(gamma2=0, inner=hx.SALM(warm=False)), r"SALVF\(gamma2=0\): needs SALM"),
    "gamma2 = 0, gamma1 = inf": (lambda: hx.SALVF(gamma2=0.0, gamma1=math.inf), r"and rho where gamma1 is inf"),
    "beta_k above 1": (lambda: hx.SALVF(direction=hx.Storm(beta=[0.5, 1.5])), r"Storm\(beta=.*numbers in \[0, 1\]"),
    "z0 of another shape": (
        lambda: hx.solve(curved(), X0, Y0, hx.SALVF(z0=np.ones(3)), max_steps=1),
        r"SALVF\(z0\): needs numbers shaped",
    ),
    "eta of one number": (lambda: hx.SALM(eta=lambda j: 0.1), r"SALM\(eta\): the schedule failed at \(k, j\) = 0, 0"),
    "eta below zero": (lambda: hx.SALM(eta=lambda k, j: -0.1), r"SALM\(eta\): a schedule must return a number >= 0"),
    "z of Storm": (lambda: hx.SALVF(direction=hx.Storm(z=1)), r"Storm\(z=1\): needs True or False"),
}


@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(hx.InputError, match=message):
        make()


def test_every_size_of_a_staircase_is_looked_at():
    rows = hx.Finite(np.zeros((8, 3)), replace=False)
    problem = hx.Problem(
        lambda x, y, z: jnp.sum((y - 1.0) ** 2) + jnp.sum(z), lambda x, y, xi: jnp.sum((y - x) ** 2), zeta=rows
    )
    with pytest.raises(hx.InputError, match=r"batch size 16 for zeta exceeds the 8 rows"):
        hx.solve(problem, 0.5, 0.5, hx.SALVF(batch_zeta=hx.Staircase({0: 4, 50: 16})), max_steps=1)


GIVEN = {"files": lambda rows, path: hx.Finite.from_files(path), "stream": lambda rows, path: hx.Stream([rows] * 20)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GIVEN)
def test_what_is_fed_by_the_host_is_not_spent_on_a_look_either(kind, tmp_path):
    """Where all numbers are given the first batches that a run takes are those that are looked at."""
    rows = 0.2 * np.random.default_rng(0).standard_normal((3, 3))
    np.save(tmp_path / "xi.npy", rows)
    problem = dataclasses.replace(curved(), xi=GIVEN[kind](rows, tmp_path / "xi.npy"))
    size = 3 if kind == "files" else None  # a Stream sets it
    inner = hx.SALM(steps=2, batch=size, eta=eta, rho=rho, rule="paper", warm=False)
    method = settings(hx.Plain(), steps=FALLING, inner=inner, batch_zeta=2, batch_xi=size)
    sol = hx.solve(problem, X0, Y0, method, max_steps=4, output="last")
    assert sol.counts.xi == 4 * (3 + 2 * 3)
    assert (sol.status.name, sol.counts.zeta) == ("max_steps", 8)
