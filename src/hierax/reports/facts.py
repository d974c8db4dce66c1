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
from hierax._base.errors import InputError
from hierax._base.files import Json
from hierax._base.text import named_point
from hierax._judge.certificate import SHOWN_TOLERANCE, Certificate
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Finite, Sampler, Stream
from hierax._run.solution import Solution, Solutions
from hierax._run.starts import Starts
from hierax.reports.certificate_lines import lines_of, tests_of
from hierax.reports.json_values import as_json
from hierax.reports.versions import versions

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
    status = solution.status
    return _as_json(
        {
            "settings": dict(settings),
            "method": solution.method,
            "versions": versions(),
            "status": {"name": status.name, "message": status.message, "step": status.step},
            "counts": solution.counts,
            "log": solution.log,
            "problem": problem_rows(solution.problem, solution.x, solution.y, solution.multipliers),
            "answer": answer_rows(solution),
            "value": solution.value,
            "value_of": value_text(solution.problem, solution.several_processes),
            "certificate": certificate_facts(solution, certify),
            "starts": solution.starts,
        }
    )


def facts_of_many(solutions: Solutions) -> dict[str, Json]:
    """The facts of the runs of `solve_many`: together, and start by start."""
    names = sorted({status.name for status in solutions.status})
    counted = ", ".join(f"{sum(one.name == name for one in solutions.status)} {name}" for name in names)
    first = {name: next(one.message for one in solutions.status if one.name == name) for name in names}
    messages = " ".join(f"For example, {name}: {message.removeprefix(f'{name}: ')}" for name, message in first.items())
    each = _each(solutions)
    failed = np.array([status.failed for status in solutions.status])
    ends = np.where(failed, np.nan, [one.value for one in each])
    shapes = solutions[0]
    return _as_json(
        {
            "settings": dict(solutions.arguments),
            "method": solutions.method,
            "versions": versions(),
            "status": {
                "name": counted,
                "message": messages,
                "step": max(one.step for one in solutions.status),
                "kinds": names,
            },
            "counts": solutions.counts,
            "log": solutions.log,
            "problem": problem_rows(shapes.problem, shapes.x, shapes.y, shapes.multipliers),
            **_lowest(solutions, each, ends),
            "certificate": {"missing": "Each start has its own: sols[i].certificate, and sols[i].report(path)."},
            "each": each[:MAX_STARTS_LISTED],
            "starts": Starts(tuple(ends.tolist()), f"The ends of {len(each)} starts."),
        }
    )


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


def _lowest(solutions: Solutions, each: Sequence[_Start], ends: np.ndarray) -> dict[str, object]:
    """The lowest F of starts that did not fail, its point, and its violation: a lower F may violate something."""
    if not np.isfinite(ends).any():
        return {"value": None, "value_of": "every start failed"}
    best = int(np.nanargmin(ends))
    where = f"the lowest, of start {best}, whose violation is {each[best].violation:.2g}"
    return {
        "value": ends[best],
        "value_of": f"{where}; {value_text(solutions.problem, solutions.several_processes)}",
        "answer": answer_rows(solutions[best]),
    }


def certificate_facts(solution: Solution, certify: bool) -> dict[str, object]:
    """What the certificate says at the solution's tolerance, or why there is none."""
    certificate = solution.known_certificate
    if certificate is None:
        if solution.several_processes:
            return {"missing": "Not made: several processes ran, and none of them has all of the data."}
        if any(isinstance(source, Stream) for source in (solution.problem.zeta, solution.problem.xi)):
            return {"missing": "Not made: a Stream is never seen as a whole. hx.certify judges on data of your own."}
        if not certify:
            return {"missing": "Not made. sol.certificate makes it, and hierax verify judges answer.json."}
        try:
            certificate = solution.certificate
        except InputError as error:
            return {"missing": f"It cannot be made: {error}"}
    return _certificate_facts(certificate, solution.tol)


def _certificate_facts(certificate: Certificate, tol: float) -> dict[str, object]:
    return {
        "tol": tol,
        "verdict": certificate.verdict(tol),
        "reasons": certificate.reasons(tol),
        "tests": [list(test) for test in tests_of(certificate, tol)],
        "lines": [list(line) for line in lines_of(certificate, tol)],
        "upper_se": certificate.upper_se,
    }


def problem_rows(problem: Problem, x: PyTree, y: PyTree, multipliers: Multipliers) -> list[tuple[str, str]]:
    """The problem in words, with the sizes of its variables and constraints."""
    rows = [
        (f"{level} variable {name}", _sizes(name, tree)) for level, name, tree in (("upper", "x", x), ("lower", "y", y))
    ]
    counts = {
        name: sum(np.size(leaf) for leaf in jax.tree.leaves(part)) for name, part in multipliers._asdict().items()
    }
    named = {"constraints h <= 0": "inequalities", "equalities e = 0": "equalities", "upper constraints": "upper"}
    for title, text in problem.described():
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


def value_text(problem: Problem, shared: bool) -> str:
    """What F was evaluated on."""
    source = problem.zeta
    if shared or isinstance(source, Stream) or isinstance(problem.xi, Stream):
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


def _as_json(content: dict[str, object]) -> dict[str, Json]:
    return {name: as_json(entry) for name, entry in content.items()}
