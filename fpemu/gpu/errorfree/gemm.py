"""The Ozaki family on the GPU: products of slices or residues by cuBLAS, splits and sums by this package's kernels.

The results are those of `fpemu.gemm` bit for bit, because

* slices, exponents and counts are integers and comparisons, computed in the same way (kernels/slices.cuh, counting.cu);
* the products are exact: sums of |x||y| stay within the exact range of fp32 (2^24), fp64 (2^53) or int32, so that
  neither cuBLAS' order nor its instruction matters;
* modes DP and SP and `ozimmu` add them in the stated order, with one rounding each;
* mode CR and `ozaki2` round an exact integer once. Mode CR computes it by residues modulo small numbers
  (`method="residues"`) where the exponents of a row and a column span at most about 300 bits together, else by slices
  on one grid.

The number of slices of Algorithm 3 follows from sums of doubles in NumPy's order. NumPy sums the n terms of a row
pairwise: up to 128 terms by eight interleaved accumulators, more terms as the sum of the first half (rounded down to a
multiple of 8) and of the second. The order depends on n alone, so the sums here have the same bits, and every
comparison the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import frexp, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError, unknown_name
from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.errorfree.operands import (
    RULES,
    Loaded,
    Operand,
    Rows,
    Slices,
    Span,
    Workspace,
    int32,
    load,
    most_shared,
    padded,
    room,
    split,
    survey,
    workspace,
)
from fpemu.gpu.errorfree.sums import Sum, Term, add_up, round_exactly
from fpemu.gpu.runtime.device import LONGEST, multiprocessors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.errorfree.base import SliceScheme
from fpemu.schemes.errorfree.plan import INT32, ModularPlan, Report, SlicePlan, Slicing
from fpemu.schemes.ozaki import Ozaki
from fpemu.schemes.ozaki2 import Ozaki2
from fpemu.schemes.ozimmu import Ozimmu

METHODS = ("auto", "residues", "slices")
_CARRIED = {"e4m3": "fp16", "e5m2": "fp16"}  # slices of so few bits are fp16 numbers with the same products
VIEW = [("at", "u8"), ("row", "i8"), ("column", "i8"), ("narrow", "i4"), ("unused", "i4")]
END = np.dtype(
    [(name, VIEW) for name in "ABCD"]
    + [(name, "f8") for name in ("alpha", "beta")]
    + [(name, "u8") for name in ("rows", "columns", "nan")]
    + [("K", "i4"), ("has_c", "i4")]
)


@dataclass(frozen=True, eq=False)
class ErrorFreeProduct:
    """One product: its operands, and the scaling and output of its epilogue."""

    work: Workspace
    A: Rows
    B: Rows
    end: Any  # of type END; `survey` clears the tables of rows and columns with NaN or Inf if there are none
    spec: MmaSpec
    order: KOrder | None
    method: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.A.loaded.rows, self.B.loaded.rows, self.A.loaded.K

    def survey(self) -> tuple[Span, Span]:
        """Return the exponents of A and B; if all rows are finite, the epilogue does not check them again."""
        a, b = survey(self.work, self.A, self.B)
        for span, field in ((a, "rows"), (b, "columns")):
            if not span.nonfinite:
                self.end[field] = 0
        return a, b

    @property
    def plain(self) -> bool:
        """Whether D is the rounded sum times a power of two."""
        alpha = float(self.end["alpha"][0])
        return isfinite(alpha) and frexp(alpha)[0] == 0.5 and not self.end["has_c"][0]


def gemm(
    A: Matrix,
    B: Matrix,
    D: Matrix,
    scheme: Scheme,
    spec: MmaSpec,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    C: Matrix | None = None,
    order: KOrder | None = None,
    *,
    method: str = "auto",
    work: Workspace | None = None,
) -> Report:
    """Compute D = alpha · (A·B by a scheme) + beta · C on the GPU; waits for the GPU.

    Parameters
    ----------
    A : Matrix (..., M, K), B : Matrix (..., K, N)
        float32 or float64; NaN and Inf propagate as in DGEMM.
    D : Matrix (..., M, N)
        In the scheme's operand format. Undefined where the report has faults.
    scheme : Ozaki, Ozimmu or Ozaki2
    spec : MmaSpec
        Specification that the scheme's conditions are checked for: ``scheme.spec(hardware)``.
    C : Matrix (..., M, N), optional
        Strides of 0 broadcast it.
    method : {"auto", "residues", "slices"}
        Algorithm of mode CR.
    work : Workspace, optional
        Buffers, which persist.

    Returns
    -------
    Report
        The conditions checked, of the first matrix of a batch with a fault, else of the first.

    Raises
    ------
    InputError
        A scheme of another family, an option that only the CPU supports, or sizes beyond the kernels' counters.
    GpuError
        No GPU, too little memory, or a failed run.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    _check(scheme)
    if max(sizes := (*D.shape[-2:], A.shape[-1])) > LONGEST:
        raise InputError(f"{scheme.name}: M, N and K are {sizes}, and {LONGEST} at most on a GPU: split the product")
    work = workspace() if work is None else work
    given = [(name, X) for name, X in (("A", A), ("B", B), ("C", C), ("D", D)) if X is not None]
    (M, K), N, lead = A.shape[-2:], B.shape[-1], D.shape[:-2]
    offsets = [X.offsets(lead) for _, X in given]
    reports = []
    for at in range(max(1, int(np.prod(lead)))):
        end = np.zeros(1, END)
        for (name, X), offset in zip(given, offsets, strict=True):
            pointer = X.pointer + X.dtype.itemsize * int(offset[at])
            end[name] = (pointer, *X.strides[-2:], X.dtype == np.float32, 0)
        places = [int(end[name]["at"][0]) for name in "AB"]
        a = Rows.of(work, Operand(places[0], A.dtype == np.float32, M, K, *A.strides[-2:]), "A")
        b = Rows.of(work, Operand(places[1], B.dtype == np.float32, N, K, *B.strides[:-3:-1]), "B")
        end["alpha"], end["beta"], end["K"], end["has_c"] = alpha, beta, K, C is not None
        end["rows"], end["columns"], end["nan"] = a.special.pointer, b.special.pointer, scheme.nan_code(spec)
        reports.append(_run(ErrorFreeProduct(work, a, b, end, spec, order, method), scheme))
    return next((r for r in reports if not r.ok), reports[0])


def _check(scheme: Scheme) -> None:
    if not scheme.error_free:
        raise InputError(f"{scheme.name} is not of the Ozaki family: ozaki, ozimmu or ozaki2")
    if getattr(scheme, "exponents", "slice") == "row":
        raise InputError(
            "ozaki: exponents='row': only fpemu.gemm checks whether words lose digits then; leave it out, "
            "the product is the same where none are lost"
        )
    memory = getattr(scheme, "memory", None)
    if memory is not None:
        raise InputError(f"ozaki: memory={memory} bounds the work space of fpemu.gemm: leave it out on a GPU")


def _run(x: ErrorFreeProduct, scheme: Any) -> Report:
    if isinstance(scheme, Ozaki2):
        return modular.scheme2(x.work, x.A, x.B, scheme, x.spec, x.end)
    plan = scheme.plan_for(x.spec, x.shape[2], x.order)
    return _exact(x, scheme, plan) if plan.adds_in is None else _floating(x, scheme, plan)


# --- products of slices
def _floating(x: ErrorFreeProduct, scheme: SliceScheme, plan: SlicePlan) -> Report:
    """Sums in floating point, in the plan's order."""
    M, N, K = x.shape
    fmt, kind = plan.adds_in, _CARRIED.get(scheme.word_format, scheme.word_format)
    assert fmt is not None
    spans, sides = x.survey(), (x.A, x.B)

    def required(side: int) -> int:
        if isinstance(scheme, Ozimmu):
            elements = (bits_needed(x.work, X, plan, scheme.operand.precision) for X in sides)
            return scheme.automatic(sum(elements, np.zeros(_BINS, np.int64)), plan.bits)
        printed, u = getattr(scheme, "slices", None) == "printed", fmt.unit_roundoff
        return needed(x.work, sides[side], spans[side], sides[1 - side], spans[1 - side].top, plan, u, printed)

    def cut(side: int, count: int) -> Slices:
        return split(x.work, sides[side], spans[side], plan, count, kind, backwards=side == 1)

    a, b, d, fast = scheme.numbers(required, cut)
    report = _report(x, plan, a, b, d, fast)
    if not report.ok:
        return report
    groups = plan.groups(a.slices, b.slices, d, fast)
    terms = [Term(*g[0], len(g), -(sum(g[0]) + 2) * plan.bits if plan.on_grid else 0) for g in groups]
    may_overflow = spans[0].top + spans[1].top + 2 + K.bit_length() + 2 > fmt.emax
    add_up(x.work, a, b, M, N, Sum(terms, plan.on_grid, fmt, _exact_length(a, b, K)), may_overflow, K, x.end)
    return report


def _report(x: ErrorFreeProduct, plan: SlicePlan, a: Slices, b: Slices, d: int, fast: bool) -> Report:
    left, right = (Slicing(side.slices, side.complete, side.largest, side.fill) for side in (a, b))
    return plan.report(left, right, d, fast, plan.unit_lost, x.shape[:2])


def _exact_products(a: Slices, b: Slices) -> int:
    """Return the number of products of slices whose sum is exact in cuBLAS."""
    return {"int8": INT32, "fp64": 2**53}.get(a.kind, 2**24) // max(1, a.largest * b.largest)


def _exact_length(a: Slices, b: Slices, K: int) -> int:
    """Return the length along K of one exact product by cuBLAS: all of K, if its sums are exact."""
    most = _exact_products(a, b)
    return a.width if most >= K else max(1, most // 16 * 16 or most)


def _exact(x: ErrorFreeProduct, scheme: Ozaki, plan: SlicePlan) -> Report:
    """Mode CR: the exact sum, rounded once."""
    M, N, K = x.shape
    kind = _CARRIED.get(scheme.words, scheme.words)
    spans = x.survey()
    if scheme.bits is not None and scheme.bits > replace(scheme, bits=None).slice_bits(x.spec, K, x.order):
        a, b = (  # exact only if the entries happen to be small enough
            split(x.work, X, span, plan, -(-span.width // plan.bits) + 2, kind)
            for X, span in zip((x.A, x.B), spans, strict=True)
        )
        report = _report(x, plan, a, b, 0, False)
        if not report.ok:
            return report
    spread = (spans[0].norm + spans[1].norm + 1) // 2  # |a||b| bounds the entries, as integers
    count = modular.moduli_for(spread)
    if x.method == "residues" and count is None:
        raise InputError(f"method='residues': the exponents spread over {spread} bits, too many: take method='slices'")
    if count is not None and x.method != "slices":
        return _by_residues(x, spans, count, spread + 1)
    # Slices rounded to nearest on one grid that begins a bit higher: bits + 1 bits each, entries of at most 2^bits. Any
    # slices give the same sum; these make the sum over all of K exact.
    bits = min(plan.bits, replace(scheme, bits=None, k_block=None).slice_bits(x.spec, K, x.order))
    int8 = kind == "int8"
    plan = replace(plan, bits=bits + (not int8), rule="nearest", limited=int8, headroom=1)
    sides = []
    for X, span, backwards in ((x.A, spans[0], False), (x.B, spans[1], True)):
        slices = max(1, -(-(span.width + plan.headroom + 1) // plan.bits))
        sides.append(split(x.work, X, span, plan, slices, kind, backwards=backwards))
    a, b = sides
    sums = _exact_products(a, b) // K
    if sums < 1:
        raise InputError(f"ozaki: K = {K} is too long for exact sums in {kind} words: split the product along K")
    round_exactly(x.work, a, b, M, N, plan.bits, sums, x.plain, x.end)
    return _report(x, plan, a, b, 0, False)


def _by_residues(x: ErrorFreeProduct, spans: tuple[Span, Span], count: int, spread: int) -> Report:
    M, N, K = x.shape
    flags = x.work.zeros("flags of residues", 16)
    a, b = (
        modular.residues(x.work, X, count, X.low, -1, 0, span.width + 1, np.uint64(flags.pointer + 8 * i))
        for i, (X, span) in enumerate(zip((x.A, x.B), spans, strict=True))
    )
    ends = modular.Exponents(x.A.low, x.B.low, -1, 0)
    modular.multiply(x.work, a, b, count, ends, M, N, x.end, once=True, plain=x.plain)
    bits = float(spread), float(sum(np.log2(p) for p in modular.ALL[:count]))
    complete = not flags.array(4, np.int32)[::2].any()
    return ModularPlan("ozaki", x.spec, K, count).report(bits, complete, fast=False, block=(M, N))


# --- the number of slices
_LEAF = 128
_BLOCKS = 4  # thread blocks per multiprocessor


class Pairing(NamedTuple):
    """A pairwise sum: leaves, then merges of two of them (the second into the first), by levels."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    merges: tuple[tuple[int, int], ...]
    levels: tuple[int, ...]


@lru_cache(maxsize=64)
def pairing(n: int) -> Pairing:
    """Return NumPy's order for n terms.

    Examples
    --------
    >>> pairing(300).sizes, pairing(300).merges, pairing(300).levels
    ((72, 72, 72, 84), ((0, 1), (2, 3), (0, 2)), (0, 2, 3))
    """
    leaves: list[tuple[int, int]] = []
    merges: list[list[tuple[int, int]]] = []

    def node(start: int, size: int) -> tuple[int, int]:
        if size <= _LEAF:
            leaves.append((start, size))
            return len(leaves) - 1, 0
        half = size // 2 - size // 2 % 8
        (left, below), (right, beside) = node(start, half), node(start + half, size - half)
        level = max(below, beside)
        merges.extend([] for _ in range(level + 1 - len(merges)))
        merges[level].append((left, right))
        return left, level + 1

    node(0, n)
    levels = np.cumsum([0, *(len(level) for level in merges)]).tolist()
    return Pairing(
        tuple(s for s, _ in leaves),
        tuple(n for _, n in leaves),
        tuple(m for level in merges for m in level),
        tuple(levels),
    )


PLAN = np.dtype(
    [("starts", "u8"), ("sizes", "u8"), ("merges", "u8"), ("levels", "u8"), ("pieces", "i4"), ("depth", "i4")]
)


def _plan(work: Workspace, n: int) -> tuple[NDArray[Any], int]:
    """Return the pairing of n terms as a kernel argument, and its bytes of shared memory."""
    most = most_shared()
    how = pairing(n) if 8 * (n // _LEAF) <= most else None  # the recursion of a much longer sum takes minutes
    if how is None or (shared := 8 * padded(len(how.sizes), 2)) > most:
        raise InputError(
            f"ozaki: the partial sums of {n} terms for Algorithm 3 exceed the {most} bytes of shared memory that a "
            "thread block of this GPU has: give the number of slices (slices=), or take mode='CR'"
        )
    parts = [np.array(x, np.int32).reshape(-1) for x in (how.starts, how.sizes, how.merges, how.levels)]
    table = work.table(np.concatenate(parts))  # one table: a later one may free those before it
    ends = np.cumsum([0, *(part.nbytes for part in parts)]).tolist()
    tables = [table.pointer + at for at in ends[:-1]]
    return np.array([(*tables, len(how.sizes), len(how.levels) - 1)], PLAN), shared


def row_sums(work: Workspace, X: Loaded, top: int, name: str) -> int:
    """Queue |X| e / 2^top; return the address of (rows,) doubles."""
    plan, shared = _plan(work, X.K)
    sums = work.get(f"sums of {name}", 8 * X.rows)
    row = (X.pointer, X.pitch, *int32(X.rows, top), plan, sums)
    work.launch("counting.cu", "row_sums", min(X.rows, 1 << 16), 256, *row, shared=shared)
    return sums.pointer


def needed(work: Workspace, X: Rows, span: Span, other: Rows, top: int, how: SlicePlan, u: float, printed: bool) -> int:
    """Return Algorithm 3's d for the rows of X and the other operand, largest entry 2^top; waits for the GPU."""
    K, rows, name = X.loaded.K, X.loaded.rows, X.name
    weights = row_sums(work, load(work, other.operand.transposed, "the other transposed"), top, name)
    plan, shared = _plan(work, K)
    factor = 2 * np.sqrt(K) * u
    doubles = shared + 8 * (K + K // _LEAF * 8 + 8)
    count = 53 // how.bits + 4  # suffices for an accuracy of 53 bits in most cases
    while True:
        failed = work.zeros(f"failed of {name}", 4 * count)
        rule = int32(how.bits, RULES[how.rule], room(how), printed)
        row = (*X.arguments, weights, *rule, np.float64(factor), *int32(count), plan)
        if span.moderate and doubles <= most_shared():
            grid = min(rows, 1 << 16)
            work.launch("counting.cu", "criterion_doubles", grid, 512, *row, failed, shared=doubles)
        else:
            blocks = _BLOCKS * multiprocessors()
            scratch = work.get("terms", blocks * 18 * padded(K, 8))
            work.launch("counting.cu", "criterion", min(rows, blocks), 256, *row, scratch, failed, shared=shared)
        good = np.flatnonzero(failed.array(count, np.int32)[2:] == 0)
        if len(good):
            return int(good[0]) + 2
        count *= 4


_BINS = 4096  # fp64 spans 2098 bits, a significand 53


def bits_needed(work: Workspace, X: Rows, how: SlicePlan, precision: int) -> NDArray[np.int64]:
    """Return the number of entries of X that need 0, 1, 2 ... bits below the top of their row; waits for the GPU."""
    counts = work.zeros("bits needed", 8 * _BINS)
    row = (X.loaded.pointer, X.loaded.pitch, *int32(X.loaded.rows, X.loaded.K, room(how), how.headroom, precision))
    blocks = min(X.loaded.rows, _BLOCKS * multiprocessors())
    work.launch("slices.cu", "bits_needed", blocks, 256, *row, counts)
    return counts.array(_BINS, np.int64)
