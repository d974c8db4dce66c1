"""`hierax solve --json`: one JSON document on stdout and nothing else there, whatever the user's file prints."""

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from hierax._judge.certificate import Certificate
from hierax._run.solution import Solution
from hierax.reports.json_values import as_json
from hierax.reports.versions import versions

FORMAT = "hierax solve 1"
NUMBERS = ("violation", "max_violation", "lower_gap", "distance", "kkt_residual", "hypergradient_norm")


@contextmanager
def stdout_kept_for_json(wanted: bool) -> Iterator[TextIO]:
    """Where it is wanted, whatever is printed from now on goes to stderr; the stream it yields is the real stdout.

    Libraries that print from C write to the file descriptor, and may do so as late as at the end of the process. So
    the descriptor stays with stderr, and the document goes to a copy of it.
    """
    real = sys.stdout
    if not wanted:
        yield real
        return
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        try:
            descriptor, errors = real.fileno(), sys.stderr.fileno()
        except io.UnsupportedOperation:  # no files, but what a test has put there
            yield real
            return
        real.flush()
        copy = stack.enter_context(os.fdopen(os.dup(descriptor), "w", encoding="utf-8"))
        os.dup2(errors, descriptor)
        yield copy


def document(
    solution: Solution,
    certificate: Certificate | None,
    why_none: str | None,
    *,
    answer: Mapping[str, object],
    settings: Mapping[str, object],
    folder: Path,
    exit_code: int,
) -> str:
    """The document; docs/guides/commands.md lists its fields. Numbers that are not finite are null."""
    status = solution.status
    globality = [line for line in solution.log if line.startswith("Globality: ")]
    content = {
        "format": FORMAT,
        "exit_code": exit_code,
        "status": {"name": status.name, "message": status.message, "step": status.step, "ok": status.ok},
        "certificate": None if certificate is None else _certificate(certificate, solution.tol),
        "why_no_certificate": why_none,
        "globality": globality[-1].removeprefix("Globality: ") if globality else None,
        **{name: answer[name] for name in ("F", "x", "y", "multipliers", "problem")},
        "settings": settings,
        "counts": solution.counts,
        "log": solution.log,
        "versions": versions(),
        "folder": str(folder),
    }
    return json.dumps(as_json(content), indent=2)


def _certificate(certificate: Certificate, tol: float) -> dict[str, object]:
    numbers = {name: getattr(certificate, name) for name in NUMBERS}
    return {"verdict": certificate.verdict(tol), "tol": tol, "reasons": certificate.reasons(tol), **numbers}
