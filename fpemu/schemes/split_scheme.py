"""Split schemes: words of a low format (`rules`) and the plan of their products (`plan`), run by `lowering`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from fpemu.arguments import choice
from fpemu.errors import shown
from fpemu.formats import FP16, FP32, FloatFormat
from fpemu.mma.spec import MmaSpec
from fpemu.schemes import lowering as lowerings
from fpemu.schemes import options as choose
from fpemu.schemes import words
from fpemu.schemes.base import Array, Call, Scheme, as_operand, matrix_instruction
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.words import OverflowPolicy, Plan, Prepared, Word


@dataclass(frozen=True, kw_only=True)
class SplitScheme(Scheme):
    """A scheme that multiplies words of a low format on a matrix instruction.

    Parameters
    ----------
    instruction, k : str or None
        Matrix instruction and its length in k; None: the widest.
    random_bits, seed : int or None
        Random bits and seed of words that are rounded by SR; see `fpemu.schemes.words.Word`.
    """

    runs_by_plan: ClassVar[bool] = True
    scales_rows: ClassVar[bool] = False

    instruction: str | None = choose.name("matrix instruction (None: the widest)", "mma | wgmma | tcgen05 | mfma")
    k: int | None = choose.integer(None, 1, 4096, "length in k of the instruction (None: the largest)", none=True)

    random_bits: int | None = choose.integer(None, 1, 64, "random bits of rounding by SR (None: 32)", none=True)
    seed: int | None = choose.integer(None, 0, 2**63 - 1, "seed of rounding by SR", none=True)

    def word(self, name: str, fmt: FloatFormat, rounding: str, exponent: int = 0) -> Word:
        """A word with the scheme's random bits and seed, if it is rounded by SR."""
        random = (self.random_bits, self.seed) if rounding == "SR" else ()
        return Word(name, fmt, rounding, exponent, *random)

    @abstractmethod
    def rules(self) -> tuple[Word, ...]:
        """The rule of every word of the split."""

    @abstractmethod
    def plan(self) -> Plan:
        """The products of words, their accumulators and the final combination."""

    def plan_of(
        self,
        products: Sequence[str],
        letters: str,
        exponent: int,
        step: int | str | None,
        promote: int | str | None,
        **fields: Any,
    ) -> Plan:
        """The plan of products by name, for a scheme with the options `accumulators` and `combine_in`."""
        own: Any = self
        pairs, groups = words.pairs(products, letters), words.groups(own.accumulators, letters)
        return Plan(pairs, exponent, groups, step, promote, combine_in=own.combine_in, **fields)

    @property
    def takes_trees(self) -> bool:
        plan = self.plan()
        return len(plan.products) == 1 and plan.promote is None and plan.accumulators != "none"

    @property
    def accumulator_format(self) -> str:
        """Format of the instruction's C and D."""
        return "fp32"

    def check(self) -> None:
        plan, rules = self.plan(), self.rules()
        if not isinstance(plan, Plan):
            self.refuse(f"plan() must return a Plan, not {shown(plan)}")
        if not isinstance(rules, tuple) or not rules or not all(isinstance(word, Word) for word in rules):
            self.refuse(f"rules() must return a tuple of Words, not {shown(rules)}")
        if len({word.format for word in rules}) > 1:
            self.refuse("the words must have one format: one instruction multiplies them all")
        if (most := max(max(pair) for pair in plan.products)) >= len(rules):
            self.refuse(
                f"the plan multiplies word {most}, but rules() returns {len(rules)} words, 0 to {len(rules) - 1}"
            )
        if any(word.exponent != i * plan.exponent for i, word in enumerate(rules)):
            scales = ", ".join(str(word.exponent) for word in rules)
            self.refuse(
                f"the exponents of the words are {scales}: word i of a plan with exponent={plan.exponent} has the"
                f" exponent {plan.exponent} i"
            )
        if (self.random_bits, self.seed) != (None, None) and not any(word.rounding == "SR" for word in rules):
            self.refuse("random_bits and seed have no effect: no word is rounded by 'SR'")
        if plan.shares_one and plan.combine_in == "fp64":
            self.refuse("one accumulator leaves nothing to combine, so combine_in='fp64' has no effect")
        runs = [products for _, products in plan.groups()]
        if plan.exponent and any(len({i + j for i, j in products}) > 1 for products in runs):
            self.refuse(
                f"products of different scale (2^{plan.exponent}) cannot share one accumulator: "
                "residual_scale=1, or accumulators='band' or 'each'"
            )
        alone = plan.accumulators == "each" or not (
            isinstance(plan.accumulators, str) or any(len(products) > 1 for products in runs)
        )
        if alone and getattr(self, "step", None) != getattr(type(self), "step", None):
            self.refuse("products with an accumulator each do not alternate, so the step has no effect")

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The matrix instruction that the scheme runs on; without one for its formats InputError."""
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

        `operand` matters to balanced splits only. Entries that are not fp32 numbers raise InputError.
        """
        rules = words.of_operand(self.rules(), choice("operand", operand, ("A", "B")))
        return words.split(as_operand(X, f"X of {self.name}.split", FP32, axes=0), rules)

    def lowering(self, spec: MmaSpec | None, order: Any = None) -> Lowering:
        """The products of words in the order run on an instruction, in an order over K."""
        assert spec is not None
        return lowerings.lower(self.rules(), self.plan(), spec, order)

    def scaling(self, on_range: str) -> OverflowPolicy:
        """The overflow policy whose powers of two scale the operands."""
        return OverflowPolicy.SCALE_ROWS if self.scales_rows else OverflowPolicy(on_range)

    def check_policy(self, on_range: OverflowPolicy) -> None:
        if on_range == OverflowPolicy.HARDWARE and self.scales_rows:
            self.refuse(
                "on_range='hardware' splits NaN and Inf like numbers, and this scheme scales by the largest entry"
            )
        if self.accumulator_format == "fp16" and on_range.scales:
            self.refuse(f"on_range='{on_range}' brings products to 2^26, above what an fp16 accumulator holds")

    def check_operand(self, X: Array, name: str, on_range: OverflowPolicy) -> None:
        self.prepare(X, name, on_range)

    def prepare(self, X: Array, name: str, on_range: str) -> Prepared:
        """Scale operand "A" or "B" by its overflow policy and split it; entries that the policy refuses raise."""
        return words.prepare(X, name, self._rules, on_range, self.scaling(on_range), self.name)

    @cached_property
    def _rules(self) -> tuple[Word, ...]:
        return self.rules()

    def product(self, call: Call) -> Array:
        assert call.lowering is not None
        a, b = self.prepare(call.A, "A", call.on_range), self.prepare(call.B, "B", call.on_range)
        T = lowerings.run(a.words, b.words, call.lowering, call.spec, call.device)
        return words.patch(words.undo(T, a, b), call.A, call.B, a.special, b.special)


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
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("band")
    combine_in: Literal["fp32", "fp64"] = choose.combine_in()

    def rules(self) -> tuple[Word, ...]:
        return self.words_of_scale(getattr(self, "residual_scale"))  # noqa: B009 (a field of most subclasses)

    def words_of_scale(self, scale: float) -> tuple[Word, ...]:
        """The two words."""
        fmt = self.word_format
        return self.word("h", fmt, self.high_rounding), self.word("r", fmt, self.residual_rounding, exponent_of(scale))

    def plan(self) -> Plan:
        own: Any = self  # with the options of all schemes but those with a plan of their own
        return self.plan_of(self.kept(), "hr", exponent_of(own.residual_scale), own.step, own.promote)

    def sums(self, scale: float, step: int | str | None, promote: int | str | None) -> Plan:
        """The plan of the products for a scale, steps and a promotion interval."""
        return self.plan_of(self.kept(), "hr", exponent_of(scale), step, promote)

    def kept(self) -> tuple[str, ...]:
        """The products, in the order of computation."""
        return self.products or ()


def exponent_of(scale: float) -> int:
    """Binary exponent of a power of two."""
    return int(np.frexp(scale)[1]) - 1
