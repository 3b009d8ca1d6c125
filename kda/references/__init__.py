"""What the right answer is: the article's references in NumPy, and the simpler systems they must fall back to.

    S_t = S_{t-1} Diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T    ref_A, ref_A_fast             section 3.1
    M, L, T, A_hat, W, U, Vt, A_qk of a chunk                            ref_B, ref_B_fast             section 3.2
    L = beta_i M with diag(beta) T, or L = beta_c M with T diag(beta)    ref_B(pairing=...)            section 3.2
    e^(gam_c - gam_i) = e^gam_c * e^-gam_i; forward substitution         ref_C, ref_C_fast             section 3.3
    the same, rounded where the kernel rounds                            ref_C(precision=...)          section 4
    the same, split over sub-chunks                                      ref_C_sub                     section 2.3
    any gate: pairs in sub-chunks, split across their borders            ref_forward(precision=...)
    the same with an explicit inverse, split at anchors                  ref_hopper(precision=...)
    the recurrence in float32, o alone rounded                           ref_steps(precision=...)
    raw inputs to outputs: norm, activations, packed sequences, heads    kda.references.operation
    every named intermediate of a chunk                                  ref_C(trace=...), ChunkTrace  sections 3.2, 4
    all channels share one gate                                          gated_delta_net               section 3.4
    beta -> 0                                                            per_channel_decay             section 3.4
    g = 0                                                                delta_net                     section 3.4
    g = 0, beta -> 0                                                     linear_attention              section 5
    g constant over tokens and channels, beta -> 0                       scalar_decay                  section 5

Each of the last five has a `_chunkwise` form that also takes the chunk length C. Every function takes `Inputs` and
returns `Outputs`, honours `initial_state`, accepts any N >= 1, and refuses malformed inputs with InputError. The plain
name is the literal form, to be read; `_fast` is the same for all heads at once, and tests hold the two equal.
"""

from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded
from kda.references.chunkwise import Pairing, ref_B, ref_B_fast
from kda.references.family import (
    delta_net,
    delta_net_chunkwise,
    gated_delta_net,
    gated_delta_net_chunkwise,
    linear_attention,
    linear_attention_chunkwise,
    per_channel_decay,
    per_channel_decay_chunkwise,
    scalar_decay,
    scalar_decay_chunkwise,
)
from kda.references.forward import ref_forward
from kda.references.hopper import ref_hopper
from kda.references.mirror import ref_C, ref_C_fast
from kda.references.recurrent import ref_A, ref_A_fast
from kda.references.steps import ref_steps
from kda.references.subchunks import ref_C_sub
from kda.references.trace import STAGES, ChunkTrace, Trace

__all__ = [
    "STAGES",
    "Arithmetic",
    "ChunkTrace",
    "Exp2",
    "Pairing",
    "Trace",
    "delta_net",
    "delta_net_chunkwise",
    "exp2_correctly_rounded",
    "gated_delta_net",
    "gated_delta_net_chunkwise",
    "linear_attention",
    "linear_attention_chunkwise",
    "per_channel_decay",
    "per_channel_decay_chunkwise",
    "ref_A",
    "ref_A_fast",
    "ref_B",
    "ref_B_fast",
    "ref_C",
    "ref_C_fast",
    "ref_C_sub",
    "ref_forward",
    "ref_hopper",
    "ref_steps",
    "scalar_decay",
    "scalar_decay_chunkwise",
]
