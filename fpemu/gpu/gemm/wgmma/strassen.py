"""Strassen's algorithm on Hopper: sums of blocks split into words, all products in one launch, sums of these.

The products are those of `fpemu.gpu.gemm.wgmma.words` for the scheme `staged`, a batch of 7 or 49. With one level
kernels/strassen_split.cu splits both operands in one launch; kernels/strassen_combine.cu has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from fpemu.gpu.gemm.base import RESULT, Kernel, LaunchCache, Operand, Prepared, layout, places, record, result
from fpemu.gpu.gemm.wgmma import splits
from fpemu.gpu.gemm.wgmma import words as hopper
from fpemu.gpu.gemm.wgmma.splits import Chunked, ChunkSplitter
from fpemu.gpu.runtime import compiler, constants, device, faults, launches, modules, recording
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.properties import multiprocessors
from fpemu.gpu.runtime.workspace import Workspace
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.staged import Staged
from fpemu.schemes.strassen import limit
from fpemu.schemes.words import BALANCED, OverflowPolicy

BK, ROWS = 64, 16  # constants of the same names there
_BLOCKS, _JOIN_BLOCKS = 8, 16  # per multiprocessor, at most: of the kernels for the largest entries, for the sums
_MOST_GRID = 2**16 - 1  # thread blocks of a grid along its second axis
_FP32 = np.dtype(np.float32)
_OPERAND = np.dtype(
    [
        ("x", "u8"),
        ("row_stride", "i8"),
        ("k_stride", "i8"),
        *((name, "i4") for name in ("rows", "k", "half", "half_k", "block", "block_k")),
        *((name, "u8") for name in ("high", "low", "largest", "exponents", "special", "faults")),
        ("limit", "f4"),
        ("second", "i4"),
        ("number", "i4"),
    ],
    align=True,
)
_JOIN = np.dtype(
    [
        ("products", "u8"),
        ("out", RESULT),
        *((name, "i4") for name in ("m", "n", "half_m", "half_n", "block_m", "block_n")),
    ],
    align=True,
)


def kernel(scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None) -> Kernel | None:
    """A kernel for products (M, N, K) by `Staged` with levels, or None; `order` applies to every product of blocks."""
    if not isinstance(scheme, Staged) or not scheme.levels or min(shape) < 1:
        return None
    M, N, K = (_block(n, scheme.levels) for n in shape)
    if scheme.levels == 2 and max(M, N) > _MOST_GRID * ROWS:
        return None
    inner = hopper.kernel(scheme.blocks, spec, (7**scheme.levels * M, N, K), order, slices=False)
    if inner is None or spec is None or not splits.takes(scheme.rules()) or scheme.residual_scale != 1:
        return None
    return StrassenKernel(scheme, spec, order, inner)


class StrassenKernel(Kernel):
    """Sums of blocks, and 7 or 49 products of them as one batch of the kernel `inner` of `staged`."""

    recordable = True
    scheme: Staged

    def __init__(self, scheme: Staged, spec: MmaSpec, order: KOrder | None, inner: Kernel) -> None:
        self.scheme, self.spec, self.order, self.inner = scheme, spec, order, inner
        self.name, self.levels, self.products = f"strassen on {inner.name}", scheme.levels, 7**scheme.levels
        self._workspaces, self._joins = {name: Workspace() for name in "ABD"}, LaunchCache()
        self._limit, self._balanced = limit(self.levels), scheme.high_rounding == BALANCED
        self._splitter = (
            ChunkSplitter("sums", {"limit": self._limit}, balanced=self._balanced) if self.levels == 1 else None
        )

    def prepare_operands(self, operands: Sequence[Operand], on_range: str) -> list[Prepared]:
        if self._splitter is not None:
            return self._splitter.prepare(operands, OverflowPolicy.SCALE_ROWS)
        return [self._split_twice(X, name) for X, name in operands]

    def _split_twice(self, X: Matrix, name: str) -> Prepared:
        """The operands of 49 products: one launch for the largest entries of their rows, another for the split."""
        ready, workspace = Prepared(X, name), self._workspaces[name]
        rows, k = ready.rows, X.shape[-1 if name == "A" else -2]
        half, half_k, block, block_k = (_block(n, level) for level in (1, 2) for n in (rows, k))
        chunks, (row_stride, k_stride) = -(-block_k // BK), ready.steps
        ready.pitch, words = chunks * BK, self.products * splits.word_bytes(block, block_k)
        sizes = {"high": words, "low": words, "exponents": 4 * self.products * block}
        zeros = {"largest": 4 * self.products * block, "special": rows}
        held = {name: workspace.get(name, X.count * size) for name, size in sizes.items()}
        held |= {name: workspace.zeros(name, X.count * size) for name, size in zeros.items()}
        ready.words, ready.exponents, ready.special = (held["high"], held["low"]), held["exponents"], held["special"]
        ready.faults = workspace.zeros("faults", faults.NBYTES) if recording.active() is None else faults.counters(name)
        module = _module(2, self._balanced)
        for number, offset in enumerate(X.offsets()):
            operand = record(
                _OPERAND,
                {
                    **{name: held[name].pointer + number * size for name, size in (sizes | zeros).items()},
                    "x": X.pointer + 4 * int(offset),
                    "row_stride": row_stride,
                    "k_stride": k_stride,
                    "rows": rows,
                    "k": k,
                    "half": half,
                    "half_k": half_k,
                    "block": block,
                    "block_k": block_k,
                    "faults": ready.faults,
                    "limit": self._limit,
                    "second": name == "B",
                    "number": number,
                },
            )
            across = -(-block // (16 if k_stride == 1 else 32))
            parts = max(1, min(-(-_BLOCKS * multiprocessors() // across), block_k // 256))
            module.launch("strassen_largest", (across, parts), (32, 16), operand, wait=False)
            tiles = (chunks, -(-block // ROWS))
            module.launch("strassen_split", tiles, 256, operand, shared=4 * 16 * ROWS * (BK + 1), wait=False)
        return ready

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        (M, N), lead = D.shape[-2:], D.shape[:-2]
        m, n = (_block(size, self.levels) for size in (M, N))
        held = self._workspaces["D"].get("products", 4 * self.products * m * n)
        products = Matrix(held.pointer, _FP32, (self.products, m, n), (m * n, n, 1))
        scalars = np.array([alpha, beta], np.float32).tobytes()
        for d, c, i, j in zip(*places(D, C), a.source.index(lead), b.source.index(lead), strict=True):
            words = self._batch(a, int(i)), self._batch(b, int(j))
            self.inner.multiply(*words, products, np.float32(1), np.float32(0), None)
            key = (held.pointer, layout(D), layout(C), scalars, int(d), int(c))
            if key not in self._joins:
                self._joins.keep(key, self._join(held, (m, n), D, alpha, beta, C, int(d), int(c)))
            self._joins[key].queue()

    def _join(
        self,
        products: device.Buffer,
        block: tuple[int, int],
        D: Matrix,
        alpha: Any,
        beta: Any,
        C: Matrix | None,
        d: int,
        c: int,
    ) -> launches.Launch:
        """The launch that adds the products of one matrix of a stack."""
        (m, n), (M, N) = block, D.shape[-2:]
        join = record(
            _JOIN,
            {
                "products": products,
                "out": result(self, D, alpha, beta, C, d, c),
                "m": M,
                "n": N,
                "half_m": _block(M, 1),
                "half_n": _block(N, 1),
                "block_m": m,
                "block_n": n,
            },
        )
        blocks = min(-(-m * n // 256), _JOIN_BLOCKS * multiprocessors())
        return _module(self.levels, self._balanced).prepare("strassen_join", blocks, 256, join)

    def _batch(self, x: Prepared, number: int) -> Prepared:
        """The operands of the products of one matrix of a stack, as a batch."""
        block, k = (_block(n, self.levels) for n in (x.rows, x.source.shape[-1 if x.name == "A" else -2]))
        shape = (self.products, block, k) if x.name == "A" else (self.products, k, block)
        at = self.products * block * number
        start = self.products * number * splits.word_bytes(block, k)
        words: list[Any] = [SimpleNamespace(pointer=w.pointer + start) for w in x.words]
        assert x.exponents is not None
        exponents: Any = SimpleNamespace(pointer=x.exponents.pointer + 4 * at)
        source = Matrix(0, _FP32, shape, (block * k, shape[2], 1))
        return Chunked(source, x.name, tuple(words), x.pitch, exponents)


def _block(size: int, levels: int) -> int:
    """A size halved so many times, each time rounded up."""
    return -(-size // 2) if levels == 1 else -(-_block(size, 1) // 2)


def source(levels: int, balanced: bool = False) -> str:
    """The text of the kernels."""
    config = constants.struct({"LEVELS": levels, "BALANCED": balanced})
    levels_defined = f"#define FPEMU_TWO_LEVELS {int(levels == 2)}"
    return "\n".join((config, levels_defined, compiler.kernel_source("strassen_combine.cu")))


@cache
def _module(levels: int, balanced: bool) -> modules.Module:
    return modules.Module(source(levels, balanced), name="strassen_combine.cu")
