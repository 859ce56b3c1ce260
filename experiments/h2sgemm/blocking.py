"""H2SGEMM, figures 10 and 11: traffic (Equation 9) and time over the sizes of the blocks and of the matrices.

All values are from a model, because no Ascend 910A is available. The traffic follows the paper; the time comes from
`model.speed`, which counts the cycles of every engine of a core for Algorithm 1 at the rates of the platform file.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import model as h2sgemm
from .model import PUBLISHED

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 4.2, figures 10 and 11"
CAPTION = """All values are from a model, and nothing is measured. (a) Words moved per multiply-add by Equation 9 (m = n
= k = 5632), the least of all blocks of a given b_m; line: f = 0.95; dotted: its optimum. (b) The largest speed of all
blocks of a given b_m, endless matrices (lines) and m = n = 5632, k = 2816 (markers), with one and two buffers of B in
L1; stars: published for (176, 64, 176). (c) The speed of the published block over m = n, k = 2816; dotted: 85.3
TFLOP/s, a third of 256."""
ASSUMPTIONS = [
    "An Ascend 910A is not available here, so every number is computed.",
    """The rates in bytes per cycle and core, the clock and the sizes are those of CANN's platform file for the 910A, as
    public tests of its operators quote it; the memory bandwidth is 1.2 TB/s (section 4). The rate of the L2 cache, 110
    bytes per cycle, is not confirmed. With 128 bytes per cycle the speed with one buffer would be 4 % higher, and the
    other speeds would not change.""",
    """By Algorithm 1 a half needs one vector instruction, and a residual needs five. With two buffers a step takes as
    long as the slowest engine. With one buffer the load of a block of B and the multiplication alternate ("each compute
    step waits for full data movement"), and the engines overlap within the load and within the multiplication. The
    paper does not state this overlap, so the page also shows the time without any overlap.""",
    """The paper does not print the sizes of figures 10 and 11. The page uses m = n = 5632 = 176·32 and k = 2816 = 64·44
    of figure 9, "matching the optimal blocking".""",
    "The model is not fitted to the published speeds.",
]
SINGLE, DOUBLE = 41.7, 65.3
"""TFLOP/s, section 4.2."""
M, K = 176 * 32, 64 * 44
LOOKS = {
    "double": Series("two buffers", plotting.BLUE, "o", "-"),
    "single": Series("one buffer", plotting.VERMILION, "s", "--"),
    "sequence": Series("nothing overlaps", plotting.GREY, "^", ":"),
}
SIDES = range(16, 513, 16)


def cells() -> list[Row]:
    sizes = [{"b_m": PUBLISHED.m, "m": m, "n": m, "k": K} for m in range(704, 16 * 1056 + 1, 704)]
    lengths = [{"b_m": PUBLISHED.m, "m": M, "n": M, "k": k} for k in (64, 256, 1024, 4096, 16384)]
    return [{"b_m": b_m, "m": M, "n": M, "k": M} for b_m in SIDES] + sizes + lengths


def evaluate(cell: Row) -> dict[str, float]:
    """For the published block: speeds in TFLOP/s, words for a multiply-add. For b_m: the best over its blocks."""
    m, n, k = (cell[side] for side in "mnk")
    numbers = {p: h2sgemm.speed(m, n, k, PUBLISHED, p) / 1e12 for p in h2sgemm.PIPELINES}
    numbers["words"] = h2sgemm.traffic(m, n, k, PUBLISHED).total / (m * n * k)
    numbers["words, whole"] = h2sgemm.traffic(m, n, k, PUBLISHED, whole=True).total / (m * n * k)
    if (m, n, k) == (M, M, M):
        some = [b for b in h2sgemm.blocks() if b.m == cell["b_m"]]
        numbers["least words"] = min(h2sgemm.traffic(m, n, k, b).total for b in some) / (m * n * k)
        for p in h2sgemm.PIPELINES:
            endless = {b: h2sgemm.steady(b, p) / 1e12 for b in some}
            here = {b: h2sgemm.speed(M, M, K, b, p) / 1e12 for b in some}
            numbers |= {f"endless {p}": max(endless.values()), f"endless {p}, worst": min(endless.values())}
            numbers |= {f"best {p}": max(here.values()), f"published {p}": h2sgemm.steady(PUBLISHED, p) / 1e12}
            best = max(here, key=lambda b: here[b])
            numbers |= {f"best {p} b_k": float(best.k), f"best {p} b_n": float(best.n)}
        numbers |= {
            f"{part}, {name}": value
            for part in h2sgemm.VECTOR
            for name, value in h2sgemm.cycles(PUBLISHED, part).items()
        }
    return {name: float(value) for name, value in numbers.items()}


def _sides(rows: list[Row]) -> list[Row]:
    return sorted((row for row in rows if (row["m"], row["k"]) == (M, M)), key=lambda row: row["b_m"])


def _sizes(rows: list[Row]) -> list[Row]:
    return sorted((row for row in rows if row["k"] == K), key=lambda row: row["m"])


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.6, share_x=False, share_y=False)
    traffic, blocks, sizes = axes[:, 0]
    sides = _sides(rows)
    b = np.array([row["b_m"] for row in sides])
    fine = np.linspace(16, 512, 300)
    l1, cores = 0.95 * h2sgemm.ASCEND_910A.numbers, h2sgemm.ASCEND_910A.cores
    curve = {"color": plotting.BLACK, "label": "Eq. 9, $f$ = 0.95"}
    traffic.plot(fine, 1e3 * (1 / M + 1 / (cores * fine) + 2 * fine / l1), **curve)
    dots = {"color": plotting.GREEN, "label": "Eq. 9, least of all blocks", "markersize": 3}
    traffic.plot(b, [1e3 * row["least words"] for row in sides], "o", **dots)
    best = h2sgemm.optimal_bm(0.95)
    traffic.axvline(best, color=plotting.GREY, linestyle=":", linewidth=0.9)
    traffic.annotate(f"optimum {best:.0f}", (best, 2.05), xytext=(3, 0), textcoords="offset points")
    star = {"color": plotting.YELLOW, "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 5}
    star["label"] = "published, block (176, 64, 176)"
    if sides:
        traffic.plot([PUBLISHED.m], [1e3 * sides[0]["words"]], "*", **star)
    traffic.set(ylim=(0.6, 2.3), xlabel="$b_m$", ylabel="words per multiply-add, $10^{-3}$")
    for pipeline, look in LOOKS.items():
        values = [row[f"endless {pipeline}"] for row in sides]
        blocks.plot(b, values, **look.line(marker="", label="_"))
        best_here = [row[f"best {pipeline}"] for row in sides]
        blocks.plot(b, best_here, **look.line(linestyle="", label="_", markersize=3))
        line = [row[pipeline] for row in _sizes(rows)]
        sizes.plot([row["m"] for row in _sizes(rows)], line, **look.line())
    for value in (SINGLE, DOUBLE):
        blocks.plot(PUBLISHED.m, value, "*", **star)
    for axis in (blocks, sizes):
        axis.axhline(256 / 3, color=plotting.BLACK, linestyle=":", linewidth=0.9, label="a third of 256 TFLOP/s")
        axis.set(ylim=(0, 92), ylabel="TFLOP/s (2$mnk$ / time)")
    blocks.set_xlabel("$b_m$; lines: endless, markers: $m = n$ = 5632, $k$ = 2816")
    sizes.set_xlabel("$m = n$, $k$ = 2816")
    sizes.set_xticks(range(0, 16897, 5632))
    plotting.panel_titles(
        axes, ["traffic, $m = n = k$ = 5632", "speed by the model", "speed by the model, (176, 64, 176)"]
    )
    plotting.legend_below(figure, axes, 2)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    sides = _sides(rows)
    some = sides[0]
    for variant, pipeline, published in (("one buffer", "single", SINGLE), ("two buffers", "double", DOUBLE)):
        yield Measure("model_explains_speed", published / some[f"published {pipeline}"], variant=variant)
    gain = some["published double"] / some["published single"]
    yield Measure("model_explains_speed", DOUBLE / SINGLE / gain, variant="two buffers over one")
    yield Measure("model_has_slow_small_blocks", max(row["endless double"] for row in sides) / some["endless double"])
    best = max(row["endless double"] for row in sides)
    yield Measure("published_block_is_best", some["published double"] / best, variant="large matrices")
    best = max(row["best double"] for row in sides)
    yield Measure("published_block_is_best", h2sgemm.speed(M, M, K) / 1e12 / best, variant="m = n = 5632, k = 2816")


def finding(rows: list[Row]) -> str:
    sides = _sides(rows)
    if len(sides) < 12:
        return ""
    row = sides[0]
    cycles = {
        part: {name.split(", ", 1)[1]: value for name, value in row.items() if name.startswith(f"{part}, ")}
        for part in h2sgemm.VECTOR
    }
    slowest = {part: max(times.items(), key=lambda item: item[1]) for part, times in cycles.items()}
    least = min(sides, key=lambda r: r["least words"])
    endless, here = (max(sides, key=lambda r, n=name: r[f"{n} double"]) for name in ("endless", "best"))  # type: ignore[misc]
    idle = [r["double"] for r in _sizes(rows) if r["m"] % M]
    published = {"two buffers": DOUBLE / row["published double"], "one buffer": SINGLE / row["published single"]}
    speeds = {look.label: row[f"published {pipeline}"] for pipeline, look in LOOKS.items()}
    return paragraph(
        (f"the cube unit takes {{}} cycles for a step of {PUBLISHED}", cycles["A B"]["cube"], ".0f"),
        (
            "the slowest engines take these numbers of cycles",
            {f"{part}, {engine}:": x for part, (engine, x) in slowest.items()},
            ".0f",
        ),
        (f"by the model, {PUBLISHED} reaches these TFLOP/s on endless matrices", speeds),
        ("at m = n = 5632 it reaches {} TFLOP/s with two buffers", h2sgemm.speed(M, M, K) / 1e12),
        ("the published speeds divided by the modelled speeds are", published, ".2g%"),
        ("the vector unit, which computes the residual of B for every row of blocks, limits the speed", True),
        ("by Equation 9 the traffic is smallest for b_m = {}", least["b_m"]),
        (f"the traffic of {PUBLISHED} is {{}} the smallest", row["words"] / least["least words"], ".3g×"),
        ("the fastest b_m are", {"endless matrices": endless["b_m"], "m = 5632": here["b_m"]}),
        ("the first of these reaches {} TFLOP/s", endless["endless double"]),
        ("where 5632 does not divide m and cores are idle, the smallest speed is {} TFLOP/s", min(idle, default=None)),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
