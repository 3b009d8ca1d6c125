"""The strategies of operations, and their laws: each holds for what is right, and fails on its mistake."""

from dataclasses import replace

import numpy as np
import pytest
from draws import by_seed_alone
from float_operation import FLOAT, Holder, f32, with_mistake
from hypothesis import HealthCheck, Phase, find, given, settings
from small_project import ROOT, Project

from kda.formats import BF16, F16, F32
from kda.implementations import MemoryViolation, implementation
from kda.implementations.operation import Hopper, Portable
from kda.operation_case import OperationCase
from kda.operation_support import FORMS, FormChoice, OperationSupport, with_channels
from kda.problem import Outputs
from kda.references import ref_hopper
from kda.references.operation import inputs_of, parts, processed, ref_operation
from kda.suite.laws import load_laws, within
from kda.suite.operation_laws import OperationLaw, OperationSubject, operation_subjects, programs_of
from kda.suite.record import Record
from strategies import lengths, operations

MANY = 500
SUPPORT = OperationSupport((F16, BF16, F32))
FREE = OperationSupport((F16, BF16, F32), forms=None)


def quick(most: int, *phases: Phase):
    return settings(
        max_examples=most,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases or (Phase.generate,),
    )


def drawn(strategy, most: int = 300) -> list:
    cases = []

    @quick(most)
    @given(strategy)
    def draw(case):
        cases.append(case)

    with by_seed_alone():
        draw()
    return cases


# Strategies


@pytest.mark.parametrize("support", [SUPPORT, FREE], ids=["palette", "free"])
def test_every_kind_of_call_is_drawn(support):
    cases = drawn(operations(support), 600)
    for field in ("packed", "state", "final", "v_first", "normalise", "narrow_g", "narrow_beta"):
        assert {getattr(FormChoice.of(case), field) for case in cases} == {False, True}, field
    assert {case.gate for case in cases} == {"log", "softplus", "bounded"}
    assert {case.rate for case in cases} == {"value", "logits", "doubled"}
    assert {case.groups for case in cases} == {1, 2, 3, 4, 8}
    assert {case.dtype for case in cases} == {F16, BF16, F32}
    assert {case.DK for case in cases} >= {16, 32, 48, 64, 128, 256}
    assert {case.DV for case in cases} >= {16, 32, 48, 64, 128, 256}
    assert any(case.DK != case.DV for case in cases)
    members = [case.lengths for case in cases if case.lengths is not None]
    assert {n for one in members for n in one} >= {0, 1, 15, 16, 17, 63, 64, 65, 130}
    assert max(map(len, members)) > 30
    assert any(case.tail for case in cases)
    assert {case.scale for case in cases} >= {None, 1.0, -1.0, 2.0**-10}
    kinds = {str(case.g) for case in cases}
    assert "none" in kinds
    assert {"constant:100.0", "constant:-100.0"} <= kinds
    assert {case.lower_bound for case in cases} == {None, -1.0, -5.0, -20.0}
    assert {case.rows.name for case in cases} == {"unit", "times", "wide", "holes"}


def test_gates_reach_from_nothing_to_a_thousand():
    small = replace(FREE, channels=(16,), max_tokens=20)
    log = [processed(case.operation()).g for case in drawn(operations(small, gate=("log",)), 150)]
    assert any(g.min() == -1000 and g.max() == 0 for g in log)
    assert any(not g.any() for g in log)
    assert any(-1e-2 < g.min() < 0 for g in log)
    activated = [processed(case.operation()).g for case in drawn(operations(small, gate=("softplus",)), 100)]
    assert min(g.min() for g in activated) < -500
    assert any(-1e-6 < g.min() < 0 for g in activated)


def test_betas_reach_both_ends():
    betas = [processed(case.operation()).beta for case in drawn(operations(SUPPORT, rate=("doubled",)), 100)]
    assert min(beta.min() for beta in betas) < 1e-30
    assert max(beta.max() for beta in betas) == 2.0


def test_rows_to_normalise_are_zero_tiny_and_long():
    cases = [case.operation() for case in drawn(operations(SUPPORT, normalise=(True,)), 80)]
    sizes = np.concatenate([np.linalg.norm(x.k, axis=-1).ravel() for x in cases])
    assert (sizes == 0).any()
    assert ((sizes > 0) & (sizes < 1e-4)).any()
    assert (sizes > 100).any()


def test_calls_shrink_to_the_plainest():
    plain = quick(2000, Phase.generate, Phase.shrink)
    assert str(find(operations(SUPPORT), lambda case: True, settings=plain)) == "op1"
    packed = find(operations(SUPPORT), lambda case: case.lengths and sum(case.lengths) > 3, settings=plain)
    assert str(packed) == "op1,lengths=15,DV=32,state=zeros"
    late = find(operations(FREE), lambda case: case.lengths and case.lengths[-1] > 16, settings=plain)
    assert str(late) == "op1,lengths=17"
    grouped = find(operations(FREE), lambda case: case.groups > 2 and case.gate != "log", settings=plain)
    assert str(grouped) == "op1,groups=3,gate=softplus,A_log=model"


def test_narrowing_is_kept():
    narrow = {"packed": (True,), "gate": ("softplus", "bounded")}
    for support in (SUPPORT, FREE):
        for case in drawn(operations(support, F32, min_sequences=2, min_heads=2, min_groups=2, **narrow), 60):
            assert case.dtype == F32
            assert len(case.lengths) >= 2
            assert case.H >= 2
            assert case.groups >= 2
            assert case.gate != "log"
    assert all(0 in case.lengths for case in drawn(operations(SUPPORT, packed=(True,), empty=True), 60))
    assert all(case.tail for case in drawn(operations(SUPPORT, packed=(True,), tail=True), 60))
    assert all(max(case.sequences) >= 2 for case in drawn(operations(SUPPORT, min_tokens=2), 60))
    assert len({FormChoice.of(case) for case in drawn(operations(SUPPORT, F16, packed=(True,), few=2), 60)}) == 2
    assert all(max(one) <= 17 for one in drawn(lengths(17), 60))
    with pytest.raises(ValueError, match="no form of the palette has"):
        operations(SUPPORT, gate=("log",), rate=("logits",), packed=(True,))


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_the_least_case_of_a_form_has_it(form, dtype):
    case = form.least(dtype)
    # With float32 operands g and beta arrive in the operand format whatever the form says.
    same = replace(form, narrow_g=True, narrow_beta=True) if dtype is F32 else form
    assert (FormChoice.of(case), case.dtype) == (same, dtype)
    assert case.operation().sizes.N == 1


def test_forms_have_names_of_their_own():
    assert len({form.id for form in FORMS}) == len(FORMS)
    assert FormChoice(16, 64, packed=True, final=False, gate="bounded").id == "DK16-DV64-packed-no_final-bounded"


def test_what_is_compiled_before_the_laws():
    """Every form, with the engine that the laws are about and with each that they compare it to."""
    subject = OperationSubject(implementation("kda_forward"), Portable(), "c", F16)
    programs = programs_of(subject)
    assert [form for each, form in programs if each.engine.name == "portable"] == list(FORMS)
    assert {each.engine.name for each, _ in programs} == {"portable", "steps"}
    assert len(programs) == 2 * len(FORMS)


def test_a_palette_can_have_one_size():
    forms = with_channels(FORMS, 128, 128)
    assert {(form.DK, form.DV) for form in forms} == {(128, 128)}
    assert len(forms) >= len(FORMS) - 1
    assert {form.gate for form in forms} == {"log", "softplus", "bounded"}


# Laws


@pytest.fixture(scope="module")
def laws() -> dict[str, OperationLaw]:
    found = load_laws(ROOT / "properties", "operation")
    found["operation.many_sequences_are_each_computed"].body.__globals__["MOST_OF_A_GRID_AXIS"] = MANY
    return {name.partition(".")[2]: law for name, law in found.items()}


def holds(law: OperationLaw, operation, dtype=F16, most: int = 80) -> None:
    """Let the law look at cases, and raise what it raises."""
    (subject,) = (s for s in operation_subjects(Holder(operation), "c") if s.dtype == dtype)

    @quick(most)
    @given(law.cases(subject))
    def search(case):
        law.holds_for(subject, case, Record(law.name, subject.id))

    search()


def tokens_of_a_neighbour(self, x, s):
    tokens = FLOAT.tokens(x, s)
    return tokens - 1 if s and x.cu_seqlens is not None else tokens


def reshaped_states(self, x):
    S, HV, DK, DV = x.replace(initial_state=None).states().shape
    return x.states() if x.initial_state is None else x.initial_state.reshape(S, HV, DK, DV).copy()


def states_that_nobody_cleared(self, x):
    return x.states() + (0.125 if x.initial_state is None else 0.0)


def o_for_a_final_state(self, x, o):
    return FLOAT.stored(x, o * (1.0 if x.output_final_state else 1.01))


def absolute_scale(self, x, o):
    return FLOAT.stored(x.replace(scale=abs(x.factor)), o)


def state_times_scale(self, x, state):
    return FLOAT.final(x, state) * x.factor


def norm_without_a_channel(self, x, rows):
    return FLOAT.rows(x, rows) if not x.normalise else FLOAT.rows(x, rows) * f32(1.01)


def bias_of_another_head(self, x):
    return np.roll(x.dt_bias, 1, axis=0).astype(f32)


def overflowing_softplus(self, raw):
    return np.log(f32(1) + np.exp(raw))


def sigmoid_of_half(self, raw):
    return FLOAT.sigmoid(raw / 2)


class _Parts:
    """What a mistake does to the tokens of one sequence on their way through the recurrence."""

    @staticmethod
    def leak(self, x, q, k, v, g, beta, state):
        return FLOAT.recurrence(x, q, k, v + v[:, -1:] / 64, g, beta, state)

    @staticmethod
    def zero_times_others(self, x, q, k, v, g, beta, state):
        return FLOAT.recurrence(x, q, k, v + 0.0 * x.v.sum(), g, beta, state)

    @staticmethod
    def by_place(self, x, q, k, v, g, beta, state):
        self.count = getattr(self, "count", 0) + 1
        return FLOAT.recurrence(x, q, k, v * (1 + (self.count % 3 == 2) / 8), g, beta, state)

    @staticmethod
    def rounded_states(self, x, q, k, v, g, beta, state):
        o, state = FLOAT.recurrence(x, q, k, v, g, beta, state)
        return o, 1.25 * state


def last_sequence_differs(self, x):
    state = x.states()
    state[-1] += 1.0
    return state


def written_everywhere(self, x, poison):
    got = FLOAT.computed(x, poison)
    got.o[np.isnan(got.o)] = 0.0
    return got


def tail_read(self, x, poison):
    got = FLOAT.computed(x, poison)
    return type(got)(got.o + 0.0 * x.v[:, x.starts[-1] :].sum(), got.final_state, got.state_v_first)


def forgotten_states(self, x, state):
    state = state.copy()
    state[np.diff(x.starts) == 0] = 0.0
    return FLOAT.final(x, state)


def uninitialised_states(self, x, poison):
    got = FLOAT.computed(x, poison)
    state = got.final_state if got.final_state is None else np.array(got.final_state)
    if state is not None:
        state[..., -1] = poison
    return type(got)(got.o, state, got.state_v_first)


def a_grid_too_small(self, x, poison):
    got = FLOAT.computed(x, poison)
    got.o[:, MANY:] = poison
    return got


MISTAKES = [
    ("matches_the_float64_operation", {"sigmoid": sigmoid_of_half}),
    ("matches_the_float64_operation", {"computed": written_everywhere}),
    ("another_program_gives_the_same", {"recurrence": _Parts.rounded_states}),
    ("a_packed_call_is_each_sequence_alone", {"tokens": tokens_of_a_neighbour}),
    ("grouped_heads_are_repeated_heads", {"heads": lambda self, x: np.arange(x.v.shape[2]) % x.k.shape[2]}),
    ("states_with_values_first_are_transposed", {"initial": reshaped_states}),
    ("no_state_is_a_state_of_zeros", {"initial": states_that_nobody_cleared}),
    ("o_does_not_hang_on_whether_a_final_state_is_asked_for", {"stored": o_for_a_final_state}),
    ("the_scale_multiplies_o_and_nothing_else", {"stored": absolute_scale}),
    ("the_scale_multiplies_o_and_nothing_else", {"final": state_times_scale}),
    ("the_norm_in_the_kernel_is_the_norm_before", {"rows": norm_without_a_channel}),
    ("the_gate_in_the_kernel_is_the_gate_before", {"bias": bias_of_another_head}),
    ("the_gate_in_the_kernel_is_the_gate_before", {"softplus": overflowing_softplus}),
    ("beta_from_logits_is_beta_before", {"sigmoid": sigmoid_of_half}),
    ("no_token_sees_a_later_one", {"recurrence": _Parts.leak}),
    ("no_sequence_sees_another", {"recurrence": _Parts.zero_times_others}),
    ("tokens_of_no_sequence_are_neither_read_nor_written", {"computed": written_everywhere}),
    ("tokens_of_no_sequence_are_neither_read_nor_written", {"computed": tail_read}),
    ("an_empty_sequence_hands_its_state_on", {"final": forgotten_states}),
    ("sequences_may_come_in_any_order", {"initial": last_sequence_differs}),
    ("a_sequence_may_be_cut_and_carried_on", {"recurrence": _Parts.rounded_states}),
    ("every_call_gives_the_same_bits", {"recurrence": _Parts.by_place}),
    ("every_call_gives_the_same_bits", {"computed": uninitialised_states}),
    ("many_sequences_are_each_computed", {"computed": a_grid_too_small}),
]


def test_every_law_has_a_mistake(laws):
    assert {law for law, _ in MISTAKES} == set(laws)


@pytest.mark.parametrize(
    ("law", "methods"), MISTAKES, ids=[f"{law}-{next(iter(m.values())).__name__}" for law, m in MISTAKES]
)
def test_a_law_fails_on_its_mistake(laws, law, methods):
    with pytest.raises(AssertionError) as failure:
        holds(laws[law], with_mistake(**methods))
    notes = "\n".join(failure.value.__notes__)
    line = next(note.split()[1] for note in failure.value.__notes__ if note.startswith("case:"))
    assert str(OperationCase.parse(line)) == line
    assert f"kda check {line} --property operation.{law} --impl holder --target c" in notes


def test_what_is_right_holds(laws):
    for law in laws.values():
        holds(law, FLOAT, most=6)


def test_a_law_says_why_it_does_not_take_a_case(laws):
    (subject, *_) = operation_subjects(Holder(), "c")

    def why(law: str, line: str) -> str | None:
        return laws[law].excludes(subject, OperationCase.parse(line))

    assert why("matches_the_float64_operation", "op1") is None
    assert "packed is False" in why("no_sequence_sees_another", "op1")
    assert "min_sequences is 2" in why("no_sequence_sees_another", "op1,lengths=3")
    assert "empty is 1" in why("an_empty_sequence_hands_its_state_on", "op1,lengths=3")
    assert "dtype is bf16" in why("matches_the_float64_operation", "op1,dtype=bf16")
    assert "DK is 80" in why("matches_the_float64_operation", "op1,DK=80")


def test_laws_of_the_operation_are_about_what_computes_it(laws):
    assert laws["matches_the_float64_operation"].subjects(implementation("mirror"), "c") == []
    names = [s.id for s in laws["matches_the_float64_operation"].subjects(Holder(), "c")]
    assert names == ["float32-c-f16", "float32-c-bf16", "float32-c-f32"]
    assert ref_operation(OperationCase().operation()).o.shape == (1, 1, 1, 16)


# On the command line, and under our own engines

PROJECT_SUBJECTS = """
import sys

sys.path.insert(0, {tests!r})
from float_operation import FLOAT, Holder, with_mistake


class Right(Holder):
    name = "right"


class Wrong(Holder):
    name = "wrong"

    def __init__(self):
        super().__init__(with_mistake(heads=lambda self, x: FLOAT.heads(x)[::-1]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    made = Project.make(tmp_path_factory.mktemp("project"))
    (made.folder / "subjects.py").write_text(PROJECT_SUBJECTS.format(tests=str(ROOT / "tests")))
    (made.folder / "properties" / "test_operation.py").write_text(
        (ROOT / "properties" / "test_operation.py").read_text()
    )
    return made


def test_a_line_of_the_operation_is_put_to_its_laws_alone(project):
    done = project.pytest("--kda-case", "op1,lengths=3.0.2,groups=2,v=gauss,state=gauss", "-rs", COLUMNS="400")
    assert done.status == 0
    assert "small.matches on right-c-f16 does not take this case: the line is a call of the operation" in done.text
    cases = {name: record["cases"] for name, record in project.report["properties"].items()}
    assert cases["operation.matches_the_float64_operation"] == 1
    assert cases["operation.an_empty_sequence_hands_its_state_on"] == 1
    assert cases["operation.states_with_values_first_are_transposed"] == 0


def test_a_failure_is_one_screen_and_its_line_a_guard(project):
    options = ("-k", "matches_the_float64", "--kda-dtype", "f16", "--hypothesis-profile", "gate")
    done = project.pytest(*options, impl="Wrong")
    assert done.status == 1
    (line,) = done.lines("case")
    assert OperationCase.parse(line).HV > 1
    (rerun,) = done.lines("rerun")
    assert rerun.startswith(f"kda check {line} --property operation.matches_the_float64_operation --impl ")
    assert "Failing test case" not in done.text
    (guarded,) = done.lines("guard")
    project.guard.write_text(guarded + "\n")
    replay = project.pytest("--hypothesis-profile", "replay", impl="Wrong")
    assert replay.status == 1
    assert done.lines("case") == replay.lines("case")
    assert project.pytest("--hypothesis-profile", "replay").status == 0


def test_the_engines_are_under_the_laws(laws):
    ours = implementation("kda_forward")
    names = [s.id for s in laws["matches_the_float64_operation"].subjects(ours, "c")]
    assert names == ["portable-c-f16", "portable-c-bf16", "portable-c-f32"]
    edited = implementation(f"{ROOT}/kda/kernels/forward.py:kda_forward")
    assert "portable" not in [engine.name for engine in edited.operations()]  # which would run ours


LINES = [
    "op1,lengths=3.0.17,tail=2,H=2,groups=2,gate=softplus,rate=doubled,normalise=1,v_first=1,g=gauss:1.0,A_log=model,"
    "dt_bias=model,beta=gauss:1.0,q=gauss,k=gauss,v=gauss,state=gauss",
    "op1,N=5,dtype=bf16,g_dtype=bf16,gate=bounded,final=0,lower_bound=-5.0,g=gauss:1.0,k=gauss",
]


@pytest.mark.parametrize("line", LINES, ids=["packed", "dense"])
def test_an_engine_gets_the_whole_operation(line):
    x = OperationCase.parse(line).operation()
    got, expected = Portable().run(x, "c"), ref_operation(x)
    for mine, right in ((got.o, expected.o), (got.final_state, expected.final_state)):
        assert (mine is None) == (right is None)
        if right is not None:
            assert np.allclose(mine, right, rtol=0.1, atol=0.02, equal_nan=True)


def test_the_hopper_program_has_a_budget_of_its_own():
    case = "op1,N=70,DK=128,DV=128,dtype=bf16,q=gauss,k=positive,v=gauss,g=uniform:0.9:1.0"
    x = OperationCase.parse(case).operation()
    inputs = inputs_of(x, next(parts(x)))
    assert Hopper().targets() in ((), ("cuda",))
    assert {form.DK for form in Hopper().support("cuda").forms} == {128}
    hopper, portable = Hopper().judge(inputs, "cuda"), Portable().judge(inputs, "c")
    assert np.array_equal(hopper.outputs.o, portable.outputs.o)
    within(Outputs(ref_hopper(inputs, BF16).o, hopper.outputs.final_state), hopper.outputs, hopper.budget)


def test_an_input_that_an_engine_changed_is_named(monkeypatch):
    def changes(q, k, v, **arguments):
        v[0, 1] += 1

    monkeypatch.setattr("kda.ops.kda_forward", changes)
    with pytest.raises(MemoryViolation, match="the input v was changed"):
        Portable().run(OperationCase(N=3).operation(), "c")
