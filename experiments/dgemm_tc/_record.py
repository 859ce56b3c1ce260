"""The measurements of `benchmarks.errorfree.dgemm_tc` on one H200, kept beside this module in h200.json."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._rows import Row

PATH = Path(__file__).with_name("h200.json")
PAPER = "Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores (2020)"
PHI = (0.1, 1.0, 2.0)
ASSUMPTIONS = [
    """Operands are (rand - 0.5)·exp(φ·randn) as in the paper. They are drawn on the GPU, A and B are stored by rows,
    and α = 1, β = 0.""",
    """The measured program follows the published algorithm: SplitA runs for every block of at most 3584 rows, with
    Algorithm 3 on all of B in modes DP and SP; SplitB runs for every block of columns, and again for every block of
    rows; one call of cuBLAS computes each product of slices from fp16 operands in fp32; the sum is in the order of
    Algorithm 2, or by NearSum in CR mode.""",
    """A speed is 2n³ divided by the mean wall time of 3 to 10 executions after a warm-up, including the host's time.
    The parts of the time are GPU times, measured by events around every launch of one more execution.""",
    """Blocks have n rows and columns up to n = 2048, and 2048, 2560, 3584, 2731 and 3414 at n = 4096, 5120, 7168, 8192
    and 10240. All modes pad the operands of the calls of GEMM with zeros, to multiples of 16 at least, because cuBLAS
    13.1 selects slower kernels for odd sizes; the zeros do not count as operations.""",
    """The sizes n = 5120 and 7168 come from an earlier run of the benchmark than the other sizes. In that run the GPU
    time of modes DP and SP is 41 to 98 % of the wall time, and the calls of GEMM at n = 5120 are slower than at
    n = 4096, so the dips of the curves may be due to that run.""",
    """The GPUs of the paper, a Titan RTX and a V100, are not available. Measurements on the H200 do not judge the
    paper's statements on their speeds; the H200 has fast fp64 arithmetic, as has the V100.""",
]


@functools.cache
def read() -> dict[str, Any]:
    """The record."""
    return dict(json.loads(PATH.read_text()))


@functools.cache
def digest() -> str:
    """A digest of the record, which the cells carry."""
    return hashlib.sha256(PATH.read_bytes()).hexdigest()[:12]


def cells(table: str, shown: Callable[[Row], object], *place: str) -> list[Row]:
    """The cells of the rows of a table that a page shows, each identified by the fields `place`."""
    return [{**{name: row[name] for name in place}, "record": digest()} for row in read()[table] if shown(row)]


def numbers(table: str, cell: Row) -> dict[str, float]:
    """The numbers of a cell's row."""
    place = {name: value for name, value in cell.items() if name in ("n", "phi", "seed", "implementation")}
    row = next(row for row in read()[table] if all(row[name] == value for name, value in place.items()))
    return {name: float(x) for name, x in row.items() if name not in place and isinstance(x, int | float)}


def measured_on() -> str:
    """The GPU, the library and the date, for captions."""
    device = read()["device"]
    return f"Measured on one {device['gpu']} (CUDA {device['driver_cuda']}, {device['library']}), {read()['date']}."
