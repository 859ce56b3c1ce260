"""Cut the committed part, h200.npz, out of the complete recordings.

Call: python make_subset.py FOLDER_OF_COMPLETE_FILES [OUT]

Only recordings made for this project are taken; the V100 and A100 recordings of other authors are not.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY_BLOCK = {"96x80x256": (48, 40), "128x128x1000": (16, 16), "64x2048x256": (16, 24)}  # rows and columns kept
KERNEL_BLOCK = 12


def subset(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the committed file, by key."""
    out: dict[str, NDArray[Any]] = {}
    with np.load(folder / "h200_instructions.npz") as z:
        for key in z.files:
            keep = 3 if key.startswith("mma.") else 1  # tests of 16×8 and of 64×8 outputs
            out[f"instructions/{key}"] = z[key][:keep]
    with np.load(folder / "h200_library_gemm.npz") as z:
        for key in z.files:
            shape, what = key.split("/")[2:]
            rows, columns = LIBRARY_BLOCK[shape]
            x = z[key]
            out[f"library/{key}"] = {"A": x[:rows], "Bt": x[:columns], "D": x[:rows, :columns]}[what]
    with np.load(folder / "h200_split_kernels.npz") as z:
        for key in z.files:
            what = key.rpartition("/")[2]
            n = KERNEL_BLOCK
            out[f"kernels/{key}"] = z[key][:n, :n] if what == "C" else z[key][:n]
    return out


def write(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """An npz whose bytes depend on the arrays only: sorted keys, no time of writing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for key in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[key]), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{key}.npy", date_time=(2026, 11, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue(), compresslevel=9)


if __name__ == "__main__":
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("h200.npz")
    write(subset(Path(sys.argv[1])), target)
    print(f"{target}: {target.stat().st_size} bytes")
