"""Plain and Storm: the recursion against NumPy, its schedules, and what they refuse.

Unit tests of hierax._methods.salvf_settings.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import EXACT

import hierax as hx
from hierax._math.psi import Point, PsiGradient
from hierax._math.spectrum import Curvature
from hierax._methods.salvf_settings import filled
from hierax.extend import Rows, StepInfo


def of_the_docs() -> dict[str, type]:
    """SPIDER and PAGE of docs/guides/own-direction.md, from the page itself."""
    page = (Path(__file__).parents[1] / "docs" / "guides" / "own-direction.md").read_text()
    names: dict = {"__name__": "own_direction"}
    exec(compile(page.split("```python\n")[1].split("```")[0], "docs/guides/own-direction.md", "exec"), names)
    return {name: names[name] for name in ("Spider", "Page")}


DIRECTIONS = {
    "Plain": hx.Plain(),
    "Storm": hx.Storm(unit=jnp.asarray(1.0)),
    "Storm of u": hx.Storm(unit=jnp.asarray(1.0), z=True),
    "Storm with a sequence": hx.Storm(beta=lambda k: 1 / (1 + k)),
    "SPIDER": of_the_docs()["Spider"](period=3),
    "PAGE": of_the_docs()["Page"](probability=0.3),
}

MULTIPLIER = hx.Multipliers(None, None, None)


def at(x, y, z, nu):
    return Point(
        jnp.asarray(x), jnp.asarray(y), Rows(jnp.asarray(z), None), hx.Multipliers(jnp.asarray(nu), None, None)
    )


def batch_gradient(noise):
    """A gradient that depends on every part of the point, nu included, and on the batch."""

    def gradient(point):
        nu, z = point.nu.inequalities, point.z.inequalities
        return PsiGradient(
            3 * point.x + point.y + noise[0], 2 * point.y + nu + noise[1], Rows(z - nu, None), point.x, point.y
        )

    return gradient


PATH = [at(*row) for row in [(1.0, 0.5, 0.2, 0.0), (0.7, 0.1, 0.4, 1.0), (0.3, -0.2, 0.1, 3.0), (0.2, -0.4, 0.5, 7.0)]]
NOISE = np.random.default_rng(0).standard_normal((4, 2))
ALPHA = [0.02, 0.015, 0.012, 0.01]


def info(step, alpha):
    return StepInfo(jnp.asarray(step), jnp.asarray(alpha), jnp.asarray(5.0))


def storm_path(storm):
    memory, found, betas = storm.init(PATH[0]), [], []
    for point, noise, alpha in zip(PATH, NOISE, ALPHA, strict=True):
        d, memory = storm.direction(batch_gradient(noise), point, memory, info(len(found), alpha))
        found.append((float(d.x), float(d.y), float(d.z.inequalities)))
        betas.append(float(memory.beta))
    return np.array(found), np.array(betas)


def test_plain_is_the_gradient():
    gradient = batch_gradient(NOISE[0])
    d, memory = hx.Plain().direction(gradient, PATH[1], hx.Plain().init(PATH[1]), info(0, 0.1))
    assert memory is None
    assert d == gradient(PATH[1])


def test_storm_matches_numpy():
    found, betas = storm_path(hx.Storm(kappa=4.0, unit=jnp.asarray(0.5)))
    expected_betas = [min(1.0, 4.0 * 0.5 * 5.0 * a) for a in ALPHA]
    np.testing.assert_allclose(betas, expected_betas, rtol=1e-14)
    d, rows = np.zeros(2), []
    for k, noise in enumerate(NOISE):
        beta = 1.0 if k == 0 else expected_betas[k - 1]
        new, old = PATH[k], PATH[max(k - 1, 0)]

        def gradient(p, noise=noise):
            return np.array([3 * p.x + p.y + noise[0], 2 * p.y + p.nu.inequalities + noise[1]])

        d = gradient(new) + (1 - beta) * (d - gradient(old))
        rows.append([*d, new.z.inequalities - new.nu.inequalities])
    np.testing.assert_allclose(found, rows, rtol=1e-13)


def test_first_direction_is_the_plain_gradient():
    found, _ = storm_path(hx.Storm(unit=jnp.asarray(1.0)))
    first = batch_gradient(NOISE[0])(PATH[0])
    np.testing.assert_allclose(found[0, :2], [first.x, first.y], rtol=1e-15)


def test_old_gradient_uses_the_old_nu():
    seen = []

    def spy(point):
        seen.append(float(point.nu.inequalities))
        return batch_gradient(NOISE[0])(point)

    storm = hx.Storm(unit=jnp.asarray(1.0))
    memory = storm.init(PATH[0])
    for point in PATH[:3]:
        _, memory = storm.direction(spy, point, memory, info(0, 0.01))
    assert seen == [0.0, 0.0, 1.0, 0.0, 3.0, 1.0]


def directions_along(direction, noise, points=PATH):
    """d_0, ..., d_3 in a compiled loop, which wants the memory to keep its form; `noise` of every step."""

    def body(memory, at):
        step, point, shift = at
        return direction.direction(batch_gradient(shift), point, memory, info(step, 0.01))[::-1]

    stacked = jax.tree.map(lambda *a: jnp.stack(a), *points)
    return jax.lax.scan(body, direction.init(points[0]), (jnp.arange(len(points)), stacked, jnp.asarray(noise)))[1]


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_direction_begins_with_the_gradient(name):
    d = directions_along(DIRECTIONS[name], NOISE)
    first = batch_gradient(NOISE[0])(PATH[0])
    np.testing.assert_allclose([d.x[0], d.y[0], d.z.inequalities[0]], [first.x, first.y, first.z.inequalities])


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_direction_is_the_gradient_where_nothing_is_sampled(name):
    """Differences of one and the same function telescope; so do they where all steps share one batch."""
    d = directions_along(DIRECTIONS[name], np.tile(NOISE[:1], (4, 1)))
    for k, point in enumerate(PATH):
        expected = batch_gradient(NOISE[0])(point)
        np.testing.assert_allclose([d.x[k], d.y[k]], [expected.x, expected.y], rtol=1e-12)
        np.testing.assert_allclose(d.z.inequalities[k], expected.z.inequalities, rtol=1e-12)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_noise_that_comes_and_goes_stays_bounded_by_what_was_met(name):
    """At one fixed point every direction is a convex combination of the gradients met: no noise is made."""
    d = directions_along(DIRECTIONS[name], NOISE, [PATH[0]] * 4)
    met = 3 * PATH[0].x + PATH[0].y + NOISE[:, 0]
    for k in range(4):
        assert np.min(met[: k + 1]) - 1e-12 <= d.x[k] <= np.max(met[: k + 1]) + 1e-12


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_direction_is_mapped_over_starts(name):
    d = jax.vmap(lambda noise: directions_along(DIRECTIONS[name], noise).x)(jnp.stack([NOISE, -NOISE]))
    alone = [directions_along(DIRECTIONS[name], noise).x for noise in (NOISE, -NOISE)]
    np.testing.assert_allclose(d, alone, rtol=1e-12)


def test_spider_is_storm_with_a_sequence_of_zeros_and_ones():
    spider = directions_along(DIRECTIONS["SPIDER"], NOISE)
    storm = directions_along(hx.Storm(beta=lambda k: jnp.where(k % 3 == 0, 1.0, 0.0)), NOISE)
    np.testing.assert_allclose(spider.x, storm.x, rtol=1e-12)
    np.testing.assert_allclose(spider.y, storm.y, rtol=1e-12)


def test_printed_schedule_and_constant_beta():
    _, betas = storm_path(hx.Storm(schedule="paper", beta=jnp.asarray(1000.0)))
    np.testing.assert_allclose(betas, np.clip(1000.0 * np.square(ALPHA), 0, 1), rtol=1e-14)
    _, betas = storm_path(hx.Storm(beta=jnp.asarray(0.3)))
    np.testing.assert_allclose(betas, 0.3)


def test_beta_as_a_sequence():
    """beta_{k+1} is what step k leaves behind; an array holds its last entry from there on."""
    betas = [1.0, 0.9, 0.0, 0.4]
    np.testing.assert_allclose(storm_path(hx.Storm(beta=np.array(betas)))[1], [0.9, 0.0, 0.4, 0.4])
    found, of_k = storm_path(hx.Storm(beta=lambda k: 1 / (1 + k)))
    np.testing.assert_allclose(of_k, [1 / 2, 1 / 3, 1 / 4, 1 / 5], rtol=1e-6)
    plain = [batch_gradient(noise)(point) for point, noise in zip(PATH, NOISE, strict=True)]
    np.testing.assert_array_equal(storm_path(hx.Storm(beta=np.ones(4)))[0][:, 0], [float(g.x) for g in plain])
    assert not np.allclose(found[:, 0], [float(g.x) for g in plain])


def test_beta_of_the_printed_schedule_starts_at_one():
    ones = Curvature(*[jnp.asarray(1.0)] * len(Curvature._fields))
    method = hx.SALVF_VR(direction=hx.Storm(schedule="paper"), steps=hx.Steps(y=0.05), batch_zeta=1, batch_xi=1)
    storm = filled(method, ones, hx.Multipliers(None, None, None), jnp.ones(()), 2.0, jnp.dtype(float)).direction
    np.testing.assert_allclose(storm.next_beta(info(0, 0.05)), 1.0, rtol=1e-12)


def test_printed_schedule_warns():
    method = hx.SALVF_VR(direction=hx.Storm(schedule="paper"))
    with pytest.warns(hx.HieraxWarning, match="unstable even without noise"):
        method.check(EXACT.problem)
    with pytest.warns(hx.HieraxWarning, match="unstable even without noise"):
        hx.solve(EXACT.problem, 1.0, 1.0, method, max_steps=1)
    hx.SALVF_VR().check(EXACT.problem)  # the default schedule does not (warnings are errors here)


def test_salvf_vr_is_salvf_with_storm():
    assert hx.SALVF_VR(c1=3.0) == hx.SALVF(c1=3.0, direction=hx.Storm())


def test_optax_hides_alpha_from_storm():
    adam = hx.Steps(x=0.1, y=optax.adam(0.1))
    with pytest.raises(hx.InputError, match=r"Give a constant, hx\.Storm"):
        hx.SALVF_VR(steps=adam)
    with pytest.raises(hx.InputError, match="alpha_k is hidden"):
        hx.SALVF(steps=adam, direction=hx.Storm(schedule="paper", beta=1.0))
    allowed = hx.SALVF(steps=adam, direction=hx.Storm(beta=0.1))
    assert dataclasses.replace(allowed, c1=1.0).direction.beta == 0.1
    hx.SALVF_VR(steps=hx.Steps(x=optax.adam(0.1), y=0.1))  # alpha_k is the schedule of y
