"""Implementations of one product: the vendor's library, and the schemes' kernels of this package."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu import cublas
from benchmarks.gpu.groups import LIBRARY
from benchmarks.gpu.operands import Operands
from benchmarks.gpu.prepared import Prepared
from benchmarks.gpu.steps import Queue, queued, texts
from benchmarks.seeded import kernels
from fpemu.errors import unknown_name
from fpemu.gpu.gemm.base import Kernel
from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Address, Memory

STRASSEN = "strassen"
"""Its outputs depend on more than a row of A and a column of B: a sample is not emulated."""
RESIDUAL_SCALE = 2.0**11
"""Of the second word of "three fp16"."""


@dataclass(frozen=True)
class Implementation:
    """What computes a product."""

    name: str
    scheme: str | None = None  # of `fpemu.schemes`, or "strassen"; None: the library
    options: Mapping[str, Any] = field(default_factory=dict)  # of the scheme
    hints: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the kernel: its tile, whether loads overlap with products
    operand: str = "fp32"


class MissingKernelError(Exception):
    """The package has no such kernel; the text states why."""


_FIXED = {
    **{name: Implementation(name, operand="fp64" if name == "dgemm" else "fp32") for name in LIBRARY},
    "fp16 mma": Implementation("fp16 mma", "fp16", {}, {"mma": True}),
    "h2sgemm term-wise": Implementation("h2sgemm term-wise", "h2sgemm", {"combine": "term-wise"}),
    "h2sgemm element-wise": Implementation("h2sgemm element-wise", "h2sgemm", {"combine": "element-wise"}),
    **{
        f"ozaki {mode}": Implementation(
            f"ozaki {mode}", "ozaki", {"mode": mode}, {}, "fp32" if mode == "SP" else "fp64"
        )
        for mode in ("DP", "CR", "SP")
    },
    **{name: Implementation(name, name, {}, {}, "fp64") for name in ("ozaki2", "ozimmu")},
    "ozaki2 SP": Implementation(
        "ozaki2 SP", "ozaki2", {"precision": "fp32", "scaling": "invariant", "rounding": "nearest"}
    ),
}


def find(name: str) -> Implementation:
    """Return the implementation of a name: of the library, or a scheme followed by its options and its kernel's hints.

    >>> find("legemm 64x64 plain").hints, find("staged stage=128").options
    ({'tile': (64, 64), 'pipeline': False}, {'stage': 128})
    """
    from fpemu import schemes

    if name in _FIXED:
        return _FIXED[name]
    first, *rest = name.split(" ")
    known = {**_FIXED, **dict.fromkeys((*schemes.names(), STRASSEN))}
    base = next(
        (" ".join([first, *rest[:n]]) for n in range(len(rest), -1, -1) if " ".join([first, *rest[:n]]) in known), None
    )
    if base is None:
        raise unknown_name("contender", name, known)
    of = _FIXED.get(base) or Implementation(base, base)
    words = name.removeprefix(base).split()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    options = {**of.options, **{key: int(text) if text.isdigit() else text for key, text in given.items()}}
    return Implementation(name, of.scheme, options, _hints([word for word in words if "=" not in word]), of.operand)


def _hints(words: list[str]) -> dict[str, Any]:
    """Parse "mma" (mma.sync), "fused" (its loads split), "64x128" (its tile), "plain" (loads do not overlap)."""
    hints: dict[str, Any] = {}
    for word in words:
        sizes = word.split("x")
        if word == "plain":
            hints["pipeline"] = False
        elif word == "mma":
            hints["mma"] = True
        elif word == "fused":
            hints["words"] = False
        elif len(sizes) == 2 and all(size.isdigit() for size in sizes):
            hints["tile"] = tuple(int(size) for size in sizes)
        else:
            raise unknown_name("hint", word, ["plain", "mma", "fused", "128x128"])
    return hints


def scheme(implementation: Implementation) -> Any:
    """Build an implementation's scheme with its options."""
    from fpemu import schemes

    if implementation.scheme == STRASSEN:  # a name of records
        return schemes.build("staged", {"levels": 1, **implementation.options})
    return schemes.build(implementation.scheme or "", dict(implementation.options))


def kernel(scheme: Any, hints: Mapping[str, Any], shape: tuple[int, int, int]) -> Kernel:
    """Return the fastest kernel for a product (M, N, K), or the kernel that the hints describe.

    Hints are "mma", a kernel of `fpemu.gpu.gemm.mma_sync.fused`; its "tile", rows and columns, "pipeline" and "words".
    MissingKernelError: there is no such kernel.
    """
    from fpemu.gpu.gemm import choice
    from fpemu.gpu.gemm.mma_sync import fused, source

    spec: Any = scheme.spec(choice.architecture()) if scheme.needs_hardware else None
    if not hints:
        try:
            return choice.find(scheme, spec, shape, None)
        except choice.NoKernelError as problem:
            raise MissingKernelError(str(problem)) from problem
    options = {name: value for name, value in hints.items() if name != "mma"}
    if "tile" in options:
        row: Any = fused.stand_in(spec)
        lowering: Any = None if row is None else scheme.lowering(row)
        how = None if lowering is None else source.fused(lowering, source.BYTES[str(row.a_format)], shape[2])
        tiles = [] if how is None else fused.tiles(lowering, row, how)
        fitting = [tile for tile in tiles if options["tile"] == (tile.M, tile.N)]
        if not fitting:
            known = ", ".join(map(str, tiles))
            raise MissingKernelError(f"no tile of {options['tile']} for {scheme.name}, but {known}")
        options["tile"] = fitting[0]
    product_kernel = fused.kernel(scheme, spec, shape, None, **options)
    if product_kernel is None:
        raise MissingKernelError(f"tensorcores: not for {scheme.name}")
    return product_kernel


def prepare(implementation: Implementation, operands: Operands) -> Prepared:
    """Make an implementation ready and run it once; MissingKernelError if there is no kernel for it."""
    prepared = (_library if implementation.scheme is None else _package)(implementation, operands)
    prepared.both()
    device.synchronize()
    return prepared


def _library(implementation: Implementation, p: Operands) -> Prepared:
    name, shape = implementation.name, (p.M, p.N, p.K)
    D = p.result(np.float64 if name == "dgemm" else np.float32)
    about = {"kernel": cublas.version()}
    if name in ("sgemm", "tf32", "dgemm"):
        A, B = p.in_fp64() if name == "dgemm" else (p.A, p.B)
        kind = {"sgemm": "fp32", "tf32": "tf32", "dgemm": "fp64"}[name]
        return Prepared(cublas.product(kind, A.pointer, B.pointer, D.pointer, shape, keep=(A, B)), about, D=D)
    three = name == "three fp16"
    words = [[Buffer(2 * side * p.K) for _ in range(1 + three)] for side in (p.M, p.N)]

    def product(i: int, j: int, alpha: float, beta: float) -> cublas.Call:
        A, B = words[0][i].pointer, words[1][j].pointer
        return cublas.product("fp16", A, B, D.pointer, shape, "B by columns", alpha, beta)

    residuals = [product(1, 0, 1 / RESIDUAL_SCALE, 0.0), product(0, 1, 1 / RESIDUAL_SCALE, 1.0)] if three else []
    calls = [*residuals, product(0, 0, 1.0, float(three))]

    def multiply() -> None:
        for call in calls:
            call()

    return Prepared(multiply, about, _split(p, words), D)


def _split(p: Operands, words: list[list[Buffer]]) -> Queue:
    """Return the function that queues the split of A and B into words of fp16, K contiguous in both."""
    (high_a, *low_a), (high_b, *low_b) = words
    grid = (-(-p.N // 32), -(-p.K // 32))
    steps = [
        kernels().step("words_rows", 1056, 256, high_a, low_a[0] if low_a else 0, p.A, p.M * p.K),
        kernels().step("words_columns", grid, (32, 8), high_b, low_b[0] if low_b else 0, p.B, p.K, p.N),
    ]
    return queued(steps)[1]


def _package(implementation: Implementation, p: Operands) -> Prepared:
    from fpemu import schemes

    chosen = scheme(implementation)
    if str(chosen.operand) != p.fmt:
        raise MissingKernelError(f"{implementation.name} multiplies {chosen.operand} operands")
    D, A, B = p.result(chosen.operand.dtype), p.matrix("A"), p.matrix("B")
    if chosen.error_free:
        return _error_free(chosen, A, B, D)
    product_kernel = kernel(chosen, implementation.hints, (p.M, p.N, p.K))
    memory, layouts = Memory(), matrices.layouts(A, B, None, D)
    steps, mark = product_kernel.steps(layouts, (1.0, 0.0), "raise", memory)
    split, multiply = queued(steps, memory, (A, B, None, D), mark)

    def emulate(a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return schemes.gemm(a, b, **product_kernel.arguments)

    plan, levels = getattr(chosen, "plan", None), getattr(chosen, "levels", 0)
    products = len(plan().products) if callable(plan) and not levels else None
    about = {"kernel": product_kernel.name, "about": product_kernel.describe(), "products": products}
    return Prepared(multiply, about, split, D, None if levels else emulate)


def _error_free(scheme: Any, A: Matrix, B: Matrix, D: Matrix) -> Prepared:
    """Split, products and sums in one call, since the operands determine their number."""
    from benchmarks.gpu import phases
    from fpemu.gpu.errorfree import gemm as errorfree
    from fpemu.gpu.errorfree import hopper
    from fpemu.gpu.gemm.choice import architecture, validate

    spec = scheme.spec(architecture())
    call = validate({"A": A, "B": B}, scheme, 1.0, 0.0, "propagate", None, {})
    if hopper.supported(call):
        memory, layouts = Memory(), matrices.layouts(A, B, None, D)
        steps = hopper.steps(call, layouts, memory)
        clear, product = queued(steps, memory, (A, B, None, D))

        def both() -> None:
            clear()
            product()

        return Prepared(both, {"kernel": "residue bytes"}, D=D)

    def multiply() -> None:
        errorfree.gemm(A, B, D, scheme, spec, 1.0, 0.0, None, None)

    return Prepared(multiply, {"kernel": "errorfree"}, D=D, phases=lambda: phases.measure(A, B, D, scheme, spec))


def sources(shape: tuple[int, int, int], name: str) -> list[str]:
    """Return the sources of an implementation's kernels for fp32 operands stored by rows: products and splits.

    It returns none for the library, and none where there is no kernel: the measurement of the row reports that.
    """
    implementation, (M, N, K), fp32 = find(name), shape, np.dtype(np.float32)
    if implementation.scheme is not None:
        with suppress(Exception):
            sides = {"A": (M, K), "B": (K, N), "D": (M, N)}
            A, B, D = (Matrix(Address(name), fp32, side, (side[1], 1)) for name, side in sides.items())
            product_kernel = kernel(scheme(implementation), implementation.hints, shape)
            return texts(product_kernel.steps(matrices.layouts(A, B, None, D), (1.0, 0.0), "raise", Memory())[0])
    return []
