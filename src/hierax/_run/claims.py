"""What a run may claim: its residuals speak of the method's own reformulation, a certificate of the bilevel problem."""

from __future__ import annotations

import jax

from hierax._base.errors import InputError
from hierax._base.trees import size
from hierax._judge.certificate import Certificate
from hierax._problem.samples import Stream
from hierax._run.call import Call
from hierax._run.prepare import Prepared
from hierax._run.solution import Solution, changed
from hierax._run.status import Open, Reason, Status

MAX_CERTIFIED_ENTRIES = 2000  # entries of y and of the constraints; larger problems are certified when asked


def certified(solution: Solution, prepared: Prepared, call: Call, quality: str) -> Solution:
    """A solution whose residuals met the tolerance, with its certificate and the status that follows from it."""
    assert call.tol is not None
    step, tol = solution.status.step, call.tol
    why = _why_not_certified(prepared, call)
    if why is None:
        try:
            return changed(solution, status=_status(solution.certificate, tol, step, quality), tol=tol)
        except InputError as error:  # a set that does not state its faces, or a lower level no reference solver takes
            why = Open.NO_CERTIFICATE.text(error=error)
    return changed(
        solution, status=Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=tol, quality=quality, why=why), tol=tol
    )


def _status(certificate: Certificate, tol: float, step: int, quality: str) -> Status:
    verdict = certificate.verdict(tol)
    if verdict == "yes":
        return Reason.RESIDUALS_SMALL.status(step, tol=tol)
    objection = certificate.reasons(tol)[0]
    if verdict == "no":
        return Reason.RESIDUALS_SMALL_BUT_REFUTED.status(step, tol=tol, quality=quality, objection=objection)
    why = Open.UNDECIDED.text(objection=objection)
    return Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=tol, quality=quality, why=why)


def _why_not_certified(prepared: Prepared, call: Call) -> str | None:
    """Why no certificate is made before the run returns; None: it is made."""
    problem = prepared.problem
    if prepared.processes.shared:
        return Open.SEVERAL_PROCESSES.text()
    if any(isinstance(source, Stream) for source in (problem.zeta, problem.xi)):
        return Open.STREAM.text()
    rows = jax.eval_shape(prepared.bound.problem.rows, prepared.x, prepared.y)
    entries = size(prepared.y) + sum(row.size for row in jax.tree.leaves(rows))
    if entries > MAX_CERTIFIED_ENTRIES:
        return Open.TOO_LARGE.text(entries=entries)
    return Open.NO_TIME.text() if call.clock.passed else None
