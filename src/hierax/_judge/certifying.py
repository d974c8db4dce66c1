"""`certify`: how far a point can be trusted, by a measure that no method controls.

The lower level is solved anew at the given x, in double precision and on all of the data, and the point is compared
with that reference. What the numbers mean, equation by equation: docs/guides/certificate.md.
"""

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.interrupt import interruptible
from hierax._base.text import numbers_of
from hierax._base.threads import one_blas_thread
from hierax._compile.configuration import in_own_configuration, refuse_to_be_traced
from hierax._engine.by_hand import HandMade
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.above import above, gap_error
from hierax._judge.certificate import Certificate
from hierax._judge.measuring import Fields, Inspection, Stop
from hierax._judge.psi import RunState, of_psi
from hierax._judge.retraining import Retraining, is_trained, trained_fields
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED, row_names
from hierax._problem.problem import Multipliers, Problem


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
    lengths: tuple[PyTree, PyTree] | None = None,
) -> Certificate:
    """Judge a point: feasibility, optimality below, stationarity above.

        lower gap        G(x, y) - v(x),     v(x) = min {G(x, w) : w in Y, h(x, w) <= 0, e(x, w) = 0}
        distance         ||y - y*(x)||,      y*(x) where v(x) is attained
        hyper-gradient   grad phi = grad_x F + (dy*/dx)' grad_y F,     phi(x) = F(x, y*(x))

    The lower level is solved at x by a reference solver in float64, whatever the precision of x, y and of JAX; the
    expectations are over all rows of `Finite` data, the `exact` batch of a `Sampler`, or fresh samples, and then with
    standard errors.

    Args:
        problem: the problem.
        x: upper variable.
        y: lower variable.
        multipliers: `sol.multipliers`: those of the lower level enter `kkt_residual` (None: the reference's). Those of
            upper constraints are always fitted.
        lower: the reference solver; None: `Exact` from several starts.
        state: `sol.state` of a run of SALVF, for the stationarity of its penalty function.
        samples: how many fresh samples stand for an expectation that is not known.
        seed: of the samples, and of the directions of the descent test.
        lengths: of x and of y, trees like them, or numbers: what counts as a large move of an entry that has no bounds
            (None: its size, or what constraints and derivatives say).

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
        >>> hx.certify(problem, 0.5, 0.5).verdict()
        'no'
        >>> round(float(hx.certify(problem, 0.5, 0.5).hypergradient), 6)  # phi = (x - 1)^2 + 0.1 x^2
        -0.9

    References:
        docs/guides/certificate.md (every number with its formula); docs/start/first-certificate.md
    """
    refuse_to_be_traced("certify", (x, y))
    if lower is not None and not isinstance(lower, AbstractLowerSolver):
        raise InputError(f"lower={lower!r}: needs a lower solver, for example hx.Exact() or hx.Conic(), or None.")
    if multipliers is not None and not isinstance(multipliers, Multipliers):
        raise InputError(f"multipliers={multipliers!r}: needs hx.Multipliers, as in sol.multipliers, or None.")
    if state is not None and not isinstance(state, RunState):
        raise InputError(f"state={state!r}: needs the state of a run, sol.state, or None.")
    setting = Float64Problem.of(problem, x, y, samples, seed)
    for name, tree in (("x", setting.x), ("y", setting.y)):
        if not np.isfinite(numbers_of(tree)).all():
            raise InputError(f"{name}: has entries that are not finite; there is nothing to judge at such a point.")
    with interruptible() as interrupt:

        def stop() -> bool:
            return interrupt.asked

        why = is_trained(setting, seed) if lower is None else None
        training = None if why is None else Retraining.before(setting, seed, stop, why)
        return certificate_in(setting, lower, multipliers, state, seed, stop, lengths, training)


def certificate_in(
    setting: Float64Problem,
    lower: AbstractLowerSolver | None = None,
    multipliers: Multipliers | None = None,
    state: RunState | None = None,
    seed: int = 0,
    stop: Stop = lambda: False,
    lengths: tuple[PyTree, PyTree] | None = None,
    training: Retraining | None = None,
    hand: HandMade | None = None,
) -> Certificate:
    """The certificate of the setting's point: `certify` for whoever judges many points of one problem.

    Where `stop` says so, tests that are left are not made, and the verdict says which. `training` is how the lower
    level is trained where it is not solved; `hand` is the same problem by hand.
    """
    given = None if multipliers is None else _fitting(setting, multipliers)
    most = None if lengths is None else _fitting_lengths(setting, lengths)
    if training is not None:
        parts = [trained_fields(training, setting, given, seed)]
    else:
        with one_blas_thread:
            parts = [
                of_psi(setting, lower or Exact(), state),
                *_inspected(Inspection(setting, seed, stop, most, hand), lower, given),
            ]
    numbers = {name: number for part in parts for name, number in part.numbers.items()}
    notes = {name: note for part in parts for name, note in part.notes.items()}
    x, y = setting.whole(setting.x, setting.y)
    found = numbers.pop("reference")
    return Certificate(
        x=x,
        y=y,
        reference=found._replace(y=setting.whole(setting.x, found.y)[1]),
        data=f"{setting.zeta.text}; {setting.xi.text}",
        samples=setting.fresh_samples,
        unvarying=setting.unvarying(),
        notes=notes,
        **numbers,
    )


def _inspected(look: Inspection, lower: AbstractLowerSolver | None, given: Multipliers | None) -> list[Fields]:
    """Everything about a point whose lower level is solved."""
    setting, at, bent = look.setting, look.reference(lower), look.vectors.bent
    found = look.lower_solution(at.best, at.status)
    parts = [Fields({"reference": found}, {}), look.feasibility(row_names(found)), look.units()]
    if bent is not None or at.branches.different_values() > 1:
        why = bent or "not convex: it has several local solutions"
        solves = len(at.branches.status)
        parts.append(Fields({"not_convex": f"{why}: v(x) is the best of {solves} solves"}, {}))
    if at.branches.best() is None or at.status in (INFEASIBLE, UNBOUNDED):
        missing = ("lower_gap", "distance", "kkt_residual", "hypergradient_norm")
        return [*parts, Fields({}, dict.fromkeys(missing, "there is no reference solution"))]
    parts.append(look.below(at, float(found.value), given))
    if at.status == SOLVED and look.programs.large and (setting.sampled or bent is not None):
        why = f"not computed: the KKT matrix of the lower level exceeds order {MAX_ORDER}"
        numbers = {"lower_gap_se": gap_error(setting, found)} if setting.xi.fresh else {}
        parts.append(Fields(numbers, dict.fromkeys(("hypergradient_norm", "gains", "distance"), why)))
    elif at.status == SOLVED:
        parts.append(above(look, at))
    return parts


def _fitting(setting: Float64Problem, multipliers: Multipliers) -> Multipliers:
    """The multipliers in double precision, refused where they do not belong to the problem's constraints."""
    names = ("constraints", "equalities", "upper_constraints")
    for name, given in zip(names, multipliers, strict=True):
        wanted = jax.tree.map(lambda row: row.shape, setting.shapes(name))
        shapes = jax.tree.map(np.shape, given)
        if shapes != wanted:
            raise InputError(f"multipliers of {name}: shapes {shapes} do not fit the function's output, {wanted}.")
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), Multipliers(*multipliers))


def _fitting_lengths(setting: Float64Problem, lengths: tuple[PyTree, PyTree]) -> tuple[np.ndarray, np.ndarray]:
    """Given lengths as vectors, refused where they are not positive or do not fit x and y."""
    if not isinstance(lengths, tuple) or len(lengths) != 2:
        raise InputError(f"lengths={lengths!r}: needs a pair, lengths of x and lengths of y.")

    def vector(name: str, tree: PyTree, like: PyTree) -> np.ndarray:
        whole = jax.tree.map(lambda leaf: tree, like) if isinstance(tree, int | float | np.generic) else tree
        try:
            parts = jax.tree.map(lambda leaf, part: np.broadcast_to(np.asarray(part, float), leaf.shape), like, whole)
        except (TypeError, ValueError) as error:
            raise InputError(f"lengths of {name}: needs a number or a tree like {name}, got {tree!r}.") from error
        found = numbers_of(parts)
        if not np.all(found > 0):
            raise InputError(f"lengths of {name}: must be positive, got {tree!r}.")
        return found

    return vector("x", lengths[0], setting.x), vector("y", lengths[1], setting.y)
