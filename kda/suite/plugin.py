"""The pytest side: options, profiles, subjects, workers, the guard file and the summary. Loaded by conftest.py."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import hypothesis
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis.database import DirectoryBasedExampleDatabase

from kda.case import Case
from kda.formats import format_named
from kda.implementations import Implementation, implementation, target_of
from kda.kernels.compile import available_targets
from kda.lines import case_of
from kda.operation_case import OPERATION_VERSION, OperationCase
from kda.suite import guard
from kda.suite.failure import explain
from kda.suite.finding import find
from kda.suite.laws import LAWS, Law, Subject, load_laws, subjects_of
from kda.suite.record import Record, Run
from kda.suite.summary import print_summary
from kda.suite.watch import GpuLost, Watch, last_case

if TYPE_CHECKING:
    from kda.suite.operation_laws import OperationSubject

AnySubject = TypeVar("AnySubject", Subject, "OperationSubject")

#: Cases per law and subject.
PROFILES = {"gate": 100, "dev": 100, "nightly": 2000, "replay": 0}
#: How many cases the nightly profile climbs after a search, relative to those it searched.
CLIMBED = 0.25
#: Workers that may die in one run, and how many of their cases are made smaller, which takes some seconds each.
NO_LIMIT, DEATHS = 1_000_000, 3
GIB = 2**30
#: What one worker takes: memory of the machine, and of a GPU (measured: 16 workers use under 4 GiB of an H200).
WORKER_RAM, WORKER_GPU_RAM = 2 * GIB, 3 * GIB


class _Failures(DirectoryBasedExampleDatabase):
    """Keeps failures, and not what targeting would go on from: `dev`, which reads the same folder, would replay it."""

    def save(self, key: bytes, value: bytes) -> None:
        if not key.endswith(b".pareto"):
            super().save(key, value)


def register_profiles(database: Path) -> None:
    """The four Hypothesis profiles, for `--hypothesis-profile`; `gate` is the default in CI and `dev` elsewhere."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": quiet, "report_multiple_bugs": False}
    shrinking = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
    hypothesis.settings.register_profile(
        "gate", derandomize=True, database=None, max_examples=PROFILES["gate"], phases=shrinking, **common
    )
    hypothesis.settings.register_profile(
        "dev",
        derandomize=False,
        database=DirectoryBasedExampleDatabase(database),
        max_examples=PROFILES["dev"],
        phases=shrinking,
        **common,
    )
    hypothesis.settings.register_profile(
        "nightly",
        hypothesis.settings.get_profile("dev"),
        database=_Failures(database),
        max_examples=PROFILES["nightly"],
    )
    hypothesis.settings.register_profile(
        "replay", hypothesis.settings.get_profile("dev"), phases=(Phase.explicit, Phase.reuse)
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option each: which implementation, target and case, how many cases, how long, where the report goes."""
    group = parser.getgroup("kda", "Kimi Delta Attention properties")
    group.addoption(
        "--kda-impl",
        default="kda_chunk",
        metavar="NAME",
        help="the implementation under test: from `kda impls`, file.py:Class or module:Class (default: kda_chunk)",
    )
    group.addoption("--kda-target", default="auto", choices=("auto", "c", "cuda"), help="where it runs (default: auto)")
    group.addoption("--kda-dtype", default=None, metavar="F16,BF16", help="only these operand formats, by short name")
    group.addoption("--kda-case", default=None, metavar="LINE", help="examine this one case instead of searching")
    group.addoption("--kda-cases", default=None, type=int, metavar="N", help="cases per law (default: the profile's)")
    group.addoption("--kda-report", default=None, metavar="FILE", help="write the summary of the run as JSON")
    group.addoption("--kda-html", default=None, metavar="DIR", help="write a page with pictures for every failure")
    group.addoption("--kda-brief", action="store_true", help="do not look into failures: the shrunk case alone")
    group.addoption("--kda-timeout", default=180.0, type=float, metavar="S", help="seconds for one case; 0: no limit")


@dataclass
class Plan:
    """What this run examines."""

    implementation: Implementation
    target: str
    dtypes: tuple[str, ...] | None
    case: Case | OperationCase | None
    cases: int | None
    profile: str
    seed: str | None
    watch: Watch
    brief: bool = False
    pages: Path | None = None
    deaths: int = 0

    @property
    def number(self) -> int:
        """How many cases are searched, of a law whose share is 1."""
        return self.cases if self.cases is not None else hypothesis.settings().max_examples

    def subjects(self, law: Law | None) -> list[Subject]:
        """The subjects of `law` (of any, where None), the simplest first."""
        chosen = self.implementation, self.target
        return self.asked_for(subjects_of(*chosen) if law is None else law.subjects(*chosen))

    def asked_for(self, subjects: list[AnySubject]) -> list[AnySubject]:
        """Those of `subjects` with an operand format that this run is about."""
        return [
            s
            for s in subjects
            if (self.dtypes is None or s.dtype.short in self.dtypes)
            and (self.case is None or s.dtype == self.case.dtype)
        ]


class KdaRun:
    """The fixture behind every law: searches for a counterexample and records what it did."""

    def __init__(self, plan: Plan, node: pytest.Item) -> None:
        self.plan = plan
        self.node = node

    def examine(self, law: Law, subject: Subject) -> None:
        """Examine the case that was asked for, or search."""
        __tracebackhide__ = True
        record = Record(law.name, subject.id)
        try:
            if self.plan.case is not None:
                self._one(law, subject, self.plan.case, record)
            else:
                self._many(law, subject, record)
        except GpuLost as error:
            self._end(error)
        finally:
            self.node.user_properties.append(("kda", record.data()))

    def replay(self, law: Law, subject: Subject, case: Any) -> None:
        """Examine one line of the guard file."""
        __tracebackhide__ = True
        record = Record(law.name, subject.id, guard_lines=1)
        try:
            self._one(law, subject, case, record)
        except GpuLost as error:
            self._end(error)
        finally:
            self.node.user_properties.append(("kda", record.data()))

    def compiled(self, subject: Subject | OperationSubject, work: Any) -> None:
        """Do `work`, which compiles, and record what it cost."""
        record = Record("", subject.id)
        with record.counting():
            work()
        self.node.user_properties.append(("kda", record.data()))

    def _one(self, law: Law, subject: Subject, case: Any, record: Record) -> None:
        __tracebackhide__ = True
        refusal = law.excludes(subject, case)
        if refusal is not None:
            pytest.skip(f"{law.name} on {subject.id} does not take this case: {refusal}")
        self._look(law, subject, record, lambda law: law.holds_for(subject, case, record, self.plan.watch), False)

    def _many(self, law: Law, subject: Subject, record: Record) -> None:
        __tracebackhide__ = True
        plan = self.plan

        def search(law: Law) -> None:
            __tracebackhide__ = True
            if plan.profile != "nightly" or not law.diagnosed:
                self._search(law, subject, record)
                return
            # Here and not above: Hypothesis also draws the numbers in the source of what is loaded, and `gate` and
            # `dev` load none of this.
            from kda.suite.nightly import hunt

            most = round(CLIMBED * plan.number * law.share)
            seed = None if plan.seed is None else f"{plan.seed} {self.node.nodeid}"
            hunt(law, subject, record, lambda law: self._search(law, subject, record), most, plan.watch, seed)

        self._look(law, subject, record, search, True)

    def _look(self, law: Law, subject: Subject, record: Record, search: Callable[[Law], None], shrink: bool) -> None:
        """Let `search` find a failure, and raise it with its report."""
        __tracebackhide__ = True
        found = find(law, subject, search, self.plan.watch)
        if found is None:
            return
        error = found.error
        if law.diagnosed and not (self.plan.brief and found.steady):
            from kda.diagnosis.report import understood

            root = self.node.config.rootpath
            report = understood(law, subject, found, root, self.plan.watch, shrink)
            error = report.error
            lines = report.lines
            if self.plan.pages is not None:
                lines = [*lines, f"page:  {report.write_page(self.plan.pages)}"]
            error.kda_report = lines  # type: ignore[attr-defined]
        raise error

    def _search(self, law: Law, subject: Subject, record: Record) -> None:
        __tracebackhide__ = True
        number = self.plan.number

        # The text of this function is Hypothesis' key to the failures it kept, and the seed of `gate`: change a word,
        # and both change.
        @hypothesis.settings(max_examples=max(1, round(number * law.share)))
        @given(case=law.cases(subject))
        def search(case: Case) -> None:
            __tracebackhide__ = True
            law.holds_for(subject, case, record, self.plan.watch)

        # Without it, all subjects of a law would share one stream of examples and one database entry.
        inner: Any = search
        inner.hypothesis.inner_test._hypothesis_internal_add_digest = self.node.nodeid.encode()
        search()
        if record.cases >= 20 and record.untrusted > 0.7 * record.cases:
            pytest.fail(
                f"{record.untrusted} of {record.cases} cases of {law.name} proved nothing: their budget exceeds "
                "the signal, or what the law changes changed nothing",
                pytrace=False,
            )

    def _end(self, error: GpuLost) -> NoReturn:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(70)  # xdist starts another worker; this one would fail every test that follows
        under_way = last_case(_folder(self.node.config), _worker())
        pytest.exit(f"the CUDA context broke in {self.node.nodeid}\n{under_way or error}", returncode=70)


@pytest.fixture
def kda_run(request: pytest.FixtureRequest) -> KdaRun:
    """The run of this test; see `KdaRun`."""
    return KdaRun(request.config.stash[_PLAN], request.node)


_PLAN = pytest.StashKey[Plan]()


def plan_of(config: pytest.Config) -> Plan:
    """What this run examines."""
    return config.stash[_PLAN]


_STARTED = pytest.StashKey[float]()
_RECORDS = pytest.StashKey[list[dict[str, Any]]]()
_DEFAULT_PROFILE = "gate" if os.environ.get("CI") else "dev"


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def _folder(config: pytest.Config) -> Path:
    return config.rootpath / ".kda" / "last-case"


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile, spread workers over GPUs, and read the options; UsageError for one that makes no sense."""
    if config.getoption("--kda-target") != "c":
        _spread_over_gpus()
    # Hypothesis' own variable: a folder that several machines share.
    storage = os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY") or config.rootpath / ".hypothesis"
    register_profiles(Path(storage) / "examples")
    profile = config.getoption("--hypothesis-profile", None) or _DEFAULT_PROFILE
    if profile not in PROFILES:
        raise pytest.UsageError(f"--hypothesis-profile is {profile!r}; expected one of {', '.join(PROFILES)}")
    hypothesis.settings.load_profile(profile)
    line, dtypes = config.getoption("--kda-case"), config.getoption("--kda-dtype")
    cases, seconds = config.getoption("--kda-cases"), config.getoption("--kda-timeout")
    if cases is not None and cases < 1:
        raise pytest.UsageError(f"--kda-cases is {cases}; expected at least 1")
    if seconds < 0:
        raise pytest.UsageError(f"--kda-timeout is {seconds:g}; expected seconds, or 0 for no limit")
    try:
        chosen = implementation(config.getoption("--kda-impl"))
        target = target_of(chosen, config.getoption("--kda-target"))
        case = case_of(line) if line else None
        formats = tuple(format_named(name.strip().lower()).short for name in dtypes.split(",")) if dtypes else None
    except (LookupError, TypeError, ValueError) as error:
        # str of a KeyError would be quoted
        raise pytest.UsageError(str(error.args[0] if error.args else error)) from None
    config.stash[_STARTED] = time.monotonic()
    config.stash[_RECORDS] = []
    config.stash[_PLAN] = Plan(
        implementation=chosen,
        target=target,
        dtypes=formats,
        case=case,
        cases=cases,
        profile=profile,
        seed=config.getoption("--hypothesis-seed", None),
        watch=Watch(_folder(config), _worker(), seconds),
        brief=config.getoption("--kda-brief"),
        pages=Path(config.getoption("--kda-html")) if config.getoption("--kda-html") else None,
    )
    if config.getoption("maxworkerrestart", None) is None:
        # A kernel that crashes ends a worker in every test; the default of xdist gives up after a few.
        config.option.maxworkerrestart = str(NO_LIMIT)


def _spread_over_gpus() -> None:
    # The caller's choice of devices is divided, never overruled. CUDA reads the variable once, as it starts: counting
    # the devices does not start it (torch asks NVML), asking whether it is available would.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw"):
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        import torch

        visible = ",".join(str(i) for i in range(torch.cuda.device_count()))
    if visible:
        devices = visible.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[int(worker[2:]) % len(devices)]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What runs where, and what the last run was doing where it did not come to its end."""
    plan = config.stash[_PLAN]
    dtypes = ", ".join(str(d) for d in plan.implementation.dtypes(plan.target))
    header = [f"kda: {plan.implementation.name} on {plan.target} ({dtypes}), profile {plan.profile}"]
    if plan.watch.left:
        header += ["kda: an earlier run ended in the middle of", *plan.watch.left.splitlines()]
    return header


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Workers for `-n auto`: by cores and memory, and on CUDA by the memory of the GPUs."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, max(1, psutil.virtual_memory().available // WORKER_RAM))
    if config.getoption("--kda-target") != "c" and "cuda" in available_targets():
        import torch

        memory = sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
        workers = min(workers, max(1, memory // WORKER_GPU_RAM))
    return int(workers)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per law and subject; one per guard line; one per tile, and per form of an operation, to compile."""
    law: Law | None = getattr(metafunc.function, "kda_law", None)
    if law is not None:
        plan = metafunc.config.stash[_PLAN]
        subjects = plan.subjects(law)
        if subjects:
            metafunc.parametrize("subject", subjects, ids=[s.id for s in subjects])
        else:
            why = f"{law.name} asks for what {plan.implementation.name} on {plan.target} does not have"
            metafunc.parametrize("subject", [pytest.param(None, marks=pytest.mark.skip(reason=why))], ids=["none"])
    elif {"guarded", "subject"} <= set(metafunc.fixturenames):
        plan = metafunc.config.stash[_PLAN]
        folder = metafunc.definition.path.parent
        try:
            lines = [] if plan.case is not None else guard.read(folder / "guard.txt")
        except guard.GuardError as error:
            raise pytest.Collector.CollectError(str(error)) from None
        for line in lines:
            # The file of its law may not be collected yet, nor at all; an unknown name is for the test to report.
            room = line.property.partition(".")[0]
            if line.property not in LAWS and (folder / f"test_{room}.py").is_file():
                load_laws(folder, room)
        pairs = [(s, line) for line in lines for s in _guard_subjects(plan, line)]
        metafunc.parametrize(
            ("subject", "guarded"), pairs, ids=[f"{line.property}-{line.case.id}-{s.id}" for s, line in pairs]
        )
    elif {"tile_choice", "subject"} <= set(metafunc.fixturenames):
        pairs_to_compile = [
            (s, choice) for s in metafunc.config.stash[_PLAN].subjects(None) for choice in s.support.tiles or ()
        ]
        metafunc.parametrize(
            ("subject", "tile_choice"), pairs_to_compile, ids=[f"{choice.id}-{s.id}" for s, choice in pairs_to_compile]
        )
    elif {"form", "subject"} <= set(metafunc.fixturenames):
        from kda.suite.operation_laws import operation_subjects, programs_of

        plan = metafunc.config.stash[_PLAN]
        operations = [] if plan.case is not None else operation_subjects(plan.implementation, plan.target)
        programs = [program for s in plan.asked_for(operations) for program in programs_of(s)]
        metafunc.parametrize(("subject", "form"), programs, ids=[f"{form.id}-{s.id}" for s, form in programs])


def _guard_subjects(plan: Plan, line: guard.GuardLine) -> list[Subject]:
    law = LAWS.get(line.property)
    subjects = plan.subjects(law)
    return [s for s in subjects if s.dtype == line.case.dtype] or subjects[:1]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Guard lines first, then the compilations (in parallel, before any law waits for one), then the laws."""
    order = {"test_guard": 0, "test_compile": 1, "test_known_mistakes": 3}
    items.sort(key=lambda item: order.get(item.path.stem, 2))
    plan = config.stash[_PLAN]
    if plan.profile == "replay" and plan.case is None:
        laws = [i for i in items if getattr(getattr(i, "function", None), "kda_law", None) is not None]
        kept = [i for i in items if i not in laws and i.path.stem != "test_known_mistakes"]
        config.hook.pytest_deselected(items=[i for i in items if i not in kept])
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A law that failed says so on one screen, unless `--tb` asks for something else."""
    report: Any = yield
    excinfo = call.excinfo
    if report.failed and excinfo is not None and "kda_run" in getattr(item, "fixturenames", ()):
        lines = getattr(excinfo.value, "kda_report", None) or explain(excinfo.value, item.config.rootpath)
        if lines is not None and item.config.getoption("tbstyle") == "auto":
            shown: Any = excinfo.getrepr(style="native")
            shown.reprtraceback.reprentries[0].lines = [line + "\n" for line in lines]
            if shown.reprcrash is not None:
                shown.reprcrash.message = lines[0]
            report.longrepr = shown
            report.sections = [(name, text) for name, printed in report.sections if (text := _own(printed))]
    return report


def _own(printed: str) -> str:
    """What a kernel printed, without Hypothesis' way to find a failure again: the case line is ours."""
    return "".join(line for line in printed.splitlines(keepends=True) if "@seed(" not in line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the records of a test, from this process or from a worker."""
    if report.when == "call" and _controller is not None:
        _controller.extend(cast("dict[str, Any]", value) for key, value in report.user_properties if key == "kda")


_controller: list[dict[str, Any]] | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """The controller (or the only process) gathers the records."""
    global _controller
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _controller = session.config.stash[_RECORDS]


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """A worker died: say which case it was running."""
    node: Any = getattr(report, "node", None)
    under_way = last_case(_folder(sched.config), node.gateway.id) if node is not None else None
    if under_way is None:
        return
    from kda.diagnosis.layout import WIDTH, fitted_notes

    plan = sched.config.stash[_PLAN]
    lines = fitted_notes(under_way)
    if not plan.brief and plan.deaths < DEATHS and f"case:  {OPERATION_VERSION}" not in under_way:
        from kda.diagnosis.death import SECONDS, Question, retold

        plan.deaths += 1
        # It may have to compile first; a case that was to take a second is not given twenty.
        timeout = sched.config.getoption("--kda-timeout")
        seconds = min(SECONDS, timeout + 4) if timeout else SECONDS
        folder = sched.config.rootpath / Path(crashitem.partition("::")[0]).parent
        lines = retold(Question.of(folder, plan.implementation, plan.target, seconds=seconds), under_way)
    why = "the process ended (a crash, a broken GPU or the time-out of one case) in the middle of"
    crashed = textwrap.wrap(str(report.longrepr), WIDTH, break_long_words=False, break_on_hyphens=False)
    report.longrepr = "\n".join([*crashed, why, *lines])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A case that no law examined has not passed."""
    if exitstatus == pytest.ExitCode.OK and _examined_nothing(session.config):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _examined_nothing(config: pytest.Config) -> bool:
    asked = config.stash[_PLAN].case is not None and "PYTEST_XDIST_WORKER" not in os.environ
    return asked and not any(record["cases"] for record in config.stash[_RECORDS])


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """The table at the end, and the report file."""
    if _examined_nothing(config):
        terminalreporter.write_line("kda: no law examined the case; -rs says why")
    records = config.stash[_RECORDS]
    run = Run.of(records, time.monotonic() - config.stash[_STARTED])
    if run.records:
        print_summary(run, terminalreporter)
    if config.getoption("--kda-report"):
        run.write(Path(config.getoption("--kda-report")))
