r"""IG-AL (Tsaknakis, Khanduri, Hong, ICASSP 2022): implicit gradients from an augmented Lagrangian lower solve.

    (y*, mu*)(x) by the augmented Lagrangian method;  A = the rows whose multipliers are positive
    d = grad_x F + (dy*/dx)' grad_y F,     [ G_yy  J_A' ] [ dy  ]     [ G_yx  ]
                                           [ J_A   0    ] [ dmu ] = - [ J_x,A ] dx

for linear constraints of the lower level. y*(x) is differentiable where complementarity is strict, which the method
assumes along its way; GAM (hulls at kinks) and SIGD (a random perturbation) do without.
"""

import dataclasses
from typing import ClassVar

from jaxtyping import PRNGKeyArray, PyTree

from hierax._base.trees import dtype_of
from hierax._lower.augmented import ALM
from hierax._lower.base import AbstractLowerSolver
from hierax._methods.active_rows import ActiveRows
from hierax._methods.common import as_arrays
from hierax._methods.smoothed import Prepared, Round, Samples
from hierax._problem.problem import Problem


class IGAL(ActiveRows):
    r"""Implicit gradients with the multipliers and active rows of an augmented Lagrangian method.

        y  <- argmin over y in Y of G(x, y) + sum_i ([mu_i + rho r_i(x, y)]_+^2 - mu_i^2)/(2 rho),  mu <- [mu + rho r]_+
        d = grad_x F + (dy*/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with dy*/dx from the KKT system of the rows r whose multipliers mu are positive, as in `GAM`.

    Args:
        lower: solver of the lower level: `ALM()`, the method of the paper (first-order), or `Exact()`, which is an
            augmented Lagrangian method too, with a proximal term and Newton steps.
        eta: x-step: a number, a schedule or an optax transformation. None: Armijo's rule where f is exact, a decaying
            step 1/L where it is sampled.
        batch_zeta: samples of zeta per step.
        batch_xi: not used: the lower level is solved on all of xi.
        smoothness: 1/step of the stationarity measure; None: that of the current step length.

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

    @property
    def solver(self) -> AbstractLowerSolver:
        """The solver of the lower level."""
        return self.lower

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """Nothing is estimated; the assumptions are looked at."""
        method = dataclasses.replace(self, lower=as_arrays(self.lower, dtype_of(x, y)))
        return Prepared(method, self.first_inner(problem, x, y), self.assumptions(problem, x, y, at, key))

    def seen(self, problem: Problem, y: PyTree, this: Round) -> Problem:
        """The problem itself."""
        return problem
