"""Test cases as functions of a seed, the same on every machine, and the memory of their arrays on the GPU.

In half of the cases the arrays begin at multiples of 16 bytes, as NumPy's and torch's allocators place them. In the
others they lie as slices of larger arrays do: at any multiple of the item size, with gaps between the matrices of a
batch, with any strides of axes of length 1. The memory around and between the elements of an operand is NaN.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma.order import KOrder

Shape = tuple[int, ...]
Result = NDArray[Any] | str
"""Codes of a result, or the text of the error that the caller of the product caused"""
LAYOUTS = ("rows", "columns", "rows padded", "columns padded", "spaced", "reversed", "repeated")
"""Memory layouts of an operand; padded: with a leading dimension; repeated: the first row, with a row stride of 0"""
_ALIGNED = 16  # bytes
_GUARD = 64  # bytes before and after an array
_STRIDES = (None, None, 0, 1, 7, 2**33)  # elements, of axes of length 1; None: unchanged


@dataclass(frozen=True)
class Case:
    """One product of a suite: everything but the operands, which are drawn from `key`."""

    subject: Any  # the instruction, scheme, format or kind of product under test
    number: int  # index in its group
    key: int
    sizes: tuple[int, int, int]  # M, N, K
    kinds: tuple[str, ...] = ()  # classes of `fpemu.mma.operand_streams` of the operands
    layouts: tuple[str, ...] = ()
    lead: tuple[Shape, Shape, Shape] = ((), (), ())  # leading axes of A, B and C
    order: Any = None  # KOrder or tree; None: the kernel's own
    alpha: complex = 1.0
    beta: complex = 0.0  # 0: there is no C
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # further choices of the suite

    @property
    def products(self) -> int:
        """Number of multiply-adds."""
        return prod(np.broadcast_shapes(*self.lead)) * prod(self.sizes)

    def __str__(self) -> str:
        order = self.order if self.order is None or isinstance(self.order, KOrder) else type(self.order).__name__
        parts = [
            "×".join(map(str, self.sizes)),
            " and ".join(self.kinds),
            f"alpha {self.alpha:g}, beta {self.beta:g}",
            f"leading axes {self.lead}" if any(self.lead) else "",
            "" if order is None else str(order),
            " / ".join(self.layouts),
            ", ".join(f"{n} {v}" for n, v in self.options.items() if v and isinstance(v, str | int | tuple)),
        ]
        return ", ".join(part for part in parts if part)


@dataclass
class Computed:
    """Result of a case on the GPU."""

    result: Result
    kernel: str = ""  # name of the kernel that ran, to be listed in the outcome
    counts: Mapping[str, int] = field(default_factory=dict)  # added to the outcome's counts
    outside: int = 0  # elements outside the result's memory that the kernel changed
    facts: dict[str, Any] = field(default_factory=dict)  # that a replay of the case needs
    deferred: bool | None = None  # whether `fpemu.gpu.check` raised; None: no error was deferred by request


class Draw:
    """Numbers as a function of a seed and names: SHA-256 of both and of the count of numbers drawn before."""

    def __init__(self, seed: int, *names: object) -> None:
        self._base, self._count = " ".join(map(str, (seed, *names))), 0

    def word(self) -> int:
        """64 bits."""
        self._count += 1
        return int.from_bytes(hashlib.sha256(f"{self._base} {self._count}".encode()).digest()[:8], "big")

    def below(self, n: int) -> int:
        """0 to n - 1."""
        return self.word() % n

    def between(self, low: int, high: int) -> int:
        """`low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.below(len(options))]

    def shuffled(self, n: int) -> list[int]:
        """0 to n - 1 in random order."""
        return sorted(range(n), key=[self.word() for _ in range(n)].__getitem__)


def arrange(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return the same values in one of `LAYOUTS`; "repeated" returns the first row in place of every row."""
    if layout == "rows":
        return np.ascontiguousarray(x)
    if layout == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if layout == "repeated":
        return np.broadcast_to(x[..., :1, :].copy(), x.shape)
    if layout == "spaced":
        wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        view = wide[..., ::2, ::3]
    elif layout == "columns padded":
        return arrange(x.swapaxes(-1, -2), "rows padded").swapaxes(-1, -2)
    else:
        wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype)
        view = wide[..., : x.shape[-1]]
    view[...] = x
    return view


def codes(D: NDArray[Any]) -> NDArray[Any]:
    """Return the bit patterns of a result."""
    D = np.ascontiguousarray(D)
    return D.view(f"u{D.dtype.itemsize}")


# --- memory
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
        A tensor is a Parameter, and another array states no stream.
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
    if not X.place.parameter:
        fields["stream"] = 1  # the default stream
    return SimpleNamespace(__cuda_array_interface__=fields, memory=X.buffer)


def _tensor(X: DeviceArray) -> Any:
    """Return a tensor of the array's memory, or a Parameter."""
    tensor = _flat(X).as_strided(X.shape, X.steps, X.first)
    return load_torch().nn.Parameter(tensor) if X.place.parameter and X.dtype.kind == "f" else tensor


def _flat(X: DeviceArray) -> Any:
    """Return a tensor of all memory of the array's buffer."""
    return load_torch().as_tensor(_interface(X, 0, (X.count,), (X.dtype.itemsize,)), device="cuda")


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


class Output(DeviceArray):
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


def load_torch() -> Any:
    """Import PyTorch."""
    return importlib.import_module("torch")
