"""A certificate as a page tells it: every number with a sentence that says what it is and when it would pass."""

import math
import re
from typing import NamedTuple

from hierax._base.text import shown
from hierax._judge.certificate import Certificate
from hierax._judge.trained import Retrained
from hierax._math.lower_level import MEANING


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        name: what was looked at.
        number: what came out; empty: no number belongs to it.
        sentence: what that means.
    """

    name: str
    number: str
    sentence: str


def tests_of(certificate: Certificate, tol: float) -> list[tuple[str, str, str]]:
    """The three questions that the verdict is made of, each with its own verdict and its first objection.

    Each is asked of the certificate itself, with the other two left out.
    """
    without = {"violation": math.inf, "gap": math.inf, "stationarity": math.inf}
    questions = {
        "violation": "Is the point feasible?",
        "gap": "Is y optimal below?",
        "stationarity": "Is x a local minimum above?",
    }
    found = []
    for name, question in questions.items():
        if name == "violation":  # that alone does not need a lower level that was solved
            verdict: str = "yes" if certificate.violation <= tol else "no"
            reasons = [] if verdict == "yes" else certificate.reasons(tol, gap=math.inf, stationarity=math.inf)
        else:
            limits = {key: limit for key, limit in without.items() if key != name}
            verdict, reasons = certificate.verdict(tol, **limits), certificate.reasons(tol, **limits)
        found.append((question, verdict, reasons[0] if reasons else ""))
    return found


def lines_of(certificate: Certificate, tol: float) -> list[Line]:
    """The table; numbers that could not be had say why."""
    found = [_violation(certificate, tol)]
    for name, (title, sentence) in _numbers(certificate, tol).items():
        number, error = getattr(certificate, name), getattr(certificate, f"{name}_se", None)
        if number is None:
            if name != "stationarity":
                found.append(Line(title, "not known", _sentence(certificate.notes.get(name, "it was not computed"))))
            continue
        note = certificate.notes.get(name)
        text = f"{sentence} {_sentence(note)}" if note else sentence
        found.append(Line(title, f"{number:.3g}" + ("" if error is None else f" ± {error:.1g}"), text))
    found += [_gain(certificate, tol), *_around(certificate, tol)]
    if certificate.retrained is not None:
        found += _trainings(certificate.retrained)
    if certificate.not_convex is not None:
        found.append(Line("Convexity below", "", _sentence(f"the lower level is {certificate.not_convex}")))
    solved = MEANING[int(certificate.reference.status)]
    found.append(Line("Lower level at this x", "", _sentence(f"by a solver of its own, in double precision: {solved}")))
    found.append(Line("Expectations", "", _expectations(certificate.data)))
    if "lengths" in certificate.notes:
        found.append(Line("Lengths", "", _sentence(certificate.notes["lengths"])))
    return found


def _violation(certificate: Certificate, tol: float) -> Line:
    title, number = "Largest violation", f"{certificate.max_violation:.3g}"
    if not certificate.max_violation > 0:
        return Line(title, number, "Every constraint and every bound is kept.")
    return Line(
        title,
        number,
        f"The worst is {certificate.worst}: in its own units that is {certificate.violation:.2g} of its size, and "
        f"{tol:g} would pass.",
    )


def _numbers(certificate: Certificate, tol: float) -> dict[str, tuple[str, str]]:
    most = certificate.gap_range.within(tol)
    passes = f"; up to {most:.2g} passes" if math.isfinite(most) and most > 0 else ""
    value, y = float(certificate.reference.value), shown(certificate.reference.y)
    return {
        "lower_gap": (
            "Lower gap G(x, y) − v(x)",
            f"G at y less the best value found for the lower level at this x, v(x) = {value:.6g}; zero is optimal, "
            f"below zero is infeasible{passes}.",
        ),
        "distance": ("Distance ‖y − y*(x)‖", f"How far y is from that answer, y*(x) = {y}."),
        "kkt_residual": (
            "KKT residual of y",
            f"How far y is from satisfying the lower level's optimality conditions, in the problem's units; zero is "
            f"exact, {tol:g} passes.",
        ),
        "hypergradient_norm": (
            "Slope of F(x, y*(x))",
            "What the set X leaves of the gradient of F along the answers of the lower level; zero where no small move "
            "of x helps.",
        ),
        "stationarity": (
            "Stationarity of Ψ",
            "Slope of the penalty function that the run minimised, at its last point; it says how far the run came, "
            "and nothing about your problem.",
        ),
    }


def _gain(certificate: Certificate, tol: float) -> Line:
    title, gained = "Gain of moving x", certificate.gain(tol)
    if math.isnan(gained) or not certificate.upper_scale:
        return Line(title, "not known", _sentence(certificate.notes.get("gains", "it was not computed")))
    share = gained / certificate.upper_scale
    error = "" if certificate.gain_se is None else f" ± {certificate.gain_se / certificate.upper_scale:.1g}"
    return Line(
        title,
        f"{share:.3g}{error}",
        f"What a move of x by its own length could gain to first order, as a share of what F changes over that length "
        f"({certificate.upper_scale:.3g}); {tol:g} passes.",
    )


def _around(certificate: Certificate, tol: float) -> list[Line]:
    if certificate.around is None:
        return []
    points, better = len(certificate.around.looks), certificate.better(tol)
    outcome = "none of them is clearly lower" if better is None else f"one of them is lower by {-better.change:.3g}"
    cut = "" if certificate.around.complete else " The time was up before all directions were tried."
    descent = Line(
        "Descent test",
        str(points),
        f"Points around x, and other answers of the lower level at x, were solved: {outcome}.{cut}",
    )
    if certificate.radius is None:
        return [descent]
    far = "any" if math.isinf(certificate.radius) else f"{certificate.radius:.3g}"
    how = "Lengths that x may move, to first order, until a constraint below becomes active or ceases to be."
    return [descent, Line("Validity around x", far, how)]


def _trainings(seen: Retrained) -> list[Line]:
    mean = f"{seen.upper:.4g} ± {seen.upper_error:.1g}"
    found = [
        Line("F of retrained lower levels", mean, f"Mean of {seen.trainings} trainings at x, and its standard error.")
    ]
    for move in seen.moves:
        found.append(Line("Change of F", f"{move.change:+.3g} ± {move.error:.1g}", _sentence(f"with {move.text}")))
    return found


def _expectations(data: str) -> str:
    if data == "zeta: none; xi: none":
        return "There are none: nothing is sampled."
    return _sentence(f"what stood for them: {data}")


def _sentence(text: str) -> str:
    """Words with a capital letter, unless they begin with a symbol, and a full stop."""
    text = text.strip()
    begins_with_a_word = re.match(r"[a-z]{2,}[ ,:]", text) is not None
    whole = text[:1].upper() + text[1:] if begins_with_a_word else text
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
