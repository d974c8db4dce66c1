"""`checkpoint=`: a run that was ended in any way goes on bit for bit; what is kept, refused and survived.

Every method: test_methods.py. Whole commands, killed: test_killed_runs.py.
"""

import asyncio
import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import EXACT, METHOD, TOY, same

import hierax as hx

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
MANY = np.random.default_rng(0).normal(size=(9000, 230))
ROWS = hx.Problem(
    upper=lambda x, y, zeta: jnp.mean((y - zeta[:, :12].sum(1) - 1.0) ** 2) + 0.1 * x**2,
    lower=lambda x, y, xi: jnp.mean((y - 2.0 * x + 0.1 * xi[:, 0]) ** 2),
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-3.0, 3.0),
    zeta=hx.Finite(MANY),
    xi=hx.Finite(MANY[::-1]),
)
AUTO = {  # the problem, the settings, and a piece of the search at whose end it is cut
    "small": (SMALL, hx.Auto(starts=4), {}, "start 1"),
    "bent": (BENT, hx.Auto(starts=4), {}, "start 1"),
    "penalty": (SMALL, hx.Auto(starts=4, route="penalty"), {}, "descent 0"),
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
    found, replace, numbers = {}, os.replace, itertools.count()

    def copying(old, new):
        replace(old, new)
        if re.fullmatch(r"checkpoint-\d+", new.name):  # it is whole from now on
            progress = content_of(new)["progress"]
            found[progress] = tmp_path / f"copy {next(numbers)}"
            shutil.copytree(new.parent, found[progress])

    monkeypatch.setattr(os, "replace", copying)
    return found


# The slow one: its problem and its route are two of the others.
ROUTES = [pytest.param(name, marks=pytest.mark.slow) if name == "bent penalty" else name for name in AUTO]


@pytest.mark.parametrize("route", ROUTES)
def test_auto_goes_on_bit_for_bit(tmp_path, copies, route):
    """From a checkpoint in its midst and from its last one; finished pieces are not done again."""
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
        ({"output": "last"}, r"output \(tail then, last now\)"),
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
        ({"checkpoint_every": 0}, "checkpoint_every=0: needs a positive, finite number of seconds"),
        ({"checkpoint_every": True}, "checkpoint_every=True: needs a positive, finite number"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(hx.InputError, match=text):
        toy(**call)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    refused = []

    def another(info):
        if not refused:
            with pytest.raises(hx.InputError, match="another run writes into this folder") as refusal:
                toy(checkpoint=tmp_path)
            refused.append(refusal)

    toy(checkpoint=tmp_path, max_steps=5, callback=another)
    assert refused
    toy(checkpoint=tmp_path, max_steps=5)


def test_another_version_is_told_of(tmp_path):
    toy(checkpoint=tmp_path, max_steps=5)
    for one in checkpoints(tmp_path):
        rewrite(one, lambda content: content["versions"].update(numpy="9.9"))
    said = rf"was written with numpy 9\.9 \(now {re.escape(np.__version__)}\): the last digits may differ"
    with pytest.warns(hx.HieraxWarning, match=said):
        toy(checkpoint=tmp_path, max_steps=6)


# -- faults ------------------------------------------------------------------------------------------------------------


def checkpoints(folder):
    return sorted(one for one in folder.iterdir() if one.name.startswith("checkpoint-"))


def content_of(checkpoint):
    with np.load(checkpoint) as stored:
        return json.loads(stored["arr_0"].tobytes())


def rewrite(checkpoint, change=None, array=None, replaced=None):
    """Change the JSON in a checkpoint, or all its arrays: whoever can write the folder can do that.

    After a `change` its checksum is right, with another text `replaced` it is what that says.
    """
    with np.load(checkpoint) as stored:
        text, *arrays = (stored[name] for name in stored.files)
    content = replaced
    if change is not None or array is not None:
        content = json.loads(text.tobytes())
        del content["sha256"]
        (change or (lambda content: None))(content)
        content["sha256"] = "sha256:" + hashlib.sha256(json.dumps(content).encode()).hexdigest()
    arrays = arrays if array is None else [array] * len(arrays)
    with open(checkpoint, "wb") as file:
        np.savez(file, np.frombuffer(json.dumps(content).encode(), np.uint8), *arrays)


def flip(path, share=0.5):
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)


def flip_the_text(path):
    flip(path, share=0.1)  # in the JSON, which stands first


@pytest.mark.parametrize("damage", [flip, flip_the_text, lambda path: path.write_bytes(path.read_bytes()[:-99])])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    cut_at(10, tmp_path)
    cut_at(20, tmp_path)
    _, second = checkpoints(tmp_path)
    damage(second)
    with pytest.warns(hx.HieraxWarning, match="checkpoint-00000002 is damaged"):
        on = toy(checkpoint=tmp_path)
    assert "(step 10)" in on.log[0]
    equal(toy(), on)


def test_checkpoints_of_an_older_format_are_refused_in_a_sentence(tmp_path):
    cut_at(10, tmp_path)
    rewrite(checkpoints(tmp_path)[0], lambda content: content.update(format="hierax checkpoint 1"))
    with pytest.raises(
        hx.InputError, match="has the format 'hierax checkpoint 1'; this hierax reads 'hierax checkpoint 6'"
    ):
        toy(checkpoint=tmp_path)


def test_checkpoints_that_are_folders_are_those_of_an_older_version(tmp_path):
    (tmp_path / "checkpoint-00000001").mkdir()
    with pytest.raises(hx.InputError, match=r"has the format .of an older version.; this hierax reads"):
        toy(checkpoint=tmp_path)


def test_where_all_are_damaged_nothing_is_begun(tmp_path):
    cut_at(10, tmp_path)
    flip(checkpoints(tmp_path)[0])
    with (
        pytest.warns(hx.HieraxWarning, match="is damaged"),
        pytest.raises(hx.InputError, match=r"every checkpoint in this folder is damaged\. Remove the folder"),
    ):
        toy(checkpoint=tmp_path)


def test_two_are_kept_and_what_a_kill_left_is_removed(tmp_path):
    (tmp_path / "checkpoint-00000001.unfinished").touch()
    toy(checkpoint=tmp_path, checkpoint_every=1e-9)
    assert len(checkpoints(tmp_path)) == 2
    assert not [name for name in os.listdir(tmp_path) if "unfinished" in name]
    content = content_of(checkpoints(tmp_path)[-1])
    assert content["format"] == "hierax checkpoint 6"
    assert content["versions"]["jax"] == jax.__version__
    assert content["progress"] == "step 30"


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


def test_symbolic_links_are_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    os.symlink(mine, tmp_path / "lock")
    with pytest.raises(hx.InputError, match="cannot be written to"):
        toy(checkpoint=tmp_path)
    assert mine.read_text() == "mine"


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
