"""What stands for zeta and xi inside the programs of a run: data on a mesh, rows of several processes, fed batches."""

import equinox as eqx
import jax
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._compile.placement import Placement
from hierax._problem.files import FiniteFiles
from hierax._problem.problem import Problem
from hierax._problem.samples import AbstractSource, Finite, HostBatches
from hierax._run.processes import Processes
from hierax._run.streams import Feeder


def sources_for_programs(
    problem: Problem, feeders: dict[str, Feeder], placement: Placement | None, processes: Processes
) -> dict[str, AbstractSource]:
    """The sources that programs see otherwise than the user gave them, by name."""
    found: dict[str, AbstractSource] = {}
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        if name in feeders:
            batch = len(jax.tree.leaves(feeders[name].peek())[0])
            if processes.shared:
                _check_parts(f"Stream {name}: a batch", batch, placement, processes)
            found[name] = HostBatches(batch * processes.count)
        elif isinstance(source, FiniteFiles):
            if processes.shared:
                raise InputError(
                    f"Problem({name}): rows of files are read by one process, and there are {processes.count}. Give "
                    "each of them its own rows in memory, hx.Finite(rows, local=True)."
                )
            found[name] = HostBatches(source.default_batch())
        elif isinstance(source, Finite) and placement is not None:
            found[name] = _placed(name, source, placement, processes)
    return found


def _placed(name: str, source: Finite, placement: Placement, processes: Processes) -> Finite:
    if all(placement.holds(leaf) for leaf in jax.tree.leaves(source.arrays)):
        return source  # the user has put them there
    if source.local and processes.shared:
        _check_parts(f"Finite {name}", source.size, placement, processes)
        arrays = placement.put_own_rows(source.arrays)
    else:
        processes.check_alike({f"Finite {name}": source.arrays})
        arrays = placement.put_rows(source.arrays)
    return eqx.tree_at(lambda finite: finite.arrays, source, arrays)


def _check_parts(what: str, rows: int, placement: Placement | None, processes: Processes) -> None:
    """Refuse parts of the data that do not make up a whole which the mesh can spread."""
    assert placement is not None
    if placement.starts is not None:
        raise InputError(
            f"{what}: solve_many spreads its starts over the devices, and each of them needs all of the data. Give "
            "every process all of it, as hx.Finite(arrays)."
        )
    if not placement.processes_have_rows_of_their_own:
        raise InputError(
            f"{what}: the mesh puts the same rows on devices of several processes, so that none has a part of its own. "
            f"Let the axis {placement.data or 'data'!r} run across the processes and 'model' inside of each."
        )
    counts = processes.exchanged(rows)[:, 0]
    each = placement.parts // processes.count
    if len(set(counts.tolist())) > 1 or rows % each:
        raise InputError(
            f"{what}: the processes have {counts.tolist()} rows; each needs as many as the others, and a multiple of "
            f"the {each} devices that it has along {placement.data!r}. Drop or repeat some."
        )


def on_mesh(batches: PyTree, axis: int, placement: Placement | None, processes: Processes) -> PyTree:
    """Batches of a stream, with their samples along an axis, where the run's programs want them."""
    if placement is None:
        return batches
    return (placement.put_own_rows if processes.shared else placement.put_rows)(batches, axis)
