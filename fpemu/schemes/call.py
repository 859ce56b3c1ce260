"""`fpemu.gemm` and `fpemu.certify`, and the check of their arguments, which `fpemu.gpu.gemm` shares."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import any_complex, as_stacks, choice
from fpemu.errors import InputError
from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import AnyOrder, order_of
from fpemu.schemes import complex_products, words
from fpemu.schemes.base import Call, Form, Scheme, addend, as_operand, build, get, matrices, names, scalar
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.plan import Certified, Report
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.words import OverflowPolicy

Policy = Literal["raise", "propagate", "hardware", "scale", "scale-rows"]


@in_ieee
def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: Policy = "raise",
    order: AnyOrder | None = None,
    device: Device = "cpu",
    form: Form = "4M",
    **options: Any,
) -> NDArray[Any]:
    """Return D = alpha · (A B by a scheme) + beta · C.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        fp32 numbers in any real dtype and with any strides (fp64 for dgemm and the Ozaki family); leading axes
        broadcast, and a vector is a row (A) or a column (B) whose axis D lacks, as in `numpy.matmul`. Tensors of
        PyTorch on the CPU too. Complex numbers with such parts: see `form`.
    C : array_like (..., M, N), optional
        Not read if beta = 0.
    scheme : str or Scheme
        One of `names()`, or a framework's name of a product, such as "jax:BF16_BF16_F32_X6" or
        "cublas:COMPUTE_32F_FAST_TF32": `fpemu.schemes.alias` returns the scheme and options for which it stands.
    hardware : str or MmaSpec, optional
        An architecture ("ampere"), a GPU ("H200") or a spec. Not required for sgemm and dgemm.
    alpha, beta : real numbers
        Rounded to fp32 (fp64), as a call of BLAS does; then t = fp32(alpha · product) and
        D = fp32(t + fp32(beta · C)); ozaki in CR mode rounds the exact D once. A and B are not read if alpha = 0.
    on_range : {"raise", "propagate", "hardware", "scale", "scale-rows"}
        Overflow policy for entries outside the range of the words. "raise": an error with their number. "propagate":
        the overflow of the hardware. "hardware": as "propagate", and NaN and Inf are split like numbers (the residual
        of Inf is NaN); on the CPU, for schemes that do not scale. "scale", "scale-rows": a power of two per matrix, or
        per row of A and column of B, scales the largest entry to [2^13, 2^14), and D is scaled back. NaN and Inf inputs
        are such entries; with every policy except "raise" and "hardware" they give the result of SGEMM. The Ozaki
        family covers all of fp64 and needs no policy: NaN and Inf propagate as in DGEMM.
    order : KOrder, tree or Revealed, optional
        Summation order over K within every product chain of the scheme. Its `promote` replaces the scheme's. Schemes
        with one plain product also accept a tree.
    device : {"cpu", "cuda", "auto"}
        Device that computes the products, with the same bits: the CPU, an NVIDIA GPU of any kind, or with "auto" a GPU
        for large products if there is one. It also applies to the products that error-free schemes compute by BLAS.
    form : {"4M", "3M"}
        Real products of a complex one, where an operand or a scalar is complex. "4M": one real product of twice the
        length over K, on the real and imaginary parts. "3M": three products, with three quarters of the work and an
        imaginary part that may lose its small entries; ozaki2 has the same bits in both. The notes define each.
    **options
        Options of the scheme, `get(scheme).info.options`; the published values are the defaults.

    Returns
    -------
    array (..., M, N)
        D, float32 or the format of the scheme's operands, or complex numbers with such parts; every NaN has the pattern
        of the hardware.

    Raises
    ------
    InputError
        Unknown names and options, invalid values, shapes that do not match, entries out of range; no usable GPU.
    GuaranteeError
        A condition of an error-free scheme does not hold; `certify` returns the result and the report in this case.

    Notes
    -----
    A complex product in form 4M is the real product of A', the parts of A alternating along K, and of B' with the rows
    [Re b, Im b] and [-Im b, Re b] alternating along N: A' has the memory of A and D' that of D. In form 3M, T1 = Ar Br,
    T2 = Ai Bi, T3 = (Ar + Ai)(Br + Bi), Re D = T1 - T2 and Im D = (T3 - T1) - T2, each sum rounded to the operands'
    format. An alpha with an imaginary part multiplies the parts of the product by four products and two
    sums, each rounded, and so does beta; schemes that round once take real alpha and beta only.

    Examples
    --------
    >>> A = np.float32([[0.1, 1.0]]); B = np.float32([[3.0], [1e-4]])
    >>> [gemm(A, B, scheme=s, hardware="ampere").item() for s in ("fp16", "ootomo")]
    [0.3000267744064331, 0.3000999689102173]
    >>> gemm([[1 + 2j]], [[3 - 1j]], scheme="ozaki2", hardware="H200").item()
    (5+5j)
    """
    call = validate(A, B, C, scheme, hardware, alpha, beta, on_range, order, device, options, axes=1, form=form)
    if call.form:
        return complex_products.evaluate(call, call.scheme.evaluate)
    return call.finish(None if call.empty else call.scheme.evaluate(call))


@in_ieee
def certify(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: Policy = "raise",
    order: AnyOrder | None = None,
    device: Device = "cpu",
    form: Form = "4M",
    **options: Any,
) -> Certified:
    """Return the result of an error-free scheme with a report of the conditions that were checked.

    Parameters
    ----------
    A, B, C : array_like
        Operands and addend, as in `gemm`.
    scheme : str or Scheme
        An error-free scheme: ozaki, ozimmu or ozaki2.
    hardware, alpha, beta, on_range, order, device, form : object
        As in `gemm`.
    **options
        The scheme's choices.

    Returns
    -------
    Certified
        ``D``, the combined ``report``, and the ``reports`` of the single products, of all three real products for a
        complex one in form 3M. A violated condition is a fault in
        the report, not an exception; D is then the result of the hardware.

    Raises
    ------
    InputError
        As `gemm`; a scheme without conditions.

    Examples
    --------
    >>> result = certify([[0.1, 0.2]], [[3.0], [0.5]], scheme="ozaki", hardware="ampere", mode="CR")
    >>> result.D.item(), result.report.ok, result.report.complete
    (0.4, True, True)
    """
    chosen = get(scheme)
    if not chosen.error_free:
        able = [name for name in names() if get(name).error_free]
        raise InputError(f"{chosen.name} rests on no condition to certify; the schemes that do: {', '.join(able)}")
    call = validate(A, B, C, scheme, hardware, alpha, beta, on_range, order, device, options, axes=1, form=form)
    reports: list[Report] = []

    def run(call: Call) -> NDArray[Any]:
        assert isinstance(call.scheme, ErrorFree)
        result = call.scheme.certified(call)
        reports.extend(result.reports)
        return result.D

    D = complex_products.evaluate(call, run) if call.form else call.finish(None if call.empty else run(call))
    none = Report(call.scheme.name, str(call.spec))
    return Certified(D, next((r for r in reports if not r.ok), [*reports, none][0]), tuple(reports))


def _product(chosen: Configuration, A: NDArray[Any], B: NDArray[Any], order: Any, device: Device) -> NDArray[Any]:
    """A B by a configured scheme, for arrays of its operands' format that fit each other."""
    one = chosen.scheme.operand.dtype.type(1)
    call = Call(chosen.scheme, A, B, None, one, 0 * one, chosen.spec, order, chosen.lowering, chosen.on_range, device)
    return call.finish(None if call.empty else chosen.scheme.evaluate(call))


class Configuration(NamedTuple):
    """A scheme with its options on an instruction, in an order over K."""

    scheme: Scheme
    spec: MmaSpec | None
    lowering: Lowering | None
    on_range: OverflowPolicy


def validate(
    A: Any,
    B: Any,
    C: Any,
    scheme: str | Scheme,
    hardware: str | MmaSpec | None,
    alpha: Any,
    beta: Any,
    on_range: str,
    order: AnyOrder | None,
    device: Device,
    options: Mapping[str, Any],
    *,
    axes: int = 2,
    form: Form | None = None,
) -> Call:
    """The checked call of `gemm`, `certify` or `fpemu.gpu.gemm`; `Scheme.check_operand` finds entries out of range.

    Complex numbers are accepted where a form is given, and the call then has the embedded operands.
    """
    order = None if order is None else order_of(order)
    chosen = configure(scheme, hardware, on_range, order, options)
    fmt = chosen.scheme.operand
    if form is not None and form not in complex_products.FORMS:
        choice("form", form, complex_products.FORMS)
    own = form is not None and any_complex(A, B, C, alpha, beta)
    rounded = complex_products.factor if own else scalar
    alpha, beta = rounded(alpha, "alpha", fmt), rounded(beta, "beta", fmt)
    a, b = matrices(A, B, fmt, read=bool(alpha != 0), axes=axes, complex_numbers=own)
    dropped: tuple[int, ...] = ()
    if a.ndim == 1 or b.ndim == 1:
        a, b, dropped = as_stacks(a, b)
        C = C if C is None else as_operand(C, "C", fmt, read=bool(beta != 0), axes=0, complex_numbers=own)
        C = C if C is None else np.expand_dims(C, dropped)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    c = addend(C, shape, beta, fmt, own)
    device = "cpu" if devices.resolve(device) == "cpu" else device  # from here on other devices are usable GPUs
    chain = chosen.spec, order, chosen.lowering
    call = Call(chosen.scheme, a, b, c, alpha, beta, *chain, chosen.on_range, device, dropped)
    return complex_products.embedded(call, form) if own and form is not None else call


def configure(
    scheme: str | Scheme,
    hardware: str | MmaSpec | None,
    on_range: str,
    order: AnyOrder | None,
    options: Mapping[str, Any],
) -> Configuration:
    """Check everything in a call but its arrays and scalars. Equal requests are checked once."""
    typed = tuple((name, type(value), value) for name, value in options.items())  # 64.0 and 64 are equal keys
    if order is None or isinstance(order, KOrder):
        try:
            return _configuration(scheme, hardware, on_range, order, typed)
        except TypeError:  # an argument is not hashable: a list of products, or a wrong argument
            pass
    return _configuration.__wrapped__(scheme, hardware, on_range, order, typed)


@lru_cache(maxsize=256)
def _configuration(
    scheme: str | Scheme,
    hardware: str | MmaSpec | None,
    on_range: str,
    order: AnyOrder | None,
    typed: tuple[tuple[str, type, Any], ...],
) -> Configuration:
    options = {name: value for name, _, value in typed}
    chosen, policy = build(scheme, options), words.policy(on_range)
    chosen.check_order(order, options)
    spec = chosen.spec(hardware)
    chosen.check_policy(policy)
    return Configuration(chosen, spec, chosen.lowering(spec, order), policy)
