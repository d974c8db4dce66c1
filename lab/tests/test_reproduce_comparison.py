"""What the experiments share: the legend of their figures, signs of life while they run, what a quick run judges."""

import importlib
import inspect
import io
import sys
import time
import typing

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

import hierax as hx
from hierax_lab.reproduce import comparison, workers
from hierax_lab.reproduce.experiment import Run
from hierax_lab.reproduce.verdict import Verdict

STORED = "stored by the released code"
EXPERIMENTS = ["toy_run", "svm_run", "decay_run", "rates_run", "toy_published", "svm_published", "decay_published"]


class Curve:
    steps = np.array([0.0, 10.0, 20.0])
    phi = np.array([2.0, 1.5, 1.2])

    def __init__(self, failed=False):
        self.failed = failed


def test_failed_statuses_are_those_of_the_library():
    statuses = [hx.Status(kind, "", 0) for kind in typing.get_type_hints(hx.Status)["kind"]]
    assert {status.name for status in statuses if status.failed} == comparison.FAILED


@pytest.fixture
def figures(monkeypatch):
    """The figures that are made, drawn as they would be written."""
    made = []

    def keep(figure, path):
        FigureCanvasAgg(figure).draw()
        made.append(figure)
        return path

    monkeypatch.setattr(comparison, "save_figure", keep)
    return made


def drawn(figures, tmp_path, curves, levels):
    rows, columns = [comparison.Axis("phi", "phi")] * 2, [comparison.Axis("steps", "steps")] * 2
    comparison.draw_panels(tmp_path / "a.png", "title", curves, rows, columns, {"phi": levels})
    (figure,) = figures
    (legend,) = figure.legends
    return figure, legend


def test_a_long_legend_stays_inside_of_its_figure(figures, tmp_path):
    methods = ("SALVF", "BLOCC", "LV-HBA", "GAM", "SALVF with nothing set")
    levels = {"plain linear SVM": 1.0} | {f"{name}, {STORED}": 1.0 + i / 10 for i, name in enumerate(methods[:4])}
    figure, legend = drawn(figures, tmp_path, {name: [Curve()] for name in methods}, levels)
    assert len(legend.get_texts()) == 10
    box, page = legend.get_window_extent(), figure.bbox
    assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0
    lowest = min(panel.get_tightbbox().y0 for panel in figure.axes)
    assert box.y1 <= lowest + 1  # and does not hide the panels


def test_a_short_legend_takes_one_line(figures, tmp_path):
    _, legend = drawn(figures, tmp_path, {"SALVF": [Curve()], "BLOCC": [Curve()]}, {})
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) == 1


def test_the_legend_says_which_runs_ended_early(figures, tmp_path):
    _, legend = drawn(figures, tmp_path, {"SALVF": [Curve()] * 2, "BLOCC": [Curve(True), Curve()]}, {})
    assert [text.get_text() for text in legend.get_texts()] == ["SALVF", "BLOCC (1 of 2 ended early)"]


def test_runs_that_ended_early_are_not_drawn(figures, tmp_path):
    dead = Curve(True)
    dead.phi = np.array([2.0, 1e3, 1e3])
    runs = {"SALVF": [Curve()] * 2, "BLOCC": [dead, Curve()], "GAM": [dead] * 2}
    figure, legend = drawn(figures, tmp_path, runs, {})
    names = ["SALVF", "BLOCC (1 of 2 ended early)", "GAM (2 of 2 ended early)"]
    assert [text.get_text() for text in legend.get_texts()] == names
    salvf, blocc, gam = figure.axes[0].get_lines()
    np.testing.assert_array_equal(salvf.get_ydata(), Curve.phi)
    np.testing.assert_array_equal(blocc.get_ydata(), Curve.phi)
    assert len(gam.get_ydata()) == 0


def test_a_task_that_takes_long_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr(workers, "TELL_SECONDS", 0.05)
    printed = io.StringIO()
    tasks = {("data", "GAM"): (time.sleep, (0.3,)), ("data", "SALVF"): (time.sleep, (0.3,))}
    workers.run_tasks(tasks, Console(file=printed), False)
    told = capsys.readouterr().err
    assert "0 of 2 tasks done, now data, GAM" in told and "1 of 2 tasks done, now data, SALVF" in told
    assert "data, SALVF (2 of 2)" in printed.getvalue()


def test_a_terminal_shows_what_is_under_way():
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=100)
    workers.run_tasks({("data", "GAM"): (time.sleep, (0.5,))}, console, False)
    assert "0 of 1 tasks done, now data, GAM" in printed.getvalue()


def test_a_quiet_console_hears_nothing(monkeypatch, capsys):
    monkeypatch.setattr(workers, "TELL_SECONDS", 0.05)
    workers.run_tasks({("data",): (time.sleep, (0.3,))}, Console(quiet=True, file=sys.stdout), False)
    assert capsys.readouterr() == ("", "")


def test_a_quick_run_judges_neither_statements_nor_targets(tmp_path):
    statements, targets = [Verdict("it is so", "yes: 3 of 3", ["3 of 3"])], [{"target": "<= 1", "met": True}]
    full, quick = (Run(tmp_path, choice, None, None, Console(file=io.StringIO())) for choice in (False, True))
    assert full.judged(statements) == statements and full.met(targets) == targets
    assert quick.judged(statements) == [Verdict("it is so", "not judged: a quick run", [])]
    assert quick.met(targets) == [{"target": "<= 1", "met": None}]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_leaves_it_to_its_run_whether_to_judge(name):
    source = inspect.getsource(importlib.import_module(f"hierax_lab.reproduce.{name}"))
    assert source.count("@experiment") == 1 and "run.judged(" in source
