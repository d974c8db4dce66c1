"""Tasks of an experiment: Ctrl-C keeps what is done, and ends the processes under way."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from rich.console import Console

from hierax.extend import interruptible
from hierax_lab.reproduce import toy_run
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


def test_the_toy_experiment_keeps_its_rows(monkeypatch):
    def measure(row, starts, steps):
        if row == "second":
            press()
        return row

    monkeypatch.setattr(toy_run, "measure", measure)
    with interruptible() as interrupt:
        assert toy_run._measured(["first", "second", "third"], np.zeros((1, 2)), 1, interrupt) == ["first"]
