"""A GEMM of somebody else's, asked with care: each call is checked, and arrays of any library are taken."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arrays import as_array, refuse_masked
from fpemu.errors import InputError, entries, unknown_name

Array = NDArray[Any]


class CallError(InputError):
    """A callable did what no product does: it raised, changed its operands, or returned something else."""


class Taken(NamedTuple):
    """An array as NumPy's, and the name of its format where the dtype says it."""

    values: Array
    fmt: str | None


def take(x: Any, who: str) -> Taken:
    """A matrix of NumPy, PyTorch, CuPy, ml_dtypes, or of what exports DLPack. bf16 and fp8 values come in float32.

    Raises
    ------
    InputError
        If it is no matrix of numbers.
    """
    found = numbers(x, who)
    if found.values.ndim != 2:
        raise InputError(f"{who} has shape {found.values.shape}: a matrix has two axes")
    if 0 in found.values.shape:
        raise InputError(f"{who} has shape {found.values.shape}: it has no entries")
    return found


def numbers(x: Any, who: str) -> Taken:
    """`take` for an array of any shape."""
    fmt = None
    refuse_masked(x, who)
    try:
        if _library(x) == "torch":
            name = str(x.dtype).removeprefix("torch.")
            x = x.detach().cpu()
            if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
                x, fmt = x.float(), formats.get(name).name
            x = x.numpy()
        elif _library(x) == "cupy":
            x = x.get()
        elif hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray | np.generic):
            x = np.from_dlpack(x)
        x = np.asarray(x)
    except (RuntimeError, TypeError, ValueError, OverflowError, BufferError) as problem:
        raise InputError(f"{who} is no array that NumPy can hold: {_line(problem)}") from None
    if x.dtype.kind not in "fiuV":
        raise InputError(f"{who} holds {x.dtype}, not numbers")
    values = as_array(x, who)
    if values.dtype.kind == "V":
        fmt = formats.get(values.dtype.name).name
        values = values.astype(formats.get(fmt).dtype)
    if values.dtype.kind == "f" and fmt is None:
        fmt = {2: "fp16", 4: None, 8: "fp64"}[values.dtype.itemsize]
    return Taken(values, fmt)


class Watched:
    """A callable (A, B) -> D, or (A, B, C) -> D, counted and checked at every call.

    Parameters
    ----------
    gemm : callable
        Takes and returns arrays of any library that `take` knows.
    name : str
        What to call it in messages.
    tell : callable, optional
        Told the number of calls after each.
    given : sequence of arrays, optional
        Operands of the user's: what is asked with NumPy arrays goes in the library, dtype, device and layout of these.

    Attributes
    ----------
    calls : int
    end : float
        Of the time for calls with other operands, as `time.perf_counter` counts.
    """

    def __init__(
        self,
        gemm: Callable[..., Any],
        name: str = "the callable",
        tell: Callable[[int], None] | None = None,
        given: Sequence[Any] = (),
    ):
        self.gemm, self.name, self.tell, self.given = gemm, name, tell, given
        self.calls, self.end = 0, math.inf

    def __call__(self, A: Array, B: Array) -> Array:
        """D, for NumPy arrays, of which it gets copies.

        Raises
        ------
        InputError
            If the time is over, or as `ask`.
        """
        if time.perf_counter() > self.end:
            raise InputError("the time for probes is over")
        if not self.given:
            return self._checked((A.copy(), B.copy()), (A, B)).values
        return self.ask(*(_like(x, given) for x, given in zip((A, B), self.given, strict=False))).values

    def ask(self, *operands: Any) -> Taken:
        """D for these very arrays.

        Raises
        ------
        CallError
            If the callable raises, changes its operands, or does not return a product of them.
        """
        return self._checked(operands, [take(x, who).values.copy() for x, who in zip(operands, "ABC", strict=False)])

    def _checked(self, operands: Sequence[Any], before: Sequence[Array]) -> Taken:
        """D for operands, of which these are the values."""
        self.calls += 1
        try:
            D = self.gemm(*operands)
        except (Exception, SystemExit) as problem:
            shapes = " and ".join(f"{who} {x.shape}" for who, x in zip("ABC", before, strict=False))
            given = f"{shapes} in {getattr(operands[0], 'dtype', before[0].dtype)}"
            told = f"{self.name} raised {type(problem).__name__} for {given}: {_line(problem)}"
            raise CallError(told) from problem
        if D is None:
            raise CallError(f"{self.name} returned None: it must return D")
        try:
            D = numbers(D, f"what {self.name} returned")
        except InputError as problem:
            raise CallError(str(problem)) from problem
        for x, who, was in zip(operands, "ABC", before, strict=False):
            changed = codes(take(x, who).values) != codes(was)
            if changed.any():
                told = f"{self.name} changes its operand {who}, so that later calls would see other numbers"
                raise CallError(f"{told}: {entries(changed, was)}")
        want = (len(before[0]), before[1].shape[1])
        if D.values.shape != want:
            raise CallError(f"{self.name} returned an array of shape {D.values.shape}, and A B has shape {want}")
        if self.tell is not None:
            self.tell(self.calls)
        return D

    def twice(self, *operands: Any) -> Taken:
        """D for these very arrays, from the first of two calls that have to agree.

        Raises
        ------
        CallError
            If they do not, bit by bit, or as `ask`.
        """
        first = self.ask(*operands)
        first = Taken(first.values.copy(), first.fmt)  # the second call may write into the same memory
        again = self.ask(*operands).values
        if first.values.dtype != again.dtype:
            raise CallError(f"{self.name} is not deterministic: it returned {first.values.dtype}, then {again.dtype}")
        apart = codes(first.values) != codes(again)
        if apart.any():
            told = f"two calls with the same operands differ in {entries(apart, first.values)}, then {again[apart][0]}"
            raise CallError(f"{self.name} is not deterministic: {told} (atomic additions?)")
        return first


def codes(x: Array) -> Array:
    """The bits of an array as unsigned integers."""
    x = np.ascontiguousarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def function(target: str) -> Callable[..., Any]:
    """The function that "FILE.py:FUNCTION" names. The file is run; what lies beside it can be imported, as by a script.

    Raises
    ------
    InputError
        No such file or function, or a file that cannot be run.
    """
    name, colon, attribute = target.rpartition(":")
    if not colon or not name.endswith(".py") or not attribute:
        raise InputError(f"{target!r} is not FILE.py:FUNCTION")
    path = Path(name)
    if not path.is_file():
        raise InputError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(f"fpemu_user_{path.stem}", path)  # a name that hides no other module
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)  # stays: functions import as well
    sys.modules[spec.name] = module  # classes and Triton's kernels look themselves up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        raise InputError(f"{name} cannot be run: {type(problem).__name__}: {_line(problem)}") from problem
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise unknown_name(f"function of {name}", attribute, known or ["(none)"])
    found: Any = getattr(module, attribute)
    if not callable(found):
        raise InputError(f"{target} is {type(found).__name__}, not a function")
    return found


def _like(x: Array, given: Any) -> Any:
    """New values as an array of the library, dtype, device and layout of a given one."""
    library = _library(given)
    if library == "torch":
        import torch  # type: ignore[import-not-found]

        laid = np.ascontiguousarray(x) if given.is_contiguous() else np.asfortranarray(x)
        return torch.from_numpy(laid).to(given.dtype).to(given.device)
    x = x.astype(given.dtype) if hasattr(given, "dtype") else x
    rows_first = getattr(getattr(given, "flags", None), "c_contiguous", True)
    laid = np.ascontiguousarray(x) if rows_first else np.asfortranarray(x)
    if library == "cupy":
        import cupy  # type: ignore[import-not-found]

        return cupy.asarray(laid)
    return laid


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200] or "no message"
