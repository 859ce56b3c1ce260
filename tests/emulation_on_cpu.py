"""The emulations of instructions in CUDA C++, compiled for this CPU."""

from __future__ import annotations

import ctypes
import tempfile

import numpy as np

from fpemu.gpu.emulation.specification import definition
from fpemu.mma.codes import code_dtype
from fpemu.mma.operand_streams import formats
from tests.simulated import compiled


class HostLibrary:
    """Emulations of some specifications; optimised ones compile a few times as long and run ten times as fast."""

    def __init__(self, specs, *, optimise=True):
        self._number: dict[str, int] = {}
        source = ['#include "arithmetic.cuh"', '#include "generator.cuh"', '#include "emulation_on_cpu.h"']
        for spec in specs:
            if definition(spec) not in self._number:
                n = self._number[definition(spec)] = len(self._number)
                source += [definition(spec, f"Spec{n}"), f"FPEMU_EXPORT({n}, Spec{n})"]
        with tempfile.TemporaryDirectory() as folder:
            flags = ("-O2" if optimise else "-O0", "-Wall", "-Wextra", "-Werror")
            self._library = compiled("\n".join(source), folder, *flags)

    def execute(self, A, B, C, spec):
        """The codes of D (tests, M, N) from the words of A (tests, M, K), B (tests, N, K) and C (tests, M, N)."""
        A, B, C = (np.ascontiguousarray(x, code_dtype(f)) for x, f in zip((A, B, C), formats(spec), strict=True))
        (tests, M, K), N = A.shape, B.shape[1]
        assert (K, B.shape, C.shape) == (spec.words, (tests, N, K), (tests, M, N))
        D = np.empty(C.shape, code_dtype(spec.d_format))
        function = getattr(self._library, f"emulate_{self._number[definition(spec)]}")
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (A, B, C, D)]
        function(*pointers, ctypes.c_longlong(tests), ctypes.c_int(M), ctypes.c_int(N))
        return D

    def generate(self, spec, operand, recipe, seed, kind, first, tests, rows):
        """The codes of an operand from ``generator.cuh``, equal to `fpemu.mma.operand_streams.operand`."""
        columns = 8 if operand == 2 else spec.k
        out = np.empty((tests, rows, columns), code_dtype(formats(spec)[operand]))
        function = getattr(self._library, f"generate_{self._number[definition(spec)]}")
        draw = (ctypes.c_void_p(recipe.ctypes.data), ctypes.c_ulonglong(seed), ctypes.c_int(kind))
        shape = (ctypes.c_ulonglong(first), ctypes.c_longlong(tests), ctypes.c_int(rows), ctypes.c_int(columns))
        function(ctypes.c_int(operand), *draw, *shape, ctypes.c_void_p(out.ctypes.data))
        return out
