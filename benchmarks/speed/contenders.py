"""Who is timed: `kda_forward`, FLA's kernels, and FlashKDA; each as its users call it, on the same tensors."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from speed.inputs import LOWER_BOUND, Given
from speed.shapes import D, Mode, Shape

__all__ = ["ENGINES", "FLA_ALONE", "FORMS", "OURS", "TOKENS", "Contender", "absent", "contenders", "versions"]

Call = Callable[[Given], tuple[torch.Tensor, torch.Tensor]]

OURS = "kda_forward"

#: FLA hands calls on to FlashKDA or TileLang where it finds them; with these it runs its own Triton kernels.
FLA_ALONE = {"FLA_FLASH_KDA": "0", "FLA_TILELANG": "0", "FLA_DISABLE_BACKEND_DISPATCH": "1"}

#: Kernels that a call of ours must launch, by engine: parts of their names.
ENGINES: dict[str, tuple[str, ...]] = {
    "steps": ("kda_steps",),
    "hopper": ("kda_prep", "kda_walk"),
    "portable": ("kda_forward",),
}

#: FLA's ways to compute the same: in chunks with pairwise diagonal blocks, in chunks with safe_gate, token by token.
TOKENS = "fla fused_recurrent_kda"
FORMS = ("fla chunk_kda", "fla chunk_kda, safe_gate", TOKENS)

#: Up to so many tokens a FLA user would decode with `fused_recurrent_kda`.
FEW_TOKENS = 16


@dataclass(frozen=True)
class Contender:
    """One way to compute a call.

    call: (o, final_state) of given tensors. marks: every one is part of the name of some kernel that a call launches.
    foreign: none may be.
    """

    name: str
    call: Call
    marks: tuple[str, ...]
    foreign: tuple[str, ...] = ()

    def wrong_kernels(self, launched: Sequence[str]) -> str:
        """What is wrong with the kernels that a call launched, by name; "" where nothing is."""
        missing = [mark for mark in self.marks if not any(mark in name for name in launched)]
        strange = [name for name in launched if any(mark in name for mark in self.foreign)]
        if missing:
            return f"{self.name} launched no kernel named {' or '.join(missing)}, but {', '.join(launched)}"
        return f"{self.name} launched {', '.join(strange)}, which is not its own" if strange else ""


def contenders(mode: Mode, shape: Shape, engine: str | None, only: Sequence[str] = ()) -> list[Contender]:
    """Everybody who is installed and computes `shape` in `mode`; `only` keeps those whose names begin with one of it.

    FLA in "computed" mode, FlashKDA in "raw" mode. Whoever is not installed is left out; `absent` says so.
    """
    found = [_ours(engine or _chosen(shape))]
    if mode == "computed" and _installed("fla"):
        found += [_fla_chunks(False), _fla_chunks(True)]
        if shape.N <= FEW_TOKENS:
            found.append(_fla_tokens())
    if mode == "raw" and _installed("flash_kda"):
        found.append(_flash())
    return [one for one in found if not only or one.name.startswith(tuple(only))]


def absent() -> list[str]:
    """A sentence about each rival that cannot run here."""
    rivals = {"fla": "FLA (fla-core)", "flash_kda": "FlashKDA (tokenspeed-flashkda)"}
    why = "is not installed" if torch.cuda.is_available() else "needs a GPU"
    return [f"{name} {why}: it is left out" for module, name in rivals.items() if not _installed(module)]


def _installed(module: str) -> bool:
    return torch.cuda.is_available() and find_spec(module) is not None


def _chosen(shape: Shape) -> str:
    """The engine that `kda_forward` takes for `shape` here."""
    from kda.formats import BF16
    from kda.kernels.engines import choose
    from kda.kernels.form import Form

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    form, tokens = Form(BF16, packed=bool(shape.lengths)), shape.tokens / len(shape.sequences)
    return choose(form, D, D, device, tokens=tokens).name


def _ours(engine: str) -> Contender:
    from kda.ops import kda_forward

    def call(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        raw = given.mode == "raw"
        return kda_forward(
            *(given.q, given.k, given.v, given.g, given.beta),
            initial_state=given.initial_state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=raw,
            use_gate_in_kernel=raw,
            use_beta_sigmoid_in_kernel=raw,
            safe_gate=raw,
            lower_bound=LOWER_BOUND if raw else None,
            state_v_first=raw,
            cu_seqlens=given.cu_seqlens,
            A_log=given.A_log,
            dt_bias=given.dt_bias,
            engine=engine,
        )

    return Contender(OURS, call, ENGINES[engine])


def _fla() -> object:
    if "fla" not in sys.modules:  # read once, at import
        os.environ.update(FLA_ALONE)
    return importlib.import_module("fla.ops.kda")


#: Kernels of the others, and TileLang's where a program has no name of its own.
_NOT_FLA = ("flash_kda", "program_kernel", *(name for names in ENGINES.values() for name in names))


def _fla_chunks(safe_gate: bool) -> Contender:
    chunk_kda = _fla().chunk_kda  # type: ignore[attr-defined]

    def call(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        return chunk_kda(
            *(given.q, given.k, given.v, given.g, given.beta),
            initial_state=given.initial_state,
            output_final_state=True,
            safe_gate=safe_gate,
            cu_seqlens=given.cu_seqlens,
        )

    marks = ("chunk_kda_fwd_kernel_intra_sub_chunk" if safe_gate else "chunk_kda_fwd_kernel_intra_token_parallel",)
    marks += ("chunk_kda_fwd_kernel_inter_solve_fused", "chunk_gla_fwd_kernel_o")
    return Contender(FORMS[safe_gate], call, marks, _NOT_FLA)


def _fla_tokens() -> Contender:
    fused_recurrent_kda = _fla().fused_recurrent_kda  # type: ignore[attr-defined]

    def call(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        return fused_recurrent_kda(
            *(given.q, given.k, given.v, given.g, given.beta),
            initial_state=given.initial_state,
            output_final_state=True,
            cu_seqlens=given.cu_seqlens,
        )

    return Contender(FORMS[2], call, ("fused_recurrent_kda_fwd_kernel",), _NOT_FLA)


def _flash() -> Contender:
    """`flash_kda.fwd` writes into `out` and `final_state`, which are allocated here as FLA's own adapter does."""
    import flash_kda

    def call(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        H = given.q.shape[2]
        sequences = len(given.q) if given.cu_seqlens is None else len(given.cu_seqlens) - 1
        o = torch.empty_like(given.v)
        final_state = torch.empty(sequences, H, D, D, dtype=torch.float32, device=o.device)
        flash_kda.fwd(
            *(given.q, given.k, given.v, given.g, given.beta),
            D**-0.5,
            o,
            given.A_log,
            given.dt_bias,
            LOWER_BOUND,
            initial_state=given.initial_state,
            final_state=final_state,
            cu_seqlens=given.cu_seqlens,
        )
        return o, final_state

    return Contender("flash_kda", call, ("_flash_kda_fwd_prepare", "_flash_kda_fwd_recurrence"), ("program_kernel",))


@functools.cache
def versions() -> dict[str, str]:
    """The version of everything that matters and is installed."""
    found = {"python": sys.version.split()[0]}
    for package in ("torch", "triton", "tilelang", "fla-core", "tokenspeed-flashkda", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
