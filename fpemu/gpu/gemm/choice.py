"""A request of `fpemu.gpu.gemm`: its arguments checked on arrays of the GPU, and the kernel that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fpemu.arguments import any_complex
from fpemu.arguments import sizes as check_sizes
from fpemu.errors import InputError, shown
from fpemu.gpu.gemm import complex_products, ordinary
from fpemu.gpu.gemm.base import Kernel
from fpemu.gpu.gemm.mma_sync import fused
from fpemu.gpu.gemm.wgmma import staged_int8, strassen
from fpemu.gpu.gemm.wgmma import words as wgmma
from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.device import LONGEST, per_device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import catalog
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes import call as calls
from fpemu.schemes.base import Call, Form, Scheme, build

BUILDERS = (staged_int8.kernel, strassen.kernel, wgmma.kernel, fused.kernel)
"""The kernels of schemes on matrix instructions, in order of preference: each function takes (scheme, spec, (M, N, K),
order) and returns a Kernel, or None for a product that it does not run."""


class NoKernelError(InputError):
    """No kernel runs a scheme in the requested order, or with these options."""


def architecture() -> str:
    """The architecture of the current GPU, as `fpemu.mma.catalog` names it."""
    device.need()
    return catalog.architecture(device.arch().rstrip("a"))


def hardware_of(scheme: Scheme) -> str | None:
    """Return the current GPU's architecture for a scheme on matrix instructions, else None; GpuError without it."""
    if not scheme.needs_hardware:
        device.need()
        return None
    device.need_matrix_unit(f"{scheme.name} on matrix instructions")
    return architecture()


def refuse_hardware(options: Mapping[str, Any]) -> None:
    """Refuse the options of `fpemu.gemm` that name hardware: `fpemu.gpu.gemm` runs on the current GPU."""
    for name in ("hardware", "device"):
        if name in options:
            raise InputError(
                f"{name}={shown(options[name])}: fpemu.gpu runs on the current GPU, so leave {name} out; "
                "fpemu.gemm emulates others"
            )


@per_device(maxsize=16)
def find(scheme: Scheme, spec: MmaSpec | None, sizes: tuple[int, int, int], order: KOrder | None) -> Kernel:
    """The kernel of a scheme, an instruction, sizes (M, N, K) and an order; NoKernelError if there is none."""
    if spec is None:
        if sizes[2] > LONGEST:
            raise NoKernelError(f"{scheme.name}: K = {sizes[2]} is more than {LONGEST} on a GPU: split the product")
        return ordinary.Ordinary(scheme, sizes[2], order)
    if max(sizes) > LONGEST:
        raise NoKernelError(
            f"{scheme.name}: M, N and K are {sizes}, and {LONGEST} at most on {spec}: split the product"
        )
    if any(word.rounding == "SR" for word in getattr(scheme, "rules", tuple)()):
        raise NoKernelError(f"{scheme.name}: no kernel rounds words by SR: fpemu.gemm does")
    for builder in BUILDERS:
        result = builder(scheme, spec, sizes, order)
        if result is not None:
            return result
    request = "" if order is None else f" in the order {order}: leave the order out for the kernels' own"
    raise NoKernelError(f"{scheme.name}: no kernel of fpemu.gpu runs it with these options on {spec}{request}")


def kernel(
    scheme: str | Scheme, M: int, N: int, K: int, *, order: KOrder | OrderResult | None = None, **options: Any
) -> Kernel:
    """Return the kernel by which `fpemu.gpu.gemm` runs a scheme on the current GPU.

    ``kernel.describe()`` describes it in a line, ``kernel.spec`` and ``kernel.order`` are its instruction and its
    summation order over K, and ``fpemu.gemm(A, B, **kernel.arguments)`` emulates it.

    Parameters
    ----------
    scheme : str or Scheme
        Scheme, as in `fpemu.gemm`.
    M, N, K : int
        Sizes: A is (M, K), B is (K, N).
    order : KOrder or OrderResult, optional
        Required summation order over K.
    **options
        The scheme's choices.

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    InputError
        As `fpemu.gpu.gemm`; the Ozaki family, whose products are exact and have no order.
    GpuError
        No GPU, or one that is too old.
    """
    refuse_hardware(options)
    chosen = build(scheme, options)
    hardware = hardware_of(chosen)
    if chosen.error_free:
        raise InputError(f"{chosen.name}: its products are exact, in any order: there is no kernel to describe")
    path: KOrder | None = order_of(order, trees=False)
    check_sizes(M=M, N=N, K=K)
    configured = calls.configure(scheme, hardware, "propagate", path, options)
    with device.entered():
        return find(configured.scheme, configured.spec, (int(M), int(N), int(K)), path)


# --- arguments
def validate(
    operands: Mapping[str, Any],
    scheme: str | Scheme,
    alpha: Any,
    beta: Any,
    on_range: str,
    order: KOrder | None,
    options: Mapping[str, Any],
    form: Form = "4M",
) -> Call:
    """The checked call, with zeros in place of arrays on the GPU that kernels read where they are.

    Of a complex product all of A', B' and C' are zeros.
    """
    chosen = build(scheme, options)
    hardware = hardware_of(chosen)

    def checked(A: Any, B: Any, C: Any = None, alpha: Any = alpha, beta: Any = beta) -> Call:
        return calls.validate(A, B, C, scheme, hardware, alpha, beta, on_range, order, "cpu", options, form=form)

    given = {name: X for name, X in operands.items() if name in "ABC"}
    on_gpu = {name: X for name, X in given.items() if isinstance(X, Matrix)}
    given |= {name: _zeros(X, chosen) for name, X in on_gpu.items()}
    if any_complex(*given.values(), alpha, beta):
        return complex_products.validated(given, checked)
    call = checked(**given)
    read = {"A": call.alpha != 0, "B": call.alpha != 0, "C": call.beta != 0}
    converted = [name for name, X in on_gpu.items() if read[name] and not direct(X.dtype, call)]
    return checked(**given | {name: matrices.download(on_gpu[name]) for name in converted}) if converted else call


def _zeros(X: Matrix, scheme: Scheme) -> Any:
    """Zeros in one entry's memory: of the scheme's own dtype where another one would be converted to it in full."""
    if X.dtype.kind == "c":
        return np.broadcast_to(np.zeros((), complex), X.shape)
    number = X.dtype.kind in "fiu" and X.dtype.itemsize <= 8
    return np.broadcast_to(np.zeros((), scheme.operand.dtype if number else X.dtype), X.shape)


def direct(dtype: Any, call: Call) -> bool:
    """Whether kernels read numbers of this dtype: the scheme's own, and the Ozaki family fp32 too."""
    kind = complex_products.part(dtype)
    fits = kind == call.scheme.operand.dtype or (kind == np.float32 and call.scheme.error_free)
    return bool(fits and (kind != dtype) == (call.form is not None))
