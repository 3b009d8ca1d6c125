"""The gate domain: any gate is computed within its budget or refused by name, and the article's rule of 0.9, tested."""

import random
from dataclasses import replace
from math import exp, inf

from hypothesis import Phase, find, given, settings

from kda.border import FORMATS
from kda.case import Case
from kda.formats import F16
from kda.malformed import outcome, refusal
from kda.numerics.budget import judge, operand_units
from kda.numerics.compare import all_finite
from kda.numerics.domain import DomainError, gate_domain
from kda.numerics.side import gate_side
from kda.problem import InputError
from kda.references import ref_C_fast
from kda.suite.laws import broken, law, within
from kda.support import Support, TileChoice
from strategies import breaking_cases, cases, gates_between, wild_cases


def bounds_sums_alone(subject):
    """Whether what the subject declares about g is a bound of its sum over a chunk, or nothing."""
    return subject.support.max_token_gate == inf


def computed_or_refused(subject, case):
    """Outputs, finite, and what they are judged by, where `case` is inside the domain; None where it was refused."""
    inputs = case.inputs()
    support = subject.support
    side = gate_side(inputs, support.gate_window(case.C), support.max_total_gate(subject.dtype))
    got = outcome(lambda: subject.run(inputs, case.tile), "a gate")
    if isinstance(got, InputError):
        assert isinstance(got, DomainError), f"expected a DomainError: {got}"
        assert not side.inside, f"refused, though {side}: {got}"
        assert side.named_in(str(got)), f"the place named is not the worst: {got}"
        return None
    assert not side.outside, f"computed, though {side}"
    expected = subject.judge(inputs, case.tile)
    assert all_finite(got, expected.outputs, expected.budget), f"not finite, though {side}"
    return got, expected.outputs, expected.budget


@law(wild_cases, needs=bounds_sums_alone, share=0.5)
def test_any_gate_is_computed_or_refused(subject, case):
    """A gate from 0 to -1000 is computed within the budget, or refused before a launch with the worst place named.

    In between lies what a model would not forgive: inf, NaN or noise in silence, or a refusal of what would have run.
    """
    computed = computed_or_refused(subject, case)
    if computed is not None:
        within(*computed)


def splits_the_exponent(subject):
    """Whether the subject has the domain of a kernel that splits the exponent, and can be run without asking."""
    known = subject.dtype in FORMATS and subject.implementation.unchecked() is not None
    return known and subject.support.max_total_gate(subject.dtype) == gate_domain(subject.dtype, 1).total


@law(breaking_cases, needs=splits_the_exponent, share=0.2)
def test_just_outside_the_domain_a_case_breaks(subject, case):
    """At most 1.5 nats beyond the border a case breaks its budget; the launch refuses it, and must be told not to ask.

    A border that nothing lies behind refuses models that would run.
    """
    inputs = case.inputs()
    assert isinstance(refusal(lambda: subject.run(inputs, case.tile), "a gate outside"), DomainError)
    bold = replace(subject, implementation=subject.implementation.unchecked())
    expected = bold.judge(inputs, case.tile)
    assert broken(bold.run(inputs, case.tile), expected.outputs, expected.budget)


@law(wild_cases, of=("ref_A", "ref_B", "ref_C"), share=0.5)
def test_no_gate_is_too_deep_for_the_references(subject, case):
    """References A and B compute every gate, C every one that float64 can split, each within a budget that is finite.

    They judge kernels at the border of a domain, where a NaN of their own would be equal to a kernel's.
    """
    computed = computed_or_refused(subject, case)
    if computed is not None:
        within(*computed)


# The article, 1.3 and 2.1: "a lower bound of 0.9 is the dividing line", in float16 at both ends, found by drawing
# a ~ U(0.9, 0.999). It is taken as a claim about every gate with a >= 0.9, and looked for on a kernel without a check.


def articles_cases(*chunks):
    """Cases in float16 with a in [0.9, 0.999]: constant, per channel or drawn for every token."""
    tiles = tuple(TileChoice(16, 16, C) for C in chunks)
    return cases(Support(dtypes=(F16,), tiles=tiles, max_tokens=max(chunks)), gates=gates_between(0.9, 0.999))


def goes_wrong(case):
    """Whether the float16 mirror, which refuses nothing, gives inf, NaN or an error beyond the budget."""
    inputs = case.inputs()
    got = ref_C_fast(inputs, case.C, case.block_DV, F16)
    expected = judge(inputs, case.C, operand_units(inputs, case.C, F16))
    return not all_finite(got) or broken(got, expected.outputs, expected.budget)


def leaves_the_domain(case):
    """Whether some e^gamma is subnormal in float16."""
    return gate_side(case.inputs(), case.C, gate_domain(F16, case.C).total).outside


def smallest(strategy, condition):
    """The simplest case that Hypothesis finds."""
    return str(find(strategy, condition, random=random.Random(0), settings=settings(database=None, max_examples=10000)))


def test_a_bound_of_09_is_not_enough_for_chunks_of_128():
    """With a = 0.9 e^-gamma overflows at the 106th token of a chunk, and e^gamma is subnormal from the 93rd on."""
    assert smallest(articles_cases(16, 32, 64, 128), goes_wrong) == "v1,N=106,C=128,gate=constant:0.9"
    assert smallest(articles_cases(16, 32, 64, 128), leaves_the_domain) == "v1,N=93,C=128,gate=constant:0.9"


def test_a_bound_of_09_is_enough_for_chunks_of_64():
    """No gate with a >= 0.9 goes wrong in a chunk of 64 or less; the domain says that 0.8593 would do."""

    @settings(derandomize=True, database=None, max_examples=1000, phases=[Phase.generate], deadline=None)
    @given(articles_cases(16, 32, 64))
    def holds(case):
        assert not goes_wrong(case), str(case)
        assert not leaves_the_domain(case), str(case)

    holds()
    assert round(exp(-gate_domain(F16, 64).per_token), 4) == 0.8593


def test_drawn_gates_do_not_show_it():
    """Of 200 chunks of 128 tokens with a ~ U(0.9, 0.999) none goes wrong: the rule was read off gates like these."""
    drawn = Case(B=200, N=128, DK=128, C=128, dtype=F16, gate="uniform:0.9:0.999", beta="uniform:0.1:0.9", q="gauss")
    for keys in ("onehot", "gauss"):
        case = drawn.replace(k=keys, v="gauss")
        assert not goes_wrong(case)
        assert not leaves_the_domain(case)
