"""LE-GEMM, Table 2: the tile that the thread parallelism model (Equations 12 to 17) chooses on a GPU.

The paper gives no objective and no constraints as formulas; `model.py` states the ones used here. This page shows the
objective over the sides of the tile, the selected tile, and the effect of a change of each assumption.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row
from . import model as legemm
from .model import Reading, Tile

PAPER = "LE-GEMM: a lightweight emulation-based GEMM with precision refinement on GPU (2025), section 4.2, table 2"
CAPTION = """(a) to (f) Objective of the model over the sides of a tile with T_K = 32, M = N = 8192: operations per byte
(Equation 15) times the share of SMs that have a block. White: excluded by the fragment (f), the shared memory (S),
the registers (R) or because a wavefront has no fragment (w); small square: selected by the model; large square:
Table 2. (g) The tile selected when one assumption is changed; the tiles of Table 2 have an asterisk."""
ASSUMPTIONS = [
    """The objective is Equation 15 times min(1, blocks / SMs), because a T_TLP larger than the GPU adds nothing. The
    smallest T_K, and then T_M <= T_N, decides between equal values. The paper states only "maximizing T_TLP and
    T_flops/memory".""",
    """Two buffers of A16, RA, B16 and RB must fit into the shared memory of a block (section 4.3).""",
    """Work_DL of Equation 16 is interpreted as the number of 32-bit registers of a thread: one for an entry of C, one
    for the two halves of an entry of A or B, and 32 more for addresses.""",
    """A block has the smallest number of threads whose registers suffice, at least four wavefronts and a power of two
    of wavefronts.""",
    """The sides of a tile are powers of two times the fragment of Table 2 (by the size of the wavefront). T_K is at
    least two fragments deep, so that one fragment is read while the other is multiplied.""",
    """The data of the GPUs are in fpemu/roofline/gpus.toml. The assumptions are the same for all GPUs, but they were
    chosen with knowledge of Table 2, so the model does not predict its tiles. Panel (g) shows which assumptions
    determine the tiles.""",
    """Table 2 states no size of the matrices; here n = 1024, the size of the paper's histograms, to 16384.""",
    """"Inverse" means that, of any two tiles with different T_TLP and blocks of 256 threads, the tile with the larger
    T_TLP has the smaller value of Equation 15.""",
]
PUBLISHED = {"MI210": Tile(128, 128, 32), "A800": Tile(128, 256, 32)}
SHOWN = ("MI210", "A800", "V100", "T4", "H200", "MI300X")
SIZES = (1024, 2048, 4096, 8192, 16384)
SIDES = (16, 32, 64, 128, 256, 512)
READINGS = {
    "ours": Reading(),
    "Eq. 15 alone": Reading(objective="ratio"),
    "whole rounds of blocks": Reading(objective="waves"),
    "Eq. 15 × threads held": Reading(objective="product"),
    "no registers for addresses": Reading(overhead=0),
    "64 registers for addresses": Reading(overhead=64),
    "registers by Eq. 17": Reading(operands=False),
    "two accumulators a tile": Reading(accumulators=2),
    "two blocks an SM": Reading(blocks=2),
    "one buffer": Reading(buffers=1),
    "three buffers": Reading(buffers=3),
    "T_K of one fragment": Reading(depth=1),
    "T_K of four fragments": Reading(depth=4),
    "any multiple of a fragment": Reading(powers=False),
}
LETTERS = ("", "f", "w", "S", "R", "SR")


def cells() -> list[Row]:
    maps = [{"gpu": gpu, "n": 8192, "reading": "ours"} for gpu in SHOWN]
    sizes = [{"gpu": gpu, "n": n, "reading": "ours"} for gpu in PUBLISHED for n in SIZES if n != 8192]
    return maps + sizes + [{"gpu": gpu, "n": 8192, "reading": r} for gpu in PUBLISHED for r in READINGS if r != "ours"]


def evaluate(cell: Row) -> dict[str, float]:
    """The choice; for our reading also the objective over the sides ("value M N", 0 where not allowed; "why M N")."""
    gpu, reading, n = gpus.get(cell["gpu"]), READINGS[cell["reading"]], cell["n"]
    choice = legemm.choose(gpu, n, n, n, reading)
    numbers = {
        "T_M": choice.tile.M,
        "T_N": choice.tile.N,
        "T_K": choice.tile.K,
        "threads": choice.threads,
        "ratio": choice.ratio,
        "tlp": choice.tlp,
    }
    numbers |= {
        "KB for (128, 256, 32)": legemm.shared(Tile(128, 256, 32), reading.buffers) / 1024,
        "KB for (128, 256, 16)": legemm.shared(Tile(128, 256, 16), reading.buffers) / 1024,
        "KB there": gpu.need("shared_per_block") / 1024,
    }
    for k in (16, 32):
        held = [pair for name, pair in legemm.constraints(Tile(128, 256, k), gpu).items() if "registers" in name]
        numbers[f"registers for (128, 256, {k})"] = max(value / limit for value, limit in held)
    if cell["reading"] == "ours":
        tiles = [Tile(m, k, 32) for m in SIDES for k in SIDES]
        for t in tiles:
            why = _why(t, gpu)
            numbers[f"why {t.M} {t.N}"] = why
            numbers[f"value {t.M} {t.N}"] = 0.0 if why else legemm.objective(t, gpu, n, n)
        numbers |= _words(tiles, n)
    return {name: float(value) for name, value in numbers.items()}


def _why(tile: Tile, gpu: gpus.Gpu) -> int:
    """What forbids a tile: an index into `LETTERS`."""
    broken = [name for name, (value, limit) in legemm.constraints(tile, gpu).items() if value > limit]
    names = " ".join(broken)
    if "fragment, " in names:
        return LETTERS.index("f")
    if "wavefronts" in names:
        return LETTERS.index("w")
    return LETTERS.index("S" * ("shared" in names) + "R" * ("registers" in names))


def _words(tiles: list[Tile], n: int) -> dict[str, float]:
    """The paper's statements on its equations, over tiles with blocks of 256 threads."""
    tlp = {t: legemm.tlp(n, n, t, 4, 64) for t in tiles}

    def opposite(some: list[Tile]) -> float:
        pairs = [(a, b) for a, b in combinations(some, 2) if tlp[a] != tlp[b]]
        return float(np.mean([(tlp[a] > tlp[b]) == (legemm.ratio(a) < legemm.ratio(b)) for a, b in pairs]))

    # as many threads as keep Work_CP at 128
    even = [legemm.tlp(n, n, t, 1, t.M * t.N // 128) for t in tiles]
    return {
        "apart": max(abs(legemm.flops(t) / legemm.memory(t) - legemm.ratio(t)) for t in tiles),
        "opposite": opposite(tiles),
        "opposite, square": opposite([t for t in tiles if t.M == t.N]),
        "tlp at equal work": max(even) / min(even),
        "loads a tile, 1 x 3": legemm.subsections(1, 3)[1] / legemm.subsections(1, 3)[0],
        "loads a tile, 2 x 2": legemm.subsections(2, 2)[1] / legemm.subsections(2, 2)[0],
    }


def _tile(row: Row) -> Tile:
    return Tile(*(int(row[side]) for side in ("T_M", "T_N", "T_K")))


def _pick(rows: list[Row], gpu: str, reading: str = "ours", n: int = 8192) -> dict[str, Any] | None:
    return next((r for r in rows if (r["gpu"], r["reading"], r["n"]) == (gpu, reading, n)), None)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 4, height=8.4, height_ratios=(1, 1, 1, 1.45))
    shown, maps = None, axes[:3]
    steps = list(range(len(SIDES)))
    for axis, gpu in zip(maps.ravel(), SHOWN, strict=True):
        axis.set_xticks(steps, [str(n) for n in SIDES])
        axis.set_yticks(steps, [str(m) for m in SIDES])
        axis.tick_params(length=0)
        row = _pick(rows, gpu)
        if row is None:
            continue
        values = np.array([[row[f"value {m} {n}"] for n in SIDES] for m in SIDES])
        shown = plotting.heatmap(axis, steps, steps, values, low=12, high=192)
        for (i, j), value in np.ndenumerate(values):
            text = LETTERS[int(row[f"why {SIDES[i]} {SIDES[j]}"])] or f"{value:.0f}"
            dark = value == 0 or value > 60
            axis.text(j, i, text, ha="center", va="center", fontsize=6, color="black" if dark else "white")
        for tile, look in ((_tile(row), _SELECTED), (PUBLISHED.get(gpu), _TABLE_2)):
            if tile is not None:
                axis.plot(SIDES.index(tile.N), SIDES.index(tile.M), **look)
    for axis in maps[:, 0]:
        axis.set_ylabel("$T_M$")
    for axis in maps[-1]:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("$T_N$")
    plotting.panel_titles(maps, [*SHOWN])
    if shown is not None:
        bar = figure.colorbar(shown, ax=list(maps.ravel()), orientation="horizontal", aspect=40, pad=0.01)
        bar.set_label("operations a byte × share of SMs busy")
        bar.set_ticks([20, 30, 50, 70, 100, 150], labels=["20", "30", "50", "70", "100", "150"], minor=False)
        bar.minorticks_off()
    grid = axes[3, 0].get_gridspec()
    for axis in axes[3]:
        axis.remove()
    _table(figure.add_subplot(grid[3, :]), rows)
    title = """$T_K$ = 32, $n$ = 8192. White: excluded by the fragment (f),
a wavefront without fragment (w), shared memory (S), registers (R)"""
    plotting.legend_below(figure, maps[0, 0], 2, title)
    return figure


_SELECTED: dict[str, Any] = {
    "linestyle": "none",
    "marker": "s",
    "markersize": 11.5,
    "markerfacecolor": "none",
    "markeredgecolor": plotting.VERMILION,
    "markeredgewidth": 1.4,
    "label": "selected by the model",
}
_TABLE_2: dict[str, Any] = {
    "linestyle": "none",
    "marker": "s",
    "markersize": 14.5,
    "markerfacecolor": "none",
    "markeredgecolor": plotting.BLACK,
    "markeredgewidth": 0.9,
    "label": "tile of Table 2",
}


def _table(axis: Any, rows: list[Row]) -> None:
    axis.set_axis_off()
    axis.set(xlim=(0, 1), ylim=(len(READINGS), -0.2))
    axis.set_title("(g) tile selected if one assumption changes (*: tile of Table 2)", loc="left")
    for place, gpu in zip((0.47, 0.74), PUBLISHED, strict=True):
        axis.text(place, 0, gpu, fontsize=6.5, va="center", weight="bold")
    for line, reading in enumerate(READINGS, 1):
        axis.text(0, line, reading.replace("T_K", "$T_K$").replace("ours", "no change"), fontsize=6.5, va="center")
        for place, (gpu, tile) in zip((0.47, 0.74), PUBLISHED.items(), strict=True):
            row = _pick(rows, gpu, reading)
            if row is not None:
                axis.text(place, line, f"{_tile(row)}{' *' * (_tile(row) == tile)}", fontsize=6.5, va="center")


def measures(rows: list[Row]) -> Iterator[Measure]:
    for gpu, tile in PUBLISHED.items():
        for words, sizes in (("n = 2048 to 16384", SIZES[1:]), ("n = 1024", SIZES[:1])):
            same = [float(_tile(row) == tile) for n in sizes if (row := _pick(rows, gpu, n=n))]
            if same:
                yield Measure("model_selects_its_tiles", min(same), "", f"{words}, {gpu}")
    if row := _pick(rows, "MI210"):
        for name, words in (("opposite, square", "square tiles"), ("opposite", "tiles of all shapes")):
            yield Measure("tlp_and_ratio_are_inverse", 100 * row[name], "", words)
        for k in (16, 32):
            size = row[f"KB for (128, 256, {k})"] / row["KB there"]
            for memory, part in (("shared memory", size), ("registers", row[f"registers for (128, 256, {k})"])):
                yield Measure("tile_128_256_fits_the_MI210", part, memory, f"T_K = {k}")
    for reading in list(READINGS)[1:]:
        pairs = [(_tile(row), PUBLISHED[gpu]) for gpu in PUBLISHED if (row := _pick(rows, gpu, reading))]
        yield Measure("tiles_do_not_depend_on_the_reading", sum(a == b for a, b in pairs), "", reading)


def finding(rows: list[Row]) -> str:
    changed: dict[str, list[str]] = {}
    for reading in list(READINGS)[1:]:
        tiles = {gpu: _tile(row) for gpu in PUBLISHED if (row := _pick(rows, gpu, reading))}
        if len(tiles) == len(PUBLISHED):
            changed[reading] = [f"{tile} on the {gpu}" for gpu, tile in tiles.items() if tile != PUBLISHED[gpu]]
    same = [reading for reading, moved in changed.items() if not moved]
    words = 2 * PUBLISHED["A800"].M * PUBLISHED["A800"].N
    ours = _pick(rows, "MI210") or {}
    return paragraph(
        (
            "{} changes of one assumption leave both tiles of Table 2 unchanged",
            f"{len(same)} of {len(changed)}" if changed else "",
        ),
        ("these changes are", ", ".join(same)),
        ("the other changes select", {reading: " and ".join(moved) for reading, moved in changed.items() if moved}),
        (
            f"both accumulators of Algorithm 1 for a tile {PUBLISHED['A800']} and an SM's registers are {{}} words",
            f"{words} and {gpus.get('A800').registers}" if _pick(rows, "A800", "two accumulators a tile") else "",
        ),
        (
            "at n = 1024, where the tiles of Table 2 are too few for the GPU, the model selects",
            {gpu: str(_tile(row)) for gpu in PUBLISHED if (row := _pick(rows, gpu, n=1024))},
        ),
        (
            "T_TLP and Equation 15 order these shares of the pairs of tiles oppositely",
            {"all": ours.get("opposite"), "square tiles": ours.get("opposite, square")},
            ".3g%",
        ),
        (
            "the shared memory in KB is",
            {"two buffers of (128, 256, 32)": ours.get("KB for (128, 256, 32)"), "MI210": ours.get("KB there")},
        ),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
