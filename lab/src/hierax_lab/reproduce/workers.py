"""Tasks of an experiment in as many processes as there are cores, one core each, so that seconds compare.

A task is a function of a module and its arguments. The results come back by the names of the tasks; nothing here knows
what is computed.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

import jax
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hierax import cache as keep_programs
from hierax.extend import Interrupt, die_when_terminated, interruptible
from hierax_lab.progress import lines_on_stderr

LOOK_SECONDS = 0.5  # between two checks for Ctrl-C
TELL_SECONDS = 10.0  # between two lines that say what is under way
ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
T = TypeVar("T")
Name = tuple[str, ...]  # of a task: what the experiment calls it, from the general to the particular
Task = tuple[Callable[..., T], tuple[object, ...]]


def run_tasks(
    tasks: Mapping[Name, Task[T]],
    console: Console,
    parallel: bool,
    keep: Callable[[dict[Name, T]], object] | None = None,
    fresh: bool = False,
) -> dict[Name, T]:
    """What each function gives for its arguments; starts them in the given order and prints a line when one ends.

    Meanwhile a line with a clock says what is under way; where the console is no terminal, a line on stderr now and
    then.

    Functions and arguments of parallel tasks are sent to other processes: functions of a module, plain data. `keep` is
    called with all results so far whenever a task ends, so that nothing is lost where a long run is ended. With `fresh`
    every parallel task has a process of its own, which takes no compiled program from disk. Ctrl-C ends the tasks under
    way, whose results are dropped, and raises KeyboardInterrupt.
    """
    began = time.perf_counter()
    found: dict[Name, T] = {}

    def done(name: Name, result: T) -> None:
        found[name] = result
        after, text = time.perf_counter() - began, ", ".join(name)
        console.print(f"{after:4.0f} s: {text} ({len(found)} of {len(tasks)})", style="dim", highlight=False)
        if keep is not None:
            keep(found)

    with interruptible() as interrupt, _telling(console) as say:

        def under_way(name: Name | None = None) -> None:
            say(f"{len(found)} of {len(tasks)} tasks done{', now ' * bool(name)}{', '.join(name or ())}")

        under_way()
        if parallel:
            results = (_in_fresh_processes if fresh else _in_processes)(tasks, interrupt)
        else:
            results = _one_by_one(tasks, interrupt, under_way)
        for name, result in results:
            done(name, result)
            under_way()
        if interrupt.asked:
            console.print(f"Interrupted: {len(found)} of {len(tasks)} tasks were done.", highlight=False)
            raise KeyboardInterrupt
    return found


@contextmanager
def _telling(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that takes what is under way, and shows it until something else is: nobody waits without a sign."""
    if console.quiet:
        yield lambda text: None
    elif console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as shown:
            line = shown.add_task("")
            yield lambda text: shown.update(line, description=text)
    else:
        with lines_on_stderr(TELL_SECONDS) as say:
            yield say


def _one_by_one(
    tasks: Mapping[Name, Task[T]], interrupt: Interrupt, under_way: Callable[[Name], None]
) -> Iterator[tuple[Name, T]]:
    for name, (function, arguments) in tasks.items():
        if interrupt.asked:
            return
        under_way(name)
        try:
            result = function(*arguments)
        except KeyboardInterrupt:
            interrupt.ask()
            return
        if not interrupt.asked:  # else it ended before its time
            yield name, result


def _in_processes(tasks: Mapping[Name, Task[T]], interrupt: Interrupt) -> Iterator[tuple[Name, T]]:
    cache = jax.config.values["jax_compilation_cache_dir"]
    spawn, others = get_context("spawn"), set(active_children())
    with (
        _one_core(),
        ProcessPoolExecutor(_cores(), mp_context=spawn, initializer=_settle, initargs=(cache,)) as pool,
    ):
        waiting: dict[Future[T], Name] = {
            pool.submit(function, *arguments): name for name, (function, arguments) in tasks.items()
        }
        while waiting and not interrupt.asked:
            ended, _ = wait(waiting, LOOK_SECONDS, FIRST_COMPLETED)
            for future in ended:
                yield waiting.pop(future), future.result()
        if waiting:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:
                worker.terminate()


def _in_fresh_processes(tasks: Mapping[Name, Task[T]], interrupt: Interrupt) -> Iterator[tuple[Name, T]]:
    spawn = get_context("spawn")
    waiting = list(tasks.items())
    running: dict[Connection, tuple[Name, SpawnProcess]] = {}
    with _one_core():
        try:
            while (waiting or running) and not interrupt.asked:
                while waiting and len(running) < _cores():
                    name, (function, arguments) = waiting.pop(0)
                    here, there = spawn.Pipe(duplex=False)
                    process = spawn.Process(target=_apart, args=(there, function, arguments))
                    process.start()
                    there.close()
                    running[here] = name, process
                for pipe in wait_for_any(list(running), LOOK_SECONDS):
                    assert isinstance(pipe, Connection)
                    name, process = running.pop(pipe)
                    yield name, _received(pipe, name, process)
        finally:
            for _, process in running.values():
                process.terminate()


def _received(pipe: Connection, name: Name, process: SpawnProcess) -> Any:
    """The result of a process that has ended or is about to."""
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{', '.join(name)}: its process ended without a result ({process.exitcode})") from None
    finally:
        pipe.close()
        process.join()


def _apart(pipe: Connection, function: Callable[..., T], arguments: tuple[object, ...]) -> None:
    """What a fresh process does: one task, with no compiled program kept or taken from disk."""
    _settle(None)
    jax.config.update("jax_compilation_cache_dir", None)
    pipe.send(function(*arguments))
    pipe.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_core_variables() -> dict[str, str]:
    """Environment variables that keep a process to one core."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_CORE}".strip()
    return {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}


@contextmanager
def _one_core() -> Iterator[None]:
    """Processes started inside keep to one core each: they read these variables when they load their libraries."""
    wanted = one_core_variables()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _settle(cache: str | None) -> None:
    """A worker computes as the command line does: in float64, with compiled programs kept.

    Settings that fail are in the results; a line for each would only hide the progress. Ctrl-C is the parent's: a task
    that it ended early must not come back as a result, and a worker that the parent ends does so at once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_when_terminated()
    logging.getLogger("hierax").setLevel(logging.ERROR)
    jax.config.update("jax_enable_x64", True)
    if cache is not None:
        keep_programs(cache)
