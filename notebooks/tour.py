# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # fpemu in five minutes
#
# The matrix units of GPUs multiply fp16 numbers and add the products in fp32, and the result depends on the
# architecture. fpemu computes the result of each unit bit for bit, without a GPU. It also implements the published
# schemes that compute fp32 and fp64 products from fp16 words. This notebook follows one product, from the bits of one
# number through an instruction and a GEMM to the verdicts on published claims.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import mma, plotting, reproduce, sweep
from fpemu.plotting import bits
from fpemu.reproduce import ledger
from fpemu.reproduce.claims import VERDICTS, number_of

# %% [markdown]
# ## The split of one number
#
# An fp32 number has 24 bits, and an fp16 number has 11. The scheme of Ootomo and Yokota represents $x$ by two fp16
# words, $h = \mathrm{fp16}(x)$ and the scaled residual $r = \mathrm{fp16}((x - h)\cdot 2^{11})$, so that $x \approx h +
# r\,2^{-11}$. The table shows the bits of $\pi$ in both words.

# %%
print(fpemu.schemes.format_split(np.pi, "ootomo"))

# %% [markdown]
# Two words of 11 bits and the sign of the residual hold 23 bits; the last bit of $\pi$ in fp32 is lost. Without the
# scale (Markidis et al.) a small number loses more bits, because its residual is below the range of normal fp16
# numbers:

# %%
splits = {name: fpemu.schemes.split_table(np.pi * 2.0**-9, name) for name in ("markidis", "ootomo")}
rows = {name: (split.bits_kept, f"{split.relative_error:.1e}") for name, split in splits.items()}
pd.DataFrame(rows, index=["bits kept of π/512", "relative error"])

# %% [markdown]
# ## One instruction on four GPUs
#
# The picture shows the sum $2^{23} - 2^{23} - \tfrac12 - \tfrac14 - \tfrac18$ on four GPUs. Each row is a term, and
# each column is a binary place. The alignment to the largest exponent truncates the vermilion bits. The notebook
# [arithmetic](arithmetic.ipynb) explains every step.

# %%
a, b, c = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23
pictures = [bits.blocks(a, b, c, spec=mma.spec(gpu))[0] for gpu in ("V100", "A100", "H200", "MI100")]
bits.draw(pictures)

# %% [markdown]
# ## A GEMM by several schemes
#
# `fpemu.gemm` runs a scheme with the arithmetic of a GPU, and `fpemu.reference.matmul` returns the exact product,
# rounded once to fp64. The table shows the relative error $\|D-AB\|_F/\|AB\|_F$ for operands uniform in $[-1, 1]$ and
# $K = 1024$:

# %%
A, B = fpemu.inputs.operands("uniform", 96, 96, 1024, seed=0)
exact = fpemu.reference.matmul(A, B)
gpus, schemes = ("V100", "A100", "H200", "MI210"), ("fp16", "markidis", "ootomo", "staged")
errors = {
    scheme: {gpu: fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme=scheme, hardware=gpu), exact) for gpu in gpus}
    for scheme in schemes
}
error_of_sgemm = fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="sgemm"), exact)
errors["sgemm"] = dict.fromkeys(gpus, error_of_sgemm)
pd.DataFrame(errors).map("{:.1e}".format)

# %% [markdown]
# In Markidis' scheme the four products share one chain over $K$. The truncation of the tensor core makes this chain
# less accurate than SGEMM; on a unit that rounds to nearest the same scheme is more accurate than SGEMM. Ootomo's
# scheme adds outside the tensor core after every instruction and is more accurate than SGEMM on the NVIDIA GPUs. Staged
# accumulation, a scheme of this project, adds outside the tensor core after every 64 products. The error depends on the
# hardware: the MI210 replaces subnormal fp16 operands by zero, so many unscaled residuals are zero there.
#
# ## The summation order
#
# The same product is evaluated in three other orders over $K$ on one GPU. The table counts the entries that differ from
# one chain over $K$:

# %%
a16, b16 = A.astype(np.float16), B.astype(np.float16)
hopper = mma.spec("H200", "fp16")
orders = {
    "promoted every 64": mma.KOrder(promote=64),
    "4 splits": mma.KOrder(split=256),
    "4 splits, joined pairwise": mma.KOrder(split=256, join="pairwise"),
}
chain = mma.gemm(a16, b16, None, hopper)
differing = {name: int((mma.gemm(a16, b16, None, hopper, order) != chain).sum()) for name, order in orders.items()}
pd.Series(differing, name=f"of {chain.size}").to_frame()

# %% [markdown]
# ## Correct rounding with a certificate
#
# The Ozaki scheme splits fp64 matrices into slices whose products are *exact* on the tensor core. In CR mode (correctly
# rounded) the exact product is rounded once, so every GPU returns the same bits. `fpemu.certify` returns the result
# with the conditions that it checked. The notebook [dgemm_tc](dgemm_tc.ipynb) explains the scheme.

# %%
narrow = B[:, :48]
wide = A[:48].astype(np.float64) * 10.0 ** np.random.default_rng(1).integers(-8, 8, (48, 1024))
results = {gpu: fpemu.certify(wide, narrow, scheme="ozaki", mode="CR", hardware=gpu) for gpu in ("T4", "H200", "MI210")}
report = results["T4"].report
print(f"{report.hardware}: {report.bits} bits per slice, {report.slices} slices, {report.products} products")
print(f"largest sum {report.sum_bound}, largest exact sum {report.sum_limit}")

# %% [markdown]
# ## A sweep and a map
#
# H2SGEMM scales its residual by $2^{sb}$. The best $sb$ depends on the range $[-2^e, 2^e]$ of the operands.
# `sweep.Grid` describes the cases: each list or range is an axis. Finished cases are stored, so a second run evaluates
# only the missing cases.

# %%
machines = {"ampere": "A100", "ascend910a": "Ascend 910A (assumed)"}
grid = sweep.Grid(
    inputs=[{"name": "offset_symmetric", "exponent": "-20:0:2"}],
    schemes=[{"name": "h2sgemm", "sb": "0:16:2"}, "sgemm"],
    hardware=list(machines),
    M=32,
    N=32,
    K=256,
    on_range="propagate",
)
with sweep.Store() as store:
    frame = sweep.frame(sweep.run(grid, results=store))
means = frame.groupby(["scheme", "hardware", "scheme.sb", "inputs.exponent"], dropna=False)["relative_l2"].mean()
sgemm = frame[frame["scheme"] == "sgemm"]["relative_l2"].mean()
with plotting.style():
    figure, axes = plotting.figure(2, height=2.7, width=plotting.DOUBLE)
    for hardware, axis in zip(machines, axes[0], strict=True):
        table = means["h2sgemm", hardware].unstack("inputs.exponent")
        drawn = plotting.heatmap(axis, list(table.columns), list(table.index), table.to_numpy(), low=8e-8, high=1e-2)
        axis.set_xlabel("exponent $e$ of the operands")
    axes[0, 0].set_ylabel("$sb$")
    plotting.colour_bar(figure, drawn, axes, "relative $L_2$ error")
    plotting.panel_titles(axes, list(machines.values()))
display(figure)
print(f"SGEMM: {sgemm:.1e}")

# %% [markdown]
# Each increase of $sb$ by 2 moves the boundary of the accurate region two binary exponents down, until $h$ itself
# becomes subnormal; the published value $sb = 12$ reaches this limit. The smallest error depends on the hardware: on a
# unit that rounds to nearest it is well below the error of SGEMM, and on the A100, which truncates, it is one to two
# times the error of SGEMM.
#
# ## A figure of a paper and its verdicts
#
# The figures of the papers are committed with their data. `reproduce.committed` draws a figure from these data, and
# `reproduce.reproduce` evaluates the data again. This is figure 8 of the H2SGEMM paper.

# %%
reproduce.committed("h2sgemm/fig8", "full").figure()

# %% [markdown]
# The verdict on each published claim follows from the data by a criterion that was fixed before the measurement; the
# paper's `paper.toml` states it. A verdict requires 20 seeds at the paper's sizes, so it uses the data of full size:

# %%
full = reproduce.committed("h2sgemm/fig8", "full")
judgements = [one for one in full.judgements if one.claim.kind == "numerics"]
table = pd.DataFrame([(one.claim.claim, number_of(one), one.verdict) for one in judgements])
table.columns = ["claim", "measured", "verdict"]
with pd.option_context("display.max_colwidth", None):
    display(table)

# %% [markdown]
# ## The same figure with other parameters
#
# The parameters of a figure have the published values as defaults, and `reproduce` replaces them: here the matrix unit
# of an H200, smaller sizes and two seeds. Term-wise H2SGEMM is less accurate than SGEMM there. The heading names each
# change, and the claims, which are about the published values, are not judged.


# %%
def redrawn(hardware="H200", seeds=2, k=256):
    exponents = range(-20, 1, 4)
    return reproduce.reproduce(
        "h2sgemm/fig8", hardware=hardware, seeds=seeds, m=16, n=16, k=k, exponents=exponents
    ).figure()


display(redrawn())

# %% [markdown]
# With ipywidgets, the next cell shows sliders; set `SLIDERS = True` and execute it.

# %%
SLIDERS = False
if SLIDERS:
    import ipywidgets

    ipywidgets.interact(redrawn, hardware=["910A", "V100", "A100", "H200", "MI210"], seeds=(1, 20), k=[256, 1024, 4096])

# %% [markdown]
# ## The verdicts on all papers
#
# `fpemu ledger` collects the verdicts of all figures in `figures/LEDGER.md`. The speed of another GPU cannot be tested;
# every other claim is judged:

# %%
book = ledger.collect()
papers = [paper for paper in book.papers if paper.headlines]
names = ("GREEN", "SKY", "BLUE", "ORANGE", "VERMILION", "YELLOW", "GREY")
shades = [getattr(plotting, name) for name in names]
with plotting.style():
    figure, axes = plotting.figure(1, height=2.4, width=plotting.DOUBLE)
    left = np.zeros(len(papers))
    for verdict, shade in zip(VERDICTS, shades, strict=True):
        counts = np.array([book.counts(paper)[verdict] for paper in papers])
        bars = axes[0, 0].barh(range(len(papers)), counts, left=left, color=shade, label=verdict)
        axes[0, 0].bar_label(bars, [str(n) if n else "" for n in counts], label_type="center", fontsize=7)
        left += counts
    axes[0, 0].set_yticks(range(len(papers)), [paper.title for paper in papers])
    axes[0, 0].set_ylim(len(papers) - 0.4, -0.6)
    axes[0, 0].set_xlabel("claims")
    axes[0, 0].grid(False)
    plotting.legend_below(figure, axes[0, 0], 3)
display(figure)

# %% [markdown]
# ## Conclusions
#
# * The split determines which bits of an operand reach the matrix unit.
# * The truncation of the unit and the order over $K$ determine the error of the sum: H2SGEMM is less accurate than
#   SGEMM on the A100 and more accurate on the Ascend 910A, whose arithmetic is assumed.
# * Error-free schemes return the same bits on every GPU, and a certificate states the checked conditions.
# * A published claim can be judged if it has a number, a criterion, seeds and conditions.
#
# ## Further reading
#
# * [arithmetic](arithmetic.ipynb): the addition of a tensor core in pictures of its bits.
# * [dgemm_tc](dgemm_tc.ipynb): exact fp64 products from fp16 units, and the inputs on which DP mode is less accurate
#   than DGEMM.
# * [legemm](legemm.ipynb), [h2sgemm](h2sgemm.ipynb), [magma](magma.ipynb) and [tsm2](tsm2.ipynb): the claims of the
#   other papers.
# * [README](../README.md): the command line with `fpemu gemm`, `fpemu sweep` and `fpemu reproduce`.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# The split of one number
assert [split.bits_kept for split in splits.values()] == [18, 23]
assert fpemu.schemes.split_table(np.pi, "markidis").bits_kept == 23

# One instruction on four GPUs
assert [picture.result for picture in pictures] == [0.0, -0.5, -0.75, -0.875]

# A GEMM by several schemes
ideal = fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="markidis", hardware="ideal"), exact)
for gpu in ("V100", "A100", "H200"):
    assert errors["markidis"][gpu] > error_of_sgemm > errors["ootomo"][gpu]
    assert errors["fp16"][gpu] > 100 * errors["markidis"][gpu]
assert ideal < error_of_sgemm
assert errors["markidis"]["MI210"] > 10 * max(errors["markidis"][gpu] for gpu in ("V100", "A100", "H200"))

# The summation order
assert min(differing.values()) > chain.size / 2

# Correct rounding with a certificate
for certified in results.values():
    assert certified.report.ok
    assert certified.report.complete
    assert certified.report.exact
    assert np.array_equal(certified.D, fpemu.reference.matmul(wide, narrow))

# A sweep and a map
for hardware in machines:
    assert 0.8 < means["h2sgemm", hardware, 0, -8] / means["h2sgemm", hardware, 2, -10] < 1.25
    assert means["h2sgemm", hardware, 0, -14] > 100 * means["h2sgemm", hardware, 12, -14]
    assert means["h2sgemm", hardware, 16, -20] > 100 * sgemm
for sb in (4, 8, 12, 16):
    assert sgemm < means["h2sgemm", "ampere", sb, 0] < 2 * sgemm
    assert means["h2sgemm", "ascend910a", sb, 0] < sgemm / 2

# A figure of a paper and its verdicts
assert len(table) > 0
assert set(table["verdict"]) <= set(VERDICTS)

# The verdicts on all papers
assert left.min() > 0
