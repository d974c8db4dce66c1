"""SMD1 to SMD12 without SMD9: scalable problems made to be hard for bilevel solvers, with known solutions.

After A. Sinha, P. Malo, K. Deb: "Test problem construction for single-objective bilevel optimization", Evolutionary
Computation 22 (2014) 439-477, doi:10.1162/EVCO_a_00116 (arXiv:1401.1942). x = (u, v) with p and r entries, y = (w, z)
with q and r entries (SMD6: w has q + s). Upper and lower objective are sums of three parts: of u alone, of w alone, and
of v with z. SMD9 is left out: its constraints round with floor, so that no derivative says anything about them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from hierax import Box, InputError
from hierax.problems.example import Example, Known
from hierax_lab.problems.bolib.case import Case, Point

NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12)
EDGE = 1e-5  # distance of the closed bounds to the ends of the paper's open intervals, where tan and log are infinite
SOURCE = (
    "A. Sinha, P. Malo, K. Deb: Test problem construction for single-objective bilevel optimization, Evol. Comput. 22 "
    "(2014) 439-477"
)

Vector = Float[Array, " n"]
Part = Callable[[Vector], Scalar]
Coupled = Callable[[Vector, Vector], Vector]
Interval = tuple[float, float]


class _Sizes(NamedTuple):
    p: int
    q: int
    r: int
    s: int

    @property
    def vertex(self) -> float:
        """The value of all p + r entries where x_j = sum of the others' cubes for every j (SMD10 and SMD12)."""
        return 1 / (self.p + self.r - 1) ** 0.5


class _Form(NamedTuple):
    """F = alone(u) + upper_w(w) + |v - target|^2 + sign |link(v, z)|^2, f = below(u) + lower_w(w) + |link(v, z)|^2.

    The bounds of v and z are those of the paper; u and w are in [-5, 10] throughout. F of SMD12 has a further term.
    """

    link: Coupled
    v: Interval = (-5.0, 10.0)
    z: Interval = (-5.0, 10.0)
    sign: float = -1.0  # of the last part of F: 1 where the levels agree
    alone: Part = lambda u: jnp.sum(u**2)
    below: Part = lambda u: jnp.sum(u**2)
    upper_w: Part = lambda w: -jnp.sum(w**2)
    lower_w: Part = lambda w: jnp.sum(w**2)
    target: float = 0.0


def _rastrigin(w: Vector) -> Scalar:
    return w.size + jnp.sum(w**2 - jnp.cos(2 * jnp.pi * w))


def _rosenbrock(w: Vector) -> Scalar:
    """As the paper has it, without the usual factor 100."""
    return jnp.sum((w[1:] - w[:-1] ** 2) ** 2 + (w[:-1] - 1) ** 2)


def _griewank(u: Vector) -> Scalar:
    """With 1/400 instead of Griewank's 1/4000, as the paper has it."""
    return 1 + jnp.sum(u**2) / 400 - jnp.prod(jnp.cos(u / jnp.sqrt(jnp.arange(1, u.size + 1))))


def _ackley(u: Vector) -> Scalar:
    square = jnp.mean(u**2)
    inside = square > 0  # a root has no derivative at zero; that of the other branch is taken there
    root = jnp.where(inside, jnp.sqrt(jnp.where(inside, square, 1.0)), 0.0)
    return 20 + jnp.e - 20 * jnp.exp(-0.2 * root) - jnp.exp(jnp.mean(jnp.cos(2 * jnp.pi * u)))


def _above_others(x: Vector) -> Vector:
    """The rows sum_{i != j} x_i^3 - x_j <= 0."""
    return jnp.sum(x**3) - x**3 - x


def _shifted(by: float) -> Part:
    return lambda w: jnp.sum((w - by) ** 2)


TANGENT = (-np.pi / 2 + EDGE, np.pi / 2 - EDGE)
LOGARITHM = (EDGE, np.e)


def _tan(v: Vector, z: Vector) -> Vector:
    return v - jnp.tan(z)


def _log(v: Vector, z: Vector) -> Vector:
    return v - jnp.log(z)


def _form(number: int, sizes: _Sizes) -> _Form:
    """The parts of F and f."""
    squares: Part = lambda w: jnp.sum(w**2)  # noqa: E731  # beside the others of its kind
    constrained: dict[str, Any] = {"alone": _shifted(2.0), "upper_w": squares, "lower_w": _shifted(2.0), "target": 2.0}
    forms = {
        1: _Form(_tan, z=TANGENT, sign=1.0, upper_w=squares),
        2: _Form(_log, v=(-5.0, 1.0), z=LOGARITHM),
        3: _Form(lambda v, z: v**2 - jnp.tan(z), z=TANGENT, sign=1.0, upper_w=squares, lower_w=_rastrigin),
        4: _Form(lambda v, z: jnp.abs(v) - jnp.log1p(z), v=(-1.0, 1.0), z=(0.0, np.e), lower_w=_rastrigin),
        5: _Form(lambda v, z: jnp.abs(v) - z**2, upper_w=lambda w: -_rosenbrock(w), lower_w=_rosenbrock),
        6: _Form(
            lambda v, z: v - z,
            upper_w=lambda w: squares(w[sizes.q :]) - squares(w[: sizes.q]),
            lower_w=lambda w: squares(w[: sizes.q]) + squares(w[sizes.q + 1 :: 2] - w[sizes.q : -1 : 2]),
        ),
        7: _Form(_log, v=(-5.0, 1.0), z=LOGARITHM, alone=_griewank, below=lambda u: jnp.sum(u**3)),
        8: _Form(
            lambda v, z: v - z**3,
            alone=_ackley,
            below=lambda u: jnp.sum(jnp.abs(u)),
            upper_w=lambda w: -_rosenbrock(w),
            lower_w=_rosenbrock,
        ),
        10: _Form(_tan, z=TANGENT, **constrained),
        11: _Form(_log, v=(-1.0, 1.0), z=(1 / np.e, np.e)),
        12: _Form(_tan, v=(-14.1, 14.1), z=(-1.5 + EDGE, 1.5 - EDGE), **constrained),
    }
    return forms[number]


def _best(number: int, sizes: _Sizes) -> Point:
    """The best point known. That of SMD12 is better than the paper's where p > 1 and r > 1 (see `smd`)."""
    p, q, r, s = sizes
    x, w, z = [0.0] * (p + r), [0.0] * (q + s), [0.0] * r
    if number in (2, 7):
        z = [1.0] * r
    if number in (5, 8):
        w = [1.0] * q
    if number in (10, 12):
        x, w = [sizes.vertex] * (p + r), [1 / (q - 1) ** 0.5] * q
    if number == 10:
        z = [float(np.arctan(sizes.vertex))] * r
    if number == 11:
        z = [float(np.exp(-1 / r**0.5))] * r
    if number == 12:
        far = (1 - (r - 1) * sizes.vertex**2) ** 0.5
        z[0] = float(np.arctan(sizes.vertex - far))
        z[1:] = [float(np.arctan(0.0))] * (r - 1)
    return x, w + z


def smd_case(number: int, p: int = 3, q: int | None = None, r: int = 2, s: int | None = None) -> Case:
    """The problem as the benchmarks' judge takes it; see `smd`."""
    sizes = _checked(number, p, q, r, s)
    form, width = _form(number, sizes), sizes.q + sizes.s

    def upper(x: Vector, y: Vector) -> Scalar:
        u, v, w, z = x[:p], x[p:], y[:width], y[width:]
        value = form.alone(u) + form.upper_w(w) + jnp.sum((v - form.target) ** 2)
        value = value + form.sign * jnp.sum(form.link(v, z) ** 2)
        return value + jnp.sum(jnp.tan(jnp.abs(z))) if number == 12 else value

    def lower(x: Vector, y: Vector) -> Scalar:
        return form.below(x[:p]) + form.lower_w(y[:width]) + jnp.sum(form.link(x[p:], y[width:]) ** 2)

    def rows(x: Vector, y: Vector) -> list[Scalar]:
        """Below: w_j >= sum of the others' cubes (SMD10, SMD12), and |link|^2 >= 1 (SMD11, SMD12)."""
        stay = [] if number == 10 else [1 - jnp.sum(form.link(x[p:], y[width:]) ** 2)]
        return stay if number == 11 else [*_above_others(y[:width]), *stay]

    def upper_rows(x: Vector, y: Vector) -> list[Scalar]:
        """Above: x_j >= sum of the others' cubes (SMD10, SMD12), and link_j >= 1/sqrt(r) (SMD11) or 0 (SMD12)."""
        link = form.link(x[p:], y[width:])
        cubes = [] if number == 11 else [*_above_others(x)]
        return cubes if number == 10 else [*cubes, *((r**-0.5 if number == 11 else 0.0) - link)]

    ends = [(-5.0, 10.0)] * p + [form.v] * r, [(-5.0, 10.0)] * width + [form.z] * r
    x_set, y_set = (Box(*np.array(part, float).T) for part in ends)
    rng = np.random.default_rng(number)
    start = tuple(rng.uniform(*np.array(part, float).T).tolist() for part in ends)
    best = _best(number, sizes)
    at = jnp.asarray(best[0]), jnp.asarray(best[1])
    return Case(
        f"SMD{number}",
        upper,
        lower,
        start=(start[0], start[1]),
        best=best,
        values=(float(upper(*at)), float(lower(*at))),
        source=SOURCE,
        lower_class="convex" if number == 6 else "nonconvex",
        rows=rows if number >= 10 else None,
        upper_rows=upper_rows if number >= 10 else None,
        x_set=x_set,
        y_set=y_set,
    )


def smd(number: int, p: int = 3, q: int | None = None, r: int = 2, s: int | None = None) -> Example:
    """SMD`number` of Sinha, Malo and Deb with p + r upper and q + s + r lower variables (5 + 5 unless given).

        F = a(u) + b(w) + ||v - t||^2 +- ||l(v, z)||^2,     x = (u, v)
        f = c(u) + d(w) + ||l(v, z)||^2,                    y = (w, z)

    with parts a, b, c, d, a link l and a target t of its own for every number: SMD1 has a = c = ||u||^2,
    b = d = ||w||^2, t = 0, l = v - tan z and the sign +. SMD12 has one more term in F.

    F* = f* = 0 for SMD1 to SMD8. The others have, at 5 + 5, F* = 12.75 (SMD10), -1 (SMD11) and 12.1160 (SMD12). What is
    hard: the levels disagree (all but SMD1 and SMD3); many local solutions below (SMD3, SMD4); a flat valley below
    (SMD5, SMD8); infinitely many solutions below (SMD6, SMD11, SMD12), of which the best for the upper level is meant;
    many local minimisers above (SMD7, SMD8); kinks of F (SMD4, SMD5, SMD8, SMD12); constraints (SMD10 to SMD12). tan
    and log are infinite at the ends of some of the paper's open intervals: bounds are 1e-5 inside.

    The solution of **SMD12** that the paper gives, tan z_j = t - 1/sqrt(r) with t = 1/sqrt(p + r - 1), is not optimal
    where p and r exceed 1: all y with |v - tan z| = 1 solve the lower level, F adds sum |tan z_j|, and that sum is
    smallest where a single z_j is not zero: tan z_1 = t - sqrt(1 - (r - 1) t^2). At 5 + 5: 12.1160 against 12.1642.

    The start is a random point of the bounds, one for each number: the paper gives none.

    Args:
        number: 1 to 8 or 10 to 12.
        p: entries of u, which the upper level alone looks at.
        q: entries of w; 3, and 1 for SMD6.
        r: entries of v and of z, which tie the levels together.
        s: further entries of w, in pairs of which only the difference is given; SMD6 only, there 2.

    Returns:
        The example, with the best solution known.

    Examples:
        >>> from hierax_lab.problems.smd import smd
        >>> example = smd(1)
        >>> example.x0.shape, example.y0.shape, example.solutions[0].upper
        ((5,), (5,), 0.0)

    References:
        Sinha, Malo, Deb: Test problem construction for single-objective bilevel optimization, Evolutionary
            Computation 22, 2014.
        docs/benchmarks/leaderboard.md
    """
    case = smd_case(number, p, q, r, s)
    x, y = (np.asarray(part) for part in case.best)
    known = Known(x=x, y=y, multipliers=None, upper=case.values[0])
    assert case.start is not None
    x0, y0 = (np.asarray(part) for part in case.start)
    return Example(case.problem(), x0, y0, [known], case.source)


def smd12_as_published(p: int = 3, q: int = 3, r: int = 2) -> Point:
    """The point that the paper gives as the solution of SMD12; see `smd` for a better one."""
    sizes = _checked(12, p, q, r, 0)
    (x, y), z = _best(12, sizes), float(np.arctan(sizes.vertex - r**-0.5))
    return x, [*y[:q], *([z] * r)]


def _checked(number: int, p: int, q: int | None, r: int, s: int | None) -> _Sizes:
    if number not in NUMBERS:
        why = "SMD9 rounds with floor and is left out" if number == 9 else "there is no such problem"
        raise InputError(f"smd({number!r}): {why}; give one of {', '.join(map(str, NUMBERS))}.")
    sizes = _Sizes(p, (1 if number == 6 else 3) if q is None else q, r, (2 if number == 6 else 0) if s is None else s)
    fewest = 2 if number in (5, 8, 10, 12) else 1
    if min(p, r) < 1 or sizes.q < fewest or sizes.s < 0 or sizes.s % 2 or (sizes.s and number != 6):
        raise InputError(
            f"smd({number}, p={p}, q={sizes.q}, r={r}, s={sizes.s}): needs p and r >= 1, q >= {fewest}, and s even, "
            "and 0 unless the problem is SMD6."
        )
    return sizes
