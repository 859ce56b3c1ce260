"""From the content of a TOML or JSON file to a frozen dataclass: the one check of its fields and their types."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fpemu.errors import InputError, shown, unknown_name

T = TypeVar("T")
_WORDS = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def read(kind: type[T], content: Any, where: str) -> T:
    """Return a dataclass with the values of a table.

    Parameters
    ----------
    kind : type
        A dataclass. Its fields are texts, numbers, booleans, literals, dataclasses, optional values, and tuples, lists
        and mappings of these. A dataclass of one field may have its value in place of a table.
    content : object
        A table from a file: a dict with the fields' names.
    where : str
        File, and the place in it, for messages.

    Returns
    -------
    kind

    Raises
    ------
    InputError
        If the content is no table, a field is unknown (with the nearest name), missing or of another type, or the
        dataclass rejects a value. The message names the file and the field.

    Examples
    --------
    >>> from fpemu.mma.order import KOrder
    >>> read(KOrder, {"split": 4}, "order.toml").split
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
        return read(kind, value, where)  # type: ignore[arg-type]
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
