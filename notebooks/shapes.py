# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Many small products, and tall ones
#
# A matrix unit is made for large square products. Two papers are about the others: MAGMA's batches of small products
# in half and half-complex precision, and TSM2 and ISM2 for matrices that are tall and narrow. fpemu has their kernels,
# and emulates them bit for bit on any CPU.
#
# `fpemu bench gpu` measured them on one GPU beside cuBLAS, in one process, and kept a record. This notebook reads that
# record; no GPU is needed to read it. On a GPU of your own,
#
# ```console
# fpemu bench gpu --figure magma --figure tsm2 -o mine.json
# FPEMU_SPEED=mine.json fpemu reproduce magma
# ```
#
# makes another.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 100, "bbox_inches": None}
import os
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import display

from fpemu import batched, digests, simt
from fpemu.reproduce import experiments
from fpemu.verify import seeded

experiments.import_benchmarks()  # from the checkout, wherever this notebook runs
from benchmarks.gpu import record, shapes  # noqa: E402
from benchmarks.gpu.case import SEED  # noqa: E402

file = os.environ.get("FPEMU_SPEED") or experiments.root() / "speed" / "h200_shapes.json"
kept = record.read(Path(file))
rows = [row for row in kept.rows if "failed" not in row and row["kind"] in (shapes.BATCHED, shapes.TALL)]
assert all(row["again"] for row in rows)  # each gave the same bits twice
print(len(rows), "rows,", kept.head["device"]["gpu"], "with", kept.head["device"]["library"])

# %% [markdown]
# ## A thousand products in a call
#
# Microseconds of a call with n×n×n products, real and complex, and how many times as fast as cuBLAS fpemu is. Complex
# products are interleaved here, and planar for cuBLAS, which has no other layout: four real products, or one call of
# cuBLASLt.


# %%
def microseconds(data, who, what="first_s"):
    """By n, of a contender's calls: on the GPU, or "loop_s", or "cold_s"."""
    chosen = {"data": data, "contender": who, "batch": shapes.BATCH}
    found = [row for row in rows if all(row.get(name) == value for name, value in chosen.items())]
    return pd.Series({row["M"]: 1e6 * row[what] for row in found if row["M"] == row["K"] and what in row})


columns = {}
for data, who in (
    ("real", "cublas"),
    ("real", "ours"),
    ("complex", "cublas"),
    ("complex", "cublas in one"),
    ("complex", "ours"),
):
    columns[f"{data}: {who}, µs"] = microseconds(data, who)
table = pd.DataFrame(columns).sort_index()
for data in ("real", "complex"):
    table[f"{data}: times as fast"] = table[f"{data}: cublas, µs"] / table[f"{data}: ours, µs"]
display(table.loc[[n for n in (*shapes.GOALS, 256) if n in table.index]].map("{:.3g}".format).replace("nan", ""))

# %% [markdown]
# That is the GPU's own time: calls queue up, and operands that fit into its L2 cache are read from there. Two other
# times are kept. In a loop, calls come one after another from Python, each prepared beforehand, and the host counts;
# from memory, calls go round in copies of the operands. How many times as fast as cuBLAS fpemu is in each:

# %%
ways = {"on the GPU": "first_s", "in a loop": "loop_s", "from memory": "cold_s"}
ratio = {
    f"{data}, {how}": microseconds(data, "cublas", what) / microseconds(data, "ours", what)
    for data in ("real", "complex")
    for how, what in ways.items()
}
display(pd.DataFrame(ratio).loc[list(shapes.GOALS)].map("{:.3g}".format))

# %%
for name in ("magma/fig10", "magma/fig12"):
    page = experiments.load(name)
    shown = [{**cell, **page.evaluate(cell)} for cell in page.cells("quick")]
    display(page.draw(shown))
    print(page.finding(shown), "\n")

# %% [markdown]
# ## The same bits without a GPU
#
# Operands are a function of a seed and an index, so they can be drawn again here. The emulator multiplies the whole
# batch, and the digest of its result is the one that the GPU's result had.

# %%
N = 16
place = {"kind": shapes.BATCHED, "data": "real", "batch": shapes.BATCH, "M": N, "N": N, "K": N}
A, B = (seeded.drawn("fp16", shapes.BATCH * N * N, 2 * SEED + who, -1.0, 1.0).reshape(-1, N, N) for who in (0, 1))
results = {
    "ours": batched.hgemm(A, B, hardware="hopper", instruction="mma"),
    "magma-small": batched.hgemm(A, B, kernel="magma-small", accumulate="fp16"),
    "magma-small fp32": batched.hgemm(A, B, kernel="magma-small"),
}
exact = A.astype(float) @ B.astype(float)
for who, D in results.items():
    row = next(row for row in rows if all(row.get(name, 1) == x for name, x in {**place, "contender": who}.items()))
    error = np.linalg.norm(D - exact) / np.linalg.norm(exact)
    equal = digests.text(D.reshape(-1).view(np.uint32)) == row["digest"]
    verdict = "equal" if equal else "not equal"
    print(f"{who}: error {error:.2e}, {D.size} entries, bits {verdict} to the GPU's")
    assert equal

# %% [markdown]
# ## A tall matrix times a narrow one
#
# 20480×20480 times 20480×n moves one large matrix and little else, so that the copy's bandwidth is the limit. TSM2's
# four versions are steps towards it: inner products, outer products, B in shared memory, and loads ahead of their use.

# %%
bandwidth = {}
for fmt in shapes.FORMATS:
    for who in (shapes.BASE, *shapes.VERSIONS, "hopper"):
        for row in rows:
            if (row["contender"], row["data"], row["M"]) == (who, f"{fmt} columns", shapes.LARGE):
                share = 100e-9 * row["bytes"] / row["first_s"] / row["copy_GBs"]
                bandwidth.setdefault(f"{fmt}, n = {row['N']}", {})[who] = share
display(pd.DataFrame(bandwidth).round(1).rename_axis("% of a copy's bandwidth"))

# %%
for name in ("tsm2/fig4", "tsm2/fig13"):
    page = experiments.load(name)
    shown = [{**cell, **page.evaluate(cell)} for cell in page.cells("quick")]
    display(page.draw(shown))
    print(page.finding(shown), "\n")

# %% [markdown]
# Whichever version computes an entry, it is one chain of fused multiply-adds over k from zero on: all of them have one
# digest, and it is that of the emulator's chain.

# %%
M, K = shapes.ROWS[-1], 16
A = seeded.drawn("fp32", M * K, 2 * SEED, 0.0, 1.0).reshape(K, M).T
B = seeded.drawn("fp32", K * K, 2 * SEED + 1, 0.0, 1.0).reshape(K, K).T
chain = digests.text(np.ascontiguousarray(simt.tsm2(A, B).T).reshape(-1).view(np.uint32))
same = {
    row["contender"]: row["digest"] == chain
    for row in rows
    if (row["kind"], row["M"], row["K"], row["data"]) == (shapes.TALL, M, K, "fp32 columns")
}
print({who: equal for who, equal in same.items() if who != shapes.BASE}, "cuBLAS:", same[shapes.BASE])
assert all(equal for who, equal in same.items() if who != shapes.BASE)
