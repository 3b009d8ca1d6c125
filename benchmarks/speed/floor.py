"""The least time of one call, counted from its shape: bytes that must move and operations that must be done.

Two counts of bytes. `ideal`: every input read once and every output written once, by a kernel that keeps the state and
all intermediates of a chunk on the chip. `design`: that of the two launches of the Hopper program, which meet in device
memory: per chunk of 64 tokens and value head, W, q e^gamma and k e^(gamma_C - gamma) (64 x 128 each), A and A_qk
(64 x 64 each) and 64 numbers more in the operand format, and e^gamma_C and beta (192 float32), written by the first
launch and read by the second. q, k, g and beta are read by the first, v by the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speed.shapes import Mode, Shape

__all__ = ["CHUNK", "Ceilings", "Floor", "Launch", "floor", "intermediate_bytes", "operations"]

CHUNK = 64
#: Tokens of the blocks on the diagonal, whose pairs are made in float32.
GROUP = 8
OPERAND, SINGLE = 2, 4


@dataclass(frozen=True)
class Ceilings:
    """What the machine reaches: bytes per second of device memory, and bf16 matrix operations per second."""

    bandwidth: float
    matrix_rate: float


@dataclass(frozen=True)
class Launch:
    """Bytes that one launch reads and writes, and the operations it does on matrix units."""

    read: int
    written: int
    matrix: int

    @property
    def moved(self) -> int:
        """Bytes in both directions."""
        return self.read + self.written

    def seconds(self, ceilings: Ceilings) -> float:
        """The larger of the two times."""
        return max(self.moved / ceilings.bandwidth, self.matrix / ceilings.matrix_rate)


@dataclass(frozen=True)
class Floor:
    """One call: as a single launch that stores no intermediate (`ideal`), and as the two of the design."""

    ideal: Launch
    prepare: Launch
    walk: Launch

    @property
    def design(self) -> int:
        """Bytes that the two launches move."""
        return self.prepare.moved + self.walk.moved

    def ideal_seconds(self, ceilings: Ceilings) -> float:
        """The least time of any kernel."""
        return self.ideal.seconds(ceilings)

    def design_seconds(self, ceilings: Ceilings) -> float:
        """The least time of the two launches, one after the other."""
        return self.prepare.seconds(ceilings) + self.walk.seconds(ceilings)


def intermediate_bytes(DK: int = 128) -> int:
    """Bytes of what one chunk of one value head hands from the first launch to the second."""
    # W, q e^gamma and k e^(gamma_C - gamma); A and A_qk, and what rounding took off the diagonal of that.
    operands = CHUNK * 3 * DK + 2 * CHUNK * CHUNK + CHUNK
    return OPERAND * operands + SINGLE * (DK + CHUNK)  # e^gamma_C and beta


def operations(DK: int = 128, DV: int = 128) -> dict[str, int]:
    """Operations on matrix units of one chunk of one value head, by product; a multiplication and an addition are two.

    M and A_qk: queries and keys against the keys before a border at 32, then at 16 and 48, then at 8, 24, 40 and 56.
    A: the two 16 -> 32 merges are done in float32 and not counted; the 32 -> 64 merge is two products.
    """
    below = sum((CHUNK // (2 * rows)) * 2 * rows * rows for rows in (32, 16, GROUP))
    return {
        "M, A_qk": 2 * below * DK,
        "A": 2 * 2 * 32**3,
        "W = A K": 2 * CHUNK * CHUNK * DK,
        "A V": 2 * CHUNK * CHUNK * DV,
        "W S": 2 * CHUNK * DK * DV,
        "Q S": 2 * CHUNK * DK * DV,
        "A_qk V~": 2 * CHUNK * CHUNK * DV,
        "K^T V~": 2 * CHUNK * DK * DV,
    }


#: What the first launch does; the rest is the second's.
_PREPARED = ("M, A_qk", "A", "W = A K")


def floor(shape: Shape, mode: Mode, DK: int = 128, DV: int = 128) -> Floor:
    """The floor of one call of `shape`, bf16 operands; HV = H."""
    H, tokens = shape.H, shape.tokens
    gate, beta = (SINGLE, SINGLE) if mode == "computed" else (OPERAND, OPERAND)
    values = tokens * H * OPERAND * DV
    inputs = tokens * H * (OPERAND * 2 * DK + gate * DK + beta)
    if mode == "raw":
        inputs += SINGLE * H * (1 + DK)  # A_log, dt_bias
    if shape.lengths:
        inputs += SINGLE * len(shape.starts)
    states = SINGLE * len(shape.sequences) * H * DK * DV
    outputs = tokens * H * OPERAND * DV + states
    chunks = H * sum(-(-length // CHUNK) for length in shape.sequences)
    handed = chunks * intermediate_bytes(DK)
    done: Mapping[str, int] = operations(DK, DV)
    first = chunks * sum(done[name] for name in _PREPARED)
    rest = chunks * sum(count for name, count in done.items() if name not in _PREPARED)
    given_state = states if shape.state else 0
    return Floor(
        ideal=Launch(inputs + values + given_state, outputs, first + rest),
        prepare=Launch(inputs, handed, first),
        walk=Launch(handed + values + given_state, outputs, rest),
    )
