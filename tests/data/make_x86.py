"""Cut ``x86.npz`` out of the complete recordings: `python tests/data/make_x86.py ../shared/golden/x86_units.npz`.

The first test of each class of operands; of `any_bits`, whose NaN have payloads, the first three.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    with np.load(sys.argv[1]) as complete:
        part = {key: complete[key][: 3 if "/any_bits/" in key else 1] for key in complete.files}
    np.savez_compressed(Path(__file__).parent / "x86.npz", **part)
