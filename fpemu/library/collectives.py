"""Sums over several GPUs in the order of NCCL's ring, and linear layers whose weights are divided among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import _float64, as_array, choice, integer
from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat
from fpemu.library.emulation import emulate
from fpemu.rounding import _round_to

Array = NDArray[Any]
Protocol = Literal["LL", "LL128", "Simple"]
_TRAFFIC = 16384  # bytes that a channel of NCCL sends at least
_CHANNELS = 24  # most channels among four H200 with NVLink
_LL_LARGEST = 2**18  # bytes of the largest recorded message for which NCCL chooses the protocol LL
_SIMPLE_LEAST = 2**23  # smallest recorded message that it sends by Simple
# bytes of a chunk at most: a step of the buffer without flags; 15 of the 16 words of a step; four steps
_CHUNK = {"LL": 2**15, "LL128": 576_000, "Simple": 2**21}


@in_ieee
def all_reduce(
    parts: Sequence[Any],
    *,
    fmt: FloatFormat | str | None = None,
    algorithm: Literal["ring"] = "ring",
    protocol: Protocol | None = None,
    channels: int | None = None,
) -> Array:
    """Return the sum of the ranks' arrays with the bits of NCCL's all-reduce on one host.

    Parameters
    ----------
    parts : sequence of arrays
        The array of each rank, in the order of the ring; all of one shape, 2 to 8 ranks.
    fmt : {"fp16", "bf16", "fp32", "fp64"}, optional
        Format of the entries and of every sum; default: the format of the dtype. State it for bf16 values in float32.
    algorithm : {"ring"}
        Algorithm of NCCL.
    protocol : {"LL", "LL128", "Simple"}, optional
        Protocol of NCCL. Default: NCCL's choice on four H200, recorded up to 256 KiB (LL) and from 8 MiB (Simple).
    channels : int, optional
        Number of channels among which NCCL divides the message. Default: NCCL's choice on four H200.

    Returns
    -------
    array
        The sum, of the shape and dtype of the parts.

    Raises
    ------
    InputError
        Arrays of different shapes or with values outside of the format; a size, a number of ranks or a protocol whose
        order is not known.

    Notes
    -----
    Each channel's part of the message is cut into chunks, one for each rank. Chunk c is the chain of ranks c + 1,
    c + 2, ..., c, and every addition is rounded to the format. The sizes of parts and chunks follow the rule of
    NCCL 2.28; recordings of NCCL 2.28.9 agree with it: 54 on four H200 (LL and Simple), and 82 of 3, 4 and 8 processes
    on one H200, whose rings ran over sockets (all protocols). Trees are not modelled.

    Examples
    --------
    >>> import numpy as np
    >>> parts = [np.full(4, x, np.float16) for x in (2048, 1, 1, 1)]
    >>> all_reduce(parts)  # ((1 + 1) + 1) + 2048
    array([2.052e+03, 2.052e+03, 2.052e+03, 2.052e+03], dtype=float16)
    """
    choice("algorithm", algorithm, ("ring",))
    stack, to = _stacked(parts, fmt)
    flat = stack.reshape(len(stack), -1)
    owner = _chunks(flat.shape[1], len(stack), to.width // 8, protocol, channels)
    return _ring(flat, owner, to).reshape(stack.shape[1:])


@in_ieee
def reduce_scatter(parts: Sequence[Any], *, fmt: FloatFormat | str | None = None) -> list[Array]:
    """Return each rank's part of the sum with the bits of NCCL's reduce-scatter by a ring on one host.

    Parameters
    ----------
    parts : sequence of arrays
        The array of each rank, in the order of the ring; all of one shape, 2 to 8 ranks. The first axis is divided.
    fmt : {"fp16", "bf16", "fp32", "fp64"}, optional
        As in `all_reduce`.

    Returns
    -------
    list of arrays
        The part of each rank: rank c has the chain of ranks c + 1, c + 2, ..., c.

    Raises
    ------
    InputError
        As `all_reduce`; a first axis that the ranks do not divide.

    Examples
    --------
    >>> import numpy as np
    >>> first, second = reduce_scatter([np.arange(4.0), np.ones(4)])
    >>> second
    array([3., 4.])
    """
    stack, to = _stacked(parts, fmt)
    ranks, length = stack.shape[:2]
    if length % ranks:
        raise InputError(f"parts of {length} rows cannot be divided among {ranks} ranks")
    owner = np.repeat(np.arange(ranks), stack[0].size // ranks)
    total = _ring(stack.reshape(ranks, -1), owner, to).reshape(stack.shape[1:])
    return list(total.reshape(ranks, length // ranks, *stack.shape[2:]))


@in_ieee
def parallel_linear(
    X: Any,
    W: Any,
    *,
    ranks: int,
    kind: Literal["row", "column"] = "row",
    library: Literal["cublas"] | Callable[[Array, Array], Any] = "cublas",
    fmt: str | None = None,
    partial: Literal["fp16", "bf16", "fp32"] | None = None,
    protocol: Protocol | None = None,
    channels: int | None = None,
) -> Array:
    """Return the layer Y = X W^T whose weights are divided among several GPUs (tensor parallelism).

    Parameters
    ----------
    X : array (M, K)
        Activations.
    W : array (N, K)
        Weights, as of ``torch.nn.Linear``.
    ranks : int
        Number of GPUs, 1 to 8, which divides K ("row") or N ("column").
    kind : {"row", "column"}
        "row": each rank multiplies a part of K, and `all_reduce` adds the products. "column": each rank returns a part
        of the columns of Y.
    library : "cublas" or callable
        Product (A, B) -> D of a rank's operands: cuBLAS on an H200 in its tabulated order for the shape, layout TN, or
        a function.
    fmt : str, optional
        Format of X and W, as in `fpemu.library.emulate`.
    partial : {"fp16", "bf16", "fp32"}, optional
        Format to which the ranks' products are rounded, and in which they are added. Default: that of D.
    protocol, channels : str, int
        As in `all_reduce`.

    Returns
    -------
    array (M, N)
        Y, in the dtype of the products; values of `partial` where it is given.

    Raises
    ------
    InputError
        Sizes that the ranks do not divide, a shape without a tabulated order, and as `all_reduce`.

    Examples
    --------
    >>> import fpemu, numpy as np
    >>> X, W = np.full((4, 64), 0.1, np.float32), np.ones((4, 64), np.float32)
    >>> one, two = (parallel_linear(X, W, ranks=n, library=fpemu.simt.gemm)[0, 0] for n in (1, 2))
    >>> one, two
    (np.float32(6.3999963), np.float32(6.399998))
    """
    choice("kind", kind, ("row", "column"))
    choice("partial", partial, ("fp16", "bf16", "fp32"), none=True)
    ranks = integer("ranks", ranks, 1, 8)
    X, W = as_array(X, "X"), as_array(W, "W")
    if X.ndim != 2 or W.ndim != 2 or X.shape[1] != W.shape[1]:
        raise InputError(f"X of shape {X.shape} and W of shape {W.shape} must be matrices (M, K) and (N, K)")
    axis, name = (1, "K") if kind == "row" else (0, "N")
    if W.shape[axis] % ranks:
        raise InputError(f"{name} = {W.shape[axis]} cannot be divided among {ranks} ranks")
    if fmt is not None:
        formats.get(fmt)
    if not callable(library):
        choice("library", library, ("cublas",))

    def product(x: Array, w: Array) -> Array:
        # a rank holds its part of X and W in C order
        A, B = np.ascontiguousarray(x), np.ascontiguousarray(w).T
        D = as_array(library(A, B), "D") if callable(library) else emulate("cublas", A, B, fmt=fmt, layout="TN")
        to = None if partial is None else formats.get(partial)
        return D if to is None else np.asarray(_round_to(_float64(D, "D"), to)).astype(to.dtype)

    weights = np.split(W, ranks, axis=axis)
    if kind == "column":
        return np.concatenate([product(X, w) for w in weights], axis=1)
    parts = [product(x, w) for x, w in zip(np.split(X, ranks, axis=1), weights, strict=True)]
    return parts[0] if ranks == 1 else all_reduce(parts, fmt=partial, protocol=protocol, channels=channels)


def _stacked(parts: Sequence[Any], fmt: FloatFormat | str | None) -> tuple[Array, FloatFormat]:
    """The ranks' arrays as one, and the format of their sums."""
    arrays = [as_array(x, f"part {rank}") for rank, x in enumerate(parts)]
    integer("number of ranks", len(arrays), 2, 8)
    for rank, x in enumerate(arrays):
        if (x.shape, x.dtype) != (arrays[0].shape, arrays[0].dtype) or not x.ndim:
            first = f"part 0 is {arrays[0].dtype} of shape {arrays[0].shape}"
            raise InputError(f"{first} and part {rank} is {x.dtype} of shape {x.shape}: they must be equal arrays")
    to = formats.get(str(arrays[0].dtype) if fmt is None else fmt)
    if to.name not in ("fp16", "bf16", "fp32", "fp64"):
        raise InputError(f"NCCL's sums in {to.name} were not recorded: fp16, bf16, fp32 or fp64 is needed")
    stack = np.stack(arrays)
    held = to.contains(_float64(stack, "parts"))
    if not held.all():
        raise InputError(f"parts have entries that are not values of {to.name}: {entries(~held, stack)}")
    return stack, to


def _ring(stack: Array, owner: NDArray[np.int64], fmt: FloatFormat) -> Array:
    """The sums of the entries of each column: the chain of ranks that begins after the owner of its chunk."""
    ranks, columns = len(stack), np.arange(stack.shape[1])
    carrier = np.float64 if fmt.name == "fp64" else np.float32
    with np.errstate(all="ignore"):
        total = stack[(owner + 1) % ranks, columns].astype(carrier)
        for step in range(2, ranks + 1):
            total = total + stack[(owner + step) % ranks, columns].astype(carrier)
            if fmt.width < 32:  # the sum of two values of fp16 or bf16, rounded to fp32, rounds as the exact sum
                total = np.asarray(_round_to(total.astype(np.float64), fmt)).astype(carrier)
        return total.astype(stack.dtype)


def _chunks(n: int, ranks: int, size: int, protocol: str | None, channels: int | None) -> NDArray[np.int64]:
    """The chunk of each of n entries of a number of bytes: its channel's part is cut into loops of a chunk a rank."""
    choice("protocol", protocol, ("LL", "LL128", "Simple"), none=True)
    channels = integer("channels", channels, 1, 64, none=True)
    if ranks == 2:  # both orders of two numbers have one sum
        return np.zeros(n, np.int64)
    if ranks != 4 and (protocol is None or channels is None):
        raise InputError(f"NCCL's choice for {ranks} ranks was not recorded (4 were): give protocol= and channels=")
    if protocol is None:
        if _LL_LARGEST < n * size < _SIMPLE_LEAST:
            raise InputError(f"NCCL's choice for {n * size} bytes was not recorded (up to 256 KiB, from 8 MiB): "
                             f"give protocol= 'LL' or 'Simple'")  # fmt: skip
        protocol = "LL" if n * size <= _LL_LARGEST else "Simple"
    if channels is None:  # at least 512 threads of 64 bytes by Simple, or 8 a rank by LL; 640 of 8 bytes by LL128
        least = {"LL": 512 * 8 * ranks, "LL128": 640 * 8, "Simple": 512 * 64}[protocol]
        channels = int(np.clip(n * size // least, 1, _CHANNELS))
    # cells of 16 KiB of traffic: an all-reduce sends each byte twice, and LL four times the bytes
    traffic = 8 if protocol == "LL" else 2
    cell = _TRAFFIC // traffic
    each = -(-max(_TRAFFIC, n * size * traffic // channels) // (cell * traffic))
    chunk = np.empty(n, np.int64)
    for start in range(0, n, each * (cell // size)):
        count = min(n - start, each * (cell // size))
        whole = _CHUNK[protocol] // size
        for at in range(0, count, ranks * whole):
            rest = min(count - at, ranks * whole)
            length = whole if rest == ranks * whole else -(-rest // ranks // (16 // size)) * (16 // size)
            chunk[start + at : start + at + rest] = np.arange(rest) // length
    return chunk
