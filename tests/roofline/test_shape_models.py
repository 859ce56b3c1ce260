"""The models of MAGMA's batched kernels and of TSM2: against counting, multiplying out and trying all."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fpemu import InputError, roofline
from fpemu.reproduce import pages
from fpemu.roofline import gpus

ROOT = Path(__file__).resolve().parents[2] / "experiments"
magma, tsm2 = pages.model("magma"), pages.model("tsm2")


# --- MAGMA: traffic and rooflines
def _touched(M, N, K, block):
    """Elements of A and B read, by walking over the thread blocks with the indices themselves."""
    reads = 0
    for i in range(0, M, block[0]):
        for j in range(0, N, block[1]):
            reads += len({(a, k) for a in range(i, min(i + block[0], M)) for k in range(K)})
            reads += len({(k, b) for b in range(j, min(j + block[1], N)) for k in range(K)})
    return reads


@pytest.mark.parametrize(("M", "N", "K", "block"), [(64, 48, 3, (16, 16)), (33, 70, 2, (32, 24)), (5, 9, 4, (16, 8))])
def test_loads_are_those_of_a_walk_over_the_blocks(M, N, K, block):
    assert magma.loads(M, N, K, block) == _touched(M, N, K, block)


def test_the_published_reductions_and_the_formula_at_whole_blocks():
    assert magma.traffic_reduction((64, 64), (16, 16)) == 4
    assert magma.traffic_reduction((64, 64), (32, 8)) == 5
    for block in ((32, 64), (128, 16), (96, 48)):
        M, N = 2 * block[0], 2 * block[1]
        ratio = _touched(M, N, 1, (16, 16)) / _touched(M, N, 1, block)
        assert magma.traffic_reduction(block, (16, 16)) == ratio


def test_intensities_are_operations_over_bytes_counted_by_hand():
    # 2×3 times 3×2 of complex numbers: 2·2·3 multiply-adds of 8 operations, 8 + 6 + 6 elements of 4 bytes
    assert magma.operational_intensity(2, 2, 3) == 12 * 8 / (20 * 4)
    assert magma.operational_intensity(2, 2, 3, "planar") == 4 * 12 * 2 / (4 * 20 * 2)
    assert magma.operational_intensity(2, 2, 3, "planar, one kernel") == magma.operational_intensity(2, 2, 3)
    assert magma.operational_intensity(2, 2, 3, "real") == 12 * 2 / (20 * 2)


@pytest.mark.parametrize("layout", ["interleaved", "planar", "real"])
@pytest.mark.parametrize("K", [None, 16, 200, 500])
def test_the_crossing_is_where_the_bound_meets_the_peak(layout, K):
    gpu = gpus.get("V100")
    n = magma.crossing(gpu, layout, K)
    if math.isinf(n):
        assert magma.bound(10**6, 10**6, K, layout, gpu) < gpu.need("fp16 matrix")
        return
    below, above = math.floor(n - 1e-6), math.ceil(n + 1e-6)
    assert magma.bound(below, below, K or below, layout, gpu) < gpu.need("fp16 matrix")
    assert magma.bound(above, above, K or above, layout, gpu) == gpu.need("fp16 matrix")


# --- MAGMA: several products in one instruction
def _right(places, n, shape):
    generator = np.random.default_rng(7)
    A, B = np.zeros((shape[0], shape[2]), int), np.zeros((shape[2], shape[1]), int)
    pairs = generator.integers(1, 100, (len(places), 2, n, n))
    for (r, q, s), (a, b) in zip(places, pairs, strict=True):
        A[r * n : (r + 1) * n, s * n : (s + 1) * n] = a
        B[s * n : (s + 1) * n, q * n : (q + 1) * n] = b
    D = A @ B
    return all(
        (D[r * n : (r + 1) * n, q * n : (q + 1) * n] == a @ b).all()
        for (r, q, _), (a, b) in zip(places, pairs, strict=True)
    )


@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 8, 16), (8, 32, 16), (8, 8, 4), (16, 8, 16)])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_packed_products_come_out_right_when_multiplied_together(shape, n):
    for paper in (True, False):
        packing = magma.pack(n, shape, paper=paper)
        if n <= min(shape):
            assert magma.valid(packing.places)
            assert _right(packing.places, n, shape)
            assert packing.instructions == 1
        assert packing.products == len(packing.places) >= 1
    assert magma.utilisation(n, shape, paper=False) >= magma.utilisation(n, shape)


def test_validity_is_what_multiplying_shows_on_random_arrangements():
    generator = np.random.default_rng(3)
    cube = list(itertools.product(range(3), repeat=3))
    seen = set()
    for _ in range(300):
        places = [cube[i] for i in generator.choice(27, generator.integers(2, 6), replace=False)]
        valid = magma.valid(places)
        assert valid == _right(places, 2, (6, 6, 6))
        seen.add(valid)
    assert seen == {True, False}


def test_the_largest_arrangement_of_eight_places_by_trying_all_subsets():
    cube = list(itertools.product(range(2), repeat=3))
    most = max(count for count in range(9) for places in itertools.combinations(cube, count) if magma.valid(places))
    assert len(magma.arrange(2, 2, 2)) == most == 2


def test_the_paper_s_utilisation():
    for n in range(1, 17):
        assert magma.utilisation(n) == (16 // n) * 2 * n**3 / 8192
    assert magma.utilisation(4) == 0.0625
    assert magma.pack(17, (16, 16, 16)).instructions == 8


# --- MAGMA: configurations
def _allowed(tensor, block, threads):
    """Section 5.8, once more and in other words."""
    whole = all(b // t * t == b for t, b in zip(tensor, block, strict=True))
    even = all(b // d * d == b for d in threads for b in block)
    return whole and even and math.prod(threads) in range(32, 1025, 32)


def test_configurations_are_all_that_section_5_8_allows_and_no_others():
    found = {(k.tensor, k.block, k.threads) for k in magma.configurations(32)}
    sides = range(8, 33, 8)
    tried = {
        (tensor, block, threads)
        for tensor in magma.TENSOR
        for block in itertools.product(sides, repeat=3)
        for threads in itertools.product(range(1, 33), repeat=2)
        if _allowed(tensor, block, threads)
    }
    assert found == tried
    assert len(found) == 217


def test_the_printed_code_needs_less_than_the_printed_condition():
    # DIM_X = 3 · 16 divides BLK_M and BLK_K but not BLK_N: no loop of the code steps by DIM_X over N
    kernel = magma.Kernel((16, 16, 16), (48, 64, 48), (48, 2))
    magma.check(kernel, printed=False)
    with pytest.raises(InputError, match=r"DIM_X = 48 does not divide BLK_N = 64"):
        magma.check(kernel)
    m, n, k = kernel.block
    for rows, columns in ((m, k), (k, n), (m, n)):
        cover = np.zeros((rows, columns), int)
        if rows % 48 == 0:
            for x, y in itertools.product(range(0, rows, 48), range(0, columns, 2)):
                cover[x : x + 48, y : y + 2] += 1
            assert (cover == 1).all()


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (((16, 16, 8), (64, 64, 64), (16, 8)), "no instruction"),
        (((16, 16, 16), (64, 40, 64), (16, 8)), "TC_N = 16 does not divide BLK_N = 40"),
        (((16, 16, 16), (64, 64, 64), (16, 24)), "DIM_Y = 24 does not divide BLK_M = 64"),
        (((16, 16, 16), (16, 16, 16), (2, 8)), r"2 · 8 = 16 is not a multiple of 32"),
        (((16, 16, 16), (64, 64, 64), (64, 64)), "4096 threads"),
        (((16, 16, 16), (256, 256, 256), (16, 8)), "bytes of shared memory"),
        (((16, 16, 16), (128, 128, 64), (8, 4)), "registers a thread"),
        (((16, 16, 16), (0, 64, 64), (8, 4)), r"BLK = .* must be 3 positive integers"),
    ],
)
def test_a_broken_condition_is_named_with_its_values(kernel, words):
    with pytest.raises(InputError, match=words) as caught:
        magma.check(magma.Kernel(*kernel), gpus.get("V100"))
    assert "\n" not in str(caught.value)


def test_waste_is_the_padded_volume():
    kernel = magma.Kernel((16, 16, 16), (48, 32, 16), (16, 2))
    assert magma.waste(kernel, 48, 32, 160) == 1
    assert magma.waste(kernel, 50, 30, 10) == pytest.approx(96 * 32 * 16 / (50 * 30 * 10))


# --- TSM2
def _model(name="K40c", fmt="fp64", **more):
    return tsm2.Model(gpus.get(name), fmt, **more)


@pytest.mark.parametrize(
    ("name", "peak", "band", "published"),
    [("K40c", 1430e9, 288e9, 40), ("M40", 213e9, 288e9, 6), ("P100", 4600e9, 720e9, 50)],
)
def test_thresholds_are_published_as_printed_and_half_of_that_by_the_times(name, peak, band, published):
    gpu = replace(gpus.get(name), peak={"fp64": peak}, bandwidth=band)
    printed, model = tsm2.Model(gpu, printed=True), tsm2.Model(gpu)
    assert printed.threshold() == pytest.approx(published, rel=0.05)
    t2 = model.threshold()
    # with so many loads and multiply-adds under way that both uses are one
    assert model.memory_use(t2, 8) == model.compute_use(t2, 8) == 1
    assert model.memory_time(1000, 1000, 64, t2 + 1e-13, 8) == pytest.approx(model.compute_time(1000, 1000, 64, t2, 8))


def test_little_s_law_by_hand():
    model = _model(memory_latency=500)
    # K40c: 288e9 / (15 · 745e6) bytes a cycle and SM
    assert model.needed_memory() == pytest.approx(500 * 25.7718, rel=1e-5)
    assert model.registers(16, 4) == (48 + 8) * 2 + tsm2.SETUP
    assert model.occupancy(16, 4) == min(2048, 65536 / 136, 49152 / 128) == 384
    assert model.memory_use(16, 4) == pytest.approx(384 * 4 * 8 / model.needed_memory())
    assert model.compute_use(1, 1) == 1
    printed = _model(memory_latency=500, printed=True)
    assert printed.memory_use(16, 4) == pytest.approx(384 * 4 / model.needed_memory())


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("name", ["K40c", "M40", "P100", "V100"])
@pytest.mark.parametrize("fmt", ["fp32", "fp64"])
def test_the_optimiser_finds_what_trying_all_finds(name, fmt, printed):
    for n, latency in ((2, 200.0), (5, 400.0), (16, 400.0), (16, 1000.0)):
        model = _model(name, fmt, printed=printed, memory_latency=latency)
        best = tsm2.exhaustive(model, 20480, 20480, n)
        choice = tsm2.algorithm5(model, 20480, 20480, n)
        assert choice.seconds == pytest.approx(best[0].seconds, rel=1e-9)
        assert (choice.t2, choice.t3) in {(one.t2, one.t3) for one in best}


def test_exhaustive_search_leaves_out_no_better_pair():
    model = _model("P100", memory_latency=900.0)
    best = tsm2.exhaustive(model, 1000, 1000, 7)[0].seconds
    for t2, t3 in itertools.product(range(1, 8), range(1, 40)):
        if model.registers(t2, t3) <= 255:
            assert model.seconds(1000, 1000, 7, t2, t3) >= best * (1 - 1e-12)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ((100, 4, 4, 16), r"t1 = 100 .* multiple of 32"),
        ((128, 17, 4, 16), "t2 = 17 exceeds n = 16"),
        ((128, 4, 3, 16), "t3 = 3 does not divide t1 = 128"),
        ((128, 16, 64, 16), "registers a thread, and 255"),
        ((1024, 16, 4, 16), "1024 threads of 136 registers"),
        ((512, 15, 1, 16), "61440 bytes of shared memory"),
        ((128, 0, 4, 16), "t2 = 0 must be a positive integer"),
    ],
)
def test_a_parameter_that_cannot_run_is_named_with_its_values(parameters, words):
    with pytest.raises(InputError, match=words) as caught:
        tsm2.check(_model("P100"), *parameters)
    assert "\n" not in str(caught.value)


def test_a_missing_field_is_named():
    with pytest.raises(InputError, match="bandwidth"):
        tsm2.Model(replace(gpus.get("K40c"), bandwidth=None))
    with pytest.raises(InputError, match=r"B200.*clock"):
        _model("B200")
    with pytest.raises(InputError, match=r"A100.*fp64 multiply-add.*compute_latency, or fp64_latency"):
        tsm2.algorithm5(_model("A100"), 100, 100, 2)
    with pytest.raises(InputError, match="fp16 matrix"):
        magma.bound(10, 10, 10, "planar", gpus.get("K40c"))
    with pytest.raises(InputError, match="did you mean 'fp64'"):
        _model(fmt="fp46")
    with pytest.raises(InputError, match="memory_latency"):
        _model(memory_latency=-1.0)


# --- the pages


def test_the_page_of_rooflines_states_the_gpus_on_which_no_scheme_is_faster():
    page = pages.load("models/roofline", ROOT).module
    schemes = [{}, {}, {}, {"precision": "fp32"}]
    ratios = {
        gpu: [
            roofline.break_even(name, gpu, largest=2**15, **options).ratio
            for name, options in zip(("h2sgemm", "markidis", "bf16x9", "ozaki2"), schemes, strict=True)
        ]
        for gpu in ("RTX 3090", "RTX 4090", "RTX 5090", "H200")
    }
    assert min(ratios.pop("H200")) > 1
    assert max(max(of) for of in ratios.values()) < 1
    assert not set(ratios) & set(page.GPUS)
    assert all(gpu.removeprefix("RTX ") in " ".join(page.ASSUMPTIONS) for gpu in ratios)
