"""Known mistakes, planted in a kernel and in the mirrors: each is caught, by the law that is meant to, and shrinks.

The entries are in kda/mutation/catalogue; docs/mutation.md says how to add one. A mutant runs in a process of its own:
some of them crash.
"""

from kda.case import Case
from kda.lines import case_of
from kda.mutation.campaign import CRASH, HANG, KILLED, SMALLEST_TILE, SURVIVED, Search, Task, run
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.catalogue.mistake import ORIGINALS, form_in
from kda.mutation.hiding import HIDING
from kda.mutation.plans import task_of
from kda.suite.plugin import plan_of

#: Of one hunt; docs/mutation.md has the figures of twenty.
SEED = 1
#: The forms that are a kernel, and not something beside one.
KERNELS = ("kernel", "forward", "hopper")


def pytest_generate_tests(metafunc):
    """The mirrors always; a kernel where it is what is tested, on its target (and on the CPU beside CUDA)."""
    plan = plan_of(metafunc.config)
    places = [("mirror", "c"), ("reference", "c"), ("forward_mirror", "c")]
    form = form_in(plan.implementation)
    if plan.implementation.name == ORIGINALS[form] and form in KERNELS:
        places += [(form, target) for target in dict.fromkeys(("c", plan.target))]
    entries = [
        (mistake, form, target)
        for mistake in CATALOGUE.values()
        for form, target in places
        if form in mistake.forms and target in mistake.targets
    ]
    if "hiding" in metafunc.fixturenames:
        found = [
            (mistake, form, target, name)
            for mistake, form, target in entries
            for name in mistake.hidden_by
            if target == "c" and form == ("mirror" if "mirror" in mistake.forms else "kernel")
        ]
        ids = [f"{mistake.name}-{'-'.join(name.split())}" for mistake, _, _, name in found]
        metafunc.parametrize(("mistake", "form", "target", "hiding"), found, ids=ids)
    else:
        wanted = [entry for entry in entries if ("harmless" in metafunc.function.__name__) == bool(entry[0].harmless)]
        ids = [f"{mistake.name}-{form}-{target}" for mistake, form, target in wanted]
        metafunc.parametrize(("mistake", "form", "target"), wanted, ids=ids)


def row_of(task: Task):
    """What became of the one mutant of a task."""
    ((row,),) = run([task], workers=1).values()
    return row


def original_of(request, form):
    """The kernel that mistakes are made in: the one under test, which may be an edited copy of ours."""
    return plan_of(request.config).implementation.address or None if form in KERNELS else None


def test_a_known_mistake_is_caught(mistake, form, target, request):
    """The law that is meant to see it fails within 400 cases, and the case shrinks to what the mistake needs."""
    row = row_of(task_of(mistake, form, target, [SEED], original_of(request, form)))
    mistake = mistake.of(form)
    assert row.status == KILLED, f"{mistake.name}: {mistake.sentence}. {mistake.law} did not see it in 400 cases"
    # On CUDA a mistake may be the end of its process; a wait for the wrong tile may have none.
    ended = {"hopper": (CRASH, HANG)}.get(form, (CRASH,)) if target == "cuda" else ()
    assert row.law == mistake.law or row.law in ended, f"{row.law}: {row.said}"
    if row.case is not None:
        case = case_of(row.case)
        lengths, heads = ((case.N,) * case.B, case.H) if isinstance(case, Case) else (case.sequences, case.HV)
        assert mistake.tokens >= max(lengths), f"it shrank to {case}"
        assert mistake.members >= max(len(lengths), heads), f"it shrank to {case}"
        assert len(row.case) < 160


def test_what_is_harmless_is_not_caught(mistake, form, target, request):
    """A rewrite that was proved to change nothing raises no alarm: the laws ask for the result, not for the source."""
    row = row_of(task_of(mistake, form, target, [SEED], original_of(request, form)))
    assert row.status == SURVIVED, f"{mistake.harmless}, and yet {row.law} fails on {row.case}: {row.said}"


def test_what_hides_a_mistake_hides_it(mistake, form, target, hiding):
    """Under what hides it no case shows the mistake: a suite whose inputs are all like that proves nothing about it."""
    search = Search(mistake.law, mistake.dtype, 80, hiding)
    row = row_of(Task(mistake.mutant(form), target, (search,), (SEED,), SMALLEST_TILE))
    assert row.status == SURVIVED, f"{HIDING[hiding].why}, and yet {row.law} fails on {row.case}: {row.said}"
