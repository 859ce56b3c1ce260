"""Records of verification suites: one versioned JSON schema for the outcomes of every suite.

A record names the suite, the GPU, its driver and compiler, a digest of the code, the seed and the options. Each outcome
holds the counts and digests of one group of cases; any machine can compute a case again from the seed and compare.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import fpemu
from fpemu._system import read_json
from fpemu.arguments import read_table
from fpemu.errors import InputError

SCHEMA = 1
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".ll", ".toml", ".json", ".gz")


@dataclass
class Outcome:
    """Result of one group of cases: one row of a record."""

    group: str
    cases: int = 0
    outputs: int = 0  # elements compared
    mismatches: int = 0  # outputs that differ from a reference, and memory outside a result that a kernel changed
    failed: int = 0  # cases that raised an error
    counts: dict[str, int] = field(default_factory=dict)  # of the suite, by name
    kernels: list[str] = field(default_factory=list)  # names of the kernels that ran
    digest: str = ""  # of the digests of all cases
    digests: dict[str, str] = field(default_factory=dict)  # of some cases, by number or name
    first: list[str] = field(default_factory=list)  # the first mismatches and errors
    facts: dict[str, Any] = field(default_factory=dict)  # of the suite, JSON values

    @property
    def ok(self) -> bool:
        """Whether there is neither a mismatch nor an error."""
        return not self.mismatches and not self.failed


@dataclass(frozen=True)
class Record:
    """Outcomes of a suite on one GPU."""

    suite: str
    about: str  # meaning of the suite's counts and facts
    seed: int
    options: dict[str, Any]  # that decide the suite's cases
    device: dict[str, str]  # names and versions of the GPU, its driver and compiler
    code: str  # digest of the package's code
    facts: dict[str, Any] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    fpemu: str = fpemu.__version__
    date: str = ""

    @property
    def ok(self) -> bool:
        """Whether all outcomes are without a mismatch or an error."""
        return all(outcome.ok for outcome in self.outcomes)

    def total(self, name: str) -> Any:
        """Sum over all outcomes of a numeric attribute, or of an entry of the counts or facts."""
        return sum(getattr(o, name, o.counts.get(name, o.facts.get(name, 0))) for o in self.outcomes)

    def continues(self, other: Record) -> bool:
        """Whether the outcomes of two records may stand in one: same suite, seed, options, GPU, code and version."""
        one, another = (replace(record, outcomes=[], facts={}, date="") for record in (self, other))
        return one == another

    def text(self) -> str:
        """Return the record as JSON, one line for each fact and outcome."""
        rows = [{n: v for n, v in asdict(o).items() if v or n in ("outputs", "mismatches")} for o in self.outcomes]
        names = ["cases", "outputs", "mismatches", "failed", *Counter(n for o in self.outcomes for n in o.counts)]
        fields = {
            "schema": SCHEMA,
            **{n: getattr(self, n) for n in ("suite", "about", "date", "fpemu", "code", "device", "seed", "options")},
            "totals": {"groups": len(rows)} | {name: self.total(name) for name in names},
            "digest": _digest(rows),
            "facts": self.facts,
        }
        return text_of({**fields, "outcomes": rows}, ["outcomes"])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Record:
        """Read a record; InputError if the file cannot be read, has another schema, or its outcomes were changed."""
        content = read_json(path)
        known = isinstance(content, dict) and content.get("schema") == SCHEMA
        if not known or content.get("digest") != _digest(content.get("outcomes")):
            raise InputError(f"{path}: a record of schema {SCHEMA} with unchanged outcomes is needed")
        computed = ("schema", "totals", "digest")  # by `text`
        return read_table(cls, {name: value for name, value in content.items() if name not in computed}, str(path))


def text_of(content: Mapping[str, Any], opened: Iterable[str]) -> str:
    """Return JSON with a line for each field, and for each item of the fields that are opened."""

    def dumped(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def field_of(name: str, value: Any) -> str:
        if name not in opened:
            return dumped(value)
        is_list = isinstance(value, list)
        items = map(dumped, value) if is_list else (f"{dumped(key)}: {dumped(x)}" for key, x in value.items())
        begin, end = "[]" if is_list else "{}"
        return f"{begin}\n" + ",\n".join(f"  {item}" for item in items) + f"\n {end}"

    return "{\n" + ",\n".join(f" {dumped(name)}: {field_of(name, x)}" for name, x in content.items()) + "\n}\n"


def now() -> str:
    """Return the date of a record."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@cache
def code_digest(*folders: Path) -> str:
    """Return a digest of all sources in some folders, by default of the package."""
    total = hashlib.sha256()
    for root in folders or (Path(fpemu.__file__).parent,):
        for file in sorted(file for file in root.rglob("*") if file.suffix in _SOURCES):
            total.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def driver() -> str:
    """Return the version of NVIDIA's driver as nvidia-smi prints it, or "unknown"."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return output[0] if output else "unknown"


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
