"""``fpemu advise``: the cheapest scheme for a target accuracy."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu import advice
from fpemu.advice.search import FAILURE
from fpemu.cli import matrices
from fpemu.cli import options as cli
from fpemu.errors import GuaranteeError, InputError

if TYPE_CHECKING:
    from fpemu.advice import Verdict


@cli.with_options(advice.advise, "target", "K", "M", "N", "measure", "dtype", "seed")
def advise(
    *,
    hardware: Annotated[str | None, "An architecture, a GPU or FILE.toml: see 'fpemu list hardware'."] = None,
    data: Annotated[tuple[str, str] | None, "A B", "The matrices A and B, as for 'fpemu gemm'."] = None,
    worst: Annotated[bool, "Use the worst-case bound instead of the probable bound."] = False,
    inputs: Annotated[str, "NAME[,X=Y...]", "Without --data: the distribution of A and B."] = "uniform",
    max_entries: int = matrices.MAX_ENTRIES,
    json_: bool = False,
    options: dict[str, Any],
) -> None:
    """Find the cheapest scheme whose error bound and whose error measured on the data meet a target.

    The cost of a scheme is the number of matrix instructions, weighted by their rate on the hardware; memory traffic
    decides between equal costs. A scheme whose measured error exceeds the target is never recommended. Exit status 1 if
    no scheme on the hardware meets the target; a line on stderr then names the scheme with the smallest bound.
    """
    drawn, *parameters = inputs.split(",")
    operands: dict[str, Any] = {}
    if data is not None:
        if inputs != "uniform" or options["dtype"] is not None:
            raise InputError("--inputs and --dtype describe A and B without --data: leave them out")
        operands = {x: matrices.read(file, max_entries=max_entries) for x, file in zip("AB", data, strict=True)}
    try:
        with cli.spinner("analysing A and B") as say:
            advised = advice.advise(
                hardware=cli.need_hardware(hardware),
                confidence="worst" if worst else "probable",
                inputs=drawn.strip(),
                parameters=cli.parse_options(parameters),
                progress=say,
                **operands,
                **options,
            )
    except advice.TargetError as problem:
        raise GuaranteeError(str(problem)) from problem
    chosen, command = advised.chosen, advised.command(*(data or ()))
    if json_:
        plain = ("target", "measure", "confidence", "hardware", "M", "N", "K", "data", "rates", "checked", "notes")
        report = {name: getattr(advised, name) for name in plain} | {
            "python": advised.call(),
            "command": command,
            "chosen": _as_json(chosen),
            "alternatives": list(map(_as_json, advised.alternatives)),
            "nearest": list(map(_as_json, advised.nearest)),
            "considered": len(advised.considered),
        }
        typer.echo(json.dumps(report, indent=2))
        return
    bound = "the worst-case bound" if advised.confidence == "worst" else "the probable bound"
    parts = "; ".join(f"{part} {cli.show(size)}" for part, size in chosen.parts() if size)
    for line in (
        advised.call(),
        command,
        "",
        f"{advised.measure} error of {advised.M}×{advised.K} times {advised.K}×{advised.N}, "
        f"at most {advised.target:g} by {bound}:",
        f"measured    {cli.show(chosen.measured or 0.0):>9}  on {advised.data}",
        f"probable    {_bound(chosen.probable):>9}  random data exceed it with a probability of {FAILURE:g} at most",
        f"worst case  {_bound(chosen.worst):>9}" + (f"  relative to |A||B|: {parts}" if parts else ""),
        *(f"note: {note}" for note in advised.notes),
        "",
    ):
        typer.echo(line)
    verdicts = [(chosen, "chosen"), *((v, "meets it") for v in advised.alternatives)]
    rows = []
    for verdict, outcome in [*verdicts, *((v, v.why) for v in advised.nearest)]:
        cost, measured = verdict.candidate.cost, "" if verdict.measured is None else cli.show(verdict.measured)
        numbers = cli.show(cost.work), cli.show(cost.memory / 1e6), _bound(verdict.worst), _bound(verdict.probable)
        rows.append((verdict.candidate.label, outcome, *numbers, measured))
    unit = "fp32" if advised.unit is None else "fp16"
    cli.print_table(
        f"the cheapest schemes that meet {advised.target:g}, then cheaper ones that fail; work: "
        f"{unit} products ({advised.rates})",
        ("scheme", "verdict", "work", "memory, MB", "worst case", "probable", "measured"),
        rows,
        numbers=5,
    )


def _bound(value: float) -> str:
    return cli.show(value) if math.isfinite(value) else "none"


def _as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict without infinities, which JSON does not have: they are null."""
    candidate = verdict.candidate
    numbers = {name: getattr(verdict, name) for name in ("worst", "probable", "measured")}
    return {
        "scheme": candidate.scheme,
        "options": dict(candidate.options),
        "on_range": candidate.on_range,
        "cost": {name: getattr(candidate.cost, name) for name in ("work", "memory", "vector")},
        **{name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()},
        "parts": {name: x if math.isfinite(x) else None for name, x in verdict.parts()},
        "why": verdict.why,
    }
