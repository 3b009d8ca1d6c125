"""The command `kda`: rerun a case, read a case line, look into a failure, keep it, make mistakes on purpose.

Each command imports what it needs when it runs, so that those that only read a line start at once.
"""

from __future__ import annotations

import click

from kda.cli.cases import check, impls, show
from kda.cli.engines import engines
from kda.cli.failures import compare, diagnose, repro
from kda.cli.keeping import guard
from kda.cli.mutants import mutants
from kda.cli.studies import domain, plot, solve, tables

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Property tests for Kimi Delta Attention kernels: cases, laws, implementations, past failures."""


for command in (check, diagnose, repro, compare, show, impls, engines, mutants, tables, domain, solve, plot, guard):
    main.add_command(command)
