"""What the values of one call of `kda_forward` must be. Looking at them waits for the device."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import isfinite

import torch

from kda.kernels.contract import at_words
from kda.kernels.form import Form
from kda.problem import InputError

__all__ = ["check_values"]


def check_values(form: Form, tensors: Mapping[str, torch.Tensor]) -> None:
    """InputError naming the first value that is not finite, gate above 0, beta outside [0, 2] or bound out of order.

    tensors: those of the call that are given, by name. Gates and betas are bounded where they arrive as such (forms
    "log" and "value"). Tokens of no sequence are not looked at.
    """
    looked_at = {name: tensor.detach() for name, tensor in tensors.items() if name != "cu_seqlens"}
    if form.packed:
        end = _checked_end(tensors["cu_seqlens"], tensors["q"].shape[1])
        for name in ("q", "k", "v", "g", "beta"):
            looked_at[name] = looked_at[name][:, :end]
    looked_at = {name: tensor for name, tensor in looked_at.items() if tensor.numel()}
    if not looked_at:
        return

    # The extremes of every tensor in one transfer, and no mask as large as an input.
    ends = torch.stack([end.double() for tensor in looked_at.values() for end in tensor.aminmax()]).tolist()
    extremes = dict(zip(looked_at, zip(ends[::2], ends[1::2], strict=True), strict=True))
    for name, (lowest, highest) in extremes.items():
        if not (isfinite(lowest) and isfinite(highest)):
            at, value = _first(name, looked_at[name], ~torch.isfinite(looked_at[name]), form)
            raise InputError(f"{name} is {value} at {at}; every value must be finite")
    if form.gate == "log" and "g" in extremes and extremes["g"][1] > 0:
        at, value = _first("g", looked_at["g"], looked_at["g"] > 0, form)
        raise InputError(
            f"g is {value:.6g} at {at}; the gate is a natural logarithm and must be <= 0 (pass log(a), not a, or "
            "use_gate_in_kernel=True for one that is not activated yet)"
        )
    if form.beta == "value" and "beta" in extremes and (extremes["beta"][0] < 0 or extremes["beta"][1] > 2):
        at, value = _first("beta", looked_at["beta"], (looked_at["beta"] < 0) | (looked_at["beta"] > 2), form)
        raise InputError(
            f"beta is {value:.6g} at {at}; expected 0 <= beta <= 2 (use_beta_sigmoid_in_kernel=True for logits)"
        )


def _checked_end(cu_seqlens: torch.Tensor, tokens: int) -> int:
    """Where the last sequence ends."""
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0:
        raise InputError(f"cu_seqlens[0] is {bounds[0]}; expected 0, where the first sequence begins")
    for i, (start, stop) in enumerate(itertools.pairwise(bounds)):
        if stop < start:
            raise InputError(f"cu_seqlens[{i + 1}] is {stop} and cu_seqlens[{i}] is {start}; expected them to ascend")
    if bounds[-1] > tokens:
        raise InputError(f"cu_seqlens[{len(bounds) - 1}] is {bounds[-1]}; expected at most N = {tokens}")
    return int(bounds[-1])


def _first(name: str, tensor: torch.Tensor, wrong: torch.Tensor, form: Form) -> tuple[str, float]:
    """The first place that is `wrong`, in words, and the value there."""
    at = tuple(torch.nonzero(wrong)[0].tolist())
    return at_words(name, at, form.state_v_first), tensor[at].item()
