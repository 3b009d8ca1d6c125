"""The catalogue of known mistakes: what each is, who made it, how it is made in our source, and which law sees it.

A mistake is made in the kernel (`kernel`: kda/kernels/chunk.py; `launch` and `compile`: the files beside it), in its
mirror (`mirror`: ref_C_fast; `loops`: ref_C, for what has to do with heads, blocks and programs), and in reference B
where it needs the explicit inverse (`reference`). The sections are those of the article; numbers with a # are reports
in the trackers of the projects named.
"""

from __future__ import annotations

from itertools import chain

from kda.mutation.catalogue.beta import BETA
from kda.mutation.catalogue.borders import BORDERS
from kda.mutation.catalogue.calls import CALLS
from kda.mutation.catalogue.cuda import CUDA
from kda.mutation.catalogue.decays import DECAYS
from kda.mutation.catalogue.hopper import HOPPER
from kda.mutation.catalogue.indices import INDICES
from kda.mutation.catalogue.launch import LAUNCH
from kda.mutation.catalogue.masks import MASKS
from kda.mutation.catalogue.mistake import Mistake
from kda.mutation.catalogue.precision import PRECISION
from kda.mutation.catalogue.solve import SOLVE
from kda.mutation.catalogue.state import STATE

__all__ = ["CATALOGUE", "Mistake"]

#: Every entry, by name.
CATALOGUE: dict[str, Mistake] = {
    mistake.name: mistake
    for mistake in chain(BETA, MASKS, SOLVE, DECAYS, BORDERS, STATE, INDICES, PRECISION, LAUNCH, CALLS, CUDA, HOPPER)
}
