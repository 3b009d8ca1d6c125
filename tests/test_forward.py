"""`kda_forward`: any gate, the mirror's bits, no loss behind a closed gate, the checks of its launch, code for CUDA."""

import functools
import inspect
import itertools
import re
import shutil
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from kda.case import Case
from kda.diagnosis.resemblance import resemblance
from kda.diagnosis.stages import first_wrong_stage
from kda.diagnosis.wrong import examined, wrong_run
from kda.formats import BF16, F16, F32, F64
from kda.implementations import implementation
from kda.implementations.builtin import KdaForward
from kda.kernels import forward
from kda.kernels.compile import COUNTS
from kda.kernels.launch import FORWARD, SHARED_MEMORY, check_tile, run_kda_forward, shared_memory_forward
from kda.malformed import refusal
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.lowering import lowered
from kda.numerics.budget import judge, operand_units
from kda.numerics.compare import all_finite, compare
from kda.problem import InputError, Inputs, Outputs, Sizes, Tile
from kda.references import STAGES, ref_A_fast, ref_C_fast, ref_forward
from kda.suite.laws import Subject, load_laws
from kda.support import Support, TileChoice
from strategies import wild_cases

KERNEL = implementation("kda_forward")
SOURCE = inspect.getsource(forward)
NARROW = pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)

#: Shallow, deep, closed for good in the middle of a sub-chunk and at a border, and for channels in turn.
GATES = (
    "none",
    "uniform:0.9:0.999",
    "log:-1000.0",
    "spike:3:-1000.0",
    "spike:16:-1000.0",
    "alternating:-30.0",
    "channel:1e-30:1.0",
)
GATED = pytest.mark.parametrize("gate", GATES, ids=[gate.replace(":", "-") for gate in GATES])


BUSY = Case.parse("v1,N=53,DK=32,DV=16,C=32,beta=uniform:0.0:2.0,q=gauss,k=gauss,v=gauss,state=gauss,seed=7")


def ratio(got: Outputs, inputs: Inputs, C: int, dtype=None) -> float:
    """Error over budget of the worst row."""
    judged = judge(inputs, C, operand_units(inputs, C, dtype or inputs.dtype), 16, pairs=True)
    return max(verdict.ratio for verdict in compare(got, judged.outputs, judged.budget))


# The mirror


@given(wild_cases(Support(dtypes=(F64,), tiles=tuple(TileChoice(16, 16, C) for C in (16, 32, 64)), max_beta=2.0)))
@settings(max_examples=150)
def test_in_float64_the_mirror_is_the_recurrence(wild):
    """For any gate down to -1000 per token: reference A within what float64 loses."""
    inputs = wild.inputs()
    got = ref_forward(inputs, wild.C, wild.block_DV)
    assert all_finite(got)
    assert ratio(got, inputs, wild.C, F64) <= 1, str(wild)


def one_number_at_a_time(inputs: Inputs, C: int, precision) -> Outputs:
    """The kernel's arithmetic on NumPy scalars, token by token: every rounding and the order of every sum."""
    f32, sizes = np.float32, inputs.sizes
    o, state = np.zeros(sizes.shape("o")), inputs.state()

    def op(x):
        return f32(precision.round(np.float64(x)))

    def decay(gates):
        total = f32(0)
        for g in gates:
            total = f32(total + g)
        return f32(np.exp2(np.float64(total * f32(1.4426950408889634))))

    def dot(x, y, total=0):
        total = f32(total)
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

            def gates(first, last, d, g=g):
                return [g[t][d] for t in range(first, last)]

            def product(x, i, j, k=k, D=D, gates=gates):
                border = i - i % 16
                if j >= border:
                    return dot(x[i], [f32(k[j][d] * decay(gates(j + 1, i + 1, d))) for d in D])
                row = [op(x[i][d] * decay(gates(border, i + 1, d))) for d in D]
                return dot(row, [op(k[j][d] * decay(gates(j + 1, border, d)[::-1])) for d in D])

            since = [[decay(gates(0, r + 1, d)) for d in D] for r in R]
            L = [[beta[j] * product(k, i, j) for j in range(i)] for i in R]
            A_c = [[op(product(q, i, j)) for j in range(i + 1)] for i in R]
            W = [[k[r][d] * since[r][d] for d in D] for r in R]
            U = [f32(x) for x in inputs.v[b, start : start + C, h, dv]]
            for r, i in ((row, col) for row in R for col in range(row)):
                W[r] = [W[r][d] - L[r][i] * W[i][d] for d in D]
                U[r] = U[r] - L[r][i] * U[i]
            S_s = [op(x) for x in S]
            Vt_c = [op(beta[r] * U[r] - dot([op(beta[r] * x) for x in W[r]], S_s)) for r in R]
            for r in R:
                Qp = [op(q[r][d] * since[r][d]) for d in D]
                o[b, start + r, h, dv] = op(dot(A_c[r], Vt_c[: r + 1], dot(Qp, S_s)))
            for d in D:
                Kd = [op(k[r][d] * decay(gates(r + 1, len(R), d)[::-1])) for r in R]
                S[d] = dot(Kd, Vt_c, since[-1][d] * S[d])
        state[b, h, :, dv] = S
    return Outputs(o, state)


@NARROW
@GATED
def test_the_mirror_rounds_where_the_kernel_rounds(gate, dtype):
    inputs = BUSY.replace(N=37, DK=3, DV=2, gate=gate, dtype=dtype).inputs()
    assert ref_forward(inputs, 32, 2, dtype).equals(one_number_at_a_time(inputs, 32, dtype))


def test_the_trace_has_every_stage_of_every_chunk():
    """Shapes end at N, also where a sub-chunk does not, and the equations between the stages hold."""
    inputs = BUSY.replace(B=2, H=3, dtype=F64, gate="uniform:0.1:0.999").inputs()
    steps = []
    got = ref_forward(inputs, 32, 16, trace=steps.append)
    assert [(step.start, step.stop) for step in steps] == [(0, 32), (32, 53)]
    reference = []
    ref_C_fast(inputs, 32, 16, trace=reference.append)
    for step, other in zip(steps, reference, strict=True):
        assert set(step.values) == set(STAGES)
        for stage in STAGES:
            np.testing.assert_allclose(step.values[stage], other.values[stage], rtol=0, atol=1e-11, err_msg=stage)
    np.testing.assert_array_equal(steps[-1].values["S"], got.final_state)


@pytest.mark.parametrize(
    ("C", "block", "message"), [(24, 4, "C is 24; expected a multiple of 16"), (16, 0, "block_DV is 0")]
)
def test_a_choice_that_makes_no_sense_is_refused(C, block, message):
    with pytest.raises(InputError, match=message):
        ref_forward(BUSY.inputs(), C, block)


# The kernel


@NARROW
@GATED
def test_the_kernel_has_the_mirrors_bits(gate, dtype):
    one = BUSY.replace(gate=gate, dtype=dtype)
    inputs = one.inputs()
    got = KERNEL.run(inputs, one.tile, "c")
    assert got.equals(ref_forward(inputs, one.C, one.block_DV, dtype, KERNEL.exp2("c")))
    assert all_finite(got)
    assert ratio(got, inputs, one.C) <= 1


@NARROW
def test_channels_up_to_256(dtype):
    one = BUSY.replace(N=33, DK=256, DV=256, block_DV=128, gate="channel:1e-30:1.0", dtype=dtype)
    inputs = one.inputs()
    got = KERNEL.run(inputs, one.tile, "c")
    assert got.equals(ref_forward(inputs, one.C, one.block_DV, dtype, KERNEL.exp2("c")))
    assert ratio(got, inputs, one.C) <= 1


@pytest.mark.parametrize("token", [2, 15, 16, 21, 32], ids="token{}".format)
def test_nothing_is_lost_behind_a_closed_gate(token):
    """A gate of -1000 leaves what comes after it as exact as if the sequence began there.

    As a difference of sums from before it, each exponent after it would be off by 1000 * 2^-24 (6e-5).
    """
    one = BUSY.replace(N=48, C=64, dtype=F32, state="none", gate="uniform:0.9:0.999", beta="uniform:0.1:0.9")
    inputs = one.inputs()
    inputs.g[:, token] = -1000.0
    got = KERNEL.run(inputs, one.tile, "c")
    alone = ref_A_fast(inputs.tokens(token, 48))
    error = np.abs(got.o[:, token:] - alone.o).max() / np.abs(alone.o).max()
    assert error < 5e-7
    assert ratio(got, inputs, one.C) <= 1


@NARROW
@pytest.mark.parametrize("t", [1, 16, 20, 32, 40], ids="token{}".format)
def test_no_later_gate_changes_a_bit(t, dtype):
    """An anchor inside a block, or a running maximum, would let it in by rounding alone."""
    one = BUSY.replace(gate="uniform:0.1:0.999", dtype=dtype)
    inputs = one.inputs()
    later = inputs.replace(g=inputs.g.copy())
    later.g[:, t:] = np.resize([-1000.0, 0.0, -0.37], later.g[:, t:].shape)
    before, after = (KERNEL.run(x, one.tile, "c") for x in (inputs, later.rounded()))
    assert np.array_equal(before.o[:, :t], after.o[:, :t])
    assert not np.array_equal(before.o[:, t:], after.o[:, t:])


def test_the_budget_of_pairs_is_amplified_by_no_gate():
    """No k e^-gamma meets what was lost of k e^gamma: behind a closed gate the budget is near that of an open one."""
    inputs = BUSY.replace(N=64, C=64, gate="log:-0.6", beta="uniform:0.1:0.9").inputs()
    units = operand_units(inputs, 64, F16)
    split, pairs = (judge(inputs, 64, units, 16, pairs=pairs).budget for pairs in (False, True))
    assert (pairs.o <= split.o).all()
    deep = inputs.replace(g=np.full_like(inputs.g, -12.0))
    units = operand_units(deep, 64, F16)
    split, pairs = (judge(deep, 64, units, 16, pairs=pairs).budget for pairs in (False, True))
    assert (2 * pairs.o[:, 1:16] < split.o[:, 1:16]).all()


# Its launch


def arguments(DK=16, DV=16, dtype=torch.float16, **changes):
    made = {name: torch.full((1, 20, 2, width), 0.25, dtype=dtype) for name, width in (("q", DK), ("k", DK), ("v", DV))}
    made |= {"g": torch.full((1, 20, 2, DK), -50.0), "beta": torch.full((1, 20, 2), 0.5), "C": 16, "block_DV": 16}
    return made | changes


def test_every_gate_is_taken():
    for gate in (0.0, -1e-30, -50.0, -1000.0, -3e38):
        o, state = run_kda_forward(**arguments(g=torch.full((1, 20, 2, 16), gate)))
        assert torch.isfinite(o).all()
        assert torch.isfinite(state).all()
        assert o.any()


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"^g is 0\.5 at batch 0, token 0, .* must be <= 0", {"g": torch.full((1, 20, 2, 16), 0.5)}),
        (r"^g is -inf at .* every value must be finite", {"g": torch.full((1, 20, 2, 16), -torch.inf)}),
        (r"^beta is 3 at .*; expected 0 <= beta <= 2", {"beta": torch.full((1, 20, 2), 3.0)}),
        (r"^v has shape", {"v": torch.zeros(1, 19, 2, 16, dtype=torch.float16)}),
        (r"^k is bfloat16; expected float16, as q is", {"k": torch.zeros(1, 20, 2, 16, dtype=torch.bfloat16)}),
        (r"^C is 24; expected one of 16, 32, 64", {"C": 24}),
        (r"^q requires a gradient and kda_forward has no", {"q": torch.zeros(1, 20, 2, 16).half().requires_grad_()}),
    ],
    ids=["positive-gate", "gate-infinite", "beta", "shape", "dtype", "chunk", "gradient"],
)
def test_what_does_not_fit_is_refused_before_a_launch(message, changes):
    before = COUNTS.launches
    error = refusal(lambda: run_kda_forward(**arguments(**changes)))
    assert re.search(message, str(error)), str(error)
    assert COUNTS.launches == before


def test_its_tiles_are_checked_as_its_own():
    check_tile(Tile(32, 32, F16), Sizes(1, 1, 1, 256, 256), "cuda", FORWARD)
    for tile, sizes, message in (
        (Tile(32, 16, F16), Sizes(1, 1, 1, 272, 16), "DK is 272; expected a multiple of 16 from 16 to 256"),
        (Tile(64, 32, F16), Sizes(1, 1, 1, 256, 256), "bytes of shared memory; expected at most 232448"),
        (Tile(16, 16, F64), Sizes(1, 1, 1, 16, 16), "dtype is float64; kda_forward takes float16, bfloat16, float32"),
    ):
        with pytest.raises(InputError, match=message):
            check_tile(tile, sizes, "cuda", FORWARD)


# CUDA


@pytest.mark.parametrize(
    ("tile", "DK", "DV"),
    [
        (Tile(16, 16, F16, 64), 32, 32),
        (Tile(32, 32, BF16, 128), 64, 64),
        (Tile(32, 16, F32, 128), 32, 32),
        (Tile(64, 64, F16, 128, 1), 128, 128),
    ],
    ids=str,
)
def test_the_kernel_lowers_for_cuda(tile, DK, DV):
    """Products of 16-bit operands go to tensor cores, those of float32 do not."""
    code = lowered(SOURCE, "kda_forward", "cuda", tile, DK, DV)
    assert ("mma" in code) == (tile.dtype is not F32)
    assert "tf32" not in code.lower()


@pytest.mark.parametrize("tile", [Tile(16, 16, F16, 64), Tile(32, 32, F32, 128)], ids=str)
def test_the_shared_memory_is_that_of_its_tiles(tile):
    """Counted in the program, as the bytes of what is allocated there."""
    sizes = {"C": tile.C, "R": 16, "DK": 64, "block_DV": tile.block_DV}
    width = {"on.operand": tile.dtype.numpy.itemsize, "ACCUM": 4}
    found = re.findall(r"on\.shared\(\[(.*?)\], (.*?)\)", SOURCE)
    assert len(found) == 15
    counted = sum(prod(sizes[s.strip()] for s in shape.split(",")) * width[dtype] for shape, dtype in found)
    assert counted == shared_memory_forward(tile, 64)


def test_the_palette_on_cuda_fits():
    for dtype in (F16, BF16, F32):
        tiles = KERNEL.support("cuda", dtype).tiles
        assert all(shared_memory_forward(Tile(t.C, t.block_DV, dtype), t.DK) <= SHARED_MEMORY for t in tiles)
        assert (TileChoice(128, 128, 64, 32) in tiles) == (dtype is not F32)


# As an implementation


def test_an_edited_copy_is_an_implementation(tmp_path):
    shutil.copy(forward.__file__, tmp_path / "mine.py")
    mine = implementation(f"{tmp_path / 'mine.py'}:kda_forward")
    assert isinstance(mine, KdaForward)
    one = BUSY.replace(gate="log:-100.0")
    assert mine.run(one.inputs(), one.tile, "c").equals(KERNEL.run(one.inputs(), one.tile, "c"))


@functools.cache
def laws():
    return load_laws(Path(__file__).parents[1] / "properties", "kernel")


def test_a_failure_is_described(tmp_path):
    """In an edited copy too, the first wrong stage is found by probes, and the mistake is told from every known one."""
    decayed = "decayed[0] = T.Cast(ACCUM, K_s[j, d])"
    wrong = SOURCE.replace(f"{decayed} * T.exp2(total[0] * LOG2_E)", decayed)
    assert wrong != SOURCE
    (tmp_path / "wrong.py").write_text(wrong)
    subject = Subject(implementation(f"{tmp_path / 'wrong.py'}:kda_forward"), "c", F32)
    seen = examined(laws()["kernel.matches_reference_A"], subject, BUSY.replace(dtype=F32, gate="uniform:0.5:0.9"))
    found = wrong_run(seen)
    assert found is not None
    staged = first_wrong_stage(found)
    assert (staged.stage, staged.also, staged.missing, staged.same_bits) == ("L", ("A_qk",), (), True)
    like = resemblance(seen, found)
    assert like.claimed is CATALOGUE["pairs-not-decayed"]
    assert "bit for bit" in like.how
