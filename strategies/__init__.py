"""Hypothesis strategies for Kimi Delta Attention: shapes, gates, betas, vectors, states and whole cases.

They draw structure only, never arrays: a `kda.case.Case` makes its own inputs. All of them shrink towards the simplest
case that still has a signal, and none rejects what it drew.
"""

from strategies.betas import betas
from strategies.cases import cases, edits, far_cases, lattice_cases
from strategies.gates import gates, gates_between
from strategies.operations import lengths, operations, raw_gates
from strategies.shapes import sizes, tiles, token_counts
from strategies.states import states
from strategies.vectors import keys, queries, values
from strategies.wild import breaking_cases, wild_cases, wild_gates

__all__ = [
    "betas",
    "breaking_cases",
    "cases",
    "edits",
    "far_cases",
    "gates",
    "gates_between",
    "keys",
    "lattice_cases",
    "lengths",
    "operations",
    "queries",
    "raw_gates",
    "sizes",
    "states",
    "tiles",
    "token_counts",
    "values",
    "wild_cases",
    "wild_gates",
]
