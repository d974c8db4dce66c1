"""The shapes of the random problems of `hierax bench fuzz`.

Problems of one form differ in their numbers only, which are arrays, so that they share compiled programs. What is
special about a problem beyond its form (a row given twice, a row that is never true, a lower level that falls for
ever, ...) is its twist, a matter of numbers too.
"""

import dataclasses
from typing import Literal

SetKind = Literal["free", "box", "nonnegative", "ball", "simplex"]
Lower = Literal["linear", "quadratic", "wells", "waves", "exp", "power"]
Planted = Literal["qp", "waves", "lp", "wells", "ball", "equalities"]


@dataclasses.dataclass(frozen=True)
class Form:
    """A shape of problems.

    Attributes:
        name: unique.
        n: entries of x.
        m: entries of y.
        lower: kind of the lower objective as a function of y: wells are (y^2 - r^2)^2 with a tilt, waves are cosines
            on a parabola, exp are steep exponentials on one, powers (y + 1)^2.5 are not defined below -1; all four
            are sums over the entries of y.
        waves: number of cosines in the upper objective.
        rows: number of affine constraints of the lower level.
        balls: number of constraints |y - c - C x|^2 <= r^2 of the lower level.
        equalities: number of affine equalities of the lower level.
        upper_rows: number of affine constraints of the upper level.
        x_set: the set X.
        y_set: the set Y.
        tree: x is a dict and y a tuple.
        planted: how the optimum is known: planted this way, or (None) by a grid.
        twists: what problems of the form may be like, in turns.
    """

    name: str
    n: int
    m: int
    lower: Lower = "quadratic"
    waves: int = 0
    rows: int = 0
    balls: int = 0
    equalities: int = 0
    upper_rows: int = 0
    x_set: SetKind = "box"
    y_set: SetKind = "box"
    tree: bool = False
    planted: Planted | None = None
    twists: tuple[str, ...] = ("plain",)


FORMS: tuple[Form, ...] = (
    Form("bare", 1, 1, x_set="free", y_set="free", twists=("plain", "unbounded_lower", "unbounded_upper")),
    Form("rows", 1, 1, rows=2, twists=("plain", "duplicate", "false_row", "constant", "contradiction")),
    Form("line", 1, 1, "linear", rows=2, y_set="free", twists=("plain", "unbounded_lower", "plain", "contradiction")),
    Form("wells", 1, 1, "wells"),
    Form("cut wells", 1, 1, "wells", rows=1, upper_rows=1, y_set="free", twists=("plain", "plain", "unattainable")),
    Form("waves", 2, 1, "waves", waves=2),
    Form("cover", 1, 2, "linear", rows=3, x_set="nonnegative", y_set="nonnegative", twists=("plain", "duplicate")),
    Form("disc", 2, 2, rows=3, x_set="ball", twists=("plain", "duplicate", "constant", "contradiction")),
    Form("simplices", 2, 2, x_set="simplex", y_set="simplex"),
    Form("equality", 1, 2, equalities=1, twists=("plain", "zero_equality", "false_equality")),
    Form(
        "two equalities",
        1,
        2,
        equalities=2,
        y_set="free",
        twists=("duplicate_equality", "zero_equality", "plain", "false_equality"),
    ),
    Form("round", 2, 2, rows=1, balls=1, x_set="free", y_set="free", twists=("plain", "constant", "empty_ball")),
    Form("upper rows", 1, 2, upper_rows=2, twists=("plain", "plain", "unattainable")),
    Form("four wells", 2, 2, "wells"),
    Form("ball below", 1, 2, x_set="nonnegative", y_set="ball", twists=("plain", "unbounded_upper")),
    Form("linear on a simplex", 2, 2, "linear", y_set="simplex"),
    Form("tree", 2, 2, rows=2, upper_rows=1, tree=True, twists=("plain", "duplicate", "false_row")),
    Form("boxes", 1, 2, twists=("flat", "plain")),
    Form("linear on a box", 1, 2, "linear", twists=("plain", "flat")),
    Form("steep", 1, 1, "exp", rows=2, x_set="free", y_set="free", twists=("plain", "plain", "contradiction")),
    Form("powers", 2, 2, "power", y_set="nonnegative"),
    Form("planted QP", 5, 10, rows=5, y_set="nonnegative", planted="qp"),
    Form("larger planted QP", 10, 20, rows=10, y_set="nonnegative", planted="qp"),
    Form("planted waves", 3, 6, waves=4, rows=3, planted="waves", twists=("plain", "duplicate", "false_row")),
    Form("planted LP", 4, 8, "linear", rows=6, planted="lp"),
    Form("planted wells", 4, 6, "wells", planted="wells"),
    Form("planted ball", 5, 10, y_set="ball", planted="ball"),
    Form(
        "planted equalities",
        4,
        8,
        equalities=2,
        x_set="free",
        y_set="free",
        planted="equalities",
        twists=("plain", "duplicate_equality", "unbounded_upper", "unbounded_lower", "false_equality"),
    ),
)

INFEASIBLE = frozenset({"false_row", "contradiction", "empty_ball", "false_equality", "unattainable"})


def truth_of(twist: str) -> str:
    """What is right to say about a problem with this twist: "solvable" or the name of a status."""
    if twist in INFEASIBLE:
        return "infeasible"
    return twist if twist.startswith("unbounded") else "solvable"
