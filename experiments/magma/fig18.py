"""MAGMA batched, figures 18 and 19: tiny products, real and half-complex, with and without the matrix unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed, rows_by
from ..speed._look import legend, plain_ticks
from ..speed._shapes import (
    BATCHED,
    LOOKS,
    RULES,
    best,
    cells_of,
    compared,
    evaluate,
    line,
    plot,
    ratios,
    reaches,
    span,
    told,
)

__all__ = ["evaluate"]

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), section 8, figures 18 and 19"""
EXPLAINS = ("magma/fig18",)
TITLE = "tiny products, with and without the matrix unit"
KIND = "G"
CAPTION = f"""10000 n×n×n products in a call: (a) HGEMM, (b) HCGEMM, TFLOP/s. magma-small is one thread an element, sums
in fp16, and once in fp32; the others add in fp32. cuBLAS is planar, by four calls, where it is complex. (c) How many
times as fast as cuBLAS the fastest of ours is. {told("magma/fig18")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """Of 10000 products up to n = 16 operands and result take 15 MB and less, twice that where they are complex: all of
    it stays in the L2 cache.""",
    """"Outperforms any kernel that uses the tensor cores below about 10" is judged for n below 10 and from 10 on, with
    blocks of MAGMA's design where products are real, else with what fpemu chooses.""",
]
OURS = dict.fromkeys(("real", "complex"), ("ours", "magma-small", "magma-small fp32"))
NAMES = {"real": "HGEMM", "complex": "HCGEMM"}
CROSSING = 10


cells = cells_of("magma/fig18")


_of = rows_by("data")


def _speedup(rows: list[dict[str, Any]], data: str, who: tuple[str, ...]) -> dict[int, float]:
    some = _of(rows, data)
    return ratios(best(some, who), line(some, shapes.BASE))


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.2, share_y=False)
    for axis, data in zip(axes[0], NAMES, strict=False):
        for name in (shapes.BASE, "cublas in one", *OURS[data], "magma", "tiny"):
            plot(axis, line(_of(rows, data), name), "rate", "M", LOOKS[name])
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    looks = {
        "real": Series("HGEMM, fastest of ours", plotting.SKY, "v", "-"),
        "complex": Series("HCGEMM, fastest of ours", plotting.PURPLE, "P"),
    }
    for data, look in looks.items():
        result = _speedup(rows, data, OURS[data])
        if result:
            axes[0, 2].plot(list(result), list(result.values()), **look.line())
    axes[0, 2].axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    axes[0, 2].set_ylabel("times as fast as cuBLAS")
    plain_ticks(axes[0, 2])
    for axis in axes[0]:
        axis.set_xticks(range(2, shapes.ALONE + 1, 2))
        axis.set_xlabel("$n$")
    plotting.panel_titles(axes, ["HGEMM", "HCGEMM", "speed-up"])
    legend(figure, axes, 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for data, name in NAMES.items():
        some = _of(rows, data)
        alone = ratios(line(some, "magma-small"), line(some, "magma" if data == "real" else "ours"))
        below, above = ({n: x for n, x in alone.items() if (n < CROSSING) == small} for small in (True, False))
        yield compared(
            f"{name}: magma-small is faster than blocks on the matrix unit below n = {CROSSING}",
            "below ≈ 10×10",
            below.values(),
            ">",
            1,
        )
        yield compared(
            f"{name}: blocks on the matrix unit are the faster from n = {CROSSING} on",
            "for larger sizes",
            above.values(),
            "<",
            1,
        )
    chosen = ratios(line(_of(rows, "real"), "magma-small"), line(_of(rows, "real"), "ours"))
    small = [x for n, x in chosen.items() if n < CROSSING]
    yield compared(
        f"HGEMM: magma-small is faster than what fpemu chooses, n below {CROSSING}",
        "any kernel that uses the TCs",
        small,
        ">",
        1,
    )
    real, complex_ = (_speedup(rows, data, OURS[data]) for data in NAMES)
    yield reaches("HGEMM: speed-up over cuBLAS (figure 18)", 6.6, 8.4, real.values())
    most = max(complex_, key=complex_.__getitem__, default=0)
    yield share(
        "HCGEMM: speed-up over cuBLAS (figure 19), the largest",
        "up to 21.8×",
        [complex_[most] >= 21.8] if complex_ else [],
        f"{complex_[most]:.3g}× at n = {most}" if complex_ else "",
    )
    yield share(
        "HGEMM: 8 times as fast as cuBLAS up to n = 8",
        "",
        [x >= 8 for n, x in real.items() if n <= 8],
        span(x for n, x in real.items() if n <= 8),
    )
    for data, name in NAMES.items():
        some = _of(rows, data)
        loop = ratios(line(some, "ours"), line(some, shapes.BASE), what="loop")
        yield compared(
            f"{name}, in a loop, the host's time included: what fpemu chooses is faster than cuBLAS",
            "",
            loop.values(),
            ">",
            1,
        )


def finding(rows: list[dict[str, Any]]) -> str:
    statements: list[tuple[Any, ...]] = []
    for data, name in NAMES.items():
        some = _of(rows, data)
        fastest = {row["M"]: row for row in best(some, OURS[data])}
        of = _speedup(rows, data, OURS[data])
        if not of:
            continue
        where = {
            f"{LOOKS[one].label} at n =": ", ".join(str(n) for n, row in fastest.items() if row["contender"] == one)
            for one in OURS[data]
        }
        times = {
            LOOKS[implementation].label: [
                1e6 * row["seconds"] for row in line(some, implementation) if row["M"] < CROSSING
            ]
            for implementation in (shapes.BASE, "magma-small", *(("magma",) if data == "real" else ()), "ours")
        }
        statements += [
            (f"{name}: the fastest of ours over cuBLAS", span(of.values())),
            ("the fastest", where),
            (f"GB/s at n = {max(fastest)}", fastest[max(fastest)]["bandwidth"]),
            (f"µs of a call below n = {CROSSING}", times),
        ]
    return paragraph(
        *statements,
        (
            "fpemu's choice keeps a product in one warp's registers, without the shared memory of the paper's blocks: "
            "magma-small has less to gain over it, and cuBLAS is another one",
            bool(statements),
        ),
    )
