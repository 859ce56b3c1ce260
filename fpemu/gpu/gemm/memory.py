"""The memory of `fpemu.gpu.gemm`: operands copied to the GPU, buffers kept between calls, and too little of it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.gemm.choice import direct, find
from fpemu.gpu.gemm.recorded import products
from fpemu.gpu.runtime import callers, matrices, sequence
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.sequence import lock
from fpemu.schemes.base import Call, Scheme

__all__ = ["computed", "no_copy", "no_room", "on_gpu", "release", "returned", "too_little"]


def release() -> None:
    """Release the memory that is kept between calls.

    It may be several times the memory of the largest operands. A call that runs out of memory releases it first and
    tries again. Deferred range errors are kept, and so are the kernels and buffers of calls in CUDA graphs, because
    replays read them.
    """
    with lock:
        find.cache_clear()
        products.clear()
        sequence.arenas.clear()
        matrices.forget()
        errorfree.workspace.cache_clear()


def on_gpu(X: Any, checked: Any, scheme: Scheme) -> Matrix:
    """Return an operand on the GPU: the caller's array if it is there in a dtype that kernels read, else a copy."""
    return X if isinstance(X, Matrix) and direct(X.dtype, scheme) else matrices.upload(checked)


def returned(D: Any, A: Any) -> Any:
    """Return a NumPy result as the caller's kind: a tensor for a torch tensor of the CPU's."""
    return matrices.as_torch(D) if matrices.is_torch(A) else D


def computed(compute: Callable[[], Any], complaint: Callable[[BaseException], GpuError]) -> Any:
    """Return a result; where memory does not suffice, compute it again without the buffers kept between calls."""
    for last in (False, True):
        try:
            return compute()
        except (InputError, GuaranteeError):
            raise
        except BaseException as problem:
            find.cache_clear()  # an interrupt may have left a kernel's buffers half written
            if "OUT_OF_MEMORY" not in str(problem) and "OutOfMemory" not in type(problem).__name__:
                raise
            if last:
                raise complaint(problem) from None
        release()
        callers.free_cached_memory()
    raise AssertionError


def no_copy(problem: BaseException) -> GpuError:
    """Return the error where memory does not suffice for a copy of an operand."""
    return GpuError(
        f"out of memory: {callers.free_bytes() / 1e9:.2f} GB are free, too little for a copy of an operand: "
        "give arrays of the scheme's own dtype, without negative strides"
    )


def no_room(problem: BaseException, sizes: str) -> GpuError:
    """Return an error with the bytes needed in one piece, the bytes free, and the sizes to lower."""
    nbytes = problem.nbytes if isinstance(problem, OutOfMemoryError) else 0
    needed = f"{nbytes / 1e9:.2f} GB are needed in one piece, and " if nbytes else ""
    return GpuError(f"out of memory: {needed}{callers.free_bytes() / 1e9:.2f} GB are free: lower {sizes}")


def too_little(problem: BaseException, call: Call) -> GpuError:
    """Return an error with the bytes needed, the bytes free, and the sizes to lower."""
    if call.scheme.error_free and isinstance(problem, GpuError):  # its message has them already
        return problem
    largest = problem.nbytes if isinstance(problem, OutOfMemoryError) else 0
    one_piece = f", {largest / 1e9:.2f} GB of it in one piece" if largest else ""
    words = 0 if call.lowering is None else sum(word.format.code_dtype.itemsize for word in call.lowering.words)
    size = (call.A.size + call.B.size) * (call.scheme.operand.dtype.itemsize + words) + 8 * prod(call.result_shape)
    *batch, M, N = call.result_shape
    return GpuError(
        f"out of memory: A, B, D and their words take {max(size, largest) / 1e9:.2f} GB or more{one_piece}, and "
        f"{callers.free_bytes() / 1e9:.2f} GB are free: lower the batch ({prod(batch)}), M ({M}) or N ({N})"
    )
