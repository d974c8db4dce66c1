"""`hierax bench cold`: the scripts state the problems they say, and a call is measured in a process of its own."""

import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import hierax as hx
from hierax_lab.bench import cold
from hierax_lab.bench.cold_calls import CALLS, cold_data
from hierax_lab.bench.medium_data import ridge
from hierax_lab.bench.medium_planted import noisy_quadratic, planted_qp

pytestmark = pytest.mark.slow  # problems of the benchmarks, solvers outside hierax, processes of their own


class Stated(Exception):
    """Carries the problem that a script was about to solve."""


def stated(name, **replaced):
    """The arguments of the script's call of `solve`."""

    def solve(*arguments, **options):
        raise Stated(*arguments)

    public = types.SimpleNamespace(**{part: getattr(hx, part) for part in hx.__all__} | {"solve": solve})
    names = {"hx": public, "jax": jax, "jnp": jnp, "np": np, "data": cold_data(name)} | replaced
    with pytest.raises(Stated) as raised:
        exec(CALLS[name].script, names)
    return raised.value.args


@pytest.mark.parametrize("name", CALLS)
def test_scripts_state_a_problem(name):
    problem, x, y, *method = stated(name)
    assert isinstance(problem, hx.Problem) and np.size(x) >= 1 and y is not None
    assert bool(method) == ("nothing set" not in name and "certificate" not in name)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("planted QP 5+100, nothing set", partial(planted_qp, 5, 100, 50)),
        ("noisy quadratic 50+50, nothing set", noisy_quadratic),
        ("ridge of 442 rows, nothing set", ridge),
    ],
)
def test_scripts_state_the_problems_of_bench_medium(name, build):
    (problem, x, y), case = stated(name), build()
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(part + 0.1 * rng.uniform(size=part.shape)) for part in (x, y))
    batches = [None, None]
    if "noisy" in name:
        batches = [source.draw(jax.random.key(0), 5) for source in (problem.zeta, problem.xi)]
    if "ridge" in name:
        batches = [source.full() for source in (problem.zeta, problem.xi)]
    for function, batch in zip(("upper", "lower"), batches, strict=True):
        values = [float(getattr(one, function)(x, y, batch)) for one in (problem, case.problem)]
        assert values[0] == pytest.approx(values[1], rel=1e-12)
    np.testing.assert_allclose(problem.constraints(x, y), case.problem.constraints(x, y), rtol=1e-12, atol=1e-14)


def test_a_call_is_measured_in_a_process_of_its_own():
    row = cold.measure("README example, nothing set")
    assert row["status"] == "converged" and 0 < row["imported"] < row["seconds"] < 60


def test_a_call_that_fails_says_so(monkeypatch):
    monkeypatch.setitem(
        cold.CALLS, "README example, nothing set", CALLS["toy, SALVF"]._replace(script="import nowhere")
    )
    with pytest.raises(RuntimeError, match="ended with 1: ModuleNotFoundError: No module named 'nowhere'"):
        cold.measure("README example, nothing set")


def test_targets_and_the_sum(monkeypatch, tmp_path, capsys):
    def measured(seconds):
        return lambda name: {"call": name, "seconds": seconds, "imported": 0.1, "status": "converged", "then": 9.0}

    monkeypatch.setattr(cold, "measure", measured(1.0))
    assert cold.run(Console(width=140), list(CALLS), tmp_path)
    monkeypatch.setattr(cold, "measure", measured(5.0))
    assert not cold.run(Console(width=140), list(CALLS), tmp_path)
    assert f"<= {4.5 * len(CALLS):.1f}" in capsys.readouterr().out
    assert (tmp_path / "results.json").is_file()
