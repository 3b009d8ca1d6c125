"""Launching the Hopper program: `prep` over all chunks, then the walk that fills the chip."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from kda.formats import F32
from kda.kernels import compile as compiling
from kda.kernels.form import Call, Form
from kda.kernels.launch import entry, parameters
from kda.kernels.views import View, dense, viewed

__all__ = ["OWN", "PASSES", "WALK_PASSES", "Programs", "Walk", "compiled_prep", "compiled_walk", "launch", "walk_for"]

CHUNK = 64
D = 128

#: Waits are written out in the programs, every access is inside its tensor, and 2^x is one instruction.
PASSES: dict[str, object] = {
    "tl.enable_fast_math": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_safe_memory_legalize": True,
}
#: The warpgroups of a walk live side by side, which the pass that shares bytes between buffers does not see.
WALK_PASSES: dict[str, object] = {**PASSES, "tl.disable_shared_memory_reuse": True}

#: A walk, by the value channels of one program: the wide one has 64, the narrow one 32 or 16.
Walk = Literal[16, 32, 64]
NARROW: tuple[Walk, ...] = (16, 32)
WIDE: Walk = 64


def walk_for(heads: int, multiprocessors: int) -> Walk:
    """The walk of so many heads of sequences: the narrowest all of whose programs run at once, one per multiprocessor.

    A narrower program takes less time per chunk; two rounds of it take more than one of the next wider.
    """
    return next((width for width in NARROW if D // width * heads <= multiprocessors), WIDE)


@dataclass(frozen=True)
class Programs:
    """Functions to launch in place of `prep`, `walk_wide` and `walk_narrow`: rewritten copies; None for our own."""

    prep: Callable[..., Any] | None = None
    walk_wide: Callable[..., Any] | None = None
    walk_narrow: Callable[..., Any] | None = None


OWN = Programs()


@functools.cache
def compiled_prep(form: Form, program: Callable[..., Any] | None = None) -> Any:
    """The compiled first launch of a form."""
    # Of states it knows nothing: forms that differ in them alone share it.
    plain = replace(form, initial_state=False, final_state=False, state_v_first=False)
    return _compiled_prep(plain, program)


@functools.cache
def compiled_walk(form: Form, walk: Walk, program: Callable[..., Any] | None = None) -> Any:
    """The compiled second launch of a form."""
    # What the gates were made of is behind it.
    plain = replace(form, normalise=False, gate="log", beta="value", g_format=F32, beta_format=F32)
    return _compiled_walk(plain, walk, program)


@functools.cache
def _compiled_prep(form: Form, program: Callable[..., Any] | None) -> Any:
    compiling.tilelang()
    from kda.kernels.hopper.prep import prep

    return compiling.compile_program(lambda: (program or prep)(form), "cuda", passes=PASSES)


@functools.cache
def _compiled_walk(form: Form, walk: Walk, program: Callable[..., Any] | None) -> Any:
    compiling.tilelang()
    from kda.kernels.hopper.walk import walk_narrow, walk_wide

    def made() -> Any:
        return (program or walk_wide)(form) if walk == WIDE else (program or walk_narrow)(form, walk)

    return compiling.compile_program(made, "cuda", passes=WALK_PASSES)


class _Plan(NamedTuple):
    """What calls of one form and one set of sizes share: both launches, and what lies between them.

    slots: for the chunks of a value head, see prep. elements: of the tensor in which W, A, Q_g, K_g, A_qk and `lost`
    lie, as `tiles` says; decay: the shape of the other one.
    """

    prepare: Callable[..., Any]
    step: Callable[..., Any]
    slots: int
    elements: int
    tiles: tuple[View, ...]
    decay: tuple[int, int]


@functools.lru_cache(maxsize=4096)
def _planned(
    form: Form,
    tokens: int,
    sequences: int,
    length: int,
    HV: int,
    device: torch.device,
    walk: Walk | None,
    programs: Programs,
) -> _Plan:
    walk = walk or walk_for(HV * sequences, compiling.multiprocessors(device))
    slots = tokens // CHUNK + sequences if form.packed else sequences * -(-length // CHUNK)
    X, tile, square = HV * slots, CHUNK * D, CHUNK * CHUNK
    W, Q_g, K_g = (dense(X, CHUNK, D, offset=i * X * tile) for i in range(3))
    A_qk = dense(X, CHUNK, CHUNK, offset=3 * X * tile)
    A = dense(X, 2, CHUNK, CHUNK, offset=X * (3 * tile + square))
    lost = dense(X, CHUNK, offset=X * 3 * (tile + square))
    return _Plan(
        prepare=entry(compiled_prep(form, programs.prep)),
        step=entry(compiled_walk(form, walk, programs.walk_wide if walk == WIDE else programs.walk_narrow)),
        slots=slots,
        elements=X * (3 * tile + 3 * square + CHUNK),
        tiles=(W, A, Q_g, K_g, A_qk, lost),
        decay=(X, D + CHUNK),
    )


def launch(call: Call, walk: Walk | None = None, programs: Programs = OWN) -> None:
    """Compute `call` into its o and final_state, on the current stream, without synchronising.

    walk: None for that of `walk_for`. programs: rewritten copies to launch in place of ours. Between the two launches
    lie 74,624 bytes per chunk and value head.
    """
    tokens, H, _ = call.q.shape
    if tokens == 0 or call.sequences == 0:
        call.hand_states_on()
        return
    HV = call.v.shape[1]
    plan = _planned(call.form, tokens, call.sequences, call.length, HV, call.q.device, walk, programs)
    workspace = call.q.new_empty(plan.elements)
    between = [viewed(workspace, *view) for view in plan.tiles]
    between.append(workspace.new_empty(*plan.decay, dtype=torch.float32))

    q, k, v, *gates, starts, S_0, o, S_N, sequences, length, scale, lower_bound = parameters(call)
    compiling.COUNTS.launches += 1
    plan.prepare(q, k, *gates, starts, *between, plan.slots, length, HV // H, lower_bound)
    plan.step(*between, v, starts, S_0, o, S_N, sequences, plan.slots, length, scale)
