"""The split of the operands of Hopper's kernels: its launches; the kernel of Strassen's algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from fpemu import mma
from fpemu.gpu.gemm.base import Prepared
from fpemu.gpu.gemm.wgmma import splits, strassen
from fpemu.gpu.gemm.wgmma import words as hopper
from fpemu.gpu.runtime import matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Memory
from fpemu.mma import KOrder
from fpemu.schemes.staged import Staged

SPEC = mma.spec("hopper", "fp16", "fp32")


@pytest.mark.parametrize("kind", list(splits.KINDS))
def test_a_split_is_one_launch_where_rows_are_seen_before_their_words_are_written(kind):
    """Else two launches; one exponent for a matrix takes two as well."""

    def launches(rows, k, scaling, names="AB"):
        sides = {"A": (rows, k), "B": (k, rows)}
        operands = {name: Matrix(4096, np.dtype(np.float32), sides[name], (sides[name][1], 1)) for name in names}
        memory, layouts = Memory(), matrices.layouts(*map(operands.get, "ABCD"))
        splitter = splits.ChunkSplitter(kind, {}, scaling=str)
        steps = splitter.split([Prepared(layouts[name], name) for name in names], scaling, memory)
        return [step.arguments[0]["phases"] for step in steps]

    both, one, two = [splits.LOOK | splits.MAKE], "scale-rows", [splits.LOOK, splits.MAKE]
    assert launches(300, 200, one) == launches(300, 200, one, "A") == launches(300, 200, one, "B") == both
    assert launches(300, 200, "scale") == two
    assert launches(0, 200, one) == []
    assert launches(64, 2**18, one) == two


def test_two_levels_of_strassens_algorithm_refuse_more_rows_than_their_grid_has():
    for levels, rows, exists in ((2, 4 * 16 * 65535, True), (2, 4 * 16 * 65535 + 1, False), (1, 2**23, True)):
        kernel = strassen.kernel(Staged(levels=levels), SPEC, (rows, 64, 64), None)
        assert (kernel is not None) == exists


def test_the_kernel_of_strassen_is_one_of_a_batch_of_products_of_blocks():
    kernel = strassen.kernel(Staged(levels=1), SPEC, (300, 200, 100), KOrder(split=128))
    assert kernel.inner.schedule.split == 128
    assert kernel.inner.tile == hopper.kernel(Staged(), SPEC, (7 * 150, 100, 50), None).tile
