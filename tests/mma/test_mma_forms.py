"""The compiled implementation has the bits of the NumPy reference for every row, shape, layout and order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import mma
from fpemu.errors import InputError
from fpemu.mma import KOrder
from tests import hostile
from tests.core.test_formats import ML_DTYPES
from tests.equal import same
from tests.hostile import bits, carrier, examples

ROWS = (*mma.catalog.rows(), *mma.catalog.FMA_SPECS.values())
HOPPER = mma.spec("hopper", "fp16", "fp32")
# one row of each arithmetic and result format
KINDS = [
    mma.spec("hopper", "fp16", "fp32"),
    mma.spec("ampere", "fp16", "fp16"),
    mma.spec("volta", "fp16", "fp32"),
    mma.spec("hopper", "tf32", "fp32"),
    mma.spec("hopper", "e4m3", "fp32", instruction="wgmma"),
    mma.spec("hopper", "e5m2", "fp32", instruction="mma"),
    mma.spec("ampere", "fp64", "fp64"),
    mma.spec("cdna1", "bf16", "fp32"),
    mma.spec("cdna2", "fp16", "fp32"),
    mma.spec("cdna3", "tf32", "fp32"),
    mma.spec("cdna3", "e4m3fnuz", "fp32"),
    mma.spec("ideal", "fp16", "fp16"),
    mma.spec("hopper", "int8"),
]


def draw(fmt, kind, rng, shape):
    """Operands of a class as the array that fpemu takes; integers for the integer instruction."""
    if str(fmt) == "uint8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    if str(fmt) in ("int8", "int32"):
        width = 8 if str(fmt) == "int8" else 32
        return rng.integers(-(2 ** (width - 1)), 2 ** (width - 1), shape).astype(f"i{width // 8}")
    if 0 in shape:
        return carrier(np.zeros(shape, hostile.code_dtype(hostile.FORMATS[str(fmt)])), str(fmt))
    return carrier(hostile.draw(str(fmt), kind, rng, shape), str(fmt))


orders = st.builds(
    lambda split, tile, first, promote, join: KOrder(split, tile, first and tile is not None, promote, join),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
    st.booleans(),
    st.none() | st.integers(1, 40),
    st.sampled_from(["ascending", "descending", "pairwise"]),
)
batches = st.sampled_from(
    [((), (), ()), ((2,), (2,), (2,)), ((3,), (), ()), ((), (2,), (1,)), ((2, 1), (3,), (1, 1)), ((0,), (1,), ())]
)


@pytest.mark.slow
@settings(max_examples=examples(160))
@given(st.data())
def test_compiled_is_the_numpy_reference(data):
    spec = data.draw(st.sampled_from(ROWS))
    M, N, K = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5)), data.draw(st.integers(0, 70))
    kind, rng = data.draw(st.sampled_from(hostile.CLASSES)), np.random.default_rng(data.draw(st.integers(0, 2**31)))
    leadA, leadB, leadC = data.draw(batches)
    A, B = draw(spec.a_format, kind, rng, (*leadA, M, K)), draw(spec.b_format, kind, rng, (*leadB, K, N))
    C = draw(spec.c_format, kind, rng, (*leadC, M, N)) if data.draw(st.booleans()) else None
    order = data.draw(st.none() | orders)
    if spec.is_integer and order is not None and (order.split or order.promote):
        order = None
    compiled, reference = (mma.gemm(A, B, C, spec, order, backend=backend) for backend in ("compiled", "numpy"))
    assert compiled.shape == (*np.broadcast_shapes(leadA, leadB, leadC if C is not None else ()), M, N)
    same(compiled, reference, what=f"{spec.name} {kind} {order}")


@settings(max_examples=examples(100))
@given(st.data())
def test_compiled_is_the_numpy_reference_for_several_products_in_one_accumulator(data):
    spec = data.draw(st.sampled_from([s for s in KINDS if str(s.a_format) != "int8"]))
    M, N, K = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(0, 70))
    kind, rng = data.draw(st.sampled_from(hostile.CLASSES)), np.random.default_rng(data.draw(st.integers(0, 2**31)))
    terms = [
        (draw(spec.a_format, kind, rng, (M, K)), draw(spec.b_format, kind, rng, (K, N)))
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    C = draw(spec.c_format, kind, rng, (M, N)) if data.draw(st.booleans()) else None
    step = data.draw(st.sampled_from([None, "instruction", spec.k, 2 * spec.k, 5 * spec.k]))
    order = data.draw(st.none() | orders)
    compiled, reference = (mma.chain(terms, C, spec, order, step=step, backend=b) for b in ("compiled", "numpy"))
    same(compiled, reference, what=f"{spec.name} {kind} {order} {step}")
    if len(terms) == 1:
        same(compiled, mma.gemm(*terms[0], C, spec, order), what="gemm is a chain of one product")


# --- layouts


def layouts(x):
    """The same matrix in other memory layouts."""
    wide = np.zeros((2 * x.shape[0] + 1, 3 * x.shape[1] + 2), x.dtype)
    wide[1::2, 2::3] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    return {
        "contiguous": x.copy(),
        "Fortran": np.asfortranarray(x),
        "transposed": np.ascontiguousarray(x.T).T,
        "stepped": wide[1::2, 2::3],
        "backwards": backwards,
        "read-only": frozen,
        "unaligned": unaligned,
        "swapped bytes": x.astype(x.dtype.newbyteorder(">")) if x.dtype.kind == "f" else x,
    }


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("spec", KINDS, ids=lambda s: s.name.replace(" ", "-"))
def test_layout_does_not_matter(spec, backend):
    rng = np.random.default_rng(0)
    A, B, C = (
        draw(f, "mixed", rng, s)
        for f, s in ((spec.a_format, (5, 37)), (spec.b_format, (37, 3)), (spec.c_format, (5, 3)))
    )
    want = mma.gemm(A, B, C, spec, backend=backend)
    before = [x.copy() for x in (A, B, C)]
    for name, x in layouts(A).items():
        same(mma.gemm(x, B, C, spec, backend=backend), want, what=f"A {name}")
    for name, x in layouts(B).items():
        same(mma.gemm(A, x, C, spec, backend=backend), want, what=f"B {name}")
    for name, x in layouts(C).items():
        same(mma.gemm(A, B, x, spec, backend=backend), want, what=f"C {name}")
    for x, y in zip((A, B, C), before, strict=True):
        same(x, y, what="operands are left alone")


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize(
    "spec", [pytest.param(s, id=s.name, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, s in enumerate(KINDS)]
)
def test_leading_axes_broadcast(spec, backend):
    rng = np.random.default_rng(1)
    A, B = draw(spec.a_format, "near-one", rng, (2, 1, 3, 20)), draw(spec.b_format, "near-one", rng, (4, 20, 2))
    C = draw(spec.c_format, "near-one", rng, (1, 1, 3, 2))
    D = mma.gemm(A, B, C, spec, backend=backend)
    assert D.shape == (2, 4, 3, 2)
    for i in range(2):
        for j in range(4):
            same(D[i, j], mma.gemm(A[i, 0], B[j], C[0, 0], spec, backend=backend))
    repeated = np.broadcast_to(A[:, 0], (2, 3, 20))[0]
    same(
        mma.gemm(np.broadcast_to(repeated, (6, 3, 20)), B[0], None, spec, backend=backend)[5],
        mma.gemm(A[0, 0], B[0], None, spec, backend=backend),
    )


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("spec", KINDS, ids=lambda s: s.name.replace(" ", "-"))
def test_each_output_depends_on_its_row_and_column_alone(spec, backend):
    rng = np.random.default_rng(2)
    M, N, K = 67, 35, 2 * spec.k + 3  # more than one tile of any blocking
    A, B, C = (
        draw(f, "mixed", rng, s) for f, s in ((spec.a_format, (M, K)), (spec.b_format, (K, N)), (spec.c_format, (M, N)))
    )
    D = mma.gemm(A, B, C, spec, backend=backend)
    for i, j in ((0, 0), (66, 34), (31, 33), (64, 1)):
        same(
            D[i : i + 1, j : j + 1],
            mma.gemm(A[i : i + 1], B[:, j : j + 1], C[i : i + 1, j : j + 1], spec, backend=backend),
        )


# --- shapes at the edge


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("spec", KINDS, ids=lambda s: s.name.replace(" ", "-"))
def test_empty_dimensions(spec, backend):
    rng = np.random.default_rng(3)
    dtype = mma.gemm(
        *(draw(f, "finite", rng, (1, 1)) for f in (spec.a_format, spec.b_format)), None, spec, backend=backend
    ).dtype
    for M, N, K in ((0, 3, 5), (3, 0, 5), (0, 0, 0), (2, 3, 0)):
        A, B = draw(spec.a_format, "finite", rng, (M, K)), draw(spec.b_format, "finite", rng, (K, N))
        D = mma.gemm(A, B, None, spec, backend=backend)
        assert D.shape == (M, N)
        assert D.dtype == dtype
        assert not bits(D).any()
    # no instruction runs when K is 0: C comes back
    C = draw(spec.c_format, "finite", rng, (2, 3))
    D = mma.gemm(
        draw(spec.a_format, "finite", rng, (2, 0)), draw(spec.b_format, "finite", rng, (0, 3)), C, spec, backend=backend
    )
    assert np.array_equal(D, C)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("spec", KINDS, ids=lambda s: s.name.replace(" ", "-"))
def test_k_is_filled_up_with_zeros(spec, backend):
    rng = np.random.default_rng(4)
    for K in (1, spec.block + 1, spec.k - 1, spec.k + 1):
        A, B = draw(spec.a_format, "near-one", rng, (3, K)), draw(spec.b_format, "near-one", rng, (K, 2))
        C = draw(spec.c_format, "near-one", rng, (3, 2))
        more = -K % spec.k
        padded = np.pad(A, ((0, 0), (0, more))), np.pad(B, ((0, more), (0, 0)))
        same(mma.gemm(A, B, C, spec, backend=backend), mma.gemm(*padded, C, spec, backend=backend), what=f"K = {K}")


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("spec", KINDS, ids=lambda s: s.name.replace(" ", "-"))
def test_gemm_is_a_chain_of_instructions(spec, backend):
    rng = np.random.default_rng(5)
    k = spec.k
    A, B, C = (
        draw(f, "mixed", rng, s)
        for f, s in ((spec.a_format, (4, 3 * k)), (spec.b_format, (3 * k, 5)), (spec.c_format, (4, 5)))
    )
    D = C
    for s in range(0, 3 * k, k):
        D = mma.execute(A[:, s : s + k], B[s : s + k], D, spec, backend=backend)
    same(mma.gemm(A, B, C, spec, backend=backend), D)
    same(
        mma.execute(A[:, :k], B[:k], None, spec, backend=backend),
        mma.gemm(A[:, :k], B[:k], None, spec, backend=backend),
    )


@pytest.mark.parametrize("name", ["bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_ml_dtypes_operands_are_taken(name):
    spec = mma.spec("blackwell", name, "fp32", instruction="mma" if name == "bf16" else "tcgen05")
    dtype = ML_DTYPES[name]
    rng = np.random.default_rng(6)
    A, B = draw(name, "finite", rng, (3, 40)), draw(name, "finite", rng, (40, 2))
    same(mma.gemm(A.astype(dtype), B.astype(dtype), None, spec), mma.gemm(A, B, None, spec))


# --- what is refused


def zeros(*shape, dtype=np.float16):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize(
    ("A", "B", "C"),
    [
        (zeros(3, 4), zeros(5, 2), None),
        (zeros(), zeros(4, 2), None),
        (zeros(3, 4), zeros(), None),
        (zeros(3, 4), zeros(4, 2), zeros(2, 3, dtype=np.float32)),
        (zeros(3, 4), zeros(4, 2), zeros(2, dtype=np.float32)),
        (zeros(2, 3, 4), zeros(3, 4, 2), None),
        (zeros(3, 4, dtype=complex), zeros(4, 2), None),
        (np.full((3, 4), 0.1), zeros(4, 2), None),
        (np.full((3, 4), 1e6, np.float32), zeros(4, 2), None),
        (zeros(3, 4), zeros(4, 2), np.full((3, 2), 0.1)),
        (np.array([["a"]]), zeros(1, 1), None),
        (None, zeros(1, 1), None),
    ],
)
def test_wrong_operands(A, B, C, backend):
    with pytest.raises(InputError) as e:
        mma.gemm(A, B, C, HOPPER, backend=backend)
    assert "\n" not in str(e.value)


def test_values_outside_the_format_are_counted():
    A = np.ones((2, 4), np.float32)
    A[1, 2], A[1, 3] = 1 + 2.0**-8, 3 + 2.0**-20
    spec = mma.spec("hopper", "bf16", "fp32")
    with pytest.raises(InputError, match=r"2 of 8 entries, first at \[1, 2\]"):
        mma.gemm(A, np.ones((4, 1), np.float32), None, spec)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
def test_execute_takes_exactly_one_instruction(backend):
    with pytest.raises(InputError, match="16"):
        mma.execute(zeros(3, 8), zeros(8, 2), None, HOPPER, backend=backend)
    with pytest.raises(InputError, match="16"):
        mma.execute(zeros(3, 32), zeros(32, 2), None, HOPPER, backend=backend)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (([],), {}),
        (([(zeros(2, 16), zeros(16, 2)), (zeros(2, 15), zeros(15, 2))],), {}),
        (([(zeros(2, 16), zeros(16, 2)), (zeros(3, 16), zeros(16, 2))],), {}),
        (([(zeros(2, 16), zeros(16, 2))],), {"step": 0}),
        (([(zeros(2, 16), zeros(16, 2))],), {"step": -16}),
        (([(zeros(2, 16), zeros(16, 2))],), {"step": "block"}),
        (([(zeros(2, 16), zeros(16, 2))],), {"backend": "cuda"}),
    ],
)
def test_wrong_chains(arguments, options):
    with pytest.raises(InputError):
        mma.chain(*arguments, None, HOPPER, **options)


# --- names of hardware as drivers print them


DRIVERS = {
    "volta": "Tesla V100-SXM2-16GB, Tesla V100-PCIE-32GB, Tesla V100S-PCIE-32GB, NVIDIA TITAN V, Quadro GV100, sm_72",
    "turing": "Tesla T4, NVIDIA GeForce RTX 2080 Ti, NVIDIA GeForce RTX 2070 SUPER, Quadro RTX 6000, NVIDIA TITAN RTX",
    "ampere": "NVIDIA A100-SXM4-80GB, NVIDIA A100 80GB PCIe, A100-PCIE-40GB, GRID A100-10C, NVIDIA A10G, RTX 3080, "
    "NVIDIA GeForce RTX 3070 Ti Laptop GPU, RTX A4000, NVIDIA RTX A6000, sm_87, compute_80",
    "ada": "NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 4090 D, NVIDIA L40S, NVIDIA RTX 6000 Ada Generation, sm_89",
    "hopper": "NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe, NVIDIA H100 NVL, NVIDIA GH200 480GB, NVIDIA H20-3e, sm_90a",
    "blackwell": "NVIDIA B200, NVIDIA GB200, NVIDIA B300 SXM6 AC, sm_103, sm_100f",
    "blackwell-rtx": "NVIDIA GeForce RTX 5080, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, NVIDIA GB10, sm_121",
    "cdna1": "AMD Instinct MI100, gfx908:sramecc+:xnack-",
    "cdna2": "MI200, AMD Instinct MI250X / MI250, gfx90a, gfx90a:sramecc+:xnack-",
    "cdna3": "AMD Instinct MI300X, MI325X, gfx942",
}
NO_MODEL = "MI350X, AMD Instinct MI355X, gfx950, gfx1100, Radeon RX 7900 XTX, GTX 1080 Ti, Tesla P100-PCIE-16GB, sm_61"


@pytest.mark.parametrize("architecture", DRIVERS)
def test_names_of_gpus_as_their_drivers_print_them(architecture):
    for name in DRIVERS[architecture].split(", "):
        assert mma.catalog.architecture(name) == architecture, name


@pytest.mark.parametrize("name", NO_MODEL.split(", "))
def test_a_gpu_without_a_model_is_not_mistaken_for_another(name):
    with pytest.raises(InputError, match=r"has no model yet") as caught:
        mma.catalog.architecture(name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"), [("A10O", "A100"), ("hoper", "hopper"), ("H2000", "H200"), ("RTX 3085", None), ("sm_81", None)]
)
def test_a_suggestion_has_the_number_of_the_name(name, near):
    with pytest.raises(InputError, match=f"unknown hardware '{name}'") as caught:
        mma.catalog.architecture(name)
    assert ("did you mean" in str(caught.value)) == (near is not None)
    assert near is None or f"'{near}'" in str(caught.value)
