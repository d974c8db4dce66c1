"""`Exact` on dense quadratic programs, warm, against Clarabel and OSQP.

Warm: x has moved by 1 %, and the last y and multipliers are given; every solver is asked for a KKT residual of 1e-8.
OSQP is no dependency of hierax: it takes part where it is installed (its set-up is not counted, only `update` and
`solve` from the last point). CPU seconds of one thread, the median of the moves.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import NamedTuple

import clarabel
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from rich.console import Console
from rich.table import Table
from scipy import sparse

import hierax as hx

SIZES = {50: 25, 100: 50, 200: 100, 500: 100, 1000: 300, 2000: 300}  # variables: rows
MOVES = 7  # of x, each followed by a timed solve
ACCURACY = 1e-8  # KKT residual that every solver is asked for


class QP(NamedTuple):
    """min 1/2 y'My + (Nx + q)'y subject to A y <= b + B x, y >= 0, and the x that is moved."""

    m: np.ndarray
    n: np.ndarray
    q: np.ndarray
    a: np.ndarray
    b: np.ndarray
    b_x: np.ndarray

    @staticmethod
    def of(variables: int, rows: int, seed: int) -> "QP":
        """A random one, as in the planted problems of `hierax bench medium`."""
        rng, m = np.random.default_rng(seed), 5
        root = rng.normal(size=(variables, variables))
        return QP(
            root @ root.T / variables + 0.1 * np.eye(variables),
            rng.normal(size=(variables, m)),
            rng.normal(size=variables),
            rng.normal(size=(rows, variables)) / np.sqrt(variables),
            rng.uniform(0.05, 0.5, size=rows),
            0.3 * rng.normal(size=(rows, m)),
        )

    def problem(self) -> hx.Problem:
        """As a lower level."""
        m, n, q, a, b, b_x = map(jnp.asarray, self)
        return hx.Problem(
            upper=lambda x, y, _: jnp.sum(x**2) + jnp.sum(y**2),
            lower=lambda x, y, _: 0.5 * y @ (m @ y) + (n @ x + q) @ y,
            constraints=lambda x, y: a @ y - b - b_x @ x,
            y_set=hx.NonNegative(),
        )

    def residual(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> float:
        """Violation of the KKT conditions, the bounds' multipliers eliminated."""
        slope = self.m @ y + self.n @ x + self.q + self.a.T @ mu
        rows = self.a @ y - self.b - self.b_x @ x
        parts = np.minimum(y, slope), np.minimum(mu, -rows)
        return float(max(np.max(np.abs(part)) for part in parts))


Solve = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""x -> (y, multipliers of the rows); remembers where it was."""


def by_exact(qp: QP) -> Solve:
    """`hx.Exact().solve` outside of jit."""
    problem, solver, last = qp.problem(), hx.Exact(), [np.zeros(len(qp.q)), np.zeros(len(qp.b))]

    def solve(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = solver.solve(problem, x, last[0], None, hx.extend.Rows(last[1], None))
        last[:] = [np.asarray(found.y), np.asarray(found.multipliers.inequalities)]
        return last[0], last[1]

    return solve


def by_clarabel(qp: QP) -> Solve:
    """Clarabel, which starts anew every time."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = ACCURACY
    hessian, n = sparse.csc_matrix(np.triu(qp.m)), len(qp.q)
    rows = sparse.csc_matrix(np.concatenate([qp.a, -np.eye(n)]))
    cones = [clarabel.NonnegativeConeT(rows.shape[0])]

    def solve(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = np.concatenate([qp.b + qp.b_x @ x, np.zeros(n)])
        found = clarabel.DefaultSolver(hessian, qp.n @ x + qp.q, rows, right, cones, settings).solve()
        return np.array(found.x), np.array(found.z)[: len(qp.b)]

    return solve


def by_osqp(qp: QP) -> Solve:
    """OSQP, set up once and updated, from its last point, with its polish."""
    import osqp

    n = len(qp.q)
    rows = sparse.csc_matrix(np.concatenate([qp.a, -np.eye(n)]))
    low, solver, hessian = np.full(rows.shape[0], -np.inf), osqp.OSQP(), sparse.csc_matrix(np.triu(qp.m))
    options = {"eps_abs": ACCURACY, "eps_rel": ACCURACY, "max_iter": 100_000, "polishing": True, "verbose": False}
    solver.setup(hessian, qp.q, rows, low, np.concatenate([qp.b, np.zeros(n)]), **options)

    def solve(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        solver.update(q=qp.n @ x + qp.q, u=np.concatenate([qp.b + qp.b_x @ x, np.zeros(n)]))
        found = solver.solve()
        return found.x, found.y[: len(qp.b)]

    return solve


def measured(qp: QP, make: Callable[[QP], Solve], seed: int) -> dict[str, float]:
    """Median CPU seconds of a warm solve, and the worst residual."""
    rng, solve = np.random.default_rng(seed), make(qp)
    x, seconds, left = rng.uniform(-0.5, 0.5, size=(qp.n.shape[1],)), [], []
    solve(x)
    solve(x * 1.001)
    for _ in range(MOVES):
        x = x + 0.01 * np.linalg.norm(x) * rng.normal(size=x.size) / np.sqrt(x.size)
        begin = time.process_time()
        y, mu = solve(x)
        seconds.append(time.process_time() - begin)
        left.append(qp.residual(x, y, mu))
    return {"seconds": float(np.median(seconds)), "residual": max(left)}


def run(console: Console) -> dict[str, object]:
    """All sizes."""
    solvers = {"Exact": by_exact, "Clarabel": by_clarabel}
    if importlib.util.find_spec("osqp"):
        solvers["OSQP"] = by_osqp
    table = Table("variables, rows", *(f"{name}: ms (residual)" for name in solvers), "Exact over the faster other")
    result: dict[str, object] = {}
    with threadpoolctl.threadpool_limits(1):
        for size, rows in SIZES.items():
            qp = QP.of(size, rows, seed=size)
            found = {name: measured(qp, make, seed=1) for name, make in solvers.items()}
            others = [one["seconds"] for name, one in found.items() if name != "Exact" and one["residual"] <= 1e-5]
            ratio = found["Exact"]["seconds"] / min(others)
            cells = [f"{1e3 * one['seconds']:.1f} ({one['residual']:.0e})" for one in found.values()]
            table.add_row(f"{size}, {rows}", *cells, f"{ratio:.2f}")
            result[f"{size}+{rows}"] = {**found, "ratio": ratio}
    console.print(table)
    return result
