"""A user's GEMM as a callable with checks of every call, on arrays of any library."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import _system, formats
from fpemu.arguments import as_array, from_torch, refuse_masked
from fpemu.errors import InputError, entries, unknown_name

Array = NDArray[Any]


class CallError(InputError):
    """The callable raised, changed its operands, or returned no product of them."""


class Operand(NamedTuple):
    """An array as NumPy's, and the name of its format where the dtype defines it."""

    values: Array
    fmt: str | None


def as_matrix(x: Any, name: str) -> Operand:
    """A matrix of NumPy, ml_dtypes, PyTorch, JAX, CuPy or an exporter of DLPack; float32 holds formats NumPy lacks."""
    operand = as_numbers(x, name)
    if operand.values.ndim != 2:
        raise InputError(f"{name} has shape {operand.values.shape}: a matrix has two axes")
    if 0 in operand.values.shape:
        raise InputError(f"{name} has shape {operand.values.shape}: it has no entries")
    return operand


def as_numbers(x: Any, name: str) -> Operand:
    """`as_matrix` for an array of any shape."""
    fmt, library = None, _library(x)
    refuse_masked(x, name)
    try:
        if library == "torch":
            dtype = str(x.dtype).removeprefix("torch.")
            fmt = formats.get(dtype).name if dtype.startswith(("bfloat16", "float8")) else None
            x = from_torch(x.cpu())
        elif library == "cupy":
            x = x.get()
        elif hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
            x = np.from_dlpack(x)
        x = np.asarray(x)
    except (RuntimeError, TypeError, ValueError, OverflowError, BufferError) as problem:
        raise InputError(f"{name} is no array that NumPy can hold: {_line(problem)}") from None
    if x.dtype.kind not in "fiuVb":
        raise InputError(f"{name} holds {x.dtype}, not numbers")
    values = as_array(x, name)
    # float32 may hold values of any narrower format
    if values.dtype.kind in "fV" and fmt is None and values.dtype != np.float32:
        if "int" in values.dtype.name:  # int2 and int4 of ml_dtypes
            return Operand(values.astype(np.int8), None)
        known = formats.get(values.dtype.name)
        fmt, values = known.name, values.astype(known.dtype, copy=False)
    return Operand(values, fmt)


def bits(x: Array) -> Array:
    """The bit patterns of an array as unsigned integers."""
    x = np.ascontiguousarray(x)
    return x.view(f"u{x.dtype.itemsize}")


class CheckedCallable:
    """A callable (A, B) -> D, or (A, B, C) -> D, with a check and a count of every call.

    Parameters
    ----------
    gemm : callable
        Takes and returns arrays of any library that `as_matrix` accepts.
    name : str
        Name in messages.
    report : callable, optional
        Called with the number of calls after each.
    like : sequence of arrays, optional
        The user's operands: probes are passed in their library, dtype, device and layout.
    layout : {"NN", "TN", "NT", "TT"}
        Layout of B, then of A, if they are NumPy arrays: "N" is C-contiguous, "T" stored by columns. (BLAS stores by
        columns, and computes the transpose of D from B and A.)

    Attributes
    ----------
    calls : int
        Number of calls.
    end : float
        End of the time for probes, as counted by `time.perf_counter`.
    """

    def __init__(
        self,
        gemm: Callable[..., Any],
        name: str = "the callable",
        report: Callable[[int], None] | None = None,
        like: Sequence[Any] = (),
        layout: str = "NN",
    ):
        self.gemm, self.name, self.report, self.like, self.layout = gemm, name, report, like, layout
        self.calls, self.end = 0, math.inf

    def __call__(self, A: Array, B: Array) -> Array:
        """D for copies of NumPy arrays; raises InputError if the time is over, or as `call`."""
        if time.perf_counter() > self.end:
            raise InputError("the time for probes is over")
        if not self.like:
            return self._checked(self.operands(A, B), (A, B)).values
        return self.call(*self.operands(A, B)).values

    def operands(self, A: Array, B: Array) -> tuple[Any, ...]:
        """Copies of NumPy arrays in the layout of the calls, or arrays like the user's operands."""
        if not self.like:
            return A.copy("F" if self.layout[1] == "T" else "C"), B.copy("F" if self.layout[0] == "T" else "C")
        return tuple(_converted(x, like) for x, like in zip((A, B), self.like, strict=False))

    def call(self, *operands: Any) -> Operand:
        """D for the operands themselves.

        Raises
        ------
        CallError
            If the callable raises, changes its operands, or does not return a product of them.
        """
        before = [as_matrix(x, name).values.copy() for x, name in zip(operands, "ABC", strict=False)]
        return self._checked(operands, before)

    def _checked(self, operands: Sequence[Any], before: Sequence[Array]) -> Operand:
        """D for operands with the values `before`."""
        self.calls += 1
        try:
            D = self.gemm(*operands)
        except (Exception, SystemExit) as problem:
            shapes = " and ".join(f"{name} {x.shape}" for name, x in zip("ABC", before, strict=False))
            dtype = getattr(operands[0], "dtype", before[0].dtype)
            message = f"{self.name} raised {type(problem).__name__} for {shapes} in {dtype}: {_line(problem)}"
            raise CallError(message) from problem
        if D is None:
            raise CallError(f"{self.name} returned None: it must return D")
        try:
            D = as_numbers(D, f"the result of {self.name}")
        except InputError as problem:
            raise CallError(str(problem)) from problem
        for x, name, original in zip(operands, "ABC", before, strict=False):
            changed = bits(as_matrix(x, name).values) != bits(original)
            if changed.any():
                message = f"{self.name} changes its operand {name}, which later calls would read"
                raise CallError(f"{message}: {entries(changed, original)}")
        shape = (len(before[0]), before[1].shape[1])
        if D.values.shape != shape:
            raise CallError(f"{self.name} returned an array of shape {D.values.shape}, and A B has shape {shape}")
        if self.report is not None:
            self.report(self.calls)
        return D

    def repeat(self, *operands: Any) -> Operand:
        """D for the operands themselves, from the first of two calls; raises CallError if their bits differ."""
        first = self.call(*operands)
        first = Operand(first.values.copy(), first.fmt)  # the second call may write into the same memory
        second = self.call(*operands).values
        if first.values.dtype != second.dtype:
            raise CallError(f"{self.name} is not deterministic: it returned {first.values.dtype}, then {second.dtype}")
        differ = bits(first.values) != bits(second)
        if differ.any():
            message = f"two calls with the same operands differ in {entries(differ, first.values)}, then"
            raise CallError(f"{self.name} is not deterministic: {message} {second[differ][0]} (atomic additions?)")
        return first


def load_function(target: str) -> Callable[..., Any]:
    """The function that "FILE.py:FUNCTION" names; the file is executed, and may import modules of its folder.

    Raises
    ------
    InputError
        No such file or function, or a file that cannot be executed.
    """
    name, colon, attribute = target.rpartition(":")
    if not colon or not name.endswith(".py") or not attribute:
        raise InputError(f"{target!r} is not FILE.py:FUNCTION")
    path = Path(name)
    if not path.is_file():
        raise InputError(f"there is no file {name}")
    # a script may end with sys.exit(), which must not end the command
    try:
        module = _system.execute(path)
    except (Exception, SystemExit) as problem:
        raise InputError(f"{name} cannot be run: {type(problem).__name__}: {_line(problem)}") from problem
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise unknown_name(f"function of {name}", attribute, known or ["(none)"])
    function: Any = getattr(module, attribute)
    if not callable(function):
        raise InputError(f"{target} is {type(function).__name__}, not a function")
    return function


def _converted(x: Array, like: Any) -> Any:
    """New values as an array of the library, dtype, device and layout of another."""
    library = _library(like)
    if library == "torch":
        import torch

        x = np.ascontiguousarray(x) if like.is_contiguous() else np.asfortranarray(x)
        return torch.from_numpy(x).to(like.dtype).to(like.device)
    x = x.astype(like.dtype) if hasattr(like, "dtype") else x
    by_rows = getattr(getattr(like, "flags", None), "c_contiguous", True)
    x = np.ascontiguousarray(x) if by_rows else np.asfortranarray(x)
    if library == "cupy":
        import cupy  # type: ignore[import-not-found]

        return cupy.asarray(x)
    return x


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200] or "no message"
