"""What the certificate of the large route's best point says: whether the route may end there."""

from hierax._auto.referee import Referee
from hierax._auto.stage_runner import Stage
from hierax._judge.certificate import Certificate


class Certifier:
    """Makes the certificate of a stage when it is first asked for, keeps the latest one, and reads it at `tol`."""

    def __init__(self, referee: Referee | None, tol: float) -> None:
        self._referee, self.tol = referee, tol
        self._known: tuple[Stage | None, Certificate | None] = (None, None)

    def known(self, stage: Stage) -> Certificate | None:
        """The certificate of the stage, where it was made."""
        of, certificate = self._known
        return certificate if of is stage else None

    def know(self, stage: Stage, certificate: Certificate) -> None:
        """Keep a certificate that was made elsewhere."""
        self._known = (stage, certificate)

    def certificate(self, stage: Stage) -> Certificate | None:
        """The certificate of the stage; None where the problem is too large or never seen as a whole."""
        if self._referee is not None and self._known[0] is not stage:
            self._known = (stage, self._referee.certificate(stage.end))
        return self.known(stage)

    def agrees(self, certificate: Certificate | None) -> bool:
        """Whether there is a certificate that says yes."""
        return certificate is not None and certificate.verdict(self.tol) == "yes"

    def objects(self, certificate: Certificate | None) -> bool:
        """Whether it says no: not where it cannot decide, as at a kink or in noise."""
        return certificate is not None and certificate.verdict(self.tol) == "no"

    def needs_more_samples(self, certificate: Certificate | None) -> bool:
        """Whether noise alone keeps it from saying yes or no."""
        if certificate is None or certificate.verdict(self.tol) != "unknown":
            return False
        return certificate.hypergradient_norm is not None and certificate.hypergradient_norm_se is not None

    def objection(self, certificate: Certificate) -> str | None:
        """The first thing that it objects to, in a sentence."""
        reasons = certificate.reasons(self.tol)
        return reasons[0] if reasons else None

    def in_a_line(self, certificate: Certificate) -> str:
        """The certificate for the log."""
        norm, error = certificate.hypergradient_norm, certificate.hypergradient_norm_se
        slope = "hyper-gradient unknown" if norm is None else f"hyper-gradient {norm:.2g}"
        slope += "" if error is None else f" +- {error:.1g}"
        gap = "unknown" if certificate.lower_gap is None else f"{certificate.lower_gap:.2g}"
        return (
            f"violation {certificate.max_violation:.2g}, lower gap {gap}, {slope} (its terms: "
            f"{certificate.hypergradient_scale:.2g}); {self.objection(certificate) or 'ok'}"
        )
