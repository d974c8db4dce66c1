"""Unit tests of hierax._run.answers and hierax._run.prepare."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._base.text import arrays_by_path, tree_as_json
from hierax._run import answers
from hierax._run.answers import verify
from hierax._run.prepare import fingerprint


def stated(slope=2.0, matrix=((1.0, 0.0), (0.0, 1.0)), high=1.0, rows=((1.0,), (2.0,)), bent=False):
    def lower(x, y, xi):
        curve = jnp.sum(jnp.asarray(matrix) @ y * y)
        return curve - slope * x * jnp.sum(y) + jnp.mean(xi) * jnp.sum(y) + (jnp.sum(y**4) if bent else 0.0)

    return hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - x) ** 2),
        lower=lower,
        x_set=hx.Box(-1.0, high),
        xi=hx.Finite(np.asarray(rows)),
    )


def test_the_hash_follows_what_is_computed_and_nothing_else():
    y = np.zeros(2)
    one = fingerprint(stated(), 0.0, y)
    assert one.sha256 is not None and len(one.sha256) == 64
    assert fingerprint(stated(), 3.0, y + 1.0) == one  # values of the variables do not matter
    others = [
        fingerprint(stated(slope=3.0), 0.0, y),
        fingerprint(stated(matrix=((1.0, 0.0), (0.0, 2.0))), 0.0, y),
        fingerprint(stated(high=2.0), 0.0, y),
        fingerprint(stated(rows=((1.0,), (3.0,))), 0.0, y),
        fingerprint(stated(bent=True), 0.0, y),
        fingerprint(stated(), np.zeros(1), y),
    ]
    assert len({one, *others}) == 7
    with jax.enable_x64(False):
        assert fingerprint(stated(), 0.0, y.astype(np.float32)).sha256 is not None


def test_no_hash_where_no_text_tells():
    called = hx.Problem(
        upper=lambda x, y, zeta: jax.pure_callback(lambda a: np.sin(a), jax.ShapeDtypeStruct((), jnp.float64), x) + y,
        lower=lambda x, y, xi: (y - x) ** 2,
    )
    assert "upper calls back" in fingerprint(called, 0.0, 0.0).why
    stream = hx.Problem(upper=lambda x, y, zeta: x, lower=lambda x, y, xi: y**2, xi=hx.Stream([np.zeros(2)]))
    assert "xi comes from a stream" in fingerprint(stream, 0.0, 0.0).why


def test_trees_go_through_files(tmp_path):
    """An Equinox module as y: its arrays by path, its function from the start."""
    layer = eqx.nn.MLP(1, 1, 2, 1, key=jax.random.key(0))
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(y(jnp.ones(1)) - x["goal"]) ** 2,
        lower=lambda x, y, xi: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(eqx.filter(y, eqx.is_array))),
        equalities=lambda x, y: {"sum": x["goal"] - x["other"][0]},
    )
    content = {"x": {"goal": 0.5, "other": [0.5, 0.5]}, "y": tree_as_json(layer)}
    assert set(content["y"]) == {f"layers.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")}
    content["multipliers"] = {"equalities": {"sum": 0.25}}
    (tmp_path / "given.json").write_text(json.dumps(content))
    x0 = {"goal": np.asarray(0.0), "other": np.zeros(2)}
    given = answers.read(tmp_path / "given.json", problem, x0, layer)
    assert given.multipliers.equalities == {"sum": 0.25} and given.multipliers.inequalities is None
    np.testing.assert_array_equal(given.y.layers[0].weight, layer.layers[0].weight)
    assert np.isfinite(problem.upper(given.x, given.y, None))
    with pytest.raises(hx.InputError, match="same path"):
        arrays_by_path({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}})


def test_claims_about_sampled_values_get_their_standard_error():
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + x**2 + jnp.mean(zeta) * x,
        lower=lambda x, y, xi: (y - x) ** 2,
        zeta=hx.Sampler(lambda key, n: jax.random.normal(key, (n,))),
    )
    at = {"x": np.asarray(0.5), "y": np.asarray(0.5), "multipliers": None, "problem_hash": None, "jax": None}
    near, far = (verify(problem, answers.Answer(claimed=F, sha256="", **at)) for F in (0.51, 0.6))
    assert not near.objections  # 0.5 +- 0.008
    assert far.objections and far.verdict == "no"
