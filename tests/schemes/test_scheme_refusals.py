"""What the schemes refuse, and the words in which they do so: one line that names the argument and the amount."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma
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
    ("ootomo", {"high_rounding": "SR"}, "needs random bits"),
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
    ("ootomo", {"alpha": 1j}, "alpha must be one real number"),
    ("ootomo", {"alpha": True}, "alpha must be one real number"),
    ("ootomo", {"alpha": [1.0]}, "alpha must be one real number"),
    ("ootomo", {"beta": 1.0}, "beta = 1.0 needs C, a matrix of shape \\(2, 2\\)"),
    ("ootomo", {"beta": 1.0, "C": np.ones((3, 2))}, "C of shape \\(3, 2\\) does not fit"),
    ("ootomo", {"beta": 1.0, "C": np.ones((2, 1))}, "C of shape \\(2, 1\\) does not fit"),
    ("ootomo", {"beta": 1.0, "C": [[0.1, 0], [0, 0]]}, "C: not fp32 numbers: 1 of 4 entries"),
    ("ootomo", {"A": np.ones((2, 3))}, "A of shape \\(2, 3\\) and B of shape \\(2, 2\\)"),
    ("ootomo", {"A": np.ones((3, 1, 2)), "B": np.ones((2, 2, 1))}, "batch axes do not broadcast"),
    ("ootomo", {"A": np.ones(2)}, "A must be a matrix"),
    ("ootomo", {"A": [[1, 2], [0.1, 0.3]]}, "2 of 4 entries, first at \\[1, 0\\]: 0.1; round it: A.astype"),
    ("ootomo", {"A": [[1, 2], [2**24 + 1, 0]]}, "A: not fp32 numbers: 1 of 4 entries"),
    ("ootomo", {"A": [[1e39, 2], [0, 0]]}, "A: not fp32 numbers"),
    ("ootomo", {"A": np.ones((2, 2), bool)}, "real numbers"),
    ("ootomo", {"A": np.ones((2, 2), complex)}, "real numbers"),
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
