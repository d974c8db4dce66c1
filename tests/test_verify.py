"""`hierax verify`: answers as files, what it says of them, exit codes; its parts are in test_answers.py."""

import hashlib
import json

import jax
import pytest
from typer.testing import CliRunner

from hierax.cli import app

STATED = """
import hierax as hx

problem = hx.Problem(
    upper=lambda x, y, zeta: (y["a"] - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y["a"] - 2.0 * x) ** 2,
    constraints=lambda x, y: y["a"] - x,
)
x0, y0 = 0.5, {"a": 0.5}
"""
BEST = 1 / 1.1  # x = y, multiplier 2 / 1.1, F = 1 / 11


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    (tmp_path / "model.py").write_text(STATED)

    def call(*args):
        return CliRunner().invoke(app, list(args))

    return call


@pytest.fixture
def judged(cli, tmp_path):
    """Verify an answer with these fields."""

    def call(**content):
        (tmp_path / "given.json").write_text(json.dumps(content))
        return cli("verify", "model.py:problem", "given.json")

    return call


def test_what_solve_writes_is_verified(cli, tmp_path):
    assert cli("solve", "model.py:problem", "--out", "run").exit_code == 0
    written = json.loads((tmp_path / "run" / "answer.json").read_text())
    assert written["format"] == "hierax answer 1" and written["problem"]["jax"] == jax.__version__
    assert written["x"] == pytest.approx(BEST, abs=1e-5) and written["y"]["a"] == pytest.approx(BEST, abs=1e-5)
    assert written["multipliers"] == {"inequalities": pytest.approx(2 / 1.1, rel=1e-4), "equalities": {}, "upper": {}}
    result = cli("verify", "model.py:problem", "run/answer.json")
    assert result.exit_code == 0, result.output
    text = json.dumps(written, sort_keys=True, separators=(",", ":"))
    answer_hash = hashlib.sha256(text.encode()).hexdigest()
    assert "Certificate at x = 0.909" in result.stdout and "verdict  yes" in result.stdout
    assert written["problem"]["sha256"] in result.stdout and answer_hash in result.stdout
    other = STATED.replace("0.1 * x", "0.2 * x")
    (tmp_path / "model.py").write_text(other)
    result = cli("verify", "model.py:problem", "run/answer.json")
    assert result.exit_code == 1 and "hash of another problem" in result.stdout
    written["problem"]["jax"] = "0.0.1"
    (tmp_path / "run" / "answer.json").write_text(json.dumps(written))
    assert "not comparable" in cli("verify", "model.py:problem", "run/answer.json").stdout


def test_exit_codes_of_points(judged):
    fine = judged(x=BEST, y={"a": BEST}, F=1 / 11)
    assert fine.exit_code == 0 and "F        0.09090909091 (claimed: 0.09090909091)" in fine.stdout
    assert judged(x=BEST, y={"a": BEST}, multipliers={"inequalities": 2 / 1.1}).exit_code == 0
    # The certificate finds multipliers of its own: wrong ones do not make a right point wrong.
    assert judged(x=BEST, y={"a": BEST}, multipliers={"inequalities": 0.5}).exit_code == 0
    boast = judged(x=BEST, y={"a": BEST}, F=0.05)
    assert boast.exit_code == 1 and "not 0.05 as claimed" in boast.stdout
    assert judged(x=0.5, y={"a": 0.5}).exit_code == 1  # optimal below, not stationary above
    infeasible = judged(x=0.5, y={"a": 0.9})
    assert infeasible.exit_code == 1 and "infeasible: constraints is violated by 0.4" in infeasible.stdout


def test_what_is_not_decided_has_its_own_code(cli, tmp_path):
    """F is a mean of few samples, whose noise hides the slope."""
    (tmp_path / "noisy.py").write_text(
        """
import jax, jax.numpy as jnp
import hierax as hx

problem = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 100.0 * jnp.mean(zeta) * x,
    lower=lambda x, y, xi: (y - x) ** 2,
    zeta=hx.Sampler(lambda key, n: jax.random.normal(key, (n,))),
)
x0 = y0 = 0.5
"""
    )
    (tmp_path / "given.json").write_text('{"x": 1.0, "y": 1.0}')
    result = cli("verify", "noisy.py:problem", "given.json")
    assert result.exit_code == 2, result.output
    assert "verdict  unknown" in result.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ('{"x": NaN, "y": {"a": 0.5}}', "NaN is no JSON"),
        ("[1, 2]", "needs an object with x and y"),
        ('{"x": 0.5}', "needs an object with x and y"),
        ('{"x": 0.5, "y": {"a": 0.5}, "z": 1}', "unknown field 'z'"),
        ('{"x": 0.5, "y": {"a": 0.5}, "format": "other"}', "unknown format 'other'"),
        ('{"x": "0.5", "y": {"a": 0.5}}', "x: needs numbers"),
        ('{"x": true, "y": {"a": 0.5}}', "x: needs numbers"),
        ('{"x": [0.5], "y": {"a": 0.5}}', "x: has shape (1,), the problem's has ()"),
        ('{"x": [[1], [1, 2]], "y": {"a": 0.5}}', "x: is no array"),
        ('{"x": 1e999, "y": {"a": 0.5}}', "x: has entries that are not finite"),
        ('{"x": 0.5, "y": 0.5}', "y: needs an object"),
        ('{"x": 0.5, "y": {"b": 0.5}}', "y: has no 'a'"),
        ('{"x": 0.5, "y": {"a": 0.5}, "multipliers": {"lower": 1}}', "multipliers: does not know 'lower'"),
        ('{"x": 0.5, "y": {"a": 0.5}, "multipliers": {}}', "multipliers.inequalities: needs numbers"),
        ('{"x": 0.5, "y": {"a": 0.5}, "problem": {"sha256": 3}}', "problem.sha256: needs a text"),
    ],
)
def test_bad_answers_are_one_line(cli, tmp_path, text, says):
    (tmp_path / "given.json").write_text(text)
    result = cli("verify", "model.py:problem", "given.json")
    assert result.exit_code == 3 and says in result.stderr and result.stderr.count("\n") == 1


def test_missing_files_and_names(cli, tmp_path):
    (tmp_path / "given.json").write_text('{"x": 0.5, "y": {"a": 0.5}}')
    for target, answer in [
        ("model.py", "given.json"),
        ("model.py:none", "given.json"),
        ("model.py:problem", "no.json"),
    ]:
        assert cli("verify", target, answer).exit_code == 3
