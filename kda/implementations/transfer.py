"""Tensors to a device and back, all of them in one copy each way.

What a run costs on a GPU that many processes share is how often it waits for its turn, not how much it moves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["bits", "to_device", "to_host"]

#: Where a tensor starts in a buffer, a multiple of so many bytes: what CUDA's own allocations are aligned to.
_STEP = 256
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def to_device(tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """`tensors` of the CPU on `device`, contiguous, as views of one buffer; on the CPU, they themselves.

    They lie in their order. Between them every byte is 0xFF, which is NaN in every floating-point format.
    """
    return dict(tensors) if device.type == "cpu" else _packed(tensors, device)


def to_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Some of what `to_device` gave, on the CPU: copies of all that lies between the first and the last of them."""
    return dict(tensors) if all(t.device.type == "cpu" for t in tensors.values()) else _fetched(tensors)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers, which are equal where the bits are: NaN, too, and not 0.0 and -0.0."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _packed(tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    starts, size = {}, 0
    for name, tensor in tensors.items():
        starts[name] = size
        size += -(-tensor.numel() * tensor.element_size() // _STEP) * _STEP
    host = _bytes_on_host(size, device).fill_(0xFF)
    for name, tensor in tensors.items():
        _part(host, starts[name], tensor).copy_(tensor)
    # The copy is queued before the launches, on their stream; pinned memory is not used again before it was read.
    there = host.to(device, non_blocking=True)
    return {name: _part(there, starts[name], tensor) for name, tensor in tensors.items()}


def _fetched(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    starts = {name: int(tensor.storage_offset()) * tensor.element_size() for name, tensor in tensors.items()}
    first = min(starts.values())
    stop = max(starts[name] + tensor.numel() * tensor.element_size() for name, tensor in tensors.items())
    one = next(iter(tensors.values()))
    there = one.new_empty(0, dtype=torch.uint8).set_(one.untyped_storage(), first, (stop - first,), (1,))
    # A copy that is not queued: it waits for the launches, and for nothing else.
    host = _bytes_on_host(stop - first, there.device).copy_(there)
    return {name: _part(host, starts[name] - first, tensor) for name, tensor in tensors.items()}


def _bytes_on_host(size: int, device: torch.device) -> torch.Tensor:
    # A GPU reads and writes pinned memory itself, at once; other memory goes through a buffer of the driver, in pieces.
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _part(buffer: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    return buffer[start : start + like.numel() * like.element_size()].view(like.dtype).view(like.shape)
