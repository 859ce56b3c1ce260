"""`verify`: compare a product with its specification, bit for bit, and search for the likeliest cause of mismatches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, inputs, schemes
from fpemu.arguments import integer, integers, number
from fpemu.conformance.causes import Cause, Sample, indistinguishable, search
from fpemu.conformance.compare import Difference, _compare
from fpemu.conformance.specification import Specification, evaluate
from fpemu.errors import InputError, entries, shown
from fpemu.mma.device import Device
from fpemu.probing.callables import CheckedCallable, as_matrix, bits
from fpemu.probing.reveal import reveal

Array = NDArray[Any]
_LISTED = 3  # indistinguishable alternatives listed in the text
_FEW = 8  # mismatches that a deviation may remove by chance


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
    """

    equal: bool
    specification: Specification
    shape: tuple[int, int, int]
    difference: Difference | None
    causes: tuple[Cause, ...] = ()
    tried: int = 0
    complete: bool = True
    alike: tuple[str, ...] = ()

    @property
    def explained(self) -> bool:
        """Whether a cause reproduces every bit."""
        return any(cause.left == 0 for cause in self.causes)

    def __str__(self) -> str:
        M, N, K = self.shape
        lines = [f"specification: {self.specification}; {M} × {N} × {K}"]
        if self.difference is None:
            lines.append(f"equal: all {M * N} entries, bit for bit")
            lines += _list_alternatives("the same bits", self.alike, f" ({self.tried} alternatives tried)")
            return "\n".join(lines)
        lines.append(f"DIFFERS: {self.difference}")
        if self.explained:
            first, *others = self.causes
            lines.append(f"likeliest cause: {first.text} (reproduces all bits; {self.tried} alternatives tried)")
            lines += _list_alternatives("all bits too", tuple(cause.text for cause in others))
        elif self.tried:
            budget = "" if self.complete else "; the search ended at its limit of time or of alternatives"
            lines.append(f"cause not found: none of {self.tried} alternatives reproduces all bits{budget}")
            count = self.difference.entries
            lines += [f"explains part ({c.left} of {count} entries still differ): {c.text}" for c in self.causes]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        difference = None if self.difference is None else asdict(self.difference)
        causes = [{**vars(cause), "specification": str(cause.specification)} for cause in self.causes]
        texts = {"specification": str(self.specification), "difference": difference, "causes": causes}
        return {**vars(self), **texts, "explained": self.explained}


def _list_alternatives(what: str, texts: tuple[str, ...], tried: str = "") -> list[str]:
    """A line for each of the first alternatives that the operands do not distinguish, and one for the others."""
    if not texts:
        return []
    count = f"{len(texts)} other{'s' * (len(texts) > 1)}"
    lines = [f"these operands do not distinguish it from {count}{tried}:"]
    lines += [f"  {what}: {text}" for text in texts[:_LISTED]]
    return lines + [f"  and {len(texts) - _LISTED} more"] * (len(texts) > _LISTED)


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
    most: int = 20000,
    progress: Callable[[str, int], None] | None = None,
    **fields: Any,
) -> Verdict:
    """Compare a product with the emulation of its specification, bit by bit.

    Parameters
    ----------
    result : array (M, N), or callable
        D, or a function that computes it: called as (A, B), as (A, B, C) where there is a C, with the arrays as given.
    A, B : arrays (M, K) and (K, N)
        Arrays of NumPy, PyTorch, CuPy, or any library with DLPack. For a callable, A may be the name of a distribution
        (`fpemu.inputs.names`), with `shape` (M, N, K) and `seed`: the callable then receives NumPy arrays.
    C : array (M, N), optional
        Required with a beta other than 0, and only then; values of fp32 (fp64 for an fp64 product, int32 for int8).
    specification : Specification, optional
        The specification; default: one chain of instructions in A's format.
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
        The mismatches and their likely causes.

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
    'split in slices of 48'
    """
    s = (specification or Specification())._changed(**fields)
    seed, most = integer("seed", seed, 0), integer("most", most, 0)
    seconds = number("seconds", seconds, 0, np.inf)
    if isinstance(A, str):
        A, B = _drawn(result, A, B, shape, seed, s)
    elif shape is not None:
        raise InputError("shape= goes with operands drawn by name: A and B have theirs")
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
    s, x, y = s._resolved(operand, D.fmt if D.fmt != "fp64" else None)._with_operands(a.values, b.values)
    _check_formats(D.values, c, s)
    expected = evaluate(s, x, y, c, device=device).astype(D.values.dtype, copy=False)
    difference = _compare(D.values, expected, s.result if s.result != "int32" else "fp32")
    verdict = Verdict(difference is None, s, (M, N, K), difference)
    if not causes or (verdict.equal and s.is_integer):
        return verdict
    sample = Sample(s, x, y, c, D.values, expected, device, seconds, most)
    if difference is None:
        same, tried = indistinguishable(sample)
        return replace(verdict, tried=tried, alike=same)
    if gemm is not None:
        gemm.end = time.perf_counter() + seconds / 2
    reveal = None if gemm is None or c is not None else lambda changed: _reveal(gemm, changed, (M, N, K))
    wrong = bits(D.values) != bits(expected)
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    # a region with mismatches is searched by itself, unless it is almost the whole result or they are few
    local = len(rows) * len(columns) <= 0.9 * wrong.size and wrong.sum() >= _FEW
    if local:
        seconds /= 2
        sample.end -= seconds
    explanations, complete = search(sample, reveal, progress)
    verdict = replace(verdict, causes=explanations, tried=sample.tried, complete=complete)
    if verdict.explained or not local:
        return verdict
    at = np.ix_(rows, columns)
    part = Sample(
        s, x[rows], y[:, columns], None if c is None else c[at], D.values[at], expected[at], device, seconds, most
    )
    explanations, ended = search(part, None, progress)
    where = next((p for p in difference.patterns if p.startswith("only in")), "only where entries differ")
    causes_there = tuple(replace(one, text=f"{where}: {one.text}") for one in explanations if one.left == 0)
    tried = sample.tried + part.tried
    return replace(verdict, causes=causes_there or verdict.causes, tried=tried, complete=complete and ended)


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
    return reveal(gemm, K, s.spec, out=s.result if s.result != str(s.spec.d_format) else None, shape=(M, N))
