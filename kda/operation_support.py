"""What an implementation of the operation can be asked for: the forms its programs are compiled for, and sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kda.formats import F32, Format
from kda.kinds import Kind
from kda.operation_case import OperationCase

__all__ = ["FORMS", "FormChoice", "OperationSupport", "with_channels"]


@dataclass(frozen=True)
class FormChoice:
    """One entry of a palette: what one program is compiled for, but for the operand format.

    state, final: whether there is an initial state, and a final one. narrow_g, narrow_beta: whether g and beta arrive
    in the operand format instead of float32. The others as in `OperationCase`.
    """

    DK: int = 16
    DV: int = 16
    packed: bool = False
    state: bool = False
    final: bool = True
    v_first: bool = False
    normalise: bool = False
    gate: str = "log"
    rate: str = "value"
    narrow_g: bool = False
    narrow_beta: bool = False

    @classmethod
    def of(cls, case: OperationCase) -> FormChoice:
        """The form of a case."""
        return cls(
            DK=case.DK,
            DV=case.DV,
            packed=case.lengths is not None,
            state=case.state.name != "none",
            final=case.final,
            v_first=case.v_first,
            normalise=case.normalise,
            gate=case.gate,
            rate=case.rate,
            narrow_g=case.g_dtype == case.dtype,
            narrow_beta=case.beta_dtype == case.dtype,
        )

    @property
    def id(self) -> str:
        """The form in a few words: `DK16-DV32-packed-state`."""
        given = [field.name for field in fields(self)[2:] if getattr(self, field.name) != field.default]
        named = [getattr(self, name) if name in ("gate", "rate") else name for name in given]
        return "-".join((f"DK{self.DK}", f"DV{self.DV}", *("no_final" if name == "final" else name for name in named)))

    def settled(self, dtype: Format) -> dict[str, Any]:
        """The fields of a case that it settles, with operands of `dtype`."""
        same = {name: getattr(self, name) for name in ("DK", "DV", "gate", "rate", "normalise", "v_first", "final")}
        formats = {"g_dtype": dtype if self.narrow_g else F32, "beta_dtype": dtype if self.narrow_beta else F32}
        return same | formats | {"dtype": dtype}

    def least(self, dtype: Format) -> OperationCase:
        """The smallest case that has it, one token with operands of `dtype`."""
        return OperationCase(
            **self.settled(dtype),
            lengths=(1,) if self.packed else None,
            lower_bound=-1.0 if self.gate == "bounded" else None,
            A_log=Kind("model" if self.gate == "softplus" else "none"),
            state=Kind("gauss" if self.state else "none"),
        )

    def misses(self, wanted: Mapping[str, Collection[Any]]) -> str | None:
        """The first field of `wanted` whose values do not hold this form's; None where all do."""
        return next((name for name, values in wanted.items() if getattr(self, name) not in values), None)


#: The forms that the properties compile, the simplest first: every field at every value, most pairs of them, DK < DV,
#: DK > DV, the largest of each. Few, since each costs seconds to compile, and each law adds a neighbour of some.
FORMS: tuple[FormChoice, ...] = (
    FormChoice(),
    FormChoice(16, 32, packed=True, state=True),
    FormChoice(32, 16, packed=True, normalise=True, gate="softplus", rate="logits"),
    FormChoice(32, 48, state=True, v_first=True, gate="bounded", rate="doubled", narrow_g=True),
    FormChoice(
        64, 32, packed=True, state=True, v_first=True, normalise=True, gate="softplus", rate="doubled", narrow_beta=True
    ),
    FormChoice(16, 64, packed=True, state=True, final=False, gate="bounded", narrow_g=True, narrow_beta=True),
    FormChoice(48, 16, final=False, normalise=True, rate="logits", narrow_beta=True),
    FormChoice(128, 128, packed=True, state=True, normalise=True, gate="softplus", rate="logits", narrow_g=True),
    FormChoice(256, 32, packed=True, state=True, v_first=True),
    FormChoice(32, 256, packed=True, normalise=True, gate="bounded", rate="doubled"),
)


def with_channels(forms: tuple[FormChoice, ...], DK: int, DV: int) -> tuple[FormChoice, ...]:
    """The same forms at one DK and DV: for an engine that has no others."""
    names = [field.name for field in fields(FormChoice) if field.name not in ("DK", "DV")]
    return tuple(dict.fromkeys(FormChoice(DK, DV, **{n: getattr(form, n) for n in names}) for form in forms))


@dataclass(frozen=True)
class OperationSupport:
    """The calls an engine can be asked for.

    dtypes: operand formats, the simplest first. forms: the palette, the simplest first; None where every form is free,
    with `channels` for DK and DV. max_tokens: the longest sequence worth asking for. max_sequences, max_heads: the most
    sequences, and heads of q and k. groups: the numbers of value heads for each.
    """

    dtypes: tuple[Format, ...]
    forms: tuple[FormChoice, ...] | None = FORMS
    channels: tuple[int, ...] = (16, 32, 48, 64, 128, 256)
    max_tokens: int = 140
    max_sequences: int = 5
    max_heads: int = 3
    groups: tuple[int, ...] = (1, 2, 3, 4, 8)

    def forms_with(self, wanted: Mapping[str, Collection[Any]]) -> tuple[FormChoice, ...] | None:
        """The entries of the palette with these values of their fields; None where every form is free."""
        return None if self.forms is None else tuple(f for f in self.forms if f.misses(wanted) is None)
