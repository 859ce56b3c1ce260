"""The Ozaki family on the GPU: products of slices or residues by cuBLAS, splits and sums by this package's kernels.

On Hopper kernels/byte_gemm.cu multiplies int8 (`fpemu.gpu.errorfree.hopper`), by which calls of `ozaki2` and of mode CR
run as plans.

The results are those of `fpemu.gemm` bit for bit, because

* slices, exponents and counts are integers and comparisons, computed in the same way (kernels/slices.cuh, counting.cu);
* the products are exact: sums of |x||y| stay within the exact range of fp32 (2^24), fp64 (2^53) or int32, so that
  neither cuBLAS' order nor its instruction matters;
* modes DP and SP and `ozimmu` add them in the stated order, with one rounding each;
* mode CR and `ozaki2` round an exact integer once. Mode CR computes it by residues modulo small numbers where the
  exponents of a row and a column span at most about 300 bits together, else by slices on one grid.

The number of slices of Algorithm 3 follows from sums of doubles in NumPy's order. NumPy sums the n terms of a row
pairwise: up to 128 terms by eight interleaved accumulators, more terms as the sum of the first half (rounded down to a
multiple of 8) and of the second. The order depends on n alone, so the sums here have the same bits, and every
comparison the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.errorfree.operands import (
    RULES,
    ErrorFreeProduct,
    Rows,
    Slices,
    Span,
    Term,
    Workspace,
    limit_code,
    load,
    most_shared,
    padded,
    source,
    split,
    stack,
    transposed,
    workspace,
)
from fpemu.gpu.errorfree.sums import add_up, round_exactly
from fpemu.gpu.runtime.device import LONGEST, multiprocessors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import fields
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.errorfree.base import SliceScheme
from fpemu.schemes.errorfree.plan import INT32, ModularPlan, Report, SlicePlan, SliceSummary
from fpemu.schemes.ozaki import Ozaki
from fpemu.schemes.ozaki2 import Ozaki2
from fpemu.schemes.ozimmu import Ozimmu

_CARRIED = {"e4m3": "fp16", "e5m2": "fp16"}  # slices of so few bits are fp16 numbers with the same products


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
    work: Workspace | None = None,
    *,
    paired: bool = False,
) -> Report:
    """Compute D = alpha · (A·B by a scheme of the Ozaki family) + beta · C on the GPU, and wait for it.

    A (..., M, K), B (..., K, N) and C (..., M, N) are float32 or float64, and D is in the scheme's operand format. The
    report contains the conditions, checked for the instruction of `spec`, of the first matrix of a batch with a fault,
    else of the first; D is undefined where it has faults. work: buffers, which persist. paired: the operands are parts
    of complex matrices.
    """
    _check(scheme)
    if max(sizes := (*D.shape[-2:], A.shape[-1])) > LONGEST:
        raise InputError(f"{scheme.name}: M, N and K are {sizes}, and {LONGEST} at most on a GPU: split the product")
    work = workspace() if work is None else work
    lead = D.shape[:-2]
    reports = []
    stacks = (stack(X, lead) for X in (A, B, D, C) if X is not None)
    for a, b, d, *c in zip(*stacks, strict=True):
        rows, columns = Rows.of(work, a, "A"), Rows.of(work, transposed(b), "B")
        end = {"C": c[0] if c else None, "alpha": alpha, "beta": beta, "nan": scheme.nan_code(spec)}
        x = ErrorFreeProduct.of(work, rows, columns, d, **end)
        reports.append(_run(x, scheme, spec, order, paired))
    return next((r for r in reports if not r.ok), reports[0])


def _check(scheme: Scheme) -> None:
    if getattr(scheme, "exponents", "slice") == "row":
        raise InputError(
            "ozaki: exponents='row': only fpemu.gemm checks whether words lose digits then; leave it out, "
            "the product is the same where none are lost"
        )
    memory = getattr(scheme, "memory", None)
    if memory is not None:
        raise InputError(f"ozaki: memory={memory} bounds the work space of fpemu.gemm: leave it out on a GPU")


def _run(x: ErrorFreeProduct, scheme: Any, spec: MmaSpec, order: KOrder | None, paired: bool = False) -> Report:
    if isinstance(scheme, Ozaki2):
        return modular.scheme2(x, scheme, spec, paired)
    plan = scheme.plan_for(spec, x.shape[2], order)
    return _exact(x, scheme, plan) if plan.adds_in is None else _floating(x, scheme, plan)


# --- products of slices
def sliced(
    x: ErrorFreeProduct, scheme: SliceScheme, plan: SlicePlan, spans: Sequence[Span]
) -> tuple[Slices, Slices, int, bool, Report]:
    """Return the slices of A and B, their number, whether products of late ones are left out, and the conditions."""
    fmt, kind, sides = plan.adds_in, _CARRIED.get(scheme.word_format, scheme.word_format), (x.A, x.B)
    assert fmt is not None

    def required(side: int) -> Any:
        if isinstance(scheme, Ozimmu):
            elements = (bits_needed(x.work, X, plan, scheme.operand.precision) for X in sides)
            return scheme.automatic(sum(elements, np.zeros(_BINS, np.int64)), plan.bits)
        printed, other = getattr(scheme, "slices", None) == "printed", transposed(sides[1 - side].source)
        return needed(x.work, sides[side], spans[side], other, spans[1 - side].top, plan, fmt.unit_roundoff, printed)

    def cut(side: int, count: Any) -> Slices:
        return split(x.work, sides[side], spans[side], plan, int(count), kind, backwards=side == 1)

    a, b, d, fast = scheme.numbers(required, cut)
    return a, b, int(d), bool(fast), _report(x, plan, a, b, int(d), bool(fast))


def _floating(x: ErrorFreeProduct, scheme: SliceScheme, plan: SlicePlan) -> Report:
    """Sums in floating point, in the plan's order."""
    K, fmt, spans = x.shape[2], plan.adds_in, x.survey()
    assert fmt is not None
    a, b, d, fast, report = sliced(x, scheme, plan, spans)
    if report.ok:
        groups = plan.groups(a.slices, b.slices, d, fast)
        terms = [Term(*g[0], len(g), -(sum(g[0]) + 2) * plan.bits if plan.on_grid else 0) for g in groups]
        most = _exact_products(a, b)  # all of K is one product by cuBLAS, if its sums are exact
        k_block = a.width if most >= K else max(1, most // 16 * 16 or most)
        may_overflow = spans[0].top + spans[1].top + 2 + K.bit_length() + 2 > fmt.emax
        add_up(x, a, b, terms, fmt, k_block, by_tops=plan.on_grid, may_overflow=may_overflow)
    return report


def _report(x: ErrorFreeProduct, plan: SlicePlan, a: Slices, b: Slices, d: int = 0, fast: bool = False) -> Report:
    left, right = (SliceSummary(side.slices, side.complete, side.largest, side.fill) for side in (a, b))
    return plan.report(left, right, d, fast, plan.unit_lost, x.shape[:2])


def _exact_products(a: Slices, b: Slices) -> int:
    """Return the number of products of slices whose sum is exact in cuBLAS."""
    return {"int8": INT32, "fp64": 2**53}.get(a.kind, 2**24) // max(1, a.largest * b.largest)


def _exact(x: ErrorFreeProduct, scheme: Ozaki, plan: SlicePlan) -> Report:
    """Mode CR: the exact sum, rounded once."""
    K, kind = x.shape[2], _CARRIED.get(scheme.words, scheme.words)
    sides, spans = (x.A, x.B), x.survey()

    def safe_bits(**options: Any) -> int:
        assert plan.spec is not None
        return replace(scheme, bits=None, **options).slice_bits(plan.spec, K, plan.order)

    if scheme.bits is not None and scheme.bits > safe_bits():  # exact only if the entries happen to be small enough
        counts = [-(-span.width // plan.bits) + 2 for span in spans]
        a, b = (split(x.work, sides[i], spans[i], plan, counts[i], kind) for i in (0, 1))
        report = _report(x, plan, a, b)
        if not report.ok:
            return report
    spread = (spans[0].norm + spans[1].norm + 1) // 2  # |a||b| bounds the entries, as integers
    moduli = modular.moduli_for(spread)
    if moduli is not None:
        return _by_residues(x, plan, spans, moduli, spread + 1)
    # Slices rounded to nearest on one grid that begins a bit higher: bits + 1 bits each, entries of at most 2^bits. Any
    # slices give the same sum; these make the sum over all of K exact.
    bits = min(plan.bits, safe_bits(k_block=None))
    int8 = kind == "int8"
    plan = replace(plan, bits=bits + (not int8), rule="nearest", limited=int8, headroom=1)
    counts = [max(1, -(-(span.width + plan.headroom + 1) // plan.bits)) for span in spans]
    a, b = (split(x.work, sides[i], spans[i], plan, counts[i], kind, backwards=i == 1) for i in (0, 1))
    longest = _exact_products(a, b) // K
    if longest < 1:
        raise InputError(f"ozaki: K = {K} is too long for exact sums in {kind} words: split the product along K")
    round_exactly(x, a, b, plan.bits, longest)
    return _report(x, plan, a, b)


def _by_residues(x: ErrorFreeProduct, plan: SlicePlan, spans: tuple[Span, Span], moduli: int, spread: int) -> Report:
    M, N, K = x.shape
    longest = spans[0].width + 1, spans[1].width + 1
    flags = x.work.zeros("flags of residues", 16)
    modular.multiply(x, moduli, (x.A.low, x.B.low), -1, longest, flags.pointer, once=True)
    bits = float(spread), float(sum(np.log2(p) for p in modular.ALL[:moduli]))
    complete = not flags.array(4, np.int32)[::2].any()
    return ModularPlan("ozaki", plan.spec, K, moduli).report(bits, complete, fast=False, block=(M, N))


# --- the number of slices
_LEAF = 128
_BLOCKS = 4  # thread blocks per multiprocessor
_PAIRWISE = fields("u8 starts sizes merges levels, i4 pieces depth")  # struct Plan of kernels/counting.cu


class Pairing(NamedTuple):
    """A pairwise sum: leaves, then merges of two of them (the second into the first), by levels."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    merges: tuple[tuple[int, int], ...]
    levels: tuple[int, ...]


@lru_cache(maxsize=64)
def pairing(n: int) -> Pairing:
    """Return NumPy's order for n terms.

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
    starts, sizes = zip(*leaves, strict=True)
    levels = np.cumsum([0, *map(len, merges)]).tolist()
    return Pairing(starts, sizes, tuple(m for level in merges for m in level), tuple(levels))


def pairwise(work: Workspace, n: int) -> tuple[NDArray[Any], int]:
    """Return the pairing of n terms as a kernel argument, and its bytes of shared memory."""
    most = most_shared()
    pairs = pairing(n) if 8 * (n // _LEAF) <= most else None  # the recursion of a much longer sum takes minutes
    if pairs is None or (shared := 8 * padded(len(pairs.sizes), 2)) > most:
        raise InputError(
            f"ozaki: the partial sums of {n} terms for Algorithm 3 exceed the {most} bytes of shared memory that a "
            "thread block of this GPU has: give the number of slices (slices=), or take mode='CR'"
        )
    parts = [np.array(x, np.int32).reshape(-1) for x in pairs]
    table = work.table(np.concatenate(parts))  # one table: a later one may free those before it
    starts = table.pointer + np.cumsum([0, *(part.nbytes for part in parts[:-1])])
    return np.array([(*starts.tolist(), len(pairs.sizes), len(pairs.levels) - 1)], _PAIRWISE), shared


def needed(
    work: Workspace, X: Rows, span: Span, other: Matrix, top: int, plan: SlicePlan, u: float, printed: bool
) -> int:
    """Return Algorithm 3's d for X and the other operand (K, columns) of largest entry 2^top; waits for the GPU."""
    text, (K, columns), sums = source("counting.cu"), other.shape, work.get(f"sums of {X.name}", 8 * X.K)
    order, shared = pairwise(work, columns)
    loaded = load(work, other, "the other transposed")
    work.launch(text, "row_sums", min(K, 1 << 16), 256, *loaded, K, top, order, sums, shared=shared)
    order, shared = pairwise(work, K)
    doubles = shared + 8 * (K + K // _LEAF * 8 + 8)
    count = 53 // plan.bits + 4  # suffices for an accuracy of 53 bits in most cases
    while True:
        failed = work.zeros(f"failed of {X.name}", 4 * count)
        rule = (plan.bits, RULES[plan.rule], limit_code(plan), printed, 2 * np.sqrt(K) * u)
        row = (*X.arguments, sums, *rule, count, order)
        if span.moderate and doubles <= most_shared():
            work.launch(text, "criterion_doubles", min(X.rows, 1 << 16), 512, *row, failed, shared=doubles)
        else:
            blocks = _BLOCKS * multiprocessors()
            scratch = work.get("terms", blocks * 18 * padded(K, 8))
            work.launch(text, "criterion", min(X.rows, blocks), 256, *row, scratch, failed, shared=shared)
        good = np.flatnonzero(failed.array(count, np.int32)[2:] == 0)
        if len(good):
            return int(good[0]) + 2
        count *= 4


_BINS = 4096  # fp64 spans 2098 bits, a significand 53


def bits_needed(work: Workspace, X: Rows, plan: SlicePlan, precision: int) -> NDArray[np.int64]:
    """Return the number of entries of X that need 0, 1, 2 ... bits below the top of their row; waits for the GPU."""
    counts = work.zeros("bits needed", 8 * _BINS)
    row = (*X.arguments, limit_code(plan), plan.headroom, precision, counts)
    work.launch(source("slices.cu"), "bits_needed", min(X.rows, _BLOCKS * multiprocessors()), 256, *row)
    return counts.array(_BINS, np.int64)
