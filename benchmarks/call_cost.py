"""What one call of kda_forward costs on the host, apart from its engine: checks, buffers, dispatch.

    python benchmarks/call_cost.py [--device cuda] [--profile]

One token of 16 heads, DK = DV = 128, as in decoding. The engine is one that does nothing. Each figure is the least of
200 means of 200 calls, on one core; --profile adds where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import pstats
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from kda.kernels import engines
from kda.ops import kda_forward

H, D = 16, 128


def without_engine() -> None:
    """Make an engine that does nothing the only one."""
    module: Any = ModuleType("nothing")
    module.launch = lambda call: None
    sys.modules["nothing"] = module
    engines.ENGINES = (dataclasses.replace(engines.ENGINES[-1], name="nothing", module="nothing"),)


def arguments(device: str) -> dict[str, dict[str, Any]]:
    """The calls, by what they ask for."""
    q = torch.randn(1, 1, H, D, device=device).bfloat16()
    g, beta = -torch.rand(1, 1, H, D, device=device), torch.rand(1, 1, H, device=device)
    plain = {"q": q, "k": q.clone(), "v": q.clone(), "g": g, "beta": beta}
    state = torch.zeros(1, H, D, D, device=device)
    decoding = plain | {"initial_state": state, "output_final_state": True}
    every = decoding | {
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "A_log": torch.zeros(H, device=device),
        "dt_bias": torch.zeros(H * D, device=device),
        "lower_bound": -5.0,
        "use_beta_sigmoid_in_kernel": True,
        "state_v_first": True,
        "cu_seqlens": torch.tensor([0, 1], dtype=torch.int32, device=device),
    }
    buffers = {"out": torch.empty_like(q), "final_state": torch.empty_like(state)}
    return {
        "q, k, v, g, beta": plain,
        "with states": decoding,
        "with every option": every,
        "with every option, into buffers": every | buffers,
    }


def microseconds(call: Callable[[], object]) -> float:
    """The least of 200 means of 200 calls."""
    for _ in range(500):
        call()
    means = []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(200):
            call()
        means.append((time.perf_counter() - start) / 200)
    return 1e6 * min(means)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    without_engine()
    table = Table("a call", "microseconds")
    calls = arguments(options.device)
    with torch.inference_mode():
        for what, given in calls.items():
            table.add_row(what, f"{microseconds(lambda given=given: kda_forward(**given)):.1f}")  # type: ignore[misc]
        Console().print(table)
        if options.profile:
            with cProfile.Profile() as profile:
                for _ in range(5000):
                    kda_forward(**given)
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
