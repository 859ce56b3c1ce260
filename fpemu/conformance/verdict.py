"""`verify`: compare a product with its specification, bit for bit, and search for the likeliest cause of mismatches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, inputs, schemes
from fpemu.arguments import integer, integers, number, unwrapped
from fpemu.conformance.causes import Cause, Sample, indistinguishable, search
from fpemu.conformance.compare import Difference, _compare
from fpemu.conformance.specification import Specification, evaluate, from_arguments, with_input_rounding
from fpemu.errors import InputError, entries, shown
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.device import Device
from fpemu.mma.gemm import as_values
from fpemu.mma.tree import Tree
from fpemu.probing.callables import CheckedCallable, as_matrix, bits
from fpemu.probing.reveal import Revealed, reveal
from fpemu.schemes import Scheme, words

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
        return {
            "equal": self.equal,
            "specification": str(self.specification),
            "shape": list(self.shape),
            "difference": None if self.difference is None else self.difference.as_dict(),
            "explained": self.explained,
            "causes": [cause.as_dict() for cause in self.causes],
            "tried": self.tried,
            "complete": self.complete,
            "alike": list(self.alike),
        }


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
    scheme: str | Scheme | None = None,
    hardware: str | MmaSpec | None = None,
    order: KOrder | Tree | Revealed | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    device: Device = "cpu",
    fmt: str | None = None,
    out: str | None = None,
    accumulate: str | None = None,
    instruction: str | None = None,
    k: int | None = None,
    on_range: str = "raise",
    shape: tuple[int, int, int] | None = None,
    seed: int = 0,
    causes: bool = True,
    seconds: float = 20.0,
    most: int = 20000,
    progress: Callable[[str, int], None] | None = None,
    **options: Any,
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
    scheme : str or Scheme, optional
        Scheme of `fpemu.gemm`; its options are given by name. Default: a plain product of instructions.
    hardware : str or MmaSpec, optional
        An architecture, a GPU or an instruction, as in `fpemu.mma.spec`. A plain fp32 product runs as FMAs of ordinary
        cores where the hardware has no other.
    order : KOrder, tree or Revealed, optional
        Summation order over K.
    alpha, beta : float
        D = alpha A B + beta C: t = round(alpha T), D = round(t + round(beta C)).
    device : {"cpu", "cuda", "auto"}
        Device of the emulation, as in `fpemu.mma.gemm`.
    fmt : str, optional
        Format of a plain instruction's operands. Default: from A's dtype. Operands that are wider are rounded to
        nearest first, except for tf32, whose low 13 bits the instruction ignores.
    out : str, optional
        Format of D. Default: from the result's dtype, at most the accumulator's. The product is rounded once to a
        narrower format.
    accumulate : str, optional
        Format of a plain instruction's accumulator: "fp32", "fp16".
    instruction : str, optional
        Name of the matrix instruction, as in `fpemu.mma.spec`.
    k : int, optional
        Length in k of the instruction, as in `fpemu.mma.spec`.
    on_range : str
        Overflow policy of a scheme.
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
    **options
        Options of the scheme.

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
    alpha, beta = number("alpha", unwrapped(alpha)), number("beta", unwrapped(beta))
    words.policy(on_range)
    seed = integer("seed", seed, 0)
    seconds = number("seconds", seconds, 0, np.inf)
    most = integer("most", most, 0)
    if isinstance(A, str):
        A, B = _drawn(result, A, B, shape, seed, fmt, scheme, options)
    elif shape is not None:
        raise InputError("shape= goes with operands drawn by name: A and B have theirs")
    if B is None:
        raise InputError("B is missing")
    a, b = as_matrix(A, "A"), as_matrix(B, "B")
    c = None if C is None else as_matrix(C, "C").values
    if a.values.shape[1] != b.values.shape[0]:
        raise InputError(
            f"A of shape {a.values.shape} and B of shape {b.values.shape}: A has {a.values.shape[1]} columns and B "
            f"{b.values.shape[0]} rows"
        )
    M, K, N = *a.values.shape, b.values.shape[1]
    if (c is None) != (beta == 0):
        raise InputError("C is given but beta is 0: it would not be used" if c is not None else "beta needs C")
    if c is not None and c.shape != (M, N):
        raise InputError(f"C of shape {c.shape} does not fit the product of shape {(M, N)}")
    if a.fmt != b.fmt and scheme is None and fmt is None and not isinstance(hardware, MmaSpec):
        raise InputError(f"A is {a.fmt or a.values.dtype} and B is {b.fmt or b.values.dtype}: give fmt= of both")
    gemm = CheckedCallable(result, like=(A, B)) if callable(result) else None
    D = as_matrix(result, "the result") if gemm is None else gemm.repeat(A, B, *(() if C is None else (C,)))
    if D.values.shape != (M, N):
        transposed = "; transpose a result that is stored by columns" * (D.values.shape == (N, M))
        raise InputError(f"the result has shape {D.values.shape}: the product of A and B has {(M, N)}{transposed}")
    specification = from_arguments(
        a.values,
        a.fmt,
        D.fmt if D.fmt != "fp64" else None,
        scheme=scheme,
        hardware=hardware,
        order=order,
        alpha=alpha,
        beta=beta,
        fmt=fmt,
        out=out,
        accumulate=accumulate,
        instruction=instruction,
        k=k,
        on_range=on_range,
        options=options,
    )
    x, y = a.values, b.values
    specification = with_input_rounding(specification, x, y)
    if specification.is_integer:
        x, y = as_values(x, "int8", "A"), as_values(y, "int8", "B")
    _check_dtype(D.values, specification)
    if c is not None:
        _check_c(c, specification)
    expected = evaluate(specification, x, y, c, device=device).astype(D.values.dtype, copy=False)
    operands = (x, y, c, D.values, expected)
    difference = _compare(D.values, expected, specification.out if specification.out != "int32" else "fp32")
    verdict = Verdict(difference is None, specification, (M, N, K), difference)
    if not causes or (verdict.equal and specification.is_integer):
        return verdict
    if verdict.equal:
        same, tried = indistinguishable(Sample(specification, *operands, device), seconds, most)
        return replace(verdict, tried=tried, alike=same)
    if gemm is not None:
        gemm.end = time.perf_counter() + seconds / 2
    probes = None if gemm is None or C is not None else lambda changed: _reveal(gemm, changed, (M, N, K))
    budget: dict[str, Any] = {"seconds": seconds, "most": most, "progress": progress}
    region = _region(D.values, expected)
    if region is not None:
        budget["seconds"] /= 2
    why = search(Sample(specification, *operands, device), reveal=probes, **budget)
    verdict = replace(verdict, causes=why.causes, tried=why.tried, complete=why.complete)
    return verdict if verdict.explained or region is None else _within(verdict, region, operands, budget)


def _region(D: Array, expected: Array) -> tuple[Array, Array] | None:
    """The rows and columns with mismatches, if they are clearly fewer than all."""
    wrong = bits(D) != bits(expected)
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    return (rows, columns) if len(rows) * len(columns) <= 0.9 * wrong.size and wrong.sum() >= _FEW else None


def _within(
    verdict: Verdict,
    region: tuple[Array, Array],
    operands: tuple[Array, Array, Array | None, Array, Array],
    budget: dict[str, Any],
) -> Verdict:
    """The verdict with causes that hold in a region of the result alone: a tile, an edge, some columns."""
    (A, B, C, D, expected), (rows, columns) = operands, region
    C = None if C is None else C[rows][:, columns]
    D, expected = (x[rows][:, columns] for x in (D, expected))
    assert verdict.difference is not None
    why = search(Sample(verdict.specification, A[rows], B[:, columns], C, D, expected), **budget)
    where = next((p for p in verdict.difference.patterns if p.startswith("only in")), "only where entries differ")
    causes = tuple(replace(c, text=f"{where}: {c.text}") for c in why.causes if c.left == 0)
    tried, complete = verdict.tried + why.tried, verdict.complete and why.complete
    return replace(verdict, causes=causes or verdict.causes, tried=tried, complete=complete)


def _drawn(
    result: Any, name: str, B: Any, shape: Any, seed: int, fmt: str | None, scheme: Any, options: dict[str, Any]
) -> tuple[Array, Array]:
    """Operands of a distribution."""
    if not callable(result):
        raise InputError(
            f"A = {shown(name)} names a distribution, which goes with a callable: a result belongs to its operands"
        )
    if B is not None or shape is None:
        raise InputError("operands drawn by name need shape=(M, N, K), and no B")
    M, N, K = integers("shape", shape, 1, 2**31, length=3)
    fmt = fmt or (schemes.build(scheme, options).operand.name if scheme is not None else "fp32")
    if fmt == "int8":
        rng = np.random.default_rng(seed)
        return rng.integers(-128, 128, (M, K), np.int8), rng.integers(-128, 128, (K, N), np.int8)
    return inputs.operands(name, M, N, K, seed, formats.get(fmt))


def _check_dtype(D: Array, specification: Specification) -> None:
    """Raise InputError if the result's dtype cannot hold the specified values."""
    if specification.out == "int32":
        if D.dtype != np.int32:
            raise InputError(f"the result is {D.dtype}: the specification gives int32")
        return
    fmt = formats.get(specification.out)
    if D.dtype not in (fmt.dtype, np.dtype(np.float32)) or D.dtype.itemsize < fmt.dtype.itemsize:
        other = "out= gives another format of D" + (", fmt= of A and B" if specification.scheme is None else "")
        raise InputError(f"the result is {D.dtype}: the specification gives {fmt} ({fmt.dtype}); {other}")


def _check_c(C: Array, specification: Specification) -> None:
    """Raise InputError if the accumulator cannot hold C: its conversion would change the product."""
    name = "int32" if specification.is_integer else "fp64" if specification.accumulator == "fp64" else "fp32"
    with np.errstate(invalid="ignore"):
        held = C.astype(np.int32) == C if name == "int32" else formats.get(name).contains(C)
    if not np.all(held):
        raise InputError(f"C has entries that are not values of {name}: {entries(~np.asarray(held), C)}")


def _reveal(gemm: CheckedCallable, specification: Specification, shape: tuple[int, int, int]) -> Any:
    """The order of a callable, from probes of products of the same shape."""
    spec = specification.spec
    if specification.scheme is not None or spec is None or spec.is_integer:
        raise InputError("only plain products are probed")
    M, N, K = shape
    out = specification.out if specification.out != str(spec.d_format) else None
    revealed = reveal(gemm, K, spec, out=out, shape=(M, N))
    return revealed.order if revealed.order is not None else revealed.tree
