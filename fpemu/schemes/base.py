"""What a scheme is: a frozen object whose fields are its options, in a registry by name.

An instance is a scheme with its options chosen; `get(name)` returns the one with the published values. A split scheme
states its words (`rules`) and the plan of their products (`plan`); `SplitScheme` runs both by `lowering`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.arguments import checked, keywords
from fpemu.arrays import as_float64
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FP16, FP32, FloatFormat
from fpemu.mma import catalog
from fpemu.mma._device import Device
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum
from fpemu.schemes import lowering as lowerings
from fpemu.schemes import options as choose
from fpemu.schemes import ranges, words
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.options import Option, SchemeInfo
from fpemu.schemes.ranges import OverflowPolicy, Prepared
from fpemu.schemes.words import Accumulators, Plan, Word

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Call:
    """A product alpha · A·B + beta · C by a scheme, its arguments checked.

    Parameters
    ----------
    A, B : array (..., M, K) and (..., K, N)
        Operands in the scheme's operand format.
    C : array or None
        Addend; None where beta = 0.
    alpha, beta : scalars of the operand format
    spec : MmaSpec or None
        Matrix instruction; None: ordinary cores.
    order : KOrder, tree or None
        Summation order over K as given.
    lowering : Lowering or None
        Of a split scheme, in this order on this instruction.
    on_range : OverflowPolicy
    device : {"cpu", "cuda", "auto"}
    """

    scheme: Scheme
    A: Array
    B: Array
    C: Array | None
    alpha: Any
    beta: Any
    spec: Any
    order: Any
    lowering: Lowering | None
    on_range: OverflowPolicy
    device: Device = "cpu"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the product."""
        return (*np.broadcast_shapes(self.A.shape[:-2], self.B.shape[:-2]), self.A.shape[-2], self.B.shape[-1])

    @property
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
        return np.asarray(D)


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A way to multiply matrices: `product` gives A·B; alpha, beta and C are common to all schemes.

    Class attributes declare capabilities: `needs_hardware` (runs on a matrix instruction), `runs_by_plan` (rules and
    plan are the whole scheme, so that every kernel for plans runs it), `limited` (some finite entries are refused under
    every overflow policy), `promote_option` (name of the option for the promotion interval).
    """

    info: ClassVar[SchemeInfo]
    needs_hardware: ClassVar[bool] = True
    runs_by_plan: ClassVar[bool] = False
    limited: ClassVar[bool] = False
    promote_option: ClassVar[str] = "promote"

    def __post_init__(self) -> None:
        for f in fields(self):
            value = f.metadata["check"](f"{self.name} option {f.name}", getattr(self, f.name))
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
        return int((simt.SPECS[self.operand.name] if widened else spec).nan_code or 0)  # type: ignore[union-attr]


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


@dataclass(frozen=True, kw_only=True)
class SplitScheme(Scheme):
    """A scheme that multiplies words of a low format on a matrix instruction.

    Parameters
    ----------
    instruction, k : str or None
        Matrix instruction and its length in k; None: the widest.
    """

    runs_by_plan: ClassVar[bool] = True
    scales_rows: ClassVar[bool] = False

    instruction: str | None = choose.name("which matrix instruction, None: the widest", "mma | wgmma | tcgen05 | mfma")
    k: int | None = choose.integer(None, 1, 4096, "length in k of the instruction, None: the widest", none=True)

    @abstractmethod
    def rules(self) -> tuple[Word, ...]:
        """The rule of every word of the split."""

    @abstractmethod
    def plan(self) -> Plan:
        """The products of words, their accumulators and the final combination."""

    @property
    def takes_trees(self) -> bool:
        plan = self.plan()
        return len(plan.products) == 1 and plan.promote is None and plan.accumulators != Accumulators.NONE

    @property
    def accumulator_format(self) -> str:
        """Format of the instruction's C and D."""
        return "fp32"

    def check(self) -> None:
        plan = self.plan()
        step, default_step = (getattr(s, "step", getattr(s, "correction_step", None)) for s in (self, type(self)))
        if plan.accumulators == Accumulators.ONE and plan.combine_in == "fp64":
            self.refuse("accumulators='one' leaves nothing to combine, so combine_in='fp64' has no effect")
        if plan.accumulators == Accumulators.ONE and plan.exponent and len({i + j for i, j in plan.products}) > 1:
            self.refuse(
                f"products of different scale (2^{plan.exponent}) cannot share one accumulator: "
                "residual_scale=1, or accumulators='band' or 'each'"
            )
        if plan.accumulators == Accumulators.EACH and step != default_step:
            self.refuse("products with an accumulator each do not take turns, so the step has no effect")

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The matrix instruction that the scheme runs on.

        Raises
        ------
        InputError
            Without hardware; if it lacks the instruction; if an MmaSpec's formats are not those of the words.
        """
        low, out = self.rules()[0].format, self.accumulator_format
        spec = matrix_instruction(self, hardware, low.name, out)
        have = tuple(str(f) for f in (spec.a_format, spec.b_format, spec.c_format, spec.d_format))
        if have != (low.name, low.name, out, out):
            self.refuse(
                f"multiplies {low} by {low} into {out}, but {spec.name!r} takes "
                f"{have[0]}, {have[1]} and {have[2]} and gives {have[3]}"
            )
        return spec

    def split(self, X: Any, operand: Literal["A", "B"] = "A") -> tuple[Array, ...]:
        """The words of `X`, fp32 numbers of any shape, as values of the low format (without any scaling of rows).

        `operand` matters to balanced splits only.

        Raises
        ------
        InputError
            Entries that are not fp32 numbers.
        """
        wide = as_float64(X, f"X of {self.name}.split")
        good = np.asarray(FP32.contains(wide))
        if not good.all():
            self.refuse(f"split takes an X of fp32 numbers (np.float32(X) rounds): {entries(~good, wide)}")
        return words.split(wide, words.of_operand(self.rules(), operand))

    def lowering(self, spec: MmaSpec | None, order: Any = None) -> Lowering:
        """The products of words in the order run on an instruction, in an order over K."""
        assert spec is not None
        return lowerings.lower(self.rules(), self.plan(), spec, order)

    def scaling(self, on_range: str) -> OverflowPolicy:
        """The overflow policy whose powers of two scale the operands."""
        return OverflowPolicy.SCALE_ROWS if self.scales_rows else OverflowPolicy(on_range)

    def check_policy(self, on_range: OverflowPolicy) -> None:
        if self.accumulator_format == "fp16" and on_range.scales:
            self.refuse(f"on_range='{on_range}' brings products to 2^26, above what an fp16 accumulator holds")

    def check_operand(self, X: Array, name: str, on_range: OverflowPolicy) -> None:
        self.prepare(X, name, on_range)

    def prepare(self, X: Array, name: str, on_range: str) -> Prepared:
        """Scale operand "A" or "B" by its overflow policy and split it; entries that the policy refuses raise."""
        return ranges.prepare(X, name, self.rules(), on_range, self.scaling(on_range), self.name)

    def product(self, call: Call) -> Array:
        assert call.lowering is not None
        a, b = self.prepare(call.A, "A", call.on_range), self.prepare(call.B, "B", call.on_range)
        T = lowerings.run(a.words, b.words, call.lowering, call.spec, call.device)
        return ranges.patch(ranges.undo(T, a, b), call.A, call.B, a.special, b.special)


@dataclass(frozen=True, kw_only=True)
class TwoWords(SplitScheme):
    """A split into a high word h = round(x) and a residual r = round((x - h) · residual_scale).

    In a product such as rh the first letter is A's word. The fields hold the values of most papers; a scheme restates
    those in which it differs, and adds its own names for scale, steps and promotion.
    """

    word_format: ClassVar[FloatFormat] = FP16

    high_rounding: str = choose.rounding("RNE", "rounding of the high part")
    residual_rounding: str = choose.rounding("RNE", "rounding of the residual")
    products: tuple[str, ...] | None = choose.products(("rh", "hr", "hh"), "hr")
    accumulators: Literal["one", "band", "each"] = choose.accumulators("band")
    combine_in: Literal["fp32", "fp64"] = choose.combine_in()

    def rules(self) -> tuple[Word, ...]:
        return self.words_of_scale(getattr(self, "residual_scale"))  # noqa: B009 (a field of most subclasses)

    def words_of_scale(self, scale: float) -> tuple[Word, ...]:
        """The two words."""
        fmt = self.word_format
        return Word("h", fmt, self.high_rounding), Word("r", fmt, self.residual_rounding, exponent_of(scale))

    def sums(self, scale: float, step: int | str | None, promote: int | str | None) -> Plan:
        """The plan of the products kept."""
        pairs = words.pairs(self.kept(), "hr")
        return Plan(pairs, exponent_of(scale), self.accumulators, step, promote, combine_in=self.combine_in)

    def kept(self) -> tuple[str, ...]:
        """The products kept, in the order run."""
        return self.products or ()


def exponent_of(scale: float) -> int:
    """Binary exponent of a power of two."""
    return int(np.frexp(scale)[1]) - 1


# --- the registry

_SCHEMES: dict[str, type[Scheme]] = {}
_ALIASES: dict[str, tuple[str, dict[str, Any]]] = {"strassen": ("staged", {"levels": 1})}
"""Former names: the scheme and its options"""
S = TypeVar("S", bound=type[Scheme])


def register(cls: S) -> S:
    """Enter a scheme into the registry under the name in its info, with its options listed there."""
    options = tuple(
        Option(f.name, f.default, f.metadata["meaning"], f.metadata["values"])
        for f in sorted(fields(cls), key=lambda f: f.name in ("instruction", "k"))
        if f.default is not MISSING
    )
    cls.info = replace(cls.info, options=options)
    if cls.info.name in _SCHEMES:
        raise ValueError(f"two schemes are named {cls.info.name!r}")
    _SCHEMES[cls.info.name] = cls
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
        One of `names`; case does not matter, and "_" stands for "-". A Scheme is returned unchanged.

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
    if key in _ALIASES:
        current, options = _ALIASES[key]
        values = ", ".join(f"{option}={value!r}" for option, value in options.items())
        warnings.warn(f"the scheme {key!r} is now {current!r} with {values}", DeprecationWarning, stacklevel=3)
        return replace(_SCHEMES[current](), **options)
    if key not in _SCHEMES:
        raise unknown_name("scheme", name, _SCHEMES)
    return _SCHEMES[key]()


@checked
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
    keywords(f"{plain.name} option", options, [option.name for option in plain.info.options])
    return replace(plain, **options)
