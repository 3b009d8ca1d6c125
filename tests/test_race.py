"""Failures that do not repeat."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_project import ROOT, Project

from kda.case import Case
from kda.diagnosis import race
from kda.diagnosis.race import measured, ranges, repeated, smaller_race
from kda.diagnosis.report import understood
from kda.formats import F32
from kda.implementations import implementation
from kda.kernels import chunk
from kda.suite.finding import Finding, find
from kda.suite.laws import Subject, load_laws
from kda.suite.record import Record


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The law `small.matches`, and a way to ask it of an implementation of the small project."""
    project = Project.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    law = load_laws(project.folder / "properties")["small.matches"]

    def of(name):
        chosen = implementation(f"subjects.py:{name}")
        (dtype,) = chosen.dtypes("c")
        return law, Subject(chosen, "c", dtype)

    return of


CASE = Case.parse("v1,N=4,C=2,DV=2,dtype=f32")


def test_what_repeats_is_steady(asked):
    for name, failed in (("Right", 0), ("Wrong", 9)):
        repeats = repeated(*asked(name), CASE, 9)
        assert repeats.steady
        assert (repeats.times, repeats.failed, repeats.tensor) == (9, failed, "")
        assert (repeats.error is None) == (not failed)


def test_what_differs_from_run_to_run_is_named(asked):
    repeats = repeated(*asked("Races"), CASE, 9)
    assert not repeats.steady
    assert (repeats.times, repeats.failed, repeats.ended) == (9, 3, 0)
    assert repeats.tensor == "o"
    assert np.argwhere(repeats.differing).tolist() == [[0, 2, 0, 0]]
    first, where = repeats.lines()
    assert "the law fails in 3 of 9 runs" in first
    assert where == ("o differs from run to run in 1 of 8 elements: batch 0, token 2, head 0, value channel 0")


def test_a_run_that_sometimes_raises_is_not_steady(asked, monkeypatch):
    law, subject = asked("Races")
    runs = iter(range(100))

    def after(outputs, inputs, tile):
        if next(runs) % 4 == 1:
            raise RuntimeError("once in a while")
        return outputs

    monkeypatch.setattr(subject.implementation, "after", after)
    repeats = repeated(law, subject, CASE, 8)
    assert not repeats.steady
    assert (repeats.failed, repeats.ended) == (2, 2)
    assert "2 runs ended otherwise than the first one" in repeats.lines()[-1]


def test_a_race_shrinks_by_its_rate(asked):
    law, subject = asked("Races")
    large = Case.parse("v1,B=2,N=9,H=3,C=3,DV=2,dtype=f32,v=gauss,seed=7")
    small = smaller_race(law, subject, large)
    assert small == Case.parse("v1,N=4,C=3,DV=2,dtype=f32")  # one token into the second chunk
    case, repeats = measured(law, subject, Finding(large, AssertionError(), False, 1, 11), None, True)
    assert (case, repeats.times) == (small, race.MEASURING)
    assert repeats.failed in (33, 34)


def test_a_race_that_was_seen_once_keeps_its_case_and_its_count(asked):
    law, subject = asked("Right")
    found = Finding(CASE, AssertionError("seen once"), False, 1, 11)
    case, repeats = measured(law, subject, found, None, True)
    assert (case, repeats.failed, repeats.times) == (CASE, 1, 11 + race.MEASURING)
    assert repeats.error is found.error


@pytest.mark.parametrize(("name", "steady"), [("Wrong", True), ("Races", False), ("Unsteady", False)])
def test_a_search_knows_whether_its_failure_repeats(asked, name, steady):
    law, subject = asked(name)

    def search(law):
        for _ in range(10):
            law.holds_for(subject, CASE, Record(law.name, subject.id))

    found = find(law, subject, search)
    assert (found.case, found.steady) == (CASE, steady)
    assert isinstance(found.error, AssertionError)


def test_a_search_without_a_failure_finds_nothing(asked):
    law, subject = asked("Right")
    assert find(law, subject, lambda law: law.holds_for(subject, CASE, Record(law.name, subject.id))) is None
    with pytest.raises(ZeroDivisionError):  # the search's own trouble is no finding
        find(law, subject, lambda law: 1 / 0)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3], "3"),
        ([0, 1, 2, 7], "0..2, 7"),
        ([4, 4, 5, 5], "4..5"),
        ([0, 2, 4, 6, 8], "0, 2, 4, 6, 8"),
        ([0, 2, 4, 6, 8, 10], "0, 2, 4, 6, ..."),
    ],
)
def test_places_are_said_as_ranges(numbers, said):
    assert ranges(np.array(numbers)) == said


def test_a_race_of_a_kernel_names_its_stage_too(tmp_path):
    """An accumulator that nothing clears holds what was there before; it is not the same twice, on most tiles."""
    source = Path(chunk.__file__).read_text()
    once = "on.gemm(Qp_s, S_s, O_f, clear_accum=True)"
    assert source.count(once) == 1
    (tmp_path / "edited.py").write_text(source.replace(once, "on.gemm(Qp_s, S_s, O_f)"))
    law = load_laws(ROOT / "properties", "kernel")["kernel.matches_reference_A"]
    subject = Subject(implementation(f"{tmp_path / 'edited.py'}:kda_chunk"), "c", F32)
    found = Finding(Case.parse("v1,DK=32,DV=32,C=64,dtype=f32"), AssertionError(), False, 1, 11)
    report = understood(law, subject, found, tmp_path, shrink=False)
    text = "\n".join(report.lines)
    assert text.startswith("race: the same inputs give different results")
    assert report.staged.stage == "o"
    assert "first wrong stage: o (chunk 0" in text
    assert "rerun: kda diagnose v1," in text


def test_what_is_not_about_outputs_is_steady_if_it_fails_every_time(asked, monkeypatch):
    """A call that should have been refused reads what it likes: other bits every time, and one failure."""
    law, subject = asked("Races")

    def body(subject, case):
        subject.run(case.inputs(), case.tile)
        raise AssertionError("not refused")

    repeats = repeated(replace(law, body=body), subject, CASE, 6)
    assert repeats.tensor == "o"
    assert repeats.steady
    assert not replace(repeats, failed=5).steady
