"""Lower levels that are trained: a product u * v is fitted to data under a norm bound, which has a closed form.

min over (u, v) of |u * v - t|^2 / 2 with |u|^2 + |v|^2 <= 2 C is, because min of (u^2 + v^2) / 2 under u v = p is |p|,
the projection of t (the mean of the data) on the l1-ball of radius C: soft thresholding. It is not convex in (u, v).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._auto.session import Session
from hierax._auto.training import RetrainedSearch
from hierax._base.interrupt import Interrupt
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.retraining import COUNT, Retraining, is_trained
from hierax._judge.trained import trained_fields
from hierax._run.call import Call
from hierax._run.notes import NOTHING_KEPT, notes_in
from hierax._run.prepare import prepare
from hierax._run.status import Kind

ENTRIES, ROWS, TRUE = 120, 40, 12


def data(seed: int) -> np.ndarray:
    """Rows of noise around a mean with a few entries that are one."""
    return np.where(np.arange(ENTRIES) < TRUE, 1.0, 0.0) + 0.8 * np.random.default_rng(seed).normal(
        size=(ROWS, ENTRIES)
    )


TRAIN, VALIDATION = data(1), data(2)


def problem() -> hx.Problem:
    def fit(y, rows):
        return 0.5 * jnp.mean(jnp.sum(((y["u"] * y["v"])[None] - rows) ** 2, axis=1))

    return hx.Problem(
        upper=lambda x, y, zeta: fit(y, zeta),
        lower=lambda x, y, xi: fit(y, xi),
        constraints=lambda x, y: 0.5 * (jnp.sum(y["u"] ** 2) + jnp.sum(y["v"] ** 2)) - x,
        x_set=hx.Box(1.0, 60.0),
        zeta=hx.Finite(VALIDATION),
        xi=hx.Finite(TRAIN),
    )


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"u": 0.2 * rng.normal(size=ENTRIES), "v": 0.2 * rng.normal(size=ENTRIES)}


def solved(bound: float) -> np.ndarray:
    """The projection of the mean of the training rows on the l1-ball."""
    t = TRAIN.mean(axis=0)
    if np.abs(t).sum() <= bound:
        return t
    sizes = np.sort(np.abs(t))[::-1]
    count = np.arange(1, ENTRIES + 1)
    cuts = (np.cumsum(sizes) - bound) / count
    cut = cuts[np.flatnonzero(sizes > cuts)[-1]]
    return np.sign(t) * np.maximum(np.abs(t) - cut, 0.0)


def loss(p: np.ndarray, rows: np.ndarray) -> float:
    return 0.5 * float(np.mean(np.sum((p - rows) ** 2, axis=1)))


def phi(bound: float) -> float:
    return loss(solved(bound), VALIDATION)


@pytest.fixture(scope="module")
def setting() -> Float64Problem:
    return Float64Problem.of(problem(), np.array(9.0), start(), 64, 0)


@pytest.fixture(scope="module")
def training(setting: Float64Problem) -> Retraining:
    why = is_trained(setting, 0)
    assert why is not None and "not convex" in why
    return Retraining.of(setting, setting.y, 0, lambda: False, why)


def test_trainings_find_the_solution_and_keep_its_bound(training: Retraining):
    for bound in (6.0, 14.0):
        found = training.at(np.array(bound))
        exact = solved(bound)
        np.testing.assert_allclose(found.judged.lower, loss(exact, TRAIN), rtol=2e-4)
        np.testing.assert_allclose(found.judged.upper, phi(bound), rtol=2e-3)
        assert np.max(found.judged.violation) <= 1e-6
        y, best = found.answer()
        np.testing.assert_allclose(y["u"] * y["v"], exact, atol=0.05)
        assert best.gap == 0.0 and len(found.judged.upper) == COUNT


def test_slopes_by_differences_are_those_of_the_closed_form(setting: Float64Problem, training: Retraining):
    at = training.at(setting.x)
    fields = trained_fields(training, setting.at(setting.x, at.answer()[0]), None, 0).numbers
    seen = fields["retrained"]
    step = 0.1 * 9.0
    changes = [phi(9.0 + step) - phi(9.0), phi(9.0 - step) - phi(9.0)]
    for move, change in zip(seen.moves, changes, strict=True):
        assert abs(move.change - change) <= 4 * move.error + 0.02 * abs(change)
    length = 0.5 * (60.0 - 1.0)
    assert seen.slope == pytest.approx(abs(changes[0] - changes[1]) / (2 * step) * length, rel=0.1)
    assert fields["reference"].multipliers.inequalities == pytest.approx(
        np.max(np.abs(TRAIN.mean(axis=0) - solved(9.0))), rel=0.02
    )


def test_auto_finds_the_best_bound_and_claims_no_proof():
    best = min(np.linspace(1.0, 60.0, 2000), key=phi)
    sol = hx.solve(problem(), 3.0, start(), seed=0)
    assert phi(float(sol.x)) <= phi(best) + 1e-3 * (phi(3.0) - phi(best))
    assert sol.status.name == "unproved"
    certificate = sol.certificate
    assert certificate.verdict() == "unknown" and certificate.max_violation <= 1e-4
    assert certificate.lower_gap == pytest.approx(0.0, abs=1e-4)
    assert "trained, not solved" in certificate.reasons()[-1] and "retrained" in str(certificate)


@pytest.mark.usefixtures("as_users_start")
def test_in_single_precision_no_array_of_double_precision_leaks():
    """JAX would warn of it, and warnings are errors here."""
    sol = hx.solve(problem(), np.float32(20.0), jax.tree.map(np.float32, start()), hx.Auto(seconds=8.0), throw=False)
    assert {leaf.dtype for leaf in jax.tree.leaves((sol.x, sol.y))} == {jnp.dtype("float32")}
    assert sol.certificate.verdict() != "yes"


def test_a_bound_that_is_too_tight_is_refuted():
    setting = Float64Problem.of(problem(), np.array(3.0), start(), 64, 0)
    trained = Retraining.of(setting, setting.y, 0, lambda: False, "").at(setting.x)
    certificate = hx.certify(problem(), 3.0, jax.tree.map(jnp.asarray, trained.answer()[0]))
    assert certificate.verdict() == "no"
    assert any("not a minimum above" in reason for reason in certificate.reasons())


def test_out_of_time_says_so():
    sol = hx.solve(problem(), 3.0, start(), seconds=0.5)
    assert sol.status.name == "seconds" and np.isfinite(sol.value)


def test_small_or_convex_or_exact_levels_are_solved():
    flat = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1.0) ** 2),
        lower=lambda x, y, xi: jnp.mean(jnp.sum((y[None] - xi) ** 2, axis=1)),
        constraints=lambda x, y: jnp.sum(y**2) - x,
        x_set=hx.Box(1.0, 9.0),
        xi=hx.Finite(np.ones((4, 250))),
    )
    assert is_trained(Float64Problem.of(flat, np.array(2.0), np.zeros(250), 64, 0), 0) is None


def test_trainings_of_an_earlier_run_are_not_made_again(training: Retraining, tmp_path):
    """The search goes the same way with trainings from the notes of a checkpoint."""
    prepared = prepare(problem(), np.array(9.0), start())

    def search(points, notes):
        met, auto = [], hx.Auto(route="large", seconds=600.0)
        session = Session(prepared, auto, 0, Call(notes=notes), Interrupt())

        def look(stage):
            met.append((session.replayed, stage.upper, float(stage.x), stage.y["u"].tolist(), stage.text))
            if len(met) == points:
                session.work.stop(Kind.STOPPED)

        RetrainedSearch(session, training, look, "trainings").run(training.setting.x, None)
        return met

    notes = notes_in(tmp_path, 60.0)
    search(2, notes)
    resumed, whole = search(3, notes), search(3, NOTHING_KEPT)
    assert [again for again, *_ in resumed] == [True, True, False]
    assert [rest for _, *rest in resumed] == [rest for _, *rest in whole]
