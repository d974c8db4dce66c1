"""Problems of BOLIB whose lower objective is strongly convex in y."""

from hierax_lab.problems.bolib.case import INF, Case, bounds

CASES = (
    Case(
        "AiyoshiShimizu1984Ex2",
        upper=lambda x, y: 2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60,
        lower=lambda x, y: (y[0] - x[0] + 20) ** 2 + (y[1] - x[1] + 20) ** 2,
        upper_rows=lambda x, y: [x[0] + x[1] + y[0] - 2 * y[1] - 40],
        rows=lambda x, y: [2 * y[0] - x[0] + 10, 2 * y[1] - x[1] + 10],
        x_set=bounds(0.0, 50.0),
        y_set=bounds(-10.0, 20.0),
        start=([10.0, 10.0], [20.0, 20.0]),
        best=([0.0, 0.0], [-10.0, -10.0]),
        values=(0.0, 200.0),
    ),
    Case(
        "AllendeStill2013",
        upper=lambda x, y: (x[0] - 1) ** 2 + (x[1] - 1) ** 2 + y[0] ** 2 + y[1] ** 2,
        lower=lambda x, y: y[0] ** 2 + y[1] ** 2 - 2 * x[0] * y[0] - 2 * x[1] * y[1],
        upper_rows=lambda x, y: [-y[0], -y[1]],
        rows=lambda x, y: [(y[0] - 1) ** 2 - 0.25, (y[1] - 1) ** 2 - 0.25],
        x_set=bounds(0.0, [2.0, INF]),
        start=([0.0, 0.0], [0.0, 0.0]),
        best=([0.5, 0.5], [0.5, 0.5]),
        values=(1.0, -0.5),
    ),
    Case(
        "Bard1988Ex1",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0],
        rows=lambda x, y: [-3 * x[0] + y[0] + 3, x[0] - 0.5 * y[0] - 4, x[0] + y[0] - 7],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([4.0], [0.0]),
        best=([1.0], [0.0]),
        values=(17.0, 1.0),
    ),
    Case(
        "Bard1988Ex2",
        upper=lambda x, y: -(200 - y[0] - y[2]) * (y[0] + y[2]) - (160 - y[1] - y[3]) * (y[1] + y[3]),
        lower=lambda x, y: (y[0] - 4) ** 2 + (y[1] - 13) ** 2 + (y[2] - 35) ** 2 + (y[3] - 2) ** 2,
        upper_rows=lambda x, y: [x[0] + x[1] + x[2] + x[3] - 40],
        rows=lambda x, y: [
            0.4 * y[0] + 0.7 * y[1] - x[0],
            0.6 * y[0] + 0.3 * y[1] - x[1],
            0.4 * y[2] + 0.7 * y[3] - x[2],
            0.6 * y[2] + 0.3 * y[3] - x[3],
        ],
        x_set=bounds(0.0, [10.0, 5.0, 15.0, 20.0]),
        y_set=bounds(0.0, [20.0, 20.0, 40.0, 40.0]),
        start=([5.0, 5.0, 15.0, 15.0], [0.0, 0.0, 0.0, 0.0]),
        best=([7.0, 3.0, 12.0, 18.0], [0.0, 10.0, 30.0, 0.0]),
        values=(-6600.0, 54.0),
    ),
    Case(
        "CalamaiVicente1994b",
        upper=lambda x, y: (
            ((x[0] - 1) ** 2 + (x[1] - 1) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 2) / 2 + (y[0] ** 2 + y[1] ** 2) / 2
        ),
        lower=lambda x, y: y[0] ** 2 / 2 - x[0] * y[0] + y[1] ** 2 / 2 - x[1] * y[1],
        rows=lambda x, y: [
            x[0] - y[0] - 1,
            x[1] - y[1] - 1,
            x[0] + y[0] - 1.5,
            x[1] + y[1] - 3,
            -x[0] - y[0] + 1,
            -x[1] - y[1] + 1,
        ],
        best=([1.25, 0.5, 1.0, 1.0], [0.25, 0.5]),
        values=(0.3125, -0.40625),
    ),
    Case(
        "CalamaiVicente1994c",
        upper=lambda x, y: (
            98.6 * x[0] ** 2
            + 55.4 * x[1] ** 2
            + 151.4 * x[2] ** 2
            + 194.6 * x[3] ** 2
            + 32.4 * x[0] * x[1]
            - 129.6 * x[0] * x[2]
            - 43.2 * x[0] * x[3]
            - 43.2 * x[1] * x[2]
            - 14.4 * x[1] * x[3]
            - 32.4 * x[2] * x[3]
            + 50 * y[0] ** 2
            + 50 * y[1] ** 2
            - 8.56 * x[0]
            - 9.52 * x[1]
            - 9.92 * x[2]
            - 16.64 * x[3]
            + 2
        ),
        lower=lambda x, y: (
            50 * y[0] ** 2
            + 50 * y[1] ** 2
            + y[0] * (-132.4 * x[0] - 10.8 * x[1] + 43.2 * x[2] + 14.4 * x[3])
            + y[1] * (-10.8 * x[0] - 103.6 * x[1] + 14.4 * x[2] + 4.8 * x[3])
        ),
        rows=lambda x, y: [
            13.24 * x[0] + 1.08 * x[1] - 4.32 * x[2] - 1.44 * x[3] - 10 * y[0] - 1,
            1.08 * x[0] + 10.36 * x[1] - 1.44 * x[2] - 0.48 * x[3] - 10 * y[1] - 1,
            13.24 * x[0] + 1.08 * x[1] - 4.32 * x[2] - 1.44 * x[3] + 10 * y[0] - 1.5,
            1.08 * x[0] + 10.36 * x[1] - 1.44 * x[2] - 0.48 * x[3] + 10 * y[1] - 3,
            -(13.24 * x[0] + 1.08 * x[1] - 4.32 * x[2] - 1.44 * x[3]) - 10 * y[0] + 1,
            -(1.08 * x[0] + 10.36 * x[1] - 1.44 * x[2] - 0.48 * x[3]) - 10 * y[1] + 1,
        ],
        best=([0.130849999641, 0.0519499998843, 0.102199999158, 0.0673999991974], [0.0250000000084, 0.0500000000011]),
        values=(0.3125, -0.406250000069),
    ),
    Case(
        "Colson2002BIPA2",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0] + x[0] ** 3,
        rows=lambda x, y: [-3 * x[0] + y[0] + 3, x[0] - 0.5 * y[0] - 4, x[0] + y[0] - 7],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([4.0], [0.0]),
        best=([1.0], [0.0]),
        values=(17.0, 2.0),
    ),
    Case(
        "Dempe1992b",
        upper=lambda x, y: (x[0] - 3.5) ** 2 + (y[0] + 4) ** 2,
        lower=lambda x, y: (y[0] - 3) ** 2,
        rows=lambda x, y: [y[0] ** 2 - x[0]],
        start=([-1.0], [-1.0]),
        best=([0.0], [0.0]),
        values=(28.25, 9.0),
    ),
    Case(
        "FloudasEtal2013",
        upper=lambda x, y: 2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60,
        lower=lambda x, y: (y[0] - x[0] + 20) ** 2 + (y[1] - x[1] + 20) ** 2,
        rows=lambda x, y: [x[0] + x[1] + y[0] - 2 * y[1] - 40, 2 * y[0] - x[0] + 10, 2 * y[1] - x[1] + 10],
        x_set=bounds(0.0, 50.0),
        y_set=bounds(-10.0, 20.0),
        start=([10.0, 10.0], [20.0, 20.0]),
        best=([0.0, 0.0], [-10.0, -10.0]),
        values=(0.0, 200.0),
    ),
    Case(
        "HatzEtal2013",
        upper=lambda x, y: -x[0] + 2 * y[0] + y[1],
        lower=lambda x, y: (x[0] - y[0]) ** 2 + y[1] ** 2,
        y_set=bounds(0.0, INF),
        best=([0.0], [0.0, 0.0]),
        values=(0.0, 0.0),
    ),
    Case(
        "HendersonQuandt1958",
        upper=lambda x, y: x[0] ** 2 / 2 + x[0] * y[0] / 2 - 95 * x[0],
        lower=lambda x, y: y[0] ** 2 + (x[0] / 2 - 100) * y[0],
        x_set=bounds(0.0, 200.0),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0]),
        best=([93.333333], [26.66666675]),
        values=(-3266.66666667, -711.111115556),
    ),
    Case(
        "LamparielloSagratella2017Ex32",
        upper=lambda x, y: x[0] ** 2 + y[0] ** 2,
        lower=lambda x, y: (x[0] + y[0] - 1) ** 2,
        best=([0.5], [0.5]),
        values=(0.5, 0.0),
    ),
    Case(
        "LuDebSinha2016f",
        upper=lambda x, y: -x[1],
        lower=lambda x, y: ((x[0] - 50) / 28) ** 2 + ((y[0] - 2.5) / 0.2) ** 2,
        upper_rows=lambda x, y: [
            -y[0] * (x[0] / 20 - 2) ** 2 + x[1],
            12.5 * y[0] * (x[0] / 20 - 5) - x[1],
            -5 * (x[0] / 20 + 4 - y[0]) * (x[0] / 20 + 8 - y[0]) + x[1],
            2 - y[0],
            y[0] - 4,
        ],
        x_set=bounds([-80.0, -100.0], 200.0),
        best=([200.0, 160.0], [2.5]),
        values=(-160.0, 28.6989795918),
    ),
    Case(
        "MacalHurter1997",
        upper=lambda x, y: (x[0] - 1) ** 2 + (y[0] - 1) ** 2,
        lower=lambda x, y: y[0] ** 2 / 2 + 500 * y[0] - 50 * x[0] * y[0],
        best=([10.016393], [0.81965]),
        values=(81.3278688529, -0.33591306125),
    ),
    Case(
        "MuuQuy2003Ex1",
        upper=lambda x, y: x[0] ** 2 - 4 * x[0] + y[0] ** 2 + y[1] ** 2,
        lower=lambda x, y: y[0] ** 2 + y[1] ** 2 / 2 + y[0] * y[1] + (1 - 3 * x[0]) * y[0] + (1 + x[0]) * y[1],
        rows=lambda x, y: [2 * y[0] + y[1] - 2 * x[0] - 1],
        x_set=bounds(0.0, 2.0),
        y_set=bounds(0.0, INF),
        start=([2.0], [0.0, 0.0]),
        best=([0.846154], [0.769231, 0.0]),
        values=(-2.07692307692, -0.591716331361),
    ),
    Case(
        "Outrata1990Ex2a",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: y[0] ** 2 / 2 + y[1] ** 2 / 2 - (3 + 1.333 * x[0]) * y[0] - x[0] * y[1],
        rows=lambda x, y: [-0.333 * y[0] + y[1] - 2, y[0] - 0.333 * y[1] - 2],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        best=([4.65], [2.99850074963, 2.99850074963]),
        values=(0.501501498126, -32.5335809606),
    ),
    Case(
        "Outrata1990Ex2c",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: (
            (1 + x[0]) * y[0] ** 2 / 2 + (1 + 0.1 * x[0]) * y[1] ** 2 / 2 - (3 + 1.333 * x[0]) * y[0] - x[0] * y[1]
        ),
        rows=lambda x, y: [-0.333 * y[0] + y[1] - 2, y[0] - 0.333 * y[1] - 2],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0, 0.0]),
        best=([3.4561622], [1.7070887, 2.5684605]),
        values=(1.86046248486, -10.931474906),
    ),
    Case(
        "Outrata1990Ex2d",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: y[0] ** 2 / 2 + y[1] ** 2 / 2 - (3 + 1.333 * x[0]) * y[0] - x[0] * y[1],
        rows=lambda x, y: [(-0.333 + 0.1 * x[0]) * y[0] + y[1] - x[0], y[0] + (-0.333 - 0.1 * x[0]) * y[1] - 2],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0, 0.0]),
        best=([2.85634294], [3.88074549705, 3.04015719027]),
        values=(0.848505424982, -22.9505557641),
    ),
    Case(
        "Outrata1990Ex2e",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: (1 + x[0]) * y[0] ** 2 / 2 + y[1] ** 2 / 2 - (3 + 1.333 * x[0]) * y[0] - x[0] * y[1],
        rows=lambda x, y: [(-0.333 + 0.1 * x[0]) * y[0] + y[1] - x[0], y[0] + (-0.333 - 0.1 * x[0]) * y[1] - 2],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0, 0.0]),
        best=([3.9985354], [1.66500893527, 3.88722365855]),
        values=(0.897459823057, -14.9289445885),
    ),
    Case(
        "Outrata1993Ex31",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: (
            (1 + 0.2 * x[0]) * y[0] ** 2 / 2
            + (1 + 0.1 * x[0]) * y[1] ** 2 / 2
            - (3 + 1.333 * x[0]) * y[0]
            - x[0] * y[1]
        ),
        rows=lambda x, y: [
            (-0.333 + 0.1 * x[0]) * y[0] + y[1] + 0.1 * x[0] - 2,
            y[0] + (-0.333 - 0.1 * x[0]) * y[1] + 0.1 * x[0] - 2,
        ],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0, 0.0]),
        best=([1.90951796], [2.97858786053, 2.23215125028]),
        values=(1.5628738408, -11.6826840127),
    ),
    Case(
        "Outrata1993Ex32",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: (
            (1 + 0.2 * x[0]) * y[0] ** 2 / 2
            + (1 + 0.1 * x[0]) * y[1] ** 2 / 2
            - (3 + 1.333 * x[0]) * y[0]
            - x[0] * y[1]
        ),
        rows=lambda x, y: [-0.333 * y[0] + y[1] + 0.1 * x[0] - 1, y[0] ** 2 + y[1] ** 2 - 0.1 * x[0] - 9],
        x_set=bounds(0.0, INF),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0, 0.0]),
        best=([4.06040641875], [2.68224443002, 1.48714675117]),
        values=(3.20770002622, -20.5296055865),
    ),
    Case(
        "Outrata1994Ex31",
        upper=lambda x, y: (y[0] - 3) ** 2 / 2 + (y[1] - 4) ** 2 / 2,
        lower=lambda x, y: (
            (1 + 0.2 * x[0]) * y[0] ** 2 / 2
            + (1 + 0.1 * x[0]) * y[1] ** 2 / 2
            - (3 + 1.333 * x[0]) * y[0]
            - x[0] * y[1]
        ),
        rows=lambda x, y: [-0.333 * y[0] + y[1] + 0.1 * x[0] - 1, y[0] ** 2 + y[1] ** 2 - 0.1 * x[0] - 9],
        x_set=bounds(0.0, 10.0),
        y_set=bounds(0.0, INF),
        start=([0.0], [0.0, 0.0]),
        best=([4.06040642781], [2.68224442959, 1.48714675225]),
        values=(3.20770002363, -20.5296056255),
    ),
    Case(
        "OutrataCervinka2009",
        upper=lambda x, y: -2 * x[0] - 0.5 * x[1] - y[1],
        lower=lambda x, y: y[0] - y[1] + x[0] * y[0] + x[1] * y[1] + y[0] ** 2 / 2 + y[1] ** 2 / 2,
        rows=lambda x, y: [y[1] - y[0], y[0] + y[1]],
        x_set=bounds(-INF, [0.0, INF]),
        y_set=bounds(-INF, [INF, 0.0]),
        best=([0.0, 0.0], [0.0, 0.0]),
        values=(0.0, 0.0),
    ),
    Case(
        "ShimizuAiyoshi1981Ex1",
        upper=lambda x, y: x[0] ** 2 + (y[0] - 10) ** 2,
        lower=lambda x, y: (x[0] + 2 * y[0] - 30) ** 2,
        upper_rows=lambda x, y: [-x[0] + y[0]],
        rows=lambda x, y: [x[0] + y[0] - 20],
        x_set=bounds(0.0, 15.0),
        y_set=bounds(0.0, 20.0),
        best=([10.0], [10.0]),
        values=(100.0, 0.0),
    ),
    Case(
        "ShimizuAiyoshi1981Ex2",
        upper=lambda x, y: (x[0] - 30) ** 2 + (x[1] - 20) ** 2 - 20 * y[0] + 20 * y[1],
        lower=lambda x, y: (x[0] - y[0]) ** 2 + (x[1] - y[1]) ** 2,
        upper_rows=lambda x, y: [-x[0] - 2 * x[1] + 30, x[0] + x[1] - 25],
        x_set=bounds(-INF, [INF, 15.0]),
        y_set=bounds(0.0, 10.0),
        best=([20.0, 5.0], [10.0, 5.0]),
        values=(225.0, 100.0),
    ),
    Case(
        "ShimizuEtal1997a",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0],
        rows=lambda x, y: [-3 * x[0] + y[0] + 3, x[0] - 0.5 * y[0] - 4, x[0] + y[0] - 7],
        best=([0.945945945946], [-0.162162162162]),
        values=(16.8918918919, 1.58071585099),
    ),
    Case(
        "SinhaMaloDeb2014TP8",
        upper=lambda x, y: (2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60) ** 2,
        lower=lambda x, y: (y[0] - x[0] + 20) ** 2 + (y[1] - x[1] + 20) ** 2,
        upper_rows=lambda x, y: [x[0] + x[1] + y[0] - 2 * y[1] - 40],
        rows=lambda x, y: [2 * y[0] - x[0] + 10, 2 * y[1] - x[1] + 10],
        x_set=bounds(0.0, 50.0),
        y_set=bounds(-10.0, 20.0),
        best=([0.0, 0.0], [-10.0, -10.0]),
        values=(0.0, 200.0),
    ),
    Case(
        "Yezza1996Ex41",
        upper=lambda x, y: (y[0] - 2) ** 2 / 2 + (x[0] - y[0] - 2) ** 2 / 2,
        lower=lambda x, y: y[0] ** 2 / 2 + x[0] - y[0],
        rows=lambda x, y: [y[0] - x[0]],
        y_set=bounds(0.0, INF),
        start=([-1.0], [-1.0]),
        best=([3.0], [1.0]),
        values=(0.5, 2.5),
    ),
)
