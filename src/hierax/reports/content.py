"""What a page says of a run, as plain typed data; made of the facts of the run, which may come from anybody's file.

Nothing here is computed anew, and nothing is taken on trust that the facts contradict: a run that says `converged`
beside a certificate that does not say yes is shown as open.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from hierax._base.errors import InputError
from hierax._base.files import Json
from hierax._run.status import Kind

Row = tuple[str, str]
Tone = Literal["ok", "open", "failed"]

Stored = Mapping[str, Any]
"""A part of run.json, taken as it is: what does not fit raises, and the reader is told that the file is damaged."""

KIND_BY_LABEL = {kind.label: kind for kind in Kind}
STARTS_HEADINGS = ("start", "status", "F", "violation", "certificate")
MAX_LISTED = 6  # entries of a list that are all shown
COUNT_TITLES = {
    "seconds": "seconds",
    "compile_seconds": "seconds to compile, apart from these",
    "waiting_seconds": "of them waiting for data",
    "zeta": "samples of zeta",
    "xi": "samples of xi",
    "grad_upper": "gradients of f",
    "grad_lower": "gradients of g",
    "vjp_constraints": "products with the constraints' Jacobian",
    "lower_solves": "lower solves",
}


class Ending(NamedTuple):
    """How a run ended: its name, cause and cure, whether that is good news, and what the run claims by it."""

    name: str
    message: str
    tone: Tone
    claim: str


class CertificateContent(NamedTuple):
    """A certificate: its verdict at a tolerance, the questions behind it, and its numbers with a sentence each."""

    tol: float
    verdict: str
    reasons: list[str]
    tests: list[tuple[str, str, str]]
    lines: list[tuple[str, str, str]]


class StartEnds(NamedTuple):
    """F at the ends of several starts (NaN: none), and what follows from them in words."""

    values: np.ndarray
    text: str


class RunContent(NamedTuple):
    """Everything that a page says of a run.

    Attributes:
        name: of the run.
        ending: how it ended.
        value: F, of many starts the lowest; None where it is not known.
        value_of: what F was evaluated on.
        value_error: its standard error, where it has one.
        problem: what was asked, part by part.
        method: the method and its settings, every value filled in.
        settings: arguments that steered the run.
        versions: of what the numbers may depend on.
        counts: what was spent.
        answer: the numbers that were found.
        certificate: None where there is none.
        no_certificate: why there is none.
        starts: where several starts ended.
        start_rows: of runs from many starts: number, status, F, violation and verdict of each.
        log: what `Auto` tried and found.
        problem_hash: of the problem; empty: not known.
        command: that repeats the run; empty: it was no command.
        columns: of the history.
    """

    name: str
    ending: Ending
    value: float | None
    value_of: str
    value_error: float | None
    problem: list[Row]
    method: list[Row]
    settings: list[Row]
    versions: list[Row]
    counts: list[Row]
    answer: list[Row]
    certificate: CertificateContent | None
    no_certificate: str
    starts: StartEnds
    start_rows: list[tuple[str, ...]]
    log: list[str]
    problem_hash: str
    command: str
    columns: Mapping[str, np.ndarray]


def content_of(
    name: str, facts: Mapping[str, Json], columns: Mapping[str, np.ndarray], problem_hash: str = ""
) -> RunContent:
    """What a page says of a run; raises InputError where the facts are no facts of a run."""
    try:
        return _content_of(name, facts, columns, problem_hash)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{name}: run.json is damaged ({type(error).__name__}: {error}).") from error


def _content_of(name: str, facts: Stored, columns: Mapping[str, np.ndarray], problem_hash: str) -> RunContent:
    stored = facts.get("certificate") or {"missing": "Not made."}
    certificate = None if "missing" in stored else _certificate(stored)
    settings = dict(facts.get("settings") or {})
    starts = facts.get("starts") or {}
    values = [np.nan if value is None else float(value) for value in starts.get("values", [])]
    each = facts.get("each") or []
    return RunContent(
        name=name,
        ending=_ending(facts["status"], bool(each), certificate),
        value=_number(facts.get("value")),
        value_of=str(facts.get("value_of") or ""),
        value_error=None if certificate is None else _number(stored.get("upper_se")),
        problem=_rows(facts.get("problem")),
        method=flattened(facts.get("method") or {}),
        settings=[(key, _short(value)) for key, value in settings.items() if value is not None],
        versions=[(str(key), str(value)) for key, value in (facts.get("versions") or {}).items()],
        counts=_counts(facts.get("counts") or {}),
        answer=_rows(facts.get("answer")),
        certificate=certificate,
        no_certificate=str(stored.get("missing", "")),
        starts=StartEnds(np.array(values, float), str(starts.get("said", ""))),
        start_rows=[
            (str(i), str(one["status"]), _digits(one["value"], 8), _digits(one["violation"], 3), str(one["verdict"]))
            for i, one in enumerate(each)
        ],
        log=[str(line) for line in facts.get("log") or []],
        problem_hash=problem_hash,
        command=_command(settings),
        columns=columns,
    )


def _certificate(stored: Stored) -> CertificateContent:
    return CertificateContent(
        tol=float(stored["tol"]),
        verdict=str(stored["verdict"]),
        reasons=[str(reason) for reason in stored["reasons"]],
        tests=[(str(a), str(b), str(c)) for a, b, c in stored["tests"]],
        lines=[(str(a), str(b), str(c)) for a, b, c in stored["lines"]],
    )


def _ending(status: Stored, many: bool, certificate: CertificateContent | None) -> Ending:
    name, message = str(status["name"]), str(status["message"])
    kinds = [KIND_BY_LABEL.get(str(kind)) for kind in status.get("kinds") or [name]]
    whose = "Every start claims" if many else "The run claims"
    message = message.removeprefix(f"{name}: ")
    message = message[:1].upper() + message[1:]
    if any(kind is not None and kind.failed for kind in kinds):
        what = "Some starts failed." if many else "The run failed: its point is no solution."
        return Ending(name, message, "failed", what)
    if not all(kind is not None and kind.ok for kind in kinds):
        what = "No claim is made that this solves the problem."
        agreed = certificate is not None and certificate.verdict == "yes"
        return Ending(name, message, "open", f"{what} The certificate says yes of its point." if agreed else what)
    if certificate is None:
        what = f"{whose} a local solution, certified when it ended; the certificate itself was not kept."
        return Ending(name, message, "open", what)
    if certificate.verdict != "yes":
        what = f"{whose} a local solution, but the certificate below does not agree: it says {certificate.verdict}."
        return Ending(name, message, "open", what)
    return Ending(name, message, "ok", "The certificate agrees that this is a local solution.")


def _counts(counts: Stored) -> list[Row]:
    rows = []
    for name, title in COUNT_TITLES.items():
        value = _number(counts.get(name))
        if value:
            rows.append((title, f"{value:.2f}" if "seconds" in name else f"{int(value):,}"))
    return rows


def _command(settings: Stored) -> str:
    """The command that repeats a run of `hierax solve`."""
    if not settings.get("target"):
        return ""
    words = ["hierax", "solve", shlex.quote(str(settings["target"]))]
    for name in ("method", "max_steps", "seconds", "seed"):
        if settings.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", shlex.quote(str(settings[name]))]
    return " ".join(words)


def flattened(value: Json, name: str = "method") -> list[Row]:
    """Settings within settings as rows, named by their path.

    Examples:
        >>> flattened({"type": "SALVF", "c1": 5.0, "steps": {"type": "Steps", "x": None}})
        [('method', 'SALVF'), ('c1', '5'), ('steps', 'Steps'), ('steps.x', 'unset')]
    """
    if not isinstance(value, dict):
        return [(name, _short(value))]
    rows = [(name, str(value["type"]))] if "type" in value else []
    for key, entry in value.items():
        if key != "type":
            rows += flattened(entry, key if name == "method" else f"{name}.{key}")
    return rows


def _short(value: Json) -> str:
    """A value of JSON in a few words."""
    if value is None:
        return "unset"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:.8g}"
    if isinstance(value, list):
        return _short_list(value)
    return ", ".join(f"{key}: {_short(entry)}" for key, entry in value.items())


def _short_list(values: list[Json]) -> str:
    """A list in a few words: the first entries of a long one.

    Examples:
        >>> _short_list([2.0, 3.0]), _short_list([*range(9)])
        ('[2, 3]', '[0, 1, 2, 3, 4, 5, …] (9 entries)')
    """
    first = ", ".join(_short(entry) for entry in values[:MAX_LISTED])
    return f"[{first}]" if len(values) <= MAX_LISTED else f"[{first}, …] ({len(values)} entries)"


def _rows(pairs: Iterable[tuple[object, object]] | None) -> list[Row]:
    return [(str(name), str(text)) for name, text in pairs or []]


def _digits(value: float | None, digits: int) -> str:
    return "not known" if value is None else f"{float(value):.{digits}g}"


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
