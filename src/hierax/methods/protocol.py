"""What every method tells the loop: the metrics of a step, and what a step costs."""

from typing import NamedTuple

from jaxtyping import PyTree, Scalar


class Metrics(NamedTuple):
    """What a step reports, all of it free: values on the step's own batches, violation in the user's units."""

    upper: Scalar
    lower: Scalar
    violation: Scalar
    step_x: Scalar
    step_y: Scalar
    residual: tuple[PyTree, PyTree, PyTree, PyTree]  # gradient mappings of x, y, z (step 1/L_Psi) and w
    raw_x: Scalar  # norm of the direction in x before the set held it back
    raw_y: Scalar
    push: Scalar  # c2 times the largest violation, in the method's own units: comparable with a gradient
    distance: Scalar  # ||y - w||: how far y is from the inner solution
    weight: Scalar  # alpha_k, the weight of this iterate in the paper's random output


class Costs(NamedTuple):
    """Samples and gradient evaluations of one outer step, or of the preparation before the first."""

    zeta: int = 0
    xi: int = 0
    grad_upper: int = 0
    grad_lower: int = 0
    vjp_constraints: int = 0
    lower_solves: int = 0
