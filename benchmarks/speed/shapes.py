"""The shapes that are timed, and what is asked at them. D = DK = DV = 128, as many value heads as heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DENSE", "DRY", "MODES", "PACKED_LENGTHS", "QUICK", "SHAPES", "D", "Mode", "Shape", "parse_shapes"]

D = 128

#: "computed": g is the natural-log gate in float32, beta the strength itself, q and k are unit rows, states are
#: [DK, DV]. "raw": L2 norm, bounded gate with A_log and dt_bias, sigmoid of beta all in the kernel, everything in bf16,
#: states are [DV, DK]: the one form that FlashKDA takes.
Mode = Literal["computed", "raw"]
MODES: tuple[Mode, ...] = ("computed", "raw")

#: Twenty-four sequences of one packed batch, 16,384 tokens: half of them in the two longest, tails of every kind.
PACKED_LENGTHS = (
    *(4096, 4037, 2048, 1777, 1024, 1000, 513, 512, 333, 256, 200),
    *(129, 128, 127, 65, 64, 36, 17, 16, 1, 1, 1, 1, 2),
)


@dataclass(frozen=True)
class Shape:
    """B sequences of N tokens and H heads; or, where `lengths` is given, one row that packs sequences of those lengths.

    state: an initial state is read (the final state is always written).
    """

    B: int
    N: int
    H: int
    state: bool = False
    lengths: tuple[int, ...] = ()

    @property
    def sequences(self) -> tuple[int, ...]:
        """The length of every sequence."""
        return self.lengths or (self.N,) * self.B

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(self.sequences)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each sequence starts among the tokens, and where the last one ends."""
        found = [0]
        for length in self.sequences:
            found.append(found[-1] + length)
        return tuple(found)

    @property
    def kind(self) -> str:
        """What it stands for: "decode" (a few tokens behind a state), "packed" or "dense"."""
        if self.state:
            return "decode"
        return "packed" if self.lengths else "dense"

    def __str__(self) -> str:
        first = f"packed{len(self.lengths)}" if self.lengths else str(self.B)
        return f"{first},{self.tokens if self.lengths else self.N},{self.H}{',state' if self.state else ''}"

    @classmethod
    def packed(cls, lengths: tuple[int, ...], H: int) -> Shape:
        """One row of sequences of these lengths."""
        return cls(1, sum(lengths), H, lengths=lengths)

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`B,N,H`, `B,N,H,state`, or the name of a packed batch of `SHAPES`; ValueError for anything else."""
        for shape in (*SHAPES, *DRY):
            if str(shape) == text:
                return shape
        fields = text.split(",")
        numbers, rest = fields[:3], fields[3:]
        if len(numbers) != 3 or rest not in ([], ["state"]) or not all(x.isdigit() and int(x) for x in numbers):
            raise ValueError(f"shape {text!r} is not B,N,H or B,N,H,state with whole numbers of at least 1")
        B, N, H = map(int, numbers)
        return cls(B, N, H, bool(rest))


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Shapes with / between them."""
    return tuple(Shape.parse(part) for part in text.split("/"))


#: FLA tunes a kernel for the first shape of each H and keeps its choice for that H, so the longest batches come first.
DENSE = (
    Shape(1, 8192, 16),
    Shape(1, 8192, 32),
    Shape(1, 8192, 64),
    Shape(2, 8192, 64),
    Shape(8, 1024, 64),
    Shape(1, 32768, 16),
    Shape(64, 256, 32),
)
SHAPES = (
    *DENSE,
    Shape.packed(PACKED_LENGTHS, 32),
    Shape(64, 1, 32, state=True),
    Shape(64, 16, 32, state=True),
)
QUICK = (Shape(1, 8192, 16), Shape(1, 8192, 64))
#: For a CPU: every kind of shape, as small as it comes.
DRY = (Shape(1, 70, 1), Shape.packed((33, 1, 17), 2), Shape(2, 1, 2, state=True))
