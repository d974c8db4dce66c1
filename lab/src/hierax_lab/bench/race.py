"""`hierax bench race`: twelve problems, `hx.solve` with nothing set against what an expert writes by hand.

Every solver has a process of its own for every problem: the first solve is cold, imports included, the second, of other
numbers of the same shape, is warm. Seconds are CPU seconds on one thread. What an answer is worth is said by phi(x) =
F(x, y*(x)) with the lower solver written by hand. The page docs/benchmarks/race.md is made from the results alone.
"""

import ast
import inspect
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from hierax_lab.bench import race_by_hand, race_child
from hierax_lab.bench.cold import run_alone
from hierax_lab.bench.race_data import DATA
from hierax_lab.bench.race_statements import STATEMENTS
from hierax_lab.output import draw_or_say, new_figure, save_figure, versions, write_json
from hierax_lab.reproduce.comparison import COLOURS, headed, target_table

NAMES, SOLVERS = list(STATEMENTS), list(race_child.SOLVERS)
QUICK = (["tolls", "QCQP 20+20"], ["by hand", "hierax"])  # problems and solvers of a quick run, which is not judged
AS_GOOD = 1e-4  # of 1 + |F|: by how much F may be above that of the solver by hand
SHORT = 0.1  # CPU seconds; a solver by hand that takes less counts as taking this long, where the first answer is asked
MEDIAN_TIMES, MOST_TIMES, CALL_TIMES, MIN_CERTIFIED = 3.0, 10.0, 10.0, 10
Rows = dict[str, list[dict[str, Any]]]  # by "problem, solver": the cold and the warm solve


class Times(NamedTuple):
    """CPU seconds of hierax on a problem as multiples of those by hand; infinite: it has no certified answer.

    `first`: until a point as good as the returned one was held; `equal`: as good as that by hand; `call`: the call.
    """

    first_warm: float
    first_cold: float
    equal_warm: float
    call_warm: float


def measure(problem: str, solver: str, folder: Path, python: str) -> list[dict[str, Any]]:
    """The cold and the warm solve of a solver, with phi at its x; one row with the reason where it was not run."""
    files = [folder / f"{problem.replace(' ', '-')}-{seed}.npz" for seed in (0, 1)]
    for seed, file in enumerate(files):
        if not file.is_file():
            np.savez(file, allow_pickle=False, **DATA[problem](seed))
    command = [python, "-m", race_child.__name__, solver, problem, *map(str, files)]
    source = str(Path(__file__).parents[2])
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), source]))}
    try:
        output, _ = run_alone(command, path)
    except RuntimeError as error:
        return [{"not_run": str(error)}]
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if "not_run" in rows[0]:
        return [{"not_run": rows[0]["not_run"]}]
    for row, file in zip(rows, files, strict=True):
        numbers = dict(np.load(file))
        phi, found = race_by_hand.BY_HAND[problem](numbers), np.array(row.pop("x"))
        x = np.clip(found, *STATEMENTS[problem].box(numbers))
        row |= {"value": phi(x)[0], "outside": float(np.abs(x - found).max())}
    return rows


def run(
    console: Console, names: list[str], solvers: list[str], out: Path, again: bool, ipopt: str | None, page: Path | None
) -> bool:
    """Measure what race.json of the folder has not yet, print the tables; whether every target is met.

    Args:
        console: where to print.
        names: the problems.
        solvers: the solvers.
        out: folder of race.json and race.png.
        again: measure also what is there.
        ipopt: a Python that has CasADi; None: this one.
        page: where to write the page; None: nowhere.
    """
    file = out / "race.json"
    rows: Rows = json.loads(file.read_text())["rows"] if file.is_file() and not again else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for solver in solvers:
                if f"{name}, {solver}" in rows:
                    continue
                python = ipopt if ipopt and solver == "Ipopt" else sys.executable
                found = rows[f"{name}, {solver}"] = measure(name, solver, Path(folder), python)
                write_json(file, {"versions": versions(), "rows": rows})
                told = ", ".join(f"{row['seconds']:.2f} s" for row in found if "seconds" in row)
                console.print(f"{name}, {solver}: {told or found[0]['not_run']}", style="dim", highlight=False)
    console.print(_table(rows, names))
    console.print(_outside_table(rows, names))
    draw_or_say(lambda: _draw(rows, out / "race.png"), console.out)
    if page is not None:
        write_page(rows, page)
    if set(names) != set(NAMES) or not {"by hand", "hierax"} <= set(solvers):
        return True
    judged = targets(rows)
    console.print(target_table("targets", ("measured",), judged))
    return all(met for *_, met in judged)


def times(rows: Rows, name: str) -> Times:
    """How long hierax takes on a problem, in units of what the solver by hand takes."""
    (hand_cold, hand), (cold, warm) = rows[f"{name}, by hand"], rows[f"{name}, hierax"]

    unit = max(hand["seconds"], SHORT)
    return Times(
        held(warm) / unit,
        held(cold) / max(hand_cold["seconds"], SHORT),
        held(warm, hand["value"]) / unit,
        warm["seconds"] / hand["seconds"],
    )


def held(row: dict[str, Any], value: float | None = None) -> float:
    """CPU seconds of hierax until it held a point as good as the value, or as its certified answer; infinite: never."""
    good = row["value"] if value is None else value
    tol = row["tol"] if value is None else AS_GOOD
    return min((at for at, upper in row["points"] if upper <= good + tol * (1 + abs(good))), default=math.inf)


def shown(value: float, digits: int) -> str:
    """A number for a table; "-" where there is none."""
    return f"{value:.{digits}f}" if value < math.inf else "-"


def lines_by_hand(problem: str) -> tuple[int, int]:
    """Lines of code of a solver by hand: of its own, and of what it shares with others; no comments, no docstrings."""
    own = race_by_hand.BY_HAND[problem]
    shared = [race_by_hand.solve] + (
        [race_by_hand.QP] if "qp" in own.__code__.co_cellvars or "QP(" in inspect.getsource(own) else []
    )
    return _lines(own), sum(map(_lines, shared))


def _lines(thing: Any) -> int:
    tree = ast.parse(inspect.getsource(thing))
    texts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = inspect.getsource(thing).splitlines()
    return sum(bool(line.strip()) and number not in texts for number, line in enumerate(lines, 1))


def targets(rows: Rows) -> list[tuple[str, str, bool]]:
    """What is asked of hierax on all problems together."""
    found = {name: times(rows, name) for name in NAMES}
    warm, cold = ([one[i] for one in found.values()] for i in (0, 1))
    call = math.exp(float(np.mean([math.log(one.call_warm) for one in found.values()])))
    worse = [name for name in NAMES if not _as_good(rows, name)]
    sure = sum(all(row["certified"] for row in rows[f"{name}, hierax"]) for name in NAMES)
    middle, slow = float(np.median(warm)), [name for name, one in zip(NAMES, warm, strict=True) if one > MOST_TIMES]
    chill = float(np.median(cold))
    return [
        (
            f"first certified answer, warm: median at most {MEDIAN_TIMES:g} times by hand",
            f"{middle:.1f}",
            middle <= MEDIAN_TIMES,
        ),
        (f"first certified answer, warm: none over {MOST_TIMES:g} times", ", ".join(slow) or "none", not slow),
        (f"first certified answer, cold: median at most {MEDIAN_TIMES:g} times", f"{chill:.1f}", chill <= MEDIAN_TIMES),
        (f"whole call, warm: geometric mean at most {CALL_TIMES:g} times", f"{call:.1f}", call <= CALL_TIMES),
        ("F as low as by hand, or lower", ", ".join(worse) or "everywhere", not worse),
        (f"certified with both data: at least {MIN_CERTIFIED}", f"{sure} of {len(NAMES)}", sure >= MIN_CERTIFIED),
    ]


def _as_good(rows: Rows, name: str, solver: str = "hierax") -> bool:
    pairs = zip(rows[f"{name}, {solver}"], rows[f"{name}, by hand"], strict=False)
    return all(row["value"] <= hand["value"] + AS_GOOD * (1 + abs(hand["value"])) for row, hand in pairs)


def _made(rows: Rows, names: Iterable[str], *solvers: str) -> list[str]:
    """The problems that all of the solvers were run on."""
    return [name for name in names if all("seconds" in rows.get(f"{name}, {one}", [{}])[0] for one in solvers)]


HEADINGS = (
    "by hand cold",
    "warm",
    "first answer cold",
    "warm",
    "times",
    "as good, times",
    "call cold",
    "warm",
    "times",
    "F - F by hand",
    "status",
    "lines by hand",
)


def _cells(rows: Rows, name: str) -> list[str]:
    """The row of a problem in the table of hierax and the solver by hand."""
    (hand_cold, hand), (cold, warm) = rows[f"{name}, by hand"], rows[f"{name}, hierax"]
    one, (own, shared) = times(rows, name), lines_by_hand(name)
    above = max((row["value"] - other["value"] for row, other in ((cold, hand_cold), (warm, hand))), key=abs)
    statuses = cold["status"] if cold["status"] == warm["status"] else f"{cold['status']}, {warm['status']}"
    return [
        f"{hand_cold['seconds']:.2f}",
        f"{hand['seconds']:.3f}",
        *(shown(value, 2) for value in (held(cold), held(warm))),
        *(shown(value, 1) for value in (one.first_warm, one.equal_warm)),
        f"{cold['seconds']:.1f}",
        f"{warm['seconds']:.2f}",
        f"{one.call_warm:.0f}",
        f"{above:.1e}",
        statuses,
        f"{own} + {shared}",
    ]


def _table(rows: Rows, names: list[str]) -> Any:
    table = headed("CPU seconds", *HEADINGS)
    for name in _made(rows, names, "by hand", "hierax"):
        table.add_row(name, *_cells(rows, name))
    return table


OUTSIDE = ("SLSQP", "Ipopt")


def _outside_cells(rows: Rows, name: str) -> list[str]:
    """The row of a problem in the table of the solvers on the KKT form."""
    cells = []
    for solver in OUTSIDE:
        found = rows.get(f"{name}, {solver}", [{"not_run": "not run"}])
        if "seconds" not in found[0]:
            cells += [found[0]["not_run"][:60], "", ""]
            continue
        (cold, warm), hands = found, rows[f"{name}, by hand"]
        above = max((row["value"] - hand["value"] for row, hand in zip(found, hands, strict=True)), key=abs)
        cells += [f"{cold['seconds']:.2f}", f"{warm['seconds']:.2f}", f"{above:.1e}"]
    return cells


OUTSIDE_HEADINGS = [f"{solver} {text}" for solver in OUTSIDE for text in ("cold", "warm", "F - F by hand")]


def _outside_table(rows: Rows, names: list[str]) -> Any:
    table = headed("on the KKT form, CPU seconds", *OUTSIDE_HEADINGS)
    for name in _made(rows, names, "by hand"):
        table.add_row(name, *_outside_cells(rows, name))
    return table


def _draw(rows: Rows, path: Path) -> None:
    """Bars: multiples of the solver by hand, warm."""
    names = _made(rows, NAMES, "by hand", "hierax")
    if not names:
        return
    figure, places = new_figure(9.0, 1.2 + 0.45 * len(names)), np.arange(len(names))
    panel = figure.subplots()
    found = [times(rows, name) for name in names]
    first = [one.first_warm if one.first_warm < math.inf else math.nan for one in found]
    panel.barh(places - 0.2, first, 0.38, color=COLOURS[0], label=f"first certified answer / max(by hand, {SHORT:g} s)")
    panel.barh(places + 0.2, [one.call_warm for one in found], 0.38, color=COLOURS[1], label="whole call / by hand")
    panel.axvline(MEDIAN_TIMES, color="black", lw=0.8, ls="--", label=f"{MEDIAN_TIMES:g} and {MOST_TIMES:g} times")
    panel.axvline(MOST_TIMES, color="black", lw=0.8, ls="--")
    panel.set(
        xscale="log", xlabel="times the CPU seconds of the solver by hand, warm", yticks=places, yticklabels=names
    )
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.25)
    panel.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


HEAD = """# The race: what an expert writes by hand

Written by `hierax bench race --out lab/results --page docs/benchmarks/race.md` from `lab/results/race.json`.

Twelve problems of ten to a thousand variables, each against a solver written by hand for it alone: L-BFGS-B on
phi(x) = F(x, y*(x)) with exact lower solves that start from the last one, and implicit gradients, in NumPy and SciPy
(`hierax_lab.bench.race_by_hand`); "lines by hand" are those of the problem plus those that several share. hierax is
`hx.solve` with nothing set. Seconds are CPU seconds of a process of its own on one thread: *cold* from the start of
Python to the answer, imports included; *warm* a second problem of the same shape with other numbers in the same
process. *First answer* is when the search first held a point as good as the certified one it returned (the rule of
`sol.counts.seconds_to_answer`, in CPU seconds); *as good* is when it first held one as good as that by hand, which
may be a worse one. The call goes on looking for better ones, and its certificate comes last. Times by hand below 0.1 s
count as 0.1 s there, not for the whole call. hierax ends its search by the clock too (30 or 60 s): on a busy machine a
call takes fewer CPU seconds than on an idle one. F is judged by the lower solver written by
hand, at both data; the difference that is larger in size is shown (negative: hierax is lower).

![CPU seconds of hierax as multiples of those by hand](../../lab/results/race.png)
"""
FOOT = """
## The KKT form

The same problems with the lower level replaced by its KKT conditions: SciPy's SLSQP (where there are at most 450
unknowns; its functions are compiled by JAX, for the warm run too) and Ipopt by CasADi, complementarity at most 1e-2 to
1e-8 in turn, from one start. They give KKT points, which need not be solutions, and no certificate.

CasADi is LGPL and Ipopt EPL: neither comes with hierax, and no other part of the lab uses them. To run that column,
install `lab/requirements-ipopt.lock` into an environment of its own and give its Python to `--ipopt`:

    python -m venv .venv-ipopt && .venv-ipopt/bin/python -m pip install --require-hashes -r lab/requirements-ipopt.lock
    hierax bench race --ipopt .venv-ipopt/bin/python
"""


def write_page(rows: Rows, page: Path) -> None:
    """Write the page from the results."""
    names = _made(rows, NAMES, "by hand", "hierax")
    warm = [rows[f"{name}, hierax"][1] for name in names]
    shares = [row["seconds"] / row["wall"] for row in warm if row.get("wall")]
    busy = f"\nHere a call had {100 * np.median(shares):.0f} % of a core (median, warm).\n" if shares else ""
    lines = [HEAD + busy, *_markdown(HEADINGS, {name: _cells(rows, name) for name in names})]
    if names == NAMES:
        judged = {text: [measured, "met" if met else "not met"] for text, measured, met in targets(rows)}
        lines += ["", "## Targets", "", *_markdown(("measured", ""), judged)]
    lines += [FOOT, *_markdown(OUTSIDE_HEADINGS, {name: _outside_cells(rows, name) for name in names})]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join([*lines, ""]))


def _markdown(headings: Iterable[str], rows: dict[str, list[str]]) -> list[str]:
    headings = ["", *headings]
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
