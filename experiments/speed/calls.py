"""Whole calls on torch tensors of one GPU: host time, small products, batches, tall and skinny products."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Measure

from .._findings import paragraph
from .._rows import Row, listed, size_axis
from ._look import legend, plain_ticks

PAPER = "Speed on one GPU, measured here: yardsticks and goals of this project"
TITLE = "time of whole calls"
KIND = "G"
WAYS = {
    "eager": Series("call", plotting.BLUE, "o"),
    "plan": Series("call of a plan", plotting.GREEN, "s"),
    "replayed": Series("replay of a CUDA graph", plotting.ORANGE, "^"),
}
"""Ways to call: ``fpemu.gpu.gemm``, a plan of ``fpemu.gpu.plan``, and a CUDA graph of the call."""
SCHEMES = ("staged", "ootomo", "legemm", "bf16x9")
GOALS = {"eager": 1.0, "plan": 0.6}
"""Goals for the host time relative to torch.mm(out=)."""
SIZES = {512: 1.2, 1024: 1.8, 2048: 4.0}
"""Goals for the speed of a staged call relative to SGEMM."""
CAPTION = """(a) Host time per call of 512×512×512 relative to torch.mm(out=). (b) Speed of fp16 batches of n×n×n
relative to torch.bmm. (c) Speed of products n×n×n relative to torch.mm in fp32, split included."""
ASSUMPTIONS = [
    """Operands are torch tensors on the GPU, and the result is written to a given tensor. Host time: the median over 15
    repetitions of 50 calls that are queued without waiting. Time per call: the median over 7 repetitions, from the
    first of 50 calls to the end of the last one on the GPU.""",
    """One GPU, one driver and one processor: ratios of times measured in one run can be compared, microseconds
    cannot.""",
]


def _path() -> Path:
    return Path(__file__).with_name("h200_calls.json")


@functools.cache
def _record() -> tuple[str, dict[str, Any]]:
    """The digest and the content of the record of ``python -m benchmarks.launches.calls``."""
    data = _path().read_bytes()
    return hashlib.sha256(data).hexdigest()[:12], json.loads(data)


@listed
def cells(size: str) -> Iterator[Row]:
    digest, record = _record()
    for scheme in SCHEMES:
        for way in WAYS:
            yield {"kind": "host", "case": scheme, "way": way, "record": digest}
    for kind in ("batches", "products"):
        for case, times in record[kind].items():
            for way in times:
                yield {"kind": kind, "case": case, "way": way, "record": digest}


def evaluate(cell: Row) -> dict[str, float]:
    """Return the time per call in microseconds, and the speed or host time relative to the library's call."""
    _, record = _record()
    times = record[cell["kind"]][cell["case"]]
    if cell["kind"] == "host":
        return {"time_us": times[cell["way"]], "ratio": times[cell["way"]] / record["host"]["torch.mm(out=)"]}
    library = "bmm" if cell["kind"] == "batches" else "SGEMM"
    graph = " graph" if cell["way"].endswith(" graph") and f"{library} graph" in times else ""
    base = times.get(library + graph)
    return {"time_us": times[cell["way"]]} | ({} if base is None else {"ratio": base / times[cell["way"]]})


def _host(rows: list[Row], way: str) -> list[float]:
    return [row["ratio"] for row in rows if row["kind"] == "host" and row["way"] == way]


def _line(rows: list[Row], kind: str, way: str) -> dict[int, float]:
    """The ratios of a way to call by n; batches are named "n x count"."""
    selected = [row for row in rows if row["kind"] == kind and row["way"] == way and "ratio" in row]
    sizes = {row["case"].split(" x ")[0]: row["ratio"] for row in selected}
    return {int(n): ratio for n, ratio in sizes.items() if n.isdigit()}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(3, 1, height=2.9, share_y=False)
    host, batches, products = axes[0]
    for i, (way, series) in enumerate(WAYS.items()):
        places = [x + 0.25 * (i - 1) for x in range(len(SCHEMES))]
        host.bar(places, _host(rows, way), 0.22, color=series.color, label=series.label)
    host.set_xticks(range(len(SCHEMES)), SCHEMES)
    host.set_ylabel("host time / torch.mm")
    for axis, kind, lines in (
        (batches, "batches", {"fpemu": WAYS["eager"], "fpemu graph": WAYS["replayed"]}),
        (products, "products", {"staged": WAYS["eager"], "staged graph": WAYS["replayed"]}),
    ):
        for way, series in lines.items():
            line = _line(rows, kind, way)
            axis.plot(line.keys(), line.values(), **series.line(label="_" + series.label))
        size_axis(axis, [n for n in line if n & (n - 1) == 0])
        axis.set_xlabel("$n$")
    plain_ticks(batches)
    batches.set_ylabel("speed / torch.bmm")
    products.set_ylabel("speed / SGEMM")
    for axis in axes[0]:
        axis.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    plotting.panel_titles(axes, ["host time of a call", "fp16 batches", "staged accumulation"])
    legend(figure, axes, 3)
    return figure


@listed
def measures(rows: list[Row]) -> Iterator[Measure]:
    for way, goal in GOALS.items():
        yield Measure("calls_host", goal / max(_host(rows, way)), variant=f"{WAYS[way].label}, at most {goal:g}")
    yield Measure("calls_batches", min(_line(rows, "batches", "fpemu").values()))
    for n, goal in SIZES.items():
        ratio = _line(rows, "products", "staged").get(n)
        if ratio is not None:
            yield Measure("calls_products", ratio / goal, variant=f"{goal:g} times SGEMM at n = {n}")


def finding(rows: list[Row]) -> str:
    others = {row["case"]: row["ratio"] for row in rows if row["kind"] == "products" and row["way"] == "multiply"}
    return paragraph(
        ("host time / torch.mm", {f"{series.label}:": _host(rows, way) for way, series in WAYS.items()}),
        ("speed / torch.bmm", {f"n = {n}:": x for n, x in _line(rows, "batches", "fpemu").items()}),
        ("speed / SGEMM, staged", {f"n = {n}:": x for n, x in _line(rows, "products", "staged").items()}),
        ("tall and skinny, speed / cuBLAS", {f"{case}:": ratio for case, ratio in others.items()}),
    )
