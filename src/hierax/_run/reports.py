"""What a method and the loop tell each other, as plain values: metrics of a step, residuals, costs, advice."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar


class PointLike(Protocol):
    """Where a method is: x and y, and whatever else it moves."""

    @property
    def x(self) -> PyTree: ...
    @property
    def y(self) -> PyTree: ...
    @property
    def _replace(self) -> Callable[..., Self]: ...


class MethodState(Protocol):
    """What the loop reads of a method's state."""

    @property
    def point(self) -> PointLike: ...
    @property
    def step(self) -> Int[Array, ""]: ...
    @property
    def key(self) -> PRNGKeyArray: ...
    @property
    def _replace(self) -> Callable[..., Self]: ...


class Residual(NamedTuple):
    """Gradient mappings, zero at a stationary point: of x, y, the multiplier z and the inner variable.

        r(u) = (u - Proj(u - d/L)) L     for a block u with direction d and smoothness L

    An empty tuple where a method has no such block.

    Attributes:
        x: of the upper variable.
        y: of the lower variable.
        z: of the multiplier.
        inner: of the inner variable.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Residual(x=0.5)
        Residual(x=0.5, y=(), z=(), inner=())

    References:
        docs/guides/own-method.md; `gradient_mapping`
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

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Metrics._fields[:4]  # hx.extend.step_metrics fills them in
        ('upper', 'lower', 'violation', 'step_x')
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
    """Samples, gradients and lower solves.

    Attributes:
        zeta: samples of zeta.
        xi: samples of xi.
        grad_upper: gradients of f.
        grad_lower: gradients of g.
        vjp_constraints: vector-Jacobian products of the constraints.
        lower_solves: exact solves of the lower level.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Costs(zeta=32, grad_upper=1).zeta
        32
    """

    zeta: int = 0
    xi: int = 0
    grad_upper: int = 0
    grad_lower: int = 0
    vjp_constraints: int = 0
    lower_solves: int = 0


class RunCosts(NamedTuple):
    """What a run costs before its first step, with every outer step, and after the last.

    Attributes:
        start: before the first step.
        step: of every outer step.
        end: after the last step.

    Examples:
        >>> import hierax as hx
        >>> costs = hx.extend.RunCosts(start=hx.extend.Costs(lower_solves=1), step=hx.extend.Costs(grad_upper=1))
        >>> costs.start.lower_solves, costs.end.lower_solves
        (1, 0)
    """

    start: Costs
    step: Costs
    end: Costs = Costs()


class Begun(NamedTuple):
    """A method that is ready for its first step.

    Attributes:
        method: the method with every unset value filled in and every number an array.
        state: its state.
        doubts: reasons why the method cannot run on this problem, each with a flag that is True where it applies.

    Examples:
        >>> import hierax as hx
        >>> dict(hx.extend.Begun(method=hx.SALVF(), state=None).doubts)
        {}
    """

    method: Any
    state: PyTree
    doubts: Mapping[str, Bool[Array, ""]] = MappingProxyType({})


class Advice(NamedTuple):
    """What the messages of a run recommend.

    Attributes:
        bring_y_closer: how y gets closer to the lower level's solution.
        shorten_steps: what to do where the run diverged and a step may be too long.
        lengthen_x_step: what to do where x hardly moves although its direction is not zero.
        no_step_too_long: what to do where the run diverged although no step exceeds its limit; empty: `shorten_steps`.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Advice(bring_y_closer="a smaller t brings it closer").shorten_steps
        'Shorten the steps or leave them unset.'
    """

    bring_y_closer: str = "a larger c brings it closer"
    shorten_steps: str = "Shorten the steps or leave them unset."
    lengthen_x_step: str = "lengthen its step."
    no_step_too_long: str = ""
