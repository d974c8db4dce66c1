"""Random problems of up to 10 + 20 variables with a planted point whose upper value is known to be zero.

Either F >= 0 everywhere, so that the planted point is a global optimum (waves, LP, wells); or F is a quadratic whose
slope along the lower solutions vanishes there although its gradient in y does not (QP, ball, equalities). In the latter
F may be lower elsewhere: the planted value is then an upper bound of the global optimum.
"""

import numpy as np

from hierax_lab.bench.fuzz_case import Case, Numbers
from hierax_lab.bench.fuzz_solvers import Rows, all_rows, in_the_unit_ball, quadratic_program, solve_one

MARGIN = 0.02  # least slack of inactive rows and least multiplier of active ones, at a planted point
Point = tuple[np.ndarray, np.ndarray]


def definite(rng: np.random.Generator, size: int, least: float, most: float) -> np.ndarray:
    """A random symmetric matrix with eigenvalues between the two."""
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return np.asarray(basis * rng.uniform(least, most, size)) @ basis.T


def plant(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None]:
    """The numbers of a planted problem and its point; the case brings form, twist and bounds."""
    for _ in range(100):
        found = _KINDS[case.form.planted or "qp"](case, rng)
        if found is not None:
            return found
    raise AssertionError(f"{case.form.name}: no planted problem with strict complementarity in 100 draws")


def _lower_numbers(case: Case, rng: np.random.Generator) -> Numbers:
    form = case.form
    n, m, r = form.n, form.m, form.rows
    numbers = {
        "M": definite(rng, m, 0.3, 2.0),
        "q": rng.normal(size=m),
        "N": rng.normal(size=(m, n)) / np.sqrt(n),
        "A": rng.normal(size=(r, m)) / np.sqrt(m),
        "B": 0.3 * rng.normal(size=(r, n)),
        "b": rng.uniform(0.05, 0.5, r),
    }
    if case.twist == "duplicate":
        factor = rng.uniform(0.5, 2.0)
        for name in ("A", "B", "b"):
            numbers[name][1] = factor * numbers[name][0]
    return numbers


def _upper_around(point: Point, gradient: np.ndarray, q: np.ndarray) -> Numbers:
    """The numbers of gradient'(z - z*) + (z - z*)'Q(z - z*)/2."""
    z = np.concatenate(point)
    return {"f0": np.array([0.5 * z @ q @ z - gradient @ z]), "f": gradient - q @ z, "Q": q}


def _with_slope(case: Case, rng: np.random.Generator, point: Point, jacobian: np.ndarray) -> Numbers:
    """F = g'(y-y*) + |y-y*|^2/2 - (D'g)'(x-x*) + 2|x-x*|^2: stationary along y*(x) with a gradient in y."""
    n, m = case.form.n, case.form.m
    g = rng.normal(size=m) / np.sqrt(m)
    q = np.diag(np.concatenate([np.full(n, 4.0), np.ones(m)]))
    return _upper_around(point, np.concatenate([-jacobian.T @ g, g]), q)


def _qp(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None] | None:
    numbers = _lower_numbers(case, rng)
    x = rng.uniform(-0.5, 0.5, case.form.n)
    solved = _strict_solution(case, numbers, x)
    if solved is None:
        return None
    y, active = solved
    rows = all_rows(_with(case, numbers), x)
    held = rows.matrix[active]
    moves = np.zeros((len(rows.rhs), case.form.n))
    moves[: case.form.rows] = -numbers["B"]
    jacobian = _jacobian(numbers, held, moves[active])
    return numbers | _with_slope(case, rng, (x, y), jacobian), (x, y)


def _strict_solution(case: Case, numbers: Numbers, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """y*(x) and its active rows; None where complementarity is not strict (a duplicate row may go either way)."""
    rows = all_rows(_with(case, numbers), x)
    y, multipliers = quadratic_program(numbers["M"], numbers["q"] + numbers["N"] @ x, rows)
    if y is None:
        return None
    active, slack = multipliers > 0, rows.rhs - rows.matrix @ y
    if case.twist != "duplicate" and (
        (active.any() and multipliers[active].min() < MARGIN) or ((~active).any() and slack[~active].min() < MARGIN)
    ):
        return None
    return y, active


def _jacobian(numbers: Numbers, held: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """dy*/dx from the KKT system of the active rows: held dy = moves dx."""
    size = len(held)
    matrix = np.block([[numbers["M"], held.T], [held, np.zeros((size, size))]])
    return np.linalg.lstsq(matrix, np.vstack([-numbers["N"], moves]), rcond=1e-12)[0][: len(numbers["M"])]


def _waves(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None] | None:
    form = case.form
    numbers = _lower_numbers(case, rng)
    x = rng.uniform(-0.7, 0.7, form.n)
    if case.twist == "false_row":
        numbers["A"][-1], numbers["B"][-1], numbers["b"][-1] = 0.0, 0.0, -1.0
        point = (x, rng.uniform(-0.7, 0.7, form.m))
    else:
        solved = _strict_solution(case, numbers, x)
        if solved is None:
            return None
        point = (x, solved[0])
    size = form.n + form.m
    w = 2.0 * rng.normal(size=(form.waves, size)) / np.sqrt(2.0)
    numbers |= {"a": rng.uniform(0.1, 0.4, form.waves), "w": w, "p": -w @ np.concatenate(point)}
    numbers |= _upper_around(point, np.zeros(size), 0.2 * np.eye(size))
    return numbers, point if case.truth == "solvable" else None


def _lp(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None] | None:
    """F = |x-x*|^2 + |y-y*|^2/2 + weights of the active rows' slacks, which are nonnegative."""
    form = case.form
    numbers = _lower_numbers(case, rng)
    x = rng.uniform(-0.5, 0.5, form.n)
    given = _with(case, numbers)
    y = solve_one(given, x)
    if y is None:
        return None
    slack = numbers["b"] - numbers["B"] @ x - numbers["A"] @ y
    weights = np.where(slack < 1e-9, rng.uniform(0.05, 0.3, form.rows), 0.0)
    gradient = -np.concatenate([weights @ numbers["B"], weights @ numbers["A"]])
    q = np.diag(np.concatenate([np.full(form.n, 2.0), np.ones(form.m)]))
    return numbers | _upper_around((x, y), gradient, q), (x, y)


def _wells(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None] | None:
    form = case.form
    numbers = {
        "d": rng.uniform(1.0, 2.5, form.m),
        "r": rng.uniform(0.3, 0.7, form.m),
        "q": 0.2 * rng.normal(size=form.m),
        "N": 0.4 * rng.normal(size=(form.m, form.n)),
    }
    x = rng.uniform(-0.7, 0.7, form.n)
    if np.abs(numbers["q"] + numbers["N"] @ x).min() < MARGIN:  # the wells nearly tie
        return None
    y = solve_one(_with(case, numbers), x)
    assert y is not None
    q = definite(rng, form.n + form.m, 0.3, 2.0)
    return numbers | _upper_around((x, y), np.zeros(form.n + form.m), q), (x, y)


def _ball(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None] | None:
    numbers = _lower_numbers(case, rng)
    x = rng.uniform(-0.5, 0.5, case.form.n)
    y, mu = in_the_unit_ball(numbers["M"], numbers["q"] + numbers["N"] @ x)
    if mu < MARGIN:
        return None
    curved = numbers | {"M": numbers["M"] + mu * np.eye(case.form.m)}
    jacobian = _jacobian(curved, y[None], np.zeros((1, case.form.n)))
    return numbers | _with_slope(case, rng, (x, y), jacobian), (x, y)


def _equalities(case: Case, rng: np.random.Generator) -> tuple[Numbers, Point | None] | None:
    form, numbers = case.form, _lower_numbers(case, rng)
    count = form.equalities
    e = rng.normal(size=(count, form.m)) / np.sqrt(form.m)
    d = 0.3 * rng.normal(size=(count, form.n))
    rhs = rng.uniform(-0.5, 0.5, count)
    if case.twist in ("duplicate_equality", "false_equality"):
        factor = rng.uniform(0.5, 2.0)
        e[1], d[1], rhs[1] = factor * e[0], factor * d[0], factor * rhs[0] + (case.twist == "false_equality")
    numbers |= {"E": e, "D": d, "e": rhs}
    x = rng.uniform(-0.5, 0.5, form.n)
    jacobian = _jacobian(numbers, e, -d)
    if case.truth == "infeasible":
        return numbers | _with_slope(case, rng, (x, rng.normal(size=form.m)), jacobian), None
    solved = quadratic_program(
        numbers["M"], numbers["q"] + numbers["N"] @ x, Rows(np.zeros((0, form.m)), np.zeros(0)), Rows(e, rhs - d @ x)
    )
    assert solved.y is not None
    point = (x, solved.y)
    numbers |= _with_slope(case, rng, point, jacobian)
    if case.truth == "unbounded_upper":
        gradient = rng.normal(size=form.n + form.m)
        if np.linalg.norm(gradient[: form.n] + jacobian.T @ gradient[form.n :]) < 0.3:
            return None
        numbers |= _upper_around(point, gradient, np.zeros_like(numbers["Q"]))
    if case.truth == "unbounded_lower":
        numbers["M"] = numbers["M"] - 3.0 * np.eye(form.m)
    return numbers, point if case.truth == "solvable" else None


def _with(case: Case, numbers: Numbers) -> Case:
    """The case with its numbers so far."""
    return Case(case.form, case.twist, case.truth, numbers, case.units, case.x_bounds, case.y_bounds, case.start)


_KINDS = {"qp": _qp, "waves": _waves, "lp": _lp, "wells": _wells, "ball": _ball, "equalities": _equalities}
