"""Batch invariance of cuBLAS's products in the layers of three models, and the time of products with a fixed order.

The record beside this module has, for each layer, type and number of rows M, the classes of rows of D with equal bits
for equal rows of A, and the times of products of several kernels. It was measured on one H200.
"""

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, size_axis

TYPES = ("bf16", "fp16", "e4m3", "tf32", "fp32")
MODELS = {"Llama-3-8B": plotting.BLUE, "Llama-3-70B": plotting.GREEN, "DeepSeek-V3": plotting.ORANGE}
KERNELS = {
    "triton 128x128x64": Series("Triton, tiles of 128 × 128 × 64", plotting.BLUE, "o"),
    "triton 64x64x64": Series("Triton, tiles of 64 × 64 × 64", plotting.SKY, "v", "--"),
    "fpemu one chain": Series("fpemu, one chain", plotting.VERMILION, "s"),
    "fpemu split 1024": Series("fpemu, slices of 1024", plotting.ORANGE, "^", "--"),
}
"""Kernels with one summation order for every M."""


@functools.cache
def _record() -> tuple[str, dict[str, Any]]:
    """The digest of the record, and the record."""
    data = Path(__file__).with_name("h200_invariance.json").read_bytes()
    return hashlib.sha256(data).hexdigest()[:12], json.loads(data)


def _provenance() -> str:
    about = _record()[1]["about"]
    return f"Measured on one {about['gpu']} (PyTorch {about['torch']}, cuBLAS {about['cublas']}), November 2026."


CAPTION = f"""(a) Share of the linear layers of three models whose product by cuBLAS (torch.mm, torch._scaled_mm for
e4m3) is batch-invariant: for equal rows of A all rows of D have equal bits, for {len(_record()[1]["m"])} numbers of
rows M from 1 to 4096. (b) Time relative to torch.mm of fp16 products M × 4096 × 4096 with one summation order for
every M. fpemu's kernel reads fp32 and rounds it to fp16. The data have both for all layers and for two more
shapes. {_provenance()}"""
ASSUMPTIONS = [
    """The numbers of rows are the powers of 2 and 63 random ones. A change between them may be missed.""",
    """The layers are those of one block and the head, each once, with gate and up, and with q, k and v, as one
    product. DeepSeek-V3 has e4m3 products with scales of blocks; here they have one scale.""",
    """Times are medians of 30 calls by CUDA events, with the L2 cache overwritten before each call. Calls include the
    host's part of the launch where the GPU would wait for it.""",
]


def cells() -> Iterator[Row]:
    digest, record = _record()
    for layer in record["layers"]:
        place = {name: layer[name] for name in ("type", "model", "layer", "N", "K")}
        yield {"kind": "layer", **place, "M": max(record["m"]), "record": digest}
    for row in record["price"]:
        for kernel in ("torch.mm fp16", *KERNELS):
            place = {"type": "fp16", "model": "", "layer": kernel, "N": row["N"], "K": row["K"], "M": row["M"]}
            yield {"kind": "time", **place, "record": digest}


def evaluate(cell: Row) -> dict[str, float]:
    """Return the number of orders and the first M with another one, or the time in microseconds and its ratio."""
    record = _record()[1]
    if cell["kind"] == "time":
        row = next(r for r in record["price"] if all(r[name] == cell[name] for name in ("M", "N", "K")))
        time = row[cell["layer"]]
        return {"time_us": time, "ratio": time / row["torch.mm fp16"]}
    layer = next(x for x in record["layers"] if all(x[name] == cell[name] for name in ("type", "model", "layer")))
    orders = 1 + max(n for seen in layer["classes"] for n in seen)
    first = next((m for m, seen in zip(record["m"], layer["classes"], strict=True) if seen != [0]), None)
    return {"orders": float(orders)} | ({} if first is None else {"first_change": float(first)})


def _share(rows: list[Row], kind: str, model: str) -> float:
    orders = [row["orders"] for row in rows if row["kind"] == "layer" and (row["type"], row["model"]) == (kind, model)]
    return sum(n == 1 for n in orders) / len(orders)


def _line(rows: list[Row], kernel: str, N: int = 4096, K: int = 4096) -> dict[int, float]:
    some = [row for row in rows if row["kind"] == "time" and (row["layer"], row["N"], row["K"]) == (kernel, N, K)]
    return {row["M"]: row["ratio"] for row in sorted(some, key=lambda row: int(row["M"]))}


def draw(rows: list[Row]) -> Any:
    image, axes = plotting.figure(1, 2, height=4.6, share_x=False, share_y=False)
    share, price = axes[:, 0]
    for i, (model, color) in enumerate(MODELS.items()):
        places = [n + 0.27 * (i - 1) for n in range(len(TYPES))]
        share.bar(places, [_share(rows, kind, model) for kind in TYPES], 0.25, color=color, label=model)
    share.set_xticks(range(len(TYPES)), TYPES)
    share.set(ylabel="share of invariant layers", ylim=(0, 1.05))
    share.legend()
    for kernel, look in KERNELS.items():
        line = _line(rows, kernel)
        price.plot(list(line), list(line.values()), **look.line(label=look.label))
    price.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    size_axis(price, sorted(_line(rows, "fpemu one chain")))
    price.set(xlabel="$M$", ylabel="time / torch.mm", ylim=(0, None))
    price.legend()
    plotting.panel_titles(axes, ["batch invariance of cuBLAS", "price of one order"])
    return image


def measures(rows: list[Row]) -> Iterator[Measure]:
    for N, K in sorted({(row["N"], row["K"]) for row in rows if row["kind"] == "time"}):
        line = _line(rows, "fpemu one chain", N, K)
        yield Measure("price_of_one_order", line[max(line)], variant=f"{max(line)} × {N} × {K}")
    for model in MODELS:
        yield Measure("not_invariant", _share(rows, "bf16", model), variant=model)


def finding(rows: list[Row]) -> str:
    changes = {f"{row['model']}, {row['layer']}": row.get("first_change", 0.0) for row in rows
               if row["kind"] == "layer" and row["type"] == "bf16" and row["orders"] > 1}  # fmt: skip
    return paragraph(
        *((f"share of invariant layers in {kind}", {m: _share(rows, kind, m) for m in MODELS}) for kind in TYPES),
        ("in bf16 the orders change at M =", changes),
        *((f"time of {look.label} / torch.mm", {f"M = {m}": x for m, x in _line(rows, kernel).items()})
          for kernel, look in KERNELS.items()),
    )  # fmt: skip


PAGE = Page("No paper", CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
