"""What is done today beside what is here: ways of testing a kernel, on the same mutants and the same controls.

    python benchmarks/detection.py [--catalogue | --generated | --both] [--most N] [--json FILE]

fixed   Fixed shapes, one random seed, one number for the whole tensor, in the manner of FLA's tests/ops/test_kda.py
        (test_chunk): torch seed 42, q and k = rand, L2-normalised, v = rand, g = logsigmoid(randn) / normalizer, half
        of it masked in one case, beta = sigmoid(randn), a random initial state; rms(ref - got) / (rms(ref) + 1e-8)
        < 0.005 for o and for the final state. B, T, H, normalizer and mask are those of its sixteen rows, as far as
        they still differ: value heads count as heads, since grouped heads, gates from logits, normalisation inside the
        kernel and gradients are no part of this kernel. D = K = V = 64, where theirs is 60, 64, 100 or 128, and C =
        32, where theirs is 64 or 32: a CPU runs it. This kernel splits the exponent and refuses stronger gates than
        its domain: where those of a chunk and channel sum to more, they are scaled down to what it takes.
dense   What one writes with Hypothesis in an hour: B and H up to 2, N up to 40, arrays of floats in [-1, 1] as
        `hypothesis.extra.numpy.arrays` draws them (a few values each, the rest filled with one more; zeros in the
        first tenth of the examples), normalised and rounded, 200 examples, numpy.allclose at 1e-2.
seeded  With --seeded: dense, but what is drawn is a seed, from which numpy.random.Generator.uniform fills the arrays.
ours    The laws, in one order for all mutants, whichever law is expected to catch them: reference A (f32, f16) and the
        mirror (f16) with 200 cases each, then every other law (f16) with 60.

All compare with reference A in float64, on inputs already rounded, but for those laws that need no reference.
fixed, dense and seeded are f16. All but fixed run on one tile, on which DK, DV, C and block_DV all differ.

A mutant is a kernel with one mistake: the entries of the catalogue that can be made in the kernel (but for those that
change nothing), or a sample of those made by rule, some of which may be equivalent: they count as missed by all. Each
strategy meets each mutant in a process of its own; a process that dies or hangs is a kill, whose cases and seconds are
not known. Mutants that do not compile are left out. The controls are correct: the original on several tiles, in three
formats each.

Seconds are those inside the strategy, until its first failure: drawing, launches and references, without compiling.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kda.case import Case
from kda.formats import Format, format_named
from kda.kernels import compile as compiling
from kda.mutation.campaign import CASE_SECONDS, COMPILE, KILLED, SURVIVED, TILE, Row, Search, Task, laws, run
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.hunt import Hunt, hunt
from kda.mutation.mutant import Mutant
from kda.numerics.domain import gate_domain
from kda.problem import Inputs, Outputs
from kda.references import ref_A_fast
from kda.suite.laws import Subject
from kda.suite.watch import Watch
from kda.support import TileChoice

MATCHES_A, MIRROR = "kernel.matches_reference_A", "kernel.matches_its_mirror"

#: What a search of the other strategies is called, where those of `ours` have the name of a law.
FIXED, DENSE, SEEDED = "fixed shapes", "dense arrays", "seeded arrays"

#: K = V, as in every test of FLA's; two blocks of value channels.
SQUARE_TILE = TileChoice(DK=64, DV=64, C=32, block_DV=32)

CONTROL_TILES = (
    TILE,
    SQUARE_TILE,
    TileChoice(DK=64, DV=48, C=16, block_DV=16),
    TileChoice(DK=32, DV=16, C=32),
    TileChoice(DK=32, DV=32, C=64),
    TileChoice(DK=16, DV=32, C=16, block_DV=32),
)

#: Seconds that one process may take with all its searches; a single case that hangs ends it after `CASE_SECONDS`.
TASK_SECONDS = 3600.0


# The strategies


class Shape(NamedTuple):
    """A row of FLA's test_chunk: batch, tokens, heads; what divides the gate; the share of it that is masked."""

    B: int
    T: int
    H: int
    normalizer: float
    mask: float


SHAPES = (
    Shape(1, 63, 1, 1, 0),
    Shape(2, 500, 3, 1, 0),
    Shape(2, 1000, 3, 1, 0.5),
    Shape(3, 1024, 4, 0.1, 0),
    Shape(4, 1024, 4, 1, 0),
    Shape(2, 1500, 4, 10, 0),
    Shape(4, 2048, 8, 1, 0),
    Shape(2, 1024, 4, 1, 0),
    Shape(2, 1024, 8, 1, 0),
    Shape(2, 160, 4, 1, 0),
)


def fixed_inputs(shape: Shape, tile: TileChoice, dtype: Format) -> Inputs:
    """The inputs of one of `SHAPES`, rounded."""
    torch.manual_seed(42)
    keys, values = (shape.B, shape.T, shape.H, tile.DK), (shape.B, shape.T, shape.H, tile.DV)
    q, k = (torch.nn.functional.normalize(torch.rand(keys), dim=-1) for _ in "qk")
    v = torch.rand(values)
    g = torch.nn.functional.logsigmoid(torch.randn(keys)) / shape.normalizer
    g = g * (torch.rand(keys) > shape.mask)
    beta = torch.randn(keys[:3]).sigmoid()
    state = torch.randn(shape.B, shape.H, tile.DK, tile.DV)
    weak = weakened(_array(g), tile.C, gate_domain(dtype, tile.C).total)
    return Inputs(_array(q), _array(k), _array(v), weak, _array(beta), _array(state), dtype).rounded()


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def weakened(g: np.ndarray, C: int, total: float) -> np.ndarray:
    """The gates g `[B, N, H, DK]`, in each chunk and channel where they sum to more than `total` scaled down to it."""
    g = g.copy()
    for start in range(0, g.shape[1], C):
        chunk = g[:, start : start + C]
        chunk *= np.minimum(1.0, total / np.maximum(-chunk.sum(axis=1, keepdims=True), total))
    return g


def rms_ratio(got: np.ndarray, expected: np.ndarray) -> float:
    """FLA's error ratio: of the whole tensor."""
    return rms(got - expected) / (rms(expected) + 1e-8)


def rms(values: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(values * values)))


def assert_close(got: Outputs, expected: Outputs) -> None:
    """FLA's assertion, at the tolerance it has for o and the final state."""
    for (name, mine), (_, right) in zip(got.tensors(), expected.tensors(), strict=True):
        if np.abs(mine - right).max() > 1e-6 or np.isnan(mine).any():
            ratio = rms_ratio(mine, right)
            assert ratio < 0.005, f"{name}: ratio {ratio:.3g}"


def hunt_fixed(subject: Subject, tile: TileChoice, watch: Watch) -> Hunt:
    """Run the fixed shapes in their order, until one fails."""
    started = time.perf_counter()
    for number, shape in enumerate(SHAPES, 1):
        watch.begin(f"law: {FIXED}\ncase: {number} of {len(SHAPES)}")
        try:
            inputs = fixed_inputs(shape, tile, subject.dtype)
            got = subject.run(inputs, tile.of(Case(dtype=subject.dtype)).tile)
            assert_close(got, ref_A_fast(inputs))
        except Exception as error:
            return Hunt(number, number, None, _said(error), time.perf_counter() - started)
        finally:
            watch.end()
    return Hunt(None, len(SHAPES), None, "", time.perf_counter() - started)


@st.composite
def dense_inputs(draw: st.DrawFn, tile: TileChoice, dtype: Format, seeded: bool = False) -> Inputs:
    """Small arrays of floats in [-1, 1], made into inputs that the kernel takes, rounded."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1))) if seeded else None

    def array(*shape: int) -> np.ndarray:
        if random is not None:
            return random.uniform(-1, 1, shape)
        return draw(arrays(np.float32, shape, elements=st.floats(-1, 1, width=32))).astype(np.float64)

    B, H, N = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 40))
    q, k = array(B, N, H, tile.DK), array(B, N, H, tile.DK)
    q, k = (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6) for x in (q, k))
    v = array(B, N, H, tile.DV)
    g = -np.abs(array(B, N, H, tile.DK)) * gate_domain(dtype, tile.C).per_token
    beta = np.abs(array(B, N, H))
    state = array(B, H, tile.DK, tile.DV) if draw(st.booleans()) else None
    return Inputs(q, k, v, g, beta, state, dtype).rounded()


def hunt_dense(subject: Subject, tile: TileChoice, seed: int, search: Search, watch: Watch) -> Hunt:
    """Look for a failure in dense examples, or seeded ones."""
    failure: tuple[int, float, Exception] | None = None
    examined = 0
    started = time.perf_counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=search.cases,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(inputs=dense_inputs(tile, subject.dtype, search.law == SEEDED))
    def examine(inputs: Inputs) -> None:
        nonlocal examined, failure
        examined += 1
        watch.begin(f"law: {search.law}\ncase: {examined}")
        try:
            got = subject.run(inputs, tile.of(Case(dtype=subject.dtype)).tile)
            for (name, mine), (_, right) in zip(got.tensors(), ref_A_fast(inputs).tensors(), strict=True):
                assert np.allclose(mine, right, rtol=1e-2, atol=1e-2), f"{name} is off by {np.abs(mine - right).max()}"
        except Exception as error:
            failure = failure or (examined, time.perf_counter() - started, error)
            raise
        finally:
            watch.end()

    try:
        examine()
    except Exception:
        if failure is None:
            raise
    if failure is None:
        return Hunt(None, examined, None, "", time.perf_counter() - started)
    cases, seconds, error = failure
    return Hunt(cases, examined, None, _said(error), seconds)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]


def searches_of_ours(*dtypes: str) -> tuple[Search, ...]:
    """Reference A in every format; then the mirror and every other law in the last."""
    others = [Search(law, dtypes[-1], 60) for law in sorted(laws()) if law not in (MATCHES_A, MIRROR)]
    return (*(Search(MATCHES_A, dtype) for dtype in dtypes), Search(MIRROR, dtypes[-1]), *others)


@dataclass(frozen=True)
class Strategy:
    """One way of testing. tile: on which it meets mutants; searches: what it does, given the formats."""

    tile: TileChoice
    dtypes: tuple[str, ...]
    searches: Callable[..., tuple[Search, ...]]
    seeded: bool = True


STRATEGIES: dict[str, Strategy] = {
    "fixed": Strategy(SQUARE_TILE, ("f16",), lambda dtype: (Search(FIXED, dtype, len(SHAPES)),), seeded=False),
    "dense": Strategy(TILE, ("f16",), lambda dtype: (Search(DENSE, dtype),)),
    "seeded": Strategy(TILE, ("f16",), lambda dtype: (Search(SEEDED, dtype),)),
    "ours": Strategy(TILE, ("f32", "f16"), searches_of_ours),
}


# What is done in the process of one mutant


@dataclass(frozen=True)
class Outcome(Row):
    """A row whose seconds are those of the strategy alone.

    compiling: seconds per kernel, where one was compiled and not found in the cache.
    """

    compiling: float | None = None


class Kernel:
    """A planted mutant, compiled for one format after the other as searches ask for it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.planted = task.mutant.planted()
        self._compiled: list[float] = []
        self._subjects: dict[str, Subject] = {}

    def subject(self, dtype: str) -> Subject:
        """The mutant in this format, compiled. What compiling it raises."""
        if dtype not in self._subjects:
            form, tile = format_named(dtype), self.task.tile
            case, before, started = tile.of(Case(dtype=form)), compiling.COUNTS.compiles, time.perf_counter()
            self.planted.prepare(case.inputs(), case.tile, "c")
            if compiling.COUNTS.compiles > before:
                self._compiled.append(time.perf_counter() - started)
            self._subjects[dtype] = Subject(self.planted, "c", form, (tile,))
        return self._subjects[dtype]

    @property
    def compiling(self) -> float | None:
        """Seconds per kernel that this process compiled."""
        return float(np.mean(self._compiled)) if self._compiled else None


def look(task: Task, folder: Path, worker: str) -> list[Row]:
    """Let the searches of a task look at its mutant until one finds a failure; a row per seed."""
    # A campaign compiles in a hurry; the seconds here are those of kernels as they are compiled everywhere else.
    compiling.C_FLAGS = tuple("-O3" if flag == "-O1" else flag for flag in compiling.C_FLAGS)
    watch = Watch(folder, worker, CASE_SECONDS)
    try:
        kernel = Kernel(task)
        for search in task.searches:
            kernel.subject(search.dtype)
    except Exception as error:
        return [Outcome(task.mutant.name, KILLED, COMPILE, said=_said(error))] * len(task.seeds)
    return [_look(kernel, seed, watch) for seed in task.seeds]


def _look(kernel: Kernel, seed: int, watch: Watch) -> Outcome:
    name, cases, seconds = kernel.task.mutant.name, 0, 0.0
    for search in kernel.task.searches:
        found = _hunt(kernel.subject(search.dtype), kernel.task.tile, search, seed, watch)
        if found is None:
            continue
        seconds += found.seconds
        if found.cases is not None:
            cases += found.cases
            return Outcome(name, KILLED, search.law, cases, seconds, None, found.said, compiling=kernel.compiling)
        cases += found.examined
    return Outcome(name, SURVIVED, None, cases, seconds, compiling=kernel.compiling)


def _hunt(subject: Subject, tile: TileChoice, search: Search, seed: int, watch: Watch) -> Hunt | None:
    if search.law == FIXED:
        return hunt_fixed(subject, tile, watch)
    if search.law in (DENSE, SEEDED):
        return hunt_dense(subject, tile, seed, search, watch)
    law = laws()[search.law]
    if not law.needs(subject) or (law.of and "kda_chunk" not in law.of):
        return None
    return hunt(law, subject, seed, search.cases, watch=watch, shrink=False)


# What is looked at


@dataclass(frozen=True)
class Control:
    """A correct kernel, on one tile in one format."""

    mutant: Mutant
    tile: TileChoice
    dtype: str

    @property
    def name(self) -> str:
        """What it is, on what."""
        return f"{self.mutant.name} {self.tile.id} {self.dtype}"


def controls() -> list[Control]:
    """Correct kernels."""
    original = Mutant("original", "what the mutants are made of", "kda_chunk")
    return [Control(original, tile, dtype) for tile in CONTROL_TILES for dtype in ("f16", "bf16", "f32")][:16]


def mutants_of_the_catalogue() -> list[Mutant]:
    """The entries that can be made in the kernel on a CPU, but for those that change nothing."""
    entries = CATALOGUE.values()
    return [e.mutant("kernel") for e in entries if "kernel" in e.forms and "c" in e.targets and not e.harmless]


def mutants_by_rule(most: int | None, only: Sequence[str], console: Console) -> list[Mutant]:
    """Generated mutants that lower to code of their own: at most `most`, evenly spread over all, or `only` these."""
    from kda.implementations import implementation
    from kda.mutation.lowering import distinct, lowered
    from kda.mutation.operators import generated
    from kda.mutation.reviewed import REVIEWED

    source = implementation("kda_chunk").sources()["kernel"]
    made = generated(source.text, source.function)
    known = REVIEWED["kda_chunk"]
    some = _spread([m for m in made if m.name not in known and (not only or m.name in only)], most)
    with console.status(f"lowering {len(some)} of {len(made)} generated mutants"):
        kept, same = distinct(some, source.text, source.function, lambda text: lowered(text, source.function))
    console.print(f"{len(some)} of {len(made)} generated mutants; {len(same)} lower to code already seen: left out")
    return [Mutant(m.name, m.sentence, "kda_chunk", (("kernel", m.source),)) for m in kept]


def _spread(items: Sequence[Any], most: int | None) -> list[Any]:
    count = len(items) if most is None else min(most, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def tasks_of(
    ways: Iterable[str], mutants: Iterable[Mutant], found: Iterable[Control], seed: int, control_seeds: int
) -> list[Task]:
    """A task per strategy of every mutant, and of every control from several seeds. Its name ends in the strategy's."""
    strategies = {key: STRATEGIES[key] for key in ways}
    tasks = []
    for mutant in mutants:
        for key, way in strategies.items():
            named = replace(mutant, name=f"{mutant.name}@{key}")
            tasks.append(Task(named, "c", way.searches(*way.dtypes), (seed,), way.tile, shrink=0))
    for control in found:
        for key, way in strategies.items():
            seeds = tuple(range(control_seeds if way.seeded else min(control_seeds, 1)))
            named = replace(control.mutant, name=f"{control.name}@{key}")
            tasks.append(Task(named, "c", way.searches(control.dtype), seeds, control.tile, shrink=0))
    return tasks


# What is printed


@dataclass
class Findings:
    """The rows of everything that compiled, by strategy and name."""

    mutants: dict[str, dict[str, Row]]
    controls: dict[str, dict[str, list[Row]]]

    def missed(self) -> list[str]:
        """The names of the mutants that some strategy missed."""
        names = next(iter(self.mutants.values()))
        return [name for name in names if any(rows[name].status == SURVIVED for rows in self.mutants.values())]


def table_of_strategies(findings: Findings, around: set[str]) -> Table:
    """A line per strategy. around: mutants whose mistake is not in the kernel but in its launch."""
    headings = [
        "strategy",
        "killed",
        "in the kernel",
        "around it",
        "cases to kill",
        "s to kill",
        "s per kernel compiled",
    ]
    headings += ["false alarms", "cases to pass", "s to pass"]
    table = _table(*headings, title="median / 95th percentile / most")
    for key, rows in findings.mutants.items():
        killed = [row for row in rows.values() if row.status == KILLED]
        passes = [row for made in findings.controls[key].values() for row in made]
        passed = [row for row in passes if row.status == SURVIVED]
        table.add_row(
            key,
            _share(rows.values()),
            _share(row for name, row in rows.items() if name not in around),
            _share(row for name, row in rows.items() if name in around),
            _spread_of(row.cases for row in killed),
            _spread_of(row.seconds for row in killed),
            _spread_of((getattr(row, "compiling", None) for row in rows.values()), 1),
            f"{len(passes) - len(passed)}/{len(passes)}",
            _spread_of((row.cases for row in passed), 1),
            _spread_of((row.seconds for row in passed), 1),
        )
    return table


def table_of_the_missed(findings: Findings) -> Table:
    """A line per mutant that some strategy missed: cases until it was caught, and by which of our laws."""
    table = _table("mutant", *findings.mutants, "caught by", title="missed by at least one")
    for name in findings.missed():
        rows = {key: by_name[name] for key, by_name in findings.mutants.items()}
        table.add_row(escape(name), *(_cases(row) for row in rows.values()), rows["ours"].law or "")
    return table


def table_of_false_alarms(findings: Findings) -> Table:
    """A line per control on which a strategy raised an alarm."""
    table = _table("control", "strategy", "seeds", "raised by", "said", title="false alarms")
    for key, by_name in findings.controls.items():
        for name, rows in by_name.items():
            raised = [row for row in rows if row.status == KILLED]
            if raised:
                by = "\n".join(sorted({row.law or "" for row in raised}))
                table.add_row(escape(name), key, f"{len(raised)} of {len(rows)}", by, escape(raised[0].said))
    return table


def _table(*headings: str, title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _share(rows: Iterable[Row]) -> str:
    states = [row.status == KILLED for row in rows]
    return f"{sum(states)}/{len(states)} {sum(states) / len(states):.1%}" if states else ""


def _cases(row: Row) -> str:
    if row.status == SURVIVED:
        return f"missed ({row.cases})"
    return str(row.law) if row.cases is None else str(row.cases)


def _spread_of(values: Iterable[float | None], numbers: int = 3) -> str:
    """Median, 95th percentile and largest of what is known; values that occur, so that a count stays a count."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    found = np.quantile(known, [0.5, 0.95, 1.0][:numbers], method="higher")
    return " / ".join(f"{value:.2f}" if isinstance(known[0], float) else f"{value}" for value in found)


def written(findings: Findings, options: dict[str, Any]) -> str:
    """Every row, as JSON."""
    rows = []
    for kind, by_strategy in (("mutant", findings.mutants), ("control", findings.controls)):
        for key, by_name in by_strategy.items():
            for name, made in by_name.items():
                for row in made if isinstance(made, list) else [made]:
                    more = {"compiling": getattr(row, "compiling", None), "said": row.said}
                    rows.append({**row.data(), "name": name, "kind": kind, "strategy": key, **more})
    return json.dumps({"options": options, "rows": rows}, indent=1) + "\n"


def _timed(row: Row) -> Row:
    # Of a process that died or hung only the time since it was queued is known.
    return row if isinstance(row, Outcome) else replace(row, seconds=None)


@click.command()
@click.option("--catalogue", "which", flag_value="catalogue", help="The mistakes of the catalogue (as without option).")
@click.option("--generated", "which", flag_value="generated", help="Mutants made by rule.")
@click.option("--both", "which", flag_value="both", help="Both.")
@click.option("--most", type=click.IntRange(1), help="At most this many of each, evenly spread [default: all].")
@click.option("--only", multiple=True, metavar="NAME", help="Only mutants of these names.")
@click.option("--seed", default=0, show_default=True, help="Of all but fixed, which has 42.")
@click.option("--workers", default=2, show_default=True, help="Processes at a time.")
@click.option(
    "--control-seeds", default=3, show_default=True, help="Runs per control of all but fixed, which has one; 0: none."
)
@click.option("--seeded", is_flag=True, help="A fourth strategy: dense, filled from a drawn seed.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write every row to this file.")
def main(
    which: str | None,
    most: int | None,
    only: tuple[str, ...],
    seed: int,
    workers: int,
    control_seeds: int,
    seeded: bool,
    path: Path | None,
) -> None:
    """Print what each strategy catches, misses and wrongly complains of, and how long it takes."""
    console = Console(width=180, highlight=False)
    planted: list[Mutant] = []
    if which != "generated":
        planted += _spread([m for m in mutants_of_the_catalogue() if not only or m.name in only], most)
    if which in ("generated", "both"):
        planted += mutants_by_rule(most, only, console)
    correct = controls() if control_seeds else []

    ways = [key for key in STRATEGIES if seeded or key != "seeded"]
    tasks = tasks_of(ways, planted, correct, seed, control_seeds)
    started = time.perf_counter()
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(tasks))
        rows = run(
            tasks,
            workers,
            TASK_SECONDS,
            each=lambda task, _: progress.update(bar, advance=1, description=escape(task.mutant.name)),
            work=look,
        )

    def of(name: str) -> dict[str, list[Row]]:
        return {key: [_timed(row) for row in rows[f"{name}@{key}"]] for key in ways}

    refused = [m.name for m in planted if any(made[0].law == COMPILE for made in of(m.name).values())]
    compiled = [mutant for mutant in planted if mutant.name not in refused]
    findings = Findings(
        {key: {mutant.name: of(mutant.name)[key][0] for mutant in compiled} for key in ways},
        {key: {control.name: of(control.name)[key] for control in correct} for key in ways},
    )
    around = {mutant.name for mutant in compiled if "kernel" not in dict(mutant.sources)}
    console.print(table_of_strategies(findings, around))
    console.print(table_of_the_missed(findings))
    console.print(table_of_false_alarms(findings))
    console.print(
        f"{len(compiled)} mutants, {len(correct)} controls, {time.perf_counter() - started:.0f} s; "
        f"{len(refused)} mutants that do not compile are left out{': ' if refused else ''}{', '.join(refused)}"
    )
    if path is not None:
        options = {"which": which or "catalogue", "most": most, "seed": seed, "control_seeds": control_seeds}
        path.write_text(written(findings, options))


if __name__ == "__main__":
    main()
