"""A GEMM as chains of one matrix instruction over K.

Carriers hold the values of a format exactly: float32 for formats of at most 24 bits, float64 for fp64, int8 and int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import _float64, as_array, as_stacks, integer, product_shape
from fpemu.errors import InputError, entries, shown
from fpemu.formats import FP16, FP32, FP64, TF32, FloatFormat
from fpemu.mma import device as devices
from fpemu.mma import reference
from fpemu.mma.arithmetic import Operands
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.device import Backend, Device
from fpemu.mma.order import KOrder, plan
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import AnyOrder, Chain, Sum, Tree, check, evaluate, order_of
from fpemu.rounding import _round_to

Array = NDArray[Any]
Scales = tuple[Array | None, Array | None]
_ENTRIES = 2**20  # entries of D computed at a time where slices are added
_ENTRIES_CUDA = 2**27  # the same on a GPU, to which B is copied once for as many entries
_CHUNK = 2**18  # entries checked at a time: their temporaries are float64
_ASCENDING = KOrder()
_NATIVE = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}


@in_ieee
def execute(
    A: Any, B: Any, C: Any, spec: MmaSpec, *, scale_a: Any = None, scale_b: Any = None, backend: Backend = "compiled"
) -> Any:
    """Execute one matrix instruction, D = A B + C.

    Parameters
    ----------
    A, B : array_like (..., M, k) and (..., k, N)
        Values of the spec's format, with K exactly ``spec.k``; leading axes broadcast.
    C : array_like (..., M, N) or None
        Accumulator; None: zero.
    spec : MmaSpec
        Arithmetic of the instruction.
    scale_a, scale_b : array_like (..., M, k / scale_block) and (..., k / scale_block, N), optional
        Scales of a block-scaled instruction, values of the spec's scale format; default: 1. The sign of a ue4m3 scale
        is ignored.
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
    terms, C, dropped = _values([(A, B)], C, spec)
    if terms[0][0].shape[-1] != spec.k:
        K = terms[0][0].shape[-1]
        raise InputError(f"A has K = {K}: one instruction of {spec} takes K = {spec.k} (gemm takes any K)")
    broadcast(*terms[0], C)
    D = _chain(terms, C, spec, backend=backend, scales=_scales(terms[0], (scale_a, scale_b), spec, dropped))
    return np.squeeze(D, dropped) if dropped else D


@in_ieee
def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    spec: MmaSpec | None = None,
    order: AnyOrder | None = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Return D = A B + C on matrix instructions, for any M, N, K.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Values of the spec's format; leading axes broadcast; any strides; vectors as in `numpy.matmul`, and tensors of
        PyTorch on the CPU. K is padded with zeros to whole instructions.
    C : array_like (..., M, N), optional
        Accumulator; default: zero.
    spec : MmaSpec
        From `fpemu.mma.spec`.
    order : KOrder, tree or Revealed, optional
        Summation order over K. Default: one chain, k ascending. A tree (`fpemu.mma.tree`) fixes every addition.
    scale_a, scale_b : array_like (..., M, ceil(K / scale_block)) and (..., ceil(K / scale_block), N), optional
        Scales of block-scaled instructions, values of the spec's scale format; default: 1. Each interval of ``order``
        begins with a block of scales.
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
    return _checked_chain([(A, B)], C, spec, order, None, backend, device, (scale_a, scale_b))


@in_ieee
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
    spec, order : object
        As in `gemm`.
    step : int, "instruction" or None
        None: within each chain of ``order``, the first term runs over the chain's whole range of k, then the next. A
        number: the range is cut in steps of that length in k, and the terms alternate on each.
    backend, device : str
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
    return _checked_chain(terms, C, spec, order, step, backend, device)


def _checked_chain(
    terms: Any, C: Any, spec: Any, order: Any, step: Any, backend: Any, device: Any, scales: Scales = (None, None)
) -> Any:
    """`chain`, with the scales of a single term."""
    spec = _check_spec(spec)
    order = _ASCENDING if order is None else order_of(order) or _ASCENDING
    if not isinstance(terms, Sequence) or not terms or any(not isinstance(t, tuple) or len(t) != 2 for t in terms):
        raise InputError("terms must be a list of pairs (X, Y), at least one")
    if not isinstance(order, KOrder) and (len(terms) != 1 or step is not None):
        raise InputError("a tree is an order of one product: it takes one term and no step")
    step = integer("step", step, 1, none=True, words=("instruction",))
    step = spec.k if step == "instruction" else step
    devices.implementation(device, backend)  # an unusable device is refused before arrays are read
    terms, C, dropped = _values(terms, C, spec)
    broadcast(terms[0][0], terms[0][1], C)
    if scales[0] is not None or scales[1] is not None:
        scales = _scales(terms[0], scales, spec, dropped)
        if not isinstance(order, KOrder):
            raise InputError("scale_a and scale_b go with a KOrder: a tree takes operands without scales")
    D = _chain(terms, C, spec, order, step, backend, device, scales)
    return np.squeeze(D, dropped) if dropped else D


def _chain(
    terms: Sequence[tuple[Array, Array]],
    C: Array | None,
    spec: MmaSpec,
    order: KOrder | Tree | None = None,
    step: int | None = None,
    backend: Backend = "compiled",
    device: Device = "cpu",
    scales: Scales = (None, None),
) -> Array:
    """`chain` for arguments that fit one another: arrays of values of the spec's formats, `step` a length in k."""
    order = order or _ASCENDING
    use = devices.implementation(device, backend)
    As, Bs = [A for A, _ in terms], [B for _, B in terms]
    lead = np.broadcast_shapes(As[0].shape[:-2], Bs[0].shape[:-2], () if C is None else C.shape[:-2])
    shape = (*lead, As[0].shape[-2], Bs[0].shape[-1])
    C = None if C is None else np.broadcast_to(C, shape)
    run = partial(_run, spec=spec, use=use, device=device)
    with np.errstate(all="ignore"):  # NaN, Inf and subnormals are results like others here
        if isinstance(order, KOrder) and order.split is None:
            D = run(As, Bs, C, shape, order=order, step=step, scales=scales)
        else:  # some rows at a time, because the results of all slices are held until they are added
            if not isinstance(order, KOrder):
                if spec.final == "SR":
                    raise InputError("a tree takes an instruction that rounds deterministically: give a KOrder")
                check(order, As[0].shape[-1], spec)
            D = np.empty(shape, spec.outer_dtype)
            most = _ENTRIES_CUDA if use == "cuda" else _ENTRIES
            height = max(1, most // max(1, D[..., :1, :].size))
            for rows in (slice(i, i + height) for i in range(0, shape[-2], height)):
                c = None if C is None else C[..., rows, :]
                a = [A[..., rows, :] for A in As]
                part = (*lead, a[0].shape[-2], shape[-1])
                if isinstance(order, KOrder):
                    some = None if scales[0] is None else scales[0][..., rows, :]
                    at = rows.start
                    D[..., rows, :] = run(a, Bs, c, part, order=order, step=step, scales=(some, scales[1]), row=at)
                else:
                    D[..., rows, :] = _evaluate_tree(a[0], Bs[0], c, part, order, spec, run)
        if isinstance(spec.d_format, str):
            return D
        D = D.astype(spec.d_format.dtype, copy=False)
        if not (spec.payloads and not _adds_outside(order, C is not None)) and (nan := np.isnan(D)).any():
            D.view(spec.d_format.code_dtype)[nan] = spec.nan_code
    return D


def _run(
    As: list[Array],
    Bs: list[Array],
    C: Array | None,
    shape: tuple[int, ...],
    *,
    spec: MmaSpec,
    order: KOrder,
    step: int | None,
    use: str,
    device: Device,
    scales: Scales = (None, None),
    row: int = 0,
) -> Array:
    """Compute the slices of the order and add them; the result (..., M, N) shares no memory with the operands.

    `row` is the row of D with which the operands begin.
    """
    index_a, index_b = indices(As[0], shape[:-2]), indices(Bs[0], shape[:-2])
    stack, K, outer = (len(index_a), *shape[-2:]), As[0].shape[-1], spec.outer_dtype
    start = np.zeros(stack, outer) if C is None else C.reshape(stack).astype(outer)
    if K == 0 or 0 in stack:  # the compiled kernels take no empty operands
        return start.reshape(shape)
    lay_out = _slices if K <= _LONGEST_KEPT else _slices.__wrapped__
    slices = lay_out(order, K, len(As), step, spec.k)

    def chain(part: _SliceLayout, first: Array, block: int = 0) -> Array:
        at = row, block
        A, B = _gather(As, part, spec.a_format, -1), _gather(Bs, part, spec.b_format, -2)
        if spec.scale_block is not None:
            A, B = _with_scales(A, scales[0], part, spec, -1), _with_scales(B, scales[1], part, spec, -2)
        wide, ends = spec.with_wide_c, part.ends
        if wide is not spec and C is not None and not (ends.any() or order.split is not None):
            # one instruction reads C itself, whose subnormal numbers have larger exponents than the same in D's format
            k = spec.k
            first = reference.chain(A[index_a, :, :k], B[index_b, :k], first, spec, ends[:1], at)
            A, B, ends = np.ascontiguousarray(A[..., k:]), np.ascontiguousarray(B[:, k:]), ends[1:]
            at = row, block + k // spec.block
            if ends.size == 0:
                return first
        if use == "numpy":
            return reference.chain(A[index_a], B[index_b], first, wide, ends, at)
        x = Operands(A, B, index_a, index_b, first, ends, at)
        return devices.gemm_on_gpu(x, wide, device) if use == "cuda" else wide.rules.chain(x, wide)

    if order.split is None:
        return chain(slices[0], start).reshape(shape)
    begins = accumulate((part.length // spec.block for part in slices), initial=0)
    parts = order.sequence(list(zip(slices, begins, strict=False)))
    total = order.join_slices(chain(part, np.zeros(stack, outer), begin) for part, begin in parts)
    return (total if C is None else start + total).reshape(shape)


class _SliceLayout(NamedTuple):
    """The runs of a slice of K laid out one after another, each padded with zeros to whole instructions."""

    copies: list[tuple[int, slice, slice]]  # a term, its k, their places
    length: int  # k of all instructions
    ends: NDArray[np.bool_]  # for each instruction whether the accumulator is then added to an outer sum


_LONGEST_KEPT = 2**16  # the runs of a longer K could take much memory


@lru_cache(maxsize=64)
def _slices(order: KOrder, K: int, terms: int, step: int | None, k: int) -> list[_SliceLayout]:
    """The slices of an order over K on an instruction of length `k`."""
    slices = []
    for chains in plan(order, K, terms, step):
        copies: list[tuple[int, slice, slice]] = []
        at, last = 0, []
        for chain in chains:
            for term, start, stop in chain:
                before = copies[-1] if copies else None
                if before is not None and (before[0], before[1].stop, before[2].stop) == (term, start, at):
                    start, at = before[1].start, before[2].start  # one copy for runs without a gap
                    copies.pop()
                copies.append((term, slice(start, stop), slice(at, at + stop - start)))
                at += -(-(stop - start) // k) * k
            last.append(at // k - 1)
        ends = np.zeros(at // k, bool)
        ends[last] = order.promote is not None
        slices.append(_SliceLayout(copies, at, ends))
    return slices


def _gather(terms: list[Array], part: _SliceLayout, fmt: FloatFormat | str, axis: int) -> Array:
    """Lay out the terms (..., M, K), or (..., K, N) with axis = -2, in a carrier array with leading axes flattened."""
    shape = [math.prod(terms[0].shape[:-2]), *terms[0].shape[-2:]]
    flat = [x.reshape(shape) for x in terms]
    if fmt == TF32:
        flat = [_truncated(x) for x in flat]
    shape[axis] = part.length
    out = np.zeros(shape, carrier(fmt))  # in a copy: a compiled kernel may overwrite its operands
    for term, source, place in part.copies:
        if axis == -1:
            out[..., place] = flat[term][..., source]
        else:
            out[..., place, :] = flat[term][..., source, :]
    return out


def _with_scales(X: Array, scales: Array | None, part: _SliceLayout, spec: MmaSpec, axis: int) -> Array:
    """Lay out the scales of each block behind its operands; padding, and operands without scales, have the scale 1."""
    each, block = spec.scale_block or 1, spec.block
    X = np.moveaxis(X, axis, -1)
    out = np.ones((*X.shape[:-1], X.shape[-1] // each), X.dtype)
    if scales is not None:
        flat = np.moveaxis(scales.reshape(-1, *scales.shape[-2:]), axis, -1)
        for _, source, place in part.copies:
            if source.start % each or place.start % each:
                raise InputError(f"the order divides K at {source.start}: with scales, at multiples of {each}")
            first, count = source.start // each, -(-(source.stop - source.start) // each)
            out[..., place.start // each : place.start // each + count] = flat[..., first : first + count]
    parts = [x.reshape(*x.shape[:-1], -1, n) for x, n in ((X, block), (out, block // each))]
    return np.moveaxis(np.concatenate(parts, -1).reshape(*X.shape[:-1], -1), -1, axis)


def indices(x: Array, lead: tuple[int, ...]) -> NDArray[np.int64]:
    """Return for each product, leading axes broadcast to `lead`, the index of its matrix in flattened ``x``."""
    own = x.shape[:-2]
    index = np.arange(math.prod(own), dtype=np.int64).reshape(own)
    return np.ascontiguousarray(np.broadcast_to(index, lead).reshape(-1))


def carrier(fmt: FloatFormat | str) -> Any:
    """Return the type that carries a format through a chain."""
    return fmt if isinstance(fmt, str) else np.float64 if fmt.name == "fp64" else np.float32


def carried(x: Array, fmt: FloatFormat | str) -> Array:
    """Return the values of ``x`` in the carrier of a format."""
    return (_truncated(x) if fmt == TF32 else x).astype(carrier(fmt), copy=False)


def _truncated(x: Array) -> Array:
    """A tf32 operand without the low 13 bits of its word, as hardware reads it.

    A NaN whose payload lies in these bits becomes Inf, as in the hardware.
    """
    if x.dtype != np.float32:
        return x
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


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
    outer = spec.outer_dtype
    block = spec if spec.k == spec.block else spec.replace(k=spec.block)
    fma = spec if spec.rules.fused else block if spec.is_integer else FMA_SPECS["fp32"]

    wide_a, wide_b = carried(A, spec.a_format), carried(B, spec.b_format)

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
        instruction = instruction if start is None else instruction.with_wide_c
        start = C if start is None and node is tree else start
        if start is not None:
            start = np.broadcast_to(start, shape).astype(instruction.outer_dtype, copy=False)
            if str(instruction.d_format) == "fp16":  # a sum outside the instruction is wider than its accumulator
                start = _round_to(start.astype(np.float64), FP16).astype(start.dtype)
        return run([a], [b], start, shape, spec=instruction, order=KOrder(), step=None)

    def add(x: NDArray[Any], y: NDArray[Any], fmt: str | None) -> NDArray[Any]:
        if fmt is None:
            return x.astype(outer, copy=False) + y.astype(outer, copy=False)
        to = formats.get(fmt)
        x, y = (_round_to(v.astype(np.float64), to).astype(np.float64) for v in (x, y))
        return _round_to(x + y, to).astype(outer)

    D = evaluate(tree, chain, add)
    single_chain = isinstance(tree, Chain) and tree.start is None
    return D if C is None or single_chain else C.astype(outer) + D.astype(outer, copy=False)


def _adds_outside(order: KOrder | Tree, with_c: bool) -> bool:
    """Whether D is the result of an addition outside the instruction."""
    if isinstance(order, KOrder):
        return order.split is not None or order.promote is not None
    if with_c and not (isinstance(order, Chain) and order.start is None):
        return True
    while isinstance(order, Chain) and order.start is not None:
        order = order.start
    return isinstance(order, Sum)


def _check_spec(spec: Any) -> MmaSpec:
    if isinstance(spec, MmaSpec):
        return spec
    raise InputError(f"spec = {shown(spec)} must be an MmaSpec, from fpemu.mma.spec(hardware, ...)")


# --- checks of arrays


def _values(
    terms: Sequence[tuple[Any, Any]], C: Any, spec: MmaSpec
) -> tuple[list[tuple[Array, Array]], Array | None, tuple[int, ...]]:
    """The terms, of one shape, and C as matrices of values of the spec's formats; and the axes of D to drop."""
    pairs = [(as_values(A, spec.a_format, "A", 1), as_values(B, spec.b_format, "B", 1)) for A, B in terms]
    a, b = (x.shape for x in pairs[0])
    for A, B in pairs:
        if (A.shape, B.shape) != (a, b):
            raise InputError(f"terms of different shapes: {a}, {A.shape} and {b}, {B.shape}")
    dropped: tuple[int, ...] = ()
    if len(a) == 1 or len(b) == 1:
        dropped = as_stacks(*pairs[0])[2]
        pairs = [as_stacks(A, B)[:2] for A, B in pairs]
    if C is not None:
        C = as_values(C, spec.c_format or spec.d_format, "C", 2 - len(dropped))
        C = np.expand_dims(C, dropped) if dropped else C
    return pairs, C, dropped


def _scales(term: tuple[Array, Array], scales: Scales, spec: MmaSpec, dropped: tuple[int, ...]) -> Scales:
    """The scales of A and B as float32 arrays with the leading axes of A and B; None for a scale 1."""
    fmt = spec.scale_format
    checked: list[Array | None] = []
    for name, x, of, axis, vector in zip(("scale_a", "scale_b"), scales, term, (-1, -2), (-2, -1), strict=True):
        if x is None:
            checked.append(None)
            continue
        if fmt is None or spec.scale_block is None:
            raise InputError(f"{name} goes with a block-scaled instruction, and {spec} has no scales")
        x = as_array(x, name)
        # the sign of ue4m3, and of no ue8m0, is ignored
        x = as_values(np.abs(x) if spec.scale == "ue4m3" else x, fmt, name, 1).astype(np.float32)
        x = np.expand_dims(x, vector) if vector in dropped and x.ndim == 1 else x
        shape = list(of.shape)
        shape[axis] = -(-shape[axis] // spec.scale_block)
        if x.shape != tuple(shape):
            raise InputError(
                f"{name} has shape {x.shape}: {spec} needs {tuple(shape)}, a scale for {spec.scale_block} k"
            )
        checked.append(x)
    return checked[0], checked[1]


def as_values(x: Any, fmt: FloatFormat | str, name: str, axes: int = 0) -> Array:
    """Return ``x`` as an array of values of ``fmt`` with at least `axes` axes, without a copy if it has the dtype."""
    a = as_array(x, name)
    if a.ndim < axes:
        raise InputError(f"{name} has shape {a.shape}: it needs {'two axes' if axes == 2 else 'an axis'} or more")
    if isinstance(fmt, str):
        if a.dtype.kind not in "iu":
            raise InputError(f"{name} has dtype {a.dtype}: the instruction takes {fmt}")
        converted = a.astype(fmt)
        if (bad := a != converted).any():
            raise InputError(f"{name} has entries that {fmt} does not hold: {entries(bad, a)}")
        return converted
    native = _NATIVE.get(a.dtype)  # every number of such a type is a value of its format
    if native == fmt or (native == FP32 and fmt == TF32):  # `_truncated` drops the low 13 bits, as the hardware does
        return a
    good = np.ones(a.shape, bool)
    rows = max(_CHUNK * len(a) // max(a.size, 1), 1) if a.ndim else 1
    for i in range(0, len(a) if a.ndim else 1, rows):
        chunk = slice(i, i + rows) if a.ndim else ()
        good[chunk] = fmt._contains(_float64(a[chunk], name))
    if not good.all():
        raise InputError(
            f"{name} has entries that are not values of {fmt} (fpemu.round_to rounds them): {entries(~good, a)}"
        )
    return a


def broadcast(A: Array, B: Array, C: Array | None) -> tuple[int, ...]:
    """Return the shape (..., M, N) of A B + C; shapes that do not fit one another raise InputError."""
    shape = product_shape(A, B)
    if C is None:
        return shape
    try:
        shape = (*np.broadcast_shapes(shape[:-2], C.shape[:-2]), *shape[-2:])
    except ValueError:
        raise InputError(f"leading axes of C {C.shape} and of the product {shape} do not broadcast") from None
    try:
        np.broadcast_to(C, shape)
    except ValueError:
        raise InputError(f"C of shape {C.shape} does not fit D of shape {shape}") from None
    return shape
