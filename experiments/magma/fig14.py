"""MAGMA batched, figures 14 and 15: batches of 10 and of 100 products, real and half-complex, against cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend, plain_ticks
from ..speed._shapes import (
    BATCHED,
    LOOKS,
    RULES,
    cells_of,
    compared,
    evaluate,
    line,
    multiprocessors,
    over_powers,
    ratios,
    span,
    told,
)

__all__ = ["evaluate"]

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), section 7.4, figures 14 and 15"""
EXPLAINS = ("magma/fig14",)
TITLE = "the size of the batch"
KIND = "G"
CAPTION = f"""n×n×n products, 10 (open, dotted) and 100 (filled) in a call, fp32 sums: (a) HGEMM, (b) HCGEMM, fpemu's
kernels, interleaved, against cuBLAS, planar by four calls where it is complex; (c) how many times as fast as
cuBLAS. {told("magma/fig14")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """The sizes are not printed. "Without a significant change in the relative speed-ups" is judged by their ratio
    between the two batches, within a factor of 1.5.""",
]
WHO = (shapes.BASE, "ours")
NAMES = {"real": "HGEMM", "complex": "HCGEMM"}


cells = cells_of("magma/fig14")


def _look(look: Series, batch: int) -> Series:
    few = batch == shapes.FEW[0]
    return Series(f"{look.label}, {batch}", look.color, look.marker, ":" if few else "-", filled=not few)


def _speedup(rows: list[dict[str, Any]], data: str, batch: int) -> dict[int, float]:
    ours, other = (line(rows, name, data=data, batch=batch) for name in reversed(WHO))
    return ratios(ours, other)


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.2, share_y=False)
    for axis, data in zip(axes[0], NAMES, strict=False):
        for name in WHO:
            for batch in shapes.FEW:
                points = [(row["M"], row["rate"]) for row in line(rows, name, data=data, batch=batch)]
                if points:
                    axis.plot(*zip(*points, strict=True), **_look(LOOKS[name], batch).line())
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    colours = {
        "real": Series("HGEMM over cuBLAS", plotting.BLUE, "^"),
        "complex": Series("HCGEMM over cuBLAS", plotting.PURPLE, "D"),
    }
    for data, look in colours.items():
        for batch in shapes.FEW:
            result = _speedup(rows, data, batch)
            if result:
                axes[0, 2].plot(list(result), list(result.values()), **_look(look, batch).line())
    axes[0, 2].axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    axes[0, 2].set_ylabel("times as fast as cuBLAS")
    plain_ticks(axes[0, 2])
    over_powers(axes, (8, 16, 32, 64, 128, 256))
    plotting.panel_titles(axes, ["HGEMM", "HCGEMM", "speed-up"])
    legend(figure, axes, 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    few, many = shapes.FEW
    for data, name in NAMES.items():
        for implementation in WHO:
            slow = {row["M"]: row["rate"] for row in line(rows, implementation, data=data, batch=few)}
            gain = [
                row["rate"] / slow[row["M"]]
                for row in line(rows, implementation, data=data, batch=many)
                if row["M"] in slow
            ]
            label = "cuBLAS" if implementation == shapes.BASE else "ours"
            text = f"{name}, {label}: {few} products run slower than {many}"
            yield compared(text, "slower", gain, ">", 1)
        first, second = (_speedup(rows, data, batch) for batch in shapes.FEW)
        change = [second[n] / first[n] for n in first if n in second]
        yield share(
            f"{name}: the speed-up over cuBLAS is that of the other batch",
            "no significant change",
            [1 / 1.5 <= x <= 1.5 for x in change],
            span(change),
        )
        each = [x for one in (first, second) for x in one.values()]
        yield compared(f"{name}: faster than cuBLAS, both batches", "", each, ">", 1)
    ours = {row["M"]: row["rate"] for row in line(rows, "ours", data="complex", batch=few)}
    other = {row["M"]: row["rate"] for row in line(rows, shapes.BASE, data="complex", batch=many)}
    reach = {n: ours[n] / other[n] for n in ours if n in other}
    held = [any(x >= 1 for x in reach.values())] if reach else []
    selected = ", ".join(str(n) for n, x in reach.items() if x >= 1)
    text = f"HCGEMM: {few} products of ours run at the speed of cuBLAS' {many}, at some n"
    yield share(text, "sometimes", held, f"n = {selected}" if selected else span(reach.values()))


def finding(rows: list[dict[str, Any]]) -> str:
    speeds = {
        f"{name}, {batch} products:": span(_speedup(rows, data, batch).values())
        for data, name in NAMES.items()
        for batch in shapes.FEW
    }
    few, sms = shapes.FEW[0], multiprocessors()
    slow = any(x < 1 for data in NAMES for x in _speedup(rows, data, few).values())
    selected = line(rows, "ours", data="real", batch=few)
    growth = {}
    if len(selected) > 1:
        growth = {name: selected[-1][name] / selected[0][name] for name in ("operations", "seconds")}
    return paragraph(
        ("fpemu over cuBLAS", speeds),
        (
            f"fpemu's table of kernels is of batches of {shapes.BATCH}: up to n = 128 one thread block makes a "
            f"product, and {few} of them run on {few} of {sms} multiprocessors",
            bool(sms) and slow,
        ),
        (f"growth of {few} real products from the smallest to the largest n", growth, ".3g×"),
        (
            "µs of a call",
            {f"n = {r['M']}:": 1e6 * r["seconds"] for r in selected[:: max(len(selected) - 1, 1)]} if growth else None,
        ),
        ("latency, not arithmetic, decides", bool(growth)),
    )
