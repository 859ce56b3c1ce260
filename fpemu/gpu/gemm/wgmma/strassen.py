"""Strassen's algorithm on Hopper: sums of blocks split into words, all products in one launch, sums of these.

The products are those of `fpemu.gpu.gemm.wgmma.words` for the scheme `staged`, a batch of 7 or 49. With one level
kernels/strassen_split.cu splits both operands in one launch; kernels/strassen_combine.cu has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fpemu.gpu.gemm.base import RESULT, Kernel, Output, Prepared, counters, result
from fpemu.gpu.gemm.wgmma import splits
from fpemu.gpu.gemm.wgmma import words as hopper
from fpemu.gpu.gemm.wgmma.splits import ChunkSplitter
from fpemu.gpu.runtime import compiler, modules
from fpemu.gpu.runtime.device import multiprocessors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Block, Memory, Step, Struct, fields
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.staged import Staged
from fpemu.schemes.strassen import limit
from fpemu.schemes.words import BALANCED

BK, ROWS = 64, 16  # constants of the same names there
_BLOCKS, _JOIN_BLOCKS = 8, 16  # per multiprocessor, at most: of the kernels for the largest entries, for the sums
_MOST_GRID = 2**16 - 1  # thread blocks of a grid along its second axis
_FP32 = np.dtype(np.float32)
_OPERAND = fields(
    "u8 x, i8 row_stride k_stride, i4 rows k half half_k block block_k, "
    "u8 high low largest exponents special faults, f4 limit, i4 second number"
)
_JOIN = fields("u8 products, RESULT out, i4 m n half_m half_n block_m block_n", RESULT=RESULT)


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

    scheme: Staged

    def __init__(self, scheme: Staged, spec: MmaSpec, order: KOrder | None, inner: Kernel) -> None:
        self.scheme, self.spec, self.order, self.inner = scheme, spec, order, inner
        self.name, self.levels, self.products = f"strassen on {inner.name}", scheme.levels, 7**scheme.levels
        self._limit, self._balanced = limit(self.levels), scheme.high_rounding == BALANCED
        self._module = modules.module(source(self.levels, self._balanced), "strassen_combine.cu")
        self.splitter = ChunkSplitter("sums", {"limit": self._limit}, balanced=self._balanced)

    def split(self, operands: Sequence[Prepared], policy: str, memory: Memory) -> list[Step]:
        if self.levels == 1:
            return super().split(operands, policy, memory)
        return [step for x in operands for step in self._split_twice(x, memory)]

    def _split_twice(self, x: Prepared, memory: Memory) -> list[Step]:
        """Split an operand of 49 products: a launch for the largest entries of their rows, another for the words."""
        half, half_k, block, block_k = (_block(n, level) for level in (1, 2) for n in (x.rows, x.K))
        chunks, (row_stride, k_stride), count = -(-block_k // BK), x.steps, x.source.count
        x.chunked, x.faults = True, counters(x.name, memory)
        words, lines = self.products * splits.word_bytes(block, block_k), 4 * self.products * block
        x.pitch, x.words = chunks * BK, (memory.block(count * words), memory.block(count * words))
        x.exponents, x.special = memory.block(count * lines), memory.cleared(count * x.rows)
        largest, tile = memory.cleared(count * lines), 4 * 16 * ROWS * (BK + 1)  # bytes of 16 blocks in shared memory
        values: dict[str, Any] = {"row_stride": row_stride, "k_stride": k_stride, "rows": x.rows, "k": x.K}
        values |= {"half": half, "half_k": half_k, "block": block, "block_k": block_k}
        common = Struct(_OPERAND, values | {"faults": x.faults, "limit": self._limit, "second": x.name == "B"})
        blocks = {"high": (x.words[0], words), "low": (x.words[1], words), "largest": (largest, lines)}
        blocks |= {"exponents": (x.exponents, lines), "special": (x.special, x.rows)}
        module, steps = self._module, list[Step]()
        for number, offset in enumerate(x.source.offsets()):
            pointers = {name: held.pointer + number * nbytes for name, (held, nbytes) in blocks.items()}
            operand = common.changed(x=x.source.pointer + 4 * int(offset), number=number, **pointers)
            across = -(-block // (16 if k_stride == 1 else 32))
            parts = max(1, min(-(-_BLOCKS * multiprocessors() // across), block_k // 256))
            steps += [
                module.step("strassen_largest", (across, parts), (32, 16), operand),
                module.step("strassen_split", (chunks, -(-block // ROWS)), 256, operand, shared=tile),
            ]
        return steps

    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        M, N, m, n = a.rows, b.rows, _block(a.rows, self.levels), _block(b.rows, self.levels)
        sums = memory.block(4 * self.products * m * n)
        products = Output(Matrix(sums.pointer, _FP32, (self.products, m, n), (m * n, n, 1)))
        sizes = {"m": M, "n": N, "half_m": _block(M, 1), "half_n": _block(N, 1), "block_m": m, "block_n": n}
        module, blocks = self._module, min(-(-m * n // 256), _JOIN_BLOCKS * multiprocessors())
        steps, allocated = list[Step](), dict(memory.nbytes)
        for i, j, d, c in end.where(a, b).tolist():
            memory.nbytes |= allocated  # all matrices of the stack share the workspace of `inner`
            steps += self.inner.multiply(self._batch(a, i), self._batch(b, j), products, memory)
            join = Struct(_JOIN, {"products": sums, "out": result(self, end, d, c), **sizes})
            steps.append(module.step("strassen_join", blocks, 256, join))
        return steps

    def _batch(self, x: Prepared, number: int) -> Prepared:
        """Return the operands of the products of one matrix of a stack, as a batch."""
        block, k = _block(x.rows, self.levels), _block(x.K, self.levels)
        shape = (self.products, block, k) if x.name == "A" else (self.products, k, block)
        source = Matrix(0, _FP32, shape, (block * k, shape[2], 1))
        assert x.exponents is not None
        nbytes = self.products * splits.word_bytes(block, k)
        words = tuple(Block(word.pointer + number * nbytes, nbytes) for word in x.words)
        lines = 4 * self.products * block
        exponents = Block(x.exponents.pointer + number * lines, lines)
        return Prepared(source, x.name, words, x.pitch, exponents, chunked=True)


def _block(size: int, levels: int) -> int:
    """A size halved so many times, each time rounded up."""
    return -(-size // 2) if levels == 1 else -(-_block(size, 1) // 2)


def source(levels: int, balanced: bool = False) -> str:
    """The text of the kernels."""
    config = compiler.struct({"LEVELS": levels, "BALANCED": balanced})
    levels_defined = f"#define FPEMU_TWO_LEVELS {int(levels == 2)}"
    return "\n".join((config, levels_defined, compiler.kernel_source("strassen_combine.cu")))
