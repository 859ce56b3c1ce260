"""Write an experiment out: picture as PNG, SVG and PDF, data as CSV, provenance as JSON; and read the last two back.

Nothing in these files depends on the time, the machine's name or its folders: drawing twice gives the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fpemu
from fpemu.errors import InputError
from fpemu.files import write_atomic
from fpemu.sweep.claims import spreads
from fpemu.sweep.store import canonical

if TYPE_CHECKING:
    from fpemu.sweep.experiments import Experiment
    from fpemu.sweep.run import Row

_PACKAGES = ("numpy", "numba", "scipy", "python-flint", "matplotlib")


def write(experiment: Experiment, size: str, rows: list[Row], folder: str | os.PathLike[str] = "figures") -> list[Path]:
    """Draw and write ``folder/<paper>/<figure>.{png,svg,pdf,csv,json}``; each file appears whole or not at all.

    Parameters
    ----------
    experiment : Experiment
    size : {"quick", "full"}
    rows : list of dict
        From :func:`fpemu.sweep.run.run`.
    folder : path-like

    Returns
    -------
    list of Path
        What was written.
    """
    from fpemu import plotting

    made = experiment.draw(rows)
    data = table(rows)
    record = provenance(experiment, size, rows, data)
    contents = {
        "png": plotting.png(made),
        "svg": plotting.svg(made),
        "pdf": plotting.pdf(made),
        "csv": data,
        "json": (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    paths = [Path(folder) / f"{experiment.name}.{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content)
    return paths


def table(rows: list[Row]) -> bytes:
    """The rows as CSV: parameters, then numbers, floats with as many digits as give the same float back.

    None is ``None``, a column that a row does not have is empty, and a text that would be read as something else
    (``12``, ``nan``) stands in quotation marks of its own; lists are JSON.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def read(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a CSV that :func:`write` wrote, with their types: the same as were drawn.

    Raises
    ------
    InputError
        If the file is not there, or not such a table.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.reader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"cannot read the data of a figure from {path}: {problem}") from problem
    names, *rest = lines or [[]]
    for number, line in enumerate(rest, start=2):
        if len(line) != len(names):
            raise InputError(f"{path}: row {number} has {len(line)} values for {len(names)} columns")
    return [{name: _value(text) for name, text in zip(names, line, strict=True) if text} for line in rest]


def _text(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    plain = value if isinstance(value, str) else repr(value)
    back = _value(plain)
    if plain and type(back) is type(value) and (back == value or back != back):
        return plain
    return json.dumps(value, ensure_ascii=False)


_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|inf|nan)")


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text[:1] in ('"', "[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def provenance(experiment: Experiment, size: str, rows: list[Row], data: bytes) -> dict[str, Any]:
    """Everything needed to make the figure again, and what the paper's claims came to, together and at single seeds."""
    names = list(experiment.cells(size)[0]) if rows else []
    said = statements(experiment, size, rows)
    return {
        "figure": experiment.name,
        **{name: said[name] for name in ("paper", "title", "kind", "caption", "assumptions")},
        "command": f"fpemu reproduce {experiment.name}" + (" --full" if size == "full" else ""),
        "size": size,
        "cells": len(rows),
        "parameters": {name: _distinct(row[name] for row in rows) for name in names},
        "hardware": hardware(experiment, rows),
        **{name: said[name] for name in ("claims", "finding", "explains")},
        "data": {"file": f"{experiment.name.split('/')[1]}.csv", "sha256": hashlib.sha256(data).hexdigest()},
        "code": {"version": fpemu.__version__, "sha256": experiment.code, "revision": revision(experiment.root)},
        "versions": {"python": platform.python_version(), **_versions()},
    }


def statements(experiment: Experiment, size: str, rows: list[Row]) -> dict[str, Any]:
    """What a record says in words and verdicts: all of it follows from the page and the rows."""
    names = list(experiment.cells(size)[0]) if rows else []
    claims = zip(experiment.claims(rows), spreads(experiment.claims, rows, names), strict=True)
    return {
        "paper": experiment.module.PAPER,
        "title": experiment.title,
        "kind": experiment.kind,
        "caption": experiment.caption,
        "assumptions": experiment.assumptions,
        "claims": [{**claim.as_dict(), "spread": spread and spread.as_dict()} for claim, spread in claims],
        "finding": experiment.finding(rows),
        "explains": experiment.explains,
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order they come; lists have no hash."""
    return list({canonical(value): value for value in values}.values())


_FIELDS = {
    "figure": str, "paper": str, "title": str, "command": str, "size": str, "caption": str, "assumptions": list,
    "claims": list, "data": dict,
}  # fmt: skip


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The provenance that :func:`write` wrote, checked for being one.

    Raises
    ------
    InputError
        If the file is not there, or not such a record.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair cannot be written again
    except (OSError, ValueError) as problem:
        raise InputError(f"cannot read the record of a figure from {path}: {problem}") from problem
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(_entry(record, name), kind)]
    if not wrong and not all(isinstance(text, str) for text in record["assumptions"]):
        wrong.append("assumptions")
    wrong += [
        f"claims: {field}"
        for field in ("claim", "published", "measured", "verdict")
        if not wrong and not all(isinstance(_entry(claim, field), str) for claim in record["claims"])
    ]
    if wrong:
        raise InputError(f"{path} is not the record of a figure: {', '.join(wrong)} missing or of another kind")
    return dict(record)


def _entry(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else None


def hardware(experiment: Experiment, rows: list[Row]) -> list[dict[str, Any]]:
    """The instructions that the numbers come from: their arithmetic, evidence and source.

    Those that the page names in ``SPECS``, or else the fp16 ones of the ``hardware`` parameter.
    """
    from fpemu import mma

    columns = [(str(name), "fp16", "fp32") for name in dict.fromkeys(row.get("hardware") for row in rows) if name]
    specs = [mma.spec(*given) for given in getattr(experiment.module, "SPECS", columns)]
    fields = ("name", "arithmetic", "k", "block", "F", "E0", "final", "evidence", "source")
    return [{field: getattr(spec, field) for field in fields} for spec in specs]


def revision(folder: Path) -> str | None:
    """The commit that last changed the package or the experiments; "+changes" if they were edited since; else None."""
    paths = ["fpemu", "experiments"]
    try:
        last = _git(folder, "log", "-1", "--format=%H", "--", *paths)
        return (last + ("+changes" if _git(folder, "status", "--porcelain", "--", *paths) else "")) if last else None
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder.parent), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _versions() -> Mapping[str, str]:
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
