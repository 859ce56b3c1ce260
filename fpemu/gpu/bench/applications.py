"""Whole applications on the GPU at hand: k-means, BERT's feed-forward layers, linear layers of language models.

The sections of LE-GEMM that figures 15 and 16 show. What is timed is all that the application does, not its products
alone: distances, assignment and new centroids; biases and GELU. Weights are split once, as they stand between calls.
Accuracy is that of the result against the same application in fp64. Arrays are PyTorch's: only this module needs it.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.errors import GpuError
from fpemu.gpu.bench import choosing, contenders, timing
from fpemu.gpu.matrices import Matrix

if TYPE_CHECKING:
    from fpemu.gpu.bench.battery import Task

PAGE = "legemm/fig15"
KIND = "application"
WHO = ("sgemm", "fp16", "legemm", "staged", "staged-int8 exact=8")
MOST = 60
"""Iterations of k-means, at most."""
CLUSTERS, FEATURES = 256, 128
_LAYERS = {"BERT-base": (768, 3072), "BERT-large": (1024, 4096)}
_TOKENS = {128: 32, 256: 32, 512: 32}
"""Length of a sequence and sequences in a batch."""
SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "k-means": tuple((points, CLUSTERS, FEATURES) for points in (8192, 16384, 32768, 65536)),
    **{name: tuple((n * batch, inner, width) for n, batch in _TOKENS.items())
       for name, (width, inner) in _LAYERS.items()},
    "linear": tuple((2048, width, width) for width in (1024, 2048, 4096, 5120, 8192)),
}  # fmt: skip
"""M, N, K of the (first) product of each application."""
_QUICK = {
    "k-means": (8192, 65536), "BERT-base": (4096, 16384), "BERT-large": (16384,), "linear": (1024, 4096, 8192),
}  # fmt: skip
"""Those at quick size, by M, of linear layers by N."""


def tasks(quick: bool) -> list[Task]:
    """The rows, large shapes first."""
    from fpemu.gpu.bench.battery import Task

    found = []
    for name, shapes in SHAPES.items():
        for M, N, K in reversed(shapes):
            if not quick or (N if name == "linear" else M) in _QUICK[name]:
                found += [Task(KIND, M, N, K, name, who, "short", "fp32", (PAGE,)) for who in WHO]
    return found


def pytorch() -> Any:
    """PyTorch with a GPU.

    Raises
    ------
    GpuError
        If it is not there.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as problem:
        raise GpuError("applications need PyTorch with CUDA: pip install torch") from problem
    if not torch.cuda.is_available():
        raise GpuError("the PyTorch that is installed sees no GPU: applications need one with CUDA")
    return torch


def measure(task: Task, seed: int = 0) -> dict[str, Any]:
    """Time an application with the products of a contender, and its result's error.

    Returns
    -------
    dict
        "first_s", "best_s", "sustained_s": seconds of one run of all of it (k-means: of one iteration, from "total_s");
        "relative_l2": of the result; k-means: "iterations", "inertia" (over that in fp64) and "equal", the share of
        points in the cluster that fp64 has put them in.
    """
    torch = pytorch()
    torch.manual_seed(seed)
    if task.data == "k-means":
        return _kmeans(torch, task)
    return (_linear if task.data == "linear" else _feed_forward)(torch, task)


class Layer:
    """X ↦ X·W for one W, by a contender.

    Parameters
    ----------
    torch : module
    who : str
    W : tensor (K, N), fp32
    rows : int
        Of X.
    fixed : bool
        W stays: it is split here; else by every call.
    """

    def __init__(self, torch: Any, who: str, W: Any, rows: int, fixed: bool = True) -> None:
        self.torch, self.who, self.fixed = torch, who, fixed
        self.about: dict[str, Any] = {"kernel": f"PyTorch {torch.__version__}"}
        contender = contenders.find(who)
        self.kernel: Any = None
        if contender.scheme is not None:
            shape = (rows, int(W.shape[1]), int(W.shape[0]))
            self.kernel = choosing.kernel(contender.scheme, contender.options, contender.hints, shape)
            self.about = {"kernel": self.kernel.name}
        self.set(W)

    def set(self, W: Any) -> None:
        """Another W of the same shape."""
        t = self.torch
        self.W = W
        if self.kernel is not None:
            self.words = self.kernel.prepare(matrix(W), "B", "raise")
        elif self.who == "fp16":
            self.W = W.half()
        elif self.who == "dgemm":
            self.W = W.double()
        t.backends.cuda.matmul.allow_tf32 = self.who == "tf32"

    def __call__(self, X: Any) -> Any:
        """(M, K) to (M, N), in fp32."""
        t = self.torch
        if self.kernel is not None:
            D = t.empty((X.shape[0], self.W.shape[1]), dtype=t.float32, device=X.device)
            self.kernel.multiply(self.kernel.prepare(matrix(X), "A", "raise"), self.words, matrix(D), 1.0, 0.0, None)
            return D
        if self.who == "fp16":
            return t.mm(X.half(), self.W, out_dtype=t.float32)
        return t.mm(X.to(self.W.dtype), self.W)


def matrix(X: Any) -> Matrix:
    """A tensor in two dimensions, as kernels take it."""
    dtype = np.dtype(str(X.dtype).removeprefix("torch."))
    return Matrix(int(X.data_ptr()), dtype, tuple(X.shape), tuple(X.stride()), X)


def _timed(call: Callable[[], Any]) -> dict[str, Any]:
    speed = timing.measure(call, timing.SHORT)
    return {"first_s": speed.first, "best_s": speed.best, "sustained_s": speed.sustained}


def _error(torch: Any, got: Any, want: Any) -> float:
    return float((got.double() - want).norm() / want.norm())


def _linear(torch: Any, task: Task) -> dict[str, Any]:
    """Q, K and V of 2048 tokens, data uniform in [0.5, 2.5]."""
    X, *weights = (torch.rand(shape, device="cuda") * 2 + 0.5 for shape in ((task.M, task.K), *[(task.K, task.N)] * 3))
    layers = [Layer(torch, task.contender, W, task.M) for W in weights]
    wide = X.double()
    errors = [_error(torch, layer(X), wide @ W.double()) for layer, W in zip(layers, weights, strict=True)]
    return {**layers[0].about, **_timed(lambda: [layer(X) for layer in layers]), "relative_l2": max(errors)}


def _feed_forward(torch: Any, task: Task) -> dict[str, Any]:
    """GELU(X W1 + b1) W2 + b2, X as a layer norm leaves it, weights as BERT's are initialized."""
    width, inner = task.K, task.N
    X = torch.randn((task.M, width), device="cuda")
    first, second = (0.02 * torch.randn(shape, device="cuda") for shape in ((width, inner), (inner, width)))
    biases = [0.02 * torch.randn(n, device="cuda") for n in (inner, width)]
    gelu = torch.nn.functional.gelu
    layers = Layer(torch, task.contender, first, task.M), Layer(torch, task.contender, second, task.M)

    def whole() -> Any:
        return layers[1](gelu(layers[0](X) + biases[0])) + biases[1]

    wide = gelu(X.double() @ first.double() + biases[0].double()) @ second.double() + biases[1].double()
    error = _error(torch, whole(), wide)
    return {**layers[0].about, **_timed(whole), "relative_l2": error}


def _kmeans(torch: Any, task: Task) -> dict[str, Any]:
    """Lloyd's iterations until no point changes its cluster; features that nobody has centred."""
    centres = torch.rand((task.N, task.K), device="cuda") * 2 + 29
    member = torch.randint(task.N, (task.M,), device="cuda")
    X = centres[member] + 3.0 * torch.randn((task.M, task.K), device="cuda")
    start = X[: task.N].clone()
    exact = lloyd(torch, X.double(), start.double(), lambda C: lambda Y: Y @ C.t())
    layer = Layer(torch, task.contender, start.t().contiguous(), task.M)

    def products(C: Any) -> Callable[[Any], Any]:
        layer.set(C.t().contiguous())
        return layer

    totals = []
    for _ in range(4):  # the first is to warm up
        torch.cuda.synchronize()
        begun = time.perf_counter()
        found = lloyd(torch, X, start, products)
        torch.cuda.synchronize()
        totals.append(time.perf_counter() - begun)
    total, count = min(totals[1:]), found[2]
    return {
        **layer.about, "first_s": sorted(totals[1:])[1] / count, "best_s": total / count, "sustained_s": None,
        "total_s": total, "iterations": count,
        "inertia": _inertia(torch, X, *found[:2]) / _inertia(torch, X, *exact[:2]),
        "equal": float((found[0] == exact[0]).double().mean()),
        "relative_l2": _error(torch, found[1], exact[1]),
    }  # fmt: skip


def lloyd(torch: Any, X: Any, C: Any, products: Callable[[Any], Callable[[Any], Any]]) -> tuple[Any, Any, int]:
    """The clusters of the points, their centres and the iterations."""
    points = torch.zeros(len(X), dtype=torch.int64, device=X.device) - 1
    count = 0
    while count < MOST:
        count += 1
        closest = ((C * C).sum(1) - 2 * products(C)(X)).argmin(1)
        if bool((closest == points).all()):
            break
        points = closest
        many = torch.bincount(points, minlength=len(C)).clamp(min=1).to(X.dtype)
        sums = torch.zeros(C.shape, dtype=torch.float64, device=X.device).index_add_(0, points, X.double())
        C = (sums / many[:, None].double()).to(X.dtype)
    return points, C, count


def _inertia(torch: Any, X: Any, points: Any, C: Any) -> float:
    """The sum of the squared distances to the centres, in fp64."""
    found = float(((X.double() - C.double()[points]) ** 2).sum())
    return found if math.isfinite(found) else math.inf
