"""What a checkpoint belongs to: problem, data, start, method and settings, each by name, as a text or a hash.

Limits of a run (`max_steps`, `seconds`) and who watches it are no part of it: a run may go on with others.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Iterator

import jax
import numpy as np

from hierax._base.settings import is_number
from hierax._compile.bound import FUNCTIONS
from hierax._compile.fingerprint import hash_of_function
from hierax._problem.files import FiniteFiles
from hierax._problem.samples import Sampler, Stream, is_spread_over_processes
from hierax._run.call import Call
from hierax._run.checkpoints import FUNCTION, HASH, UNKNOWN, hash_of_arrays
from hierax._run.prepare import Prepared

LIMITS = ("method setting seconds",)  # of `Auto`


def identity_of(prepared: Prepared, asked: object, call: Call) -> dict[str, str]:
    """The parts of a call by name; `asked`: the method, None for that of the state to go on from."""
    problem, (x, y) = prepared.problem, prepared.one_start()
    batches = {"upper": (prepared.few("zeta"),), "lower": (prepared.few("xi"),)}
    found = {
        f"{FUNCTION}{name}": hash_of_function(name, prepared.stated(name), (x, y, *batches.get(name, ()))) or UNKNOWN
        for name in FUNCTIONS
    }
    found |= {f"problem {name}": described(getattr(problem, name)) for name in ("x_set", "y_set")}
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        text = _source(name, source)
        found[f"data {name}"] = (
            HASH + prepared.processes.hash_of_all(text) if is_spread_over_processes(source) else text
        )
    found |= {"x0": hash_of_arrays(prepared.x), "y0": hash_of_arrays(prepared.y)}
    found |= {name: text for name, text in _settings(asked) if name not in LIMITS}
    seed = call.seed if isinstance(call.seed, int) else np.asarray(jax.random.key_data(call.seed)).tolist()
    return found | {
        "seed": str(seed),
        "output": call.output,
        "tol": str(call.tol),
        "record_every": str(call.record_every),
        "state": "none" if call.state is None else hash_of_arrays(call.state.run),
        "starts": "one" if prepared.count is None else str(prepared.count),
    }


def _source(name: str, source: object) -> str:
    if isinstance(source, Stream):
        return UNKNOWN
    if isinstance(source, FiniteFiles):
        return source.fingerprint()
    if isinstance(source, Sampler):
        draw = hash_of_function(f"{name}.draw", source.draw, (jax.random.key(0), 2)) or UNKNOWN
        return f"{draw} {hash_of_arrays(source.exact)}" if draw != UNKNOWN else UNKNOWN
    return described(source)


def _settings(asked: object) -> Iterator[tuple[str, str]]:
    """The method, and each of its settings."""
    yield "method", type(asked).__name__ if asked is not None else "that of the state"
    if dataclasses.is_dataclass(asked):
        for field in dataclasses.fields(asked):
            yield f"method setting {field.name}", described(getattr(asked, field.name))


def described(value: object, around: tuple[object, ...] = ()) -> str:
    """A setting as a text that tells it from others: numbers as they are, functions by what they are made of.

    `around`: what the value is part of; a function may close over itself.
    """
    if value is None or isinstance(value, bool | str):
        return str(value)
    if is_number(value):
        return repr(float(value)) if np.asarray(value).dtype.kind == "f" else repr(int(value))
    if isinstance(value, np.ndarray | jax.Array):
        return hash_of_arrays(value)
    if any(value is one for one in around):
        return type(value).__name__
    inside = functools.partial(described, around=(*around, value))
    if isinstance(value, types.FunctionType):
        made_of = " ".join(_made_of(value, inside))
        return f"{value.__qualname__}({hashlib.sha256(made_of.encode()).hexdigest()[:12]})"
    if isinstance(value, functools.partial):
        return f"partial({inside(value.func)}, {inside(value.args)}, {inside(value.keywords)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [f"{field.name}={inside(getattr(value, field.name))}" for field in dataclasses.fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {inside(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(inside, value))})"
    return type(value).__name__


def _made_of(function: types.FunctionType, inside: Callable[[object], str]) -> Iterator[str]:
    """A function's code, its defaults and what it closes over."""
    code = function.__code__
    yield code.co_code.hex()
    yield from (repr(one) for one in code.co_consts if not isinstance(one, types.CodeType))
    yield from (*code.co_names, inside(function.__defaults__))
    for cell in function.__closure__ or ():
        try:
            yield inside(cell.cell_contents)
        except ValueError:  # not set yet
            yield "empty"
