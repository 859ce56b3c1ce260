"""Issue several launches by one call of compiled code, which calls the driver without Python between the launches.

A loop in LLVM IR, compiled by llvmlite (a dependency of numba), goes over a table of launches and fills. A launch by
cuda.bindings costs more on the host than the driver function within it; the loop costs it once per sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILL", "LAUNCH", "compiled", "driver_loop", "graph_launch", "table"]

LAUNCH, FILL = 0, 1
ROW, ROW_BYTES = 4, 32  # 64-bit words and bytes of a row of the table
_STREAM = 32  # offset of hStream in CUlaunchConfig
_IR = """
define i64 @run(ptr %rows, i64 %count, i64 %stream) {{
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %success, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %after, %next ]
  %first = mul i64 %i, {row}
  %row = getelementptr i64, ptr %rows, i64 %first
  %row1 = getelementptr i64, ptr %row, i64 1
  %row2 = getelementptr i64, ptr %row, i64 2
  %row3 = getelementptr i64, ptr %row, i64 3
  %kind = load i64, ptr %row
  %x = load ptr, ptr %row1
  %y = load i64, ptr %row2
  %z = load i64, ptr %row3
  %fills = icmp eq i64 %kind, {fill}
  br i1 %fills, label %fill, label %launch
launch:
  %handle = getelementptr i8, ptr %x, i64 {stream}
  store i64 %stream, ptr %handle
  %launched = call i32 inttoptr (i64 {launch_address} to ptr)(ptr %x, i64 %y, i64 %z, i64 0)
  br label %next
fill:
  %pointer = load i64, ptr %x
  %byte = trunc i64 %y to i8
  %filled = call i32 inttoptr (i64 {fill_address} to ptr)(i64 %pointer, i8 %byte, i64 %z, i64 %stream)
  br label %next
next:
  %status = phi i32 [ %launched, %launch ], [ %filled, %fill ]
  %after = add i64 %i, 1
  %failed = icmp ne i32 %status, 0
  %done = icmp eq i64 %after, %count
  %end = or i1 %failed, %done
  br i1 %end, label %exit, label %loop
exit:
  %wide = zext i32 %status to i64
  %place = shl i64 %i, 32
  %result = or i64 %wide, %place
  %failure = select i1 %failed, i64 %result, i64 0
  ret i64 %failure
success:
  ret i64 0
}}
"""
_engines: list[Any] = []  # own the compiled code


def compiled(launch: int, fill: int) -> Callable[[int, int, int], int]:
    """Return the loop for a driver with these addresses of cuLaunchKernelEx and cuMemsetD8Async.

    The function takes the table's address, its number of rows and a stream. It returns 0, or the status of the step
    that failed in the lower 32 bits and the step's index in the upper ones.
    """
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = _IR.format(row=ROW, fill=FILL, stream=_STREAM, launch_address=launch, fill_address=fill)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    _engines.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    return kind(engine.get_function_address("run"))


@cache
def driver_loop() -> Callable[[int, int, int], int] | None:
    """Return the loop for CUDA's driver; None if its library or llvmlite is not found."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        functions = library.cuLaunchKernelEx, library.cuMemsetD8Async
        return compiled(*(int(ctypes.cast(function, ctypes.c_void_p).value or 0) for function in functions))
    except (ImportError, OSError, AttributeError, RuntimeError):
        return None


@cache
def graph_launch() -> Callable[[int, int], int] | None:
    """Return cuGraphLaunch of CUDA's driver, which takes an executable graph and a stream; None without its library."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuGraphLaunch
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    launch: Callable[[int, int], int] = function
    return launch


def table(rows: list[tuple[int, int, int, int]]) -> NDArray[np.int64]:
    """Return the table of some steps.

    A launch is (`LAUNCH`, address of its CUlaunchConfig, its CUfunction, address of its parameters); a fill is
    (`FILL`, address of the pointer, byte, number of bytes).
    """
    return np.array(rows, np.int64).reshape(-1, ROW)
