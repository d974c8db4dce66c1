"""`verify`: an independent check of somebody's answer to a problem: F, the certificate, and both hashes.

Nothing of the answer is trusted: F is computed from x and y on the problem's own data, the lower level is solved anew
by the certificate. What is stated beside the point, F and the hash of the problem, is compared.
"""

from typing import NamedTuple

import jax

from hierax._compile.fingerprint import Fingerprint, fingerprint
from hierax._judge.certificate import SHOWN_TOLERANCE, SURE, Certificate, Verdict
from hierax._judge.certifying import certify
from hierax._judge.point import judge_point
from hierax._problem.problem import Problem
from hierax._run.answers import Answer

SAME_VALUE_SHARE = 1e-6  # difference of F to the claimed one, relative to 1 + |F|


class Verification(NamedTuple):
    """What was found about an answer.

    Attributes:
        upper: F(x, y).
        certificate: of the point.
        problem: hash of the problem.
        objections: what is stated beside the point and is not so.
        remarks: what could not be compared.
    """

    upper: float
    certificate: Certificate
    problem: Fingerprint
    objections: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The certificate's, and "no" where something else was stated than is so."""
        return "no" if self.objections else self.certificate.verdict(SHOWN_TOLERANCE)


def verify(problem: Problem, answer: Answer) -> Verification:
    """Check an answer."""
    found = fingerprint(problem, answer.x, answer.y)
    upper = float(judge_point(problem, answer.x, answer.y).upper)
    certificate = certify(problem, answer.x, answer.y, multipliers=answer.multipliers)
    objections, remarks = [], []
    if answer.claimed is not None:
        allowed = SAME_VALUE_SHARE * (1 + abs(upper)) + 2 * SURE * (
            certificate.upper_se or 0.0
        )  # two samples may differ
        if not abs(upper - answer.claimed) <= allowed:
            objections.append(f"F is {upper:.10g}, not {answer.claimed:.10g} as claimed.")
    if answer.problem_hash is not None and found.sha256 is None:
        remarks.append(f"The problem has no hash to compare with: {found.why}.")
    elif answer.problem_hash is not None and answer.problem_hash != found.sha256:
        if answer.jax == jax.__version__:
            objections.append("The answer states the hash of another problem.")
        else:
            version = answer.jax or "an unknown version"
            remarks.append(f"The hash was made with JAX {version}, here is {jax.__version__}: not comparable.")
    return Verification(upper, certificate, found, tuple(objections), tuple(remarks))
