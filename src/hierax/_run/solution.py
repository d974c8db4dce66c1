"""What a run returns: how it ended, its records, and a `Solution`, or `Solutions` of many starts.

For every reason to end, the text with cause and cure stands here.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import functools
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.files import Json, write_whole
from hierax._base.imports import lazy
from hierax._base.text import as_json, named_point, notebook_table, text_table, tree_as_json, versions
from hierax._base.trees import split_variable
from hierax._compile.configuration import as_answer, float64
from hierax._judge.certificate import Certificate, Certificates, unjudged
from hierax._judge.certifying import certify
from hierax._judge.measuring import SHOWN_TOLERANCE
from hierax._judge.point import Judgement, judge_point, judge_points
from hierax._judge.sampling import Estimates
from hierax._problem.problem import Multipliers, Problem, is_streamed
from hierax._run.call import Call, State
from hierax._run.feeding import Exhausted, on_next_rows
from hierax._run.method import AbstractSolver

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

reports: Any = None  # what makes pages and figures stands above; the package puts it here when it is imported

pandas = lazy("pandas")


# -- how a run ended --------------------------------------------------------------------------------------------------


Kind = enum.StrEnum(
    "Kind",
    "CONVERGED BEST_OF_BRANCHES NO_MULTIPLIER UNPROVED MAX_STEPS SECONDS SAMPLES STOPPED INTERRUPTED PINNED "
    "NOT_CERTIFIED NONFINITE DIVERGED INFEASIBLE UNBOUNDED_LOWER UNBOUNDED_UPPER DATA_ERROR",
)
"""How a run ended, in one word: its value is `status.name`."""

SOLVED = (Kind.CONVERGED, Kind.BEST_OF_BRANCHES)  # the kinds that claim to have solved the problem
UNBOUNDED = (Kind.UNBOUNDED_LOWER, Kind.UNBOUNDED_UPPER)
FAILED = (Kind.NONFINITE, Kind.DIVERGED, Kind.INFEASIBLE, *UNBOUNDED, Kind.DATA_ERROR)  # those that `throw=True` raises


@dataclasses.dataclass(frozen=True)
class Status:
    """How a run ended.

    Attributes:
        kind: the kind of ending.
        message: cause and cure in words.
        step: outer steps made (of `Auto`: points judged, or stages).

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=20)
        >>> sol.status.name, sol.status.ok, sol.status.step
        ('max_steps', False, 20)
    """

    kind: Kind
    message: str
    step: int

    @property
    def name(self) -> str:
        """The kind in one word, for example "converged"."""
        return self.kind.value

    @property
    def ok(self) -> bool:
        """Whether the run claims to have solved the problem, which it does with a certificate only."""
        return self.kind in SOLVED

    @property
    def failed(self) -> bool:
        """Whether `throw=True` raises."""
        return self.kind in FAILED


_BEST_SO_FAR = "the best of them is returned. What its certificate misses: {objection}"
_SMALL = "the method's residuals are below tol={tol:g} after step {step}"
_NOTICED = "the point at which that was noticed is returned, and is no solution."
_BOUND_Y = "Bound Y, or add a term that grows in every direction of y."


class Reason(enum.Enum):
    """Why a run ended: the kind, and the text with the places that the run fills in."""

    # -- runs of steps ----------------------------------------------------------------------------------------------
    STEPS_DONE = (Kind.MAX_STEPS, "{done} steps done{quality}; go on from sol.state, or raise max_steps.{hint}")
    TIME_UP = (
        Kind.SECONDS,
        "the {seconds:g} seconds are used up after step {step} (compiling took {compiling:.1f}){quality}; go on with "
        "state=sol.state.{hint}",
    )
    SAMPLES_USED = (
        Kind.SAMPLES,
        "another step would take more than max_samples={samples:,}: the run ends after step {step}{quality}; go on "
        "from sol.state, or raise max_samples.{hint}",
    )
    NO_BATCH_IN_TIME = (
        Kind.SECONDS,
        "the {seconds:g} seconds are used up after step {step}: {what}. The point reached so far is returned.",
    )
    CALLBACK = (Kind.STOPPED, "stopped by the callback after step {step}.")
    CTRL_C = (
        Kind.INTERRUPTED,
        "interrupted (Ctrl-C or SIGTERM) after step {step}{quality}; the point reached so far is returned. Go on with "
        "state=sol.state.",
    )
    RESIDUALS_SMALL = (Kind.CONVERGED, f"{_SMALL}, and the certificate of the point agrees.")
    RESIDUALS_SMALL_BUT_REFUTED = (
        Kind.NOT_CERTIFIED,
        f"{_SMALL}{{quality}}, but the certificate of the point objects: {{objection}} See print(sol.certificate).",
    )
    RESIDUALS_SMALL_UNPROVED = (
        Kind.UNPROVED,
        f"{_SMALL}{{quality}}; whether the point solves the problem is open: {{why}}",
    )
    HELD_IN_A_CORNER = (
        Kind.PINNED,
        "after step {step} every entry of x and y is held by the sets X and Y although the direction is not zero: a "
        "corner, either the solution or where a failed run collected. Try other starts, longer inner loops or shorter "
        "steps, and judge the point by its lower-level gap before using it.",
    )
    NOT_A_NUMBER = (
        Kind.NONFINITE,
        "nonfinite at step {step}: a value is not finite after the next step; the last point at which all are finite "
        "is returned. {cure}",
    )
    RAN_AWAY = (
        Kind.DIVERGED,
        "diverged at step {step}: the iterates run away; the last point before that is returned. {cure}",
    )
    NO_LOWER_POINT = (
        Kind.INFEASIBLE,
        f"infeasible at step {{step}}: the run has come to where no y in Y satisfies the lower level's constraints; "
        f"{_NOTICED} Restrict X to where the lower level is feasible, or shorten the x-step.",
    )
    NO_LOWER_BOUND = (
        Kind.UNBOUNDED_LOWER,
        "unbounded_lower at step {step}: the run has come to where the lower objective falls without limit; "
        f"{_NOTICED} {_BOUND_Y}",
    )
    NO_MORE_BATCHES = (Kind.DATA_ERROR, "{what}: the last point is returned after step {step}. {cure}")
    # -- Auto -------------------------------------------------------------------------------------------------------
    CERTIFIED = (Kind.CONVERGED, "converged: the certificate says yes at tol={tol:g}{doubt}.")
    CERTIFIED_AMONG_BRANCHES = (
        Kind.BEST_OF_BRANCHES,
        "best_of_branches: the certificate says yes at tol={tol:g}, but the lower level is {why}.",
    )
    DEGENERATE = (
        Kind.NO_MULTIPLIER,
        "no_multiplier: y was compared with other solutions of the lower level, but no KKT system confirms it: "
        "{objection}",
    )
    UNDECIDED = (
        Kind.UNPROVED,
        "unproved: the best point passed the validation, but its certificate cannot decide: {objection}",
    )
    OBJECTED = (
        Kind.NOT_CERTIFIED,
        "not_certified: the best point is returned; its certificate objects at tol={tol:g}: {objection} Try another "
        "start or seed, more starts, or more seconds.",
    )
    SEARCH_OUT_OF_TIME = (Kind.SECONDS, f"seconds: the time was up before the search was complete; {_BEST_SO_FAR}")
    SEARCH_OUT_OF_STEPS = (Kind.MAX_STEPS, f"max_steps: {{step}} points were judged; {_BEST_SO_FAR}")
    SEARCH_STOPPED = (Kind.STOPPED, f"stopped: by the callback after {{step}} points; {_BEST_SO_FAR}")
    SEARCH_INTERRUPTED = (Kind.INTERRUPTED, f"interrupted (Ctrl-C or SIGTERM) after {{step}} points; {_BEST_SO_FAR}")
    FALLS_FOR_EVER = (
        Kind.UNBOUNDED_UPPER,
        "unbounded_upper: F fell to {upper:.3g} along points that satisfy everything, without an end in sight. Bound X "
        "(or Y), or check the sign of the upper objective.",
    )
    NO_FEASIBLE_Y = (
        Kind.INFEASIBLE,
        "infeasible: at none of the starts has the lower level a feasible y. Check the constraints' signs (feasible is "
        "h <= 0), or restrict X to where there is one.",
    )
    CONTRADICTION = (
        Kind.INFEASIBLE,
        "infeasible: {proof}, whatever the lower level answers. Check the signs of the rows (feasible is <= 0), or "
        "widen X and Y.",
    )
    NO_FEASIBLE_X = (
        Kind.NOT_CERTIFIED,
        "not_certified: no point that solves the lower level was found to satisfy the upper constraints; that there is "
        "none is not proved. {nearest} Check their signs (feasible is <= 0), or give more starts or another seed.",
    )
    LOWER_FALLS_FOR_EVER = (
        Kind.UNBOUNDED_LOWER,
        "unbounded_lower: the lower objective falls without limit at some starts and has a minimum at none. "
        f"{_BOUND_Y}",
    )
    NOTHING_VALIDATED = (
        Kind.NOT_CERTIFIED,
        "not_certified: no point passed the validation; the nearest (violation {violation:.3g}, lower gap {gap:.3g}) "
        "is returned. Try another start or seed, more starts, or more seconds.",
    )
    STAGES_ENDED = (
        Kind.UNPROVED,
        "{kind}: {what}F = {seen}, violation {violation:.2g}, after {stages} stages. {certificate}",
    )
    NO_TURN = (Kind.SECONDS, "{kind}: before this start had its turn; it is returned as it was given.")
    EVERY_STAGE_FAILED = (
        Kind.DIVERGED,
        "diverged: every stage failed, at the shortest step too; the start is returned.",
    )

    def __init__(self, kind: Kind, template: str) -> None:
        self.kind, self.template = kind, template

    def status(self, at: int, one: Kind | None = None, /, **details: object) -> Status:
        """The status of a run that ended for this reason after `at` steps; `one`: the kind, where there are several."""
        one = one or self.kind
        return Status(one, self.template.format(step=at, kind=one, **{"doubt": "", **details}), at)


# -- results ----------------------------------------------------------------------------------------------------------


class History(Mapping[str, np.ndarray]):
    """Records of a run: one NumPy array per name, one row per record; `len` is the number of records.

    `dict(history)` gives the columns by name, `to_frame()` a table for pandas, `to_csv(path)` a file.

    Examples:
        >>> history = History({"step": np.array([1, 2]), "upper": np.array([0.5, 0.25])})
        >>> float(history["upper"].min())
        0.25
        >>> list(dict(history)), len(history)
        (['step', 'upper'], 2)
    """

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __repr__(self) -> str:
        return f"History({len(self)} records of {', '.join(self.columns)})"

    def to_csv(self, path: str | Path) -> None:
        """Write the records of a single run as a table; the file is whole or not there."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows(zip(*(column.tolist() for column in self.columns.values()), strict=True))
        write_whole(Path(path), lambda file: file.write(text.getvalue().encode()))

    def to_frame(self) -> "DataFrame":
        """The records as a `pandas.DataFrame`, one row per record (needs pandas).

        Records of many starts get one row per record and start, with the number of the start as a column.
        """
        many = [column for column in self.columns.values() if column.ndim > 1]
        if not many:
            return pandas.DataFrame(self.columns)
        starts = many[0].shape[1]

        def flat(column: np.ndarray) -> np.ndarray:
            return column.reshape(-1) if column.ndim > 1 else np.repeat(column, starts)

        columns = {name: flat(column) for name, column in self.columns.items()}
        return pandas.DataFrame({"start": np.tile(np.arange(starts), len(self)), **columns})


class Starts(NamedTuple):
    """The ends of several starts.

    Attributes:
        values: F at the best valid point of every start, the given start first; NaN where a start led to none, or had
            no turn.
        said: what these values are of, and what follows from them, in words.
    """

    values: tuple[float, ...] = ()
    said: str = ""

    def after(self, text: str) -> "Starts":
        """The same values with words before those that are there."""
        return self._replace(said=f"{text} {self.said}".strip()) if self.values else self


def lowest_of_starts(found: list[tuple[int, float]], count: int) -> tuple[float, ...]:
    """The lowest value of each of `count` starts, of pairs (start, value).

    Examples:
        >>> lowest_of_starts([(0, 2.0), (0, 1.0), (2, 3.0)], 3)
        (1.0, nan, 3.0)
    """
    of_starts = [[value for at, value in found if at == start and not np.isnan(value)] for start in range(count)]
    return tuple(float(min(values, default=np.nan)) for values in of_starts)


GLOBALITY = "Globality: "  # begins the line of the log that says how global the answer is
CERTIFICATE_NUMBERS = ("violation", "max_violation", "lower_gap", "distance", "kkt_residual", "hypergradient_norm")


def answer_fields(solution: Solution) -> dict[str, Json]:
    """The point and F."""
    multipliers = {name: tree_as_json(tree) for name, tree in solution.multipliers._asdict().items()}
    point = {"x": tree_as_json(solution.x), "y": tree_as_json(solution.y)}
    return {"F": as_json(solution.value), **point, "multipliers": multipliers}


def certificate_fields(certificate: Certificate, tol: float) -> dict[str, Json]:
    """What a certificate says at a tolerance, and its numbers."""
    numbers = {name: as_json(getattr(certificate, name)) for name in (*CERTIFICATE_NUMBERS, "upper_se")}
    return {"verdict": certificate.verdict(tol), "tol": tol, "reasons": as_json(certificate.reasons(tol)), **numbers}


def run_fields(result: Solution | Solutions) -> dict[str, Json]:
    """What was asked, with which method and versions, what it took, and what `Auto` said on the way."""
    settings, method = as_json(dict(result.arguments)), as_json(result.method)
    counts, log = as_json(result.counts), as_json(result.log)
    return {"settings": settings, "method": method, "counts": counts, "log": log, "versions": as_json(versions())}


@dataclasses.dataclass(frozen=True)
class Counts:
    """Samples and gradient evaluations of a run (per start), its seconds with compilation apart, and those of them in
    which it waited for data.

    Gradients and lower solves are None where they were not counted: in searches of `Auto` that are no run of steps.
    These count `evaluations` instead: points at which F(x, y*(x)), a KKT system or the value function was evaluated,
    each with the lower solves that it takes. `evaluations_to_answer` and `seconds_to_answer` (compilation included) say
    when the search first held a point as good as the one it returns: violation at most `tol`, and F within
    tol (1 + |F|) of the returned value. They are None where the returned point is not certified. What comes after them
    is the search for lower points, and the certificate.
    """

    zeta: int = 0
    xi: int = 0
    grad_upper: int | None = 0
    grad_lower: int | None = 0
    vjp_constraints: int | None = 0
    lower_solves: int | None = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    waiting_seconds: float = 0.0
    evaluations: int | None = None
    evaluations_to_answer: int | None = None
    seconds_to_answer: float | None = None

    @property
    def gradients(self) -> int:
        """Evaluations of the gradients of F and G, as far as they were counted."""
        return (self.grad_upper or 0) + (self.grad_lower or 0)

    @classmethod
    def of_search(cls, seconds: float, compile_seconds: float, zeta: int = 0, xi: int = 0) -> "Counts":
        """Those of a search that does not count its gradients and lower solves."""
        return cls(zeta, xi, None, None, None, None, seconds, compile_seconds)

    def to_frame(self) -> DataFrame:
        """The counts as a `pandas.DataFrame` of one row (needs pandas)."""
        return pandas.DataFrame([dataclasses.asdict(self)])


StatusType = TypeVar("StatusType", Status, list[Status])


@dataclasses.dataclass(frozen=True, repr=False)
class _Result(Generic[StatusType]):
    """What the results of one run and of many have in common."""

    x: PyTree
    y: PyTree
    multipliers: Multipliers
    status: StatusType
    history: History
    counts: Counts
    state: State | None
    method: AbstractSolver
    problem: Problem
    log: tuple[str, ...] = ()
    several_processes: bool = False
    arguments: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def _judged(self) -> bool:
        """Whether F and violations can be computed here, on all of the data."""
        return not (self.several_processes or is_streamed(self.problem))

    def plot(self) -> Figure:
        """A matplotlib figure for notebooks (needs the extra `plot`): values, residuals, F at the ends of the starts.

        Raises:
            MissingExtra: matplotlib is not installed; the text is the line that installs it.
        """
        return cast("Figure", reports.plot(self))

    def report(self, path: str | Path, *, certify: bool = True) -> Path:
        """Write one HTML page that needs no network: what was asked, how it ended, and why to trust it.

        The page of `solve_many` has a row for every start; `sols[i].report` is that of one start.

        Args:
            path: of the page, for example "run.html"; its folder is made where it is missing.
            certify: make the certificate of a single run where it is not known yet, which takes some lower solves (of
                a network: some trainings); False: the page says that it was not made.

        Returns:
            The path.

        Examples:
            >>> import hierax as hx, tempfile
            >>> problem = hx.Problem(
            ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
            ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
            ...     constraints=lambda x, y: y - x,
            ... )
            >>> sol = hx.solve(problem, 0.5, 0.5)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     "The certificate agrees" in sol.report(f"{folder}/run.html").read_text("utf-8")
            True
        """
        return cast(Path, reports.report(self, Path(path), certify))


@dataclasses.dataclass(frozen=True, repr=False)
class Solution(_Result[Status]):
    """The result of `solve`. `print` gives a short table, `to_dict` plain Python for JSON.

    Answers of `Auto` are NumPy arrays of float64 (a single number: NumPy's float64, which is a float), whatever
    precision JAX is set to: they were computed so. Those of methods that make steps are JAX's arrays in the precision
    of the run.

    Attributes:
        x: upper variable.
        y: lower variable.
        multipliers: lam of the lower level (in the user's units) and those of the upper constraints.
        status: how the run ended: `status.name`, `status.message` (cause and cure), `status.ok`.
        history: records by name.
        counts: samples, gradients, seconds.
        state: everything needed to go on, `solve(..., state=sol.state)`; None after `Auto`.
        method: the method with every unset value filled in.
        problem: the problem as it was given, for `certificate`; keeps its data alive as long as the solution.
        log: what `Auto` tried and found, in words.
        several_processes: whether several processes made the run: none of them judges its point by itself.
        arguments: those of `solve` that steered the run, by name: what it takes to repeat it.
        tol: tolerance at which the certificate is read.
        starts: F at the ends of the starts of `Auto`, and what that says of how global the answer is.
        estimates: of a sampled problem that `Auto` solved: F with its standard error; by averages also standard errors
            of x and y, and what F may be above the best.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5)
        >>> sol.status.name, round(float(sol.value), 4), sol.certificate.ok()
        ('converged', 0.0909, True)
        >>> sol.x.round(6)
        np.float64(0.909091)
    """

    tol: float = SHOWN_TOLERANCE
    starts: Starts = Starts()
    estimates: Estimates | None = None

    @functools.cached_property
    def judgement(self) -> Judgement | None:
        """F, G and violations at (x, y) in float64, on all of the data; None where the data are a `Stream`, or where
        several processes made the run.

        A `Sampler` is seen through its `exact` batch or, without one, through 4,096 fresh samples.
        """
        return judge_point(self.problem, self.x, self.y) if self._judged else None

    @property
    def value(self) -> float:
        """F(x, y): the upper objective, on what `judgement` sees; of a `Stream`, the last record of it.

        Where there are `estimates`, F at x with the lower level's own answer to it, out of sample.
        """
        if self.estimates is not None:
            return self.estimates.upper
        if self.judgement is not None:
            return float(self.judgement.upper)
        return float(self.history["upper"][-1]) if len(self.history) else float("nan")

    @functools.cached_property
    def certificate(self) -> Certificate:
        """`certify` of this solution, computed on first access, or by the run itself where it was given `tol`.

        A `Stream` gives its next 4,096 samples for that; where it gives none, the verdict is "unknown" and says so. For
        another solver or other samples call `hierax.certify` yourself.
        """
        if self.several_processes:
            raise InputError(
                "certificate: several processes made the run, and none of them has all of the data or may compute on "
                "its own what lies on their devices. State the problem on all data in one process, and call "
                "hierax.certify(problem, x, y) there."
            )
        try:
            problem, samples = on_next_rows(self.problem, FRESH_SAMPLES)
        except Exhausted as error:
            how = "Judge the point on data of your own: hierax.certify(problem with hx.Finite(arrays), sol.x, sol.y)."
            return unjudged(self.x, self.y, f"nothing was judged: {error}. {how}")
        return certify(problem, self.x, self.y, multipliers=self.multipliers, state=self.state, samples=samples)

    @property
    def known_certificate(self) -> Certificate | None:
        """The certificate where it was made already, else None."""
        return self.__dict__.get("certificate")

    def to_dict(self) -> dict[str, Json]:
        """The solution in plain Python (numbers, texts, lists, dictionaries, None), for `json.dumps`.

        docs/guides/answers.md lists the fields, which are those of `hierax solve --json`. Numbers that are not finite
        are None, and so is a certificate that was not made: `sol.certificate` makes it.

        Examples:
            >>> import hierax as hx, json
            >>> problem = hx.Problem(
            ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
            ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
            ...     constraints=lambda x, y: y - x,
            ... )
            >>> found = json.loads(json.dumps(hx.solve(problem, 0.5, 0.5).to_dict()))
            >>> found["status"]["name"], round(found["x"], 6), round(found["F"], 6), found["certificate"]["verdict"]
            ('converged', 0.909091, 0.090909, 'yes')
        """
        certificate, status = self.known_certificate, self.status
        globality = [line.removeprefix(GLOBALITY) for line in self.log if line.startswith(GLOBALITY)]
        return {
            "status": {"name": status.name, "message": status.message, "step": status.step, "ok": status.ok},
            **answer_fields(self),
            "estimates": None if self.estimates is None else self.estimates.to_dict(),
            "certificate": None if certificate is None else certificate_fields(certificate, self.tol),
            "globality": globality[-1] if globality else None,
            "starts": as_json(self.starts),
            **run_fields(self),
        }

    def _repr_html_(self) -> str:
        """The table of `print` as notebooks show it."""
        return notebook_table(f"Solution: {self.status.name}", _rows(self))

    def __repr__(self) -> str:
        return f"Solution(x={self.x}, y={self.y}, status={self.status.name!r})"

    def __str__(self) -> str:
        return text_table(f"Solution: {self.status.name}", _rows(self))


def unmoved(problem: Problem, x0: PyTree, y0: PyTree, method: AbstractSolver, call: Call, status: Status) -> Solution:
    """The start as the solution."""
    with float64():
        (x, x_rest), (y, y_rest) = split_variable("x0", x0), split_variable("y0", y0)
    return Solution(
        x=eqx.combine(as_answer(x), x_rest),
        y=eqx.combine(as_answer(y), y_rest),
        multipliers=Multipliers(None, None, None),
        status=status,
        history=History({"step": np.zeros(0), "upper": np.zeros(0), "violation": np.zeros(0)}),
        counts=Counts(seconds=call.clock.elapsed),
        state=call.state,
        method=method,
        problem=problem,
        arguments=call.arguments(),
    )


Found = TypeVar("Found", bound="Solution | Solutions")


def changed(found: Found, **fields: Any) -> Found:
    """A copy with other fields; what is known of the point stays known."""
    other = dataclasses.replace(found, **fields)
    known = ("certificate", "judgement")  # computed once, on first access
    other.__dict__.update({name: found.__dict__[name] for name in known if name in found.__dict__})
    return other


def with_certificate(solution: Solution, certificate: Certificate | None) -> Solution:
    """The same solution with the certificate of its point, where one was made on the way."""
    if certificate is not None:
        solution.__dict__["certificate"] = certificate
    return solution


def certificate_or_why(solution: Solution, certify: bool = True) -> Certificate | str:
    """The certificate of a solution, made where it is not known and `certify` says so; or why there is none."""
    if solution.known_certificate is not None:
        return solution.known_certificate
    if solution.several_processes:
        return "several processes made the run; judge the point in one of them, by hx.certify on all data."
    if is_streamed(solution.problem):
        return "a Stream is never seen as a whole; sol.certificate takes its next samples."
    if not certify:
        return "sol.certificate makes it, and hierax verify judges answer.json."
    try:
        return solution.certificate
    except InputError as error:  # for example a Stream, a set that does not state its faces, several processes
        return f"no certificate can be made. {error}"


def certified(solution: Solution, tol: float, quality: str, why: str | Certificate) -> Solution:
    """A solution whose residuals met the tolerance, with the status that follows from its certificate.

    `quality`: its residuals in words; `why`: why no certificate is made, empty where it is.
    """
    reason, objection = Reason.RESIDUALS_SMALL_UNPROVED, ""
    why = why or certificate_or_why(solution)
    if isinstance(why, Certificate):
        verdict, objection = why.verdict(tol), "".join(why.reasons(tol)[:1])
        reasons = {"yes": Reason.RESIDUALS_SMALL, "no": Reason.RESIDUALS_SMALL_BUT_REFUTED}
        reason, why = reasons.get(verdict, reason), f"the certificate cannot decide. {objection}"
    said = {"quality": quality, "objection": objection, "why": why}
    return changed(solution, status=reason.status(solution.status.step, tol=tol, **said), tol=tol)


def statuses_of(found: Solution | Solutions) -> list[Status]:
    """How every start ended."""
    return [found.status] if isinstance(found, Solution) else found.status


def _rows(solution: Solution) -> list[tuple[str, str]]:
    """The lines of `print(sol)`."""
    counts = solution.counts
    judged = solution.judgement
    violation = solution.history["violation"][-1:] if judged is None else np.array([judged.violation])
    rows = [
        ("status", solution.status.message.removeprefix(f"{solution.status.name}: ")),  # the name is in the title
        ("F (value)", _value(solution)),
        ("violation", f"{float(violation[0]):.3g}" if violation.size else "-"),
        ("lower gap", _gap(solution)),
        ("certificate", _verdict(solution)),
        ("seconds", _seconds(counts)),
    ]
    if counts.zeta or counts.xi:
        rows.append(("samples", f"{counts.zeta} of zeta, {counts.xi} of xi"))
    for name, tree in (("x", solution.x), ("y", solution.y)):
        rows.extend(named_point(name, tree))
    return rows


def _value(solution: Solution) -> str:
    seen = solution.estimates
    if seen is None:
        return f"{solution.value:.8g}"
    text = seen.value_said
    return text if np.isnan(seen.gap) else f"{text}; at most {seen.gap:.2g} above the best nearby (95 %)"


def _seconds(counts: Counts) -> str:
    text = f"{counts.seconds:.2f}, and {counts.compile_seconds:.2f} to compile"
    share = counts.waiting_seconds / counts.seconds if counts.seconds else 0.0
    return text if f"{share:.1f}" == "0.0" else f"{text}; {share:.0%} of them waiting for data"


def _gap(solution: Solution) -> str:
    certificate = solution.known_certificate
    if certificate is not None and certificate.lower_gap is not None:
        return f"{certificate.lower_gap:.3g} = G(x, y) - v(x)"
    return "not computed" if solution.several_processes else "not computed: sol.certificate tells"


def _verdict(solution: Solution) -> str:
    certificate = solution.known_certificate
    if solution.several_processes:
        return "not made where several processes run: docs/guides/cluster.md"
    if certificate is None:
        return "not computed: sol.certificate"
    reasons = certificate.reasons(solution.tol)
    return f"{certificate.verdict(solution.tol)} at tol {solution.tol:g}{': ' if reasons else ''}{''.join(reasons[:1])}"


@dataclasses.dataclass(frozen=True, repr=False)
class Solutions(_Result[list[Status]]):
    """The result of `solve_many`: every array has a leading axis of starts. `sols[i]` is the `Solution` of start i.

    Attributes:
        x: upper variables.
        y: lower variables.
        multipliers: those of every start.
        status: a list, how each start ended.
        history: records by name, one column per start.
        counts: samples, gradients and seconds, per start; after `Auto`, of all starts together.
        state: everything needed to go on, `solve_many(..., state=sols.state)`; None after `Auto`.
        method: the method with every unset value filled in; its numbers have an axis of starts.
        problem: the problem as it was given.
        log: what `Auto` tried and found from each start, in words; empty for methods that make steps.
        each: the solutions one by one, where they were found so (`Auto`); empty otherwise.
        several_processes: whether several processes made the runs.
        arguments: those of `solve_many` that steered the runs, by name.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sols = hx.solve_many(problem, [0.2, 0.8], [0.2, 0.8])
        >>> len(sols), sols[1].status.name, len(sols.x)
        (2, 'converged', 2)
    """

    each: tuple[Solution, ...] = ()

    @functools.cached_property
    def certificate(self) -> Sequence[Certificate]:
        """The certificates of the starts, each computed when it is asked for."""
        return Certificates(len(self), lambda i: self[i].certificate)

    @property
    def known_certificates(self) -> list[Certificate | None]:
        """The certificates that were made already; None for the other starts."""
        if self.each:
            return [one.known_certificate for one in self.each]
        asked = self.__dict__.get("certificate")
        return asked.known if isinstance(asked, Certificates) else [None] * len(self)

    @functools.cached_property
    def judgements(self) -> list[Judgement] | None:
        """The `judgement` of every start; None where a `Solution` has none."""
        if not self._judged:
            return None
        points = [(one.x, one.y) for one in self.each]
        return judge_points(self.problem, points or [_of_start(i, (self.x, self.y)) for i in range(len(self))])

    @property
    def values(self) -> np.ndarray:
        """F(x, y) of every start: the `value` of each."""
        if self.judgements is not None:
            return np.array([float(one.upper) for one in self.judgements])
        return self.last_record("upper")

    def last_record(self, name: str) -> np.ndarray:
        """The last record of a column, of every start; NaN where there is none."""
        return np.full(len(self), self.history[name][-1] if len(self.history) else np.nan, float)

    def __len__(self) -> int:
        return len(self.status)

    def __iter__(self) -> Iterator[Solution]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Solution:
        """The solution of start i."""
        if not isinstance(i, int) or not -len(self) <= i < len(self):
            raise IndexError(f"start {i!r}: needs a whole number below {len(self)}, the number of starts.")
        i %= len(self)
        if self.each:
            return self.each[i]
        assert self.state is not None
        columns = {name: column[:, i] if column.ndim > 1 else column for name, column in self.history.items()}
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(_Result)} | {
            "status": self.status[i],
            "history": History(columns),
            "state": self.state._replace(**_of_start(i, {"method": self.state.method, "run": self.state.run})),
            "arguments": {**self.arguments, "start of solve_many": i},
        }
        picked = ("x", "y", "multipliers", "method")
        return Solution(**(fields | _of_start(i, {name: fields[name] for name in picked})))

    def _repr_html_(self) -> str:
        """A table of the starts as notebooks show it."""
        return notebook_table(repr(self), reports.rows_of_starts(self), reports.STARTS_HEADINGS)

    def to_frame(self) -> DataFrame:
        """A `pandas.DataFrame` with a row per start: how it ended, and F at its end (needs pandas)."""
        ends = [(i, one.status.name, one.status.ok, one.status.step, one.value) for i, one in enumerate(self)]
        frame = pandas.DataFrame(ends, columns=["start", "status", "ok", "step", "value"])
        return frame.assign(message=[status.message for status in self.status])

    def __repr__(self) -> str:
        names = Counter(status.name for status in self.status)
        return f"Solutions({len(self)} starts: {', '.join(f'{count} {name}' for name, count in names.items())})"


def _of_start(i: int, tree: PyTree) -> PyTree:
    """The part of start i of a tree of stacked arrays."""
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, tree)


def stacked(each: list[Solution]) -> Solutions:
    """Solutions that were found one after another; a start without multipliers (it had no turn) has NaN there."""
    columns = zip(*(dataclasses.astuple(one.counts) for one in each), strict=True)
    counts: list[Any] = [None if None in column else sum(column) for column in columns]  # None: one was not counted
    return Solutions(
        x=_together([one.x for one in each]),
        y=_together([one.y for one in each]),
        multipliers=_together(_alike([one.multipliers for one in each])),
        status=[one.status for one in each],
        history=_history([one.history for one in each]),
        counts=Counts(*counts),
        state=None,
        method=each[0].method,
        problem=each[0].problem,
        log=tuple(f"start {i}: {line}" for i, one in enumerate(each) for line in one.log),
        each=tuple(each),
    )


def _together(trees: list[PyTree]) -> PyTree:
    """Arrays on a new leading axis (NumPy's stay NumPy's, with their precision); what is none, once."""

    def stack(*leaves: PyTree) -> PyTree:
        if not eqx.is_array_like(leaves[0]):
            return leaves[0]
        return (jnp if all(isinstance(leaf, jax.Array) for leaf in leaves) else np).stack(leaves)

    return jax.tree.map(stack, *trees)


def _alike(trees: list[PyTree]) -> list[PyTree]:
    """Empty trees filled with NaN in the form of the others."""
    full = next((tree for tree in trees if jax.tree.leaves(tree)), trees[0])
    unknown = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), full)
    return [tree if jax.tree.leaves(tree) else unknown for tree in trees]


def _history(each: list[History]) -> History:
    """One column per start; a start that ended before the others stays at its last record (NaN: it has none)."""
    most = max(len(history) for history in each)
    names = [name for name in max(each, key=len) if name != "step"]

    def padded(history: History, name: str) -> np.ndarray:
        column = np.asarray(history[name], float) if name in history else np.zeros(0)
        return np.concatenate([column, np.full(most - column.size, column[-1] if column.size else np.nan)])

    columns = {name: np.stack([padded(history, name) for history in each], axis=1) for name in names}
    return History({"step": np.arange(1, most + 1), **columns})
