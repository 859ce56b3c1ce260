"""A product of a vendor library with its summation order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fpemu import mma, simt
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.tree import Tree

INPUT_DTYPES = {
    "fp16": "float16",
    "bf16": "float32",
    "tf32": "float32",
    "fp32": "float32",
    "fp64": "float64",
    "fp16->fp16": "float16",
}
TYPES = tuple(INPUT_DTYPES)
LAYOUTS = ("TN", "NN")
Layout = Literal["TN", "NN"]


@dataclass(frozen=True)
class Tiles:
    """Summation orders that depend on the position in D, such as those of stream-K kernels."""

    rows: int  # of a tile of D
    columns: int
    of: tuple[int, ...]  # for each tile of D, row by row, the index of its order
    orders: tuple[KOrder | Tree, ...]
    stored: tuple[str | None, ...]  # `Product.stored` of each order


Order = KOrder | Tree | Tiles


@dataclass(frozen=True)
class Product:
    """One product of a library, and its summation order over K.

    Attributes
    ----------
    library, version, hardware : str
        Library, its version and the GPU.
    type : str
        Format of the inputs, "fp16->fp16" where D is fp16 as well; otherwise D is fp32 (fp64 for fp64).
    layout : {"TN", "NN"}
        "NN": A (M, K) and B (K, N) in C order. "TN": B is the transpose of an (N, K) array in C order.
    M, N, K : int
        Sizes of the product.
    order : KOrder, tree or Tiles
        Summation order.
    spec : MmaSpec
        The instruction, or the fused multiply-add, of the chains.
    rounded : str or None
        Format to which the library rounds the inputs first: tf32, or None.
    stored : str or None
        Format to which the partial sums of a KOrder's slices are rounded before they are added.
    digest, sample : str
        Digests of the GPU's D for the operands of `fpemu.library.operands`: of all of it, and of a sample.
    seed : int
        Seed of those operands.
    """

    library: str
    version: str
    hardware: str
    type: str
    layout: str
    M: int
    N: int
    K: int
    order: Order
    spec: MmaSpec
    rounded: str | None
    stored: str | None
    digest: str
    sample: str
    seed: int

    def __str__(self) -> str:
        return f"{self.library} {self.version}, {self.hardware}: {self.type} {self.layout} {self.M}x{self.N}x{self.K}"


def instruction(kind: str) -> MmaSpec:
    """The instruction of a product's chains on Hopper."""
    return simt.SPECS[kind] if kind in ("fp32", "fp64") else mma.spec("hopper", kind.split("-")[0], "fp32")
