"""``fpemu verify tallskinny``: the tall and skinny kernels against `fpemu.simt`, bit by bit.

Every size from 1 to 130 occurs as m, as k and as n; larger products follow. Operands are of the classes of
`fpemu.mma.operand_streams`: subnormals, overflow, cancellation, zeros of both signs, NaN and Inf among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fpemu import simt
from fpemu.gpu import tallskinny
from fpemu.mma import operand_streams as streams
from fpemu.verification import cases, paths
from fpemu.verification.cases import Array, Case, Computed, Draw, Product, Result, codes
from fpemu.verification.paths import Call
from fpemu.verification.suite import Group, ProductSuite, SkippedError

FORMATS = ("fp32", "fp64")
_TILES = ("t1", "t2", "t3")
KERNELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "V0": ("tsm2", {"version": "V0"}, ()),
    "V1": ("tsm2", {"version": "V1"}, ()),
    "V2": ("tsm2", {"version": "V2"}, _TILES),
    "V3": ("tsm2", {"version": "V3"}, _TILES),
    "opt 1": ("ism2", {"optimisation": 1}, (*_TILES, "tcf")),
    "opt 2": ("ism2", {"optimisation": 2}, (*_TILES, "tcf")),
    "TSM2 hopper": ("tsm2", {"version": "hopper"}, ()),
    "ISM2 hopper": ("ism2", {"optimisation": "hopper"}, ("tcf",)),
}
"""Function of `fpemu.gpu.tallskinny` of each kernel, its arguments, and the names of the arguments that cases draw"""
LAYOUTS = ("columns", "rows", "columns padded", "rows padded", "columns odd", "rows odd", "spaced")
"""Memory layouts of a matrix. padded: the leading dimension is a multiple of 16 bytes; odd: it is not"""
_COMBINATIONS = ((0, 0, 0), (1, 1, 1), (2, 2, 2), (4, 4, 4), (5, 5, 5), (6, 6, 6), (0, 1, 3), (3, 6, 0))
"""Layouts of A, B and C: few, since kernels are compiled for them"""
SWEPT = 130
_ROWS = (1, 31, 64, 130, 97, 8, 33, 256, 300)
_INNER = (2, 7, 16, 33, 64, 130)
_COLUMNS = (2, 3, 8, 16, 33)
LARGER = cases.shapes("""
1000x1000x16 4100x257x8 300x4000x4 20000x16x16 9999x2x2 5001x7x5 2049x513x2 700x96x40 10000x8x8 1x10000x16 640x640x1
12345x4x4 2500x33x3 515x2051x6
""")
"""m, k and n of the products after the sweep"""
CASES = 3 * SWEPT + len(LARGER)
_SIZES = ((256, 1, 4), (96, 3, 3), (64, 8, 2), (128, 16, 8), (32, 20, 1))
"""t1, t2 and t3: few, each is a kernel to compile"""
_KINDS = tuple(kind for kind in streams.CLASSES if kind != "deep")


def case(fmt: str, number: int, seed: int) -> Case:
    """Return a product. Its options are arguments of the kernels: t1, t2, t3 and tcf.

    >>> [case("fp32", number, 0).sizes for number in (0, 387)]
    [(1, 3, 2), (130, 3, 64)]
    """
    draw = Draw(seed, "tall and skinny", fmt, number)
    if number < 3 * SWEPT:
        sizes = [draw.pick(_ROWS), draw.pick(_INNER), draw.pick(_COLUMNS)]
        sizes[number % 3] = number // 3 + 1
    else:
        sizes = list(LARGER[(number - 3 * SWEPT) % len(LARGER)])
    m, k, n = sizes
    kinds = draw.pick(_KINDS), draw.pick(_KINDS)
    if k > 16 and "any-bits" in kinds and number % 2:  # otherwise nearly every long sum is NaN
        kinds = "mixed", "mixed"
    layouts = tuple(LAYOUTS[index] for index in draw.pick(_COMBINATIONS))
    tiles = draw.pick([tiles for tiles in _SIZES if tiles[1] <= n])
    key = draw.word()
    options = {**dict(zip(_TILES, tiles, strict=True)), "tcf": draw.pick((1, 2, 3))}
    return Case(fmt, number, key, (m, n, k), kinds, layouts, options=options)


def operands(case: Case) -> tuple[Array, Array]:
    """Return A and B, values in C order."""
    m, n, k = case.sizes
    row = simt.SPECS[case.subject].replace(k=k)
    a = cases.drawn(row, "A", case.kinds[0], Draw(case.key, "A").word(), (m, k))
    b = cases.drawn(row, "B", case.kinds[1], Draw(case.key, "B").word(), (n, k))
    return a, np.ascontiguousarray(b.T)


def arrange(x: Array, layout: str) -> Array:
    """Return a matrix in one of `LAYOUTS`, NaN around it."""
    length, vector = x.shape[0 if layout.startswith("columns") else 1], 16 // x.itemsize
    pads = {"padded": vector + -length % vector, "odd": 1 + length % 2}
    return cases.arrange(x, layout.replace("odd", "padded"), pads.get(layout.rpartition(" ")[2], 0))


def emulate(A: Array, B: Array, fmt: str) -> Array:
    """Return the codes of the product by `fpemu.simt`."""
    with np.errstate(all="ignore"):
        return codes(np.asarray(simt.gemm(np.ascontiguousarray(A), np.ascontiguousarray(B), fmt=fmt)))


# --- matrices of more than 2^32 elements
HUGE_SHAPES = ((65600, 65600, 2), (65603, 65601, 2), (2**28 + 12, 16, 2), (2**28 + 13, 17, 3))
"""m, k and n: strides that are multiples of 16 bytes and strides that are not; a large A, and one of many rows"""
HUGE_KERNELS = ("V1", "V3", "opt 1", "opt 2", "TSM2 hopper", "ISM2 hopper")
HUGE_CASES = 2 * len(HUGE_SHAPES) * len(HUGE_KERNELS)


class Huge(Product):
    """Some rows of a product of more than 2^32 elements, whose operands are drawn on the GPU."""

    @cached_property
    def _matrices(self) -> tuple[Any, Any, Any]:
        """A, B and C on the GPU."""
        torch, (m, n, k) = paths.load_torch(), self.case.sizes
        kind: Any = {"dtype": getattr(torch, f"float{self.case.subject[2:]}"), "device": "cuda"}
        by_rows, shapes = self.case.layouts == ("rows",), ((m, k), (k, n), (m, n))
        try:
            A, B, C = (torch.empty(x, **kind) if by_rows else torch.empty(x[::-1], **kind).T for x in shapes)
        except torch.OutOfMemoryError as problem:
            raise SkippedError("too little memory") from problem
        generator = torch.Generator("cuda").manual_seed(self.case.key)
        for X in (A, B):
            X.uniform_(-1, 1, generator=generator)
        return A, B, C.fill_(np.nan)

    @cached_property
    def _rows(self) -> Any:
        """The first and last rows, those near the indices 2^31 and 2^32, and others spread over all."""
        m, _, k = self.case.sizes
        spread = np.linspace(0, m - 1, 18).astype(np.int64)
        near = [min(at // k + d, m - 1) for at in (2**31, 2**32) for d in (0, 1)]
        return paths.load_torch().as_tensor(np.unique([*spread, *near, m - 2, m - 1]), device="cuda")

    def compute(self, path: str) -> Computed:
        (A, B, C), (function, fixed, _) = self._matrices, KERNELS[self.case.options["kernel"]]
        getattr(tallskinny, function)(A, B, out=C, **fixed)
        return Computed(codes(C[self._rows].cpu().numpy()))

    def emulate(self) -> Result:
        A, B, _ = self._matrices
        return emulate(A[self._rows].cpu().numpy(), B.cpu().numpy(), self.case.subject)


@dataclass
class TallSkinny(ProductSuite):
    """Verification of the tall and skinny kernels on every `every`-th product; a group is a kernel in a format.

    huge: also matrices of more than 2^32 elements. Default of `names`: the kernels that the GPU has.
    """

    name = "tallskinny"
    about = (
        "products compared with fpemu.simt.gemm. counts: outputs by path. digests: of small products, by number. The"
        " groups 'huge' are some rows of products of more than 2^32 elements"
    )
    supported = paths.WITHOUT_PLAN
    kept = 12
    decisive = ("every",)
    every: int = 1
    huge: bool = field(default=False, kw_only=True)
    names: Sequence[str] | None = field(default=None, kw_only=True)

    @cached_property
    def groups(self) -> dict[str, Group]:
        hopper = self.names is None and tallskinny.chosen(1, 1, 1)[1] == {"optimisation": "hopper"}
        known = [name for name in KERNELS if hopper or "hopper" not in name]
        names, numbers = [*known, "multiply"] if self.names is None else self.names, range(0, CASES, self.every)
        listed = {f"{name} in {fmt}": Group(numbers) for name in names for fmt in FORMATS}
        huge = {f"huge in {fmt}": Group(range(HUGE_CASES), alone=True) for fmt in FORMATS}
        return listed | huge if self.huge else listed

    def facts(self) -> dict[str, Any]:
        return {}  # a chain of fused multiply-adds has the same bits on every architecture

    def case(self, group: str, number: int) -> Case:
        kernel, _, fmt = group.rpartition(" in ")
        if kernel == "huge":
            matrices, index = divmod(number, len(HUGE_KERNELS))
            (m, k, n), layout = HUGE_SHAPES[matrices // 2], ("columns", "rows")[matrices % 2]
            options = {"kernel": HUGE_KERNELS[index], "huge": True}
            return Case(fmt, number, self.seed, (m, n, k), layouts=(layout,), options=options)
        drawn = case(fmt, number, self.seed)
        return replace(drawn, options={**drawn.options, "kernel": kernel})

    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Product:
        if "huge" in case.options:
            return Huge(case, paths=("eager",))
        kernel = case.options["kernel"]
        function, fixed, drawn = KERNELS.get(kernel, ("multiply", {}, ()))
        options = fixed | {name: case.options[name] for name in drawn}
        A, B = operands(case)
        matrices = zip((A, B, np.zeros(case.shape, A.dtype)), case.layouts, strict=True)
        A, B, C = (arrange(X, layout) for X, layout in matrices)
        by = paths.WITHOUT_PLAN if kernel == "multiply" else ("eager",)
        name, emulation = f"tallskinny.{function}", {"fmt": case.subject}
        return Call(case, name, (A, B, None), C, options, emulation, paths=by, kernel=kernel)
