"""Complex products by any scheme of `fpemu.schemes`: multi-word splits on complex data.

A complex product consists of real products as in HCGEMM (Abdelfattah, Tomov, Dongarra 2020, sections 5.5 and 6.2; see
`fpemu.batched.halfcomplex`), here with parts in fp32 or fp64:

fused   Each part is one real product over twice the length, whose operands alternate every 16 of k:
        [Ar Ai'] [Br; Bi] with Ai' = -Ai, and [Ar Ai] [Bi; Br]. Every sum of the scheme accumulates both products, so
        only its accumulators round between them. K is padded with zeros to a multiple of 16.
calls   Four products, Ar Br, Ai Bi, Ar Bi and Ai Br, and one addition per part in the format of the scheme's results.

The scheme determines which of the two has the smaller error: where the instruction truncates its sums, "calls", whose
sums are half as long; an error-free scheme that rounds once is correctly rounded only in one sum, "fused".

Three products are the form 3M of `fpemu.gemm` (`fpemu.schemes.complex_products`), whose form 4M is the fused one with
real and imaginary parts alternating at every k, with alpha, beta and C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import product_shape
from fpemu.batched.arguments import TC_K, matrix
from fpemu.batched.halfcomplex import Algorithm, choose_algorithm
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.mma.tree import order_of
from fpemu.schemes import Scheme, complex_products
from fpemu.schemes.base import as_operand
from fpemu.schemes.call import Policy, _product, configure

Array = NDArray[Any]
Pair = tuple[Array, Array]


@in_ieee
def complex_gemm(
    A: Any,
    B: Any,
    *,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    products: int = 4,
    algorithm: Algorithm | None = None,
    on_range: Policy = "raise",
    order: KOrder | None = None,
    device: Device = "cpu",
    **options: Any,
) -> NDArray[Any]:
    """Return D = A B for complex matrices, by a scheme for real ones.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Complex or real numbers, with parts of fp32 (of fp64 for dgemm and the Ozaki family); leading axes broadcast.
        Half-complex arrays would be read as real ones: `fpemu.batched.as_complex` converts them to complex numbers.
    scheme, hardware : object
        As in `fpemu.gemm`.
    products : {4, 3}
        Real products of a complex one.
    algorithm : {"fused", "calls"}, optional
        One sum for both products of a part, or a call of the scheme for each and an addition outside; three products
        are calls. Default: "fused" with four.
    on_range, order, device : object
        As in `fpemu.gemm`.
    **options
        The scheme's choices.

    Returns
    -------
    array (..., M, N) of complex64
        D, complex128 for schemes of fp64.

    Raises
    ------
    InputError
        As `fpemu.gemm`; alpha, beta or C, which are not accepted.

    Examples
    --------
    >>> A, B = np.complex64([[1 + 0.1j, 2]]), np.complex64([[3], [1j]])
    >>> complex_gemm(A, B, scheme="ootomo", hardware="A100").item()
    (3+2.299999952316284j)
    """
    unsupported = [name for name in ("C", "alpha", "beta") if name in options]
    if unsupported:
        raise InputError(f"complex_gemm returns the product A B alone: it takes no {' and no '.join(unsupported)}")
    chosen, order = choose_algorithm(products, algorithm, three="calls"), order_of(order)
    configured = configure(scheme, hardware, on_range, order, options)
    devices.resolve(device)
    fmt = configured.scheme.operand
    both = (matrix(as_operand(x, name, fmt, axes=0, complex_numbers=True), name) for x, name in ((A, "A"), (B, "B")))
    a, b = ((z.real, z.imag) for z in both)
    product_shape(a[0], b[0])

    def multiply(x: Array, y: Array, which: str) -> Array:
        try:
            return _product(configured, x, y, order, device)
        except InputError as problem:
            if " first at [" not in str(problem):  # the message does not concern an entry
                raise
            raise InputError(f"in the real product {which}: {problem}") from None

    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if products == 3:
            return _joined(*complex_products.three_products(a, b, multiply))
        if chosen == "fused":
            name = f"over both parts, {TC_K} of k by turns"
            real = multiply(_alternate(a[0], -a[1], -1), _alternate(b[0], b[1], -2), name)
            return _joined(real, multiply(_alternate(a[0], a[1], -1), _alternate(b[1], b[0], -2), name))
        real = multiply(a[0], b[0], "Ar Br") - multiply(a[1], b[1], "Ai Bi")
        return _joined(real, multiply(a[0], b[1], "Ar Bi") + multiply(a[1], b[0], "Ai Br"))


def _alternate(x: Array, y: Array, axis: int) -> Array:
    """Interleave ``x`` and ``y`` along K in groups of `TC_K`, each padded with zeros to whole groups."""
    groups = []
    for part in (x, y):
        k_last = np.moveaxis(part, axis, -1)
        K = k_last.shape[-1]
        padded = np.pad(k_last, [(0, 0)] * (part.ndim - 1) + [(0, -K % TC_K)])
        groups.append(padded.reshape(*padded.shape[:-1], -(-K // TC_K), TC_K))
    both = np.stack(groups, axis=-2)
    return np.moveaxis(both.reshape(*both.shape[:-3], 2 * TC_K * both.shape[-3]), -1, axis)


def _joined(real: Array, imaginary: Array) -> Array:
    z = np.empty(real.shape, np.complex64 if real.dtype == np.float32 else np.complex128)
    z.real, z.imag = real, imaginary
    return z
