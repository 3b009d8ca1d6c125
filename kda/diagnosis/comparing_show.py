"""How two implementations compare: for a terminal, and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isinf

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.case import Case
from kda.diagnosis.comparing import DIFFERENT, STATUSES, Compared, Comparison

__all__ = ["data", "print_comparisons", "print_difference"]

#: How many of the worst cases are shown, and of each sort of kinds.
_WORST, _MOST_KINDS = 3, 5
_TENSORS = ("o", "final_state")
_HEADINGS = {
    "same bits": "same bits",
    "within": "within both budgets",
    "outside": "outside",
    "refused": "refused by both",
    "raised": "raised by one",
}


def _tokens(case: Case) -> str:
    chunks, tail = divmod(case.N, case.C)
    if not chunks:
        return "less than a chunk"
    return f"{'a chunk' if chunks == 1 else 'chunks'}{' and a tail' if tail else ''}"


#: What a difference may depend on.
_KINDS: dict[str, Callable[[Case], str]] = {
    "gate": lambda case: case.gate.name,
    "beta": lambda case: case.beta.name,
    "tokens": _tokens,
}


def print_comparisons(made: Sequence[Comparison], console: Console) -> None:
    """What came of the cases, per operand format and per output; the worst; of what kind those are that differ."""
    console.print(_counts(made))
    console.print(_tensors(made))
    found = [one for comparison in made for one in comparison.found]
    for one in _worst(found):
        console.print(f"worst ratio {one.ratio:.3g}: {escape(str(one.case))}", soft_wrap=True)
    if any(one.status in DIFFERENT for one in found):
        console.print(_kinds(found))


def print_difference(one: Compared, comparison: Comparison, rerun: str, console: Console) -> None:
    """One case that differs, its picture, and how to rerun it; rerun: the command, but for the case."""
    lines = [
        "got: {}, expected: {}".format(*comparison.pair.names),
        *_said(one),
        *one.drawing,
        f"case:  {one.case}",
        f"rerun: {rerun} --case {one.case}",
    ]
    console.print("\n".join(map(escape, lines)), soft_wrap=True)


def data(made: Sequence[Comparison], smallest: Compared | None) -> dict[str, object]:
    """The same for JSON; an infinite ratio is None."""
    return {
        "comparisons": [
            {
                "first": comparison.pair.first.id,
                "second": comparison.pair.second.id,
                "dtype": comparison.pair.first.dtype.short,
                "seed": comparison.seed,
                "cases": len(comparison.found),
                "statuses": {status: comparison.count(status) for status in STATUSES},
                "untrusted": _untrusted(comparison),
                "tensors": {name: _of_tensor(comparison, name) for name in _TENSORS},
                "worst": [[_finite(one.ratio), str(one.case)] for one in _worst(comparison.found)],
                "kinds": {what: _by_kind(comparison.found, kind_of) for what, kind_of in _KINDS.items()},
            }
            for comparison in made
        ],
        "smallest": None
        if smallest is None
        else {
            "case": str(smallest.case),
            "status": smallest.status,
            "ratio": _finite(smallest.ratio),
            "said": list(_said(smallest)),
            "picture": list(smallest.drawing),
        },
    }


def _said(one: Compared) -> Iterable[str]:
    return [one.said] if one.said else [str(verdict) for verdict in one.verdicts if not verdict.passed]


def _finite(ratio: float) -> float | None:
    return None if isinf(ratio) else ratio


def _worst(found: Sequence[Compared]) -> list[Compared]:
    return [one for one in sorted(found, key=lambda one: -one.ratio)[:_WORST] if one.ratio > 0]


def _untrusted(comparison: Comparison) -> int:
    return sum(not one.trusted for one in comparison.computed)


def _of_tensor(comparison: Comparison, name: str) -> dict[str, int | float | None]:
    """The cases in which one output has the same bits, is within, is outside; and its worst ratio."""
    ratios = [verdict.ratio for one in comparison.computed for verdict in one.verdicts if verdict.tensor == name]
    return {
        "same bits": sum(ratio == 0 for ratio in ratios),
        "within": sum(0 < ratio <= 1 for ratio in ratios),
        "outside": sum(ratio > 1 for ratio in ratios),
        "worst": _finite(max(ratios, default=0.0)),
    }


def _by_kind(found: Sequence[Compared], kind_of: Callable[[Case], str]) -> dict[str, list[int]]:
    """[different, of so many cases], by kind; first those that differ in the largest share, then the most frequent."""
    counts: dict[str, list[int]] = {}
    for one in found:
        count = counts.setdefault(kind_of(one.case), [0, 0])
        count[0] += one.status in DIFFERENT
        count[1] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1][0] / item[1][1], -item[1][1], item[0])))


def _counts(made: Sequence[Comparison]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("operands")
    for heading in ("cases", *(_HEADINGS[status] for status in STATUSES), "untrusted", "worst ratio"):
        table.add_column(heading, justify="right")
    for comparison in made:
        worst = max(one.ratio for one in comparison.found)
        counts = (len(comparison.found), *map(comparison.count, STATUSES), _untrusted(comparison))
        style = "red" if comparison.differs else None
        table.add_row(str(comparison.pair.first.dtype), *map(str, counts), f"{worst:.3g}", style=style)
    return table


def _tensors(made: Sequence[Comparison]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("operands", "output"):
        table.add_column(heading)
    for heading in ("same bits", "within both budgets", "outside", "worst ratio"):
        table.add_column(heading, justify="right")
    for comparison in made:
        for name in _TENSORS:
            counts = _of_tensor(comparison, name)
            worst = "inf" if counts["worst"] is None else f"{counts['worst']:.3g}"
            numbers = (str(counts[status]) for status in ("same bits", "within", "outside"))
            table.add_row(str(comparison.pair.first.dtype), name, *numbers, worst)
    return table


def _kinds(found: Sequence[Compared]) -> Table:
    """Of what kind the cases are that differ."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("differ by")
    table.add_column("kind")
    table.add_column("cases that differ", justify="right")
    table.add_column("of", justify="right")
    for what, kind_of in _KINDS.items():
        named = what
        for kind, (different, count) in list(_by_kind(found, kind_of).items())[:_MOST_KINDS]:
            if different:
                table.add_row(named, kind, str(different), str(count))
                named = ""
    return table
