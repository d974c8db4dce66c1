"""Data in .npy files: the draws of `Finite`, bounded memory, going on, what certificates see, and what is refused."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx

ROWS = 300
METHOD = hx.SALVF(c1=5.0, c2=100.0, batch_zeta=5, batch_xi=3, inner=hx.SALM(steps=2, batch=4))
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((ROWS, 2))
LABELS = FEATURES @ np.array([1.0, -1.0]) + 0.1 * RNG.standard_normal(ROWS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "features.npy", FEATURES)
    np.save(folder / "labels.npy", LABELS)
    return folder / "features.npy", str(folder / "labels.npy")


def stated(zeta, xi):
    def loss(y, batch):
        features, labels = batch
        return jnp.mean((features @ y - labels) ** 2)

    return hx.Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi) + 0.01 * jnp.sum(y**2),
        constraints=lambda x, y: jnp.sum(y**2) - x**2,
        x_set=hx.Box(0.1, 5.0),
        zeta=zeta,
        xi=xi,
    )


def in_files(paths):
    return stated(hx.Finite.from_files(paths), hx.Finite.from_files(paths, replace=False))


def solve(problem, steps=100, **call):
    return hx.solve(problem, 1.0, np.zeros(2), METHOD, max_steps=steps, record_every=10, **call)


@pytest.fixture(scope="module")
def whole(paths):
    """An uninterrupted run."""
    return solve(in_files(paths))


def same(one, other):
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    for name in one.history:
        if name != "seconds":
            np.testing.assert_array_equal(one.history[name], other.history[name], err_msg=name)
    assert (one.counts.zeta, one.counts.xi) == (other.counts.zeta, other.counts.xi)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_that_is_asked_for(paths):
    source = hx.Finite.from_files({"a": paths[0], "b": paths[1]})
    numbers = np.random.default_rng(1).integers(0, ROWS, (7, 30))  # some rows twice, some beside each other
    rows = source.rows(numbers)
    np.testing.assert_array_equal(rows["a"], FEATURES[numbers])
    np.testing.assert_array_equal(rows["b"], LABELS[numbers])
    assert source.size == ROWS


def test_numbers_of_another_byte_order(tmp_path):
    np.save(tmp_path / "big.npy", FEATURES.astype(">f8"))
    rows = hx.Finite.from_files(tmp_path / "big.npy").rows(np.arange(3))
    np.testing.assert_array_equal(rows, FEATURES[:3])
    assert rows.dtype.isnative


def test_a_run_draws_the_rows_that_finite_draws(paths, whole):
    data = FEATURES, LABELS
    known = solve(stated(hx.Finite(data), hx.Finite(data, replace=False)))
    np.testing.assert_allclose(np.append(whole.y, whole.x), np.append(known.y, known.x), rtol=1e-12)
    np.testing.assert_allclose(whole.history["upper"], known.history["upper"], rtol=1e-9)
    assert (whole.counts.zeta, whole.counts.xi) == (known.counts.zeta, known.counts.xi)
    assert not np.allclose(whole.x, solve(in_files(paths), seed=1).x, rtol=1e-12)


def test_the_thread_ends_with_the_run(paths, whole):
    for _ in range(100):
        if not any(thread.name.startswith("hierax files") for thread in threading.enumerate()):
            return
        time.sleep(0.05)
    raise AssertionError("a thread still reads files of a run that has ended")


# -- going on ----------------------------------------------------------------------------------------------------------


def test_the_same_call_gives_the_same_run_and_a_state_goes_on(paths, whole):
    problem = in_files(paths)
    first = solve(problem, 70)
    same(solve(problem), whole)
    second = hx.solve(problem, 1.0, np.zeros(2), state=first.state, max_steps=30, record_every=10)
    np.testing.assert_array_equal((second.x, *second.y), (whole.x, *whole.y))
    assert second.counts.waiting_seconds >= first.counts.waiting_seconds


def test_a_checkpoint_goes_on_with_files_elsewhere_and_refuses_other_data(paths, whole, tmp_path):
    solve(in_files(paths), 40, checkpoint=tmp_path / "checkpoint")
    moved = tmp_path / "moved.npy", tmp_path / "too.npy"
    for old, new in zip(paths, moved, strict=True):
        new.write_bytes(Path(old).read_bytes())
    same(solve(in_files(moved), checkpoint=tmp_path / "checkpoint"), whole)
    np.save(moved[1], LABELS + 1.0)
    with pytest.raises(hx.InputError, match="data zeta"):
        solve(in_files(moved), checkpoint=tmp_path / "checkpoint")


def test_a_file_that_changes_ends_the_run_with_what_it_has(paths, tmp_path):
    own = tmp_path / "features.npy", tmp_path / "labels.npy"
    for old, new in zip(paths, own, strict=True):
        new.write_bytes(Path(old).read_bytes())
    problem = in_files(own)

    def cut_off(info):
        with open(own[0], "r+b") as file:
            file.truncate(1_000)

    found = solve(problem, 5_000, callback=cut_off, throw=False)
    assert found.status.name == "data_error"
    assert 10 <= found.status.step < 5_000
    assert "features.npy has 1000 bytes" in found.status.message
    assert "go on with state=sol.state" in found.status.message
    own[0].unlink()
    with pytest.raises(hx.InputError, match=r"cannot read .*features.npy any more: No such file"):
        solve(problem)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read_row_by_row(paths, tmp_path):
    def refused(match, *given):
        with pytest.raises(hx.InputError, match=match):
            hx.Finite.from_files(given if len(given) > 1 else given[0])

    def saved(name, array, **options):
        np.save(tmp_path / name, array, **options)
        return tmp_path / name

    refused("cannot read .*none.npy: No such file", tmp_path / "none.npy")
    refused("cannot read", tmp_path)
    (tmp_path / "text.npy").write_text("no numbers")
    refused("text.npy is no .npy file of numbers", tmp_path / "text.npy")
    np.savez(tmp_path / "many.npz", FEATURES)
    refused("many.npz is no .npy file of numbers", tmp_path / "many.npz")
    (tmp_path / "cut.npy").write_bytes(Path(paths[0]).read_bytes()[:-8])
    refused("cut.npy is no .npy file of numbers", tmp_path / "cut.npy")
    refused("objects.npy is no .npy file", saved("objects.npy", np.array([{}, {}]), allow_pickle=True))
    refused("words.npy holds <U1, not numbers", saved("words.npy", np.array(["a", "b"])))
    refused("has no rows", saved("empty.npy", np.zeros((0, 3))))
    refused("has no rows", saved("scalar.npy", np.zeros(())))
    refused("Fortran order", saved("fortran.npy", np.asfortranarray(FEATURES)))
    refused(
        "same number of rows .*features.npy has 300, .*short.npy has 10", *paths[:1], saved("short.npy", np.zeros(10))
    )
    refused("needs a path of a .npy file, or a pytree of them; got ndarray", FEATURES)
    with pytest.raises(hx.InputError, match="replace"):
        hx.Finite.from_files(paths, replace="no")


def test_methods_that_need_all_of_the_data_refuse_files(paths):
    problem = in_files(paths)
    for method in (hx.BLOCC(), hx.SALVF(inner=hx.Exact())):
        with pytest.raises(hx.InputError, match="on all of xi, which data in files are too large for"):
            hx.solve(problem, 1.0, np.zeros(2), method)
    with pytest.raises(hx.InputError, match=r"SALVF\(repair\): .* not a Stream or files"):
        hx.solve(problem, 1.0, np.zeros(2), hx.SALVF(repair=10))
    with pytest.raises(hx.InputError, match=r"Problem\(zeta\): theory draws samples of its own"):
        hx.theory(problem, 1.0, np.zeros(2), 0.1)
    with pytest.raises(hx.InputError, match=r"batch size 301 for xi exceeds the 300 rows"):
        hx.solve(problem, 1.0, np.zeros(2), hx.SALVF(batch_xi=301))


# -- judging -----------------------------------------------------------------------------------------------------------


def test_certificates_see_some_rows_and_say_how_far_that_goes(paths, whole):
    """With all rows, what `Finite` gives; with fewer, the same within a few standard errors."""
    data = FEATURES, LABELS
    known = hx.certify(stated(hx.Finite(data), hx.Finite(data)), whole.x, whole.y)
    every = hx.certify(in_files(paths), whole.x, whole.y)
    assert every.lower_gap == pytest.approx(known.lower_gap, rel=1e-9)
    assert "zeta: all 300 rows" in str(every)
    some = hx.certify(in_files(paths), whole.x, whole.y, samples=160)
    assert "xi: 160 of 300 rows" in str(some)
    assert 0 < abs(some.lower_gap - known.lower_gap) < 6 * some.lower_gap_se
    exact = np.mean((FEATURES @ np.asarray(whole.y) - LABELS) ** 2)
    assert whole.value == pytest.approx(exact, rel=1e-12)  # fewer rows than the 4,096 of a judgement


def test_a_problem_in_files_can_be_checked(paths):
    findings = hx.check(in_files(paths), 1.0, np.zeros(2))
    assert "values and shapes" in str(findings)
    assert "values and shapes" not in [finding.name for finding in findings.failures]


# -- memory ------------------------------------------------------------------------------------------------------------

MEASURED = """
import sys
import numpy as np, jax.numpy as jnp
import hierax as hx

path, entries = sys.argv[1], int(sys.argv[2])
source = hx.Finite.from_files(path, replace=False)

def resident():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS")]

def problem(source):
    return hx.Problem(
        upper=lambda x, y, zeta: jnp.mean((zeta @ (y - 1.0)) ** 2) + x**2,
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        zeta=source,
    )

method = hx.SALVF(batch_zeta=256)
def solve(steps):
    return hx.solve(problem(source), 0.5, np.zeros(entries, np.float32), method, max_steps=steps)

solve(40)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the most that was resident is counted from now on
before = resident()[1]
steps = source.size // 256
found = solve(steps)
assert found.counts.zeta == steps * 256
print(resident()[0] - before)
"""


def growth_of_an_epoch(path, megabytes):
    """Megabytes by which the resident memory of a process grows at most while it reads every row of a file once."""
    entries = 1000
    array = np.lib.format.open_memmap(path, "w+", np.float32, (megabytes * 10**6 // (4 * entries), entries))
    for first in range(0, len(array), 2000):
        array[first : first + 2000] = np.arange(entries, dtype=np.float32) / entries
    del array
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path), str(entries)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    return float(ended.stdout)


linux = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="reads Linux's record of memory")


@linux
def test_reading_a_whole_file_takes_a_bounded_memory(tmp_path):
    assert growth_of_an_epoch(tmp_path / "data.npy", 200) < 100


@linux
@pytest.mark.slow  # test_reading_a_whole_file_takes_a_bounded_memory reads a smaller file
def test_reading_a_file_of_400_megabytes_takes_no_more(tmp_path):
    assert growth_of_an_epoch(tmp_path / "data.npy", 400) < 100
