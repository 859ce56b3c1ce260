# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # H2SGEMM: how far to scale the residual
#
# W. Xue et al., *H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units*, 2025 (arXiv:2507.23387). Two fp16 words
# for an fp32 number, and a scale $2^{sb}$ that the user may choose:
#
# $$h = \mathrm{fp16}(x), \quad r = \mathrm{fp16}\bigl((x-h)\,2^{sb}\bigr), \qquad
# AB \approx h_A h_B + 2^{-sb}\,(r_A h_B + h_A r_B).$$
#
# fp16 has normal numbers from $2^{-14}$ and nothing below $2^{-24}$. The unscaled residual of $x = 1.M \cdot 2^E$ is
# about $2^{E-12}$: for small $x$ it *underflows*. The paper says how often (Eq. 3 to 5), which $sb$ are safe (Rules 1
# and 2, Eq. 6), recommends $sb = 12$, and adds the three products *term-wise*, smallest first.
#
# The mantissas of an exponent can be counted, so formulas are compared with all of them here. The Ascend's bits are not
# public: its model (16 products added exactly, one rounding to nearest) is assumed.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 90, "bbox_inches": None}
import textwrap

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import plotting, reproduce, sweep
from fpemu.schemes import format_split, split_table
from fpemu.sweep import planes

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
rows = [claim.as_dict() for claim in fig2b.claims]
verdicts = pd.DataFrame(rows)[["claim", "measured", "verdict"]]
with pd.option_context("display.max_colwidth", None):
    display(verdicts)

# %% [markdown]
# The slopes of Rule 1 and of the figure are right, and pessimistic by one exponent: rounding to nearest leaves at most
# *half* of the last place. The upper bound is optimistic by one, because of ties: if $x$ lies halfway between two fp16
# numbers, $|x-h| = 2^{E-11}$, twice what the paper allows for. So **Rule 2 fails**, in its only contact with the edge:

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
# Three of $2^{13}$ numbers with $E=15$ overflow, and `gemm` refuses them by default. $sb = 11$ has none.
#
# What "22 bits" means decides the lower bound. If the error is to be at most $2^{E-22}$, half of the last place of 22
# bits *including* the leading one, $sb = -3-E$ is enough; if 22 bits *after* the leading one are meant, $2^{E-23}$,
# then $-2-E$ is exact. The paper can be read either way ("one less than FP32", which has 23, "and 11 more than FP16",
# which has 11 with the leading one); the counts show both:

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
# What that is worth in a product: the error over both, for operands uniform up to $2^e$. Below the solid line Equation
# 6 says that bits are lost, above the dashed one that something overflows (hatched). Stippled: within 5 % of the best.

# %%
plane = reproduce.committed("h2sgemm/plane")
plane.figure()

# %%
print(textwrap.fill(plane.finding, 115))
assert {claim.verdict for claim in plane.claims} == {"holds"}

# %% [markdown]
# $sb = 12$ is near the best wherever Equation 6 allows it: the recommendation holds. The good region is wide, and at
# $sb = 12$ a horizontal line just passes between its two corners. At the left end *no* $sb$ helps, which we come to.
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

# %%
fig8 = reproduce.committed("h2sgemm/fig8")
fig8.figure()

# %%
verdicts = pd.DataFrame(claim.as_dict() for claim in fig8.claims)[["claim", "published", "measured", "verdict"]]
assert (verdicts["verdict"] == "does not hold").sum() >= 2
usual = fig8.frame[fig8.frame["exponent"] >= -14]
assert (usual["sb=12 term-wise"] < usual["SGEMM"]).all()
with pd.option_context("display.max_colwidth", None):
    display(verdicts)

# %% [markdown]
# The main claim holds: with $sb = 12$ the error is below SGEMM's chain for all normal operands. Of those that fail
# three ask for reasons, and the next figure gives them. It draws the parts of the error apart,
#
# $$AB - D = \bigl[AB - (h+r)_A(h+r)_B\bigr] + r_A r_B + \bigl[\text{rounded by the sums}\bigr].$$
#
# Which dashed line is under the blue one?

# %%
underflow = reproduce.committed("h2sgemm/underflow")
underflow.figure()

# %%
print(textwrap.fill(underflow.finding, 115))
mean = underflow.frame.groupby(["inputs", "exponent"]).mean(numeric_only=True)
low = mean.loc["offset_symmetric", -20]
assert 0.9 < low["sb=12 left out"] / low["sb=12 error"] < 1.1
assert low["sb=12 words"] < low["sb=12 error"] / 20
assert low["sb=12 four"] < low["sb=12 error"] / 20
assert mean.loc["offset_symmetric", 0]["sb=0 error"] < mean.loc["offset_symmetric", 0]["SGEMM chain"] / 2

# %% [markdown]
# * **HGEMM's error of $10^{-4}$** is missed on positive data, because it is a matter of $k$: rounding errors of the
#   operands add up as $\sqrt{k}$, the result as $k$.
# * **$sb = 0$ is not worse than SGEMM** near $e = 0$: nothing underflows there, and the blocks round less often than a
#   chain does.
# * **Below $2^{-14}$, $sb=12$ fails as well**, and the surprise is why. It is not the range of $r$, which $sb$ could
#   mend: it is $r_A r_B$, the product "negligible" by Equation 7. Where $h$ is subnormal it has fewer than 11 bits, $r$
#   is no longer $2^{-11}$ of it, and with the fourth product (rings) the error is back at what the words hold.
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

# %%
fig9 = reproduce.committed("h2sgemm/fig9")
fig9.figure()

# %%
print(textwrap.fill(fig9.finding, 115))
verdict = {claim.claim: claim.verdict for claim in fig9.claims}
assert all(verdict[text] == "holds" for text in verdict if "stable" in text or text.endswith("than SGEMM"))
assert all(verdict[text] == "does not hold" for text in verdict if text.endswith("than HGEMM"))

# %% [markdown]
# Term-wise scales better than SGEMM and the other variants, as published. The comparison with plain HGEMM is a check of
# ours: its error is that of its operands and does not grow at all (and falls on positive data), so nothing grows less.
#
# ## Term-wise against element-wise, and both against SGEMM
#
# Term-wise runs three chains and adds them at the end, smallest first; element-wise adds every block of every product
# to one fp32 sum. The paper credits this strategy of accumulation, the smaller terms before the larger, with the lead
# over SGEMM. That can be tried: add the largest sum first (rings), keep the sums apart or not (element-wise beside
# term-wise), and change the number of products that are rounded together (right).

# %%
termwise = reproduce.committed("h2sgemm/termwise")
termwise.figure()

# %%
print(textwrap.fill(termwise.finding, 115))
error = termwise.frame.groupby(["inputs", "method", "hardware", "block", "k"], dropna=False)["error"].mean()
error = error.reset_index().fillna({"hardware": ""})
at = error[(error["block"] > 0) & (error["inputs"] == "offset_symmetric")].set_index(["method", "block"])["error"]
chain = error.query("method == 'SGEMM chain' and inputs == 'offset_symmetric'").set_index("k")["error"].max()
assert 0.9 < at["large first", 16] / at["nearest", 16] < 1.1
assert 0.8 < at["nearest", 1] / chain < 1.25
assert 2.5 < chain / at["nearest", 16] < 6
assert at["truncated", 16] > chain

# %% [markdown]
# The order of the three sums is **not** the reason: reversed, the error stays the same. Keeping the sums apart is the
# lesser part of it (element-wise is worse, but still better than SGEMM). The main reason is the dotted line:
# a cube that rounds once in $L$ products makes $k/L$ rounding errors instead of $k$, and $\sqrt{16} = 4$. With $L = 1$
# there is no advantage left, a pairwise SGEMM is better than term-wise, and on a truncating GPU term-wise is worse than
# SGEMM. Element-wise loses because it adds outside three times in every block of 16, 3 roundings where term-wise has 1
# that matters:

# %%
A, B = fpemu.inputs.operands("offset_symmetric", 64, 64, 4096, seed=0)
exact = fpemu.reference.matmul(A, B)
found = {}
for gpu in ("ascend910a", "hopper"):
    for combine in ("term-wise", "element-wise"):
        D = fpemu.gemm(A, B, scheme="h2sgemm", hardware=gpu, combine=combine)
        found[combine, gpu] = fpemu.metrics.relative_l2(D, exact)
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
# Between the two extremes, every instruction and never, lies a best interval. Look for the bottom of each curve.

# %%
promotion = reproduce.committed("h2sgemm/promotion")
promotion.figure()

# %%
print(textwrap.fill(promotion.finding, 115))
means = promotion.frame[promotion.frame["promote"] > 0].groupby(["hardware", "inputs", "promote"])["error"].mean()
best = means.groupby(["hardware", "inputs"]).idxmin().map(lambda found: found[2]).unstack()
assert (best.loc[["ampere", "hopper", "blackwell"]] <= 64).all().all()
assert (best.loc[["cdna3", "ideal"]] >= 64).all().all()
best.astype(int)

# %% [markdown]
# On hardware that rounds to nearest a chain of $P$ products makes $P/16$ roundings, and its error of about
# $\sqrt{P/16}$ is averaged over $k/P$ chains; the outer sum adds $\sqrt{k/P}$, in the same unit:
#
# $$\text{error}^2 \sim \frac{P^2}{16\,k} + \frac{k}{P}, \qquad\text{least at}\quad P = 2\,k^{2/3},$$
#
# 512 at $k = 4096$, between the two intervals of the figure. Tried:

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
# Truncation, whose loss is proportional to $P$, moves the best interval down to one to four instructions.
#
# ## What to take away
#
# * Equation 3 and $P_{u+gu}$ are exact; $P_u$ is twice what is lost. Equation 6 holds with $26 - E_{\max}$, and its
#   lower bound if 22 bits mean an error of at most $2^{E-23}$ (one lower if they mean $2^{E-22}$).
# * $sb = 12$ is a good choice, but not for numbers of $2^{15}$ and more; $sb = 11$ is safe there.
# * Operands below $2^{-14}$ need the fourth product, or should be scaled (`on_range="scale"`), whatever $sb$.
# * Term-wise beats SGEMM's chain by rounding once in 16 products. On truncating hardware: promote.
#
# Next: [legemm](legemm.ipynb) for the split itself, [magma](magma.ipynb) for the truncation, and [tsm2](tsm2.ipynb) for
# the orders of a long sum.
