# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # FP64 from fp16: the Ozaki scheme on tensor cores
#
# D. Mukunoki, K. Ozaki, T. Ogita, T. Imamura, *DGEMM using Tensor Cores, and its accurate and reproducible versions*,
# ISC High Performance 2020. The idea: cut the fp64 matrices into slices of a few bits,
#
# $$A = \sum_p 2^{c_A(p)} A_p, \qquad B = \sum_q 2^{c_B(q)} B_q, \qquad AB = \sum_{p,q} 2^{c_A(p)+c_B(q)} A_p B_q,$$
#
# with so few bits that every $A_p B_q$ is **free of rounding errors** on the tensor core. What is left is a sum of
# matrices. Three modes: DP takes as many slices as DGEMM's accuracy needs, SP those of SGEMM, CR all, and rounds once.
#
# This notebook draws the slices, asks every unit how many bits it allows, and shows where the promises hold.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import math

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import bitpicture, mma, plotting, reproduce
from fpemu.mma import exactness
from fpemu.schemes import ozaki
from fpemu.schemes.errorfree.split import split

GPUS = ("V100", "T4", "A100", "H200", "B200", "MI100", "MI210", "MI300X")

# %% [markdown]
# ## The slices of a row
#
# Algorithm 1 takes $b$ bits at a time from the top of a whole row of $A$: with $2^\tau \ge \max|x|$ the slice is
# $\mathrm{fl}((x+\sigma)-\sigma)$ for the $\sigma$ that leaves multiples of $2^{\tau-b}$; what is left goes on with its
# own $\tau$. So a slice is a row of integers, its *digits*, times one power of two. Below, eight entries of a row of
# 256, ordered by size: a box is a digit, from its unit (right edge) to its leading bit, the number in it its value.

# %%
A, B = fpemu.inputs.operands("phi", 64, 64, 256, seed=0, dtype="fp64", phi=1.0)
bits = exactness.slice_bits(mma.spec("T4"), 256)
slices = split(A[:1], axis=1, bits=bits, rule="published")
shown = np.argsort(-abs(A[0]))[:: 256 // 7][:8]
palette = (plotting.BLUE, plotting.ORANGE, plotting.GREEN, plotting.VERMILION, plotting.SKY, plotting.PURPLE)
with plotting.style():
    figure, axes = plotting.figure(1, height=2.6)
    for p, (digits, exponents) in enumerate(slices.items):
        unit, there = exponents.item(), digits[0, shown]
        tops = np.frexp(abs(there))[1] + unit
        axes[0, 0].barh(range(8), unit - tops, 0.75, -unit, color=palette[p % 6], alpha=0.6, label=f"slice {p + 1}")
        for row, digit in enumerate(there):
            if digit:
                axes[0, 0].text(-unit - 0.2, row, f"{digit:.0f}".replace("-", "−"), ha="right", va="center", fontsize=7)
    axes[0, 0].set_yticks(range(8), [f"{x:.3g}".replace("-", "−") for x in A[0, shown]])
    axes[0, 0].invert_yaxis()
    ticks = range(-60, 8, 8)
    axes[0, 0].set_xticks([-t for t in ticks], [f"{t}".replace("-", "−") for t in ticks])
    axes[0, 0].set(xlabel="binary exponent of the place", ylabel="entry")
    plotting.legend_below(figure, axes[0, 0], 5)
display(figure)

# %%
assert bits == 8
assert slices.complete
assert slices.largest <= 2**bits
for k, x in enumerate(A[0]):
    assert math.fsum(math.ldexp(digits[0, k], exponents.item()) for digits, exponents in slices.items) == x
print(f"{len(slices)} slices; non-zero digits in each: {[f'{np.mean(s.digits != 0):.0%}' for s in slices.items]}")

# %% [markdown]
# The sum of the slices is the row, exactly. Small entries enter late and so end late: the last slices are nearly empty,
# and CR mode pays for them in full. Digits are signed, and so a slice carries its $b$ bits and a sign.
#
# ## How many bits are exact?
#
# The paper's condition, for IEEE fp32 sums, is $b \le \lfloor (24-\log_2 k)/2 \rfloor$: a sum of $k$ products of digits
# up to $2^b$ is at most $k\,2^{2b} \le 2^{24}$. But tensor cores are no IEEE adders. What a unit really needs
# (proved in `fpemu.mma.exactness`): the words hold the digits, and the sum of magnitudes $S=\sum|x||y|$ satisfies
#
# $$S \le 2^T, \qquad T = \min(F+1,\;P),$$
#
# $F$ the fraction bits kept in the alignment, $P$ the bits of the result. Derived bits by unit and $k$:

# %%
lengths = [2**n for n in (0, 1, 4, 8, 10, 12, 14)]
units = {f"{gpu} fp16": mma.spec(gpu, "fp16") for gpu in GPUS}
units |= {
    "H200 bf16": mma.spec("H200", "bf16"),
    "H200 e4m3 (wgmma)": mma.spec("H200", "e4m3"),
    "B200 e4m3": mma.spec("B200", "e4m3"),
    "A100 fp16, fp16 sums": mma.spec("A100", "fp16", "fp16"),
    "H200 int8": mma.spec("H200", "int8"),
}
rows = {"the paper's formula": {"T": 24, **{k: exactness.published_bits(k) for k in lengths}}}
for name, spec in units.items():
    rows[name] = {"T": exactness.sum_bits(spec), **{k: exactness.slice_bits(spec, k) for k in lengths}}
pd.DataFrame(rows).transpose()

# %%
published = [exactness.published_bits(k) for k in lengths]
for gpu in GPUS:
    derived = [exactness.slice_bits(units[f"{gpu} fp16"], k) for k in lengths]
    assert derived[1:] == published[1:]
    assert (derived[0], published[0]) == (11, 12)

# %% [markdown]
# The surprise is how well the formula does: for fp16 words and fp32 sums it is right on all eight units from $k=2$,
# though none of them adds product by product in IEEE fp32. Volta just makes it: $F+1 = 24$. The formula is wrong at
# $k = 1$ (12 bits do not fit an fp16 word), for bf16 at short $k$ (8-bit words), for fp16 sums, and for fp8: the words
# hold 4 bits, and on Hopper's `wgmma` only $T=14$ bits of a sum survive.
#
# On the bits, on Volta, in units of $2^{-16}$ (8-bit digits): a chain that has reached $2^{24}-1$ takes one more unit
# exactly; one that has reached $2^{24}$ loses it.

# %%
volta = mma.spec("V100")
one = 2.0**-8
full = [bitpicture.blocks([one], [one], c * 2.0**-16, spec=volta)[0] for c in (2.0**24 - 1, 2.0**24)]
assert full[0].result == 2.0**8
assert full[1].result == 2.0**8
bitpicture.draw(full)

# %% [markdown]
# Every product of slices is checked against this condition when it is made. With a bit too many, `certify` says so and
# `gemm` refuses:

# %%
found = fpemu.certify(A, B, scheme="ozaki", hardware="T4", bits=9)
assert not found.report.exact
print(found.report.faults[0].message)
try:
    fpemu.gemm(A, B, scheme="ozaki", hardware="T4", bits=9)
except fpemu.GuaranteeError as refused:
    print("refused:", type(refused).__name__)
else:
    raise AssertionError("a broken condition was not refused")

# %% [markdown]
# ## DP mode: how many slices?
#
# Algorithm 3 takes the smallest $d \ge 2$ with
#
# $$2\sqrt{k}\,u\;|A|(|B|e) \;>\; (d+1)\;|A_d|(|B|e) \quad\text{in every row},\qquad u = 2^{-53},\; e=(1,\dots,1)^T,$$
#
# and only the products $p+q \le d+1$ are made. CR mode takes slices until nothing is left, and all products.

# %%
counts = {}
for phi in (0.1, 1.0, 2.0, 4.0):
    for mode, dtype in (("SP", "fp32"), ("DP", "fp64"), ("CR", "fp64")):
        X, Y = fpemu.inputs.operands("phi", 64, 64, 256, seed=0, dtype=dtype, phi=phi)
        made = ozaki.counts(X, Y, hardware="T4", mode=mode)
        counts[f"φ = {phi:g}", mode] = {"slices of A, B": made.slices, "products": made.products}
pd.DataFrame(counts).transpose().unstack()

# %% [markdown]
# The paper's figure 5b, from the committed data: with 66 products at $n=7168$, $\varphi=0.1$, as published.

# %%
fig5b = reproduce.committed("dgemm_tc/fig5b")
assert {row["DP products"] for row in fig5b.rows if (row["n"], row["phi"]) == (7168, 0.1)} == {66.0}
fig5b.figure()

# %% [markdown]
# ## The error against DGEMM's: figures 3 and 8
#
# "Equivalent" is what the paper says of DGEMM-TC and cublasDgemm, and of SGEMM-TC and cublasSgemm.

# %%
fig3 = reproduce.committed("dgemm_tc/fig3")
fig3.figure()

# %%
fig8 = reproduce.committed("dgemm_tc/fig8")
fig8.figure()

# %%
claims = [claim for figure in (fig3, fig8) for claim in figure.claims]
with pd.option_context("display.max_colwidth", None):
    display(pd.DataFrame(claim.as_dict() for claim in claims)[["claim", "published", "measured", "verdict"]])
runs = pd.concat([fig3.frame, fig8.frame])
assert (len(runs), int((runs["TC"] < runs["GEMM"]).sum())) == (126, 125)
assert (runs["CR"] == 0).all()

# %% [markdown]
# "Equivalent" does not hold, but in the user's favour: in 125 of these 126 runs the tensor-core product errs *less*.
# DGEMM here is one chain of $n$ fused multiply-adds, which rounds $n$ times; the scheme rounds once a product of
# slices. CR mode has no line, since its error is zero.
#
# ## Where Algorithm 3 does not keep its promise
#
# It bounds *row sums* of $|A||B|$. A single large column can satisfy them alone, while other entries of the same row
# lose their accuracy. Here a column of $A$ is $2^{40}$ times the others, but only one column of $B$ meets it:

# %%
loud, deaf = A.copy(), B.copy()
loud[:, 0] *= 2.0**40
deaf[0, 1:] = 0
exact = fpemu.reference.matmul(loud, deaf)
found = {
    "DGEMM": fpemu.gemm(loud, deaf, scheme="dgemm"),
    "DP mode": fpemu.gemm(loud, deaf, scheme="ozaki", hardware="T4"),
    "CR mode": fpemu.gemm(loud, deaf, scheme="ozaki", hardware="T4", mode="CR"),
}
errors = {
    name: {
        "largest relative error": f"{fpemu.metrics.max_relative(D, exact):.1e}",
        "largest error over |A||B|": f"{fpemu.metrics.normwise(D, exact, loud, deaf):.1e}",
    }
    for name, D in found.items()
}
bound = fpemu.schemes.get("ozaki").error_bound(loud, deaf, "T4")
error = abs(found["DP mode"] - exact)
assert (error <= bound).all()
relative = bound / (abs(loud) @ abs(deaf))
assert relative[:, 1:].max() > 1000 * relative[:, 0].max()
assert (found["CR mode"] == exact).all()
pd.DataFrame(errors).transpose()

# %% [markdown]
# Nothing warns, unless one asks: `error_bound` bounds what is left out, entry by entry, and is large exactly there.
# Fifteen families of inputs, DP mode against DGEMM; "as printed" follows the paper to the letter, the default also
# counts what lies below slice $d$, and asks $B$:

# %%
promise = reproduce.committed("dgemm_tc/promise")
promise.figure()

# %%
verdicts = {claim.claim: claim.verdict for claim in promise.claims if not claim.claim.startswith("Equation")}
printed = {name: verdict for name, verdict in verdicts.items() if name.endswith(", as printed")}
default = {name: verdicts[name.removesuffix(", as printed")] for name in printed}
assert len(printed) == 15
assert all(default[name] == "holds" for name, verdict in printed.items() if verdict == "holds")
print(promise.finding, end="\n\n")
pd.DataFrame({"as printed": pd.Series(printed).value_counts(), "default": pd.Series(default).value_counts()})

# %% [markdown]
# ## CR mode: the same bits everywhere
#
# All products are exact, and the sum is rounded once: so the result cannot depend on the GPU, on the order of addition,
# or on how the work is cut into blocks.

# %%
wide = A * 10.0 ** np.random.default_rng(1).integers(-12, 12, A.shape)
exact = fpemu.reference.matmul(wide, B)
results = {gpu: fpemu.gemm(wide, B, scheme="ozaki", mode="CR", hardware=gpu) for gpu in GPUS}
results["bf16 words"] = fpemu.gemm(wide, B, scheme="ozaki", mode="CR", hardware="H200", words="bf16")
results["promoted every 64"] = fpemu.gemm(
    wide, B, scheme="ozaki", mode="CR", hardware="A100", order=mma.KOrder(promote=64)
)
results["blocks of 2 MB"] = fpemu.gemm(wide, B, scheme="ozaki", mode="CR", hardware="A100", memory=2**21)
bits64 = exact.view(np.uint64)
assert all((D.view(np.uint64) == bits64).all() for D in results.values())
print(f"{len(results)} ways, {exact.size} entries each, one result: {bits64[0, 0]:016X} ...")

# %% [markdown]
# A plain DGEMM is not like that: one chain of fused multiply-adds, and the same in four splits over $k$.

# %%
chain = fpemu.gemm(wide, B, scheme="dgemm")
other = fpemu.gemm(wide, B, scheme="dgemm", order=mma.KOrder(split=64))
order, wrong = np.mean(chain != other), np.mean(chain != exact)
assert min(order, wrong) > 0.5
print(f"{order:.0%} of the entries depend on the order, {wrong:.0%} are not the exact product rounded once")

# %% [markdown]
# The price is the number of products, and the nearly empty slices are what one pays for range:

# %%
table = {}
for spread in (0, 4, 8, 12):
    X = A * 10.0 ** np.random.default_rng(1).integers(-spread, spread + 1, A.shape)
    table[f"10^±{spread}"] = {mode: ozaki.counts(X, B, hardware="T4", mode=mode).products for mode in ("DP", "CR")}
assert all(row["CR"] > row["DP"] for row in table.values())
pd.DataFrame(table)

# %% [markdown]
# ## Where to go next
#
# * [arithmetic](arithmetic.ipynb): why $T = \min(F+1, P)$, on pictures of bits; [tour](tour.ipynb): the other schemes.
# * `fpemu list schemes ozaki`: the options of the scheme (words, splits, bits, blocks over $k$).
# * `reproduce.committed("dgemm_tc/exactness")`: the condition tried on every instruction.
