"""The values that a type annotation admits: the tests of `fpemu.arguments.checked`."""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from fpemu.errors import InputError, shown, unknown_name


@dataclass(frozen=True)
class Kind:
    """A set of admissible values."""

    label: str
    """Description for messages"""
    test: Callable[[Any], bool]
    convert: Callable[[Any], Any] | None = None
    """Conversion to Python's type"""
    names: tuple[str, ...] = ()
    """The admissible strings, if they are restricted"""

    def __call__(self, name: str, value: Any) -> Any:
        """The value to use.

        Raises
        ------
        InputError
            The value is of another kind.
        """
        if self.test(value):
            return value if self.convert is None else self.convert(value)
        if self.names and isinstance(value, str):
            raise unknown_name(name, value, self.names)
        raise InputError(f"{name} = {shown(value)} must be {self.label}")


def resolved(annotation: Any, owner: Any) -> Any:
    """An annotation as a type; Any if a name in it is imported for type checking alone."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[owner.__module__]))
    except NameError:
        return Any


def kind_of(hint: Any) -> Kind | None:
    """The kind of an annotation; None if it admits everything, or arrays, which are checked where they are read."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(inside)
    if origin is Literal:
        names = tuple(str(x) for x in inside)
        return Kind(either(map(repr, inside)), lambda x: isinstance(x, str) and x in names, names=names)
    if origin is collections.abc.Callable or getattr(hint, "_is_protocol", False):
        return Kind("callable", callable)
    if origin is tuple and inside and inside[-1] is not Ellipsis:
        return _tuple(inside)
    if origin in (tuple, list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection):
        ordered = origin in (tuple, list, collections.abc.Sequence)
        base: Any = collections.abc.Sequence if ordered else collections.abc.Iterable
        return _sequence(inside[0] if inside else Any, base)
    if origin in (dict, collections.abc.Mapping):
        return _mapping(*inside)
    if isinstance(origin, type):
        hint = origin
    if not inspect.isclass(hint) or hint in (object, np.ndarray) or isinstance(hint, TypeVar):
        return None
    accepted = (hint, *getattr(hint, "also", ()))
    return Kind(f"{article(hint.__name__)} {hint.__name__}", lambda x: isinstance(x, accepted))


def _integer(x: Any) -> bool:
    return type(x) is int or (isinstance(x, int | np.integer) and not isinstance(x, bool))


def _real(x: Any) -> bool:
    """Whether a value is a number within float64's range, or Inf; NaN is none."""
    return abs(x) < 2**1024 if _integer(x) else isinstance(x, float | np.floating) and bool(x == x)


def _plain(x: Any) -> Any:
    """A number of NumPy as Python's: operations on float16 would round and overflow."""
    return (int(x) if isinstance(x, np.integer) else float(x)) if isinstance(x, np.generic) else x


_PLAIN: dict[Any, Kind | None] = {
    Any: None,
    inspect.Parameter.empty: None,
    bool: Kind("True or False", lambda x: isinstance(x, bool | np.bool_), bool),
    int: Kind("an integer", _integer, int),
    float: Kind("a number", _real, _plain),
    str: Kind("a string", lambda x: isinstance(x, str)),
    None: Kind("None", lambda x: x is None),
    type(None): Kind("None", lambda x: x is None),
}


def _union(hints: tuple[Any, ...]) -> Kind | None:
    kinds = [kind_of(hint) for hint in hints]
    if None in kinds:
        return None
    members = [kind for kind in kinds if kind is not None]
    plain = all(kind.convert is None for kind in members)

    def convert(x: Any) -> Any:
        kind = next(kind for kind in members if kind.test(x))
        return x if kind.convert is None else kind.convert(x)

    names = tuple(name for kind in members for name in kind.names)
    label = either(kind.label for kind in members)
    return Kind(label, lambda x: any(kind.test(x) for kind in members), None if plain else convert, names)


def _tuple(hints: tuple[Any, ...]) -> Kind:
    kinds = [kind_of(hint) for hint in hints]

    def test(x: Any) -> bool:
        if not isinstance(x, tuple | list) or len(x) != len(kinds):
            return False
        return all(kind is None or kind.test(entry) for kind, entry in zip(kinds, x, strict=True))

    labels = [kind.label if kind else "a value" for kind in kinds]
    entries = f"{len(kinds)} integers" if {*labels} == {"an integer"} else ", ".join(labels)
    return Kind(f"a tuple of {entries}", test, tuple)


def _sequence(hint: Any, base: Any) -> Kind:
    kind = kind_of(hint)

    def test(x: Any) -> bool:
        if isinstance(x, str | bytes) or not (isinstance(x, base) or (isinstance(x, np.ndarray) and x.ndim == 1)):
            return False
        once = isinstance(x, collections.abc.Iterator)  # cannot be read twice
        return once or kind is None or all(kind.test(entry) for entry in x)

    return Kind("a sequence" + (f", each entry {kind.label}" if kind else ""), test)


def _mapping(key: Any = Any, value: Any = Any) -> Kind:
    keys, values = kind_of(key), kind_of(value)

    def test(x: Any) -> bool:
        return isinstance(x, collections.abc.Mapping) and all(
            (keys is None or keys.test(k)) and (values is None or values.test(v)) for k, v in x.items()
        )

    return Kind("a mapping" + (f", each value {values.label}" if values else ""), test)


def either(labels: collections.abc.Iterable[str]) -> str:
    """Alternatives in words: "a, b or c"."""
    *most, last = dict.fromkeys(labels)
    return f"{', '.join(most)} or {last}" if most else last


def article(name: str) -> str:
    return "an" if name.startswith(("A", "E", "I", "O", "U", "Mma")) else "a"
