"""Arrays of any library as NumPy's, and a user's callable: asked twice, watched, asked again with other operands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arrays import as_array
from fpemu.conformance.compare import codes
from fpemu.errors import InputError, entries


class Taken(NamedTuple):
    """An array as NumPy's, and the name of its format where the dtype says it."""

    values: NDArray[Any]
    fmt: str | None


def take(x: Any, who: str) -> Taken:
    """A matrix of NumPy, PyTorch, CuPy, ml_dtypes, or of what exports DLPack. bf16 and fp8 values come in float32.

    Raises
    ------
    InputError
        If it is no matrix of numbers.
    """
    fmt = None
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
    except (RuntimeError, TypeError, ValueError, BufferError) as problem:
        raise InputError(f"{who} is no array that NumPy can hold: {_line(problem)}") from None
    values = as_array(x, who)
    if values.ndim != 2:
        raise InputError(f"{who} has shape {values.shape}: a matrix has two axes")
    if 0 in values.shape:
        raise InputError(f"{who} has shape {values.shape}: it has no entries")
    if values.dtype.kind == "V":
        fmt = formats.get(values.dtype.name).name
        values = values.astype(formats.get(fmt).dtype)
    if values.dtype.kind == "f" and fmt is None:
        fmt = {2: "fp16", 4: None, 8: "fp64"}[values.dtype.itemsize]
    return Taken(values, fmt)


class Asked:
    """A GEMM of the user's, with the operands of the check.

    Parameters
    ----------
    call : callable (A, B) -> D, or (A, B, C) -> D where there is a C
    A, B, C : the operands as the user gave them: arrays of any library, which the callable gets as they are
    """

    def __init__(self, call: Callable[..., Any], A: Any, B: Any, C: Any = None):
        self.call, self.given = call, (A, B) if C is None else (A, B, C)
        self.end = math.inf  # of the time for probes

    def result(self) -> Taken:
        """D for the operands of the check.

        Raises
        ------
        InputError
            If the callable raises, changes its operands, returns no matrix, or returns another one the next time.
        """
        before = [take(x, who).values.copy() for x, who in zip(self.given, "ABC", strict=False)]
        first = self._ask(self.given)
        first = Taken(first.values.copy(), first.fmt)  # the second call may write into the same memory
        second = self._ask(self.given)
        for x, who, was in zip(self.given, "ABC", before, strict=False):
            changed = codes(take(x, who).values) != codes(was)
            if changed.any():
                raise InputError(f"the callable changes its operand {who}: {entries(changed, was)}")
        if first.values.shape != second.values.shape or first.values.dtype != second.values.dtype:
            raise InputError("the callable is not deterministic: a second call gives another shape or dtype")
        apart = codes(first.values) != codes(second.values)
        if apart.any():
            told = f"two calls with the same operands differ in {entries(apart, first.values)}"
            raise InputError(f"the callable is not deterministic: {told}, then {second.values[apart][0]!s}")
        return first

    def __call__(self, A: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
        """D for other operands of the same shapes, in the layout and the library of the user's.

        Raises
        ------
        InputError
            If the time is over, or as `result`.
        """
        if time.perf_counter() > self.end:
            raise InputError("the time for probes is over")
        made = tuple(_like(x, given) for x, given in zip((A, B), self.given, strict=False))
        return self._ask(made).values

    def _ask(self, given: tuple[Any, ...]) -> Taken:
        try:
            D = self.call(*given)
        except InputError:
            raise
        except (Exception, SystemExit) as problem:
            raise InputError(f"the callable raised {type(problem).__name__}: {_line(problem)}") from problem
        if D is None:
            raise InputError("the callable returned None: it must return D")
        return take(D, "what the callable returned")


def _like(x: NDArray[Any], given: Any) -> Any:
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
    return (str(problem).strip() or "no message").splitlines()[0]
