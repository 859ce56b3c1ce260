"""``fpemu sweep scaling`` and ``fpemu sweep plane``: maps of an error over two parameters, and the best setting."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import check_folder, parse_options, parse_sizes, print_table, print_text, show, with_options
from fpemu.cli.sweep import RunOptions
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


@dataclass(frozen=True)
class _MapFields:
    """Options that stand before those of `RunOptions` in the help."""

    size: Annotated[str, typer.Option("--size", metavar="MxNxK", help="Size of the product.")] = "48x48x512"
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", help="Number of seeds, or the seeds as a list or range: 0,5,7 or 0:9. The map shows the mean."
        ),
    ] = "3"
    metric: Annotated[str, typer.Option("--metric", help="The error: see 'fpemu list metrics'.")] = "relative_l2"
    factor: Annotated[
        float, typer.Option("--factor", help="Largest error of a good setting, relative to the smallest error.")
    ] = 1.5
    output: Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the map.")] = "maps"


@dataclass(frozen=True)
class MapOptions(RunOptions, _MapFields):
    """Values of the options that both commands have."""


@dataclass(frozen=True)
class _Axes:
    """An option of a scheme (y) over a parameter of its inputs or sizes (x), and the fixed values beside them."""

    scheme: Scheme
    y: str
    values: list[Number]
    options: dict[str, Any]
    distribution: str
    x: str
    swept: list[Number]
    parameters: dict[str, Any]
    hardware: str


@with_options(MapOptions)
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
    *,
    options: MapOptions,
) -> None:
    """Map the error over the scaling exponent of the residual and the offset exponent of the inputs.

    The table lists the best scaling exponents for each offset exponent. The last line names the scaling exponent
    that is near the best for the largest number of offset exponents. Overflow is hatched. For schemes of two fp16
    words rounded to nearest the map shows the bounds of equation 6 of the H2SGEMM paper. A range is first:last or
    first:last:step, with both ends included, or a list a,b,c. The command writes PNG, SVG, PDF, CSV and JSON files.
    """
    from fpemu import inputs, schemes
    from fpemu.sweep.grid import parse_range

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
    values: list[Number] = [*exponents] if scale == "sb" else [2.0**e for e in exponents]
    interval = "[-2^e,\\,2^e]" if distribution == _OFFSETS[0] else "[0,\\,2^e]"
    command = ["scaling", "--scheme", chosen.name, "--sb", sb, "--offset", offset, "--hardware", hardware]
    _draw(
        [*command, "--inputs", distribution, *_repeated("-O", option or [])],
        _Axes(chosen, scale, values, fixed, distribution, "exponent", [*offsets], {}, hardware),
        options,
        f"{chosen.name} over its scaling exponent",
        ("offset exponent", "sb"),
        (f"offset exponent $e$ of operands in ${interval}$", "scaling exponent sb"),
    )


@with_options(MapOptions)
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
    *,
    options: MapOptions,
) -> None:
    """Map the error over a numeric option of a scheme and a parameter of its inputs or a size.

    Example: 'fpemu sweep plane ozimmu --option slices=3:9 --inputs phi --parameter phi=0:4:0.5'. One option and one
    parameter have several values: first:last or first:last:step, with both ends included, a list a,b,c, or powers
    such as 2^0:2^16. All others have one value. Overflow is hatched. The command writes PNG, SVG, PDF, CSV and JSON
    files.
    """
    from fpemu import inputs, schemes

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
    command = ["plane", chosen.name, *_repeated("-O", option), *_repeated("-P", parameter), "--inputs", distribution]
    machine = hardware if chosen.needs_hardware else ""
    _draw(
        [*command, "--hardware", hardware],
        _Axes(chosen, y, values, fixed, distribution, x, swept, parameters, machine),
        options,
        f"{chosen.name} over {y} and {x}",
        (x, y) if x != y else (f"inputs.{x}", f"scheme.{y}"),
        (x if x in (*_SIZES, "seed") else f"{x} (inputs {distribution})", f"{y} ({chosen.name})"),
    )


def _draw(
    command: list[str], of: _Axes, options: MapOptions, title: str, names: tuple[str, str], labels: tuple[str, str]
) -> None:
    """Evaluate the grid of a map, write its files and print its table; ``command`` without the options of both."""
    from fpemu import schemes
    from fpemu.formats import FP16
    from fpemu.sweep import Grid
    from fpemu.sweep.maps import Map

    metric, kind = _parse_metric(options.metric), command[0]
    command = ["fpemu", "sweep", *command, "--size", options.size, "--seeds", options.seeds]
    sizes = dict(zip(_SIZES, parse_sizes("--size", options.size), strict=True))
    axes: dict[str, Any] = {**sizes, "seeds": _parse_seeds(options.seeds)}
    drawn: dict[str, Any] = {}
    for name, value in {**of.parameters, of.x: of.swept}.items():
        target = axes if name in (*_SIZES, "seed") else drawn
        target["seeds" if name == "seed" else name] = value if name == of.x or name != "seed" else [value]
    grid = Grid(
        title=title,
        inputs=[{"name": of.distribution, **drawn}],
        schemes=[{"name": of.scheme.name, **of.options, of.y: of.values}],
        hardware=of.hardware or (),
        metrics=[metric],
        on_range="propagate",
        **axes,
    )
    fixed = [(name, v) for part in (of.options, of.parameters) for name, v in part.items() if name not in _SIZES]
    fixings = [f"{name}={value}" for name, value in fixed]
    shape = [name if name == of.x else str(axes[name]) for name in _SIZES]
    swept = [of.y, of.distribution, of.x, *fixings, of.hardware]
    words = [*fixings, of.hardware, of.distribution] if kind == "scaling" else swept
    built: Any = schemes.build(of.scheme, {**of.options, of.y: of.values[0]})
    equation6 = kind == "scaling" and not built.scales_rows  # it is about two fp16 words of the operands as given
    equation6 = equation6 and [(word.format, word.rounding) for word in built.rules()] == [(FP16, "RNE")] * 2
    requested = Map(
        kind,
        ", ".join([of.scheme.name, *fixings]) + f" on {of.hardware}" * bool(of.hardware) + f", {'×'.join(shape)}",
        [of.scheme.name, *words, metric, "x".join(shape)],
        [*command, "--metric", metric, "--factor", f"{options.factor:g}"],
        built,
        grid,
        metric,
        names,
        (of.x if of.x in (*_SIZES, "seed") else f"inputs.{of.x}", f"scheme.{of.y}"),
        labels,
        exponents=kind == "scaling" and of.y != "sb",
        equation6=equation6,
    )
    _evaluate(requested, options)


def _repeated(flag: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _evaluate(requested: Map, options: MapOptions) -> None:
    from fpemu.sweep import maps
    from fpemu.sweep.run import check_failures

    factor, output = options.factor, options.output
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
