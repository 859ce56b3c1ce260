# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # FP64 products from fp16 units: the Ozaki scheme
#
# D. Mukunoki, K. Ozaki, T. Ogita, T. Imamura, *DGEMM using Tensor Cores, and its accurate and reproducible versions*,
# ISC High Performance 2020. The scheme (DGEMM-TC) splits the fp64 matrices into slices of a few bits,
#
# $$A = \sum_p 2^{c_A(p)} A_p, \qquad B = \sum_q 2^{c_B(q)} B_q, \qquad AB = \sum_{p,q} 2^{c_A(p)+c_B(q)} A_p B_q,$$
#
# with so few bits that every product $A_p B_q$ is **free of rounding errors** on the tensor core. The remaining step is
# a sum of matrices. There are three modes: DP uses the number of slices for DGEMM's accuracy, SP (SGEMM-TC) the number
# for SGEMM's accuracy, and CR (correctly rounded) uses all slices and rounds the sum once.
#
# The argument of this notebook: the products are exact on every tensor core, so the number of slices determines the
# error and the speed. The notebook draws the slices, derives the exact number of bits for each unit, and compares the
# paper's claims with the ledger's full-size data.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import math

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import mma, plotting, reproduce
from fpemu.mma import exactness
from fpemu.plotting.bits import blocks, draw
from fpemu.schemes import ozaki
from fpemu.schemes.errorfree.split import split

GPUS = ("V100", "T4", "A100", "H200", "B200", "MI100", "MI210", "MI300X")

# %% [markdown]
# ## The slices of a row
#
# Algorithm 1 takes $b$ bits at a time from a whole row of $A$, beginning at the largest entry. With $2^\tau \ge
# \max|x|$ the slice is $\mathrm{fl}((x+\sigma)-\sigma)$, where $\sigma$ is chosen so that the slice consists of
# multiples of $2^{\tau-b}$; the remainder has its own $\tau$. A slice is therefore a row of integers times one power of
# two. The figure shows eight entries of a row of 256, ordered by magnitude. Each box is one of these integers, from its
# unit (right edge) to its leading bit, and the number in the box is its value.

# %%
A, B = fpemu.inputs.operands("phi", 64, 64, 256, seed=0, dtype="fp64", phi=1.0)
bits = exactness.slice_bits(mma.spec("T4"), 256)
slices = split(A[:1], axis=1, bits=bits, rule="published")
shown = np.argsort(-abs(A[0]))[:: 256 // 7][:8]
palette = (plotting.BLUE, plotting.ORANGE, plotting.GREEN, plotting.VERMILION, plotting.SKY, plotting.PURPLE)
with plotting.style():
    figure, axes = plotting.figure(1, height=2.6, width=plotting.DOUBLE)
    for p, (integers, exponents) in enumerate(slices.items):
        unit, values = exponents.item(), integers[0, shown]
        tops = np.frexp(abs(values))[1] + unit
        axes[0, 0].barh(range(8), unit - tops, 0.75, -unit, color=palette[p % 6], alpha=0.6, label=f"slice {p + 1}")
        for row, value in enumerate(values):
            if value:
                axes[0, 0].text(-unit - 0.2, row, f"{value:.0f}".replace("-", "−"), ha="right", va="center", fontsize=7)
    axes[0, 0].set_yticks(range(8), [f"{x:.3g}".replace("-", "−") for x in A[0, shown]])
    axes[0, 0].invert_yaxis()
    ticks = range(-60, 8, 8)
    axes[0, 0].set_xticks([-t for t in ticks], [f"{t}".replace("-", "−") for t in ticks])
    axes[0, 0].set(xlabel="binary exponent of the place", ylabel="entry")
    plotting.legend_below(figure, axes[0, 0], 5)
display(figure)

# %%
print(f"{slices.slices} slices; nonzero integers in each: {[f'{np.mean(s.digits != 0):.0%}' for s in slices.items]}")

# %% [markdown]
# The sum of the slices is exactly the row. The bits of small entries begin and end in later slices, so the last slices
# are nearly empty; CR mode computes all their products. The integers are signed, so a slice holds $b$ bits
# and a sign.
#
# ## The number of exact bits
#
# The paper's condition for IEEE fp32 sums is $b \le \lfloor (24-\log_2 k)/2 \rfloor$: a sum of $k$ products of integers
# up to $2^b$ is at most $k\,2^{2b} \le 2^{24}$. Tensor cores are not IEEE adders. A sufficient condition for them
# (proved in `fpemu.mma.exactness`) is that the words represent the integers and that the sum of magnitudes
# $S=\sum|x||y|$ satisfies
#
# $$S \le 2^T, \qquad T = \min(F+1,\;P),$$
#
# where $F$ is the alignment width and $P$ the number of bits of the result. The table shows the derived bits for each
# unit and $k$:

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

# %% [markdown]
# The paper's formula is correct for fp16 words and fp32 sums on all eight units from $k=2$ on, although none of them
# adds product by product in IEEE fp32. On Volta the condition holds with equality: $F+1 = 24$. The formula is wrong for
# $k = 1$ (an fp16 word cannot hold 12 bits), for bf16 at short $k$ (8-bit words), for fp16 sums, and for fp8: the words
# hold 4 bits, and on Hopper's `wgmma` only $T=14$ bits of a sum are kept.
#
# The picture shows the limit on Volta in units of $2^{-16}$ (8-bit integers): at $2^{24}-1$ the chain adds one more
# unit exactly, and at $2^{24}$ the unit is lost.

# %%
volta = mma.spec("V100")
one = 2.0**-8
full = [blocks([one], [one], c * 2.0**-16, spec=volta)[0] for c in (2.0**24 - 1, 2.0**24)]
draw(full)

# %% [markdown]
# The package checks this condition on every product of slices. With one bit too many, `certify` reports the violation
# and `gemm` raises an error:

# %%
certified = fpemu.certify(A, B, scheme="ozaki", hardware="T4", bits=9)
print(certified.report.faults[0].message)
try:
    fpemu.gemm(A, B, scheme="ozaki", hardware="T4", bits=9)
except fpemu.GuaranteeError as error:
    print("error:", type(error).__name__)
else:
    raise AssertionError("a violated condition raised no error")

# %% [markdown]
# ## The number of slices in DP mode
#
# Algorithm 3 selects the smallest $d \ge 2$ with
#
# $$2\sqrt{k}\,u\;|A|(|B|e) \;>\; (d+1)\;|A_d|(|B|e) \quad\text{in every row},\qquad u = 2^{-53},\; e=(1,\dots,1)^T,$$
#
# and computes only the products with $p+q \le d+1$. CR mode computes slices until the remainder is zero, and all
# products.

# %%
counts = {}
for phi in (0.1, 1.0, 2.0, 4.0):
    for mode, dtype in (("SP", "fp32"), ("DP", "fp64"), ("CR", "fp64")):
        X, Y = fpemu.inputs.operands("phi", 64, 64, 256, seed=0, dtype=dtype, phi=phi)
        count = ozaki.counts(X, Y, hardware="T4", mode=mode)
        counts[f"φ = {phi:g}", mode] = {"slices of A, B": count.slices, "products": count.products}
pd.DataFrame(counts).transpose().unstack()

# %% [markdown]
# Figure 5b at the paper's sizes, with all rows and columns in blocks of 3584 and twenty seeds:

# %%
fig5b = reproduce.committed("dgemm_tc/fig5b", "full")
verdict_5b = {judgement.claim.name: judgement.verdict for judgement in fig5b.judgements}
expected = next(one for one in fig5b.judgements if one.claim.name == "expected_speed")
fig5b.figure()

# %% [markdown]
# At $n = 7168$ and $\varphi = 0.1$ every seed has 66 products, which is the published number: eleven slices, with
# $11\cdot 12/2$ products in fast mode. If products at the published 92 TFLOP/s of a Titan RTX take 70 % of the time,
# the speed is 0.98 TFLOP/s. A count without a GPU therefore explains the published speed. At $n = 10240$ it does so for
# $\varphi = 0.1$; for $\varphi = 1$ and 2 the expected speed is 0.86 and 0.90 of the published one, because the worst
# rows need one slice more than the published speeds imply.
#
# ## The error of DGEMM-TC and of DGEMM: figures 3 and 8
#
# The paper calls DGEMM-TC and cublasDgemm "equivalent", and likewise SGEMM-TC and cublasSgemm. The ledger judges the
# claim on DGEMM by one chain of fused multiply-adds, the order of cuBLAS on an H200, and a check by OpenBLAS; the claim
# on SGEMM by one chain, by OpenBLAS, and by cuBLAS on an H200.

# %%
fig3 = reproduce.committed("dgemm_tc/fig3", "full")
fig3.figure()

# %%
fig8 = reproduce.committed("dgemm_tc/fig8", "full")
fig8.figure()

# %%
lines = [
    {
        "claim": judgement.claim.claim,
        "case": case.label,
        "ratio of the errors": f"{case.median:.2g} ({min(case.values):.2g} to {max(case.values):.2g})",
        "criterion": str(judgement.claim.criterion),
        "verdict": case.words,
    }
    for figure in (fig3, fig8)
    for judgement in figure.judgements
    if judgement.claim.unit == "×"
    for case in judgement.cases
]
with pd.option_context("display.max_colwidth", None, "display.max_rows", None):
    display(pd.DataFrame(lines))

# %% [markdown]
# The paper gives no tolerance. The criterion of the ledger is a choice of this project: the error of DGEMM-TC is at
# most ten times the error of DGEMM at every $n$. The first criterion was two-sided, within a factor of ten, and
# DGEMM-TC failed it because its error was smaller by more than a factor of ten; the criterion is therefore one-sided.
#
# At small $n$ DGEMM-TC is more accurate by factors of ten to hundreds in the mean, and of thousands for single seeds.
# DGEMM rounds after each of $n$ products, and DGEMM-TC rounds only the sum of some dozens of exact products of slices.
# The difference decreases with $n$, because the bound of Algorithm 3 grows with $\sqrt k$ and fewer bits are kept. At
# $n = 10240$ the mean error of DGEMM-TC is 0.06 to 0.7 of the error of DGEMM. Against OpenBLAS, whose panels have
# smaller errors than one chain, 19 of 20 seeds meet the factor of ten for $\varphi = 1$ and 2. SGEMM-TC meets the
# criterion for every order.
#
# CR mode has no line in the figures, because its error is zero at every point.
#
# ## Inputs on which Algorithm 3 is less accurate than DGEMM
#
# Algorithm 3 bounds *row sums* of $|A||B|$. A single large column can satisfy this bound although other entries of the
# same row are inaccurate. In this example one column of $A$ is $2^{40}$ times as large as the others, and only one
# column of $B$ multiplies it:

# %%
large_column, single_column = A.copy(), B.copy()
large_column[:, 0] *= 2.0**40
single_column[0, 1:] = 0
product = fpemu.reference.matmul(large_column, single_column)
results_single = {
    "DGEMM": fpemu.gemm(large_column, single_column, scheme="dgemm"),
    "DP mode": fpemu.gemm(large_column, single_column, scheme="ozaki", hardware="T4"),
    "CR mode": fpemu.gemm(large_column, single_column, scheme="ozaki", hardware="T4", mode="CR"),
}
errors = {
    name: {
        "largest relative error": f"{fpemu.metrics.max_relative(D, product):.1e}",
        "largest error relative to |A||B|": "{:.1e}".format(  # noqa: UP032
            fpemu.metrics.normwise(D, product, large_column, single_column)
        ),
    }
    for name, D in results_single.items()
}
bound = fpemu.schemes.get("ozaki").error_bound(large_column, single_column, "T4")
errors_of_dp = abs(results_single["DP mode"] - product)
relative = bound / (abs(large_column) @ abs(single_column))
pd.DataFrame(errors).transpose()

# %% [markdown]
# DP mode gives no warning, but `error_bound` bounds the omitted products entry by entry, and it is large for exactly
# these entries. The next figure compares DP mode with DGEMM for fifteen families of inputs. "As printed" follows
# Algorithm 3 literally; the default also includes the remainder below slice $d$, and tests $B$ as well as $A$:

# %%
promise = reproduce.committed("dgemm_tc/promise", "full")
promise.figure()

# %%
judged_families = {judgement.claim.name: judgement for judgement in promise.judgements}
accurate = {
    name: {x.variant for x in judged_families[claim].cases if x.verdict == "holds"}
    for name, claim in (("printed", "algorithm3_accuracy"), ("default", "default_accuracy"))
}
print(promise.finding, end="\n\n")
columns = {"as printed": "algorithm3_accuracy", "default": "default_accuracy"}
pd.DataFrame({name: {x.variant: x.verdict for x in judged_families[claim].cases} for name, claim in columns.items()})

# %% [markdown]
# ## CR mode: equal bits on all units
#
# All products are exact and the sum is rounded once, so the result does not depend on the GPU, on the summation order,
# or on the division into blocks.

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
print(f"{len(results)} variants, {exact.size} entries each, one result: {bits64[0, 0]:016X} ...")

# %% [markdown]
# A plain DGEMM does not have this property. The next cell compares one chain of fused multiply-adds with the same
# product in four splits of $k$:

# %%
chain = fpemu.gemm(wide, B, scheme="dgemm")
other = fpemu.gemm(wide, B, scheme="dgemm", order=mma.KOrder(split=64))
order_dependent, misrounded = np.mean(chain != other), np.mean(chain != exact)
print(
    f"{order_dependent:.0%} of the entries depend on the order, {misrounded:.0%} are not the exact product rounded once"
)

# %% [markdown]
# The cost of CR mode is the number of products, which increases with the range of the entries because of the nearly
# empty slices:

# %%
table = {}
for spread in (0, 4, 8, 12):
    X = A * 10.0 ** np.random.default_rng(1).integers(-spread, spread + 1, A.shape)
    table[f"10^±{spread}"] = {mode: ozaki.counts(X, B, hardware="T4", mode=mode).products for mode in ("DP", "CR")}
pd.DataFrame(table)

# %% [markdown]
# ## The range of the inputs
#
# Algorithm 1 computes $\sigma = 2^{\rho+\tau}$ in fp64, with $\rho = 48$ at $n = 10240$. The paper notes that $\tau$ is
# 1024 for the largest fp64 number, but $\sigma$ overflows for smaller numbers already. The package splits by integer
# operations instead.

# %%
ranges = reproduce.committed("dgemm_tc/ranges")
verdict = {judgement.claim.name: judgement.verdict for judgement in ranges.judgements}
print(ranges.finding)
huge = np.full((1, 4), 2.0**1000)

# %% [markdown]
# ## The speed of the published algorithm
#
# The GPUs of the paper are not available. One H200 executed the algorithm as published: fp16 slices by SplitA and
# SplitB, one call of cuBLAS for every product, and sums in fp64 or by NearSum. The results are measurements, and not
# verdicts on a Titan RTX.

# %%
table1 = reproduce.committed("dgemm_tc/table1")
table1.figure()

# %%
fig5a = reproduce.committed("dgemm_tc/fig5a")
fig5a.figure()

# %%
fig4 = reproduce.committed("dgemm_tc/fig4")
judged = {judgement.claim.name: judgement for judgement in fig4.judgements}
fig4.figure()

# %% [markdown]
# On the H200 DP mode reaches at most a sixth of the speed of cublasDgemm, as on the paper's V100: with 45 products or
# more in fp16 it cannot exceed the speed of a fast fp64 unit. At $n = 10240$ CR mode computes all products of 16 to 19
# slices, and NearSum takes nearly as long as the products. Residues modulo small integers instead of slices (`ozaki2`)
# give the same correctly rounded bits in less than a twentieth of the time at $n = 10240$, and in about a tenth at $n =
# 1024$. The sizes 5120 and 7168 come from an earlier run of the benchmark with longer pauses between the calls on the
# GPU, which may explain the smaller values there.
#
# ## Conclusions
#
# * The bits per slice of Algorithm 1 are exact on every fp16 unit with fp32 results, although no unit adds in IEEE
#   fp32. For other words the condition must be derived from the specification of the unit.
# * The number of products explains the speed: the published 66 products at $n = 7168$ are reproduced exactly, and they
#   imply 0.98 TFLOP/s.
# * DGEMM-TC is more accurate than "equivalent" at most sizes, and equivalent to the order of cuBLAS at all of them.
#   This is no guarantee: Algorithm 3 bounds sums over rows, and families of inputs have much larger errors.
# * CR mode is correctly rounded for every tested input, on every unit and in every order.
# * Algorithm 1 as printed overflows for inputs above $2^{975}$ at $n = 10240$.
# * Correct rounding does not require hundreds of products: residues give the same bits.
#
# ## Further reading
#
# * [arithmetic](arithmetic.ipynb): the reason for $T = \min(F+1, P)$ in pictures of bits; [tour](tour.ipynb): the other
#   schemes.
# * `fpemu list schemes ozaki`: the options of the scheme (words, splits, bits, blocks over $k$).
# * `reproduce.committed("dgemm_tc/exactness", "full")`: a test of the condition on every instruction.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# The slices of a row
assert bits == 8
assert slices.complete
assert slices.largest <= 2**bits
for k, x in enumerate(A[0]):
    assert math.fsum(math.ldexp(integers[0, k], exponents.item()) for integers, exponents in slices.items) == x

# The number of exact bits
published = [exactness.published_bits(k) for k in lengths]
for gpu in GPUS:
    derived = [exactness.slice_bits(units[f"{gpu} fp16"], k) for k in lengths]
    assert derived[1:] == published[1:]
    assert (derived[0], published[0]) == (11, 12)
assert full[0].result == 2.0**8
assert full[1].result == 2.0**8
assert not certified.report.exact

# The number of slices in DP mode
assert verdict_5b["dp_products"] == verdict_5b["wider_more_slices"] == "holds"
assert [case.verdict for case in expected.cases] == ["holds", "does not hold", "does not hold"]
assert all(0.85 < case.median < 0.91 for case in expected.cases[1:])

# The error of DGEMM-TC and of DGEMM: figures 3 and 8
judged_errors = {judgement.claim.name: judgement for figure in (fig3, fig8) for judgement in figure.judgements}
openblas = judged_errors["dp_openblas"].cases
ratios = [
    case.median for name in ("dp_equivalent", "dp_openblas", "sp_equivalent") for case in judged_errors[name].cases
]
assert judged_errors["cr_zero_dp"].verdict == judged_errors["cr_zero_sp"].verdict == "holds"
assert judged_errors["sp_equivalent"].verdict == "holds"
assert judged_errors["dp_equivalent"].verdict == "holds"
assert [case.met(judged_errors["dp_openblas"].claim) for case in openblas] == [20, 19, 19]
assert max(ratios) < 2

# Inputs on which Algorithm 3 is less accurate than DGEMM
assert (errors_of_dp <= bound).all()
assert relative[:, 1:].max() > 1000 * relative[:, 0].max()
assert (results_single["CR mode"] == product).all()
assert judged_families["cr_all_families"].verdict == judged_families["reproducible"].verdict == "holds"
assert accurate["printed"] < accurate["default"]
assert judged_families["algorithm3_accuracy"].verdict == "holds under a stated condition"

# CR mode: equal bits on all units
assert all((D.view(np.uint64) == bits64).all() for D in results.values())
assert min(order_dependent, misrounded) > 0.5
assert all(row["CR"] > row["DP"] for row in table.values())

# The range of the inputs
assert verdict["splits_large_exponents"] == "does not hold"
assert verdict["splits_small_exponents"] == "holds"
assert (fpemu.gemm(huge, np.eye(4), scheme="ozaki", hardware="T4", mode="CR") == 2.0**1000).all()

# The speed of the published algorithm
assert judged["residues_equal"].verdict == judged["residues_faster"].verdict == "holds"
assert all(x.median < 1 for x in judged["dp_beats_dgemm"].cases)
