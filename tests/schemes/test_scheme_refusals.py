"""What the schemes refuse, and the words in which they do so: one line that names the argument and the amount."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma, schemes
from fpemu.mma import KOrder
from fpemu.schemes import format_split, get, split_table
from fpemu.schemes.ozaki import algorithm3

EYE = np.eye(2)
ONE = np.ones((2, 2), np.float32)
REFUSED = [
    ("otomo", {}, "did you mean 'ootomo'"),
    ("ootomo", {"hardware": None}, "give hardware="),
    ("ootomo", {"hardware": "ampre"}, "did you mean 'ampere'"),
    ("sgemm", {"hardware": "ampre"}, "did you mean 'ampere'"),
    ("ootomo-tf32", {"hardware": "volta"}, "volta has no matrix instruction for tf32"),
    ("ootomo", {"promot": 3}, "did you mean 'promote'"),
    ("h2sgemm", {"residual_scale": 2**11}, "unknown h2sgemm option 'residual_scale'"),
    ("sgemm", {"promote": 3}, "unknown sgemm option"),
    ("sgemm", {"hardwere": "A100"}, "did you mean 'hardware'"),
    ("ootomo", {"residual_scale": 2000}, "must be a power of two such as 2\\*\\*11, got 2000"),
    ("ootomo", {"residual_scale": -2.0}, "must be a power of two"),
    ("ootomo", {"residual_scale": True}, "must be a power of two"),
    ("ootomo", {"residual_scale": "big"}, "must be a power of two"),
    ("ootomo", {"residual_scale": 2.0**61}, "between 2\\^-60 and 2\\^60"),
    ("ootomo", {"promote": 0}, "ootomo option promote must be"),
    ("ootomo", {"promote": 1.5}, "ootomo option promote must be"),
    ("ootomo", {"promote": "stage"}, "ootomo option promote must be"),
    ("staged", {"stage": None}, "staged option stage must be"),
    ("ootomo", {"high_rounding": "SR"}, "needs seed="),
    ("ootomo", {"high_rounding": "nearst"}, "did you mean 'RNE'|unknown rounding mode"),
    ("ootomo-tf32", {"high_rounding": "bit-cut"}, "unknown rounding mode"),
    ("ootomo", {"products": ("hh", "hq")}, "unknown product in ootomo option products 'hq'"),
    ("ootomo", {"products": ("hh", "hh")}, "each product once"),
    ("ootomo", {"products": ()}, "at least one"),
    ("ootomo", {"products": None}, "must be a tuple"),
    ("ootomo", {"products": 3}, "must be a tuple"),
    ("ootomo", {"accumulators": "two"}, "unknown value for ootomo option accumulators"),
    ("ootomo", {"accumulators": "one"}, "cannot share one accumulator"),
    ("markidis", {"residual_scale": 2**11}, "cannot share one accumulator"),
    ("markidis", {"combine_in": "fp64"}, "leaves nothing to combine"),
    ("markidis", {"accumulators": "each", "step": 16}, "do not alternate"),
    ("markidis", {"refine": "A", "products": ("hr", "hh")}, "leaves B's residual out"),
    ("markidis", {"refine": "B"}, "unknown value for markidis option refine 'B'"),
    ("h2sgemm", {"sb": 12.0}, "sb = .* must be an integer from -60 to 60"),
    ("h2sgemm", {"sb": 99}, "sb = .* must be an integer from -60 to 60"),
    ("h2sgemm", {"combine": "element-wise", "promote": 16}, "have no effect"),
    ("h2sgemm", {"combine": "element-wise", "step": None}, "needs a step"),
    ("h2sgemm", {"combine": "element-wise", "order": KOrder(promote=16)}, "without promote"),
    ("multiword", {"words": 5}, "words = 5 must be an integer from 1 to 4"),
    ("multiword", {"words": 2, "products": ("13",)}, "more than the 2 words"),
    ("multiword", {"fmt": "bf16", "high_rounding": "bit-cut"}, "bit-cut makes fp16 words"),
    ("multiword", {"fmt": "fp64"}, "unknown value for multiword option fmt"),
    ("ootomo", {"promote": 64, "order": KOrder(promote=64)}, "say the same thing twice"),
    ("ootomo", {"promote": "instruction", "order": KOrder(promote=64)}, "say the same thing twice"),
    ("staged", {"stage": 64, "order": KOrder(promote=64)}, "say the same thing twice"),
    ("ootomo", {"order": "ascending"}, "KOrder"),
    ("fp16", {"order": "ascending"}, "KOrder"),
    ("ootomo", {"instruction": "wgmma", "hardware": "ampere"}, "no instruction wgmma"),
    ("ootomo", {"instruction": 3}, "must be a name or None"),
    ("ootomo", {"k": 12}, "no k = 12"),
    ("ootomo", {"k": 16, "hardware": mma.spec("hopper")}, "leave instruction= and k= out"),
    ("ootomo", {"hardware": mma.spec("hopper", "bf16")}, "multiplies fp16 by fp16 into fp32"),
    ("ootomo", {"hardware": mma.spec("hopper", "fp16", "fp16")}, "multiplies fp16 by fp16 into fp32"),
    ("fp16", {"accumulator": "fp16", "hardware": mma.spec("hopper")}, "into fp16"),
    ("fp16", {"accumulator": "fp16", "on_range": "scale"}, "above what an fp16 accumulator holds"),
    ("fp16", {"accumulator": "fp16", "on_range": "scale-rows"}, "above what an fp16 accumulator holds"),
    ("ootomo", {"on_range": "wrap"}, "unknown on_range 'wrap'"),
    ("ootomo", {"beta": 1e300}, "beta = 1e\\+300 is beyond the largest fp32 number"),
    ("ootomo", {"alpha": "1j"}, "alpha must be one real number"),
    ("ootomo", {"alpha": True}, "alpha must be one real number"),
    ("ootomo", {"alpha": [1.0]}, "alpha must be one real number"),
    ("ootomo", {"beta": 1.0}, "beta = 1.0 needs C, a matrix of shape \\(2, 2\\)"),
    ("ootomo", {"beta": 1.0, "C": np.ones((3, 2))}, "C of shape \\(3, 2\\) does not fit"),
    ("ootomo", {"beta": 1.0, "C": np.ones((2, 1))}, "C of shape \\(2, 1\\) does not fit"),
    ("ootomo", {"beta": 1.0, "C": [[0.1, 0], [0, 0]]}, "C: not fp32 numbers: 1 of 4 entries"),
    ("ootomo", {"A": np.ones((2, 3))}, "A of shape \\(2, 3\\) and B of shape \\(2, 2\\)"),
    ("ootomo", {"A": np.ones((3, 1, 2)), "B": np.ones((2, 2, 1))}, "batch axes do not broadcast"),
    ("ootomo", {"A": np.float32(1)}, "A must be a matrix"),
    ("ootomo", {"A": [[1, 2], [0.1, 0.3]]}, "2 of 4 entries, first at \\[1, 0\\]: 0.1; round it: A.astype"),
    ("ootomo", {"A": [[1, 2], [2**24 + 1, 0]]}, "A: not fp32 numbers: 1 of 4 entries"),
    ("ootomo", {"A": [[1e39, 2], [0, 0]]}, "A: not fp32 numbers"),
    ("ootomo", {"A": np.ones((2, 2), np.clongdouble)}, "complex numbers of at most 64 bits"),
    ("ootomo", {"A": [["a", "b"], ["c", "d"]]}, "real numbers"),
    ("ootomo", {"accumulators": (("hh", "rh"), ("hr",))}, "products of different scale"),
    ("ootomo", {"accumulators": (("hh",), ("rh",))}, "each of the products once"),
    ("ootomo", {"accumulators": (("hh",), ("rh", "hr", "rr"))}, "each of the products once"),
    ("ootomo", {"accumulators": (("hh",), ("rh", "hr", "hr"))}, "each of the products once"),
    ("ootomo", {"accumulators": ((), ("hh", "rh", "hr"))}, "at least one product"),
    ("ootomo", {"accumulators": 2}, "groups of products"),
    ("ootomo", {"accumulators": (("hh",), ("rx", "hr"))}, "product"),
    *(
        ("ootomo", {"promote": x}, "'N instructions'")
        for x in ("0 instructions", "instructions 4", "-1 instructions", "2.5 instructions", "")
    ),
    *(("egemm", {name: 3}, "egemm option") for name in ("correction_step", "block", "format")),
    *((scheme, {"high_rounding": "balanced"}, "balanced") for scheme in ("ootomo", "markidis")),
    ("ozaki", {"slicez": 3}, r"slicez.*slices"),
    ("ozimmu", {"modulii": 3}, "modulii"),
    ("ozaki2", {"slices": 3}, "slices"),
    ("ozaki", {"mode": "QP"}, r"QP.*CR"),
    ("ozaki", {"mode": 3}, "mode"),
    ("ozaki", {"split": "sideways"}, r"sideways.*balanced"),
    ("ozaki", {"words": "fp12"}, "fp12"),
    ("ozaki", {"carrier": "pigeon"}, r"pigeon.*blas"),
    ("ozaki", {"exponents": "column"}, r"column.*slice"),
    ("ozaki", {"fast": "yes"}, "fast"),
    ("ozaki", {"slices": 0}, "slices"),
    ("ozaki", {"slices": 2.5}, "slices"),
    ("ozaki", {"bits": 0}, "bits"),
    ("ozaki", {"k_block": 0}, "k_block"),
    ("ozaki", {"memory": -1}, "memory"),
    ("ozaki", {"precision": "fp16"}, "precision"),
    ("ozaki", {"mode": "DP", "precision": "fp32"}, "precision"),
    ("ozaki", {"mode": "SP", "precision": "fp64"}, "precision"),
    ("ozimmu", {"slices": 0}, "slices"),
    ("ozimmu", {"loss": -1.0}, "loss"),
    ("ozimmu", {"sums": "none"}, r"none.*group"),
    ("ozimmu", {"split": "published"}, r"published.*truncate"),
    ("ozimmu", {"group": 0}, "group"),
    ("ozaki2", {"moduli": 1}, "moduli.*2"),
    ("ozaki2", {"moduli": 21}, "moduli.*20"),
    ("ozaki2", {"moduli": 0}, "moduli"),
    ("ozaki2", {"scaling": "slow"}, r"slow.*accurate"),
    *((scheme, {"hardware": None}, "give hardware=") for scheme in ("ozaki", "ozimmu", "ozaki2")),
    *((scheme, {"hardware": "volta"}, r"volta.*int8") for scheme in ("ozimmu", "ozaki2")),
    ("ozaki", {"hardware": "volta", "words": "int8"}, r"volta.*int8"),
    ("ozaki", {"hardware": "turing", "words": "bf16"}, "bf16"),
    ("ozaki", {"hardware": "ampere", "instruction": "wgmma"}, "wgmma"),
    *(
        ("ozaki2", options, "ozaki2 option")
        for options in ({"moduli": 2.5}, {"scaling": "exact"}, {"precision": "fp16"})
    ),
]


@pytest.mark.parametrize(("scheme", "call", "message"), REFUSED, ids=str)
def test_products_that_are_refused(scheme, call, message):
    call = {"hardware": "hopper", "A": ONE, "B": ONE} | call
    A, B, C = call.pop("A"), call.pop("B"), call.pop("C", None)
    for product in (fpemu.gemm, fpemu.certify) if scheme in ("ozaki", "ozimmu", "ozaki2") else (fpemu.gemm,):
        with pytest.raises(InputError, match=message) as error:
            product(A, B, C, scheme=scheme, **call)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_table(0.1, "sgemm"), "sgemm does not split one number: it multiplies fp32 numbers"),
        (lambda: split_table(0.1, "ozaki"), "ozaki does not split one number: it cuts whole rows into slices"),
        (lambda: split_table(0.1, "staged-int8"), "it rounds its corrections to integers of 8 bits"),
        (lambda: split_table(0.1, "otomo"), "did you mean 'ootomo'"),
        (lambda: split_table("a", "ootomo"), "one real number"),
        (lambda: split_table([1, 2], "ootomo"), "one real number"),
        (lambda: split_table(None, "ootomo"), "one real number"),
        (lambda: split_table(float("nan"), "ootomo"), "must be a finite number"),
        (lambda: split_table(1e39, "ootomo"), "not a finite number of fp32's range"),
        (lambda: split_table(0.1, "h2sgemm", sbb=1), "unknown h2sgemm option 'sbb': did you mean 'sb'"),
        (lambda: format_split(0.1), "a SplitTable, or a number and a scheme"),
        (lambda: get("ootomo").split(0.1), r"1 of 1 entry, first 0\.1"),
        (lambda: algorithm3(**{"A": EYE, "B": EYE, **{"A": np.zeros((2, 0)), "B": np.zeros((0, 2))}}), "not empty"),
        (lambda: algorithm3(**{"A": EYE, "B": EYE, **{"A": np.zeros((2, 2, 2))}}), "one product of matrices"),
        (lambda: algorithm3(**{"A": EYE, "B": EYE, **{"A": np.full((2, 2), np.nan)}}), "A: NaN or infinite: 4 of 4"),
        (lambda: algorithm3(**{"A": EYE, "B": EYE, **{"precision": "fp16"}}), "unknown precision 'fp16'"),
        (lambda: algorithm3(**{"A": EYE, "B": EYE, **{"bits": 2.5}}), "bits = 2.5 must be an integer"),
        (lambda: algorithm3(**{"A": EYE, "B": EYE, **{"split": "foo"}}), "published"),
        (lambda: fpemu.certify(EYE, EYE, scheme="ootomo", hardware="hopper"), "ozaki"),
    ],
)
def test_other_calls_that_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


HH = ((0, 0),)
WRONG_PLANS: list[tuple[dict, str]] = [  # the fields of a plan, and what the message expects
    ({"products": ()}, "distinct pairs (index of A's word, index of B's word)"),
    ({"products": "hh"}, "or pairs(('rh', 'hh'), 'hr'), got 'hh'"),
    ({"products": ("hh",)}, "distinct pairs"),
    ({"products": (0, 0)}, "distinct pairs"),
    ({"products": ((0, 0, 1),)}, "distinct pairs"),
    ({"products": ((0, -1),)}, "distinct pairs"),
    ({"products": ((0, 0.0),)}, "distinct pairs"),
    ({"products": [(0, 0)]}, "must be a tuple"),
    ({"products": (*HH, *HH)}, "distinct pairs"),
    ({"products": None}, "distinct pairs"),
    ({"exponent": 2.5}, "exponent of a Plan"),
    ({"exponent": 61}, "exponent of a Plan"),
    ({"accumulators": "bands"}, "did you mean 'band'"),
    ({"accumulators": None}, "must be one, band, each, none or groups of products, got None"),
    ({"accumulators": (("hh",),)}, "a group of accumulators must be a tuple of distinct pairs"),
    ({"accumulators": (((0, 1),),)}, "must contain each of the products once"),
    ({"accumulators": (HH, HH)}, "must contain each of the products once"),
    ({"accumulators": ()}, "groups of products"),
    ({"step": 0}, "step of a Plan must be a length in k (a positive integer), 'instruction'"),
    ({"step": "instrction"}, "'N instructions' or None, got 'instrction'"),
    ({"promote": 16.5}, "promote of a Plan must be a length in k"),
    ({"promote_all": "yes"}, "promote_all of a Plan"),
    ({"join": 3}, "join"),
    ({"combine_in": "fp46"}, "did you mean 'fp64'"),
    ({"accumulators": "none", "promote": 16}, "promote has no effect"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG_PLANS, ids=[str(fields) for fields, _ in WRONG_PLANS])
def test_a_wrong_plan_says_what_is_expected(fields, words):
    with pytest.raises(InputError) as raised:
        schemes.Plan(**{"products": HH, **fields})
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def own(rules, plan):
    """A scheme of a user with these words and this plan."""

    @dataclass(frozen=True, kw_only=True)
    class Own(schemes.SplitScheme):
        info = schemes.SchemeInfo(name="own", title="A user's scheme")

        def rules(self):
            return rules

        def plan(self):
            return plan

    return Own


H, R = schemes.Word("h", "fp16"), schemes.Word("r", "fp16", exponent=11)
BOTH = schemes.pairs(("rh", "hh"), "hr")


@pytest.mark.parametrize(
    ("rules", "plan", "words"),
    [
        ((H,), schemes.Plan(BOTH), "the plan multiplies word 1, but rules() returns 1 words"),
        ((H, schemes.Word("r", "bf16")), schemes.Plan(BOTH), "the words must have one format"),
        ((H, R), schemes.Plan(BOTH, 8), "the exponents of the words are 0, 11: word i of a plan with exponent=8"),
        ((H, R), BOTH, "plan() must return a Plan"),
        ([H, R], schemes.Plan(BOTH, 11), "rules() must return a tuple of Words"),
        ((H, "r"), schemes.Plan(BOTH, 11), "rules() must return a tuple of Words"),
    ],
)
def test_words_that_do_not_fit_their_plan_are_refused(rules, plan, words):
    with pytest.raises(InputError) as raised:
        own(rules, plan)()
    assert words in str(raised.value)
    assert str(raised.value).startswith("own: ")


def test_names_of_products_and_fields_of_words_are_checked():
    for call, words in (
        (lambda: schemes.pairs(("rx",), "hr"), "unknown product 'rx'"),
        (lambda: schemes.pairs("hh", "hr"), "must be a tuple of names of two letters of 'hr'"),
        (lambda: schemes.groups([["hx"]], "hr"), "unknown product 'hx'"),
        (lambda: schemes.Word("h", "fp61"), "unknown format 'fp61'"),
        (lambda: schemes.Word("h", "fp16", exponent=1.5), "exponent of a Word"),
        (lambda: schemes.Word(0, "fp16"), "the name of a Word must be a text"),
    ):
        with pytest.raises(InputError) as raised:
            call()
        assert words in str(raised.value)


OWN = """
from dataclasses import dataclass
from fpemu import schemes
from fpemu.schemes.base import register

@register
@dataclass(frozen=True, kw_only=True)
class Own(schemes.SplitScheme):
    info = schemes.SchemeInfo(name="own", title="A user's scheme")
    rules = lambda self: (schemes.Word("h", "fp16"),)
    plan = lambda self: schemes.Plan(((0, 0),), promote=PROMOTE)
"""


@pytest.mark.parametrize("promote", ["None", "'instruction'"])
def test_a_plan_without_promotion_gives_a_warning(promote):
    command = [sys.executable, "-W", "error::UserWarning", "-c", OWN.replace("PROMOTE", promote)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    warned = "own: the accumulators are not promoted" in process.stderr
    assert (warned, process.returncode) == ((True, 1) if promote == "None" else (False, 0))
