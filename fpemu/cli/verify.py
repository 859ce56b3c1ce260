"""``fpemu verify``: a product against its specification, and suites that compare this GPU with its emulation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
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
    check_file,
    note,
    parse_options,
    parse_order,
    parse_sizes,
    print_table,
    print_text,
    progress,
    read_matrix,
    spinner,
    with_options,
)
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.verification.suite import Suite

_LISTED = 30  # groups with mismatches or errors that are shown


# --- a product
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
    from fpemu.mma import KOrder
    from fpemu.probing import callables

    if (result is None) == (call is None):
        raise InputError("give a product to check: either --result or --callable")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds is {seconds:g}: a positive number is needed")
    over_k: Any = parse_order(order)
    if promote is not None:
        over_k = KOrder() if over_k is None else over_k
        if not isinstance(over_k, KOrder):
            raise InputError("--promote does not apply to a tree, which defines every addition")
        if over_k.promote not in (None, promote):
            raise InputError("--promote and --order have different promotion intervals: leave one out")
        over_k = replace(over_k, promote=promote)
    options = parse_options(option)
    if on_range != "raise" and scheme is None:
        raise InputError("--on-range needs --scheme: a plain product takes all values")
    if options:
        _check_options(scheme, options)
    C = None if c is None else read_matrix(c, max_entries)
    sizes = _sizes(a, distribution, shape, drawable=call is not None)
    A: Any = distribution
    B: Any = None
    if distribution is None:
        if a is None or b is None:
            raise InputError("A and B are missing: two matrix files, or --input NAME --shape MxNxK with --callable")
        # float64 for integers of an .mtx, which has no shorter type than int64; no scheme has integer operands
        A, B = (
            x.astype("float64") if x.dtype.kind in "iu" and (scheme is not None or x.dtype.itemsize > 4) else x
            for x in (read_matrix(name, max_entries) for name in (a, b))
        )
    product: Any = callables.load_function(call) if call is not None else read_matrix(str(result), max_entries)
    with spinner("emulating the specification") as say:
        verdict = verify(
            product,
            A,
            B,
            C,
            scheme=scheme,
            hardware=hardware,
            order=over_k,
            alpha=alpha,
            beta=beta,
            fmt=fmt,
            out=out,
            accumulate=accumulate,
            instruction=instruction,
            on_range=on_range,
            shape=sizes,
            seed=seed,
            causes=causes,
            seconds=seconds,
            device=device,  # type: ignore[arg-type]  # checked by verify
            progress=lambda what, tried: say(f"trying {what} ({tried} so far)"),
            **options,
        )
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


def _sizes(
    a: str | None, distribution: str | None, shape: str | None, *, drawable: bool
) -> tuple[int, int, int] | None:
    """M, N and K of drawn operands; None if A and B are files."""
    if distribution is None:
        if shape is not None:
            raise InputError("--shape needs --input: the files of A and B determine their shapes")
        return None
    if a is not None:
        raise InputError("A and B are files or come from --input: leave one out")
    if not drawable:
        raise InputError("--input needs --callable: the operands of --result are files")
    if shape is None:
        raise InputError("--input needs --shape MxNxK")
    M, N, K = parse_sizes("--shape", shape)
    return M, N, K


# --- suites
def missing() -> str | None:
    """What this machine lacks for `fpemu verify`, in one line; None if nothing."""
    from fpemu.gpu.runtime import device

    reason = device.missing()
    if reason is None or "pip install" in reason:
        return reason
    return f"{reason}; beside a GPU and its driver: pip install 'fpemu[gpu]'"


@dataclass(frozen=True)
class SuiteOptions:
    """The options that all suites have."""

    seed: Annotated[int, typer.Option("--seed", help="Seed of the operands.")] = 0
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="FILE.json",
            help="Write the record. An interrupted run leaves FILE.json.partial, from which the same command "
            "continues.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the outcomes of earlier runs.")] = False

    def check(self, **counts: int | None) -> None:
        """Check the record's file name, options that are counts, and that a GPU can be used."""
        check_file(self.record, "the record", ".json")
        for name, count in counts.items():
            if count is not None and count < 1:
                raise InputError(f"--{name} is {count}: a number from 1 on is needed")
        if (reason := missing()) is not None:
            raise InputError(f"verify: {reason}")

    def run(self, suite: Suite, jobs: int | None = None) -> None:
        """Run a suite with progress bars and print its tables and mismatches.

        Exit with status 1 if there are mismatches or errors, or if nothing was compared.
        """
        from fpemu.verification.runner import Run

        run = Run(suite, self.record, fresh=self.fresh)
        if run.outcomes:
            note(f"{run} already")
        try:
            with progress() as bars:
                total = len(run.groups)
                bar = bars.add_task(suite.name, total=total, completed=total - len(run.missing))
                result = run.finish(jobs, lambda group, done: bars.update(bar, advance=done, description=group))
        except KeyboardInterrupt:
            note(f"fpemu: {run.interrupted()}")
            raise typer.Exit(130) from None
        if self.as_json:
            typer.echo(result.text(), nl=False)
        else:
            for title, columns, rows in suite.tables(result):
                print_table(title, columns, rows, numbers=len(columns) - 1)
            for line in suite.summary(result):
                print_text(line)
        faults = [outcome for outcome in result.outcomes if not outcome.ok]
        for outcome in faults[:_LISTED]:
            for line in suite.explain(outcome):
                note(line)
        if len(faults) > _LISTED:
            note(f"and {len(faults) - _LISTED} more" + ("" if self.record is None else f": see {self.record}"))
        elsewhere = run.failed_elsewhere
        if elsewhere:
            note(f"{len(elsewhere)} groups outside this run have failed: {', '.join(elsewhere[:_LISTED])}")
        compared = suite.has_comparisons(result)
        if not compared:
            note("nothing was compared")
        if faults or elsewhere or not compared:
            raise typer.Exit(1)


@dataclass(frozen=True)
class PathOptions(SuiteOptions):
    """The options of the suites that call products by several paths."""

    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            help="Only these paths of a caller, such as eager,plan,graph. Default: all that this machine can run.",
        ),
    ] = None

    def paths(self) -> list[str] | None:
        """The names of --path; None if it is left out."""
        return _names("--path", "path", self.path)


Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", help="Number of processes; default: one per core, at most 16.")
]


def _names(option: str, kind: str, text: str | None) -> list[str] | None:
    """The names in a list of an option; None if it is left out."""
    names = None if text is None else [name.strip().lower() for name in text.split(",") if name.strip()]
    if names == []:
        raise InputError(f"{option} {text!r} names no {kind}")
    return names


@with_options(SuiteOptions)
def instructions(
    name: Annotated[
        str, typer.Argument(metavar="[NAME-PART]", help="Only instructions whose name contains this text.")
    ] = "",
    outputs: Annotated[
        float, typer.Option("--outputs", "-n", help="Smallest number of outputs per instruction, over all classes.")
    ] = 1e9,
    *,
    options: SuiteOptions,
) -> None:
    """Verify every matrix instruction of this GPU against its emulation, on operands drawn on the GPU.

    The operands have fifteen classes, among them cancellation, ties, subnormals, overflow, and arbitrary bits with
    NaN and Inf. Each mismatch is reduced to a minimal reproducer, shown with the effect of each rounding rule. Exit
    status 0 if all outputs are equal, 1 if not, 2 without a GPU.
    """
    if not (math.isfinite(outputs) and 1 <= outputs < 2**53):
        raise InputError(f"--outputs is {outputs:g}: a number from 1 to 9e15 is needed")
    options.check()
    from fpemu.verification.instructions import Instructions

    options.run(Instructions(options.seed, int(outputs), name))


@with_options(SuiteOptions)
def emulation(
    quick: Annotated[
        bool, typer.Option("--quick", help="A sixth of the specifications and schemes, without the speed.")
    ] = False,
    *,
    options: SuiteOptions,
) -> None:
    """Verify GEMMs emulated on this GPU against the CPU's compiled and NumPy implementations, and measure their speed.

    The cases cover every instruction of the catalogue and random specifications, adversarial operands, all kinds of
    summation orders including trees, and every scheme on every hardware. Exit status 0 if all bits are equal, 1 if
    not, 2 without a GPU.
    """
    options.check()
    from fpemu.verification.emulation import Emulation

    options.run(Emulation(options.seed, quick=quick))


@with_options(PathOptions)
def kernels(
    schemes: Annotated[str | None, typer.Option("--schemes", help="Only these schemes, such as ootomo,staged.")] = None,
    shapes: Annotated[
        int, typer.Option("--shapes", help="Number of products per scheme; a sixth per other set of options.")
    ] = 36,
    published: Annotated[bool, typer.Option("--published", help="Only the published options.")] = False,
    jobs: Jobs = None,
    *,
    options: PathOptions,
) -> None:
    """Verify the kernels of the split schemes on this GPU against the emulation of its instructions.

    The cases cover every scheme with its options, odd shapes, K of 1 and of 10,000, batches, all layouts, alpha,
    beta and C, all overflow policies, error messages, and adversarial operands: subnormals, overflow, cancellation,
    NaN and Inf. Each is computed by every path of a caller: calls on arrays of the CPU (host) and of the GPU (eager),
    plans (plan, prepared), CUDA graphs of these (graph, graph-plan, graph-prepared), and with PyTorch the operator of
    fpemu.torch, its gradient and the routed torch.matmul (torch, gradient, routed). Exit status 0 if all bits are
    equal, 1 if not, 2 without a GPU. An existing record of the same code, seed, shapes and paths is extended.
    """
    names, paths = _names("--schemes", "scheme", schemes), options.paths()
    options.check(shapes=shapes, jobs=jobs)
    from fpemu.verification.kernels import Kernels

    options.run(Kernels(options.seed, shapes, names, published=published, paths=paths), jobs)


@with_options(PathOptions)
def batched(
    cases: Annotated[
        int, typer.Option("--cases", help="Number of products per group; 520 products cover all sizes once.")
    ] = 520,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Time limit per group; a group that exceeds it has fewer products."),
    ] = None,
    *,
    options: PathOptions,
) -> None:
    """Verify the batched kernels on this GPU against the emulation of its instructions.

    The cases cover sizes 1 to 130 in M, N and K, odd leading dimensions, transposes, pointer arrays, alpha, beta
    and C, all layouts, random configurations of all kernels, and special values, by the paths host, eager, graph,
    torch and gradient (see `fpemu verify kernels`). Exit status 0 if all bits are equal, 1 if not, 2 without a GPU.
    """
    if cases < 1 or (seconds is not None and not seconds > 0):
        raise InputError(f"--cases is {cases} and --seconds {seconds}: positive numbers are needed")
    paths = options.paths()
    options.check()
    from fpemu.gpu.batched import products
    from fpemu.verification.batched import Batched

    products.need_gpu()
    options.run(Batched(options.seed, cases, seconds, paths=paths))


@with_options(PathOptions)
def tallskinny(
    every: Annotated[int, typer.Option("--every", help="Compute only every N-th product.")] = 1,
    huge: Annotated[
        bool, typer.Option("--huge", help="Also matrices of more than 2^32 elements; needs 18 to 37 GB of memory.")
    ] = False,
    *,
    options: PathOptions,
) -> None:
    """Verify TSM2, ISM2 and the versions for Hopper on this GPU against the emulation, in fp32 and fp64.

    The cases cover sizes 1 to 130 for m, k and n, larger sizes, all layouts, odd leading dimensions, and special
    values; fpemu.gpu.tallskinny.multiply is called by the paths host, eager, graph, torch and gradient. Exit
    status 0 if all bits are equal, 1 if not, 2 without a GPU.
    """
    paths = options.paths()
    options.check(every=every)
    from fpemu.verification.tallskinny import TallSkinny

    options.run(TallSkinny(options.seed, every, huge=huge, paths=paths))


@with_options(PathOptions)
def arguments(
    rounds: Annotated[
        int, typer.Option("--rounds", help="Number of products of every case, each at another address.")
    ] = 2,
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
    paths = options.paths()
    options.check(rounds=rounds, jobs=jobs)
    from fpemu.gpu.batched import products
    from fpemu.verification.arguments import Arguments

    products.need_gpu()
    options.run(Arguments(options.seed, rounds, paths=paths), jobs)


@with_options(SuiteOptions)
def library(
    shapes: Annotated[
        int, typer.Option("--shapes", "-n", help="Number of shapes drawn from the table by --seed; 0: all.")
    ] = 20,
    types: Annotated[
        list[str] | None, typer.Option("--types", "-t", help="Only products of this type; may be repeated.")
    ] = None,
    new: Annotated[
        int, typer.Option("--new", help="Number of further random shapes, whose orders probes reveal first.")
    ] = 0,
    listed: Annotated[
        bool, typer.Option("--list", help="Only list the kinds of orders in the table; needs no GPU.")
    ] = False,
    *,
    options: SuiteOptions,
) -> None:
    """Verify cuBLAS products (through PyTorch) on this GPU against 'fpemu.library.emulate'.

    The command compares up to 32 rows and columns of each D. Exit status 0 if all entries are equal, 1 if not, 2
    without a GPU or PyTorch.
    """
    from fpemu.library import TYPES

    kinds = tuple(types or TYPES)
    for kind in kinds:
        if kind not in TYPES:
            raise unknown_name("type of a product", kind, TYPES)
    if listed:
        _list_orders(kinds, options.as_json)
        return
    if shapes < 0 or new < 0 or options.seed < 0:
        raise InputError("--shapes, --new and --seed must not be negative")
    check_file(options.record, "the record", ".json")  # the suite itself names what its machine lacks
    from fpemu.verification.library import Library

    options.run(Library(options.seed, kinds, shapes, new))


def _list_orders(types: tuple[str, ...], as_json: bool) -> None:
    """Print the kinds of orders of the table, by type."""
    from fpemu.library import orders
    from fpemu.library.tables import KINDS, summary

    products = [product for product in orders("cublas") if product.type in types]
    counts = summary(products)
    if as_json:
        typer.echo(json.dumps(counts))
        return
    first = products[0]
    title = f"{first.library} {first.version}, {first.hardware}: {len(products):,} products by their order"
    each = {text: [count.get(kind, 0) for count in counts.values()] for kind, text in KINDS.items()}
    rows = [
        (text, *(str(n or "") for n in numbers), str(sum(numbers))) for text, numbers in each.items() if any(numbers)
    ]
    print_table(title, ("order", *counts, "all"), rows, numbers=len(counts) + 1)
