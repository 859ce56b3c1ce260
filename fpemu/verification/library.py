"""``fpemu verify library``: products of cuBLAS, called through PyTorch, against the emulation by the tabulated orders.

Up to 32 rows and columns of each product are compared. Products of shapes outside the table are compared by orders that
are revealed first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpemu import gpu
from fpemu.errors import InputError
from fpemu.library import LAYOUTS, cublas
from fpemu.library.emulation import predict_entries
from fpemu.library.families import lost_terms as terms_lost_by
from fpemu.library.heuristic import Heuristic
from fpemu.library.products import lookup, orders
from fpemu.library.tables import Product, digest_of, sample_indices
from fpemu.verification import records
from fpemu.verification.cases import codes
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import Group, Suite, difference

Shape = tuple[int, int, int]
_SECONDS = 60.0  # time limit of the probes of one new shape
_LARGEST = 3000  # size of a new product
_NEW = "new "


def drawn(count: int, types: Sequence[str], seed: int) -> list[Product]:
    """Return the table's products of `count` drawn shapes, of all shapes if 0."""
    known = [product for product in orders("cublas") if product.type in types]
    shapes = sorted({(product.M, product.N, product.K) for product in known})
    if 0 < count < len(shapes):
        chosen = {shapes[i] for i in np.random.default_rng(seed).choice(len(shapes), count, replace=False)}
        known = [product for product in known if (product.M, product.N, product.K) in chosen]
    return known


def new_shapes(count: int, seed: int) -> list[Shape]:
    """Return shapes with sizes from 1 to 3000, drawn evenly in their logarithm."""
    rng = np.random.default_rng([seed, 1])
    sizes = [np.exp2(rng.uniform(0, np.log2(_LARGEST), 3)) for _ in range(count)]
    return [(int(M), int(N), int(K)) for M, N, K in sizes]


def lost_terms(count: int, seed: int) -> list[tuple[str, Shape, int, int]]:
    """Count the terms that cuBLASLt leaves out of products of ones with many splits of K.

    Returns
    -------
    list of (type, (M, N, K), number of missing terms, number by `fpemu.library.lost_terms`)
        Random products of which either number is positive.
    """
    torch, rng = cublas.torch(), np.random.default_rng(seed)
    results = []
    for kind, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        heuristic = Heuristic(kind, "TN")
        M, N = rng.choice([1, 8, 16, 32, 64], (2, count))
        K = rng.integers(20, 2000, count) * 64 + rng.choice([8, 16, 24], count)
        for shape in zip(M.tolist(), N.tolist(), K.tolist(), strict=True):
            m, n, k = shape
            a, b = (torch.ones(size, k, dtype=dtype, device="cuda") for size in (m, n))
            d = torch.empty(m, n, device="cuda")
            expected = len(terms_lost_by(heuristic.multiply(a, b.t(), d), k))
            missing = k - int(d.min())
            if missing or expected:
                results.append((kind, shape, missing, expected))
    return results


def versions(device: dict[str, str]) -> str:
    """The version and GPU of the table beside those of a machine, as `cublas.environment` states them."""
    table = next(orders("cublas"))
    here = f"cuBLAS {device['cublas']} on {device['gpu']}"
    if table.version == device["cublas"] and table.hardware in device["gpu"]:
        return f"{here}, as in the table"
    return f"{here}; the table is of cuBLAS {table.version} on {table.hardware}, which can choose other orders"


class Library(Suite):
    """Verification of the emulation of cuBLAS on drawn `shapes` of the table (0: all) and on `new` random shapes."""

    name = "library"
    about = (
        "Products of cuBLAS compared with the emulation by the orders of the table (facts.table), in up to 32 rows and"
        " columns. digest: of the whole product; digests.sample: of the compared entries. The groups 'new' are products"
        " of shapes outside the table; facts: the revealed order, and the numbers of probes and calls"
    )

    def __init__(self, seed: int, types: Sequence[str], shapes: int = 20, new: int = 0) -> None:
        super().__init__(seed)
        self._environment = cublas.environment()
        known = [(p.type, p.layout, (p.M, p.N, p.K), "") for p in drawn(shapes, types, seed)]
        known += [(t, layout, shape, _NEW) for shape in new_shapes(new, seed) for t in types for layout in LAYOUTS]
        self.groups = {
            f"{prefix}{t} {layout} {'x'.join(map(str, shape))}": Group(section=f"{prefix}{t} {layout}", alone=True)
            for t, layout, shape, prefix in known
        }

    def device(self) -> dict[str, str]:
        return {**self._environment, "driver": records.driver()}

    def facts(self) -> dict[str, Any]:
        return {"table": versions(self._environment)}

    def run(self, group: str) -> Outcome:
        layout: Any
        kind, layout, sizes = group.removeprefix(_NEW).split()
        M, N, K = map(int, sizes.split("x"))
        if group.startswith(_NEW):
            return self._reveal(group, kind, layout, (M, N, K))
        product = lookup("cublas", kind, (M, N, K), layout=layout)
        A, B, D, digest = cublas.CublasProduct(kind, layout, (M, N, K)).sampled(self.seed)
        count, place = difference(codes(D), codes(predict_entries(product, A, B, *sample_indices(M, N))))
        sample = digest_of(D)
        return Outcome(group, 1, D.size, count, digest=digest, digests={"sample": sample}, first=[place] * bool(place))

    def _reveal(self, group: str, kind: str, layout: str, shape: Shape) -> Outcome:
        """Compare a product after its order was revealed."""
        product = cublas.CublasProduct(kind, layout, shape, deadline=time.monotonic() + _SECONDS)
        outcome = Outcome(group, 1)
        try:
            order, equal = cublas.find(product, self.seed, device="cpu" if gpu.available() else "cuda")
            outcome.facts["order"], outcome.outputs, outcome.mismatches = order, shape[0] * shape[1], int(not equal)
        except (InputError, TimeoutError) as problem:
            outcome.failed, outcome.first = 1, [str(problem)]
        outcome.facts |= {"probes": product.probes, "calls": product.calls}
        return outcome

    def summary(self, record: Record) -> list[str]:
        return [record.facts["table"]]
