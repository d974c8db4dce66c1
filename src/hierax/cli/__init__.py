"""The command line. One module per command (`solve_command`, `verify_command`, ...); they are put together here.

Thin: commands parse, call and print. What all of them share is here too: float64, compiled programs kept between calls,
and in `errors` mistakes of the user told in one line. Commands of other packages come in by `plugins`.
"""

from contextlib import suppress
from typing import Annotated

import jax
import typer

import hierax
from hierax._base.errors import InputError
from hierax._compile.configuration import cache
from hierax.cli import (
    check_command,
    demo_command,
    doctor_command,
    new_command,
    report_command,
    solve_command,
    verify_command,
)
from hierax.cli.errors import OneLineErrors

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
app.command("new", epilog=new_command.EXAMPLE)(new_command.new_problem)
app.command("check", epilog=check_command.EXAMPLE)(check_command.check_problem)
app.command("solve", epilog=solve_command.EXAMPLE)(solve_command.solve)
app.command("report", epilog=report_command.EXAMPLE)(report_command.write_report)
app.command("verify", epilog=verify_command.EXAMPLE)(verify_command.verify_answer)
app.command("doctor", epilog=doctor_command.EXAMPLE)(doctor_command.doctor)
app.command("demo", epilog=demo_command.EXAMPLE)(demo_command.demo)


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
