"""H2SGEMM, figures 10 and 11: traffic (Equation 9) and time over the sizes of the blocks and of the matrices.

A model only: no Ascend 910A is here. The traffic is the paper's; the time is that of `model.speed`,
which counts the cycles of every engine of a core for Algorithm 1 at the rates of the maker's platform file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from . import model as h2sgemm
from .model import PUBLISHED

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 4.2, figures 10 and 11"
TITLE = "traffic and speed over the sizes of blocks and matrices, by the model"
KIND = "M"
EXPLAINS = ("h2sgemm/blocking",)
CAPTION = """A model, nothing measured. (a) Words moved for a multiply-add by Equation 9 (m = n = k = 5632), the least
of all blocks of a given b_m; line: f = 0.95; dotted: its optimum. (b) The largest speed of all blocks of a given b_m,
endless matrices (lines) and m = n = 5632, k = 2816 (markers), with one and two buffers of B in L1; stars: published for
(176, 64, 176). (c) The speed of the published block over m = n, k = 2816; dotted: 85.3 TFLOP/s, a third of 256."""
ASSUMPTIONS = [
    "Hardware that nobody here has (Ascend 910A): all is computed.",
    """Rates in bytes a cycle of a core, clock and sizes: CANN's platform file for the 910A, as public tests of its
    operators quote it; memory: 1.2 TB/s (section 4). One rate is not confirmed, 110 bytes a cycle from the L2 cache:
    with 128 the speed with one buffer would be 4 % higher, the others the same.""",
    """Vector instructions by Algorithm 1: one for a half, five for a residual. Two buffers: a step takes as long as the
    slowest engine. One buffer: loading a block of B and multiplying take turns ("each compute step waits for full data
    movement"), engines overlap on each side; the paper does not say the latter, and nothing overlaps is shown
    beside.""",
    """The sizes of figures 10 and 11 are not printed. m = n = 5632 = 176·32 and k = 2816 = 64·44 are those of figure 9,
    "matching the optimal blocking".""",
    """A published speed, or factor between two, agrees if it is within 10 % of the model's for endless matrices;
    nothing in the model was fitted to one. A block is the best if no other is faster by 1 %.""",
]
SINGLE, DOUBLE = 41.7, 65.3
"""TFLOP/s, section 4.2."""
M, K = 176 * 32, 64 * 44
LOOKS = {
    "double": Series("two buffers", plotting.BLUE, "o"),
    "single": Series("one buffer", plotting.VERMILION, "s"),
    "sequence": Series("nothing overlaps", plotting.GREY, "^"),
}
SIDES = range(16, 513, 16)


def cells(size: str) -> list[dict[str, Any]]:
    step = 704 if size == "full" else 1408
    sizes = [{"b_m": PUBLISHED.m, "m": m, "n": m, "k": K} for m in range(step, 16 * 1056 + 1, step)]
    lengths = [{"b_m": PUBLISHED.m, "m": M, "n": M, "k": k} for k in (64, 256, 1024, 4096, 16384)]
    return [{"b_m": b_m, "m": M, "n": M, "k": M} for b_m in SIDES] + sizes + lengths


def evaluate(cell: dict[str, Any]) -> dict[str, float]:
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
        numbers["optimum"] = _optimum(m, n, k)
    return {name: float(value) for name, value in numbers.items()}


def _optimum(m: int, n: int, k: int) -> float:
    """b_m of the least traffic by Equation 9, found numerically, at the f of b_k = 64, b_n = 176 without the floor."""
    from scipy.optimize import minimize_scalar

    l1, cores = h2sgemm.ASCEND_910A.numbers, h2sgemm.ASCEND_910A.cores
    kept = l1 - 2 * PUBLISHED.k * PUBLISHED.n  # f L1
    result = minimize_scalar(
        lambda b: m * k + m * k * n / (cores * b) + 2 * m * k * n * b / kept,
        bounds=(16, 1024),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(result.x)


def _sides(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((row for row in rows if (row["m"], row["k"]) == (M, M)), key=lambda row: row["b_m"])


def _sizes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((row for row in rows if row["k"] == K), key=lambda row: row["m"])


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, height=2.9, share_y=False)
    traffic, blocks, sizes = axes[0]
    sides = _sides(rows)
    b = np.array([row["b_m"] for row in sides])
    fine = np.linspace(16, 512, 300)
    l1, cores = 0.95 * h2sgemm.ASCEND_910A.numbers, h2sgemm.ASCEND_910A.cores
    traffic.plot(fine, 1e3 * (1 / M + 1 / (cores * fine) + 2 * fine / l1), color=plotting.BLACK, label="_f")
    traffic.plot(
        b, [1e3 * row["least words"] for row in sides], "o", color=plotting.GREEN, label="_words", markersize=3
    )
    best = h2sgemm.optimal_bm(0.95)
    traffic.axvline(best, color=plotting.GREY, linestyle=":", linewidth=0.9)
    traffic.annotate(f"{best:.0f}", (best, 2.05), xytext=(3, 0), textcoords="offset points", fontsize=7)
    here = [1e3 * row["words"] for row in sides[:1]]
    traffic.plot(
        [PUBLISHED.m] * len(here),
        here,
        "*",
        color=plotting.VERMILION,
        markersize=9,
        markeredgecolor="black",
        markeredgewidth=0.5,
    )
    traffic.set(ylim=(0.6, 2.3), xlabel="$b_m$", ylabel="words a multiply-add, $10^{-3}$")
    for pipeline, look in LOOKS.items():
        values = [row[f"endless {pipeline}"] for row in sides]
        blocks.plot(b, values, color=look.color, label="_endless")
        best_here = [row[f"best {pipeline}"] for row in sides]
        blocks.plot(b, best_here, **look.line(linestyle="", label="_here", markersize=3))
        line = [row[pipeline] for row in _sizes(rows)]
        sizes.plot([row["m"] for row in _sizes(rows)], line, **look.line())
    for value in (SINGLE, DOUBLE):
        blocks.plot(PUBLISHED.m, value, "*", color="white", markersize=10, markeredgecolor="black", zorder=5)
    for axis in (blocks, sizes):
        axis.axhline(256 / 3, color=plotting.BLACK, linestyle=":", linewidth=0.9)
        axis.set(ylim=(0, 92), ylabel="TFLOP/s (fp32-equivalent)")
    blocks.set_xlabel("$b_m$")
    sizes.set_xlabel("$m = n$")
    sizes.set_xticks(range(0, 16897, 5632))
    plotting.panel_titles(axes, ["traffic, Eq. 9", "speed over the block", "speed over the matrix"])
    plotting.legend_below(figure, sizes, 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    sides = _sides(rows)
    some = sides[:1]
    optimum = [row["optimum"] for row in some]
    formula = h2sgemm.optimal_bm(1 - 2 * PUBLISHED.k * PUBLISHED.n / h2sgemm.ASCEND_910A.numbers)
    text = f"{optimum[0]:.6g} and {formula:.6g}" if some else ""
    held = [abs(value / formula - 1) < 1e-6 for value in optimum]
    yield share("least of Eq. 9 found numerically = sqrt(f L1 / (2 N_core))", "equal", held, text)
    least = min(sides, key=lambda row: row["least words"]) if sides else None
    text = f"{least['b_m']}" if least else ""
    held = [least["b_m"] == 96] if least and len(sides) > 6 else []
    yield share("b_m with the least traffic, all blocks of Eq. 10", "96", held, text)
    for name, pipeline, value in (("(a)", "single", SINGLE), ("(b)", "double", DOUBLE)):
        speeds = [row[f"published {pipeline}"] for row in some]
        text = f"model {speeds[0]:.3g}: published {100 * value / speeds[0]:.3g} % of it" if speeds else ""
        held = [abs(value / s - 1) <= 0.1 for s in speeds]
        yield share(f"Fig. 10{name}, TFLOP/s with {LOOKS[pipeline].label}", f"{value:g}", held, text)
    gains = [row["published double"] / row["published single"] for row in some]
    text = f"model {gains[0]:.3g}×: published {100 * DOUBLE / SINGLE / gains[0]:.3g} % of it" if gains else ""
    yield share(
        "speed with two buffers over one", "1.57× (a gain of 57 %)", [abs(g / 1.57 - 1) <= 0.1 for g in gains], text
    )
    parts = [row["published double"] / (256 / 3) for row in some]
    text = f"model {100 * parts[0]:.3g} %, 65.3/85.3 = {100 * DOUBLE * 3 / 256:.3g} %" if parts else ""
    yield share("share of the three-product peak", "77 %", [abs(p / 0.77 - 1) <= 0.1 for p in parts], text)
    for name, words in (("endless", "endless matrices"), ("best", "m = n = 5632, k = 2816")):
        if len(sides) < 12:
            continue
        top = max(sides, key=lambda row, n=name: row[f"{n} double"])  # type: ignore[misc]
        value = top[f"{name} double"]
        ours = some[0]["published double"] if name == "endless" else h2sgemm.speed(M, M, K) / 1e12
        text = f"{ours:.4g} of {value:.4g} TFLOP/s, reached with b_m = {top['b_m']}"
        yield share(f"{PUBLISHED} is the best block, {words}", "best", [ours >= 0.99 * value], text)
    small = [row for row in sides if row["b_m"] <= 48]
    large = [row for row in sides if 144 <= row["b_m"] <= 208]
    held = (
        [max(r["endless double"] for r in small) < min(r["endless double"] for r in large)] if small and large else []
    )
    text = "b_m to 48: {:.3g} at most; 144 to 208: {:.3g} at least, the best of each b_m".format(
        max((r["endless double"] for r in small), default=np.nan),
        min((r["endless double"] for r in large), default=np.nan),
    )
    yield share("low speeds are those of small blocks", "small", held, text)
    full = [row["double"] for row in _sizes(rows) if row["m"] % M == 0]
    text = f"{', '.join(f'{v:.3g}' for v in full)} TFLOP/s at multiples of 5632"
    yield share("Fig. 11(a): over 60 TFLOP/s as m and n grow", "over 60", [v > 60 for v in full], text)
    steps = [row["double"] for row in _sizes(rows)]
    falls = sum(b < a for a, b in pairwise(steps))
    text = f"falls at {falls} of {max(len(steps) - 1, 0)} steps"
    yield share("Fig. 11(a): steadily", "steadily", [falls == 0] if len(steps) > 2 else [], text)
    lengths = [row["double"] for row in rows if row["m"] == M and row["k"] not in (M, K)]
    text = f"{min(lengths):.3g} to {max(lengths):.3g} TFLOP/s, k = 64 to 16384" if lengths else ""
    yield share("Fig. 11(b): steady over k, about 60", "60", [abs(v / 60 - 1) <= 0.1 for v in lengths], text)


def finding(rows: list[dict[str, Any]]) -> str:
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
        (f"cycles of the cube unit for a step of {PUBLISHED}", cycles["A B"]["cube"], ".0f"),
        ("of the slowest engine", {f"{part}, {engine}:": x for part, (engine, x) in slowest.items()}, ".0f"),
        (f"TFLOP/s of {PUBLISHED} by the model, endless matrices", speeds),
        ("at m = n = 5632, two buffers", h2sgemm.speed(M, M, K) / 1e12),
        ("published speed over the model's", published, ".2g%"),
        ("the vector unit, which makes the residual of B anew for every row of blocks, limits, not the memory", True),
        ("b_m of the least traffic by Equation 9", least["b_m"]),
        (f"traffic of {PUBLISHED} over it", row["words"] / least["least words"], ".3g×"),
        ("fastest b_m", {"endless matrices": endless["b_m"], "m = 5632": here["b_m"]}),
        ("TFLOP/s, endless matrices, there", endless["endless double"]),
        ("least TFLOP/s where 5632 does not divide m and cores idle", min(idle, default=None)),
    )
