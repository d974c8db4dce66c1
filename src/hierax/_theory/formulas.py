r"""The settings that the paper's theorems ask for, as formulas of the problem's constants; numbers only.

Two columns. *Printed*: Theorem 3.2 (c1, c2, delta), Lemma A.7 (B), Corollary C.1 (L_Psi), the remarks (r, q, s, K), as
they stand. *Corrected*: what their proofs support, derived in docs/methods/corrections.md, items 16, 18, 34 and 36:

    c1*   = 3 M^2 / (2 mu_G eps)         the proof needs M = sup |grad_y F|, squared, and a third of eps
    c2    = 3/2 c1^2 B^2 / eps + 2       with the c1 that is used, not with c1*
    B     = M_G / sigma_0                |lam*| <= |pinv(C)| |grad_y G|; each side of Z is as long
    L_Psi = L_F + c1 (L_G + L_E) + c2 (M_J^2 + M_+ L_H)
    L_E   = N + N^2/mu_G                 of grad E, E(x, z) = min_w G + A_g'(x, w, z), 1/g' = 1/gamma1 + 1/gamma2
    beta  = max(eps, c1 (L_E + N')/L_Psi, (Lambda/L_Psi)^2), at most 1: constant, of SALVF-VR
    alpha = 1/(4 L_Psi), K = max(c, 1/beta)/eps, r = beta/eps, q = beta c1^2/eps, s = c1^2/eps: SALVF-VR

N bounds the Hessian of G + A_g' in (x, w, z), N' the averaged curvature of g and A at frozen (w, lam), which noise also
sees: Lambda = L_f + c1 N'.
"""

import math
from typing import NamedTuple

Pair = tuple[float, float]  # (a, b): a bound a + b M_lambda


class Constants(NamedTuple):
    """The constants of the paper's assumptions, as far as sampling has seen them (suprema from below).

    Attributes:
        lipschitz: L, the Lipschitz constant of F(x, .): sup |grad_y F|.
        upper: L_F, of grad F.
        lower: L_G, of grad G.
        rows: L_H, of the gradient of a row H_i.
        convexity: mu_G, the least curvature of G in y.
        gradient: M_G1, sup |grad G|.
        value: M_H0, sup |H_i|.
        row: M_H1, sup |grad H_i|.
        jacobian: M_J, sup of the norm of the Jacobian of H.
        violation: M_+, sup of sum_i [H_i]_+.
        sigma_0: smallest singular value of the active rows' gradients in y at y*(x); inf: no row was active.
        upper_noise: sigma_f^2, variance of one sample's grad f.
        lower_noise: sigma_g^2, variance of one sample's grad g.
        upper_mean: L_f, the averaged Lipschitz constant of grad f(.; zeta).
        lower_mean: L_g, of grad g(.; xi).
        p: number of rows of H.
    """

    lipschitz: float
    upper: float
    lower: float
    rows: float
    convexity: float
    gradient: float
    value: float
    row: float
    jacobian: float
    violation: float
    sigma_0: float
    upper_noise: float
    lower_noise: float
    upper_mean: float
    lower_mean: float
    p: int


class Gammas(NamedTuple):
    """gamma1 and gamma2, which the theorems take as given."""

    gamma1: float
    gamma2: float


class Asked(NamedTuple):
    """What the theorems ask for; those of "order" come with the constant 1.

    Attributes:
        c1: weight of the gap.
        c2: weight of the constraints.
        bound: B, a bound on |lam*|.
        side: of the box Z, B/sqrt(p) as printed.
        delta: error that the inner loop may have in ell.
        smoothness: L_Psi.
        alpha: largest step of SALVF, 1/(2 L_Psi).
        alpha_vr: largest (first) step of SALVF-VR.
        beta: of SALVF-VR, the same at every step; nan: the printed beta_{k+1} = beta alpha_k^2.
        s: inner steps, order.
        r: samples of zeta per step, order.
        r_vr: those of SALVF-VR, order.
        q: samples of xi~ per step, order.
        q_vr: those of SALVF-VR, order.
        steps: K of SALVF, order.
        steps_vr: K of SALVF-VR, order.
        c1_exact: c1 of Theorem 3.1, the deterministic case.
        c2_exact: its c2.
        moment: M_L1 of E||grad L(x, y, z; xi)||^2 <= M_L1 + M_L2 ||z||^2 (Lemma A.2).
        moment_z: M_L2.
        lam_bound: M_lambda, of ||lam^j||^2 in the inner loop with rho = 1/gamma2, for any z in Z (Lemma B.2).
        phi_w: phi_1, of E||w^s - w*||^2 <= phi_1 (1 + log s)/s with eta = 1/mu_G and that rho (Theorem B.1).
        phi_lam: phi_2, of E||lam^s - lam*||^2.
    """

    c1: float
    c2: float
    bound: float
    side: float
    delta: float
    smoothness: float
    alpha: float
    alpha_vr: float
    beta: float
    s: float
    r: float
    r_vr: float
    q: float
    q_vr: float
    steps: float
    steps_vr: float
    c1_exact: float = math.nan
    c2_exact: float = math.nan
    moment: float = math.nan
    moment_z: float = math.nan
    lam_bound: float = math.nan
    phi_w: float = math.nan
    phi_lam: float = math.nan

    def samples(self, reduced: bool) -> tuple[float, float]:
        """Samples of zeta and of xi in all: K r and K (q + s)."""
        steps, r, q = (self.steps_vr, self.r_vr, self.q_vr) if reduced else (self.steps, self.r, self.q)
        return steps * r, steps * (q + self.s)


def printed(at: Constants, gammas: Gammas, eps: float) -> Asked:
    """The column as printed; sigma_0^-2 in B as in the appendix (the main text prints sigma_0^2)."""
    first = 2 * at.lipschitz * _over(at.convexity) / (3 * eps)
    c1 = first + 2
    bound = at.p**2 * _over(at.sigma_0) ** 2 * at.row * (at.gradient + at.p * at.row)
    c2 = _weight(first, bound, eps)
    root = math.sqrt(max(1, at.p))
    gap = 3 * at.gradient + root * at.row * (bound + root * at.value * _over(gammas.gamma2))
    gap += at.p * at.value * at.row + root * at.value
    smoothness = at.upper + c1 * gap + _times(c2 / 2, at.rows * at.value)
    reduced = at.upper_mean + _ratio(eps, c1)  # L_f + c1/s at s = c1^2/eps
    asked = _asked(c1, c2, bound, _ratio(bound, root), smoothness, eps)
    first_moment = at.gradient**2 + at.lower_noise + at.value * _over(gammas.gamma1) ** 2
    moments = (2 + at.p) * first_moment, (2 + at.p) * (at.value * at.row) ** 2
    slope = 4 * gammas.gamma2 * bound**2 + 4 * at.value**2, 2 * (gammas.gamma1 + gammas.gamma2)
    first = at.lipschitz * _over(at.convexity) / (2 * eps)
    return asked._replace(
        alpha_vr=_over(8 * math.hypot(reduced, smoothness)),
        c1_exact=first + 2,
        c2_exact=(first * bound) ** 2 / eps + 2,
        **_inner_loop(at, gammas, bound**2, moments, slope),
    )


def corrected(at: Constants, gammas: Gammas, eps: float) -> Asked:
    """The column that the proofs support."""
    c1 = 3 * at.lipschitz**2 * _over(at.convexity) / (2 * eps) + 2
    bound = at.gradient * _over(at.sigma_0)
    c2 = _weight(c1, bound, eps)
    joint = gammas.gamma2 if math.isinf(gammas.gamma1) else _ratio(gammas.gamma1 * gammas.gamma2, sum(gammas))
    pushed = at.p * bound + at.violation * _over(joint)  # sum of the multipliers mu that A_g' has at z in Z
    joined = at.lower + pushed * at.rows + at.jacobian**2 * _over(joint)
    most = _largest(joined, at.jacobian, joint)
    outer = _times(c2, at.jacobian**2 + at.violation * at.rows)
    smoothness = at.upper + c1 * (at.lower + most + most**2 * _over(at.convexity)) + outer
    frozen = 2 * at.lower_mean + pushed * at.rows + at.jacobian**2 * _over(gammas.gamma1) + gammas.gamma2
    asked = _asked(c1, c2, bound, bound, smoothness, eps)
    drift, noise = c1 * (most + most**2 * _over(at.convexity) + frozen), at.upper_mean + c1 * frozen
    beta = min(1.0, max(eps, _ratio(drift, smoothness), _ratio(noise, smoothness) ** 2))
    curved = (at.p * _over(gammas.gamma1) * at.value * at.row) ** 2
    moments = (2 + at.p) * (at.gradient**2 + at.lower_noise + curved), (2 + at.p) * at.row**2
    norm_z = at.p * bound**2
    slope = 2 * gammas.gamma2**2 * norm_z + 2 * at.p * at.value**2, (gammas.gamma1 + gammas.gamma2) ** 2
    first = at.lipschitz**2 * _over(at.convexity) / eps
    return asked._replace(
        c1_exact=first,
        c2_exact=(first * bound) ** 2 / eps if bound else 2.0,
        **_inner_loop(at, gammas, norm_z, moments, slope),
        alpha_vr=_over(4 * smoothness),
        beta=beta,
        r_vr=max(1.0, beta * asked.r),
        q_vr=max(1.0, beta * asked.q),
        steps_vr=max(asked.steps, 1 / (beta * eps)),
    )


def _inner_loop(at: Constants, gammas: Gammas, norm_z: float, moments: Pair, slope: Pair) -> dict[str, float]:
    """Theorem B.1 with eta = 1/mu_G, rho = 1/gamma2 and the largest ||z||^2 of Z, as fields of `Asked`.

    The squared gradients in w and in lam have the means `moments` and `slope` at most: (a, b) for a + b M_lambda.
    """
    eta, rho = _over(at.convexity), _over(gammas.gamma2)
    lam = 2 * norm_z + 2 * at.p * (rho * at.value) ** 2
    primal, dual = (a + _times(b, lam) for a, b in (moments, slope))
    phi = eta * (eta * primal + rho * dual)
    names = ("moment", "moment_z", "lam_bound", "phi_w", "phi_lam")
    return dict(zip(names, (*moments, lam, phi, _ratio(rho * phi, eta)), strict=True))


def _asked(c1: float, c2: float, bound: float, side: float, smoothness: float, eps: float) -> Asked:
    """What follows from the weights and the smoothness alone; SALVF-VR as printed."""
    most = max(c1, c2)
    return Asked(
        c1=c1,
        c2=c2,
        bound=bound,
        side=side,
        delta=_ratio(eps, 6 * c1),
        smoothness=smoothness,
        alpha=_over(2 * smoothness),
        alpha_vr=math.nan,
        beta=math.nan,
        s=c1**2 / eps,
        r=1 / eps,
        r_vr=1.0,
        q=c1**2 / eps,
        q_vr=c1**2 / eps,
        steps=most / eps,
        steps_vr=(most / eps) ** 1.5,
    )


def _weight(c1: float, bound: float, eps: float) -> float:
    """c2; without multipliers no violation has to be paid for, whatever c1 is."""
    return 1.5 * (c1 * bound) ** 2 / eps + 2 if bound else 2.0


def _largest(a: float, b: float, c: float) -> float:
    """The largest eigenvalue of [[a, b], [b, c]]."""
    return (a + c) / 2 + math.hypot((a - c) / 2, b)


def _over(value: float) -> float:
    """One over a number >= 0."""
    return math.inf if value <= 0 else 1 / value


def _times(weight: float, size: float) -> float:
    """A product in which what is not there costs nothing, whatever its weight."""
    return weight * size if size else 0.0


def _ratio(a: float, b: float) -> float:
    return a * _over(b) if a else 0.0
