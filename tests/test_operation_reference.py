"""The operation in float64, its line and its budget."""

import hashlib

import numpy as np
import pytest
import torch
from float_operation import FLOAT, with_mistake
from hypothesis import given, settings

from kda.case import Case, CaseError
from kda.formats import BF16, F16, F32
from kda.implementations.operation import tensors_of
from kda.lines import case_of
from kda.numerics.compare import compare
from kda.numerics.operation import carried_errors, judge_operation, prologue_errors
from kda.operation_case import OperationCase
from kda.operation_support import OperationSupport
from kda.problem import InputError, Outputs
from kda.references import ref_A_fast
from kda.references.operation import Operation, inputs_of, parts, processed, ref_operation
from strategies import operations

EVERY = OperationSupport((F16, BF16, F32), forms=None, channels=(16, 32, 48), max_tokens=40, max_sequences=3)
LINE = (
    "op1,lengths=3.0x2.20,tail=2,H=2,groups=3,DK=32,dtype={dtype},gate=softplus,rate=doubled,normalise=1,"
    "v_first=1,scale=-0.5,g=gauss:3.0,A_log=model,dt_bias=model,beta=gauss:4.0,q=gauss,k=gauss,rows=wide:4,v=gauss,"
    "state=gauss,seed=7"
)


def case(line: str = LINE, dtype: str = "f32", **changes) -> OperationCase:
    return OperationCase.parse(line.format(dtype=dtype)).replace(**changes)


def quick(most: int):
    return settings(max_examples=most, database=None, derandomize=True, deadline=None)


# The reference


def token_loop(x: Operation) -> tuple[np.ndarray, np.ndarray]:
    """Every formula of the operation as it is said, one head and token at a time."""
    HV, DK = x.v.shape[2], x.k.shape[-1]
    flat = {name: getattr(x, name).reshape(-1, *getattr(x, name).shape[2:]) for name in ("q", "k", "v", "g", "beta")}
    S_all = x.states()
    o = np.full(flat["v"].shape, np.nan)
    for s in range(len(x.starts) - 1):
        for h in range(HV):
            S = S_all[s, h]
            for t in range(x.starts[s], x.starts[s + 1]):
                q, k = (flat[name][t, h // x.groups] for name in ("q", "k"))
                if x.normalise:
                    q, k = (x.dtype.round(row / (row @ row + 1e-6) ** 0.5) for row in (q, k))
                g, beta = flat["g"][t, h], flat["beta"][t, h]
                if x.gate != "log":
                    raw = g + (np.zeros(DK) if x.dt_bias is None else x.dt_bias[h])
                    a = 1.0 if x.A_log is None else np.exp(x.A_log[h])
                    softplus = np.maximum(raw, 0) + np.log1p(np.exp(-np.abs(raw)))
                    g = -a * softplus if x.gate == "softplus" else x.lower_bound / (1 + np.exp(-a * raw))
                if x.rate != "value":
                    beta = {"logits": 1.0, "doubled": 2.0}[x.rate] / (1 + np.exp(-beta))
                S = np.exp(g)[:, None] * S
                S = S + beta * np.outer(k, flat["v"][t, h] - S.T @ k)
                o[t, h] = x.factor * (S.T @ q)
            S_all[s, h] = S
    return o.reshape(x.v.shape), S_all


@quick(60)
@given(operations(EVERY))
def test_the_reference_is_its_formulas_token_by_token(case):
    x = case.operation()
    got = ref_operation(x).plain()
    with np.errstate(over="ignore"):
        o, state = token_loop(x)
    scale = max(1.0, np.abs(state).max(), np.nanmax(np.abs(o), initial=0))
    assert np.allclose(got.o, o, rtol=0, atol=1e-11 * scale, equal_nan=True)
    if x.output_final_state:
        assert np.allclose(got.final_state, state, rtol=0, atol=1e-11 * scale)
    else:
        assert not got.final_state.size


def in_torch(x: Operation) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch in the conventions of flash-linear-attention: q scaled, heads repeated, states [HV, K, V]; float64."""
    q, k, v, g, beta = (torch.from_numpy(getattr(x, name)) for name in ("q", "k", "v", "g", "beta"))
    norm = [row * torch.rsqrt((row * row).sum(-1, keepdim=True) + 1e-6) for row in (q, k)]
    q, k = (torch.from_numpy(x.dtype.round(row.numpy())).repeat_interleave(x.groups, dim=2) for row in norm)
    raw, A = g + torch.from_numpy(x.dt_bias), torch.from_numpy(x.A_log).exp()[:, None]
    if x.gate == "softplus":
        g = -A * torch.nn.functional.softplus(raw, threshold=1000)
    else:
        g = x.lower_bound * torch.sigmoid(A * raw)
    beta = torch.sigmoid(beta) * (2 if x.rate == "doubled" else 1)
    S = torch.from_numpy(x.states())
    o = torch.zeros_like(v)
    for t in range(q.shape[1]):
        S = S * g[:, t, ..., None].exp()
        read = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        S = S + torch.einsum("bhk,bhv->bhkv", beta[:, t, :, None] * k[:, t], v[:, t] - read)
        o[:, t] = torch.einsum("bhk,bhkv->bhv", q[:, t] * x.factor, S)
    return o, S


@pytest.mark.parametrize("rate", ["logits", "doubled"])
@pytest.mark.parametrize("gate", [{}, {"gate": "bounded", "lower_bound": -5.0}], ids=["softplus", "bounded"])
def test_the_reference_is_the_naive_form_with_the_flags_of_fla(gate, rate):
    x = case(lengths=None, tail=0, B=2, N=30, v_first=False, rate=rate, **gate).operation()
    got = ref_operation(x)
    o, state = in_torch(x)
    assert np.allclose(got.o, o.numpy(), rtol=0, atol=1e-12)
    assert np.allclose(got.final_state, state.numpy(), rtol=0, atol=1e-12)


def test_the_scale_is_that_of_fla_where_none_is_given():
    assert case(scale=None).operation().factor == float(np.float32(32**-0.5))


def test_tokens_of_no_sequence_and_empty_sequences():
    x = case().operation()
    got = ref_operation(x)
    assert np.isnan(got.o[:, 23:]).all()
    assert not np.isnan(got.o[:, :23]).any()
    assert np.array_equal(got.final_state[1:3], x.initial_state[1:3])
    for name in ("q", "k", "v", "g", "beta"):  # which may hold anything
        getattr(x, name)[:, 23:] = np.nan
    assert np.array_equal(ref_operation(x).o, got.o, equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cu_seqlens": np.array([0, 3, 2])},
            r"cu_seqlens is \[0, 3, 2\]; expected to ascend from 0",
        ),
        ({"cu_seqlens": np.array([0, 26])}, r"expected to ascend from 0 to at most N = 25"),
        ({"beta": np.zeros((1, 25, 5))}, r"beta has shape \(1, 25, 5\); expected \(1, 25, 6\)"),
        ({"initial_state": np.zeros((4, 6, 32, 16))}, r"initial_state has shape .* expected \(4, 6, 16, 32\)"),
        ({"A_log": None}, r"A_log is None; expected one for gate softplus"),
        ({"gate": "bounded"}, r"lower_bound is None; expected a number below 0"),
        ({"gate": "log", "A_log": None, "dt_bias": None}, r"g is \d.*; the gate is a natural logarithm"),
        ({"rate": "value"}, r"beta is between -\d.* expected 0 <= beta <= 2"),
        ({"rate": "sigmoid"}, r"rate is 'sigmoid'; expected one of value, logits, doubled"),
        ({"scale": float("nan")}, r"scale is nan; expected a number"),
    ],
    ids=lambda changes: "-".join(changes) if isinstance(changes, dict) else "",
)
def test_what_cannot_be_computed_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ref_operation(case().operation().replace(**changes))


# The line


@quick(200)
@given(operations(EVERY))
def test_a_line_holds_its_case(case):
    assert OperationCase.parse(str(case)) == case
    assert case_of(str(case)) == case


def test_a_line_leaves_out_what_is_usual():
    assert str(OperationCase()) == "op1"
    assert str(case()) == LINE.format(dtype="f32")
    assert case_of("v1,N=3") == Case.parse("v1,N=3")


GOLDEN = {
    "op1": "be704ba89852fcf7",
    LINE.format(dtype="bf16"): "5a1f6826174d3ca0",
    "op1,B=2,N=9,gate=bounded,lower_bound=-5.0,rate=logits,g=small_int:100,beta=small_int:8,"
    "dt_bias=constant:1.0": "fa6404adfbdab046",
    "op1,N=5,normalise=1,q=gauss,k=gauss,rows=holes:0.3,v=wide:4,state=large:64.0,seed=3": "0a210e78bcfd0518",
}


@pytest.mark.parametrize("line", GOLDEN, ids=["plain", "packed", "bounded", "dense"])
def test_inputs_have_not_changed(line):
    x = OperationCase.parse(line).operation()
    digest = hashlib.sha256()
    for name in ("q", "k", "v", "g", "beta", "initial_state", "A_log", "dt_bias"):
        array = getattr(x, name)
        if array is not None:
            digest.update(repr(array.shape).encode() + (array + 0.0).astype("<f8").tobytes())
    assert digest.hexdigest()[:16] == GOLDEN[line], (
        "Undo the change, or raise kda.operation_case.OPERATION_VERSION and these checksums with it"
    )


def test_a_sequence_has_the_tokens_of_a_dense_one():
    packed = case(tail=0, state="none").operation()
    dense = case(lengths=None, tail=0, B=4, N=20, state="none").operation()
    for name in ("q", "k", "v", "g", "beta"):
        assert np.array_equal(getattr(packed, name)[0, 3:], getattr(dense, name)[3])


def test_the_raw_inputs_are_their_formats():
    x = case(dtype="bf16", g_dtype="bf16").operation()
    assert BF16.holds(x.q)
    assert BF16.holds(x.g)
    assert F32.holds(x.beta)
    assert not BF16.holds(x.beta)
    tensors = tensors_of(x)
    assert tensors["g"].dtype == torch.bfloat16
    assert np.array_equal(tensors["g"].double().numpy(), x.g)
    assert tensors["cu_seqlens"].tolist() == [0, 3, 3, 3, 23]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("op2", "expected op1"),
        ("op1,H=0", "H is 0; expected an integer in 1"),
        ("op1,lengths=0", "lengths and tail hold no token"),
        ("op1,lengths=3,N=3", "expected lengths alone"),
        ("op1,lengths=x", "lengths holds 'x'"),
        ("op1,tail=1", "tail is 1; expected 0 without lengths"),
        ("op1,gate=softplus", "A_log is none; expected another kind"),
        ("op1,gate=bounded", "lower_bound is None; expected one below 0"),
        ("op1,A_log=model", "A_log is given; expected none with gate=log"),
        ("op1,rate=logits,beta=one", "beta=one: no kind is called 'one'"),
        ("op1,rows=times:2.0", "rows is times:2.0; expected unit or holes unless normalise=1"),
        ("op1,scale=inf", "scale is inf; expected a number"),
        ("op1,dtype=f8", "dtype: dtype 'f8' is unknown"),
        ("op1,seed", "'seed' is no field"),
    ],
)
def test_a_line_that_means_nothing_is_refused(line, message):
    with pytest.raises(CaseError, match=message):
        OperationCase.parse(line)


# The budget


def worst(x: Operation, got: Outputs) -> float:
    judged = judge_operation(x, lambda inputs: FLOAT.judge(inputs, "c"))
    return max(verdict.ratio for verdict in compare(got, judged.outputs.plain(), judged.budget))


def test_the_budget_comes_with_the_reference():
    x = case().operation()
    judged, expected = judge_operation(x, lambda inputs: FLOAT.judge(inputs, "c")), ref_operation(x)
    assert np.allclose(judged.outputs.o, expected.o, rtol=0, atol=1e-13, equal_nan=True)
    assert np.allclose(judged.outputs.final_state, expected.final_state, rtol=0, atol=1e-13)
    assert judged.budget.o.shape == (1, 25, 6)
    assert not judged.budget.o[:, 23:].any()
    assert not judged.budget.final_state[1:3].any()
    assert (judged.budget.o[:, :23] > 0).all()


@quick(150)
@given(operations(EVERY))
def test_float32_stays_within_the_budget(case):
    x = case.operation()
    assert worst(x, FLOAT.run(x).plain()) <= 1


RAW = np.concatenate([np.linspace(-100, 100, 4001), [0.0, -1e-3, 1e-3, -88.0, -103.0, 88.7]])


def raw_operation(**changes) -> Operation:
    """One token per raw value, in float32."""
    n = len(RAW)
    x = case(lengths=None, tail=0, B=1, N=n, groups=1, H=1, DK=16, state="none", **changes).operation()
    return x.replace(
        g=np.broadcast_to(F32.round(RAW)[None, :, None, None], x.g.shape), beta=F32.round(RAW)[None, :, None]
    )


@pytest.mark.parametrize("bias", ["none", "constant:-5.0", "model"])
@pytest.mark.parametrize("A_log", ["constant:3.0", "constant:-4.0", "model"])
@pytest.mark.parametrize("gate", [{}, {"gate": "bounded", "lower_bound": -20.0}], ids=["softplus", "bounded"])
def test_float32_activations_err_by_no_more_than_is_said(gate, A_log, bias):
    x = raw_operation(A_log=A_log, dt_bias=bias, **gate)
    errors, plain = prologue_errors(x), processed(x)
    with np.errstate(over="ignore", under="ignore"):
        g, beta = FLOAT.gate(x), FLOAT.beta(x)
    # e^x below the normal numbers of float32 may be gone: nothing that a decay would show.
    assert (np.abs(g - plain.g) <= errors.g + 64 * F32.min_normal).all()
    assert (np.abs(beta - plain.beta) <= errors.beta).all()
    if x.gate == "softplus":  # nor is it said too loosely: a few roundoffs for each of x log2(e), and a few
        size = np.abs(plain.g) * (60 + 30 * np.abs(RAW)[None, :, None, None]) * F32.unit_roundoff
        assert (errors.g <= size).mean() > 0.9


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("rows", ["unit", "wide:10", "times:0.001", "times:1e-05", "holes:0.3"])
def test_float32_rows_err_by_no_more_than_is_said(rows, dtype):
    x = case(dtype=dtype, lengths=None, tail=0, N=200, DK=256, rows=rows, groups=1).operation()
    errors, plain = prologue_errors(x), processed(x)
    for name in ("q", "k"):
        off = np.abs(FLOAT.rows(x, getattr(x, name).astype(np.float32)) - getattr(plain, name))
        assert (off <= getattr(errors, name)).all()
    if dtype != "f32":  # few are near enough to a tie to go either way
        assert (errors.k > 0).mean() < 0.05


@pytest.mark.parametrize("name", ["q", "k", "g", "beta"])
@pytest.mark.parametrize("gates", ["gauss:1.0", "constant:-20.0", "small_int:100"])
def test_errors_are_carried_through_the_recurrence(name, gates):
    x = case(lengths=None, tail=0, B=1, N=40, g=gates, rows="unit").operation()
    plain, errors = processed(x), prologue_errors(x)
    (part,) = parts(x)
    inputs, of_part = inputs_of(plain, part), errors.of(part)
    alone = type(of_part)(*(e if n == name else 0 * e for n, e in vars(of_part).items()))
    budget = carried_errors(inputs, alone)
    exact, rng, closest = ref_A_fast(inputs), np.random.default_rng(0), 0.0
    for signs in ("same", "random", "random", "random"):
        size = 1.0 if signs == "same" else rng.choice([-1.0, 1.0], getattr(alone, name).shape)
        moved = getattr(inputs, name) + size * getattr(alone, name)
        limits = {"g": (-np.inf, 0.0), "beta": (0.0, 2.0)}.get(name, (-np.inf, np.inf))
        got = ref_A_fast(inputs.replace(**{name: np.clip(moved, *limits)}))
        verdicts = compare(got, exact, budget)
        closest = max(closest, *(v.ratio for v in verdicts))
    assert 0.02 < closest <= 1 + 1e-4  # of first order


MISTAKES = {
    "epsilon": (
        {"rows": "times:0.001"},
        {"root": lambda self, total: np.sqrt(total + np.float32(1e-5))},
    ),
    "epsilon outside the root": (
        {"rows": "times:0.001"},
        {"root": lambda self, total: np.sqrt(total) + np.float32(1e-6)},
    ),
    "rows in half precision": (
        {},
        {"rows": lambda self, x, rows: F16.round(FLOAT.rows(x, rows)).astype(np.float32)},
    ),
    "log of a rounded 1 + e^x": (
        {"g": "constant:-12.0", "A_log": "constant:3.0", "dt_bias": "none", "beta": "constant:-100.0"},
        {"softplus": lambda self, raw: np.log(np.float32(1) + np.exp(raw))},
    ),
    "a bias of the wrong head": ({}, {"bias": lambda self, x: np.roll(x.dt_bias, 1, axis=0).astype(np.float32)}),
    "gates in half precision": ({}, {"gate": lambda self, x: F16.round(FLOAT.gate(x)).astype(np.float32)}),
    "betas in bfloat16": ({}, {"beta": lambda self, x: BF16.round(FLOAT.beta(x)).astype(np.float32)}),
    "beta not doubled": ({}, {"beta": lambda self, x: FLOAT.beta(x) / 2}),
    "the wrong heads": ({}, {"heads": lambda self, x: np.arange(x.v.shape[2]) % (x.v.shape[2] // x.groups)}),
    "o without a scale": ({}, {"stored": lambda self, x, o: x.dtype.round(o)}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_exceeds_the_budget(name):
    changes, methods = MISTAKES[name]
    x = case(**changes).operation()
    assert worst(x, FLOAT.run(x).plain()) <= 1
    assert worst(x, with_mistake(**methods).run(x).plain()) > 1.5
