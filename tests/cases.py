"""Problems and methods that several test modules share, so that their compiled programs are shared too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax.extend import Rows
from hierax.problems import toy

TOY = toy(0.1)
EXACT = toy(0.0)
METHOD = hx.SALVF(c1=5.0, c2=100.0)
VR = hx.SALVF_VR(c1=5.0, c2=100.0)


def same(a: Any, b: Any) -> None:
    """Every leaf equal, bit for bit (random keys by their data)."""
    first, second = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(first) == len(second)
    for one, two in zip(first, second, strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def contains(sets: Any, tree: Any, tol: float = 0.0) -> bool:
    """Whether every part of a tree lies in its set, up to `tol` in every entry."""
    inside = jax.tree.map(
        lambda one, part: bool(one.contains(part, tol)), sets, tree, is_leaf=lambda a: isinstance(a, hx.AbstractSet)
    )
    return all(jax.tree.leaves(inside))


def close(a: Any, b: Any, rtol: float = 1e-10, atol: float = 1e-10) -> None:
    """Every leaf equal up to a tolerance."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, two in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=rtol, atol=atol)


def random_data(seed: int, nx: int, ny: int, p: int, q: int, level: float) -> dict[str, Any]:
    """Arrays of a random smooth problem; `level` < 0 leaves the constraints inactive, > 0 makes them active."""
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal
    factor = draw((ny + 2, ny + 2))
    return {
        "hessian": factor @ factor.T + np.eye(ny + 2),
        "mixed": draw((ny + 2, nx + 1)),
        "linear": draw(ny + 2),
        "rows": draw((p, ny + 2)),
        "rows_x": draw((p, nx + 1)),
        "level": level + 0.3 * draw(p),
        "ball": np.asarray(level),
        "equal": draw((q, ny + 2)),
        "equal_x": draw((q, nx + 1)),
        "above": draw((2, ny + 2)),
        "above_x": draw((2, nx + 1)),
        "x": {"a": draw(nx), "b": np.asarray(draw())},
        "y": [draw(ny), draw((2, 1))],
        "w": [draw(ny), draw((2, 1))],
        "z": Rows({"rows": rng.uniform(0, 2, p), "ball": rng.uniform(0, 2)}, (draw(q),)),
        "lam": Rows({"rows": rng.uniform(0, 2, p), "ball": rng.uniform(0, 2)}, (draw(q),)),
        "nu": hx.Multipliers(
            {"rows": rng.uniform(0, 2, p), "ball": rng.uniform(0, 2)}, (draw(q),), rng.uniform(0, 2, 2)
        ),
        "zeta": draw((3, nx + ny + 3)),
        "xi": draw((4, nx + ny + 3)),
    }


def flat(x: dict[str, Any], y: list[Any]) -> tuple[jax.Array, jax.Array]:
    """x and y as vectors."""
    return jnp.concatenate([x["a"], x["b"][None]]), jnp.concatenate([y[0], y[1].ravel()])


def random_problem(data: dict[str, Any], **sets: Any) -> hx.Problem:
    """A smooth problem on trees: nonlinear in every argument, with inequalities, equalities and upper constraints."""

    def upper(x: Any, y: Any, zeta: Any) -> jax.Array:
        u, v = flat(x, y)
        return jnp.sum(jnp.sin(v + data["mixed"] @ u)) + jnp.mean(zeta, 0) @ jnp.concatenate([u, v])

    def lower(x: Any, y: Any, xi: Any) -> jax.Array:
        u, v = flat(x, y)
        value = 0.5 * v @ data["hessian"] @ v + v @ (data["mixed"] @ u + data["linear"]) + 0.05 * jnp.sum(v**4)
        return value + jnp.mean(xi, 0) @ jnp.concatenate([u, v])

    def constraints(x: Any, y: Any) -> dict[str, jax.Array]:
        u, v = flat(x, y)
        rows = data["rows"] @ v + data["rows_x"] @ u**2 + data["level"]
        return {"rows": rows, "ball": 0.5 * jnp.sum((v - u[0]) ** 2) / v.size + data["ball"]}

    def equalities(x: Any, y: Any) -> tuple[jax.Array]:
        u, v = flat(x, y)
        return (data["equal"] @ v + jnp.sin(data["equal_x"] @ u),)

    def above(x: Any, y: Any) -> jax.Array:
        u, v = flat(x, y)
        return data["above"] @ v**2 + data["above_x"] @ u

    return hx.Problem(upper, lower, constraints, equalities, above, **sets)
