"""A GEMM as chains of one matrix instruction over K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import instance, integer
from fpemu.arrays import as_array
from fpemu.errors import InputError
from fpemu.mma import device as devices
from fpemu.mma import numpy_chain, operands
from fpemu.mma.device import Backend, Device
from fpemu.mma.order import KOrder, Run, plan
from fpemu.mma.spec import FMA_SPECS, MmaSpec
from fpemu.mma.tree import AnyOrder, Chain, Sum, Tree, check, evaluate, order_of
from fpemu.rounding import round_to

_ENTRIES = 2**20  # entries of D computed at a time where slices are added
_ENTRIES_CUDA = 2**27  # the same on a GPU, to which B is copied once for as many entries


def execute(A: Any, B: Any, C: Any, spec: MmaSpec, *, backend: Backend = "compiled") -> Any:
    """Execute one matrix instruction, D = A B + C.

    Parameters
    ----------
    A : array_like (..., M, k)
        Values of the spec's format, with K exactly ``spec.k``; leading axes broadcast.
    B : array_like (..., k, N)
        As A.
    C : array_like (..., M, N) or None
        Accumulator; None: zero.
    spec : MmaSpec
        Arithmetic of the instruction.
    backend : {"compiled", "numpy"}
        Compiled or NumPy reference implementation, with the same bits.

    Returns
    -------
    array (..., M, N) of float16, float32, float64 or int32
        D, with the bits that the hardware returns.

    Raises
    ------
    InputError
        Wrong shapes, dtypes or values.
    """
    _check_spec(spec)
    shape = as_array(A, "A").shape
    if len(shape) >= 2 and shape[-1] != spec.k:
        raise InputError(f"A has K = {shape[-1]}: one instruction of {spec} takes K = {spec.k} (gemm takes any K)")
    return chain([(A, B)], C, spec, backend=backend)


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    spec: MmaSpec | None = None,
    order: AnyOrder | None = None,
    *,
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Return D = A B + C on matrix instructions, for any M, N, K.

    Parameters
    ----------
    A : array_like (..., M, K)
        Values of the spec's format; leading axes broadcast; any strides. K is padded with zeros to whole instructions.
    B : array_like (..., K, N)
        As A.
    C : array_like (..., M, N), optional
        Accumulator; default: zero.
    spec : MmaSpec
        From `fpemu.mma.spec`.
    order : KOrder, tree or Revealed, optional
        Summation order over K. Default: one chain, k ascending. A tree (`fpemu.mma.tree`) fixes every addition.
    backend : {"compiled", "numpy"}
        Compiled or NumPy reference implementation, with the same bits.
    device : {"cpu", "cuda", "auto"}
        "cuda" emulates on an NVIDIA GPU of any kind, with the same bits (not with backend="numpy"). "auto": large
        products run on a GPU if there is one, all others on the CPU.

    Returns
    -------
    array (..., M, N)
        D in the dtype of the spec's D. With a split or a promotion in ``order`` the additions outside the instruction
        are made in fp32 (fp64 for fp64), and an fp16 D is rounded from that once.

    Raises
    ------
    InputError
        Wrong shapes, dtypes or values; device="cuda" without a GPU that can be used.

    Examples
    --------
    >>> import numpy as np, fpemu
    >>> A = np.full((1, 4), [[-(2.0**13), -0.5, -0.25, -0.125]], np.float16)
    >>> B = np.array([[2.0**10], [1], [1], [1]], np.float16)
    >>> C = np.array([[2.0**23]], np.float32)
    >>> [fpemu.mma.gemm(A, B, C, fpemu.mma.spec(gpu)).item() for gpu in ("V100", "A100", "H100")]
    [0.0, -0.5, -0.75]
    """
    return chain([(A, B)], C, spec, order, backend=backend, device=device)


def chain(
    terms: Sequence[tuple[Any, Any]],
    C: Any = None,
    spec: MmaSpec | None = None,
    order: AnyOrder | None = None,
    *,
    step: int | Literal["instruction"] | None = None,
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Accumulate several products in one accumulator, D = C + sum of X Y over the terms.

    Parameters
    ----------
    terms : sequence of pairs (X, Y)
        All X of one shape (..., M, K), all Y of one shape (..., K, N).
    C : array_like (..., M, N), optional
        Accumulator, as in `gemm`.
    spec : MmaSpec, optional
        Arithmetic of the instruction, as in `gemm`.
    order : KOrder, tree or Revealed, optional
        As in `gemm`.
    step : int, "instruction" or None
        None: within each chain of ``order``, the first term runs over the chain's whole range of k, then the next. A
        number: the range is cut in steps of that length in k, and the terms alternate on each.
    backend : {"compiled", "numpy"}
        As in `gemm`.
    device : {"cpu", "cuda", "auto"}
        As in `gemm`.

    Returns
    -------
    array (..., M, N)
        D, as in `gemm`.

    Raises
    ------
    InputError
        As `gemm`; no terms, or terms of different shapes.
    """
    spec = _check_spec(spec)
    order = order_of(order) or KOrder()
    if not isinstance(order, KOrder) and (len(terms) != 1 or step is not None):
        raise InputError("a tree is an order of one product: it takes one term and no step")
    use = devices.implementation(device, backend)
    step = integer("step", step, 1, none=True, words=("instruction",))
    step = spec.k if step == "instruction" else step
    As, Bs = _check_terms(terms, spec)
    C = None if C is None else operands.check_values(C, spec.d_format if spec.c_format is None else spec.c_format, "C")
    shape, C = operands.broadcast(As[0], Bs[0], C)
    run = partial(_run, spec=spec, use=use, device=device)
    with np.errstate(all="ignore"):  # NaN, Inf and subnormals are results like others here
        if isinstance(order, KOrder) and order.split is None:
            D = run(As, Bs, C, shape, order=order, step=step)
        else:  # some rows at a time, because the results of all slices are held until they are added
            D = np.empty(shape, spec.outer_dtype)
            most = _ENTRIES_CUDA if use == "cuda" else _ENTRIES
            height = max(1, most // max(1, D[..., :1, :].size))
            for rows in (slice(i, i + height) for i in range(0, shape[-2], height)):
                c = None if C is None else C[..., rows, :]
                a = [A[..., rows, :] for A in As]
                part = (*shape[:-2], a[0].shape[-2], shape[-1])
                if isinstance(order, KOrder):
                    D[..., rows, :] = run(a, Bs, c, part, order=order, step=step)
                else:
                    D[..., rows, :] = _evaluate_tree(a[0], Bs[0], c, part, order, spec, run)
        return _with_nan_codes(D, spec, _adds_outside(order, C is not None))


def _run(
    As: list[NDArray[Any]],
    Bs: list[NDArray[Any]],
    C: NDArray[Any] | None,
    shape: tuple[int, ...],
    *,
    spec: MmaSpec,
    order: KOrder,
    step: int | None,
    use: str,
    device: Device,
) -> NDArray[Any]:
    """Compute the slices of the order and add them; the result (..., M, N) shares no memory with the operands."""
    a = [operands.flatten(x, shape[:-2]) for x in As]
    b = [operands.flatten(x, shape[:-2]) for x in Bs]
    stack = (len(a[0].indices), *shape[-2:])
    start = np.zeros(stack, _accumulator(spec)) if C is None else C.reshape(stack).astype(_accumulator(spec))
    slices = plan(order, As[0].shape[-1], len(As), step)
    if not slices or 0 in stack:
        return start.reshape(shape)

    def chain(chains: list[list[Run]], first: NDArray[Any]) -> NDArray[Any]:
        A, ends = operands.gather([x.matrices for x in a], chains, spec.a_format, spec.k, -1)
        B, _ = operands.gather([x.matrices for x in b], chains, spec.b_format, spec.k, -2)
        if order.promote is None:
            ends[:] = False
        if use == "numpy":
            return numpy_chain.chain(A[a[0].indices], B[b[0].indices], first, spec, ends)
        if use == "cuda":
            return devices.gemm_on_gpu(A, B, a[0].indices, b[0].indices, first, spec, ends, device)
        from fpemu.mma import compiled  # numba is slow to import

        return compiled.chain(A, B, a[0].indices, b[0].indices, first, spec, ends)

    if order.split is None:
        return chain(slices[0], start).reshape(shape)
    outer = spec.outer_dtype
    total = order.join_slices(
        chain(chains, np.zeros(stack, start.dtype)).astype(outer, copy=False) for chains in order.sequence(slices)
    )
    return (total if C is None else start.astype(outer, copy=False) + total).reshape(shape)


def _evaluate_tree(
    A: NDArray[Any],
    B: NDArray[Any],
    C: NDArray[Any] | None,
    shape: tuple[int, ...],
    tree: Tree,
    spec: MmaSpec,
    run: Callable[..., NDArray[Any]],
) -> NDArray[Any]:
    """Return the value of a tree. C starts a tree that is one chain from zero; otherwise it is added last."""
    check(tree, A.shape[-1], spec)
    outer = spec.outer_dtype
    block = spec if spec.k == spec.block else spec.replace(k=spec.block)
    fma = spec if spec.arithmetic == "fma" else block if spec.is_integer else FMA_SPECS["fp32"]

    operands.carry(A, spec.a_format, wide_a := np.empty(A.shape, operands.carrier(spec.a_format)))
    operands.carry(B, spec.b_format, wide_b := np.empty(B.shape, operands.carrier(spec.b_format)))

    def chain(node: Chain, start: NDArray[Any] | None) -> NDArray[Any]:
        instruction = fma if node.kind == "fma" else block
        padded = np.full((len(node.blocks), instruction.k), -1)
        for row, positions in zip(padded, node.blocks, strict=True):
            row[: len(positions)] = positions
        ks = padded.ravel()
        a = np.zeros((*A.shape[:-1], ks.size), wide_a.dtype)
        b = np.zeros((*B.shape[:-2], ks.size, B.shape[-1]), wide_b.dtype)
        a[..., ks >= 0] = wide_a[..., ks[ks >= 0]]
        b[..., ks >= 0, :] = wide_b[..., ks[ks >= 0], :]
        start = C if start is None and node is tree else start
        if start is not None:
            start = np.broadcast_to(start, shape).astype(_accumulator(instruction), copy=False)
            if str(instruction.d_format) == "fp16":  # a sum outside the instruction is wider than its accumulator
                start = np.asarray(round_to(start, "fp16")).astype(start.dtype, copy=False)
        return run([a], [b], start, shape, spec=instruction, order=KOrder(), step=None)

    def add(x: NDArray[Any], y: NDArray[Any], fmt: str | None) -> NDArray[Any]:
        if fmt is None:
            return x.astype(outer, copy=False) + y.astype(outer, copy=False)
        x, y = (np.asarray(round_to(v, fmt)) for v in (x, y))
        return np.asarray(round_to(x.astype(np.float64) + y.astype(np.float64), fmt)).astype(outer)

    D = evaluate(tree, chain, add)
    single_chain = isinstance(tree, Chain) and tree.start is None
    return D if C is None or single_chain else C.astype(outer) + D.astype(outer, copy=False)


def _accumulator(spec: MmaSpec) -> Any:
    """Return the carrier of C and D between instructions."""
    return np.int32 if spec.is_integer else np.float64 if str(spec.d_format) == "fp64" else np.float32


def _adds_outside(order: KOrder | Tree, with_c: bool) -> bool:
    """Whether D is the result of an addition outside the instruction."""
    if isinstance(order, KOrder):
        return order.split is not None or order.promote is not None
    if with_c and not (isinstance(order, Chain) and order.start is None):
        return True
    while isinstance(order, Chain) and order.start is not None:
        order = order.start
    return isinstance(order, Sum)


def _with_nan_codes(D: NDArray[Any], spec: MmaSpec, added_outside: bool) -> NDArray[Any]:
    """Return D in its own dtype, every NaN with the code of the hardware."""
    if isinstance(spec.d_format, str):
        return D
    D = D.astype(spec.d_format.dtype, copy=False)
    if spec.payloads and not added_outside:
        return D
    if (nan := np.isnan(D)).any():
        D.view(spec.d_format.code_dtype)[nan] = spec.nan_code
    return D


def _check_spec(spec: Any) -> MmaSpec:
    return instance("spec", spec, MmaSpec, "from fpemu.mma.spec(hardware, ...)")


def _check_terms(terms: Sequence[tuple[Any, Any]], spec: MmaSpec) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    if not isinstance(terms, Sequence) or not terms or any(not isinstance(t, tuple) or len(t) != 2 for t in terms):
        raise InputError("terms must be a list of pairs (X, Y), at least one")
    As = [operands.check_values(x, spec.a_format, "A") for x, _ in terms]
    Bs = [operands.check_values(y, spec.b_format, "B") for _, y in terms]
    for A, B in zip(As, Bs, strict=True):
        if As[0].shape != A.shape or Bs[0].shape != B.shape:
            raise InputError(f"terms of different shapes: {As[0].shape}, {A.shape} and {Bs[0].shape}, {B.shape}")
    return As, Bs
