"""Error bounds for given operands, entry by entry: `bound` times |A||B|, or tighter ones that follow from the data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import any_complex, choice, real_factor, real_view
from fpemu.mma import MmaSpec
from fpemu.schemes import strassen
from fpemu.schemes.base import Form, Scheme, build, matrices
from fpemu.schemes.call import Policy
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.staged import Staged
from fpemu.theory.accumulation import growth
from fpemu.theory.bounds import bound
from fpemu.theory.norms import Norms

Floats = NDArray[np.float64]
_LEFT = ("11", "12", "12 21 22 11", "22", "21 22", "21 22 11", "11 21")
_RIGHT = ("11", "21", "22", "22 12 11 21", "12 11", "22 12 11", "22 12")
"""The blocks whose sums are the operands of Strassen's seven products"""
_JOINS = ((0, 1), (0, 5, 4, 2), (0, 5, 6, 3), (0, 5, 6, 4))
"""The products whose sums are the blocks of the result"""


@in_ieee
def entrywise(
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    *,
    A: Any,
    B: Any,
    on_range: Policy = "raise",
    form: Form = "4M",
    **options: Any,
) -> NDArray[Any]:
    """Return a bound on |D - AB| for every entry of a product D of given operands.

    Parameters
    ----------
    scheme : str or Scheme
        One of `fpemu.schemes.names`, or a scheme itself, such as `fpemu.schemes.get("staged")`.
    hardware : str or MmaSpec, optional
        As for `fpemu.gemm`.
    A, B : array_like (M, K) and (K, N)
        Finite operands, real or complex.
    on_range : {"raise", "propagate", "scale", "scale-rows"}
        As for `fpemu.gemm`.
    form : {"4M", "3M"}
        Of a complex product, as for `fpemu.gemm`.
    **options
        The scheme's options.

    Returns
    -------
    float64 array (M, N)
        Bound for alpha = 1, beta = 0. Infinite where none is known. Of a complex product complex128: the real part
        bounds the error of the real part of D, and the imaginary part bounds the error of its imaginary part.

    Raises
    ------
    InputError
        As `fpemu.gemm`.

    Notes
    -----
    The error-free schemes evaluate the digits that they omit. Strassen's algorithm adds the bounds of its products and
    of the additions before and after. For the other schemes the bound is `fpemu.theory.bound` times |A||B|.

    With S the products of magnitudes and E the bounds of the three products of form 3M, and u the unit roundoff,

        |error of Re| <= E1 + E2 + u (S1 + S2)      |error of Im| <= E1 + E2 + E3 + u (2 S1 + S2 + 4 S3)

    and terms of u E and u^2 S. If E = e S for all three, these are at most (2 e + 7 u) (|Ar| + |Ai|)(|Br| + |Bi|). The
    bound of 4M is e times the products of the same part, |Ar||Bi| + |Ai||Br| for Im, and may be smaller by any factor.

    Examples
    --------
    >>> A, B = np.ones((2, 64), np.float32), np.ones((64, 3), np.float32)
    >>> bool((entrywise("ootomo", "A100", A=A, B=B) < 64 * 3e-6).all())
    True
    """
    built = build(scheme, options)
    choice("form", form, get_args(Form))
    if any_complex(A, B):
        return _complex(built, hardware, A, B, on_range, form)
    if isinstance(built, ErrorFree):
        return _in_range(built, *matrices(A, B, built.operand), np.asarray(built.error_bound(A, B, hardware)))
    A, B = matrices(A, B, built.operand)
    norms = Norms.of(A, B)
    with np.errstate(all="ignore"):
        if isinstance(built, Staged) and built.levels:
            return _strassen(built, A, B, hardware)
        limit, tiny = bound(built, hardware, norms=norms, on_range=on_range), 2.0**-1074
        sizes = np.abs(A).astype(np.float64) @ np.abs(B).astype(np.float64) * (1 + 2.0**-40) + A.shape[1] * tiny
        terms = (A != 0).astype(np.float64) @ (B != 0).astype(np.float64)
        # a word that overflows gives NaN times zero
        zero = math.inf if any(part.name.startswith("out of range") for part in limit.parts) else 0.0
        return np.where(terms == 0, zero, limit.worst * sizes + tiny)


def _in_range(scheme: Scheme, A: Any, B: Any, limits: Floats) -> Floats:
    """The bounds, infinite where a result may overflow."""
    with np.errstate(all="ignore"):
        largest = np.abs(A).astype(np.float64) @ np.abs(B).astype(np.float64) + limits
    return np.where(largest * (1 + 2.0**-20) < scheme.operand.max, limits, np.inf)


def _complex(
    scheme: Scheme, hardware: str | MmaSpec | None, A: Any, B: Any, on_range: Policy, form: Form
) -> NDArray[np.complex128]:
    """The bounds of both parts of a complex product."""
    A, B = matrices(A, B, scheme.operand, complex_numbers=True)

    def one(X: Any, Y: Any) -> tuple[Floats, Floats]:
        sizes = np.abs(X).astype(np.float64) @ np.abs(Y).astype(np.float64)
        return sizes, entrywise(scheme, hardware, A=X, B=Y, on_range=on_range)

    with np.errstate(all="ignore"):
        if scheme.error_free and (form == "4M" or scheme.modular):
            limits = scheme.error_bound(A, B, hardware).view(np.float64)  # type: ignore[attr-defined]
            return _in_range(scheme, real_view(A), real_factor(B), limits).view(np.complex128)
        if form == "4M":
            return one(real_view(A), real_factor(B))[1].view(np.complex128)
        u, a, b = scheme.operand.unit_roundoff, (A.real, A.imag), (B.real, B.imag)
        (s, e), (t, f), (r, g) = one(a[0], b[0]), one(a[1], b[1]), one(a[0] + a[1], b[0] + b[1])
        E, D = e + f, np.empty(e.shape, np.complex128)
        D.real = (E + u * (s + t + E)) * (1 + 2.0**-20)
        # sums of the operands 2 u r, T3 - T1 at most r + s and a rounding, and then the result
        D.imag = (E + g + u * (4 * r + 2 * s + t + 2 * (E + g))) * (1 + 2.0**-20)
        return D


def _strassen(scheme: Staged, A: Any, B: Any, hardware: str | MmaSpec | None) -> Floats:
    """The bounds of the seven products, the errors of the sums of blocks before them, and the roundings after."""
    lost, size, inner = [], [], replace(scheme, levels=scheme.levels - 1)
    operands = zip(strassen.left(A), strassen.right(B), _lost(A, _LEFT), _lost(B, _RIGHT), strict=True)
    for x, y, dx, dy in operands:
        wide_x, wide_y = (np.abs(z.astype(np.float64)) for z in (x, y))
        product = entrywise(inner, hardware, A=x, B=y, on_range="propagate")
        lost.append(product + dx @ wide_y + wide_x @ dy + dx @ dy)
        size.append(wide_x @ wide_y + lost[-1])
    rounded = growth(3, 2.0**-24)
    quarters = [sum(lost[p] + rounded * size[p] for p in join) * (1 + 2.0**-20) + 2.0**-148 for join in _JOINS]
    return np.asarray(np.block([quarters[:2], quarters[2:]])[: A.shape[0], : B.shape[1]])


def _lost(X: Any, sums: tuple[str, ...]) -> list[Floats]:
    """Largest errors of the additions for the operands of one side."""
    quarters = strassen.blocks(np.abs(X.astype(np.float64)))
    lost = []
    for names in sums:
        terms = [quarters[int(name[0]) - 1][int(name[1]) - 1] for name in names.split()]
        lost.append(growth(len(terms) - 1, 2.0**-24) * sum(terms[1:], terms[0]))
    return lost
