"""
A portfolio from CVXPY
======================

A portfolio optimised in CVXPY, its settings chosen by what happens afterwards.

::

    python gallery/integrations/cvxpy_portfolio.py

The lower level is the usual problem of an investor, written in CVXPY: expected return minus risk, long only, with a
limit on each asset. Its parameters, the risk aversion and the limit, are the upper variable: they are chosen so that
the portfolio does best on returns that the optimiser has not seen. Needs the extra `cvxpy`.
"""

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

import hierax as hx

ASSETS = 6


def returns(days: int, seed: int) -> np.ndarray:
    """Daily returns in percent: two common factors, some assets with a drift, noise."""
    rng = np.random.default_rng(seed)
    loadings = np.random.default_rng(7).normal(size=(2, ASSETS))
    drift = np.linspace(0.02, 0.12, ASSETS)
    return drift + rng.normal(size=(days, 2)) @ loadings * 0.6 + rng.normal(size=(days, ASSETS)) * 0.8


def investor(past: np.ndarray) -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
    """The lower level: the portfolio that looks best on past returns."""
    weights = cp.Variable(ASSETS, name="weights", nonneg=True)
    risk = cp.Parameter(name="risk", nonneg=True, value=0.5)
    limit = cp.Parameter(name="limit", nonneg=True, value=0.25)
    covariance = np.cov(past.T)
    gain = past.mean(axis=0) @ weights - risk * cp.quad_form(weights, cp.psd_wrap(covariance))
    return cp.Problem(cp.Maximize(gain), [cp.sum(weights) == 1, weights <= limit]), [risk, limit], [weights]


def main() -> tuple[hx.Solution, cp.Problem]:
    """Choose the settings, print what came out, and leave the portfolio in the CVXPY problem."""
    level = hx.from_cvxpy(*investor(returns(250, seed=0)))
    later = jnp.asarray(returns(250, seed=1))

    def utility(y):  # of a cautious investor, on the returns that came afterwards
        daily = later @ y["weights"].astype(later.dtype)
        return jnp.mean(daily) - 0.2 * jnp.var(daily)

    problem = level.problem(
        upper=lambda x, y, zeta: -utility(y),
        x_set={"risk": hx.Box(0.01, 5.0), "limit": hx.Box(0.2, 0.25)},  # a rule of the house: at most a quarter
    )
    sol = hx.solve(problem, level.x0, level.y0)
    _ = sol.certificate
    print(sol)
    print(f"utility afterwards: {float(utility(level.y0)):.4f} at the start, {float(utility(sol.y)):.4f} now")
    solved = level.write_back(sol)
    print(f"in CVXPY: {solved.status}, weights {solved.variables()[0].value.round(3)}")
    print(f"price of the limit on each asset: {solved.constraints[1].dual_value.round(4)}")
    return sol, solved


if __name__ == "__main__":
    main()
