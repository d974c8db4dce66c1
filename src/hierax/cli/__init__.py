"""The command line: the commands, put together.

Thin: commands parse, call and print. What all of them share is here too: float64, compiled programs kept between calls,
and in `group` mistakes of the user told in one line, and commands of other packages.
"""

from contextlib import suppress
from typing import Annotated

import jax
import typer

import hierax
from hierax._base.errors import InputError
from hierax._compile.configuration import cache
from hierax.cli import commands, doctor_command, solve_command
from hierax.cli.group import OneLineErrors

HELP = """Bilevel optimisation with a constrained lower level, from noisy samples.

Three commands to begin with:
  hierax demo                      a small problem: solved, certified, drawn
  hierax new problem.py            a commented problem of your own
  hierax solve problem.py:problem  an answer, and whether it can be trusted

hierax COMMAND --help has the options, an example and the exit codes;
docs/guides/commands.md has all of it on one page.
"""

app = typer.Typer(
    cls=OneLineErrors, help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
for command, example in (
    (commands.new_problem, "new problem.py"),
    (commands.check_problem, "check problem.py:problem"),
    (solve_command.solve, "solve problem.py:problem --seconds 60 --out run"),
    (commands.write_report, "report out/problem"),
    (commands.verify_answer, "verify problem.py:problem out/problem/answer.json"),
    (doctor_command.doctor, "doctor"),
    (commands.demo, "demo"),
):
    app.command(example.partition(" ")[0], epilog=f"Example: hierax {example}")(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hierax {hierax.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error before its line.")] = False,
) -> None:
    """Set up what all commands share; the text of the help is `HELP`."""
    jax.config.update("jax_enable_x64", True)
    _keep_programs()


def _keep_programs() -> None:
    """Keep compiled programs between calls, unless the user has chosen a folder for them or ours cannot be made."""
    if getattr(jax.config, doctor_command.SETTING) is None:
        with suppress(InputError):
            cache()
