# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Batches of small fp16 products: the error of the accumulator
#
# A. Abdelfattah, S. Tomov, J. Dongarra, *Matrix multiplication on batches of small matrices in half and half-complex
# precisions*, J. Parallel Distrib. Comput. (2020). The paper is about speed: thousands of products $C = AB$ of fp16
# matrices with $n \le 256$ on tensor cores. Two choices of its kernels affect the error:
#
# * The accumulator of the instruction is fp32 or fp16.
# * For tiny $n$ a kernel without tensor cores computes each output in one thread, as a chain of fp16 fused
#   multiply-adds (FMAs).
#
# The paper has no figure of errors. This notebook adds the figure, and a theory for each accumulator. Its argument:
# every output is one chain over $k$ in steps of the instruction, so the accumulator and the block length determine the
# error; the tiles of a kernel do not.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import textwrap

import numpy as np
import pandas as pd
from IPython.display import display
from scipy.special import ndtri

import fpemu
from fpemu import mma, plotting, reproduce

GPUS = {"volta": "V100", "ampere": "A100", "hopper": "H200"}
block = {gpu: mma.spec(gpu, "fp16", "fp32").block for gpu in GPUS}

# %% [markdown]
# ## The errors over $n$
#
# All results are fp16. Solid lines show accumulation in fp32 with one rounding to fp16, and the lines of three GPUs
# coincide. Dashed lines show accumulation in fp16, and the dotted line shows the chain of FMAs. The errors of the third
# panel are relative to $|A||B|$, as in error bounds.

# %%
accuracy = reproduce.committed("magma/accuracy", "full")
accuracy.figure()

# %%
print(textwrap.fill(accuracy.finding, 115))
means = accuracy.frame.groupby(["low", "n"]).mean(numeric_only=True)

# %% [markdown]
# With fp32 accumulation the single rounding to fp16 is the whole error, to within a tenth of a per cent, so no HGEMM
# with an fp16 result can be more accurate. At these sizes the truncation of the tensor core, which follows below, is
# much smaller.
#
# ## fp16 accumulation: the number of roundings
#
# A tensor core adds a block of $L$ products with additional bits and rounds the sum once to nearest in fp16, so a chain
# has $k/L$ roundings. Each rounding error is at most half a unit in the last place (ulp) of the running sum $c_t$. If
# these errors are uniformly distributed and independent, the relative error is
#
# $$\Bigl(\frac{\text{error}}{\text{result}}\Bigr)^2 \approx \frac{1}{12}\,
# \frac{\sum_t \mathrm{E}\,\mathrm{ulp}(c_t)^2}{\mathrm{E}\,c_k^2},
# \qquad c_t \approx \tfrac{t}{4} \;\text{(positive data)}, \qquad c_t \sim N(0, \tfrac{t}{9}) \;\text{(zero mean)}.$$

# %%
rows, normal = [], ndtri((np.arange(501) + 0.5) / 501)
for low, kind in ((-1.0, "zero mean"), (0.0, "positive")):
    for gpu, L in block.items():
        for k in (64, 128, 256):
            t = np.arange(L, k + 1, L)[:, None]
            sums = np.sqrt(t / 9) * normal if low else t / 4 + np.sqrt(7 / 144 * t) * normal
            ulps = np.ldexp(1.0, np.frexp(sums)[1] - 11)
            expected = np.sqrt(np.sum(np.mean(ulps**2, axis=1)) / 12 / np.mean(sums[-1] ** 2))
            rows.append((kind, gpu, k, expected, means.loc[low, k][f"{gpu} fp16 relative_l2"]))
table = pd.DataFrame(rows, columns=["data", "GPU", "k", "expected", "measured"]).set_index(["data", "GPU", "k"])
ratio = table["measured"] / table["expected"]
print(f"measured / expected: {ratio.min():.3f} to {ratio.max():.3f}")
table.unstack("k").map("{:.1e}".format)

# %% [markdown]
# The theory has no fitted parameter. The error is proportional to $\sqrt{k/L}$: the block doubles from Volta to Ampere
# and from Ampere to Hopper, and the error decreases by $\sqrt2$ each time. The chain of FMAs has $L = 1$ and the
# largest error:

# %%
last = means.xs(256, level="n")
errors = {gpu: last[f"{gpu} fp16 relative_l2"] for gpu in GPUS}
steps = errors["volta"] / errors["ampere"], errors["ampere"] / errors["hopper"]
chain = means["small relative_l2"].xs(16, level="n") / means["volta fp16 relative_l2"].xs(16, level="n")
print([f"{value:.2f}" for step in steps for value in step], [f"{value:.2f}" for value in chain])

# %% [markdown]
# ## The limit of fp16 accumulation
#
# For $k$ far beyond the paper's sizes, fp16 accumulation stops. With operands uniform in $[0, 1]$ a block adds about
# $L/4$. At $c = 2^{10} L$, after $k = 2^{12} L$ products, half an ulp of the sum is $L/2$, which is twice the block's
# sum, so most blocks are rounded away. This is not an overflow: fp16 represents numbers up to 65504.

# %%
lengths = [2**i for i in range(8, 19)]
A, B = fpemu.inputs.operands("uniform", 8, 8, lengths[-1], 0, "fp16", low=0.0, high=1.0)
sums = {}
for gpu in GPUS:
    spec = mma.spec(gpu, "fp16", "fp16")
    sums[gpu] = np.array([mma.gemm(A[:, :k], B[:k], None, spec).astype(float).mean() for k in lengths])
tiny = np.array([fpemu.simt.gemm(A[:, :k], B[:k], fmt="fp16").astype(float).mean() for k in lengths])
with plotting.style():
    figure, axes = plotting.figure(1, width=plotting.SINGLE, height=2.9)
    for gpu, values in sums.items():
        axes[0, 0].plot(lengths, values, **plotting.HARDWARE[gpu].line(label=f"{GPUS[gpu]}, L = {block[gpu]}"))
        axes[0, 0].axhline(2.0**10 * block[gpu], color=plotting.GREY, linewidth=0.8, linestyle=":")
    axes[0, 0].plot(lengths, tiny, color=plotting.PURPLE, marker="P", linestyle=":", label="chain of FMAs")
    axes[0, 0].plot(lengths, np.array(lengths) / 4, **plotting.HARDWARE["ideal"].line(label="expected", marker=""))
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].set_yscale("log", base=2)
    axes[0, 0].set(xlabel="$k$", ylabel="mean of the sums")
    axes[0, 0].legend()
display(figure)

# %%
print({gpu: f"{values[-1]:.0f}" for gpu, values in sums.items()}, f"of {lengths[-1] / 4:.0f}")

# %% [markdown]
# The sums stop growing at the dotted lines. On Volta the sum continues to grow slowly, because the sum of a block of
# four products sometimes exceeds half an ulp. On Hopper it hardly grows. The chain of FMAs ends at exactly $2^{11}$,
# where half an ulp is 1, the largest product. Up to $k = 2^{10}L$ the effect is below 5 % on these data, and the
# paper's sizes are far smaller.
#
# ## fp32 accumulation: the bias of truncation
#
# With fp32 accumulation the errors are small, but for positive data they all have one sign. Let $c$ be the running sum
# and $u_c = \mathrm{ulp}(c)$. A truncating instruction truncates every term to a multiple of $q = 2^{23-F} u_c$, and
# then the sum to a multiple of $u_c$. On average each of the $L$ positive products loses $q/2$, and the sum loses
# $(u_c-q)/2$. The loss per product in units of $u_c$ is
#
# $$\beta = \frac{1}{L}\Bigl(L\,\frac{q}{2u_c} + \frac{u_c-q}{2u_c}\Bigr) = \tfrac12,\;\tfrac{9}{32},\;\tfrac{19}{128}
# \quad\text{for}\quad (L, F) = (4, 23),\,(8, 24),\,(16, 25).$$
#
# With $c_t = t/4$ the ulps add up to $\sum_t u_{c_t} = \tfrac{k}{3}\,2^{-23}\,c_k$ if $c_k$ is a power of two. The
# relative bias is therefore $\tfrac{\beta}{3}\,2^{-23}\,k$, **proportional to $k$**. With rounding to nearest the error
# is about $\sqrt{k}$ unit roundoffs.

# %%
bias = reproduce.committed("magma/bias", "full")
page, frame = bias.experiment.module, bias.frame
rows = {}
for gpu, L in block.items():
    q = 2.0 ** (23 - mma.spec(gpu, "fp16").F)
    beta = q / 2 + (1 - q) / 2 / L
    for k in (256, 4096, 65536):
        selected = frame.query("hardware == @gpu and ab == 'fp16' and low == 0 and k == @k")
        rows[f"{GPUS[gpu]}, β = {beta:g}", k] = {
            "β k 2^-23 / 3": beta * k / 3 * 2.0**-23,
            "every step": page.predicted(gpu, 0.0, k),
            "measured": selected["relative loss"].mean(),
        }
table = pd.DataFrame(rows).transpose()
off = table["β k 2^-23 / 3"] / table["measured"] - 1
table.map("{:.3e}".format)

# %% [markdown]
# For short sums the products have few bits below $q$, and the prediction "every step" takes this into account
# (`experiments/magma/_bias.py` contains the derivation). It depends only on the fields of the instruction and on the
# distribution of the operands. In the figure the lines are predictions and the markers are emulated errors. The slope
# is 1 for the truncating units in (a), and 1/2 for the black dotted line (rounding to nearest) in (c).

# %%
bias.figure()

# %%
print(textwrap.fill(bias.finding, 115))
long = frame.query("k == 65536 and low == 0").groupby(["hardware", "ab"])["rms"].mean()
final = frame.query("k == 65536").groupby(["low", "hardware", "ab"]).mean(numeric_only=True)
others = [(gpu, "fp16") for gpu in ("ampere", "hopper")]
first = frame.query("k == 16 and low == 0 and ab == 'fp16'").groupby("hardware")[["relative loss", "rms"]].mean()

# %% [markdown]
# Three results were unexpected. First, **zero-mean data have a bias toward zero as well**: the final rounding reduces
# the magnitude of the sum, and this bias grows as $k$; the truncation of single products has either sign and grows only
# as $\sqrt{k}$. On Volta $F=23$ leaves no bits for the final rounding, so its bias (b) is the smallest at large $k$,
# although its bias (a) is the largest. Second, **CDNA 3** rounds down, but with 31 bits, so up to $k = 65536$ its
# errors are similar to rounding to nearest. Third, **fp8** by `wgmma` on Hopper has 13 fraction bits and loses about
# half of a sum of 65536 products.
#
# ## The average over a batch
#
# An average over a batch, for example of gradients, reduces errors of random sign. The table shows the relative error
# of the mean of a batch of $4\times4$ products with $k=256$, positive data, and fp32 accumulation and results.

# %%
errors_of_mean = {}
for gpu in ("volta", "ampere", "hopper", "cdna3", "ideal"):
    for batch in (1, 10, 100, 1000):
        A, B = fpemu.inputs.operands("uniform", 4, 4, 256, 0, "fp16", batch=batch, low=0.0, high=1.0)
        exact = fpemu.reference.matmul(A, B).mean(axis=0)
        D = mma.gemm(A, B, spec=mma.spec(gpu, "fp16", "fp32")).astype(np.float64).mean(axis=0)
        errors_of_mean.setdefault(plotting.HARDWARE[gpu].label, {})[batch] = fpemu.metrics.relative_l2(D, exact)
averaged = pd.DataFrame(errors_of_mean).rename_axis("batch")
fall = averaged.loc[1000] / averaged.loc[1]
averaged.map("{:.1e}".format)

# %% [markdown]
# ## Conclusions
#
# * **fp32 accumulation** leaves only the rounding of the result for fp16 results, so it is the right choice for every
#   format of $C$.
# * **fp16 accumulation** has an error proportional to $\sqrt{k/L}$: smallest on Hopper, and largest in the tiny
#   kernel's chain of FMAs. On positive data the sums stop growing near $2^{10}L$.
# * **Truncation** is visible in fp32 *results* from the shortest $k$ on, and the average over a batch does not reduce
#   it. If this bias matters, add outside the instruction after a fixed interval (`mma.KOrder(promote=64)`).
#
# Next: [arithmetic](arithmetic.ipynb) shows the bits of one instruction, [h2sgemm](h2sgemm.ipynb) determines the best
# promotion interval, and [tsm2](tsm2.ipynb) analyses chains on ordinary cores.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# Batches of small fp16 products: the error of the accumulator
assert block == {"volta": 4, "ampere": 8, "hopper": 16}

# The errors over $n$
for gpu in GPUS:
    excess = means[f"{gpu} fp32 relative_l2"] / means["once relative_l2"]
    assert (excess < 1.001).all()
    assert means[f"{gpu} fp16 relative_l2"].xs(256, level="n").min() > 2 * means["once relative_l2"].max()

# fp16 accumulation: the number of roundings
assert 0.9 < ratio.min() < ratio.max() < 1.1
assert all(1.3 < value < 1.5 for step in steps for value in step)
assert all(1.5 < value < 2.5 for value in chain)

# The limit of fp16 accumulation
for gpu, values in sums.items():
    early = np.array(lengths) <= 2**10 * block[gpu]
    assert np.allclose(values[early], np.array(lengths)[early] / 4, rtol=0.05)
    assert values[-1] < lengths[-1] / 8
    assert 0.9 * 2**10 * block[gpu] < values[-1]
assert tiny[-1] == 2048

# fp32 accumulation: the bias of truncation
assert abs(off.xs(65536, level=1)).max() < 0.02
assert abs(off.xs(4096, level=1)).max() < 0.05
assert abs(table["every step"] / table["measured"] - 1).max() < 0.1
assert all(long[gpu, "fp16"] > 100 * long["ideal", "fp16"] for gpu in GPUS)
assert long["cdna3", "fp16"] < 3 * long["ideal", "fp16"]
assert 0.4 < final.loc[(0, "hopper", "e4m3"), "relative loss"] < 0.7
assert (final.loc[0]["relative loss"][others] < final.loc[(0, "volta", "fp16"), "relative loss"]).all()
assert (final.loc[-1]["towards zero"][others] > 3 * final.loc[(-1, "volta", "fp16"), "towards zero"]).all()
assert (first.loc[list(GPUS), "relative loss"] > first.loc["ideal", "rms"]).all()

# The average over a batch
assert (fall[["Volta", "Ampere", "Hopper"]] > 0.8).all()
assert (fall[["CDNA 3", "ideal"]] < 0.2).all()
