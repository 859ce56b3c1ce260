"""MAGMA batched: implementations with an error, by claim."""

import math

from . import Wrong


def _times(column, factor, of=None):
    """A column as a multiple of itself or of another one."""
    return lambda page, cell: {column: factor * page.evaluate(cell)[of or column]}


def _without_c_read(page, cell):
    n, k = cell["n"], cell["rank"] or cell["n"]
    return {"interleaved counted": 8 * n * n * k / (4 * (n * n + 2 * n * k))}


def _crossings(factor):
    names = [f"{layout} crossing" for layout in ("planar", "interleaved")]
    return lambda page, cell: {name: factor * page.evaluate(cell)[name] for name in names}


def _rounded_up(page, cell):
    n = cell["n"]
    return {"diagonal": math.ceil(16 / n) * n**3 / 4096} if cell["shape"] == "16x16x16" else {}


def _a_alone(page, cell):
    (tm, tn), (m, n) = page.TENSOR[cell["tensor"]], (cell["blk_m"], cell["blk_n"])
    return {"counted": n / tn, "formula": m * n / (tm * tn)}


def _small_block(page, cell):
    kernel = page.magma.Kernel((16, 16, 16), (32, 64, 64), (32, 32))
    return {"idle of 32 warps": float(page.magma.idle_warps(kernel))} if cell["part"] == "count" else {}


def _conditions_of_one_layout(page, cell):
    return {"code, A and B transposed": page.evaluate(cell)["code"]} if cell["part"] == "count" else {}


SIZES = {"lengths": (100, 300)}
BLOCKS = {"step": 4}
CONFIGURATIONS = {"limits": (32,), "lengths": (8,)}
WRONG = {
    "layout_factor": Wrong("operands and C read once for two calls", _times("planar counted", 2), SIZES),
    "layout_better": Wrong("operands and C read once for two calls", _times("planar counted", 2), SIZES),
    "intensities": Wrong("C not read", _without_c_read, SIZES),
    "complex_intensity": Wrong("six operations a complex multiply-add", _times("interleaved counted", 0.75), SIZES),
    "planar_like_real": Wrong("the bytes of one kernel", _times("planar bound", 1, "planar, one kernel bound"), SIZES),
    "size_300": Wrong("words of fp32", _crossings(2), SIZES),
    "layouts_equal_above_550": Wrong("words of fp32", _crossings(2), SIZES),
    "bandwidth_bound_rank_16": Wrong("ten times the bandwidth", _times("interleaved bound", 10), SIZES),
    "maximum_utilisation": Wrong("two products added to one result", _times("best products", 2)),
    "packing_gain": Wrong("one product an instruction", _times("diagonal", 1, "single")),
    "threshold_10": Wrong("16 / N rounded up", _rounded_up),
    "traffic_factors": Wrong("reads of A alone", _a_alone, BLOCKS),
    "traffic_formula": Wrong("reads of A alone", _a_alone, BLOCKS),
    "divisibility": Wrong("the conditions of one layout", _conditions_of_one_layout, CONFIGURATIONS),
    "idle_warps": Wrong("half a block", _small_block, CONFIGURATIONS),
}
WITHOUT: list[str] = []
