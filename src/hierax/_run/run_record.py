"""What a run of steps leaves in a checkpoint: its state, its history, and where its streams are, all of one moment."""

from typing import NamedTuple

import numpy as np

from hierax._run.method import Costs
from hierax._run.packing import Gathered
from hierax._run.streams import Place

RUN = "run"  # the name of the record


class RunRecord(NamedTuple):
    """A run of steps between two chunks.

    Attributes:
        state: arrays of the method, every value filled in, and of the run.
        begin_step: steps made before the call.
        begin_x: arrays of x there.
        done: steps made by the call.
        seconds: spent in all calls so far, compilation apart.
        compile_seconds: spent compiling, by the call.
        waiting_seconds: spent waiting for data, in all calls so far.
        spent: samples and gradients before the first step.
        columns: the records of the history, by name.
        times: when each of them was made.
        places: where the streams are, by name.
    """

    state: Gathered
    begin_step: int
    begin_x: list[np.ndarray]
    done: int
    seconds: float
    compile_seconds: float
    waiting_seconds: float
    spent: Costs
    columns: dict[str, np.ndarray]
    times: np.ndarray
    places: dict[str, Place]


TYPES = (RunRecord, Gathered, Costs, Place)
