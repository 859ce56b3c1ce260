"""The small and the tall products behind the figures of MAGMA's batches and of TSM2 and ISM2.

Rows of the kind "batched" are batches of fp16 products with "real" or "complex" as their "data". Rows of the kind
"tall" are A (M, K) times B (K, N) of few columns; their "data" names format and layout: by columns, as in the papers,
or by rows. Sizes are chosen here where a paper prints none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.gpu.case import STEADY, Case, Group, Shape

BATCHED, TALL = "batched", "tall"
BASE = "cublas"
"""The implementation that the others are compared with; for complex products cuBLAS in planar layout, by four calls."""

_SIZES = "2 3 4 5 6 7 8 10 12 13 14 16 17 20 24 28 31 32 33 40 48 56 63 64 65 72 80 88 96 100 104 112 120 127 128"
SIZES = tuple(map(int, _SIZES.split()))
COMPLEX_SIZES = (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 100, 112, 128, 160, 192, 224, 256)
EVERY = tuple(range(2, 129))
"""Sizes at which only the package's default and cuBLAS are measured."""
GOALS = (2, 4, 8, 16, 32, 64, 128)
"""Sizes that are measured first."""
LARGEST = {"real": 128, "complex": 256}
RANK, BATCH, MANY, FEW = 16, 1000, 10000, (10, 100)
"""The rank of a small update; products in a batch: the usual, for tiny ones, and those that do not fill a GPU."""
SPREAD = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
LIMITS = {"tiny": 8, "magma-small": 16, "magma-small fp32": 16, "magma": 32}
"""n up to which an implementation is measured: several products in one instruction, one thread per element (sums in
fp16 as in the paper, and in fp32), and blocks of MAGMA's design, which "ours" selects for larger n."""
HALF = "cublas fp16"
IMPLEMENTATIONS = {
    "real": (BASE, HALF, "ours", "magma", "magma-small", "magma-small fp32", "tiny"),
    "complex": (BASE, "cublas in one", "ours", "magma-small", "magma-small fp32"),
}
"""cuBLAS adds in fp32, and real products in fp16 too; "ours" is the package's default, with sums in fp32."""
OTHERS = {"real": ("ours fp16",), "complex": ("ours planar", "ours three products")}
"""At some sizes: sums in fp16, the other layout, three real products in place of four."""
LARGE_SIZES, LARGE_BATCH = (2000, 2100), 100
"""Sizes of section 7.2, far larger than the figures'; only the first is a multiple of 8."""
ALONE = 16
"""The largest of tiny products."""
WARPS, DIM_X, WARPS_BATCH, WARPS_N = (1, 2, 4, 8, 16, 32), (16, 32), 500, 64

FORMATS = ("fp32", "fp64")
LARGE, COLUMNS = 20480, (2, 4, 8, 16)
SQUARE = (10240, 15360, 20480, 25600, 30720)
VERSIONS = ("V0", "V1", "V2", "V3")
MAIN = (BASE, "V3", "hopper")
UNEVEN, SHORT, INNER = (1, 2, 3, 4, 5, 6, 8), (1, 2, 4, 8, 16, 32, 64, 128, 256), 15360
"""Figures 10 and 11 of ISM2: rows over k, or k itself, for so many rows."""
ROWS = (10**7, 10**6, 10**5, 10**4)
TCF = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def warps(dim_x: int, count: int) -> str:
    """Return the implementation of figure 7 of MAGMA with `count` warps, as threads DIM_X by DIM_Y.

    >>> warps(16, 4)
    'magma 16x8'
    """
    return f"magma {dim_x}x{32 * count // dim_x}"


def tcf(optimisation: int, factor: int) -> str:
    """Return the implementation of figure 12 of ISM2.

    >>> tcf(1, 64)
    'opt 1 tcf=64'
    """
    return f"opt {optimisation} tcf={factor}"


def cases(kind: str, groups: Iterable[Group]) -> Iterator[Case]:
    """Return the cases of groups, each once; those of one product are consecutive, and share their operands."""
    merged: dict[tuple[Shape, str, int], dict[str, tuple[str, ...]]] = {}
    for group in groups:
        rows = merged.setdefault((group.shape, group.data, group.batch), {})
        for name in group.implementations:
            rows[name] = tuple(dict.fromkeys((*rows.get(name, ()), *group.figures)))
    for (shape, data, batch), rows in merged.items():
        fmt = data.split()[0] if kind == TALL else "fp16"
        for name, pages in rows.items():
            yield Case(kind, *shape, data, name, STEADY, fmt, pages, batch)


def _group(shape: Shape, data: str, names: tuple[str, ...], pages: tuple[str, ...], batch: int = 1) -> Group:
    return Group(shape, data, names, STEADY, pages, batch=batch)


# --- batches
def batched(quick: bool = False) -> Iterator[Group]:
    """Return groups of batches, the most important first."""
    sizes = {"real": SIZES, "complex": COMPLEX_SIZES}
    for data, page in (("real", "magma/fig10"), ("complex", "magma/fig12")):
        yield from (_square(data, n, BATCH, page) for n in sorted({*GOALS, LARGEST[data]}))
    for n in GOALS[:4] if quick else range(1, ALONE + 1):
        yield from (_square(data, n, MANY, "magma/fig18") for data in sizes)
    for data, page in (("real", "magma/fig10"), ("complex", "magma/fig12")):
        for n in SPREAD:
            if n <= LARGEST[data] and (not quick or n in GOALS):
                yield _group((n, n, RANK), data, _few(data), (page,), BATCH)
    for data in sizes:
        for n in SPREAD:
            if n <= LARGEST[data] and (not quick or n in GOALS):
                yield from (_group((n, n, n), data, _few(data), ("magma/fig14",), few) for few in FEW)
    forms = tuple(warps(x, count) for x in DIM_X for count in WARPS)
    yield _group((WARPS_N,) * 3, "real", (BASE, "ours", *forms), ("magma/fig7",), WARPS_BATCH)
    yield from (_group((n, n, n), "real", (BASE, HALF, "ours"), ("magma/fig10",), LARGE_BATCH) for n in LARGE_SIZES)
    if not quick:
        for data, page in (("real", "magma/fig10"), ("complex", "magma/fig12")):
            yield from (_square(data, n, BATCH, page) for n in sizes[data])
        yield from (_group((n, n, n), "real", (BASE, "ours"), ("magma/fig10",), BATCH) for n in EVERY)


def _few(data: str) -> tuple[str, ...]:
    return tuple(name for name in IMPLEMENTATIONS[data] if name not in (*LIMITS, HALF))


def _square(data: str, n: int, batch: int, page: str) -> Group:
    chosen = tuple(name for name in IMPLEMENTATIONS[data] if n <= LIMITS.get(name, n))
    if batch == BATCH and n in (*GOALS, LARGEST[data]):
        chosen += OTHERS[data]
    return _group((n, n, n), data, chosen, (page,), batch)


# --- tall matrices
def tall(quick: bool = False) -> Iterator[Group]:
    """Return groups of tall products, the most important first."""
    yield from (_large(fmt, LARGE, n) for fmt in FORMATS for n in COLUMNS)
    yield from (_narrow(fmt, ROWS[0], n) for fmt in FORMATS for n in COLUMNS)
    for fmt in FORMATS:
        factors = tuple(tcf(form, factor) for form in (1, 2) for factor in TCF)
        yield _group((ROWS[0], 16, 16), f"{fmt} columns", (BASE, *factors), ("tsm2/fig12",))
    for rows in ROWS[1:]:
        yield from (_narrow(fmt, rows, n) for fmt in FORMATS for n in COLUMNS if not quick or n == 16)
    for fmt in reversed(FORMATS):
        yield from (_inner(fmt, k) for k in sorted({*SHORT, *(INNER // part for part in UNEVEN)}))
    if not quick:
        sizes = (SQUARE[0], SQUARE[-1], *SQUARE[1:-1])
        yield from (_large(fmt, m, n) for m in sizes for fmt in FORMATS for n in COLUMNS)
    for fmt in FORMATS:
        for n in (16,) if quick else COLUMNS:
            yield _group((LARGE, n, LARGE), f"{fmt} rows", (BASE, "hopper"), ("tsm2/fig5",))
            yield _group((ROWS[0], n, n), f"{fmt} rows", (BASE, "hopper"), ("tsm2/fig13",))


def _large(fmt: str, m: int, n: int) -> Group:
    """Return a product of figures 4 to 9: every version at three sizes, the best at all."""
    names = (BASE, *VERSIONS, "hopper") if m in (SQUARE[0], LARGE, SQUARE[-1]) else MAIN
    pages = ("tsm2/fig4", "tsm2/fig5", *(("tsm2/fig6",) if n == 16 else ()))
    return _group((m, n, m), f"{fmt} columns", names, pages)


def _narrow(fmt: str, rows: int, n: int) -> Group:
    """Return a product of figures 13 and 14."""
    return _group((rows, n, n), f"{fmt} columns", (*MAIN, "opt 1", "opt 2"), ("tsm2/fig13",))


def _inner(fmt: str, k: int) -> Group:
    """Return a product of figures 10 and 11."""
    short = k in SHORT
    return _group(
        (INNER, 16, k),
        f"{fmt} columns",
        (*MAIN, *(("opt 1",) if short else ())),
        ("tsm2/fig11",) if short else ("tsm2/fig10",),
    )
