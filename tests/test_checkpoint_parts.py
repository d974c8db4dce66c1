"""Unit tests of hierax._run.checkpoints, .packing, .stepping, and of hierax._base.files."""

import errno
import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoints import checkpoints, cut_at, equal, toy

import hierax as hx
from hierax._base.files import FolderLock, write_whole
from hierax._base.text import versions
from hierax._run import checkpoints as kept
from hierax._run.checkpoints import (
    Checkpoint,
    Packed,
    gathered,
    packed,
    placed,
    read_checkpoint,
    unpacked,
    write_checkpoint,
)
from hierax._run.solution import Reason
from hierax._run.stepping import Ending, Host


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


def test_a_full_disk_ends_no_run(tmp_path, monkeypatch):
    """One warning; the last good checkpoint stays, and the solution says that it is older."""
    cut_at(10, tmp_path)
    (good,) = checkpoints(tmp_path)

    def full(file, found):
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.warns(hx.HieraxWarning) as warned:
        patched.setattr(kept, "save", full)
        on = toy(checkpoint=tmp_path, checkpoint_every=1e-9)
    equal(toy(), on)
    assert len(warned) == 1 and "could not be written ([Errno 28] No space left" in str(warned[0].message)
    assert "could not be written" in on.log[-1] and "is older" in on.log[-1]
    assert checkpoints(tmp_path) == [good]
    equal(toy(), toy(checkpoint=tmp_path))


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    os.symlink(mine, tmp_path / "file.unfinished")
    write_whole(tmp_path / "file", lambda file: file.write(b"new"))
    assert mine.read_text() == "mine" and (tmp_path / "file").read_text() == "new"


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
    def broken(*given):
        raise RuntimeError("broken")

    monkeypatch.setattr(kept, "save", broken)
    with pytest.warns(hx.HieraxWarning, match=r"could not be written \(broken\)"):
        equal(toy(), toy(checkpoint=tmp_path, checkpoint_every=1e-9))
    monkeypatch.setattr(kept, "packed", broken)
    with pytest.warns(hx.HieraxWarning, match="could not be written"):
        equal(toy(), toy(checkpoint=tmp_path, checkpoint_every=1e-9))


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


def test_values_come_back_as_they_were():
    value = {
        "number": [1, 2.5, float("inf"), float("-inf"), True, None, "text"],
        "tuple": (1, (2, b"\x00\xff")),
        "arrays": [np.arange(3), np.zeros((2, 0)), np.float32(1.5)],
        3: "a key that is no text",
        "named": hx.Multipliers(np.ones(2), None, ()),
    }
    content, arrays = packed(value)
    back = unpacked(Packed(json.loads(json.dumps(content)), arrays), (hx.Multipliers,))
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
    """Records are taken so early that they are on the disk in time, by a clock of our own: a write takes 2 s of 20."""
    now = [100.0]
    monkeypatch.setattr(kept.time, "monotonic", lambda: now[0])
    journal = kept.Journal(tmp_path, 20.0)
    journal.open({})
    monkeypatch.setattr(kept, "write_checkpoint", lambda path, checkpoint: now.__setitem__(0, now[0] + 2.0))
    in_time = 10.0
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
    monkeypatch.setattr(kept.Journal, "left", property(lambda self: next(left, 5.0)))
    monkeypatch.setattr(kept.Journal, "write", lambda self: written.append(len(ordered)))
    monkeypatch.setattr(Host, "_affordable", lambda self, per_step, seconds: ordered.append(seconds) or 1)
    monkeypatch.setattr(Host, "_order_chunks", lambda self: [self._decision(0.01) for _ in range(5)] and None)
    toy(checkpoint=tmp_path)
    assert ordered == [0.5, 0.5, 0.1, 0.5, 0.5]
    assert written[:1] == [4]


def written(folder, records):
    folder.mkdir()
    write_checkpoint(folder, Checkpoint({}, versions(), "", records))
    return folder / "checkpoint-00000001"


def test_names_in_a_checkpoint_are_no_paths(tmp_path):
    found = written(tmp_path / "there", {"../../evil": packed(np.ones(2)), "/tmp/evil": packed("text")})
    assert [path.name for path in found.parent.iterdir()] == ["checkpoint-00000001"]
    assert sorted(path.name for path in tmp_path.rglob("*evil*")) == []
    assert set(read_checkpoint(found).records) == {"../../evil", "/tmp/evil"}
