"""The emulation of an instruction in CUDA C++: an MmaSpec as the constants of ``kernels/arithmetic.cuh``.

The same text compiles with NVRTC and with any C++17 compiler: `HostLibrary` builds it without a GPU, and the tests
compare it with `fpemu.mma.execute`.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.gpu.runtime.compiler import KERNELS
from fpemu.mma.codes import code_dtype
from fpemu.mma.operand_streams import formats
from fpemu.mma.spec import MmaSpec

_NAN_RULES = {"ieee": "NAN_IEEE", "top": "NAN_TOP", "negative-zero": "NAN_NEGATIVE_ZERO", "none": "NAN_NONE"}
_NO_FLOOR = -100000  # NO_FLOOR in formats.cuh


def format_type(fmt: FloatFormat | str) -> str:
    """Return a format as a C++ type."""
    if isinstance(fmt, str):
        return f"Integer<{8 * np.dtype(fmt).itemsize}>"
    numbers = map(str, (fmt.precision, fmt.emin, fmt.emax, fmt.exponent_bits, fmt.padding))
    flags = map(_boolean, (fmt.inf, fmt.subnormals, fmt.negative_zero))
    return f"Format<{', '.join([*numbers, _NAN_RULES[fmt.nan], *flags])}>"


def _boolean(flag: bool) -> str:
    return str(flag).lower()


def definition(spec: MmaSpec, name: str = "Spec") -> str:
    """Return the constants of an instruction as a C++ struct, to follow ``#include "arithmetic.cuh"``.

    Raises
    ------
    InputError
        An arithmetic without a CUDA implementation.

    Examples
    --------
    >>> import fpemu
    >>> text = definition(fpemu.mma.spec("A100"))
    >>> "BLOCK = 8, F = 24, E0 = -132" in text
    True
    """
    if spec.rules.cuda is None:
        raise InputError(f"{spec}: the arithmetic {spec.arithmetic!r} has no CUDA implementation: take device='cpu'")
    c_format = spec.d_format if spec.c_format is None else spec.c_format
    formats = {"A": spec.a_format, "B": spec.b_format, "C": c_format, "D": spec.d_format}
    fraction = spec.fraction_bits
    if fraction is None:
        fraction = 0 if isinstance(spec.d_format, str) else spec.d_format.fraction_bits
    types = "".join(f"  typedef {format_type(fmt)} {letter};\n" for letter, fmt in formats.items())
    floor = _NO_FLOOR if spec.E0 is None else spec.E0
    return (
        f"struct {name} {{\n{types}"
        f"  static constexpr Arithmetic ARITHMETIC = {spec.rules.cuda};\n"
        f"  static constexpr int K = {spec.k}, BLOCK = {spec.block}, F = {spec.F}, E0 = {floor}, "
        f"FRACTION_BITS = {fraction};\n"
        f"  static constexpr bool NEAREST = {_boolean(spec.final == 'RNE')}, PAYLOADS = {_boolean(spec.payloads)};\n"
        f"  static constexpr u64 NAN_CODE = {spec.nan_code or 0}ull;\n}};\n"
    )


class HostLibrary:
    """The emulations of some instructions, compiled for this CPU.

    Parameters
    ----------
    specs : sequence of MmaSpec
    optimise : bool
        Compilation takes a few times as long, a run about a tenth of the time.

    Raises
    ------
    InputError
        If there is no C++ compiler (g++ or clang++).
    """

    def __init__(self, specs: Sequence[MmaSpec], *, optimise: bool = True) -> None:
        self._number: dict[str, int] = {}
        source = ['#include "arithmetic.cuh"', '#include "generator.cuh"', '#include "host.cpp"']
        for spec in specs:
            key = definition(spec)
            if key not in self._number:
                n = self._number[key] = len(self._number)
                source += [definition(spec, f"Spec{n}"), f"FPEMU_EXPORT({n}, Spec{n})"]
        with tempfile.TemporaryDirectory() as folder:
            self._library = ctypes.CDLL(_compile("\n".join(source), Path(folder), optimise))

    def execute(self, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
        """Return the codes of D (tests, M, N) from those of A (tests, M, K), B (tests, N, K) and C (tests, M, N)."""
        A, B, C = (np.ascontiguousarray(x, code_dtype(f)) for x, f in zip((A, B, C), formats(spec), strict=True))
        tests, M, K = A.shape
        N = B.shape[1]
        if spec.k != K or B.shape != (tests, N, K) or C.shape != (tests, M, N):
            raise InputError(f"{spec}: codes of shapes {A.shape}, {B.shape} and {C.shape} are no instructions")
        D = np.empty(C.shape, code_dtype(spec.d_format))
        function = getattr(self._library, f"emulate_{self._number[definition(spec)]}")
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (A, B, C, D)]
        function(*pointers, ctypes.c_longlong(tests), ctypes.c_int(M), ctypes.c_int(N))
        return D

    def generate(
        self,
        spec: MmaSpec,
        operand: int,
        recipe: NDArray[np.int64],
        seed: int,
        kind: int,
        first: int,
        tests: int,
        rows: int,
    ) -> NDArray[Any]:
        """Return the codes of an operand from ``generator.cuh``, equal to `fpemu.mma.operand_streams.operand`."""
        columns = 8 if operand == 2 else spec.k
        out = np.empty((tests, rows, columns), code_dtype(formats(spec)[operand]))
        function = getattr(self._library, f"generate_{self._number[definition(spec)]}")
        draw = (ctypes.c_void_p(recipe.ctypes.data), ctypes.c_ulonglong(seed), ctypes.c_int(kind))
        shape = (ctypes.c_ulonglong(first), ctypes.c_longlong(tests), ctypes.c_int(rows), ctypes.c_int(columns))
        function(ctypes.c_int(operand), *draw, *shape, ctypes.c_void_p(out.ctypes.data))
        return out


def compiler() -> str | None:
    """Return the path of a C++ compiler, None if there is none."""
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def _compile(source: str, folder: Path, optimise: bool) -> str:
    command = compiler()
    if command is None:
        raise InputError("no C++ compiler (g++ or clang++) to build the emulation with")
    text, library = folder / "emulation.cpp", folder / "emulation.so"
    text.write_text(source)
    flags = ["-std=c++17", "-O2" if optimise else "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    build = [command, *flags, f"-I{KERNELS}", str(text), "-o", str(library)]
    process = subprocess.run(build, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"the emulation does not compile:\n{process.stderr}")
    return str(library)
