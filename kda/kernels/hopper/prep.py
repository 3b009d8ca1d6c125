"""First launch of the Hopper program: everything about a chunk that does not need the state before it.

One program makes one chunk of 64 tokens of one value head, for DK = DV = 128:

    Q_g = q e^gamma                        queries, decayed since the chunk began
    K_g = k e^(g_{j+1} + ... + g_C)        keys, carried to the chunk's end
    A = (I + M diag(beta))^-1              by which the walk multiplies V
    W = A (K e^gamma)
    A_qk, e^gamma_C, beta, and what rounding took off the diagonal of A_qk

A is the T of the article, a name that TileLang has here. Its diagonal is 1, which every format holds, and beta is never
rounded: V~ = diag(beta) (A V - W S). For |k| <= 1 and beta <= 2 what token i reads with is not lengthened on its way
back to token j, so that |A_ij| <= beta_j |k_i| |k_j| <= 2 and |W_i| <= |k_i|: neither leaves float16. The diagonal of
A_qk, each token's q.k, is rounded twice: once, it alone would turn the whole of a first token's output.

Gates. A decay is never an exponential of a sum: each element of g becomes a = e^g once, and every decay is a product of
a's, so that it is at most 1 whatever the gates are, and no later token enters it. A warp owns 8 tokens, a group, and
each of its threads 4 channels of all 8: products inside a group stay in registers, totals of groups meet in shared
memory.

Scores, M and A_qk. In bf16 a row is near while no channel has lost more than a factor of 2^60 since the chunk began.
That beginning is the one anchor of all near rows: K e^gamma and Q e^gamma against K_b = k / e^gamma, one product each.
A bf16 has the exponents of float32, so that neither factor loses anything. Decays only fall: near rows are the first
ones of a chunk, and only gates up to a row decide.
In float16, and for the other rows, M and A_qk are cut into blocks at borders that halve: rows 32.. against keys ..31
across the border at 32, then 16 x 16 across 16 and 48, then 8 x 8 across 8, 24, 40 and 56, each one matrix product of
rows decayed since the border and keys decayed until it. What remains, 8 x 8 on the diagonal, is made pair by pair in
float32; in A_qk that of near rows, too, on whose few numbers the outputs of a first group hang.

Solve. Four 16 x 16 blocks of A by forward substitution, a column per thread, by the first warpgroup, which makes M of
near rows, while the second makes their A_qk; then A_21 = -A_22 L_21 A_11, twice, where
L = M diag(beta): beta is multiplied into a block of M that a merge reads when it is put into shared memory, and in the
substitution into the numbers that are substituted.

The waits between stages are written out: TileLang's own pass would also put them into unrolled loops (see
docs/forward.md). Buffers whose lives do not meet share their bytes, and every wait below separates such lives too.
"""

from typing import Any

import tilelang.language as T

from kda.formats import BF16
from kda.kernels.form import Form
from kda.kernels.prologue import exp, log_gate, rate
from kda.references.hopper import NEAR
from kda.references.prologue import EPSILON

__all__ = ["CHUNK", "D", "prep"]

ACCUM = "float32"
#: Tokens of a chunk, and channels of a key and of a value.
CHUNK = 64
D = 128
#: Tokens of a group: those of one warp.
GROUP = 8
GROUPS = CHUNK // GROUP
THREADS = 32 * GROUPS
WARPGROUP = 128
#: Channels of one thread.
E = D // 32
#: A row of M in shared memory: no two of four blocks that are read side by side meet in a bank.
LD = 68


@T.macro
def _chunk_of(form, slot, slots, Starts, length, lo, hi, mid, begin, rows):  # type: ignore[no-untyped-def]
    # Dense: sequences have equally many slots. Packed: that of sequence s, chunk t is starts[s] // C + s + t, which
    # nobody has to count; a slot that is not taken has rows <= 0.
    if form.packed:
        lo[0] = 0
        hi[0] = Starts.shape[0] - 2
        while lo[0] < hi[0]:
            mid[0] = (lo[0] + hi[0] + 1) // 2
            if Starts[mid[0]] // CHUNK + mid[0] <= slot:
                lo[0] = mid[0]
            else:
                hi[0] = mid[0] - 1
        begin[0] = Starts[lo[0]] + (slot - Starts[lo[0]] // CHUNK - lo[0]) * CHUNK
        rows[0] = Starts[lo[0] + 1] - begin[0]
    else:
        mid[0] = T.truncdiv(length + CHUNK - 1, CHUNK)
        lo[0] = T.truncdiv(slot, mid[0])
        begin[0] = lo[0] * length + (slot - lo[0] * mid[0]) * CHUNK
        rows[0] = (lo[0] + 1) * length - begin[0]


#: What TileLang has no word for. kda_widen: one of a pair of 16-bit values in float32, in one instruction; a cast of a
#: single one takes two. kda_first_of_64: the first of 64 flags that is set, two for each lane of a warp; 64 if none is.
#: kda_reciprocal: 1 / x of a decay, rounded once, as the mirror's is: the machine's own, which may be off by a unit in
#: the last place, and a step of Newton's.
_HELPERS = """
#include <cuda_fp16.h>
__device__ __forceinline__ int kda_first_of_64(bool low, bool high) {
  const unsigned lows = __ballot_sync(0xffffffffu, low), highs = __ballot_sync(0xffffffffu, high);
  return lows ? __ffs(lows) - 1 : highs ? 31 + __ffs(highs) : 64;
}
__device__ __forceinline__ float kda_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}
__device__ __forceinline__ void kda_prefetch(const void *address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
template <typename Operand> __device__ __forceinline__ float kda_widen(const Operand &pair, int odd) {
  const unsigned bits = *reinterpret_cast<const unsigned *>(&pair);
  WIDENED
}
"""
_WIDENED = {
    "bfloat16": "return __uint_as_float(odd ? bits & 0xffff0000u : bits << 16);",
    "float16": "const __half2 two = *(const __half2 *)&bits; return odd ? __high2float(two) : __low2float(two);",
}
#: What passes through the L2 cache once need not stay there, and leaves room for what was fetched ahead.
PASSING = "evict_first"
#: How many programs ahead `prep` has the inputs fetched into the L2 cache. 264 run at once. Measured on an H200 at 64
#: heads of 8192 tokens, when V was read here, too: 480 us without, 439 us for 132, 486 us for 264, where what was
#: fetched is gone when it is read.
AHEAD = 132


def _wide(x: Any, r: Any, e: Any) -> Any:
    return T.call_extern(ACCUM, "kda_widen", x[r, e // 2 * 2], e % 2)


@T.macro
def _column(j, first, queries, keys, a, q, k, e, decayed, of_queries, of_keys):  # type: ignore[no-untyped-def]
    # Channel e of the rows behind token j against key j, into the sums from `first` on.
    decayed[0] = _wide(k, j, e)
    for r in T.unroll(GROUP - 1 - j):
        decayed[0] = decayed[0] * a[j + 1 + r, e]
        if queries:
            of_queries[first + r] = of_queries[first + r] + _wide(q, j + 1 + r, e) * decayed[0]
        if keys:
            of_keys[first + r] = of_keys[first + r] + _wide(k, j + 1 + r, e) * decayed[0]


@T.macro
def _spread(lane, step, count, sums, sent):  # type: ignore[no-untyped-def]
    # One round of a butterfly: each lane keeps half of its sums, and adds the other lane's part of them.
    for n in T.unroll(count // 2):
        sent[0] = T.if_then_else(lane // step % 2 == 1, sums[n], sums[n + count // 2])
        sums[n] = T.if_then_else(lane // step % 2 == 1, sums[n + count // 2], sums[n]) + T.shfl_xor(sent[0], step)


@T.macro
def _couple(  # type: ignore[no-untyped-def]
    j, queries, keys, lane, row, c0, Q_s, K_s, a, q, k, decayed, of_queries, of_keys, own, sent
):
    # Columns j and 7 - j of the diagonal block: 7 products with q and 7 with k; in the eighth place of q token j with
    # itself, and token 7 - j in `own`. q and k come from shared memory each time: kept in registers for all columns
    # they would not fit.
    T.sync_warp()
    for r in T.unroll(GROUP - j):
        if queries:
            for e in T.vectorized(E):
                q[j + r, e] = Q_s[row + j + r, c0 + e]
        if keys:
            for e in T.vectorized(E):
                k[j + r, e] = K_s[row + j + r, c0 + e]
    if not keys:
        for e in T.vectorized(E):
            k[j, e] = K_s[row + j, c0 + e]
        for e in T.vectorized(E):
            k[7 - j, e] = K_s[row + 7 - j, c0 + e]
    for n in T.unroll(GROUP):
        if queries:
            of_queries[n] = 0.0
        if keys:
            of_keys[n] = 0.0
    if queries:
        own[j] = 0.0
    for e in T.unroll(E):
        if queries:
            of_queries[7] = of_queries[7] + _wide(q, j, e) * _wide(k, j, e)
            own[j] = own[j] + _wide(q, 7 - j, e) * _wide(k, 7 - j, e)
        _column(j, 0, queries, keys, a, q, k, e, decayed, of_queries, of_keys)
        _column(7 - j, 7 - j, queries, keys, a, q, k, e, decayed, of_queries, of_keys)
    for wanted, sums in ((queries, of_queries), (keys, of_keys)):
        if wanted:
            _spread(lane, 16, 8, sums, sent)
            _spread(lane, 8, 4, sums, sent)
            _spread(lane, 4, 2, sums, sent)


@T.macro
def _pairs(  # type: ignore[no-untyped-def]
    queries, keys, lane, row, c0, Q_s, K_s, a, q, k, decayed, of_queries, of_keys, with_q, with_k, own, sent
):
    # The diagonal block of A_qk, of M, or of both: lane n ends with sum n // 4 of couple n % 4, see _pair_of; and with
    # q.k of token 7 - n % 4, for which no couple has a place.
    for j in T.unroll(4):
        _couple(j, queries, keys, lane, row, c0, Q_s, K_s, a, q, k, decayed, of_queries, of_keys, own, sent)
        if queries:
            with_q[j] = of_queries[0]
        if keys:
            with_k[j] = of_keys[0]
    for wanted, sums in ((queries, with_q), (queries, own), (keys, with_k)):
        if wanted:
            _spread(lane, 2, 4, sums, sent)
            _spread(lane, 1, 2, sums, sent)
    if queries:
        for step in T.unroll(3):
            own[0] = own[0] + T.shfl_xor(own[0], 16 >> step)


def _pair_of(lane: Any) -> tuple[Any, Any]:
    """Column and row of what a lane has after `_pairs`."""
    j, n = lane % 4, lane // 4
    column = T.if_then_else(T.Or(n == 7, n < 7 - j), j, 7 - j)
    return column, T.if_then_else(n == 7, j, T.if_then_else(n < 7 - j, j + 1 + n, 1 + n))


@T.macro
def _lost(value, operand):  # type: ignore[no-untyped-def]
    # What rounding to the operand format takes off a value, itself rounded.
    return T.Cast(operand, value - T.Cast(ACCUM, T.Cast(operand, value)))


@T.macro
def _store_queries(lane, row, four, own, own_s, kept, operand):  # type: ignore[no-untyped-def]
    # A row of `own_s` has those of its group alone.
    j, i = _pair_of(lane)
    own_s[row + i, j] = T.Cast(operand, four[0])
    if i == j:
        kept[GROUPS, CHUNK + row + j] = _lost(four[0], operand)
    if lane < 4:
        own_s[row + 7 - lane, 7 - lane] = T.Cast(operand, own[0])
        kept[GROUPS, CHUNK + row + 7 - lane] = _lost(own[0], operand)


@T.macro
def _store_keys(lane, row, four, M_s, first):  # type: ignore[no-untyped-def]
    j, i = _pair_of(lane)
    if i > j and row + i >= first:
        M_s[row + i, row + j] = four[0]


@T.macro
def _clear_above(tx, tile, operand):  # type: ignore[no-untyped-def]
    # Zeros above the diagonal blocks of 8 x 8, eight columns at a time.
    for half in T.unroll(2):
        if tx % GROUPS > half * 4 + tx // 64:
            for e in T.vectorized(GROUP):
                tile[half * 32 + tx // GROUPS, tx % GROUPS * GROUP + e] = T.Cast(operand, 0.0)


@T.macro
def _put_own(r, own_s, eight, tile, operand):  # type: ignore[no-untyped-def]
    # Row r of the diagonal block of its group, and zeros behind the diagonal.
    for e in T.vectorized(GROUP):
        eight[e] = own_s[r, e]
    for e in T.unroll(GROUP):
        eight[e] = T.if_then_else(e > r % GROUP, T.Cast(operand, 0.0), eight[e])
    for e in T.vectorized(GROUP):
        tile[r, r // GROUP * GROUP + e] = eight[e]


@T.macro
def _normalise(X_s, row, c0, f, sent, operand):  # type: ignore[no-untyped-def]
    sent[0] = 0.0
    for e in T.unroll(E):
        f[e] = T.Cast(ACCUM, X_s[row, c0 + e])
        sent[0] = sent[0] + f[e] * f[e]
    sent[0] = T.rsqrt(T.warp_reduce_sum(sent[0]) + EPSILON)
    for e in T.vectorized(E):
        X_s[row, c0 + e] = T.Cast(operand, f[e] * sent[0])


@T.macro
def _round(f, tile, row, c0, operand):  # type: ignore[no-untyped-def]
    for e in T.vectorized(E):
        tile[row, c0 + e] = T.Cast(operand, f[e])


@T.macro
def _write(f, factor, tile, row, c0, operand):  # type: ignore[no-untyped-def]
    for e in T.vectorized(E):
        tile[row, c0 + e] = T.Cast(operand, f[e] * factor[e])


@T.macro
def _write_level(X_s, at, below, place, r, kp, km, qp, c0, operand):  # type: ignore[no-untyped-def]
    # One token in the operands of a level: below its border as two rows, q and k, above it as a key.
    if below:
        _write(qp, at, X_s, place + r, c0, operand)
        _write(kp, at, X_s, 32 + place + r, c0, operand)
    else:
        _write(km, at, X_s, 64 + place + r, c0, operand)


@T.macro
def _to_borders(group, c0, total_s, f, at32, at16, at8):  # type: ignore[no-untyped-def]
    # What the other groups decay by since or until the border of each level, as this one lies below or above it.
    for e in T.unroll(E):
        at32[e] = 1.0
        at16[e] = 1.0
        at8[e] = 1.0
    for other in T.unroll(GROUPS):
        for e in T.vectorized(E):
            f[e] = total_s[other, c0 + e]
        if other // 4 == group // 4 and (other - group) * (group // 4 * 2 - 1) < 0:
            for e in T.unroll(E):
                at32[e] = at32[e] * f[e]
        if other // 2 == group // 2 and (other - group) * (group // 2 % 2 * 2 - 1) < 0:
            for e in T.unroll(E):
                at16[e] = at16[e] * f[e]


@T.macro
def _until(a, behind, until):  # type: ignore[no-untyped-def]
    # What each token of a group decays by until its end, and behind it.
    for e in T.unroll(E):
        until[GROUP - 1, e] = behind[e]
    for back in T.unroll(GROUP - 1):
        for e in T.unroll(E):
            until[GROUP - 2 - back, e] = until[GROUP - 1 - back, e] * a[GROUP - 1 - back, e]


@T.macro
def _reload(r, row, c0, Q_s, K_s, q, k):  # type: ignore[no-untyped-def]
    for e in T.vectorized(E):
        q[r, e] = Q_s[row + r, c0 + e]
    for e in T.vectorized(E):
        k[r, e] = K_s[row + r, c0 + e]


@T.macro
def _operands(r, a, pre, q, k, qp, kp, grown, anchored):  # type: ignore[no-untyped-def]
    # Token r, decayed since the chunk began: q, -k; and k carried back to that beginning. `pre` moves on to token r.
    for e in T.unroll(E):
        pre[e] = pre[e] * a[r, e]
        qp[e] = _wide(q, r, e) * pre[e]
        kp[e] = -_wide(k, r, e) * pre[e]
    if anchored:
        for e in T.unroll(E):
            grown[e] = _wide(k, r, e) * T.call_extern(ACCUM, "kda_reciprocal", pre[e])


@T.macro
def _put(tile, at, c0, values, r):  # type: ignore[no-untyped-def]
    for e in T.vectorized(E):
        tile[at, c0 + e] = values[r, e]


@T.macro
def _merge(tx, M_s, Ai_s, T16_s, z):  # type: ignore[no-untyped-def]
    # A_21 = -A_22 (L_21 A_11) of both 32 x 32 blocks: row i of 16, columns c and c + 1.
    block = tx // 128
    i = tx % 128 // 8
    c = tx % 8 * 2
    for e in T.unroll(2):
        z[e] = 0.0
    for n in T.unroll(16):
        for e in T.unroll(2):
            z[e] = z[e] + M_s[block * 32 + 16 + i, block * 32 + n] * Ai_s[block * 32 + n, c + e]
    T.sync_threads()
    for e in T.vectorized(2):
        T16_s[block * 16 + i, c + e] = z[e]
    T.sync_threads()
    for e in T.unroll(2):
        z[e] = 0.0
    for n in T.unroll(16):
        for e in T.unroll(2):
            z[e] = z[e] - Ai_s[block * 32 + 16 + i, 16 + n] * T16_s[block * 16 + n, c + e]
    for e in T.vectorized(2):
        Ai_s[block * 32 + 16 + i, c + e] = z[e]
    T.sync_threads()


@T.macro
def _product(tx, left, right, first, out, f, sign, rows_from):  # type: ignore[no-untyped-def]
    # out = sign left[first:] right[:32], 32 x 32 in float32, from row rows_from on: row tx // 8, four columns.
    for e in T.unroll(E):
        f[e] = 0.0
    for n in T.unroll(32):
        for e in T.unroll(E):
            f[e] = f[e] + left[first + tx // 8, n] * right[n, tx % 8 * E + e]
    T.sync_threads()
    if tx // 8 >= rows_from:
        for e in T.unroll(E):
            f[e] = sign * f[e]
        for e in T.vectorized(E):
            out[tx // 8, tx % 8 * E + e] = f[e]


def prep(form: Form, ahead: int = AHEAD) -> Any:
    """The TileLang program of one form.

    ahead: see `AHEAD`; 0 for none.
    Inputs as in `Call`, but for v; X = HV times the slots of all sequences, slot after slot of head 0, then of head 1.
    W (its negative), Q_g, K_g: [X, C, D]; A: [X, 2, C, C], rounded, and, where a beta of the chunk is above 1, what
    rounding took off; A_qk: [X, C, C]; lost: [X, C], what rounding took off its diagonal: all in the operand format.
    decay: [X, D + C] float32, e^gamma_C and behind it beta, 0 past the end of a sequence.
    """
    op = form.operand.name
    tokens, H, HV, S1, HA, HB, X = T.dynamic("tokens, H, HV, S1, HA, HB, X")
    tf32 = anchored = form.operand is BF16

    @T.prim_func
    def kda_prep(
        Q: T.Tensor([tokens, H, D], op),
        K: T.Tensor([tokens, H, D], op),
        G: T.Tensor([tokens, HV, D], form.g_format.name),
        Beta: T.Tensor([tokens, HV], form.beta_format.name),
        A_log: T.Tensor([HA], ACCUM),
        dt_bias: T.Tensor([HB, D], ACCUM),
        Starts: T.Tensor([S1], "int32"),
        W: T.Tensor([X, CHUNK, D], op),
        A: T.Tensor([X, 2, CHUNK, CHUNK], op),
        Q_g: T.Tensor([X, CHUNK, D], op),
        K_g: T.Tensor([X, CHUNK, D], op),
        A_qk: T.Tensor([X, CHUNK, CHUNK], op),
        lost: T.Tensor([X, CHUNK], op),
        decay: T.Tensor([X, D + CHUNK], ACCUM),
        slots: T.int32,
        length: T.int32,
        sharing: T.int32,
        lower_bound: T.float32,
    ):
        with T.Kernel(slots, HV, threads=THREADS, prelude=_HELPERS.replace("WIDENED", _WIDENED[op])) as (slot, h):
            T.annotate_min_blocks_per_sm(2)
            tx = T.get_thread_binding(0)
            lane = tx % 32
            # A group writes as many rows of queries as its number has bits, and warps w and w + 4 share a scheduler.
            group = T.alloc_var("int32")
            group = T.get_warp_idx_sync()
            if group >= GROUPS // 2:
                group = GROUPS + 3 - group
            c0 = lane * E
            row = group * GROUP
            x = h * slots + slot

            lo = T.alloc_local([1], "int32")
            hi = T.alloc_local([1], "int32")
            mid = T.alloc_local([1], "int32")
            begin = T.alloc_local([1], "int32")
            rows = T.alloc_local([1], "int32")
            hq = T.alloc_local([1], "int32")

            q = T.alloc_local([GROUP, E], op)
            k = T.alloc_local([GROUP, E], op)
            a = T.alloc_local([GROUP, E], ACCUM)
            ke = T.alloc_local([GROUP, E], op)
            kb = T.alloc_local([GROUP, E], op)
            until = T.alloc_local([GROUP, E], ACCUM)
            raw = T.alloc_local([GROUP, E], form.g_format.name)
            bias = T.alloc_local([E], ACCUM)
            slope = T.alloc_local([1], ACCUM)
            of_queries = T.alloc_local([GROUP], ACCUM)
            of_keys = T.alloc_local([GROUP], ACCUM)
            with_q = T.alloc_local([4], ACCUM)
            with_k = T.alloc_local([4], ACCUM)
            own = T.alloc_local([4], ACCUM)
            sent = T.alloc_local([1], ACCUM)
            decayed = T.alloc_local([1], ACCUM)
            deep = T.alloc_local([1], "int32")  # the first row that is not near
            steep = T.alloc_local([1], "int32")  # the first row behind a beta above 1
            since = T.alloc_local([E], ACCUM)
            pre = T.alloc_local([E], ACCUM)
            post = T.alloc_local([E], ACCUM)
            whole = T.alloc_local([E], ACCUM)
            least = T.alloc_local([1], ACCUM)
            at32 = T.alloc_local([E], ACCUM)
            at16 = T.alloc_local([E], ACCUM)
            at8 = T.alloc_local([E], ACCUM)
            qp = T.alloc_local([E], ACCUM)
            kp = T.alloc_local([E], ACCUM)
            km = T.alloc_local([E], ACCUM)
            grown = T.alloc_local([E], ACCUM)
            f = T.alloc_local([E], ACCUM)
            y = T.alloc_local([16], ACCUM)
            by = T.alloc_local([1], ACCUM)
            z = T.alloc_local([2], ACCUM)
            eight = T.alloc_local([GROUP], op)

            total_s = T.alloc_shared([GROUPS + 1, D], ACCUM)  # of each group; in the last row, beta, and what A_qk lost
            X32 = T.alloc_shared([96, D], op)
            X16 = T.alloc_shared([96, D], op)
            X8 = T.alloc_shared([96, D], op)
            Qg_s = T.alloc_shared([CHUNK, D], op)
            Kg_s = T.alloc_shared([CHUNK, D], op)
            Ke_s = T.alloc_shared([CHUNK, D], op)
            Kb_s = T.alloc_shared([CHUNK, D], op)
            near_s = T.alloc_shared([CHUNK], ACCUM)  # by row, 1 where it is near
            M_s = T.alloc_shared([CHUNK, LD], ACCUM)
            M32_s = T.alloc_shared([32, 32], ACCUM)
            own_s = T.alloc_shared([CHUNK, GROUP], op)  # the diagonal blocks of A_qk
            Ai_s = T.alloc_shared([CHUNK, 32], ACCUM)
            T16_s = T.alloc_shared([32, 18], ACCUM)
            T32_s = T.alloc_shared([32, 32], ACCUM)
            A21_s = T.alloc_shared([32, 32], ACCUM)
            A_s = T.alloc_shared([CHUNK, CHUNK], op)
            Aqk_s = T.alloc_shared([CHUNK, CHUNK], op)
            W_s = T.alloc_shared([CHUNK, D], op)
            qk_here = T.alloc_barrier([1])

            f32 = T.alloc_fragment([CHUNK, 32], ACCUM)
            f16 = T.alloc_fragment([CHUNK, 32], ACCUM)
            f8 = T.alloc_fragment([CHUNK, 32], ACCUM)
            fQ = T.alloc_fragment([CHUNK, CHUNK], ACCUM)
            fK = T.alloc_fragment([CHUNK, CHUNK], ACCUM)
            beta_f = T.alloc_fragment([CHUNK], ACCUM)
            fT = T.alloc_fragment([32, 32], ACCUM)
            fA = T.alloc_fragment([32, 32], ACCUM)
            fW = T.alloc_fragment([CHUNK, D], ACCUM)

            pairs_of = (lane, row, c0, Qg_s, Kg_s, a, q, k, decayed, of_queries, of_keys, with_q, with_k, own, sent)

            hq[0] = T.truncdiv(h, sharing)
            _chunk_of(form, slot, slots, Starts, length, lo, hi, mid, begin, rows)
            if form.packed:  # noqa: SIM102 - asked when the program is made; the next when it runs
                if rows[0] <= 0:  # the slot is nobody's
                    T.thread_return()
            # ---- Load, the gates first, which are waited for first. A last chunk has rows that are not its own: they
            # become q = k = 0 and a = 1.
            if rows[0] >= CHUNK:
                for r in T.unroll(GROUP):
                    for e in T.vectorized(E):
                        raw[r, e] = G[begin[0] + row + r, h, c0 + e]
            else:
                for r in T.unroll(GROUP):
                    for e in T.vectorized(E):
                        raw[r, e] = T.Cast(form.g_format.name, 0.0)
                    if row + r < rows[0]:
                        for e in T.vectorized(E):
                            raw[r, e] = G[begin[0] + row + r, h, c0 + e]
            if tx < 32:
                T.tma_copy(
                    Q[begin[0] : begin[0] + CHUNK, hq[0], :],
                    Qg_s,
                    barrier=qk_here[0],
                    leader_scope_threads=32,
                    eviction_policy=PASSING,
                )
                T.tma_copy(
                    K[begin[0] : begin[0] + CHUNK, hq[0], :],
                    Kg_s,
                    barrier=qk_here[0],
                    leader_scope_threads=32,
                    eviction_policy=PASSING,
                )
            if tx == 0:
                T.barrier_arrive(qk_here[0])
            if form.gate != "log":
                slope[0] = 1.0
                if HA > 0:
                    slope[0] = exp(A_log[h])
                for e in T.unroll(E):
                    bias[e] = 0.0
                if HB > 0:
                    for e in T.vectorized(E):
                        bias[e] = dt_bias[h, c0 + e]
            if tx < CHUNK:
                total_s[GROUPS, tx] = 0.0
                if tx < rows[0]:
                    total_s[GROUPS, tx] = rate(form.beta, T.Cast(ACCUM, Beta[begin[0] + tx, h]))

            # What the program that comes `ahead` later will load, on its way from memory to the cache.
            if ahead:
                lo[0] = begin[0] + ahead * CHUNK
                hi[0] = h + T.truncdiv(lo[0], tokens)
                lo[0] = lo[0] - T.truncdiv(lo[0], tokens) * tokens + tx // 4
                mid[0] = T.truncdiv(hi[0], sharing)
                if hi[0] < HV and lo[0] < tokens:
                    T.call_extern("handle", "kda_prefetch", T.address_of(G[lo[0], hi[0], tx % 4 * 32]))
                    if tx % 4 < 2:
                        T.call_extern("handle", "kda_prefetch", T.address_of(Q[lo[0], mid[0], tx % 2 * 64]))
                    else:
                        T.call_extern("handle", "kda_prefetch", T.address_of(K[lo[0], mid[0], tx % 2 * 64]))

            # ---- Gates: a = e^g, once per element; what a whole group decays by goes to the others.
            for e in T.unroll(E):
                since[e] = 1.0
            for r in T.unroll(GROUP):
                for e in T.unroll(E):
                    if form.gate == "log":
                        a[r, e] = exp(T.Cast(ACCUM, raw[r, e]))
                    else:
                        a[r, e] = exp(log_gate(form.gate, T.Cast(ACCUM, raw[r, e]) + bias[e], slope[0], lower_bound))
                        a[r, e] = T.if_then_else(row + r < rows[0], a[r, e], 1.0)
                    since[e] = since[e] * a[r, e]
            for e in T.vectorized(E):
                total_s[group, c0 + e] = since[e]

            T.barrier_wait(qk_here[0], 0)
            for r in T.unroll(GROUP):
                if row + r >= rows[0]:
                    for e in T.vectorized(E):
                        Qg_s[row + r, c0 + e] = T.Cast(op, 0.0)
                    for e in T.vectorized(E):
                        Kg_s[row + r, c0 + e] = T.Cast(op, 0.0)
            if form.normalise:
                for r in T.unroll(GROUP):
                    _normalise(Qg_s, row + r, c0, f, sent, op)
                    _normalise(Kg_s, row + r, c0, f, sent, op)

            # ---- Scores inside groups: in float16, which has no near rows, of queries and keys; in bf16 of queries,
            # behind the barrier.
            if not anchored:
                _pairs(True, True, *pairs_of)
            T.sync_threads()
            if anchored:
                _pairs(True, False, *pairs_of)

            # ---- What the other groups make of a product inside this one: since the chunk began, and until its end.
            for e in T.unroll(E):
                whole[e] = 1.0
                pre[e] = 1.0
                post[e] = 1.0
            for other in T.unroll(GROUPS):
                for e in T.vectorized(E):
                    f[e] = total_s[other, c0 + e]
                if other == group:
                    for e in T.unroll(E):
                        pre[e] = whole[e]
                if other > group:
                    for e in T.unroll(E):
                        post[e] = post[e] * f[e]
                for e in T.unroll(E):
                    whole[e] = whole[e] * f[e]
            if group == GROUPS - 1:
                for e in T.vectorized(E):
                    decay[x, c0 + e] = whole[e]
            if group == 0:  # whose warp has the least to write below
                for e in T.vectorized(2):
                    decay[x, D + lane * 2 + e] = total_s[GROUPS, lane * 2 + e]

            # ---- Which rows are near: all, if the last one is; else each warp looks at its own.
            deep[0] = 0
            if anchored:
                deep[0] = CHUNK
                least[0] = T.min(T.min(whole[0], whole[1]), T.min(whole[2], whole[3]))
                # Twice the bound, for a product of totals may be rounded up where one token by token is not.
                if T.all_sync(least[0] >= 2 * NEAR) == 0:
                    for e in T.unroll(E):
                        since[e] = pre[e]
                    for r in T.unroll(GROUP):
                        for e in T.unroll(E):
                            since[e] = since[e] * a[r, e]
                        least[0] = T.min(T.min(since[0], since[1]), T.min(since[2], since[3]))
                        near_s[row + r] = T.Cast(ACCUM, T.all_sync(least[0] >= NEAR))
                    T.sync_threads()
                    deep[0] = T.call_extern("int32", "kda_first_of_64", near_s[lane] == 0.0, near_s[32 + lane] == 0.0)

            # ---- Scores of rows that are not near, across the borders; and everybody's operands.
            if deep[0] < CHUNK:
                if anchored:  # noqa: SIM102 - asked when the program is made
                    if deep[0] < row + GROUP:
                        _pairs(False, True, *pairs_of)
                _to_borders(group, c0, total_s, f, at32, at16, at8)
                _until(a, at8, until)
                for e in T.unroll(E):
                    # 1, but nobody told the compiler: the products below are those of the gates above, all of which it
                    # would keep for here.
                    since[e] = T.if_then_else(length >= 0, 1.0, 0.0)
                for r in T.unroll(GROUP):
                    _reload(r, row, c0, Qg_s, Kg_s, q, k)
                    _operands(r, a, pre, q, k, qp, kp, grown, anchored)
                    _round(qp, Qg_s, row + r, c0, op)
                    _round(kp, ke, r, 0, op)
                    if anchored:
                        _round(grown, kb, r, 0, op)
                    for e in T.unroll(E):
                        since[e] = since[e] * a[r, e]
                        qp[e] = _wide(q, r, e) * since[e]
                        kp[e] = _wide(k, r, e) * since[e]
                        km[e] = _wide(k, r, e) * until[r, e]
                    _write_level(X32, at32, group // 4 == 1, group % 4 * GROUP, r, kp, km, qp, c0, op)
                    _write_level(
                        X16, at16, group // 2 % 2 == 1, group // 4 * 16 + group % 2 * GROUP, r, kp, km, qp, c0, op
                    )
                    _write_level(X8, at8, group % 2 == 1, group // 2 * GROUP, r, kp, km, qp, c0, op)
                    _write(km, post, Kg_s, row + r, c0, op)
                T.fence_proxy_async()
                T.sync_threads()
                T.wgmma_gemm(X32[0:64, :], X32[64:96, :], f32, transpose_B=True, clear_accum=True)
                T.wgmma_gemm(X16[0:64, :], X16[64:96, :], f16, transpose_B=True, clear_accum=True)
                T.wgmma_gemm(X8[0:64, :], X8[64:96, :], f8, transpose_B=True, clear_accum=True)
                T.wait_wgmma(0)
                T.sync_threads()  # the operands have been read: their bytes are other tiles' from here on
                for r in T.unroll(GROUP):
                    _put(Ke_s, row + r, c0, ke, r)
                    if anchored:
                        _put(Kb_s, row + r, c0, kb, r)
                _store_keys(lane, row, with_k, M_s, deep[0])
                for i, j in T.Parallel(CHUNK, 32):
                    if i < 32 and 32 + i >= deep[0]:
                        Aqk_s[32 + i, j] = T.Cast(op, f32[i, j])
                for i, j in T.Parallel(CHUNK, 32):
                    if i >= 32 and i >= deep[0]:
                        M32_s[i - 32, j] = f32[i, j] * total_s[GROUPS, j]
                for i, j in T.Parallel(CHUNK, 32):
                    if i // 16 == j // 16 and 16 + i // 16 * 32 + i % 16 >= deep[0]:
                        Aqk_s[16 + i // 16 * 32 + i % 16, j // 16 * 32 + j % 16] = T.Cast(op, f16[i, j])
                for i, j in T.Parallel(CHUNK, 32):
                    if i // 16 == j // 16 + 2 and 16 + (i - 32) // 16 * 32 + i % 16 >= deep[0]:
                        M_s[16 + (i - 32) // 16 * 32 + i % 16, j // 16 * 32 + j % 16] = (
                            f16[i, j] * total_s[GROUPS, j // 16 * 32 + j % 16]
                        )
                for i, j in T.Parallel(CHUNK, 32):
                    if i // 8 == j // 8 and 8 + i // 8 * 16 + i % 8 >= deep[0]:
                        Aqk_s[8 + i // 8 * 16 + i % 8, j // 8 * 16 + j % 8] = T.Cast(op, f8[i, j])
                for i, j in T.Parallel(CHUNK, 32):
                    if i // 8 == j // 8 + 4 and 8 + (i - 32) // 8 * 16 + i % 8 >= deep[0]:
                        M_s[8 + (i - 32) // 8 * 16 + i % 8, j // 8 * 16 + j % 8] = f8[i, j]
            if anchored:  # noqa: SIM102 - asked when the program is made
                if deep[0] >= CHUNK:
                    _until(a, post, until)
                    for r in T.unroll(GROUP):
                        _reload(r, row, c0, Qg_s, Kg_s, q, k)
                        for e in T.unroll(E):
                            km[e] = _wide(k, r, e) * until[r, e]
                        _round(km, Kg_s, row + r, c0, op)
                        _operands(r, a, pre, q, k, qp, kp, grown, anchored)
                        _round(qp, Qg_s, row + r, c0, op)
                        _round(kp, Ke_s, row + r, c0, op)
                        _round(grown, Kb_s, row + r, c0, op)

            _store_queries(lane, row, with_q, own, own_s, total_s, op)
            if deep[0] < CHUNK:
                _clear_above(tx, Aqk_s, op)
            T.fence_proxy_async()
            T.sync_threads()
            steep[0] = T.call_extern(
                "int32", "kda_first_of_64", total_s[GROUPS, lane] > 1.0, total_s[GROUPS, 32 + lane] > 1.0
            )

            # ---- The first warpgroup: M of near rows, then the 16 x 16 blocks of A, one column a thread.
            with T.ws(0):
                if anchored:  # noqa: SIM102 - asked when the program is made
                    if deep[0] > 0:
                        T.wgmma_gemm(Ke_s, Kb_s, fK, transpose_B=True, clear_accum=True)
                        T.copy(total_s[GROUPS, 0:CHUNK], beta_f)
                        T.wait_wgmma(0)
                        for i, j in T.Parallel(CHUNK, CHUNK):
                            if i < deep[0] and i // 16 == j // 16:
                                M_s[i, j] = -fK[i, j]
                        for i, j in T.Parallel(CHUNK, CHUNK):
                            if i < deep[0] and i // 32 == j // 32 and i // 16 > j // 16:
                                M_s[i, j] = -fK[i, j] * beta_f[j]
                        for i, j in T.Parallel(CHUNK, CHUNK):
                            if i < deep[0] and i // 32 > j // 32:
                                M32_s[i - 32, j] = -fK[i, j] * beta_f[j]
                        T.sync_threads(5, WARPGROUP)
                if tx < CHUNK:
                    for r in T.unroll(16):
                        y[r] = T.if_then_else(r == tx % 16, 1.0, 0.0)
                    for j in T.unroll(16):
                        by[0] = y[j] * total_s[GROUPS, tx // 16 * 16 + j]
                        for r in T.unroll(15 - j):
                            y[j + 1 + r] = y[j + 1 + r] - M_s[tx // 16 * 16 + j + 1 + r, tx // 16 * 16 + j] * by[0]
                    for r in T.unroll(16):
                        Ai_s[tx // 16 * 16 + r, tx % 32] = y[r]
                else:
                    for r in T.unroll(16):  # above the diagonal of the 32 x 32 blocks
                        Ai_s[tx % 64 // 32 * 32 + r, 16 + tx % 16] = 0.0

            # ---- The second: A_qk of near rows below the diagonal blocks, all at once where all rows are near; and of
            # all rows in them.
            with T.ws(1):
                if anchored:  # noqa: SIM102 - asked when the program is made
                    if deep[0] > 0:
                        T.wgmma_gemm(Qg_s, Kb_s, fQ, transpose_B=True, clear_accum=True)
                        T.wait_wgmma(0)
                        if deep[0] < CHUNK:
                            for i, j in T.Parallel(CHUNK, CHUNK):
                                if i < deep[0] and i // 8 > j // 8:
                                    Aqk_s[i, j] = T.Cast(op, fQ[i, j])
                        else:
                            for i, j in T.Parallel(CHUNK, CHUNK):
                                fQ[i, j] = T.if_then_else(i // 8 > j // 8, fQ[i, j], 0.0)
                            T.copy(fQ, Aqk_s)
                T.sync_threads(6, WARPGROUP)
                if tx < WARPGROUP + CHUNK:
                    _put_own(tx - WARPGROUP, own_s, eight, Aqk_s, op)
                if tx >= THREADS - 32:
                    for e in T.vectorized(2):
                        lost[x, lane * 2 + e] = T.Cast(op, total_s[GROUPS, CHUNK + lane * 2 + e])
            T.sync_threads()
            _merge(tx, M_s, Ai_s, T16_s, z)  # 16 -> 32
            # 32 -> 64: on the tensor cores where A will be rounded to bf16 (8 bits, of tf32's 11); in float32 for
            # float16, and for the rows behind a beta above 1 (see below).
            if tf32:
                T.gemm(M32_s, Ai_s[0:32, :], fT, clear_accum=True)
                T.sync_threads()
                T.copy(fT, T32_s)
                T.sync_threads()
                T.gemm(Ai_s[32:64, :], T32_s, fA, clear_accum=True)
                for i, j in T.Parallel(32, 32):
                    A21_s[i, j] = -fA[i, j]
                if steep[0] < CHUNK:
                    T.sync_threads()
                    _product(tx, M32_s, Ai_s, 0, T32_s, f, 1.0, 0)
                    T.sync_threads()
                    _product(tx, Ai_s, T32_s, 32, A21_s, f, -1.0, steep[0] - 32)
            else:
                _product(tx, M32_s, Ai_s, 0, T32_s, f, 1.0, 0)
                T.sync_threads()
                _product(tx, Ai_s, T32_s, 32, A21_s, f, -1.0, 0)
            T.sync_threads()
            for i, j in T.Parallel(32, 32):
                A_s[32 + i, j] = T.Cast(op, A21_s[i, j])
            for i, j in T.Parallel(32, 32):
                A_s[i, j] = T.Cast(op, Ai_s[i, j])
            for i, j in T.Parallel(32, 32):
                A_s[32 + i, 32 + j] = T.Cast(op, Ai_s[32 + i, j])
            for i, j in T.Parallel(32, 32):
                A_s[i, 32 + j] = T.Cast(op, 0.0)

            # ---- -W = A (-K e^gamma).
            T.fence_proxy_async()
            T.sync_threads()
            T.wgmma_gemm(A_s, Ke_s, fW, clear_accum=True)
            T.wait_wgmma(0)
            if steep[0] < CHUNK:
                # Behind a beta above 1 the entries of A need not fade along a row, and what rounding them costs adds
                # up: there A is the sum of two rounded matrices. Row by row: no row may know of later tokens.
                if tx < 32:
                    T.tma_copy(A_s, A[x, 0, :, :], leader_scope_threads=32, eviction_policy=PASSING)
                    T.tma_store_wait(0, True)
                T.sync_threads()
                for i, j in T.Parallel(32, 32):
                    A_s[32 + i, j] = T.if_then_else(32 + i >= steep[0], _lost(A21_s[i, j], op), T.Cast(op, 0.0))
                for i, j in T.Parallel(32, 32):
                    A_s[i, j] = T.if_then_else(i >= steep[0], _lost(Ai_s[i, j], op), T.Cast(op, 0.0))
                for i, j in T.Parallel(32, 32):
                    A_s[32 + i, 32 + j] = T.if_then_else(
                        32 + i >= steep[0], _lost(Ai_s[32 + i, j], op), T.Cast(op, 0.0)
                    )
                T.fence_proxy_async()
                T.sync_threads()
                T.wgmma_gemm(A_s, Ke_s, fW, clear_accum=False)
                T.wait_wgmma(0)
            T.sync_threads()
            T.copy(fW, W_s)
            T.fence_proxy_async()
            T.sync_threads()

            # ---- Store. Of a steep chunk the first half of A is there already.
            if tx < 32:
                T.tma_copy(Qg_s, Q_g[x, :, :], leader_scope_threads=32, eviction_policy=PASSING)
                T.tma_copy(Kg_s, K_g[x, :, :], leader_scope_threads=32, eviction_policy=PASSING)
                T.tma_copy(W_s, W[x, :, :], leader_scope_threads=32, eviction_policy=PASSING)
                T.tma_copy(Aqk_s, A_qk[x, :, :], leader_scope_threads=32, eviction_policy=PASSING)
                T.tma_copy(
                    A_s,
                    A[x, T.if_then_else(steep[0] < CHUNK, 1, 0), :, :],
                    leader_scope_threads=32,
                    eviction_policy=PASSING,
                )
                T.tma_store_wait(0, True)

    return kda_prep
