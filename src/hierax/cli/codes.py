"""Exit codes of the commands; `verify` has its own. docs/guides/commands.md has them for users.

0 is said of an answer that the certificate confirms, never of a command that merely came to its end. 2 is what every
command line says to a misspelt option, so nothing else is.
"""

from typing import Final

CERTIFIED: Final = 0  # the certificate says yes
DONE: Final = 0  # of commands that give no answer to certify
REFUSED: Final = 1  # the call, the file or the machine is wrong: one line on stderr says what
MISSPELT: Final = 2  # an option or a command that is not there
NOT_CERTIFIED: Final = 3  # ended, with an answer that the certificate does not confirm
FAILED: Final = 4  # the run failed: infeasible, unbounded, not finite, diverged, or its data ended
INTERRUPTED: Final = 130  # by Ctrl-C, as shells have it
TERMINATED: Final = 143  # by SIGTERM

VERIFIED: Final = {"yes": 0, "no": 1, "unknown": 2}  # `hierax verify`, by its verdict
UNREADABLE: Final = 3  # `hierax verify`: the problem or the answer cannot be read
