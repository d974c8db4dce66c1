"""Divisions of the digits for the weight-decay experiment: few training rows, some of them with wrong labels.

Few rows and wrong labels make networks overfit, which is what weight decay is for.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from hierax_lab.datasets import load
from hierax_lab.problems.weight_decay import Images

TRAIN, VALIDATION = 200, 200  # rows
CLASSES = 10  # digits


class Split(NamedTuple):
    """Training (with the noise in its labels), validation and test rows; clean validation and test labels."""

    train: Images
    validation: Images
    test: Images


def split(name: str, seed: int, noise: float, data_dir: Path | None) -> Split:
    """200 rows to train, 200 to validate, the rest to test; a share `noise` of the training labels is drawn anew."""
    data = load(name, data_dir=data_dir)
    features = (data.features / np.abs(data.features).max()).astype(np.float32)
    labels = data.labels.astype(np.int32)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    train, validation, test = np.split(order, [TRAIN, TRAIN + VALIDATION])
    wrong = labels[train].copy()
    replaced = rng.choice(TRAIN, round(noise * TRAIN), replace=False)
    wrong[replaced] = rng.integers(0, CLASSES, len(replaced))
    return Split((features[train], wrong), (features[validation], labels[validation]), (features[test], labels[test]))
