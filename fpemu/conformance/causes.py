"""Causes of mismatches in the arithmetic: conversion of the operands × instruction × summation order × conversion of D.

Each factor has a list of alternatives. The residual of D against the product of converted operands in float64 leaves
few conversions. For each conversion and instruction, the partial sums over slices and lanes of k are computed once, on
a few entries of D, and combined in every order of the list, and each conversion of the result is applied to them.
The combinations that reproduce these entries are confirmed on a larger sample, and then on the whole result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, reduce
from itertools import chain, islice, permutations, product
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, library, mma, schemes, simt
from fpemu.conformance.compare import distance
from fpemu.conformance.specification import (
    EPILOGUES,
    Specification,
    combined,
    describe_order,
    evaluate,
    finished,
    multiply_adds,
    round_operand,
    to_format,
)
from fpemu.errors import GuaranteeError, InputError
from fpemu.library import openblas
from fpemu.mma import KOrder, MmaSpec, tree
from fpemu.mma.device import Device
from fpemu.mma.gemm import _chain
from fpemu.mma.order import reduce_pairwise
from fpemu.mma.spec import EVIDENCE
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing.callables import bits
from fpemu.schemes import Scheme
from fpemu.schemes.words import in_k

Array = NDArray[Any]
Index = NDArray[np.int64]
_ROUNDINGS = ("RNE", "RZ", "RNA", "bit-cut")
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "combine": ("term-wise", "element-wise"),
    "products": (),  # permutations
    "step": (None, "instruction", 16, 32, 64, 128),
    "stage": (16, 32, 128, 256),
    "accumulators": ("one", "band", "each"),
    "combine_in": ("fp32", "fp64"),
    "high_rounding": _ROUNDINGS,
    "residual_rounding": _ROUNDINGS,
    "rounding": _ROUNDINGS[:3],
    "residual_scale": tuple(2.0**i for i in (0, 8, 10, 11, 12, 13)),
    "sb": (0, 8, 10, 11, 13),
    "refine": ("both", "A"),
    "accumulator": ("fp32", "fp16"),
    "words": (1, 2, 3),
    "fmt": ("fp16", "bf16", "tf32"),
    "mode": ("DP", "SP", "CR"),
    "instruction": ("mma", "wgmma"),
    "scaling": ("accurate", "fast", "invariant"),
    "slices": tuple(range(2, 13)),
    "moduli": tuple(range(8, 21)),
}
_TF32X3 = {"high_rounding": "RNA", "residual_rounding": "RZ", "products": ("rh", "hr", "hh"), "accumulators": "one"}
_MODES = {"RNE": "to nearest even", "RZ": "toward zero (truncated)", "RNA": "to nearest, ties away"}
_FORMATS = ("tf32", "fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "fp32")
_GRAINS = (8, 16, 32, 64, 128, 1, 2, 4)
_TILES = (64, 32, 128, 16, 8, 256)
_PROMOTIONS = (16, 32, 64, 128, 256, 512)
_WORK = 2e6  # multiply-adds of one alternative on the sample
_SPLIT_INF = ", and NaN and Inf are split like numbers: the residual of Inf is Inf - Inf = NaN"
_COUNT = 8.0  # seconds for other combinations with the same bits, after the first
_ALIKE = 6  # deviations of a kind that are compared with a result without mismatches
_BEAM = 6  # deviations of a scheme that are combined with all others
REFUSED = (InputError, GuaranteeError)  # the product of an alternative is not defined
_NARROW = 2.0**-14  # typical error relative to the terms above which accumulators of fp16 and bf16 are tried


@dataclass(frozen=True)
class Deviation:
    """Change of a specification in one respect."""

    kind: str  # the respect: "order", "inputs", "epilogue", "accumulator", "hardware", "scheme" ...
    text: str  # the change in words
    fields: dict[str, Any]  # the changed fields


Deviations = tuple[Deviation, ...]


def deviation(kind: str, text: str, **fields: Any) -> Deviation:
    """A deviation that sets these fields."""
    return Deviation(kind, text, fields)


def changed(s: Specification, deviations: Iterable[Deviation]) -> Specification:
    """The specification with all changes."""
    return replace(s, **{name: value for d in deviations for name, value in d.fields.items()})


@dataclass(frozen=True)
class Cause:
    """Deviation from the specification that explains mismatches.

    Attributes
    ----------
    kinds : tuple of str
        The respects in which the specification is changed.
    text : str
        The change in words.
    left : int
        Entries of the whole result that still mismatch; 0: the change explains all.
    specification : Specification
        The changed specification.
    """

    kinds: tuple[str, ...]
    text: str
    left: int
    specification: Specification


# --- the problem


class Problem:
    """A result D with its operands and its specification's value `expected`, and a sample of its rows and columns."""

    def __init__(
        self,
        specification: Specification,
        A: Array,
        B: Array,
        C: Array | None,
        D: Array,
        expected: Array,
        device: Device,
        end: float,
        most: int,
        ignored: NDArray[np.bool_] | None = None,
    ):
        self.s, self.A, self.B, self.C, self.D, self.device = specification, A, B, C, D, device
        self.end, self.most, self.tried = end, most, 0
        self.counted = True
        self.ignored = np.zeros(D.shape, bool) if ignored is None else ignored  # entries with another cause
        wrong = (bits(D) != bits(expected)) & ~self.ignored
        K, (M, N) = A.shape[1], D.shape
        lines = int(np.clip(np.sqrt(_WORK / K), 4, 12))
        self.rows, self.columns = _lines(wrong, 1, lines), _lines(wrong, 0, lines)
        self.expected = expected[self.rows][:, self.columns]
        own = self.value(specification) if specification.scheme is not None else self.expected
        if not np.array_equal(bits(own), bits(self.expected)):
            self.expected = expected
            self.rows, self.columns = np.arange(M), np.arange(N)  # the scheme's rows are not independent
        self.part = D[self.rows][:, self.columns]
        # the entries on which all combinations are tried: 4 or 16, with mismatches among them
        few = 4 if K <= 2048 else 2
        self.few = _lines(wrong[self.rows], 1, few), _lines(wrong[:, self.columns], 0, few)
        self.few = self.rows[self.few[0]], self.columns[self.few[1]]
        self.seen: dict[Any, bool] = {}

    @cached_property
    def converted(self) -> tuple[list[Deviations], float]:
        """The likely conversions of the operands, and the relative size of the residual that they leave."""
        return conversions(self)

    @cached_property
    def coarse(self) -> bool:
        """Whether the residual is too large for the accumulator of the specification, and for a conversion of D."""
        a, b = self.s.multiplied(self.A[self.rows], self.B[:, self.columns])
        expected = self.expected if self.C is None else self.expected - self.s.beta * self.C[self.rows][:, self.columns]
        error = (expected.astype(np.float64) / (self.s.alpha or 1.0) - a @ b) / (np.sqrt((a * a) @ (b * b)) + 1e-300)
        fits = [f for f in _FORMATS if formats.get(f).contains(self.part).all()]
        unit = max((formats.get(f).unit_roundoff for f in fits), default=0.0)
        error = error[np.isfinite(error)]
        typical = float(np.sqrt(np.mean(error * error))) if error.size else np.inf
        return self.converted[1] > max(16 * typical, 4 * unit)

    def over(self) -> bool:
        """Whether the budget of the search is spent."""
        return self.tried >= self.most or time.perf_counter() > self.end

    def value(self, s: Specification, rows: Any = 0, columns: Any = 0) -> Array:
        """The specified rows and columns, by default those of the sample."""
        rows, columns = (self.rows, self.columns) if rows is not None and np.ndim(rows) == 0 else (rows, columns)
        device: Device = self.device if rows is None else "cpu"
        return evaluate(s, self.A, self.B, self.C, rows, columns, device).astype(self.D.dtype, copy=False)

    def equal(self, value: Array, rows: Any = slice(None), columns: Any = slice(None)) -> bool:
        """Whether a value has the bits of these rows and columns of D."""
        part = self.D[rows][:, columns]
        if value.shape != part.shape:
            return False
        return bool(((bits(value) == bits(part)) | self.ignored[rows][:, columns]).all())

    def matches(self, s: Specification) -> bool:
        """Whether a specification reproduces the sample."""
        with suppress(*REFUSED):
            independent = len(self.rows) < len(self.D) and s.library is None
            if independent and not self.equal(self.value(s, *self.few), *self.few):
                return False
            return self.equal(self.value(s), self.rows, self.columns)
        return False

    def confirms(self, s: Specification) -> bool:
        """Whether a specification reproduces every bit of the result: by parts of its rows, the last ones first."""
        if s.library is not None or s.scheme is not None:
            return self.equal(self.value(s, None, None))
        step = max(8, int(2e8 / (self.A.shape[1] * self.D.shape[1])))
        for first in range(0, len(self.D), step):
            rows = np.arange(first, min(first + step, len(self.D)))
            if not self.equal(self.value(s, rows, None), rows):
                return False
        return True


def _lines(wrong: NDArray[np.bool_], axis: int, count: int) -> Index:
    """Rows (axis 1) or columns: half of them with the most mismatches, the others spread over the matrix."""
    amount = wrong.sum(axis=axis)
    worst = np.argsort(-amount, kind="stable")[: (count + 1) // 2]
    rest = np.setdiff1d(np.linspace(0, len(amount) - 1, min(count, len(amount))).astype(np.int64), worst)
    keep = rest[np.linspace(0, len(rest) - 1, min(count // 2, len(rest))).astype(np.int64)]
    return np.sort(np.concatenate([worst, keep]))


# --- conversions of the operands


def conversions(p: Problem) -> tuple[list[Deviations], float]:
    """The conversions of A and B that leave the smallest residuals, and the relative size of the smallest.

    Rounding errors of the operands are the same in every order and on every unit, so that D is much nearer to the
    product of the operands that were multiplied.
    """
    s = p.s
    rows, columns = p.rows[:8], p.columns[:8]
    A, B = p.A[rows], p.B[:, columns]
    target = p.D[rows][:, columns].astype(np.float64)
    target = (target if p.C is None else target - s.beta * p.C[rows][:, columns]) / (s.alpha or 1.0)
    sides = []
    for X in (A, B):
        wide = X.astype(np.float64)
        values: dict[bytes, tuple[str, ...]] = {}
        fmt = "fp32" if isinstance(s.operand, str) else s.operand.name
        # tf32 instructions ignore the low 13 bits of fp32 words
        own = s.inputs or (fmt, "RZ" if fmt == "tf32" else "RNE")
        for name, mode in (own, *((n, m) for n in dict.fromkeys((fmt, *_FORMATS)) for m in _MODES)):
            if not s.is_integer and np.abs(wide[np.isfinite(wide)]).max(initial=0) <= formats.get(name).max:
                with np.errstate(all="ignore"), suppress(InputError):
                    values.setdefault(round_operand(X, name, mode).astype(np.float64).tobytes(), (name, mode))
        sides.append([(pair, np.frombuffer(data).reshape(X.shape)) for data, pair in values.items()])
    if s.is_integer or not all(sides):
        return [()], 1.0
    size = np.sqrt((A.astype(np.float64) ** 2) @ (B.astype(np.float64) ** 2)) + 1e-300
    found = []
    usable = np.isfinite(target) & (target != 0 if s.relu or (p.D >= 0).all() else True)
    for (name_a, x), (name_b, y) in product(*sides):
        with np.errstate(all="ignore"):
            z = ((target - x @ y) / size)[usable]
        residual = float(np.sqrt(np.mean(z * z))) if z.size and np.isfinite(z).all() else np.inf
        found.append((residual, name_a, name_b))
    own_a, own_b = sides[0][0][0], sides[1][0][0]
    least = max(min(r for r, *_ in found), 2.0**-60)
    plain = next(r for r, a, b in found if (a, b) == (own_a, own_b))
    chosen: list[Deviations] = [()] if plain <= 3 * least else []
    rank = sorted(
        (r for r in found if r[0] <= 1.5 * least and r[1:] != (own_a, own_b)),
        key=lambda r: (r[1] != r[2] and own_a not in r[1:] and own_b not in r[1:], r[0]),
    )
    pairs = [(a, b) for _, a, b in rank[: 4 if chosen else 8]]
    for (fmt, mode), b in list(pairs):  # the two roundings to nearest may agree on the sample and not elsewhere
        if (fmt, mode) != b or mode != "RNE":
            continue
        even, away = ([round_operand(x, fmt, m) for x in (p.A, p.B)] for m in ("RNE", "RNA"))
        if any((x != y).any() for x, y in zip(even, away, strict=True)):
            pairs.append(((fmt, "RNA"), (fmt, "RNA")))
    for a, b in dict.fromkeys(pairs):
        words = {name: f"rounded to {name[0]} {_MODES[name[1]]} first" for name in (a, b)}
        if a == b:
            text = f"A and B are {words[a]}"
        else:
            text = " and ".join(f"{x} is {words[n]}" for x, n, own in (("A", a, own_a), ("B", b, own_b)) if n != own)
        chosen.append((deviation("inputs", text, inputs=a, inputs_b=None if a == b else b),))
    return chosen, least


# --- instructions and accumulators


def _arithmetic(row: MmaSpec) -> tuple[Any, ...]:
    """The fields that determine the bits of a chain."""
    rounding = (row.F, row.E0, row.final, row.fraction_bits, row.nan_code)
    return row.d_format, row.arithmetic, row.block, *rounding, row.rules.via is not None and row.k


def other_instructions(spec: MmaSpec, rows: Iterable[MmaSpec], fmt: str = "") -> Iterator[Deviation]:
    """One deviation for each arithmetic among catalogue rows other than the spec's, with all hardware that has it."""
    evidence = list(EVIDENCE)
    groups: dict[Any, list[MmaSpec]] = {}
    for row in rows:
        groups.setdefault(_arithmetic(row), []).append(row)
    groups.pop(_arithmetic(spec), None)
    fmt = fmt or str(spec.a_format)
    for group in groups.values():
        first, *same = sorted(
            group,
            key=lambda r: (str(r.a_format) != fmt, r.architecture != spec.architecture, evidence.index(r.evidence)),
        )
        others = [arch for arch in dict.fromkeys(row.architecture for row in same) if arch != first.architecture]
        text = f"the instruction is {first.name}" + (f" (or an equal one of {', '.join(others)})" if others else "")
        yield deviation("hardware", text, hardware=first)


def units(s: Specification, A: Array, B: Array, level: float) -> Iterator[Deviations]:
    """Instructions for converted operands, ordinary cores, and narrow or unfused accumulators; the simplest first."""
    spec = s.spec
    assert spec is not None
    yield ()
    if spec.is_integer:
        return
    fits = [f for f in _FORMATS if formats.get(f).contains(A).all() and formats.get(f).contains(B).all()]
    rows = [r for r in mma.catalog.rows() if r.a_format == r.b_format and str(r.a_format) in fits]
    rows += [r for r in mma.catalog.rows() if str(r.a_format) == str(r.b_format) == "tf32" and A.dtype == np.float32]
    rows += [r for r in mma.catalog.rows() if (r.a_format, r.b_format) == (spec.a_format, spec.b_format)]
    precise = 11 if level > _NARROW else min(formats.get(s.result).precision, 24)
    wide = [r for r in rows if formats.get(str(r.d_format)).precision >= precise and not r.rules.fused]
    fp64 = A.dtype == np.float64
    for name in ("fp32", "fp64"):
        if spec != simt.SPECS[name] and (name == "fp64" or not fp64):
            yield (deviation("hardware", f"ordinary cores: FMAs in {name}", hardware=simt.SPECS[name]),)
    for d in other_instructions(spec, dict.fromkeys(wide), s.inputs[0] if s.inputs else ""):
        row = d.fields["hardware"]
        if row.d_format != spec.d_format and str(row.d_format) != "fp64":
            d = deviation("accumulator", f"the accumulator is {row.d_format}: {d.text}", **d.fields)
        yield (d,)
    narrow = level > _NARROW and not fp64
    own = {"hardware": simt.SPECS["fp64" if fp64 else "fp32"]}
    for fmt in ("fp64" if fp64 else "fp32", *(("fp16", "bf16") if narrow else ())):
        name = f"multiply-adds in {fmt}"
        if fmt in ("fp16", "bf16"):
            text = f"{name}: an {fmt} accumulator, rounded once per k (FMA)"
            yield (deviation("accumulator", text, multiply_add=(fmt, "fused"), **own),)
            text = f"{name}: an {fmt} accumulator, to which every k is added in fp32 before its rounding"
            yield (deviation("accumulator", text, multiply_add=(fmt, "in fp32"), **own),)
        text = f"{name} without FMA: the product is rounded, then the sum (unfused)"
        yield (deviation("accumulator", text, multiply_add=(fmt, "separate"), **own),)
    for fmt, unit in product(("fp16", "bf16"), ((), (deviation("hardware", "FMAs in fp32", **own),))):
        for length in dict.fromkeys((32, 64, 16, 128, spec.k, 256, 8, 4, 512)) if narrow else ():
            if length < A.shape[1] and (unit == () or spec != own["hardware"]):
                text = f"the accumulator is rounded to {fmt} after every {length} of k"
                yield (*unit, deviation("accumulator", text, narrow=(fmt, length, "sum")))
                text = f"every {length} of k are summed from zero and added to an accumulator in {fmt}"
                yield (*unit, deviation("accumulator", text, narrow=(fmt, length, "zero")))


def other_units(s: Specification) -> Iterator[Deviation]:
    """Truncating units with other constants than any in the catalogue, for results that nothing else explains."""
    spec = s.spec
    if spec is None or spec.rules.aligned != "terms":
        return
    for block, F, final in product((4, 8, 16, 32), dict.fromkeys((spec.F, 23, 24, 25, 26, 13)), ("RZ", "RNE")):
        kept = 13 if F == 13 else None
        if (block, F, final) != (spec.block, spec.F, spec.final) and not (kept and s.accumulator != "fp32"):
            k = max(block, spec.k // block * block)
            unit = spec.replace(block=block, k=k, F=F, final=final, fraction_bits=kept, E0=None)
            yield deviation("hardware", f"a unit with blocks of {block}, F = {F}, {final}", hardware=unit)


# --- summation orders


def lanes_of(K: int, lanes: int, chunk: int) -> Index:
    """The positions k of each of several accumulators that alternate over chunks of K; -1 pads to equal lengths."""
    rounds = -(-K // (lanes * chunk))
    ks = np.arange(rounds * lanes * chunk).reshape(rounds, lanes, chunk).transpose(1, 0, 2).reshape(lanes, -1)
    return np.where(ks < K, ks, -1)


def chains_of(ks: Index, spec: MmaSpec) -> list[Tree]:
    """The chain of each row of positions; a block of an instruction holds `spec.block` positions, -1 among them."""
    chains: list[Tree] = []
    for row in ks:
        blocks = [tuple(int(k) for k in row[i : i + spec.block] if k >= 0) for i in range(0, len(row), spec.block)]
        if any(blocks):
            chains.append(Chain(tuple(block for block in blocks if block), spec.rules.kind))
    return chains


def joined(parts: list[Any], how: str, add: Callable[[Any, Any], Any]) -> Any:
    """Partial sums added in the order `how`; "WxU: X, Y" joins the vectors of W lanes by X and then the lanes by Y."""
    if ":" in how:
        width, first, second = int(how.split()[0]), *how.partition(": ")[2].split(", ")
        vectors = [joined(parts[lane::width], first, add) for lane in range(width)]
        return joined(vectors, second, add)
    if how == "pairwise":
        return reduce_pairwise(parts, add)
    if how == "halves":
        while len(parts) > 1:
            half = (len(parts) + 1) // 2
            parts = [add(x, y) for x, y in zip(parts, parts[half:], strict=False)] + parts[len(parts) - half :]
            parts = parts[:half]
        return parts[0]
    return reduce(add, parts[::-1] if how == "descending" else parts)


def dealt(K: int, lanes: int, chunk: int, spec: MmaSpec) -> Tree:
    """Several accumulators that alternate over chunks of K and are added at the end (sliced K)."""
    return tree.join(chains_of(lanes_of(K, lanes, chunk), spec))


class Sums:
    """Partial sums of a plain product on a few entries, and the additions of its unit."""

    def __init__(self, s: Specification, A: Array, B: Array):
        assert s.spec is not None
        self.s, self.spec, self.K = s, s.spec, A.shape[1]
        self.A, self.B = (np.concatenate([x, np.zeros_like(x[..., :1])], -1) for x in (A, B.T))
        self.unit = simt.SPECS["fp32"] if s.multiply_add else self.spec

    def chains(self, ks: Index, start: Array | None = None) -> Array:
        """The chains of the rows of positions ks; -1 is a product 0."""
        a, b = np.moveaxis(self.A[:, ks], 1, 0), np.moveaxis(self.B[:, ks], 0, 2)
        if self.s.multiply_add is not None:
            fmt, fused = self.s.multiply_add
            return multiply_adds(a, b, fmt, fused, start)
        value = _chain(
            [(np.ascontiguousarray(a), np.ascontiguousarray(b))], None if start is None else start[None], self.spec
        )
        return value.astype(self.spec.outer_dtype, copy=False)

    def add(self, x: Array, y: Array) -> Array:
        return x + y if self.s.multiply_add is None else to_format(x + y, self.s.multiply_add[0])

    def done(self, T: Array) -> Array:
        """The sum in the format of the accumulator."""
        fmt: Any = self.spec.d_format
        return T if isinstance(fmt, str) else T.astype(fmt.dtype, copy=False)


Candidate = tuple[Any, str, dict[str, Any], Array]
"""An order or a function that returns it, its text, further fields, and the product on a few entries"""


def lengths_of(K: int, *, every: bool = False) -> list[int]:
    """Likely lengths of slices; `every`: all lengths, of long K only multiples of 4 or 8."""
    if every:
        step = 1 if K <= 2048 else 4 if K <= 4096 else 8
        return [n for n in range(step, K, step) if n >= 4]
    lengths = [2**i for i in range(2, 14)]
    for slices in (*range(2, 17), 24, 32):  # of about equal length, rounded up to whole grains
        length = -(-K // slices)
        lengths += [-(-length // grain) * grain for grain in _GRAINS]
    return [length for length in dict.fromkeys(lengths) if length < K]


def slices(x: Sums, *, every: bool = False) -> Iterator[Candidate]:
    """Summation orders with their products: slices joined in several ways, tiles, promotion."""
    s, K, unit = x.s, x.K, x.unit
    if not every:
        promoted = isinstance(s.order, KOrder) and s.order.promote is not None
        yield KOrder(), "one chain" + ", no promotion" * promoted, {}, x.done(x.chains(np.arange(K)[None])[0])
        yield from _with_tiles(x)
    for length in lengths_of(K, every=every):
        ks = lanes_of(K, -(-K // length), length)
        P = x.chains(ks)
        for how in ("ascending",) if every else ("ascending", "pairwise", "descending"):
            if how != "ascending" and len(P) < (3 if how == "pairwise" else 2):
                continue
            fast = how != "pairwise" and s.multiply_add is None
            T = (
                np.add.accumulate(P if how == "ascending" else P[::-1], axis=0)[-1]
                if fast
                else joined(list(P), how, x.add)
            )
            order = KOrder(length, join=how)  # type: ignore[arg-type]
            text = describe_order(order)
            if how == "ascending" and length in _PROMOTIONS:
                text = f"promotion every {length} of k, or {text}, which is the same"
                order = KOrder(promote=length)
            yield order, text, {}, x.done(T)
        if not every:
            yield from _stored(x, P, KOrder(length))
        if length in (*_PROMOTIONS, unit.k) and not every and s.multiply_add is None:
            for group in range(2, len(P)):
                if len(P) > 64 and group & (group - 1) and -(-len(P) // group) > 32:
                    continue
                padded = np.concatenate([P, np.zeros((-len(P) % group, *P.shape[1:]), P.dtype)])
                inner = np.add.accumulate(padded.reshape(-1, group, *P.shape[1:]), axis=1)[:, -1]
                order = KOrder(group * length, promote=length)
                T = np.add.accumulate(inner, axis=0)[-1]
                yield order, describe_order(order), {}, x.done(T)


def _stored(x: Sums, P: Array, order: KOrder) -> Iterator[Candidate]:
    """Slices whose partial sums are rounded to the narrow format of D, in a workspace, before they are added."""
    fmt = x.s.result
    if fmt not in ("fp16", "bf16") or x.s.multiply_add is not None or len(P) == 1:
        return
    stored = [to_format(p, fmt).astype(p.dtype) for p in P]
    text = f"{describe_order(order)}, the slices stored in {fmt} and added in"
    yield order, f"{text} fp32", {"stored": fmt}, x.done(reduce(add, stored))
    yield (
        order,
        f"{text} {fmt}",
        {"join": fmt},
        x.done(reduce(lambda a, b: to_format(a + b, fmt).astype(a.dtype), stored)),
    )


def _with_tiles(x: Sums) -> Iterator[Candidate]:
    """Orders whose slices begin with the residue of their tiles."""
    K, k = x.K, x.unit.k
    if x.unit.rules.fused:
        return
    for length, tile in product((K, *lengths_of(K)), _TILES):
        if tile >= length or not (length % tile or K % length % tile) or (length < K and tile not in _TILES[:3]):
            continue
        rows = []
        for start in range(0, K, length):
            stop = min(start + length, K)
            residue = (stop - start) % tile
            rows.append([*range(start, start + residue), *[-1] * (-residue % k), *range(start + residue, stop)])
        longest = max(map(len, rows))
        P = x.chains(np.array([row + [-1] * (longest - len(row)) for row in rows]))
        order = KOrder(length if length < K else None, tile, residue_first=True)
        yield order, describe_order(order), {}, x.done(np.add.accumulate(P, axis=0)[-1])
        yield from _stored(x, P, order)


def interleaved(x: Sums) -> Iterator[Candidate]:
    """Accumulators that alternate over chunks of k: SIMD lanes × unrolled vectors, and groups of warps (sliced K)."""
    K, unit = x.K, x.unit
    counts = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 9, 10, 12, 24, 48, 128)
    for chunk, lanes in product((1, 8, 16, 32, 4, 64, 128), counts):
        if chunk * lanes > K or (chunk % unit.block and not unit.rules.fused) or (chunk > 1 and lanes > 16):
            continue
        tails = ("zeros", "first", "after", "apart") if K % (chunk * lanes) and unit.rules.fused else ("zeros",)
        for tail in tails:
            main = K if tail == "zeros" else K // (chunk * lanes) * chunk * lanes
            ks, rest = lanes_of(main, lanes, chunk), np.arange(main, K)[None]
            P = list(x.chains(ks))
            if tail == "first":
                P[0] = x.chains(rest, P[0])[0]
            for how in dict.fromkeys(_joins(lanes)):
                T = joined(P, how, x.add)
                T = x.chains(rest, T)[0] if tail == "after" else x.add(T, x.chains(rest)[0]) if tail == "apart" else T
                text = f"{lanes} accumulators that alternate every {chunk} of k" + f", joined {how}" * (
                    how != "ascending"
                )
                texts = {"first": ", the rest of k in the first", "after": ", the rest of k after their sum"}
                text += texts.get(tail, ", the sum of the rest of k added last" * (tail == "apart"))

                def build(ks: Index = ks, how: str = how, tail: str = tail, rest: Index = rest) -> Tree:
                    parts = chains_of(ks, unit)
                    end = tuple((int(k),) for k in rest[0])
                    if tail == "first":
                        parts[0] = Chain(end, "fma", parts[0])
                    total: Tree = joined(parts, how, lambda a, b: Sum((a, b)))
                    if tail == "after":
                        return Chain(end, "fma", total)
                    return Sum((total, Chain(end, "fma"))) if tail == "apart" else total

                yield build, text, {}, x.done(T)


def _joins(lanes: int) -> Iterator[str]:
    """Ways of adding the accumulators of lanes: all in turn, or vectors of some lanes first and then the lanes."""
    yield from ("ascending", "pairwise", "halves")
    for width in (4, 8, 16, 2, 32):
        if lanes % width == 0 and lanes > width:
            for first, second in product(("ascending", "pairwise", "halves"), repeat=2):
                yield f"{width} lanes: {first}, {second}"


# --- conversions of the result


def endings(s: Specification, C: Array | None, D: Array) -> list[Deviations]:
    """Epilogues, and conversions of the result: none, each alone, and pairs of them."""
    epilogues: list[Deviations] = [()]
    for kind, text in EPILOGUES.items() if s.alpha != 1 or C is not None else ():
        needs_c = kind in ("fma", "fma-c", "first", "alpha-last", "no-beta", "beta-1", "C-twice")
        needs_alpha = kind in ("alpha-last", "alpha-on-A", "no-alpha", "alpha-twice")
        idle = (needs_c and C is None) or (needs_alpha and s.alpha == 1) or (kind == "beta-1" and s.beta == 1)
        if kind != s.epilogue and not idle:
            epilogues.append((deviation("epilogue", f"the epilogue: {text}", epilogue=kind),))
    results = [(), *((d,) for d in _results(s, D))]
    nan = [d for d in results if d and "nan" in d[0].fields]
    pairs = [(*a, *b) for a in results for b in nan if a and a != b and "out" not in a[0].fields]
    return [(*e, *r) for r in (*results, *pairs) for e in epilogues]


def _results(s: Specification, D: Array) -> Iterator[Deviation]:
    """Conversions of the result."""
    if s.result in formats.names():
        out = formats.get(s.result)
        nans = np.unique(bits(D)[np.isnan(D)])
        if len(nans) == 1 and D.dtype == out.dtype:
            text = f"NaN has the code 0x{int(nans[0]):0{2 * D.dtype.itemsize}X}"
            yield deviation("result", text, nan=int(nans[0]))
        if D.dtype.itemsize >= 4 and (D != 0)[np.isfinite(D)].any():
            for name in ("fp16", "bf16", "tf32", "e4m3", "e5m2"):
                fmt = formats.get(name)
                if fmt.precision < out.precision and fmt.contains(D).all():
                    for mode, words in _MODES.items():
                        text = f"the result is rounded to {name} {words}"
                        yield deviation("result", text, out=name, out_rounding=mode)
                    for first in ("fp16", "bf16", "tf32"):
                        if first != name and formats.get(first).precision >= fmt.precision:
                            text = f"the result is rounded twice: to {first}, then to {name}"
                            yield deviation("result", text, via=(first, "RNE"), out=name)
        if s.scheme is None and s.accumulator not in ("", s.result):
            if D.dtype.itemsize > out.dtype.itemsize or s.result in ("bf16", "tf32"):
                yield deviation("result", f"the result is not rounded to {s.result}", out=s.accumulator)
            for mode, words in _MODES.items():
                if mode != s.out_rounding:
                    yield deviation("result", f"the result is rounded to {s.result} {words}", out_rounding=mode)
            for name in ("fp16", "bf16", "tf32"):
                if name != s.result and s.via is None and formats.get(name).precision >= out.precision - 3:
                    text = f"the result is rounded twice: to {name}, then to {s.result}"
                    yield deviation("result", text, via=(name, "RNE"))
        if s.flush != "result" and not (np.abs(D[np.isfinite(D)]) >= out.min_normal).all():
            yield deviation("flush", "subnormal results are flushed to zero", flush="result")
    if not s.relu and (D >= 0).all():
        yield deviation("epilogue", "negative results are replaced by zero (ReLU)", relu=True)


# --- the search among plain products


class Survivors:
    """Combinations that reproduce a few entries, then the sample, then every bit."""

    def __init__(self, p: Problem):
        self.p = p
        self.causes: list[Cause] = []
        self.end, self.complete = math.inf, True
        self.keys: dict[Any, int] = {}

    def offer(self, deviations: Deviations) -> None:
        """Confirm a combination, and keep it if it reproduces every bit."""
        p = self.p
        s = changed(p.s, deviations)
        key = _key(s, p.A.shape[1])
        text = "; ".join(d.text for d in deviations)
        if self.causes and time.perf_counter() > min(p.end, self.end):
            self.complete = False
            return
        if key in self.keys:
            same = self.keys[key]
            kinds = tuple(d.kind for d in deviations)
            if same >= 0 and "which is the same" not in self.causes[same].text and self.causes[same].kinds == kinds:
                other = f"{self.causes[same].text}, or {text}, which is the same"
                self.causes[same] = replace(self.causes[same], text=other)
            return
        self.keys[key] = -1
        if deviations and p.matches(s) and p.confirms(s):
            self.end = min(self.end, time.perf_counter() + _COUNT)
            self.keys[key] = len(self.causes)
            self.causes.append(Cause(tuple(d.kind for d in deviations), text, 0, s))


def plain_causes(
    p: Problem, reveal: Callable[[Specification], Any] | None, report: Callable[[str], None]
) -> list[Cause]:
    """The combinations of factors of a plain product that reproduce every bit, those with the fewest changes first."""
    s = p.s
    converted, level = p.converted
    rows, columns = p.few
    A, B = p.A[rows], p.B[:, columns]
    c = None if p.C is None else p.C[rows][:, columns]
    target, ignored = bits(p.D[rows][:, columns]), p.ignored[rows][:, columns]
    flush: list[Deviations] = [()]
    fmt = s.operand
    if not isinstance(fmt, str) and any(((x != 0) & (np.abs(x) < fmt.min_normal)).any() for x in (A, B)):
        flush.append((deviation("flush", f"subnormal {fmt.name} inputs are flushed to zero", flush="inputs"),))
    before = [(*conv, *f) for f in flush for conv in converted]
    out = Survivors(p)

    def evaluated(deviations: Deviations, candidates: Iterable[Candidate]) -> None:
        """Compare all orders of a list, with every conversion of the result, on the few entries."""
        one = changed(s, deviations)
        listed = list(candidates)
        if not listed:
            return
        T = np.stack([t for *_, t in listed])
        hits: list[tuple[int, int, Deviations, Candidate]] = []
        plain = None
        for ending in endings(one, p.C, p.D):
            last = changed(one, ending)
            p.tried += len(listed)
            try:
                value = finished(last, combined(last, T, c)).astype(p.D.dtype, copy=False)
            except REFUSED:
                continue
            plain = bits(value) if plain is None else plain
            if ending and np.array_equal(bits(value), plain):
                continue  # a conversion without effect
            equal = ((bits(value).reshape(T.shape) == target) | ignored).all(axis=(1, 2))
            hits += [(len(ending), int(i), ending, listed[i]) for i in np.flatnonzero(equal)]
        for _, _, ending, (build, text, fields, _) in sorted(hits, key=lambda h: h[:2]):
            order = build() if callable(build) else build
            own = not fields and (order == (s.order or KOrder()) or not text)
            over_k = () if own else (deviation("order", text, order=order, **fields),)
            out.offer((*deviations, *over_k, *ending))

    def sums(deviations: Deviations) -> Sums:
        one = changed(s, deviations)
        a, b = one.operands(A, B)
        if one.epilogue == "alpha-on-A":
            a = round_operand(a.astype(np.float64) * s.alpha, str(one.operand), "RNE")
        return Sums(one, a, b)

    def in_own_order(deviations: Deviations) -> Iterator[Candidate]:
        one = changed(s, deviations)
        with suppress(*REFUSED):
            T = evaluate(replace(one, alpha=1.0, beta=0.0, epilogue="separate", relu=False, out=None, nan=None), A, B)
            yield s.order, "", {}, T

    def in_all_orders(deviations: Deviations, every: bool = False) -> None:
        if changed(s, deviations).narrow is None and not p.over():
            with suppress(*REFUSED):
                evaluated(deviations, slices(sums(deviations), every=every))
                if not (every or out.causes):
                    evaluated(deviations, interleaved(sums(deviations)))

    def all_units() -> Iterator[Deviations]:
        for conversion in before:
            one = changed(s, conversion)
            for unit in units(one, *one.operands(A, B), level):
                last = unit[-1].fields if unit else {}
                narrow = "narrow" in last or last.get("multiply_add", ("fp32",))[0] in ("fp16", "bf16")
                if not p.coarse or narrow or str(getattr(last.get("hardware"), "d_format", "")) == "fp16":
                    yield (*conversion, *unit)

    with np.errstate(all="ignore"):
        report("orders over K")
        for conversion in () if p.coarse else before:
            in_all_orders(conversion)
        report("instructions and accumulators")
        if not out.causes:
            for deviations in all_units():
                if not (p.over() or (out.causes and len(deviations) > min(len(one.kinds) for one in out.causes))):
                    evaluated(deviations, in_own_order(deviations))
        if not (out.causes or p.coarse):
            report("slices of every length")
            for conversion in before:
                in_all_orders(conversion, True)
        report("libraries and schemes")
        for deviations in () if out.causes else _special(p):
            if not p.over():
                p.tried += 1
                out.offer(deviations)
        if not out.causes and reveal is not None:
            report("probes")
            with suppress(*REFUSED):
                order = tree.order_of(reveal(s))
                found = (deviation("order", f"{describe_order(order)}, found by probes", order=order),)
                for deviations in all_units():
                    evaluated((*deviations, *found), in_own_order((*deviations, *found)))
        stages = (
            ("instructions, accumulators and orders", all_units(), False),
            ("units with other constants", ((*b, d) for b in before for d in other_units(s)), None),
            ("slices of every length on all units", all_units(), True),
        )
        for text, many, every in stages:
            report(text)
            for deviations in () if out.causes else many:
                if p.over():
                    break
                if every is None:
                    evaluated(deviations, in_own_order(deviations))
                in_all_orders(deviations, bool(every))
    p.counted = out.complete
    return sorted(out.causes, key=lambda cause: len(cause.kinds))


def indistinguishable(p: Problem) -> tuple[list[tuple[str, Specification]], int]:
    """Other orders, instructions and schemes that give a result without mismatches, and the number tried."""
    s, K = p.s, p.A.shape[1]
    own = cache(lambda: _key(replace(s, scheme=None), K))
    alike: list[tuple[str, Specification]] = []
    for listed in _alternatives(p):
        for d in islice(listed, _ALIKE):
            if p.over():
                break
            p.tried += 1
            other = changed(s, (d,))
            if not p.matches(other):
                continue
            if other.scheme == s.scheme and _key(replace(other, scheme=None), K) == own():
                p.tried -= 1  # the same additions in other words
            elif p.confirms(other):
                alike.append((d.text, other))
    return alike, p.tried


def _alternatives(p: Problem) -> list[Iterator[Deviation]]:
    """The likeliest deviations in the order, the promotion, the instruction and the scheme."""
    s, K = p.s, p.A.shape[1]
    other_orders = (deviation("order", describe_order(KOrder(n)), order=KOrder(n)) for n in lengths_of(K)[3:])
    if s.scheme is not None:
        return [
            other_orders,
            promotions(s, K),
            (d for d in options(s) if d.kind == "hardware"),
            other_schemes(s, p.A, p.D),
        ]
    rows = [r for r in mma.catalog.rows() if s.spec and (r.a_format, r.d_format) == (s.spec.a_format, s.spec.d_format)]
    instructions = chain(
        other_instructions(s.spec, rows) if s.spec else (),
        (
            deviation("hardware", "ordinary cores: FMAs in fp32", hardware=simt.SPECS["fp32"])
            for _ in range(s.spec != simt.SPECS["fp32"] and p.A.dtype != np.float64)
        ),
    )
    return [other_orders, instructions, other_schemes(s, p.A, p.D)]


def _special(p: Problem) -> Iterator[Deviations]:
    """Products of vendor libraries, C in the accumulator, and split schemes."""
    s = p.s
    if p.C is not None and s.alpha == 1 and s.epilogue != "first":
        yield (deviation("epilogue", f"the epilogue: {EPILOGUES['first']}", epilogue="first"),)
    M, N, K = len(p.A), p.B.shape[1], p.A.shape[1]
    if p.A.dtype in (np.float32, np.float64) and s.accumulator in ("fp32", "fp64"):
        routine: Any = "dgemm" if p.A.dtype == np.float64 else "sgemm"
        plans = set()
        hardware = simt.SPECS["fp64" if p.A.dtype == np.float64 else "fp32"]
        for kernel, versions in openblas.kernels().items():
            for version, layout in product(reversed(versions), ("NN", "TN")):
                blocks = openblas.blocking(routine, kernel, version)
                with suppress(InputError):
                    plan = openblas.plan(blocks, layout, (M, N, K))  # type: ignore[arg-type]
                    regions = str([(r.tolist(), c.tolist(), lanes) for r, c, lanes in plan.regions])
                    key = (str(plan.panels), plan.adds, plan.lanes, regions, blocks.fused)
                    if key not in plans:
                        plans.add(key)
                        text = f"OpenBLAS {version} with kernel {kernel} ({routine}, layout {layout})"
                        name = ("openblas", kernel, version, layout)
                        yield (deviation("library", text, library=name, hardware=hardware, order=None),)
    kinds = {
        "fp16": ("fp16", "fp16->fp16"),
        "bf16": ("bf16",),
        "fp32": ("tf32", "fp32"),
        "tf32": ("tf32",),
        "fp64": ("fp64",),
    }
    for kind, layout in product(kinds.get(str(s.operand), ()), ("NN", "TN")):
        with suppress(InputError):
            row = library.lookup("cublas", kind, (M, N, K), layout=layout)  # type: ignore[arg-type]
            text = f"cuBLAS {row.version} on {row.hardware} ({kind}, layout {layout})"
            name = ("cublas", row.hardware, row.version, f"{kind} {layout}")
            yield (deviation("library", text, library=name, hardware=row.spec, order=None),)
    for d in other_schemes(s, p.A, p.D):
        yield (d,)


# --- the search among schemes


def other_schemes(s: Specification, A: Array, D: Array) -> Iterator[Deviation]:
    """Other schemes for the same operands."""
    wanted = "fp64" if A.dtype == np.float64 else "fp32"
    if D.dtype != formats.get(wanted).dtype or (s.scheme is None and A.dtype != D.dtype):
        return
    arch = s.spec.architecture if s.spec is not None else "hopper"
    hardware = arch if arch in mma.catalog.architectures() else "hopper"
    order = s.order if isinstance(s.order, KOrder) else None
    own = s.scheme.name if isinstance(s.scheme, Scheme) else ""
    all_schemes = [schemes.get(name) for name in schemes.names() if name != own]
    others = [
        (scheme, f"the scheme is {scheme.name}", order) for scheme in all_schemes if scheme.operand.name == wanted
    ]
    for step in (32, 64, 16, 128) if wanted == "fp32" else ():  # tf32x3 of Triton: the accumulator restarts every step
        scheme = schemes.build("ootomo-tf32", {**_TF32X3, "step": step, "promote": step})
        others.append((scheme, f"three products of tf32 words every {step} of k (tf32x3)", None))
    plain: dict[str, Any] = {"inputs": None, "join": None, "stored": None}
    ranges = {s.on_range: ""} if np.isfinite(A).all() else {"propagate": "", "hardware": _SPLIT_INF}
    for (scheme, text, over_k), (on_range, more) in product(others, ranges.items()):
        with suppress(InputError):  # the hardware lacks the instruction
            fields = {"scheme": scheme, "hardware": scheme.spec(hardware), "order": over_k, "on_range": on_range}
            yield deviation("scheme", text + more, **fields, **plain)


def options(s: Specification) -> Iterator[Deviation]:
    """Single options of the scheme with other values, and its instruction on other hardware."""
    scheme, spec = s.scheme, s.spec
    assert isinstance(scheme, Scheme)
    known = {option.name for option in scheme.info.options} - {scheme.promote_option}
    kept = scheme.kept() if hasattr(scheme, "kept") else ()
    for name, values in _OPTIONS.items():
        if name == "products" and 0 < len(kept) <= 4:
            values = tuple(permutations(kept))
        for value in values if name in known else ():
            kind = "order of terms" if name in ("products", "step", "combine") else "option"
            yield from option(s, name, value, kind)
    if scheme.operand.name == "fp32" and len(kept) > 1:
        for left_out in kept:
            yield from option(s, "products", tuple(p for p in kept if p != left_out), "order of terms")
    rows: list[Any] = []
    for arch in mma.catalog.architectures() if spec is not None else ():
        with suppress(InputError):
            rows.append(scheme.spec(arch))
    yield from other_instructions(spec, rows) if spec is not None else ()


def option(s: Specification, name: str, value: Any, kind: str) -> Iterator[Deviation]:
    """One option of the scheme with another value, if the scheme admits it."""
    scheme, spec = s.scheme, s.spec
    assert isinstance(scheme, Scheme)
    if getattr(scheme, name) != value:
        shown = ",".join(value) if isinstance(value, tuple) else value
        with suppress(InputError):
            other = schemes.build(scheme, {name: value})
            other.check_order(s.order, {name: value})
            if name in ("instruction", "fmt", "accumulator") and spec is not None:
                spec = other.spec(spec.architecture)
            yield deviation(kind, f"{scheme.name} with {name} = {shown}", scheme=other, hardware=spec)


def promotions(s: Specification, K: int) -> Iterator[Deviation]:
    """Promotion intervals of a scheme."""
    name = s.scheme.promote_option  # type: ignore[union-attr]
    if s.spec is None or not hasattr(s.scheme, name) or getattr(s.order, "promote", None) is not None:
        return
    lengths = {in_k(getattr(s.scheme, name), s.spec)}  # "instruction" and its length in k are one deviation
    for value in (None, "instruction", *_PROMOTIONS, "2 instructions", "4 instructions", "8 instructions"):
        length = in_k(value, s.spec)
        if length not in lengths and (length is None or value == "instruction" or length < K):
            lengths.add(length)
            yield from option(s, name, value, "promotion")


def scheme_deviations(p: Problem, s: Specification) -> Iterator[Deviation]:
    """Every deviation of a scheme in one respect."""
    K = p.A.shape[1]
    if s.on_range != "hardware" and not (np.isfinite(p.A).all() and np.isfinite(p.B).all()):
        yield deviation("option", _SPLIT_INF.removeprefix(", and "), on_range="hardware")
    yield from (d for c in p.converted[0] for d in c)
    yield from (e[0] for e in endings(s, p.C, p.D) if len(e) == 1)
    yield from options(s)
    yield from promotions(s, K)
    promote = getattr(s.order, "promote", None)
    for length in lengths_of(K):
        for tile in (None, *_TILES[:3]):
            if tile is None or (tile < length and (length % tile or K % length % tile)):
                order = KOrder(length, tile, residue_first=tile is not None)
                yield deviation("order", describe_order(order), order=replace(order, promote=promote))
    yield from other_schemes(s, p.A, p.D)


def scheme_causes(p: Problem, report: Callable[[str], None]) -> list[Cause]:
    """The single deviations of a scheme that reproduce every bit, or pairs: the nearest ones with all others."""
    out = Survivors(p)
    nearness: list[tuple[float, Deviations]] = []
    seen: set[bytes] = set()

    def attempt(deviations: Deviations) -> None:
        s = changed(p.s, deviations)
        p.tried += 1
        with suppress(*REFUSED), np.errstate(all="ignore"):
            value = p.value(s)
            if value.shape == p.part.shape and bits(value).tobytes() not in seen:
                steps = distance(p.part, value, s.result if s.result in formats.names() else "fp32")
                if not steps.any():
                    out.offer(deviations)
                    return
                seen.add(bits(value).tobytes())
                nearness.append((float(np.log2(1.0 + np.minimum(steps, 2**40)).mean()), deviations))

    report("one change")
    for d in scheme_deviations(p, p.s):
        if not p.over():
            attempt((d,))
    near = sorted(nearness, key=lambda n: n[0])[: 3 * _BEAM]
    # promotions and conversions may not show alone; orders and schemes bring a result nearer by chance
    starts = [d for _, d in near if d[0].kind not in ("order", "hardware", "scheme")][:_BEAM]
    starts += [d for _, d in nearness if d[0].kind in ("promotion", "result", "inputs") and d not in starts]
    starts += [d for _, d in near if d not in starts][:2]
    for start in () if out.causes else starts:
        report(f"{start[0].text}, and")
        for d in scheme_deviations(p, changed(p.s, start)):
            if p.over() or out.causes:
                break
            if d.kind != start[0].kind and (start[0].kind, d.kind) != ("scheme", "inputs"):
                attempt((*start, d))
    return out.causes


def search(
    p: Problem, reveal: Callable[[Specification], Any] | None, progress: Callable[[str, int], None] | None
) -> list[Cause]:
    """The combinations of deviations that reproduce a result."""

    def report(what: str) -> None:
        if progress is not None:
            progress(what, p.tried)

    return plain_causes(p, reveal, report) if p.s.scheme is None else scheme_causes(p, report)


def _key(s: Specification, K: int) -> Any:
    """Equal for specifications that add the same numbers in the same places."""
    order: Any = s.order
    spec, plain = s.spec, s.scheme is None
    if spec is not None and plain and (order is None or isinstance(order, KOrder)):
        order = tree.from_order(order or KOrder(), K, simt.SPECS["fp32"] if s.multiply_add else spec)
    if not plain and isinstance(order, KOrder):
        order = str(order.segments(K)) + order.join
    elif spec is not None and order is not None:
        order = tree.canonical(order, tree.exact_products(spec))
    return replace(s, order=None), order
