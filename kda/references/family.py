"""The systems that lead up to KDA, and its limits: five recurrences, each with its own chunkwise form.

    linear_attention    S_t = S_{t-1} + beta_t v_t k_t^T                                      no gate, no deletion
    scalar_decay        S_t = alpha S_{t-1} + beta_t v_t k_t^T                                one constant gate
    per_channel_decay   S_t = S_{t-1} Diag(a_t) + beta_t v_t k_t^T                            KDA without deletion
    delta_net           S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T               KDA without gate
    gated_delta_net     S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T       all channels share a gate

beta is the strength of a write; beta = 1 gives the textbook's linear attention and scalar decay. They take the same
`Inputs` as KDA, and a gate that the system does not have is refused. Nothing here is shared with references A, B and C:
these are what those must fall back to (article, sections 3.4 and 5).
"""

from __future__ import annotations

import numpy as np

from kda.problem import InputError, Inputs, Outputs, at_words
from kda.references._layout import chunks, heads_first, tokens_first

__all__ = [
    "delta_net",
    "delta_net_chunkwise",
    "gated_delta_net",
    "gated_delta_net_chunkwise",
    "linear_attention",
    "linear_attention_chunkwise",
    "per_channel_decay",
    "per_channel_decay_chunkwise",
    "scalar_decay",
    "scalar_decay_chunkwise",
]


def linear_attention(inputs: Inputs) -> Outputs:
    """S_t = S_{t-1} + beta_t v_t k_t^T, token by token.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed or g is not 0
    everywhere. Article, section 5, first column.
    """
    sizes = inputs.check()
    _require_gate(inputs, np.zeros(1), "linear attention has no gate: g must be 0 everywhere")
    q, k, v, beta = _columns(inputs)
    S = inputs.state().swapaxes(-1, -2)
    o = np.zeros((sizes.N, sizes.B, sizes.H, sizes.DV))
    for t in range(sizes.N):
        S = S + beta[t] * _outer(v[t], k[t])
        o[t] = (S @ q[t])[..., 0]
    return _outputs(o, S)


def linear_attention_chunkwise(inputs: Inputs, C: int) -> Outputs:
    """O = Q S + tril(Q K^T) (beta V) and S <- S + K^T (beta V), chunk by chunk of C tokens.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed, g is not 0
    everywhere or C < 1. Article, section 5, first column.
    """
    sizes = inputs.check()
    _require_gate(inputs, np.zeros(1), "linear attention has no gate: g must be 0 everywhere")
    q, k, v = heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v)
    written = heads_first(inputs.beta)[..., None] * v
    S = inputs.state()
    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    for rows in chunks(sizes.N, C):
        Qc, Kc, Vc = q[:, :, rows], k[:, :, rows], written[:, :, rows]
        o[:, :, rows] = Qc @ S + np.tril(Qc @ _T(Kc)) @ Vc
        S = S + _T(Kc) @ Vc
    return Outputs(_tokens_second(o), S)


def scalar_decay(inputs: Inputs) -> Outputs:
    """S_t = alpha S_{t-1} + beta_t v_t k_t^T, token by token, with one alpha = exp(g) per batch and head.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed or g changes over
    tokens or channels. Article, section 5, second column.
    """
    sizes = inputs.check()
    alpha = _constant_alpha(inputs)[..., None, None]
    q, k, v, beta = _columns(inputs)
    S = inputs.state().swapaxes(-1, -2)
    o = np.zeros((sizes.N, sizes.B, sizes.H, sizes.DV))
    for t in range(sizes.N):
        S = alpha * S + beta[t] * _outer(v[t], k[t])
        o[t] = (S @ q[t])[..., 0]
    return _outputs(o, S)


def scalar_decay_chunkwise(inputs: Inputs, C: int) -> Outputs:
    """Linear attention's chunks under the table Gamma_ij = alpha^(i-j), chunk by chunk of C tokens.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed, g changes over
    tokens or channels, or C < 1. Article, section 5, second column.
    """
    sizes = inputs.check()
    alpha = _constant_alpha(inputs)[..., None, None]
    q, k, v = heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v)
    written = heads_first(inputs.beta)[..., None] * v
    S = inputs.state()
    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    for rows in chunks(sizes.N, C):
        Qc, Kc, Vc = q[:, :, rows], k[:, :, rows], written[:, :, rows]
        length = Qc.shape[-2]
        position = np.arange(length)
        # Never a negative power: alpha may be 0, and 1 / alpha may overflow.
        Gamma = np.tril(alpha ** np.maximum(position[:, None] - position[None, :], 0))
        since_start = alpha ** (position[:, None] + 1)
        to_end = alpha ** (length - 1 - position[:, None])
        o[:, :, rows] = (since_start * Qc) @ S + (Gamma * (Qc @ _T(Kc))) @ Vc
        S = alpha**length * S + _T(to_end * Kc) @ Vc
    return Outputs(_tokens_second(o), S)


def per_channel_decay(inputs: Inputs) -> Outputs:
    """S_t = S_{t-1} Diag(a_t) + beta_t v_t k_t^T, token by token: KDA as beta -> 0, up to beta^2; any gate.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed. Article, section
    3.4, second degeneration.
    """
    sizes = inputs.check()
    q, k, v, beta = _columns(inputs)
    a = np.exp(tokens_first(inputs.g))[..., None, :]
    S = inputs.state().swapaxes(-1, -2)
    o = np.zeros((sizes.N, sizes.B, sizes.H, sizes.DV))
    for t in range(sizes.N):
        S = S * a[t] + beta[t] * _outer(v[t], k[t])
        o[t] = (S @ q[t])[..., 0]
    return _outputs(o, S)


def per_channel_decay_chunkwise(inputs: Inputs, C: int) -> Outputs:
    """O = (Q * e^gam) S + A_qk (beta V) with A_qk as in KDA, chunk by chunk of C tokens; any gate.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed or C < 1. Article,
    section 3.4, second degeneration.
    """
    sizes = inputs.check()
    q, k, v, g = heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v), heads_first(inputs.g)
    written = heads_first(inputs.beta)[..., None] * v
    S = inputs.state()
    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    for rows in chunks(sizes.N, C):
        Qc, Kc, Vc = q[:, :, rows], k[:, :, rows], written[:, :, rows]
        gam = np.cumsum(g[:, :, rows], axis=-2)
        A_qk = np.zeros((sizes.B, sizes.H, gam.shape[-2], gam.shape[-2]))
        for i in range(gam.shape[-2]):
            seen = Kc[..., : i + 1, :] * np.exp(gam[..., i : i + 1, :] - gam[..., : i + 1, :])
            A_qk[..., i, : i + 1] = (seen @ Qc[..., i, :, None])[..., 0]
        o[:, :, rows] = (Qc * np.exp(gam)) @ S + A_qk @ Vc
        S = _T(np.exp(gam[..., -1:, :])) * S + _T(Kc * np.exp(gam[..., -1:, :] - gam)) @ Vc
    return Outputs(_tokens_second(o), S)


def delta_net(inputs: Inputs) -> Outputs:
    """S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, token by token.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed or g is not 0
    everywhere. Article, section 3.4, third degeneration.
    """
    sizes = inputs.check()
    _require_gate(inputs, np.zeros(1), "DeltaNet has no gate: g must be 0 everywhere")
    q, k, v, beta = _columns(inputs)
    S = inputs.state().swapaxes(-1, -2)
    o = np.zeros((sizes.N, sizes.B, sizes.H, sizes.DV))
    for t in range(sizes.N):
        held = S @ k[t]
        S = S - beta[t] * _outer(held, k[t]) + beta[t] * _outer(v[t], k[t])
        o[t] = (S @ q[t])[..., 0]
    return _outputs(o, S)


def delta_net_chunkwise(inputs: Inputs, C: int) -> Outputs:
    """The UT transform, (I + diag(beta) strictLower(K K^T)) [W | U] = diag(beta) [K | V], chunk by chunk of C tokens.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed, g is not 0
    everywhere or C < 1. Article, section 3.4, third degeneration.
    """
    sizes = inputs.check()
    _require_gate(inputs, np.zeros(1), "DeltaNet has no gate: g must be 0 everywhere")
    q, k, v = heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v)
    beta = heads_first(inputs.beta)[..., None]
    S = inputs.state()
    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    for rows in chunks(sizes.N, C):
        Qc, Kc, Vc, be = q[:, :, rows], k[:, :, rows], v[:, :, rows], beta[:, :, rows]
        system = np.eye(Kc.shape[-2]) + np.tril(be * (Kc @ _T(Kc)), -1)
        W = _forward(system, be * Kc)
        U = _forward(system, be * Vc)
        Vt = U - W @ S
        o[:, :, rows] = Qc @ S + np.tril(Qc @ _T(Kc)) @ Vt
        S = S + _T(Kc) @ Vt
    return Outputs(_tokens_second(o), S)


def gated_delta_net(inputs: Inputs) -> Outputs:
    """S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, token by token.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed or the channels do
    not share one gate. Article, section 3.4, first degeneration.
    """
    sizes = inputs.check()
    alpha = np.exp(tokens_first(_shared_gate(inputs)))[..., None, None]
    q, k, v, beta = _columns(inputs)
    S = inputs.state().swapaxes(-1, -2)
    o = np.zeros((sizes.N, sizes.B, sizes.H, sizes.DV))
    for t in range(sizes.N):
        held = S @ k[t]
        S = alpha[t] * (S - beta[t] * _outer(held, k[t])) + beta[t] * _outer(v[t], k[t])
        o[t] = (S @ q[t])[..., 0]
    return _outputs(o, S)


def gated_delta_net_chunkwise(inputs: Inputs, C: int) -> Outputs:
    """DeltaNet's UT transform under the table Gamma_ij = e^(gam_i - gam_j), chunk by chunk of C tokens.

    L = beta * (K K^T o Gamma), strictly lower; gam is one number per token. o: `[B, N, H, DV]`; final_state:
    `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed, the channels do not share one gate, or C < 1.
    Article, sections 0 and 3.4, first degeneration.
    """
    sizes = inputs.check()
    g = heads_first(_shared_gate(inputs))
    q, k, v = heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v)
    beta = heads_first(inputs.beta)[..., None]
    S = inputs.state()
    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    for rows in chunks(sizes.N, C):
        Qc, Kc, Vc, be = q[:, :, rows], k[:, :, rows], v[:, :, rows], beta[:, :, rows]
        gam = np.cumsum(g[:, :, rows], axis=-1)
        length = gam.shape[-1]
        # The ratio and not gam_i times 1 / gam_j; above the diagonal it would overflow, so it is masked before exp.
        Gamma = np.exp(np.where(np.tri(length, dtype=bool), gam[..., :, None] - gam[..., None, :], -np.inf))
        since_start = np.exp(gam)[..., None]
        to_end = np.exp(gam[..., -1:] - gam)[..., None]
        system = np.eye(length) + np.tril(be * (Kc @ _T(Kc) * Gamma), -1)
        W = _forward(system, be * since_start * Kc)
        U = _forward(system, be * Vc)
        Vt = U - W @ S
        o[:, :, rows] = (since_start * Qc) @ S + (Qc @ _T(Kc) * Gamma) @ Vt
        S = since_start[..., -1:, :] * S + _T(to_end * Kc) @ Vt
    return Outputs(_tokens_second(o), S)


def _constant_alpha(inputs: Inputs) -> np.ndarray:
    """exp(g), `[B, H]`, of a gate that no token and no channel changes."""
    expected = inputs.g[:, :1, :, :1]
    _require_gate(inputs, expected, "scalar decay has one gate per head: g must not change over tokens or channels")
    return np.exp(expected[:, 0, :, 0])


def _shared_gate(inputs: Inputs) -> np.ndarray:
    """g, `[B, N, H]`, of a gate that all channels share."""
    expected = inputs.g[..., :1]
    _require_gate(inputs, expected, "Gated DeltaNet has one gate per token: g must be the same in every channel")
    return expected[..., 0]


def _require_gate(inputs: Inputs, expected: np.ndarray, law: str) -> None:
    wanted = np.broadcast_to(expected, inputs.g.shape)
    wrong = np.argwhere(inputs.g != wanted)
    if len(wrong):
        at = tuple(int(n) for n in wrong[0])
        raise InputError(f"g is {inputs.g[at]:.6g} at {at_words('g', at)}, expected {wanted[at]:.6g}; {law}")


def _columns(inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v as column vectors `[N, B, H, D, 1]`, and beta `[N, B, H, 1, 1]`."""
    q, k, v = (tokens_first(x)[..., None] for x in (inputs.q, inputs.k, inputs.v))
    return q, k, v, tokens_first(inputs.beta)[..., None, None]


def _forward(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """X of system X = right, with a unit lower triangular `[.., C, C]` system, row after row.

    A general solver exchanges rows where an entry exceeds 1, and its rounding errors then let later tokens in.
    """
    X = right.copy()
    for r in range(1, X.shape[-2]):
        X[..., r, :] -= (system[..., r : r + 1, :r] @ X[..., :r, :])[..., 0, :]
    return X


def _outer(column: np.ndarray, other: np.ndarray) -> np.ndarray:
    return column * _T(other)


def _T(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2)


def _tokens_second(o: np.ndarray) -> np.ndarray:
    """`[B, H, N, DV]` as `[B, N, H, DV]`."""
    return np.ascontiguousarray(np.moveaxis(o, 1, 2))


def _outputs(o: np.ndarray, S: np.ndarray) -> Outputs:
    """Outputs from o `[N, B, H, DV]` and a state in the article's orientation, `[B, H, DV, DK]`."""
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 0, 1)), np.ascontiguousarray(_T(S)))
