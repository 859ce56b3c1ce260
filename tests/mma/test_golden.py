"""Bits that real GPUs returned: instructions, cuBLAS products, hand-written kernels. Origin: tests/data/README.md."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fpemu
from fpemu import mma, simt
from fpemu.mma import KOrder
from tests import golden, oracle
from tests.hostile import bits, carrier, integers

sys.path.insert(0, str(golden.DATA))


def assert_same(got, recorded, what):
    """No bit pattern differs; the counts are printed."""
    got, recorded = bits(got), np.asarray(recorded)
    assert got.dtype == recorded.dtype, f"{what}: {got.dtype} is not {recorded.dtype}"
    assert got.shape == recorded.shape, f"{what}: shape {got.shape} is not {recorded.shape}"
    different = int(np.count_nonzero(got != recorded))
    print(f"{what}: {different} of {recorded.size} outputs differ")
    assert different == 0, f"{what}: {different} of {recorded.size} outputs differ"
    return recorded.size


def test_the_part_at_hand_covers_everything():
    instructions = {n.split("/")[0] for n, _ in golden.groups("instructions")}
    assert len(instructions) == 15
    assert len(list(golden.groups("instructions"))) == 15 * 11
    assert {n.split("/")[0] for n, _ in golden.groups("library")} == {"f16", "bf16", "tf32", "f32", "f16out"}
    assert {n.split("/")[0] for n, _ in golden.groups("kernels")} == {"staged", "split-p64", "split-p128"}


def test_the_committed_part_is_cut_from_the_complete_files():
    if golden.folder() is None:
        pytest.skip("the complete recordings are not at hand (FPEMU_GOLDEN names their folder)")
    from tests.data.make_subset import subset

    cut = subset(golden.folder())
    with np.load(golden.COMMITTED) as z:
        assert sorted(z.files) == sorted(cut)
        for key in z.files:
            assert z[key].dtype == cut[key].dtype, key
            np.testing.assert_array_equal(bits(z[key]), bits(cut[key]), err_msg=key)
    assert golden.COMMITTED.stat().st_size < 2_000_000


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("name", golden.INSTRUCTIONS)
def test_instruction(name, backend):
    what = golden.parse(name)
    spec = mma.spec("hopper", what.ab, what.d, instruction=what.instruction, k=what.k)
    outputs = 0
    for key, x in golden.groups("instructions"):
        if key.split("/")[0] == name:
            A, B, C = carrier(x["A"], what.ab), carrier(x["B"], what.ab), carrier(x["C"], what.d)
            D = mma.execute(A, np.swapaxes(B, -1, -2), C, spec, backend=backend)
            outputs += assert_same(D, x["D"], key)
    assert outputs >= 11 * 384


@pytest.mark.parametrize("name", golden.INSTRUCTIONS)
def test_the_oracle_of_these_tests_gives_the_recorded_bits(name):
    what = golden.parse(name)
    ins = oracle.TABLE["hopper", what.instruction, what.ab, what.d, what.k]
    rng = np.random.default_rng(7)
    for key, x in golden.groups("instructions"):
        if key.split("/")[0] != name:
            continue
        for flat in rng.choice(x["D"].size, 60, replace=False):
            t, m, n = np.unravel_index(flat, x["D"].shape)
            got = ins.run(integers(x["A"][t, m]), integers(x["B"][t, n]), int(x["C"][t, m, n]))
            assert got == x["D"][t, m, n], f"{key} output {t}, {m}, {n}"


# --- cuBLAS on an H200: the orders found for these shapes; None: not determined
LIBRARY = {
    ("f16", "96x80x256"): KOrder(),
    ("f16", "128x128x1000"): KOrder(),
    ("f16", "64x2048x256"): KOrder(),
    ("bf16", "96x80x256"): KOrder(),
    ("bf16", "128x128x1000"): KOrder(),
    ("bf16", "64x2048x256"): KOrder(),
    ("tf32", "96x80x256"): KOrder(split=32),
    ("tf32", "128x128x1000"): KOrder(split=64),
    ("tf32", "64x2048x256"): KOrder(),
    ("f32", "96x80x256"): KOrder(split=32),
    ("f32", "128x128x1000"): None,
    ("f32", "64x2048x256"): None,
}


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize(("kind", "shape"), [(k, s) for (k, s), order in LIBRARY.items() if order is not None])
def test_library_product(kind, shape, backend):
    arrays = golden.load("library")
    keys = [k for k in arrays if k.startswith(f"{kind}/") and k.split("/")[2] == shape and k.endswith("/D")]
    assert keys
    for key in keys:
        seed = key.split("/")[1]
        source = f"{'tf32' if kind == 'f32' else kind}/{seed}/{shape}"
        ab = golden.FORMAT_NAMES[kind]
        A, B = carrier(arrays[f"{source}/A"], ab), carrier(arrays[f"{source}/Bt"], ab).T
        order = LIBRARY[kind, shape]
        if kind == "f32":
            D = simt.gemm(A, B, fmt="fp32", order=order, backend=backend)
            one_chain = bits(simt.gemm(A, B, fmt="fp32", backend=backend))
            assert np.count_nonzero(one_chain != arrays[key]) > D.size // 2
        else:
            if kind == "tf32":  # the library rounds to nearest; the instruction alone would truncate
                A, B = fpemu.round_to(A, "tf32"), fpemu.round_to(B, "tf32")
            D = mma.gemm(A, B, None, mma.spec("hopper", ab, "fp32"), order, backend=backend)
        assert_same(D, arrays[key], key)
        rounded = f"f16out/{seed}/{shape}/D"
        if kind == "f16":
            assert_same(D.astype(np.float16), arrays[rounded], rounded)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("kernel", ["staged", "split-p64", "split-p128"])
def test_kernel_of_three_products(kernel, backend):
    spec = mma.spec("hopper", "fp16", "fp32", instruction="wgmma")
    found = [(n, x) for n, x in golden.groups("kernels") if n.startswith(f"{kernel}/")]
    assert found
    for name, x in found:
        hA, rA, hB, rB = x["hA"], x["rA"], x["hB"].T, x["rB"].T
        if kernel == "staged":
            terms = [(rA, hB), (hA, rB), (hA, hB)]
            total = mma.chain(terms, None, spec, KOrder(promote=64), backend=backend)
            result = total * x["iA"][:, None] * x["iB"][None, :]
        else:
            main = mma.gemm(hA, hB, None, spec, KOrder(promote=int(kernel.removeprefix("split-p"))), backend=backend)
            corrections = mma.chain([(rA, hB), (hA, rB)], None, spec, step=64, backend=backend)
            result = main + corrections * np.float32(2.0**-11)
        assert_same(result, bits(x["C"]), name)


def test_another_order_of_the_corrections_does_not_give_the_kernel_s_bits():
    spec = mma.spec("hopper", "fp16", "fp32", instruction="wgmma")
    (_, x), *_ = [(n, x) for n, x in golden.groups("kernels") if n.startswith("split-p64/")]
    main = mma.gemm(x["hA"], x["hB"].T, None, spec, KOrder(promote=64))
    swapped = mma.chain([(x["hA"], x["rB"].T), (x["rA"], x["hB"].T)], None, spec, step=64)
    unstaged = mma.chain([(x["rA"], x["hB"].T), (x["hA"], x["rB"].T)], None, spec)
    right = mma.chain([(x["rA"], x["hB"].T), (x["hA"], x["rB"].T)], None, spec, step=64)
    assert np.array_equal(bits(main + right * np.float32(2.0**-11)), bits(x["C"]))
    assert not np.array_equal(bits(swapped), bits(right))
    assert not np.array_equal(bits(unstaged), bits(right))


# --- recordings of other GPUs, published by others; not part of this project

EXTERNAL = [
    ("V100", "volta", "fp16", "fp32", 4),
    ("V100", "volta", "fp16", "fp16", 4),
    ("A100", "ampere", "fp16", "fp32", 8),
    ("A100", "ampere", "fp16", "fp16", 8),
    ("A100", "ampere", "bf16", "fp32", 8),
    ("A100", "ampere", "tf32", "fp32", 4),
]


def recorded(gpu, ab, d):
    arrays = golden.load("external")
    if not arrays:
        pytest.skip("the V100 and A100 recordings are not at hand (FPEMU_GOLDEN names their folder)")
    return {key: arrays[f"{gpu}/{ab}-{d}/{key}"] for key in "ABCD"}


def executed(x, spec, ab, d, backend="compiled"):
    A, B, C = carrier(x["A"], ab)[:, None, :], carrier(x["B"], ab)[:, :, None], carrier(x["C"], d)[:, None, None]
    return mma.execute(A, B, C, spec, backend=backend)[:, 0, 0]


@pytest.mark.parametrize(("gpu", "architecture", "ab", "d", "k"), EXTERNAL)
def test_recordings_determine_all_fields_but_the_documented_ones(gpu, architecture, ab, d, k):
    x, spec = recorded(gpu, ab, d), mma.spec(architecture, ab, d, k=k)
    D = executed(x, spec, ab, d)
    others = {name: [getattr(spec, name) + step for step in (-1, 1)] for name in ("F", "E0")} | {"block": [k // 2]}
    for name, values in others.items():
        changed = [executed(x, spec.replace(**{name: value}), ab, d) for value in values]
        most = max(np.count_nonzero(E.view(f"u{E.itemsize}") != D.view(f"u{D.itemsize}")) for E in changed)
        assert (most <= 2) == (name in mma.catalog.documented_fields(spec)), (name, most)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize(("gpu", "architecture", "ab", "d", "k"), EXTERNAL)
def test_recordings_of_other_gpus(gpu, architecture, ab, d, k, backend):
    x = recorded(gpu, ab, d)
    spec = mma.spec(architecture, ab, d, k=k)
    assert (spec.k, spec.block) == (k, k)
    assert_same(executed(x, spec, ab, d, backend), x["D"], f"{gpu} {ab} to {d}")
    ins = oracle.TABLE[architecture, "mma", ab, d, k]
    for t in range(0, len(x["D"]), 25):
        assert ins.run(integers(x["A"][t]), integers(x["B"][t]), int(x["C"][t])) == x["D"][t], f"oracle, product {t}"
