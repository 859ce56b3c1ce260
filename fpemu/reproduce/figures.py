"""Write a figure: the data as CSV, the picture as PNG and the record as JSON; read the data and the record back.

Floats are written with 9 significant digits, or fewer where a page declares that its computation is less stable. The
picture and every statement of the record are computed from the data as written, so that evaluating the cells again on
another processor gives the same files, and a figure that is read back gives the same statements. No file depends on
the time, the machine's name or its folders.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpemu.errors import InputError, unknown_name
from fpemu.files import check_writable, read_json, write_atomic
from fpemu.reproduce import verdicts
from fpemu.sweep.code import drawing_version
from fpemu.sweep.store import canonical
from fpemu.sweep.tables import parse, table

if TYPE_CHECKING:
    from fpemu.reproduce.experiments import Experiment
    from fpemu.sweep.run import Row

FORMATS = ("svg", "pdf")
"""Formats of a picture that are written only on request, beside the PNG."""
UNCHANGED, REWRITTEN, NEW = "unchanged", "rewritten", "new"
_PACKAGES = ("numpy", "numba", "scipy", "python-flint", "matplotlib")


@dataclass(frozen=True)
class Written:
    """The files of a figure, and whether writing changed them."""

    paths: list[Path]
    """PNG, CSV and JSON, then the formats requested in addition"""
    state: str
    """"new", "unchanged" or "rewritten": of the PNG, the CSV and the JSON together"""
    record: dict[str, Any]
    """The content of the JSON"""


def write(
    experiment: Experiment,
    size: str,
    rows: list[Row],
    folder: str | os.PathLike[str] = "figures",
    formats: Sequence[str] = (),
) -> Written:
    """Write ``folder/<paper>/<figure>.{png,csv,json}``; each file appears whole or not at all.

    Parameters
    ----------
    experiment : Experiment
    size : {"quick", "full"}
    rows : list of dict
        From :func:`fpemu.sweep.run.run`.
    folder : path-like
    formats : sequence of {"svg", "pdf"}
        Pictures to write in addition.

    Returns
    -------
    Written

    Notes
    -----
    The data and the statements are always computed and compared with the files. An existing picture is kept if the
    record has the picture's SHA-256, and names the same data, the same version of the evaluator and the same drawing
    code (:func:`fpemu.sweep.code.drawing_version`): the bytes of a PNG also depend on the versions of matplotlib and
    FreeType and on the processor. In the same way the package versions in the record are those that the data were
    first obtained with. A file whose content stays the same is not written.
    """
    from fpemu import plotting

    png, data_path, record_path = (_path(folder, experiment, suffix) for suffix in ("png", "csv", "json"))
    known = _known(record_path)
    data = table(rows, digits(experiment, size))
    rows = parse(data, str(data_path))
    record = provenance(experiment, size, rows, data)
    same_data = [known.get(name) for name in ("data", "version")] == [record[name] for name in ("data", "version")]
    if same_data and isinstance(known.get("versions"), dict):
        record["versions"] = known["versions"]
    kept = _bytes(png)
    recorded = {**record["picture"], "sha256": _sha256(kept or b"")}
    keep = same_data and known.get("picture") == recorded
    drawn = functools.cache(lambda: experiment.draw(rows))
    picture = kept if kept is not None and keep else plotting.png(drawn())
    record["picture"]["sha256"] = _sha256(picture)
    contents = {
        png: picture,
        data_path: data,
        record_path: (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    before = {path: _bytes(path) for path in contents}
    state = UNCHANGED if before == contents else REWRITTEN if before[record_path] is not None else NEW
    further = {_path(folder, experiment, name): getattr(plotting, name)(drawn()) for name in formats}
    for path, content in (contents | further).items():
        if path in further or before[path] != content:
            write_atomic(path, content)
    return Written([*contents, *further], state, record)


def check_output(names: Iterable[str], folder: str | os.PathLike[str], formats: Sequence[str] = ()) -> None:
    """Check before a computation that the figures ``<paper>/<figure>`` can be written in a folder.

    Raises
    ------
    InputError
        If a format is unknown, a file stands in the place of a folder or a folder in the place of a file, or a folder
        is read-only.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    for name in names:
        for suffix in ("png", "csv", "json", *formats):
            path = Path(folder) / f"{name}.{suffix}"
            while not os.path.lexists(path.parent):
                path = path.parent  # the folder to make
            if not path.parent.is_dir():
                raise InputError(f"cannot write figures in {folder}: {path.parent} is not a folder")
            check_writable(path)


def _path(folder: str | os.PathLike[str], experiment: Experiment, suffix: str) -> Path:
    return Path(folder) / f"{experiment.name}.{suffix}"


def _known(path: Path) -> dict[str, Any]:
    """The existing record; empty if it is missing or damaged."""
    try:
        return load_record(path)
    except InputError:
        return {}


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digits(experiment: Experiment, size: str) -> dict[str, int | None]:
    """Significant digits of the columns that do not have 9: ``DIGITS`` of the page or of its evaluator.

    Parameters are exact, so they have all their digits.
    """
    parameters: dict[str, int | None] = {name: None for cell in experiment.cells(size)[:1] for name in cell}
    return parameters | dict(_declared(experiment, "DIGITS", {}))


def version(experiment: Experiment) -> int:
    """Version of the page's evaluator: ``VERSION`` of the page or of the module that defines ``evaluate``, else 1."""
    return int(_declared(experiment, "VERSION", 1))


def _declared(experiment: Experiment, name: str, default: Any) -> Any:
    page = experiment.module
    return getattr(page, name, getattr(sys.modules[page.evaluate.__module__], name, default))


def as_written(experiment: Experiment, size: str, rows: list[Row]) -> list[Row]:
    """Return the rows of an experiment with the digits that its CSV holds."""
    return parse(table(rows, digits(experiment, size)), experiment.name)


def provenance(experiment: Experiment, size: str, rows: list[Row], data: bytes) -> dict[str, Any]:
    """Return a figure's record: its command, and the numbers that decide the paper's claims."""
    names = list(experiment.cells(size)[0]) if rows else []
    words = statements(experiment, size, rows)
    stem = experiment.name.split("/")[1]
    return {
        "figure": experiment.name,
        **{name: words[name] for name in ("paper", "title", "kind", "caption", "assumptions")},
        "command": f"fpemu reproduce {experiment.name}" + (" --full" if size == "full" else ""),
        "size": size,
        "cells": len(rows),
        "parameters": {name: _distinct(row[name] for row in rows) for name in names},
        "hardware": hardware(experiment, rows),
        **{name: words[name] for name in ("paper_size", "seeds", "measures", "finding")},
        "version": version(experiment),
        "data": {"file": f"{stem}.csv", "sha256": _sha256(data)},
        "picture": {"file": f"{stem}.png", "code": drawing_version(experiment.module)},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def statements(experiment: Experiment, size: str, rows: list[Row]) -> dict[str, Any]:
    """Return a record's words and measured numbers: all of them follow from the page and the rows as written."""
    return {
        "paper": experiment.module.PAPER,
        "title": experiment.title,
        "kind": experiment.kind,
        "caption": experiment.caption,
        "assumptions": experiment.assumptions,
        "paper_size": size == "full" or experiment.cells("full") == experiment.cells("quick"),
        **verdicts.collect(experiment.measures, rows),
        "finding": experiment.finding(rows),
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in their order; lists have no hash."""
    return list({canonical(value): value for value in values}.values())


_FIELDS = {
    "figure": str,
    "paper": str,
    "title": str,
    "command": str,
    "size": str,
    "caption": str,
    "assumptions": list,
    "paper_size": bool,
    "measures": list,
    "data": dict,
}


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the record that :func:`write` wrote.

    Raises
    ------
    InputError
        If the file is missing, or not such a record.
    """
    record = read_json(path)
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as problem:  # half a surrogate pair cannot be written again
        raise InputError(f"cannot read the record of a figure from {path}: {problem}") from problem
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(_entry(record, name), kind)]
    if not wrong and not all(isinstance(text, str) for text in record["assumptions"]):
        wrong.append("assumptions")
    if not wrong and not all(map(_is_measure, record["measures"])):
        wrong.append("measures")
    for name, kind in (("seeds", int), ("finding", str)):
        if not wrong and (name not in record or not isinstance(record[name], kind | None)):
            wrong.append(name)
    if wrong:
        raise InputError(f"{path} is not the record of a figure: {', '.join(wrong)} missing or of another kind")
    return dict(record)


_NOT_FINITE = ("inf", "-inf", "nan")


def _is_measure(entry: Any) -> bool:
    """Whether an entry of a record has the words and the numbers of a measure."""
    values = _entry(entry, "values")
    return (
        all(isinstance(_entry(entry, name), str) for name in ("name", "reading", "variant"))
        and isinstance(values, list)
        and bool(values)
        and all(
            (isinstance(value, int | float) and abs(value) <= sys.float_info.max) or value in _NOT_FINITE
            for value in values
        )
    )


def _entry(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else None


def hardware(experiment: Experiment, rows: list[Row]) -> list[dict[str, Any]]:
    """The arithmetic, evidence and source of the instructions in the page's ``SPECS``.

    Without ``SPECS`` these are the fp16 instructions of the ``hardware`` parameter.
    """
    from fpemu import mma

    columns = [(str(name), "fp16", "fp32") for name in dict.fromkeys(row.get("hardware") for row in rows) if name]
    specs = [mma.spec(*given) for given in getattr(experiment.module, "SPECS", columns)]
    fields = ("name", "arithmetic", "k", "block", "F", "E0", "final", "evidence", "source")
    return [{field: getattr(spec, field) for field in fields} for spec in specs]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
