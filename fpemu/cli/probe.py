"""``fpemu reveal``, ``fpemu characterize``: the summation order of a GEMM and the arithmetic of an instruction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np
import typer

from fpemu import formats as known
from fpemu import mma, probing, simt
from fpemu.arguments import choice
from fpemu.cli import matrices
from fpemu.cli import options as cli
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.mma import catalog, own_rows
from fpemu.mma.tree import from_order, longest_block
from fpemu.probing import kit as kits
from fpemu.probing.callables import CheckedCallable, as_numbers, load_function
from fpemu.probing.reveal import Layout, Target, position
from fpemu.probing.trees import sentence, shown, text
from fpemu.rounding import round_to

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec

_ARITHMETIC = ("arithmetic", "block", "F", "E0", "final", "fraction_bits", "nan_code", "payloads")


# --- reveal
@dataclass(frozen=True)
class Probed:
    """The GEMM to probe."""

    k: Annotated[int | None, "K of the product."] = None
    shape: Annotated[str | None, "MxN[xK]", "Shape of D in every call; default: min(K, 512) rows, one column."] = None
    formats: Annotated[str | None, "IN,OUT[,SUM]", "Formats of A and B, of D, and of accumulators."] = None
    hardware: str | None = None
    instruction: str | None = None
    at: Annotated[str, "COLUMN | ROW,COLUMN", "Probed column of D (row if N > M), or the probed position."] = "0"
    type_: Annotated[str | None, "cublas: fp16 (default), bf16, tf32, fp32, fp64, fp16->fp16."] = None
    layout: Annotated[str | None, "NN (default); TN: B is stored by columns; NT: A is; TT: both are."] = None
    emulated: Annotated[str | None, "HARDWARE", "Probe an emulated GEMM; needs no GPU."] = None
    order: str | None = None

    def subject(self, target: str | None) -> Target:
        """The GEMM with its sizes, formats and instruction."""
        if (target is None) == (self.emulated is None):
            raise InputError("name one thing to probe: FILE.py:FUNCTION, cublas, or --emulated HARDWARE")
        unused = {"--type": self.type_, "--order": self.order}
        if target == "cublas":
            unused = {"--formats": self.formats, "--order": self.order}
        elif target is None:
            unused = {"--type": self.type_, "--layout": self.layout, "--hardware": self.hardware}
        for option, value in unused.items():
            if value is not None:
                raise InputError(f"{option} does not apply to {target or 'an emulated GEMM'}")
        sizes = [] if self.shape is None else cli.parse_sizes("--shape", self.shape, "MxN[xK]")
        lengths = {*sizes[2:], *([] if self.k is None else [self.k])}
        if len(lengths) != 1:
            raise InputError("give K once, as --k or --shape MxNxK")
        (K,) = lengths
        M, N = sizes[:2] or (min(K, 512), 1)
        if not 1 <= K <= 2**20 or max(M, N) * K > 2**30:
            raise InputError(f"{M}×{N}×{K}: K is not between 1 and 2^20, or the probes take more than 2^30 numbers")
        given, hardware = self.formats or "fp16", self.hardware or self.emulated
        if target == "cublas":
            from fpemu.library.cublas import CublasProduct, architecture

            kind, layout = self.type_ or "fp16", self.layout or "NN"
            gemm, name = CublasProduct(kind, layout, (M, N, K)).product, f"cuBLAS {kind} {layout}"
            given, hardware = kind.replace("->", ","), hardware or architecture()
        inputs, *others = [known.get(one.strip()).name for one in given.split(",")]
        wide = "fp64" if inputs == "fp64" else "fp32"
        result, accumulator, *more = *others, *[wide, wide][len(others) :]
        if more or accumulator not in ("fp16", "fp32", "fp64"):
            raise InputError(f"--formats {given} is not IN,OUT[,SUM] with a sum in fp16, fp32 or fp64, as fp16,fp32")
        if hardware is not None:
            catalog.architecture(hardware)
        elif self.instruction is not None:
            raise InputError("--instruction is one of an architecture's: add --hardware")
        if inputs in simt.SPECS and accumulator == inputs and self.instruction is None:
            spec = simt.SPECS[inputs]
        elif hardware is not None:
            spec = mma.spec(hardware, inputs, accumulator, self.instruction)
        elif accumulator == "fp32":
            spec = None
        else:
            raise InputError(f"accumulators in {accumulator} need --hardware")
        if target is None:
            assert spec is not None
            order, emulated, name = cli.parse_order(self.order), spec, f"emulated {spec}"

            def gemm(A: Any, B: Any) -> Any:
                D = mma.gemm(A, B, None, emulated, order)
                return D if result == str(emulated.d_format) else round_to(D, result)

        elif target != "cublas":
            gemm, name = load_function(target), target
        product = CheckedCallable(gemm, name, layout=choice("--layout", self.layout or "NN", get_args(Layout)))
        at = [int(x) if x.strip().isdecimal() else -1 for x in self.at.split(",")]
        place = position(at[0] if len(at) == 1 else at, M, N)
        return Target(product, (M, N, K), known.get(inputs), result, accumulator, spec, hardware, place)


@cli.with_options(Probed)
def reveal(
    target: Annotated[str | None, "[FILE.py:FUNCTION | cublas]", "A function (A, B) -> D, or cuBLAS."] = None,
    /,
    *,
    json_: Annotated[str | None, "FILE.json", "Write the KOrder, or the tree if no KOrder is equal to it."] = None,
    draw: Annotated[str | None, "FILE.png|svg|pdf", "Draw the tree into this file."] = None,
    check: Annotated[bool, "Compare products of random operands with the emulation in that order."] = False,
    options: Probed,
) -> None:
    """Find the summation tree of any GEMM by probes.

    FUNCTION takes A (M, K) and B (K, N) as NumPy arrays, float16 for fp16, float64 for fp64 and float32 for all
    other formats, and returns D (M, N) as an array of NumPy, PyTorch or CuPy. It is called about ten times if M =
    K, and more often if M is smaller.

    --hardware is the hardware of FUNCTION, if it is known; --order is the summation order of an emulated GEMM.

    The output is the KOrder equal to the tree, if there is one, the tree, and the order in one sentence. Exit status 0;
    1 if --check finds a mismatch; 2 if no tree explains the results: the message then names the contradiction.
    """
    cli.check_file(json_, "the order", ".json")
    cli.check_file(draw, "a drawing", ".png", ".svg", ".pdf")
    subject = options.subject(target)
    (M, N, K), at, name = subject.shape, subject.at, subject.gemm.name
    start, which = time.perf_counter(), "row" if N > M else "column"
    with cli.spinner("probing") as say:
        subject.gemm.report = lambda n: say(f"probing: {n} calls")
        revealed = subject.reveal()
        seconds, calls = time.perf_counter() - start, subject.gemm.calls
        compared = subject.compare(revealed) if check else None
    order = "a tree" if revealed.order is None else str(revealed.order)
    tree = shown(revealed.tree, revealed.order, K, subject.instruction(revealed))
    no_name = "no KOrder is found for this order; fpemu.mma.gemm takes the tree itself"
    typer.echo(no_name if revealed.order is None else order)
    typer.echo(text(tree))
    typer.echo(f"K = {K}: {sentence(tree)}; {revealed.probes:,} probes in {calls:,} calls, {seconds:.1f} s")
    if options.shape is None and target not in (None, "cublas"):
        cli.note(f"D is {M}×1, by default; a library may add in another order for another shape: --shape MxN probes it")
    failing = False
    if compared is not None:
        fma = longest_block(revealed.tree) == 1  # no other instruction is possible
        outcome = f"{compared.outputs:,} outputs of random operands are equal to the emulation's, bit for bit"
        if failing := compared.mismatches > 0:
            across = f"{compared.across} {which}{'s' * (compared.across != 1)}"
            outcome = (
                f"{compared.mismatches:,} of {compared.outputs:,} outputs of random operands mismatch, in {across}"
            )
            if not compared.at_probed:
                outcome += f", not {which} {at}: the order depends on the position, and --at shows another"
        typer.echo(f"check: {outcome} ({'fused multiply-adds' if fma else compared.spec})")
    if not failing and (place := subject.disagreement()):
        other = place[0 if which == "row" else 1]
        hint = f": --at {other} shows that of another {which}" if other not in (0, at) else ""
        cli.note(f"D{place} is added in another order than D[0, 0]{hint}")
    if json_ is not None:
        about = {"of": name, "formats": [subject.inputs.name, subject.result], "shape": [M, N, K], "at": at}
        probing.save(revealed, json_, **about, calls=calls, seconds=round(seconds, 3))
        cli.note(f"wrote {json_}")
    if draw is not None:
        from fpemu.plotting.trees import picture

        cli.write_picture(draw, picture(tree, f"{Path(name).name}, K = {K}: {sentence(tree)}"))
    if failing:
        raise typer.Exit(1)


# --- characterize
@cli.with_options(probing.characterize, "seed")
def characterize(
    name: Annotated[
        str, "[NAME-PART | RESULT]", "A part of the name of instructions of this GPU; or a kit's results."
    ] = "",
    /,
    *,
    kit: Annotated[
        str | None, "cuda | hip | sycl | c", "Print the source of a probe kit for hardware elsewhere."
    ] = None,
    emulated: Annotated[str | None, "NAME-PART", "Probe emulated instructions by their name; needs no GPU."] = None,
    callable_: Annotated[str | None, "FILE.py:FUNCTION", "Probe a function (A, B, C) -> D."] = None,
    formats: Annotated[str | None, "A,B,D", "Formats of the function: fp16,fp16,fp32; or A,B,C,D."] = None,
    k: Annotated[int | None, "Length K of the dot products of the function."] = None,
    shape: Annotated[str | None, "MxN", "Shape of D, if the function accepts only one."] = None,
    outputs: Annotated[float, "Number of random outputs per instruction to verify with."] = 2**16,
    json_: bool = False,
    options: dict[str, Any],
) -> None:
    """Find the arithmetic of a matrix instruction by directed probes, and verify it by random operands.

    The result is a row of the catalogue: block length, alignment width, rounding, minimum alignment exponent, NaN
    codes, zeros and subnormals, each with the probe that determines it. For an mma.sync instruction of this GPU the
    row includes the shape, which the registers of a warp determine.

    --kit prints a source file that its reader compiles and runs on other hardware. RESULT is the file that it writes
    there (its name ends in .txt): the command then needs no GPU, and all results of the kit are compared with the row.

    Exit status 0 if the row reproduces all random
    outputs; 1 if it does not, or if no known arithmetic explains the probes; 2 for an invalid argument or without a
    GPU.
    """
    from fpemu import gpu
    from fpemu.gpu.instructions import fragments
    from fpemu.gpu.instructions import run as instructions

    if sum((bool(name), kit is not None, emulated is not None, callable_ is not None)) > 1:
        raise InputError("choose one of NAME-PART, RESULT, --kit, --emulated and --callable")
    if kit is not None:
        typer.echo(kits.source(kit), nl=False)
        return
    if callable_ is None and (formats, k, shape) != (None, None, None):
        raise InputError("--formats, --k and --shape describe a --callable")
    from_file = name.endswith(".txt")
    on_gpu = callable_ is None and emulated is None and not from_file
    sources: list[tuple[str, Any, dict[str, Any], MmaSpec | None]] = []
    if callable_ is not None:
        sources = [_function(callable_, formats, k, shape)]
    elif from_file:
        machine, units = kits.read(name)
        cli.note(f"{name}: {len(units)} instructions of {machine}")
        sources = [(unit.name, unit, {}, None) for unit in units]
    else:
        if on_gpu and (missing := gpu.available()) is not None:
            raise InputError(f"characterize: {missing}; --emulated NAME and --callable FILE.py:FUNCTION need none")
        rows = instructions.rows() if on_gpu else catalog.rows()
        part = (emulated or name).lower()
        rows = [row for row in rows if row.name.lower() == part] or rows
        run = partial(gpu.execute) if on_gpu else partial(mma.execute, backend="numpy")
        for one in rows:
            if part in one.name.lower() and emulated != "":
                about = {operand: getattr(one, f"{operand}_format") for operand in "abcd"}
                sources.append((one.name, partial(run, spec=one), about | {"k": one.k}, one))
        if not sources:
            parts = {f"{row.architecture} {row.instruction}" for row in rows}
            raise unknown_name("instruction", emulated or name, [row.name for row in rows], parts)
    unsure, reports = False, []
    for n, (title, execute, about, row) in enumerate(sources, 1):
        try:
            with cli.spinner(title) as say:
                where = f"{title} ({n} of {len(sources)})" if len(sources) > 1 else title
                about["report"] = lambda step, say=say, where=where: say(f"{where}: {step}")
                if from_file:
                    result = kits.characterize(execute)
                else:
                    result = probing.characterize(execute, **about, outputs=int(outputs), name=title, **options)
                layout = fragments.find(row) if on_gpu and row is not None and row.instruction == "mma" else None
        except GpuError as problem:
            raise GpuError(f"{title}: {problem}") from problem
        unsure |= not result
        spec, findings = result.spec, list(map(vars, result.findings))
        report: dict[str, Any] = {"instruction": title, "row": None if spec is None else repr(spec)}
        for count in ("probes", "verified_outputs", "mismatches", "contradiction"):
            report[count] = getattr(result, count)
        report["findings"] = findings
        if spec is not None:
            report |= {"fields": {f: getattr(spec, f) for f in _ARITHMETIC}, "alike": list(map(repr, result.alike))}
            if row is not None:
                report["catalog"] = differences(spec, row, result.alike)
        if layout is not None and row is not None:
            about = {"shape": f"m{layout.m}n{layout.n}k{layout.k}", "probes": layout.probes}
            report["fragments"] = {**about, "as_used": fragments.agrees(layout, row)}
        reports.append(report)
        if not json_:
            columns = ("field", "value", "probe", "returned", "otherwise")
            lines = [[finding[name] for name in columns] for finding in findings]
            cli.print_table(f"{title}: {result.probes:,} probes", columns, lines)
            if spec is not None:
                compared = "results of the kit" if from_file else "random outputs"
                typer.echo(f"{spec!r}\n{result.verified_outputs:,} {compared}, {result.mismatches:,} mismatch")
            if "catalog" in report:
                other = "; ".join(f"{f} = {a}, in the catalogue {b}" for f, (a, b) in report["catalog"].items())
                typer.echo(f"not as in the catalogue: {other}" if other else "as in the catalogue")
            if layout is not None:
                typer.echo(f"fragments: {layout}")
        if result.contradiction:
            cli.note(f"fpemu: {title}: {result.contradiction}")
    if json_:
        typer.echo(json.dumps(reports, indent=1))
    if unsure:
        raise typer.Exit(1)


def _function(
    function: str, formats: str | None, k: int | None, shape: str | None
) -> tuple[str, Callable[..., Any], dict[str, Any], MmaSpec | None]:
    """A user's function, loaded from its file: its name, the function with checks, its formats and shape."""
    names = [name.strip() for name in (formats or "").split(",")]
    if len(names) not in (3, 4) or k is None:
        raise InputError("--callable needs --formats A,B,D (or A,B,C,D) and --k")
    about: dict[str, Any] = {"a": names[0], "b": names[1], "d": names[-1], "k": k}
    about |= {"c": names[2]} if len(names) == 4 else {}
    about |= {} if shape is None else {"shape": tuple(cli.parse_sizes("--shape", shape, "MxN"))}
    user_function, attribute = load_function(function), function.rpartition(":")[2]

    def execute(A: Any, B: Any, C: Any) -> Any:
        try:
            with np.errstate(all="ignore"):  # the probes contain infinities and NaN
                D = user_function(A, B, C)
        except (Exception, SystemExit) as problem:
            what = f"{type(problem).__name__}: {problem}"
            raise InputError(f"{attribute} fails on A {A.shape}, B {B.shape}, C {C.shape}: {what}") from problem
        return as_numbers(D, f"the result of {attribute}").values

    return attribute, execute, about, None


def differences(spec: MmaSpec, row: MmaSpec, alike: tuple[MmaSpec, ...]) -> dict[str, list[Any]]:
    """The fields of two specifications that differ, [spec's, the catalogue's], except floors with the same bits."""
    fields = [f for f in _ARITHMETIC if getattr(spec, f) != getattr(row, f)]
    floors = [s.E0 for s in alike if s.E0 is not None and s.replace(E0=spec.E0, name=spec.name) == spec]
    # any floor up to the largest of these gives the same bits
    if "E0" in fields and floors and row.E0 is not None and (spec.E0 or -(10**6)) <= row.E0 <= max(floors):
        fields.remove("E0")
    return {f: [getattr(spec, f), getattr(row, f)] for f in fields}


def add_rows(
    results: Annotated[str, "RESULT", "File that a probe kit wrote."],
    file: Annotated[str, "FILE.json", "File of catalogue rows; rows of other names in it are kept."],
    /,
    part: Annotated[str, "Only instructions whose name contains this text."] = "",
) -> None:
    """Add the instructions that a probe kit measured to a file of catalogue rows.

    The path of the file is then accepted as hardware: 'fpemu gemm A.npy B.npy -H FILE.json', or
    fpemu.mma.spec("FILE.json", "fp16"). Exit status 1 if no row reproduces the results of an instruction, which is
    then left out.
    """
    cli.check_file(file, "rows", ".json")
    machine, units = kits.read(results)
    units = [unit for unit in units if part in unit.name]
    if not units:
        raise InputError(f"{results} has no instruction whose name contains {part!r}")
    rows = []
    for unit in units:
        with cli.spinner(unit.name):
            result = kits.characterize(unit)
        if result and result.spec is not None:
            compared = f"probe kit on {machine}: {result.probes:,} outputs, 0 mismatches"
            rows.append(result.spec.replace(name=unit.name, source=compared))
        else:
            cli.note(f"fpemu: {unit.name}: left out: {result.contradiction}")
    if rows:
        own_rows.save(file, rows)
        typer.echo(f"{file}: {len(rows)} rows of {machine}")
    if len(rows) < len(units):
        raise typer.Exit(1)


# --- the order of a library
def lookup(
    library: Annotated[str, "LIBRARY", "cublas or openblas."],
    type_: Annotated[str, "TYPE", "cublas: fp16, bf16, tf32, fp32, fp64, fp16->fp16 …; openblas: fp32, fp64."],
    shape: Annotated[str, "MxNxK", "Shape of the product."],
    /,
    layout: Annotated[str, "NN (default); TN: B is stored by columns."] = "NN",
    hardware: Annotated[str | None, "GPU of the table (default: H200), or OpenBLAS's kernel, such as HASWELL."] = None,
    version: Annotated[str | None, "Version of the library; default: the newest."] = None,
    source: Annotated[str, "Source of cuBLAS's order: auto, table, model or heuristic (on a GPU)."] = "auto",
    bias: Annotated[bool, "cuBLAS adds a vector to the rows of D (with --source heuristic)."] = False,
    batch: Annotated[int, "Number of products in a batch (with --source heuristic)."] = 1,
    save: Annotated[Path | None, "Write the product and its order to this JSON file."] = None,
) -> None:
    """Print the summation order of a library's product, its evidence, and the nearest tabulated shapes.

    No GPU is needed. Exit status 2 if the order is not known; the message then names the nearest tabulated shapes.
    """
    from fpemu import library as libraries
    from fpemu.library import openblas, products

    sizes: Any = tuple(cli.parse_sizes("--shape", shape))
    choice("library", library, ("cublas", "openblas"))
    if library == "openblas":
        routines: dict[str, Any] = {"fp32": "sgemm", "fp64": "dgemm"}
        blocks = openblas.blocking(routines[choice("type of product", type_, tuple(routines))], hardware, version)
        order = openblas.tree(blocks, sizes, layout=layout)  # type: ignore[arg-type]  # checked by tree
        regions = openblas.element_orders(blocks, layout, sizes).regions  # type: ignore[arg-type]
        typer.echo(f"openblas {blocks.version}, {blocks.kernel}: {type_} {layout} {shape}: {sentence(order)}")
        if regions:
            count = sum(len(rows) * len(columns) for rows, columns, _ in regions)
            cli.note(f"this is the order of D[0, 0]; {count} of all entries have interleaved chains in each panel of K")
        typer.echo(text(order))
        typer.echo("evidence: rules of the kernel's loops, compared with products of this version on one thread")
        return
    where: Any = {"layout": layout, "version": version, "hardware": hardware or "H200", "source": source}
    product = libraries.lookup(library, type_, sizes, bias=bias, batch=batch, **where)
    others = product.describe()[1:]
    typer.echo("\n".join([str(product), *(f"  {line}" for line in others)]))
    if not others:
        over_k: Any = product.order
        typer.echo(text(from_order(over_k, product.K, product.spec) if isinstance(over_k, mma.KOrder) else over_k))
    typer.echo(f"instruction: {product.spec}" + f", A and B rounded to {product.rounded} first" * bool(product.rounded))
    evidence = {
        "table": f"measured on {product.hardware} with {library} {product.version}: probes revealed the order, and its"
        f" emulation equals the recorded product (SHA-256 {product.digest[:16]}…)",
        "heuristic": "the configuration that cuBLASLt's heuristic returned here, and the order of its kernels",
        "model": f"a model of the answers of cuBLASLt's heuristic on {product.hardware}, and the order of its kernels",
    }
    typer.echo(f"evidence: {evidence[product.source]}")
    if save:
        product.save(save)
    same = (p for p in libraries.orders(library, version=version, hardware=hardware or "H200"))
    rows = [(p.M, p.N, p.K) for p in same if (p.type, p.layout) == (type_, layout)]
    typer.echo("nearest tabulated shapes: " + ", ".join(products.nearest(rows, sizes)))


def replay(
    file: Annotated[Path, "FILE", "Product and order that 'fpemu library lookup --save' or Product.save wrote."],
    a: Annotated[str | None, "A.npy", "Operand A (M, K); default: the recorded operands."] = None,
    b: Annotated[str | None, "B.npy", "Operand B (K, N)."] = None,
    /,
    out: Annotated[str | None, "Write D to this .npy or .mtx file."] = None,
) -> None:
    """Multiply two matrices in the order of a saved product.

    Without operands, the recorded operands are multiplied, and the digest of D is compared with the GPU's. Exit status
    1 if they differ.
    """
    from fpemu.library import Product, predict
    from fpemu.library.tables import digest_of, operands

    if out is not None:
        matrices.check_output(out)
    product = Product.load(file)
    if (a is None) != (b is None):
        raise InputError("give both operands, A.npy and B.npy, or none")
    if a is None or b is None:
        A, B = operands(product.type, product.M, product.N, product.K, product.seed)
    else:
        A, B = (matrices.read(path) for path in (a, b))
    D = predict(product, A, B)
    typer.echo(f"{product}")
    recorded = product.digest if a is None else ""
    verdict = "" if not recorded else ", equal to the GPU's" if digest_of(D) == recorded else f", the GPU's: {recorded}"
    typer.echo(f"D: {D.dtype} {D.shape}, digest {digest_of(D)}{verdict}")
    if out is not None:
        matrices.write(out, D)
    if recorded and digest_of(D) != recorded:
        raise typer.Exit(1)
