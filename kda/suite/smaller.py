"""Making a failing case smaller still: steps that a general shrinker, which knows choices and not tokens, misses.

Hypothesis changes one choice at a time. A failure that needs an old key again has, with one-hot keys, as many tokens as
there are channels before it comes back; fewer tokens with equal keys are two changes, and here one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kda.case import Case, CaseError
from kda.kinds import FIELDS
from kda.problem import InputError

if TYPE_CHECKING:
    from kda.suite.laws import Law, Subject
    from kda.suite.record import Record
    from kda.suite.watch import Watch

__all__ = ["smaller", "smaller_failure"]

Step = Callable[..., Case]

_PLAIN = Case()

#: What a case may get for fewer tokens: something to meet at once, something to find in the state, values that differ.
_INSTEAD_OF_TOKENS = (
    {"k": "equal"},
    {"state": "ones"},
    {"state": "gauss"},
    {"v": "gauss"},
    {"k": "equal", "v": "gauss"},
    {"beta": "one"},
    {"beta": "one", "k": "equal"},
)

#: What shows on some draws alone shows on few tokens and heads too, under another seed: up to three tokens so many are
#: tried.
_FEW, _SEEDS = 4, 12


def smaller(case: Case, fails: Callable[[Case], bool], most: int = 400) -> Case:
    """A case that `fails`, with no more sequences, tokens, kinds and edits than `case`; at most `most` are tried."""
    tried = 0
    again = True
    while again and tried < most:
        again = False
        for step in _steps(case):
            try:
                candidate = step(case)
            except CaseError:  # a kind or an edit names something that is gone
                continue
            tried += 1
            if fails(candidate):
                case, again = candidate, True
                break
            if tried >= most:
                break
    return case


def smaller_failure(
    law: Law, subject: Subject, case: Case, error: Exception, record: Record, watch: Watch | None = None
) -> tuple[Case, Exception]:
    """A smaller case that `law` fails on, and what it raised there; `case`, which raised `error`, where there is none.

    A case that is refused is taken for a failure only where `case` was refused too.
    """

    def fails(candidate: Case) -> bool:
        nonlocal error
        if law.excludes(subject, candidate) is not None:
            return False
        try:
            law.holds_for(subject, candidate, record, watch)
        except Exception as raised:
            if isinstance(raised, InputError) and not isinstance(error, InputError):
                return False
            error = raised
            return True
        return False

    return smaller(case, fails), error


def _steps(case: Case) -> Iterator[Step]:
    """Towards simpler cases, the largest steps first."""
    if any(getattr(case, name) != getattr(_PLAIN, name) for name in (*FIELDS, "edits")):
        yield lambda case: case.replace(**{name: getattr(_PLAIN, name) for name in (*FIELDS, "edits")}, seed=0)
    for axis in ("B", "H"):
        for size in range(1, min(getattr(case, axis), 3)):
            # What one of them draws, another has under another seed.
            for seed in (case.seed, *range(1, _SEEDS + 1)):
                yield lambda case, axis=axis, size=size, seed=seed: case.cut(**{axis: size}).replace(seed=seed)
    for N in _token_counts(case):
        yield lambda case, N=N: _shorter(case, N)
        for instead in _INSTEAD_OF_TOKENS:
            if any(getattr(case, name).name != kind for name, kind in instead.items()):
                yield lambda case, N=N, instead=instead: _shorter(case, N).replace(**instead)
        if N < _FEW:
            for seed in range(1, _SEEDS + 1):
                yield lambda case, N=N, seed=seed: _shorter(case, N).replace(seed=seed)
    for edit in case.edits:
        yield lambda case, edit=edit: case.replace(edits=tuple(e for e in case.edits if e != edit))
    for name in FIELDS:
        if getattr(case, name) != getattr(_PLAIN, name):
            yield lambda case, name=name: case.replace(**{name: getattr(_PLAIN, name)})
    if case.state.name not in ("none", "ones"):
        yield lambda case: case.replace(state="ones", edits=tuple(e for e in case.edits if e.tensor != "state"))
    if case.seed:
        yield lambda case: case.replace(seed=0)


def _shorter(case: Case, N: int) -> Case:
    """The first N tokens; an edit of a later one moves to the last."""
    edits = [
        replace(
            edit,
            index=tuple(min(i, N - 1) if axis == "N" else i for axis, i in zip(edit.axes, edit.index, strict=True)),
        )
        for edit in case.edits
    ]
    return case.replace(edits=()).cut(N=N).replace(edits=tuple(dict.fromkeys(edits)))


def _token_counts(case: Case) -> list[int]:
    C = case.C
    borders = {1, 2, 3, 4, C - 1, C, C + 1, C + 2, C + 3, 2 * C - 1, 2 * C, 2 * C + 1, case.N // 2, case.N - 1}
    return sorted(N for N in borders if 1 <= N < case.N)
