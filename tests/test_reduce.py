"""Reducing a failing case: how small it becomes, and what it never becomes."""

from dataclasses import replace

import numpy as np
import pytest
from small_project import ROOT

from kda.case import Case
from kda.diagnosis import reduce
from kda.diagnosis.explicit import ZERO, active_tokens, case_of, cut_out, explicit, numbers
from kda.diagnosis.measured import removals
from kda.diagnosis.reduce import reduced
from kda.formats import F16, F32
from kda.implementations import Implementation
from kda.mutation.campaign import SMALLEST_TILE
from kda.mutation.catalogue import CATALOGUE
from kda.problem import InputError, Outputs
from kda.references import ref_A_fast
from kda.suite.laws import Disagreement, Subject, load_laws
from kda.suite.record import Record
from kda.support import Support, TileChoice

DENSE = "gate=uniform:0.9:0.999,beta=uniform:0.1:0.9,q=gauss,k=gauss,v=gauss,state=gauss,seed=3"


@pytest.fixture(scope="module")
def laws():
    return load_laws(ROOT / "properties")


class Wrong(Implementation):
    """Reference A, and what `spoils` makes of it: a function of the inputs and the outputs."""

    name = "wrong"
    summary = "reference A with a mistake"

    def __init__(self, spoils, tiles=None):
        self.spoils, self.tiles = spoils, tiles

    def dtypes(self, target):
        return (F32,)

    def support(self, target, dtype):
        return Support(dtypes=(dtype,), tiles=self.tiles, max_beta=2.0)

    def run(self, inputs, tile, target, memory=None):
        outputs = ref_A_fast(inputs)
        return self.spoils(inputs, outputs) or outputs


def off_by(outputs, amount):
    return Outputs(outputs.o + amount, outputs.final_state)


def mirror_with(name, dtype=F32):
    """A known mistake in the mirror, on the smallest tile."""
    mistake = CATALOGUE[name]
    return Subject(mistake.mutant("mirror").planted(), "c", dtype, (mistake.tile or SMALLEST_TILE,))


def failure(law, subject, case):
    """What `case` raises under `law`; None where it holds."""
    try:
        law.holds_for(subject, case, Record(law.name, subject.id))
    except Exception as error:
        return error
    return None


def reduction(law, subject, line, **options):
    """The reduction of a case that fails, with time enough for any machine."""
    case = Case.parse(line)
    error = failure(law, subject, case)
    assert error is not None, "the case was meant to fail"
    return reduced(law, subject, case, error, **{"budget_seconds": 600.0} | options)


def spoiled(spoils, line, laws, law="kernel.matches_reference_A", **options):
    return reduction(laws[law], Subject(Wrong(spoils), "c", F32), line, **options)


# how small


def test_betas_of_one_half_take_a_token_less(laws):
    """With betas of 0 and 1 alone, one that is missing from L takes a third token to show."""
    line = "v1,N=3,DV=32,dtype=f32,beta=zero,q=zeros,k=zeros,v=zeros,edits="
    line += "k:0.0:1.0/k:1.0:1.0/k:2.0:1.0/v:0.0:1.0/beta:0.0.0:1.0/beta:0.0.2:1.0"
    found = reduction(laws["kernel.matches_reference_A"], mirror_with("beta-dropped-from-L"), line)
    assert active_tokens(found.case.inputs()) == 2


def test_other_numbers_do_with_fewer_of_them(laws):
    """What only rounds wrongly hangs on its numbers: none of these five can go, and four others show it."""
    line = "v1,N=2,DV=32,beta=zero,q=zeros,k=zeros,v=zeros,state=zeros,edits=state:0.0.2.0:1.0/beta:0.0.0:1.0/"
    line += "beta:0.0.1:1.0/k:0.0.0.0:0.24609375/k:0.0.0.1:1.0/k:0.0.1.0:0.2451171875/k:0.0.1.1:1.0/"
    line += "k:0.0.1.2:0.13623046875/v:0.0.0.0:1.0"
    subject = mirror_with("U-in-operand-precision", F16)
    found = reduction(laws["kernel.matches_its_mirror"], subject, line)
    assert max(numbers(found.case.inputs()).values()) <= 4
    assert not [case for case in removals(Case.parse(line)) if failure(found.law, subject, case)]


@pytest.mark.parametrize(
    ("name", "N", "tokens", "most"),
    [
        ("beta-twice", 1, 1, 1),
        ("o-accumulates", 17, 1, 1),
        ("substitution-without-the-last-row", 16, 2, 2),
        ("keys-enter-the-state-undecayed", 2, 2, 1),
        ("first-order-inverse", 3, 3, 4),
        ("M-accumulates", 18, 4, 4),
        ("initial-state-ignored", 1, 0, 1),
        ("state-of-batch-0", 1, 0, 1),
    ],
)
def test_a_known_mistake_shows_in_a_few_numbers(name, N, tokens, most, laws):
    """From a case with thousands of numbers to what the mistake needs, and nothing else that could go."""
    subject = mirror_with(name)
    found = reduction(laws["kernel.matches_reference_A"], subject, f"v1,B=2,N=18,H=2,DV=32,dtype=f32,{DENSE}")
    inputs = found.case.inputs()
    assert (N, tokens) == (found.case.N, active_tokens(inputs)), str(found.case)
    assert max(numbers(inputs).values()) <= most, str(found.case)
    assert found.complete
    assert isinstance(failure(found.law, subject, found.case), Disagreement)
    assert not [str(case) for case in removals(found.case) if failure(found.law, subject, case)]


def test_the_numbers_left_are_simple(laws):
    """1, powers of two and gates of -1, at the first channels."""
    found = reduction(laws["kernel.matches_reference_A"], mirror_with("Q-without-decay"), f"v1,DV=32,dtype=f32,{DENSE}")
    assert str(found.case) == (
        "v1,DV=32,dtype=f32,beta=zero,q=zeros,k=zeros,v=zeros,"
        "edits=g:0.0.0.0:-1.0/beta:0.0.0:1.0/k:0.0.0.0:1.0/q:0.0.0.0:1.0/v:0.0.0.0:1.0"
    )


def test_channels_are_the_first_where_any_would_do(laws):
    found = spoiled(
        lambda inputs, outputs: off_by(outputs, float(inputs.v.max() > 50)), "v1,dtype=f32,edits=v:0.9:100.0", laws
    )
    assert [edit.index[-1] for edit in found.case.edits] == [0]


def test_numbers_are_equal_where_they_can_be(laws):
    """Two numbers that must be far from 1, and could be the same."""

    def spoils(inputs, outputs):
        return off_by(outputs, 1.0) if np.count_nonzero(inputs.v > 64) >= 2 else None

    found = spoiled(
        spoils, f"v1,N=2,dtype=f32,{DENSE},edits=v:0.0:100.0/v:1.0:1000.0".replace("v=gauss", "v=zeros"), laws
    )
    assert len({edit.value for edit in found.case.edits if edit.tensor == "v"}) == 1


def test_a_seed_that_nothing_draws_from_goes(laws):
    """Once the one number that this seed drew is written down."""
    line = f"v1,N=2,dtype=f32,{DENSE}"
    drawn = Case.parse(line).inputs().v[0, 1, 0, 3]
    found = spoiled(lambda inputs, outputs: off_by(outputs, float((inputs.v == drawn).any())), line, laws)
    assert [edit.value for edit in found.case.edits] == [drawn]
    assert found.case.seed == 0


def test_a_number_that_must_have_many_bits_keeps_them(laws):
    """What only shows in the rounding of 1 + 2^-11 is not rounded away."""
    found = reduction(
        laws["kernel.matches_its_mirror"], mirror_with("state-in-operand-precision", F16), f"v1,DV=32,{DENSE}"
    )
    ((_, value),) = {(edit.tensor, edit.value) for edit in found.case.edits if edit.tensor == "state"}
    assert value != F16.round(np.array([value]))[0]
    assert len(found.case.edits) <= 3


def test_the_smallest_tile_is_taken(laws):
    tiles = (TileChoice(16, 16, 16), TileChoice(32, 32, 32, 16))
    subject = Subject(Wrong(lambda inputs, outputs: off_by(outputs, 1.0), tiles), "c", F32)
    found = reduction(laws["kernel.matches_reference_A"], subject, f"v1,N=40,DK=32,DV=32,C=32,dtype=f32,{DENSE}")
    assert (found.case.DK, found.case.DV, found.case.C, found.case.N) == (16, 16, 16, 1)


def test_tokens_go_from_before_and_between_what_matters(laws):
    def spoils(inputs, outputs):
        high, low = ((sign * inputs.v[0, :, 0] > 50).any(-1) for sign in (1, -1))
        return off_by(outputs, 1.0) if high.any() and low.any() and not (high & low).any() else None

    found = spoiled(spoils, "v1,N=9,dtype=f32,edits=v:2.0:100.0/v:6.1:-100.0", laws)
    assert found.case.N == 2


def test_what_belongs_together_goes_together(laws):
    """No single number of a token can go, and whole tokens can."""

    def spoils(inputs, outputs):
        alike = (inputs.k.any(-1) == inputs.v.any(-1)).all()
        return off_by(outputs, 1.0) if alike and inputs.sizes.N >= 5 and inputs.v[:, 4].any() else None

    found = spoiled(spoils, f"v1,N=6,dtype=f32,{DENSE}", laws)
    assert (found.case.N, active_tokens(found.case.inputs())) == (5, 1)


def test_a_number_goes_that_another_one_kept(laws):
    """The second time around, when v is zero, beta may be; the token stays, for its query matters."""

    def spoils(inputs, outputs):
        needs = inputs.q.max() > 50 and (inputs.beta.any() or not inputs.v.any())
        return off_by(outputs, float(needs))

    found = spoiled(spoils, f"v1,dtype=f32,{DENSE},edits=q:0.0:100.0", laws)
    assert [edit.tensor for edit in found.case.edits] == ["q"]


def test_sequences_go_from_before_what_matters(laws):
    def spoils(inputs, outputs):
        return off_by(outputs, 1.0) if inputs.v.max() > 50 else None

    found = spoiled(spoils, "v1,B=2,H=3,dtype=f32,edits=v:1.2.0.0:100.0", laws)
    assert (found.case.B, found.case.H) == (1, 1)


def test_gates_of_many_tokens_add_up_in_one(laws):
    """A mistake that needs a deep sum of gates needs one gate."""

    def spoils(inputs, outputs):
        return off_by(outputs, 1.0) if inputs.g.sum(1).min() < -3 else None

    found = spoiled(spoils, "v1,N=40,dtype=f32,gate=uniform:0.8:0.9,k=gauss,q=gauss", laws)
    assert [(edit.tensor, edit.value) for edit in found.case.edits] == [("g", -4.0)]
    assert found.case.N == 1


def test_alike_keys_become_one_channel(laws):
    """A hard triangular solve keeps one number per key: equal Gaussian keys have sixteen."""
    mistake = "doubling-product"
    line = "v1,N=11,DV=32,C=64,dtype=f32,beta=constant:2.0,k=equal,seed=2"
    found = reduction(laws["kernel.matches_reference_A"], mirror_with(mistake), line)
    assert {edit.index[-1] for edit in found.case.edits if edit.tensor in ("k", "v")} == {0}
    assert max(numbers(found.case.inputs()).values()) <= 22


# what must stay


def test_a_wrong_number_does_not_become_a_nan(laws):
    """Numbers that are finite and wrong say more than a NaN, which any other mistake gives as well."""

    def spoils(inputs, outputs):
        return off_by(outputs, 1.0 if inputs.v.any() else np.nan)

    found = spoiled(spoils, f"v1,N=3,dtype=f32,{DENSE}", laws)
    assert np.isfinite(found.error.got.o).all()
    assert numbers(found.case.inputs())["v"] == 1


def test_a_wrong_number_does_not_become_a_refusal(laws):
    def spoils(inputs, outputs):
        if inputs.sizes.N < 3:
            raise InputError("N is too small; expected 3")
        return off_by(outputs, 1.0)

    found = spoiled(spoils, f"v1,N=7,dtype=f32,{DENSE}", laws)
    assert isinstance(found.error, Disagreement)
    assert found.case.N == 3


def test_a_refusal_does_not_become_a_wrong_number(laws):
    def spoils(inputs, outputs):
        if inputs.sizes.N >= 3:
            raise InputError("N is too large; expected 2")
        return off_by(outputs, 1.0)

    found = spoiled(spoils, f"v1,N=7,dtype=f32,{DENSE}", laws)
    assert isinstance(found.error, InputError)
    assert found.case.N == 3


def test_a_crash_of_one_type_stays_of_that_type(laws):
    def spoils(inputs, outputs):
        raise (KeyError if inputs.sizes.N >= 3 else IndexError)(inputs.sizes.N)

    found = spoiled(spoils, f"v1,N=7,dtype=f32,{DENSE}", laws)
    assert isinstance(found.error, KeyError)
    assert found.case.N == 3


def test_an_error_that_is_clear_stays_clear(laws):
    """A case just above its budget may be noise to who reads it; one far above it is preferred, and costs a token."""
    law = laws["kernel.matches_reference_A"]

    def spoils(inputs, outputs):
        budget = Subject(Wrong(None), "c", F32).judge(inputs, Case(N=inputs.sizes.N).tile).budget
        return Outputs(outputs.o + 0.5 * inputs.sizes.N * budget.o[..., None] / 4, outputs.final_state)

    found = reduction(law, Subject(Wrong(spoils), "c", F32), "v1,N=9,dtype=f32")
    assert found.case.N == 4
    barely = reduction(law, Subject(Wrong(spoils), "c", F32), "v1,N=3,dtype=f32")
    assert barely.case.N == 3


# the law


def test_what_is_wrong_by_itself_goes_on_under_a_law_that_takes_any_case(laws):
    """This one takes some gates and no edits: a kernel that is wrong on the inputs is shown wrong on the inputs."""
    line = f"v1,N=5,DV=32,dtype=f32,{DENSE}".replace("uniform:0.9:0.999", "shared:0.9:0.999", 1)
    found = reduction(laws["degeneration.a_shared_gate_is_gated_delta_net"], mirror_with("beta-twice"), line)
    assert found.law.name == "kernel.matches_reference_A"
    assert found.said == (
        "degeneration.a_shared_gate_is_gated_delta_net fails because the numbers are wrong by themselves: "
        "reduced under kernel.matches_reference_A"
    )
    assert len(found.case.edits) == 3


def test_what_only_the_law_sees_stays_under_it(laws):
    """A kernel of which every run is right by itself, and no two the same."""

    def spoils(inputs, outputs, runs=[0]):  # noqa: B006
        runs[0] += 1
        return Outputs(outputs.o * (1 + 1e-9 * runs[0]), outputs.final_state) if inputs.sizes.N > 1 else None

    name = "machine.every_run_gives_the_same_bits"
    found = spoiled(spoils, f"v1,N=5,dtype=f32,{DENSE}", laws, name)
    assert (found.law.name, found.said, found.case.N) == (name, "", 2)
    assert sum(numbers(found.case.inputs()).values()) <= 4


def test_a_law_that_is_about_some_gates_gets_one_of_them(laws):
    """The gate must decay under this law; one number of it is left all the same."""

    def spoils(inputs, outputs):
        return None

    class Narrow(Wrong):
        def support(self, target, dtype):
            return replace(super().support(target, dtype), total_gates={F32: 80.0})

    subject = Subject(Narrow(spoils), "c", F32)
    found = reduction(laws["contract.the_gate_domain_is_tight"], subject, "v1,N=4,dtype=f32,gate=constant:0.9")
    assert isinstance(found.error, AssertionError)
    assert numbers(found.case.inputs())["g"] == 1


# how it searches


def test_it_finds_the_same_every_time(laws):
    line = f"v1,N=17,DV=32,dtype=f32,{DENSE}"
    found = [reduction(laws["kernel.matches_reference_A"], mirror_with("W-S-accumulates"), line) for _ in range(2)]
    assert found[0].case == found[1].case
    assert found[0].tried == found[1].tried


def test_the_clock_ends_it_early(laws):
    found = spoiled(lambda inputs, outputs: off_by(outputs, 1.0), f"v1,dtype=f32,{DENSE}", laws, budget_seconds=0.0)
    assert found.case == found.before
    assert not found.complete


def test_it_tries_no_more_than_it_may(laws, monkeypatch):
    monkeypatch.setattr(reduce, "MOST", 7)
    found = spoiled(lambda inputs, outputs: off_by(outputs, 1.0), f"v1,N=9,dtype=f32,{DENSE}", laws)
    assert found.tried == 7
    assert not found.complete


def test_every_try_is_announced(laws):
    """A reduction may crash its process: what it was trying is on disk by then."""

    class Watch:
        begun, ended = [], 0

        def begin(self, text):
            self.begun.append(text)

        def failed(self, text, error):
            pass

        def end(self):
            self.ended += 1

    watch = Watch()
    found = spoiled(lambda inputs, outputs: off_by(outputs, 1.0), f"v1,N=3,dtype=f32,{DENSE}", laws, watch=watch)
    assert found.tried == len(watch.begun) == watch.ended
    assert any(str(found.case) in text for text in watch.begun)


@pytest.mark.parametrize("raised", [None, KeyError("now")])
def test_what_does_not_fail_again_is_left_alone(raised, laws):
    def spoils(inputs, outputs):
        if raised is not None:
            raise raised

    law, subject = laws["kernel.matches_reference_A"], Subject(Wrong(spoils), "c", F32)
    found = reduced(law, subject, Case(dtype=F32), AssertionError("before"))
    assert (found.case, found.complete) == (Case(dtype=F32), False)
    assert found.said == "it did not fail in the same way again: nothing was reduced"


def test_what_went_is_said(laws):
    found = spoiled(lambda inputs, outputs: off_by(outputs, 1.0), "v1,B=2,N=9,dtype=f32,k=gauss", laws)
    assert found.dropped == (
        "batches 2 -> 1, tokens 9 -> 1, tokens that are not zero 9 -> 0, numbers that are not zero 612 -> 0"
    )


# cases as zeros and numbers


@pytest.mark.parametrize("field", list(ZERO))
def test_a_tensor_written_out_is_the_same(field):
    case = Case.parse(f"v1,B=2,N=3,H=2,{DENSE},edits=v:1.0:4.0/beta:0:0.5/k:0.0.2.1:0.25/g:1:-2.0/state:0.1:3.0")
    for zero in ZERO[field]:
        made = explicit(case, field, zero)
        assert str(getattr(made, field)) == zero
        for (name, mine), (_, theirs) in zip(made.inputs().tensors(), case.inputs().tensors(), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


def test_inputs_are_a_case():
    case = Case.parse(f"v1,B=2,N=3,H=2,DV=32,dtype=f32,{DENSE}")
    made = case_of(case.inputs(), case.tile)
    assert made.tile == case.tile
    assert Case.parse(str(made)) == made
    for (name, mine), (_, theirs) in zip(made.inputs().tensors(), case.inputs().tensors(), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


def test_cutting_out_moves_what_comes_later():
    case = Case.parse("v1,B=2,N=5,edits=v:1.0:2.0/v:2.0:3.0/v:4.0:4.0/beta:1.0.4:0.5")
    assert str(cut_out(case, "N", 2, 4)) == "v1,B=2,N=3,edits=v:1.0:2.0/v:2.0:4.0/beta:1.0.2:0.5"
    assert str(cut_out(case, "B", 0, 1)) == "v1,N=5,edits=v:1.0:2.0/v:2.0:3.0/v:4.0:4.0/beta:0.0.4:0.5"


def test_a_token_is_active_where_any_of_its_numbers_is_not_zero():
    zeros = "v1,N=6,beta=zero,q=zeros,k=zeros,v=zeros,state=ones"
    assert active_tokens(Case.parse(zeros).inputs()) == 0
    edits = "q:0.1:1.0/k:1.0:1.0/v:2.15:1.0/g:3.0:-1.0/beta:4:0.5"
    assert active_tokens(Case.parse(f"{zeros},edits={edits}").inputs()) == 5
