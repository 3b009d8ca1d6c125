"""`kda_forward` as PyTorch sees it: what it takes, what it refuses, where it writes, and that it waits for nothing."""

import dataclasses
import functools
import inspect
import itertools
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from torch.nn.functional import logsigmoid, normalize, softplus

from kda import ops
from kda.cli import main
from kda.formats import BF16, F16, F32
from kda.kernels import engines
from kda.kernels.engines import ENGINES, choose
from kda.kernels.form import Form
from kda.kernels.hopper import launching as hopper
from kda.kernels.launch import entry
from kda.kernels.views import _as_strided, dense, viewed
from kda.malformed import refusal
from kda.ops import kda_forward
from kda.problem import InputError

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def tensors(B=1, N=20, H=2, HV=None, DK=16, DV=16, dtype=torch.float16, device="cpu", seed=0):
    """q, k, v, g, beta of a plain call."""
    random = torch.Generator().manual_seed(seed)
    HV = H if HV is None else HV

    def normal(*shape):
        return torch.randn(shape, generator=random)

    made = {
        "q": normalize(normal(B, N, H, DK), dim=-1).to(dtype),
        "k": normalize(normal(B, N, H, DK), dim=-1).to(dtype),
        "v": normal(B, N, HV, DV).to(dtype),
        "g": logsigmoid(normal(B, N, HV, DK) + 2),
        "beta": torch.sigmoid(normal(B, N, HV)),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def token_by_token(call):
    """An engine: the recurrence in float64, and every word of `Form` spelled out."""
    form, S = call.form, call.sequences
    repeats = call.v.shape[1] // call.q.shape[1]
    q, k, v, g, beta = (x.double() for x in (call.q, call.k, call.v, call.g, call.beta))
    if form.normalise:
        q, k = ((x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).to(call.q.dtype).double() for x in (q, k))
    q, k = (x.repeat_interleave(repeats, 1) for x in (q, k))
    if form.gate != "log":
        a = 1.0 if call.A_log is None else call.A_log.double().exp()[:, None]
        x = g if call.dt_bias is None else g + call.dt_bias
        g = -a * softplus(x) if form.gate == "softplus" else call.lower_bound * torch.sigmoid(a * x)
    if form.beta != "value":
        beta = torch.sigmoid(beta) * (2 if form.beta == "doubled" else 1)
    bounds = [s * call.length for s in range(S + 1)] if call.starts is None else call.starts.tolist()
    for s, (start, stop) in enumerate(itertools.pairwise(bounds)):
        state = torch.zeros(v.shape[1], q.shape[2], v.shape[2], dtype=torch.float64)
        if call.initial_state is not None:
            state = call.initial_state[s].double()
            state = state.mT if form.state_v_first else state
        for t in range(start, stop):
            state = g[t].exp()[..., None] * state
            written = beta[t][:, None] * (v[t] - torch.einsum("hd,hde->he", k[t], state))
            state = state + k[t][..., None] * written[:, None]
            call.o[t] = call.scale * torch.einsum("hd,hde->he", q[t], state)
        if call.final_state is not None:
            call.final_state[s] = state.mT if form.state_v_first else state


def use(monkeypatch, launch, name="double"):
    """Make `launch` the only engine there is, under a name."""
    module = ModuleType(name)
    module.launch = launch
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(engines, "ENGINES", (dataclasses.replace(ENGINES[-1], name=name, module=name),))


@pytest.fixture(autouse=True)
def _nothing_is_kept():
    """No plan of one test serves another."""
    yield
    ops._planned.cache_clear()
    hopper._planned.cache_clear()
    engines._function.cache_clear()


@pytest.fixture
def calls(monkeypatch):
    """What reaches the engine, which computes it token by token."""
    seen = []

    def launch(call):
        seen.append(call)
        token_by_token(call)

    use(monkeypatch, launch)
    return seen


# The signature

#: `chunk_kda` of flash-linear-attention 0.6.0, without what kda_forward does not take: names, order and defaults.
FLA = {
    "q": inspect.Parameter.empty,
    "k": inspect.Parameter.empty,
    "v": inspect.Parameter.empty,
    "g": inspect.Parameter.empty,
    "beta": inspect.Parameter.empty,
    "scale": None,
    "initial_state": None,
    "output_final_state": False,
    "use_qk_l2norm_in_kernel": False,
    "use_gate_in_kernel": False,
    "use_beta_sigmoid_in_kernel": False,
    "allow_neg_eigval": False,
    "safe_gate": False,
    "lower_bound": None,
    # From here on by name alone: there, disable_recompute comes next.
    "state_v_first": False,
    "cu_seqlens": None,
    "A_log": None,
    "dt_bias": None,
}
OURS = {"out": None, "final_state": None, "check": False, "engine": None}


def test_names_order_and_defaults_are_flas():
    parameters = [p for p in inspect.signature(kda_forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert {p.name: p.default for p in parameters} == FLA | OURS
    assert [p.name for p in parameters] == [*FLA, *OURS]
    by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_place == list(FLA)[: list(FLA).index("state_v_first")]


def test_nothing_is_imported_for_a_kernel_before_a_call():
    code = (
        "import sys, kda.ops; print(sorted(m for m in sys.modules if m in ('tilelang', 'tvm', 'triton', 'hypothesis')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# What reaches an engine


def test_a_plain_call(calls):
    given = tensors(B=2, N=5, H=2, HV=6, DK=16, DV=32)
    o, state = kda_forward(**given)
    assert state is None
    assert o.shape == (2, 5, 6, 32)
    assert o.dtype is torch.float16
    (call,) = calls
    assert call.form == Form(F16, initial_state=False, final_state=False)
    assert (call.sequences, call.length, call.scale, call.lower_bound) == (2, 5, 0.25, 0.0)
    assert [call.A_log, call.dt_bias, call.starts, call.initial_state, call.final_state] == [None] * 5
    for name, tensor in given.items():
        assert torch.equal(getattr(call, name), tensor.flatten(0, 1)), name
    assert call.o.data_ptr() == o.data_ptr()


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({}, {}),
        ({"safe_gate": True}, {}),
        ({"safe_gate": True, "lower_bound": -5.0}, {}),
        ({"lower_bound": 0.0}, {}),  # of gates that come as they are, it promises what nothing here needs
        ({"output_final_state": True}, {"final_state": True}),
        ({"final_state": torch.zeros(1, 2, 16, 16)}, {"final_state": True}),
        ({"initial_state": torch.zeros(1, 2, 16, 16)}, {"initial_state": True}),
        ({"state_v_first": True}, {"state_v_first": True}),
        ({"cu_seqlens": torch.tensor([0, 3, 20])}, {"packed": True}),
        ({"use_qk_l2norm_in_kernel": True}, {"normalise": True}),
        ({"use_beta_sigmoid_in_kernel": True}, {"beta": "logits"}),
        ({"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}, {"beta": "doubled"}),
        ({"use_gate_in_kernel": True, "A_log": torch.zeros(2)}, {"gate": "softplus"}),
        ({"use_gate_in_kernel": True, "lower_bound": -5}, {"gate": "bounded"}),
        ({"use_gate_in_kernel": True, "lower_bound": -5.0, "A_log": torch.zeros(2)}, {"gate": "bounded"}),
        ({"use_gate_in_kernel": True, "lower_bound": -9.0, "safe_gate": True}, {"gate": "bounded"}),
        ({"g": torch.zeros(1, 20, 2, 16).half()}, {"g_format": F16}),
        ({"beta": torch.zeros(1, 20, 2).half()}, {"beta_format": F16}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_every_option_is_one_word_of_the_form(calls, options, form):
    kda_forward(**tensors() | options)
    assert calls[0].form == Form(F16, **{"initial_state": False, "final_state": False} | form)


@pytest.mark.parametrize("operand", [F16, BF16, F32], ids=str)
def test_the_operand_format_is_that_of_q(calls, operand):
    o, _ = kda_forward(**tensors(dtype=getattr(torch, operand.name)))
    assert calls[0].form.operand is operand
    assert o.dtype is getattr(torch, operand.name)


def test_numbers_and_small_tensors(calls):
    bias = torch.arange(32.0)
    options = {"use_gate_in_kernel": True, "A_log": torch.ones(2).bfloat16(), "lower_bound": -5, "scale": 2}
    for dt_bias in (bias, bias.view(2, 16), bias.half(), bias.view(2, 16).mT.contiguous().mT):
        kda_forward(**tensors(), **options, dt_bias=dt_bias, cu_seqlens=torch.tensor([0, 7, 7, 20]))
        call = calls.pop()
        assert (call.scale, call.lower_bound, call.sequences, call.length) == (2, -5, 3, 20)
        assert torch.equal(call.dt_bias, bias.view(2, 16))
        assert torch.equal(call.A_log, torch.ones(2))
        assert call.starts.dtype is torch.int32
        assert call.starts.tolist() == [0, 7, 7, 20]
        assert all(t.dtype is torch.float32 and t.is_contiguous() for t in (call.A_log, call.dt_bias))


def test_every_tensor_is_dense_and_aligned(calls):
    given = tensors()
    given["beta"] = given["beta"][..., :1].expand(1, 20, 2)
    expected = kda_forward(**given, initial_state=torch.ones(1, 2, 16, 16), output_final_state=True)
    for shift in (0, 3):  # elements between rows, or, at 0, one before the first alone
        views = {name: _viewed(t, shift) for name, t in given.items()}
        copies = {name: t.clone() for name, t in views.items()}
        state = _viewed(torch.ones(1, 2, 16, 16), shift)
        got = kda_forward(**views, initial_state=state, output_final_state=True)
        assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
        assert all(torch.equal(views[name], copies[name]) for name in views)
        call = calls.pop()
        for x in (call.q, call.k, call.v, call.g, call.beta, call.initial_state):
            assert x.is_contiguous()
            assert x.data_ptr() % 16 == 0


def test_what_is_kept_of_a_call_is_no_number_and_no_tensor(calls):
    """A call that looks like an earlier one computes what it is itself given."""
    options = GATED | {"initial_state": torch.zeros(1, 2, 16, 16), "cu_seqlens": torch.tensor([0, 20])}
    for seed, (scale, bound) in enumerate([(None, None), (2.0, -5.0), (0.5, -7.0), (None, -5.0)]):
        given = tensors(seed=seed) | {"initial_state": torch.full((1, 2, 16, 16), float(seed))}
        kda_forward(**options | given, scale=scale, lower_bound=bound)
        call = calls.pop()
        assert (call.scale, call.lower_bound) == (scale or 0.25, bound or 0.0)
        for name, tensor in given.items():
            assert torch.equal(getattr(call, name).flatten(), tensor.flatten()), name


@pytest.mark.parametrize("of", [viewed, _as_strided], ids=["fast", "anywhere"])
def test_a_view_lies_where_it_says(of):
    whole = torch.nn.Parameter(torch.arange(48.0))
    with torch.no_grad():
        part = whole[8:]
        view = of(part, *dense(2, 3, 4, offset=6))
    assert torch.equal(view, torch.arange(14.0, 38.0).view(2, 3, 4))
    assert view.data_ptr() == part.data_ptr() + 6 * part.element_size()
    assert view.is_contiguous()
    assert not view.requires_grad


def _viewed(tensor, shift):
    """The same values in a wider tensor, or, without a shift, one element after an aligned address."""
    if shift:
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + shift), torch.nan, dtype=tensor.dtype)
        view = wide[..., shift:]
    else:
        view = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
    return view.copy_(tensor)


# What it computes, by the engine that takes the call


def close(got, expected):
    """Whether two float32 results differ by what float32 loses."""
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def pieces(given, bounds):
    """The sequences of a packed call as calls of their own."""
    return [{name: t[:, start:stop] for name, t in given.items()} for start, stop in itertools.pairwise(bounds)]


@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize("engine", ["portable", "steps"])
def test_a_packed_call_is_its_sequences(state_v_first, engine):
    """By one engine: the choice of one depends on the lengths."""
    given = tensors(N=90, HV=4, DV=32)
    bounds = [0, 1, 18, 18, 82]
    states = torch.randn(4, 4, *((32, 16) if state_v_first else (16, 32)))
    options = {"state_v_first": state_v_first, "output_final_state": True, "engine": engine}
    o, final = kda_forward(**given, **options, initial_state=states, cu_seqlens=torch.tensor(bounds))
    for s, alone in enumerate(pieces(given, bounds)):
        expected, state = kda_forward(**alone, **options, initial_state=states[s : s + 1])
        assert torch.equal(o[:, bounds[s] : bounds[s + 1]], expected)
        assert torch.equal(final[s : s + 1], state)
    assert torch.equal(final[2], states[2])


def test_tokens_of_no_sequence_are_not_touched():
    given = tensors(N=40)
    out = torch.full((1, 40, 2, 16), 7.0).half()
    kda_forward(**given, out=out, cu_seqlens=torch.tensor([0, 3, 19]))
    assert not (out[:, :19] == 7).all()
    assert (out[:, 19:] == 7).all()


def test_grouped_heads_are_heads_repeated():
    given = tensors(HV=6, DV=32)
    repeated = given | {name: given[name].repeat_interleave(3, 2) for name in ("q", "k")}
    for got, expected in zip(*(kda_forward(**x, output_final_state=True) for x in (given, repeated)), strict=True):
        assert torch.equal(got, expected)


def test_no_state_is_a_state_of_zeros():
    given = tensors(DV=32)
    zeros = torch.zeros(1, 2, 16, 32)
    for got, expected in zip(
        kda_forward(**given, output_final_state=True),
        kda_forward(**given, output_final_state=True, initial_state=zeros),
        strict=True,
    ):
        assert torch.equal(got, expected)


RAW = torch.randn(1, 20, 2, 16, generator=torch.Generator().manual_seed(9))
LOGITS = RAW[..., 0]
A_LOG, DT_BIAS = torch.tensor([-1.0, 0.5]), torch.linspace(-2, 1, 32).view(2, 16)


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"scale": 0.5}, {"scale": 0.5}),
        ({"scale": None}, {"scale": 0.25}),
        (
            {"q": 3 * RAW, "k": RAW, "use_qk_l2norm_in_kernel": True},
            {"q": normalize(RAW, dim=-1), "k": normalize(RAW, dim=-1)},
        ),
        (
            {"g": RAW, "use_gate_in_kernel": True, "A_log": A_LOG},
            {"g": -A_LOG.exp()[:, None] * softplus(RAW)},
        ),
        (
            {"g": RAW, "use_gate_in_kernel": True, "A_log": A_LOG, "dt_bias": DT_BIAS},
            {"g": -A_LOG.exp()[:, None] * softplus(RAW + DT_BIAS)},
        ),
        (
            {"g": RAW, "use_gate_in_kernel": True, "A_log": A_LOG, "dt_bias": DT_BIAS.flatten(), "lower_bound": -3.0},
            {"g": -3 * torch.sigmoid(A_LOG.exp()[:, None] * (RAW + DT_BIAS))},
        ),
        (
            {"g": RAW, "use_gate_in_kernel": True, "lower_bound": -5.0, "safe_gate": True},
            {"g": -5 * torch.sigmoid(RAW)},
        ),
        ({"beta": LOGITS, "use_beta_sigmoid_in_kernel": True}, {"beta": torch.sigmoid(LOGITS)}),
        (
            {"beta": LOGITS, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
            {"beta": 2 * torch.sigmoid(LOGITS)},
        ),
    ],
    ids=["scale", "default-scale", "norm", "softplus", "bias", "bounded", "bounded-alone", "logits", "doubled"],
)
def test_an_option_is_what_it_says(options, plain):
    given = tensors(dtype=torch.float32) | {"output_final_state": True, "scale": 1.0}
    got, expected = kda_forward(**given | options), kda_forward(**given | plain)
    for x, y in zip(got, expected, strict=True):
        close(x, y)
    assert not torch.equal(got[0], kda_forward(**given)[0])


def test_states_are_transposed():
    given, state = tensors(DV=32), torch.randn(1, 2, 16, 32)
    o, final = kda_forward(**given, initial_state=state, output_final_state=True)
    options = {"state_v_first": True, "output_final_state": True}
    got, transposed = kda_forward(**given, **options, initial_state=state.mT.contiguous())
    assert torch.equal(got, o)
    assert torch.equal(transposed, final.mT)


def test_every_gate_is_safe():
    for gate in (0.0, -50.0, -1000.0):
        o, state = kda_forward(**tensors(N=70) | {"g": torch.full((1, 70, 2, 16), gate)}, output_final_state=True)
        assert torch.isfinite(o).all()
        assert torch.isfinite(state).all()


def test_the_readmes_example_runs():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    example = re.search(r"<!-- as a kernel -->\n(.*?)<!-- end -->", text, re.DOTALL).group(1)
    names = {}
    exec(textwrap.dedent(example), names)
    assert names["o"].shape == (2, 1, 4, 128)
    assert names["state"].shape == (2, 4, 128, 128)
    assert torch.isfinite(names["o"]).all()


# Nothing to do


@pytest.mark.parametrize("state", [None, torch.full((3, 2, 16, 16), 2.5)], ids=["none", "given"])
@pytest.mark.parametrize(
    ("sizes", "bounds"), [({"B": 3, "N": 0}, None), ({"N": 0}, [0, 0, 0, 0])], ids=["dense", "packed"]
)
def test_without_tokens_states_stay_what_they_were(calls, sizes, bounds, state):
    packed = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds)}
    o, final = kda_forward(**tensors(**sizes), **packed, initial_state=state, output_final_state=True, check=True)
    assert o.numel() == 0
    assert o.shape == tensors(**sizes)["v"].shape
    assert torch.equal(final, torch.zeros(3, 2, 16, 16) if state is None else state)
    assert final is not state
    assert not calls


def test_without_sequences_there_is_nothing(calls):
    o, final = kda_forward(**tensors(B=0), output_final_state=True, check=True)
    assert (o.shape, final.shape) == ((0, 20, 2, 16), (0, 2, 16, 16))
    given, out = tensors(N=4), torch.full((1, 4, 2, 16), 7.0).half()
    _, final = kda_forward(**given, cu_seqlens=torch.tensor([0]), out=out, output_final_state=True, check=True)
    assert (out == 7).all()
    assert final.shape == (0, 2, 16, 16)
    assert not calls


# Buffers


def test_buffers_are_written_and_returned():
    given = tensors()
    expected = kda_forward(**given, output_final_state=True)
    out, final = torch.full((1, 20, 2, 16), torch.nan).half(), torch.full((1, 2, 16, 16), torch.nan)
    got = kda_forward(**given, out=out, final_state=final)
    assert got[0] is out
    assert got[1] is final
    assert torch.equal(out, expected[0])
    assert torch.equal(final, expected[1])
    out.fill_(torch.nan)
    got = kda_forward(**given, out=out, output_final_state=True)
    assert got[0] is out
    assert torch.equal(out, expected[0])
    assert torch.equal(got[1], expected[1])


def test_fresh_outputs_are_new_each_time(calls):
    (one, state), (two, other) = (kda_forward(**tensors(), output_final_state=True) for _ in range(2))
    assert one.data_ptr() != two.data_ptr()
    assert state.data_ptr() != other.data_ptr()


def test_autograd_learns_that_a_buffer_has_changed(monkeypatch):
    use(monkeypatch, lambda call: None)
    weight = torch.ones(1, 20, 2, 16, dtype=torch.float16, requires_grad=True)
    out = torch.zeros(1, 20, 2, 16, dtype=torch.float16)
    product = (weight * out).sum()
    kda_forward(**tensors(), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_buffers_and_parameters_where_gradients_are_off(calls, mode):
    given = {name: torch.nn.Parameter(t) for name, t in tensors().items()}
    with mode():
        out, final = (torch.nn.Parameter(t) for t in (half(1, 20, 2, 16), torch.zeros(1, 2, 16, 16)))
        options = {"use_gate_in_kernel": True, "A_log": torch.nn.Parameter(torch.zeros(2))}
        kda_forward(**given, **options, out=out, final_state=final)
    assert out.any()
    (call,) = calls
    reached = (call.q, call.k, call.v, call.g, call.beta, call.A_log, call.o, call.final_state)
    assert not any(t.requires_grad for t in reached)  # which no kernel would take


def test_a_buffer_of_inference_mode_is_taken_outside_it():
    with torch.inference_mode():
        out = half(1, 20, 2, 16)
    kda_forward(**tensors(), out=out)
    assert torch.equal(out, kda_forward(**tensors())[0])


# What is refused


def half(*shape):
    return torch.zeros(*shape, dtype=torch.float16)


PACKED = {"cu_seqlens": torch.tensor([0, 5, 20])}
GATED = {"use_gate_in_kernel": True, "A_log": torch.zeros(2)}

REFUSED = {
    # Tensors
    "no-tensor": ({"q": [1.0]}, "q is a list; expected a torch.Tensor"),
    "missing": ({"beta": None}, "beta is a NoneType; expected a torch.Tensor"),
    "array": ({"cu_seqlens": [0, 20]}, "cu_seqlens is a list; expected a torch.Tensor"),
    "sparse": ({"v": half(1, 20, 2, 16).to_sparse()}, "v has layout sparse_coo; .*pass v.to_dense"),
    "gradient": (
        {"g": torch.zeros(1, 20, 2, 16, requires_grad=True)},
        "g requires a gradient and kda_forward has no backward pass; .* under torch.no_grad",
    ),
    "buffer-gradient": ({"out": half(1, 20, 2, 16).requires_grad_()}, "out requires a gradient"),
    "rank": ({"q": half(20, 2, 16)}, r"q has rank 3, shape \(20, 2, 16\); expected rank 4, \[B, N, H, DK\]$"),
    "rank-A_log": (
        GATED | {"A_log": torch.zeros(1, 1, 2, 1)},
        r"A_log has rank 4, .* expected rank 1, \[HV\] \(pass A_log.flatten\(\)\)",
    ),
    "axis": (
        {"g": torch.zeros(1, 20, 2, 32)},
        r"g has shape .* expected \[B, N, HV, DK\] = \(1, 20, 2, 16\) to agree with k and v \(axis DK differs\)",
    ),
    "q-shape": ({"q": half(1, 19, 2, 16)}, r"q has shape \(1, 19, 2, 16\); .* \(axis N differs\)"),
    "heads-first": (
        {"g": torch.zeros(1, 2, 20, 16)},
        r"g has shape .* \(tokens come before heads: pass g.transpose\(1, 2\)\)",
    ),
    "heads": (
        {"k": half(1, 20, 3, 16), "q": half(1, 20, 3, 16)},
        "v has 2 heads and k has 3; expected a multiple",
    ),
    "no-heads": ({"k": half(1, 20, 0, 16), "q": half(1, 20, 0, 16)}, "k has H = 0, shape .* expected at least 1"),
    "channels": (
        {"k": half(1, 20, 2, 24), "q": half(1, 20, 2, 24), "g": torch.zeros(1, 20, 2, 24)},
        "DK is 24; expected a multiple of 16 from 16 to 256",
    ),
    "value-channels": ({"v": half(1, 20, 2, 272)}, "DV is 272; expected a multiple of 16 from 16 to 256"),
    "q-dtype": ({"q": torch.zeros(1, 20, 2, 16).double()}, "q is float64; expected float16, bfloat16, float32"),
    "k-dtype": ({"k": torch.zeros(1, 20, 2, 16)}, "k is float32; expected float16, as q is"),
    "g-dtype": (
        {"g": torch.zeros(1, 20, 2, 16).bfloat16()},
        r"g is bfloat16; expected float32 or float16, as q is \(pass g.float\(\)\)",
    ),
    "beta-dtype": ({"beta": torch.zeros(1, 20, 2).int()}, "beta is int32; expected float32 or float16, as q is"),
    "A_log-dtype": (GATED | {"A_log": torch.zeros(2).double()}, "A_log is float64; expected float32"),
    "device": ({"v": half(1, 20, 2, 16).to("meta")}, r"v is on meta; expected cpu, as q is \(nothing is copied"),
    # States
    "state-shape": (
        {"initial_state": torch.zeros(1, 2, 16, 32)},
        r"initial_state has shape .* expected \[S, HV, DK, DV\] = \(1, 2, 16, 16\)",
    ),
    "state-layout": (
        {"v": half(1, 20, 2, 32), "initial_state": torch.zeros(1, 2, 32, 16)},
        r"initial_state has shape \(1, 2, 32, 16\); .* \(is it one of state_v_first=True\?\)",
    ),
    "state-first": (
        {"v": half(1, 20, 2, 32), "initial_state": torch.zeros(1, 2, 16, 32), "state_v_first": True},
        r"initial_state .* expected \[S, HV, DV, DK\] = \(1, 2, 32, 16\) .* \(is it one of state_v_first=False\?\)",
    ),
    "state-sequences": (
        PACKED | {"initial_state": torch.zeros(1, 2, 16, 16)},
        r"initial_state has shape .* = \(2, 2, 16, 16\) to agree .* \(axis S differs\)",
    ),
    "state-dtype": (
        {"initial_state": half(1, 2, 16, 16)},
        r"initial_state is float16; expected float32 \(pass initial_state.float\(\)\)",
    ),
    # Sequences
    "packed-batch": (
        {name: t.repeat(2, *[1] * (t.ndim - 1)) for name, t in tensors().items()} | PACKED,
        "q has B = 2 and cu_seqlens is given; expected B = 1, the sequences behind one another",
    ),
    "cu_seqlens-rank": ({"cu_seqlens": torch.tensor([[0, 20]])}, "cu_seqlens has rank 2"),
    "cu_seqlens-dtype": ({"cu_seqlens": torch.tensor([0.0, 20.0])}, "cu_seqlens is float32; expected int32 or int64"),
    "cu_seqlens-empty": ({"cu_seqlens": torch.zeros(0).int()}, "cu_seqlens has no entries"),
    "cu_seqlens-device": ({"cu_seqlens": torch.zeros(2).int().to("meta")}, "cu_seqlens is on meta; expected cpu"),
    # Options
    "no-bool": ({"output_final_state": 1}, "output_final_state is 1; expected True or False"),
    "scale-tensor": ({"scale": torch.tensor(0.5)}, "scale is a Tensor; expected a number of Python's"),
    "scale-bool": ({"scale": True}, "scale is True; expected a number"),
    "scale-nan": ({"scale": float("nan")}, "scale is nan; expected a finite number"),
    "no-A_log": ({"use_gate_in_kernel": True}, "use_gate_in_kernel is True, and A_log and lower_bound are None"),
    "unbounded": (GATED | {"safe_gate": True}, "safe_gate and use_gate_in_kernel are True and lower_bound is None"),
    "bound-above": (GATED | {"lower_bound": 5.0}, r"lower_bound is 5\.0; expected a finite number below 0"),
    "bound-zero": (GATED | {"lower_bound": 0.0}, r"lower_bound is 0\.0; expected a finite number below 0"),
    "bound-inf": (GATED | {"lower_bound": -float("inf")}, "lower_bound is -inf; expected a finite number below 0"),
    "bound-text": (GATED | {"lower_bound": "-5"}, "lower_bound is '-5'; expected a number"),
    "A_log-alone": ({"A_log": torch.zeros(2)}, "A_log is given and use_gate_in_kernel is False"),
    "dt_bias-alone": ({"dt_bias": torch.zeros(32)}, "dt_bias is given and use_gate_in_kernel is False"),
    "dt_bias-shape": (GATED | {"dt_bias": torch.zeros(16)}, r"dt_bias has shape \(16,\); .* = \(2, 16\)"),
    "no-logits": ({"allow_neg_eigval": True}, "allow_neg_eigval is True and use_beta_sigmoid_in_kernel is False"),
    "engine": ({"engine": "fast"}, "engine is 'fast'; expected 'steps', 'hopper', 'portable' or None"),
    "engine-type": ({"engine": 3}, "engine is 3; expected a name or None"),
    "engine-elsewhere": (
        {"engine": "hopper"},
        r"engine is 'hopper' and q is on a CPU; expected compute capability 9\.0 \(leave engine out",
    ),
    # Buffers
    "out-shape": ({"out": half(1, 20, 2, 32)}, r"out has shape .* expected \[B, N, HV, DV\] = \(1, 20, 2, 16\)"),
    "out-dtype": ({"out": torch.zeros(1, 20, 2, 16)}, "out is float32; expected float16, as q is"),
    "out-device": ({"out": half(1, 20, 2, 16).to("meta")}, "out is on meta; expected cpu"),
    "out-strided": ({"out": half(1, 20, 2, 32)[..., :16]}, "out has strides .* expected a contiguous buffer"),
    "out-unaligned": ({"out": half(641)[1:].view(1, 20, 2, 16)}, "out starts 2 bytes past a multiple of 16"),
    "final_state-shape": (
        {"final_state": torch.zeros(2, 2, 16, 16)},
        r"final_state has shape .* = \(1, 2, 16, 16\)",
    ),
    "final_state-dtype": ({"final_state": half(1, 2, 16, 16)}, "final_state is float16; expected float32"),
    # What only flash-linear-attention takes
    "chunk_size": ({"chunk_size": 64}, "chunk_size is given, which kda_forward does not take; leave it out"),
    "cp_context": ({"cp_context": object()}, "cp_context is given, .* hand the final state of one device's tokens"),
    "use_graph": ({"use_graph": True}, "use_graph is given, .* leave it out: every call can be captured"),
    "transposed": ({"transpose_state_layout": False}, "transpose_state_layout is given, .* say state_v_first"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(changes, message):
    error = refusal(lambda: kda_forward(**tensors() | changes))
    assert re.match(message, str(error)), str(error)
    assert "\n" not in str(error)


def test_what_is_refused_reaches_no_engine(calls):
    for changes, _ in REFUSED.values():
        with pytest.raises(InputError):
            kda_forward(**tensors() | changes)
    assert not calls


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "initial_state", "out"])
@pytest.mark.parametrize("buffer", ["out", "final_state"])
def test_a_buffer_is_no_part_of_another_argument(buffer, name):
    if buffer == name:
        return
    store = torch.zeros(4096, dtype=torch.float32)
    shapes = {"initial_state": (1, 2, 16, 16), "final_state": (1, 2, 16, 16), "beta": (1, 20, 2)}
    given = tensors() | {"initial_state": torch.zeros(1, 2, 16, 16)}
    for argument in (buffer, name):
        shape = shapes.get(argument, (1, 20, 2, 16))
        dtype = torch.float16 if argument in ("q", "k", "v", "out") else torch.float32
        given[argument] = store.view(dtype)[: torch.Size(shape).numel()].view(shape)
    first, second = ("final_state", "out") if name == "out" else (buffer, name)
    assert f"{first} shares memory with {second}" in str(refusal(lambda: kda_forward(**given)))


def test_a_buffer_beside_another_argument_is_taken(calls):
    store = torch.zeros(2, 1, 20, 2, 16, dtype=torch.float16)
    kda_forward(**tensors() | {"v": store[0], "out": store[1]})
    assert calls


@pytest.mark.parametrize("name", sorted(ops._NOT_TAKEN))
@pytest.mark.parametrize("value", [None, False])
def test_what_asks_for_nothing_is_taken(calls, name, value):
    if name != "transpose_state_layout":
        kda_forward(**tensors(), **{name: value})
        assert calls


def test_an_unknown_name_is_no_option():
    with pytest.raises(TypeError, match=r"^kda_forward\(\) got an unexpected keyword argument 'sclae'$"):
        kda_forward(**tensors(), sclae=1.0)


# check=True

SPOILT = {
    "nan": ({"v": (0, 3, 1, 7)}, float("nan"), "v is nan at batch 0, token 3, value head 1, value channel 7; every"),
    "infinite-gate": ({"g": (0, 3, 1, 7)}, -float("inf"), "g is -inf at batch 0, token 3, value head 1, channel 7"),
    "infinite-q": ({"q": (0, 19, 0, 0)}, float("inf"), "q is inf at batch 0, token 19, head 0, channel 0"),
    "positive-gate": ({"g": (0, 3, 1, 7)}, 0.5, r"g is 0\.5 at batch 0, token 3, value head 1, channel 7; the gate is"),
    "negative-beta": (
        {"beta": (0, 3, 1)},
        -0.5,
        r"beta is -0\.5 at batch 0, token 3, value head 1; expected 0 <= beta",
    ),
    "large-beta": ({"beta": (0, 3, 1)}, 2.5, r"beta is 2\.5 at .*; expected 0 <= beta <= 2 \(use_beta_sigmoid"),
    "state": ({"initial_state": (0, 1, 2, 3)}, float("nan"), "initial_state is nan at sequence 0, value head 1, cha"),
    "A_log": ({"A_log": (1,)}, float("nan"), "A_log is nan at value head 1; every value must be finite"),
    "dt_bias": ({"dt_bias": (1, 2)}, float("inf"), "dt_bias is inf at value head 1, channel 2"),
}


@pytest.mark.parametrize(("place", "value", "message"), SPOILT.values(), ids=SPOILT)
def test_a_wrong_value_is_found_where_it_is_looked_for(calls, place, value, message):
    ((name, at),) = place.items()
    given = tensors() | {"initial_state": torch.zeros(1, 2, 16, 16)}
    if name in ("A_log", "dt_bias"):
        given |= GATED | {"A_log": torch.zeros(2), "dt_bias": torch.zeros(2, 16)}
    kda_forward(**given, check=True)
    given[name][at] = value
    kda_forward(**given)
    assert len(calls) == 2
    error = refusal(lambda: kda_forward(**given, check=True))
    assert re.match(message, str(error)), str(error)
    assert len(calls) == 2


def test_raw_gates_and_logits_may_be_anything_finite(calls):
    raw = {"g": torch.full((1, 20, 2, 16), 40.0), "beta": torch.full((1, 20, 2), -7.0)}
    kda_forward(**tensors() | raw | GATED, use_beta_sigmoid_in_kernel=True, check=True)
    assert calls


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([1, 20], r"cu_seqlens\[0\] is 1; expected 0, where the first sequence begins"),
        ([0, 9, 7, 20], r"cu_seqlens\[2\] is 7 and cu_seqlens\[1\] is 9; expected them to ascend"),
        ([0, 9, 21], r"cu_seqlens\[2\] is 21; expected at most N = 20"),
    ],
    ids=["first", "order", "last"],
)
def test_sequences_out_of_order_are_found(calls, bounds, message):
    error = refusal(lambda: kda_forward(**tensors(), cu_seqlens=torch.tensor(bounds), check=True))
    assert re.match(message, str(error)), str(error)
    assert not calls


def test_tokens_of_no_sequence_may_hold_anything(calls):
    given = tensors()
    for tensor in given.values():
        tensor[:, 12:] = torch.nan
    kda_forward(**given, cu_seqlens=torch.tensor([0, 12]), check=True)
    assert calls
    assert "token 12" in str(refusal(lambda: kda_forward(**given, cu_seqlens=torch.tensor([0, 13]), check=True)))


# Waiting

READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__iter__")


@pytest.fixture
def unread(monkeypatch):
    """No value of any tensor may be read."""

    def read(self, *arguments):
        raise AssertionError("a value of a tensor was read")

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, read)


ALL_OPTIONS = {
    "use_gate_in_kernel": True,
    "A_log": torch.zeros(2),
    "dt_bias": torch.zeros(32),
    "use_beta_sigmoid_in_kernel": True,
    "use_qk_l2norm_in_kernel": True,
    "initial_state": torch.zeros(3, 2, 16, 16),
    "output_final_state": True,
    "cu_seqlens": torch.tensor([0, 3, 3, 20]),
}


@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["plain", "all"])
def test_no_value_is_read(options, unread):
    kda_forward(**tensors(), **options)
    out = half(1, 20, 2, 16)
    assert kda_forward(**tensors(), **options, out=out)[0] is out
    with pytest.raises(AssertionError, match="a value of a tensor was read"):
        kda_forward(**tensors(), **options, check=True)


# Launches


def test_a_compiled_kernel_is_entered_behind_its_front():
    """Where it makes none of its outputs, and lets one."""

    class Kernel:
        def __init__(self, outputs, **shown):
            self.adapter = SimpleNamespace(result_idx=outputs, **shown)

    shown = {"get_exportable_executable": lambda: {"main": print}}
    assert entry(Kernel([], **shown)) is print
    for other in (Kernel([1], **shown), Kernel([]), len):
        assert entry(other) is other


def test_what_lies_between_the_launches_is_of_one_call(monkeypatch):
    """Six tiles behind one another and a tensor of decays and betas, none of them shared with another call."""
    seen = []
    monkeypatch.setattr(hopper, "compiled_prep", lambda *_: lambda *x: seen.append(x[7:14]))
    monkeypatch.setattr(hopper, "compiled_walk", lambda *_: lambda *x: seen.append(x[:7]))
    use(monkeypatch, lambda call: hopper.launch(call, 64))
    for N in (70, 70, 200):
        kda_forward(**tensors(N=N, DK=128, DV=128))
    written, read = seen[::2], seen[1::2]
    assert [list(map(id, tiles)) for tiles in written] == [list(map(id, tiles)) for tiles in read]
    assert [sum(t.nbytes for t in tiles) for tiles in written] == [2 * chunks * 74624 for chunks in (2, 2, 4)]
    for tile in itertools.chain(*written):  # made by a function that checks no bounds
        assert tile.storage_offset() * tile.itemsize + tile.nbytes <= tile.untyped_storage().nbytes()
    lie = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for tiles in written for t in tiles)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(lie))


# The operator

OPERATOR = torch.ops.kda.forward.default


def operands(**options):
    """The arguments of the operator for a plain call with `options`."""
    arguments = {argument.name: None for argument in OPERATOR._schema.arguments}
    arguments |= {"output_final_state": False, "state_v_first": False, "normalise": False, "check": False}
    return tuple((arguments | {"gate": "log", "beta_form": "value"} | tensors() | options).values())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"output_final_state": True, "initial_state": torch.ones(1, 2, 16, 16)},
        {"out": half(1, 20, 2, 16)},
        {"out": half(1, 20, 2, 16), "final_state": torch.zeros(1, 2, 16, 16), "output_final_state": True},
        {"cu_seqlens": torch.tensor([0, 3, 20]), "scale": 0.5},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_it_is_an_operator_as_pytorch_wants_them(calls, options):
    results = torch.library.opcheck(OPERATOR, operands(**options))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_without_a_break(calls, backend):
    compiled = torch.compile(kda_forward, fullgraph=True, backend=backend)
    for options in (
        {"output_final_state": True},
        {"cu_seqlens": torch.tensor([0, 3, 20]), "output_final_state": True, "check": True},
        GATED | {"use_qk_l2norm_in_kernel": True, "scale": 0.5},
    ):
        given = tensors() | options
        for got, expected in zip(compiled(**given), kda_forward(**given), strict=True):
            assert (got is None and expected is None) or torch.equal(got, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_it_writes_to_buffers(calls, backend):
    @functools.partial(torch.compile, fullgraph=True, backend=backend)
    def around(out, final, **given):
        before = out + 1
        o, state = kda_forward(**given, out=out, final_state=final)
        return before, o * 2, state * 2

    given = tensors()
    expected = kda_forward(**given, output_final_state=True)
    out, final = half(1, 20, 2, 16), torch.zeros(1, 2, 16, 16)
    before, twice, twice_state = around(out, final, **given)
    assert (before == 1).all()
    for buffer, doubled, plain in zip((out, final), (twice, twice_state), expected, strict=True):
        assert torch.equal(buffer, plain)
        assert torch.equal(doubled, 2 * plain)


def test_one_compilation_serves_every_length(calls):
    torch.compiler.reset()
    made = []
    compiled = torch.compile(
        kda_forward, fullgraph=True, dynamic=True, backend=lambda g, _: made.append(g) or g.forward
    )
    for N in (20, 21, 40, 7):
        given = tensors(B=3, N=N, DV=32)
        assert torch.equal(compiled(**given)[0], kda_forward(**given)[0])
    assert len(made) == 1


def test_compiled_a_refusal_keeps_its_sentence(calls):
    compiled = torch.compile(kda_forward, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="k is float32; expected float16, as q is"):
        compiled(**tensors() | {"k": torch.zeros(1, 20, 2, 16)})
    assert not calls


def test_shapes_alone(calls):
    given = {name: t.to("meta") for name, t in tensors(HV=4, DV=32).items()}
    o, state = kda_forward(**given, state_v_first=True, output_final_state=True)
    assert (o.shape, o.dtype, o.device.type) == ((1, 20, 4, 32), torch.float16, "meta")
    assert (state.shape, state.dtype) == ((1, 4, 32, 16), torch.float32)
    with pytest.raises(InputError, match="beta has shape"):
        kda_forward(**given | {"beta": torch.zeros(1, 20, 2, device="meta")})
    assert not calls


def test_a_module_exports(calls):
    class Layer(torch.nn.Module):
        def forward(self, **given):
            return kda_forward(**given, output_final_state=True)

    exported = torch.export.export(Layer(), (), tensors())
    for got, expected in zip(exported.module()(**tensors()), Layer()(**tensors()), strict=True):
        assert torch.equal(got, expected)


def test_autocast_changes_nothing(calls):
    given = tensors(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, _ = kda_forward(**given)
    assert o.dtype is torch.float32
    assert torch.equal(o, kda_forward(**given)[0])


def test_what_has_no_rule_is_refused(calls):
    """A derivative that would be zero, or a batch that would be computed wrong, is never returned."""
    given = tensors()
    q = given.pop("q")

    def of(q):
        return kda_forward(q=q, **given)[0]

    for attempt, message in (
        (lambda: torch.func.vmap(of)(q[None]), "under vmap, .* make the mapped axis part of B"),
        (lambda: torch.func.grad(lambda q: of(q).float().sum())(q), "q requires a gradient"),
        (lambda: torch.func.jvp(of, (q,), (q,)), "q requires a gradient"),
    ):
        with pytest.raises(InputError, match=message):
            attempt()
    assert not calls


# Engines


def on_cuda(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    return torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "operand", "DK", "DV", "name"),
    [
        ((9, 0), BF16, 128, 128, "hopper"),
        ((9, 0), F16, 128, 128, "hopper"),
        ((9, 0), F32, 128, 128, "portable"),
        ((9, 0), BF16, 64, 128, "portable"),
        ((9, 0), BF16, 128, 256, "portable"),
        ((8, 0), BF16, 128, 128, "portable"),
        ((10, 0), BF16, 128, 128, "portable"),
    ],
)
def test_the_first_that_covers_the_call_takes_it(monkeypatch, capability, operand, DK, DV, name):
    device = on_cuda(monkeypatch, capability)
    assert choose(Form(operand), DK, DV, device).name == name
    assert choose(Form(operand), DK, DV, device, "portable").name == "portable"
    assert choose(Form(operand), DK, DV, torch.device("cpu")).name == "portable"
    for packed, few in ((False, 16), (True, 2)):
        form = Form(operand, packed=packed)
        assert choose(form, DK, DV, device, tokens=few).name == "steps"
        assert choose(form, DK, DV, device, tokens=few + 0.5).name == name


@pytest.mark.parametrize(
    ("capability", "operand", "DK", "DV", "reason"),
    [
        ((8, 0), BF16, 128, 128, r"q is on compute capability 8\.0; expected compute capability 9\.0"),
        ((9, 0), F32, 128, 128, "q is float32; expected float16, bfloat16"),
        ((9, 0), F16, 64, 128, "DK is 64; expected 128"),
        ((9, 0), F16, 128, 64, "DV is 64; expected 128"),
    ],
)
def test_an_engine_that_does_not_cover_the_call_says_why(monkeypatch, capability, operand, DK, DV, reason):
    device = on_cuda(monkeypatch, capability)
    with pytest.raises(InputError, match=rf"^engine is 'hopper' and {reason} \(leave engine out"):
        choose(Form(operand), DK, DV, device, "hopper")


def test_a_call_that_none_covers_is_refused():
    for name, DK, DV, device in (("DK", 8, 16, "cpu"), ("DV", 16, 512, "cpu"), ("q is on mps", 16, 16, "mps")):
        with pytest.raises(InputError, match=name):
            choose(Form(F16), DK, DV, torch.device(device))


def test_an_engine_is_named(calls):
    kda_forward(**tensors(), engine="double")
    assert calls


def test_the_engines_are_listed():
    lines = CliRunner().invoke(main, ["engines"]).stdout.splitlines()
    names = [engine.name for engine in ENGINES]
    rows = {line.split()[0]: line for line in lines if line.split()[:1] and line.split()[0] in names}
    assert list(rows) == names
    assert "16, 2 if packed" in rows["steps"]
    assert "compute capability 9.0" in rows["hopper"]
    assert "f16 bf16 f32" in rows["portable"]
    assert {name for name, row in rows.items() if "cpu" in row} == {"steps", "portable"}


# CUDA


def packed_on_cuda():
    given = tensors(N=200, DK=128, DV=128, device="cuda")
    small = {"A_log": torch.zeros(2), "dt_bias": torch.zeros(2, 128), "initial_state": torch.ones(3, 2, 128, 128)}
    given |= {name: tensor.cuda() for name, tensor in small.items()}
    bounds = torch.tensor([0, 50, 120, 200], device="cuda")
    options = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_qk_l2norm_in_kernel": True}
    return given | options | {"cu_seqlens": bounds, "output_final_state": True}


@CUDA
@pytest.mark.parametrize("engine", [None, "steps", "portable"])
def test_a_captured_call_replays_with_other_sequences(engine):
    given = packed_on_cuda() | {"engine": engine}
    kda_forward(**given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, state = kda_forward(**given)
    for bounds in ([0, 50, 120, 200], [0, 0, 200, 200], [0, 1, 65, 150]):
        given["cu_seqlens"].copy_(torch.tensor(bounds))
        o.zero_()
        graph.replay()
        expected, final = kda_forward(**given)
        assert torch.equal(o[:, : bounds[-1]], expected[:, : bounds[-1]])
        assert not o[:, bounds[-1] :].any()
        assert torch.equal(state, final)


@CUDA
@pytest.mark.parametrize("engine", [None, "steps", "portable"])
def test_nothing_waits_for_the_device(engine):
    given = packed_on_cuda() | {"engine": engine}
    kda_forward(**given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kda_forward(**given)
        with pytest.raises(RuntimeError, match="synchronizing"):
            kda_forward(**given, check=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@CUDA
def test_the_current_stream_is_used():
    """A call behind work that has not ended reads what that work writes."""
    given = packed_on_cuda()
    expected, _ = kda_forward(**given)
    late = given | {"v": torch.zeros_like(given["v"])}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        late["v"].copy_(given["v"])
        o, _ = kda_forward(**late)
    stream.synchronize()
    assert torch.equal(o, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_device_of_the_tensors_is_used():
    given = tensors(device="cuda:1")
    assert torch.cuda.current_device() == 0
    o, _ = kda_forward(**given)
    assert torch.cuda.current_device() == 0
    assert torch.equal(o.cpu(), kda_forward(**tensors(device="cuda:0"))[0].cpu())
