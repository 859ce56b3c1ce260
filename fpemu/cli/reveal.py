"""``fpemu reveal``: the summation order of a GEMM over K, found by probes, named and drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    HARDWARE,
    INSTRUCTION,
    ORDER,
    check_file,
    note,
    parse_order,
    parse_sizes,
    print_text,
    spinner,
)
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec
    from fpemu.mma.tree import Tree
    from fpemu.probing.reveal import Comparison, Revealed, Target


def reveal(
    target: Annotated[
        str | None, typer.Argument(metavar="[FILE.py:FUNCTION | cublas]", help="A function (A, B) -> D, or cuBLAS.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="K of the product.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="MxN[xK]",
            help="Shape of D in every call, on which the order may depend; "
            "default: K rows, at most 512, and one column.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats",
            metavar="IN,OUT[,SUM]",
            help="Formats of A and B, of D, and of accumulators other than fp32 (fp64).",
        ),
    ] = None,
    hardware: Annotated[str | None, HARDWARE] = None,
    instruction: Annotated[str | None, INSTRUCTION] = None,
    at: Annotated[
        int, typer.Option("--at", metavar="COLUMN", help="Index of the probed column of D, or row if N > M.")
    ] = 0,
    kind: Annotated[
        str | None, typer.Option("--type", help="cublas: fp16 (default), bf16, tf32, fp32, fp64, fp16->fp16.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="cublas: NN (default), or TN for a B that is stored by columns.")
    ] = None,
    emulated: Annotated[
        str | None, typer.Option("--emulated", metavar="HARDWARE", help="Probe an emulated GEMM; needs no GPU.")
    ] = None,
    order: Annotated[str | None, ORDER] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE.json", help="Write the KOrder, or the tree if no KOrder is equal to it."),
    ] = None,
    drawing: Annotated[
        str | None, typer.Option("--draw", metavar="FILE.png|svg|pdf", help="Draw the tree into this file.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare products of random operands with the emulation in that order.")
    ] = False,
) -> None:
    """Find the summation tree of any GEMM by probes.

    FUNCTION takes A (M, K) and B (K, N) as NumPy arrays, float16 for fp16, float64 for fp64 and float32 for all
    other formats, and returns D (M, N) as an array of NumPy, PyTorch or CuPy. It is called about ten times if M =
    K, and more often if M is smaller.

    --hardware is the hardware of FUNCTION, if it is known; --order is the summation order of an emulated GEMM.

    The output is the tree, and its KOrder if the tree has one. Exit status 0; 1 if --check finds a mismatch; 2 if
    no tree explains the results: the message then names the contradiction.
    """
    check_file(json_file, "the order", ".json")
    check_file(drawing, "a drawing", ".png", ".svg", ".pdf")
    M, N, k = _shape(shape, k)
    if not 0 <= at < min(M, N):
        raise InputError(f"--at {at}: D is {M}×{N}, which has {min(M, N)} columns (rows, if N > M) to read")
    subject = _subject(target, emulated, formats, hardware, instruction, kind, layout, order, (M, N, k), at)
    from fpemu.mma.tree import longest_block
    from fpemu.probing.trees import shown, text

    name = subject.gemm.name
    start = time.perf_counter()
    with spinner("probing") as say:
        subject.gemm.report = lambda n: say(f"probing: {n} calls")
        revealed = subject.reveal()
        seconds, calls = time.perf_counter() - start, subject.gemm.calls
        fma = longest_block(revealed.tree) == 1  # no other instruction is possible: compared in any case
        compared = subject.compare(revealed) if check or fma else None
    if compared is not None and not check and compared.at_probed:
        order_name = str(revealed.order) if revealed.order is not None else "a tree"
        raise InputError(
            f"{name}: the probes show {order_name}, but {compared.mismatches} of {compared.outputs} outputs of random"
            " operands mismatch: it does more than add in that order (compensation, other roundings?), or D is not in"
            " the format of --formats"
        )
    tree = shown(revealed.tree, revealed.order, k, subject.instruction(revealed))
    no_name = "no KOrder is found for this order; fpemu.mma.gemm takes the tree itself"
    print_text(no_name if revealed.order is None else str(revealed.order))
    print_text(text(tree))
    print_text(f"K = {k}: {revealed.probes:,} probes in {calls:,} calls, {seconds:.1f} s")
    if shape is None and target not in (None, "cublas"):
        note(f"D is {M}×1, by default; a library may add in another order for another shape, which --shape MxN probes")
    equal = compared is None or not compared.mismatches
    if check and compared is not None:
        _print_comparison(compared, fma, (M, N), at)
    if equal or not check:
        _note_elsewhere(subject.disagreement(), at, (M, N))
    if json_file is not None:
        from fpemu import probing

        about = {"of": name, "formats": [subject.inputs.name, subject.result], "shape": [M, N, k], "at": at}
        probing.save(revealed, json_file, **about, calls=calls, seconds=round(seconds, 3))
        note(f"wrote {json_file}")
    if drawing is not None:
        _draw(tree, revealed, Path(name).name, drawing)
    if check and not equal:
        raise typer.Exit(1)


def _shape(text: str | None, k: int | None) -> tuple[int, int, int]:
    """M, N and K."""
    numbers = [] if text is None else parse_sizes("--shape", text, "MxN[xK]")
    if len(numbers) == 3:
        if k not in (None, numbers[2]):
            raise InputError(f"--k {k} contradicts --shape {text}")
        k = numbers[2]
    if k is None:
        raise InputError("K is not given: add --k, or --shape MxNxK")
    if not 1 <= k <= 2**20:
        raise InputError(f"K = {k} is not between 1 and {2**20}")
    M, N = (numbers[0], numbers[1]) if numbers else (min(k, 512), 1)
    if max(M, N) * k > 2**30:
        raise InputError(f"{M}×{N}×{k} is too large: the probes are rows of K, as many as the larger of M and N")
    return M, N, k


def _subject(
    target: str | None,
    emulated: str | None,
    given: str | None,
    hardware: str | None,
    instruction: str | None,
    kind: str | None,
    layout: str | None,
    order: str | None,
    shape: tuple[int, int, int],
    at: int,
) -> Target:
    """The GEMM to probe, with its formats and its instruction."""
    from fpemu import formats
    from fpemu.probing.callables import CheckedCallable, load_function
    from fpemu.probing.reveal import Target

    if (target is None) == (emulated is None):
        raise InputError("name one thing to probe: FILE.py:FUNCTION, cublas, or --emulated HARDWARE")
    if emulated is not None and hardware is not None:
        raise InputError("--hardware and --emulated both name the hardware: leave --hardware out")
    for flag, value in (("--type", kind), ("--layout", layout)):
        if value is not None and target != "cublas":
            raise InputError(f"{flag} applies to cublas only: for a function or an emulated GEMM use --formats")
    if given is not None and target == "cublas":
        raise InputError("--formats applies to a function or an emulated GEMM: for cublas use --type")
    if order is not None and emulated is None:
        raise InputError("--order is the summation order of an emulated GEMM: add --emulated")
    if instruction is not None and hardware is None and target not in (None, "cublas"):
        raise InputError("--instruction is one of an architecture's: add --hardware")
    if target is not None and target != "cublas" and ":" not in target:
        raise InputError(f"{target!r} is neither FILE.py:FUNCTION nor cublas")
    gemm: Callable[[Any, Any], Any] | None = None
    name = target or ""
    if target == "cublas":
        from fpemu.library import cublas

        kind, layout = kind or "fp16", layout or "NN"
        gemm, name = cublas.CublasProduct(kind, layout, shape).product, f"cuBLAS {kind} {layout}"
        hardware = hardware or cublas.architecture()
        first, _, second = kind.partition("->")
        given = f"{first},{second or ('fp64' if first == 'fp64' else 'fp32')}"
    inputs, result, accumulator = _formats(given)
    if target is not None and gemm is None:
        gemm = load_function(target)
    spec = _spec(inputs, accumulator, hardware or emulated, instruction)
    if gemm is None:
        assert spec is not None
        gemm, name = _emulated(spec, order, result), f"emulated {spec}"
    fmt = formats.get(inputs)
    return Target(CheckedCallable(gemm, name), shape, fmt, result, accumulator, spec, hardware or emulated, at)


def _formats(text: str | None) -> tuple[str, str, str]:
    """Formats of the inputs, of D and of the accumulator."""
    from fpemu import formats

    names = [name.strip() for name in (text or "fp16,fp32").split(",")]
    if not 1 <= len(names) <= 3 or not all(names):
        raise InputError(f"--formats {text!r} is not IN,OUT or IN,OUT,SUM, as fp16,fp32")
    for name in names:
        if name.lower() in ("int8", "int32"):
            raise InputError("integers are added exactly: their sums show no order")
    known = [formats.get(name).name for name in names]
    wide = "fp64" if known[0] == "fp64" else "fp32"
    result = known[1] if len(known) > 1 else wide
    accumulator = known[2] if len(known) > 2 else wide
    if accumulator not in ("fp16", "fp32", "fp64"):
        raise InputError(f"accumulators are fp16, fp32 or fp64, not {accumulator}")
    return known[0], result, accumulator


def _spec(inputs: str, accumulator: str, hardware: str | None, instruction: str | None) -> MmaSpec | None:
    from fpemu import mma, simt

    if hardware is None:
        if inputs in ("fp32", "fp64") and accumulator == inputs:
            return simt.SPECS[inputs]
        if accumulator != "fp32":
            raise InputError(f"accumulators in {accumulator} need --hardware")
        return None
    if inputs in ("fp32", "fp64") and instruction is None and accumulator == inputs:
        mma.catalog.architecture(hardware)
        return simt.SPECS[inputs]
    return mma.spec(hardware, inputs, accumulator, instruction)


def _emulated(spec: MmaSpec, order: str | None, result: str) -> Callable[[Any, Any], Any]:
    from fpemu import mma
    from fpemu.rounding import round_to

    way = parse_order(order)

    def gemm(A: Any, B: Any) -> Any:
        D = mma.gemm(A, B, None, spec, way)
        return D if result == str(spec.d_format) else round_to(D, result)

    return gemm


def _print_comparison(comparison: Comparison, fma: bool, shape: tuple[int, int], at: int) -> None:
    count, by = f"{comparison.outputs:,}", "fused multiply-adds" if fma else str(comparison.spec)
    if not comparison.mismatches:
        print_text(f"check: {count} outputs of random operands are equal to the emulation's, bit for bit ({by})")
        return
    which = "row" if shape[1] > shape[0] else "column"
    where = f"in {comparison.across} {which}{'s' * (comparison.across != 1)}"
    if comparison.at_probed == 0:
        where += f", not {which} {at}: the order depends on the position, and --at shows another"
    print_text(f"check: {comparison.mismatches:,} of {count} outputs of random operands mismatch, {where} ({by})")


def _note_elsewhere(place: list[int], at: int, shape: tuple[int, int]) -> None:
    """Note an output whose summation order differs."""
    if not place:
        return
    which, other = ("row", place[0]) if shape[1] > shape[0] else ("column", place[1])
    hint = f": --at {other} shows that of another {which}" if other not in (0, at) else ""
    note(f"D{place} is added in another order than D[0, 0]{hint}")


def _draw(tree: Tree, revealed: Revealed, title: str, path: str) -> None:
    from fpemu import files, plotting
    from fpemu.plotting.trees import picture

    name = str(revealed.order) if revealed.order is not None else "no KOrder"
    figure = picture(tree, f"{title}, K = {revealed.k}: {name}")
    files.write_atomic(path, getattr(plotting, path.rpartition(".")[2])(figure))
    note(f"wrote {path}")
