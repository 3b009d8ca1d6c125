"""The campaign: every mutant compiled and put under the laws in a process of its own.

A mutant may crash, hang or refuse to compile; each of these is a kill of its own kind. The processes are forked from a
server that has everything imported, so that a mutant costs its compilation and its cases and little else.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebble import CONSTS, ProcessExpired, ProcessPool

from kda.case import Case
from kda.formats import Format, format_named
from kda.mutation.mutant import Mutant
from kda.operation_support import FormChoice
from kda.support import TileChoice

if TYPE_CHECKING:
    from kda.suite.laws import Law, Subject
    from kda.suite.watch import Watch

__all__ = ["KILLED", "TILE", "Row", "Search", "Task", "examine", "run", "searches_of_everything", "server"]

#: The tile mutants are compiled for: C, block_DV, DK and DV all differ, two blocks of value channels, and all small.
TILE = TileChoice(DK=48, DV=64, C=16, block_DV=32)
#: The tile of the catalogue: the smallest with two blocks of value channels; one-hot keys come back after one chunk.
SMALLEST_TILE = TileChoice(DK=16, DV=32, C=16, block_DV=16)
#: The same of the Hopper program, which has one size: its narrowest walk.
HOPPER_TILE = TileChoice(DK=128, DV=128, C=64, block_DV=16)

KILLED, SURVIVED, STALE, EQUIVALENT = "killed", "survived", "stale", "equivalent"
#: Kills that no law made: the kernel did not compile, its process died, or one case took too long.
COMPILE, CRASH, HANG = "(refused by the compiler)", "(crashed)", "(hung)"
#: Seconds that one case may take; a launch takes milliseconds.
CASE_SECONDS = 30.0


@dataclass(frozen=True)
class Search:
    """One law looking at one operand format: at most `cases` cases. hiding: narrowed by this name of HIDING."""

    law: str
    dtype: str
    cases: int = 200
    hiding: str | None = None


@dataclass(frozen=True)
class Task:
    """One mutant and what to try on it, in this order, until something kills it; once per seed.

    shrink: for how many of the seeds the failing case is shrunk, which takes longer than finding it. original: what the
    unmutated source lowers to, by dtype (fingerprints of `Row`): where a mutant lowers to the same, nothing is tried.
    call: the form of the calls that laws of the operation are asked for; every one that its engine has where None.
    """

    mutant: Mutant
    target: str
    searches: tuple[Search, ...]
    seeds: tuple[int, ...] = (0,)
    tile: TileChoice = TILE
    shrink: int = 3
    original: Mapping[str, str] = field(default_factory=dict)
    call: FormChoice | None = None


@dataclass(frozen=True)
class Row:
    """What became of a mutant from one seed.

    status: killed, survived, stale or equivalent; law: what killed it; cases: until then, over all laws tried; seconds:
    until then, compilation included; case: the shrunk one; said: its failure, or why it is no mistake, in a line;
    fingerprints: of the code it lowers to, by dtype, as far as it was compiled.
    """

    name: str
    status: str
    law: str | None = None
    cases: int | None = None
    seconds: float | None = None
    case: str | None = None
    said: str = ""
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """The row as it is written to a file."""
        return {key: getattr(self, key) for key in ("name", "status", "law", "cases", "seconds", "case")}


def searches_of_everything() -> tuple[Search, ...]:
    """Every law of a kernel, in an order that finds most mistakes early: the references and the mirror first.

    In float32, whose budget is the smallest, then in the narrow formats: a rounding that is left out shows in one of
    them (bfloat16 has no type of its own on the CPU, float16 has).
    """
    first = ("kernel.matches_reference_A", "kernel.is_exact_on_the_lattice", "kernel.matches_its_mirror")
    early = [Search(law, dtype, 200) for dtype in ("f32", "f16", "bf16") for law in first]
    early.insert(len(first), Search("machine.no_index_leaves_its_tile", "f32", 40))
    rest = [name for name, law in sorted(laws().items()) if law.diagnosed and name not in first]
    late = [Search(law, dtype, 25) for law in rest for dtype in ("f32", "f16")]
    # What no law has seen by now may be a matter of rare inputs: the mirror is the sharpest.
    deep = [Search("kernel.matches_its_mirror", dtype, 500) for dtype in ("f32", "f16")]
    return (*early, *late, *deep)


@functools.cache
def laws() -> dict[str, Law]:
    """The laws of this checkout, by name."""
    import kda
    from kda.suite.laws import load_laws

    return load_laws(Path(kda.__file__).parent.parent / "properties")


#: What is done to a task in its process: (task, folder, worker) to its rows.
Work = Callable[[Task, Path, str], list[Row]]


def examine(task: Task, folder: Path, worker: str) -> list[Row]:
    """Plant the mutant in this process and let the laws look at it; a row per seed.

    folder, worker: where the case under way is kept, for whoever finds this process dead.
    """
    from kda.suite.watch import GpuLost, Watch

    started = time.perf_counter()
    try:
        planted = _Planted(task)
    except _Refused as error:
        return [_refused(task, error, time.perf_counter() - started)] * len(task.seeds)
    watch = Watch(folder, worker, CASE_SECONDS)
    rows: list[Row] = []
    for number, seed in enumerate(task.seeds):
        try:
            rows.append(planted.search(seed, watch, number < task.shrink))
        except _Refused as error:
            rows.append(_refused(task, error, time.perf_counter() - started))
        except GpuLost as error:  # the context is gone, and with it every later case
            rows.append(_dead(task, folder, worker, CRASH, time.perf_counter() - started, str(error)))
            break
    return [replace(row, fingerprints=planted.fingerprints) for row in rows]


class _Refused(Exception):
    """The mutant cannot be imported or compiled."""


class _Planted:
    """A mutant in this process, compiled for one format after the other as searches ask for it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.fingerprints: dict[str, str] = {}
        self._compiled: dict[tuple[TileChoice, str], bool] = {}
        self._seconds = 0.0
        try:
            self.implementation = task.mutant.planted()
        except Exception as error:
            raise _Refused(_in_a_line(error)) from error

    def search(self, seed: int, watch: Watch, shrink: bool) -> Row:
        """Every search in turn, until one finds a failure."""
        from kda.mutation.hunt import hunt

        cases, seconds = 0, 0.0
        for search in self.task.searches:
            ready = self._ready(search)
            if ready is None:
                continue
            law, subject, strategy = ready
            found = hunt(law, subject, seed, search.cases, strategy, watch, shrink)
            seconds += found.seconds
            if found.cases is not None:
                name, line = self.task.mutant.name, str(found.case) if shrink else None
                total = self._seconds + seconds
                return Row(name, KILLED, law.name, cases + found.cases, total, line, found.said)
            cases += found.examined
        if cases == 0 and self._compiled and not any(self._compiled.values()):
            return Row(self.task.mutant.name, EQUIVALENT, said="lowers to the same code")
        return Row(self.task.mutant.name, SURVIVED, None, cases, self._seconds + seconds)

    def _ready(self, search: Search) -> tuple[Law, Subject, Any] | None:
        from kda.mutation.hiding import HIDING
        from kda.suite.laws import Subject

        hiding = HIDING[search.hiding] if search.hiding else None
        law = laws()[hiding.law if hiding and hiding.law else search.law]
        dtype = format_named(search.dtype)
        if dtype not in self.implementation.dtypes(self.task.target):
            return None
        if law.of and self.implementation.name.partition("~")[0] not in law.of:
            return None
        if not law.diagnosed:
            return self._calling(law, dtype)
        subject = Subject(self.implementation, self.task.target, dtype)
        try:
            subject.support  # noqa: B018
        except Exception as error:
            raise _Refused(_in_a_line(error)) from error
        if subject.support.tiles is not None:
            tile = hiding.tile if hiding and hiding.tile else self.task.tile
            subject = Subject(self.implementation, self.task.target, dtype, (tile,))
            if not law.needs(subject) or not self._differs(tile, search.dtype):
                return None
        elif not law.needs(subject):
            return None
        return law, subject, hiding.cases(law, subject) if hiding else None

    def _calling(self, law: Law, dtype: Format) -> tuple[Law, Any, Any] | None:
        """What a law of the operation looks at: the first engine around the implementation."""
        from kda.implementations.program import Program

        found: list[Any] = [s for s in law.subjects(self.implementation, self.task.target) if s.dtype == dtype]
        if not found:
            return None
        subject = found[0]
        if self.task.call is not None and isinstance(subject.engine, Program):
            subject = replace(subject, engine=subject.engine.of(self.task.call))
            started = time.perf_counter()
            try:
                subject.engine.prepare(self.task.target, dtype)
            except Exception as error:
                raise _Refused(_in_a_line(error)) from error
            self._seconds += time.perf_counter() - started
        return law, subject, None

    def _differs(self, tile: TileChoice, dtype: str) -> bool:
        """Compile for `tile`; whether what comes out is anything else than what the original lowers to."""
        if (tile, dtype) not in self._compiled:
            started = time.perf_counter()
            case = tile.of(Case(dtype=format_named(dtype)))
            try:
                for given in (case, case.replace(state="zeros")):  # a state may make it another program
                    self.implementation.prepare(given.inputs(), case.tile, self.task.target)
                code = self.implementation.lowered(case.inputs(), case.tile, self.task.target)
            except Exception as error:
                raise _Refused(_in_a_line(error)) from error
            self._seconds += time.perf_counter() - started
            fingerprint = hashlib.sha256(code.encode()).hexdigest()[:16] if code else ""
            if tile == self.task.tile and code:
                self.fingerprints[dtype] = fingerprint
            # A rewritten launch runs the same kernel and is another mutant all the same.
            roles = {role for role, _ in self.task.mutant.sources}
            same = bool(code) and roles == {"kernel"} and self.task.original.get(dtype) == fingerprint
            self._compiled[tile, dtype] = not same
        return self._compiled[tile, dtype]


def _refused(task: Task, error: Exception, seconds: float) -> Row:
    return Row(task.mutant.name, KILLED, COMPILE, 0, seconds, None, str(error))


def _dead(task: Task, folder: Path, worker: str, kind: str, seconds: float, said: str) -> Row:
    """The row of a mutant whose process ended before it could tell."""
    from kda.suite.watch import last_case

    lines = dict(line.split(":", 1) for line in (last_case(folder, worker) or "").splitlines() if ":" in line)
    case = lines.get("case", "").strip() or None
    where = f" under {lines['law'].split(':')[0].strip()}" if "law" in lines else ""
    return Row(task.mutant.name, KILLED, kind, None, seconds, case, said + where)


def _in_a_line(error: Exception) -> str:
    text = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {text[-1].strip() if text else ''}"[:200]


def _in_child(work: Work, task: Task, folder: Path, worker: str) -> list[Row]:
    # A mutant that dies may print what it likes; the row says it in one line.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    started = time.perf_counter()
    _begun(folder, worker).touch()
    try:
        return work(task, folder, worker)
    except (SystemExit, KeyboardInterrupt) as left:  # the mutant's own; this process has no terminal
        return [_dead(task, folder, worker, CRASH, time.perf_counter() - started, type(left).__name__)]


def _begun(folder: Path, worker: str) -> Path:
    return folder / f"{worker}.begun"


@functools.cache
def server() -> Any:
    """The context whose processes are forked from one that has everything imported."""
    # Seconds until a pool sees that a process ended: most run for less than one.
    CONSTS.sleep_unit = 0.01
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kda.mutation.warm"])
    return context


def run(
    tasks: Sequence[Task],
    workers: int,
    seconds: float = 600.0,
    each: Callable[[Task, list[Row]], None] = lambda task, rows: None,
    work: Work = examine,
) -> dict[str, list[Row]]:
    """The rows of every task, by the name of its mutant: `workers` processes at a time, a new one for each task.

    seconds: that one task may take; each: called as they are done, with the task and its rows; work: what is done to a
    task in its process (a function that can be pickled), with a folder and a name for a `Watch`.
    """
    done: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as place, ProcessPool(workers, max_tasks=1, context=server()) as pool:
        folder = Path(place)
        begun: dict[Any, tuple[Task, str]] = {}
        for number, task in enumerate(tasks):
            future = pool.schedule(_in_child, [work, task, folder, f"m{number}"], timeout=seconds)
            begun[future] = task, f"m{number}"
        waiting: set[Any] = set(begun)
        while waiting:
            done_now: Any = wait(waiting, return_when=FIRST_COMPLETED)
            waiting = done_now.not_done
            for future in done_now.done:
                task, worker = begun[future]
                try:
                    rows = future.result()
                except TimeoutError:
                    rows = [_dead(task, folder, worker, HANG, seconds, f"more than {seconds:g} s")]
                except ProcessExpired as error:
                    # The watchdog of a single case ends its process with 1; anything else is the mutant's doing.
                    hung = error.exitcode == 1
                    said = f"a case took more than {CASE_SECONDS:g} s" if hung else f"exit status {error.exitcode}"
                    since = _begun(folder, worker)
                    took = time.time() - since.stat().st_mtime if since.exists() else 0.0
                    rows = [_dead(task, folder, worker, HANG if hung else CRASH, took, said)]
                done[task.mutant.name] = rows
                each(task, rows)
    return done
