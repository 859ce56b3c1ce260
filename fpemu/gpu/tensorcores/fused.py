"""Every scheme that multiplies words, on mma.sync: the kernel of ``kernels/split_gemm.cu``, and which one runs what.

One kernel reads fp32 operands, splits them on their way into shared memory, and multiplies, sums and joins the words as
the scheme's plan says. Orders that it does not know, and plans whose sums do not fit into registers, are left to
`fpemu.gpu.tensorcores.general`, which takes any.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from fpemu.errors import InputError
from fpemu.gpu import device
from fpemu.gpu.kernel import Kernel, Prepared, Room
from fpemu.gpu.matrices import Matrix
from fpemu.gpu.tensorcores import operation
from fpemu.gpu.tensorcores import source as text
from fpemu.gpu.tensorcores.general import GeneralKernel
from fpemu.gpu.tensorcores.source import Fused, Tile
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.perfmodel import legemm
from fpemu.schemes.base import Scheme, SplitScheme
from fpemu.schemes.fp16 import Half

SHARED = 160 * 1024  # bytes of shared memory that a block may have on every GPU of sm_80 and sm_90


def kernel(
    scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None = None, *,
    tile: Tile | None = None, pipeline: bool = True, general: bool = False,
) -> Kernel | None:  # fmt: skip
    """The mma.sync kernel for products of a shape (M, N, K).

    Parameters
    ----------
    scheme : Scheme
        With all choices made.
    spec : MmaSpec
        The instruction asked for; wgmma's are run where mma.sync has the same arithmetic.
    order : KOrder, optional
        Order over K inside every accumulator.
    tile : Tile, optional
        One of `tiles`; default: by LE-GEMM's tile model.
    pipeline : bool
        False: fetch, split and multiply one after another, to see what the pipeline is worth.
    general : bool
        True: the kernels for any order, though one would do.

    Returns
    -------
    Kernel, or None if the GPU's instructions have no such arithmetic, or rules and plan are not all of the scheme.

    Raises
    ------
    InputError
        An order that the scheme does not take; a tile that the plan does not fit.
    """
    if spec is None or not by_plan(scheme):
        return None
    assert isinstance(scheme, SplitScheme)
    row = stand_in(spec)
    if row is None and spec.instruction != "wgmma":
        return None
    if scheme.plan().accumulators == "none" and order is not None and order.promote is not None:
        raise InputError("no chain outlives a step here (element-wise), so order takes a KOrder without promote")
    M, N, K = shape
    how = None if general or row is None else text.fused(scheme.plan(), row, order, K)
    known = [] if how is None or row is None else tiles(scheme, row, how)
    if not known:
        if tile is not None:
            raise InputError(f"{scheme.name}: no tile fits this order or so many sums; leave tile= out")
        return GeneralKernel(scheme, spec, spec if row is None else row, order)
    assert how is not None
    assert row is not None
    if tile is None:
        tile = choose(known, M, N)
    elif (tile.M, tile.N) not in [(t.M, t.N) for t in known]:
        raise InputError(f"{scheme.name}: no tile {tile}; it has {', '.join(map(str, known))}")
    return FusedKernel(scheme, spec, row, order, how, tile if pipeline else text.replace(tile, pipeline=False))


def by_plan(scheme: Scheme) -> bool:
    """Whether rules and plan are all of a scheme; one with a product of its own has kernels of its own."""
    return isinstance(scheme, SplitScheme) and type(scheme).product in (SplitScheme.product, Half.product)


def stand_in(spec: MmaSpec) -> MmaSpec | None:
    """The mma.sync row of the same architecture and arithmetic; None if `source` knows of none."""
    fields = ("a_format", "b_format", "c_format", "d_format", "k", "block", "arithmetic", "F", "E0", "final",
              "fraction_bits", "nan_code")  # fmt: skip
    for row in catalog.rows():
        same = all(getattr(row, f) == getattr(spec, f) for f in fields) and row.architecture == spec.architecture
        if same and row.instruction == "mma" and str(row.a_format) in text.BYTES and row.architecture not in text.OLD:
            return row
    return None


def tiles(scheme: SplitScheme, spec: MmaSpec, how: Fused) -> list[Tile]:
    """The tiles that the plan of a scheme can have, largest first."""
    return text.tiles(how, text.words(scheme), text.BYTES[str(spec.a_format)], SHARED)


def tiles_of(kernel: Kernel) -> list[Tile]:
    """The tiles that a kernel of this module could have, largest first; none for the kernels of any order."""
    return tiles(kernel.scheme, kernel.row, kernel.how) if isinstance(kernel, FusedKernel) else []


def choose(known: list[Tile], M: int, N: int) -> Tile:
    """The tile of most operations a byte (LE-GEMM, Equation 15), times the share of the work that counts.

    Blocks are made in rounds, one a multiprocessor; what lies beyond D, or idles in the last round, does not count.
    """

    def value(tile: Tile) -> float:
        rounds = -(-(-(-M // tile.M) * -(-N // tile.N)) // _multiprocessors())
        share = M * N / (rounds * _multiprocessors() * tile.M * tile.N)
        return legemm.ratio(legemm.Tile(tile.M, tile.N, tile.K)) * share

    return max(known, key=value)


@lru_cache(maxsize=1)
def _multiprocessors() -> int:
    if device.missing() is not None:
        return 132
    cuda = device._enter()
    kind = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return int(device.check(cuda.cuDeviceGetAttribute(kind, device.check(cuda.cuCtxGetDevice()))))


class FusedKernel(Kernel):
    """One kernel that reads fp32 operands and writes D.

    Operands prepared without exponents and special rows (on_range="raise") have words that hold them, or an error
    follows: what cannot occur there is not looked for.
    """

    def __init__(
        self, scheme: SplitScheme, spec: MmaSpec, row: MmaSpec, order: KOrder | None, how: Fused, tile: Tile
    ) -> None:
        self.scheme: SplitScheme = scheme
        self.spec, self.order, self.tile = spec, order, tile
        self.name = f"mma {tile}"
        self.row, self.how = row, how
        self._room = Room()
        self._shared = tile.shared(text.words(scheme), text.BYTES[str(row.a_format)])
        self._modules: dict[tuple[tuple[str, str], bool, bool, bool], device.Module] = {}
        self._batches: dict[bytes, device.Buffer] = {}

    def prepare(self, X: Matrix, who: str, on_range: str) -> Prepared:
        return operation.prepare(self.scheme, X, who, on_range, self._room)

    def source(self, layouts: tuple[str, str], eights: bool, scaled: bool, special: bool) -> str:
        """The kernel's text for operands that lie in memory so; parameters as those of `source.source`."""
        return text.source(self.scheme, self.row, self.how, self.tile, layouts, eights, scaled, special)

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        if self.how.longest is not None and a.source.shape[-1] > self.how.longest:
            raise InputError(f"{self.name} was made for K up to {self.how.longest}, not {a.source.shape[-1]}")
        problem = operation.describe(self, a, b, D, alpha, beta, C)
        table = operation.batches(a.source, b.source, C, D)
        if table is not None:
            content = table.tobytes()
            if content not in self._batches:
                self._batches = {content: device.Buffer.of(table)}
            problem["batches"] = self._batches[content].pointer
        M, N = D.shape[-2:]
        blocks = -(-M // self.tile.M) * -(-N // self.tile.N) * prod(D.shape[:-2])
        if not blocks:
            return
        scaled, special = (
            x is not None or y is not None for x, y in ((a.exponents, b.exponents), (a.special, b.special))
        )
        layouts = operation.layout(a.source, "A"), operation.layout(b.source, "B")
        key = (layouts, a.source.shape[-1] % 8 == 0, scaled, special)
        if key not in self._modules:
            self._modules[key] = device.Module(self.source(*key), name="split_gemm.cu")
        self._modules[key].launch("split_gemm", blocks, self.tile.threads, problem, shared=self._shared, wait=False)
