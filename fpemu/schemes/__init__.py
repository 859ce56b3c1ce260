"""Matrix products in fp32 and fp64 from low-precision words: every published scheme behind one call.

One file per scheme. `names()` lists them, `get(name).info` contains the published facts and the options of a scheme,
`gemm` runs it on a model of some hardware, and `split_table` returns the split of one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.mma import MmaSpec, _device
from fpemu.mma._device import Device
from fpemu.mma.tree import AnyOrder, order_of
from fpemu.schemes import ranges
from fpemu.schemes.base import Option, Scheme, SchemeInfo, SplitScheme, build, get, names
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.report import Certified, Report
from fpemu.schemes.split_table import SplitRow, SplitTable, format_split, split_table

# each module enters its schemes into the registry, in this order: baselines, then by year
for _module in (
    "sgemm",
    "dgemm",
    "fp16",
    "markidis",
    "bf16x",
    "egemm",
    "ootomo",
    "ootomo_tf32",
    "ape",
    "multiword",
    "legemm",
    "h2sgemm",
    "staged",
    "staged_int8",
    "ozaki",
    "ozimmu",
    "ozaki2",
):
    import_module(f"fpemu.schemes.{_module}")

__all__ = [
    "Certified",
    "ErrorFree",
    "Option",
    "Report",
    "Scheme",
    "SchemeInfo",
    "SplitRow",
    "SplitScheme",
    "SplitTable",
    "build",
    "certify",
    "format_split",
    "gemm",
    "get",
    "names",
    "split_table",
]


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: str = "raise",
    order: AnyOrder | None = None,
    device: Device = "cpu",
    **options: Any,
) -> NDArray[Any]:
    """Return D = alpha · (A B by a scheme) + beta · C.

    Parameters
    ----------
    A : array_like (..., M, K)
        fp32 numbers in any real dtype and with any strides (fp64 for dgemm and the Ozaki family); leading axes
        broadcast.
    B : array_like (..., K, N)
        As A.
    C : array_like (..., M, N), optional
        Not read if beta = 0.
    scheme : str or Scheme
        One of `names()`.
    hardware : str or MmaSpec, optional
        An architecture ("ampere"), a GPU ("H200") or a spec. Only sgemm and dgemm do without.
    alpha, beta : real numbers
        Rounded to fp32 (fp64), as a call of BLAS does; then t = fp32(alpha · product) and
        D = fp32(t + fp32(beta · C)); one rounding of it all in ozaki's CR mode. A and B are not read if alpha = 0.
    on_range : {"raise", "propagate", "scale", "scale-rows"}
        Overflow policy, for entries that the words cannot hold. "raise": an error that counts them. "propagate": the
        overflow that the hardware produces. "scale", "scale-rows": a power of two per matrix, or per row of A and
        column of B, that brings the largest entry to [2^13, 2^14), undone at the end. NaN and Inf inputs are such
        entries; with every policy but "raise" they give the result of SGEMM. The Ozaki family covers all of fp64 and
        needs no policy: NaN and Inf propagate as in DGEMM.
    order : KOrder, tree or Revealed, optional
        Summation order over K within every product chain of the scheme. Its `promote` replaces the scheme's. A tree is
        accepted by schemes that make one plain product.
    device : {"cpu", "cuda", "auto"}
        Device that computes the products: the CPU, an NVIDIA GPU of any kind, or with "auto" a GPU for large products
        if there is one; with the same bits. It also applies to the products that error-free schemes compute by BLAS.
    **options
        The scheme's choices, `get(scheme).info.options`; the published values are the defaults.

    Returns
    -------
    array (..., M, N)
        D, float32 or the format of the scheme's operands; every NaN has the pattern of the hardware.

    Raises
    ------
    InputError
        Unknown names and options, values that do not fit, shapes that do not match, entries out of range; no GPU that
        can be used.
    GuaranteeError
        A condition of an error-free scheme does not hold; `certify` returns the result and the report all the same.

    Examples
    --------
    >>> A = np.float32([[0.1, 1.0]]); B = np.float32([[3.0], [1e-4]])
    >>> [gemm(A, B, scheme=s, hardware="ampere").item() for s in ("fp16", "ootomo")]
    [0.3000267744064331, 0.3000999689102173]
    """
    call = _call(A, B, C, scheme, hardware, alpha, beta, on_range, order, options)
    _device.resolve(device)
    if call.empty:
        return call.finish(None)
    return call.finish(call.scheme.evaluate(**call.arguments, on_range=call.on_range, device=device))


def certify(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: str = "raise",
    order: AnyOrder | None = None,
    device: Device = "cpu",
    **options: Any,
) -> Certified:
    """Return the result of an error-free scheme with a report of the conditions that were checked.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Operands, as in `gemm`.
    C : array_like (..., M, N), optional
        Addend, as in `gemm`.
    scheme : str or Scheme
        An error-free scheme: ozaki, ozimmu or ozaki2.
    hardware : str or MmaSpec, optional
        An architecture, a GPU or an instruction, as in `gemm`.
    alpha, beta : real numbers
        As in `gemm`.
    on_range : str
        As in `gemm`.
    order : KOrder, optional
        As in `gemm`.
    device : {"cpu", "cuda", "auto"}
        As in `gemm`.
    **options
        The scheme's choices.

    Returns
    -------
    Certified
        ``D``, the combined ``report``, and the ``reports`` of the single products. A violated condition is a fault in
        the report, not an exception: D is then the result that the hardware would return.

    Raises
    ------
    InputError
        As `gemm`; a scheme that rests on no condition.

    Examples
    --------
    >>> found = certify([[0.1, 0.2]], [[3.0], [0.5]], scheme="ozaki", hardware="ampere", mode="CR")
    >>> found.D.item(), found.report.ok, found.report.complete
    (0.4, True, True)
    """
    chosen = get(scheme)
    if not isinstance(chosen, ErrorFree):
        able = [name for name in names() if isinstance(get(name), ErrorFree)]
        raise InputError(f"{chosen.name} rests on no condition to certify; the schemes that do: {', '.join(able)}")
    call = _call(A, B, C, scheme, hardware, alpha, beta, on_range, order, options)
    assert isinstance(call.scheme, ErrorFree)
    _device.resolve(device)
    if call.empty:
        return Certified(call.finish(None), Report(call.scheme.name, str(call.arguments["spec"])), ())
    found = call.scheme.certified(**call.arguments, device=device)
    return Certified(call.finish(found.D), found.report, found.reports)


@dataclass(frozen=True, eq=False)
class _Call:
    """A product with its arguments checked."""

    scheme: Scheme
    shape: tuple[int, ...]
    on_range: str
    arguments: dict[str, Any]  # of Scheme.evaluate

    @property
    def empty(self) -> bool:
        """There is nothing to multiply: alpha = 0, or no entries."""
        c = self.arguments["C"]
        batch = () if c is None else c.shape[:-2]
        return self.arguments["alpha"] == 0 or self.arguments["A"].shape[-1] == 0 or 0 in (*self.shape, *batch)

    def finish(self, D: NDArray[Any] | None) -> NDArray[Any]:
        """The result with the NaNs of the hardware; None is a product of zero."""
        fmt, c = self.scheme.operand, self.arguments["C"]
        if D is None:
            D = np.zeros(self.shape, fmt.dtype)
            if c is not None:
                with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                    shape = np.broadcast_shapes(c.shape, self.shape)
                    D = np.asarray(self.arguments["beta"] * np.broadcast_to(c, shape))
                if self.scheme.rounds_once and np.isfinite(self.arguments["beta"]):  # an exact zero is +0
                    D = np.where(c == 0, fmt.dtype.type(0), D)
        nan = np.isnan(D)
        if nan.any():
            D = np.array(D)
            D.view(fmt.code_dtype)[nan] = self.scheme.nan_code(self.arguments["spec"])
        return np.asarray(D)


def _call(
    A: Any,
    B: Any,
    C: Any,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None,
    alpha: Any,
    beta: Any,
    on_range: str,
    order: AnyOrder | None,
    options: dict[str, Any],
) -> _Call:
    chosen = build(scheme, options)
    order = order_of(order)
    policy = ranges.policy(on_range)
    chosen.check_order(order, options)
    spec = chosen.spec(hardware)
    fmt = chosen.operand
    alpha, beta = ranges.scalar(alpha, "alpha", fmt), ranges.scalar(beta, "beta", fmt)
    a, b = ranges.matrices(A, B, fmt, read=bool(alpha != 0))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    c = ranges.addend(C, shape, beta, fmt)
    return _Call(
        chosen, shape, policy, {"A": a, "B": b, "C": c, "alpha": alpha, "beta": beta, "spec": spec, "order": order}
    )
