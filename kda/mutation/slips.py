"""The article's own slips, planted in the references: beta in the wrong place, a mask off by its diagonal.

Each is a rewrite of one statement of a reference's source. The original stays as it is.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from kda.implementations import PLAIN, Memory
from kda.implementations.builtin import Mirror, ReferenceB
from kda.problem import Inputs, Outputs, Tile
from kda.references import chunkwise, mirror

__all__ = ["HARMLESS", "SLIPS", "MistakenMirror", "MistakenReferenceB", "Slip", "mistaken", "rewritten"]


@dataclass(frozen=True)
class Slip:
    """One mistake. source: the module and function it is planted in; edits: what is replaced by what, each once."""

    name: str
    sentence: str
    module: ModuleType
    function: str
    edits: tuple[tuple[str, str], ...]

    def planted(self) -> Callable[..., Outputs]:
        """The function with the mistake in it."""
        return rewritten(self.module, self.function, self.edits)


def rewritten(module: ModuleType, function: str, edits: tuple[tuple[str, str], ...]) -> Callable[..., Outputs]:
    """A copy of a function of `module` with some of its source replaced.

    LookupError for a text that does not occur exactly once: the source moved on, and the mistake with it.
    """
    source = inspect.getsource(getattr(module, function))
    for old, new in edits:
        if source.count(old) != 1:
            raise LookupError(f"{function}: {old!r} occurs {source.count(old)} times; expected once (stale rewrite)")
        source = source.replace(old, new)
    name = f"<{function} rewritten {hash(edits) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    namespace = dict(vars(module))
    exec(compile(source, name, "exec", dont_inherit=True), namespace)
    return namespace[function]


def _by_name(*slips: Slip) -> dict[str, Slip]:
    return {slip.name: slip for slip in slips}


_BETA_FIRST = (
    ("X = np.concatenate([Kc * Ep, Vc], axis=-1)", "X = be[..., None] * np.concatenate([Kc * Ep, Vc], axis=-1)"),
    ("X = be[..., None] * X", "X = 1 * X"),
)
_BETA_C = (("be[..., None, :] * M", "be[..., :, None] * M"),)

SLIPS = _by_name(
    Slip(
        "beta-before-solve",
        "T diag(beta) with L = beta_i M: beta is multiplied into the right-hand side, before the solve",
        mirror,
        "ref_C_fast",
        _BETA_FIRST,
    ),
    Slip(
        "L-of-the-other-pairing",
        "diag(beta) T with L = beta_c M: L takes beta of its row",
        mirror,
        "ref_C_fast",
        _BETA_C,
    ),
    Slip(
        "A_qk-without-diagonal",
        "A_qk is masked j < i: no token sees itself",
        mirror,
        "ref_C_fast",
        (("j <= i, A_qk", "j < i, A_qk"),),
    ),
    Slip(
        "L-with-diagonal",
        "L is masked j <= i where the inverse reads it: beta_r counts twice",
        chunkwise,
        "ref_B",
        (("for i in range(c):", "for i in range(c + 1):"),),
    ),
    Slip(
        "substitution-one-short",
        "the substitution runs over j < r - 1: each row misses the one just before it",
        mirror,
        "ref_C_fast",
        (("X[..., s + 1 :, :] -= L[..., s + 1 :, s, None]", "X[..., s + 2 :, :] -= L[..., s + 2 :, s, None]"),),
    ),
)

#: Not mistakes: what must pass. The other right pairing, and a diagonal of L that the substitution never reads.
HARMLESS = _by_name(
    Slip(
        "the-other-right-pairing",
        "T diag(beta) with L = beta_c M is diag(beta) T with L = beta_i M",
        mirror,
        "ref_C_fast",
        _BETA_FIRST + _BETA_C,
    ),
    Slip(
        "L-with-diagonal-unread",
        "L is masked j <= i, but a substitution over j < r never reads its diagonal",
        mirror,
        "ref_C_fast",
        (("j < i, be", "j <= i, be"),),
    ),
)


class MistakenMirror(Mirror):
    """The mirror with a slip in it."""

    def __init__(self, slip: Slip) -> None:
        self.name = f"mirror-{slip.name}"
        self._function = slip.planted()

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        """The outputs of the mistaken mirror at the operand precision of `inputs`."""
        return self._function(inputs, tile.C, tile.block_DV, inputs.dtype)


class MistakenReferenceB(ReferenceB):
    """Reference B with a slip in it, in float64."""

    def __init__(self, slip: Slip) -> None:
        self.name = f"ref_B-{slip.name}"
        self._function = slip.planted()

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        """The outputs of the mistaken reference."""
        return self._function(inputs, tile.C)


def mistaken(slip: Slip) -> MistakenMirror | MistakenReferenceB:
    """The implementation with `slip` planted."""
    return MistakenReferenceB(slip) if slip.module is chunkwise else MistakenMirror(slip)
