"""The emulation of an instruction in CUDA C++: an MmaSpec as the constants of ``kernels/arithmetic.cuh``.

The same text compiles with NVRTC and with any C++17 compiler: the tests build it without a GPU and compare it with
`fpemu.mma.execute`.
"""

from __future__ import annotations

import shutil

import numpy as np

from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.spec import MmaSpec

_NAN_RULES = {"ieee": "NAN_IEEE", "top": "NAN_TOP", "negative-zero": "NAN_NEGATIVE_ZERO", "none": "NAN_NONE"}
_NO_FLOOR = -100000  # NO_FLOOR in formats.cuh


def format_type(fmt: FloatFormat | str) -> str:
    """Return a format as a C++ type."""
    if isinstance(fmt, str):
        return f"Integer<{8 * np.dtype(fmt).itemsize}>"
    numbers = (fmt.precision, fmt.emin, fmt.emax, fmt.exponent_bits, fmt.padding, _NAN_RULES[fmt.nan])
    flags = (str(flag).lower() for flag in (fmt.inf, fmt.subnormals, fmt.negative_zero))
    return f"Format<{', '.join([*map(str, numbers), *flags])}>"


def definition(spec: MmaSpec, name: str = "Spec") -> str:
    """Return the constants of an instruction as a C++ struct, to follow ``#include "arithmetic.cuh"``.

    InputError for an arithmetic without a CUDA implementation.

    >>> import fpemu
    >>> "BLOCK = 8, F = 24, E0 = -132" in definition(fpemu.mma.spec("A100"))
    True
    """
    if not spec.has_cuda:
        pair = f"{spec.a_format} and {spec.b_format}"
        what = f"the arithmetic {spec.arithmetic!r} of {pair}" if spec.final != "SR" else "stochastic rounding"
        raise InputError(f"{spec}: {what} has no CUDA implementation: take device='cpu'")
    c_format = spec.d_format if spec.c_format is None else spec.c_format
    formats = {"A": spec.a_format, "B": spec.b_format, "C": c_format, "D": spec.d_format}
    fraction = spec.fraction_bits
    if fraction is None:
        fraction = 0 if isinstance(spec.d_format, str) else spec.d_format.fraction_bits
    types = "".join(f"  typedef {format_type(fmt)} {letter};\n" for letter, fmt in formats.items())
    scales = ""
    if (scale := spec.scale_format) is not None:
        constants = {"BLOCK": spec.scale_block, "FRACTION": scale.fraction_bits, "EMIN": scale.emin}
        numbers = ", ".join(f"SCALE_{name} = {value}" for name, value in constants.items())
        scales = f"  static constexpr int {numbers};\n"
    floor = _NO_FLOOR if spec.E0 is None else spec.E0
    return (
        f"struct {name} {{\n{types}"
        f"  static constexpr Arithmetic ARITHMETIC = {spec.rules.cuda};\n"
        f"  static constexpr int K = {spec.k}, WORDS = {spec.words}, BLOCK_WORDS = {spec.block_words};\n{scales}"
        f"  static constexpr int BLOCK = {spec.block}, F = {spec.F}, E0 = {floor}, "
        f"FRACTION_BITS = {fraction};\n"
        f"  static constexpr bool NEAREST = {str(spec.final == 'RNE').lower()}, "
        f"PAYLOADS = {str(spec.payloads).lower()};\n"
        f"  static constexpr u64 NAN_CODE = {spec.nan_code or 0}ull;\n}};\n"
    )


def compiler() -> str | None:
    """Return the path of a C++ compiler, None if there is none."""
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
