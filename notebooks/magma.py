# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Batches of small fp16 products, and the accumulator's choice
#
# A. Abdelfattah, S. Tomov, J. Dongarra, *Matrix multiplication on batches of small matrices in half and half-complex
# precisions*, J. Parallel Distrib. Comput. (2020). The paper is about speed: thousands of products $C = AB$ of fp16
# matrices with $n \le 256$, on tensor cores. Its kernels leave two choices that the numbers feel,
#
# * the accumulator of the instruction, fp32 or fp16;
# * for tiny $n$ no tensor core at all: one thread for each output, a chain of fp16 FMAs,
#
# and it has no error figure. This notebook supplies it, with a theory for either accumulator. Every output is one chain
# over $k$, in steps of the instruction: that is what decides, not the tiles of the kernel.

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
assert block == {"volta": 4, "ampere": 8, "hopper": 16}

# %% [markdown]
# ## The errors over $n$
#
# The result is fp16 in all cases. Solid: accumulated in fp32 and rounded once; three GPUs on one line. Dashed:
# accumulated in fp16. Dotted: the chain of FMAs. The third panel divides by $|A||B|$, as error bounds do.

# %%
accuracy = reproduce.committed("magma/accuracy", "full")
accuracy.figure()

# %%
print(textwrap.fill(accuracy.finding, 115))
means = accuracy.frame.groupby(["low", "n"]).mean(numeric_only=True)
for gpu in GPUS:
    excess = means[f"{gpu} fp32 relative_l2"] / means["once relative_l2"]
    assert (excess < 1.001).all()
    assert means[f"{gpu} fp16 relative_l2"].xs(256, level="n").min() > 2 * means["once relative_l2"].max()

# %% [markdown]
# With fp32 accumulation an HGEMM is as good as it can be: the one rounding to fp16 is all of its error, to a tenth of a
# per cent. The tensor core's truncation, to which we come, is far below that at these sizes.
#
# ## fp16 accumulation: count the roundings
#
# A block of $L$ products is added with bits to spare and the sum rounded to nearest, so a chain makes $k/L$ roundings.
# Each is off by up to half a unit in the last place (ulp) of the running sum $c_t$; if they are uniform and
# independent,
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
assert 0.9 < ratio.min() < ratio.max() < 1.1
table.unstack("k").map("{:.1e}".format)

# %% [markdown]
# Nothing is fitted. The error goes as $\sqrt{k/L}$: from Volta to Ampere to Hopper the block doubles, and the error
# falls by $\sqrt2$. The chain of FMAs is $L = 1$ and the worst of all:

# %%
last = means.xs(256, level="n")
errors = {gpu: last[f"{gpu} fp16 relative_l2"] for gpu in GPUS}
steps = errors["volta"] / errors["ampere"], errors["ampere"] / errors["hopper"]
chain = means["small relative_l2"].xs(16, level="n") / means["volta fp16 relative_l2"].xs(16, level="n")
print([f"{value:.2f}" for step in steps for value in step], [f"{value:.2f}" for value in chain])
assert all(1.3 < value < 1.5 for step in steps for value in step)
assert all(1.5 < value < 2.5 for value in chain)

# %% [markdown]
# ## Where fp16 accumulation stops
#
# Beyond the paper's sizes it breaks down. Operands uniform in $[0, 1]$: a block adds about $L/4$. Once half an ulp of
# the sum is $L/2$, twice that, a block is usually rounded away, which is at $c = 2^{10} L$, after $k = 2^{12} L$
# products. This is not overflow: fp16 goes up to 65504.

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
for gpu, values in sums.items():
    early = np.array(lengths) <= 2**10 * block[gpu]
    assert np.allclose(values[early], np.array(lengths)[early] / 4, rtol=0.05)
    assert values[-1] < lengths[-1] / 8
    assert 0.9 * 2**10 * block[gpu] < values[-1]
assert tiny[-1] == 2048
print({gpu: f"{values[-1]:.0f}" for gpu, values in sums.items()}, f"of {lengths[-1] / 4:.0f}")

# %% [markdown]
# The sums bend at the dotted lines. Volta's creeps on, since a block of four is now and then twice its mean; Hopper's
# hardly moves; the chain of FMAs ends at $2^{11}$ exactly, where half an ulp is 1, the largest product. Up to
# $k = 2^{10}L$ nothing is seen of it on data of this kind, and the paper's sizes are far below.
#
# ## fp32 accumulation: the bias of truncation
#
# Accumulated in fp32, the errors are small, but with positive data all have one sign. On a truncating GPU an
# instruction with the running sum $c$, $u_c = \mathrm{ulp}(c)$, cuts everything to multiples of $q = 2^{23-F} u_c$ and
# then the sum to $u_c$. On average each of the $L$ positive products loses $q/2$ and the sum $(u_c-q)/2$. Per product,
# in units of $u_c$:
#
# $$\beta = \frac{1}{L}\Bigl(L\,\frac{q}{2u_c} + \frac{u_c-q}{2u_c}\Bigr) = \tfrac12,\;\tfrac{9}{32},\;\tfrac{19}{128}
# \quad\text{for}\quad (L, F) = (4, 23),\,(8, 24),\,(16, 25).$$
#
# With $c_t = t/4$ the ulps add up to $\sum_t u_{c_t} = \tfrac{k}{3}\,2^{-23}\,c_k$ if $c_k$ is a power of two. So the
# relative bias is $\tfrac{\beta}{3}\,2^{-23}\,k$, **proportional to $k$**, where rounding to nearest errs by about
# $\sqrt{k}$ roundoffs.

# %%
bias = reproduce.committed("magma/bias", "full")
page, frame = bias.experiment.module, bias.frame
rows = {}
for gpu, L in block.items():
    q = 2.0 ** (23 - mma.spec(gpu, "fp16").F)
    beta = q / 2 + (1 - q) / 2 / L
    for k in (256, 4096, 65536):
        here = frame.query("hardware == @gpu and ab == 'fp16' and low == 0 and k == @k")
        rows[f"{GPUS[gpu]}, β = {beta:g}", k] = {
            "β k 2^-23 / 3": beta * k / 3 * 2.0**-23,
            "every step": page.predicted(gpu, 0.0, k),
            "measured": here["relative loss"].mean(),
        }
table = pd.DataFrame(rows).transpose()
off = table["β k 2^-23 / 3"] / table["measured"] - 1
assert abs(off.xs(65536, level=1)).max() < 0.02
assert abs(off.xs(4096, level=1)).max() < 0.05
assert abs(table["every step"] / table["measured"] - 1).max() < 0.1
table.map("{:.3e}".format)

# %% [markdown]
# For short sums the products themselves have few bits below $q$ to lose; the prediction "every step" counts them (the
# derivation stands in `fpemu/theory/bias.py`). It knows the fields of the instruction and the distribution
# of the operands, nothing else. The figure compares it, as lines, with the emulation, as markers. Look at the slopes: 1
# for the truncating units in (a), 1/2 for the black dotted line in (c).

# %%
bias.figure()

# %%
print(textwrap.fill(bias.finding, 115))
long = frame.query("k == 65536 and low == 0").groupby(["hardware", "ab"])["rms"].mean()
assert all(long[gpu, "fp16"] > 100 * long["ideal", "fp16"] for gpu in GPUS)
assert long["cdna3", "fp16"] < 3 * long["ideal", "fp16"]
final = frame.query("k == 65536").groupby(["low", "hardware", "ab"]).mean(numeric_only=True)
assert 0.4 < final.loc[(0, "hopper", "e4m3"), "relative loss"] < 0.7
others = [(gpu, "fp16") for gpu in ("ampere", "hopper")]
assert (final.loc[0]["relative loss"][others] < final.loc[(0, "volta", "fp16"), "relative loss"]).all()
assert (final.loc[-1]["towards zero"][others] > 3 * final.loc[(-1, "volta", "fp16"), "towards zero"]).all()
first = frame.query("k == 16 and low == 0 and ab == 'fp16'").groupby("hardware")[["relative loss", "rms"]].mean()
assert (first.loc[list(GPUS), "relative loss"] > first.loc["ideal", "rms"]).all()

# %% [markdown]
# Three things surprised us. **Zero-mean data have the bias too**, toward zero: the final rounding takes from the sum,
# whatever its sign, and grows as $k$; what the alignment takes from single products grows only as $\sqrt{k}$. So on
# Volta, whose $F=23$ leaves nothing to the final rounding, the bias (b) is the smallest in the end, though its (a) is
# the largest. **CDNA 3** cuts downwards, but below 31 bits, and up to $k = 65536$ behaves like rounding to nearest.
# And **fp8** on Hopper's `wgmma`, with 13 fraction bits, loses half of a sum of 65536 products.
#
# ## A batch does not average it away
#
# Averages over a batch, as of gradients, reduce errors of random sign. Mean of a batch of $4\times4$ products, $k=256$,
# positive data, fp32 accumulation and result: relative error of the mean.

# %%
found = {}
for gpu in ("volta", "ampere", "hopper", "cdna3", "ideal"):
    for batch in (1, 10, 100, 1000):
        A, B = fpemu.inputs.operands("uniform", 4, 4, 256, 0, "fp16", batch=batch, low=0.0, high=1.0)
        exact = fpemu.reference.matmul(A, B).mean(axis=0)
        D = mma.gemm(A, B, spec=mma.spec(gpu, "fp16", "fp32")).astype(np.float64).mean(axis=0)
        found.setdefault(plotting.HARDWARE[gpu].label, {})[batch] = fpemu.metrics.relative_l2(D, exact)
averaged = pd.DataFrame(found).rename_axis("batch")
fall = averaged.loc[1000] / averaged.loc[1]
assert (fall[["Volta", "Ampere", "Hopper"]] > 0.8).all()
assert (fall[["CDNA 3", "ideal"]] < 0.2).all()
averaged.map("{:.1e}".format)

# %% [markdown]
# ## What a user of small batched products should conclude
#
# * **Accumulate in fp32**, whatever the format of $C$: with fp16 results nothing is left to gain after that.
# * Errors of fp16 accumulation grow as $\sqrt{k/L}$: smallest on Hopper, largest in the tiny kernel's chain of FMAs. On
#   positive data the sums stop near $2^{10}L$.
# * With fp32 *results* the truncation shows at the shortest $k$ already, and no batch averages it away. Where it
#   matters, add outside the instruction every so often (`mma.KOrder(promote=64)`).
#
# Next: [arithmetic](arithmetic.ipynb) for the bits of one instruction, [h2sgemm](h2sgemm.ipynb) for the best interval
# of promotion, [tsm2](tsm2.ipynb) for chains on ordinary cores.
