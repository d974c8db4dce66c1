"""Tasks of an experiment: Ctrl-C keeps what is done, and ends the processes under way."""

import io
import json
import os
import signal
import threading
import time

import pytest
from rich.console import Console

from hierax import SALVF
from hierax_lab.reproduce import toy_rows, toy_run
from hierax_lab.reproduce.workers import run_tasks


def press():
    os.kill(os.getpid(), signal.SIGINT)


def _value(number):
    if number == 2:
        press()
    return number


def test_experiments_keep_what_is_done():
    kept = []
    tasks = {(str(i),): (_value, (i,)) for i in range(4)}
    with pytest.raises(KeyboardInterrupt):
        run_tasks(tasks, Console(quiet=True), False, lambda found: kept.append(dict(found)))
    assert kept[-1] == {("0",): 0, ("1",): 1}  # the third ended before its time, for all one knows


def test_experiments_in_processes_end_at_once():
    threading.Timer(3.0, press).start()
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run_tasks({(str(i),): (time.sleep, (60,)) for i in range(2)}, Console(quiet=True), True)
    assert time.perf_counter() - begin < 30.0


def test_the_toy_experiment_keeps_its_rows(monkeypatch, tmp_path):
    rows = [toy_rows.Row(key, "group", key, SALVF()) for key in ("first", "second", "third")]

    def measure(row, starts, steps):
        if row.key == "second":
            press()
        return toy_rows.Result(row, starts[:, 0], starts[:, 1], {"mean_gap": 0.0})

    monkeypatch.setattr(toy_run, "all_rows", lambda steps: rows)
    monkeypatch.setattr(toy_run, "measure", measure)
    printed = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        toy_run.run(tmp_path, quick=True, console=Console(file=printed, width=200))
    assert list(json.loads((tmp_path / "metrics.json").read_text())["rows"]) == ["first"]
    assert "Interrupted: 1 of 3" in printed.getvalue() and "metrics.json, points.npz" in printed.getvalue()
