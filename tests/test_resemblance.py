"""What a failure looks like: the mistake that was made, its twins, or none; by its outputs and by what is refused."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from kda.case import Case
from kda.diagnosis.behaviour import behaviour, likely, signatures
from kda.diagnosis.candidates import candidates
from kda.diagnosis.further import further_cases
from kda.diagnosis.likeness import Likeness, known, look, score
from kda.diagnosis.resemblance import TWINS, Near, Resemblance, resemblance
from kda.diagnosis.wrong import Examined, Run, Wrong, examined, wrong_run
from kda.formats import BF16, F16, F32
from kda.implementations import PLAIN, Memory, implementation
from kda.implementations.builtin import CPU_TILES, KdaChunk, Mirror
from kda.kernels import compile as compiling
from kda.mutation.campaign import SMALLEST_TILE, laws
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.mutant import Mutant, mutant
from kda.mutation.operators import generated
from kda.mutation.rewrite import Edit
from kda.numerics.domain import gate_domain
from kda.problem import InputError
from kda.suite.laws import Subject

A, MIRROR = "kernel.matches_reference_A", "kernel.matches_its_mirror"
FORMATS = "machine.formats_may_alternate_in_one_process"


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly():
    """A kernel runs for a second here: compiling it is what costs. The bits are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "C_FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in compiling.C_FLAGS))
        yield


def found(made, law, line, tile=SMALLEST_TILE):
    """What the failure of `made` under a law on a case looks like."""
    case = Case.parse(line)
    failed = examined(laws()[law], Subject(made, "c", case.dtype, (tile,)), case)
    assert failed.error is not None, "the case does not fail"
    return resemblance(failed, wrong_run(failed))


def names(nearest):
    return [near.mistake.name for near in nearest]


# By outputs: cases that a hunt ended with.

RECORDED = {
    "beta-before-solve": (A, "v1,N=2,DV=32,dtype=f32,beta=alternating:1.0:0.5,k=equal"),
    "L-with-diagonal-where-it-is-read": (A, "v1,DV=32,dtype=f32"),
    "exclusive-cumsum": (A, "v1,DV=32,dtype=f32,gate=constant:0.999"),
    "W-and-U-swapped": (A, "v1,DV=32,dtype=f32"),
    "output-rows-past-N-written": (A, "v1,DV=32,dtype=f32"),
    "state-of-batch-0": (A, "v1,B=2,DV=32,dtype=f32,state=small_int:1"),
    # elements that nothing writes
    "block-offset-forgotten-in-o": (A, "v1,DV=32,dtype=f32"),
    "block-offset-forgotten-in-the-final-state": (A, "v1,DV=32,dtype=f32"),
    "chunk-length-hard-coded": (A, "v1,N=17,DV=32,dtype=f32"),
    # inside the budget of reference A
    "L-in-operand-precision": (MIRROR, "v1,N=2,DV=32,k=equal"),
    "decay-in-operand-precision": (MIRROR, "v1,DV=32,gate=constant:0.999,state=ones"),
    # under a law that feeds inputs of its own
    "A_qk-one-token-ahead": ("time.the_future_does_not_change_the_past", "v1,N=2,DV=32,dtype=f32,q=equal"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_mistake_that_was_made_is_named(name):
    like = found(CATALOGUE[name].mutant("kernel").planted(), *RECORDED[name])
    assert like.claimed is CATALOGUE[name], like.lines()
    assert like.twins == ()
    assert like.how == "bit for bit, 12 of 12 further cases too"


def test_another_order_of_roundings_is_within_rounding():
    """The mirror of log2e-forgotten multiplies by ln 2 and by log2 e, the kernel by neither."""
    made = CATALOGUE["log2e-forgotten"].mutant("kernel").planted()
    like = found(made, A, "v1,DV=32,dtype=f32,gate=constant:0.999,state=ones")
    assert like.claimed is CATALOGUE["log2e-forgotten"]
    assert like.how.startswith("within rounding")


class Leaning(Mirror):
    """A kernel that adds in another order, as tensor cores do: every product is off by some units of float32."""

    name = "leaning"

    def run(self, inputs, tile, target, memory=PLAIN):
        gate_domain(inputs.dtype, tile.C).check_inputs(inputs)
        return self._function(inputs, tile.C, tile.block_DV, inputs.dtype, lean=2.0**-22)

    def exact_mirror(self, target, dtype):
        return False


@functools.cache
def leaning(name):
    from kda.source import module_from_source

    text = CATALOGUE[name].mutant("mirror").sources[0][1]
    return Leaning(module_from_source(text, name, "kda.references").ref_C_fast)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["beta-before-solve", "state-updated-before-the-output", "first-order-inverse"])
def test_sums_in_another_order_do_not_hide_it(name, dtype):
    like = found(leaning(name), A, f"v1,N=18,DV=32,dtype={dtype},beta=alternating:1.0:0.5,k=equal,q=equal,v=gauss")
    assert like.claimed is CATALOGUE[name], like.lines()
    assert like.how.startswith("within rounding")


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_what_differs_by_roundings_from_what_is_right_is_no_mistake(dtype):
    """Many mistakes of precision are as near to it as the right mirror is: not much nearer is not enough."""
    case = Case.parse(f"v1,N=5,DV=32,dtype={dtype},gate=constant:0.9,k=gauss,q=gauss,v=gauss,state=gauss")
    like = resemblance(*taken_for_wrong(Leaning(), case))
    assert like.claimed is None, like.lines()


def taken_for_wrong(made, case, memory=PLAIN):
    """The one run of a case, taken for a failure."""
    subject = Subject(made, "c", case.dtype, (SMALLEST_TILE,))
    inputs = case.inputs()
    run = Run(inputs, case.tile, memory, subject.run(inputs, case.tile, memory))
    judged = subject.judge(inputs, case.tile)
    wrong = Wrong(subject, run, run.outcome, judged.outputs, judged.budget, "reference A")
    return Examined(laws()[A], subject, case, (run,), None), wrong


# Twins, and what is not enough.


@pytest.mark.parametrize(("dtype", "twins"), [("f32", ["doubling-product-in-operand-precision"]), ("f16", [])])
def test_one_program_is_named_with_its_twin(dtype, twins):
    made = CATALOGUE["doubling-product"].mutant("mirror").planted()
    tile = CATALOGUE["doubling-product"].tile
    like = found(made, MIRROR, f"v1,N=20,DV=32,C=64,dtype={dtype},k=equal,beta=constant:0.7", tile)
    assert like.claimed is CATALOGUE["doubling-product"]
    assert [twin.name for twin in like.twins] == twins
    assert bool(twins) == any("one program where operands are float32" in line for line in like.lines())


def test_twins_are_entries_of_the_catalogue():
    assert {name for pair in TWINS for name in pair} <= set(CATALOGUE)


class OnlyOneToken(Mirror):
    """beta-dropped-from-U for one token, right for more."""

    name = "only_one_token"

    def run(self, inputs, tile, target, memory=PLAIN):
        wrong = CATALOGUE["beta-dropped-from-U"].mutant("mirror").planted()
        return (wrong if inputs.sizes.N == 1 else super()).run(inputs, tile, target)


def test_the_case_that_failed_is_not_enough():
    like = found(OnlyOneToken(), A, "v1,DV=32,dtype=f32,edits=beta:0:0.5")
    assert like.claimed is None
    nearest = {near.mistake.name: near for near in like.nearest}
    assert nearest["beta-dropped-from-U"].distance == 0
    assert 0 < nearest["beta-dropped-from-U"].agreed < 12
    first, *others = like.lines()
    assert first == "looks like no known mistake; the nearest of 91, with distance (the right one's is 1):"
    assert len(others) == 3
    assert any(line.startswith("  beta-dropped-from-U") and " 0, on " in line for line in others)


class Nearly(Mirror):
    """beta-dropped-from-U, and for five tokens a thousandth more."""

    name = "nearly"

    def run(self, inputs, tile, target, memory=PLAIN):
        outputs = CATALOGUE["beta-dropped-from-U"].mutant("mirror").planted().run(inputs, tile, target)
        return replace(outputs, o=outputs.o * (1.001 if inputs.sizes.N == 5 else 1.0))


def test_much_nearer_than_what_is_right_is_not_enough():
    like = found(Nearly(), A, "v1,N=5,DV=32,dtype=f32,beta=constant:0.5")
    assert like.claimed is None
    assert 0 < like.nearest[0].distance < 0.1


class NeverWritten(Mirror):
    """One token, by default the last, has `left` instead of an output."""

    name = "never_written"
    left, token = np.nan, -1

    def run(self, inputs, tile, target, memory=PLAIN):
        outputs = super().run(inputs, tile, target)
        outputs.o[:, self.token] = self.left
        return outputs


class WrittenZero(NeverWritten):
    left = 0.0


class FirstNeverWritten(NeverWritten):
    token = 0


def test_nan_is_nan_and_nothing_else():
    line = "v1,N=2,DV=32,dtype=f32,q=equal"
    assert found(NeverWritten(), A, line).claimed is CATALOGUE["last-token-not-written"]
    assert found(WrittenZero(), A, line).claimed is None
    like = found(FirstNeverWritten(), A, line)
    assert like.claimed is None
    assert all(np.isfinite(near.distance) for near in like.nearest)


class OnlyFiveTokens(Mirror):
    """The doubling product for five tokens, right for any other number: the two agree within rounding."""

    name = "only_five_tokens"

    def run(self, inputs, tile, target, memory=PLAIN):
        wrong = CATALOGUE["doubling-product"].mutant("mirror").planted()
        return (wrong if inputs.sizes.N == 5 else super()).run(inputs, tile, target)


def test_a_mistake_that_shows_nowhere_else_is_not_named():
    """All twelve further cases are right, and so near to the mistake that they would speak for it."""
    like = found(OnlyFiveTokens(), MIRROR, "v1,N=5,DV=32,dtype=f32,k=equal,beta=constant:0.7,v=gauss")
    assert like.claimed is None
    assert any(near.distance == 0 and near.agreed == 12 for near in like.nearest)


class Short(Mirror):
    """An output without its last token."""

    name = "short"

    def run(self, inputs, tile, target, memory=PLAIN):
        outputs = super().run(inputs, tile, target)
        return replace(outputs, o=outputs.o[:, :-1])


def test_outputs_of_another_shape_look_like_nothing():
    like = resemblance(*taken_for_wrong(Short(), Case.parse("v1,N=3,DV=32,dtype=f32")))
    assert like.claimed is None


def test_what_outputs_held_before_does_not_matter():
    """A law may fill them with zeros; what is not written is then zero, and NaN in what the mistake gives."""
    made = CATALOGUE["block-offset-forgotten-in-o"].mutant("kernel").planted()
    like = resemblance(*taken_for_wrong(made, Case.parse("v1,DV=32,dtype=f32"), Memory(poison=0.0)))
    assert like.claimed is CATALOGUE["block-offset-forgotten-in-o"]


# Mistakes that nobody knows.


VARIED = "v1,N=20,B=2,H=3,DV=32,dtype={},gate=uniform:0.9:1.0,beta=uniform:0.1:0.9,k=gauss,q=gauss,v=gauss,state=gauss"


def generated_mutant(name, made_in, role="kernel"):
    source = implementation(made_in).sources()[role]
    text = next(one.source for one in generated(source.text, source.function) if one.name == name)
    return Mutant(name, "", made_in, ((role, text),)).planted()


@pytest.mark.parametrize(
    ("made_in", "name", "law", "dtype"),
    [
        ("mirror", "factor-dropped/Kp/KcxEp..Ep", A, "f32"),
        ("mirror", "factor-dropped/X/KcxEp..Ep", A, "f32"),
        ("mirror", "factor-dropped/Kd/KcxEpxEm..EpxEm", A, "f32"),
        ("mirror", "operand-swap/Vt/U-WS..WS-U", A, "f32"),
        ("mirror", "constant/gam/-2..-1", A, "f32"),
        ("mirror", "cast-narrowed/g/heads_first.g", MIRROR, "f16"),
        ("mirror", "cast-narrowed/M/gemm.Kp", MIRROR, "f16"),
        ("kda_chunk", "buffer-swapped/Km_s/K_s..Em_s", A, "f32"),
    ],
)
def test_no_known_mistake_is_named_for_another(made_in, name, law, dtype):
    like = found(generated_mutant(name, made_in), law, VARIED.format(dtype))
    assert like.claimed is None, like.lines()
    assert len(like.nearest) == 3


def test_a_generated_mutant_that_is_a_known_mistake_is_named():
    """L that keeps its upper triangle is read nowhere: the substitution is left out."""
    like = found(generated_mutant("relational-negation/Lt_s/j-lt-i..j-ge-i", "kda_chunk"), A, VARIED.format("f32"))
    assert like.claimed is CATALOGUE["substitution-left-out"]


# By behaviour: launches.


def plain_failure(made, dtype=F32, tile=SMALLEST_TILE, law=FORMATS):
    """Some case under a law that runs other formats too, whether it fails or not."""
    case = tile.of(Case(dtype=dtype))
    return examined(laws()[law], Subject(made, "c", dtype, (tile,)), case)


@pytest.mark.parametrize("name", signatures(SMALLEST_TILE))
def test_a_launch_does_what_its_signature_says(name):
    seen = behaviour(plain_failure(CATALOGUE[name].mutant("kernel").planted()))
    assert seen.departures == signatures(SMALLEST_TILE)[name]


@pytest.mark.parametrize("name", [n for n in signatures(SMALLEST_TILE) if "forward" in CATALOGUE[n].forms])
def test_a_launch_of_kda_forward_does_what_its_signature_says(name):
    """No gate is out of bounds there: an infinite one is computed too, once nothing asks for finite values."""
    seen = behaviour(plain_failure(CATALOGUE[name].mutant("forward").planted()))
    assert seen.departures == signatures(SMALLEST_TILE, bounded=False)[name]


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_right_launch_has_no_signature(dtype):
    seen = behaviour(plain_failure(implementation("kda_chunk"), dtype))
    assert len(seen.probes) == 56
    assert seen.departures == {}
    assert likely(seen, SMALLEST_TILE) == []


def test_signatures_are_of_all_that_is_not_in_the_mirror_and_differ():
    """Two with one signature could not be told apart, and one without would be named by nobody."""
    forms = {name: mistake.forms for name, mistake in CATALOGUE.items() if "c" in mistake.targets}
    made = {name for name, of in forms.items() if "kernel" in of and "mirror" not in of}
    known_by_behaviour = signatures(SMALLEST_TILE)
    assert set(known_by_behaviour) == made
    assert len({frozenset(s.items()) for s in known_by_behaviour.values()}) == len(known_by_behaviour)
    assert all(known_by_behaviour.values())


LAUNCHES = {
    "strides-assumed": ("machine.strided_views_are_as_good_as_contiguous", "v1,H=2,DV=32,dtype=f32"),
    "kernel-cached-without-its-dtype": (FORMATS, "v1,DV=32,dtype=f32"),
    "no-state-is-any-state": (A, "v1,DV=32,dtype=f32"),
    "inputs-overwritten": ("machine.inputs_stay_untouched", "v1,N=2,DV=32,dtype=f32,gate=constant:0.999"),
    "gate-domain-too-wide": (
        "gate_domain.any_gate_is_computed_or_refused",
        "v1,DV=32,dtype=f32,gate=edge:96.07019922560842:1",
    ),
    "gate-domain-of-the-first-chunk": (
        "gate_domain.any_gate_is_computed_or_refused",
        "v1,N=17,DV=32,dtype=f32,gate=spike:16:-89.1",
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_is_named(name):
    like = found(CATALOGUE[name].mutant("kernel").planted(), *LAUNCHES[name])
    assert like.claimed is CATALOGUE[name], like.lines()
    assert like.how.endswith("probes of its launch")


def widened(factor):
    """The launch with a domain that is `factor` times as deep."""
    edit = Edit(
        "the longest key",
        "k_max = max(_l, _h)",
        f"k_max = max(_l, _h)\ndomain = type(domain)(**{{**vars(domain), 'total': {factor} * domain.total}})",
        function="_check_values",
    )
    return mutant("widened", "", implementation("kda_chunk"), {"launch": [edit]}).planted()


def test_another_domain_is_not_taken_for_a_known_one():
    like = found(widened(1.5), "contract.the_gate_domain_is_tight", "v1,DV=32,dtype=f32,gate=constant:0.999")
    assert like.claimed is None
    assert names(like.nearest)[0] == "gate-domain-too-wide"
    assert like.lines()[1].endswith(f"of {like.further} probes")


class WrongAndStrided(KdaChunk):
    """Wrong numbers, and others where the inputs are strided: what reads past a tile gives such."""

    name = "wrong_and_strided"

    def run(self, inputs, tile, target, memory=PLAIN):
        outputs = super().run(inputs, tile, target, memory)
        return replace(outputs, o=outputs.o * (1.5 if memory.strided else 1.25))


def test_wrong_numbers_are_no_matter_of_the_launch():
    like = found(WrongAndStrided(), A, "v1,DV=32,dtype=f32")
    assert like.claimed is None


def test_what_was_not_probed_is_not_known():
    """A kernel that overwrites its inputs gives wrong numbers too; whether a mirror does that, nobody asked."""
    seen = behaviour(plain_failure(CATALOGUE["scale-applied"].mutant("mirror").planted()))
    assert set(seen.departures) == {"decaying inputs"}
    assert "inputs-overwritten" not in [mistake.name for mistake, _ in likely(seen, SMALLEST_TILE)]


def test_nothing_that_departs_looks_like_nothing():
    subject, case = Subject(implementation("kda_chunk"), "c", F32, (SMALLEST_TILE,)), Case.parse("v1,DV=32,dtype=f32")
    like = resemblance(Examined(laws()[A], subject, case, (), AssertionError("by chance")), None)
    assert like.lines() == ["looks like no known mistake"]


def test_a_kernel_that_refuses_all_inputs_has_no_signature():
    class Refusing(Mirror):
        def run(self, inputs, tile, target, memory=PLAIN):
            raise InputError("no")

    assert behaviour(plain_failure(Refusing())) is None


# The twelve cases.


@pytest.mark.parametrize("tile", CPU_TILES, ids=lambda tile: tile.id)
@pytest.mark.parametrize("dtype", [F16, F32])
def test_further_cases_are_of_the_same_kernel_and_inside_its_domain(tile, dtype):
    support = implementation("kda_chunk").support("c", dtype)
    cases = further_cases(tile, support, dtype)
    assert len(set(cases)) == len(cases) == 12
    for case in cases:
        assert tile.of(case) == case
        assert case.dtype == dtype
        gate_domain(dtype, tile.C).check_inputs(case.inputs())


def test_further_cases_differ_where_mistakes_show():
    C = SMALLEST_TILE.C
    cases = further_cases(SMALLEST_TILE, implementation("kda_chunk").support("c", F32), F32)
    assert {1, C - 1, C, C + 1, 2 * C} <= {case.N for case in cases}
    assert max(case.N for case in cases) > 96
    assert any(case.B > 1 and case.H > 1 and case.B != case.H for case in cases)
    assert {case.state.name for case in cases} >= {"none", "gauss"}
    assert {case.gate.name for case in cases} >= {"none", "uniform", "channel", "head", "shared"}
    assert all(case.beta.name == "uniform" for case in cases)


# Candidates, lines, scores.


def test_every_mistake_with_a_mirror_is_a_candidate():
    for form in ("mirror", "forward_mirror"):
        made = [m.name for m in CATALOGUE.values() if form in m.forms and not m.harmless]
        assert [candidate.mistake.name for candidate in candidates(form)] == made
        assert candidates(form) is candidates(form)


def test_candidates_have_the_exponential_of_the_kernel():
    case = Case.parse("v1,N=3,DV=32,dtype=f32,gate=constant:0.9,v=gauss")
    candidate = next(c for c in candidates() if c.mistake.name == "scale-applied")
    coarse = candidate.run(case.inputs(), case.tile, lambda x: np.round(np.exp2(x), 2))
    assert not coarse.equals(candidate.run(case.inputs(), case.tile, None))


@pytest.mark.parametrize("name", CATALOGUE)
def test_lines_fit(name):
    """Every entry, with the longest way of agreeing, whole: one to four lines of at most 100 columns."""
    for how in ("within rounding, 12 of 12 further cases too", "the same in 56 of 56 probes of its launch"):
        lines = Resemblance(CATALOGUE[name], (), how).lines()
        assert 1 < len(lines) <= 4
        assert max(map(len, lines)) <= 100
        said = " ".join(" ".join(lines).split())
        assert name in lines[0]
        assert CATALOGUE[name].sentence in said
        assert CATALOGUE[name].source in said


def test_lines_of_none_fit():
    longest = sorted(CATALOGUE.values(), key=lambda m: -len(m.name))[:3]
    lines = Resemblance(nearest=tuple(Near(m, 123456.7, 12) for m in longest), tried=91, further=12).lines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100


def row(name, named=(), same=False, code="0"):
    return Likeness(name, "killed", named=named, same=same, fingerprints={"f32": code})


def test_scores():
    of_known = [row("a", ("a",), code="1"), row("b", ("b", "c"), code="2"), row("c", ("a",), code="3"), row("d")]
    of_unknown = [
        row("u", (), code="9"),
        row("v", ("a",), code="1"),
        row("w", ("a",), True, "8"),
        row("x", ("a",), code="7"),
    ]
    got = score(of_known, of_unknown)
    assert (got.right, got.twins, got.missed) == (("a",), ("b",), ("c", "d"))
    assert (got.silent, got.doubles, got.false) == (("u",), ("v", "w"), ("x",))


def test_a_mistake_is_looked_at_in_a_process_of_its_own():
    (like,) = look(known("c", ["state-not-decayed"]), workers=1)
    assert like.named == ("state-not-decayed",)
    assert like.status == "killed"
    assert like.lines[0].startswith("looks like state-not-decayed: bit for bit")
