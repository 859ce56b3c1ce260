"""The likeliest cause of mismatches: deviations evaluated on a sample, and confirmed on the whole result.

A deviation changes the specification in one respect: orders over K of libraries and kernels, other instructions, other
options of the scheme, other schemes. Single deviations come first. If none reproduces all bits, the nearest ones are
combined with every other. A deviation that reproduces all bits is an explanation; one that only removes mismatches
explains a part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice, permutations, product, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.conformance.compare import distance
from fpemu.conformance.specification import EPILOGUES, Specification, describe_order, evaluate
from fpemu.errors import GuaranteeError, InputError
from fpemu.mma import KOrder, MmaSpec, tree
from fpemu.mma.device import Backend, Device
from fpemu.mma.spec import EVIDENCE
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing.callables import bits
from fpemu.schemes import Scheme
from fpemu.schemes.words import in_k

Array = NDArray[Any]
_STEPS = (None, "instruction", 16, 32, 64, 128)
_ROUNDINGS = ("RNE", "RZ", "RNA", "bit-cut")
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "combine": ("term-wise", "element-wise"),
    "products": (),  # permutations
    "step": _STEPS,
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
_MODES = {"RNE": "to nearest even", "RZ": "toward zero", "RNA": "to nearest, ties away"}
_FACTORS = {
    "BA": "B A, the operands in the other order",
    "A'B": "the transpose of A times B",
    "AB'": "A times the transpose of B",
    "(AB)'": "the transpose of A B",
    "A'B'": "the transpose of A times the transpose of B",
}
_GRAINS = (8, 16, 32, 64, 128, 1, 2, 4)
_TILES = (64, 32, 128, 16, 8, 256)
_PROMOTIONS = (16, 32, 64, 128, 256, 512)
_WORK = 2e6  # multiply-adds of one deviation on the sample
_LINES = (4, 12)  # least and largest number of rows and columns of the sample
_BEAM = 6  # deviations that are combined with all others
_LISTED = 8  # explanations confirmed on the whole result
_PARTS = 3  # partial explanations reported
_ALIKE = 6  # deviations of a kind that are compared with a result without mismatches


@dataclass(frozen=True)
class Deviation:
    """Change of a specification in one respect."""

    kind: str  # the respect: "order", "promotion", "inputs", "epilogue", "accumulator", "hardware", "scheme" ...
    text: str  # the change in words
    fields: dict[str, Any]  # the changed fields


Deviations = tuple[Deviation, ...]


def deviation(kind: str, text: str, **fields: Any) -> Deviation:
    """A deviation that sets these fields."""
    return Deviation(kind, text, fields)


def other_instructions(spec: MmaSpec, rows: list[MmaSpec]) -> Iterator[Deviation]:
    """One deviation for each arithmetic among catalogue rows other than the spec's, with all hardware that has it."""

    def arithmetic(row: MmaSpec) -> tuple[Any, ...]:
        """The fields that determine the bits of a chain."""
        rounding = (row.F, row.E0, row.final, row.fraction_bits, row.nan_code)
        return row.a_format, row.d_format, row.arithmetic, row.block, *rounding, row.rules.via is not None and row.k

    evidence = list(EVIDENCE)
    groups: dict[Any, list[MmaSpec]] = {}
    for row in sorted(rows, key=lambda r: (r.architecture != spec.architecture, evidence.index(r.evidence))):
        groups.setdefault(arithmetic(row), []).append(row)
    groups.pop(arithmetic(spec), None)
    for first, *same in groups.values():
        others = [arch for arch in dict.fromkeys(row.architecture for row in same) if arch != first.architecture]
        text = f"the instruction is {first.name}" + (f" (or an equal one of {', '.join(others)})" if others else "")
        yield deviation("hardware", text, hardware=first)


def _likely_orders(K: int, *, promoted: bool) -> Iterator[KOrder]:
    """Orders of libraries and kernels: tiles, slices, slices with tiles, other reductions of the slices."""
    yield KOrder()
    for tile in _TILES:
        if tile < K and K % tile:
            yield KOrder(tile=tile, residue_first=True)
    lengths = [2**i for i in range(4, 14)]
    for slices in (*range(2, 17), 24, 32):  # of about equal length, rounded up to whole grains
        length = -(-K // slices)
        lengths += [-(-length // grain) * grain for grain in _GRAINS]
    lengths = [length for length in dict.fromkeys(lengths) if length < K]
    for length in lengths:
        yield KOrder(length)
    for length, tile in product(lengths, _TILES[:3]):
        if tile < length and (length % tile or K % length % tile):
            yield KOrder(length, tile, residue_first=True)
    for length in lengths:
        for join in ("pairwise", "descending") if 2 * length < K else ("descending",) if promoted else ():
            yield KOrder(length, join=join)


def dealt(K: int, lanes: int, chunk: int, spec: MmaSpec) -> Tree:
    """Several accumulators that alternate over chunks of K and are added at the end (sliced K)."""
    parts = []
    for lane in range(lanes):
        blocks = tuple(
            tuple(range(k, min(k + spec.block, start + chunk, K)))
            for start in range(lane * chunk, K, lanes * chunk)
            for k in range(start, min(start + chunk, K), spec.block)
        )
        if blocks:
            parts.append(Chain(blocks, spec.rules.kind))
    return Sum(tuple(parts)) if len(parts) > 1 else parts[0]


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
    for scheme, text, over_k in others:
        with suppress(InputError):  # the hardware lacks the instruction
            yield deviation("scheme", text, scheme=scheme, hardware=scheme.spec(hardware), order=over_k, **plain)


def options(s: Specification) -> Iterator[Deviation]:
    """Single options of the scheme with other values, and its instruction on other hardware."""
    scheme, spec = s.scheme, s.spec
    if not isinstance(scheme, Scheme):
        return
    known = {option.name for option in scheme.info.options} - {scheme.promote_option}
    kept = scheme.kept() if hasattr(scheme, "kept") else ()
    for name, values in _OPTIONS.items():
        if name == "products" and 0 < len(kept) <= 4:
            values = tuple(permutations(kept))
        for value in values if name in known else ():
            kind = "order of terms" if name in ("products", "step", "combine") else "option"
            yield from option(s, name, value, kind)
    if scheme.operand.name == "fp32" and kept and len(kept) > 1:
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
            changed = schemes.build(scheme, {name: value})
            changed.check_order(s.order, {name: value})
            if name in ("instruction", "fmt", "accumulator") and spec is not None:
                spec = changed.spec(spec.architecture)
            yield deviation(kind, f"{scheme.name} with {name} = {shown}", scheme=changed, hardware=spec)


def single_deviations(
    s: Specification, A: Array, B: Array, C: Array | None, D: Array, factor: float = 1.0
) -> Iterator[Deviation]:
    """Every deviation in one respect, for these operands and a result that is about `factor` times the specified."""
    K = A.shape[1]
    yield from chain(_operands(s, A, B, factor), _inputs(s, A, B), _results(s, D), _epilogues(s, C), options(s))
    yield from chain(_promotions(s, K), _orders(s, K), _accumulators(s), _instructions(s, A))
    yield from chain(other_schemes(s, A, D), _interleaved(s, K))


def alternatives(s: Specification, A: Array, D: Array) -> list[Iterator[Deviation]]:
    """For a result without mismatches, the deviations in the order, promotion, instruction and scheme."""
    K = A.shape[1]
    instructions = (d for d in chain(options(s), _instructions(s, A)) if d.kind == "hardware")
    return [chain(_orders(s, K), _interleaved(s, K)), _promotions(s, K), instructions, other_schemes(s, A, D)]


def _operands(s: Specification, A: Array, B: Array, factor: float) -> Iterator[Deviation]:
    """Another alpha (a power of two, or a number of few digits), exchanged or transposed operands, and a shorter K."""
    alpha = s.alpha * factor
    values = [s.alpha * float(np.copysign(2.0 ** np.round(np.log2(abs(factor))), factor))]
    values += [float(f"{alpha:.{digits}g}") for digits in (1, 2, 3, 4, 6)]
    for value in dict.fromkeys(() if factor == 1 or s.beta != 0 or s.is_integer else values):
        if value != s.alpha and abs(value / alpha - 1) < 0.01:
            yield deviation("scale", f"alpha is {value:g}, not {s.alpha:g}", alpha=value)
    (M, K), (_, N) = A.shape, B.shape
    fits = {"BA": M == N == K, "A'B": M == K, "AB'": K == N, "(AB)'": M == N, "A'B'": M == N == K}
    for factors, text in _FACTORS.items():
        if fits[factors] and factors != s.factors:
            yield deviation("operands", f"the result is {text}", factors=factors)
    for grain in (1, 8, 16, 32, 64, 128):
        length = (K - 1) // grain * grain
        if length and s.length is None:
            text = f"the last {K - length} of k are left out" if K - length > 1 else "the last k is left out"
            yield deviation("operands", text, length=length)


def _inputs(s: Specification, A: Array, B: Array) -> Iterator[Deviation]:
    """Roundings of A and B before the product, and flushed subnormals."""
    fmt = s.operand
    if isinstance(fmt, str):
        return
    subnormal = any(((x != 0) & (np.abs(x) < fmt.min_normal)).any() for x in (A, B))
    if s.flush != "inputs" and subnormal:
        yield deviation("flush", f"subnormal {fmt.name} inputs are flushed to zero", flush="inputs")
    for name in dict.fromkeys((fmt.name, "tf32", "fp16", "bf16", "fp32", "e4m3", "e5m2")):
        other = formats.get(name)
        wider = other.precision > fmt.precision or (name != fmt.name and other.emax > fmt.emax)
        if wider or (other.contains(A).all() and other.contains(B).all()):
            continue
        if max(np.abs(x[np.isfinite(x)]).max(initial=0) for x in (A, B)) > other.max:
            continue
        for mode, words in _MODES.items():
            if (name, mode) != s.inputs:
                yield deviation("inputs", f"A and B are rounded to {name} {words} first", inputs=(name, mode))


def _results(s: Specification, D: Array) -> Iterator[Deviation]:
    """Conversions of the result."""
    if s.result in formats.names():
        out = formats.get(s.result)
        nans = np.unique(bits(D)[np.isnan(D)])
        if len(nans) == 1 and D.dtype == out.dtype:
            text = f"NaN has the code 0x{int(nans[0]):0{2 * D.dtype.itemsize}X}"
            yield deviation("result", text, nan=int(nans[0]))
        if D.dtype.itemsize >= 4 and (D != 0)[np.isfinite(D)].any():
            for name in ("fp16", "bf16", "tf32", "e4m3"):
                fmt = formats.get(name)
                if fmt.precision < out.precision and fmt.contains(D).all():
                    for mode, words in _MODES.items():
                        text = f"the result is rounded to {name} {words}"
                        yield deviation("result", text, out=name, out_rounding=mode)
        if s.scheme is None and s.accumulator not in ("", s.result):
            if D.dtype.itemsize > out.dtype.itemsize or s.result in ("bf16", "tf32"):
                yield deviation("result", f"the result is not rounded to {s.result}", out=s.accumulator)
            for mode, words in _MODES.items():
                if mode != s.out_rounding:
                    yield deviation("result", f"the result is rounded to {s.result} {words}", out_rounding=mode)
        if s.flush != "result" and not (np.abs(D[np.isfinite(D)]) >= out.min_normal).all():
            yield deviation("flush", "subnormal results are flushed to zero", flush="result")
    if not s.relu and (D >= 0).all():
        yield deviation("epilogue", "negative results are replaced by zero (ReLU)", relu=True)


def _epilogues(s: Specification, C: Array | None) -> Iterator[Deviation]:
    if s.alpha == 1 and C is None:
        return
    for kind, text in EPILOGUES.items():
        needs_c = kind in ("fma", "fma-c", "first", "alpha-last", "no-beta", "beta-1")
        needs_alpha = kind in ("alpha-last", "alpha-on-A", "no-alpha")
        idle = (needs_c and C is None) or (needs_alpha and s.alpha == 1) or (kind == "beta-1" and s.beta == 1)
        if kind != s.epilogue and not idle:
            yield deviation("epilogue", f"the epilogue: {text}", epilogue=kind)


def _promotions(s: Specification, K: int) -> Iterator[Deviation]:
    if isinstance(s.scheme, Scheme):
        name = s.scheme.promote_option
        promoted = isinstance(s.order, KOrder) and s.order.promote is not None
        if s.spec is None or promoted or not hasattr(s.scheme, name):
            return
        lengths = {in_k(getattr(s.scheme, name), s.spec)}  # "instruction" and its length in k are one deviation
        for value in (None, "instruction", *_PROMOTIONS, "2 instructions", "4 instructions", "8 instructions"):
            length = in_k(value, s.spec)
            if length not in lengths and (length is None or value == "instruction" or length < K):
                lengths.add(length)
                yield from option(s, name, value, "promotion")
    elif s.spec is not None and (s.order is None or isinstance(s.order, KOrder)):
        base = s.order or KOrder()
        for interval in dict.fromkeys((None, s.spec.k, *_PROMOTIONS)):
            if interval == base.promote or (interval is not None and interval >= K):
                continue
            text = "no promotion" if interval is None else f"promotion every {interval} of k"
            text += " (one instruction)" * (interval == s.spec.k != 1)
            if interval is not None and base.split is None and base.tile is None:
                text += f", or split in slices of {interval}, which is the same"
            yield deviation("promotion", text, order=replace(base, promote=interval))


def _orders(s: Specification, K: int) -> Iterator[Deviation]:
    """Orders over K, and split-K with partial sums in the format of D."""
    promote = s.order.promote if isinstance(s.order, KOrder) else None
    narrow = s.scheme is None and s.result != s.accumulator and not (s.join or s.stored)
    unchanged = s.order or KOrder()
    for plain in _likely_orders(K, promoted=bool(promote)):
        text, order = describe_order(plain), plain if promote is None else replace(plain, promote=promote)
        if order != unchanged:
            yield deviation("order", text, order=order)
        if narrow and order.split is not None and order.join == "ascending":
            stored = f"{text}, the slices stored in {s.result}"
            yield deviation("order", f"{stored} and added in fp32", order=order, stored=s.result)
            yield deviation("order", f"{stored} and added in {s.result}", order=order, join=s.result)


def _interleaved(s: Specification, K: int) -> Iterator[Deviation]:
    """Accumulators of a plain product that alternate over chunks of K."""
    if s.scheme is None and s.spec is not None:
        for lanes, chunk in product((2, 4, 8, 3, 5, 6, 7, 9, 10, 12, 16), (8, 16, 32, 4, 1, 64, 128)):
            if chunk * lanes <= K and (chunk >= s.spec.block or s.spec.rules.fused):
                text = f"{lanes} accumulators that alternate every {chunk} of k"
                yield deviation("order", text, order=dealt(K, lanes, chunk, s.spec))


def _accumulators(s: Specification) -> Iterator[Deviation]:
    """The other accumulator format of a plain product; partial sums stored in the format of the result."""
    spec = s.spec
    if s.scheme is None and spec is not None:
        a, b = str(spec.a_format), str(spec.b_format)
        other = "fp16" if s.accumulator == "fp32" else "fp32"
        with suppress(InputError):  # the hardware has no such accumulator
            row = mma.spec(spec.architecture, a if a == b else (a, b), other, spec.instruction, spec.k)
            yield deviation("accumulator", f"the accumulator is {other}", hardware=row)
        if s.stored is None and s.result != s.accumulator and s.order is not None:
            yield deviation("join", f"the slices are stored in {s.result} before they are added", stored=s.result)


def _instructions(s: Specification, A: Array) -> Iterator[Deviation]:
    """Other instructions of a plain product with the same formats, ordinary cores, and other input formats."""
    spec = s.spec
    if s.scheme is not None or spec is None:
        return
    rows = [r for r in mma.catalog.rows() if r.a_format == spec.a_format and r.d_format == spec.d_format]
    yield from other_instructions(spec, rows)
    if spec.is_integer:
        return
    for name in ("fp32", "fp64"):
        fma = simt.SPECS[name]
        if spec != fma and formats.get(name).precision >= formats.get(s.result).precision:
            text = f"ordinary cores: FMAs in {name}"
            yield deviation("hardware", text, hardware=fma)
            if s.inputs is not None:
                yield deviation("hardware", f"{text}, inputs not rounded", hardware=fma, inputs=None)
    for name in ("tf32", "fp16", "bf16") if A.dtype == np.float32 else ():
        for arch in dict.fromkeys((spec.architecture, "hopper", "ampere")):
            if arch in mma.catalog.architectures() and name != str(spec.a_format):
                with suppress(InputError):
                    row = mma.spec(arch, name, "fp32")
                    text = f"the instruction is {row.name}, with A and B rounded to {name} to nearest even"
                    yield deviation("hardware", text, hardware=row, inputs=(name, "RNE"))


def other_units(s: Specification) -> Iterator[Deviation]:
    """Truncating units with other constants than any in the catalogue, for results that nothing else explains."""
    spec = s.spec
    if spec is None or spec.rules.aligned != "terms" or s.scheme is not None:
        return
    for block, F, final in product((4, 8, 16, 32), dict.fromkeys((spec.F, 23, 24, 25, 26, 13)), ("RZ", "RNE")):
        kept = 13 if F == 13 else None
        if (block, F, final) != (spec.block, spec.F, spec.final) and not (kept and s.accumulator != "fp32"):
            k = max(block, spec.k // block * block)
            unit = spec.replace(block=block, k=k, F=F, final=final, fraction_bits=kept, E0=None)
            yield deviation("hardware", f"a unit with blocks of {block}, F = {F}, {final}", hardware=unit)


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


@dataclass(frozen=True)
class Attempt:
    """Deviations with the specification they lead to, and its distance from the result on the sample."""

    deviations: Deviations
    specification: Specification
    mismatches: int
    distance: float  # mean of log2(1 + ulps)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the deviations."""
        return tuple(d.kind for d in self.deviations)

    def cause(self, left: int) -> Cause:
        """The deviations as a cause that leaves some mismatches."""
        return Cause(self.kinds, "; ".join(d.text for d in self.deviations), left, self.specification)


class Sample:
    """A result D, its operands and its specification's value `expected`, reduced to a few rows and columns."""

    def __init__(
        self,
        specification: Specification,
        A: Array,
        B: Array,
        C: Array | None,
        D: Array,
        expected: Array,
        device: Device = "cpu",
        seconds: float = 20.0,
        most: int = 20000,
    ):
        self.specification, self.A, self.B, self.C, self.D, self.device = specification, A, B, C, D, device
        self.fmt = specification.result if specification.result in formats.names() else "fp32"
        wrong = bits(D) != bits(expected)
        self.entries = int(wrong.sum())
        self.factor = _factor(D, expected)
        self.rows, self.columns = _sample(wrong, A.shape[1])
        value = expected[self.rows][:, self.columns]
        if not np.array_equal(bits(self._evaluate(specification, value.dtype)), bits(value)):
            self.rows, self.columns = np.arange(len(D)), np.arange(D.shape[1])  # the scheme's rows are not independent
            value = expected
        self.part = D[self.rows][:, self.columns]
        self.tried = 0
        self.end, self.most = time.perf_counter() + seconds, most
        self.base = self._attempt((), specification, value)
        self._values, self._specifications = {bits(value).tobytes()}, {specification}

    def _evaluate(self, specification: Specification, dtype: Any, *, whole: bool = False) -> Array:
        rows, columns = (None, None) if whole else (self.rows, self.columns)
        # for the sample, the NumPy implementation of a rare arithmetic is faster than its compilation
        spec = specification.spec
        rare = spec is not None and (spec.rules.rank > 1 or spec.evidence == "custom")
        numpy = rare and not whole and spec != self.specification.spec
        backend: Backend = "numpy" if numpy else "compiled"
        device: Device = self.device if whole else "cpu"
        return evaluate(specification, self.A, self.B, self.C, rows, columns, device, backend).astype(dtype, copy=False)

    def attempt(self, deviations: Deviations) -> Attempt | None:
        """Evaluate deviations; None if they are impossible, repeated, or give the bits of earlier ones."""
        fields = {name: value for d in deviations for name, value in d.fields.items()}
        specification = replace(self.specification, **fields)
        if specification in self._specifications:
            return None
        self._specifications.add(specification)
        self.tried += 1
        try:
            D = self._evaluate(specification, self.part.dtype)
        except (InputError, GuaranteeError):
            return None
        if D.shape != self.part.shape:
            return None
        attempt = self._attempt(deviations, specification, D)
        key = bits(D).tobytes()
        if key in self._values and attempt.mismatches:
            return None
        self._values.add(key)
        return attempt

    def over(self) -> bool:
        """Whether the budget of the search is spent."""
        return self.tried >= self.most or time.perf_counter() > self.end

    def attempts(self, combinations: Iterable[Deviations]) -> list[Attempt]:
        """The attempts of combinations of deviations, without None."""
        return [attempt for attempt in map(self.attempt, combinations) if attempt is not None]

    def mismatches(self, specification: Specification) -> int:
        """Mismatching entries of the whole result."""
        return int((bits(self._evaluate(specification, self.D.dtype, whole=True)) != bits(self.D)).sum())

    def _attempt(self, deviations: Deviations, specification: Specification, D: Array) -> Attempt:
        steps = distance(self.part, D, self.fmt)
        mean = float(np.log2(1.0 + np.minimum(steps, 2**40)).mean())
        return Attempt(deviations, specification, int((steps != 0).sum()), mean)


def _factor(D: Array, expected: Array) -> float:
    """The factor between all of a result and the expected one, to 1 %; 1 if there is none."""
    usable = np.isfinite(D) & np.isfinite(expected) & (D != 0) & (expected != 0)
    if usable.sum() < 4:
        return 1.0
    ratio = D[usable].astype(np.float64) / expected[usable].astype(np.float64)
    low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
    return float(middle) if high - low < 0.01 * abs(middle) else 1.0


def _sample(wrong: NDArray[np.bool_], K: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns: half of them with the most mismatches, the others spread over the matrix."""
    lines = int(np.clip(np.sqrt(_WORK / K), *_LINES))
    chosen = []
    for axis in (1, 0):
        length = wrong.shape[1 - axis]
        worst = np.argsort(-wrong.sum(axis=axis), kind="stable")[: (lines + 1) // 2]
        spread = np.linspace(0, length - 1, min(lines, length)).astype(np.int64)
        rest = spread[~np.isin(spread, worst)]
        keep = np.linspace(0, max(len(rest) - 1, 0), min(lines // 2, len(rest))).astype(np.int64)
        chosen.append(np.sort(np.concatenate([worst, rest[keep]])))
    rows, columns = chosen
    if not wrong[rows][:, columns].any():
        i, j = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        rows, columns = np.union1d(rows, [i]), np.union1d(columns, [j])
    return rows, columns


def search(
    sample: Sample, reveal: Callable[[Specification], Any] | None, progress: Callable[[str, int], None] | None
) -> tuple[tuple[Cause, ...], bool]:
    """The deviations that reproduce a result, the likeliest first, or otherwise partial explanations.

    Also returned is whether the search ended before its budget. `reveal` returns the order of the user's callable from
    probes; it is used if no single deviation suffices. `progress` is called with a description and the number of
    evaluations.
    """

    def report(what: str) -> None:
        if progress is not None:
            progress(what, sample.tried)

    report("one change")
    single = _extended(sample, ())
    causes = _confirmed(sample, single)
    if not causes and reveal is not None:
        report("probes")
        single += _probed(sample, single, reveal)
        causes = _confirmed(sample, single)
    if not causes:
        report("other units")
        single += sample.attempts((d,) for d in other_units(sample.specification) if not sample.over())
        causes = _confirmed(sample, single)
    double: list[Attempt] = []
    starts = [] if causes else _starts(sample, single)
    for orders, start in product((False, True), starts):  # the many orders last
        if sample.over():
            break
        report(f"{start.deviations[-1].text}, and")
        double += _extended(sample, start.deviations, orders)
        causes = _confirmed(sample, double)
        if causes:
            break
    complete = not sample.over()
    return tuple(causes or _partial(sample, single + double)), complete


def indistinguishable(sample: Sample) -> tuple[tuple[str, ...], int]:
    """Other orders, instructions and schemes that give a result without mismatches, and the number tried."""
    original, K = sample.specification, sample.A.shape[1]
    unchanged = cache(lambda: _key(replace(original, scheme=None), K))
    texts, tried = [], 0
    for deviations in alternatives(original, sample.A, sample.D):
        for d in islice(deviations, _ALIKE):
            if tried >= sample.most or time.perf_counter() > sample.end:
                break
            attempt = sample.attempt((d,))
            tried += 1
            if attempt is None or attempt.mismatches:
                continue
            other = attempt.specification
            if other.scheme == original.scheme and _key(replace(other, scheme=None), K) == unchanged():
                tried -= 1  # the same additions in other words
            elif sample.mismatches(other) == 0:
                texts.append(d.text)
    return tuple(texts), tried


def _extended(sample: Sample, start: Deviations, orders: bool | None = None) -> list[Attempt]:
    """Every further deviation of another kind; only orders (`orders` True), or none of them (False)."""
    kinds = {d.kind for d in start}
    s = replace(sample.specification, **{name: value for d in start for name, value in d.fields.items()})
    further = single_deviations(s, sample.A, sample.B, sample.C, sample.D, sample.factor)
    within = takewhile(lambda _: not sample.over(), further)
    with np.errstate(all="ignore"):
        return sample.attempts(
            (*start, d) for d in within if d.kind not in kinds and orders in (None, d.kind == "order")
        )


def _promising(sample: Sample, single: Iterable[Attempt]) -> list[Attempt]:
    """The deviations nearest to the result, at most two of a kind."""
    chosen: list[Attempt] = []
    for attempt in sorted(single, key=lambda t: (t.distance, t.mismatches)):
        if len(chosen) < _BEAM and sum(t.kinds == attempt.kinds for t in chosen) < 2:
            chosen.append(attempt)
    base = sample.base
    return [t for t in chosen if t.distance < base.distance or t.mismatches < base.mismatches]


def _starts(sample: Sample, single: list[Attempt]) -> list[Attempt]:
    """The deviations to combine with all others.

    First those that bring the result nearer, except orders and instructions, of which many do so by chance; then
    promotions, accumulators and conversions, whose effect may not show alone; then the excepted ones.
    """
    near = _promising(sample, single)
    chance = [t for t in near if t.kinds in (("order",), ("hardware",))]
    hidden = [t for t in single if t.kinds in (("promotion",), ("accumulator",), ("result",), ("inputs",))]
    starts = [t for t in near if t not in chance] + hidden + chance
    return [t for i, t in enumerate(starts) if t not in starts[:i]]


def _probed(sample: Sample, single: list[Attempt], reveal: Callable[[Specification], Any]) -> list[Attempt]:
    """The order from probes of the callable, alone and combined with the nearest deviations."""
    try:
        order = tree.order_of(reveal(sample.specification))
    except (InputError, GuaranteeError):
        return []
    revealed = deviation("order", f"{describe_order(order)}, found by probes", order=order)
    starts = [(), *(t.deviations for t in _promising(sample, single))]
    fitting = [s for s in starts if not s or s[-1].kind not in ("order", "promotion", "scheme")]
    return sample.attempts((*start, revealed) for start in fitting)


def _confirmed(sample: Sample, attempts: list[Attempt]) -> list[Cause]:
    """The attempts that reproduce the sample, confirmed on the whole result; at least one, even after the budget.

    Specifications that add the same numbers in the same places count as one.
    """
    causes: dict[Any, Cause | None] = {}
    for attempt in sorted((t for t in attempts if t.mismatches == 0), key=lambda t: len(t.deviations)):
        key = _key(attempt.specification, sample.A.shape[1])
        if key not in causes and len(causes) < _LISTED and not (causes and sample.over()):
            left = sample.mismatches(attempt.specification)
            causes[key] = attempt.cause(left) if left == 0 else None
            continue
        same = causes.get(key)
        if same is not None and ", or " not in same.text and same.kinds != attempt.kinds:
            causes[key] = replace(same, text=f"{same.text}, or {attempt.cause(0).text}, which is the same")
    return [cause for cause in causes.values() if cause is not None]


def _partial(sample: Sample, attempts: list[Attempt]) -> list[Cause]:
    """The attempts that remove most mismatches, if they remove a third of them: fewer can be chance."""
    causes = []
    for attempt in sorted(attempts, key=lambda t: (t.mismatches, t.distance))[: 3 * _PARTS]:
        if attempt.mismatches < sample.base.mismatches:
            causes.append(attempt.cause(sample.mismatches(attempt.specification)))
            if sample.over():
                break
    causes.sort(key=lambda cause: cause.left)
    return [cause for cause in causes if cause.left <= 0.67 * sample.entries][:_PARTS]


def _key(specification: Specification, K: int) -> Any:
    """Equal for specifications that add the same numbers in the same places."""
    order: Any = specification.order
    spec, plain = specification.spec, specification.scheme is None
    if spec is not None and plain and (order is None or isinstance(order, KOrder)):
        order = tree.from_order(order or KOrder(), K, spec)
    if not plain and isinstance(order, KOrder):
        order = str(order.segments(K)) + order.join
    elif spec is not None and order is not None:
        order = tree.canonical(order, tree.exact_products(spec))
    return replace(specification, order=None), order
