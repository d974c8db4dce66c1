"""The facts of a run as JSON: what run.json holds, and the one thing that pages are made of.

A page made from a solution and one made from the folder that `hierax solve` wrote go through the same facts, so they
say the same.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.files import Json
from hierax._base.text import as_json, named_point
from hierax._base.trees import size
from hierax._judge.certificate import SHOWN_TOLERANCE
from hierax._problem.problem import is_streamed
from hierax._problem.samples import Finite, Sampler
from hierax._run.outcome import certificate_or_why
from hierax._run.solution import Solution, Solutions, Starts, certificate_fields, fields_of, run_fields
from hierax.reports.certificate_lines import lines_of, tests_of

POINT = ("F", "x", "y", "multipliers", "globality")  # fields of a solution that answer.json or the log have
MAX_ARRAYS_LISTED = 12  # of a tree
MAX_NUMBERS_IN_FULL = 60  # of an array
MAX_STARTS_LISTED = 200  # of `solve_many`


def facts_of(solution: Solution, settings: Mapping[str, object], certify: bool = False) -> dict[str, Json]:
    """The facts of a run.

    Args:
        solution: of the run.
        settings: what was asked for, by name: what it takes to repeat the run.
        certify: make the certificate where it is not known.
    """
    certificate = certificate_facts(solution, certify)
    return {
        **{name: entry for name, entry in fields_of(solution).items() if name not in POINT},
        "settings": as_json(settings),
        **_problem_and_answer(solution),
        "value": as_json(solution.value),
        "value_of": value_text(solution),
        "certificate": certificate,
    }


def facts_of_many(solutions: Solutions) -> dict[str, Json]:
    """The facts of the runs of `solve_many`: together, and start by start."""
    names = sorted({status.name for status in solutions.status})
    counted = ", ".join(f"{sum(one.name == name for one in solutions.status)} {name}" for name in names)
    first = {name: next(one.message for one in solutions.status if one.name == name) for name in names}
    messages = " ".join(f"For example, {name}: {message.removeprefix(f'{name}: ')}" for name, message in first.items())
    step = max(one.step for one in solutions.status)
    each = _each(solutions)
    failed = np.array([status.failed for status in solutions.status])
    ends = np.where(failed, np.nan, [one.value for one in each])
    best = int(np.nanargmin(ends)) if np.isfinite(ends).any() else None
    value_of = "every start failed"
    if best is not None:  # a lower F may violate something
        where = f"the lowest, of start {best}, whose violation is {each[best].violation:.2g}"
        value_of = f"{where}; {value_text(solutions)}"
    return {
        **run_fields(solutions),
        "status": {"name": counted, "message": messages, "step": step, "kinds": as_json(names)},
        **_problem_and_answer(solutions[best or 0], with_answer=best is not None),
        "value": None if best is None else as_json(ends[best]),
        "value_of": value_of,
        "certificate": {"missing": "Each start has its own: sols[i].certificate, and sols[i].report(path)."},
        "each": as_json(each[:MAX_STARTS_LISTED]),
        "starts": as_json(Starts(tuple(ends.tolist()), f"The ends of {len(each)} starts.")),
    }


class _Start(NamedTuple):
    """How one of many starts ended."""

    status: str
    value: float
    violation: float
    verdict: str


def _each(solutions: Solutions) -> list[_Start]:
    """Every start; without a judgement, F and violation are those of its last record."""
    judged = solutions.judgements
    violations = solutions.last_record("violation") if judged is None else [float(one.violation) for one in judged]
    tolerances = [one.tol for one in solutions.each] or [SHOWN_TOLERANCE] * len(solutions)
    known = zip(solutions.known_certificates, tolerances, strict=True)
    verdicts = ["not made" if certificate is None else certificate.verdict(tol) for certificate, tol in known]
    names = [status.name for status in solutions.status]
    return [_Start(*one) for one in zip(names, map(float, solutions.values), violations, verdicts, strict=True)]


def certificate_facts(solution: Solution, certify: bool) -> dict[str, Json]:
    """What the certificate says at the solution's tolerance, or why there is none."""
    found, tol = certificate_or_why(solution, certify), solution.tol
    if isinstance(found, str):
        return {"missing": f"Not made: {found}"}
    tests, lines = as_json(tests_of(found, tol)), as_json([tuple(line) for line in lines_of(found, tol)])
    return {**certificate_fields(found, tol), "tests": tests, "lines": lines}


def _problem_and_answer(solution: Solution, with_answer: bool = True) -> dict[str, Json]:
    """The problem in words, and the numbers that were found."""
    return {"problem": as_json(problem_rows(solution)), "answer": as_json(answer_rows(solution) if with_answer else [])}


def problem_rows(solution: Solution) -> list[tuple[str, str]]:
    """The problem in words, with the sizes of its variables and constraints."""
    rows = [("upper variable x", _sizes("x", solution.x)), ("lower variable y", _sizes("y", solution.y))]
    counts = {name: size(part) for name, part in solution.multipliers._asdict().items()}
    named = {"constraints h <= 0": "inequalities", "equalities e = 0": "equalities", "upper constraints": "upper"}
    for title, text in solution.problem.described():
        count = counts.get(named.get(title, ""), 0)
        rows.append((title, f"{count:,} row{'s' * (count != 1)}: {text}" if count else text))
    return rows


def answer_rows(solution: Solution) -> list[tuple[str, str]]:
    """The numbers that were found, array by array."""
    own = solution.multipliers._asdict()
    trees = {"x": solution.x, "y": solution.y, **{f"multipliers.{name}": tree for name, tree in own.items()}}
    return [
        row
        for name, tree in trees.items()
        for row in _listed(named_point(name, tree, MAX_NUMBERS_IN_FULL), f"further arrays of {name}")
    ]


def value_text(result: Solution | Solutions) -> str:
    """What F was evaluated on."""
    source = result.problem.zeta
    if result.several_processes or is_streamed(result.problem):
        return "as the last record of the run has it: a mean over some batches"
    if source is None:
        return "exact: the upper objective has no samples"
    if isinstance(source, Finite):
        return f"on all {source.size:,} rows of the data"
    if isinstance(source, Sampler) and source.exact is not None:
        return "as the expectation, which is known"
    return f"on {FRESH_SAMPLES:,} fresh samples" if isinstance(source, Sampler) else "on rows of the files"


def _sizes(name: str, tree: PyTree) -> str:
    leaves = [
        (f"{name}{jax.tree_util.keystr(path)}", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if hasattr(leaf, "dtype")
    ]
    total = sum(leaf.size for _, leaf in leaves)
    types = ", ".join(sorted({str(leaf.dtype) for _, leaf in leaves}))
    text = f"{total:,} number{'s' * (total != 1)}, {types}"
    if len(leaves) == 1 and leaves[0][0] == name:
        shape = leaves[0][1].shape
        return f"{text}, shape {shape}" if len(shape) > 1 else text
    arrays = ", ".join(f"{path} {tuple(leaf.shape)}" for path, leaf in leaves[:MAX_ARRAYS_LISTED])
    more = f" and {len(leaves) - MAX_ARRAYS_LISTED} more" if len(leaves) > MAX_ARRAYS_LISTED else ""
    return f"{text}, in {len(leaves)} array{'s' * (len(leaves) != 1)}: {arrays}{more}"


def _listed(rows: Sequence[tuple[str, str]], rest: str) -> list[tuple[str, str]]:
    left_out = len(rows) - MAX_ARRAYS_LISTED
    return [*rows[:MAX_ARRAYS_LISTED], *([(rest, f"{left_out}: see arrays.npz")] if left_out > 0 else [])]
