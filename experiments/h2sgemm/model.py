"""H2SGEMM on an Ascend 910A: blocks, traffic and time, section 3.3 of the paper, Equations 8 to 10.

A core keeps N_fused blocks of A in its L1 buffer and streams blocks of B past them. All counts are for one of the three
products A·B, R_A·B and A·R_B; the scheme computes all three.

*Units of L1.* The paper gives 512 KB. Its N_fused = 44 for (176, 64, 176) and its optimum of 86 to 90 follow if L1
stands for 524,288 numbers of fp16, which are 1 MB; with 262,144 numbers (512 KB) they would be 21 and 58 to 64. The
manufacturer's platform file for the 910A has l1_size = 1048576 bytes, as quoted by public tests of CANN's operators,
and the 910B3, with "half the L1 buffer" in section 4, has 512 KB. L1 is therefore taken as 1 MB and 524,288 numbers;
"512 KB" should read 512 K numbers. The bound L1/(b_m b_k) >= 16 below Equation 10 is attained for the smaller count
only; with 524,288 it is 32 or more.

*f.* Without the floor f = 1 - 2 b_k b_n / L1, which depends on b_k b_n alone. The derivation of the optimal b_m treats
f as a constant, which requires a fixed b_k b_n.

*Equation 9* counts a block of B once for all cores, as read from memory; every core still reads it from the cache. It
holds for whole multiples: with m < N_core b_m the printed B_r is below k n, the size of B. `traffic` can count whole
blocks instead.

The paper has no formula for the time. `speed` is an addition of this package: it counts, for every engine of a core,
the cycles that Algorithm 1 requires at the rates of the platform file, and overlaps the engines as the buffers allow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt

from fpemu.errors import InputError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Npu:
    """NPU of DaVinci cores.

    Rates are in bytes per cycle of one core, from CANN's platform file for the 910A as quoted by public tests of its
    operators, unless noted.
    """

    cores: int = 32
    clock: float = 1e9
    """Hz"""
    l1: int = 1048576
    """L1 buffer of a core, bytes"""
    bandwidth: float = 1.2e12
    """Bandwidth of the memory, bytes per second (paper, section 4)"""
    cube: int = 16**3
    """Multiply-adds per cycle of a core"""
    vector: float = 256.0
    """Vector unit, 64 numbers of fp32 per cycle (vec_calc_size: 128 of fp16)"""
    cache: float = 110.0
    """L2 cache or memory to the unified buffer (UB). Assumed: the tests have 110 to 128 for such cores. With one buffer
    this rate alone determines the speed (39.3 to 40.9 TFLOP/s)"""
    out: float = 64.0
    """UB to memory"""
    ub_l1: float = 128.0
    l1_l0a: float = 512.0
    l1_l0b: float = 256.0
    l0c_ub: float = 256.0

    @property
    def numbers(self) -> int:
        """Numbers of fp16 in L1, the "L1" of Equations 8 and 9."""
        return self.l1 // 2


ASCEND_910A = Npu()


@dataclass(frozen=True, order=True)
class Block:
    """Block sizes b_m, b_k and b_n: a block of A is m × k, of B k × n, of C m × n."""

    m: int
    k: int
    n: int

    def __str__(self) -> str:
        return f"({self.m}, {self.k}, {self.n})"


PUBLISHED = Block(176, 64, 176)
"""The best block of section 4.2, with N_fused = 44."""


def constraints(block: Block) -> dict[str, tuple[int, int]]:
    """Return the value and the limit of every constraint of Equation 10."""
    return {
        "cube computation, b_m mod 16": (block.m % 16, 0),
        "cube computation, b_k mod 16": (block.k % 16, 0),
        "cube computation, b_n mod 16": (block.n % 16, 0),
        "L0A capacity, b_m b_k": (block.m * block.k, 64 * 256),
        "L0B capacity, b_k b_n": (block.k * block.n, 64 * 256),
        "L0C and UB capacity, 6 b_m b_n": (6 * block.m * block.n, 248 * 1024),
    }


def check(block: Block) -> None:
    """Raise an error if a block violates Equation 10.

    >>> check(Block(176, 64, 208))
    >>> check(Block(256, 64, 176))
    Traceback (most recent call last):
    fpemu.errors.InputError: block (256, 64, 176): L0C and UB capacity, 6 b_m b_n = 270336, beyond 253952 (Equation 10)
    """
    for name, (value, limit) in constraints(block).items():
        if value > limit:
            raise InputError(f"block {block}: {name} = {value}, beyond {limit} (Equation 10)")


def blocks() -> Iterator[Block]:
    """Yield all blocks that Equation 10 allows, in ascending order."""
    for m in range(16, 1025, 16):
        for k in range(16, 64 * 256 // m + 1, 16):
            for n in range(16, min(64 * 256 // k, 248 * 1024 // (6 * m)) + 1, 16):
                yield Block(m, k, n)


def fused(block: Block, l1: int = ASCEND_910A.numbers, buffers: int = 2) -> int:
    """Return N_fused, the blocks of A that fit into L1 beside the buffers of B: Equation 8.

    >>> fused(PUBLISHED), fused(PUBLISHED, l1=262144)
    (44, 21)
    """
    count = (l1 - buffers * block.k * block.n) // (block.m * block.k)
    if count < 1:
        raise InputError(
            f"block {block}: L1 of {l1} numbers holds no block of A ({block.m * block.k}) "
            f"beside {buffers} of B ({block.k * block.n} each)"
        )
    return count


def used(block: Block, l1: int = ASCEND_910A.numbers) -> float:
    """Return f of Equation 8, the share of L1 that blocks of A fill: N_fused b_m b_k / L1."""
    return fused(block, l1) * block.m * block.k / l1


@dataclass(frozen=True)
class Traffic:
    """Numbers (fp32 words) of A and B read, and of C read and written, for one of the three products."""

    a: float
    b: float
    c: float

    @property
    def total(self) -> float:
        """Words of A, B and C together."""
        return self.a + self.b + self.c


def traffic(m: int, n: int, k: int, block: Block, npu: Npu = ASCEND_910A, *, whole: bool = False) -> Traffic:
    """Return A_r, B_r and C_rw of Equation 9; ``whole`` rounds its fractions of rounds and groups up.

    >>> round(traffic(5632, 5632, 2816, PUBLISHED).b) == 5632 * 2816
    True
    """
    rounds = m / (npu.cores * block.m)
    groups = k / (block.k * fused(block, npu.numbers))
    if whole:
        rounds, groups = ceil(rounds), ceil(groups)
    return Traffic(m * k, k * n * rounds, 2 * m * n * groups)


def optimal_bm(f: float = 1.0, l1: int = ASCEND_910A.numbers, cores: int = ASCEND_910A.cores) -> float:
    """Return the b_m with the least traffic for a given f, sqrt(f L1 / (2 N_core)): section 3.3.1.

    >>> round(optimal_bm(0.95), 1)
    88.2
    """
    return sqrt(f * l1 / (2 * cores))


def peak(npu: Npu = ASCEND_910A) -> float:
    """Return the peak speed in FP32-equivalent operations per second: a third of the matrix unit's.

    The paper has 256/3 = 85.3 TFLOP/s; 32 cores of 4096 multiply-adds at 1 GHz make 262.1/3 = 87.4.
    """
    return 2 * npu.cube * npu.cores * npu.clock / 3


VECTOR = {"A B": (1, 1), "R_A B": (5, 1), "A R_B": (1, 5)}
"""Vector instructions per number of A and of B in Algorithm 1, lines 5, 6 and 12: to half; and for a residual to half,
to single, subtract, scale, to half."""
PIPELINES = ("sequence", "single", "double")


def cycles(block: Block, product: str, npu: Npu = ASCEND_910A) -> dict[str, float]:
    """Return the cycles of one step, a block of A against a block of B, on each engine of a core.

    The transfer of C out of L0C and its addition in memory happen once per N_fused steps, over which their cycles are
    distributed.
    """
    if product not in VECTOR:
        raise unknown_name("product", product, VECTOR)
    b, c = block.k * block.n, block.m * block.n / fused(block, npu.numbers)
    lanes = npu.vector / 4
    shared = npu.bandwidth / npu.clock  # bytes per cycle; a block of B serves all cores, a block of C one core
    return {
        "memory": (4 * b + 8 * c * npu.cores) / shared,
        "to UB": 4 * (b + c) / npu.cache,
        "vector": (VECTOR[product][1] * b + c) / lanes + 4 * c / npu.l0c_ub,
        "from UB": 2 * b / npu.ub_l1 + 4 * c / npu.out,
        "to L0": 2 * b / npu.l1_l0b + 2 * block.m * block.k / npu.l1_l0a,
        "cube": block.m * block.n * block.k / npu.cube,
    }


def step(block: Block, product: str, pipeline: str = "double", npu: Npu = ASCEND_910A) -> tuple[float, float]:
    """Return the cycles from one step to the next, and the additional cycles of the first step.

    With pipeline="double" all engines overlap, and a step takes as long as the slowest. With "single" L1 holds one
    block of B, so that loading it (memory, UB, vector) and multiplying (L0, cube) alternate; on each side the engines
    overlap. With "sequence" nothing overlaps.
    """
    if pipeline not in PIPELINES:
        raise unknown_name("pipeline", pipeline, PIPELINES)
    engines = cycles(block, product, npu)
    front, back = list(engines.values())[:4], list(engines.values())[4:]
    through = sum(front) + sum(back) - min(engines["memory"], engines["to UB"])  # one transfer of the same bytes
    if pipeline == "sequence":
        return through, 0.0
    if pipeline == "single":
        return max(front) + max(back), 0.0
    return max(front + back), through - max(front + back)


def steady(block: Block = PUBLISHED, pipeline: str = "double", npu: Npu = ASCEND_910A) -> float:
    """Return the limit of `speed` for large matrices: no remainders, no fill, no time to load A.

    >>> round(steady() / 1e12, 1), round(steady(pipeline="single") / 1e12, 1)
    (67.8, 39.3)
    """
    check(block)
    time = sum(step(block, product, pipeline, npu)[0] for product in VECTOR)
    return 2 * block.m * block.n * block.k * npu.cores * npu.clock / time


def speed(m: int, n: int, k: int, block: Block = PUBLISHED, pipeline: str = "double", npu: Npu = ASCEND_910A) -> float:
    """Return the modelled speed in operations per second, 2 m n k over the time of the three products.

    No parameter is fitted. Each group of N_fused blocks of A is loaded first, then all columns of B pass (Algorithm 1).
    Whole blocks are counted: a remainder costs as much as a block, so that m is best a multiple of b_m N_core. The
    engines run at their full rates, without latencies or conflicts.

    >>> round(speed(5632, 5632, 2816) / 1e12, 1)
    65.9
    """
    check(block)
    deep, columns, rounds = ceil(k / block.k), ceil(n / block.n), ceil(m / (block.m * npu.cores))
    groups = ceil(deep / fused(block, npu.numbers))
    entries, time = block.m * block.k, 0.0
    for product, (instructions, _) in VECTOR.items():
        load = [4 * entries / npu.cache, 4 * instructions * entries / npu.vector, 2 * entries / npu.ub_l1]
        each, fill = step(block, product, pipeline, npu)
        first = sum(load) if pipeline == "sequence" else max(load)
        time += rounds * (deep * first + deep * columns * each + groups * fill)
    return 2 * m * n * k / (time / npu.clock)
