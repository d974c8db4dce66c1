"""What a method and the loop tell each other, as plain values: metrics of a step, residuals, costs, advice."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar


class PointLike(Protocol):
    """Where a method is: x and y, and whatever else it moves."""

    @property
    def x(self) -> PyTree: ...
    @property
    def y(self) -> PyTree: ...
    @property
    def _replace(self) -> Callable[..., Any]: ...


class MethodState(Protocol):
    """What the loop reads of a method's state."""

    @property
    def point(self) -> PointLike: ...
    @property
    def step(self) -> Int[Array, ""]: ...
    @property
    def key(self) -> PRNGKeyArray: ...
    @property
    def _replace(self) -> Callable[..., Any]: ...


class Residual(NamedTuple):
    """Gradient mappings, zero at a stationary point: of x, y, the multiplier z and the inner variable.

    An empty tuple where a method has no such block.
    """

    x: PyTree
    y: PyTree = ()
    z: PyTree = ()
    inner: PyTree = ()


class Metrics(NamedTuple):
    """What a step reports, all of it free: values on the step's own batches, violation in the user's units.

    Attributes:
        upper: F on the step's batch.
        lower: G on the step's batch.
        violation: largest violation of a constraint at the new point.
        step_x: distance that x moved.
        step_y: distance that y moved.
        residual: see `Residual`.
        raw_x: norm of the direction in x before the set X held it back.
        raw_y: the same for y.
        push: weight times the largest violation, in the method's own units, so that it compares with a gradient.
        distance: how far y is from the lower level's solution, as far as the method knows.
        weight: alpha_k, the weight of this iterate in the paper's random output.
        lower_status: of an exact lower solve; SOLVED where there was none.
    """

    upper: Scalar
    lower: Scalar
    violation: Scalar
    step_x: Scalar
    step_y: Scalar
    residual: Residual
    raw_x: Scalar
    raw_y: Scalar
    push: Scalar
    distance: Scalar
    weight: Scalar
    lower_status: Int[Array, ""] | int = 0


class Costs(NamedTuple):
    """Samples, gradients and lower solves."""

    zeta: int = 0
    xi: int = 0
    grad_upper: int = 0
    grad_lower: int = 0
    vjp_constraints: int = 0
    lower_solves: int = 0


class RunCosts(NamedTuple):
    """What a run costs before its first step, with every outer step, and after the last."""

    start: Costs
    step: Costs
    end: Costs = Costs()


class Begun(NamedTuple):
    """A method that is ready for its first step.

    Attributes:
        method: the method with every unset value filled in and every number an array.
        state: its state.
        doubts: reasons why the method cannot run on this problem, each with a flag that is True where it applies.
    """

    method: Any
    state: Any
    doubts: Mapping[str, Bool[Array, ""]] = MappingProxyType({})


class Advice(NamedTuple):
    """What the messages of a run recommend.

    Attributes:
        bring_y_closer: how y gets closer to the lower level's solution.
        shorten_steps: what to do where the run diverged and a step may be too long.
        lengthen_x_step: what to do where x hardly moves although its direction is not zero.
        no_step_too_long: what to do where the run diverged although no step exceeds its limit; empty: `shorten_steps`.
    """

    bring_y_closer: str = "a larger c brings it closer"
    shorten_steps: str = "Shorten the steps or leave them unset."
    lengthen_x_step: str = "lengthen its step."
    no_step_too_long: str = ""
