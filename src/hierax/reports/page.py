"""The page: one HTML file with everything in it, for one run or for several side by side.

It asks no network for anything, and its Content-Security-Policy forbids a browser to. Everything that came from a user
(names, messages, settings) is escaped.
"""

import json
from collections.abc import Sequence
from importlib import resources
from string import Template

import numpy as np

from hierax._base.markup import escaped, table
from hierax.reports.content import STARTS_HEADINGS, Certified, RunContent
from hierax.reports.plain import plain
from hierax.reports.series import Panel, RunHistory, panels_of
from hierax.reports.svg import chart, dot_plot, legend, mark, view_of

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
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
<script type="application/json" id="panels">$data</script>
<script>
$script</script>
</body>
</html>
""")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # nothing from anywhere else
VERDICTS = {"yes": "yes", "no": "no", "unknown": "not decided"}
OVERVIEW = "What the runs found"
ZOOM_HINT = (
    "With JavaScript charts can be zoomed: drag over a part; turn the wheel in a chart that was clicked, or with Ctrl; "
    "Shift and drag moves; the keys + − 0 and arrows do the same; a double click goes back."
)


def page_of(runs: Sequence[RunContent]) -> str:
    """The page of one run, or of several."""
    panels = panels_of([RunHistory(run.name, run.columns, _answer(run)) for run in runs])
    if len(runs) == 1:
        title, summary, body = runs[0].name, _cards(runs[0]), _one_run(runs[0], panels)
    else:
        title, summary, body = f"{len(runs)} runs side by side", _overview(runs), _several_runs(runs, panels)
    versions = {dict(run.versions).get("hierax", "") for run in runs}
    files = resources.files("hierax.reports")
    return PAGE.substitute(
        title=escaped(f"hierax: {title}"),
        policy=POLICY,
        wide=' class="wide"' if len(runs) > 1 else "",
        style=files.joinpath("style.css").read_text("utf-8"),
        summary=summary,
        body=body,
        version=escaped(", ".join(sorted(versions))),
        data=in_script([_data(panel) for panel in panels]),
        script=files.joinpath("charts.js").read_text("utf-8"),
    )


def in_script(content: object) -> str:
    """JSON that is safe within a script element, whatever names are in it.

    Examples:
        >>> "</script>" in in_script(["</script>"]), json.loads(in_script(["</script>"]))
        (False, ['</script>'])
    """
    text = json.dumps(plain(content), separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- one run, several runs --------------------------------------------------------------------------------------------


def _one_run(run: RunContent, panels: Sequence[Panel]) -> str:
    parts = [
        _section(2, "What was asked", _asked(run)),
        _section(2, "How it ended", _ended(run)),
        _section(2, "Certificate", _certificate(run)),
        _section(2, "Globality", _globality(run, 0)),
        _section(2, "Convergence", _charts(panels, "No records were kept of this run.")),
        _section(2, "Starts", _each(run)),
        _section(2, "Answer", _rows("What was found", run.answer)),
        _section(2, "To repeat it", _repeat(run)),
        _section(2, "Log", _log(run)),
    ]
    return "\n".join(parts)


def _several_runs(runs: Sequence[RunContent], panels: Sequence[Panel]) -> str:
    columns = []
    for number, run in enumerate(runs):
        parts = [
            _ended(run),
            _section(3, "Certificate", _certificate(run)),
            _section(3, "Globality", _globality(run, number)),
            _section(3, "What was asked", _asked(run)),
            _section(3, "Answer", _rows("What was found", run.answer)),
            _section(3, "To repeat it", _repeat(run)),
            _section(3, "Log", _log(run)),
        ]
        columns.append(f'<section class="run"><h2>{escaped(run.name)}</h2>{"".join(parts)}</section>')
    charts = _section(2, "Convergence", _charts(panels, "No records were kept of these runs.", True))
    return f'{charts}\n<div class="runs">{"".join(columns)}</div>'


def _section(level: int, title: str, inside: str) -> str:
    """A section, or nothing where there is nothing to say."""
    return f"<section><h{level}>{escaped(title)}</h{level}>{inside}</section>" if inside else ""


# -- what is at the top -----------------------------------------------------------------------------------------------


def _cards(run: RunContent) -> str:
    verdict = run.certificate.verdict if run.certificate is not None else ""
    tol = "" if run.certificate is None else f"at tolerance {run.certificate.tol:g}"
    badge = _badge(verdict, VERDICTS.get(verdict, verdict)) if verdict else "not made"
    cards = [
        ("Status", _badge(run.ending.tone, run.ending.name), run.ending.claim),
        ("F", escaped(_value(run)), run.value_of),
        ("Certificate", badge, tol or run.missing),
        ("Spent", escaped(_spent(run) or "not known"), _samples(run)),
    ]
    shown = "".join(f"<div><dt>{a}</dt><dd>{b}<small>{escaped(c)}</small></dd></div>" for a, b, c in cards)
    return f'<dl class="cards">{shown}</dl>'


def _overview(runs: Sequence[RunContent]) -> str:
    lines = {
        "status": [run.ending.name for run in runs],
        "claim": [run.ending.claim for run in runs],
        "F": [_value(run) for run in runs],
        "F is": [run.value_of or "-" for run in runs],
        "certificate": [VERDICTS.get(run.certificate.verdict, "-") if run.certificate else "not made" for run in runs],
        "method": [next((text for name, text in run.method if name == "method"), "-") for run in runs],
    }
    for name in dict.fromkeys(name for run in runs for name, _ in run.counts):
        lines[name] = [dict(run.counts).get(name, "-") for run in runs]
    measured = [line for run in runs if run.certificate for line in run.certificate.lines]
    for name in dict.fromkeys(name for name, number, _ in measured if number):
        lines[name] = [_line(run.certificate, name) for run in runs]
    shown = table(
        OVERVIEW, [(name, *cells) for name, cells in lines.items()], ["", *(run.name for run in runs)], "overview"
    )
    hashes = {run.problem_hash for run in runs}
    told = ""
    if len(hashes - {""}) > 1:
        told = "<p><strong>The runs answer different problems</strong> (their hashes differ): F does not compare.</p>"
    elif "" in hashes:
        told = '<p class="quiet">Whether the runs answer the same problem is not known: a hash is missing.</p>'
    return f'{told}<div class="scroll">{shown}</div>'


def _line(certificate: Certified | None, name: str) -> str:
    lines = [] if certificate is None else certificate.lines
    return next((number for title, number, _ in lines if title == name), "-")


def _answer(run: RunContent) -> float | None:
    """F of the answer, where there is one answer."""
    return None if run.each else run.value


def _value(run: RunContent) -> str:
    if run.value is None:
        return "not known"
    return f"{run.value:.8g}" + (f" ± {run.value_error:.1g}" if run.value_error else "")


def _spent(run: RunContent) -> str:
    counts = dict(run.counts)
    return f"{counts['seconds']} s" if "seconds" in counts else ""


def _samples(run: RunContent) -> str:
    told = [f"{text} {name}" for name, text in run.counts if name.startswith(("samples", "seconds to"))]
    return "; ".join(told)


# -- the sections -----------------------------------------------------------------------------------------------------


def _asked(run: RunContent) -> str:
    return _rows("The problem", run.problem) + _pairs("The method, every value filled in", run.method)


def _ended(run: RunContent) -> str:
    badge = _badge(run.ending.tone, run.ending.name)
    return f"<p>{badge} {escaped(run.ending.claim)}</p><p>{escaped(run.ending.message)}</p>"


def _certificate(run: RunContent) -> str:
    found = run.certificate
    if found is None:
        return f"<p>{escaped(run.missing)}</p>"
    reasons = "".join(f"<li>{escaped(reason)}</li>" for reason in found.reasons)
    verdict = f"<p>{_badge(found.verdict, VERDICTS.get(found.verdict, found.verdict))} at tolerance {found.tol:g}.</p>"
    tests = [
        f'<tr><th scope="row">{escaped(question)}</th><td>{_badge(answer, VERDICTS.get(answer, answer))}</td>'
        f'<td class="why">{escaped(why)}</td></tr>'
        for question, answer, why in found.tests
    ]
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("question", "answer", "why"))
    questions = (
        f"<table><caption>What it asks</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(tests)}</tbody></table>"
    )
    lines = table("What it measured", found.lines, ("", "number", "what it says"), "lines")
    objections = f'<ul class="reasons">{reasons}</ul>' if reasons else ""
    return f'{verdict}{objections}<div class="scroll">{questions}</div><div class="scroll">{lines}</div>'


def _globality(run: RunContent, number: int) -> str:
    values, said = run.starts
    if not values.size:
        return ""
    known = np.isfinite(values)
    told = f"<p>{escaped(said.replace('Globality: ', '', 1))}</p>" if said else ""
    if not known.all():
        missing = numbers_in_words(np.flatnonzero(~known).tolist())
        told += f'<p class="quiet">Without a valid point, or without a turn (0 is the given one): start {missing}.</p>'
    if not known.any():
        return told
    title = "F at the ends of the starts"
    text = "The lowest first." if _answer(run) is None else "The lowest first; the dashed line is F of the answer."
    plot = dot_plot(values, _answer(run), number, title)
    return f"{told}<figure><figcaption><h3>{title}</h3><p>{text}</p></figcaption>{plot}</figure>"


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Rising whole numbers, neighbours drawn together.

    Examples:
        >>> numbers_in_words([0, 3, 4, 5, 9])
        '0, 3 to 5, 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _each(run: RunContent) -> str:
    if not run.each:
        return ""
    whole = run.starts.values.size
    caption = "Start by start" if whole == len(run.each) else f"The first {len(run.each)} of {whole} starts"
    return f'<div class="scroll">{table(caption, run.each, STARTS_HEADINGS, "each")}</div>'


def _repeat(run: RunContent) -> str:
    command = f"<pre>{escaped(run.command)}</pre>" if run.command else ""
    hashed = f'<p class="quiet">Hash of the problem: {escaped(run.problem_hash)}</p>' if run.problem_hash else ""
    short = {"Arguments": run.settings, "Versions": run.versions, "Spent": run.counts}
    return command + "".join(_pairs(title, rows) for title, rows in short.items()) + hashed


def _log(run: RunContent) -> str:
    lines = "".join(f"<li>{escaped(line)}</li>" for line in run.log)
    return f'<ol class="log">{lines}</ol>' if lines else ""


def _rows(caption: str, rows: Sequence[tuple[str, str]]) -> str:
    return f'<div class="scroll">{table(caption, rows, (), "rows")}</div>' if rows else ""


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Many short pairs, in as many columns as fit."""
    shown = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>" for name, text in rows)
    return f'<p class="caption">{escaped(title)}</p><dl class="pairs">{shown}</dl>' if rows else ""


def _badge(tone: str, text: str) -> str:
    return f'<span class="badge {escaped(tone)}">{escaped(text)}</span>'


# -- charts -----------------------------------------------------------------------------------------------------------


def _charts(panels: Sequence[Panel], nothing: str, several: bool = False) -> str:
    if not panels:
        return f"<p>{nothing}</p>"
    shown = "".join(_figure(panel, number, several) for number, panel in enumerate(panels))
    return f'<p class="quiet hint">{ZOOM_HINT}</p><div class="charts">{shown}</div>'


def _figure(panel: Panel, number: int, several: bool = False) -> str:
    left_out, total = view_of(panel).left_out, sum(one.y.size for one in panel.series)
    text = escaped(panel.text)
    if left_out:
        text += f" {left_out} of {total} points are out of view: far from the others, below zero, or not finite."
    options = "".join(f'<option value="{key}">{escaped(name)}</option>' for key, name in panel.axes.items())
    checked, alone = " checked" if panel.log else "", " hidden" if len(panel.axes) == 1 else ""
    controls = (
        f'<div class="controls" hidden><label{alone}>against <select>{options}</select></label>'
        f'<label><input type="checkbox"{checked}> logarithm</label>'
        '<button type="button">all points</button><button type="button">first view</button></div>'
    )
    drawing = chart(panel, number)
    if _many(panel):
        drawing = drawing.replace('<g class="marks"', '<g class="marks many"', 1)
    above = f"<figcaption><h3>{escaped(panel.title)}</h3><p>{text}</p></figcaption>{controls}"
    below = f'{_legend(panel, several)}<output class="readout"></output>'
    return f'<figure class="chart">{above}{drawing}{below}</figure>'


def _many(panel: Panel) -> bool:
    return any(not one.name for one in panel.series)


def _legend(panel: Panel, always: bool) -> str:
    named = legend(panel)
    if len(named) < 2 and not always:
        return ""
    items = []
    for colour, name, dots in named:
        shown = mark(colour, 15.0, 5.0) if dots else f'<path class="s{colour}" d="M0 5H30"/>'
        items.append(f'<li><svg viewBox="0 0 30 10" aria-hidden="true">{shown}</svg>{escaped(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _data(panel: Panel) -> dict[str, object]:
    """What charts.js draws."""
    view = view_of(panel)
    return {
        "log": panel.log,
        "many": _many(panel),
        "reference": panel.reference,
        "axes": dict(panel.axes),
        "view": {
            "x0": view.x.low,
            "x1": view.x.high,
            "y0": view.y.low,
            "y1": view.y.high,
            "log": view.y.log,
            "zero": view.y.zero,
            "zeroAt": view.y.zero_at,
        },
        "series": [
            {
                "name": one.name,
                "dots": one.dots,
                "colour": one.colour,
                "x": {name: _six_digits(column) for name, column in one.x.items()},
                "y": _six_digits(one.y),
            }
            for one in panel.series
        ],
    }


def _six_digits(column: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in column]
