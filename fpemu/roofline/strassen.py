"""The work of Strassen's algorithm: sums of blocks split into words, the products of these, sums of the products.

Rules beside those of `fpemu.roofline.counting`: of Winograd's fifteen additions four are on blocks of A, four on
blocks of B, and seven on products; two levels take them on the quarters and then on their quarters. Sums are made where
they are split, so that an operand is read once and 7/4 of its size (two levels: 49/16) written as words.
"""

from __future__ import annotations

from fpemu.errors import InputError
from fpemu.roofline.phases import Phase, Work, areas
from fpemu.schemes.strassen import Strassen

_BEFORE, _AFTER = 4, 7  # additions of blocks of an operand, of products


def blocks(scheme: Strassen, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """M, N, K of the smallest products: halved so often, each time rounded up."""
    assert scheme.levels is not None
    M, N, K = shape
    for _ in range(scheme.levels):
        M, N, K = -(-M // 2), -(-N // 2), -(-K // 2)
    return M, N, K


def strassen(scheme: Strassen, shape: tuple[int, int, int], split: str, words: float, inner: Work) -> Work:
    """Splitting (unless split="given"), the products, and their sums.

    Parameters
    ----------
    scheme : Strassen
    shape : (M, N, K)
    split : {"kernel", "given"}
    words : float
        Operations of one element for its words.
    inner : Work
        Of one of the products, whose words are given.

    Raises
    ------
    InputError
        split="fused": no product splits its operands.
    """
    if split == "fused":
        raise InputError(f"{scheme.name}: sums of blocks are split before the products: take split='kernel' or 'given'")
    assert scheme.levels is not None
    count, small = 7**scheme.levels, areas(*inner.shape)
    elements, made = float(sum(areas(*shape)[:2])), float(count * (small[0] + small[1]))
    produced = float(count * small[2])
    phases = []
    if split == "kernel":
        vector = words * made + _additions(scheme.levels, _BEFORE, small[0] + small[1])
        phases.append(Phase(name="split", vector={"fp32": vector}, read=4 * elements, written=4 * made))
    for phase in inner.phases:
        phases.append(
            Phase(
                name=phase.name,
                products={unit: count * n for unit, n in phase.products.items()},
                vector={unit: count * n for unit, n in phase.vector.items()},
                read=count * phase.read,
                written=count * phase.written,
            )
        )
    result = 4.0 * areas(*shape)[2]
    phases.append(
        Phase(
            name="sums", vector={"fp32": _additions(scheme.levels, _AFTER, small[2])}, read=4 * produced, written=result
        )
    )
    return Work(
        scheme=scheme.name,
        operand="fp32",
        architecture=inner.architecture,
        shape=shape,
        phases=tuple(phases),
        instructions={name: count * n for name, n in inner.instructions.items()},
        products=count * inner.products,
        words=(count * inner.words[0], count * inner.words[1]),
        resident=4 * (elements + made + produced) + result,
    )


def _additions(levels: int, each: int, small: int) -> float:
    """Of single numbers: `each` of blocks at every level, the smallest of `small` elements."""
    return float(sum(7 ** (level - 1) * each * small * 4 ** (levels - level) for level in range(1, levels + 1)))
