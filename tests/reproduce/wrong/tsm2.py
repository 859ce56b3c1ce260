"""TSM2 and ISM2: implementations with an error, by claim."""

from unittest import mock

import numpy as np

from . import Wrong


def _inner_products(page, cell):
    """Algorithm 1 in place of Algorithm 2: an element of A is loaded for each column of B."""
    return page.evaluate({**cell, "algorithm": "1"}) if cell["algorithm"] == "2" else {}


def _twice_the_rows(page, cell):
    """Threads with twice as many rows as tcf."""
    with mock.patch.object(page, "TCF", 2 * page.TCF):
        return page.evaluate(cell) if cell["algorithm"] == "6" else {}


def _no_shared_memory(page, cell):
    """Each thread of a block loads the tile of B."""
    return {"B": page.T1 * page.evaluate(cell)["B"]} if cell["algorithm"] else {}


def _across_columns(page, cell):
    """The threads of a warp load a tile of B across its columns, which lie k elements apart."""
    if cell["algorithm"] != "3":
        return {}
    return {f"B used of {size}": page.used(page.K * np.arange(page.WARP), size) for size in page.TRANSACTIONS}


def _other_order(page, cell):
    """A tile by rows in place of one by columns, and the reverse."""
    if cell["algorithm"]:
        return {}
    (other,) = set(page.ORDERS) - {cell["stored by"]}
    return {"conflicts": float(page.conflicts(cell["t2"], other))}


def _single_precision(page, cell):
    """The peak and the bytes of fp32 in place of those of fp64."""
    return page.evaluate({**cell, "fmt": "fp32"}) if cell["part"] == "tsm2" else {}


def _changed_model(name, method):
    """Algorithm 5 with another method of the model."""

    def numbers(page, cell):
        with mock.patch.object(page.tsm2.Model, name, method):
            return page.evaluate(cell) if cell["part"] == "tsm2" else {}

    return numbers


def _latency_times_ten(page, cell):
    """A latency in units of ten cycles."""
    return page.evaluate({**cell, "latency": 10 * cell["latency"]}) if cell["part"] == "tsm2" else {}


def _on(gpu):
    return {"machines": (gpu,), "widths": (16,), "latencies": ()}


_ONE_TIME = _changed_model("seconds", lambda model, *shape: model.memory_time(*shape))
_ONE_PASS = _changed_model("passes", lambda model, n, t2: 1.0)
WRONG = {
    "loads": Wrong("the loops of Algorithm 1 in Algorithm 2", _inner_products, {"algorithms": "2"}),
    "ism2_loads": Wrong("twice as many rows per thread", _twice_the_rows, {"algorithms": "6"}),
    "loads_of_b": Wrong("a tile of B loaded by each thread", _no_shared_memory, {"algorithms": "4"}),
    "access_efficiency": Wrong("a tile loaded across its columns", _across_columns, {"algorithms": "23"}),
    "bank_conflicts": Wrong("rows and columns of a tile swapped", _other_order, {"algorithms": ""}),
    "threshold": Wrong("peak and bytes of fp32", _single_precision, _on("K40c")),
    "bound": Wrong("peak and bytes of fp32", _single_precision, _on("M40")),
    "K40c_parameters": Wrong("a latency ten times too long", _latency_times_ten, _on("K40c")),
    "M40_parameters": Wrong("the time of the loads alone", _ONE_TIME, _on("M40")),
    "P100_parameters": Wrong("one pass over A for each t2", _ONE_PASS, _on("P100")),
}
WITHOUT: list[str] = []
