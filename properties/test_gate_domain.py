"""The gate domain: any gate is computed within its budget or refused by name, and the article's rule of 0.9, tested."""

from math import inf

from kda.malformed import outcome
from kda.numerics.compare import all_finite
from kda.numerics.domain import DomainError
from kda.numerics.side import gate_side
from kda.problem import InputError
from kda.suite.laws import law, within
from strategies import wild_cases


def bounds_sums_alone(subject):
    """Whether what the subject declares about g is a bound of its sum over a chunk, or nothing."""
    return subject.support.max_token_gate == inf


def computed_or_refused(subject, case):
    """Run `case`: what is inside the domain is computed within the budget, what is outside is refused by name."""
    inputs = case.inputs()
    side = gate_side(inputs, case.C, subject.support.max_total_gate(subject.dtype))
    got = outcome(lambda: subject.run(inputs, case.tile), "a gate")
    if isinstance(got, InputError):
        assert isinstance(got, DomainError), f"expected a DomainError: {got}"
        assert not side.inside, f"refused, though {side}: {got}"
        assert side.named_in(str(got)), f"the place named is not the worst: {got}"
        return
    assert not side.outside, f"computed, though {side}"
    expected = subject.judge(inputs, case.tile)
    assert all_finite(got, expected.outputs, expected.budget), f"not finite, though {side}"
    within(got, expected.outputs, expected.budget)


@law(wild_cases, needs=bounds_sums_alone, share=0.5)
def test_any_gate_is_computed_or_refused(subject, case):
    """A gate from 0 to -1000 is computed within the budget, or refused before a launch with the worst place named.

    In between lies what a model would not forgive: inf, NaN or noise in silence, or a refusal of what would have run.
    """
    computed_or_refused(subject, case)


@law(wild_cases, of=("ref_A", "ref_B", "ref_C"), share=0.5)
def test_any_gate_is_no_gate_too_deep_for_the_references(subject, case):
    """References A and B compute every gate, and C every one that float64 can split: they judge all the others."""
    computed_or_refused(subject, case)
