"""The kinds of rows, and the module of this package that says and measures those of each.

A module of a kind has

* ``tasks(quick) -> iterable of Task``: its rows, the most important first, fewer with `quick`;
* ``measure(task, made) -> dict``: the fields of a row: "first_s", "best_s" and what else there is, "operations" where
  a call does not do 2·M·N·K·batch of them, "bytes" where bandwidth counts;
* ``seconds(task) -> float``: about how long that takes, for a budget;

and may have

* ``make(task) -> anything``: what consecutive rows of one `Task.place` share, passed on as `made`;
* ``sources(task) -> list of str``: what its kernels compile, so that many compile side by side beforehand;
* ``BASE``: the contender whose speed the command's table divides by, if not "sgemm".
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    "product": "products", "ceiling": "ceilings", "application": "applications", "batched": "batched",
    "tall": "tallskinny",
}  # fmt: skip
"""Modules by kind, in the order in which rows are measured."""


def module(kind: str) -> Any:
    """What measures a kind; loaded when it is asked for."""
    return importlib.import_module(f"fpemu.gpu.bench.{MODULES[kind]}")


def base(kind: str) -> str:
    """Whose speed the others' are divided by."""
    return str(getattr(module(kind), "BASE", "sgemm"))
