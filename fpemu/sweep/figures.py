"""Write an experiment out: the picture as PNG and SVG, its data as CSV, its provenance as JSON.

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
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fpemu
from fpemu.files import write_atomic

if TYPE_CHECKING:
    from fpemu.sweep.claims import Claim
    from fpemu.sweep.experiments import Experiment
    from fpemu.sweep.run import Row

_PACKAGES = ("numpy", "numba", "scipy", "python-flint", "matplotlib")


def write(experiment: Experiment, size: str, rows: list[Row], folder: str | os.PathLike[str] = "figures") -> list[Path]:
    """Draw and write ``folder/<paper>/<figure>.{png,svg,csv,json}``; each file appears whole or not at all.

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
    record = provenance(experiment, size, rows, data, experiment.claims(rows))
    contents = {
        "png": plotting.png(made),
        "svg": plotting.svg(made),
        "csv": data,
        "json": (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    paths = [Path(folder) / f"{experiment.name}.{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content)
    return paths


def table(rows: list[Row]) -> bytes:
    """The rows as CSV: parameters, then numbers, floats with as many digits as give the same float back."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def provenance(experiment: Experiment, size: str, rows: list[Row], data: bytes, claims: list[Claim]) -> dict[str, Any]:
    """Everything needed to make the figure again, and what the paper's claims came to."""
    names = experiment.cells(size)[0].keys() if rows else ()
    return {
        "figure": experiment.name,
        "paper": experiment.module.PAPER,
        "title": experiment.title,
        "caption": experiment.caption,
        "assumptions": experiment.assumptions,
        "command": f"fpemu reproduce {experiment.name}" + (" --full" if size == "full" else ""),
        "size": size,
        "cells": len(rows),
        "parameters": {name: list(dict.fromkeys(row[name] for row in rows)) for name in names},
        "hardware": hardware(rows),
        "claims": [claim.as_dict() for claim in claims],
        "data": {"file": f"{experiment.name.split('/')[1]}.csv", "sha256": hashlib.sha256(data).hexdigest()},
        "code": {"version": fpemu.__version__, "sha256": experiment.code, "revision": revision(experiment.root)},
        "versions": {"python": platform.python_version(), **_versions()},
    }


def hardware(rows: list[Row]) -> list[dict[str, Any]]:
    """The fp16 instructions behind the ``hardware`` parameter of the rows: their arithmetic, evidence and source."""
    from fpemu import mma

    specs = [mma.spec(str(name), "fp16", "fp32") for name in dict.fromkeys(row.get("hardware") for row in rows) if name]
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
