"""The paths by which a caller multiplies on the GPU, and the computation of one product by one path.

A path calls the product's functions as a caller's program does: several times, on the operands and on others of the
same layout in turn, so that recorded launches, their CUDA graphs and prepared operands are used again at other
addresses. The output is filled with a poison before the last call, whose result counts.

`fpemu.verification.cases` places the arrays.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import GuaranteeError, InputError, missing_package, unknown_name
from fpemu.gpu.runtime import counters, device
from fpemu.verification.cases import Computed, DeviceArray, Draw, Operands, Output, Placement, Result, codes, load_torch

PATHS = {
    "host": "a call on NumPy arrays",
    "eager": "a repeated call on arrays of the GPU, with out=",
    "plan": "a plan",
    "prepared": "a plan with an operand prepared in advance",
    "graph": "a replayed CUDA graph of a call",
    "graph-plan": "a replayed CUDA graph of a plan",
    "graph-prepared": "a replayed CUDA graph of a plan with an operand prepared in advance",
    "torch": "the operator of fpemu.torch",
    "routed": "PyTorch's product within fpemu.torch.matmul",
    "gradient": "a gradient of the operator of fpemu.torch",
}
"""Names and meanings of all paths"""
OPERATORS = ("torch", "routed", "gradient")
"""Paths whose result is a new tensor"""
WITH_TORCH = ("graph", "graph-plan", "graph-prepared", *OPERATORS)
"""Paths that need PyTorch"""
WITHOUT_PLAN = ("host", "eager", "graph", "torch", "gradient")
"""Paths of products that have neither a plan nor prepared operands"""
_FACTORS = (0.5, 0.25, 0.5)  # of the other operands, whose entries out of range are out of range in the operands too
_PADS = (1, 4, 5)  # elements between the rows of an output


@dataclass(frozen=True)
class Functions:
    """The functions of a product. Each takes A, B and C, which is None where the product adds none.

    Attributes
    ----------
    multiply : callable
        Returns D, written to `out` if this is given.
    plan : callable, optional
        Returns a plan.
    operator, routed : callable, optional
        Return D as a new tensor.
    """

    multiply: Callable[..., Any]
    plan: Callable[..., Any] | None = None
    operator: Callable[..., Any] | None = None
    routed: Callable[..., Any] | None = None


# --- choice
@cache
def missing(path: str) -> str | None:
    """Return what this machine lacks for a path; None if nothing."""
    if path not in WITH_TORCH:
        return None
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    return None if load_torch().cuda.is_available() else "PyTorch has no CUDA device"


def choose(names: Sequence[str] | None, supported: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the paths of a run, in the order of `PATHS`, and one line for the paths that this machine cannot run.

    Parameters
    ----------
    names : sequence of str, optional
        Requested paths. Default: all of the supported paths that this machine can run.
    supported : sequence of str
        Paths of the suite.

    Raises
    ------
    InputError
        An unknown path, or a requested path that this machine cannot run.
    """
    for name in names or ():
        if name not in supported:
            raise unknown_name("path", name, supported)
        if (reason := missing(name)) is not None:
            raise missing_package("torch") if "installed" in reason else InputError(f"path {name}: {reason}")
    lacking = [name for name in supported if missing(name) is not None]
    skipped = [f"paths {', '.join(lacking)}: skipped, {missing(lacking[0])}"] if lacking and names is None else []
    return [name for name in supported if name not in lacking and (names is None or name in names)], skipped


# --- computation
def run(
    functions: Functions,
    path: str,
    operands: Sequence[NDArray[Any] | None],
    shape: tuple[int, ...],
    dtype: Any,
    *,
    key: int = 0,
    number: int = 0,
    deferred: bool = False,
    row: int = 1,
    columns: bool = False,
) -> Computed:
    """Multiply by a path.

    Parameters
    ----------
    functions : Functions
        The product.
    path : str
        One of `PATHS`.
    operands : sequence of array or None
        A, B and C.
    shape, dtype
        Shape and dtype of D.
    key : int
        Key of the case, from which the memory of the arrays is drawn.
    number : int
        Number of the case, by which the details alternate: tensors or other arrays of the GPU where a path takes both,
        an output with gaps or without, the prepared operand, and the operand of the gradient.
    deferred : bool
        The call leaves the overflow policy out, so that `fpemu.gpu.check` raises its range errors.
    row : int
        Axes of a row of D, which is contiguous.
    columns : bool
        D may be stored by columns.

    Returns
    -------
    Computed
        Codes of D, or the message of the caller's error; `outside` includes the elements of D that changed in spite of
        an error, and changed elements of the operands; `deferred` is whether `fpemu.gpu.check` raised.
    """
    if path == "host":
        return Computed(message_or(lambda: codes(np.asarray(functions.multiply(*operands)))))
    tensor = path in WITH_TORCH or (number % 3 != 1 and missing("graph") is None)
    draw = Draw(key, "memory", number)
    scattered = draw.below(2) == 1
    size, places = np.dtype(dtype).itemsize, [Placement()] * 5  # of A, B, C, D and E
    if scattered:
        places = [Placement.drawn(draw, size, unit) for unit in (1, 1, 1, row, row)]
    moved = [place.moved(draw, size) for place in places[:3]] if scattered and draw.below(2) else places[:3]
    common: dict[str, Any] = {"tensor": tensor, "row": row}
    own, other = (
        Operands(operands, factors=factors, places=some, **common)
        for factors, some in (((1.0, 1.0, 1.0), places[:3]), (_FACTORS, moved))
    )
    pad = draw.pick(_PADS) * (number % 2)
    by_columns = columns and draw.below(2) == 1
    D, E = (Output(shape, dtype, pad=pad, columns=by_columns, place=place, **common) for place in places[3:])
    streams = _streams(tensor and not path.startswith("graph") and draw.below(2) == 1)
    new = path in OPERATORS
    D.buffer.fill(device.POISON)
    with suppress(InputError):
        counters.check()

    def compute() -> Result | None:
        call = _call(functions, path, own, other, D, number)
        for X, out in ((other, E), (own, D), (own, D), (other, E)):
            with suppress(InputError, GuaranteeError), streams[X is own]():
                call(X, out)
        if path.startswith("graph"):
            functions.multiply(*other.arrays, out=E.array)
        device.synchronize()
        D.buffer.fill(device.POISON)
        device.synchronize()  # another stream does not wait for the fill
        with streams[1]():
            result = call(own, D)
            return codes(result.detach().cpu().numpy()) if new else None

    result = message_or(compute)
    raised = message_or(counters.check) is not None if deferred else None
    device.synchronize()  # a call may have queued its work on another stream
    written, gaps = D.read()
    outside = own.changed()
    if not new:
        outside += D.changes(gaps) + (D.changes(written) if isinstance(result, str) else 0)
    return Computed(written if result is None else result, outside=outside, deferred=raised)


def message_or(compute: Callable[[], Any]) -> Any:
    """Return the result of a computation, or the message of an error that its operands or arguments caused."""
    try:
        return compute()
    except (InputError, GuaranteeError) as problem:
        return f"{type(problem).__name__}: {problem}"


def _call(
    functions: Functions, path: str, own: Operands, other: Operands, D: DeviceArray, number: int
) -> Callable[[Operands, DeviceArray], Any]:
    """Return the call of a path: a function of `own` or `other` and of the output."""
    if path == "gradient":
        return lambda X, out: gradient(functions.operator, *X.arrays[:2], of_second=bool(number % 2))
    if path in OPERATORS:
        operator: Any = functions.routed if path == "routed" else functions.operator
        return lambda X, out: operator(*X.arrays)
    multiply: Any = functions.multiply
    which = number // 2 % 2  # index of the prepared operand
    ready: dict[Operands, Any] = {}
    if path.endswith(("plan", "prepared")):
        assert functions.plan is not None
        multiply = functions.plan(*other.arrays)
    if path.endswith("prepared"):
        ready = {X: multiply.prepare(X.arrays[which], "AB"[which]) for X in (own, other)}

    def call(X: Operands, out: DeviceArray) -> Any:
        arrays = X.arrays
        if ready:
            arrays[which] = ready[X]
        return multiply(*arrays, out=out.array)

    if not path.startswith("graph"):
        return call
    static = other.copy()
    if ready:
        ready[static] = ready[own]
    call(static, D)
    replay = capture(lambda: call(static, D))

    captured = multiply, ready  # the graph reads the memory of the plan and of the prepared operand

    def assign_and_replay(X: Operands, out: DeviceArray) -> None:
        assert captured
        static.assign(X)
        replay()

    return assign_and_replay


def _streams(side: bool) -> list[Callable[[], AbstractContextManager[Any]]]:
    """Contexts of the calls on other operands, and of those on the operands themselves: torch's streams."""
    if not side:
        return [nullcontext, nullcontext]
    torch = load_torch()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    return [nullcontext, lambda: torch.cuda.stream(stream)]


def capture(call: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a call in a CUDA graph of PyTorch and return the function that replays it."""
    torch = load_torch()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], Any] = graph.replay
    return replay


# --- products of PyTorch
def routed(context: Any, A: Any, B: Any, C: Any, alpha: complex, beta: complex) -> Any:
    """Return alpha · A B + beta · C by PyTorch's own functions within a context of `fpemu.torch.matmul`."""
    torch = load_torch()
    A, B = _batched(A, B, C)
    shape = (*A.shape[:-1], B.shape[-1])
    with context:
        if C is None and alpha == 1:
            return torch.matmul(A, B)
        C = A.new_zeros(()).expand(shape) if C is None else C.expand(shape)
        if A.dim() == 2:
            return torch.addmm(C, A, B, beta=beta, alpha=alpha)
        C, A, B = (X.reshape(prod(X.shape[:-2]), *X.shape[-2:]) for X in (C, A, B))
        return torch.baddbmm(C, A, B, beta=beta, alpha=alpha).reshape(shape)


def gradient(operator: Any, A: Any, B: Any, *, of_second: bool) -> Any:
    """Return A B as a gradient: of P Q by P for Q = Bᵀ and dD = A, or by Q for P = Aᵀ and dD = B."""
    A, B = _batched(A, B)
    unknown = A.new_ones((*A.shape[:-1], B.shape[-1])).requires_grad_()
    factors, dD = ((A.mT, unknown), B) if of_second else ((unknown, B.mT), A)
    return load_torch().autograd.grad(operator(*factors, None), unknown, dD)[0]


def _batched(A: Any, B: Any, C: Any = None) -> tuple[Any, Any]:
    """A and B with the batch axes of the result."""
    lead = load_torch().broadcast_shapes(*(X.shape[:-2] for X in (A, B, C) if X is not None))
    return tuple(X.expand(*lead, *X.shape[-2:]) for X in (A, B))
