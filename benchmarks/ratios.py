"""How close correct kernels come to their budgets: ratios error / budget of many drawn cases, per operand format.

    python benchmarks/ratios.py --cases 3000

Every case is drawn by `strategies.cases`, as the properties draw theirs, at a fixed seed, and its ratio is that of its
worst row. The mirror stands for a correct kernel with narrow operands, ref_C for one in float64; `--impl kda_chunk`
measures the kernel. The table is in docs/tolerances.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import click
import numpy as np
from drawing import drawn
from rich.console import Console
from rich.table import Table

from kda.case import Case
from kda.implementations import implementation
from kda.numerics.compare import compare
from kda.suite.laws import Subject


@dataclass
class Ratios:
    """What one subject did: the ratio of every case, the case of the largest, how many comparisons proved nothing."""

    subject: Subject
    ratios: list[float] = field(default_factory=list)
    worst: tuple[float, str] = (-1.0, "")
    tensors: dict[str, float] = field(default_factory=dict)
    untrusted: int = 0

    def add(self, case: Case) -> None:
        """Run `case` and keep its worst ratio."""
        inputs = case.inputs()
        judged = self.subject.judge(inputs, case.tile)
        verdicts = compare(self.subject.run(inputs, case.tile), judged.outputs, judged.budget)
        for verdict in verdicts:
            self.tensors[verdict.tensor] = max(self.tensors.get(verdict.tensor, 0.0), verdict.ratio)
        ratio = verdicts[0].ratio
        self.ratios.append(ratio)
        self.worst = max(self.worst, (ratio, str(case)))
        self.untrusted += not any(v.trusted for v in verdicts)


def measure(subject: Subject, number: int, seed: int) -> Ratios:
    """The ratios of `number` cases that `subject` supports, drawn from `seed`."""
    found = Ratios(subject)
    for case in drawn(subject, number, seed):
        found.add(case)
    return found


@click.command()
@click.option("--cases", "number", default=3000, show_default=True, help="Cases per operand format.")
@click.option("--seed", default=0, show_default=True, help="Seed of the draws.")
@click.option("--target", default="c", show_default=True, type=click.Choice(["c", "cuda"]))
@click.option("--impl", "names", multiple=True, default=["mirror", "ref_C"], show_default=True, metavar="NAME")
def main(number: int, seed: int, target: str, names: tuple[str, ...]) -> None:
    """Print median, 99th percentile and worst ratio error / budget per operand format."""
    console = Console(width=120)
    table = Table("subject", "cases", "median", "p99", "worst o", "worst final_state", "budget above signal")
    worst = []
    for name in names:
        for dtype in implementation(name).dtypes(target):
            found = measure(Subject(implementation(name), target, dtype), number, seed)
            table.add_row(
                found.subject.id,
                str(len(found.ratios)),
                f"{np.median(found.ratios):.3f}",
                f"{np.quantile(found.ratios, 0.99):.3f}",
                f"{found.tensors['o']:.3f}",
                f"{found.tensors['final_state']:.3f}",
                f"{found.untrusted / len(found.ratios):.1%}",
            )
            worst.append(f"{found.subject.id}: {found.worst[0]:.3f} {found.worst[1]}")
    console.print(table)
    for line in worst:
        click.echo(line)


if __name__ == "__main__":
    main()
