"""The products behind each figure, in the order of their importance.

Sizes are those of a paper's text where it names some, and chosen here where it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu.case import Group, Shape

HEAD = 8192
"""n of the comparison of all implementations."""
LIBRARY = ("sgemm", "tf32", "fp16", "three fp16", "dgemm")
"""The library's products: in fp32, tf32, fp16 with fp32 sums, three of these accumulated by alpha and beta, in fp64."""
FRONTIER = ("staged-int8 exact=8", "staged-int8", "staged-int8 exact=4")
"""Schemes between plain fp16 and three products."""
STRASSEN = ("strassen", "strassen levels=2")
"""Strassen's algorithm over three products, with one level and with two."""
SCHEMES = ("ootomo", "legemm", "markidis", "h2sgemm term-wise", "h2sgemm element-wise")
OTHERS = ("ootomo-tf32", "bf16x9", "bf16x6", "bf16x3", "egemm", "ape", "ozaki2 SP moduli=7", "ozaki2 SP moduli=8")
"""Schemes on other words, and with other plans; Ozaki scheme II for fp32."""
SPEEDS = ("staged", *FRONTIER, *STRASSEN, *SCHEMES, *OTHERS)
"""The schemes for fp32."""
FP64 = ("dgemm", "ozaki DP", "ozaki CR", "ozaki2", "ozimmu", "ozaki DP words=int8")
ABLATION = ("legemm fused", "legemm 64x64", "legemm plain", "legemm mma")
"""Figure 17 of LE-GEMM: the model's tile, a tile chosen by hand, and the model's without a pipeline, all with the split
in their loads; and with words that are split in memory before."""
TILES = ("32x32", "64x64", "128x64", "128x128")
BLOCKS = tuple(f"h2sgemm element-wise {tile}{how}" for tile in TILES for how in ("", " plain"))
"""Figure 10 of H2SGEMM: blocks, with two buffers and with one."""
_FEW = ("fp16", "staged", FRONTIER[0])


def shapes(n: int) -> dict[str, Shape]:
    """Return LE-GEMM's three shapes, M × N × K."""
    return {"n×n×n": (n, n, n), "n×4n×n": (n, 4 * n, n), "n×n×4n": (n, n, 4 * n)}


def _square(n: int) -> Shape:
    return n, n, n


def groups(quick: bool = False) -> Iterator[Group]:
    """Return all groups, the most important first."""
    papers = ("legemm/fig9", "legemm/fig14", "legemm/fig18_speed", "h2sgemm/fig11")
    front = ("speed/frontier", "speed/sizes", "speed/shapes", *papers)
    yield Group(_square(HEAD), "symmetric", (*_FEW, FRONTIER[1]), "full", front)
    yield Group(
        _square(HEAD), "symmetric", ("sgemm", "three fp16", "tf32", "dgemm", FRONTIER[2], *STRASSEN), "brief", front
    )
    yield from _sizes()
    for data in ("positive", "phi 0.5", "normal"):
        yield Group(_square(HEAD), data, _FEW, "errors" if data == "normal" else "brief", ("speed/frontier",))
        others = ("sgemm", "tf32", "three fp16", *FRONTIER[1:], *STRASSEN, *SCHEMES, *OTHERS)
        yield Group(_square(HEAD), data, others, "errors", ("speed/frontier",))
    yield Group(_square(HEAD), "symmetric", SCHEMES, "short", front)
    yield Group(_square(HEAD), "symmetric", OTHERS, "short", ("speed/frontier",))
    yield from _legemm((8192, 4096), quick)
    yield from _dgemm_tc((10240, 8192), quick)
    yield from _legemm((2048, 1024) if quick else (2048, 1024, 7168, 3072), quick)
    yield from _h2sgemm(quick)
    yield from _dgemm_tc((4096, 2048, 1024) if quick else (7168, 4096, 3072, 2048, 1024), quick)


def _sizes() -> Iterator[Group]:
    """Return squares and LE-GEMM's other shapes, with both speeds and with the split."""
    for n in (4096, 2048, 16384, 1024, 512):
        shown = ("speed/sizes", "speed/shapes", "h2sgemm/fig11")
        yield Group(_square(n), "symmetric", _FEW, "brief" if n > 1024 else "short", shown)
        yield Group(_square(n), "symmetric", ("sgemm",), "short", shown)
        if n >= 4096:
            yield Group(_square(n), "symmetric", STRASSEN, "brief", ("speed/sizes",))
    for n in (HEAD, 4096, 2048, 1024, 512):
        for name, shape in shapes(n).items():
            if name != "n×n×n":
                yield Group(shape, "symmetric", (*_FEW, "sgemm"), "short", ("speed/shapes", "legemm/fig9"))


def _legemm(sizes: Sequence[int], quick: bool) -> Iterator[Group]:
    both = ("sgemm", "fp16", "fp16 mma", "legemm mma", "ootomo mma", "markidis mma", "staged")
    for n in sizes:
        for name, shape in shapes(n).items():
            if quick and n == HEAD and name != "n×n×n":
                continue
            more = ("legemm/fig14", "legemm/fig18_speed") if name == "n×n×n" else ()
            yield Group(shape, "symmetric", both, "first", ("legemm/fig9", *more))
            if name == "n×n×n":
                yield Group(shape, "symmetric", ("dgemm",), "first", ("legemm/fig18_speed",))
                if n in (8192, 4096, 2048, 1024):
                    yield Group(shape, "symmetric", ABLATION, "first", ("legemm/fig17",))


def _h2sgemm(quick: bool) -> Iterator[Group]:
    yield Group(_square(4096), "symmetric", BLOCKS, "first", ("h2sgemm/fig10",))
    implementations = ("sgemm", "fp16", "h2sgemm term-wise", "staged", *(() if quick else ("h2sgemm element-wise",)))
    for n in (1024, 4096, 8192) if quick else (512, 1024, 2048, 3072, 4096, 6144, 8192):
        yield Group((n, n, 2816), "symmetric", implementations, "first", ("h2sgemm/fig11",))
        yield Group((2816, 2816, n), "symmetric", implementations, "first", ("h2sgemm/fig11",))
        yield Group(_square(n), "symmetric", implementations, "first", ("h2sgemm/fig11",))


def _dgemm_tc(sizes: Sequence[int], quick: bool) -> Iterator[Group]:
    for n in sizes:
        large = n == 10240
        shown = ("dgemm_tc/fig4", "dgemm_tc/fig5a", *(("dgemm_tc/table1",) if large else ()))
        yield Group(_square(n), "phi 0.1", FP64, "first", shown, "fp64")
        if not large:
            yield Group(_square(n), "phi 0.1", ("sgemm", "ozaki SP"), "first", ("dgemm_tc/fig9",))
        for data in ("phi 1", "phi 2") if large or not quick else ():
            yield Group(_square(n), data, ("dgemm", "ozaki DP", "ozaki CR"), "first", shown, "fp64")
