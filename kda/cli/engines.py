"""`kda engines`: the programs behind `kda_forward`, and what each covers."""

from __future__ import annotations

import click

__all__ = ["engines"]


@click.command()
def engines() -> None:
    """List the programs that compute kda_forward, in the order in which a call asks them, and what each covers."""
    import torch
    from rich import box
    from rich.table import Table

    from kda.cli.asking import console_for
    from kda.kernels.engines import ENGINES
    from kda.kernels.form import Form

    here = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what it is", "device", "q, k, v", "DK, DV", "tokens", "here"):
        table.add_column(heading)
    for engine in ENGINES:
        form, channels = Form(engine.operands[0]), engine.channels[-1]
        covered = [str(device) for device in here if engine.refuses(form, channels, channels, device) is None]
        operands = " ".join(map(str, engine.operands))
        table.add_row(
            engine.name,
            engine.summary,
            engine.device_words,
            operands,
            engine.channels_words,
            engine.length_words,
            ", ".join(covered) or "-",
        )
    console_for().print(table)
