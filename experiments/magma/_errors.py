"""Accumulators of the batched kernels, and panels of an error over a size, for the pages on errors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020)"""
CHIPS = ("volta", "ampere", "hopper")
KINDS = {"zero mean": -1.0, "positive": 0.0}
"""Lower ends of the operands' range, whose upper end is 1."""
ACCUMULATORS = ("fp32", "fp16")
METHODS = {f"{chip} {d}": {"hardware": chip, "accumulate": d} for chip in CHIPS for d in ACCUMULATORS}
SMALL = "small"
"""The kernel for tiny matrices, a chain of fused multiply-adds in fp16."""
LARGEST_SMALL = 16
"""Largest n for which the figures show that kernel."""
RINGS = "rings: the three GPUs coincide with fp32 sums"
_CONCENTRIC = {"volta": 6.0, "ampere": 4.5, "hopper": 3.0}  # all three markers show where curves coincide


def look(name: str) -> Series:
    """Return the appearance of one of `METHODS` or of `SMALL`."""
    if name == SMALL:
        return Series("tiny kernel, fp16 FMAs", plotting.PURPLE, "P", ":")
    chip, d = name.split()
    base = plotting.HARDWARE[chip]
    return Series(f"{base.label}, {d}", base.color, base.marker, "-" if d == "fp32" else "--", filled=d == "fp32")


def curves(
    axis: Any,
    points: Sequence[int],
    names: Iterable[str],
    runs: Callable[[str, int], list[float]],
    looks: Callable[[str], Series] = look,
) -> None:
    """Draw the median and the quartiles of the runs over the points for each name, where there are runs."""
    for name in names:
        known = {x: values for x in points if (values := runs(name, x))}
        size = _CONCENTRIC.get(name.split()[0], 4.0)
        plotting.band(axis, list(known), list(known.values()), looks(name), markersize=size)


def logarithmic(axis: Any, ticks: Sequence[int], base: int = 2) -> None:
    """Set logarithmic axes with ticks at the given sizes, and draw the unit roundoff of fp16 as a dotted line."""
    axis.set_xscale("log", base=base)
    axis.set_yscale("log")
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.tick_params(axis="x", which="minor", bottom=False)
    axis.axhline(2.0**-11, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1, label="$2^{-11}$")
