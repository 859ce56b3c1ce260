"""Counts of the Python calls of fpemu that a public call makes."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fpemu

PACKAGE = str(Path(fpemu.__file__).parent)


class Calls(NamedTuple):
    """The calls of named functions of fpemu: comprehensions are frames on Python 3.11 and none from 3.12 on."""

    total: int
    file_changes: int
    files: Counter[str]
    functions: Counter[str]


def count(call: Callable[[], Any]) -> Calls:
    """Count the calls within `call`, those excluded that an import or the collection of other objects makes."""
    files: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    changes, last, importing = 0, "", 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal changes, last, importing
        code = frame.f_code
        if code.co_name == "_find_and_load":
            importing += {"call": 1, "return": -1}.get(event, 0)
        if event != "call" or importing or code.co_name[0] == "<" or not code.co_filename.startswith(PACKAGE):
            return
        file = code.co_filename[len(PACKAGE) + 1 :].replace("\\", "/")
        changes += file != last
        last = file
        files[file] += 1
        functions[f"{file}:{code.co_qualname}"] += 1

    before, collecting = sys.getprofile(), gc.isenabled()
    gc.collect()  # a graph of an earlier test, destroyed within `call`, would be counted
    gc.disable()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return Calls(sum(files.values()), changes, files, functions)
