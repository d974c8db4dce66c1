"""The page: one HTML file with everything in it, for one run or for several side by side.

It is made of the facts of runs, which may come from anybody's file. Nothing is computed anew, and nothing is taken on
trust that the facts contradict: a run that says `converged` beside a certificate that does not say yes is shown as
open. The page has no script, asks no network for anything, and its Content-Security-Policy forbids a browser to.
Everything that came from a user (names, messages, settings) is escaped.
"""

import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, Literal, NamedTuple

import numpy as np

from hierax._base.errors import MissingExtra
from hierax._base.files import Json
from hierax._base.imports import lazy
from hierax._base.text import Markup, escaped, table
from hierax._run.solution import FAILED, SOLVED
from hierax.reports.panels import (
    MAX_LISTED,
    Panel,
    RunHistory,
    panel_of_estimates,
    panel_of_starts,
    panels_of,
    summary_rows,
)

figures = lazy("hierax.reports.figures")

Row = tuple[str, str]
Stored = Mapping[str, Any]
"""A part of run.json, taken as it is; where it does not fit, making the page fails."""

VERDICTS = {"yes": "yes", "no": "no", "unknown": "not decided"}
NO_FIGURES = Markup('<p class="quiet">Figures need matplotlib: <code>pip install "hierax[plot]"</code></p>')
STARTS_HEADINGS = ("start", "status", "F", "violation", "certificate")
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
    tone: Literal["ok", "open", "failed"]
    claim: str


class RunContent(NamedTuple):
    """Everything that a page says of a run.

    Attributes:
        name: of the run.
        facts: of the run (`hierax.reports.facts`), in part if they come from an older version.
        columns: of the history.
        problem_hash: of the problem; empty: not known.
    """

    name: str
    facts: Stored
    columns: Mapping[str, np.ndarray]
    problem_hash: str = ""

    @property
    def starts(self) -> np.ndarray:
        """F at the ends of several starts (NaN: none)."""
        return np.array((self.facts.get("starts") or {}).get("values", []), float)

    @property
    def certificate(self) -> Stored:
        """What `facts.certificate_facts` gives; `missing` says why there is none."""
        return self.facts.get("certificate") or {"missing": "Not made."}

    @property
    def ending(self) -> Ending:
        """How a run ended, and what to believe of it."""
        status, many, verdict = self.facts["status"], bool(self.facts.get("each")), self.certificate.get("verdict")
        name, message = str(status["name"]), str(status["message"])
        message = message.removeprefix(f"{name}: ")
        message = message[:1].upper() + message[1:]
        kinds = status.get("kinds") or [name]
        if any(kind in FAILED for kind in kinds):
            what = "Some starts failed." if many else "The run failed: its point is no solution."
            return Ending(name, message, "failed", what)
        if not all(kind in SOLVED for kind in kinds):
            what = "No claim is made that this solves the problem."
            what += " The certificate says yes of its point." if verdict == "yes" else ""
            return Ending(name, message, "open", what)
        if verdict == "yes":
            return Ending(name, message, "ok", "The certificate agrees that this is a local solution.")
        doubt = "certified when it ended; the certificate itself was not kept."
        if verdict is not None:
            doubt = f"but the certificate below does not agree: it says {verdict}."
        return Ending(name, message, "open", f"{'Every start' if many else 'The run'} claims a local solution, {doubt}")

    @property
    def value(self) -> float | None:
        """F of the answer, where there is one answer."""
        return None if self.facts.get("each") else self.facts.get("value")

    @property
    def counts(self) -> dict[str, str]:
        """What was spent."""
        counts = self.facts.get("counts") or {}
        return {
            title: f"{counts[name]:.2f}" if "seconds" in name else f"{counts[name]:,}"
            for name, title in COUNT_TITLES.items()
            if counts.get(name)
        }

    def rows(self, name: str) -> list[Row]:
        """The problem, the answer or another list of the facts; empty where they have none."""
        return self.facts.get(name) or []


def _command(settings: Stored) -> str:
    """The command that repeats a run of `hierax solve`."""
    words = ["hierax", "solve", str(settings["target"])]
    for name in ("method", "max_steps", "seconds", "seed"):
        if settings.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    return shlex.join(words)


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
    """A value of JSON in a few words: the first entries of a long list.

    Examples:
        >>> _short([2.0, 3.0]), _short({"seed": None})
        ('[2, 3]', 'seed: unset')
    """
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_short(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        first = ", ".join(_short(entry) for entry in value[:MAX_LISTED])
        return f"[{first}]" if len(value) <= MAX_LISTED else f"[{first}, …] ({len(value)} entries)"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.8g}"
    return "unset" if value is None else str(value)


# -- the page ---------------------------------------------------------------------------------------------------------


def page_of(runs: Sequence[RunContent]) -> str:
    """The page of one run, or of several."""
    charts = _charts(runs, panels_of([RunHistory(run.name, run.columns, run.value) for run in runs]))
    if len(runs) == 1:
        title, summary, body = runs[0].name, _headline(runs[0]), _sections(runs[0], 2, charts)
    else:
        title, summary = f"{len(runs)} runs side by side", _overview(runs)
        columns = [
            f'<section class="run"><h2>{escaped(run.name)}</h2>{_ended(run)}{_sections(run, 3)}</section>'
            for run in runs
        ]
        body = f'{_section(2, "Convergence", charts)}\n<div class="runs">{"".join(columns)}</div>'
    versions = {str((run.facts.get("versions") or {}).get("hierax", "")) for run in runs}
    files = resources.files("hierax.reports")
    return Template(files.joinpath("page.html").read_text("utf-8")).substitute(
        title=escaped(f"hierax: {title}"),
        wide=' class="wide"' if len(runs) > 1 else "",
        style=files.joinpath("style.css").read_text("utf-8"),
        summary=summary,
        body=body,
        version=escaped(", ".join(sorted(versions))),
    )


def _sections(run: RunContent, level: int, charts: str = "") -> str:
    """What there is to say of a run, below what is at the top."""
    parts = {
        "Certificate": _certificate(run),
        "Convergence": charts + _history_table(run, unfolded=NO_FIGURES in charts),
        "Starts": _starts_table(run),
        "What was asked": _asked(run),
        "Answer": table("What was found", run.rows("answer"), css_class="pairs-table"),
        "To repeat it": _repeat(run),
        "Log": _log(run),
    }
    return "\n".join(_section(level, title, inside) for title, inside in parts.items())


def _section(level: int, title: str, inside: str) -> str:
    """A section, or nothing where there is nothing to say."""
    return f"<section><h{level}>{escaped(title)}</h{level}>{inside}</section>" if inside else ""


# -- what is at the top -----------------------------------------------------------------------------------------------


def _cells(run: RunContent) -> dict[str, Markup]:
    """What a run found, each with a note: its status, F, the certificate's verdict, x and y."""
    found, ending, problem = run.certificate, run.ending, dict(run.rows("problem"))
    cells = {
        "status": (_badge(ending.tone, ending.name), ending.claim),
        "F": (_value(run), run.facts.get("value_of", "")),
        "certificate": (_verdict(found), found.get("missing") or f"at tolerance {found['tol']:g}"),
    }
    for name, level in (("x", "upper"), ("y", "lower")):
        rows = _arrays_of(name, run)
        named = [f"<small>{escaped(title)}</small> {escaped(text)}" for title, text in rows]
        text = rows[0][1] if [title for title, _ in rows] == [name] else Markup("<br>".join(named))
        cells |= {name: (text, problem.get(f"{level} variable {name}", ""))} if rows else {}
    return {name: Markup(f"{escaped(text)}<small>{escaped(note)}</small>") for name, (text, note) in cells.items()}


def _headline(run: RunContent) -> str:
    cells, counts = _cells(run), run.counts
    samples = [f"{text} {name}" for name, text in counts.items() if name.startswith(("samples", "seconds to"))]
    spent = f"{counts['seconds']} s" if "seconds" in counts else "not known"
    points = _cards({name: cells.pop(name) for name in ("x", "y") if name in cells}, "cards points")
    cells["spent"] = Markup(f"{escaped(spent)}<small>{escaped('; '.join(samples))}</small>")
    return f"{_cards(cells, 'cards')}{points}<p>{escaped(run.ending.message)}</p>"


def _cards(cells: Mapping[str, Markup], css_class: str) -> str:
    shown = "".join(f"<div><dt>{escaped(title)}</dt><dd>{cell}</dd></div>" for title, cell in cells.items())
    return f'<dl class="{css_class}">{shown}</dl>' if cells else ""


def _arrays_of(name: str, run: RunContent) -> list[Row]:
    """The rows of the answer that belong to x, or to y."""
    parts, rest = (f"{name}[", f"{name}."), f" of {name}"
    return [row for row in run.rows("answer") if row[0] == name or row[0].startswith(parts) or row[0].endswith(rest)]


def _overview(runs: Sequence[RunContent]) -> str:
    each = [
        {
            **_cells(run),
            "method": (run.facts.get("method") or {}).get("type", "-"),
            **run.counts,
            **{name: number for name, number, _ in run.certificate.get("lines", []) if number},
        }
        for run in runs
    ]
    names = dict.fromkeys(name for cells in each for name in cells)
    rows = [(name, *(cells.get(name, "-") for cells in each)) for name in names]
    shown = table("What the runs found", rows, ["", *(run.name for run in runs)], "overview labelled")
    hashes = {run.problem_hash for run in runs}
    comparable = ""
    if len(hashes - {""}) > 1:
        comparable = "<p><strong>The runs answer different problems</strong>, by their hashes: F does not compare.</p>"
    elif "" in hashes:
        comparable = '<p class="quiet">Whether the runs answer the same problem is not known: a hash is missing.</p>'
    return comparable + shown


def _value(run: RunContent) -> str:
    seen = run.facts.get("estimates") or run.certificate
    value, error = run.facts.get("value"), seen.get("upper_se")
    text = "not known" if value is None else f"{value:.8g}"
    return f"{text} ± {error:.1g}" if error else text


# -- the sections -----------------------------------------------------------------------------------------------------


def _asked(run: RunContent) -> str:
    problem = table("The problem", run.rows("problem"), css_class="pairs-table")
    method = _list_of_pairs("The method, every value filled in", flattened(run.facts.get("method") or {}))
    return f'<div class="split">{problem}{method}</div>' if problem or method else ""


def _ended(run: RunContent) -> str:
    badge = _badge(run.ending.tone, run.ending.name)
    return f"<p>{badge} {escaped(run.ending.claim)}</p><p>{escaped(run.ending.message)}</p>"


def _certificate(run: RunContent) -> str:
    found = run.certificate
    if "missing" in found:
        return f"<p>{escaped(found['missing'])}</p>"
    in_table = [why for _, _, why in found["tests"]]
    others = "".join(f"<li>{escaped(reason)}</li>" for reason in found["reasons"] if reason not in in_table)
    tests = [(question, _verdict({"verdict": answer}), why) for question, answer, why in found["tests"]]
    questions = table("What it asks", tests, ("question", "answer", "why"), "tests")
    lines = table("What it measured", found["lines"], ("", "number", "what it says"), "lines")
    objections = f'<p class="caption">Other objections</p><ul>{others}</ul>' if others else ""
    return f"<p>{_verdict(found)} at tolerance {found['tol']:g}.</p>{questions}{objections}{lines}"


def _starts_table(run: RunContent) -> str:
    rows, count = run.rows("each"), run.starts.size
    caption = "Start by start" if count == len(rows) else f"The first {len(rows)} of {count} starts"
    return table(caption, rows, STARTS_HEADINGS, "starts labelled")


def _history_table(run: RunContent, unfolded: bool) -> str:
    caption = (
        "First and last are medians of the starts" if run.value is None else "All are in sol.history and history.csv"
    )
    shown = table(caption, summary_rows(run.columns), ("record", "first", "last", "lowest", "highest"), "labelled")
    return f"<details{' open' * unfolded}><summary>The history in numbers</summary>{shown}</details>" if shown else ""


def _repeat(run: RunContent) -> str:
    settings, versions = run.facts.get("settings") or {}, run.facts.get("versions") or {}
    command = f"<pre>{escaped(_command(settings))}</pre>" if settings.get("target") else ""
    hashed = f'<p class="quiet">Hash of the problem: {escaped(run.problem_hash)}</p>' if run.problem_hash else ""
    arguments = {name: _short(entry) for name, entry in settings.items() if entry is not None}
    lists = {"Arguments": arguments, "Versions": versions, "Spent": run.counts}
    shown = "".join(_list_of_pairs(title, [*pairs.items()]) for title, pairs in lists.items())
    return f'{command}<div class="split">{shown}</div>{hashed}'


def _log(run: RunContent) -> str:
    log = run.rows("log")
    lines = "".join(f"<li>{escaped(line)}</li>" for line in log)
    if len(log) <= MAX_LISTED:
        return f"<ol>{lines}</ol>" if lines else ""
    return f"<details><summary>{len(log)} lines</summary><ol>{lines}</ol></details>"


def _list_of_pairs(title: str, rows: Sequence[Row]) -> str:
    """Many short pairs, in as many columns as fit."""
    shown = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>" for name, text in rows)
    return f'<div><p class="caption">{escaped(title)}</p><dl class="pairs">{shown}</dl></div>' if rows else ""


def _verdict(certificate: Stored) -> str:
    """The verdict of a certificate as a badge."""
    verdict = str(certificate.get("verdict", "not made"))
    return verdict if verdict == "not made" else _badge(verdict, VERDICTS.get(verdict, verdict))


def _badge(tone: str, text: str) -> Markup:
    return Markup(f'<span class="badge {escaped(tone)}">{escaped(text)}</span>')


# -- charts -----------------------------------------------------------------------------------------------------------


def _charts(runs: Sequence[RunContent], panels: Sequence[Panel]) -> str:
    several = len(runs) > 1
    zero = [panel.title for panel in panels if not panel.values.any()]
    notes = f"<p>{escaped(', '.join(zero))}: 0 in every record.</p>" if zero else ""
    if not panels:
        notes = f"<p>No records were kept of {'these runs' if several else 'this run'}.</p>"
    of_starts = [_panel_of_starts(run, several) for run in runs if run.starts.size]
    of_samples = [panel for run in runs for panel in _panel_of_estimates(run, several)]
    drawn = [panel for panel in panels if panel.values.any()] + of_samples + of_starts
    try:
        charts = [_chart(panel, f"panel{number}", several) for number, panel in enumerate(drawn)]
    except MissingExtra:
        return NO_FIGURES + notes + "".join(f"<p>{escaped(panel.text)}</p>" for panel in of_starts)
    return (f'<div class="charts">{"".join(charts)}</div>' if charts else "") + notes


def _panel_of_estimates(run: RunContent, several_runs: bool) -> list[Panel]:
    """What samples leave open of F, where that is known."""
    seen = run.facts.get("estimates") or {}
    if seen.get("gap") is None or None in seen["interval"]:
        return []
    panel = panel_of_estimates(seen["upper"], seen["interval"], seen["gap"])
    return [panel._replace(title=f"{run.name}: {panel.title}") if several_runs else panel]


def _panel_of_starts(run: RunContent, several_runs: bool) -> Panel:
    """F at the ends of several starts, and what that says of how global the answer is."""
    text = str(run.facts["starts"].get("said", "")).replace("Globality: ", "", 1)
    missing = int(np.sum(~np.isfinite(run.starts)))
    if missing:
        text += f" Without a valid point, or without a turn: {missing} of them."
    panel = panel_of_starts(run.starts, run.value)
    title = f"{run.name}: ends of its starts" if several_runs else f"Globality: {panel.title}"
    return panel._replace(title=title, text=text.strip())


def _chart(panel: Panel, name: str, several_runs: bool) -> str:
    text, not_drawn = panel.text, panel.count_not_drawn
    if panel.answer is not None:
        text += " The dashed line is F of the answer."
    if not_drawn:
        why = "not positive, which a logarithmic axis cannot show" if panel.log else "far from the others"
        text += f" {not_drawn} of {panel.values.size} points are not drawn: {why}, or not finite."
    named = [one for one in panel.series if one.name]
    keys = [f"<li>{figures.legend_key(one.colour, one.dots)} {escaped(one.name)}</li>" for one in named]
    legend = f'<ul class="legend">{"".join(keys)}</ul>' if several_runs else ""
    drawing = figures.panel_svg(panel, name) if panel.values.size else ""
    caption = f"<figcaption><h3>{escaped(panel.title)}</h3><p>{escaped(text)}</p></figcaption>"
    return f"<figure>{caption}{drawing}{legend}</figure>"
