"""The references among themselves, in float64: what the kernel is judged by has laws of its own."""

import numpy as np
from hypothesis import strategies as st

from kda.case import Kind
from kda.numerics.limits import deletions_beyond_the_first, gates_beyond_the_first, relative_budget, split_error
from kda.references import (
    delta_net,
    delta_net_chunkwise,
    gated_delta_net,
    gated_delta_net_chunkwise,
    linear_attention,
    linear_attention_chunkwise,
    per_channel_decay,
    per_channel_decay_chunkwise,
    ref_A_fast,
    ref_B,
    scalar_decay,
    scalar_decay_chunkwise,
)
from kda.suite.laws import bounded, broken, law, meaningful, within
from strategies import cases

ARTICLE_GATES = st.just(Kind("uniform", (0.9, 0.999)))
ARTICLE_BETAS = st.just(Kind("uniform", (0.1, 0.9)))
GAUSS = st.just(Kind("gauss"))


@law(cases, of=("ref_B", "ref_C"), share=4)
def test_match_reference_A(subject, case):
    """B and C compute A: the same budget as a kernel's, at the unit roundoff of float64.

    The kernel is judged by all three; a slip in one of them would be found here and not in the kernel.
    """
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile)
    within(subject.run(inputs, case.tile), expected.outputs, expected.budget)


@law(
    cases,
    of=("ref_B", "ref_C"),
    gates=ARTICLE_GATES,
    betas=ARTICLE_BETAS,
    keys=GAUSS,
    queries=GAUSS,
    values=GAUSS,
    states=("none", "gauss"),
    edits=False,
)
def test_match_reference_A_on_the_articles_ranges(subject, case):
    """On a in [0.9, 0.999], beta in [0.1, 0.9] and random unit keys, B and C agree with A to 1e-13 per row (3.4)."""
    inputs = case.inputs()
    expected = ref_A_fast(inputs)
    within(subject.run(inputs, case.tile), expected, relative_budget(inputs, expected, 1e-13))


@law(cases, of=("ref_C",))
def test_the_exponent_splits(subject, case):
    """(k e^gamma_c) . (k e^-gamma_i) is k . (k e^(gamma_c - gamma_i)): the GEMM of 1.2 is the pairwise sum of 1.1."""
    bounded(split_error(case.inputs(), case.C), "M and A_qk")


@law(cases, of=("ref_B",), min_tokens=2)
def test_both_beta_pairings_agree(subject, case):
    """L = beta_i M with diag(beta) T is L = beta_c M with T diag(beta) (3.2): two names of one matrix."""
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile)
    for pairing in ("diag_beta_T", "T_diag_beta"):
        got = subject.implementation.literal(inputs, case.C, pairing=pairing)
        within(got, expected.outputs, expected.budget, pairing)


@law(cases, of=("ref_B",), min_tokens=2, betas=("zero", "one", "constant"), edits=False)
def test_equal_betas_hide_a_mixed_pairing(subject, case):
    """With one beta for all tokens the mixed pairing is right, as the article says: such a case proves nothing."""
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile)
    within(ref_B(inputs, case.C, pairing="mixed"), expected.outputs, expected.budget)


@law(
    cases,
    of=("ref_B",),
    min_tokens=4,
    gates=ARTICLE_GATES,
    betas=ARTICLE_BETAS,
    keys=("equal", "sign"),
    queries=("equal", "sign"),
    values=GAUSS,
    states=("none",),
    edits=False,
)
def test_random_betas_show_a_mixed_pairing(subject, case):
    """With a beta of its own for each token the mixed pairing is wrong by about a tenth."""
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile)
    if meaningful(case.C > 1):
        assert broken(
            ref_B(inputs, case.C, pairing="mixed"), expected.outputs, relative_budget(inputs, expected.outputs, 1e-3)
        )


@law(cases, of=("ref_A",), gates=("none",))
def test_linear_attention_in_chunks_is_the_recurrence(subject, case):
    """The article's first system, chunked with a 0/1 mask, is S <- S + beta v k^T."""
    inputs = case.inputs()
    expected = linear_attention(inputs)
    within(linear_attention_chunkwise(inputs, case.C), expected, relative_budget(inputs, expected, 1e-11))


@law(cases, of=("ref_A",), gates=("none", "constant"), edits=False)
def test_scalar_decay_in_chunks_is_the_recurrence(subject, case):
    """The second system, with its table alpha^(i-j), is S <- alpha S + beta v k^T."""
    inputs = case.inputs()
    expected = scalar_decay(inputs)
    within(scalar_decay_chunkwise(inputs, case.C), expected, relative_budget(inputs, expected, 1e-11))


@law(cases, of=("ref_A",))
def test_per_channel_decay_in_chunks_is_the_recurrence(subject, case):
    """KDA without its deletion, chunked, is S <- S Diag(a) + beta v k^T."""
    inputs = case.inputs()
    expected = per_channel_decay(inputs)
    within(per_channel_decay_chunkwise(inputs, case.C), expected, relative_budget(inputs, expected, 1e-11))


@law(cases, of=("ref_A",), gates=("none",))
def test_delta_net_in_chunks_is_the_recurrence(subject, case):
    """DeltaNet by the UT transform is S <- S (I - beta k k^T) + beta v k^T."""
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    within(delta_net_chunkwise(inputs, case.C), delta_net(inputs), budget)


@law(cases, of=("ref_A",), gates=("none", "shared", "constant", "head"), edits=False)
def test_gated_delta_net_in_chunks_is_the_recurrence(subject, case):
    """The third system, with its C x C table Gamma, is S <- alpha_t S (I - beta k k^T) + beta v k^T."""
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    within(gated_delta_net_chunkwise(inputs, case.C), gated_delta_net(inputs), budget)


@law(cases, of=("ref_A",), betas=("constant", "uniform", "one"), keys=("gauss", "equal", "positive"), states=("none",))
def test_the_deletion_vanishes_as_beta_squared(subject, case):
    """From a zero state, KDA and per-channel decay differ by a term in beta^2: half the beta, a quarter of the gap."""
    inputs = case.inputs()
    once, half = (inputs.replace(beta=inputs.beta * scale) for scale in (2.0**-16, 2.0**-17))
    gap, quarter = (ref_A_fast(x).final_state - per_channel_decay(x).final_state for x in (once, half))
    beyond = deletions_beyond_the_first(once)
    if meaningful(np.linalg.norm(gap) > 10 * beyond):
        bounded(np.linalg.norm(gap - 4 * quarter) / beyond, "what half the beta leaves of the gap, beyond a quarter")


@law(cases, of=("ref_A",), gates=("constant", "uniform", "channel", "shared"), states=("gauss", "none"))
def test_the_gate_vanishes_linearly(subject, case):
    """As g -> 0, KDA approaches DeltaNet by a term in g: half the gate, half of the gap."""
    inputs = case.inputs()
    still = delta_net(inputs.replace(g=np.zeros_like(inputs.g))).final_state
    once, half = (inputs.replace(g=inputs.g * scale) for scale in (2.0**-18, 2.0**-19))
    gap, rest = (ref_A_fast(x).final_state - still for x in (once, half))
    beyond = gates_beyond_the_first(once)
    if meaningful(np.linalg.norm(gap) > 10 * beyond):
        bounded(np.linalg.norm(gap - 2 * rest) / beyond, "what half the gate leaves of the gap, beyond a half")
