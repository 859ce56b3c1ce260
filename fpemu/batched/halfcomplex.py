"""Batched HCGEMM: half-complex matrices, in the order of the four real products that the paper has.

Source: Abdelfattah, Tomov, Dongarra (2020), sections 5.5, 5.6, 6.2 and 8.

fused   One kernel for both parts (`tc_multiply_complex`, section 5.5). For every TC_K = 16 of k, in turn,

            Cr += Ar Br,   Ci += Ar Bi,   Ci += Ai Br,   Cr += (-Ai) Bi,

        each into the fragment of its part: two chains of instructions, twice as long as K, whose operands alternate
        every 16 of k (at every k on FMA units). This is the paper's kernel for the interleaved layout.
calls   Four calls of HGEMM (section 6.2), each of which reads and writes an fp16 matrix:

            Cr = Cr + Ar Br,   Cr = Cr - Ai Bi,   Ci = Ci + Ar Bi,   Ci = Ci + Ai Br.

        Each part is therefore rounded to fp16 twice. This is the paper's algorithm for the planar layout.

With three products, which the paper does not have, T1 = Ar Br, T2 = Ai Bi, T3 = (Ar + Ai)(Br + Bi), the sums of the
operands rounded to fp16 and each T a separate chain: Cr = T1 - T2, Ci = (T3 - T1) - T2 in the accumulator's format.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import choice, is_integer, product_shape
from fpemu.batched import arguments, layouts, scaling
from fpemu.batched.arguments import Accumulate, Kernel, ProductArithmetic
from fpemu.batched.layouts import Layout
from fpemu.batched.real import _hgemm
from fpemu.errors import InputError, shown
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.device import Device
from fpemu.mma.gemm import _chain
from fpemu.mma.tree import order_of
from fpemu.schemes import complex_products

Array = NDArray[Any]
Pair = tuple[Array, Array]
Algorithm = Literal["fused", "calls"]
ALGORITHMS = {"interleaved": "fused", "planar": "calls"}
"""The paper's algorithm for each layout."""


@in_ieee
def hcgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: Accumulate = "fp32",
    hardware: str | MmaSpec | None = None,
    instruction: str | None = None,
    layout: Layout = "interleaved",
    products: int = 4,
    kernel: Kernel = "tensor",
    algorithm: Algorithm | None = None,
    order: KOrder | None = None,
    device: Device = "cpu",
) -> NDArray[np.float16]:
    """Return D = alpha · op(A) op(B) + beta · C for a batch of half-complex matrices.

    Parameters
    ----------
    A, B, C : array_like
        Values of fp16 with one axis more than the matrices of `fpemu.batched.hgemm`: (..., M, K, 2) interleaved,
        (2, ..., M, K) planar, and so on; `fpemu.batched.interleaved` and `planar` convert complex numbers. The batch
        axes broadcast. C is not read if beta = 0.
    alpha, beta : complex or real numbers
        Each part rounded to the accumulator's format, in which they enter: `fpemu.batched.scaling`.
    transa, transb : {"N", "T", "C"}
        As it is, transposed, conjugated and transposed.
    accumulate, hardware, instruction : object
        As in `fpemu.batched.hgemm`.
    layout : {"interleaved", "planar"}
        Of A, B, C and D.
    products : {4, 3}
        Real products of a complex one.
    kernel : {"tensor", "magma-small"}
        As in `fpemu.batched.hgemm`.
    algorithm : {"fused", "calls"}, optional
        One kernel for both parts, or four calls of HGEMM with results in fp16. Default: the paper's algorithm for the
        layout, "fused" for interleaved and "calls" for planar; three products are always "fused".
    order : KOrder, optional
        Summation order over K. Default: ascending. In each of its chains the products of a part alternate.
    device : {"cpu", "cuda", "auto"}
        As in `fpemu.mma.gemm`.

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
    order = order_of(order, trees=False)
    chosen = choose_algorithm(products, algorithm, default=ALGORITHMS[layout])
    a, b = (_operand(X, layout, t, n) for X, t, n in ((A, transa, "A"), (B, transb, "B")))
    shape = product_shape(a[0], b[0], arguments.factor_names(transa, transb))
    factor = complex_products.complex_scalar(alpha, "alpha", how.accumulator)
    weight = complex_products.complex_scalar(beta, "beta", how.accumulator)
    reads_c = weight[0] != 0 or weight[1] != 0
    scaling.needs_c(C, beta if reads_c else 0, shape)
    c = None
    if C is not None:
        c = layouts.parts(C, layout, "C", read=reads_c)
        arguments.check_addend(arguments.matrix(c[0], "C"), shape)
    c = c if reads_c else None
    if chosen == "calls":
        if factor[1] != 0 or weight[1] != 0:
            raise InputError(
                "algorithm='calls' is four calls of HGEMM, which scale by real numbers: alpha and beta "
                "must have no imaginary part"
            )
        product = partial(_hgemm, how=how, order=order, device=device)
        return layouts.joined(_calls(a, b, c, factor[0], weight[0], product), layout)
    chain = partial(_chain, C=None, spec=how.spec, order=order, device=device)
    T = (_three if products == 3 else _four)(a, b, how, chain)
    real, imaginary = (scaling.half(x, how.nan_code) for x in complex_products.scaled_pair(T, c, factor, weight))
    return layouts.joined((real, imaginary), layout)


def _four(a: Pair, b: Pair, how: ProductArithmetic, chain: Any) -> Pair:
    (ar, ai), (br, bi) = _wide(a, how), _wide(b, how)
    return chain([(ar, br), (-ai, bi)], step=how.step), chain([(ar, bi), (ai, br)], step=how.step)


def _three(a: Pair, b: Pair, how: ProductArithmetic, chain: Any) -> Pair:
    with np.errstate(over="ignore", invalid="ignore"):
        sums = a[0] + a[1], b[0] + b[1]
    pairs = zip(_wide((*a, sums[0]), how), _wide((*b, sums[1]), how), strict=True)
    t1, t2, t3 = (chain([pair]) for pair in pairs)
    with np.errstate(over="ignore", invalid="ignore"):
        return t1 - t2, (t3 - t1) - t2


def _calls(a: Pair, b: Pair, c: Pair | None, alpha: Any, beta: Any, product: Any) -> Pair:
    (ar, ai), (br, bi) = a, b
    cr, ci = (None, None) if c is None else c
    real = product(ai, bi, product(ar, br, cr, alpha, beta), -alpha, 1.0)
    return real, product(ai, br, product(ar, bi, ci, alpha, beta), alpha, 1.0)


def _wide(x: tuple[Array, ...], how: ProductArithmetic) -> tuple[Array, ...]:
    """Return the parts in the operand format of the arithmetic: on FMA units, the format of the accumulator."""
    return tuple(part.astype(how.spec.a_format.dtype, copy=False) for part in x)  # type: ignore[union-attr]


def _operand(X: Any, layout: str, op: str, name: str) -> Pair:
    real, imaginary = (
        arguments.transposed(arguments.matrix(x, name), op, f"trans{name.lower()}")
        for x in layouts.parts(X, layout, name)
    )
    return (real, -imaginary) if op.upper() == "C" else (real, imaginary)


def choose_algorithm(products: int, algorithm: str | None, *, default: str = "fused", three: str = "fused") -> str:
    """Return the algorithm for four real products (`default` if None) or three, which have one algorithm, `three`."""
    if not is_integer(products) or products not in (3, 4):
        raise InputError(f"products = {shown(products)} must be 4 or 3, the real products of a complex one")
    if algorithm is None:
        return three if products == 3 else default
    choice("algorithm", algorithm, get_args(Algorithm))
    if products == 3 and algorithm != three:
        raise InputError(f"products=3 is algorithm={three!r} here: algorithm={algorithm!r} has four products")
    return algorithm
