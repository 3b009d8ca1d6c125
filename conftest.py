"""Loads the plugin that runs the properties; `pytest --help` lists its options under "kda"."""

import os

# One thread per worker: the parallelism is in the workers. Before NumPy and torch are imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

pytest_plugins = ["kda.suite.plugin"]
