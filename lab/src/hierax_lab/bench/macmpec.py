"""Problems of MacMPEC as leader and follower, for `hierax bench suite macmpec`: membranes, tolls, inverse QPs, bodies.

MacMPEC (S. Leyffer) states mathematical programs with equilibrium constraints; those here have the KKT conditions of
one convex follower in them. The arrays are read from NAME.npz in the folder macmpec of the data folder; they are not
part of hierax.

- pack-*, incid-set*: J. Outrata, M. Kocvara, J. Zowe: Nonsmooth approach to optimization problems with equilibrium
  constraints (1998), 9.2 and 9.4. A membrane under load, linear finite elements, rests on an obstacle.
- siouxfls: S. Dirkse, M. Ferris (1997), tolls on three of the 76 arcs of Sioux Falls; flows by destination.
- liswet1, portfl-i: the leader moves the data of a quadratic program until its solution is a given one.
- design-cent: O. Stein, G. Still (2001), the largest disc in a set.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hierax import Box, NonNegative, Problem
from hierax.extend import lazy
from hierax_lab.bench.medium_case import Bounds, MediumCase
from hierax_lab.bench.medium_lower import Unsolved

clarabel = lazy("clarabel", extra="conic")
sparse, sparse_linalg = lazy("scipy.sparse"), lazy("scipy.sparse.linalg")

NAMES = [
    "siouxfls",
    "pack-comp1-8",
    "pack-rig1-8",
    "pack-rig1-16",
    "portfl-i-1",
    "portfl-i-2",
    "portfl-i-3",
    "liswet1-050",
    "incid-set1-8",
    "incid-set2-8",
    "design-cent-1",
]
LEAST_SHARE = 0.99  # of the decrease from a feasible start to the published value that a solved problem has
MAX_STEPS, SMALL_STEP = 40, 1e-9  # of Newton's method for the flows; relative length of its last step
USED = 1e-7  # share of the largest flow from which on a flow counts as positive

Arrays = dict[str, np.ndarray]
Function = Callable[..., jax.Array]


def macmpec(name: str, folder: Path) -> MediumCase:
    """The problem of that name."""
    arrays = dict(np.load(folder / f"{name}.npz", allow_pickle=False))
    families = {"pack-rig": _membrane, "pack-comp": _membrane, "incid-set": _membrane, "toll": _tolls}
    families |= {"liswet": _smoothing, "portfolio": _inverse_portfolio, "design": _disc}
    return families[str(arrays["family"])](arrays)


def _matrix(arrays: Arrays, name: str, shape: tuple[int, int]) -> np.ndarray:
    """A matrix that is kept as NAME_row, NAME_col, NAME_val."""
    matrix = np.zeros(shape)
    np.add.at(matrix, (arrays[f"{name}_row"], arrays[f"{name}_col"]), arrays[f"{name}_val"])
    return matrix


def _case(arrays: Arrays, problem: Problem, low: np.ndarray, high: np.ndarray, y_low: float = -np.inf) -> MediumCase:
    """The problem with its start, its bounds and what is published; y is bounded from below or not at all."""
    x0, y0, m = arrays["x0"], arrays["y0"], arrays["y0"].size
    bounds = Bounds(low, high), Bounds(np.full(m, y_low), np.full(m, np.inf))
    known = float(arrays["best"])
    return MediumCase(problem, problem, x0, y0, *bounds, best=known, published=True, least_share=LEAST_SHARE)


def _membrane(arrays: Arrays) -> MediumCase:
    """Rigid: u'A(x)u/2 - l(x)'u over u >= obstacle; compliant: the obstacle gives way by t for |t|^2 / (2 c)."""
    inside, omega, tri = arrays["interior"], arrays["omega"], arrays["tri"]
    nodes, n, size = arrays["pos0"].size, arrays["x0"].size, arrays["interior"].size
    moves, limits = _matrix(arrays, "pos", (nodes, n)), _matrix(arrays, "G", (arrays["g"].size, n))
    outside = np.setdiff1d(np.arange(size), omega)
    incidence, compliant = str(arrays["family"]) == "incid-set", str(arrays["family"]) == "pack-comp"
    q = arrays["height"][tri]

    def of(name: str, like: jax.Array) -> jax.Array:
        return jnp.asarray(arrays[name], like.dtype)

    def positions(x: jax.Array) -> jax.Array:
        return of("pos0", x) + jnp.asarray(moves, x.dtype) @ x

    def energy(x: jax.Array, u: jax.Array) -> jax.Array:
        """The sum over the triangles of u'Ku/2 - l'u; u is zero on the boundary."""
        p, heights = positions(x)[tri], jnp.asarray(q, x.dtype)
        whole = jnp.zeros(nodes, u.dtype).at[inside].set(u)[tri]
        p1, p2, p3 = p.T
        q1, q2, q3 = heights.T
        det = (p2 - p1) * (q3 - q1) - (q2 - q1) * (p3 - p1)
        b = jnp.stack([q2 - q3, q3 - q1, q1 - q2], axis=1)
        c = jnp.stack([p3 - p2, p1 - p3, p2 - p1], axis=1)
        squares = jnp.sum(b * whole, axis=1) ** 2 + jnp.sum(c * whole, axis=1) ** 2
        return jnp.sum(squares / (4 * det) + det / 6 * jnp.sum(whole, axis=1))

    def gap(x: jax.Array, y: jax.Array) -> jax.Array:
        p = positions(x)
        obstacle = (of("ob0", x) + of("ob1", x) * p + of("ob2", x) * p**2)[inside]
        return (y[:size] + y[size:] if compliant else y) - obstacle

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        return energy(x, y[:size]) + (jnp.sum(y[size:] ** 2) / (2 * of("compliance", y)) if compliant else 0.0)

    def upper(x: jax.Array, y: jax.Array, zeta: None) -> jax.Array:
        del zeta
        if not incidence:
            return of("cost", x) @ x
        forces = jax.grad(energy, 1)(x, y)
        return jnp.sum(forces[outside]) + of("weight", x) * jnp.sum(gap(x, y)[omega])

    def upper_rows(x: jax.Array, y: jax.Array) -> jax.Array:
        slopes = jnp.asarray(limits, x.dtype) @ x - of("g", x)
        return slopes if incidence else jnp.concatenate([slopes, gap(x, y)[omega]])

    box = arrays["x_lo"], arrays["x_hi"]
    problem = Problem(upper, lower, lambda x, y: -gap(x, y), upper_constraints=upper_rows, x_set=Box(*box))
    return _case(arrays, problem, *box)


def _smoothing(arrays: Arrays) -> MediumCase:
    """|y|^2/2 - data'y over second differences >= x; the leader wants y at a target."""
    target, data, total = arrays["target"], arrays["data"], float(arrays["total"])
    problem = Problem(
        upper=lambda x, y, zeta: jnp.sum((y - jnp.asarray(target, y.dtype)) ** 2),
        lower=lambda x, y, xi: 0.5 * y @ y - jnp.asarray(data, y.dtype) @ y,
        constraints=lambda x, y: x - (y[2:] - 2 * y[1:-1] + y[:-2]),
        upper_constraints=lambda x, y: total - jnp.sum(x),
        x_set=NonNegative(),
    )
    n = arrays["x0"].size
    return _case(arrays, problem, np.zeros(n), np.full(n, np.inf))


def _inverse_portfolio(arrays: Arrays) -> MediumCase:
    """|F'y - R - x|^2 over the simplex; the leader wants y at a target with a small x."""

    def of(name: str, like: jax.Array) -> jax.Array:
        return jnp.asarray(arrays[name], like.dtype)

    problem = Problem(
        upper=lambda x, y, zeta: jnp.sum((y - of("target", y)) ** 2) + x @ x,
        lower=lambda x, y, xi: jnp.sum((of("F", y).T @ y - of("R", y) - x) ** 2),
        equalities=lambda x, y: jnp.sum(y) - 1.0,
        x_set=NonNegative(),
        y_set=NonNegative(),
    )
    n = arrays["x0"].size
    return _case(arrays, problem, np.zeros(n), np.full(n, np.inf), y_low=0.0)


def _disc(arrays: Arrays) -> MediumCase:
    """The three points of the disc that reach farthest beyond the three sides; they must not be beyond."""
    number = float(arrays["pi"])

    def sides(y: jax.Array) -> jax.Array:
        return jnp.stack([-y[0] - y[1] ** 2, y[2] / 4 + y[3] - 0.75, -y[5] - 1.0])

    problem = Problem(
        upper=lambda x, y, zeta: -number * x[2] ** 2,
        lower=lambda x, y, xi: -jnp.sum(sides(y)),
        constraints=lambda x, y: jnp.sum((y.reshape(3, 2) - x[None, :2]) ** 2, axis=1) - x[2] ** 2,
        upper_constraints=lambda x, y: sides(y),
        x_set=Box(arrays["x_lo"], arrays["x_hi"]),
    )
    return dataclasses.replace(_case(arrays, problem, arrays["x_lo"], arrays["x_hi"]), quadratic_rows=True)


def _tolls(arrays: Arrays) -> MediumCase:
    """Flows by destination at the users' equilibrium; the leader wants the tolls' revenue, or little travel time."""
    arcs, tolled, arc_of = arrays["A"].size, arrays["tolled"], arrays["arc_of"]
    row, col, entry = (arrays[f"E_{part}"] for part in ("row", "col", "val"))
    revenue, unit = float(arrays["revenue"]), float(arrays["toll_unit"])

    def of(name: str, like: jax.Array) -> jax.Array:
        return jnp.asarray(arrays[name], like.dtype)

    def flow(y: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(y, arc_of, arcs)

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        f, a, b, k = flow(y), of("A", y), of("B", y), of("K", y)
        return jnp.sum(a * f + b * k / 5 * (f / k) ** 5) + unit * x @ f[tolled]

    def upper(x: jax.Array, y: jax.Array, zeta: None) -> jax.Array:
        del zeta
        f = flow(y)
        if revenue:
            return -revenue * x @ f[tolled]
        return jnp.sum(of("A", y) + of("B", y) * (f / of("K", y)) ** 4)

    def balance(x: jax.Array, y: jax.Array) -> jax.Array:
        del x
        moved = jnp.asarray(entry, y.dtype) * y[col]
        return jax.ops.segment_sum(moved, row, arrays["demand"].size) - of("demand", y)

    box = arrays["x_lo"], arrays["x_hi"]
    problem = Problem(upper, lower, equalities=balance, x_set=Box(*box), y_set=NonNegative())
    case, network = _case(arrays, problem, *box, y_low=0.0), Network(arrays)
    return dataclasses.replace(case, quadratic=False, lower_solution=network.flows, phi=network.phi)


class Network:
    """The flows of a toll problem outside hierax: Newton's method on the flows of arcs, its steps by Clarabel."""

    def __init__(self, arrays: Arrays) -> None:
        count, arcs = arrays["arc_of"].size, arrays["A"].size
        self.arrays = arrays
        self.sums = sparse.csc_matrix((np.ones(count), (arrays["arc_of"], np.arange(count))), (arcs, count))
        entries = arrays["E_val"], (arrays["E_row"], arrays["E_col"])
        self.balance = sparse.csc_matrix(entries, (arrays["demand"].size, count))
        blocks = [[self.balance, None], [self.sums, -sparse.eye(arcs)], [-sparse.eye(count), None]]
        self.rows = sparse.bmat(blocks, format="csc")
        self.right = np.concatenate([arrays["demand"], np.zeros(arcs + count)])
        equal = arrays["demand"].size + arcs
        self.cones = [clarabel.ZeroConeT(equal), clarabel.NonnegativeConeT(count)]

    def _tolls(self, x: np.ndarray) -> np.ndarray:
        tolls = np.zeros(self.arrays["A"].size)
        tolls[self.arrays["tolled"]] = float(self.arrays["toll_unit"]) * x
        return tolls

    def flows(self, x: np.ndarray) -> np.ndarray:
        """y*(x), one of them; the flows of arcs are unique. Raises `Unsolved`."""
        a, b, k = (self.arrays[name] for name in "ABK")
        tolls, f, y = self._tolls(x), np.array(k), None

        def cost(f: np.ndarray) -> float:
            return float(np.sum((a + tolls) * f + b * k / 5 * (f / k) ** 5))

        for _ in range(MAX_STEPS):
            slope, bend = a + tolls + b * (f / k) ** 4, 4 * b / k * (f / k) ** 3 + 1e-9
            trial = self._model(slope - bend * f, bend)
            step, share = self.sums @ trial - f, 1.0
            while y is not None and share > 1e-8 and cost(f + share * step) > cost(f) + 1e-4 * share * slope @ step:
                share /= 2
            f, y = f + share * step, trial if y is None else y + share * (trial - y)
            if np.abs(step).max() <= SMALL_STEP * (1 + np.abs(f).max()):
                return np.maximum(y, 0.0)
        raise Unsolved("Newton's method for the flows did not end")

    def _model(self, cost: np.ndarray, bend: np.ndarray) -> np.ndarray:
        count = self.arrays["arc_of"].size
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
        hessian = sparse.block_diag([sparse.csc_matrix((count, count)), sparse.diags(bend)], format="csc")
        linear = np.concatenate([np.zeros(count), cost])
        found = clarabel.DefaultSolver(hessian, linear, self.rows, self.right, self.cones, settings).solve()
        if "Infeasible" in str(found.status):
            raise Unsolved(str(found.status))
        return np.asarray(found.x)[:count]

    def phi(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """F(x, y*(x)) and its gradient, by the implicit function theorem on the flows in use."""
        a, b, k, tolled = (self.arrays[name] for name in ("A", "B", "K", "tolled"))
        revenue, unit = float(self.arrays["revenue"]), float(self.arrays["toll_unit"])
        y = self.flows(x)
        f, used = self.sums @ y, y > USED * y.max()
        value, by_flow, slope = float(np.sum(a + b * (f / k) ** 4)), 4 * b / k * (f / k) ** 3, np.zeros(x.size)
        if revenue:
            value, by_flow, slope = -revenue * float(x @ f[tolled]), np.zeros(f.size), -revenue * f[tolled]
            by_flow[tolled] = -revenue * x
        sums, balance = self.sums[:, used], self.balance[:, used]
        bend = sums.T @ sparse.diags(4 * b / k * (f / k) ** 3) @ sums
        small = 1e-10 * bend.diagonal().max()  # which of several flows: F does not see it
        blocks = [[bend + small * sparse.eye(used.sum()), balance.T], [balance, -1e-12 * sparse.eye(balance.shape[0])]]
        right = np.concatenate([-sums.T @ by_flow, np.zeros(balance.shape[0])])
        adjoint = sparse_linalg.spsolve(sparse.bmat(blocks, format="csc"), right)[: used.sum()]
        return value, slope + unit * (sums @ adjoint)[tolled]
