# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # LE-GEMM: two fp16 words, cut instead of rounded
#
# Y. Zhang et al., *LE-GEMM: a lightweight emulation-based GEMM with precision refinement on GPU*, Journal of Systems
# Architecture 160 (2025) 103336. An fp32 number becomes two fp16 words, and three products replace one:
#
# $$h = \mathrm{cut}(x), \quad r = \mathrm{RZ}_{16}\bigl((x-h)\,2^{10}\bigr), \qquad
# AB \approx h_A h_B + 2^{-10}\,(h_A r_B + r_A h_B).$$
#
# $\mathrm{cut}$ copies the sign and the top ten fraction bits, so it rounds toward zero. Ootomo and Yokota, before,
# round both words to nearest and scale by $2^{11}$; Markidis et al. do not scale, and run all four products. The paper
# reports that LE-GEMM has the smallest error of all, and attributes it to the bit-cut, which is to "avoid the value
# fluctuation caused by rounding".
#
# The argument of this notebook: on the A800 the accumulator truncates, and for large $k$ that hides the split; on the
# MI210, which reads subnormal numbers as zero, the scaling of the residual makes the difference. The bit-cut itself
# costs accuracy wherever its effect can be seen. All verdicts below are those of the ledger, from the same data.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 90, "bbox_inches": None}
import textwrap

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import plotting, reproduce, schemes, sweep
from fpemu.reproduce import verdicts
from fpemu.schemes import words

U = 2.0**-24  # unit roundoff of fp32
pd.set_option("display.max_colwidth", None)


def cases_of(*figures):
    """The claims that figures decide, as the ledger has them."""
    judgements = [judgement for figure in figures for judgement in figure.judgements]
    rows = [(j.claim.name, j.claim.claim, verdicts.number_of(j), j.verdict, j.note) for j in judgements]
    return pd.DataFrame(rows, columns=["name", "claim", "here", "verdict", "note"]).set_index("name")


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
# Rounding takes $h$ up, and the residual, $-2^{-23}$, is one bit. The sign of a residual is a bit that costs nothing:
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
    axes[0, 0].set(xlabel="$x$ minus its two words, in ulp of fp32", ylabel="share of the numbers")
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
# The error of the cut is up to 3 ulp where that of rounding is 1, its root mean square is $\sqrt{7.5}$ times larger,
# and, more important in a sum, **it has one sign**: 0.875 ulp on average, against 0. Nothing fluctuates in the cut
# because everything is lost on the same side.
#
# ## The effect on a sum
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
# Above as published, below against the exact product; twenty seeds at every point. Compare Ootomo's line with
# LE-GEMM's, and Markidis' line on the left with that on the right.

# %%
fig10 = reproduce.committed("legemm/fig10", "full")
fig10.figure()

# %% [markdown]
# Max_error is the error of one entry, the one nearest to zero, and Eq. 19 bounds it by 1. With operands in $[-1, 1]$ an
# $n \times n$ product has an entry of about $1/n^2$ of their size, so that the error of every method exceeds some entry
# from a certain $n$ on: plain fp16 saturates from $n = 128$, LE-GEMM from $n = 1024$, SGEMM at $n = 2048$.

# %%
errors = fig10.frame.query("hardware == 'ampere'").groupby("n").median(numeric_only=True)
shown = errors[[f"{name} max_error exact" for name in ("plain", "Markidis", "Ootomo", "LE-GEMM", "SGEMM")]]
assert (shown["plain max_error exact"].loc[128:] > 0.5).all()
assert (shown["LE-GEMM max_error exact"].loc[1024:] > 0.5).all()
assert shown["SGEMM max_error exact"].loc[2048] > 0.5
shown.map("{:.1e}".format)

# %% [markdown]
# The mean reduction over $n$ therefore depends on the sizes, which the paper does not print: a single $n$ without
# saturation gives thousands, a saturated one gives 1. MRED has no such bound.

# %%
fig11 = reproduce.committed("legemm/fig11", "full")
fig11.figure()

# %%
reductions = cases_of(fig10, fig11)
display(reductions)

# %%
assert reductions.loc["mred_below_plain", "verdict"] == "holds"
assert reductions.loc["mred_below_ootomo", "verdict"] == "does not hold"
assert reductions.loc["mred_below_markidis", "verdict"] == "holds under a stated condition"
assert "holds for MI210" in reductions.loc["mred_below_markidis", "note"]

# %% [markdown]
# Against plain fp16 the paper's factors come out on both GPUs. The MRED of **Ootomo's method** is smaller than that of
# LE-GEMM on both. Against **Markidis** the large factor on the MI210 is real; on the A800 there is none. The next
# figures say why.
#
# ## The split and the accumulation, exchanged one at a time
#
# LE-GEMM chains its main product in the accumulator over all of $k$; Ootomo's starts every instruction from zero and
# adds outside, to nearest (*promotion*). Below, each scheme has either split and either accumulation. Red against blue
# is the split, circle against square the accumulation, and on NVIDIA hardware the second is by far the longer way.

# %%
exchanged = reproduce.committed("legemm/split_rounding", "full")
exchanged.figure()

# %%
print(textwrap.fill(exchanged.finding, 115))
frame = exchanged.frame
for scheme in ("legemm", "ootomo"):
    for way in ("chained", "promoted"):
        points = frame.groupby(["hardware", "data", "k"])[[f"{scheme} {way} cut", f"{scheme} {way} rounded"]].mean()
        assert (points[f"{scheme} {way} cut"] > 0.99 * points[f"{scheme} {way} rounded"]).all()
longest = frame[frame["k"] == frame["k"].max()].groupby(["hardware", "data"]).mean(numeric_only=True)
gain = longest["legemm chained rounded"] / longest["legemm promoted rounded"]
assert gain[["volta", "ampere", "hopper"]].min() > 3
assert gain["ideal"].max() < 1.2
split = cases_of(exchanged)
assert split.loc["bit_cut_beats_rounding", "verdict"] == "does not hold"
display(split)

# %% [markdown]
# At no point, on no hardware, is the error of the bit-cut smaller than that of rounding. Where the two agree, the
# accumulator's truncation hides the difference. An improved LE-GEMM follows: keep its products, round both words, and
# promote.
#
# ## The causes of the errors of Markidis and of LE-GEMM
#
# One cause after another is removed (see the page's list), and the change of the result is drawn. Look for the coloured
# line under the black one: it is *the* cause.

# %%
budget = reproduce.committed("legemm/markidis_budget", "full")
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
# The cuts of single terms have either sign and average out. Without them the sum keeps these bits until the final
# rounding toward zero, which always takes from the same side.
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
fig12 = reproduce.committed("legemm/fig12", "full")
fig12.figure()

# %%
fig13 = reproduce.committed("legemm/fig13", "full")
fig13.figure()

# %%
print(textwrap.fill(fig12.finding, 115), textwrap.fill(fig13.finding, 115), sep="\n\n")
histograms = cases_of(fig12)  # its rows have both platforms
assert histograms.loc["plain_is_widest", "verdict"] == "holds"
assert histograms.loc["markidis_gap_larger_on_mi210", "verdict"] == "holds"
assert histograms.loc["concentrated_more_than_ootomo", "verdict"] == "does not hold"
width = {name: fig13.frame[f"{name} exact width"].mean() for name in ("Ootomo", "LE-GEMM")}
assert width["LE-GEMM"] > 5 * width["Ootomo"]
display(histograms)

# %% [markdown]
# Against $s$ the two methods look alike on the MI210, because the error of $s$ itself is in both: a reference should be
# more accurate than the results that it judges. Against the exact product Ootomo's curve lies further in. The shoulders
# at the ends of both on the MI210 are products with an operand below $2^{-14}$, whose $h$ is read as zero: no split of
# this kind can repair that.
#
# ## Figure 16: the products of applications
#
# The paper's data in $[0.5, 2.5]$ are positive, the worst case for truncation.

# %%
fig16 = reproduce.committed("legemm/fig16", "full")
fig16.figure()

# %%
ends = fig16.frame.query("data == 'LLM'").groupby(["hardware", "K"])["mred exact"].mean().unstack("hardware")
growth = ends.iloc[-1] / ends.iloc[0]
length = ends.index[-1] / ends.index[0]
print(f"K grows {length:.0f} times, the error on the A800 {growth['ampere']:.0f}, on the MI210 {growth['cdna2']:.1f}")
assert growth["ampere"] > length / 2
assert growth["cdna2"] < length**0.5
applications = cases_of(fig16)
display(applications)

# %% [markdown]
# On positive data the error grows with $K$, and on the A800 it grows in proportion: the bias of truncation, not of this
# method. On $[-1, 1]$ Max_error follows the entry nearest to zero instead.
#
# ## Learnt
#
# * **Scaling the residual** saves a hundredfold on hardware that flushes subnormals: the gap to Markidis on the MI210
#   holds in every figure.
# * **The bit-cut** does not improve accuracy at any point: its error is larger and has one sign.
# * **The accumulator** decides on the A800: Ootomo's promotion avoids its truncation, LE-GEMM's chain does not, and no
#   split of the operands can make up for it.
# * **Max_error** on data of both signs measures the entry nearest to zero. Factors between methods need the sizes that
#   they were measured at; MRED, or an error relative to $|A||B|$, does not depend on single entries as much.
#
# Next: [h2sgemm](h2sgemm.ipynb) asks which scale the residual should have, [magma](magma.ipynb) derives the bias of a
# truncating accumulator, [arithmetic](arithmetic.ipynb) shows it on bits.
