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
# A matrix instruction returns $d = c + \sum_k a_k b_k$ for short sums, a *block* of $L$ products and an accumulator
# $c$. It is neither a chain of fused multiply-adds nor a correctly rounded sum. On NVIDIA's tensor cores:
#
# 1. Products are **exact** and not normalised: that of $s_a 2^{e_a}$ and $s_b 2^{e_b}$ shows the exponent $e_a+e_b$.
# 2. The **largest exponent** $e_{\max}$ of the products and of $c$ is found; it is at least a floor $E_0$.
# 3. Every term is **truncated** toward zero to a multiple of $2^{e_{\max}-F}$. No guard bit, no sticky bit.
# 4. What is left is added exactly, and **rounded once**: toward zero (RZ) to fp32, to nearest (RNE) to fp16.
# 5. The result is the $c$ of the next block.
#
# This notebook shows each of these steps on the bits, and what follows from them: sums that depend on the order of the
# blocks, a result that falls when an operand rises, an accumulator that stops. What is said here is asserted in a cell.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import bitpicture, mma, plotting

GPUS = ("V100", "T4", "A100", "H200", "B200", "MI100", "MI210", "MI300X")
specs = {gpu: mma.spec(gpu, "fp16", "fp32") for gpu in GPUS}
fields = ("architecture", "arithmetic", "k", "block", "F", "E0", "final", "evidence")
pd.DataFrame({gpu: {field: getattr(spec, field) for field in fields} for gpu, spec in specs.items()}).transpose()

# %% [markdown]
# The table is the whole specification of the "truncated" units: a few integers. `F` and `E0` mean nothing where the
# arithmetic is another (AMD). `evidence` says how a row is known: *measured* on that GPU for this project, *replayed*
# against recordings that others published, or *claimed* by the literature.
#
# ## One dot product, four answers
#
# $c = 2^{23}$ and the products $-2^{23}, -\tfrac12, -\tfrac14, -\tfrac18$: the large terms cancel, and what survives of
# the small ones shows how far below $2^{23}$ a unit keeps bits. A row is a term, a column a binary place.

# %%
a, b, c = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23
pictures = [bitpicture.blocks(a, b, c, spec=specs[gpu])[0] for gpu in ("V100", "A100", "H200", "MI100")]
assert [picture.result for picture in pictures] == [0.0, -0.5, -0.75, -0.875]
bitpicture.draw(pictures)

# %% [markdown]
# The grid ends at $2^{23-F}$: Volta ($F=23$) keeps nothing below 1, Ampere ($F=24$) one more bit, Hopper ($F=25$) two.
# Only CDNA 1, which adds exactly and rounds once, gives the right answer. The bits are drawn from the readable
# specification (`mma.fused`), the results come from the compiled emulation (`mma.execute`); that they agree is asserted
# below. The other AMD units, whose rules do not fit into this picture, give:

# %%
A, B, C = np.zeros((1, 16), np.float16), np.zeros((16, 1), np.float16), np.float32([[c]])
A[0, :4], B[:4, 0] = a, b
answers = {gpu: mma.gemm(A, B, C, spec).item() for gpu, spec in specs.items()}
assert answers["MI210"] == 0.0  # products and sums in fp32, to nearest, C last
assert answers["MI300X"] == -0.5  # products on one grid, then the accumulator on a coarser one
pd.Series(answers, name="c + a·b (exactly −0.875)").to_frame().transpose()

# %% [markdown]
# ## An ordinary dot product loses bits too
#
# Random fp16 numbers of falling size, two terms of five negative. Pale cells are zeros, dark ones ones; vermilion bits
# are cut by the alignment, orange ones dropped when the sum is rounded to the 24 bits of fp32.

# %%
rng = np.random.default_rng(65)
a = np.float16(rng.uniform(1, 2, 4) * 2.0 ** -np.arange(0, 16, 4))
b = np.float16(rng.uniform(1, 2, 4) * [1, -1, 1, 1])
c = np.float32(-rng.uniform(1, 2) / 8)
pictures = [bitpicture.blocks(a, b, c, spec=specs[gpu])[0] for gpu in ("V100", "A100", "H200", "MI100")]
for picture in pictures:  # the sum drawn, rounded once, is what the instruction returns
    assert fpemu.round_to(np.float64(picture.sum), "fp32", picture.spec.final) == picture.result
bitpicture.draw(pictures)

# %%
exact = pictures[-1].sum
ulp = 2.0**-23
off = [(picture.result - fpemu.round_to(exact, "fp32")) / ulp for picture in pictures]
assert off == [1.0, 0.0, -1.0, 0.0]

# %% [markdown]
# A surprise: Hopper keeps two more bits than Volta and one more than Ampere, and yet Ampere is right here while Hopper
# is one ulp too small and Volta one ulp too large. Two errors are at work. The alignment cuts each term toward zero,
# by less than $2^{e_{\max}-F}$; on Volta the negative terms lose most, which raises the sum. The final rounding toward
# zero takes up to an ulp of the result; on Hopper the sum lies just below the number wanted. The error of the alignment
# does not shrink with the result: after cancellation it is all that is left.
#
# Note the first product, $2.03$: it shows the exponent $0$, though its leading bit stands at $2^1$.
#
# ## Subnormals are kept, but they are loud
#
# A subnormal fp16 operand is not flushed on NVIDIA. But it shows the exponent $-14$ of its format, not that of its
# leading bit. So $2^{-24}\cdot 1$ and $2^{-12}\cdot 2^{-12}$, the same product, are not the same to the other terms:

# %%
small = 2.0**-20  # its square is 2^-40
pictures = [
    bitpicture.blocks([2.0**-24, small], [1.0, small], spec=specs["H200"])[0],
    bitpicture.blocks([2.0**-12, small], [2.0**-12, small], spec=specs["H200"])[0],
]
assert [picture.result for picture in pictures] == [2.0**-24, 2.0**-24 + 2.0**-40]
assert [picture.exponent for picture in pictures] == [-14, -24]
bitpicture.draw(pictures)

# %% [markdown]
# CDNA 2 does flush: an fp16 subnormal is zero to an MI210, and CDNA 1 and 3 keep it. That alone can decide whether a
# residual of a split number arrives.

# %%
A, B = np.zeros((1, 16), np.float16), np.zeros((16, 1), np.float16)
A[0, 0], B[0, 0] = 2.0**-24, 1.0
flushed = {gpu: mma.gemm(A, B, None, spec).item() for gpu, spec in specs.items()}
assert [gpu for gpu, value in flushed.items() if value == 0] == ["MI210"]
assert all(value == 2.0**-24 for gpu, value in flushed.items() if gpu != "MI210")

# %% [markdown]
# ## The floor of the exponent
#
# $e_{\max}$ is never below $E_0 = e_{\min}(D) - (F-18)$: $-133$ for fp32 results on Hopper. Only formats with fp32's
# range get there, such as bf16. In this dot product (recorded on an H100) all products lie below $2^{E_0}$, and the
# floor decides the result, a subnormal fp32 number of a few units of $2^{-149}$.

# %%
codes = (
    "9b94 19f3 9a2e 1a67 9a25 9b4e 9b29 9a33 99e0 1a14 9914 99d1 9ae9 1b1a 9a9c 1b3a",
    "9aaf 99f3 9acc 1b7c 19ed 1b25 9a1b 9a20 9af7 9a48 1ae1 1b32 1b12 1b0e 9a68 1735",
)
a, b = (fpemu.BF16.decode([int(code, 16) for code in text.split()]) for text in codes)
hopper = mma.spec("H100", "bf16")
(picture,) = bitpicture.blocks(a, b, spec=hopper)
assert picture.exponent == hopper.E0 == -133
assert max(abs(a * b)) < 2.0**-133
assert fpemu.FP32.encode(picture.result) == 0x0000000B
bitpicture.draw([picture])

# %% [markdown]
# Another floor, another answer: with any of these three the last hexadecimal digit would be A, not the B that the GPU
# returned. This is how such a constant is found.

# %%
others = [bitpicture.blocks(a, b, spec=hopper.replace(E0=floor))[0].result for floor in (-126, -132, -134)]
assert [int(fpemu.FP32.encode(value)) for value in others] == [0xA, 0xA, 0xA]

# %% [markdown]
# ## Order: free within a block, not between blocks
#
# Within a block the terms are cut to one grid and added exactly, so their order cannot matter. Between blocks there is
# a rounding. How many results has one dot product of 256 random terms of different sizes, shuffled 200 times?

# %%
K, shuffles = 256, 200
rng = np.random.default_rng(0)
x, y = (np.float16(np.ldexp(rng.standard_normal(K), rng.integers(-6, 7, K))) for _ in "xy")
found = {}
for gpu, spec in specs.items():
    blocks = np.arange(K).reshape(-1, spec.block)
    within = np.array([rng.permuted(blocks, axis=1).ravel() for _ in range(shuffles)])
    whole = np.array([rng.permutation(K) for _ in range(shuffles)])
    found[gpu] = {
        name: len(np.unique(mma.gemm(x[order][:, None, :], y[order][:, :, None], None, spec)))
        for name, order in (("shuffled within blocks", within), ("shuffled", whole))
    }
assert all(counts["shuffled within blocks"] == 1 for counts in found.values())
assert all(counts["shuffled"] > 1 for counts in found.values())
pd.DataFrame(found).transpose()

# %% [markdown]
# Only the MI210 has an order within a block, $((p_0+p_1)+(p_2+p_3))+c$ in fp32; that these data do not show it is luck:
# two ones beside $\pm2^{24}$ do. Everywhere the order of the blocks counts. So a GEMM is reproduced bit for bit only if
# its order over $K$ is known: how $K$ is split, which part comes first, where the accumulator is emptied. `mma.KOrder`
# says that.

# %%
big = 2.0**12
first = np.array([[[big, 1, big, 1]], [[big, big, 1, 1]]], np.float16)
second = np.array([[[big], [1], [-big], [1]], [[big], [-big], [1], [1]]], np.float16)
for gpu, spec in specs.items():
    one, two = mma.gemm(first, second, None, spec).ravel()
    assert (one, two) == (1, 2) if gpu == "MI210" else one == two

# %% [markdown]
# ## Truncation is a bias, and promotion limits it
#
# Each block's result is rounded toward zero, so the errors of a long sum of positive terms do not average out: they add
# up. *Promotion* adds the accumulator to an fp32 sum outside the matrix unit, to nearest, every so often, and starts
# again from zero.

# %%
lengths = [2**n for n in range(6, 15)]
x = fpemu.inputs.make("uniform", (32, lengths[-1]), 1, "fp16", low=0.0, high=1.0)
y = fpemu.inputs.make("uniform", (lengths[-1], 32), 2, "fp16", low=0.0, high=1.0)
ways = {"one chain": None, "promoted every 128": mma.KOrder(promote=128)}
errors = {}
for K in lengths:
    exact = fpemu.reference.matmul(x[:, :K], y[:K])
    for gpu in ("A100", "H200", "MI100"):
        for way, order in ways.items():
            D = mma.gemm(x[:, :K], y[:K], None, specs[gpu], order).astype(np.float64)
            errors[gpu, way, K] = (D / exact - 1).ravel()
with plotting.style():
    figure, axes = plotting.figure(3, height=2.5)
    looks = {"one chain": plotting.HARDWARE["volta"], "promoted every 128": plotting.HARDWARE["hopper"]}
    for gpu, axis in zip(("A100", "H200", "MI100"), axes[0], strict=True):
        for way, look in looks.items():
            plotting.band(axis, lengths, [abs(errors[gpu, way, K]) for K in lengths], look, label=way)
        axis.set(yscale="log", xlabel="$K$", ylim=(1e-9, 1e-3))
        axis.set_xscale("log", base=2)
    axes[0, 0].set_ylabel("relative error (mean and range)")
    plotting.panel_titles(axes, ["A100", "H200", "MI100 (to nearest)"])
    plotting.legend_below(figure, axes[0, 0], 2)
display(figure)

# %%
means = {key: np.mean(abs(error)) for key, error in errors.items()}
for gpu in ("A100", "H200"):
    assert (errors[gpu, "one chain", 2**14] < 0).all()
    assert 12 < means[gpu, "one chain", 2**14] / means[gpu, "one chain", 2**10] < 20
    assert means[gpu, "promoted every 128", 2**14] < 2 * means[gpu, "promoted every 128", 2**7]
assert 0.2 < np.mean(errors["MI100", "one chain", 2**14] < 0) < 0.8
assert means["MI100", "one chain", 2**14] < 8 * means["MI100", "one chain", 2**10]

# %% [markdown]
# On the A100 and the H200 every single one of the 1024 results at $K=2^{14}$ is too small, and the error grows in
# proportion to $K$; on the MI100, which rounds to nearest, the signs mix and it grows far more slowly. Promotion stops
# the growth: what is left is the bias of one chain of 128.
#
# ## Raise an operand, and the result falls
#
# Addition in IEEE arithmetic is monotone: a larger operand never gives a smaller sum. Here it is not. With
# $c=1-2^{-24}$ the largest exponent is $-1$ and eight products of $2^{-25}$ survive on Ampere; with $c = 1$, one ulp
# more, the grid is twice as coarse and all eight are cut.

# %%
a, b = [2.0**-12] * 8, [2.0**-13] * 8
pictures = [bitpicture.blocks(a, b, c, spec=mma.spec("A100", k=8))[0] for c in (1 - 2.0**-24, 1.0)]
lower, upper = (picture.result for picture in pictures)
assert np.nextafter(np.float32(1 - 2.0**-24), np.float32(2)) == 1
assert lower == 1 + 2.0**-23
assert upper == 1.0
assert lower > upper
bitpicture.draw(pictures)

# %% [markdown]
# ## An accumulator that stands still
#
# With fp16 accumulation a sum of ones stops for good. A block adds $L$ ones exactly to $c$, and the sum is rounded to
# nearest even with 11 bits: at $c = 2^{11}L$ the step $L$ is half an ulp, a tie, and goes back to $c$. So the sum of
# ever so many ones is at most $2^{11}L$: 8192, 16384, 32768 on Volta, Ampere and Hopper, where fp16 holds 65504.

# %%
counts = np.arange(0, 2**16, 2**10)
ones = (np.arange(2**16) < counts[:, None]).astype(np.float16)
half = {gpu: mma.spec(gpu, "fp16", "fp16") for gpu in ("V100", "A100", "H200")}
sums = {gpu: mma.gemm(ones, np.ones((2**16, 1), np.float16), None, spec).ravel() for gpu, spec in half.items()}
for gpu, spec in half.items():
    assert (sums[gpu] == np.minimum(counts, 2**11 * spec.block)).all()
with plotting.style():
    figure, axes = plotting.figure(1, width=plotting.SINGLE, height=2.6)
    for gpu, spec in half.items():
        look = plotting.HARDWARE[spec.architecture]
        axes[0, 0].plot(counts, sums[gpu].astype(float), **look.line(label=f"{gpu}, L = {spec.block}", markevery=4))
    axes[0, 0].plot(counts, counts, **plotting.HARDWARE["ideal"].line(label="exact", marker=""))
    axes[0, 0].set(xlabel="ones added", ylabel="fp16 accumulator")
    axes[0, 0].legend()
display(figure)

# %% [markdown]
# fp8 on Hopper's `wgmma` aligns to $F = 13$ bits and keeps 13 fraction bits of an fp32 accumulator: at $2^{14}$ the
# ones themselves are cut, and the sum stands still, whatever the format of the result promises. With promotion every
# 128 nothing is lost.

# %%
fp8 = mma.spec("H200", "e4m3")
ones = np.ones((1, 2**15), np.float32)
chain = mma.gemm(ones, ones.T, None, fp8).item()
promoted = mma.gemm(ones, ones.T, None, fp8, mma.KOrder(promote=128)).item()
assert (fp8.F, fp8.instruction) == (13, "wgmma")
assert (chain, promoted) == (2.0**14, 2.0**15)

# %% [markdown]
# ## Specials
#
# NVIDIA's units have one NaN, all ones without a sign, whatever payload came in, and one zero, $+0$. Rounding toward
# zero keeps the largest fp32 number $2^{128}-2^{104}$ where half an ulp is added, but a sum of $2^{128}$ is Inf. AMD
# has the usual quiet NaN, and to nearest half an ulp is enough for Inf. Here in bf16, which has fp32's range:

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
assert codes["A100"] == codes["H200"]
assert list(codes["A100"].values()) == [*["0x7FFFFFFF"] * 3, "0x7F7FFFFF", "0x7F800000", "0x00000000"]
assert codes["MI100"]["largest + half an ulp"] == "0x7F800000"
pd.DataFrame(codes)

# %% [markdown]
# ## What was learnt
#
# * An instruction truncates every term to one grid, adds exactly and rounds once: five integers specify a unit.
# * The order within a block is free on most units, the order of the blocks never is.
# * Truncation is a bias that grows with $K$; promotion limits it, rounding to nearest avoids it.
# * More bits in the alignment do not make every result better, a larger operand can make a sum smaller, and a narrow
#   accumulator stops.
#
# ## Where to go next
#
# * [tour](tour.ipynb): the package in five minutes; [dgemm_tc](dgemm_tc.ipynb): sums that *are* exact on these units.
# * `fpemu.mma.MmaSpec`: an instruction of your own; every field of the table at the top can be changed.
# * `fpemu list hardware` on the command line: all instructions, with their evidence and sources.
