"""Emulation of recorded products: the specification of each, the first difference of two runs, the orders of one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu._system import in_ieee
from fpemu.arguments import number
from fpemu.conformance.causes import Cause
from fpemu.conformance.runs import Recorded, by_columns, read, sample_key
from fpemu.conformance.scaled import Scales, verify_scaled
from fpemu.conformance.specification import Specification
from fpemu.conformance.verdict import Verdict, verify
from fpemu.errors import InputError
from fpemu.library.families import adds_vector, rounds_before_adding
from fpemu.library.products import lookup
from fpemu.library.tables import Tiles
from fpemu.mma.outer_scales import _multiplication

Array = NDArray[Any]
_OTHERS = 4  # products of the same kernel that an explanation must reproduce
_OF_CUBLAS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_scaled_mm", "_int_mm")
_SEARCHES = 2  # searches for an order among equal calls, after which the others are only compared


# --- the specification of one product
@dataclass(frozen=True)
class Explanation:
    """The specification that reproduces the sample of a product.

    Attributes
    ----------
    specification : Specification or None
        None: no alternative reproduces the sample, or it was not recorded.
    text : str
        The specification, or its difference from another product's, in words; the reason if there is none.
    """

    specification: Specification | None
    text: str


class _Sample:
    """The sample of a product as operands of `verify`."""

    def __init__(self, product: Recorded) -> None:
        self.product = product
        self.A, self.B, self.C, self.D = (product.sample(name) for name in "ABCD")
        self.scale_a, self.scale_b = product.sample("scale_a"), product.sample("scale_b")

    @property
    def missing(self) -> str:
        if self.product.sizes is None:
            return "fused attention is not emulated"
        return "" if self.A is not None and self.B is not None and self.D is not None else "no sample was recorded"

    def base(self) -> Specification:
        """One chain on the instruction that the types and flags select."""
        kinds = {name: operand["type"] for name, operand in self.product.operands.items()}
        on_gpu = self.product.flags.get("device") == "cuda"
        hardware, fmt = self.product.about.get("hardware") if on_gpu else None, kinds["A"]
        tf32 = hardware is not None and fmt == "fp32" and bool(self.product.flags.get("allow_tf32"))
        beta = self.product.beta if "C" in kinds else 0.0
        s = Specification(hardware, fmt="tf32" if tf32 else fmt, alpha=self.product.alpha, beta=beta,
                          inputs=("tf32", "RNE") if tf32 else None)  # fmt: skip
        if kinds["A"] != kinds["B"] and hardware is not None:
            s = replace(s, hardware=mma.spec(hardware, (kinds["A"], kinds["B"])), fmt=None)
        return s if kinds["D"] in ("fp32", "fp64", "int32") else replace(s, out=kinds["D"])

    def verdict(self, s: Specification, **options: Any) -> Verdict:
        """The verdict on the sample."""
        A, B, D = (np.asarray(x) for x in (self.A, self.B, self.D))
        C = self.C if s.beta else None
        if self.scale_a is None:
            return verify(D, A, B, C, specification=s, **options)
        kinds = [self.product.operands[name]["type"] for name in "AD"]
        return verify_scaled(D, A, B, C, self.scales(), s._resolved(*kinds), **options)

    def words(self, s: Specification) -> str:
        """A specification, or the arithmetic that is identified where it names none, in words."""
        verdict = self.verdict(s, causes=False)
        scales = "" if self.scale_a is None else f", {self.scales()}"
        return (verdict.identified or str(verdict.specification)) + scales

    def scales(self) -> Scales:
        """The sampled scales, by the rule for the shapes of all; scales of blocks of K are those of 128."""
        assert self.product.sizes is not None
        M, N, K = self.product.sizes
        a, b = (np.broadcast_to(0.0, self.product.operands[name]["shape"]) for name in ("scale_a", "scale_b"))
        block = None if {a.shape, b.shape} <= {(), (1,), (1, 1), (M, 1), (1, N)} else 128
        sizes = len(self.product.rows), len(self.product.columns), K
        return Scales.of(self.scale_a, self.scale_b, sizes, block, _multiplication(a, b, M, N, block), True)


def _kernel(p: Recorded) -> str:
    """The properties of a product that select the library's kernel."""
    kinds = {name: (x["type"], by_columns(x)) for name, x in p.operands.items() if len(x["shape"]) > 1}
    return str((p.operator, p.sizes, p.operands["D"]["shape"][:-2], p.flags, kinds))


def _planned(p: Recorded, start: Specification) -> Iterator[Specification]:
    """The specification in cuBLAS's order for a product of PyTorch, from the table, the model or the heuristic."""
    shapes = {name: operand["shape"] for name, operand in p.operands.items()}
    scaled = math.prod(shapes.get("scale_a", ())) > 1
    if p.sizes is None or p.flags.get("device") != "cuda" or p.operator.removesuffix("_") not in _OF_CUBLAS or scaled:
        return
    (M, N, K), batch, C = p.sizes, math.prod(shapes["D"][:-2]), shapes.get("C")
    if p.operator == "linear":
        M, batch = M * batch, 1
    layout: Any = "".join("NT"[by_columns(p.operands[name])] for name in "BA")
    a, d = "tf32" if start.fmt == "tf32" else p.operands["A"]["type"], p.operands["D"]["type"]
    kind = f"{a}->{d}" if d in ("fp16", "bf16") else a
    bias = C is not None and p.beta == 1 and len(shapes["D"]) == 2 and adds_vector(C, (M, N, K), kind)
    calls: Any = {"bias": bias, "batch": batch, "fast_accumulation": bool(p.flags.get("use_fast_accum"))}
    sources: tuple[Any, ...] = ("auto", "heuristic")
    for source in sources:
        with suppress(InputError):
            row = lookup("cublas", kind, (M, N, K), layout=layout, source=source, **calls)
            first = C is not None and rounds_before_adding(row, bias)
            if not isinstance(row.order, Tiles):
                spec = replace(start, hardware=row.spec, order=row.order, stored=row.stored)
                spec = replace(spec, epilogue="rounded" if first else spec.epilogue)
                yield spec if start.fmt != "tf32" or row.rounded else replace(spec, fmt=None, inputs=None)


def explain(
    product: Recorded,
    known: Iterable[Specification] = (),
    *,
    base: Specification | None = None,
    seconds: float = 20.0,
    others: Sequence[Recorded] = (),
) -> Explanation:
    """Find the specification that reproduces the sample of a product; without `seconds` only among those known.

    The search starts from `base`, and the text states the difference from it. Of several specifications with equal
    bits, the first that reproduces `others`, products of the same kernel, is chosen.
    """
    samples = [_Sample(one) for one in (product, *others)]
    if samples[0].missing:
        return Explanation(None, samples[0].missing)
    samples = [sample for sample in samples if not sample.missing]

    def equal(s: Specification, some: list[_Sample]) -> bool:
        with suppress(InputError):
            return all(sample.verdict(s, causes=False).equal for sample in some)
        return False

    try:
        start = samples[0].base() if base is None else base
        for s in chain(known, [start], _planned(product, start)) if base is None else [base, samples[0].base()]:
            if equal(s, samples):
                return Explanation(s, samples[0].words(s))
        if not seconds:
            return Explanation(None, "none of the known orders")
        # another product may show a difference that the sample of this one hides
        shown = next(sample for sample in samples if not equal(start, [sample]))
        verdict = shown.verdict(start, causes=True, seconds=seconds)
    except InputError as problem:
        return Explanation(None, str(problem))
    found: list[tuple[Specification, Cause | None]] = [(start, None)] if equal(start, samples[:1]) else []
    found += [(cause.specification, cause) for cause in verdict.causes if cause.left == 0]
    best = next((one for some in (samples, samples[:1]) for one in found if equal(one[0], some)), None)
    if best is None and found and samples[0].scale_a is not None:
        best = found[0]
    if best is None:
        return Explanation(None, f"none of {verdict.tried} alternatives reproduces the sample{_misread(product)}")
    s, cause = best
    if cause is None:
        return Explanation(s, samples[0].words(s))
    if base is not None:
        return Explanation(s, cause.text)
    scaled = cause.kinds == ("scales",) and s == verdict.specification  # which is not changed, but the scales
    return Explanation(s, samples[0].words(s) + f"; {cause.text}" * scaled)


def _misread(p: Recorded) -> str:
    """Scales of 128 × 128 in a layout that torch._scaled_mm of PyTorch 2.11 requires, and cuBLASLt does not read."""
    for name, axis in (("scale_a", 0), ("scale_b", 1)):
        x = p.operands.get(name, {"shape": ()})
        if p.sizes and len(x["shape"]) == 2 and x["shape"][axis] == -(-p.sizes[axis] // 128) > 1:
            blocks, line = x["shape"][1 - axis], x["strides"][axis]
            if line % 4:
                return f": cuBLASLt reads {name} in lines of {-(-blocks // 4) * 4} scales, and they are {line} apart"
    return ""


# --- two runs
@dataclass(frozen=True)
class RunDifference:
    """The first product of two runs with equal operands and different results.

    Attributes
    ----------
    compared : int
        Products with equal operands, up to the first difference.
    unaligned : (int, int)
        Products of each run without a partner in the other.
    first : (Recorded, Recorded) or None
        The products with equal operands and different results.
    rows : int
        Sampled rows with different results, if the products have different shapes; 0 if the whole results differ.
    explanations : (Explanation, Explanation) or None
        The specification of each, the second's as a change of the first's.
    before : (Recorded, Recorded) or None
        The first products with different operands, if there are some before `first`, or no `first`.
    """

    compared: int
    unaligned: tuple[int, int]
    first: tuple[Recorded, Recorded] | None = None
    rows: int = 0
    explanations: tuple[Explanation, Explanation] | None = None
    before: tuple[Recorded, Recorded] | None = None

    @property
    def equal(self) -> bool:
        """Whether all compared products have equal operands and results."""
        return self.first is None and self.before is None

    def __str__(self) -> str:
        lines = [f"{self.compared} product{'s' * (self.compared != 1)} with equal operands"]
        if any(self.unaligned):
            lines[0] += f"; {self.unaligned[0]} of run 1 and {self.unaligned[1]} of run 2 have no partner"
        if self.before is not None:
            p, q = self.before
            names = ", ".join(n for n, x in p.digests().items() if n != "D" and x != q.digests().get(n))
            lines.append(f"first different operands: {names} of {p} (run 2: product {q.index})")
        if self.first is None:
            lines += ["another operation than a recorded product returned them"] * (self.before is not None)
            return "\n".join([*lines, "no product with equal operands has different results"])
        p, q = self.first
        where = f"{self.rows} of the sampled rows" if self.rows else "the result"
        lines.append(f"FIRST DIFFERENCE: {where} of {p}; run 2: {q}")
        flags = {n: (v, q.flags.get(n)) for n, v in p.flags.items() if q.flags.get(n) != v}
        lines += [f"setting {name}: {a} in run 1, {b} in run 2" for name, (a, b) in flags.items()]
        if self.explanations is not None:
            one, two = self.explanations
            lines += [f"run 1: {one.text}", f"run 2: {two.text}"]
            if one.specification is not None and one.specification == two.specification:
                lines.append("the sampled columns do not show the difference: record more columns")
        return "\n".join(lines)


@in_ieee
def compare_runs(run1: str | os.PathLike[str], run2: str | os.PathLike[str], *, seconds: float = 20.0) -> RunDifference:
    """Find the first product of two recorded runs whose operands are equal and whose results are not.

    Parameters
    ----------
    run1, run2 : path
        Folders of the runs, from `fpemu.torch.record`.
    seconds : float
        Duration of the search for the cause in each run; 0: none.

    Returns
    -------
    RunDifference
        The product, and its specification in both runs.

    Raises
    ------
    InputError
        No runs.

    Notes
    -----
    Products are aligned by N and K, and by B if one run has more of them. Two products of one shape are compared by the
    digests of their operands and results. Of different shapes, such as those of two batch sizes, the sampled rows with
    equal A, B and C are compared; of attention, the first element of the batch.
    """
    number("seconds", seconds, 0)
    runs = read(run1), read(run2)
    compared, before = 0, None
    pairs = list(_aligned(*runs))
    unaligned = len(runs[0]) - len(pairs), len(runs[1]) - len(pairs)
    for p, q in pairs:
        rows = _compared(p, q)
        if rows is None:
            before = before or (p, q)
            continue
        compared += 1
        if rows < 0:
            continue
        alike = [[x for x in run if _kernel(x) == _kernel(first) and x != first][:_OTHERS]
                 for run, first in zip(runs, (p, q), strict=True)]  # fmt: skip
        one = explain(p, seconds=seconds, others=alike[0])
        same = [p.operands[n]["type"] for n in p.operands] == [q.operands[n]["type"] for n in q.operands]
        base = one.specification if same and "scale_a" not in p.arrays else None
        two = explain(q, base=base, seconds=seconds, others=alike[1])
        return RunDifference(compared, unaligned, (p, q), rows, (one, two), before)
    return RunDifference(compared, unaligned, before=before)


def _aligned(run1: list[Recorded], run2: list[Recorded]) -> Iterator[tuple[Recorded, Recorded]]:
    """The products of both runs with equal N and K, in order; with equal B too if a run has others between them."""
    keys: Any = [[p.sizes[1:] if p.sizes else (p.operator,) for p in run] for run in (run1, run2)]
    if keys[0] == keys[1]:
        yield from zip(run1, run2, strict=True)
        return
    one, two = (
        [(*key, sample_key(p)) for key, p in zip(*x, strict=True)] for x in zip(keys, (run1, run2), strict=True)
    )
    for i, j, count in SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks():
        yield from zip(run1[i : i + count], run2[j : j + count], strict=True)


def _compared(p: Recorded, q: Recorded) -> int | None:
    """None if the operands differ, -1 if the results are equal, else the number of different sampled rows, or 0."""
    names = [name for name in p.operands if name != "D"]
    if {*p.operands} != {*q.operands} or (p.alpha, p.beta) != (q.alpha, q.beta):
        return None
    one, two = p.digests(), q.digests()
    if all(one[n] == two[n] and p.operands[n]["shape"] == q.operands[n]["shape"] for n in names):
        return -1 if one["D"] == two["D"] else 0
    if p.sizes is None:  # attention: the first element of the batch
        one, two = p.digests("part"), q.digests("part")
        equal = all(one[n] and one[n] == two[n] for n in names)
        return None if not equal else -1 if one["D"] == two["D"] else 0
    whole = [n for n in names if n != "A" and p.operands[n]["shape"] == q.operands[n]["shape"]]  # B, a bias, scales
    if sample_key(p) != sample_key(q) or any(one[n] != two[n] for n in whole):
        return None
    rows = [_rows(x) for x in (p, q)]
    common = [key for key in rows[0] if key in rows[1]]
    different = sum(rows[0][key] != rows[1][key] for key in common)
    return None if not common else different or -1


def _rows(p: Recorded) -> dict[bytes, str]:
    """The digest of each sampled row of D, by the bytes of its rows of A, C and scales."""
    A, C, scale = p.sample("A"), p.sample("C"), p.sample("scale_a")
    if A is None:
        return {}
    parts = [A, *([] if C is None else [C]), *([scale] if scale is not None and len(scale) == len(A) else [])]
    keys = [b"".join(x[i].tobytes() for x in parts) for i in range(len(A))]
    return dict(zip(keys, p.row_digests, strict=True))


# --- one run
@dataclass(frozen=True)
class Replayed:
    """Products of a run with equal sizes, types, layouts and settings.

    Attributes
    ----------
    example : Recorded
        The first of them.
    count, explained : int
        Number of products, and of those whose sample a specification reproduces.
    texts : tuple of str
        These specifications in words, or the reason why there is none.
    """

    example: Recorded
    count: int
    explained: int
    texts: tuple[str, ...]


@in_ieee
def replay_run(run: str | os.PathLike[str], *, seconds: float = 20.0, report: Any = None) -> list[Replayed]:
    """Emulate the sample of every product of a run, and find the orders that reproduce it.

    Parameters
    ----------
    run : path
        Folder of the run, from `fpemu.torch.record`.
    seconds : float
        Duration of each search for an order.
    report : callable, optional
        Called with each product.

    Returns
    -------
    list of Replayed
        The products by sizes, types, layouts and settings.

    Raises
    ------
    InputError
        No run.
    """
    number("seconds", seconds, 0)
    groups: dict[str, list[Recorded]] = {}
    for p in read(run):
        groups.setdefault(_kernel(p), []).append(p)
    known: dict[str, dict[str, Specification]] = {}
    replayed = []
    for group in groups.values():
        shared = known.setdefault(str([x["type"] for x in group[0].operands.values()]), {})
        texts: dict[str, Specification | None] = {}
        explained = searches = 0
        for p in group:
            if report is not None:
                report(p)
            orders = [s for s in (*texts.values(), *shared.values()) if s is not None]
            others = [x for x in group if x != p][:_OTHERS] if not orders else []
            found = explain(p, orders, seconds=seconds if searches < _SEARCHES else 0.0, others=others)
            searches += found.text not in texts
            texts.setdefault(found.text, found.specification)
            if found.specification is not None:
                shared[found.text] = found.specification
                explained += 1
        replayed.append(Replayed(group[0], len(group), explained, tuple(texts)))
    return replayed
