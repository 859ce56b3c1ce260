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
from functools import cache, cached_property, partial
from itertools import chain, islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, library, mma, simt
from fpemu.conformance.compare import distance
from fpemu.conformance.deviations import (
    FORMATS,
    MODES,
    NARROW,
    SPLIT_INF,
    Deviation,
    Deviations,
    changed,
    deviation,
    endings,
    options,
    other_instructions,
    other_schemes,
    other_units,
    units,
)
from fpemu.conformance.orders import (
    TILES,
    Candidate,
    Sums,
    complexity,
    interleaved,
    lengths_of,
    nested,
    slices,
    workspaces,
)
from fpemu.conformance.specification import (
    EPILOGUES,
    Specification,
    combined,
    describe_order,
    evaluate,
    finished,
    round_operand,
)
from fpemu.errors import GuaranteeError, InputError
from fpemu.library import openblas
from fpemu.mma import KOrder, MmaSpec, tree
from fpemu.mma.device import Device
from fpemu.probing.callables import bits
from fpemu.schemes.baselines import Baseline

Array = NDArray[Any]
Index = NDArray[np.int64]
_WORK = 2e6  # multiply-adds of one alternative on the sample
_COUNT, _TRIED, _EQUAL = 8.0, 5000, 64  # after the first cause: seconds and alternatives for others, most of them
_ALIKE = 6  # deviations of a kind that are compared with a result without mismatches
_BEAM = 6  # deviations of a scheme that are combined with all others
REFUSED = (InputError, GuaranteeError)  # the product of an alternative is not defined


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
        identify: bool = False,
    ):
        self.s, self.A, self.B, self.C, self.D, self.device = specification, A, B, C, D, device
        self.end, self.most, self.tried = end, most, 0
        self.causes: list[Cause] = []  # the combinations that reproduce every bit
        self.keys: dict[Any, int] = {}  # of all combinations, the index of their cause or -1
        self.last = math.inf, math.inf  # time, and number of alternatives, at which the search for other causes ends
        self.identify = identify  # the unit is not specified
        self.compiled: set[MmaSpec | None] = set()
        self.ignored = np.zeros(D.shape, bool) if ignored is None else ignored  # entries with another cause
        wrong = (bits(D) != bits(expected)) & ~self.ignored
        K, (M, N) = A.shape[1], D.shape
        lines = int(np.clip(np.sqrt(_WORK / K), 4, 12))
        self.rows, self.columns = _lines(wrong, 1, lines), _lines(wrong, 0, lines)
        self.expected = expected[self.rows][:, self.columns]
        own = self.expected if specification.scheme is None else self.value(specification, self.rows, self.columns)
        if not np.array_equal(bits(own), bits(self.expected)):
            self.expected = expected
            self.rows, self.columns = np.arange(M), np.arange(N)  # the scheme's rows are not independent
        self.part = D[self.rows][:, self.columns]
        # the entries on which all combinations are tried: 4 or 16, with mismatches among them
        few = 4 if K <= 8192 else 2
        self.few = _lines(wrong[self.rows], 1, few), _lines(wrong[:, self.columns], 0, few)
        self.few = self.rows[self.few[0]], self.columns[self.few[1]]

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
        fits = [f for f in FORMATS if formats.get(f).contains(self.part).all()]
        unit = max((formats.get(f).unit_roundoff for f in fits), default=0.0)
        error = error[np.isfinite(error)]
        typical = float(np.sqrt(np.mean(error * error))) if error.size else np.inf
        return self.part.size >= 16 and max(16 * typical, 4 * unit, 4 * NARROW) < self.converted[1] < np.inf

    def spent(self) -> bool:
        """Whether the budget of the search is spent."""
        return self.tried >= self.most or time.perf_counter() > self.end

    def over(self) -> bool:
        """Whether the search ends: the budget is spent, or that of other combinations with the same bits."""
        many = len(self.causes) >= _EQUAL or self.tried > self.last[1]
        return self.spent() or many or time.perf_counter() > self.last[0]

    def compile(self, s: Specification) -> None:
        """Compile the kernel of an instruction; the time does not count in the budget."""
        start = time.perf_counter()
        if s.spec not in self.compiled and not s.is_integer:
            self.compiled.add(s.spec)
            evaluate(
                replace(s, length=s.spec.k if s.spec else 1), self.A, self.B, self.C, self.few[0][:1], self.few[1][:1]
            )
        self.end += time.perf_counter() - start

    def value(self, s: Specification, rows: Index | None = None, columns: Index | None = None) -> Array:
        """The specified D, or its given rows and columns."""
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
            return self.equal(self.value(s, self.rows, self.columns), self.rows, self.columns)
        return False

    def confirms(self, s: Specification) -> bool:
        """Whether a specification reproduces every bit of the result: by parts of its rows, the last ones first."""
        if s.library is not None or s.scheme is not None:
            return self.equal(self.value(s))
        step = max(8, int(2e8 / (self.A.shape[1] * self.D.shape[1])))
        for first in range(0, len(self.D), step):
            rows = np.arange(first, min(first + step, len(self.D)))
            if not self.equal(self.value(s, rows), rows):
                return False
        return True

    def offer(self, deviations: Deviations) -> None:
        """Confirm a combination, and keep it if it reproduces every bit."""
        found = min((len(cause.kinds) for cause in self.causes), default=math.inf)
        if not deviations or len(deviations) > found or (self.causes and self.over()):
            return
        s = changed(self.s, deviations)
        if not self.matches(s):
            return
        key = _key(s, self.A.shape[1])
        text = "; ".join(d.text for d in deviations)
        if key in self.keys:
            same = self.keys[key]
            kinds = tuple(d.kind for d in deviations)
            if same >= 0 and "which is the same" not in self.causes[same].text and self.causes[same].kinds == kinds:
                simple, long = sorted((self.causes[same].text, text), key=len)
                other = simple if long.startswith(simple) else f"{simple}, or {long}, which is the same"
                self.causes[same] = replace(self.causes[same], text=other)
            return
        self.keys[key] = -1
        if self.confirms(s):
            self.last = min(self.last, (time.perf_counter() + _COUNT, self.tried + _TRIED))
            self.keys[key] = len(self.causes)
            self.causes.append(Cause(tuple(d.kind for d in deviations), text, 0, s))


def _lines(wrong: NDArray[np.bool_], axis: int, count: int) -> Index:
    """Rows (axis 1) or columns: half of them with the most mismatches, the others spread over the matrix."""
    amount = wrong.sum(axis=axis)
    worst = np.argsort(-amount, kind="stable")[: (count + 1) // 2]
    rest = np.setdiff1d(np.linspace(0, len(amount) - 1, min(count, len(amount))).astype(np.int64), worst)
    keep = rest[np.linspace(0, len(rest) - 1, min(count // 2, len(rest))).astype(np.int64)]
    return np.sort(np.concatenate([worst, keep]))


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
        for name, mode in (own, *((n, m) for n in dict.fromkeys((fmt, *FORMATS)) for m in MODES)):
            if not s.is_integer and np.abs(wide[np.isfinite(wide)]).max(initial=0) <= formats.get(name).max:
                with np.errstate(all="ignore"), suppress(InputError):
                    values.setdefault(round_operand(X, name, mode).astype(np.float64).tobytes(), (name, mode))
        sides.append([(pair, np.frombuffer(data).reshape(X.shape)) for data, pair in values.items()])
    if s.is_integer or not all(sides):
        return [()], 1.0
    size = np.sqrt((A.astype(np.float64) ** 2) @ (B.astype(np.float64) ** 2)) + 1e-300
    found = []
    usable = np.isfinite(target) & (target != 0)  # zeros may come from ReLU
    usable = usable if usable.any() else np.isfinite(target)
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
        words = {name: f"rounded to {name[0]} {MODES[name[1]]} first" for name in (a, b)}
        if a == b:
            text = f"A and B are {words[a]}"
        else:
            text = " and ".join(f"{x} is {words[n]}" for x, n, own in (("A", a, own_a), ("B", b, own_b)) if n != own)
        chosen.append((deviation("inputs", text, inputs=a, inputs_b=None if a == b else b),))
    return chosen, least


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

    def evaluated(deviations: Deviations, candidates: Iterable[Candidate], *, plainly: bool = False) -> None:
        """Compare all orders of a list, with every conversion of the result or `plainly`, on the few entries."""
        one = changed(s, deviations)
        listed = sorted(candidates, key=lambda candidate: (bool(candidate[2]), complexity(candidate[0])))
        if not listed:
            return
        T = np.stack([t for *_, t in listed])
        hits: list[tuple[int, int, Deviations, Candidate]] = []
        plain = None
        for ending in [()] if plainly else endings(one, p.C, p.D):
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
        for count, (_, _, ending, (build, text, fields, _)) in enumerate(sorted(hits, key=lambda h: h[:2])):
            if count >= _EQUAL and p.over():
                break
            order = build() if callable(build) else build
            own = not fields and (order == (s.order or KOrder()) or not text)
            over_k = () if own else (deviation("order", text, order=order, **fields),)
            p.offer((*deviations, *over_k, *ending))

    def in_own_order(deviations: Deviations) -> None:
        one = changed(s, deviations)
        p.compile(one)
        T = evaluate(replace(one, alpha=1.0, beta=0.0, epilogue="separate", relu=False, out=None, nan=None), A, B)
        evaluated(deviations, [(s.order, "", {}, T)])

    def in_orders(listed: Callable[[Sums], Iterable[Candidate]], plainly: bool = False) -> Callable[[Deviations], None]:
        """The attempt of all orders that a function lists."""

        def attempt(deviations: Deviations) -> None:
            one = changed(s, deviations)
            if one.narrow is None:
                p.compile(one)
                a, b = one.operands(A, B)
                if one.epilogue == "alpha-on-A":
                    a = round_operand(a.astype(np.float64) * s.alpha, str(one.operand))
                evaluated(deviations, listed(Sums(one, a, b)), plainly=plainly)

        return attempt

    def by_itself(deviations: Deviations) -> None:
        p.tried += 1
        p.offer(deviations)

    def all_units() -> Iterator[Deviations]:
        for conversion in before:
            one = changed(s, conversion)
            for unit in units(one, *one.operands(A, B), level):
                last = unit[-1].fields if unit else {}
                narrow = "narrow" in last or last.get("multiply_add", ("fp32",))[0] in ("fp16", "bf16")
                if not p.coarse or narrow or str(getattr(last.get("hardware"), "d_format", "")) == "fp16":
                    yield (*conversion, *unit)

    def probed() -> Iterator[Deviations]:
        if reveal is not None:
            with suppress(*REFUSED):
                order = tree.order_of(reveal(s))
                found = deviation("order", f"{describe_order(order)}, found by probes", order=order)
                yield from ((*unit, found) for unit in all_units())

    likely = () if p.coarse else before
    constants = ((*b, d) for b in before for d in other_units(s))
    every = in_orders(partial(slices, every=True))
    in_order = in_orders(slices), in_orders(nested)
    plain = [("orders over K", likely, in_order)]
    on_units = [("slices on other instructions", all_units(), (in_orders(slices, plainly=True),))]
    stages: list[tuple[str, Iterable[Deviations], tuple[Callable[[Deviations], None], ...]]] = [
        *([] if p.identify else plain),
        ("partial sums in a workspace", before, (in_orders(workspaces),)),
        ("instructions and accumulators", all_units(), (in_own_order,)),
        *([] if p.identify else on_units),
        ("libraries", libraries(p), (by_itself,)),
        *(plain if p.identify else []),
        ("accumulators that alternate over K", likely, (in_orders(interleaved),)),
        *(on_units if p.identify else []),
        ("schemes", _special(p), (by_itself,)),
        ("slices of every length", likely, (every,)),
        ("probes", probed(), (in_own_order,)),
        ("instructions, accumulators and orders", all_units(), (*in_order, in_orders(interleaved))),
        ("units with other constants", constants, (in_own_order, *in_order, in_orders(interleaved))),
        ("slices of every length on all units", all_units(), (every,)),
    ]
    with np.errstate(all="ignore"):
        for text, many, attempts in stages:
            if p.causes:
                break
            report(text)
            for deviations, attempt in ((d, a) for d in many for a in attempts):
                if p.over():
                    break
                if not p.causes or len(deviations) <= min(len(one.kinds) for one in p.causes):
                    with suppress(*REFUSED):
                        attempt(deviations)
    return sorted(p.causes, key=lambda cause: (len(cause.kinds), *complexity(cause.specification.order)))


def indistinguishable(p: Problem) -> tuple[list[tuple[str, Specification]], int]:
    """Other orders, instructions and schemes that give a result without mismatches, and the number tried."""
    s, K = p.s, p.A.shape[1]
    plain = s
    own = cache(lambda: _key(replace(s, scheme=None), K))
    alike: list[tuple[str, Specification]] = []
    orders = (deviation("order", describe_order(KOrder(n)), order=KOrder(n)) for n in lengths_of(K)[3:])
    lists: list[Iterable[Deviation]] = [orders]
    if p.identify:  # among the units; a scheme would have to be named
        plain = replace(s, multiply_add=None, narrow=None, library=None)
        lists.append(d[0] for d in chain(units(s, *s.operands(p.A, p.B), 0.0), libraries(p)) if len(d) == 1)
    elif s.scheme is None and s.spec is not None:
        own_formats = s.spec.a_format, s.spec.d_format
        rows = [r for r in mma.catalog.rows() if (r.a_format, r.d_format) == own_formats]
        lists.append(other_instructions(s.spec, rows))
        if s.spec != simt.SPECS["fp32"] and p.A.dtype != np.float64:
            lists.append([deviation("hardware", "ordinary cores: FMAs in fp32", hardware=simt.SPECS["fp32"])])
    elif s.scheme is not None:
        single = list(options(s, K))
        lists += [[d for d in single if d.kind == kind] for kind in ("promotion", "hardware")]
    if not p.identify:
        lists.append(other_schemes(s, p.A, p.D))
    for d in chain.from_iterable(islice(listed, None if p.identify else _ALIKE) for listed in lists):
        if p.over():
            break
        p.tried += 1
        other = changed(plain, (d,))
        if p.matches(other):
            if other.scheme == s.scheme and _key(replace(other, scheme=None), K) == own():
                p.tried -= 1  # the same additions in other words
            elif p.confirms(other):
                alike.append((d.text, other))
    return alike, p.tried


def libraries(p: Problem) -> Iterator[Deviations]:
    """Products of OpenBLAS's kernels, one for each arithmetic, and of cuBLAS."""
    s = p.s
    M, N, K = len(p.A), p.B.shape[1], p.A.shape[1]
    if p.A.dtype in (np.float32, np.float64) and s.accumulator in ("fp32", "fp64"):
        routine: Any = "dgemm" if p.A.dtype == np.float64 else "sgemm"
        hardware = simt.SPECS["fp64" if p.A.dtype == np.float64 else "fp32"]
        plans: dict[str, list[tuple[str, str, Any, str]]] = {}
        for kernel, versions in openblas.kernels().items():
            for version, layout, threads in product(reversed(versions), ("NN", "TN"), ("", "threads")):
                blocks = openblas.blocking(routine, kernel, version)
                blocks = blocks.threaded() if threads else blocks
                with suppress(InputError):
                    plan = openblas.element_orders(blocks, layout, (M, N, K))  # type: ignore[arg-type]
                    regions = [(r.tolist(), c.tolist(), lanes) for r, c, lanes in plan.regions]
                    key = str((plan.panels, plan.adds, plan.lanes, regions, blocks.fused))
                    if not (threads and regions):  # threads divide D, and the positions of interleaved chains
                        plans.setdefault(key, []).append((kernel, version, layout, threads))
        for same in plans.values():
            kernel, version, layout, threads = same[0]
            others = [name for name in dict.fromkeys(name for name, *_ in same) if name != kernel]
            several = ", several threads" if threads else ""
            text = f"OpenBLAS {version} with kernel {kernel} ({routine}, layout {layout}{several})"
            text += f" or an equal one ({', '.join(others)})" if others else ""
            name: tuple[str, ...] = ("openblas", kernel, version, layout, threads)
            yield (deviation("library", text, library=name, hardware=hardware, order=None),)
    kinds = {"fp16": ("fp16", "fp16->fp16"), "fp32": ("tf32", "fp32", "bf16")}
    fmt = {np.float16: "fp16"}.get(p.A.dtype.type, str(s.operand))
    for kind, layout in product(kinds.get(fmt, (fmt,)), ("NN", "TN")):
        with suppress(InputError):
            row = library.lookup("cublas", kind, (M, N, K), layout=layout)  # type: ignore[arg-type]
            text = f"cuBLAS {row.version} on {row.hardware} ({kind}, layout {layout})"
            name = ("cublas", row.hardware, row.version, f"{kind} {layout}")
            yield (deviation("library", text, library=name, hardware=row.spec, order=None),)


def _special(p: Problem) -> Iterator[Deviations]:
    """C in the accumulator, and split schemes."""
    s = p.s
    if p.C is not None and s.alpha == 1 and s.epilogue != "first":
        yield (deviation("epilogue", f"the epilogue: {EPILOGUES['first']}", epilogue="first"),)
    for d in other_schemes(s, p.A, p.D):
        yield (d,)


def scheme_deviations(p: Problem, s: Specification) -> Iterator[Deviation]:
    """Every deviation of a scheme in one respect."""
    K = p.A.shape[1]
    if s.on_range != "hardware" and not (np.isfinite(p.A).all() and np.isfinite(p.B).all()):
        yield deviation("option", SPLIT_INF.removeprefix(", and "), on_range="hardware")
    yield from (d for c in p.converted[0] for d in c)
    yield from (e[0] for e in endings(s, p.C, p.D) if len(e) == 1)
    yield from options(s, K)
    promote = getattr(s.order, "promote", None)
    for length in lengths_of(K):
        for tile in (None, *TILES[:3]):
            if tile is None or (tile < length and (length % tile or K % length % tile)):
                order = KOrder(length, tile, residue_first=tile is not None)
                yield deviation("order", describe_order(order), order=replace(order, promote=promote))
    yield from other_schemes(s, p.A, p.D)


def scheme_causes(p: Problem, report: Callable[[str], None]) -> list[Cause]:
    """The single deviations of a scheme that reproduce every bit, or pairs: the nearest ones with all others."""
    nearness: list[tuple[float, Deviations]] = []
    seen: set[bytes] = set()

    def attempt(deviations: Deviations) -> None:
        s = changed(p.s, deviations)
        p.tried += 1
        with suppress(*REFUSED), np.errstate(all="ignore"):
            value = p.value(s, p.rows, p.columns)
            if value.shape == p.part.shape and bits(value).tobytes() not in seen:
                steps = distance(p.part, value, s.result if s.result in formats.names() else "fp32")
                if not steps.any():
                    p.offer(deviations)
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
    for start in () if p.causes else starts:
        report(f"{start[0].text}, and")
        for d in scheme_deviations(p, changed(p.s, start)):
            if p.over() or p.causes:
                break
            if d.kind != start[0].kind and (start[0].kind, d.kind) != ("scheme", "inputs"):
                attempt((*start, d))
    return p.causes


def search(
    p: Problem, reveal: Callable[[Specification], Any] | None, progress: Callable[[str, int], None] | None
) -> list[Cause]:
    """The combinations of deviations that reproduce a result."""

    def report(what: str) -> None:
        if progress is not None:
            progress(what, p.tried)

    if isinstance(p.s.scheme, Baseline):  # chains of FMAs, as of a plain product
        p.s = replace(p.s, scheme=None, hardware=simt.SPECS[p.s.scheme.operand.name], on_range="raise")
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
