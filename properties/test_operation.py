"""The operation that people call: raw inputs, packed sequences, grouped heads, states in either layout."""

import numpy as np

from kda import operation_transforms as change
from kda.formats import F16
from kda.numerics.operation import prologue_errors
from kda.problem import Outputs
from kda.suite.laws import meaningful, same_bits, within
from kda.suite.operation_laws import operation_law
from strategies import operations

NAN = float("nan")
MOST_OF_A_GRID_AXIS = 65535
SMALL_STATE = 1024  # as many states of 128 x 128 would be 8 GiB in float64
PACKED = {"packed": (True,)}


def one_format(subject):
    """One format, for laws about what is stored where, which is the same for all."""
    return subject.dtype == F16


@operation_law(operations)
def test_matches_the_float64_operation(subject, case):
    """O and the final state are within the budget of the operation in float64, and nothing else is written.

    The budget is that of the recurrence, and what norm, activations and scale may add to it. Any edit can break it.
    """
    operation = case.operation()
    expected = subject.judge(operation)
    within(subject.run(operation), expected.outputs, expected.budget)


@operation_law(operations, share=0.3)
def test_another_program_gives_the_same(subject, case):
    """Every other program of the operation that is there gives the same, as far as both may be off.

    What one program has wrong and the reference too, a convention of a state, say, has to be wrong in all.
    """
    operation = case.operation()
    got, budget = subject.run(operation), subject.judge(operation).budget
    for other in subject.others(case):
        within(got, other.run(operation), budget + other.judge(operation).budget, f"beside {other.engine.name}")


@operation_law(operations, **PACKED, few=3, min_sequences=2, share=0.3)
def test_a_packed_call_is_each_sequence_alone(subject, case):
    """Each sequence of a packed call gives what it gives alone in a dense one, bit for bit.

    A load that reaches into the neighbour's tokens, or a chunk that does not begin with its sequence, breaks it.
    """
    operation = case.operation()
    got = subject.run(operation)
    for s, length in enumerate(case.sequences):
        if length:
            one = change.only_sequence(got, operation, s)
            same_bits(one, subject.run(change.alone(operation, s)), f"sequence {s} of {length} tokens")


@operation_law(operations, min_heads=2, min_groups=2, share=0.3)
def test_grouped_heads_are_repeated_heads(subject, case):
    """Value head h with the q and k of head h // (HV / H) is a call with these repeated, bit for bit.

    The remainder instead of the quotient gives each value head another's keys.
    """
    operation = case.operation()
    same_bits(subject.run(operation), subject.run(change.with_plain_heads(operation)))


@operation_law(operations, needs=one_format, v_first=(True,), few=2, share=0.3)
def test_states_with_values_first_are_transposed(subject, case):
    """The layout of the states is a matter of storage: the same bits, transposed."""
    operation = case.operation()
    same_bits(subject.run(operation), subject.run(change.with_turned_states(operation)))


@operation_law(operations, needs=one_format, state=(False,), few=2, share=0.3)
def test_no_state_is_a_state_of_zeros(subject, case):
    """A call without an initial state is one from zeros, bit for bit: what is not loaded must be cleared."""
    operation = case.operation()
    zeros = np.zeros_like(operation.replace(state_v_first=False).states())
    if operation.state_v_first:
        zeros = zeros.swapaxes(-1, -2)
    same_bits(subject.run(operation.replace(initial_state=zeros)), subject.run(operation))


@operation_law(operations, needs=one_format, final=(False,), few=2, share=0.2)
def test_o_does_not_hang_on_whether_a_final_state_is_asked_for(subject, case):
    """A final state that nobody asked for changes no bit of o."""
    operation = case.operation()
    same_bits(subject.run(operation.replace(output_final_state=True)).only("o"), subject.run(operation))


@operation_law(operations, share=0.5)
def test_the_scale_multiplies_o_and_nothing_else(subject, case):
    """Minus the scale is minus o, and twice the scale twice o; neither touches a bit of the final state.

    A scale of the keys, or of the state on its way into o, breaks it.
    """
    operation = case.operation()
    got, judged = subject.run(operation), subject.judge(operation)
    opposite = subject.run(operation.replace(scale=-operation.factor))
    same_bits(opposite, got.with_o(-got.o), "minus the scale")
    twice = subject.run(operation.replace(scale=2 * operation.factor))
    same_bits(Outputs(got.o, twice.final_state), got, "the state of twice the scale")
    within(Outputs(twice.o / 2, got.final_state), got, judged.budget + judged.budget, "twice the scale")


@operation_law(operations, normalise=(True,), few=2, share=0.3)
def test_the_norm_in_the_kernel_is_the_norm_before(subject, case):
    """Rows normalised by the kernel are rows normalised before: bit for bit, unless one may round the other way.

    A sum that misses channels, or an epsilon outside the root, breaks it.
    """
    operation = case.operation()
    got, before = subject.run(operation), subject.run(change.with_normalised_rows(operation))
    errors = prologue_errors(operation.replace(gate="log", rate="value"))
    if not (errors.q.any() or errors.k.any()):
        same_bits(got, before)
    else:
        budget = subject.judge(operation).budget
        within(got, before, budget + budget)


@operation_law(operations, gate=("softplus", "bounded"), few=2, share=0.3)
def test_the_gate_in_the_kernel_is_the_gate_before(subject, case):
    """A gate activated by the kernel is that gate activated before, in float32: within both budgets.

    A bias of the wrong head, or a softplus that overflows or loses its small values, breaks it.
    """
    operation = case.operation()
    budget = subject.judge(operation).budget
    within(subject.run(operation), subject.run(change.with_activated_gate(operation)), budget + budget)


@operation_law(operations, rate=("logits", "doubled"), few=2, share=0.3)
def test_beta_from_logits_is_beta_before(subject, case):
    """A beta that the kernel makes of logits is that beta made before, in float32: within both budgets."""
    operation = case.operation()
    budget = subject.judge(operation).budget
    within(subject.run(operation), subject.run(change.with_activated_beta(operation)), budget + budget)


@operation_law(operations, min_tokens=2, share=0.5)
def test_no_token_sees_a_later_one(subject, case):
    """Whatever q, k, v, g and beta a later token has, a gate of -1000 too, no earlier o changes a bit.

    Nor does any other sequence. A mask off by one lets it in, and so does 0 times an infinity.
    """
    operation = case.operation()
    got = subject.run(operation)
    for s, t in change.later_cuts(operation):
        other = subject.run(change.hostile_from(operation, s, t))
        seen = change.tokens_of(operation, s)[t:]
        earlier = np.setdiff1d(np.arange(operation.starts[-1]), seen)
        flat, changed = (x.o.reshape(1, -1, *x.o.shape[2:]) for x in (got, other))
        what = f"other tokens of sequence {s} from {t} on"
        same_bits(Outputs(changed[:, earlier], np.empty(0)), Outputs(flat[:, earlier], np.empty(0)), what)
        meaningful(not np.array_equal(changed[:, seen], flat[:, seen]))
        if got.final_state.size:
            others = np.arange(len(got.final_state)) != s
            kept = [Outputs(np.empty(0), x.final_state[others]) for x in (other, got) if others.any()]
            if kept:
                same_bits(*kept, f"states beside {what}")


@operation_law(operations, **PACKED, min_sequences=2, share=0.5)
def test_no_sequence_sees_another(subject, case):
    """With NaN in every number of the others, their states too, a sequence keeps its bits.

    Tokens past the end of a sequence are its neighbour's: they must be left out, and not multiplied by 0.
    """
    operation = case.operation()
    got = subject.run(operation)
    for s in sorted({0, len(case.sequences) // 2, len(case.sequences) - 1}):
        other = subject.run(change.with_other_sequences(operation, s, NAN))
        same_bits(*(change.only_sequence(x, operation, s) for x in (other, got)), f"sequence {s} among NaN")


@operation_law(operations, **PACKED, tail=True, share=0.3)
def test_tokens_of_no_sequence_are_neither_read_nor_written(subject, case):
    """NaN in the tokens after the last sequence changes no bit, and what o held there stays."""
    operation = case.operation()
    got = subject.run(operation)
    for poison in (NAN, 7.0):
        other = subject.run(change.with_other_tail(operation, NAN), poison)
        same_bits(*(change.own_rows(x, operation) for x in (other, got)), "NaN behind the last sequence")
        behind = other.o[:, operation.starts[-1] :]
        assert np.array_equal(behind, np.full_like(behind, poison), equal_nan=True), "o was written there"


@operation_law(operations, **PACKED, final=(True,), empty=True, share=0.3)
def test_an_empty_sequence_hands_its_state_on(subject, case):
    """The final state of a sequence without tokens is its initial state, bit for bit, or zeros where it had none."""
    operation = case.operation()
    empty = np.diff(operation.starts) == 0
    final = subject.run(operation).final_state[empty]
    same_bits(Outputs(np.empty(0), final), Outputs(np.empty(0), operation.states()[empty]))


@operation_law(operations, **PACKED, min_sequences=2, share=0.3)
def test_sequences_may_come_in_any_order(subject, case):
    """Another order of the sequences is another order of the results, bit for bit."""
    operation = case.operation()
    order = np.roll(np.arange(len(case.sequences))[::-1], 1)
    turned, tokens = change.permuted(operation, order)
    got = subject.run(operation)
    state = got.final_state[order] if got.final_state.size else got.final_state
    same_bits(subject.run(turned), Outputs(got.o[:, tokens], state))


@operation_law(operations, v_first=(False,), state=(True,), final=(True,), few=2, min_tokens=2, share=0.3)
def test_a_sequence_may_be_cut_and_carried_on(subject, case):
    """Two calls with the state handed over are one: within the budget of both."""
    operation = case.operation()
    for s, t in change.later_cuts(operation):
        first, rest = change.cut(operation, s, t)
        whole = change.alone(operation, s)
        one = subject.run(first)
        two = subject.run(rest.replace(initial_state=one.final_state))
        carried = Outputs(np.concatenate([one.o, two.o], axis=1), two.final_state)
        budget = subject.judge(whole).budget
        within(carried, subject.run(whole), budget + budget, f"sequence {s} cut at {t}")


@operation_law(operations, share=0.3)
def test_every_call_gives_the_same_bits(subject, case):
    """Repeated calls agree bit for bit, whatever the outputs held: a race does not, nor memory that nothing wrote."""
    operation = case.operation()
    got = subject.run(operation)
    for poison in (NAN, 1e4):
        same_bits(*(change.own_rows(x, operation) for x in (subject.run(operation, poison), got)), f"over {poison}")


@operation_law(
    operations, needs=one_format, packed=(True,), v_first=(False,), gate=("log",), few=1, min_sequences=3, share=0.02
)
def test_many_sequences_are_each_computed(subject, case):
    """More programs than an axis of a CUDA grid has places give what few give, bit for bit, the last of them too."""
    operation = case.replace(
        lengths=tuple(min(n, 1) for n in (*case.lengths[:2], 1)), tail=0, H=1, groups=1
    ).operation()
    if case.DK * case.DV > SMALL_STATE:
        operation = operation.replace(initial_state=None, output_final_state=False)
    times = MOST_OF_A_GRID_AXIS // (len(operation.starts) - 1) + 2
    got, one = subject.run(change.many_times(operation, times)), subject.run(operation)
    state = np.tile(one.final_state, (times, 1, 1, 1)) if one.final_state.size else one.final_state
    same_bits(got, Outputs(np.tile(one.o, (1, times, 1, 1)), state))
