"""The outputs are linear in q, and linear in v and the initial state together."""

import numpy as np

from kda.suite.laws import law, same_bits, within
from kda.transforms import only_channels, only_tokens, plus, scaled
from strategies import cases


@law(cases)
def test_queries_add_up(subject, case):
    """O = S q: queries on even and on odd channels add up to the whole, and no query touches the state."""
    inputs = case.inputs()
    whole = subject.run(inputs, case.tile)
    budget = subject.judge(inputs, case.tile).budget
    even, odd = (only_channels(inputs, remainder) for remainder in (0, 1))
    parts = [subject.run(part, case.tile) for part in (even, odd)]
    budgets = [subject.judge(part, case.tile).budget for part in (even, odd)]
    for part in parts:
        same_bits(part.only("final_state"), whole.only("final_state"), "the state")
    within(plus(*parts).only("o"), whole.only("o"), budget + budgets[0] + budgets[1])


@law(cases)
def test_values_and_states_add_up(subject, case):
    """For fixed q, k, g and beta the map (v, S_0) -> (o, S_N) is linear: even and odd tokens add up to the whole."""
    inputs = case.inputs()
    whole = subject.run(inputs, case.tile)
    parts = [only_tokens(inputs, remainder) for remainder in (0, 1)]
    got = plus(*(subject.run(part, case.tile) for part in parts))
    budgets = [subject.judge(part, case.tile).budget for part in (inputs, *parts)]
    within(got, whole, budgets[0] + budgets[1] + budgets[2])


@law(cases)
def test_doubling_values_and_state_doubles_the_outputs(subject, case):
    """A power of two passes through every rounding: twice v and S_0 is twice o and S_N, up to underflow.

    Any constant that does not belong (an epsilon, a clamp, a lost accumulator) breaks it.
    """
    inputs = case.inputs()
    twice = scaled(inputs, 2.0)
    got, expected = subject.run(twice, case.tile), subject.run(inputs, case.tile)
    within(got, plus(expected, expected), subject.judge_doubling(twice, case.tile).budget)


@law(cases, values=("zeros",), states=("none", "zeros"), edits=False)
def test_nothing_in_nothing_out(subject, case):
    """Without values and without a state every output is exactly zero, whatever the keys, gates and betas."""
    got = subject.run(case.inputs(), case.tile)
    assert not np.any(got.o), "o is not zero"
    assert not np.any(got.final_state), "final_state is not zero"
