"""`hgemm` and `hcgemm` on the current GPU, with the bits of `fpemu.batched`."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fpemu.arguments import choice as choice_of
from fpemu.arguments import product_shape
from fpemu.batched import arguments, halfcomplex, layouts, scaling
from fpemu.errors import InputError
from fpemu.gpu.batched import stacks
from fpemu.gpu.batched.configuration import Configuration, Task, choose, fitted, limits, parse, validate
from fpemu.gpu.batched.source import plan
from fpemu.gpu.batched.stacks import HALF, Operand
from fpemu.gpu.gemm.choice import architecture
from fpemu.gpu.operation import Operations, Request
from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.modules import module
from fpemu.gpu.runtime.steps import Launch, Memory, Step, Struct
from fpemu.schemes.base import scalar
from fpemu.schemes.complex_products import complex_scalar

PROBLEM = np.dtype(
    [(x, stacks.STACK) for x in "abcd"]
    + [("c_entry", "i8"), ("alpha", "f4", 2), ("beta", "f4", 2)]
    + [(n, "i4") for n in ("M", "N", "K", "batch", "tiles_m", "tiles_n", "added", "unused")]
)
"""The struct Problem of kernels/batched.cuh"""
_MOST = 2**31 - 2**20  # largest count of a kernel's int variables, with a margin for idle threads
_NUMBERS = (float, int, complex)
_ONE, _ZERO = (1.0, 0.0), (0.0, 0.0)
_operations = Operations()


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
    accumulate, kernel : {"fp32", "fp16"}, {"tensor", "magma-small"}
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
    A call with the options, shapes, strides and alignment of an earlier one validates nothing again: it queues its
    kernels on torch's current stream, or on CUDA's default stream if the arrays are of another library that states this
    stream, as CuPy does. Calls of several threads are queued one after another. A CUDA graph can capture a call on
    torch tensors if alpha and beta are numbers of Python.
    """
    options = {"transa": transa, "transb": transb, "accumulate": accumulate, "kernel": kernel}
    return _multiply(None, A, B, C, out, alpha, beta, configuration=configuration, **options)


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
    transa, transb, accumulate : str
        As in `hgemm`.
    layout : {"interleaved", "planar"}
        Layout of A, B, C and D.
    products : {4, 3}
        Real products of a complex one.
    kernel : str
        As in `hgemm`.
    algorithm : {"fused", "calls"}, optional
        As in `fpemu.batched.hcgemm`: "calls" launches the real kernel four times.
    configuration, out : optional
        As in `hgemm`.

    Returns
    -------
    float16 array
        D in the layout, of the kind that A is.

    Raises
    ------
    InputError, GpuError
        As `hgemm`.
    """
    if layout is None:
        layouts.axis_of(layout)
    options = {"transa": transa, "transb": transb, "accumulate": accumulate, "kernel": kernel, "products": products}
    return _multiply(layout, A, B, C, out, alpha, beta, algorithm=algorithm, configuration=configuration, **options)


def _multiply(layout: Any, A: Any, B: Any, C: Any, out: Any, alpha: Any, beta: Any, **options: Any) -> Any:
    """Return D by the operation of an earlier call with the same options and layouts, if there is one."""
    key: Any = None
    if alpha.__class__ in _NUMBERS and beta.__class__ in _NUMBERS:
        # of 0.0 and -0.0, 4 and 4.0, which are equal, the texts and the classes differ
        key = layout, repr(alpha), repr(beta), options.get("products").__class__, *options.values()
    D, arrays, key = _operations.repeat(key, A, B, C, out)
    if D is None:
        request = BatchedRequest(layout, alpha=alpha, beta=beta, **options)
        D = _operations.compute(request, _given(request, A, B, C, out), arrays, key)
    return D


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
    return {"hardware": architecture(), "instruction": "mma"}


def _given(request: BatchedRequest, A: Any, B: Any, C: Any, out: Any) -> dict[str, Any]:
    """Return the arrays that a request reads or writes, after a check of the GPU."""
    device.need_matrix_unit("fpemu.gpu.batched")
    given = {"A": A, "B": B, "C": C if request.beta != _ZERO else None, "out": out}
    return {name: X for name, X in given.items() if X is not None}


# --- requests
class BatchedRequest(Request):
    """The checked options of a product: those of `hgemm` (layout None) or `hcgemm`."""

    sizes = "the batch, M or N"
    chosen: Configuration | None = None  # of the last product of `steps`

    def __init__(
        self,
        layout: str | None = None,
        *,
        alpha: Any = 1.0,
        beta: Any = 0.0,
        transa: str = "N",
        transb: str = "N",
        accumulate: str = "fp32",
        kernel: str = "tensor",
        configuration: Any = None,
        products: int = 4,
        algorithm: str | None = None,
    ) -> None:
        if layout is not None:
            layouts.axis_of(layout)
            algorithm = halfcomplex.choose_algorithm(products, algorithm, default=halfcomplex.ALGORITHMS[layout])
        fmt = arguments.arithmetic(kernel, accumulate, None if kernel == "magma-small" else "hopper", None).accumulator
        self.layout, self.kernel, self.given_beta, self.calls = layout, kernel, beta, algorithm == "calls"
        self.transa, self.transb = (
            choice_of(name, letter.upper() if isinstance(letter, str) else letter, arguments.TRANSPOSES)
            for name, letter in (("transa", transa), ("transb", transb))
        )
        if layout is None:
            a, b = ((scalar(x, name, fmt), 0.0) for x, name in ((alpha, "alpha"), (beta, "beta")))
        else:
            a, b = complex_scalar(alpha, "alpha", fmt), complex_scalar(beta, "beta", fmt)
        self.alpha, self.beta = (float(a[0]), float(a[1])), (float(b[0]), float(b[1]))
        if self.calls and (self.alpha[1] or self.beta[1]):
            raise InputError(
                "algorithm='calls' is four calls of HGEMM, which scale by real numbers: alpha and beta "
                "must have no imaginary part"
            )
        fused = layout is not None and not self.calls
        conjugates = {"conjugate_a": fused and self.transa == "C", "conjugate_b": fused and self.transb == "C"}
        self.task = Task(0, 0, 0, fused, fused and layout == "planar", accumulate, products, **conjugates)
        self.configuration = parse(configuration) if isinstance(configuration, str) else configuration
        if not isinstance(self.configuration, Configuration | None):
            raise InputError(f"configuration is a {type(configuration).__name__}: give a Block, Warp, ... or its text")
        if self.configuration is not None and (kernel == "magma-small") != (self.configuration.kind == "small"):
            raise InputError(f"configuration is of kind {self.configuration.kind!r}, and kernel is {kernel!r}")

    def arrays(self, given: dict[str, Any]) -> list[Any]:
        return [array for X in given.values() for array in stacks.arrays(X)]

    def take(self, X: Any, name: str) -> Any:
        return stacks.take(X, name)

    def result(self, operands: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        zeros = {name: stacks.zeros(X, self.layout, name) for name, X in operands.items()}
        a = arguments.transposed(zeros["A"], self.transa, "transa")
        b = arguments.transposed(zeros["B"], self.transb, "transb")
        shape = product_shape(a, b, arguments.factor_names(self.transa, self.transb))
        scaling.needs_c(zeros.get("C"), self.given_beta if self.beta != _ZERO else 0, shape)
        if "C" in zeros:
            arguments.check_addend(zeros["C"], shape)
        if self.layout is not None:
            shape = (2, *shape) if self.layout == "planar" else (*shape, 2)
        return shape, HALF

    def steps(self, layouts: dict[str, Any], memory: Memory) -> list[Step]:
        """Return the copies of operands that kernels cannot read, and the launches; four calls use planar parts."""
        if 0 in layouts["D"].shape:
            return []
        split = self.calls and self.layout == "interleaved"
        layout = "planar" if split else self.layout
        operands, before, after = dict[str, Operand](), list[Launch](), list[Launch]()
        for name, X in layouts.items():
            if X is not None:
                X = stacks.parts_first(X) if split else X
                operands[name], copies = stacks.operand(X, layout, memory)
                if name == "D" and copies:
                    after, copies = matrices.copy_steps(operands[name].source, X), []
                before += copies
        D = operands["D"]
        if (after and not split) or not D.along_columns:
            raise InputError(
                "out must have contiguous rows, and both parts of an interleaved element in one aligned word"
            )
        A = operands["A"].transposed if self.transa != "N" else operands["A"]
        B = operands["B"].transposed if self.transb != "N" else operands["B"]
        C = operands.get("C")
        if not self.calls:
            return [*before, self._product(A, B, C, D, self.task, self.alpha, self.beta)]
        # Cr = Ar Br + beta Cr, Cr -= Ai Bi, Ci = Ar Bi + beta Ci, Ci += Ai Br (section 6.2); conjugates change signs
        alpha, products = self.alpha[0], []
        for part, i, j in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
            first = i == 0
            addend = (None if C is None else C.part(part)) if first else D.part(part)
            factors = (alpha if first or part else -alpha, 0.0), self.beta if first else _ONE
            negative_a, negative_b = (k == 1 and t == "C" for k, t in ((i, self.transa), (j, self.transb)))
            task = replace(self.task, conjugate_a=negative_a, conjugate_b=negative_b)
            products.append(self._product(A.part(i), B.part(j), addend, D.part(part), task, *factors))
        return [*before, *products, *after]

    def _product(
        self,
        A: Operand,
        B: Operand,
        C: Operand | None,
        D: Operand,
        task: Task,
        alpha: tuple[float, float],
        beta: tuple[float, float],
    ) -> Launch:
        """Return the launch of D = alpha · A B + beta · C, transposes done; leading axes broadcast to those of D.

        task : Task
            Its sizes and layouts are replaced by those of the operands.
        """
        lead, (M, N), K = D.shape[:-2], D.shape[-2:], A.shape[-1]
        batch = prod(lead)
        if max(M, N, K, batch) > _MOST:
            raise InputError(f"M, N, K = {M}, {N}, {K} and a batch of {batch}: {_MOST} is the most")
        a_along_k, b_along_k = bool(A.along_columns), not B.along_columns
        a, b, d = (stacks.stack(X, lead, along) for X, along in ((A, a_along_k), (B, not b_along_k), (D, True)))
        form: dict[str, Any] = {"M": M, "N": N, "K": K, "a_along_k": a_along_k, "b_along_k": b_along_k}
        form |= {"width": min(a.width, b.width, d.width), "plain": (alpha, beta) == (_ONE, _ZERO)}
        task = replace(task, **form, contiguous=a.contiguous and b.contiguous and d.contiguous)
        given, allowed = self.configuration, limits(task.accumulate)
        configuration = choose(task, self.kernel) if given is None else fitted(given, task)
        validate(configuration, task, allowed)
        self.chosen = configuration
        kernel = plan(task, configuration, batch)
        if batch * (tiles := prod(kernel.tiles)) > _MOST:
            raise InputError(f"{batch} products of {tiles} tiles: {_MOST} are the most, so split the batch")
        values = {"a": a.struct, "b": b.struct, "d": d.struct, "alpha": alpha, "beta": beta, "batch": batch}
        values |= {"M": M, "N": N, "K": K, "tiles_m": kernel.tiles[0], "tiles_n": kernel.tiles[1]}
        if C is not None:
            values |= {"c": stacks.stack(C, lead, True).struct, "c_entry": C.strides[-1], "added": 1}
        launch = {"shared": kernel.shared, "overlap": allowed.hopper}
        problem = Struct(PROBLEM, values)
        return module(kernel.source, kernel.name).step(kernel.name, kernel.blocks, kernel.threads, problem, **launch)
