"""What the paper says about the toy, judged by the numbers of a run.

Every statement is judged by rows of `toy_rows` that are named here; the evidence is the numbers in words.
"""

import numpy as np

from hierax.extend import lazy
from hierax.problems.toy import local_minimisers
from hierax_lab.reproduce.toy_rows import Metrics, Numbers, Result
from hierax_lab.reproduce.verdict import Verdict

GLOBAL = 1  # index of the global one among the local minimisers
MIN_STARTS = 50  # with fewer starts, normality is not judged

stats = lazy("scipy.stats")


def verdicts(results: dict[str, Result]) -> list[Verdict]:
    """The paper's three statements about the toy, judged by the numbers of this run."""
    return [_close_to_global(results), _gaussian(results), _more_concentrated(results)]


def _close_to_global(results: dict[str, Result]) -> Verdict:
    keys = [f"{penalty}/given/{name}" for penalty in ("quadratic", "multiplier") for name in ("SALVF", "SALVF-VR")]
    shares = [results[key].metrics["shares"][GLOBAL] for key in keys]
    evidence = [
        f"{key}: {share:.0%} of the starts end at the global minimiser {local_minimisers()[GLOBAL]:.4f}"
        for key, share in zip(keys, shares, strict=True)
    ]
    others = [results[f"multiplier/solve/{name}"].metrics["shares"][GLOBAL] for name in ("SALVF", "SALVF-VR")]
    evidence.append(
        f"from the default start {min(others):.0%} to {max(others):.0%}: y follows x from the first step on, so every "
        "start descends F(x, x) into the minimiser of its own valley"
    )
    holds = "yes" if min(shares) >= 0.95 else f"no: {min(shares):.0%} to {max(shares):.0%} of the starts"
    return Verdict("the converged points are close to the global optimal solution", holds, evidence)


def _gaussian(results: dict[str, Result]) -> Verdict:
    """Shapiro and Wilk's test, over all starts and inside the global basin."""
    evidence, inside_fine, all_fine = [], [], []
    for name in ("SALVF", "SALVF-VR"):
        x = results[f"quadratic/given/{name}"].x
        inside = x[np.abs(x[:, None] - local_minimisers()).argmin(axis=1) == GLOBAL]
        everywhere, within = normality(x), normality(inside)
        all_fine.append(everywhere >= 0.01)
        inside_fine.append(within >= 0.01)
        evidence.append(
            f"{name}, paper's penalty: p = {everywhere:.2g} over all starts, {within:.2g} in the global basin"
        )
    if len(x) < MIN_STARTS:
        holds = f"not judged: the test means little with fewer than {MIN_STARTS} starts"
    elif all(all_fine):
        holds = "yes"
    elif all(inside_fine):
        holds = "only inside one basin; over all starts x has several separate peaks"
    else:
        holds = (
            "no: over all starts x has several separate peaks, and normality is rejected inside the global basin too"
        )
    return Verdict("they form an approximate Gaussian distribution (Shapiro-Wilk at 1 %)", holds, evidence)


def normality(values: Numbers) -> float:
    """p of Shapiro and Wilk's test; nan where the values do not differ or are too few."""
    return float(stats.shapiro(values).pvalue) if len(values) >= 3 and np.ptp(values) > 0 else float("nan")


def _more_concentrated(results: dict[str, Result]) -> Verdict:
    pairs = {
        "paper's penalty, same decaying steps, a = 6": ("decay6/SALVF", "decay6/SALVF-VR"),
        "the same with the printed beta": ("decay6/SALVF", "decay6/SALVF-VR, printed beta"),
        "paper's penalty, same decaying steps, a = 1.5": ("decay1.5/SALVF", "decay1.5/SALVF-VR"),
        "paper's penalty, constant step 1/L": ("quadratic/given/SALVF", "quadratic/given/SALVF-VR"),
        "outer multiplier, start as given": ("multiplier/given/SALVF", "multiplier/given/SALVF-VR"),
        "outer multiplier, default start": ("multiplier/solve/SALVF", "multiplier/solve/SALVF-VR"),
        "nothing set": ("nothing set/SALVF", "nothing set/SALVF-VR"),
    }
    evidence, found = [], []
    for name, keys in pairs.items():
        plain, reduced = (results[key].metrics for key in keys)
        smaller = reduced["sd_global_interval"][1] < plain["sd_global_interval"][0]
        larger = reduced["sd_global_interval"][0] > plain["sd_global_interval"][1]
        word = "more concentrated" if smaller else "less concentrated" if larger else "no difference"
        found += [name] if smaller else []
        evidence.append(f"{name}: sd of x {_interval(plain)} for SALVF, {_interval(reduced)} for SALVF-VR: {word}")
    holds = f"in {len(found)} of {len(pairs)} settings (90 % intervals apart): {'; '.join(found) or 'none'}"
    return Verdict("SALVF-VR is more concentrated than SALVF", holds, evidence)


def _interval(metrics: Metrics) -> str:
    low, high = metrics["sd_global_interval"]
    return f"{metrics['sd_global']:.5f} [{low:.5f}, {high:.5f}]"
