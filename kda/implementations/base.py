"""What an implementation of KDA is to the rest of the project, and where its arrays may lie."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from kda.formats import Format
from kda.problem import Inputs, Outputs, Tile
from kda.references import ref_C_fast
from kda.source import Source
from kda.support import Support

if TYPE_CHECKING:
    from kda.implementations.operation import OperationImplementation

__all__ = ["PLAIN", "Implementation", "Memory", "MemoryViolation"]

Exp2 = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Memory:
    """How the buffers of one run are laid out.

    strided: the inputs are slices of wider arrays, not contiguous. poison: what the outputs hold before the
    run. guard: elements of a known pattern on either side of each output. Whatever the layout, inputs that changed and
    guards that were written to are a `MemoryViolation`. check_tiles: every index into the implementation's own tiles is
    checked as well, where it can be (`Implementation.checks_tiles`).
    """

    strided: bool = False
    poison: float = float("nan")
    guard: int = 0
    check_tiles: bool = False


PLAIN = Memory()


class MemoryViolation(AssertionError):
    """A kernel wrote where it must not: outside its outputs, or into its inputs."""


class Implementation(ABC):
    """Anything that maps `Inputs` to `Outputs`, and says what it supports.

    An adapter sets `name` and `summary` and defines `targets`, `dtypes`, `support` and `run`; the rest has defaults. It
    is found by the entry point group `kda.implementations`, or as `file.py:Name` or `package.module:Name` on the
    command line.
    """

    name: str
    summary: str

    #: What it was asked for by, where that is not its name: `file.py:Name`. Set by whoever finds it.
    address: str = ""

    #: Whether the chunk length of the tile means anything to it.
    chunked: bool = True
    #: Whether it refuses gates outside its domain, and whether it could do without.
    checks_domain: bool = True
    runs_unchecked: bool = False
    #: Whether `run` honours a `Memory`; the laws about memory are for these.
    controls_memory: bool = False
    #: Whether it rounds where its `mirror` rounds; the mirror laws are for these.
    mirrored: bool = False

    def targets(self) -> tuple[str, ...]:
        """The targets it can run on here, the best first: "c" or "cuda"."""
        return ("c",)

    @abstractmethod
    def dtypes(self, target: str) -> tuple[Format, ...]:
        """The operand formats it supports on `target`."""

    @abstractmethod
    def support(self, target: str, dtype: Format) -> Support:
        """The cases it can run on `target` with `dtype` operands."""

    @abstractmethod
    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        """The outputs for `inputs`. InputError for whatever it does not support, before anything is launched."""

    def sources(self) -> Mapping[str, Source]:
        """The sources that can be rewritten, by role ("kernel" for the kernel itself); by default, none."""
        return {}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        """The same implementation on rewritten `modules`, by role; what it ran before stays as it is."""
        raise NotImplementedError(f"{self.name} names no source that could be rewritten")

    def with_outputs(self, kernel: ModuleType, outputs: Sequence[Any]) -> Implementation | None:
        """The same implementation on a rewritten kernel that writes `outputs`, tensors of the target, after its own.

        By default None: there is no handing them to its launch.
        """
        return None

    def operations(self) -> tuple[OperationImplementation, ...]:
        """What computes the whole operation around it, from raw inputs; by default, nothing does."""
        return ()

    def prepare(self, inputs: Inputs, tile: Tile, target: str) -> None:
        """Compile what a run of these sizes and this tile needs; by default, nothing."""
        return

    def unchecked(self) -> Implementation | None:
        """The same, computing gates outside its domain instead of refusing them; None unless it `runs_unchecked`."""
        if not self.runs_unchecked:
            return None
        made = copy.copy(self)
        made.checks_domain = False
        return made

    def checks_tiles(self, target: str) -> bool:
        """Whether `run` honours `Memory.check_tiles` on `target`."""
        return False

    def lowered(self, inputs: Inputs, tile: Tile, target: str) -> str:
        """The code that runs for these sizes and this tile, as its compiler made it; by default, none."""
        return ""

    def mirror(self, inputs: Inputs, tile: Tile, target: str, lean: float = 0.0) -> Outputs:
        """What its mirror gives, at operand precision and with the exponential of `exp2`: reference C, unless it says.

        lean: see `kda.references.Arithmetic`.
        """
        return ref_C_fast(inputs, tile.C, tile.block_DV, inputs.dtype, self.exp2(target), lean=lean)

    def exact_mirror(self, target: str, dtype: Format) -> bool:
        """Whether its bits are the mirror's on `target` with `dtype` operands, given the exponential of `exp2`."""
        return False

    def exp2(self, target: str) -> Exp2 | None:
        """The 2^x that it uses on `target`, float32 to float32, for the mirror; None for correctly rounded."""
        return None
