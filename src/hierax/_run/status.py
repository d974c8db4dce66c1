"""How a run can end: the kinds, and for each reason its text with cause and cure, all in one place."""

import dataclasses
import enum


class Kind(enum.Enum):
    """How a run ended, in one word (`status.name`), whether that is a claim to have solved the problem (`ok`), and
    whether `throw=True` raises (`failed`).
    """

    CONVERGED = ("converged", True, False)
    BEST_OF_BRANCHES = ("best_of_branches", True, False)
    NO_MULTIPLIER = ("no_multiplier", False, False)
    UNPROVED = ("unproved", False, False)
    MAX_STEPS = ("max_steps", False, False)
    SECONDS = ("seconds", False, False)
    SAMPLES = ("samples", False, False)
    STOPPED = ("stopped", False, False)
    INTERRUPTED = ("interrupted", False, False)
    PINNED = ("pinned", False, False)
    NOT_CERTIFIED = ("not_certified", False, False)
    NONFINITE = ("nonfinite", False, True)
    DIVERGED = ("diverged", False, True)
    INFEASIBLE = ("infeasible", False, True)
    UNBOUNDED_LOWER = ("unbounded_lower", False, True)
    UNBOUNDED_UPPER = ("unbounded_upper", False, True)
    DATA_ERROR = ("data_error", False, True)

    def __init__(self, label: str, ok: bool, failed: bool) -> None:
        self.label, self.ok, self.failed = label, ok, failed


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
        return self.kind.label

    @property
    def ok(self) -> bool:
        """Whether the run claims to have solved the problem, which it does with a certificate only."""
        return self.kind.ok

    @property
    def failed(self) -> bool:
        """Whether `throw=True` raises."""
        return self.kind.failed


class Open(enum.Enum):
    """Why it stays open whether a point with small residuals solves the problem."""

    ONE_OF_MANY = "sols[i].certificate tells."
    STREAM = "a Stream is never seen as a whole; judge the point by hx.certify on data of your own."
    SEVERAL_PROCESSES = "several processes made the run; judge the point in one of them, by hx.certify on all data."
    TOO_LARGE = "with {entries:,} entries of y and constraints the certificate is left to you: sol.certificate."
    NO_TIME = "no time was left for the certificate: sol.certificate."
    NOT_MADE = "sol.certificate makes it, and hierax verify judges answer.json."
    NO_CERTIFICATE = "no certificate can be made. {error}"
    UNDECIDED = "the certificate cannot decide. {objection}"

    def text(self, **details: object) -> str:
        """The reason as a sentence."""
        return self.value.format(**details)


_BEST_SO_FAR = "the best of them is returned. What its certificate misses: {objection}"
_NO_TURN = "before this start had its turn; it is returned as it was given."
_NOTICED = "the point at which that was noticed is returned, and is no solution."
_BOUND_Y = "Bound Y, or add a term that grows in every direction of y."
_AFTER_STAGES = "F = {upper:.6g} on the data, violation {violation:.2g}, after {stages} stages. {certificate}"


class Reason(enum.Enum):
    """Why a run ended: the kind, and the text with the places that the run fills in."""

    # -- runs of steps ----------------------------------------------------------------------------------------------
    STEPS_DONE = (Kind.MAX_STEPS, "{done} steps done{quality}; go on from sol.state, or raise max_steps.{hint}")
    TIME_UP = (
        Kind.SECONDS,
        "the {seconds:g} seconds are used up after step {step} (compiling took {compiling:.1f}){quality}; go on with "
        "state=sol.state.{hint}",
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
    RESIDUALS_SMALL = (
        Kind.CONVERGED,
        "the method's residuals are below tol={tol:g} after step {step}, and the certificate of the point agrees.",
    )
    RESIDUALS_SMALL_BUT_REFUTED = (
        Kind.NOT_CERTIFIED,
        "the method's residuals are below tol={tol:g} after step {step}{quality}, but the certificate of the point "
        "objects: {objection} See print(sol.certificate).",
    )
    RESIDUALS_SMALL_UNPROVED = (
        Kind.UNPROVED,
        "the method's residuals are below tol={tol:g} after step {step}{quality}; whether the point solves the problem "
        "is open: {why}",
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
    CERTIFIED = (Kind.CONVERGED, "converged: the certificate says yes at tol={tol:g}.")
    CERTIFIED_AMONG_BRANCHES = (
        Kind.BEST_OF_BRANCHES,
        "best_of_branches: the certificate says yes at tol={tol:g}, but the lower level is {why}, which samples cannot "
        "prove to be the global one. Another seed draws other starts.",
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
    STAGES_DONE = (Kind.CONVERGED, f"converged: {_AFTER_STAGES}")
    STAGES_DONE_AMONG_BRANCHES = (Kind.BEST_OF_BRANCHES, f"best_of_branches: {_AFTER_STAGES}")
    STAGES_WITHOUT_PROOF = (Kind.UNPROVED, f"unproved: further stages gain nothing; {_AFTER_STAGES}")
    STAGES_STOPPED = (Kind.STOPPED, f"stopped: by the callback. {_AFTER_STAGES}")
    STAGES_ENOUGH = (Kind.MAX_STEPS, f"max_steps: {_AFTER_STAGES}")
    STAGES_OUT_OF_TIME = (Kind.SECONDS, f"seconds: {_AFTER_STAGES}")
    STAGES_OUT_OF_SAMPLES = (Kind.SAMPLES, f"samples: {_AFTER_STAGES}")
    STAGES_OUT_OF_DATA = (Kind.DATA_ERROR, f"data_error: {{what}} {_AFTER_STAGES}")
    NO_TURN_INTERRUPTED = (Kind.INTERRUPTED, f"interrupted (Ctrl-C or SIGTERM) {_NO_TURN}")
    NO_TURN_IN_TIME = (Kind.SECONDS, f"seconds: the time was up {_NO_TURN}")
    STAGES_INTERRUPTED = (Kind.INTERRUPTED, f"interrupted (Ctrl-C or SIGTERM): {_AFTER_STAGES}")
    EVERY_STAGE_FAILED = (
        Kind.DIVERGED,
        "diverged: every stage failed, at the shortest step too; the start is returned.",
    )

    def __init__(self, kind: Kind, template: str) -> None:
        self.kind, self.template = kind, template

    def status(self, at: int, **details: object) -> Status:
        """The status of a run that ended for this reason after `at` steps."""
        return Status(self.kind, self.template.format(step=at, **details), at)
