"""``fpemu reveal``: the summation order of a GEMM over K, found by probes, named and drawn."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import HARDWARE, INSTRUCTION, ORDER, note, parse_order, print_text, spinner
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec
    from fpemu.mma.tree import Tree
    from fpemu.probing.callables import CheckedCallable
    from fpemu.probing.checking import Comparison
    from fpemu.probing.reveal import Revealed


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
        typer.Option("--formats", metavar="IN,OUT[,SUM]", help="Of A and B, of D, of accumulators if not fp32 (fp64)."),
    ] = None,
    hardware: Annotated[str | None, HARDWARE] = None,
    instruction: Annotated[str | None, INSTRUCTION] = None,
    at: Annotated[
        int, typer.Option("--at", metavar="COLUMN", help="The column of D that is read (the row, where N > M).")
    ] = 0,
    kind: Annotated[
        str | None, typer.Option("--type", help="cublas: fp16 (default), bf16, tf32, fp32, fp64, fp16->fp16.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="cublas: NN (default), or TN where B lies transposed.")
    ] = None,
    emulated: Annotated[
        str | None, typer.Option("--emulated", metavar="HARDWARE", help="Probe an emulated GEMM instead; no GPU.")
    ] = None,
    order: Annotated[str | None, ORDER] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE.json", help="Write the KOrder, or else the tree.")
    ] = None,
    drawing: Annotated[str | None, typer.Option("--draw", metavar="FILE.png|svg|pdf", help="Draw the tree.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare products of random operands with the emulation in that order.")
    ] = False,
) -> None:
    """Find the summation tree of any GEMM by probes.

    FUNCTION takes A (M, K) and B (K, N) as NumPy arrays, float16 for fp16, float64 for fp64 and float32 for all other
    formats, and returns D (M, N) as an array of NumPy, PyTorch or CuPy. It is called about ten times if M = K, and
    log K times as often if M is smaller.

    --hardware names the hardware that multiplies, if it is known; --order is the summation order of an emulated GEMM.

    The output is the KOrder of the tree, if there is one, and the tree. Exit status 0; 1 if --check finds a mismatch; 2
    if no tree explains the results: the message then names the contradiction.
    """
    from fpemu import files
    from fpemu import formats as formats_

    if json_file is not None:
        if not json_file.endswith(".json"):
            raise InputError(f"{json_file!r}: the order is written as .json")
        files.check_writable(json_file)
    if drawing is not None:
        if not drawing.endswith((".png", ".svg", ".pdf")):
            raise InputError(f"{drawing!r}: a drawing is .png, .svg or .pdf")
        files.check_writable(drawing)
    M, N, k = _shape(shape, k)
    if not 0 <= at < min(M, N):
        raise InputError(f"--at {at}: D is {M}×{N}, which has {min(M, N)} columns (rows, where N > M) to read")
    asked = _Asked(target, emulated, formats, hardware, instruction, kind, layout, order, (M, N, k))
    from fpemu.probing import callables, checking
    from fpemu.probing.drawing import shown

    start = time.perf_counter()
    with spinner("probing") as say:
        gemm = callables.CheckedCallable(asked.gemm, asked.name, lambda n: say(f"probing: {n} calls"))
        found = checking.find(gemm, k, asked.spec, fmt=asked.inputs, out=asked.narrow, shape=(M, N), at=at)
        seconds, calls = time.perf_counter() - start, gemm.calls
        fma = checking.longest(found.tree) == 1  # no instruction that might be another: checked in any case
        compared = _compare(gemm, found, asked, (M, N), at) if check or fma else None
    if compared is not None and not check and compared.at_differ:
        name = str(found.order) if found.order is not None else "a tree"
        raise InputError(
            f"{asked.name}: the probes show {name}, but {compared.differ} of {compared.outputs} outputs of random"
            f" operands differ from it: it does more than add in that order (compensation,"
            " other roundings?), or D is not in the format of --formats"
        )
    spec = asked.spec or checking.plain(formats_.get(asked.inputs), checking.longest(found.tree))
    tree = shown(found.tree, found.order, k, spec)
    _print(found, tree, seconds, calls)
    same = compared is None or not compared.differ
    if check and compared is not None:
        _print_comparison(compared, fma, (M, N), at)
    if same or not check:
        _note_elsewhere(checking.disagreement(gemm, k, formats_.get(asked.inputs), (M, N)), at, (M, N))
    _keep(found, tree, asked, (M, N), at, seconds, calls, json_file, drawing)
    if check and not same:
        raise typer.Exit(1)


def _shape(text: str | None, k: int | None) -> tuple[int, int, int]:
    """M, N and K."""
    numbers: list[int] = []
    if text is not None:
        found = re.fullmatch(r"(\d{1,7})[x×,](\d{1,7})(?:[x×,](\d{1,7}))?", text.strip().lower())
        if found is None:
            raise InputError(f"--shape {text!r} is not MxN or MxNxK, as 100x60x1000")
        numbers = [int(n) for n in found.groups() if n is not None]
        if 0 in numbers:
            raise InputError(f"--shape {text}: a product without entries has no order")
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


class _Asked:
    """The GEMM to probe, with its formats and its instruction.

    `inputs`, `result` and `accumulator` are formats; `narrow` is `result` if it differs from the accumulator's; `spec`
    is the instruction, None if it is unknown.
    """

    def __init__(
        self,
        target: str | None,
        emulated: str | None,
        given: str | None,
        hardware: str | None,
        instruction: str | None,
        kind: str | None,
        layout: str | None,
        order: str | None,
        shape: tuple[int, int, int],
    ):
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
        self.hardware = hardware or emulated
        if target is not None and target != "cublas" and ":" not in target:
            raise InputError(f"{target!r} is neither FILE.py:FUNCTION nor cublas")
        if target == "cublas":
            from fpemu.library import TYPES

            kind, layout = kind or "fp16", layout or "NN"
            if kind not in TYPES:
                raise unknown_name("type of product", kind, TYPES)
            first, _, second = kind.partition("->")
            given = f"{first},{second or ('fp64' if first == 'fp64' else 'fp32')}"
        self.inputs, self.result, self.accumulator = _formats(given)
        self.narrow = self.result if self.result != self.accumulator else None
        self.gemm: Callable[[Any, Any], Any]
        self.name = emulated or ""
        if kind is not None and layout is not None:
            from fpemu.library import cublas

            self.gemm, self.name = cublas.gemm(kind, layout, shape), f"cuBLAS {kind} {layout}"
            self.hardware = hardware or cublas.architecture()
        elif target is not None:
            from fpemu.probing import callables

            self.gemm, self.name = callables.load_function(target), target
        self.spec = _spec(self.inputs, self.accumulator, self.hardware, instruction)
        if target is None:
            assert self.spec is not None
            self.gemm, self.name = _emulated(self.spec, order, self.result), f"emulated {self.spec}"


def _formats(text: str | None) -> tuple[str, str, str]:
    """Formats of the inputs, of D and of the accumulator."""
    from fpemu import formats

    names = [name.strip() for name in (text or "fp16,fp32").split(",")]
    if not 1 <= len(names) <= 3 or not all(names):
        raise InputError(f"--formats {text!r} is not IN,OUT or IN,OUT,SUM, as fp16,fp32")
    for name in names:
        if name.lower() in ("int8", "int32"):
            raise InputError("integers are added exactly: their sums show no order")
    found = [formats.get(name).name for name in names]
    wide = "fp64" if found[0] == "fp64" else "fp32"
    result = found[1] if len(found) > 1 else wide
    accumulator = found[2] if len(found) > 2 else wide
    if accumulator not in ("fp16", "fp32", "fp64"):
        raise InputError(f"accumulators are fp16, fp32 or fp64, not {accumulator}")
    return found[0], result, accumulator


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
    import numpy as np

    from fpemu import formats, mma
    from fpemu.rounding import round_to

    way = parse_order(order)

    def gemm(A: Any, B: Any) -> Any:
        D = mma.gemm(A, B, None, spec, way)
        if result == str(spec.d_format):
            return D
        return np.asarray(round_to(D.astype(np.float64), result)).astype(formats.get(result).dtype)

    return gemm


def _print(found: Revealed, tree: Tree, seconds: float, calls: int) -> None:
    from fpemu.probing import drawing

    if found.order is not None:
        print_text(str(found.order))
    else:
        print_text("no KOrder adds so; fpemu.mma.gemm takes the tree itself")
    print_text(drawing.text(tree))
    print_text(f"K = {found.k}: {found.probes:,} probes in {calls:,} calls, {seconds:.1f} s")


def _compare(gemm: CheckedCallable, found: Revealed, asked: _Asked, shape: tuple[int, int], at: int) -> Comparison:
    from fpemu import formats
    from fpemu.probing import checking

    inputs = formats.get(asked.inputs)
    specs = checking.candidates(found.tree, inputs, asked.accumulator, asked.hardware)
    if asked.spec is not None:
        specs = [asked.spec, *(spec for spec in specs if spec != asked.spec)]
    if checking.longest(found.tree) == 1:
        specs = specs[:1]  # no blocks: what their arithmetic is makes no difference
    return checking.compare(gemm, found, specs, inputs=inputs, out=asked.result, shape=shape, at=at)


def _print_comparison(one: Comparison, fma: bool, shape: tuple[int, int], at: int) -> None:
    by = "fused multiply-adds" if fma else str(one.spec)
    if not one.differ:
        text = f"check: {one.outputs:,} outputs of random operands are equal to the emulation's, bit for bit ({by})"
    else:
        which = "row" if shape[1] > shape[0] else "column"
        where = f"in {one.across} {which}{'s' * (one.across != 1)}"
        if one.at_differ == 0:
            where += f", not {which} {at}: the order depends on the place, and --at shows another"
        text = f"check: {one.differ:,} of {one.outputs:,} outputs of random operands differ, {where} ({by})"
    print_text(text)


def _note_elsewhere(place: list[int], at: int, shape: tuple[int, int]) -> None:
    """Note an output whose summation order differs."""
    if not place:
        return
    which, other = ("row", place[0]) if shape[1] > shape[0] else ("column", place[1])
    hint = f": --at {other} shows that of another {which}" if other not in (0, at) else ""
    note(f"D{place} is added in another order than D[0, 0]{hint}")


def _keep(
    found: Revealed,
    tree: Tree,
    asked: _Asked,
    shape: tuple[int, int],
    at: int,
    seconds: float,
    calls: int,
    json_file: str | None,
    drawing: str | None,
) -> None:
    from fpemu import files, plotting, probing
    from fpemu.probing import pictures

    if json_file is not None:
        about = {
            "of": asked.name,
            "formats": [asked.inputs, asked.result],
            "shape": [*shape, found.k],
            "at": at,
            "calls": calls,
            "seconds": round(seconds, 3),
        }
        probing.save(found, json_file, **about)
        note(f"wrote {json_file}")
    if drawing is not None:
        name = str(found.order) if found.order is not None else "no KOrder"
        figure = pictures.picture(tree, f"{Path(asked.name).name}, K = {found.k}: {name}")
        form = {"png": plotting.png, "svg": plotting.svg, "pdf": plotting.pdf}[drawing.rpartition(".")[2]]
        files.write_atomic(drawing, form(figure))
        note(f"wrote {drawing}")
