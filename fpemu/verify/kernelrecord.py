"""What `fpemu verify kernels` found, as a file: counts, digests and what differed, a line for each variant."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import fpemu

ABOUT = (
    "Products of fpemu.gpu.gemm compared bit for bit with fpemu.gemm, which emulates the instruction; errors by their "
    "text. Every product is a function of seed, variant and number (fpemu.verify.kernelcases). outputs: "
    "compared; on_cpu: those that were emulated on the CPU too; errors: products that both refuse alike; without: "
    "those that no kernel runs; digest: of all digests of a variant's products; replay: number, digest, kernel of "
    "small products, which any machine can compute again; first: the first outputs that differ, or what failed"
)
_CODE = ("gpu", "mma", "schemes", "simt", "formats.py", "rounding.py", "sticky.py", "arrays.py")
"""What products on the GPU and their emulation come from"""
_APART = ("gpu/batched", "gpu/tallskinny")


@dataclass
class Outcome:
    """What was found about one variant."""

    variant: str
    products: int = 0
    outputs: int = 0
    on_cpu: int = 0
    errors: int = 0
    without: int = 0
    """Products of schemes that no kernel runs with these options"""
    mismatches: int = 0
    failed: int = 0
    kernels: list[str] = field(default_factory=list)
    digest: str = ""
    replay: list[dict[str, Any]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain about."""
        return not self.mismatches and not self.failed


@cache
def code() -> str:
    """A digest of the kernels and of what they are compared with: a record of other code is no help to go on from."""
    root, found = Path(fpemu.__file__).parent, hashlib.sha256()
    files = [f for name in _CODE for f in ([root / name] if name.endswith(".py") else (root / name).rglob("*"))]
    for file in sorted(f for f in files if f.suffix in (".py", ".cu", ".cuh", ".toml")):
        name = file.relative_to(root).as_posix()
        if not name.startswith(_APART):
            found.update(f"{name}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def record(found: Sequence[Outcome], seed: int, cases: int) -> dict[str, Any]:
    """What was found on the GPU at hand, as it is kept."""
    from fpemu.gpu.gemm.choice import architecture
    from fpemu.gpu.runtime import device
    from fpemu.verify import records

    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "code": code(),
        "device": {**device.describe(), "driver": records.driver()},
        "architecture": architecture(),
        "seed": seed,
        "cases": cases,
        **{
            name: sum(getattr(o, name) for o in found)
            for name in ("products", "outputs", "on_cpu", "errors", "without", "mismatches", "failed")
        },
        "variants": [{n: v for n, v in asdict(o).items() if v or n in ("outputs", "mismatches")} for o in found],
    }


def text(made: dict[str, Any]) -> str:
    """A record as JSON, a line for each variant."""
    head = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in made.items() if name != "variants"]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in made["variants"])
    return "{\n" + ",\n".join(head) + ',\n "variants": [\n' + rows + "\n ]\n}\n"


def kept_from(before: dict[str, Any] | None, seed: int, cases: int) -> list[Outcome]:
    """The outcomes of a record that a run with these arguments, code and GPU may go on from: those without a fault."""
    now = record([], seed, cases)
    same = ("fpemu", "code", "device", "seed", "cases")
    if before is None or any(before.get(name) != now[name] for name in same):
        return []
    try:
        return [o for o in (Outcome(**row) for row in before["variants"]) if o.ok]
    except (KeyError, TypeError):  # somebody has changed it
        return []
