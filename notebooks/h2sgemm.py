# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # H2SGEMM: scaling the residual, and the SGEMM it is compared with
#
# W. Xue et al., *H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units*, 2025 (arXiv:2507.23387). Two fp16 words
# represent an fp32 number, the second one scaled by $2^{sb}$:
#
# $$h = \mathrm{fp16}(x), \quad r = \mathrm{fp16}\bigl((x-h)\,2^{sb}\bigr), \qquad
# AB \approx h_A h_B + 2^{-sb}\,(r_A h_B + h_A r_B).$$
#
# fp16 has normal numbers from $2^{-14}$ and none below $2^{-24}$. The unscaled residual of $x = 1.M \cdot 2^E$ is about
# $2^{E-12}$: for small $x$ it *underflows*. The paper gives the probability (Eq. 3 to 5) and the safe $sb$ (Rules 1 and
# 2, Eq. 6), recommends $sb = 12$, and adds the three products *term-wise*, smallest first.
#
# Two questions lead through this notebook. Which of the formulas are exact? All mantissas of an exponent can be
# enumerated, so each formula is compared with a count. And is the result more accurate than SGEMM? That depends on the
# summation order of SGEMM. The paper ran OpenBLAS on a Kunpeng 920, whose order is emulated here bit for bit.
#
# The arithmetic of the Ascend 910A is not public: its model (16 products added exactly, one rounding to nearest) is
# assumed. Error figures have 20 seeds a point; every verdict below is the ledger's, from the same data.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 90, "bbox_inches": None}
import textwrap

import IPython.display
import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import plotting, reproduce, sweep
from fpemu.reproduce import verdicts
from fpemu.schemes import format_split, split_table
from fpemu.sweep import planes


def cases_of(figure, *names):
    """Show the cases of some claims of a figure, and return the verdicts by name, reading and variant."""
    rows = [
        (j.claim.name, case.reading, case.variant, verdicts.number(j.claim, case), case.verdict)
        for j in figure.judgements
        for case in j.cases
        if j.claim.name in names
    ]
    frame = pd.DataFrame(rows, columns=["claim", "reading", "variant", "here", "verdict"])
    frame = frame.set_index(["claim", "reading", "variant"])
    with pd.option_context("display.max_colwidth", None, "display.max_rows", None):
        IPython.display.display(frame)
    return frame["verdict"]


def rows_where(frame, claim, reading, words):
    """Return the verdicts on the cases of a claim and a reading whose variant contains the words."""
    return {verdict for (c, r, v), verdict in frame.items() if (c, r) == (claim, reading) and words in v}


def full(name):
    """Read the data of a figure at the size that the ledger judges."""
    return reproduce.committed(f"h2sgemm/{name}", "full")


# %% [markdown]
# ## The residual of a small number
#
# $\pi/512$ has the exponent $-8$. Unscaled, its residual is a subnormal fp16 number with few bits:

# %%
print(format_split(np.pi / 512, "h2sgemm", sb=0), format_split(np.pi / 512, "h2sgemm", sb=12), sep="\n\n")

# %%
kept = {sb: split_table(np.pi / 512, "h2sgemm", sb=sb).bits_kept for sb in (0, 4, 8, 12)}
assert list(kept.values()) == sorted(kept.values())
assert kept[0] < 20 < 22 <= kept[12]
pd.Series(kept, name="bits kept").rename_axis("sb").to_frame().transpose()

# %% [markdown]
# ## Precision of five splits: Table 1
#
# Table 1 prints the bits that five methods lose: 2, 2, 1, 1 and about 1. It does not define the loss. Counted as places
# of the 24-bit significand that the two words cannot hold, its numbers come out exactly, where nothing underflows:

# %%
table1 = reproduce.committed("h2sgemm/table1")
table1.figure()

# %%
bits = cases_of(table1, "table1_bits")
assert (bits.xs("rounding as in Table 1", level="reading") == "holds").all()
stated = bits.xs("rounding as in the methods' papers", level="reading")
assert list(stated[stated == "does not hold"].index.get_level_values("variant")) == ["Markidis", "EGEMM-TC"]

# %% [markdown]
# The second bit of Markidis and of Feng is lost by *truncation*, which Table 1 ascribes to them and their papers do
# not. The larger difference is to the left of $E = -2$: unscaled residuals lose a bit per exponent, which the table
# omits.
#
# ## How often? Equations 3 to 5, figure 2(a)
#
# Let the residual have the exponent $E - 12 - N$. Equation 3: $N = n$ and $h$ rounded down (T), or up (R), each with
# probability $2^{-(n+2)}$, $0 \le n \le 11$. Equation 5 adds those $N$ with which the residual is below $2^{-14}$
# ($P_{u+gu}$, underflow or gradual underflow) or below $2^{-24}$ ($P_u$). On the left, filled marks should sit in the
# open ones; on the right, marks on lines.

# %%
fig2a = reproduce.committed("h2sgemm/fig2a")
fig2a.figure()

# %%
page, normal = fig2a.experiment.module, [row for row in fig2a.rows if row["exponent"] >= -14]
for row in normal:
    e = row["exponent"]
    assert all(row[f"{event} {n}"] == page.equation_3(n, event) for n in page.N_RANGE for event in "TR")
    assert row["below normal"] == page.equation_5(e, gradual=True)
    assert row["gone"] == page.gone(e)
    if -13 <= e <= -2:
        assert row["gone"] == 2.0 ** -(e + 14)
        assert page.equation_5(e, gradual=False) == 2.0 ** -(e + 13) - 2.0**-13
print(textwrap.fill(fig2a.finding, 115))

# %% [markdown]
# Equation 3 is exact, mantissa for mantissa, if $N$ is counted from the exponent of $x$; so is $P_{u+gu}$. But $P_u$ is
# **twice what is lost**: a residual between $2^{-25}$ and $2^{-24}$ is below fp16's smallest number, and yet it does
# not vanish, since rounding to nearest lifts it to $2^{-24}$. With the ties at $2^{-25}$ the sum becomes simple, for
# $-13 \le E \le -2$:
#
# $$P_{\mathrm{gone}}(E) = \sum_{n=E+14}^{11} \bigl(P(n,T) + P(n,R)\bigr) + 2^{-12} = 2^{-(E+14)}
# \qquad\text{and not}\qquad 2^{-(E+13)} - 2^{-13}.$$
#
# ## Rules 1 and 2 and Equation 6, figure 2(b)
#
# Rule 1: below $2^{-2}$ the residual must be scaled to keep 22 bits, below $2^{-12}$ the split fails. Rule 2: with
# large numbers $sb$ may be 12 and not more. Equation 6, for numbers with exponents from $E_{\min}$ to $E_{\max}$,
#
# $$-2 - E_{\min} \;\le\; sb \;\le\; 27 - E_{\max},$$
#
# leaves $sb = 12$ alone for all of fp16's normal range, $-14$ to $15$.

# %%
fig2b = reproduce.committed("h2sgemm/fig2b")
fig2b.figure()

# %%
bounds = cases_of(fig2b, "eq6_lower", "eq6_upper", "sb12_keeps_22_bits", "remapped_range")
assert list(bounds["eq6_lower"]) == ["does not hold", "holds"]
assert list(bounds["eq6_upper"]) == list(bounds["remapped_range"]) == ["does not hold"]
assert list(bounds["sb12_keeps_22_bits"]) == ["holds"]

# %% [markdown]
# The slopes are right. The lower bound is exact if 22 bits mean an error of at most $2^{E-23}$. The upper bound is too
# high by one, because of ties: if $x$ lies midway between two fp16 numbers, $|x-h| = 2^{E-11}$, twice the residual that
# the paper allows for. So **Rule 2 fails** at the one exponent where it matters:

# %%
x = 2.0**15 + 16
print(format_split(x, "h2sgemm", sb=12))
assert split_table(x, "h2sgemm", sb=12).rows[1].value == np.inf
assert split_table(x, "h2sgemm", sb=11).error == 0
top = {row["sb"]: row["r overflows"] for row in fig2b.rows if row["exponent"] == 15 and row["sb"] in (11, 12)}
assert top[11] == 0
assert round(top[12] * 2**13) == 3
try:
    fpemu.gemm(np.float32([[x]]), np.float32([[1.0]]), scheme="h2sgemm", hardware="A100")
except fpemu.InputError as problem:
    print(problem)

# %% [markdown]
# Three of $2^{13}$ numbers with $E=15$ overflow, and `gemm` refuses them by default. $sb = 11$ has none. All pairs of
# $E$ and $sb$ follow three lines:

# %%
frame = fig2b.frame[fig2b.frame["exponent"].between(-14, 15)]
slack = frame["sb"] + frame["exponent"]
assert ((frame["bits"] >= 22) == (slack >= -3)).all()
assert ((frame["bits"] >= 23) == (slack >= -2)).all()
assert ((frame["r overflows"] == 0) == (slack <= 26)).all()
print(f"{len(frame)} pairs of E and sb")

# %% [markdown]
# ## The plane of $sb$ and exponent
#
# The error of a product over both, for operands uniform up to $2^e$. Below the solid line Equation 6 says that bits are
# lost, above the dashed one that a residual overflows (hatched). Stippled: within 5 % of the best.

# %%
plane = full("plane")
plane.figure()

# %%
print(textwrap.fill(plane.finding, 115))
assert (cases_of(plane, "sb12_robust") == "holds").all()

# %% [markdown]
# $sb = 12$ is near the best wherever Equation 6 allows it: the recommendation holds. The good region is wide, and
# $sb = 12$ just passes between its two corners. At the left end *no* $sb$ helps; the cause follows below.
#
# ## A plane of your own
#
# On the command line,
#
# ```
# fpemu sweep scaling --scheme h2sgemm --hardware H200 --sb 0:24:2 --offset=-20:4:2 --size 16x16x512
# fpemu sweep plane ozimmu --option slices=3:9 --inputs phi --parameter phi=0:4:0.5
# ```
#
# and in Python, on a Hopper, with the main sum left in the accumulator and with *promotion* (added outside, to nearest,
# every 64 products):

# %%
grid = sweep.Grid(
    inputs=[{"name": "offset_symmetric", "exponent": "-20:4:2"}],
    schemes=[{"name": "h2sgemm", "sb": "0:24:2", "promote": ["none", 64]}],
    hardware="hopper",
    M=16,
    N=16,
    K=512,
    on_range="propagate",
)
with sweep.Store() as results:
    frame = sweep.frame(sweep.run(grid, results=results)).rename(columns={"inputs.exponent": "e", "scheme.sb": "sb"})
ways = {"never promoted": frame["scheme.promote"].isna(), "promoted every 64": frame["scheme.promote"] == 64}
maps = {way: planes.plane(frame[where].to_dict("records"), "e", "sb", "relative_l2") for way, where in ways.items()}
with plotting.style():
    figure, axes = plotting.figure(2, height=2.7)
    for axis, one in zip(axes[0], maps.values(), strict=True):
        mesh = planes.draw(axis, one, low=1e-7, high=1e-1, lines=planes.bounds(one, lambda e: int(e) - 1))
        axis.set_xlabel("exponent $e$ of the operands")
    axes[0, 0].set_ylabel("$sb$")
    plotting.colour_bar(figure, mesh, axes, "relative $L_2$ error")
    plotting.panel_titles(axes, list(maps))
    plotting.legend_below(figure, axes[0, 0], 3)
display(figure)

# %%
never, promoted = (one.column(0)[one.ys.index(12)] for one in maps.values())
assert never > 2 * promoted
for one in maps.values():
    assert planes.losses(one)[one.ys.index(12), one.xs.index(-12) :].max() < 1.5
left = maps["never promoted"]
subnormal = left.column(-14)[left.ys.index(12)]
assert subnormal < never / 1.5
print(f"sb = 12, e = 0: {never:.1e} and {promoted:.1e}; e = -14, never promoted: {subnormal:.1e}")

# %% [markdown]
# The lines are where they were: they come from fp16, not from the hardware. The floor is the hardware's, and where it
# is high, $sb$ matters less. A surprise on the left: at $e=-14$, where every $h$ is subnormal, the error is *below* the
# floor. Such $h$ are multiples of $2^{-24}$ with few bits, so that their products leave the accumulator little to cut.
#
# ## Figure 8: the error over the exponent
#
# The paper claims that term-wise H2SGEMM surpasses SGEMM, that element-wise H2SGEMM matches it, and that both are worse
# without scaling. Three SGEMMs stand in the figure. The errors of H2SGEMM lie between them.

# %%
fig8 = full("fig8")
fig8.figure()

# %%
against = cases_of(fig8, "termwise_beats_sgemm", "elementwise_matches_sgemm", "unscaled_worse_than_sgemm")
paper, chain, x86, gpu = fig8.experiment.module.SGEMMS
for reading, verdict in ((paper, "holds"), (chain, "holds"), (x86, "does not hold"), (gpu, "does not hold")):
    assert rows_where(against, "termwise_beats_sgemm", reading, "-14 to -8") == {verdict}
    assert rows_where(against, "termwise_beats_sgemm", reading, "-20 to -16") == {"does not hold"}

# %% [markdown]
# **Against the paper's own baseline the main claim holds**: OpenBLAS's kernel for the Kunpeng 920 adds up to 1024
# products in one chain, and its error exceeds that of the cube's blocks of 16. One chain over all of $k$ is worse
# still. The Haswell kernel uses shorter panels, cuBLAS splits $k$ for a product as small as this one, and both are more
# accurate than H2SGEMM. The claim is one about a baseline.
#
# HGEMM's error of $10^{-4}$ depends on the format of its result:

# %%
half = cases_of(fig8, "hgemm_error")
assert rows_where(half, "hgemm_error", "fp16 result", "-4 to 0") == {"holds"}
assert rows_where(half, "hgemm_error", "fp32 result", "[0,2^e], e = -4 to 0") == {"does not hold"}

# %% [markdown]
# With an fp16 result the order of $10^{-4}$ is met for both distributions: it is the rounding of the result. With an
# fp32 result the error on non-negative data falls as $1/\sqrt{k}$, since the rounding errors of the operands average
# out.
#
# Below $2^{-14}$ the advantage over every SGEMM is gone. The next figure separates the parts of the error,
#
# $$AB - D = \bigl[AB - (h+r)_A(h+r)_B\bigr] + r_A r_B + \bigl[\text{rounding of the sums}\bigr].$$
#
# Which dashed line is under the blue one?

# %%
underflow = full("underflow")
underflow.figure()

# %%
print(textwrap.fill(underflow.finding, 115))
mean = underflow.frame.groupby(["inputs", "exponent"]).mean(numeric_only=True)
low = mean.loc["offset_symmetric", -20]
assert 0.9 < low["sb=12 left out"] / low["sb=12 error"] < 1.1
assert low["sb=12 words"] < low["sb=12 error"] / 20
assert low["sb=12 four"] < low["sb=12 error"] / 20
fourth = cases_of(underflow, "fourth_product_negligible")
assert set(fourth) == {"holds", "does not hold"}

# %% [markdown]
# Below $2^{-14}$ the cause is not the range of $r$, which $sb$ could mend. It is $r_A r_B$, the product that Equation 7
# calls negligible. Where $h$ is subnormal it has fewer than 11 bits, $r$ is no longer $2^{-11}$ of it, and with the
# fourth product (circles) the error is back at the loss of the words.
#
# A power of two for each matrix, undone at the end, does away with all of it:

# %%
A, B = fpemu.inputs.operands("offset_symmetric", 32, 32, 1024, seed=0, exponent=-20)
exact = fpemu.reference.matmul(A, B)
found = {}
for policy in ("raise", "scale"):
    D = fpemu.gemm(A, B, scheme="h2sgemm", hardware="ascend910a", on_range=policy)
    found[policy] = fpemu.metrics.relative_l2(D, exact)
sgemm = fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="sgemm"), exact)
print(f"e = -20: as they are {found['raise']:.1e}, scaled {found['scale']:.1e}, SGEMM {sgemm:.1e}")
assert found["raise"] > 100 * sgemm
assert found["scale"] < sgemm

# %% [markdown]
# ## Figure 9: the sizes
#
# "As $k$ increases, term-wise H2SGEMM scales better than SGEMM or other variants." Panels (b) and (e) decide: does the
# blue line stay below the black one?

# %%
fig9 = full("fig9")
fig9.figure()

# %%
print(textwrap.fill(fig9.finding, 115))
scales = cases_of(
    fig9, "termwise_scales_better", "termwise_lower_over_k", "termwise_outscales_elementwise", "stable_over_mn"
)
assert (scales["stable_over_mn"] == "holds").all()
assert rows_where(scales, "termwise_scales_better", chain, "m = 176") == {"holds"}
for reading in (paper, x86, gpu):
    assert rows_where(scales, "termwise_scales_better", reading, "m = 176") == {"does not hold"}
error = fig9.frame.query("panel == 'k' and inputs == 'offset_symmetric'").groupby("k").mean(numeric_only=True)
ratio = error["SGEMM TSV110"] / error["sb=12 term-wise"]
assert ratio.iloc[0] > 1 > ratio.iloc[-1]
ratio.rename("OpenBLAS, Kunpeng 920 / term-wise").to_frame().transpose().round(2)

# %% [markdown]
# **It depends on the SGEMM again, and here the paper's own baseline wins.** H2SGEMM's main sum is one chain of $k/16$
# roundings, so its error grows as $\sqrt{k}$, exactly like a chain of FMAs and four times lower. OpenBLAS rounds as
# often as a chain up to $k = 1024$; beyond, it adds panels, and its error stays. The lines cross. Up to the length
# where they do, term-wise is more accurate, and with all sizes equal up to 512 the claim holds for that reason.
#
# ## Term-wise against element-wise, and both against SGEMM
#
# Term-wise runs three chains and adds them at the end, smallest first; element-wise adds every block of every product
# to one fp32 sum. The paper credits the order, the smaller terms before the larger, with the lead over SGEMM. That can
# be tested: add the largest sum first (circle), and change the number of products that are rounded together (right).

# %%
termwise = full("termwise")
termwise.figure()

# %%
print(textwrap.fill(termwise.finding, 115))
reason = cases_of(termwise, "small_first_is_the_reason", "fewer_roundings_explain", "single_products_explain")
assert (reason["small_first_is_the_reason"] == "does not hold").all()
assert (reason["fewer_roundings_explain"] == "holds").all()
assert (reason["single_products_explain"] == "holds").all()

# %% [markdown]
# The order of the three sums is **not** the reason: reversed, the error stays the same. The reason is the dotted line:
# a cube that rounds once in $L$ products makes $k/L$ roundings in place of $k$, and $\sqrt{16} = 4$. With $L = 1$ no
# advantage over a chain is left, and on a truncating GPU term-wise is worse than any SGEMM. Element-wise adds outside
# three times per block of 16, 3 roundings where term-wise has 1 that matters:

# %%
A, B = fpemu.inputs.operands("offset_symmetric", 64, 64, 4096, seed=0)
exact = fpemu.reference.matmul(A, B)
found = {}
for hardware in ("ascend910a", "hopper"):
    for combine in ("term-wise", "element-wise"):
        D = fpemu.gemm(A, B, scheme="h2sgemm", hardware=hardware, combine=combine)
        found[combine, hardware] = fpemu.metrics.relative_l2(D, exact)
ratio = found["element-wise", "ascend910a"] / found["term-wise", "ascend910a"]
print(f"element-wise / term-wise: {ratio:.2f}, and the root of 3 is {3**0.5:.2f}")
assert 1.4 < ratio < 2.1
assert found["element-wise", "hopper"] < found["term-wise", "hopper"] / 4
pd.Series(found).unstack().map("{:.1e}".format)

# %% [markdown]
# On Hopper it is the other way round, and by more: element-wise starts every block from zero, so it never truncates a
# long sum. The worse choice on an Ascend, if its cube is as assumed, is the better one there.
#
# ## How often to promote
#
# The chain of the main sum can be cut: *promotion* adds it outside, to nearest, every $P$ products. Between the two
# extremes, every instruction and never, lies a best interval. Look for the bottom of each curve.

# %%
promotion = full("promotion")
promotion.figure()

# %%
print(textwrap.fill(promotion.finding, 115))
means = promotion.frame[promotion.frame["promote"] > 0].groupby(["hardware", "inputs", "promote"])["error"].mean()
best = means.groupby(["hardware", "inputs"]).idxmin().map(lambda found: found[2]).unstack()
assert (best.loc[["ampere", "hopper", "blackwell"]] <= 128).all().all()
assert (best.loc[["cdna3", "ideal"]] >= 256).all().all()
assert (cases_of(promotion, "promotion_beats_chain") == "holds").all()
best.astype(int)

# %% [markdown]
# On hardware that rounds to nearest a chain of $P$ products makes $P/16$ roundings, and its error of about
# $\sqrt{P/16}$ is averaged over $k/P$ chains; the outer sum adds $\sqrt{k/P}$, in the same unit:
#
# $$\text{error}^2 \sim \frac{P^2}{16\,k} + \frac{k}{P}, \qquad\text{least at}\quad P = 2\,k^{2/3},$$
#
# 512 at $k = 4096$. Tested:

# %%
grid = sweep.Grid(
    inputs=["positive"],
    schemes=[{"name": "h2sgemm", "promote": [64, 128, 256, 512, 1024, 2048]}],
    hardware="ideal",
    M=16,
    N=16,
    K=4096,
    seeds=3,
)
with sweep.Store() as results:
    frame = sweep.frame(sweep.run(grid, results=results))
errors = frame.groupby("scheme.promote")["relative_l2"].mean() * 2.0**24
model = pd.Series({P: (P**2 / 16 / 4096 + 4096 / P) ** 0.5 for P in errors.index})
assert errors.idxmin() == model.idxmin() == 512
ratio = (errors / errors[512]) / (model / model[512])
assert ratio.between(0.8, 1.25).all()
pd.DataFrame({"error / u": errors, "model, same at 512": model / model[512] * errors[512]}).transpose().round(2)

# %% [markdown]
# Truncation, whose loss is proportional to $P$, moves the best interval down to two to eight instructions.
#
# ## What was learnt
#
# * **Formulas.** Table 1's bits, Equation 3 and $P_{u+gu}$ are exact; $P_u$ is twice the share that is lost. Equation 6
#   holds with the upper bound $26 - E_{\max}$: $sb = 12$ is a good choice, but not for numbers of $2^{15}$ and more,
#   and $sb = 11$ is safe there.
# * **Accuracy.** At $k = 2816$ term-wise H2SGEMM is more accurate than the paper's OpenBLAS, and less accurate than the
#   same library on an x86 processor or cuBLAS. "More accurate than SGEMM" needs the name of the SGEMM.
# * **Growth.** H2SGEMM's error grows as that of a chain. Libraries that add panels of $k$ overtake it; promotion is the
#   same remedy on the matrix unit.
# * **Cause.** The lead over one chain comes from rounding once in 16 products and not from the order of the three sums.
#   On truncating hardware there is no lead without promotion.
# * **Range.** Operands below $2^{-14}$ need the fourth product, or a scale per matrix (`on_range="scale"`).
#
# Next: [legemm](legemm.ipynb) for the split itself, [magma](magma.ipynb) for the truncation, and [tsm2](tsm2.ipynb) for
# the orders of a long sum.
