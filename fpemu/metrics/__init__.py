"""The error measures of the papers, and further measures for the study of rounding.

C (P in LE-GEMM's notation) is the result under test, R (S) the reference; the two have the same shape, any number of
axes, and entries of at most 64 bits. All measures follow these rules:

* they are computed in float64 from differences and quotients scaled by powers of two, so that matrices near 1e300 or
  1e-300 lose nothing to overflow or underflow; sums are rounded once, so the value does not depend on the machine,
  except for the weight of `normwise`, a product by BLAS;
* an entry equal to its reference has error 0, also where the reference is 0; an entry that differs from a zero
  reference has an infinite relative error;
* NaN equals NaN, and an infinity equals the same infinity; any other NaN or Inf makes the error inf;
* complex numbers count as two entries, the real and the imaginary part, alternating along the last axis where a measure
  returns an array; `relative_l2` is the same as of complex numbers;
* an empty matrix has error 0.0;
* a shape mismatch, and entries that are not numbers with parts of at most 64 bits, raise `InputError`.

For `relative_l2`, `max_relative`, `mred` and `relative`, R may also be the object of
``fpemu.reference.matmul(out="exact")``: the error is then relative to the exact matrix, before any rounding of the
reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fpemu.arguments import number
from fpemu.errors import InputError, unknown_name
from fpemu.metrics.analysis import NOT_COMPARABLE, max_absolute, max_ulps, normwise, ulps
from fpemu.metrics.papers import max_error_legemm, max_relative, mred, relative, relative_l2, symmetric

__all__ = [
    "NOT_COMPARABLE",
    "effective_bits",
    "get",
    "max_absolute",
    "max_error_legemm",
    "max_relative",
    "max_ulps",
    "mred",
    "names",
    "normwise",
    "relative",
    "relative_l2",
    "symmetric",
    "ulps",
]


def effective_bits(C: Any, R: Any, measure: str | Callable[..., float] = "relative_l2") -> float:
    """Return -log2 of an error, the number of correct leading bits of a result.

    Parameters
    ----------
    C, R : array_like
        Result under test and reference, of the same shape.
    measure : str or callable
        Error measure of (C, R), as a name that `get` accepts or as a function that returns a number >= 0. `normwise`
        and `max_ulps` have other arguments.

    Returns
    -------
    float
        Bits; inf for an error of 0, -inf for an infinite error.

    Raises
    ------
    InputError
        Unknown measure; arrays that the measure does not accept; a measure that returns NaN or a negative number.

    Examples
    --------
    >>> effective_bits([1.0 + 2.0**-20], [1.0])
    20.0
    """
    function = get(measure) if isinstance(measure, str) else measure
    if function in (normwise, max_ulps):
        raise InputError(f"measure = {function.__name__!r} takes more than C and R: give a function of both")
    error = number("result of measure", function(C, R), 0, math.inf)
    return math.inf if error == 0 else -math.log2(error)


_MEASURES: dict[str, Callable[..., float]] = {
    f.__name__: f
    for f in (relative_l2, max_relative, max_error_legemm, mred, normwise, max_absolute, max_ulps, effective_bits)
}
_ALIASES = dict.fromkeys(("h2sgemm", "err", "frobenius", "relative_frobenius"), "relative_l2")
_ALIASES |= dict.fromkeys(("dgemm_tc", "mpfr"), "max_relative") | {"mean_relative": "mred", "componentwise": "normwise"}
_ALIASES |= dict.fromkeys(("legemm", "max_error"), "max_error_legemm")


def names() -> list[str]:
    """Return the names of the error measures that `get` accepts.

    Measures take (C, R); `normwise` takes (C, R, A, B) and `max_ulps` takes (C, R, fmt).

    Returns
    -------
    list of str
        Names, those of the papers' measures first.

    Examples
    --------
    >>> names()[:4]
    ['relative_l2', 'max_relative', 'max_error_legemm', 'mred']
    """
    return list(_MEASURES)


def get(name: str) -> Callable[..., float]:
    """Return an error measure by name.

    Parameters
    ----------
    name : str
        One of `names`, or a paper's or the field's name for it: "h2sgemm", "dgemm-tc", "max_error", "frobenius" and
        others. Case does not matter, and "-" stands for "_".

    Returns
    -------
    callable
        Function of (C, R) that returns a float (`normwise`: of (C, R, A, B); `max_ulps`: of (C, R, fmt)).

    Raises
    ------
    InputError
        Unknown name; the message shows the nearest known one.

    Examples
    --------
    >>> get("h2sgemm").__name__
    'relative_l2'
    """
    key = name.lower().replace("-", "_") if isinstance(name, str) else ""
    key = _ALIASES.get(key, key)
    if key not in _MEASURES:
        raise unknown_name("measure", name, [*_MEASURES, *_ALIASES])
    return _MEASURES[key]
