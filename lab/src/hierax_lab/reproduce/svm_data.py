"""The data of the SVM experiment: which sets, how their rows are dealt out, and what is done to the features.

The paper's sets are diabetes and fourclass, which hierax may not ship: they are used where the user has them.
Breast-cancer, which scikit-learn ships, takes the place of what is missing.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from hierax_lab import datasets

Part = tuple[np.ndarray, np.ndarray]  # features and labels in {-1, +1}

TRAIN, VALIDATION = 500, 150  # rows
SIZES = {"breast-cancer": (300, 100)}  # 569 rows are not enough for 500 and 150
PAPER_SETS, SUBSTITUTE = ("diabetes", "fourclass"), "breast-cancer"
QUADRATIC_SETS = ("diabetes",)  # with product features, as in the comparisons of the earlier papers


class Split(NamedTuple):
    """One random division of a data set."""

    train: Part
    validation: Part
    test: Part


def names(data_dir: Path | None) -> tuple[list[str], str]:
    """The sets to run on, and a note where some had to be replaced."""
    found = {name: datasets.availability(datasets.SOURCES[name], data_dir) for name in PAPER_SETS}
    here = [name for name, availability in found.items() if availability.now]
    if len(here) == len(PAPER_SETS):
        return here, ""
    missing = [f"{name} is not here ({found[name].text})" for name in PAPER_SETS if name not in here]
    place = "its place" if len(missing) == 1 else "their place"
    return [*here, SUBSTITUTE], f"{'; '.join(missing)}; {SUBSTITUTE} takes {place}."


def announced_names(data_dir: Path | None, console: Console) -> list[str]:
    """The sets to run on; a replacement is announced."""
    chosen, note = names(data_dir)
    if note:
        console.print(note, soft_wrap=True)
    return chosen


def split(name: str, seed: int, data_dir: Path | None) -> Split:
    """Deal out the rows of a set: train, validation, and all the others for the test."""
    scaled = name in PAPER_SETS
    data = datasets.load(name, scaled=scaled, data_dir=data_dir)
    features = data.features if scaled else datasets.scale(data.features)
    if name in QUADRATIC_SETS:
        features = datasets.quadratic_features(features)
    sizes = SIZES.get(name, (TRAIN, VALIDATION))
    rows = datasets.splits(data, (*sizes, len(features) - sum(sizes)), seed)
    return Split(*((features[part], data.labels[part]) for part in rows))
