"""Methods, inputs and labels that H2SGEMM's error pages share."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import library, metrics, mma, plotting, schemes
from fpemu.library.tables import Tiles
from fpemu.mma import KOrder
from fpemu.mma.device import Device
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Tree
from fpemu.plotting import Series

from .._numeric import problem
from .._numeric import unit as unit_of
from .._rows import Row, in_legend, runs_by

HARDWARE = "ascend910a"
"""The paper's accelerator; cells name it so that the figure's record states the evidence for its model."""
PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025)"
CUBE = """The cube of the Ascend 910A is assumed to add 16 products and the accumulator exactly and to round once to
fp32, because no bit-level description is public."""


def unit(given: Mapping[str, Any]) -> str:
    """Return the last sentence of a caption, on the matrix unit."""
    if given["hardware"] == HARDWARE:
        return "Ascend 910A cube as an assumed model."
    return f"Matrix unit: {unit_of(given['hardware'])}."


def cube(given: Mapping[str, Any]) -> str:
    """Return the assumption on the matrix unit."""
    if given["hardware"] == HARDWARE:
        return CUBE
    return f"The matrix unit is {unit_of(given['hardware'])} in place of the Ascend 910A's cube."


ELEMENTWISE = """The paper does not state after how many products element-wise accumulation adds the three terms; here
the products of every 16 positions of k start from zero and are added to one fp32 total outside the cube."""
REFERENCE = "The reference is the exact product, rounded once to fp64; the reference of the paper is DGEMM."
ORDERS = """SGEMM is computed in four summation orders over k: OpenBLAS 0.3.21 with the TSV110 kernel, the kernel of the
paper's Kunpeng 920; OpenBLAS with the Haswell kernel; cuBLAS 13.1 on an H200 in the order recorded for the nearest
shape with the same k, without a value if no order is recorded; and one ascending chain of fp32 FMAs for each
element."""


def sizes(given: Mapping[str, Any]) -> str:
    """Return the statement on the sizes."""
    return f"The sizes are m = {given['m']}, n = {given.get('n', given['m'])} and k = {given['k']}."


Multiply = Callable[[NDArray[Any], NDArray[Any], Device], NDArray[Any] | None]


def openblas(kernel: str, version: str) -> Multiply:
    """Return OpenBLAS's sgemm with one of its kernels."""
    return lambda A, B, device: library.emulate("openblas", A, B, hardware=kernel, version=version, device=device)


def cublas(A: NDArray[Any], B: NDArray[Any], device: Device) -> NDArray[Any] | None:
    """Multiply in the order that cuBLAS's fp32 product of the nearest recorded shape of the same K has; None: no shape.

    The nearest shape differs by at most a factor of 4 in M and in N. An order that varies over D is not taken.
    """
    M, K, N = *A.shape, B.shape[1]
    nearest = _nearest(M, N, K)
    return None if nearest is None else mma.gemm(A, B, None, *nearest, device=device)


@functools.cache
def _tabulated() -> list[library.Product]:
    """The fp32 products of cuBLAS with one order for all of D."""
    products = (p for p in library.orders("cublas") if (p.type, p.layout) == ("fp32", "NN"))
    return [p for p in products if not isinstance(p.order, Tiles)]


@functools.cache
def _nearest(M: int, N: int, K: int) -> tuple[MmaSpec, KOrder | Tree] | None:
    distance = {p: max(abs(math.log2(p.M / M)), abs(math.log2(p.N / N))) for p in _tabulated() if p.K == K}
    nearest = min(distance, key=distance.__getitem__, default=None)
    if nearest is None or distance[nearest] > 2 or isinstance(nearest.order, Tiles):
        return None
    return nearest.spec, nearest.order


@functools.cache
def methods_on(hardware: str | MmaSpec) -> dict[str, Multiply]:
    """Return the methods by their column; words of a scheme that overflow give Inf or NaN."""

    def scheme(name: str, **options: Any) -> Multiply:
        given = {"hardware": hardware, "on_range": "propagate", **options}
        return lambda A, B, device: schemes.gemm(A, B, scheme=name, device=device, **given)

    def half_result(A: NDArray[Any], B: NDArray[Any], device: Device) -> NDArray[Any] | None:
        """Return HGEMM's fp32 result rounded to fp16."""
        D = scheme("fp16")(A, B, device)
        with np.errstate(over="ignore"):
            return None if D is None else D.astype(np.float16).astype(np.float32)

    return {
        "HGEMM": scheme("fp16"),
        "HGEMM fp16": half_result,
        "SGEMM": scheme("sgemm"),
        "SGEMM TSV110": openblas("TSV110", "0.3.21"),
        "SGEMM Haswell": openblas("HASWELL", "0.3.21"),
        "SGEMM cuBLAS": cublas,
        **{
            f"sb={sb} {combine}": scheme("h2sgemm", sb=sb, combine=combine)
            for sb in (0, 6, 12)
            for combine in ("element-wise", "term-wise")
        },
    }


METHODS = methods_on(HARDWARE)
"""A method for each column of the error pages. "SGEMM" alone is one chain of FMAs, "HGEMM" alone has an fp32 result."""

TRUNCATED = {
    f"{name} RZ": method
    for name, method in methods_on(mma.spec(HARDWARE, "fp16").replace(final="RZ")).items()
    if not name.startswith("SGEMM")
}
"""The same on a cube that truncates its sums."""
CUBES = {"sums to nearest": "", "sums truncated": " RZ"}
"""Readings of the cube's rounding, each with the end of its columns."""

PUBLISHED_ORDER = "OpenBLAS, Kunpeng 920"
"""The SGEMM of the paper, which decides the claims."""
SGEMMS = {
    PUBLISHED_ORDER: "SGEMM TSV110",
    "one FMA chain": "SGEMM",
    "OpenBLAS, Haswell": "SGEMM Haswell",
    "cuBLAS, H200": "SGEMM cuBLAS",
}
HGEMMS = {"fp16 result": "HGEMM fp16", "fp32 result": "HGEMM"}
"""Orders of SGEMM and results of HGEMM, each with its column."""

LOOKS = {
    "HGEMM": Series("HGEMM, fp32 result", plotting.GREY, "x", "-"),
    "HGEMM fp16": Series("HGEMM, fp16 result", plotting.GREY, "+", ":"),
    "SGEMM": Series("SGEMM: one FMA chain", plotting.BLACK, "s", ":", filled=False),
    "SGEMM TSV110": Series("SGEMM: Kunpeng 920", plotting.BLACK, "s", "-"),
    "SGEMM Haswell": Series("SGEMM: Haswell", plotting.GREEN, "P", "--"),
    "SGEMM cuBLAS": Series("SGEMM: cuBLAS, H200", plotting.PURPLE, "X", "-."),
    "sb=0 element-wise": Series("sb = 0, element-wise", plotting.SKY, "v", "--", filled=False),
    "sb=0 term-wise": Series("sb = 0, term-wise", plotting.SKY, "^"),
    "sb=6 element-wise": Series("sb = 6, element-wise", plotting.ORANGE, "D", "--", filled=False),
    "sb=6 term-wise": Series("sb = 6, term-wise", plotting.ORANGE, "d"),
    "sb=12 element-wise": Series("sb = 12, element-wise", plotting.VERMILION, "o", "--", filled=False),
    "sb=12 term-wise": Series("sb = 12, term-wise", plotting.BLUE, "o"),
}
"""Appearance of every method; the H2SGEMM variants are named by their scaling exponent sb."""

KINDS = {"offset_symmetric": "$[-2^e,\\,2^e]$", "offset_nonnegative": "$[0,\\,2^e]$"}
"""The two distributions of section 4.1: the operands are uniform."""


def evaluate_methods(cell: Mapping[str, Any], names: Iterable[str], device: Device) -> dict[str, float]:
    """Return the relative L2 error of methods on a cell's operands; a method without a result has no entry."""
    A, B, exact = operands(cell, device)
    methods = methods_on(cell["hardware"]) | TRUNCATED
    results = {name: methods[name](A, B, device) for name in names}
    return {name: metrics.relative_l2(D, exact) for name, D in results.items() if D is not None}


def operands(cell: Mapping[str, Any], device: Device) -> tuple[Any, Any, Any]:
    """Return a cell's operands and their exact product."""
    sizes = (cell["m"], cell["n"], cell["k"])
    return problem(cell["inputs"], *sizes, cell["seed"], device, exponent=cell.get("exponent", 0))


def means(rows: list[Row], column: str, over: str, **fixed: Any) -> dict[Any, float]:
    """Return the mean of a column over the seeds at each value of the parameter `over`, where other parameters are
    fixed."""
    runs = runs_by(over, *fixed)
    points = sorted({row[over] for row in rows if all(row[name] == value for name, value in fixed.items())})
    values = {x: runs(rows, x, *fixed.values(), column) for x in points}
    return {x: float(np.mean(run)) for x, run in values.items() if run}


def ratios(numerator: Mapping[Any, float], denominator: Mapping[Any, float]) -> dict[Any, float]:
    """Return the quotients of two series at the points that both have."""
    return {x: value / denominator[x] for x, value in numerator.items() if x in denominator}


def sizes_and_runs(rows: list[Row]) -> str:
    """Return the sizes that all rows have and the number of runs, for the title of a legend."""
    sizes = {name: {row[name] for row in rows} for name in "mnk"}
    fixed = [f"${name}$ = {value}" for name, values in sizes.items() if len(values) == 1 for value in values]
    return f"{', '.join(fixed)}; {in_legend(rows)}"


def farthest(values: Iterable[float], target: float = 1.0) -> float:
    """Return the value that differs by the largest factor from the target."""
    return max(values, key=lambda value: abs(np.log(value / target)))


def panels() -> Iterator[tuple[str, str, str]]:
    """Yield a letter, a distribution and its variant in the claims."""
    for letter, kind in zip("ab", KINDS, strict=True):
        yield letter, kind, f"({letter}) {KINDS[kind].replace('$', '').replace(chr(92) + ',', '')}"
