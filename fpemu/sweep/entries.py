"""The entries of a grid as values: single values, lists and ranges, and the errors of invalid ones."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fpemu.errors import InputError, shown
from fpemu.sweep.axes import parse_range

MOST_CELLS = 1_000_000
_LONGEST_WORD = 200
_LARGEST = 1e300
"""No number of a grid is larger, so that its estimates and results are finite in fp64."""


@contextlib.contextmanager
def at(where: str) -> Iterator[None]:
    """Prepend the place in the grid to the message of an InputError."""
    try:
        yield
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from problem


def listed(value: Any) -> list[Any]:
    """A list or array of one dimension as a list, anything else as a list of one; NumPy's scalars as Python's.

    Raises
    ------
    InputError
        For more values than a grid has cells, before they are listed.
    """
    if isinstance(value, np.ndarray) and value.ndim == 1:
        many = True
    else:
        many = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    if not many:
        return [_plain(value)]
    try:
        check_count([value])
    except OverflowError:  # a range longer than any list
        raise InputError(f"{shown(value)} has too many values; a grid has at most {MOST_CELLS} cells") from None
    return [_plain(item) for item in value]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def axis(key: str, value: Any) -> list[Any]:
    """The values that an entry stands for, each once: itself, or those of a list or a range; "none" is None.

    >>> axis("K", ["none", 3, "4:6"]), axis("residual_scale", "2^10:2^12")
    ([None, 3, 4, 5, 6], [1024, 2048, 4096])
    """
    values: list[Any] = []
    for item in listed(value):
        ranged = isinstance(item, str) and (":" in item or "^" in item)
        values += parse_range(key, item) if ranged else [None if isinstance(item, str) and item == "none" else item]
    if not values:
        raise InputError(f"{key} is empty")
    for item in values:
        _check_value(key, item)
    return once(values)


def _check_value(key: str, item: Any) -> None:
    """InputError unless a value is a word, a number of moderate size, None, or a list of words."""
    if isinstance(item, list | tuple) and all(isinstance(word, str) for word in item):
        return
    if isinstance(item, str) and len(item) > _LONGEST_WORD:
        raise InputError(f"{key} has {shown(item)}: a word has at most {_LONGEST_WORD} characters")
    if item is not None and not isinstance(item, str | int | float):
        raise InputError(f"{key} has {shown(item)}: a number, a word or a list of words is needed")
    if isinstance(item, float) and not math.isfinite(item):
        raise InputError(f"{key} has {item!r}: finite numbers are needed")
    if isinstance(item, int | float) and not -_LARGEST <= item <= _LARGEST:
        raise InputError(f"{key} has {shown(item)}: numbers lie between -1e300 and 1e300")


def each(key: str, value: Any, check: Callable[[str], str], none: bool = False) -> list[str]:
    """The names of an entry, each checked and once; the entry may be empty if ``none``."""
    names = listed(value)
    if not names and not none:
        raise InputError(f"{key} is empty")
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{key} has {shown(name)}: a name is needed")
    with at(key):
        return list(dict.fromkeys(check(name) for name in names))


def named(key: str, entries: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """The place, the name and the other keys of each entry."""
    parsed = []
    for index, entry in enumerate(listed(entries), start=1):
        rest = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else {}
        name = rest.pop("name", None)
        if not isinstance(name, str):
            raise InputError(f"{key} {index}: {shown(entry)} has no name")
        where = f"{key} {index} ({name[:60]})"
        for option in rest:
            if not isinstance(option, str):
                raise InputError(f"{where}: the key {shown(option)} is not a name")
        parsed.append((where, name, rest))
    if not parsed:
        raise InputError(f"{key} is empty")
    return parsed


def combinations(where: str, axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every choice of one value from each axis."""
    values = [axis(f"{where}: {name}", value) for name, value in axes.items()]
    check_count(values)
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*values)]


def check_count(axes: Iterable[Sequence[Any]]) -> None:
    """InputError if the product of the axes has more than `MOST_CELLS` cells."""
    count = math.prod(len(values) for values in axes)
    if count > MOST_CELLS:
        raise InputError(f"the grid has {count} cells; at most {MOST_CELLS} are possible")


def prefixed(of: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Chosen values under the keys of a cell.

    >>> prefixed("scheme", {"sb": 12})
    {'scheme.sb': 12}
    """
    return {f"{of}.{name}": value for name, value in chosen.items()}


def flat(value: Any) -> Any:
    """An option's value as one number or word: a tuple of products as the equivalent text."""
    return ",".join(str(item) for item in value) if isinstance(value, tuple) else value


def once(items: Iterable[Any]) -> list[Any]:
    """The items without repetitions, in their order; 1, 1.0 and True are three."""
    return list({repr(item): item for item in items}.values())
