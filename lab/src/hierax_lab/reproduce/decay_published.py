"""The weight-decay experiment in the published setting: the released split, network, batch, epochs and constants.

Beside the methods stand two networks without weight decay: one trained on the training part, and one that may also
train on the validation rows, as the y of every bilevel method does. The paper's accuracy is that of y; the judge here
is a network trained anew on the training part under the bound a method ends with.
"""

from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax_lab.output import new_figure, save_figure
from hierax_lab.reproduce import published
from hierax_lab.reproduce.comparison import (
    COLOURS,
    Row,
    endings,
    headed,
    labelled,
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
NONE, MORE = "no weight decay", "no weight decay, validation rows too"  # networks trained beside the methods

SETTINGS = (
    Given("data", "digits (1,797 images), standardised", CODE),
    Given("split", "60 / 20 / 20 %, one for all seeds", CODE),
    Given("network", f"64-{HIDDEN}-10, ReLU", CODE),
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
    Given("seeds", f"{published.SEEDS} of the paper's 10", CHANGED),
)


@experiment
def run(run: Run) -> Content:
    """Run every method and the networks beside them, write metrics.json, curves.npz and a figure, print the tables.

    A quick run has one seed, two epochs and SALVF alone.
    """
    seeds, epochs = run.seeds or run.sized(published.SEEDS, 1), run.sized(EPOCHS, QUICK_EPOCHS)
    names = run.sized([*methods()], ["SALVF"])
    tasks: dict[Name, Task[list[Curve] | np.ndarray]] = {
        (name,): (run_method, (name, seeds, epochs, run.data_dir)) for name in names
    }
    for name, more in ((NONE, False), (MORE, True)):
        tasks[(name,)] = (run_training, ([NO_BOUND] * seeds, more, epochs, run.data_dir))
    found = run.measured(tasks)
    every = {name: cast(list[Curve], found[(name,)]) for name in names}
    trained = {name: cast(np.ndarray, found[(name,)]) for name in (NONE, MORE)}
    judged = {
        name: run_training([curve.final["bound"] for curve in curves], False, epochs, run.data_dir)[:, -1, 0]
        for name, curves in every.items()
    }
    rows = summary(every, trained, judged)
    statements = run.judged(verdicts(rows))
    common = {**published.common_content(run, SETTINGS), "seeds": seeds, "epochs": epochs}
    released = {row.method: row.figures for row in published.DECAY_ACCURACY}
    content = run.write({**common, "rows": rows, "released": released}, statements)
    run.write_curves(every, ("epochs", "accuracy", "norms", "bounds", "seconds"), **trained)
    print_tables(run.console, rows, statements, run.quick)
    run.draw(lambda folder: draw(folder / "weight-decay.png", every, trained))
    return content


def summary(every: dict[str, list[Curve]], trained: dict[str, np.ndarray], judged: dict[str, np.ndarray]) -> dict:
    """A row per network and method: accuracy of y at the stored epochs, bound, norm, and the judge's accuracy.

    A failed run enters no number: means are over the seeds whose run finished. Where none did, the numbers are None.
    """
    none = trained[NONE][:, -1, 0]
    rows: dict[str, Row] = {}
    for name, columns in trained.items():
        rows[name] = _accuracies(columns[:, :, 0], none) | {"norm": float(columns[:, -1, 1].mean())}
    for name, curves in every.items():
        seeds = [seed for seed, curve in enumerate(curves) if not curve.failed]
        finished = [curves[seed] for seed in seeds]
        gain = judged[name][seeds] - none[seeds]
        means = {
            "norm": [curve.norms[-1] for curve in finished],
            "bound": [curve.final["bound"] for curve in finished],
            "closest": [np.max(curve.norms - curve.bounds) for curve in finished],
            "judged": judged[name][seeds],
            "judged_gain": gain,
            "seconds": [curve.final["seconds"] for curve in finished],
            "gradients": [curve.final["gradients"] for curve in finished],
        }
        rows[name] = _accuracies(np.array([curve.accuracy for curve in finished]), none[seeds])
        rows[name] |= {key: mean_and_error(values)[0] for key, values in means.items()}
        rows[name] |= endings([curve.final for curve in curves]) | {
            "bound_moved": max((abs(curve.final["bound"] - curve.final["start"]) for curve in finished), default=None),
            "judged_gain_se": mean_and_error(gain)[1],
            "compile_seconds": float(np.sum([curve.final["compile_seconds"] for curve in curves])),
        }
    return rows


def _accuracies(accuracy: np.ndarray, none: np.ndarray) -> Row:
    """At the stored epochs (None where a run is shorter), and the gain at its end; `accuracy` by seed and epoch."""
    if not len(accuracy):
        return dict.fromkeys([*(f"epoch_{epoch}" for epoch in DECAY_EPOCHS), "gain", "gain_se"])
    found: Row = {f"epoch_{epoch}": mean_and_error(accuracy[:, epoch - 1 : epoch].ravel())[0] for epoch in DECAY_EPOCHS}
    found["gain"], found["gain_se"] = mean_and_error(accuracy[:, -1] - none)
    return found


def verdicts(rows: dict[str, Row]) -> list[Verdict]:
    """The paper's two statements about this experiment, and whether the bound did anything."""
    published_names = [name for name in ("SALVF", "SALVF-VR", "BLOCC") if name in rows]
    better = [
        rows[name]["finished"] == rows[name]["runs"] and rows[name]["judged_gain"] > 2 * rows[name]["judged_gain_se"]
        for name in published_names
    ]
    gains = [
        f"{name} (finished: {shown_endings(rows[name])}): y {shown_mean(rows[name], 'gain', '+.4f')} over no weight "
        f"decay; retrained under its C {shown_mean(rows[name], 'judged_gain', '+.4f')}; C moved by at most "
        f"{rows[name]['bound_moved']:.2g}, the norm of y reaches C {rows[name]['closest']:+.2f}"
        if rows[name]["finished"]
        else f"{name}: no run finished ({shown_endings(rows[name])})"
        for name in published_names
    ]
    gains.append(f"{MORE}: {rows[MORE]['gain']:+.4f} +- {rows[MORE]['gain_se']:.4f} over training rows alone")
    seconds = {name: rows[name]["seconds"] for name in published_names if rows[name]["finished"]}
    fastest = min(seconds, key=lambda name: seconds[name], default="")
    first = "yes" if fastest == "SALVF" else f"no: {fastest} is"
    return [
        Verdict(
            "all bilevel methods exhibit improved performance and reduce overfitting",
            "yes" if all(better) else "no: a network trained under the bounds they end with is not better",
            gains,
        ),
        Verdict(
            "SALVF is the most time-efficient",
            first if len(seconds) > 1 else f"{NOT_JUDGED}: fewer than two methods finished",
            [", ".join(f"{name} {value:.1f} s" for name, value in seconds.items()) + " for all epochs"],
        ),
    ]


# -- tables and figure ------------------------------------------------------------------------------------------------


def print_tables(console: Console, rows: dict[str, Row], statements: list[Verdict], quick: bool) -> None:
    """The settings, ours beside the stored figures, and the statements."""
    published.print_settings(console, SETTINGS)
    console.print(
        "epoch 50, 100: test accuracy of the network or of y, mean over the runs that finished; stored: by the "
        f"released code, {published.RELEASED}\n"
        "gain: paired difference at the end to no weight decay; retrained: a network trained on training rows alone "
        f"under the final C\nSALVF, from C = {ACTIVE_START:g}: not published, a bound that is active from the start\n",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_of_y(rows))
    console.print(_judged(rows))
    published.print_statements(console, statements, quick)


def _of_y(rows: dict[str, Row]) -> Table:
    """What the paper's figure shows, beside the stored figures."""
    table = headed(
        "test accuracy of y", "epoch 50", "stored", "epoch 100", "stored", "gain over no weight decay", "finished"
    )
    absent = [row.method for row in published.DECAY_ACCURACY if row.method not in rows]
    for name in [*rows, *absent]:
        row, figures = rows.get(name, {}), published.stored(published.DECAY_ACCURACY, name)
        here = [row.get(f"epoch_{epoch}") for epoch in DECAY_EPOCHS]
        table.add_row(
            name,
            *(published.shown(value) for pair in zip(here, figures, strict=True) for value in pair),
            shown_mean(row, "gain", "+.4f") if row else "",
            shown_endings(row) if "runs" in row else "",
        )
    return table


def _judged(rows: dict[str, Row]) -> Table:
    """What the bounds are worth: networks trained anew under them."""
    names = ("finished", "final C", "norm of y", "retrained under C", "gain over none", "seconds")
    table = headed("under one judge", *names)
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


def draw(path: Path, every: dict[str, list[Curve]], trained: dict[str, np.ndarray]) -> Path:
    """Test accuracy against the epochs, means over the seeds; crosses: stored by the released code."""
    figure = new_figure(9.0, 5.0)
    panel = figure.subplots()
    curves = {name: found[:, :, 0] for name, found in trained.items()}
    curves |= {name: np.stack([curve.accuracy for curve in found]) for name, found in every.items()}
    for (name, accuracy), colour in zip(curves.items(), COLOURS, strict=False):
        label = labelled(name, every.get(name, []))
        panel.plot(np.arange(1, accuracy.shape[1] + 1), accuracy.mean(axis=0), color=colour, label=label, lw=1.4)
        stored = published.stored(published.DECAY_ACCURACY, name)
        for epoch, value in zip(DECAY_EPOCHS, stored, strict=True):
            if value is not None:
                panel.plot([epoch], [value], "x", color=colour)
    panel.set(xlabel="epochs", ylabel="test accuracy of y", ylim=(0.85, 1.0))
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=9)
    figure.suptitle("Weight decay in the published setting; crosses: stored by the released code (two lie below)")
    return save_figure(figure, path)
