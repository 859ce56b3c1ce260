"""Whole applications on the GPU at hand: k-means, BERT's feed-forward layers, linear layers of language models.

The applications of LE-GEMM's figures 15 and 16. What is timed is all that the application does, not its products
alone: distances, assignment and new centroids; biases and GELU. What stands still is split once: weights, and the
points of k-means. Accuracy is that of the result against the same application in fp64. Arrays are PyTorch's: only this
module needs it.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from fpemu.errors import GpuError
from fpemu.gpu.bench import choosing, contenders, timing
from fpemu.gpu.bench.task import SEED, Task
from fpemu.gpu.matrices import Matrix

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
    found = []
    for name, shapes in SHAPES.items():
        for M, N, K in reversed(shapes):
            if not quick or (N if name == "linear" else M) in _QUICK[name]:
                found += [Task(KIND, M, N, K, name, who, "first", "fp32", (PAGE,)) for who in WHO]
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


def seconds(task: Task) -> float:
    """About how long a row takes."""
    return 0.2


def sources(task: Task) -> list[str]:
    """What the kernels of a row compile."""
    who = contenders.find(task.contender)
    shapes = [(task.M, task.N, task.K), *([(task.M, task.K, task.N)] if task.data in _LAYERS else ())]
    found: list[str] = []
    if who.scheme is not None:
        with suppress(Exception):  # it will be told where the row is measured
            found = [text for shape in shapes for text in choosing.sources(shape, who)]
    return found


def measure(task: Task, made: Any = None) -> dict[str, Any]:
    """Time an application with the products of a contender, and its result's error.

    Returns
    -------
    dict
        "first_s", "best_s": seconds of one run of all of it (k-means: of one iteration); "relative_l2": of the result;
        k-means: "total_s" and "iterations" until it ends, the host's time and its waiting counted, "inertia" (over that
        in fp64) and "equal", the share of points in the cluster that fp64 has put them in.
    """
    torch = pytorch()
    torch.manual_seed(SEED)
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
        Split here; `set` splits another.
    rows : int
        Of X.
    X : tensor (rows, K), fp32, optional
        One that stands still: it is split here too, and all calls are with it.
    """

    def __init__(self, torch: Any, who: str, W: Any, rows: int, X: Any = None) -> None:
        self.torch, self.who = torch, who
        self.about: dict[str, Any] = {"kernel": f"PyTorch {torch.__version__}"}
        contender = contenders.find(who)
        self.kernel: Any = None
        if contender.scheme is not None:
            shape = (rows, int(W.shape[1]), int(W.shape[0]))
            self.kernel = choosing.kernel(choosing.scheme(contender), contender.hints, shape)
            self.about = {"kernel": self.kernel.name}
        self.X, self.ready = X, None if X is None else self._split(X)
        self.set(W)

    def set(self, W: Any) -> None:
        """Another W of the same shape."""
        self.torch.backends.cuda.matmul.allow_tf32 = self.who == "tf32"
        self.W = W
        self.words = W.half() if self.kernel is None and self.who == "fp16" else W
        if self.kernel is not None:
            self.words = self.kernel.prepare(matrix(W), "B", "raise")

    def _split(self, X: Any) -> Any:
        if self.kernel is None:
            return X.half() if self.who == "fp16" else X
        return self.kernel.prepare(matrix(X), "A", "raise")

    def __call__(self, X: Any) -> Any:
        """(M, K) to (M, N), in fp32."""
        t = self.torch
        ready = self._split(X) if self.ready is None else self.ready
        if self.kernel is not None:
            D = t.empty((X.shape[0], self.W.shape[1]), dtype=t.float32, device=X.device)
            self.kernel.multiply(ready, self.words, matrix(D), 1.0, 0.0, None)
            return D
        return t.mm(ready, self.words, out_dtype=t.float32) if self.who == "fp16" else t.mm(ready, self.words)


def matrix(X: Any) -> Matrix:
    """A tensor in two dimensions, as kernels take it."""
    dtype = np.dtype(str(X.dtype).removeprefix("torch."))
    return Matrix(int(X.data_ptr()), dtype, tuple(X.shape), tuple(X.stride()), X)


def _timed(task: Task, call: Callable[[], Any]) -> dict[str, Any]:
    return timing.fields(timing.measure(call, timing.RULES[task.rules][0]))


def _error(torch: Any, got: Any, want: Any) -> float:
    return float((got.double() - want).norm() / want.norm())


def _linear(torch: Any, task: Task) -> dict[str, Any]:
    """Q, K and V of 2048 tokens, data uniform in [0.5, 2.5]."""
    X, *weights = (torch.rand(shape, device="cuda") * 2 + 0.5 for shape in ((task.M, task.K), *[(task.K, task.N)] * 3))
    layers = [Layer(torch, task.contender, W, task.M) for W in weights]
    wide = X.double()
    errors = [_error(torch, layer(X), wide @ W.double()) for layer, W in zip(layers, weights, strict=True)]
    return {**layers[0].about, **_timed(task, lambda: [layer(X) for layer in layers]), "relative_l2": max(errors)}


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
    return {**layers[0].about, **_timed(task, whole), "relative_l2": error}


def _kmeans(torch: Any, task: Task) -> dict[str, Any]:
    """Lloyd's iterations until no point changes its cluster; features that nobody has centred."""
    centres = torch.rand((task.N, task.K), device="cuda") * 2 + 29
    member = torch.randint(task.N, (task.M,), device="cuda")
    X = centres[member] + 3.0 * torch.randn((task.M, task.K), device="cuda")
    start = X[: task.N].clone()
    wide = X.double()
    exact = lloyd(torch, wide, wide, start.double(), lambda C: lambda Y: Y @ C.t())
    layer = Layer(torch, task.contender, start.t(), task.M, X)

    def products(C: Any) -> Callable[[Any], Any]:
        layer.set(C.t())
        return layer

    begun = time.perf_counter()
    found = lloyd(torch, X, wide, start, products)
    torch.cuda.synchronize()
    total = time.perf_counter() - begun
    step = _timed(task, lambda: centroids(torch, wide, start, assign(start, products(start)(X))))
    return {
        **layer.about, **step, "total_s": total, "iterations": found[2],
        "inertia": _inertia(wide, *found[:2]) / _inertia(wide, *exact[:2]),
        "equal": float((found[0] == exact[0]).double().mean()),
        "relative_l2": _error(torch, found[1], exact[1]),
    }  # fmt: skip


def lloyd(
    torch: Any, X: Any, wide: Any, C: Any, products: Callable[[Any], Callable[[Any], Any]]
) -> tuple[Any, Any, int]:
    """The clusters of the points X (`wide` in fp64), their centres and the iterations; ``products(C)(X)`` is X·Cᵀ."""
    points = torch.zeros(len(X), dtype=torch.int64, device=X.device) - 1
    count = 0
    while count < MOST:
        count += 1
        closest = assign(C, products(C)(X))
        if bool((closest == points).all()):
            break
        points = closest
        C = centroids(torch, wide, C, points)
    return points, C, count


def assign(C: Any, product: Any) -> Any:
    """The closest centre of every point by |c|² - 2 x·c; what all centres have of |x|² is left out."""
    return ((C * C).sum(1) - 2 * product).argmin(1)


def centroids(torch: Any, wide: Any, C: Any, points: Any) -> Any:
    """The mean of every cluster, summed in fp64; an empty one is at 0. Nothing waits for the GPU."""
    double = {"dtype": torch.float64, "device": wide.device}
    sums = torch.zeros(C.shape, **double).index_add_(0, points, wide)
    many = torch.zeros(len(C), **double).index_add_(0, points, torch.ones(len(wide), **double))
    return (sums / many.clamp(min=1)[:, None]).to(C.dtype)


def _inertia(wide: Any, points: Any, C: Any) -> float:
    """The sum of the squared distances to the centres, in fp64."""
    found = float(((wide - C.double()[points]) ** 2).sum())
    return found if math.isfinite(found) else math.inf
