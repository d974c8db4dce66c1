"""`hierax verify`: somebody's answer to a problem, checked."""

from pathlib import Path
from typing import Annotated

import typer

from hierax._run import answers
from hierax._run.answers import Verification, verify
from hierax.cli import codes, user_file
from hierax.cli.stated import Target, stated

EXAMPLE = "Example: hierax verify problem.py:problem out/problem/answer.json"


def verify_answer(
    target: Target,
    answer: Annotated[Path, typer.Argument(metavar="ANSWER.json", help="x and y, as `hierax solve` writes them.")],
) -> None:
    """Check somebody's answer to a problem.

    Exit codes:
      0  the certificate says yes
      1  it says no, or F or the problem is not as claimed
      2  it is not decided (or an option is misspelt)
      3  the problem or the answer cannot be read
    """
    given_problem = stated(*user_file.split(target))
    given = answers.read(answer, *given_problem)
    found = verify(given_problem.problem, given)
    _print(found, given)
    raise typer.Exit(codes.VERIFIED[found.verdict])


def _print(found: Verification, given: answers.Answer) -> None:
    print(found.certificate)
    print(f"F        {found.upper:.10g}" + ("" if given.claimed is None else f" (claimed: {given.claimed:.10g})"))
    print(f"problem  {found.problem.sha256 or f'no hash: {found.problem.why}'}")
    print(f"answer   {given.sha256}")
    for line in (*found.objections, *found.remarks):
        print(line)
    print(f"verdict  {found.verdict}")
