"""Compiled code of a call's host side: it writes addresses into packed parameters and issues launches or a graph.

`queue` and `call` are built-in functions in LLVM IR, compiled by llvmlite (a dependency of numba). A launch through
cuda.bindings costs more on the host than the driver function within it, and so does each attribute of a torch tensor
that Python reads. `call` reads tensors by the functions of DLPack's exchange interface, which torch provides.

All records are arrays of 64-bit words, whose layouts stand beside their constants here.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
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
SEQUENCE = ("context", "rows", "row_count", "slots", "slot_count", "graphs", "graph_count")
"""Words of a sequence; "graphs": address of the graphs that replace the steps for some addresses"""
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
_STREAM = 32  # offset of hStream in CUlaunchConfig
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
_NUMBERS = 12  # arguments of `queue`
_ALL_EQUAL = "\n".join(
    f"""  %g{i}p = getelementptr i64, ptr %graph, i64 {i}
  %r{i}p = getelementptr i64, ptr %regions, i64 {i}
  %g{i} = load i64, ptr %g{i}p
  %r{i} = load i64, ptr %r{i}p
  %x{i} = xor i64 %g{i}, %r{i}
  %o{i} = or i64 %x{i}, {"0" if i == 0 else f"%o{i - 1}"}"""
    for i in range(REGIONS)
)
_PARSED = "\n".join(
    f"""  %a{i}p = getelementptr ptr, ptr %arguments, i64 {i}
  %a{i}o = load ptr, ptr %a{i}p
  %a{i} = call i64 {{PyLong_AsLongLong}}(ptr %a{i}o)"""
    for i in range(_NUMBERS)
)
_STORED = "\n".join(
    f"""  %s{i}p = getelementptr i64, ptr %regions, i64 {i}
  store i64 %a{i + 5}, ptr %s{i}p"""
    for i in range(REGIONS)
)
_ISSUE = f"""
define i64 @issue(ptr %sequence, ptr %regions, i64 %stream, i64 %start, i64 %stop, i64 %whole) {{{{
entry:
  %before = alloca ptr
  store ptr null, ptr %before
  %context = load ptr, ptr %sequence
  %c0 = call i32 {{cuCtxGetCurrent}}(ptr %before)
  %other = load ptr, ptr %before
  %here = icmp eq ptr %other, %context
  br i1 %here, label %inside, label %enter
enter:
  %c1 = call i32 {{cuCtxSetCurrent}}(ptr %context)
  %entered = icmp eq i32 %c1, 0
  br i1 %entered, label %inside, label %refused
refused:
  %c1w = zext i32 %c1 to i64
  %c1s = shl i64 %c1w, 2
  %c1r = or i64 %c1s, 2
  ret i64 %c1r
inside:
  %graphsp = getelementptr i64, ptr %sequence, i64 5
  %graphs = load ptr, ptr %graphsp
  %graphnp = getelementptr i64, ptr %sequence, i64 6
  %graphn = load i64, ptr %graphnp
  %looks = icmp ne i64 %whole, 0
  br i1 %looks, label %search, label %write
search:
  %n = phi i64 [ 0, %inside ], [ %n1, %unequal ]
  %none = icmp sge i64 %n, %graphn
  br i1 %none, label %write, label %compare
compare:
  %gat = mul i64 %n, {GRAPH}
  %graph = getelementptr i64, ptr %graphs, i64 %gat
{_ALL_EQUAL}
  %equal = icmp eq i64 %o6, 0
  br i1 %equal, label %replay, label %unequal
unequal:
  %n1 = add i64 %n, 1
  br label %search
replay:
  %handlep = getelementptr i64, ptr %graph, i64 7
  %handle = load i64, ptr %handlep
  %replayed = call i32 {{cuGraphLaunch}}(i64 %handle, i64 %stream)
  %good = icmp eq i32 %replayed, 0
  br i1 %good, label %leave, label %write
write:
  %slotsp = getelementptr i64, ptr %sequence, i64 3
  %slots = load ptr, ptr %slotsp
  %slotnp = getelementptr i64, ptr %sequence, i64 4
  %slotn = load i64, ptr %slotnp
  br label %slot
slot:
  %m = phi i64 [ 0, %write ], [ %m1, %next ]
  %written = icmp sge i64 %m, %slotn
  br i1 %written, label %steps, label %next
next:
  %sat = mul i64 %m, {SLOT}
  %s = getelementptr i64, ptr %slots, i64 %sat
  %s1 = getelementptr i64, ptr %s, i64 1
  %s2 = getelementptr i64, ptr %s, i64 2
  %to = load ptr, ptr %s
  %where = load i64, ptr %s1
  %offset = load i64, ptr %s2
  %regionp = getelementptr i64, ptr %regions, i64 %where
  %region = load i64, ptr %regionp
  %address = add i64 %region, %offset
  store i64 %address, ptr %to, align 1
  %m1 = add i64 %m, 1
  br label %slot
steps:
  %rowsp = getelementptr i64, ptr %sequence, i64 1
  %rows = load ptr, ptr %rowsp
  br label %step
step:
  %i = phi i64 [ %start, %steps ], [ %i1, %issued ]
  %end = icmp sge i64 %i, %stop
  br i1 %end, label %leave, label %issue
issue:
  %first = mul i64 %i, {ROW}
  %row = getelementptr i64, ptr %rows, i64 %first
  %row1 = getelementptr i64, ptr %row, i64 1
  %row2 = getelementptr i64, ptr %row, i64 2
  %row3 = getelementptr i64, ptr %row, i64 3
  %kind = load i64, ptr %row
  %x = load ptr, ptr %row1
  %y = load i64, ptr %row2
  %z = load i64, ptr %row3
  %fills = icmp eq i64 %kind, {FILL}
  br i1 %fills, label %fill, label %launch
launch:
  %config = getelementptr i8, ptr %x, i64 {_STREAM}
  store i64 %stream, ptr %config
  %launched = call i32 {{cuLaunchKernelEx}}(ptr %x, i64 %y, i64 %z, i64 0)
  br label %issued
fill:
  %pointer = load i64, ptr %x
  %byte = trunc i64 %y to i8
  %filled = call i32 {{cuMemsetD8Async}}(i64 %pointer, i8 %byte, i64 %z, i64 %stream)
  br label %issued
issued:
  %status = phi i32 [ %launched, %launch ], [ %filled, %fill ]
  %i1 = add i64 %i, 1
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %step, label %failed
failed:
  %wide = zext i32 %status to i64
  %shifted = shl i64 %wide, 2
  %place = shl i64 %i, 34
  %failure = or i64 %shifted, %place
  %marked = or i64 %failure, {FAILED}
  br label %leave
leave:
  %result = phi i64 [ {DONE_BY_GRAPH}, %replay ], [ {DONE_BY_LAUNCHES}, %step ], [ %marked, %failed ]
  %no_other = icmp eq ptr %other, null
  %stays = or i1 %here, %no_other
  br i1 %stays, label %exit, label %restore
restore:
  %c2 = call i32 {{cuCtxSetCurrent}}(ptr %other)
  br label %exit
exit:
  ret i64 %result
}}}}
"""
_QUEUE = f"""
define ptr @queue(ptr %self, ptr %arguments, i64 %count) {{{{
entry:
  %regions = alloca i64, i64 {REGIONS}
{_PARSED}
{_STORED}
  %sequence = inttoptr i64 %a0 to ptr
  %thread = call ptr {{PyEval_SaveThread}}()
  %result = call i64 @issue(ptr %sequence, ptr %regions, i64 %a1, i64 %a2, i64 %a3, i64 %a4)
  call void {{PyEval_RestoreThread}}(ptr %thread)
  %number = call ptr {{PyLong_FromLongLong}}(i64 %result)
  ret ptr %number
}}}}
"""
_CALL = f"""
define ptr @call(ptr %self, ptr %arguments, i64 %count) {{{{
entry:
  %tensors = alloca i64, i64 24
  %kinds = alloca i64, i64 4
  %handle = alloca i64
  %capturing = alloca i32
  %familyo = load ptr, ptr %arguments
  %familyn = call i64 {{PyLong_AsLongLong}}(ptr %familyo)
  %family = inttoptr i64 %familyn to ptr
  %countp = getelementptr i64, ptr %family, i64 0
  %entries = load i64, ptr %countp
  %listp = getelementptr i64, ptr %family, i64 1
  %list = load ptr, ptr %listp
  %readp = getelementptr i64, ptr %family, i64 2
  %read = load ptr, ptr %readp
  %streamp = getelementptr i64, ptr %family, i64 3
  %current = load ptr, ptr %streamp
  %typep = getelementptr i64, ptr %family, i64 4
  %type = load ptr, ptr %typep
  %parameterp = getelementptr i64, ptr %family, i64 5
  %parameter = load ptr, ptr %parameterp
  %negp = getelementptr i64, ptr %family, i64 6
  %is_neg = load ptr, ptr %negp
  %empty = icmp eq i64 %entries, 0
  br i1 %empty, label %miss, label %operand
operand:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %all = icmp eq i64 %i, 4
  br i1 %all, label %candidate, label %object
object:
  %i1 = add i64 %i, 1
  %argp = getelementptr ptr, ptr %arguments, i64 %i1
  %X = load ptr, ptr %argp
  %kindp = getelementptr i64, ptr %kinds, i64 %i
  %absent = icmp eq ptr %X, inttoptr (i64 {{none}} to ptr)
  br i1 %absent, label %without, label %typed
without:
  store i64 0, ptr %kindp
  br label %next
typed:
  %Xtypep = getelementptr i8, ptr %X, i64 8
  %Xtype = load ptr, ptr %Xtypep
  %is_tensor = icmp eq ptr %Xtype, %type
  %is_parameter = icmp eq ptr %Xtype, %parameter
  %plain = or i1 %is_tensor, %is_parameter
  br i1 %plain, label %view, label %miss
view:
  store i64 1, ptr %kindp
  %at = mul i64 %i, 6
  %tensor = getelementptr i64, ptr %tensors, i64 %at
  %readable = call i32 %read(ptr %X, ptr %tensor)
  %viewed = icmp eq i32 %readable, 0
  br i1 %viewed, label %sign, label %error
sign:
  %negative = call ptr {{PyObject_Vectorcall}}(ptr %is_neg, ptr %argp, i64 1, ptr null)
  %answered = icmp ne ptr %negative, null
  br i1 %answered, label %signed, label %error
signed:
  call void {{Py_DecRef}}(ptr %negative)
  %positive = icmp eq ptr %negative, inttoptr (i64 {{false}} to ptr)
  br i1 %positive, label %next, label %miss
next:
  br label %operand
error:
  call void {{PyErr_Clear}}()
  br label %miss
candidate:
  %e = phi i64 [ 0, %operand ], [ %e1, %differs ]
  %exhausted = icmp sge i64 %e, %entries
  br i1 %exhausted, label %miss, label %compare
differs:
  %e1 = add i64 %e, 1
  br label %candidate
compare:
  %entryp = getelementptr ptr, ptr %list, i64 %e
  %entry_ = load ptr, ptr %entryp
  %regionsp = getelementptr i64, ptr %entry_, i64 1
  %regions = load ptr, ptr %regionsp
  br label %match
match:
  %j = phi i64 [ 0, %compare ], [ %j1, %matched ]
  %whole = icmp eq i64 %j, 4
  br i1 %whole, label %apart, label %one
one:
  %rat = mul i64 %j, {OPERAND}
  %rat8 = add i64 %rat, {len(ENTRY)}
  %r = getelementptr i64, ptr %entry_, i64 %rat8
  %tat = mul i64 %j, 6
  %t = getelementptr i64, ptr %tensors, i64 %tat
  %regionp = getelementptr i64, ptr %regions, i64 %j
  %jkindp = getelementptr i64, ptr %kinds, i64 %j
  %jkind = load i64, ptr %jkindp
  %rkind = load i64, ptr %r
  %alike = icmp eq i64 %jkind, %rkind
  br i1 %alike, label %which, label %differs
which:
  %r1p = getelementptr i64, ptr %r, i64 1
  %r1 = load i64, ptr %r1p
  %tensor_ = icmp eq i64 %jkind, 1
  br i1 %tensor_, label %device, label %constant
constant:
  store i64 %r1, ptr %regionp
  br label %matched
device:
  %t1p = getelementptr i64, ptr %t, i64 1
  %t1 = load i64, ptr %t1p
  %devices = icmp eq i64 %t1, %r1
  br i1 %devices, label %types, label %differs
types:
  %t2p = getelementptr i64, ptr %t, i64 2
  %t2 = load i64, ptr %t2p
  %r2p = getelementptr i64, ptr %r, i64 2
  %r2 = load i64, ptr %r2p
  %same_types = icmp eq i64 %t2, %r2
  br i1 %same_types, label %axes, label %differs
axes:
  %r3p = getelementptr i64, ptr %r, i64 3
  %rank = load i64, ptr %r3p
  %t3p = getelementptr i64, ptr %t, i64 3
  %shape = load ptr, ptr %t3p
  %t4p = getelementptr i64, ptr %t, i64 4
  %strides = load ptr, ptr %t4p
  %strided = icmp ne ptr %strides, null
  br i1 %strided, label %axis, label %differs
axis:
  %d = phi i64 [ 0, %axes ], [ %d1, %axis_equal ]
  %axes_equal = icmp sge i64 %d, %rank
  br i1 %axes_equal, label %pointer, label %sizes
sizes:
  %d1 = add i64 %d, 1
  %d6 = add i64 %d, 6
  %d12 = add i64 %d, {6 + AXES}
  %np = getelementptr i64, ptr %shape, i64 %d
  %sp = getelementptr i64, ptr %strides, i64 %d
  %rnp = getelementptr i64, ptr %r, i64 %d6
  %rsp = getelementptr i64, ptr %r, i64 %d12
  %n = load i64, ptr %np
  %s = load i64, ptr %sp
  %rn = load i64, ptr %rnp
  %rs = load i64, ptr %rsp
  %n_equal = icmp eq i64 %n, %rn
  %s_equal = icmp eq i64 %s, %rs
  %both = and i1 %n_equal, %s_equal
  br i1 %both, label %axis_equal, label %differs
axis_equal:
  br label %axis
pointer:
  %data = load i64, ptr %t
  %t5p = getelementptr i64, ptr %t, i64 5
  %skipped = load i64, ptr %t5p
  %place = add i64 %data, %skipped
  %low = and i64 %place, 15
  %r4p = getelementptr i64, ptr %r, i64 4
  %r4 = load i64, ptr %r4p
  %aligned = icmp eq i64 %low, %r4
  %exists = icmp ne i64 %data, 0
  %usable = and i1 %aligned, %exists
  store i64 %place, ptr %regionp
  br i1 %usable, label %matched, label %differs
matched:
  %j1 = add i64 %j, 1
  br label %match
apart:
  %outp = getelementptr i64, ptr %regions, i64 3
  %out = load i64, ptr %outp
  %extentp = getelementptr i64, ptr %entry_, i64 {len(ENTRY) + 3 * OPERAND + 5}
  %extent = load i64, ptr %extentp
  %out_end = add i64 %out, %extent
  br label %overlap
overlap:
  %o = phi i64 [ 0, %apart ], [ %o1, %separate ]
  %distinct = icmp eq i64 %o, 3
  br i1 %distinct, label %where, label %near
near:
  %o1 = add i64 %o, 1
  %op = getelementptr i64, ptr %regions, i64 %o
  %begin = load i64, ptr %op
  %oat = mul i64 %o, {OPERAND}
  %oat5 = add i64 %oat, {len(ENTRY) + 5}
  %lengthp = getelementptr i64, ptr %entry_, i64 %oat5
  %length = load i64, ptr %lengthp
  %finish = add i64 %begin, %length
  %before = icmp ult i64 %begin, %out_end
  %after = icmp ult i64 %out, %finish
  %meets = and i1 %before, %after
  br i1 %meets, label %miss, label %separate
separate:
  br label %overlap
where:
  %devicep = getelementptr i64, ptr %entry_, i64 7
  %device_ = load i64, ptr %devicep
  %ordinal = trunc i64 %device_ to i32
  %known = call i32 %current(i32 2, i32 %ordinal, ptr %handle)
  %streams = icmp eq i32 %known, 0
  br i1 %streams, label %workspace, label %error
workspace:
  %stream = load i64, ptr %handle
  %arenasp = getelementptr i64, ptr %entry_, i64 3
  %arenas = load ptr, ptr %arenasp
  %workp = getelementptr i64, ptr %regions, i64 4
  %zerosp = getelementptr i64, ptr %regions, i64 5
  %preparedp = getelementptr i64, ptr %regions, i64 6
  %eprep = getelementptr i64, ptr %entry_, i64 2
  %prepared = load i64, ptr %eprep
  store i64 %prepared, ptr %preparedp
  store i64 0, ptr %workp
  store i64 0, ptr %zerosp
  %alone = icmp eq ptr %arenas, null
  br i1 %alone, label %go, label %capture
capture:
  %default = icmp eq i64 %stream, 0
  br i1 %default, label %arena, label %ask
ask:
  store i32 1, ptr %capturing
  %asked = call i32 {{cuStreamIsCapturing}}(i64 %stream, ptr %capturing)
  %captured = load i32, ptr %capturing
  %problem = or i32 %asked, %captured
  %free = icmp eq i32 %problem, 0
  br i1 %free, label %arena, label %miss
arena:
  %arenan = load i64, ptr %arenas
  %ework = getelementptr i64, ptr %entry_, i64 4
  %needed = load i64, ptr %ework
  %ezeros = getelementptr i64, ptr %entry_, i64 5
  %zeroed = load i64, ptr %ezeros
  br label %rows
rows:
  %a = phi i64 [ 0, %arena ], [ %a1, %elsewhere ]
  %unlisted = icmp sge i64 %a, %arenan
  br i1 %unlisted, label %miss, label %row
row:
  %a1 = add i64 %a, 1
  %aat = mul i64 %a, {ARENA}
  %aat1 = add i64 %aat, 1
  %w = getelementptr i64, ptr %arenas, i64 %aat1
  %wstream = load i64, ptr %w
  %listed = icmp eq i64 %wstream, %stream
  br i1 %listed, label %large, label %elsewhere
elsewhere:
  br label %rows
large:
  %w1p = getelementptr i64, ptr %w, i64 1
  %w2p = getelementptr i64, ptr %w, i64 2
  %w3p = getelementptr i64, ptr %w, i64 3
  %w4p = getelementptr i64, ptr %w, i64 4
  %w1 = load i64, ptr %w1p
  %w2 = load i64, ptr %w2p
  %w3 = load i64, ptr %w3p
  %w4 = load i64, ptr %w4p
  store i64 %w1, ptr %workp
  store i64 %w2, ptr %zerosp
  %enough_work = icmp sge i64 %w3, %needed
  %enough_zeros = icmp sge i64 %w4, %zeroed
  %enough = and i1 %enough_work, %enough_zeros
  br i1 %enough, label %go, label %miss
go:
  %matchedp = getelementptr i64, ptr %family, i64 7
  store i64 %e, ptr %matchedp
  %sequencep = getelementptr i64, ptr %entry_, i64 0
  %sequence = load ptr, ptr %sequencep
  %rowcountp = getelementptr i64, ptr %sequence, i64 2
  %rowcount = load i64, ptr %rowcountp
  %graphsp = getelementptr i64, ptr %entry_, i64 6
  %graphs = load i64, ptr %graphsp
  %thread = call ptr {{PyEval_SaveThread}}()
  %done = call i64 @issue(ptr %sequence, ptr %regions, i64 %stream, i64 0, i64 %rowcount, i64 %graphs)
  call void {{PyEval_RestoreThread}}(ptr %thread)
  br label %return
miss:
  br label %return
return:
  %result = phi i64 [ %done, %go ], [ {UNKNOWN}, %miss ]
  %number = call ptr {{PyLong_FromLongLong}}(i64 %result)
  ret ptr %number
}}}}
"""


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
    addresses = driver | {
        name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _PYTHON
    }
    names = {name: f"inttoptr (i64 {address} to ptr)" for name, address in addresses.items()}
    text = (_ISSUE + _QUEUE + _CALL).format(none=id(None), false=id(False), **names)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
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
