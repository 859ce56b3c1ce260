"""Triton's interpreter with the bits of a GPU: `tl.dot` by the emulated matrix instruction."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.errors import InputError

__all__ = ["interpreted"]

_FORMATS = {"fp8e4nv": "e4m3", "fp8e5": "e5m2"}
_SCHEMES = {"TF32x3": "triton:tf32x3", "BF16x3": "triton:bf16x3", "BF16x6": "triton:bf16x6"}


@contextlib.contextmanager
def interpreted(hardware: str = "H200") -> Iterator[None]:
    """Emulate the dot products of a GPU in Triton's interpreter, within a `with` block.

    Parameters
    ----------
    hardware : str
        GPU or architecture, as in `fpemu.mma.spec`.

    Yields
    ------
    None
        In the block, kernels of ``triton.jit`` run on the CPU, on tensors in its memory. All but `tl.dot` is NumPy's
        arithmetic.

    Raises
    ------
    InputError
        Triton is missing or does not interpret (set TRITON_INTERPRET=1 before the kernels are defined); in a kernel, an
        operand or an input precision that the hardware lacks.

    Notes
    -----
    A dot product continues the chain of its accumulator, ``acc = tl.dot(a, b, acc)``. ``acc += tl.dot(a, b)`` has the
    same bits, because Triton's compiler fuses both, except for fp8 on Hopper: that sum starts from zero and is added to
    the accumulator in fp32. The products of tf32x3, bf16x3 and bf16x6 are summed from zero and added in both forms.
    Compared with Triton 3.6 on an H200: fp16, bf16, e4m3, e5m2, tf32, these three and fp32, both forms, three tiles;
    835,584 outputs, 0 mismatches.

    Examples
    --------
    >>> from fpemu.triton import interpreted
    >>> with interpreted("H200"):  # doctest: +SKIP
    ...     matmul_kernel[grid](a, b, c, M, N, K)
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError("Triton compiles its kernels: set TRITON_INTERPRET=1 before they are defined")
    try:
        from triton.runtime import interpreter
    except ImportError:
        raise InputError("fpemu.triton needs Triton: pip install triton") from None
    architecture = mma.catalog.architecture(hardware)
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    dot, add = builder.create_dot, builder.create_fadd

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        if max_num_imprecise_acc and max_num_imprecise_acc < a.data.shape[-1]:
            raise InputError(f"tl.dot with max_num_imprecise_acc = {max_num_imprecise_acc} < K is not emulated")
        precision = str(input_precision).rpartition(".")[2]
        value = handle(_product(a, b, d.data, precision, hardware), d.dtype.scalar)
        fp8 = architecture == "hopper" and all(x.dtype.scalar.name.startswith("fp8") for x in (a, b))
        if not np.any(d.data) and not fp8:  # the compiler fuses no sum of fp8, to keep its promotion
            value.operands = a, b, input_precision, max_num_imprecise_acc
        return value

    def create_fadd(self: Any, x: Any, y: Any) -> Any:
        for product, other in ((y, x), (x, y)):
            if hasattr(product, "operands"):
                a, b, *rest = product.operands
                total = create_dot(self, a, b, other, *rest)
                total.__dict__.pop("operands", None)  # a sum, even of zero and a product
                return total
        return add(self, x, y)

    builder.create_dot, builder.create_fadd = create_dot, create_fadd
    shared = interpreter.interpreter_builder
    options = shared.options
    # a GPU's compiler accepts these precisions, the interpreter does not
    known = (*options.allowed_dot_input_precisions, "bf16x3", "bf16x6")
    shared.options = replace(options, allowed_dot_input_precisions=known)
    try:
        yield
    finally:
        builder.create_dot, builder.create_fadd, shared.options = dot, add, options


def _product(a: Any, b: Any, C: NDArray[Any], precision: str, hardware: str) -> NDArray[Any]:
    """A B + C for tensors of the interpreter, which holds bf16 and fp8 as codes."""
    names = [_FORMATS.get(name, name) for name in (a.dtype.scalar.name, b.dtype.scalar.name)]
    A, B = (_decoded(x.data, name) for x, name in zip((a, b), names, strict=True))
    if names[0] == "fp32" and precision in _SCHEMES:
        promote = A.shape[-1]
        return np.asarray(schemes.gemm(A, B, scheme=_SCHEMES[precision], hardware=hardware, promote=promote) + C)
    if names[0] in ("fp32", "fp64") and precision != "TF32":
        return np.asarray(mma.gemm(A, B, C, simt.SPECS[names[0]]))
    given: Any = "tf32" if names[0] == "fp32" else names[0] if names[0] == names[1] else tuple(names)
    result = "fp16" if C.dtype == np.float16 else None
    return np.asarray(mma.gemm(A, B, C, mma.spec(hardware, given, result))).astype(C.dtype, copy=False)


def _decoded(x: NDArray[Any], name: str) -> NDArray[Any]:
    """The values of a tensor of the interpreter."""
    return np.asarray(formats.get(name).decode(x)) if x.dtype.kind == "u" and name != "uint8" else x
