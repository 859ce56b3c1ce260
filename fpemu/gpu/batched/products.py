"""`hgemm` and `hcgemm` on the current GPU, with the bits of `fpemu.batched`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from fpemu.arguments import choice as choice_of
from fpemu.batched import arguments, layouts
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.gpu.batched import stacks
from fpemu.gpu.batched.call import Product
from fpemu.gpu.batched.configuration import Configuration
from fpemu.gpu.batched.lowering import launches_of, queue, shape_of
from fpemu.gpu.batched.request import Request, key_of
from fpemu.gpu.batched.stacks import HALF, Pointers
from fpemu.gpu.gemm import memory
from fpemu.gpu.runtime import callers, device, matrices, recording, tensors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.recording import NotRecordableError
from fpemu.gpu.runtime.sequence import Sequence, lock
from fpemu.gpu.runtime.tensors import Read, Recorded

_REGION = {"A": "A", "B": "B", "C": "C", "out": "D"}
_recorded = tensors.Cache()


def hgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: str = "fp32",
    kernel: str = "tensor",
    configuration: Configuration | str | None = None,
    out: Any = None,
) -> Any:
    """Return D = alpha · op(A) op(B) + beta · C for a batch of fp16 matrices, on the current GPU.

    The bits of ``fpemu.batched.hgemm`` with the same arguments and `arguments()`.

    Parameters
    ----------
    A : array (..., M, K), or (..., K, M) with transa="T"
        fp16: NumPy, CuPy or torch arrays, or any with ``__cuda_array_interface__``, all in the CPU's memory or all in
        the GPU's; the leading axes are the batch and broadcast; any strides. Or `Pointers`, or a list of matrices on
        the GPU.
    B : array (..., K, N), or (..., N, K) with transb="T"
        As A.
    C : array (..., M, N), optional
        As A; not read if beta = 0.
    alpha, beta : real numbers
        As in `fpemu.batched.hgemm`.
    transa, transb : {"N", "T", "C"}
        As in `fpemu.batched.hgemm`.
    accumulate : {"fp32", "fp16"}
        As in `fpemu.batched.hgemm`.
    kernel : {"tensor", "magma-small"}
        As in `fpemu.batched.hgemm`.
    configuration : Configuration or str, optional
        Configuration of the kernel, see `fpemu.gpu.batched.configuration`; options that the task does not allow (flat,
        persistent, one stage) are left out, as by `fitted`. Default: the fastest known.
    out : array (..., M, N) of the GPU, or Pointers, optional
        Where to write D: rows contiguous, no two entries in one place, and no memory shared with A, B or C, which
        cannot be checked for Pointers.

    Returns
    -------
    float16 array (..., M, N)
        D, of the kind that A is.

    Raises
    ------
    InputError
        As `fpemu.batched.hgemm`; a configuration that is not valid; arrays in different memories.
    GpuError
        No GPU, one with too little memory, or a run that failed.

    Notes
    -----
    A call whose kernels are recorded, because an earlier one had the same options, shapes, strides and alignment,
    validates nothing again: it queues the kernels on torch's current stream, or on CUDA's default stream if the arrays
    are of another library that states this stream, as CuPy does. Calls of several threads are queued one after another.
    A CUDA graph can capture a call on torch tensors if alpha and beta are numbers of Python and not NaN, and
    if each operand needs no more than one stride for its batch.
    """
    request_key = key_of(None, alpha, beta, transa, transb, accumulate, kernel, configuration)
    D, read = _recorded.repeat(request_key, A, B, C, out)
    if D is not None:
        return D
    options: dict[str, Any] = {"transa": transa, "transb": transb, "accumulate": accumulate, "kernel": kernel}
    return _run(A, B, C, out, Request(alpha=alpha, beta=beta, configuration=configuration, **options), read)


def hcgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: str = "fp32",
    layout: str = "interleaved",
    products: int = 4,
    kernel: str = "tensor",
    algorithm: str | None = None,
    configuration: Configuration | str | None = None,
    out: Any = None,
) -> Any:
    """Return D = alpha · op(A) op(B) + beta · C for half-complex matrices, on the current GPU.

    The bits of ``fpemu.batched.hcgemm`` with the same arguments and `arguments()`.

    Parameters
    ----------
    A, B, C : arrays of fp16 with one axis more
        The last of two (interleaved) or the first (planar); else as in `hgemm`.
    alpha, beta : complex or real numbers
        As in `fpemu.batched.hcgemm`.
    transa, transb : {"N", "T", "C"}
        As in `fpemu.batched.hcgemm`.
    accumulate : {"fp32", "fp16"}
        As in `hgemm`.
    layout : {"interleaved", "planar"}
        Layout of A, B, C and D.
    products : {4, 3}
        Real products of a complex one.
    kernel : {"tensor", "magma-small"}
        As in `hgemm`.
    algorithm : {"fused", "calls"}, optional
        As in `fpemu.batched.hcgemm`: "calls" launches the real kernel four times.
    configuration : Configuration or str, optional
        As in `hgemm`.
    out : array of the GPU, or Pointers, optional
        As in `hgemm`.

    Returns
    -------
    float16 array
        D in the layout, of the kind that A is.

    Raises
    ------
    InputError
        As `hgemm`.
    GpuError
        As `hgemm`.

    Notes
    -----
    Repeated calls on torch tensors are queued as by `hgemm`.
    """
    choices = (products.__class__, products, kernel, algorithm, configuration)  # 4.0 and 4 are equal keys
    D, read = _recorded.repeat(key_of(layout, alpha, beta, transa, transb, accumulate, choices), A, B, C, out)
    if D is not None:
        return D
    options: dict[str, Any] = {
        "transa": transa,
        "transb": transb,
        "accumulate": accumulate,
        "kernel": kernel,
        "products": products,
    }
    layouts.axis_of(layout)
    request = Request(layout, alpha=alpha, beta=beta, configuration=configuration, algorithm=algorithm, **options)
    return _run(A, B, C, out, request, read)


def arguments_of(kernel: str = "tensor") -> dict[str, Any]:
    """Return the arguments with which `fpemu.batched` gives the bits of the current GPU.

    Parameters
    ----------
    kernel : {"tensor", "magma-small"}
        As in `fpemu.batched.hgemm`.

    Returns
    -------
    dict of str to str
        Keyword arguments ``hardware`` and ``instruction``; empty for magma-small.

    Raises
    ------
    InputError
        An unknown kernel.
    GpuError
        No GPU.
    """
    choice_of("kernel", kernel, arguments.KERNELS)
    if kernel == "magma-small":
        return {}
    from fpemu.gpu.gemm.choice import architecture

    return {"hardware": architecture(), "instruction": "mma"}


def prepare(
    A: Any, B: Any, C: Any = None, *, out: Any, layout: str | None = None, overlap: bool = True, **options: Any
) -> list[Product]:
    """Return the launches of a product of arrays on the GPU, to be queued repeatedly for measurements.

    Parameters
    ----------
    A, B, C : arrays of the GPU, or Pointers
        Operands, as in `hgemm` or `hcgemm`.
    out : array of the GPU, or Pointers
        Where to write D.
    layout : {"interleaved", "planar"}, optional
        Layout of `hcgemm`; None for `hgemm`.
    overlap : bool
        A launch may begin before the previously queued launch has ended; it waits where it needs the results.
    **options
        Options of `hgemm` or `hcgemm`.

    Returns
    -------
    list of Product
        One launch, or four for algorithm="calls", none for an empty D; `Product.queue(stream)` queues one.

    Raises
    ------
    InputError
        A wrong operand or option, or an operand on the CPU.
    GpuError
        As `hgemm`.
    """
    known = ["alpha", "beta", "transa", "transb", "accumulate", "kernel", "configuration"]
    if layout is not None:
        known += ["products", "algorithm"]
        options.setdefault("algorithm", None)
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    request = Request(layout, **options)
    need_gpu()
    given = {name: X for name, X in {"A": A, "B": B, "C": C, "out": out}.items() if X is not None}
    arrays = [array for X in given.values() for array in stacks.arrays(X)]
    with device.entered(callers.place(arrays)), callers.ordered(callers.streams(arrays)):
        matrices_of = {name: stacks.take(X, name) for name, X in given.items()}
        on_cpu = [name for name, X in matrices_of.items() if not isinstance(X, Matrix | Pointers)]
        if on_cpu:
            raise InputError(f"{' and '.join(on_cpu)} must be on the GPU")
        operands = {name: stacks.operand(X, layout, name) for name, X in matrices_of.items()}
        shape_of(operands, request)
        return launches_of(operands, request, overlap)


def need_gpu() -> None:
    """Raise GpuError, in one line, unless there is a GPU with the instructions."""
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    if device.capability() < (8, 0):
        raise GpuError(
            "fpemu.gpu.batched needs a GPU of compute capability 8.0 or later (Ampere): "
            f"this one has {'.'.join(map(str, device.capability()))}"
        )


def _run(A: Any, B: Any, C: Any, out: Any, request: Request, read: Read | None) -> Any:
    """The product of a checked request; read: if its kernels can be recorded, and by which key."""
    need_gpu()
    given = {"A": A, "B": B, "C": C if request.has_c else None, "out": out}
    arrays = [array for X in given.values() for array in stacks.arrays(X)]
    with lock, device.entered(callers.place(arrays)):
        return memory.computed(
            lambda: _result(given, arrays, request, read), lambda problem: memory.no_room(problem, "the batch, M or N")
        )


def _result(given: dict[str, Any], arrays: list[Any], request: Request, read: Read | None) -> Any:
    """The product of the given arguments, of which `arrays` may be on the GPU."""
    layout, A, out = request.layout, given["A"], given["out"]
    with callers.ordered(callers.streams(arrays)) if read is None else nullcontext():
        stacked: dict[str, Any] = {name: stacks.take(X, name) for name, X in given.items() if X is not None}
        on_gpu = {name: isinstance(X, Matrix | Pointers) for name, X in stacked.items()}
        if len(set(on_gpu.values())) > 1:
            cpu, gpu = (" and ".join(name for name, on in on_gpu.items() if on == side) for side in (False, True))
            raise InputError(f"{cpu} in the CPU's memory and {gpu} on the GPU: copy them to one of the two")
        if out is not None and not on_gpu["A"]:
            raise InputError("out= is for arrays of the GPU")
        _check_out(stacked)
        if not on_gpu["A"]:
            stacked = {name: matrices.upload(X) for name, X in stacked.items()}
        lead, M, N, _ = shape_of({name: stacks.view(X, layout, name) for name, X in stacked.items()}, request)
        result = out
        if out is None:
            shape = (*lead, M, N)
            if layout is not None:
                shape = (2, *shape) if layout == "planar" else (*shape, 2)
            if on_gpu["A"] and not isinstance(A, Pointers | list | tuple):
                D, result = matrices.like(A, shape, HALF)
            else:
                D = matrices.empty(shape, HALF)
                result = matrices.Array(D)
            stacked["out"] = D
        if (
            read is not None
            and read.in_place(*(stacked.get(name) for name in "ABC"))
            and (product := _record(stacked, request)) is not None
        ):
            _recorded.keep(read.key, product)
            read.pointers[3] = stacked["out"].pointer
            return product.run(A, result, read)
        with callers.ordered(callers.streams(arrays)) if read is not None else nullcontext():
            queue(stacked, request)
        if not on_gpu["A"]:
            downloaded = matrices.download(D)
            return matrices.as_torch(downloaded) if callers.is_torch(A) else downloaded
        if callers.must_synchronize(arrays):
            device.synchronize(0)
        return result


def _record(stacked: dict[str, Any], request: Request) -> Recorded | None:
    """The recorded kernels of a product; None if they depend on more than the facts of the operands."""
    placed: dict[str, Any] = tensors.place(**{_REGION[name]: X for name, X in stacked.items()})
    try:
        with recording.start() as steps:
            queue({name: placed[_REGION[name]] for name in stacked}, request)
    except NotRecordableError:
        return None
    extents = tuple(tensors.extent(stacked.get(name)) for name in _REGION)
    return Recorded(Sequence(steps), stacked["out"].shape, extents)


def _check_out(operands: dict[str, Any]) -> None:
    """Raise for an `out` whose entries share memory with each other or with an operand."""
    D = operands.get("out")
    if not isinstance(D, Matrix) or 0 in D.shape:
        return
    if not matrices.apart(D):
        raise InputError("out must have no overlapping entries and no negative strides")
    for name, X in operands.items():
        if name != "out" and isinstance(X, Matrix) and matrices.overlap(X, D):
            raise InputError(f"out shares memory with {name}: pass separate memory")
