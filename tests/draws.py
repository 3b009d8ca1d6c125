"""Draws that hang on their seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from hypothesis.internal.conjecture import providers


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """Without the integers of loaded modules, which Hypothesis draws too.

    A statistic of draws, or a value that is rare among them, would hang on what other modules there are and which tests
    ran before.
    """
    providers.CONSTANTS_CACHE.cache.clear()
    with mock.patch.object(providers, "_get_local_constants", providers.Constants):
        yield
    providers.CONSTANTS_CACHE.cache.clear()
