"""``fpemu verify``: the suites that compare this GPU with its emulation, bit by bit."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import check_file, console, note, progress, table
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.verify.suite import Suite

_LISTED = 30  # groups with mismatches or errors that are shown

Seed = Annotated[int, typer.Option("--seed", help="Seed of the operands.")]
RecordFile = Annotated[
    str | None,
    typer.Option(
        "--record",
        metavar="FILE.json",
        help="Write the record. An interrupted run leaves FILE.json.partial, from which the same command continues.",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore the outcomes of earlier runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")]
Paths = Annotated[
    str | None,
    typer.Option(
        "--path", help="Only these paths of a caller, such as eager,plan,graph. Default: all that this machine can run."
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", help="Number of processes; default: one per core, at most 16.")
]


def instructions(
    name: Annotated[
        str, typer.Argument(metavar="[NAME-PART]", help="Only instructions whose name contains this text.")
    ] = "",
    outputs: Annotated[
        float, typer.Option("--outputs", "-n", help="Smallest number of outputs per instruction, over all classes.")
    ] = 1e9,
    seed: Seed = 0,
    record: RecordFile = None,
    as_json: AsJson = False,
    fresh: Fresh = False,
) -> None:
    """Verify every matrix instruction of this GPU against its emulation, on operands drawn on the GPU.

    The operands have fifteen classes, among them cancellation, ties, subnormals, overflow, and arbitrary bits with
    NaN and Inf. Each mismatch is reduced to a minimal reproducer, shown with the effect of each rounding rule. Exit
    status 0 if all outputs are equal, 1 if not, 2 without a GPU.
    """
    check_options(record)
    if not (math.isfinite(outputs) and 1 <= outputs < 2**53):
        raise InputError(f"--outputs is {outputs:g}: a number from 1 to 9e15 is needed")
    _need_a_gpu()
    from fpemu.verify.instructions import Instructions

    run_suite(Instructions(seed, int(outputs), name), record, fresh, as_json=as_json)


def emulation(
    quick: Annotated[
        bool, typer.Option("--quick", help="A sixth of the specifications and schemes, without the speed.")
    ] = False,
    seed: Seed = 0,
    record: RecordFile = None,
    as_json: AsJson = False,
    fresh: Fresh = False,
) -> None:
    """Verify GEMMs emulated on this GPU against the CPU's compiled and NumPy implementations, and measure their speed.

    The cases cover every instruction of the catalogue and random specifications, adversarial operands, all kinds of
    summation orders including trees, and every scheme on every hardware. Exit status 0 if all bits are equal, 1 if
    not, 2 without a GPU.
    """
    check_options(record)
    _need_a_gpu()
    from fpemu.verify.emulation import Emulation

    run_suite(Emulation(seed, quick=quick), record, fresh, as_json=as_json)


def kernels(
    schemes: Annotated[str | None, typer.Option("--schemes", help="Only these schemes, such as ootomo,staged.")] = None,
    shapes: Annotated[
        int, typer.Option("--shapes", help="Number of products per scheme; a sixth per other set of options.")
    ] = 36,
    published: Annotated[bool, typer.Option("--published", help="Only the published options.")] = False,
    path: Paths = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    record: RecordFile = None,
    as_json: AsJson = False,
    fresh: Fresh = False,
) -> None:
    """Verify the kernels of the split schemes on this GPU against the emulation of its instructions.

    The cases cover every scheme with its options, odd shapes, K of 1 and of 10,000, batches, all layouts, alpha,
    beta and C, all overflow policies, error messages, and adversarial operands: subnormals, overflow, cancellation,
    NaN and Inf. Each is computed by every path of a caller: calls on arrays of the CPU (host) and of the GPU (eager),
    plans (plan, prepared), CUDA graphs of these (graph, graph-plan, graph-prepared), and with PyTorch the operator of
    fpemu.torch, its gradient and the routed torch.matmul (torch, gradient, routed). Exit status 0 if all bits are
    equal, 1 if not, 2 without a GPU. An existing record of the same code, seed, shapes and paths is extended.
    """
    check_options(record, **{"--shapes": shapes, "--jobs": jobs})
    names, paths = _names("--schemes", "scheme", schemes), _names("--path", "path", path)
    _need_a_gpu()
    from fpemu.verify.kernels import Kernels

    run_suite(Kernels(seed, shapes, names, published=published, paths=paths), record, fresh, jobs, as_json)


def batched(
    cases: Annotated[
        int, typer.Option("--cases", help="Number of products per group; 520 products cover all sizes once.")
    ] = 520,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="Time limit per group; a group that exceeds it has fewer products."),
    ] = None,
    path: Paths = None,
    seed: Seed = 0,
    record: RecordFile = None,
    fresh: Fresh = False,
) -> None:
    """Verify the batched kernels on this GPU against the emulation of its instructions.

    The cases cover sizes 1 to 130 in M, N and K, odd leading dimensions, transposes, pointer arrays, alpha, beta
    and C, all layouts, random configurations of all kernels, and special values, by the paths host, eager, graph,
    torch and gradient (see `fpemu verify kernels`). Exit status 0 if all bits are equal, 1 if not, 2 without a GPU.
    """
    check_options(record)
    if cases < 1 or (seconds is not None and not seconds > 0):
        raise InputError(f"--cases is {cases} and --seconds {seconds}: positive numbers are needed")
    paths = _names("--path", "path", path)
    _need_a_gpu()
    from fpemu.gpu.batched import products
    from fpemu.verify.batched import Batched

    products.need_gpu()
    run_suite(Batched(seed, cases, seconds, paths=paths), record, fresh)


def tallskinny(
    every: Annotated[int, typer.Option("--every", help="Compute only every N-th product.")] = 1,
    huge: Annotated[
        bool, typer.Option("--huge", help="Also matrices of more than 2^32 elements; needs 18 to 37 GB of memory.")
    ] = False,
    path: Paths = None,
    seed: Seed = 0,
    record: RecordFile = None,
    fresh: Fresh = False,
) -> None:
    """Verify TSM2, ISM2 and the versions for Hopper on this GPU against the emulation, in fp32 and fp64.

    The cases cover sizes 1 to 130 for m, k and n, larger sizes, all layouts, odd leading dimensions, and special
    values; fpemu.gpu.tallskinny.multiply is called by the paths host, eager, graph, torch and gradient. Exit
    status 0 if all bits are equal, 1 if not, 2 without a GPU.
    """
    check_options(record, **{"--every": every})
    paths = _names("--path", "path", path)
    _need_a_gpu()
    from fpemu.verify.tallskinny import TallSkinny

    run_suite(TallSkinny(seed, every, huge=huge, paths=paths), record, fresh)


def arguments(
    rounds: Annotated[
        int, typer.Option("--rounds", help="Number of products of every case, each at another address.")
    ] = 2,
    path: Paths = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    record: RecordFile = None,
    fresh: Fresh = False,
) -> None:
    """Verify products on this GPU whose arguments share memory, have unusual strides, are empty or have special values.

    The cases cover fpemu.gpu.gemm by some schemes, batched products, and tall and skinny ones: one array in the place
    of several operands, overlapping views, strides of 0, broadcast and permuted batches, sizes of 0 and 1, special
    values of alpha and beta, and conversions, by the paths of `fpemu verify kernels`. Exit status 0 if all bits are
    equal, 1 if not, 2 without a GPU.
    """
    check_options(record, **{"--rounds": rounds, "--jobs": jobs})
    paths = _names("--path", "path", path)
    _need_a_gpu()
    from fpemu.gpu.batched import products
    from fpemu.verify.arguments import Arguments

    products.need_gpu()
    run_suite(Arguments(seed, rounds, paths=paths), record, fresh, jobs)


def _names(option: str, kind: str, text: str | None) -> list[str] | None:
    """The names in a list of an option; None if it is left out."""
    names = None if text is None else [name.strip().lower() for name in text.split(",") if name.strip()]
    if names == []:
        raise InputError(f"{option} {text!r} names no {kind}")
    return names


def missing() -> str | None:
    """What this machine lacks for `fpemu verify`, in one line; None if nothing."""
    from fpemu.gpu.runtime import device

    reason = device.missing()
    if reason is None or "pip install" in reason:
        return reason
    return f"{reason}; beside a GPU and its driver: pip install 'fpemu[gpu]'"


def _need_a_gpu() -> None:
    reason = missing()
    if reason is not None:
        raise InputError(f"verify: {reason}")


def check_options(record: str | None, **counts: int | None) -> None:
    """Check the record's file name, and options that are counts."""
    check_file(record, "the record", ".json")
    for option, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{option} is {count}: a number from 1 on is needed")


def run_suite(suite: Suite, record: str | None, fresh: bool, jobs: int | None = None, as_json: bool = False) -> None:
    """Run a suite with progress bars and print its tables and mismatches.

    Exit with status 1 if there are mismatches or errors, or if nothing was compared.
    """
    from fpemu.verify.runner import Run

    run = Run(suite, record, fresh=fresh)
    if run.outcomes:
        note(f"{run} already")
    try:
        with progress() as bars:
            total = len(run.groups)
            bar = bars.add_task(suite.name, total=total, completed=total - len(run.missing))
            result = run.finish(jobs, lambda group, done: bars.update(bar, advance=done, description=group))
    except KeyboardInterrupt:
        print(f"fpemu: {run.interrupted()}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(result.text(), nl=False)
    else:
        for title, columns, rows in suite.tables(result):
            shown = table(title, *columns, numbers=len(columns) - 1)
            for row in rows:
                shown.add_row(*row)
            console().print(shown)
        for line in suite.summary(result):
            console().print(line)
    faults = [outcome for outcome in result.outcomes if not outcome.ok]
    for outcome in faults[:_LISTED]:
        for line in suite.explain(outcome):
            note(line)
    if len(faults) > _LISTED:
        note(f"and {len(faults) - _LISTED} more" + ("" if record is None else f": see {record}"))
    elsewhere = run.failed_elsewhere
    if elsewhere:
        note(f"{len(elsewhere)} groups outside this run have failed: {', '.join(elsewhere[:_LISTED])}")
    compared = suite.has_comparisons(result)
    if not compared:
        note("nothing was compared")
    if faults or elsewhere or not compared:
        raise typer.Exit(1)
