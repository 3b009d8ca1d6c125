"""The campaign: every way a mutant can end, what a row says of it, and the command that runs them."""

import io
import json
import time
from dataclasses import replace

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import strategies as st
from rich.console import Console
from small_project import ROOT

from kda.case import Case
from kda.cli import main
from kda.diagnosis.race import DECIDING
from kda.formats import F32, format_named
from kda.implementations import implementation
from kda.mutation import campaign, plans
from kda.mutation.campaign import (
    COMPILE,
    CRASH,
    EQUIVALENT,
    HANG,
    KILLED,
    SMALLEST_TILE,
    STALE,
    SURVIVED,
    Row,
    Search,
    Task,
    laws,
    run,
    searches_of_everything,
)
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.hunt import hunt
from kda.mutation.mutant import Mutant, mutant
from kda.mutation.plans import CONTROL, distinct, judged, plan_catalogue, plan_generated, task_of
from kda.mutation.report import print_rows, write_rows
from kda.mutation.reviewed import REVIEWED
from kda.mutation.rewrite import Edit, Stale
from kda.suite.laws import Subject
from kda.suite.record import Record

A, MIRROR = "kernel.matches_reference_A", "kernel.matches_its_mirror"

FAKES = """
import ctypes
import os
import signal
import sys
import time

import numpy as np

from kda.implementations.builtin import Mirror
from kda.mutation import campaign


class Right(Mirror):
    name = "right"
    runs = 0

    def run(self, inputs, tile, target, memory=None):
        self.runs += 1
        if inputs.sizes.N > 2:
            self.misbehave()
        return self.after(super().run(inputs, tile, target), inputs)

    def misbehave(self):
        pass

    def after(self, outputs, inputs):
        return outputs


class Wrong(Right):
    def after(self, outputs, inputs):
        outputs.o[:, 2:] += 0.5
        return outputs


class WrongLate(Right):
    def after(self, outputs, inputs):
        outputs.o[:, 20:] += 0.5
        return outputs


class OffByABit(Right):
    def after(self, outputs, inputs):
        outputs.o[:, 2:] = np.nextafter(outputs.o[:, 2:].astype(np.float32), np.float32(np.inf))
        return outputs


class Unsteady(Right):
    def after(self, outputs, inputs):
        if self.runs == 7:
            outputs.o[:] += 1
        return outputs


class Raises(Right):
    def misbehave(self):
        raise TimeoutError("three tokens\\nand more")


class Refused(Right):
    def prepare(self, inputs, tile, target):
        raise RuntimeError("in the kernel\\n  shape check failed\\n\\n")


class Segfaults(Right):
    def misbehave(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class ReadsNowhere(Right):
    def misbehave(self):
        ctypes.string_at(0)


class Ends(Right):
    def misbehave(self):
        print("goodbye")
        os._exit(3)


class EndsOnImport(Right):
    def __init__(self):
        os._exit(4)


class Hangs(Right):
    def __init__(self):
        super().__init__()
        campaign.CASE_SECONDS = 2.0  # of this process

    def misbehave(self):
        ctypes.PyDLL(None).pause()  # holds the interpreter lock, as a kernel that hangs does


class HangsForLong(Right):
    def misbehave(self):
        while True:
            with open(os.path.join(os.path.dirname(__file__), "pid"), "w") as file:
                file.write(str(os.getpid()))
            time.sleep(1)


class StartsSlowly(Right):
    def __init__(self):
        super().__init__()
        time.sleep(2)


class Leaves(Right):
    def misbehave(self):
        sys.exit("goodbye")
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    """The tasks about implementations that misbehave on demand, by the name of the class."""
    path = tmp_path_factory.mktemp("fakes") / "fakes.py"
    path.write_text(FAKES)

    def task(name, *searches, **more):
        searches = searches or (Search(A, "f32", 60),)
        return Task(Mutant(name, "", f"{path}:{name}"), "c", searches, tile=SMALLEST_TILE, **more)

    task.folder = path.parent
    return task


def rewritten_kernel(name, find, put, tile=SMALLEST_TILE, original=None):
    """The task about our kernel with one edit."""
    made = mutant(name, "", implementation("kda_chunk"), {"kernel": [Edit("it", find, put)]})
    return Task(made, "c", (Search(A, "f32", 60),), tile=tile, original=original or {})


@pytest.fixture(scope="module")
def done(fakes):
    """What became of all that ends by itself: tasks by name, rows by name, and the names in the order of their ends."""
    late, bits = Search(A, "f32", 200), Search(MIRROR, "f32", 200)
    others = Search("references.match_reference_A", "f64", 5), Search(A, "f64", 5), Search(A, "f32", 20)
    hasty = fakes("WrongLate", late, seeds=(0, 1, 2, 3), shrink=1)
    hidden = replace(CATALOGUE["beta-before-solve"].mutant("mirror"), name="hidden")
    tasks = [
        *(fakes(name, seeds=(0, 1, 2)) for name in ("Right", "Wrong", "Refused")),
        *map(fakes, ("Segfaults", "ReadsNowhere", "Ends", "EndsOnImport", "Hangs", "Unsteady", "Raises")),
        fakes("WrongLate", late, seeds=(0, 1)),
        replace(hasty, mutant=replace(hasty.mutant, name="hasty")),
        fakes("OffByABit", *others, bits),
        Task(Mutant("import", "", "mirror", (("kernel", "raise KeyError('no such format')"),)), "c", (bits,), (0, 1)),
        Task(Mutant(CONTROL, "", "mirror"), "c", (Search(A, "f32", 60), Search(MIRROR, "f16", 60)), (0, 1)),
        task_of(CATALOGUE["beta-before-solve"], "mirror", "c", (0,)),
        Task(hidden, "c", (Search(A, "f32", 40, "equal betas"),), tile=SMALLEST_TILE),
        Task(Mutant("kernel", "", "kda_chunk"), "c", (Search(A, "f32", 60),), tile=SMALLEST_TILE),
        rewritten_kernel("wrong kernel", "beta_s[_j] * M_f[_i, _j]", "beta_s[_i] * M_f[_i, _j]"),
        rewritten_kernel(
            "refused kernel",
            "on.gemm(Kp_s, Km_s, M_f, transpose_B=True, clear_accum=True)",
            "on.gemm(Kp_s, Km_s, M_f, clear_accum=True)",
            campaign.TILE,
        ),
    ]
    order = []
    rows = run(tasks, 2, seconds=60, each=lambda task, rows: order.append((task.mutant.name, rows)))
    return {task.mutant.name: task for task in tasks}, rows, order


@pytest.fixture(scope="module")
def rows(done):
    return done[1]


def subject_of(task, search):
    return Subject(task.mutant.planted(), task.target, format_named(search.dtype), (task.tile,))


def fails(law, subject, case):
    try:
        laws()[law].holds_for(subject, case, Record(law, subject.id))
    except AssertionError:
        return True
    return False


# How a mutant ends


def test_a_mutant_that_a_law_sees_is_killed_by_it(rows):
    for row in rows["Wrong"]:
        assert (row.name, row.status, row.law) == ("Wrong", KILLED, A)
        assert 1 <= row.cases <= 60
        assert 0 < row.seconds < 60
        assert row.said.startswith("Disagreement: o: error ")
        assert "token 2" in row.said


def test_the_case_of_a_row_replays_the_failure(done):
    tasks, rows, _ = done
    for name in ("Wrong", "WrongLate", "OffByABit", "beta-before-solve"):
        (*_, search) = tasks[name].searches
        for row in rows[name]:
            case = Case.parse(row.case)
            assert fails(row.law, subject_of(tasks[name], search), case)
            assert not fails(row.law, Subject(implementation("mirror"), "c", F32, (tasks[name].tile,)), case)


def test_the_case_is_shrunk(rows):
    for row in (*rows["Wrong"], *rows["OffByABit"], *rows["WrongLate"], *rows["wrong kernel"]):
        case = Case.parse(row.case)
        least = {"WrongLate": 21, "wrong kernel": 2}.get(row.name, 3)
        assert (case.B, case.H, case.N, case.edits) == (1, 1, least, ())


def test_the_cases_of_a_few_seeds_are_shrunk(rows):
    first, *others = rows["hasty"]
    assert first.case == rows["WrongLate"][0].case
    assert [row.case for row in others] == [None] * 3
    assert [row.cases for row in rows["hasty"][:2]] == [row.cases for row in rows["WrongLate"]]


def test_a_mutant_that_no_law_sees_survives(rows):
    assert [(row.status, row.law, row.cases, row.case) for row in rows["Right"]] == [(SURVIVED, None, 60, None)] * 3


def test_the_originals_survive(rows):
    assert [(row.status, row.cases) for row in rows[CONTROL]] == [(SURVIVED, 120)] * 2  # under both searches
    assert [(row.status, row.cases) for row in rows["kernel"]] == [(SURVIVED, 60)]


def test_there_is_a_row_for_every_seed(rows):
    assert [len(rows[name]) for name in ("Wrong", "Refused", "import")] == [3, 3, 2]
    assert len({(row.cases, row.said) for row in rows["hasty"][1:]}) > 1


def test_cases_are_counted_over_all_searches(rows):
    # The first is about other implementations, the second about a format it has not, the third sees nothing.
    (row,) = rows["OffByABit"]
    assert row.law == MIRROR
    assert 20 < row.cases < 60
    assert "Disagreement" in row.said


def test_what_does_not_compile_is_killed_by_the_compiler(rows):
    for row in (*rows["Refused"], *rows["import"], *rows["refused kernel"]):
        assert (row.status, row.law, row.cases, row.case) == (KILLED, COMPILE, 0, None)
    assert {row.said for row in rows["Refused"]} == {"RuntimeError: shape check failed"}
    assert {row.said for row in rows["import"]} == {"KeyError: 'no such format'"}
    assert "shape" in rows["refused kernel"][0].said


@pytest.mark.parametrize(
    ("name", "status"),
    [("Segfaults", "exit status -11"), ("ReadsNowhere", "exit status -11"), ("Ends", "exit status 3")],
)
def test_a_mutant_that_dies_is_killed_as_a_crash(rows, name, status):
    (row,) = rows[name]
    assert (row.status, row.law) == (KILLED, CRASH)
    assert row.said == f"{status} under {A}"
    assert Case.parse(row.case).N > 2  # where it misbehaves


def test_a_mutant_that_dies_before_its_first_case_is_a_crash_too(rows):
    (row,) = rows["EndsOnImport"]
    assert (row.status, row.law, row.case, row.said) == (KILLED, CRASH, None, "exit status 4")


def test_a_case_that_takes_too_long_is_killed_as_a_hang(rows):
    (row,) = rows["Hangs"]
    assert (row.status, row.law) == (KILLED, HANG)
    assert row.said.endswith(f" under {A}")
    assert Case.parse(row.case).N > 2


def test_a_mutant_that_takes_too_long_is_ended(fakes):
    started = time.perf_counter()
    ((row,),) = run([fakes("HangsForLong")], 1, seconds=5).values()
    assert time.perf_counter() - started < 30
    assert (row.status, row.law, row.seconds) == (KILLED, HANG, 5)
    assert row.said == f"more than 5 s under {A}"
    assert Case.parse(row.case).N > 2
    pid = int((fakes.folder / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_failure_that_does_not_repeat_is_a_kill(rows):
    (row,) = rows["Unsteady"]
    assert (row.status, row.law, row.cases) == (KILLED, A, 7)
    assert row.said.startswith("Disagreement: ")


def test_whatever_it_raises_is_a_kill(rows):
    (row,) = rows["Raises"]
    assert (row.status, row.law, row.said) == (KILLED, A, "TimeoutError: three tokens")


def test_what_dies_disturbs_no_other(done):
    tasks, rows, order = done
    assert set(rows) == set(tasks)
    assert sorted(name for name, _ in order) == sorted(tasks)
    assert dict(order) == rows
    assert {row.status for made in rows.values() for row in made} == {KILLED, SURVIVED}
    alive = {name for name, made in rows.items() if made[0].status == SURVIVED}
    assert alive == {"Right", "hidden", "kernel", CONTROL}


def test_a_search_may_be_narrowed_to_where_the_mistake_is_invisible(rows):
    ((seen,), (hidden,)) = rows["beta-before-solve"], rows["hidden"]
    assert seen.status == KILLED
    assert (hidden.status, hidden.cases) == (SURVIVED, 40)


def test_a_kernel_of_the_same_code_is_equivalent(rows):
    (original,) = rows["kernel"]
    assert set(original.fingerprints) == {"f32"}
    assert rows["wrong kernel"][0].fingerprints["f32"] != original.fingerprints["f32"]
    detour = "s0 = i_s * C", "s0 = (i_s + 1) * C - C"
    task = rewritten_kernel("detour", *detour, original=original.fingerprints)
    ((row,),) = run([task], 1).values()
    assert (row.status, row.cases, row.said) == (EQUIVALENT, None, "lowers to the same code")
    assert row.fingerprints == original.fingerprints


def test_a_mutant_that_leaves_is_a_kill(fakes):
    rows = run([fakes("Leaves"), fakes("Right")], 2)
    assert rows["Leaves"][0].status == KILLED
    assert rows["Right"][0].status == SURVIVED


def test_seconds_do_not_count_the_time_in_the_queue(fakes):
    ends = []
    tasks = [fakes("StartsSlowly", Search(A, "f32", 2)), fakes("Ends")]
    rows = run(tasks, 1, each=lambda task, rows: ends.append(time.perf_counter()))
    assert rows["Ends"][0].seconds < ends[1] - ends[0] + 0.5


# Hunting


class Told:
    """A watch that remembers."""

    def __init__(self):
        self.cases = []

    def begin(self, text):
        (line,) = (line for line in text.splitlines() if line.startswith("case: "))
        self.cases.append(Case.parse(line.split()[1]))

    def failed(self, text, error):
        pass

    def end(self):
        pass


def hunted(fakes, name, seed=0, **more):
    task = fakes(name)
    subject, told = subject_of(task, task.searches[0]), Told()
    return hunt(laws()[A], subject, seed, watch=told, **more), told.cases, subject


def test_a_hunt_counts_the_cases_up_to_the_first_failure(fakes):
    found, cases, subject = hunted(fakes, "WrongLate")
    assert [fails(A, subject, case) for case in cases[: found.cases]] == [False] * (found.cases - 1) + [True]
    assert found.cases > 1
    assert found.examined == len(cases) - DECIDING > found.cases  # the first failure is repeated
    assert found.case in cases[found.cases - 1 :]
    assert fails(A, subject, found.case)
    assert found.seconds > 0


def test_a_hunt_depends_on_its_seed_alone(fakes):
    one, again, other = (hunted(fakes, "WrongLate", seed)[1] for seed in (3, 3, 4))
    assert one == again
    assert one[:5] != other[:5]


def test_a_hunt_that_finds_nothing_says_how_far_it_looked(fakes):
    found, cases, _ = hunted(fakes, "Right", most=25)
    assert (found.cases, found.examined, found.case, found.said) == (None, 25, None, "")
    assert len(cases) == 25


def test_a_hunt_may_be_told_what_to_draw_from(fakes):
    short = SMALLEST_TILE.of(Case(N=2, dtype=F32))
    found, cases, _ = hunted(fakes, "Wrong", strategy=st.integers(0, 9).map(lambda seed: short.replace(seed=seed)))
    assert found.cases is None
    assert {case.N for case in cases} == {2}


def test_every_law_is_among_the_searches_of_everything():
    searches = searches_of_everything()
    of_kernels = [name for name, law in laws().items() if law.diagnosed]
    assert {(s.law, s.dtype) for s in searches} >= {(law, d) for law in of_kernels for d in ("f32", "f16")}
    assert (searches[0].law, searches[0].dtype) == (A, "f32")


# Rows


def test_a_row_is_written_with_six_fields(rows):
    row = rows["WrongLate"][0]
    assert row.data() == {
        "name": "WrongLate",
        "status": "killed",
        "law": A,
        "cases": row.cases,
        "seconds": row.seconds,
        "case": row.case,
    }
    assert list(Row("m", STALE).data()) == ["name", "status", "law", "cases", "seconds", "case"]


def test_rows_are_written_in_order(tmp_path, rows):
    path = tmp_path / "new" / "rows.json"
    write_rows({name: rows[name] for name in ("Wrong", "Ends")}, path)
    assert json.loads(path.read_text()) == [row.data() for row in (*rows["Wrong"], *rows["Ends"])]
    assert [file.name for file in path.parent.iterdir()] == ["rows.json"]


def test_rows_appear_whole_or_not_at_all(tmp_path):
    path = tmp_path / "rows.json"
    write_rows({"m": [Row("m", SURVIVED)]}, path)
    before = path.read_text()
    with pytest.raises(TypeError):
        write_rows({"m": [Row("m", KILLED), Row("m", KILLED, case=object())]}, path)
    assert path.read_text() == before
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_rows({}, tmp_path / "folder.json")


def printed(rows, doubles=None):
    console = Console(file=io.StringIO(), width=160)
    print_rows(rows, doubles or {}, console)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def killed(name, *cases, law=A):
    return [Row(name, KILLED, law, n, n / 8, f"v1,N={n}", f"said {n}") for n in cases]


def test_totals_are_over_all_mutants():
    rows = {f"m{n}": killed(f"m{n}", n) for n in range(1, 11)}
    rows |= {"alive": [Row("alive", SURVIVED, None, 400)], "gone": [Row("gone", STALE, said="the mask: is nowhere")]}
    rows |= {"same": [Row("same", EQUIVALENT, said="lowers to the same code")]}
    *_, count, cases, share, doubles = printed(rows, {"other": "m1", "another": "m2"})
    assert count == "13 mutants: 10 killed, 1 survived, 1 stale, 1 equivalent"
    assert cases == "cases to kill: median 5.5, 95th percentile 10, most 10"
    assert share == "killed 10 of 11 that are not equivalent: 90.9%"
    assert doubles == "2 more lower to the code of another mutant and are not counted"


def test_a_line_says_what_became_of_a_mutant():
    rows = {
        "m": killed("m", 3),
        "gone": [Row("gone", STALE, said="the mask: `A[i]` is nowhere")],
        "crashes": [Row("crashes", KILLED, CRASH, None, 1.5, None, "exit status -11")],
    }
    text = printed(rows)
    assert f"m killed {A} 3 0.4 v1,N=3" in text
    assert "gone stale the mask: `A[i]` is nowhere" in text  # no markup
    assert "crashes killed (crashed) 1.5 exit status -11" in text


def test_of_several_seeds_the_median_and_the_longest_case():
    made = [*killed("m", 3, 100), *killed("m", 7, law=MIRROR)]
    text = printed({"m": made})
    assert f"m killed {MIRROR} 7 0.9 v1,N=100" in text
    assert A in text
    assert "cases to kill: median 7, 95th percentile 100, most 100" in text


def test_a_seed_that_sees_nothing_makes_a_survivor():
    rows = {"m": [*killed("m", 3, 5), Row("m", SURVIVED, None, 400, 1.0, said="why")]}
    text = printed(rows)
    assert any(line.startswith("m survived 1 of 3 seeds") for line in text)
    assert "1 mutants: 1 survived" in text
    assert "killed 0 of 1 that are not equivalent: 0.0%" in text


def test_many_cases_are_said_in_full():
    text = printed({"m": killed("m", 1234)})
    assert any(line.startswith(f"m killed {A} 1234 ") for line in text)


def test_nothing_is_a_table_too():
    assert printed({})[-1] == "0 mutants: none"


# What is known of a mutant


def test_a_survivor_that_was_explained_is_equivalent(monkeypatch):
    alive = Row("the-other-right-pairing", SURVIVED, None, 400)
    said = CATALOGUE[alive.name].harmless
    assert judged(alive, "mirror") == replace(alive, status=EQUIVALENT, said=said)
    monkeypatch.setitem(REVIEWED["mirror"], "constant/A/0..1", "it is multiplied by zero")
    alive = Row("constant/A/0..1", SURVIVED, None, 400)
    assert judged(alive, "mirror") == replace(alive, status=EQUIVALENT, said="it is multiplied by zero")
    assert judged(alive, "kda_chunk") == judged(alive, "another.py:kda_chunk") == alive


def test_what_was_said_to_change_nothing_must_not_be_killed():
    row = judged(*[*killed("the-other-right-pairing", 3), "mirror"])
    assert row.status == SURVIVED
    assert row.said == (f"was said to change nothing ({CATALOGUE[row.name].harmless}); {A} says otherwise")
    assert row.case == "v1,N=3"


def test_other_rows_are_left_as_they_are():
    for row in (Row("beta-twice", SURVIVED), *killed("beta-twice", 3), Row("the-other-right-pairing", STALE)):
        assert judged(row, "mirror") is row


def test_mutants_of_the_same_code_count_once():
    def made(name, status=KILLED, **code):
        return {name: [Row(name, status, fingerprints=code)]}

    rows = made("a", f32="1") | made("b", f32="2") | made("c", f32="1") | made("d", f32="1", f16="3")
    rows |= made("none") | made("neither") | made("same", EQUIVALENT, f32="1")
    kept, doubles = distinct(rows)
    assert doubles == {"c": "a", "d": "a"}
    assert kept == {name: rows[name] for name in ("a", "b", "none", "neither", "same")}


# Plans


def test_the_control_is_put_under_everything_that_the_mutants_are_put_under():
    for plan in (plan_catalogue("mirror", "c", [0, 1]), plan_generated("mirror", "c", [0, 1])):
        assert plan.control.mutant == Mutant(CONTROL, plan.control.mutant.sentence, "mirror")
        assert {search for task in plan.tasks for search in task.searches} == set(plan.control.searches)
        assert {task.seeds for task in (plan.control, *plan.tasks)} == {(0, 1)}
        assert not plan.settled


def test_a_mistake_is_looked_for_by_its_law():
    mistake = CATALOGUE["L-in-operand-precision"]
    task = task_of(mistake, "kernel", "c", [5])
    assert task.searches == (Search(mistake.law, mistake.dtype, plans.MOST),)
    assert task.mutant.implementation == "kda_chunk"
    reference = next(m for m in CATALOGUE.values() if m.reference)
    assert task_of(reference, "reference", "c", [5]).searches[0].dtype == "f64"


def test_a_plan_may_be_of_a_few():
    names = ["beta-twice", "W-S-added"]
    assert [task.mutant.name for task in plan_catalogue("mirror", "c", [0], names).tasks] == names
    every = [task.mutant.name for task in plan_generated("mirror", "c", [0]).tasks]
    assert [task.mutant.name for task in plan_generated("mirror", "c", [0], every[3:5]).tasks] == every[3:5]


def test_what_is_made_for_cuda_is_not_planned_on_the_cpu():
    only = {n for n, mistake in CATALOGUE.items() if mistake.targets == ("cuda",) and "kernel" in mistake.forms}
    assert only
    assert not only & {task.mutant.name for task in plan_catalogue("kernel", "c", [0]).tasks}
    assert only <= {task.mutant.name for task in plan_catalogue("kernel", "cuda", [0]).tasks}


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(LookupError, match="the catalogue has no 'nosuch' for the mirror on c"):
        plan_catalogue("mirror", "c", [0], ["nosuch"])
    with pytest.raises(LookupError, match="no operator makes 'nosuch' in ref_C_fast"):
        plan_generated("mirror", "c", [0], ["nosuch"])
    with pytest.raises(LookupError, match="ref_A names no source that could be rewritten"):
        plan_generated("ref_A", "c", [0])


def test_a_reviewed_mutant_that_is_no_longer_generated_is_stale(monkeypatch):
    monkeypatch.setitem(REVIEWED["mirror"], "nosuch", "why")
    (row,) = plan_generated("mirror", "c", [0]).settled
    assert (row.name, row.status) == ("nosuch", STALE)
    every = plan_generated("mirror", "c", [0]).tasks[0].mutant.name
    assert plan_generated("mirror", "c", [0], [every]).settled == []  # of a few, nothing is said of the rest


def test_what_was_reviewed_is_still_generated():
    for name in ("kda_chunk", "mirror"):
        assert plan_generated(name, "c", [0]).settled == []


def test_an_entry_whose_place_is_gone_is_settled_before_anything_runs(monkeypatch):
    gone = replace(CATALOGUE["beta-twice"], mirror=(Edit("the place", "nowhere", ""),))
    monkeypatch.setitem(CATALOGUE, "beta-twice", gone)
    with pytest.raises(Stale):
        task_of(gone, "mirror", "c", [0])
    plan = plan_catalogue("mirror", "c", [0], ["beta-twice", "W-S-added"])
    assert [row.said for row in plan.settled] == ["the place: `nowhere` is nowhere in ref_C_fast; expected once"]
    assert [task.mutant.name for task in plan.tasks] == ["W-S-added"]


# The command


def kda(*words):
    return CliRunner().invoke(main, ["mutants", *words])


def refused(result):
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


def said(result):
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


@pytest.fixture
def canned(monkeypatch):
    """A campaign that runs nothing: `canned(rows)` says what becomes of the mutants of `rows`; the others survive."""
    calls = []

    def told(**rows):
        def campaign_run(tasks, workers, seconds, each=lambda task, rows: None):
            calls.append((tasks, workers, seconds))
            names = [task.mutant.name for task in tasks]
            return {n: rows.get(n.replace("-", "_"), [Row(n, SURVIVED, None, 400, 1.0)]) for n in names}

        monkeypatch.setattr(campaign, "run", campaign_run)
        return calls

    return told


def test_the_command_runs_an_entry_of_the_catalogue(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "MOST", 50)
    path = tmp_path / "rows.json"
    result = kda("--impl", "mirror", "--only", "beta-twice", "--json", str(path), "--workers", "1")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(path.read_text())
    assert list(row) == ["name", "status", "law", "cases", "seconds", "case"]
    assert (row["name"], row["status"], row["law"]) == ("beta-twice", "killed", A)
    task = task_of(CATALOGUE["beta-twice"], "mirror", "c", [0])
    assert fails(A, subject_of(task, task.searches[0]), Case.parse(row["case"]))
    text = said(result)
    assert any(
        line.startswith(f"beta-twice killed {A} {row['cases']} ") and line.endswith(row["case"]) for line in text
    )
    assert text[-2:] == [
        "killed 1 of 1 that are not equivalent: 100.0%",
        "the original, under the same: 50 cases a seed, no alarm",
    ]


def test_an_unexplained_survivor_fails_the_command(canned, tmp_path):
    canned(beta_twice=killed("beta-twice", 3))
    path = tmp_path / "rows.json"
    result = kda("--impl", "mirror", "--only", "beta-twice", "--only", "W-S-added", "--json", str(path))
    assert result.exit_code == 1
    assert "W-S-added survived 400 1.0" in said(result)
    assert "killed 1 of 2 that are not equivalent: 50.0%" in said(result)
    assert [row["status"] for row in json.loads(path.read_text())] == ["killed", "survived"]


def test_an_explained_survivor_does_not(canned, monkeypatch):
    canned()
    result = kda("--impl", "mirror", "--only", "the-other-right-pairing")
    assert result.exit_code == 0
    assert "1 mutants: 1 equivalent" in said(result)
    canned(the_other_right_pairing=killed("the-other-right-pairing", 3))
    result = kda("--impl", "mirror", "--only", "the-other-right-pairing")
    assert result.exit_code == 1
    assert "was said to change nothing" in result.stdout


def test_an_original_that_fails_fails_the_command(canned):
    alarm = [Row(CONTROL, SURVIVED, None, 400), *killed(CONTROL, 9)]
    canned(**{CONTROL: alarm, "beta_twice": killed("beta-twice", 3)})
    result = kda("--impl", "mirror", "--only", "beta-twice", "--seeds", "2")
    assert result.exit_code == 1
    assert f"the original is not clean: {A} fails on v1,N=9: said 9" in said(result)
    assert "no alarm" not in result.stdout


def test_a_stale_entry_fails_the_command(canned, tmp_path):
    path = tmp_path / "chunk.py"
    path.write_text((ROOT / "kda" / "kernels" / "chunk.py").read_text().replace("Lt_s", "Lower_s"))
    names = ("--only", "beta-dropped-from-L", "--only", "beta-twice")
    canned(beta_twice=killed("beta-twice", 3))
    result = kda("--impl", f"{path}:kda_chunk", "--target", "c", *names)
    assert result.exit_code == 1
    why = "beta in L: `Lt_s[_, _] = _` is nowhere in kda_chunk; expected once"
    assert f"beta-dropped-from-L stale {why}" in said(result)
    assert "2 mutants: 1 killed, 1 stale" in said(result)
    result = kda("--impl", f"{path}:kda_chunk", "--target", "c", *names, "--diff")
    assert result.exit_code == 0
    assert said(result)[-1] == f"beta-dropped-from-L: stale: {why}"


def test_seeds_workers_and_seconds_are_passed_on(canned):
    calls = canned(beta_twice=killed("beta-twice", 3, 4, 5))
    options = ("--seeds", "3", "--workers", "7", "--timeout", "90")
    assert kda("--impl", "mirror", "--only", "beta-twice", *options).exit_code == 0
    (([control], one, _), ([task], workers, seconds)) = calls
    assert (one, workers, seconds) == (1, 7, 90)
    assert task.seeds == control.seeds == (0, 1, 2)


def test_what_the_original_lowers_to_is_passed_on(canned):
    calls = canned(**{CONTROL: [Row(CONTROL, SURVIVED, None, 400, fingerprints={"f32": "1"})]})
    kda("--impl", "kernel", "--target", "c", "--only", "beta-twice")
    assert calls[1][0][0].original == {"f32": "1"}


def test_generated_mutants_of_the_same_code_are_counted_once(canned, tmp_path, monkeypatch):
    monkeypatch.setitem(REVIEWED, "mirror", {})
    one, other = (task.mutant.name for task in plan_generated("mirror", "c", [0]).tasks[:2])
    rows = {n.replace("-", "_"): [replace(killed(n, 3)[0], fingerprints={"f32": "1"})] for n in (one, other)}
    canned(**rows)
    path = tmp_path / "rows.json"
    result = kda("--impl", "mirror", "--generated", "--only", one, "--only", other, "--json", str(path))
    assert result.exit_code == 0
    assert "1 mutants: 1 killed" in said(result)
    assert "1 more lower to the code of another mutant and are not counted" in said(result)
    assert [row["name"] for row in json.loads(path.read_text())] == [one]


def test_differences_are_shown_and_nothing_is_run(monkeypatch):
    monkeypatch.setattr(campaign, "run", None)
    result = kda("--impl", "mirror", "--only", "beta-twice", "--only", "W-S-added", "--diff")
    assert result.exit_code == 0
    text = said(result)
    assert text[0] == f"beta-twice: {CATALOGUE['beta-twice'].sentence}"
    changed = [line for line in text if line[:2] in ("+ ", "- ")]
    assert changed == [
        "- X = np.concatenate([Kc * Ep, Vc], axis=-1)",
        "+ X = be[..., None] * np.concatenate([Kc * Ep, Vc], axis=-1)",
        "- Vt = U - WS",
        "+ Vt = U + WS",
    ]


def test_differences_of_generated_mutants_are_shown(monkeypatch):
    monkeypatch.setattr(campaign, "run", None)
    task = plan_generated("mirror", "c", [0]).tasks[0]
    result = kda("--impl", "mirror", "--generated", "--only", task.mutant.name, "--diff")
    assert result.exit_code == 0
    assert said(result)[0] == f"{task.mutant.name}: {task.mutant.sentence}"
    assert any(line.startswith("- ") for line in said(result))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "nosuch"), "the catalogue has no 'nosuch' for the kernel on c"),
        (("--only", "offsets-in-int32"), "the catalogue has no 'offsets-in-int32' for the kernel on c"),
        (("--impl", "mirror", "--only", "strides-assumed"), "no 'strides-assumed' for the mirror on c"),
        (("--generated", "--only", "nosuch"), "no operator makes 'nosuch' in kda_chunk"),
        (("--generated", "--impl", "ref_A"), "ref_A names no source that could be rewritten"),
        (("--impl", "nosuch"), "implementation 'nosuch' is unknown"),
        (("--seeds", "0"), "--seeds, --workers and --timeout must be at least 1"),
        (("--workers", "0"), "--seeds, --workers and --timeout must be at least 1"),
        (("--timeout", "0"), "--seeds, --workers and --timeout must be at least 1"),
    ],
)
def test_a_wrong_word_is_one_sentence(monkeypatch, tmp_path, words, says):
    monkeypatch.setattr(campaign, "run", None)
    path = tmp_path / "rows.json"
    assert says in refused(kda("--target", "c", "--json", str(path), *words))
    assert not path.exists()


def test_an_implementation_without_sources_has_no_catalogue():
    assert "ref_A names no source that could be rewritten" in refused(kda("--impl", "ref_A"))
