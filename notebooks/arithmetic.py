# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # How a matrix unit adds
#
# A matrix instruction adds a *block* of $L$ products to an accumulator $c$: $d = c + \sum_k a_k b_k$. The result is
# neither a chain of fused multiply-adds nor the correctly rounded sum. On NVIDIA's tensor cores:
#
# 1. Products are **exact** and not normalised: the product of $s_a 2^{e_a}$ and $s_b 2^{e_b}$ has the exponent
#    $e_a+e_b$.
# 2. The alignment exponent is the **largest exponent** $e_{\max}$ of the products and of $c$, but at least the minimum
#    alignment exponent $E_0$.
# 3. Every term is **truncated** toward zero to a multiple of $2^{e_{\max}-F}$, without a guard bit or a sticky bit. $F$
#    is the alignment width.
# 4. The truncated terms are added exactly, and the sum is **rounded once**: toward zero (RZ) to fp32, to nearest (RNE)
#    to fp16.
# 5. The result is the $c$ of the next block.
#
# This notebook shows each step on the bits, and then three consequences: sums depend on the order of the blocks, a
# larger operand can give a smaller result, and an accumulator can stop growing. The last cell asserts every statement.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import mma, plotting
from fpemu.plotting import bits

GPUS = ("V100", "T4", "A100", "H200", "B200", "MI100", "MI210", "MI300X")
specs = {gpu: mma.spec(gpu, "fp16", "fp32") for gpu in GPUS}
fields = ("architecture", "arithmetic", "k", "block", "F", "E0", "final", "evidence")
pd.DataFrame({gpu: {field: getattr(spec, field) for field in fields} for gpu, spec in specs.items()}).transpose()

# %% [markdown]
# Each row of the table is the complete specification of a unit. `F` and `E0` apply to the truncating arithmetic only.
# `evidence` is *measured* on that GPU for this project, *replayed* from published recordings, or *documented* in the
# literature.
#
# ## One dot product, four results
#
# The accumulator is $c = 2^{23}$, and the products are $-2^{23}, -\tfrac12, -\tfrac14, -\tfrac18$. The large terms
# cancel, and the bits of the small terms in the result show how far below $2^{23}$ a unit keeps bits. Each row is a
# term, and each column is a binary place.

# %%
a, b, c = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23
on_four_gpus = [bits.blocks(a, b, c, spec=specs[gpu])[0] for gpu in ("V100", "A100", "H200", "MI100")]
bits.draw(on_four_gpus)

# %% [markdown]
# The last place of the aligned terms is $2^{23-F}$: Volta ($F=23$) keeps no bits below 1, Ampere ($F=24$) keeps one
# bit, and Hopper ($F=25$) keeps two. Only CDNA 1, which adds exactly and rounds once, returns the exact result. The
# bits of the pictures come from the NumPy reference implementation (`mma.reference`), and the results come from the
# compiled implementation (`mma.execute`); the last cell asserts that they agree. The other AMD units have arithmetic
# that these pictures do not represent. Their results are:

# %%
A, B, C = np.zeros((1, 16), np.float16), np.zeros((16, 1), np.float16), np.float32([[c]])
A[0, :4], B[:4, 0] = a, b
results = {gpu: mma.gemm(A, B, C, spec).item() for gpu, spec in specs.items()}
pd.Series(results, name="c + a·b (exactly −0.875)").to_frame().transpose()

# %% [markdown]
# ## Truncation and rounding in a random dot product
#
# The terms are random fp16 numbers of decreasing magnitude; two of the five terms are negative. Pale cells are zeros
# and dark cells are ones. The alignment truncates the vermilion bits, and the rounding of the sum to the 24 bits of
# fp32 removes the orange bits.

# %%
rng = np.random.default_rng(65)
a = np.float16(rng.uniform(1, 2, 4) * 2.0 ** -np.arange(0, 16, 4))
b = np.float16(rng.uniform(1, 2, 4) * [1, -1, 1, 1])
c = np.float32(-rng.uniform(1, 2) / 8)
of_random_terms = [bits.blocks(a, b, c, spec=specs[gpu])[0] for gpu in ("V100", "A100", "H200", "MI100")]
bits.draw(of_random_terms)

# %% [markdown]
# Hopper keeps two more bits than Volta and one more than Ampere. Nevertheless only Ampere returns the correctly rounded
# result here: the result of Hopper is one unit in the last place (ulp) too small, and the result of Volta is one ulp
# too large. There are two errors. The alignment reduces the magnitude of each term by less than $2^{e_{\max}-F}$; on
# Volta the negative terms lose most, so the sum rises. The final rounding toward zero reduces the result by less than
# one ulp; on Hopper the sum lies just below the correct fp32 number. The error of the alignment is relative to the
# largest term and not to the result, so it dominates after cancellation.
#
# The first product, $2.03$, has the exponent $0$, although its leading bit is at $2^1$: products are not normalised.
#
# ## Subnormal operands
#
# NVIDIA's tensor cores do not replace subnormal fp16 operands by zero. A subnormal operand enters with the exponent
# $-14$ of its format, not with the exponent of its leading bit. The products $2^{-24}\cdot 1$ and $2^{-12}\cdot
# 2^{-12}$ are equal, but they have different alignment exponents, and beside the first product the other term is
# truncated to zero:

# %%
small = 2.0**-20  # its square is 2^-40
of_small_terms = [
    bits.blocks([2.0**-24, small], [1.0, small], spec=specs["H200"])[0],
    bits.blocks([2.0**-12, small], [2.0**-12, small], spec=specs["H200"])[0],
]
bits.draw(of_small_terms)

# %% [markdown]
# CDNA 2 replaces subnormal fp16 operands by zero; CDNA 1 and CDNA 3 do not. On an MI210 (CDNA 2) the residual of a
# split number can therefore become zero.

# %% [markdown]
# ## The minimum alignment exponent
#
# The alignment exponent $e_{\max}$ is at least $E_0 = e_{\min}(D) - (F-18)$, where $e_{\min}(D)$ is the smallest normal
# exponent of the result: $-133$ for fp32 results on Hopper. Only formats with the exponent range of fp32, such as bf16,
# have products that are so small. In the following dot product, which was recorded on an H100, all products are below
# $2^{E_0}$. The result is a subnormal fp32 number of a few units of $2^{-149}$.

# %%
codes = (
    "9b94 19f3 9a2e 1a67 9a25 9b4e 9b29 9a33 99e0 1a14 9914 99d1 9ae9 1b1a 9a9c 1b3a",
    "9aaf 99f3 9acc 1b7c 19ed 1b25 9a1b 9a20 9af7 9a48 1ae1 1b32 1b12 1b0e 9a68 1735",
)
a_bf16, b_bf16 = (fpemu.BF16.decode([int(code, 16) for code in text.split()]) for text in codes)
hopper = mma.spec("H100", "bf16")
(picture,) = bits.blocks(a_bf16, b_bf16, spec=hopper)
bits.draw([picture])

# %% [markdown]
# With each of three other values of $E_0$, the last hexadecimal digit of the result is A, but the GPU returned B. Such
# probes determine the value of $E_0$.

# %% [markdown]
# ## The order of the terms
#
# Within a block the terms are truncated to multiples of one power of two and added exactly, so their order has no
# effect. Between blocks there is a rounding. The table counts the different results of one dot product of 256 random
# terms of different magnitudes in 200 random orders:

# %%
K, shuffles = 256, 200
rng = np.random.default_rng(0)
x, y = (np.float16(np.ldexp(rng.standard_normal(K), rng.integers(-6, 7, K))) for _ in "xy")
counts_of = {}
for gpu, spec in specs.items():
    blocks = np.arange(K).reshape(-1, spec.block)
    within = np.array([rng.permuted(blocks, axis=1).ravel() for _ in range(shuffles)])
    whole = np.array([rng.permutation(K) for _ in range(shuffles)])
    counts_of[gpu] = {
        name: len(np.unique(mma.gemm(x[order][:, None, :], y[order][:, :, None], None, spec)))
        for name, order in (("shuffled within blocks", within), ("shuffled", whole))
    }
pd.DataFrame(counts_of).transpose()

# %% [markdown]
# The order within a block affects the result on the MI210 only, which adds $((p_0+p_1)+(p_2+p_3))+c$ in fp32. The
# random data do not show this; a block with two ones and $\pm2^{24}$ does, in the cell below. On every unit the order
# of the blocks changes the result. A GEMM can therefore be reproduced bit for bit only if its order over $K$ is known:
# the split of $K$, the position of the residue, and the promotion interval. `mma.KOrder` describes this order.

# %% [markdown]
# ## The bias of truncation, and promotion
#
# The result of each block is rounded toward zero. In a long sum of positive terms all these errors have the same sign,
# so they do not cancel. *Promotion* adds the accumulator to an fp32 sum outside the matrix unit, with rounding to
# nearest, after a fixed interval in $k$, and restarts the accumulator from zero.

# %%
lengths = [2**n for n in range(6, 15)]
x = fpemu.inputs.make("uniform", (32, lengths[-1]), 1, "fp16", low=0.0, high=1.0)
y = fpemu.inputs.make("uniform", (lengths[-1], 32), 2, "fp16", low=0.0, high=1.0)
orders = {"one chain": None, "promoted every 128": mma.KOrder(promote=128)}
errors = {}
for K in lengths:
    exact = fpemu.reference.matmul(x[:, :K], y[:K])
    for gpu in ("A100", "H200", "MI100"):
        for label, order in orders.items():
            D = mma.gemm(x[:, :K], y[:K], None, specs[gpu], order).astype(np.float64)
            errors[gpu, label, K] = (D / exact - 1).ravel()
with plotting.style():
    figure, axes = plotting.figure(3, height=2.5, width=plotting.DOUBLE)
    styles = {"one chain": plotting.HARDWARE["volta"], "promoted every 128": plotting.HARDWARE["hopper"]}
    for gpu, axis in zip(("A100", "H200", "MI100"), axes[0], strict=True):
        for label, style in styles.items():
            plotting.band(axis, lengths, [abs(errors[gpu, label, K]) for K in lengths], style, label=label)
        axis.set(yscale="log", xlabel="$K$", ylim=(1e-9, 1e-3))
        axis.set_xscale("log", base=2)
    axes[0, 0].set_ylabel("relative error (mean and range)")
    plotting.panel_titles(axes, ["A100", "H200", "MI100 (to nearest)"])
    plotting.legend_below(figure, axes[0, 0], 2)
display(figure)

# %% [markdown]
# On the A100 and the H200 all 1024 results at $K=2^{14}$ are too small, and the error grows in proportion to $K$. On
# the MI100, which rounds to nearest, the errors have both signs and grow much more slowly. Promotion limits the growth:
# the remaining error is the bias of a chain of 128 products.
#
# ## A larger operand with a smaller result
#
# IEEE addition is monotone: a larger operand never gives a smaller sum. The addition of a tensor core is not monotone.
# With $c=1-2^{-24}$ the alignment exponent is $-1$, and the eight products of $2^{-25}$ are kept on Ampere. With $c =
# 1$, the next fp32 number, the last place of the aligned terms is twice as large, and all eight products are truncated
# to zero.

# %%
a, b = [2.0**-12] * 8, [2.0**-13] * 8
pictures = [bits.blocks(a, b, c, spec=mma.spec("A100", k=8))[0] for c in (1 - 2.0**-24, 1.0)]
lower, upper = (picture.result for picture in pictures)
bits.draw(pictures)

# %% [markdown]
# ## An accumulator that stops growing
#
# With an fp16 accumulator a sum of ones stops growing. A block adds $L$ ones to $c$ exactly, and the sum is rounded to
# 11 bits, to nearest even. At $c = 2^{11}L$ the increment $L$ is half an ulp, and the tie is rounded back to $c$. A sum
# of any number of ones is therefore at most $2^{11}L$: 8192 on Volta, 16384 on Ampere and 32768 on Hopper, although
# fp16 represents 65504.

# %%
counts = np.arange(0, 2**16, 2**10)
ones = (np.arange(2**16) < counts[:, None]).astype(np.float16)
half = {gpu: mma.spec(gpu, "fp16", "fp16") for gpu in ("V100", "A100", "H200")}
sums = {gpu: mma.gemm(ones, np.ones((2**16, 1), np.float16), None, spec).ravel() for gpu, spec in half.items()}
with plotting.style():
    figure, axes = plotting.figure(1, width=plotting.SINGLE, height=2.6)
    for gpu, spec in half.items():
        style = plotting.HARDWARE[spec.architecture]
        axes[0, 0].plot(counts, sums[gpu].astype(float), **style.line(label=f"{gpu}, L = {spec.block}", markevery=4))
    axes[0, 0].plot(counts, counts, **plotting.HARDWARE["ideal"].line(label="exact", marker=""))
    axes[0, 0].set(xlabel="ones added", ylabel="fp16 accumulator")
    axes[0, 0].legend()
display(figure)

# %% [markdown]
# Products of fp8 by `wgmma` on Hopper are aligned with $F = 13$, and the fp32 accumulator has 13 fraction bits. At
# $2^{14}$ the alignment truncates the ones to zero and the sum stops growing, although its format is fp32. With
# promotion every 128 products the sum is exact.

# %% [markdown]
# ## Special values
#
# NVIDIA's units return one NaN, with all bits except the sign set, for every NaN payload, and one zero, $+0$. With
# rounding toward zero the largest fp32 number $2^{128}-2^{104}$ is unchanged after an addition of half an ulp, but a
# sum of $2^{128}$ is infinite. AMD's units return the usual quiet NaN, and with rounding to nearest an addition of half
# an ulp to the largest number gives infinity. The example uses bf16, which has the exponent range of fp32:

# %%
largest = fpemu.FP32.max
cases = {
    "NaN with a payload": (fpemu.BF16.decode(0x7FA5), 1.0, 0.0),
    "Inf · 0": (np.inf, 0.0, 0.0),
    "Inf · 1 − Inf": (np.inf, 1.0, -np.inf),
    "largest + half an ulp": (2.0**52, 2.0**51, largest),
    "largest + an ulp": (2.0**52, 2.0**52, largest),
    "−0 · 1 + −0": (-0.0, 1.0, -0.0),
}
codes = {}
for case, operands in cases.items():
    x, y, z = (np.full((1, 1), value, np.float32) for value in operands)
    for gpu in ("A100", "H200", "MI100"):
        D = mma.gemm(x, y, z, mma.spec(gpu, "bf16"))
        codes.setdefault(gpu, {})[case] = f"0x{fpemu.FP32.encode(D).item():08X}"
pd.DataFrame(codes)

# %% [markdown]
# ## Conclusions
#
# * An NVIDIA tensor core truncates every term to a multiple of one power of two, adds exactly and rounds once. A few
#   integers specify the unit.
# * On most units the order within a block has no effect; the order of the blocks always has an effect.
# * Truncation is a bias that grows with $K$. Promotion limits the bias, and rounding to nearest avoids it.
# * A wider alignment does not improve every result, a larger operand can give a smaller sum, and an accumulator with
#   few bits stops growing.
#
# ## Further reading
#
# * [tour](tour.ipynb): the package in five minutes; [dgemm_tc](dgemm_tc.ipynb): sums that are exact on these units.
# * `fpemu.mma.MmaSpec`: the specification of any instruction; every field of the table at the top can be changed.
# * `fpemu list hardware` on the command line: all instructions, with their evidence and sources.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# One dot product, four results
assert [picture.result for picture in on_four_gpus] == [0.0, -0.5, -0.75, -0.875]
assert results["MI210"] == 0.0  # products and sums in fp32, to nearest, C last
assert results["MI300X"] == -0.5  # products on one grid, then the accumulator on a coarser one

# Truncation and rounding in a random dot product
exact = of_random_terms[-1].sum
ulp = 2.0**-23
off = [(picture.result - fpemu.round_to(exact, "fp32")) / ulp for picture in of_random_terms]
for random_sum in of_random_terms:  # the sum drawn, rounded once, is what the instruction returns
    assert fpemu.round_to(np.float64(random_sum.sum), "fp32", random_sum.spec.final) == random_sum.result
assert off == [1.0, 0.0, -1.0, 0.0]

# Subnormal operands
A, B = np.zeros((1, 16), np.float16), np.zeros((16, 1), np.float16)
A[0, 0], B[0, 0] = 2.0**-24, 1.0
flushed = {gpu: mma.gemm(A, B, None, spec).item() for gpu, spec in specs.items()}
assert [picture.result for picture in of_small_terms] == [2.0**-24, 2.0**-24 + 2.0**-40]
assert [picture.exponent for picture in of_small_terms] == [-14, -24]
assert [gpu for gpu, value in flushed.items() if value == 0] == ["MI210"]
assert all(value == 2.0**-24 for gpu, value in flushed.items() if gpu != "MI210")

# The minimum alignment exponent
others = [bits.blocks(a_bf16, b_bf16, spec=hopper.replace(E0=floor))[0].result for floor in (-126, -132, -134)]
assert picture.exponent == hopper.E0 == -133
assert max(abs(a_bf16 * b_bf16)) < 2.0**-133
assert fpemu.FP32.encode(picture.result) == 0x0000000B
assert [int(fpemu.FP32.encode(value)) for value in others] == [0xA, 0xA, 0xA]

# The order of the terms
big = 2.0**12
first = np.array([[[big, 1, big, 1]], [[big, big, 1, 1]]], np.float16)
second = np.array([[[big], [1], [-big], [1]], [[big], [-big], [1], [1]]], np.float16)
assert all(counts["shuffled within blocks"] == 1 for counts in counts_of.values())
assert all(counts["shuffled"] > 1 for counts in counts_of.values())
for gpu, spec in specs.items():
    one, two = mma.gemm(first, second, None, spec).ravel()
    assert (one, two) == (1, 2) if gpu == "MI210" else one == two

# The bias of truncation, and promotion
means = {key: np.mean(abs(error)) for key, error in errors.items()}
for gpu in ("A100", "H200"):
    assert (errors[gpu, "one chain", 2**14] < 0).all()
    assert 12 < means[gpu, "one chain", 2**14] / means[gpu, "one chain", 2**10] < 20
    assert means[gpu, "promoted every 128", 2**14] < 2 * means[gpu, "promoted every 128", 2**7]
assert 0.2 < np.mean(errors["MI100", "one chain", 2**14] < 0) < 0.8
assert means["MI100", "one chain", 2**14] < 8 * means["MI100", "one chain", 2**10]

# A larger operand with a smaller result
assert np.nextafter(np.float32(1 - 2.0**-24), np.float32(2)) == 1
assert lower == 1 + 2.0**-23
assert upper == 1.0
assert lower > upper

# An accumulator that stops growing
fp8 = mma.spec("H200", "e4m3")
ones = np.ones((1, 2**15), np.float32)
chain = mma.gemm(ones, ones.T, None, fp8).item()
promoted = mma.gemm(ones, ones.T, None, fp8, mma.KOrder(promote=128)).item()
for gpu, spec in half.items():
    assert (sums[gpu] == np.minimum(counts, 2**11 * spec.block)).all()
assert (fp8.F, fp8.instruction) == (13, "wgmma")
assert (chain, promoted) == (2.0**14, 2.0**15)

# Special values
assert codes["A100"] == codes["H200"]
assert list(codes["A100"].values()) == [*["0x7FFFFFFF"] * 3, "0x7F7FFFFF", "0x7F800000", "0x00000000"]
assert codes["MI100"]["largest + half an ulp"] == "0x7F800000"
