"""Cases of an emulated GEMM, each a function of a seed and its name: spec, hostile operands, shape, order, layout.

A case is the same on every machine, so that what one computed can be compared with another by digests alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.mma.spec import Arithmetic
from fpemu.mma.tree import Chain, Sum, Tree

Form = Literal["cuda", "compiled", "numpy"]
CASES = 6
"""Cases of each spec"""
CUSTOM = "custom "  # the names of drawn specs: "custom 0", "custom 1" ...
LAYOUTS = ("rows", "columns", "spaced", "reversed")
_SIZES = ((1, 1), (3, 2), (7, 5), (20, 10), (1, 200), (65, 1), (64, 64), (130, 5), (33, 129), (65, 70))
_SLOW = 2000  # multiply-adds of fp64 that NumPy's form, which computes with Python's integers, is asked for
_FORMATS = ("fp16", "bf16", "tf32", "fp32", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e4m3fnuz", "e5m2fnuz")
_ARITHMETICS: tuple[Arithmetic, ...] = (
    *("truncated",) * 5,
    "exact",
    "fma",
    "flushed",
    "cdna3",
    "cdna3-fp8",
    "via-half",
)

_FIELDS = (
    "name",
    "a_format",
    "b_format",
    "d_format",
    "k",
    "block",
    "arithmetic",
    "F",
    "E0",
    "final",
    "fraction_bits",
    "payloads",
)


class Draw:
    """Numbers as a function of a seed and a name: SHA-256 of both and of how many were drawn before."""

    def __init__(self, seed: int, *names: object) -> None:
        self._base, self._count = " ".join(map(str, (seed, *names))), 0

    def word(self) -> int:
        """64 bits."""
        self._count += 1
        return int.from_bytes(hashlib.sha256(f"{self._base} {self._count}".encode()).digest()[:8], "big")

    def below(self, n: int) -> int:
        """0 to n - 1."""
        return self.word() % n

    def between(self, low: int, high: int) -> int:
        """`low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of some."""
        return options[self.below(len(options))]

    def shuffled(self, n: int) -> list[int]:
        """0 to n - 1 in any order."""
        return sorted(range(n), key=[self.word() for _ in range(n)].__getitem__)


@dataclass(frozen=True)
class Case:
    """One product: everything that decides its bits, but for the codes, which are drawn from `key`."""

    spec: MmaSpec
    key: int
    """Seed of the operands' stream"""
    kinds: tuple[str, ...]
    """Classes of `fpemu.mma.operand_streams` that the instructions over K take in turn"""
    undone: bool
    """Whether the second half of K undoes the first"""
    sizes: tuple[int, int, int]
    """M, N, K"""
    lead: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Leading axes of A, B and C"""
    order: KOrder | Tree
    terms: int
    step: int | Literal["instruction"] | None
    start: bool
    """Whether there is a C"""
    layouts: tuple[str, str]
    """How A and B lie in memory"""

    @property
    def slow(self) -> bool:
        """Whether NumPy's form takes long."""
        A, B, C = self.lead
        products = math.prod(np.broadcast_shapes(A, B, C)) * self.terms
        return str(self.spec.d_format) == "fp64" and products * math.prod(self.sizes) > _SLOW

    def __str__(self) -> str:
        order = str(self.order) if isinstance(self.order, KOrder) else f"a {type(self.order).__name__.lower()} (tree)"
        parts = [
            "×".join(map(str, self.sizes)),
            "+".join(self.kinds) + (" undone" if self.undone else ""),
            order,
            f"{self.terms} terms, step {self.step}" if self.terms > 1 else "",
            f"leading axes {self.lead}",
            "C" if self.start else "no C",
            " and ".join(self.layouts),
        ]
        return ", ".join(part for part in parts if part)


# --- specs
def rows() -> list[str]:
    """The names of the catalog's rows."""
    return [row.name for row in mma.catalog.rows()]


def spec(name: str, seed: int) -> MmaSpec:
    """A row of the catalog by its name, or a drawn spec, "custom" and a number.

    Raises
    ------
    InputError
        If there is no such row.
    """
    if name.startswith(CUSTOM) and name.removeprefix(CUSTOM).isdigit():
        draw = Draw(seed, name)
        arithmetic = draw.pick(_ARITHMETICS)
        while True:
            try:
                return _custom(draw, arithmetic, name)
            except InputError:  # fields that contradict one another: the next
                continue
    known = {row.name: row for row in mma.catalog.rows()}
    if name not in known:
        raise unknown_name("instruction", name, known)
    return known[name]


def fields(row: MmaSpec) -> dict[str, Any]:
    """What `MmaSpec` takes to make a drawn spec again."""
    named = {f: getattr(row, f) for f in _FIELDS}
    return {f: value if isinstance(value, int) else str(value) for f, value in named.items() if value is not None}


def _custom(draw: Draw, arithmetic: Arithmetic, name: str) -> MmaSpec:
    """Fields that may contradict one another."""
    if arithmetic == "fma":
        fmt = draw.pick(("fp16", "fp32", "fp64"))
        payloads = fmt == "fp64" and bool(draw.below(2))
        return MmaSpec(fmt, fmt, fmt, k=draw.between(1, 9), block=1, arithmetic="fma", payloads=payloads, name=name)
    block = draw.pick((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64))
    k = block * draw.between(1, 4)
    a, b, d = draw.pick(_FORMATS), draw.pick(_FORMATS), draw.pick(("fp32", "fp32", "fp16"))
    fields: dict[str, Any] = {"arithmetic": arithmetic, "name": name}
    if arithmetic == "via-half":
        block = k
    if arithmetic in ("truncated", "via-half"):
        fields["F"] = draw.pick((23, 24, 25, draw.between(1, 35)))
        fields["E0"] = draw.pick((None, -132, -133, draw.between(-300, 300), draw.between(-140, 10)))
        if d == "fp32" and not draw.below(4):
            fields["fraction_bits"] = draw.between(1, 23)
    if arithmetic in ("truncated", "exact", "via-half"):
        fields["final"] = draw.pick(("RZ", "RNE"))
    return MmaSpec(a, b, d, k=k, block=block, **fields)


# --- cases
def case(row: MmaSpec, number: int, seed: int) -> Case:
    """A case of a spec; its name and the seed decide what is drawn.

    Parameters
    ----------
    row : MmaSpec
    number : int
        0 to `CASES` - 1: one chain, several terms, promotion, slices that are joined, leading axes, a tree.
    seed : int
    """
    draw = Draw(seed, row.name, number)
    size: tuple[int, int] = draw.pick(_SIZES)
    K: int = draw.pick((1, max(1, row.k - 1), row.k + 1, 2 * row.k, 3 * row.k + 1, 70, 97, 150, 260))
    lead: tuple[tuple[int, ...], ...] = ((), (), ())
    order: KOrder | Tree = KOrder()
    terms, step = 1, None
    if number == 1:
        terms, step = draw.between(2, 3), draw.pick((None, "instruction", draw.between(1, 50)))
        order = draw.pick((KOrder(), KOrder(split=60, join="pairwise"), KOrder(tile=40, promote=80)))
    elif number == 2:
        order = KOrder(promote=draw.pick((1, row.k, 48, 64)), tile=draw.pick((None, 32, 40)))
    elif number == 3:
        tile = draw.pick((None, 16, 33))
        order = KOrder(
            split=draw.pick((7, 50, 64, 100)),
            tile=tile,
            residue_first=tile is not None and bool(draw.below(2)),
            promote=draw.pick((None, 16, 64)),
            join=draw.pick(("ascending", "descending", "pairwise")),
        )
    elif number == 4:
        lead = draw.pick((((3, 1), (2,), ()), ((2,), (), ()), ((), (3,), (3,)), ((2, 2), (2, 2), (2, 2))))
    elif number == 5:
        order = _tree(draw, K, row)
    small = number in (4, 5) or (str(row.d_format) == "fp64" and number % 2)
    if small:
        size = draw.pick(_SIZES[:4])
    if small and str(row.d_format) == "fp64":
        size, K = (3, 2), K if number == 5 else min(K, 20)
    kinds = tuple(draw.pick(list(streams.CLASSES)) for _ in range(draw.between(1, 3)))
    invertible = isinstance(row.a_format, FloatFormat) and row.a_format.negative_zero
    return Case(
        row,
        draw.word(),
        kinds,
        invertible and not draw.below(5),
        (*size, K),
        lead,
        order,
        terms,
        step,  # type: ignore[arg-type]
        bool(draw.below(4)),
        (draw.pick(LAYOUTS), draw.pick(LAYOUTS)),
    )


def _tree(draw: Draw, K: int, row: MmaSpec) -> Tree:
    """A tree over K: chains over positions in any order, some begun by another, added in sums of sums."""
    where = draw.pick((list(range(K)), draw.shuffled(K), [k for i in range(4) for k in range(i, K, 4)]))
    cuts = sorted({0, K, *(draw.below(K) for _ in range(draw.below(5)))})
    narrow, floats = str(row.d_format) == "fp16", not row.is_integer and str(row.d_format) != "fp64"
    made: list[Tree] = []
    for low, high in pairwise(cuts):
        kind: Literal["instruction", "fma"] = "instruction"
        if row.arithmetic == "fma" or (floats and not narrow and not draw.below(4)):
            kind = "fma"
        length = 1 if kind == "fma" else draw.between(1, row.block)
        blocks = tuple(tuple(where[k : min(k + length, high)]) for k in range(low, high, length))
        goes_on = made and not draw.below(3)
        made.append(Chain(blocks, kind, made.pop() if goes_on else None))
    fmt = draw.pick((None, None, "fp32", "fp16")) if floats else None
    while len(made) > 1:
        count = draw.between(2, 3)
        made = [Sum(tuple(made[:count]), fmt), *made[count:]]
    return made[0]


# --- operands and results
def operands(case: Case) -> tuple[list[tuple[NDArray[Any], NDArray[Any]]], NDArray[Any] | None]:
    """The terms (A, B) of a case and its C, as `fpemu.mma.chain` takes them."""
    M, N, _ = case.sizes
    pairs = []
    for term in range(case.terms):
        A = _over_k(case, "A", term, M)
        B = _over_k(case, "B", term, N)
        if case.undone:
            half = A.shape[-1] // 2
            A[..., half : 2 * half], B[..., half : 2 * half] = -A[..., :half], B[..., :half]
        pairs.append((_laid(A, case.layouts[0]), _laid(B.swapaxes(-1, -2), case.layouts[1])))
    if not case.start:
        return pairs, None
    lead = case.lead[2]
    C = streams.operand(case.spec, "C", case.kinds[0], case.key, 0, math.prod(lead), M, N)
    return pairs, values(C, streams.formats(case.spec)[2]).reshape(*lead, M, N)


def _over_k(case: Case, letter: str, term: int, rows: int) -> NDArray[Any]:
    """A, or B by its columns: each instruction over K of its own class."""
    row, lead, K = case.spec, case.lead["AB".index(letter)], case.sizes[2]
    stack, count = math.prod(lead), -(-K // row.k)
    codes = []
    for i in range(count):
        kind = case.kinds[i % len(case.kinds)]
        if kind == "any-bits" and i + 1 < count:  # else every sum is NaN in the end
            kind = "uniform"
        codes.append(streams.operand(row, letter, kind, case.key, (term * count + i) * stack, stack, rows, row.k))
    fmt = streams.formats(row)["AB".index(letter)]
    return values(np.concatenate(codes, -1)[..., :K], fmt).reshape(*lead, rows, K)


def _laid(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """The same values in memory of another layout."""
    if layout == "rows":
        return np.ascontiguousarray(x)
    if layout == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
    wide[..., ::2, ::3] = x
    return wide[..., ::2, ::3]


def compute(case: Case, form: Form) -> NDArray[Any]:
    """The codes of a case's result by one of the three forms."""
    pairs, C = operands(case)
    if form == "cuda":
        D = mma.chain(pairs, C, case.spec, case.order, step=case.step, device="cuda")
    else:
        D = mma.chain(pairs, C, case.spec, case.order, step=case.step, backend=form, device="cpu")
    return codes(D)


def codes(D: NDArray[Any]) -> NDArray[Any]:
    """The patterns of a result."""
    D = np.ascontiguousarray(D)
    return D.view(f"u{D.dtype.itemsize}")
