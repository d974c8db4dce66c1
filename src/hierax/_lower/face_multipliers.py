"""Multipliers of the faces of Y at a start, where callers give those of the constraints only."""

import jax
import jax.numpy as jnp

from hierax._math.lower_level import Level, RowVector

MAX_FACE_STEPS = 20  # conjugate gradient steps
CLEAR = 1e-6  # violations (in lengths) below this are never called infeasible, slacks below it are none


def with_faces(level: Level, mu: RowVector) -> RowVector:
    """Multipliers of the constraints, completed by those of the active faces that balance the Lagrangian's gradient.

    The least-squares solution, by conjugate gradients: the faces of Y are orthogonal, or nearly, and take few steps.
    """
    if not level.face.any():
        return mu
    rows, push = jax.linearize(level.rows, level.start)
    pull = jax.linear_transpose(push, level.start)
    active = level.face & (level.equal | (rows >= -CLEAR))
    gradient = jax.grad(level.objective)(level.start) + pull(mu)[0]

    def normal(m: RowVector) -> RowVector:
        return jnp.where(active, push(pull(jnp.where(active, m, 0.0))[0]), m)

    faces, _ = jax.scipy.sparse.linalg.cg(normal, jnp.where(active, -push(gradient), 0.0), maxiter=MAX_FACE_STEPS)
    return level.signed(mu + jnp.where(active, faces, 0.0))
