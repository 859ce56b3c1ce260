"""Changes of a specification: instructions, accumulators, conversions of the result, options of schemes, schemes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.conformance.orders import PROMOTIONS
from fpemu.conformance.specification import EPILOGUES, Specification
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.spec import EVIDENCE
from fpemu.probing.callables import bits
from fpemu.schemes import Scheme
from fpemu.schemes.words import in_k

Array = NDArray[Any]
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
MODES = {"RNE": "to nearest even", "RZ": "toward zero (truncated)", "RNA": "to nearest, ties away"}
FORMATS = ("tf32", "fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "fp32")
SPLIT_INF = ", and NaN and Inf are split like numbers: the residual of Inf is Inf - Inf = NaN"
NARROW = 2.0**-14  # typical error relative to the terms above which accumulators of fp16 and bf16 are tried


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
    fits = [f for f in FORMATS if formats.get(f).contains(A).all() and formats.get(f).contains(B).all()]
    rows = [r for r in mma.catalog.rows() if r.a_format == r.b_format and str(r.a_format) in fits]
    rows += [r for r in mma.catalog.rows() if str(r.a_format) == str(r.b_format) == "tf32" and A.dtype == np.float32]
    rows += [r for r in mma.catalog.rows() if (r.a_format, r.b_format) == (spec.a_format, spec.b_format)]
    precise = 11 if level > NARROW else min(formats.get(s.result).precision, 24)
    wide = [r for r in rows if formats.get(str(r.d_format)).precision >= precise and not r.rules.fused]
    fp64 = A.dtype == np.float64
    for name in ("fp32", "fp64"):
        if spec != simt.SPECS[name] and (name == "fp64" or not fp64):
            yield (deviation("hardware", f"ordinary cores: FMAs in {name}", hardware=simt.SPECS[name]),)
    fmt = s.inputs[0] if s.inputs else str(spec.a_format)
    if spec.rules.fused and not s.inputs and fits:  # the format of the dtype, or else the narrowest one
        sizes = {f: (formats.get(f).precision, f != "fp16") for f in fits}
        fmt = "fp16" if A.dtype == np.float16 else min(fits, key=lambda f: sizes[f])
    for d in other_instructions(spec, dict.fromkeys(wide), fmt):
        row = d.fields["hardware"]
        if row.d_format != spec.d_format and str(row.d_format) != "fp64":
            d = deviation("accumulator", f"the accumulator is {row.d_format}: {d.text}", **d.fields)
        yield (d,)
    narrow = level > NARROW and not fp64
    own = {"hardware": simt.SPECS["fp64" if fp64 else "fp32"]}
    ways = {
        "fused": ": an {} accumulator, rounded once per k (FMA)",
        "in fp32": ": an {} accumulator, to which every k is added in fp32 before its rounding",
        "separate": " without FMA: the product is rounded, then the sum (unfused)",
    }
    for fmt, way in product(("fp64" if fp64 else "fp32", *(("fp16", "bf16") if narrow else ())), ways):
        if way == "separate" or fmt in ("fp16", "bf16"):
            text = f"multiply-adds in {fmt}{ways[way].format(fmt)}"
            yield (deviation("accumulator", text, multiply_add=(fmt, way), **own),)
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
        targets = []
        if D.dtype.itemsize >= 4 and (D != 0)[np.isfinite(D)].any():
            narrower = (formats.get(name) for name in ("fp16", "bf16", "tf32", "e4m3", "e5m2"))
            targets = [fmt for fmt in narrower if fmt.precision < out.precision and fmt.contains(D).all()]
        if s.scheme is None and s.accumulator not in ("", s.result):
            targets.append(out)
            if D.dtype.itemsize > out.dtype.itemsize or s.result in ("bf16", "tf32"):
                yield deviation("result", f"the result is not rounded to {s.result}", out=s.accumulator)
        for fmt in targets:
            to = {} if fmt == out else {"out": fmt.name}
            for mode, words in MODES.items():
                if to or mode != s.out_rounding:
                    text = f"the result is rounded to {fmt.name} {words}"
                    yield deviation("result", text, **to, out_rounding=mode)
            for first in ("fp16", "bf16", "tf32"):
                enough = formats.get(first).precision >= (fmt.precision if to else out.precision - 3)
                if first != fmt.name and enough and (to or s.via is None):
                    text = f"the result is rounded twice: to {first}, then to {fmt.name}"
                    yield deviation("result", text, **to, via=(first, "RNE"))
        if s.flush != "result" and not (np.abs(D[np.isfinite(D)]) >= out.min_normal).all():
            yield deviation("flush", "subnormal results are flushed to zero", flush="result")
    if s.relu and (D < 0).any():
        yield deviation("epilogue", "negative results are not replaced by zero (no ReLU)", relu=False)
    if not s.relu and (D >= 0).all():
        yield deviation("epilogue", "negative results are replaced by zero (ReLU)", relu=True)


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
    ranges = {s.on_range: ""} if np.isfinite(A).all() else {"propagate": "", "hardware": SPLIT_INF}
    for (scheme, text, over_k), (on_range, more) in product(others, ranges.items()):
        with suppress(InputError):  # the hardware lacks the instruction
            fields = {"scheme": scheme, "hardware": scheme.spec(hardware), "order": over_k, "on_range": on_range}
            yield deviation("scheme", text + more, **fields, **plain)


def options(s: Specification, K: int) -> Iterator[Deviation]:
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
    if spec is None:
        return
    rows: list[Any] = []
    for arch in mma.catalog.architectures():
        with suppress(InputError):
            rows.append(scheme.spec(arch))
    yield from other_instructions(spec, rows)
    name = scheme.promote_option
    if hasattr(scheme, name) and getattr(s.order, "promote", None) is None:
        lengths = {in_k(getattr(scheme, name), spec)}  # "instruction" and its length in k are one deviation
        for value in (None, "instruction", *PROMOTIONS, "2 instructions", "4 instructions", "8 instructions"):
            length = in_k(value, spec)
            if length not in lengths and (length is None or value == "instruction" or length < K):
                lengths.add(length)
                yield from option(s, name, value, "promotion")


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
