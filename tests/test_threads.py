"""Several threads at once: what is compiled, and what belongs to the whole process. `make soak` has 24 of them.

Unit tests of hierax._compile.bound and hierax._compile.configuration.
"""

import threading
import warnings

import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax._compile import bound as programs
from hierax._compile.bound import Bound
from hierax._compile.configuration import SharedContext

THREADS = 4


def at_once(work):
    """What `work(i)` returns in each of the threads, which all begin together."""
    found, ready = [None] * THREADS, threading.Barrier(THREADS)

    def run(i):
        ready.wait()
        try:
            found[i] = work(i)
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert not any(thread.is_alive() for thread in threads)
    errors = [one for one in found if isinstance(one, BaseException)]
    assert not errors, errors
    return found


def solved(i):
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1.0) ** 2) + 0.1 * x**2,
        lower=lambda x, y, xi: jnp.sum((y - (2.0 + i) * x) ** 2),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
    )
    return hx.solve(problem, 0.5, np.full(3, 0.5), hx.SALVF(), max_steps=50)


def test_threads_end_where_one_does(monkeypatch):
    programs.forget_programs()
    with monkeypatch.context() as patched:
        patched.setattr(programs, "MAX_PROGRAMS", 2)  # the threads drop each other's programs all the time
        together = at_once(solved)
    for i, one in enumerate(together):
        alone = solved(i)
        np.testing.assert_array_equal((one.x, *one.y), (alone.x, *alone.y))


def test_what_one_thread_compiles_the_others_wait_for():
    counts, lock = [0], threading.Lock()

    def function(problem, x):
        with lock:
            counts[0] += 1  # while it is traced
        return x * 3.0

    problem = hx.Problem(upper=lambda x, y, zeta: x, lower=lambda x, y, xi: y)
    bounds = [Bound(problem, None, None) for _ in range(THREADS)]
    found = at_once(lambda i: float(bounds[i].run("a program of this test", function, np.float32(i))))
    assert found == [0.0, 3.0, 6.0, 9.0]
    assert counts == [1]


def test_a_failure_to_compile_is_everybodys_own():
    def function(problem, x):
        raise ValueError("not today")

    problem = hx.Problem(upper=lambda x, y, zeta: x, lower=lambda x, y, xi: y)

    def attempt(i):
        try:
            Bound(problem, None, None).run("another program of this test", function, np.float32(i))
        except ValueError as error:
            return str(error)

    assert at_once(attempt) == ["not today"] * THREADS
    assert not programs._compiling


def test_filters_of_warnings_are_put_back_by_the_last_thread():
    shared, before = SharedContext(warnings.catch_warnings), list(warnings.filters)
    inside = threading.Barrier(THREADS)

    def work(i):
        with shared:
            warnings.simplefilter("ignore")
            inside.wait()  # all are in it, and leave it one after another

    at_once(work)
    assert list(warnings.filters) == before
