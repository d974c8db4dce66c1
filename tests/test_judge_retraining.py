"""Trainings on the problem of test_retraining.py: unit tests of hierax._judge.retraining and
hierax._auto.large_route.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from test_retraining import TRAIN, loss, phi, problem, solved, start

import hierax as hx
from hierax._auto.large_route import trained_stages
from hierax._auto.session import Session
from hierax._base.interrupt import Interrupt
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.retraining import COUNT, Retraining, is_trained, trained_fields
from hierax._run.call import Call
from hierax._run.checkpoints import NOTHING_KEPT, notes_in
from hierax._run.prepare import prepare
from hierax._run.solution import Kind


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
    fields = trained_fields(training, setting.at(setting.x, at.answer()[0]), None, 0, {})
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

        trained_stages(session, training, look, "trainings", training.setting.x, None)
        return met

    notes = notes_in(tmp_path, 60.0)
    search(2, notes)
    resumed, whole = search(3, notes), search(3, NOTHING_KEPT)
    assert [again for again, *_ in resumed] == [True, True, False]
    assert [rest for _, *rest in resumed] == [rest for _, *rest in whole]
