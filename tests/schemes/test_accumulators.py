"""Groups of products in one accumulator, and intervals in instructions: against chains written out."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import mma, roofline, schemes, theory

GENERATOR = np.random.default_rng(7)
A, B = GENERATOR.standard_normal((24, 200)).astype(np.float32), GENERATOR.standard_normal((200, 16)).astype(np.float32)
LOW = ("31", "22", "13", "21", "12")
GROUPS = (("11",), LOW)


def _chain(scheme, spec, names, order=None):
    a, b = scheme.split(A, "A"), scheme.split(B, "B")
    return mma.chain([(a[int(i) - 1], b[int(j) - 1]) for i, j in names], None, spec, order, step=spec.k)


@pytest.mark.parametrize("hardware", ["A100", "H200", "V100"])
def test_one_product_in_one_accumulator_and_five_in_another(hardware):
    if hardware == "V100":  # no bf16: three words of fp16 instead
        scheme = schemes.build("multiword", {"words": 3, "residual_scale": 1.0, "promote": None, "step": "instruction"})
        scheme = schemes.build(scheme, {"products": ("11", *LOW), "accumulators": GROUPS})
    else:
        scheme = schemes.build("bf16x6", {"residual_scale": 1.0, "accumulators": GROUPS})
    spec = scheme.spec(hardware)
    low, main = _chain(scheme, spec, LOW), _chain(scheme, spec, ("11",))
    assert np.array_equal(fpemu.gemm(A, B, scheme=scheme, hardware=hardware), low + main)
    promoted = schemes.build(scheme, {"promote": "2 instructions"})
    order = mma.KOrder(promote=2 * spec.k)
    low, main = _chain(scheme, spec, LOW, order), _chain(scheme, spec, ("11",), order)
    assert np.array_equal(fpemu.gemm(A, B, scheme=promoted, hardware=hardware), low + main)


@pytest.mark.parametrize(
    ("scheme", "name", "groups"),
    [
        ("ootomo", "band", (("hh",), ("rh", "hr"))),
        ("ootomo", "band", "hr, rh; hh"),
        ("h2sgemm", "each", [["hh"], ["hr"], ["rh"]]),
        ("egemm", "one", (("hh", "rr", "rh", "hr"),)),
        ("egemm", "band", "rr; rh, hr; hh"),
        ("bf16x9", "each", tuple((name,) for name in schemes.get("bf16x9").products)),
    ],
)
def test_groups_that_a_name_describes_have_its_bits_and_its_bound(scheme, name, groups):
    named, grouped = (schemes.build(scheme, {"accumulators": value}) for value in (name, groups))
    options = {"hardware": "A100", "on_range": "propagate"}
    assert np.array_equal(fpemu.gemm(A, B, scheme=named, **options), fpemu.gemm(A, B, scheme=grouped, **options))
    norms = theory.Norms.of(A, B)
    assert theory.bound(named, "A100", norms=norms).worst == theory.bound(grouped, "A100", norms=norms).worst
    assert roofline.work(named, "A100", 64, 64, 64) == roofline.work(grouped, "A100", 64, 64, 64)


@pytest.mark.parametrize("groups", [GROUPS, (("11", "31"), ("22", "13", "21", "12"))])
@pytest.mark.parametrize("kind", ["uniform", "phi"])
def test_the_bound_holds_for_groups(groups, kind):
    scheme = schemes.build("bf16x6", {"residual_scale": 1.0, "accumulators": groups})
    a, b = fpemu.inputs.operands(kind, 32, 32, 512, 3, "fp32")
    D = fpemu.gemm(a, b, scheme=scheme, hardware="A100")
    error = fpemu.metrics.normwise(D, fpemu.reference.matmul(a, b), a, b)
    bound = theory.bound(scheme, "A100", norms=theory.Norms.of(a, b))
    assert 0 < error <= bound.worst
    assert error <= bound.probable(1e-3)


@pytest.mark.parametrize("hardware", ["V100", "A100", "H200"])
@pytest.mark.parametrize(("scheme", "option"), [("ootomo", "promote"), ("ootomo", "step"), ("staged", "stage")])
def test_instructions_are_a_length_in_k(scheme, option, hardware):
    k = schemes.get(scheme).spec(hardware).k
    both = [schemes.build(scheme, {option: value}) for value in (f"{64 // k} instructions", 64)]
    bits = [fpemu.gemm(A, B, scheme=chosen, hardware=hardware).view(np.uint32) for chosen in both]
    assert np.array_equal(*bits)
    assert schemes.build(scheme, {option: "1 instructions"}) == schemes.build(scheme, {option: "instruction"})


@pytest.mark.parametrize(
    ("scheme", "former", "current"),
    [
        ("ootomo", {"correction_step": 64}, {"step": 64}),
        ("ootomo-tf32", {"correction_step": None}, {"step": None}),
        ("legemm", {"correction_step": "instruction"}, {"step": "instruction"}),
        ("multiword", {"block": 3, "format": "bf16"}, {"promote": "3 instructions", "fmt": "bf16"}),
        ("multiword", {"block": None}, {"promote": None}),
    ],
)
def test_recorded_options_of_former_names_build_the_scheme(scheme, former, current):
    assert schemes.build(scheme, former) == schemes.build(scheme, current)
