"""cuBLAS and cuBLASLt, loaded by cuda.pathfinder and called by ctypes, because cuda.bindings has neither."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Literal, NamedTuple

_STATUS = {
    **{1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR"},
    **{13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR"},
}


class Kind(NamedTuple):
    """Types of a product: codes of A and B, of D, of the arithmetic and of its scale; bytes of A's and D's elements."""

    operand: int
    result: int
    compute: int
    scale: int
    bytes: int
    result_bytes: int


KINDS = {
    "fp16": Kind(2, 0, 68, 0, 2, 4),
    "bf16": Kind(14, 0, 68, 0, 2, 4),
    "tf32": Kind(0, 0, 77, 0, 4, 4),
    "fp32": Kind(0, 0, 68, 0, 4, 4),
    "fp64": Kind(1, 1, 70, 1, 8, 8),
    "fp16->fp16": Kind(2, 2, 68, 0, 2, 2),
    "bf16->bf16": Kind(14, 14, 68, 0, 2, 2),
    "e4m3": Kind(28, 0, 68, 0, 1, 4),
    "e4m3->fp16": Kind(28, 2, 68, 0, 1, 2),
    "e4m3->bf16": Kind(28, 14, 68, 0, 1, 2),
    "int8": Kind(3, 10, 72, 10, 1, 4),
}
"""Products of fp16, bf16, tf32, fp32 and e4m3 are summed in fp32, of fp64 in fp64, of int8 in int32."""

SCALARS: dict[int, Any] = {0: ctypes.c_float, 1: ctypes.c_double, 10: ctypes.c_int32}  # by the code of the scale


@lru_cache(maxsize=8)
def load(name: Literal["cublas", "cublasLt"], path: str | None = None) -> ctypes.CDLL:
    """Return a library: of a file, of NVIDIA's wheel, or on the loader's path; OSError without one."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(path or str(load_nvidia_dynamic_lib(name).abs_path))
    except (ImportError, RuntimeError, OSError) as problem:
        raise OSError(f"{name} is not installed: {str(problem).splitlines()[0]}") from None


def status(code: int) -> str:
    """The name of a status other than 0."""
    return f"CUBLAS_STATUS_{_STATUS.get(code, code)}"


def version(number: int) -> str:
    """The version of a library's number: "13.1.0"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
