"""Exceptions and warnings of hierax: each text names the argument, what it got and what to do."""


class InputError(ValueError):
    """A wrong argument, found before the first step."""


class RunFailed(RuntimeError):
    """A run that failed (`throw=True`). `solution` holds everything computed up to the failure."""

    def __init__(self, message: str, solution: object) -> None:
        super().__init__(message)
        self.solution = solution


class MissingExtra(ImportError):
    """An optional package is not installed; the text is the line that installs it."""


class HieraxWarning(UserWarning):
    """Something was repaired or looks risky; the text says what and what to do about it."""
