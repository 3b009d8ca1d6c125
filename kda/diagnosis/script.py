"""A failing case as a script of its own: one file that shows the bug with the kernel and NumPy, and nothing of ours.

It is what goes into a bug report. It says what came out, what should have, and by how much the two may differ; its exit
status is 1 while the bug lives and 0 when it is gone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

import numpy as np

from kda.case import Case
from kda.diagnosis.refusal import deserved
from kda.diagnosis.wrong import Examined, Run, Wrong, examined, wrong_run
from kda.formats import Format
from kda.implementations import PLAIN, Memory, MemoryViolation
from kda.numerics.compare import Verdict, compare
from kda.problem import InputError, Inputs, Outputs, Tile, at_words, check_shapes
from kda.suite.laws import Law, Subject

__all__ = ["CRASHED", "HUNG", "LINES", "WIDTH", "script"]

#: A script has fewer lines than this, and none is wider: it is read on a page.
LINES, WIDTH = 40, 100
#: How a process ended that could not tell (`ended` of `script`).
CRASHED, HUNG = "crashed", "hung"

#: Seconds after which a script gives up on a call that hangs.
_PATIENCE = 60
#: Runs of which two must differ for a race to be shown.
_REPEATS = 50


@dataclass
class _Text:
    """The parts of a script: what the kernel does wrong, the run that shows it, what comes before and after its inputs.

    problem, implementations, standard: names to import from there; others: more lines of imports. formats: those that
    are named beside the run's own.
    """

    does: str
    run: Run
    after: list[str]
    problem: set[str] = field(default_factory=lambda: {"Inputs", "Tile"})
    implementations: set[str] = field(default_factory=lambda: {"implementation"})
    standard: set[str] = field(default_factory=lambda: {"sys"})
    others: list[str] = field(default_factory=list)
    formats: tuple[Format, ...] = ()
    before: list[str] = field(default_factory=list)


def script(
    law: Law,
    subject: Subject,
    case: Case,
    error: Exception | None = None,
    ended: str = "",
    unsteady: bool = False,
) -> str:
    """The text of a script that shows what `case` fails with under `law`; fewer than 40 lines, at most 100 wide.

    It shows the run that is wrong by itself, else the law on the case; a case line of 1500 characters makes it longer.
    error: what it raised before, where that is known. ended: CRASHED or HUNG where it must not be run again here.
    unsteady: it does not fail every time, or not with the same bits.
    ValueError: the law holds, so that there is nothing to show.
    """
    if unsteady:
        text: _Text | None = _of_a_race(subject, Run(case.inputs(), case.tile, PLAIN, RuntimeError("unsteady")))
    elif ended:
        text = _of_an_end(subject, Run(case.inputs(), case.tile, PLAIN, RuntimeError(ended)), ended)
    else:
        found = examined(law, subject, case)
        if found.error is None:
            raise ValueError(f"{law.name} holds on {case}: there is nothing to reproduce")
        same = error is None or type(found.error) is type(error)
        text = _of_a_failure(found) if same else None
    if text is None:
        return _of_the_law(law, subject, case)
    written = _written(text, law, subject, None)
    if written.count("\n") >= LINES:
        line = str(case) if _same(case.inputs(), text.run.inputs) else None
        written = _written(text, law, subject, line) if line else written
    return written if written.count("\n") < LINES else _of_the_law(law, subject, case)


# What kind of failure it is.


def _of_a_failure(found: Examined) -> _Text | None:
    """The script that fits; None where no run shows it by itself."""
    subject, error = found.subject, found.error
    for run in found.runs:
        why = deserved(subject, run.inputs, run.tile)
        computed = isinstance(run.outcome, Outputs)
        if why is not None and (computed or not _names(run.outcome, why)):
            return _of_a_missing_refusal(subject, run, why)
        if why is None and isinstance(run.outcome, InputError):
            return _of_a_raise(subject, run, run.outcome)
    last = found.runs[-1] if found.runs else None
    earlier = [run.tile.dtype for run in found.runs]
    if last is not None and isinstance(last.outcome, Exception) and not isinstance(last.outcome, InputError):
        return _of_a_raise(subject, last, last.outcome, earlier[:-1])
    unsteady = next((run for run in found.runs if _differs_from_another(run, found.runs)), None)
    if unsteady is not None and len(set(earlier)) == 1:
        return _of_a_race(subject, unsteady)
    if error is None or not isinstance(error, AssertionError):
        return None
    wrong = wrong_run(found)
    if wrong is None:
        return None
    before = next(number for number, run in enumerate(found.runs) if run is wrong.run)
    return _of_a_value(wrong, earlier[:before])


def _names(outcome: Outputs | Exception, why: InputError) -> bool:
    """Whether a refusal names the tensor that is to blame."""
    return isinstance(outcome, InputError) and _blamed(why) in str(outcome).split()


def _blamed(why: InputError) -> str:
    return str(why).split()[0]


def _differs_from_another(run: Run, runs: Sequence[Run]) -> bool:
    return any(
        isinstance(run.outcome, Outputs)
        and isinstance(other.outcome, Outputs)
        and other.inputs is run.inputs
        and (other.tile, other.memory) == (run.tile, run.memory)
        and not run.outcome.equals(other.outcome)
        for other in runs
    )


# What each says after the inputs.


def _of_a_value(wrong: Wrong, earlier: Sequence[Format]) -> _Text | None:
    """A number that is not what the recurrence, or the kernel's own roundings, give."""
    verdict = compare(wrong.got, wrong.expected, wrong.budget)[0]
    row = verdict.index[:-1]
    words = at_words(verdict.tensor, row)
    call = _call(wrong.subject, wrong.run)
    compared = f"outputs.{verdict.tensor}[{', '.join(map(str, row))}]"
    if wrong.against == "reference A":
        body = [f"outputs = {call}", "", *_recurrence(wrong.inputs, verdict)]
        body += [
            f"got, allowed = {compared}, {_allowed(verdict.budget)}",
            "error = np.linalg.norm(got - expected)",
            "e = np.argmax(np.abs(got - expected))",
            f'print(f"{verdict.tensor} at {words}, value channel {{e}}:")',
            'print(f"got {got[e]:.9g}, expected {expected[e]:.9g}; row error {error:.3g}, allowed {allowed:.3g}")',
        ]
        does = f"gives a wrong {verdict.tensor}"
    else:
        if not verdict.error > verdict.budget or not abs(verdict.got - verdict.expected) > verdict.budget:
            return None
        body = [
            f"outputs = {call}",
            f"got, allowed = float({compared[:-1]}, {verdict.index[-1]}]), {_allowed(verdict.budget)}",
            f"expected = {verdict.expected!r}  # rounded where the kernel should round",
            "error = abs(got - expected)",
            f'print("{verdict.tensor} at {at_words(verdict.tensor, verdict.index)}:")',
            'print(f"got {got:.9g}, expected {expected:.9g}, error {error:.3g}, allowed {allowed:.3g}")',
        ]
        does = f"rounds {verdict.tensor} in another way than it should"
    text = _Text(does, wrong.run, [*body, "sys.exit(0 if error <= allowed else 1)"])
    return _after_other_formats(text, wrong.subject, earlier)


def _recurrence(inputs: Inputs, verdict: Verdict) -> Iterator[str]:
    """The article's recurrence for one batch and head, up to the row that is compared."""
    at = dict(zip(("o", "final_state"), (("b", "t", "h"), ("b", "h", "d")), strict=True))[verdict.tensor]
    place = dict(zip(at, verdict.index, strict=False))
    steps = place["t"] + 1 if "t" in place else inputs.sizes.N
    start = f"state[{place['b']}, {place['h']}].copy()" if inputs.initial_state is not None else "np.zeros((DK, DV))"
    yield "# S_t = S_{t-1} Diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,  o_t = S_t q_t;  a_t = exp(g_t)"
    yield f"b, h, S = {place['b']}, {place['h']}, {start}  # key channel first"
    yield f"for t in range({steps}):"
    yield "    S *= np.exp(g[b, t, h])[:, None]"
    yield "    S += np.outer(k[b, t, h], beta[b, t, h] * (v[b, t, h] - k[b, t, h] @ S))"
    yield "expected = q[b, t, h] @ S" if "t" in place else f"expected = S[{place['d']}]"


def _of_a_raise(subject: Subject, run: Run, error: Exception, earlier: Sequence[Format] = ()) -> _Text:
    """What must be computed raised something."""
    name = type(error).__name__
    text = _Text(f"raises {'an' if name[0] in 'AEIOU' else 'a'} {name} where it must compute", run, [])
    if isinstance(error, InputError):
        caught = "InputError"
        text.problem.add(caught)
    elif isinstance(error, MemoryViolation):
        caught = "MemoryViolation"
        text.implementations.add(caught)
        text.does = "writes to memory that is not its own"
    else:
        caught = "Exception"
        text.does = "reaches outside its tiles" if name == "TileError" else text.does
    text.after = [
        "try:",
        f"    {_call(subject, run)}",
        f"except {caught} as error:",
        '    print(f"got {type(error).__name__}: {error}")',
        '    print("expected outputs: nothing is wrong with these inputs")',
        "    sys.exit(1)",
        'print("got outputs, as expected")',
    ]
    return _after_other_formats(text, subject, earlier)


def _of_a_missing_refusal(subject: Subject, run: Run, why: InputError) -> _Text:
    """What must be refused was computed, or refused without naming what is to blame."""
    text = _Text(f"does not refuse a bad {_blamed(why)}", run, [])
    text.problem.add("InputError")
    text.after = [
        "try:",
        f"    {_call(subject, run)}",
        '    print("got outputs")',
        "    refused = False",
        "except InputError as error:",
        '    print(f"got InputError: {error}")',
        f'    refused = "{_blamed(why)}" in str(error).split()',
        *_print(f"expected an InputError such as: {why}"),
        "sys.exit(0 if refused else 1)",
    ]
    return text


def _of_a_race(subject: Subject, run: Run) -> _Text:
    """Runs that differ though nothing else does."""
    call = _call(subject, run)
    text = _Text("gives other bits on another run", run, [])
    text.others = ["from kda.numerics.compare import difference"]
    text.after = [
        f"first = {call}",
        f"for n in range({_REPEATS}):",
        f"    differs = difference({call}, first)",
        "    if differs:",
        '        print(f"run {n + 2}, expected to be run 1 again: {differs}")',
        "        sys.exit(1)",
        f'print("{_REPEATS + 1} runs, the same bits")',
    ]
    return text


def _of_an_end(subject: Subject, run: Run, ended: str) -> _Text:
    """A call that takes its process with it."""
    text = _Text(ended, run, [f"outputs = {_call(subject, run)}", 'print("it came back")'])
    if ended == HUNG:
        text.standard.add("faulthandler")
        text.before = [f"faulthandler.dump_traceback_later({_PATIENCE}, exit=True)  # a hang ends here, with status 1"]
    return text


def _after_other_formats(text: _Text, subject: Subject, earlier: Sequence[Format]) -> _Text:
    """The same, with kernels of other formats run before, where the failing run came after some."""
    others = tuple(dict.fromkeys(dtype for dtype in earlier if dtype is not text.run.tile.dtype))
    if others:
        text.formats = others
        state = "state" if text.run.inputs.initial_state is not None else "None"
        tile = _tile(text.run.tile, "dtype")
        text.after = [
            f"for dtype in ({', '.join(map(_named, others))},):  # kernels of other formats come first",
            f'    kernel.run(Inputs(q, k, v, 0 * g, beta, {state}, dtype).rounded(), {tile}, "{subject.target}")',
            *text.after,
        ]
    return text


def _of_the_law(law: Law, subject: Subject, case: Case) -> str:
    """The law itself on the case: for what no single run shows."""
    lines = [
        *_heading(subject, f"breaks {law.name}.", f"{law.sentence}."),
        "import sys",
        "from pathlib import Path",
        "",
        "import kda",
        "from kda.case import Case",
        "from kda.implementations import implementation",
        "from kda.suite.laws import Subject, load_laws",
        "from kda.suite.record import Record",
        "",
        *_kernel(subject),
        "law = load_laws(Path(kda.__file__).parent.parent / 'properties')",
        f'law = law["{law.name}"]',
        *_parsed("case", str(case)),
        f'subject = Subject(kernel, "{subject.target}", case.dtype)',
        "try:",
        "    law.holds_for(subject, case, Record(law.name, subject.id))",
        "except Exception as error:",
        '    print(f"{type(error).__name__}: {error}")',
        "    sys.exit(1)",
        'print("the law holds")',
    ]
    return "\n".join(lines) + "\n"


# Writing it down.


def _written(text: _Text, law: Law, subject: Subject, line: str | None) -> str:
    """The whole file; the inputs come from a case line where that is given."""
    formats = sorted({_named(form) for form in (text.run.tile.dtype, *text.formats)})
    if text.run.memory is not PLAIN:
        text.implementations.add("Memory")
    body = [*(_from_line(text.run.inputs, line) if line else _arrays(text.run.inputs)), *text.after]
    imports = [
        "from kda.case import Case" if line else "",
        f"from kda.formats import {', '.join(formats)}",
        f"from kda.implementations import {', '.join(sorted(text.implementations))}",
        *text.others,
        f"from kda.problem import {', '.join(sorted(text.problem))}",
    ]
    lines = [
        *_heading(subject, f"{text.does}.", f"Found by {law.name}."),
        *(f"import {name}" for name in sorted(text.standard)),
        "",
        *(["import numpy as np", ""] if any("np." in one for one in body) else []),
        *filter(None, imports),
        "",
        *_kernel(subject),
        *text.before,
        *body,
    ]
    return "\n".join(lines) + "\n"


def _name(subject: Subject) -> str:
    # A mutant goes by the name of what it was made of: nothing else can be found by name.
    return subject.implementation.address or subject.implementation.name.partition("~")[0]


def _heading(subject: Subject, *sentences: str) -> list[str]:
    first, *more = sentences
    return [
        *textwrap.wrap(f'"""{_name(subject)} on {subject.target} {first}', WIDTH),
        "",
        *(line for sentence in more for line in textwrap.wrap(sentence, WIDTH)),
        "python THIS_FILE [IMPLEMENTATION]: exit status 1 while the bug lives, 0 when it is gone.",
        '"""',
    ]


def _kernel(subject: Subject) -> list[str]:
    bold = "" if subject.implementation.checks_domain else ".unchecked()"
    whole = f'kernel = implementation(sys.argv[1] if len(sys.argv) > 1 else "{_name(subject)}"){bold}'
    if len(whole) <= WIDTH:
        return [whole]
    chosen = f"kernel = implementation(sys.argv[1] if len(sys.argv) > 1 else address){bold}"
    return [*_quoted("address = ", _name(subject), ""), chosen]


def _arrays(inputs: Inputs) -> list[str]:
    """The inputs as zeros and the numbers that are set."""
    state = inputs.initial_state
    try:
        sizes = check_shapes({name: array.shape for name, array in inputs.tensors()})
    except InputError:  # that is what it is about
        made = [f"{_short(name)} = np.zeros({tuple(array.shape)})" for name, array in inputs.tensors()]
    else:
        made = [
            f"B, N, H, DK, DV = {sizes.B}, {sizes.N}, {sizes.H}, {sizes.DK}, {sizes.DV}",
            "q, k, g = np.zeros((3, B, N, H, DK))",
            "v, beta = np.zeros((B, N, H, DV)), np.zeros((B, N, H))",
            *(["state = np.zeros((B, H, DK, DV))"] if state is not None else []),
        ]
    for name, array in inputs.tensors():
        made += _assignments(_short(name), array)
    return [*made, f"inputs = Inputs(q, k, v, g, beta, {'None' if state is None else 'state'}, {_named(inputs.dtype)})"]


def _assignments(name: str, array: np.ndarray) -> Iterator[str]:
    """`k[0, 0, 0, 3] = k[0, 1, 0, 3] = 1.0`, one value at a time; runs of equal tokens as a slice."""
    if array.size and (array == array.flat[0]).all() and array.flat[0]:
        yield f"{name}[:] = {_number(array.flat[0])}"
        return
    places: dict[str, list[str]] = {}
    tokens = 1 if name != "state" else None
    rest = np.argwhere(array).tolist()
    if tokens:  # so that those that differ in the token alone come one after the other
        rest.sort(key=lambda at: (at[:1], at[2:], at[1]))
    for at, length in _runs(rest, array, tokens):
        index = [str(i) for i in at]
        if tokens and length > 1:
            index[1] = ":" if length == array.shape[1] else f"{at[1]}:{at[1] + length}"
        places.setdefault(_number(array[tuple(at)]), []).append(f"{name}[{', '.join(index)}]")
    for value, targets in places.items():
        while targets:
            statement = value
            while targets and len(statement) + len(targets[-1]) + 3 <= WIDTH:
                statement = f"{targets.pop()} = {statement}"
            yield statement


def _runs(places: Sequence[list[int]], array: np.ndarray, axis: int | None) -> Iterator[tuple[list[int], int]]:
    """Places, and how many tokens from there on hold the same."""
    start = 0
    while start < len(places):
        end = start + 1
        while axis is not None and end < len(places) and _follows(places[end - 1], places[end], array, axis):
            end += 1
        yield places[start], end - start
        start = end


def _follows(one: list[int], other: list[int], array: np.ndarray, axis: int) -> bool:
    step = [b - a for a, b in zip(one, other, strict=True)]
    return step == [int(i == axis) for i in range(len(step))] and array[tuple(one)] == array[tuple(other)]


def _from_line(inputs: Inputs, line: str) -> list[str]:
    """The inputs as a case line makes them."""
    state = inputs.initial_state
    used = ["q", "k", "v", "g", "beta", *(["initial_state"] if state is not None else [])]
    return [
        *_parsed("case", line),
        "inputs = case.inputs()",
        f"{', '.join(map(_short, used))} = (getattr(inputs, name) for name in {' '.join(used)!r}.split())",
        "DK, DV = case.DK, case.DV",
    ]


def _parsed(name: str, line: str) -> list[str]:
    return _quoted(f"{name} = Case.parse(", line, ")")


def _quoted(before: str, text: str, after: str) -> list[str]:
    """A statement with a long text in it, in as many lines as it takes."""
    whole = f'{before}"{text}"{after}'
    if len(whole) <= WIDTH:
        return [whole]
    width = WIDTH - 6
    pieces = [f'    "{text[i : i + width]}"' for i in range(0, len(text), width)]
    return [before.rstrip() + ("" if after else " ("), *pieces, after or ")"]


def _call(subject: Subject, run: Run) -> str:
    memory = "" if run.memory is PLAIN else f", {_memory(run.memory)}"
    return f'kernel.run(inputs, {_tile(run.tile, _named(run.tile.dtype))}, "{subject.target}"{memory})'


def _tile(tile: Tile, dtype: str) -> str:
    more = f", threads={tile.threads}" if tile.threads is not None else ""
    more += f", num_stages={tile.num_stages}" if tile.num_stages else ""
    return f"Tile({tile.C}, {tile.block_DV}, {dtype}{more})"


def _memory(memory: Memory) -> str:
    said = [f"{name}={getattr(memory, name)}" for name in ("strided", "guard", "check_tiles") if getattr(memory, name)]
    said += [] if isnan(memory.poison) else [f"poison={memory.poison}"]
    return f"Memory({', '.join(said)})"


def _named(form: Format) -> str:
    return form.short.upper()


def _short(tensor: str) -> str:
    return "state" if tensor == "initial_state" else tensor


def _number(value: float) -> str:
    return repr(float(value)) if np.isfinite(value) else f'float("{float(value)}")'


def _allowed(budget: float) -> str:
    return f"{budget:.4g}" if budget else "0.0"


def _print(text: str) -> Iterator[str]:
    for piece in textwrap.wrap(text.replace("\\", "/").replace('"', "'"), WIDTH - 10):
        yield f'print("{piece}")'


def _same(one: Inputs, other: Inputs) -> bool:
    alike = one.dtype is other.dtype and [n for n, _ in one.tensors()] == [n for n, _ in other.tensors()]
    return alike and all(
        np.array_equal(mine, theirs) for (_, mine), (_, theirs) in zip(one.tensors(), other.tensors(), strict=True)
    )
