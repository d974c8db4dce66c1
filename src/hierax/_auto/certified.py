"""What the certificate of the large route's best point says: whether the route may end there."""

from typing import NamedTuple

from hierax._auto.referee import Referee
from hierax._auto.stage_runner import Stage
from hierax._judge.certificate import Certificate, Verdict
from hierax._run.notes import NOTHING_KEPT, Notes


class Reading(NamedTuple):
    """A certificate as the route reads it.

    Attributes:
        verdict: yes, no or unknown.
        open_by_noise: whether noise alone keeps it from saying yes or no.
        objection: the first thing that it objects to, in a sentence; None: nothing.
        line: the certificate for the log.
    """

    verdict: Verdict
    open_by_noise: bool
    objection: str | None
    line: str

    @classmethod
    def of(cls, certificate: Certificate, tol: float) -> "Reading":
        """A certificate, read at a tolerance."""
        verdict, reasons = certificate.verdict(tol), certificate.reasons(tol)
        norm, error = certificate.hypergradient_norm, certificate.hypergradient_norm_se
        objection = reasons[0] if reasons else None
        slope = "hyper-gradient unknown" if norm is None else f"hyper-gradient {norm:.2g}"
        slope += "" if error is None else f" +- {error:.1g}"
        gap = "unknown" if certificate.lower_gap is None else f"{certificate.lower_gap:.2g}"
        line = (
            f"violation {certificate.max_violation:.2g}, lower gap {gap}, {slope} (its terms: "
            f"{certificate.hypergradient_scale:.2g}); {objection or 'ok'}"
        )
        return cls(verdict, verdict == "unknown" and norm is not None and error is not None, objection, line)

    @property
    def agrees(self) -> bool:
        """Whether it says yes."""
        return self.verdict == "yes"

    @property
    def objects(self) -> bool:
        """Whether it says no: not where it cannot decide, as at a kink or in noise."""
        return self.verdict == "no"


class Certifier:
    """Makes the certificate of a stage when it is first asked for, keeps the latest one, and reads it at `tol`.

    Readings are kept in the notes, certificates are not: a call that goes on takes over what earlier ones have read.
    """

    def __init__(self, referee: Referee | None, tol: float, notes: Notes = NOTHING_KEPT) -> None:
        self._referee, self.tol, self._notes = referee, tol, notes
        self._read = 0  # certificates so far
        self._stage: Stage | None = None
        self._reading: Reading | None = None
        self._certificate: Certificate | None = None

    def known(self, stage: Stage) -> Reading | None:
        """The reading of the stage's certificate, where it was made."""
        return self._reading if self._stage is stage else None

    def certificate_of(self, stage: Stage) -> Certificate | None:
        """The certificate itself, where this call has made it."""
        return self._certificate if self._stage is stage else None

    def know(self, stage: Stage, certificate: Certificate) -> None:
        """Keep a certificate that was made elsewhere."""
        self._stage, self._certificate, self._reading = stage, certificate, Reading.of(certificate, self.tol)

    def reading(self, stage: Stage) -> Reading | None:
        """The reading of the stage; None where the problem is too large or never seen as a whole."""
        if self._referee is not None and self._stage is not stage:
            name = f"certificate {self._read}"
            self._read += 1
            kept = self._notes.take(name, (Reading,))
            if kept is None:
                certificate = self._referee.certificate(stage.end)
                reading = None if certificate is None else Reading.of(certificate, self.tol)
                self._notes.put(name, [reading])
            else:
                certificate, (reading,) = None, kept
            self._stage, self._certificate, self._reading = stage, certificate, reading
        return self.known(stage)
