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
from hierax._base.text import as_json, named_point, shown
from hierax._base.trees import size
from hierax._judge.certificate import Certificate
from hierax._judge.measuring import SHOWN_TOLERANCE
from hierax._math.lower_level import MEANING
from hierax._problem.problem import is_streamed
from hierax._problem.samples import Finite, Sampler
from hierax._run.outcome import certificate_or_why
from hierax._run.solution import Solution, Solutions, certificate_fields, fields_of, run_fields
from hierax.reports.panels import MAX_LISTED

POINT = ("F", "x", "y", "multipliers", "globality")  # fields of a solution that answer.json or the log have
MAX_NUMBERS_IN_FULL = 60  # of an array
MAX_STARTS_LISTED = 200  # of `solve_many`

Line = tuple[str, str, str]
"""What was looked at, what came out (empty: no number belongs to it), and what that means."""


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
        "problem": as_json(problem_rows(solution)),
        "answer": as_json(answer_rows(solution)),
        "value": as_json(solution.value),
        "value_of": value_text(solution),
        "certificate": certificate,
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


# -- the certificate --------------------------------------------------------------------------------------------------


def certificate_facts(solution: Solution, certify: bool) -> dict[str, Json]:
    """What the certificate says at the solution's tolerance, or why there is none."""
    found, tol = certificate_or_why(solution, certify), solution.tol
    if isinstance(found, str):
        return {"missing": f"Not made: {found}"}
    lines = [(title, number, _sentence(text)) for title, number, text in _lines(found, tol)]
    return {**certificate_fields(found, tol), "tests": as_json(_tests(found, tol)), "lines": as_json(lines)}


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
    """The table; numbers that could not be had say why."""
    worst = (
        f"the worst is {certificate.worst}: in its own units that is {certificate.violation:.2g} of its size, and "
        f"{tol:g} would pass"
    )
    kept = "every constraint and every bound is kept"
    yield "Largest violation", f"{certificate.max_violation:.3g}", worst if certificate.max_violation > 0 else kept
    for name, (title, sentence) in _numbers(certificate, tol).items():
        number, error = getattr(certificate, name), getattr(certificate, f"{name}_se", None)
        note = certificate.notes.get(name, "")
        if number is not None:
            text = f"{_sentence(sentence)} {_sentence(note)}" if note else sentence
            yield title, f"{number:.3g}" + ("" if error is None else f" ± {error:.1g}"), text
        elif name != "stationarity":
            yield title, "not known", note or "it was not computed"
    yield _gain(certificate, tol)
    yield from _around(certificate, tol)
    if certificate.retrained is not None:
        seen = certificate.retrained
        mean, how = f"{seen.upper:.4g} ± {seen.upper_error:.1g}", "and its standard error"
        yield "F of retrained lower levels", mean, f"mean of {seen.trainings} trainings at x, {how}"
        for move in seen.moves:
            yield "Change of F", f"{move.change:+.3g} ± {move.error:.1g}", f"with {move.text}"
    if certificate.not_convex is not None:
        yield "Convexity below", "", f"the lower level is {certificate.not_convex}"
    solved = MEANING[int(certificate.reference.status)]
    yield "Lower level at this x", "", f"by a solver of its own, in double precision: {solved}"
    nothing = certificate.data == "zeta: none; xi: none"
    told = "there are none: nothing is sampled" if nothing else f"what stood for them: {certificate.data}"
    yield "Expectations", "", told
    if "lengths" in certificate.notes:
        yield "Lengths", "", certificate.notes["lengths"]


def _numbers(certificate: Certificate, tol: float) -> dict[str, tuple[str, str]]:
    most = certificate.gap_range.within(tol)
    passes = f"; up to {most:.2g} passes" if math.isfinite(most) and most > 0 else ""
    value, y = float(certificate.reference.value), shown(certificate.reference.y)
    return {
        "lower_gap": (
            "Lower gap G(x, y) − v(x)",
            f"G at y less the best value found for the lower level at this x, v(x) = {value:.6g}; zero is optimal, "
            f"below zero is infeasible{passes}",
        ),
        "distance": ("Distance ‖y − y*(x)‖", f"how far y is from that answer, y*(x) = {y}"),
        "kkt_residual": (
            "KKT residual of y",
            f"how far y is from satisfying the lower level's optimality conditions, in the problem's units; zero is "
            f"exact, {tol:g} passes",
        ),
        "hypergradient_norm": (
            "Slope of F(x, y*(x))",
            "what the set X leaves of the gradient of F along the answers of the lower level; zero where no small move "
            "of x helps",
        ),
        "stationarity": (
            "Stationarity of Ψ",
            "slope of the penalty function that the run minimised, at its last point; it says how far the run came, "
            "and nothing about your problem",
        ),
    }


def _gain(certificate: Certificate, tol: float) -> Line:
    title, gained, scale = "Gain of moving x", certificate.gain(tol), certificate.upper_scale
    if math.isnan(gained) or not scale:
        return title, "not known", certificate.notes.get("gains", "it was not computed")
    error = "" if certificate.gain_se is None else f" ± {certificate.gain_se / scale:.1g}"
    text = (
        f"what a move of x by its own length could gain to first order, as a share of what F changes over that length "
        f"({scale:.3g}); {tol:g} passes"
    )
    return title, f"{gained / scale:.3g}{error}", text


def _around(certificate: Certificate, tol: float) -> Iterator[Line]:
    if certificate.around is None:
        return
    points, better = len(certificate.around.looks), certificate.better(tol)
    outcome = "none of them is clearly lower" if better is None else f"one of them is lower by {-better.change:.3g}"
    cut = "" if certificate.around.complete else ". The time was up before all directions were tried"
    yield (
        "Descent test",
        str(points),
        f"points around x, and other answers of the lower level at x, were solved: {outcome}{cut}",
    )
    if certificate.radius is not None:
        far = "any" if math.isinf(certificate.radius) else f"{certificate.radius:.3g}"
        how = "lengths that x may move, to first order, until a constraint below becomes active or ceases to be"
        yield "Validity around x", far, how


def _sentence(text: str) -> str:
    """Words with a capital letter, unless they begin with a symbol, and a full stop."""
    text = text.strip()
    begins_with_a_word = re.match(r"[a-z]{2,}[ ,:]", text) is not None
    whole = text[:1].upper() + text[1:] if begins_with_a_word else text
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
