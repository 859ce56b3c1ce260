"""cuBLAS on the current GPU, called through PyTorch: products, answers to the probes of `reveal`, and their orders.

`find` reveals the summation order of a product as an entry of a table. Where the order depends on the position in D
(stream-K cuts the tiles of the last wave in other ways), it is revealed at positions where no known order gives the
bits of D, until every entry is explained; tiles with one order form the map. PyTorch is imported when a product is
created.
"""

from __future__ import annotations

import importlib
import time
from importlib import metadata
from itertools import groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import choice
from fpemu.errors import InputError
from fpemu.library.emulation import predict
from fpemu.library.tables import (
    LAYOUTS,
    TYPES,
    Product,
    digest_of,
    encode,
    instruction,
    operand_values,
    sample_indices,
    summation,
)
from fpemu.mma import MmaSpec, catalog
from fpemu.mma import tree as trees
from fpemu.mma.device import Device
from fpemu.mma.tree import Sum, identical
from fpemu.probing.callables import bits
from fpemu.probing.reveal import Revealed, reveal
from fpemu.probing.trees import name_order

_BYTES = 2**27  # largest size of the operands of calls that are prepared together
_CPU = 4e9  # largest number of multiply-adds of a product emulated on the CPU
_TRIES = 100  # largest number of positions of D at which the order is revealed
_SIDES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8)  # possible heights and widths of a tile of D


def torch() -> Any:
    """PyTorch; InputError if it is not installed or finds no GPU."""
    try:
        module = importlib.import_module("torch")
    except ImportError:
        raise InputError("cuBLAS is called through PyTorch, which is not installed: pip install torch") from None
    if not module.cuda.is_available():
        raise InputError("cuBLAS needs an NVIDIA GPU, and PyTorch finds no GPU here")
    return module


def environment() -> dict[str, str]:
    """The GPU's name, and the versions of PyTorch, CUDA and cuBLAS; raises as `torch`."""
    module = torch()
    names = {"gpu": module.cuda.get_device_name(0), "torch": module.__version__, "cuda": str(module.version.cuda)}
    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return {**names, "cublas": metadata.version(package)}
        except metadata.PackageNotFoundError:
            continue
    return {**names, "cublas": "unknown"}


def architecture() -> str | None:
    """The catalogue's architecture of PyTorch's GPU; None if the catalogue has none."""
    major, minor = torch().cuda.get_device_capability()
    try:
        return catalog.architecture(f"sm_{major}{minor}")
    except InputError:
        return None


class CublasProduct:
    """torch.mm of one type, layout and shape (M, N, K) on the current GPU; InputError for another type or layout.

    The probes lie in `rows` = (first, stop) of A, or columns of B if N > M, and are read in the column (row) of D at
    `position`. After `deadline`, as counted by `time.monotonic`, they raise TimeoutError.
    """

    runs_probes = True

    def __init__(
        self,
        kind: str,
        layout: str,
        shape: tuple[int, int, int],
        rows: tuple[int, int] | None = None,
        position: int = 0,
        deadline: float = float("inf"),
    ) -> None:
        choice("type of product", kind, TYPES)
        choice("layout", layout, LAYOUTS)
        self.torch: Any = torch()
        self.kind, self.layout, (self.M, self.N, self.K) = kind, layout, shape
        self.by_columns = self.N > self.M
        self.rows = rows or (0, max(self.M, self.N))
        self.position, self.deadline = position, deadline
        self.probes = self.calls = 0
        wide = {"bf16": "bfloat16", "fp64": "float64", "tf32": "float32", "fp32": "float32"}
        self.dtype = getattr(self.torch, wide.get(kind.split("-")[0], "float16"))

    def at(self, row: int, column: int) -> CublasProduct:
        """The same product, with probes in the 32 rows (columns) around a position of D, and read at that position."""
        across, along = (column, row) if self.by_columns else (row, column)
        first = across // 32 * 32
        stop = min(first + 32, max(self.M, self.N))
        return CublasProduct(
            self.kind, self.layout, (self.M, self.N, self.K), (first, stop), along, deadline=self.deadline
        )

    def _multiply(self, a: Any, b: Any) -> Any:
        """torch.mm, in tf32 only for that type; the setting is restored."""
        self.calls += 1
        matmul = self.torch.backends.cuda.matmul
        before, matmul.allow_tf32 = matmul.allow_tf32, self.kind == "tf32"
        try:
            wide = {"out_dtype": self.torch.float32} if self.kind in ("fp16", "bf16") else {}
            return self.torch.mm(a, b, **wide)
        finally:
            matmul.allow_tf32 = before

    def product(self, A: Any, B: Any) -> NDArray[Any]:
        """D of NumPy arrays A and B, in the product's layout."""
        if (np.shape(A), np.shape(B)) != ((self.M, self.K), (self.K, self.N)):
            shape = self.M, self.N, self.K
            raise InputError(f"A of shape {np.shape(A)} and B of shape {np.shape(B)} do not form the product {shape}")

        def on_gpu(x: Any) -> Any:
            return self.torch.from_numpy(np.ascontiguousarray(x)).to("cuda").to(self.dtype)

        b = on_gpu(np.asarray(B).T).t() if self.layout == "TN" else on_gpu(B)
        D: NDArray[Any] = self._multiply(on_gpu(A), b).cpu().numpy()
        return D

    def __call__(self, base: NDArray[Any], where: NDArray[Any], value: NDArray[Any], b: float) -> NDArray[Any]:
        """As `fpemu.probing.probes.Rows`; the operands of many calls are laid out at once."""
        t = self.torch
        self.probes += len(where)
        line = t.from_numpy(np.ascontiguousarray(base, np.float64)).to(self.dtype).cuda()
        index = t.from_numpy(np.ascontiguousarray(where, np.int64)).cuda()
        values = t.from_numpy(np.ascontiguousarray(value, np.float64)).to(self.dtype).cuda()
        first, stop = self.rows
        width = stop - first
        down = self.by_columns and self.layout == "NN"  # B is stored as (K, N), and a probe is one of its columns
        lines = max(self.M, self.N)
        stride = -(-lines * self.K // 256) * 256  # each operand begins at an address aligned like an allocation
        most = max(1, _BYTES // (stride * line.element_size()))
        other = t.full((min(self.M, self.N), self.K), b, dtype=self.dtype, device="cuda")
        if not self.by_columns and self.layout == "NN":
            other = other.t().contiguous()
        answers = []
        for lo in range(0, len(where), most * width):
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"{self.calls} calls, {self.probes} probes")
            some, vals = index[lo : lo + most * width], values[lo : lo + most * width]
            count = -(-len(some) // width)
            n = t.arange(len(some), device="cuda")
            call, row = (n // width)[:, None], (first + n % width)[:, None]
            memory = t.empty(count * stride, dtype=self.dtype, device="cuda")
            if down:
                many = memory.as_strided((count, self.K, lines), (stride, lines, 1))
                many.copy_(line[:, None].expand(count, self.K, lines))
                many[call, some, row] = vals
            else:
                many = memory.as_strided((count, lines, self.K), (stride, self.K, 1))
                many.copy_(line.expand(count, lines, self.K))
                many[call, row, some] = vals
            outputs = []
            for i in range(count):
                if self.by_columns:
                    D = self._multiply(other, many[i] if down else many[i].t())[self.position]
                else:
                    D = self._multiply(many[i], other if self.layout == "NN" else other.t())[:, self.position]
                outputs.append(D[first:stop])
            answers.append(t.stack(outputs).reshape(-1)[: len(some)])
        out: NDArray[Any] = t.cat(answers).double().cpu().numpy()
        return out

    def _tensors(self, seed: int) -> tuple[Any, Any, Any]:
        """A, B and D of `fpemu.library.tables.operands`, on the GPU."""
        t = self.torch
        out = []
        for n, shape in enumerate(((self.M, self.K), (self.K, self.N))):
            index = t.arange(shape[0] * shape[1], dtype=t.int64, device="cuda")
            out.append(operand_values(index, self.kind, 2 * seed + n, t.float64).to(self.dtype).reshape(shape))
        a, b = out
        if self.layout == "TN":
            b = b.t().contiguous().t()
        return a, b, self._multiply(a, b)

    def _arrays(self, *tensors: Any) -> tuple[NDArray[Any], ...]:
        """NumPy arrays; bf16 values are stored in float32."""
        return tuple((x.float() if x.dtype == self.torch.bfloat16 else x).cpu().numpy() for x in tensors)

    def run(self, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """A, B and D of a seed's operands."""
        A, B, D = self._arrays(*self._tensors(seed))
        return A, B, D

    def sampled(self, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], str]:
        """A[rows], B[:, columns] and D at `sample_indices`, and the digest of all of D."""
        a, b, d = self._tensors(seed)
        rows, columns = sample_indices(self.M, self.N)
        on_gpu = [self.torch.from_numpy(x).cuda() for x in (rows, columns)]
        A, B, D = self._arrays(a[on_gpu[0]], b[:, on_gpu[1]], d)
        return A, B, D[np.ix_(rows, columns)], digest_of(D)


# --- the order of a product as an entry of a table


def find(probed: CublasProduct, seed: int, *, device: Device = "cpu") -> tuple[dict[str, Any], bool]:
    """The order of a product as an entry of a table, and whether it reproduces the product of the seed's operands.

    Raises
    ------
    InputError, TimeoutError
        The probes fit no summation tree at any position.
    """
    mode = _arithmetic(probed)
    extra = {} if mode == probed.kind else {"as": mode}
    spec = instruction(mode)
    entry: dict[str, Any] | None
    try:
        entry = {**_entry(_revealed(probed, spec), spec), **extra}
    except InputError as problem:
        if "fit no tree" not in str(problem):
            raise
        entry = None
    A, B, D = probed.run(seed)
    if entry is not None:
        rows, columns = sample_indices(probed.M, probed.N)
        sample = predict(tabulated(probed, entry), A, B, rows, columns)
        if (bits(sample) == bits(D[rows][:, columns])).all():
            return entry, True
    if device != "cpu" or probed.M * probed.N * probed.K <= _CPU:
        return {**_by_position(probed, entry, extra, spec, A, B, D, device), **extra}, True
    if entry is None:
        raise InputError("the results fit no tree, and D is too large for a search by positions on the CPU")
    return entry, False


def _arithmetic(probed: CublasProduct) -> str:
    """The product's type; "fp32" if fp32 inputs are not rounded to tf32, as in thin products on CUDA cores."""
    if probed.kind != "tf32":
        return probed.kind
    d = probed(np.zeros(probed.K), np.zeros((1, 1), np.int64), np.array([[1 + 2.0**-20]]), 1.0)
    return "tf32" if d[0] == 1.0 else "fp32"


def _revealed(probed: CublasProduct, spec: MmaSpec) -> Revealed:
    return reveal(probed, probed.K, spec, out=probed.kind.partition("->")[2] or None)


def _entry(revealed: Revealed, spec: MmaSpec) -> dict[str, Any]:
    """A revealed order as an entry of a table: a KOrder, with "stored" if that explains the tree, or the tree."""
    if revealed.order is not None:
        return encode(revealed.order)
    tree, exact = revealed.tree, trees.exact_products(spec)
    if isinstance(tree, Sum) and tree.stored is not None and tree.fmt is None:
        order = name_order(trees.canonical(Sum(tree.parts), exact), revealed.k, spec)
        if order is not None and order.split is not None and order.promote is None and order.join == "ascending":
            again = trees.from_order(order, revealed.k, spec)
            kept = Sum(again.parts, None, tree.stored) if isinstance(again, Sum) else again
            if identical(trees.canonical(kept, exact), tree):
                return {**encode(order), "stored": tree.stored}
    return encode(tree)


def tabulated(probed: CublasProduct, entry: dict[str, Any]) -> Product:
    """The product with an order, for emulation."""
    return Product("", "", "", probed.kind, "NN", probed.M, probed.N, probed.K, **summation(probed.kind, entry))


def _by_position(
    probed: CublasProduct,
    first: dict[str, Any] | None,
    extra: dict[str, Any],
    spec: MmaSpec,
    A: NDArray[Any],
    B: NDArray[Any],
    D: NDArray[Any],
    device: Device,
) -> dict[str, Any]:
    """A map of tiles: orders are revealed at unexplained positions until every entry of D is explained."""
    orders: list[dict[str, Any]] = []
    matches: list[NDArray[np.bool_]] = []
    draw = np.random.default_rng(probed.K)
    unexplained = np.ones(D.shape, bool)
    for turn in range(_TRIES):
        if turn == 0 and first is not None:
            entry = first
        else:
            r, c = np.argwhere(unexplained)[draw.integers(int(unexplained.sum()))]
            try:
                entry = {**_entry(_revealed(probed.at(int(r), int(c)), spec), spec), **extra}
            except InputError:
                continue
            except TimeoutError:
                break
        match = bits(predict(tabulated(probed, entry), A, B, device=device)) == bits(D)
        if entry not in orders and (match & unexplained).any():
            orders.append(entry)
            matches.append(match)
            unexplained &= ~match
        if not unexplained.any():
            return _tiled(orders, np.array(matches))
    raise InputError(
        f"the order depends on the position in D: {len(orders)} orders were revealed, and they do not explain"
        f" {unexplained.sum()} of {D.size} entries, first at {tuple(np.argwhere(unexplained)[0].tolist())}"
    )


def _tiled(orders: list[dict[str, Any]], matches: NDArray[np.bool_]) -> dict[str, Any]:
    """The largest tiles with one order each."""
    _, M, N = matches.shape
    for rows, columns in sorted(product(_SIDES, _SIDES), key=lambda side: -side[0] * side[1]):
        whole = np.logical_and.reduceat(matches, np.arange(0, M, rows), axis=1)
        whole = np.logical_and.reduceat(whole, np.arange(0, N, columns), axis=2)
        if whole.any(axis=0).all():
            of = [orders[n] for n in whole.argmax(axis=0).ravel()]
            return {"tiles": [rows, columns], "map": [[entry, len(list(run))] for entry, run in groupby(of)]}
    raise InputError(f"{len(orders)} orders explain all of D, but not by tiles")
