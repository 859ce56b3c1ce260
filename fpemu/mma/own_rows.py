"""A user's rows of the catalogue: specifications in a JSON file, whose path is accepted wherever hardware is named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from fpemu import _system
from fpemu.arguments import read_table
from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec


@dataclass(frozen=True)
class _File:
    """The content of a file; each row has fields of MmaSpec by name."""

    file: Literal["fpemu catalogue"]
    version: int
    rows: list[Any]


def is_file(hardware: object) -> bool:
    """Return whether the name of hardware is the path of such a file."""
    return isinstance(hardware, str | os.PathLike) and os.fspath(hardware).endswith(".json")


def load(path: str | os.PathLike[str]) -> tuple[MmaSpec, ...]:
    """Read the rows of a file; their architecture is the path. InputError for another or a malformed file."""
    name = os.fspath(path)
    content = read_table(_File, _system.read_json(name), name)
    if content.version != 1 or not content.rows:
        raise InputError(f"{name}: version {content.version} with {len(content.rows)} rows is not version 1 with rows")
    read = (read_table(MmaSpec, row, f"{name}: row {n}") for n, row in enumerate(content.rows))
    return tuple(row.replace(architecture=name, name=row.name, evidence=row.evidence) for row in read)


def save(path: str | os.PathLike[str], rows: Iterable[MmaSpec]) -> None:
    """Write rows into a file; rows that it has under other names are kept."""
    new = list(rows)
    old = [row for row in load(path) if row.name not in {r.name for r in new}] if os.path.exists(path) else []
    lines = [json.dumps(_fields(row), ensure_ascii=False) for row in [*old, *new]]
    text = '{"file": "fpemu catalogue", "version": 1, "rows": [\n' + ",\n".join(lines) + "\n]}\n"
    _system.write_atomic(path, text.encode())


def _fields(row: MmaSpec) -> dict[str, Any]:
    """The fields of a row that differ from the defaults; formats by name."""
    values = {f.name: (getattr(row, f.name), f.default) for f in fields(row) if f.name != "architecture"}
    return {name: str(x) if name.endswith("_format") else x for name, (x, default) in values.items() if x != default}
