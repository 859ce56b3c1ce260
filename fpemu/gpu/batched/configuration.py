"""Configurations of the batched kernels: four kinds of kernels, their parameters and the constraints on them.

`Block` has the eight parameters of Abdelfattah, Tomov, Dongarra (2020), section 5.8, under the constraints of
`fpemu.roofline.wmma.check`, and parameters for the products and blocks in flight and the copies to and from shared
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fpemu.arguments import flag, integer, integers
from fpemu.errors import InputError, unknown_name
from fpemu.gpu.batched.memory import SHARED, shared_bytes
from fpemu.gpu.batched.task import Task
from fpemu.roofline.wmma import Kernel, check


@dataclass(frozen=True)
class Block:
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

    def __post_init__(self) -> None:
        for name, length in (("tensor", 3), ("block", 3), ("threads", 2)):
            object.__setattr__(self, name, integers(f"Block: {name}", getattr(self, name), length=length))
        _check_integers(self, "products", "stages", "resident")
        for name in ("direct", "staged", "flat", "persistent", "bulk", "ahead"):
            flag(f"Block: {name}", getattr(self, name))

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.threads[0] * self.threads[1] // 32

    @property
    def turned(self) -> bool:
        """Whether the transposed product is computed: (8, 32, 16) is its (32, 8, 16)."""
        return self.tensor[0] == 8

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of D's block along the rows and the columns of the instruction's product."""
        along = self.block[0] // self.tensor[0], self.block[1] // self.tensor[1]
        return along[::-1] if self.turned else along

    @property
    def grid(self) -> tuple[int, int]:
        """Grid of warps over the tiles: equal numbers of tiles, as many warps as possible, most nearly square."""
        rows, columns = self.tiles
        grids = [
            (x, y)
            for x in range(1, rows + 1)
            for y in range(1, columns + 1)
            if rows % x == 0 and columns % y == 0 and x * y <= self.warps
        ]
        return max(grids, key=lambda g: (g[0] * g[1], -abs(rows / g[0] - columns / g[1])))


@dataclass(frozen=True)
class Warp:
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

    def __post_init__(self) -> None:
        _check_integers(self, "rows", "columns", "steps", "warps")


@dataclass(frozen=True)
class Packed:
    """Configuration of the kernel that packs several products of 8×8×8 at most into one instruction.

    Parameters
    ----------
    warps : int
        Warps of a thread block.
    """

    warps: int = 4
    kind = "packed"

    def __post_init__(self) -> None:
        _check_integers(self, "warps")


@dataclass(frozen=True)
class Small:
    """Configuration of magma-small, the kernel with a thread for each element of D.

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    """

    threads: int = 128
    kind = "small"

    def __post_init__(self) -> None:
        _check_integers(self, "threads")


def _check_integers(configuration: Any, *names: str) -> None:
    """Turn fields into Python's integers; `validate` compares them with the limits of a task."""
    for name in names:
        label = f"{type(configuration).__name__}: {name}"
        object.__setattr__(configuration, name, integer(label, getattr(configuration, name)))


Configuration = Block | Warp | Packed | Small
KINDS: dict[str, type[Any]] = {"block": Block, "warp": Warp, "packed": Packed, "small": Small}
MOST_SMALL = 32
"""Largest size of a product of magma-small"""


def validate(
    configuration: Configuration, task: Task, block_of: int = 16, shared: int = SHARED, bulk: bool = True
) -> None:
    """Raise InputError if a configuration cannot run a task.

    The GPU has instructions that add `block_of` products together (`MmaSpec.block`), thread blocks of at most `shared`
    bytes of shared memory, and bulk copies or none.

    >>> validate(Block(block=(64, 40, 64), threads=(8, 4)), Task(64, 64, 64))
    Traceback (most recent call last):
    fpemu.errors.InputError: TC_N = 16 does not divide BLK_N = 40 (section 5.8): choose a multiple of 16
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name)
        if type(value) is int and value < 1:
            raise InputError(f"{configuration.kind}: {field.name} = {value} must be a positive integer")
    if isinstance(configuration, Block):
        if configuration.bulk and not bulk:
            raise InputError("block: bulk is for GPUs of compute capability 9.0 and later")
        _validate_block(configuration, task, shared)
    elif isinstance(configuration, Packed):
        sizes = (task.M, task.N, task.K)
        if max(sizes) > 8 or min(sizes) < 1:
            raise InputError(f"packed: products of {sizes} do not share an instruction: 8 is the longest side")
        if block_of < 16 and 8 % task.K:
            raise InputError(
                f"packed: K = {task.K} lies across the {block_of} products that the instruction adds together"
            )
    elif isinstance(configuration, Small) and not 1 <= min(task.M, task.N) <= max(task.M, task.N, task.K) <= MOST_SMALL:
        raise InputError(f"small: products of {(task.M, task.N, task.K)}: {MOST_SMALL} is the longest side")
    for name, most in (("warps", 32), ("threads", 1024)):
        value = getattr(configuration, name, 1)
        if not isinstance(value, tuple) and value > most:
            raise InputError(f"{configuration.kind}: {name} = {value}: a thread block has {most} at most")
    if isinstance(configuration, Warp) and configuration.rows * configuration.columns * task.terms > 32:
        raise InputError(f"warp: a tile of {configuration.rows} by {configuration.columns} takes too many registers")


def _validate_block(c: Block, task: Task, shared: int) -> None:
    check(Kernel(c.tensor, c.block, c.threads, task.complex, task.accumulate))
    threads = c.threads[0] * c.threads[1] * c.products
    if threads > 1024:
        raise InputError(f"block: {c.products} products of {c.threads} threads: a thread block has 1024 at most")
    if c.products > 15:
        raise InputError(f"block: products = {c.products}: there are barriers for 15 at most")
    if (c.stages == 1 or c.persistent) and c.block[2] < task.K:
        raise InputError(f"block: stages = 1 needs BLK_K = {c.block[2]} to be K = {task.K} at least")
    if c.stages > 2 and not c.direct:
        raise InputError(f"block: stages = {c.stages} needs direct: by way of registers there are 2")
    if c.stages > 4:
        raise InputError(f"block: stages = {c.stages}: 4 are the most")
    interleaved = task.complex and not task.planar
    if c.staged and interleaved:
        raise InputError("block: staged is not for interleaved results")
    if c.flat and not (_can_be_flat(c, task) and task.M * task.N):
        raise InputError(
            "block: flat is for products without gaps of one block each, stages = 1, and not for planar ones"
        )
    if c.persistent and not (_one_block(c, task) and c.products == 1 and (c.flat or c.direct)):
        raise InputError("block: persistent is for products of one block each, products = 1, direct or flat")
    if c.bulk and not (c.flat and c.persistent):
        raise InputError("block: bulk is for flat products of persistent thread blocks")
    need = shared_bytes(c, task)
    if need > shared:
        raise InputError(f"block: {need} bytes of shared memory, and a thread block has {shared} at most")


def _one_block(c: Block, task: Task) -> bool:
    """Whether one thread block computes a whole product, and K is positive."""
    return c.block[0] >= task.M and c.block[1] >= task.N and c.block[2] >= task.K > 0


def _can_be_flat(c: Block, task: Task) -> bool:
    """Whether matrices can be copied without rearrangement."""
    return _one_block(c, task) and task.contiguous and not task.planar and (c.stages == 1 or c.persistent)


def fitted(configuration: Configuration, task: Task, bulk: bool = True) -> Configuration:
    """Return the configuration without the options that a task does not allow; `bulk` as in `validate`."""
    if not isinstance(configuration, Block):
        return configuration
    c, interleaved = configuration, task.complex and not task.planar
    stages = c.stages if c.direct else min(c.stages, 2)
    if stages == 1 and c.block[2] < task.K:
        stages = 2
    persistent = c.persistent and _one_block(c, task) and c.products == 1 and c.direct
    allowed = replace(c, stages=stages, persistent=persistent)
    flat = c.flat and _can_be_flat(allowed, task)
    staged = (c.staged or (c.flat and not flat)) and not interleaved
    return replace(allowed, flat=flat, bulk=c.bulk and bulk and flat and persistent, staged=staged)


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
        count = len(known[name]) if isinstance(known[name], tuple) else 1
        if len(numbers) != count:
            raise InputError(f"{part}: {name} has {count} number{'s' * (count > 1)}, not {len(numbers)}")
        values[name] = numbers if isinstance(known[name], tuple) else type(known[name])(numbers[0])
    configuration: Configuration = KINDS[kind](**values)
    return configuration
