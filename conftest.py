"""Settings of the whole suite: what it costs to compile, float64 unless a test says otherwise, no surprising examples.

Compiling and tracing are nearly all of the suite's time; no test computes for long. So the compiler does as little as
it can, and what was compiled once is kept in a folder that worker processes, subprocesses of tests and later runs of
the suite share.
"""

import gc
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import jax
import pytest
from hypothesis import settings

# Unoptimised code, in one piece: test_gaffa.py takes 31 s of processor time instead of 47 s with JAX 0.12. An XLA that
# does not know a flag stops the process, so they depend on the version of JAX: Python 3.11 resolves to 0.10.2, Python
# 3.13 to 0.12, whose XLA has no older and quicker emitters any more.
if "XLA_FLAGS" not in os.environ and (0, 10, 2) <= jax.__version_info__ < (0, 13):
    flags = [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
        # Two passes that look for what need not be computed in every round of a loop: a tenth of what a program costs.
        "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops",
    ]
    if jax.__version_info__ == (0, 10, 2):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)

jax.config.update("jax_enable_x64", True)

# Strict: arrays of different types or ranks meet only where the code says so. A test that has to mix them (optax does,
# and so do tests of mixed precision) asks for the fixture `promotion` and says why.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The first example of a test compiles, so no deadline; derandomised, so that a failure is there again tomorrow.
settings.register_profile("hierax", deadline=None, max_examples=8, derandomize=True, database=None)
settings.load_profile("hierax")

# Compiled programs are kept in .pytest_cache; beyond this size (the suite needs a tenth) all of them are thrown away.
KEPT_BYTES = 1_000_000_000

# Traces are many small objects that stay: looking through all of them as often as Python does takes 7 % of the suite.
gc.set_threshold(50_000, 20, 10)

MAX_RESIDENT_BYTES = 1_200_000_000  # of a test process, beyond which compiled programs are dropped between files


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs, here and, through the environment, in workers and subprocesses.

    JAX files a program under a hash of its text, the compiler's version and flags and the kind of processor: a change
    of any of them is another file, so nothing has to be invalidated. `pytest --cache-clear` empties the folder.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job in the background of a shell; some tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        if not config.pluginmanager.hasplugin("cacheprovider"):
            return  # -p no:cacheprovider: nothing is to be kept
        folder = config.cache.mkdir("jax")
        if sum(file.stat().st_size for file in folder.iterdir()) > KEPT_BYTES:
            shutil.rmtree(folder)
            folder.mkdir()
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # JAX has read its environment by now.
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What tests/long.txt lists is slow: it runs in `make test-all` only."""
    lines = (Path(__file__).parent / "tests" / "long.txt").read_text("utf-8").splitlines()
    long = {line for line in lines if line and not line.startswith("#")}
    met, files = set(), {item.path.name for item in items}
    for item in items:
        name = f"{item.path.name}::{item.name}"
        named = long & {item.path.name, name.split("[")[0], name}
        if named:
            item.add_marker(pytest.mark.slow)
        met |= named
    stale = sorted(line for line in long - met if line.split("::")[0] in files)
    if stale and not any("::" in arg for arg in config.args):
        raise pytest.UsageError(f"tests/long.txt names what is not there: {', '.join(stale)}. Take these lines out.")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Compiled programs of files that are done go once there are many: a process stays below two gigabytes."""
    if nextitem is None or nextitem.path == item.path or sys.platform != "linux":
        return
    resident = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident > MAX_RESIDENT_BYTES:
        from hierax.extend import forget_programs

        forget_programs()
        jax.clear_caches()
        gc.collect()


class MovableClock:
    """`time.perf_counter`, which a test may move forward."""

    def __init__(self) -> None:
        self._ahead, self._real = 0.0, time.perf_counter

    def __call__(self) -> float:
        return self._real() + self._ahead

    def forward(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovableClock:
    """The clock by which hierax keeps time limits: no test waits, or depends on how busy the machine is."""
    moved = MovableClock()
    monkeypatch.setattr(time, "perf_counter", moved)
    return moved


@pytest.fixture
def promotion():
    """Arrays of different types and ranks may meet, as in JAX by default."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def as_users_start(promotion):
    """JAX as it is in a fresh interpreter, for examples that users will type there: in single precision."""
    with jax.enable_x64(False):
        yield
