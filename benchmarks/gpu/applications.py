"""Whole applications on the GPU: k-means, BERT's feed-forward layers, linear layers of language models.

The applications of LE-GEMM's figures 15 and 16. The time includes all work of an application, not its products alone:
distances, assignment and new centroids; biases and GELU. Constant operands are split once: weights, and the points of
k-means. Accuracy is measured against the same application in fp64. Arrays are PyTorch's, which only this module needs.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import fpemu
from benchmarks import timing
from benchmarks.gpu import implementations
from benchmarks.gpu.case import SEED, Case, Group
from fpemu.errors import GpuError

PAGE = "legemm/fig15"
KIND = "application"
NAMES = ("sgemm", "fp16", "legemm", "staged", "staged-int8 exact=8")
MOST = 60
"""Limit of the iterations of k-means."""
CLUSTERS, FEATURES = 256, 128
_LAYERS = {"BERT-base": (768, 3072), "BERT-large": (1024, 4096)}
_TOKENS = {128: 32, 256: 32, 512: 32}
"""Length of a sequence and sequences in a batch."""
SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "k-means": tuple((points, CLUSTERS, FEATURES) for points in (8192, 16384, 32768, 65536)),
    **{
        name: tuple((n * batch, inner, width) for n, batch in _TOKENS.items())
        for name, (width, inner) in _LAYERS.items()
    },
    "linear": tuple((2048, width, width) for width in (1024, 2048, 4096, 5120, 8192)),
}
"""M, N, K of the (first) product of each application."""
_QUICK = {"k-means": (8192, 65536), "BERT-base": (4096, 16384), "BERT-large": (16384,), "linear": (1024, 4096, 8192)}
"""The quick sizes, by M, of linear layers by N."""


def cases(quick: bool) -> list[Case]:
    """Return the cases, large shapes first."""
    return [
        case
        for name, shapes in SHAPES.items()
        for shape in reversed(shapes)
        if not quick or shape[name == "linear"] in _QUICK[name]
        for case in Group(shape, name, NAMES, "first", (PAGE,)).cases(KIND)
    ]


def pytorch() -> Any:
    """Import PyTorch; GpuError if it is not installed, or has no GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as problem:
        raise GpuError("applications need PyTorch with CUDA: pip install torch") from problem
    if not torch.cuda.is_available():
        raise GpuError("the PyTorch that is installed sees no GPU: applications need one with CUDA")
    return torch


def seconds(case: Case) -> float:
    """Estimate the seconds of a case."""
    return 0.2


def sources(case: Case) -> list[str]:
    """Return the sources of a case's kernels."""
    shapes = [(case.M, case.N, case.K), *([(case.M, case.K, case.N)] if case.data in _LAYERS else ())]
    return [text for shape in shapes for text in implementations.sources(shape, case.implementation)]


def measure(case: Case, operands: Any = None) -> dict[str, Any]:
    """Time an application with the products of an implementation, and measure its result's error.

    "first_s" and "best_s" are seconds of one run of the whole application (k-means: of one iteration), "relative_l2" is
    of the result; k-means: "total_s" (wall time) and "iterations" until it ends, "inertia" (relative to fp64) and
    "equal", the share of points in the same cluster as in fp64.
    """
    torch = pytorch()
    torch.manual_seed(SEED)
    if case.data == "k-means":
        return _kmeans(torch, case)
    return (_linear if case.data == "linear" else _feed_forward)(torch, case)


class Layer:
    """X ↦ X·W for one W (K, N) in fp32, which `set` replaces, by an implementation.

    W is split here, or a constant X (rows, K) in its place: all calls are with it then.
    """

    def __init__(self, torch: Any, name: str, W: Any, rows: int, X: Any = None) -> None:
        self.torch, self.name, self.plan, self.constant = torch, name, None, X
        self.about: dict[str, Any] = {"kernel": f"PyTorch {torch.__version__}"}
        implementation = implementations.find(name)
        if implementation.scheme is not None:
            scheme, (K, N) = implementations.scheme(implementation), W.shape
            like = torch.empty((rows, K), dtype=W.dtype, device=W.device) if X is None else X
            self.plan = fpemu.gpu.plan(scheme, like, W)
            self.about = {"kernel": fpemu.gpu.kernel(scheme, rows, int(N), int(K)).name}
        if X is not None:
            self.constant = self._half(X) if self.plan is None else self.plan.prepare(X, "A")
        self.set(W)

    def set(self, W: Any) -> None:
        """Replace W by another of the same shape."""
        self.torch.backends.cuda.matmul.allow_tf32 = self.name == "tf32"
        if self.plan is None:
            self.W = self._half(W)
        else:
            self.W = self.plan.prepare(W) if self.constant is None else W

    def __call__(self, X: Any) -> Any:
        """Return X·W in fp32."""
        if self.plan is not None:
            return self.plan(X if self.constant is None else self.constant, self.W)
        more = {"out_dtype": self.torch.float32} if self.name == "fp16" else {}
        return self.torch.mm(self._half(X) if self.constant is None else self.constant, self.W, **more)

    def _half(self, X: Any) -> Any:
        return X.half() if self.name == "fp16" else X


def _timed(case: Case, call: Callable[[], Any]) -> dict[str, Any]:
    return timing.fields(timing.measure(call, timing.RULES[case.rules][0]))


def _error(torch: Any, got: Any, want: Any) -> float:
    return float((got.double() - want).norm() / want.norm())


def _linear(torch: Any, case: Case) -> dict[str, Any]:
    """Q, K and V of 2048 tokens, data uniform in [0.5, 2.5]."""
    X, *weights = (torch.rand(shape, device="cuda") * 2 + 0.5 for shape in ((case.M, case.K), *[(case.K, case.N)] * 3))
    layers = [Layer(torch, case.implementation, W, case.M) for W in weights]
    wide = X.double()
    errors = [_error(torch, layer(X), wide @ W.double()) for layer, W in zip(layers, weights, strict=True)]
    return {**layers[0].about, **_timed(case, lambda: [layer(X) for layer in layers]), "relative_l2": max(errors)}


def _feed_forward(torch: Any, case: Case) -> dict[str, Any]:
    """GELU(X W1 + b1) W2 + b2, X as a layer norm leaves it, weights as BERT's are initialized."""
    width, inner = case.K, case.N
    X = torch.randn((case.M, width), device="cuda")
    first, second = (0.02 * torch.randn(shape, device="cuda") for shape in ((width, inner), (inner, width)))
    biases = [0.02 * torch.randn(n, device="cuda") for n in (inner, width)]
    gelu = torch.nn.functional.gelu
    layers = Layer(torch, case.implementation, first, case.M), Layer(torch, case.implementation, second, case.M)

    def whole() -> Any:
        return layers[1](gelu(layers[0](X) + biases[0])) + biases[1]

    wide = gelu(X.double() @ first.double() + biases[0].double()) @ second.double() + biases[1].double()
    error = _error(torch, whole(), wide)
    return {**layers[0].about, **_timed(case, whole), "relative_l2": error}


def _kmeans(torch: Any, case: Case) -> dict[str, Any]:
    """Lloyd's iterations until no point changes its cluster; features that are not centred."""
    centres = torch.rand((case.N, case.K), device="cuda") * 2 + 29
    member = torch.randint(case.N, (case.M,), device="cuda")
    X = centres[member] + 3.0 * torch.randn((case.M, case.K), device="cuda")
    start = X[: case.N].clone()
    wide = X.double()
    exact = lloyd(torch, wide, wide, start.double(), lambda C: lambda Y: Y @ C.t())
    layer = Layer(torch, case.implementation, start.t(), case.M, X)

    def products(C: Any) -> Callable[[Any], Any]:
        layer.set(C.t())
        return layer

    result: list[Any] = []
    total = timing.wall(
        lambda: result.extend(lloyd(torch, X, wide, start, products)), synchronize=torch.cuda.synchronize, wait=True
    )
    step = _timed(case, lambda: centroids(torch, wide, start, assign(start, products(start)(X))))
    return {
        **layer.about,
        **step,
        "total_s": total,
        "iterations": result[2],
        "inertia": _inertia(wide, *result[:2]) / _inertia(wide, *exact[:2]),
        "equal": float((result[0] == exact[0]).double().mean()),
        "relative_l2": _error(torch, result[1], exact[1]),
    }


def lloyd(
    torch: Any, X: Any, wide: Any, C: Any, products: Callable[[Any], Callable[[Any], Any]]
) -> tuple[Any, Any, int]:
    """Return the clusters of the points X (`wide` in fp64), their centres and the number of iterations.

    ``products(C)(X)`` is X·Cᵀ.
    """
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
    """Return the closest centre of every point by |c|² - 2 x·c; |x|² is equal for all centres."""
    return ((C * C).sum(1) - 2 * product).argmin(1)


def centroids(torch: Any, wide: Any, C: Any, points: Any) -> Any:
    """Return the mean of every cluster, summed in fp64, 0 if it is empty, without waiting for the GPU."""
    double = {"dtype": torch.float64, "device": wide.device}
    sums = torch.zeros(C.shape, **double).index_add_(0, points, wide)
    many = torch.zeros(len(C), **double).index_add_(0, points, torch.ones(len(wide), **double))
    return (sums / many.clamp(min=1)[:, None]).to(C.dtype)


def _inertia(wide: Any, points: Any, C: Any) -> float:
    """Return the sum of the squared distances to the centres, in fp64."""
    inertia = float(((wide - C.double()[points]) ** 2).sum())
    return inertia if math.isfinite(inertia) else math.inf
