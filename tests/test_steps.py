"""`kda_steps`: the recurrence's own bits in every form, its budget, where it is chosen, code for CUDA."""

import functools
import inspect
import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from test_forms import (
    FEATURES,
    LENGTHS,
    ROWS,
    assert_alone_among_others,
    call_of,
    copied,
    members,
    mirror,
    of_row,
    plain,
    same,
)

from kda.case import Case
from kda.diagnosis.stages import first_wrong_stage
from kda.diagnosis.wrong import examined, wrong_run
from kda.formats import BF16, F16, F32, F64
from kda.implementations import implementation
from kda.implementations.builtin import STEP_TILES, KdaSteps
from kda.kernels import engines, steps, stepwise
from kda.kernels.compile import COUNTS
from kda.kernels.engines import choose
from kda.kernels.form import Form
from kda.kernels.launch import DTYPES, SHARED_MEMORY
from kda.kernels.stepwise import AT_ONCE, BLOCKS_DV, launch, shared_memory_steps, tile_for, with_threads
from kda.numerics.budget import doubling_units, mirror_units, operand_units
from kda.numerics.compare import all_finite, compare
from kda.numerics.operation import rounded_inputs_bound
from kda.numerics.steps import judge_recurrent
from kda.ops import kda_forward
from kda.problem import InputError, Inputs, Outputs, Tile
from kda.references import ref_A_fast, ref_steps
from kda.suite.laws import Subject, load_laws
from kda.support import Support, TileChoice
from strategies import wild_cases

KERNEL = implementation("kda_steps")
NARROW = pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
GATES = ("none", "uniform:0.9:0.999", "log:-1000.0", "spike:3:-1000.0", "alternating:-30.0", "channel:1e-30:1.0")
GATED = pytest.mark.parametrize("gate", GATES, ids=[gate.replace(":", "-") for gate in GATES])

BUSY = Case.parse("v1,N=21,DK=48,DV=32,C=8,beta=uniform:0.0:2.0,q=gauss,k=gauss,v=gauss,state=gauss,seed=7")


def ratio(got: Outputs, inputs: Inputs, units=operand_units, expected: Outputs | None = None) -> float:
    """Error over budget of the worst row."""
    judged = judge_recurrent(inputs, units(inputs, 1, inputs.dtype))
    return max(verdict.ratio for verdict in compare(got, expected or judged.outputs, judged.budget))


# The mirror


@given(wild_cases(Support(dtypes=(F64,), tiles=(TileChoice(16, 16, 16),), max_beta=2.0)))
@settings(max_examples=60)
def test_in_float64_the_mirror_is_the_recurrence(wild):
    """For any gate down to -1000 per token."""
    inputs = wild.inputs()
    got, expected = ref_steps(inputs), ref_A_fast(inputs)
    for mine, theirs in ((got.o, expected.o), (got.final_state, expected.final_state)):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-13 * max(1.0, np.abs(theirs).max()))


def one_number_at_a_time(inputs: Inputs, precision) -> Outputs:
    """The program's arithmetic on NumPy scalars: every rounding and the order of every sum."""
    f32, sizes = np.float32, inputs.sizes
    o, state = np.zeros(sizes.shape("o")), inputs.state()

    def dot(x, y):
        total = f32(0)
        for left, right in zip(x, y, strict=True):
            total = f32(total + f32(left * right))
        return total

    for b, h, e in itertools.product(range(sizes.B), range(sizes.H), range(sizes.DV)):
        S = [f32(x) for x in state[b, h, :, e]]
        for t in range(sizes.N):
            q, k, g = ([f32(x) for x in tensor[b, t, h]] for tensor in (inputs.q, inputs.k, inputs.g))
            v, beta = f32(inputs.v[b, t, h, e]), f32(inputs.beta[b, t, h])
            a = [f32(np.exp2(np.float64(f32(x * f32(1.4426950408889634))))) for x in g]
            S = [f32(x * decay) for x, decay in zip(S, a, strict=True)]
            w = f32(beta * f32(v - dot(k, S)))
            S = [f32(x + f32(key * w)) for x, key in zip(S, k, strict=True)]
            o[b, t, h, e] = precision.round(np.float64(dot(q, S)))
        state[b, h, :, e] = S
    return Outputs(o, state)


@NARROW
@GATED
def test_the_mirror_rounds_where_the_program_rounds(gate, dtype):
    inputs = BUSY.replace(N=9, DK=3, DV=2, gate=gate, dtype=dtype).inputs()
    assert ref_steps(inputs, dtype).equals(one_number_at_a_time(inputs, dtype))


# The program


@NARROW
@GATED
def test_the_program_has_the_mirrors_bits(gate, dtype):
    one = BUSY.replace(gate=gate, dtype=dtype)
    inputs = one.inputs()
    got = KERNEL.run(inputs, one.tile, "c")
    assert got.equals(ref_steps(inputs, dtype, KERNEL.exp2("c")))
    assert all_finite(got)
    assert ratio(got, inputs) <= 1


@pytest.mark.parametrize(("C", "block_DV"), [(1, 32), (3, 16), (16, 16), (64, 32)])
def test_neither_the_tokens_at_once_nor_the_block_touch_a_bit(C, block_DV):
    inputs = BUSY.inputs()
    got = KERNEL.run(inputs, BUSY.replace(C=C, block_DV=block_DV).tile, "c")
    assert got.equals(KERNEL.run(inputs, BUSY.tile, "c"))


@NARROW
def test_channels_up_to_256(dtype):
    one = BUSY.replace(DK=256, DV=256, block_DV=64, gate="channel:1e-30:1.0", dtype=dtype)
    inputs = one.inputs()
    got = KERNEL.run(inputs, one.tile, "c")
    assert got.equals(ref_steps(inputs, dtype, KERNEL.exp2("c")))
    assert ratio(got, inputs) <= 1


def launched(call):
    """With more tokens than a program loads at once in most sequences, and two blocks of value channels."""
    launch(call, Tile(8, 16, call.form.operand))
    return call


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_every_form_has_the_mirrors_bits(row):
    call = launched(of_row(row))
    assert same(call, mirror(call, ref_steps))
    assert torch.isfinite(call.o).all()


@pytest.mark.parametrize("feature", FEATURES)
def test_one_feature_alone(feature):
    form = replace(Form(F16), **FEATURES[feature])
    call = launched(call_of(form, LENGTHS if form.packed else (9, 9), H=1, groups=2, DK=48, scale=0.5))
    assert same(call, mirror(call, ref_steps))


FORMS = [
    Form(F16, packed=True),
    Form(BF16, packed=True, normalise=True, gate="softplus", beta="logits", state_v_first=True),
]


@pytest.mark.parametrize("form", FORMS, ids=["f16", "raw"])
def test_packed_is_each_sequence_alone_on_any_tile(form):
    call = launched(call_of(form, groups=2))
    for s, rows in enumerate(members(call)):
        alone = plain(call, s)
        launch(alone)
        assert torch.equal(call.o[rows], alone.o), s
        assert torch.equal(call.final_state[s], alone.final_state[0]), s


@pytest.mark.parametrize("other", [torch.nan, torch.inf])
@pytest.mark.parametrize("form", FORMS, ids=["f16", "raw"])
def test_nothing_of_a_neighbour_is_read_or_written(form, other):
    assert_alone_among_others(call_of(form), other, launched)


def test_an_empty_sequence_hands_its_state_on():
    for changes in ({}, {"state_v_first": True}):
        call = launched(call_of(replace(Form(F16, packed=True), **changes)))
        empty = [s for s, length in enumerate(LENGTHS) if length == 0]
        assert torch.equal(call.final_state[empty], call.initial_state[empty])


@pytest.mark.parametrize("initial_state", [False, True])
def test_no_tokens_at_all(initial_state):
    form = Form(F16, packed=True, initial_state=initial_state)
    call = launched(call_of(form, (0, 0, 0), before=0, after=0))
    assert torch.equal(call.final_state, call.initial_state if initial_state else torch.zeros_like(call.final_state))
    launched(call_of(form, ()))


@pytest.mark.parametrize("row", [ROWS[0], ROWS[2]], ids="-".join)
def test_no_index_leaves_its_tile(row):
    call = of_row(row)
    launch(call, Tile(8, 16, call.form.operand), check_tiles=True)
    assert same(call, launched(copied(call)))


def test_a_family_is_compiled_once_and_no_value_is_asked_for(monkeypatch):
    launch(call_of(FORMS[1]))
    before = COUNTS.compiles + COUNTS.cache_hits, COUNTS.launches
    others = call_of(FORMS[1], (5, 0, 40), H=3, groups=2, scale=2.0), call_of(FORMS[1], (3, 4), H=1, dt_bias=False)

    def asked(*_, **__):
        raise AssertionError("a value was asked for")

    for name in ("item", "tolist", "cpu", "nonzero", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, asked)
    for call in others:
        launch(call)
    assert (COUNTS.compiles + COUNTS.cache_hits, COUNTS.launches) == (before[0], before[1] + 2)


# The budget


def alone(**changes) -> Inputs:
    return BUSY.replace(**changes).inputs()


@NARROW
def test_the_budget_holds_and_is_near(dtype):
    """Of a narrow o the worst row comes near its own rounding; in f32, sums are seldom at their worst."""
    worst = []
    for seed, gate in itertools.product(range(12), GATES):
        inputs = alone(seed=seed, gate=gate, N=40, dtype=dtype, beta="uniform:0.0:2.0", k="positive")
        worst.append(ratio(ref_steps(inputs, dtype), inputs))
    assert max(worst) <= 1
    assert max(worst) > (0.02 if dtype is F32 else 0.4)


def test_a_long_sum_of_equal_terms_is_within_the_budget():
    """Each of 256 additions of the same number errs to the same side, eleven times what a law of square roots has."""
    inputs = alone(N=1, DK=256, q="equal", k="equal", state="none", dtype=F32, gate="none", beta="one")
    step = 1 / 16 + 2.0**-24
    for number in (step, 1 / 16 - 2.0**-26, 1.3 / 16):
        even = inputs.replace(q=np.full_like(inputs.q, np.float32(number)), k=np.full_like(inputs.k, 2.0**-4))
        assert ratio(ref_steps(even, F32), even) <= 1


@NARROW
def test_another_order_of_additions_stays_within_the_budget_of_the_mirror(dtype):
    ratios = []
    for seed in range(20):
        inputs = alone(seed=seed, gate="uniform:0.5:0.999", dtype=dtype)
        turned = inputs.replace(
            **{n: getattr(inputs, n)[..., ::-1] for n in "qkg"}, initial_state=inputs.initial_state[:, :, ::-1]
        )
        got = ref_steps(turned, dtype)
        got = Outputs(got.o, got.final_state[:, :, ::-1])
        ratios.append(ratio(got, inputs, mirror_units, ref_steps(inputs, dtype)))
    assert 0 < max(ratios) <= 1


#: Mistakes in the mirror: what is replaced, by what, and the share of cases that must leave the budget in f16.
MISTAKES = {
    "the state is kept in f16": ("S = S + k[t, ..., None] * w", "S = op(S + k[t, ..., None] * w)", 0.5),
    "what is written is rounded to f16": ("S = S + k[t, ..., None] * w", "S = S + k[t, ..., None] * op(w)", 0.5),
    "o before the update": (
        "            S = S + k[t, ..., None] * w\n            o[t] = op(",
        "            S, before = S + k[t, ..., None] * w, S\n            o[t] = op(0 * before.sum() + ",
        0.0,
    ),
    "no decay of what is recalled": ("S = S * a[t, ..., None]", "S, late = S, a[t, ..., None]", 0.5),
}


def mistaken(old: str, new: str):
    source = inspect.getsource(inspect.getmodule(ref_steps))
    assert source.count(old) == 1, old
    made: dict[str, object] = {}
    exec(compile(source.replace(old, new), "mistaken", "exec"), made)
    return made["ref_steps"]


@pytest.mark.parametrize("mistake", [name for name, (_, _, share) in MISTAKES.items() if share])
def test_what_rounds_more_leaves_the_budget(mistake):
    old, new, share = MISTAKES[mistake]
    wrong = mistaken(old, new)
    cases = [alone(seed=seed, gate="uniform:0.5:0.999", dtype=F16) for seed in range(10)]
    outside = sum(ratio(wrong(inputs, F16), inputs) > 1 for inputs in cases)
    assert outside >= share * len(cases)


@pytest.mark.parametrize("gate", ["log:-1000.0", "spike:5:-1000.0", "alternating:-1000.0"])
@NARROW
def test_no_gate_is_too_deep_for_the_judge(gate, dtype):
    inputs = alone(gate=gate, dtype=dtype)
    for units in (operand_units, mirror_units, doubling_units):
        judged = judge_recurrent(inputs, units(inputs, 1, dtype))
        assert all_finite(judged.outputs, judged.budget)
    judged = judge_recurrent(inputs, operand_units(inputs, 1, dtype))
    assert (judged.budget.o < 0.01 * np.linalg.norm(judged.outputs.o, axis=-1)).all()
    np.testing.assert_allclose(judged.outputs.o, ref_A_fast(inputs).o, rtol=0, atol=1e-14)


# Where it is chosen


@pytest.mark.parametrize(
    ("packed", "tokens", "name"),
    [(False, 1, "steps"), (False, 16, "steps"), (False, 17, "portable"), (True, 2, "steps"), (True, 2.1, "portable")],
)
def test_it_is_chosen_for_few_tokens(packed, tokens, name):
    form, device = Form(F16, packed=packed), torch.device("cpu")
    assert choose(form, 16, 16, device, tokens=tokens).name == name
    assert choose(form, 16, 16, device, "steps", tokens).name == "steps"
    assert choose(form, 16, 16, device, "portable", tokens).name == "portable"
    assert choose(form, 16, 16, device).name == "portable"


def given_call(B, N, lengths=None):
    random = torch.Generator().manual_seed(0)
    shapes = {"q": (B, N, 2, 16), "k": (B, N, 2, 16), "v": (B, N, 2, 16), "g": (B, N, 2, 16), "beta": (B, N, 2)}
    made = {name: 0.2 * torch.rand(shape, generator=random) for name, shape in shapes.items()}
    made |= {"g": -made["g"]} | {name: made[name].half() for name in "qkv"}
    if lengths is not None:
        made["cu_seqlens"] = torch.tensor([0, *itertools.accumulate(lengths)])
    return made


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ((3, 16), "steps"),
        ((1, 17), "portable"),
        ((1, 6, (1, 5, 0)), "steps"),
        ((1, 7, (1, 6, 0)), "portable"),
        ((1, 3, (3,)), "portable"),
    ],
)
def test_a_call_is_computed_by_what_its_lengths_choose(asked, name):
    """Chosen or asked for by name, it is the same engine and the same bits; the other one has others."""
    call = given_call(*asked)
    chosen, _ = kda_forward(**call)
    for each in ("steps", "portable"):
        o, _ = kda_forward(**call, engine=each)
        assert torch.equal(o, chosen) == (each == name), each
        torch.testing.assert_close(o, chosen, rtol=2e-3, atol=2e-3)


def test_without_it_every_call_has_an_engine(monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", tuple(e for e in engines.ENGINES if e.name != "steps"))
    assert choose(Form(F16), 16, 16, torch.device("cpu"), tokens=1).name == "portable"


def test_every_size_has_a_tile():
    for target, dtype, heads, tokens in itertools.product(BLOCKS_DV, DTYPES, (1, 10_000), (1, 2)):
        for DK, DV in itertools.product(range(16, 257, 16), repeat=2):
            tile = tile_for(dtype, DK, DV, target, heads, tokens, 132)
            assert DV % tile.block_DV == 0
            assert tile.threads == 2 * tile.block_DV
            assert tile.threads % 32 == 0
            assert shared_memory_steps(tile, DK) < SHARED_MEMORY / 4
    for DK, DV, name in ((8, 16, "DK is 8"), (16, 272, "DV is 272")):
        with pytest.raises(InputError, match=f"^{name}; expected a multiple of 16 from 16 to 256"):
            tile_for(F16, DK, DV, "cuda", 1, 1, 132)


def test_few_heads_get_narrow_blocks_and_one_token_is_loaded_alone():
    def chosen(heads, tokens):
        tile = tile_for(BF16, 128, 128, "cuda", heads, tokens, 132)
        return tile.block_DV, tile.C

    widths = {16: 16, 32: 16, 33: 32, 65: 32, 66: 64, 2048: 64}
    assert {heads: chosen(heads, 1) for heads in widths} == {heads: (width, 1) for heads, width in widths.items()}
    assert chosen(2048, 1.5) == chosen(2048, 16) == (64, AT_ONCE[1])


def test_an_edited_copy_is_an_implementation(tmp_path):
    (tmp_path / "mine.py").write_text(inspect.getsource(steps).replace("- sums[j]", "+ sums[j]"))
    mine = implementation(f"{tmp_path / 'mine.py'}:kda_steps")
    assert isinstance(mine, KdaSteps)
    assert mine.operations() == ()
    inputs = BUSY.inputs()
    assert not mine.run(inputs, BUSY.tile, "c").equals(KERNEL.run(inputs, BUSY.tile, "c"))


def test_a_failure_is_described(tmp_path):
    """Nobody knows its stages: a report says which rows are wrong, and no more."""
    (tmp_path / "wrong.py").write_text(inspect.getsource(steps).replace("- sums[j]", "+ sums[j]"))
    subject = Subject(implementation(f"{tmp_path / 'wrong.py'}:kda_steps"), "c", F16)
    law = load_laws(Path(__file__).parents[1] / "properties", "kernel")["kernel.matches_reference_A"]
    found = wrong_run(examined(law, subject, BUSY))
    assert found is not None
    staged = first_wrong_stage(found)
    assert staged.stage is None
    assert staged.instead


def test_it_is_under_the_laws_of_the_operation():
    assert [engine.name for engine in KERNEL.operations()] == ["steps"]
    inputs = alone(dtype=BF16)
    judged = KERNEL.operations()[0].judge(inputs, "c")
    assert max(v.ratio for v in compare(ref_steps(inputs, BF16), judged.outputs, judged.budget)) <= 1


# CUDA


@functools.cache
def source(form: Form, DK=128, DV=128, C=8, block_DV=64) -> str:
    """What TileLang makes of the program for sm_90a."""
    from kda.kernels import compile as compiling

    compiling.tilelang()
    from kda.kernels.dialect import CudaDialect

    on = CudaDialect(form.operand, with_threads(Tile(C, block_DV, form.operand)).threads)
    program = steps.kda_steps(on, DK, DV, C, block_DV, 0, form)
    return compiling.generated_source(program, {"kind": "cuda", "arch": "sm_90a"}, compiling.CUDA_PASSES)


def walk(code: str) -> list[str]:
    """The body of the loop over tokens that were loaded, without the numbers that tell variables apart."""
    (loop,) = re.findall(r"\n    for \(int r = 0;.*?\n    }\n", code, re.DOTALL)
    return [re.sub(r"(?<=[a-z_])_*\d+\b", "", line).strip() for line in loop.splitlines()[2:]]


LAYOUTS = pytest.mark.parametrize("v_first", [False, True], ids=["k-first", "v-first"])


@LAYOUTS
@pytest.mark.parametrize(("DK", "DV", "block_DV"), [(128, 128, 32), (128, 128, 16), (48, 80, 16), (256, 64, 32)])
def test_states_move_16_bytes_at_a_time(v_first, DK, DV, block_DV):
    code = source(Form(BF16, state_v_first=v_first), DK, DV, 8, block_DV)
    reads = [line for line in code.splitlines() if re.search(r"\bS_0 *[+\[]", line)]
    writes = [line for line in code.splitlines() if re.search(r"\bS_N *[+\[]", line)]
    assert reads
    assert writes
    assert all("*(float4*)(S_0 + " in line and "((int64_t)HV)" in line for line in reads), reads
    assert all(line.strip().startswith("*(float4*)(S_N + ") for line in writes), writes
    assert "mma" not in code


def test_no_form_changes_how_a_token_is_computed():
    """The sums of a token are the same lines in every form: what differs is behind or before them."""
    plain_walk = walk(source(Form(BF16)))
    assert [sum(word in line for line in plain_walk) for word in ("shfl_xor", "shfl_sync", "fmaf")] == [3, 1, 3]
    assert not any("syncthreads" in line for line in plain_walk)
    for form in (
        Form(BF16, state_v_first=True),
        Form(BF16, initial_state=False, final_state=False),
        Form(BF16, packed=True, normalise=True, gate="bounded", beta="doubled", g_format=BF16, beta_format=BF16),
    ):
        assert walk(source(form)) == plain_walk


@LAYOUTS
@pytest.mark.parametrize(("C", "block_DV"), [(1, 64), (8, 64), (8, 32), (8, 16)])
def test_no_branch_keeps_loads_from_travelling_together(v_first, C, block_DV):
    """Every access is known to be inside its tensor: a branch is about lanes, or about rows that o does not have."""
    code = source(Form(BF16, state_v_first=v_first), C=C, block_DV=block_DV)
    branches = re.findall(r"\bif \((.*)\) {", code)
    assert branches
    for branch in branches:
        assert set(re.findall(r"[A-Za-z_]\w*", branch)) <= {"int", "threadIdx", "x", "left"}, branch
    assert len(re.findall(r"\b__syncthreads\(\)", code)) == 2


@pytest.mark.parametrize("form", [Form(BF16), Form(F32, normalise=True)], ids=["bf16", "f32-norm"])
def test_the_shared_memory_is_at_most_that_of_its_tiles(form):
    """TileLang lays the scratch of the norm over other tiles where it can, and aligns each."""
    tile = Tile(8, 64, form.operand)
    starts = [int(x) for x in re.findall(r"buf_dyn_shmem \+ (\d+)", source(form))]
    assert starts
    assert max(starts) < shared_memory_steps(tile, 128) + 16 * len(starts)


def test_every_palette_tile_fits():
    for dtype in DTYPES:
        assert all(shared_memory_steps(Tile(t.C, t.block_DV, dtype), t.DK) < SHARED_MEMORY for t in STEP_TILES)
    assert stepwise.STEPS.program() is steps.kda_steps


# What the law of rotations allows


@pytest.mark.parametrize("names", [("q", "k"), ("initial_state",)], ids="-".join)
def test_inputs_that_are_rounded_once_more_are_bounded(names):
    """The worst of some cases comes near it; a state that no key touches errs by all that it is allowed."""
    ratios = []
    for seed in range(20):
        k = "positive" if "k" in names else "zeros"
        inputs = alone(seed=seed, gate="uniform:0.9:1.0", k=k, q="positive", dtype=BF16)
        random = np.random.default_rng(seed)
        units = {"q": BF16, "k": BF16, "initial_state": F32}
        exact = inputs.replace(
            **{n: getattr(inputs, n) * (1 + 0.999 * units[n].unit_roundoff * random.choice((-1, 1))) for n in names}
        )
        verdicts = compare(ref_A_fast(exact), ref_A_fast(inputs), rounded_inputs_bound(inputs))
        ratios += [verdict.ratio for verdict in verdicts]
    assert max(ratios) <= 1
    assert max(ratios) > (0.1 if "q" in names else 0.99)
