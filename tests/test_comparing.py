"""Two implementations beside each other: what counts as different, and the smallest case that shows it."""

import json
import re
from math import inf

import pytest
from click.testing import CliRunner
from small_project import ROOT

from kda.case import Case
from kda.cli import main
from kda.diagnosis.comparing import common_support, drawn, pairs
from kda.formats import BF16, F16, F32, F64
from kda.implementations import implementation
from kda.support import Support, TileChoice

ADAPTERS = """
from kda.formats import F32, F64
from kda.implementations.builtin import Mirror, ReferenceA
from kda.problem import InputError
from kda.suite.laws import Subject
from kda.support import Support, TileChoice


class Off(ReferenceA):
    # Token 2 is a little off wherever there is decay.
    name = "off"

    def run(self, inputs, tile, target, memory=None):
        outputs = super().run(inputs, tile, target)
        if inputs.sizes.N > 2 and inputs.g.any():
            outputs.o[:, 2] *= 1.001
        return outputs


class Near(ReferenceA):
    # Other bits than reference A, within what a correct implementation may be off by.
    name = "near"

    def run(self, inputs, tile, target, memory=None):
        outputs = super().run(inputs, tile, target)
        outputs.o[:] *= 1 + 2.0**-52
        return outputs


class OffByBudgets(ReferenceA):
    # Every row off by so many times what it may be off by.
    name = "off_by_budgets"
    times = 1.5

    def run(self, inputs, tile, target, memory=None):
        judged = Subject(self, target, F64).judge(inputs, tile)
        off = self.times * judged.budget.o[..., None] / inputs.v.shape[-1] ** 0.5
        return judged.outputs.with_o(judged.outputs.o + off)


class OffByMore(OffByBudgets):
    times = 2.5


class Raises(ReferenceA):
    name = "raises"

    def run(self, inputs, tile, target, memory=None):
        if inputs.sizes.H > 1:
            raise RuntimeError("too many\\nheads")
        return super().run(inputs, tile, target)


class Refuses(ReferenceA):
    name = "refuses"

    def run(self, inputs, tile, target, memory=None):
        if inputs.sizes.N > 3:
            raise InputError("too long")
        return super().run(inputs, tile, target)


class RefusesAll(ReferenceA):
    name = "refuses_all"

    def run(self, inputs, tile, target, memory=None):
        raise InputError("no")


class Narrow(Mirror):
    # One tile, one format, no state.
    name = "narrow"

    def dtypes(self, target):
        return (F32,)

    def support(self, target, dtype):
        tiles = (TileChoice(16, 32, 16, 16),)
        return Support(dtypes=(dtype,), tiles=tiles, initial_state=False, total_gates={F32: 5.0})


class Elsewhere(Narrow):
    name = "elsewhere"

    def support(self, target, dtype):
        return Support(dtypes=(dtype,), tiles=(TileChoice(16, 32, 8, 16),))
"""


@pytest.fixture
def adapters(tmp_path, monkeypatch):
    (tmp_path / "adapters.py").write_text(ADAPTERS)
    monkeypatch.chdir(tmp_path)
    return lambda name: f"adapters.py:{name}"


def compare(*words):
    """The result of `kda compare WORDS`."""
    return CliRunner().invoke(main, ["compare", *words])


def counts(result, dtype="f64"):
    """The first row of figures of a format: cases, then one per status, then untrusted."""
    row = next(line.split() for line in result.stdout.splitlines() if line.split()[:1] == [dtype])
    return [int(word) for word in row[1:8]]


def after(result, word):
    """What follows `word` at the beginning of a line."""
    return re.search(rf"^{re.escape(word)} *(.*)$", result.stdout, re.M).group(1)


def pair(first, second):
    return pairs(implementation(first), implementation(second), ("c", "c"))[0]


def test_an_implementation_has_its_own_bits():
    result = compare("ref_A", "ref_A", "--cases", "30")
    assert result.exit_code == 0
    assert counts(result)[:6] == [30, 30, 0, 0, 0, 0]
    assert "worst ratio 0" not in result.stdout
    assert "case:" not in result.stdout


def test_references_are_within_both_budgets():
    result = compare("ref_A", "ref_B", "--cases", "40")
    assert result.exit_code == 0
    cases, same, within, *others = counts(result)
    assert (cases, others[:3]) == (40, [0, 0, 0])
    assert same + within == 40
    assert within > 10
    assert 0 < float(after(result, "worst ratio").split(":")[0]) < 1


def test_other_bits_within_the_budget_are_no_difference(adapters):
    result = compare("ref_A", adapters("Near"), "--cases", "30")
    assert result.exit_code == 0
    assert counts(result)[2] > 20


def test_each_may_be_off_by_its_own_budget(adapters):
    within = compare("ref_A", adapters("OffByBudgets"), "--case", "v1,N=5,v=gauss,q=gauss,k=gauss,dtype=f64")
    assert counts(within)[2:4] == [1, 0]
    assert after(within, "worst ratio").startswith("0.75")
    outside = compare("ref_A", adapters("OffByMore"), "--case", "v1,N=5,v=gauss,q=gauss,k=gauss,dtype=f64")
    assert counts(outside)[2:4] == [0, 1]
    assert after(outside, "worst ratio").startswith("1.25")


def test_where_a_budget_exceeds_the_signal_a_case_is_untrusted():
    """With beta 0 and no state every output is 0."""
    assert counts(compare("ref_A", "ref_A", "--case", "v1,beta=zero,dtype=f64"))[6] == 1
    assert counts(compare("ref_A", "ref_A", "--case", "v1,dtype=f64"))[6] == 0


def test_the_first_difference_is_shrunk(adapters):
    result = compare("ref_A", adapters("Off"), "--cases", "60", "--json", "out.json")
    assert result.exit_code == 1
    assert counts(result)[3] > 5
    case = Case.parse(after(result, "case:"))
    assert (case.B, case.N, case.H, case.DK, case.DV, case.C) == (1, 3, 1, 1, 1, 1)
    assert case.gate.name != "none"
    assert "got: ref_A, expected: adapters.py:Off" in result.stdout
    assert "o: 1 of 3 tokens wrong; final_state is right" in result.stdout
    assert "token 2, head 0" in after(result, "o: error")
    with open("out.json") as file:
        written = json.load(file)
    assert written["smallest"]["case"] == str(case)
    assert written["smallest"]["status"] == "outside"
    (figures,) = written["comparisons"]
    assert figures["cases"] == sum(figures["statuses"].values()) == 60
    assert figures["tensors"]["final_state"]["outside"] == 0
    assert figures["tensors"]["o"]["outside"] == figures["statuses"]["outside"]
    assert figures["kinds"]["gate"]["none"][0] == 0
    assert sum(different for different, _ in figures["kinds"]["gate"].values()) == figures["statuses"]["outside"]


def test_the_kinds_that_differ_are_named(adapters):
    result = compare("ref_A", adapters("Off"), "--cases", "60")
    table = result.stdout.split("differ by")[1]
    assert not re.search(r"\bnone\b", table.split("beta")[0])
    assert "less than a chunk" in table or "chunks and a tail" in table


def test_one_line_reruns_a_difference(adapters):
    first = compare("ref_A", adapters("Off"), "--cases", "60")
    program, command, *words = after(first, "rerun:").split()
    assert (program, command) == ("kda", "compare")
    again = compare(*words)
    assert again.exit_code == 1
    assert after(again, "case:") == after(first, "case:")
    assert compare("ref_A", adapters("Off"), "--case", "v1,N=2,dtype=f64").exit_code == 0


def test_the_same_seed_says_the_same(adapters):
    said = [compare("ref_A", adapters("Off"), "--cases", "20", "--seed", seed).stdout for seed in ("5", "5", "6")]
    assert said[0] == said[1]
    assert said[0].splitlines()[1:] != said[2].splitlines()[1:]


def test_more_cases_than_one_run_of_hypothesis(adapters):
    comparison = drawn(pair("ref_A", adapters("Off")), 260, 0)
    assert len(comparison.found) == 260
    late = type(comparison)(comparison.pair, 0, comparison.found[250:])
    assert late.differs


def test_what_one_raises_and_the_other_computes_is_a_difference(adapters):
    result = compare("ref_A", adapters("Raises"), "--cases", "30")
    assert result.exit_code == 1
    assert counts(result)[5] > 3
    assert "ref_A computed it; adapters.py:Raises raised RuntimeError: too many\n" in result.stdout
    case = Case.parse(after(result, "case:"))
    assert (case.H, case.N) == (2, 1)
    swapped = compare(adapters("Raises"), "ref_A", "--cases", "30")
    assert "adapters.py:Raises raised RuntimeError: too many; ref_A computed it" in swapped.stdout


def test_a_refusal_by_one_is_a_difference_and_by_both_is_none(adapters):
    one = compare("ref_A", adapters("Refuses"), "--cases", "30")
    assert one.exit_code == 1
    assert Case.parse(after(one, "case:")).N == 4
    both = compare(adapters("Refuses"), adapters("Refuses"), "--cases", "30")
    assert both.exit_code == 0
    assert counts(both)[4] > 5


def test_a_comparison_of_nothing_fails(adapters):
    result = compare(adapters("RefusesAll"), adapters("RefusesAll"), "--cases", "5")
    assert result.exit_code == 1
    assert "nothing was compared: no case was computed by both" in result.stdout


@pytest.mark.parametrize(("masked", "status"), [("j <= i", 0), ("j < i", 1)])
def test_our_kernel_and_an_edited_copy(tmp_path, masked, status):
    source = (ROOT / "kda" / "kernels" / "chunk.py").read_text()
    assert "T.if_then_else(j <= i, A_f[i, j], 0.0)" in source
    copy = tmp_path / "copy.py"
    copy.write_text(source.replace("if_then_else(j <= i, A_f", f"if_then_else({masked}, A_f"))
    case = ("--target", "c", "--case", "v1,N=2,dtype=f32,k=equal")
    result = compare("kda_chunk", f"{copy}:kda_chunk", *case)
    assert result.exit_code == status
    assert counts(result, "f32")[:4] == [1, 1 - status, 0, status]


def test_every_format_that_both_have():
    result = compare("mirror", "mirror", "--cases", "2")
    assert result.exit_code == 0
    assert [counts(result, dtype)[0] for dtype in ("f16", "bf16", "f32")] == [2, 2, 2]
    only = compare("mirror", "mirror", "--cases", "2", "--dtype", "f32", "--dtype", "bf16")
    assert [line.split()[0] for line in only.stdout.splitlines() if line.split()[1:2] == ["2"]] == ["bf16", "f32"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ref_A", "kda_chunk"), "no operand format in common: ref_A has f64; kda_chunk has f16, bf16, f32"),
        (("mirror", "mirror", "--dtype", "f64"), "no operand format in common among f64"),
        (("ref_A", "nothing"), "implementation 'nothing' is unknown"),
        (("ref_A", "ref_B", "--target", "cuda"), "neither ref_A nor ref_B runs on cuda here"),
        (("ref_A", "ref_B", "--cases", "0"), "--cases is 0; expected at least 1"),
        (("mirror", "adapters.py:Elsewhere"), "mirror and elsewhere have no tile in common with f32 operands"),
        (("mirror", "adapters.py:Narrow", "--case", "v1,DK=32,dtype=f32"), "--case is not for both: DK32"),
        (("ref_A", "ref_B", "--case", "v1,dtype=f32"), "no operand format in common among f32"),
        (("ref_A", "ref_B", "--case", "nonsense"), "the line is of version"),
        (("ref_A",), "Missing argument 'IMPL2'"),
    ],
)
def test_misuse(adapters, words, said):
    result = compare(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr


def test_cases_are_those_that_both_can_run(adapters):
    found = drawn(pair("mirror", adapters("Narrow")), 40, 0).found
    assert {(one.case.DK, one.case.DV, one.case.C) for one in found} == {(16, 32, 16)}
    assert {one.case.state.name for one in found} == {"none"}
    assert {one.status for one in found} == {"same bits"}  # none refused: the gates are inside the mirror's domain


def limited(total=inf, sub_C=None, **changes):
    return Support(dtypes=(F32,), total_gates={} if total == inf else {F32: total}, sub_C=sub_C, **changes)


@pytest.mark.parametrize(
    ("one", "other", "total", "sub_C"),
    [
        (limited(), limited(), inf, None),
        (limited(80.0), limited(), 80.0, None),
        (limited(80.0), limited(5.0), 5.0, None),
        (limited(80.0, 16), limited(), 80.0, 16),
        (limited(80.0, 16), limited(80.0, 32), 80.0, 32),
        (limited(5.0, 16), limited(80.0), 5.0, None),
    ],
)
def test_the_common_gate_domain_is_inside_both(one, other, total, sub_C):
    for made in (common_support(one, other, F32), common_support(other, one, F32)):
        assert (made.max_total_gate(F32), made.sub_C) == (total, sub_C)


def test_the_smaller_of_everything_else():
    tile, own = TileChoice(16, 16, 16), TileChoice(32, 32, 16)
    one = Support(dtypes=(F16, F32), tiles=(tile, own), max_beta=2.0, max_tokens=9, max_token_gate=1.0)
    other = Support(dtypes=(BF16, F32), tiles=(own,), max_heads=1, initial_state=False)
    made = common_support(one, other, F32)
    assert (made.dtypes, made.tiles, made.max_beta, made.max_tokens) == ((F32,), (own,), 1.0, 9)
    assert (made.max_heads, made.initial_state, made.max_token_gate) == (1, False, 1.0)
    assert common_support(one, Support(dtypes=(F32,), tiles=(TileChoice(48, 48, 16),)), F32) is None
    assert common_support(one, Support(dtypes=(F64,)), F32).tiles == one.tiles
