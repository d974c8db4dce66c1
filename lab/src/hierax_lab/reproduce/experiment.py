"""The frame of every experiment: its folder, full or quick sizes, seeds, workers, console and files.

An experiment is a function of a `Run`. `experiment` turns it into what `hierax reproduce` calls.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from rich.console import Console

from hierax_lab.output import TableConsole, draw_or_say, versions, write_json, write_tables
from hierax_lab.reproduce.comparison import report_console
from hierax_lab.reproduce.verdict import NOT_JUDGED, Verdict
from hierax_lab.reproduce.workers import Name, Task, run_tasks

T = TypeVar("T")
P = ParamSpec("P")
Content = dict[str, Any]  # what metrics.json holds


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of an experiment.

    Attributes:
        out: folder for the results; it exists.
        quick: small sizes, which show that everything works; `judged` and `met` judge nothing then.
        seeds: number of starts or seeds that the user asks for; None: the experiment's own.
        data_dir: folder with data sets; None: the folder in HIERAX_DATA, or earlier downloads.
        console: where progress, tables and statements are printed.
    """

    out: Path
    quick: bool
    seeds: int | None
    data_dir: Path | None
    console: Console

    def sized(self, full: T, quick: T) -> T:
        """The full or the quick sizes."""
        return quick if self.quick else full

    def with_seeds(self, full: T, quick: T) -> T:
        """The full or the quick sizes, dataclasses with a field `seeds`, with as many seeds as the user asks for."""
        size: Any = self.sized(full, quick)
        return dataclasses.replace(size, seeds=self.seeds or size.seeds)

    def judged(self, statements: Sequence[Verdict]) -> list[Verdict]:
        """The statements as they are; of a quick run without a judgement and without evidence for one."""
        if not self.quick:
            return list(statements)
        return [Verdict(one.statement, f"{NOT_JUDGED}: a quick run", []) for one in statements]

    def met(self, rows: Sequence[Mapping[str, Any]]) -> list[Content]:
        """Targets as metrics.json has them; those of a quick run are neither met nor missed."""
        return [{**row, "met": None} if self.quick else dict(row) for row in rows]

    def measured(
        self,
        tasks: Mapping[Name, Task[T]],
        keep: Callable[[dict[Name, T]], object] | None = None,
        parallel: bool | None = None,
    ) -> dict[Name, T]:
        """The results of `run_tasks`; unless `parallel` says otherwise, a full run has a process for every core."""
        return run_tasks(tasks, self.console, not self.quick if parallel is None else parallel, keep)

    def write(self, content: Content, statements: Sequence[Verdict] = ()) -> Content:
        """Write metrics.json, with the versions and the judged statements; returns what it holds."""
        judged = {"statements": [dataclasses.asdict(statement) for statement in statements]}
        whole = {"versions": versions()} | judged | content
        write_json(self.out / "metrics.json", whole)
        return whole

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays to NAME.npz."""
        np.savez(self.out / f"{name}.npz", allow_pickle=False, **arrays)

    def write_curves(self, curves: Mapping[str, Sequence[object]], fields: Sequence[str], **more: np.ndarray) -> None:
        """Write fields of every method's runs to curves.npz, as NAME/SEED/FIELD; and further arrays."""
        arrays = {
            f"{name}/{seed}/{field}": getattr(curve, field)
            for name, runs in curves.items()
            for seed, curve in enumerate(runs)
            for field in fields
        }
        self.write_arrays("curves", arrays | more)

    def draw(self, draw: Callable[[Path], object]) -> None:
        """Draw into the folder `figures`; where matplotlib is missing, say so."""
        draw_or_say(lambda: draw(self.out / "figures"), self.console.out)

    def say_where(self) -> None:
        """Print the folder and what is in it."""
        names = ", ".join(sorted(path.name for path in self.out.iterdir()))
        self.console.print(f"Written to {self.out}: {names or 'nothing'}", highlight=False, soft_wrap=True)


def experiment(measure: Callable[Concatenate[Run, P], Content]) -> Callable[..., Content]:
    """The experiment as a function of folder, sizes and console, which also says where the results are."""

    @functools.wraps(measure)
    def run(
        out: Path,
        quick: bool = False,
        seeds: int | None = None,
        data_dir: Path | None = None,
        console: Console | None = None,
        **options: Any,
    ) -> Content:
        out.mkdir(parents=True, exist_ok=True)
        started = Run(out, quick, seeds, data_dir, console or report_console())
        try:
            content = measure(started, **options)  # type: ignore[call-arg]  # options of this experiment alone
        except KeyboardInterrupt:
            started.say_where()
            raise
        if isinstance(started.console, TableConsole):
            write_tables(out / "tables", started.console.tables)
        started.say_where()
        return content

    return run
