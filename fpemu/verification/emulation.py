"""``fpemu verify emulation``: GEMMs emulated on the GPU against the compiled and NumPy implementations on the CPU.

Every instruction of the catalogue and randomly drawn specifications, on hostile operands, in all summation orders over
K, trees included; every scheme on every hardware.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np

from fpemu import mma, schemes
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma import operand_streams as streams
from fpemu.mma.arithmetic import ARITHMETICS, Arithmetic
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.verification.cases import Array, Case, Computed, Draw, Product, Result, arrange, codes, drawn
from fpemu.verification.suite import Group, ProductSuite

Implementation = Literal["cuda", "compiled", "numpy"]
CASES = 6
"""Cases of each specification"""
PRODUCTS = 2
"""Products of each scheme on each hardware"""
DRAWN = 64
"""Drawn specifications of a full run"""
CUSTOM = "custom "
"""Prefix of the names of drawn specifications: "custom 0", "custom 1" ..."""
LAYOUTS = ("rows", "columns", "spaced", "reversed")
_QUICK = 6  # a quick run takes every sixth specification and scheme
_SIZES = ((1, 1), (3, 2), (7, 5), (20, 10), (1, 200), (65, 1), (64, 64), (130, 5), (33, 129), (65, 70))
_SLOW = 2000  # largest number of fp64 multiply-adds for NumPy's implementation, which uses Python's integers
_FORMATS = ("fp16", "bf16", "tf32", "fp32", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e4m3fnuz", "e5m2fnuz")
_ARITHMETICS = [
    row
    for row in ARITHMETICS.values()
    for _ in range(0 if row.scaled else 5 if row.aligned == "terms" else row.cuda is not None and not row.integer)
]


# --- specifications
def spec(name: str, seed: int) -> MmaSpec:
    """Return a row of the catalogue by its name, or draw a specification: "custom" and a number."""
    if name.startswith(CUSTOM) and name.removeprefix(CUSTOM).isdigit():
        draw = Draw(seed, name)
        rules = draw.pick(_ARITHMETICS)
        while True:
            try:
                return _draw_spec(draw, rules, name)
            except InputError:  # contradictory fields: draw again
                continue
    known = {row.name: row for row in (*mma.catalog.rows(), *mma.catalog.block_scaled()) if row.has_cuda}
    if name not in known:
        raise unknown_name("instruction", name, known)
    return known[name]


def _draw_spec(draw: Draw, rules: Arithmetic, name: str) -> MmaSpec:
    """Draw a specification; InputError if its fields contradict one another."""
    if rules.fused:
        fmt = draw.pick(("fp16", "fp32", "fp64"))
        payloads = fmt == "fp64" and bool(draw.below(2))
        return MmaSpec(
            fmt, fmt, fmt, k=draw.between(1, 9), block=1, arithmetic=rules.name, payloads=payloads, name=name
        )
    block = draw.pick((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64))
    k = block * draw.between(1, 4)
    a, b, d = draw.pick(_FORMATS), draw.pick(_FORMATS), draw.pick(("fp32", "fp32", "fp16"))
    more: dict[str, Any] = {"arithmetic": rules.name, "name": name}
    if rules.via is not None:
        block = k
    if rules.truncates:
        more["F"] = draw.pick((23, 24, 25, draw.between(1, 35)))
        more["E0"] = draw.pick((None, -132, -133, draw.between(-300, 300), draw.between(-140, 10)))
        if d == "fp32" and not draw.below(4):
            more["fraction_bits"] = draw.between(1, 23)
    if "final" in rules.parameters:
        more["final"] = draw.pick(("RZ", "RNE"))
    return MmaSpec(a, b, d, k=k, block=block, **more)


def pairs() -> list[str]:
    """Return every scheme on every hardware of the catalogue that it runs on, as "scheme on hardware"."""
    names = []
    for scheme in schemes.names():
        for number, hardware in enumerate(mma.catalog.architectures()):
            try:
                instruction = schemes.get(scheme).spec(hardware)
            except InputError:
                continue  # the scheme does not run there
            if instruction is not None and not instruction.has_cuda:
                continue
            if schemes.get(scheme).needs_hardware or not number:
                names.append(f"{scheme} on {hardware}")
    return names


# --- cases
def spec_case(row: MmaSpec, number: int, seed: int) -> Case:
    """Return a case of a specification.

    Number 0 has one chain, 1 several terms, 2 promotion, 3 split-K, 4 leading axes, 5 a summation tree.
    """
    draw = Draw(seed, row.name, number)
    size: tuple[int, int] = draw.pick(_SIZES)
    K: int = draw.pick((1, max(1, row.k - 1), row.k + 1, 2 * row.k, 3 * row.k + 1, 70, 97, 150, 260))
    lead: Any = ((), (), ())
    order: KOrder | Tree = KOrder()
    terms, step = 1, None
    if number == 1:
        terms, step = draw.between(2, 3), draw.pick((None, "instruction", draw.between(1, 50)))
        order = draw.pick((KOrder(), KOrder(split=60, join="pairwise"), KOrder(tile=40, promote=80)))
    elif number == 2:
        order = KOrder(promote=draw.pick((1, row.k, 48, 64)), tile=draw.pick((None, 32, 40)))
    elif number == 3:
        order = draw.order((7, 50, 64, 100), (None, 16, 64))
    elif number == 4:
        lead = draw.pick((((3, 1), (2,), ()), ((2,), (), ()), ((), (3,), (3,)), ((2, 2), (2, 2), (2, 2))))
    elif number == 5:
        order = _draw_tree(draw, K, row)
    if row.scale_block is not None:  # the scales go with one product and an order whose intervals begin with a block
        terms, step = 1, None
        order = draw.pick((KOrder(), KOrder(promote=64), KOrder(split=64, join="pairwise"), KOrder(split=96, tile=64)))
    small = number in (4, 5) or (str(row.d_format) == "fp64" and number % 2)
    if small:
        size = draw.pick(_SIZES[:4])
    if small and str(row.d_format) == "fp64":
        size, K = (3, 2), K if number == 5 else min(K, 20)
    kinds = tuple(draw.pick(list(streams.CLASSES)) for _ in range(draw.between(1, 3)))
    negatable = isinstance(row.a_format, FloatFormat) and row.a_format.negative_zero
    key = draw.word()
    cancelled = negatable and not draw.below(5)
    beta = float(bool(draw.below(4)))
    layouts = draw.pick(LAYOUTS), draw.pick(LAYOUTS)
    options = {"terms": terms, "step": step, "cancelled": cancelled}
    return Case(row, number, key, (*size, K), kinds, layouts, lead, order, beta=beta, options=options)


def _draw_tree(draw: Draw, K: int, row: MmaSpec) -> Tree:
    """Draw a tree over K: chains over positions in any order, some begun by another chain, added in nested sums."""
    positions = draw.pick((list(range(K)), draw.shuffled(K), [k for i in range(4) for k in range(i, K, 4)]))
    cuts = sorted({0, K, *(draw.below(K) for _ in range(draw.below(5)))})
    narrow, floats = str(row.d_format) == "fp16", not row.is_integer and str(row.d_format) != "fp64"
    trees: list[Tree] = []
    for low, high in pairwise(cuts):
        kind: Literal["instruction", "fma"] = "instruction"
        if row.rules.fused or (floats and not narrow and not draw.below(4)):
            kind = "fma"
        length = 1 if kind == "fma" else draw.between(1, row.block)
        blocks = tuple(tuple(positions[k : min(k + length, high)]) for k in range(low, high, length))
        continues = trees and not draw.below(3)
        trees.append(Chain(blocks, kind, trees.pop() if continues else None))
    fmt = draw.pick((None, None, "fp32", "fp16")) if floats else None
    while len(trees) > 1:
        count = draw.between(2, 3)
        trees = [Sum(tuple(trees[:count]), fmt), *trees[count:]]
    return trees[0]


# --- operands and results
def operands(case: Case) -> tuple[list[tuple[Array, Array]], Array | None]:
    """Return the terms (A, B) of a specification's case and its C, as `fpemu.mma.chain` takes them."""
    M, N, _ = case.sizes
    terms = []
    for term in range(case.options["terms"]):
        A = _over_k(case, "A", term, M)
        B = _over_k(case, "B", term, N)
        if case.options["cancelled"]:  # the second half of K cancels the first
            half = A.shape[-1] // 2
            A[..., half : 2 * half], B[..., half : 2 * half] = -A[..., :half], B[..., :half]
        terms.append((arrange(A, case.layouts[0]), arrange(B.swapaxes(-1, -2), case.layouts[1])))
    if not case.beta:
        return terms, None
    return terms, drawn(case.subject, "C", case.kinds[0], case.key, (*case.lead[2], M, N))


def scales(case: Case) -> dict[str, Any]:
    """Return the scales of a block-scaled case as keywords of `fpemu.mma.gemm`: near 1, or all codes."""
    row, (M, N, K) = case.subject, case.sizes
    if row.scale_block is None:
        return {}
    random, blocks = np.random.Generator(np.random.Philox(case.key)), -(-K // row.scale_block)
    shapes = {"scale_a": (*case.lead[0], M, blocks), "scale_b": (*case.lead[1], blocks, N)}
    middle = int(row.scale_format.encode(1.0))
    low, high = (0, 1 << row.scale_format.width) if case.number % 2 else (middle - 4, middle + 5)
    codes_ = {name: random.integers(low, high, shape).astype(np.uint8) for name, shape in shapes.items()}
    return {name: row.scale_format.decode(x) for name, x in codes_.items()}


def _over_k(case: Case, letter: str, term: int, rows: int) -> Array:
    """Draw A, or B by its columns; the instructions over K alternate between the case's classes."""
    row, lead, K = case.subject, case.lead["AB".index(letter)], case.sizes[2]
    stack, count = prod(lead), -(-K // row.k)
    parts = []
    for i in range(count):
        kind = case.kinds[i % len(case.kinds)]
        if kind == "any-bits" and i + 1 < count:  # otherwise every sum ends as NaN
            kind = "uniform"
        parts.append(drawn(row, letter, kind, case.key, (*lead, rows, row.k), (term * count + i) * stack))
    return np.concatenate(parts, -1)[..., :K].copy()


def compute(case: Case, implementation: Implementation) -> Array:
    """Return the codes of a case by one of the implementations."""
    if isinstance(case.subject, str):
        return compute_scheme(case, "cuda" if implementation == "cuda" else "cpu")
    terms, C = operands(case)
    where: dict[str, Any] = {"device": "cpu", "backend": implementation}
    if implementation == "cuda":
        where = {"device": "cuda"}
    if given := scales(case):
        return codes(mma.gemm(terms[0][0], terms[0][1], C, case.subject, case.order, **given, **where))
    return codes(mma.chain(terms, C, case.subject, case.order, step=case.options["step"], **where))


def compute_scheme(case: Case, device: Literal["cuda", "cpu"]) -> Array:
    """Return the codes of a scheme's product."""
    name, hardware = case.subject.split(" on ")
    scheme = schemes.get(name)
    row, (M, N, K) = mma.spec("cdna2", scheme.operand), case.sizes
    keys = (Draw(case.key, case.subject, case.number, letter).word() for letter in "ABC")
    shapes = zip(keys, ((M, K), (K, N), (M, N)), strict=True)
    A, B, C = (drawn(row, "A", "uniform", key, shape).copy() for key, shape in shapes)
    options: dict[str, Any] = {}
    if case.number:
        A[M // 2, 3], B[5, N // 2], B[6, 0] = np.nan, np.inf, -np.inf
        options = {"C": C, "alpha": case.alpha, "beta": case.beta, "on_range": "propagate", "order": case.order}
        if scheme.error_free:
            options["carrier"] = "compiled"  # case 0 uses BLAS on the CPU
    place = hardware if scheme.needs_hardware else None
    with np.errstate(all="ignore"):
        return codes(schemes.gemm(A, B, scheme=name, hardware=place, device=device, **options))


class Gemm(Product):
    """An emulated product, expected by the implementations of the CPU: by NumPy's too unless it takes too long."""

    @property
    def _implementations(self) -> tuple[Implementation, ...]:
        spec, case = self.case.subject, self.case
        slow = isinstance(spec, str) or (str(spec.d_format) == "fp64" and case.products * case.options["terms"] > _SLOW)
        return ("compiled",) if slow else ("compiled", "numpy")

    def compute(self, path: str) -> Computed:
        return Computed(compute(self.case, "cuda"))

    def expected(self, path: str) -> tuple[dict[str, Result], bool | None]:
        return {name: compute(self.case, name) for name in self._implementations}, None

    def emulate(self) -> Array:
        return compute(self.case, self._implementations[-1])


@dataclass
class Emulation(ProductSuite):
    """Verification of the emulated GEMM; quick: a sixth of the specifications and schemes."""

    name = "emulation"
    about = (
        "GEMMs emulated on a GPU compared with the compiled and NumPy implementations on a CPU, and products of schemes"
        " with fpemu.gemm on a CPU. counts: outputs compared with NumPy's implementation too. digests: by case"
    )
    kept, small = CASES, 2**62
    quick: bool = False

    @cached_property
    def groups(self) -> dict[str, Group]:
        step = _QUICK if self.quick else 1
        rows = [row for row in (*mma.catalog.rows(), *mma.catalog.block_scaled()) if row.has_cuda]
        listed = {row.name: Group(range(CASES), "instructions of the catalog") for row in rows[::step]}
        listed |= {f"{CUSTOM}{i}": Group(range(CASES), "drawn instructions") for i in range(0, DRAWN, step)}
        return listed | {pair: Group(range(PRODUCTS), "schemes on hardware") for pair in pairs()[::step]}

    def case(self, group: str, number: int) -> Case:
        name, pair, _ = group.partition(" on ")
        if not pair:
            return spec_case(spec(group, self.seed), number, self.seed)
        few = schemes.get(name).error_free or schemes.get(name).operand.name == "fp64"
        # product 0 is plain; 1 has C, scalars, NaN, Inf and split-K
        further: dict[str, Any] = {"order": KOrder(split=32, join="pairwise"), "alpha": 0.5, "beta": -2.0}
        return Case(group, number, self.seed, (6, 5, 40) if few else (24, 20, 100), **(further if number else {}))

    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Gemm:
        return Gemm(case=case)

    def facts(self) -> dict[str, Any]:
        return {"host": {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}}
