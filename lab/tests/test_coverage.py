"""Unit tests of hierax._judge.sampling: how often its intervals hold, from answers that Newton's method finds in NumPy.

The problems are those of `hierax bench coverage`. Many repetitions are solved at once, so that 1,000 take seconds; the
slow test prints the table of `lab/results/coverage.txt`.
"""

import json
from typing import NamedTuple

import numpy as np
import pytest
from scipy import special

from hierax._judge.sampling import (
    REPLICATIONS,
    Estimates,
    Replication,
    gap_of,
    seldom_differ,
    standard_errors,
    tail_of,
    value_of,
)
from hierax_lab.bench import coverage

BLOCK = 250  # repetitions at once


def drawn(name, rng, *shape):
    """Noise of variance one, two entries for each sample."""
    if name == "gamma":
        return (rng.gamma(2.0, size=(*shape, 2)) - 2) / 2**0.5
    if name.startswith("t("):
        degrees = int(name[2])
        return (1 - 2 / degrees) ** 0.5 * rng.standard_t(degrees, size=(*shape, 2))
    z = rng.standard_normal((*shape, 2))
    if name == "correlated":
        z[..., 1] = 0.9 * z[..., 0] + 0.19**0.5 * z[..., 1]
    return z


class Averages(NamedTuple):
    """The problem of `coverage.cell` on samples (the last axis but one), many of them at once."""

    grows: bool
    zeta: np.ndarray
    xi: np.ndarray

    def size(self, x):
        return (0.5 + 0.5 * x**2, x) if self.grows else (1.0, 0.0)

    def phi(self, x):
        """F at the lower level's answer, its slope, and this answer."""
        (size, bend), noise = self.size(x), self.xi[..., 0].mean(-1)
        y = np.zeros_like(x)
        for _ in range(30):
            level = special.expit(y[..., None] + self.xi[..., 1])
            curvature = 1 + (level * (1 - level)).mean(-1)
            step = (y - x + size * noise + level.mean(-1)) / curvature
            y = y - step
            if np.abs(step).max() < 1e-10:
                break
        first, square, other = self.zeta[..., 0].mean(-1), (self.zeta[..., 0] ** 2).mean(-1), self.zeta[..., 1].mean(-1)
        value = (y - 1) ** 2 / 2 + (y - 1) * size * first + size**2 * square / 2 + 0.1 * x**2 + 0.3 * x * other
        slope = (1 - bend * noise) / curvature * (y - 1 + size * first)
        return value, slope + bend * ((y - 1) * first + size * square) + 0.2 * x + 0.3 * other, y

    def best(self, x):
        """The minimum near x."""
        for _ in range(12):
            slope, further = self.phi(x)[1], self.phi(x + 1e-4)[1]
            curvature = (further - slope) / 1e-4
            step = np.where(curvature > 0.02, slope / np.maximum(curvature, 0.02), 5 * slope)
            x = np.clip(x - np.clip(step, -0.5, 0.5), -3.0, 3.0)
            if np.abs(step).max() < 1e-7:
                break
        return x


def held(name, samples, count, seed=0):
    """Whether the intervals of every repetition hold, one list for each quantity."""
    case, rng, part = coverage.cell(name), np.random.default_rng(seed), samples // REPLICATIONS
    grows, found = name == "grows with x", {quantity: [] for quantity in coverage.QUANTITIES}
    for begin in range(0, count, BLOCK):
        many = min(BLOCK, count - begin)
        average = Averages(grows, drawn(name, rng, many, samples), drawn(name, rng, many, samples))
        x = average.best(np.full(many, case.x))
        y = average.phi(x)[2]
        fresh = [drawn(name, rng, many, part * REPLICATIONS) for _ in range(2)]
        pooled = Averages(grows, *fresh).phi(x)[0]
        parts = Averages(grows, *(z.reshape(many, REPLICATIONS, part, 2) for z in fresh))
        repeated = np.repeat(x[:, None], REPLICATIONS, 1)
        there, own = parts.phi(repeated)[0], parts.best(repeated)
        lowest, _, own_y = parts.phi(own)
        middle = parts.phi(np.repeat(own.mean(1)[:, None], REPLICATIONS, 1))[0]
        for i in range(many):
            rows = zip(there[i], lowest[i], own[i], own_y[i], strict=True)
            none = np.zeros(0)
            replications = [Replication(a, a, none, b, np.array([c]), np.array([d])) for a, b, c, d in rows]
            errors = standard_errors(replications, part / samples)
            loss, gap = gap_of(replications, list(middle[i]), part / samples, 1)
            values = value_of(replications, pooled[i], np.nan)
            said = Estimates(*values, *errors, loss, gap, 1.0, 0.0, 0.0, samples, part * REPLICATIONS, np.nan)
            truth, (low, high) = case.truth.phi(x[i : i + 1]), said.interval
            t = (high - low) / 2 / said.upper_se
            found["F"].append(low <= truth <= high)
            found["x"].append(abs(x[i] - case.x) <= t * said.x_se[0])
            found["y"].append(abs(y[i] - case.answer(case.x)) <= t * said.y_se[0])
            found["gap"].append(truth - case.value <= gap)
    return found


def fine(name, samples, count):
    """Whether every coverage is as allowed; they are printed, as text and as JSON."""
    sums = {quantity: int(sum(one)) for quantity, one in held(name, samples, count).items()}
    ranges = {quantity: coverage.interval(one, count) for quantity, one in sums.items()}
    texts = [f"{quantity} {sums[quantity] / count:.1%} ({a:.1%} to {b:.1%})" for quantity, (a, b) in ranges.items()]
    print(f"{name:13} {samples:5,}  {'  '.join(texts)}")
    print(json.dumps({"noise": name, "samples": samples, "repetitions": count, "held": sums}))
    return all(coverage.fine(quantity, samples, one, count) for quantity, one in sums.items())


def test_intervals_hold_as_often_as_stated():
    assert fine("gamma", 64, 250)


@pytest.mark.slow  # smaller: the cell above
@pytest.mark.parametrize("samples", coverage.SIZES.values())
@pytest.mark.parametrize("name", coverage.NOISES)
def test_intervals_of_every_noise_hold_as_often_as_stated(name, samples):
    assert fine(name, samples, 1000)


@pytest.mark.parametrize("degrees, heavy", [(3, True), (30, False)])
def test_squares_without_a_finite_variance_are_seen(degrees, heavy):
    """Of 50 sets of 16,384 squares of t(3), whose variance is infinite, nearly all; of nearly normal ones none."""
    rng = np.random.default_rng(0)
    seen = sum(tail_of(rng.standard_t(degrees, 16_384) ** 2) < 2 for _ in range(50))
    assert seen >= 40 if heavy else seen == 0


def test_what_most_replications_have_not_seen_leaves_no_standard_error():
    """Events of which a replication has .4 on average: 11 of 16 have none."""

    def found(counts):
        return [Replication(float(one), 0.0, np.zeros(0), 0.0, np.zeros(1), np.zeros(1)) for one in counts]

    assert "11 of 16" in seldom_differ(found([0] * 11 + [1, 1, 1, 1, 2]), 1e-9)
    assert seldom_differ(found([0] * 8 + [1, 1, 1, 1, 2, 2, 3, 4]), 1e-9) is None


def test_an_answer_that_may_have_seen_no_event_asks_for_more_samples():
    nothing = np.zeros(1)
    said = Estimates(0.0, 1.0, 0.0, nothing, nothing, 0.0, 0.0, 1.0, 0.0, 0.0, 1024, 1024, np.nan, 0.1)
    assert said.times(1e-4) == pytest.approx(-10.0 * np.log(0.05)) and "one of 1e+04 samples" in said.said
    assert said._replace(rare=300.0).times(1e-4) < 1 and "one of" not in said._replace(rare=np.nan).said
    endless = said._replace(upper_se=np.inf, tail=1.2)
    assert endless.interval == (-np.inf, np.inf) and "without a standard error" in endless.said
