"""For each claim that a page decides an implementation with an error, which the claim's criterion must reject.

The module of a paper has two names: ``WRONG``, a `Wrong` by the name of the claim, and ``WITHOUT``, the claims that
have none yet. `tests.reproduce.test_criteria` compares the numbers of both implementations with the criterion.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fpemu.sweep.store import canonical


@dataclass(frozen=True)
class Wrong:
    """An implementation with an error.

    ``what`` is the error: a wrong rounding, a dropped product, a swapped operand, a scale off by one. ``numbers`` takes
    the page's module and a cell, and returns the columns of the page's rows that the wrong implementation changes.
    ``cells`` are arguments of the page's `cells`; the defaults are those of the quick size.
    """

    what: str
    numbers: Callable[[types.ModuleType, dict[str, Any]], Mapping[str, Any]]
    cells: Mapping[str, Any] = field(default_factory=dict)


_KNOWN: dict[tuple[Any, str], Any] = {}


def once(function: Any, cell: dict[str, Any], evaluate: Callable[[dict[str, Any]], Any]) -> Any:
    """The numbers of a function for a cell, which several claims of a page share: ``evaluate(cell)`` at first."""
    key = function, canonical(cell)
    if key not in _KNOWN:
        _KNOWN[key] = evaluate(cell)
    return _KNOWN[key]
