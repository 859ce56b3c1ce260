# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Speed on an H200: what to expect, why, and where not
#
# fpemu's kernels return the bits of the emulation. This notebook shows how fast they are, for large products, for
# batches of small ones and for tall matrices, always beside cuBLAS in the same run. The data are those of the committed
# figures, which the ledger judges; no GPU is needed to read them. On a GPU of your own,
#
# ```console
# fpemu bench gpu --quick -o mine.json
# FPEMU_SPEED=mine.json fpemu reproduce speed
# ```
#
# draws the same figures from a new record.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import numpy as np
import pandas as pd
from IPython.display import display

from fpemu import batched, digests, reproduce
from fpemu.reproduce import experiments
from fpemu.verify import seeded

experiments.import_benchmarks()  # from the checkout, wherever this notebook runs
from benchmarks.gpu import record, shapes  # noqa: E402
from benchmarks.gpu.case import SEED  # noqa: E402

# %% [markdown]
# ## Large products: five times as fast as SGEMM, and more accurate
#
# n = 8192, fp32 operands. Each point is an implementation; lower is more accurate, right is faster. The vertical line
# is the range of the error over four kinds of operands.

# %%
frontier = reproduce.committed("speed/frontier")
frontier.figure()

# %%
frame = frontier.frame
one = frame.query("data == 'symmetric'").set_index("contender")
errors = frame.pivot_table(index="contender", columns="data", values="relative_l2")
shown = ["sgemm", "ootomo", "three fp16", "staged", "strassen", "staged-int8", "fp16"]
table = one.loc[shown, ["first", "sustained", "first / sgemm"]].assign(
    **{"least error": errors.min(axis=1), "largest error": errors.max(axis=1)}
)
display(table.map("{:.3g}".format))
assert (errors.loc["staged"] < errors.loc["sgemm"] / 3).all()
assert one.loc["staged", "first / sgemm"] > 4.5
assert (errors.loc["three fp16"] > 3 * errors.loc["sgemm"]).all()

# %% [markdown]
# Why: three products of fp16 words replace one fp32 product, and the tensor cores multiply fp16 fifteen times as fast
# as the ordinary cores multiply fp32. `staged` computes the three in one kernel at the rate of the library's fp16
# product. It moves its sums out of the tensor core in time: three calls of the library have the same speed, but their
# accumulators truncate over all of k, and the error is that of the truncation.

# %%
rate = 3 * one.loc["staged", "first"] / one.loc["fp16", "first"]
print(f"tensor-core rate of staged over that of the library's fp16 product: {rate:.2f}")
print(f"fp16 over SGEMM: {one.loc['fp16', 'first / sgemm']:.1f}")
assert 0.9 < rate < 1.2
assert one.loc["fp16", "first / sgemm"] > 14

# %% [markdown]
# ## Two speeds of one chip
#
# *First* launches follow a pause; *sustained* is the second half of a run without one. The tensor cores draw more than
# the power limit allows at full clock, so the clock falls within a tenth of a second; SGEMM does not reach the limit.

# %%
fall = (one["sustained"] / one["first"]).dropna().sort_values()
display(fall.loc[["fp16", "staged", "staged-int8", "sgemm"]].round(3).to_frame("sustained / first"))
assert fall["staged"] < 0.9
assert fall["sgemm"] > 0.98

# %% [markdown]
# ## Where not: small n, and operands that are split in every call

# %%
sizes = reproduce.committed("speed/sizes")
display(sizes.figure())
staged = sizes.frame.query("contender == 'staged'").set_index("M").sort_index()
columns = {"first / sgemm": "over SGEMM", "split": "cost of the split"}
cost = staged.assign(split=1 - staged["split_first"] / staged["first"])[list(columns)].rename(columns=columns)
display(cost.dropna().map("{:.2f}".format))
assert cost["over SGEMM"].idxmin() == 512
assert cost.loc[512, "cost of the split"] > 0.3 > 0.1 > cost.loc[8192, "cost of the split"]

# %% [markdown]
# At n = 512 a launch is too short to fill the GPU, and the split, which reads and writes memory, takes a large part of
# it; at n = 8192 it is a tenth or less.
#
# ## Where not: data
#
# Corrections in int8 (`staged-int8`) cost two units of time in place of three. They have few bits below the largest
# entry of a row: on uniform operands in [0, 1] they suffice, on others they lose the accuracy of SGEMM. Strassen's
# algorithm keeps a bound relative to the norms of A and B, not entry by entry.

# %%
loss = errors.loc[["staged", "strassen", "staged-int8"]].div(errors.loc["sgemm"])
display(loss.map("{:.2f}".format).rename_axis("error over SGEMM's"))
assert loss.loc["staged-int8", "positive"] < 1 < loss.loc["staged-int8", "phi 0.5"]
assert (loss.loc["strassen"] < 1).all()

# %% [markdown]
# ## A thousand small products in a call
#
# fp16 products of n×n×n, as in MAGMA's paper on batches.

# %%
real = reproduce.committed("magma/fig10")
real.figure()

# %%
batches = real.frame.query("batch == 1000 and M == K")
ours = batches.query("contender == 'ours'").set_index("M").sort_index()
points = [2, 8, 16, 32, 64, 65, 100, 112, 127, 128]
display(ours.loc[points, ["speedup", "share"]].map("{:.2f}".format))
even, odd = (ours[ours.index % 8 == rest]["speedup"].loc[96:] for rest in (0, 1))
assert ours["speedup"].min() >= 1
assert even.max() < 1.2 < odd.min()
assert ours.loc[:8, "share"].max() < 0.1
assert ours.loc[128, "share"] > 0.75

# %% [markdown]
# `share` is the bandwidth over that of a copy of large arrays. Up to n = 8 neither memory nor arithmetic limits a call
# but its fixed cost, and the gain over cuBLAS is the gain in that cost. At n = 128 the bytes decide, both libraries
# move the same, and nothing is left to gain where n is a multiple of 8. For other n cuBLAS falls back on slower
# kernels.
#
# Complex products show the same, with a larger gain, since cuBLAS needs planar operands and four calls. A planar
# product in one call of cuBLASLt, which the paper does not use, overtakes fpemu's kernels from about n = 112 on: they
# use `mma.sync`, which is not this GPU's fastest instruction.

# %%
half = reproduce.committed("magma/fig12").frame.query("batch == 1000 and M == K")
seconds = half.pivot_table(index="M", columns="contender", values="seconds")
over = pd.DataFrame(
    {"four calls": seconds["cublas"] / seconds["ours"], "one call": seconds["cublas in one"] / seconds["ours"]}
)
display(over.loc[[2, 8, 16, 32, 64, 100, 112, 128, 256]].map("{:.2f}".format).rename_axis("n"))
assert (over.loc[:64] > 1.5).all(axis=None)
assert (over.loc[112:, "one call"] < 1).all()

# %% [markdown]
# ## A tall matrix times a narrow one
#
# 10⁷×n times n×n, as in ISM2's paper. The product reads and writes one tall matrix each, and the copy is the limit.

# %%
tall = reproduce.committed("tsm2/fig13").frame.query("M == 10000000 and data.str.endswith('columns')")
used = 100 * tall.pivot_table(index=["data", "N"], columns="contender", values="share")
display(used[["cublas", "V3", "opt 1", "opt 2", "hopper"]].round(0).rename_axis(columns="% of a copy's bandwidth"))
assert used["hopper"].min() > 85
assert used["cublas"].max() < 65

# %% [markdown]
# The published versions were designed for GPUs with a fraction of this bandwidth; bulk copies to shared memory and a
# deep pipeline (`hopper`) reach the copy. Where not: with 10⁴ rows the matrix is too short to fill the GPU, and no
# kernel uses more than a fraction of the bandwidth.

# %%
short = reproduce.committed("tsm2/fig13").frame.query("M == 10000 and data == 'fp32 columns'")
display(100 * short.pivot_table(index="N", columns="contender", values="share").round(3))
assert short["share"].max() < 0.1

# %% [markdown]
# ## The same bits without a GPU
#
# The operands of a measurement are a function of a seed, so they can be drawn again here. The emulator multiplies a
# whole batch, and the digest of its result is the one that the GPU's result had.

# %%
N = 16
kept = record.read(experiments.root() / "speed" / "h200_shapes.json")
A, B = (seeded.drawn("fp16", shapes.BATCH * N * N, 2 * SEED + who, -1.0, 1.0).reshape(-1, N, N) for who in (0, 1))
results = {
    "ours": batched.hgemm(A, B, hardware="hopper", instruction="mma"),
    "magma-small": batched.hgemm(A, B, kernel="magma-small", accumulate="fp16"),
    "magma-small fp32": batched.hgemm(A, B, kernel="magma-small"),
}
for who, D in results.items():
    place = {"kind": shapes.BATCHED, "data": "real", "batch": shapes.BATCH, "M": N, "N": N, "K": N, "contender": who}
    row = next(row for row in kept.rows if all(row.get(name) == value for name, value in place.items()))
    assert digests.text(D.reshape(-1).view(np.uint32)) == row["digest"]
    print(f"{who}: {D.size} entries, bits equal to the GPU's")
print(f"large products: {frame['checked'].sum():.0f} outputs compared, {frame['mismatches'].sum():.0f} mismatches")
assert not frame["mismatches"].any()

# %% [markdown]
# ## What was learnt
#
# * **Large fp32 products**: `staged` is about five times as fast as SGEMM and more accurate on all four kinds of
#   operands. A third of the fp16 rate is the limit of three products, and power the limit of that.
# * At n = 512 the gain is about two, and the split must be counted unless the operands are reused.
# * `staged-int8` is faster still, for operands whose entries are of one size; check the error on your own data.
# * **Small products**: the gain over cuBLAS is in fixed costs (tiny n) and in sizes that are no multiples of 8; at
#   n = 128 bandwidth decides, and there is none.
# * **Tall products**: a pipelined kernel reaches the bandwidth of a copy, where cuBLAS stays below two thirds.
# * A speed without its duration, its n and its bits says little: the ratio to the library in the same run, and the
#   error, belong to it.
#
# Next: [magma](magma.ipynb) and [tsm2](tsm2.ipynb) for the errors of these kernels, [models](models.ipynb) for the
# rooflines.
