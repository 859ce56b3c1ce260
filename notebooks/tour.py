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
# Matrix units of GPUs multiply fp16 numbers and add them in fp32, each in its own way. fpemu computes what they return,
# bit for bit, without a GPU, and on top of that the published schemes that make an fp32 or fp64 product out of fp16
# words. This notebook goes from the bits of one number to the verdicts on published claims.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 110, "bbox_inches": None}
import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import bitpicture, mma, plotting, reproduce, sweep
from fpemu.reproduce import ledger
from fpemu.reproduce.verdicts import VERDICTS, number_of

# %% [markdown]
# ## One number, split
#
# An fp32 number has 24 bits, fp16 has 11. Ootomo and Yokota keep $h = \mathrm{fp16}(x)$ and the scaled residual
# $r = \mathrm{fp16}((x - h)\cdot 2^{11})$, so that $x \approx h + r\,2^{-11}$. Where do the bits of $\pi$ go?

# %%
print(fpemu.schemes.format_split(np.pi, "ootomo"))

# %% [markdown]
# Two parts of 11 bits and the sign of the residual make 23; the last bit of $\pi$ in fp32 is lost. Without the scaling
# (Markidis et al.) a small number loses far more, because its residual falls below fp16's range:

# %%
splits = {name: fpemu.schemes.split_table(np.pi * 2.0**-9, name) for name in ("markidis", "ootomo")}
assert [split.bits_kept for split in splits.values()] == [18, 23]
assert fpemu.schemes.split_table(np.pi, "markidis").bits_kept == 23
rows = {name: (split.bits_kept, f"{split.relative_error:.1e}") for name, split in splits.items()}
pd.DataFrame(rows, index=["bits kept of π/512", "relative error"])

# %% [markdown]
# ## One instruction, four GPUs
#
# $2^{23} - 2^{23} - \tfrac12 - \tfrac14 - \tfrac18$: which bits survive the alignment to the largest exponent? A row is
# a term, a column a binary place; vermilion is cut. [arithmetic](arithmetic.ipynb) explains every step.

# %%
a, b, c = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23
pictures = [bitpicture.blocks(a, b, c, spec=mma.spec(gpu))[0] for gpu in ("V100", "A100", "H200", "MI100")]
assert [picture.result for picture in pictures] == [0.0, -0.5, -0.75, -0.875]
bitpicture.draw(pictures)

# %% [markdown]
# ## A GEMM by several schemes
#
# `fpemu.gemm` runs a scheme on a GPU's arithmetic; `fpemu.reference.matmul` gives the exact product, rounded once to
# fp64. The relative error $\|D-AB\|_F/\|AB\|_F$, for uniform operands and $K = 1024$:

# %%
A, B = fpemu.inputs.operands("uniform", 96, 96, 1024, seed=0)
exact = fpemu.reference.matmul(A, B)
gpus, schemes = ("V100", "A100", "H200", "MI210"), ("fp16", "markidis", "ootomo", "staged")
errors = {
    scheme: {gpu: fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme=scheme, hardware=gpu), exact) for gpu in gpus}
    for scheme in schemes
}
sgemm = fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="sgemm"), exact)
errors["sgemm"] = dict.fromkeys(gpus, sgemm)
pd.DataFrame(errors).map("{:.1e}".format)

# %%
for gpu in ("V100", "A100", "H200"):
    assert errors["markidis"][gpu] > sgemm > errors["ootomo"][gpu]
    assert errors["fp16"][gpu] > 100 * errors["markidis"][gpu]
ideal = fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="markidis", hardware="ideal"), exact)
assert ideal < sgemm
assert errors["markidis"]["MI210"] > 10 * max(errors["markidis"][gpu] for gpu in ("V100", "A100", "H200"))

# %% [markdown]
# Markidis' four products share one chain, and the tensor core's truncation makes that chain worse than SGEMM (on a unit
# that rounds to nearest it would be better); Ootomo adds outside the tensor core after every instruction, and is better
# than SGEMM; staged accumulation, a scheme of this project, adds outside after every 64 products. The bits of the
# hardware decide much: the same scheme differs by GPU, and on an MI210, which flushes fp16 subnormals, an unscaled
# residual is often simply zero.
#
# ## The order counts
#
# The same product in three other orders over $K$, on one GPU: how many entries differ from those of the plain chain?

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
assert min(differing.values()) > chain.size / 2
pd.Series(differing, name=f"of {chain.size}").to_frame()

# %% [markdown]
# ## Correctly rounded, with a certificate
#
# The Ozaki scheme cuts fp64 matrices into slices whose products are *exact* on the tensor core. In CR mode one rounding
# of the exact product is left, so that every GPU gives the same bits. `fpemu.certify` says what was checked;
# [dgemm_tc](dgemm_tc.ipynb) shows how it works.

# %%
narrow = B[:, :48]
wide = A[:48].astype(np.float64) * 10.0 ** np.random.default_rng(1).integers(-8, 8, (48, 1024))
found = {gpu: fpemu.certify(wide, narrow, scheme="ozaki", mode="CR", hardware=gpu) for gpu in ("T4", "H200", "MI210")}
for certified in found.values():
    assert certified.report.ok
    assert certified.report.complete
    assert certified.report.exact
    assert np.array_equal(certified.D, fpemu.reference.matmul(wide, narrow))
report = found["T4"].report
print(f"{report.hardware}: {report.bits} bits a slice, {report.slices} slices, {report.products} products")
print(f"largest sum {report.sum_bound} of {report.sum_limit} that stay exact")

# %% [markdown]
# ## A sweep, and a map
#
# H2SGEMM scales its residual by $2^{sb}$. Which $sb$ is good for operands in $[-2^e, 2^e]$? `sweep.Grid` says what
# varies: every list or range is an axis. Finished cells are kept, so that a second run computes only what is new.

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
with sweep.Store() as results:
    frame = sweep.frame(sweep.run(grid, results=results))
means = frame.groupby(["scheme", "hardware", "scheme.sb", "inputs.exponent"], dropna=False)["relative_l2"].mean()
sgemm = frame[frame["scheme"] == "sgemm"]["relative_l2"].mean()
with plotting.style():
    figure, axes = plotting.figure(2, height=2.7)
    for hardware, axis in zip(machines, axes[0], strict=True):
        table = means["h2sgemm", hardware].unstack("inputs.exponent")
        drawn = plotting.heatmap(axis, list(table.columns), list(table.index), table.to_numpy(), low=8e-8, high=1e-2)
        axis.set_xlabel("exponent $e$ of the operands")
    axes[0, 0].set_ylabel("$sb$")
    plotting.colour_bar(figure, drawn, axes, "relative $L_2$ error")
    plotting.panel_titles(axes, list(machines.values()))
display(figure)
print(f"SGEMM: {sgemm:.1e}")

# %%
for hardware in machines:
    assert 0.8 < means["h2sgemm", hardware, 0, -8] / means["h2sgemm", hardware, 2, -10] < 1.25
    assert means["h2sgemm", hardware, 0, -14] > 100 * means["h2sgemm", hardware, 12, -14]
    assert means["h2sgemm", hardware, 16, -20] > 100 * sgemm
for sb in (4, 8, 12, 16):
    assert sgemm < means["h2sgemm", "ampere", sb, 0] < 2 * sgemm
    assert means["h2sgemm", "ascend910a", sb, 0] < sgemm / 2

# %% [markdown]
# Each step of 2 in $sb$ moves the edge of the good region by two binary exponents, until $h$ itself becomes
# subnormal: the published $sb = 12$ is a good choice. The plateau is the hardware's: a unit that rounds to nearest gets
# well below SGEMM, and the A100, which truncates, stays above SGEMM's error, by less than a factor of 2, whatever $sb$.
#
# ## A figure of a paper, and the verdicts
#
# The papers' figures are committed with their data. `reproduce.committed` draws one again from them, and
# `reproduce.reproduce` computes it anew. This is figure 8 of the H2SGEMM paper.

# %%
reproduce.committed("h2sgemm/fig8", "full").figure()

# %% [markdown]
# The verdict on each published claim follows from the data, by a criterion that was fixed before the measurement and
# stands in the paper's `paper.toml`. A verdict needs 20 seeds at the paper's sizes, so the data are those of full size:

# %%
full = reproduce.committed("h2sgemm/fig8", "full")
judgements = [one for one in full.judgements if one.claim.kind == "numerics"]
table = pd.DataFrame([(one.claim.claim, number_of(one), one.verdict) for one in judgements])
table.columns = ["claim", "here", "verdict"]
assert len(table) > 0
assert set(table["verdict"]) <= set(VERDICTS)
with pd.option_context("display.max_colwidth", None):
    display(table)

# %% [markdown]
# ## All papers at a glance
#
# `fpemu ledger` collects the verdicts of all figures in `figures/LEDGER.md`. Speeds of the papers' GPUs are not
# testable on another GPU; every other claim is judged:

# %%
book = ledger.collect()
papers = [paper for paper in book.papers if paper.headlines]
shades = (plotting.GREEN, plotting.SKY, plotting.ORANGE, plotting.VERMILION, plotting.YELLOW, plotting.GREY)
with plotting.style():
    figure, axes = plotting.figure(1, height=2.4)
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
assert left.min() > 0
display(figure)

# %% [markdown]
# What this tour showed: the split decides which bits reach the matrix unit, the unit's truncation and the order over
# $K$ decide the error of the sum, and a published claim is a number with a criterion, seeds and conditions.
#
# ## Where to go next
#
# * [arithmetic](arithmetic.ipynb): how a tensor core adds, on pictures of its bits.
# * [dgemm_tc](dgemm_tc.ipynb): fp64 products, exactly, from fp16 units; where DP mode keeps its promise.
# * One notebook a paper beside them, and the [README](../README.md) for the command line: `fpemu gemm`, `fpemu sweep`,
#   `fpemu reproduce`.
