"""Split schemes from block-scaled words: the products that FP32 accuracy takes on FP8, FP6, FP4 and INT8 units.

Operands are split into words, each quantised to a block format, and products of words run on block-scaled instructions.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import metrics, mma, plotting, schemes
from fpemu.formats import block
from fpemu.mma import KOrder
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import problem
from .._rows import Row, in_legend, runs_by
from .error import DATA, _unit

CAPTION = """Relative L2 error of products of 16 rows and 16 columns (K = 512) from words in block formats, against the
exact product of the fp32 operands, over the number of products of words: w words take w (w + 1) / 2 products.
Black: FP16's and BF16's schemes; dashed: SGEMM."""
ASSUMPTIONS = [
    """Word i of an operand is its residual after the words before it, computed in fp64 and quantised along K by
    fpemu.formats.block, elements to nearest even. Rule of the scale: rceil, which never saturates, for MX formats, and
    to nearest for NVFP4.""",
    """w words of A and of B have the products of word i of A and word j of B with i + j < w. Each runs on the
    documented model of Blackwell's tcgen05 unit; after each instruction its accumulator is added to an fp32 sum and
    restarts, as in Ootomo and Yokota's scheme. The products are added in fp32, those of the largest i + j first, and i
    ascending.""",
    """No unit multiplies MXINT8: its products of 32 k are taken as exact and added to an fp32 sum, k ascending.""",
    """ootomo, bf16x6 and bf16x9 run on Blackwell's FP16 and BF16 instructions as published. A scheme of n products is
    faster than FP16's three if the unit multiplies more than n / 3 times as fast as FP16's, splits and sums left
    aside.""",
]
LOOK = {
    "mxfp8_e4m3": Series("MXFP8 (e4m3)", plotting.BLUE, "o"),
    "mxfp8_e5m2": Series("MXFP8 (e5m2)", plotting.SKY, "v"),
    "mxfp6_e2m3": Series("MXFP6 (e2m3)", plotting.GREEN, "s"),
    "mxint8": Series("MXINT8", plotting.ORANGE, "P"),
    "mxfp4": Series("MXFP4", plotting.VERMILION, "D"),
    "nvfp4": Series("NVFP4", plotting.PURPLE, "^"),
}
_WORDS = {"mxfp8_e4m3": 6, "mxfp8_e5m2": 7, "mxfp6_e2m3": 6, "mxint8": 4, "mxfp4": 9, "nvfp4": 8}
_OTHERS = {"ootomo": (3, "x"), "bf16x6": (6, "+"), "bf16x9": (9, "1")}  # products, marker
_OPERANDS = ("normal", "exponents")
_FP16_PRODUCTS = 3


def cells(seeds: int = 20, K: int = 512) -> list[Row]:
    names = [*LOOK, *_OTHERS, "sgemm"]
    return [{"data": d, "K": K, "seed": s, "from": name} for d in _OPERANDS for s in range(seeds) for name in names]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    distribution, parameters = DATA[cell["data"]]
    A, B, exact = problem(distribution, 16, 16, cell["K"], cell["seed"], device, **parameters)
    name = cell["from"]
    if name not in LOOK:
        D = schemes.gemm(A, B, scheme=name, hardware="blackwell", device=device)
        return {"error": float(metrics.relative_l2(D, exact))}
    a, b = _split(A, name, -1), _split(B, name, -2)
    errors, bands = {}, list[list[Any]]()
    for count in range(1, len(a) + 1):
        bands.append([_product(a[i], b[count - 1 - i], name, device) for i in range(count)])
        total = np.zeros_like(bands[0][0])
        for product in (product for band in reversed(bands) for product in band):
            total = total + product
        errors[f"{_products(count)} products"] = float(metrics.relative_l2(total, exact))
    return errors


def _split(X: NDArray[Any], name: str, axis: int) -> list[block.Quantized]:
    """Return the words of an operand."""
    left, words = X.astype(np.float64), []
    for _ in range(_WORDS[name]):
        words.append(block.quantize(left, name, axis, None if block.get(name).tensor_scale else "rceil"))
        left = left - block.dequantize(words[-1].values, words[-1].scales, axis, words[-1].tensor_scale)
    return words


def _product(a: block.Quantized, b: block.Quantized, name: str, device: Device) -> NDArray[np.float32]:
    """Return the product of two words, rounded to fp32."""
    if name == "mxint8":
        blocks = [x.reshape(len(x), -1, 32).swapaxes(0, 1).astype(np.float64) for x in (a.values, b.values.T)]
        scales = a.scales.T[:, :, None].astype(np.float64) * b.scales[:, None]
        total = np.zeros(scales.shape[1:], np.float32)
        for exact in blocks[0] @ blocks[1].swapaxes(1, 2) * scales:  # 32 products of 15 bits: exact in fp32
            total = total + exact.astype(np.float32)
        return total
    spec = mma.spec(*_unit(name))
    D = mma.gemm(
        a.values, b.values, None, spec, KOrder(promote=spec.k), scale_a=a.scales, scale_b=b.scales, device=device
    )
    return np.asarray(D * (np.float64(a.tensor_scale) * np.float64(b.tensor_scale)), np.float32)


def _products(words: int) -> int:
    return words * (words + 1) // 2


_runs = runs_by("from", "data")


def draw(rows: list[Row]) -> Any:
    image, axes = plotting.figure(1, 2, height=4.3, share_y=True)
    counts = [1, 3, 6, 10, 15, 21, 28, 36, 45]
    for axis, data in zip(axes.flat, _OPERANDS, strict=True):
        for name, look in LOOK.items():
            own = counts[: _WORDS[name]]
            plotting.band(axis, own, [_runs(rows, name, data, f"{n} products") for n in own], look)
        for name, (count, marker) in _OTHERS.items():
            error = float(np.median(_runs(rows, name, data, "error")))
            axis.plot(count, error, marker, color=plotting.BLACK, markersize=6, label=name)
        axis.axhline(
            np.median(_runs(rows, "sgemm", data, "error")), color=plotting.BLACK, linestyle="--", linewidth=0.8
        )
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(counts, map(str, counts))
        axis.minorticks_off()
    for axis in axes.flat:
        axis.set_ylabel("relative $L_2$ error")
    axes.flat[-1].set_xlabel("products of words")
    plotting.panel_titles(axes, ["normal", "exponents over 17 binades"])
    plotting.legend_below(image, axes.flat[0], 3, in_legend(rows))
    return image


def _needed(rows: list[Row], name: str, data: str) -> int | None:
    """Return the smallest number of products whose mean error is at most SGEMM's."""
    limit = float(np.mean(_runs(rows, "sgemm", data, "error")))
    counts = [_products(w) for w in range(1, _WORDS[name] + 1)]
    return next((n for n in counts if np.mean(_runs(rows, name, data, f"{n} products")) <= limit), None)


def measures(rows: list[Row]) -> Iterator[Measure]:
    for name, look in LOOK.items():
        for data in _OPERANDS:
            needed = _needed(rows, name, data)
            yield Measure("products_over_fp16", (needed or np.inf) / _FP16_PRODUCTS, variant=f"{look.label}, {data}")


def finding(rows: list[Row]) -> str:
    def needed(data: str) -> dict[str, str]:
        found = {look.label: _needed(rows, name, data) for name, look in LOOK.items()}
        return {name: f"{n} ({n / _FP16_PRODUCTS:.1f})" if n else "none" for name, n in found.items()}

    errors = {name: float(np.mean(_runs(rows, name, "normal", "error"))) for name in [*_OTHERS, "sgemm"]}
    return paragraph(
        (
            "products of words for the error of SGEMM on normal operands, and in brackets the unit's speed relative to"
            " FP16's above which they take less time than three FP16 products",
            needed("normal"),
        ),
        ("with exponents spread over 17 binades", needed("exponents")),
        ("the errors of the other schemes on normal operands are", errors),
    )


PAGE = Page(
    "No paper",
    CAPTION,
    ASSUMPTIONS,
    cells,
    evaluate,
    draw,
    measures,
    finding,
    specs=[_unit(name) for name in LOOK if name != "mxint8"],
)
