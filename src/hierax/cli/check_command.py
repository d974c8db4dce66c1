"""`hierax check`: what the methods assume of a problem, looked at before it is solved."""

from typing import Annotated

import typer

from hierax._base.interrupt import interruptible
from hierax._judge.check import check
from hierax.cli import codes, user_file
from hierax.cli.stated import Target, stated

EXAMPLE = "Example: hierax check problem.py:problem"


def check_problem(
    target: Target,
    points: Annotated[
        int,
        typer.Option(min=1, help="Segments around y0, sampled for convexity; half as many more cover Y."),
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled points.")] = 0,
) -> None:
    """Look whether a problem is what the methods assume: finite, convex below, a Slater point, LICQ.

    Samples can refute an assumption, never prove it. A problem with an assumption that
    fails may still have a certified answer.

    Exit codes:
      0  nothing spoke against it
      1  the file cannot be read; 2: an option is misspelt
      3  an assumption fails
    """
    given = stated(*user_file.split(target))
    with interruptible() as interrupt:  # Ctrl-C ends the look, and what was seen is printed
        found = check(*given, points=points, seed=seed)
    print(found)
    if interrupt.asked:
        raise KeyboardInterrupt
    raise typer.Exit(codes.DONE if found.ok else codes.NOT_CERTIFIED)
