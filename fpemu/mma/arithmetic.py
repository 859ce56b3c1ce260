"""The arithmetics of matrix instructions: one row each, with its implementations, constraints, exactness and errors.

A new arithmetic is a function in `fpemu.mma.reference` or `fpemu.mma.cpu`, a module of `fpemu.mma.compiled` and a row
of `ARITHMETICS`. All other modules read the row, as `MmaSpec.rules`, and contain no name of an arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.mma import cpu, reference

if TYPE_CHECKING:
    from fpemu.formats import FloatFormat
    from fpemu.mma.spec import MmaSpec

Array = NDArray[Any]
DEFAULT_ARITHMETIC = "truncated"
DEFAULTS: dict[str, Any] = {"F": 24, "E0": None, "fraction_bits": None, "final": "RNE", "payloads": False}
DEFAULTS |= {"scale": None, "scale_block": None, "random_bits": None, "seed": None}
"""Fields of MmaSpec that only some arithmetics read, and their values in all others"""


class Operands(NamedTuple):
    """Operands of chains in their carriers: product p is A[index_a[p]] B[index_b[p]] + C[p]."""

    A: Array  # (stack, M, K), K a multiple of the instruction's words
    B: Array  # (stack, K, N)
    index_a: NDArray[np.int64]  # (products,)
    index_b: NDArray[np.int64]  # (products,)
    C: Array  # (products, M, N)
    cuts: NDArray[np.bool_]  # (instructions,): True where the accumulator joins an outer sum and restarts from zero
    first: tuple[int, int] = (0, 0)  # row of D that C begins with, block of its chain: indices of SR's random bits


class Loss(NamedTuple):
    """Largest error of one block: tau max(|c|, W) + pi W + rho (|c| + P) + absolute.

    P is the sum of the magnitudes of the block's products, W the same with every operand taken as at least the smallest
    normal number of its format, and c the accumulator. `fpemu.theory.accumulation` adds the errors of a chain.
    """

    tau: float  # alignment of the products with the accumulator
    pi: float  # alignment or rounding of the products among themselves
    rho: float  # rounding of the sum
    absolute: float  # minimum alignment exponent, and subnormal results
    grows: bool  # whether a block may increase the sum of magnitudes, because it rounds to nearest


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a matrix instruction: a row of `ARITHMETICS`."""

    name: str  # key of the row: `MmaSpec.arithmetic`
    text: str  # the arithmetic in words
    # NumPy reference implementation of one block: a (..., M, L), b (..., L, N), c (..., M, N) -> d (..., M, N)
    # and, in the arithmetics with "final", the random bits of each entry of d for SR
    reference: Callable[..., Array]
    # Compiled implementation of chains, "module.function" in `fpemu.mma.compiled`. None: the reference alone
    compiled: str | None
    cuda: str | None  # constant of ``kernels/arithmetic.cuh``. None: not emulated on a GPU
    constraints: Callable[[MmaSpec], Iterator[str]]  # the violated constraints of a specification, in words
    # T: a chain from zero whose sum of |x||y| is at most 2^T is exact (`fpemu.mma.exactness` has the proof)
    exact_to: Callable[[MmaSpec], int]
    loss: Callable[[MmaSpec], Loss]  # largest error of one block
    # Keys of `DEFAULTS` that the arithmetic reads: "F", "E0" and "fraction_bits" of a truncated sum, "final" of a sum
    # rounded once, "payloads" of NaN, "scale" and "scale_block" of block-scaled operands
    parameters: tuple[str, ...] = ()
    # Position from simple and common to rare. Of several arithmetics with the same results the lowest is reported
    rank: int = 100
    integer: bool = False  # whether it adds integers modulo 2^32
    fused: bool = False  # whether each product is added by one fused multiply-add
    # The terms that are truncated F places below the largest exponent among them: none, the products, or the products
    # and the accumulator
    aligned: Literal["", "products", "terms"] = ""
    flushes: bool = False  # whether subnormal operands and results are replaced by zero
    pairwise: bool = False  # whether the products are added in pairs, each sum rounded
    floors: bool = False  # whether sums are rounded toward minus infinity, 31 and 32 places below their exponents
    groups: int = 1  # groups of k that a block adds apart; two: even and odd k
    zero_exponent: int | None = None  # of a zero accumulator in the alignment. None: below every other exponent
    enter: Callable[[Array], Array] | None = None  # conversion of C at the start of each instruction
    via: str | None = None  # arithmetic of the half-precision instructions that the instruction is converted to

    @property
    def truncates(self) -> bool:
        """Whether the specification gives the alignment width F and the minimum alignment exponent E0."""
        return "F" in self.parameters

    @property
    def scaled(self) -> bool:
        """Whether blocks of the operands have scales."""
        return "scale" in self.parameters

    @property
    def rounds_once(self) -> bool:
        """Whether the accumulator and the products are added exactly and rounded once, by `final`."""
        return "final" in self.parameters and self.via is None

    @property
    def kind(self) -> Literal["instruction", "fma"]:
        """Kind of its chains in a summation tree."""
        return "fma" if self.fused else "instruction"

    @cached_property
    def chain(self) -> Callable[[Operands, MmaSpec], Array]:
        """The compiled implementation of `fpemu.mma.reference.chain`, imported at the first use.

        It overwrites A, B and C: C may become the result.
        """
        if self.compiled is None:
            return _by_reference
        module, _, function = self.compiled.partition(".")
        implementation: Callable[[Operands, MmaSpec], Array]
        implementation = getattr(import_module(f"fpemu.mma.compiled.{module}"), function)
        return implementation

    def __reduce__(self) -> Any:
        return _named, (self.name,)  # a pickled specification has the row of the process that reads it


def _named(name: str) -> Arithmetic:
    return ARITHMETICS[name]


def _by_reference(x: Operands, spec: MmaSpec) -> Array:
    return reference.chain(x.A[x.index_a], x.B[x.index_b], x.C, spec, x.cuts, x.first)


# --- constraints: carriers of the implementations, and limits of the arithmetics


def _carried(spec: MmaSpec) -> Iterator[str]:
    """Constraints of the float32 and int64 carriers of block sums."""
    a, b, c, d = spec.operand_formats
    narrow_c = (c.name, d.name, spec.rules.aligned, spec.block) == ("fp16", "fp32", "terms", spec.k)
    if not narrow_c and (c != d or d.name not in ("fp16", "fp32")):
        yield (
            f"c_format and d_format are {c} and {d}: they must be both fp16 or both fp32; or, in the arithmetic"
            " 'truncated' with block = k, fp16 and fp32"
        )
    for fmt in (a, b):
        if fmt.positive:
            yield f"the input format {fmt} has no zero"
        elif not fmt.signed or (fmt.inf and fmt.nan != "ieee"):
            yield f"the input format {fmt} is none of matrix instructions: unsigned, integer, or of IEEE P3109"
        if fmt.precision > 24 or fmt.emin < -126 or fmt.emax > 127:
            yield f"the input format {fmt} is wider than fp32"
    if spec.block > 64:  # 65 terms of F + 2 bits add up below 2^53
        yield f"block = {spec.block} is more than 64"


def _truncated(spec: MmaSpec) -> Iterator[str]:
    yield from _carried(spec)
    if not 1 <= spec.F <= 35:  # a term of F + 2 bits, 65 times, in 53 bits
        yield f"F = {spec.F} is not between 1 and 35"
    if spec.E0 is not None and not -300 <= spec.E0 <= 300:  # scales by 2^(F - E0) are normal numbers of float64
        yield f"E0 = {spec.E0} is not between -300 and 300"
    if spec.fraction_bits is not None and not (str(spec.d_format) == "fp32" and 1 <= spec.fraction_bits <= 23):
        yield f"fraction_bits = {spec.fraction_bits} goes with an fp32 result and is between 1 and 23"


def _scaled(spec: MmaSpec) -> Iterator[str]:
    yield from _truncated(spec)
    a, b, _, d = spec.operand_formats
    if spec.scale is None or spec.scale_block is None:
        yield "a block-scaled instruction needs scale and scale_block"
        return
    if d.name != "fp32" or max(a.width, b.width) > 8:
        yield "block-scaled operands have at most 8 bits, and fp32 results"
    if spec.rules.groups == 1 and (spec.scale != "ue8m0" or spec.scale_block != spec.block or spec.block > 32):
        yield "scales that add to the exponents of products are ue8m0, one for each block of at most 32 products"
    if spec.rules.groups > 1:
        if spec.block != spec.rules.groups * reference.GROUP or spec.scale_block not in (16, 32, 64):
            yield "four groups of 16 products have a scale for each 16, 32 or 64 k"
        if not a.name == b.name == "e2m1":
            yield "groups of products are added exactly for e2m1 operands"


def _fused(spec: MmaSpec) -> Iterator[str]:
    yield from _x86_fma(spec)
    if spec.payloads and spec.operand_formats[3].name != "fp64":
        yield "payloads of NaN are kept by the FMA chains of fp64 alone"


def _x86_fma(spec: MmaSpec) -> Iterator[str]:
    a, b, c, d = spec.operand_formats
    if not (a == b == c == d) or d.name not in ("fp16", "fp32", "fp64") or spec.block != 1:
        yield "an FMA chain has block = 1 and one format throughout: fp16, fp32 or fp64"


def _half_pairs(spec: MmaSpec) -> Iterator[str]:
    """Constraints of dot products of an even number of 16-bit operands in fp32."""
    a, b, c, d = spec.operand_formats
    if not (a == b and c == d) or (a.name, d.name) not in (("bf16", "fp32"), ("fp16", "fp32")) or spec.block % 2:
        yield f"the arithmetic {spec.arithmetic!r} has an even block, bf16 or fp16 operands, and C and D in fp32"


def _two(spec: MmaSpec) -> Iterator[str]:
    yield from _half_pairs(spec)
    if spec.block != 2:
        yield f"the arithmetic {spec.arithmetic!r} has block = 2"


def _bf16_pairs(spec: MmaSpec) -> Iterator[str]:
    yield from _two(spec)
    if str(spec.a_format) != "bf16":
        yield f"the arithmetic {spec.arithmetic!r} has bf16 operands"


def _amd(spec: MmaSpec) -> Iterator[str]:
    yield from _carried(spec)
    if str(spec.d_format) != "fp32":
        yield f"the arithmetic {spec.arithmetic!r} has fp32 results"


def _flushed(spec: MmaSpec) -> Iterator[str]:
    yield from _amd(spec)
    if spec.block not in (2, 4) or max(fmt.precision for fmt in spec.operand_formats[:2]) > 11:
        yield "the flushed arithmetic has blocks of 2 or 4 and inputs of at most 11 significant bits"


def _cdna3_fp8(spec: MmaSpec) -> Iterator[str]:
    yield from _amd(spec)
    if spec.block % 2:
        yield "even and odd k need an even block"


def _via_half(spec: MmaSpec) -> Iterator[str]:
    def within_half(fmt: FloatFormat) -> bool:
        return fmt.precision <= 11 and fmt.emax <= 15 and fmt.emin - fmt.precision >= -25

    yield from _truncated(spec)
    if spec.k % 4 or spec.block != spec.k:
        yield "the way through half precision needs k a multiple of 4 and block = k"
    if spec.final == "SR":
        yield "the sums of the way through half precision are not rounded stochastically"
    a, b, _, _ = spec.operand_formats
    if not within_half(a) or not within_half(b):
        yield f"{a} and {b} do not both fit into fp16"


def _nothing(spec: MmaSpec) -> Iterator[str]:
    return iter(())


# --- exactness: T of the theorem in `fpemu.mma.exactness`


def _precision(spec: MmaSpec) -> int:
    """Without an alignment: the precision of D."""
    return spec.sum_fraction_bits + 1


def _aligned_precision(spec: MmaSpec) -> int:
    """With an alignment F places below the largest exponent: F + 1 bits, and the precision of D."""
    return min(spec.F, spec.sum_fraction_bits) + 1


def _int32(spec: MmaSpec) -> int:
    return 31


# --- largest errors of a block


def _last(spec: MmaSpec) -> float:
    """A unit in the last place of a sum of exponent 0."""
    return float(2.0**-spec.sum_fraction_bits)


def _alignment(spec: MmaSpec) -> tuple[int, float]:
    """1 if F bits do not hold a term, and the absolute error of the smallest grids.

    The grid is no finer than the grid of the minimum alignment exponent and, beside a subnormal sum, of emin.
    """
    a, b, c, _ = spec.operand_formats
    representable = max(c.precision - 1, a.precision + b.precision - 2) <= spec.F
    lowest = max(c.emin, c.emin if spec.E0 is None else spec.E0)
    return int(not representable), (spec.block + 1) * 2.0 ** (lowest - spec.F)


def _truncated_loss(spec: MmaSpec) -> Loss:
    """L of the L + 1 terms lose less than 2^(e_max - F) each; the largest loses nothing as long as F bits hold it."""
    (extra, floor), last = _alignment(spec), _last(spec)
    tau, least = (spec.block + extra) * 2.0**-spec.F, last * spec.operand_formats[3].min_normal
    if spec.final == "RNE":
        return Loss(tau, 0.0, last / 2, floor + least / 2, True)
    return Loss(tau, 0.0, last, floor + least, spec.final == "SR")


def _scaled_loss(spec: MmaSpec) -> Loss:
    raise InputError(f"{spec.name}: the error of block-scaled sums is not bounded here")


def _via_half_loss(spec: MmaSpec) -> Loss:
    """Two truncated blocks of L/2 products, rounded, and their sum with the accumulator, to nearest."""
    (extra, floor), last, d = _alignment(spec), _last(spec), spec.operand_formats[3]
    half = (spec.block // 2 + extra) * 2.0**-spec.F + last
    absolute = 2 * (floor + last * d.min_normal) + d.min_subnormal / 2
    return Loss(0.0, 2 * half * (1 + half), d.unit_roundoff, absolute, True)


def _exact_loss(spec: MmaSpec) -> Loss:
    """The rounding of the sum alone."""
    d = spec.operand_formats[3]
    if spec.final != "RNE":
        return Loss(0.0, 0.0, _last(spec), d.min_subnormal, spec.final == "SR")
    return Loss(0.0, 0.0, d.unit_roundoff, d.min_subnormal / 2, True)


def _flushed_loss(spec: MmaSpec) -> Loss:
    """The roundings of the pairwise sums, (1 + u)^(log2 L) - 1, and of the sum; every flush loses a subnormal."""
    d = spec.operand_formats[3]
    sums = float(np.expm1(math.log2(spec.block) * np.log1p(d.unit_roundoff)))
    return Loss(0.0, sums, d.unit_roundoff, 2 * spec.block * d.min_normal, True)


def _cdna3_loss(spec: MmaSpec, extra: int = 0) -> Loss:
    """Products truncated at 2^-24, their sum floored at 2^-32, c at 2^-24, the result floored at 2^-31 and rounded."""
    d = spec.operand_formats[3]
    rounding = d.unit_roundoff + 2.0**-31 + 2.0**-54
    return Loss(2.0**-32, (spec.block + extra) * 2.0**-24, rounding, d.min_subnormal / 2 + 2.0**-157, True)


def _cdna3_fp8_loss(spec: MmaSpec) -> Loss:
    """As `_cdna3_loss`; the sums of even and odd k are floored too, and a small c is omitted."""
    return _cdna3_loss(spec, extra=3)


def _pairs_loss(spec: MmaSpec) -> Loss:
    """Two fused multiply-adds, each of which may flush its result."""
    d = spec.operand_formats[3]
    return Loss(0.0, 0.0, d.unit_roundoff * (2 + d.unit_roundoff), 2 * d.min_normal, True)


def _tile_loss(spec: MmaSpec) -> Loss:
    """Two chains of block / 2 fused multiply-adds and their sum, then the addition of c; each may flush its result."""
    d = spec.operand_formats[3]
    sums = float(np.expm1((spec.block // 2 + 2) * np.log1p(d.unit_roundoff)))
    return Loss(0.0, sums, d.unit_roundoff, (spec.block + 2) * d.min_normal, True)


def _odd_pairs_loss(spec: MmaSpec) -> Loss:
    """Two sums rounded to odd; the products, and both sums, may be flushed."""
    d = spec.operand_formats[3]
    return Loss(0.0, 2 * _last(spec), _last(spec), 4 * d.min_normal, True)


def _fused_pairs_loss(spec: MmaSpec) -> Loss:
    """The rounding of the sum of two products, and of its addition to c."""
    d = spec.operand_formats[3]
    u = d.unit_roundoff
    return Loss(0.0, u * (1 + u), u, d.min_subnormal, True)


def _integer_loss(spec: MmaSpec) -> Loss:
    raise InputError(f"{spec.name}: sums of integers are exact modulo 2^32 and have no error to bound")


_FINAL = ("final", "random_bits", "seed")
_SUM = ("F", "E0", "fraction_bits", *_FINAL)
ARITHMETICS: dict[str, Arithmetic] = {
    row.name: row
    for row in (
        Arithmetic(
            "truncated",
            "products and accumulator truncated to one grid, added exactly, rounded once (NVIDIA)",
            reference=reference.truncated,
            compiled="truncated.chain",
            cuda="TRUNCATED",
            constraints=_truncated,
            exact_to=_aligned_precision,
            loss=_truncated_loss,
            parameters=_SUM,
            rank=1,
            aligned="terms",
        ),
        Arithmetic(
            "exact",
            "products and accumulator added exactly, rounded once to nearest",
            reference=reference.exact,
            compiled="exact.chain",
            cuda="EXACT",
            constraints=_carried,
            exact_to=_precision,
            loss=_exact_loss,
            parameters=_FINAL,
            rank=2,
        ),
        Arithmetic(
            "fma",
            "a chain of IEEE fused multiply-adds, k ascending",
            reference=reference.fused,
            compiled="fma.chain",
            cuda="FMA",
            constraints=_fused,
            exact_to=_precision,
            loss=_exact_loss,
            parameters=("payloads",),
            rank=0,
            fused=True,
        ),
        Arithmetic(
            "flushed",
            "IEEE products and pairwise sums in fp32, subnormals flushed (CDNA2)",
            reference=reference.flushed,
            compiled="amd.flushed",
            cuda="FLUSHED",
            constraints=_flushed,
            exact_to=_precision,
            loss=_flushed_loss,
            rank=4,
            flushes=True,
            pairwise=True,
            enter=reference.enter_flushed,
        ),
        Arithmetic(
            "cdna3",
            "truncated sum of products, then added to the accumulator on a coarser grid (CDNA3 fp16, bf16, xf32)",
            reference=reference.cdna3,
            compiled="amd.cdna3",
            cuda="CDNA3",
            constraints=_amd,
            exact_to=_aligned_precision,
            loss=_cdna3_loss,
            rank=5,
            aligned="products",
            floors=True,
            zero_exponent=-126,
        ),
        Arithmetic(
            "cdna3-fp8",
            "as cdna3, with even and odd k summed apart (CDNA3 fp8, bf8)",
            reference=reference.cdna3_fp8,
            compiled="amd.cdna3_fp8",
            cuda="CDNA3_FP8",
            constraints=_cdna3_fp8,
            exact_to=_aligned_precision,
            loss=_cdna3_fp8_loss,
            rank=6,
            aligned="products",
            floors=True,
            groups=2,
            zero_exponent=-126,
        ),
        Arithmetic(
            "via-half",
            "converted to fp16 and issued as half-precision instructions (fp8 through mma.sync on Hopper)",
            reference=reference.via_half,
            compiled="run.via_half",
            cuda="VIA_HALF",
            constraints=_via_half,
            exact_to=_aligned_precision,
            loss=_via_half_loss,
            parameters=_SUM,
            rank=3,
            aligned="products",
            groups=2,
            via="truncated",
        ),
        Arithmetic(
            "scaled",
            "as truncated, the exponents of a block's scales added to each product's (block-scaled 8, 6 and 4 bits)",
            reference=reference.scaled,
            compiled="scaled.products",
            cuda="SCALED",
            constraints=_scaled,
            exact_to=_aligned_precision,
            loss=_scaled_loss,
            parameters=(*_SUM, "scale", "scale_block"),
            aligned="terms",
        ),
        Arithmetic(
            "scaled-groups",
            "16 products added exactly, times both scales; four such terms and the accumulator truncated (4 bits)",
            reference=reference.scaled_groups,
            compiled="scaled.grouped",
            cuda="SCALED_GROUPS",
            constraints=_scaled,
            exact_to=_aligned_precision,
            loss=_scaled_loss,
            parameters=(*_SUM, "scale", "scale_block"),
            groups=4,
            aligned="terms",
        ),
        Arithmetic(
            "integer",
            "exact modulo 2^32",
            reference=reference.integer,
            compiled="run.integer",
            cuda="INTEGER",
            constraints=_nothing,
            exact_to=_int32,
            loss=_integer_loss,
            integer=True,
        ),
        Arithmetic(
            "integer-saturated",
            "the exact sum of the products and the accumulator, limited to the range of int32",
            reference=cpu.saturated,
            compiled=None,
            cuda=None,
            constraints=_nothing,
            exact_to=_int32,
            loss=_integer_loss,
            integer=True,
        ),
        Arithmetic(
            "x86-fma",
            "a chain of IEEE fused multiply-adds, k ascending; of several NaN the first of a, b, c (x86)",
            reference=cpu.x86_fma,
            compiled="cpu.x86_fma",
            cuda=None,
            constraints=_x86_fma,
            exact_to=_precision,
            loss=_exact_loss,
            parameters=("payloads",),
            fused=True,
        ),
        Arithmetic(
            "x86-pairs",
            "fused multiply-adds in fp32 with DAZ and FTZ, of a pair the odd element first (x86 AVX512_BF16)",
            reference=cpu.pairs,
            compiled="cpu.pairs",
            cuda=None,
            constraints=_two,
            exact_to=_precision,
            loss=_pairs_loss,
            parameters=("payloads",),
            flushes=True,
        ),
        Arithmetic(
            "x86-tile",
            "chains of fused multiply-adds over even and odd k, added to each other, then to C, with DAZ and FTZ"
            " (x86 AMX)",
            reference=cpu.tile,
            compiled="cpu.tile",
            cuda=None,
            constraints=_half_pairs,
            exact_to=_precision,
            loss=_tile_loss,
            parameters=("payloads",),
            flushes=True,
            groups=2,
        ),
        Arithmetic(
            "arm-odd",
            "products and sums of pairs rounded to odd in fp32, subnormals flushed (ARM, EBF = 0)",
            reference=cpu.odd_pairs,
            compiled="cpu.odd_pairs",
            cuda=None,
            constraints=_bf16_pairs,
            exact_to=_precision,
            loss=_odd_pairs_loss,
            flushes=True,
        ),
        Arithmetic(
            "arm-fused",
            "two products added exactly and rounded to fp32, then added to the accumulator (ARM, EBF = 1)",
            reference=cpu.fused_pairs,
            compiled="cpu.fused_pairs",
            cuda=None,
            constraints=_bf16_pairs,
            exact_to=_precision,
            loss=_fused_pairs_loss,
        ),
    )
}
