"""Reports: pages that need no network, say what the facts say and nothing better, and charts that show the numbers."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
import sys
import typing
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from cases import EXACT, METHOD, TOY
from typer.testing import CliRunner

import hierax as hx
from hierax.cli import app
from hierax.reports import facts, figures, folder, page, panels

EVIL = "</script><img src=x onerror=alert(1)>"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def searched():
    """The toy without noise, by Auto: four local minimisers, whose F is known."""
    return hx.solve(EXACT.problem, EXACT.x0, EXACT.y0)


@pytest.fixture(scope="module")
def stepped():
    """The toy with noise, by SALVF."""
    return hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=200, record_every=2)


@pytest.fixture(scope="module")
def many():
    return hx.solve_many(TOY.problem, np.array([0.5, 1.5, 2.5]), np.array([0.5, 1.5, 2.5]), METHOD, max_steps=50)


class Page(HTMLParser):
    """A page taken apart: its elements, its text, and whether every element that opens also closes."""

    ALONE = ("meta", "input")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def assert_alone(text):
    """Nothing in the page makes a browser ask for anything."""
    found = Page(text)
    for tag, attributes in found.elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "audio", "video", "form", "a"}
        assert tag != "image" and not {"src", "xlink:href", "srcset", "data", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
        assert re.fullmatch(r"[\w\s:;.,()-]*", attributes.get("style", "")) and "url" not in attributes.get("style", "")
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"@import|https?:|//[a-z]+\.|fetch\(|XMLHttp|import\(|WebSocket|sendBeacon", text)
    assert len(text.encode()) < 2_000_000
    return found


# -- what a page says -------------------------------------------------------------------------------------------------


def test_values_of_the_starts_are_those_of_known_minimisers(searched):
    known = np.array([one.upper for one in EXACT.solutions])
    values = np.array(searched.starts.values)
    found = values[np.isfinite(values)]
    assert found.size >= 4
    assert np.abs(found[:, None] - known).min(axis=1).max() < 1e-5
    np.testing.assert_allclose([np.nanmin(values), searched.value], known.min(), atol=1e-6)
    assert searched.starts.said.startswith("Globality: ")


SAMPLED = dataclasses.replace(
    TOY.problem, zeta=hx.Sampler(TOY.problem.zeta.draw), xi=hx.Sampler(TOY.problem.xi.draw)
)  # without its known expectation


@pytest.mark.parametrize(
    ("problem", "auto", "steps", "off", "said"),
    [
        (EXACT.problem, hx.Auto(route="penalty", starts=4), None, 1e-5, "Globality: "),
        (EXACT.problem, hx.Auto(route="implicit", starts=4), None, 1e-5, "Globality: "),
        (
            SAMPLED,
            hx.Auto(route="average", starts=4, samples=4000),
            None,
            5e-3,
            "On the first average, of 1000 samples",
        ),
        (TOY.problem, hx.Auto(route="large", starts=4), 1, 5e-2, "After the first runs, from 4 starts"),
    ],
    ids=["penalty", "implicit", "average", "large"],
)
def test_every_route_keeps_the_values_of_its_starts(problem, auto, steps, off, said):
    """As precisely as its samples allow, and its steps: the large route makes one stage here."""
    sol = hx.solve(problem, 1.5, 1.5, auto, max_steps=steps)
    values, known = np.array(sol.starts.values), np.array([one.upper for one in EXACT.solutions])
    assert values.shape == (4,) and sol.starts.said.startswith(said)
    assert np.abs(values[:, None] - known).min(axis=1).max() < off
    assert values.min() == pytest.approx(known.min(), abs=off) and np.unique(values.round(1)).size > 1


def test_starts_are_kept_with_the_answer(tmp_path):
    """The same call in the same folder takes the answer over, starts and all."""
    first = hx.solve(EXACT.problem, EXACT.x0, EXACT.y0, hx.Auto(starts=4), checkpoint=tmp_path)
    again = hx.solve(EXACT.problem, EXACT.x0, EXACT.y0, hx.Auto(starts=4), checkpoint=tmp_path)
    assert len(first.starts.values) == 4
    np.testing.assert_array_equal(first.starts.values, again.starts.values)
    assert first.starts.said == again.starts.said


def test_the_page_of_a_search_says_what_was_found(searched, tmp_path):
    path = searched.report(tmp_path / "new" / "run.html")
    found = assert_alone(path.read_text("utf-8"))
    text = " ".join(found.text)
    assert f"{EXACT.solutions[1].upper:.6f}"[:7] in text  # F of the global minimiser
    for words in (
        "The certificate agrees",
        "converged",
        "Is y optimal below?",
        "entries from 0 to 3",
        "Globality",
        "seed",
    ):
        assert words in text
    assert f"hierax {hx.__version__}" in text and jax.__version__ in text
    valid = np.isfinite(searched.starts.values).sum()
    dots = re.search(r"F at the ends of the starts</h3>.*?<svg.*?</svg>", path.read_text("utf-8"), re.DOTALL).group(0)
    assert dots.count("<use ") == valid
    top = " ".join(Page(path.read_text("utf-8").partition("</header>")[0].partition("<header>")[2]).text)
    for shown in (
        "converged",
        f"{searched.value:.8g}",
        f"{float(searched.x):.6g}",
        f"{float(searched.y):.6g}",
        "yes",
    ):
        assert shown in top


def test_a_page_and_a_folder_say_the_same(stepped, tmp_path):
    settings = {"target": "model.py:problem", "method": "salvf", "max_steps": 200, "seed": 0}
    folder.write_run(tmp_path / "run", stepped, settings)
    _ = stepped.certificate
    folder.add_certificate(tmp_path / "run", stepped)
    told = folder.run_in(tmp_path / "run", "run")
    direct = page.RunContent("run", facts.facts_of(stepped, settings), stepped.history.columns)
    assert told.facts == direct.facts and told.ending == direct.ending
    for name, column in stepped.history.items():
        np.testing.assert_array_equal(told.columns[name], column)
    text = page.page_of([told])
    assert text == page.page_of([direct])
    assert "<pre>hierax solve model.py:problem --method salvf --max-steps 200 --seed 0</pre>" in text
    assert told.certificate["verdict"] == stepped.certificate.verdict(stepped.tol)
    assert "<dt>c1</dt><dd>5</dd>" in text and told.counts["samples of zeta"] == f"{stepped.counts.zeta:,}"
    assert (
        told.value == stepped.value == pytest.approx(float(EXACT.problem.upper(stepped.x, stepped.y, None)), rel=1e-9)
    )


def test_a_run_that_claims_nothing_is_shown_as_open(stepped, tmp_path):
    text = " ".join(assert_alone(stepped.report(tmp_path / "run.html").read_text("utf-8")).text)
    assert "No claim is made that this solves the problem." in text and "max_steps" in text
    assert 'class="badge ok"' not in (tmp_path / "run.html").read_text("utf-8")


def test_a_claim_that_the_certificate_does_not_share_is_not_repeated(stepped):
    """As where fresh samples decide differently, or a file was written by hand."""
    kinds = typing.get_type_hints(hx.Status)["kind"]
    claimed = hx.Status(kinds.CONVERGED, "converged: so they say.", 7)
    claiming = dataclasses.replace(stepped, x=stepped.x + 0.3, y=stepped.y + 0.3, status=claimed)
    assert claiming.certificate.verdict() != "yes"
    told = page.RunContent("run", facts.facts_of(claiming, {}), {})
    assert told.certificate["verdict"] != "yes" and told.ending.tone == "open"
    assert "does not agree" in told.ending.claim
    failed = dataclasses.replace(stepped, status=hx.Status(kinds.INFEASIBLE, "infeasible at step 7.", 7))
    assert page.RunContent("run", facts.facts_of(failed, {}), {}).ending.tone == "failed"


def test_each_question_is_answered_as_the_certificate_does(stepped, searched):
    for sol in (stepped, searched):
        certificate = sol.certificate
        told = facts.certificate_facts(sol, certify=False)
        answers = [answer for _, answer, _ in told["tests"]]
        assert ("no" in answers) == (certificate.verdict(sol.tol) == "no")
        assert (set(answers) == {"yes"}) == certificate.ok(sol.tol)
        assert all(sentence.endswith(".") and sentence[0] == sentence[0].upper() for _, _, sentence in told["lines"])
        numbers = {name: number for name, number, _ in told["lines"]}
        assert numbers["Largest violation"] == f"{certificate.max_violation:.3g}"
        assert numbers["KKT residual of y"].split()[0] == f"{certificate.kkt_residual:.3g}"


def test_many_starts_on_one_page(many, tmp_path):
    text = many.report(tmp_path / "many.html").read_text("utf-8")
    found = assert_alone(text)
    assert "3 max_steps" in " ".join(found.text)
    told = page.RunContent("many", facts.facts_of_many(many), many.history.columns)
    exact = [float(EXACT.problem.upper(one.x, one.y, None)) for one in many]
    np.testing.assert_allclose(told.starts, exact, rtol=1e-9)
    assert [row[1] for row in told.rows("each")] == ["max_steps"] * 3 and told.facts["value"] == min(told.starts)
    infeasible = hx.Status(typing.get_type_hints(hx.Status)["kind"].INFEASIBLE, "infeasible at step 1.", 1)
    failed = dataclasses.replace(many, status=[infeasible, *many.status[1:]])
    told = page.RunContent("many", facts.facts_of_many(failed), {})
    assert told.ending.tone == "failed" and np.isnan(told.starts[0])
    upper = panels.panels_of([panels.RunHistory("many", many.history.columns, None)])[0]
    assert len(upper.series) == 3
    np.testing.assert_allclose(upper.series[2].y, many.history["upper"][:, 2])


def test_names_of_the_user_are_shown_and_not_obeyed(tmp_path):
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y[EVIL] - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y[EVIL] - 2.0 * x) ** 2,
        x_set=hx.Box(0.0, 3.0),
    )
    sol = hx.solve(problem, 0.5, {EVIL: 0.5}, hx.GAM(), max_steps=2)
    sol = dataclasses.replace(sol, log=(EVIL, "\x00\ud800"), arguments={EVIL: EVIL})
    path = sol.report(tmp_path / "evil<b>.html", certify=False)
    found = assert_alone(path.read_text("utf-8"))
    assert sum(EVIL in piece for piece in found.text) >= 4
    assert "Not made: sol.certificate makes it" in " ".join(found.text) and sol.known_certificate is None
    for shown in (sol, problem):
        assert EVIL not in shown._repr_html_()


def test_names_of_runs_and_of_records_are_shown_and_not_obeyed():
    columns = {"step": np.arange(3), EVIL: np.arange(3.0), "$\\broken{$": np.arange(3.0)}
    stored = {"status": {"name": EVIL, "message": EVIL}}
    runs = [page.RunContent(name, stored, columns) for name in (EVIL, "$\\alpha$")]
    for shown in (runs, runs[:1]):
        found = assert_alone(page.page_of(shown))
        assert sum(EVIL in piece for piece in found.text) >= 4 and len(found.of("svg")) == 2


# -- folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    return lambda *args: CliRunner().invoke(app, list(args))


@pytest.fixture
def two(stepped, searched, tmp_path):
    """Folders of two runs of different problems."""
    for name, sol, sha in (("a", stepped, "1" * 64), ("b", searched, "2" * 64)):
        folder.write_json(tmp_path / name / "answer.json", {"F": sol.value, "problem": {"sha256": sha}})
        folder.write_run(tmp_path / name, sol, {"target": "m.py:p", "method": name, "seed": 0})
    return tmp_path


def test_the_command_writes_pages(cli, two):
    assert cli("report", "a").exit_code == 0
    assert_alone((two / "a" / "report.html").read_text("utf-8"))
    result = cli("report", "a", "b", "--out", "both/page.html")
    assert result.exit_code == 0, result.output
    text = " ".join(assert_alone((two / "both" / "page.html").read_text("utf-8")).text)
    assert "2 runs side by side" in text and "answer different problems" in text
    assert "SALVF" in text and "Auto" in text


def test_folders_that_hold_no_run_or_a_damaged_one(cli, two):
    (two / "empty").mkdir()
    (two / "a" / "run.json").write_text('{"status": {"name": 3}}')
    (two / "b" / "history.csv").write_text("step,upper\n1,one\n")
    for args, said in (
        (("empty",), "holds no run.json"),
        (("a",), "run.json is damaged"),
        (("b",), "history.csv: is damaged"),
        (("b", "b"), "the same folder is given twice"),
    ):
        result = cli("report", *args)
        assert result.exit_code == 1 and said in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    (two / "b" / "run.json").write_text("[")
    assert "is damaged" in cli("report", "b").stderr


def test_a_run_under_way_shows_nothing_of_an_older_one(two):
    folder.begin_run(two / "b", {"target": "m.py:p", "method": "auto"})
    told = folder.run_in(two / "b", "b")
    assert told.ending.tone == "open" and told.value is None and "missing" in told.certificate and not told.columns
    assert "No records were kept of this run." in page.page_of([told])


def test_a_folder_of_an_older_version_is_still_shown(two):
    """Without what later versions wrote."""
    run = json.loads((two / "b" / "run.json").read_text())
    old = ("settings", "method", "versions", "status", "counts", "log")
    (two / "b" / "run.json").write_text(json.dumps({name: run[name] for name in old}))
    told = folder.run_in(two / "b", "b")
    assert told.value == pytest.approx(EXACT.solutions[1].upper, abs=1e-6)  # answer.json has it
    assert_alone(page.page_of([told]))


# -- charts -----------------------------------------------------------------------------------------------------------


def test_the_drawing_has_the_numbers_of_the_history(stepped):
    found = panels.panels_of([panels.RunHistory("", stepped.history.columns, stepped.value)])
    assert [panel.title for panel in found][:2] == ["Upper objective F", "Lower objective G"]
    for panel in (found[0], next(panel for panel in found if panel.log)):
        drawn = _drawn(panel)
        assert len(drawn) == len(panel.series)
        for line, points in zip(panel.series, drawn, strict=True):
            shown = line.y > 0 if panel.log else np.isfinite(line.y)
            y = np.log10(line.y[shown]) if panel.log else line.y[shown]
            assert len(points) == shown.sum()
            _assert_affine(line.x[shown], points[:, 0])
            _assert_affine(-y, points[:, 1])


def _drawn(panel):
    """The points of every line of a chart."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="[^"]*stroke: var\(--c\d', figures.panel_svg(panel, "name"))
    return [np.array(re.findall(r"[ML] (\S+) (\S+)", path), float) for path in paths]


def _assert_affine(numbers, pixels):
    slope, at = np.polyfit(numbers, pixels, 1)
    assert slope > 0
    np.testing.assert_allclose(
        slope * numbers + at, pixels, atol=0.05 + 0.02
    )  # a rounded digit, and what rounding moves the line


def _violations(*values):
    columns = {"step": np.arange(len(values)), "seconds": np.arange(len(values)), "violation": np.array(values)}
    return panels.panels_of([panels.RunHistory("", columns, None)])[0]


def test_zeros_are_not_on_a_logarithmic_axis():
    panel = _violations(1e-2, 1e-4, 0.0, 1e-6, 0.0)
    assert panel.log and panel.count_not_drawn == 2
    text = page._charts([], [panel])
    assert "2 of 5 points are not drawn: not positive" in text
    labels = [float(label) for label in re.findall(r'text-anchor: end"[^>]*>([^<]*)</text>', text)]
    assert labels and min(labels) > 0  # those of the values
    assert not _violations(0.0, 1.0, 2.0).log  # two decades or more
    assert "Violation: 0 in every record." in page._charts([], [_violations(0.0, 0.0)])


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-1e-9, 1e-9), (1e8, 1e8 + 1), (5.0, 5.0), (-1e300, 1e300)])
def test_limits_hold_all_values(low, high):
    first, last = panels.limits_without_outliers(np.array([low, high, np.nan, np.inf]), None)
    assert np.isfinite([first, last]).all() and first < low <= high < last
    assert panels.limits_without_outliers(np.zeros(0), None) == (-0.04, 1.04)


def test_points_far_from_the_others_are_counted():
    columns = {
        "step": np.arange(1, 41),
        "start": np.zeros(40),
        "upper": np.append(np.linspace(1, 2, 38), [1e9, np.inf]),
    }
    (panel,) = panels.panels_of([panels.RunHistory("", columns, 1.0)])
    assert panel.count_not_drawn == 2 and panel.limits[1] < 4
    assert "2 of 40 points are not drawn: far from the others" in page._charts([], [panel])


def test_long_histories_make_small_pages_and_keep_their_extremes(stepped):
    rng = np.random.default_rng(0)
    count, starts = 100_000, 60
    columns = {"step": np.arange(count), "seconds": np.arange(count) * 1e-3, "zeta": np.arange(count)}
    columns |= {name: rng.uniform(1e-9, 1.0, count) for name in ("upper", "violation")}
    columns["upper"][51_234] = 9.0
    (line,) = panels.panels_of([panels.RunHistory("long", columns, None)])[0].series
    assert line.y.size <= panels.MAX_POINTS and line.x[line.y == 9.0] == [51_234]
    many = {
        name: np.broadcast_to(column[:500, None], (500, starts)) for name, column in columns.items() if name != "step"
    }
    wide = page.RunContent("wide", facts.facts_of(stepped, {}), {**many, "step": np.arange(500)})
    text = page.page_of([wide])
    assert_alone(text)
    assert "24 of the 60 starts are drawn" in text and len(text) < 300_000
    assert text == page.page_of([wide])  # the same bytes for the same run


def test_charts_have_names_and_ids_of_their_own(searched, tmp_path):
    text = searched.report(tmp_path / "run.html").read_text("utf-8")
    found = Page(text)
    assert len(found.of("svg")) >= 2
    for attributes in found.of("svg"):
        assert attributes["role"] == "img" and attributes["aria-label"]
    assert all("scope" in attributes for attributes in found.of("th"))
    assert len(found.of("caption")) == len(found.of("table")) > 3
    names = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) == set(names)


def _luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_contrast_is_enough_in_light_dark_and_print():
    """By the formula of WCAG 2: 4.5 for text, 3 for lines."""
    css = page.resources.files("hierax.reports").joinpath("style.css").read_text("utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    ]
    assert len(themes) == 3 and [themes[0][f"c{i}"] for i in range(6)] == list(figures.COLOURS)
    pairs = [(name, "back", 4.5) for name in ("text", "quiet")] + [
        (f"c{i}", "back", 3.0) for i in range(len(figures.COLOURS))
    ]
    pairs += [(name, f"{name}-back", 4.5) for name in ("ok", "open", "failed")] + [("quiet", "raised", 4.5)]
    for theme in themes:
        theme = {
            name: "#" + "".join(c * 2 for c in code[1:]) if len(code) == 4 else code for name, code in theme.items()
        }
        for front, back, least in pairs:
            light, dark = sorted((_luminance(theme[front]), _luminance(theme[back])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= least, (front, back)


# -- notebooks --------------------------------------------------------------------------------------------------------


def test_notebooks_show_tables(searched, stepped, many):
    for shown, words in (
        (stepped, "Solution: max_steps"),
        (searched.certificate, "verdict at tol"),
        (many, "3 max_steps"),
        (TOY.problem, "a sampler whose expectation is known"),
    ):
        found = Page(shown._repr_html_())
        assert words in " ".join(found.text) and len(found.of("table")) == 1
    rows = Page(many._repr_html_()).of("tr")
    assert len(rows) == 1 + len(many)


def test_plot_draws_the_history(searched, stepped, many):
    figure = stepped.plot()
    upper = figure.axes[0]
    np.testing.assert_allclose(upper.lines[0].get_xydata(), np.c_[stepped.history["step"], stepped.history["upper"]])
    assert upper.get_title() == "Upper objective F"
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    ends = next(ax for ax in searched.plot().axes if ax.get_title() == "F at the ends of the starts")
    values = np.array(searched.starts.values)
    np.testing.assert_allclose(ends.lines[0].get_ydata(), values[np.isfinite(values)])
    np.testing.assert_array_equal(ends.lines[0].get_xdata(), np.flatnonzero(np.isfinite(values)))
    assert len(many.plot().axes[0].lines) == 3


def test_without_matplotlib_the_plot_names_the_extra_and_the_page_has_tables(stepped, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "hierax.reports.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(hx.MissingExtra, match=r"pip install 'hierax\[plot\]'"):
        stepped.plot()
    found = assert_alone(stepped.report(tmp_path / "run.html", certify=False).read_text("utf-8"))
    assert 'pip install "hierax[plot]"' in " ".join(found.text) and not found.of("svg")
    assert f"{stepped.history['upper'][-1]:.6g}" in " ".join(found.text)


# -- in a browser -----------------------------------------------------------------------------------------------------

NARROW = """<!DOCTYPE html><title>narrow</title><iframe width="400" height="800" srcdoc="{page}"></iframe><script>
window.addEventListener("load", () => {{
  const inside = document.querySelector("iframe").contentWindow;
  const told = [inside.innerWidth, inside.document.documentElement.scrollWidth,
    inside.performance.getEntriesByType("resource").length];
  document.body.setAttribute("data-told", JSON.stringify(told));
}});</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_narrow_browser_shows_the_page_without_scrolling_sideways(stepped, tmp_path):
    text = stepped.report(tmp_path / "run.html").read_text("utf-8")
    narrow = tmp_path / "narrow.html"
    narrow.write_text(NARROW.format(page=html.escape(text)), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--dump-dom"]
    options += [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # what the browser itself would ask goes nowhere either
        "--enable-logging=stderr",
    ]
    done = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}", narrow.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    width, needed, requests = json.loads(html.unescape(re.search(r'data-told="(.*?)"', done.stdout).group(1)))
    assert needed <= width == 400 and requests == 0
