"""Faults of disks and files: every operation fails once, files are damaged at random, files do what they should not.

Unit tests of hierax._base.files and hierax._run.checkpoints beside what users see."""

import builtins
import copy
import errno
import json
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
from test_checkpoints import checkpoints, content_of, equal, rewrite, toy

import hierax as hx
from hierax._base.files import FolderLock, json_in
from hierax._base.text import versions
from hierax._run import answers
from hierax._run.checkpoints import Checkpoint, Journal, newest_checkpoint, packed, write_checkpoint
from hierax.reports.folder import report_folders, write_run

OPERATIONS = {os: ("open", "fsync", "replace", "unlink", "listdir", "mkdir", "stat"), builtins: ("open",)}


class Disk:
    """Files of one folder, whose n-th operation fails: an open, a write, a flush, a rename, a lock ..."""

    def __init__(self, monkeypatch, n, error=errno.ENOSPC):
        self.left, self.failed, self._error = n, False, error
        for module, names in OPERATIONS.items():
            for name in names:
                monkeypatch.setattr(module, name, self._counted(getattr(module, name)))
        fcntl = pytest.importorskip("fcntl", reason="the system has other locks")
        monkeypatch.setattr(fcntl, "flock", self._counted(fcntl.flock))

    def _counted(self, usual):
        def operation(*args, **kwargs):
            self.count()
            opened = usual(*args, **kwargs)
            return Written(opened, self) if usual is OPEN and "xb" in args else opened

        return operation

    def count(self):
        self.left -= 1
        if self.left == 0:
            self.failed = True
            raise OSError(self._error, os.strerror(self._error))


OPEN = builtins.open


class Written:
    """A file whose writes are counted as well."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, data):
        self._disk.count()
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)


def until_none_fails(run):
    """Call `run(n)` for n = 1, 2, ... until its n-th operation does not exist; returns how many there are."""
    for n in range(1, 10_000):
        if not run(n):
            return n - 1
    raise AssertionError("there is no end")


@pytest.mark.filterwarnings("ignore:checkpoint")
def test_every_operation_on_a_folder_may_fail_once(tmp_path, monkeypatch):
    """What was written before is whole, and nothing is raised once the folder is open."""
    known = versions()
    monkeypatch.setattr("hierax._run.checkpoints.versions", lambda: known)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a busy disk takes long

    def run(n):
        folder = tmp_path / str(n)
        folder.mkdir()
        write_checkpoint(folder, Checkpoint({}, known, "old", {"run": packed(np.arange(4.0))}))
        journal = Journal(folder, 1e-9)
        with pytest.MonkeyPatch.context() as patched:
            disk = Disk(patched, n)
            try:
                journal.open({})
            except hx.InputError:
                pass
            else:
                for step in range(2):
                    journal.put("run", np.arange(4.0) + step, f"step {step}")
                    journal.write()
                journal.close()
        found = newest_checkpoint(folder)
        assert found is not None and found.progress in ("old", "step 0", "step 1")
        if journal.records and not any("could not be written" in line for line in journal.log_lines):
            assert found.progress == "step 1"
        FolderLock(folder).release()
        return disk.failed

    assert until_none_fails(run) > 30


@pytest.mark.filterwarnings("ignore:checkpoint")
@pytest.mark.slow  # test_every_operation_on_a_folder_may_fail_once is the same without a run
def test_every_operation_of_a_run_may_fail_once(tmp_path, monkeypatch):
    """The answer is returned, and what was there is whole; or the call is refused before its first step."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    expected = toy(max_steps=13)

    def run(n):
        folder = tmp_path / str(n)
        toy(checkpoint=folder, max_steps=10)
        with pytest.MonkeyPatch.context() as patched:
            disk = Disk(patched, n)
            try:
                equal(expected, toy(checkpoint=folder, checkpoint_every=1e-9, max_steps=13))
            except hx.InputError as refusal:
                assert "checkpoint=" in str(refusal)
        equal(expected, toy(checkpoint=folder, max_steps=13))
        return disk.failed

    assert until_none_fails(run) > 30


def test_who_turns_warnings_into_errors_gets_an_answer_too(tmp_path, monkeypatch):
    monkeypatch.setattr("hierax._run.checkpoints.save", lambda *given: 1 / 0)
    equal(toy(), toy(checkpoint=tmp_path, checkpoint_every=1e-9))


# -- files damaged at random -------------------------------------------------------------------------------------------

COUNTS = [200, pytest.param(10_000, marks=pytest.mark.slow)]
ODD = [None, 0, -1, 1e308, True, "", "\x1b[31m", [], {}, [[]], {"": {}}, 2**70, "x" * 1000, [1, [2]]]
TOKENS = [
    b"null",
    b"NaN",
    b"-",
    b"1e999",
    b"[" * 2000,
    b'{"a":' * 500,
    b"\\u001b",
    b"\xff\xfe",
    b"0",
    b",",
    b"\x00" * 8,
]


def bytes_damaged(content, chance):
    """Some bytes flipped, cut out, doubled, or replaced by others."""
    place, length = chance.randrange(len(content)), chance.choice([0, 1, 8, 100, len(content)])
    middle = chance.choice(
        [b"", content[place : place + length] * 2, chance.choice(TOKENS), chance.randbytes(length % 999)]
    )
    return content[:place] + middle + content[place + length :]


def parts_of(content, path=()):
    yield path
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, part in pairs:
        yield from parts_of(part, (*path, name))


def values_damaged(content, chance):
    """One part of a document of JSON replaced by something odd, or left out."""
    content = copy.deepcopy(content)
    path = chance.choice(list(parts_of(content)))
    if not path:
        return chance.choice(ODD)
    home = content
    for name in path[:-1]:
        home = home[name]
    if chance.random() < 0.3:
        del home[path[-1]]
    else:
        home[path[-1]] = chance.choice(ODD)
    return content


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.filterwarnings("ignore:checkpoint")
def test_damaged_checkpoints_are_read_or_refused(tmp_path, count):
    """The one before is used, and where there is none the call is refused."""
    toy(checkpoint=tmp_path, max_steps=10)
    (first,) = checkpoints(tmp_path)
    whole, stored = first.read_bytes(), content_of(first)
    chance, kept = random.Random(0), 0
    for _ in range(count):
        if chance.random() < 0.5:
            first.write_bytes(bytes_damaged(whole, chance))
        else:
            first.write_bytes(whole)
            damage = values_damaged(stored, chance)
            rewrite(first, replaced=damage)
        try:
            found = newest_checkpoint(tmp_path)
        except hx.InputError:
            continue
        kept += 1
        assert (found.progress, found.identity) == (stored["progress"], stored["identity"])
    assert kept < 0.1 * count  # bytes between entries may be flipped


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path):
    toy(checkpoint=tmp_path, max_steps=10)
    (first,) = checkpoints(tmp_path)
    named = {"format": "hierax checkpoint 6"}
    for content in (0, None, [], "x", named, {**named, "sha256": 1}):
        second = tmp_path / "checkpoint-00000002"
        second.write_bytes(first.read_bytes())
        rewrite(second, replaced=content)
        with pytest.warns(hx.HieraxWarning, match="checkpoint-00000002 is damaged"):
            found = newest_checkpoint(tmp_path)
        assert found.progress == "step 10"
    second.unlink()
    equal(toy(), toy(checkpoint=tmp_path))


@pytest.mark.parametrize("entries", ["compressed", "shared"])
def test_a_checkpoint_takes_no_more_memory_than_its_length(tmp_path, entries):
    place = tmp_path / "checkpoint-00000001"
    with open(place, "wb") as file:
        (np.savez_compressed if entries == "compressed" else np.savez)(file, np.zeros(10**6, np.uint8), np.zeros(10**6))
    if entries == "shared":  # one entry in the place of two
        content = place.read_bytes()
        names = content.replace(b"arr_1.npy", b"arr_0.npy")
        place.write_bytes(names[: len(names) // 9] + names[-400:])
    with pytest.warns(hx.HieraxWarning, match="damaged"), pytest.raises(hx.InputError, match="every checkpoint"):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_answers_are_read_or_refused(tmp_path, count):
    problem = hx.Problem(
        lambda x, y, zeta: y["a"].sum(), lambda x, y, xi: (y["a"] ** 2).sum(), lambda x, y: {"h": y["a"][0] - x}
    )
    x0, y0 = 0.5, {"a": np.zeros((2, 3)), "b": np.zeros(1)}
    given = {
        "format": "hierax answer 1",
        "x": 1.0,
        "y": {"a": [[1, 2, 3.0], [4, 5, 6]], "b": [0]},
        "multipliers": {"inequalities": {"h": [1, 2, 3]}, "equalities": {}, "upper": {}},
        "F": 3.0,
        "problem": {"sha256": "abc", "jax": "0.0"},
    }
    text, place, chance = json.dumps(given).encode(), tmp_path / "answer.json", random.Random(0)
    for _ in range(count):
        damage = bytes_damaged(text, chance) if chance.random() < 0.5 else json.dumps(values_damaged(given, chance))
        place.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
        try:
            found = answers.read(place, problem, x0, y0)
        except hx.InputError:
            continue
        assert found.x.shape == () and found.y["a"].shape == (2, 3)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_runs_are_drawn_or_refused(tmp_path, monkeypatch, count):
    """run.json and history.csv, of which `hierax report` makes a page; without its pictures, which take most time."""
    without = SimpleNamespace(panel_svg=lambda *given: "", legend_key=lambda *given: "")
    monkeypatch.setattr("hierax.reports.page.figures", without)
    folder = tmp_path / "run"
    write_run(folder, toy(), {"method": "salvf"})
    places = [folder / "run.json", folder / "history.csv"]
    whole, chance = [place.read_bytes() for place in places], random.Random(0)
    for _ in range(count):
        for place, content in zip(places, whole, strict=True):
            place.write_bytes(content)
        which = chance.randrange(2)
        damage = bytes_damaged(whole[which], chance)
        if which == 0 and chance.random() < 0.5:
            damage = json.dumps(values_damaged(json.loads(whole[0]), chance)).encode()
        places[which].write_bytes(damage)
        try:
            report_folders([folder], tmp_path / "report.html")
        except hx.InputError:
            continue
        assert (tmp_path / "report.html").stat().st_size > 1000


def test_json_that_would_fill_the_memory_is_refused():
    assert json_in(b'{"a": [1, 2.5, "text"]}') == {"a": [1, 2.5, "text"]}
    for text, why in (
        (b"[" + b"[]," * 4_000_000 + b"0]", "too many parts"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "stands twice"),
    ):
        with pytest.raises(ValueError, match=why):
            json_in(text)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such files")
def test_a_fifo_in_the_place_of_data_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "data.npy")
    with pytest.raises(hx.InputError, match="no plain file"):
        hx.Finite.from_files(tmp_path / "data.npy")
