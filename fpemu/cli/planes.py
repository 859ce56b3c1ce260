"""``fpemu sweep scaling`` and ``fpemu sweep plane``: the map of an error over two parameters, and the best setting."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    WORKER_TIMEOUT,
    check_folder,
    console,
    note,
    parse_options,
    print_text,
    progress,
    show,
    show_plan,
    table,
)
from fpemu.cli.map_arguments import (
    DEVICE,
    OFFSETS,
    SIZES,
    has_equation6,
    parse_axis,
    parse_device,
    parse_integers,
    parse_metric,
    parse_seeds,
    parse_size,
    repeated,
    scale_option,
    stem,
)
from fpemu.errors import InputError, unknown_name
from fpemu.files import check_writable

if TYPE_CHECKING:
    from fpemu.devices import Device
    from fpemu.sweep import Store
    from fpemu.sweep.axes import Number
    from fpemu.sweep.maps import Map
    from fpemu.sweep.planes import Plane

# --- the options that both commands have
_Fixed = Annotated[
    list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="Another option of the scheme.")
]
_Hardware = Annotated[str, typer.Option("--hardware", "-H", help="An architecture or a GPU.")]
_Size = Annotated[str, typer.Option("--size", metavar="MxNxK", help="Sizes of the product.")]
_Seeds = Annotated[str, typer.Option("--seeds", help="How many seeds, or which: 0,5,7 or 0:9. The map shows the mean.")]
_Metric = Annotated[str, typer.Option("--metric", help="The error: see 'fpemu list metrics'.")]
_Factor = Annotated[float, typer.Option("--factor", help="Largest error of a good setting, relative to the best.")]
_Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, max=256, help="Local processes; default: one a core, at most 4.")
]
_Executor = Annotated[str | None, typer.Option("--executor", "-e", help="processes (default) or dask.")]
_Scheduler = Annotated[str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler.")]
_Device = Annotated[str, typer.Option("--device", help=DEVICE)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, count the cells, estimate the time.")]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Evaluate stored cells again.")]
_Export = Annotated[
    list[str] | None, typer.Option("--export", metavar="OUT", help="All rows as OUT.csv or OUT.parquet too.")
]
_Output = Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the map.")]


@dataclass(frozen=True)
class _How:
    """The options of both commands about running and writing."""

    factor: float
    jobs: int | None
    executor: str | None
    scheduler: str | None
    worker_timeout: float
    device: Device
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
    worker_timeout: Annotated[float, WORKER_TIMEOUT] = 600,
    device: _Device = "auto",
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

    chosen, where = schemes.get(scheme), parse_device(device, scheduler)
    scale = scale_option(chosen)
    if distribution not in OFFSETS:
        raise unknown_name("distribution with an offset exponent", distribution, OFFSETS)
    exponents, offsets = (
        parse_integers(name, parse_range(name, text), least=2) for name, text in (("--sb", sb), ("--offset", offset))
    )
    fixed = parse_options(option)
    if scale in fixed:
        raise InputError(f"{scale} is what --sb sweeps: leave it out of --option")
    if min(exponents) < -60 or max(exponents) > 60:
        raise InputError(f"--sb {sb}: a scale lies between 2^-60 and 2^60")
    values: list[Number] = list(exponents) if scale == "sb" else [2.0**e for e in exponents]
    M, N, K = parse_size(size)
    metric, fixings = parse_metric(metric), [f"{name}={value}" for name, value in fixed.items()]
    grid = Grid(
        title=f"{chosen.name} over its scaling exponent",
        inputs=[{"name": distribution, "exponent": offsets}],
        schemes=[{"name": chosen.name, **fixed, scale: values}],
        hardware=hardware,
        metrics=[metric],
        seeds=parse_seeds(seeds),
        on_range="propagate",
        M=M,
        N=N,
        K=K,
    )
    command = [
        "fpemu",
        "sweep",
        "scaling",
        "--scheme",
        chosen.name,
        "--sb",
        sb,
        "--offset",
        offset,
        "--hardware",
        hardware,
        "--inputs",
        distribution,
        *repeated("-O", option or []),
        "--size",
        size,
        "--seeds",
        seeds,
        "--metric",
        metric,
        "--factor",
        f"{factor:g}",
    ]
    built = schemes.build(chosen, {**fixed, scale: values[0]})
    interval = "[-2^e,\\,2^e]" if distribution == OFFSETS[0] else "[0,\\,2^e]"
    this = Map(
        "scaling",
        ", ".join([chosen.name, *fixings]) + f" on {hardware}, {M}×{N}×{K}",
        stem(shlex.join(command), "scaling", chosen.name, *fixings, hardware, distribution, metric, f"{M}x{N}x{K}"),
        shlex.join(command),
        built,
        grid,
        metric,
        "offset exponent",
        "sb",
        ("inputs.exponent", f"scheme.{scale}"),
        (f"offset exponent $e$ of operands in ${interval}$", "scaling exponent sb"),
        exponents=scale != "sb",
        equation6=has_equation6(built),
    )
    _do(this, _How(factor, jobs, executor, scheduler, worker_timeout, where, dry_run, fresh, export or [], output))


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
    worker_timeout: Annotated[float, WORKER_TIMEOUT] = 600,
    device: _Device = "auto",
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

    chosen, where = schemes.get(scheme), parse_device(device, scheduler)
    y, values, fixed = parse_axis("--option", option)
    x, places, given = parse_axis("--parameter", parameter)
    known = [one.name for one in chosen.info.options]
    for name in (y, *fixed):
        if name not in known:
            raise unknown_name(f"{chosen.name} option", name, known or ["(none)"])
    inputs.describe(distribution)
    metric = parse_metric(metric)
    everything: dict[str, Any] = {**dict(zip(SIZES, parse_size(size), strict=True)), "seeds": parse_seeds(seeds)}
    drawn: dict[str, Any] = {}
    for name, value in {**given, x: places}.items():
        if name == "seed":
            everything["seeds"] = value if name == x else [value]
        else:
            (everything if name in SIZES else drawn)[name] = value
    grid = Grid(
        title=f"{chosen.name} over {y} and {x}",
        inputs=[{"name": distribution, **drawn}],
        schemes=[{"name": chosen.name, **fixed, y: values}],
        hardware=hardware if chosen.needs_hardware else (),
        metrics=[metric],
        on_range="propagate",
        **everything,
    )
    fixings = [f"{name}={value}" for name, value in {**fixed, **given}.items() if name not in SIZES]
    on = hardware if chosen.needs_hardware else ""
    command = [
        "fpemu",
        "sweep",
        "plane",
        chosen.name,
        *repeated("-O", option),
        *repeated("-P", parameter),
        "--inputs",
        distribution,
        "--hardware",
        hardware,
        "--size",
        size,
        "--seeds",
        seeds,
        "--metric",
        metric,
        "--factor",
        f"{factor:g}",
    ]
    own = x in (*SIZES, "seed")
    labels = (x if own else f"{x} (inputs {distribution})", f"{y} ({chosen.name})")
    sizes = "×".join(name if name == x else str(everything[name]) for name in SIZES)
    this = Map(
        "plane",
        ", ".join([chosen.name, *fixings]) + f" on {on}" * bool(on) + f", {sizes}",
        stem(
            shlex.join(command), "plane", chosen.name, y, distribution, x, *fixings, on, metric, sizes.replace("×", "x")
        ),
        shlex.join(command),
        schemes.build(chosen, {**fixed, y: values[0]}),
        grid,
        metric,
        x,
        y,
        (x if own else f"inputs.{x}", f"scheme.{y}"),
        labels,
    )
    _do(this, _How(factor, jobs, executor, scheduler, worker_timeout, where, dry_run, fresh, export or [], output))


# --- running and showing
def _do(this: Map, how: _How) -> None:
    from fpemu.sweep import Store, maps
    from fpemu.sweep.export import check_target, export
    from fpemu.sweep.run import EXECUTORS, failure

    if not how.factor >= 1:
        raise InputError(f"--factor {how.factor}: a number from 1 is needed; 1 accepts only the best setting")
    if how.executor is not None and how.executor not in EXECUTORS:
        raise unknown_name("executor", how.executor, EXECUTORS)
    for target in how.export:
        check_target(target)
    check_folder(how.output)
    for path in this.paths(how.output):
        check_writable(path, make_folders=True)
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
    print_text(maps.answer(found, how.factor), indent="")
    console().print(
        f"{paths[0].with_suffix('').as_posix()}.{{{','.join(p.suffix[1:] for p in paths)}}}", soft_wrap=True
    )
    failed = [(cell, row["error"]) for cell, row in zip(this.grid.cells(), rows, strict=True) if "error" in row]
    if failed:
        raise failure(this.grid.name, failed, len(rows))


def _count(this: Map, how: _How, results: Store) -> None:
    from fpemu import devices
    from fpemu.sweep.run import default_jobs, survey

    plan = survey(this.grid, "quick", results)
    with devices.on(how.device if how.scheduler is None else "auto"):
        show_plan(this.grid, plan.afresh() if how.fresh else plan, results, how.jobs or default_jobs())
    console().print(f"map: {this.paths(how.output)[0].with_suffix('').as_posix()}", soft_wrap=True)


def _rows(this: Map, how: _How, results: Store) -> list[dict[str, Any]]:
    from fpemu.sweep.run import default_jobs, run

    with progress() as bars:
        return run(
            this.grid,
            results=results,
            jobs=how.jobs or default_jobs(),
            executor=how.executor,
            scheduler=how.scheduler,
            device=how.device,
            fresh=how.fresh,
            progress=bars,
            keep_failures=True,
            worker_timeout=how.worker_timeout,
        )


def _again(this: Map, how: _How) -> str:
    """The command that continues an interrupted map."""
    jobs = None if how.jobs is None else str(how.jobs)
    output = None if how.output == "maps" else how.output
    device = None if how.device == "auto" else how.device
    timeout = None if how.worker_timeout == 600 else f"{how.worker_timeout:g}"
    given = [("--executor", how.executor), ("--scheduler", how.scheduler), ("--worker-timeout", timeout)]
    given += [("--device", device), ("-j", jobs), ("-o", output)]
    given += [("--export", target) for target in how.export]
    return " ".join([this.command, *(f"{name} {shlex.quote(value)}" for name, value in given if value is not None)])


def _best(this: Map, found: Plane, factor: float) -> Any:
    from fpemu.sweep import maps, planes

    shown = table(
        f"{this.title}: the best {this.y} for each {this.x}",
        this.x,
        f"best {this.y} (within {100 * (planes.TIE - 1):.0f} %)",
        f"{this.y} within a factor of {factor:g}",
        f"smallest {this.metric}",
        numbers=1,
    )
    near = planes.losses(found) <= factor
    for index, one in enumerate(planes.best(found)):
        good = [y for y, fine in zip(found.ys, near[:, index].tolist(), strict=True) if fine]
        ranges = [planes.spans(ys, found.ys, maps.shown(found.ys)) for ys in (one.ys, good)]
        shown.add_row(maps.shown(found.xs)(one.x), *ranges, show(one.error))
    return shown
