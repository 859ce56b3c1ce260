"""H2SGEMM on an Ascend 910A: blocks, traffic and time, section 3.3 of the paper, Equations 8 to 10.

A core keeps N_fused blocks of A in its L1 buffer and streams blocks of B past them. All counts are of one of the three
products A·B, R_A·B and A·R_B; the scheme does all three.

What the paper leaves open, and how it is settled here
------------------------------------------------------
*Units of L1.* The paper says 512 KB. Its N_fused = 44 for (176, 64, 176) and its optimum of 86 to 90 follow if L1
stands for 524,288 numbers of fp16, which are 1 MB; with 262,144 numbers (512 KB) they would be 21 and 58 to 64. The
maker's platform file for the 910A has l1_size = 1048576 bytes, as public tests of CANN's operators quote it, and the
910B3, with "half the L1 buffer" in section 4, has 512 KB. So L1 is 1 MB and 524,288 numbers; "512 KB" should read
512 K numbers. The remark L1/(b_m b_k) >= 16 below Equation 10 is sharp for the other count only; with 524,288 it is 32
or more.

*f.* Without the floor f = 1 - 2 b_k b_n / L1, which depends on b_k b_n alone. So f is a constant in the derivation of
the optimal b_m only where b_k b_n is held.

*Equation 9* counts a block of B once for all cores, that is, what leaves the memory; every core still takes it from the
cache. And it is for whole multiples: with m < N_core b_m the printed B_r is below k n, the size of B. `traffic` can
count whole blocks instead.

The paper has no formula for the time. `speed` is ours: it counts, for every engine of a core, the cycles that
Algorithm 1 asks of it at the rates of the platform file, and joins them as the buffers allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import ceil, sqrt

from fpemu.arguments import checked, positive, sizes
from fpemu.errors import InputError, unknown_name

__all__ = [
    "ASCEND_910A",
    "PIPELINES",
    "PUBLISHED",
    "VECTOR",
    "Block",
    "Npu",
    "Traffic",
    "blocks",
    "check",
    "constraints",
    "cycles",
    "fused",
    "optimal_bm",
    "peak",
    "speed",
    "steady",
    "step",
    "traffic",
    "used",
]


@dataclass(frozen=True, kw_only=True)
class Npu:
    """NPU of DaVinci cores.

    Rates are in bytes a cycle of one core. They are documented in CANN's platform file for the 910A, as public tests of
    its operators quote it, unless noted.

    Parameters
    ----------
    cores : int
        Number of cores.
    clock : float
        Clock, Hz.
    l1 : int
        L1 buffer of a core, bytes.
    bandwidth : float
        Bandwidth of the memory, bytes a second (paper, section 4).
    cube : int
        Multiply-adds a cycle of a core.
    vector : float
        Vector unit, 64 numbers of fp32 a cycle (vec_calc_size: 128 of fp16).
    cache : float
        L2 cache or memory to the unified buffer (UB). Assumed: the tests have 110 to 128 for such cores. With one
        buffer it alone sets the speed (39.3 to 40.9 TFLOP/s).
    out : float
        UB to memory.
    ub_l1, l1_l0a, l1_l0b, l0c_ub : float
        Between the buffers of a core that the names state.
    """

    cores: int = 32
    clock: float = 1e9
    l1: int = 1048576
    bandwidth: float = 1.2e12
    cube: int = 16**3
    vector: float = 256.0
    cache: float = 110.0
    out: float = 64.0
    ub_l1: float = 128.0
    l1_l0a: float = 512.0
    l1_l0b: float = 256.0
    l0c_ub: float = 256.0

    def __post_init__(self) -> None:
        sizes(cores=self.cores, l1=self.l1, cube=self.cube)
        positive(**{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def numbers(self) -> int:
        """Numbers of fp16 in L1, the "L1" of Equations 8 and 9."""
        return self.l1 // 2


ASCEND_910A = Npu()


@dataclass(frozen=True, order=True)
class Block:
    """Block sizes b_m, b_k and b_n: a block of A is m × k, of B k × n, of C m × n.

    Parameters
    ----------
    m, k, n : int
        Numbers of rows or columns.
    """

    m: int
    k: int
    n: int

    def __post_init__(self) -> None:
        sizes(b_m=self.m, b_k=self.k, b_n=self.n)

    def __str__(self) -> str:
        return f"({self.m}, {self.k}, {self.n})"


PUBLISHED = Block(176, 64, 176)
"""The best block of section 4.2, with N_fused = 44."""


@checked
def constraints(block: Block) -> dict[str, tuple[int, int]]:
    """Return the value and the limit of every constraint of Equation 10.

    Parameters
    ----------
    block : Block
        Block sizes.

    Returns
    -------
    dict of str to (int, int)
        Value and largest permitted value by constraint; remainders must be 0.
    """
    return {
        "cube computation, b_m mod 16": (block.m % 16, 0),
        "cube computation, b_k mod 16": (block.k % 16, 0),
        "cube computation, b_n mod 16": (block.n % 16, 0),
        "L0A capacity, b_m b_k": (block.m * block.k, 64 * 256),
        "L0B capacity, b_k b_n": (block.k * block.n, 64 * 256),
        "L0C and UB capacity, 6 b_m b_n": (6 * block.m * block.n, 248 * 1024),
    }


@checked
def check(block: Block) -> None:
    """Raise an error if a block violates Equation 10.

    Parameters
    ----------
    block : Block
        Block sizes.

    Raises
    ------
    InputError
        The first constraint that is violated, with its value and its limit.

    Examples
    --------
    >>> check(Block(176, 64, 208))
    >>> check(Block(256, 64, 176))
    Traceback (most recent call last):
    fpemu.errors.InputError: block (256, 64, 176): L0C and UB capacity, 6 b_m b_n = 270336, beyond 253952 (Equation 10)
    """
    for name, (value, limit) in constraints(block).items():
        if value > limit:
            raise InputError(f"block {block}: {name} = {value}, beyond {limit} (Equation 10)")


def blocks() -> Iterator[Block]:
    """Yield all blocks that Equation 10 allows, in ascending order.

    Yields
    ------
    Block
        The next block.
    """
    for m in range(16, 1025, 16):
        for k in range(16, 64 * 256 // m + 1, 16):
            for n in range(16, min(64 * 256 // k, 248 * 1024 // (6 * m)) + 1, 16):
                yield Block(m, k, n)


@checked
def fused(block: Block, l1: int = ASCEND_910A.numbers, buffers: int = 2) -> int:
    """Return N_fused, the blocks of A that fit into L1 beside the buffers of B: Equation 8.

    Parameters
    ----------
    block : Block
        Block sizes.
    l1 : int
        Numbers of fp16, not bytes.
    buffers : int
        Blocks of B in L1; the paper's two are for double buffering.

    Returns
    -------
    int
        Number of blocks.

    Raises
    ------
    InputError
        If not one block of A fits.

    Examples
    --------
    >>> fused(PUBLISHED), fused(PUBLISHED, l1=262144)
    (44, 21)
    """
    sizes(l1=l1, buffers=buffers)
    count = (l1 - buffers * block.k * block.n) // (block.m * block.k)
    if count < 1:
        raise InputError(
            f"block {block}: L1 of {l1} numbers holds no block of A ({block.m * block.k}) "
            f"beside {buffers} of B ({block.k * block.n} each)"
        )
    return count


@checked
def used(block: Block, l1: int = ASCEND_910A.numbers) -> float:
    """Return f of Equation 8, the share of L1 that blocks of A fill: N_fused b_m b_k / L1.

    Parameters
    ----------
    block : Block
        Block sizes.
    l1 : int
        Size of L1, in numbers of fp16.

    Returns
    -------
    float
        Share from 0 to 1.

    Raises
    ------
    InputError
        Not one block of A fits.
    """
    return fused(block, l1) * block.m * block.k / l1


@dataclass(frozen=True)
class Traffic:
    """Numbers (fp32 words) moved between memory and cores for one of the three products.

    Attributes
    ----------
    a, b, c : float
        Words of A and B read, and of C read and written.
    """

    a: float
    b: float
    c: float

    @property
    def total(self) -> float:
        """Words of A, B and C together."""
        return self.a + self.b + self.c


@checked
def traffic(m: int, n: int, k: int, block: Block, npu: Npu = ASCEND_910A, *, whole: bool = False) -> Traffic:
    """Return A_r, B_r and C_rw of Equation 9.

    Parameters
    ----------
    m, n, k : int
        Sizes of the product.
    block : Block
        Block sizes.
    npu : Npu
        The NPU.
    whole : bool
        Count rounds and groups as whole numbers (B is read at least once), where Equation 9 has fractions.

    Returns
    -------
    Traffic
        Words of fp32.

    Examples
    --------
    >>> round(traffic(5632, 5632, 2816, PUBLISHED).b) == 5632 * 2816
    True
    """
    sizes(m=m, n=n, k=k)
    rounds = m / (npu.cores * block.m)
    groups = k / (block.k * fused(block, npu.numbers))
    if whole:
        rounds, groups = ceil(rounds), ceil(groups)
    return Traffic(m * k, k * n * rounds, 2 * m * n * groups)


@checked
def optimal_bm(f: float = 1.0, l1: int = ASCEND_910A.numbers, cores: int = ASCEND_910A.cores) -> float:
    """Return the b_m with the least traffic at a given f, sqrt(f L1 / (2 N_core)): section 3.3.1.

    Parameters
    ----------
    f : float
        Share of L1 that blocks of A fill.
    l1 : int
        Size of L1, in numbers of fp16.
    cores : int
        Number of cores.

    Returns
    -------
    float
        b_m, not rounded.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> round(optimal_bm(0.95), 1)
    88.2
    """
    positive(f=f)
    sizes(l1=l1, cores=cores)
    return sqrt(f * l1 / (2 * cores))


@checked
def peak(npu: Npu = ASCEND_910A) -> float:
    """Return the peak speed in FP32-equivalent operations a second: the matrix unit's over three.

    The paper has 256/3 = 85.3 TFLOP/s; 32 cores of 4096 multiply-adds at 1 GHz make 262.1/3 = 87.4.

    Parameters
    ----------
    npu : Npu
        The NPU.

    Returns
    -------
    float
        Operations a second.
    """
    return 2 * npu.cube * npu.cores * npu.clock / 3


VECTOR = {"A B": (1, 1), "R_A B": (5, 1), "A R_B": (1, 5)}
"""Vector instructions on a number of A and of B by Algorithm 1, lines 5, 6 and 12: to half; and for a residual to half,
to single, subtract, scale, to half."""
PIPELINES = ("sequence", "single", "double")


@checked
def cycles(block: Block, product: str, npu: Npu = ASCEND_910A) -> dict[str, float]:
    """Return the cycles of one step, a block of A against a block of B, on each engine of a core.

    The transfer of C out of L0C and its addition in memory happen once per N_fused steps; their cycles are spread over
    them.

    Parameters
    ----------
    block : Block
        Block sizes.
    product : str
        A key of `VECTOR`.
    npu : Npu
        The NPU.

    Returns
    -------
    dict of str to float
        Cycles by engine.

    Raises
    ------
    InputError
        Unknown product.
    """
    if product not in VECTOR:
        raise unknown_name("product", product, VECTOR)
    b, c = block.k * block.n, block.m * block.n / fused(block, npu.numbers)
    lanes = npu.vector / 4
    everyone = npu.bandwidth / npu.clock  # bytes a cycle; a block of B serves all cores, blocks of C one each
    return {
        "memory": (4 * b + 8 * c * npu.cores) / everyone,
        "to UB": 4 * (b + c) / npu.cache,
        "vector": (VECTOR[product][1] * b + c) / lanes + 4 * c / npu.l0c_ub,
        "from UB": 2 * b / npu.ub_l1 + 4 * c / npu.out,
        "to L0": 2 * b / npu.l1_l0b + 2 * block.m * block.k / npu.l1_l0a,
        "cube": block.m * block.n * block.k / npu.cube,
    }


@checked
def step(block: Block, product: str, pipeline: str = "double", npu: Npu = ASCEND_910A) -> tuple[float, float]:
    """Return the cycles from one step to the next, and the additional cycles of the first step.

    Parameters
    ----------
    block : Block
        Block sizes.
    product : str
        A key of `VECTOR`.
    pipeline : str
        "double": all engines overlap, and a step takes as long as the slowest. "single": L1 holds one block of B, so
        that loading it (memory, UB, vector) and multiplying (L0, cube) alternate; on each side the engines overlap.
        "sequence": nothing overlaps.
    npu : Npu
        The NPU.

    Returns
    -------
    cycles : float
        Cycles of a step.
    fill : float
        Additional cycles of the first step.

    Raises
    ------
    InputError
        Unknown product or pipeline.
    """
    if pipeline not in PIPELINES:
        raise unknown_name("pipeline", pipeline, PIPELINES)
    found = cycles(block, product, npu)
    front, back = list(found.values())[:4], list(found.values())[4:]
    through = sum(front) + sum(back) - min(found["memory"], found["to UB"])  # the same bytes on their way
    if pipeline == "sequence":
        return through, 0.0
    if pipeline == "single":
        return max(front) + max(back), 0.0
    return max(front + back), through - max(front + back)


@checked
def steady(block: Block = PUBLISHED, pipeline: str = "double", npu: Npu = ASCEND_910A) -> float:
    """Return the limit of `speed` for large matrices: no remainders, no fill, no time to load A.

    Parameters
    ----------
    block : Block
        Block sizes.
    pipeline : str
        Overlap of the engines, as in `step`.
    npu : Npu
        The NPU.

    Returns
    -------
    float
        FP32-equivalent operations a second.

    Raises
    ------
    InputError
        A block that violates Equation 10, or an unknown pipeline.

    Examples
    --------
    >>> round(steady() / 1e12, 1), round(steady(pipeline="single") / 1e12, 1)
    (67.8, 39.3)
    """
    check(block)
    time = sum(step(block, product, pipeline, npu)[0] for product in VECTOR)
    return 2 * block.m * block.n * block.k * npu.cores * npu.clock / time


@checked
def speed(m: int, n: int, k: int, block: Block = PUBLISHED, pipeline: str = "double", npu: Npu = ASCEND_910A) -> float:
    """Return the modelled speed, 2 m n k over the time of the three products.

    Nothing in this model is fitted; it is not in the paper.

    Parameters
    ----------
    m, n, k : int
        Sizes of the product.
    block : Block
        Block sizes.
    pipeline : str
        Overlap of the engines, as in `step`.
    npu : Npu
        The NPU.

    Returns
    -------
    float
        FP32-equivalent operations a second.

    Raises
    ------
    InputError
        A block that violates Equation 10, or an unknown pipeline.

    Notes
    -----
    Each group of N_fused blocks of A is loaded first, then all columns of B pass (Algorithm 1). Whole blocks are
    counted: a
    remainder costs as much as a block, so m is best a multiple of b_m N_core. The engines run at their full rates,
    without
    latencies or conflicts.

    Examples
    --------
    >>> round(speed(5632, 5632, 2816) / 1e12, 1)
    65.9
    """
    check(block)
    sizes(m=m, n=n, k=k)
    deep, columns, rounds = ceil(k / block.k), ceil(n / block.n), ceil(m / (block.m * npu.cores))
    groups = ceil(deep / fused(block, npu.numbers))
    entries, time = block.m * block.k, 0.0
    for product, (instructions, _) in VECTOR.items():
        load = [4 * entries / npu.cache, 4 * instructions * entries / npu.vector, 2 * entries / npu.ub_l1]
        each, fill = step(block, product, pipeline, npu)
        first = sum(load) if pipeline == "sequence" else max(load)
        time += rounds * (deep * first + deep * columns * each + groups * fill)
    return 2 * m * n * k / (time / npu.clock)
