"""Runs from the folders that `hierax solve` wrote: run.json, history.csv and answer.json. Nothing in them is run."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from hierax._base.errors import InputError
from hierax.reports.content import RunContent, content_of

RUN = "run.json"
RUNNING = "running"  # status of a run that is under way
HISTORY = "history.csv"
ANSWER = "answer.json"


def run_in(folder: Path, name: str) -> RunContent:
    """The run in a folder; raises InputError where there is none, or where its files are damaged."""
    if not (folder / RUN).is_file():
        raise InputError(f"{folder}: holds no {RUN}; give a folder that `hierax solve --out` wrote.")
    facts = _read(folder / RUN)
    if not isinstance(facts.get("status"), dict):
        raise InputError(f"{folder / RUN}: is damaged (it states no status).")
    if facts["status"].get("name") == RUNNING:  # the other files are of an earlier run
        return content_of(name, facts, {})
    answer = _read(folder / ANSWER) if (folder / ANSWER).is_file() else {}
    columns = columns_in(folder / HISTORY) if (folder / HISTORY).is_file() else {}
    stated = answer.get("problem")
    problem_hash = str(stated.get("sha256") or "") if isinstance(stated, dict) else ""
    return content_of(name, {"value": answer.get("F"), **facts}, columns, problem_hash)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is damaged ({error}).") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: is damaged (it holds no object).")
    return found


def columns_in(path: Path) -> dict[str, np.ndarray]:
    """The columns of a history.csv by name."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        table = np.asarray(rows, float).reshape(len(rows), len(header))
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: is damaged ({error}).") from error
    return dict(zip(header, table.T, strict=True))
