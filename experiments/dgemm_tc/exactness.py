"""DGEMM-TC: bits per slice with exact products, by the published formula and derived for each instruction."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fpemu import mma, plotting, round_to
from fpemu.mma.device import Device
from fpemu.mma.exactness import published_bits, slice_bits, word_bits
from fpemu.reproduce import Measure, Page

from .._findings import paragraph, shown
from .._rows import Row

PAPER = """Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, and its accurate and reproducible versions (2020),
section 3.1, Algorithm 1"""
CAPTION = """Numbers: the largest number of bits b per slice with which every sum of k products of integers up to 2^b is
exact on the instruction (proof: fpemu.mma.exactness); top row: the published formula; dash: one bit is already inexact.
Sums are in fp32, except for fp16 to fp16 and int8; the rows of fp8 are mma on Ada and wgmma on Hopper, and, as other
hardware, mma on Hopper, Blackwell and CDNA3. Colours: emulated products of integers with the formula's bits. Yellow:
the words cannot represent the integers, and outputs are inexact; red: sums are inexact even with slices shortened to
the bits of the words; blue: all outputs are exact, also with larger integers. The model of the Ascend 910A is assumed;
AMD, Turing and tcgen05 rest on the literature."""
ASSUMPTIONS = [
    """The formula is read as a statement about integers of magnitude at most 2^b, b = floor((24 - log2 k) / 2), stored
    in a slice as the integer times 2^-b. For int8 the magnitude is at most 2^b - 1, and the integers are the words.""",
    """Integers that a word cannot represent are rounded to the nearest word, ties to even; int8 saturates. The paper
    states the formula for fp16 only; with other words the page shows the result for a user of the formula, not a claim
    of the paper.""",
    """The integers are drawn in two ways: of one sign in the top quarter, 2^b - 2^(b-2) to 2^b, so that the sums come
    close to the bound, and uniform in -2^b to 2^b. An output counts as inexact if it differs from the exact integer
    result.""",
    """A number of bits is the largest possible at a point if one bit more causes inexact outputs for integers of one
    sign. Every chain runs over the whole of k in one accumulator.""",
]

_FP16 = ("volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx")
_AMD = ("cdna1", "cdna2", "cdna3")
_LARGE = (("hopper", "mma"), ("blackwell", "tcgen05"), ("cdna3", "mfma"))
_SMALL = (("ada", "mma"), ("hopper", "wgmma"))
CLASSES: dict[str, list[mma.MmaSpec]] = {
    "fp16, NVIDIA": [mma.spec(gpu, "fp16") for gpu in _FP16],
    "fp16, AMD": [mma.spec(gpu, "fp16") for gpu in _AMD],
    "fp16, Ascend": [mma.spec("ascend910a", "fp16")],
    "tf32": [mma.spec(gpu, "tf32") for gpu in ("ampere", "hopper", "blackwell", "cdna3")],
    "bf16": [mma.spec(gpu, "bf16") for gpu in ("ampere", "hopper", "blackwell", *_AMD)],
    "e4m3, other hardware": [mma.spec(gpu, "e4m3", instruction=name) for gpu, name in _LARGE],
    "e5m2, other hardware": [mma.spec(gpu, "e5m2", instruction=name) for gpu, name in _LARGE],
    "e4m3, Ada and Hopper": [mma.spec(gpu, "e4m3", instruction=name) for gpu, name in _SMALL],
    "e5m2, Ada and Hopper": [mma.spec(gpu, "e5m2", instruction=name) for gpu, name in _SMALL],
    "fp16 to fp16": [mma.spec(gpu, "fp16", "fp16") for gpu in ("volta", "ampere", "hopper", "blackwell")],
    "int8": [mma.spec(gpu, "int8") for gpu in ("hopper", "cdna3")],
}
_FP16_CLASSES = ("fp16, NVIDIA", "fp16, AMD", "fp16, Ascend")
_NARROW = ("e4m3, Ada and Hopper", "e5m2, Ada and Hopper")
BITS = ("formula", "cut", "derived", "one more")
KINDS = ("one sign", "uniform")


def cells(m: int = 8, n: int = 8, runs: int = 20) -> list[Row]:
    return [
        {"instruction": spec.name, "k": 4**i, "m": m, "n": n, "seed": seed}
        for specs in CLASSES.values()
        for spec in specs
        for i in range(8)
        for seed in range(runs)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """Bits per slice, and the share of outputs inexact with them: the formula's, cut to what words hold, derived."""
    spec = next(row for row in mma.catalog.rows() if row.name == cell["instruction"])
    formula, derived = published_bits(cell["k"]), slice_bits(spec, cell["k"])
    numbers = {}
    for name, bits in zip(BITS, (formula, min(formula, word_bits(spec.a_format)), derived, derived + 1), strict=True):
        numbers[f"{name} bits"] = float(bits)
        for kind, wrong in zip(KINDS, _inexact(spec, bits, device=device, **cell), strict=True):
            numbers[f"{name} inexact {kind}"] = wrong
    return numbers


def _inexact(
    spec: mma.MmaSpec, bits: int, m: int, n: int, k: int, seed: int, device: Device = "cpu", **_: Any
) -> list[float]:
    """The share of outputs that are not the exact integer, for each kind of digits."""
    if bits == 0:
        return [0.0] * len(KINDS)  # no digits, no products
    rng = np.random.default_rng([seed, k, bits])
    top = 2**bits - spec.is_integer
    low = np.array([top - max(2**bits // 4, 1), -top])[:, None, None]
    x = rng.integers(low, top, (2, m, k), endpoint=True)
    y = rng.integers(low, top, (2, k, n), endpoint=True)
    D = np.ldexp(
        mma.gemm(_words(x, spec, bits), _words(y, spec, bits), spec=spec, device=device).astype(np.float64),
        0 if spec.is_integer else 2 * bits,
    )
    return [float(wrong) for wrong in (x @ y != D).mean(axis=(1, 2))]  # sums below 2^53: exact in float64 too


def _words(digits: Any, spec: mma.MmaSpec, bits: int) -> Any:
    if spec.is_integer:
        return np.clip(digits, -127, 127).astype(np.int8)
    return round_to(np.ldexp(digits.astype(np.float64), -bits), spec.a_format)


_LOOK = {
    "formula correct": ("white", ""),
    "formula too small": ("#BFE0F5", "...."),
    "slices too long for the words": ("#FBE9A0", "////"),
    "sums inexact": ("#F2B48C", "xxxx"),
}
"""Colour and hatch."""


def draw(rows: list[Row]) -> Any:
    from matplotlib.patches import Patch, Rectangle

    ks = sorted({row["k"] for row in rows})
    figure, axes = plotting.figure(height=3.7)
    axis = axes[0, 0]
    for column, k in enumerate(ks):
        axis.text(column, 0, published_bits(k), ha="center", va="center", fontsize=7, weight="bold")
        for line, specs in enumerate(CLASSES.values(), start=1):
            selected = _points(rows, specs, [k])
            bits = min(row["derived bits"] for row in selected)
            face, hatch = _LOOK[_outcome(selected)]
            box = Rectangle((column - 0.5, line - 0.5), 1, 1, facecolor=face, hatch=hatch, edgecolor="white")
            axis.add_patch(box).set_linewidth(0.6)
            label = {"boxstyle": "round,pad=0.1", "facecolor": face, "linewidth": 0}
            axis.text(column, line, f"{bits:.0f}" if bits else "–", ha="center", va="center", fontsize=7, bbox=label)
    axis.axhline(0.5, color=plotting.BLACK, linewidth=0.8)
    axis.set(xlim=(-0.5, len(ks) - 0.5), ylim=(len(CLASSES) + 0.5, -0.5))
    axis.set_xticks(range(len(ks)), [str(k) for k in ks], fontsize=6)
    axis.set_yticks(range(len(CLASSES) + 1), ["published formula", *CLASSES])
    axis.set_xlabel("products in a sum, $k$")
    axis.tick_params(length=0)
    axis.grid(visible=False)
    handles = [
        Patch(facecolor=face, hatch=hatch, edgecolor=plotting.GREY, linewidth=0.5, label=name)
        for name, (face, hatch) in _LOOK.items()
    ]
    title = (
        f"numbers: bits per slice with exact sums; –: none\n{rows[0]['m']} × {rows[0]['n']} sums, {_seeds(rows)} seeds"
    )
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2, columnspacing=1.2, title=title, title_fontsize=7
    )
    return figure


def _seeds(rows: list[Row]) -> int:
    return len({row["seed"] for row in rows})


def _outcome(rows: list[Row]) -> str:
    """What the formula came to on a class of instructions, all of which have the same bits."""
    if any(_worst(row, "cut") for row in rows):
        return "sums inexact"
    if any(_worst(row, "formula") for row in rows):
        return "slices too long for the words"
    return "formula too small" if rows[0]["derived bits"] > rows[0]["formula bits"] else "formula correct"


def measures(rows: list[Row]) -> Iterator[Measure]:
    every = sorted({row["k"] for row in rows})

    def inexact(bits: str, names: Iterable[str], low: int = 1, high: int = 1 << 62) -> float:
        ks = [k for k in every if low <= k <= high]
        return max(_worst(row, bits) for name in names for row in _points(rows, CLASSES[name], ks))

    yield Measure("slices_exact", inexact("formula", _FP16_CLASSES[:1], 4), variant="k from 4")
    yield Measure("slices_exact", inexact("formula", _FP16_CLASSES[:1], 1, 1), variant="k = 1")
    for name in (*_FP16_CLASSES[1:], "tf32"):
        yield Measure("formula_elsewhere", inexact("formula", [name], 4), variant=name)
    for name in ("bf16", "fp16 to fp16", "int8", *_NARROW):
        yield Measure("formula_other_words", inexact("formula", [name]), variant=name)

    def fewer(name: str, other: str) -> float:
        return min(_bits(rows, name, k) - _bits(rows, other, k) for k in every)

    yield Measure("fp16_sums_more_slices", fewer(_FP16_CLASSES[0], "fp16 to fp16"))
    for name in ("e4m3, other hardware", "e5m2, other hardware", *_NARROW):
        yield Measure("integers_fewer_slices", fewer("int8", name), variant=name)
    yield Measure("derived_exact", inexact("derived", CLASSES))
    yield Measure("derived_largest", min(row["one more inexact one sign"] for row in rows))


def finding(rows: list[Row]) -> str:
    ks = sorted({row["k"] for row in rows})
    wrong = {name: [r for r in _points(rows, specs, ks) if _worst(r, "formula")] for name, specs in CLASSES.items()}
    inexact = {}
    for name, points in wrong.items():
        if points:
            lengths = shown([row["k"] for row in points], "g")
            over = [row["formula bits"] - row["derived bits"] for row in points]
            cut = sum(1 for row in points if _worst(row, "cut"))
            rest = f"are still inexact at {cut} of these points" if cut else "are exact"
            bits = f"{shown(over, 'g')} bit{'s' * (max(over) > 1)}"
            inexact[f"{name}:"] = f"k = {lengths}, slices are {bits} too long, and slices shortened to the words {rest}"
    count = {
        "with the derived bits": sum(1 for row in rows if _worst(row, "derived")),
        "with one bit more": sum(1 for row in rows if row["one more inexact one sign"] > 0),
    }
    return paragraph(
        (
            "slices with the formula's bits are exact everywhere on",
            ", ".join(n for n, points in wrong.items() if not points),
        ),
        ("products of slices with the formula's bits are inexact at these points", inexact),
        ("the formula counts the 24 bits of an IEEE fp32 sum, neither the bits of a word nor the truncated ones", True),
        (f"inexact products occur at these numbers of {len(rows)} points", count),
    )


def _points(rows: list[Row], specs: list[mma.MmaSpec], ks: list[int]) -> list[Row]:
    names = {spec.name for spec in specs}
    return [row for row in rows if row["instruction"] in names and row["k"] in ks]


def _bits(rows: list[Row], name: str, k: int) -> float:
    """The bits per slice of a class of instructions."""
    return min(row["derived bits"] for row in _points(rows, CLASSES[name], [k]))


def _worst(row: Row, bits: str) -> float:
    return max(row[f"{bits} inexact {kind}"] for kind in KINDS)


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, quick={"runs": 1})
