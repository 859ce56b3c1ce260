# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Performance models and error bounds, before a kernel is written
#
# Three fp16 products emulate one fp32 product. Before a kernel is written, models answer four questions: the remaining
# speed advantage of the matrix unit, the smallest size with an advantage, the best tile, and the accuracy at that
# speed. The inputs are data sheets of GPUs, the operation counts of a scheme, and a-priori error bounds; the emulator
# checks the results. All speeds are model values, except those that are called *measured*.
#
# The argument of this notebook: ratios of rooflines predict measured gains, but a model that reproduces published
# parameters is not thereby confirmed; of two schemes with one roofline, the error bound selects the better one.
#
# ## The limits by the peak rates
#
# ### The data of a GPU
#
# `fpemu/roofline/gpus.toml` describes GPUs by numbers with their sources; a user's file has the same format. Two
# derived numbers determine the gain of an emulation. The *lead* is the peak rate of the matrix unit divided by the best
# native fp32 rate. The *ridge* is the number of operations per byte from which on the matrix unit, and not the memory,
# limits a kernel.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 100, "bbox_inches": None}
import textwrap
from dataclasses import replace

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import mma, plotting, reproduce, roofline, theory
from fpemu.plotting import Series
from fpemu.reproduce import pages
from fpemu.roofline import gpus

h2sgemm, legemm, magma, tsm2 = (pages.model(paper) for paper in ("h2sgemm", "legemm", "magma", "tsm2"))
GPUS = ("V100", "A100", "H200", "B200", "MI210", "Ascend 910A")
table = {}
for name in GPUS:
    peak, bandwidth = gpus.get(name).peak, gpus.get(name).bandwidth
    native = max(peak.get("fp32", 0), peak.get("fp32 matrix", 0))
    table[name] = {
        "fp32, TFLOP/s": native / 1e12,
        "fp16 matrix unit": peak["fp16 matrix"] / 1e12,
        "memory, TB/s": bandwidth / 1e12,
        "lead": peak["fp16 matrix"] / native,
        "lead / 3": peak["fp16 matrix"] / native / 3,
        "ridge, operations per byte": peak["fp16 matrix"] / bandwidth,
    }
machines = pd.DataFrame(table).transpose()
machines.round(2)

# %% [markdown]
# Three products can be faster than native fp32 on all six GPUs. The MI210 also has a matrix unit for fp32, and a third
# of its fp16 peak is only a third higher than the fp32 peak. The Ascend has no fp32 unit except its vector cores.
#
# ### The roofline of one product
#
# The time of a kernel is at least the largest of three times: its products at the peak of the matrix unit, its vector
# operations at the peak of the ordinary cores, and its bytes at the memory bandwidth. Kernels run one after another.
# The split into words can be a separate kernel, or it can be fused into the product, which then splits each tile again
# wherever the tile is used. A scheme with three calls of a library (APE) also reads and writes C three times.

# %%
VARIANTS = {
    "SGEMM": ("sgemm", "kernel", Series("SGEMM", plotting.BLACK, "s", "--", filled=False)),
    "fused": ("h2sgemm", "fused", Series("three products, split fused", plotting.SKY, "D")),
    "kernel": ("h2sgemm", "kernel", Series("three products, split first", plotting.BLUE, "o")),
    "calls": ("ape", "kernel", Series("three calls, split first", plotting.PURPLE, "v", ":")),
}
sizes = [2**i for i in range(6, 15)]
estimates = {}
with plotting.style():
    figure, axes = plotting.figure(3, 2, height=4.2, width=plotting.DOUBLE)
    for axis, gpu in zip(axes.ravel(), GPUS, strict=True):
        for name, (scheme, split, look) in VARIANTS.items():
            for n in sizes:
                estimates[gpu, name, n] = roofline.time(roofline.work(scheme, gpu, n, n, n, split=split), gpu)
            axis.plot(sizes, [estimates[gpu, name, n].flops / 1e12 for n in sizes], **look.line(markersize=3))
        axis.set_yscale("log")
        axis.set_xscale("log", base=2)
    for axis in axes[1]:
        axis.set_xlabel("$n$")
    for axis in axes[:, 0]:
        axis.set_ylabel("bound on effective FP32\nthroughput, TFLOP/s")
    plotting.panel_titles(axes, GPUS)
    plotting.legend_below(figure, axes[0, 0], 4)
display(figure)

# %% [markdown]
# For large $n$ the curves approach the peaks, except for the fused split in (f). The roofline adds the sizes at which
# the curves cross. Suppose that SGEMM reaches a certain share of its roofline. The column `worst kernel` is the
# fraction of this share that a three-product kernel must reach to be as fast as SGEMM.

# %%
even = {}
for gpu in GPUS:
    ways = {split: roofline.break_even("h2sgemm", gpu, split=split) for split in ("fused", "kernel")}
    ways["calls"] = roofline.break_even("ape", gpu)
    even[gpu] = {f"n from, {name}": way.n for name, way in ways.items()}
    even[gpu] |= {"gain": f"{ways['kernel'].ratio:.2f}", "gain, fused": f"{ways['fused'].ratio:.2f}"}
    even[gpu]["worst kernel"] = f"{100 / ways['kernel'].ratio:.0f} %"
even = pd.DataFrame(even).transpose()
display(even)

# %% [markdown]
# On an H200 the emulation can be faster from $n = 128$ on if the split is fused, and from $n = 256$ on if the split is
# a separate kernel. On the MI210 the separate kernel requires $n = 960$: the gain is only a third, so an additional
# pass over the memory is expensive, and a kernel with less than three quarters of SGEMM's efficiency is slower at every
# $n$. On the **Ascend the fused split is the wrong choice**: its vector cores split every element once for each tile
# and become the bottleneck. H2SGEMM fuses its split in a similar way, which the section on H2SGEMM analyses.
#
# ### Memory-bound and compute-bound kernels
#
# Two fp16 words have the size of one fp32 number. The product therefore reads 8 bytes and writes 4 bytes for each of
# $n^2$ entries and performs $6n^3$ operations, which is $n/2$ operations per byte. It crosses the ridge $P/\beta$ (peak
# rate over bandwidth) at $n = 2P/\beta$, which is 412 on an H200. A separate call that adds to C performs $2n^3$
# operations for $12 n^2$ bytes and crosses the ridge at three times this size. The split has no products, so the memory
# always limits it.

# %%
H200 = gpus.get("H200")
ridge = H200.need("fp16 matrix") / H200.need("bandwidth")
rows, limits = {}, []
for name in ("kernel", "calls"):
    for n in (256, 512, 1024, 2048, 4096):
        scheme, split, _ = VARIANTS[name]
        for span in roofline.time(roofline.work(scheme, H200, n, n, n, split=split), H200).spans:
            rows.setdefault((VARIANTS[name][2].label, span.name), {})[n] = f"{span.bound}, {span.seconds * 1e6:.3g} µs"
            crossing = 2 * ridge * (3 if span.name in ("product rh", "product hr") else 2 if "hh" in span.name else 1)
            limits.append((span.bound, "memory" if span.name == "split" or n < crossing else "matrix"))
pd.DataFrame(rows).transpose()

# %%
with plotting.style():
    figure, axes = plotting.figure(2, height=2.9, share_y=False, width=plotting.DOUBLE)
    left, right = axes[0]
    x = np.geomspace(10, 3e4, 200)
    left.plot(x, np.minimum(H200.need("fp16 matrix"), x * H200.bandwidth) / 1e12, color=plotting.BLACK)
    left.axvline(ridge, color=plotting.GREY, linestyle=":", linewidth=0.9)
    left.annotate(f"ridge, {ridge:.0f}", (ridge, 60), xytext=(4, 0), textcoords="offset points", fontsize=7)
    for n, marker in ((256, "o"), (1024, "s"), (4096, "^")):
        for name, color in (("kernel", plotting.BLUE), ("calls", plotting.PURPLE)):
            scheme, split, _ = VARIANTS[name]
            job = roofline.work(scheme, H200, n, n, n, split=split)
            last, span = job.phases[-1], roofline.time(job, H200).spans[-1]
            operations = sum(last.products.values())
            at = operations / (last.read + last.written), operations / span.seconds / 1e12
            left.plot(*at, marker, color=color, markersize=6)
            place, side = {"kernel": ((-3, 5), "right"), "calls": ((5, -9), "left")}[name]
            left.annotate(f"{n}", at, xytext=place, textcoords="offset points", fontsize=7, color=color, ha=side)
    left.set(
        xscale="log",
        yscale="log",
        ylim=(40, 1800),
        xlabel="arithmetic intensity (operations per byte)",
        ylabel="fp16 throughput, TFLOP/s",
    )
    for name in ("fused", "kernel", "calls"):
        look = VARIANTS[name][2]
        right.plot(sizes, [100 * estimates["H200", name, n].share for n in sizes], **look.line())
    right.set(xscale="log", xlabel="$n$", ylabel="matrix unit busy, % of the time", ylim=(0, 105))
    right.set_xscale("log", base=2)
    plotting.panel_titles(axes, ["products on the roofline, H200", "use of the matrix unit"])
    plotting.legend_below(figure, right, 3)
display(figure)

# %% [markdown]
# At $n = 1024$ the product alone is compute-bound, but the matrix unit is idle for a third of the time, during the
# split.
#
# ### Measured speeds and their bounds
#
# The figure shows speeds that were measured on an H200 (CUDA 13.0: cuBLAS, and a kernel of this project that promotes),
# as shares of the bound for the same work. No share may exceed 1.

# %%
page, shares = pages.load("models/yardsticks").module, []
for known in page.KNOWN:
    if known.gpu == "H200":
        sides = (known.sides,) * 3 if isinstance(known.sides, int) else known.sides
        job = roofline.work(known.scheme, known.gpu, *sides, split=known.split)
        speed = known.speed * (job.nominal / job.bytes if known.unit == "bytes" else 1)
        estimate = roofline.time(job, known.gpu)
        shares.append((known.label, known.unit, estimate.bound, speed / 1e12, speed / estimate.flops))
shares = pd.DataFrame(shares, columns=["what", "unit", "bound by", "TFLOP/s", "share"])
with plotting.style():
    figure, axes = plotting.figure(1, height=3.6, width=plotting.DOUBLE)
    for index, row in shares.iterrows():
        color = plotting.VERMILION if row["bound by"] == "memory" else plotting.BLUE
        axes[0, 0].plot([0, row["share"]], [index, index], "-", color=color, linewidth=0.8)
        axes[0, 0].plot(row["share"], index, "o", color=color)
        axes[0, 0].annotate(
            f"{row['TFLOP/s']:.3g}",
            (row["share"], index),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    names = shares["what"].str.replace("bytes, ", "").str.replace("staged kernel", "staged kernel (this project)")
    axes[0, 0].set_yticks(range(len(shares)), names, fontsize=7)
    axes[0, 0].set(ylim=(len(shares) - 0.4, -0.6), xlim=(0, 1.05), xlabel="share of the roofline (with TFLOP/s)")
    axes[0, 0].plot([], [], "o-", color=plotting.BLUE, label="bound by the matrix unit or the cores")
    axes[0, 0].plot([], [], "o-", color=plotting.VERMILION, label="bound by memory")
    plotting.legend_below(figure, axes[0, 0], 2)
display(figure)

# %%
large, thin = shares[shares["bound by"] == "matrix"], shares[(shares["bound by"] == "memory")]
sgemm = thin[thin["what"].str.startswith("SGEMM, bytes, 20480")]["share"]
gain_at_8192 = estimates["H200", "fused", 8192].flops / estimates["H200", "SGEMM", 8192].flops
library = shares.set_index("what")["TFLOP/s"]
gains = [
    library[f"{name}, n = 8192"] / library["SGEMM, n = 8192"] for name in ("three fp16 calls", "staged kernel, best")
]
print(
    f"large products {100 * large['share'].min():.0f} to {100 * large['share'].max():.0f} %,",
    f"narrow SGEMM {100 * sgemm.min():.0f} to {100 * sgemm.max():.0f} %;",
    f"gain at n = 8192: bound {gain_at_8192:.2f}, measured {gains[0]:.2f} (calls), {gains[1]:.2f} (kernel)",
)

# %% [markdown]
# Large products reach 65 to 94 % of the bound. SGEMM and the emulation reach similar shares, so the *ratio* of two
# rooflines predicts the gain better than a single roofline predicts a speed: the measured gains are within 10 % of the
# ratio. If the memory is the bound, the layout determines the speed. With A and B stored by rows, as in this figure,
# the SGEMM of cuBLAS uses 21 to 41 % of the bandwidth. With A and B stored by columns, the layout of TSM2, it uses most
# of the bandwidth:

# %%
fig5 = reproduce.committed("tsm2/fig5").frame
cublas = fig5[(fig5["contender"] == "cublas") & (fig5["M"] == 20480)].pivot(index="data", columns="N", values="share")
(100 * cublas).map("{:.0f} %".format).rename_axis("share of a copy's bandwidth", axis=0).rename_axis("n", axis=1)

# %% [markdown]
# On this GPU the possible gain of TSM2 over cuBLAS is therefore a factor of 1.2 to 1.7 in fp32 and none in fp64,
# whereas the paper reports factors of up to 3 on older GPUs.
#
# ## The choice of a tile
#
# ### LE-GEMM: the tiles of Table 2 and their assumptions
#
# LE-GEMM characterises a tile by three quantities (threads, operations per byte, registers) and maximises the first two
# within the limits of the GPU. The paper states neither the objective nor the constraints. With the simplest reading,
# operations per byte ($3 T_M T_N / 2(T_M+T_N)$, Eq. 15) times the share of the multiprocessors (SMs) with a block, the
# model returns both tiles of Table 2. Two reproduced tiles are weak evidence for a model, so the next table changes one
# assumption at a time:

# %%
page = pages.load("legemm/table2").module
chosen_tiles = {
    reading: {gpu: str(legemm.choose(gpus.get(gpu), 8192, 8192, 8192, how).tile) for gpu in (*page.PUBLISHED, "H200")}
    for reading, how in page.READINGS.items()
}
chosen_tiles = pd.DataFrame(chosen_tiles).transpose()
published = {gpu: str(tile) for gpu, tile in page.PUBLISHED.items()}
chosen_tiles["Table 2"] = [
    all(row[gpu] == tile for gpu, tile in published.items()) for _, row in chosen_tiles.iterrows()
]
display(chosen_tiles)

# %% [markdown]
# Both tiles stay the same under five of the thirteen changes. The result does not depend on whole rounds of blocks or
# on the registers for addresses. It does depend on two buffers, two fragments in $T_K$, one block per SM, tiles that
# are powers of two, and no reward for threads beyond the number that fills the GPU. One row concerns the paper's
# kernel: if *both* accumulators of Algorithm 1 are in registers for the whole tile, $2\cdot 128\cdot 256$ words are all
# registers of an SM.

# %%
tile = legemm.Tile(128, 256, 32)
for gpu in ("A800", "MI210"):
    try:
        legemm.check(tile, gpus.get(gpu))
        print(f"{gpu}: tile {tile} fits, {legemm.ratio(tile):.0f} operations per byte")
    except fpemu.InputError as problem:
        print(textwrap.fill(str(problem), 100))

# %% [markdown]
# According to Section 4.3 of the paper the AMD GPU permits (128, 256, 32) as well. This tile requires 96 KB of shared
# memory, and the GPU has 64 KB.
#
# ### H2SGEMM: the unit of the L1 capacity
#
# The paper keeps $N_{\mathrm{fused}}$ blocks of A and two blocks of B in the L1 buffer (Eq. 8) with "L1" = 512 KB. It
# states $N_{\mathrm{fused}} = 44$ for its best block (176, 64, 176), and an optimal $b_m = \sqrt{f L_1 / 2 N_{core}}$
# of 86 to 90. The table compares two readings of L1, in bytes and in numbers:

# %%
best = h2sgemm.PUBLISHED
readings = {}
for words, numbers in (("512 KB", 2**18), ("512 K numbers, 1 MB", 2**19)):
    f = h2sgemm.used(best, numbers)
    readings[words] = {"N_fused": h2sgemm.fused(best, numbers), "f": f, "optimal b_m": h2sgemm.optimal_bm(f, numbers)}
pd.DataFrame(readings).transpose().round(3)

# %% [markdown]
# Only 512 K numbers give 44 and 88, and the manufacturer's platform file states 1 MB. According to the formula $b_m$
# should be about 88, but the best block in the paper's measurements has $b_m = 176$. To test whether memory traffic is
# the limit, the next cell counts the cycles of each engine for one step (a block of A times a block of B) at the rates
# of the platform file:

# %%
cycles = pd.DataFrame({part: h2sgemm.cycles(best, part) for part in h2sgemm.VECTOR})
slowest = cycles.max()
share = cycles.loc["cube"].sum() / slowest.sum()
steady = {pipeline: h2sgemm.steady(best, pipeline) / 1e12 for pipeline in h2sgemm.PIPELINES}
print(f"cube busy {100 * share:.1f} % of the time, two buffers; {', '.join(f'{k} {v:.1f}' for k, v in steady.items())}")
cycles.round(0)

# %% [markdown]
# With two buffers the slowest engine determines the time. For $AB$ and $R_AB$ it is the matrix unit (cube). For $AR_B$
# it is the **vector unit**, which computes the residual of B again for every block row of A: five instructions per
# element, which take 902 cycles while the cube takes 484. This alone reduces the speed from the peak to 77.6 %. The
# paper measured 65.3 TFLOP/s (77 % of its peak), and 41.7 TFLOP/s with one buffer.
#
# The choice of $b_m$ has two opposite effects. The vector unit's work on a block of B does not depend on $b_m$, and the
# cube's work grows with $b_m$:

# %%
n, sides = 5632, range(16, 513, 16)
every = list(h2sgemm.blocks())
words = [min(h2sgemm.traffic(n, n, n, b).total for b in every if b.m == side) / n**3 for side in sides]
speeds = {
    pipeline: [max(h2sgemm.steady(b, pipeline) for b in every if b.m == side) / 1e12 for side in sides]
    for pipeline in ("double", "single")
}
with plotting.style():
    figure, axes = plotting.figure(2, height=2.7, share_y=False, width=plotting.DOUBLE)
    axes[0, 0].plot(sides, 1e3 * np.array(words), "o", color=plotting.GREEN)
    fine = np.linspace(16, 512, 200)
    cores, l1 = h2sgemm.ASCEND_910A.cores, h2sgemm.ASCEND_910A.numbers
    axes[0, 0].plot(fine, 1e3 * (1 / n + 1 / (cores * fine) + 2 * fine / (0.95 * l1)), color=plotting.BLACK)
    axes[0, 0].set(ylim=(0.6, 2.3), ylabel="words per multiply-add, $10^{-3}$")
    for pipeline, color, value in (("double", plotting.BLUE, 65.3), ("single", plotting.VERMILION, 41.7)):
        axes[0, 1].plot(sides, speeds[pipeline], "o-", color=color, label=f"{pipeline} buffer", markersize=3)
        axes[0, 1].plot(best.m, value, "*", color=color, markersize=11, markeredgecolor="black", zorder=5)
    axes[0, 1].plot([], [], "*", color="white", markeredgecolor="black", markersize=9, label="measured in the paper")
    axes[0, 1].axhline(h2sgemm.peak() / 1e12, color=plotting.BLACK, linestyle=":", linewidth=0.9)
    axes[0, 1].set(ylim=(0, 92), ylabel="TFLOP/s")
    for axis in axes[0]:
        axis.axvline(88, color=plotting.GREY, linestyle=":", linewidth=0.9)
        axis.set_xlabel("$b_m$")
    axes[0, 1].legend(loc="lower right")
    plotting.panel_titles(axes, ["traffic, the best of each $b_m$", "speed, the best of each $b_m$"])
display(figure)

# %%
least_b_m = sides[int(np.argmin(words))]
enough = min(side for side, speed in zip(sides, speeds["double"], strict=True) if speed > 0.999 * h2sgemm.peak() / 1e12)
at88 = np.interp(88, sides, speeds["double"])
print(
    f"least traffic at b_m = {least_b_m}, the cube is the slowest engine from b_m = {enough} on; ",
    f"at 88: {at88:.0f} TFLOP/s",
    sep="",
)

# %% [markdown]
# At the paper's optimum for traffic, 88, the speed would be a little more than half of the speed of its best block. The
# block 176 is a compromise that the formula does not contain. The value 352 is no recommendation: the model has no
# latencies, and such a large block leaves few rows of blocks for the 32 cores.
#
# ### MAGMA: the number of products in one instruction
#
# Thread blocks of $64^2$ read a quarter of the words of tiles of $16^2$ (Figure 5), but only for large matrices, and
# MAGMA's matrices are small. At $48^2$ one block covers the matrix, and the reduction is a factor of 3. The table shows
# the factor by which the number of read words decreases:

# %%
reduction = {
    f"{b}²": [magma.traffic_reduction((b, b), (16, 16), size=size) for size in (None, 256, 48, 32)]
    for b in (16, 32, 48, 64)
}
reduction = pd.DataFrame(reduction, index=["large (printed)", "n = 256", "n = 48", "n = 32"])
display(reduction)

# %% [markdown]
# For products of $4\times4$ the paper packs four products into one $16\times16\times16$ instruction, on the diagonal of
# blocks, and calls $\lfloor 16/N\rfloor$ the maximum. A product can use any block row $r$ of A, any column $q$ of B and
# any step $s$ between them, if no other step adds to its block of the result. This is the Ruzsa-Szemerédi problem on
# triangles in a graph. For a grid of four blocks the maximum is **nine**, by integer programming:

# %%
packed = {n: [magma.pack(n, (16, 16, 16), paper=paper).products for paper in (True, False)] for n in (4, 5, 6, 8)}
places = magma.arrange(4, 4, 4)
with plotting.style():
    figure, axes = plotting.figure(7, height=1.3, width=plotting.DOUBLE)
    axes[0, 3].axis("off")
    for first, some in ((0, [(i, i, i) for i in range(4)]), (4, places)):
        for axis, title, pick in zip(axes[0, first:], "ABD", ((0, 2), (2, 1), (0, 1)), strict=False):
            cells = np.full((4, 4), np.nan)
            for number, place in enumerate(some):
                cells[place[pick[0]], place[pick[1]]] = number
                axis.text(place[pick[1]], place[pick[0]], number + 1, ha="center", va="center", fontsize=7)
            axis.imshow(cells, cmap="Set3", vmin=0, vmax=11)
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.set_title(f"{title}, {len(some)} products", fontsize=8)
display(figure)

# %% [markdown]
# Block $i$ of A and block $i$ of B are the operands of product $i$, and block $i$ of D is its result. White blocks of A
# and B are zeros, and white blocks of D are unused. The next cell computes the nine products in one emulated Hopper
# instruction:

# %%
rng, spec = np.random.default_rng(0), mma.spec("H200", "fp16")
pairs = rng.standard_normal((9, 2, 4, 4)).astype(np.float16)
A, B = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
for (r, q, s), (a, b) in zip(places, pairs, strict=True):
    A[4 * r : 4 * r + 4, 4 * s : 4 * s + 4] = a
    B[4 * s : 4 * s + 4, 4 * q : 4 * q + 4] = b
D_packed = mma.gemm(A, B, None, spec)
used = {paper: 100 * magma.utilisation(4, paper=paper) for paper in (True, False)}
print(f"nine products, bit for bit; {used[False]:.1f} % of the instruction, {used[True]:.2f} % on the diagonal")

# %% [markdown]
# Nine products use less than 25 % of the instruction, and at 25 % the ordinary fp16 cores of a V100 are as fast. The
# paper's conclusion holds, although its maximum does not.
#
# ### TSM2: the units of the equations
#
# TSM2 chooses $t_2$ (columns of B at a time) and $t_3$ (elements of A loaded in advance) by Little's law: for the whole
# bandwidth, an SM must have latency × bandwidth in flight. The next cell gives every quantity a dimension, as a vector
# of exponents, and evaluates the dimensions of the printed equations:

# %% [markdown]
# The equations have three errors. The use of the bandwidth is elements divided by bytes, without the size of an
# element. The times are divided by the number of threads, although the bandwidth is the bandwidth of the whole GPU. The
# threshold, peak / bandwidth × bytes, is in *operations* per element, but $t_2$ counts *multiply-adds* with two
# operations each, so the threshold is too large by a factor of two. The published thresholds agree with the printed
# equation:

# %%
page, size = pages.load("tsm2/parameters").module, (20480, 20480, 16)
rows_of_tsm2, curves, compute_bound = {}, {}, {}
for name, (peak, bandwidth) in page.SECTION_4_1.items():
    gpu = gpus.get(name)
    printed = tsm2.Model(replace(gpu, bandwidth=bandwidth, peak={**gpu.peak, "fp64": peak}), printed=True)
    model = replace(printed, printed=False)
    best = tsm2.exhaustive(model, *size)
    least, t2s = best[0].seconds, sorted({choice.t2 for choice in best})
    curves[name] = [
        min(model.seconds(*size, t2, t3) for t3 in range(1, int(model.most_t3(t2)) + 1)) / least for t2 in range(1, 17)
    ]
    there = page.PUBLISHED[name]
    rows_of_tsm2[name] = {
        "threshold, published": there[0],
        "as printed": printed.threshold(),
        "corrected": model.threshold(),
        "t2, published": there[1] or "n",
        "t2, best": " to ".join(dict.fromkeys(f"{t2}" for t2 in (t2s[0], t2s[-1]))),
        "t3, published": there[2],
        "t3 that suffices": min(c.t3 for c in best),
        "t3, as printed": tsm2.algorithm5(printed, *size).t3,
        "bytes in flight needed": round(model.needed_memory()),
    }
    compute_bound[name] = printed.compute_bound(16), model.compute_bound(16)
pd.DataFrame(rows_of_tsm2.values(), index=rows_of_tsm2).round(1)

# %% [markdown]
# For $n = 16$ each GPU is on the same side of both thresholds, so the factor of two had no effect. As printed, with an
# unlimited use of the bandwidth, the model selects the largest $t_3$ that the registers permit, 33. With corrected
# units and a latency of 400 cycles (the paper states none), a K40c requires $t_3 = 4$, as published; the M40 and the
# P100 require less. On the M40, which its cores limit, every $t_2$ from 4 on is optimal, including the published 8. The
# published $t_2 = 4$ on the P100 is not a minimum of the model: it reads A four times, and takes four times as long as
# $t_2 = 16$; the printed gradient descent can stop there.
#
# ## The cost of accuracy
#
# `theory.bound` states the error relative to $|A||B|$ a priori, from the norms of the operands, the words and the order
# of the scheme, and the fields of the instruction. The *probable* bound holds for all entries with a probability of 99
# % if the operands are random; the *worst-case* bound always holds. In the following figure each scheme is a point, for
# $M = N = 8192$, $K = 4096$, and entries uniform in $[-1, 1]$ or in $[0, 1]$.

# %%
CHAINED = Series("three products, one chain", plotting.VERMILION, "o", "none")
LOOKS = {
    "fp16": Series("plain fp16", plotting.GREY, "X", "none"),
    **dict.fromkeys(("ape", "legemm", "h2sgemm"), CHAINED),
    **dict.fromkeys(
        ("staged", "multiword"), Series("three products, promoted (staged: ours)", plotting.GREEN, "h", "none")
    ),
    "ootomo": Series("Ootomo", plotting.SKY, "D", "none"),
    "ootomo-tf32": Series("Ootomo, tf32", plotting.SKY, "d", "none", filled=False),
    **dict.fromkeys(("markidis", "egemm"), Series("four products, one chain", plotting.ORANGE, "^", "none")),
    **dict.fromkeys(("bf16x3", "bf16x6", "bf16x9"), Series("bf16, 3, 6 or 9 products", plotting.YELLOW, "<", "none")),
    "sgemm": Series("SGEMM", plotting.BLACK, "s", "none", filled=False),
    "dgemm": Series("DGEMM", plotting.BLACK, "D", "none", filled=False),
}
PATHS = {
    "ozaki": ("slices", range(2, 10), Series("Ozaki, 2 to 9 fp16 slices", plotting.PURPLE, ".", ":")),
    "ozimmu": ("slices", range(2, 10), Series("Ozaki, 2 to 9 int8 slices", plotting.BLUE, ".", "-")),
    "ozaki2": ("moduli", range(5, 18, 2), Series("Ozaki II, 5 to 17 moduli", plotting.BLUE, "v", "--", filled=False)),
}
DATA = {"zero mean": -1.0, "positive": 0.0}
cases = [(name, {}) for name in LOOKS]
cases += [(name, {option: count}) for name, (option, counts, _) in PATHS.items() for count in counts]
points, missing = [], []
for data, low in DATA.items():
    # the truncated part depends on the precision of the entries, so fp64 schemes use the norms of fp64 data
    sample = {
        fmt: theory.Norms.sample("uniform", 4096, rows=32, dtype=fmt, low=low, high=1.0) for fmt in ("fp32", "fp64")
    }
    for gpu in ("H200", "MI210"):
        for name, options in cases:
            try:
                job = roofline.work(name, gpu, 8192, 8192, 4096, **options)
            except fpemu.InputError:  # no such instruction
                missing.append((gpu, name))
                continue
            norms = sample["fp64" if name in PATHS or name == "dgemm" else "fp32"]
            limit = theory.bound(name, gpu, norms=norms, M=8192, N=8192, **options)
            count = next(iter(options.values()), 0)
            points.append((data, gpu, name, count, roofline.time(job, gpu).flops / 1e12, limit.probable(), limit.worst))
points = pd.DataFrame(points, columns=["data", "gpu", "scheme", "count", "speed", "probable", "worst"])
print(f"{len(points)} points; no tf32 on the MI210")

# %% [markdown]
# The emulator computes some of the schemes, for 16 or 32 rows and columns, and the largest measured error must be below
# the bounds. In the figure a thin line extends from the probable bound to the worst case (omitted for slices), and
# crosses are measured errors.

# %%
measured = []
for data, low in DATA.items():
    A, B = fpemu.inputs.operands("uniform", 32, 32, 4096, 1, "fp32", low=low, high=1.0)
    S = fpemu.reference.matmul(np.abs(A), np.abs(B))
    for gpu in ("H200", "MI210"):
        for name in ("fp16", "legemm", "staged", "sgemm"):
            D = fpemu.gemm(A, B, scheme=name, hardware=None if name == "sgemm" else gpu)
            error = float(np.max(np.abs(fpemu.reference.matmul(A, B, D, beta=-1)) / S))
            measured.append((data, gpu, name, 0, error))
    A, B = fpemu.inputs.operands("uniform", 16, 16, 4096, 1, "fp64", low=low, high=1.0)
    S = fpemu.reference.matmul(np.abs(A), np.abs(B))
    for slices in (3, 5, 7):
        D = fpemu.gemm(A, B, scheme="ozimmu", hardware="H200", slices=slices)
        error = float(np.max(np.abs(fpemu.reference.matmul(A, B, D, beta=-1)) / S))
        # products of int8 slices are exact on either GPU
        measured += [(data, gpu, "ozimmu", slices, error) for gpu in ("H200", "MI210")]
keys = ["data", "gpu", "scheme", "count"]
measured = pd.DataFrame(measured, columns=[*keys, "measured"]).merge(points, on=keys)
factor = measured["probable"] / measured["measured"]
cases = len(measured.drop_duplicates(["data", "scheme", "count", "measured"]))
print(f"probable bound / measured error: {factor.min():.1f} to {factor.max():.1f} in {cases} cases")

# %%
frontier = {}
with plotting.style():
    figure, axes = plotting.figure(2, 2, height=6.4, width=plotting.DOUBLE)
    for row, gpu in enumerate(("H200", "MI210")):
        for column, data in enumerate(DATA):
            axis, here = axes[row, column], points[(points["data"] == data) & (points["gpu"] == gpu)]
            for name, (_, _, look) in PATHS.items():
                own = here[here["scheme"] == name]
                axis.plot(own["probable"], own["speed"], **look.line(markersize=4, linewidth=0.9))
            for name, look in LOOKS.items():
                own = here[here["scheme"] == name]
                axis.plot(own["probable"], own["speed"], **look.line(markersize=6))
                axis.hlines(own["speed"], own["probable"], own["worst"], color=look.color, linewidth=0.5, zorder=1)
            known = measured[(measured["data"] == data) & (measured["gpu"] == gpu)]
            axis.plot(known["measured"], known["speed"], "+", color=plotting.BLACK, markersize=6, label="measured")
            fast = here.sort_values(["speed", "probable"], ascending=[False, True])
            best = fast[fast["probable"] < fast["probable"].cummin().shift(fill_value=np.inf)]
            frontier[gpu, data] = [f"{point['scheme']} {point['count'] or ''}".strip() for _, point in best.iterrows()]
            axis.step(best["probable"], best["speed"], where="pre", color=plotting.GREY, linewidth=3, alpha=0.3)
            axis.set(xscale="log", yscale="log")
            axis.set_xlim(3e-18, 1e-2)
    for axis in axes[1]:
        axis.set_xlabel("error relative to $|A||B|$, probable bound")
    for axis in axes[:, 0]:
        axis.set_ylabel("bound on effective throughput, TFLOP/s")
    plotting.panel_titles(axes, [f"{gpu}, {data}" for gpu in ("H200", "MI210") for data in DATA])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=4)
display(figure)

# %%
for (gpu, data), names in frontier.items():
    print(f"{gpu}, {data}: {', '.join(names)}")
at = points[points["count"] == 0].set_index(["gpu", "data", "scheme"]).sort_index()
for data in DATA:
    chain, promoted, plain, native = (at.loc["H200", data, name] for name in ("legemm", "staged", "fp16", "sgemm"))
    print(
        f"H200, {data}, probable error: one chain {plain['probable'] / chain['probable']:.1f}× below plain fp16,",
        f"{chain['probable'] / native['probable']:.1f}× above SGEMM, {chain['probable'] / promoted['probable']:.0f}×",
        "above the promoted one",
    )
own = points.set_index(["gpu", "data", "scheme", "count"]).sort_index()
falls = own["probable"]["H200", "zero mean", "ozimmu"].loc[2:7]
rival = own.loc["H200", "zero mean", "ozaki2", 15]
needed = library["DGEMM"] / rival["speed"]
print(f"15 moduli beat the DGEMM measured above from {100 * needed:.0f} % of their roofline on")
peak = gpus.get("MI210").peak

# %% [markdown]
# The grey line is the frontier: the highest speed for each permitted error.
#
# * **The location of the sums has a larger effect than the words.** Three products in one chain and three products with
#   promotion have the same roofline, and the promoted products are more than twenty times as accurate on an H200. On
#   positive data the chain has a third of the speed of plain fp16, and its error is smaller by a factor of less than
#   three: the truncation of the sums remains, and SGEMM is more accurate.
# * **On an H200 neither SGEMM nor DGEMM is on the frontier**: another scheme has a higher roofline and a smaller bound.
#   However, the measured DGEMM reaches 94 % of its roofline, so a scheme with 15 moduli must reach 71 % of its
#   roofline to be faster. On an MI210 DGEMM is on the frontier over nearly eight orders of magnitude, because its fp64
#   matrix unit is as fast as its fp32 matrix unit, and int8 is no faster than fp16.
# * **Slices connect the accuracies of fp32 and fp64.** Every int8 slice reduces the error by a factor of about a
#   hundred, with $s(s+1)/2$ products for $s$ slices. Scheme II (`ozaki2`) requires one product per modulus and one
#   more. From four slices on, there is a number of moduli that is both faster and more accurate. At the accuracy of
#   fp32, words are faster than slices and moduli.
#
# The parts of the bound explain the first point. For LE-GEMM's chain on an H200 and positive data, the split of the
# operands and the omitted product are negligible compared with the bias of the sums.

# %%
limit_of_legemm = theory.bound("legemm", "H200", norms=sample["fp32"], M=8192, N=8192)
print(limit_of_legemm)

# %% [markdown]
# The table lists the fastest scheme for each target error, with its roofline in TFLOP/s:

# %%
rows_by_error = {}
for target in (1e-4, 1e-6, 1e-7, 1e-9, 1e-12, 1e-15):
    for (gpu, data), here in points.groupby(["gpu", "data"]):
        row = here[here["probable"] <= target].sort_values(["speed", "probable"], ascending=[False, True]).iloc[0]
        count = f" {row['count']}" if row["count"] else ""
        rows_by_error.setdefault((gpu, data), {})[f"{target:.0e}"] = f"{row['scheme']}{count}, {row['speed']:.0f}"
pd.DataFrame(rows_by_error).rename_axis("error").transpose()

# %% [markdown]
# On positive data the bound of the promoted products on an H200 is slightly above $10^{-6}$ at the default interval of
# 64. The next cell tests whether another interval reaches $10^{-6}$. On the roofline promotion has no cost here. For an
# interval of `stage` products, per entry:

# %%
rows = {}
for stage in (16, 32, 64, 128, 256, 512):
    limit = theory.bound("staged", "H200", norms=sample["fp32"], M=8192, N=8192, stage=stage)
    speed = roofline.time(roofline.work("staged", "H200", 8192, 8192, 4096, stage=stage), "H200").flops / 1e12
    rows[stage] = {"bias": limit.bias, "deviation": limit.deviation, "probable": limit.probable(), "TFLOP/s": speed}
stages = pd.DataFrame(rows).transpose().rename_axis("stage")
stages.map("{:.3g}".format)

# %% [markdown]
# No interval reaches $10^{-6}$ at this $K$. Truncation inside the instruction has a bias that grows with the interval,
# and rounding outside grows with the number of promotions; the smallest bound is between the extremes.
#
# ### The recommendation for given matrices
#
# `fpemu.advise` applies the models to given matrices. It computes norms from the data, tries the options of every
# scheme, counts the cost, and measures the error before it recommends a scheme. At $K = 1024$, three products reach
# $10^{-6}$:

# %%
A, B = fpemu.inputs.operands("uniform", 64, 64, 1024, 0, "fp32", low=0.0, high=1.0)
exact, S = fpemu.reference.matmul(A, B), fpemu.reference.matmul(np.abs(A), np.abs(B))
works, errors = [], []
for gpu, confidence in (("H200", "probable"), ("H200", "worst"), ("MI210", "probable")):
    advice = fpemu.advise(1e-6, hardware=gpu, A=A, B=B, confidence=confidence)
    chosen = advice.chosen
    D = fpemu.gemm(A, B, scheme=advice.scheme, hardware=gpu, on_range=chosen.candidate.on_range, **advice.options)
    errors.append((chosen.limit(confidence), chosen.measured, np.max(np.abs(D - exact) / S)))
    works.append(chosen.candidate.cost.work)
    print(
        f"{gpu}, {confidence} bound {chosen.limit(confidence):.1e}, measured {chosen.measured:.1e},",
        f"{works[-1]:g} times the work of one fp16 product",
        advice.call(),
        "",
        sep="\n",
    )
    if confidence == "worst":
        by_bound = advice.scheme

# %% [markdown]
# A guarantee costs more than a probability: without an assumption on the data, a scheme with exact products is the
# cheapest scheme for $10^{-6}$ (its int8 products have twice the rate of fp16). If no scheme reaches the target, the
# error message names the most accurate scheme:

# %%
try:
    fpemu.advise(1e-16, hardware="V100", A=A, B=B, confidence="worst")
    raised = False
except fpemu.InputError as problem:
    raised = True
    print(problem)

# %% [markdown]
# ## The limits of the models
#
# * **The speed of a kernel.** A roofline has no latency, no power limit, no clock below the manufacturer's, and no
#   tiles that fill the GPU partially. The measured fp16 products decrease with $n$, but the bound is constant.
# * **The choice between equal tiles.** LE-GEMM's model gives (128, 256) and (256, 128) the same value, and MAGMA's
#   model leaves many configurations with equal values. Models exclude configurations; measurements choose among the
#   others.
# * **The data.** The probable bound assumes random operands. For other operands only the worst case holds, which is
#   five to more than a thousand times as large. For this reason `advise` measures the error.
# * **The order of a closed library.** SGEMM is one ascending chain here; cuBLAS may split K and then be more accurate.
#   The bits of the Ascend are not public, and its model is assumed.

# %%
plain = shares[shares["what"].str.startswith("fp16, n")]["share"]
tiles = [legemm.Tile(128, 256, 32), legemm.Tile(256, 128, 32)]
ratio = at["worst"] / at["probable"]
print(
    f"fp16's share of the roofline: {', '.join(f'{100 * value:.0f} %' for value in plain)};",
    f"worst / probable: {ratio.min():.0f} to {ratio.max():.0f}",
)

# %% [markdown]
# ## Conclusions
#
# * Three fp16 products can be faster than SGEMM on all six GPUs, by only a third on an MI210. The smallest size with a
#   gain depends on the place of the split.
# * The ratio of two rooflines predicts a measured gain to within 10 %; a single roofline overestimates a speed by up to
#   a third.
# * A model that returns published parameters is weakly confirmed: of thirteen changed assumptions of LE-GEMM's tile
#   model five return them too, and TSM2's equations, with consistent units, return two of three published choices.
# * Of two schemes with one roofline, the place of the rounding determines the error: promoted sums are more than twenty
#   times as accurate as one chain.
#
# Next: [legemm](legemm.ipynb), [h2sgemm](h2sgemm.ipynb), [magma](magma.ipynb) and [tsm2](tsm2.ipynb) analyse the
# accuracy of the papers' schemes, and [dgemm_tc](dgemm_tc.ipynb) the slices.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# The data of a GPU
assert (machines["lead / 3"] > 1).all()
assert machines["lead / 3"].idxmin() == "MI210"
assert machines.loc["MI210", "lead / 3"] < 1.34

# The roofline of one product
assert (even["n from, fused"] <= even["n from, kernel"]).all()
assert (even["n from, kernel"] <= even["n from, calls"]).all()
assert even.loc["H200", ["n from, fused", "n from, kernel", "n from, calls"]].tolist() == [128, 256, 384]
assert even.loc["MI210", ["n from, fused", "n from, kernel"]].tolist() == [192, 960]
assert even.loc["MI210", "worst kernel"] == "75 %"
assert float(even.loc["Ascend 910A", "gain, fused"]) < 0.7 * float(even.loc["Ascend 910A", "gain"])
assert estimates["Ascend 910A", "fused", 8192].bound == "vector"

# Memory-bound and compute-bound kernels
assert all(bound == expected for bound, expected in limits)
assert round(2 * ridge) == 412
assert estimates["H200", "kernel", 1024].share < 0.7 < estimates["H200", "fused", 512].share

# Measured speeds and their bounds
assert (shares["share"] < 1).all()
assert len(large) + len(thin) == len(shares)
assert 0.6 < large["share"].min() < large["share"].max() < 0.95
assert 0.2 < sgemm.min() < sgemm.max() < 0.42
assert all(0.9 < gain / gain_at_8192 < 1.1 for gain in gains)
assert 0.58 < cublas.loc["fp32 columns"].min() < cublas.loc["fp32 columns"].max() < 0.83
assert cublas.loc["fp32 rows"].max() < 0.48
assert cublas.loc["fp64 columns"].min() > 0.97

# LE-GEMM: the tiles of Table 2 and their assumptions
assert chosen_tiles.loc["ours", "Table 2"]
assert chosen_tiles["Table 2"].drop("ours").sum() == 5
assert len(chosen_tiles) == 14
assert chosen_tiles.loc["two accumulators a tile", "A800"] == "(128, 128, 32)"
assert 2 * tile.M * tile.N == gpus.get("A800").registers == 65536

# H2SGEMM: the unit of the L1 capacity
assert [row["N_fused"] for row in readings.values()] == [21, 44]
assert readings["512 K numbers, 1 MB"]["optimal b_m"] == 88
assert h2sgemm.ASCEND_910A.l1 == 2**20
assert cycles.idxmax().tolist() == ["cube", "cube", "vector"]
assert np.isclose(steady["double"], share * h2sgemm.peak() / 1e12)
assert 65.3 / steady["double"] > 0.95
assert abs(41.7 / steady["single"] - 1) < 0.07
assert least_b_m in (80, 96)
assert enough == 352
assert at88 < 0.6 * steady["double"]

# MAGMA: the number of products in one instruction
assert reduction.loc["large (printed)"].tolist() == [1, 2, 3, 4]
assert reduction.loc["n = 48", "64²"] == 3
assert packed == {4: [4, 9], 5: [3, 6], 6: [2, 2], 8: [2, 2]}
assert spec.k == 16
for (r, q, _), (a, b) in zip(places, pairs, strict=True):
    assert np.array_equal(D_packed[4 * r : 4 * r + 4, 4 * q : 4 * q + 4], mma.gemm(a, b, None, spec))
assert used[False] < 25
assert abs(gpus.get("V100 SXM2").need("fp16") / gpus.get("V100 SXM2").need("fp16 matrix") - 0.25) < 0.01

# TSM2: the units of the equations
second, byte, operation, fma, element, thread = np.eye(6, dtype=int)
nothing = 0 * second
bandwidth_unit, peak_unit, latency = byte - second, operation - second, second
in_flight = thread + (element - thread)  # the threads of an SM, t3 elements each
use = in_flight - (latency + bandwidth_unit)
size_of_words = byte - element
threshold = peak_unit - bandwidth_unit + size_of_words
time = (element + size_of_words) - bandwidth_unit - thread  # over bandwidth, use and SMs · occupancy
assert not np.array_equal(use, nothing)
assert np.array_equal(use + size_of_words, nothing)
assert np.array_equal(threshold, operation - element)
assert not np.array_equal(threshold, fma - element)
assert np.array_equal(time, second - thread)
for name, row in rows_of_tsm2.items():
    assert abs(row["as printed"] / row["threshold, published"] - 1) < 0.05
    assert np.isclose(row["corrected"], row["as printed"] / 2)
    assert compute_bound[name][0] == compute_bound[name][1]
assert [row["t2, best"] for row in rows_of_tsm2.values()] == ["16", "4 to 16", "16"]
assert [rows_of_tsm2[name]["t3 that suffices"] for name in rows_of_tsm2] == [4, 1, 1]
assert {rows_of_tsm2[name]["t3, as printed"] for name in rows_of_tsm2} == {33}
assert curves["P100"][3] == 4

# The cost of accuracy
assert set(missing) == {("MI210", "ootomo-tf32")}
assert (points["probable"] <= points["worst"]).all()
assert factor.min() > 1
assert factor.max() < 20
for (gpu, _), names in frontier.items():
    assert names[0] == "fp16"
    assert "staged" in names
    assert "sgemm" not in names
    assert ("dgemm" in names) == (gpu == "MI210")
for data in DATA:
    chain, promoted, native = (at.loc["H200", data, name] for name in ("legemm", "staged", "sgemm"))
    assert np.isclose(chain["speed"], promoted["speed"])
    assert chain["probable"] > 20 * promoted["probable"]
    assert chain["probable"] > 3 * native["probable"]
assert 2 < at.loc["H200", data, "fp16"]["probable"] / chain["probable"] < 3
assert (falls / falls.shift(-1)).dropna().between(80, 130).all()
for _, point in points[(points["scheme"] == "ozimmu") & (points["count"] >= 4)].iterrows():
    other = own.loc[point["gpu"], point["data"], "ozaki2"]
    assert ((other["speed"] > point["speed"]) & (other["probable"] < point["probable"])).any()
for (gpu, data), here in points.groupby(["gpu", "data"]):
    sliced = here[here["scheme"].isin(PATHS) & (here["probable"] <= at.loc[gpu, data, "staged"]["probable"])]
    assert at.loc[gpu, data, "staged"]["speed"] > sliced["speed"].max()
assert rival["probable"] < at.loc["H200", "zero mean", "dgemm"]["probable"]
assert round(100 * needed) == 71
assert round(100 * shares.set_index("what")["share"]["DGEMM"]) == 94
assert peak["fp64 matrix"] == peak["fp32 matrix"]
assert peak["int8 matrix"] == peak["fp16 matrix"]
assert max(limit_of_legemm.parts, key=lambda part: part.rms).name.startswith("sums")
assert 1.1 * limit_of_legemm.bias > 0.9 * limit_of_legemm.probable()
assert rows_by_error["MI210", "zero mean"]["1e-09"].startswith("dgemm")
assert rows_by_error["H200", "zero mean"]["1e-09"].startswith("ozaki2")
assert 1e-6 < at.loc["H200", "positive", "staged"]["probable"] < 1.5e-6
assert stages["bias"].is_monotonic_increasing
assert stages["deviation"].loc[:128].is_monotonic_decreasing
assert stages["probable"].idxmin() in (64, 128)
assert stages["probable"].min() > 1e-6
assert np.isclose(stages["probable"][64], at.loc["H200", "positive", "staged"]["probable"])
assert stages["TFLOP/s"].min() > 0.99 * stages["TFLOP/s"].max()

# The recommendation for given matrices
assert np.max(errors) <= 1e-6
assert by_bound in PATHS
assert works[0] < works[1]
assert raised

# The limits of the models
assert plain.is_monotonic_decreasing
assert plain.iloc[0] > plain.iloc[-1] + 0.05
assert len({legemm.objective(tile, gpus.get("A800"), 8192, 8192) for tile in tiles}) == 1
assert 4 < ratio.min() < ratio.max() < 2000
