"""The bilevel problem as the user states it, and in words: its functions, its sets, where its samples come from."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree, Scalar

from hierax._base.text import notebook_table, numbers_of, shown
from hierax._problem import sets
from hierax._problem.samples import Finite, FiniteFiles, Sampler, Stream
from hierax._problem.sets import Ball, Box, Free, NonNegative, Simplex, is_set


def set_text(sets: PyTree) -> str:
    """A set, or a tree prefix of sets, in words.

    Examples:
        >>> set_text(Box(0.0, 3.0))
        'entries from 0 to 3'
        >>> set_text({"a": NonNegative(), "b": Free()})
        "['a']: entries >= 0; ['b']: the whole space"
    """
    leaves = jax.tree_util.tree_leaves_with_path(sets, is_leaf=is_set)
    if len(leaves) == 1 and not leaves[0][0]:
        return _one_set(leaves[0][1])
    return "; ".join(f"{jax.tree_util.keystr(path)}: {_one_set(one)}" for path, one in leaves)


def _one_set(one: object) -> str:
    match one:
        case Free():
            return "the whole space"
        case Box():
            return f"entries from {_bound(one.lower)} to {_bound(one.upper)}"
        case NonNegative():
            return "entries >= 0"
        case Ball():
            return f"a ball of radius {float(np.asarray(one.radius)):g} around zero"
        case Simplex():
            return f"entries >= 0 that sum to {float(np.asarray(one.scale)):g}"
    return type(one).__name__


def _bound(bound: PyTree) -> str:
    """A bound in words: one number where it is the same for all entries."""
    numbers = np.unique(numbers_of(bound))
    return shown(numbers if numbers.size == 1 else bound)


def source_text(source: object) -> str:
    """Where samples come from, in words.

    Examples:
        >>> source_text(None)
        'no samples: it is exact'
        >>> source_text(Finite(np.zeros((10, 3))))
        '10 rows of data, drawn independently'
    """
    if source is None:
        return "no samples: it is exact"
    if isinstance(source, Finite | FiniteFiles):
        where = "data in files" if isinstance(source, FiniteFiles) else "data"
        return f"{source.size:,} rows of {where}, drawn {'independently' if source.replace else 'in shuffled epochs'}"
    if isinstance(source, Sampler):
        return "a sampler" + ("" if source.exact is None else " whose expectation is known")
    return "a stream of batches" if isinstance(source, Stream) else type(source).__name__


def function_text(function: object) -> str:
    """What a function is called.

    Examples:
        >>> function_text(set_text), function_text(lambda x, y: x)
        ('the function set_text', 'a lambda')
    """
    name = getattr(function, "__name__", type(function).__name__)
    return "a lambda" if name == "<lambda>" else f"the function {name}"


class Rows(NamedTuple):
    """One entry per constraint of the lower level: values, multipliers or scales.

    Attributes:
        inequalities: like the output of `constraints`; None where there is none.
        equalities: like the output of `equalities`, likewise.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> problem.rows(2.0, 3.0)
        Rows(inequalities=1.0, equalities=None)
    """

    inequalities: PyTree
    equalities: PyTree


class Multipliers(NamedTuple):
    """Multipliers, shaped like the outputs of the constraint functions (None where there is none).

        grad_y G + J_y h' inequalities + J_y e' equalities = 0     (inside Y),     inequalities >= 0,
        inequalities_i h_i = 0     at (x, y*(x))

    in the user's units: a constraint multiplied by s has its multiplier divided by s. The same record holds the values
    of the constraints (`extend.all_constraints`) and their scales.

    Attributes:
        inequalities: of the lower level's constraints, >= 0.
        equalities: of the lower level's equalities, free in sign.
        upper: of the upper constraints.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5)
        >>> round(float(sol.multipliers.inequalities), 3)
        1.818

    References:
        Nocedal, Wright: Numerical optimization, second edition, Springer 2006, section 12.3 (KKT conditions).
        docs/methods/salvf.md
    """

    inequalities: PyTree
    equalities: PyTree
    upper: PyTree


CONSTRAINTS = ("constraints", "equalities", "upper_constraints")
"""The functions of a problem whose multipliers `Multipliers` has, in its order."""


def nothing(x: PyTree, y: PyTree) -> None:
    """The constraint function of a problem without constraints: an empty tree."""


class Problem(eqx.Module):
    r"""A bilevel problem: the objectives of both levels, their constraints, sets and samples.

        min over x in X of  F(x, y*(x)) = E f(x, y*(x); zeta)   subject to  H_up(x, y*(x)) <= 0,
        y*(x) = argmin over y in Y of  G(x, y) = E g(x, y; xi)   subject to  h(x, y) <= 0,  e(x, y) = 0

    Where several y minimise G, the one that is best for F counts (the optimistic reading). H stands for h where a text
    speaks of the lower level's constraints in general.

    Args:
        upper: f(x, y, zeta) -> scalar, the mean over the batch zeta (None where `zeta` is None).
        lower: g(x, y, xi) -> scalar, likewise.
        constraints: h(x, y) -> scalar, array or pytree of arrays; feasible where every entry is <= 0.
        equalities: e(x, y), every entry zero at a feasible point; multipliers are free in sign.
        upper_constraints: further constraints H_up(x, y) <= 0 of the upper level.
        x_set: a set or a tree prefix of sets for x.
        y_set: the same for y.
        zeta: source of the upper samples (`Finite`, `Sampler`, `Stream`); None: `upper` is exact.
        xi: source of the lower samples; None: `lower` is exact.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (x - 1.0) ** 2 + (y - 2.0) ** 2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )

    References:
        docs/methods/salvf.md, docs/start/state-it.md
    """

    upper: Callable[[PyTree, PyTree, PyTree], Scalar]
    lower: Callable[[PyTree, PyTree, PyTree], Scalar]
    constraints: Callable[[PyTree, PyTree], PyTree] = nothing
    equalities: Callable[[PyTree, PyTree], PyTree] = nothing
    upper_constraints: Callable[[PyTree, PyTree], PyTree] = nothing
    x_set: PyTree = Free()
    y_set: PyTree = Free()
    zeta: Any = None
    xi: Any = None

    def __post_init__(self) -> None:
        """None means: no constraint, the whole space."""
        for name in CONSTRAINTS:
            if getattr(self, name) is None:
                setattr(self, name, nothing)
        for name in ("x_set", "y_set"):
            if getattr(self, name) is None:
                setattr(self, name, Free())

    @property
    def has_upper_constraints(self) -> bool:
        """Whether the upper level states constraints of its own (asked of a problem as the user gave it)."""
        return self.upper_constraints is not nothing

    def described(self) -> list[tuple[str, str]]:
        """The problem in words, part by part."""
        names = "upper objective f", "lower objective g", "constraints h <= 0", "equalities e = 0", "upper constraints"
        functions = self.upper, self.lower, self.constraints, self.equalities, self.upper_constraints
        texts = ["none" if one is nothing else function_text(one) for one in functions]
        sets = [("X", set_text(self.x_set)), ("Y", set_text(self.y_set))]
        sources = [("samples zeta of f", source_text(self.zeta)), ("samples xi of g", source_text(self.xi))]
        return [*zip(names, texts, strict=True), *sets, *sources]

    def _repr_html_(self) -> str:
        """The problem as notebooks show it."""
        return notebook_table("Bilevel problem", self.described())

    def rows(self, x: PyTree, y: PyTree) -> Rows:
        """The constraints of the lower level, h and e together."""
        return Rows(self.constraints(x, y), self.equalities(x, y))


def is_streamed(problem: Problem) -> bool:
    """Whether some of its data come from a `Stream`, which is never seen as a whole."""
    return any(isinstance(source, Stream) for source in (problem.zeta, problem.xi))


def with_y_in(problem: Problem, units: PyTree) -> Problem:
    """The same problem with y measured in these units."""

    def of(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        return lambda x, y, *sample: function(x, jax.tree.map(operator.mul, y, units), *sample)

    parts: dict[str, Any] = {name: of(getattr(problem, name)) for name in ("upper", "lower", *CONSTRAINTS)}
    return dataclasses.replace(problem, **parts, y_set=sets.in_units(problem.y_set, units))


def scaled(problem: Problem, scales: Multipliers) -> Problem:
    """The same problem with every constraint divided by its scale."""

    def divided(function: Callable[[PyTree, PyTree], PyTree], scale: PyTree) -> Callable[[PyTree, PyTree], PyTree]:
        return lambda x, y: jax.tree.map(operator.truediv, function(x, y), scale)

    pairs = zip(CONSTRAINTS, scales, strict=True)
    parts: dict[str, Any] = {name: divided(getattr(problem, name), scale) for name, scale in pairs}
    return dataclasses.replace(problem, **parts)


def row_of_nan(problem: Problem) -> str:
    """Which row of the data is NaN, and what to do about it, in words; empty: none, or nobody knows."""
    for name in ("zeta", "xi"):
        source, begin = getattr(problem, name), 0
        for part in source.parts() if isinstance(source, Finite | FiniteFiles) else ():
            rows = [np.isnan(np.asarray(leaf)).reshape(len(leaf), -1).any(axis=1) for leaf in jax.tree.leaves(part)]
            wrong = np.any(rows, axis=0)
            if wrong.any():
                return f"{name}: row {begin + int(np.argmax(wrong))} is NaN. Remove such rows, or fill them in."
            begin += wrong.size
    return ""
