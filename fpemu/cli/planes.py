"""``fpemu sweep scaling`` and ``fpemu sweep plane``: the map of an error over two parameters, and the best setting."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, parse_options, show, table
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.schemes import Scheme
    from fpemu.sweep import Store
    from fpemu.sweep.axes import Number
    from fpemu.sweep.maps import Map
    from fpemu.sweep.planes import Plane

OFFSETS = ("offset_symmetric", "offset_nonnegative")
_SIZES = ("M", "N", "K")

# --- the options that both commands have
_Fixed = Annotated[
    list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="Another option of the scheme.")
]
_Hardware = Annotated[str, typer.Option("--hardware", "-H", help="An architecture or a GPU.")]
_Size = Annotated[str, typer.Option("--size", metavar="MxNxK", help="Sizes of the product.")]
_Seeds = Annotated[str, typer.Option("--seeds", help="How many seeds, or which: 0,5,7 or 0:9. The map shows the mean.")]
_Metric = Annotated[str, typer.Option("--metric", help="The error: see 'fpemu list metrics'.")]
_Factor = Annotated[float, typer.Option("--factor", help="How near the best a single setting must be.")]
_Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, max=256, help="Local processes; default: one a core.")
]
_Executor = Annotated[str | None, typer.Option("--executor", "-e", help="processes (default) or dask.")]
_Scheduler = Annotated[str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, count the cells, estimate the time.")]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Evaluate again what is stored.")]
_Export = Annotated[
    list[str] | None, typer.Option("--export", metavar="OUT", help="All rows as OUT.csv or OUT.parquet too.")
]
_Output = Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the map.")]


@dataclass(frozen=True)
class _How:
    """What both commands are told about running and writing."""

    factor: float
    jobs: int | None
    executor: str | None
    scheduler: str | None
    dry_run: bool
    fresh: bool
    export: list[str]
    output: str


def scaling(
    scheme: Annotated[str, typer.Option("--scheme", "-s", help="A scheme that scales its residual.")] = "h2sgemm",
    sb: Annotated[str, typer.Option("--sb", metavar="RANGE", help="Binary exponents of the scale.")] = "-2:24",
    offset: Annotated[
        str, typer.Option("--offset", metavar="RANGE", help="Offset exponents of the inputs.")
    ] = "-20:15",
    hardware: _Hardware = "ascend910a",
    distribution: Annotated[str, typer.Option("--inputs", help="offset_symmetric or offset_nonnegative.")] = OFFSETS[0],
    option: _Fixed = None,
    size: _Size = "48x48x512",
    seeds: _Seeds = "3",
    metric: _Metric = "relative_l2",
    factor: _Factor = 1.5,
    jobs: _Jobs = None,
    executor: _Executor = None,
    scheduler: _Scheduler = None,
    dry_run: _DryRun = False,
    fresh: _Fresh = False,
    export: _Export = None,
    output: _Output = "maps",
) -> None:
    """Map the error over the scaling exponent of the residual and the offset exponent of the inputs.

    For each offset exponent the best scaling exponents, and the single one that serves most of them; overflow is
    hatched. Schemes of two fp16 parts rounded to nearest are drawn with the bounds of H2SGEMM's equation 6. A range is
    first:last or first:last:step, both included, or a list a,b,c. Writes PNG, SVG, PDF, CSV and JSON.
    """
    from fpemu import schemes
    from fpemu.sweep import Grid
    from fpemu.sweep.axes import parse_range
    from fpemu.sweep.maps import Map

    chosen = schemes.get(scheme)
    scale = _scale(chosen)
    if distribution not in OFFSETS:
        raise unknown_name("distribution with an offset exponent", distribution, OFFSETS)
    exponents, offsets = (
        _integers(name, parse_range(name, text), least=2) for name, text in (("--sb", sb), ("--offset", offset))
    )
    fixed = parse_options(option)
    if scale in fixed:
        raise InputError(f"{scale} is what --sb sweeps: leave it out of --option")
    if min(exponents) < -60 or max(exponents) > 60:
        raise InputError(f"--sb {sb}: a scale lies between 2^-60 and 2^60")
    values: list[Number] = list(exponents) if scale == "sb" else [2.0**e for e in exponents]
    M, N, K = _size(size)
    metric, fixings = _metric(metric), [f"{name}={value}" for name, value in fixed.items()]
    grid = Grid(
        title=f"{chosen.name} over its scaling exponent", inputs=[{"name": distribution, "exponent": offsets}],
        schemes=[{"name": chosen.name, **fixed, scale: values}], hardware=hardware, metrics=[metric],
        seeds=_seeds(seeds), on_range="propagate", M=M, N=N, K=K,
    )  # fmt: skip
    command = [
        "fpemu", "sweep", "scaling", "--scheme", chosen.name, "--sb", sb, "--offset", offset, "--hardware", hardware,
        "--inputs", distribution, *_repeated("-O", option or []), "--size", size, "--seeds", seeds, "--metric", metric,
        "--factor", f"{factor:g}",
    ]  # fmt: skip
    built = schemes.build(chosen, {**fixed, scale: values[0]})
    interval = "[-2^e,\\,2^e]" if distribution == OFFSETS[0] else "[0,\\,2^e]"
    this = Map(
        "scaling", ", ".join([chosen.name, *fixings]) + f" on {hardware}, {M}×{N}×{K}",
        _stem(shlex.join(command), "scaling", chosen.name, *fixings, hardware, distribution, metric, f"{M}x{N}x{K}"),
        shlex.join(command), built, grid, metric,
        "offset exponent", "sb", ("inputs.exponent", f"scheme.{scale}"),
        (f"offset exponent $e$ of operands in ${interval}$", "scaling exponent sb"),
        exponents=scale != "sb", equation6=_is_equation6(built),
    )  # fmt: skip
    _do(this, _How(factor, jobs, executor, scheduler, dry_run, fresh, export or [], output))


def plane(
    scheme: Annotated[str, typer.Argument(metavar="SCHEME", help="A scheme.")],
    option: Annotated[
        list[str],
        typer.Option("--option", "-O", metavar="NAME=RANGE", help="The option swept; NAME=VALUE fixes another."),
    ],
    parameter: Annotated[
        list[str],
        typer.Option("--parameter", "-P", metavar="NAME=RANGE", help="Of the inputs, or M, N, K, seed: one is swept."),
    ],
    distribution: Annotated[str, typer.Option("--inputs", help="See 'fpemu list inputs'.")] = "uniform",
    hardware: _Hardware = "A100",
    size: _Size = "48x48x512",
    seeds: _Seeds = "3",
    metric: _Metric = "relative_l2",
    factor: _Factor = 1.5,
    jobs: _Jobs = None,
    executor: _Executor = None,
    scheduler: _Scheduler = None,
    dry_run: _DryRun = False,
    fresh: _Fresh = False,
    export: _Export = None,
    output: _Output = "maps",
) -> None:
    """Map the error over a numeric option of a scheme and a parameter of its inputs or a size.

    'fpemu sweep plane ozimmu --option slices=3:9 --inputs phi --parameter phi=0:4:0.5'. One option and one parameter
    have several values: first:last or first:last:step, both included, a list a,b,c, or powers such as 2^0:2^16. The
    others are fixed. Overflow is hatched. Writes PNG, SVG, PDF, CSV and JSON.
    """
    from fpemu import inputs, schemes
    from fpemu.sweep import Grid
    from fpemu.sweep.maps import Map

    chosen = schemes.get(scheme)
    y, values, fixed = _axis("--option", option)
    x, places, given = _axis("--parameter", parameter)
    known = [one.name for one in chosen.info.options]
    for name in (y, *fixed):
        if name not in known:
            raise unknown_name(f"{chosen.name} option", name, known or ["(none)"])
    inputs.describe(distribution)
    metric = _metric(metric)
    everything: dict[str, Any] = {**dict(zip(_SIZES, _size(size), strict=True)), "seeds": _seeds(seeds)}
    drawn: dict[str, Any] = {}
    for name, value in {**given, x: places}.items():
        if name == "seed":
            everything["seeds"] = value if name == x else [value]
        else:
            (everything if name in _SIZES else drawn)[name] = value
    grid = Grid(
        title=f"{chosen.name} over {y} and {x}", inputs=[{"name": distribution, **drawn}],
        schemes=[{"name": chosen.name, **fixed, y: values}], hardware=hardware if chosen.needs_hardware else (),
        metrics=[metric], on_range="propagate", **everything,
    )  # fmt: skip
    fixings = [f"{name}={value}" for name, value in {**fixed, **given}.items() if name not in _SIZES]
    on = hardware if chosen.needs_hardware else ""
    command = [
        "fpemu", "sweep", "plane", chosen.name, *_repeated("-O", option), *_repeated("-P", parameter), "--inputs",
        distribution, "--hardware", hardware, "--size", size, "--seeds", seeds, "--metric", metric, "--factor",
        f"{factor:g}",
    ]  # fmt: skip
    own = x in (*_SIZES, "seed")
    labels = (x if own else f"{x} (inputs {distribution})", f"{y} ({chosen.name})")
    sizes = "×".join(name if name == x else str(everything[name]) for name in _SIZES)
    this = Map(
        "plane", ", ".join([chosen.name, *fixings]) + f" on {on}" * bool(on) + f", {sizes}",
        _stem(shlex.join(command), "plane", chosen.name, y, distribution, x, *fixings, on, metric,
              sizes.replace("×", "x")), shlex.join(command),
        schemes.build(chosen, {**fixed, y: values[0]}), grid, metric, x, y,
        (x if own else f"inputs.{x}", f"scheme.{y}"), labels,
    )  # fmt: skip
    _do(this, _How(factor, jobs, executor, scheduler, dry_run, fresh, export or [], output))


# --- what the user wrote
def _scale(scheme: Scheme) -> str:
    """The option of a scheme that scales its residual."""
    from fpemu import schemes

    def found(one: Scheme) -> list[str]:
        return [option.name for option in one.info.options if option.name in ("sb", "residual_scale")]

    if not found(scheme):
        able = ", ".join(name for name in schemes.names() if found(schemes.get(name)))
        raise InputError(f"{scheme.name} does not scale a residual; the schemes that do: {able}")
    return found(scheme)[0]


def _axis(flag: str, pairs: list[str]) -> tuple[str, list[Number], dict[str, Any]]:
    """The one name with several values, its values, and the others with theirs."""
    from fpemu.sweep.axes import parse_range

    fixed, swept = {}, {}
    for pair in pairs:
        ((name, value),) = parse_options([pair]).items()
        if name in fixed or name in swept:
            raise InputError(f"{flag}: {name} is given twice")
        text = pair.partition("=")[2]
        if ":" in text or re.fullmatch(r"[-+0-9.eE^* ]*,[-+0-9.eE^*, ]*", text):
            swept[name] = parse_range(f"{flag} {name}", text)
        else:
            fixed[name] = value
    fixed |= {name: values[0] for name, values in swept.items() if len(values) == 1}
    several = [(name, values) for name, values in swept.items() if len(values) > 1]
    if len(several) != 1:
        what = f"has {' and '.join(name for name, _ in several)}" if several else "has no range of two values or more"
        raise InputError(f"{flag} {what}: a map has one axis from it, NAME=FIRST:LAST")
    return *several[0], fixed


def _integers(name: str, values: list[Number], least: int = 1) -> list[int]:
    for value in values:
        if not isinstance(value, int):
            raise InputError(f"{name} has {value}: integers are needed")
    if len(values) < least:
        raise InputError(f"{name} is one value, {values[0]}: an axis of a map needs two or more, FIRST:LAST")
    return [int(value) for value in values]


def _size(text: str) -> list[int]:
    parts = re.split(r"[x×]", text.strip())
    if len(parts) != 3 or not all(re.fullmatch(r"[0-9]{1,6}", part) and int(part) for part in parts):
        raise InputError(f"--size {text!r} is not MxNxK, three positive integers such as 48x48x512")
    return [int(part) for part in parts]


def _seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves."""
    from fpemu.sweep.axes import parse_range

    values = _integers("--seeds", parse_range("--seeds", text))
    if len(values) > 1 or "," in text or ":" in text:
        return values
    if not 1 <= values[0] <= 1000:
        raise InputError(f"--seeds {values[0]}: 1 to 1000 of them, or a list such as 0,5,7")
    return values[0]


def _metric(name: str) -> str:
    from fpemu import metrics

    if name == "effective_bits":
        known = ", ".join(one for one in metrics.names() if one != name)
        raise InputError(f"--metric effective_bits grows as the error shrinks; a map is of an error: {known}")
    return metrics.get(name).__name__


def _repeated(flag: str, values: list[str]) -> list[str]:
    return [piece for value in values for piece in (flag, value)]


def _stem(command: str, *words: str) -> str:
    """Name of a map's files: words for people, and a hash of the command, in which everything is."""
    text = "-".join(re.sub(r"[^A-Za-z0-9_.=-]+", "_", word) for word in words if word)
    return f"{text[:150]}-{hashlib.sha256(command.encode()).hexdigest()[:8]}"


def _is_equation6(scheme: Any) -> bool:
    """Whether the scheme has the two parts that equation 6 is about, of the operands as they are given."""
    from fpemu.formats import FP16

    return not scheme.scales_rows and [(word.format, word.rounding) for word in scheme.rules()] == [(FP16, "RNE")] * 2


# --- running and showing
def _do(this: Map, how: _How) -> None:
    from fpemu.sweep import Store, maps
    from fpemu.sweep.export import check_target, export
    from fpemu.sweep.run import EXECUTORS, failure

    if not how.factor >= 1:
        raise InputError(f"--factor {how.factor}: at least 1, which asks for the best itself")
    if how.executor is not None and how.executor not in EXECUTORS:
        raise unknown_name("executor", how.executor, EXECUTORS)
    for target in how.export:
        check_target(target)
    if not how.output or any(p.exists() and not p.is_dir() for p in (Path(how.output), *Path(how.output).parents)):
        raise InputError(f"{how.output!r} is not a folder, nor can one be made there")
    try:
        with Store() as results:
            if how.dry_run:
                _count(this, how, results)
                return
            rows = _rows(this, how, results)
    except KeyboardInterrupt:
        print(
            f"fpemu: interrupted; what is finished is kept: '{_again(this, how)}' goes on from there", file=sys.stderr
        )
        raise typer.Exit(130) from None
    for target in how.export:
        export(rows, target)
        note(f"wrote {target}: {len(rows)} rows")
    paths = maps.write(this, rows, how.factor, how.output)
    found = this.plane(rows)
    console().print(_best(this, found, how.factor))
    console().print(maps.answer(found, how.factor), soft_wrap=True)
    console().print(
        f"{paths[0].with_suffix('').as_posix()}.{{{','.join(p.suffix[1:] for p in paths)}}}", soft_wrap=True
    )
    failed = [(cell, row["error"]) for cell, row in zip(this.grid.cells(), rows, strict=True) if "error" in row]
    if failed:
        raise failure(this.grid.name, failed, len(rows))


def _count(this: Map, how: _How, results: Store) -> None:
    from fpemu.cli.sweep import _plan
    from fpemu.sweep.run import default_jobs, survey

    plan = survey(this.grid, "quick", results)
    _plan(this.grid, plan.afresh() if how.fresh else plan, results, how.jobs or default_jobs())
    console().print(f"map: {this.paths(how.output)[0].with_suffix('').as_posix()}", soft_wrap=True)


def _rows(this: Map, how: _How, results: Store) -> list[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from fpemu.sweep.run import default_jobs, run

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        return run(
            this.grid, results=results, jobs=how.jobs or default_jobs(), executor=how.executor,
            scheduler=how.scheduler, fresh=how.fresh, progress=progress, keep_failures=True,
        )  # fmt: skip


def _again(this: Map, how: _How) -> str:
    """The command that goes on with an interrupted map."""
    jobs = None if how.jobs is None else str(how.jobs)
    output = None if how.output == "maps" else how.output
    given = [("--executor", how.executor), ("--scheduler", how.scheduler), ("-j", jobs), ("-o", output)]
    given += [("--export", target) for target in how.export]
    return " ".join([this.command, *(f"{name} {shlex.quote(value)}" for name, value in given if value is not None)])


def _best(this: Map, found: Plane, factor: float) -> Any:
    from fpemu.sweep import maps, planes

    shown = table(
        f"{this.title}: the best {this.y} for each {this.x}", this.x,
        f"best {this.y} (within {100 * (planes.TIE - 1):.0f} %)", f"{this.y} within a factor of {factor:g}",
        f"smallest {this.metric}", numbers=1,
    )  # fmt: skip
    near = planes.losses(found) <= factor
    for index, one in enumerate(planes.best(found)):
        good = [y for y, fine in zip(found.ys, near[:, index].tolist(), strict=True) if fine]
        ranges = [planes.spans(ys, found.ys, maps.shown(found.ys)) for ys in (one.ys, good)]
        shown.add_row(maps.shown(found.xs)(one.x), *ranges, show(one.error))
    return shown
