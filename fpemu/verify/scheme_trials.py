"""Products of schemes, each a function of a seed, the scheme, the hardware and a number: the same on every machine."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, schemes
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.verify import trials

PRODUCTS = 2
"""Of each scheme on each hardware"""
_SIZES = {False: (24, 100, 20), True: (6, 40, 5)}  # M, K, N; True: products are in fp64, or many


def pairs() -> list[str]:
    """Every scheme on every hardware of the catalog that it runs on, as "scheme on hardware"."""
    found = []
    for scheme in schemes.names():
        for number, hardware in enumerate(mma.catalog.architectures()):
            try:
                schemes.get(scheme).spec(hardware)
            except InputError:
                continue  # it does not run there
            if not schemes.get(scheme).needs_hardware and number:
                continue
            found.append(f"{scheme} on {hardware}")
    return found


def product(name: str, number: int, seed: int, on: Literal["cuda", "cpu"]) -> NDArray[Any]:
    """The codes of a scheme's product.

    Parameters
    ----------
    name : str
        "ootomo on hopper".
    number : int
        0: an ordinary product. 1: with C, alpha and beta, NaN and Inf, in slices of K.
    """
    scheme, hardware = name.split(" on ")
    chosen = schemes.get(scheme)
    errorfree = isinstance(chosen, schemes.ErrorFree)
    few = errorfree or chosen.operand.name == "fp64"
    M, K, N = _SIZES[few]
    options: dict[str, Any] = {"carrier": "compiled"} if errorfree and number else {}  # 0: what BLAS is for on the CPU
    shapes = {"A": (M, K), "B": (K, N), "C": (M, N)}
    A, B, C = (_matrix(chosen.operand, seed, name, number, letter, shape) for letter, shape in shapes.items())
    given: tuple[Any, ...] = (A, B)
    if number:
        A[M // 2, 3], B[5, N // 2], B[6, 0] = np.nan, np.inf, -np.inf
        given = (A, B, C)
        options |= {"alpha": 0.5, "beta": -2.0, "on_range": "propagate", "order": KOrder(split=32, join="pairwise")}
    place = None if not chosen.needs_hardware else hardware
    with np.errstate(all="ignore"):
        return trials.codes(schemes.gemm(*given, scheme=scheme, hardware=place, device=on, **options))


def _matrix(fmt: FloatFormat, seed: int, *names: Any) -> NDArray[Any]:
    """Numbers on (-1, 1) whose exponents spread as those of ordinary data do; the last name is the shape."""
    key = trials.Draw(seed, *names[:-1]).word()
    row = mma.spec("cdna2", fmt)
    return values(streams.operand(row, "A", "uniform", key, 0, 1, *names[-1]), fmt)[0].copy()
