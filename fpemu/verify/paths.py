"""The paths by which a caller multiplies on the GPU, and the computation of one product by one path.

A path calls the product's functions as a caller's program does: several times, on the operands and on others of the
same layout in turn, so that recorded launches, their CUDA graphs and prepared operands are used again at other
addresses. The output is filled with a poison before the last call, whose result counts.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import GuaranteeError, InputError, missing_package, unknown_name
from fpemu.gpu.runtime import device, faults, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.verify.cases import Computed, Draw, Result, codes

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
_FACTORS = (0.5, 0.25, 0.5)  # of the other operands, whose entries out of range are out of range in the operands too
_ALIGNED = 16  # bytes
_GUARD = 64  # bytes before and after an array
_PADS = (1, 4, 5)  # elements between the rows of an output
_STRIDES = (None, None, 0, 1, 7, 2**33)  # elements, of axes of length 1; None: unchanged


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
    return None if _torch().cuda.is_available() else "PyTorch has no CUDA device"


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


# --- arrays
@dataclass(frozen=True)
class Placement:
    """Memory of an array.

    Attributes
    ----------
    offset : int
        Elements from an address that has the array's alignment to 16 bytes.
    gap : int
        Elements between the matrices of a batch; 0: as in the array.
    stride : int, optional
        Elements, of axes of length 1. Default: as in the array.
    parameter : bool
        A tensor is a Parameter.
    """

    offset: int = 0
    gap: int = 0
    stride: int | None = None
    parameter: bool = False

    @classmethod
    def drawn(cls, draw: Draw, itemsize: int, unit: int = 1) -> Placement:
        """Draw the memory of an array, at multiples of `unit` elements."""
        count = _ALIGNED // itemsize
        step = draw.pick([unit, *(1 << i for i in range(3) if unit <= 1 << i < count)])
        offset, gap = step * draw.below(count // step), unit * draw.pick((0, 0, 1, 3, count))
        return cls(offset, gap, draw.pick(_STRIDES), draw.below(4) == 0)

    def moved(self, draw: Draw, itemsize: int, unit: int = 1) -> Placement:
        """Return the same strides at another address."""
        return replace(self, offset=Placement.drawn(draw, itemsize, unit).offset)

    def steps(self, x: NDArray[Any], lead: int) -> tuple[int, ...]:
        """Return the strides of a copy of an array, in elements, whose first `lead` axes are the batch."""
        steps = [s // x.itemsize for s in x.strides]
        extent = 1 + sum((n - 1) * abs(s) for n, s in zip(x.shape[lead:], steps[lead:], strict=True))
        for axis in reversed(range(lead if self.gap and x.size else 0)):
            if steps[axis]:
                step = extent + self.gap
                extent += (x.shape[axis] - 1) * step
                steps[axis] = step if steps[axis] > 0 else -step
        if self.stride is not None:
            steps = [self.stride if n == 1 else s for n, s in zip(x.shape, steps, strict=True)]
        return tuple(steps)


class DeviceArray:
    """A copy of a NumPy array in GPU memory, in its layout and alignment to 16 bytes, multiplied by a factor.

    `array` is a torch tensor, or an object that offers ``__cuda_array_interface__`` only, as other packages' arrays do.
    Tensors of arrays with negative strides are contiguous. All other memory of the buffer holds NaN.
    """

    def __init__(
        self, x: NDArray[Any], *, tensor: bool, factor: float = 1.0, place: Placement = Placement(), row: int = 1
    ) -> None:
        x = np.ascontiguousarray(x) if tensor and any(s < 0 for s in x.strides) else x
        low, _ = np.lib.array_utils.byte_bounds(x)
        self.place, self.shape, self.dtype = place, x.shape, x.dtype
        self.steps = place.steps(x, max(x.ndim - 1 - row, 0))
        reach = [(n - 1) * s for n, s in zip(x.shape, self.steps, strict=True) if x.size]
        before = (_GUARD + low % _ALIGNED) // x.itemsize + place.offset
        self.first, self.span = before - sum(s for s in reach if s < 0), sum(map(abs, reach)) + bool(x.size)
        self.start, self.count = before, before + self.span + _GUARD // x.itemsize
        self.content = np.full(self.count * x.itemsize, 0xFF, np.uint8).view(x.dtype)
        with np.errstate(all="ignore"):
            self._view(self.content)[...] = x if factor == 1 else x * x.dtype.type(factor)
        self.buffer = device.Buffer.of(self.content)
        self.array = self._exposed(tensor)

    def _exposed(self, tensor: bool) -> Any:
        strides = tuple(s * self.dtype.itemsize for s in self.steps)
        return _tensor(self) if tensor else _interface(self, self.first, self.shape, strides)

    def part(self, x: NDArray[Any], of: NDArray[Any], *, tensor: bool) -> DeviceArray:
        """Return a view of the copy of the array `of`, as `x` is one of the array itself."""
        result = copy(self)
        result.shape, result.steps = x.shape, tuple(s // x.itemsize for s in x.strides)
        result.first += (x.ctypes.data - of.ctypes.data) // x.itemsize
        result.array = result._exposed(tensor)
        return result

    def _view(self, flat: NDArray[Any]) -> NDArray[Any]:
        strides = [s * flat.itemsize for s in self.steps]
        return np.lib.stride_tricks.as_strided(flat[self.first :], self.shape, strides)

    def assign(self, source: DeviceArray) -> None:
        """Copy the memory of an array of the same strides."""
        size, shape = self.dtype.itemsize, (1, self.span)
        places = (X.buffer.pointer + X.start * size for X in (source, self))
        matrices.copy(*(Matrix(place, self.dtype, shape, (self.span, 1), self) for place in places))

    def read(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the codes of the elements, and those of the memory around and between them."""
        flat = self.buffer.array(self.count, f"u{self.dtype.itemsize}")
        places = self._view(np.arange(self.count))
        return flat[places], np.delete(flat, places)

    def changed(self, *, outside: bool = False) -> int:
        """Return the number of elements of the buffer, or of those outside the array, that a call changed."""
        kind = f"u{self.dtype.itemsize}"
        changes = self.buffer.array(self.count, kind) != self.content.view(kind)
        if outside:
            self._view(changes)[...] = False
        return int(np.count_nonzero(changes))


def _interface(X: DeviceArray, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    pointer = X.buffer.pointer + first * X.dtype.itemsize
    fields = {"shape": shape, "typestr": X.dtype.str, "data": (pointer, False), "version": 3, "strides": strides}
    return SimpleNamespace(__cuda_array_interface__=fields, memory=X.buffer)


def _tensor(X: DeviceArray) -> Any:
    """Return a tensor of the array's memory, or a Parameter."""
    tensor = _flat(X).as_strided(X.shape, X.steps, X.first)
    return _torch().nn.Parameter(tensor) if X.place.parameter else tensor


def _flat(X: DeviceArray) -> Any:
    """Return a tensor of all memory of the array's buffer."""
    return _torch().as_tensor(_interface(X, 0, (X.count,), (X.dtype.itemsize,)), device="cuda")


class Operands:
    """A, B and C of a product in GPU memory, each multiplied by a factor; those that share memory share a copy."""

    def __init__(
        self,
        operands: Sequence[NDArray[Any] | None],
        *,
        tensor: bool,
        factors: Sequence[float],
        places: Sequence[Placement],
        row: int,
    ) -> None:
        self._arguments: Any = (operands, tensor, factors, places, row)
        uses = Counter(id(_root(x)) for x in operands if x is not None)
        held: dict[int, DeviceArray] = {}  # copies by the arrays' identity
        for x, factor, place in zip(operands, factors, places, strict=True):
            if x is None or id(x) in held:
                continue
            root = _root(x)
            if uses[id(root)] < 2:
                held[id(x)] = DeviceArray(x, tensor=tensor, factor=factor, place=place, row=row)
                continue
            if id(root) not in held:
                contiguous = replace(place, gap=0, stride=None)
                held[id(root)] = DeviceArray(root, tensor=tensor, factor=factor, place=contiguous)
            held[id(x)] = held[id(root)] if x is root else held[id(root)].part(x, root, tensor=tensor)
        self._held = [None if x is None else held[id(x)] for x in operands]

    @property
    def arrays(self) -> list[Any]:
        """The caller's arrays; None for a C that is missing."""
        return [None if X is None else X.array for X in self._held]

    def copy(self) -> Operands:
        """Return the same values in other memory."""
        operands, tensor, factors, places, row = self._arguments
        return Operands(operands, tensor=tensor, factors=factors, places=places, row=row)

    def assign(self, source: Operands) -> None:
        """Copy the values of operands of the same strides."""
        for X, Y in zip(self._held, source._held, strict=True):
            if X is not None and Y is not None:
                X.assign(Y)

    def changed(self) -> int:
        """Return the number of elements in the operands' buffers that a call changed."""
        return sum(X.changed() for X in self._held if X is not None)


def _root(x: NDArray[Any]) -> NDArray[Any]:
    """Return the array of one axis whose memory `x` shows; else `x`."""
    return x.base if isinstance(x.base, np.ndarray) and x.base.ndim == 1 else x


class _Output(DeviceArray):
    """Memory of D, with a gap of `pad` elements after every row, which is the last `row` axes, or of a column."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, *, tensor: bool, pad: int, row: int, columns: bool, place: Placement
    ) -> None:
        inner = len(shape) - (1 if columns else 0) - row
        wide = np.zeros([n + pad * (i == inner) for i, n in enumerate(shape)], dtype)
        if columns:
            wide = np.ascontiguousarray(wide.swapaxes(-1, -2)).swapaxes(-1, -2)
        super().__init__(wide[tuple(map(slice, shape))], tensor=tensor, place=replace(place, parameter=False), row=row)

    def changes(self, codes: NDArray[Any]) -> int:
        """Number of codes that are no longer the poison."""
        poison = np.frombuffer(bytes([device.POISON]) * codes.itemsize, codes.dtype)[0]
        return int(np.count_nonzero(codes != poison))


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
    D, E = (_Output(shape, dtype, pad=pad, columns=by_columns, place=place, **common) for place in places[3:])
    streams = _streams(tensor and not path.startswith("graph") and draw.below(2) == 1)
    new = path in OPERATORS
    D.buffer.fill(device.POISON)
    with suppress(InputError):
        faults.check()

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
    raised = message_or(faults.check) is not None if deferred else None
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

    def assign_and_replay(X: Operands, out: DeviceArray) -> None:
        static.assign(X)
        replay()

    return assign_and_replay


def _streams(side: bool) -> list[Callable[[], AbstractContextManager[Any]]]:
    """Contexts of the calls on other operands, and of those on the operands themselves: torch's streams."""
    if not side:
        return [nullcontext, nullcontext]
    torch = _torch()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    return [nullcontext, lambda: torch.cuda.stream(stream)]


def capture(call: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a call in a CUDA graph of PyTorch and return the function that replays it."""
    torch = _torch()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], Any] = graph.replay
    return replay


# --- products of PyTorch
def routed(context: Any, A: Any, B: Any, C: Any, alpha: complex, beta: complex) -> Any:
    """Return alpha · A B + beta · C by PyTorch's own functions within a context of `fpemu.torch.matmul`."""
    torch = _torch()
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
    return _torch().autograd.grad(operator(*factors, None), unknown, dD)[0]


def _batched(A: Any, B: Any, C: Any = None) -> tuple[Any, Any]:
    """A and B with the batch axes of the result."""
    lead = _torch().broadcast_shapes(*(X.shape[:-2] for X in (A, B, C) if X is not None))
    return tuple(X.expand(*lead, *X.shape[-2:]) for X in (A, B))


def _torch() -> Any:
    return importlib.import_module("torch")
