"""How an experiment judges a statement of the paper: the words, whether it holds, and the numbers behind that."""

import dataclasses

NOT_JUDGED = "not judged"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A statement of the paper, whether it holds in this run, and the numbers that say so."""

    statement: str
    holds: str
    evidence: list[str]
