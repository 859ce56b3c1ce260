# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Speed on an H200: the limiting resource of each product
#
# The kernels of fpemu return the bits of the emulation. This notebook measures their speed against cuBLAS in the same
# run, for large products, for batches of small products and for tall matrices. The argument: one resource limits each
# product (the tensor cores, the power, the fixed cost of a launch, or the memory bandwidth), and the limiting resource
# determines whether a kernel can be faster than cuBLAS. The data are the data of the committed figures, which the
# ledger judges, so the notebook needs no GPU. The following commands measure your GPU and draw the same figures from
# the new record:
#
# ```console
# fpemu bench gpu --quick -o mine.json
# FPEMU_SPEED=mine.json fpemu reproduce speed
# ```

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import numpy as np
import pandas as pd
from IPython.display import display

from benchmarks import seeded
from fpemu import batched, reproduce
from fpemu.library.tables import digest_of
from fpemu.reproduce import pages

pages.import_benchmarks()  # from the checkout, wherever this notebook runs
from benchmarks.gpu import record, shapes  # noqa: E402
from benchmarks.gpu.case import SEED  # noqa: E402

# %% [markdown]
# ## Large products: the tensor cores
#
# The operands are fp32 matrices with n = 8192. Each point is an implementation, and each vertical line is the range of
# the relative error over four distributions of the operands.

# %%
frontier = reproduce.committed("speed/frontier")
frontier.figure()

# %%
frame = frontier.frame
one = frame.query("data == 'symmetric'").set_index("contender").rename_axis("implementation")
errors = frame.pivot_table(index="contender", columns="data", values="relative_l2").rename_axis("implementation")
shown = ["sgemm", "ootomo", "three fp16", "staged", "strassen", "staged-int8", "fp16"]
table = one.loc[shown, ["first", "sustained", "first / sgemm"]].assign(
    **{"smallest error": errors.min(axis=1), "largest error": errors.max(axis=1)}
)
display(table.map("{:.3g}".format))

# %% [markdown]
# `staged` is about five times as fast as SGEMM and more accurate for all four distributions. Three products of fp16
# words replace one fp32 product, and the tensor cores multiply fp16 more than 14 times as fast as the ordinary cores
# multiply fp32. `staged` computes the three products in one kernel at the rate of the fp16 product of cuBLAS, and
# promotes its accumulator. Three calls of cuBLAS ("three fp16") have nearly the same speed, but their accumulators
# truncate over all of K, and this truncation determines their error.

# %%
rate = 3 * one.loc["staged", "first"] / one.loc["fp16", "first"]
print(f"tensor-core rate of staged over the rate of the fp16 product of cuBLAS: {rate:.2f}")
print(f"speed of fp16 over SGEMM: {one.loc['fp16', 'first / sgemm']:.1f}")

# %% [markdown]
# ## Long runs: the power
#
# *First* is the median of the launches after a pause, and *sustained* is the median of the second half of a run without
# a pause. At full clock the tensor cores exceed the power limit, so the clock falls within a tenth of a second. SGEMM
# does not reach the power limit.

# %%
ratio = (one["sustained"] / one["first"]).dropna().sort_values()
display(ratio.loc[["fp16", "staged", "staged-int8", "sgemm"]].round(3).to_frame("sustained / first"))

# %% [markdown]
# ## Small n: the launch and the split

# %%
sizes = reproduce.committed("speed/sizes")
display(sizes.figure())
staged = sizes.frame.query("contender == 'staged'").set_index("M").sort_index()
columns = {"first / sgemm": "over SGEMM", "split": "share of the split"}
cost = staged.assign(split=1 - staged["split_first"] / staged["first"])[list(columns)].rename(columns=columns)
display(cost.dropna().map("{:.2f}".format))

# %% [markdown]
# At n = 512 a launch is too short to fill the GPU, and the split of the operands, which reads and writes memory, takes
# 46 % of the time. At n = 8192 it takes 9 %.
#
# ## The operands
#
# Corrections in int8 (`staged-int8`) take the time of two fp16 products instead of three. They have few bits below the
# largest entry of a row. For operands uniform in [0, 1] these bits suffice; for a wider range the error exceeds the
# error of SGEMM. The error bound of Strassen's algorithm is normwise and not componentwise.

# %%
loss = errors.loc[["staged", "strassen", "staged-int8"]].div(errors.loc["sgemm"])
display(loss.map("{:.2f}".format).rename_axis("error / error of SGEMM"))

# %% [markdown]
# ## Batches of small products: the fixed cost and the bandwidth
#
# The figure shows batches of n×n×n products in fp16, as in MAGMA's paper on batches.

# %%
real = reproduce.committed("magma/fig10")
real.figure()

# %%
batches = real.frame.query("batch == 1000 and M == K")
ours = batches.query("contender == 'ours'").set_index("M").sort_index()
points = [2, 8, 16, 32, 64, 65, 100, 112, 127, 128]
display(ours.loc[points, ["speedup", "share"]].map("{:.2f}".format))
even, odd = (ours[ours.index % 8 == rest]["speedup"].loc[96:] for rest in (0, 1))

# %% [markdown]
# The column `share` is the achieved bandwidth divided by the bandwidth of a copy of large arrays. Up to n = 8 the fixed
# cost of a call limits it, not memory or arithmetic, and the gain over cuBLAS is a smaller fixed cost. At n = 128 the
# bandwidth limits both libraries, and they move the same number of bytes, so there is no gain if n is a multiple of 8.
# For other n cuBLAS uses slower kernels.
#
# For complex products the gain is larger, because cuBLAS needs planar operands and four calls. A planar product in one
# call of cuBLASLt, which the paper does not use, is faster than fpemu's kernels from about n = 112 on: these kernels
# use `mma.sync`, and the H200 is faster with `wgmma`.

# %%
half = reproduce.committed("magma/fig12").frame.query("batch == 1000 and M == K")
seconds = half.pivot_table(index="M", columns="contender", values="seconds")
over = pd.DataFrame(
    {"four calls": seconds["cublas"] / seconds["ours"], "one call": seconds["cublas in one"] / seconds["ours"]}
)
display(over.loc[[2, 8, 16, 32, 64, 100, 112, 128, 256]].map("{:.2f}".format).rename_axis("n"))

# %% [markdown]
# ## Tall matrices: the bandwidth
#
# The products are 10⁷×n times n×n, as in ISM2's paper. Such a product reads one tall matrix and writes another, so the
# speed of a copy is the limit.

# %%
tall = reproduce.committed("tsm2/fig13").frame.query("M == 10000000 and data.str.endswith('columns')")
used = 100 * tall.pivot_table(index=["data", "N"], columns="contender", values="share")
display(used[["cublas", "V3", "opt 1", "opt 2", "hopper"]].round(0).rename_axis(columns="% of a copy's bandwidth"))

# %% [markdown]
# The published versions were designed for GPUs with a fraction of this bandwidth. The version `hopper`, with bulk
# copies to shared memory and a deep pipeline, reaches more than 85 % of the bandwidth of a copy. With 10⁴ rows the
# matrix is too short to fill the GPU, and no kernel reaches 10 % of this bandwidth:

# %%
short = reproduce.committed("tsm2/fig13").frame.query("M == 10000 and data == 'fp32 columns'")
display(
    100
    * short.pivot_table(index="N", columns="contender", values="share")
    .round(3)
    .rename_axis(columns="% of a copy's bandwidth")
)

# %% [markdown]
# ## The same bits without a GPU
#
# The operands of a measurement are a function of a seed, so this cell draws them again. The emulator multiplies a whole
# batch, and the digest of its result is equal to the recorded digest of the GPU's result.

# %%
N = 16
measurements = record.read(pages.root() / "speed" / "h200_shapes.json")
A, B = (
    seeded.drawn("fp16", shapes.BATCH * N * N, 2 * SEED + operand, -1.0, 1.0).reshape(-1, N, N) for operand in (0, 1)
)
results = {
    "ours": batched.hgemm(A, B, hardware="hopper", instruction="mma"),
    "magma-small": batched.hgemm(A, B, kernel="magma-small", accumulate="fp16"),
    "magma-small fp32": batched.hgemm(A, B, kernel="magma-small"),
}
digests = []
for kernel, D in results.items():
    case = {"kind": shapes.BATCHED, "data": "real", "batch": shapes.BATCH, "M": N, "N": N, "K": N, "contender": kernel}
    row = next(row for row in measurements.rows if all(row.get(name) == value for name, value in case.items()))
    digests.append((digest_of(D.reshape(-1).view(np.uint32)), row["digest"]))
    print(f"{kernel}: {D.size} entries, bits equal to the GPU's")
print(f"large products: {frame['checked'].sum():.0f} outputs compared, {frame['mismatches'].sum():.0f} mismatches")

# %% [markdown]
# ## Conclusions
#
# * **Tensor cores** limit large fp32 products: `staged` is about five times as fast as SGEMM and more accurate for all
#   four distributions. Its limit is a third of the rate of fp16 products.
# * **Power** limits long runs: the sustained speed of `staged` is more than 10 % below its first speed.
# * **The launch and the split** limit small products: at n = 512 the speed-up is about two, and the split takes
#   almost half of the time unless its result is used again.
# * **The operands** limit the fastest schemes: `staged-int8` requires entries of similar magnitude, so check the error
#   on your matrices.
# * **The fixed cost** limits the batches with n up to 8, and **the bandwidth** limits n = 128, where a gain remains
#   only for sizes that are not multiples of 8.
# * **The bandwidth** limits tall matrices: a pipelined kernel reaches more than 85 % of the bandwidth of a copy, and
#   cuBLAS less than 65 %.
# * A speed requires its conditions: the duration of the run, the size, the ratio to the library in the same run, and
#   the error.
#
# Next: [magma](magma.ipynb) and [tsm2](tsm2.ipynb) for the errors of these kernels, [models](models.ipynb) for the
# rooflines.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# Large products: the tensor cores
assert (errors.loc["staged"] < errors.loc["sgemm"] / 3).all()
assert one.loc["staged", "first / sgemm"] > 4.5
assert (errors.loc["three fp16"] > 3 * errors.loc["sgemm"]).all()
assert 0.9 < rate < 1.2
assert one.loc["fp16", "first / sgemm"] > 14

# Long runs: the power
assert ratio["staged"] < 0.9
assert ratio["sgemm"] > 0.98

# Small n: the launch and the split
assert cost["over SGEMM"].idxmin() == 512
assert cost.loc[512, "share of the split"] > 0.3 > 0.1 > cost.loc[8192, "share of the split"]

# The operands
assert loss.loc["staged-int8", "positive"] < 1 < loss.loc["staged-int8", "phi 0.5"]
assert (loss.loc["strassen"] < 1).all()

# Batches of small products: the fixed cost and the bandwidth
assert ours["speedup"].min() >= 1
assert even.max() < 1.2 < odd.min()
assert ours.loc[:8, "share"].max() < 0.1
assert ours.loc[128, "share"] > 0.75
assert (over.loc[:64] > 1.5).all(axis=None)
assert (over.loc[112:, "one call"] < 1).all()

# Tall matrices: the bandwidth
assert used["hopper"].min() > 85
assert used["cublas"].max() < 65
assert short["share"].max() < 0.1

# The same bits without a GPU
assert all(ours == theirs for ours, theirs in digests)
assert not frame["mismatches"].any()
