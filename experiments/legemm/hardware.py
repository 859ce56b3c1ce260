"""Errors of the two-word schemes on every modelled architecture, and the arithmetic that causes the differences.

No paper has this comparison: each used one or two GPUs. The columns differ in the arithmetic of one instruction alone.
"""

from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from fpemu import metrics, mma, plotting, schemes
from fpemu.mma.device import Device
from fpemu.reproduce import Page

from .._findings import paragraph
from .._rows import Row
from ._chips import DATA, cost, on_every_chip, operands

PAPER = "no paper's figure: the schemes of LE-GEMM's section 5.3 and their relatives, on all modelled hardware"
CAPTION = """Relative L2 error against the exact product, in units of 2^-24, of seven schemes with two fp16 words,
beside plain fp16 and an fp32 chain of FMAs, on models of eleven matrix units: operands uniform in [-1, 1] and in
[0, 1], inner lengths 1024 and 4096. Architectures with the same errors in every run share a column. Mean over seeded
runs. CDNA, Turing and Blackwell's
tcgen05 are documented in the literature; the Ascend is assumed."""
ASSUMPTIONS = [
    """Every architecture runs its widest fp16 instruction (Hopper wgmma, Blackwell tcgen05) as specified in the
    catalogue; the arithmetic of the Ascend 910A is not published and is assumed.""",
    "The schemes have their published parameters; SGEMM is one ascending chain of fp32 FMAs, the same in every column.",
    """Two architectures count as the same if all errors of all runs agree; an architecture differs from the ideal one
    (exact block sums, one rounding to nearest) if the mean error of some scheme is more than 1.5 times as large.""",
    """The operands have only 12 rows and columns at quick size and 128 at full size, because the error of an entry
    depends on k and the data alone.""",
]
SCHEMES = ("fp16", "markidis", "egemm", "ape", "legemm", "h2sgemm", "ootomo", "staged", "sgemm")
LENGTHS = (1024, 4096)
CHAINED = ("markidis", "egemm", "ape", "legemm", "h2sgemm")
"""Schemes whose main product is one chain over all of K."""
FACTOR = 1.5


def cells(rows: int = 128, runs: int = 5) -> list[Row]:
    return on_every_chip(rows, LENGTHS, runs)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = operands(cell, device)
    return {
        name: metrics.relative_l2(schemes.gemm(A, B, scheme=name, hardware=cell["hardware"], device=device), exact)
        for name in SCHEMES
    }


def draw(rows: list[Row]) -> Any:
    """Four maps below one another; architectures with the same errors share a column."""
    panels = [(data, k) for data in DATA for k in sorted({row["k"] for row in rows})]
    figure, axes = plotting.figure(1, len(panels), height=8.4)
    groups = same(rows)
    maps = [_means(rows, data, k, [group[0] for group in groups]) * 2.0**24 for data, k in panels]
    low, high = min(m.min() for m in maps), max(m.max() for m in maps)
    colour = LogNorm(low, high)
    for axis, values in zip(axes[:, 0], maps, strict=True):
        image = plotting.heatmap(axis, range(len(groups)), range(len(SCHEMES)), values, low=low, high=high)
        for (i, j), value in np.ndenumerate(values):
            ink = "black" if colour(value) > 0.5 else "white"
            axis.text(j, i, _short(value), ha="center", va="center", fontsize=6, color=ink)
        axis.set_yticks(range(len(SCHEMES)), [plotting.SCHEMES[name].label for name in SCHEMES])
        names = [", ".join(plotting.HARDWARE[name].label.split(" (")[0] for name in group) for group in groups]
        axis.set_xticks(range(len(groups)), names, rotation=40, ha="right", rotation_mode="anchor")
        axis.tick_params(length=0)
        axis.set_ylim(len(SCHEMES) - 0.5, -0.5)
    seeds = len({row["seed"] for row in rows})
    label = f"relative $L_2$ error in units of $2^{{-24}}$, mean of {seeds} seeds"
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", aspect=40, pad=0.01)
    bar.set_label(label)
    sides = f"$m$ = $n$ = {rows[0]['rows']}"
    plotting.panel_titles(axes, [f"uniform in {DATA[data].label}, $k$ = {k}, {sides}" for data, k in panels])
    return figure


def finding(rows: list[Row]) -> str:
    k, groups = max(row["k"] for row in rows), same(rows)
    chips = [group[0] for group in groups]
    labels = {chip: plotting.HARDWARE[chip].label for chip in plotting.HARDWARE}
    equal = (
        f"{', '.join(labels[c] for c in group)} ({' or '.join(dict.fromkeys(map(rule, group)))})" for group in groups
    )
    statements: list[tuple[Any, ...]] = [("these architectures have the same errors in every run", "; ".join(equal))]
    truncating = [chip for chip in chips if str(mma.spec(chip, "fp16", "fp32").final) == "RZ"]
    for data in DATA:
        table = dict(zip(SCHEMES, _means(rows, data, k, [*chips, "ideal"]), strict=True))
        ratios = {chip: {s: float(e[i] / e[-1]) for s, e in table.items()} for i, chip in enumerate(chips)}
        useless = [c for i, c in enumerate(chips) if min(table[s][i] for s in CHAINED) * FACTOR > table["fp16"][i]]
        shown = {
            labels[chip]: {"chained": [r[s] for s in CHAINED], "Ootomo": r["ootomo"], "staged": r["staged"]}
            for chip, r in ratios.items()
            if max(r.values()) > FACTOR
        }
        gain = table["fp16"][-1] / min(table[name][-1] for name in CHAINED)
        statements += [
            (
                f"ratios above {FACTOR:g} to the error on ideal hardware on {DATA[data].label}, k = {k}, are",
                shown,
                ".3g×",
            ),
            (
                f"the best chained scheme gains less than {FACTOR:g}× over plain fp16 on",
                ", ".join(labels[c] for c in useless),
            ),
            ("these are all architectures that round sums toward zero", bool(useless) and useless == truncating),
            ("the gain on ideal hardware is {}", gain if useless else None, ".3g×"),
        ]
    return paragraph(*statements)


def same(rows: list[Row]) -> list[list[str]]:
    """Architectures in groups whose errors agree in every run, column by column."""
    seen: dict[tuple[Any, ...], list[str]] = {}
    for chip in dict.fromkeys(row["hardware"] for row in rows):
        errors = sorted(
            (row["data"], row["k"], row["seed"], *(row[s] for s in SCHEMES)) for row in rows if row["hardware"] == chip
        )
        seen.setdefault(tuple(errors), []).append(chip)
    return list(seen.values())


def rule(hardware: str) -> str:
    """What an architecture's fp16 instruction does to a sum, in words, from its specification."""
    spec = mma.spec(hardware, "fp16", "fp32")
    final = {"RZ": "toward zero", "RNE": "to nearest"}[str(spec.final)]
    if spec.rules.aligned == "terms":
        where = f"{spec.F} bits below the largest"
        return f"k {spec.k} in blocks of {spec.block}, terms truncated {where}, sums rounded {final}"
    if spec.rules.rounds_once:
        return f"k {spec.k} in blocks of {spec.block}, added exactly and rounded {final}"
    if spec.rules.flushes:
        return f"k {spec.k} in blocks of {spec.block}, pairwise fp32 sums {final}, subnormal operands replaced by zero"
    where = f"{spec.F} bits below the largest"
    return f"k {spec.k} in blocks of {spec.block}, products truncated {where}, sums rounded {final}"


def _means(rows: list[Row], data: str, k: int, chips: list[str]) -> Any:
    """Mean errors over the runs, schemes by chips."""
    here = [row for row in rows if row["data"] == data and row["k"] == k]
    return np.array(
        [[np.mean([row[name] for row in here if row["hardware"] == chip]) for chip in chips] for name in SCHEMES]
    )


def _short(value: float) -> str:
    if value < 9.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 999.5 else f"{value / 1000:.1f}k"


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, None, finding, cost, quick={"rows": 12, "runs": 3})
