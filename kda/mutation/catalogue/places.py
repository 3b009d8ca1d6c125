"""Patterns for the places that several mistakes are about: of `kda_chunk`, of its mirror, of `kda_forward`."""

from kda.mutation.rewrite import Edit
from kda.support import TileChoice

RHS_W = "x[_r] = T.Cast(ACCUM, K_s[_r, _c]) * Ep_s[_r, _c]"
RHS_U = "x[_r] = T.Cast(ACCUM, V_s[_r, _c])"
SOLVED_W = "Kp_s[_r, _c] = on.round(beta_s[_r] * x[_r])"
SOLVED_U = "U_s[_r, _c] = beta_s[_r] * x[_r]"
KP = "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]) * Ep_s[_r, _d])"
KM = "Km_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]) * Em_s[_r, _d])"
QP = "Qp_s[_r, _d] = on.round(T.Cast(ACCUM, Q_s[_r, _d]) * Ep_s[_r, _d])"
KD = "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]) * (Ep_s[C - 1, _d] * Em_s[_r, _d]))"
WRITES_L = "Lt_s[_, _] = _"
WRITES_A = "A_s[_, _] = _"
DECAY_LOOP = "for _d, _j in on.parallel(DK, block_DV):\n    S_f[_d, _j] = _decayed"
WRITE_GEMM = "on.gemm(Kp_s, Vt_s, S_f, transpose_A=True)"
RHS = "X = np.concatenate([Kc * Ep, Vc], axis=-1)"
RHS_LOOPS = "X = np.concatenate([Kc * Ep, Vc], axis=1)"
SOLVED = "X = be[..., None] * X"

FORWARD_RHS_W = "x[_r] = T.Cast(ACCUM, K_s[_r, _c]) * T.exp2(total[0] * LOG2_E)"
FORWARD_SOLVED_W = "Kc_s[_r, _c] = on.round(beta_s[_r] * x[_r])"
FORWARD_QP = "Qp_s[_r, _d] = on.round(T.Cast(ACCUM, Q_s[_r, _d]) * T.exp2(total[0] * LOG2_E))"
FORWARD_WRITE_GEMM = "on.gemm(Kc_s, Vt_s, S_f, transpose_A=True)"
FORWARD_DECAYED = "S_f[_d, _j] * decay_s[_d]"
#: A chunk with a border between two sub-chunks.
BORDERED = TileChoice(DK=16, DV=32, C=32, block_DV=16)
#: L of the diagonal blocks and of those below them.
L_INSIDE, L_ACROSS = "beta_s[_j] * m[_i]", "beta_s[_j] * M_f[_i, _j]"
#: The products across a border.
M_ACROSS = "on.gemm(Kb_s, Kc_s, M_f, transpose_B=True, clear_accum=True)"
A_ACROSS = "on.gemm(Qb_s, Kc_s, A_f, transpose_B=True, clear_accum=True)"
PRODUCT = "product[:, :, sub, earlier] = gemm(factor, carried, product[:, :, sub, earlier])"
#: The loops of the substitution: what earlier sub-chunks hold, and what the rows of one hold of each other.
FROM_EARLIER = "for _j in on.steps(_n * R):\n    _body"
AMONG = "for _j in on.steps(R):\n    for _r in on.steps(R - 1 - _j):\n        _body"
SUBSTITUTED = "x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]"
#: Every pair of a diagonal block, and what its guard leaves out.
GUARDED = "if _b + _i >= _j:\n    _pair"


def substitution(find: str, put: str) -> tuple[Edit, Edit]:
    """The same edit of both loops."""
    return (
        Edit("what earlier sub-chunks hold", find, put, FROM_EARLIER),
        Edit("what the rows of a sub-chunk hold of each other", find, put, AMONG),
    )
