"""How the entries of a grid are written: one value, a list, a range; and what is said where one is wrong."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.sweep.axes import parse_range

MOST_CELLS = 1_000_000


@contextlib.contextmanager
def at(where: str) -> Iterator[None]:
    """Say where in the grid an InputError came from."""
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
        raise InputError(f"{value!r} has too many values; at most {MOST_CELLS} cells are taken at once") from None
    return [_plain(item) for item in value]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def axis(key: str, value: Any) -> list[Any]:
    """The values that an entry stands for, each once: itself, a list's, a range's; "none" is None.

    >>> axis("K", ["none", 3, "4:6"]), axis("residual_scale", "2^10:2^12")
    ([None, 3, 4, 5, 6], [1024, 2048, 4096])
    """
    found: list[Any] = []
    for item in listed(value):
        ranged = isinstance(item, str) and (":" in item or "^" in item)
        found += parse_range(key, item) if ranged else [None if item == "none" else item]
    if not found:
        raise InputError(f"{key} is empty")
    for item in found:
        if isinstance(item, float) and not math.isfinite(item):
            raise InputError(f"{key} has {item!r}: finite numbers are needed")
    return once(found)


def each(key: str, value: Any, check: Callable[[str], str], none: bool = False) -> list[str]:
    """Names, each checked and once; there may be none if ``none``."""
    names = listed(value)
    if not names and not none:
        raise InputError(f"{key} is empty")
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{key} has {name!r}: a name is needed")
    with at(key):
        return list(dict.fromkeys(check(name) for name in names))


def named(key: str, entries: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """For each entry where it stands, its name, and the rest of it."""
    found = []
    for index, entry in enumerate(listed(entries), start=1):
        rest = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else {}
        name = rest.pop("name", None)
        where = f"{key} {index}" + (f" ({name})" if isinstance(name, str) else "")
        if not isinstance(name, str):
            raise InputError(f"{where}: {entry!r} has no name")
        found.append((where, name, rest))
    if not found:
        raise InputError(f"{key} is empty")
    return found


def combinations(where: str, axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every choice of one value from each axis."""
    values = [axis(f"{where}: {name}", value) for name, value in axes.items()]
    check_count(values)
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*values)]


def check_count(axes: Iterable[Sequence[Any]]) -> None:
    """InputError if the product of the axes has more cells than anyone can run."""
    count = math.prod(len(values) for values in axes)
    if count > MOST_CELLS:
        raise InputError(f"the grid has {count} cells; at most {MOST_CELLS} are taken at once")


def prefixed(of: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a cell has them under.

    >>> prefixed("scheme", {"sb": 12})
    {'scheme.sb': 12}
    """
    return {f"{of}.{name}": value for name, value in chosen.items()}


def flat(value: Any) -> Any:
    """An option's value as one number or word: a tuple of products as the text that the option takes as well."""
    return ",".join(str(item) for item in value) if isinstance(value, tuple) else value


def once(items: Iterable[Any]) -> list[Any]:
    """The items without repetitions, in their order; 1, 1.0 and True are three."""
    return list({repr(item): item for item in items}.values())
