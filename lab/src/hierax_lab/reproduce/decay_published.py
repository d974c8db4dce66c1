"""The weight-decay experiment in the published setting: the released split, network, batch, epochs and constants.

Beside the methods stand two networks without weight decay: one trained on the training part, and one that may also
train on the validation rows, as the y of every bilevel method does. The paper's accuracy is that of y; the judge here
is a network trained anew on the training part under the bound a method ends with.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax_lab.reproduce import published
from hierax_lab.reproduce.comparison import (
    Axis,
    Row,
    draw_panels,
    endings,
    headed,
    mean_and_error,
    shown_endings,
    shown_mean,
)
from hierax_lab.reproduce.decay_methods import START as ACTIVE_START
from hierax_lab.reproduce.decay_published_runs import (
    BATCH,
    C1,
    C2,
    EPOCHS,
    GAMMA1,
    GAMMA2,
    HIDDEN,
    START,
    STEP,
    Curve,
    S,
    methods,
    run_method,
    run_training,
)
from hierax_lab.reproduce.decay_runs import NO_BOUND
from hierax_lab.reproduce.experiment import Content, Run, experiment
from hierax_lab.reproduce.published import CHANGED, CODE, DECAY_EPOCHS, OURS, PAPER, Given
from hierax_lab.reproduce.verdict import NOT_JUDGED, Verdict
from hierax_lab.reproduce.workers import Name, Task

QUICK_EPOCHS = 2
PUBLISHED = ("SALVF", "SALVF-VR", "BLOCC")  # of the methods, those in the paper's figure
NONE, MORE = "no weight decay", "no weight decay, validation rows too"  # networks trained beside the methods

SETTINGS = (
    Given("data", "digits (1,797 optical images), standardised", CODE),
    Given("data", "pendigits (10,992 pen-based digits), standardised", PAPER),
    Given("split", "60 / 20 / 20 %, one for all seeds", CODE),
    Given("network", f"two layers, {HIDDEN} wide, ReLU", CODE),
    Given("batch, epochs", f"{BATCH}, {EPOCHS}", CODE),
    Given("bound C at the start", f"{START:g}", CODE),
    Given("c1, c2", f"{C1:g}, {C2:g}", CODE),
    Given("steps: alpha, eta_j, rho_j", f"{STEP:g}", CODE),
    Given("SALVF-VR: alpha_k, beta_(k+1)", f"{STEP:g} (k+1)^(-1/3), (k+1)^(-2/3)", PAPER),
    Given("z-gradient", "c1 gamma2 (z - lam): the printed sign is reversed", CHANGED),
    Given("penalty, lam_0 of the inner loop", "quadratic, 0", PAPER),
    Given("no weight decay", f"step {STEP:g} (released: 0.01), a new network for each seed (released: not)", CHANGED),
    Given("gamma1, gamma2, s, z_0", f"{GAMMA1:g}, {GAMMA2:g}, {S}, 0", OURS),
    Given("initial network, w_0", "Glorot's, as for every run here; where the last inner loop ended", OURS),
    Given("BLOCC", f"c = {C1:g}, steps {STEP:g}, 3 x 2 inner steps on all rows, one outer step per epoch", OURS),
    Given("seeds", str(published.SEEDS), PAPER),
)

Curves = dict[str, list[Curve]]  # of a data set, by the name of the network or the method


@experiment
def run(run: Run) -> Content:
    """Run every method and the networks beside them, write metrics.json, curves.npz and figures, print the tables.

    A quick run has one seed, two epochs, digits and SALVF alone.
    """
    seeds = run.seeds or run.sized(published.SEEDS, 1)
    epochs, sets = run.sized((EPOCHS, ("digits", "pendigits")), (QUICK_EPOCHS, ("digits",)))
    names = run.sized([*methods()], ["SALVF"])
    tasks: dict[Name, Task[list[Curve]]] = {}
    for data in sets:
        for name in names:
            tasks[data, name] = (run_method, (data, name, seeds, epochs, run.data_dir))
        for name, more in ((NONE, False), (MORE, True)):
            tasks[data, name] = (run_training, (data, [NO_BOUND] * seeds, more, epochs, run.data_dir))
    found = run.measured(tasks)
    every: dict[str, Curves] = {data: {name: found[data, name] for name in (NONE, MORE, *names)} for data in sets}
    tables = {}
    for data, curves in every.items():
        bounds = {name: [curve.final["bound"] for curve in curves[name]] for name in names}
        judged = {name: run_training(data, bounds[name], False, epochs, run.data_dir) for name in names}
        tables[data] = summary(curves, judged)
    statements = run.judged(verdicts(tables))
    common = {**published.common_content(run, SETTINGS), "seeds": seeds, "epochs": epochs}
    released = {row.method: row.figures for row in published.DECAY_ACCURACY}
    content = run.write({**common, "sets": tables, "released": released}, statements)
    flat = {f"{data}/{name}": runs for data, curves in every.items() for name, runs in curves.items()}
    run.write_curves(flat, ("epochs", "accuracy", "norms", "bounds", "seconds"))
    print_tables(run.console, tables, statements, run.quick)
    run.draw(lambda folder: [draw(folder / f"{data}.png", data, curves) for data, curves in every.items()])
    return content


def summary(every: Curves, judged: Curves) -> dict[str, Row]:
    """A row per network and method: accuracy of y halfway and at the end, bound, norm, and the judge's accuracy.

    A failed run enters no number: means are over the seeds whose run finished. Where none did, the numbers are None.
    """
    none = np.array([curve.accuracy[-1] for curve in every[NONE]])
    rows: dict[str, Row] = {}
    for name, curves in every.items():
        seeds = [seed for seed, curve in enumerate(curves) if not curve.failed]
        finished = [curves[seed] for seed in seeds]
        means: dict[str, Sequence[float] | np.ndarray] = {
            "norm": [curve.norms[-1] for curve in finished],
            "seconds": [curve.final["seconds"] for curve in finished],
        }
        rows[name] = _accuracies(np.array([curve.accuracy for curve in finished]), none[seeds])
        if name in judged:
            retrained = np.array([judged[name][seed].accuracy[-1] for seed in seeds])
            gain, error = mean_and_error(retrained - none[seeds])
            means |= {
                "bound": [curve.final["bound"] for curve in finished],
                "closest": [np.max(curve.norms - curve.bounds) for curve in finished],
                "judged": retrained,
                "gradients": [curve.final["gradients"] for curve in finished],
            }
            rows[name] |= {
                "bound_moved": max((abs(c.final["bound"] - c.final["start"]) for c in finished), default=None),
                "judged_gain": gain,
                "judged_gain_se": error,
                "compile_seconds": float(np.sum([curve.final["compile_seconds"] for curve in curves])),
            }
        rows[name] |= {key: mean_and_error(values)[0] for key, values in means.items()}
        rows[name] |= endings([curve.final for curve in curves])
    return rows


def _accuracies(accuracy: np.ndarray, none: np.ndarray) -> Row:
    """Halfway and at the end, and the gain there; `accuracy` by seed and epoch. None where no run finished."""
    if not len(accuracy):
        return dict.fromkeys(("epochs", "halfway", "end", "gain", "gain_se"))
    epochs = accuracy.shape[1]
    gain, error = mean_and_error(accuracy[:, -1] - none)
    halfway, end = (mean_and_error(accuracy[:, epoch - 1])[0] for epoch in (epochs // 2, epochs))
    return {"epochs": epochs, "halfway": halfway, "end": end, "gain": gain, "gain_se": error}


def verdicts(tables: dict[str, dict[str, Row]]) -> list[Verdict]:
    """The paper's two statements about this experiment, and whether the bound did anything."""
    better, gains, first, seconds = [], [], set(), []
    for data, rows in tables.items():
        ran = {name: rows[name] for name in PUBLISHED if name in rows}
        for name, row in ran.items():
            better.append(row["finished"] == row["runs"] and row["judged_gain"] > 2 * row["judged_gain_se"])
            ended = shown_endings(row)
            gains.append(
                f"{data}: {name} (finished: {ended}): y {shown_mean(row, 'gain', '+.4f')} over no weight decay; "
                f"retrained under its C {shown_mean(row, 'judged_gain', '+.4f')}; C moved by at most "
                f"{row['bound_moved']:.2g}, the norm of y reaches C {row['closest']:+.2f}"
                if row["finished"]
                else f"{data}: {name}: no run finished ({ended})"
            )
        gains.append(f"{data}: {MORE}: {shown_mean(rows[MORE], 'gain', '+.4f')} over training rows alone")
        times = {name: row["seconds"] for name, row in ran.items() if row["finished"]}
        if len(times) > 1:
            first.add(min(times, key=lambda name: times[name]))
        seconds.append(f"{data}: " + ", ".join(f"{name} {value:.1f} s" for name, value in times.items()))
    fastest = "yes" if first == {"SALVF"} else f"no: {' or '.join(sorted(first))} is"
    return [
        Verdict(
            "all bilevel methods exhibit improved performance and reduce overfitting",
            "yes" if all(better) else "no: a network trained under the bounds they end with is not better",
            gains,
        ),
        Verdict(
            "SALVF is the most time-efficient",
            fastest if first else f"{NOT_JUDGED}: fewer than two methods finished",
            [f"{one} for all epochs" for one in seconds],
        ),
    ]


# -- tables and figure ------------------------------------------------------------------------------------------------


def print_tables(console: Console, tables: dict[str, dict[str, Row]], statements: list[Verdict], quick: bool) -> None:
    """The settings, ours beside the stored figures, and the statements."""
    published.print_settings(console, SETTINGS)
    console.print(
        "test accuracy of the network or of y, mean over the runs that finished; stored: by the released code, "
        f"{published.RELEASED}\n"
        "gain: paired difference at the end to no weight decay; retrained: a network trained on training rows alone "
        f"under the final C\nSALVF, from C = {ACTIVE_START:g}: not published, a bound that is active from the start\n",
        highlight=False,
        soft_wrap=True,
    )
    for data, rows in tables.items():
        console.print(_of_y(data, rows))
        console.print(_judged(data, rows))
    published.print_statements(console, statements, quick)


def _of_y(data: str, rows: dict[str, Row]) -> Table:
    """What the paper's figure shows; beside it the stored figures, where they are of this data set at these epochs."""
    epochs = rows[NONE]["epochs"]
    comparable = data == "digits" and (epochs // 2, epochs) == DECAY_EPOCHS
    half, end = ([f"epoch {number}", *["stored"] * comparable] for number in (epochs // 2, epochs))
    headings = *half, *end, "gain over no weight decay", "finished"
    table = headed(f"{data}: test accuracy of y", *headings)
    absent = [row.method for row in published.DECAY_ACCURACY if row.method not in rows] if comparable else []
    for name in [*rows, *absent]:
        row, figures = rows.get(name, {}), published.stored(published.DECAY_ACCURACY, name)
        pairs = zip((row.get("halfway"), row.get("end")), figures, strict=True)
        columns = [(ours, *[figure] * comparable) for ours, figure in pairs]
        table.add_row(
            name,
            *(published.shown(value) for pair in columns for value in pair),
            shown_mean(row, "gain", "+.4f") if row else "",
            shown_endings(row) if row else "",
        )
    return table


def _judged(data: str, rows: dict[str, Row]) -> Table:
    """What the bounds are worth: networks trained anew under them."""
    names = ("finished", "final C", "norm of y", "retrained under C", "gain over none", "seconds")
    table = headed(f"{data}: under one judge", *names)
    for name, row in rows.items():
        if "judged" in row:
            table.add_row(
                name,
                shown_endings(row),
                published.shown(row["bound"], ".2f"),
                published.shown(row["norm"], ".1f"),
                published.shown(row["judged"]),
                shown_mean(row, "judged_gain", "+.4f"),
                published.shown(row["seconds"], ".1f"),
            )
    return table


ROWS = (Axis("accuracy", "test accuracy of y"), Axis("norms", "norm of y"))
COLUMNS = (Axis("seconds", "seconds (compilation apart)"), Axis("epochs", "epochs"))


def draw(path: Path, data: str, curves: Curves) -> Path:
    """The paper's Figure 3, against seconds and epochs; horizontal lines: what the released code stored at epoch 50."""
    stored = {f"{row.method}, stored": row.figures[0] for row in published.DECAY_ACCURACY if row.figures[0] is not None}
    levels = {"accuracy": stored if data == "digits" else {}, "norms": {"C at the start": START}}
    return draw_panels(path, f"Weight decay in the published setting, {data}", curves, ROWS, COLUMNS, levels)
