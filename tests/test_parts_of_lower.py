"""Unit tests of hierax._lower.cones, .conic, of the branches of .exact, and of lower solvers in hierax._methods."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_barrier import LINE
from test_branches import STARTS
from test_clock import waves
from test_conic import level

import hierax as hx
from hierax import Conic, InputError
from hierax._engine import programs
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import Programs, raveled
from hierax._engine.vectors import VectorProblem
from hierax._lower import cones as _cones
from hierax._lower import conic
from hierax._math.lower_level import level_at
from hierax._math.scatter import cover, unit_cube
from hierax._methods.augmented import accelerated
from hierax._methods.penalties import central_point
from hierax._problem import sets
from hierax.extend import INACCURATE, INFEASIBLE, SOLVED
from hierax.problems import toy
from hierax_lab.problems import bolib

TOY = toy(0.0).problem


@pytest.mark.parametrize("t", [1.0, 1e-2, 1e-6])
@pytest.mark.parametrize("start", [-4.0, 1.4999, 1.5, 7.0])  # inside, nearly outside, on the boundary, outside
def test_the_central_point_in_closed_form(t: float, start: float) -> None:
    """2 (y - 2x) + t/(x - y) = 0: with s = x - y > 0, 2 s^2 + 2 x s - t = 0."""
    found = central_point(LINE, jnp.asarray(1.5), jnp.asarray(start), None, jnp.asarray(t), jnp.asarray(1.0))
    slack = t / (1.5 + np.sqrt(1.5**2 + 2 * t))  # no cancellation
    assert int(found.status) == SOLVED
    np.testing.assert_allclose(1.5 - found.y, slack, rtol=1e-7)
    np.testing.assert_allclose(found.multipliers.inequalities, t / slack, rtol=1e-7)


def test_faces_of_y_are_rows_of_the_barrier() -> None:
    """min -y on [0, 2] and y <= 5: 1/(2 - y) - 1/y + 1/(5 - y) = 1/t."""
    problem = hx.Problem(
        lambda x, y, _: y, lambda x, y, _: -y + 0 * x, constraints=lambda x, y: y - 5.0, y_set=hx.Box(0.0, 2.0)
    )
    found = central_point(problem, jnp.asarray(0.0), jnp.asarray(2.0), None, jnp.asarray(0.1), jnp.asarray(1.0))
    y = float(found.y)
    assert 0 < y < 2
    np.testing.assert_allclose(1 / (2 - y) - 1 / y + 1 / (5 - y), 10.0, rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_accelerated_gradients_against_a_linear_system(seed: int) -> None:
    """A quadratic over a box, against its optimality conditions; L begins far too small."""
    rng = np.random.default_rng(seed)
    root, b = rng.normal(size=(8, 8)), rng.normal(size=8)
    a = root @ root.T + 0.05 * np.eye(8)
    end = accelerated(
        lambda v: 0.5 * v @ a @ v - b @ v,
        lambda v: jnp.clip(v, -0.3, 0.3),
        jnp.zeros(8),
        jnp.asarray(0.01),
        jnp.asarray(1e-10),
        100_000,
    )
    v = np.asarray(end.v)
    np.testing.assert_allclose(np.clip(v - (a @ v - b), -0.3, 0.3), v, atol=1e-9)
    assert int(end.steps) < 20_000


def test_a_solver_that_gives_up_is_asked_for_less(monkeypatch):
    asked = []

    def shy(form, parts, tol, max_steps, careful):
        asked.append((tol, careful))
        step, status, *others = real(form, parts, tol, max_steps, careful)
        return step, status if tol >= 0.99e-9 else INACCURATE, *others

    real = _cones._clarabel
    monkeypatch.setattr(_cones, "_clarabel", shy)
    found = jax.jit(lambda x, y: Conic(tol=1e-11).solve(TOY, x, y))(jnp.asarray(1.0), jnp.asarray(0.0))
    jax.block_until_ready(found)
    assert [careful for _, careful in asked] == [False, True, True, True]
    np.testing.assert_allclose([tol for tol, _ in asked], [1e-11, 1e-11, 1e-10, 1e-9])
    assert found.status == SOLVED


def test_which_rows_are_curved_is_seen_from_the_trace():
    def constraints(x, y):
        v = jnp.concatenate([y["a"], y["b"].ravel()])
        matrix = jnp.arange(12.0).reshape(2, 6)
        return {
            "affine": jax.jit(lambda w: matrix @ w - x)(v),
            "clever": jax.lax.scan(lambda c, w: (c + 2 * w, None), 0.0, v)[0],
            "ellipsoid": jnp.sum(v**2) - 1,
            "mixed": jnp.stack([v[0], v[1] * v[2]]),
        }

    problem = dataclasses.replace(
        TOY,
        constraints=constraints,
        lower=lambda x, y, xi: 0.0,
        y_set={"a": hx.Box(-1.0, jnp.inf), "b": hx.Ball(1.0)},
    )
    y = {"a": jnp.ones(2), "b": jnp.ones((2, 2))}

    @jax.jit  # also where x is traced
    def curved(x):
        flat = level_at(problem, x, y, None)
        names.append(flat.split(conic._curved_rows(flat).astype(float)))
        return x

    names = []
    curved(jnp.asarray(1.0))
    own, faces = names[0]
    assert {name: bool(np.all(leaf)) for name, leaf in own.inequalities.items()} == {
        "affine": False,
        "clever": False,
        "ellipsoid": True,
        "mixed": True,
    }
    assert not np.any(faces.inequalities[0]["lower"])
    assert faces.inequalities[1] == 1.0


def test_hessians_of_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(conic, "LARGEST", 10)
    problem = level(constraints=lambda y: y**2 - 1)
    with pytest.raises(InputError, match="3 x 3 x 3 entries, which is too many"):
        jax.jit(lambda y: Conic().solve(problem, None, y))(jnp.zeros(3))


def branches(problem, x, y, seed=0):
    points = np.asarray(cover(problem.y_set, y, unit_cube(y.size, STARTS - 1, seed)))
    programs = Programs(Float64Problem.of(problem, x, y, 64, seed))
    vectors = VectorProblem(programs, programs.raw, raveled(y), seed)
    vectors.bent = "not convex"  # whatever it is: steps take negative curvature into account
    multipliers = np.zeros((STARTS, programs.layout.rows))
    return lambda x: vectors.functions.branches(np.asarray(x, float), points, multipliers, convex=False)


@pytest.mark.parametrize("name", ["MitsosBarton2006Ex316", "Vogel2012", "PaulaviciusAdjiman2017a"])
def test_value_is_that_of_a_dense_grid(name):
    case = bolib.load(name)
    problem, (_, y) = case.problem(), case.x0y0()
    found = branches(problem, jnp.zeros(1), y)
    low, high = (np.clip(np.broadcast_to(side, 1), -10, 10)[0] for side in sets.bounds(problem.y_set, y))
    grid = np.linspace(low, high, 20001)
    for at in np.linspace(*(np.broadcast_to(side, 1)[0] for side in sets.bounds(problem.x_set, jnp.zeros(1))), 7):
        x = jnp.asarray([at])
        values = np.asarray(jax.vmap(lambda t, x=x: problem.lower(x, t[None], None))(grid))
        if case.rows is not None:
            rows = np.asarray(jax.vmap(lambda t, x=x: problem.constraints(x, t[None]))(grid)).max(axis=1)
            values = np.where(rows <= 0, values, np.inf)
        end = found(x)
        solved = end.value[end.status == SOLVED]
        assert solved.size > 0
        np.testing.assert_allclose(solved.min(), values.min(), atol=2e-2)  # the grid is what is coarse
        assert solved.min() <= values.min() + 1e-7


def test_slope_of_a_branch_is_that_of_its_value():
    case = bolib.load("Outrata1993Ex32")
    problem, (_, y) = case.problem(), case.x0y0()
    found = branches(problem, jnp.zeros(1), y)
    x, step = jnp.asarray([3.0]), 1e-5
    here, up, down = (found(x + t) for t in (0.0, step, -step))
    best = int(jnp.argmin(here.value))
    np.testing.assert_allclose(here.slope[best], (up.value[best] - down.value[best]) / (2 * step), rtol=1e-5)


@pytest.mark.slow
def test_no_interior_is_recognised() -> None:
    """y <= x and y >= x meet in one point, y <= x and y >= x + 1 nowhere; y <= x and y >= x - 1e-3 hardly."""
    for gap, status in ((0.0, INFEASIBLE), (-1.0, INFEASIBLE), (1e-3, SOLVED)):
        rows = lambda x, y, gap=gap: jnp.stack([y - x, x - gap - y])
        problem = hx.Problem(LINE.upper, LINE.lower, constraints=rows)
        found = central_point(problem, jnp.asarray(0.3), jnp.asarray(9.0), None, jnp.asarray(1e-3), jnp.asarray(1.0))
        assert int(found.status) == status


def test_loops_cut_into_pieces_give_the_same_bits(monkeypatch):
    whole = hx.solve(waves(), 0.5, 0.5)
    monkeypatch.setattr(programs, "CHUNK_SECONDS", -1.0)  # one Newton step at a time
    cut = hx.solve(waves(), 0.5, 0.5)
    assert (cut.x, cut.y, cut.status) == (whole.x, whole.y, whole.status)
    for name in whole.history:
        np.testing.assert_array_equal(cut.history[name], whole.history[name])
