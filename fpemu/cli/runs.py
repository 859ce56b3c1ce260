"""``fpemu compare``, ``fpemu replay``: recorded runs of PyTorch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fpemu import conformance
from fpemu.cli import options as cli

Seconds = Annotated[float, "Time limit of each search for a cause, in seconds."]


def compare(
    run1: Annotated[str, "RUN1", "Folder that fpemu.torch.record wrote."],
    run2: Annotated[str, "RUN2", "Folder of another run."],
    /,
    seconds: Seconds = 20.0,
    json_: bool = False,
) -> None:
    """Find the first product of two recorded runs whose operands are equal and whose results are not.

    The products are aligned by N and K; of runs with different batch sizes, the sampled rows with equal operands are
    compared. The specification of both products is found on the sampled entries, the second's as a change of the
    first's.

    Exit status 0 if no such product exists, 1 if one does, 2 for a folder without a run.
    """
    with cli.spinner("comparing"):
        found = conformance.compare_runs(run1, run2, seconds=seconds)
    typer.echo(json.dumps(asdict(found) | {"text": str(found)}, indent=1, default=str) if json_ else str(found))
    if found.first is not None:
        raise typer.Exit(1)


def replay(
    run: Annotated[str, "RUN", "Folder that fpemu.torch.record wrote."], /, seconds: Seconds = 20.0, json_: bool = False
) -> None:
    """Emulate the products of a recorded run, and find the orders that reproduce them.

    The stored samples are compared: rows of A, columns of B and their entries of D.

    Exit status 0 if every sampled product has the bits of a found specification, 1 if not, 2 for a folder without a
    run.
    """
    with cli.spinner("emulating") as say:
        groups = conformance.replay_run(run, seconds=seconds, report=lambda product: say(str(product)))
    if json_:
        typer.echo(json.dumps([asdict(group) for group in groups], indent=1, default=str))
    else:
        for group in groups:
            typer.echo(f"{group.explained} of {group.count} reproduced: {group.example}")
            for text in group.texts:
                typer.echo(f"  {text}")
    sampled = [group for group in groups if group.example.sizes is not None]
    if any(group.explained < group.count for group in sampled):
        raise typer.Exit(1)
