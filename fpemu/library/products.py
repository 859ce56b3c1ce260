"""cuBLAS on the GPU at hand, through PyTorch: probes of its products answered, and recorded operands multiplied."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.library import recorded

_BYTES = 2**27  # of the operands of calls that are prepared together


class Product:
    """torch.mm of one type, layout and shape on the GPU at hand.

    Parameters
    ----------
    kind : one of `fpemu.library.TYPES`
    layout : {"TN", "NN"}
    shape : (M, N, K)
    rows : (first, stop), optional
        The rows of A (columns of B, where N > M) that carry probes. Default: all.
    place : int
        The column (row) of D that is read.
    deadline : float, optional
        Seconds of `time.monotonic` after which probes raise TimeoutError.
    """

    is_ask = True

    def __init__(
        self,
        kind: str,
        layout: str,
        shape: tuple[int, int, int],
        rows: tuple[int, int] | None = None,
        place: int = 0,
        deadline: float = float("inf"),
    ) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.kind, self.layout, (self.M, self.N, self.K) = kind, layout, shape
        self.by_columns = self.N > self.M
        self.rows = rows or (0, max(self.M, self.N))
        self.place, self.deadline = place, deadline
        self.probes = self.calls = 0
        t = self.torch
        wide = {"bf16": t.bfloat16, "fp64": t.float64, "tf32": t.float32, "fp32": t.float32}
        self.dtype = wide.get(kind, t.float16)

    def at(self, row: int, column: int) -> Product:
        """The same product, with probes in the 32 rows (columns) about a place of D, and read there."""
        across, along = (column, row) if self.by_columns else (row, column)
        first = across // 32 * 32
        stop = min(first + 32, max(self.M, self.N))
        shape = (self.M, self.N, self.K)
        return Product(self.kind, self.layout, shape, (first, stop), along, self.deadline)

    def mm(self, a: Any, b: Any) -> Any:
        """One call of the library."""
        self.calls += 1
        if self.kind in ("fp16", "bf16"):
            return self.torch.mm(a, b, out_dtype=self.torch.float32)
        return self.torch.mm(a, b)

    def __call__(self, base: NDArray[Any], where: NDArray[Any], value: NDArray[Any], b: float) -> NDArray[Any]:
        """As `fpemu.probing.probes.Rows`: the operands of many calls are laid out at once."""
        t = self.torch
        t.backends.cuda.matmul.allow_tf32 = self.kind == "tf32"
        self.probes += len(where)
        line = t.from_numpy(np.ascontiguousarray(base, np.float64)).to(self.dtype).cuda()
        index = t.from_numpy(np.ascontiguousarray(where, np.int64)).cuda()
        values = t.from_numpy(np.ascontiguousarray(value, np.float64)).to(self.dtype).cuda()
        first, stop = self.rows
        width = stop - first
        down = self.by_columns and self.layout == "NN"  # B in memory is (K, N), and a probe one of its columns
        lines = max(self.M, self.N)
        stride = -(-lines * self.K // 256) * 256  # every call's operand begins where an allocation would
        most = max(1, _BYTES // (stride * line.element_size()))
        other = t.full((min(self.M, self.N), self.K), b, dtype=self.dtype, device="cuda")
        if not self.by_columns and self.layout == "NN":
            other = other.t().contiguous()
        answers = []
        for lo in range(0, len(where), most * width):
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"{self.calls} calls, {self.probes} probes")
            some, vals = index[lo : lo + most * width], values[lo : lo + most * width]
            count = -(-len(some) // width)
            n = t.arange(len(some), device="cuda")
            call, row = (n // width)[:, None], (first + n % width)[:, None]
            memory = t.empty(count * stride, dtype=self.dtype, device="cuda")
            if down:
                many = memory.as_strided((count, self.K, lines), (stride, lines, 1))
                many.copy_(line[:, None].expand(count, self.K, lines))
                many[call, some, row] = vals
            else:
                many = memory.as_strided((count, lines, self.K), (stride, self.K, 1))
                many.copy_(line.expand(count, lines, self.K))
                many[call, row, some] = vals
            got = []
            for i in range(count):
                if self.by_columns:
                    D = self.mm(other, many[i] if down else many[i].t())[self.place]
                else:
                    D = self.mm(many[i], other if self.layout == "NN" else other.t())[:, self.place]
                got.append(D[first:stop])
            answers.append(t.stack(got).reshape(-1)[: len(some)])
        out: NDArray[Any] = t.cat(answers).double().cpu().numpy()
        return out

    def tensors(self, seed: int) -> tuple[Any, Any, Any]:
        """A, B and D of `fpemu.library.recorded.operands`, on the GPU."""
        t = self.torch
        t.backends.cuda.matmul.allow_tf32 = self.kind == "tf32"
        out = []
        for n, shape in enumerate(((self.M, self.K), (self.K, self.N))):
            index = t.arange(shape[0] * shape[1], dtype=t.int64, device="cuda")
            out.append(recorded.values(index, self.kind, 2 * seed + n, t.float64).to(self.dtype).reshape(shape))
        a, b = out
        if self.layout == "TN":
            b = b.t().contiguous().t()
        return a, b, self.mm(a, b)

    def run(self, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """A, B and D as NumPy arrays."""
        a, b, d = self.tensors(seed)
        if self.kind == "bf16":
            a, b = a.float(), b.float()
        return a.cpu().numpy(), b.cpu().numpy(), d.cpu().numpy()

    def sampled(self, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], str]:
        """A[rows], B[:, columns] and D at `fpemu.library.recorded.places`, and the digest of all of D."""
        t = self.torch
        a, b, d = self.tensors(seed)
        rows, columns = (t.from_numpy(x).cuda() for x in recorded.places(self.M, self.N))
        a, b, some = a[rows], b[:, columns], d[rows][:, columns]
        if self.kind == "bf16":
            a, b = a.float(), b.float()
        return a.cpu().numpy(), b.cpu().numpy(), some.cpu().numpy(), f"{digest(d, t.int64) % 2**64:016x}"


def digest(D: Any, integer: Any) -> int:
    """`fpemu.digests.digest` of a tensor, in its library's int64, which wraps around."""
    t = importlib.import_module("torch")
    codes = D.contiguous().view({2: t.int16, 4: t.int32, 8: t.int64}[D.element_size()]).reshape(-1).to(integer)
    if D.element_size() < 8:
        codes = codes & (2 ** (8 * D.element_size()) - 1)
    index = t.arange(codes.numel(), dtype=integer, device=D.device)
    return int(mixed(mixed(index) + codes).sum())


def mixed(x: Any) -> Any:
    """The mixing of `fpemu.digests`, in int64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * (factor - 2**64)
    return x ^ ((x >> 31) & (2**33 - 1))
