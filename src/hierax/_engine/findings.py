"""What `check` hands back: one finding per assumption, and all of them as a table."""

import dataclasses
from typing import NamedTuple

from hierax._base.text import text_table


class Finding(NamedTuple):
    """One assumption: whether it holds (None: not looked at, and why), and where it fails."""

    name: str
    holds: bool | None
    text: str


@dataclasses.dataclass(frozen=True)
class Findings:
    """What `check` found, one finding per assumption; `print` gives a table."""

    all: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> list[Finding]:
        """The assumptions that fail."""
        return [finding for finding in self.all if finding.holds is False]

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        for finding in self.all:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {', '.join(finding.name for finding in self.all)}")

    def __str__(self) -> str:
        words = {True: "holds", False: "FAILS", None: "-"}
        return text_table("Assumptions", [(f.name, words[f.holds], f.text) for f in self.all])
