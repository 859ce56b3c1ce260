"""DGEMM-TC as published (Mukunoki et al. 2020, Algorithms 1 to 3): each product of slices is one call of cuBLAS.

D = A B by outer blocks of at most 3584 rows and columns: SplitA for every block of rows, with Algorithm 3 in modes DP
and SP; SplitB for every block of columns, again for every block of rows; all products of slices, or in fast mode those
with p + q <= d + 1; and their sum, in Algorithm 2's order and the operands' format or by NearSum (dgemm_tc.cu) in CR.
"CR, DGEMM" multiplies fp64 slices by cublasDgemm, which is the paper's DGEMM-DP-CR.

`python -m benchmarks.errorfree.dgemm_tc FILE` checks the results bit for bit and writes the times of all sizes.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fpemu
from benchmarks.gpu.cublas import product, version
from benchmarks.gpu.operands import Operands
from benchmarks.gpu.phases import SUMS, TimedQueue
from benchmarks.seeded import digest, fetch
from benchmarks.timing import wall
from fpemu import mma, simt
from fpemu.errors import InputError
from fpemu.formats import FP32, FP64, FloatFormat
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree.operands import (
    ErrorFreeProduct,
    Rows,
    Slices,
    Span,
    Workspace,
    panels,
    split,
    survey,
    transposed,
)
from fpemu.gpu.errorfree.sums import TYPES, Term, add_up
from fpemu.gpu.runtime import cublas, device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Gemm, Step
from fpemu.schemes import ozaki
from fpemu.schemes.base import build
from fpemu.schemes.errorfree.plan import SlicePlan
from fpemu.schemes.errorfree.split import even, pieces
from fpemu.verification.records import text_of

PHASES = ("split A", "split B", "products", "sums")
_SOURCE = Path(__file__).with_name("dgemm_tc.cu").read_text()
_TAME = 900  # binary exponents up to which scaling by a power of two is exact


class Mode(NamedTuple):
    """A mode: format of operands and result, format of the slices, and the bits of their exact sums."""

    operand: FloatFormat
    slices: str
    sum_bits: int
    rounds_once: bool


MODES = {
    "DP": Mode(FP64, "fp16", 24, False),
    "SP": Mode(FP32, "fp16", 24, False),
    "CR": Mode(FP64, "fp16", 24, True),
    "CR, DGEMM": Mode(FP64, "fp64", 53, True),
}


class Queue(TimedQueue):
    """A queue with one call of cuBLAS for each product, which times its steps if `timed`."""

    def __init__(self) -> None:
        super().__init__(timed=False)
        self.sums = SUMS | {"near_sum"}

    def __call__(self, step: Step) -> None:
        """Queue a step, and the products of a batch one after another."""
        if not isinstance(step, Gemm):
            super().__call__(step)
            return
        types = cublas.KINDS[step.kind]
        sides = ((step.A, types.bytes), (step.B, types.bytes), (step.D, types.result_bytes))
        for i in range(step.batch):
            A, B, D = (X._replace(pointer=X.pointer + size * i * X.batch) for X, size in sides)
            super().__call__(replace(step, A=A, B=B, D=D, batch=1))


class Counts(NamedTuple):
    """Slices of A and of B, and products, of one pair of blocks."""

    slices_a: int
    slices_b: int
    products: int


def multiply(work: Workspace, A: Matrix, B: Matrix, D: Matrix | None, mode: str) -> list[Counts]:
    """Compute D = A B, or without D only the slices; return the counts of every pair of blocks.

    Operands have the mode's format, finite, exponents within 900 of zero. The attribute ``split`` of the queue becomes
    the phase of the launches that split A or B.
    """
    how = MODES[mode]
    (M, K), N = A.shape, B.shape[1]
    bits = int((how.sum_bits - np.log2(K)) / 2)
    plan = SlicePlan("ozaki", None, None, K, bits, "published", False, how.operand)
    counts = []
    for i in pieces(M, even(M, ozaki.BLOCK)):
        _label(work, "A")
        rows = Rows.of(work, _part(A, i, slice(0, K)), "A")
        (span,) = survey(work, rows)
        d = 0
        if not how.rounds_once:
            d = errorfree.needed(work, rows, span, B, 0, plan, how.operand.unit_roundoff, True)
        a = _cut(work, rows, span, plan, d, how.slices)
        for j in pieces(N, even(N, ozaki.BLOCK)):
            _label(work, "B")
            columns = Rows.of(work, transposed(_part(B, slice(0, K), j)), "B")
            (span_b,) = survey(work, columns)
            b = _cut(work, columns, span_b, plan, 0 if a.complete else d, how.slices)
            fast = not (how.rounds_once or a.complete)
            pairs = [pair for (pair,) in plan.groups(a.slices, b.slices, d, fast)]
            counts.append(Counts(a.slices, b.slices, len(pairs)))
            if D is None:
                continue
            x = ErrorFreeProduct.of(work, rows, columns, _part(D, i, j))
            x.end["rows"] = x.end["columns"] = 0  # all numbers are finite
            if how.rounds_once:
                _near_sum(x, a, b, pairs)
            else:
                add_up(x, a, b, [Term(p, q) for p, q in pairs], how.operand, a.width)
    return counts


def _label(work: Workspace, operand: str) -> None:
    work.queue.split = f"split {operand}"  # type: ignore[attr-defined]


def _part(X: Matrix, rows: slice, columns: slice) -> Matrix:
    """Return a block of a matrix."""
    start = rows.start * X.strides[0] + columns.start * X.strides[1]
    shape = rows.stop - rows.start, columns.stop - columns.start
    return replace(X, pointer=X.pointer + X.dtype.itemsize * start, shape=shape)


def _cut(work: Workspace, rows: Rows, span: Span, how: SlicePlan, count: int, kind: str) -> Slices:
    """The first `count` slices; 0: as many as there are."""
    slices = split(work, rows, span, how, count or -(-span.width // how.bits) + 2, kind)
    if not (count or slices.complete) or 2 * slices.deepest > _TAME or span.nonfinite:
        raise InputError(f"{rows.name}: exponents beyond the range of this benchmark")
    return slices


def _near_sum(x: ErrorFreeProduct, a: Slices, b: Slices, pairs: list[tuple[int, int]]) -> None:
    """All products of slices, and their sums."""
    (M, N, _), (kind, item) = x.shape, TYPES[a.kind]
    T, ((_, _, multiplied),) = panels(x, len(pairs), item)
    for t, (p, q) in enumerate(pairs):  # padded: cuBLAS is faster then
        sizes = (a.kind, multiplied, b.all_rows, a.width)
        x.work.queue(Gemm(*sizes, a.stack(p), b.stack(q), T.stack(t, 0)))
    exponents = (a.exponents, a.all_rows, a.slices, b.exponents, b.all_rows, b.slices)
    log_count, D = (len(pairs) + 1).bit_length(), x.end["D"][0]
    products = (T.pointer, kind, T.stride, T.pitch, M, N, *exponents, log_count, int(D["at"]), D["row"])
    x.work.launch(_SOURCE, "near_sum", x.grid(M), 256, *products)


# --- measurement
SIZES = (10240, 7168, 5120, 8192, 4096, 2048, 1024)
COUNTED = (7168, 10240, 5120, 3584, 2048, 1024)
SEEDS = 20
PHIS = (0.1, 1.0, 2.0)
OTHERS: dict[str, dict[str, Any]] = {
    "CR, int8 residues": {"scheme": "ozaki", "mode": "CR", "words": "int8"},
    "DP, int8 slices": {"scheme": "ozaki", "words": "int8"},
    "ozIMMU": {"scheme": "ozimmu"},
    "Ozaki II": {"scheme": "ozaki2"},
}
"""Schemes of `fpemu.gpu.gemm` beside the published algorithm, all on int8 products."""
_SECONDS = 0.5  # of the executions of a row, which are three at least and ten at most


class Problem:
    """n x n x n with the operands of the paper, (rand - 1/2) exp(phi randn), drawn on the GPU."""

    def __init__(self, n: int, phi: float, fmt: str, seed: int = 0) -> None:
        self.n, self.phi, self.fmt = n, phi, fmt
        drawn = Operands(n, n, n, f"phi {phi:g}", seed, fmt)
        self.A, self.B, self.D = drawn.matrix("A"), drawn.matrix("B"), drawn.result(drawn.dtype)

    def digest(self) -> str:
        """A digest of D."""
        return digest(self.D.pointer, self.D.nbytes, 8 * self.D.dtype.itemsize)

    def host(self) -> list[Any]:
        """A, B and D."""
        return [fetch(X.pointer, 0, self.n**2, X.dtype).reshape(X.shape) for X in (self.A, self.B, self.D)]


def _time(call: Callable[[], object]) -> dict[str, float]:
    """The mean of up to ten executions after up to three that do not count, as in the paper."""
    once = wall(call, synchronize=device.synchronize, wait=True)
    once = wall(call, synchronize=device.synchronize, wait=True)
    count = int(np.clip(_SECONDS / once, 3, 10))
    if count == 10:
        call()
    return {"seconds": wall(call, count, synchronize=device.synchronize, wait=True), "executions": float(count)}


def published(problem: Problem, mode: str) -> dict[str, float]:
    """Time one mode: a call as a whole, and one more call by its phases."""
    queue = Queue()
    work = Workspace(queue)
    try:
        row = _time(lambda: multiply(work, problem.A, problem.B, problem.D, mode))
        queue.timed = True
        counts = multiply(work, problem.A, problem.B, problem.D, mode)
        spans = list(queue.seconds())
    finally:
        work.free()
    for phase in PHASES:
        row[phase] = sum(s for name, s in spans if name == phase)
    names = ("slices A", "slices B", "products of a block")
    row |= dict(zip(names, np.mean(counts, axis=0).tolist(), strict=True))
    return row | {"calls of GEMM": float(sum(c.products for c in counts))}


def other(problem: Problem, options: dict[str, Any]) -> dict[str, float]:
    """Time a scheme of the package."""
    scheme = build(options["scheme"], {name: value for name, value in options.items() if name != "scheme"})
    spec, work = mma.spec("H200", "int8"), Workspace()
    try:
        return _time(lambda: errorfree.gemm(problem.A, problem.B, problem.D, scheme, spec, work=work))
    finally:
        work.free()


def library(problem: Problem) -> dict[str, float]:
    """Time cublasDgemm or cublasSgemm."""
    a, b, d = (X.pointer for X in (problem.A, problem.B, problem.D))
    return _time(product(problem.fmt, a, b, d, (problem.n,) * 3, keep=problem))


def check(n: int) -> dict[str, bool]:
    """Compare small products with `fpemu.gemm` on the CPU."""
    equal = {}
    for mode, how in MODES.items():
        for phi in PHIS:
            problem, work = Problem(n, phi, how.operand.name), Workspace(Queue())
            multiply(work, problem.A, problem.B, problem.D, mode)
            A, B, D = problem.host()
            options: dict[str, Any] = {"mode": "CR"} if how.rounds_once else {"mode": mode, "slices": "printed"}
            expected = fpemu.gemm(A, B, scheme="ozaki", hardware="H200", **options)
            equal[f"{mode}, phi {phi:g}, n = {n}"] = bool(np.array_equal(D, expected))
            work.free()
    return equal


def extremes(work: Workspace, X: Matrix) -> tuple[float, float]:
    """Return the smallest and the largest |x| of the fp64 numbers that are not zero."""
    ends = work.zeros("extremes", 16)
    count = X.shape[0] * X.shape[1]
    work.launch(_SOURCE, "extremes", min(1056, -(-count // 256)), 256, X.pointer, count, ends)
    largest, smallest = ends.array(2, np.uint64)
    low, high = (np.array([~smallest, largest]) >> np.uint64(1)).view(np.float64).tolist()
    return low, high


def counts(n: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Count slices and products in modes DP and CR, and find the range of A and B, for some seeds."""
    work = Workspace(Queue())
    for phi in PHIS:
        for seed in range(seeds):
            problem = Problem(n, phi, "fp64", 1000 + seed)
            row: dict[str, Any] = {"n": n, "phi": phi, "seed": seed}
            for mode in ("DP", "CR"):
                blocks = multiply(work, problem.A, problem.B, None, mode)
                names = (f"{mode} slices A", f"{mode} slices B", f"{mode} products")
                row |= dict(zip(names, np.mean(blocks, axis=0).tolist(), strict=True))
            ends = [extremes(work, X) for X in (problem.A, problem.B)]
            yield {**row, "smallest": min(low for low, _ in ends), "largest": max(high for _, high in ends)}
    work.free()


def one_chain(problem: Problem) -> bool:
    """Whether a sample of D, from cuBLAS, is one chain of fused multiply-adds in ascending k."""
    A, B, D = problem.host()
    return bool(np.array_equal(D[:4, ::64], simt.gemm(A[:4], B[:, ::64].copy(), fmt=problem.fmt)))


def rows(n: int) -> Iterator[dict[str, Any]]:
    """Time everything at one n; CR results of slices and of residues must have the same digest."""
    for phi in PHIS:
        place = {"n": n, "phi": phi}
        problem = Problem(n, phi, "fp64")
        yield {**place, "implementation": "DGEMM", **library(problem), "one chain": one_chain(problem)}
        for mode in ("DP", "CR", *(["CR, DGEMM"] if n == max(SIZES) else [])):
            yield {**place, "implementation": mode, **published(problem, mode), "digest": problem.digest()}
        for name, options in OTHERS.items():
            if phi == PHIS[0] or name == "CR, int8 residues":
                yield {**place, "implementation": name, **other(problem, options), "digest": problem.digest()}
        problem = Problem(n, phi, "fp32")
        yield {**place, "implementation": "SGEMM", **library(problem), "one chain": one_chain(problem)}
        yield {**place, "implementation": "SP", **published(problem, "SP"), "digest": problem.digest()}


def main(path: Path) -> None:
    """Measure the sizes that the record does not have, and write it after each."""
    began = time.perf_counter()
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    known = {name: {row["n"] for row in record.setdefault(name, [])} for name in ("counts", "speeds")}
    record |= {
        "origin": "python -m benchmarks.errorfree.dgemm_tc",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    record["device"] = {**device.describe(), "library": version()}
    record["equal to the CPU"] = check(256) | check(700)
    print(record["equal to the CPU"], flush=True)
    tasks = [("counts", n, counts(n, SEEDS)) for n in COUNTED] + [("speeds", n, rows(n)) for n in SIZES]
    for name, n, produced in tasks:
        if n in known[name]:
            continue
        for row in produced:
            record[name].append({key: float(f"{x:.9g}") if isinstance(x, float) else x for key, x in row.items()})
        print(f"{json.dumps(record[name][-1])}: {time.perf_counter() - began:.0f} s", flush=True)
        path.write_text(text_of(record, ("device", "equal to the CPU", "counts", "speeds")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
