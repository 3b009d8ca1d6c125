"""`kda_forward`: Kimi Delta Attention, forward, as an operator of PyTorch.

Names, shapes and defaults are those of `chunk_kda` of flash-linear-attention 0.6.0. What is asked for is settled in
three steps: `kda_forward` reads the options, the operator `torch.ops.kda.forward` checks the tensors and makes the
buffers, and an engine (`kda.kernels.engines`) computes. Nothing is compiled or imported for it before the first call.
"""

from __future__ import annotations

import functools
from dataclasses import astuple
from math import isfinite
from typing import Any, NamedTuple, cast

import torch
from torch.autograd import forward_ad

from kda.kernels.contract import Extents, Options, Seen, checked, writable
from kda.kernels.engines import Engine, choose
from kda.kernels.form import Beta, Call, Form, Gate
from kda.kernels.launch import aligned
from kda.kernels.values import check_values
from kda.kernels.views import View, dense, viewed
from kda.problem import InputError

__all__ = ["kda_forward"]

_NEEDED = ("q", "k", "v", "g", "beta")
_TENSORS = (*_NEEDED, "initial_state", "cu_seqlens", "A_log", "dt_bias", "out", "final_state")
_FLAGS = (
    "output_final_state", "use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval", "safe_gate", "state_v_first", "check",
)  # fmt: skip

#: Options of FLA's that are not taken, and what to do instead. At None or False they ask for nothing.
_NOT_TAKEN = {
    "cu_seqlens_cpu": "leave it out: cu_seqlens is read where it is, on the device",
    "max_num_seqs": "leave it out: the number of sequences is len(cu_seqlens) - 1",
    "use_graph": "leave it out: every call can be captured, and replayed with other values in cu_seqlens",
    "chunk_size": "leave it out: each engine has a chunk length of its own, and any gives the same result",
    "disable_recompute": "leave it out: there is no backward pass to keep anything for",
    "return_intermediate_states": "cut the sequences where a state is wanted, and ask for their final states",
    "cp_context": "hand the final state of one device's tokens to the next as its initial_state",
    "head_first": "pass tokens before heads: x.transpose(1, 2) for each tensor x",
    "transpose_state_layout": "say state_v_first",
    "offsets": "say cu_seqlens",
}


def kda_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    *,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    final_state: torch.Tensor | None = None,
    check: bool = False,
    engine: str | None = None,
    **not_taken: object,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """KDA forward: returns o `[B, N, HV, DV]`, as q, and the final state `[S, HV, DK, DV]`, float32, or None.

    q, k: `[B, N, H, DK]`, v: `[B, N, HV, DV]`, all float16, bfloat16 or float32, on one device, the CPU or CUDA. HV is
    a multiple of H: value head h reads q and k of head h // (HV // H). g: `[B, N, HV, DK]`, natural-log gate <= 0,
    however deep, and beta: `[B, N, HV]` in [0, 2], both float32 or as q. Strided views are copied.
    scale multiplies o; DK^-0.5 where None. initial_state: `[S, HV, DK, DV]`, float32; None for zeros. The final state
    is made where `output_final_state` or a buffer asks for it. state_v_first: both are `[S, HV, DV, DK]`.
    cu_seqlens: `[S + 1]`, int32 or int64, ascending from 0: where each of S sequences starts in the one batch B = 1,
    and where the last one ends; tokens after that are not touched, and a sequence may be empty. Without it, S = B.

    use_qk_l2norm_in_kernel: q and k are divided by sqrt(sum x^2 + 1e-6), and rounded. use_gate_in_kernel: the gate is
    -exp(A_log) softplus(g + dt_bias), or, with a lower_bound < 0, lower_bound sigmoid(exp(A_log) (g + dt_bias)), for
    which A_log may be None; A_log: `[HV]`, dt_bias: `[HV, DK]` or `[HV * DK]` or None. safe_gate changes nothing: every
    gate is safe. use_beta_sigmoid_in_kernel: beta is sigmoid(beta), with allow_neg_eigval twice that.

    out, final_state: contiguous buffers to write to, which share no memory with another argument; fresh ones otherwise.
    check: look at the values too, which waits for the device; without it no value is looked at, nothing waits, and a
    call can be captured in a CUDA graph. engine: "steps", "hopper" or "portable"; where None, the first that
    covers the call, "steps" for sequences of a few tokens alone. Another engine has other low bits.

    There is no backward pass: inputs that require a gradient are refused unless gradients are off. Raises InputError,
    before anything is launched, for whatever does not fit.
    """
    for name, value in not_taken.items():
        _refuse(name, value)
    flags = (
        output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval,
        safe_gate, state_v_first, check,
    )  # fmt: skip
    for name, flag in zip(_FLAGS, flags, strict=True):
        if flag is not True and flag is not False:
            raise InputError(f"{name} is {flag!r}; expected True or False")
    if scale is not None:
        _check_number("scale", scale)
    if lower_bound is not None:
        _check_number("lower_bound", lower_bound)
    if engine is not None and not isinstance(engine, str):
        raise InputError(f"engine is {engine!r}; expected a name or None")

    gate = _gate(use_gate_in_kernel, safe_gate, lower_bound, A_log, dt_bias)
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise InputError(
            "allow_neg_eigval is True and use_beta_sigmoid_in_kernel is False; expected both (beta that is no logit "
            "may be up to 2 as it is: leave allow_neg_eigval out)"
        )
    beta_form = ("doubled" if allow_neg_eigval else "logits") if use_beta_sigmoid_in_kernel else "value"

    grad = torch.is_grad_enabled()
    dual = forward_ad._current_level >= 0
    tensors = (q, k, v, g, beta, initial_state, cu_seqlens, A_log, dt_bias, out, final_state)
    for name, tensor in zip(_TENSORS, tensors, strict=True):
        if tensor is not None or name in _NEEDED:
            _check_kind(name, tensor, grad, dual)

    o, state = torch.ops.kda.forward.default(
        *tensors, scale, lower_bound if gate == "bounded" else None,
        output_final_state or final_state is not None, state_v_first, use_qk_l2norm_in_kernel, gate, beta_form,
        check, engine,
    )  # fmt: skip
    return (
        o if out is None else out,
        final_state if final_state is not None else state if output_final_state else None,
    )


def _refuse(name: str, value: object) -> None:
    if name not in _NOT_TAKEN:
        raise TypeError(f"kda_forward() got an unexpected keyword argument {name!r}")
    if name == "transpose_state_layout" or not (value is None or value is False):
        raise InputError(f"{name} is given, which kda_forward does not take; {_NOT_TAKEN[name]}")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymFloat | torch.SymInt):
        what = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
        raise InputError(f"{name} is {what}; expected a number of Python's (a tensor would have to be waited for)")


def _gate(
    in_kernel: bool,
    safe: bool,
    lower_bound: float | None,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
) -> Gate:
    if not in_kernel:
        for name, given in (("A_log", A_log), ("dt_bias", dt_bias)):
            if given is not None:
                raise InputError(
                    f"{name} is given and use_gate_in_kernel is False; expected use_gate_in_kernel=True, or, for a "
                    f"gate that is activated already, no {name}"
                )
        return "log"
    if lower_bound is None:
        if safe:
            raise InputError(
                "safe_gate and use_gate_in_kernel are True and lower_bound is None; expected a lower_bound below 0, "
                "such as -5, for the bounded gate (or leave safe_gate out: every gate is safe)"
            )
        if A_log is None:
            raise InputError(
                "use_gate_in_kernel is True, and A_log and lower_bound are None; expected A_log [HV] for "
                "-exp(A_log) softplus(g + dt_bias), or a lower_bound below 0 for the bounded gate"
            )
        return "softplus"
    return "bounded"


def _tangent(tensor: torch.Tensor) -> torch.Tensor | None:
    found: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return found


def _check_kind(name: str, tensor: object, grad: bool, dual: bool) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise InputError(f"{name} has layout {layout}; expected a dense tensor (pass {name}.to_dense())")
    if (grad and tensor.requires_grad) or (dual and _tangent(tensor) is not None):
        raise InputError(
            f"{name} requires a gradient and kda_forward has no backward pass; expected a tensor without (call it "
            f"under torch.no_grad(), or pass {name}.detach())"
        )


# The operator

_LIBRARY: Any = torch.library.Library("kda", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "forward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state, Tensor? cu_seqlens, "
    "Tensor? A_log, Tensor? dt_bias, Tensor(a!)? out, Tensor(b!)? final_state, float? scale, float? lower_bound, "
    "bool output_final_state, bool state_v_first, bool normalise, str gate, str beta_form, bool check, str? engine) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


class _Plan(NamedTuple):
    """What is known of a call by what is seen of its tensors: all that does not change from one like it to the next.

    o, state: the shapes of the tensors to make, of no elements where there is a buffer or nothing is asked for. keys,
    values, gates, betas, biases: how a program sees q and k, v and o, g, beta, and dt_bias. device: the index of the
    CUDA device, where there are several.
    """

    form: Form
    engine: Engine
    o: tuple[int, ...]
    state: tuple[int, ...]
    keys: View
    values: View
    gates: View
    betas: View
    biases: View
    sequences: int
    length: int
    scale: float
    empty: bool
    device: int | None


#: Most calls look like an earlier one.
@functools.lru_cache(maxsize=4096)
def _planned(
    seen: tuple[Seen | None, ...],
    final_state: bool,
    state_v_first: bool,
    normalise: bool,
    gate: str,
    beta_form: str,
    engine: str | None,
) -> _Plan:
    options = Options(final_state, state_v_first, normalise, cast(Gate, gate), cast(Beta, beta_form))
    extents, form = checked(_named(seen), options)
    B, N, S, H, HV, DK, DV = astuple(extents)
    device = _named(seen)["q"][2]
    o, state = _to_make(seen, extents, options)
    return _Plan(
        form=form,
        engine=choose(form, DK, DV, device, engine, B * N / max(S, 1)),
        o=o,
        state=state,
        keys=dense(B * N, H, DK),
        values=dense(B * N, HV, DV),
        gates=dense(B * N, HV, DK),
        betas=dense(B * N, HV),
        biases=dense(HV, DK),
        sequences=S,
        length=N,
        scale=DK**-0.5,
        empty=not (B * N and S),
        device=device.index if device.type == "cuda" and torch.cuda.device_count() > 1 else None,
    )


def _to_make(
    seen: tuple[Seen | None, ...], extents: Extents, options: Options
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of new tensors for the outputs; of no elements for what has a buffer or is not asked for."""
    given = _named(seen)
    return (
        (0,) if "out" in given else extents.shape("out", options),
        (0,) if "final_state" in given or not options.final_state else extents.shape("final_state", options),
    )


def _named(things: tuple[Any, ...]) -> dict[str, Any]:
    return {name: thing for name, thing in zip(_TENSORS, things, strict=True) if thing is not None}


def _seen(tensors: tuple[torch.Tensor | None, ...]) -> tuple[Seen | None, ...]:
    return tuple([None if t is None else (t.shape, t.dtype, t.device) for t in tensors])


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    out: torch.Tensor | None,
    final_state: torch.Tensor | None,
    scale: float | None,
    lower_bound: float | None,
    output_final_state: bool,
    state_v_first: bool,
    normalise: bool,
    gate: str,
    beta_form: str,
    check: bool,
    engine: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = (q, k, v, g, beta, initial_state, cu_seqlens, A_log, dt_bias, out, final_state)
    plan = _planned(_seen(tensors), output_final_state, state_v_first, normalise, gate, beta_form, engine)
    if scale is not None and not isfinite(scale):
        raise InputError(f"scale is {scale}; expected a finite number")
    if lower_bound is not None and not (isfinite(lower_bound) and lower_bound < 0):
        raise InputError(f"lower_bound is {lower_bound}; expected a finite number below 0, such as -5")
    if check:
        check_values(plan.form, {n: t for n, t in _named(tensors).items() if n not in ("out", "final_state")})
    if out is not None or final_state is not None:
        given = _named(tensors)
        buffers: dict[str, torch.Tensor] = {name: given.pop(name) for name in ("out", "final_state") if name in given}
        writable(buffers, given)
        # What autograd saved of a buffer is no longer what it holds.
        torch.autograd.graph.increment_version([b for b in buffers.values() if not b.is_inference()])

    made_o, made_state = _fresh(q, plan.o, plan.state)
    o = made_o if out is None else out
    state = None if not output_final_state else made_state if final_state is None else final_state.detach()
    if plan.empty:
        if state is not None:  # no tokens: every state stays what it was
            state.zero_() if initial_state is None else state.copy_(initial_state.detach())
        return made_o, made_state

    # By position: by name it would cost the host three times as much.
    call = Call(
        plan.form,
        viewed(aligned(q), *plan.keys),
        viewed(aligned(k), *plan.keys),
        viewed(aligned(v), *plan.values),
        viewed(aligned(g), *plan.gates),
        viewed(aligned(beta), *plan.betas),
        viewed(o, *plan.values),
        plan.sequences,
        plan.length,
        plan.scale if scale is None else scale,
        None if A_log is None else aligned(A_log.detach().float()),
        None if dt_bias is None else viewed(aligned(dt_bias.float()), *plan.biases),
        lower_bound or 0.0,
        None if cu_seqlens is None else aligned(cu_seqlens.int()),
        None if initial_state is None else aligned(initial_state.detach()),
        state,
    )
    if plan.device is not None and plan.device != torch.cuda.current_device():
        with torch.cuda.device(plan.device):
            plan.engine.launch(call)
    else:
        plan.engine.launch(call)
    return made_o, made_state


def _fresh(q: torch.Tensor, o: tuple[int, ...], state: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    # Sizes one by one: PyTorch takes a tuple apart at half the price of the allocation.
    return q.new_empty(*o), q.new_empty(*state, dtype=torch.float32)


def _forward_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What `_forward` returns and refuses, by shapes, formats and devices alone: for torch.compile and meta tensors."""
    *tensors, _, _, output_final_state, state_v_first, normalise, gate, beta_form, _, _ = arguments
    seen, options = _seen(tuple(tensors)), Options(output_final_state, state_v_first, normalise, gate, beta_form)
    extents, _ = checked(_named(seen), options)
    return _fresh(tensors[0], *_to_make(seen, extents, options))


def _forward_mapped(*_: Any) -> Any:
    raise InputError(
        "kda_forward is called under vmap, for which it has no rule; expected a call on the whole batch: make the "
        "mapped axis part of B (pass x.flatten(0, 1) for each tensor x)"
    )


_LIBRARY.impl("forward", _forward, "CompositeExplicitAutograd")
torch.library.register_fake("kda::forward", _forward_fake, lib=_LIBRARY)
torch.library.register_vmap("kda::forward", _forward_mapped, lib=_LIBRARY)
