# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # H2SGEMM: the scale of the residual, and the SGEMM of the comparison
#
# W. Xue et al., *H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units*, 2025 (arXiv:2507.23387). Two fp16 words
# represent an fp32 number; the second word is scaled by $2^{sb}$:
#
# $$h = \mathrm{fp16}(x), \quad r = \mathrm{fp16}\bigl((x-h)\,2^{sb}\bigr), \qquad
# AB \approx h_A h_B + 2^{-sb}\,(r_A h_B + h_A r_B).$$
#
# The smallest normal fp16 number is $2^{-14}$, and the smallest subnormal one is $2^{-24}$. The unscaled residual of $x
# = 1.M \cdot 2^E$ is about $2^{E-12}$, so it *underflows* for small $x$. The paper states the probability of this
# underflow (Eq. 3 to 5) and a safe $sb$ (Rules 1 and 2, Eq. 6), and recommends $sb = 12$. It adds the three products
# *term-wise*, smallest first.
#
# The notebook answers two questions. Which of the formulas are exact? All significands of an exponent can be
# enumerated, so each formula is compared with a count. Is the result more accurate than SGEMM? The answer depends on
# the summation order of the SGEMM. The paper used OpenBLAS on a Kunpeng 920, whose order is emulated here bit for bit.
#
# The arithmetic of the Ascend 910A is not public. Its model adds 16 products exactly and rounds once to nearest, which
# is an assumption. Figures of errors have 20 seeds per point. All verdicts are the verdicts of the ledger, from the
# same data.

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
from fpemu.plotting import planes
from fpemu.reproduce import claims
from fpemu.schemes import format_split, split_table


def cases_of(figure, *names):
    """Show the cases of some claims of a figure, and return the verdicts by name, reading and variant."""
    rows = [
        (j.claim.name, case.reading, case.variant, claims.number(j.claim, case), case.verdict)
        for j in figure.judgements
        for case in j.cases
        if j.claim.name in names
    ]
    frame = pd.DataFrame(rows, columns=["claim", "reading", "variant", "measured", "verdict"])
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
# The number $\pi/512$ has the exponent $-8$. Its unscaled residual is a subnormal fp16 number with few bits:

# %%
print(format_split(np.pi / 512, "h2sgemm", sb=0), format_split(np.pi / 512, "h2sgemm", sb=12), sep="\n\n")

# %%
kept = {sb: split_table(np.pi / 512, "h2sgemm", sb=sb).bits_kept for sb in (0, 4, 8, 12)}
pd.Series(kept, name="bits kept").rename_axis("sb").to_frame().transpose()

# %% [markdown]
# ## Precision of five splits: Table 1
#
# Table 1 of the paper states the number of bits that five methods lose: 2, 2, 1, 1 and about 1. It does not define the
# loss. If the loss is the number of places of the 24-bit significand that the two words cannot hold, all its numbers
# are reproduced exactly where nothing underflows:

# %%
table1 = reproduce.committed("h2sgemm/table1")
table1.figure()

# %%
bits = cases_of(table1, "table1_bits")
stated = bits.xs("rounding as in the methods' papers", level="reading")

# %% [markdown]
# The second lost bit of Markidis' and of Feng's method is caused by *truncation*, which Table 1 assumes and the papers
# of these methods do not state. A larger difference occurs for $E < -2$: an unscaled residual loses one bit per
# exponent, which the table omits.
#
# ## The probability of underflow: Equations 3 to 5, figure 2(a)
#
# Let the residual have the exponent $E - 12 - N$. Equation 3 states the probability $2^{-(n+2)}$, $0 \le n \le 11$,
# both for $N = n$ with $h$ rounded down (T) and for $N = n$ with $h$ rounded up (R). Equation 5 sums the probabilities
# of all $N$ with a residual below $2^{-14}$ ($P_{u+gu}$, underflow or gradual underflow) or below $2^{-24}$ ($P_u$). If
# the equations are exact, the filled marks are inside the open marks on the left, and the marks are on the lines on the
# right.

# %%
fig2a = reproduce.committed("h2sgemm/fig2a")
fig2a.figure()

# %%
page, normal = fig2a.experiment.module, [row for row in fig2a.rows if row["exponent"] >= -14]
print(textwrap.fill(fig2a.finding, 115))

# %% [markdown]
# Equation 3 is exact for every significand if $N$ is counted from the exponent of $x$, and so is $P_{u+gu}$. $P_u$ is
# **twice the probability that the residual becomes zero**: a residual between $2^{-25}$ and $2^{-24}$ is smaller than
# the smallest fp16 number, but rounding to nearest gives $2^{-24}$ and not zero. With the ties at $2^{-25}$ the sum
# simplifies, for $-13 \le E \le -2$, to
#
# $$P_{\mathrm{zero}}(E) = \sum_{n=E+14}^{11} \bigl(P(n,T) + P(n,R)\bigr) + 2^{-12} = 2^{-(E+14)}
# \qquad\text{instead of}\qquad 2^{-(E+13)} - 2^{-13}.$$
#
# ## Rules 1 and 2 and Equation 6, figure 2(b)
#
# Rule 1 states that below $2^{-2}$ the residual must be scaled to keep 22 bits, and that below $2^{-12}$ the unscaled
# split fails. Rule 2 states that $sb$ is at most 12 for large numbers. For numbers with exponents from $E_{\min}$ to
# $E_{\max}$, Equation 6 states
#
# $$-2 - E_{\min} \;\le\; sb \;\le\; 27 - E_{\max},$$
#
# so $sb = 12$ is the only choice for the whole range of normal fp16 numbers, $E = -14$ to $15$.

# %%
fig2b = reproduce.committed("h2sgemm/fig2b")
fig2b.figure()

# %%
bounds = cases_of(fig2b, "eq6_lower", "eq6_upper", "sb12_keeps_22_bits", "remapped_range")

# %% [markdown]
# The slopes of the bounds are correct. The lower bound is exact if 22 bits mean an error of at most $2^{E-23}$. The
# upper bound is too large by one because of ties: if $x$ is midway between two fp16 numbers, $|x-h| = 2^{E-11}$, which
# is twice the residual that the paper allows for. Therefore **Rule 2 fails** at the largest exponent:

# %%
x = 2.0**15 + 16
print(format_split(x, "h2sgemm", sb=12))
top = {row["sb"]: row["r overflows"] for row in fig2b.rows if row["exponent"] == 15 and row["sb"] in (11, 12)}
try:
    fpemu.gemm(np.float32([[x]]), np.float32([[1.0]]), scheme="h2sgemm", hardware="A100")
except fpemu.InputError as problem:
    print(problem)

# %% [markdown]
# Of $2^{13}$ numbers with $E=15$, three overflow with $sb = 12$, and `gemm` raises an error by default. With $sb = 11$
# no number overflows. Three inequalities describe all pairs of $E$ and $sb$:

# %%
normal_exponents = fig2b.frame[fig2b.frame["exponent"].between(-14, 15)]
slack = normal_exponents["sb"] + normal_exponents["exponent"]
print(f"{len(normal_exponents)} pairs of E and sb")

# %% [markdown]
# ## The error over $sb$ and the exponent
#
# The figure shows the error of a product over $sb$ and the exponent $e$ of operands uniform up to $2^e$. According to
# Equation 6, bits are lost below the solid line, and residuals overflow above the dashed line (hatched). Stippled
# settings are within 5 % of the smallest error.

# %%
plane = full("plane")
plane.figure()

# %%
print(textwrap.fill(plane.finding, 115))
robust = cases_of(full("rounding"), "sb12_robust")

# %% [markdown]
# With $sb = 12$ the error is near the smallest error for entries below $2^{15}$. The recommendation does not hold for
# the whole range of fp16: of entries up to 60000 some residuals overflow with $sb = 12$, and none with $sb = 11$. The
# accurate region is wide, and $sb = 12$ passes just between its two corners. At the smallest exponents *no* $sb$ is
# accurate; the cause follows below.
#
# ## Maps of other schemes and other hardware
#
# On the command line,
#
# ```
# fpemu sweep scaling --scheme h2sgemm --hardware H200 --sb 0:24:2 --offset=-20:4:2 --size 16x16x512
# fpemu sweep plane ozimmu --option slices=3:9 --inputs phi --parameter phi=0:4:0.5 --hardware A100
# ```
#
# draw such maps. The next cell draws two maps in Python for a Hopper GPU: the main sum stays in the accumulator over
# all of $K$, or is *promoted* (added outside the matrix unit, to nearest, every 64 products):

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
selections = {"never promoted": frame["scheme.promote"] == "none", "promoted every 64": frame["scheme.promote"] == "64"}
maps = {
    label: planes.plane(frame[rows].to_dict("records"), "e", "sb", "relative_l2") for label, rows in selections.items()
}
with plotting.style():
    figure, axes = plotting.figure(2, height=2.7, width=plotting.DOUBLE)
    for axis, one in zip(axes[0], maps.values(), strict=True):
        mesh = planes.draw(axis, one, low=1e-7, high=1e-1, lines=planes.bounds(one, lambda e: int(e) - 1))
        axis.set_xlabel("exponent $e$ of the operands")
    axes[0, 0].set_ylabel("$sb$")
    plotting.colour_bar(figure, mesh, axes, "relative $L_2$ error")
    plotting.panel_titles(axes, list(maps))
    plotting.legend_below(figure, axes[0, 0], 3)
display(figure)

# %%
never, promoted = (one.errors[one.ys.index(12), one.xs.index(0)] for one in maps.values())
left = maps["never promoted"]
subnormal = left.errors[left.ys.index(12), left.xs.index(-14)]
print(f"sb = 12, e = 0: {never:.1e} and {promoted:.1e}; e = -14, never promoted: {subnormal:.1e}")

# %% [markdown]
# The bounds of Equation 6 are unchanged, because they follow from fp16 and not from the hardware. The smallest error
# depends on the hardware; where it is larger, $sb$ has less effect. At $e=-14$ without promotion the error is *below*
# the error at $e = 0$. All $h$ are subnormal there, so they are multiples of $2^{-24}$ with few bits, and the
# truncation of the accumulator removes little from their products.
#
# ## Figure 8: the error over the exponent
#
# The paper claims that term-wise H2SGEMM is more accurate than SGEMM, that element-wise H2SGEMM is as accurate as
# SGEMM, and that both are less accurate without scaling. The figure has four SGEMMs with different summation orders,
# and the errors of H2SGEMM are between their errors.

# %%
fig8 = full("fig8")
fig8.figure()

# %%
main, other_orders_8 = "termwise_beats_sgemm", "termwise_beats_sgemm_other_orders"
against = cases_of(fig8, main, other_orders_8, "elementwise_matches_sgemm", "unscaled_worse_than_sgemm")
_, chain, x86, gpu = fig8.experiment.module.SGEMMS
nearest, truncated = fig8.experiment.module.CUBES

# %% [markdown]
# **The main claim holds for the paper's own baseline**: OpenBLAS's kernel for the Kunpeng 920 adds up to 1024 products
# in one chain, and its error exceeds the error of the matrix unit (the cube), which rounds once per 16 products. One
# chain over all of $k$ is less accurate still. The Haswell kernel uses shorter panels, and cuBLAS splits $k$ for this
# small product; both are more accurate than H2SGEMM. The claim therefore requires the name of the SGEMM.
# It also requires the assumed rounding: with a cube that truncates its sums it does not hold.
#
# The claimed error of HGEMM, $10^{-4}$, depends on the format of its result:

# %%
half = cases_of(fig8, "hgemm_error")

# %% [markdown]
# With an fp16 result the error has the order of $10^{-4}$ for both distributions, because of the rounding of the
# result. With an fp32 result the error on non-negative data decreases as $1/\sqrt{k}$, because the rounding errors of
# the operands average out.
#
# Below $2^{-14}$ H2SGEMM is less accurate than every SGEMM. The next figure separates the parts of the error,
#
# $$AB - D = \bigl[AB - (h+r)_A(h+r)_B\bigr] + r_A r_B + \bigl[\text{rounding of the sums}\bigr].$$
#
# A part whose dashed line coincides with the blue line explains the error.

# %%
underflow = full("underflow")
underflow.figure()

# %%
print(textwrap.fill(underflow.finding, 115))
mean = underflow.frame.groupby(["inputs", "exponent"]).mean(numeric_only=True)
low = mean.loc["offset_symmetric", -20]
fourth = cases_of(underflow, "fourth_product_negligible")

# %% [markdown]
# Below $2^{-14}$ the cause is not the range of $r$, which $sb$ could extend. The cause is $r_A r_B$, the product that
# Equation 7 calls negligible. A subnormal $h$ has fewer than 11 bits, so $r$ is larger than $2^{-11}$ of $h$. With the
# fourth product (circles) the remaining error is the error of the words.
#
# If each matrix is scaled by one power of two, and the result is scaled back, the error disappears:

# %%
A, B = fpemu.inputs.operands("offset_symmetric", 32, 32, 1024, seed=0, exponent=-20)
exact = fpemu.reference.matmul(A, B)
scaled = {}
for policy in ("raise", "scale"):
    D = fpemu.gemm(A, B, scheme="h2sgemm", hardware="ascend910a", on_range=policy)
    scaled[policy] = fpemu.metrics.relative_l2(D, exact)
sgemm = fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="sgemm"), exact)
print(f"e = -20: unscaled {scaled['raise']:.1e}, scaled {scaled['scale']:.1e}, SGEMM {sgemm:.1e}")

# %% [markdown]
# ## Figure 9: the error over the sizes
#
# The paper states: "As $k$ increases, term-wise H2SGEMM scales better than SGEMM or other variants." Panels (c) and (d)
# test whether the blue line stays below the black line.

# %%
fig9 = full("fig9")
fig9.figure()

# %%
print(textwrap.fill(fig9.finding, 115))
claim, others = "termwise_scales_better", "termwise_scales_better_other_orders"
scales = cases_of(fig9, claim, others, "termwise_lower_over_k", "termwise_outscales_elementwise", "stable_over_mn")
error = fig9.frame.query("panel == 'k' and inputs == 'offset_symmetric'").groupby("k").mean(numeric_only=True)
ratio_of_sgemm = error["SGEMM TSV110"] / error["sb=12 term-wise"]
ratio_of_sgemm.rename("OpenBLAS, Kunpeng 920 / term-wise").to_frame().transpose().round(2)

# %% [markdown]
# **The verdict depends on the SGEMM, and for large $k$ the paper's own baseline is more accurate.** The main sum of
# H2SGEMM is one chain with $k/16$ roundings. Its error grows as $\sqrt{k}$, like the error of a chain of FMAs, and is
# a quarter of it. OpenBLAS rounds as often as a chain up to $k = 1024$; for larger $k$ it adds panels, and its error
# stays nearly constant. Up to the $k$ at which the lines cross, term-wise H2SGEMM is more accurate. For this reason the
# claim holds if all sizes are equal and at most 512.
#
# ## Term-wise and element-wise accumulation
#
# Term-wise accumulation has three chains, which are added at the end, smallest first. Element-wise accumulation adds
# every block of every product to one fp32 sum. The paper attributes the advantage over SGEMM to the order, with the
# smaller terms before the larger ones. The figure tests this: the largest sum is added first (circles), and the number
# of products with one rounding is varied (right).

# %%
termwise = full("termwise")
termwise.figure()

# %%
print(textwrap.fill(termwise.finding, 115))
reason = cases_of(termwise, "small_first_is_the_reason", "fewer_roundings_explain", "single_products_explain")

# %% [markdown]
# The order of the three sums is **not** the cause: with the reverse order the error is the same. The dotted line shows
# the cause: a unit that rounds once per $L$ products makes $k/L$ roundings instead of $k$, and $\sqrt{16} = 4$. With $L
# = 1$ there is no advantage over a chain, and on a truncating GPU term-wise H2SGEMM is less accurate than every SGEMM.
# Element-wise accumulation makes three roundings per block of 16 products outside the unit, and term-wise accumulation
# makes one rounding of the main sum:

# %%
A, B = fpemu.inputs.operands("offset_symmetric", 64, 64, 4096, seed=0)
exact = fpemu.reference.matmul(A, B)
combined = {}
for hardware in ("ascend910a", "hopper"):
    for combine in ("term-wise", "element-wise"):
        D = fpemu.gemm(A, B, scheme="h2sgemm", hardware=hardware, combine=combine)
        combined[combine, hardware] = fpemu.metrics.relative_l2(D, exact)
ratio_of_variants = combined["element-wise", "ascend910a"] / combined["term-wise", "ascend910a"]
print(f"element-wise / term-wise: {ratio_of_variants:.2f}, and the root of 3 is {3**0.5:.2f}")
pd.Series(combined).unstack().map("{:.1e}".format)

# %% [markdown]
# On Hopper element-wise accumulation is more accurate, by a larger factor: it starts every block from zero, so it does
# not truncate a long sum. The less accurate choice on the Ascend, with the assumed arithmetic, is the more accurate
# choice on Hopper.
#
# ## The promotion interval
#
# The chain of the main sum can be divided: *promotion* adds it to an outer sum, to nearest, every $P$ products. The
# best interval is between the two extremes, one instruction and all of $k$, and is the minimum of each curve.

# %%
promotion = full("promotion")
promotion.figure()

# %%
print(textwrap.fill(promotion.finding, 115))
means = promotion.frame[promotion.frame["promote"] > 0].groupby(["hardware", "inputs", "promote"])["error"].mean()
best = means.groupby(["hardware", "inputs"]).idxmin().map(lambda index: index[2]).unstack()
beaten = cases_of(promotion, "promotion_beats_chain")
best.astype(int)

# %% [markdown]
# On hardware that rounds to nearest a chain of $P$ products makes $P/16$ roundings. Its error is about $\sqrt{P/16}$
# and is averaged over $k/P$ chains; the outer sum adds $\sqrt{k/P}$ in the same unit:
#
# $$\text{error}^2 \sim \frac{P^2}{16\,k} + \frac{k}{P}, \qquad\text{smallest at}\quad P = 2\,k^{2/3}.$$
#
# For $k = 4096$ the best interval is 512. The test:

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
ratio = (errors / errors[512]) / (model / model[512])
pd.DataFrame({"error / u": errors, "model, same at 512": model / model[512] * errors[512]}).transpose().round(2)

# %% [markdown]
# On truncating hardware the error of a chain is proportional to $P$, so the best interval is shorter: two to eight
# instructions.
#
# ## Conclusions
#
# * **Formulas.** Table 1's bits, Equation 3 and $P_{u+gu}$ are exact; $P_u$ is twice the probability that the residual
#   becomes zero. Equation 6 holds with the upper bound $26 - E_{\max}$: $sb = 12$ is a good choice for numbers below
#   $2^{15}$, and $sb = 11$ is safe for all fp16 exponents.
# * **Accuracy.** At $k = 2816$ term-wise H2SGEMM is more accurate than the paper's OpenBLAS, and less accurate than the
#   same library on an x86 processor and than cuBLAS. "More accurate than SGEMM" requires the name of the SGEMM.
# * **Growth.** The error of H2SGEMM grows like the error of one chain. Libraries that add panels of $k$ are more
#   accurate for large $k$; promotion has the same effect on the matrix unit.
# * **Cause.** The advantage over one chain is the single rounding per 16 products, and not the order of the three sums.
#   On truncating hardware there is no advantage without promotion.
# * **Range.** Operands below $2^{-14}$ require the fourth product, or a scale for each matrix (`on_range="scale"`).
#
# Next: [legemm](legemm.ipynb) analyses the split, [magma](magma.ipynb) the truncation, and [tsm2](tsm2.ipynb) the
# orders of a long sum.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# The residual of a small number
assert list(kept.values()) == sorted(kept.values())
assert kept[0] < 20 < 22 <= kept[12]

# Precision of five splits: Table 1
assert (bits.xs("rounding as in Table 1", level="reading") == "holds").all()
assert list(stated[stated == "does not hold"].index.get_level_values("variant")) == ["Markidis", "EGEMM-TC"]

# The probability of underflow: Equations 3 to 5, figure 2(a)
for row in normal:
    e = row["exponent"]
    assert all(row[f"{event} {n}"] == page.equation_3(n, event) for n in page.N_RANGE for event in "TR")
    assert row["below normal"] == page.equation_5(e, gradual=True)
    assert row["gone"] == page.gone(e)
    if -13 <= e <= -2:
        assert row["gone"] == 2.0 ** -(e + 14)
        assert page.equation_5(e, gradual=False) == 2.0 ** -(e + 13) - 2.0**-13

# Rules 1 and 2 and Equation 6, figure 2(b)
assert list(bounds["eq6_lower"]) == ["does not hold", "holds"]
assert list(bounds["eq6_upper"]) == list(bounds["remapped_range"]) == ["does not hold"]
assert list(bounds["sb12_keeps_22_bits"]) == ["holds", "does not hold"]
assert split_table(x, "h2sgemm", sb=12).rows[1].value == np.inf
assert split_table(x, "h2sgemm", sb=11).error == 0
assert top[11] == 0
assert round(top[12] * 2**13) == 3
assert ((normal_exponents["bits"] >= 22) == (slack >= -3)).all()
assert ((normal_exponents["bits"] >= 23) == (slack >= -2)).all()
assert ((normal_exponents["r overflows"] == 0) == (slack <= 26)).all()

# The error over $sb$ and the exponent
assert rows_where(robust, "sb12_robust", "", "x = 2^") == {"holds"}
assert rows_where(robust, "sb12_robust", "", "x = 60000") == {"does not hold"}

# Maps of other schemes and other hardware
assert never > 2 * promoted
for one in maps.values():
    assert planes.losses(one)[one.ys.index(12), one.xs.index(-12) :].max() < 1.5
assert subnormal < never / 1.5

# Figure 8: the error over the exponent
for name, reading, verdict in (
    (main, nearest, "holds"),
    (main, truncated, "does not hold"),
    (other_orders_8, chain, "holds"),
    (other_orders_8, x86, "does not hold"),
    (other_orders_8, gpu, "does not hold"),
):
    assert rows_where(against, name, reading, "-14 to -8") == {verdict}
    assert rows_where(against, name, reading, "-20 to -16") == {"does not hold"}
assert rows_where(half, "hgemm_error", f"fp16 result, {nearest}", "-4 to 0") == {"holds"}
assert rows_where(half, "hgemm_error", f"fp32 result, {nearest}", "[0,2^e], e = -4 to 0") == {"does not hold"}
assert 0.9 < low["sb=12 left out"] / low["sb=12 error"] < 1.1
assert low["sb=12 words"] < low["sb=12 error"] / 20
assert low["sb=12 four"] < low["sb=12 error"] / 20
assert set(fourth) == {"holds", "does not hold"}
assert scaled["raise"] > 100 * sgemm
assert scaled["scale"] < sgemm

# Figure 9: the error over the sizes
assert (scales["stable_over_mn"] == "holds").all()
assert rows_where(scales, claim, "", "m = 176") == {"does not hold"}
assert rows_where(scales, others, chain, "m = 176") == {"holds"}
assert rows_where(scales, others, x86, "m = 176") == rows_where(scales, others, gpu, "m = 176") == {"does not hold"}
assert ratio_of_sgemm.iloc[0] > 1 > ratio_of_sgemm.iloc[-1]

# Term-wise and element-wise accumulation
assert (reason["small_first_is_the_reason"] == "does not hold").all()
assert (reason["fewer_roundings_explain"] == "holds").all()
assert (reason["single_products_explain"] == "holds").all()
assert 1.4 < ratio_of_variants < 2.1
assert combined["element-wise", "hopper"] < combined["term-wise", "hopper"] / 4

# The promotion interval
assert (best.loc[["ampere", "hopper", "blackwell"]] <= 128).all().all()
assert (best.loc[["cdna3", "ideal"]] >= 256).all().all()
assert (beaten == "holds").all()
assert errors.idxmin() == model.idxmin() == 512
assert ratio.between(0.8, 1.25).all()
