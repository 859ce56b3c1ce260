"""Cut `nccl_x4.npz` out of the complete recordings: python tests/data/make_nccl.py FOLDER."""

import json
import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    order = json.loads((folder / "nccl_order_x4.json").read_text())
    rows = [[r[k] for k in ("protocol", "dtype", "n", "op", "runs", "entries", "starts")] for r in order["rows"]]
    out = {"order": np.frombuffer(json.dumps(rows).encode(), np.uint8)}
    with np.load(folder / "nccl_sums_x4.npz") as sums:
        for key in sums.files:
            _, _, dtype, op = key.replace("__", "_").split("_", 3)
            x = sums[key][:, :4096] if op == "all_reduce" else sums[key][4:, :4096]  # the same parts
            if op == "reduce_scatter":
                assert np.array_equal(sums[key][:4], sums[key.replace(op, "all_reduce")][:4])
            codes = x.view(np.uint32)
            codes = (codes >> 16).astype(np.uint16) if dtype == "bfloat16" else codes
            out[f"{dtype}/{op}"] = x.astype(np.float16).view(np.uint16) if dtype == "float16" else codes
    np.savez_compressed(Path(__file__).parent / "nccl_x4.npz", **out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
