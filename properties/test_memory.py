"""The state as an associative memory: it overwrites, recalls, forgets, and holds no more than was written."""

import numpy as np

from kda.numerics.limits import key_length_bound, past_bound, written_bound
from kda.suite.laws import law, meaningful, within
from kda.transforms import forgotten_from, other_past
from strategies import cases

UNIT_KEYS = ("onehot", "onehot_random", "equal", "sign", "parallel", "gauss", "positive")


@law(cases, keys=UNIT_KEYS, betas=("one",), edits=False)
def test_beta_one_overwrites_what_the_key_held(subject, case):
    """After a write with beta = 1 a unit key recalls the new value, whatever was there: o = v where q = k.

    The deletion must remove all of the old value, once.
    """
    inputs = case.inputs()
    asked = inputs.replace(q=inputs.k)
    judged = subject.judge(asked, case.tile)
    # Keys are rounded to the operand format, so their length is 1 up to that: exact recall, up to the same.
    recalled = judged.outputs.with_o(inputs.v)
    within(subject.run(asked, case.tile), recalled, judged.budget + key_length_bound(inputs))


@law(cases, keys=("orthogonal", "onehot"), betas=("one",), gates=("none",), states=("none",), edits=False)
def test_orthonormal_keys_recall_every_value(subject, case):
    """Up to DK orthonormal keys without decay: each later query with an old key returns the old value."""
    case = case.cut(N=min(case.N, case.DK))
    inputs = case.inputs()
    # Ask every token for the value written one, two, three ... tokens before.
    back = np.minimum(np.arange(case.N), case.seed % case.N)
    asked = inputs.replace(q=inputs.k[:, np.arange(case.N) - back])
    judged = subject.judge(asked, case.tile)
    expected = judged.outputs.with_o(inputs.v[:, np.arange(case.N) - back])
    within(subject.run(asked, case.tile), expected, judged.budget + key_length_bound(inputs))


@law(cases, min_tokens=2, keys=UNIT_KEYS, edits=False)
def test_a_closed_gate_forgets(subject, case):
    """After every channel was closed to e^g, of two different pasts at most e^g of their difference is left."""
    gate = -0.99 * min(subject.support.max_total_gate(subject.dtype), 40.0)
    token = case.N // 2
    inputs = forgotten_from(case.inputs(), token, gate)
    past = other_past(inputs, token)
    budget = past_bound(inputs, past, token, gate)
    for part in (inputs, past):
        budget = budget + subject.judge(part, case.tile).budget
    within(subject.run(inputs, case.tile).after(token), subject.run(past, case.tile).after(token), budget.after(token))


@law(cases, keys=UNIT_KEYS, edits=False)
def test_the_state_never_outgrows_what_was_written(subject, case):
    """Unit keys and beta <= 2 never lengthen the state: |S_N| <= |S_0| + sum of beta |v|.

    A decay that grows, or a deletion with the wrong sign, runs away.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile).final_state
    slack = np.linalg.norm(subject.judge(inputs, case.tile).budget.final_state, axis=-1)
    size = np.sqrt((got**2).sum((-2, -1)))
    bound = written_bound(inputs) * (1 + 2 * subject.dtype.unit_roundoff) ** case.N + slack
    meaningful(bool(size.any()))
    assert (size <= bound).all(), f"|S_N| is {size.max():.6g}; what was written bounds it by {bound.min():.6g}"
