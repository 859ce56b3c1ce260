"""Cut the second committed part, h200_settled.npz, out of the outputs of the batteries that settled what was open.

Call: python make_settled.py FOLDER [OUT], with execute.npz and execute_golden.npz in the folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.data.make_subset import write

KEPT = {"overflow": 4, "large": 2, "cancel": 2}  # tests of a battery
CLASSES = ("any_bits", "finite_bits", "large", "small", "cancel", "deep")


def short(name: str) -> str:
    """``mma.m16n8k32.f16.e4m3.e5m2.f16`` and ``wgmma.mma.m64n8k32.f16.e4m3.e5m2`` without what is said twice."""
    return re.sub(r"^wgmma\.mma", "wgmma", re.sub(r"^(mma\..*)\.\w+$", r"\1", name))


def subset(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the committed file, by key."""
    out: dict[str, NDArray[Any]] = {}
    with np.load(folder / "execute.npz") as z:
        for key in z.files:
            parts = key.split("/")
            if parts[0] == "overflow":
                out[f"{short(parts[1])}/overflow/{parts[2]}"] = z[key][: KEPT["overflow"]]
            elif parts[0] == "int8" and parts[2] in KEPT:
                out[f"{short(parts[1])}/{parts[2]}-ends/{parts[3]}"] = z[key][: KEPT[parts[2]]]
            elif parts[0] == "fp64-directed":
                out[f"directed/mma.{parts[1]}.f64.f64.f64"] = z[key]
            elif parts[0].startswith("fp64-"):
                out[f"mma.{parts[1]}.f64.f64.f64/nan-{parts[0].split('-')[-1]}/{parts[2]}"] = z[key][:2]
    with np.load(folder / "execute_golden.npz") as z:
        for name in sorted({key.split("/")[0] for key in z.files}):
            for what in "ABCD":
                out[f"{short(name)}/classes/{what}"] = np.concatenate([z[f"{name}/{c}/{what}"] for c in CLASSES])
    return out


if __name__ == "__main__":
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("h200_settled.npz")
    write(subset(Path(sys.argv[1])), target)
    print(f"{target}: {target.stat().st_size} bytes")
