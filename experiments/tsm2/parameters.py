"""TSM2, section 3.6 and Algorithm 5: thresholds, t1, t2 and t3, published and by the model; ISM2's tcf.

What the equations say and where they had to be corrected is in `model.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import OPEN, Claim, share
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import listed
from . import model as tsm2

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020), section 3.6, Algorithm 5, sections 4.2, 4.4, 5 and 6"""
EXPLAINS = ("tsm2/parameters",)
TITLE = "parameters of TSM2 and ISM2 by the performance model"
KIND = "M"
CAPTION = """The model of section 3.6, equations corrected, fp64, 20480×20480 times 20480×n. (a) Time over t2 at the
best t3, over the least time, n = 16; stars: the published t2. GPUs that memory bounds share one curve, as A is read
ceil(n / t2) times. (b) Smallest t3 that uses the whole bandwidth, over the
latency of memory, which the paper does not print, t2 = n = 16; dashed: the published t3 = 4. (c) ISM2, V100, m×k times
k×16 with m = 15360: share of the bandwidth over k, t2 = 8, t3 = 4. (d) ISM2: the published tcf over m, and the largest
with which the threads still fill a V100."""
ASSUMPTIONS = [
    """Peaks and bandwidths of K40c, M40 and P100 are those of section 4.1 (fp64); what it does not print comes from
    fpemu's table of GPUs, sources there.""",
    """The paper profiles the latencies and C, the registers of an empty kernel, and prints neither: 400 cycles for a
    load on every GPU, (b) shows what others would do (670 were measured on an H200); those of the table for an fp64
    multiply-add (8 to 48, on an H200 8 as measured), C = 24.""",
    """A published t2 or t3 follows from the model if it is among the best pairs of integers, those within 1e-9 of
    the least time, for at least one partner; t2 and t3 are judged apart. In the corrected form t3 may be larger
    than needed at no cost.""",
    "A threshold agrees if it is within 5 % of the published one, which is rounded.",
    """t1 divides MaxOccup is judged for MaxOccup rounded down to an integer, at the published t2 and t3 and C = 24;
    where another C from 0 to 64 decides otherwise, it cannot be decided.""",
    """ISM2's tcf is not predicted: the model says only how large it can be. The published ones may not exceed that at
    the occupancy of t2 = t3 = 1. "At least 1/64" agrees if the model's factor is within 2 of 64.""",
]
MACHINES = ("K40c", "M40", "P100", "V100", "H200")
SECTION_4_1 = {"K40c": (1430e9, 288e9), "M40": (213e9, 288e9), "P100": (4600e9, 720e9)}
"""Peak in fp64 and bandwidth, as printed."""
PUBLISHED = {"K40c": (40, None, 4, 128), "M40": (6, 8, 4, 256), "P100": (50, 4, 4, 128)}
"""Threshold, t2 (K40c: n), t3, t1. M40 and P100: n = 16."""
SETUPS = range(65)
"""C, the registers of an empty kernel: what it might be"""
WIDTHS = (2, 4, 8, 16)
LATENCY = 400
LATENCIES = (200, 300, 400, 500, 600, 800, 1000)
MEASURED = 670
"""Cycles of a load on one H200, from its table."""
LARGE = 20480
TCF = {"fp32": {4: 1, 5: 1, 6: 2, 7: 8}, "fp64": {4: 1, 5: 1, 6: 1, 7: 4}}
"""Published tcf by the power of ten of m."""
SHORT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_UNITS = {"s": 1.0, "ms": 1e-3}


def cells(size: str) -> list[dict[str, Any]]:
    listed = [_cell("tsm2", name, fmt, n=n, latency=LATENCY) for name in MACHINES for fmt in tsm2.BYTES for n in WIDTHS]
    listed += [_cell("tsm2", name, "fp64", n=16, latency=x) for name in MACHINES for x in LATENCIES if x != LATENCY]
    listed.append(_cell("tsm2", "H200", "fp64", n=16, latency=MEASURED))
    listed += [_cell("fig11", "V100", fmt, k=k, latency=LATENCY) for fmt in tsm2.BYTES for k in SHORT]
    listed += [_cell("tcf", "V100", fmt, m=10**e) for fmt in TCF for e in TCF[fmt]]
    return listed


def _cell(part: str, gpu: str, fmt: str, *, m: int = 0, k: int = 0, n: int = 0, latency: int = 0) -> dict[str, Any]:
    """A cell; what its part does not use is 0."""
    return {"part": part, "gpu": gpu, "fmt": fmt, "m": m, "k": k, "n": n, "latency": latency}


def evaluate(cell: dict[str, Any]) -> dict[str, float]:
    """Of a "tsm2" cell: thresholds, the choice of Algorithm 5 in both forms against all integers, relative times by t2,
    descent; of a "fig11" cell the share of the bandwidth; of a "tcf" cell the largest tcf."""
    name = cell["gpu"]
    gpu = gpus.get(name)
    if name in SECTION_4_1:
        peak, bandwidth = SECTION_4_1[name]
        gpu = replace(gpu, bandwidth=bandwidth, peak={**gpu.peak, "fp64": peak})
    if cell["part"] == "fig11":
        model = tsm2.Model(gpu, cell["fmt"], float(cell["latency"]))
        return {"use": tsm2.ism2_use(model, 15360, cell["k"], 16, 8, 4)}
    if cell["part"] == "tcf":
        model = tsm2.Model(gpu, cell["fmt"])
        return {
            "most": float(tsm2.most_tcf(model, cell["m"])),
            "most full": float(tsm2.most_tcf(model, cell["m"], 8, 4)),
            "threads": float(gpu.need("sms") * gpu.need("threads")),
        }
    model = tsm2.Model(gpu, cell["fmt"], float(cell["latency"]))
    return _tsm2(replace(model, printed=True), model, cell["n"])


def _tsm2(printed: tsm2.Model, model: tsm2.Model, n: int) -> dict[str, float]:
    size = (LARGE, LARGE, n)
    result: dict[str, float] = {}
    for label, one in (("printed", printed), ("corrected", model)):
        choice, best = tsm2.algorithm5(one, *size), tsm2.exhaustive(one, *size)
        result |= {
            f"{label} threshold": one.threshold(),
            f"{label} t2": float(choice.t2),
            f"{label} t3": float(choice.t3),
            f"{label} over best": choice.seconds / best[0].seconds,
            f"{label} least t2": float(min(c.t2 for c in best)),
            f"{label} most t2": float(max(c.t2 for c in best)),
            f"{label} least t3": float(min(c.t3 for c in best)),
            f"{label} most t3": float(max(c.t3 for c in best)),
            f"{label} memory bound": float(not one.compute_bound(n)),
        }
        for t2 in range(1, n + 1):
            result[f"{label} best {t2}"] = float(any(c.t2 == t2 for c in best))
        for t3 in range(1, 9):
            result[f"{label} best t3 {t3}"] = float(any(c.t3 == t3 for c in best))
    least = min(_best(model, size, t2)[0] for t2 in range(1, n + 1))
    for t2 in range(1, n + 1):
        result[f"time {t2}"] = _best(model, size, t2)[0] / least
    result["t3 needed"] = float(_best(model, size, n)[1])
    for unit, seconds in _UNITS.items():
        t2, t3 = tsm2.descent(printed, *size, unit=seconds)
        result |= {f"descent {unit} t2": float(t2), f"descent {unit} t3": float(t3)}
    for t2 in sorted({n, 4, 8} if n >= 8 else {n}):
        held = tsm2.block_sizes(model, t2, 4)
        most = model.occupancy(t2, 4)
        for t1 in (128, 256):
            divides = [int(replace(model, setup=C).occupancy(t2, 4)) % t1 == 0 for C in SETUPS]
            result |= {
                f"t1 {t1} divides {t2}": float(int(most) % t1 == 0),
                f"t1 {t1} divides {t2}, some C": float(any(divides)),
                f"t1 {t1} divides {t2}, every C": float(all(divides)),
                f"t1 {t1} held {t2}": held[t1] / most,
            }
    return result


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


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, _ = plotting.figure(2, 2, height=5.4)
    figure.clear()  # no two panels share an axis
    axes = np.asarray(figure.subplots(2, 2))
    ((a, b), (c, d)) = axes
    main = [row for row in _pick(rows, part="tsm2", fmt="fp64", n=16) if row["latency"] == LATENCY]
    for name, look in _LOOK.items():
        here = _pick(rows, part="tsm2", gpu=name, fmt="fp64", n=16)
        # where curves coincide the later one is smaller, so that all show
        size = 6.5 - list(_LOOK).index(name)
        star = {"color": look.color, "marker": "*", "markersize": 11, "linestyle": "", "markeredgecolor": "white"}
        for row in (row for row in here if row["latency"] == LATENCY):
            t2s = [t2 for t2 in range(1, 17) if f"time {t2}" in row]
            a.plot(t2s, [row[f"time {t2}"] for t2 in t2s], **look.line(markersize=size))
            if name in PUBLISHED:
                t2 = PUBLISHED[name][1] or 16
                a.plot([t2], [row[f"time {t2}"]], zorder=4, **star)
        line = sorted((row["latency"], row["t3 needed"]) for row in here)
        if line:
            b.plot(*zip(*line, strict=True), **look.line(markersize=size))
    (t3,) = {published[2] for published in PUBLISHED.values()}
    b.axhline(t3, color=plotting.GREY, linestyle="--", linewidth=0.8, zorder=1)
    b.annotate("published", (620, t3), xytext=(0, 3), textcoords="offset points", fontsize=7, color=plotting.GREY)
    curves: dict[tuple[float, ...], list[str]] = {}
    for row in main:
        curve = tuple(round(row[f"time {t2}"], 9) for t2 in range(1, 17) if f"time {t2}" in row)
        curves.setdefault(curve, []).append(row["gpu"])
    for curve, names in curves.items():
        if len(curve) > 4:
            text = ", ".join(names) + (": one curve" if len(names) > 1 else "")
            a.annotate(text, (5, curve[4]), xytext=(6, 7), textcoords="offset points", fontsize=7)
    a.set_yscale("log", base=2)
    a.set_xlabel("$t_2$")
    a.set_ylabel("time / least time")
    b.set_xlabel("latency of a load, cycles")
    b.set_ylabel("smallest sufficient $t_3$")
    for fmt, look in _FORMAT.items():
        here = sorted(_pick(rows, part="fig11", fmt=fmt), key=lambda row: row["k"])
        c.plot([row["k"] for row in here], [100 * row["use"] for row in here], **look.line())
        here = sorted(_pick(rows, part="tcf", fmt=fmt), key=lambda row: row["m"])
        label = Series(f"largest, {fmt}", look.color, look.marker, "--", filled=look.filled)
        d.plot([row["m"] for row in here], [row["most"] for row in here], **label.line())
        given = Series(f"published, {fmt}", look.color, "*", "-")
        d.plot([row["m"] for row in here], [_tcf(row) for row in here], **given.line(markersize=8))
    c.set_xscale("log", base=2)
    c.set_xlabel("$k$")
    c.set_ylabel("share of the bandwidth, %")
    c.set_ylim(0, 105)
    d.set_xscale("log")
    d.set_yscale("log", base=2)
    d.set_xlabel("$m$")
    d.set_ylabel("tcf")
    plotting.panel_titles(
        axes, ["time over $t_2$", "$t_3$ and the latency", "ISM2: short sums", "ISM2: rows of a thread"]
    )
    c.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    d.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    handles, labels = a.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, columnspacing=1.4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    main = [row for row in _pick(rows, part="tsm2") if row["latency"] == LATENCY]
    for name, (threshold, _, _, _) in PUBLISHED.items():
        here = _pick(main, gpu=name, fmt="fp64", n=16)
        for label, text in (("printed", "as printed"), ("corrected", "a multiply-add as two operations")):
            values = [row[f"{label} threshold"] for row in here]
            held = [abs(x / threshold - 1) <= 0.05 for x in values]
            measured = ", ".join(f"{x:.3g}" for x in values)
            yield share(f"{name}: t2 threshold, fp64, {text}", str(threshold), held, measured)
    for name, n, bound in (("K40c", None, "memory"), ("M40", 16, "compute"), ("P100", 16, "memory")):
        here = [row for row in _pick(main, gpu=name, fmt="fp64") if n in (None, row["n"])]
        held = [
            bool(row[f"{label} memory bound"]) == (bound == "memory")
            for row in here
            for label in ("printed", "corrected")
        ]
        words = f"n = {n}" if n else "every n"
        yield share(f"{name}: bound by {bound}, {words}, fp64, both thresholds", "so", held, "judged by both")
    for name, (_, t2, t3, _) in PUBLISHED.items():
        here = [row for row in _pick(main, gpu=name, fmt="fp64") if t2 is None or row["n"] == 16]
        for label in ("printed", "corrected"):
            held = [bool(row[f"{label} best {t2 or row['n']}"]) for row in here]
            measured = "; ".join(_range(row, label, "t2") + (f" at n = {row['n']}" if not t2 else "") for row in here)
            text = f"{name}: t2 is a best one, Algorithm 5, equations {label}"
            yield share(text, f"t2 = {t2 or 'n'}", held, measured)
            held = [bool(row[f"{label} best t3 {t3}"]) for row in here]
            measured = "; ".join(_range(row, label, "t3") + (f" at n = {row['n']}" if not t2 else "") for row in here)
            text = f"{name}: t3 is a best one, Algorithm 5, equations {label}"
            yield share(text, f"t3 = {t3}", held, measured)
    for name, (_, t2, _, t1) in PUBLISHED.items():
        here = [row for row in _pick(main, gpu=name, fmt="fp64") if t2 is None or row["n"] == 16]
        with_t2 = [(row, t2 or row["n"]) for row in here]
        held = [bool(row[f"t1 {t1} divides {x}"]) for row, x in with_t2]
        kept = ", ".join(f"{100 * row[f't1 {t1} held {x}']:.3g} %" for row, x in with_t2)
        claim, measured = f"{name}: t1 divides MaxOccup", f"keeps {kept} of the threads"
        if any(row[f"t1 {t1} divides {x}, some C"] > row[f"t1 {t1} divides {x}, every C"] for row, x in with_t2):
            yield Claim(claim, f"t1 = {t1}", f"C decides; with {tsm2.SETUP} it {measured}", OPEN)
        else:
            yield share(claim, f"t1 = {t1}", held, measured)
    tsm = _pick(rows, part="tsm2")
    worst = max((row[f"{label} over best"] for row in tsm for label in ("printed", "corrected")), default=1.0)
    held = [row[f"{label} over best"] <= 1 + tsm2.TIE for row in tsm for label in ("printed", "corrected")]
    yield share("Algorithm 5 by SLSQP finds what trying all finds", "", held, f"{worst:.6g} times the least")
    for fmt in TCF:
        short = sorted(_pick(rows, part="fig11", fmt=fmt), key=lambda row: row["k"])
        steps = [x["use"] <= y["use"] for x, y in itertools.pairwise(short)]
        ends = ", ".join(f"{100 * row['use']:.3g} % at k = {row['k']}" for row in (*short[:1], *short[-1:]))
        yield share(f"ISM2, {fmt}: the use of bandwidth falls with k (section 5.1)", "falls", steps, ends)
        selected = _pick(rows, part="tcf", fmt=fmt)
        yield share(
            f"ISM2, {fmt}: tcf keeps the GPU full",
            ", ".join(map(str, TCF[fmt].values())),
            [_tcf(row) <= row["most"] for row in selected],
            "at most " + ", ".join(f"{r['most']:g}" for r in selected),
        )
        yield share(
            f"ISM2, {fmt}: tcf is the largest that keeps it full",
            "",
            [_tcf(row) == row["most"] for row in selected],
            "at most " + ", ".join(f"{r['most']:g}" for r in selected),
        )
    last = [row["m"] / row["threads"] for row in rows if row["part"] == "tcf" and row["m"] == 10**7]
    measured = ", ".join(f"1/{x:.3g}" for x in sorted(set(last)))
    yield share("m = 10^7: threads can be cut to a share of m", "1/64", [32 <= x <= 128 for x in last], measured)


def finding(rows: list[dict[str, Any]]) -> str:
    main = [row for row in _pick(rows, part="tsm2", fmt="fp64", n=16) if row["latency"] == LATENCY]
    at = {row["gpu"]: row for row in main}
    known = {name: at[name] for name in PUBLISHED if name in at}
    P100, M40 = at.get("P100"), at.get("M40")
    held = {name: row[f"t1 {PUBLISHED[name][3]} held {PUBLISHED[name][1] or 16}"] for name, row in known.items()}
    new = {
        f"{name}:": f"t2 = {at[name]['corrected t2']:g}, t3 from {at[name]['t3 needed']:g}"
        for name in MACHINES[3:]
        if name in at
    }
    measured = _pick(rows, part="tsm2", gpu="H200", fmt="fp64", n=16, latency=MEASURED)
    descent = (
        {f"unit {u}:": f"t2 = {P100[f'descent {u} t2']:g}, t3 = {P100[f'descent {u} t3']:g}" for u in _UNITS}
        if P100
        else {}
    )
    full = {f"m = 10^{math.log10(r['m']):.0f}:": r["most"] for r in _pick(rows, part="tcf", fmt="fp32")}
    return paragraph(
        (
            "Peak / Band · 8 bytes, the published thresholds (a multiply-add is one operation)",
            {n: r["printed threshold"] for n, r in known.items()},
        ),
        ("half of it, which the time model needs", {n: r["corrected threshold"] for n, r in known.items()}),
        ("both give the same bound for each published case", bool(known)),
        (
            "t3 of Algorithm 5 as printed at n = 16, without a limit on the use of bandwidth, ends at the registers",
            {n: r["printed t3"] for n, r in known.items()},
            "g",
        ),
        ("smallest t3 that suffices with the limit", {n: r["t3 needed"] for n, r in known.items()}, "g"),
        (
            "P100's t2 = 4 with t3 = 4 is no outcome of the model for any latencies and C: t2 = 8 is faster",
            P100 is not None,
        ),
        ("time of t2 = 4 over t2 = 16", P100 and P100["time 4"], ".3g×"),
        ("end of the printed gradient descent, by the unit of time", descent),
        (
            "t2 on the M40 that take the same time, bound by computing",
            [M40["corrected least t2"], M40["corrected most t2"]] if M40 else None,
            "g",
        ),
        ("t2 there by the printed form", M40 and M40["printed most t2"], "g"),
        (f"share of the threads kept by the published t1, measured by the paper, C = {tsm2.SETUP}", held, ".3g%"),
        ("choice of the model for n = 16", new),
        (
            f"t3 on an H200 with the {MEASURED} cycles measured on one, from",
            [r["t3 needed"] for r in measured] if new else None,
            "g",
        ),
        (
            "largest tcf with which a V100 is full (the published ones, not predicted by the model, are not above)",
            full,
            "g",
        ),
    )


def _pick(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def _range(row: dict[str, Any], label: str, what: str) -> str:
    ends = dict.fromkeys(f"{row[f'{label} {end} {what}']:g}" for end in ("least", "most"))
    return " to ".join(ends)


def _tcf(row: dict[str, Any]) -> int:
    return TCF[row["fmt"]][round(math.log10(row["m"]))]
