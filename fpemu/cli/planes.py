"""``fpemu sweep scaling`` and ``fpemu sweep plane``: maps of an error over two parameters, and the best setting."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import check_folder, parse_options, parse_sizes, print_table, print_text, show
from fpemu.cli.sweep import RunOptions, with_run_options
from fpemu.errors import InputError, unknown_name
from fpemu.files import check_writable

if TYPE_CHECKING:
    from fpemu.plotting.planes import Plane
    from fpemu.schemes import Scheme
    from fpemu.sweep.grid import Number
    from fpemu.sweep.maps import Map

_OFFSETS = ("offset_symmetric", "offset_nonnegative")
_SIZES = ("M", "N", "K")

# --- the options of both commands
_Hardware = Annotated[str, typer.Option("--hardware", "-H", help="An architecture or a GPU.")]
_Size = Annotated[str, typer.Option("--size", metavar="MxNxK", help="Size of the product.")]
_Seeds = Annotated[
    str,
    typer.Option(
        "--seeds", help="Number of seeds, or the seeds as a list or range: 0,5,7 or 0:9. The map shows the mean."
    ),
]
_Metric = Annotated[str, typer.Option("--metric", help="The error: see 'fpemu list metrics'.")]
_Factor = Annotated[
    float, typer.Option("--factor", help="Largest error of a good setting, relative to the smallest error.")
]
_Output = Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the map.")]


@with_run_options
def scaling(
    scheme: Annotated[str, typer.Option("--scheme", "-s", help="A scheme with a scaled residual.")] = "h2sgemm",
    sb: Annotated[str, typer.Option("--sb", metavar="RANGE", help="Binary exponents of the scale.")] = "-2:24",
    offset: Annotated[
        str, typer.Option("--offset", metavar="RANGE", help="Offset exponents of the inputs.")
    ] = "-20:15",
    hardware: _Hardware = "ascend910a",
    distribution: Annotated[str, typer.Option("--inputs", help="offset_symmetric or offset_nonnegative.")] = _OFFSETS[
        0
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="Another option of the scheme.")
    ] = None,
    size: _Size = "48x48x512",
    seeds: _Seeds = "3",
    metric: _Metric = "relative_l2",
    factor: _Factor = 1.5,
    output: _Output = "maps",
    *,
    options: RunOptions,
) -> None:
    """Map the error over the scaling exponent of the residual and the offset exponent of the inputs.

    The table lists the best scaling exponents for each offset exponent. The last line names the scaling exponent
    that is near the best for the largest number of offset exponents. Overflow is hatched. For schemes of two fp16
    words rounded to nearest the map shows the bounds of equation 6 of the H2SGEMM paper. A range is first:last or
    first:last:step, with both ends included, or a list a,b,c. The command writes PNG, SVG, PDF, CSV and JSON files.
    """
    from fpemu import inputs, schemes
    from fpemu.sweep import Grid
    from fpemu.sweep.grid import parse_range
    from fpemu.sweep.maps import Map

    chosen = schemes.get(scheme)
    scale = _scale_option(chosen)
    if distribution in inputs.names() and distribution not in _OFFSETS:
        raise InputError(
            f"--inputs {distribution} has no offset exponent, as {' and '.join(_OFFSETS)} have: 'fpemu sweep plane' "
            "maps an error over another parameter"
        )
    if distribution not in _OFFSETS:
        raise unknown_name("distribution with an offset exponent", distribution, _OFFSETS)
    exponents, offsets = (
        _parse_integers(name, parse_range(name, text), least=2) for name, text in (("--sb", sb), ("--offset", offset))
    )
    fixed = parse_options(option)
    if scale in fixed:
        raise InputError(f"{scale} is what --sb sweeps: leave it out of --option")
    if min(exponents) < -60 or max(exponents) > 60:
        raise InputError(f"--sb {sb}: a scale lies between 2^-60 and 2^60")
    values: list[Number] = list(exponents) if scale == "sb" else [2.0**e for e in exponents]
    sizes, metric = parse_sizes("--size", size), _parse_metric(metric)
    grid = Grid(
        title=f"{chosen.name} over its scaling exponent",
        inputs=[{"name": distribution, "exponent": offsets}],
        schemes=[{"name": chosen.name, **fixed, scale: values}],
        hardware=hardware,
        metrics=[metric],
        seeds=_parse_seeds(seeds),
        on_range="propagate",
        M=sizes[0],
        N=sizes[1],
        K=sizes[2],
    )
    command = _command(
        ["scaling"],
        {"--scheme": chosen.name, "--sb": sb, "--offset": offset, "--hardware": hardware, "--inputs": distribution},
        {"-O": option or [], "--size": size, "--seeds": seeds, "--metric": metric, "--factor": f"{factor:g}"},
    )
    built = schemes.build(chosen, {**fixed, scale: values[0]})
    fixings = [f"{name}={value}" for name, value in fixed.items()]
    interval = "[-2^e,\\,2^e]" if distribution == _OFFSETS[0] else "[0,\\,2^e]"
    requested = Map(
        "scaling",
        ", ".join([chosen.name, *fixings]) + f" on {hardware}, {'×'.join(map(str, sizes))}",
        [chosen.name, *fixings, hardware, distribution, metric, "x".join(map(str, sizes))],
        command,
        built,
        grid,
        metric,
        ("offset exponent", "sb"),
        ("inputs.exponent", f"scheme.{scale}"),
        (f"offset exponent $e$ of operands in ${interval}$", "scaling exponent sb"),
        exponents=scale != "sb",
        equation6=_has_equation6(built),
    )
    _evaluate(requested, factor, output, options)


@with_run_options
def plane(
    scheme: Annotated[str, typer.Argument(metavar="SCHEME", help="Name of a scheme.")],
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            "-O",
            metavar="NAME=RANGE",
            help="Option on one axis, with its range; NAME=VALUE fixes another option.",
        ),
    ],
    parameter: Annotated[
        list[str],
        typer.Option(
            "--parameter",
            "-P",
            metavar="NAME=RANGE",
            help="Parameter of the inputs, or M, N, K, seed, on the other axis, with its range.",
        ),
    ],
    distribution: Annotated[
        str, typer.Option("--inputs", help="Distribution of the inputs: see 'fpemu list inputs'.")
    ] = "uniform",
    hardware: _Hardware = "A100",
    size: _Size = "48x48x512",
    seeds: _Seeds = "3",
    metric: _Metric = "relative_l2",
    factor: _Factor = 1.5,
    output: _Output = "maps",
    *,
    options: RunOptions,
) -> None:
    """Map the error over a numeric option of a scheme and a parameter of its inputs or a size.

    Example: 'fpemu sweep plane ozimmu --option slices=3:9 --inputs phi --parameter phi=0:4:0.5'. One option and one
    parameter have several values: first:last or first:last:step, with both ends included, a list a,b,c, or powers
    such as 2^0:2^16. All others have one value. Overflow is hatched. The command writes PNG, SVG, PDF, CSV and JSON
    files.
    """
    from fpemu import inputs, schemes
    from fpemu.sweep import Grid
    from fpemu.sweep.maps import Map

    chosen = schemes.get(scheme)
    y, values, fixed = _parse_axis("--option", option)
    x, swept, parameters = _parse_axis("--parameter", parameter)
    known = [one.name for one in chosen.info.options]
    for name in (y, *fixed):
        if name not in known:
            raise unknown_name(f"{chosen.name} option", name, known or ["(none)"])
    inputs.describe(distribution)
    if "name" in (x, *parameters):
        raise InputError(f"--parameter name: the distribution is {distribution}, and --inputs names another")
    metric = _parse_metric(metric)
    axes: dict[str, Any] = {**dict(zip(_SIZES, parse_sizes("--size", size), strict=True)), "seeds": _parse_seeds(seeds)}
    drawn: dict[str, Any] = {}
    for name, value in {**parameters, x: swept}.items():
        if name == "seed":
            axes["seeds"] = value if name == x else [value]
        else:
            (axes if name in _SIZES else drawn)[name] = value
    machine = hardware if chosen.needs_hardware else ""
    grid = Grid(
        title=f"{chosen.name} over {y} and {x}",
        inputs=[{"name": distribution, **drawn}],
        schemes=[{"name": chosen.name, **fixed, y: values}],
        hardware=machine or (),
        metrics=[metric],
        on_range="propagate",
        **axes,
    )
    fixings = [f"{name}={v}" for part in (fixed, parameters) for name, v in part.items() if name not in _SIZES]
    command = _command(
        ["plane", chosen.name],
        {"-O": option, "-P": parameter, "--inputs": distribution, "--hardware": hardware, "--size": size},
        {"--seeds": seeds, "--metric": metric, "--factor": f"{factor:g}"},
    )
    sizes = [name if name == x else str(axes[name]) for name in _SIZES]
    of_grid = x in (*_SIZES, "seed")
    columns = (x if of_grid else f"inputs.{x}", f"scheme.{y}")
    requested = Map(
        "plane",
        ", ".join([chosen.name, *fixings]) + f" on {machine}" * bool(machine) + f", {'×'.join(sizes)}",
        [chosen.name, y, distribution, x, *fixings, machine, metric, "x".join(sizes)],
        command,
        schemes.build(chosen, {**fixed, y: values[0]}),
        grid,
        metric,
        (x, y) if x != y else columns,
        columns,
        (x if of_grid else f"{x} (inputs {distribution})", f"{y} ({chosen.name})"),
    )
    _evaluate(requested, factor, output, options)


def _command(head: list[str], *options: dict[str, str | list[str]]) -> list[str]:
    """The command that makes a map again; a list is an option that is repeated."""
    words = ["fpemu", "sweep", *head]
    for name, value in (pair for part in options for pair in part.items()):
        words += [word for one in ([value] if isinstance(value, str) else value) for word in (name, one)]
    return words


def _has_equation6(scheme: Any) -> bool:
    """Whether the scheme has the two words that equation 6 is about, of the operands as they are given."""
    from fpemu.formats import FP16

    return not scheme.scales_rows and [(word.format, word.rounding) for word in scheme.rules()] == [(FP16, "RNE")] * 2


def _evaluate(requested: Map, factor: float, output: str, options: RunOptions) -> None:
    from fpemu.sweep import maps
    from fpemu.sweep.run import check_failures

    if not 1 <= factor < math.inf:
        raise InputError(f"--factor {factor}: a finite number from 1 is needed; 1 accepts only the best setting")
    check_folder(output)
    for path in requested.paths(output):
        check_writable(path, make_folders=True)
    stem = requested.paths(output)[0].with_suffix("").as_posix()
    with options.resumable([*requested.command, *([] if output == "maps" else ["-o", output])]):
        rows = options.evaluate(requested.grid)
    if rows is None:
        typer.echo(f"map: {stem}")
        return
    paths = maps.write(requested, rows, factor, output)
    plane = requested.plane(rows)
    _print_best(requested, plane, factor)
    print_text(maps.answer(plane, factor))
    typer.echo(f"{stem}.{{{','.join(path.suffix[1:] for path in paths)}}}")
    check_failures(requested.grid, rows)


def _print_best(requested: Map, plane: Plane, factor: float) -> None:
    from fpemu.plotting import planes
    from fpemu.sweep import maps

    lines = []
    near = planes.losses(plane) <= factor
    for index, one in enumerate(planes.best(plane)):
        good = [y for y, fine in zip(plane.ys, near[:, index].tolist(), strict=True) if fine]
        ranges = [planes.spans(ys, plane.ys, maps.notation(plane.ys)) for ys in (one.ys, good)]
        lines.append((maps.notation(plane.xs)(one.x), *ranges, show(one.error)))
    best = f"best {plane.y} (within {100 * (planes.TIE - 1):.0f} %)"
    columns = (plane.x, best, f"{plane.y} within a factor of {factor:g}", f"smallest {requested.metric}")
    print_table(f"{requested.title}: the best {plane.y} for each {plane.x}", columns, lines, numbers=1)


# --- the arguments
def _scale_option(scheme: Scheme) -> str:
    """The option of a scheme that scales its residual."""
    from fpemu import schemes

    def scales(one: Scheme) -> list[str]:
        return [option.name for option in one.info.options if option.name in ("sb", "residual_scale")]

    if not scales(scheme):
        able = ", ".join(name for name in schemes.names() if scales(schemes.get(name)))
        raise InputError(f"{scheme.name} does not scale a residual; the schemes that do: {able}")
    return scales(scheme)[0]


def _parse_axis(flag: str, pairs: list[str]) -> tuple[str, list[Number], dict[str, Any]]:
    """The name of the option with several values, its values, and the other options."""
    from fpemu.sweep.grid import parse_range

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


def _parse_integers(name: str, values: list[Number], least: int = 1) -> list[int]:
    """The values if they are integers, ``least`` of them or more."""
    for value in values:
        if not isinstance(value, int):
            raise InputError(f"{name} has {value}: integers are needed")
    if len(values) < least:
        raise InputError(f"{name} is one value, {values[0]}: an axis of a map needs two or more, FIRST:LAST")
    return [int(value) for value in values]


def _parse_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves."""
    from fpemu.sweep.grid import parse_range

    values = _parse_integers("--seeds", parse_range("--seeds", text))
    if len(values) > 1 or "," in text or ":" in text:
        return values
    if not 1 <= values[0] <= 1000:
        raise InputError(f"--seeds {values[0]}: 1 to 1000 of them, or a list such as 0,5,7")
    return values[0]


def _parse_metric(name: str) -> str:
    """The full name of an error measure."""
    from fpemu import metrics

    if name == "effective_bits":
        known = ", ".join(one for one in metrics.names() if one != name)
        raise InputError(f"--metric effective_bits grows as the error shrinks; a map is of an error: {known}")
    return metrics.get(name).__name__
