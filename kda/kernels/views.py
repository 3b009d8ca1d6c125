"""Views of dense tensors, made past the dispatcher, which is what views otherwise cost the host most."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch

__all__ = ["View", "dense", "viewed"]


class View(NamedTuple):
    """Where a view's elements are: shape, strides and the first one, in elements from where the tensor begins."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def dense(*shape: int, offset: int = 0) -> View:
    """The view of `shape` whose elements lie behind one another."""
    *inner, _ = accumulate((1, *reversed(shape)), lambda stride, size: stride * size)
    return View(shape, tuple(reversed(inner)), offset)


def _as_strided(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    return tensor.detach().as_strided(shape, strides, tensor.storage_offset() + offset)


#: viewed(tensor, *view): the tensor of a view, for which autograd has neither gradients nor versions. The function is
#: that of the programs that torch.compile makes, and checks no bounds; where PyTorch has none, the usual operators.
viewed: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_reinterpret_tensor", _as_strided)
