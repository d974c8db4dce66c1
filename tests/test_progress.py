"""A run is not silent: lines on stderr where that is no terminal, lines of the logger, in the user's units.

Unit tests of hierax._run.call: its lines come sooner here.
"""

import logging
import re
import threading
import time

import numpy as np
import pytest

import hierax as hx
from hierax._run import call
from hierax._run.call import News, reporting

# Units of F that nobody could take for those of the search.
PROBLEM = hx.Problem(
    upper=lambda x, y, zeta: 5000.0 + 1e4 * ((y - 1.0) ** 2 + 0.1 * x**2),
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
)
BEST = 5000.0 + 1e4 * 0.1 / 1.1


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(call, "LINE_SECONDS", 0.02)


def numbers(line, name):
    return [float(number) for number in re.findall(rf"{name} (\S+?)(?:,|$)", line)]


def test_steps_are_told_on_stderr_where_it_is_no_terminal(often, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    slow = lambda info: time.sleep(0.05)
    sol = hx.solve(PROBLEM, 0.5, 0.5, hx.SALVF(), max_steps=40, record_every=10, callback=slow, progress=True)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and all(re.match(r"hierax: \d+ s, ", line) for line in lines)
    assert "preparing and compiling" in lines[0]
    assert re.search(r"(10|20|30|40) of 40 steps, upper \S+, violation", lines[-1])
    assert numbers(lines[-1], "upper")[-1] > 1000.0 and sol.value > BEST
    hx.solve(PROBLEM, 0.5, 0.5, hx.SALVF(), max_steps=40, record_every=10, callback=slow)
    fewer = capsys.readouterr().err.splitlines()  # half as often where nothing was said about it
    assert 0 < len(fewer) < len(lines) and "of 40 steps, upper" in fewer[-1]
    hx.solve(PROBLEM, 0.5, 0.5, hx.SALVF(), max_steps=40, record_every=10, callback=slow, progress=False)
    assert capsys.readouterr() == ("", "")


def test_what_is_being_compiled_is_told(often, capsys):
    def upper(x, y, zeta):
        time.sleep(0.1)  # of tracing
        return (y - 1.0) ** 2 + 0.1 * x**2

    slow = hx.Problem(upper, PROBLEM.lower, PROBLEM.constraints)
    hx.solve(slow, 0.5, 0.5, hx.SALVF(), max_steps=2, progress=True)
    assert re.search(r"preparing and compiling, compiling the (start|steps), \d+ s", capsys.readouterr().err)


def test_auto_is_told_to_the_logger_in_the_users_units(often, caplog):
    with caplog.at_level(logging.INFO, "hierax"):
        sol = hx.solve(PROBLEM, 0.5, 0.5, callback=lambda info: time.sleep(0.05), progress=False)
    told_of = [record.getMessage() for record in caplog.records if "starts" in record.getMessage()]
    assert sol.value == pytest.approx(BEST)
    known = [value for line in told_of for value in numbers(line, "upper")]
    assert known and np.min(known) == pytest.approx(BEST, rel=1e-3)  # three digits are shown
    assert all(re.match(r"hierax: \d+ s, \d+ of 16 starts", line) for line in told_of)


def test_the_thread_ends_with_the_run_and_without_a_reader(often, monkeypatch):
    class Closed:
        def isatty(self):
            return False

        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    news = News()
    with pytest.raises(ArithmeticError), reporting(news, progress=True):
        news.say("3 of 16 starts", {"upper": np.array([1.0, 3.0, 2.0])})
        time.sleep(0.1)
        assert any(thread.name == "hierax progress" for thread in threading.enumerate())
        raise ArithmeticError
    assert not any(thread.name == "hierax progress" for thread in threading.enumerate())
    assert re.fullmatch(r"hierax: \d+ s, 3 of 16 starts, upper 2", news.line())
