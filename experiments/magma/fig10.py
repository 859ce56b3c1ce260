"""MAGMA batched, figures 10 and 11: batched HGEMM against cuBLAS over n, square and of rank 16, and the speed-up."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._shapes import BATCHED, LOOKS, RULES, cells_of, errors, evaluate, line, mean, over_powers, provenance, span
from ._errors import PAPER
from ._speed import IN_LEGEND, curve, extremes, factors, ranked, rates, speedups, square

CAPTION = f"""1000 products in a call, fp16 operands and results, sums in fp32. (a) n×n×n, (b) n×n×16, TFLOP/s; (c)
speed-up over cuBLAS, n×n×n with every n from 2 to 128, on the GPU and in a loop of calls; (d) relative L2 error of a
sample. (a) and (d) have {len(shapes.SIZES)} sizes n. Beside the default kernel of fpemu: blocks of MAGMA's design up to
n = 32 (the default above), magma-small (one thread per element, sums in fp16 and in fp32) up to 16, several products in
one instruction (section 8.1) up to 8. {provenance("magma/fig10")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """The product of cuBLAS is the strided batched product with fp32 sums; the paper measures cublasHgemmBatched on
    arrays of pointers.""",
]
WITH = ("ours", "magma", "tiny", "magma-small", "magma-small fp32")
GOAL, EIGHT, SMALL = 2.5, 8, 8
"""Goals: the geometric mean of the speed-ups over cuBLAS, and the speed-up up to which n."""
cells = cells_of("magma/fig10")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 4, height=8.6, share_y=False)
    few = [row for row in square(rows) if row["M"] in shapes.SIZES]
    rates(axes[0, 0], few, (shapes.BASE, shapes.HALF, *WITH))
    rates(axes[1, 0], ranked(rows), (shapes.BASE, "ours"))
    every, loop = speedups(square(rows)), speedups(few, what="loop")
    factors(
        axes[2, 0],
        (
            (
                {n: x for n, x in every.items() if n % 8 == 0},
                Series("(c) $n$ a multiple of 8", plotting.VERMILION, "*"),
            ),
            ({n: x for n, x in every.items() if n % 8}, Series("(c) other $n$", plotting.ORANGE, ".", "")),
            (speedups(ranked(rows)), Series("(c) $n$×$n$×16", plotting.BLUE, "*", "--")),
            ({n: x for n, x in loop.items() if n % 8 == 0}, Series("(c) in a loop", plotting.GREEN, "x", ":")),
        ),
    )
    for name in (shapes.BASE, shapes.HALF, *WITH, *shapes.OTHERS["real"]):
        curve(axes[3, 0], few, name, "relative_l2")
    axes[3, 0].set(yscale="log", ylabel="relative $L_2$ error")
    over_powers(axes, shapes.GOALS)
    plotting.panel_titles(
        axes, ["1000 products $n$×$n$×$n$", "1000 products $n$×$n$×16", "speed-up of fpemu", "error, $n$×$n$×$n$"]
    )
    plotting.legend_below(figure, axes, 2, title=IN_LEGEND)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    here = square(rows)
    every, rank = speedups(here), speedups(ranked(rows))
    for variant, of in (
        ("n×n×n", every),
        ("n×n×n, fp16 sums on both sides", speedups(here, "ours fp16", shapes.HALF)),
        ("n×n×n, blocks of MAGMA's design up to n = 32", speedups(here, "magma")),
    ):
        yield from extremes("hgemm_speedup", [x for n, x in of.items() if n >= 10], variant)
    small = [x for n, x in every.items() if n <= 100]
    for variant, values in (("n×n×n up to 100", small), ("n×n×16 up to 128", list(rank.values()))):
        if values:
            yield Measure("faster_up_to_100", min(values), variant=variant)
    large = speedups(rows, batch=shapes.LARGE_BATCH)
    for n in shapes.LARGE_SIZES:
        if n in large:
            yield Measure("multiples_of_8", large[n], variant=f"n = {n}")
            if n % 8:
                yield Measure("competitive_above_128", large[n])
    error = errors(here, "ours", shapes.BASE).values()
    if error:
        yield Measure("accuracy_like_cublas", max(error))
    goals = {
        f"{GOAL:g}× in the geometric mean of n = 2 to 128": [mean(every.values()) / GOAL] if every else [],
        f"{EIGHT}× up to n = {SMALL}": [x / EIGHT for n, x in every.items() if n <= SMALL],
        "never slower, n = 2 to 128": every.values(),
        "never slower than cuBLAS with fp16 sums": speedups(here, base=shapes.HALF).values(),
        "never slower, host's time included": speedups(here, what="loop").values(),
        "never slower, operands from memory": speedups(here, what="cold").values(),
    }
    for variant, of_goal in goals.items():
        if of_goal:
            yield Measure("hgemm_goals", min(of_goal), variant=variant)


def finding(rows: list[Row]) -> str:
    here = square(rows)
    every = speedups(here)
    if not every:
        return ""
    ends = [pick(every, key=every.__getitem__) for pick in (max, min)]
    chosen, base = line(here, "ours"), {row["M"]: row for row in line(here, shapes.BASE)}
    over = {name: speedups(here, name, "ours") for name in WITH[1:]}
    others = {f"{LOOKS[name].label}, n = {min(x)} to {max(x)}:": span(x.values()) for name, x in over.items() if x}
    small = [row for n, row in base.items() if n <= SMALL and row.get("launch_s")]
    times = [1e6 * row["seconds"] for row in small]
    goal = {"cuBLAS": times, "empty launch": 1e6 * small[0]["launch_s"], "an eighth": [t / EIGHT for t in times]}
    return paragraph(
        ("the speed-up of fpemu over cuBLAS is {}", span(every.values())),
        ("it is largest and smallest at", {f"n = {n}:": every[n] for n in ends}, ".3g×"),
        ("cuBLAS is as fast or faster at n = {}", ", ".join(str(n) for n, x in every.items() if x <= 1)),
        ("relative to the default kernel, the speeds of other kernels are", others),
        (f"the times of a call up to n = {SMALL} in µs are", goal if small else None),
        ("in a loop, including the host, the speed-up is {}", span(speedups(here, what="loop").values())),
        (
            "with operands in memory the time is {} the time with operands in the cache",
            span(r["cold"] / r["seconds"] for r in chosen if "cold" in r),
        ),
        ("the speed-up with operands in memory is {}", span(speedups(here, what="cold").values())),
        ("cuBLAS reaches these TFLOP/s", {f"n = {n}:": base[n]["rate"] for n in (64, 128) if n in base}),
        (
            "at n = 128 it reaches {} of the bandwidth of a copy",
            base[128].get("share") if 128 in base else None,
            ".3g%",
        ),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
