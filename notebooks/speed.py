# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # What a GPU does with it: speed and error side by side
#
# `fpemu bench gpu` runs the vendor's library and every scheme's kernel on one GPU, in one process, and keeps a record.
# This notebook reads that record; no GPU is needed to read it. On a GPU of your own,
#
# ```console
# fpemu bench gpu --quick -o mine.json
# FPEMU_SPEED=mine.json fpemu reproduce speed
# ```
#
# makes another, a row at a time, and draws the same figures from it.
#
# ## One product, by everybody

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 100, "bbox_inches": None}
import os
from pathlib import Path

import pandas as pd
from IPython.display import display

from fpemu.reproduce import experiments

experiments.import_benchmarks()  # from the checkout, wherever this notebook runs
from benchmarks.gpu import groups, record  # noqa: E402

file = os.environ.get("FPEMU_SPEED") or experiments.root() / "speed" / "h200.json"
kept = record.read(Path(file))
rows = [row for row in kept.rows if "failed" not in row]
print(kept.head["device"]["gpu"], "with", kept.head["device"]["library"])

# %% [markdown]
# A product of n = 8192 with operands uniform in [-1, 1]. *First*: the median of ten launches after a second without
# work. *Sustained*: the second half of a second of nothing else. Both count 2 n³ operations, whatever a scheme makes of
# them, in TFLOP/s. The error is that of all entries against the product in fp64.

# %%
N = groups.HEAD


def measured_product(who, n=N, data="symmetric"):
    """The row of a contender, None where it was not measured."""
    place = {"kind": "product", "M": n, "N": n, "K": n, "data": data, "contender": who}
    return next((row for row in rows if all(row[name] == value for name, value in place.items())), None)


def table_line(row):
    """What a table shows of a row."""
    return {
        "first": record.rate(row, "first"),
        "sustained": record.rate(row, "sustained"),
        "with split": record.rate(row, "split_first"),
        "over SGEMM": record.ratio(rows, row, "sgemm"),
        "over three fp16 products": record.ratio(rows, row, "fp16", 3, "sustained"),
        "error": row["relative_l2"],
        "W": row.get("power_W"),
        "MHz": row.get("clock_MHz"),
    }


everybody = (*groups.LIBRARY, *groups.SPEEDS)
found = {who: table_line(row) for who in everybody if (row := measured_product(who)) is not None}
table = pd.DataFrame(found).transpose().astype(float)
display(table.map("{:.3g}".format).replace("nan", ""))

# %% [markdown]
# Three products of fp16 words, summed as `staged` does, are as accurate as SGEMM and several times as fast; adding the
# library's three products up is not: its accumulators truncate over all of k.

# %%
assert table.loc["staged", "error"] <= table.loc["sgemm", "error"] < table.loc["three fp16", "error"]
assert table.loc["staged", "first"] > 4 * table.loc["sgemm", "first"]
assert table.loc["fp16", "error"] > 100 * table.loc["sgemm", "error"]

# %% [markdown]
# ## A chip that is limited by power has two speeds
#
# The matrix unit draws more than the cap allows at full clock, so the limiter lowers the clock within a tenth of a
# second. SGEMM does not get that far. A speed without its duration says little, and a ratio to the library in the same
# run says more than either.

# %%
fall = (table["sustained"] / table["first"]).dropna()
display(fall.round(3).to_frame("sustained / first"))
assert fall["staged"] < 0.97
assert fall["sgemm"] > 0.97

# %% [markdown]
# ## Error against speed
#
# Corrections need few bits, so int8 products can carry them, at two units of time instead of three; plain fp16 and TF32
# lie a thousand times above. What a scheme loses depends on the data, hence three panels.

# %%
page = experiments.load("speed/frontier")
shown = [{**cell, **page.evaluate(cell)} for cell in page.cells("quick")]
display(page.draw(shown))
print(page.finding(shown))

# %% [markdown]
# ## Bits
#
# A kernel's order of sums is part of its description, so that the emulator gives its bits. Of every row of a scheme's
# kernel a sample of D was emulated, and compared.

# %%
checked = [row for row in rows if "checked" in row]
print(
    sum(row["checked"] for row in checked),
    "outputs of",
    len(checked),
    "rows compared,",
    sum(row["mismatches"] for row in checked),
    "differ",
)
assert checked
assert not any(row["mismatches"] for row in checked)
