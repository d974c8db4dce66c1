"""`hx.theory`: what the paper's theorems ask for on a problem, beside SALVF's defaults (docs/pictures/constants.md)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
from jaxtyping import PyTree

from hierax._base.constants import FINE, MANY
from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN, check_setting
from hierax._base.text import text_table
from hierax._engine.float64_problem import Float64Problem
from hierax._lower.salm import SALM
from hierax._methods.common import Decay, Steps
from hierax._methods.salvf import SALVF
from hierax._methods.salvf_settings import GAMMA_FACTOR, Storm
from hierax._problem.problem import CONSTRAINTS, Problem
from hierax._run.call import DEFAULT_STEPS, Call
from hierax._run.prepare import prepare
from hierax._run.stepping import started
from hierax._theory.estimates import Looks, Seen, constants_at, points_around, refuse_files
from hierax._theory.formulas import Asked, Constants, Gammas, corrected, printed

Column = Literal["printed", "corrected"]


class Assumption(NamedTuple):
    """An assumption of the theorems: its name in the paper, whether it was seen to hold, and what was seen."""

    name: str
    holds: bool
    seen: str


@dataclasses.dataclass(frozen=True, repr=False)
class Theory:
    """What the theorems ask for; `print` gives three tables: constants, settings, assumptions.

    Attributes:
        eps: the accuracy.
        constants: those of the problem, suprema over the points that were looked at.
        gammas: gamma1 and gamma2, which the theorems take as given: by the rule of SALVF's defaults.
        printed: settings by the formulas as printed.
        corrected: settings as the proofs support them.
        defaults: SALVF with what it would choose at the start.
        assumptions: of the theorems, each with what was seen of it.
        multiplier: the largest |lam*(x)| that was seen, which B bounds.
        sampled: whether there is a zeta, and a xi; without one its samples count nothing.
        points: how many points were looked at.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ...     x_set=hx.Box(0.0, 3.0),
        ...     y_set=hx.Box(0.0, 3.0),
        ... )
        >>> hx.theory(problem, 0.5, 0.5, eps=0.1, points=32).points
        32
    """

    eps: float
    constants: Constants
    gammas: Gammas
    printed: Asked
    corrected: Asked
    defaults: SALVF
    assumptions: tuple[Assumption, ...]
    multiplier: float
    sampled: tuple[bool, bool]
    points: int

    def method(self, column: Column = "corrected", reduced: bool = False, **settings: Any) -> SALVF:
        """SALVF (with `reduced`: SALVF-VR) as the theorem has it: Algorithms 1 to 3 with its numbers.

        `settings` replace single ones: the theorem's s, r and q, of order eps^-1 to eps^-3, are often beyond reach.

        Raises:
            InputError: a number is not finite (an assumption does not hold), or a batch would be too large.
        """
        asked: Asked = getattr(self, column)
        for name in ("c1", "c2", "alpha", "alpha_vr"):
            if not 0 < getattr(asked, name) < math.inf:
                raise InputError(f"Theory.method: {name} = {getattr(asked, name):g}; an assumption does not hold.")
        q, r = (asked.q_vr, asked.r_vr) if reduced else (asked.q, asked.r)
        sizes = {"inner": asked.s, "batch_xi": q, "batch_zeta": r}
        for name, number in sizes.items():
            if name not in settings and FINE * number > 1:  # more than a million per outer step are not asked for
                raise InputError(f"Theory.method: the theorem asks for {number:.3g} samples per step; give {name}=.")
        as_printed = reduced and math.isnan(asked.beta)
        largest = asked.alpha_vr if reduced else asked.alpha
        rule = Decay(largest, a=1.0) if as_printed else 0.99 * largest
        numbers = {
            "c1": asked.c1,
            "c2": asked.c2,
            **self.gammas._asdict(),
            "bound": asked.side * math.sqrt(max(1, self.constants.p)) or None,
            "penalty": "quadratic",
            "start": "given",
            "control_variate": False,
            "steps": Steps(x=rule, y=rule, z=rule),
        }
        if reduced:
            numbers["direction"] = Storm(schedule="paper", z=True) if as_printed else Storm(beta=asked.beta, z=True)
        if "inner" not in settings:
            numbers["inner"] = SALM(steps=math.ceil(asked.s), batch=1, rule="paper", warm=False)
        batches = {name: math.ceil(sizes[name]) for name in ("batch_xi", "batch_zeta") if name not in settings}
        return SALVF(**numbers | batches | settings)

    def __repr__(self) -> str:
        open_ones = [a.name for a in self.assumptions if not a.holds]
        return f"Theory(eps={self.eps:g}, c1={self.corrected.c1:.3g}, c2={self.corrected.c2:.3g}, open={open_ones})"

    def __str__(self) -> str:
        tables = (
            (f"Constants, seen at {self.points} points", self._constant_rows()),
            (f"Settings for eps = {self.eps:g}", self._setting_rows()),
            ("Assumptions", [(a.name, "seen" if a.holds else "NOT SEEN", a.seen) for a in self.assumptions]),
        )
        texts = [text_table(title, rows) for title, rows in tables]
        return "\n\n".join([*texts[:2], self._worth(), texts[2]])

    def _worth(self) -> str:
        """What variance reduction saves."""
        shares = (asked.samples(True)[0] / asked.samples(False)[0] for asked in (self.printed, self.corrected))
        weights = (max(asked.c1, asked.c2) for asked in (self.printed, self.corrected))
        left = self.printed.steps_vr ** (2 / 3) * (1 / self.printed.q_vr + 1 / self.printed.s)
        rules = (
            f"sqrt(c eps), below 1 for c < 1/eps only; the bound keeps a term {_text(left)}",
            "max(eps, beta), beta ~ c1/c: it saves as far as c is above c1",
        )
        rows = [*zip(("printed", "corrected"), map(_text, shares), map(_text, weights), rules, strict=True)]
        return text_table("Samples of zeta of SALVF-VR for one of SALVF", [("", "samples", "c", ""), *rows])

    def _constant_rows(self) -> list[tuple[str, str, str]]:
        at = self.constants
        active = "no row was active" if math.isinf(at.sigma_0) else "of the active rows' gradients in y at y*(x)"
        return [
            ("L", _text(at.lipschitz), "sup |grad_y F|: the Lipschitz constant of F(x, .)"),
            ("L_F, L_G", _text(at.upper, at.lower), "Lipschitz constants of grad F and grad G"),
            ("mu_G", _text(at.convexity), "least curvature of G in y"),
            ("L_H", _text(at.rows), "Lipschitz constant of a row's gradient; 0: the rows are affine"),
            ("M_G1", _text(at.gradient), "sup |grad G|"),
            ("M_H0, M_H1", _text(at.value, at.row), "sup |H_i| and sup |grad H_i|"),
            ("M_J, M_+", _text(at.jacobian, at.violation), "sup |J_H| and sup of sum_i [H_i]_+"),
            ("sigma_0", _text(at.sigma_0), f"smallest singular value {active}"),
            ("sigma_f^2, sigma_g^2", _text(at.upper_noise, at.lower_noise), "variance of one sample's gradient"),
            ("L_f, L_g", _text(at.upper_mean, at.lower_mean), "averaged Lipschitz constants of grad f, grad g"),
            ("p", str(at.p), "rows of the lower level"),
            ("gamma1, gamma2", _text(*self.gammas), "given to the theorems: SALVF's rule"),
        ]

    def _setting_rows(self) -> list[tuple[str, str, str, str, str]]:
        one, two, own = self.printed, self.corrected, self.defaults
        sizes = _sizes(own)
        steps = _text(float(own.steps.x.longest), float(own.steps.y.scale))
        rows = [("", "printed", "corrected", "default", "")]
        for name, symbol, default, meaning in (
            ("c1", "c1", _text(float(own.c1)), "2L/(3 mu_G eps) + 2; 3L^2/(2 mu_G eps) + 2"),
            ("c2", "c2", _text(float(own.c2)), "3/2 c1*^2 B^2/eps + 2; with c1 for c1*"),
            ("c1_exact", "c1, Theorem 3.1", "-", "without noise: L/(2 mu_G eps) + 2; L^2/(mu_G eps)"),
            ("c2_exact", "c2, Theorem 3.1", "-", "c1*^2 B^2/eps + 2; c1^2 B^2/eps"),
            ("bound", "B", "inf", f"bounds |lam*|, of which {_text(self.multiplier)} was seen"),
            ("side", "side of Z", "inf", "B/sqrt(p); M_G1/sigma_0"),
            ("delta", "delta", "-", "eps/(6 c1), error of the inner loop"),
            ("moment", "M_L1", "-", "E||grad L||^2 <= M_L1 + M_L2 ||z||^2, Lemma A.2"),
            ("moment_z", "M_L2", "-", "the same"),
            ("lam_bound", "M_lambda", "-", "bounds ||lam^j||^2 in the inner loop, Lemma B.2"),
            ("phi_w", "phi_1", "-", "E||w^s - w*||^2 <= phi_1 (1 + log s)/s, Theorem B.1"),
            ("phi_lam", "phi_2", "-", "of lam; eta = 1/mu_G, rho = 1/gamma2, all z in Z"),
            ("smoothness", "L_Psi", _text(float(own.smoothness)), "of grad Psi"),
            ("alpha", "alpha", steps, "below 1/(2 L_Psi); default: first steps of x, y"),
            ("alpha_vr", "alpha, VR", steps, "1/(8 sqrt(L_Psi'^2 + L_Psi^2)); 1/(4 L_Psi)"),
            ("beta", "beta, VR", "-", "nan: beta alpha_k^2; else a constant, >= eps"),
            ("s", "s", _text(sizes["s"]), "order, constant 1: c1^2/eps"),
            ("r", "r", _text(sizes["r"]), "order, constant 1: 1/eps"),
            ("r_vr", "r, VR", _text(sizes["r"]), "order, constant 1: 1; beta/eps"),
            ("q", "q", _text(sizes["q"]), "order, constant 1: c1^2/eps"),
            ("q_vr", "q, VR", _text(sizes["q"]), "order, constant 1: c1^2/eps; beta c1^2/eps"),
            ("steps", "K", _text(DEFAULT_STEPS), "order, constant 1: c/eps, c = max(c1, c2)"),
            ("steps_vr", "K, VR", _text(DEFAULT_STEPS), "order, constant 1: (c/eps)^1.5; max(c, 1/beta)/eps"),
        ):
            rows.append((symbol, _text(getattr(one, name)), _text(getattr(two, name)), default, meaning))
        above, inner = self.sampled
        spent = DEFAULT_STEPS * sizes["r"] * above, DEFAULT_STEPS * (sizes["q"] + sizes["s"] * sizes["size"]) * inner
        for reduced, name in ((False, ""), (True, ", VR")):
            for i, source in enumerate(("zeta", "xi")):
                first, second = (_text(asked.samples(reduced)[i]) for asked in (one, two))
                rows.append((f"samples of {source}{name}", first, second, _text(spent[i]), "order, constant 1"))
        return rows


def theory(
    problem: Problem, x0: PyTree, y0: PyTree, eps: float, *, points: int = 256, radius: float = 1.0, seed: int = 0
) -> Theory:
    """What the paper's theorems ask for on a problem, for an accuracy eps, and which assumptions were seen to hold.

        corrected:  c1 = 3 L^2/(2 mu_G eps) + 2,   c2 = 3/2 c1^2 B^2/eps + 2,   B = M_G1/sigma_0,
                    alpha < 1/(2 L_Psi),   L_Psi = L_F + c1 (L_G + N + N^2/mu_G) + c2 (M_J^2 + M_+ L_H)

    with L = sup |grad_y F|, mu_G the least curvature of G in y, M_G1 = sup |grad G|, sigma_0 the smallest singular
    value of the active rows' gradients; the other constants and the printed formulas are in docs/pictures/constants.md.

    The constants are suprema over points that are drawn around (x0, y0) within X and Y, so they are seen from below:
    the theory asks for at least what is shown. Where a set has no bounds, points are drawn from a ball.

    Args:
        problem: with zeta and xi as `Finite` or `Sampler`.
        x0: where to begin.
        y0: likewise.
        eps: the accuracy of Theorem 3.2, in units of F.
        points: at how many points the problem is looked at.
        radius: of that ball, in lengths 1 + |x0|, entry by entry.
        seed: of the points and of the samples.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     lambda x, y, _: (y - 1) ** 2,
        ...     lambda x, y, _: (y - 2 * x) ** 2,
        ...     lambda x, y: y - x,
        ...     x_set=hx.Box(0.0, 3.0),
        ...     y_set=hx.Box(0.0, 3.0),
        ... )
        >>> found = hx.theory(problem, 0.5, 0.5, eps=0.1, points=32)
        >>> round(found.constants.convexity, 3), round(found.corrected.c1, 1)
        (2.0, 122.0)

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization: Theorem 3.2, Lemma A.7, Corollary C.1.
        docs/pictures/constants.md
    """
    check_setting("theory", "eps", eps, POSITIVE_GIVEN)
    check_setting("theory", "points", points, COUNT_GIVEN)
    check_setting("theory", "radius", radius, POSITIVE_GIVEN)
    refuse_files(problem, "theory")
    setting = Float64Problem.of(problem, x0, y0, MANY, seed)
    looks = points_around(setting, points, float(radius), seed)
    constants, seen = constants_at(setting, looks, seed)
    natural = constants.jacobian**2 / constants.lower if constants.jacobian * constants.lower > 0 else 1.0
    gammas = Gammas(GAMMA_FACTOR * natural, GAMMA_FACTOR * natural)
    own = started(prepare(problem, x0, y0), SALVF(), Call(seed=seed)).method
    assert isinstance(own, SALVF)
    return Theory(
        eps=float(eps),
        constants=constants,
        gammas=gammas,
        printed=printed(constants, gammas, float(eps)),
        corrected=corrected(constants, gammas, float(eps)),
        defaults=own,
        assumptions=_assumptions(setting, looks, constants, seen),
        multiplier=seen.multiplier,
        sampled=(problem.zeta is not None, problem.xi is not None),
        points=points,
    )


def _assumptions(setting: Float64Problem, looks: Looks, constants: Constants, seen: Seen) -> tuple[Assumption, ...]:
    """Each assumption of the theorems, with what was seen of it."""
    looked, solved, sigma_0 = seen.looked, seen.looked - seen.unsolved, constants.sigma_0
    unbounded = " and ".join(name for name, ok in (("X", looks.x_bounded), ("Y", looks.y_bounded)) if not ok)
    compact = f"no bound of {unbounded} was found" if unbounded else "both bounded"
    active = "no row was active" if math.isinf(sigma_0) else f"sigma_0 = {sigma_0:.3g}"
    faces = f"on a face at {seen.on_faces} of {solved} x; the proof of B forgets them"
    extra = [n for n, rows in zip(CONSTRAINTS[1:], setting.shapes()[1:], strict=True) if jax.tree.leaves(rows)]
    form = f"the paper has no {' and '.join(extra)}" if extra else "inequalities below"
    finite = math.isfinite(constants.upper_noise + constants.lower_noise)
    return (
        Assumption("G strongly convex in y", seen.convexity > 0, f"least curvature {seen.convexity:.3g}"),
        Assumption("H convex in y", seen.row_convexity >= 0, f"least curvature of a row {seen.row_convexity:.3g}"),
        Assumption("X and Y compact", not unbounded, compact),
        Assumption("Slater", seen.slater == looked, f"a strictly feasible y at {seen.slater} of {looked} x"),
        Assumption("LICQ, sigma_0 > 0", solved == looked and sigma_0 > 0, f"{active}, at {solved} of {looked} x"),
        Assumption("y*(x) inside Y", not seen.on_faces, faces),
        Assumption("bounded variances", finite, "of the samples drawn"),
        Assumption("form of the problem", not extra, form),
    )


def _sizes(method: SALVF) -> dict[str, float]:
    """s, r, q and the samples of an inner step that a filled SALVF has; an exact solver makes no inner steps."""
    inner = method.inner
    steps, batch = (inner.steps, inner.batch) if isinstance(inner, SALM) else (0, 1)
    numbers = {"s": steps, "r": method.batch_zeta, "q": method.batch_xi, "size": batch}
    return {name: float(number) for name, number in numbers.items()}  # type: ignore[arg-type]


def _text(*values: float) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
