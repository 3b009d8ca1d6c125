"""How a report is laid out."""

import subprocess

import pytest

from kda.case import Case
from kda.diagnosis.layout import LONG, WIDTH, fitted

SHORT = "v1,N=2,dtype=f32"
LONGER = "v1,B=2,N=37,H=2,dtype=f32,edits=" + "/".join(f"k:0.1.{t}.3:0.2500{t}" for t in range(12))


def notes(line):
    which = f"--property kernel.matches_reference_A --impl {'deep/' * 6}chunk.py:kda_chunk --target c"
    return [
        "o: error 1 in the row, " + "many words " * 12,
        "law:   kernel.matches_reference_A: it holds",
        f"case:  {line}",
        f"rerun: kda check {line} {which}",
        f"keep:  kda guard add {line} --property kernel.matches_reference_A",
        f"guard: {line} kernel.matches_reference_A",
    ]


@pytest.mark.parametrize("line", [SHORT, LONGER])
def test_no_line_is_wider_than_it_should_be(line):
    assert (len(line) > LONG) == (line is LONGER)
    assert max(map(len, fitted(notes(line), line))) <= WIDTH


@pytest.mark.parametrize("line", [SHORT, LONGER])
def test_a_shell_reads_the_commands_as_they_were(line, tmp_path):
    """The lines from the case on, pasted; `kda` says what it was given."""
    lines = fitted(notes(line), line)
    script = "kda() { printf '%s\\n' \"$*\"; }\n"
    if line is LONGER:
        start = next(i for i, text in enumerate(lines) if text.startswith("LINE="))
        stop = next(i for i, text in enumerate(lines) if text.startswith("rerun:"))
        script += "\n".join(lines[start:stop]) + "\n"
    for word in ("rerun: ", "keep:  "):
        start = next(i for i, text in enumerate(lines) if text.startswith(word))
        stop = start + 1
        while lines[stop - 1].endswith("\\"):
            stop += 1
        script += "\n".join(lines[start:stop]).removeprefix(word) + "\n"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [note.split("kda ", 1)[1] for note in notes(line)[3:5]]
    assert Case.parse(said[0].split()[1])


def test_another_case_beside_it_stays_itself():
    """What was found, and what ended the process while that was being made smaller."""
    lines = fitted([f"case:  {SHORT}", f"case:  {LONGER}", f"rerun: kda check {LONGER}"], LONGER)
    assert lines[0] == f"case:  {SHORT}"
    assert lines[1].startswith("LINE=v1,B=2,N=37")
    assert lines[-1] == "rerun: kda check $LINE"
