r"""IG-AL (Tsaknakis, Khanduri, Hong, ICASSP 2022): implicit gradients from an augmented Lagrangian lower solve.

    (y*, mu*)(x) by the augmented Lagrangian method;  A = the rows whose multipliers are positive
    d = grad_x F + (dy*/dx)' grad_y F,     [ G_yy  J_A' ] [ dy  ]     [ G_yx  ]
                                           [ J_A   0    ] [ dmu ] = - [ J_x,A ] dx

for linear constraints of the lower level. y*(x) is differentiable where complementarity is strict, which the method
assumes along its way; GAM (hulls at kinks) and SIGD (a random perturbation) do without.
"""

from typing import ClassVar

from hierax._lower.base import AbstractLowerSolver
from hierax._methods.augmented import ALM
from hierax._methods.implicit_gradient import LinearRows
from hierax._methods.smoothed import eta_advice
from hierax._run.method import Advice


class IGAL(LinearRows):
    r"""Implicit gradients with the multipliers and active rows of an augmented Lagrangian method.

        y  <- argmin over y in Y of G(x, y) + sum_i ([mu_i + rho r_i(x, y)]_+^2 - mu_i^2)/(2 rho),  mu <- [mu + rho r]_+
        d = grad_x F + (dy*/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with dy*/dx from the KKT system of the rows r whose multipliers mu are positive, as in `GAM`.

    Args:
        lower: solver of the lower level: `ALM()`, the method of the paper (first-order), or `Exact()`, which is an
            augmented Lagrangian method too, with a proximal term and Newton steps.
        eta, batch_zeta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.IGAL(), max_steps=30)
        >>> round(float(sol.x), 2)
        0.91

    References:
        Tsaknakis, Khanduri, Hong: An implicit gradient-type method for linearly constrained bilevel problems,
            ICASSP 2022.
        docs/methods/ig-al.md (cost and when to use it)
    """

    lower: AbstractLowerSolver = ALM()

    changes: ClassVar[bool] = False
    advice: ClassVar[Advice] = eta_advice("IGAL", "as near as the lower solver's tolerance brings it")
