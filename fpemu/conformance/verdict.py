"""`verify`: compare a product with its specification, bit for bit, and search for the likeliest cause of mismatches."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, inputs, mma, schemes, simt, theory
from fpemu._system import in_ieee
from fpemu.arguments import any_complex, integer, integers, number
from fpemu.conformance.causes import REFUSED, Cause, Problem, indistinguishable, search
from fpemu.conformance.compare import Difference, _compare, as_real
from fpemu.conformance.specification import Specification, describe_order, evaluate
from fpemu.conformance.structure import Residual, defects
from fpemu.errors import InputError, entries, shown
from fpemu.mma import KOrder
from fpemu.mma.device import Device
from fpemu.mma.spec import MmaSpec
from fpemu.probing.callables import CheckedCallable, as_matrix, as_numbers, bits
from fpemu.probing.reveal import reveal

Array = NDArray[Any]
_LISTED = 3  # indistinguishable alternatives listed in the text
_FEW = 8  # mismatches that a deviation may remove by chance
_COMPARED = 40  # alternatives that a further product is drawn to distinguish
_SUSPECT = 3.0  # residuals, in typical errors, from which on structural defects are searched for


@dataclass(frozen=True)
class Verdict:
    """Outcome of the comparison of a result with its specification.

    Attributes
    ----------
    equal : bool
        Whether every bit is as specified.
    specification : Specification
        The specification that was compared with.
    shape : (M, N, K)
        Sizes of the product.
    difference : Difference or None
        The mismatches; None where there are none.
    causes : tuple of Cause
        Alternatives that reproduce every bit, the likeliest first; where there are none, those that reproduce some
        mismatching entries.
    tried : int
        Number of alternatives that were tried.
    complete : bool
        Whether the search ended before its budget was spent.
    alike : tuple of str
        Where the result is equal: alternatives that give the same bits for these operands.
    relative : float
        Norm of the difference relative to the expected product (L2).
    beyond : int or None
        Entries whose distance from the exact product no summation order of the arithmetic can produce; None if no bound
        is known. Such entries show a defect of the structure: wrong terms, places or factors.
    others : tuple of Specification
        The specifications of `alike`.
    place : str
        In a batch, the product with mismatches; otherwise the number of products.
    identified : str
        Where the specification names no hardware, instruction or scheme: the first arithmetic found that gives every
        bit, in words; `specification` states it, and `causes` and `alike` hold the others.
    """

    equal: bool
    specification: Specification
    shape: tuple[int, int, int]
    difference: Difference | None
    causes: tuple[Cause, ...] = ()
    tried: int = 0
    complete: bool = True
    alike: tuple[str, ...] = ()
    relative: float = 0.0
    beyond: int | None = 0
    others: tuple[Specification, ...] = ()
    place: str = ""
    identified: str = ""

    @property
    def explained(self) -> bool:
        """Whether a cause reproduces every bit."""
        return any(cause.left == 0 for cause in self.causes)

    def __str__(self) -> str:
        M, N, K = self.shape
        title = f"identified: {self.identified}" if self.identified else f"specification: {self.specification}"
        lines = [f"{title}; {M} × {N} × {K}{self.place}"]
        if self.difference is None:
            lines.append(f"equal: all {M * N} entries, bit for bit")
            alike = tuple(dict.fromkeys((*(cause.text for cause in self.causes[1:]), *self.alike)))
            lines += self._undistinguished("the same bits", alike, f" ({self.tried} alternatives tried)")
            return "\n".join(lines)
        lines.append(f"DIFFERS by {self.relative:.3g} (relative L2), {self.kind}: {self.difference}")
        if self.explained:
            first, *others = self.causes
            lines.append(f"likeliest cause: {first.text} (reproduces all bits; {self.tried} alternatives tried)")
            lines += self._undistinguished("all bits too", tuple(cause.text for cause in others))
        elif self.tried:
            budget = "" if self.complete else "; the search ended at its limit of time or of alternatives"
            lines.append(f"cause not found: none of {self.tried} alternatives reproduces all bits{budget}")
            count = self.difference.entries
            lines += [f"explains part ({c.left} of {count} entries still differ): {c.text}" for c in self.causes]
        return "\n".join(lines)

    @property
    def kind(self) -> str:
        """The size of the mismatches, "rounding" or "structure", with the reason."""
        if self.beyond is None:
            return "unclassified, as no error bound is known"
        if self.beyond:
            return (
                f"structure ({self.beyond} entries are farther from the exact product than any summation order gives)"
            )
        return "rounding (within the worst case of the arithmetic in any summation order)"

    def distinguish(self, seed: int = 0) -> tuple[Array, Array, int]:
        """Draw operands that distinguish the alternatives with equal bits.

        Parameters
        ----------
        seed : int
            Seed of the operands.

        Returns
        -------
        A, B : arrays
            Operands in the format of the specification.
        count : int
            Number of alternatives whose product of A and B differs from the specification's (the first cause's).

        Raises
        ------
        InputError
            There are no alternatives to distinguish.
        """
        first, *others = [cause.specification for cause in self.causes if cause.left == 0] or [self.specification]
        others = [*others, *self.others][:_COMPARED]
        if not others:
            raise InputError(
                "there are no alternatives with equal bits: these operands distinguish all that were tried"
            )
        plain = [replace(s, alpha=1.0, beta=0.0, epilogue="separate", length=None) for s in (first, *others)]
        K, best = self.shape[2], None
        fmt = formats.get("fp32" if isinstance(first.operand, str) else first.operand)
        for name, length in (("uniform", K), ("normal", K), ("normal", 4 * K), ("lognormal", K)):
            limits = {"low": -127.0, "high": 127.0} if first.is_integer and name == "uniform" else {}
            try:
                A, B = inputs.operands(name, 16, 16, length, seed, fmt, **limits)
            except InputError:  # values beyond a narrow format
                continue
            A, B = (x.astype(np.int8) if first.is_integer else x for x in (A, B))
            values = []
            for s in plain:
                try:
                    values.append(bits(evaluate(s, A, B)).tobytes())
                except REFUSED:  # orders of another K
                    values.append(b"")
            count = sum(value not in (b"", values[0]) for value in values[1:])
            if best is None or count > best[2]:
                best = A, B, count
            if count == len(others):
                break
        assert best is not None
        return best

    def _undistinguished(self, what: str, texts: tuple[str, ...], tried: str = "") -> list[str]:
        """Lines about the first alternatives with equal bits, the number of others, and a further product."""
        if not texts:
            return []
        count = f"{len(texts)} other{'s' * (len(texts) > 1)}"
        lines = [f"these operands do not distinguish it from {count}{tried}:"]
        lines += [f"  {what}: {text}" for text in texts[:_LISTED]]
        lines += [f"  and {len(texts) - _LISTED} more"] * (len(texts) > _LISTED)
        A, B, different = self.distinguish()
        (M, K), N = A.shape, B.shape[1]
        text = f"a further product of shape {M} × {N} × {K} distinguishes {different} of them"
        return lines + [f"{text}: --distinguish writes A and B"] * (different > 0)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        difference = None if self.difference is None else asdict(self.difference)
        causes = [{**vars(cause), "specification": str(cause.specification)} for cause in self.causes]
        texts: dict[str, Any] = {"specification": str(self.specification), "difference": difference, "causes": causes}
        texts["others"] = [str(s) for s in self.others]
        return {**vars(self), **texts, "explained": self.explained}


@in_ieee
def verify(
    result: Any,
    A: Any,
    B: Any = None,
    C: Any = None,
    *,
    specification: Specification | None = None,
    device: Device = "cpu",
    shape: tuple[int, int, int] | None = None,
    seed: int = 0,
    causes: bool = True,
    seconds: float = 20.0,
    most: int = 10**9,
    progress: Callable[[str, int], None] | None = None,
    **fields: Any,
) -> Verdict:
    """Compare a product with the emulation of its specification, bit by bit.

    Parameters
    ----------
    result : array (..., M, N), or callable
        D, or a function that computes it: called as (A, B), as (A, B, C) where there is a C, with the arrays as given.
    A, B : arrays (..., M, K) and (..., K, N)
        Leading axes are batch axes, which broadcast. Arrays of NumPy, PyTorch, CuPy, or any library with DLPack.
        Complex NumPy arrays stand for the real product of their parts, as in `fpemu.gemm`, form 4M, and mismatches are
        counted and located there: columns 2n and 2n + 1 are the parts of column n. For a
        callable, A may be the name of a distribution (`fpemu.inputs.names`), with `shape` (M, N, K) and `seed`: the
        callable then receives NumPy arrays.
    C : array (..., M, N), optional
        Required with a beta other than 0, and only then; values of fp32 (fp64 for an fp64 product, int32 for int8).
    specification : Specification, optional
        The specification; default: one chain of instructions in A's format. Without hardware, instruction and scheme,
        the arithmetic is identified: ordinary cores, OpenBLAS's kernels and the instructions of the catalogue are
        compared, in the stated order, or else in all orders, and the first with equal bits becomes the specification.
    device : {"cpu", "cuda", "auto"}
        Device of the emulation, as in `fpemu.mma.gemm`.
    shape : (M, N, K), optional
        Sizes of operands drawn by name.
    seed : int
        Seed of operands drawn by name.
    causes : bool
        Whether to search for the cause of mismatches, or without mismatches for alternatives with the same bits.
    seconds, most : float, int
        Budget of that search: its duration, and its number of alternatives.
    progress : callable, optional
        Function called with a description and a count as the search advances.
    **fields
        Fields of `Specification` that differ from `specification` (`hardware`, `scheme`, `order`, `alpha`, `beta`,
        `fmt`, `out` ...), and options of the scheme.

    Returns
    -------
    Verdict
        The mismatches and their likely causes; of a batch, for the first product with mismatches.

    Raises
    ------
    InputError
        Operands, result and specification do not fit one another; a callable raises, changes its operands, or returns
        different bits in two calls.

    Examples
    --------
    >>> import fpemu
    >>> from fpemu.mma import KOrder
    >>> A, B = fpemu.inputs.operands("normal", 8, 8, 96, seed=1, dtype="fp16")
    >>> spec = fpemu.mma.spec("H100", "fp16")
    >>> D = fpemu.mma.gemm(A, B, None, spec, KOrder(split=48))
    >>> verify(D, A, B, hardware="H100", order=KOrder(split=48)).equal
    True
    >>> verify(D, A, B, hardware="H100").causes[0].text
    'split in slices of 48, or promotion every 48 of k, which is the same'
    """
    s = (specification or Specification())._changed(**fields)
    for name in (s.fmt, s.instruction):
        if isinstance(name, str) and re.search("^mx|^nvfp|block.?scale", name, re.IGNORECASE):
            raise InputError(
                f"{name} is a block-scaled product, and verify takes no scales: compare the result with "
                f"fpemu.mma.gemm(A, B, C, spec, scale_a=, scale_b=)"
            )
    seed, most = integer("seed", seed, 0), integer("most", most, 0)
    seconds = number("seconds", seconds, 0, np.inf)
    if not isinstance(A, str) and any_complex(A, B, C, None if callable(result) else result):
        if callable(result) or (s.scheme is not None and schemes.get(s.scheme).modular):
            raise InputError("a complex product by ozaki2 or of a callable: compare the result with fpemu.gemm's")
        result, A, B, C = as_real(result, A, B, C)
    if isinstance(A, str):
        A, B = _drawn(result, A, B, shape, seed, s)
    elif shape is not None:
        raise InputError("shape= goes with operands drawn by name: A and B have theirs")
    elif max(getattr(A, "ndim", 0), getattr(B, "ndim", 0)) > 2:
        budget = {"device": device, "causes": causes, "seconds": seconds, "most": most, "progress": progress}
        return _verify_batch(result, A, B, C, s, budget)
    a, b = as_matrix(A, "A"), as_matrix(B, "B")
    c = None if C is None else as_matrix(C, "C").values
    (M, K), (k, N) = a.values.shape, b.values.shape
    if k != K:
        raise InputError(f"A of shape {(M, K)} and B of shape {(k, N)}: A has {K} columns and B {k} rows")
    if (c is None) != (s.beta == 0):
        raise InputError("C is given but beta is 0: it would not be used" if c is not None else "beta needs C")
    if c is not None and c.shape != (M, N):
        raise InputError(f"C of shape {c.shape} does not fit the product of shape {(M, N)}")
    if a.fmt != b.fmt and s.scheme is None and s.fmt is None and s.spec is None:
        raise InputError(f"A is {a.fmt or a.values.dtype} and B is {b.fmt or b.values.dtype}: give fmt= of both")
    gemm = CheckedCallable(result, like=(A, B)) if callable(result) else None
    D = as_matrix(result, "the result") if gemm is None else gemm.repeat(A, B, *(() if C is None else (C,)))
    if D.values.shape != (M, N):
        transposed = "; transpose a result that is stored by columns" * (D.values.shape == (N, M))
        raise InputError(f"the result has shape {D.values.shape}: the product of A and B has {(M, N)}{transposed}")
    operand = a.fmt or {"f4": "fp32", "i1": "int8"}.get(a.values.dtype.str[1:])
    stated, identify = s, not any((s.hardware, s.scheme, s.instruction, s.k, s.accumulate))
    if identify and (fmt := s.fmt or operand) is not None:
        s = _on_ordinary_cores(s, fmt, a.values, b.values)
    s, x, y = s._resolved(operand, D.fmt if D.fmt != "fp64" else None)._with_operands(a.values, b.values)
    _check_formats(D.values, c, s)
    expected = evaluate(s, x, y, c, device=device).astype(D.values.dtype, copy=False)
    difference = _compare(D.values, expected, s.result if s.result != "int32" else "fp32")
    verdict = Verdict(difference is None, s, (M, N, K), difference)
    if identify and verdict.equal:
        verdict = replace(verdict, identified=_unit((), s))
    if verdict.equal and (s.is_integer or not causes):
        return verdict
    end = time.perf_counter() + seconds
    if difference is None:
        return _with_alike(verdict, Problem(s, x, y, c, D.values, expected, device, end, most, identify=identify))
    with np.errstate(all="ignore"):
        residual = Residual(s, x, y, c, D.values, expected)
        verdict = replace(verdict, relative=residual.relative, beyond=_beyond(residual))
    if not causes:
        return verdict
    if gemm is not None:
        gemm.end = time.perf_counter() + seconds / 2
    reveal = None if gemm is None or c is not None else lambda changed: _reveal(gemm, changed, (M, N, K))
    wrong = bits(D.values) != bits(expected)
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    # a region with mismatches is searched by itself, unless it is almost the whole result or they are few
    local = len(rows) * len(columns) <= 0.9 * wrong.size and wrong.sum() >= _FEW
    part = time.perf_counter() + seconds / (2 if local else 1)
    problem = Problem(s, x, y, c, D.values, expected, device, part, most, identify=identify)
    found = _explain(problem, residual, reveal, progress)
    verdict = replace(verdict, causes=found, tried=problem.tried, complete=not problem.spent())
    contradicted = {kind for name, kind in _STATED.items() if getattr(stated, name) is not None}
    if identify and verdict.explained and not ({*found[0].kinds} & contradicted):
        first = found[0].specification
        verdict = replace(verdict, equal=True, specification=first, difference=None, relative=0.0, beyond=0)
        verdict = replace(verdict, identified=_unit(found[0].kinds, first, found[0].text))
        return _with_alike(verdict, Problem(first, x, y, c, D.values, D.values, device, end, most, identify=True))
    if verdict.explained or not local:
        return verdict
    at = np.ix_(rows, columns)
    inner = (s, x[rows], y[:, columns], None if c is None else c[at], D.values[at], expected[at])
    second = Problem(*inner, device, time.perf_counter() + seconds / 2, most)
    found = _explain(second, Residual(*inner), None, progress)
    where = next((p for p in difference.patterns if p.startswith("only in")), "only where entries differ")
    there = tuple(replace(one, text=f"{where}: {one.text}") for one in found)
    tried, complete = problem.tried + second.tried, not (problem.spent() or second.spent())
    explained = tuple(one for one in there if one.left == 0)
    return replace(verdict, causes=explained or verdict.causes or there, tried=tried, complete=complete)


_STATED = {"fmt": "inputs", "order": "order", "out": "result", "alpha": "structure", "beta": "epilogue"}
"""Fields of a specification, and the kind of cause that contradicts each; alpha and beta always have values."""


def _on_ordinary_cores(s: Specification, fmt: str, A: Array, B: Array) -> Specification:
    """The specification of a product of FMAs, or of the integer instruction, with operands of a format."""
    if fmt == "int8":
        return replace(s, hardware=mma.spec("ampere", "int8"), fmt=None)
    narrow = formats.get(fmt)
    held = narrow.name == "tf32" or (narrow.contains(A).all() and narrow.contains(B).all())
    inputs = s.inputs if held or s.inputs else (narrow.name, "RNE")
    return replace(s, hardware=simt.SPECS["fp64" if narrow.name == "fp64" else "fp32"], fmt=None, inputs=inputs)


def _unit(kinds: tuple[str, ...], s: Specification, text: str = "") -> str:
    """The arithmetic of a product in words: `text` describes its deviations from one chain of FMAs."""
    unit = f"ordinary cores: FMAs in {s.accumulator}"
    parts = [] if {"hardware", "accumulator", "library", "scheme"} & {*kinds} else [unit]
    if s.is_integer:
        parts = ["an int8 product with sums in int32, on any unit"]
    elif not {"order", "library", "scheme"} & {*kinds}:
        text += "; " * bool(text) + describe_order(s.order)
    return "; ".join([*parts, text] if text else parts)


def _with_alike(verdict: Verdict, p: Problem) -> Verdict:
    """The verdict with the alternatives that these operands do not distinguish from its specification."""
    same, tried = indistinguishable(p)
    listed = [cause.text for cause in verdict.causes]
    same = [one for one in same if one[0] not in listed]
    return replace(
        verdict,
        tried=verdict.tried + tried,
        alike=tuple(text for text, _ in same),
        others=tuple(one for _, one in same),
    )


def _explain(
    p: Problem, residual: Residual, reveal: Any, progress: Callable[[str, int], None] | None
) -> tuple[Cause, ...]:
    """The causes of mismatches: structural defects, with deviations of the arithmetic beside them, or these alone."""
    partly: list[tuple[int, Problem, Cause]] = []
    # residuals that another rounding of the operands removes are no defect of the structure
    converted, least = p.converted
    rounded = () not in converted and least < residual.typical * residual.unit / 4
    if residual.typical > _SUSPECT and not rounded:
        for defect in defects(residual):
            s = replace(p.s, **defect.fields)
            p.tried += 1
            try:
                E = evaluate(s, defect.A, defect.B, defect.C).astype(p.D.dtype, copy=False)
            except REFUSED:
                continue
            source = np.arange(E.size).reshape(E.shape) if defect.source is None else defect.source
            wrong = (bits(E).ravel()[source] != bits(p.D)) & (source >= 0)
            cause = Cause(("structure",), defect.text, int(wrong.sum()), s)
            if not wrong.any():
                count = int((source < 0).sum())
                more = f" ({count} entries; all others are equal bit for bit)" if count else ""
                return (replace(cause, text=defect.text + more),)
            target, ignored = E.copy(), np.ones(E.size, bool)
            target.ravel()[source[source >= 0]] = p.D[source >= 0]
            ignored[source[source >= 0]] = False
            rest = ignored.reshape(E.shape)
            inner = Problem(s, defect.A, defect.B, defect.C, target, E, p.device, p.end, p.most, rest)
            partly.append((cause.left, inner, cause))
            if len(partly) > 8 or p.over():
                break
    for _, inner, cause in sorted(partly, key=lambda one: one[0])[:2]:
        causes = search(inner, None, progress)
        p.tried += inner.tried
        if causes:
            kinds = ("structure", *causes[0].kinds)
            return tuple(replace(one, kinds=kinds, text=f"{cause.text}; {one.text}") for one in causes)
    causes = search(p, reveal, progress) if not p.over() else []
    if not causes:
        for left, _, cause in sorted(partly, key=lambda one: one[0])[:1]:
            text = f"{cause.text} (the {left} entries then differ by rounding alone)"
            return (replace(cause, text=text),)
    return tuple(causes)


def _beyond(residual: Residual) -> int | None:
    """The number of entries that no summation order of the specified arithmetic can produce."""
    s, a, b = residual.s, residual.a, residual.b
    if s.is_integer:
        return int(residual.wrong.sum())
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    sizes = np.abs(residual.T) + np.abs(residual.d) + (0 if residual.c is None else np.abs(residual.c))
    try:
        limit = limits(s, residual.A, residual.B, np.abs(a) @ np.abs(b), sizes)
    except REFUSED:
        return None
    far = np.abs(residual.d - residual.T) > limit
    return int((far | (np.isfinite(residual.T) & ~np.isfinite(residual.d) & np.isfinite(residual.expected))).sum())


def limits(
    s: Specification, A: Array, B: Array, sums: Array, sizes: Array, order: KOrder | None = None, block: int = 1
) -> Array:
    """Bounds of |D - exact D| by a resolved specification, in one order or in every order of blocks of a length.

    `sums` are the sums of the magnitudes of the terms, and `sizes` those of the addends of the epilogue and of D.
    """
    if s.is_integer:
        return np.zeros_like(sums)
    K = A.shape[1]
    if s.scheme is not None:
        limit = theory.entrywise(s.scheme, s.spec, A=A, B=B, on_range=s.on_range)  # type: ignore[arg-type]
    else:
        assert s.spec is not None
        spec = s.spec
        if order is None:
            with contextlib.suppress(InputError):
                spec = spec.replace(k=block, block=min(block, spec.block))
        # the relative bound depends on the operands by underflow alone: rows and columns with the smallest terms
        a, b = (np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0) for x in s.multiplied(A, B))
        rows, columns = (np.argsort(np.abs(x).sum(axis=axis))[:4] for x, axis in ((a, 1), (b, 0)))
        limit = theory.chain(spec, theory.Norms.of(a[rows], b[:, columns]), order).worst * sums
    # additions of partial sums, alpha, beta and the conversion of the result
    unit, steps = 2.0 ** -formats.get(s.result).fraction_bits, 4 if order is not None else 4 + -(-K // block)
    extra = steps * (2.0**-52 if str(s.accumulator) == "fp64" else 2.0**-23)
    limit = np.abs(s.alpha) * (limit + extra * sums) + unit * sizes + formats.get(s.result).min_subnormal
    return np.asarray(limit)


def _verify_batch(result: Any, A: Any, B: Any, C: Any, s: Specification, budget: dict[str, Any]) -> Verdict:
    """The verdict on the first product of a batch with mismatches, or on the last."""
    given = (A, B) if C is None else (A, B, C)
    values = [as_numbers(x, name) for x, name in zip(given, "ABC", strict=False)]
    D = as_numbers(result(*given) if callable(result) else result, "the result")
    if callable(result) and not np.array_equal(bits(as_numbers(result(*given), "the result").values), bits(D.values)):
        raise InputError("two calls of the callable with the same operands differ: it is not deterministic")
    try:
        lead = np.broadcast_shapes(*(x.values.shape[:-2] for x in values))
        flat = [np.broadcast_to(x.values, (*lead, *x.values.shape[-2:])) for x in values]
    except ValueError:
        shapes = ", ".join(str(x.values.shape) for x in values)
        raise InputError(f"the leading axes of the operands do not broadcast: {shapes}") from None
    if D.values.shape[:-2] != lead:
        raise InputError(f"the result has shape {D.values.shape}: the batch has the leading axes {lead}")
    fmt, out = values[0].fmt, D.fmt
    if s.scheme is None and s.fmt is None and not isinstance(s.hardware, MmaSpec) and fmt and fmt == values[1].fmt:
        s = replace(s, fmt=fmt)
    s = s if s.out or out in (None, "fp64") or s.scheme is not None else replace(s, out=out)
    for index in np.ndindex(*lead):
        verdict = verify(D.values[index], *(x[index] for x in flat), specification=s, **budget)
        if verdict.identified and verdict.equal:
            s = verdict.specification
        if not verdict.equal:
            return replace(verdict, place=f", product {list(index)} of a batch of shape {lead}")
    return replace(verdict, place=f", {math.prod(lead)} products")


def _drawn(result: Any, name: str, B: Any, shape: Any, seed: int, s: Specification) -> tuple[Array, Array]:
    """Operands of a distribution."""
    if not callable(result):
        raise InputError(
            f"A = {shown(name)} names a distribution, which goes with a callable: a result belongs to its operands"
        )
    if B is not None or shape is None:
        raise InputError("operands drawn by name need shape=(M, N, K), and no B")
    M, N, K = integers("shape", shape, 1, 2**31, length=3)
    fmt = s.fmt or ("fp32" if s.scheme is None else schemes.build(s.scheme, s.options).operand.name)
    if fmt == "int8":
        rng = np.random.default_rng(seed)
        return rng.integers(-128, 128, (M, K), np.int8), rng.integers(-128, 128, (K, N), np.int8)
    return inputs.operands(name, M, N, K, seed, formats.get(fmt))


def _check_formats(D: Array, C: Array | None, s: Specification) -> None:
    """Raise InputError if D's dtype cannot hold the specified values, or if the accumulator cannot hold C."""
    if s.result == "int32":
        if D.dtype != np.int32:
            raise InputError(f"the result is {D.dtype}: the specification gives int32")
    else:
        fmt = formats.get(s.result)
        if D.dtype not in (fmt.dtype, np.dtype(np.float32)) or D.dtype.itemsize < fmt.dtype.itemsize:
            other = "out= gives another format of D" + (", fmt= of A and B" if s.scheme is None else "")
            raise InputError(f"the result is {D.dtype}: the specification gives {fmt} ({fmt.dtype}); {other}")
    if C is not None:  # its conversion would change the product
        name = "int32" if s.is_integer else "fp64" if s.accumulator == "fp64" else "fp32"
        with np.errstate(invalid="ignore"):
            held = np.asarray(C.astype(np.int32) == C if name == "int32" else formats.get(name).contains(C))
        if not held.all():
            raise InputError(f"C has entries that are not values of {name}: {entries(~held, C)}")


def _reveal(gemm: CheckedCallable, s: Specification, shape: tuple[int, int, int]) -> Any:
    """The order of a callable, from probes of products of the same shape."""
    if s.scheme is not None or s.spec is None or s.spec.is_integer:
        raise InputError("only plain products are probed")
    M, N, K = shape
    out = s.result if s.result != str(s.spec.d_format) else None
    return reveal(gemm, K, s.spec, out=out, shape=(M, N), check=False)  # a defect may be what it probes
