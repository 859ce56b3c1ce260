"""TSM2, section 3.6 and Algorithm 5: thresholds, t1, t2 and t3, published and by the model; ISM2's tcf.

The equations, and their corrections, are in `model.py`.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row, size_axis
from . import model as tsm2

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020), section 3.6, Algorithm 5, sections 4.2, 4.4, 5 and 6"""
CAPTION = """The model of section 3.6, equations corrected, fp64, 20480×20480 times 20480×n. (a) Time over t2 at the
best t3, over the least time, n = 16. Memory-bound GPUs share one curve, because A is read ceil(n / t2) times.
(b) Smallest t3 that uses the whole bandwidth, over the latency of memory, which the paper does not print,
t2 = n = 16. (c) ISM2, V100, m×k times k×16 with m = 15360: share of the bandwidth
over k, t2 = 8, t3 = 4. (d) ISM2: the published tcf over m, and the largest tcf with which the threads still fill a
V100."""
ASSUMPTIONS = [
    """Peaks and bandwidths of K40c, M40 and P100 are from section 4.1 (fp64); other values are from fpemu's table of
    GPUs, which states its sources.""",
    """The paper profiles the latencies and C, the registers of an empty kernel, and prints neither. The page assumes
    200 to 1000 cycles for a load (670 were measured on an H200), the latencies of the table for an fp64 multiply-add (8
    to 48; 8 measured on an H200), C = 24, and for t1 every C from 0 to 64.""",
    """"Printed" means the equations exactly as printed. "Corrected" means that the use of the bandwidth counts bytes
    and is at most one, a multiply-add is two operations, and the time of a kernel is the larger of its two times.""",
    """t2 and t3 follow from the model if their time is the shortest over all pairs of integers. In the corrected form a
    t3 larger than necessary costs no time. t1 divides MaxOccup if it divides MaxOccup rounded down to an integer.""",
    """The gradient descent of section 3.6.3 starts from t2 = t3 = 1 and stops when a step shortens the time by less
    than 1e-4 of an unstated unit. It runs in seconds and in milliseconds; its ends are shown and judge no claim.""",
    """The model does not predict the tcf of ISM2; it gives only its largest value, at the occupancy of t2 = t3 = 1.""",
]
MACHINES = ("K40c", "M40", "P100", "V100", "H200")
SECTION_4_1 = {"K40c": (1430e9, 288e9), "M40": (213e9, 288e9), "P100": (4600e9, 720e9)}
"""Peak in fp64 and bandwidth, as printed."""
PUBLISHED = {"K40c": (40, None, 4, 128), "M40": (6, 8, 4, 256), "P100": (50, 4, 4, 128)}
"""Threshold, t2 (K40c: n), t3, t1. M40 and P100: n = 16."""
SETUPS = range(65)
"""Possible values of C, the registers of an empty kernel."""
WIDTHS = (2, 4, 8, 16)
LATENCY, MEASURED = 400, 670
"""Cycles of a load: assumed, and measured on one H200."""
LATENCIES = (200, 300, 400, 500, 600, 800, 1000)
LARGE = 20480
"""The m and k of the modelled products."""
TCF = {"fp32": {4: 1, 5: 1, 6: 2, 7: 8}, "fp64": {4: 1, 5: 1, 6: 1, 7: 4}}
"""Published tcf by the power of ten of m."""
SHORT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FORMS = ("printed", "corrected")
UNITS = {"s": 1.0, "ms": 1e-3}
"""Units of time of the gradient descent, in seconds."""


def cells(
    machines: tuple[str, ...] = MACHINES, widths: tuple[int, ...] = WIDTHS, latencies: tuple[int, ...] = LATENCIES
) -> list[Row]:
    listed = [_cell("tsm2", name, fmt, n=n, latency=LATENCY) for name in machines for fmt in tsm2.BYTES for n in widths]
    listed += [_cell("tsm2", name, "fp64", n=16, latency=x) for name in machines for x in latencies if x != LATENCY]
    listed += [_cell("tsm2", "H200", "fp64", n=16, latency=MEASURED)] if "H200" in machines else []
    listed += [_cell("fig11", "V100", fmt, k=k, latency=LATENCY) for fmt in tsm2.BYTES for k in SHORT]
    listed += [_cell("tcf", "V100", fmt, m=10**e) for fmt in TCF for e in TCF[fmt]]
    return listed


def _cell(part: str, gpu: str, fmt: str, *, m: int = 0, k: int = 0, n: int = 0, latency: int = 0) -> dict[str, Any]:
    """A cell; parameters that its part does not use are 0."""
    return {"part": part, "gpu": gpu, "fmt": fmt, "m": m, "k": k, "n": n, "latency": latency}


def evaluate(cell: Row) -> dict[str, float]:
    """Of a "tsm2" cell: thresholds, the choice of Algorithm 5 in both forms against all integers, relative times by t2,
    gradient descent; of a "fig11" cell the share of the bandwidth; of a "tcf" cell the largest tcf."""
    name, gpu = cell["gpu"], gpus.get(cell["gpu"])
    if name in SECTION_4_1:
        peak, bandwidth = SECTION_4_1[name]
        gpu = replace(gpu, bandwidth=bandwidth, peak={**gpu.peak, "fp64": peak})
    if cell["part"] == "tcf":
        model = tsm2.Model(gpu, cell["fmt"])
        return {"most": float(tsm2.most_tcf(model, cell["m"])), "threads": float(gpu.need("sms") * gpu.need("threads"))}
    model = tsm2.Model(gpu, cell["fmt"], float(cell["latency"]))
    if cell["part"] == "fig11":
        return {"use": tsm2.ism2_use(model, 15360, cell["k"], 16, 8, 4)}
    return _tsm2(model, cell["n"], PUBLISHED.get(name))


def _tsm2(model: tsm2.Model, n: int, published: tuple[int, int | None, int, int] | None) -> dict[str, float]:
    size, numbers = (LARGE, LARGE, n), dict[str, float]()
    forms = dict(zip(FORMS, (replace(model, printed=True), model), strict=True))
    for form, one in forms.items():
        choice, best = tsm2.algorithm5(one, *size), tsm2.exhaustive(one, *size)
        numbers |= {
            f"{form} threshold": one.threshold(),
            f"{form} t2": float(choice.t2),
            f"{form} t3": float(choice.t3),
            f"{form} least t2": float(min(c.t2 for c in best)),
            f"{form} most t2": float(max(c.t2 for c in best)),
        }
        if published:
            t2, t3 = published[1] or n, published[2]
            times = [one.time(branch, *size, t2, t3) for branch, low, high in one.branches(n) if low <= t2 <= high]
            if t2 <= n:
                numbers[f"{form} published"] = min(times) / best[0].seconds
    times = [_best(model, size, t2)[0] for t2 in range(1, n + 1)]
    numbers |= {f"time {t2}": seconds / min(times) for t2, seconds in enumerate(times, 1)}
    numbers["t3 needed"] = float(_best(model, size, n)[1])
    for unit, seconds in UNITS.items():
        t2, t3 = tsm2.descent(forms["printed"], *size, unit=seconds)
        numbers |= {f"descent {unit} t2": float(t2), f"descent {unit} t3": float(t3)}
    if published:
        t2, t1 = published[1] or n, published[3]
        rest = [int(replace(model, setup=C).occupancy(t2, 4)) % t1 for C in SETUPS]
        numbers |= {"t1 least remainder": float(min(rest)), "t1 largest remainder": float(max(rest))}
    return numbers


def _best(model: tsm2.Model, size: tuple[int, int, int], t2: int) -> tuple[float, int]:
    """Least time at a t2, and the smallest t3 that has it."""
    tried = [(model.seconds(*size, t2, t3), t3) for t3 in range(1, math.floor(model.most_t3(t2)) + 1)]
    least = min(seconds for seconds, _ in tried)
    return least, min(t3 for seconds, t3 in tried if seconds <= least * (1 + tsm2.TIE))


_LOOK = {
    "K40c": Series("K40c", plotting.VERMILION, "o"),
    "M40": Series("M40", plotting.PURPLE, "v"),
    "P100": Series("P100", plotting.BLUE, "s"),
    "V100": Series("V100", plotting.ORANGE, "^", "--"),
    "H200": Series("H200", plotting.GREEN, "D", "--"),
}
_FORMAT = {"fp32": Series("fp32", plotting.BLUE, "o"), "fp64": Series("fp64", plotting.VERMILION, "s", filled=False)}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 4, height=8.6, share_x=False, share_y=False)
    a, b, c, d = axes[:, 0]
    curves: dict[tuple[float, ...], list[str]] = {}
    for number, (name, look) in enumerate(_LOOK.items()):
        size = 6.5 - number  # where curves coincide the later one is smaller, so that all show
        line = sorted((row["latency"], row["t3 needed"]) for row in _pick(rows, gpu=name, fmt="fp64", n=16))
        if line:
            b.plot(*zip(*line, strict=True), **look.line(markersize=size))
        for row in _pick(rows, gpu=name, fmt="fp64", n=16, latency=LATENCY):
            times = tuple(round(row[f"time {t2}"], 9) for t2 in range(1, 17) if f"time {t2}" in row)
            a.plot(range(1, len(times) + 1), times, **look.line(markersize=size))
            curves.setdefault(times, []).append(name)
            if name in PUBLISHED:
                t2 = PUBLISHED[name][1] or 16
                star = {"color": look.color, "markersize": 11, "markeredgecolor": "white", "zorder": 4}
                a.plot([t2], [row[f"time {t2}"]], "*", **star, label=f"{name}, published $t_2$")
    b.axhline(4, color=plotting.GREY, linestyle="--", linewidth=0.8, zorder=1, label="published $t_3$")
    for times, names in curves.items():
        if len(times) > 4:
            text = ", ".join(names) + (": one curve" if len(names) > 1 else "")
            a.annotate(text, (5, times[4]), xytext=(6, 7), textcoords="offset points")
    a.set_yscale("log", base=2)
    a.set(xlabel="$t_2$", ylabel="time / least time", xticks=range(1, 17))
    b.set(xlabel="latency of a load, cycles", ylabel="smallest sufficient $t_3$", xticks=LATENCIES)
    for fmt, look in _FORMAT.items():
        short = sorted(_pick(rows, part="fig11", fmt=fmt), key=lambda row: row["k"])
        c.plot([row["k"] for row in short], [100 * row["use"] for row in short], **look.line())
        tall = sorted(_pick(rows, part="tcf", fmt=fmt), key=lambda row: row["m"])
        largest = Series(f"largest, {fmt}", look.color, look.marker, "--", filled=look.filled)
        d.plot([row["m"] for row in tall], [row["most"] for row in tall], **largest.line())
        given = Series(f"published, {fmt}", look.color, "*", "-" if look.filled else ":", filled=look.filled)
        d.plot([row["m"] for row in tall], [_tcf(row) for row in tall], **given.line(markersize=8))
    size_axis(c, SHORT)
    c.set(xlabel="$k$", ylabel="share of the bandwidth, %", ylim=(0, 105))
    d.set_xscale("log")
    d.set_yscale("log", base=2)
    d.set(xlabel="$m$", ylabel="tcf")
    plotting.panel_titles(
        axes,
        [
            "time over $t_2$: 20480×20480 times 20480×16, fp64",
            "$t_3$ over the latency, $t_2$ = $n$ = 16, fp64",
            "ISM2 on a V100: 15360×k times k×16",
            "ISM2 on a V100: rows of a thread",
        ],
    )
    for axis in (c, d):
        axis.legend()
    plotting.legend_below(figure, axes[:2], 3)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    counted = {"printed": "a multiply-add is one operation", "corrected": "a multiply-add is two operations"}
    for name, (threshold, t2, *_) in PUBLISHED.items():
        fp64 = _pick(rows, part="tsm2", gpu=name, fmt="fp64")
        for row in (row for row in fp64 if (row["n"], row["latency"]) == (16, LATENCY)):
            for form, reading in counted.items():
                ratio = row[f"{form} threshold"] / 16
                yield Measure("threshold", row[f"{form} threshold"] / threshold, reading, name)
                yield Measure("bound", 1 / ratio if name == "M40" else ratio, reading, name)
        for form in FORMS:
            for latency in LATENCIES:
                ratios = [
                    row[f"{form} published"]
                    for row in fp64
                    if row["latency"] == latency and f"{form} published" in row and (t2 is None or row["n"] == 16)
                ]
                if ratios:
                    yield Measure(f"{name}_parameters", max(ratios), f"equations {form}", f"{latency} cycles")
    for fmt in TCF:
        short = sorted(_pick(rows, part="fig11", fmt=fmt), key=lambda row: row["k"])
        falls = [below["use"] / above["use"] for below, above in itertools.pairwise(short)]
        if falls:
            yield Measure("short_k_model", max(falls), variant=fmt)
        for row in _pick(rows, part="tcf", fmt=fmt):
            yield Measure(
                "tcf_fills",
                row["m"] / _tcf(row) / min(row["threads"], row["m"]),
                variant=f"{fmt} at m = {row['m']:.0e}",
            )
            if row["m"] == 10**7:
                yield Measure("threads_of_m", row["m"] / row["threads"], variant=fmt)


def finding(rows: list[Row]) -> str:
    at = {row["gpu"]: row for row in _pick(rows, part="tsm2", fmt="fp64", n=16, latency=LATENCY)}
    known = {name: at[name] for name in PUBLISHED if name in at}
    P100, M40 = at.get("P100"), at.get("M40")
    units = {f"unit {u}:": f"t2 = {P100[f'descent {u} t2']:g}, t3 = {P100[f'descent {u} t3']:g}" for u in UNITS if P100}
    measured = _pick(rows, part="tsm2", gpu="H200", fmt="fp64", n=16, latency=MEASURED)
    new = {
        name: f"t2 = {at[name]['corrected t2']:g}, t3 from {at[name]['t3 needed']:g}"
        for name in MACHINES[3:]
        if name in at
    }
    return paragraph(
        (
            "without a limit on the use of bandwidth, the registers limit t3 of the printed Algorithm 5 at n = 16 to",
            {n: row["printed t3"] for n, row in known.items()},
            "g",
        ),
        ("with the limit, the smallest sufficient t3 are", {n: row["t3 needed"] for n, row in known.items()}, "g"),
        ("on the P100 t2 = 4 takes {} the time of t2 = 16", P100 and P100["time 4"], ".3g×"),
        ("the printed gradient descent ends there, depending on the unit of time, which is not printed, at", units),
        (
            "divided by the published t1, MaxOccup has these remainders, depending on C, which is not printed",
            {n: [row["t1 least remainder"], row["t1 largest remainder"]] for n, row in known.items()},
            ".0f",
        ),
        (
            "on the M40 all t2 from {} take the same time, because computation limits it",
            [M40["corrected least t2"], M40["corrected most t2"]] if M40 else None,
            "g",
        ),
        ("for n = 16 the model selects", new),
        (
            f"with the {MEASURED} cycles measured on an H200, t3 = {{}} suffices there",
            [r["t3 needed"] for r in measured],
            "g",
        ),
    )


def _pick(rows: list[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def _tcf(row: Row) -> int:
    return TCF[row["fmt"]][round(math.log10(row["m"]))]


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M", version=3)
