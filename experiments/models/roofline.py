"""Bounds on the speed of each fp32 scheme by a GPU's peaks, and the n from which it can be faster than SGEMM.

The model is `fpemu.roofline.time`: every phase takes the longest of its products at the peak of the matrix unit,
its vector operations at the peak of the ordinary cores, and its bytes at the stated bandwidth. It is a bound on speed.
"""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row
from . import _speed
from ._speed import evaluate as evaluate

PAPER = "Rooflines of the schemes: data sheets of GPUs and the work that each scheme does"
CAPTION = """Bounds on speed for n×n×n products in fp32, 2n^3 over the least time by the roofline, on seven GPUs; (h)
the size from which each scheme's bound is above SGEMM's, the split in a separate kernel (filled) or fused (open, where
different). SGEMM runs on the faster of the ordinary cores and a matrix unit for fp32. H2SGEMM stands for all
three-product fp16 schemes in one kernel (Ootomo, except on the Ascend 910A, LE-GEMM, multiword, and staged
accumulation, a scheme of this project) and for bf16x3, Markidis for EGEMM-TC. Nothing is measured: these lines are
upper bounds, and the speeds of efficient programs are well below them."""
ASSUMPTIONS = [
    """Peaks and bandwidths are the manufacturers' values at the stated clocks, without sparsity, from fpemu's table of
    GPUs, which states its sources (fpemu/roofline/gpus.toml).""",
    """The figure has seven GPUs of data centres. It omits GeForce GPUs (RTX 3090, 4090 and 5090), whose fp16 matrix
    unit with fp32 sums is twice as fast as their ordinary cores, so that no scheme can be faster than SGEMM.""",
    """Every kernel reads its inputs and writes its outputs once; kernels run one after another; within a kernel,
    products, vector operations and memory accesses overlap completely.""",
    """The split is a separate kernel that writes the words, except for the open markers of (h), where every tile of 128
    × 128 entries splits its operands.""",
    """Scheme II computes an fp32 product with 8 moduli, and one product for its scaling. On the Ascend 910A, which has
    no matrix unit for fp32, SGEMM runs on the vector unit.""",
    "Break-even sizes are multiples of 64, eight per octave, up to 2^15; the scheme is faster from this size on.",
]

GPUS = ("V100", "A100", "H200", "B200", "MI210", "MI300X", "Ascend 910A")
THREE = ("ootomo", "legemm", "h2sgemm", "multiword", "staged")
_FP16 = ("fp16", *THREE, "ape", "markidis", "egemm")
_BF16 = ("bf16x3", "bf16x6", "bf16x9")
LOOK = {
    "sgemm": plotting.SCHEMES["sgemm"],
    "fp16": Series("plain fp16", plotting.GREY, "x"),
    "h2sgemm": Series("three fp16 products (H2SGEMM)", plotting.SKY, "D"),
    "ape": Series("three library calls (APE)", plotting.PURPLE, "v", "--"),
    "markidis": Series("four fp16 products (Markidis)", plotting.ORANGE, "^"),
    "ootomo-tf32": Series("three tf32 products", plotting.BLUE, "P"),
    "bf16x9": Series("bf16x9", plotting.GREEN, "o"),
    "ozaki2 (fp32)": Series("Ozaki scheme II, 8 moduli", plotting.VERMILION, "s"),
}


def cells() -> list[Row]:
    listed: list[Row] = []
    for gpu in GPUS:
        have = gpus.get(gpu).peak
        names = ["sgemm", *_FP16]
        names += _BF16 if "bf16 matrix" in have else ()
        names += ["ootomo-tf32"] if "tf32 matrix" in have else []
        names += ["ozaki2"] if "int8 matrix" in have else []
        listed += [{"gpu": gpu, "scheme": name, "precision": "fp32"} for name in names]
    return listed


def draw(rows: list[Row]) -> Any:
    return _speed.draw(rows, GPUS, LOOK, "sgemm", height=7.2)


def measures(rows: list[Row]) -> Iterator[Measure]:
    for name in ("h2sgemm", "markidis", "bf16x9", "ozaki2 (fp32)"):
        ratios = [row["ratio"] for row in rows if _speed.name_of(row) == name]
        if ratios:
            yield Measure("beats_sgemm", min(ratios), variant=LOOK[name].label)


def finding(rows: list[Row]) -> str:
    ours = [row for row in rows if row["scheme"] == "h2sgemm" and row["from"]]
    never = [row for row in rows if row["scheme"] not in ("sgemm", "fp16") and not row["from"]]
    slow = [row for row in rows if row["scheme"] in THREE and row["busy"] < 0.8]
    if not ours:
        return ""
    return paragraph(
        ("the largest gains of three fp16 products over SGEMM are", {row["gpu"]: row["ratio"] for row in ours}, ".3g×"),
        ("with the split in a separate kernel, the gains start at n = {}", [row["from"] for row in ours], ".0f"),
        (
            "for these schemes the matrix unit is not fast enough for the number of products",
            {f"{_speed.name_of(row)} on the {row['gpu']}": row["ratio"] for row in never},
            ".3g×",
        ),
        (
            "the ordinary cores limit a promotion after every instruction for {}",
            ", ".join(f"{row['scheme']} on the {row['gpu']}" for row in slow),
        ),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
