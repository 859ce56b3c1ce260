"""Configurations of the batched kernels: four kinds of kernels, their constraints, and the choice for a product.

`Block` has the eight parameters of Abdelfattah, Tomov, Dongarra (2020), section 5.8, under the constraints of
`fpemu.roofline.wmma.check`, and parameters for the products and blocks in flight and the copies to and from shared
memory. A product is run by the fastest configuration of a measurement if there is one, otherwise by its sizes.
"""

from __future__ import annotations

import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fpemu import mma
from fpemu.arguments import flag, integer, integers
from fpemu.errors import InputError, unknown_name
from fpemu.gpu.gemm.choice import architecture
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import most_shared, per_device
from fpemu.roofline.wmma import Kernel, check

TABLE = Path(__file__).with_name("h200.toml")
MOST_SMALL = 32
"""Largest size of a product of magma-small"""
SHARED = 227 * 1024
"""Largest shared memory of a thread block on Hopper, bytes"""
_RESERVED, _BARRIER = 1024, 16  # bytes reserved for each thread block, and bytes of a buffer's barrier


@dataclass(frozen=True)
class Task:
    """The properties of a product for which a kernel is compiled."""

    M: int
    N: int
    K: int
    complex: bool = False
    planar: bool = False
    accumulate: str = "fp32"
    products: int = 4  # real products of a complex one: 4 or 3
    conjugate_a: bool = False  # A's imaginary parts, or A itself if real, are negated
    conjugate_b: bool = False
    a_along_k: bool = True  # A's rows are contiguous, otherwise its columns
    b_along_k: bool = False  # B's columns are contiguous, otherwise its rows
    width: int = 2  # alignment of all lines of A, B and D in bytes: 2, 4 (the minimum for interleaved parts), 8 or 16
    plain: bool = True  # alpha is 1 and beta is 0
    contiguous: bool = False  # A, B and D are stacks whose matrices and lines follow each other without gaps

    @property
    def parts(self) -> int:
        return 2 if self.complex else 1

    @property
    def interleaved(self) -> bool:
        return self.complex and not self.planar

    @property
    def terms(self) -> int:
        """Accumulators of an element."""
        return 1 if not self.complex else 3 if self.products == 3 else 2

    @property
    def whole(self) -> bool:
        """Whether every line of A and B is a multiple of eight elements long."""
        lines = (self.K if self.a_along_k else self.M, self.K if self.b_along_k else self.N)
        return all(length % 8 == 0 for length in lines)


# --- configurations
class _Kind:
    """The check of a configuration's types; `validate` compares its values with the limits of a task."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            name, value = f"{type(self).__name__}: {field.name}", getattr(self, field.name)
            if isinstance(field.default, tuple):
                value = integers(name, value, length=len(field.default))
            else:
                value = flag(name, value) if isinstance(field.default, bool) else integer(name, value, 1)
            object.__setattr__(self, field.name, value)  # Python's integers, by which equal configurations are equal


@dataclass(frozen=True)
class Block(_Kind):
    """Configuration of MAGMA's kernel.

    Parameters
    ----------
    tensor : (int, int, int)
        TC_M, TC_N and TC_K, the instruction's tile.
    block : (int, int, int)
        BLK_M, BLK_N and BLK_K, the thread block's tile.
    threads : (int, int)
        DIM_X and DIM_Y.
    products : int
        Products of a thread block.
    stages : int
        Blocks of A and of B in flight; 1 only if K is at most BLK_K. With ``persistent``: products in flight
        besides the one that is multiplied.
    direct : bool
        Copy blocks to shared memory without registers (cp.async), and rearrange them there.
    staged : bool
        Write D through shared memory; real and planar results only.
    flat : bool
        Copy matrices to shared memory without rearrangement, rearrange them there, and D in reverse: for products
        without gaps of one block each, not for planar ones.
    persistent : bool
        A thread block computes one product after the other, with the next in flight: for products of one block each.
    bulk : bool
        Copy flat matrices of a persistent block by the copy engine, each as a whole: Hopper and later.
    resident : int
        Least number of thread blocks on a multiprocessor, for which the compiler limits the registers.
    ahead : bool
        Prefetch a launch's first matrices to the L2 cache while the launch queued before it may still run: stacks
        without gaps only, on Hopper and later.
    """

    tensor: tuple[int, int, int] = (16, 16, 16)
    block: tuple[int, int, int] = (32, 32, 32)
    threads: tuple[int, int] = (8, 4)
    products: int = 1
    stages: int = 2
    direct: bool = False
    staged: bool = False
    flat: bool = False
    persistent: bool = False
    bulk: bool = False
    resident: int = 1
    ahead: bool = False

    kind = "block"

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.threads[0] * self.threads[1] // 32

    @property
    def turned(self) -> bool:
        """Whether the transposed product is computed: (8, 32, 16) is its (32, 8, 16)."""
        return self.tensor[0] == 8

    @property
    def grid(self) -> tuple[int, int]:
        """Grid of warps over the tiles of D's block, along the rows and the columns of the instruction's product.

        It has equal numbers of tiles, as many warps as possible, and is most nearly square.
        """
        rows, columns = self.block[0] // self.tensor[0], self.block[1] // self.tensor[1]
        if self.turned:
            rows, columns = columns, rows
        grids = [
            (x, y)
            for x in range(1, rows + 1)
            for y in range(1, columns + 1)
            if rows % x == 0 and columns % y == 0 and x * y <= self.warps
        ]
        return max(grids, key=lambda g: (g[0] * g[1], -abs(rows / g[0] - columns / g[1])))

    def holds(self, task: Task) -> bool:
        """Whether one thread block computes a whole product, and K is positive."""
        return self.block[0] >= task.M and self.block[1] >= task.N and self.block[2] >= task.K > 0


@dataclass(frozen=True)
class Warp(_Kind):
    """Configuration of the kernel with a warp for each tile of D and operands read directly from memory.

    Parameters
    ----------
    rows : int
        Rows of the tile, in units of 16.
    columns : int
        Columns of the tile, in units of 8.
    steps : int
        Steps along k in flight together, in units of 16.
    warps : int
        Warps of a thread block.
    """

    rows: int = 1
    columns: int = 2
    steps: int = 1
    warps: int = 4

    kind = "warp"


@dataclass(frozen=True)
class Packed(_Kind):
    """Configuration of the kernel that packs several products of 8×8×8 at most into one instruction.

    Parameters
    ----------
    warps : int
        Warps of a thread block.
    """

    warps: int = 4

    kind = "packed"


@dataclass(frozen=True)
class Small(_Kind):
    """Configuration of magma-small, the kernel with a thread for each element of D.

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    """

    threads: int = 128

    kind = "small"


Configuration = Block | Warp | Packed | Small
KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (Block, Warp, Packed, Small)}


def text(configuration: Configuration) -> str:
    """Return the configuration as one line, the form in the table; `parse` reads it.

    >>> text(Block(block=(64, 64, 32), threads=(16, 8), stages=3, direct=True))
    'block block=64x64x32 threads=16x8 stages=3 direct=1'
    """
    parts = [configuration.kind]
    for field in fields(configuration):
        value = getattr(configuration, field.name)
        if value == field.default and (field.default is False or field.name in ("products", "resident", "tensor")):
            continue
        parts.append(f"{field.name}={'x'.join(map(str, value)) if isinstance(value, tuple) else int(value)}")
    return " ".join(parts)


def parse(line: str) -> Configuration:
    """Return the configuration of a line that `text` wrote.

    >>> parse("warp rows=2 columns=4 steps=2 warps=4")
    Warp(rows=2, columns=4, steps=2, warps=4)
    """
    kind, *rest = line.split() or [""]
    if kind not in KINDS:
        raise unknown_name("kind of kernel", kind, KINDS)
    known: dict[str, Any] = {field.name: field.default for field in fields(KINDS[kind])}
    values: dict[str, Any] = {}
    for part in rest:
        name, _, value = part.partition("=")
        if name not in known:
            raise unknown_name(f"parameter of {kind}", name, known)
        try:
            numbers = tuple(int(v) for v in value.split("x"))
        except ValueError:
            raise InputError(f"{part}: {name} is a number, or several joined by x") from None
        default = known[name]
        values[name] = numbers if isinstance(default, tuple) or len(numbers) > 1 else type(default)(numbers[0])
    configuration: Configuration = KINDS[kind](**values)
    return configuration


# --- shared memory of a block, with the formulas of ``batched_block.cuh``
class SharedMemory(NamedTuple):
    """The shared memory of a thread block."""

    nbytes: int
    matrices_apart: bool  # the copied matrices of a flat kernel and its tiles have separate memory
    result_apart: bool  # D and the tiles of a kernel with bulk copies have separate memory


def shared_memory(c: Block, task: Task) -> SharedMemory:
    """Return the shared memory of a thread block.

    >>> shared_memory(Block(block=(64, 64, 64), stages=1), Task(64, 64, 64, width=16)).nbytes
    18432
    """
    m, n, k = c.block
    padding = task.width == 2 and c.direct and not c.flat
    sides = (m, k) if task.a_along_k else (k, m), (n, k) if task.b_along_k else (k, n)
    # a tile of A and one of B; each line has an odd number of 16 bytes, so that there are no bank conflicts
    tiles = sum(16 * lines * (task.parts * (length // 8 + padding) | 1) for lines, length in sides)
    unit, matrices = 4 if task.complex else 2, ((task.M, task.K), (task.K, task.N), (task.M, task.N))
    a, b, d = (16 * (-(-x * y * unit // 16) + 1) for x, y in matrices)  # without rearrangement
    raw, buffers = max(a + b + 48, d), c.stages + c.persistent
    apart = c.flat and c.products * (buffers * raw + tiles) <= SHARED
    if c.bulk:
        fixed = c.stages * (a + b + 48 + _BARRIER)
        separate = c.resident * (fixed + tiles + d + _RESERVED) <= SHARED + _RESERVED
        return SharedMemory(fixed + (tiles + d if separate else max(tiles, d)), apart, separate)
    if apart:
        return SharedMemory(c.products * (buffers * raw + tiles), True, False)
    result = task.parts * m * (n // 8 | 1) * 16 if c.staged else 0
    if c.flat:
        tiles, result = max(tiles, raw), d
    if not c.persistent:
        nbytes = max(buffers * tiles, result)
    elif c.stages > 1:
        nbytes = buffers * max(tiles, result)
    else:  # D has separate memory
        nbytes = buffers * tiles + result
    return SharedMemory(c.products * nbytes, False, False)


# --- constraints
class Limits(NamedTuple):
    """The properties of a GPU on which configurations depend; by default those of Hopper."""

    block_of: int = 16  # products that the instruction adds together (`MmaSpec.block`)
    shared: int = SHARED  # largest shared memory of a thread block in bytes
    hopper: bool = True  # hopper or later: bulk copies, and launches that may begin before the previous one has ended


HOPPER = Limits()


def validate(configuration: Configuration, task: Task, limits: Limits = HOPPER) -> None:
    """Raise InputError if a configuration cannot run a task.

    >>> validate(Block(block=(64, 40, 64), threads=(8, 4)), Task(64, 64, 64))
    Traceback (most recent call last):
    fpemu.errors.InputError: TC_N = 16 does not divide BLK_N = 40 (section 5.8): choose a multiple of 16
    """
    c, sizes = configuration, (task.M, task.N, task.K)
    if isinstance(c, Block):
        check(Kernel(c.tensor, c.block, c.threads, task.complex, task.accumulate))
        possible = fitted(c, task, limits.hopper)
        for field in fields(c):
            value, other = getattr(c, field.name), getattr(possible, field.name)
            if value != other:
                raise InputError(
                    f"block: {field.name} = {value} is for other products or GPUs, see Block: give {other}"
                )
        threads, need = c.threads[0] * c.threads[1] * c.products, shared_memory(c, task).nbytes
        wrong = {
            f"{c.products} products of {c.threads} threads: a thread block has 1024 at most": threads > 1024,
            f"products = {c.products}: there are barriers for 15 at most": c.products > 15,
            f"stages = {c.stages}: 4 are the most": c.stages > 4,
            f"{need} bytes of shared memory, and a thread block has {limits.shared} at most": need > limits.shared,
        }
    elif isinstance(c, Warp):
        registers = c.rows * c.columns * task.terms
        wrong = {f"a tile of {c.rows} by {c.columns} takes too many registers": registers > 32}
    elif isinstance(c, Packed):
        across = limits.block_of < 16 and 8 % max(task.K, 1) != 0
        wrong = {
            f"products of {sizes} do not share an instruction: 8 is the longest side": max(sizes) > 8 or min(sizes) < 1,
            f"K = {task.K} lies across the {limits.block_of} products that the instruction adds together": across,
        }
    else:
        fits = min(task.M, task.N) >= 1 and max(sizes) <= MOST_SMALL
        wrong = {
            f"products of {sizes}: {MOST_SMALL} is the longest side": not fits,
            f"threads = {c.threads}: a thread block has 1024 at most": c.threads > 1024,
        }
    if not isinstance(c, Small):
        wrong[f"warps = {c.warps}: a thread block has 32 at most"] = c.warps > 32
    for why, is_wrong in wrong.items():
        if is_wrong:
            raise InputError(f"{c.kind}: {why}")


def fitted(c: Configuration, task: Task, hopper: bool = True) -> Configuration:
    """Return the configuration without the options that a task does not allow, or GPUs before Hopper."""
    if not isinstance(c, Block):
        return c
    stages = c.stages if c.direct else min(c.stages, 2)  # by way of registers there are two
    if stages == 1 and c.block[2] < task.K:
        stages = 2
    persistent = c.persistent and c.holds(task) and c.products == 1 and c.direct
    flat = c.flat and c.holds(task) and task.contiguous and not task.planar and (stages == 1 or persistent)
    flat = flat and task.M * task.N > 0
    staged = (c.staged or (c.flat and not flat)) and not task.interleaved
    bulk = c.bulk and hopper and flat and persistent
    return replace(c, stages=stages, persistent=persistent, flat=flat, bulk=bulk, staged=staged)


# --- choice
@cache
def table() -> dict[str, Any]:
    """Return the fastest configurations by form and largest size."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def form(task: Task) -> str:
    """Return the section of the table for a task: real or complex, and the alignment of its lines in bytes.

    >>> form(Task(12, 12, 12, width=8))
    'real 8'
    """
    return f"{'complex' if task.complex else 'real'} {task.width}"


@per_device(maxsize=16)
def limits(accumulate: str) -> Limits:
    """Return the limits of the current GPU; those of Hopper without a GPU."""
    if device.missing() is not None:
        return HOPPER
    spec = mma.spec(architecture(), "fp16", accumulate, "mma")
    return Limits(spec.block or spec.k, most_shared(), device.capability() >= (9, 0))


@per_device(maxsize=4096)
def choose(task: Task, kernel: str = "tensor") -> Configuration:
    """Return the configuration that runs a task with a kernel, "tensor" or "magma-small"."""
    if kernel == "magma-small":
        return Small(threads=128)
    size, allowed = max(task.M, task.N, task.K), limits(task.accumulate)
    line = next((line for most, line in table().get(form(task), {}).items() if size <= int(most)), None)
    if line is not None:
        configuration = fitted(parse(line), task, allowed.hopper)
        with suppress(InputError):  # a GPU with less shared memory than the measured one
            validate(configuration, task, allowed)
            return configuration
    return fitted(by_size(task), task)


def by_size(task: Task) -> Configuration:
    """Return a configuration that is valid for any task."""
    M, N = task.M, task.N
    if max(M, N) <= 32:
        return Warp(1 if M <= 16 else 2, 1 if N <= 8 else 2 if N <= 16 else 4, 1 if task.K <= 16 else 2)
    K = 32 if task.K <= 32 or task.complex else 64
    return Block((16, 16, 16), (64, 64, K), (16, 8), 1, 2, True, not task.complex)
