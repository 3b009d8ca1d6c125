"""The page of a failure: what is in it, that nothing in it runs or reaches out, and what it is called."""

import base64
import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from kda.case import Case
from kda.diagnosis.maps import MOST, Axis, heat_map
from kda.diagnosis.page import Failure, failure_of, file_name, page, write_page
from kda.diagnosis.wrong import examined, wrong_run
from kda.formats import F32
from kda.implementations import implementation
from kda.numerics.budget import Budget
from kda.problem import Outputs
from kda.suite.laws import Subject, law, same_bits, within
from strategies import cases

LINE = "v1,B=2,N=20,H=2,DV=32,dtype=f32,v=gauss,q=gauss,state=ones"


@dataclass
class Check:
    """One stage as the page reads it."""

    name: str
    chunk: int
    got: np.ndarray
    expected: np.ndarray
    wrong: np.ndarray


@dataclass
class Probed:
    """What probes saw."""

    checks: list[Check]


def failure(spoil=lambda o, state: None, line=LINE, **changes):
    """A failure on the inputs of `line`, whose outputs are numbers and then spoilt."""
    case = Case.parse(line)
    inputs, sizes = case.inputs(), case.sizes
    expected = Outputs(
        np.arange(np.prod(sizes.shape("o"))).reshape(sizes.shape("o")) / 64, np.ones(sizes.shape("final_state"))
    )
    got = Outputs(expected.o.copy(), expected.final_state.copy())
    spoil(got.o, got.final_state)
    budget = Budget(np.full(sizes.shape("o")[:-1], 1e-3), np.full(sizes.shape("final_state")[:-1], 1e-3))
    given = {"got": got, "expected": expected, "budget": budget, "tile": case.tile, "inputs": inputs}
    made = Failure("kernel.agrees", "It agrees", line, "mine-c-f32", against="reference A", **given)
    return replace(made, **changes)


def spoil(o, state):
    """Token 17, head 1 of batch 1: one cell far off."""
    o[1, 17, 1, 5] += 4.0


def data(html):
    """What the page draws."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S).group(1))


def unpacked(drawn, layer):
    """A layer of a map, as its script reads it."""
    values = np.frombuffer(base64.b64decode(drawn["layers"][layer]), "u1" if layer == "wrong" else "<f8")
    return values.reshape(drawn["rows"]["count"], drawn["columns"]["count"])


def text(html):
    """What a reader sees without the scripts, in one line."""
    return " ".join(re.sub("<[^>]*>", " ", re.sub(r"(?s)<(script|style).*?</\1>", "", html)).split())


def test_what_stands_at_the_top():
    commands = [("rerun", "kda check LINE --impl mine.py:Mine"), ("keep", "kda guard add LINE")]
    made = failure(spoil, report=["one line", "another"], commands=commands)
    seen, right = text(page(made)), made.expected.o[1, 17, 1, 5]
    assert "kernel.agrees It agrees. on mine-c-f32 sizes B2-N20-H2-DK16-DV32-C16-f32" in seen
    assert "worst in o batch 1, token 17, head 1, value channel 5" in seen
    assert (
        f"got {right + 4:.9g} expected (reference A) {right:.9g} error there 4 error / budget of the row 4e+03" in seen
    )
    assert f"case {LINE} Copy rerun {commands[0][1]} Copy keep {commands[1][1]} Copy" in seen
    assert "one line another" in seen


def test_the_maps_hold_the_numbers_themselves():
    made = failure(spoil)
    members = data(page(made))["members"]
    assert [member["name"] for member in members] == [
        "batch 1, head 1", "batch 0, head 0", "batch 0, head 1", "batch 1, head 0"
    ]  # fmt: skip
    assert [member["said"] for member in members] == ["1 of 20 tokens wrong", *["right"] * 3]
    o, state = members[0]["maps"]
    assert np.array_equal(unpacked(o, "got"), made.got.o[1, :, 1])
    assert np.array_equal(unpacked(o, "expected"), made.expected.o[1, :, 1])
    assert np.argwhere(unpacked(o, "wrong")).tolist() == [[17, 5]]
    assert unpacked(o, "share")[17, 5] == pytest.approx(4.0 / 1e-3 * 32**0.5)
    assert (o["rows"]["part"], o["rows"]["length"], o["columns"]["length"]) == ("chunk", 16, 16)
    assert unpacked(state, "got").shape == (16, 32)
    assert np.array_equal(unpacked(members[1]["maps"][0], "got"), made.got.o[0, :, 0])


def test_the_inputs_of_each_head():
    made = failure(line="v1,N=20,DV=32,dtype=f32,v=gauss,q=gauss,state=ones,beta=alternating:1.0:0.5,k=onehot")
    made = replace(made, inputs=made.inputs.replace(k=np.where(np.arange(20)[:, None, None] < 2, made.inputs.k, 0)))
    (member,) = data(page(replace(made, got=made.expected)))["members"]
    inputs = {one["title"]: one for one in member["inputs"]}
    assert list(inputs) == ["q", "k", "v", "g", "beta", "initial_state"]
    assert np.array_equal(unpacked(inputs["v"], "value"), made.inputs.v[0, :, 0])
    assert np.array_equal(unpacked(inputs["beta"], "value"), made.inputs.beta[0])
    assert inputs["k"]["said"] == "not zero: 1 at token 0, channel 0; 1 at token 1, channel 1"
    assert inputs["beta"]["said"] == "20 of 20 numbers are not zero"
    assert (inputs["g"]["said"], inputs["g"]["layers"]) == ("all 0", {})
    assert (inputs["initial_state"]["said"], inputs["initial_state"]["layers"]) == ("all 1", {})


def test_nan_and_infinities_reach_the_page():
    def lost(o, state):
        o[0, 3, 0, 2:4] = np.nan, np.inf

    made = failure(lost)
    html = page(made)
    drawn = data(html)["members"][0]["maps"][0]
    assert np.isnan(unpacked(drawn, "got")[3, 2])
    assert np.isinf(unpacked(drawn, "got")[3, 3])
    assert np.argwhere(unpacked(drawn, "wrong")).tolist() == [[3, 2], [3, 3]]
    assert f"got nan expected (reference A) {made.expected.o[0, 3, 0, 2]:.9g} error there inf" in text(html)
    assert "NaN" not in re.search(r'id="data">(.*?)</script>', html, re.S).group(1)


def test_where_bits_must_agree_there_are_no_shares():
    html = page(failure(spoil, budget=None))
    assert "share" not in data(html)["members"][0]["maps"][0]["layers"]
    assert "allowed none: every bit must agree" in text(html)


HOSTILE = '</script><script>alert(1)</script><b title="x">&amp; \u2264'


def test_whatever_is_said_stays_text():
    words = dict.fromkeys(("law", "sentence", "line", "subject", "against"), HOSTILE)
    shown = {"report": [HOSTILE], "commands": [(HOSTILE, HOSTILE)], "stages": probed(name=HOSTILE)}
    html = page(replace(failure(spoil), **words, **shown))
    assert "alert(1)</script>" not in html
    assert '<b title="x">' not in html
    assert html.count("<script") == 2
    assert html.isascii()
    assert "&#8804;" in html


def test_it_needs_nothing_from_outside():
    html = page(failure(spoil, stages=probed()))
    assert not re.findall(r"https?:|//[a-z]|<link|<img|<iframe|@import|url\(|\bfetch\(|XMLHttpRequest|src=", html)


def test_a_failure_without_outputs_has_a_page_too():
    html = page(Failure("machine.runs", "It runs", "v1,N=2", "mine-c-f32", ["RuntimeError: boom"]))
    assert "RuntimeError: boom" in text(html)
    assert data(html)["members"] == []
    assert "Where it is wrong" not in html
    assert "What went in" not in html


def test_shapes_that_disagree_are_said():
    made = failure()
    html = page(replace(made, got=made.got.before(3)))
    assert "It cannot be drawn: o has shape (2, 3, 2, 32); expected (2, 20, 2, 32)" in text(html)


def test_large_arrays_are_cut_around_the_worst_cell():
    def far(o, state):
        o[0, 250, 0, 150] += 1

    made = failure(far, line="v1,N=300,DV=160,DK=4,dtype=f32")
    drawn = data(page(made))["members"][0]["maps"][0]
    assert (drawn["rows"]["first"], drawn["rows"]["count"]) == (300 - MOST, MOST)
    assert (drawn["columns"]["first"], drawn["columns"]["count"]) == (160 - MOST, MOST)
    assert drawn["note"] == "around the worst cell: tokens 172..299 of 300, value channels 32..159 of 160"
    assert np.argwhere(unpacked(drawn, "wrong")).tolist() == [[250 - 172, 150 - 32]]


@pytest.mark.parametrize("worst", [0, 63, 64, 65, 150, 235, 236, 299])
def test_the_worst_cell_is_always_on_the_map(worst):
    values = np.arange(300.0)[:, None]
    drawn = heat_map("o", Axis("token"), Axis("channel"), {"value": values}, (worst, 0))
    assert drawn["rows"]["count"] == MOST
    assert worst in unpacked(drawn, "value")
    assert unpacked(drawn, "value")[0, 0] == drawn["rows"]["first"]


def test_many_heads_leave_the_worst_on_the_page():
    def last(o, state):
        o[2, 1, 11] += 1

    html = page(failure(last, line="v1,B=3,N=2,H=12,dtype=f32"))
    assert data(html)["members"][0]["name"] == "batch 2, head 11"
    assert len(data(html)["members"]) == 24
    assert "12 more heads are not on this page" in text(html)


def probed(name="W"):
    """Two chunks of three stages; the middle one of chunk 1 is wrong in block 1, batch 0, head 1, most in [3, 2]."""
    checks = []
    for chunk in (0, 1):
        for stage in ("M", name, "U"):
            expected = np.full((2, 2, 2, 4, 5), 2.0)
            got, wrong = expected.copy(), np.zeros(expected.shape, bool)
            if (chunk, stage) == (1, name):
                got[1, 0, 1, 2:, 2] += 1, 3
                wrong = got != expected
                got[0, 1, 0, 0, 0] += 9  # right: within what another order of additions may do
            checks.append(Check(stage, chunk, got, expected, wrong))
    return Probed(checks)


def test_stages():
    html = page(failure(spoil, stages=probed()))
    seen = text(html)
    assert "The first that is wrong: W , in chunk 1." in seen
    assert html.count('<td class="wrong"') == 1
    assert html.count('<td class="right"') == 5
    assert 'title="chunk 1, W: wrong"' in html
    stages = data(html)["stages"]
    assert [(one["title"], one["wrong"]) for one in stages] == [("M", False), ("W", True), ("U", False)]
    assert stages[1]["said"].startswith("chunk 1, block 1, batch 0, head 1; 2 of 160 cells are wrong")
    assert np.argwhere(unpacked(stages[1], "wrong")).tolist() == [[2, 2], [3, 2]]
    assert stages[0]["said"] == "chunk 1, block 1, batch 0, head 1"


def test_stages_that_are_all_right_and_one_that_was_not_probed():
    right = probed()
    right.checks = [check for check in right.checks if check.chunk == 0] + right.checks[3:4]
    html = page(failure(spoil, stages=right))
    assert "None is wrong." in text(html)
    assert 'title="chunk 1, U: not probed"' in html
    assert data(html)["stages"] == []


# names of files


def test_one_file_per_failure(tmp_path):
    made = failure(spoil)
    others = [
        replace(made, law="kernel.agrees2"),
        replace(made, subject="mine-c-f16"),
        replace(made, line=LINE + ",seed=1"),
        replace(made, law="kernel/agrees"),
        replace(made, law="kernel:agrees"),
        replace(made, law="k" * 300),
        replace(made, law="k" * 301),
    ]
    paths = [write_page(tmp_path / "deep" / "er", one) for one in (made, *others)]
    assert len(set(paths)) == len({str(path).lower() for path in paths}) == len(paths)
    assert sorted(path.name for path in (tmp_path / "deep" / "er").iterdir()) == sorted(path.name for path in paths)
    again = write_page(tmp_path / "deep" / "er", replace(made, report=["said otherwise"]))
    assert again == paths[0]
    assert "said otherwise" in again.read_text()


@pytest.mark.parametrize("name", ["../../etc/x", "a b\nc", "..", "", "C:\\x", "\u2264" * 100, "x" * 1000])
def test_names_are_safe(name):
    made = file_name(Failure(name, "", name, name))
    assert re.fullmatch(r"[A-Za-z0-9._-]+\.html", made)
    assert len(made) < 160
    assert not made.startswith(".")


# failures as the laws make them


def spoilt():
    """The mirror, with token 3 of o one larger."""
    made = implementation("mirror")
    run = made.run

    def wrong(inputs, tile, target, memory=None):
        outputs = run(inputs, tile, target)
        outputs.o[:, 3] += 1
        return outputs

    made.run = wrong
    return made


def of(body):
    """The failure of a law with this body, on a spoilt mirror."""
    body.__module__ = "test_small"
    law(cases)(body)
    from kda.suite.laws import LAWS

    made = LAWS.pop(f"small.{body.__name__}")
    done = examined(made, Subject(spoilt(), "c", F32), Case.parse("v1,N=6,dtype=f32,v=gauss"))
    return done, failure_of(done, wrong_run(done))


def test_from_a_law_that_a_wrong_run_breaks():
    def agrees(subject, case):
        """They agree. Or not."""
        judged = subject.judge(case.inputs(), case.tile)
        within(subject.run(case.inputs(), case.tile), judged.outputs, judged.budget)

    done, made = of(agrees)
    assert (made.law, made.sentence, made.subject) == ("small.agrees", "They agree", "mirror-c-f32")
    assert made.against == "reference A"
    assert [word for word, _ in made.commands] == ["rerun", "write", "keep"]
    assert all(command.startswith("kda ") for _, command in made.commands)
    assert made.report == str(done.error).splitlines()
    assert "worst in o batch 0, token 3, head 0" in text(page(made))


def test_from_a_law_that_compares_what_it_made_itself():
    def compares(subject, case):
        """Bits agree."""
        judged = subject.judge(case.inputs(), case.tile)
        same_bits(judged.outputs.with_o(judged.outputs.o + 1), judged.outputs)

    done, made = of(compares)
    assert done.runs == ()
    assert (made.against, made.budget) == ("the law", None)
    assert made.inputs is not None
    assert "every bit must agree" in text(page(made))


def test_from_a_law_that_compares_a_part():
    def compares_a_part(subject, case):
        """Bits agree."""
        judged = subject.judge(case.inputs(), case.tile)
        same_bits(judged.outputs.with_o(judged.outputs.o + 1).after(2), judged.outputs.after(2))

    _, made = of(compares_a_part)
    assert (made.inputs, made.tile) == (None, None)
    assert "worst in o batch 0, token 0" in text(page(made))


def test_from_a_law_that_raises():
    def raises(subject, case):
        """It runs."""
        raise RuntimeError("boom")

    _, made = of(raises)
    assert made.got is None
    assert made.report == ["boom"]
