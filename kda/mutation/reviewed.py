"""Generated mutants that no law can kill, each with the reason: read by hand, after a campaign left them alive."""

__all__ = ["REVIEWED"]

#: By implementation, then by the name of the mutant.
REVIEWED: dict[str, dict[str, str]] = {"kda_chunk": {}, "mirror": {}}
