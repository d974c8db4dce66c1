"""Problems of MacMPEC as leader and follower: made of arrays as the files have them, and the files where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from hierax_lab.bench import medium_report
from hierax_lab.bench.macmpec import NAMES, Network, macmpec
from hierax_lab.bench.medium_case import Functions
from hierax_lab.bench.medium_judge import Judge
from hierax_lab.bench.medium_problems import missing

FOLDER = Path(os.environ.get("HIERAX_DATA", ".")) / "macmpec"
HERE = (FOLDER / "siouxfls.npz").is_file()


def two_links():
    """Two links from one place to another; the first has a toll. Flow 1 costs 1 + 2 f^4 + x, flow 2 costs 2 + f^4."""
    arrays = {"A": np.array([1.0, 2.0]), "B": np.array([2.0, 1.0]), "K": np.ones(2), "tolled": np.array([0])}
    arrays |= {"arc_of": np.arange(2), "E_row": np.zeros(2, int), "E_col": np.arange(2), "E_val": np.ones(2)}
    box = {"x_lo": np.zeros(1), "x_hi": np.array([2.0]), "x0": np.array([0.5]), "y0": np.zeros(2)}
    known = {"demand": np.array([2.0]), "revenue": 1.0, "toll_unit": 1.0, "best": -1.0, "family": "toll"}
    return arrays | box | known


def test_flows_outside_hierax():
    network, x = Network(two_links()), np.array([0.5])
    f, g = network.flows(x)
    assert f + g == pytest.approx(2.0) and 1 + 2 * f**4 + 0.5 == pytest.approx(2 + g**4, rel=1e-6)
    value, slope = network.phi(x)
    assert value == pytest.approx(-0.5 * f)
    difference = (network.phi(x + 1e-4)[0] - network.phi(x - 1e-4)[0]) / 2e-4
    assert slope[0] == pytest.approx(difference, rel=1e-5)


def test_a_file_becomes_a_problem(tmp_path):
    np.savez(tmp_path / "two.npz", **two_links())
    case = macmpec("two", tmp_path)
    assert case.least_share == 0.99 and case.published and case.best == -1.0
    assert case.phi(np.array([0.5]))[0] == pytest.approx(
        float(case.problem.upper(case.x0, case.lower_solution(case.x0), None)), rel=1e-5
    )


def test_missing_files_are_named(tmp_path):
    assert "siouxfls.npz is not in the folder macmpec" in missing("siouxfls", tmp_path)
    assert len(NAMES) == 11


def row(**changes):
    kept = {"not_run": "", "status": "converged", "violation": 0.0, "gap": 0.0, "gap_allowed": 1e-4, "sampled": False}
    return kept | {"published": True, "least_share": 0.99, "start": 2.0, "upper": 1.005} | changes


def test_a_share_is_asked_where_the_start_is_feasible():
    assert medium_report.solved(row(), 1.0)
    assert not medium_report.solved(row(upper=1.02), 1.0) and not medium_report.solved(row(violation=2e-5), 1.0)
    assert medium_report.solved(row(start=None, upper=1.0001), 1.0)
    assert not medium_report.solved(row(start=None, upper=1.005), 1.0)
    assert medium_report.solved(row(least_share=None, upper=1.001), 1.0)


@pytest.mark.slow  # data that are not part of the repository
@pytest.mark.skipif(not HERE, reason="HIERAX_DATA/macmpec is not there")
@pytest.mark.parametrize(
    ("name", "start"),
    [("siouxfls", -208.24824), ("pack-comp1-8", 1.0), ("pack-rig1-8", 1.0), ("incid-set1-8", 0.0826550),
     ("incid-set2-8", 0.0147517), ("portfl-i-1", 1.38572e-4), ("liswet1-050", None), ("design-cent-1", None)],
)  # fmt: skip
def test_values_at_the_start(name, start):
    functions = Functions(macmpec(name, FOLDER))
    found = Judge(functions).start()
    assert found is None if start is None else found == pytest.approx(start, rel=1e-5)
