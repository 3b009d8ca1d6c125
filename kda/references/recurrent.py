"""Reference A: the recurrence, token by token (article, section 3.1).

In the article's orientation, S being DV x DK:

    S_t = S_{t-1} Diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,      a_t = exp(g_t)
    o_t = S_t q_t

`ref_A` is the text to read; `ref_A_fast` is the same for all heads at once.
"""

from __future__ import annotations

import numpy as np

from kda.problem import Inputs, Outputs
from kda.references._layout import tokens_first

__all__ = ["ref_A", "ref_A_fast"]


def ref_A(inputs: Inputs) -> Outputs:
    """The recurrence as it is written, one head and one token at a time, in the article's orientation.

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed.
    Article, section 3.1.
    """
    sizes = inputs.check()
    identity = np.eye(sizes.DK)
    state = inputs.state()
    o = np.zeros(sizes.shape("o"))
    for b in range(sizes.B):
        for h in range(sizes.H):
            S = state[b, h].T  # DV x DK, the paper's orientation
            for t in range(sizes.N):
                q, k, v = inputs.q[b, t, h], inputs.k[b, t, h], inputs.v[b, t, h]
                a, beta = np.exp(inputs.g[b, t, h]), inputs.beta[b, t, h]
                # Diag(a) stands between S and the Householder factor: decay first, delete from what is left.
                S = S @ np.diag(a) @ (identity - beta * np.outer(k, k)) + beta * np.outer(v, k)
                o[b, t, h] = S @ q
            state[b, h] = S.T
    return Outputs(o, state)


def ref_A_fast(inputs: Inputs) -> Outputs:
    """`ref_A` for all heads at once, in the transposed layout, with the rank-one update multiplied out.

        S <- Diag(a) S;   r = S^T k;   S <- S + k (beta (v - r))^T;   o = S^T q

    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed.
    Article, section 3.1.
    """
    sizes = inputs.check()
    a = tokens_first(np.exp(inputs.g))[..., :, None]
    k_column = tokens_first(inputs.k)[..., :, None]
    k_row = tokens_first(inputs.k)[..., None, :]
    q_row = tokens_first(inputs.q)[..., None, :]
    v_row = tokens_first(inputs.v)[..., None, :]
    beta = tokens_first(inputs.beta)[..., None, None]
    S = inputs.state()
    o = np.zeros((sizes.N, sizes.B, sizes.H, 1, sizes.DV))
    for t in range(sizes.N):
        S *= a[t]
        r = k_row[t] @ S
        S += k_column[t] * (beta[t] * (v_row[t] - r))
        np.matmul(q_row[t], S, out=o[t])
    return Outputs(np.ascontiguousarray(np.moveaxis(o[..., 0, :], 0, 1)), S)
