"""Laws: what a property is made of.

    @law(cases, gates=("shared",))
    def test_a_shared_gate_is_gated_delta_net(subject, case):
        '''One sentence that states the law. Why an edit can break it.'''
        ...

The body takes a `Subject` (the implementation under test, its target and dtype) and a `Case`, computes what it needs,
and says what must hold with `within` and `same_bits`. All it does follows from the case, so that one line reruns it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kda.case import Case
from kda.formats import F64, Format
from kda.implementations import PLAIN, Implementation, Memory
from kda.numerics.budget import (
    Budget,
    Judged,
    Units,
    accumulated,
    doubling_units,
    judge,
    mirror_units,
    operand_units,
)
from kda.numerics.compare import compare, difference, row_errors
from kda.numerics.steps import judge_recurrent
from kda.problem import Inputs, Outputs, Tile
from kda.suite.record import Record
from kda.suite.watch import Watch
from kda.support import Support, TileChoice

__all__ = ["LAWS", "Disagreement", "Law", "Subject", "bounded", "broken", "law", "meaningful", "same_bits", "within"]


class Disagreement(AssertionError):
    """Outputs that should agree and do not; budget: None where every bit must."""

    def __init__(self, said: str, got: Outputs, expected: Outputs, budget: Budget | None = None) -> None:
        super().__init__(said)
        self.got, self.expected, self.budget = got, expected, budget


@dataclass(frozen=True)
class Subject:
    """An implementation on a target with a dtype: what a law is about. tiles: these, instead of its whole palette."""

    implementation: Implementation
    target: str
    dtype: Format
    tiles: tuple[TileChoice, ...] | None = None

    @property
    def id(self) -> str:
        """`kda_chunk-c-f16`."""
        return f"{self.implementation.name}-{self.target}-{self.dtype}"

    @functools.cached_property
    def support(self) -> Support:
        """The cases it can run."""
        support = self.implementation.support(self.target, self.dtype)
        return support if self.tiles is None else replace(support, tiles=self.tiles)

    def run(self, inputs: Inputs, tile: Tile, memory: Memory = PLAIN) -> Outputs:
        """The implementation's outputs for `inputs` at `tile`."""
        __tracebackhide__ = True
        return self.implementation.run(inputs, tile, self.target, memory)

    def judge(self, inputs: Inputs, tile: Tile) -> Judged:
        """Reference A's outputs, and the error that a correct kernel may make on these inputs."""
        return self._judged(inputs, self._window(inputs, tile), operand_units)

    def judge_doubling(self, inputs: Inputs, tile: Tile) -> Judged:
        """Reference A's outputs, and how far two runs may differ that round alike but for a power of two."""
        return self._judged(inputs, self._window(inputs, tile), doubling_units)

    def judge_mirror(self, inputs: Inputs, tile: Tile) -> Judged:
        """The mirror's outputs, and how far from them another order of additions may end up."""
        run = functools.partial(self.implementation.mirror, inputs, tile, self.target)
        mirrored = run()
        budget = self._judged(inputs, tile.C, mirror_units).budget
        if not self.implementation.exact_mirror(self.target, self.dtype):
            # The units count roundings that go the other way as many and independent. One that a whole row hangs on, an
            # entry of A_qk with few tokens, is neither: those that could are found, and their effect is added.
            delta = accumulated(inputs, tile.C, self.dtype, self.support.inverse)
            for lean in (delta, -delta):
                budget += row_errors(run(lean=lean), mirrored)
        return Judged(mirrored, budget)

    def also_runs(self, case: Case) -> bool:
        """Whether the same implementation, on the same target, takes `case` (of any dtype)."""
        other = Subject(self.implementation, self.target, case.dtype)
        return case.dtype in self.implementation.dtypes(self.target) and other.support.refuses(case) is None

    def _judged(self, inputs: Inputs, C: int, units: Callable[[Inputs, int, Format, bool], Units]) -> Judged:
        has = self.support
        if has.recurrent:
            return judge_recurrent(inputs, units(inputs, 1, self.dtype, has.inverse))
        return judge(inputs, C, units(inputs, C, self.dtype, has.inverse), has.sub_C, has.pairs, has.inverse)

    def _window(self, inputs: Inputs, tile: Tile) -> int:
        return tile.C if self.implementation.chunked else inputs.sizes.N

    @property
    def options(self) -> str:
        """The options of the command line that choose it."""
        named = self.implementation.address or self.implementation.name
        unchecked = "" if self.implementation.checks_domain else " --unchecked"
        return f"--impl {shlex.quote(named)} --target {self.target}{unchecked}"

    def __str__(self) -> str:
        return self.id


# The field of a case that each of these narrowings is about.
_NARROWED = {"gates": "gate", "betas": "beta", "keys": "k", "queries": "q", "values": "v", "states": "state"}


@dataclass(frozen=True)
class Law:
    """One property: its name, its sentence, the strategy for its cases, its body."""

    #: Whether what looks into a failure (what makes it smaller, repeats it, finds its stage, climbs) knows its cases.
    diagnosed: ClassVar[bool] = True

    name: str
    sentence: str
    strategy: Callable[..., Any]
    narrowing: dict[str, Any]
    body: Callable[[Subject, Case], None]
    of: tuple[str, ...]
    needs: Callable[[Subject], bool]
    share: float

    def cases(self, subject: Subject) -> Any:
        """The Hypothesis strategy for this law's cases, narrowed to what `subject` supports."""
        return self.strategy(subject.support, subject.dtype, **self.narrowing)

    def subjects(self, implementation: Implementation, target: str) -> list[Subject]:
        """What this law is about: `implementation` on `target` with each of its dtypes, or the law's own references."""
        found = references_at_float64(*self.of) if self.of else subjects_of(implementation, target)
        return [subject for subject in found if self.needs(subject)]

    def excludes(self, subject: Subject, case: Case) -> str | None:
        """Why `case` says nothing about this law on `subject`; None where it does.

        The law's own conditions on the kinds, on N and on edits, and what the subject supports.
        """
        if not isinstance(case, Case):
            return "the line is a call of the operation; the law is about a kernel"
        for name, narrowed in _NARROWED.items():
            kinds = self.narrowing.get(name)
            if isinstance(kinds, (tuple, list)) and getattr(case, narrowed).name not in kinds:
                return f"{narrowed} is {getattr(case, narrowed)}; the law is about {', '.join(kinds)}"
        too_short = range(1, self.narrowing.get("min_tokens", 1))
        if case.N in too_short:
            return f"N is {case.N}; the law needs at least {too_short.stop}"
        if case.edits and self.narrowing.get("edits", True) is False:
            return "there are edits; the law is about cases without"
        return subject.support.refuses(case)

    def holds_for(
        self,
        subject: Subject,
        case: Case,
        record: Record,
        watch: Watch | None = None,
        said: list[str] | None = None,
    ) -> None:
        """Examine one case; AssertionError (or whatever the implementation raised), with notes on how to rerun it.

        said: takes one line per comparison, also of those that hold.
        """
        __tracebackhide__ = True
        line = str(case)
        notes = self.notes(subject, line)
        examination = _Examination(line, record, said)
        _examinations.append(examination)
        try:
            if watch is not None:
                watch.begin("\n".join(notes))
            with record.counting():
                self.body(subject, case)
        except Exception as error:
            for note in notes:
                error.add_note(note)
            if watch is not None:
                watch.failed("\n".join(notes), error)
            raise
        finally:
            if watch is not None:
                watch.end()
            _examinations.pop()
            record.cases += 1
            record.untrusted += examination.untrusted

    def heard_by(self, hear: Callable[[Case, dict[str, float]], None]) -> Law:
        """The same law, which tells `hear` of every case that holds.

        With the case come the ratios error / budget of what it compared, by comparison: the worst of each that can be
        trusted and is not zero.
        """

        def body(subject: Subject, case: Case) -> None:
            __tracebackhide__ = True
            self.body(subject, case)
            hear(case, _examinations[-1].ratios)

        return replace(self, body=body)

    def failing_to(self, hear: Callable[[Case, Exception], None]) -> Law:
        """The same law, which tells `hear` of every case that does not hold, and of what it raised there."""

        def body(subject: Subject, case: Case) -> None:
            __tracebackhide__ = True
            try:
                self.body(subject, case)
            except Exception as error:
                hear(case, error)
                raise

        return replace(self, body=body)

    def notes(self, subject: Subject, line: str) -> list[str]:
        """What a reader of a failure needs next: the law, the case, how to rerun it, how to keep it, as what line."""
        which = f"--property {self.name}"
        return [
            f"law:   {self.name}: {self.sentence}",
            f"case:  {line}",
            f"rerun: kda check {line} {which} {subject.options}",
            f"write: kda repro {line} {which} {subject.options} -o repro.py",
            f"keep:  kda guard add {line} {which}",
            f"guard: {line} {self.name}",
        ]


@dataclass
class _Examination:
    line: str
    record: Record
    said: list[str] | None
    untrusted: bool = False
    ratios: dict[str, float] = field(default_factory=dict)


_examinations: list[_Examination] = []

#: Every law that has been imported, by name.
LAWS: dict[str, Law] = {}


def load_laws(folder: Path, room: str | None = None) -> dict[str, Law]:
    """The laws in the files `test_*.py` of `folder`, by name; of `test_<room>.py` alone where that is given.

    LookupError: no such file, or one that cannot be imported.
    """
    pattern = f"test_{room or '*'}.py"
    files = sorted(folder.glob(pattern))
    if not files:
        raise LookupError(f"there is no {folder / pattern}")
    others = dict(LAWS)
    LAWS.clear()
    try:
        for file in files:
            _import_file(file)
        return dict(LAWS)
    finally:
        for name, other in others.items():
            LAWS.setdefault(name, other)


def _import_file(file: Path) -> None:
    name = f"_kda_laws.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))  # as pytest does
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise LookupError(f"{file} cannot be imported, {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))


def _always(subject: Subject) -> bool:
    return True


def law(
    strategy: Callable[..., Any],
    *,
    of: tuple[str, ...] = (),
    needs: Callable[[Subject], bool] = _always,
    share: float = 1.0,
    **narrowing: Any,
) -> Callable[[Callable[[Subject, Case], None]], Callable[..., None]]:
    """Make a property test of a body `(subject, case)`.

    strategy: `strategies.cases` or one like it; narrowing: its keyword arguments. of: names of the implementations that
    the law is about, instead of the one under test. needs: the subjects it makes sense for. share: how many cases,
    relative to the profile's number.
    """

    def decorate(body: Callable[[Subject, Case], None]) -> Callable[..., None]:
        return test_of(Law(*named(body), strategy, narrowing, body, of, needs, share))

    return decorate


def named(body: Callable[..., None]) -> tuple[str, str]:
    """The name of the law that `body` is, and its sentence."""
    room = body.__module__.rpartition(".")[2].removeprefix("test_")
    # A period after a space is a product, not an end.
    sentence = re.split(r"(?<=\S)\. ", " ".join((body.__doc__ or "").split()))[0].rstrip(".")
    return f"{room}.{body.__name__.removeprefix('test_')}", sentence


def test_of(made: Law) -> Callable[..., None]:
    """The property test of a law, which is in LAWS from now on."""
    LAWS[made.name] = made
    body = made.body

    def test(subject: Subject, kda_run: Any) -> None:
        __tracebackhide__ = True
        kda_run.examine(made, subject)

    test.__name__, test.__qualname__ = body.__name__, body.__qualname__
    test.__module__, test.__doc__ = body.__module__, body.__doc__
    test.kda_law = made  # type: ignore[attr-defined]
    return test


def _observe(ratio: float, trusted: bool, *lines: str, what: str = "") -> None:
    for examination in _examinations[-1:]:
        if examination.said is not None:
            examination.said.extend(lines)
        examination.untrusted |= not trusted
        examination.record.observe(ratio, trusted, examination.line)
        if trusted and 0 < ratio < np.inf:
            comparison = re.sub("[0-9]+", "", what)  # the numbers in it are the case's: a place, a chunk length
            examination.ratios[comparison] = max(ratio, examination.ratios.get(comparison, 0.0))


def within(got: Outputs, expected: Outputs, budget: Budget, what: str = "") -> None:
    """Assert that every row of o and of the final state is within its budget; the worst ratio is recorded.

    A comparison whose budget exceeds its signal counts as untrusted. what: a few words for the message.
    """
    __tracebackhide__ = True
    verdicts = compare(got, expected, budget)
    lines = [f"{what + ': ' if what else ''}{verdict}" for verdict in verdicts]
    _observe(max(v.ratio for v in verdicts), any(v.trusted for v in verdicts), *lines, what=what)
    failed = [line for line, verdict in zip(lines, verdicts, strict=True) if not verdict.passed]
    if failed:
        raise Disagreement("\n".join(failed), got, expected, budget)


def same_bits(got: Outputs, expected: Outputs, what: str = "") -> None:
    """Assert that both outputs are equal in every bit (0.0 and -0.0 count as equal)."""
    __tracebackhide__ = True
    differs = difference(got, expected)
    line = f"{what + ': ' if what else ''}{differs or 'o and final_state: the same bits'}"
    _observe(0.0 if differs is None else np.inf, True, line)
    if differs is not None:
        raise Disagreement(line, got, expected)


def meaningful(condition: bool) -> bool:
    """Mark the case as untrusted unless `condition`, and return it: a change that changed nothing proves nothing."""
    _observe(0.0, bool(condition))
    return bool(condition)


def bounded(ratio: float, what: str) -> None:
    """Assert that a ratio error / allowed is at most 1; it is recorded. what: what the error is of."""
    __tracebackhide__ = True
    ratio = float(ratio)  # a NumPy number does not travel from a worker
    _observe(ratio, True, what=what)
    if not ratio <= 1:
        raise AssertionError(f"{what}: {ratio:.3g} times what is allowed")


def broken(got: Outputs, expected: Outputs, budget: Budget) -> bool:
    """Whether some row of `got` is outside its budget: for laws about what must be told apart."""
    return any(not verdict.passed for verdict in compare(got, expected, budget))


def subjects_of(implementation: Implementation, target: str) -> list[Subject]:
    """`implementation` on `target` with each of its dtypes, the simplest first."""
    return [Subject(implementation, target, dtype) for dtype in implementation.dtypes(target)]


def references_at_float64(*names: str) -> list[Subject]:
    """The float64 references of these names, as subjects."""
    from kda.implementations import implementation

    return [Subject(implementation(name), "c", F64) for name in names]
