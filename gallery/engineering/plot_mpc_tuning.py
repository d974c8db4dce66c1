r"""
Tuning the weights of a model predictive controller
===================================================

A trolley is to be moved by 2 m. Every half second a model predictive controller plans the force of the next four half
seconds, at most 1 kN either way, and applies the first. Its model believes in a mass of 1 t; the trolley is loaded, and
has 2 t. Model and horizon are given. What an engineer can turn are the weights in the controller's objective: :math:`q`
on the speed, :math:`\rho` on the force. They are judged by what the real trolley does in six seconds.

The lower level is the controller, at all of its twelve decisions. From the state :math:`s_t` (m, m/s) it finds the plan
:math:`u_t`, :math:`|u_{tk}| \le 1` kN, that minimises

.. math:: \sum_{k=1}^{4} \mathrm{position}_k^2 + q\,\mathrm{speed}_k^2 + \rho\,u_{tk}^2

along the predictions of its model. A plan must not know how it will change later states, so the states belong to the
upper level: :math:`x` holds the two weights and :math:`s_1, \dots, s_{12}`, and upper constraints say that each state
follows from the last one and the first force of its plan, by the *real* mass. The upper objective is the sum of
squared positions and half the squared forces.
"""

import clarabel
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

import hierax as hx

jax.config.update("jax_enable_x64", True)  # twelve steps one after another: rounding adds up

STEP, HORIZON, T = 0.5, 4, 12  # seconds; steps of a plan; decisions
MODEL, REAL, START = 1.0, 2.0, np.array([2.0, 0.0])  # t; t; m and m/s
MOVE = np.array([[1.0, STEP], [0.0, 1.0]])
PUSH = np.array([STEP**2 / 2, STEP])  # what 1 kN does to a mass of 1 t within a step

# Predictions of the model are FREE s + FORCED u: positions and speeds at the four next steps.
powers = [np.linalg.matrix_power(MOVE, k) for k in range(HORIZON + 1)]
FREE = np.stack(powers[1:])
after = lambda k, j: powers[k - j] @ PUSH / MODEL if j <= k else np.zeros(2)  # what a push at j does at k
FORCED = np.array([[after(k, j) for j in range(HORIZON)] for k in range(HORIZON)]).transpose(0, 2, 1)
before = lambda x: jnp.concatenate([START[None], x["states"][:-1]])  # the states at which the controller decides


def controller(x, u, _):
    """The sum over the decisions of what the controller minimises."""
    q, rho = 10.0 ** x["weights"]
    ahead = jnp.einsum("kij,tj->tki", FREE, before(x)) + jnp.einsum("kij,tj->tki", FORCED, u)
    return jnp.sum(ahead[..., 0] ** 2 + q * ahead[..., 1] ** 2) + rho * jnp.sum(u**2)


def loop(x, u):
    """States minus what they should be; zero is asked for, from above and from below."""
    wrong = x["states"] - before(x) @ MOVE.T - u[:, :1] * PUSH / REAL
    return {"above": wrong, "below": -wrong}


problem = hx.Problem(
    upper=lambda x, u, _: jnp.sum(x["states"][:, 0] ** 2) + 0.5 * jnp.sum(u[:, 0] ** 2),
    lower=controller,
    upper_constraints=loop,
    x_set={"weights": hx.Box(-2.0, 1.0), "states": hx.Box(-5.0, 5.0)},  # weights as powers of ten
    y_set=hx.Box(-1.0, 1.0),
)

# %%
# The closed loop without hierax
# ------------------------------
# Clarabel solves the controller's quadratic program step by step. This gives a start whose states belong to its
# weights, and, on a grid of weights, the check.
ROWS = sparse.csc_matrix(np.vstack([np.eye(HORIZON), -np.eye(HORIZON)]))
SETTINGS = clarabel.DefaultSettings()
SETTINGS.verbose = False


def simulated(weights):
    """Cost, states and plans of twelve steps."""
    w, rho = np.array([1.0, 10.0 ** weights[0]]), 10.0 ** weights[1]
    bend = np.einsum("kia,i,kib->ab", FORCED, w, FORCED) + rho * np.eye(HORIZON)
    bend, cones = sparse.csc_matrix(np.triu(bend)), [clarabel.NonnegativeConeT(2 * HORIZON)]
    states, plans = [START], []
    for _ in range(T):
        slope = np.einsum("kia,i,ki->a", FORCED, w, FREE @ states[-1])
        plans.append(clarabel.DefaultSolver(bend, slope, ROWS, np.ones(2 * HORIZON), cones, SETTINGS).solve().x)
        states.append(MOVE @ states[-1] + PUSH / REAL * plans[-1][0])
    s, u = np.array(states[1:]), np.array(plans)
    return np.sum(s[:, 0] ** 2) + 0.5 * np.sum(u[:, 0] ** 2), s, u


FIRST = np.array([-1.0, -1.0])
first_cost, first_states, first_plans = simulated(FIRST)
sol = hx.solve(problem, {"weights": FIRST, "states": first_states}, first_plans)
weights = np.asarray(sol.x["weights"])
cost, states, _ = simulated(weights)
print(f"weights {10**weights}, closed-loop cost {sol.value:.5f}, simulated {cost:.5f}, before {first_cost:.5f}")
grid_q, grid_rho = np.linspace(-1.5, 1.0, 26), np.linspace(-2.0, 0.5, 26)
grid = np.array([[simulated((q, rho))[0] for q in grid_q] for rho in grid_rho])
assert abs(cost - sol.value) < 1e-3 and sol.value < grid.min() + 1e-3

# %%
# What is known
# -------------
# Other starts of the search end at higher costs; the grid covers the weights that an engineer would try.
print(*(line for line in sol.log if "Globality" in line))
print(sol.certificate)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
shown = left.contourf(10**grid_q, 10**grid_rho, grid, levels=np.arange(12.5, 18.1, 0.5), extend="max")
fig.colorbar(shown, ax=left, label="closed-loop cost")
left.plot(*10**FIRST, "ko", label="before")
left.plot(*10**weights, "r*", markersize=14, label="tuned")
left.set(xscale="log", yscale="log", xlabel="weight on the speed q", ylabel=r"weight on the force $\rho$")
left.legend(loc="upper left")
for line, color, name in ((first_states, "k", "before"), (states, "r", "tuned")):
    right.plot(STEP * np.arange(T + 1), [START[0], *line[:, 0]], color + ".-", label=name)
right.set(xlabel="seconds", ylabel="position of the trolley, m")
right.legend()
fig.tight_layout()
plt.show()
