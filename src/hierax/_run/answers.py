"""Answers as files: `answer.json`, which `hierax solve` writes and `hierax verify` judges. JSON only, nothing is run.

    {"format": "hierax answer 1", "x": ..., "y": ..., "multipliers": {"inequalities": ..., ...}, "F": 0.0909,
     "problem": {"sha256": "...", "jax": "0.10.2"}}

A variable that is one array is a number or nested lists; a tree is an object with one entry for each array, by its path
("layers.0.weight"). Only x and y must be there. docs/guides/verify.md tells the rest.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import FINE
from hierax._base.errors import InputError
from hierax._base.files import Json, json_in
from hierax._base.text import arrays_by_path
from hierax._base.trees import split_variable
from hierax._compile.configuration import float64
from hierax._judge.certificate import Certificate, Verdict
from hierax._judge.certifying import certify
from hierax._judge.measuring import SHOWN_TOLERANCE, SURE
from hierax._judge.point import judge_point
from hierax._problem.problem import CONSTRAINTS, Multipliers, Problem
from hierax._run.prepare import Fingerprint, fingerprint
from hierax._run.solution import Solution, answer_fields

SAME_VALUE_SHARE = FINE  # difference of F to the claimed one, relative to 1 + |F|
FORMAT = "hierax answer 1"
FIELDS = ("format", "x", "y", "multipliers", "F", "problem")


class Answer(NamedTuple):
    """Somebody's answer to a problem.

    Attributes:
        x: upper variable, in the structure of the problem's own start.
        y: lower variable, likewise.
        multipliers: None where the file has none.
        claimed: F as the file has it; None: not stated.
        problem_hash: hash of the problem that it answers; None: not stated.
        jax: version of JAX that this hash was made with.
        sha256: hash of its JSON, whatever the order of its keys and its spaces.
    """

    x: PyTree
    y: PyTree
    multipliers: Multipliers | None
    claimed: float | None
    problem_hash: str | None
    jax: str | None
    sha256: str


def content_of(solution: Solution) -> dict[str, Json]:
    """What `answer.json` holds for a solution."""
    found = fingerprint(solution.problem, solution.x, solution.y)
    return {"format": FORMAT, **answer_fields(solution), "problem": {"sha256": found.sha256, "jax": jax.__version__}}


def read(path: Path, problem: Problem, x0: PyTree, y0: PyTree) -> Answer:
    """The answer in a file, in the structure of the problem's start; InputError says what does not fit."""
    try:
        content = json_in(path.read_bytes(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        text = f"{path}: there is no such file; `hierax solve` writes answer.json into its folder (--out)."
        raise InputError(text) from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}).") from error
    if not isinstance(content, dict) or "x" not in content or "y" not in content:
        raise InputError(f"{path}: needs an object with x and y.")
    unknown = sorted(set(content) - set(FIELDS))
    if unknown or content.get("format", FORMAT) != FORMAT:
        odd = f"field {unknown[0]!r}" if unknown else f"format {content['format']!r}"
        raise InputError(f"{path}: unknown {odd}; this version reads {FORMAT!r} with {', '.join(FIELDS)}.")
    x, y = _variable("x", content["x"], x0), _variable("y", content["y"], y0)
    stated = _object("problem", content.get("problem"))
    for name in ("sha256", "jax"):
        if not isinstance(stated.get(name), str | None):
            raise InputError(f"problem.{name}: needs a text.")
    claimed = content.get("F")
    value = None if claimed is None else float(_numbers("F", claimed, ()))
    multipliers = _multipliers(content.get("multipliers"), problem, x, y)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return Answer(x, y, multipliers, value, stated.get("sha256"), stated.get("jax"), digest)


def _variable(name: str, given: object, like: PyTree) -> PyTree:
    """A variable in the structure of its start."""
    with float64():
        arrays, rest = split_variable(f"{name}0", like)
    return eqx.combine(_filled(name, given, arrays), rest)


def _filled(name: str, given: object, like: PyTree) -> PyTree:
    """The numbers of a file in the structure of `like`, whose leaves have shapes."""
    wanted = arrays_by_path(like)
    found = {"": given} if set(wanted) == {""} else _object(name, given)
    if set(found) != set(wanted):
        odd = sorted(set(found) ^ set(wanted))[0]
        raise InputError(f"{name}: {'has no' if odd in wanted else 'does not know'} {odd!r}; needs {sorted(wanted)}.")
    titles = {path: f"{name}.{path}" if path else name for path in wanted}
    leaves = [_numbers(titles[path], found[path], tuple(leaf.shape)) for path, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _multipliers(given: object, problem: Problem, x: PyTree, y: PyTree) -> Multipliers | None:
    if given is None:
        return None
    found, trees = _object("multipliers", given), []
    functions = {name: getattr(problem, of) for name, of in zip(Multipliers._fields, CONSTRAINTS, strict=True)}
    if set(found) - set(functions):
        raise InputError(f"multipliers: does not know {sorted(set(found) - set(functions))[0]!r}.")
    for name, function in functions.items():
        with float64():
            shapes = eqx.filter_eval_shape(function, x, y)
        trees.append(_filled(f"multipliers.{name}", found.get(name, {}), shapes))
    return Multipliers(*trees)


def _object(name: str, given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InputError(f"{name}: needs an object with a name for every entry.")
    return given


def _numbers(name: str, given: object, shape: tuple[int, ...]) -> np.ndarray:
    """Nested lists of numbers as an array of that shape."""
    try:
        array = np.asarray(given) if _holds_numbers(given) else np.zeros(0, bool)  # one long text would widen all
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{name}: is no array ({error}).") from error
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name}: needs numbers, or nested lists of them.")
    if array.shape != shape:
        raise InputError(f"{name}: has shape {array.shape}, the problem's has {shape}.")
    if not np.isfinite(array).all():
        raise InputError(f"{name}: has entries that are not finite.")
    return array.astype(np.float64)


def _holds_numbers(given: object) -> bool:
    return all(map(_holds_numbers, given)) if isinstance(given, list) else type(given) in (int, float)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# -- checking ---------------------------------------------------------------------------------------------------------


class Verification(NamedTuple):
    """What was found about an answer.

    Attributes:
        upper: F(x, y).
        certificate: of the point.
        problem: hash of the problem.
        objections: what is stated beside the point and is not so.
        remarks: what could not be compared.
    """

    upper: float
    certificate: Certificate
    problem: Fingerprint
    objections: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The certificate's, and "no" where something else was stated than is so."""
        return "no" if self.objections else self.certificate.verdict(SHOWN_TOLERANCE)


def verify(problem: Problem, answer: Answer) -> Verification:
    """Check an answer: an independent check of F, the certificate, and both hashes.

    Nothing of the answer is trusted: F is computed from x and y on the problem's own data, the lower level is solved
    anew by the certificate. What is stated beside the point, F and the hash of the problem, is compared.
    """
    found = fingerprint(problem, answer.x, answer.y)
    upper = float(judge_point(problem, answer.x, answer.y).upper)
    certificate = certify(problem, answer.x, answer.y, multipliers=answer.multipliers)
    objections, remarks = [], []
    if answer.claimed is not None:
        noise = 2 * SURE * (certificate.upper_se or 0.0)  # two samples may differ
        allowed = SAME_VALUE_SHARE * (1 + abs(upper)) + noise
        if not abs(upper - answer.claimed) <= allowed:
            objections.append(f"F is {upper:.10g}, not {answer.claimed:.10g} as claimed.")
    if answer.problem_hash is not None and found.sha256 is None:
        remarks.append(f"The problem has no hash to compare with: {found.why}.")
    elif answer.problem_hash is not None and answer.problem_hash != found.sha256:
        if answer.jax == jax.__version__:
            objections.append("The answer states the hash of another problem.")
        else:
            version = answer.jax or "an unknown version"
            remarks.append(f"The hash was made with JAX {version}, here is {jax.__version__}: not comparable.")
    return Verification(upper, certificate, found, tuple(objections), tuple(remarks))
