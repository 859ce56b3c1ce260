"""Errors of block-scaled products: quantised operands against the exact product of the fp32 operands.

The products are those of Blackwell's instructions, emulated bit for bit, where the block size is one of theirs;
products with other blocks are exact products of the quantised operands.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpemu import metrics, mma, plotting, reference
from fpemu.formats import block
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import problem
from .._rows import Row, in_legend, runs_by

CAPTION = """Relative L2 error of products of 32 rows and 32 columns in block-scaled formats, against the exact product
of the fp32 operands: over K, over the block size, for four distributions and for the rules of the scale (K = 1024,
normal operands and the default rules if not stated otherwise). Dotted: the error of the instruction
alone, which is zero for MXFP6, MXFP4 and NVFP4."""
ASSUMPTIONS = [
    """Operands are quantised from fp32 along K by fpemu.formats.block, elements to nearest even. Default rules: floor
    for MX formats, to nearest for NVFP4.""",
    """The instructions are documented models of Blackwell's tcgen05 units; each product is one ascending chain of them.
    The error of the instruction alone is relative to the exact product of the quantised operands.""",
    """Blocks that no instruction has are multiplied exactly.""",
]
LOOK = {
    "mxfp8_e4m3": Series("MXFP8 (e4m3)", plotting.BLUE, "o"),
    "mxfp6_e2m3": Series("MXFP6 (e2m3)", plotting.GREEN, "s"),
    "mxfp4": Series("MXFP4", plotting.VERMILION, "D"),
    "nvfp4": Series("NVFP4", plotting.PURPLE, "^"),
}
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "normal": ("normal", {}),
    "[-1, 1]": ("uniform", {"low": -1.0, "high": 1.0}),
    "[0, 1]": ("uniform", {"low": 0.0, "high": 1.0}),
    "exponents": ("wide", {"low": -8, "high": 8}),
}
LENGTHS = (64, 256, 1024, 4096)
BLOCKS = (8, 16, 32, 64, 128, 256)
RULES = ("floor", "even", "ceil", "rceil")
_COLUMNS = ("format", "rule", "block", "data", "K")
_K = 1024


def _default(name: str) -> tuple[str, int]:
    """Return the rule and the block of a format."""
    return "even" if name == "nvfp4" else "floor", block.get(name).block


def cells(seeds: int = 20) -> list[Row]:
    points: dict[tuple[Any, ...], None] = {}
    for name in LOOK:
        rule, size = _default(name)
        lines = [(rule, size, "normal", k) for k in LENGTHS] + [(rule, b, "normal", _K) for b in BLOCKS]
        lines += [(rule, size, data, _K) for data in DATA] + [(r, size, "normal", _K) for r in RULES]
        points |= {(name, *line): None for line in lines}
    return [dict(zip(_COLUMNS, point, strict=True)) | {"seed": s} for point in points for s in range(seeds)]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    distribution, parameters = DATA[cell["data"]]
    A, B, exact = problem(distribution, 32, 32, cell["K"], cell["seed"], device, **parameters)
    fmt = replace(block.get(cell["format"]), block=cell["block"])
    a, b = block.quantize(A, fmt, -1, cell["rule"]), block.quantize(B, fmt, -2, cell["rule"])
    quantised = reference.matmul(
        block.dequantize(a.values, a.scales, -1, a.tensor_scale),
        block.dequantize(b.values, b.scales, -2, b.tensor_scale),
        device=device,
    )
    if fmt.block != block.get(cell["format"]).block:
        return {"error": float(metrics.relative_l2(quantised, exact))}
    spec = mma.spec(*_unit(cell["format"]))
    D = mma.gemm(a.values, b.values, None, spec, scale_a=a.scales, scale_b=b.scales, device=device).astype(np.float64)
    D *= np.float64(a.tensor_scale) * np.float64(b.tensor_scale)
    return {"error": float(metrics.relative_l2(D, exact)), "unit": float(metrics.relative_l2(D, quantised))}


def _unit(name: str) -> tuple[Any, ...]:
    """Return the arguments of `fpemu.mma.spec` for the instruction of a format."""
    fmt = block.get(name)
    k = 64 if fmt.element.name == "e2m1" else 32
    return "blackwell", fmt.element.name, "fp32", None, k, "ue4m3" if fmt.tensor_scale else "ue8m0", fmt.block


_runs = runs_by("format", "rule", "block", "data", "K")


def draw(rows: list[Row]) -> Any:
    image, axes = plotting.figure(2, 2, height=5.2, share_x=False, share_y=False)
    over_k, over_block, by_data, by_rule = axes.flat
    for name, look in LOOK.items():
        rule, size = _default(name)

        def line(axis: Any, places: Any, points: Any, column: str, look: Series = look, **more: Any) -> None:
            plotting.band(axis, places, [_runs(rows, *point, column) for point in points], look, **more)

        lengths = [(name, rule, size, "normal", k) for k in LENGTHS]
        line(over_k, LENGTHS, lengths, "error")
        line(over_k, LENGTHS, lengths, "unit", linestyle=":", marker="none", label="_")
        line(over_block, BLOCKS, [(name, rule, b, "normal", _K) for b in BLOCKS], "error")
        line(by_data, range(4), [(name, rule, size, data, _K) for data in DATA], "error", linestyle="none")
        line(by_rule, range(4), [(name, r, size, "normal", _K) for r in RULES], "error", linestyle="none")
    for axis in axes.flat:
        axis.set(yscale="log")
    over_k.set(xscale="log", xlabel="K")
    over_k.set_xticks(LENGTHS, map(str, LENGTHS))
    over_k.text(80, 1e-6, "dotted: the sums alone", fontsize=6)
    over_block.set(xscale="log", xlabel="block size")
    over_block.set_xticks(BLOCKS, map(str, BLOCKS))
    for axis in (over_k, over_block):
        axis.minorticks_off()
    by_data.set_xticks(range(4), [name.replace("exponents", "wide") for name in DATA], fontsize=6)
    by_rule.set_xticks(range(4), RULES)
    for axis in axes[:, 0]:
        axis.set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, ["over K", "over the block size", "distributions", "rules for the scale"])
    plotting.legend_below(image, over_k, 2, in_legend(rows))
    return image


def measures(rows: list[Row]) -> Iterator[Measure]:
    def mean(name: str, data: str = "normal", k: int = _K, column: str = "error") -> float:
        return float(np.mean(_runs(rows, name, *_default(name), data, k, column)))

    for data in DATA:
        yield Measure("nvfp4_below_mxfp4", mean("nvfp4", data) / mean("mxfp4", data), variant=data)
    for name, look in LOOK.items():
        yield Measure("constant_in_k", mean(name, k=4096) / mean(name, k=64), variant=look.label)
        yield Measure(
            "unit_below_quantisation", mean(name, k=4096, column="unit") / mean(name, k=4096), variant=look.label
        )


def finding(rows: list[Row]) -> str:
    def errors(data: str = "normal") -> dict[str, float]:
        return {
            look.label: float(np.mean(_runs(rows, name, *_default(name), data, _K, "error")))
            for name, look in LOOK.items()
        }

    rules = {rule: float(np.mean(_runs(rows, "mxfp4", rule, 32, "normal", _K, "error"))) for rule in RULES}
    return paragraph(
        ("the errors on normal operands are", errors()),
        ("with exponents spread over 17 binades they are", errors("exponents")),
        ("the errors of MXFP4 by rule are", rules),
    )


PAGE = Page(
    "No paper", CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, specs=[_unit(name) for name in LOOK]
)
