"""Whole calls on torch tensors of one GPU: host time, batches, long sums, sustained, and tall and skinny products."""

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calls.sections import BATCHES
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, size_axis
from ._look import plain_ticks
from ._record import measured_on, record_file

PAPER = "Speed on one GPU, measured here: yardsticks and goals of this project"
WAYS = {
    "eager": Series("call", plotting.BLUE, "o"),
    "plan": Series("call of a plan", plotting.GREEN, "s"),
    "replayed": Series("replay of a CUDA graph", plotting.ORANGE, "^", "--"),
}
"""Ways to call: ``fpemu.gpu.gemm``, a plan of ``fpemu.gpu.plan``, and a CUDA graph of the call."""
SCHEMES = ("staged", "ootomo", "legemm", "bf16x9")
SUSTAINED = {
    "staged": WAYS["eager"],
    "staged, balanced": Series("balanced split", plotting.GREEN, "D"),
    "staged, Strassen": Series("Strassen's algorithm, one level", plotting.PURPLE, "X", ":"),
}
SECTIONS = {
    "host": "host time",
    "batches": "batches",
    "products": "products",
    "sustained": "sustained products",
    "long_sums": "long sums",
    "tall": "tall and skinny products",
    "ozaki2": "Ozaki scheme II",
    "split": "split alone",
    "operators": "operators of fpemu.torch",
}
"""Sections of the record, in words."""
LIBRARY = ("torch.mm(out=)", "torch.bmm(out=)", "SGEMM", "DGEMM", "bmm", "torch.mm", "torch.bmm", "three fp16", "both")
"""Calls to which the other calls of a case are compared: the first of them that the case has."""
GOALS = {"eager": 1.0, "plan": 0.75}
"""Goals for the host time relative to torch.mm(out=)."""
SIZES = {512: 1.2, 1024: 1.8, 2048: 4.0}
"""Goals for the speed of a staged call relative to SGEMM."""


def _path() -> Path:
    return record_file("h200_calls.json")


def provenance() -> str:
    """Return the GPU, its driver, the libraries and the dates, for the caption."""
    head = json.loads(_path().read_bytes()) if _path().is_file() else {}
    if not head.get("about"):
        return "No record of whole calls is here."
    library = f"{head['library']}, PyTorch {head['torch']}"
    dates = {about["date"] for about in head["about"].values()}
    return measured_on({"device": {**head, "library": library}}, dates)


CAPTION = f"""(a) Host time per call of 512×512×512 relative to torch.mm(out=). (b) Speed of fp16 batches of n×n×n
relative to torch.bmm. (c) Speed of products n×n×n relative to torch.mm in fp32, split included. (d) Sustained speed of
products n×n×n relative to three fp16 products of cuBLAS, split included. (e) Speed of products M×N×K with a large K
relative to torch.mm in fp32. (f) Speed relative to torch.mm of tall and skinny products m×k×n and of the Ozaki scheme
II in fp64. {provenance()}"""
ASSUMPTIONS = [
    """Operands are torch tensors on the GPU, and the result is written to a given tensor. Host time: the median over 15
    repetitions of 50 calls that are queued without waiting. Time per call: the median over 7 repetitions, from the
    first of 3 to 50 calls to the end of the last one on the GPU. Sustained speed: the calls alternate without a pause
    every 0.2 s, for 1.6 s per call; the median of the second half.""",
    """The measurements are from one GPU, one driver and one processor: only ratios of times in one run can be
    compared.""",
]


@functools.cache
def _record() -> tuple[str, dict[str, dict[str, Row]], dict[str, dict[str, list[str]]]]:
    """The digest of the record of ``python -m benchmarks.calls``, its rows by section and case, and the cases without
    times: "not measured" and "failed", by section."""
    data = _path().read_bytes()
    record = json.loads(data)
    # an earlier benchmark measured torch.mm once, and all products in one section
    if record.get("about") is None and "host" in record:
        base = {LIBRARY[0]: record["host"][LIBRARY[0]]}
        record["host"] = {name: base | row for name, row in record["host"].items() if isinstance(row, dict)}
        tall = {name: row for name, row in record["products"].items() if "multiply" in row}
        record["tall"] = {name: {"torch.mm": row["SGEMM"], "multiply": row["multiply"]} for name, row in tall.items()}
        record["products"] = {name: row for name, row in record["products"].items() if name not in tall}
    rows = {name: record[name] for name in SECTIONS if name in record}
    lacking = {
        "not measured": {name: (record.get("about") or {}).get(name, {}).get("not measured", []) for name in rows},
        "failed": {name: [case for case, row in cases.items() if "error" in row] for name, cases in rows.items()},
    }
    return hashlib.sha256(data).hexdigest()[:12], rows, lacking


def cells() -> Iterator[Row]:
    digest, record, _ = _record()
    for kind, cases in record.items():
        for case, row in cases.items():
            for way, value in row.items():
                if way != "error" and not isinstance(value, list):
                    yield {"kind": kind, "case": case, "way": way, "record": digest}


def evaluate(cell: Row) -> dict[str, float]:
    """Return the time per call in microseconds, and the speed, or host time, relative to the library's call.

    "split" has the part of a call's time.
    """
    row, way = _record()[1][cell["kind"]][cell["case"]], cell["way"]
    library = next((name for name in LIBRARY if name in row), "")
    like = next((end for end in (" graph", " and backward") if way.endswith(end) and library + end in row), "")
    numbers = {"time_us": row[way]}
    if library:
        ratio = row[way] / row[library + like]
        numbers["ratio"] = ratio if cell["kind"] in ("host", "operators", "split") else 1 / ratio
    return numbers


def _host(rows: list[Row], way: str) -> dict[str, float]:
    """The host time relative to the library's call, by the scheme."""
    return {name: ratio for name, ratio in _cases(rows, "host", way).items() if name in SCHEMES}


def _cases(rows: list[Row], kind: str, way: str) -> dict[str, float]:
    """The ratios of a way to call by the name of the case."""
    selected = [row for row in rows if row["kind"] == kind and row["way"] == way]
    return {row["case"]: row["ratio"] for row in selected if "ratio" in row}


def _line(rows: list[Row], kind: str, way: str) -> dict[int, float]:
    """The ratios of a way to call by n; batches are named "n x count"."""
    sizes = {case.split(" x ")[0]: ratio for case, ratio in _cases(rows, kind, way).items()}
    return {int(n): ratio for n, ratio in sorted(sizes.items(), key=lambda item: item[0].zfill(6)) if n.isdigit()}


def _bars(axis: Any, bars: dict[str, dict[str, float]], series: dict[str, Series]) -> None:
    """Draw horizontal bars of cases, one per way to call, the first case at the top."""
    cases = list(dict.fromkeys(case for of in bars.values() for case in of))
    for i, (way, of) in enumerate(bars.items()):
        width = 0.7 / len(bars)
        places = [cases.index(case) + width * (i - (len(bars) - 1) / 2) for case in of]
        axis.barh(places, of.values(), width, **_filling(series[way]), label="_" + series[way].label)
    axis.set_yticks(range(len(cases)), [case.replace(" float", " fp") for case in cases], fontsize=6.5)
    axis.invert_yaxis()


def _filling(series: Series) -> dict[str, Any]:
    """The colour and the hatch of a bar."""
    hatch = {"o": "", "s": "////", "^": "...."}[series.marker]
    return {"facecolor": series.color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def draw(rows: list[Row]) -> Any:
    figure, panels = plotting.figure(2, 4, height=7.6, share_x=False, share_y=False)
    for axis in panels[2:].flat:
        axis.remove()
    sums, narrow = (figure.add_subplot(panels[0, 0].get_gridspec()[row, :]) for row in (2, 3))
    (host, batches), (products, late) = panels[:2]
    axes = np.array([host, batches, products, late, sums, narrow])
    for i, (way, series) in enumerate(WAYS.items()):
        times = _host(rows, way)
        places = [SCHEMES.index(name) + 0.25 * (i - 1) for name in times]
        host.bar(places, list(times.values()), 0.22, **_filling(series), label=series.label)
    host.set_xticks(range(len(SCHEMES)), SCHEMES, rotation=20)
    graph = WAYS["replayed"]
    for axis, kind, lines in (
        (batches, "batches", {"fpemu": WAYS["eager"], "fpemu graph": graph}),
        (products, "products", {"staged": WAYS["eager"], "staged graph": graph}),
        (late, "sustained", SUSTAINED),
    ):
        ticks: set[int] = set()
        for way, series in lines.items():
            line = _line(rows, kind, way)
            if line:
                label = "_" * (series in WAYS.values()) + series.label
                axis.plot(
                    line.keys(), line.values(), **series.line(label=label, markersize=6 if series.marker == "o" else 3)
                )
            ticks |= line.keys()
        size_axis(axis, sorted(ticks))
        axis.set_xlabel("$n$")
    plain_ticks(batches)
    _bars(
        sums,
        {way: _cases(rows, "long_sums", way) for way in ("staged", "staged graph")},
        {"staged": WAYS["eager"], "staged graph": graph},
    )
    scaled = {way: _cases(rows, "ozaki2", way) for way in ("fast", "accurate")}
    errorfree = {f"Ozaki II {way}, {n}": ratio for way, of in scaled.items() for n, ratio in of.items() if n == "8192"}
    _bars(narrow, {"multiply": _cases(rows, "tall", "multiply") | errorfree}, {"multiply": WAYS["eager"]})
    host.set_ylabel("host time / torch.mm")
    batches.set_ylabel("speed / torch.bmm")
    products.set_ylabel("speed / SGEMM")
    late.set_ylabel("speed / 3 fp16 calls")
    sums.set_xlabel("speed / SGEMM")
    narrow.set_xlabel("speed / cuBLAS")
    for axis, kind in zip(axes.flat, ("host", "batches", "products", "sustained", "long_sums", "tall"), strict=True):
        if any(row["kind"] == kind for row in rows):
            line = axis.axvline if axis in (sums, narrow) else axis.axhline
            line(1, color=plotting.GREY, linestyle="--", linewidth=0.8, label="library")
        else:
            axis.set(xticks=[], yticks=[])
            axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center")
    titles = ["host time of a call", "fp16 batches", "staged accumulation", "sustained", "long sums", "tall and skinny"]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes, 2, "(a) 512×512×512, (b) to (d) n×n×n, (e) and (f) as named")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for way, goal in GOALS.items():
        times = _host(rows, way)
        if set(times) == set(SCHEMES):
            yield Measure("calls_host", goal / max(times.values()), variant=f"{WAYS[way].label}, at most {goal:g}")
    batches = _line(rows, "batches", "fpemu")
    if set(batches) == set(BATCHES):
        yield Measure("calls_batches", min(batches.values()))
    for n, goal in SIZES.items():
        ratio = _line(rows, "products", "staged").get(n)
        if ratio is not None:
            yield Measure("calls_products", ratio / goal, variant=f"{goal:g} times SGEMM at n = {n}")


def finding(rows: list[Row]) -> str:
    late = {series.label: _line(rows, "sustained", way) for way, series in SUSTAINED.items()}
    long_sums, tall = _cases(rows, "long_sums", "staged"), _cases(rows, "tall", "multiply")
    errorfree = {way: _line(rows, "ozaki2", way) for way in ("fast", "accurate")}
    split = _line(rows, "split", "split")
    _, record, without_times = _record()
    lacking = {
        what: [f"{SECTIONS[kind]} ({', '.join(cases)})" for kind, cases in of.items() if cases]
        for what, of in without_times.items()
    }
    lacking["not measured"] += [
        name for kind, name in SECTIONS.items() if not (record.get(kind) or without_times["not measured"].get(kind))
    ]
    return paragraph(
        ("host time / torch.mm", {f"{series.label}:": _host(rows, way).values() for way, series in WAYS.items()}),
        ("speed / torch.bmm", {f"n = {n}:": x for n, x in _line(rows, "batches", "fpemu").items()}),
        ("speed / SGEMM, staged", {f"n = {n}:": x for n, x in _line(rows, "products", "staged").items()}),
        (
            "sustained speed / three fp16 calls",
            {f"{label}, n = {n}:": x for label, line in late.items() for n, x in line.items()},
        ),
        ("long sums, speed / SGEMM", {f"{case}:": ratio for case, ratio in long_sums.items()}),
        ("tall and skinny, speed / cuBLAS", {f"{case}:": ratio for case, ratio in tall.items()}),
        (
            "Ozaki scheme II, speed / DGEMM",
            {f"{way}, n = {n}:": x for way, line in errorfree.items() for n, x in line.items()},
        ),
        ("time of the split / time of split and product", {f"n = {n}:": x for n, x in split.items()}, ".2g"),
        *((what, ", ".join(names)) for what, names in lacking.items()),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
