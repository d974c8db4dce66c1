"""The page: one HTML file with everything in it, for one run or for several side by side.

It has no script, asks no network for anything, and its Content-Security-Policy forbids a browser to. Everything that
came from a user (names, messages, settings) is escaped.
"""

from collections.abc import Sequence
from importlib import resources
from string import Template

import numpy as np

from hierax._base.errors import MissingExtra
from hierax._base.imports import lazy
from hierax._base.text import Markup, escaped, table
from hierax.reports.content import STARTS_HEADINGS, CertificateContent, Row, RunContent
from hierax.reports.panels import Panel, RunHistory, limits_without_outliers, panels_of, summary_rows

figures = lazy("hierax.reports.figures")

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
$style</style>
</head>
<body$wide>
<header>
<h1>$title</h1>
$summary
</header>
<main>
$body
</main>
<footer><p>Made by hierax $version. Everything on this page is in this file.</p></footer>
</body>
</html>
""")

VERDICTS = {"yes": "yes", "no": "no", "unknown": "not decided"}
NO_FIGURES = Markup('<p class="quiet">Figures need matplotlib: <code>pip install "hierax[plot]"</code></p>')
SHORT_POINT = 18  # characters up to which x and y are cards among the others
MAX_LOG_LINES = 20  # that are not folded
OVERVIEW_CHARACTERS = 160  # of x and y in the table of several runs


def page_of(runs: Sequence[RunContent]) -> str:
    """The page of one run, or of several."""
    panels = panels_of([RunHistory(run.name, run.columns, _value_of_one(run)) for run in runs])
    if len(runs) == 1:
        title, summary, body = runs[0].name, _headline(runs[0]), _one_run(runs[0], panels)
    else:
        title, summary, body = f"{len(runs)} runs side by side", _overview(runs), _several_runs(runs, panels)
    versions = {dict(run.versions).get("hierax", "") for run in runs}
    return PAGE.substitute(
        title=escaped(f"hierax: {title}"),
        wide=' class="wide"' if len(runs) > 1 else "",
        style=resources.files("hierax.reports").joinpath("style.css").read_text("utf-8"),
        summary=summary,
        body=body,
        version=escaped(", ".join(sorted(versions))),
    )


# -- one run, several runs --------------------------------------------------------------------------------------------


def _one_run(run: RunContent, panels: Sequence[Panel]) -> str:
    charts = _charts([run], panels)
    parts = [
        _section(2, "Certificate", _certificate(run)),
        _section(2, "Convergence", charts + _history_table(run, unfolded=NO_FIGURES in charts)),
        _section(2, "Starts", _starts_table(run)),
        _section(2, "What was asked", _asked(run)),
        _section(2, "Multipliers", _table_of_pairs("What was found beside x and y", _multipliers(run))),
        _section(2, "To repeat it", _repeat(run)),
        _section(2, "Log", _log(run)),
    ]
    return "\n".join(parts)


def _several_runs(runs: Sequence[RunContent], panels: Sequence[Panel]) -> str:
    columns = []
    for run in runs:
        parts = [
            _ended(run),
            _section(3, "Certificate", _certificate(run)),
            _section(3, "What was asked", _asked(run)),
            _section(3, "Answer", _table_of_pairs("What was found", run.answer)),
            _section(3, "History", _history_table(run)),
            _section(3, "To repeat it", _repeat(run)),
            _section(3, "Log", _log(run)),
        ]
        columns.append(f'<section class="run"><h2>{escaped(run.name)}</h2>{"".join(parts)}</section>')
    charts = _section(2, "Convergence", _charts(runs, panels))
    return f'{charts}\n<div class="runs">{"".join(columns)}</div>'


def _section(level: int, title: str, inside: str) -> str:
    """A section, or nothing where there is nothing to say."""
    return f"<section><h{level}>{escaped(title)}</h{level}>{inside}</section>" if inside else ""


# -- what is at the top -----------------------------------------------------------------------------------------------


def _headline(run: RunContent) -> str:
    certificate = run.certificate
    verdict = "not made" if certificate is None else _verdict_badge(certificate.verdict)
    verdict_note = run.no_certificate if certificate is None else f"at tolerance {certificate.tol:g}"
    counts = dict(run.counts)
    spent = f"{counts['seconds']} s" if "seconds" in counts else "not known"
    samples = [f"{text} {name}" for name, text in run.counts if name.startswith(("samples", "seconds to"))]
    cards = [
        _card("Status", _badge(run.ending.tone, run.ending.name), run.ending.claim),
        _card("F", _value(run), run.value_of),
        _card("Certificate", verdict, verdict_note),
        _card("Spent", spent, "; ".join(samples)),
    ]
    points = {name: _arrays_of(name, run) for name in ("x", "y")}
    point_cards = [_point_card(name, rows, run) for name, rows in points.items() if rows]
    if all(len(rows) == 1 and len(rows[0][1]) <= SHORT_POINT for rows in points.values()):
        cards[2:2], point_cards = point_cards, []
    below = f'<dl class="cards points">{"".join(point_cards)}</dl>' if point_cards else ""
    return f'<dl class="cards">{"".join(cards)}</dl>{below}<p>{escaped(run.ending.message)}</p>'


def _card(title: str, text: str, note: str) -> str:
    return f"<div><dt>{escaped(title)}</dt><dd>{escaped(text)}<small>{escaped(note)}</small></dd></div>"


def _point_card(name: str, rows: Sequence[Row], run: RunContent) -> str:
    level = {"x": "upper", "y": "lower"}[name]
    note = dict(run.problem).get(f"{level} variable {name}", "")
    if [title for title, _ in rows] == [name]:
        return _card(name, rows[0][1], note)
    arrays = "<br>".join(f"<small>{escaped(title)}</small> {escaped(text)}" for title, text in rows)
    return _card(name, Markup(arrays), note)


def _arrays_of(name: str, run: RunContent) -> list[Row]:
    """The rows of the answer that belong to x, or to y."""
    return [
        row
        for row in run.answer
        if row[0] == name or row[0].startswith((f"{name}[", f"{name}.")) or row[0].endswith(f" of {name}")
    ]


def _multipliers(run: RunContent) -> list[Row]:
    shown = [*_arrays_of("x", run), *_arrays_of("y", run)]
    return [row for row in run.answer if row not in shown]


def _overview(runs: Sequence[RunContent]) -> str:
    lines = {
        "status": [run.ending.name for run in runs],
        "claim": [run.ending.claim for run in runs],
        "F": [_value(run) for run in runs],
        "F is": [run.value_of or "-" for run in runs],
        "x": [_abbreviated(_arrays_of("x", run)) for run in runs],
        "y": [_abbreviated(_arrays_of("y", run)) for run in runs],
        "certificate": [VERDICTS.get(run.certificate.verdict, "-") if run.certificate else "not made" for run in runs],
        "method": [next((text for name, text in run.method if name == "method"), "-") for run in runs],
    }
    for name in dict.fromkeys(name for run in runs for name, _ in run.counts):
        lines[name] = [dict(run.counts).get(name, "-") for run in runs]
    measured = [line for run in runs if run.certificate for line in run.certificate.lines]
    for name in dict.fromkeys(name for name, number, _ in measured if number):
        lines[name] = [_measured(run.certificate, name) for run in runs]
    rows = [(name, *cells) for name, cells in lines.items()]
    shown = table("What the runs found", rows, ["", *(run.name for run in runs)], "overview labelled")
    hashes = {run.problem_hash for run in runs}
    comparable = ""
    if len(hashes - {""}) > 1:
        comparable = "<p><strong>The runs answer different problems</strong>, by their hashes: F does not compare.</p>"
    elif "" in hashes:
        comparable = '<p class="quiet">Whether the runs answer the same problem is not known: a hash is missing.</p>'
    return comparable + shown


def _abbreviated(rows: Sequence[Row]) -> str:
    text = rows[0][1] if len(rows) == 1 else "; ".join(f"{name}: {text}" for name, text in rows)
    return f"{text[:OVERVIEW_CHARACTERS]} …" if len(text) > OVERVIEW_CHARACTERS else text or "-"


def _measured(certificate: CertificateContent | None, name: str) -> str:
    lines = [] if certificate is None else certificate.lines
    return next((number for title, number, _ in lines if title == name), "-")


def _value_of_one(run: RunContent) -> float | None:
    """F of the answer, where there is one answer."""
    return None if run.start_rows else run.value


def _value(run: RunContent) -> str:
    if run.value is None:
        return "not known"
    return f"{run.value:.8g}" + (f" ± {run.value_error:.1g}" if run.value_error else "")


# -- the sections -----------------------------------------------------------------------------------------------------


def _asked(run: RunContent) -> str:
    problem = _table_of_pairs("The problem", run.problem)
    method = _pairs("The method, every value filled in", run.method)
    return f'<div class="split">{problem}{method}</div>' if problem or method else ""


def _ended(run: RunContent) -> str:
    badge = _badge(run.ending.tone, run.ending.name)
    return f"<p>{badge} {escaped(run.ending.claim)}</p><p>{escaped(run.ending.message)}</p>"


def _certificate(run: RunContent) -> str:
    found = run.certificate
    if found is None:
        return f"<p>{escaped(run.no_certificate)}</p>"
    in_table = [why for _, _, why in found.tests]
    others = "".join(f"<li>{escaped(reason)}</li>" for reason in found.reasons if reason not in in_table)
    verdict = f"<p>{_verdict_badge(found.verdict)} at tolerance {found.tol:g}.</p>"
    tests = [(question, _verdict_badge(answer), why) for question, answer, why in found.tests]
    questions = table("What it asks", tests, ("question", "answer", "why"), "tests")
    lines = table("What it measured", found.lines, ("", "number", "what it says"), "lines")
    objections = f'<p class="caption">Other objections</p><ul>{others}</ul>' if others else ""
    return verdict + questions + objections + lines


def _starts_table(run: RunContent) -> str:
    if not run.start_rows:
        return ""
    count, listed = run.starts.values.size, len(run.start_rows)
    caption = "Start by start" if count == listed else f"The first {listed} of {count} starts"
    return table(caption, run.start_rows, STARTS_HEADINGS, "starts labelled")


def _history_table(run: RunContent, unfolded: bool = False) -> str:
    rows = summary_rows(run.columns)
    if not rows:
        return ""
    caption = "First and last are medians of the starts" if run.start_rows else "All are in sol.history and history.csv"
    shown = table(caption, rows, ("record", "first", "last", "lowest", "highest"), "labelled")
    return f"<details{' open' * unfolded}><summary>The history in numbers</summary>{shown}</details>"


def _repeat(run: RunContent) -> str:
    command = f"<pre>{escaped(run.command)}</pre>" if run.command else ""
    hashed = f'<p class="quiet">Hash of the problem: {escaped(run.problem_hash)}</p>' if run.problem_hash else ""
    lists = {"Arguments": run.settings, "Versions": run.versions, "Spent": run.counts}
    shown = "".join(_pairs(title, rows) for title, rows in lists.items())
    return f'{command}<div class="split">{shown}</div>{hashed}'


def _log(run: RunContent) -> str:
    lines = "".join(f"<li>{escaped(line)}</li>" for line in run.log)
    if len(run.log) <= MAX_LOG_LINES:
        return f"<ol>{lines}</ol>" if lines else ""
    return f"<details><summary>{len(run.log)} lines</summary><ol>{lines}</ol></details>"


def _table_of_pairs(caption: str, rows: Sequence[Row]) -> str:
    return table(caption, rows, (), "pairs-table") if rows else ""


def _pairs(title: str, rows: Sequence[Row]) -> str:
    """Many short pairs, in as many columns as fit."""
    shown = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>" for name, text in rows)
    return f'<div><p class="caption">{escaped(title)}</p><dl class="pairs">{shown}</dl></div>' if rows else ""


def _verdict_badge(verdict: str) -> Markup:
    return _badge(verdict, VERDICTS.get(verdict, verdict))


def _badge(tone: str, text: str) -> Markup:
    return Markup(f'<span class="badge {escaped(tone)}">{escaped(text)}</span>')


# -- charts -----------------------------------------------------------------------------------------------------------


def _charts(runs: Sequence[RunContent], panels: Sequence[Panel]) -> str:
    several = len(runs) > 1
    zero = [panel.title for panel in panels if not panel.values.any()]
    notes = f"<p>{escaped(', '.join(zero))}: 0 in every record.</p>" if zero else ""
    if not panels:
        notes = f"<p>No records were kept of {'these runs' if several else 'this run'}.</p>"
    drawn = [panel for panel in panels if panel.title not in zero]
    with_starts = [run for run in runs if np.isfinite(run.starts.values).any()]
    texts = {run.name: f"<p>{escaped(_starts_text(run))}</p>" for run in runs if run.starts.values.size}
    try:
        charts = [_panel_chart(panel, f"panel{number}", several) for number, panel in enumerate(drawn)]
        charts += [_starts_chart(run, f"starts{number}", several) for number, run in enumerate(with_starts)]
    except MissingExtra:
        return NO_FIGURES + notes + "".join(texts.values())
    for run in with_starts:
        del texts[run.name]  # in the caption of its chart
    shown = f'<div class="charts">{"".join(charts)}</div>' if charts else ""
    return shown + notes + "".join(texts.values())


def _panel_chart(panel: Panel, name: str, several_runs: bool) -> str:
    text, not_drawn = panel.text, panel.count_not_drawn
    if not_drawn:
        why = "not positive, which a logarithmic axis cannot show" if panel.log else "far from the others"
        text += f" {not_drawn} of {panel.values.size} points are not drawn: {why}, or not finite."
    return _figure(panel.title, text, figures.panel_svg(panel, name), _legend(panel, several_runs))


def _starts_chart(run: RunContent, name: str, several_runs: bool) -> str:
    """F at the ends of several starts, and what that says of how global the answer is."""
    values, answer = run.starts.values, _value_of_one(run)
    low, high = limits_without_outliers(values, answer)
    far = values[(values < low) | (values > high)]
    text = _starts_text(run)
    if answer is not None:
        text += " The dashed line is F of the answer."
    if far.size:
        text += f" Out of view: {far.size} of them, at F from {far.min():.4g} to {far.max():.4g}."
    title = f"{run.name}: ends of its starts" if several_runs else "Globality: F at the ends of the starts"
    return _figure(title, text, figures.starts_svg(values, answer, name))


def _starts_text(run: RunContent) -> str:
    text = run.starts.text.replace("Globality: ", "", 1)
    missing = int(np.sum(~np.isfinite(run.starts.values)))
    if missing:
        text = f"{text} Without a valid point, or without a turn: {missing} of them."
    return text.strip()


def _figure(title: str, text: str, drawing: str, legend: str = "") -> str:
    caption = f"<figcaption><h3>{escaped(title)}</h3><p>{escaped(text)}</p></figcaption>"
    return f"<figure>{caption}{drawing}{legend}</figure>"


def _legend(panel: Panel, always: bool) -> str:
    named = [one for one in panel.series if one.name]
    if len(named) < 2 and not always:
        return ""
    items = "".join(f"<li>{figures.legend_key(one.colour, one.dots)} {escaped(one.name)}</li>" for one in named)
    return f'<ul class="legend">{items}</ul>'
