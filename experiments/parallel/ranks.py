"""Error and changed bits of a row-parallel linear layer over the number of GPUs.

K is divided among the GPUs. Each multiplies its part by one chain of an H200's instructions; the partial products are
rounded to the format of the layer, or to fp32, and added by NCCL's ring.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import formats, inputs, library, metrics, mma, plotting, reference, round_to
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, runs_by

CAPTION = """A linear layer in bf16 and fp16 with K divided among 1 to 8 GPUs, for the K of the output projection of
Llama-3-8B (4096) and of the down projection of Llama-3-70B (28672): relative L2 error against the exact product, and
share of the entries whose bits differ from those of 1 GPU. The data also have K = 8192 and K = 14336. Normal
activations and weights, 32 rows and 32 columns. Solid: partial products and their sums in the format of the layer.
Dashed: in fp32, rounded at the end."""
ASSUMPTIONS = [
    """Every GPU adds its products in one ascending chain of wgmma instructions; cuBLAS may split K further.""",
    """NCCL's ring adds each chunk in another order of the ranks. 1024 entries are one message of the protocol LL on
    one channel.""",
]
LOOK = {
    ("bf16", "bf16"): Series("bf16, sums in bf16", plotting.BLUE, "o"),
    ("bf16", "fp32"): Series("bf16, sums in fp32", plotting.BLUE, "o", "--"),
    ("fp16", "fp16"): Series("fp16, sums in fp16", plotting.VERMILION, "s"),
    ("fp16", "fp32"): Series("fp16, sums in fp32", plotting.VERMILION, "s", "--"),
}
RANKS = (1, 2, 4, 8)
LENGTHS = (4096, 8192, 14336, 28672)


def cells(seeds: int = 20, M: int = 32, N: int = 32, K: tuple[int, ...] = LENGTHS) -> list[Row]:
    columns = ("K", "seed", "format", "sums", "ranks")
    points = [(k, s, *pair, r) for k in K for s in range(seeds) for pair in LOOK for r in RANKS]
    return [dict(zip(columns, point, strict=True)) | {"M": M, "N": N} for point in points]


@functools.lru_cache(maxsize=1)  # neighbouring cells share the operands
def _layer(fmt: str, M: int, N: int, K: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return activations, weights, the exact product and the layer on 1 GPU."""
    X, B = inputs.operands("normal", M, N, K, seed, fmt)
    W = np.ascontiguousarray(B.T)
    return X, W, reference.matmul(X, B), _parallel(X, W, fmt, fmt, 1)


def _parallel(X: Any, W: Any, fmt: str, sums: str, ranks: int) -> Any:
    spec = mma.spec("H200", fmt)
    ring: Any = {"partial": sums, "protocol": "LL", "channels": 1}
    D = library.parallel_linear(X, W, ranks=ranks, library=lambda a, b: mma.gemm(a, b, None, spec), **ring)
    return np.asarray(round_to(D, fmt)).astype(formats.get(fmt).dtype)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    fmt, shape = cell["format"], (cell["M"], cell["N"], cell["K"])
    X, W, exact, one = _layer(fmt, *shape, cell["seed"])
    D = _parallel(X, W, fmt, cell["sums"], cell["ranks"])
    return {"error": float(metrics.relative_l2(D, exact)), "changed": float(np.mean(one != D))}


_runs = runs_by("K", "format", "sums", "ranks")


def draw(rows: list[Row]) -> Any:
    image, axes = plotting.figure(2, 2, height=4.2, share_y="row")
    shown = [pick(row["K"] for row in rows) for pick in (min, max)]
    for column, k in enumerate(shown):
        for pair, look in LOOK.items():
            for axis, name in zip(axes[:, column], ("error", "changed"), strict=True):
                plotting.band(axis, RANKS, [_runs(rows, k, *pair, r, name) for r in RANKS], look)
        axes[0, column].set(yscale="log")
        axes[1, column].set(xlabel="GPUs")
        for axis in axes[:, column]:
            axis.set(xscale="log")
            axis.set_xticks(RANKS, map(str, RANKS))
            axis.minorticks_off()
    axes[0, 0].set_ylabel("relative $L_2$ error")
    axes[1, 0].set_ylabel("share of changed entries")
    plotting.panel_titles(axes, [f"{what}K = {k}" for what in ("", "changed, ") for k in shown])
    plotting.legend_below(image, axes[0, 0], 2, in_legend(rows))
    return image


def measures(rows: list[Row]) -> Iterator[Measure]:
    for k in sorted({row["K"] for row in rows}):
        for fmt, sums in LOOK:
            eight, one = (float(np.mean(_runs(rows, k, fmt, sums, r, "error"))) for r in (8, 1))
            name = "fp32_sums_keep" if sums == "fp32" else "narrow_sums_lose"
            yield Measure(name, eight / one, variant=f"{fmt}, K = {k}")


def finding(rows: list[Row]) -> str:
    k = max(row["K"] for row in rows)

    def by_ranks(fmt: str, sums: str, name: str) -> dict[str, float]:
        return {f"{r} GPUs": float(np.mean(_runs(rows, k, fmt, sums, r, name))) for r in RANKS[1:]}

    return paragraph(
        (f"at K = {k} the share of changed entries in bf16 is", by_ranks("bf16", "bf16", "changed")),
        ("with sums in fp32 it is", by_ranks("bf16", "fp32", "changed")),
        ("the errors with sums in bf16 are", by_ranks("bf16", "bf16", "error")),
        ("with sums in fp32 they are", by_ranks("bf16", "fp32", "error")),
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
    specs=[("H200", fmt) for fmt in ("bf16", "fp16")],
)
