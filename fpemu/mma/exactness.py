"""Condition under which a chain of matrix instructions on integers is exact: bits per slice of an error-free scheme.

Digits are integers |x| <= X of A and |y| <= Y of B. The instruction receives words of magnitude 1 at most: the digits
times 2^-p and 2^-q, where 2^p and 2^q are the least powers of two not below X and Y (the published splits' scaling).
Counted in units of 2^-(p+q), the products are integers. A chain starts from zero, and S is its sum of |x||y|: it bounds
every term, every partial sum in whatever order, and every accumulator. Write

    P   precision of D, or `fraction_bits` + 1;
    G   binary places kept below the largest exponent of a block where terms are aligned: F, which is 24 on CDNA3.

**Theorem.** The chain is exact if (1) its words are values of A's and B's formats, and normal ones where the arithmetic
flushes; (2) S <= 2^T with T = min(G + 1, P), or T = P without an alignment; (3) in units, every exponent that enters an
alignment and exceeds the magnitude of its term is at most G: the minimum alignment exponent E0, the -126 of a zero c on
CDNA3, and the exponent of a product with a subnormal word, which counts with emin.

**Proof** by induction over the blocks: c and the products of a block are integers whose magnitudes add up to S at most.

*Rounding to D.* The sum is an integer of magnitude 2^P at most, hence has no more than P significant bits. Nor is it
subnormal or too large in D: p + q < log2(XY) + 2 <= P + 2, so that a unit is 2^-(P+1) or more, normal in fp16, fp32 and
fp64, and a sum is 2^P or less. So rounding, to nearest or toward zero, changes nothing. This proves "exact" (c and the
products are added exactly) and "fma" (the same with one product). In "flushed" the products and the sums of pairs are
integers up to 2^P as well, normal in fp32, and their roundings change nothing either.

*Alignment.* A product of normal words has the exponent e_x + e_y <= log2 |xy|, and c has floor(log2 |c|): both at most
log2 S. If every term is below 2^(G+1), the largest exponent e is at most G, by (3) also if it is not the exponent of a
term. Terms are then truncated to multiples of 2^(e-G), which is 1 or a fraction: integers do not change. Otherwise one
term is 2^(G+1) = S and all others are zero; then e <= G + 1, and 2^(G+1) is a multiple of 2. The sum is exact and is
rounded to D as above: this proves "truncated".

*CDNA3* aligns the products alone (in fp8 separately for even and odd k), then their sum with c, none coarser than 24
places below an exponent that is at most P = 24: the same argument, G + 1 > P. The truncation 31 places below the sum
is finer. In fp8 a c more than 25 places below the largest exponent is omitted; the only such integer is zero.

*"via-half"* is two truncated blocks on fp16 words, exact by the above, and one rounding of c + d, an integer up to S.

*"integer"*: sums modulo 2^32 are exact if they lie within ±(2^31 - 1), for any partial sums.

*Orders.* Zeros that pad a tile or a residue to whole instructions are terms of zero, which do not affect an alignment.
The chains that promotion or a split separates each start from zero and are added outside in fp32, fp64 or int32:
exactly if the |x||y| of all of K add up to 2^24, 2^53 or 2^31 - 1 at most. An fp16 D is rounded from that sum at the
end, where the limit is 2^11.

T cannot be larger: once a chain has reached 2^P, or 2^(G+1), a product of 1 in the next block is lost.
"""

from __future__ import annotations

from dataclasses import replace

from fpemu import formats
from fpemu.arguments import integer
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec

_INTEGER_BITS = {"int8": 7, "int32": 31}


def sum_bits(spec: MmaSpec) -> int:
    """T: every chain of `spec` from zero whose sum of |x||y| is at most 2^T is exact (integer: below 2^T).

    Examples
    --------
    >>> import fpemu
    >>> [sum_bits(fpemu.mma.spec("H200", *f)) for f in (("fp16",), ("fp16", "fp16"), ("e4m3",), ("int8",))]
    [24, 11, 14, 31]
    """
    return spec.exact_to


def sum_limit(spec: MmaSpec) -> int:
    """Return the largest sum of |x||y| for which every chain of `spec` is exact: 2^T, or 2^31 - 1."""
    return (1 << spec.exact_to) - spec.is_integer


def outer_limit(spec: MmaSpec) -> int:
    """Return the largest sum of |x||y| over all of K for which the addition of promoted or split chains is exact.

    They are added in fp32, fp64 or int32. For an fp16 D the sum in fp32 is rounded to fp16, which holds 11 bits.
    """
    return 2**31 - 1 if spec.is_integer else 1 << spec.operand_formats[3].precision


def word_bits(fmt: FloatFormat | str) -> int:
    """The largest w for which every integer of magnitude <= 2^w, times 2^-w, is a value of `fmt` (int8: <= 2^w - 1).

    The precision, unless the smallest subnormal is larger than 2^-w: fp16 11, bf16 8, e4m3 4, but e2m3 3 and e2m1 1.

    Raises
    ------
    InputError
        For a format that is not known, or one without the number 1.
    """
    if isinstance(fmt, str) and fmt in _INTEGER_BITS:
        return _INTEGER_BITS[fmt]
    if fmt == "uint8":
        raise InputError("uint8 holds no negative numbers: digits cannot be stored in it")
    fmt = formats.get(fmt)
    if not (fmt.signed and fmt.contains(1.0)):
        raise InputError(f"{fmt} does not hold the numbers 0, 1 and -1: digits cannot be stored in it")
    return min(fmt.precision, (fmt.fraction_bits if fmt.subnormals else 0) - fmt.emin)


def longest_chain(K: int, order: KOrder | None = None) -> int:
    """Return the largest number of products in one accumulator of a GEMM over K in this order."""
    K, order = integer("K", K, 0), order or KOrder()
    size = min(order.split or K, K)
    slices = {size, K % size} if size else set()  # slices of equal length have equal chains
    chains = [chain for n in slices for slice_ in replace(order, split=None).segments(n) for chain in slice_]
    return max((sum(stop - start for start, stop in chain) for chain in chains), default=0)


def holds(spec: MmaSpec, x: int, y: int, K: int, order: KOrder | None = None) -> bool:
    """Return whether every GEMM over K on digits of bounded magnitude is exact by the theorem.

    The digits have magnitudes of at most `x` in A and `y` in B.

    Parameters
    ----------
    spec : MmaSpec
        The instruction.
    x, y : int
        The largest magnitudes of the digits. Each operand is stored as digits · 2^-b, 2^b the least power of two that
        is not below the largest magnitude; for the integer instruction the digits are the words.
    K : int
        Length of the sums.
    order : KOrder, optional
        Summation order over K. Default: one chain.

    Returns
    -------
    bool
        True if the theorem's condition is met.

    Raises
    ------
    InputError
        For magnitudes or a K that are no integers or negative.

    Examples
    --------
    >>> import fpemu
    >>> [holds(fpemu.mma.spec(gpu, "e4m3"), 16, 16, 128) for gpu in ("H200", "B200")]
    [False, True]
    >>> holds(fpemu.mma.spec("H200", "e4m3"), 16, 16, 128, fpemu.mma.KOrder(promote=64))
    True
    """
    return _fits(spec, integer("x", x, 0), integer("y", y, 0), integer("K", K, 0), longest_chain(K, order))


def slice_bits(spec: MmaSpec, K: int, order: KOrder | None = None) -> int:
    """Return the largest number b of bits for which every GEMM over K on b-bit digits is exact.

    Digits have magnitudes of at most 2^b (int8: 2^b - 1).

    Parameters
    ----------
    spec : MmaSpec
        The instruction.
    K : int
        Length of the sums.
    order : KOrder, optional
        Summation order over K. Default: one chain.

    Returns
    -------
    int
        Bits of a slice; 0 if there are none.

    Raises
    ------
    InputError
        For a K that is no integer or negative, or a format that cannot hold digits.

    Examples
    --------
    >>> import fpemu
    >>> [slice_bits(fpemu.mma.spec("H200", f), 1024) for f in ("fp16", "bf16", "e4m3", "int8")]
    [7, 7, 2, 7]
    """
    chain = longest_chain(K, order)
    widest = min(word_bits(fmt) for fmt in (spec.a_format, spec.b_format))
    largest = {b: (1 << b) - spec.is_integer for b in range(widest, 0, -1)}
    return next((b for b, x in largest.items() if _fits(spec, x, x, integer("K", K, 0), chain)), 0)


def unit_fits(spec: MmaSpec, unit: int) -> bool:
    """Whether products that are multiples of 2^unit, of words of magnitude 1 at most, stay above what is dropped.

    That is above D's smallest subnormal (normal, where subnormals are flushed), and condition (3) of the theorem with
    any word subnormal. It is for words that are stored with a larger power of two than `holds` supposes.
    """
    if spec.is_integer:
        return True
    d = spec.operand_formats[3]
    if unit < (d.emin if spec.rules.flushes else d.emin - d.fraction_bits):
        return False
    return not spec.rules.aligned or all(e - unit <= spec.F for e in _floors(spec, -unit, -unit))


def published_bits(K: int, accumulator_bits: int = 24) -> int:
    """Bits per slice by the published formula, floor((accumulator_bits - log2 K) / 2), in exact arithmetic; 0 at least.

    It supposes IEEE arithmetic of that precision and words wide enough. Mukunoki, Ozaki, Ogita, Imamura: DGEMM using
    tensor cores, and its accurate and reproducible versions (2020), Algorithm 1.

    Raises
    ------
    InputError
        For a K below 1.

    Examples
    --------
    >>> [published_bits(K) for K in (16, 256, 1024, 4096, 16384)]
    [10, 8, 7, 6, 5]
    """
    if integer("K", K, 0) < 1:
        raise InputError("K = 0: a product of nothing has no digits")
    return max((accumulator_bits - (K - 1).bit_length()) // 2, 0)  # 2b <= a - log2 K where 2b <= a - ceil(log2 K)


def _fits(spec: MmaSpec, x: int, y: int, K: int, chain: int) -> bool:
    """Whether the theorem's conditions hold, and the addition of chains is exact; `chain` is the longest chain."""
    if chain * x * y > sum_limit(spec) or K * x * y > outer_limit(spec):
        return False
    pairs = ((spec.a_format, x), (spec.b_format, y))
    if spec.is_integer:
        return all(magnitude < 1 << word_bits(fmt) for fmt, magnitude in pairs)
    if any(magnitude > 1 << word_bits(fmt) for fmt, magnitude in pairs):
        return False
    p, q = (max(magnitude - 1, 0).bit_length() for magnitude in (x, y))
    if spec.rules.flushes:
        fa, fb, _, _ = spec.operand_formats
        return -p >= fa.emin and -q >= fb.emin
    return not spec.rules.aligned or all(e + p + q <= spec.F for e in _floors(spec, p, q))


def _floors(spec: MmaSpec, p: int, q: int) -> list[int]:
    """The largest exponents that an alignment may see without a term of that size; words are at most 1."""
    fa, fb, _, _ = spec.issued.operand_formats
    floors = [e for e in (spec.E0, spec.rules.zero_exponent) if e is not None]
    floors += [fa.emin + max(fb.emin, 0)] if -p < fa.emin else []
    floors += [fb.emin + max(fa.emin, 0)] if -q < fb.emin else []
    return floors
