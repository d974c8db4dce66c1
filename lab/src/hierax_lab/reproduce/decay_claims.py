"""What the weight-decay experiment has to show, and what the paper says about it, judged by the numbers of a run.

`summary` makes one row per method from its runs; `targets` and `verdicts` read those rows and nothing else.
"""

from collections.abc import Iterator

import numpy as np

from hierax_lab.reproduce.comparison import Row, TargetRow, endings, shown_endings, shown_mean, target
from hierax_lab.reproduce.decay_runs import Curve
from hierax_lab.reproduce.verdict import Verdict

MIN_GAIN = 0.06  # of test accuracy over no weight decay, with noisy labels
MIN_ERRORS = 3.0  # standard errors that the gain has to exceed
GRID_DISTANCE = 0.015  # test accuracy that SALVF may miss to the grid search's
MAX_GRADIENTS = 0.25  # share of the grid search's gradients that SALVF may take
MIN_LOSS_DECREASE = 0.10  # relative, of the test loss, with clean labels

Summaries = dict[tuple[str, str], dict[str, Row]]  # by data set and kind of labels, then by method


def summary(curves: dict[str, list[Curve]], grids: list[Row]) -> dict[str, Row]:
    """Means over the seeds by method, and paired differences to no weight decay and to the grid search.

    A failed run enters no number: means are over the seeds whose run finished. Where none did, the numbers are None.
    """
    none, grid = (
        {key: _column(grids, kind, key) for key in ("accuracy", "loss", "bound")} for kind in ("none", "grid")
    )
    rows: dict[str, Row] = {
        "no weight decay": _row(none, none, grid) | {"gradients": grids[0]["gradients"] // len(grids[0]["test"])},
        "grid search": _row(grid, none, grid) | {"gradients": grids[0]["gradients"]},
    }
    for name, runs in curves.items():
        seeds = [seed for seed, curve in enumerate(runs) if not curve.failed]
        finals = [runs[seed].final for seed in seeds]
        ended = endings([curve.final for curve in runs]) | {
            "compile_seconds": float(np.sum([curve.final["compile_seconds"] for curve in runs]))
        }
        if not finals:
            rows[name] = ended | dict.fromkeys((*rows["grid search"], "own_accuracy", "violation", "seconds"))
            continue
        columns = {key: np.array([final[key] for final in finals]) for key in ("accuracy", "loss", "own_accuracy")}
        columns["bound"] = np.array([final["bound"] for final in finals])
        paired = ({key: values[seeds] for key, values in beside.items()} for beside in (none, grid))
        rows[name] = (
            ended
            | _row(columns, *paired)
            | {
                "own_accuracy": float(columns["own_accuracy"].mean()),
                "violation": max(final["violation"] for final in finals),
                "gradients": int(np.mean([final["gradients"] for final in finals])),
                "seconds": float(np.mean([final["seconds"] for final in finals])),
            }
        )
    return rows


def _column(grids: list[Row], kind: str, key: str) -> np.ndarray:
    return np.array([one[kind][key] for one in grids])


def _row(columns: dict[str, np.ndarray], none: dict[str, np.ndarray], grid: dict[str, np.ndarray]) -> Row:
    """Means over the seeds, each with its standard error."""
    accuracy, loss = columns["accuracy"], columns["loss"]
    means = {"bound": columns["bound"], "accuracy": accuracy, "loss": loss}
    means |= {"gain": accuracy - none["accuracy"], "to_grid": accuracy - grid["accuracy"]}
    row: Row = {"loss_ratio": float(loss.mean() / none["loss"].mean())}
    for name, values in means.items():
        row[name], row[f"{name}_se"] = np.mean(values, axis=0).tolist(), np.asarray(_error(values)).tolist()
    return row


def _error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the seeds, the leading axis; zero for one seed."""
    return np.std(values, axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0 * values[0]


def targets(summaries: Summaries, training: int) -> list[TargetRow]:
    """The bounds that SALVF has to keep on the default data set, with what was measured.

    Where a run of SALVF failed, that alone is judged, and not met.
    """
    return [
        target(f"{name}, {labels}", *judged)
        for (name, labels), rows in summaries.items()
        for judged in _judged(rows["SALVF"], rows["grid search"], labels, training)
    ]


def _judged(ours: Row, grid: Row, labels: str, training: int) -> Iterator[tuple[str, str, bool]]:
    """What is wanted, measured and met."""
    if ours["finished"] < ours["runs"]:
        yield "every run of SALVF finishes", shown_endings(ours), False
    elif labels == "clean":
        less, wanted = 1 - ours["loss_ratio"], f"test loss at least {MIN_LOSS_DECREASE:.0%} below no weight decay"
        yield wanted, f"{less:.1%} below", less >= MIN_LOSS_DECREASE
    else:
        errors = ours["gain"] / ours["gain_se"] if ours["gain_se"] > 0 else np.inf
        wanted = f"accuracy at least {MIN_GAIN:.2f} above no weight decay, by more than {MIN_ERRORS:g} standard errors"
        yield wanted, shown_mean(ours, "gain", "+.3f"), ours["gain"] >= MIN_GAIN and errors > MIN_ERRORS
        wanted = f"accuracy within {GRID_DISTANCE:.3f} of the grid search's"
        yield wanted, shown_mean(ours, "to_grid", "+.3f"), ours["to_grid"] >= -GRID_DISTANCE
        spent = (ours["gradients"] + training) / grid["gradients"]
        wanted = f"gradients, with the last training, at most {MAX_GRADIENTS:.0%} of the grid's"
        yield wanted, f"{spent:.1%}", spent <= MAX_GRADIENTS


def verdicts(summaries: Summaries, methods: list[str]) -> list[Verdict]:
    """The paper's two statements about this experiment."""
    better, faster, gains, times = [], [], [], []
    for (name, labels), rows in summaries.items():
        shown = []
        for method in methods:
            row = rows[method]
            better.append(row["finished"] == row["runs"] and row["gain"] > 2 * row["gain_se"])
            ended = "" if row["finished"] == row["runs"] else f" ({row['finished']} of {row['runs']} finished)"
            shown.append(f"{method}{ended} {shown_mean(row, 'gain', '+.3f')}")
        gains.append(f"{name}, {labels}, accuracy over no weight decay: {', '.join(shown)}")
        seconds = {method: rows[method]["seconds"] for method in ("SALVF", "SALVF-VR", "BLOCC")}
        seconds = {method: value for method, value in seconds.items() if value is not None}
        faster.append("SALVF" in seconds and seconds["SALVF"] == min(seconds.values()))
        times.append(f"{name}, {labels}: " + ", ".join(f"{method} {value:.2f} s" for method, value in seconds.items()))
    share = f"{sum(better)} of {len(better)}"
    return [
        Verdict(
            "all bilevel methods exhibit improved performance and reduce overfitting",
            "yes" if all(better) else f"not always: by two standard errors in {share} cases",
            gains,
        ),
        Verdict("SALVF is the most time-efficient", "yes" if all(faster) else "no", times),
    ]
