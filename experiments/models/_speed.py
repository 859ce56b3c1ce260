"""Bounds on speed over n and break-even sizes of a scheme on a GPU, shared by the two roofline pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from fpemu import plotting, roofline
from fpemu.plotting import Series
from fpemu.schemes import build
from fpemu.schemes.split_scheme import SplitScheme

from .._rows import Row

SIZES = tuple(2**i for i in range(7, 16))
LARGEST = 2**15
SLICED = ("ozaki", "ozimmu", "ozaki2")
"""The schemes whose operands may be fp32 or fp64."""


def evaluate(cell: Row) -> dict[str, float]:
    """Operations a second of the emulated format by n ("at n"), and the share of time of the matrix unit at n = 8192
    ("busy"). Against the native product: the smallest n from which the scheme is faster ("from", 0: none), the same
    with the split fused ("fused from"; as "from" where it cannot be), the ratio of times at the largest n ("ratio").
    """
    gpu, name = cell["gpu"], cell["scheme"]
    options = {"precision": cell["precision"]} if name in SLICED else {}
    numbers = {}
    for n in SIZES:
        numbers[f"at {n}"] = roofline.time(roofline.work(name, gpu, n, n, n, **options), gpu).flops
    numbers["busy"] = roofline.time(roofline.work(name, gpu, 8192, 8192, 8192, **options), gpu).share
    even = roofline.break_even(name, gpu, largest=LARGEST, **options)
    numbers |= {"from": float(even.n or 0), "ratio": even.ratio}
    scheme = build(name, options)
    fusible = isinstance(scheme, SplitScheme) and scheme.plan().join != "as-run"
    fused = roofline.break_even(name, gpu, largest=LARGEST, split="fused", **options) if fusible else even
    return numbers | {"fused from": float(fused.n or 0)}


def name_of(row: Row) -> str:
    """The scheme of a row, and its operands where they are not its usual ones."""
    unusual = row["scheme"] in SLICED and row["precision"] == "fp32"
    return f"{row['scheme']} (fp32)" if unusual else str(row["scheme"])


def of(rows: list[Row], gpu: str, scheme: str) -> dict[str, Any] | None:
    """The row of a GPU and a scheme."""
    return next((row for row in rows if row["gpu"] == gpu and name_of(row) == scheme), None)


def draw(rows: list[Row], gpus: Sequence[str], look: Mapping[str, Series], native: str, height: float) -> Any:
    """A panel of speeds for each of seven GPUs, and one of break-even sizes."""
    fmt = {"sgemm": "FP32", "dgemm": "FP64"}[native]
    figure, axes = plotting.figure(2, 4, height=height, share_y=False)
    selected = [gpu for gpu in gpus if any(row["gpu"] == gpu for row in rows)]
    shown = {}
    for axis, gpu in zip(axes.ravel(), selected, strict=False):
        for name, series in look.items():
            row = of(rows, gpu, name)
            if row is not None:
                shown[gpu, name] = row
                axis.plot(SIZES, [row[f"at {n}"] / 1e12 for n in SIZES], **series.line())
    speeds = [row[f"at {n}"] / 1e12 for row in shown.values() for n in SIZES]
    for axis in axes.ravel()[:7]:
        axis.set_yscale("log")
        if speeds:
            axis.set_ylim(min(speeds) / 1.5, max(speeds) * 1.5)
    last = axes[-1, -1]
    others = [name for name in look if name != native]
    for number, name in enumerate(others):
        for which, filled, size in (("fused from", False, 5.0), ("from", True, 2.8)):
            chosen = [
                (selected.index(gpu), row) for (gpu, scheme), row in shown.items() if scheme == name and row[which]
            ]
            chosen = [(at, row) for at, row in chosen if filled or row[which] != row["from"]]
            heights = [at + 0.8 * ((number + 0.5) / len(others) - 0.5) for at, _ in chosen]
            mark = Series("", look[name].color, look[name].marker, "", filled)
            last.plot([row[which] for _, row in chosen], heights, **mark.line(markersize=size))
    last.set_yticks(range(len(selected)), [gpu.replace("Ascend ", "") for gpu in selected])
    last.set_ylim(len(selected) - 0.4, -0.6)
    ticks = [2**i for i in range(6, 16)]
    for axis in axes[0]:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(n) if n in ticks[::3] else "" for n in ticks])
        axis.tick_params(axis="x", which="minor", bottom=False)
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s")
    for axis in axes[-1]:
        axis.set_xlabel("$n$")
    plotting.panel_titles(axes, [*selected, *[""] * (7 - len(selected)), "break-even"])
    title = f"n×n×n, bound on the effective {fmt} throughput, $2n^3$ / time"
    if any(row["fused from"] != row["from"] for row in rows):
        title += "\n(h) filled: split in a separate kernel, open: fused"
    plotting.legend_below(figure, axes, 2, title)
    return figure
