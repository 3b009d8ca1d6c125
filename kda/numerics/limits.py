"""How far KDA is from the system it degenerates to, as a bound: what the limit laws allow beyond rounding."""

from __future__ import annotations

from math import sqrt

import numpy as np

from kda.formats import F64
from kda.numerics.budget import Budget
from kda.problem import Inputs, Outputs
from kda.references import ChunkTrace, ref_C_fast

__all__ = [
    "deletion_bound",
    "deletions_beyond_the_first",
    "gates_beyond_the_first",
    "key_length_bound",
    "past_bound",
    "relative_budget",
    "split_error",
    "written_bound",
]


#: Of float64, in a state of N tokens relative to what was written: 100 tokens and more at one roundoff each.
ROUNDING = 1e-13


def deletion_bound(inputs: Inputs) -> Budget:
    """How far dropping the deletion, S Diag(a) (I - beta k k^T) -> S Diag(a), can move the outputs.

    With D the difference and S the state without deletion,
    D_t = (I - beta k k^T) Diag(a) D_{t-1} - beta k (k . Diag(a) S), so that per value column
    |D_t| <= max a |D_{t-1}| + beta |k| |k . Diag(a) S|. From a zero state S is of the order of beta, the bound of its
    square.
    """
    sizes = inputs.sizes
    a = np.exp(inputs.g)
    S = inputs.state()
    D = np.zeros((sizes.B, sizes.H, sizes.DV))
    o = np.empty((sizes.B, sizes.N, sizes.H))
    for t in range(sizes.N):
        k, beta = inputs.k[:, t], inputs.beta[:, t, :, None]
        k_norm = np.linalg.norm(k, axis=-1)[..., None]
        S = S * a[:, t, :, :, None]
        erased = np.abs((k[:, :, None, :] @ S)[:, :, 0])
        growth = np.maximum(1.0, np.abs(1.0 - beta * k_norm**2))
        D = growth * a[:, t].max(axis=-1)[..., None] * D + beta * k_norm * erased
        S = S + k[..., None] * (beta * inputs.v[:, t])[:, :, None, :]
        o[:, t] = np.linalg.norm(inputs.q[:, t], axis=-1) * np.linalg.norm(D, axis=-1)
    rows = np.broadcast_to(np.linalg.norm(D, axis=-1)[..., None], (sizes.B, sizes.H, sizes.DK))
    return Budget(o, rows.copy())


def deletions_beyond_the_first(inputs: Inputs) -> float:
    """From a zero state, how much of the final state (Frobenius norm) is due to two deletions or more.

    Expand the product of the I - beta k k^T: with s the sum of beta |k|^2, what m deletions leave of a write is at most
    s^m / m!, m >= 2 together e^s - 1 - s. Each term has one beta more than it has deletions, so that only these remain
    of D(beta) - 4 D(beta / 2). Float64's rounding is added.
    """
    s = (inputs.beta * (inputs.k**2).sum(-1)).sum(axis=1)
    return float(np.linalg.norm(written_bound(inputs) * (np.expm1(s) - s + ROUNDING)))


def gates_beyond_the_first(inputs: Inputs) -> float:
    """How much of the final state (Frobenius norm) is due to two gates or more: as above, with |e^g - 1| <= |g|.

    Only these remain of D(g) - 2 D(g / 2), where D is the distance to no gate. Float64's rounding is added.
    """
    s = np.abs(inputs.g).max(axis=-1).sum(axis=1)
    growth = np.maximum(1.0, np.abs(1.0 - inputs.beta * (inputs.k**2).sum(-1))).prod(axis=1)  # 1 unless |k| > 1
    return float(np.linalg.norm(growth * written_bound(inputs) * (np.expm1(s) - s + ROUNDING)))


def key_length_bound(inputs: Inputs) -> Budget:
    """How far a recall with beta = 1 is from exact because rounded keys are not quite of length 1.

    With q = k and beta = 1, o = v |k|^2 + (S k)(1 - |k|^2): off by at most | |k|^2 - 1 | (|v| + |S|).
    """
    lengths = (inputs.k**2).sum(-1)
    off = np.abs(lengths - 1).max(axis=1)[:, None]
    size = written_bound(inputs)[:, None] + np.linalg.norm(inputs.v, axis=-1)
    return Budget(off * size, np.zeros(inputs.sizes.shape("final_state")[:3]))


def split_error(inputs: Inputs, C: int) -> float:
    """How far M and A_qk by the exponent split (article, 1.2) are from the sums of 1.1, over what rounding allows.

    Both in float64. e^gamma and e^-gamma err by |gamma| roundoffs each, and sums of DK products by sqrt(DK).
    """
    chunks: list[ChunkTrace] = []
    ref_C_fast(inputs, C, inputs.sizes.DV, trace=chunks.append)
    worst = 0.0
    for chunk in chunks:
        rows = slice(chunk.start, chunk.stop)
        q, k, g = (np.swapaxes(x[:, rows], 1, 2) for x in (inputs.q, inputs.k, inputs.g))
        gamma = np.cumsum(g, axis=2)
        later = np.tril(np.ones((gamma.shape[2],) * 2, dtype=bool))[None, None, :, :, None]
        decay = np.exp(np.where(later, gamma[:, :, :, None] - gamma[:, :, None], -np.inf))
        allowed = F64.unit_roundoff * (4 + 4 * sqrt(inputs.sizes.DK) + 8 * float(-gamma.min()) * (1 + sqrt(C)))
        for stage, left, mask in (("M", k, -1), ("A_qk", q, 0)):
            pairwise = np.tril((left[:, :, :, None] * decay * k[:, :, None]).sum(-1), mask)
            size = np.linalg.norm(left, axis=-1)[..., None] * np.linalg.norm(k, axis=-1)[:, :, None]
            error = np.abs(np.tril(chunk.values[stage], mask) - pairwise)
            worst = max(worst, float((error / (allowed * size + F64.min_normal)).max()))
    return worst


def past_bound(inputs: Inputs, past: Inputs, token: int, gate: float) -> Budget:
    """How far two pasts may still move the outputs after every channel was closed to e^gate at `token`.

    inputs and past differ before `token` only. At most e^gate times the difference of the states can remain.
    """
    sizes = inputs.sizes
    largest = written_bound(inputs) + written_bound(past)
    remaining = np.exp(gate) * largest
    o = np.full((sizes.B, sizes.N, sizes.H), np.inf)
    q_norm = np.linalg.norm(inputs.q, axis=-1)
    o[:, token:] = q_norm[:, token:] * remaining[:, None]
    return Budget(o, np.repeat(remaining[..., None], sizes.DK, axis=-1))


def written_bound(inputs: Inputs) -> np.ndarray:
    """The largest Frobenius norm the state of each head `[B, H]` can have: |S_0| + sum of beta |k| |v|.

    For |k| <= 1 and beta <= 2 no deletion lengthens the state, so it never grows beyond what was put into it.
    """
    written = inputs.beta * np.linalg.norm(inputs.k, axis=-1) * np.linalg.norm(inputs.v, axis=-1)
    return np.sqrt((inputs.state() ** 2).sum((-2, -1))) + written.sum(axis=1)


def relative_budget(inputs: Inputs, outputs: Outputs, relative: float) -> Budget:
    """`relative` times each row's own norm; for rows that cancel, times a twentieth of what they are made of.

    A row of o is q S: it is made of |q| times the larger of the final state and the largest write beta |v|.
    """
    o = np.linalg.norm(outputs.o, axis=-1)
    state = np.linalg.norm(outputs.final_state, axis=-1)
    write = (inputs.beta * np.linalg.norm(inputs.v, axis=-1)).max(axis=1)
    size = np.maximum(np.linalg.norm(state, axis=-1), write) / 20
    o = np.maximum(o, np.linalg.norm(inputs.q, axis=-1) * size[:, None])
    return Budget(relative * o, relative * np.maximum(state, size[..., None]))
