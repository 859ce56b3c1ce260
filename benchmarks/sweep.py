"""``python -m benchmarks.sweep``: time of whole cells of a sweep relative to their products, on the CPU and on a GPU.

A cell is an evaluation of `fpemu.sweep.evaluate`: operands, exact product, product by a scheme, relative L2 error. Each
row prints its bar, in the same run, and ``--record FILE`` writes the rows as JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fpemu import schemes
from fpemu.gpu import available
from fpemu.schemes import lowering
from fpemu.schemes.call import configure
from fpemu.sweep import Grid, Store, grid, operands, run

SCHEME = {"name": "h2sgemm", "sb": "11:14"}
LARGE = {
    "0 11": "0x1.be16e08c9b630p-18",
    "0 14": "0x1.be16e095e1b3fp-18",
    "1 11": "0x1.bdc9b30d3031ep-18",
    "1 14": "0x1.bdc9b311fefdap-18",
}
"""Relative L2 errors of cells of 1024×1024×4096, "seed sb", as the CPU computes them"""


def cells(M: int, N: int, K: int, seeds: Any = 1) -> list[dict[str, Any]]:
    """Return cells of H2SGEMM on an emulated A100, four scales for each seed."""
    source = Grid(inputs=["offset_symmetric"], schemes=[SCHEME], hardware="A100", M=M, N=N, K=K, seeds=seeds)
    return source.cells()


def least(repeat: int, *calls: Callable[[], object]) -> list[float]:
    """Return the least seconds of each call, measured in turn, so that other load affects all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return list(map(min, times))


def cpu(M: int, N: int, K: int, repeat: int) -> list[float]:
    """Return seconds of the first cell of a set of operands, of a cell with cached operands, and of the products."""
    first, *_ = cells(M, N, K)
    scheme: Any = schemes.build("h2sgemm", {"sb": first["scheme.sb"]})
    A, B = operands.drawn("offset_symmetric", (("exponent", 0), ("scale", 1.0)), M, N, K, 0, "fp32")
    chosen: Any = configure(scheme, "A100", "raise", None, {})
    a, b = (scheme.prepare(X, name, "raise").words for X, name in ((A, "A"), (B, "B")))

    def fresh() -> None:
        operands.drawn.cache_clear()
        operands.exact_product.cache_clear()
        grid.evaluate(first)

    fresh()
    cached = functools.partial(grid.evaluate, first)
    products = functools.partial(lowering.run, a, b, chosen.lowering, chosen.spec)
    return least(repeat, fresh, cached, products)


def small(processes: int) -> float:
    """Return the seconds of a grid of 6,480 cells of 32×32×256, with a new store."""
    with tempfile.TemporaryDirectory() as folder:
        many = Grid(
            inputs=[{"name": "offset_symmetric", "exponent": "-10:16"}],
            schemes=[{"name": "h2sgemm", "sb": "1:24"}],
            hardware="A100",
            M=32,
            N=32,
            K=256,
            seeds=10,
            on_range="propagate",
        )
        start = time.perf_counter()
        run(many, results=Store(Path(folder, "cells.sqlite")), jobs=processes, device="cpu")
        return time.perf_counter() - start


def gpu(M: int, N: int, K: int) -> float:
    """Return the mean seconds of eight cells over two sets of operands on the GPU, in a second pass over them.

    Raises
    ------
    SystemExit
        A number differs from the CPU's.
    """
    timed = cells(M, N, K, 2)
    for cell in timed:  # compiles: the kernels of the exact product depend on the operands
        grid.evaluate(cell, "cuda")
    operands.resident.cache_clear()
    start = time.perf_counter()
    numbers = [grid.evaluate(cell, "cuda")["relative_l2"] for cell in timed]
    seconds = (time.perf_counter() - start) / len(timed)
    for cell, number in zip(timed, numbers, strict=True):
        expected = LARGE.get(f"{cell['seed']} {cell['scheme.sb']}")
        if (M, N, K) == (1024, 1024, 4096) and expected not in (None, number.hex()):
            raise SystemExit(f"{cell}: {number.hex()} on the GPU, {expected} on the CPU")
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--record", metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of a cell on the CPU (the least counts)")
    parser.add_argument("--only", choices=("cpu", "gpu"), help="rows of one device")
    chosen = parser.parse_args()
    rows: list[tuple[str, float, float, str]] = []
    if chosen.only != "gpu":
        for sizes in ((176, 176, 2816), (512, 512, 2048)):
            first, cached, products = cpu(*sizes, chosen.repeat)
            name = "×".join(map(str, sizes))
            rows.append((f"{name}, CPU: cell with cached operands / its products", cached / products, 1.15, ""))
            rows.append((f"{name}, CPU: first cell of a set of operands / its products", first / products, 1.4, ""))
        rows.append(("6,480 cells of 32×32×256, 2 processes", small(2), 12.0, "s"))
    if chosen.only != "cpu" and available() is None:
        rows.append(("1024×1024×4096, GPU: cell, mean of 8 over 2 seeds", 1e3 * gpu(1024, 1024, 4096), 45.0, "ms"))
    print(f"{'cell':<72}{'measured':>12}{'bar':>8}")
    for name, value, bar, unit in rows:
        print(f"{name:<72}{value:>9.3g} {unit:<2}{bar:>8g}")
    if chosen.record:
        lines = [{"cell": name, "value": value, "bar": bar, "unit": unit} for name, value, bar, unit in rows]
        Path(chosen.record).write_text(json.dumps({"numpy": np.__version__, "rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
