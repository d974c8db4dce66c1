"""The facts of a run as JSON: what run.json holds, and the one thing that pages are made of.

A page made from a solution and one made from the folder that `hierax solve` wrote go through the same facts, so they
say the same. Every number of a certificate has a sentence that says what it is and when it would pass.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.files import Json
from hierax._base.text import as_json, named_point
from hierax._base.trees import size
from hierax._judge.certificate import Certificate, measured_rows
from hierax._judge.measuring import SHOWN_TOLERANCE
from hierax._problem.problem import is_streamed
from hierax._problem.samples import Finite, Sampler
from hierax._run.solution import Solution, Solutions, certificate_fields, certificate_or_why, run_fields
from hierax.reports.panels import MAX_LISTED

POINT = ("F", "x", "y", "multipliers", "globality")  # fields of a solution that answer.json or the log have
MAX_NUMBERS_IN_FULL = 60  # of an array
MAX_STARTS_LISTED = 200  # of `solve_many`

Line = tuple[str, str, str]
"""What was looked at, what came out (empty: no number belongs to it), and what that means."""

MEANINGS = {  # of the numbers of a certificate, by their titles in its table
    "largest violation": "a constraint may be violated by {tol:g} of its size, in its own units",
    "lower gap G(x, y) - v(x)": "zero is optimal, below zero is infeasible; v(x) is found anew, in double precision",
    "distance ||y - y*(x)||": "how far y is from the answer that was found for the lower level at this x",
    "KKT residual of y": "how far y is from the lower level's optimality conditions; zero is exact, {tol:g} passes",
    "hyper-gradient, projected": "what X leaves of the slope of F(x, y*(x)); zero where no small move of x helps",
    "stationarity of Psi": "how far the run came with its own penalty function; it says nothing about your problem",
    "gain of moving x": "what a move of x by its own length could gain to first order; {tol:g} passes",
    "descent test": "points that were solved to look for a lower F",
    "active rows": "how far x may move, to first order, until a constraint below becomes active or ceases to be",
}


def facts_of(solution: Solution, settings: Mapping[str, object], certify: bool = False) -> dict[str, Json]:
    """The facts of a run.

    Args:
        solution: of the run.
        settings: what was asked for, by name: what it takes to repeat the run.
        certify: make the certificate where it is not known.
    """
    return {
        **{name: entry for name, entry in solution.to_dict().items() if name not in POINT},
        "settings": as_json(settings),
        "problem": as_json(problem_rows(solution)),
        "answer": as_json(answer_rows(solution)),
        "value": as_json(solution.value),
        "value_of": value_text(solution),
        "certificate": certificate_facts(solution, certify),
    }


def facts_of_many(solutions: Solutions) -> dict[str, Json]:
    """The facts of the runs of `solve_many`: together, and start by start."""
    first = {status.name: status.message for status in reversed(solutions.status)}
    names = sorted(first)
    counted = ", ".join(f"{sum(one.name == name for one in solutions.status)} {name}" for name in names)
    messages = " ".join(f"For example, {name}: {first[name].removeprefix(f'{name}: ')}" for name in names)
    step = max(one.step for one in solutions.status)
    failed = np.array([status.failed for status in solutions.status])
    ends = np.where(failed, np.nan, np.asarray(solutions.values, float))
    best = int(np.nanargmin(ends)) if np.isfinite(ends).any() else None
    value_of = "every start failed"
    if best is not None:  # a lower F may violate something
        where = f"the lowest, of start {best}, whose violation is {_violations(solutions)[best]:.2g}"
        value_of = f"{where}; {value_text(solutions)}"
    return {
        **run_fields(solutions),
        "status": {"name": counted, "message": messages, "step": step, "kinds": as_json(names)},
        "problem": as_json(problem_rows(solutions[best or 0])),
        "answer": [] if best is None else as_json(answer_rows(solutions[best])),
        "value": None if best is None else as_json(ends[best]),
        "value_of": value_of,
        "certificate": {"missing": "Each start has its own: sols[i].certificate, and sols[i].report(path)."},
        "each": as_json(rows_of_starts(solutions)),
        "starts": {"values": as_json(ends), "said": f"The ends of {len(ends)} starts."},
    }


def rows_of_starts(solutions: Solutions) -> list[tuple[str, ...]]:
    """Number, status, F, violation and verdict of every start, up to a number of them."""
    tolerances = [one.tol for one in solutions.each] or [SHOWN_TOLERANCE] * len(solutions)
    known = zip(solutions.known_certificates, tolerances, strict=True)
    verdicts = ["not made" if certificate is None else certificate.verdict(tol) for certificate, tol in known]
    columns = zip(solutions.status, solutions.values, _violations(solutions), verdicts, strict=True)
    rows: list[tuple[str, ...]] = [
        (str(i), status.name, _digits(float(value), 8), _digits(violation, 3), verdict)
        for i, (status, value, violation, verdict) in enumerate(columns)
    ]
    return rows[:MAX_STARTS_LISTED]


def _violations(solutions: Solutions) -> Sequence[float] | np.ndarray:
    """Of every start; without a judgement, that of its last record."""
    judged = solutions.judgements
    return solutions.last_record("violation") if judged is None else [float(one.violation) for one in judged]


def _digits(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "not known"


def problem_rows(solution: Solution) -> list[tuple[str, str]]:
    """The problem in words, with the sizes of its variables and constraints."""
    rows = [("upper variable x", _sizes(solution.x)), ("lower variable y", _sizes(solution.y))]
    counts = {name: size(part) for name, part in solution.multipliers._asdict().items()}
    named = {"constraints h <= 0": "inequalities", "equalities e = 0": "equalities", "upper constraints": "upper"}
    for title, text in solution.problem.described():
        count = counts.get(named.get(title, ""), 0)
        rows.append((title, f"{count:,} row{'s' * (count != 1)}: {text}" if count else text))
    return rows


def _sizes(tree: PyTree) -> str:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    total = sum(leaf.size for leaf in leaves)
    types = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
    text = f"{total:,} number{'s' * (total != 1)}, {types}"
    if len(leaves) == 1 and leaves[0].ndim < 2:
        return text
    shapes = ", ".join(str(leaf.shape) for leaf in leaves[:MAX_LISTED])
    more = f" and {len(leaves) - MAX_LISTED} more" if len(leaves) > MAX_LISTED else ""
    return f"{text}, in {len(leaves)} array{'s' * (len(leaves) != 1)} of shape {shapes}{more}"


def answer_rows(solution: Solution) -> list[tuple[str, str]]:
    """The numbers that were found, array by array."""
    own = solution.multipliers._asdict()
    trees = {"x": solution.x, "y": solution.y, **{f"multipliers.{name}": tree for name, tree in own.items()}}
    found = []
    for name, tree in trees.items():
        rows = named_point(name, tree, MAX_NUMBERS_IN_FULL)
        found += rows[:MAX_LISTED]
        if len(rows) > MAX_LISTED:
            found.append((f"further arrays of {name}", f"{len(rows) - MAX_LISTED}: see arrays.npz"))
    return found


def value_text(result: Solution | Solutions) -> str:
    """What F was evaluated on."""
    source, seen = result.problem.zeta, getattr(result, "estimates", None)
    if seen is not None:
        limit = "" if math.isnan(seen.gap) else f", at most {seen.gap:.2g} above the best nearby (95 %)"
        return f"out of sample, on {seen.fresh:,} fresh samples{limit}"
    if result.several_processes or is_streamed(result.problem):
        return "as the last record of the run has it: a mean over some batches"
    if source is None:
        return "exact: the upper objective has no samples"
    if isinstance(source, Finite):
        return f"on all {source.size:,} rows of the data"
    if isinstance(source, Sampler) and source.exact is not None:
        return "as the expectation, which is known"
    return f"on {FRESH_SAMPLES:,} fresh samples" if isinstance(source, Sampler) else "on rows of the files"


# -- the certificate --------------------------------------------------------------------------------------------------


def certificate_facts(solution: Solution, certify: bool) -> dict[str, Json]:
    """What the certificate says at the solution's tolerance, or why there is none."""
    found, tol = certificate_or_why(solution, certify), solution.tol
    if isinstance(found, str):
        return {"missing": f"Not made: {found}"}
    tests, lines = as_json(_tests(found, tol)), as_json([*_lines(found, tol)])
    return {**certificate_fields(found, tol), "tests": tests, "lines": lines}


def _tests(certificate: Certificate, tol: float) -> list[Line]:
    """The three questions that the verdict is made of, each with its own verdict and its first objection.

    Each is asked of the certificate itself, with the other two left out.
    """
    feasible = certificate.violation <= tol  # that alone does not need a lower level that was solved
    reasons = [] if feasible else certificate.reasons(tol, gap=math.inf, stationarity=math.inf)
    found = [("Is the point feasible?", "yes" if feasible else "no", "".join(reasons[:1]))]
    for question, left_out in (("Is y optimal below?", "stationarity"), ("Is x a local minimum above?", "gap")):
        limits = {"violation": math.inf, left_out: math.inf}
        reasons = certificate.reasons(tol, **limits)
        found.append((question, certificate.verdict(tol, **limits), "".join(reasons[:1])))
    return found


def _lines(certificate: Certificate, tol: float) -> Iterator[Line]:
    """The certificate's own table, with a sentence for every number."""
    for title, number, text in measured_rows(certificate, tol):
        sentences = [_sentence(part) for part in (MEANINGS.get(title, "").format(tol=tol), text) if part]
        yield title[:1].upper() + title[1:], "not known" if number == "-" else number, " ".join(sentences)


def _sentence(text: str) -> str:
    """Words with a capital letter, unless they begin with a symbol, and a full stop."""
    text = text.strip()
    begins_with_a_word = re.match(r"(a|[a-z]{2,})([ ,:;.]|$)", text) is not None
    whole = text[:1].upper() + text[1:] if begins_with_a_word else text
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
