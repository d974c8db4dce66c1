"""`python -m hierax` is the command line tool."""

from hierax.cli import app

app(prog_name="hierax")
