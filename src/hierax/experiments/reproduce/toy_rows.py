"""The rows of the toy experiment: which methods are run, in which units, and what each of them has to reach.

Also the form of a row's result. Running and measuring are in `toy_run`, the paper's statements in `toy_claims`, tables
and figures in `toy_report`.
"""

import dataclasses
from typing import Any, Literal, TypedDict

import numpy as np
from jaxtyping import Bool, Float64

from hierax._methods.directions import Storm
from hierax._methods.salvf import SALVF, SALVF_VR
from hierax._methods.steps import Decay, Steps

C1, C2_QUADRATIC, C2_MULTIPLIER = 5.0, 1000.0, 100.0
L_QUADRATIC = 2 * C2_QUADRATIC + 10 * C1 + 20  # L_Psi of the toy with the quadratic penalty
# The paper's algorithms: no control variate. It leaves gamma open; its claims were first tested with gamma = 1.
PAPER: dict[str, Any] = {
    "c1": C1,
    "c2": C2_QUADRATIC,
    "gamma1": 1.0,
    "gamma2": 1.0,
    "penalty": "quadratic",
    "control_variate": False,
}
UNITS: dict[str, dict[str, float]] = {
    "F x 0.01": {"scale_upper": 0.01},
    "F x 100": {"scale_upper": 100.0},
    "G x 0.01": {"scale_lower": 0.01},
    "G x 100": {"scale_lower": 100.0},
    "H x 0.01": {"scale_constraint": 0.01},
    "H x 100": {"scale_constraint": 100.0},
    "x, y x 10": {"stretch": 10.0},
}

Start = Literal["given", "solve"]
Metric = Literal["median_distance", "share_within", "mean_gap", "samples_zeta"]
Numbers = Float64[np.ndarray, " n"]


class Costs(TypedDict):
    """Samples of one start, seconds of all starts, and how many ended with each status."""

    samples_zeta: int
    samples_xi: int
    seconds: float
    compile_seconds: float
    statuses: dict[str, int]


class Metrics(Costs):
    """What is measured at the final points of a row's starts, as metrics.json has it.

    starts, finished: how many, and how many of them ended without a failure; distances and deviations are of those
    alone, shares are of all starts. shares: that end nearest to each local minimiser. share_within: that come close to
    it. sd_global: standard deviation of x over those nearest to the global one, with a 90 % interval. Distances are
    those of x to the nearest minimiser, mean_gap is the mean of |y - x|.
    """

    starts: int
    finished: int
    shares: list[float]
    median_distance: float
    mean_distance: float
    share_within: float
    mean_gap: float
    sd_global: float
    sd_global_interval: list[float]
    squared_stationarity: float


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound that a metric of a row has to meet."""

    metric: Metric
    sign: Literal["<=", ">=", "=="]
    bound: float

    def met(self, value: float) -> bool:
        """Whether the value keeps the bound (NaN never does)."""
        return {"<=": value <= self.bound, ">=": value >= self.bound, "==": value == self.bound}[self.sign]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: a method, the units of the problem it is given, and what it has to reach."""

    key: str
    group: str
    label: str
    method: SALVF
    targets: tuple[Target, ...] = ()
    units: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Result:
    """The final points of a row's starts, in the original units, and everything measured on them.

    `x` and `y` are those of the starts that did not fail; `finished` says which, None: all of them.
    """

    row: Row
    x: Numbers
    y: Numbers
    metrics: Metrics
    finished: Bool[np.ndarray, " starts"] | None = None

    @property
    def points(self) -> Float64[np.ndarray, "starts 2"]:
        """(x, y) of every start, NaN where it failed."""
        return all_points(self.x, self.y, np.ones(len(self.x), bool) if self.finished is None else self.finished)

    @property
    def checks(self) -> list[tuple[Target, bool]]:
        """Every target of the row and whether it is met."""
        return [(target, target.met(self.metrics[target.metric])) for target in self.row.targets]


def all_points(x: Numbers, y: Numbers, finished: Bool[np.ndarray, " starts"]) -> Float64[np.ndarray, "starts 2"]:
    """(x, y) of every start from those of the starts that did not fail, NaN for the others."""
    every = np.full((len(finished), 2), np.nan)
    every[finished] = np.stack([x, y], axis=1)
    return every


def all_rows(steps: int) -> list[Row]:
    """Every row of the experiment; a run of `steps` steps should take as many samples of zeta."""
    return [*_quadratic(), *_same_steps(), *_multiplier(), *_nothing_set(steps), *_other_units()]


def _both(**settings: Any) -> dict[str, SALVF]:
    return {"SALVF": SALVF(**settings), "SALVF-VR": SALVF_VR(**settings)}


def _quadratic() -> list[Row]:
    constant = Decay(1 / L_QUADRATIC, a=1.0, power=0.0)
    targets = (Target("median_distance", "<=", 0.015), Target("mean_gap", "<=", 0.025))
    starts: tuple[Start, ...] = ("given", "solve")
    return [
        Row(
            f"quadratic/{start}/{name}",
            "paper's penalty, c1 = 5, c2 = 1000, constant step 1/L",
            f"{name}, {_start(start)}",
            method,
            targets if start == "given" else (),  # the paper's setting; elsewhere the basins' shares move the median
        )
        for start in starts
        for name, method in _both(**PAPER, steps=Steps(x=constant, y=constant), start=start).items()
    ]


def _same_steps() -> list[Row]:
    """Pairs with the same decaying steps; a = 6 also with the printed schedule of beta."""
    rows = []
    for a in (6.0, 1.5):
        decay = Decay(1 / L_QUADRATIC, a=a)
        settings = PAPER | {"steps": Steps(x=decay, y=decay), "start": "given"}
        methods = _both(**settings)
        if a == 6.0:
            # beta_{k+1} = (k+1)^(-2/3) as the paper has it, once alpha_k = (a/L) (k+1)^(-1/3) leaves its cap.
            printed = Storm(schedule="paper", beta=(L_QUADRATIC / a) ** 2)
            methods["SALVF-VR, printed beta"] = SALVF(direction=printed, **settings)
        rows += [
            Row(
                f"decay{a:g}/{name}",
                "paper's penalty, the same decaying steps min(1, a (k+1)^(-1/3))/L, start as given",
                f"{name}, a = {a:g}",
                method,
            )
            for name, method in methods.items()
        ]
    return rows


def _multiplier() -> list[Row]:
    targets = (
        Target("median_distance", "<=", 0.004),
        Target("share_within", ">=", 0.97),
        Target("mean_gap", "<=", 0.001),
    )
    starts: tuple[Start, ...] = ("given", "solve")
    return [
        Row(
            f"multiplier/{start}/{name}",
            "outer multiplier, c1 = 5, c2 = 100, steps estimated",
            f"{name}, {_start(start)}",
            method,
            targets if start == "solve" else (),
        )
        for start in starts
        for name, method in _both(c1=C1, c2=C2_MULTIPLIER, start=start).items()
    ]


def _nothing_set(steps: int) -> list[Row]:
    targets = (
        Target("median_distance", "<=", 0.01),
        Target("mean_gap", "<=", 0.005),
        Target("samples_zeta", "==", steps),
    )
    return [Row(f"nothing set/{name}", "nothing set", name, method, targets) for name, method in _both().items()]


def _other_units() -> list[Row]:
    targets = (Target("median_distance", "<=", 0.02),)
    return [
        Row(f"{unit}/{name}", "nothing set, other units", f"{name}, {unit}", method, targets, factors)
        for unit, factors in UNITS.items()
        for name, method in _both().items()
    ]


def _start(start: Start) -> str:
    return {"given": "start as given", "solve": "default start"}[start]
