"""How often the first wrong stage is the right one: every mutant of the catalogue hunted down and diagnosed.

On a command line: `python -m kda.diagnosis.accuracy [--jobs N] [NAME ...]`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.case import Case
from kda.formats import format_named
from kda.mutation.campaign import KILLED, SURVIVED, Row, Task, laws, run
from kda.mutation.catalogue import CATALOGUE
from kda.problem import InputError

__all__ = ["Diagnosed", "accuracy", "diagnose", "print_diagnosed"]


@dataclass(frozen=True)
class Diagnosed(Row):
    """A row of a campaign, and what the diagnosis says of its failure.

    stage: the first wrong one, None where no run has wrong outputs; hunting, compiling, staging: seconds, of the hunt,
    of it and its shrinking, of the probed kernel's first run, and of a second one, which has nothing to compile.
    """

    stage: str | None = None
    hunting: float = 0.0
    compiling: float = 0.0
    staging: float = 0.0
    same_bits: bool = True

    @property
    def right(self) -> bool:
        """Whether it names what the catalogue says, or nothing where the catalogue names nothing."""
        stages = CATALOGUE[self.name].stages
        return self.stage in stages if stages else self.stage is None


def diagnose(task: Task, folder: Path, worker: str) -> list[Row]:
    """Hunt the mutant of `task`, and name the first wrong stage of the failing case; as `campaign.run` wants its work.

    One search and one seed alone. A row that is not `Diagnosed`: what it raised, where that is not its failure.
    """
    try:
        return [_diagnosed(task, folder, worker)]
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        return [Row(task.mutant.name, SURVIVED, said=f"{type(error).__name__}: {said}")]


def _diagnosed(task: Task, folder: Path, worker: str) -> Diagnosed:
    from kda.diagnosis.stages import first_wrong_stage
    from kda.diagnosis.wrong import examined, wrong_run
    from kda.mutation.hunt import hunt
    from kda.suite.laws import Subject
    from kda.suite.watch import Watch

    (search, *_), (seed, *_) = task.searches, task.seeds
    law, dtype = laws()[search.law], format_named(search.dtype)
    subject = Subject(task.mutant.planted(), task.target, dtype, (task.tile,))
    plain = task.tile.of(Case(dtype=dtype))
    subject.implementation.prepare(plain.inputs(), plain.tile, task.target)
    started = time.perf_counter()
    found = hunt(law, subject, seed, search.cases, watch=Watch(folder, worker, 30.0))
    hunting = time.perf_counter() - started
    if found.case is None:
        return Diagnosed(task.mutant.name, SURVIVED, None, found.examined, hunting, said="survived")
    made = Diagnosed(
        task.mutant.name, KILLED, law.name, found.cases, found.seconds, str(found.case), found.said, hunting=hunting
    )
    try:
        wrong = wrong_run(examined(law, subject, found.case))
    except InputError as error:  # of a run that should have been refused, and was not
        return replace(made, said=f"no reference takes these inputs: {error}")
    if wrong is None:
        return replace(made, said=f"no run is wrong by itself: {found.said}")
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        staged = first_wrong_stage(wrong)
        seconds.append(time.perf_counter() - started)
    return replace(
        made,
        stage=staged.stage,
        said="\n".join(staged.lines()),
        compiling=seconds[0] - seconds[1],
        staging=seconds[1],
        same_bits=staged.same_bits,
    )


def accuracy(
    target: str,
    workers: int,
    names: Iterable[str] = (),
    seed: int = 0,
    each: Callable[[Task, list[Row]], None] = lambda task, rows: None,
) -> Mapping[str, Sequence[Row]]:
    """The diagnosis of every mutant of the kernel that `target` can have; of `names` alone where they are given.

    workers: processes at a time; seed: of the hunts; each: told of them as they are done.
    """
    from kda.mutation.plans import plan_catalogue

    plan = plan_catalogue("kernel", target, (seed,), names)
    rows: dict[str, Sequence[Row]] = {row.name: [row] for row in plan.settled}
    rows.update(run(plan.tasks, workers, each=each, work=diagnose))
    return {name: rows[name] for name in CATALOGUE if name in rows}


def print_diagnosed(rows: Mapping[str, Sequence[Row]], console: Console) -> None:
    """A line per mutant, what is named and what should be; then how many are right, and the seconds that it took."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("mutant", "first wrong stage", "expected"):
        table.add_column(heading)
    for heading in ("hunt s", "compile s", "run s"):
        table.add_column(heading, justify="right")
    table.add_column("case", overflow="fold")
    made = [row for rows_of in rows.values() for row in rows_of]
    diagnosed = [row for row in made if isinstance(row, Diagnosed)]
    for row in made:
        expected = " or ".join(CATALOGUE[row.name].stages) or "-"
        if not isinstance(row, Diagnosed):
            table.add_row(escape(row.name), f"[red]{escape(row.said)}[/]", expected)
            continue
        stage = f"[{'green' if row.right else 'red'}]{escape(row.stage or '-')}[/]"
        stage += "" if row.same_bits else " (other bits)"
        seconds = [f"{s:.1f}" if s else "" for s in (row.hunting, row.compiling, row.staging)]
        table.add_row(escape(row.name), stage, escape(expected), *seconds, escape(row.case or row.said))
    console.print(table)
    right, staged = sum(row.right for row in diagnosed), [row for row in diagnosed if row.stage]
    console.print(f"{right} of {len(made)} right; {len(staged)} name a stage")
    if staged:
        means = [sum(s) / len(staged) for s in zip(*((r.hunting, r.compiling, r.staging) for r in staged), strict=True)]
        console.print("mean seconds: hunt {:.2f}, compiling the probed kernel {:.2f}, its run {:.2f}".format(*means))


def _progress(task: Task, rows: list[Row]) -> None:
    for row in rows:
        right = isinstance(row, Diagnosed) and row.right
        print(f"{task.mutant.name}: {'right' if right else 'WRONG: ' + row.said}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where one diagnosis is wrong."""
    parser = argparse.ArgumentParser(prog="python -m kda.diagnosis.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries of the catalogue; all where none is given")
    parser.add_argument("--target", default="c", choices=("c", "cuda"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the hunt")
    options = parser.parse_args(arguments)
    try:
        rows = accuracy(options.target, options.jobs, options.names, options.seed, _progress)
    except LookupError as error:
        parser.error(str(error))
    print_diagnosed(rows, Console())
    made = [row for rows_of in rows.values() for row in rows_of]
    return 0 if all(isinstance(row, Diagnosed) and row.right for row in made) else 1


if __name__ == "__main__":
    sys.exit(main())
