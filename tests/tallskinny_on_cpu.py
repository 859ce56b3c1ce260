"""The kernels for tall and skinny products on this machine's processor.

For those of Hopper: fibers for threads, stand-ins for the copy engine, the barriers in shared memory and the matrix
instruction; everything else is the kernels' own text.
"""

from __future__ import annotations

import ctypes

import numpy as np

from fpemu.gpu.runtime.compiler import KERNELS, kernel_source
from tests import cuda_on_cpu
from tests.simulated import HERE, compiled

WORDS = """
#include <cmath>
#define __align__(n)
#undef __shared__
#define __shared__
#define __fmaf_rn __builtin_fmaf
#define __fma_rn __builtin_fma
#include "integers.cuh"
"""


class Code(cuda_on_cpu.Code):
    """Simulate `cuda.core.ObjectCode` for the published kernels, with shared memory of any size."""

    def __init__(self, source):
        start = source.index("//")
        super().__init__(f"{source[:start]}{WORDS}REAL curr_b[1 << 16];\n{source[start:]}")


STAND_INS = ("hopper.cuh", "tallskinny_copies.cuh", "tallskinny_dmma.cuh")
"""Headers whose functions are those of tallskinny_on_cpu.h here"""


def library(plan, folder):
    """A plan's kernel, compiled for this processor."""
    for path in (*KERNELS.glob("*.cu*"), *HERE.glob("*.h")):
        (folder / path.name).write_text("" if path.name in STAND_INS else path.read_text())
    ring = plan.file == "tsm2_hopper.cu"
    macros = {
        "KERNEL": f'"{plan.file}"',
        "MEMORY": "unsigned char" if ring else "REAL",
        "LAUNCH": f"{plan.entry}(*(Operands*)a[0]{', *(TensorMap*)a[1]' if ring else ''})",
    }
    head = plan.source.removesuffix(kernel_source(plan.file))
    text = head + "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return compiled(text + '#include "tallskinny_on_cpu.h"\n', folder, "-O0", "-w", f"-I{folder}")


def run(plan, problem, folder):
    """Run a plan on a problem whose matrices are in this machine's memory."""
    axes = plan.box(problem) if plan.tensor else ((0, 0, 0),) * 3
    tensor = np.array([problem.A.pointer, *sum(axes, ())], np.uint64)
    step = plan.step(problem)
    operands = np.frombuffer(step.arguments[0].pack()[0], np.uint8)
    pointers = (ctypes.c_void_p * 2)(*(x.ctypes.data for x in (operands, tensor)))
    library(plan, folder).run(*step.grid, step.block, pointers)
