"""What the weight-decay experiment has to show, and what the paper says about it, judged by the numbers of a run.

`summary` makes one row per method from its runs; `targets` and `verdicts` read those rows and nothing else.
"""

import numpy as np

from hierax.experiments.reproduce.comparison import Row, TargetRow, endings, shown_endings, shown_mean
from hierax.experiments.reproduce.decay_runs import Curve
from hierax.experiments.reproduce.verdict import Verdict

GAIN = 0.06  # least gain of test accuracy over no weight decay, with noisy labels ...
SURE = 3.0  # ... and how many standard errors it has to exceed
NEAR = 0.015  # how far below the grid search's accuracy SALVF may stay ...
CHEAP = 0.25  # ... for this share of its gradients at most
LESS = 0.10  # least relative decrease of the test loss, with clean labels

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
    accuracy, loss = columns["accuracy"], columns["loss"]
    return {
        "bound": np.mean(columns["bound"], axis=0).tolist(),
        "bound_se": np.asarray(_error(columns["bound"])).tolist(),
        "accuracy": float(accuracy.mean()),
        "accuracy_se": float(_error(accuracy)),
        "loss": float(loss.mean()),
        "loss_se": float(_error(loss)),
        "gain": float(np.mean(accuracy - none["accuracy"])),
        "gain_se": float(_error(accuracy - none["accuracy"])),
        "loss_ratio": float(loss.mean() / none["loss"].mean()),
        "to_grid": float(np.mean(accuracy - grid["accuracy"])),
        "to_grid_se": float(_error(accuracy - grid["accuracy"])),
    }


def _error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the seeds, the leading axis; zero for one seed."""
    return np.std(values, axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0 * values[0]


def targets(summaries: Summaries, training: int) -> list[TargetRow]:
    """The bounds that SALVF has to keep on the default data set, with what was measured.

    Where a run of SALVF failed, that alone is judged, and not met.
    """
    judged = []
    for (name, labels), rows in summaries.items():
        ours, grid = rows["SALVF"], rows["grid search"]
        where = f"{name}, {labels}"
        if ours["finished"] < ours["runs"]:
            judged.append(_target(where, "every run of SALVF finishes", shown_endings(ours), False))
            continue
        if labels == "clean":
            judged.append(
                _target(
                    where,
                    f"test loss at least {LESS:.0%} below no weight decay",
                    f"{1 - ours['loss_ratio']:.1%} below",
                    1 - ours["loss_ratio"] >= LESS,
                )
            )
            continue
        sure = ours["gain"] / ours["gain_se"] if ours["gain_se"] > 0 else np.inf
        judged.append(
            _target(
                where,
                f"accuracy at least {GAIN:.2f} above no weight decay, by more than {SURE:g} standard errors",
                f"{ours['gain']:+.3f} +- {ours['gain_se']:.3f}",
                ours["gain"] >= GAIN and sure > SURE,
            )
        )
        judged.append(
            _target(
                where,
                f"accuracy within {NEAR:.3f} of the grid search's",
                f"{ours['to_grid']:+.3f} +- {ours['to_grid_se']:.3f}",
                ours["to_grid"] >= -NEAR,
            )
        )
        spent = (ours["gradients"] + training) / grid["gradients"]
        judged.append(
            _target(
                where,
                f"gradients, with the last training, at most {CHEAP:.0%} of the grid's",
                f"{spent:.1%}",
                spent <= CHEAP,
            )
        )
    return judged


def _target(where: str, target: str, measured: str, met: bool) -> TargetRow:
    return {"set": where, "target": target, "measured": measured, "met": bool(met)}


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
