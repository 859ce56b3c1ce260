"""``fpemu verify gemm``: a product against its specification, bit by bit."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    ALPHA,
    AS_JSON,
    BETA,
    C_FILE,
    HARDWARE,
    INSTRUCTION,
    MAX_ENTRIES,
    ON_RANGE,
    OPTION,
    ORDER,
    in_options,
    note,
    parse_options,
    parse_order,
    print_text,
    read_matrix,
    spinner,
)
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpemu.mma import KOrder
    from fpemu.mma.tree import Tree


def gemm(
    a: Annotated[
        str | None, typer.Argument(metavar="A", help="The matrix A: FILE.npy, FILE.npz[:KEY] or FILE.mtx.")
    ] = None,
    b: Annotated[str | None, typer.Argument(metavar="B", help="The matrix B, likewise.")] = None,
    result: Annotated[
        str | None, typer.Option("--result", "-r", metavar="D", help="The product to check: a matrix file.")
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--callable", metavar="FILE.py:FUNCTION", help="Instead of --result: a function (A, B) → D of NumPy arrays."
        ),
    ] = None,
    scheme: Annotated[
        str | None, typer.Option("--scheme", "-s", help="A scheme; default: a plain product of instructions.")
    ] = None,
    hardware: Annotated[str | None, HARDWARE] = None,
    instruction: Annotated[str | None, INSTRUCTION] = None,
    fmt: Annotated[
        str | None,
        typer.Option("--format", help="Format of A and B in a plain product: fp16, bf16, tf32, e4m3, int8 ..."),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="Format of D; default: from the dtype of its file.")] = None,
    accumulate: Annotated[
        str | None, typer.Option("--accumulate", help="Accumulator format of a plain product: fp32 or fp16.")
    ] = None,
    order: Annotated[str | None, ORDER] = None,
    promote: Annotated[int | None, typer.Option("--promote", help="Promotion interval over K.")] = None,
    on_range: Annotated[str, ON_RANGE] = "raise",
    option: Annotated[list[str] | None, OPTION] = None,
    alpha: Annotated[float, ALPHA] = 1.0,
    beta: Annotated[float, BETA] = 0.0,
    c: Annotated[str | None, C_FILE] = None,
    distribution: Annotated[
        str | None,
        typer.Option("--input", metavar="NAME", help="Distribution of random A and B, with --callable and --shape."),
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", metavar="MxNxK", help="Shape of random operands.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of random operands.")] = 0,
    causes: Annotated[bool, typer.Option(help="Search for the cause of a mismatch.")] = True,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Time limit of the search for causes, in seconds.")
    ] = 30.0,
    device: Annotated[str, typer.Option("--device", help="Device of the emulation: cpu or cuda.")] = "cpu",
    max_entries: Annotated[int | None, MAX_ENTRIES] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Verify a product against its specification bit by bit, and search for the cause of a mismatch.

    The specification is a plain product of matrix instructions (--hardware, --format, --order) or a scheme with its
    options. Without --format, files of fp32 or fp64 are compared with a plain product of ordinary cores in that format.

    The command prints the positions and the pattern of the mismatches. It then evaluates deviations from the
    specification: orders over K, promotion, rounding of the operands, epilogues, accumulators, other hardware, ordinary
    cores and other schemes, and pairs of deviations if no single one suffices. It lists the deviations that reproduce
    all bits, the likeliest first. A function is called twice, and probes reveal its summation order if the order
    deviates.

    Exit status: 0 equal, 1 mismatches, 2 bad input. The file of a function is executed: check only files you trust.
    """
    from fpemu import simt
    from fpemu.conformance import verify
    from fpemu.probing import callables

    if (result is None) == (call is None):
        raise InputError("give a product to check: either --result or --callable")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds is {seconds:g}: a positive number is needed")
    over_k = _promoted(parse_order(order), promote)
    options = parse_options(option)
    if on_range != "raise" and scheme is None:
        raise InputError("--on-range needs --scheme: a plain product takes all values")
    if options:
        _check_options(scheme, options)
    A, B, C, sizes = _operands(a, b, c, distribution, shape, call is not None, scheme is not None, max_entries)
    product: Any = callables.load_function(call) if call is not None else read_matrix(str(result), max_entries)
    arguments: dict[str, Any] = {
        "scheme": scheme,
        "hardware": hardware,
        "order": over_k,
        "alpha": alpha,
        "beta": beta,
        "fmt": fmt,
        "out": out,
        "accumulate": accumulate,
        "instruction": instruction,
        "on_range": on_range,
        "shape": sizes,
        "seed": seed,
        "causes": causes,
        "seconds": seconds,
        "device": device,
    }
    flags = {name: f"--{name}" for name in arguments} | {"fmt": "--format", "on_range": "--on-range"}
    with spinner("emulating the specification") as say, in_options(flags):

        def report(what: str, tried: int) -> None:
            say(f"trying {what} ({tried} so far)")

        verdict = verify(product, A, B, C, progress=report, **arguments, **options)
    if scheme is None and fmt is None and verdict.specification.spec in simt.SPECS.values():
        where = "" if hardware is None else f", not on the matrix units of {hardware}"
        used = verdict.specification.operand
        note(
            f"--format is not given and A and B are {used}: compared with a plain {used} product of ordinary"
            f" cores{where}; --format fp16 (bf16, tf32 ...) names the operands of a matrix instruction"
        )
    if as_json:
        typer.echo(json.dumps(verdict.as_dict(), indent=1))
    else:
        print_text(str(verdict))
    if not verdict.equal:
        raise typer.Exit(1)


def _check_options(scheme: str | None, options: dict[str, Any]) -> None:
    """Raise InputError for a name that is not an option of the scheme, or that has its own flag."""
    from fpemu import schemes

    if scheme is None:
        raise InputError("--option needs --scheme: a plain product has no options")
    known = [option.name for option in schemes.get(scheme).info.options]
    for name in options:
        if name in ("instruction", "on_range"):
            raise InputError(f"option {name!r} goes by --{name.replace('_', '-')}")
        if name not in known:
            raise unknown_name(f"{scheme} option", name, known)


def _promoted(order: KOrder | Tree | None, promote: int | None) -> KOrder | Tree | None:
    """The order with a promotion interval."""
    from dataclasses import replace

    from fpemu.mma import KOrder

    if promote is None:
        return order
    if order is None:
        return KOrder(promote=promote)
    if not isinstance(order, KOrder):
        raise InputError("--promote does not apply to a tree, which defines every addition")
    if order.promote is not None and order.promote != promote:
        raise InputError("--promote and --order have different promotion intervals: leave one out")
    return replace(order, promote=promote)


def _operands(
    a: str | None,
    b: str | None,
    c: str | None,
    distribution: str | None,
    shape: str | None,
    drawable: bool,
    scheme: bool,
    max_entries: int | None,
) -> tuple[Any, Any, Any, tuple[int, int, int] | None]:
    """A, B, C and the shape of drawn operands."""
    C = None if c is None else read_matrix(c, max_entries)
    if distribution is None:
        if shape is not None:
            raise InputError("--shape needs --input: the files of A and B determine their shapes")
        if a is None or b is None:
            raise InputError("A and B are missing: two matrix files, or --input NAME --shape MxNxK with --callable")
        A, B = (_narrowed(read_matrix(name, max_entries), scheme) for name in (a, b))
        return A, B, C, None
    if a is not None:
        raise InputError("A and B are files or come from --input: leave one out")
    if not drawable:
        raise InputError("--input needs --callable: the operands of --result are files")
    if shape is None:
        raise InputError("--input needs --shape MxNxK")
    return distribution, None, C, _shape(shape)


def _narrowed(matrix: NDArray[Any], scheme: bool) -> NDArray[Any]:
    """Integers of an .mtx file, which has no other integer type, as float64."""
    import numpy as np

    return matrix.astype(np.float64) if matrix.dtype.kind in "iu" and (scheme or matrix.dtype.itemsize > 4) else matrix


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.lower().replace("×", "x").split("x")
    if len(sizes) != 3 or not all(re.fullmatch("[0-9]{1,10}", size) and 0 < int(size) < 2**31 for size in sizes):
        raise InputError(f"--shape is {text!r}: three positive numbers are needed, such as 64x64x512 (M, N, K)")
    M, N, K = map(int, sizes)
    return M, N, K
