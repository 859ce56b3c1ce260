"""The cheapest scheme for a target accuracy: `advise`.

A scheme is recommended if both its a-priori bound for the data's norms and its error measured on the data meet the
target. The bound is `fpemu.theory.bound`: it holds for all operands with these norms (confidence="worst"), or for all
entries except with a probability of 10^-3 if the operands are taken as random ("probable"). Bounds are relative to
(|A||B|)_ij; for another measure they are multiplied by the ratio of |A||B| to AB in that measure. A sample whose error
is above the probable bound shows that the data are not like random ones: the worst-case bound must then meet the
target.

The error is measured on all of the data where that takes no more than 2^31 multiply-adds, else on some rows and
columns: those with the largest entries, the widest range and the smallest entries, the others chosen at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fpemu import metrics
from fpemu.advice.candidates import Candidate, Cost, machine
from fpemu.advice.search import MEASURES, SMALL, Advice, Matrices, Search, TargetError, Verdict, cheapest
from fpemu.arguments import choice, integer, number
from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.roofline.gpus import Gpu

__all__ = ["Advice", "Candidate", "Cost", "TargetError", "Verdict", "advise"]

LONGEST = 2**18
"""Largest K for which operands are drawn."""


def advise(
    target: float,
    *,
    hardware: str | MmaSpec | Gpu,
    K: int | None = None,
    A: Any = None,
    B: Any = None,
    M: int | None = None,
    N: int | None = None,
    measure: str = "normwise",
    confidence: Literal["probable", "worst"] = "probable",
    inputs: str = "uniform",
    parameters: Mapping[str, Any] | None = None,
    dtype: Literal["fp32", "fp64"] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Advice:
    """Return the cheapest scheme, with its options, whose bound and measured error meet a target.

    Parameters
    ----------
    target : float
        Relative error, above 0 and below 1.
    hardware : str, MmaSpec or Gpu
        An architecture; a GPU of the catalog, of `fpemu.roofline.gpus` or of a file FILE.toml[:NAME]; an instruction.
    K : int, optional
        Length of the sums. Required without data.
    A, B : array_like (M, K) and (K, N), optional
        The data. The error of a scheme for fp32 includes the rounding of fp64 entries to fp32.
    M, N : int, optional
        Rows and columns of the product, without data; K by default.
    measure : str
        "normwise" (relative to |A||B|, entry by entry), "relative_l2", "max_relative", "mred" or "max_error_legemm".
    confidence : {"probable", "worst"}
        Bound that must meet the target; it alone covers the entries that are not compared with the exact product.
        Above 2^33 multiply-adds (2^36 for "worst") it uses the norms of a sample: `Advice.notes` states it.
    inputs : str
        Without data: the distribution that the operands are drawn from (`fpemu.inputs`), up to 64 rows and columns. If
        few elements dominate (phi = 2, lognormal), other operands of the distribution may have larger errors.
    parameters : mapping of str to object, optional
        Parameters of that distribution.
    dtype : {"fp32", "fp64"}, optional
        Without data: format of the operands; by default fp32 for targets down to 2^-24, else fp64.
    seed : int
        Seed of the rows and columns drawn or tried.
    progress : callable, optional
        Function called with a line of text before each step.

    Returns
    -------
    Advice
        The chosen scheme, the alternatives, and the cost, bound and measured error of each.

    Raises
    ------
    TargetError
        No scheme on the hardware meets the target; an InputError that names the best scheme.
    InputError
        Unknown names, values out of range, or operands of incompatible shapes.

    Examples
    --------
    >>> advise(1e-2, K=256, hardware="V100").call()
    "fpemu.gemm(A, B, scheme='fp16', hardware='V100')"
    """
    target = number("target", target, above=0, below=1, what=", a relative error")
    measure = str(metrics.get(measure).__name__)  # of an alias too
    if measure not in MEASURES:
        raise InputError(f"a target is a relative error, which {measure} is not: choose one of {', '.join(MEASURES)}")
    choice("confidence", confidence, ("probable", "worst"))
    choice("dtype", dtype, ("fp32", "fp64"), none=True)
    where = machine(hardware)
    seed = integer("seed", seed, 0)
    K, M, N = (integer(name, n, 1, 2**30, none=True) for n, name in ((K, "K"), (M, "M"), (N, "N")))
    if (A is None) != (B is None):
        raise InputError(f"{'B' if B is None else 'A'} is missing: give both matrices, or none")
    if A is not None:
        data = Matrices.read(A, B, int(seed), confidence)
        for name, size, actual in zip("KMN", (K, M, N), (data.K, *data.whole.shape), strict=True):
            if size not in (None, actual):
                raise InputError(f"{name}={size} contradicts the data, where {name} is {actual}: leave it out")
        M, N = data.whole.shape
    else:
        if K is None:
            raise InputError("the length of the sums is missing: give K=, or A and B")
        if K > LONGEST:
            raise InputError(
                f"K={K} is too long to draw A and B for, which is done up to {LONGEST}: give the matrices, or bound "
                "the error by fpemu.theory.bound"
            )
        M, N = M or K, N or K
        rows = min(64, max(8, math.isqrt(SMALL // K)), max(M, N))
        data = Matrices.draw(
            inputs, dict(parameters or {}), rows, K, dtype or ("fp32" if target >= 2.0**-24 else "fp64"), int(seed)
        )
    return cheapest(Search(data, M, N, where, target, measure, confidence, progress or (lambda line: None)))
