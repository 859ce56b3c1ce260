"""Slices of K distributed over thread blocks of `fpemu.gpu.gemm.wgmma.words`: their choice, and their reduction."""

from __future__ import annotations

import ctypes
import re
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fpemu import mma
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import base
from fpemu.gpu.gemm.wgmma import schedules
from fpemu.gpu.gemm.wgmma import words as hopper
from fpemu.gpu.gemm.wgmma.schedules import Tile
from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.steps import Struct
from fpemu.mma import KOrder
from fpemu.schemes import build

TESTS = Path(__file__).parents[1]
SPEC = mma.spec("hopper", "fp16", "fp32")
LAUNCH = """
extern "C" void launch(const Task* task, const Nonfinite* nonfinite, int slices, int grid) {
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < 256; threadIdx.x++) hopper_reduce(*task, *nonfinite, slices);
}
"""


def staged(order=None):
    return schedules.schedule(build("staged", {}).lowering(SPEC, order))


def test_small_results_of_long_sums_have_a_slice_for_every_multiprocessor_or_slices_of_512():
    def order(M, N, K, name="staged"):
        return hopper.kernel(build(name, {}), SPEC, (M, N, K), None).order

    assert order(128, 128, 65536) == order(64, 256, 32768) == KOrder(split=512)
    assert order(512, 512, 8192) == KOrder(split=1024)
    assert order(128, 128, 2**20, "fp16") == KOrder(split=8000)  # 2^20 / 132, in whole blocks of 64
    assert order(128, 128, 4095) is None  # the chain is short
    assert order(1024, 1024, 65536) is None  # every multiprocessor has a tile
    assert order(128, 128, 65536, "legemm") is None  # two accumulators
    for M, N, K in product((1, 64, 65, 500), (1, 33, 128, 300), (4096, 10_000, 100_000)):
        tile, path = hopper.few_tiles((M, N, K)), order(M, N, K)
        assert path.split % 64 == 0
        assert -(-K // path.split) * tile.count(M, N) <= 132 + tile.count(M, N)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    if emulation.compiler() is None:
        pytest.skip("no C++ compiler here")
    folder, tile = tmp_path_factory.mktemp("reduce"), Tile(64, cluster=1)
    names = ("hopper_epilogue.cuh", "hopper_nonfinite.cuh", "pipeline.cuh")
    epilogue, nonfinite, pipeline = ((compiler.KERNELS / name).read_text() for name in names)
    config, _, kernel = schedules.reduction(tile).partition("//")
    text = "//".join((config, epilogue, nonfinite, pipeline[pipeline.index("// Output tiles") :], kernel))
    text = re.sub(
        r'#pragma once|#include "(hopper|pipeline|hopper_epilogue|hopper_nonfinite).cuh"|extern "C" ', "", text
    )
    (folder / "reduce.cpp").write_text('#include "hopper_reduce_on_cpu.h"\n' + text + LAUNCH)
    flags = ["-O1", "-w", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", f"-I{compiler.KERNELS}", f"-I{TESTS}"]
    command = [str(emulation.compiler()), *flags, str(folder / "reduce.cpp"), "-o", str(folder / "reduce.so")]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(folder / "reduce.so")).launch


def registers(sums, tile):
    """Partial sums (batch, slices, M, N) as threads of wgmma hold them, tile after tile, by columns of tiles."""
    batch, slices, M, N = sums.shape
    high, wide = -(-M // tile.rows), -(-N // tile.columns)
    padded = np.full((batch, slices, high * tile.rows, wide * tile.columns), np.nan, np.float32)
    padded[:, :, :M, :N] = sums
    of = padded.reshape(batch, slices, high, tile.rows // 64, 4, 2, 8, wide, tile.columns // 8, 4, 2)
    # batch, column and row of tiles (one group), slice, warpgroup, j, warp, r, c, g, i
    return np.ascontiguousarray(of.transpose(0, 7, 2, 1, 3, 8, 4, 6, 9, 5, 10))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("slices", [1, 3, 16, 21])
def test_partial_sums_are_added_ascending_and_finished(launch, slices):
    rng, tile, batch, M, N = np.random.default_rng(slices), Tile(64, cluster=1), 2, 150, 100
    sums = rng.standard_normal((batch, slices, M, N)).astype(np.float32) * 2.0 ** rng.integers(-9, 9, (slices, 1, 1))
    sums = sums.astype(np.float32)
    sums[0, :, 3, 5], sums[0, 0, 4, 4] = -0.0, np.nan
    held, C = registers(sums, tile), rng.standard_normal((batch, M, N)).astype(np.float32)
    rows, columns = rng.integers(-70, 70, (batch, M), np.int32), rng.integers(-70, 70, (batch, N), np.int32)
    where = np.array([(p, p, p * M * N, p * M * N) for p in range(batch)], np.int64)
    D = np.zeros((batch, M, N), np.float32)
    A, B = rng.standard_normal((batch, M, 5)).astype(np.float32), rng.standard_normal((batch, 5, N)).astype(np.float32)
    A[0, 7, 2], A[1, 149, 0], A[1, 149, 1], B[1, 3, 9] = np.inf, -np.inf, 2.0, np.nan
    a_special, b_special = ((~np.isfinite(X)).any(axis).astype(np.uint8) for X, axis in ((A, 2), (B, 1)))
    affected = (a_special[:, :, None] | b_special[:, None, :]).astype(bool)
    offsets, counts = [np.arange(batch) * X[0].size for X in (A, B)], np.array([3, 0], np.uint64)
    nonfinite = np.zeros(1, hopper.NONFINITE)
    for i, (name, x, special) in enumerate((("a", A, a_special), ("b", B, b_special))):
        steps = [step // 4 for step in x.strides[1:]]
        address = (x.ctypes.data, offsets[i].ctypes.data)
        nonfinite[name] = (*address, *(steps if name == "a" else steps[::-1]), special.ctypes.data, counts.ctypes.data)
    for alpha, c, exponents in ((1.0, None, True), (0.5, C, True), (1.0, None, False)):
        total = np.add.accumulate(sums, axis=1)[:, -1]
        if exponents:  # sums beyond fp32 become infinite
            total = np.ldexp(total.astype(np.float64), -rows[:, :, None] - columns[:, None, :]).astype(np.float32)
        with np.errstate(invalid="ignore"):
            total = np.where(affected, A @ B, total)
        want = total if c is None else np.float32(alpha) * total + np.float32(3) * C
        want[np.isnan(want)] = np.uint32(0x7FFFFFFF).view(np.float32)
        addend = {} if c is None else {"c": C.ctypes.data, "c_row": N, "c_column": 1}
        values = {"d": D.ctypes.data, "d_row": N, "alpha": alpha, "beta": 3.0, "nan": 0x7FFFFFFF}
        values = {"out": Struct(base.RESULT, values | addend), "where": where.ctypes.data, "slices": held.ctypes.data}
        values |= {"row_exponents": rows.ctypes.data * exponents, "column_exponents": columns.ctypes.data * exponents}
        task = Struct(base.TASK, values | {"M": M, "N": N, "K": 5, "batch": batch, "group": tile.group})
        D[...] = 7
        grid = batch * tile.count(M, N) * tile.rows * tile.columns // 256
        structs = ctypes.c_char_p(task.pack()[0]), ctypes.c_void_p(nonfinite.ctypes.data)
        launch(*structs, *map(ctypes.c_int, (slices, grid)))
        assert (D.view(np.uint32) == want.view(np.uint32)).all()
