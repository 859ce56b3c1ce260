"""MAGMA batched, figures 18 and 19: tiny products, real and half-complex, with and without the matrix unit."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, rows_by
from ..speed._shapes import BATCHED, LOOKS, RULES, best, cells_of, evaluate, line, provenance, ratios, span
from ._errors import PAPER
from ._speed import IN_LEGEND, NAMES, factors, rates, speedups

CAPTION = f"""10000 n×n×n products in a call: (a) HGEMM, (b) HCGEMM, TFLOP/s. magma-small has one thread
per element, with sums in fp16 and also in fp32; the others have sums in fp32. Complex products of cuBLAS are planar,
by four calls. (c) Speed-up of the fastest kernel of fpemu over cuBLAS. {provenance("magma/fig18")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """Operands and results of 10000 products up to n = 16 take at most 15 MB, or 30 MB if complex, and stay in the L2
    cache.""",
    """"Any kernel that uses the tensor cores" means blocks of MAGMA's design and the default kernel of fpemu for real
    products, and the default kernel for complex products.""",
]
OURS = ("ours", "magma-small", "magma-small fp32")
CROSSING = 10
"""The n from which the paper's kernel with tensor cores is the faster one."""
cells = cells_of("magma/fig18")


def _speedup(rows: list[Row], data: str) -> dict[int, float]:
    some = _of(rows, data)
    return ratios(best(some, OURS), line(some, shapes.BASE))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=7.0, share_y=False)
    for axis, data in zip(axes[:, 0], NAMES, strict=False):
        rates(axis, _of(rows, data), (shapes.BASE, "cublas in one", *OURS, "magma", "tiny"))
    looks = {"real": (plotting.BLACK, "v", "-"), "complex": (plotting.PURPLE, "P", "--")}
    curves = ((_speedup(rows, data), Series(f"(c) {NAMES[data]}", *look)) for data, look in looks.items())
    factors(axes[2, 0], curves)
    axes[2, 0].set_xticks(range(1, shapes.ALONE + 1))
    axes[2, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, [*NAMES.values(), "speed-up of the fastest kernel of fpemu"])
    plotting.legend_below(figure, axes, 2, title=f"10000 products; {IN_LEGEND}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for data, name in NAMES.items():
        some, fastest = _of(rows, data), _speedup(rows, data)
        if fastest:
            yield Measure("tiny_speedup", max(fastest.values()), variant=name)
        for base, words in (("magma", "blocks of MAGMA's design"), ("ours", "fpemu's choice")):
            below = [x for n, x in speedups(some, "magma-small", base).items() if n < CROSSING]
            if below:
                yield Measure("small_kernel_below_10", min(below), variant=f"{name}, {words}")


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for data, name in NAMES.items():
        some, of = _of(rows, data), _speedup(rows, data)
        if not of:
            continue
        fastest = {row["M"]: row for row in best(some, OURS)}
        where = {
            f"{LOOKS[one].label} at n =": ", ".join(str(n) for n, row in fastest.items() if row["contender"] == one)
            for one in OURS
        }
        times = {
            LOOKS[one].label: [1e6 * row["seconds"] for row in line(some, one) if row["M"] < CROSSING]
            for one in (shapes.BASE, "magma-small", *(("magma",) if data == "real" else ()), "ours")
        }
        statements += [
            (f"{name}: the speed-up of the fastest kernel of fpemu over cuBLAS is {{}}", span(of.values())),
            ("the fastest kernels are", where),
            (f"the bandwidth at n = {max(fastest)} is {{}} GB/s", fastest[max(fastest)]["bandwidth"]),
            (f"the times of a call below n = {CROSSING} in µs are", times),
        ]
    return paragraph(
        *statements,
        (
            "the default kernel keeps a product in the registers of one warp and uses no shared memory, unlike the "
            "paper's blocks, so magma-small has a smaller advantage; cuBLAS is another version",
            bool(statements),
        ),
    )


_of = rows_by("data")


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
