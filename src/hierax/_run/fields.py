"""A solution in plain Python: where `sol.to_dict()`, `hierax solve --json`, answer.json and run.json have their fields.

docs/guides/answers.md says what each of them means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierax._base.files import Json
from hierax._base.json_values import as_json, tree_as_json, versions
from hierax._judge.certificate import Certificate

if TYPE_CHECKING:
    from hierax._run.solution import Solution, Solutions

GLOBALITY = "Globality: "  # begins the line of the log that says how global the answer is
CERTIFICATE_NUMBERS = ("violation", "max_violation", "lower_gap", "distance", "kkt_residual", "hypergradient_norm")


def fields_of(solution: Solution) -> dict[str, Json]:
    """All of them."""
    certificate, status = solution.known_certificate, solution.status
    globality = [line.removeprefix(GLOBALITY) for line in solution.log if line.startswith(GLOBALITY)]
    return {
        "status": {"name": status.name, "message": status.message, "step": status.step, "ok": status.ok},
        **answer_fields(solution),
        "certificate": None if certificate is None else certificate_fields(certificate, solution.tol),
        "globality": globality[-1] if globality else None,
        "starts": as_json(solution.starts),
        **run_fields(solution),
    }


def answer_fields(solution: Solution) -> dict[str, Json]:
    """The point and F."""
    multipliers = {name: tree_as_json(tree) for name, tree in solution.multipliers._asdict().items()}
    point = {"x": tree_as_json(solution.x), "y": tree_as_json(solution.y)}
    return {"F": as_json(solution.value), **point, "multipliers": multipliers}


def certificate_fields(certificate: Certificate, tol: float) -> dict[str, Json]:
    """What a certificate says at a tolerance, and its numbers."""
    numbers = {name: as_json(getattr(certificate, name)) for name in (*CERTIFICATE_NUMBERS, "upper_se")}
    return {"verdict": certificate.verdict(tol), "tol": tol, "reasons": as_json(certificate.reasons(tol)), **numbers}


def run_fields(result: Solution | Solutions) -> dict[str, Json]:
    """What was asked, with which method and versions, what it took, and what `Auto` said on the way."""
    settings, method = as_json(dict(result.arguments)), as_json(result.method)
    counts, log = as_json(result.counts), as_json(result.log)
    return {"settings": settings, "method": method, "counts": counts, "log": log, "versions": as_json(versions())}
