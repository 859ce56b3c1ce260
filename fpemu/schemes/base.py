"""What a scheme is: a frozen object whose fields are its options, in a registry by name.

An instance is a scheme with its choices made; `get(name)` returns the one with the published choices. A split scheme
states its words (`rules`) and which of their products run where (`plan`); everything else is here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, simt
from fpemu.arguments import LARGEST, checked, integer, keywords
from fpemu.arrays import as_float64
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FP16, FP32, FloatFormat
from fpemu.mma import MmaSpec
from fpemu.mma._device import Device
from fpemu.mma.tree import Chain, Sum
from fpemu.schemes import options as choose
from fpemu.schemes import ranges, words
from fpemu.schemes.info import Option, SchemeInfo
from fpemu.schemes.words import Plan, Word

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A way to multiply matrices: `product` gives A·B, everything around it is common to all."""

    info: ClassVar[SchemeInfo]
    needs_hardware: ClassVar[bool] = True
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
        """Refuse choices that contradict one another."""

    def refuse(self, why: str) -> None:
        """Raise InputError in the scheme's name."""
        raise InputError(f"{self.name}: {why}")

    def check_order(self, order: Any, given: Collection[str] = ()) -> None:
        """Refuse an order whose promotion contradicts one chosen for the scheme (a published default gives way), and a
        tree unless the scheme makes one plain product."""
        if isinstance(order, Chain | Sum) and not self.takes_trees:
            self.refuse("a tree is an order of one plain product: this scheme takes a KOrder")
        mine, theirs = getattr(self, self.promote_option, None), getattr(order, "promote", None)
        default = getattr(type(self), self.promote_option, None)
        if mine is not None and theirs is not None and (self.promote_option in given or mine != default):
            self.refuse(f"{self.promote_option}={mine!r} and order.promote={theirs} say the same thing twice: give one")

    @abstractmethod
    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec | None:
        """The matrix instruction that the scheme runs on (None for a scheme that uses none)."""

    @abstractmethod
    def product(
        self, A: Array, B: Array, spec: MmaSpec | None, order: Any, on_range: str, device: Device = "cpu"
    ) -> Array:
        """A·B in the format `operand`: (..., M, K) times (..., K, N), the batch axes broadcast, K >= 1."""

    def evaluate(
        self,
        A: Array,
        B: Array,
        C: Array | None,
        alpha: Any,
        beta: Any,
        spec: MmaSpec | None,
        order: Any,
        on_range: str,
        device: Device = "cpu",
    ) -> Array:
        """alpha · (A·B) + beta · C, each operation outside the product rounded to the format `operand`."""
        T = self.product(A, B, spec, order, on_range, device)
        return scaled(T, C, alpha, beta)

    def nan_code(self, spec: MmaSpec | None) -> int:
        """The code of every NaN of the result: the instruction's, unless its results are widened to `operand`."""
        own = spec is not None and str(spec.d_format) == self.operand.name
        return int((spec if own else simt.SPECS[self.operand.name]).nan_code or 0)  # type: ignore[union-attr]

    @abstractmethod
    def error_bound(self, A: Any, B: Any, hardware: str | MmaSpec | None = None, on_range: str = "raise") -> Array:
        """Bound on abs(D - AB), entry by entry, for these operands (float64, (..., M, N))."""

    @abstractmethod
    def relative_bound(self, K: int, hardware: str | MmaSpec | None = None) -> float:
        """Factor g with abs(D - AB) <= g · |A||B| for an inner dimension of K."""


def scaled(T: Array, C: Array | None, alpha: Any, beta: Any) -> Array:
    """alpha · T + beta · C in the format of T, one rounding an operation, as a call of BLAS does."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        t = T if alpha == 1 else alpha * T
        return t if C is None else np.asarray(t + beta * C)


@dataclass(frozen=True, kw_only=True)
class SplitScheme(Scheme):
    """A scheme that multiplies words of a low format on a matrix instruction.

    Parameters
    ----------
    instruction, k : str or None
        Matrix instruction and its length in k; None: the widest.
    """

    scales_rows: ClassVar[bool] = False

    instruction: str | None = choose.name("which matrix instruction, None: the widest", "mma | wgmma | tcgen05 | mfma")
    k: int | None = choose.integer(None, 1, 4096, "length in k of the instruction, None: the widest", none=True)

    @abstractmethod
    def rules(self) -> tuple[Word, ...]:
        """The rule of every word of the split."""

    @abstractmethod
    def plan(self) -> Plan:
        """Which products run, and where they are summed."""

    @property
    def takes_trees(self) -> bool:
        plan = self.plan()
        return len(plan.products) == 1 and plan.promote is None and plan.accumulators != "none"

    @property
    def accumulator_format(self) -> str:
        """Format of the instruction's C and D."""
        return "fp32"

    def check(self) -> None:
        plan = self.plan()
        step, default_step = (getattr(s, "step", getattr(s, "correction_step", None)) for s in (self, type(self)))
        if plan.accumulators == "one" and plan.combine_in == "fp64":
            self.refuse("accumulators='one' leaves nothing to combine, so combine_in='fp64' has no effect")
        if plan.accumulators == "one" and plan.exponent and len({i + j for i, j in plan.products}) > 1:
            self.refuse(
                f"products of different scale (2^{plan.exponent}) cannot share one accumulator: "
                "residual_scale=1, or accumulators='band' or 'each'"
            )
        if plan.accumulators == "each" and step != default_step:
            self.refuse("products with an accumulator each do not take turns, so the step has no effect")

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The matrix instruction that the scheme runs on.

        Raises
        ------
        InputError
            Without hardware; if it lacks the instruction; if an MmaSpec's formats are not those of the words.
        """
        low, out = self.rules()[0].format, self.accumulator_format
        if hardware is None:
            self.refuse("runs on a matrix instruction: give hardware=, such as 'ampere', 'H200' or an MmaSpec")
        assert hardware is not None
        if isinstance(hardware, MmaSpec) and (self.instruction, self.k) != (None, None):
            self.refuse("an MmaSpec is one instruction already: leave instruction= and k= out")
        spec = mma.spec(hardware, low.name, out, self.instruction, self.k)
        have = tuple(str(f) for f in (spec.a_format, spec.b_format, spec.c_format, spec.d_format))
        if have != (low.name, low.name, out, out):
            self.refuse(
                f"multiplies {low} by {low} into {out}, but {spec.name!r} takes "
                f"{have[0]}, {have[1]} and {have[2]} and gives {have[3]}"
            )
        return spec

    def split(self, X: Any) -> tuple[Array, ...]:
        """The words of `X`, fp32 numbers of any shape, as values of the low format (without any scaling of rows).

        Raises
        ------
        InputError
            Entries that are not fp32 numbers.
        """
        wide = as_float64(X, f"X of {self.name}.split")
        good = np.asarray(FP32.contains(wide))
        if not good.all():
            self.refuse(f"split takes an X of fp32 numbers (np.float32(X) rounds): {entries(~good, wide)}")
        return words.split(wide, self.rules())

    def product(
        self, A: Array, B: Array, spec: MmaSpec | None, order: Any, on_range: str, device: Device = "cpu"
    ) -> Array:
        assert spec is not None
        rules, policy = self.rules(), self._policy(on_range)
        a = ranges.prepare(A, "A", rules, on_range, policy, self.name)
        b = ranges.prepare(B, "B", rules, on_range, policy, self.name)
        T = words.run(a.words, b.words, self.plan(), spec, order, device)
        return ranges.patch(ranges.undo(T, a, b), A, B, a.special, b.special)

    def _policy(self, on_range: str) -> str:
        return "scale-rows" if self.scales_rows else on_range

    def error_bound(self, A: Any, B: Any, hardware: str | MmaSpec | None = None, on_range: str = "raise") -> Array:
        """Bound on abs(D - AB), entry by entry, for these operands and the published order.

        A running bound: what the split loses is computed exactly; what the accumulators lose is bounded by the
        rounding errors of their blocks. Holds for alpha = 1, beta = 0 and finite results.

        Parameters
        ----------
        A, B : array_like, (..., M, K) and (..., K, N)
            fp32 numbers, finite.

        Returns
        -------
        float64 array (..., M, N)
        """
        A, B = ranges.matrices(A, B, FP32)
        ranges.policy(on_range)
        with np.errstate(all="ignore"):  # words that overflow have an infinite bound
            return self._running_bound(A, B, hardware, on_range)

    def _running_bound(self, A: Array, B: Array, hardware: str | MmaSpec | None, on_range: str) -> Array:
        spec, rules, plan = self.spec(hardware), self.rules(), self.plan()
        a = ranges.prepare(A, "A", rules, on_range, self._policy(on_range), self.name)
        b = ranges.prepare(B, "B", rules, on_range, self._policy(on_range), self.name)
        (wa, la, da), (wb, lb, db) = (words.magnitudes(x.values, rules, spec) for x in (a, b))
        lost = da @ abs(b.values) + abs(a.values) @ db + da @ db
        for i in range(len(rules)):
            for j in range(len(rules)):
                if (i, j) not in plan.products:
                    lost = lost + wa[i] @ wb[j]
        lost = lost + words.accumulation_error(lambda i, j: la[i] @ lb[j], plan, spec, A.shape[-1])
        least = 2.0**-120 if spec.arithmetic == "flushed" else 2 * spec.operand_formats[3].min_subnormal
        lost = lost * (1 + 2.0**-20) + A.shape[-1] * len(plan.products) * least
        return np.asarray(np.ldexp(lost, -(a.exponents + b.exponents)) + 2.0**-149)

    def relative_bound(self, K: int, hardware: str | MmaSpec | None = None) -> float:
        """Factor g with abs(D - AB) <= g · |A||B| for an inner dimension of K, as long as no word is subnormal."""
        K = integer("K", K, 0, LARGEST)
        spec, rules, plan = self.spec(hardware), self.rules(), self.plan()
        sizes, left = [], 1.0
        for word in rules:
            sizes.append(left * (1 + word.unit))
            left *= word.unit
        if left <= 2.0**-24:
            left = 0.0  # what is left is a multiple of x's last place and smaller than it
        lost = 2 * left + left**2
        lost += sum(
            sizes[i] * sizes[j] for i in range(len(rules)) for j in range(len(rules)) if (i, j) not in plan.products
        )
        return float(lost + words.accumulation_error(lambda i, j: sizes[i] * sizes[j], plan, spec, K))


@dataclass(frozen=True, kw_only=True)
class TwoParts(SplitScheme):
    """A split into a high part h = round(x) and a residual r = round((x - h) · residual_scale).

    In a product such as rh the first letter is A's part. The fields hold what most papers publish; a scheme restates
    the ones where it differs, and adds the names that it has for its scale, its steps and its promotion.
    """

    high_rounding: str = choose.rounding("RNE", "rounding of the high part")
    residual_rounding: str = choose.rounding("RNE", "rounding of the residual")
    products: tuple[str, ...] | None = choose.products(("rh", "hr", "hh"), "hr")
    accumulators: str = choose.accumulators("band")
    combine_in: str = choose.combine_in()

    def parts(self, scale: float, fmt: FloatFormat = FP16) -> tuple[Word, ...]:
        """The two words."""
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
