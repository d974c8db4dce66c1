"""The single-loop forms of the Moreau envelope and first-order penalty methods are settings of BiC-GAFFA.

A level without rows leaves of BiC-GAFFA's step what MEHA (Liu, Liu, Yao, Zeng and Zhang, ICML 2024) makes, and for a
long proximal parameter gradient descent ascent on the minimax problem of Lu and Mei. Both are written down in NumPy.
"""

import jax.numpy as jnp
import numpy as np

import hierax as hx

K, C, Q, G1, ETA, A_X, A_Y = 60, 3.0, 0.3, 0.5, 0.1, 0.05, 0.04
X0, Y0 = 0.6, np.array([0.2, -0.4])
M = np.array([1.0, -0.5])


def upper(x, y, _):
    return jnp.sum((y - 1.0) ** 2) + 0.1 * x**2 + x * y[0]


def lower(x, y, _):
    return 0.5 * jnp.sum((y - jnp.asarray(M) * x) ** 2) + 0.1 * jnp.sum(y**4)


def slopes_of_upper(x, y):
    return 0.2 * x + y[0], 2 * (y - 1.0) + np.array([x, 0.0])


def slopes_of_lower(x, y):
    return -M @ (y - M * x), y - M * x + 0.4 * y**3


def penalised(x, y, m=4.0):
    """d_x and d_y of G + m [y_0 + y_1 - x]_+^2."""
    over = 2 * m * max(y[0] + y[1] - x, 0.0)
    d_x, d_y = slopes_of_lower(x, y)
    return d_x - over, d_y + over


def walked(slopes, g1):
    """One step of th, then of x and y, all directions at the old (x, y)."""
    x, y, th = X0, Y0, Y0
    for k in range(K):
        c = C * (k + 1) ** Q
        th = np.clip(th - ETA * (slopes(x, th)[1] + (th - y) / g1), -1.0, 1.0)
        (f_x, f_y), (g_x, g_y) = slopes_of_upper(x, y), slopes(x, y)
        d_x, d_y = f_x / c + g_x - slopes(x, th)[0], f_y / c + g_y - (y - th) / g1
        x, y = np.clip(x - A_X * d_x, -1.0, 1.0), np.clip(y - A_Y * d_y, -1.0, 1.0)
    return x, y


def solved(function, g1):
    problem = hx.Problem(upper, function, x_set=hx.Box(-1.0, 1.0), y_set=hx.Box(-1.0, 1.0))
    method = hx.BiCGAFFA(
        c=C, q=Q, g1=g1, g2=1.0, r=1.0, eta=ETA, steps=hx.Steps(x=A_X, y=A_Y, z=1.0), start="given", smoothness=1.0
    )
    return hx.solve(problem, X0, Y0, method, max_steps=K)


def test_without_rows_bic_gaffa_is_the_single_loop_on_the_moreau_envelope():
    sol, (x, y) = solved(lower, G1), walked(slopes_of_lower, G1)
    np.testing.assert_allclose(sol.x, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sol.y, y, rtol=0, atol=1e-12)


def test_with_rows_as_penalties_and_no_proximal_term_it_is_descent_ascent_on_lu_and_meis_minimax_problem():
    def with_penalty(x, y, _):
        return lower(x, y, _) + 4.0 * jnp.maximum(y[0] + y[1] - x, 0.0) ** 2

    sol, (x, y) = solved(with_penalty, 1e14), walked(penalised, np.inf)
    np.testing.assert_allclose(sol.x, x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(sol.y, y, rtol=0, atol=1e-11)
