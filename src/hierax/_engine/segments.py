"""Findings of `check`, and convexity of the lower level in words: what sampled segments in Y say.

The sampling itself is `hierax._math.convexity`. Not here: constraint qualifications (`hierax._judge.check`).
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.text import entries, shown, text_table
from hierax._engine.float64_problem import ROUNDING, Data, Float64Problem
from hierax._math.convexity import Segments, along_segments, lower_curvatures, plan_segments
from hierax._problem.problem import Problem

SEGMENTS = 32  # random segments around y on which the convexity of a lower level is sampled
FLAT = 1e-7  # eigenvalues and singular values below this part of the largest count as zero


class Finding(NamedTuple):
    """One assumption: whether it holds (None: not looked at, and why), and where it fails."""

    name: str
    holds: bool | None
    text: str


@dataclasses.dataclass(frozen=True)
class Findings:
    """What `check` found, one finding per assumption; `print` gives a table."""

    all: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> list[Finding]:
        """The assumptions that fail."""
        return [finding for finding in self.all if finding.holds is False]

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        for finding in self.all:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {', '.join(finding.name for finding in self.all)}")

    def __str__(self) -> str:
        words = {True: "holds", False: "FAILS", None: "-"}
        return text_table("Assumptions", [(f.name, words[f.holds], f.text) for f in self.all])


def segments_around(
    setting: Float64Problem, y: PyTree, points: int, rng: np.random.Generator, away: float = 0.0
) -> Segments:
    """What random segments in Y show at the setting's x, and up to the relative distance `away` around it."""
    plan = plan_segments(setting.x, y, points, rng, away)
    return setting.run("segments", lambda problem, data, *at: along_segments(problem, data.xi, *at), y, plan)


def not_convex(setting: Float64Problem, y: PyTree, seed: int | np.random.Generator) -> str | None:
    """Why the lower level at the setting's x is not convex, from samples around y; None where nothing was found."""
    findings = convexity(segments_around(setting, y, SEGMENTS, np.random.default_rng(seed)))
    failed = [finding.text for finding in findings if not finding.holds]
    return f"not convex: {failed[0]}" if failed else None


def convexity(segments: Segments) -> list[Finding]:
    """G and every constraint convex in y, equalities affine: one finding each."""
    return [
        _on_segments("convex lower objective", "lower", segments, segments.lower),
        _on_segments("convex constraints", "constraints", segments, segments.inequalities),
        _on_segments("affine equalities", "equalities", segments, jax.tree.map(np.abs, segments.equalities)),
    ]


def finite_around(segments: Segments) -> Finding:
    """G and the constraints finite on the segments."""
    wrong = np.flatnonzero(~segments.finite)
    if not len(wrong):
        return Finding("finite around", True, f"on {len(segments.finite)} segments in Y")
    text = f"lower or constraints not finite {_where(segments, int(wrong[0]))}: restrict X and Y to where they are"
    return Finding("finite around", False, text)


def strong_convexity(setting: Float64Problem, segments: Segments) -> tuple[Finding | None, Finding]:
    """Strong convexity of G from the extreme eigenvalues of G_yy at the middles; a negative one refutes convexity."""

    def program(problem: Problem, data: Data, xs: PyTree, ys: PyTree) -> tuple[Array, Array]:
        return jax.lax.map(lambda at: lower_curvatures(problem, at[0], at[1], data.xi), (xs, ys))

    bottom, top = map(np.nan_to_num, setting.run("curvature", program, segments.x, segments.middle))
    worst, largest = int(np.argmin(bottom)), float(np.max(np.abs(top)))
    text = f"G_yy has the eigenvalue {bottom[worst]:.3g} {_where(segments, worst)}"
    name = "strongly convex lower objective"
    if bottom[worst] > FLAT * largest:
        strong = Finding(name, True, f"curvatures of G in y between {bottom[worst]:.3g} and {largest:.3g}")
    else:
        strong = Finding(name, False, f"{text}; y*(x) may not be unique: add a small quadratic in y to lower")
    return (Finding("convex lower objective", False, text) if bottom[worst] < -FLAT * largest else None), strong


def _on_segments(name: str, what: str, segments: Segments, excess: PyTree) -> Finding:
    """Whether no row of a block exceeds its chord by more than rounding explains."""
    names = entries(what, jax.tree.map(lambda leaf: leaf[0], excess))
    if not names:
        return Finding(name, True, f"there are no {what}")
    every = np.concatenate([_in_roundings(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(excess)], axis=1)
    every = np.where(segments.finite[:, None], every, 0.0)
    bent = np.flatnonzero(every.max(axis=0) > 1)
    if not len(bent):
        return Finding(name, True, f"on {len(every)} segments in Y")
    segment, row = np.unravel_index(np.argmax(every), every.shape)
    others = f" (and {len(bent) - 1} others)" if len(bent) > 1 else ""
    how = "is not affine in y" if what == "equalities" else "is above its chord"
    return Finding(name, False, f"{names[row]}{others} {how} {_where(segments, int(segment))}")


def _in_roundings(excess: np.ndarray) -> np.ndarray:
    """In units of what may be rounding: functions that compute in float32 return it."""
    return excess / max(ROUNDING, 100 * float(np.finfo(excess.dtype).eps))


def _where(segments: Segments, i: int) -> str:
    x, y = (jax.tree.map(lambda leaf: leaf[i], tree) for tree in (segments.x, segments.middle))
    return f"at x = {shown(x)}, y = {shown(y)}"
