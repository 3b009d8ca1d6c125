"""Where KDA becomes a simpler system, the kernel computes that system (article 3.4)."""

from kda.numerics.limits import deletion_bound
from kda.references import (
    delta_net,
    delta_net_chunkwise,
    gated_delta_net,
    gated_delta_net_chunkwise,
    linear_attention,
    per_channel_decay,
    scalar_decay,
)
from kda.suite.laws import law, within
from strategies import cases

SCALAR_GATES = ("constant", "log", "edge")


@law(cases, gates=("shared", "head", "constant"), edits=False)
def test_a_shared_gate_is_gated_delta_net(subject, case):
    """When all channels share one gate, KDA is Gated DeltaNet, recurrent and with its C x C table.

    The article's most important one: it sees a split that mixes up channels and positions.
    """
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    got = subject.run(inputs, case.tile)
    within(got, gated_delta_net(inputs), budget, "recurrent")
    within(got, gated_delta_net_chunkwise(inputs, case.C), budget, "chunkwise")


@law(cases, betas=("near0",))
def test_beta_near_zero_is_per_channel_decay(subject, case):
    """As beta -> 0 the deletion goes as beta^2 and per-channel decay remains: the solve must become the identity."""
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    within(subject.run(inputs, case.tile), per_channel_decay(inputs), budget + deletion_bound(inputs))


@law(cases, betas=("zero",), states=("ones", "gauss", "small_int"), edits=False)
def test_beta_zero_decays_the_state_and_nothing_else(subject, case):
    """With beta = 0 nothing is written: the final state is Diag(e^gamma_N) S_0, and o reads the decayed state."""
    inputs = case.inputs()
    within(subject.run(inputs, case.tile), per_channel_decay(inputs), subject.judge(inputs, case.tile).budget)


@law(cases, gates=("none",))
def test_no_gate_is_delta_net(subject, case):
    """With g = 0 every decay is 1 and KDA is DeltaNet: a weight that should have cancelled shows."""
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    got = subject.run(inputs, case.tile)
    within(got, delta_net(inputs), budget, "recurrent")
    within(got, delta_net_chunkwise(inputs, case.C), budget, "chunkwise")


@law(cases, gates=("none",), betas=("near0",))
def test_no_gate_and_beta_near_zero_is_linear_attention(subject, case):
    """Without gate and deletion KDA is linear attention with write strength beta."""
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    within(subject.run(inputs, case.tile), linear_attention(inputs), budget + deletion_bound(inputs))


@law(cases, gates=SCALAR_GATES, betas=("near0",), edits=False)
def test_a_constant_gate_and_beta_near_zero_is_scalar_decay(subject, case):
    """With one constant gate and no deletion KDA is linear attention with scalar decay."""
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    within(subject.run(inputs, case.tile), scalar_decay(inputs), budget + deletion_bound(inputs))
