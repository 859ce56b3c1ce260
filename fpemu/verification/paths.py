"""The paths by which a caller multiplies on the GPU: each is one function from a product's operands to its result.

A path calls the product on other operands of the same layout first, so that the plan of the first call runs again at
other addresses. The output is filled with a poison before the last call, whose result counts.

In half of the cases the arrays begin at multiples of 16 bytes, as NumPy's and PyTorch's allocators place them, and in
the others at any multiple of the item size, as slices of larger arrays do. The memory around an operand is NaN.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

import fpemu
from fpemu import gpu
from fpemu.errors import GuaranteeError, InputError, missing_package, unknown_name
from fpemu.gpu.runtime import device
from fpemu.verification.cases import Array, Computed, Draw, Operands, Product, Result, codes

POISON = 0xAB  # every byte of an output before the last call
_NAN = 0xFF  # every byte around an operand: a NaN in every format
_ALIGNED = 16  # bytes: the widest load of a kernel
_GUARD = 64  # bytes before and after an array
_SMALLER = 0.5  # the other operands are smaller, so that their entries are out of range only where the operands' are


WITHOUT_PLAN = ("host", "eager", "graph", "torch")
"""Paths of products that have no plan"""
_WITH_TORCH = ("graph", "torch")


@dataclass
class Call(Product):
    """A product by a function of `fpemu.gpu`, its namesake of `fpemu.torch`, or a plan."""

    function: str  # such as "batched.hgemm"
    operands: Operands
    like: Array  # with the shape, the dtype and the strides of D
    options: Mapping[str, Any]
    emulation: Mapping[str, Any]  # options of the function of the CPU
    _: KW_ONLY
    paths: Sequence[str] = WITHOUT_PLAN
    on_gpu: Mapping[str, Any] = field(default_factory=dict)  # further options of the function of `fpemu.gpu`
    policy: str | None = None  # for overflow; None: the function has none
    deferrable: bool = False  # `fpemu.gpu.check` can raise its range errors
    unit: int = 1  # the address of D is a multiple of the size of so many elements
    _emulated: dict[str | None, Result] = field(default_factory=dict, init=False)

    def emulate(self, policy: str | None = None) -> Result:
        """Compute the product by the function's namesake on the CPU, once for each overflow policy.

        An error is a result if the function has a policy.
        """
        name = "simt.gemm" if self.function.startswith("tallskinny") else self.function
        changed = {} if policy is None else {"on_range": policy}

        def compute() -> Array:
            return codes(np.asarray(attrgetter(name)(fpemu)(*self.operands, **{**self.emulation, **changed})))

        if policy not in self._emulated:
            self._emulated[policy] = compute() if self.policy is None else message_or(compute)
        return self._emulated[policy]

    def defers(self, path: str) -> bool:
        """Whether the calls leave the policy "raise" out: in a CUDA graph, and otherwise in half of the cases."""
        deferrable = self.deferrable and self.policy == "raise" and path != "host"
        return deferrable and (path == "graph" or self.case.number // 8 % 2 == 1)

    def compute(self, path: str) -> Computed:
        """Compute the product by a path."""
        policy = {} if self.policy is None else {"on_range": None if self.defers(path) else self.policy}
        computed = run(path, replace(self, options={**self.options, **policy}))
        return computed._replace(result=_error_type(computed.result, path))

    def expected(self, path: str) -> tuple[dict[str, Result], bool | None]:
        """Return the emulation, by the policy "propagate" if a range error must be deferred."""
        result, deferred = self.emulate(), None
        if self.defers(path):
            deferred = isinstance(result, str)
            result = self.emulate("propagate") if deferred else result
            if isinstance(result, str):  # a scheme whose emulator raises under every policy: only the error is deferred
                return {}, deferred
        return {"the emulation": _error_type(result, path)}, deferred

    def __call__(self, A: Any, B: Any, C: Any, **out: Any) -> Any:
        """Return D, written to `out` if this is given."""
        given = (A, B) if C is None else (A, B, C)
        return attrgetter(self.function)(gpu)(*given, **self.options, **self.on_gpu, **out)

    def operator(self, A: Any, B: Any, C: Any) -> Any:
        """Return D as a new tensor."""
        given = (A, B) if C is None else (A, B, C)
        return getattr(fpemu.torch, self.function.rpartition(".")[2])(*given, **self.options)


def _error_type(result: Result, path: str) -> Result:
    """Return a result, or of the error of PyTorch's operator the type: it may count the entries of expanded batches."""
    return result.partition(":")[0] if isinstance(result, str) and path == "torch" else result


# --- memory
class Memory:
    """A copy of a NumPy array, times a factor, in GPU memory: in its strides, `offset` elements from its alignment."""

    def __init__(self, x: Array, offset: int = 0, factor: float = 1.0) -> None:
        self.x = x
        low, high = np.lib.array_utils.byte_bounds(x) if x.size else (x.ctypes.data, x.ctypes.data)
        start = _GUARD + low % _ALIGNED + offset * x.itemsize
        self._shift = start - low
        self.content = np.full(-(-(start + high - low + _GUARD) // _ALIGNED) * _ALIGNED, _NAN, np.uint8)
        with np.errstate(all="ignore"):
            self.view(x, self.content)[...] = x if factor == 1 else x * x.dtype.type(factor)
        self.buffer = device.Buffer.of(self.content)

    def view(self, x: Array, memory: Array) -> Array:
        """Return the elements of `x`, or of a view of it, in a copy of the buffer on the host."""
        return np.ndarray(x.shape, x.dtype, memory, self._shift + x.ctypes.data, x.strides)

    def array(self, x: Array, *, tensor: bool) -> Any:
        """Return the copy of `x` as a torch tensor, or as an object with ``__cuda_array_interface__`` only."""
        first = self._shift + x.ctypes.data
        if tensor:
            steps = [stride // x.itemsize for stride in x.strides]
            return self.flat(x.dtype).as_strided(x.shape, steps, first // x.itemsize)
        return self._interface(first, x.shape, x.strides, x.dtype)

    def flat(self, dtype: Any) -> Any:
        """Return a torch tensor of all memory of the buffer."""
        size = np.dtype(dtype).itemsize
        return load_torch().as_tensor(self._interface(0, (self.content.size // size,), (size,), dtype), device="cuda")

    def _interface(self, first: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        fields = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (self.buffer.pointer + first, False)}
        fields |= {"strides": strides, "version": 3, "stream": 1}  # CUDA's default stream
        return SimpleNamespace(__cuda_array_interface__=fields, memory=self.buffer)

    def read(self) -> Array:
        """Return a copy of the buffer on the host."""
        return self.buffer.array(self.content.size, np.uint8)

    def changed(self, x: Array | None = None) -> int:
        """Return the number of bytes that calls have changed, but for those of the elements of `x`."""
        memory = self.read()
        if x is not None:
            self.view(x, memory)[...] = self.view(x, self.content)
        return int(np.count_nonzero(memory != self.content))


class Copies:
    """A, B and C times a factor in GPU memory, at drawn offsets; operands that share memory share their copy."""

    def __init__(self, operands: Operands, factor: float, draw: Draw | None, *, tensor: bool) -> None:
        self.memories: list[Memory] = []
        exposed: dict[int, Any] = {id(None): None}  # an array that is passed twice is one object
        for x in operands:
            if x is None or id(x) in exposed:
                continue
            # PyTorch has no negative strides
            placed = np.ascontiguousarray(x) if tensor and min(x.strides, default=0) < 0 else x
            root = _root(placed)
            memory = next((m for m in self.memories if m.x is root), None)
            if memory is None:
                memory = Memory(root, 0 if draw is None else draw.below(_ALIGNED // x.itemsize), factor)
                self.memories.append(memory)
            exposed[id(x)] = memory.array(placed, tensor=tensor)
        self.arrays = [exposed[id(x)] for x in operands]  # of the caller; None for a C that is missing

    def assign(self, source: Copies) -> None:
        """Copy the memory of operands of the same layout and alignment."""
        for to, of in zip(self.memories, source.memories, strict=True):
            to.flat(np.uint8).copy_(of.flat(np.uint8))
            to.content = of.content

    def changed(self) -> int:
        """Return the number of bytes that calls have changed."""
        return sum(memory.changed() for memory in self.memories)


def _root(x: Array) -> Array:
    """Return the array whose memory `x` shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


# --- paths: each calls the product on other operands, and returns its last call
Last = Callable[[], Any]


def _eager(call: Call, own: Copies, other: Copies, D: Any) -> Last:
    message_or(lambda: call(*other.arrays, out=D))
    for _ in range(2):  # a third call with the same addresses launches a CUDA graph
        message_or(lambda: call(*own.arrays, out=D))
    return lambda: call(*own.arrays, out=D)


def _plan(call: Call, own: Copies, other: Copies, D: Any) -> Last:
    plan = gpu.plan(**dict(zip("ABC", other.arrays, strict=True)), **call.options)
    message_or(lambda: plan(*other.arrays, out=D))
    return lambda: plan(*own.arrays, out=D)


def _graph(call: Call, own: Copies, other: Copies, D: Any) -> Last:
    torch = load_torch()
    call(*other.arrays, out=D)  # kernels are compiled and workspace is allocated before the capture
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call(*other.arrays, out=D)
    other.assign(own)
    return graph.replay


def _torch(call: Call, own: Copies, other: Copies, D: Any) -> Last:
    message_or(lambda: call.operator(*other.arrays))
    return lambda: call.operator(*own.arrays)


PATHS: dict[str, Callable[[Call, Copies, Copies, Any], Last] | None] = {
    "host": None,  # a call on NumPy arrays
    "eager": _eager,  # a repeated call on arrays of the GPU, with out=
    "plan": _plan,  # a plan of fpemu.gpu.plan
    "graph": _graph,  # a CUDA graph of a call, replayed on other values
    "torch": _torch,  # an operator of fpemu.torch
}
"""The functions of the paths on arrays of the GPU"""


def run(path: str, call: Call) -> Computed:
    """Compute a product by a path: codes of D, or the message of the caller's error.

    The addresses of the arrays are drawn by the case; of three cases, one has arrays that are no tensors.
    """
    prepare, key, number = PATHS[path], call.case.key, call.case.number
    if prepare is None:
        return Computed(message_or(lambda: codes(np.asarray(call(*call.operands)))))
    tensor = path in _WITH_TORCH or (number % 3 != 1 and missing("torch") is None)
    draw = Draw(key, "memory", number)
    moved, elsewhere, on_stream = (draw.below(2) == 1 for _ in range(3))
    # a graph reads the memory of the other operands, to which the operands are copied
    places = ("own", "other" if elsewhere and path != "graph" else "own")
    own, other = (
        Copies(call.operands, factor, Draw(key, place, number) if moved else None, tensor=tensor)
        for place, factor in zip(places, (1.0, _SMALLER), strict=True)
    )
    offset = call.unit * draw.below(_ALIGNED // call.like.itemsize // call.unit) if moved else 0
    D = Memory(_root(call.like), offset)
    D.content.fill(POISON)
    D.buffer.fill(POISON)
    out = D.array(call.like, tensor=tensor)

    def compute() -> Any:
        last = prepare(call, own, other, out)
        device.synchronize()  # the fill and the copies do not wait for other streams, nor these for them
        D.buffer.fill(POISON)
        message_or(gpu.check)  # range errors of the other operands
        device.synchronize()
        result = last()
        return codes(result.detach().cpu().numpy()) if path == "torch" else None

    device.synchronize()
    stream: Any = nullcontext()
    if tensor and on_stream and path != "graph":
        stream = load_torch().cuda.stream(load_torch().cuda.Stream())
    with stream:
        result = message_or(compute)
    deferred = message_or(gpu.check) is not None if call.defers(path) else None
    device.synchronize()
    outside = D.changed(call.like if result is None else None) + own.changed() + other.changed()
    return Computed(codes(D.view(call.like, D.read())) if result is None else result, outside, deferred)


def message_or(compute: Callable[[], Any]) -> Any:
    """Return the result of a computation, or the message of an error that its operands or arguments caused."""
    try:
        return compute()
    except (InputError, GuaranteeError) as problem:
        return f"{type(problem).__name__}: {problem}"


# --- choice
@cache
def missing(path: str) -> str | None:
    """Return what this machine lacks for a path; None if nothing."""
    if path not in _WITH_TORCH:
        return None
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    return None if load_torch().cuda.is_available() else "PyTorch has no CUDA device"


def choose(names: Sequence[str] | None, supported: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the requested paths, by default all, and one line for those that this machine cannot run by default."""
    for name in names or ():
        if name not in supported:
            raise unknown_name("path", name, supported)
        if (reason := missing(name)) is not None:
            raise missing_package("torch") if "installed" in reason else InputError(f"path {name}: {reason}")
    lacking = [name for name in supported if missing(name) is not None]
    skipped = [f"paths {', '.join(lacking)}: skipped, {missing(lacking[0])}"] if lacking and names is None else []
    return [name for name in supported if name not in lacking and (names is None or name in names)], skipped


def load_torch() -> Any:
    """Import PyTorch."""
    return importlib.import_module("torch")
