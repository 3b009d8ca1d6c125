"""Cases that end their process, or never end."""

import re

import pytest
from small_project import Project

from kda.case import Case
from kda.diagnosis import death
from kda.diagnosis.death import Death, Question, death_of, retold, smallest_death
from kda.implementations import implementation
from kda.suite.watch import Watch, last_case

LARGE = Case.parse("v1,B=2,N=20,H=3,C=4,DV=2,dtype=f32,v=gauss,state=gauss,seed=7")


@pytest.fixture
def question(tmp_path, monkeypatch):
    project = Project.make(tmp_path)
    monkeypatch.setattr(death, "SECONDS", 6.0)
    monkeypatch.setattr(death, "SECONDS_AFTER", 3.0)
    monkeypatch.setattr(death, "LONGEST", 300.0)  # on any machine

    def of(name):
        address = f"{tmp_path / 'subjects.py'}:{name}"
        return Question.of(project.folder / "properties", implementation(address), "c", "small.matches")

    return of


def test_a_case_that_holds_or_only_fails_ends_well(question):
    assert death_of(question("Right"), LARGE) is None
    assert death_of(question("Wrong"), LARGE) is None


def test_a_crash_shrinks_in_processes_of_its_own(question):
    found = death_of(question("Crashes"), LARGE)
    assert found == Death(LARGE, "its process died (signal 11)")
    assert not found.hung
    assert smallest_death(question("Crashes"), found).case == Case.parse("v1,N=5,C=4,DV=2,dtype=f32")


def test_a_crash_does_not_become_a_hang(question, monkeypatch):
    def hangs(pool, question, case, seconds=None):
        return Death(case, "it did not end within 3 s")

    monkeypatch.setattr(death, "_death", hangs)
    crash = Death(LARGE, "its process died (signal 11)")
    assert smallest_death(question("Crashes"), crash) == crash


def test_a_hang_is_ended_and_shrinks(question):
    found = death_of(question("Hangs"), LARGE)
    assert found.hung
    assert found.how == "it did not end within 6 s"
    smallest = smallest_death(question("Hangs"), found)
    assert smallest.hung
    assert smallest.case.v == Case().v  # the first step that is tried


def test_a_lost_gpu_is_called_that(question, tmp_path):
    assert death_of(question("LosesGpu"), LARGE).how == "the CUDA context broke"


def test_what_a_dead_worker_left_is_told_with_the_smaller_case(question):
    left = [
        "law:   small.matches: The subject computes reference A",
        f"case:  {LARGE}",
        f"rerun: kda check {LARGE} --property small.matches --impl subjects.py:Crashes --target c",
    ]
    lines = retold(question("Crashes"), "\n".join(left))
    assert lines[:3] == [
        "its process died (signal 11)",
        left[0],
        "case:  v1,N=5,DV=2,C=4,dtype=f32",
    ]
    assert "kda check v1,N=5,DV=2,C=4,dtype=f32" in lines[3]
    assert retold(question("Crashes"), "\n".join(left), shrink=False)[2] == f"case:  {LARGE}"
    assert retold(question("Right"), "\n".join(left))[-1] == (
        "in a process of its own the case does not end it: what was run before it matters"
    )
    assert retold(question("Crashes"), "something else") == ["something else"]


def test_a_kernel_that_kills_every_worker_does_not_end_the_run(tmp_path):
    """A default of xdist gives up after four dead workers per process."""
    project = Project.make(tmp_path)
    law = (
        "@law(cases)\ndef test_{}(subject, case):\n"
        '    """It runs."""\n    subject.run(case.inputs(), case.tile)\n    meaningful(True)\n\n\n'
    )
    text = "from kda.suite.laws import law, meaningful\nfrom strategies import cases\n\n\n"
    (tmp_path / "properties" / "test_many.py").write_text(text + "".join(law.format(i) for i in range(6)))
    result = project.pytest("-n", "1", "properties/test_many.py", "properties/test_small.py", impl="Crashes")
    assert "8 failed, 1 passed" in result.text
    assert len(result.lines("law")) == 8
    told = re.findall(r"^case:  (.*)$|^LINE=(.*)$", result.text, re.M)
    assert len(told) == 8
    assert result.text.count("its process died (signal 11)") == 3  # three are made smaller


def test_a_death_while_a_failure_is_looked_into_hides_neither(tmp_path):
    project = Project.make(tmp_path)
    result = project.pytest("-n", "1", "-k", "matches", "--hypothesis-seed=1", impl="Falls")
    assert "1 failed" in result.text
    failure = result.text[result.text.index("the process ended") :]
    assert "its process died (signal 11)" in failure
    found, died = (Case.parse(line) for line in re.findall(r"^case:  (.*)$", failure, re.M))
    assert re.search(r"^o: error 0\.5 in the row", failure, re.M)  # what it had failed with
    assert found.v.name != "zeros"
    assert died.v.name == "zeros"


def test_what_stands_is_on_disk_beside_what_is_under_way(tmp_path):
    watch = Watch(tmp_path, "gw0", 0)
    with watch.standing("law:   a.b\ncase:  v1,N=9"):
        assert last_case(tmp_path, "gw0") == "law:   a.b\ncase:  v1,N=9"
        watch.begin("case:  v1")
        assert last_case(tmp_path, "gw0") == "law:   a.b\ncase:  v1,N=9\ncase:  v1"
        watch.end()
        assert last_case(tmp_path, "gw0") == "law:   a.b\ncase:  v1,N=9"
    assert last_case(tmp_path, "gw0") is None
