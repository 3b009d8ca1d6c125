"""`kda_forward` in every form: the bits of the mirror and of separate plain calls; nothing read or written outside."""

import inspect
import itertools
import re
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from kda.formats import BF16, F16, F32, F64, Format, format_named
from kda.kernels import bounds, exponential, forward
from kda.kernels.compile import COUNTS
from kda.kernels.exponential import exp2_on
from kda.kernels.form import BETAS, GATES, Call, Form
from kda.kernels.launch import (
    DTYPES,
    FORWARD,
    OUTPUT,
    check_tile,
    compiled_kernel,
    execute,
    parameters,
    run_kda_forward,
)
from kda.kernels.portable import TILES, launch, tile_for
from kda.mutation.lowering import lowered
from kda.problem import InputError, Inputs, Sizes, Tile
from kda.references.arithmetic import Arithmetic
from kda.references.forward import ref_forward
from kda.references.prologue import log_gate, normalised, rate, sigmoid, softplus

NARROW = pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)

#: Empty sequences, one of a single token, and ends inside a sub-chunk and at its border.
LENGTHS = (0, 1, 33, 0, 16, 47, 30)
#: What no kernel computes here, and every operand format holds.
UNTOUCHED = -7.0


def torch_type(form: Format) -> torch.dtype:
    return getattr(torch, form.name)


def tile(form: Form, C: int = 32) -> Tile:
    """Two chunks and more for most sequences, two blocks of value channels."""
    return Tile(C, 16, form.operand)


def call_of(
    form: Form,
    lengths=LENGTHS,
    H=2,
    groups=1,
    DK=32,
    DV=32,
    scale=1.0,
    A_log=True,
    dt_bias=True,
    before=3,
    after=5,
    seed=0,
) -> Call:
    """A call on random tensors; with `before` and `after` token rows of no sequence around them where it is packed."""
    random = np.random.default_rng(seed)
    if not form.packed:
        assert len(set(lengths)) == 1
        before = after = 0
    T, HV, S = before + sum(lengths) + after, H * groups, len(lengths)

    def tensor(shape, of: Format, size=1.0, centre=0.0):
        return torch.from_numpy(random.normal(centre, size, shape)).to(torch_type(of))

    q, k = (tensor((T, H, DK), form.operand, 3 if form.normalise else DK**-0.5) for _ in range(2))
    q[T // 2 :][:1, 0] = 0
    g = tensor((T, HV, DK), form.g_format, 3)
    if form.gate == "log":
        g = -g.abs()
        g[T // 3 :][:1] = -1000.0
    else:
        g[T // 3 :][:1], g[T // 2 :][:1] = 100.0, -100.0
    beta = tensor((T, HV), form.beta_format, 2)
    if form.beta == "value":
        beta = beta.abs().clamp(max=2)
    state = (S, HV, DV, DK) if form.state_v_first else (S, HV, DK, DV)
    starts = before + np.cumsum([0, *lengths])
    activated = form.gate != "log"
    return Call(
        form,
        q,
        k,
        v=tensor((T, HV, DV), form.operand),
        g=g,
        beta=beta,
        o=torch.full((T, HV, DV), UNTOUCHED, dtype=torch_type(form.operand)),
        sequences=S,
        length=0 if form.packed else lengths[0],
        scale=scale,
        A_log=tensor((HV,), F32, 0.5) if activated and A_log else None,
        dt_bias=tensor((HV, DK), F32) if activated and dt_bias else None,
        lower_bound=-5.0 if form.gate == "bounded" else 0.0,
        starts=torch.from_numpy(starts.astype(np.int32)) if form.packed else None,
        initial_state=tensor(state, F32) if form.initial_state else None,
        final_state=torch.full(state, torch.nan) if form.final_state else None,
    )


def copied(call: Call, **changes) -> Call:
    """The call with buffers of its own to write to."""
    final_state = None if call.final_state is None else torch.full_like(call.final_state, torch.nan)
    return replace(call, **({"o": torch.full_like(call.o, UNTOUCHED), "final_state": final_state} | changes))


def launched(call: Call, C: int = 32) -> Call:
    launch(call, tile(call.form, C))
    return call


def members(call: Call) -> list[slice]:
    """The token rows of each sequence."""
    ends = call.starts.tolist() if call.form.packed else [s * call.length for s in range(call.sequences + 1)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def plain(call: Call, s: int, **changes) -> Call:
    """Sequence s of `call` alone, dense, with buffers of its own."""
    rows = members(call)[s]
    of_tokens = {name: getattr(call, name)[rows].clone() for name in ("q", "k", "v", "g", "beta")}
    states = {
        name: None if getattr(call, name) is None else getattr(call, name)[s : s + 1].clone()
        for name in ("initial_state", "final_state")
    }
    o = torch.full_like(call.o[rows], UNTOUCHED)
    one = {"form": replace(call.form, packed=False), "starts": None, "sequences": 1, "length": rows.stop - rows.start}
    return replace(call, **({"o": o} | of_tokens | states | one | changes))


def same(call: Call, other: Call) -> bool:
    """Whether two calls have the same outputs, bit for bit; a poisoned final state is equal to none."""
    states = (call.final_state, other.final_state)
    return torch.equal(call.o, other.o) and (states == (None, None) or torch.equal(*states))


def assert_alone_among_others(call: Call, other: float, launched) -> None:
    """With all that is not sequence s at `other`, its rows and its state are the same, and no row of none is written.

    launched: runs the call that it is given, and returns it. s: each sequence in turn.
    """
    whole = launched(copied(call))
    of_none = torch.ones(len(call.o), dtype=bool)
    of_none[members(call)[0].start : members(call)[-1].stop] = False
    assert of_none.any()
    for s, rows in enumerate(members(call)):
        poisoned = {name: torch.full_like(getattr(call, name), other) for name in ("q", "k", "v", "g", "beta")}
        for name, tensor in poisoned.items():
            tensor[rows] = getattr(call, name)[rows]
        poisoned["initial_state"] = torch.full_like(call.initial_state, other)
        poisoned["initial_state"][s] = call.initial_state[s]
        got = launched(copied(call, **poisoned))
        assert torch.equal(got.o[rows], whole.o[rows]), s
        assert torch.equal(got.final_state[s], whole.final_state[s]), s
        assert (got.o[of_none] == UNTOUCHED).all()


def chunkwise(inputs: Inputs, precision: Format, exp2, scale: float):
    """`ref_forward` with the chunks of `tile`."""
    return ref_forward(inputs, 32, 16, precision, exp2, scale=scale)


def mirror(call: Call, reference=chunkwise) -> Call:
    """What `call` must give: the prologue, then the reference, sequence by sequence."""
    form = call.form
    machine = Arithmetic(form.operand, lambda x: exp2_on("c", x))

    def array(x):
        return None if x is None else x.float().numpy()

    def per_value_head(x):
        return np.repeat(x, call.v.shape[1] // call.q.shape[1], axis=1)

    def turned(state):
        return state.swapaxes(-1, -2) if form.state_v_first else state

    q, k = (normalised(machine, array(x)) if form.normalise else array(x) for x in (call.q, call.k))
    g = log_gate(machine, form.gate, array(call.g), array(call.A_log), array(call.dt_bias), call.lower_bound)
    arrays = {"q": per_value_head(q), "k": per_value_head(k), "v": array(call.v)}
    arrays |= {"g": g, "beta": rate(machine, form.beta, array(call.beta))}
    HV, DK, DV = call.v.shape[1], q.shape[-1], call.v.shape[-1]
    wanted = copied(call)
    for s, rows in enumerate(members(call)):
        state = np.zeros((HV, DK, DV)) if call.initial_state is None else turned(array(call.initial_state)[s])
        if rows.start < rows.stop:
            one = {name: x[None, rows].astype(np.float64) for name, x in arrays.items()}
            inputs = Inputs(**one, initial_state=state[None].astype(np.float64), dtype=form.operand)
            got = reference(inputs, form.operand, machine.exp2, scale=call.scale)
            wanted.o[rows] = torch.from_numpy(got.o[0]).to(wanted.o.dtype)
            state = got.final_state[0]
        if wanted.final_state is not None:
            wanted.final_state[s] = torch.from_numpy(np.ascontiguousarray(turned(state)))
    return wanted


# Every feature alone, and in pairs


FEATURES: dict[str, dict[str, object]] = {
    "plain": {},
    "packed": {"packed": True},
    "no-initial": {"initial_state": False},
    "no-final": {"final_state": False},
    "v-first": {"state_v_first": True},
    "norm": {"normalise": True},
    "softplus": {"gate": "softplus"},
    "bounded": {"gate": "bounded"},
    "logits": {"beta": "logits"},
    "doubled": {"beta": "doubled"},
    "narrow-g": {"g_format": F16},
    "narrow-beta": {"beta_format": F16},
}

#: Every value of every field beside every value of every other, in as few forms as a search found. The columns: those
#: of `Form`, narrow for g and beta in the operand format, then grouped heads, A_log, dt_bias and a scale other than 1.
PAIRS = """
    f32  packed  initial  -      v-first  norm  softplus  value    -       narrow  -        -      dt_bias  -
    f16  -       -        final  -        -     log       logits   -       -       grouped  A_log  -        scaled
    bf16 -       initial  final  v-first  norm  bounded   logits   narrow  narrow  grouped  -      -        scaled
    bf16 packed  -        -      -        -     bounded   doubled  narrow  narrow  -        A_log  dt_bias  -
    f32  -       initial  final  -        -     softplus  value    narrow  -       -        A_log  -        scaled
    f32  packed  -        -      v-first  norm  log       logits   narrow  -       grouped  -      dt_bias  -
    f16  packed  initial  final  v-first  norm  log       doubled  narrow  narrow  -        -      -        -
    bf16 -       -        -      v-first  norm  softplus  doubled  -       -       grouped  A_log  dt_bias  scaled
    f16  -       -        final  v-first  -     bounded   value    -       -       grouped  -      dt_bias  -
    f16  packed  initial  -      -        norm  softplus  logits   narrow  narrow  -        -      -        scaled
    f32  packed  initial  -      v-first  -     bounded   doubled  -       narrow  grouped  A_log  dt_bias  -
    bf16 packed  initial  -      -        -     log       value    narrow  -       -        A_log  -        -
"""
ROWS = [tuple(line.split()) for line in PAIRS.strip().splitlines()]


def of_row(row: tuple[str, ...]) -> Call:
    operand = format_named(row[0])
    packed, initial, final, v_first, norm = (word != "-" for word in row[1:6])
    g_format, beta_format = (operand if word == "narrow" else F32 for word in row[8:10])
    form = Form(operand, packed, initial, final, v_first, norm, row[6], row[7], g_format, beta_format)
    grouped, A_log, dt_bias, scaled = (word != "-" for word in row[10:])
    lengths = LENGTHS if packed else (49,) * 3
    groups, scale = 3 if grouped else 1, 0.17677669 if scaled else 1.0
    return call_of(form, lengths, 2, groups, scale=scale, A_log=A_log, dt_bias=dt_bias)


def test_the_rows_have_every_pair():
    columns = [sorted(set(column)) for column in zip(*ROWS, strict=True)]
    assert [len(c) for c in columns] == [3, 2, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2, 2, 2]
    assert set(columns[6]) == set(GATES)
    assert set(columns[7]) == set(BETAS)
    assert len(fields(Form)) == 10
    for i, j in itertools.combinations(range(len(columns)), 2):
        assert {(row[i], row[j]) for row in ROWS} == set(itertools.product(columns[i], columns[j])), (i, j)


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_the_kernel_has_the_mirrors_bits(row):
    call = launched(of_row(row))
    assert same(call, mirror(call))
    assert torch.isfinite(call.o).all()


@pytest.mark.parametrize("feature", FEATURES)
def test_one_feature_alone(feature):
    """The mirror's bits in another format than the rows have most of, and all heads in one group of two."""
    form = replace(Form(F16), **FEATURES[feature])
    call = launched(call_of(form, LENGTHS if form.packed else (35, 35), H=1, groups=2, scale=0.5))
    assert same(call, mirror(call))


# Against separate plain calls


FORMS = [
    *(Form(dtype, packed=True) for dtype in DTYPES),
    Form(BF16, packed=True, normalise=True, gate="softplus", beta="logits"),
]


@NARROW
def test_plain_is_run_kda_forward(dtype):
    call = launched(call_of(Form(dtype), (49, 49)))
    dense = [t.unflatten(0, (2, 49)) for t in (call.q, call.k, call.v, call.g, call.beta)]
    o, final_state = run_kda_forward(*dense, call.initial_state, C=32, block_DV=16)
    assert torch.equal(call.o, o.flatten(0, 1))
    assert torch.equal(call.final_state, final_state)


@pytest.mark.parametrize("form", FORMS, ids=["f16", "bf16", "f32", "raw"])
def test_packed_is_each_sequence_alone(form):
    call = launched(call_of(form, groups=2))
    for s, rows in enumerate(members(call)):
        alone = launched(plain(call, s))
        assert torch.equal(call.o[rows], alone.o), s
        assert torch.equal(call.final_state[s], alone.final_state[0]), s


def test_an_empty_sequence_hands_its_state_on():
    for changes in ({}, {"state_v_first": True}):
        call = launched(call_of(replace(Form(F16, packed=True), **changes)))
        empty = [s for s, length in enumerate(LENGTHS) if length == 0]
        assert torch.equal(call.final_state[empty], call.initial_state[empty])
    call = launched(call_of(Form(F16, packed=True, initial_state=False)))
    assert not call.final_state[empty].any()


@pytest.mark.parametrize("initial_state", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_no_tokens_at_all(packed, initial_state):
    form = Form(F16, packed=packed, initial_state=initial_state)
    call = launched(call_of(form, (0, 0, 0), before=0, after=0))
    assert torch.equal(call.final_state, call.initial_state if initial_state else torch.zeros_like(call.final_state))
    launched(call_of(replace(form, final_state=False), (0,), before=0, after=0))


def test_no_sequences():
    call = launched(call_of(Form(F16, packed=True), ()))
    assert (call.o == UNTOUCHED).all()


@pytest.mark.parametrize("other", [torch.nan, torch.inf])
@pytest.mark.parametrize("form", FORMS, ids=["f16", "bf16", "f32", "raw"])
def test_nothing_of_a_neighbour_is_read_or_written(form, other):
    assert_alone_among_others(call_of(form), other, launched)


def test_rows_of_another_sequence_keep_what_was_there():
    """A sequence writes its own rows: the others of the call are removed, and nobody writes theirs."""
    call = call_of(Form(F32, packed=True))
    for s, rows in enumerate(members(call)):
        starts = torch.tensor([rows.start, rows.stop], dtype=torch.int32)
        states = {"initial_state": call.initial_state[s : s + 1], "final_state": call.final_state[s : s + 1].clone()}
        got = launched(copied(call, starts=starts, sequences=1, **states))
        kept = torch.ones(len(call.o), dtype=bool)
        kept[rows] = False
        assert (got.o[kept] == UNTOUCHED).all()
        assert (got.o[rows] != UNTOUCHED).all()


@NARROW
@pytest.mark.parametrize("groups", [2, 3, 8])
def test_grouped_heads_are_heads_repeated(groups, dtype):
    call = launched(call_of(Form(dtype), (35, 35), H=2, groups=groups))
    repeated = {name: getattr(call, name).repeat_interleave(groups, 1) for name in ("q", "k")}
    assert same(call, launched(copied(call, **repeated)))
    other = {name: getattr(call, name).repeat(1, groups, 1) for name in ("q", "k")}
    assert not torch.equal(call.o, launched(copied(call, **other)).o)


def test_v_first_is_transposed():
    call = launched(call_of(Form(F16), (35, 35), DK=48))
    form = replace(call.form, state_v_first=True)
    states = {name: getattr(call, name).mT.contiguous() for name in ("initial_state", "final_state")}
    turned = launched(copied(call, form=form, **states))
    assert torch.equal(turned.o, call.o)
    assert torch.equal(turned.final_state.mT, call.final_state)


def test_no_state_is_a_state_of_zeros():
    call = call_of(Form(F16), (35, 35))
    zeros = launched(copied(call, initial_state=torch.zeros_like(call.initial_state)))
    none = launched(copied(call, form=replace(call.form, initial_state=False), initial_state=None))
    assert same(zeros, none)
    unasked = launched(copied(call, form=replace(call.form, final_state=False), final_state=None))
    assert torch.equal(unasked.o, launched(call).o)


def test_scale_multiplies_o_before_it_is_rounded():
    call = launched(call_of(Form(F32), (35, 35)))
    for scale in (0.5, 0.0883883461356163, -3.0, 1e-20):
        scaled = launched(copied(call, scale=scale))
        assert torch.equal(scaled.o, call.o * scale)
        assert torch.equal(scaled.final_state, call.final_state)
    large = call_of(Form(F16), (35, 35))
    large = replace(large, q=large.q * 256, v=large.v * 1024)
    small = launched(copied(large, scale=2.0**-10))
    assert torch.isinf(launched(large).o).any()
    assert torch.isfinite(small.o).all()


@NARROW
def test_the_norm_in_the_kernel_is_the_norm_before(dtype):
    call = launched(call_of(Form(dtype, normalise=True), (35, 35)))
    machine = Arithmetic(dtype)
    before = {n: torch.from_numpy(normalised(machine, getattr(call, n).float().numpy())) for n in ("q", "k")}
    before = {name: x.to(torch_type(dtype)) for name, x in before.items()}
    assert same(call, launched(copied(call, form=Form(dtype), **before)))


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_the_gate_in_the_kernel_is_the_gate_before(gate):
    call = launched(call_of(Form(F16, gate=gate), (35, 35)))
    machine = Arithmetic(F32, lambda x: exp2_on("c", x))
    arrays = [x.numpy() for x in (call.g, call.A_log, call.dt_bias)]
    before = torch.from_numpy(log_gate(machine, gate, *arrays, call.lower_bound))
    assert (before <= 0).all()
    assert same(call, launched(copied(call, form=Form(F16), g=before, A_log=None, dt_bias=None)))


@pytest.mark.parametrize("beta", ["logits", "doubled"])
def test_beta_in_the_kernel_is_beta_before(beta):
    call = launched(call_of(Form(F16, beta=beta), (35, 35)))
    before = torch.from_numpy(rate(Arithmetic(F32, lambda x: exp2_on("c", x)), beta, call.beta.numpy()))
    assert before.min() >= 0
    assert before.max() > (1 if beta == "doubled" else 0.9)
    assert same(call, launched(copied(call, form=Form(F16), beta=before)))


# The activations, against float64


WIDE = np.concatenate([np.linspace(-100, 100, 20001), np.geomspace(1e-30, 100, 500), -np.geomspace(1e-30, 100, 500)])


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_no_exponentials_are_asked_of_nobody(shape, monkeypatch):
    """The mirror has empty blocks, and CUDA launches no empty grid."""
    monkeypatch.setattr(exponential, "_kernel", lambda target: pytest.fail("launched"))
    assert exp2_on("c", np.empty(shape, np.float32)).shape == shape


def float32_error(function, exact, x=WIDE, least=1e-30) -> float:
    """The largest relative error of `function` on float32, in units of its roundoff, where the result is not tiny."""
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        got = function(Arithmetic(F32, lambda t: exp2_on("c", t)), x).astype(np.float64)
    wanted = exact(x.astype(np.float64))
    assert np.isfinite(got).all()
    seen = wanted > least
    assert (np.abs(got - wanted)[~seen] <= least).all()
    return float((np.abs(got - wanted) / wanted)[seen].max() / F32.unit_roundoff)


def test_softplus_is_as_exact_for_large_negative_arguments():
    """Of e^x, which for x = -69 is 69 u off by the rounding of x log2(e) alone: no more than that."""

    def exact(x):
        return np.logaddexp(0, x)

    for end in (1, 10, 69):
        assert float32_error(softplus, exact, WIDE[np.abs(WIDE) <= end]) < 6 + 2 * end
    assert float32_error(softplus, exact, WIDE[WIDE >= 0]) < 4
    in_float64 = softplus(Arithmetic(F64), WIDE)
    assert (np.abs(in_float64 - np.logaddexp(0, WIDE)) <= 1e-7 * np.logaddexp(0, WIDE)).all()


def test_sigmoid_is_right_from_end_to_end():
    def exact(x):
        return np.exp(-np.logaddexp(0, -x))

    assert float32_error(sigmoid, exact, WIDE[np.abs(WIDE) <= 69]) < 6 + 2 * 69
    assert float32_error(sigmoid, exact, WIDE[WIDE >= 0]) < 4
    with np.errstate(over="ignore"):
        ends = sigmoid(Arithmetic(F32), np.float32([-1000, -100, 100, 1000]))
    assert ends.tolist() == [0, 0, 1, 1]


def test_the_norm_is_that_of_float64():
    """And a row of zeros stays one."""
    rows = np.random.default_rng(0).normal(0, 3, (200, 128)).astype(np.float32)
    rows[0], rows[1] = 0, 1e-6
    wanted = rows / np.sqrt((rows.astype(np.float64) ** 2).sum(-1, keepdims=True) + 1e-6)
    got = normalised(Arithmetic(F32), rows)
    assert (np.abs(got - wanted) <= 8 * F32.unit_roundoff * np.abs(wanted)).all()
    np.testing.assert_allclose(normalised(Arithmetic(F64), rows.astype(np.float64)), wanted, rtol=1e-15)


# The launch


def test_every_size_has_a_tile_that_fits():
    for target in TILES:
        for dtype in DTYPES:
            for DK, DV in itertools.product(range(16, 257, 16), repeat=2):
                chosen = tile_for(dtype, DK, DV, target)
                check_tile(chosen, Sizes(1, 1, 1, DK, DV), target, FORWARD)
    for DK, DV, name in ((8, 16, "DK is 8"), (16, 272, "DV is 272"), (24, 16, "DK is 24")):
        with pytest.raises(InputError, match=f"^{name}; expected a multiple of 16 from 16 to 256"):
            tile_for(F16, DK, DV, "cuda")


def test_a_family_is_compiled_once():
    """Lengths, heads, sequences, scale, bounds, A_log and dt_bias are not part of it."""
    form = Form(F32, packed=True, gate="bounded")
    launch(call_of(form))
    before = COUNTS.compiles + COUNTS.cache_hits, COUNTS.launches
    launch(call_of(form, (5, 0, 100), H=3, groups=2, scale=2.0, A_log=False))
    launch(replace(call_of(form, (3,), H=1, dt_bias=False), lower_bound=-7.0))
    assert (COUNTS.compiles + COUNTS.cache_hits, COUNTS.launches) == (before[0], before[1] + 2)


def test_no_value_is_asked_for(monkeypatch):
    """What a GPU would be waited for."""
    call = call_of(Form(F16, packed=True, gate="softplus", beta="logits", normalise=True))
    launch(call)

    def asked(*_, **__):
        raise AssertionError("a value was asked for")

    for name in ("item", "tolist", "cpu", "nonzero", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, asked)
    launch(call)


def test_more_sequences_than_a_grid_has_blocks_along_y():
    """65,540 sequences of one token: the last is that of a call of its own."""
    call = launched(call_of(Form(F32, packed=True), (1,) * 65540, H=1, DK=16, DV=16, after=0), C=16)
    alone = launched(plain(call, 65539), C=16)
    assert torch.equal(call.o[-1:], alone.o)
    assert torch.equal(call.final_state[-1:], alone.final_state)
    assert (call.o[3:] != UNTOUCHED).any(-1).all()


def checked(call: Call) -> None:
    """Run `call` with every index into a tile checked; TileError where one is outside."""
    choice = tile(call.form)
    kernel = compiled_kernel(
        choice, call.q.shape[-1], call.v.shape[-1], "c", check_tiles=True, kernel=FORWARD, form=call.form
    )
    bounds.forget()
    execute(kernel, parameters(call), OUTPUT)
    outside = bounds.seen(kernel.get_kernel_source())
    assert outside is None, outside


@pytest.mark.parametrize("row", [ROWS[0], ROWS[2]], ids="-".join)
def test_no_index_leaves_its_tile(row):
    """And what is read was written: the results are those without checks."""
    call = of_row(row)
    checked(call)
    assert same(call, launched(copied(call)))


# CUDA


def cuda_source(form: str, choice: Tile, DK=64, DV=64) -> str:
    source = f"""{inspect.getsource(forward)}

def formed(on, DK, DV, C, block_DV, num_stages):
    return kda_forward(on, DK, DV, C, block_DV, num_stages, Form(on.format, {form}))
"""
    return lowered(source, "formed", "cuda", choice, DK, DV)


@pytest.mark.parametrize(
    ("form", "choice"),
    [
        ("packed=True, normalise=True, gate='softplus', beta='logits', g_format=on.format", Tile(32, 64, BF16, 128)),
        ("state_v_first=True, normalise=True, gate='bounded', beta='doubled'", Tile(16, 16, F32, 32)),
        ("packed=True, initial_state=False, final_state=False, beta_format=on.format", Tile(16, 32, F16, 32)),
    ],
)
def test_every_kind_of_form_lowers_for_cuda(form, choice):
    code = cuda_source(form, choice)
    assert "blockIdx.y" not in code
    assert "blockIdx.z" not in code
    assert "tf32" not in code.lower()
    assert ("sqrt" in code) == ("normalise" in form)


def test_offsets_have_64_bits():
    """In each index into global memory every factor is widened before it is multiplied."""
    code = cuda_source("packed=True, gate='softplus', g_format=on.format", Tile(16, 16, BF16, 32))
    tokens = [line for line in code.splitlines() if re.search(r"\b[QKVGO]\b *(\+|\[)", line) and "first" in line]
    assert len(tokens) >= 5
    for line in tokens:
        assert "((int64_t)first)" in line
        assert "((int64_t)HV)" in line or "((int64_t)H)" in line
