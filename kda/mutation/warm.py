"""Imported by the server that the campaign's processes are forked from: what they would all import themselves."""

import os

# A process that is forked from one that has started CUDA cannot use it: torch must ask NVML whether there is a GPU.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
# As conftest.py does: the parallelism is in the processes.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import gc  # noqa: E402
from importlib import import_module  # noqa: E402

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kda.kernels import compile as compiling  # noqa: E402
from kda.mutation import campaign  # noqa: E402

for module in (
    "kda.implementations.builtin",
    "kda.kernels.chunk",
    "kda.kernels.forward",
    "kda.kernels.hopper.prep",
    "kda.kernels.hopper.walk",
    "kda.kernels.launch",
    "kda.mutation.hunt",
):
    import_module(module)

# A mutant runs for a second: compiling it is what costs. The bits are the same, for nothing here relaxes arithmetic.
SHIPPED = compiling.C_FLAGS
compiling.C_FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in compiling.C_FLAGS)
compiling.tilelang()
campaign.laws()


@settings(max_examples=1, database=None)
@given(st.booleans())
def search(_: bool) -> None:
    """The first search of a process collects garbage and reads the source of every module of ours that is loaded."""


search()
# Nothing above is garbage: no process needs to look through it again.
gc.freeze()
