"""What a run may claim: its residuals speak of the method's own reformulation, a certificate of the bilevel problem."""

from __future__ import annotations

import jax

from hierax._base.errors import InputError
from hierax._base.trees import size
from hierax._judge.certificate import Certificate
from hierax._problem.problem import is_streamed
from hierax._run.call import Call
from hierax._run.prepare import Prepared
from hierax._run.solution import Solution, changed
from hierax._run.status import Open, Reason, Status

MAX_CERTIFIED_ENTRIES = 2000  # entries of y and of the constraints; larger problems are certified when asked


def certificate_or_why(solution: Solution, certify: bool = True) -> Certificate | str:
    """The certificate of a solution, made where it is not known and `certify` says so; or why there is none."""
    known = solution.known_certificate
    if known is not None:
        return known
    if solution.several_processes:
        return Open.SEVERAL_PROCESSES.text()
    if is_streamed(solution.problem):
        return Open.STREAM.text()
    if not certify:
        return Open.NOT_MADE.text()
    try:
        return solution.certificate
    except InputError as error:  # a set that does not state its faces, or a lower level no reference solver takes
        return Open.NO_CERTIFICATE.text(error=error)


def certified(solution: Solution, prepared: Prepared, call: Call, quality: str) -> Solution:
    """A solution whose residuals met the tolerance, with its certificate and the status that follows from it."""
    assert call.tol is not None
    step, tol = solution.status.step, call.tol
    found = _too_costly(prepared, call) or certificate_or_why(solution)
    if isinstance(found, Certificate):
        return changed(solution, status=_status(found, tol, step, quality), tol=tol)
    status = Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=tol, quality=quality, why=found)
    return changed(solution, status=status, tol=tol)


def _status(certificate: Certificate, tol: float, step: int, quality: str) -> Status:
    verdict = certificate.verdict(tol)
    if verdict == "yes":
        return Reason.RESIDUALS_SMALL.status(step, tol=tol)
    objection = certificate.reasons(tol)[0]
    if verdict == "no":
        return Reason.RESIDUALS_SMALL_BUT_REFUTED.status(step, tol=tol, quality=quality, objection=objection)
    why = Open.UNDECIDED.text(objection=objection)
    return Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=tol, quality=quality, why=why)


def _too_costly(prepared: Prepared, call: Call) -> str:
    """Why the certificate is not made before the run returns; empty: it is."""
    rows = jax.eval_shape(prepared.bound.problem.rows, prepared.x, prepared.y)
    entries = size((prepared.y, rows))
    if entries > MAX_CERTIFIED_ENTRIES:
        return Open.TOO_LARGE.text(entries=entries)
    return Open.NO_TIME.text() if call.clock.passed else ""
