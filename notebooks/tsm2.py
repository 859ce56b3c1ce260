# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # TSM2 and ISM2: the error of one chain of FMAs over a long $k$
#
# C. Rivera et al., *ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs*, 2020. TSM2 multiplies a
# large matrix with $k$ in the ten thousands by a tall and skinny matrix with $n \le 16$. ISM2 multiplies a tall and
# skinny matrix by a small one. The kernels are designed for bandwidth, by the order in which threads load tiles. In all
# of them one thread computes each entry of $C$,
#
# $$c_{ij} \leftarrow \mathrm{fl}(c_{ij} + a_{ik} b_{kj}), \qquad k = 1, 2, \dots,$$
#
# a chain of fused multiply-adds (FMAs) in fp32 or fp64. The bits therefore do not depend on the tiles, and the error is
# the error of recursive summation of $k$ terms, with the textbook bound $k\,u$ for the unit roundoff $u$. The paper
# states no errors.
#
# The argument of this notebook: on these operands the error grows as $\sqrt{k}$ and not as $k$. Growth with $k$
# requires errors of one sign, as in an accumulator that stops growing or truncates. The data are the data of the
# ledger, with 20 seeds at every point.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import textwrap

import numpy as np
import pandas as pd
from IPython.display import display
from scipy.special import ndtri

import fpemu
from fpemu import plotting, reproduce, simt, sweep

U = 2.0**-24  # unit roundoff of fp32

# %% [markdown]
# ## Tiles have no effect
#
# Ten rows with $k = 5000$ are computed at once, in tiles of $C$, and in tiles over $k$ that continue with the
# accumulator:

# %%
A, B = fpemu.inputs.operands("tsm2", 10, 8, 5000, seed=0)
whole = simt.gemm(A, B)
tiles = np.block([[simt.gemm(A[i : i + 4], B[:, j : j + 2]) for j in range(0, 8, 2)] for i in range(0, 10, 4)])
along = np.zeros_like(whole)
for k in range(0, 5000, 128):
    along = simt.gemm(A[:, k : k + 128], B[k : k + 128], along)
print(f"{whole.size} entries, the same bits three times: {fpemu.FP32.encode(whole[0, 0]):08X} ...")

# %% [markdown]
# ## The expected error
#
# Step $t$ rounds the sum $c_t$ with an error of at most half a unit in the last place (ulp). If these errors are
# uniformly distributed and independent, their variances add up:
#
# $$\frac{\text{error}}{\text{result}} \approx
# \sqrt{\frac{1}{12}\,\frac{\sum_t \mathrm{E}\,\mathrm{ulp}(c_t)^2}{\mathrm{E}\,c_k^2}} \;\sim\; \sqrt{k}\,u .$$
#
# For positive data $c_t \approx t/4$, and for zero-mean data $c_t$ is normally distributed with the variance $t/9$. In
# both cases the ulp grows with the sum, and the sum over $t$ grows by one power of $k$ faster than $c_k^2$. The error
# therefore grows as $\sqrt{k}$ for either mean.

# %%
normal = ndtri((np.arange(301) + 0.5) / 301)
lengths = [2**i for i in range(4, 15, 2)]
expected = {}
for k in lengths:
    t = np.arange(1, k + 1)[:, None]
    for kind, sums in (("zero mean", np.sqrt(t / 9) * normal), ("positive", t / 4 + np.sqrt(7 / 144 * t) * normal)):
        variance = np.sum(np.mean(np.ldexp(1.0, np.frexp(sums)[1] - 24) ** 2, axis=1)) / 12
        expected[kind, k] = np.sqrt(variance / np.mean(sums[-1] ** 2)) / U

# %%
grid = sweep.Grid(inputs=[{"name": "uniform", "low": [-1.0, 0.0]}], schemes=["sgemm"], M=12, N=12, K=lengths, seeds=3)
with sweep.Store() as results:
    frame = sweep.frame(sweep.run(grid, results=results))
frame["data"] = frame["inputs.low"].map({-1.0: "zero mean", 0.0: "positive"})
table = frame.groupby(["data", "K"])["relative_l2"].mean().to_frame("measured / u") / U
table["expected / u"] = pd.Series(expected)
ratio = table["measured / u"] / table["expected / u"]
powers = {}
for kind in ("zero mean", "positive"):
    powers[kind] = growth = np.polyfit(np.log(lengths), np.log(table.loc[kind, "measured / u"].to_numpy(float)), 1)[0]
    print(f"{kind}: error ~ k^{growth:.2f}")
table.unstack("K").map("{:.2f}".format)

# %% [markdown]
# The error of positive data is slightly *smaller* than the error of zero-mean data, because the terms of the result do
# not cancel. The error does not grow as $k$: that requires rounding errors of one sign, and rounding to nearest has
# errors of both signs.
#
# ## The errors over the paper's range
#
# The figure shows both formats and also the largest error. The markers agree with the model (black line); the dashed
# line is the bound.

# %%
accuracy = reproduce.committed("tsm2/accuracy", "full")
accuracy.figure()

# %%
print(textwrap.fill(accuracy.finding, 115))
frame = accuracy.frame
longest = frame[(frame["k"] == frame["k"].max()) & (frame["format"] == "fp32")]
k_of_longest = int(longest["k"].iloc[0])
error_of_chain = frame[(frame["format"] == "fp32") & (frame["k"] >= 16)].groupby("k")["relative_l2"].mean()

# %% [markdown]
# In ISM2's range, $k \le 16$, the model is slightly too large, because the sums extend over several binades and the
# model uses only their mean. In units of its unit roundoff, fp64 has the same errors as fp32.
#
# ## Growth with $k$
#
# The rounding errors are independent as long as the products are not small compared with an ulp of the sum. At $c =
# 2^p$, where $p$ is the number of bits of the format, half an ulp is 1, and no product of numbers in $[0, 1)$ changes
# the sum: the chain *stops growing*. In fp32 this requires $k > 2^{26}$; in fp16 it occurs for small $k$:

# %%
X, Y = fpemu.inputs.operands("tsm2", 8, 8, 2**15, seed=0, dtype="fp16")
sums = {
    k_of_longest: simt.gemm(X[:, :k_of_longest], Y[:k_of_longest], fmt="fp16").astype(np.float64)
    for k_of_longest in (2**i for i in range(9, 16))
}
loss = pd.Series(
    {
        k_of_longest: 1 - D.mean() / fpemu.reference.matmul(X[:, :k_of_longest], Y[:k_of_longest]).mean()
        for k_of_longest, D in sums.items()
    }
)
loss.map("{:+.1%}".format).rename_axis("k").to_frame("lost on average").transpose()

# %% [markdown]
# All entries end at $2^{11}$, and from there on the relative error approaches 1.
#
# ## Shorter chains by split-K
#
# Divide $k$ into blocks of $b$, compute each block as a chain from zero, and add the $k/b$ sums. The error of a block
# is about $\sqrt{b}\,u$ relative to the block, and the average over $k/b$ independent blocks is $b/\sqrt{k}$. A chain
# over the sums adds $\sqrt{k/b}$:
#
# $$\Bigl(\frac{\text{error}}{\text{const}\cdot u}\Bigr)^2 \approx \frac{b^2}{k} + \frac{k}{b},
# \qquad\text{smallest at}\quad b = (k^2/2)^{1/3}.$$
#
# For $k = 2^{14}$ the best block length is 512. The worst-case bound $b + k/b$ is smallest at $\sqrt{k} = 128$.

# %%
k, blocks = 2**14, [2**i for i in range(5, 14)]
grid = sweep.Grid(
    inputs=["tsm2"],
    schemes=["sgemm"],
    orders=[{"split": [*blocks, k]}, {"split": blocks, "join": "pairwise"}],
    M=8,
    N=8,
    K=k,
    seeds=4,
)
with sweep.Store() as results:
    frame = sweep.frame(sweep.run(grid, results=results))
frame["join"] = frame["order.join"].fillna("ascending")
errors = frame.groupby(["join", "order.split"])["relative_l2"].mean() / U
chain = errors["ascending", k]
with plotting.style():
    figure, axes = plotting.figure(1, width=plotting.SINGLE, height=2.9)
    axes[0, 0].plot([*blocks, k], errors["ascending"], **plotting.HARDWARE["volta"].line(label="ascending sums"))
    axes[0, 0].plot(blocks, errors["pairwise"], **plotting.HARDWARE["ascend910a"].line(label="pairwise sums"))
    model = chain / np.sqrt(k + 1) * np.sqrt(np.array(blocks) ** 2 / k + k / np.array(blocks))
    axes[0, 0].plot(blocks, model, color=plotting.BLACK, linewidth=0.9, label="model")
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].set_yscale("log")
    axes[0, 0].set(xlabel=f"block length $b$, $k = {k}$", ylabel="relative $L_2$ error / $u$")
    axes[0, 0].legend()
display(figure)

# %%
inner = errors["ascending"].drop(k)
print(f"one chain {chain:.1f} u; best blocks, b = {inner.idxmin()}: {inner.min():.1f} u", end="; ")
print(f"pairwise, b = 32: {errors['pairwise', 32]:.2f} u")

# %% [markdown]
# The best block length reduces the error by more than a factor of eight, for $k/b$ more additions. With pairwise
# addition of the sums, the error decreases with the block length, below $u$ for short blocks. The cost in a kernel, at
# least a second register, was not measured.
#
# ## Comparison with split schemes on tensor cores
#
# The figure shows the same positive data in schemes that compute fp32 products from fp16 or bf16 words, and the chain
# of FMAs (black squares). Staged accumulation is a scheme of this project.

# %%
chains = reproduce.committed("tsm2/chains", "full")
chains.figure()

# %%
print(textwrap.fill(chains.finding, 115))
frame = chains.frame[chains.frame["k"] == chains.frame["k"].max()]
last = frame.drop(columns=["m", "n", "k", "seed", "inputs"]).groupby("hardware").mean()
means = chains.frame.groupby(["hardware", "k"]).mean(numeric_only=True)
(last / U).rename_axis("error / u").map("{:.1f}".format).transpose()

# %% [markdown]
# The accumulator determines the error, and not the number of bits of the words. The errors of schemes that accumulate
# the main sum over all of $k$ in the tensor core (Markidis, LE-GEMM, and bf16x9 for all nine products) grow as $k$, and
# end more than fifty times above the chain. The errors of schemes that add outside (Ootomo's after every instruction,
# staged after 64 products) grow as $\sqrt{k}$ or more slowly, and end below the chain. The signs of the errors show the
# cause:

# %%
X, Y = fpemu.inputs.operands("tsm2", 16, 16, 2**14, seed=1)
exact = fpemu.reference.matmul(X, Y)
low = {}
for name in ("sgemm", "markidis", "bf16x9", "ootomo", "staged"):
    D = fpemu.gemm(X, Y, scheme=name, hardware="H200").astype(np.float64)
    error = (D - exact) / exact
    low[name] = {"entries too small": np.mean(error < 0), "mean error / u": np.mean(error) / U}
low = pd.DataFrame(low)
low.map("{:.2f}".format)

# %% [markdown]
# Every entry is too small if the accumulator truncates over all of $k$, and about half of the entries are too small for
# SGEMM and Ootomo's scheme. Staged accumulation has the small bias of 64 products.

# %% [markdown]
# ## The paper's formulas
#
# The speeds of the paper belong to four other GPUs, but its formulas can be tested on any machine: the thresholds of
# $t_2$, the parameters of Algorithm 5, and the loads of the loops, which are executed and counted here. The verdicts
# are the verdicts of the ledger:

# %%
formulas = [one for page in ("parameters", "loads") for one in reproduce.committed(f"tsm2/{page}").judgements]
formulas = [one for one in formulas if one.claim.kind == "formula"]
verdict = {one.claim.name: one.verdict for one in formulas}
with pd.option_context("display.max_colwidth", None):
    display(
        pd.DataFrame(
            [(one.claim.claim, one.verdict, one.claim.why) for one in formulas], columns=["claim", "verdict", "why"]
        )
    )

# %% [markdown]
# The thresholds follow from the printed equation, which counts a multiply-add as one operation and uses peaks that
# count two. The exact minimum of Algorithm 5 as printed is at none of the published parameters. With consistent units
# it is at the parameters of the K40c, for loads of at most 400 cycles, and of the M40. The parameters of the P100 are
# the minimum in neither form. Where the printed gradient descent ends depends on the unit of time, which the paper does
# not state, so it is not judged.
#
# ## Conclusions
#
# * The error of a chain of FMAs is $0.2$ to $0.3\,\sqrt{k}\,u$ on positive data, far below the bound $k\,u$, and
#   proportional to $\sqrt{k}$ for zero-mean data too. Growth with $k$ requires a sum that stops growing, or a unit that
#   truncates.
# * Blocks of $(k^2/2)^{1/3}$, or short blocks with pairwise addition, reduce the error at the cost of few additions.
# * The error of a scheme on long sums depends more on the rounding of its accumulator than on its split.
# * A performance model requires consistent units: the published thresholds are twice the $t_2$ at which computation and
#   loads take equally long.
#
# Next: [magma](magma.ipynb) derives the bias of truncation, [legemm](legemm.ipynb) compares splits, and
# [dgemm_tc](dgemm_tc.ipynb) avoids rounding errors in the products.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# Tiles have no effect
assert (tiles == whole).all()
assert (along == whole).all()

# The expected error
assert 0.85 < ratio.min() < ratio.max() < 1.15
assert all(0.45 < power < 0.55 for power in powers.values())
assert (table.loc["positive", "measured / u"] < table.loc["zero mean", "measured / u"]).all()

# The errors over the paper's range
assert longest["relative_l2"].mean() / U < 0.3 * k_of_longest**0.5
assert longest["max_relative"].max() / U < k_of_longest / 50
assert (error_of_chain / U / error_of_chain.index**0.5).between(0.2, 0.3).all()

# Growth with $k$
assert abs(loss[2**10]) < 0.01
assert (sums[2**15] == 2**11).all()
assert loss[2**15] > 0.7

# Shorter chains by split-K
assert 256 <= inner.idxmin() <= 1024
assert chain > 8 * inner.min()
assert (abs(np.log(inner.to_numpy() / model)) < np.log(1.3)).all()
assert (errors["pairwise"][[32, 64, 128, 256]] < 1).all()

# Comparison with split schemes on tensor cores
for gpu in ("ampere", "hopper"):
    assert last.loc[gpu, ["markidis", "legemm"]].min() > 50 * last.loc[gpu, "chain"]
    assert last.loc[gpu, ["ootomo", "ootomo-tf32", "staged"]].max() < last.loc[gpu, "chain"] / 2
    assert last.loc[gpu, "bf16x9"] > 50 * last.loc[gpu, "chain"]
    assert last.loc[gpu, "pairwise"] < last.loc[gpu, ["ootomo", "staged"]].min()
for gpu in ("ampere", "hopper"):
    growth = np.log(means.loc[(gpu, 2**16)] / means.loc[(gpu, 2**10)]) / np.log(2**6)
    assert growth[["markidis", "legemm"]].between(0.9, 1.1).all()
    assert (growth[["ootomo", "ootomo-tf32", "staged"]] < 0.6).all()
assert (low.loc["entries too small", ["markidis", "bf16x9"]] == 1).all()
assert 0.2 < low.loc["entries too small", "sgemm"] < 0.8
assert 0.2 < low.loc["entries too small", "ootomo"] < 0.8
assert -20 < low.loc["mean error / u", "staged"] < -1

# The paper's formulas
assert verdict["bound"] == verdict["loads"] == verdict["bank_conflicts"] == "holds"
assert verdict["threshold"] == verdict["K40c_parameters"] == verdict["M40_parameters"] == "depends on the reading"
assert verdict["P100_parameters"] == "does not hold"
assert verdict["ism2_loads"] == "holds under a stated condition"
