"""A mutant: an implementation with one mistake made in its source, as plain data that travels between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kda.implementations import Implementation, implementation
from kda.mutation.rewrite import Edit, rewritten
from kda.source import module_from_source

__all__ = ["Mutant", "mutant"]


@dataclass(frozen=True)
class Mutant:
    """One rewritten implementation.

    implementation: the name it is found by; sources: its rewritten modules, role and text (none: it is the original).
    """

    name: str
    sentence: str
    implementation: str
    sources: tuple[tuple[str, str], ...] = ()

    def planted(self) -> Implementation:
        """The implementation on its rewritten modules; the original stays as it is. What importing them raises."""
        original = implementation(self.implementation)
        if not self.sources:
            return original
        packages = {role: source.module.__package__ or "" for role, source in original.sources().items()}
        modules = {role: module_from_source(text, self.name, packages[role]) for role, text in self.sources}
        made = original.rewritten(modules)
        made.name = f"{original.name}~{self.name}"
        return made


def mutant(name: str, sentence: str, original: Implementation, edits: Mapping[str, Sequence[Edit]]) -> Mutant:
    """`original` with `edits`, by role of its sources, made. Stale where one of them does not find its place."""
    sources = original.sources()
    texts = {role: rewritten(sources[role].text, sources[role].function, made) for role, made in edits.items()}
    return Mutant(name, sentence, original.address or original.name, tuple(texts.items()))
