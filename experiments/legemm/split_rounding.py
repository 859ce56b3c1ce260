"""LE-GEMM's bit-cut split against Ootomo's rounded split: split and accumulation exchanged one at a time.

LE-GEMM attributes its smaller error than Ootomo's method to the split. The two differ in the split (bit-cut, residual
truncated, 2^10; or both rounded to nearest, 2^11) and in the accumulation (one chain over K; or restarted every
instruction and added outside). Both schemes are run with either split and either accumulation, so that each effect is
separate.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, mean_by, runs_by
from ._chips import DATA, cost, on_every_chip, operands

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, sections 4.1 and 5.3: the statement on the bit-cut"
CAPTION = """Relative L2 error against the exact product of LE-GEMM and of Ootomo's scheme, each with either split and
either accumulation, on eleven modelled architectures, operands uniform in (a) [-1, 1] and (b) [0, 1]; the Ascend is
assumed. Chained: one chain over K; promoted: restarted every instruction and added outside the matrix unit; order:
the order of the corrections. The two splits of an architecture are drawn one above the other. Median over seeded
runs."""
ASSUMPTIONS = [
    """The bit-cut split of LE-GEMM copies ten fraction bits and rounds the residual times 2^10 toward zero. The rounded
    split of Ootomo rounds both words to nearest, and the residual times 2^11. Each of two mixed splits changes one word
    only.""",
    """Chained means that the main product is one chain over K. Promoted means that it restarts from zero for every
    instruction and is added outside the matrix unit in fp32, rounded to nearest. The corrections are chained in both
    cases.""",
    """At a point (hardware, accumulation, scheme, data, K) a split has the smaller error if the mean over the
    runs is lower by more than 5 %.""",
    "The relative L2 error judges the claim; MRED, which figure 11 shows, is also computed.",
    """The operands have only 16 rows and columns, because the error of an entry depends on k and the data alone.""",
]
SPLITS: dict[str, dict[str, Any]] = {
    "cut": {"high_rounding": "bit-cut", "residual_rounding": "RZ", "residual_scale": 2.0**10},
    "cut, residual to nearest": {"high_rounding": "bit-cut", "residual_rounding": "RNE", "residual_scale": 2.0**10},
    "rounded, residual cut": {"high_rounding": "RNE", "residual_rounding": "RZ", "residual_scale": 2.0**11},
    "rounded": {"high_rounding": "RNE", "residual_rounding": "RNE", "residual_scale": 2.0**11},
}
MIXED = ("cut, residual to nearest", "rounded, residual cut")
ACCUMULATIONS: dict[str, dict[str, Any]] = {"chained": {"promote": None}, "promoted": {"promote": "instruction"}}
SCHEMES = ("legemm", "ootomo")
MARGIN = 1.05


def cells(rows: int = 16, lengths: tuple[int, ...] = (256, 4096), runs: int = 20) -> list[Row]:
    return on_every_chip(rows, lengths, runs)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = operands(cell, device)
    numbers = {}
    for scheme, split, accumulation in settings():
        options = SPLITS[split] | ACCUMULATIONS[accumulation]
        D = schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device, **options)
        numbers[f"{scheme} {accumulation} {split}"] = metrics.relative_l2(D, exact)
        numbers[f"{scheme} {accumulation} {split} mred"] = metrics.mred(D, exact)
    return numbers


def settings() -> list[tuple[str, str, str]]:
    """Scheme, split and accumulation of every column; the mixed splits with LE-GEMM's order alone."""
    return [
        (scheme, split, accumulation)
        for scheme in SCHEMES
        for accumulation in ACCUMULATIONS
        for split in SPLITS
        if scheme == "legemm" or split not in MIXED
    ]


_COLOURS = {"cut": (plotting.VERMILION, "bit-cut split"), "rounded": (plotting.BLUE, "rounded split")}
_SHIFT = {"cut": -0.18, "rounded": 0.18}
_SHAPES = {"chained": "o", "promoted": "s"}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, height=4.8)
    k = max(row["k"] for row in rows)
    chips = [name for name in plotting.HARDWARE if any(row["hardware"] == name for row in rows)]
    for axis, data in zip(axes[0], DATA, strict=True):
        for scheme in SCHEMES:
            for split, (colour, _) in _COLOURS.items():
                for accumulation, marker in _SHAPES.items():
                    column = f"{scheme} {accumulation} {split}"
                    look = Series("", colour, marker, "none", scheme == "legemm")
                    axis.plot(
                        [np.median(_runs(rows, chip, data, k, column)) for chip in chips],
                        np.arange(len(chips)) + _SHIFT[split],
                        **look.line(
                            markersize=2.8 if scheme == "legemm" else 5.2, zorder=3 if scheme == "legemm" else 2.5
                        ),
                    )
        axis.set(xscale="log", xlim=(5e-8, 3e-4), ylim=(len(chips) - 0.5, -0.5))
        axis.set_yticks(range(len(chips)), [plotting.HARDWARE[c].label.split(" (")[0] for c in chips])
        axis.set_xlabel("relative $L_2$ error")
    plotting.panel_titles(axes, [f"uniform in {data.label}" for data in DATA.values()])
    marks = [Series(words, colour, "o", "none") for colour, words in _COLOURS.values()]
    marks += [Series(f"{words} accumulation", plotting.GREY, _SHAPES[words], "none") for words in _SHAPES]
    orders = (("LE-GEMM", True), ("Ootomo", False))
    marks += [Series(f"{name}'s order", plotting.GREY, "o", "none", filled) for name, filled in orders]
    for mark, size in zip(marks, (4, 4, 4, 4, 2.8, 5.2), strict=True):
        axes[0, 0].plot([], [], **mark.line(markersize=size))
    sides, seeds = rows[0]["rows"], len({row["seed"] for row in rows})
    plotting.legend_below(
        figure, axes, 2, f"{sides}×{sides}×$k$, $k$ = {k}, medians of {seeds} seeds; upper row: bit-cut"
    )
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for accumulation, words in (("chained", "one chain over K (LE-GEMM's)"), ("promoted", "promoted (Ootomo's)")):
        for chip, data, k in _points(rows):
            if data == "zero-mean" and chip in _PAPERS:
                cut, rounded = (_mean(rows, chip, data, k, f"legemm {accumulation} {split}") for split in _COLOURS)
                yield Measure("bit_cut_beats_rounding", rounded, words, f"K = {k}, {_PAPERS[chip]}", cut)


_PAPERS = {"cdna2": "MI210", "ampere": "A800"}


def finding(rows: list[Row]) -> str:
    k = max(row["k"] for row in rows)
    statements: list[tuple[Any, ...]] = []
    for accumulation in ACCUMULATIONS:
        ratios = _split_ratios(rows, accumulation)
        mred = list(_split_ratios(rows, accumulation, " mred").values())
        won = [where for where, ratio in ratios.items() if ratio < 1 / MARGIN]
        wins = f"{len(won)} of {len(ratios)} points" + (f" ({'; '.join(map(_named, won[:4]))})" if won else "")
        statements += [
            (f"{accumulation}, the bit-cut split has the smaller error at {{}}", wins),
            ("it has the larger error at {} points", sum(ratio > MARGIN for ratio in ratios.values())),
            (
                "its error divided by the error of the rounded split is smallest and largest at",
                {_named(pick(ratios, key=ratios.__getitem__)): pick(ratios.values()) for pick in (min, max)},
                ".2f×",
            ),
            ("the ratios in MRED have", {"range": mred, "median": float(np.median(mred))}, ".2f×"),
        ]
    outside = _promotion_ratios(rows, k)
    gains = {
        plotting.HARDWARE[chip].label: [ratio for (where, *_), ratio in outside.items() if where == chip]
        for chip in dict.fromkeys(chip for chip, *_ in outside)
    }
    ideal = {
        DATA[data].label: {split: _mean(rows, "ideal", data, k, f"legemm promoted {split}") for split in SPLITS}
        for data in DATA
    }
    return paragraph(
        *statements,
        (f"the error of the chain divided by the error of the promoted sum at k = {k}, both splits, is", gains, ".3g×"),
        ("the errors of the promoted sum on ideal hardware are", ideal, ".2g"),
    )


def _split_ratios(rows: list[Row], accumulation: str, measure: str = "") -> dict[tuple[str, str, str, int], float]:
    """Error of the bit-cut split divided by the error of the rounded one: by (hardware, scheme, data, k)."""
    return {
        (chip, scheme, data, k): _mean(rows, chip, data, k, f"{scheme} {accumulation} cut{measure}")
        / _mean(rows, chip, data, k, f"{scheme} {accumulation} rounded{measure}")
        for chip, data, k in _points(rows)
        for scheme in SCHEMES
    }


def _promotion_ratios(rows: list[Row], k: int) -> dict[tuple[str, str, str], float]:
    """Error of the chain divided by the error of the promoted sum, either split: by (hardware, data, split)."""
    return {
        (chip, data, split): _mean(rows, chip, data, k, f"legemm chained {split}")
        / _mean(rows, chip, data, k, f"legemm promoted {split}")
        for chip, data, length in _points(rows)
        if length == k
        for split in _COLOURS
    }


def _points(rows: list[Row]) -> list[tuple[str, str, int]]:
    return list(dict.fromkeys((row["hardware"], row["data"], row["k"]) for row in rows))


def _named(where: tuple[str, str, str, int]) -> str:
    chip, scheme, data, k = where
    return f"{plotting.HARDWARE[chip].label}, {plotting.SCHEMES[scheme].label}'s order, {DATA[data].label}, k = {k}"


_mean = mean_by("hardware", "data", "k")
_runs = runs_by("hardware", "data", "k")


QUICK = {"lengths": (256, 1024), "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
