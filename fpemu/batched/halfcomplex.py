"""Batched HCGEMM: half-complex matrices, in the order of the four real products that the paper has.

Source: Abdelfattah, Tomov, Dongarra (2020), sections 5.5, 5.6, 6.2 and 8.

fused   One kernel on both parts (`tc_multiply_complex`, section 5.5). For every TC_K = 16 of k, in turn,

            Cr += Ar Br,   Ci += Ar Bi,   Ci += Ai Br,   Cr += (-Ai) Bi,

        each into the fragment of its part: two chains of instructions, twice as long as K, whose operands change kind
        every 16. On ordinary cores they change kind at every k. The paper's kernel for the interleaved layout.
calls   Four calls of HGEMM (section 6.2), each of which reads and writes an fp16 matrix:

            Cr = Cr + Ar Br,   Cr = Cr - Ai Bi,   Ci = Ci + Ar Bi,   Ci = Ci + Ai Br.

        So each part is rounded to fp16 twice. What the planar layout was given to libraries for.

With three products, T1 = Ar Br, T2 = Ai Bi, T3 = (Ar + Ai)(Br + Bi), the sums of the operands rounded to fp16 and each
T a chain of its own: Cr = T1 - T2, Ci = (T3 - T1) - T2 in the accumulator's format. The paper does not have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.arguments import checked, is_integer
from fpemu.batched import arguments, layouts, scaling
from fpemu.batched.arguments import Arithmetic
from fpemu.batched.real import hgemm
from fpemu.errors import InputError, shown
from fpemu.mma import KOrder, MmaSpec

Array = NDArray[Any]
Pair = tuple[Array, Array]
ALGORITHMS = {"interleaved": "fused", "planar": "calls"}
"""Each layout with the algorithm that the paper has for it."""


@checked
def hcgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: str = "fp32",
    hardware: str | MmaSpec | None = None,
    instruction: str | None = None,
    layout: str = "interleaved",
    products: int = 4,
    kernel: str = "tensor",
    algorithm: str | None = None,
    order: KOrder | None = None,
) -> NDArray[np.float16]:
    """Return D = alpha · op(A) op(B) + beta · C for a batch of half-complex matrices.

    Parameters
    ----------
    A, B, C : array_like
        Values of fp16 with one axis more than the matrices of `fpemu.batched.hgemm`: (..., M, K, 2) interleaved,
        (2, ..., M, K) planar, and so on; `fpemu.batched.interleaved` and `planar` make them of complex numbers. The
        axes of the batch broadcast. C is not read if beta = 0.
    alpha, beta : complex or real numbers
        Each part rounded to the accumulator's format, in which they enter: `fpemu.batched.scaling`.
    transa, transb : {"N", "T", "C"}
        As it is, transposed, conjugated and transposed.
    accumulate : {"fp32", "fp16"}
        Format of the sums, as in `fpemu.batched.hgemm`.
    hardware : str or MmaSpec, optional
        As in `fpemu.batched.hgemm`.
    instruction : str, optional
        As in `fpemu.batched.hgemm`.
    layout : {"interleaved", "planar"}
        Of A, B, C and D.
    products : {4, 3}
        Real products of a complex one.
    kernel : {"tensor", "magma-small"}
        As in `fpemu.batched.hgemm`.
    algorithm : {"fused", "calls"}, optional
        One kernel on both parts, or four calls of HGEMM with results in fp16. Default: what the paper has for the
        layout, "fused" for interleaved and "calls" for planar; three products are always "fused".
    order : KOrder, optional
        Summation order over K. Default: ascending. In each of its chains the products of a part alternate.

    Returns
    -------
    float16 array (..., M, N, 2) or (2, ..., M, N)
        D in the layout; every NaN has the pattern of the hardware.

    Raises
    ------
    InputError
        Unknown names, values that are not of fp16, shapes that do not fit the layout or one another, beta without C;
        alpha or beta with an imaginary part where HGEMM is called.

    Examples
    --------
    >>> from fpemu.batched import as_complex, interleaved
    >>> A, B = interleaved([[1 + 2j, 3j]]), interleaved([[1j], [2 - 1j]])
    >>> as_complex(hcgemm(A, B, hardware="V100")).item()
    (1+7j)
    """
    how = arguments.arithmetic(kernel, accumulate, hardware, instruction)
    layouts.axis_of(layout)
    chosen = choose_algorithm(products, algorithm, default=ALGORITHMS[layout])
    a, b = (_operand(X, layout, t, n) for X, t, n in ((A, transa, "A"), (B, transb, "B")))
    shape = arguments.result_shape(a[0], b[0])
    factor = scaling.complex_scalar(alpha, "alpha", how.accumulator)
    weight = scaling.complex_scalar(beta, "beta", how.accumulator)
    weighs = weight[0] != 0 or weight[1] != 0
    scaling.needs_c(C, beta if weighs else 0, shape)
    c = None
    if C is not None:
        c = layouts.parts(C, layout, "C", read=weighs)
        arguments.check_addend(arguments.matrix(c[0], "C"), shape)
    c = c if weighs else None
    if chosen == "calls":
        if factor[1] != 0 or weight[1] != 0:
            raise InputError(
                "algorithm='calls' is four calls of HGEMM, which scale by real numbers: alpha and beta "
                "must have no imaginary part"
            )
        options = {
            "accumulate": accumulate,
            "hardware": hardware,
            "instruction": instruction,
            "kernel": kernel,
            "order": order,
        }
        return layouts.joined(_calls(a, b, c, factor[0], weight[0], options), layout)
    T = _three(a, b, how, order) if products == 3 else _four(a, b, how, order)
    real, imaginary = (scaling.half(x, how.nan_code) for x in scaling.scaled_pair(T, c, factor, weight))
    return layouts.joined((real, imaginary), layout)


def _four(a: Pair, b: Pair, how: Arithmetic, order: KOrder | None) -> Pair:
    (ar, ai), (br, bi) = _wide(a, how), _wide(b, how)
    real = mma.chain([(ar, br), (-ai, bi)], None, how.spec, order, step=how.step)
    imaginary = mma.chain([(ar, bi), (ai, br)], None, how.spec, order, step=how.step)
    return real, imaginary


def _three(a: Pair, b: Pair, how: Arithmetic, order: KOrder | None) -> Pair:
    with np.errstate(over="ignore", invalid="ignore"):
        sums = a[0] + a[1], b[0] + b[1]
    pairs = zip(_wide((*a, sums[0]), how), _wide((*b, sums[1]), how), strict=True)
    t1, t2, t3 = (mma.chain([pair], None, how.spec, order) for pair in pairs)
    with np.errstate(over="ignore", invalid="ignore"):
        return t1 - t2, (t3 - t1) - t2


def _calls(a: Pair, b: Pair, c: Pair | None, alpha: Any, beta: Any, options: dict[str, Any]) -> Pair:
    (ar, ai), (br, bi) = a, b
    cr, ci = (None, None) if c is None else c
    real = hgemm(ar, br, cr, alpha=alpha, beta=beta, **options)
    real = hgemm(ai, bi, real, alpha=-alpha, beta=1.0, **options)
    imaginary = hgemm(ar, bi, ci, alpha=alpha, beta=beta, **options)
    imaginary = hgemm(ai, br, imaginary, alpha=alpha, beta=1.0, **options)
    return real, imaginary


def _wide(x: tuple[Array, ...], how: Arithmetic) -> tuple[Array, ...]:
    """Operands in the format that the arithmetic takes: ordinary cores take those of the accumulator."""
    return tuple(part.astype(how.spec.a_format.dtype, copy=False) for part in x)  # type: ignore[union-attr]


def _operand(X: Any, layout: str, how: str, who: str) -> Pair:
    real, imaginary = layouts.parts(X, layout, who)
    pair = tuple(arguments.transposed(arguments.matrix(x, who), how, f"trans{who.lower()}") for x in (real, imaginary))
    return (pair[0], -pair[1]) if how.upper() == "C" else (pair[0], pair[1])


def choose_algorithm(products: int, algorithm: str | None, *, default: str = "fused", three: str = "fused") -> str:
    """The algorithm of ``products`` real products: three have only one, ``three``."""
    if not is_integer(products) or products not in (3, 4):
        raise InputError(f"products = {shown(products)} must be 4 or 3, the real products of a complex one")
    if algorithm is None:
        return three if products == 3 else default
    layouts.check_name("algorithm", algorithm, ALGORITHMS.values())
    if products == 3 and algorithm != three:
        raise InputError(f"products=3 is algorithm={three!r} here: algorithm={algorithm!r} has four products")
    return algorithm
