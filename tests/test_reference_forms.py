"""The references agree with each other, with their own fast forms, and with the simpler systems they fall back to."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest

from kda import references
from kda.formats import BF16, F16, F32, F64, Format
from kda.problem import InputError, Inputs, Outputs
from kda.references import (
    STAGES,
    Arithmetic,
    delta_net,
    delta_net_chunkwise,
    exp2_correctly_rounded,
    gated_delta_net,
    gated_delta_net_chunkwise,
    linear_attention,
    linear_attention_chunkwise,
    per_channel_decay,
    per_channel_decay_chunkwise,
    ref_A,
    ref_A_fast,
    ref_B,
    ref_B_fast,
    ref_C,
    ref_C_fast,
    scalar_decay,
    scalar_decay_chunkwise,
)

NARROW = pytest.mark.parametrize("precision", [F16, BF16, F32], ids=str)
EVERY = pytest.mark.parametrize("precision", [F16, BF16, F32, F64], ids=str)
SEEDS = pytest.mark.parametrize("seed", range(20), ids="seed{}".format)
STATE = pytest.mark.parametrize("with_state", [False, True], ids=["zero-state", "carried-state"])


def make(
    B: int,
    N: int,
    H: int,
    DK: int,
    DV: int,
    *,
    seed: int = 0,
    gate: tuple[float, float] = (0.90, 0.999),
    beta: tuple[float, float] = (0.1, 0.9),
    with_state: bool = False,
    dtype: Format = F64,
) -> Inputs:
    """The article's distributions (section 3.4)."""
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    return Inputs(
        q=unit(B, N, H, DK),
        k=unit(B, N, H, DK),
        v=rng.normal(size=(B, N, H, DV)),
        g=np.log(rng.uniform(*gate, size=(B, N, H, DK))),
        beta=rng.uniform(*beta, size=(B, N, H)),
        initial_state=rng.normal(size=(B, H, DK, DV)) if with_state else None,
        dtype=dtype,
    ).rounded()


def worst(got: Outputs, want: Outputs) -> float:
    """The largest absolute error of both outputs."""
    return max(np.abs(x - y).max() for (_, x), (_, y) in zip(got.tensors(), want.tensors(), strict=True))


def worst_row(got: Outputs, want: Outputs) -> float:
    """The largest relative L2 error of any row of both outputs."""
    return max(
        (np.linalg.norm(x - y, axis=-1) / np.linalg.norm(y, axis=-1)).max()
        for (_, x), (_, y) in zip(got.tensors(), want.tensors(), strict=True)
    )


def relative(got: Outputs, want: Outputs) -> float:
    """Relative L2 error of o as a whole, as the article reports it."""
    return float(np.linalg.norm(got.o - want.o) / np.linalg.norm(want.o))


# The article's case, section 3.4


@SEEDS
@STATE
def test_references_agree_on_the_articles_case(seed, with_state):
    inputs = make(2, 12, 2, 4, 4, seed=seed, with_state=with_state)
    want = ref_A(inputs)
    others = [
        ref_A_fast(inputs),
        ref_B(inputs, 4),
        ref_B(inputs, 4, pairing="T_diag_beta"),
        ref_B_fast(inputs, 4),
        *(form(inputs, 4, block_DV) for form in (ref_C, ref_C_fast) for block_DV in (1, 2, 4)),
    ]
    assert np.linalg.norm(want.o, axis=-1).min() > 1e-3
    for got in others:
        assert worst(got, want) <= 1e-14
        assert worst_row(got, want) <= 1e-13


@SEEDS
def test_the_exponential_splits(seed):
    """M as one matrix product and M as C^2 / 2 weighted inner products are the same numbers."""
    inputs = make(1, 64, 1, 32, 4, seed=seed)
    steps = []
    ref_C(inputs, 64, 4, trace=steps.append)
    gam, k = steps[0].values["gamma"][0, 0], inputs.k[0, :, 0]
    naive = [[np.dot(k[c] * np.exp(gam[c] - gam[i]), k[i]) if i < c else 0.0 for i in range(64)] for c in range(64)]
    np.testing.assert_allclose(steps[0].values["M"][0, 0], naive, rtol=0, atol=1e-14)


def test_a_by_hand():
    """Two tokens in one channel, worked out on paper."""
    one = np.ones((1, 2, 1, 1))
    inputs = Inputs(one, one, 3 * one, np.log(0.5) * one, np.array([[[0.5], [0.25]]]), 4 * np.ones((1, 1, 1, 1)))
    # S1 = 4 * 0.5 * 0.5 + 0.5 * 3 = 2.5;  S2 = 2.5 * 0.5 * 0.75 + 0.25 * 3 = 1.6875
    want = Outputs(np.array([2.5, 1.6875]).reshape(1, 2, 1, 1), np.full((1, 1, 1, 1), 1.6875))
    for got in (ref_A(inputs), ref_B(inputs, 2), ref_C(inputs, 2, 1), ref_C(inputs, 2, 1, F32)):
        assert worst(got, want) <= 1e-6
    assert worst(ref_A(inputs), want) <= 1e-15


# Literal forms and their fast twins

C = 16
SHAPES = [(2, 1, 1, 4, 8), (1, C - 1, 3, 8, 5), (2, C + 1, 2, 5, 8), (1, 2 * C + 3, 2, 8, 16), (1, 2 * C, 1, 16, 4)]
SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "B{}-N{}-H{}-DK{}-DV{}".format(*s))


@SHAPE
@STATE
def test_fast_forms_are_the_literal_ones_in_float64(shape, with_state):
    inputs = make(*shape, with_state=with_state)
    assert worst(ref_A_fast(inputs), ref_A(inputs)) <= 1e-14
    assert worst_row(ref_A_fast(inputs), ref_A(inputs)) <= 1e-13
    assert worst(ref_B_fast(inputs, C), ref_B(inputs, C)) <= 1e-14
    assert worst(ref_C_fast(inputs, C, 4), ref_C(inputs, C, 4)) <= 1e-14
    for got in (ref_B(inputs, C), ref_C(inputs, C, 4)):
        assert worst_row(got, ref_A(inputs)) <= 1e-13


@SHAPE
@STATE
@NARROW
def test_fast_mirror_is_the_literal_one_bit_for_bit(shape, with_state, precision):
    inputs = make(*shape, with_state=with_state, dtype=precision)
    literal, fast = [], []
    assert ref_C(inputs, C, 4, precision, trace=literal.append).equals(
        ref_C_fast(inputs, C, 4, precision, trace=fast.append)
    )
    assert ref_C(inputs, C, 4, precision).equals(ref_C_fast(inputs, C, 4, precision))
    for mine, theirs in zip(literal, fast, strict=True):
        assert (mine.chunk, mine.start, mine.stop) == (theirs.chunk, theirs.start, theirs.stop)
        for stage in STAGES:
            np.testing.assert_array_equal(mine.values[stage], theirs.values[stage], err_msg=stage)


@pytest.mark.parametrize("form", [ref_C, ref_C_fast], ids=["literal", "fast"])
@EVERY
def test_trace_has_every_stage_of_every_chunk(form, precision):
    B, N, H, DK, DV = 2, 2 * C + 3, 3, 4, 6
    inputs = make(B, N, H, DK, DV, dtype=precision)
    steps = []
    got = form(inputs, C, 4, precision, trace=steps.append)
    assert [(s.chunk, s.start, s.stop) for s in steps] == [(0, 0, C), (1, C, 2 * C), (2, 2 * C, N)]
    for step in steps:
        R = step.stop - step.start
        wide = {"gamma": DK, "W": DK, "M": R, "L": R, "A_qk": R, "U": DV, "V_tilde": DV, "o": DV}
        assert set(step.values) == set(STAGES)
        assert {s: x.shape for s, x in step.values.items() if s != "S"} == {s: (B, H, R, n) for s, n in wide.items()}
        np.testing.assert_array_equal(step.values["o"], np.moveaxis(got.o[:, step.start : step.stop], 2, 1))
        assert not np.triu(step.values["L"]).any()
        assert not np.triu(step.values["M"]).any()
        assert not np.triu(step.values["A_qk"], 1).any()
    np.testing.assert_array_equal(steps[-1].values["S"], got.final_state)


def test_the_traced_intermediates_satisfy_their_equations():
    inputs = make(1, 2 * C, 2, 8, 4)
    steps = []
    ref_C_fast(inputs, C, 4, trace=steps.append)
    before = inputs.state()
    for step in steps:
        seen, rows = step.values, slice(step.start, step.stop)
        k, v = np.moveaxis(inputs.k[:, rows], 2, 1), np.moveaxis(inputs.v[:, rows], 2, 1)
        beta = np.moveaxis(inputs.beta[:, rows], 2, 1)
        A_hat = beta[..., None] * np.linalg.inv(np.eye(C) + seen["L"])
        equations = {
            "L": beta[..., None, :] * seen["M"],
            "W": A_hat @ (k * np.exp(seen["gamma"])),
            "U": A_hat @ v,
            "V_tilde": seen["U"] - seen["W"] @ before,
        }
        for stage, want in equations.items():
            np.testing.assert_allclose(seen[stage], want, rtol=0, atol=1e-14, err_msg=stage)
        before = seen["S"]


# The mirror's roundings


def one_number_at_a_time(inputs: Inputs, C: int, precision: Format) -> Outputs:
    """The kernel's arithmetic on NumPy scalars, so that every rounding and the order of every sum is in plain sight."""
    f32, sizes = np.float32, inputs.sizes
    log2e = f32(1.4426950408889634)
    o, state = np.zeros(sizes.shape("o")), inputs.state()

    def op(x: np.floating) -> np.floating:
        return f32(precision.round(np.float64(x)))

    def exp(x: np.floating) -> np.floating:
        return f32(np.exp2(np.float64(x * log2e)))

    def dot(x, y, total):
        for left, right in zip(x, y, strict=True):
            total = f32(total + f32(left * right))
        return total

    for b, h, dv in itertools.product(range(sizes.B), range(sizes.H), range(sizes.DV)):
        S = [f32(x) for x in state[b, h, :, dv]]
        for start in range(0, sizes.N, C):
            R, D = range(min(C, sizes.N - start)), range(sizes.DK)
            q, k, g = (
                [[f32(x) for x in row] for row in t[b, start : start + C, h]] for t in (inputs.q, inputs.k, inputs.g)
            )
            beta = [f32(x) for x in inputs.beta[b, start : start + C, h]]
            gam = [g[0]]
            for r in R[1:]:
                gam.append([gam[r - 1][d] + g[r][d] for d in D])

            Ep, Em = ([[exp(sign * x) for x in row] for row in gam] for sign in (f32(1), f32(-1)))
            Kp, Km, Qp = ([[op(x[r][d] * e[r][d]) for d in D] for r in R] for x, e in ((k, Ep), (k, Em), (q, Ep)))
            L = [[beta[i] * dot(Kp[r], Km[i], f32(0)) for i in range(r)] for r in R]
            A_c = [[op(dot(Qp[r], Km[i], f32(0))) for i in range(r + 1)] for r in R]
            W = [[k[r][d] * Ep[r][d] for d in D] for r in R]
            U = [f32(x) for x in inputs.v[b, start : start + C, h, dv]]
            for r in R:
                for i in range(r):
                    W[r] = [W[r][d] - L[r][i] * W[i][d] for d in D]
                    U[r] = U[r] - L[r][i] * U[i]
            W = [[op(beta[r] * x) for x in W[r]] for r in R]
            U = [beta[r] * U[r] for r in R]
            S_s = [op(x) for x in S]
            Vt_c = [op(U[r] - dot(W[r], S_s, f32(0))) for r in R]
            for r in R:
                o[b, start + r, h, dv] = op(dot(A_c[r], Vt_c[: r + 1], dot(Qp[r], S_s, f32(0))))
            for d in D:
                Kd = [op(k[r][d] * (Ep[-1][d] * Em[r][d])) for r in R]
                S[d] = dot(Kd, Vt_c, Ep[-1][d] * S[d])
        state[b, h, :, dv] = S
    return Outputs(o, state)


@pytest.mark.parametrize("seed", range(3), ids="seed{}".format)
@NARROW
def test_mirror_rounds_where_the_kernel_rounds(precision, seed):
    inputs = make(1, 19, 2, 6, 3, seed=seed, with_state=True, dtype=precision)
    want = one_number_at_a_time(inputs, 8, precision)
    assert ref_C(inputs, 8, 2, precision).equals(want)
    assert ref_C_fast(inputs, 8, 2, precision).equals(want)


@pytest.mark.parametrize("block_DV", [1, 2, 3, 5, 8, 16])
@NARROW
def test_block_DV_does_not_change_a_bit(block_DV, precision):
    inputs = make(2, C + 5, 2, 8, 8, with_state=True, dtype=precision)
    assert ref_C(inputs, C, block_DV, precision).equals(ref_C(inputs, C, 8, precision))


@pytest.mark.parametrize(("precision", "tolerance"), [(F32, 1e-6), (F16, 1e-3), (BF16, 1e-2)], ids=str)
@pytest.mark.parametrize("seed", range(5), ids="seed{}".format)
def test_mirror_is_as_close_as_its_operands_allow(precision, tolerance, seed):
    """Within the format's accuracy, and not closer: a mirror that rounds nothing would be."""
    inputs = make(2, 75, 2, 32, 32, seed=seed, with_state=True, dtype=precision)
    error = relative(ref_C_fast(inputs, 32, 32, precision), ref_A_fast(inputs))
    assert precision.unit_roundoff / 4 < error < tolerance


@NARROW
def test_outputs_are_held_by_the_kernels_formats(precision):
    got = ref_C_fast(make(1, 20, 2, 8, 8, with_state=True, dtype=precision), C, 8, precision)
    assert got.o.dtype == got.final_state.dtype == np.float64
    assert precision.holds(got.o)
    assert F32.holds(got.final_state)
    assert precision is F32 or not precision.holds(got.final_state)


@NARROW
def test_operands_are_rounded_as_the_format_rounds(precision):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=4096) * 2.0 ** rng.integers(-40, 20, size=4096)).astype(np.float32)
    with np.errstate(over="ignore"):
        got = Arithmetic(precision).op(x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, precision.round(x))


def test_float32_products_are_summed_one_by_one_onto_the_accumulator():
    rng = np.random.default_rng(0)
    a, b, acc = (rng.normal(size=n).astype(np.float32) for n in ((3, 2, 5, 40), (3, 2, 40, 7), (3, 2, 5, 7)))
    want = acc.copy()
    for at in np.ndindex(want.shape):
        for kk in range(40):
            want[at] = np.float32(want[at] + np.float32(a[(*at[:3], kk)] * b[(*at[:2], kk, at[3])]))
    before = acc.copy()
    np.testing.assert_array_equal(Arithmetic(F16).gemm(a, b, acc), want)
    np.testing.assert_array_equal(acc, before)
    assert (want != (acc + a @ b)).any(), "the order of summation is not visible on these numbers"


@NARROW
@pytest.mark.parametrize("form", [ref_C, ref_C_fast], ids=["literal", "fast"])
def test_the_exponential_of_the_machine_is_used(form, precision):
    inputs = make(1, 20, 2, 8, 8, dtype=precision)
    asked = []

    def a_machines_exp2(x):
        asked.append(x)
        return exp2_correctly_rounded(x) * np.float32(1 + 2.0**-6)

    got = form(inputs, C, 8, precision, exp2=a_machines_exp2)
    assert all(x.dtype == np.float32 for x in asked)
    assert not got.equals(form(inputs, C, 8, precision))
    assert form(inputs, C, 8, precision, exp2=exp2_correctly_rounded).equals(form(inputs, C, 8, precision))


@pytest.mark.parametrize("form", [ref_C, ref_C_fast], ids=["literal", "fast"])
@EVERY
def test_outside_the_gate_domain_the_mirror_overflows_silently(form, precision):
    inputs = make(1, C, 1, 4, 4)
    inputs = inputs.replace(g=np.full_like(inputs.g, -100.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = form(inputs, C, 4, precision)
    assert not np.isfinite(got.o).all()


# Gates of any size


@pytest.mark.parametrize("g", [0.0, -1e-6, -1.0, -50.0, -1000.0])
@STATE
def test_no_gate_is_too_closed_for_a_and_b(g, with_state):
    inputs = make(1, C + 3, 2, 4, 8, with_state=with_state)
    inputs = inputs.replace(g=np.full_like(inputs.g, g))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        want = ref_A(inputs)
        for got in (ref_A_fast(inputs), ref_B(inputs, C), ref_B_fast(inputs, C)):
            assert worst(got, want) <= 1e-14


@pytest.mark.parametrize("length", [1, 3, 8, 64])
def test_chunk_length_does_not_matter(length):
    inputs = make(1, 19, 2, 4, 4, with_state=True)
    for got in (ref_B(inputs, length), ref_B_fast(inputs, length), ref_C(inputs, length, 4)):
        assert worst(got, ref_A(inputs)) <= 1e-14


# Where beta goes


@SEEDS
def test_pairings_agree_and_a_mixed_one_is_wrong(seed):
    inputs = make(2, 32, 2, 8, 8, seed=seed)
    want = ref_A(inputs)
    assert relative(ref_B(inputs, C, pairing="diag_beta_T"), want) <= 1e-14
    assert relative(ref_B(inputs, C, pairing="T_diag_beta"), want) <= 1e-14
    assert 3e-2 < relative(ref_B(inputs, C, pairing="mixed"), want) < 1


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 2.0])
def test_equal_betas_hide_a_mixed_pairing(beta):
    inputs = make(2, 32, 2, 8, 8)
    inputs = inputs.replace(beta=np.full_like(inputs.beta, beta))
    assert worst(ref_B(inputs, C, pairing="mixed"), ref_A(inputs)) <= 1e-12


# The family


def ungated(inputs: Inputs) -> Inputs:
    return inputs.replace(g=np.zeros_like(inputs.g))


def one_gate_per_head(inputs: Inputs) -> Inputs:
    return inputs.replace(g=np.broadcast_to(inputs.g[:, :1, :, :1], inputs.g.shape).copy())


def channels_share(inputs: Inputs) -> Inputs:
    return inputs.replace(g=np.broadcast_to(inputs.g[..., :1], inputs.g.shape).copy())


def unchanged(inputs: Inputs) -> Inputs:
    return inputs


SYSTEMS = {
    "linear_attention": (linear_attention, linear_attention_chunkwise, ungated),
    "scalar_decay": (scalar_decay, scalar_decay_chunkwise, one_gate_per_head),
    "per_channel_decay": (per_channel_decay, per_channel_decay_chunkwise, unchanged),
    "delta_net": (delta_net, delta_net_chunkwise, ungated),
    "gated_delta_net": (gated_delta_net, gated_delta_net_chunkwise, channels_share),
}
SYSTEM = pytest.mark.parametrize("system", SYSTEMS)


@SYSTEM
@SHAPE
@STATE
def test_family_chunkwise_is_family_recurrent(system, shape, with_state):
    recurrent, chunkwise, fit = SYSTEMS[system]
    inputs = fit(make(*shape, with_state=with_state))
    assert worst(chunkwise(inputs, C), recurrent(inputs)) <= 1e-13


@SYSTEM
def test_family_survives_a_closed_gate(system):
    recurrent, chunkwise, fit = SYSTEMS[system]
    inputs = make(1, C + 3, 2, 4, 8, with_state=True)
    inputs = fit(inputs.replace(g=np.full_like(inputs.g, -1000.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert worst(chunkwise(inputs, C), recurrent(inputs)) <= 1e-13


@pytest.mark.parametrize("system", ["delta_net", "gated_delta_net"])
@SEEDS
def test_kda_is_a_delta_net_exactly(system, seed):
    recurrent, _, fit = SYSTEMS[system]
    inputs = fit(make(2, 12, 2, 4, 4, seed=seed, with_state=True))
    for got in (ref_A(inputs), ref_B(inputs, 4), ref_C(inputs, 4, 4)):
        assert worst(got, recurrent(inputs)) <= 1e-14


@pytest.mark.parametrize("system", ["linear_attention", "scalar_decay", "per_channel_decay"])
def test_kda_loses_its_deletion_as_beta_squared(system):
    """From a zero state, what is deleted is what was written: the gap is quadratic in beta."""
    recurrent, _, fit = SYSTEMS[system]
    inputs = fit(make(2, 12, 2, 4, 4))
    gaps = []
    for scale in (1e-2, 1e-3, 1e-4):
        small = inputs.replace(beta=scale * inputs.beta)
        gaps.append(worst(ref_A(small), recurrent(small)))
    for wide, narrow in itertools.pairwise(gaps):
        assert 80 < wide / narrow < 120


@pytest.mark.parametrize("system", ["linear_attention", "scalar_decay", "per_channel_decay"])
def test_without_writes_the_state_only_decays(system):
    recurrent, _, fit = SYSTEMS[system]
    inputs = fit(make(2, 12, 2, 4, 4, with_state=True))
    inputs = inputs.replace(beta=np.zeros_like(inputs.beta))
    decayed = np.exp(inputs.g.sum(axis=1))[..., None] * inputs.state()
    for got in (recurrent(inputs), ref_A(inputs)):
        np.testing.assert_allclose(got.final_state, decayed, rtol=1e-13)


def test_orthonormal_keys_hide_the_deletion():
    """With one key per channel and beta = 1 nothing is ever overwritten: DeltaNet is linear attention."""
    N = 6
    inputs = ungated(make(1, N, 1, N, 3))
    inputs = inputs.replace(k=np.eye(N).reshape(1, N, 1, N), beta=np.ones((1, N, 1)))
    assert worst(delta_net(inputs), linear_attention(inputs)) <= 1e-15
    assert worst(ref_A(inputs), linear_attention(inputs)) <= 1e-15


@pytest.mark.parametrize("system", ["linear_attention", "scalar_decay", "delta_net", "gated_delta_net"])
@pytest.mark.parametrize("form", [0, 1], ids=["recurrent", "chunkwise"])
def test_a_gate_that_does_not_fit_is_refused(system, form):
    compute, fit = SYSTEMS[system][form], SYSTEMS[system][2]
    inputs = fit(make(2, 5, 3, 4, 4))
    inputs.g[1, 3, 2, 1] = -7.25
    with pytest.raises(InputError, match=r"g is -7\.25 at batch 1, token 3, head 2, channel 1, expected"):
        compute(inputs, *([C] if form else []))


# What every reference promises


def everything() -> dict:
    calls = {
        "ref_A": ref_A,
        "ref_A_fast": ref_A_fast,
        "ref_B": lambda x: ref_B(x, 4),
        "ref_B_fast": lambda x: ref_B_fast(x, 4),
        "ref_C": lambda x: ref_C(x, 4, 2),
        "ref_C_fast": lambda x: ref_C_fast(x, 4, 2),
        "ref_C-f16": lambda x: ref_C(x, 4, 2, F16),
        "ref_C_fast-f16": lambda x: ref_C_fast(x, 4, 2, F16),
    }
    for name, (recurrent, chunkwise, fit) in SYSTEMS.items():
        calls[name] = lambda x, f=recurrent, fit=fit: f(fit(x))
        calls[name + "_chunkwise"] = lambda x, f=chunkwise, fit=fit: f(fit(x), 4)
    return calls


REFERENCE = pytest.mark.parametrize("compute", everything().values(), ids=everything())


@REFERENCE
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", np.nan, "k is nan at batch 0, token 0, head 0, channel 0"),
        ("beta", 2.5, "beta is 2.5 at batch 0, token 0, head 0; expected 0 <= beta <= 2"),
    ],
    ids=["nan-key", "beta-too-large"],
)
def test_malformed_inputs_are_refused(compute, name, value, message):
    inputs = make(1, 5, 1, 4, 4)
    getattr(inputs, name)[0, 0, 0] = value
    with pytest.raises(InputError, match=message):
        compute(inputs)


@REFERENCE
@pytest.mark.parametrize("N", [1, 3, 9])
def test_inputs_are_left_alone_and_outputs_are_fresh(compute, N):
    inputs = make(2, N, 3, 4, 5, with_state=True)
    before = {name: array.copy() for name, array in inputs.tensors()}
    for _, array in inputs.tensors():
        array.flags.writeable = False
    got = compute(inputs)
    assert got.o.shape == (2, N, 3, 5)
    assert got.final_state.shape == (2, 3, 4, 5)
    for _, array in got.tensors():
        assert array.dtype == np.float64
        assert array.flags.writeable
        assert not any(np.shares_memory(array, mine) for _, mine in inputs.tensors())
    for name, array in inputs.tensors():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert compute(dataclasses.replace(inputs)).equals(got)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda x: ref_B(x, 0), "C is 0; expected at least 1"),
        (lambda x: ref_B_fast(x, -1), "C is -1; expected at least 1"),
        (lambda x: ref_C(x, 0, 4), "C is 0; expected at least 1"),
        (lambda x: ref_C(x, 4, 0), "block_DV is 0; expected at least 1"),
        (lambda x: ref_C_fast(x, 4, 0), "block_DV is 0; expected at least 1"),
        (lambda x: per_channel_decay_chunkwise(x, 0), "C is 0; expected at least 1"),
        (lambda x: ref_B(x, 4, pairing="both"), "pairing is 'both'; expected diag_beta_T"),
    ],
    ids=["B-C0", "B_fast-C-1", "C-C0", "C-block0", "C_fast-block0", "family-C0", "pairing"],
)
def test_a_choice_that_makes_no_sense_is_refused(compute, message):
    with pytest.raises(InputError, match=message):
        compute(make(1, 5, 1, 4, 4))


def test_public_names_are_documented():
    for name in references.__all__:
        assert getattr(references, name, None) is not None
        assert name in ("Exp2", "Pairing", "Trace", "STAGES") or getattr(references, name).__doc__
