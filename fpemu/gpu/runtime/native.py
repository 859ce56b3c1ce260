"""Compiled code of a call's host side: it writes addresses into packed parameters and issues launches or a graph.

`queue` and `call` are built-in functions in LLVM IR (``calls.ll``), compiled by llvmlite (a dependency of numba). A
launch through cuda.bindings costs more on the host than the driver function within it, and so does each attribute of a
torch tensor that Python reads. `call` reads tensors by the functions of DLPack's exchange interface, which torch
provides.

All records are arrays of 64-bit words, whose layouts stand beside their constants here; ``calls.ll`` has the same
numbers.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILL", "LAUNCH", "calls", "compiled", "driver_functions", "exchange", "record", "table"]

LAUNCH, FILL = 0, 1
ROW = 4
"""Words of a step: (`LAUNCH`, address of its CUlaunchConfig, its CUfunction, address of its parameters), or (`FILL`,
address of the pointer, byte, number of bytes)"""
SLOT = 3
"""Words of a slot: address of the word to write, index of the region, offset in the region"""
GRAPH = 8
"""Words of a graph: the addresses of the seven regions, and the executable graph"""
SEQUENCE = ("context", "rows", "row_count", "slots", "slot_count", "graphs", "graph_count", "index")
"""Words of a sequence; "graphs": address of the graphs that replace the steps for some addresses; "index": its GPU"""
REGIONS = 7
ENTRY = ("sequence", "regions", "prepared", "arenas", "work", "zeros", "graphs", "device")
"""First words of an entry; "arenas": address of a table of workspaces, 0 if the sequence has none; "graphs": whether a
graph may replace the steps"""
OPERAND, AXES = 18, 6
"""Words of an operand of an entry: 1 for a tensor, its device and its type as in DLPack, number of axes, address modulo
16, bytes, shape and strides of `AXES` axes at most; or 0 without a tensor, the region's address, and its bytes in the
same place"""
FAMILY = ("count", "entries", "read", "stream", "type", "parameter", "is_neg", "matched")
"""Words of a family of entries; "read" and "stream": functions of the exchange interface; "type" and "parameter": the
classes of operands; "matched": index of the entry that the last call has used"""
ARENA = 5
"""Words of a workspace: stream, both addresses, and the bytes of both. A table begins with their number."""
DONE_BY_GRAPH, DONE_BY_LAUNCHES, FAILED, UNKNOWN = 0, 1, 2, -1
"""Results of `queue` and `call`. A failure is (index of the step) · 2^34 + status · 4 + `FAILED`. `UNKNOWN`: no entry
fits, and nothing is queued."""
_DRIVER = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuLaunchKernelEx",
    "cuMemsetD8Async",
    "cuGraphLaunch",
    "cuStreamIsCapturing",
)
_PYTHON = (
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_Clear",
    "PyObject_Vectorcall",
    "Py_DecRef",
)
_CODE = Path(__file__).with_name("calls.ll")


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_owned: list[Any] = []  # compiled code, and definitions that built-in functions refer to


def record(names: tuple[str, ...], **values: int) -> NDArray[np.int64]:
    """Return a record of words by their names; those that are not given are zero."""
    return np.array([values.get(name, 0) for name in names], np.int64)


def compiled(driver: dict[str, int]) -> tuple[Callable[..., int], Callable[..., int] | None]:
    """Return the functions `queue` and `call` for a driver.

    ``queue(sequence, stream, start, stop, graphs, *addresses)`` takes the address of a `SEQUENCE`, a stream, the
    range of steps, whether a graph may replace them, and the addresses of the regions. ``call(family, A, B, C, out)``
    takes the address of a `FAMILY` and tensors or None; `call` is None where Python has no global interpreter lock. The
    caller of either holds `fpemu.gpu.runtime.sequence.lock`.

    Parameters
    ----------
    driver : dict of str to int
        Addresses of the functions that `driver_functions` names.
    """
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    module = llvm.parse_assembly(_CODE.read_text(encoding="utf-8"))
    engine = llvm.create_mcjit_compiler(module, machine)
    functions = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _PYTHON}
    for name, address in (driver | functions).items():
        engine.add_global_mapping(module.get_function(name), address)
    for name, value in (("_Py_NoneStruct", None), ("_Py_FalseStruct", False)):
        engine.add_global_mapping(module.get_global_variable(name), id(value))
    engine.finalize_object()
    _owned.append(engine)
    locked = object.__basicsize__ == 16 and not sysconfig.get_config_var("Py_GIL_DISABLED")
    return _builtin("queue", engine), _builtin("call", engine) if locked else None


def _builtin(name: str, engine: Any) -> Any:
    """Return compiled code as a built-in function with positional arguments."""
    definition = _MethodDef(name.encode(), engine.get_function_address(name), _FASTCALL, None)
    _owned.append(definition)
    create = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    return create(ctypes.addressof(definition), None, None)


def driver_functions(library: Any) -> dict[str, int]:
    """Return the addresses of the functions of CUDA's driver that the compiled code calls."""
    return {name: int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0) for name in _DRIVER}


@cache
def calls() -> tuple[Callable[..., int], Callable[..., int] | None] | None:
    """Return `queue` and `call` for CUDA's driver; None if its library or llvmlite is not found."""
    try:
        return compiled(driver_functions(ctypes.CDLL("libcuda.so.1")))
    except (ImportError, OSError, AttributeError, RuntimeError):
        return None


@cache
def exchange(kind: Any) -> tuple[int, int] | None:
    """Return the addresses of the functions by which a class of tensors provides a tensor and the current stream.

    They are fields of DLPack's exchange interface (DLPackExchangeAPI, version 1), to which the class refers by
    ``__dlpack_c_exchange_api__``. None: the class has none, such as that of torch before 2.10.
    """
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    words = (ctypes.c_uint64 * 7).from_address(pointer(capsule, b"dlpack_exchange_api"))
    major = words[0] & 0xFFFFFFFF
    return (words[5], words[6]) if major == 1 and words[5] and words[6] else None


def table(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    """Return rows of words, at least one of them in memory."""
    return np.array(rows or [(0,) * width], np.int64).reshape(-1, width)
