"""A GEMM of somebody else's, asked with care: each call is checked, and what contradicts a tree is said in a line."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError, entries, unknown_name
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.tree import Tree
from fpemu.probing.naming import chains_of, name_order
from fpemu.probing.reveal import Revealed, reveal
from fpemu.rounding import round_to


class CallError(InputError):
    """A callable did what no product does: it raised, changed its inputs, or returned something else."""


class Watched:
    """A callable (A, B) -> D, counted, timed and checked at every call.

    Arrays of PyTorch and CuPy are taken as results too, from the GPU as well.

    Attributes
    ----------
    calls : int
    seconds : float
        Spent in the callable.
    """

    def __init__(self, gemm: Callable[[Any, Any], Any], name: str, tell: Callable[[int], None] | None = None):
        self.gemm, self.name, self.tell = gemm, name, tell
        self.calls, self.seconds = 0, 0.0

    def __call__(self, A: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
        a, b = A.copy(), B.copy()
        self.calls += 1
        start = time.perf_counter()
        try:
            D = _array(self.gemm(a, b))
        except (Exception, SystemExit) as problem:
            what = " ".join(str(problem).split())[:200]
            given = f"A {a.shape} and B {b.shape} in {a.dtype}"
            raise CallError(f"{self.name} raised {type(problem).__name__} for {given}: {what}") from problem
        self.seconds += time.perf_counter() - start
        code = f"u{A.itemsize}"
        for used, sent, which in ((a, A, "A"), (b, B, "B")):
            if not np.array_equal(used.view(code), sent.view(code)):
                raise CallError(f"{self.name} changes its input {which}, so that later calls would see other numbers")
        if D.shape != (len(A), B.shape[1]):
            want = (len(A), B.shape[1])
            raise CallError(f"{self.name} returned an array of shape {D.shape}, and A B has shape {want}")
        if D.dtype.kind not in "fiu":
            raise CallError(f"{self.name} returned {D.dtype}, not numbers")
        if self.tell is not None:
            self.tell(self.calls)
        return D


def _array(D: Any) -> NDArray[Any]:
    if hasattr(D, "detach"):  # PyTorch
        D = D.detach().cpu()
        D = D.float() if "bfloat16" in str(D.dtype) else D
        D = D.numpy()
    elif hasattr(D, "get") and hasattr(D, "device"):  # CuPy
        D = D.get()
    return np.asarray(D)


def function(target: str) -> Callable[..., Any]:
    """The function that "FILE.py:FUNCTION" names. The file is run; what lies beside it can be imported, as by a script.

    Raises
    ------
    InputError
        No such file or function, or a file that cannot be run.
    """
    name, colon, attribute = target.rpartition(":")
    if not colon or not name.endswith(".py") or not attribute:
        raise InputError(f"{target!r} is not FILE.py:FUNCTION")
    path = Path(name)
    if not path.is_file():
        raise InputError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(f"fpemu_user_{path.stem}", path)  # a name that hides no other module
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)  # stays: functions import as well
    sys.modules[spec.name] = module  # classes and Triton's kernels look themselves up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        what = " ".join(str(problem).split())[:200]
        raise InputError(f"{name} cannot be run: {type(problem).__name__}: {what}") from problem
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise unknown_name(f"function of {name}", attribute, known)
    found: Any = getattr(module, attribute)
    if not callable(found):
        raise InputError(f"{target} is {type(found).__name__}, not a function")
    return found


def find(
    gemm: Watched, k: int, spec: MmaSpec | None, *, fmt: str, out: str | None, shape: tuple[int, int], at: int = 0,
) -> Revealed:  # fmt: skip
    """`fpemu.probing.reveal` of a callable nothing is known of.

    Raises
    ------
    InputError
        As `reveal`, with what the callable does instead of adding by a tree where that can be told: results that differ
        from call to call or from place to place, sums that are exact.
    """
    inputs = formats.get(fmt)
    M, N = shape
    A, B = operands(inputs, M, k, N, 1)
    first, second = gemm(A, B), gemm(A, B)
    other = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    if other.any():
        raise InputError(
            f"{gemm.name} returns other results for the same operands ({entries(other, second)}, before that"
            f" {first[other][0]}): it has no one order (atomic additions?)"
        )
    if not np.isfinite(first).all():
        raise InputError(
            f"{gemm.name} returns what is not finite for random operands: {entries(~np.isfinite(first), first)}"
        )
    few = np.zeros((M, k), A.dtype)
    few[:, : min(k, 8)] = unit = _scale(inputs)[1]
    left = gemm(few, np.ones((k, N), A.dtype))[0, 0]
    if left != min(k, 8) * unit:
        raise InputError(
            f"{gemm.name} makes {left:g} of {min(k, 8)} products of {unit:g}, the probe's units: it flushes subnormal"
            " numbers, or rounds its inputs"
        )
    try:
        found = reveal(gemm, k, spec, fmt=fmt, out=out, shape=shape, at=at)
    except CallError:
        raise
    except InputError as problem:
        why = contradiction(gemm, k, inputs, shape)
        raise InputError(f"{gemm.name}: {why or problem}") from problem
    if spec is not None and longest(found.tree) > spec.block:
        raise InputError(
            f"{gemm.name} adds {longest(found.tree)} products at once, and a block of {spec} takes {spec.block}: it is"
            " another instruction, or its order does not show"
        )
    if spec is None:  # the names above are those of blocks as long as can be
        found = dataclasses.replace(found, order=named(found.tree, k, inputs) or found.order)
    return found


def _scale(inputs: formats.FloatFormat) -> tuple[float, float]:
    """M and the unit of the probes, as in `fpemu.probing.probes`."""
    span = 200 if inputs.name == "fp64" else 60
    return 2.0 ** min(inputs.emax, span), 2.0 ** max(inputs.emin - inputs.precision + 1, -span)


def operands(fmt: formats.FloatFormat, M: int, K: int, N: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Normal random numbers of a format, in the dtype in which the callable gets them."""
    rng = np.random.default_rng(seed)
    dtype = {"fp16": np.float16, "fp64": np.float64}.get(fmt.name, np.float32)
    A, B = (np.asarray(round_to(rng.standard_normal(shape), fmt)).astype(dtype) for shape in ((M, K), (K, N)))
    return A, B


def longest(tree: Tree) -> int:
    """Positions of the longest block of a tree's instructions; 1 where there are none."""
    blocks = (len(b) for chain in chains_of(tree) if chain.kind == "instruction" for b in chain.blocks)
    return max(blocks, default=1)


def named(tree: Tree, k: int, inputs: formats.FloatFormat) -> KOrder | None:
    """The order that a tree is where the longest of its blocks is the instruction's."""
    return None if inputs.name in ("fp32", "fp64") else name_order(tree, k, plain(inputs, longest(tree)))


def plain(inputs: formats.FloatFormat, block: int) -> MmaSpec:
    """An instruction with blocks of a length, of which nothing else is known."""
    return MmaSpec(inputs, inputs, "fp32", k=block, block=block, F=25)


def contradiction(gemm: Watched, k: int, inputs: formats.FloatFormat, shape: tuple[int, int]) -> str | None:
    """What in a callable's answers fits no tree, or None where that does not show."""
    place = disagreement(gemm, k, inputs, shape)
    if place:
        axis = "rows" if place[0] else "columns"
        return (
            f"{axis} of D disagree: for equal operands D[0, 0] and D{place} differ, so the order depends on the place;"
            f" probe a shape with fewer {axis}"
        )
    if k < 4:
        return None
    large, unit = _scale(inputs)
    A, B = operands(inputs, shape[0], k, shape[1], 2)
    for i, j in dict.fromkeys([(0, k - 1), (0, 1), (k // 2, k - 1), (0, k // 2)]):
        between = [q for q in range(k) if q not in (i, j)][:: max(1, k // 8)][:8]
        A[:], B[:] = 0, 1
        A[:, between] = unit
        A[:, i], A[:, j] = large, -large
        if gemm(A, B)[0, 0] != len(between) * unit:
            return None
    return (
        f"no unit is lost beside {large:g} and {-large:g}: the sums are exact, compensated or in a format wider than"
        " the results, and show no order"
    )


def disagreement(gemm: Watched, k: int, inputs: formats.FloatFormat, shape: tuple[int, int]) -> list[int]:
    """A place of D at which equal operands give another sum than at [0, 0]; [] where none was seen."""
    if max(shape) == 1:
        return []
    for seed in range(3, 9):
        A, B = operands(inputs, 1, k, 1, seed)
        D = gemm(np.repeat(A, shape[0], axis=0), np.repeat(B, shape[1], axis=1)).astype(np.float64)
        down, across = D[:, 0] != D[0, 0], D[0] != D[0, 0]
        if down.any():
            return [int(np.argmax(down)), 0]
        if across.any():
            return [0, int(np.argmax(across))]
        if (D[0, 0] != D).any():
            return [int(x) for x in np.argwhere(D[0, 0] != D)[0]]
    return []
