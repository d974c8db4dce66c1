"""The problems of `hierax bench medium` by name, and which of them need data that may not be here."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hierax_lab import datasets
from hierax_lab.bench.macmpec import NAMES as MACMPEC
from hierax_lab.bench.macmpec import macmpec
from hierax_lab.bench.medium_case import MediumCase
from hierax_lab.bench.medium_data import group_logistic, ridge, svm_weights
from hierax_lab.bench.medium_models import followers, portfolio, traffic
from hierax_lab.bench.medium_planted import ellipsoids, noisy_quadratic, planted_qp, qpec
from hierax_lab.datasets.files import VARIABLE

OWN: dict[str, Callable[[], MediumCase]] = {
    "planted-5+100": partial(planted_qp, 5, 100, 50),
    "planted-20+200": partial(planted_qp, 20, 200, 100),
    "planted-40+400": partial(planted_qp, 40, 400, 100),
    "planted-10+1000": partial(planted_qp, 10, 1000, 300),
    "ellipsoids-10+60": partial(ellipsoids, 10, 60, 6),
    "ellipsoids-20+200": partial(ellipsoids, 20, 200, 10),
    "portfolio-20": partial(portfolio, 20),
    "portfolio-60": partial(portfolio, 60),
    "portfolio-120": partial(portfolio, 120),
    "followers": followers,
    "traffic": traffic,
    "group-logistic": group_logistic,
    "ridge": ridge,
    "noisy": noisy_quadratic,
    "svm-synthetic": partial(svm_weights, "synthetic", None),
}
QPECS = {f"qpec-100-{number}": number for number in (1, 2, 3, 4)}
SVM_SETS = {"svm-diabetes": "diabetes", "svm-fourclass": "fourclass"}
NAMES = [*OWN, *QPECS, *SVM_SETS]


def build(name: str, data_dir: Path | None) -> MediumCase:
    """The problem of that name."""
    if name in OWN:
        return OWN[name]()
    if name in QPECS:
        return qpec(QPECS[name], _folder(data_dir, "qpec"))
    if name in MACMPEC:
        return macmpec(name, _folder(data_dir, "macmpec"))
    return svm_weights(SVM_SETS[name], data_dir)


def missing(name: str, data_dir: Path | None) -> str:
    """Why a problem cannot be run here; empty where it can."""
    kept = "qpec" if name in QPECS else "macmpec"
    if name in [*QPECS, *MACMPEC] and not (_folder(data_dir, kept) / f"{name}.npz").is_file():
        return f"{name}: {name}.npz is not in the folder {kept} of the data folder (--data-dir or {VARIABLE})"
    if name in SVM_SETS:
        found = datasets.availability(datasets.SOURCES[SVM_SETS[name]], data_dir)
        return "" if found.now else f"{name}: {found.text}"
    return ""


def _folder(data_dir: Path | None, kept: str) -> Path:
    return (data_dir or Path(os.environ.get(VARIABLE, "."))) / kept
