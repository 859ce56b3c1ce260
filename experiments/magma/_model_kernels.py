"""Configurations of MAGMA's batched tensor-core kernel: validity on a GPU, resources and padding.

The parameters and the conditions of section 5.8 are in `fpemu.roofline.wmma`. Shared memory and registers are not in
the paper; they are estimated from the printed code: fp16 buffers for a block of A and one of B (two of each for complex
products), afterwards the block of C in the same space; in registers the next blocks of A and B, the fragments, and
`BASE` for addresses and counters. A compiler may need more.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import product

from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.wmma import TENSOR, WARP, Kernel, violation

BASE = 24
"""Registers of a thread for addresses and counters, assumed."""


def check(kernel: Kernel, gpu: Gpu | None = None, *, printed: bool = True) -> None:
    """Raise an InputError with the first violated condition of section 5.8 or, given one, limit of the GPU."""
    problem = _violation(kernel, gpu, printed)
    if problem:
        raise InputError(problem)


def _violation(kernel: Kernel, gpu: Gpu | None, printed: bool) -> str:
    problem = violation(kernel, printed=printed)
    if problem or gpu is None:
        return problem
    shared, limit = shared_memory(kernel), gpu.need("shared_per_block", "a kernel's configuration")
    if shared > limit:
        return f"{gpu.name}: blocks of {kernel.block} need {shared} bytes of shared memory, more than {limit:g}"
    each, threads = registers(kernel), kernel.threads[0] * kernel.threads[1]
    if each > gpu.need("registers_per_thread", "a kernel's configuration"):
        return f"{gpu.name}: {each} registers a thread, more than {gpu.registers_per_thread}: choose more threads"
    if each * threads > gpu.need("registers", "a kernel's configuration"):
        return f"{gpu.name}: {threads} threads of {each} registers, more than the {gpu.registers} of an SM"
    return ""


def shared_memory(kernel: Kernel) -> int:
    """Return the bytes of shared memory of a thread block: A and B in fp16, or the block of C after them.

    >>> shared_memory(Kernel((16, 16, 16), (64, 64, 64), (16, 8)))
    16384
    """
    m, n, k = kernel.block
    components = 2 if kernel.complex else 1
    return 2 * components * max(k * (m + n), m * n if kernel.accumulator == "fp16" else 2 * m * n)


def registers(kernel: Kernel) -> int:
    """Return the 32-bit registers of a thread: the next blocks of A and B, the fragments of A, B and C, and `BASE`.

    >>> registers(Kernel((16, 16, 16), (64, 64, 64), (16, 8)))
    96
    """
    (m, n, k), (tm, tn, tk) = kernel.block, kernel.tensor
    count, components = kernel.threads[0] * kernel.threads[1], 2 if kernel.complex else 1
    ahead = -(-components * k * (m + n) // (2 * count))
    fragments = -(-kernel.tiles // kernel.warps)
    width = 1 if kernel.accumulator == "fp32" else 2
    sums = components * fragments * tm * tn // (WARP * width)
    inputs = (tm * tk + tk * tn) // (WARP * 2)
    return ahead + sums + inputs + BASE


def idle_warps(kernel: Kernel) -> int:
    """Return the number of warps without a tile of C to compute (section 5.4).

    >>> idle_warps(Kernel((16, 16, 16), (64, 64, 64), (16, 64)))
    16
    """
    return max(0, kernel.warps - kernel.tiles)


def occupancy(kernel: Kernel, gpu: Gpu) -> int:
    """Return the number of thread blocks that an SM can hold.

    >>> from fpemu.roofline import gpus
    >>> occupancy(Kernel((16, 16, 16), (64, 64, 64), (16, 8)), gpus.get("V100"))
    5
    """
    count, model = kernel.threads[0] * kernel.threads[1], "the occupancy of a kernel"
    return int(
        min(
            gpu.need("blocks", model),
            gpu.need("threads", model) // count,
            gpu.need("shared", model) // shared_memory(kernel),
            gpu.need("registers", model) // (registers(kernel) * count),
        )
    )


def waste(kernel: Kernel, M: int, N: int, K: int) -> float:
    """Return the operations of the instructions, zeros at the edges included, divided by the operations of the product.

    >>> waste(Kernel((16, 16, 16), (32, 32, 32), (8, 4)), 16, 16, 32)
    4.0
    """
    return math.prod(-(-size // b) * b / size for size, b in zip((M, N, K), kernel.block, strict=True))


def configurations(
    largest: int | Sequence[int] = 128, gpu: Gpu | None = None, *, complex: bool = False, printed: bool = True
) -> Iterator[Kernel]:
    """Yield every valid configuration with blocks up to a size, or up to (BLK_M, BLK_N, BLK_K).

    >>> sum(1 for _ in configurations(16))
    10
    """
    limits = tuple(largest) if isinstance(largest, Sequence) else (largest,) * 3
    for tensor in TENSOR:
        ranges = [range(t, limit + 1, t) for t, limit in zip(tensor, limits, strict=True)]
        for m, n, k in product(*ranges):
            for x in _divisors(math.gcd(m, n, k) if printed else math.gcd(m, k)):
                for y in _divisors(math.gcd(m, n, k) if printed else math.gcd(k, n)):
                    if x * y % WARP == 0:
                        kernel = Kernel(tensor, (m, n, k), (x, y), complex)
                        if not _violation(kernel, gpu, printed):
                            yield kernel


@functools.cache
def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def ranked(
    M: int, N: int, K: int, gpu: Gpu, *, largest: int = 128, complex: bool = False
) -> list[tuple[float, Kernel]]:
    """Return the valid configurations and the modelled seconds of one product of a large batch, in ascending order.

    The time is the larger of traffic over bandwidth and operations (zeros included) over the peak of the matrix units.
    Ties, which are frequent, are resolved by the least waste and then by the most threads on an SM.
    """
    ranking = []
    size, operations = (4, 8) if complex else (2, 2)
    peak = gpu.need("fp16 matrix", "the ranking of kernels")
    bandwidth = gpu.copy_bandwidth or gpu.need("bandwidth", "the ranking of kernels")
    for kernel in configurations(largest, gpu, complex=complex):
        bm, bn, _ = kernel.block
        moved = size * (K * (M * -(-N // bn) + N * -(-M // bm)) + 2 * M * N)
        padding = waste(kernel, M, N, K)
        computing = padding * operations * M * N * K / peak
        resident = occupancy(kernel, gpu) * kernel.warps
        ranking.append((max(moved / bandwidth, computing), padding, -resident, kernel))
    ranking.sort(key=lambda item: item[:3])
    return [(seconds, kernel) for seconds, _, _, kernel in ranking]
