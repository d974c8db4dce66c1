"""`checkpoint=`: a run that was ended in any way goes on bit for bit; what is kept, refused and survived.

Every method: test_methods.py. Whole commands, killed: test_killed_runs.py.
"""

import asyncio
import dataclasses
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import EXACT, METHOD, TOY, same

import hierax as hx
from hierax._auto import auto as auto_module
from hierax._base.files import FolderLock, write_whole
from hierax._run import checkpoint_folder, notes
from hierax._run.checkpoint_folder import CheckpointFolder
from hierax._run.host import Host
from hierax._run.outcome import Ending
from hierax._run.packing import Packed, packed, unpacked
from hierax._run.processes import Processes
from hierax._run.state_arrays import gathered, placed
from hierax._run.status import Reason

STEPS = {"max_steps": 30, "record_every": 5, "seed": 1}
DATA = np.random.default_rng(0).normal(size=(24, 2))
FINITE = dataclasses.replace(TOY.problem, zeta=hx.Finite(0.1 * DATA[:12], replace=False), xi=hx.Finite(0.1 * DATA[12:]))


class Stop(Exception):
    """Ends a run from its callback."""


def fail_at(step):
    def callback(info):
        if info.step == step:
            raise Stop

    return callback


def equal(one, other):
    """The same answer, history and counts; seconds apart."""
    same((one.x, one.y, one.multipliers), (other.x, other.y, other.multipliers))
    assert one.status == other.status
    assert list(one.history) == list(other.history)
    for column in set(one.history) - {"seconds"}:
        np.testing.assert_array_equal(one.history[column], other.history[column])
    untimed = {"seconds": 0.0, "compile_seconds": 0.0, "waiting_seconds": 0.0, "seconds_to_answer": None}
    assert dataclasses.replace(one.counts, **untimed) == dataclasses.replace(other.counts, **untimed)


def toy(method=METHOD, problem=TOY.problem, solve=hx.solve, x0=1.4, y0=0.5, **call):
    return solve(problem, x0, y0, method, **{**STEPS, **call})


def cut_at(step, folder, **call):
    """A run that an error of its callback ends."""
    with pytest.raises(Stop) as caught:
        toy(callback=fail_at(step), checkpoint=folder, **call)
    return caught.value.solution


# -- runs of steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [EXACT.problem, FINITE, TOY.problem], ids=["none", "finite", "sampler"])
def test_a_run_goes_on_bit_for_bit(tmp_path, problem):
    whole = toy(problem=problem, output="tail")
    cut = cut_at(15, tmp_path, problem=problem, output="tail")
    assert cut.status.name == "stopped"
    on = toy(problem=problem, output="tail", checkpoint=tmp_path)
    equal(whole, on)
    same(whole.state.run, on.state.run)
    assert on.log == (f"Resumed from the checkpoint {tmp_path} (step 15).",)
    assert on.counts.seconds > cut.counts.seconds


def test_single_precision(tmp_path):
    x0, y0 = np.float32(1.4), np.float32(0.5)
    whole = toy(x0=x0, y0=y0)
    cut_at(10, tmp_path, x0=x0, y0=y0)
    equal(whole, toy(x0=x0, y0=y0, checkpoint=tmp_path))


def test_many_starts_go_on(tmp_path):
    many = {"solve": hx.solve_many, "x0": np.array([1.4, 0.2]), "y0": np.array([0.5, 0.1])}
    whole = toy(**many)
    cut_at(15, tmp_path, **many)
    equal(whole, toy(**many, checkpoint=tmp_path))
    with pytest.raises(hx.InputError, match=r"Different are: x0; y0; starts \(2 then, one now\)"):
        toy(checkpoint=tmp_path)


def test_sizes_that_change_on_the_way_and_an_optax_step(tmp_path, promotion):
    """The counts of a run with stages are those of all of them; an optimiser's state is part of the run's."""
    method = hx.SALVF(
        c1=5.0, c2=100.0, batch_zeta=hx.Staircase({0: 1, 10: 2, 20: 3}), steps=hx.Steps(x=optax.adam(1e-3))
    )
    whole = toy(method)
    assert whole.counts.zeta > 30
    cut_at(20, tmp_path, method=method)  # at the end of a stage
    equal(whole, toy(method, checkpoint=tmp_path))
    other = dataclasses.replace(method, steps=hx.Steps(x=optax.adam(1e-2)))
    with pytest.raises(hx.InputError, match="Different are: method setting steps"):
        toy(other, checkpoint=tmp_path)


def test_a_run_that_begins_with_a_state_goes_on(tmp_path):
    state = toy(max_steps=10).state
    whole = toy(max_steps=20, state=state)
    cut_at(20, tmp_path, max_steps=20, state=state)
    equal(whole, toy(max_steps=20, state=state, checkpoint=tmp_path))
    with pytest.raises(hx.InputError, match="Different are: state"):
        toy(max_steps=20, checkpoint=tmp_path)


def test_a_run_that_is_done_is_returned_at_once_and_goes_on_with_more_steps(tmp_path):
    first = toy(checkpoint=tmp_path)
    written = os.listdir(tmp_path)
    equal(first, toy(checkpoint=tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(written)
    more = toy(checkpoint=tmp_path, max_steps=40)
    equal(toy(max_steps=40), more)


def test_a_run_that_the_clock_has_ended_between_two_records_goes_on(tmp_path, monkeypatch):
    """The record that closes such a call is not in the history of the whole."""
    with monkeypatch.context() as patched:

        def decision(host, per_step):
            return (Ending(Reason.TIME_UP) if host.done >= 7 else None), 5 if host.done == 0 else 2

        patched.setattr(Host, "_decision", decision)
        begun = toy(checkpoint=tmp_path, seconds=600.0)
    assert (begun.status.name, list(begun.history["step"])) == ("seconds", [5, 7])
    on = toy(checkpoint=tmp_path)
    assert "(step 7)" in on.log[0]
    equal(toy(), on)


def test_a_run_that_failed_is_told_again(tmp_path):
    wall = hx.Problem(
        upper=lambda x, y, zeta: jnp.where(x > 0.6, jnp.nan, (x - 3.0) ** 2) + (y - 3.0) ** 2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    )
    for _ in range(2):
        with pytest.raises(hx.RunFailed, match="nonfinite at step") as caught:
            hx.solve(wall, 0.5, 0.5, hx.SALVF(), max_steps=5000, checkpoint=tmp_path)
        assert np.isfinite(caught.value.solution.x)
    assert "Resumed" in caught.value.solution.log[0]


# -- streams -----------------------------------------------------------------------------------------------------------


ZETA = [0.1 * DATA[i : i + 4] for i in range(0, 12, 4)]
XI = [0.1 * DATA[i : i + 4] for i in range(4, 24, 4)]


class Positioned:
    """An iterator that says where it is, as grain's do; `names`: of the two methods."""

    def __init__(self, batches, names=("get_state", "set_state")):
        self.batches, self.at = batches, 0
        setattr(self, names[0], lambda: {"at": self.at, "raw": b"\x00\x01"})
        setattr(self, names[1], self._move)

    def _move(self, state):
        assert state["raw"] == b"\x00\x01"
        self.at = state["at"]

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return self.batches[(self.at - 1) % len(self.batches)]


class Loader:
    """A loader whose own methods tell where its latest iterator is, as torchdata's."""

    def __init__(self, batches):
        self.batches, self.at = batches, 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0


def fed(zeta, xi):
    return dataclasses.replace(TOY.problem, zeta=hx.Stream(zeta), xi=hx.Stream(xi))


STREAMS = {
    "lists": lambda: fed(ZETA, [*XI, XI[0][:3]]),  # with a short batch, which is dropped
    "get_state": lambda: fed(Positioned(ZETA), Positioned(XI)),
    "state_dict": lambda: fed(Positioned(ZETA, ("state_dict", "load_state_dict")), XI),
    "loader": lambda: fed(ZETA, Loader(XI)),
}


@pytest.mark.filterwarnings("ignore:Stream xi. a batch of shapes")
@pytest.mark.parametrize("kind", STREAMS)
def test_streams_go_on_behind_the_last_batch_that_was_used(tmp_path, kind):
    """Batches that only wait in the queue are not lost; a fresh source stands for that of another process."""
    whole = toy(problem=STREAMS[kind]())
    cut_at(15, tmp_path, problem=STREAMS[kind]())
    again = STREAMS[kind]()
    equal(whole, toy(problem=again, checkpoint=tmp_path))
    equal(whole, toy(problem=again, checkpoint=tmp_path))  # in the same process, from a stream that was used


def test_an_iterator_that_cannot_be_brought_back_is_refused_at_once(tmp_path):
    with pytest.raises(hx.InputError, match=r"Stream given as zeta is an iterator \(list_iterator\).*re-iterable"):
        toy(problem=fed(iter(ZETA), XI), checkpoint=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    used = fed(Positioned(ZETA), Positioned(XI))
    toy(problem=used)
    with pytest.raises(hx.InputError, match="was used without checkpoint= before"):
        toy(problem=used, checkpoint=tmp_path / "none")


def test_a_loader_that_shuffles_anew_every_time_is_noticed(tmp_path):
    class Shuffled:
        rng = np.random.default_rng(7)

        def __iter__(self):
            return iter([ZETA[i] + self.rng.normal() for i in range(3)])

    cut_at(15, tmp_path, problem=fed(Shuffled(), XI))
    with pytest.raises(hx.InputError, match="zeta cannot be resumed: it gives other batches when it is iterated again"):
        toy(problem=fed(Shuffled(), XI), checkpoint=tmp_path)


def test_a_state_that_cannot_be_kept_ends_the_run_before_its_first_step(tmp_path):
    class Odd(Positioned):
        def __init__(self, batches):
            super().__init__(batches)
            self.get_state = object

    with pytest.raises(hx.InputError, match="a object cannot be kept in a checkpoint"):
        toy(problem=fed(Odd(ZETA), XI), checkpoint=tmp_path)


@pytest.mark.parametrize("of_xi", [False, True], ids=["zeta", "xi"])
@pytest.mark.parametrize("error", [ValueError("broken disk"), SystemExit(3), asyncio.CancelledError()])
def test_a_source_that_fails_loses_nothing(tmp_path, error, of_xi):
    """The run ends as `data_error` with the point so far; with the source repaired the same call goes on."""

    class Failing:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            yield from self.batches
            raise error

    broken = fed(ZETA, Failing(XI * 48)) if of_xi else fed(Failing(ZETA * 4), XI)
    with pytest.raises(hx.RunFailed, match="Repair the source") as caught:
        toy(problem=broken, checkpoint=tmp_path)
    assert caught.value.solution.status.name == "data_error"
    assert 0 < caught.value.solution.status.step < 30
    equal(toy(problem=fed(ZETA, XI)), toy(problem=fed(ZETA, XI), checkpoint=tmp_path))


def test_a_source_that_gives_nan_ends_at_the_last_finite_point(tmp_path):
    bad = [*ZETA, ZETA[0] * np.nan]
    with pytest.raises(hx.RunFailed, match="nonfinite at step 3") as caught:
        toy(problem=fed(bad, XI), checkpoint=tmp_path)
    same(caught.value.solution.x, toy(problem=fed(ZETA, XI), max_steps=3).x)


# -- Auto --------------------------------------------------------------------------------------------------------------


SMALL = hx.Problem(
    upper=lambda x, y, zeta: (x - 5.0) ** 2 + (2.0 * y + 1.0) ** 2,
    lower=lambda x, y, xi: (y - 1.0) ** 2 - 1.5 * x * y,
    constraints=lambda x, y: jnp.stack([3.0 - 3.0 * x + y, x - 0.5 * y - 4.0, x + y - 7.0]),
    x_set=hx.NonNegative(),
    y_set=hx.NonNegative(),
)
SMOOTH = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + 0.1 * jnp.cos(4.0 * x),
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-3.0, 3.0),
)
BENT = hx.Problem(
    upper=lambda x, y, zeta: (x - 0.3) ** 2 + (y - 1.0) ** 2,
    lower=lambda x, y, xi: jnp.cos(3.0 * y) + 0.3 * (y - x) ** 2,
    x_set=hx.Box(-2.0, 2.0),
    y_set=hx.Box(-3.0, 3.0),
)
NOISE = hx.Sampler(lambda key, n: 0.3 * jax.random.normal(key, (n, 2)))
SAMPLED = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(zeta, 0) @ jnp.stack([x, y]),
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + jnp.mean(xi, 0) @ jnp.stack([x, y]),
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-3.0, 3.0),
    y_set=hx.Box(-3.0, 3.0),
    zeta=NOISE,
    xi=NOISE,
)
MANY = np.random.default_rng(0).normal(size=(9000, 12))
ROWS = hx.Problem(
    upper=lambda x, y, zeta: jnp.mean((y - zeta.sum(1) - 1.0) ** 2) + 0.1 * x**2,
    lower=lambda x, y, xi: jnp.mean((y - 2.0 * x + 0.1 * xi[:, 0]) ** 2),
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-3.0, 3.0),
    zeta=hx.Finite(MANY),
    xi=hx.Finite(MANY[::-1]),
)
AUTO = {  # the problem, the settings, and a piece of the search at whose end it is cut
    "small": (SMALL, hx.Auto(starts=4), {}, "start 1"),
    "bent": (BENT, hx.Auto(starts=4), {}, "start 1"),
    "penalty": (SMALL, hx.Auto(starts=4, route="penalty"), {}, "descent 1"),
    "bent penalty": (BENT, hx.Auto(starts=3, route="penalty"), {}, "start 1"),
    "average": (SAMPLED, hx.Auto(starts=2, samples=20_000, tol=1e-5), {}, "4096 samples/start 0"),
    "rows": (ROWS, hx.Auto(starts=2), {}, "descent 0"),
    "implicit": (SMOOTH, hx.Auto(starts=3, route="implicit"), {}, "descent 0"),
    "large": (TOY.problem, hx.Auto(starts=1, route="large", seconds=600.0), {"max_steps": 3}, "run 1"),
    "stream": (None, hx.Auto(seconds=600.0), {"max_steps": 4}, "run 2"),
}


@pytest.fixture
def copies(monkeypatch, tmp_path):
    """Every checkpoint that is written, by what it tells, in a folder of its own: as if the process had died then."""
    found, write, numbers = {}, CheckpointFolder.write, itertools.count()

    def copying(self, checkpoint):
        write(self, checkpoint)
        found[checkpoint.progress] = tmp_path / f"copy {next(numbers)}"
        shutil.copytree(self.path, found[checkpoint.progress])

    monkeypatch.setattr(CheckpointFolder, "write", copying)
    return found


# The slow one: its problem and its route are two of the others.
ROUTES = [pytest.param(name, marks=pytest.mark.slow) if name == "bent penalty" else name for name in AUTO]


@pytest.mark.parametrize("route", ROUTES)
def test_auto_goes_on_bit_for_bit(tmp_path, copies, route, monkeypatch):
    """From a checkpoint in its midst and from its last one; finished pieces are not done again."""
    monkeypatch.setattr(auto_module, "WHOLE_DATA", 100_000)
    problem, auto, limits, piece = AUTO[route]

    def run(**call):
        return hx.solve(problem or fed(ZETA, XI), 0.5, 0.5, auto, **limits, **call)

    every, seen = [], []
    whole = run(callback=lambda info: every.append(info.step))
    equal(whole, run(checkpoint=tmp_path / "whole", checkpoint_every=1e-9))
    on = run(checkpoint=copies[f"{piece} done"], callback=lambda info: seen.append(info.step))
    equal(whole, on)
    assert 0 < len(seen) < len(every) or route == "average"
    assert f"({piece} done)" in on.log[0]
    assert on.log[1:] == whole.log
    equal(whole, run(checkpoint=list(copies.values())[-1]))


def test_a_run_of_a_stage_goes_on_in_its_midst(tmp_path, copies):
    """A stage of the large route is a run of steps, which has checkpoints of its own."""
    problem, auto, limits, _ = AUTO["large"]
    whole = hx.solve(problem, 0.5, 0.5, auto, **limits, checkpoint=tmp_path / "whole", checkpoint_every=1e-9)
    step = max(int(told.removeprefix("step ")) for told in copies if told.startswith("step "))
    equal(whole, hx.solve(problem, 0.5, 0.5, auto, **limits, checkpoint=copies[f"step {step}"]))


def test_auto_from_many_starts_does_not_repeat_those_that_are_done(tmp_path, copies):
    starts = np.array([0.5, 1.0, 4.0]), np.array([0.5, 0.0, 0.0])
    auto = hx.Auto(starts=2)
    whole = hx.solve_many(SMALL, *starts, auto)
    hx.solve_many(SMALL, *starts, auto, checkpoint=tmp_path / "whole", checkpoint_every=1e-9)
    second = next(told for told in copies if told.startswith("start 1/") is False and "done" in told)
    equal(whole, hx.solve_many(SMALL, *starts, auto, checkpoint=copies[second]))
    equal(whole, hx.solve_many(SMALL, *starts, auto, checkpoint=tmp_path / "whole"))


def test_a_search_that_was_stopped_goes_on(tmp_path):
    def stop(info):
        return info.step == 3

    stopped = hx.solve(SMALL, 0.5, 0.5, hx.Auto(starts=4), callback=stop, checkpoint=tmp_path)
    assert stopped.status.name in ("stopped", "converged")
    equal(
        hx.solve(SMALL, 0.5, 0.5, hx.Auto(starts=4)), hx.solve(SMALL, 0.5, 0.5, hx.Auto(starts=4), checkpoint=tmp_path)
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


def other_problem(**changes):
    return dataclasses.replace(TOY.problem, **changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"problem": other_problem(lower=lambda x, y, xi: TOY.problem.lower(x, y, xi) + y**2)}, "function lower"),
        ({"problem": other_problem(x_set=hx.Box(0.0, 2.0))}, "problem x_set"),
        ({"problem": EXACT.problem}, "data zeta; data xi"),
        ({"x0": 1.5}, "x0"),
        ({"method": dataclasses.replace(METHOD, c1=7.0)}, r"method setting c1 \(5.0 then, 7.0 now\)"),
        ({"method": hx.SALVF_VR(c1=5.0, c2=100.0)}, "method setting direction"),
        ({"method": hx.LVHBA()}, r"method \(SALVF then, LVHBA now\)"),
        ({"seed": 2}, r"seed \(1 then, 2 now\)"),
        ({"record_every": 6}, r"record_every \(5 then, 6 now\)"),
        ({"output": "tail"}, r"output \(last then, tail now\)"),
    ],
)
def test_another_call_is_refused_with_the_difference(tmp_path_factory, change, named):
    folder = tmp_path_factory.getbasetemp() / "of another call"
    if not folder.exists():
        toy(checkpoint=folder, max_steps=5)
    with pytest.raises(hx.InputError, match=f"belongs to another call. Different are: .*{named}"):
        toy(checkpoint=folder, **{"max_steps": 5, **change})


def test_data_and_functions_that_close_over_others_are_told_apart(tmp_path):
    toy(checkpoint=tmp_path, problem=FINITE, max_steps=5)
    others = dataclasses.replace(FINITE, xi=hx.Finite(0.1 * DATA[12:] + 1e-12))
    with pytest.raises(hx.InputError, match=r"Different are: data xi\. Call with"):
        toy(checkpoint=tmp_path, problem=others, max_steps=5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"checkpoint": 3}, "checkpoint=3: needs the name of a folder"),
        ({"checkpoint": ""}, "checkpoint='': needs the name of a folder"),
        ({"checkpoint_every": 0}, "checkpoint_every=0: needs a positive number of seconds"),
        ({"checkpoint_every": True}, "checkpoint_every=True: needs a positive number"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(hx.InputError, match=text):
        toy(**call)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    held = FolderLock(tmp_path)
    with pytest.raises(hx.InputError, match="another run writes into this folder"):
        toy(checkpoint=tmp_path)
    held.release()
    toy(checkpoint=tmp_path, max_steps=5)


def test_another_version_is_told_of(tmp_path, monkeypatch):
    toy(checkpoint=tmp_path, max_steps=5)
    now = checkpoint_folder.versions()
    monkeypatch.setattr("hierax._run.notes.versions", lambda: now | {"numpy": "9.9"})
    with pytest.warns(hx.HieraxWarning, match=r"was written with numpy .* \(now 9.9\): the last digits may differ"):
        toy(checkpoint=tmp_path, max_steps=6)


# -- faults ------------------------------------------------------------------------------------------------------------


def checkpoints(folder):
    return sorted(one for one in folder.iterdir() if one.name.startswith("checkpoint-"))


def flip(path, at=-200):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["arrays.npz", "checkpoint.json"])
@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, file, damage):
    cut_at(10, tmp_path)
    cut_at(20, tmp_path)
    _, second = checkpoints(tmp_path)
    damage(second / file)
    with pytest.warns(hx.HieraxWarning, match="checkpoint-00000002 is damaged"):
        on = toy(checkpoint=tmp_path)
    assert "(step 10)" in on.log[0]
    equal(toy(), on)


def test_checkpoints_of_an_older_format_are_refused_in_a_sentence(tmp_path):
    cut_at(10, tmp_path)
    file = checkpoints(tmp_path)[0] / "checkpoint.json"
    content = json.loads(file.read_text()) | {"format": "hierax checkpoint 1"}
    del content["sha256"]
    file.write_text(json.dumps(content | {"sha256": checkpoint_folder._hash_of(content)}))
    with pytest.raises(
        hx.InputError, match="has the format 'hierax checkpoint 1'; this hierax reads 'hierax checkpoint 3'"
    ):
        toy(checkpoint=tmp_path)


def test_where_all_are_damaged_nothing_is_begun(tmp_path):
    cut_at(10, tmp_path)
    flip(checkpoints(tmp_path)[0] / "arrays.npz")
    with (
        pytest.warns(hx.HieraxWarning, match="is damaged"),
        pytest.raises(hx.InputError, match=r"every checkpoint in this folder is damaged\. Remove the folder"),
    ):
        toy(checkpoint=tmp_path)


def test_two_are_kept_and_what_a_kill_left_is_removed(tmp_path):
    (tmp_path / "checkpoint-00000001.unfinished").mkdir()
    toy(checkpoint=tmp_path, checkpoint_every=1e-9)
    assert len(checkpoints(tmp_path)) == 2
    assert not [name for name in os.listdir(tmp_path) if "unfinished" in name]
    content = json.loads((checkpoints(tmp_path)[-1] / "checkpoint.json").read_text())
    assert content["format"] == "hierax checkpoint 3"
    assert content["versions"]["jax"] == jax.__version__
    assert content["progress"] == "step 30"


def test_a_full_disk_ends_no_run(tmp_path, monkeypatch):
    """One warning; the last good checkpoint stays, and the solution says that it is older."""
    cut_at(10, tmp_path)
    (good,) = checkpoints(tmp_path)

    def full(folder, checkpoint):
        (folder / "arrays.npz").write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.warns(hx.HieraxWarning) as warned:
        patched.setattr(checkpoint_folder, "_write_into", full)
        on = toy(checkpoint=tmp_path, checkpoint_every=1e-9)
    equal(toy(), on)
    assert len(warned) == 1 and "could not be written ([Errno 28] No space left" in str(warned[0].message)
    assert "could not be written" in on.log[-1] and "is older" in on.log[-1]
    assert checkpoints(tmp_path) == [good]
    equal(toy(), toy(checkpoint=tmp_path))


@pytest.fixture
def no_file_grows():
    """Every write into a file fails, as on a full disk."""
    resource = pytest.importorskip("resource", reason="the system has no limits on files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_from_the_beginning_costs_no_answer(tmp_path, request):
    expected = toy()
    request.getfixturevalue("no_file_grows")
    with pytest.warns(hx.HieraxWarning, match="could not be written"):
        on = toy(checkpoint=tmp_path / "new", checkpoint_every=1e-9)
    equal(expected, on)


def test_a_device_that_is_full_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def full(file):
        file.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_whole(path, full)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_whatever_goes_wrong_in_writing_costs_no_answer(tmp_path, monkeypatch):
    def broken(folder, checkpoint):
        raise RuntimeError("broken")

    monkeypatch.setattr(checkpoint_folder, "_write_into", broken)
    with pytest.warns(hx.HieraxWarning, match=r"could not be written \(broken\)"):
        equal(toy(), toy(checkpoint=tmp_path, checkpoint_every=1e-9))
    monkeypatch.setattr(notes, "packed", broken)
    with pytest.warns(hx.HieraxWarning, match="could not be written"):
        equal(toy(), toy(checkpoint=tmp_path, checkpoint_every=1e-9))


def test_a_folder_that_vanishes_and_cannot_be_made_again_costs_no_answer(tmp_path):
    folder = tmp_path / "vanishes"

    def vanish(info):
        if info.step == 10:
            shutil.rmtree(folder)
            folder.write_text("in the way")

    with pytest.warns(hx.HieraxWarning, match="could not be written"):
        on = toy(checkpoint=folder, checkpoint_every=1e-9, callback=vanish)
    equal(toy(), on)
    assert "could not be written" in on.log[-1]


HOLDER = """
import os, pathlib, sys, time
from hierax._base.files import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
worker = os.fork()
if worker:
    print(worker, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_workers_that_a_killed_process_forked_hold_no_lock(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        worker = int(holder.stdout.readline())
        try:
            with pytest.raises(hx.InputError, match="another run writes into this folder"):
                FolderLock(tmp_path)
            holder.kill()
            holder.wait()
            FolderLock(tmp_path).release()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_symbolic_links_are_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    os.symlink(mine, tmp_path / "lock")
    with pytest.raises(hx.InputError, match="cannot be written to"):
        toy(checkpoint=tmp_path)
    os.symlink(mine, tmp_path / "file.unfinished")
    write_whole(tmp_path / "file", lambda file: file.write(b"new"))
    assert mine.read_text() == "mine" and (tmp_path / "file").read_text() == "new"


def test_files_of_others_stay(tmp_path):
    (tmp_path / "thesis.unfinished").mkdir()
    (tmp_path / "thesis.unfinished" / "chapter").write_text("mine")
    (tmp_path / "checkpoint-1.unfinished").write_text("mine")
    toy(checkpoint=tmp_path)
    assert (tmp_path / "thesis.unfinished" / "chapter").read_text() == "mine"
    assert (tmp_path / "checkpoint-1.unfinished").read_text() == "mine"


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    seen = []
    with pytest.raises(hx.InputError, match=r"checkpoint='.*file/there': cannot be written to"):
        toy(checkpoint=tmp_path / "file" / "there", callback=seen.append)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if not os.access(locked, os.W_OK):  # the superuser may write everywhere
        with pytest.raises(hx.InputError, match=r"cannot be written to \(.*Permission denied"):
            toy(checkpoint=locked, callback=seen.append)
    assert not seen


def test_a_folder_that_is_deleted_during_the_run_is_made_again(tmp_path):
    folder = tmp_path / "deleted"

    def delete(info):
        if info.step == 10:
            shutil.rmtree(folder)

    equal(toy(), toy(checkpoint=folder, checkpoint_every=1e-9, callback=delete))
    assert checkpoints(folder)
    assert "(step 30)" in toy(checkpoint=folder).log[0]


def test_an_error_of_the_callback_comes_with_the_solution(tmp_path):
    solution = cut_at(15, tmp_path)
    same(solution.x, toy(max_steps=15).x)
    with pytest.raises(Stop) as caught:  # without a checkpoint, and in a search
        hx.solve(SMALL, 0.5, 0.5, hx.Auto(starts=2), callback=fail_at(2))
    assert np.isfinite(caught.value.solution.value)
    assert "attribute `solution`" in caught.value.__notes__[0]
    with pytest.raises(SystemExit):
        toy(callback=lambda info: exit(3))


def test_an_error_of_a_function_on_the_host_leaves_the_last_checkpoint(tmp_path):
    broken = []

    def look(x):
        if broken:
            raise OSError("the simulator is gone")
        return np.asarray(x)

    @jax.custom_jvp
    def simulated(x):
        return jax.pure_callback(look, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")

    @simulated.defjvp
    def _(primals, tangents):
        return simulated(*primals), tangents[0]

    stated = hx.Problem(upper=lambda x, y, zeta: (simulated(x) - 1.0) ** 2 + y**2, lower=lambda x, y, xi: (y - x) ** 2)

    def run(**call):
        return hx.solve(stated, 0.5, 0.5, hx.BiCGAFFA(start="given"), max_steps=20, record_every=5, **call)

    def breaks(info):
        broken.extend([True] * (info.step == 10))

    with pytest.raises(Exception, match="the simulator is gone"):
        run(checkpoint=tmp_path, checkpoint_every=1e-9, callback=breaks)
    broken.clear()
    on = run(checkpoint=tmp_path)
    assert "(step 10)" in on.log[0]
    equal(run(), on)


# -- parts -------------------------------------------------------------------------------------------------------------


def test_values_come_back_as_they_were():
    value = {
        "number": [1, 2.5, float("inf"), float("-inf"), True, None, "text"],
        "tuple": (1, (2, b"\x00\xff")),
        "arrays": [np.arange(3), np.zeros((2, 0)), np.float32(1.5)],
        3: "a key that is no text",
        "named": hx.Multipliers(np.ones(2), None, ()),
    }
    content, arrays = packed(value)
    back = unpacked(Packed(json.loads(json.dumps(content, allow_nan=False)), arrays), (hx.Multipliers,))
    np.testing.assert_equal(back, {**value, "arrays": [np.arange(3), np.zeros((2, 0)), 1.5]})
    assert type(back["named"]) is hx.Multipliers and type(back["tuple"]) is tuple
    assert np.isnan(unpacked(packed(float("nan"))))
    with pytest.raises(hx.InputError, match="a set cannot be kept"):
        packed({"a": {1}})
    with pytest.raises(hx.InputError, match="Python objects"):
        packed(np.array([object()]))


def test_arrays_of_another_form_are_refused():
    tree = {"key": jax.random.key(3, impl="rbg"), "half": jnp.ones(2, jnp.bfloat16), "count": 3, "flag": True}
    found = gathered(tree)
    stored = found._replace(arrays=[np.asarray(a).view("V2") if a.dtype.kind == "V" else a for a in found.arrays])
    for like in (tree, jax.eval_shape(lambda: tree) | {"count": 3, "flag": True}):
        back = placed(stored, like)
        assert back["key"].dtype == tree["key"].dtype and back["half"].dtype == jnp.bfloat16
        assert type(back["count"]) is int and back["flag"] is True
    with pytest.raises(hx.InputError, match=r"\['half'\] has shape \(2,\) .* needs \(3,\)"):
        placed(found, tree | {"half": jnp.ones(3, jnp.bfloat16)})
    with pytest.raises(hx.InputError, match=r"differ in .*'more'"):
        placed(found, tree | {"more": 1.0})


def test_a_kill_costs_no_more_than_it_may(tmp_path, monkeypatch):
    """Records are taken so early that they are on the disk in time, by a clock of our own: a write takes 2 s of 10."""
    now = [100.0]
    monkeypatch.setattr(notes.time, "monotonic", lambda: now[0])
    journal = notes.Journal(tmp_path, 10.0)
    journal.open({}, Processes())
    monkeypatch.setattr(journal._folder, "write", lambda checkpoint: now.__setitem__(0, now[0] + 2.0))
    in_time = notes.ON_TIME_SHARE * 10.0
    assert journal.left == in_time
    now[0] += 4.0
    journal.put("run", 1, "step 1")
    now[0] += 1.0  # what is under way goes on before it is written
    assert journal.left == in_time - 5.0
    journal.write()
    assert (
        journal.left == in_time - 2 * 2.0 - 1.0 - 2.0
    )  # since the record was taken, one second and the write have passed
    journal.every = 3.0
    journal.put("run", 2, "step 2")
    journal.write()
    assert journal.left == 0.0  # no time at all for two writes: a write is followed by work for as long as it took
    journal.close()


def test_chunks_of_steps_end_in_time_for_a_checkpoint(tmp_path, monkeypatch):
    """With little time left the host orders few steps, and writes where the next step might be late."""
    ordered, written = [], []
    left = iter([5.0, 5.0, 0.2, 0.001, 5.0])
    monkeypatch.setattr(notes.Notes, "left", property(lambda self: next(left, 5.0)))
    monkeypatch.setattr(notes.Notes, "write", lambda self: written.append(len(ordered)))
    monkeypatch.setattr(Host, "_affordable", lambda self, per_step, seconds: ordered.append(seconds) or 1)
    monkeypatch.setattr(Host, "_order_chunks", lambda self: [self._decision(0.01) for _ in range(5)] and None)
    toy(checkpoint=tmp_path)
    assert ordered == [0.5, 0.5, 0.1, 0.5, 0.5]
    assert written[:1] == [4]
