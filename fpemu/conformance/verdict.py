"""`verify`: whether a result is what a claim says it is, bit for bit, and if not, the likeliest cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, inputs
from fpemu.arguments import checked, integer, integers, number, unwrapped
from fpemu.conformance import claim as claims
from fpemu.conformance.causes import Cause, alike, search
from fpemu.conformance.claim import Claim
from fpemu.conformance.compare import Difference, compare
from fpemu.conformance.problem import Problem
from fpemu.errors import InputError, shown
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma._device import Device
from fpemu.mma.tree import Tree
from fpemu.probing.reveal import Revealed
from fpemu.probing.watching import Watched, codes, take
from fpemu.schemes import Scheme, ranges

Array = NDArray[Any]
_TOLD = 3  # alternatives of which the text tells
_FEW = 8  # differing entries that an alternative may reproduce by chance


@dataclass(frozen=True)
class Verdict:
    """Outcome of the comparison of a result with a claim.

    Attributes
    ----------
    equal : bool
        Whether every bit is as claimed.
    claim : Claim
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
    claim: Claim
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
        lines = [f"claim: {self.claim}; {M} × {N} × {K}"]
        if self.difference is None:
            lines.append(f"equal: all {M * N} entries, bit for bit")
            return "\n".join(lines + _alike("the same bits", self.alike, f" ({self.tried} alternatives tried)"))
        lines.append(f"DIFFERS: {self.difference}")
        if self.tried:
            lines += self._why()
        return "\n".join(lines)

    def _why(self) -> list[str]:
        assert self.difference is not None
        if self.explained:
            first, *others = self.causes
            lines = [f"likeliest cause: {first.text} (reproduces all bits; {self.tried} alternatives tried)"]
            return lines + _alike("all bits too", tuple(cause.text for cause in others))
        budget = "" if self.complete else ", and the budget is used up"
        lines = [f"cause not found: none of {self.tried} alternatives reproduces all bits{budget}"]
        count = self.difference.entries
        return lines + [f"explains part ({c.left} of {count} entries still differ): {c.text}" for c in self.causes]

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "equal": self.equal,
            "claim": str(self.claim),
            "shape": list(self.shape),
            "difference": None if self.difference is None else self.difference.as_dict(),
            "explained": self.explained,
            "causes": [cause.as_dict() for cause in self.causes],
            "tried": self.tried,
            "complete": self.complete,
            "alike": list(self.alike),
        }


def _alike(what: str, texts: tuple[str, ...], tried: str = "") -> list[str]:
    """A line for each of the first alternatives that the operands do not tell apart, and one for the rest."""
    if not texts:
        return []
    told = [f"these operands do not tell it from {len(texts)} other{'s' * (len(texts) > 1)}{tried}:"]
    told += [f"  {what}: {text}" for text in texts[:_TOLD]]
    return told + [f"  and {len(texts) - _TOLD} more"] * (len(texts) > _TOLD)


@checked
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
        D, or what computes it: called as (A, B), as (A, B, C) where there is a C, with the arrays as they are given.
    A, B : arrays (M, K) and (K, N)
        Of NumPy, PyTorch, CuPy, or any library with DLPack. For a callable, A may be the name of a distribution
        (`fpemu.inputs.names`), with `shape` (M, N, K) and `seed`: then it gets NumPy arrays.
    C : array (M, N), optional
        Goes with a beta that is not 0.
    scheme : str or Scheme, optional
        The claim is about a scheme of `fpemu.gemm`; its options go by name. Default: a plain product of instructions.
    hardware : str or MmaSpec, optional
        An architecture, a GPU or an instruction, as in `fpemu.mma.spec`. A plain fp32 product runs as FMAs of ordinary
        cores where the hardware has no other.
    order : KOrder, tree or Revealed, optional
        The claimed order over K.
    alpha, beta : float
        D = alpha A B + beta C: t = round(alpha T), D = round(t + round(beta C)).
    device : {"cpu", "cuda", "auto"}
        Device of the emulation, as in `fpemu.mma.gemm`.
    fmt : str, optional
        Format of a plain instruction's operands. Default: that of A's dtype. Operands that are wider are rounded to
        nearest first, but for tf32, whose low 13 bits the instruction ignores.
    out : str, optional
        Format of D. Default: that of the result's dtype, at most the accumulator's. A narrower one is rounded to once.
    accumulate : str, optional
        Format of a plain instruction's accumulator: "fp32", "fp16".
    instruction : str, optional
        Name of the matrix instruction, as in `fpemu.mma.spec`.
    k : int, optional
        Length in k of the instruction, as in `fpemu.mma.spec`.
    on_range : str
        Of a scheme.
    shape : (M, N, K), optional
        Sizes of operands drawn by name.
    seed : int
        Seed of operands drawn by name.
    causes : bool
        Whether to look for the cause of a difference, and for what the operands do not tell from a claim that holds.
    seconds, most : float, int
        Budget of that search: so long, and so many alternatives, at most.
    progress : callable, optional
        Function called with a description and a count as the search advances.
    **options
        The scheme's.

    Returns
    -------
    Verdict
        The mismatches and their likely causes.

    Raises
    ------
    InputError
        Operands, results or claims that do not fit one another; a callable that raises, changes its operands, or gives
        other bits when it is called again.

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
    ranges.policy(on_range)
    integer("seed", seed, 0)
    number("seconds", seconds, 0, np.inf)
    integer("most", most, 0)
    if isinstance(A, str):
        A, B = _drawn(result, A, B, shape, seed, fmt, scheme, options)
    elif shape is not None:
        raise InputError("shape= goes with operands drawn by name: A and B have theirs")
    if B is None:
        raise InputError("B is missing")
    a, b = take(A, "A"), take(B, "B")
    c = None if C is None else take(C, "C")
    if a.values.shape[1] != b.values.shape[0]:
        raise InputError(
            f"A of shape {a.values.shape} and B of shape {b.values.shape}: A has {a.values.shape[1]} columns and B "
            f"{b.values.shape[0]} rows"
        )
    M, K, N = *a.values.shape, b.values.shape[1]
    if (c is None) != (beta == 0):
        raise InputError("C is given but beta is 0: it would not be used" if c is not None else "beta needs C")
    if c is not None and c.values.shape != (M, N):
        raise InputError(f"C of shape {c.values.shape} does not fit the product of shape {(M, N)}")
    if a.fmt != b.fmt and scheme is None and fmt is None and not isinstance(hardware, MmaSpec):
        raise InputError(f"A is {a.fmt or a.values.dtype} and B is {b.fmt or b.values.dtype}: say fmt= of both")
    asked = Watched(result, given=(A, B)) if callable(result) else None
    given = take(result, "the result") if asked is None else asked.twice(A, B, *(() if C is None else (C,)))
    if given.values.shape != (M, N):
        raise InputError(f"the result has shape {given.values.shape}: the product of A and B has {(M, N)}")
    narrow = given.fmt if given.fmt != "fp64" else None
    claim = claims.make(
        a.values,
        a.fmt,
        narrow,
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
    claim = claims.prepared(claim, a.values, b.values)
    D, C = _result(given.values, claim), None if c is None else c.values
    expected = claims.evaluate(claim, a.values, b.values, C, device=device).astype(D.dtype, copy=False)
    found = compare(D, expected, claim.out if claim.out != "int32" else "fp32")
    if not causes:
        return Verdict(found is None, claim, (M, N, K), found)
    operands = (a.values, b.values, C, D, expected)
    if found is None:
        exact = claim.scheme is None and claim.spec is not None and claim.spec.is_integer
        same, tried = ((), 0) if exact else alike(Problem(claim, *operands, device), seconds)
        return Verdict(True, claim, (M, N, K), None, tried=tried, alike=same)
    if asked is not None:
        asked.end = time.perf_counter() + seconds / 2
    again = None if asked is None or C is not None else lambda changed: _reveal(asked, changed, (M, N, K))
    budget: dict[str, Any] = {"seconds": seconds, "most": most, "progress": progress}
    part = _region(D, expected)
    if part is not None:
        budget["seconds"] /= 2
    why = search(Problem(claim, *operands, device), again=again, **budget)
    verdict = Verdict(False, claim, (M, N, K), found, why.causes, why.tried, why.complete)
    return verdict if verdict.explained or part is None else _within(verdict, part, operands, budget)


def _region(D: Array, expected: Array) -> tuple[Array, Array] | None:
    """The rows and columns that hold all differing entries, if they are clearly fewer than all."""
    wrong = codes(D) != codes(expected)
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    return (rows, columns) if len(rows) * len(columns) <= 0.9 * wrong.size and wrong.sum() >= _FEW else None


def _within(
    verdict: Verdict,
    part: tuple[Array, Array],
    operands: tuple[Array, Array, Array | None, Array, Array],
    budget: dict[str, Any],
) -> Verdict:
    """The verdict with causes that hold in a part of the result alone: a tile, an edge, some columns."""
    (A, B, C, D, expected), (rows, columns) = operands, part
    c = None if C is None else C[rows][:, columns]
    D, expected = (x[rows][:, columns] for x in (D, expected))
    assert verdict.difference is not None
    why = search(Problem(verdict.claim, A[rows], B[:, columns], c, D, expected), **budget)
    where = next((p for p in verdict.difference.patterns if p.startswith("only in")), "only where entries differ")
    found = tuple(replace(c, text=f"{where}: {c.text}") for c in why.causes if c.left == 0)
    tried, complete = verdict.tried + why.tried, verdict.complete and why.complete
    return replace(verdict, causes=found or verdict.causes, tried=tried, complete=complete)


def _drawn(
    result: Any, name: str, B: Any, shape: Any, seed: int, fmt: str | None, scheme: Any, options: dict[str, Any]
) -> tuple[Array, Array]:
    if not callable(result):
        raise InputError(
            f"A = {shown(name)} names a distribution, which goes with a callable: a result belongs to its own operands"
        )
    if B is not None or shape is None:
        raise InputError("operands drawn by name need shape=(M, N, K), and no B")
    shape = integers("shape", shape, 1, 2**31, length=3)
    own = fmt or (claims.schemes.build(scheme, options).operand.name if scheme is not None else "fp32")
    if own == "int8":
        rng = np.random.default_rng(seed)
        M, N, K = shape
        return rng.integers(-128, 128, (M, K), np.int8), rng.integers(-128, 128, (K, N), np.int8)
    M, N, K = shape
    return inputs.operands(name, M, N, K, seed, formats.get(own))


def _result(D: Array, claim: Claim) -> Array:
    """The result, if its dtype is one in which the claim's can be."""
    if claim.out == "int32":
        if D.dtype != np.int32:
            raise InputError(f"the result is {D.dtype}: the claim gives int32")
        return D
    fmt = formats.get(claim.out)
    if D.dtype not in (fmt.dtype, np.dtype(np.float32)) or D.dtype.itemsize < fmt.dtype.itemsize:
        other = "out= says another format of D" + (", fmt= of A and B" if claim.scheme is None else "")
        raise InputError(f"the result is {D.dtype}: the claim gives {fmt} ({fmt.dtype}); {other}")
    return D


def _reveal(asked: Watched, claim: Claim, shape: tuple[int, int, int]) -> Any:
    """The order of a callable, from probes of products of the same shape."""
    from fpemu.probing import reveal

    if claim.scheme is not None or claim.spec is None or claim.spec.is_integer:
        raise InputError("only plain products are probed")
    M, N, K = shape
    out = claim.out if claim.out != str(claim.spec.d_format) else None
    found = reveal(asked, K, claim.spec, out=out, shape=(M, N))
    return found.order if found.order is not None else found.tree
