"""Problems of BOLIB whose lower objective is not convex in y."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from hierax_lab.problems.bolib.case import INF, Case, bounds


def _griewank(t: Float[Array, " n"]) -> Scalar:
    """Griewank's function of n variables."""
    return 1 + jnp.sum(t**2) / 4000 - jnp.prod(jnp.cos(t / jnp.sqrt(jnp.arange(1, t.size + 1))))


CASES = (
    Case(
        "AnEtal2009",
        upper=lambda x, y: (
            -1.9 * x[0] ** 2
            + 4.4 * x[0] * x[1]
            - 1.1 * x[1] ** 2
            + 1.2 * x[0] * y[0]
            - 2.2 * x[0] * y[1]
            + 0.6 * x[1] * y[0]
            + 1.8 * x[1] * y[1]
            + 0.4 * y[0] * y[1]
            + 935.74474 * x[0]
            + 87.53654 * x[1]
            + 121.96196 * y[0]
            + 299.24825 * y[1]
        ),
        lower=lambda x, y: (
            y[0] * (-17.85 * x[0] + 6.575 * x[1] - 18.21053)
            + y[1] * (30.325 * x[0] + 30.325 * x[1] + 13.05263)
            + 10.55102 * y[0] ** 2
            + 11.81633 * y[0] * y[1]
            - 7.22449 * y[1] ** 2
        ),
        upper_rows=lambda x, y: [
            3.88889 * x[1] + 4.88889 * y[0] + 7.44444 * y[1] - 61.57778,
            -2 * x[0] + 8.77778 * x[1] - 5.11111 * y[0] + 0.88889 * y[1] - 0.8,
            -y[0],
            -y[1],
        ],
        rows=lambda x, y: [
            5 * x[0] + 7.44444 * x[1] + 3.88889 * y[0] + 1.77778 * y[1] - 39.62222,
            -8.33333 * x[0] + 3 * x[1] + 6.88889 * y[0] + 6.11111 * y[1] - 60,
            -8.66667 * x[0] - 8.55556 * x[1] - 5.33333 * y[0] - 7 * y[1] + 72.37778,
            6.44444 * x[0] - 5.11111 * x[1] + 1.44444 * y[0] + 4.44444 * y[1] - 17.28889,
        ],
        x_set=bounds(0.0, INF),
        best=([0.200000889982, 1.99999715184], [3.99999828839, 4.60000454042]),
        values=(2251.55354947, 565.775202259),
    ),
    Case(
        "Mirrlees1999",
        upper=lambda x, y: (x[0] - 2) ** 2 + (y[0] - 1) ** 2,
        lower=lambda x, y: -x[0] * jnp.exp(-((y[0] + 1) ** 2)) - jnp.exp(-((y[0] - 1) ** 2)),
        y_set=bounds(-2.0, 2.0),
        best=([1.0], [0.957504024077]),
        values=(1.00180590797, -1.01986581833),
    ),
    Case(
        "MitsosBarton2006Ex310",
        upper=lambda x, y: y[0],
        lower=lambda x, y: x[0] * (16 * y[0] ** 4 + 2 * y[0] ** 3 - 8 * y[0] ** 2 - 1.5 * y[0] + 0.5),
        x_set=bounds(0.1, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([0.1], [0.5]),
        values=(0.5, -0.1),
    ),
    Case(
        "MitsosBarton2006Ex311",
        upper=lambda x, y: y[0],
        lower=lambda x, y: x[0] * (16 * y[0] ** 4 + 2 * y[0] ** 3 - 8 * y[0] ** 2 - 1.5 * y[0] + 0.5),
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-0.8, 1.0),
        best=([0.0], [-0.8]),
        values=(-0.8, 0.0),
    ),
    Case(
        "MitsosBarton2006Ex315",
        upper=lambda x, y: x[0] + y[0],
        lower=lambda x, y: x[0] * y[0] ** 2 / 2 - y[0] ** 3 / 3,
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-1.0], [1.0]),
        values=(0.0, -0.833333333333),
    ),
    Case(
        "MitsosBarton2006Ex316",
        upper=lambda x, y: 2 * x[0] + y[0],
        lower=lambda x, y: -x[0] * y[0] ** 2 / 2 - y[0] ** 4 / 4,
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-1.0], [0.0]),
        values=(-2.0, 0.0),
    ),
    Case(
        "MitsosBarton2006Ex317",
        upper=lambda x, y: (x[0] + 0.5) ** 2 + y[0] ** 2 / 2,
        lower=lambda x, y: x[0] * y[0] ** 2 / 2 + y[0] ** 4 / 4,
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-0.25], [0.5]),
        values=(0.1875, -0.015625),
    ),
    Case(
        "MitsosBarton2006Ex318",
        upper=lambda x, y: -(x[0] ** 2) + y[0] ** 2,
        lower=lambda x, y: x[0] * y[0] ** 2 - y[0] ** 4 / 2,
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([1.0], [0.0]),
        values=(-1.0, 0.0),
    ),
    Case(
        "MitsosBarton2006Ex321",
        upper=lambda x, y: (x[0] + 0.6) ** 2 + y[0] ** 2,
        lower=lambda x, y: (
            y[0] ** 4
            + (2 / 15) * (1 - x[0]) * y[0] ** 3
            + (-0.02 * x[0] ** 2 + 0.16 * x[0] - 0.4) * y[0] ** 2
            + (0.004 * x[0] ** 3 - 0.036 * x[0] ** 2 + 0.08 * x[0]) * y[0]
        ),
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-0.5545], [0.45545]),
        values=(0.2095049525, -0.0655978868684),
    ),
    Case(
        "MitsosBarton2006Ex322",
        upper=lambda x, y: (x[0] + 0.6) ** 2 + y[0] ** 2,
        lower=lambda x, y: (
            y[0] ** 4
            + (2 / 15) * (1 - x[0]) * y[0] ** 3
            + (-0.02 * x[0] ** 2 + 0.16 * x[0] - 0.4) * y[0] ** 2
            + (0.004 * x[0] ** 3 - 0.036 * x[0] ** 2 + 0.08 * x[0]) * y[0]
        ),
        rows=lambda x, y: [0.01 * (1 + x[0] ** 2) - y[0] ** 2],
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-0.5545], [0.45545]),
        values=(0.2095049525, -0.0655978868684),
    ),
    Case(
        "MitsosBarton2006Ex325",
        upper=lambda x, y: x[0] * y[0] + x[1] * y[0] ** 2 - x[0] * x[1] * y[2],
        lower=lambda x, y: x[0] * y[0] ** 2 + x[1] * y[1] * y[2],
        upper_rows=lambda x, y: [0.1 * y[0] * y[1] - x[0] ** 2, x[1] * y[0] ** 2],
        rows=lambda x, y: [y[0] ** 2 - y[1] * y[2], y[1] ** 2 * y[2] - y[0] * x[0], -(y[2] ** 2) + 0.1],
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-1.0, -1.0], [-1.0, 1.0, 1.0]),
        values=(-1.0, -2.0),
    ),
    Case(
        "MitsosBarton2006Ex326",
        upper=lambda x, y: x[0] * y[0] + x[1] * y[1] ** 2 + x[0] * x[1] * y[2] ** 3,
        lower=lambda x, y: x[0] * y[0] ** 2 + x[1] * y[1] ** 2 + (x[0] - x[1]) * y[2] ** 2,
        upper_rows=lambda x, y: [
            0.1 - x[0] ** 2,
            1.5 - y[0] ** 2 - y[1] ** 2 - y[2] ** 2,
            -2.5 + y[0] ** 2 + y[1] ** 2 + y[2] ** 2,
        ],
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([-1.0, -1.0], [1.0, 1.0, -0.70710678]),
        values=(-2.35355338881, -2.0),
    ),
    Case(
        "NieWangYe2017Ex52",
        upper=lambda x, y: x[0] * y[0] + x[1] * y[1] + x[0] * x[1] * y[0] * y[1] * y[2],
        lower=lambda x, y: x[0] * y[0] ** 2 + x[1] ** 2 * y[1] * y[2] - y[0] * y[2] ** 2,
        upper_rows=lambda x, y: [y[0] * y[1] - x[0] ** 2],
        rows=lambda x, y: [1 - y[0] ** 2 - y[1] ** 2 - y[2] ** 2, y[0] ** 2 + y[1] ** 2 + y[2] ** 2 - 2],
        x_set=bounds(-1.0, 1.0),
        best=([-1.0, -1.0], [1.10971225376, 0.314333079129, -0.818372426969]),
        values=(-1.70950940518, -2.23191420415),
    ),
    Case(
        "NieWangYe2017Ex57",
        upper=lambda x, y: x[0] ** 2 * y[0] / 2 + x[1] * y[1] ** 2 - (x[0] + x[1] ** 2) * y[2],
        lower=lambda x, y: x[1] * (y[0] * y[1] * y[2] + y[1] ** 2 - y[2] ** 3),
        upper_rows=lambda x, y: [-x[0] - x[1] + x[0] ** 2 + y[0] ** 2 + y[1] ** 2],
        rows=lambda x, y: [y[0] ** 2 + y[1] ** 2 + y[2] ** 2 - x[0], 2 * y[1] * y[2] - 1],
        x_set=bounds(-1.0, 1.0),
        best=([1.0, 1.0], [0.0, 0.0, 1.0]),
        values=(-2.0, -1.0),
    ),
    Case(
        "NieWangYe2017Ex58",
        upper=lambda x, y: (x[0] + x[1] + x[2] + x[3]) * (y[0] + y[1] + y[2] + y[3]),
        lower=lambda x, y: x[0] * y[0] + x[1] * y[1] + 0.1 * y[2] + 0.5 * y[3] - y[2] * y[3],
        upper_rows=lambda x, y: [
            x[0] ** 2 + x[1] ** 2 + x[2] ** 2 + x[3] ** 2 - 1,
            y[2] ** 2 - x[3],
            y[1] * y[3] - x[0],
        ],
        rows=lambda x, y: [
            y[0] ** 2 + 2 * y[1] ** 2 + 3 * y[2] ** 2 + 4 * y[3] ** 2 - x[0] ** 2 - x[2] ** 2 - x[1] - x[3],
            y[1] * y[2] - y[0] * y[3],
        ],
        start=([0.5442, 0.4682, 0.4904, 0.4942], [-0.7792, -0.5034, -0.2871, -0.1855]),
        best=(
            [0.513547019971, 0.504990024856, 0.488204948038, 0.492859474684],
            [-0.834644168853, -0.410368440653, -0.210590962677, -0.288722639006],
        ),
        values=(-3.48795725178, -0.862083788962),
    ),
    Case(
        "NieWangYe2017Ex61",
        upper=lambda x, y: y[0] ** 3 * (x[0] ** 2 - 3 * x[0] * x[1]) - y[0] ** 2 * y[1] + y[1] * x[1] ** 3,
        lower=lambda x, y: y[0] * y[1] ** 2 - y[1] ** 3 - y[0] ** 2 * (x[1] - x[0] ** 2),
        upper_rows=lambda x, y: [-y[1] - y[0] * (1 - x[0] ** 2)],
        rows=lambda x, y: [y[0] ** 2 + y[1] ** 2 - 1],
        x_set=bounds(-1.0, 1.0),
        start=([1.0, -1.0], [-1.0, 1.0]),
        best=([0.571218687799, -1.0], [-0.163838824538, 0.986487120835]),
        values=(-1.02193914092, -1.08384572505),
    ),
    Case(
        "PaulaviciusAdjiman2017a",
        upper=lambda x, y: x[0] ** 2 + y[0] ** 2,
        lower=lambda x, y: x[0] * y[0] ** 2 - y[0] ** 4 / 2,
        upper_rows=lambda x, y: [-y[0] - 1, y[0] - 1],
        x_set=bounds(-1.0, 1.0),
        y_set=bounds(-1.0, 1.0),
        best=([0.5], [0.0]),
        values=(0.25, 0.0),
    ),
    Case(
        "SinhaMaloDeb2014TP10",
        upper=lambda x, y: jnp.sum((x - 1) ** 2) + jnp.sum(y**2),
        lower=lambda x, y: jnp.exp(_griewank(x * y)),
        y_set=bounds(-jnp.pi, jnp.pi),
        start=([0.0] * 10, [0.0] * 10),
        best=([1.0] * 10, [0.0] * 10),
        values=(0.0, 1.0),
    ),
    Case(
        "SinhaMaloDeb2014TP9",
        upper=lambda x, y: jnp.sum((x - 1) ** 2) + jnp.sum(y**2),
        lower=lambda x, y: jnp.exp(_griewank(y) * jnp.sum(x**2)),
        y_set=bounds(-jnp.pi, jnp.pi),
        start=([0.0] * 10, [0.0] * 10),
        best=([1.0] * 10, [0.0] * 10),
        values=(0.0, 1.0),
    ),
    Case(
        "Vogel2012",
        upper=lambda x, y: (y[0] + 1) ** 2,
        lower=lambda x, y: y[0] ** 3 - 3 * y[0],
        rows=lambda x, y: [x[0] - y[0]],
        x_set=bounds(-3.0, 2.0),
        best=([-2.0], [-2.0]),
        values=(1.0, -2.0),
    ),
    Case(
        "YeZhu2010Ex42",
        upper=lambda x, y: (x[0] - 1) ** 2 + y[0] ** 2,
        lower=lambda x, y: y[0] ** 3 - 3 * y[0],
        rows=lambda x, y: [x[0] - y[0]],
        x_set=bounds(-3.0, 2.0),
        start=([-1.0], [-1.0]),
        best=([1.0], [1.0]),
        values=(1.0, -2.0),
    ),
    Case(
        "YeZhu2010Ex43",
        upper=lambda x, y: (x[0] - 0.5) ** 2 + (y[0] - 2) ** 2,
        lower=lambda x, y: y[0] ** 3 - 3 * y[0],
        rows=lambda x, y: [x[0] - y[0] - 3],
        x_set=bounds(0.0, 4.0),
        start=([-1.0], [-1.0]),
        best=([1.0], [1.0]),
        values=(1.25, -2.0),
    ),
)
