"""``fpemu characterize``: the arithmetic of a matrix instruction as a row of the catalogue, from probes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import AS_JSON, note, parse_sizes, print_table, print_text, spinner
from fpemu.errors import GpuError, InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec
    from fpemu.probing import Characterized

_ARITHMETIC = ("arithmetic", "block", "F", "E0", "final", "fraction_bits", "nan_code", "payloads")


def characterize(
    name: Annotated[
        str, typer.Argument(metavar="[NAME-PART]", help="Only instructions of this GPU whose name contains this text.")
    ] = "",
    emulated: Annotated[
        str | None,
        typer.Option(
            "--emulated",
            metavar="NAME-PART",
            help="Probe the emulated instructions whose name contains this text; needs no GPU.",
        ),
    ] = None,
    function: Annotated[
        str | None, typer.Option("--callable", metavar="FILE.py:FUNCTION", help="Probe a function (A, B, C) -> D.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option("--formats", metavar="A,B,D", help="Formats of the function: fp16,fp16,fp32; or A,B,C,D."),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Length K of the dot products of the function.")] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="MxN", help="Shape of D, if the function accepts only one.")
    ] = None,
    outputs: Annotated[
        float, typer.Option("--outputs", "-n", help="Number of random outputs per instruction to verify with.")
    ] = 2**16,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random operands.")] = 0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Find the arithmetic of a matrix instruction by directed probes, and verify it with random operands.

    The result is a row of the catalogue: block length, alignment width, rounding, minimum alignment exponent, NaN
    codes, zeros and subnormals, each with the probe that determines it. For an mma.sync instruction of this GPU the
    row includes the shape, which the registers of a warp determine. Exit status 0 if the row reproduces all random
    outputs; 1 if it does not, or if no known arithmetic explains the probes; 2 for an invalid argument or without a
    GPU.
    """
    from fpemu.gpu.instructions import fragments
    from fpemu.probing import characterize as find

    if not (1 <= outputs < 2**40 and 0 <= seed < 2**64):
        raise InputError(f"--outputs is {outputs:g} and --seed {seed}: give a number from 1 to 1e12 and one from 0")
    if sum((bool(name), emulated is not None, function is not None)) > 1:
        raise InputError("choose one of NAME-PART, --emulated and --callable")
    if function is None and (formats, k, shape) != (None, None, None):
        raise InputError("--formats, --k and --shape describe a --callable")
    failed, reports, on_gpu = False, [], function is None and emulated is None
    sources = _sources(name, emulated, function, formats, k, shape)
    for n, (title, execute, about, row) in enumerate(sources, 1):
        try:
            with spinner(title) as say:
                counted = _counted(execute, say, f"{title} ({n} of {len(sources)})" if len(sources) > 1 else title)
                result = find(counted, **about, outputs=int(outputs), seed=seed, name=title)
                layout = fragments.find(row) if on_gpu and row is not None and row.instruction == "mma" else None
        except GpuError as problem:
            note(f"fpemu: {title}: {' '.join(str(problem).split())}")
            raise typer.Exit(1) from problem
        failed |= not result
        reports.append(_report(title, result, row))
        if layout is not None and row is not None:
            instruction_shape = {"shape": f"m{layout.m}n{layout.n}k{layout.k}", "probes": layout.probes}
            reports[-1]["fragments"] = {**instruction_shape, "as_used": fragments.agrees(layout, row)}
        if not as_json:
            _show(title, result, row)
            if layout is not None:
                print_text(f"fragments: {layout}")
        if result.contradiction:
            note(f"fpemu: {title}: {result.contradiction}")
    if as_json:
        typer.echo(json.dumps(reports, indent=1))
    if failed:
        raise typer.Exit(1)


def _sources(
    name: str, emulated: str | None, function: str | None, formats: str | None, k: int | None, shape: str | None
) -> list[tuple[str, Callable[..., Any], dict[str, Any], MmaSpec | None]]:
    """The instructions to characterise: title, callable, formats and k, and their catalogue row if any."""
    from functools import partial

    from fpemu import gpu, mma
    from fpemu.mma import catalog

    if function is not None:
        return [_callable(function, formats, k, shape)]
    if emulated is not None:
        rows = [row for row in catalog.rows() if emulated and emulated.lower() in row.name.lower()]
        if not rows:
            raise unknown_name(
                "row of the catalog", emulated, [row.name for row in catalog.rows()], catalog.architectures()
            )
        return [(row.name, partial(mma.execute, spec=row, backend="numpy"), _about(row), row) for row in rows]
    missing = gpu.available()
    if missing is not None:
        raise InputError(f"characterize: {missing}; --emulated NAME and --callable FILE.py:FUNCTION need none")
    from fpemu.gpu.instructions import run as instructions

    rows = [row for row in instructions.rows() if name.lower() in row.name.lower()]
    if not rows:
        raise unknown_name("instruction of this GPU", name, [row.name for row in instructions.rows()])
    return [(row.name, partial(gpu.execute, spec=row), _about(row), row) for row in rows]


def _counted(execute: Callable[..., Any], say: Callable[[str], None], title: str) -> Callable[..., Any]:
    """The instruction, with its calls counted in the spinner."""
    calls = count(1)

    def counted(A: Any, B: Any, C: Any) -> Any:
        say(f"{title}: call {next(calls)}")
        return execute(A, B, C)

    return counted


def _about(row: MmaSpec) -> dict[str, Any]:
    return {"a": row.a_format, "b": row.b_format, "c": row.c_format, "d": row.d_format, "k": row.k}


def _callable(
    function: str, formats: str | None, k: int | None, shape: str | None
) -> tuple[str, Callable[..., Any], dict[str, Any], None]:
    """A user's function, loaded from its file."""
    import numpy as np

    from fpemu.probing import callables

    names = [name.strip() for name in (formats or "").split(",")]
    if len(names) not in (3, 4) or k is None:
        raise InputError("--callable needs --formats A,B,D (or A,B,C,D) and --k")
    about: dict[str, Any] = {"a": names[0], "b": names[1], "d": names[-1], "k": k}
    if len(names) == 4:
        about["c"] = names[2]
    if shape is not None:
        about["shape"] = tuple(parse_sizes("--shape", shape, "MxN"))
    user_function, attribute = callables.load_function(function), function.rpartition(":")[2]

    def execute(A: Any, B: Any, C: Any) -> Any:
        try:
            with np.errstate(all="ignore"):  # the probes contain infinities and NaN
                D = user_function(A, B, C)
        except (Exception, SystemExit) as problem:
            what = f"{type(problem).__name__}: {problem}"
            raise InputError(f"{attribute} fails on A {A.shape}, B {B.shape}, C {C.shape}: {what}") from problem
        return callables.as_numbers(D, f"the result of {attribute}").values

    return attribute, execute, about, None


# --- output
def row_text(spec: MmaSpec) -> str:
    """A specification as a Python expression."""
    parts = [repr(str(f)) for f in (spec.a_format, spec.b_format, spec.d_format)]
    parts += [f"k={spec.k}", f"block={spec.block}", f"arithmetic={spec.arithmetic!r}"]
    if spec.rules.truncates:
        parts += [f"F={spec.F}", f"E0={spec.E0}", f"final={spec.final!r}"]
        parts += [f"fraction_bits={spec.fraction_bits}"] if spec.fraction_bits is not None else []
    elif "final" in spec.rules.parameters:
        parts.append(f"final={spec.final!r}")
    if spec.c_format != spec.d_format:
        parts.append(f"c_format={str(spec.c_format)!r}")
    if spec.nan_code is not None:
        parts.append(f"nan_code=0x{spec.nan_code:X}")
    if spec.payloads:
        parts.append("payloads=True")
    return f"MmaSpec({', '.join(parts)})"


def differences(spec: MmaSpec, row: MmaSpec, alike: tuple[MmaSpec, ...]) -> dict[str, list[Any]]:
    """The fields of two specifications that differ, [spec's, the catalogue's], except floors with the same bits."""
    fields = [f for f in _ARITHMETIC if getattr(spec, f) != getattr(row, f)]
    reach = max(
        (s.E0 for s in alike if s.E0 is not None and s.replace(E0=spec.E0, name=spec.name) == spec), default=None
    )
    if "E0" in fields and reach is not None and row.E0 is not None and (spec.E0 or -(10**6)) <= row.E0 <= reach:
        fields.remove("E0")  # any floor up to `reach` gives the same bits
    return {f: [getattr(spec, f), getattr(row, f)] for f in fields}


def _report(title: str, result: Characterized, row: MmaSpec | None) -> dict[str, Any]:
    spec = result.spec
    report: dict[str, Any] = {
        "instruction": title,
        "row": None if spec is None else row_text(spec),
        "probes": result.probes,
        "verified_outputs": result.verified_outputs,
        "mismatches": result.mismatches,
        "contradiction": result.contradiction,
        "findings": [vars(f) for f in result.findings],
    }
    if spec is not None:
        report["fields"] = {f: getattr(spec, f) for f in _ARITHMETIC}
        report["alike"] = [row_text(s) for s in result.alike]
        if row is not None:
            report["catalog"] = differences(spec, row, result.alike)
    return report


def _show(title: str, result: Characterized, row: MmaSpec | None) -> None:
    findings = [(f.field, f.value, f.probe, f.returned, f.otherwise) for f in result.findings]
    columns = ("field", "value", "probe", "returned", "otherwise")
    print_table(f"{title}: {result.probes:,} probes", columns, findings)
    if result.spec is None:
        return
    print_text(row_text(result.spec))
    print_text(f"{result.verified_outputs:,} random outputs, {result.mismatches:,} mismatch")
    if row is not None:
        fields = differences(result.spec, row, result.alike).items()
        text = "; ".join(f"{f} = {value}, in the catalogue {expected}" for f, (value, expected) in fields)
        print_text(f"not as in the catalogue: {text}" if text else "as in the catalogue")
