"""``fpemu verify``: a product against its specification, and suites that compare this GPU with its emulation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli import matrices
from fpemu.cli import options as cli
from fpemu.conformance import Specification
from fpemu.errors import InputError, unknown_name
from fpemu.sweep.workers import chosen_gpus

if TYPE_CHECKING:
    from fpemu.verification.suite import Suite

_LISTED = 30  # groups with mismatches or errors that are shown
_FIELDS = ("scheme", "hardware", "instruction", "k", "out", "accumulate", "on_range", "alpha", "beta")


# --- a product
@cli.with_options(Specification, *_FIELDS)
def gemm(
    a: str | None = None,
    b: str | None = None,
    /,
    result: Annotated[str | None, "D", "The product to check: a matrix file."] = None,
    callable_: Annotated[
        str | None, "FILE.py:FUNCTION", "Instead of --result: a function (A, B) → D of NumPy arrays."
    ] = None,
    format_: Annotated[str | None, "Format of A and B in a plain product: fp16, bf16, tf32, e4m3, int8 ..."] = None,
    order: str | None = None,
    promote: Annotated[int | None, "Promotion interval over K."] = None,
    option: list[str] | None = None,
    c: str | None = None,
    input_: Annotated[str | None, "NAME", "Distribution of random A and B, with --callable and --shape."] = None,
    shape: Annotated[str | None, "MxNxK", "Shape of random operands."] = None,
    seed: int = 0,
    causes: Annotated[bool, "Search for the cause of a mismatch."] = True,
    seconds: Annotated[float, "Time limit of the search for causes, in seconds."] = 30.0,
    distinguish: Annotated[
        str | None, "OUT.npz", "Write A and B of a product that alternatives with equal bits change."
    ] = None,
    device: str = "cpu",
    max_entries: int = matrices.MAX_ENTRIES,
    json_: bool = False,
    *,
    options: Specification,
) -> None:
    """Verify a product against its specification bit by bit, and search for the cause of a mismatch.

    The specification is a plain product of matrix instructions (--hardware, --format, --order) or a scheme with its
    options. Without --format, files of fp32 or fp64 are compared with a plain product of ordinary cores in that format.
    Without --hardware, --instruction and --scheme, the arithmetic is identified: ordinary cores, OpenBLAS's kernels and
    the instructions of the catalogue are compared, in the order of --order, or else in all orders.

    The command prints the size, the positions and the pattern of the mismatches, and whether rounding can be their
    cause. It then searches for defects of the structure (terms, rows, tiles or factors in wrong places) and for
    deviations of the arithmetic: rounding of the operands, instruction, accumulator, order over K, epilogue and
    conversion of D, in any combination, libraries' orders, and other schemes. It lists the causes that reproduce all
    bits, the likeliest first. A function is called twice, and probes reveal its order if no listed order fits.

    Exit status: 0 equal or identified, 1 mismatches, 2 bad input. The file of a function is executed: check only files
    you trust.
    """
    import numpy as np

    from fpemu import simt
    from fpemu.conformance import verify
    from fpemu.probing import callables

    cli.check_file(distinguish, "the operands", ".npz")
    if (result is None) == (callable_ is None):
        raise InputError("give a product to check: either --result or --callable")
    if input_ is not None and (a is not None or shape is None or callable_ is None):
        raise InputError("--input goes with --callable and --shape MxNxK, and without files of A and B")
    if input_ is None and (a is None or b is None or shape is not None):
        raise InputError("A and B are missing: two matrix files, or --input NAME --shape MxNxK with --callable")
    over_k = ",".join([*([] if order is None else [order]), *([] if promote is None else [f"promote={promote}"])])
    specification = replace(
        options, order=cli.parse_order(over_k or None), fmt=format_, options=cli.parse_options(option)
    )
    A: Any = input_
    B: Any = None
    if a is not None and b is not None:
        # float64 for integers of an .mtx, which has no shorter type than int64; no scheme has integer operands
        A, B = (
            x.astype("float64") if x.dtype.kind in "iu" and (options.scheme or x.dtype.itemsize > 4) else x
            for x in (matrices.read(name, fmt=format_, max_entries=max_entries) for name in (a, b))
        )
    C = None if c is None else matrices.read(c, max_entries=max_entries)
    product: Any = (
        matrices.read(str(result), fmt=options.out, max_entries=max_entries)
        if callable_ is None
        else callables.load_function(callable_)
    )
    sizes: Any = None if shape is None else cli.parse_sizes("--shape", shape)
    with cli.spinner("emulating the specification") as say:
        verdict = verify(
            product,
            A,
            B,
            C,
            specification=specification,
            shape=sizes,
            seed=seed,
            causes=causes,
            seconds=seconds,
            device=device,  # type: ignore[arg-type]  # checked by verify
            progress=lambda what, tried: say(f"trying {what} ({tried} so far)"),
        )
    used, unnamed = verdict.specification.operand, not (options.hardware or options.instruction or options.scheme)
    if unnamed and not (verdict.identified or verdict.explained):
        cli.note("not identified: the mismatches are those with FMAs of ordinary cores; -H names the hardware")
    elif (
        format_ is None
        and options.scheme is None
        and options.hardware is not None
        and verdict.specification.spec in simt.SPECS.values()
    ):
        cli.note(
            f"--format is not given and A and B are {used}: compared with a plain {used} product of ordinary cores, not"
            f" on the matrix units of {options.hardware}; --format fp16 (bf16, tf32 ...) names the operands of a matrix"
            " instruction"
        )
    if distinguish is not None:
        further = verdict.distinguish(seed)
        np.savez(distinguish, A=further[0], B=further[1])
        cli.note(f"{distinguish}: A and B of a product that distinguishes {further[2]} alternatives")
    if json_:
        typer.echo(json.dumps(verdict.as_dict(), indent=1))
    else:
        typer.echo(verdict)
    if not verdict.equal:
        raise typer.Exit(1)


# --- suites
@dataclass(frozen=True)
class SuiteOptions:
    """The options that all suites have."""

    seed: Annotated[int, "Seed of the operands."] = 0
    record: Annotated[
        str | None,
        "FILE.json",
        "Write the record. An interrupted run leaves FILE.json.partial, from which the same command continues.",
    ] = None
    json: Annotated[bool, "Print the record instead of the table."] = False
    fresh: Annotated[bool, "Ignore the outcomes of earlier runs."] = False
    gpus: Annotated[str | None, "LIST", "GPUs of the processes, such as 0,2 (default: the first)."] = None

    def run(self, name: str, *arguments: Any, jobs: int | None = None, **options: Any) -> None:
        """Run a suite of `fpemu.verification`, "module.class", with a progress bar; print its table and mismatches.

        Exit with status 1 if there are mismatches or errors, or if nothing was compared.
        """
        from fpemu import verification
        from fpemu.verification.suite import Run

        cli.check_file(self.record, "the record", ".json")
        # the suite of libraries needs PyTorch too, and itself names what is missing
        if name not in ("library.Library", "processor.Instructions", "collective.Collective"):
            cli.need_gpu("verify")
        gpus = () if self.gpus is None else chosen_gpus(self.gpus, "cuda")
        suite: Suite = attrgetter(name)(verification)(self.seed, *arguments, **options)
        run = Run(suite, self.record, fresh=self.fresh)
        if run.outcomes:
            cli.note(f"{run} already")
        try:
            with cli.progress() as bars:
                total = len(run.groups)
                bar = bars.add_task(suite.name, total=total, completed=total - len(run.missing))
                result = run.run_missing(jobs, lambda group: bars.update(bar, advance=1, description=group), gpus)
        except KeyboardInterrupt:
            cli.note(f"fpemu: {run.interrupted()}")
            raise typer.Exit(130) from None
        if self.json:
            typer.echo(result.text(), nl=False)
        else:
            title, columns, rows = suite.table(result)
            cli.print_table(title, columns, rows, numbers=len(columns) - 1)
            for line in suite.summary(result):
                typer.echo(line)
        failed, elsewhere = [outcome for outcome in result.outcomes if not outcome.ok], run.failed_elsewhere
        notes = [line for outcome in failed[:_LISTED] for line in suite.explain(outcome)]
        if len(failed) > _LISTED:
            notes.append(f"and {len(failed) - _LISTED} more" + ("" if self.record is None else f": see {self.record}"))
        if elsewhere:
            notes.append(f"{len(elsewhere)} groups outside this run have failed: {', '.join(elsewhere[:_LISTED])}")
        if not result.total("outputs") + result.total("errors"):
            notes.append("nothing was compared")
        for line in notes:
            cli.note(line)
        if notes:
            raise typer.Exit(1)


@dataclass(frozen=True)
class PathOptions(SuiteOptions):
    """The options of the suites that call products by several paths."""

    path: Annotated[
        str | None, "Only these paths of a caller, such as eager,plan,graph. Default: all that this machine can run."
    ] = None

    @property
    def paths(self) -> list[str] | None:
        """The names in --path."""
        return _names(self.path)


Jobs = Annotated[int | None, "Number of processes; default: one per core, at most 16."]


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip().lower() for name in text.split(",")]


@cli.with_options(SuiteOptions)
def instructions(
    name: Annotated[str, "[NAME-PART]", "Only instructions whose name contains this text."] = "",
    /,
    outputs: Annotated[
        float | None, "Smallest number of outputs per instruction, over all classes (default: 1e9, on a CPU 1e8)."
    ] = None,
    *,
    options: SuiteOptions,
) -> None:
    """Verify every matrix instruction of this GPU, or CPU, against its emulation.

    Without a GPU, or with a NAME-PART that begins with x86, the dot products of the processor here are compared.

    The operands have fifteen classes, among them cancellation, ties, subnormals, overflow, and arbitrary bits with
    NaN and Inf. Each mismatch is reduced to a minimal reproducer, shown with the effect of each rounding rule. Exit
    status 0 if all outputs are equal, 1 if not, 2 if there is no such instruction here.
    """
    on_cpu = name.lower().startswith("x86") or cli.missing_gpu() is not None
    outputs = (1e8 if on_cpu else 1e9) if outputs is None else outputs
    if outputs != outputs:  # some releases of Click find NaN within any limits
        raise InputError("--outputs = nan must be a number of at least 1")
    options.run(f"{'processor' if on_cpu else 'instructions'}.Instructions", int(outputs), name)


@cli.with_options(SuiteOptions)
def emulation(
    quick: Annotated[bool, "A sixth of the specifications and schemes."] = False, *, options: SuiteOptions
) -> None:
    """Verify GEMMs emulated on this GPU against the CPU's compiled and NumPy implementations.

    The cases cover every instruction of the catalogue and random specifications, adversarial operands, all kinds of
    summation orders including trees, and every scheme on every hardware. Exit status 0 if all bits are equal, 1 if
    not, 2 without a GPU.
    """
    options.run("emulation.Emulation", quick=quick)


@cli.with_options(PathOptions)
def kernels(
    schemes: Annotated[str | None, "Only these schemes, such as ootomo,staged."] = None,
    shapes: Annotated[
        int,
        typer.Option("--shapes", "-n", min=1, help="Number of products per scheme; a sixth per other set of options."),
    ] = 36,
    published: Annotated[bool, "Only the published options."] = False,
    jobs: Jobs = None,
    *,
    options: PathOptions,
) -> None:
    """Verify the kernels of the split schemes on this GPU against the emulation of its instructions.

    The cases cover every scheme with its options, odd shapes, K of 1 and of 10,000, batches, all layouts, alpha,
    beta and C, all overflow policies, error messages, and adversarial operands: subnormals, overflow, cancellation,
    NaN and Inf. Each is computed by every path of a caller: calls on arrays of the CPU (host) and of the GPU (eager),
    plans (plan), and with PyTorch CUDA graphs (graph) and the operator of fpemu.torch (torch). Exit status 0 if all
    bits are equal, 1 if not, 2 without a GPU. An existing record of the same code, seed, shapes and paths is extended.
    """
    options.run("kernels.Kernels", shapes, _names(schemes), jobs=jobs, published=published, paths=options.paths)


@cli.with_options(PathOptions)
def batched(
    cases: Annotated[
        int, typer.Option("--cases", min=1, help="Number of products per group; 520 products cover all sizes once.")
    ] = 520,
    *,
    options: PathOptions,
) -> None:
    """Verify the batched kernels on this GPU against the emulation of its instructions.

    The cases cover sizes 1 to 130 in M, N and K, odd leading dimensions, transposes, pointer arrays, alpha, beta
    and C, all layouts, configurations of all kernels, and special values, by the paths host, eager, graph and torch
    (see `fpemu verify kernels`). Exit status 0 if all bits are equal, 1 if not, 2 without a GPU.
    """
    options.run("batched.Batched", cases, paths=options.paths)


@cli.with_options(PathOptions)
def tallskinny(
    every: Annotated[int, "Compute only every N-th product."] = 1,
    huge: Annotated[bool, "Also matrices of more than 2^32 elements; needs 18 to 37 GB and PyTorch."] = False,
    *,
    options: PathOptions,
) -> None:
    """Verify TSM2, ISM2 and the versions for Hopper on this GPU against the emulation, in fp32 and fp64.

    The cases cover sizes 1 to 130 for m, k and n, larger sizes, all layouts, odd leading dimensions, and special
    values; fpemu.gpu.tallskinny.multiply is called by the paths host, eager, graph and torch. Exit status 0 if all
    bits are equal, 1 if not, 2 without a GPU.
    """
    options.run("tallskinny.TallSkinny", every, huge=huge, paths=options.paths)


@cli.with_options(PathOptions)
def arguments(
    rounds: Annotated[int, "Number of products of every case, each at another address."] = 2,
    jobs: Jobs = None,
    *,
    options: PathOptions,
) -> None:
    """Verify products on this GPU whose arguments share memory, have unusual strides, are empty or have special values.

    The cases cover fpemu.gpu.gemm by some schemes, batched products, and tall and skinny ones: one array in the place
    of several operands, overlapping views, strides of 0, broadcast and permuted batches, sizes of 0 and 1, special
    values of alpha and beta, and conversions, by the paths of `fpemu verify kernels`. Exit status 0 if all bits are
    equal, 1 if not, 2 without a GPU.
    """
    options.run("arguments.Arguments", rounds, jobs=jobs, paths=options.paths)


@cli.with_options(SuiteOptions)
def library(
    shapes: Annotated[int, "Number of shapes drawn from the table by --seed; 0: all."] = 20,
    types: Annotated[list[str] | None, "Only products of this type; may be repeated."] = None,
    new: Annotated[int, "Number of further random shapes, whose orders probes reveal first."] = 0,
    list_: Annotated[bool, "Only list the kinds of orders in the table; needs no GPU."] = False,
    lost_terms: Annotated[int, "Instead: multiply ones in this number of shapes, and count missing terms."] = 0,
    *,
    options: SuiteOptions,
) -> None:
    """Verify cuBLAS products (through PyTorch) on this GPU against 'fpemu.library.emulate'.

    The command compares up to 32 rows and columns of each D. Exit status 0 if all entries are equal, 1 if not, 2
    without a GPU or PyTorch.
    """
    from fpemu.library import TYPES, orders
    from fpemu.library.tables import KINDS, summary

    kinds = tuple(types or TYPES)
    for kind in kinds:
        if kind not in TYPES:
            raise unknown_name("type of a product", kind, TYPES)
    if lost_terms:
        from fpemu.verification import library as suite

        lost = suite.lost_terms(lost_terms, options.seed)
        for kind, shape, missing, expected in lost:
            typer.echo(f"{kind} {'x'.join(map(str, shape))}: {missing} terms are missing, {expected} by the condition")
        different = sum(missing != expected for _, _, missing, expected in lost)
        typer.echo(
            f"{2 * lost_terms} products by cublasLtMatmul: {len(lost)} lack terms; {different} contradict the condition"
        )
        if lost:
            raise typer.Exit(1)
        return
    if not list_:
        from fpemu.library.cublas import environment
        from fpemu.verification.library import versions

        cli.note(versions(environment()))
        options.run("library.Library", kinds, shapes, new)
        return
    products = [product for product in orders("cublas") if product.type in kinds]
    counts = summary(products)
    if options.json:
        typer.echo(json.dumps(counts))
        return
    first = products[0]
    title = f"{first.library} {first.version}, {first.hardware}: {len(products):,} products by their order"
    each = {text: [count.get(kind, 0) for count in counts.values()] for kind, text in KINDS.items()}
    rows = [
        (text, *(str(n or "") for n in numbers), str(sum(numbers))) for text, numbers in each.items() if any(numbers)
    ]
    cli.print_table(title, ("order", *counts, "all"), rows, numbers=len(counts) + 1)


@cli.with_options(SuiteOptions)
def collective(
    ranks: Annotated[int | None, "Number of GPUs; default: all of this host, at most 8."] = None,
    *,
    options: SuiteOptions,
) -> None:
    """Verify NCCL's sums over the GPUs of this host (through PyTorch) against 'fpemu.library.all_reduce'.

    All-reduce and reduce-scatter are compared in fp16, bf16, fp32 and fp64 and 30 sizes up to 8 M entries.
    Exit status 0 if all entries are equal, 1 if not, 2 without PyTorch or with fewer than two GPUs.
    """
    options.run("collective.Collective", ranks)
