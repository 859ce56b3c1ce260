"""How an error-free scheme runs: slices or moduli, products in their order, sums, and the conditions of a result.

`ErrorFree.plan_for` returns the plan of a scheme for an instruction, an order over K and a K. All users of a scheme
read it: `products` and `sums` evaluate it on the CPU, `fpemu.gpu.errorfree` on a GPU, with the same `Report`;
`fpemu.theory` bounds its error, and `fpemu.roofline` counts its products and sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, exactness
from fpemu.schemes.errorfree.split import FIXED, Slices, split

INT32 = 2**31 - 1
CHAIN = 2**16
"""Products of residues in one int32 sum: 2^14 · 2^16 = 2^30 < 2^31"""

KINDS = {
    "inexact-product": "a product of slices can lose bits on the instruction",
    "crt": "the integers are too large to be found from their residues: 2 sum|a'||b'| >= P",
    "int32-overflow": "an int32 sum can leave its range",
    "underflow": "a digit of a slice, or a product of digits, is lost below the smallest numbers of a format",
    "target": "no number of slices or moduli has a bound on the error within the target",
}
"""The conditions that can be violated, with their meaning"""


@dataclass(frozen=True)
class Fault:
    """One violated condition: a key of `KINDS`, and a message with the limit, the value and the remedy."""

    kind: str
    message: str


@dataclass(frozen=True)
class Certificate:
    """Bound on the error of a product for which a number of slices or moduli was chosen.

    Parameters
    ----------
    counted : str
        "slices" or "moduli".
    number : int
        The least number whose bound meets the target, or the one with the smallest bound if none does.
    target : float
        Limit of the error relative to |A||B|.
    bound : float
        Bound on the error of every entry of A·B relative to |A||B|, for these operands.
    at : (int, int)
        Entry with the largest bound.
    fewer : float, optional
        The same bound for one slice or modulus fewer, if it was computed: larger than the target.
    """

    counted: str
    number: int
    target: float
    bound: float
    at: tuple[int, int]
    fewer: float | None = None

    @property
    def met(self) -> bool:
        """Whether the bound meets the target."""
        return self.bound <= self.target

    def faults(self, scheme: str) -> tuple[Fault, ...]:
        """The violated condition of a target that is not met."""
        message = f"{scheme}: {self}; take a larger target or inside_scaling=True"
        return () if self.met else (Fault("target", message),)

    def __str__(self) -> str:
        fewer = "" if self.fewer is None else f" (with {self.number - 1}: {self.fewer:.3g})"
        return (
            f"{self.number} {self.counted} have an error of at most {self.bound:.3g} |A||B| at {list(self.at)}{fewer}, "
            f"and the target is {self.target:.3g} |A||B|"
        )


@dataclass(frozen=True)
class Report:
    """Conditions of an error-free scheme that were checked.

    A field is None where the scheme has no such condition.

    Parameters
    ----------
    scheme : str
        Name of the scheme.
    hardware : str
        Name of the instruction.
    bits : int, optional
        Bits of a slice.
    slices : (int, int)
        Slices of A and of B.
    products : int, optional
        Number of matrix products on the instruction, one that determines a scaling included.
    fast : bool
        Whether the products p + q > d + 1 were left out.
    exact : bool
        Every product of slices is exact on the instruction, by the condition of `fpemu.mma.exactness`. Products that a
        scheme omits are not covered.
    sum_bound, sum_limit : int
        Upper limit of the sum of magnitudes of a chain, in units, from the largest digits; and the largest exact sum.
    complete : bool
        The slices add up to A and to B, without a residual.
    fill : (tuple of float, tuple of float)
        Fraction of non-zero digits in every slice of A and of B.
    crt : bool
        2 sum|a'||b'| < P for every entry.
    crt_bits : (float, float)
        log2 of a bound on the largest 2 sum|a'||b'|, and of P.
    int32 : bool
        No int32 sum leaves its range.
    int32_bound : int
        A bound on the magnitude of every int32 sum.
    underflow : bool, optional
        Whether a non-zero digit is below the range of its word, is flushed by the hardware, or has products below the
        range of the sums; or whether a whole row of A or column of B is lost in this way.
    block : (int, int)
        Rows and columns of D computed at a time.
    certificate : Certificate, optional
        The number of slices or moduli that a `target` determined, and the bound that holds with it.
    faults : tuple of Fault
        Violated conditions; empty if all hold.
    """

    scheme: str
    hardware: str = ""
    bits: int | None = None
    slices: tuple[int, int] | None = None
    products: int | None = None
    fast: bool | None = None
    exact: bool | None = None
    sum_bound: int | None = None
    sum_limit: int | None = None
    complete: bool | None = None
    fill: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    crt: bool | None = None
    crt_bits: tuple[float, float] | None = None
    int32: bool | None = None
    int32_bound: int | None = None
    underflow: bool | None = None
    block: tuple[int, int] | None = None
    certificate: Certificate | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every condition holds."""
        return not self.faults

    def with_certificate(self, certificate: Certificate) -> Report:
        """The report with a certificate, and a fault if its target is not met."""
        return replace(self, certificate=certificate, faults=self.faults + certificate.faults(self.scheme))


@dataclass(frozen=True, eq=False)
class Certified:
    """Result of an error-free scheme with the report of its conditions.

    Parameters
    ----------
    D : array_like
        Result (..., M, N).
    report : Report
        Report of the only matrix; for a batch, of the first matrix with a fault, else of the first.
    reports : tuple of Report
        One for each matrix of a batch, in row-major order of the batch axes. Empty if there was nothing to multiply.
    """

    D: NDArray[Any]
    report: Report
    reports: tuple[Report, ...]


class SliceSummary(NamedTuple):
    """An operand's slices, as far as a report needs them."""

    slices: int
    complete: bool  # whether they add up to the operand
    largest: int  # magnitude of a digit
    fill: tuple[float, ...]  # fraction of non-zero digits in every slice


class Counts(NamedTuple):
    """How much work a product of slices is, known from splitting alone."""

    slices: tuple[int, int]  # of A and of B
    d: int  # the larger requested number of slices
    fast: bool  # whether the products p + q > d + 1 are left out
    bits: int  # a slice
    spread: int = 0  # bits from the first to the last of a row's slices, of A and of B together, at most

    @property
    def products(self) -> int:
        """Matrix products on the instruction."""
        return sum(levels(*self.slices, self.d, self.fast))


@lru_cache(maxsize=1024)
def levels(a: int, b: int, d: int, fast: bool) -> list[int]:
    """For g = 0, 1 ... the number of products of slices p < a and q < b with p + q = g, indices from 0.

    In fast mode g < d: the products p + q > d + 1, counted from 1, are left out.

    >>> levels(3, 2, 3, fast=False), levels(3, 2, 3, fast=True)
    ([1, 2, 2, 1], [1, 2, 2])
    """
    last = a + b - 1
    return [min(g, a - 1) - max(0, g - b + 1) + 1 for g in range(min(d, last) if fast else last)]


def lengths(K: int, k_block: int | None) -> set[int]:
    """Lengths in k of the parts that the instruction sums: all of K, or its k-blocks, of which the last is shorter.

    The longest part does not always have the largest bound: with promotion, a first residue counts as a whole tile.
    """
    if k_block is None or k_block >= K:
        return {K}
    return {k_block} | ({K % k_block} if K % k_block else set())


@dataclass(frozen=True)
class SlicePlan:
    """Products of slices on one instruction, in one order over K."""

    scheme: str
    spec: Any  # MmaSpec; None where only the splits and the number of sums matter
    order: KOrder | None  # over K, of every chain
    K: int
    bits: int  # b: bits a slice
    rule: str  # of the split, see `fpemu.schemes.errorfree.split`
    limited: bool  # the largest digit is 2^b - 1, not 2^b
    adds_in: FloatFormat | None  # format of the sums, rounded at every product; None: the exact sum is rounded once
    headroom: int = 0  # unused bits above the largest entry of a row
    # Up to so many products of equal p + q are added in one int32 sum before. None: every product is added alone, in
    # the order of Algorithm 2 of Mukunoki et al. (2020).
    shared: int | None = None
    k_block: int | None = None  # length in k of a chain of instructions; the chains are added in fp64
    one_exponent: bool = False  # all slices of a row are stored with the exponent of its first slice

    # --- splits

    @property
    def limit(self) -> int:
        """Largest digit."""
        return (1 << self.bits) - self.limited

    @property
    def on_grid(self) -> bool:
        """Whether the units of the slices are b bits apart in every row."""
        return self.rule in FIXED

    def cut(self, X: NDArray[Any], axis: int, count: Any) -> Slices:
        """The slices of A (axis 1) or B (axis 0), at most `count`; of a stack with a count for each (axis -1 or -2)."""
        return split(X, axis, self.bits, self.rule, count, self.limit, self.headroom)

    # --- products and sums

    def groups(self, a: int, b: int, d: int, fast: bool) -> list[list[tuple[int, int]]]:
        """The products (p, q) of a and b slices, indices from 0, in the order added; the products of a sum together."""
        if self.shared is None:
            return [[(p, q)] for q in range(b) for p in range(a) if not fast or p + q + 1 <= d]
        sums = []
        for g, count in enumerate(levels(a, b, d, fast)):
            first = max(0, g - b + 1)
            pairs = [(p, g - p) for p in range(first, first + count)]
            sums += [pairs[i : i + self.shared] for i in range(0, count, self.shared)]
        return sums

    def sums(self, a: int, b: int, d: int, fast: bool) -> int:
        """The number of `groups`."""
        return sum(-(-count // (self.shared or 1)) for count in levels(a, b, d, fast))

    # --- conditions

    @cached_property
    def longest_chain(self) -> int:
        """Largest number of products in one accumulator of the instruction."""
        return max(exactness.longest_chain(n, self.order) for n in lengths(self.K, self.k_block))

    @cached_property
    def unit_lost(self) -> bool:
        """Whether products of digits, each slice scaled to magnitudes of at most 1, may be lost to underflow."""
        return not exactness.unit_fits(self.spec, -2 * self.bits)

    def int32_bound(self, a: int, b: int, d: int, size: int) -> int:
        """Largest magnitude of a sum of `shared` products of a and b slices, of digits with products up to `size`."""
        return min(self.shared or 1, max(levels(a, b, d, True))) * self.K * size

    def report(
        self, a: SliceSummary, b: SliceSummary, d: int, fast: bool, lost: bool, block: tuple[int, int]
    ) -> Report:
        """The conditions of a product of A and B; `lost`: digits or their products are lost to underflow."""
        x, y = a.largest, b.largest
        name, faults, int32 = self.spec.name, [], None
        if self.shared is not None:
            int32 = self.int32_bound(a.slices, b.slices, d, x * y)
            if int32 > INT32:
                most = int32 // (self.K * x * y)
                message = (
                    f"{self.scheme}: int32 sums of {most} products over K = {self.K} may reach "
                    f"{int32}, beyond 2^31 - 1: take fewer bits a slice or a smaller group"
                )
                faults.append(Fault("int32-overflow", message))
        reason = inexact(self, x, y)
        if reason:
            why = f"are not exact on {name}: {reason}; take fewer bits a slice or a smaller k_block"
            faults.append(Fault("inexact-product", f"{self.scheme}: products of slices of {self.bits} bits {why}"))
        if lost:
            why = f"are lost to underflow on {name}: take exponents='slice'"
            faults.append(Fault("underflow", f"{self.scheme}: digits of late slices, or their products, {why}"))
        return Report(
            self.scheme,
            name,
            self.bits,
            (a.slices, b.slices),
            products=sum(levels(a.slices, b.slices, d, fast)),
            fast=fast,
            exact=not reason,
            sum_bound=self.longest_chain * x * y,
            sum_limit=exactness.sum_limit(self.spec),
            complete=a.complete and b.complete,
            fill=(a.fill, b.fill),
            int32=None if int32 is None else int32 <= INT32,
            int32_bound=int32,
            underflow=lost,
            block=block,
            faults=tuple(faults),
        )


@lru_cache(maxsize=1024)
def inexact(plan: SlicePlan, x: int, y: int) -> str:
    """Reason why a product, or the sum of its k-blocks, may be inexact on the instruction; "" if all are exact.

    `x` and `y` are the largest magnitudes of digits of A and B.
    """
    spec, order, size, sizes = plan.spec, plan.order, x * y, lengths(plan.K, plan.k_block)
    limit, outer = exactness.sum_limit(spec), exactness.outer_limit(spec)
    bound, longest = plan.longest_chain * size, max(sizes) * size
    if bound > limit:
        return f"sums may reach {bound}, and it is exact to {limit}"
    if longest > outer:
        return f"chains may add up to {longest}, and their sum is exact to {outer}"
    if plan.K * size > 2**53:
        return f"k-blocks may add up to {plan.K * size}, and their sum is exact to 2^53"
    if all(exactness.holds(spec, x, y, n, order) for n in sizes):
        return ""
    return f"digits of {max(x, y)} do not fit {spec.a_format}"


@dataclass(frozen=True)
class ModularPlan:
    """Products of residues modulo pairwise coprime numbers up to 256, on one instruction."""

    scheme: str
    spec: Any  # MmaSpec; None where only the number of products matters
    K: int
    moduli: int  # their number: as many products of residues
    extra: int = 0  # products that determine the scaling of the operands

    @property
    def products(self) -> int:
        """Matrix products on the instruction."""
        return self.moduli + self.extra

    def report(self, crt_bits: tuple[float, float], complete: bool, *faults: Fault, **more: Any) -> Report:
        """The conditions of a product whose integers and moduli have so many bits.

        A residue is at most 128 in magnitude, so that no int32 sum of a chain overflows.
        """
        kinds, chain = {fault.kind for fault in faults}, min(self.K, CHAIN) * 2**14
        return Report(
            self.scheme,
            self.spec.name,
            products=self.products,
            exact=True,
            sum_bound=chain,
            sum_limit=INT32,
            complete=complete,
            crt="crt" not in kinds,
            crt_bits=crt_bits,
            int32=True,
            int32_bound=chain,
            underflow="underflow" in kinds,
            faults=faults,
            **more,
        )
