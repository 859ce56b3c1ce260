"""Checks of arguments: each function returns the value to use, or raises InputError that names the argument.

Types are checked by `checked`, a decorator that reads a function's annotations, and `check_fields`, the same for the
fields of a dataclass; ranges and names by `integer`, `number`, `flag`, `choice` and so on. Numbers may be Python's or
NumPy's; True and False are no numbers. A value is compared with names only after its type is checked, because the
comparison of an array with a name has no truth value.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from fpemu.errors import InputError, shown, unknown_name
from fpemu.hints import Kind, article, kind_of, resolved

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
LARGEST = 2**63 - 1
"""The largest size: the product of three sizes must stay within the range of fp64."""


def checked(function: F) -> F:
    """Check the arguments of every call against the function's annotations.

    An int takes Python's and NumPy's integers, a float any real number but NaN, a bool truth values alone, a Literal
    its names, a class its instances; sequences and mappings are checked entry by entry. Any is not checked. An unknown
    keyword of ``**options: Unpack[TypedDict]`` raises with the nearest name.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)

    @functools.cache
    def kinds() -> tuple[list[Kind | None], dict[str, Kind | None], Mapping[str, Any] | None]:
        hints = {name: resolved(p.annotation, function) for name, p in parameters.items()}
        table = {name: kind_of(hint) for name, hint in hints.items() if name != rest}
        options = None if rest is None else _typed_keywords(hints[rest])
        if options is not None:
            table |= {name: kind_of(hint) for name, hint in options.items()}
        return [table[name] for name in names], table, options

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        positional, table, options = kinds()
        values = [v if k is None else k(n, v) for n, k, v in zip(names, positional, given, strict=False)]
        for name, value in named.items():
            if options is not None and name not in table:
                raise unknown_name(f"argument of {function.__name__}", name, [*parameters, *options])
            kind = table.get(name)
            if kind is not None:
                named[name] = kind(name, value)
        return function(*values, *given[len(names) :], **named)

    return call  # type: ignore[return-value]


def _typed_keywords(hint: Any) -> Mapping[str, Any] | None:
    """The names and types of ``**options: Unpack[TypedDict]``; None for options of any name."""
    inner = getattr(hint, "__args__", (None,))[0]
    return None if not hasattr(inner, "__required_keys__") else {k: resolved(v, inner) for k, v in _annotations(inner)}


def _annotations(cls: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(hint, "__forward_arg__", hint)) for name, hint in cls.__annotations__.items()]


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass against its annotations; call it first in ``__post_init__``."""
    cls = type(instance)
    for name, kind in _field_kinds(cls):  # type: ignore[arg-type]
        value = getattr(instance, name)
        checked_value = kind(f"{cls.__name__}: {name}", value)
        if checked_value is not value:
            object.__setattr__(instance, name, checked_value)


@functools.cache
def _field_kinds(cls: Any) -> list[tuple[str, Kind]]:
    owners = {name: base for base in reversed(cls.__mro__) for name in vars(base).get("__annotations__", {})}
    # from Python 3.14 on, only classes with postponed annotations are owners: the types of other fields are no strings
    kinds = ((f.name, kind_of(resolved(f.type, owners.get(f.name, cls)))) for f in fields(cls))
    return [(name, kind) for name, kind in kinds if kind is not None]


# --- values


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
    none: bool = False,
    what: str = "",
) -> Any:
    """Return a real number as float, at least ``low`` and at most ``high``, larger than ``above``, less than ``below``.

    NaN is always refused, and Inf unless one of ``low`` and ``high`` is finite and the other is not. ``what`` ends the
    message.

    >>> number("target", float("nan"), above=0, below=1)
    Traceback (most recent call last):
    fpemu.errors.InputError: target = nan must be a number above 0 and below 1
    """
    if none and value is None:
        return None
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
    raise InputError(f"{name} = {shown(value)} must be {kind}{what}{' or None' * none}")


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


def instance(name: str, value: Any, kind: type[T], source: str = "") -> T:
    """Return an object of a class; ``source`` ends the message.

    >>> instance("order", 5, Fraction, "such as Fraction(1, 3)")
    Traceback (most recent call last):
    fpemu.errors.InputError: order = 5 must be a Fraction, such as Fraction(1, 3)
    """
    if isinstance(value, kind):
        return value
    what = f"{article(kind.__name__)} {kind.__name__}"
    raise InputError(f"{name} = {shown(value)} must be {what}{', ' * bool(source)}{source}")


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
