"""Which kernel of the GPU at hand runs what: `fpemu.gpu.gemm.kernel`, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.arguments import sizes as check_sizes
from fpemu.errors import GpuError, InputError, shown
from fpemu.gpu.gemm.kernel import Kernel
from fpemu.gpu.runtime import device

if TYPE_CHECKING:
    from fpemu.mma import KOrder, MmaSpec
    from fpemu.mma.tree import OrderResult
    from fpemu.schemes import Scheme

BUILDERS = ("gemm.wgmma.staged_int8", "gemm.wgmma.strassen", "gemm.wgmma.words", "gemm.mma_sync.fused")
"""The modules with kernels of schemes on matrix instructions, in the order in which they are asked. Each has
``kernel(scheme, spec, (M, N, K), order)``, which gives a Kernel, or None for what it does not do: a scheme with a
product of its own is not all in its rules and plan."""
_LEAST = (8, 0)  # compute capability


class NoKernelError(InputError):
    """No kernel runs a scheme in the order asked for, or with these options."""


def architecture() -> str:
    """The architecture of the GPU at hand, as `fpemu.mma.catalog` names it."""
    from fpemu.mma import catalog

    if device.missing() is not None:
        raise GpuError(str(device.missing()))

    return catalog.architecture(device.arch().rstrip("a"))


def need_a_gpu(scheme: Scheme) -> None:
    """Raise GpuError where there is no GPU, or one too old for a scheme."""
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    have = device.capability()
    if scheme.needs_hardware and have < _LEAST:
        raise GpuError(
            f"{scheme.name} on matrix instructions needs compute capability {_dotted(_LEAST)} or more; "
            f"{device.describe()['gpu']} has {_dotted(have)}"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def refuse_hardware(options: Mapping[str, Any]) -> None:
    """Say that what `fpemu.gemm` asks for is what is here."""
    for name in ("hardware", "device"):
        if name in options:
            raise InputError(
                f"{name}={shown(options[name])}: fpemu.gpu runs on the GPU at hand, so leave {name} out; "
                "fpemu.gemm emulates others"
            )


@lru_cache(maxsize=256)
def rehearse(scheme: Scheme, spec: MmaSpec | None, order: KOrder | None, on_range: str) -> None:
    """Raise what the scheme itself refuses, order or policy: it is asked for a product without rows."""
    a, b = (np.zeros(shape, scheme.operand.dtype) for shape in ((0, 1), (1, 1)))
    scheme.product(a, b, spec, order, on_range)


@lru_cache(maxsize=16)
def find(scheme: Scheme, spec: MmaSpec | None, sizes: tuple[int, int, int], order: KOrder | None) -> Kernel:
    """The kernel of a scheme, an instruction, sizes (M, N, K) and an order, kept with its buffers.

    Raises
    ------
    NoKernelError
        If there is none.
    """
    from fpemu.gpu.gemm import ordinary

    if spec is None:
        return ordinary.Ordinary(scheme, sizes[2], order)
    for name in BUILDERS:
        found = _builder(name)(scheme, spec, sizes, order)
        if found is not None:
            assert isinstance(found, Kernel)
            return found
    asked = "" if order is None else f" in the order {order}: leave the order out for the kernels' own"
    raise NoKernelError(f"{scheme.name}: no kernel of fpemu.gpu runs it with these options on {spec}{asked}")


def _builder(name: str) -> Any:
    return import_module(f"fpemu.gpu.{name}").kernel


def kernel(
    scheme: str | Scheme, M: int, N: int, K: int, *, order: KOrder | OrderResult | None = None, **options: Any
) -> Kernel:
    """Return the kernel by which `fpemu.gpu.gemm` runs a scheme on the GPU at hand.

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
    from fpemu import schemes
    from fpemu.mma.tree import order_of
    from fpemu.schemes.errorfree.base import ErrorFree

    refuse_hardware(options)
    chosen = schemes.build(scheme, options)
    need_a_gpu(chosen)
    if isinstance(chosen, ErrorFree):
        raise InputError(f"{chosen.name}: its products are exact, in any order: there is no kernel to describe")
    path: KOrder | None = order_of(order, trees=False)
    chosen.check_order(path, options)
    check_sizes(M=M, N=N, K=K)
    spec = chosen.spec(architecture())
    rehearse(chosen, spec, path, "propagate")
    with device.entered():
        return find(chosen, spec, (int(M), int(N), int(K)), path)
