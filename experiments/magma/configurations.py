"""MAGMA batched, section 5: the valid configurations, their number, and their cost at small sizes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row
from . import model as magma
from ._errors import PAPER

CAPTION = """The eight parameters of the kernel. (a) Valid configurations with blocks up to a size: by the printed
conditions of section 5.8, by the conditions that the printed loops need, and by the printed conditions within the
shared memory and registers of a V100. (b) Operations of the instructions over those of an n×n×n product, blocks of 16,
32 and 64, and the minimum over all configurations with blocks up to 64. (c) Number of configurations with the least
time by the model, over n."""
ASSUMPTIONS = [
    """A block has at most 1024 threads, the limit of CUDA, which the paper does not mention. The number of warps has no
    other limit.""",
    """Shared memory and registers are estimated from the printed code (_model_kernels.py), because the numbers of the
    compiler are not published.""",
    """The modelled time of a product in a large batch is the larger of two times: its traffic divided by 847 GB/s, and
    its operations, including zeros, divided by the peak of a V100's tensor cores.""",
]
LIMITS = (16, 32, 48, 64, 80, 96, 112, 128)
LENGTHS = (4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64)
SQUARES = (16, 32, 64)


def cells(limits: tuple[int, ...] = LIMITS, lengths: Sequence[int] = range(1, 65)) -> list[Row]:
    listed = [{"part": "count", "largest": limit, "n": 0} for limit in limits]
    return [*listed, *({"part": "size", "largest": 64, "n": n} for n in lengths)]


def evaluate(cell: Row) -> dict[str, float]:
    """Return the numbers of valid configurations ("count"), or padding and ties at a size ("size")."""
    if cell["part"] == "size":
        return _at(cell["n"], cell["largest"])
    gpu = gpus.get("V100")
    ways: dict[str, dict[str, Any]] = {
        "printed": {},
        "code": {"printed": False},
        "V100": {"gpu": gpu},
        "complex": {"gpu": gpu, "complex": True},
    }
    counts = {name: sum(1 for _ in magma.configurations(cell["largest"], **options)) for name, options in ways.items()}
    # threads along X load the rows of a stored block and threads along Y its columns: a transposed A has columns of M,
    # a transposed B rows of N
    for kernel in magma.configurations(cell["largest"], printed=False):
        (m, n, _), (x, y) = kernel.block, kernel.threads
        for name, fits in (("A", m % y == 0), ("B", n % x == 0), ("A and B", m % y == 0 and n % x == 0)):
            counts[f"code, {name} transposed"] = counts.get(f"code, {name} transposed", 0) + fits
    idle = magma.idle_warps(magma.Kernel((16, 16, 16), (64, 64, 64), (32, 32)))
    return {name: float(count) for name, count in counts.items()} | {"idle of 32 warps": float(idle)}


def _at(n: int, largest: int) -> dict[str, float]:
    ranked = magma.ranked(n, n, n, gpus.get("V100"), largest=largest)
    seconds = ranked[0][0]
    tied = [kernel for time, kernel in ranked if time <= seconds * (1 + 1e-12)]
    result = {"ties": float(len(tied)), "of": float(len(ranked))}
    result["least"] = min(magma.waste(kernel, n, n, n) for _, kernel in ranked)
    for b in SQUARES:
        result[f"waste {b}"] = magma.waste(magma.Kernel((16, 16, 16), (b, b, b), (8, 4)), n, n, n)
    first = Counter(kernel.tensor for kernel in tied if magma.waste(kernel, n, n, n) == result["least"])
    best = ranked[0][1]
    result |= {f"best {name}": float(value) for name, value in zip(("M", "N", "K"), best.block, strict=True)}
    result |= {"best warps": float(best.warps), "tight": float(sum(first.values()))}
    return result


LOADS = {
    "A and B not transposed, as printed": "code",
    "A transposed": "code, A transposed",
    "B transposed": "code, B transposed",
    "A and B transposed": "code, A and B transposed",
}
"""Counts of the configurations that the loops need, by the layouts of the operands."""

_COUNT = {
    "code": Series("needed by the loops", plotting.ORANGE, "^", "--"),
    "printed": Series("as printed", plotting.BLUE, "o"),
    "V100": Series("printed, fit on V100", plotting.GREEN, "s", "-."),
    "complex": Series("the same, complex", plotting.PURPLE, "v", ":"),
}
_WASTE = {
    "waste 16": Series("BLK = 16", plotting.ORANGE, "^"),
    "waste 32": Series("BLK = 32", plotting.BLUE, "o", "-."),
    "waste 64": Series("BLK = 64", plotting.GREEN, "s", "--"),
    "least": Series("least of all up to 64", plotting.BLACK, "x", ":"),
}
_TIES = {
    "ties": Series("shortest time", plotting.BLUE, "o"),
    "tight": Series("and least padding", plotting.GREEN, "s", "--"),
    "of": Series("all", plotting.GREY, "x", ":"),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=7.8, share_x=False, share_y=False)
    counts, sizes = _pick(rows, "count", "largest"), _pick(rows, "size", "n")
    for axis, looks, here, by in zip(
        axes[:, 0], (_COUNT, _WASTE, _TIES), (counts, sizes, sizes), ("largest", "n", "n"), strict=True
    ):
        for number, (name, look) in enumerate(looks.items()):
            # where many sizes are drawn, the markers of coinciding curves alternate
            style = look.line(markevery=(2 * number, 2 * len(looks)) if len(here) > 20 else None)
            axis.plot([row[by] for row in here], [row[name] for row in here], **style)
        axis.set_yscale("log")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2)
    axes[0, 0].set_xticks([row["largest"] for row in counts])
    axes[0, 0].set(xlabel="largest block size", ylabel="configurations")
    axes[1, 0].set(xlabel="$n$", ylabel="operations done / needed")
    axes[2, 0].set(xlabel="$n$", ylabel="configurations")
    for axis in axes[1:, 0]:
        axis.set_xticks([1, *range(8, 65, 8)])
    titles = ["valid configurations", "padding of an $n×n×n$ product", "shortest modelled time, blocks up to 64"]
    plotting.panel_titles(axes, titles)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in _pick(rows, "count", "largest")[-1:]:
        for reading, name in LOADS.items():
            yield Measure("divisibility", row[name] / row["printed"], reading)
        yield Measure("idle_warps", row["idle of 32 warps"])


def finding(rows: list[Row]) -> str:
    counts, sizes = _pick(rows, "count", "largest"), _pick(rows, "size", "n")
    last = counts[-1] if counts else {}
    names = {"printed": "section 5.8", "V100": "fit on a V100", "complex": "complex", "code": "needed by the loops"}
    tied = [row for row in sizes if row["ties"] > 1]
    worst = max(sizes, key=lambda row: row["waste 64"], default=None)
    ties = {
        "all": [row["ties"] for row in tied],
        f"with the least padding (of {tied[0]['of'] if tied else 0:g})": [row["tight"] for row in tied],
    }
    return paragraph(
        (
            f"the numbers of valid configurations with blocks up to {last.get('largest')} are",
            {label: last[name] for name, label in names.items()} if counts else None,
            "g",
        ),
        (
            "threads along X run over M and K, and threads along Y over K and N, so the printed loops do not require "
            "that DIM_X divides BLK_N or that DIM_Y divides BLK_M",
            bool(counts),
        ),
        (
            f"several configurations have the shortest modelled time at n = {tied[0]['n']} to {tied[-1]['n']}"
            if tied
            else "",
            ties if tied else None,
            "g",
        ),
        ("traffic and padding do not distinguish these configurations, all of which the paper measures", bool(tied)),
        (
            f"the operations divided by the required operations at n = {worst['n'] if worst else 0} are",
            {"blocks of 64": worst["waste 64"], "least": worst["least"]} if worst else None,
            ".4g×",
        ),
    )


def _pick(rows: list[Row], part: str, by: str) -> list[Row]:
    return sorted((row for row in rows if row["part"] == part), key=lambda row: row[by])


QUICK = {"limits": LIMITS[:6], "lengths": LENGTHS}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, quick=QUICK, kind="M")
