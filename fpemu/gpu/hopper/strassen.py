"""Strassen's algorithm on Hopper: sums of blocks split into words, all products in one launch, sums of these.

The products are those of `fpemu.gpu.hopper.words` for the scheme `staged`, a batch of 7 or 49;
kernels/frontier_strassen.cu has the rest.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from fpemu.gpu import device
from fpemu.gpu.hopper import words as hopper
from fpemu.gpu.kernel import Kernel, Prepared, Room
from fpemu.gpu.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.strassen import Strassen

PITCH, BK = 8, 64
_ROWS = {1: 32, 2: 8}  # ROWS there, by levels
_FP32 = np.dtype(np.float32)
_OPERAND = np.dtype(
    [("x", "u8"), ("row_stride", "i8"), ("k_stride", "i8"), ("rows", "i4"), ("k", "i4"), ("half", "i4"),
     ("half_k", "i4"), ("block", "i4"), ("block_k", "i4"), ("high", "u8"), ("low", "u8"), ("exponents", "u8"),
     ("special", "u8"), ("faults", "u8"), ("limit", "f4"), ("pitch", "i4"), ("second", "i4")],
    align=True,
)  # fmt: skip
_JOIN = np.dtype(
    [("products", "u8"), ("d", "u8"), ("c", "u8"), ("d_row", "i8"), ("c_row", "i8"), ("c_column", "i8"), ("m", "i4"),
     ("n", "i4"), ("half_m", "i4"), ("half_n", "i4"), ("block_m", "i4"),
     ("block_n", "i4"), ("alpha", "f4"), ("beta", "f4"), ("nan", "u4")],
    align=True,
)  # fmt: skip


def kernel(scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None) -> Kernel | None:
    """A kernel for a product (M, N, K) by `Strassen` on Hopper, None where there is none.

    Parameters
    ----------
    scheme : Scheme
    spec : MmaSpec or None
        The instruction: wgmma on fp16 with fp32 accumulators.
    shape : (M, N, K)
    order : KOrder or None
        As for `fpemu.gpu.hopper.words.kernel`: the order of every product of blocks.
    """
    if not isinstance(scheme, Strassen) or min(shape) < 1:
        return None
    assert scheme.levels is not None
    M, N, K = (_block(n, scheme.levels) for n in shape)
    inner = hopper.kernel(scheme.staged, spec, (7**scheme.levels * M, N, K), order)
    return None if inner is None or spec is None else StrassenKernel(scheme, spec, order, inner)


class StrassenKernel(Kernel):
    """Products of blocks by a kernel of `staged`, 7 or 49.

    Parameters
    ----------
    scheme : Strassen
    spec : MmaSpec
    order : KOrder or None
    inner : Kernel
        What multiplies batches by `staged`, from words of fp16 in memory.
    """

    def __init__(self, scheme: Strassen, spec: MmaSpec, order: KOrder | None, inner: Kernel) -> None:
        self.scheme, self.spec, self.order, self.inner = scheme, spec, order, inner
        assert scheme.levels is not None
        self.name, self.levels, self.products = f"strassen on {inner.name}", scheme.levels, 7**scheme.levels
        self.limit = scheme.limit
        self._rooms = {who: Room() for who in ("A", "B", "D")}

    def prepare(self, X: Matrix, who: str, on_range: str) -> Prepared:
        ready, room = Prepared(X, who), self._rooms[who]
        rows, k = ready.rows, X.shape[-1 if who == "A" else -2]
        half, half_k, block, block_k = (_block(n, level) for level in (1, self.levels) for n in (rows, k))
        ready.pitch = -(-block_k // PITCH) * PITCH
        row_stride, k_stride = ready.steps
        words = 2 * self.products * block * ready.pitch
        sizes = {"high": words, "low": words, "exponents": 4 * self.products * block, "special": rows}
        held = {name: room.buffer(name, X.count * size) for name, size in sizes.items()}
        ready.words, ready.exponents, ready.special = (held["high"], held["low"]), held["exponents"], held["special"]
        ready.faults = room.zeros("faults", 16)
        for number, offset in enumerate(X.offsets()):
            operand = np.zeros(1, _OPERAND)
            values = {name: held[name].pointer + number * size for name, size in sizes.items()}
            values |= {"x": X.pointer + 4 * int(offset), "row_stride": row_stride, "k_stride": k_stride, "rows": rows,
                       "k": k, "half": half, "half_k": half_k, "block": block, "block_k": block_k,
                       "faults": ready.faults.pointer, "limit": self.limit, "pitch": ready.pitch,
                       "second": int(who == "B")}  # fmt: skip
            for name, value in values.items():
                operand[name] = value
            rows_a_block = 16 if k_stride == 1 else 32
            grid = (-(-block_k // BK), -(-block // _ROWS[self.levels]))
            module = _module(self.levels)
            module.launch("strassen_exponents", -(-block // rows_a_block), (32, 16), operand, wait=False)
            module.launch("strassen_split", grid, 256, operand, wait=False)
        return ready

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        (M, N), lead = D.shape[-2:], D.shape[:-2]
        m, n = (_block(size, self.levels) for size in (M, N))
        held = self._rooms["D"].buffer("products", 4 * self.products * m * n)
        products = Matrix(held.pointer, _FP32, (self.products, m, n), (m * n, n, 1))
        c = None if C is None else C.broadcast(D.shape)
        of_c = np.zeros(D.count, np.int64) if c is None else c.offsets()
        for at, start, i, j in zip(D.offsets(), of_c, a.source.index(lead), b.source.index(lead), strict=True):
            words = self._batch(a, int(i)), self._batch(b, int(j))
            self.inner.multiply(*words, products, np.float32(1), np.float32(0), None)
            join = np.zeros(1, _JOIN)
            values = {
                "products": held.pointer, "d": D.pointer + 4 * int(at), "d_row": D.strides[-2], "m": M, "n": N,
                "half_m": _block(M, 1), "half_n": _block(N, 1), "block_m": m, "block_n": n,
                "c": 0 if c is None else c.pointer + 4 * int(start), "c_row": 0 if c is None else c.strides[-2],
                "c_column": 0 if c is None else c.strides[-1], "alpha": alpha, "beta": beta,
                "nan": self.scheme.nan_code(self.spec),
            }  # fmt: skip
            for name, value in values.items():
                join[name] = value
            _module(self.levels).launch("strassen_join", min(-(-m * n // 256), 132 * 16), 256, join, wait=False)

    def _batch(self, x: Prepared, number: int) -> Prepared:
        """The operands made of one matrix of a stack, as a batch."""
        block, k = (_block(n, self.levels) for n in (x.rows, x.source.shape[-1 if x.who == "A" else -2]))
        shape = (self.products, block, k) if x.who == "A" else (self.products, k, block)
        at = self.products * block * number
        places: list[Any] = [SimpleNamespace(pointer=w.pointer + 2 * at * x.pitch) for w in x.words]
        assert x.exponents is not None
        exponents: Any = SimpleNamespace(pointer=x.exponents.pointer + 4 * at)
        source = Matrix(0, _FP32, shape, (block * k, shape[2], 1))
        return Prepared(source, x.who, tuple(places), x.pitch, exponents)


def _block(size: int, levels: int) -> int:
    """A size halved so many times, each time rounded up."""
    return -(-size // 2) if levels == 1 else -(-_block(size, 1) // 2)


def source(levels: int) -> str:
    """The text of the kernels."""
    return f"#define LEVELS {levels}\n" + device.kernel_source("frontier_strassen.cu")


@cache
def _module(levels: int) -> device.Module:
    return device.Module(source(levels), name="frontier_strassen.cu")
