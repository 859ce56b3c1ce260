"""Checks of arguments: each function returns the value to use, or raises InputError that names the argument.

They check values: ranges, names and shapes. Numbers may be Python's or NumPy's, and are returned as Python's, because
operations on NumPy's narrow types would round and overflow; True and False are no numbers. A value of another type may
raise the TypeError of Python or NumPy instead. `read_table` checks a table of a TOML or JSON file.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fpemu._system import ABOVE, BELOW, HALF, ONE, TINY, check_ieee
from fpemu.errors import InputError, entries, shown, unknown_name

LARGEST = 2**63 - 1
"""The largest size: the product of three sizes must stay within the range of fp64."""


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy.

    >>> is_integer(16), is_integer(np.uint8(16)), is_integer(16.0), is_integer(True)
    (True, True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy, or a Fraction."""
    return isinstance(value, int | float | np.integer | np.floating | Fraction) and not isinstance(value, bool)


def unwrapped(value: Any) -> Any:
    """The number in an array without axes, which NumPy's functions return for scalars; anything else as it is."""
    plain = isinstance(value, np.ndarray) and value.ndim == 0 and not isinstance(value, np.ma.MaskedArray)
    return value[()] if plain else value


def is_size(value: Any) -> bool:
    """Whether a value is a positive integer below 2^63."""
    return is_integer(value) and bool(1 <= value <= LARGEST)


def integer(
    name: str,
    value: Any,
    low: int | None = None,
    high: int | None = None,
    *,
    none: bool = False,
    words: Collection[str] = (),
) -> Any:
    """Return an integer from ``low`` to ``high`` as int; None and some words too where they are allowed.

    >>> integer("seed", -1, 0)
    Traceback (most recent call last):
    fpemu.errors.InputError: seed = -1 must be an integer >= 0
    """
    if (none and value is None) or (isinstance(value, str) and value in words):
        return value
    if is_integer(value) and (low is None or value >= low) and (high is None or value <= high):
        return int(value)
    limits = "" if low is None else f" {_limits(low, high)}"
    allowed = "a positive integer" if low == 1 and high in (None, LARGEST) else f"an integer{limits}"
    others = "".join(f" or {word!r}" for word in words) + " or None" * none
    raise InputError(f"{name} = {shown(value)} must be {allowed}{others}")


def number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    what: str = "",
) -> Any:
    """Return a real number as float, at least ``low`` and at most ``high``, larger than ``above``, less than ``below``.

    NaN is always refused, and Inf unless one of ``low`` and ``high`` is finite and the other is not. ``what`` ends the
    message.

    >>> number("target", float("nan"), above=0, below=1)
    Traceback (most recent call last):
    fpemu.errors.InputError: target = nan must be a number above 0 and below 1
    """
    if is_real(value):
        try:
            real = float(value)
        except OverflowError:
            real = math.nan
        within = low <= real <= high and (above == -math.inf or real > above) and (below == math.inf or real < below)
        if within and (math.isfinite(real) or math.isfinite(low) or math.isfinite(high)):
            return real
    limits = [
        f"{word} {x:g}"
        for word, x in ((">=", low), ("<=", high), ("above", above), ("below", below))
        if math.isfinite(x)
    ]
    kind = "a positive number" if limits == ["above 0"] else f"a number {' and '.join(limits)}"
    kind = "a finite number" if not limits else kind
    raise InputError(f"{name} = {shown(value)} must be {kind}{what}")


def flag(name: str, value: Any, *, none: bool = False) -> Any:
    """Return a truth value as bool; None too where it is allowed.

    >>> flag("saturate", "no")
    Traceback (most recent call last):
    fpemu.errors.InputError: saturate = 'no' must be True or False
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if none and value is None:
        return None
    raise InputError(f"{name} = {shown(value)} must be True{', False or None' if none else ' or False'}")


def choice(name: str, value: Any, known: Iterable[str], *, none: bool = False) -> Any:
    """Return one of the names ``known``; None too where it is allowed. The message shows the nearest name.

    >>> choice("method", "falt", ("flint", "blas"))
    Traceback (most recent call last):
    fpemu.errors.InputError: unknown method 'falt': did you mean 'flint'? known: blas, flint
    """
    known = list(known)
    if (none and value is None) or (isinstance(value, str) and value in known):
        return value
    raise unknown_name(name, value, known)


def text(name: str, value: Any) -> str:
    """Return a string that is not blank.

    >>> text("title", 3)
    Traceback (most recent call last):
    fpemu.errors.InputError: title = 3 must be a text that is not empty
    """
    if isinstance(value, str) and value.strip():
        return value
    raise InputError(f"{name} = {shown(value)} must be a text that is not empty")


def integers(
    name: str, value: Any, low: int = 0, high: int | None = None, *, length: int | None = None, one: bool = False
) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple, of some length; of a single integer too where ``one``.

    >>> integers("shape", (4, -1), length=2)
    Traceback (most recent call last):
    fpemu.errors.InputError: shape = (4, -1) must be 2 integers >= 0
    """
    entries = (value,) if one and is_integer(value) else value
    if isinstance(entries, np.ndarray) and entries.ndim == 1:
        entries = entries.tolist()
    listed = isinstance(entries, Sequence) and not isinstance(entries, str | bytes) and length in (None, len(entries))
    if listed and all(is_integer(x) and x >= low and (high is None or x <= high) for x in entries):
        return tuple(int(x) for x in entries)
    kind = "positive integers" if low == 1 and high in (None, LARGEST) else f"integers {_limits(low, high)}"
    kind = f"a sequence of {kind}" if length is None else f"{length} {kind}"
    kind = f"an integer {_limits(low, high)} or a sequence of them" if one else kind
    raise InputError(f"{name} = {shown(value)} must be {kind}")


def keywords(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for a keyword that is not among the ``known``, with the nearest."""
    known = list(known)
    for name in given:
        if name not in known:
            raise unknown_name(kind, name, known or ["(none)"])


def sizes(**values: Any) -> None:
    """Raise InputError for values that are not positive integers below 2^63.

    >>> sizes(M=16, N=0)
    Traceback (most recent call last):
    fpemu.errors.InputError: N = 0 must be a positive integer
    """
    for name, value in values.items():
        if not is_size(value):
            large = " below 2^63" if is_integer(value) and value > LARGEST else ""
            raise InputError(f"{name} = {shown(value)} must be a positive integer{large}")


def positive(what: str = "", **values: Any) -> None:
    """Raise InputError for values that are not positive and finite; ``what`` adds the unit to the message.

    >>> positive(", in cycles", memory_latency=-1)
    Traceback (most recent call last):
    fpemu.errors.InputError: memory_latency = -1 must be a positive number, in cycles
    """
    for name, value in values.items():
        number(name, value, above=0, what=what)


def _limits(low: int, high: int | None) -> str:
    return f">= {low}" if high is None else f"from {low} to {_power(high)}"


def _power(limit: int) -> str:
    """A large limit as a power of two."""
    for size, less in ((limit, ""), (limit + 1, " - 1")):
        if limit >= 2**20 and size & (size - 1) == 0:
            return f"2^{size.bit_length() - 1}{less}"
    return str(limit)


# --- arrays: conversions without a change of value, from any real dtype to float64 and back, NaN payloads kept


_PLAIN = {np.ndarray, float, int}
"""Types that NumPy reads as they are."""


def as_array(x: Any, name: str, *, complex_numbers: bool = False) -> NDArray[Any]:
    """Return ``x`` as an array of numbers in the machine's byte order.

    A subclass such as np.matrix becomes a plain array, and so does a masked array without masked entries; a tensor of
    PyTorch on the CPU, also one with a gradient, as `from_torch` has it; an array of truth values becomes int8. Masked
    entries, ragged lists, structured or raw bytes, objects, text, dates, sparse matrices, and complex numbers unless
    ``complex_numbers`` raise InputError.
    """
    if not (TINY * HALF > 0.0 and ONE + BELOW < ONE + ABOVE):  # `ieee`, without a call
        check_ieee()
    plain = type(x) in _PLAIN
    if not plain:
        refuse_masked(x, name)
        if hasattr(x, "toarray"):
            raise InputError(f"{name} is a sparse matrix ({type(x).__name__}): give its entries, {name}.toarray()")
    try:
        a = np.asarray(x if plain else from_torch(x))
        if a.dtype.kind == "b" and a.ndim:
            return a.view(np.int8)
        number = a.dtype.kind in "fiu" or (
            a.dtype.kind == "V" and a.dtype.names is None and a.dtype.type is not np.void
        )
    except Exception as problem:  # an object's __array__ may raise anything
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(f"{name} is no array: {reason}") from None
    if complex_numbers and a.dtype.kind == "c" and a.dtype.itemsize <= 16:
        return a
    if not number or a.dtype.itemsize > 8:
        given = f"{a.dtype} of shape {a.shape}" if a.shape else f"{shown(x)} ({a.dtype})"
        cure = f"; fpemu.gemm multiplies them, or take {name}.real" if a.dtype.kind == "c" else ""
        raise InputError(
            f"{name} takes real{' or complex' * complex_numbers} numbers of at most 64 bits, not {given}{cure}"
        )
    return a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))


def any_complex(*values: Any) -> bool:
    """Whether an array, a tensor, a list or a number among the values is complex."""
    for x in values:
        kind = getattr(getattr(x, "dtype", None), "kind", None)
        if kind is None and not (x is None or type(x) in _PLAIN):
            with contextlib.suppress(Exception):  # of what is no array, for `as_array` to report
                tensor = hasattr(x, "dtype") and str(x.dtype).startswith("torch.complex")
                kind = "c" if tensor else np.asarray(x).dtype.kind
        if kind == "c":
            return True
    return False


def as_complex(x: Any, name: str) -> NDArray[np.complex128]:
    """Return real or complex numbers as complex128 with the same values."""
    a = as_array(x, name, complex_numbers=True)
    return (a if a.dtype.kind == "c" else _float64(a, name)).astype(np.complex128, copy=False)


def real_view(X: NDArray[Any]) -> NDArray[Any]:
    """The real and imaginary parts of complex numbers, alternating along the last axis.

    >>> real_view(np.array([1 + 2j, 3]))
    array([1., 2., 3., 0.])
    """
    return np.ascontiguousarray(X).view(X.real.dtype)


def real_factor(B: NDArray[Any]) -> NDArray[Any]:
    """The real matrix B' (..., 2K, 2N) of complex B (..., K, N) with real_view(A) B' = real_view(A B).

    >>> real_factor(np.array([[1 + 2j]]))
    array([[ 1.,  2.],
           [-2.,  1.]])
    """
    *batch, K, N = B.shape
    b = np.empty((*batch, K, 2, N, 2), B.real.dtype)
    b[..., 0, :, 0] = b[..., 1, :, 1] = B.real
    b[..., 0, :, 1], b[..., 1, :, 0] = B.imag, -B.imag
    return b.reshape(*batch, 2 * K, 2 * N)


def from_torch(x: Any) -> Any:
    """A tensor of PyTorch as an array, its gradient left out; anything else as it is.

    NumPy has no bf16 and no fp8: float32 holds their values.
    """
    if not any(parent.__module__.partition(".")[0] == "torch" for parent in type(x).__mro__):
        return x
    x = x.detach().resolve_conj().resolve_neg()
    return (x.float() if str(x.dtype).startswith(("torch.bfloat16", "torch.float8")) else x).numpy()


def as_stacks(A: NDArray[Any], B: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], tuple[int, ...]]:
    """A and B with a row or a column in place of a vector, and the axes of their product to drop, as `np.matmul`."""
    row, column = A.ndim == 1, B.ndim == 1
    return (A[None] if row else A), (B[:, None] if column else B), (-2,) * row + (-1,) * column


def refuse_masked(x: Any, name: str) -> None:
    """Raise InputError for masked entries, also within lists: NumPy would read the values under the mask."""
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.is_masked(x):
            raise InputError(
                f"{name}: masked entries have no value: {entries(np.ma.getmaskarray(x), x.data)}; fill them, "
                f"as {name}.filled(0)"
            )
    elif isinstance(x, list | tuple):
        for entry in x:
            if isinstance(entry, np.ma.MaskedArray | list | tuple):
                refuse_masked(entry, name)


def as_float64(x: Any, name: str) -> NDArray[np.float64]:
    """Return ``x`` as float64 with the same values and NaN payloads; refuse integers that float64 does not hold."""
    return _float64(as_array(x, name), name)


def _float64(a: NDArray[Any], name: str) -> NDArray[np.float64]:
    """`as_float64` for an array that `as_array` returned."""
    if a.dtype.kind in "iu":
        wide = a.astype(np.float64)
        limit = 2.0 ** (8 * a.dtype.itemsize - (a.dtype.kind == "i"))
        fits = (wide < limit) & (wide >= -limit)
        bad = (
            ~fits | (np.where(fits, wide, 0).astype(a.dtype) != a) if a.dtype.itemsize == 8 else np.zeros(a.shape, bool)
        )
        if bad.any():
            raise InputError(f"{name}: integers that float64 cannot hold: {entries(bad, a)}")
        return wide
    if a.dtype == np.float64:
        return np.ascontiguousarray(a).reshape(a.shape)
    return widen(a)


def widen(a: NDArray[Any]) -> NDArray[np.float64]:
    """Convert to float64 with the payloads of NaN (a cast would make a signalling NaN quiet)."""
    with np.errstate(invalid="ignore"):
        wide = np.array(a.astype(np.float64), dtype=np.float64, ndmin=0)
    nan = np.isnan(wide)
    if nan.any() and a.dtype in (np.float16, np.float32):
        width, f = (16, 10) if a.dtype == np.float16 else (32, 23)
        raw = np.ascontiguousarray(a).reshape(a.shape).view(f"u{width // 8}").astype(np.uint64)
        pattern = ((raw >> np.uint64(width - 1)) << np.uint64(63)) | np.uint64(0x7FF << 52)
        pattern |= (raw & np.uint64((1 << f) - 1)) << np.uint64(52 - f)
        wide = np.where(nan, pattern, wide.view(np.uint64)).view(np.float64)
    return wide


def narrow(pattern: NDArray[np.uint64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert float64 patterns, whose values ``dtype`` holds exactly, to ``dtype`` with the payloads of NaN."""
    wide = np.ascontiguousarray(pattern).reshape(pattern.shape).view(np.float64)
    if dtype == np.float64:
        return wide
    with np.errstate(invalid="ignore", over="ignore"):
        narrow = wide.astype(dtype)
    nan = np.isnan(wide)
    if nan.any():
        width, f, top = (16, 10, 0x1F) if dtype == np.float16 else (32, 23, 0xFF)
        raw = ((pattern >> np.uint64(63)) << np.uint64(width - 1)) | np.uint64(top << f)
        raw |= (pattern & np.uint64((1 << 52) - 1)) >> np.uint64(52 - f)
        code = f"u{width // 8}"
        narrow = np.where(nan, raw.astype(code), narrow.view(code)).view(dtype)
    return narrow


def product_shape(A: NDArray[Any], B: NDArray[Any], names: tuple[str, str] = ("A", "B")) -> tuple[int, ...]:
    """Return the shape (..., M, N) of A (..., M, K) times B (..., K, N), leading axes broadcast; names: for errors."""
    a, b = names
    if A.shape[-1] != B.shape[-2]:
        raise InputError(
            f"{a} of shape {A.shape} and {b} of shape {B.shape} do not share K (columns of {a}, rows of {b})"
        )
    try:
        lead = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    except ValueError:
        raise InputError(f"leading axes of {a} {A.shape} and {b} {B.shape} do not broadcast") from None
    return (*lead, A.shape[-2], B.shape[-1])


# --- from the content of a TOML or JSON file to a frozen dataclass: the one check of its fields and their types
T = TypeVar("T")
_WORDS = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def read_table(kind: type[T], content: Any, where: str) -> T:
    """Return a dataclass with the values of a table from a file, a dict with the fields' names.

    The fields are texts, numbers, booleans, literals, dataclasses, optional values, and tuples, lists and mappings of
    these. A dataclass of one field may have its value in place of a table. InputError if the content is no table, a
    field is unknown, missing or of another type, or the dataclass rejects a value; the message begins with ``where``,
    the file and the place in it.

    >>> from fpemu.mma.order import KOrder
    >>> read_table(KOrder, {"split": 4}, "order.toml").split
    4
    """
    if not isinstance(content, Mapping):
        raise InputError(f"{where} is not a table of fields")
    hints = _hints(kind)  # type: ignore[arg-type]
    for name in content:
        if name not in hints:
            raise InputError(f"{where}: {unknown_name('field', name, hints)}")
    missing = [name for name, (_, required) in hints.items() if required and name not in content]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    values = {name: _value(hints[name][0], value, f"{where}: {name}") for name, value in content.items()}
    try:
        return kind(**values)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from problem


@functools.cache
def _hints(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether a table must have it."""
    hints = get_type_hints(kind)
    return {f.name: (hints[f.name], f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)}


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        *others, last = (one for one in arguments if one is not types.NoneType)
        for one in others:
            with contextlib.suppress(InputError):
                return _value(one, value, where)
        return _value(last, value, where)  # its error reaches the user
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{where}: {unknown_name('value', value, arguments)}")
        return value
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(_value(arguments[0], item, f"{where} {_label(item, i)}") for i, item in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: _value(arguments[1], item, f"{where}, {name}") for name, item in value.items()}
    if is_dataclass(kind):
        names = list(_hints(kind))  # type: ignore[arg-type]
        if len(names) == 1 and not isinstance(value, Mapping):
            value = {names[0]: value}
        return read_table(kind, value, where)  # type: ignore[arg-type]
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is kind:
        return value
    words = _WORDS.get(kind, "a list" if origin in (tuple, list) else "a table")
    raise InputError(f"{where} is {shown(value)}, not {words}")


def _label(item: Any, index: int) -> str:
    """An entry of a list in a message: its name, where it has one, or its index."""
    name = item.get("name", item.get("item")) if isinstance(item, Mapping) else None
    return repr(name) if isinstance(name, str) else str(index)
