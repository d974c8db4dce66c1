"""Draws problem `number` of a seed of `hierax bench fuzz`: form, twist, numbers, and the user's units.

A problem depends on (seed, number) alone, not on how many are drawn. Forms take turns with the number, twists with the
turn and the seed. A problem that is to be solvable has a point with some slack, around which it is drawn.
"""

import dataclasses

import numpy as np

from hierax_lab.bench.fuzz_case import Case, Numbers, Units
from hierax_lab.bench.fuzz_forms import FORMS, Form, truth_of
from hierax_lab.bench.fuzz_lower import solve_lower
from hierax_lab.bench.fuzz_planted import definite, plant

Decades = float  # units are 10^uniform(-decades, decades)
DECADES: tuple[Decades, ...] = (0.0, 2.0, 6.0, 6.0)  # one of them is drawn for each problem


def draw(seed: int, number: int) -> Case:
    """Problem `number` of the seed."""
    form = FORMS[number % len(FORMS)]
    twist = form.twists[(number // len(FORMS) + seed) % len(form.twists)]
    return draw_case(form, twist, np.random.default_rng([seed, number]))


def draw_case(form: Form, twist: str, rng: np.random.Generator, decades: Decades | None = None) -> Case:
    """A problem of a form with a twist; `decades` of the units, None: by chance."""
    x_bounds, y_bounds = _bounds(form.x_set, form.n, rng), _bounds(form.y_set, form.m, rng)
    start = _inside(form.x_set, form.n, rng), _inside(form.y_set, form.m, rng)
    units = draw_units(form, rng, DECADES[rng.integers(len(DECADES))] if decades is None else decades)
    case = Case(form, twist, truth_of(twist), {}, units, x_bounds, y_bounds, start)
    if form.planted is not None:
        numbers, point = plant(case, rng)
        return dataclasses.replace(case, numbers=_filled(form, numbers), planted=point)
    inside = _inside(form.x_set, form.n, rng), _inside(form.y_set, form.m, rng)
    case = dataclasses.replace(case, numbers=_filled(form, _numbers(form, rng, inside)))
    _twisted(case, rng)
    if form.upper_rows:
        _upper_rows(case, rng, inside[0])
    return case


def _bounds(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Bounds in core units: balls and simplices have radius and sum one."""
    low, high = -1.0 - rng.uniform(0.0, 0.3, size), 1.0 + rng.uniform(0.0, 0.3, size)
    match kind:
        case "box":
            return np.stack([low, high])
        case "nonnegative":  # shifted by one
            return np.stack([np.full(size, -1.0), np.full(size, np.inf)])
        case "simplex":
            return np.stack([np.zeros(size), np.full(size, np.inf)])
        case _:
            return np.stack([np.full(size, -np.inf), np.full(size, np.inf)])


def _inside(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """A point well inside a set."""
    if kind == "simplex":
        return rng.dirichlet(np.full(size, 4.0))
    point = rng.uniform(-0.6, 0.6, size)
    return point / max(1.0, float(np.linalg.norm(point)) / 0.7) if kind == "ball" else point


def draw_units(form: Form, rng: np.random.Generator, decades: Decades) -> Units:
    """The user's units, offsets and shifts."""

    def factors(count: int) -> np.ndarray:
        return np.asarray(10.0 ** rng.uniform(-decades, decades, count))

    def of_variables(kind: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        one = kind in ("ball", "simplex")
        scale = np.full(size, factors(1)[0]) if one else factors(size)
        shifts = {
            "free": rng.choice([-1.0, 1.0], size) * rng.uniform(1.5, 3.0, size),
            "nonnegative": np.ones(size),
            "box": rng.choice([0.0, 1.0]) * 2.0 * rng.normal(size=size),
        }
        return scale, shifts.get(kind, np.zeros(size))

    def of_objective() -> np.ndarray:
        scale = factors(1)[0]
        offset = rng.choice([0.0, 1.0]) * rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(0.0, 3.0)
        return np.array([scale, scale * offset])

    x, x_shift = of_variables(form.x_set, form.n)
    y, y_shift = of_variables(form.y_set, form.m)
    return Units(
        x,
        x_shift,
        y,
        y_shift,
        of_objective(),
        of_objective(),
        factors(form.rows + form.balls),
        factors(form.equalities),
        factors(form.upper_rows),
    )


def _unit_rows(matrix: np.ndarray) -> np.ndarray:
    return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True)) if len(matrix) else matrix


def _numbers(form: Form, rng: np.random.Generator, inside: tuple[np.ndarray, np.ndarray]) -> Numbers:
    """The numbers of a small problem without its twist; at the point `inside` every row has slack."""
    n, m = form.n, form.m
    x, y = inside
    c: Numbers = {"f0": np.zeros(1), "f": 0.7 * rng.normal(size=n + m)}
    unbounded = form.x_set in ("free", "nonnegative")
    c["Q"] = definite(rng, n + m, 0.4, 2.0) if unbounded else definite(rng, n + m, -0.8, 1.5)
    c["a"], c["w"] = rng.uniform(0.1, 0.4, form.waves), 2.0 * rng.normal(size=(form.waves, n + m))
    c["p"] = rng.uniform(0.0, 6.28, form.waves)
    c |= _lower_objective(form, rng)
    rows, equalities = form.rows, form.equalities
    c["A"], c["B"] = _unit_rows(rng.normal(size=(rows, m))), 0.3 * rng.normal(size=(rows, n))
    if form.name == "line":
        c["A"] = np.array([[1.0], [-1.0]])
    if form.name == "cover":
        c["A"] = -np.abs(c["A"])
    if form.balls:
        c["centre"], c["C"] = 0.3 * rng.normal(size=m), 0.3 * rng.normal(size=(m, n))
        c["square"] = rng.uniform(0.4, 1.0, 1) ** 2
        y = c["centre"] + c["C"] @ x + 0.3 * np.sqrt(c["square"]) * _unit_rows(rng.normal(size=(1, m)))[0]
    c["b"] = c["A"] @ y + c["B"] @ x + rng.uniform(0.05, 0.5, rows)
    c["E"], c["D"] = _unit_rows(rng.normal(size=(equalities, m))), 0.4 * rng.normal(size=(equalities, n))
    c["e"] = c["E"] @ y + c["D"] @ x
    return c


def _lower_objective(form: Form, rng: np.random.Generator) -> Numbers:
    n, m = form.n, form.m
    c: Numbers = {"q": 0.8 * rng.normal(size=m), "N": 0.7 * rng.normal(size=(m, n))}
    match form.lower:
        case "quadratic":
            c["M"] = definite(rng, m, 0.5, 2.0)
        case "wells":
            c = {"q": 0.2 * rng.normal(size=m), "N": 0.4 * rng.normal(size=(m, n))}
            c |= {"d": rng.uniform(1.0, 2.5, m), "r": rng.uniform(0.3, 0.7, m)}
        case "waves":
            c["M"] = np.diag(rng.uniform(0.5, 1.5, m))
            c |= {"b_wave": rng.uniform(0.2, 0.5, m), "v": rng.uniform(4.0, 7.0, m), "s": rng.uniform(0.0, 6.28, m)}
        case "exp":
            c["M"] = np.diag(rng.uniform(0.5, 1.5, m))
            c |= {"v": rng.choice([-1.0, 1.0], m) * rng.uniform(1.0, 2.0, m), "s": rng.uniform(-1.0, 1.0, m)}
            c["V"] = rng.normal(size=(m, n))
        case "power":
            c["d"] = rng.uniform(0.5, 1.5, m)
        case "linear" if form.name == "cover":  # costs that stay positive on X, or the lower level would be unbounded
            c["N"] = np.abs(c["N"])
            c["q"] = c["N"].sum(1) + rng.uniform(0.1, 1.0, m)
    return c


def _twisted(case: Case, rng: np.random.Generator) -> None:
    """Change the numbers as the twist says."""
    c, form = case.numbers, case.form
    match case.twist:
        case "duplicate":
            factor = rng.uniform(0.5, 2.0)
            for name in ("A", "B", "b"):
                c[name][1] = factor * c[name][0]
        case "constant" | "false_row":
            c["A"][-1], c["B"][-1], c["b"][-1] = 0.0, 0.0, 1.0 if case.twist == "constant" else -1.0
        case "contradiction":
            c["A"][1], c["B"][1] = -c["A"][0], -c["B"][0]
            c["b"][1] = -c["b"][0] - rng.uniform(0.3, 1.0)
        case "empty_ball":
            c["square"] = -rng.uniform(0.1, 0.5, 1)
        case "zero_equality":
            c["E"][-1], c["D"][-1], c["e"][-1] = 0.0, 0.0, 0.0
        case "duplicate_equality" | "false_equality" if form.equalities > 1:
            factor = rng.uniform(0.5, 2.0)
            c["E"][1], c["D"][1] = factor * c["E"][0], factor * c["D"][0]
            c["e"][1] = factor * c["e"][0] + (0.5 if case.twist == "false_equality" else 0.0)
        case "false_equality":
            c["E"][-1], c["D"][-1], c["e"][-1] = 0.0, 0.0, 1.0
        case "unattainable":
            pass  # see _upper_rows
        case "flat":
            _flat(case, rng)
        case "unbounded_lower" | "unbounded_upper":
            _unbounded(case, rng)


def _flat(case: Case, rng: np.random.Generator) -> None:
    """The lower level has one direction without any cost: F chooses."""
    c = case.numbers
    across = np.array([1.0, 0.0])
    if case.form.lower == "quadratic" and rng.uniform() < 0.5:
        across = _unit_rows(rng.normal(size=(1, 2)))[0]
    c["q"], c["N"] = across * (across @ c["q"]), np.outer(across, across @ c["N"])
    if case.form.lower == "quadratic":
        c["M"] = np.outer(across, across) * c["M"][0, 0]
    c["Q"] = definite(rng, 3, 0.3, 2.0)


def _unbounded(case: Case, rng: np.random.Generator) -> None:
    c = case.numbers
    if case.twist == "unbounded_upper":
        c["Q"] = np.zeros_like(c["Q"])
        c["f"][0] = -1.0  # downwards for growing x; in "bare" y follows x, which must not turn the slope round
        c["f"][1:] *= 0.2
        c["N"] = np.clip(c["N"], -0.5, 0.5)
    elif case.form.lower == "quadratic":
        c["M"] = -c["M"]
    else:
        c["A"], c["q"], c["N"] = np.abs(c["A"]), np.array([1.0]), np.clip(c["N"], -0.5, 0.5)
        c["b"] = rng.uniform(0.3, 1.0, 2)


def _upper_rows(case: Case, rng: np.random.Generator, x: np.ndarray) -> None:
    """Upper rows with slack at (x, y*(x)), or one that no point of the boxes satisfies."""
    c, form = case.numbers, case.form
    c["U"] = _unit_rows(rng.normal(size=(form.upper_rows, form.n + form.m)))
    if case.truth != "solvable":
        c["u"] = np.full(form.upper_rows, 0.3)
        if form.y_set != "box":
            c["U"][0, form.n :] = 0.0
        c["u"][0] = -1.3 * np.abs(c["U"][0]).sum() - rng.uniform(0.1, 0.5)
        if case.twist != "unattainable":
            c["u"][0] = 0.3
        return
    found = solve_lower(case, x[None])
    assert found.optimal.any(), f"{form.name}: the lower level has no solution where it should"
    y = found.y[0, int(np.argmax(found.optimal[0]))]
    c["u"] = c["U"] @ np.concatenate([x, y]) + rng.uniform(0.05, 0.5, form.upper_rows)


def _filled(form: Form, numbers: Numbers) -> Numbers:
    """Empty arrays where a form has none of a kind, so that formulas need not ask."""
    n, m = form.n, form.m
    empty = {
        "M": np.zeros((m, m)),
        "A": np.zeros((0, m)),
        "B": np.zeros((0, n)),
        "b": np.zeros(0),
        "E": np.zeros((0, m)),
        "D": np.zeros((0, n)),
        "e": np.zeros(0),
        "U": np.zeros((0, n + m)),
        "u": np.zeros(0),
    }
    return empty | numbers
