"""``fpemu verify gemm``: a product of somebody else's against what it is said to be, bit by bit."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, parse_options, parse_order
from fpemu.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def gemm(
    a: Annotated[str | None, typer.Argument(metavar="A", help="A: FILE.npy, FILE.npz[:KEY] or FILE.mtx.")] = None,
    b: Annotated[str | None, typer.Argument(metavar="B", help="B, likewise.")] = None,
    result: Annotated[
        str | None, typer.Option("--result", "-r", metavar="D", help="The product to check: a matrix file.")
    ] = None,
    call: Annotated[
        str | None,
        typer.Option("--callable", metavar="FILE.py:FUNCTION", help="Or a function (A, B) → D on NumPy arrays."),
    ] = None,
    scheme: Annotated[
        str | None, typer.Option("--scheme", "-s", help="A scheme; default: a plain product of instructions.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware", "-H", help="An architecture or a GPU ('fpemu list hardware'); default: ordinary cores."
        ),
    ] = None,
    instruction: Annotated[str | None, typer.Option("--instruction", "-I", help="mma, wgmma, tcgen05 or mfma.")] = None,
    fmt: Annotated[
        str | None, typer.Option("--format", help="Operands of a plain product: fp16, bf16, tf32, e4m3, int8 ...")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="Format of D, where its file does not say it.")] = None,
    accumulate: Annotated[
        str | None, typer.Option("--accumulate", help="Accumulator of a plain product: fp32, fp16.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            metavar="NAME=VALUE,...",
            help="Order over K: split=128,tile=64,residue_first=true; or 'fpemu reveal's file.",
        ),
    ] = None,
    promote: Annotated[int | None, typer.Option("--promote", help="Promotion every so many k.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the scheme; may be repeated."),
    ] = None,
    alpha: Annotated[float, typer.Option("--alpha", help="α in α·A·B + β·C.")] = 1.0,
    beta: Annotated[float, typer.Option("--beta", help="β in α·A·B + β·C.")] = 0.0,
    c: Annotated[str | None, typer.Option("--c", "-c", metavar="C", help="A matrix file for C.")] = None,
    distribution: Annotated[
        str | None, typer.Option("--input", metavar="NAME", help="Draw A and B (with --callable and --shape).")
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", metavar="MxNxK", help="Of operands that are drawn.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of operands that --input draws.")] = 0,
    causes: Annotated[bool, typer.Option(help="Look for the cause of a difference.")] = True,
    seconds: Annotated[float, typer.Option("--seconds", help="Look for a cause so long at most.")] = 30.0,
    device: Annotated[str | None, typer.Option("--device", help="Where the whole is emulated: cpu or cuda.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Is this product what it is said to be, bit for bit? And if not: why?

    A claim is a plain product of instructions (hardware, format, order) or a scheme with its options. Where the result
    differs, the places and the pattern are shown, and the claim's alternatives are tried: orders over K, promotion,
    rounding of the operands, epilogues, accumulators, other hardware, ordinary cores, other schemes; two changes at
    once where one does not suffice. What reproduces all bits is listed, the likeliest first. A function is called
    twice, and probed for its order where that is what is wrong.

    Exit status: 0 equal, 1 different, 2 bad input. A function's file is run as it is: check only what you trust.
    """
    from fpemu.conformance import verify
    from fpemu.probing import watching

    if (result is None) == (call is None):
        raise InputError("give a product to check: either --result or --callable")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds is {seconds:g}: a positive number is needed")
    way = _order(order)
    if promote is not None:
        way = _promoted(way, promote)
    options = parse_options(option)
    if options and scheme is None:
        raise InputError("--option needs --scheme: a plain product has no options")
    A, B, C, sizes = _operands(a, b, c, distribution, shape, call is not None, scheme is not None)
    given: Any = watching.function(call) if call is not None else _read(str(result))
    taken: dict[str, Any] = {
        "scheme": scheme, "hardware": hardware, "order": way, "alpha": alpha, "beta": beta, "fmt": fmt, "out": out,
        "accumulate": accumulate, "instruction": instruction, "shape": sizes, "seed": seed, "causes": causes,
        "seconds": seconds, "device": device,
    }  # fmt: skip
    clash = sorted(set(options) & set(taken))
    if clash:
        raise InputError(f"option {clash[0]!r} goes by --{clash[0]}")
    show = None if as_json or not sys.stderr.isatty() else lambda what, tried: note(f"trying: {what} ({tried} so far)")
    verdict = verify(given, A, B, C, progress=show, **taken, **options)
    if as_json:
        typer.echo(json.dumps(verdict.as_dict(), indent=1))
    else:
        console().print(str(verdict), soft_wrap=True)
    if not verdict.equal:
        raise typer.Exit(1)


def _order(text: str | None) -> Any:
    """An order by its parts, or the order or tree of a file that ``fpemu reveal`` wrote."""
    if text is None or not text.endswith(".json"):
        return parse_order(text)
    from fpemu.probing import treefile

    return treefile.load(text)


def _promoted(order: Any, promote: int) -> Any:
    from dataclasses import replace

    from fpemu.mma import KOrder

    if order is None:
        return KOrder(promote=promote)
    if not isinstance(order, KOrder):
        raise InputError("--promote does not go with a tree, which says every addition")
    if order.promote is not None and order.promote != promote:
        raise InputError("--promote and --order say two promotions: give one")
    return replace(order, promote=promote)


def _read(name: str) -> NDArray[Any]:
    from fpemu import matrixio

    return matrixio.read(name)


def _operands(
    a: str | None, b: str | None, c: str | None, distribution: str | None, shape: str | None, drawable: bool,
    scheme: bool,
) -> tuple[Any, Any, Any, tuple[int, int, int] | None]:  # fmt: skip
    """A, B, C and the shape of operands that are to be drawn."""
    C = None if c is None else _read(c)
    if distribution is None:
        if shape is not None:
            raise InputError("--shape goes with --input: A and B have theirs")
        if a is None or b is None:
            raise InputError("A and B are missing: two matrix files, or --input NAME --shape MxNxK with --callable")
        A, B = (_narrowed(_read(name), scheme) for name in (a, b))
        return A, B, C, None
    if a is not None:
        raise InputError("A and B are either files or drawn with --input")
    if not drawable:
        raise InputError("--input goes with --callable: a product in a file has operands in files")
    if shape is None:
        raise InputError("--input needs --shape MxNxK")
    return distribution, None, C, _shape(shape)


def _narrowed(matrix: NDArray[Any], scheme: bool) -> NDArray[Any]:
    """Integers of a text format as numbers: an .mtx file has no other types."""
    import numpy as np

    return matrix.astype(np.float64) if matrix.dtype.kind in "iu" and (scheme or matrix.dtype.itemsize > 4) else matrix


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.lower().replace("×", "x").split("x")
    if len(sizes) != 3 or not all(size.isdigit() and 0 < int(size) < 2**31 for size in sizes):
        raise InputError(f"--shape is {text!r}: three positive numbers are needed, such as 64x64x512 (M, N, K)")
    M, N, K = map(int, sizes)
    return M, N, K
