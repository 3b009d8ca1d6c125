"""kda_chunk beside FLA's chunk_kda on one GPU, in one process: medians of CUDA-event times, and their ratio.

    python benchmarks/kernel_time.py [--sizes 1,8192,16] [--repeats 25]

DK = DV = 128, chunk 64, final state written, no initial state, scale 1. FLA (fla-core) is timed in both of its modes,
warm and tuned, where it is installed; inputs are rotated through more than the L2 cache holds. Every output is checked
against the error budget of kda_chunk on a short prefix before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kda.formats import format_named
from kda.kernels.launch import run_kda_chunk
from kda.numerics.budget import judge, operand_units
from kda.numerics.compare import compare
from kda.problem import Inputs, Outputs

D, C = 128, 64
COPIES = 3


def inputs(B: int, N: int, H: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k (unit rows), v, g with a uniform in [0.9, 0.999], beta uniform in [0, 1]; on the GPU."""
    q, k = (torch.nn.functional.normalize(torch.randn(B, N, H, D, device="cuda"), dim=-1).to(dtype) for _ in "qk")
    v = torch.randn(B, N, H, D, device="cuda").to(dtype)
    g = torch.log(torch.rand(B, N, H, D, device="cuda") * 0.099 + 0.9)
    return q, k, v, g, torch.rand(B, N, H, device="cuda")


def median_ms(call: Callable[[int], object], repeats: int) -> float:
    """The median time of one call in milliseconds, after three to warm up."""
    for i in range(3):
        call(i)
    times = []
    for i in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call(i)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def ratio_on_prefix(run: Callable[..., tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype) -> float:
    """The worst error / budget on (1, 200, 2)."""
    q, k, v, g, beta = inputs(1, 200, 2, dtype)
    o, state = run(q, k, v, g, beta)
    arrays = [x.double().cpu().numpy() for x in (q, k, v, g, beta)]
    problem = Inputs(*arrays, dtype=format_named(str(dtype).removeprefix("torch.")))
    judged = judge(problem, C, operand_units(problem, C, problem.dtype))
    got = Outputs(o.double().cpu().numpy(), state.double().cpu().numpy())
    return max(v.ratio for v in compare(got, judged.outputs, judged.budget))


def main() -> None:
    """Time everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,8192,16", help="B,N,H; several with / between them")
    parser.add_argument("--repeats", type=int, default=25)
    arguments = parser.parse_args()

    runs: list[tuple[str, torch.dtype, Callable[..., tuple[torch.Tensor, torch.Tensor]]]] = []
    for dtype, block, stages in (
        (torch.bfloat16, 32, 0),
        (torch.bfloat16, 64, 0),
        (torch.float16, 32, 0),
        (torch.float16, 32, 1),
    ):
        name = f"kda_chunk, block_DV={block}, num_stages={stages}"
        runs.append(
            (
                name,
                dtype,
                lambda *x, block=block, stages=stages: run_kda_chunk(
                    *x, C=C, block_DV=block, num_stages=stages, check_values=False
                ),
            )
        )
    try:
        from fla.ops.kda import chunk_kda

        for safe in (False, True):
            runs.append(
                (
                    f"fla chunk_kda, safe_gate={safe}",
                    torch.bfloat16,
                    lambda *x, safe=safe: chunk_kda(*x, scale=1.0, output_final_state=True, safe_gate=safe),
                )
            )
    except ImportError:
        print("fla-core is not installed: timing kda_chunk alone")

    table = Table("B,N,H", "what", "dtype", "ms", "over the fastest FLA", "error / budget")
    for size in arguments.sizes.split("/"):
        B, N, H = map(int, size.split(","))
        rows = []
        for name, dtype, run in runs:
            with torch.no_grad():
                worst = ratio_on_prefix(run, dtype)
                sets = [inputs(B, N, H, dtype) for _ in range(COPIES)]
                ms = median_ms(lambda i, s=sets, r=run: r(*s[i % COPIES]), arguments.repeats)
                rows.append((name, dtype, ms, worst))
                print(f"{size} {name} {dtype}: {ms:.3f} ms, worst error / budget {worst:.2f}", flush=True)
        peers = [ms for name, _, ms, _ in rows if name.startswith("fla")]
        for name, dtype, ms, worst in rows:
            over = f"{ms / min(peers):.2f}" if peers else "-"
            table.add_row(size, name, str(dtype).removeprefix("torch."), f"{ms:.3f}", over, f"{worst:.2f}")
    Console(width=120).print(table)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "numpy", np.__version__)


if __name__ == "__main__":
    main()
