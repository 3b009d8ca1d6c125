"""The case line reads back, makes the same numbers for ever, and refuses what means nothing."""

import hashlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda import portable
from kda.case import Case, CaseError, Edit, Kind
from kda.formats import BF16, F16, F32, F64
from kda.generate import gauss, root, uniform
from kda.kinds import FIELDS, KINDS, LN2
from kda.problem import AXES
from kda.support import Support, TileChoice
from strategies import cases

FREE = Support(dtypes=(F64, F32, BF16, F16), max_beta=2.0)
ALL_KINDS = [(field, name) for field, kinds in KINDS.items() for name in kinds]

#: Parameters that show each kind at work; kinds that are not listed take none.
SHOWN = {
    "gate": {
        "constant": "0.9",
        "log": "-3.0",
        "uniform": "0.9:0.999",
        "channel": "0.5:0.9",
        "head": "0.5:0.9",
        "shared": "0.5:0.9",
        "alternating": "-0.25",
        "spike": "3:-2.0",
        "powers": "0.5:1",
        "softplus": "-0.15",
        "bounded": "-5.0",
        "edge": "9.7:16",
    },
    "beta": {"constant": "0.25", "uniform": "0.1:0.9", "binary": "0.5", "alternating": "0.5:2.0"},
    "q": {"parallel": "0.01"},
    "k": {"parallel": "0.01", "with_zero_row": "3"},
    "v": {"small_int": "3", "wide": "4"},
    "state": {"small_int": "3", "large": "1024.0"},
}


def shown(field, name):
    """The kind `name` of `field` with telling parameters, as text."""
    params = SHOWN[field].get(name)
    return name if params is None else f"{name}:{params}"


def tensor(field, name, **sizes):
    """The unrounded-as-possible tensor (float64 case) that a kind makes."""
    case = Case(**({"B": 2, "N": 40, "H": 3, "DK": 16, "DV": 8, "dtype": F64, "seed": 5} | sizes))
    return getattr(case.replace(**{field: shown(field, name)}).inputs(), FIELDS[field])


def same(one, other):
    return all(
        mine is theirs or np.array_equal(mine, theirs)
        for mine, theirs in ((getattr(one, t), getattr(other, t)) for t in FIELDS.values())
    )


# Round trip


@given(cases(FREE))
def test_reads_back_what_it_writes(case):
    line = str(case)
    assert Case.parse(line) == case
    assert str(Case.parse(line)) == line
    assert re.fullmatch(r"[A-Za-z0-9_\-.,:=/+@%]+", line)


@given(st.floats(0, 2), st.floats(-1e4, 0), st.floats(-60000, 60000))
def test_reads_back_every_float(beta, gate, value):
    case = Case(beta=Kind("constant", (beta,)), gate=Kind("log", (gate,)), edits=(Edit("v", (0, 3), value),))
    again = Case.parse(str(case))
    assert again == case
    assert again.edits[0].value.hex() == value.hex()


def test_defaults_are_left_out():
    assert str(Case()) == "v1"
    assert str(Case(seed=3, N=2)) == "v1,N=2,seed=3"


def test_a_line_has_one_spelling():
    line = "v1,N=65,H=3,DK=64,DV=32,C=32,gate=uniform:0.9:0.999,beta=uniform:0.1:0.9,q=gauss,k=gauss,seed=7"
    assert (
        str(
            Case.parse(
                "v1,seed=7,k=gauss,q=gauss,DV=32,dtype=float16,C=32,DK=64,H=3,N=65,gate=uniform:.9:0.999,"
                "beta=uniform:1e-1:0.9"
            )
        )
        == line
    )
    assert str(Case(gate="powers:0.5")) == "v1,gate=powers:0.5:1"


def test_kinds_may_be_given_as_text():
    assert Case(k="parallel:0.5") == Case(k=Kind("parallel", (0.5,)))


def test_id_reads_as_a_shape():
    assert Case.parse("v1,B=2,N=65,H=3,DK=64,DV=32,C=32").id == "B2-N65-H3-DK64-DV32-C32-f16"


def test_sizes_and_tile():
    case = Case.parse("v1,B=2,N=3,H=4,DK=5,DV=6,C=32,block_DV=64,dtype=bf16,threads=128,num_stages=2")
    assert case.sizes == case.inputs().sizes
    assert (case.tile.C, case.tile.block_DV, case.tile.dtype) == (32, 64, BF16)
    assert (case.tile.threads, case.tile.num_stages) == (128, 2)


# The same numbers, for ever

GOLDEN = {
    "v1": "90aabb6fd23e4f44",
    "v1,N=65,H=3,DK=64,DV=32,C=32,gate=uniform:0.9:0.999,beta=uniform:0.1:0.9,q=gauss,k=gauss,seed=7,"
    "edits=v:2.3:4.0/beta:1:0.5": "b51096be6508c2df",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,dtype=bf16,gate=softplus:-0.15,beta=near1,q=positive,k=parallel:0.01,v=wide:8,"
    "state=gauss,seed=1": "9f09edbde6b4c642",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,dtype=f64,gate=bounded:-5.0,beta=binary:0.5,q=sign,k=orthogonal,v=small_int:4,"
    "state=small_int:2,seed=18446744073709551615": "2f3c7c904459107c",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,dtype=f32,gate=channel:0.1:1.0,beta=near0,q=equal,k=onehot_random,v=gauss,"
    "state=large:64.0,seed=123456789": "e9980b206ce7590a",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,gate=powers:0.5:2,q=onehot_random,k=with_zero_row:3,v=small_int:1,seed=5,"
    "edits=q:0:0.0/g:1.0.2.3:0.0": "81e00005f7aa40f3",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,gate=shared:0.5:1.0,k=gauss,seed=5": "2ce3aed730129790",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,gate=head:0.5:1.0,k=gauss,seed=5": "89e7147589291d39",
    "v1,B=2,N=19,H=2,DK=16,DV=8,C=16,gate=edge:9.7:16,k=equal,seed=5": "bb4950a2d205ca1a",
}


@pytest.mark.parametrize("line", GOLDEN)
def test_inputs_have_not_changed(line):
    digest = hashlib.sha256()
    for name, array in Case.parse(line).inputs().tensors():
        digest.update(name.encode())
        digest.update(array.astype("<f8").tobytes())
    assert digest.hexdigest()[:16] == GOLDEN[line], (
        f"{line} makes other inputs than it used to; every guard line written so far means something else now. "
        "Undo the change, or raise kda.case.VERSION and these checksums with it"
    )


@given(cases(FREE))
def test_inputs_are_valid_and_held_by_their_formats(case):
    inputs = case.inputs()
    assert inputs.check() == case.sizes
    assert same(inputs, inputs.rounded())
    assert inputs.dtype == case.dtype


def test_inputs_are_fresh():
    case = Case(state="zeros")
    first = case.inputs()
    for _, array in first.tensors():
        array += 1
    assert not same(case.inputs(), first)


# Cutting keeps what remains

UNCUT = {"B": 3, "N": 37, "H": 3, "DK": 16, "DV": 8}
SHRUNK = {"B": 2, "N": 9, "H": 1, "DK": 8, "DV": 3}
COUNTS_CHANNELS = {("q", "onehot"), ("k", "onehot"), ("v", "onehot"), ("q", "orthogonal"), ("k", "orthogonal")}


@pytest.mark.parametrize("axis", UNCUT)
@pytest.mark.parametrize(("field", "name"), ALL_KINDS)
def test_cutting_keeps_the_values_that_remain(field, name, axis):
    case = Case(**UNCUT, seed=11, dtype=F64).replace(**{field: shown(field, name)})
    whole, part = case.inputs(), case.cut(**{axis: SHRUNK[axis]}).inputs()
    before, after = getattr(whole, FIELDS[field]), getattr(part, FIELDS[field])
    if before is None:
        assert after is None
        return
    if axis in ("DK", "DV") and (field, name) in COUNTS_CHANNELS:
        return
    left = UNCUT | {axis: SHRUNK[axis]}
    before = before[tuple(slice(left[a]) for a in AXES[FIELDS[field]])]
    if axis == "DK" and field in ("q", "k"):
        if name == "onehot_random":
            kept = before.any(axis=-1)
            np.testing.assert_array_equal(after[kept], before[kept])
            return
        norm = np.linalg.norm(before, axis=-1, keepdims=True)
        before = before / np.where(norm == 0, 1, norm)
        np.testing.assert_allclose(after, before, rtol=1e-14, atol=0)
    else:
        np.testing.assert_array_equal(after, before)


def test_cut_drops_edits_out_of_range():
    case = Case.parse("v1,B=2,N=9,state=zeros,edits=v:8.0:2.0/k:1.0.3.5:0.5/beta:2:0.5/state:3.4:1.0")
    assert str(case.cut(N=4)) == "v1,B=2,N=4,state=zeros,edits=k:1.0.3.5:0.5/beta:2:0.5/state:3.4:1.0"
    assert str(case.cut(B=1, DV=4)) == "v1,N=9,DV=4,state=zeros,edits=v:8.0:2.0/beta:2:0.5"


# Edits


@pytest.mark.parametrize(
    ("edit", "tensor", "where"),
    [
        ("v:2.3:4.0", "v", np.s_[:, 2, :, 3]),
        ("v:2:4.0", "v", np.s_[:, 2]),
        ("k:1.2.3.5:0.5", "k", np.s_[1, 3, 2, 5]),
        ("q:0:0.0", "q", np.s_[:, 0]),
        ("g:3.1:-1.5", "g", np.s_[:, 3, :, 1]),
        ("beta:1:0.5", "beta", np.s_[:, 1]),
        ("beta:1.0.4:0.25", "beta", np.s_[1, 4, 0]),
        ("state:4.3:-2.0", "initial_state", np.s_[:, :, 4, 3]),
        ("state:1.2.4.3:-2.0", "initial_state", np.s_[1, 2, 4, 3]),
    ],
)
def test_an_edit_changes_its_place_and_nothing_else(edit, tensor, where):
    line = "v1,B=2,N=6,H=3,DV=8,gate=uniform:0.9:0.95,q=gauss,k=gauss,v=gauss,beta=uniform:0.6:0.9,state=gauss"
    before, after = Case.parse(line).inputs(), Case.parse(f"{line},edits={edit}").inputs()
    changed = getattr(before, tensor)
    changed[where] = float(edit.rpartition(":")[2])
    assert same(before, after)


def test_later_edits_win():
    assert Case.parse("v1,edits=v:0:2.0/v:0.1:3.0").inputs().v.ravel()[:3].tolist() == [2.0, 3.0, 2.0]


# What each kind promises


@pytest.mark.parametrize("field", ["q", "k"])
@pytest.mark.parametrize("name", [n for n in KINDS["q"] if n != "zeros"])
def test_rows_have_unit_length(field, name):
    np.testing.assert_allclose(np.linalg.norm(tensor(field, name), axis=-1), 1, rtol=1e-15)


@pytest.mark.parametrize("DK", [1, 2, 4, 8, 12, 16, 32])
def test_orthogonal_keys_are_exactly_orthogonal(DK):
    k = Case(B=2, N=3 * DK, H=2, DK=DK, dtype=F16, k="orthogonal", seed=3).inputs().k
    for start in range(0, 3 * DK, DK):
        run = k[:, start : start + DK].transpose(0, 2, 1, 3)
        gram = run @ run.swapaxes(-1, -2)
        assert not (gram * (1 - np.eye(DK))).any()
        assert (gram.diagonal(axis1=-2, axis2=-1) > 0.99).all()


def test_equal_keys_are_equal_and_queries_share_their_direction():
    case = Case(N=9, H=2, k="equal", q="equal", seed=1)
    inputs = case.inputs()
    assert (inputs.k == inputs.k[:, :1]).all()
    assert (inputs.k == inputs.q).all()
    assert (inputs.k[:, :, 0] != inputs.k[:, :, 1]).any()
    signs = case.replace(k="sign").inputs().k / inputs.k
    assert set(np.unique(signs)) == {-1.0, 1.0}


@pytest.mark.parametrize(("eps", "least"), [(0.1, 0.98), (0.001, 0.999998)])
def test_parallel_keys_are_nearly_parallel(eps, least):
    k = Case(N=40, DK=32, dtype=F64, k=f"parallel:{eps}").inputs().k[0, :, 0]
    cosines = k @ k.T
    assert least * (1 - 2 * eps**2) < cosines.min() < 1 - eps**2 / 100
    assert len(np.unique(k[:, 0])) == 40


def test_one_hot_rows():
    inputs = Case(N=20, DK=16, DV=3, v="onehot").inputs()
    for t in range(20):
        assert inputs.k[0, t, 0].nonzero()[0].tolist() == [t % 16]
        assert inputs.v[0, t, 0].nonzero()[0].tolist() == [t % 3]
    lots = tensor("k", "onehot_random", N=500)
    assert set(np.unique(lots)) == {0.0, 1.0}
    assert (lots.sum(axis=(0, 1, 2)) > 100).all()


def test_zero_rows():
    k = tensor("k", "with_zero_row")
    assert (np.abs(k).sum(axis=-1) == 0).sum() == 6
    assert not k[:, 3].any()
    assert (tensor("k", "positive") >= 0).all()
    assert not tensor("q", "zeros").any()


def test_gates():
    assert not tensor("gate", "none").any()
    np.testing.assert_allclose(tensor("gate", "constant"), math.log(0.9), rtol=1e-15)
    assert (tensor("gate", "log") == -3).all()
    for name, lo, hi in (("uniform", 0.9, 0.999), ("channel", 0.5, 0.9), ("head", 0.5, 0.9), ("shared", 0.5, 0.9)):
        g = tensor("gate", name)
        assert (g >= math.log(lo) - 1e-15).all()
        assert (g <= math.log(hi) + 1e-15).all()
        assert np.ptp(g) > 0
        assert (np.ptp(g, axis=1).max() == 0) == (name in ("channel", "head"))
        assert (np.ptp(g, axis=-1).max() == 0) == (name in ("shared", "head"))
    alternating = tensor("gate", "alternating")
    assert (alternating[..., 1::2] == -0.25).all()
    assert not alternating[..., ::2].any()
    spike = tensor("gate", "spike")
    assert (spike[:, 3] == -2).all()
    assert np.count_nonzero(spike) == spike[:, 3].size
    assert (tensor("gate", "softplus") >= -0.15).all()
    assert (tensor("gate", "softplus") < 0).all()
    bounded = tensor("gate", "bounded")
    assert bounded.min() >= -5
    assert bounded.max() <= 0
    assert np.ptp(bounded) > 1


def test_softplus_gate_starts_as_models_do():
    A_and_dt = -Case(N=400, H=3, DK=64, dtype=F64, gate="softplus:-10000.0").inputs().g
    medians = np.median(A_and_dt, axis=1)  # x has median 0: A softplus(dt_bias) = A dt
    assert (medians > 0.5e-3).all()
    assert (medians < 2 * 16 * 0.1).all()
    np.testing.assert_array_equal(  # the layer's parameters are shared by its batches
        np.median(Case(B=2, N=1, H=3, gate="softplus:-1.0").inputs().g, axis=1).shape, (2, 3, 16)
    )


def test_powers_of_two():
    g = tensor("gate", "powers")
    assert set(np.unique(g)) == {-LN2, 0.0}
    assert float(np.float32(LN2)) == LN2
    assert 0.4 < np.mean(g < 0) < 0.6
    sparse = Case(N=64, gate="powers:1.0:8").inputs().g
    assert (sparse[:, ::8] == -LN2).all()
    assert np.count_nonzero(sparse) == 8 * 16


@pytest.mark.parametrize("C", [1, 3, 16, 32, 64, 128])
@pytest.mark.parametrize("total", [0.5, 9.7, 87.0, 88.72])
def test_edge_gates_stay_just_inside(C, total):
    g = Case(N=C, dtype=F32, gate=f"edge:{total}:{C}").inputs().g[0, :, 0, 0]
    assert -g.sum() <= total
    assert -np.add.accumulate(g.astype(np.float32))[-1] <= total
    assert -g.sum() > total * (1 - 2.0**-17)


def test_betas():
    assert (tensor("beta", "one") == 1).all()
    assert not tensor("beta", "zero").any()
    assert (tensor("beta", "constant") == 0.25).all()
    assert set(np.unique(tensor("beta", "binary"))) == {0.0, 1.0}
    assert tensor("beta", "alternating")[0, :4, 0].tolist() == [0.5, 2.0, 0.5, 2.0]
    near0, near1 = tensor("beta", "near0"), Case(N=200, beta="near1").inputs().beta
    assert near0.min() >= 2.0**-20
    assert near0.max() <= 2.0**-6
    assert near1.min() >= 1 - 2.0**-6
    assert near1.max() < 1


def test_values_and_states():
    assert set(np.unique(tensor("v", "small_int", N=200))) == set(range(-3, 4))
    assert (tensor("v", "ones") == 1).all()
    assert tensor("state", "none") is None
    assert not tensor("state", "zeros").any()
    assert set(np.unique(tensor("state", "small_int", DV=64))) == set(range(-3, 4))
    assert 500 < tensor("state", "large", DV=64).std() < 2000
    wide = np.abs(tensor("v", "wide", N=200, DV=16))
    assert wide.max() / np.median(wide) > 10
    assert np.isfinite(F16.round(Case(N=200, v="wide:12").inputs().v)).all()


def test_gaussians_and_uniforms_have_their_moments():
    keys = root(1, "test")
    x, u = gauss(keys, 200_000), uniform(keys, 200_000)
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**4).mean() - 2.9) < 0.1  # Irwin-Hall of twelve: kurtosis 3 - 0.1
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(u.std() - 12**-0.5) < 0.005


def test_streams_do_not_repeat_each_other():
    inputs = Case(B=2, N=4, H=2, DK=16, DV=16, q="gauss", k="gauss", v="gauss", dtype=F64).inputs()
    rows = np.concatenate([x.reshape(-1, 16) for x in (inputs.q, inputs.k, inputs.v)])
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    assert (np.abs(rows @ rows.T) - np.eye(len(rows))).max() < 0.95
    assert not same(inputs, Case(B=2, N=4, H=2, q="gauss", k="gauss", v="gauss", dtype=F64, seed=1).inputs())


# Portable exp and log


def relative(got, expected):
    return max(abs(g / e - 1) for g, e in zip(got.tolist(), expected, strict=True))


def test_exp_and_log_are_accurate():
    u = uniform(root(0, "accuracy"), 20_000)
    for x in (1400 * u - 700, u - 0.5, np.ldexp(u, -30)):
        assert relative(portable.exp(x), map(math.exp, x)) < 1e-15
    for x in (portable.exp(1400 * u - 700), 0.5 + u, 1 + np.ldexp(u, -20), 1 - np.ldexp(u, -20)):
        x = x[x != 1]
        assert relative(portable.log(x), map(math.log, x)) < 1e-15
    assert portable.exp(0.0) == 1
    assert portable.log(1.0) == 0
    assert portable.exp(-800.0) == 0


def test_softplus_and_sigmoid():
    x = np.linspace(-30, 30, 1001)
    np.testing.assert_allclose(portable.softplus(x), np.logaddexp(0, x), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(portable.sigmoid(x), 1 / (1 + np.exp(-x)), rtol=1e-14)


# Refusals


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "version ''; expected v1"),
        ("N=3", "version 'N=3'; expected v1"),
        ("v2,N=3", "version 'v2'; expected v1"),
        ("v1,N", "'N' is no field"),
        ("v1,T=3", "no field is called 'T'"),
        ("v1,N=3,N=3", "N is given twice"),
        ("v1,N=0", "N is 0; expected an integer in 1.."),
        ("v1,N=x", "N is 'x'"),
        ("v1,N=-1", "N is '-1'"),
        ("v1,N=3.5", "N is '3.5'"),
        ("v1,N=", "N is ''"),
        ("v1,threads=0", "threads is 0"),
        ("v1,seed=18446744073709551616", "seed is 18446744073709551616"),
        ("v1,dtype=f8", "dtype 'f8' is unknown"),
        ("v1,gate=slow", "no kind is called 'slow'; expected one of none, constant"),
        ("v1,state=wide:3", "no kind is called 'wide'"),
        ("v1,q=with_zero_row:3", "no kind is called 'with_zero_row'"),
        ("v1,gate=uniform:0.9", "1 parameters; expected 2, gate=uniform:lo:hi"),
        ("v1,gate=none:1", "1 parameters; expected 0"),
        ("v1,gate=uniform:0.9:0.5", "lo > hi"),
        ("v1,gate=uniform:0.0:0.5", "lo is 0.0; expected 0 < lo <= 1"),
        ("v1,gate=constant:1.5", "a is 1.5; expected 0 < a <= 1"),
        ("v1,gate=constant:nan", "a is nan"),
        ("v1,gate=log:0.5", "g is 0.5"),
        ("v1,gate=log:-inf", "g is -inf"),
        ("v1,gate=log:x", "g is 'x'"),
        ("v1,gate=spike:-1:-1.0", "t is -1; expected integer, 0 <= t"),
        ("v1,gate=spike:1.5:-1.0", "t is '1.5'"),
        ("v1,beta=constant:2.5", "b is 2.5; expected 0 <= b <= 2"),
        ("v1,v=small_int:0", "m is 0"),
        ("v1,v=wide:13", "e is 13"),
        ("v1,k=parallel:0", "eps is 0"),
        ("v1,edits=v:0.0", "edit 'v:0.0' is malformed"),
        ("v1,edits=", "edit '' is malformed"),
        ("v1,edits=v:a:1.0", "is malformed"),
        ("v1,edits=o:0.0:1.0", "no tensor is called 'o'"),
        ("v1,edits=v:0.0.0:1.0", "the index has 3 parts; expected t or t.d or b.h.t.d"),
        ("v1,edits=beta:0.0:1.0", "the index has 2 parts; expected t or b.h.t"),
        ("v1,state=zeros,edits=state:0:1.0", "expected dk.dv or b.h.dk.dv"),
        ("v1,edits=v:1.0:1.0", "out of range; expected an index within N=1, DV=16"),
        ("v1,edits=v:0.16:1.0", "out of range"),
        ("v1,edits=v:-1.0:1.0", "out of range"),
        ("v1,edits=g:0.0:0.5", "expected a value <= 0"),
        ("v1,edits=beta:0:2.5", "expected 0 <= beta <= 2"),
        ("v1,edits=beta:0:nan", "not finite"),
        ("v1,edits=v:0.0:70000.0", "not finite in f16"),
        ("v1,edits=v:0.0:inf", "not finite"),
        ("v1,edits=state:0.0:1.0", "there is no state to edit"),
        ("v1,N=3 # why", "found ' '"),
        ("v1,k='gauss'", 'found "\'"'),
    ],
)
def test_a_bad_line_is_refused_in_words(line, words):
    with pytest.raises(CaseError, match=re.escape(words)) as refusal:
        Case.parse(line)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"N": 2.0},
        {"N": True},
        {"seed": -1},
        {"gate": 3},
        {"gate": Kind("none", (1.0,))},
        {"v": Kind("small_int", (1.5,))},
    ],
)
def test_the_constructor_refuses_the_same(wrong):
    with pytest.raises(CaseError):
        Case(**wrong)


def test_replace_and_cut_refuse():
    with pytest.raises(CaseError, match="no field is called 'M'"):
        Case().replace(M=3)
    with pytest.raises(CaseError, match="cannot be cut to 3; expected less"):
        Case().cut(N=3)
    with pytest.raises(CaseError, match="C cannot be cut"):
        Case().cut(C=3)
    assert issubclass(CaseError, ValueError)


# Support


def test_support_says_why_not():
    ours = Support(dtypes=(F16,), tiles=(TileChoice(16, 16, 16),), total_gates={F16: 9.7}, initial_state=False)
    assert ours.refuses(Case()) is None
    assert "dtype is bf16" in ours.refuses(Case(dtype=BF16))
    assert "not among the 1 supported tiles" in ours.refuses(Case(C=32))
    assert "state is zeros" in ours.refuses(Case(state="zeros"))
    assert ours.max_total_gate(F16) == 9.7
    assert ours.max_total_gate(F32) == math.inf
    with pytest.raises(ValueError, match="max_beta is 3"):
        Support(max_beta=3)
    with pytest.raises(ValueError, match="at least one"):
        Support(tiles=())


# The page


def test_every_field_and_kind_is_on_the_page():
    page = (Path(__file__).parents[1] / "docs" / "case-line.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|")]
    kinds = {
        (f, k) for row in rows for f in row[1].split(",") for k in re.findall("`([^`]+)`", row[2]) for f in [f.strip()]
    }
    for field, name in ALL_KINDS:
        assert (field, KINDS[field][name].usage) in kinds, f"docs/case-line.md lacks {field}={KINDS[field][name].usage}"
    named = {f for row in rows for f in re.findall("`([^`]+)`", row[1])}
    for field in Case.__dataclass_fields__:
        assert field in named
    for line in re.findall(r"(?:^    |`)(v1[^`\s]*)", page, re.MULTILINE):
        Case.parse(line)
