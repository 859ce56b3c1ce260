"""What a scheme is: a frozen object whose fields are its options, in a registry by name.

An instance is a scheme with its options; `get(name)` returns the scheme with the published values.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu._system import note
from fpemu.arguments import _float64, as_array, as_stacks, is_real, unwrapped
from fpemu.errors import InputError, entries, shown, unknown_name
from fpemu.formats import FP32, FloatFormat
from fpemu.mma import catalog
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.device import Device
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum
from fpemu.schemes import frameworks
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.options import Option, SchemeInfo
from fpemu.schemes.words import OverflowPolicy

Array = NDArray[Any]
Form = Literal["4M", "3M"]


@dataclass(frozen=True, eq=False)
class Call:
    """A product alpha · A·B + beta · C by a scheme, its arguments checked."""

    scheme: Scheme
    A: Array  # (..., M, K) in the scheme's operand format
    B: Array  # (..., K, N)
    C: Array | None  # None where beta = 0
    alpha: Any
    beta: Any
    spec: Any  # matrix instruction; None: ordinary cores
    order: Any  # over K, as given
    lowering: Lowering | None  # of a split scheme, in this order on this instruction
    on_range: OverflowPolicy
    device: Device = "cpu"
    dropped: tuple[int, ...] = ()  # axes of D that stand for an operand without: see `fpemu.arguments.as_stacks`
    form: Form | None = None  # of a complex product, whose A, B and C are those of `complex_products.embedded`

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the product."""
        return (*np.broadcast_shapes(self.A.shape[:-2], self.B.shape[:-2]), self.A.shape[-2], self.B.shape[-1])

    @cached_property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of D, with the batch axes of C."""
        return self.shape if self.C is None else np.broadcast_shapes(self.shape, self.C.shape)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: alpha = 0, or no entries."""
        return self.alpha == 0 or self.A.shape[-1] == 0 or 0 in self.result_shape

    def finish(self, D: Array | None) -> Array:
        """The result with the NaN patterns of the hardware; None stands for a product of zero."""
        fmt = self.scheme.operand
        if D is None:
            D = np.zeros(self.shape, fmt.dtype)
            if self.C is not None:
                with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                    D = np.asarray(self.beta * np.broadcast_to(self.C, self.result_shape))
                if self.scheme.rounds_once and np.isfinite(self.beta):  # an exact zero is +0
                    D = np.where(self.C == 0, fmt.dtype.type(0), D)
        nan = np.isnan(D)
        if nan.any():
            D = np.array(D)
            D.view(fmt.code_dtype)[nan] = self.scheme.nan_code(self.spec)
        if self.form:
            D = np.ascontiguousarray(D).view(complex_dtype(fmt))
        return np.asarray(np.squeeze(D, self.dropped) if self.dropped else D)


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A way to multiply matrices: `product` gives A·B; alpha, beta and C are common to all schemes.

    Class attributes declare capabilities: `needs_hardware` (runs on a matrix instruction), `runs_by_plan` (rules and
    plan are the whole scheme, so that every kernel for plans runs it), `limited` (some finite entries are refused under
    every overflow policy), `error_free` (products are exact under conditions that `fpemu.certify` reports),
    `modular` (on integers modulo others: three products of a complex one have the bits of four), `promote_option` (name
    of the option for the promotion interval).
    """

    info: ClassVar[SchemeInfo]
    needs_hardware: ClassVar[bool] = True
    runs_by_plan: ClassVar[bool] = False
    limited: ClassVar[bool] = False
    error_free: ClassVar[bool] = False
    modular: ClassVar[bool] = False
    promote_option: ClassVar[str] = "promote"

    def __post_init__(self) -> None:
        scheme = self.name
        for f in fields(self):
            value = f.metadata["check"](f"{scheme} option {f.name}", getattr(self, f.name))
            object.__setattr__(self, f.name, value)
        self.check()

    @property
    def name(self) -> str:
        """The name in the registry."""
        return self.info.name

    @property
    def operand(self) -> FloatFormat:
        """Format of A, B, C and the result."""
        return FP32

    @property
    def rounds_once(self) -> bool:
        """Whether alpha, beta and C enter before the one rounding of the result."""
        return False

    @property
    def takes_trees(self) -> bool:
        """Whether the scheme makes one plain product, whose order may be a summation tree."""
        return False

    def check(self) -> None:  # noqa: B027 (a hook: most schemes have nothing to add)
        """Raise InputError for options that contradict one another."""

    def refuse(self, why: str) -> None:
        """Raise InputError in the scheme's name."""
        raise InputError(f"{self.name}: {why}")

    def check_order(self, order: Any, given: Collection[str] = ()) -> None:
        """Raise InputError for a promotion interval given twice, and for a tree where the scheme takes none.

        `given` lists the options that the caller has named; a published default gives way to the order.
        """
        if isinstance(order, Chain | Sum) and not self.takes_trees:
            self.refuse("a tree is an order of one plain product: this scheme takes a KOrder")
        interval, other = getattr(self, self.promote_option, None), getattr(order, "promote", None)
        default = getattr(type(self), self.promote_option, None)
        if interval is not None and other is not None and (self.promote_option in given or interval != default):
            self.refuse(
                f"{self.promote_option}={interval!r} and order.promote={other} say the same thing twice: give one"
            )

    def check_policy(self, on_range: OverflowPolicy) -> None:  # noqa: B027
        """Raise InputError for an overflow policy that the options rule out."""

    def check_operand(self, X: Array, name: str, on_range: OverflowPolicy) -> None:  # noqa: B027
        """Raise InputError for entries that the policy refuses: their number and the first of them."""

    @abstractmethod
    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec | None:
        """The matrix instruction that the scheme runs on (None for a scheme that uses none)."""

    def lowering(self, spec: MmaSpec | None, order: Any = None) -> Lowering | None:
        """The products of words in the order run; None for a scheme without words."""
        return None

    @abstractmethod
    def product(self, call: Call) -> Array:
        """A·B of a call in the format `operand`, without alpha, beta and C; K >= 1."""

    def evaluate(self, call: Call) -> Array:
        """The result of a call, each operation outside the product rounded to the format `operand`."""
        return scaled(self.product(call), call.C, call.alpha, call.beta)

    def nan_code(self, spec: MmaSpec | None) -> int:
        """The code of every NaN of the result: the instruction's, unless its results are widened to `operand`."""
        widened = spec is None or str(spec.d_format) != self.operand.name
        return int((FMA_SPECS[self.operand.name] if widened else spec).nan_code or 0)  # type: ignore[union-attr]


def scaled(T: Array, C: Array | None, alpha: Any, beta: Any) -> Array:
    """alpha · T + beta · C in the format of T, one rounding an operation, as a call of BLAS does."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        t = T if alpha == 1 else alpha * T
        return t if C is None else np.asarray(t + beta * C)


def matrix_instruction(scheme: Any, hardware: str | MmaSpec | None, low: str, out: str | None) -> MmaSpec:
    """The instruction of `hardware` for words of format `low`, by the options `instruction` and `k` of a scheme."""
    if hardware is None:
        scheme.refuse("runs on a matrix instruction: give hardware=, such as 'ampere', 'H200' or an MmaSpec")
    assert hardware is not None
    if isinstance(hardware, MmaSpec) and (scheme.instruction, scheme.k) != (None, None):
        scheme.refuse("an MmaSpec is one instruction already: leave instruction= and k= out")
    return catalog.spec(hardware, low, out, scheme.instruction, scheme.k)


# --- checks of arrays and scalars


def as_operand(
    X: Any, name: str, fmt: FloatFormat, *, read: bool = True, axes: int = 2, complex_numbers: bool = False
) -> Array:
    """`X` as an array of `fmt` (fp32 or fp64) with the same values and at least so many axes; else InputError.

    With `complex_numbers` as an array of complex numbers whose parts have that format.
    """
    x = as_array(X, name, complex_numbers=complex_numbers)
    if x.ndim < axes:
        raise InputError(f"{name} must be a matrix (..., rows, columns), not of shape {x.shape}")
    dtype = complex_dtype(fmt) if complex_numbers else fmt.dtype
    if x.dtype == dtype:
        return x
    if not read:
        return np.zeros(x.shape, dtype)
    wide = x if x.dtype.kind == "c" else _float64(x, name)
    if fmt is not FP32:
        return wide.astype(dtype, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = wide.astype(dtype)
    bad = (narrow != wide) & ~np.isnan(wide)
    if bad.any():
        raise InputError(f"{name}: not fp32 numbers: {entries(bad, wide)}; round it: {name}.astype(np.{dtype})")
    return narrow


def complex_dtype(fmt: FloatFormat) -> np.dtype[Any]:
    """The dtype of complex numbers with parts of a format, fp32 or fp64."""
    return np.dtype(np.complex64 if fmt is FP32 else np.complex128)


def matrices(
    A: Any, B: Any, fmt: FloatFormat, *, read: bool = True, axes: int = 2, complex_numbers: bool = False
) -> tuple[Array, Array]:
    """A (..., M, K) and B (..., K, N) as arrays of `fmt` whose shapes fit each other; vectors too with `axes` = 1."""
    a, b = (
        as_operand(X, name, fmt, read=read, axes=axes, complex_numbers=complex_numbers)
        for X, name in ((A, "A"), (B, "B"))
    )
    if a.ndim == 1 or b.ndim == 1:
        matrices(*as_stacks(a, b)[:2], fmt, complex_numbers=complex_numbers)  # the check of the shapes below
        return a, b
    if a.shape[-1] != b.shape[-2]:
        raise InputError(
            f"A of shape {a.shape} and B of shape {b.shape}: A has {a.shape[-1]} columns and B {b.shape[-2]} rows"
        )
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InputError(f"A of shape {a.shape} and B of shape {b.shape}: their batch axes do not broadcast") from None
    return a, b


def addend(C: Any, shape: tuple[int, ...], beta: Any, fmt: FloatFormat, complex_numbers: bool = False) -> Array | None:
    """C as an array of `fmt` that broadcasts against the product of shape `shape`; None where beta = 0."""
    if C is None:
        if beta != 0:
            raise InputError(f"beta = {beta.item()} needs C, a matrix of shape {shape}")
        return None
    c = as_operand(C, "C", fmt, read=bool(beta != 0), complex_numbers=complex_numbers)
    fits = c.shape[-2:] == shape[-2:]
    try:
        np.broadcast_shapes(c.shape[:-2], shape[:-2])
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"C of shape {c.shape} does not fit the product of shape {shape}")
    return c if beta != 0 else None


def scalar(value: Any, name: str, fmt: FloatFormat) -> Any:
    """alpha or beta rounded to `fmt`; one that is finite and beyond it is refused."""
    if type(value) is not float:
        value = unwrapped(value)
        if not is_real(value):
            raise InputError(f"{name} must be one real number, not {shown(value)}")
        value = value.item() if isinstance(value, np.generic) else value
        if value == value and not ((abs(value) < 2**1024 and float(value) == value) or abs(value) == np.inf):
            raise InputError(f"{name} = {shown(value)} is no number that float64 holds")
    wide = float(value)
    with np.errstate(over="ignore", under="ignore"):
        number = fmt.dtype.type(wide)
    if np.isinf(number) and not np.isinf(wide):
        raise InputError(f"{name} = {wide!r} is beyond the largest {fmt} number, {fmt.max}")
    return number


# --- the registry

_SCHEMES: dict[str, type[Scheme]] = {}
_ARGUMENTS = ("hardware", "alpha", "beta", "on_range", "order", "device")
"""Arguments of `fpemu.gemm`: a misspelt one arrives as an option"""
_FORMER_OPTIONS = {
    **{(scheme, "correction_step"): "step" for scheme in ("ootomo", "ootomo-tf32", "legemm")},
    ("multiword", "block"): "promote",
    ("multiword", "format"): "fmt",
}
"""Former names of options, which recorded verifications and recipes contain; `block` was a number of instructions"""
S = TypeVar("S", bound=type[Scheme])


def register(cls: S) -> S:
    """Enter a scheme into the registry under the name in its info, with its options listed there.

    A plan without promotion in a module outside the package gives a warning.
    """
    options = tuple(
        Option(f.name, f.default, f.metadata["meaning"], f.metadata["values"])
        for f in sorted(fields(cls), key=lambda f: f.name in ("instruction", "k"))
        if f.default is not MISSING
    )
    published = cls.info.products or getattr(cls, "products", None) or ()
    cls.info = replace(cls.info, options=options, products=published)
    former = _SCHEMES.get(cls.info.name, cls)
    if (former.__module__, former.__qualname__) != (cls.__module__, cls.__qualname__):  # equal if a cell runs again
        raise ValueError(f"two schemes are named {cls.info.name!r}")
    _SCHEMES[cls.info.name] = cls
    if not cls.__module__.startswith("fpemu.") and cls.runs_by_plan:
        plan: Any = cls().plan()  # type: ignore[attr-defined]
        if plan.promote is None and plan.accumulators != "none":
            warnings.warn(
                f"{cls.info.name}: the accumulators are not promoted, so an instruction that truncates loses up to one"
                " unit in the last place per block of K; promote= of the Plan restarts them after so many k",
                stacklevel=2,
            )
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    if Path(file).is_file() and not cls.__module__.startswith("fpemu."):
        note(Path(file).resolve())  # the key of a sweep's results contains the digest of the code that was executed
    return cls


def names() -> list[str]:
    """Return the names of all schemes, baselines first, then by year.

    Returns
    -------
    list of str
        Names that `get` and `fpemu.gemm` accept.
    """
    return list(_SCHEMES)


def get(name: str | Scheme) -> Scheme:
    """Return a scheme by name, with its published options.

    Parameters
    ----------
    name : str or Scheme
        One of `names`; case does not matter, and "_" stands for "-". Or a framework's name of a product, such as
        "triton:tf32x3" (`aliases`). A Scheme is returned unchanged.

    Returns
    -------
    Scheme
        The scheme.

    Raises
    ------
    InputError
        If the name is not known; it shows the nearest ones.

    Examples
    --------
    >>> get("ootomo").info.year
    2022
    """
    if isinstance(name, Scheme):
        return name
    key = name.lower().replace("_", "-").strip() if isinstance(name, str) else ""
    if key == "strassen":  # its former name
        warnings.warn("the scheme 'strassen' is now 'staged' with levels=1", DeprecationWarning, stacklevel=3)
        return build("staged", {"levels": 1})
    if isinstance(name, str) and ":" in key:
        entry = frameworks.alias(name)
        return build(entry.scheme, entry.options)
    if key not in _SCHEMES:
        raise unknown_name("scheme", name, _SCHEMES)
    return _SCHEMES[key]()


def build(scheme: str | Scheme, options: Mapping[str, Any]) -> Scheme:
    """Return a scheme with some of its options changed.

    Parameters
    ----------
    scheme : str or Scheme
        Name of a scheme, or a scheme.
    options : mapping of str to object
        New values by option name.

    Returns
    -------
    Scheme
        A copy with these options.

    Raises
    ------
    InputError
        Unknown scheme or option (with the nearest known), a value out of range, a contradiction.

    Examples
    --------
    >>> build("h2sgemm", {"sb": 11}).sb
    11
    """
    plain = get(scheme)
    known = [option.name for option in plain.info.options]
    options = dict(_current(plain.name, name, value) for name, value in options.items())
    for name in options:
        if name not in known:
            near = [argument for argument in _ARGUMENTS if argument != name]
            raise unknown_name(f"{plain.name} option", name, [*known, *near], known or ["(none)"])
    return replace(plain, **options)


def _current(scheme: str, option: str, value: Any) -> tuple[str, Any]:
    """An option of a scheme by its current name."""
    name = _FORMER_OPTIONS.get((scheme, option), option)
    return name, f"{value} instructions" if name != option == "block" and value is not None else value
