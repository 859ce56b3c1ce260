"""Operands of a sweep's cells and their exact product: drawn or read once for cells that share them, or on the GPU.

On the GPU they stay there, as do products of split schemes and the sums of the relative L2 error. A value that the GPU
does not compute is None; `fpemu.sweep.grid.evaluate` then computes it with arrays on the CPU.
"""

from __future__ import annotations

import functools
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, inputs, reference
from fpemu.arguments import as_float64
from fpemu.errors import InputError
from fpemu.metrics.analysis import scaled
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.device import Device, resolve
from fpemu.rounding import _round_to
from fpemu.schemes import Scheme, SplitScheme, words
from fpemu.schemes.call import configure
from fpemu.schemes.words import OverflowPolicy

Floats = NDArray[np.float64]
Parameters = tuple[tuple[str, Any], ...]


@functools.lru_cache(maxsize=2)
def drawn(name: str, parameters: Parameters, M: int, N: int, K: int, seed: int, fmt: str) -> Any:
    """Return A and B of a cell in the operand format of its scheme."""
    if name == "files":
        named = dict(parameters)
        *pair, digest = read(named["A"], named["B"])
        if digest != named["sha256"]:
            raise InputError(f"{named['A']} or {named['B']} has changed since the grid was made")
        return tuple(_round_to(X, formats.get(fmt)) for X in pair)
    return inputs.operands(name, M, N, K, seed, fmt, **dict(parameters))


@functools.lru_cache(maxsize=4)
def exact_product(operands: tuple[Any, ...], out: str, device: Device) -> Any:
    """Return the exact product of `drawn`, rounded once to a format."""
    return reference.matmul(*drawn(*operands), out=out, device=device)


def read(*paths: str) -> tuple[Floats, Floats, str]:
    """Return the matrices A and B of two .npy or .mtx files in fp64, and the SHA-256 of the files' bytes.

    Raises
    ------
    InputError
        A file that cannot be read, that holds no real matrix, or shapes that have no product.
    """
    matrices, digest = [], hashlib.sha256()
    for path in paths:
        try:
            content = Path(path).read_bytes()
            if Path(path).suffix == ".npy":
                X = np.load(io.BytesIO(content), allow_pickle=False)
            else:
                from scipy.io import mmread

                X = mmread(io.BytesIO(content))
                X = X.toarray() if hasattr(X, "toarray") else X
        except Exception as problem:  # NumPy and SciPy raise many kinds of exceptions for a damaged file
            raise InputError(f"{path} is not a readable .npy or .mtx file: {problem}") from problem
        matrices.append(as_float64(X, path))
        digest.update(content)
    A, B = matrices
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0] or not A.size * B.size:
        raise InputError(
            f"{' and '.join(paths)} have shapes {A.shape} and {B.shape}: matrices (M, K) and (K, N) are needed"
        )
    return A, B, digest.hexdigest()


# --- on the GPU
def cells() -> Any:
    """Return the module of the GPU's kernels for cells; `resolve` has checked that there is a GPU."""
    from fpemu.gpu.emulation import cells as on_gpu

    return on_gpu


def stays_on_gpu(sizes: tuple[int, int, int], device: Device) -> bool:
    """Return whether the matrices of a cell stay on the GPU: with "auto" if that is faster."""
    if resolve(device) == "cpu":
        return False
    return bool(cells().fits(sizes) and (device == "cuda" or cells().gains(sizes)))


def affine(name: str, parameters: dict[str, Any]) -> tuple[float, float] | None:
    """Return (low, span) if a distribution is low + span · u in fp64, u the next number of PCG64, and else None.

    No step may overflow or have a subnormal result, so that the GPU rounds as the CPU does.
    """
    exponent = parameters.get("exponent", 0)
    if parameters.get("scale", 1.0) != 1.0 or not -900 <= exponent <= 100:
        return None
    if name in ("offset_symmetric", "offset_nonnegative"):
        power = 2.0**exponent
        return (-power, 2 * power) if name == "offset_symmetric" else (0.0, power)
    if name == "positive" and exponent == 0:
        return 1.0, -1.0
    if name in ("uniform", "legemm_applications", "tsm2") and exponent == 0:
        low, span = float(parameters["low"]), float(parameters["high"]) - float(parameters["low"])
        return (low, span) if abs(low) <= 2.0**100 and 2.0**-900 <= span <= 2.0**100 else None
    return None


@functools.lru_cache(maxsize=1)
def resident(name: str, parameters: Parameters, M: int, N: int, K: int, seed: int, fmt: str) -> Resident:
    """Return the operands of `drawn` on the GPU; those of the last call are cached there."""
    return Resident(name, parameters, M, N, K, seed, fmt)


class Resident:
    """A and B of a product in the GPU's memory; the arguments are those of `drawn`."""

    def __init__(self, name: str, parameters: Parameters, M: int, N: int, K: int, seed: int, fmt: str) -> None:
        self.sizes, self._dtype = (M, N, K), formats.get(fmt).dtype
        self._operands = name, parameters, M, N, K, seed, fmt
        defaults = {} if name == "files" else inputs._get(name).defaults
        form = affine(name, {**defaults, **dict(parameters)}) if fmt == "fp32" else None
        if form is None:
            self._A, self._B = map(cells().Buffer.of, drawn(*self._operands))
            return
        seeds = (np.random.SeedSequence(inputs._seed(seed), spawn_key=(i,)) for i in (0, 1))
        self._A, self._B = (
            cells().uniform(one, count, *form) for one, count in zip(seeds, (M * K, K * N), strict=True)
        )

    @functools.cached_property
    def _exact(self) -> Any:
        on_gpu = cells().exact(self._A, self._B, self.sizes, self._dtype)
        return cells().Buffer.of(exact_product(self._operands, "fp64", "cpu")) if on_gpu is None else on_gpu

    @functools.cached_property
    def exact(self) -> Any:
        """The exact product rounded to fp64, on the CPU."""
        M, N, _ = self.sizes
        return self._exact.array((M, N), np.float64)

    def product(self, scheme: Scheme, hardware: str | MmaSpec | None, on_range: str, order: KOrder | None) -> Any:
        """Return A B by a scheme in the GPU's memory, valid until the next product; None if no kernel computes it."""
        chosen = configure(scheme, hardware, on_range, order, {})
        lowering, spec = chosen.lowering, chosen.spec
        if not isinstance(scheme, SplitScheme) or type(scheme).product is not SplitScheme.product:
            return None
        if lowering is None or spec is None or scheme.scaling(chosen.on_range).scales:
            return None
        if spec.final == "SR" or any(word.rounding == "SR" for word in lowering.words):
            return None
        if not cells().supports(lowering, spec, self.sizes):
            return None
        rules = {name: words.of_operand(scheme.rules(), name) for name in "AB"}
        is_error = chosen.on_range == OverflowPolicy.RAISE
        return cells().product(self._A, self._B, self.sizes, rules, lowering, spec, overflow_is_error=is_error)

    def relative_l2(self, D: Any) -> float | None:
        """Return `fpemu.metrics.relative_l2` of a result, an array or the value of `product`, and the exact product."""
        on_gpu = not isinstance(D, np.ndarray)
        C, dtype = (D, np.float32) if on_gpu else (cells().Buffer.of(D), D.dtype)
        M, N, _ = self.sizes
        norms = cells().norms(C, dtype, self._exact, M * N)
        if norms is None:
            return None
        (top, s), (bottom, t) = norms
        if bottom == 0.0:
            return float("inf") if top else 0.0
        return float(scaled(top / bottom, s - t))
