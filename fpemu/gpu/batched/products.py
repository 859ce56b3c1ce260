"""`hgemm` and `hcgemm` on the GPU at hand, with the bits of `fpemu.batched`."""

from __future__ import annotations

from dataclasses import replace
from threading import RLock
from typing import Any

import numpy as np

from fpemu.arguments import choice as choice_of
from fpemu.arrays import product_shape
from fpemu.batched import arguments, halfcomplex, layouts, scaling
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.gpu.batched import call, choice, stacks
from fpemu.gpu.batched.call import Arithmetic, Product, Scaling
from fpemu.gpu.batched.configuration import Configuration, parse
from fpemu.gpu.batched.stacks import Operand, Pointers
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.matrices import Matrix

HALF = stacks.HALF
_lock = RLock()


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
    """Return D = alpha · op(A) op(B) + beta · C for a batch of fp16 matrices, on the GPU at hand.

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
        No GPU, or a run that failed.
    """
    return _run(A, B, C, out, None, _Asked(alpha, beta, transa, transb, accumulate, kernel, configuration))


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
    """Return D = alpha · op(A) op(B) + beta · C for half-complex matrices, on the GPU at hand.

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
    """
    asked = _Asked(
        alpha,
        beta,
        transa,
        transb,
        accumulate,
        kernel,
        configuration,
        layout,
        products,
        _algorithm(layout, products, algorithm),
    )
    return _run(A, B, C, out, layout, asked)


def _algorithm(layout: str, products: int, algorithm: str | None) -> str:
    layouts.axis_of(layout)
    return halfcomplex.choose_algorithm(products, algorithm, default=halfcomplex.ALGORITHMS[layout])


def arguments_of(kernel: str = "tensor") -> dict[str, Any]:
    """Return the arguments with which `fpemu.batched` gives the bits of the GPU at hand.

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


class _Asked:
    """The arguments of a product, checked."""

    def __init__(
        self,
        alpha: Any,
        beta: Any,
        transa: str,
        transb: str,
        accumulate: str,
        kernel: str,
        configuration: Any,
        layout: str | None = None,
        products: int = 4,
        algorithm: str = "fused",
    ) -> None:
        choice_of("kernel", kernel, arguments.KERNELS)
        fmt = arguments.arithmetic(kernel, accumulate, None if kernel == "magma-small" else "hopper", None).accumulator
        for name, how in (("transa", transa), ("transb", transb)):
            choice_of(name, how.upper() if isinstance(how, str) else how, arguments.TRANSPOSES)
        self.layout, self.kernel, self.algorithm = layout, kernel, algorithm
        self.transa, self.transb = transa.upper(), transb.upper()
        if layout is None:
            a, b = scaling.real_scalars(alpha, beta, fmt)
            self.scaling = Scaling((float(a), 0.0), (float(b), 0.0))
        else:
            found = [scaling.complex_scalar(x, who, fmt) for x, who in ((alpha, "alpha"), (beta, "beta"))]
            pairs = [(float(x), float(y)) for x, y in found]
            self.scaling = Scaling(pairs[0], pairs[1])
        self.beta = beta
        if algorithm == "calls" and (self.scaling.alpha[1] or self.scaling.beta[1]):
            raise InputError(
                "algorithm='calls' is four calls of HGEMM, which scale by real numbers: alpha and beta "
                "must have no imaginary part"
            )
        conjugates = layout is not None and algorithm == "fused"
        self.arithmetic = Arithmetic(
            conjugates,
            conjugates and layout == "planar",
            accumulate,
            products,
            conjugates and self.transa == "C",
            conjugates and self.transb == "C",
        )
        self.configuration = parse(configuration) if isinstance(configuration, str) else configuration
        if not isinstance(self.configuration, Configuration | None):
            raise InputError(f"configuration is a {type(configuration).__name__}: give a Block, Warp, ... or its text")

    @property
    def adds(self) -> bool:
        return self.scaling.beta != (0.0, 0.0)

    def chosen(self) -> Any:
        """The configuration, or what chooses it."""
        if self.configuration is None:
            return lambda task, batch: choice.choose(task, batch, self.kernel)
        small = self.configuration.kind == "small"
        if small != (self.kernel == "magma-small"):
            raise InputError(f"configuration is of kind {self.configuration.kind!r}, and kernel is {self.kernel!r}")
        return self.configuration


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
        A launch may begin before the one queued before it has ended; it waits where it needs the results.
    **options
        Options of `hgemm` or `hcgemm`.

    Returns
    -------
    list of Product
        One launch, or four for algorithm="calls", none for an empty D; `Product.queue(stream)` queues one.
    """
    defaults: dict[str, Any] = {
        "alpha": 1.0,
        "beta": 0.0,
        "transa": "N",
        "transb": "N",
        "accumulate": "fp32",
        "kernel": "tensor",
        "configuration": None,
    }
    if layout is not None:
        algorithm = _algorithm(layout, options.get("products", 4), options.pop("algorithm", None))
        defaults |= {"layout": layout, "products": 4, "algorithm": algorithm}
    for name in options:
        if name not in defaults:
            raise unknown_name("option", name, defaults)
    asked = _Asked(**(defaults | options))
    taken = {who: stacks.take(X, who) for who, X in (("A", A), ("B", B), ("C", C), ("out", out)) if X is not None}
    there = {who: isinstance(X, Matrix | Pointers) for who, X in taken.items()}
    if not all(there.values()):
        raise InputError(f"{' and '.join(who for who, on in there.items() if not on)} must be on the GPU")
    operands = {who: stacks.operand(X, layout, who) for who, X in taken.items()}
    _shape(operands, asked)
    return _prepared(operands, asked, overlap)


def need_gpu() -> None:
    """GpuError, in one line, unless there is a GPU with the instructions."""
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    if device.capability() < (8, 0):
        raise GpuError(
            "fpemu.gpu.batched needs a GPU of compute capability 8.0 or later (Ampere): "
            f"this one has {'.'.join(map(str, device.capability()))}"
        )


def _run(A: Any, B: Any, C: Any, out: Any, layout: str | None, asked: _Asked) -> Any:
    need_gpu()
    given = {"A": A, "B": B, "C": C if asked.adds else None, "out": out}
    arrays = [array for X in given.values() for array in stacks.arrays(X)]
    with _lock, device.entered(), callers.ordered(callers.streams(arrays)):
        taken = {who: stacks.take(X, who) for who, X in given.items() if X is not None}
        there = {who: isinstance(X, Matrix | Pointers) for who, X in taken.items()}
        if len(set(there.values())) > 1:
            here, gpu = (" and ".join(w for w, on in there.items() if on == side) for side in (False, True))
            raise InputError(f"{here} in the CPU's memory and {gpu} on the GPU: bring them to one of the two")
        if out is not None and not there["A"]:
            raise InputError("out= is for arrays of the GPU")
        _check_out(taken)
        operands = {
            who: stacks.operand(X if isinstance(X, Pointers) else stacks.upload(X), layout, who)
            for who, X in taken.items()
        }
        lead, M, N, _ = _shape(operands, asked)
        made = None
        if out is None:
            shape = _with_parts((*lead, M, N), layout)
            if there["A"] and not isinstance(A, Pointers | list | tuple):
                D, made = matrices.like(A, shape, HALF)
            else:
                D = matrices.empty(shape, HALF)
                made = matrices.Array(D)
            operands["out"] = stacks.operand(D, layout, "out")
        _queue(operands, asked)
        if not there["A"]:
            found = matrices.download(D)
            return matrices.as_torch(found) if callers.is_torch(A) else found
        if callers.must_synchronize(arrays):
            device.synchronize()
        return out if made is None else made


def _check_out(taken: dict[str, Any]) -> None:
    """Refuse an `out` whose entries share memory, with each other or with an operand."""
    D = taken.get("out")
    if not isinstance(D, Matrix) or 0 in D.shape:
        return
    if not matrices.apart(D):
        raise InputError("out must have a place of its own for every entry, and no negative strides")
    for who, X in taken.items():
        if who != "out" and isinstance(X, Matrix) and matrices.overlap(X, D):
            raise InputError(f"out shares memory with {who}: give it memory of its own")


def _queue(operands: dict[str, Operand], asked: _Asked) -> None:
    """Queue the product; four calls on interleaved arrays take planar copies."""
    apart = asked.algorithm == "calls" and asked.layout == "interleaved"
    ready = {who: _apart(X, copied=who != "out") for who, X in operands.items()} if apart else operands
    for product in _prepared(ready, asked, True):
        product.queue()
    if apart:
        matrices.copy(_parts_first(ready["out"]), _parts_first(operands["out"]))


def _apart(X: Operand, *, copied: bool) -> Operand:
    """The same matrices in the planar layout, in memory of their own."""
    shape = (2, *X.shape)
    made = matrices.copy(_parts_first(X)) if copied else matrices.empty(shape, HALF)
    return stacks.operand(made, "planar", "a copy")


def _parts_first(X: Operand) -> Matrix:
    """The two parts as the first axis of a stack."""
    steps = tuple(s // 2 for s in (X.plane, *X.strides))
    return Matrix(X.first, HALF, (2, *X.shape), steps, X)


def _with_parts(shape: tuple[int, ...], layout: str | None) -> tuple[int, ...]:
    return shape if layout is None else (2, *shape) if layout == "planar" else (*shape, 2)


def _shape(operands: dict[str, Operand], asked: _Asked) -> tuple[tuple[int, ...], int, int, int]:
    """The batch, M, N and K of the product, transposes done; what does not fit is refused as `fpemu.batched` does."""
    zeros = {who: np.broadcast_to(np.float16(0), X.shape) for who, X in operands.items()}
    a = arguments.transposed(zeros["A"], asked.transa, "transa")
    b = arguments.transposed(zeros["B"], asked.transb, "transb")
    shape = product_shape(a, b)
    scaling.needs_c(zeros.get("C"), asked.beta if asked.adds else 0, shape)
    if "C" in zeros:
        arguments.check_addend(zeros["C"], shape)
    if "out" in zeros and zeros["out"].shape != shape:
        raise InputError(f"out has shape {zeros['out'].shape}, and the product {shape}")
    return shape[:-2], shape[-2], shape[-1], a.shape[-1]


def _prepared(operands: dict[str, Operand], asked: _Asked, overlap: bool) -> list[Product]:
    if 0 in operands["out"].shape:
        return []
    a = operands["A"].transposed if asked.transa != "N" else operands["A"]
    b = operands["B"].transposed if asked.transb != "N" else operands["B"]
    c, d = operands.get("C") if asked.adds else None, operands["out"]
    if not d.along_columns:
        raise InputError("out must have contiguous rows")
    if asked.algorithm == "calls" and d.unit == 4:
        raise InputError("algorithm='calls' is prepared on planar arrays only")
    if asked.algorithm != "calls":
        return [call.prepare(a, b, c, d, asked.arithmetic, asked.scaling, asked.chosen(), overlap=overlap)]
    return _calls(a, b, c, d, asked, overlap)


def _calls(a: Operand, b: Operand, c: Operand | None, d: Operand, asked: _Asked, overlap: bool) -> list[Product]:
    """Cr = Ar Br + beta Cr, Cr -= Ai Bi, Ci = Ar Bi + beta Ci, Ci += Ai Br (section 6.2); conjugates change signs."""
    alpha = asked.scaling.alpha[0]
    made = []
    for part, i, j in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
        first = i == 0
        addend = (None if c is None else _part(c, part)) if first else _part(d, part)
        beta = asked.scaling.beta if first else (1.0, 0.0)
        factors = Scaling((alpha if first or part else -alpha, 0.0), beta)
        negative_a, negative_b = (k == 1 and how == "C" for k, how in ((i, asked.transa), (j, asked.transb)))
        how = replace(asked.arithmetic, conjugate_a=negative_a, conjugate_b=negative_b)
        operands = _part(a, i), _part(b, j), addend, _part(d, part)
        made.append(call.prepare(*operands, how, factors, asked.chosen(), overlap=overlap))
    return made


def _part(X: Operand, which: int) -> Operand:
    return Operand(X.first + which * X.plane, X.shape, X.strides, 0, 2, None, X)
