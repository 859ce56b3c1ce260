"""Record the runs of the notebook `reproducibility` on a GPU: python notebooks/data/runs.py FOLDER.

An MLP in fp16 with sums in fp32: 128 rows, the first 8 of them, and 128 rows with a Triton kernel for one matrix.
"""

import sys

import torch
import triton
import triton.language as tl

import fpemu


@triton.jit
def slices(A, B, P, M, N, K, SLICE: tl.constexpr, TILE: tl.constexpr):
    """The product of one slice of K: A (M, K) and B (N, K) are stored by rows, P (slices, M, N)."""
    m = tl.program_id(0) * TILE + tl.arange(0, TILE)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    k = tl.program_id(2) * SLICE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for _ in range(0, SLICE, TILE):
        total = tl.dot(tl.load(A + m[:, None] * K + k[None, :]), tl.load(B + n[None, :] * K + k[:, None]), total)
        k += TILE
    tl.store(P + tl.program_id(2) * M * N + m[:, None] * N + n[None, :], total)


def by_triton(A, B, length=512):
    """A B^T in slices of K that are added in turn."""
    (M, K), N = A.shape, B.shape[0]
    parts = torch.empty((K // length, M, N), device=A.device)
    slices[M // 64, N // 64, K // length](A, B, parts, M, N, K, length, 64)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class Layer(torch.nn.Module):
    """A linear layer with sums in fp32; its products by Triton are reported to `run`."""

    def __init__(self, weight, run=None):
        super().__init__()
        self.weight, self.run = weight, run

    def forward(self, x):
        if self.run is None:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        D = by_triton(x, self.weight)
        self.run.add("triton", x, self.weight.t(), D)
        return D


class MLP(torch.nn.Module):
    def __init__(self, up, down, run=None):
        super().__init__()
        self.up, self.down = Layer(up), Layer(down, run)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)).half())


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 1024, generator=generator).half().cuda()
    shapes = (4096, 1024), (4096, 4096)
    up, down = ((torch.randn(s, generator=generator) / s[1] ** 0.5).half().cuda() for s in shapes)
    for name, rows in (("rows128", 128), ("rows8", 8), ("triton", 128)):
        run = fpemu.torch.record(f"{sys.argv[1]}/{name}", rows=4, columns=8)
        model = MLP(up, down, run if name == "triton" else None)
        with torch.no_grad(), run:
            model(x[:rows])
