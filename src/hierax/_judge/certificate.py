"""`certify`: how far a point can be trusted, by a measure that no method controls.

The lower level is solved anew at the given x, in double precision and on all of the data, and the point is compared
with that reference. What the numbers mean, equation by equation: docs/certificate.md.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import overload

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.text import shown, text_table
from hierax._compile.configuration import in_own_configuration
from hierax._judge.above import above
from hierax._judge.below import Part, below, compare, reference
from hierax._judge.psi import RunState, of_psi
from hierax._judge.setting import Setting
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.lower_level import INFEASIBLE, MEANING, SOLVED, UNBOUNDED, LowerSolution
from hierax._problem.problem import Multipliers, Problem

SURE = 2.0  # standard errors by which a sampled number must miss a tolerance to be called wrong without a doubt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Feasibility:
    """How much the point violates.

    Attributes:
        max_violation: largest [h_i]_+, |e_j|, upper constraint, or distance of an entry to X or Y.
        worst: which of them.
    """

    max_violation: float
    worst: str


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Below:
    """How far y is from y*(x).

    Attributes:
        reference: y*(x), its multipliers and value, from the reference solver (NumPy, float64).
        lower_gap: G(x, y) - v(x); negative where y is infeasible.
        lower_gap_se: its standard error.
        distance: ||y - y*(x)||.
        distance_se: standard error of y*(x).
        kkt_residual: of y with the given multipliers (else the reference's), relative; 1e-8 is solved.
        kkt_residual_se: what sampling alone puts into it.
    """

    reference: LowerSolution
    lower_gap: float | None = None
    lower_gap_se: float | None = None
    distance: float | None = None
    distance_se: float | None = None
    kkt_residual: float | None = None
    kkt_residual_se: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Above:
    """How far x is from stationary.

    Attributes:
        hypergradient: gradient of F(x, y*(x)), a tree like x; with upper constraints, of their Lagrangian.
        hypergradient_norm: norm of its projection: zero where x is stationary over X.
        hypergradient_norm_se: its standard error.
        hypergradient_scale: size of the two terms that the hyper-gradient is the sum of.
        complementarity: largest |nu_i H_i| of the upper constraints at (x, y*(x)).
    """

    hypergradient: PyTree = None
    hypergradient_norm: float | None = None
    hypergradient_norm_se: float | None = None
    hypergradient_scale: float = 0.0
    complementarity: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Psi:
    """How far the end of a run is from a stationary point of SALVF's penalty function.

    Attributes:
        stationarity: of Psi at the run's last (z, nu).
        stationarity_se: its standard error.
    """

    stationarity: float | None = None
    stationarity_se: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Certificate(_Feasibility, _Below, _Above, _Psi):
    """How far a point (x, y) is from solving a bilevel problem. `print` gives a table, `ok(tol)` a verdict.

    A number is None where it cannot be had; `notes` says why, under its name. `*_se` are standard errors, None where
    the expectations are known exactly. Units are the user's, unless it says relative.

    Feasibility: `max_violation` and `worst`. Below: `reference`, `lower_gap`, `distance`, `kkt_residual`. Above:
    `hypergradient`, its projected `hypergradient_norm`, its `hypergradient_scale`, and `complementarity` of the upper
    constraints. Of a run of SALVF: `stationarity`.

    Attributes:
        x: the point.
        y: the point.
        data: what stood for the expectations.
        notes: by the name of a number, why it is None or what to know about it.
    """

    x: PyTree
    y: PyTree
    data: str
    notes: dict[str, str] = dataclasses.field(default_factory=dict)

    def ok(
        self,
        tol: float = 1e-3,
        *,
        violation: float | None = None,
        gap: float | None = None,
        stationarity: float | None = None,
    ) -> bool:
        """Whether the point is feasible, optimal below and stationary above, up to tolerances.

        The reference solver solved; max_violation <= violation; |lower_gap| <= gap (1 + |v(x)|);
        hypergradient_norm <= stationarity (1 + hypergradient_scale). A tolerance that is None is `tol`; `math.inf`
        leaves its test out.
        """
        return not self.reasons(tol, violation=violation, gap=gap, stationarity=stationarity)

    def reasons(
        self,
        tol: float = 1e-3,
        *,
        violation: float | None = None,
        gap: float | None = None,
        stationarity: float | None = None,
    ) -> list[str]:
        """Why `ok` says no: one sentence per test that fails."""
        return [text for text, _ in self._failures(tol, violation=violation, gap=gap, stationarity=stationarity)]

    def refuted(self, tol: float = 1e-3) -> bool:
        """Whether a test fails beyond doubt: by more than twice its standard error, where it has one."""
        return any(sure for _, sure in self._failures(tol))

    def _failures(self, tol: float, **allowed: float | None) -> list[tuple[str, bool]]:
        """The tests that fail, in words, and whether more samples could not change that."""
        names = ("violation", "gap", "stationarity")
        limits = {name: tol if (limit := allowed.get(name)) is None else limit for name in names}
        found: list[tuple[str, bool]] = []
        if not self.max_violation <= limits["violation"]:
            found.append((f"infeasible: {self.worst} is violated by {self.max_violation:.3g}.", True))
        status = int(self.reference.status)
        if status != SOLVED:
            found.append((f"the lower level has no reference solution at this x: {MEANING[status]}.", True))
        most = limits["gap"] * (1 + abs(float(self.reference.value)))
        if status == SOLVED and self.lower_gap is not None and not abs(self.lower_gap) <= most:
            what = "not optimal below" if self.lower_gap > 0 else "better than optimal below, so infeasible"
            text = f"{what}: |G(x, y) - v(x)| = {abs(self.lower_gap):.3g} exceeds {most:.3g}"
            found.append(self._weighed(text, abs(self.lower_gap), self.lower_gap_se, most))
        if status == SOLVED and limits["stationarity"] < math.inf:
            found.extend(self._above(limits["stationarity"]))
        return found

    def _above(self, tol: float) -> list[tuple[str, bool]]:
        if self.hypergradient_norm is None:
            return [(f"stationarity above is not known: {self.notes['hypergradient_norm']}.", True)]
        found, most = [], tol * (1 + self.hypergradient_scale)
        if not self.hypergradient_norm <= most:
            text = (
                f"not stationary above: the hyper-gradient's projected norm {self.hypergradient_norm:.3g} exceeds "
                f"{most:.3g}"
            )
            found.append(self._weighed(text, self.hypergradient_norm, self.hypergradient_norm_se, most))
        if not self.complementarity <= most:
            text = f"an upper constraint with a multiplier is not active, nu H = {self.complementarity:.3g}"
            found.append((f"not stationary above: {text}.", True))
        return found

    @staticmethod
    def _weighed(text: str, value: float, error: float | None, most: float) -> tuple[str, bool]:
        if error is None or value - SURE * error > most:
            return f"{text}.", True
        return f"{text} by less than {SURE:g} standard errors ({error:.2g}); more samples would tell.", False

    def __repr__(self) -> str:
        names = ("max_violation", "lower_gap", "distance", "kkt_residual", "hypergradient_norm", "stationarity")
        numbers = [f"{name}={_number(getattr(self, name))}" for name in names]
        return f"Certificate({', '.join(numbers)}, ok(1e-3)={self.ok()})"

    def __str__(self) -> str:
        value = float(self.reference.value)
        meaning = {
            "max_violation": ("largest violation", f"of {self.worst}" if self.max_violation > 0 else "feasible"),
            "lower_gap": ("lower gap G(x, y) - v(x)", f"v(x) = {value:.6g}"),
            "distance": ("distance ||y - y*(x)||", f"y*(x) = {shown(self.reference.y)}"),
            "kkt_residual": ("KKT residual of y", "relative"),
            "hypergradient_norm": ("hyper-gradient, projected", "gradient of F(x, y*(x)) over X"),
            "stationarity": ("stationarity of Psi", "the penalty function of the run"),
        }
        rows = []
        for name, (title, text) in meaning.items():
            number, error = getattr(self, name), getattr(self, f"{name}_se", None)
            shown_number = _number(number) + (f" +- {error:.1g}" if error is not None else "")
            rows.append((title, shown_number, self.notes.get(name, text if number is not None else "")))
        rows.append(("reference solver", "", f"{MEANING[int(self.reference.status)]}; {self.data}"))
        reasons = self.reasons()
        rows.append(("verdict at tol 1e-3", "ok" if not reasons else "no", reasons[0] if reasons else ""))
        rows.extend(("", "", reason) for reason in reasons[1:])
        return text_table(f"Certificate at x = {shown(self.x)}, y = {shown(self.y)}", rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


@in_own_configuration
def certify(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    *,
    multipliers: Multipliers | None = None,
    lower: AbstractLowerSolver | None = None,
    state: RunState | None = None,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
) -> Certificate:
    """Judge a point: feasibility, optimality below, stationarity above.

    The lower level is solved at x by a reference solver in float64, whatever the precision of x, y and of JAX; the
    expectations are over all rows of `Finite` data, the `exact` batch of a `Sampler`, or fresh samples, and then with
    standard errors.

    Args:
        problem: the problem.
        x: upper variable.
        y: lower variable.
        multipliers: `sol.multipliers`: those of the lower level enter `kkt_residual` (None: the reference's), those of
            upper constraints the hyper-gradient.
        lower: the reference solver; None: `Exact()`.
        state: `sol.state` of a run of SALVF, for the stationarity of its penalty function.
        samples: how many fresh samples stand for an expectation that is not known.
        seed: of the samples.

    Returns:
        A `Certificate`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> hx.certify(problem, 1 / 1.1, 1 / 1.1).ok(1e-6)
        True
        >>> hx.certify(problem, 0.5, 0.5).reasons()
        ["not stationary above: the hyper-gradient's projected norm 0.9 exceeds 0.0021."]
    """
    setting = Setting.of(problem, x, y, samples, seed)
    return certificate_in(setting, lower or Exact(), multipliers, state, seed)


def certificate_in(
    setting: Setting,
    lower: AbstractLowerSolver,
    multipliers: Multipliers | None = None,
    state: RunState | None = None,
    seed: int = 0,
) -> Certificate:
    """The certificate of the setting's point: `certify` for whoever judges many points of one problem."""
    given = None if multipliers is None else _fitting(setting, multipliers)
    found, notes = reference(setting, lower, seed)
    compared = compare(setting, found, given)
    parts = [of_psi(setting, lower, state)]
    if int(found.status) in (INFEASIBLE, UNBOUNDED):
        missing = ("lower_gap", "distance", "kkt_residual", "hypergradient_norm")
        parts.append(Part({}, dict.fromkeys(missing, "there is no reference solution")))
    else:
        parts += [below(setting, found, compared), above(setting, lower, found, compared, given)]
    numbers: dict[str, PyTree] = {}
    for part in parts:
        numbers |= part.numbers
        notes |= part.notes
    x, y = setting.whole(setting.x, setting.y)
    max_violation, worst = compared.worst()
    return Certificate(
        x=x,
        y=y,
        reference=found._replace(y=setting.whole(setting.x, found.y)[1]),
        max_violation=max_violation,
        worst=worst,
        data=f"{setting.zeta.text}; {setting.xi.text}",
        notes=notes,
        **numbers,
    )


def _fitting(setting: Setting, multipliers: Multipliers) -> Multipliers:
    """The multipliers in double precision, refused where they do not belong to the problem's constraints."""
    names = ("constraints", "equalities", "upper_constraints")
    for name, given in zip(names, multipliers, strict=True):
        wanted = jax.tree.map(lambda row: row.shape, setting.shapes(name))
        shapes = jax.tree.map(np.shape, given)
        if shapes != wanted:
            raise InputError(f"multipliers of {name}: shapes {shapes} do not fit the function's output, {wanted}.")
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), Multipliers(*multipliers))


class Certificates(Sequence[Certificate]):
    """The certificates of the starts of `solve_many`, each computed when it is asked for; they share their programs."""

    def __init__(self, count: int, certificate: Callable[[int], Certificate]) -> None:
        self._known: list[Certificate | None] = [None] * count
        self._certificate = certificate

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, i: int) -> Certificate: ...

    @overload
    def __getitem__(self, i: slice) -> list[Certificate]: ...

    def __getitem__(self, i: int | slice) -> Certificate | list[Certificate]:
        """That of start i, or a list of them for a slice."""
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        at = range(len(self))[i]
        known = self._known[at]
        if known is None:
            known = self._known[at] = self._certificate(at)
        return known

    def __repr__(self) -> str:
        return f"<certificates of {len(self)} starts, computed when asked for>"
