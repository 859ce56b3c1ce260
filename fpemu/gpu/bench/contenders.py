"""Who is measured: products of the vendor's library, and the schemes' kernels of this package."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu.errors import unknown_name
from fpemu.gpu import device
from fpemu.gpu.bench import choosing, library
from fpemu.gpu.bench.choosing import Contender, Ready
from fpemu.gpu.bench.groups import LIBRARY
from fpemu.gpu.bench.problem import Problem
from fpemu.gpu.bench.timing import kernels
from fpemu.gpu.device import Buffer

STRASSEN = "strassen"
"""Its entries depend on more than a row of A and a column of B: a sample is not emulated."""
RESIDUAL_SCALE = 2.0**11
"""Of the second word of "three fp16"."""


_FIXED = {
    **{name: Contender(name, operand="fp64" if name == "dgemm" else "fp32") for name in LIBRARY},
    "fp16 mma": Contender("fp16 mma", "fp16", {}, {"mma": True}),
    "h2sgemm term-wise": Contender("h2sgemm term-wise", "h2sgemm", {"combine": "term-wise"}),
    "h2sgemm element-wise": Contender("h2sgemm element-wise", "h2sgemm", {"combine": "element-wise"}),
    **{f"ozaki {mode}": Contender(f"ozaki {mode}", "ozaki", {"mode": mode}, {}, "fp32" if mode == "SP" else "fp64")
       for mode in ("DP", "CR", "SP")},
    **{name: Contender(name, name, {}, {}, "fp64") for name in ("ozaki2", "ozimmu")},
}  # fmt: skip


def find(name: str) -> Contender:
    """The contender of a name: of the library, or a scheme with options of its own and its kernel's hints.

    >>> find("legemm 64x64 plain").hints, find("staged stage=128").options
    ({'tile': (64, 64), 'pipeline': False}, {'stage': 128})

    Raises
    ------
    InputError
        An unknown name.
    """
    from fpemu import schemes

    if name in _FIXED:
        return _FIXED[name]
    first, *rest = name.split(" ")
    known = {**_FIXED, **dict.fromkeys((*schemes.names(), STRASSEN))}
    base = next((" ".join([first, *rest[:n]]) for n in range(len(rest), -1, -1)
                 if " ".join([first, *rest[:n]]) in known), None)  # fmt: skip
    if base is None:
        raise unknown_name("contender", name, known)
    found = _FIXED.get(base) or Contender(base, base)
    words = name.removeprefix(base).split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    chosen = {**found.options, **{key: int(text) if text.isdigit() else text for key, text in options.items()}}
    hints = _hints([word for word in words if "=" not in word])
    return Contender(name, found.scheme, chosen, hints, found.operand)


def _hints(words: list[str]) -> dict[str, Any]:
    """ "mma" (mma.sync), "fused" (its loads split), "64x128" (a tile of that), "plain" (loads, products in turns)."""
    found: dict[str, Any] = {}
    for word in words:
        sizes = word.split("x")
        if word == "plain":
            found["pipeline"] = False
        elif word == "mma":
            found["mma"] = True
        elif word == "fused":
            found["words"] = False
        elif len(sizes) == 2 and all(size.isdigit() for size in sizes):
            found["tile"] = tuple(int(size) for size in sizes)
        else:
            raise unknown_name("hint", word, ["plain", "mma", "fused", "128x128"])
    return found


def prepare(contender: Contender, problem: Problem) -> Ready:
    """Make a contender ready.

    Raises
    ------
    choosing.MissingKernelError
        If there is no kernel for it.
    GpuError
        If it does not run.
    """
    found = _library(contender, problem) if contender.scheme is None else _ours(contender, problem)
    if found.split is not None:
        found.split()
    found.multiply()
    device.synchronize()
    return found


def _library(contender: Contender, p: Problem) -> Ready:
    D = p.result(np.float64 if contender.name == "dgemm" else np.float32)
    about = {"kernel": library.version()}
    if contender.name in ("sgemm", "tf32", "dgemm"):
        kind = {"sgemm": "fp32", "tf32": "tf32", "dgemm": "fp64"}[contender.name]
        A, B = p.wide() if kind == "fp64" else (p.A, p.B)
        keep = (A, B)
        return Ready(None, lambda: library.gemm(kind, keep[0].pointer, keep[1].pointer, D.pointer, p.M, p.N, p.K),
                     D, about)  # fmt: skip
    three = contender.name == "three fp16"
    words = [[Buffer(2 * side * p.K) for _ in range(1 + three)] for side in (p.M, p.N)]

    def split() -> None:
        _words(p, words)

    def one(i: int, j: int, alpha: float, beta: float) -> None:
        a, b = words[0][i].pointer, words[1][j].pointer
        library.gemm("fp16", a, b, D.pointer, p.M, p.N, p.K, columns=True, alpha=alpha, beta=beta)

    def multiply() -> None:
        if three:
            one(1, 0, 1 / RESIDUAL_SCALE, 0.0)
            one(0, 1, 1 / RESIDUAL_SCALE, 1.0)
        one(0, 0, 1.0, float(three))

    return Ready(split, multiply, D, about)


def _words(p: Problem, words: list[list[Buffer]]) -> None:
    """The words of A and of B by columns, K contiguous in both."""
    module, none = kernels(), np.zeros(1, np.uint64)
    (h, *r), (g, *s) = words
    module.launch("words_rows", 1056, 256, h, r[0] if r else none, p.A, p.M * p.K, wait=False)
    grid = (-(-p.N // 32), -(-p.K // 32))
    module.launch("words_columns", grid, (32, 8), g, s[0] if s else none, p.B, p.K, p.N, wait=False)


def _ours(contender: Contender, p: Problem) -> Ready:
    from fpemu import schemes
    from fpemu.schemes.errorfree.base import ErrorFree

    chosen = choosing.scheme(contender)
    if str(chosen.operand) != p.fmt:
        raise choosing.MissingKernelError(f"{contender.name} multiplies {chosen.operand} operands")
    D, A, B = p.result(chosen.operand.dtype), p.matrix("A"), p.matrix("B")
    if isinstance(chosen, ErrorFree):
        return choosing.error_free(chosen, A, B, D)
    kernel = choosing.kernel(chosen, contender.hints, (p.M, p.N, p.K))
    kept: dict[str, Any] = {}

    def split() -> None:
        kept["A"], kept["B"] = kernel.both(A, B, "raise")

    def multiply() -> None:
        kernel.multiply(kept["A"], kept["B"], D, 1.0, 0.0, None)

    def emulate(a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return schemes.gemm(a, b, **kernel.arguments)

    whole = None if kernel.scheme.name == STRASSEN else emulate
    about = {"kernel": kernel.name, "about": kernel.describe(), "products": choosing.products(kernel)}
    return Ready(split, multiply, D, about, whole)
