"""Exceptions and warnings of hierax: each text names the argument, what it got and what to do."""

import warnings


class InputError(ValueError):
    """A wrong argument, found before the first step.

    Examples:
        >>> import hierax as hx
        >>> try:
        ...     hx.Box(1.0, 0.0)
        ... except hx.InputError as error:
        ...     print(str(error).partition(":")[0])
        Box(lower=1.0, upper=0.0) is empty
    """


class RunFailed(RuntimeError):
    """A run that failed (`throw=True`). `solution` holds everything computed up to the failure.

    Args:
        message: the cause and the cure, which is also `solution.status.message`.
        solution: what was computed up to the failure.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: x**2,
        ...     lower=lambda x, y, xi: (y - x) ** 2,
        ...     constraints=lambda x, y: y**2 + 1.0,  # no y satisfies it
        ... )
        >>> try:
        ...     hx.solve(problem, 0.5, 0.5)
        ... except hx.RunFailed as failed:
        ...     print(failed.solution.status.name)
        infeasible
    """

    def __init__(self, message: str, solution: object) -> None:
        super().__init__(message)
        self.solution = solution


class MissingExtra(ImportError):
    """An optional package is not installed; the text is the line that installs it.

    Examples:
        >>> import hierax as hx
        >>> issubclass(hx.MissingExtra, ImportError)  # who guards an import guards this too
        True
    """


class HieraxWarning(UserWarning):
    """Something was repaired or looks risky; the text says what and what to do about it.

    Examples:
        >>> import hierax as hx, warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", hx.HieraxWarning)  # in this block such a warning is raised
    """


def printable(text: str) -> str:
    """A text without characters that steer a terminal: those are shown by their numbers.

    Examples:
        >>> print(printable("red: " + chr(27) + "[31m"))
        red: <1b>[31m
    """
    return "".join(one if one.isprintable() or one in "\n\t" else f"<{ord(one):x}>" for one in text)


def warn(text: str, above: int = 1) -> None:
    """Give a `HieraxWarning`; it shows the line that many calls above the one that calls this."""
    warnings.warn(printable(text), HieraxWarning, stacklevel=above + 2)
