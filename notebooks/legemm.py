# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # LE-GEMM: two fp16 parts, cut instead of rounded
#
# Y. Zhang et al., *LE-GEMM: a lightweight emulation-based GEMM with precision refinement on GPU*, Journal of Systems
# Architecture 160 (2025) 103336. An fp32 number becomes two fp16 numbers, and three products replace one:
#
# $$h = \mathrm{cut}(x), \quad r = \mathrm{RZ}_{16}\bigl((x-h)\,2^{10}\bigr), \qquad
# AB \approx h_A h_B + 2^{-10}\,(h_A r_B + r_A h_B).$$
#
# $\mathrm{cut}$ copies the sign and the top ten fraction bits, so it rounds toward zero. Ootomo and Yokota, before,
# round both parts to nearest and scale by $2^{11}$; Markidis et al. do not scale, and run all four products. The paper
# reports that LE-GEMM errs least of all, and gives the credit to the bit-cut, which is to "avoid the value fluctuation
# caused by rounding". This notebook takes the split and the accumulation apart, to see which of the two decides.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 90, "bbox_inches": None}
import textwrap

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import plotting, reproduce, schemes, sweep
from fpemu.schemes import words

U = 2.0**-24  # unit roundoff of fp32

# %% [markdown]
# ## One number
#
# The low bits decide. This number ends in ones, so that the residual has all of its thirteen bits:

# %%
x = 1.5 - 2.0**-23
print(fpemu.schemes.format_split(x, "legemm"), fpemu.schemes.format_split(x, "ootomo"), sep="\n\n")

# %%
cut, rounded = (fpemu.schemes.split_table(x, name) for name in ("legemm", "ootomo"))
assert (cut.ulps, rounded.ulps) == (3.0, 0.0)

# %% [markdown]
# Rounding takes $h$ up, and what is left, $-2^{-23}$, is one bit. The sign of a residual is a bit that costs nothing:
# with it the residual is at most half of $h$'s last place and has one bit less.
#
# ## Every number
#
# For $1 \le x < 2$ the error depends on the last 14 bits alone, so $2^{14}$ numbers are all cases. A residual of 13
# bits loses two in $r$'s eleven, one of 12 bits loses one:

# %%
mantissas = (2.0**23 + np.arange(2**14)) * 2.0**-23
errors = {}
for name in ("legemm", "ootomo"):
    *_, (_, _, _, left) = words.steps(mantissas, schemes.get(name).rules())
    errors[name] = left * 2.0**23
places = np.arange(-2, 5)
with plotting.style():
    figure, axes = plotting.figure(1, width=plotting.SINGLE, height=2.3)
    for (name, error), shift in zip(errors.items(), (-0.2, 0.2), strict=True):
        shares = [np.mean(error == place) for place in places]
        look = plotting.SCHEMES[name]
        axes[0, 0].bar(places + shift, shares, 0.38, color=look.color, label=look.label)
    axes[0, 0].set(xlabel="$x$ minus its two parts, in ulp of fp32", ylabel="share of the numbers")
    axes[0, 0].legend()
display(figure)

# %%
mean = {name: error.mean() for name, error in errors.items()}
square = {name: np.mean(error**2) for name, error in errors.items()}
assert (mean["legemm"], mean["ootomo"]) == (0.875, 0.0)
assert (square["legemm"], square["ootomo"]) == (1.875, 0.25)
assert (errors["legemm"].max(), abs(errors["ootomo"]).max()) == (3, 1)
print(f"root mean square: {square['legemm'] ** 0.5:.2f} and {square['ootomo'] ** 0.5:.2f} ulp")

# %% [markdown]
# The cut errs by up to 3 ulp where rounding errs by 1, its root mean square is $\sqrt{7.5}$ times larger, and, what
# matters more in a sum, **it errs in one direction**: 0.875 ulp on average, against 0. Nothing fluctuates in the cut
# because everything is lost on the same side.
#
# ## What that does to a sum
#
# The product left out, $r_A r_B$, has one sign too. For positive data both are a bias: per product, relative to the
# mean product, of

# %%
a, b = fpemu.inputs.make("uniform", (2, 10**6), 0, low=0.0, high=1.0).astype(np.float64)
lost = {}
for name, scale in (("legemm", 2.0**10), ("ootomo", 2.0**11)):
    (ha, ra), (hb, rb) = (words.split(v, schemes.get(name).rules()) for v in (a, b))
    ha, ra, hb, rb = (word.astype(np.float64) for word in (ha, ra / scale, hb, rb / scale))
    lost[name] = np.mean(a * b - (ha * hb + ha * rb + ra * hb)) / np.mean(a * b) / U
print({name: f"{value:+.3f} u" for name, value in lost.items()})
assert 4.0 < lost["legemm"] < 4.6
assert abs(lost["ootomo"]) < 0.01

# %% [markdown]
# No order of addition and no accumulator can undo that. So on *ideal* hardware (16 products added exactly, one rounding
# to nearest), with every instruction added outside, the cut's error cannot fall below this, and that of rounding can:

# %%
rounding = {"high_rounding": "RNE", "residual_rounding": "RNE", "residual_scale": 2.0**11}
grid = sweep.Grid(
    inputs=[{"name": "uniform", "low": 0.0}],
    schemes=[{"name": "legemm", "promote": 16}, {"name": "legemm", "promote": 16, **rounding}],
    hardware="ideal",
    K=[16, 64, 256, 1024],
    M=16,
    N=16,
    seeds=3,
)
with sweep.Store() as results:
    frame = sweep.frame(sweep.run(grid, results=results))
frame["split"] = frame["scheme.high_rounding"].fillna("bit-cut")
table = frame.pivot_table(index="split", columns="K", values="relative_l2") / U
assert (table.loc["bit-cut"] > 0.9 * lost["legemm"]).all()
assert (table.loc["RNE"] < table.loc["bit-cut"] / 2).all()
table.map("{:.2f} u".format)

# %% [markdown]
# ## Figures 10 and 11: the errors against $n$
#
# $\mathrm{Max\_error} = \max |p-s|/(|p|+|s|)$ and $\mathrm{MRED} = \mathrm{mean}\,|s-p|/|s|$, with $s$ an fp32 product.
# Above as published, below against the exact product. Look at the distance between Ootomo's line and LE-GEMM's, and at
# Markidis' line on the left and on the right. (Max_error goes to 1 for every method, SGEMM included: it shows the entry
# nearest to zero, and the more entries there are the nearer it is. MRED is the better guide.)

# %%
fig10 = reproduce.committed("legemm/fig10")
fig10.figure()

# %%
fig11 = reproduce.committed("legemm/fig11")
fig11.figure()

# %% [markdown]
# The published factors are means over $n$ of (other method's error / LE-GEMM's). Ours, by the same rule:

# %%
claims = [(f"fig. {number}", claim) for number, of in ((10, fig10), (11, fig11)) for claim in of.claims]
rows = [{"figure": figure, **claim.as_dict()} for figure, claim in claims if " / LE-GEMM" in claim.claim]
reductions = pd.DataFrame(rows)[["figure", "claim", "published", "measured", "verdict"]]
with pd.option_context("display.max_colwidth", None):
    display(reductions)

# %%
by = {name: reductions[reductions["claim"].str.contains(f", {name} /")] for name in ("plain", "Markidis", "Ootomo")}
assert (by["plain"]["verdict"] == "holds").all()
assert (by["Ootomo"]["verdict"] == "does not hold").all()
assert (by["Markidis"]["verdict"] == ["holds", "does not hold"] * 4).all()

# %% [markdown]
# Against plain fp16 the paper's factors come out on both GPUs. Against **Ootomo's method** LE-GEMM errs as much by
# Max_error on the MI210, and more in all other panels. Against **Markidis'** the large factor on the MI210 is real; on
# the A800 there is none. The next figures say why.
#
# ## The split and the accumulation, exchanged one at a time
#
# LE-GEMM chains its main product in the accumulator over all of $k$; Ootomo's starts every instruction from zero and
# adds outside, to nearest (*promotion*). Below, each scheme has either split and either accumulation. Red against blue
# is the split, circle against square the accumulation, and on NVIDIA hardware the second is by far the longer way.

# %%
exchanged = reproduce.committed("legemm/split_rounding")
exchanged.figure()

# %%
print(textwrap.fill(exchanged.finding, 115))
frame = exchanged.frame
for scheme in ("legemm", "ootomo"):
    for way in ("chained", "promoted"):
        points = frame.groupby(["hardware", "data", "k"])[[f"{scheme} {way} cut", f"{scheme} {way} rounded"]].mean()
        assert (points[f"{scheme} {way} cut"] > points[f"{scheme} {way} rounded"]).all()
longest = frame[frame["k"] == frame["k"].max()].groupby(["hardware", "data"]).mean(numeric_only=True)
gain = longest["legemm chained rounded"] / longest["legemm promoted rounded"]
assert gain[["volta", "ampere", "hopper"]].min() > 3
assert gain["ideal"].max() < 1.2

# %% [markdown]
# At no point, on no hardware, does the bit-cut err less than rounding. Where it seems not to matter, the accumulator's
# truncation covers it. What would improve LE-GEMM follows: keep its products, round both parts, and promote.
#
# ## What the errors of Markidis and of LE-GEMM are made of
#
# One cause after another is removed (see the page's list), and the change of the result is drawn. Look for the coloured
# line under the black one: it is *the* cause.

# %%
budget = reproduce.committed("legemm/markidis_budget")
budget.figure()

# %%
k = int(budget.frame["k"].max())
shares = {
    (label, plotting.HARDWARE[chip].label): budget.experiment.module.shares(budget.rows, name, chip, k)
    for name, label in (("markidis", "Markidis"), ("legemm", "LE-GEMM"))
    for chip in ("ampere", "hopper", "cdna2")
}
table = pd.DataFrame(shares)
for gpu in ("Ampere", "Hopper"):
    for label in ("Markidis", "LE-GEMM"):
        assert table.loc[["direction", "alignment"], (label, gpu)].sum() > 0.98
assert table.loc["flushed", ("Markidis", "CDNA 2")] > 0.98
print(f"share of the squared error at k = {k}")
table.map("{:.1%}".format)

# %% [markdown]
# Two different machines, two different reasons. On **Ampere and Hopper** both methods chain their main product, and
# practically all of the error is the truncation of the accumulator, the same for both; the split does not show. On the
# **MI210** (CDNA 2) sums are rounded to nearest, but fp16 subnormals are read as zero: the unscaled residual of a
# number below $2^{-2}$ is subnormal, but for ties, and vanishes. Scaling it, by $2^{10}$ as well as by $2^{11}$, is
# what helps there. (A negative share: the error is larger without the cause.)
#
# A surprise: exact alignment *alone*, without the cuts of single terms, makes Markidis' error larger on either GPU.

# %%
frame = budget.frame[budget.frame["k"] == k].groupby("hardware").mean(numeric_only=True)
for gpu in ("ampere", "hopper"):
    assert frame.loc[gpu, "markidis without alignment alone"] > 1.1 * frame.loc[gpu, "markidis error"]
frame.loc[["ampere", "hopper"], ["markidis error", "markidis without alignment alone"]].map("{:.2g}".format)

# %% [markdown]
# What is cut from the terms has either sign and averages out. But it is then no longer there for the final rounding
# toward zero, which always takes from the same side.
#
# ## The schemes on all hardware
#
# Relative $L_2$ error in units of $u = 2^{-24}$; the columns differ only in the arithmetic of one instruction. Look
# along a row for the hardware, along a column for the scheme.

# %%
hardware = reproduce.committed("legemm/hardware")
hardware.figure()

# %%
groups = hardware.experiment.module.same(hardware.rows)
for group in groups:
    print(", ".join(plotting.HARDWARE[chip].label for chip in group), "—", hardware.experiment.module.rule(group[0]))
positive = hardware.frame.query("data == 'positive' and k == 4096").groupby("hardware").mean(numeric_only=True)
assert ["ampere", "ada"] in groups
assert ["hopper", "blackwell"] in groups
for gpu in ("volta", "turing", "ampere", "hopper"):
    assert positive.loc[gpu, "legemm"] > 0.66 * positive.loc[gpu, "fp16"]
    assert positive.loc[gpu, "ootomo"] < positive.loc[gpu, "sgemm"]

# %% [markdown]
# On positive data, $k=4096$, a scheme that chains its main product is **no better than plain fp16** on any truncating
# GPU: the bits that the split gained are lost in the accumulator. Ootomo's promotion brings it below SGEMM everywhere.
#
# ## Figures 12 and 13: histograms
#
# Signed errors of a product with $k = 1024$, in bins half an octave wide; the middle bin is "less than $2^{-30}$".

# %%
fig12 = reproduce.committed("legemm/fig12")
fig12.figure()

# %%
fig13 = reproduce.committed("legemm/fig13")
fig13.figure()

# %%
print(textwrap.fill(fig12.finding, 115), textwrap.fill(fig13.finding, 115), sep="\n\n")
rows = pd.DataFrame({"figure": name, **c.as_dict()} for name, f in (("12", fig12), ("13", fig13)) for c in f.claims)
verdicts = rows.set_index(["figure", "claim"])["verdict"]
assert (verdicts.filter(like="widest") == "holds").all()
assert (verdicts.filter(like="concentrated") == "does not hold").all()
width = {name: fig13.frame[f"{name} exact width"].mean() for name in ("Ootomo", "LE-GEMM")}
assert width["LE-GEMM"] > 5 * width["Ootomo"]

# %% [markdown]
# Against $s$ the two methods look alike on the MI210, because the error of $s$ itself is in both: a reference should be
# better than what it judges. Against the exact product Ootomo's curve lies further in. The shoulders
# at the ends of both on the MI210 are products with an operand below $2^{-14}$, whose $h$ is read as zero: no split of
# this kind can repair that.
#
# ## Figure 16: the products of applications
#
# The paper's data in $[0.5, 2.5]$ are positive, the worst case for truncation.

# %%
fig16 = reproduce.committed("legemm/fig16")
fig16.figure()

# %%
ends = fig16.frame.query("data == 'LLM'").groupby(["hardware", "K"])["mred exact"].mean().unstack("hardware")
growth = ends.iloc[-1] / ends.iloc[0]
length = ends.index[-1] / ends.index[0]
print(f"K grows {length:.0f} times, the error on the A800 {growth['ampere']:.0f}, on the MI210 {growth['cdna2']:.1f}")
assert growth["ampere"] > length / 2
assert growth["cdna2"] < length**0.5

# %% [markdown]
# "The error grows with $K$" holds, and on the A800 it grows in proportion: the bias of truncation, not of this method.
#
# ## What to take away
#
# * That scaling the residual saves a hundredfold on hardware that flushes subnormals: holds.
# * That LE-GEMM errs least: does not hold. Ootomo's method errs less, by its split *and*, on the A800, by promotion.
# * That the bit-cut improves accuracy: does not hold at any point; its error is larger and has one sign.
#
# Next: [h2sgemm](h2sgemm.ipynb) asks which scale the residual should have, [magma](magma.ipynb) derives the bias of a
# truncating accumulator, [arithmetic](arithmetic.ipynb) shows it on bits.
