"""The tensors of one call: random, the same for every contender."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch

from speed.shapes import D, Mode, Shape

__all__ = ["LOWER_BOUND", "Given", "made", "sets_needed"]

#: Of the bounded gate; the deepest that FlashKDA and FLA's safe_gate take.
LOWER_BOUND = -5.0
#: Sets are made until they hold this many times the L2 cache, so that no call finds its inputs there.
TIMES_L2 = 2
MOST_SETS = 128


@dataclass(frozen=True)
class Given:
    """What one call is given, in FLA's layout.

    q, k, v: `[B, N, H, D]` bf16. g: `[B, N, H, D]` and beta: `[B, N, H]`, float32 or (raw) bf16. initial_state:
    `[S, H, D, D]` float32 or None. cu_seqlens: `[S + 1]` int64 or None; one tensor for all sets, since FLA keeps what
    it derives from it. A_log: `[H]` and dt_bias: `[H, D]` float32, where the mode is "raw".
    """

    mode: Mode
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    initial_state: torch.Tensor | None
    cu_seqlens: torch.Tensor | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors that differ between sets."""
        tensors = (self.q, self.k, self.v, self.g, self.beta, self.initial_state)
        return sum(x.numel() * x.element_size() for x in tensors if x is not None)


def sets_needed(one: int, l2: int) -> int:
    """How many sets of `one` bytes hold more than twice the L2 cache: at least 2, at most 128."""
    return max(2, min(MOST_SETS, TIMES_L2 * l2 // max(one, 1) + 1))


def made(shape: Shape, mode: Mode, device: str, number: int | None = None, l2: int = 0, seed: int = 0) -> list[Given]:
    """`number` sets of inputs, or as many as `sets_needed` says for a cache of `l2` bytes.

    "computed": unit rows, e^g uniform in [0.9, 0.999], beta uniform in [0, 1]. "raw": Gaussian q, k, v, g and beta;
    A_log and dt_bias as models initialise them (A uniform in [1, 16], softplus(dt_bias) log-uniform in [0.001, 0.1]).
    """
    random = torch.Generator(device).manual_seed(seed)
    starts = torch.tensor(shape.starts, dtype=torch.int64, device=device) if shape.lengths else None

    def gauss(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=random, device=device)

    def uniform(low: float, high: float, *size: int) -> torch.Tensor:
        return torch.rand(size, generator=random, device=device) * (high - low) + low

    rows = (1, shape.tokens, shape.H) if shape.lengths else (shape.B, shape.N, shape.H)
    A_log = dt_bias = None
    if mode == "raw":
        A_log = uniform(1.0, 16.0, shape.H).log()
        dt_bias = uniform(log(1e-3), log(0.1), shape.H, D).exp().expm1().log()
    sets: list[Given] = []
    while not sets or len(sets) < (number or sets_needed(sets[0].bytes, l2)):
        q, k, v = (gauss(*rows, D) for _ in "qkv")
        if mode == "computed":
            q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
            g, beta = uniform(0.9, 0.999, *rows, D).log(), uniform(0.0, 1.0, *rows)
        else:
            g, beta = gauss(*rows, D).bfloat16(), gauss(*rows).bfloat16()
        state = gauss(len(shape.sequences), shape.H, D, D) if shape.state else None
        sets.append(Given(mode, q.bfloat16(), k.bfloat16(), v.bfloat16(), g, beta, state, starts, A_log, dt_bias))
    return sets
