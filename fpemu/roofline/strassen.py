"""The work of Strassen's algorithm: sums of blocks split into words, the products of these, sums of the products.

Rules beside those of `fpemu.roofline.counting`: of Winograd's fifteen additions four are on blocks of A, four on blocks
of B and seven on products; two levels apply them to the quarters and then to the quarters of these. The split kernel
computes the sums, so that an operand is read once and 7/4 of its size (two levels: 49/16) is written as words.
"""

from __future__ import annotations

from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.roofline.phases import Phase, Shape, Work, areas, counted
from fpemu.schemes.staged import Staged

_BEFORE, _AFTER = 4, 7  # additions of blocks of an operand, of products


def blocks(scheme: Staged, shape: Shape) -> Shape:
    """M, N, K of the smallest products: halved once per level and rounded up."""
    M, N, K = shape
    for _ in range(scheme.levels):
        M, N, K = -(-M // 2), -(-N // 2), -(-K // 2)
    return M, N, K


def strassen(scheme: Staged, spec: MmaSpec, shape: Shape, split: str, inner: Work) -> Work:
    """Count the split (unless split="given"), the products and their sums; `inner` is the work of one of them."""
    if split == "fused":
        raise InputError(
            f"{scheme.name}: sums of blocks are split before the products: choose split='kernel' or 'given'"
        )
    count, small = 7**scheme.levels, areas(*inner.shape)
    separate, *others = inner.phases
    elements, words = float(sum(areas(*shape)[:2])), count * separate.written
    produced, result = float(count * small[2]), 4.0 * areas(*shape)[2]
    phases = []
    if split == "kernel":
        vector = count * separate.vector["fp32"] + _additions(scheme.levels, _BEFORE, small[0] + small[1])
        phases.append(Phase(name="split", vector={"fp32": vector}, read=4 * elements, written=words))
    phases += [
        Phase(
            name=phase.name,
            products={unit: count * n for unit, n in phase.products.items()},
            vector={unit: count * n for unit, n in phase.vector.items()},
            read=count * phase.read,
            written=count * phase.written,
        )
        for phase in others
    ]
    sums = {"fp32": _additions(scheme.levels, _AFTER, small[2])}
    phases.append(Phase(name="sums", vector=sums, read=4 * produced, written=result))
    return counted(
        scheme,
        spec,
        shape,
        phases,
        instructions=count * inner.instructions[spec.name],
        products=count * inner.products,
        words=(count * inner.words[0], count * inner.words[1]),
        resident=4 * (elements + produced) + words + result,
    )


def _additions(levels: int, each: int, small: int) -> float:
    """Additions of single numbers: `each` of blocks per level, the smallest blocks having `small` elements."""
    return float(sum(7 ** (level - 1) * each * small * 4 ** (levels - level) for level in range(1, levels + 1)))
