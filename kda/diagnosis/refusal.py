"""What a run should have been refused for, by the inputs alone."""

from __future__ import annotations

from kda.numerics.domain import GateDomain
from kda.problem import InputError, Inputs, Tile
from kda.suite.laws import Subject

__all__ = ["deserved"]


def deserved(subject: Subject, inputs: Inputs, tile: Tile) -> InputError | None:
    """The InputError that `inputs` must be refused with at `tile`, a DomainError for gates; None: compute them."""
    if not subject.implementation.checks_domain:
        return None
    support = subject.implementation.support(subject.target, inputs.dtype)
    domain = GateDomain(inputs.dtype, support.gate_window(tile.C), support.max_total_gate(inputs.dtype))
    try:
        domain.check_inputs(inputs)
    except InputError as error:
        return error
    return None
