"""Deviations: changes of a specification in one respect that may explain the mismatches of a product.

The search for a cause tries the likely ones first: orders over K of libraries and kernels, other instructions, other
options of the scheme, other schemes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.conformance.specification import EPILOGUES, Specification, describe_order
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
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


@dataclass(frozen=True)
class Deviation:
    """Change of a specification in one respect."""

    kind: str  # the respect: "order", "promotion", "inputs", "epilogue", "accumulator", "hardware", "scheme" ...
    text: str  # the change in words
    fields: dict[str, Any]  # the changed fields


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
    others = [(schemes.get(name), f"the scheme is {name}", order) for name in schemes.names()]
    others = [
        other for other in others if other[0].operand.name == wanted and other[0].name != getattr(s.scheme, "name", "")
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
    scheme = s.scheme
    assert isinstance(scheme, Scheme)
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
    for arch in mma.catalog.architectures() if s.spec is not None else ():
        with suppress(InputError):
            rows.append(scheme.spec(arch))
    if s.spec is not None:
        yield from other_instructions(s.spec, rows)


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
    yield from _operands(s, A, B, factor)
    yield from _inputs(s, A, B)
    yield from _results(s, D)
    yield from _epilogues(s, C)
    if s.scheme is not None:
        yield from options(s)
    yield from _promotions(s, K)
    yield from _orders(s, K)
    if s.scheme is None and s.spec is not None:
        yield from _accumulators(s, s.spec)
        yield from _instructions(s, s.spec, A)
    yield from other_schemes(s, A, D)
    yield from _interleaved(s, K)


def alternatives(s: Specification, A: Array, D: Array) -> list[Iterator[Deviation]]:
    """For a result without mismatches, the deviations in the order, promotion, instruction and scheme."""
    K, plain = A.shape[1], s.scheme is None and s.spec is not None
    instructions = _instructions(s, s.spec, A) if plain and s.spec is not None else iter(())
    if s.scheme is not None:
        instructions = (d for d in options(s) if d.kind == "hardware")
    return [chain(_orders(s, K), _interleaved(s, K)), _promotions(s, K), instructions, other_schemes(s, A, D)]


def _operands(s: Specification, A: Array, B: Array, factor: float) -> Iterator[Deviation]:
    """Another alpha (a power of two, or a number of few digits), exchanged or transposed operands, and a shorter K."""
    alpha = s.alpha * factor
    power = s.alpha * float(np.copysign(2.0 ** np.round(np.log2(abs(factor))), factor))
    values = (
        ()
        if factor == 1 or s.beta != 0 or s.is_integer
        else (power, *(float(f"{alpha:.{d}g}") for d in (1, 2, 3, 4, 6)))
    )
    for value in dict.fromkeys(values):
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


def _accumulators(s: Specification, spec: MmaSpec) -> Iterator[Deviation]:
    """The other accumulator format of the instruction; partial sums stored in the format of the result."""
    other = "fp16" if s.accumulator == "fp32" else "fp32"
    a, b = str(spec.a_format), str(spec.b_format)
    with suppress(InputError):  # the hardware has no such accumulator
        row = mma.spec(spec.architecture, a if a == b else (a, b), other, spec.instruction, spec.k)
        yield deviation("accumulator", f"the accumulator is {other}", hardware=row)
    if s.stored is None and s.result != s.accumulator and s.order is not None:
        yield deviation("join", f"the slices are stored in {s.result} before they are added", stored=s.result)


def _instructions(s: Specification, spec: MmaSpec, A: Array) -> Iterator[Deviation]:
    """Other instructions with the same formats, ordinary cores, and other input formats on the same hardware."""
    rows = [r for r in mma.catalog.rows() if r.a_format == spec.a_format and r.d_format == spec.d_format]
    yield from other_instructions(spec, rows)
    if spec.is_integer:
        return
    for name in ("fp32", "fp64"):
        if spec != simt.SPECS[name] and formats.get(name).precision >= formats.get(s.result).precision:
            text = f"ordinary cores: FMAs in {name}"
            yield deviation("hardware", text, hardware=simt.SPECS[name])
            if s.inputs is not None:
                yield deviation("hardware", f"{text}, inputs not rounded", hardware=simt.SPECS[name], inputs=None)
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
