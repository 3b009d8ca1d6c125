"""The first wrong stage: probes that change nothing, steps that are made again, and words where neither helps."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kda.case import Case
from kda.diagnosis.described import described, tokens_in_words
from kda.diagnosis.probes import FORWARD_PROBES, PROBES, Unprobed, probed, with_probes
from kda.diagnosis.stages import GRID, LOOP, first_wrong_stage
from kda.diagnosis.steps import STEPS, ForwardSteps, Steps, steps_of
from kda.diagnosis.wrong import Run, Wrong, examined, wrong_run
from kda.formats import F16, F32, format_named
from kda.implementations import PLAIN, Implementation, implementation
from kda.implementations.builtin import KdaChunk
from kda.kernels import chunk, forward
from kda.mutation.campaign import SMALLEST_TILE, laws
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.lowering import lowered, traced
from kda.mutation.mutant import mutant
from kda.mutation.rewrite import Edit
from kda.numerics.budget import Budget
from kda.problem import Outputs, Tile
from kda.references.arithmetic import Arithmetic
from kda.suite.laws import Subject

SOURCE, FORWARD = inspect.getsource(chunk), inspect.getsource(forward)
A, MIRROR = "kernel.matches_reference_A", "kernel.matches_its_mirror"
BUSY = "v1,B=2,N=37,H=2,DV=32,gate=uniform:0.9:0.999,beta=uniform:0:2,q=gauss,k=gauss,v=gauss,state=gauss,seed=3"


def planted(*edits, of="kda_chunk"):
    """Our kernel with edits, each (find, put) or (find, put, inside)."""
    return mutant("edited", "", implementation(of), {"kernel": [Edit("it", *edit) for edit in edits]}).planted()


def wrong_of(made, line, law=A, tile=SMALLEST_TILE, dtype=None):
    case = Case.parse(line)
    subject = Subject(made, "c", dtype or case.dtype, (tile,))
    found = wrong_run(examined(laws()[law], subject, case))
    assert found is not None
    return found


def said_wrong(made, line):
    """A run of `made` that is said to be wrong, whatever it gives."""
    case = Case.parse(line)
    got = made.run(case.inputs(), case.tile, "c")
    none = Budget(np.zeros(got.o.shape[:-1]), np.zeros(got.final_state.shape[:-1]))
    run = Run(case.inputs(), case.tile, PLAIN, got)
    return Wrong(Subject(made, "c", case.dtype), run, got, Outputs(got.o + 1, got.final_state), none, "its mirror")


# Probes

#: With two borders in a chunk, deep gates and shallow ones.
BORDERED = BUSY.replace("N=37", "N=85,C=32") + ",edits=g:0.1.5.3:-30.0"
STORED = {"o as stored", "final state as stored"}


def stages_of(probes):
    """The stages that are looked at with these probes, in order."""
    return [stage for stage in STEPS if stage in STORED or stage in {probe.stage for probe in probes}]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("name", "line", "probes"),
    [("kda_chunk", BUSY, PROBES), ("kda_forward", BORDERED, FORWARD_PROBES)],
    ids=["kda_chunk", "kda_forward"],
)
def test_probes_change_no_bit_and_every_stage_follows_from_the_one_before(name, line, probes, dtype):
    staged = first_wrong_stage(said_wrong(implementation(name), f"{line},dtype={dtype}"))
    assert (staged.stage, staged.same_bits, staged.missing) == (None, True, ())
    assert [check.name for check in staged.checks if check.chunk == 2] == stages_of(probes)
    for check in staged.checks:
        assert check.got.shape == check.expected.shape == check.wrong.shape
        assert check.got.shape[:3] == (2, 2, 2)  # blocks, B, H
        assert np.nanmax(np.abs(check.got)) > 0
        assert not check.error.any()


def test_every_stage_has_a_probe_or_is_an_output():
    for probes in (PROBES, FORWARD_PROBES):
        assert [stage for stage in stages_of(probes) if stage not in STORED] == [probe.stage for probe in probes]
    assert {*stages_of(PROBES), *stages_of(FORWARD_PROBES)} == set(STEPS)


def test_what_is_made_for_no_border_is_not_seen():
    """The first sub-chunk has no rows behind a border, a key from a border on is not carried to it, and L has no blocks
    above the diagonal: what lies there is left over, and no step may read it.
    """
    case = Case.parse(BORDERED).replace(dtype="f32")
    values = probed(implementation("kda_forward"), case.inputs(), case.tile, "c", PLAIN).values
    for stage in ("q since its border", "k since its border"):
        assert np.isnan(values[stage][..., :16, :]).all()
        assert np.isfinite(values[stage][..., 16:, :]).all()
    assert np.isfinite(values["k to its border"][..., 32:48, :]).all()
    assert np.isnan(np.delete(values["k to its border"], slice(32, 48), axis=-2)).all()
    assert np.isnan(values["L"][..., :16, 16:]).all()
    assert np.isfinite(values["L"]).sum() == values["L"].size * 3 // 4


def test_rows_past_N_are_kept():
    case = Case.parse(BUSY).replace(dtype="f32")
    seen = probed(implementation("kda_chunk"), case.inputs(), case.tile, "c", PLAIN)
    gamma = seen.values["gamma"]
    assert gamma.shape == (2, 2, 2, 3, 16, 16)
    assert np.array_equal(gamma[..., 2, 5:, :], np.broadcast_to(gamma[..., 2, 4:5, :], (2, 2, 2, 11, 16)))
    assert not seen.values["k"][..., 2, 5:, :].any()
    assert seen.ran.all()


RENAMED = (
    (
        "Lt_s[j, i] = T.if_then_else(j < i, beta_s[j] * M_f[i, j], 0.0)",
        "Lt_s[b, a] = T.if_then_else(b < a, M_f[a, b] * beta_s[b], 0)",
    ),
    (
        "for i, j in on.parallel(C, C):\n                    Lt_s",
        "for a, b in on.parallel(C, C):\n                    Lt_s",
    ),
    (
        "on.launch(T.ceildiv(DV, block_DV), H, B) as (bv, bh, bb)",
        "on.launch(H, B, T.ceildiv(DV, block_DV)) as (head, batch, part_of_DV)",
    ),
    ("bv *", "part_of_DV *"),
    ("bh", "head"),
    ("bb", "batch"),
    ("for i_s in T.Pipelined(T.ceildiv(N, C), num_stages=num_stages)", "for which in T.serial(T.ceildiv(N, C))"),
    ("s0 = i_s * C", "s0 = C * which"),
)


def test_probes_find_their_places_in_an_edited_kernel():
    text = SOURCE
    for old, new in RENAMED:
        assert old in text
        text = text.replace(old, new)
    made, found = with_probes(text, "kda_chunk")
    assert found == PROBES
    assert "[part_of_DV, batch, head, which, p_r, p_c]" in made
    traced(made, "kda_chunk")


def test_probes_find_their_places_in_an_edited_kda_forward():
    text = FORWARD
    for old, new in (
        ("blocks * HV * sequences) as place", "HV * blocks * sequences) as where"),
        ("place % blocks", "where // HV % blocks"),
        ("place // blocks % HV", "where % HV"),
        ("place // blocks // HV", "where // HV // blocks"),
        ("for block in T.serial(1, C // R)", "for behind in T.serial(1, C // R)"),
        ("b = block * R", "b = behind * R"),
        ("i_s", "which"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    made, found = with_probes(text, "kda_forward")
    assert found == FORWARD_PROBES
    assert "[where // HV % blocks, where // HV // blocks, where % HV, which, behind * 16 + p_r, p_c]" in made
    traced(made, "kda_forward", tile=Tile(32, 16, F16), DK=16, DV=32)


def test_a_probe_without_a_place_is_left_out_and_the_others_go_on():
    gone = SOURCE.replace("Lt_s", "lower").replace("O_f", "out")
    made, found = with_probes(gone, "kda_chunk")
    assert {probe.stage for probe in PROBES if probe not in found} == {"L", "o"}
    traced(made, "kda_chunk")
    # A tile that is made and used in one statement is never seen in between; W is what a product takes that is gone.
    fused = SOURCE.replace(
        "                    Vt_s[r, j] = on.round(U_s[r, j] - WS_f[r, j])\n",
        "                    WS_f[r, j] = WS_f[r, j] + 0.0\n"
        "                    Vt_s[r, j] = on.round(U_s[r, j] - WS_f[r, j])\n",
    ).replace("on.gemm(Kp_s, S_s, WS_f, clear_accum=True)", "pass")
    _, found = with_probes(fused, "kda_chunk")
    assert {probe.stage for probe in PROBES if probe not in found} == {"W", "W S"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def kda_chunk(", "def kernel(", "there are 0 of function kda_chunk; expected one"),
        (
            "with on.launch(T.ceildiv(DV, block_DV), H, B)",
            "with on.launch(T.ceildiv(DV, block_DV), B * H, 1)",
            "B\\*H|B \\* H",
        ),
        ("for i_s in T.Pipelined", "for i_s in T.mystery", "there are 0 of loop over chunks in kda_chunk"),
    ],
)
def test_a_kernel_of_another_form_is_said_to_be_one(old, new, said):
    assert old in SOURCE
    with pytest.raises(Unprobed, match=said):
        with_probes(SOURCE.replace(old, new), "kda_chunk")


def test_what_is_not_probed_is_named_and_made_from_the_stages_before():
    # The state is carried in another tile, and no product adds to the old one.
    made = planted(
        (
            "on.gemm(Qp_s, Km_s, A_f, transpose_B=True, clear_accum=True)",
            "T.clear(A_f)\non.gemm(Qp_s, Km_s, A_f, transpose_B=True)",
        ),
        ("M_f = on.fragment(_s, ACCUM)", "other = on.fragment(_s, ACCUM)"),
        (
            "on.gemm(Kp_s, Km_s, M_f, *_rest, transpose_B=True, clear_accum=True)",
            "on.gemm(Kp_s, Km_s, other, transpose_B=True, clear_accum=True)",
        ),
        ("Lt_s[_j, _i] = _", "Lt_s[_j, _i] = T.if_then_else(_j < _i, beta_s[_j] * other[_i, _j], 0.0)"),
        ("U_s[_r, _j] - WS_f[_r, _j]", "U_s[_r, _j] + WS_f[_r, _j]"),
    )
    staged = first_wrong_stage(wrong_of(made, BUSY + ",dtype=f32"))
    assert (staged.stage, staged.missing) == ("V_tilde", ("k e^gamma", "M"))
    assert "not probed: k e^gamma, M" in staged.lines()[-1]
    assert "L" in staged.right


@pytest.mark.parametrize("tile", [Tile(16, 16, F16), Tile(16, 16, F16, num_stages=1), Tile(32, 16, F32)])
@pytest.mark.parametrize(("text", "function", "last"), [(SOURCE, "kda_chunk", 22), (FORWARD, "kda_forward", 20)])
def test_the_probed_kernel_is_a_program_for_cuda(text, function, last, tile):
    made, _ = with_probes(text, function)
    assert f"P_{last}" in traced(made, function, "cuda", tile, 32, 32)


@pytest.mark.parametrize(
    ("text", "function", "tile"),
    [(SOURCE, "kda_chunk", Tile(16, 16, F16)), (FORWARD, "kda_forward", Tile(32, 16, F16))],
    ids=["kda_chunk", "kda_forward"],
)
def test_the_probed_kernel_lowers_for_cuda(text, function, tile):
    made, found = with_probes(text, function)
    code = lowered(made, function, "cuda", tile, 16, 16)
    assert all(f"P_{number}[" in code or f"P_{number} +" in code for number in range(len(found)))


# Stages

#: (entry, a failing case): of every part of the kernel, and of its launch.
KNOWN = [
    ("strides-assumed", "v1,H=2,DV=32,dtype=f32"),
    ("no-state-is-any-state", "v1,DV=32,dtype=f32"),
    ("blocks-counted-by-DK", "v1,DV=32,dtype=f32"),
    ("batch-and-head-exchanged", "v1,H=2,DV=32,dtype=f32,v=small_int:1"),
    ("exclusive-cumsum", "v1,DV=32,dtype=f32,gate=constant:0.999"),
    ("M-accumulates", "v1,N=18,DV=32,dtype=f32,k=sign"),
    ("L-in-operand-precision", "v1,N=2,DV=32,k=equal"),
    ("beta-dropped-from-U", "v1,DV=32,dtype=f32,edits=beta:0:0.0"),
    ("state-updated-before-the-output", "v1,DV=32,dtype=f32"),
    ("next-K-loaded-too-early", "v1,DV=32,dtype=f32"),
    ("state-decayed-by-channel-0", "v1,DV=32,dtype=f32,gate=alternating:-0.001,state=ones"),
    ("last-row-written-by-padding", "v1,DV=32,dtype=f32"),
]


#: The same for kda_forward: across a border, what is carried to one, the solve, and what is carried to the end.
KNOWN_FORWARD = [
    ("rows-decayed-from-one-row-later", "v1,N=17,DV=32,C=32,dtype=f32,gate=constant:0.9991"),
    ("keys-carried-past-their-border", "v1,N=17,DV=32,C=32,dtype=f32,gate=constant:0.9991"),
    ("substitution-ends-at-a-border", "v1,N=17,DV=32,C=32,dtype=f32"),
    ("state-takes-what-was-carried-before", "v1,DV=32,dtype=f32,gate=constant:0.9991"),
]
PLANTED = [("kernel", *known) for known in KNOWN] + [("forward", *known) for known in KNOWN_FORWARD]


@pytest.mark.parametrize(("form", "name", "line"), PLANTED, ids=[f"{name}-{form}" for form, name, _ in PLANTED])
def test_the_first_wrong_stage_of_a_known_mistake(form, name, line):
    mistake = CATALOGUE[name].of(form)
    tile = mistake.tile or SMALLEST_TILE
    wrong = wrong_of(mistake.mutant(form).planted(), line, mistake.law, tile, format_named(mistake.dtype))
    staged = first_wrong_stage(wrong)
    assert staged.stage in mistake.stages
    assert staged.same_bits
    lines = staged.lines()
    assert 1 <= len(lines) <= 4
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith(f"first wrong stage: {staged.stage} (chunk ")


def test_an_edited_copy_of_the_kernel_is_probed(tmp_path):
    copy = tmp_path / "chunk.py"
    copy.write_text(SOURCE.replace("U_s[r, j] - WS_f[r, j]", "U_s[r, j] + WS_f[r, j]"))
    staged = first_wrong_stage(wrong_of(implementation(f"{copy}:kda_chunk"), "v1,DV=32,dtype=f32,state=ones"))
    assert (staged.stage, staged.same_bits, staged.missing) == ("V_tilde", True, ())
    assert staged.lines()[:2] == [
        "first wrong stage: V_tilde (chunk 0, batch 0, head 0, block 0), from row 0 (token 0), channel 0",
        "  got 2, expected 0 (bound 0); 32 of 512 cells are wrong",
    ]


def test_what_follows_from_a_wrong_stage_is_not_wrong_itself():
    made = planted(("Lt_s[_j, _i] = _l", "Lt_s[_j, _i] = 2.0 * _l"))
    staged = first_wrong_stage(wrong_of(made, BUSY + ",dtype=f32"))
    assert (staged.stage, staged.chunk, staged.also) == ("L", 0, ())
    assert (staged.at.row, staged.at.column) == (1, 0)
    assert staged.got == 2 * staged.expected
    assert staged.right[-1] == "M"
    assert {check.name for check in staged.checks if check.wrong.any()} == {"L"}
    assert staged.lines()[0].startswith(
        "first wrong stage: L (chunk 0, batch 0, head 0), from row 1 (token 1), column 0 (token 0)"
    )


def test_the_first_of_two_mistakes_is_named_and_the_other_listed():
    made = planted(
        ("U_s[_r, _j] - WS_f[_r, _j]", "U_s[_r, _j] - T.if_then_else(i_s == 1, 2.0, 1.0) * WS_f[_r, _j]"),
        ("A_s[_i, _j] = on.round(_a)", "A_s[_i, _j] = on.round(T.if_then_else(i_s == 1 and bh == 1, 3.0, 1.0) * _a)"),
    )
    staged = first_wrong_stage(wrong_of(made, BUSY + ",dtype=f32"))
    assert (staged.stage, staged.chunk, staged.at.batch, staged.at.head) == ("A_qk", 1, 0, 1)
    assert staged.also == ("V_tilde",)
    assert "row 0 (token 16), column 0 (token 16)" in staged.lines()[0]
    assert "wrong by their own step too: V_tilde" in staged.lines()[-1]


def test_a_place_is_told_by_block_and_value_channel():
    made = planted(
        (
            "S_f[_d, _j] * Ep_s[C - 1, _d]",
            "S_f[_d, _j] * T.if_then_else(bv == 1 and _j == 3 and _d == 5, 0.0, Ep_s[C - 1, _d])",
        )
    )
    staged = first_wrong_stage(wrong_of(made, BUSY + ",dtype=f32"))
    first = staged.lines()[0]
    assert first.startswith(
        "first wrong stage: S (chunk 0, batch 0, head 0, block 1), from key channel 5, value channel 19"
    )
    assert staged.cells == 4  # of two batches and two heads


def test_a_chunk_that_is_never_run_is_the_first_thing_wrong():
    mistake = CATALOGUE["tokens-past-a-bound-ignored"]
    staged = first_wrong_stage(wrong_of(mistake.mutant("kernel").planted(), "v1,N=97,DV=32,dtype=f32"))
    assert (staged.stage, staged.chunk, staged.also) == (LOOP, 6, ())
    where = "(chunk 6, batch 0, head 0, block 0)"
    assert staged.lines() == [f"first wrong stage: loop over chunks {where}: a chunk was never run"]


def test_what_is_made_past_N_is_stored_nowhere():
    load = "for r, d in on.parallel(C, DK):\n    Q_s[r, d] = Q[bb, T.min(s0 + r, N - 1), bh, d]"
    made = planted(("T.copy(Q[bb, _t, bh, :], Q_s)", load))
    staged = first_wrong_stage(said_wrong(made, BUSY + ",dtype=f32"))
    assert (staged.stage, staged.chunk, staged.at.row, staged.also) == ("q", 2, 5, ())


def test_other_bits_with_probes_are_said():
    wrong = said_wrong(planted(("Lt_s[_j, _i] = _l", "Lt_s[_j, _i] = 2.0 * _l")), BUSY + ",dtype=f32")
    other = replace(wrong, got=Outputs(wrong.got.o * 2, wrong.got.final_state))
    staged = first_wrong_stage(other)
    assert (staged.stage, staged.same_bits) == ("L", False)
    assert "OTHER BITS" in staged.lines()[-1]


def test_right_by_every_step_is_no_stage():
    staged = first_wrong_stage(said_wrong(implementation("kda_chunk"), "v1,DV=32,dtype=f32"))
    assert staged.stage is None
    assert staged.lines()[0].startswith("first wrong stage: none (every probed stage follows")
    assert staged.lines()[1] == "o: the only token"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ref_C", "ref_C names no kernel source"),
        ("mirror", "there are 0 of program in ref_C_fast; expected one"),
    ],
)
def test_without_probes_the_outputs_are_told_in_words(name, why):
    case = Case.parse("v1,N=20,H=2")
    made = implementation(name)
    wrong = said_wrong(made, str(case))
    staged = first_wrong_stage(wrong)
    assert (staged.stage, staged.why, staged.checks) == (None, why, ())
    assert staged.lines() == [f"the stages were not looked at: {why}", *described(wrong)]


def test_a_probed_kernel_that_does_not_run_is_no_stage(monkeypatch):
    broken = with_probes(SOURCE.replace("s0 = i_s * C", "s0 = nothing * C"), "kda_chunk")
    monkeypatch.setattr("kda.diagnosis.probes.with_probes", lambda text, function: broken)
    staged = first_wrong_stage(said_wrong(implementation("kda_chunk"), "v1,DV=32,dtype=f32"))
    assert staged.stage is None
    assert staged.why == "the probed kernel does not run: NameError: name 'nothing' is not defined"
    assert staged.instead[0] == "o: the only token"


def test_a_launch_that_takes_no_more_outputs_is_no_stage(monkeypatch):
    monkeypatch.setattr(KdaChunk, "with_outputs", Implementation.with_outputs)
    staged = first_wrong_stage(said_wrong(implementation("kda_chunk"), "v1,DV=32,dtype=f32"))
    assert (staged.stage, staged.why) == (None, "the launch of kda_chunk takes no more outputs")


def test_a_run_that_is_too_large_is_not_probed():
    case = Case.parse("v1,B=64,N=160,H=32,DK=128,DV=128,C=64,block_DV=16")
    sizes = case.sizes
    with pytest.raises(Unprobed, match=r"^the probes of .* would hold 20\.8 GiB; expected at most 1$"):
        probed(implementation("kda_chunk"), SimpleNamespace(sizes=sizes), case.tile, "c", PLAIN)


# Steps


class Backwards(Arithmetic):
    """A machine that adds from the last product to the first, and cuts off what float32 does not hold."""

    def gemm(self, a, b, acc):
        acc = acc.astype(np.float64)
        for inner in reversed(range(a.shape[-1])):
            acc = acc + a[..., :, inner, None].astype(np.float64) * b[..., None, inner, :]
            acc = (acc.astype(np.float32).view(np.int32) & ~1).view(np.float32).astype(np.float64)
        return acc.astype(np.float32)


def held_by(machine, line, probes=PROBES):
    """A case of one chunk, and what `machine` held of every stage."""
    case = Case.parse(line)
    case = case.cut(N=case.C)
    steps = of_probes(probes)(case.inputs(), case.tile, {}, None, False)
    steps._machine = machine
    return case, {probe.stage: steps.made(probe.stage).value.copy() for probe in probes}


def of_probes(probes):
    return Steps if probes is PROBES else ForwardSteps


def beyond(case, held, exact=False, probes=PROBES):
    """The stages that are further than their bound from what is made of the ones before."""
    steps = of_probes(probes)(case.inputs(), case.tile, held, None, exact)
    return [stage for stage in held if (np.abs(held[stage] - steps.made(stage).value) > steps.bound(stage)).any()]


#: What both kernels are asked: their probes, and a case with every stage.
EITHER = pytest.mark.parametrize(
    ("probes", "line"),
    [(PROBES, BUSY), (FORWARD_PROBES, BUSY.replace("N=37", "N=37,C=32"))],
    ids=["kda_chunk", "kda_forward"],
)
EITHER_STAGE = pytest.mark.parametrize(
    ("probes", "line", "stage"),
    [
        pytest.param(probes, line, probe.stage, id=f"{name}-{probe.stage}")
        for name, probes, line in (
            ("kda_chunk", PROBES, BUSY),
            ("kda_forward", FORWARD_PROBES, BUSY.replace("N=37", "N=37,C=32")),
        )
        for probe in probes
    ],
)


def largest(array):
    """The place of the largest number that is made."""
    return np.unravel_index(np.nanargmax(np.abs(array)), array.shape)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@EITHER
def test_another_order_of_additions_is_within_the_bounds(probes, line, dtype):
    case, held = held_by(Backwards(format_named(dtype)), f"{line},dtype={dtype}", probes)
    assert beyond(case, held, probes=probes) == []
    off = set(beyond(case, held, exact=True, probes=probes))
    assert {"M" if probes is PROBES else "L", "W S", "o", "S"} <= off


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    "stage", ["k e^gamma", "k e^-gamma", "q e^gamma", "A_qk", "W", "V_tilde", "k e^(gamma_C - gamma)"]
)
def test_a_rounding_may_go_the_other_way(dtype, stage):
    form = format_named(dtype)
    case, held = held_by(Backwards(form), f"{BUSY},dtype={dtype}")
    at = np.unravel_index(np.argmax(np.abs(held[stage])), held[stage].shape)
    unit = 2 * form.unit_roundoff * 2.0 ** np.floor(np.log2(np.abs(held[stage][at])))
    held[stage][at] += unit
    assert stage not in beyond(case, held)
    assert stage in beyond(case, held, exact=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@EITHER_STAGE
def test_an_error_of_two_units_is_beyond_the_bounds(probes, line, stage, dtype):
    form = format_named(dtype)
    case, held = held_by(Backwards(form), f"{line},dtype={dtype}", probes)
    # A tile in the operand format may be off by one of its units; what stays in float32 is off by far less.
    held[stage][largest(held[stage])] *= 1 + 5 * form.unit_roundoff
    assert stage in beyond(case, held, probes=probes)


@EITHER_STAGE
def test_one_bit_is_beyond_what_an_exact_machine_may_do(probes, line, stage):
    case, held = held_by(Arithmetic(F32), line + ",dtype=f32", probes)
    assert beyond(case, held, exact=True, probes=probes) == []
    at = largest(held[stage])
    held[stage][at] = np.nextafter(held[stage][at], np.float32(np.inf))
    assert beyond(case, held, exact=True, probes=probes)[0] == stage


@pytest.mark.parametrize("name", ["kda_chunk", "kda_forward"])
def test_the_state_is_carried_where_no_probe_saw_it(name):
    case = Case.parse(BUSY).replace(dtype="f32")
    made = implementation(name)
    seen = probed(made, case.inputs(), case.tile, "c", PLAIN)
    without = {stage: value for stage, value in seen.values.items() if stage not in ("S", "S at the start")}
    steps = steps_of(name)(case.inputs(), case.tile, without, made.exp2("c"), True)
    assert np.array_equal(steps.made("S at the start").value, seen.values["S at the start"])
    assert np.array_equal(steps.made("S").value, seen.values["S"])


# Words


@pytest.mark.parametrize(
    ("rows", "N", "said"),
    [
        (range(40), 40, "every token"),
        ([0], 1, "the only token"),
        (range(16, 40), 40, "every row from the second chunk on: tokens 16..39"),
        (range(5, 40), 40, "every token from 5 on (row 5 of chunk 0)"),
        ([15, 31], 40, "only the last row of each full chunk: tokens 15, 31"),
        ([16, 32], 40, "only the first row past each border: tokens 16, 32"),
        ([0, 16, 32], 40, "only the first row of each chunk: tokens 0, 16, 32"),
        (range(32, 40), 40, "only the tail, the 8 rows of the last chunk: tokens 32..39"),
        ([39], 40, "only the last token, 39 (row 7 of chunk 2)"),
        ([20], 40, "only token 20 (row 4 of chunk 1)"),
        (range(16, 32), 40, "only chunk 1: all its rows"),
        ([17, 19], 40, "only chunk 1: tokens 17, 19"),
        ([3, 19, 35], 40, "only row 3 of each chunk from chunk 0 on: tokens 3, 19, 35"),
        ([1, 2, 20], 40, "3 of 40 tokens, the first is row 1 of chunk 0: tokens 1, 2, 20"),
        (range(0, 40, 3), 40, "14 of 40 tokens, the first is row 0 of chunk 0: tokens 0, 3, 6, 9, 12, 15, 18, 21, ..."),
        ([15], 16, "only the last row of each full chunk: token 15"),
        ([16], 17, "only the tail, the 1 row of the last chunk: token 16"),
    ],
)
def test_tokens_are_told_by_the_borders_of_chunks(rows, N, said):
    assert tokens_in_words(list(rows), N, 16) == said


def outputs_wrong_at(o=None, state=None):
    """A wrong run of 40 tokens, 2 batches, 3 heads, 32 value channels in blocks of 16, wrong at these places."""
    case = Case.parse("v1,B=2,N=40,H=3,DV=32,dtype=f32")
    wrong = said_wrong(implementation("mirror"), str(case))
    got = Outputs(wrong.got.o.copy(), wrong.got.final_state.copy())
    if o is not None:
        got.o[o] += 0.5
    if state is not None:
        got.final_state[state] = np.nan
    ones = Budget(np.full(got.o.shape[:-1], 0.1), np.full(got.final_state.shape[:-1], 0.1))
    return replace(wrong, got=got, expected=wrong.got, budget=ones)


BLOCK_0 = "only in block 0 of 2 of value channels, value channel "


@pytest.mark.parametrize(
    ("o", "state", "said"),
    [
        (
            np.s_[:, 16:],
            None,
            [
                "o: every row from the second chunk on: tokens 16..39; in all 2 batches; in all 3 heads",
                "final_state: right",
            ],
        ),
        (
            np.s_[1, 3, 2, 7],
            None,
            [
                "o: only token 3 (row 3 of chunk 0); only in batch 1 of 2; only in head 2 of 3; " + BLOCK_0 + "7",
                "final_state: right",
            ],
        ),
        (
            np.s_[:, :, 1:, 16:],
            None,
            [
                "o: every token; in all 2 batches; only in heads 1..2 of 3; only in block 1 of 2 of value channels",
                "final_state: right",
            ],
        ),
        (
            None,
            np.s_[0, :, 3:5],
            ["o: right", "final_state: 2 of 16 key channels: key channels 3..4; only in batch 0 of 2; in all 3 heads"],
        ),
        (
            None,
            np.s_[:, 1, :, 4],
            [
                "o: right",
                "final_state: every key channel; in all 2 batches; only in head 1 of 3; " + BLOCK_0 + "4",
            ],
        ),
    ],
)
def test_outputs_are_told_by_rows_heads_batches_and_blocks(o, state, said):
    assert described(outputs_wrong_at(o, state)) == said


def test_shapes_that_differ_are_told():
    wrong = outputs_wrong_at(np.s_[:])
    cut = replace(wrong, got=Outputs(wrong.got.o[:, :3], wrong.got.final_state))
    assert described(cut)[0] == "o has shape (2, 3, 3, 32); expected (2, 40, 3, 32)"


# The catalogue


def test_every_entry_of_the_kernel_names_a_stage_or_has_a_reason_not_to():
    stages = {*STEPS, GRID, LOOP}
    for mistake in CATALOGUE.values():
        for form in ("kernel", "forward"):
            if form in mistake.forms:
                entry = mistake.of(form)
                assert set(entry.stages) <= stages
                # No run has wrong outputs, or which stage is wrong hangs on a race.
                silent = mistake.harmless or mistake.targets == ("cuda",)
                refused = mistake.law.startswith(("contract.", "gate_domain.", "operation."))
                raises = mistake.name in ("inputs-overwritten", "kernel-cached-without-its-dtype")
                assert bool(entry.stages) != bool(silent or refused or raises), mistake.name
