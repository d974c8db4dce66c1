"""A random problem of `hierax bench fuzz`: its numbers, its functions, and the same problem as hierax gets it.

Everything is drawn and judged in core units: x and y are about 1 in size, and so are objectives and rows. The user's
units come last: x_user = scale (x + shift), F_user = a F + b, rows times positive numbers. With z = (x, y):

    F = f0 + f'z + z'Qz/2 + sum of a_k (1 - cos(w_k'z + p_k))
    G = (q + N x)'y + y'My/2 + one of: sum of d_j (y_j^2 - r_j)^2, sum of b_j cos(v_j y_j + s_j),
        sum of exp(v_j y_j + s_j + (V x)_j), sum of d_j (y_j + 1)^2.5
    rows: A y + B x - b <= 0, |y - c - C x|^2 - r^2 <= 0;  upper rows: U z - u <= 0;  equalities: E y + D x - e = 0
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

import hierax as hx
from hierax_lab.bench.fuzz_forms import Form

Numbers = dict[str, np.ndarray]  # the letters of the formulas above
Letters = Mapping[str, Any]  # the same, of NumPy or JAX
Values = Any  # arrays of NumPy or JAX, with leading axes of points or none


@dataclasses.dataclass(frozen=True)
class Units:
    """What the user's units are in core units.

    Attributes:
        x: x_user = x (core + x_shift), entry by entry.
        x_shift: see there.
        y: the same for y.
        y_shift: see there.
        upper: (a, b) of a F + b.
        lower: (a, b) of a G + b.
        rows: factors of the lower level's inequalities.
        equalities: factors of its equalities.
        upper_rows: factors of the upper level's rows.
    """

    x: np.ndarray
    x_shift: np.ndarray
    y: np.ndarray
    y_shift: np.ndarray
    upper: np.ndarray
    lower: np.ndarray
    rows: np.ndarray
    equalities: np.ndarray
    upper_rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class Case:
    """A random problem.

    Attributes:
        form: its shape.
        twist: what is special about it.
        truth: "solvable", or the status that is right.
        numbers: the coefficients, in core units.
        units: the user's units.
        x_bounds: lower and upper bounds of x in core units, infinite where there are none.
        y_bounds: of y.
        start: x0 and y0 in core units.
        planted: a point whose F no answer should exceed, in core units; None where a grid has to find it.
    """

    form: Form
    twist: str
    truth: str
    numbers: Numbers
    units: Units
    x_bounds: np.ndarray
    y_bounds: np.ndarray
    start: tuple[np.ndarray, np.ndarray]
    planted: tuple[np.ndarray, np.ndarray] | None = None


def upper_value(form: Form, c: Letters, x: Values, y: Values, xp: Any = np) -> Values:
    """F in core units."""
    z = xp.concatenate([x, y], axis=-1)
    value = c["f0"][0] + z @ c["f"] + 0.5 * ((z @ c["Q"]) * z).sum(-1)
    if form.waves:
        value = value + (1.0 - xp.cos(z @ c["w"].T + c["p"])) @ c["a"]
    return value


def lower_value(form: Form, c: Letters, x: Values, y: Values, xp: Any = np) -> Values:
    """G in core units."""
    value = ((c["q"] + x @ c["N"].T) * y).sum(-1)
    if form.lower in ("quadratic", "waves", "exp"):
        value = value + 0.5 * ((y @ c["M"]) * y).sum(-1)
    if form.lower == "wells":
        value = value + ((y**2 - c["r"]) ** 2) @ c["d"]
    if form.lower == "waves":
        value = value + xp.cos(y * c["v"] + c["s"]) @ c["b_wave"]
    if form.lower == "exp":
        value = value + xp.exp(y * c["v"] + c["s"] + x @ c["V"].T).sum(-1)
    if form.lower == "power":
        value = value + ((y + 1.0) ** 2.5) @ c["d"]
    return value


def rows_value(form: Form, c: Letters, x: Values, y: Values, xp: Any = np) -> Values:
    """The lower level's inequalities in core units, feasible where <= 0."""
    parts = []
    if form.rows:
        parts.append(y @ c["A"].T + x @ c["B"].T - c["b"])
    if form.balls:
        away = y - c["centre"] - x @ c["C"].T
        parts.append((away * away).sum(-1)[..., None] - c["square"])
    return xp.concatenate(parts, axis=-1) if parts else xp.zeros((*y.shape[:-1], 0))


def equalities_value(form: Form, c: Letters, x: Values, y: Values) -> Values:
    """The lower level's equalities in core units."""
    return y @ c["E"].T + x @ c["D"].T - c["e"]


def upper_rows_value(form: Form, c: Letters, x: Values, y: Values, xp: Any = np) -> Values:
    """The upper level's rows in core units."""
    return xp.concatenate([x, y], axis=-1) @ c["U"].T - c["u"]


# -- as hierax gets it ------------------------------------------------------------------------------------------------


def to_user(case: Case, x: np.ndarray, y: np.ndarray) -> tuple[PyTree, PyTree]:
    """A point in core units as the user writes it."""
    units = case.units
    return _x_tree(case.form, units.x * (x + units.x_shift)), _y_tree(case.form, units.y * (y + units.y_shift))


def to_core(case: Case, x: PyTree, y: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """A user's point in core units."""
    units = case.units
    x_user, y_user = (np.asarray(part, np.float64) for part in (_x_flat(case.form, x, np), _y_flat(case.form, y, np)))
    return x_user / units.x - units.x_shift, y_user / units.y - units.y_shift


def as_problem(case: Case) -> hx.Problem:
    """The problem in the user's units; every number is an entry of an array, so that a form compiles once."""
    form = case.form
    c = {name: jnp.asarray(value) for name, value in case.numbers.items()}
    u = {field.name: jnp.asarray(getattr(case.units, field.name)) for field in dataclasses.fields(Units)}

    def core(x: PyTree, y: PyTree) -> tuple[Values, Values]:
        return _x_flat(form, x, jnp) / u["x"] - u["x_shift"], _y_flat(form, y, jnp) / u["y"] - u["y_shift"]

    def upper(x: PyTree, y: PyTree, _: None) -> Values:
        return u["upper"][0] * upper_value(form, c, *core(x, y), xp=jnp) + u["upper"][1]

    def lower(x: PyTree, y: PyTree, _: None) -> Values:
        return u["lower"][0] * lower_value(form, c, *core(x, y), xp=jnp) + u["lower"][1]

    def constraints(x: PyTree, y: PyTree) -> Values:
        return u["rows"] * rows_value(form, c, *core(x, y), xp=jnp)

    def equalities(x: PyTree, y: PyTree) -> Values:
        return u["equalities"] * equalities_value(form, c, *core(x, y))

    def upper_constraints(x: PyTree, y: PyTree) -> Values:
        return u["upper_rows"] * upper_rows_value(form, c, *core(x, y), xp=jnp)

    return hx.Problem(
        upper=upper,
        lower=lower,
        constraints=constraints if form.rows or form.balls else None,  # type: ignore[arg-type]
        equalities=equalities if form.equalities else None,  # type: ignore[arg-type]
        upper_constraints=upper_constraints if form.upper_rows else None,  # type: ignore[arg-type]
        x_set=_user_set(form.x_set, case.x_bounds, case.units.x, case.units.x_shift, lambda v: _x_tree(form, v)),
        y_set=_user_set(form.y_set, case.y_bounds, case.units.y, case.units.y_shift, lambda v: _y_tree(form, v)),
    )


def _user_set(kind: str, bounds: np.ndarray, scale: np.ndarray, shift: np.ndarray, tree: Any) -> hx.AbstractSet:
    """A set in the user's units; balls and simplices are those of radius and sum one, in one unit for all entries."""
    match kind:
        case "box":
            return hx.Box(tree(scale * (bounds[0] + shift)), tree(scale * (bounds[1] + shift)))
        case "nonnegative":
            return hx.NonNegative()
        case "ball":
            return hx.Ball(float(scale[0]))
        case "simplex":
            return hx.Simplex(float(scale[0]))
        case _:
            return hx.Free()


def _x_tree(form: Form, x: np.ndarray) -> PyTree:
    return {"a": jnp.asarray(x[:1]), "b": jnp.asarray(x[1:])} if form.tree else jnp.asarray(x)


def _y_tree(form: Form, y: np.ndarray) -> PyTree:
    return (jnp.asarray(y[0]), jnp.asarray(y[1:])) if form.tree else jnp.asarray(y)


def _x_flat(form: Form, x: PyTree, xp: Any) -> Values:
    return xp.concatenate([x["a"], x["b"]]) if form.tree else x


def _y_flat(form: Form, y: PyTree, xp: Any) -> Values:
    return xp.concatenate([xp.reshape(y[0], (1,)), y[1]]) if form.tree else y
