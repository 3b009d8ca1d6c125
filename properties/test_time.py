"""Time: no token sees a later one, and a sequence may be cut and carried on."""

from kda.suite.laws import law, meaningful, same_bits, within
from kda.transforms import cuts, joined, other_future, other_future_gate
from strategies import cases


@law(cases, min_tokens=2)
def test_the_future_does_not_change_the_past(subject, case):
    """Whatever the tokens from t on hold, o before t keeps its bits.

    A mask off by one lets a later token in; an anchor inside a block lets its gate in, by rounding alone; a chunk asked
    as a whole whether any beta is above 1 lets its beta in.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for t in cuts(case.N, case.C)[-4:]:
        changed = subject.run(other_future(inputs, t, subject.support.max_beta), case.tile)
        same_bits(changed.before(t), got.before(t), f"other tokens from {t} on")
        meaningful(not changed.equals(got))
        gates = subject.run(other_future_gate(inputs, t), case.tile)
        same_bits(gates.before(t), got.before(t), f"other gates from {t} on")


@law(cases, min_tokens=2)
def test_a_prefix_is_computed_alike(subject, case):
    """The first t tokens alone give the same o as within the whole sequence, bit for bit.

    Rows past the end of a short last chunk must count for nothing.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for t in cuts(case.N, case.C):
        alone = subject.run(inputs.tokens(0, t), case.tile)
        same_bits(alone.before(t), got.before(t), f"the first {t} tokens")


@law(cases, min_tokens=2)
def test_a_sequence_may_be_cut_and_carried_on(subject, case):
    """Two runs with the state carried over are one run: bit for bit at the end of a chunk, within the budget elsewhere.

    A state that is stored too early, decayed by the wrong row, or read in another layout breaks it.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    budget = subject.judge(inputs, case.tile).budget
    for t in cuts(case.N, case.C):
        first = subject.run(inputs.tokens(0, t), case.tile)
        rest = inputs.tokens(t, case.N).replace(initial_state=first.final_state)
        carried = joined(first, subject.run(rest, case.tile))
        if subject.implementation.chunked and t % case.C == 0:
            same_bits(carried, got, f"cut at {t}")
        else:
            within(carried, got, budget + budget, f"cut at {t}")


@law(cases)
def test_a_batch_is_its_members(subject, case):
    """Sequences run together give what each gives alone, bit for bit: packing mixes nothing."""
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for b in range(case.B):
        for h in range(case.H):
            alone = subject.run(inputs.member(b, h), case.tile)
            same_bits(alone, got.member(b, h), f"batch {b}, head {h} alone")
