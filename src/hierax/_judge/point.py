"""Stub."""

from typing import Any, NamedTuple

from jaxtyping import PyTree

from hierax._base.text import flat
from hierax._judge.setting import double_precision
from hierax._math.psi import all_constraints, violation


class Judgement(NamedTuple):
    upper: float
    violation: float


def judge_point(problem: Any, x: PyTree, y: PyTree) -> Judgement:
    with double_precision(problem, x, y, 4096, 0) as s:
        b = s.bound.run(
            "judge", lambda p, x, y, z: (p.upper(x, y, z), violation(all_constraints(p, x, y))), s.x, s.y, s.zeta.rows
        )
        return Judgement(float(b[0]), float(max(flat(b[1]), default=0.0)))
