"""What makes a mistake invisible: narrowings of a search under which no number of cases can show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kda.case import Case
from kda.suite.laws import Law, Subject
from kda.support import TileChoice

__all__ = ["HIDING", "Hiding"]


@dataclass(frozen=True)
class Hiding:
    """One narrowing.

    law: looked at by this law instead of the one that catches it; tile: on this tile; support: fields of `Support` that
    change; narrowing: what the strategy of cases is told; shape: what is done to each case.
    """

    why: str
    law: str | None = None
    tile: TileChoice | None = None
    support: Mapping[str, Any] = field(default_factory=dict)
    narrowing: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Case], Case] | None = None

    def cases(self, law: Law, subject: Subject) -> Any:
        """The strategy for the cases of `law` on `subject`, narrowed."""
        support = replace(subject.support, **self.support)
        strategy = law.strategy(support, subject.dtype, **{**law.narrowing, **self.narrowing})
        return strategy if self.shape is None else strategy.map(self.shape)


def _full_chunks(case: Case) -> Case:
    return case.replace(N=-(-case.N // case.C) * case.C)


#: By the names that the entries of the catalogue use.
HIDING: dict[str, Hiding] = {
    "equal betas": Hiding(
        "with one beta for all tokens both pairings are the same matrix (article 3.3)",
        narrowing={"betas": ("zero", "one", "constant"), "edits": False},
    ),
    "a shared gate": Hiding(
        "when all channels share one gate, channel and position may be taken for each other (article 3.4)",
        narrowing={"gates": ("none", "shared", "constant", "head"), "edits": False},
    ),
    "one chunk": Hiding("a carry from chunk to chunk needs a second chunk", support={"max_tokens": 16}),
    "a ragged tail alone": Hiding("the rows at the end of a chunk need a full one", support={"max_tokens": 15}),
    "full chunks alone": Hiding("the tail needs a chunk that is not full", shape=_full_chunks),
    "no initial state": Hiding(
        "a zero state is zero in any order and at any offset", narrowing={"states": ("none", "zeros"), "edits": False}
    ),
    "one head": Hiding("all heads are head 0", support={"max_heads": 1}),
    "one batch": Hiding("all batches are batch 0", support={"max_batch": 1}),
    "one batch and one head": Hiding("both indices are 0", support={"max_batch": 1, "max_heads": 1}),
    "one block of value channels": Hiding("the first block is the only one", tile=TileChoice(48, 32, 16, 32)),
    "DK = DV": Hiding("either number may be taken for the other", tile=TileChoice(32, 32, 16, 16)),
    "prefixes alone": Hiding(
        "a state that is read in the wrong layout is so for every prefix alike", law="time.a_prefix_is_computed_alike"
    ),
    "the budget of reference A": Hiding(
        "lost precision hides in a budget that allows for the operands' own rounding", law="kernel.matches_reference_A"
    ),
}
