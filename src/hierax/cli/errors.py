"""How the command line tells what went wrong: one line and an exit code; with --debug the traceback before the line.

Mistakes of the caller, failed runs, missing packages and files are one line each. Anything else is a bug of ours, which
shows its traceback without being asked: it may have come after hours.
"""

import traceback

import typer
from rich.console import Console

from hierax._base.errors import InputError, MissingExtra, RunFailed
from hierax.cli import codes, plugins

DEBUG = "--debug"


class OneLineErrors(typer.core.TyperGroup):
    """The group of all commands: its own and those of plugins. Turns exceptions into lines and exit codes.

    --debug may stand anywhere.
    """

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # as `invoke`
        """The own commands, then those of other packages."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(plugins.found()) - set(own))]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> typer.core.TyperCommand | None:  # type: ignore[override]
        """A command as the help lists it: of another package its name and a sentence, without importing it."""
        if cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)  # type: ignore[return-value]
        point = plugins.found().get(cmd_name)
        return None if point is None else typer.core.TyperCommand(cmd_name, help=plugins.summary(point))

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[str | None, object, list[str]]:  # type: ignore[override]
        """The command that is called; one of another package is imported."""
        command = plugins.loaded(args[0]) if args[0] not in self.commands else None
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
            Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(_code(error, ctx.invoked_subcommand)) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(codes.INTERRUPTED) from None

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


def _code(error: Exception, command: str | None) -> int:
    if command == "verify":
        return codes.UNREADABLE
    if isinstance(error, plugins.NoSuchCommand):
        return codes.MISSPELT
    return codes.FAILED if isinstance(error, RunFailed) else codes.REFUSED
