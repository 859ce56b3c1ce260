"""MAGMA batched, figures 10 and 11: batched HGEMM against cuBLAS over n, square and of rank 16, and the speed-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
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
    errors,
    evaluate,
    line,
    mean,
    over_powers,
    plot,
    ratios,
    reaches,
    span,
    told,
)

__all__ = ["evaluate"]

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), section 7.2, figures 10 and 11"""
EXPLAINS = ("magma/fig10",)
TITLE = "batched HGEMM over n, against cuBLAS"
KIND = "G"
CAPTION = f"""1000 products in a call, fp16 operands and results, sums in fp32. (a) n×n×n, (b) n×n×16, TFLOP/s; (c) how
many times as fast as cuBLAS, n×n×n with every n from 2 to 128, on the GPU and in a loop of calls; (d) relative L2 error
of a sample. In (a) and (d) n is one of {len(shapes.SIZES)}. Beside what fpemu chooses: blocks of MAGMA's design up to
n = 32 (beyond they are what it chooses), magma-small (one thread an element, sums in fp16, and in fp32) up to 16,
several products in one instruction (section 8.1) up to 8.
{told("magma/fig10")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """cuBLAS is its strided batched product, with fp32 sums; the paper's is cublasHgemmBatched, on arrays of pointers.
    Where both sides add in fp16 a claim says so.""",
]
WITH = ("ours", "magma", "tiny", "magma-small", "magma-small fp32")
GOAL, EIGHT, SMALL = 2.5, 8, 8
"""The speed-up over cuBLAS that is aimed at in the geometric mean, and up to which n how much."""


cells = cells_of("magma/fig10")


def _square(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["M"] == row["K"] <= shapes.LARGEST["real"]]


def _ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["K"] == shapes.RANK]


def speedups(rows: list[dict[str, Any]], what: str = "seconds") -> dict[int, float]:
    """What fpemu chooses over cuBLAS, by n."""
    return ratios(line(rows, "ours"), line(rows, shapes.BASE), what=what)


def _slowest(square: dict[int, float], count: int = 4) -> list[int]:
    """The sizes of the smallest speed-ups."""
    return sorted(sorted(square, key=square.__getitem__)[:count])


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.2, share_y=False)
    few = [row for row in _square(rows) if row["M"] in shapes.SIZES]
    for axis, some, shown in zip(axes[0], (few, _ranked(rows)), (WITH, WITH[:1]), strict=True):
        for name in (shapes.BASE, *((shapes.HALF,) if len(shown) > 1 else ()), *shown):
            plot(axis, line(some, name), "rate", "M", LOOKS[name])
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    below = axes[1, 0]
    square, ranked, loop = speedups(_square(rows)), speedups(_ranked(rows)), speedups(few, "loop")
    for points, label, look in (
        ({n: x for n, x in square.items() if n % 8 == 0}, "fpemu, n a multiple of 8", (plotting.VERMILION, "*", "-")),
        ({n: x for n, x in square.items() if n % 8}, "fpemu, other n", (plotting.ORANGE, ".", "")),
        (ranked, "fpemu, n×n×16", (plotting.SKY, "*", "-")),
        ({n: x for n, x in loop.items() if n % 8 == 0}, "in a loop, n a multiple of 8", (plotting.BLUE, "x", ":")),
    ):
        if points:
            style = plotting.Series(label.replace(" n", " $n$").replace("×n", "×$n$"), *look)
            below.plot(list(points), list(points.values()), **style.line(markersize=5))
    below.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    below.set_ylabel("times as fast as cuBLAS")
    plain_ticks(below)
    for name in (shapes.BASE, shapes.HALF, *WITH, *shapes.OTHERS["real"]):
        plot(axes[1, 1], line(few, name), "relative_l2", "M", LOOKS[name])
    axes[1, 1].set_yscale("log")
    axes[1, 1].set_ylabel("relative L2 error")
    over_powers(axes, shapes.GOALS)
    plotting.panel_titles(axes, ["$n$×$n$×$n$", "$n$×$n$×16", "speed-up", "error, $n$×$n$×$n$"])
    legend(figure, axes, 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    square, ranked = speedups(_square(rows)), speedups(_ranked(rows))
    fast = ratios(line(_square(rows), "ours"), line(_square(rows), shapes.HALF))
    half = ratios(line(_square(rows), "ours fp16"), line(_square(rows), shapes.HALF))
    alone = ratios(line(_square(rows), "magma"), line(_square(rows), shapes.BASE))
    yield from [
        reaches(
            "speed-up over cuBLAS, n×n×n, n = 10 to 128 (figure 11)",
            1.5,
            2.8,
            [x for n, x in square.items() if n >= 10],
        ),
        reaches("the same, fp16 sums on both sides", 1.5, 2.8, [x for n, x in half.items() if n >= 10]),
        reaches("the same, blocks of MAGMA's design, n = 10 to 32", 1.5, 2.8, [x for n, x in alone.items() if n >= 10]),
        share(
            "n×n×n: faster than cuBLAS up to n = 100",
            "sizes up to 100",
            [x > 1 for n, x in square.items() if n <= 100],
            span(x for n, x in square.items() if n <= 100),
        ),
        compared("n×n×16: faster than cuBLAS up to n = 128", "sizes up to 128", ranked.values(), ">", 1),
        share(
            "faster than cuBLAS at every n that is measured, 2 to 128",
            "",
            [x > 1 for x in square.values()],
            f"{span(square.values())}; least at n = {', '.join(map(str, _slowest(square)))}" if square else "",
        ),
        share(
            f"{GOAL:g} times as fast as cuBLAS in the geometric mean of the n that are measured, 2 to 128",
            "",
            [mean(square.values()) >= GOAL] if square else [],
            f"{mean(square.values()):.3g}×, {len(square)} sizes of {len(shapes.EVERY)}",
        ),
        compared("faster than cuBLAS with fp16 sums, which are less accurate", "", fast.values(), ">", 1),
        share(
            f"{EIGHT} times as fast as cuBLAS up to n = {SMALL}",
            "",
            [x >= EIGHT for n, x in square.items() if n <= SMALL],
            ", ".join(f"{x:.3g}× at {n}" for n, x in square.items() if n <= SMALL),
        ),
    ]
    loop, cold = (speedups(_square(rows), what) for what in ("loop", "cold"))
    yield from [
        compared(
            "in a loop, the host's time included: faster than cuBLAS at every n that is measured, 2 to 128",
            "",
            loop.values(),
            ">",
            1,
        ),
        share(
            "operands from memory: faster than cuBLAS",
            "",
            [x > 1 for x in cold.values()],
            ", ".join(f"{x:.3g}× at {n}" for n, x in cold.items()),
        ),
    ]
    far = ratios(line(rows, "ours", batch=shapes.BEYOND_BATCH), line(rows, shapes.BASE, batch=shapes.BEYOND_BATCH))
    even, odd = shapes.BEYOND
    many = f"{shapes.BEYOND_BATCH} products of n ="
    yield share(
        f"{many} {even}: slower than cuBLAS",
        "2.3× slower",
        [far[even] < 1] if even in far else [],
        span([1 / far[even]] if even in far else []),
    )
    yield share(
        f"{many} {odd}, no multiple of 8: no slower than cuBLAS",
        "3 % faster",
        [far[odd] >= 1] if odd in far else [],
        span([far[odd]] if odd in far else []),
    )
    ratio = errors(_square(rows), "ours", shapes.BASE).values()
    yield share(
        "fp32 sums: no less accurate than cuBLAS by more than 1 %",
        "",
        [x <= 1.01 for x in ratio],
        f"{max(ratio, default=float('nan')):.4g} times its error at most",
    )


def finding(rows: list[dict[str, Any]]) -> str:
    square = speedups(_square(rows))
    if not square:
        return ""
    ends = [pick(square, key=square.__getitem__) for pick in (max, min)]
    chosen, base = line(_square(rows), "ours"), {row["M"]: row for row in line(_square(rows), shapes.BASE)}
    others = {}
    for name in WITH[1:]:
        over = ratios(line(_square(rows), name), chosen)
        if over:
            others[f"{LOOKS[name].label}, n = {min(over)} to {max(over)}:"] = span(over.values())
    small = [row for n, row in base.items() if n <= SMALL and row.get("launch_s")]
    times = [1e6 * row["seconds"] for row in small]
    goal = {"cuBLAS": times, "empty launch": 1e6 * small[0]["launch_s"], "an eighth": [t / EIGHT for t in times]}
    large = {f"n = {n}:": base[n]["rate"] for n in (64, 128)} if {64, 128} <= set(base) else {}
    return paragraph(
        ("fpemu over cuBLAS", span(square.values())),
        ("most and least", {f"n = {n}:": square[n] for n in ends}, ".3g×"),
        ("cuBLAS is as fast or faster at n =", ", ".join(str(n) for n, x in square.items() if x <= 1)),
        ("speed over that of fpemu's choice", others),
        (f"µs of a call up to n = {SMALL}", goal if small else None),
        (
            "in a loop, host included: least µs of a call",
            min((1e6 * r["loop"] for r in chosen if "loop" in r), default=None),
        ),
        ("over cuBLAS", span(speedups(_square(rows), "loop").values())),
        (
            "operands from memory: time over that from the cache",
            span(r["cold"] / r["seconds"] for r in chosen if "cold" in r),
        ),
        ("over cuBLAS", span(speedups(_square(rows), "cold").values())),
        ("TFLOP/s of cuBLAS", large),
        ("its share of a copy's bandwidth at n = 128", base[128].get("share") if large else None, ".3g%"),
    )
