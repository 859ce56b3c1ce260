"""The Ozaki family on the GPU: products of slices or residues by cuBLAS, splits and sums by this package's kernels.

The results are those of `fpemu.gemm` bit for bit, because

* slices, exponents and counts are integers and comparisons, computed in the same way (kernels/slices.cuh, counting.cu);
* the products are exact: sums of |x||y| stay within the exact range of fp32 (2^24), fp64 (2^53) or int32, so that
  neither cuBLAS' order nor its instruction matters;
* modes DP and SP and `ozimmu` add them in the stated order, with one rounding each;
* mode CR and `ozaki2` round an exact integer once. Mode CR computes it by residues modulo small numbers
  (`method="residues"`) where the exponents of a row and a column span at most about 300 bits together, else by slices
  on one grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import frexp, isfinite
from typing import Any

import numpy as np

from fpemu.errors import InputError, unknown_name
from fpemu.formats import FP64, FloatFormat
from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.errorfree import scheme2
from fpemu.gpu.errorfree.counting import automatic, bits_needed, needed
from fpemu.gpu.errorfree.machine import Workspace, workspace
from fpemu.gpu.errorfree.operands import Operand, Rows, Slices, Span, Splitting, split, survey
from fpemu.gpu.errorfree.sums import Sum, Term, add_up, round_exactly
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.properties import LONGEST
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.schemes import ozaki as published
from fpemu.schemes import ozimmu as integers
from fpemu.schemes.base import Scheme
from fpemu.schemes.errorfree.products import lengths
from fpemu.schemes.errorfree.report import Fault, Report
from fpemu.schemes.ozaki import Ozaki
from fpemu.schemes.ozaki2 import Ozaki2
from fpemu.schemes.ozimmu import INT32, Ozimmu

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
    run = _runner(scheme)
    if max(sizes := (*D.shape[-2:], A.shape[-1])) > LONGEST:
        raise InputError(f"{scheme.name}: M, N and K are {sizes}, and {LONGEST} at most on a GPU: split the product")
    work = workspace() if work is None else work
    reports = []
    lead = D.shape[:-2]
    offsets = [None if X is None else X.offsets(lead) for X in (A, B, C, D)]
    for at in range(max(1, int(np.prod(lead)))):
        a, b, c, d = (
            None if X is None or o is None else replace(X, pointer=X.pointer + X.dtype.itemsize * int(o[at]))
            for X, o in zip((A, B, C, D), offsets, strict=True)
        )
        reports.append(run(_problem(work, a, b, c, d, scheme, spec, alpha, beta, order, method)))
    return next((r for r in reports if not r.ok), reports[0])


def _runner(scheme: Scheme) -> Callable[[ErrorFreeProduct], Report]:
    if isinstance(scheme, Ozaki2):
        return lambda x: scheme2.multiply(x.work, x.A, x.B, scheme, x.spec, x.end)
    if isinstance(scheme, Ozimmu):
        return lambda x: _ozimmu(x, scheme)
    if not isinstance(scheme, Ozaki):
        raise InputError(f"{scheme.name} is not of the Ozaki family: ozaki, ozimmu or ozaki2")
    if scheme.exponents == "row":
        raise InputError(
            "ozaki: exponents='row': only fpemu.gemm checks whether words lose digits then; leave it out, "
            "the product is the same where none are lost"
        )
    if scheme.memory is not None:
        raise InputError(f"ozaki: memory={scheme.memory} bounds the work space of fpemu.gemm: leave it out on a GPU")
    return lambda x: _ozaki_once(x, scheme) if scheme.mode == "CR" else _ozaki(x, scheme)


def _problem(
    work: Workspace,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    scheme: Scheme,
    spec: MmaSpec,
    alpha: Any,
    beta: Any,
    order: Any,
    method: str,
) -> ErrorFreeProduct:
    M, K = A.shape[-2:]
    N = B.shape[-1]
    a = Rows.of(work, Operand(A.pointer, A.dtype == np.float32, M, K, *A.strides[-2:]), "A")
    b = Rows.of(work, Operand(B.pointer, B.dtype == np.float32, N, K, *B.strides[:-3:-1]), "B")
    end = np.zeros(1, END)
    for name, X in (("A", A), ("B", B), ("C", C), ("D", D)):
        if X is not None:
            end[name] = (X.pointer, *X.strides[-2:], X.dtype == np.float32, 0)
    end["alpha"], end["beta"], end["K"], end["has_c"] = alpha, beta, K, C is not None
    end["rows"], end["columns"] = a.special.pointer, b.special.pointer
    end["nan"] = scheme.nan_code(spec)
    return ErrorFreeProduct(work, a, b, end, spec, order, method)


# --- ozaki
def _ozaki(x: ErrorFreeProduct, scheme: Ozaki) -> Report:
    """Modes DP and SP."""
    M, N, K = x.shape
    bits = scheme.slice_bits(x.spec, K, x.order)
    how = Splitting(bits, scheme.split, x.spec.is_integer)
    kind = _CARRIED.get(scheme.words, scheme.words)
    u, printed = published._UNIT[scheme.operand.name], scheme.slices == "printed"
    spans = x.survey()

    def count(rows: Rows, other: Rows) -> int:
        return needed(x.work, rows, spans[rows is x.B], other, spans[other is x.B].top, how, u, printed)

    d = scheme.slices if isinstance(scheme.slices, int) else count(x.A, x.B)
    other = d
    if scheme.slices is None:
        of_b = count(x.B, x.A)
        d, other = (of_b, of_b) if of_b > d + 1 else (d, max(d, of_b))
    a = split(x.work, x.A, spans[0], how, d, kind)
    if not a.complete:
        other = d
    elif printed:
        other = count(x.B, x.A)
    b = split(x.work, x.B, spans[1], how, other, kind, backwards=True)
    fast, d = not a.complete if scheme.fast is None else scheme.fast, max(d, other)
    pairs = list(published._pairs(a.slices, b.slices, d, fast))
    report = _sliced(x, scheme, bits, a, b, K, scheme.k_block, products=len(pairs), fast=fast)
    if not report.ok:
        return report
    total = Sum([Term(p, q) for p, q in pairs], False, scheme.operand, _exact_length(a, b, K))
    add_up(x.work, a, b, M, N, total, _may_overflow(spans, scheme.operand, K), K, x.end)
    return report


def _exact_products(a: Slices, b: Slices) -> int:
    """Return the number of products of slices whose sum is exact in cuBLAS."""
    return {"int8": INT32, "fp64": 2**53}.get(a.kind, 2**24) // max(1, a.largest * b.largest)


def _exact_length(a: Slices, b: Slices, K: int) -> int:
    """Return the length along K of one exact product by cuBLAS: all of K, if its sums are exact."""
    most = _exact_products(a, b)
    return a.width if most >= K else max(1, most // 16 * 16 or most)


def _may_overflow(spans: tuple[Span, Span], fmt: FloatFormat, K: int) -> bool:
    return spans[0].top + spans[1].top + 2 + K.bit_length() + 2 > fmt.emax


def _sliced(
    x: ErrorFreeProduct,
    scheme: Any,
    bits: int,
    a: Slices,
    b: Slices,
    K: int,
    k_block: int | None,
    *faults: Fault,
    **more: Any,
) -> Report:
    """Return the report of a product of slices, equal to that of `fpemu.schemes.errorfree.products`."""
    spec, order = x.spec, x.order
    largest = a.largest, b.largest
    size = largest[0] * largest[1]
    sizes = lengths(K, k_block)
    bound = max(exactness.longest_chain(n, order) for n in sizes) * size
    limit, outer, longest = exactness.sum_limit(spec), exactness.outer_limit(spec), max(sizes) * size
    inexact = ""
    if bound > limit:
        inexact = f"sums may reach {bound}, and it is exact to {limit}"
    elif longest > outer:
        inexact = f"chains may add up to {longest}, and their sum is exact to {outer}"
    elif K * size > 2**53:
        inexact = f"k-blocks may add up to {K * size}, and their sum is exact to 2^53"
    elif not all(exactness.holds(spec, *largest, n, order) for n in sizes):
        inexact = f"digits of {max(largest)} do not fit {spec.a_format}"
    lost = not exactness.unit_fits(spec, -2 * bits)
    if inexact:
        why = f"are not exact on {spec.name}: {inexact}; take fewer bits a slice or a smaller k_block"
        faults += (Fault("inexact-product", f"{scheme.name}: products of slices of {bits} bits {why}"),)
    if lost:
        why = f"are lost to underflow on {spec.name}: take exponents='slice'"
        faults += (Fault("underflow", f"{scheme.name}: digits of late slices, or their products, {why}"),)
    return Report(
        scheme.name,
        spec.name,
        bits,
        (a.slices, b.slices),
        exact=not inexact,
        sum_bound=bound,
        sum_limit=limit,
        complete=a.complete and b.complete,
        fill=(a.fill, b.fill),
        underflow=lost,
        block=x.shape[:2],
        faults=faults,
        **more,
    )


def _ozaki_once(x: ErrorFreeProduct, scheme: Ozaki) -> Report:
    """Mode CR."""
    M, N, K = x.shape
    bits, kind = scheme.slice_bits(x.spec, K, x.order), _CARRIED.get(scheme.words, scheme.words)
    spans = x.survey()
    if scheme.bits is not None and scheme.bits > replace(scheme, bits=None).slice_bits(x.spec, K, x.order):
        how = Splitting(bits, scheme.split, x.spec.is_integer)  # exact only if the entries happen to be small enough
        a, b = (
            split(x.work, X, span, how, -(-span.width // bits) + 2, kind)
            for X, span in zip((x.A, x.B), spans, strict=True)
        )
        report = _sliced(x, scheme, bits, a, b, K, scheme.k_block, products=a.slices * b.slices, fast=False)
        if not report.ok:
            return report
    spread = (spans[0].norm + spans[1].norm + 1) // 2  # |a||b| bounds the entries, as integers
    count = modular.moduli_for(spread)
    if x.method == "residues" and count is None:
        raise InputError(f"method='residues': the exponents spread over {spread} bits, too many: take method='slices'")
    if count is not None and x.method != "slices":
        return _by_residues(x, spans, scheme, count)
    # Slices rounded to nearest on one grid that begins a bit higher: bits + 1 bits each, entries of at most 2^bits. Any
    # slices give the same sum; these make the sum over all of K exact.
    bits = min(bits, replace(scheme, bits=None, k_block=None).slice_bits(x.spec, K, x.order))
    how = Splitting(bits, "nearest", True, 1) if kind == "int8" else Splitting(bits + 1, "nearest", False, 1)
    sides = []
    for X, span, backwards in ((x.A, spans[0], False), (x.B, spans[1], True)):
        slices = max(1, -(-(span.width + how.headroom + 1) // how.bits))
        sides.append(split(x.work, X, span, how, slices, kind, backwards=backwards))
    a, b = sides
    room = _exact_products(a, b) // K
    if room < 1:
        raise InputError(f"ozaki: K = {K} is too long for exact sums in {kind} words: split the product along K")
    round_exactly(x.work, a, b, M, N, how.bits, room, x.plain, x.end)
    return _sliced(x, scheme, how.bits, a, b, K, scheme.k_block, products=a.slices * b.slices, fast=False)


def _by_residues(x: ErrorFreeProduct, spans: tuple[Span, Span], scheme: Any, count: int) -> Report:
    M, N, K = x.shape
    flags = x.work.zeros("flags of residues", 16)
    a, b = (
        modular.residues(x.work, X, count, X.low, -1, 0, span.width + 1, np.uint64(flags.pointer + 8 * i))
        for i, (X, span) in enumerate(zip((x.A, x.B), spans, strict=True))
    )
    ends = modular.Exponents(x.A.low, x.B.low, -1, 0)
    modular.multiply(x.work, a, b, count, ends, M, N, x.end, once=True, plain=x.plain)
    spread = (spans[0].norm + spans[1].norm + 1) // 2 + 1
    P = float(sum(np.log2(p) for p in modular.ALL[:count]))
    chain = min(K, modular.CHAIN) * 2**14
    return Report(
        scheme.name,
        x.spec.name,
        products=count,
        fast=False,
        exact=True,
        sum_bound=chain,
        sum_limit=INT32,
        complete=not flags.array(4, np.int32)[::2].any(),
        crt=True,
        crt_bits=(float(spread), P),
        int32=True,
        int32_bound=chain,
        underflow=False,
        block=(M, N),
    )


# --- ozimmu
def _ozimmu(x: ErrorFreeProduct, scheme: Ozimmu) -> Report:
    M, N, K = x.shape
    bits = scheme.slice_bits(K)
    spans = x.survey()
    how = Splitting(bits, scheme.split, True, scheme.headroom)
    s = scheme.slices or automatic(
        (bits_needed(x.work, X, how, scheme.operand.precision) for X in (x.A, x.B)), scheme, bits
    )
    a, b = split(x.work, x.A, spans[0], how, s, "int8"), split(x.work, x.B, spans[1], how, s, "int8", backwards=True)
    sums = list(integers._sums(a.slices, b.slices, s, scheme.sharing(K)))
    most = max((len(pairs) for pairs in sums), default=0)
    bound = most * K * a.largest * b.largest
    overflow = Fault(
        "int32-overflow",
        f"{scheme.name}: int32 sums of {most} products over K = {K} may reach "
        f"{bound}, beyond 2^31 - 1: take fewer bits a slice or a smaller group",
    )
    faults = [overflow] * (bound > INT32)
    work = {"products": sum(map(len, sums)), "fast": True, "int32": bound <= INT32, "int32_bound": bound}
    report = _sliced(x, scheme, bits, a, b, K, None, *faults, **work)
    if not report.ok:
        return report
    terms = [Term(*pairs[0], len(pairs), -(sum(pairs[0]) + 2) * bits) for pairs in sums]
    add_up(x.work, a, b, M, N, Sum(terms, True, FP64, a.width), _may_overflow(spans, FP64, K), K, x.end)
    return report
