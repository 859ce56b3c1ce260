# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # LE-GEMM: truncation instead of rounding in the split
#
# Y. Zhang et al., *LE-GEMM: a lightweight emulation-based GEMM with precision refinement on GPU*, Journal of Systems
# Architecture 160 (2025) 103336. Two fp16 words represent an fp32 number, and three products of words replace one
# product:
#
# $$h = \mathrm{cut}(x), \quad r = \mathrm{RZ}_{16}\bigl((x-h)\,2^{10}\bigr), \qquad
# AB \approx h_A h_B + 2^{-10}\,(h_A r_B + r_A h_B).$$
#
# The *bit-cut* $\mathrm{cut}$ copies the sign, the exponent and the highest ten fraction bits, so it rounds toward
# zero; $\mathrm{RZ}_{16}$ rounds toward zero in fp16. The earlier scheme of Ootomo and Yokota rounds both words to
# nearest and scales the residual by $2^{11}$. The scheme of Markidis et al. does not scale the residual and computes
# all four products. The paper reports that LE-GEMM has the smallest error of all schemes, and attributes this to the
# bit-cut, which is to "avoid the value fluctuation caused by rounding".
#
# The argument of this notebook: on the A800 the truncation of the accumulator dominates for large $k$, so the split has
# no visible effect there. On the MI210, which replaces subnormal numbers by zero, the scale of the residual explains
# the difference. Wherever the bit-cut has a visible effect, it increases the error. All verdicts are the verdicts of
# the ledger, from the same data.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 90, "bbox_inches": None}
import textwrap

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import plotting, reproduce, schemes, sweep
from fpemu.reproduce import claims
from fpemu.schemes import words

U = 2.0**-24  # unit roundoff of fp32
pd.set_option("display.max_colwidth", None)


def claims_of(*figures):
    """Return the claims that the figures judge, with the verdicts of the ledger."""
    judgements = [judgement for figure in figures for judgement in figure.judgements]
    rows = [(j.claim.name, j.claim.claim, claims.number_of(j), j.verdict, j.note) for j in judgements]
    return pd.DataFrame(rows, columns=["name", "claim", "measured", "verdict", "note"]).set_index("name")


def cases_of(figure, *names):
    """Return the verdict on each reading and case of some claims, with the measured number."""
    by_name = {judgement.claim.name: judgement for judgement in figure.judgements}
    rows = {
        (name, case.reading, case.variant): f"{claims.shown([case.number], '×')}: {case.verdict}"
        for name in names
        for case in by_name[name].cases
    }
    return pd.Series(rows).unstack().fillna("").rename_axis(index=["claim", "reading"])


# %% [markdown]
# ## The split of one number
#
# The low bits of this number are ones, so the residual has all of its thirteen bits:

# %%
x = 1.5 - 2.0**-23
print(fpemu.schemes.format_split(x, "legemm"), fpemu.schemes.format_split(x, "ootomo"), sep="\n\n")

# %% [markdown]
# Rounding to nearest increases $h$, and the residual $-2^{-23}$ has a single bit. A residual of either sign is at most
# half a unit in the last place of $h$, so it has one bit less than a residual of one sign.
#
# ## The split of every number
#
# For $1 \le x < 2$ the error depends on the last 14 bits only, so $2^{14}$ numbers cover all cases. A residual of 13
# bits loses two bits in the eleven bits of $r$, and a residual of 12 bits loses one:

# %%
mantissas = (2.0**23 + np.arange(2**14)) * 2.0**-23
errors_of_split = {}
for name in ("legemm", "ootomo"):
    *_, (_, _, _, residual) = words.steps(mantissas, schemes.get(name).rules())
    errors_of_split[name] = residual * 2.0**23
places = np.arange(-2, 5)
with plotting.style():
    figure, axes = plotting.figure(1, width=plotting.SINGLE, height=2.3)
    for (name, error), shift in zip(errors_of_split.items(), (-0.2, 0.2), strict=True):
        shares = [np.mean(error == place) for place in places]
        style = plotting.SCHEMES[name]
        axes[0, 0].bar(places + shift, shares, 0.38, color=style.color, label=style.label)
    axes[0, 0].set(xlabel="$x$ minus its two words, in ulp of fp32", ylabel="share of the numbers")
    axes[0, 0].legend()
display(figure)

# %%
mean = {name: error.mean() for name, error in errors_of_split.items()}
square = {name: np.mean(error**2) for name, error in errors_of_split.items()}
print(f"root mean square: {square['legemm'] ** 0.5:.2f} and {square['ootomo'] ** 0.5:.2f} ulp")

# %% [markdown]
# The error of the bit-cut split is at most 3 ulp and the error of the split by rounding at most 1 ulp; the root mean
# square of the bit-cut is $\sqrt{7.5}$ times as large. The effect on a sum is larger still, because the error of the
# bit-cut **has one sign**: its mean is 0.875 ulp, and the mean error of rounding is 0.
#
# ## The effect on a sum
#
# The omitted product $r_A r_B$ also has one sign. For positive data both errors are a bias. Relative to the mean
# product, the bias per product is:

# %%
a, b = fpemu.inputs.make("uniform", (2, 10**6), 0, low=0.0, high=1.0).astype(np.float64)
lost = {}
for name, scale in (("legemm", 2.0**10), ("ootomo", 2.0**11)):
    (ha, ra), (hb, rb) = (words.split(v, schemes.get(name).rules()) for v in (a, b))
    ha, ra, hb, rb = (word.astype(np.float64) for word in (ha, ra / scale, hb, rb / scale))
    lost[name] = np.mean(a * b - (ha * hb + ha * rb + ra * hb)) / np.mean(a * b) / U
print({name: f"{value:+.3f} u" for name, value in lost.items()})

# %% [markdown]
# A bias of the words does not depend on the summation order or on the accumulator. With *ideal* hardware (16 products
# added exactly, one rounding to nearest) and a promotion after every instruction, the error of the bit-cut split
# therefore stays above this bias, and the error of the split by rounding does not:

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
table_of_split = frame.pivot_table(index="split", columns="K", values="relative_l2") / U
table_of_split.map("{:.2f} u".format)

# %% [markdown]
# ## Figures 10 and 11: the errors against $n$
#
# The measures are $\mathrm{Max\_error} = \max |p-s|/(|p|+|s|)$ and $\mathrm{MRED} = \mathrm{mean}\,|s-p|/|s|$ for a
# result $p$ and a reference $s$. In the upper panels $s$ is an fp32 product, as published; in the lower panels $s$ is
# the exact product. Each point has twenty seeds. The figure answers two questions: whether Ootomo's line is below
# LE-GEMM's line, and how Markidis' line differs between the two GPUs.

# %%
fig10 = reproduce.committed("legemm/fig10", "full")
fig10.figure()

# %% [markdown]
# Max_error is the error of a single entry, the entry nearest to zero, and it is at most 1 (Eq. 19). For operands in
# $[-1, 1]$ the smallest entry of an $n \times n$ product is about $1/n^2$ of the typical entry. From a certain $n$ on,
# the error of any method exceeds the smallest entry and Max_error saturates: from $n = 128$ on for plain fp16, from $n
# = 1024$ on for LE-GEMM, and at $n = 2048$ for SGEMM.

# %%
errors = fig10.frame.query("hardware == 'ampere'").groupby("n").median(numeric_only=True)
shown = errors[[f"{name} max_error exact" for name in ("plain", "Markidis", "Ootomo", "LE-GEMM", "SGEMM")]]
shown.map("{:.1e}".format)

# %% [markdown]
# The mean reduction over $n$ therefore depends on the sizes, which the paper does not state: a size without saturation
# gives a factor of thousands, and a saturated size gives 1. MRED does not saturate.

# %%
fig11 = reproduce.committed("legemm/fig11", "full")
fig11.figure()

# %% [markdown]
# ## The order in which the baselines add
#
# The paper runs the baselines on the A800 "using the WMMA interface" and prints no code. As published, Markidis' method
# adds its four products one after another over all of $k$, and Ootomo's method adds its main product outside the
# tensor core. In one loop over fragments the four products follow one another in every fragment, and Ootomo's main
# product accumulates in the tensor core. The next figure shows the errors of both methods divided by the error of
# LE-GEMM, in both readings; the table has the mean over $n$ of the ratio of the means of ten runs.

# %%
baselines = reproduce.committed("legemm/accumulation", "full")
baselines.figure()

# %%
print(textwrap.fill(baselines.finding, 115))
display(cases_of(baselines, "mred_below_plain", "mred_below_markidis", "mred_below_ootomo"))
verdicts = {judgement.claim.name: judgement for judgement in baselines.judgements}
loop = {
    reading: verdict for reading, verdict in verdicts["mred_below_markidis"].of_readings.items() if "loop" in reading
}
published = verdicts["mred_below_markidis"].of_readings["as published, fp32 chain"]

# %% [markdown]
# The factors against plain fp16 agree with the paper on both GPUs. Against **Markidis** the large factor on the MI210
# is reproduced in both readings. On the A800 the order decides: as published, Markidis' method has the smaller error;
# in one loop, which reproduces the printed factor, LE-GEMM has it. The MRED of **Ootomo's method** is smaller than the
# MRED of LE-GEMM on both GPUs, also if it accumulates in the tensor core. The next figures show the causes.
#
# ## Exchange of the split and of the accumulation
#
# LE-GEMM accumulates its main product over all of $k$ in the accumulator. Ootomo's method starts from zero in every
# instruction and adds outside the tensor core, with rounding to nearest (*promotion*). In this figure each scheme is
# combined with either split and either accumulation. The colour shows the split, and the marker shows the accumulation.
# On NVIDIA hardware the change of the accumulation has by far the larger effect.

# %%
exchanged = reproduce.committed("legemm/split_rounding", "full")
exchanged.figure()

# %%
print(textwrap.fill(exchanged.finding, 115))
frame = exchanged.frame
longest = frame[frame["k"] == frame["k"].max()].groupby(["hardware", "data"]).mean(numeric_only=True)
gain = longest["legemm chained rounded"] / longest["legemm promoted rounded"]
split = claims_of(exchanged)
display(split)

# %% [markdown]
# At no point, on no hardware, is the error of the bit-cut split smaller than the error of the split by rounding. Where
# both errors agree, the truncation of the accumulator dominates. An improved LE-GEMM would keep the three products,
# round both words to nearest, and promote the accumulator.
#
# ## The causes of the errors of Markidis' method and of LE-GEMM
#
# One cause of error after another is removed (the page lists them), and the figure shows the change of the result. A
# cause whose coloured line coincides with the black line explains the error.

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
print(f"share of the squared error at k = {k}")
table.map("{:.1%}".format)

# %% [markdown]
# The two GPUs have different causes. On **Ampere and Hopper** both methods accumulate their main product over all of
# $k$, and more than 98 % of the squared error is the truncation of the accumulator, which is the same for both methods.
# On the **MI210** (CDNA 2) sums are rounded to nearest, but subnormal fp16 operands are replaced by zero. The unscaled
# residual of a number below $2^{-2}$ is subnormal, except in ties, and becomes zero. A scale of $2^{10}$ or $2^{11}$
# avoids this. A negative share means that the error is larger without the cause.
#
# Exact alignment *alone*, without the truncation of single terms, increases the error of Markidis' method on both
# NVIDIA GPUs:

# %%
frame = budget.frame[budget.frame["k"] == k].groupby("hardware").mean(numeric_only=True)
frame.loc[["ampere", "hopper"], ["markidis error", "markidis without alignment alone"]].map("{:.2g}".format)

# %% [markdown]
# The truncation errors of single terms have either sign and cancel on average. Without them the sum keeps these bits
# until the final rounding toward zero, which always reduces the magnitude.
#
# ## All schemes on all hardware
#
# The figure shows the relative $L_2$ error in units of $u = 2^{-24}$. The columns differ only in the arithmetic of one
# instruction, and the rows differ in the scheme.

# %%
hardware = reproduce.committed("legemm/hardware")
hardware.figure()

# %%
groups = hardware.experiment.module.same(hardware.rows)
for group in groups:
    print(", ".join(plotting.HARDWARE[chip].label for chip in group), "—", hardware.experiment.module.rule(group[0]))
positive = hardware.frame.query("data == 'positive' and k == 4096").groupby("hardware").mean(numeric_only=True)

# %% [markdown]
# On positive data with $k=4096$, a scheme that accumulates its main product over all of $k$ has an error similar to
# **plain fp16** on every truncating GPU: the truncation of the accumulator removes the accuracy that the split gained.
# Ootomo's method promotes and is more accurate than SGEMM on every one of these GPUs.
#
# ## Figures 12 and 13: histograms
#
# The histograms show the signed errors of a product with $k = 1024$ in bins half an octave wide. The middle bin
# contains all errors below $2^{-30}$.

# %%
fig12 = reproduce.committed("legemm/fig12", "full")
fig12.figure()

# %%
fig13 = reproduce.committed("legemm/fig13", "full")
fig13.figure()

# %%
print(textwrap.fill(fig12.finding, 115), textwrap.fill(fig13.finding, 115), sep="\n\n")
width = {name: fig13.frame[f"{name} exact width"].mean() for name in ("Ootomo", "LE-GEMM")}
display(cases_of(baselines, "narrower_than_markidis", "distribution_like_ootomo", "concentrated_more_than_ootomo"))

# %% [markdown]
# Against $s$ the two methods look alike on the MI210, because both differences contain the error of $s$ itself: a
# reference must be more accurate than the results. Against the exact product, the errors of Ootomo's method are
# smaller. The shoulders at both ends on the MI210 are products with an operand below $2^{-14}$, whose $h$ is replaced
# by zero; no split with an unscaled high part avoids this.
#
# ## Figure 16: the products of applications
#
# The paper's data in $[0.5, 2.5]$ are positive, which is the worst case for truncation.

# %%
fig16 = reproduce.committed("legemm/fig16", "full")
fig16.figure()

# %%
ends = fig16.frame.query("data == 'LLM'").groupby(["hardware", "K"])["mred exact"].mean().unstack("hardware")
growth = ends.iloc[-1] / ends.iloc[0]
length = ends.index[-1] / ends.index[0]
print(
    f"K grows by a factor of {length:.0f}, the error by {growth['ampere']:.0f} on the A800",
    f"and by {growth['cdna2']:.1f} on the MI210",
)
applications = claims_of(fig16)
display(applications)

# %% [markdown]
# On positive data the error grows with $K$. On the A800 it grows in proportion to $K$, which is the bias of truncation
# and not a property of this method. On $[-1, 1]$ Max_error depends on the entry nearest to zero instead.
#
# ## Conclusions
#
# * **The scale of the residual** reduces the error by a factor of more than a hundred on hardware that replaces
#   subnormal numbers by zero. The large factor against Markidis on the MI210 is reproduced in every figure.
# * **The order of the products** decides the comparison with Markidis' method on the A800: one loop over fragments
#   truncates its single accumulator four times in every fragment.
# * **The bit-cut** does not improve the accuracy at any point: its error is larger and has one sign.
# * **The accumulator** determines the error on the A800. Ootomo's promotion avoids its truncation, LE-GEMM's
#   accumulation over all of $k$ does not, and no split of the operands compensates for it.
# * **Max_error** on data of both signs measures the entry nearest to zero, and factors between methods depend on the
#   sizes. MRED, or an error relative to $|A||B|$, depends less on single entries.
#
# Next: [h2sgemm](h2sgemm.ipynb) determines the best scale of the residual, [magma](magma.ipynb) derives the bias of a
# truncating accumulator, and [arithmetic](arithmetic.ipynb) shows this bias on bits.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# The split of one number
cut, rounded = (fpemu.schemes.split_table(x, name) for name in ("legemm", "ootomo"))
assert (cut.ulps, rounded.ulps) == (3.0, 0.0)

# The split of every number
assert (mean["legemm"], mean["ootomo"]) == (0.875, 0.0)
assert (square["legemm"], square["ootomo"]) == (1.875, 0.25)
assert (errors_of_split["legemm"].max(), abs(errors_of_split["ootomo"]).max()) == (3, 1)

# The effect on a sum
assert 4.0 < lost["legemm"] < 4.6
assert abs(lost["ootomo"]) < 0.01
assert (table_of_split.loc["bit-cut"] > 0.9 * lost["legemm"]).all()
assert (table_of_split.loc["RNE"] < table_of_split.loc["bit-cut"] / 2).all()

# Figures 10 and 11: the errors against $n$
assert (shown["plain max_error exact"].loc[128:] > 0.5).all()
assert (shown["LE-GEMM max_error exact"].loc[1024:] > 0.5).all()
assert shown["SGEMM max_error exact"].loc[2048] > 0.5

# The order in which the baselines add
assert verdicts["mred_below_plain"].verdict == "holds"
assert set(loop.values()) == {"holds"}
assert published == "holds under a stated condition"
assert "loop" in verdicts["mred_below_markidis"].nearest
assert "holds" not in verdicts["mred_below_ootomo"].of_readings.values()

# Exchange of the split and of the accumulation
for scheme in ("legemm", "ootomo"):
    for accumulation in ("chained", "promoted"):
        points = exchanged.frame.groupby(["hardware", "data", "k"])[
            [f"{scheme} {accumulation} cut", f"{scheme} {accumulation} rounded"]
        ].mean()
        assert (points[f"{scheme} {accumulation} cut"] > 0.99 * points[f"{scheme} {accumulation} rounded"]).all()
assert gain[["volta", "ampere", "hopper"]].min() > 3
assert gain["ideal"].max() < 1.2
assert split.loc["bit_cut_beats_rounding", "verdict"] == "does not hold"

# The causes of the errors of Markidis' method and of LE-GEMM
for gpu in ("Ampere", "Hopper"):
    for label in ("Markidis", "LE-GEMM"):
        assert table.loc[["direction", "alignment"], (label, gpu)].sum() > 0.98
assert table.loc["flushed", ("Markidis", "CDNA 2")] > 0.98
for gpu in ("ampere", "hopper"):
    assert frame.loc[gpu, "markidis without alignment alone"] > 1.1 * frame.loc[gpu, "markidis error"]

# All schemes on all hardware
assert ["ampere", "ada"] in groups
assert ["hopper", "blackwell"] in groups
for gpu in ("volta", "turing", "ampere", "hopper"):
    assert positive.loc[gpu, "legemm"] > 0.66 * positive.loc[gpu, "fp16"]
    assert positive.loc[gpu, "ootomo"] < positive.loc[gpu, "sgemm"]

# Figures 12 and 13: histograms
assert verdicts["plain_is_widest"].verdict == "holds"
assert verdicts["markidis_gap_larger_on_mi210"].verdict == "holds"
assert verdicts["concentrated_more_than_ootomo"].verdict == "does not hold"
assert width["LE-GEMM"] > 5 * width["Ootomo"]

# Figure 16: the products of applications
assert growth["ampere"] > length / 2
assert growth["cdna2"] < length**0.5
