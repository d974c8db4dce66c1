"""The group of all commands: exit codes, errors in one line, and commands of other packages.

Mistakes of the caller, failed runs, missing packages and files are one line and an exit code; with --debug the
traceback comes before the line. Anything else is a bug of ours, which shows its traceback without being asked: it may
have come after hours.

A command of another package is an entry point of the group "hierax.commands" that names a `typer.Typer`. It is looked
for where a command is asked for that hierax itself does not have, or for the list in the help, and is imported where it
is called. So no plugin slows down or breaks another command.
"""

import signal
import traceback
from importlib.metadata import EntryPoint, entry_points

import typer
from rich.console import Console

from hierax._base.errors import InputError, MissingExtra, RunFailed, printable
from hierax._base.imports import GET_THE_LAB

# Exit codes; docs/guides/commands.md has them for users. 0 is said of an answer that the certificate confirms, never of
# a command that merely came to its end. 1: the call, the file or the machine is wrong; one line on stderr says what. 2
# is what every command line says to a misspelt option, so nothing else is. 3: there is an answer, and the certificate
# does not confirm it. 4: infeasible, unbounded, not finite, diverged, or its data ended.
CERTIFIED, REFUSED, MISSPELT, NOT_CERTIFIED, FAILED = range(5)
DONE = CERTIFIED  # of commands that give no answer to certify
INTERRUPTED, TERMINATED = (128 + number for number in (signal.SIGINT, signal.SIGTERM))  # as shells have it
VERDICTS = ("yes", "no", "unknown")  # `hierax verify`: the place of its verdict here is the exit code
UNREADABLE = len(VERDICTS)  # `hierax verify`: the problem or the answer cannot be read

DEBUG = "--debug"
LAB = {  # the commands of hierax-lab, and what the help says of them
    "bench": "Benchmarks: collections of problems, random problems, speed.",
    "datasets": "List the data sets, and whether each can be loaded now.",
    "reproduce": "Run an experiment of the paper and say which of its statements hold.",
}


class OneLineErrors(typer.core.TyperGroup):
    """The group of all commands: its own and those of plugins. Turns exceptions into lines and exit codes.

    --debug may stand anywhere.
    """

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # as `invoke`
        """The own commands, then those of other packages."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(plugins()) - set(own))]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> typer.core.TyperCommand | None:  # type: ignore[override]
        """A command as the help lists it: of another package its name and a sentence, without importing it."""
        if cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)  # type: ignore[return-value]
        point = plugins().get(cmd_name)
        if point is None:
            return None
        text = LAB.get(cmd_name) or f"A command of the package {_package(point)}."
        return typer.core.TyperCommand(cmd_name, help=text)

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[str | None, object, list[str]]:  # type: ignore[override]
        """The command that is called; one of another package is imported."""
        command = loaded(args[0]) if args[0] not in self.commands else None
        return super().resolve_command(ctx, args) if command is None else (args[0], command, args[1:])

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # as `invoke`
        """Bring --debug to the front, where the options of all commands are."""
        own = args[: args.index("--")] if "--" in args else args
        if DEBUG in own:
            args = [DEBUG, *(word for word in own if word != DEBUG), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # the base names a private class
        """Run a command."""
        try:
            return self._without_leaving(ctx)
        except (InputError, RunFailed, MissingExtra, OSError) as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            Console(stderr=True).print(
                printable(f"error: {error}"), style="red", markup=False, highlight=False, soft_wrap=True
            )
            raise typer.Exit(_code(error, ctx.invoked_subcommand)) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    def _without_leaving(self, ctx: typer.Context) -> object:
        """Run a command; a file of the user's that calls sys.exit() must not end it with a code that means "certified".

        Typer's own exits are exceptions of another kind.
        """
        try:
            return super().invoke(ctx)
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich's way to say that nobody reads the output
                raise
            raise InputError(
                f"a file or function of yours left Python by sys.exit({error.code!r}) before there was an answer. Take "
                'the call out, or put it under if __name__ == "__main__".'
            ) from error


class NoSuchCommand(InputError):
    """A command of a package that is not installed: wrong use, as a misspelt command is."""


def _code(error: Exception, command: str | None) -> int:
    if command == "verify":
        return UNREADABLE
    if isinstance(error, NoSuchCommand):
        return MISSPELT
    return FAILED if isinstance(error, RunFailed) else REFUSED


def plugins() -> dict[str, EntryPoint]:
    """The commands of installed packages by name."""
    return {point.name: point for point in entry_points(group="hierax.commands")}


def loaded(name: str) -> typer.core.TyperCommand | typer.core.TyperGroup | None:
    """The command of that name of another package; None where no package is known to have it."""
    point = plugins().get(name)
    if point is None:
        if name in LAB:
            raise NoSuchCommand(f"hierax {name} is a command of the package hierax-lab: {GET_THE_LAB}")
        return None
    try:
        return typer.main.get_command(point.load())  # type: ignore[return-value]  # the base class of the two is private
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"hierax {name}: the package {_package(point)} cannot be loaded: {said}") from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]
