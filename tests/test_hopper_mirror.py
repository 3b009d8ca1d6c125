"""The Hopper program's arithmetic: exact in float64, every rounding, causal to the bit; its budget, what leaves it."""

import functools
import inspect
import types
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from kda.case import Case
from kda.formats import BF16, F16, F32, F64
from kda.implementations import implementation
from kda.kinds import LN2
from kda.numerics.budget import accumulated, judge, operand_units
from kda.numerics.compare import all_finite, compare
from kda.problem import Inputs, Outputs
from kda.references import STAGES, hopper, ref_forward, ref_hopper
from kda.support import Support, TileChoice
from strategies import wild_cases

NARROW = pytest.mark.parametrize("dtype", [F16, BF16], ids=str)

#: Shallow, deep, closed for good inside a group and at an anchor, for channels in turn, and half of a chunk deep: 64
#: near rows in their first chunk, 0, 3, 32, 1 and 34.
GATES = (
    "uniform:0.9:0.999",
    "log:-1000.0",
    "spike:3:-1000.0",
    "spike:32:-1000.0",
    "alternating:-30.0",
    "constant:0.3",
)
GATED = pytest.mark.parametrize("gate", GATES, ids=[gate.replace(":", "-") for gate in GATES])

BUSY = Case.parse("v1,N=85,DK=32,DV=16,C=64,beta=uniform:0.0:2.0,q=gauss,k=gauss,v=gauss,state=gauss,seed=7")


def ratio(got: Outputs, inputs: Inputs, dtype=None, inverse=True) -> float:
    """Error over budget of the worst row."""
    units = operand_units(inputs, 64, dtype or inputs.dtype, inverse)
    judged = judge(inputs, 64, units, 8, pairs=True, inverse=inverse)
    return max(verdict.ratio for verdict in compare(got, judged.outputs, judged.budget))


# The mirror


@given(wild_cases(Support(dtypes=(F64,), tiles=(TileChoice(16, 32, 64), TileChoice(32, 16, 64)), max_beta=2.0)))
@settings(max_examples=60)
def test_in_float64_it_is_the_recurrence(wild):
    """For any gate down to -1000 per token: reference A within what float64 loses."""
    inputs = wild.inputs()
    got = ref_hopper(inputs)
    assert all_finite(got)
    assert ratio(got, inputs, F64) <= 1, str(wild)


def one_number_at_a_time(inputs: Inputs, precision, scale: float) -> Outputs:
    """The program's arithmetic on NumPy scalars, one head of one batch: every rounding and the order of every sum."""
    f32, sizes = np.float32, inputs.sizes
    o, state = np.zeros(sizes.shape("o")), inputs.state()
    D, E = range(sizes.DK), range(sizes.DV)

    def op(x):
        return f32(precision.round(np.float64(x)))

    def tf32(x):
        if precision is not BF16:
            return x
        mantissa, exponent = np.frexp(np.float64(x))
        return f32(np.ldexp(np.trunc(mantissa * 2**11), int(exponent) - 11))

    def times(*factors):
        product = f32(1)
        for factor in factors:
            product = f32(product * factor)
        return product

    def dot(x, y, total=0):
        total = f32(total)
        for left, right in zip(x, y, strict=True):
            total = f32(total + f32(left * right))
        return total

    def matmul(x, y, read=f32, total=None):
        left, right = ([[read(number) for number in row] for row in matrix] for matrix in (x, y))
        total = total or np.zeros((len(x), len(y[0])))
        columns = [*enumerate(zip(*right, strict=True))]
        return [[dot(row, column, total[i][j]) for j, column in columns] for i, row in enumerate(left)]

    S = [[f32(x) for x in row] for row in state[0, 0]]
    for start in range(0, sizes.N, 64):
        size = min(64, sizes.N - start)
        rows = slice(start, start + size)

        def tokens(x, width, fill=0, size=size, rows=rows):
            return np.concatenate([x[0, rows, 0], np.full((64 - size, *width), fill)]).astype(f32)

        q, k, v = tokens(inputs.q, [sizes.DK]), tokens(inputs.k, [sizes.DK]), tokens(inputs.v, [sizes.DV])
        g, beta = tokens(inputs.g, [sizes.DK]), tokens(inputs.beta, [])
        a = [[f32(np.exp2(np.float64(f32(x * f32(1.4426950408889634))))) for x in row] for row in g]

        def run(first, last, d, a=a):
            return times(*(a[t][d] for t in range(first, last)))

        def backwards(first, last, d, a=a):
            return times(*(a[t][d] for t in range(first, last)[::-1]))

        def groups(first, last, d, run=run):
            return times(*(run(8 * G, 8 * G + 8, d) for G in range(first, last)))

        def decay(i, d, a=a, groups=groups):  # since the chunk began: groups, then tokens
            return times(groups(0, i // 8, d), *(a[t][d] for t in range(i - i % 8, i + 1)))

        of = {"q": q, "k": k}

        @functools.cache
        def row(x, i, first, d, of=of, run=run, groups=groups, decay=decay):  # q_i or k_i, decayed since group `first`
            if first == 0:  # one decay for q, k and the key that grows back
                return op(f32(of[x][i][d] * decay(i, d)))
            return op(f32(f32(of[x][i][d] * run(i - i % 8, i + 1, d)) * groups(first, i // 8, d)))

        @functools.cache
        def key(j, last, d, k=k, backwards=backwards, groups=groups):  # k_j, decayed until group `last` begins
            return op(f32(f32(k[j][d] * backwards(j + 1, j - j % 8 + 8, d)) * groups(j // 8 + 1, last, d)))

        @functools.cache
        def near(i, decay=decay):
            return precision in (BF16, F32) and all(decay(i, d) >= 2.0**-60 for d in D)

        @functools.cache
        def grown_back(j, d, k=k, decay=decay):  # k_j as it would have been when the chunk began
            return op(f32(k[j][d] * f32(f32(1) / decay(j, d))))

        def product(x, i, j, a=a, k=k, of=of, row=row, key=key, near=near, grown_back=grown_back):
            if near(i) and (x == "k" or i // 8 != j // 8):
                return dot([row(x, i, 0, d) for d in D], [grown_back(j, d) for d in D])
            if i // 8 == j // 8:
                grown = [k[j][d] for d in D]
                for t in range(j + 1, i + 1):
                    grown = [f32(grown[d] * a[t][d]) for d in D]
                return dot([of[x][i][d] for d in D], grown)
            block = next(width for width in (16, 32, 64) if i // width == j // width)
            anchor = (i // block * block + block // 2) // 8
            return dot([row(x, i, anchor, d) for d in D], [key(j, anchor, d) for d in D])

        M = [[product("k", i, j) if j < i else f32(0) for j in range(64)] for i in range(64)]
        A_c = [[op(product("q", i, j)) if j <= i else f32(0) for j in range(64)] for i in range(64)]
        lost = [op(f32(product("q", i, i) - A_c[i][i])) for i in range(64)]

        steep = [bool((beta[: i + 1] > 1).any()) for i in range(64)]
        T = np.zeros((64, 64), f32)
        for column in range(64):
            x = [f32(t == column) for t in range(column - column % 16, column - column % 16 + 16)]
            first = column - column % 16
            for j in range(16):
                scaled = f32(beta[first + j] * x[j])
                for r in range(j + 1, 16):
                    x[r] = f32(x[r] - f32(M[first + r][first + j] * scaled))
            T[first : first + 16, column] = x
        for half, read in ((16, f32), (32, tf32)):
            for first in range(0, 64, 2 * half):
                second = first + half
                L21 = [[f32(M[r][j] * beta[j]) for j in range(first, second)] for r in range(second, second + half)]
                T11 = T[first:second, first:second].tolist()
                inner = matmul(L21, T11, read)
                T22 = T[second : second + half, second : second + half].tolist()
                merged, exact = matmul(T22, inner, read), matmul(T22, matmul(L21, T11))
                for r in range(half):
                    T[second + r, first:second] = -np.array((exact if steep[second + r] else merged)[r], f32)

        T1 = [[op(x) for x in each] for each in T]
        T2 = [[op(f32(x - y)) if steep[i] else f32(0) for x, y in zip(T[i], T1[i], strict=True)] for i in range(64)]
        KE = [[row("k", i, 0, d) for d in D] for i in range(64)]
        W = [[op(x) for x in each] for each in matmul(T2, KE, total=matmul(T1, KE))]
        S_s = [[op(x) for x in each] for each in S]
        total = matmul([[f32(-x) for x in each] for each in W], S_s, total=matmul(T1, v.tolist()))
        reads = matmul(T2, v.tolist(), total=total)
        Vt = [[op(f32(beta[i] * x)) for x in reads[i]] for i in range(64)]
        for i in range(size):
            QG = [row("q", i, 0, d) for d in D]
            for e in E:
                between = dot(QG, [S_s[d][e] for d in D])
                inside = dot(A_c[i], [Vt[j][e] for j in range(64)], between)
                o[0, start + i, 0, e] = op(f32(f32(scale) * f32(inside + f32(lost[i] * Vt[i][e]))))
        KG = [[key(j, 8, d) for j in range(64)] for d in D]
        S = [[dot(KG[d], [Vt[j][e] for j in range(64)], f32(groups(0, 8, d) * S[d][e])) for e in E] for d in D]
    state[0, 0] = S
    return Outputs(o, state)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@GATED
def test_it_rounds_where_the_program_rounds(gate, dtype):
    """And multiplies in its order, which only float32 operands show."""
    inputs = BUSY.replace(N=69, DK=3, DV=2, gate=gate, dtype=dtype).inputs()
    scale = 0.57735026
    assert ref_hopper(inputs, dtype, scale=scale).equals(one_number_at_a_time(inputs, dtype, scale))


def test_the_trace_has_what_is_made():
    """Shapes end at N, and the stages are those of the portable program; gamma and U are made in no place here."""
    inputs = BUSY.replace(B=2, H=3, dtype=F64, gate="uniform:0.1:0.999").inputs()
    steps, others = [], []
    got = ref_hopper(inputs, trace=steps.append)
    ref_forward(inputs, 64, 16, trace=others.append)
    assert [(step.start, step.stop) for step in steps] == [(0, 64), (64, 85)]
    for step, other in zip(steps, others, strict=True):
        assert set(step.values) == set(STAGES) - {"gamma", "U"}
        for stage, value in step.values.items():
            np.testing.assert_allclose(value, other.values[stage], rtol=0, atol=1e-11, err_msg=stage)
    np.testing.assert_array_equal(steps[-1].values["S"], got.final_state)


@NARROW
@pytest.mark.parametrize("gate", ["uniform:0.1:0.999", "uniform:0.9:0.999"], ids=["half-near", "near"])
@pytest.mark.parametrize("t", [1, 7, 8, 15, 16, 24, 32, 47, 63, 64], ids="token{}".format)
def test_no_later_token_changes_a_bit(t, gate, dtype):
    """Neither its gate, which an anchor inside a block would let in by rounding, and which ends near rows, nor beta."""
    one = BUSY.replace(gate=gate, beta="uniform:0.1:0.9", dtype=dtype)
    inputs = one.inputs()
    later = inputs.replace(**{name: getattr(inputs, name).copy() for name in ("q", "k", "v", "g", "beta")})
    later.g[:, t:] = np.resize([-1000.0, 0.0, -0.37], later.g[:, t:].shape)
    for name in ("q", "k", "v"):
        getattr(later, name)[:, t:] = getattr(later, name)[:, t:][:, ::-1].copy()
    later.beta[:, t:] = 1.75
    before, after = (ref_hopper(x, dtype) for x in (inputs, later.rounded()))
    assert np.array_equal(before.o[:, :t], after.o[:, :t])
    assert not np.array_equal(before.o[:, t:], after.o[:, t:])


@NARROW
def test_nothing_is_lost_behind_a_closed_gate(dtype):
    """From the start of a group on, what comes after -1000 has the bits of a sequence that begins there."""
    one = BUSY.replace(N=64, state="none", gate="uniform:0.9:0.999", dtype=dtype)
    inputs = one.inputs()
    inputs.g[:, 32] = -1000.0
    alone = inputs.replace(**{name: getattr(inputs, name).copy() for name in ("q", "k", "v", "beta")})
    for name in ("q", "k", "v", "beta"):
        getattr(alone, name)[:, :32] = 0.0
    assert np.array_equal(ref_hopper(inputs, dtype).o[:, 32:], ref_hopper(alone, dtype).o[:, 32:])


# Near rows


def scores(run, inputs: Inputs, precision=BF16) -> tuple[np.ndarray, np.ndarray]:
    """M and A_qk of the first chunk, `[C, C]`, of the first head of the first batch."""
    steps = []
    run(inputs, precision, trace=steps.append)
    return steps[0].values["M"][0, 0], steps[0].values["A_qk"][0, 0]


def unlike(one: np.ndarray, other: np.ndarray) -> set[int]:
    """The rows in which some bit differs."""
    return set(np.flatnonzero((one != other).any(axis=-1)).tolist())


@pytest.mark.parametrize("deep", [slice(None), slice(5, 6)], ids=["channels", "channel"])
@pytest.mark.parametrize("first", [0, 1, 3, 8, 9, 13, 32, 59, 64], ids="row{}".format)
def test_rows_are_near_until_one_channel_is_deep(first, deep):
    """They differ from levels in all of M, and in A_qk outside their group; from the first deep row on nothing does."""
    inputs = BUSY.replace(N=64, gate="uniform:0.9:0.99", dtype=BF16).inputs()
    inputs.g[:, first : first + 1, :, deep] = -41.6
    levels = edited("NEAR = 2.0**-60", 'NEAR = float("inf")')
    (M, A_qk), (M_levels, A_levels) = scores(ref_hopper, inputs), scores(levels, inputs)
    assert unlike(M, M_levels) == set(range(1, first))
    assert unlike(A_qk, A_levels) == set(range(8, first))
    of_group = np.arange(64) // 8
    assert np.array_equal(A_qk[of_group[:, None] == of_group], A_levels[of_group[:, None] == of_group])
    assert scores(levels, inputs, F16)[0].tobytes() == scores(ref_hopper, inputs, F16)[0].tobytes()


def test_a_row_at_the_border_is_near():
    """A channel whose gates quarter, exactly, has kept 2^-60 at row 29; the others show which way was taken."""
    inputs = BUSY.replace(N=64, gate="uniform:0.9:0.99", dtype=BF16).inputs()
    inputs.g[..., 5] = -2 * LN2
    assert unlike(scores(ref_hopper, inputs)[1], scores(edited("decay >= NEAR", "decay > NEAR"), inputs)[1]) == {29}


@pytest.mark.parametrize("seed", range(8))
def test_no_factor_of_a_near_row_overflows(seed):
    """Any gates from 0 to -1000, those about the border often: the scores stay below the product of both lengths."""
    inputs = BUSY.replace(N=64, DK=16, gate="uniform:0.1:1.0", dtype=BF16, seed=seed).inputs()
    lots = np.random.default_rng(seed)
    closing = lots.choice([0.0, -1e-4, -0.7, -41.5, -41.58, -41.6, -87.0, -1000.0], inputs.g.shape)
    inputs.g[:] = np.where(lots.random((1, 64, 1, 1)) < 0.1, closing, inputs.g * lots.integers(0, 2))
    inputs = inputs.rounded()
    for score, x in zip(scores(ref_hopper, inputs), (inputs.k, inputs.q), strict=True):
        lengths = np.linalg.norm(x[0, :, 0], axis=-1)[:, None] * np.linalg.norm(inputs.k[0, :, 0], axis=-1)
        assert (np.abs(score) <= lengths * (1 + 2 * BF16.unit_roundoff)).all()
    got = ref_hopper(inputs, BF16)
    assert all_finite(got)
    assert ratio(got, inputs) <= 1


@pytest.mark.parametrize("gate", ["constant:0.999", "channel:0.9:0.999", "uniform:0.5:0.9"])
@pytest.mark.parametrize("off", [-2, 0, 2], ids="ulps{}".format)
def test_a_quotient_of_decays_errs_no_more_than_a_product(off, gate):
    """Both have the same a's up to the earlier token: their errors cancel, however long before that they began."""
    inputs = BUSY.replace(N=64, DK=1, DV=1, k="onehot", gate=gate, dtype=F32).inputs()

    def exp2(x):
        exact = np.exp2(x.astype(np.float64)).astype(np.float32)
        return np.where(x < 0, np.minimum(exact * np.float32(1 + off * 2.0**-23), np.float32(1)), exact)

    steps = []
    ref_hopper(inputs, F32, exp2, trace=steps.append)
    below = np.tril_indices(64, -1)
    gamma = np.cumsum(inputs.g[0, :, 0, 0])
    exact = np.exp(gamma[:, None] - gamma)[below]
    still = inputs.replace(g=np.zeros_like(inputs.g))
    of_decays = accumulated(inputs, 64, F32, inverse=True) - accumulated(still, 64, F32, inverse=True)
    assert 0 < np.abs(steps[0].values["M"][0, 0][below] / exact - 1).max() <= of_decays


@pytest.mark.parametrize("exponent", [-50, -80, -110], ids="q{}".format)
def test_a_query_that_underflows_is_in_the_budget(exponent):
    """Its e^gamma times it meets keys that have grown by 2^60: what is lost shows, and `near` is what allows it."""
    inputs = BUSY.replace(N=64, gate="constant:0.55", beta="one", state="none", dtype=BF16).inputs()
    inputs = inputs.replace(q=inputs.q * 2.0**exponent).rounded()
    got, units = ref_hopper(inputs, BF16), operand_units(inputs, 64, BF16, inverse=True)
    assert ratio(got, inputs) <= 1
    judged = judge(inputs, 64, replace(units, near=np.inf), 8, pairs=True, inverse=True)
    assert (max(verdict.ratio for verdict in compare(got, judged.outputs, judged.budget)) > 1) == (exponent < -66)


# Its budget


ROUGH = pytest.mark.parametrize(
    ("keys", "beta", "gate"),
    [
        ("equal", "constant:2.0", "none"),
        ("sign", "constant:1.9", "none"),
        ("parallel:0.01", "one", "constant:0.999"),
        ("parallel:0.1", "uniform:1.0:2.0", "log:-0.0001"),
        ("positive", "near1", "none"),
        ("gauss", "uniform:0.1:0.9", "log:-1000.0"),
        ("onehot", "uniform:0.0:2.0", "uniform:0.5:0.999"),
    ],
)


@NARROW
@ROUGH
@pytest.mark.parametrize("N", [5, 64, 150], ids="N{}".format)
def test_the_budget_holds_where_the_inverse_is_large(keys, beta, gate, N, dtype):
    inputs = BUSY.replace(N=N, k=keys, beta=beta, gate=gate, dtype=dtype).inputs()
    got = ref_hopper(inputs, dtype)
    assert all_finite(got)
    assert ratio(got, inputs) <= 1


#: Two tokens in one channel, k = q = 1, of which the second's value is what the decayed state holds already: state, and
#: g, beta and v of each. A climb over 600 such writes ended here, where three roundings nearly all are whole roundoffs.
ONE_WRITE = {
    F16: (
        1.0024446249008179,
        (-0.9289800524711609, -0.44614651799201965),
        (0.000480353191960603, 0.5759086012840271),
        (-0.1676025390625, 0.253662109375),
    ),
    BF16: (
        1.0039129257202148,
        (-0.9890185594558716, -0.3933729827404022),
        (0.0038664608728140593, 0.9922598004341125),
        (0.2431640625, 0.251953125),
    ),
}


@NARROW
def test_three_roundings_of_one_write_are_in_the_budget(dtype):
    """K e^gamma, W and the state: they nearly reach the budget. (W of a chunk's first token is K e^gamma.)"""
    state, g, beta, v = (np.reshape(x, (1, -1, 1, 1)) for x in ONE_WRITE[dtype])
    inputs = Inputs(np.ones_like(v), np.ones_like(v), v, g, beta[..., 0], state, dtype)
    assert 0.9 < ratio(ref_hopper(inputs, dtype), inputs) <= 1


@NARROW
@pytest.mark.parametrize("gate", ["constant:0.999", "channel:0.9:0.999"])
def test_the_budget_has_room_for_the_exponential_of_a_machine(gate, dtype):
    """2^x two units in the last place too large, 64 times in a row, on a state that does nothing but decay."""
    inputs = BUSY.replace(N=64, beta="zero", k="zeros", v="zeros", gate=gate, dtype=dtype).inputs()

    def exp2(x):
        exact = np.exp2(x.astype(np.float64)).astype(np.float32)
        off = np.nextafter(np.nextafter(exact, np.float32(2)), np.float32(2))
        return np.where((x < 0) & (exact < 1), np.minimum(off, np.float32(1)), exact)

    assert ratio(ref_hopper(inputs, dtype), inputs) <= 1
    got = ratio(ref_hopper(inputs, dtype, exp2), inputs)
    assert got <= 1
    assert got > ratio(ref_hopper(inputs, dtype), inputs)


# What leaves it


SOURCE = inspect.getsource(hopper)

#: Mistakes by what is wrong, each an edit of the mirror: (found once in it, put there).
MISTAKES = {
    "rows of a level forget the group of the anchor": ("range(r, G) for", "range(r + 1, G) for"),
    "keys of a level stop a group short of the anchor": ("range(G + 1, r) for", "range(G + 1, r - 1) for"),
    "a level is left out": ("in (32, 16, 8):", "in (32, 8):"),
    "a level has the rows of k for those of q": ("(A_qk, QP)", "(A_qk, KP)"),
    "keys do not decay until the chunk ends": ("op(KM * post)", "op(KM)"),
    "post has the token's own group": ("range(G + 1, 8) for", "range(G, 8) for"),
    "q has not decayed since the chunk began": ("op(Qc * decay)", "op(QP)"),
    "k has not decayed since the chunk began": ("op(Kc * decay), op(KM", "op(KP), op(KM"),
    "the state does not decay over the last group": ("pre[:, :, -1] * t[-1]", "pre[:, :, -1]"),
    "tokens past N decay": (
        "a = decays[:, :, rows]",
        "a = decays[:, :, rows]; a[:, :, max(sizes.N - rows.start, 0) :] = 0.5",
    ),
    "until has the token's own decay": ("Kc * until", "Kc * (until * a)"),
    "pairs decay by the token before": ("* a[..., i, None, :]", "* a[..., i - 1, None, :]"),
    "L has the other sign": ("x[..., j + 1 :, :] -= of_block", "x[..., j + 1 :, :] += of_block"),
    "a merge has the other sign": ("return -machine.gemm(", "return machine.gemm("),
    "a merge has T11 for T22": ("-machine.gemm(read(T22)", "-machine.gemm(read(T11)"),
    "the last merge is left out": ("half in (16, 32):", "half in (16,):"),
    "no beta in the blocks": ("(rate[..., j, None, :] * x", "(x"),
    "beta of the row in the blocks": ("(rate[..., j, None, :] * x", "(rate[..., j + 1 :, :] * x"),
    "beta twice in the blocks": ("(rate[..., j, None, :] * x", "(rate[..., j, None, :] ** 2 * x"),
    "no beta in the merges": ("L = np.zeros_like(M), M * beta.swapaxes(-1, -2)", "L = np.zeros_like(M), M"),
    "beta of the row in the merges": ("M * beta.swapaxes(-1, -2)", "M * beta"),
    "beta twice in the merges": ("M * beta.swapaxes(-1, -2)", "M * beta.swapaxes(-1, -2) ** 2"),
    "V~ without beta": ("Vt = be[..., None] * gemm", "Vt = gemm"),
    "beta twice in V~": ("Vt = be[..., None] * gemm", "Vt = be[..., None] ** 2 * gemm"),
    "beta in W, too": ("W = op(gemm(", "W = be[..., None] * op(gemm("),
    "the diagonal of A_qk counts twice": ("A_qk - A_c", "A_qk"),
    "A_qk has no diagonal": ("np.tril(A_qk)", "np.tril(A_qk, -1)"),
    "W S is left out": ("gemm(-W, S_s, of_values)", "gemm(0 * W, S_s, of_values)"),
}

#: Those that only near rows show.
NEAR_MISTAKES = {
    "a row is near while some channel is": (".all(axis=-1, keepdims=True)", ".any(axis=-1, keepdims=True)"),
    "no row is too deep": ("decay >= NEAR", "decay >= 0"),
    "keys decay for near rows": ("1 / np.where(near, decay, accum(1))", "np.where(near, decay, accum(1))"),
    "keys do not grow for near rows": ("op(Kc * (1 / np.where(near, decay, accum(1))))", "op(Kc)"),
    "keys of near rows grow to their group's beginning": ("1 / np.where(near, decay,", "1 / np.where(near, P,"),
    "keys of near rows grow from where their group began": ("1 / np.where(near, decay,", "1 / np.where(near, pre,"),
    "near rows of M are those of q": ("gemm(KE, KB,", "gemm(QG, KB,"),
    "near rows of A_qk are those of k": ("gemm(QG, KB,", "gemm(KE, KB,"),
}


def with_mistake(name: str):
    """`ref_hopper` with one of `MISTAKES` or `NEAR_MISTAKES`."""
    return edited(*{**MISTAKES, **NEAR_MISTAKES}[name])


def edited(found: str, put: str):
    """`ref_hopper` with `put` in the one place of its source that reads `found`."""
    assert SOURCE.count(found) == 1, found
    module = types.ModuleType("kda.references.hopper_edited")
    exec(compile(SOURCE.replace(found, put), module.__name__, "exec"), module.__dict__)
    return module.ref_hopper


@functools.cache
def telling(dtype):
    """(inputs, reference A's outputs and the budget) of four cases.

    Keys alike, decays of all sizes, a closed gate, and one channel closed from the start, so that no row is near.
    """
    one = BUSY.replace(N=100, DK=16, q="positive", k="positive", dtype=dtype)
    alike = one.replace(q="equal", k="equal", v="ones", state="ones", beta="uniform:0.1:0.9")
    turned = alike.replace(q="positive")
    gated = (one, "uniform:0.8:0.999"), (alike, "constant:0.9"), (alike, "spike:60:-1000.0"), (turned, "constant:0.8")
    found = [case.replace(gate=gate).inputs() for case, gate in gated]
    found[-1].g[:, ::64, :, 0] = -1000.0
    units = [operand_units(inputs, 64, dtype, inverse=True) for inputs in found]
    return [(x, judge(x, 64, unit, 8, pairs=True, inverse=True)) for x, unit in zip(found, units, strict=True)]


def ratios(run, dtype) -> list[float]:
    """Error over budget of the worst row of `run` on each of the `telling` cases."""
    with np.errstate(all="ignore"):
        got = [(run(inputs, dtype), judged) for inputs, judged in telling(dtype)]
    return [max(v.ratio for v in compare(one, judged.outputs, judged.budget)) for one, judged in got]


@NARROW
def test_without_a_mistake_it_stays_in_the_budget(dtype):
    assert max(ratios(ref_hopper, dtype)) <= 0.5


@NARROW
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_leaves_the_budget(name, dtype):
    assert max(ratios(with_mistake(name), dtype)) > 1


@pytest.mark.parametrize("name", NEAR_MISTAKES)
def test_a_mistake_with_near_rows_leaves_the_budget(name):
    assert max(ratios(with_mistake(name), BF16)) > 1


def test_one_rounding_of_a_steep_row_leaves_the_budget():
    """Reflections of one another's writes, beta = 2: T is as large at its end as at its beginning."""
    case = Case.parse("v1,N=64,C=64,dtype=bf16,gate=constant:0.9999,beta=constant:2.0,q=equal,k=equal,v=ones,seed=2")
    inputs = case.inputs()
    once = edited("np.where(steep, T - T1, accum(0))", "np.zeros_like(T)")
    assert ratio(ref_hopper(inputs, BF16), inputs) < 0.3
    assert ratio(once(inputs, BF16), inputs) > 1


# As an implementation


def test_it_is_an_implementation():
    """At any DK and DV with chunks of 64, in the formats of the program, its own mirror to the bit."""
    mirror = implementation("mirror_hopper")
    assert mirror.dtypes("c") == (F16, BF16)
    assert {tile.C for tile in mirror.support("c", F16).tiles} == {64}
    one = BUSY.replace(gate="log:-30.0", dtype=BF16)
    inputs = one.inputs()
    got = mirror.run(inputs, one.tile, "c")
    assert got.equals(mirror.mirror(inputs, one.tile, "c"))
    assert got.equals(ref_hopper(inputs, BF16))
