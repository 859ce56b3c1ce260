"""``fpemu advise``: the cheapest scheme whose error meets a target."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    AS_JSON,
    MAX_ENTRIES,
    console,
    in_options,
    note,
    parse_options,
    print_text,
    read_matrix,
    show,
    spinner,
    table,
    text_width,
)
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.advice import Advice, Verdict


def advise(
    target: Annotated[float, typer.Option("--target", "-t", help="The largest relative error accepted, such as 1e-6.")],
    hardware: Annotated[
        str, typer.Option("--hardware", "-H", help="An architecture, a GPU or FILE.toml: see 'fpemu list hardware'.")
    ],
    k: Annotated[int | None, typer.Option("--k", help="Length K of the sums; required without --data.")] = None,
    m: Annotated[int | None, typer.Option("--m", help="Rows of the product, without --data; default: k.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the product, without --data; default: k.")] = None,
    data: Annotated[
        tuple[str, str] | None, typer.Option("--data", metavar="A B", help="The matrices A and B, as for 'fpemu gemm'.")
    ] = None,
    measure: Annotated[
        str,
        typer.Option("--measure", help="Error measure: normwise, relative_l2, max_relative, mred or max_error_legemm."),
    ] = "normwise",
    worst: Annotated[
        bool, typer.Option("--worst", help="Use the worst-case bound instead of the probable bound.")
    ] = False,
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="NAME[,X=Y...]", help="Without --data: the distribution of A and B.")
    ] = "uniform",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Without --data: fp32 or fp64; default: according to the target.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the drawn operands and of the sampled rows and columns.")
    ] = 0,
    max_entries: Annotated[int | None, MAX_ENTRIES] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Find the cheapest scheme whose error bound and whose error measured on the data meet a target.

    The cost of a scheme is the number of matrix instructions, weighted by their rate on the hardware; memory traffic
    decides between equal costs. A scheme whose measured error exceeds the target is never recommended. Exit status 1 if
    no scheme on the hardware meets the target; a line on stderr then names the scheme with the smallest bound.
    """
    from fpemu import advice

    name, *rest = inputs.split(",")
    matrices: dict[str, Any] = {}
    if data is not None:
        if inputs != "uniform" or dtype is not None:
            raise InputError("--inputs and --dtype describe A and B without --data: leave them out")
        matrices = dict(zip("AB", (read_matrix(name, max_entries) for name in data), strict=True))
    try:
        with spinner("analysing A and B") as say, in_options({x: f"--{x.lower()}" for x in "KMN"}):
            advised = advice.advise(
                target,
                hardware=hardware,
                K=k,
                M=m,
                N=n,
                measure=measure,
                confidence="worst" if worst else "probable",
                inputs=name.strip(),
                parameters=parse_options(rest),
                dtype=dtype,  # type: ignore[arg-type]  # checked by advise
                seed=seed,
                progress=say,
                **matrices,
            )
    except advice.TargetError as problem:
        note(f"fpemu: {problem}")
        raise typer.Exit(1) from problem
    if as_json:
        typer.echo(json.dumps(_as_json(advised, data), indent=2))
    else:
        _show(advised, data)


def _show(advised: Advice, data: tuple[str, str] | None) -> None:
    from fpemu.advice.search import FAILURE

    chosen = advised.chosen
    plain = "fp16" if advised.unit is not None else "fp32"
    bound = "the worst-case bound" if advised.confidence == "worst" else "the probable bound"
    worst = "; ".join(f"{part} {show(worst)}" for part, worst in chosen.parts() if worst)
    print_text(advised.call())
    _print_command(advised.command(*(data or ())))
    lines = [
        "",
        f"{advised.measure} error of {advised.M}×{advised.K} times {advised.K}×{advised.N}, "
        f"at most {advised.target:g} by {bound}:",
        f"measured    {show(chosen.measured or 0.0):>9}  on {advised.data}",
        f"probable    {_bound(chosen.probable):>9}  random data exceed it with a probability of {FAILURE:g} at most",
        f"worst case  {_bound(chosen.worst):>9}" + (f"  relative to |A||B|: {worst}" if worst else ""),
        *(f"note: {line}" for line in advised.notes),
        "",
    ]
    for line in lines:
        print_text(line, indent=" " * 23)
    listed = table(
        f"the cheapest schemes that meet {advised.target:g}, then cheaper ones that fail; work: {plain} products "
        f"({advised.rates})",
        "scheme",
        "verdict",
        "work",
        "memory, MB",
        "worst case",
        "probable",
        "measured",
        numbers=5,
    )
    for verdict, text in (
        (chosen, "chosen"),
        *((v, "meets it") for v in advised.alternatives),
        *((v, v.why) for v in advised.nearest),
    ):
        cost, measured = verdict.candidate.cost, "" if verdict.measured is None else show(verdict.measured)
        listed.add_row(
            verdict.candidate.label,
            text,
            show(cost.work),
            show(cost.memory / 1e6),
            _bound(verdict.worst),
            _bound(verdict.probable),
            measured,
        )
    console().print(listed)


def _bound(value: float) -> str:
    return show(value) if math.isfinite(value) else "none"


def _print_command(command: str) -> None:
    """Print a command of the shell, on several lines if it is wider than the terminal."""
    width = text_width()
    if width is not None and not any(" " in word for word in shlex.split(command)):
        lines = textwrap.wrap(
            command, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        command = " \\\n".join(lines)
    typer.echo(command)


def _as_json(advised: Advice, data: tuple[str, str] | None) -> dict[str, Any]:
    plain = ("target", "measure", "confidence", "hardware", "M", "N", "K", "data", "rates", "checked", "notes")
    return {
        **{name: getattr(advised, name) for name in plain},
        "python": advised.call(),
        "command": advised.command(*(data or ())),
        "chosen": _verdict(advised.chosen),
        "alternatives": [_verdict(v) for v in advised.alternatives],
        "nearest": [_verdict(v) for v in advised.nearest],
        "considered": len(advised.considered),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict without infinities, which JSON does not have: they are null."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    candidate = verdict.candidate
    return {
        "scheme": candidate.scheme,
        "options": dict(candidate.options),
        "on_range": candidate.on_range,
        "cost": {"work": candidate.cost.work, "memory": candidate.cost.memory, "vector": candidate.cost.vector},
        "worst": finite(verdict.worst),
        "probable": finite(verdict.probable),
        "measured": finite(verdict.measured),
        "parts": {name: finite(worst) for name, worst in verdict.parts()},
        "why": verdict.why,
    }
