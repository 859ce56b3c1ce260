# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # How fast may it be, and how accurate will it be? Before a kernel is written
#
# Emulating fp32 by three fp16 products costs three products. What is left of the matrix unit's lead then, from which
# size on, and on which GPU is there little to win? Which tile? And what accuracy does the speed buy? All of these are
# answered here with arithmetic: data sheets, the work that a scheme does, and a-priori error bounds. The emulator is
# asked only to check. Nothing here was timed except the speeds that are called *measured*.
#
# ## What the peaks allow
#
# ### A GPU as data
#
# A GPU is a table of numbers with their sources, `fpemu/roofline/gpus.toml`; a file of your own works the same way.
# Two of them decide about emulation: the lead of the matrix unit over the best native fp32, and the **ridge**, the
# operations that a byte must be worth before the matrix unit is what one waits for.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"dpi": 100, "bbox_inches": None}
from dataclasses import replace

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import mma, plotting, reproduce, roofline, theory
from fpemu.plotting import Series
from fpemu.reproduce import experiments
from fpemu.roofline import gpus

h2sgemm, legemm, magma, tsm2 = (experiments.model(paper) for paper in ("h2sgemm", "legemm", "magma", "tsm2"))
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
assert (machines["lead / 3"] > 1).all()
assert machines["lead / 3"].idxmin() == "MI210"
assert machines.loc["MI210", "lead / 3"] < 1.34
machines.round(2)

# %% [markdown]
# Three products can win on all six, but the MI210 has a matrix unit for fp32 as well, and a third of its fp16 peak is
# only a third above that. The Ascend has no unit for fp32 except its vector cores.
#
# ### The roofline of one product
#
# A kernel takes at least the longest of three times: its products at the matrix unit's peak, its vector operations at
# that of the ordinary cores, its bytes at the memory's bandwidth. Kernels follow one another. The split into words can
# be a kernel of its own, or fused into the product, which then splits each tile anew wherever it is needed; products
# that are three calls of a library (APE) also move C back and forth.

# %%
VARIANTS = {
    "SGEMM": ("sgemm", "kernel", Series("SGEMM", plotting.BLACK, "s", "--", filled=False)),
    "fused": ("h2sgemm", "fused", Series("three products, split fused", plotting.SKY, "D")),
    "kernel": ("h2sgemm", "kernel", Series("three products, split first", plotting.BLUE, "o")),
    "calls": ("ape", "kernel", Series("three calls, split first", plotting.PURPLE, "v", ":")),
}
sizes = [2**i for i in range(6, 15)]
found = {}
with plotting.style():
    figure, axes = plotting.figure(3, 2, height=4.2)
    for axis, gpu in zip(axes.ravel(), GPUS, strict=True):
        for name, (scheme, split, look) in VARIANTS.items():
            for n in sizes:
                found[gpu, name, n] = roofline.time(roofline.work(scheme, gpu, n, n, n, split=split), gpu)
            axis.plot(sizes, [found[gpu, name, n].flops / 1e12 for n in sizes], **look.line(markersize=3))
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
# The ends of these curves are the peaks, as they must be, but for one in (f). What a roofline adds is where the curves
# cross. Suppose SGEMM reaches a certain share of its roofline: the column `worst kernel` says to which part of that
# share a three-product kernel may fall before nothing is won.

# %%
even = {}
for gpu in GPUS:
    ways = {split: roofline.break_even("h2sgemm", gpu, split=split) for split in ("fused", "kernel")}
    ways["calls"] = roofline.break_even("ape", gpu)
    even[gpu] = {f"n from, {name}": way.n for name, way in ways.items()}
    even[gpu] |= {"gain": f"{ways['kernel'].ratio:.2f}", "gain, fused": f"{ways['fused'].ratio:.2f}"}
    even[gpu]["worst kernel"] = f"{100 / ways['kernel'].ratio:.0f} %"
even = pd.DataFrame(even).transpose()
assert (even["n from, fused"] <= even["n from, kernel"]).all()
assert (even["n from, kernel"] <= even["n from, calls"]).all()
assert even.loc["H200", ["n from, fused", "n from, kernel", "n from, calls"]].tolist() == [128, 256, 384]
assert even.loc["MI210", ["n from, fused", "n from, kernel"]].tolist() == [192, 960]
assert even.loc["MI210", "worst kernel"] == "75 %"
assert float(even.loc["Ascend 910A", "gain, fused"]) < 0.7 * float(even.loc["Ascend 910A", "gain"])
assert found["Ascend 910A", "fused", 8192].bound == "vector"
display(even)

# %% [markdown]
# On an H200 emulation can pay from $n = 128$ on if the split is fused, from 256 if it is a kernel of its own. On the
# MI210 the second needs $n = 960$: where the gain is a third, one pass over memory more is dear, and a kernel that is
# less than three quarters as efficient as SGEMM loses whatever $n$. On the **Ascend fusing is the wrong choice**: its
# vector cores split every element once for each tile and cannot keep up. H2SGEMM does just that, in its way; we come to
# it below.
#
# ### Which side of the ridge
#
# Two fp16 words take the room of one fp32 number. So the product reads 8 and writes 4 bytes for each of $n^2$ entries
# and does $6n^3$ operations, $n/2$ a byte: it crosses the ridge $P/\beta$ at $n = 2P/\beta$, 412 on an H200. A call of
# its own that adds to C does $2n^3$ operations for $12 n^2$ bytes and crosses at three times that. The split has no
# products at all and is bound by memory always.

# %%
H200 = gpus.get("H200")
ridge = H200.need("fp16 matrix") / H200.need("bandwidth")
rows = {}
for name in ("kernel", "calls"):
    for n in (256, 512, 1024, 2048, 4096):
        scheme, split, _ = VARIANTS[name]
        for span in roofline.time(roofline.work(scheme, H200, n, n, n, split=split), H200).spans:
            rows.setdefault((VARIANTS[name][2].label, span.name), {})[n] = f"{span.bound}, {span.seconds * 1e6:.3g} µs"
            crossing = 2 * ridge * (3 if span.name in ("product rh", "product hr") else 2 if "hh" in span.name else 1)
            assert span.bound == ("memory" if span.name == "split" or n < crossing else "matrix")
assert round(2 * ridge) == 412
pd.DataFrame(rows).transpose()

# %%
with plotting.style():
    figure, axes = plotting.figure(2, height=2.9, share_y=False)
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
        right.plot(sizes, [100 * found["H200", name, n].share for n in sizes], **look.line())
    right.set(xscale="log", xlabel="$n$", ylabel="matrix unit busy, % of the time", ylim=(0, 105))
    right.set_xscale("log", base=2)
    plotting.panel_titles(axes, ["products on the roofline, H200", "the rest is waiting"])
    plotting.legend_below(figure, right, 3)
display(figure)
assert found["H200", "kernel", 1024].share < 0.7 < found["H200", "fused", 512].share

# %% [markdown]
# At $n = 1024$ the product alone is well beyond the ridge, and yet the unit waits a third of the time: for the split.
#
# ### How far a bound is from the truth
#
# Speeds measured on an H200 (CUDA 13.0: cuBLAS, and a hand-written kernel that promotes), as shares of the bound for
# the same work. None may exceed 1.

# %%
page, shares = experiments.load("models/yardsticks").module, []
for known in page.KNOWN:
    if known.gpu == "H200":
        sides = (known.sides,) * 3 if isinstance(known.sides, int) else known.sides
        job = roofline.work(known.scheme, known.gpu, *sides, split=known.split)
        speed = known.speed * (job.nominal / job.bytes if known.unit == "bytes" else 1)
        estimate = roofline.time(job, known.gpu)
        shares.append((known.label, known.unit, estimate.bound, speed / 1e12, speed / estimate.flops))
shares = pd.DataFrame(shares, columns=["what", "unit", "bound by", "TFLOP/s", "share"])
with plotting.style():
    figure, axes = plotting.figure(1, height=3.6)
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
    names = shares["what"].str.replace("bytes, ", "").str.replace("staged kernel", "staged kernel (ours)")
    axes[0, 0].set_yticks(range(len(shares)), names, fontsize=7)
    axes[0, 0].set(ylim=(len(shares) - 0.4, -0.6), xlim=(0, 1.05), xlabel="share of the roofline (with TFLOP/s)")
    axes[0, 0].plot([], [], "o-", color=plotting.BLUE, label="bound by the matrix unit or the cores")
    axes[0, 0].plot([], [], "o-", color=plotting.VERMILION, label="bound by memory")
    plotting.legend_below(figure, axes[0, 0], 2)
display(figure)

# %%
large, thin = shares[shares["bound by"] == "matrix"], shares[(shares["bound by"] == "memory")]
assert (shares["share"] < 1).all()
assert len(large) + len(thin) == len(shares)
assert 0.6 < large["share"].min() < large["share"].max() < 0.95
sgemm = thin[thin["what"].str.startswith("SGEMM, bytes, 20480")]["share"]
assert 0.2 < sgemm.min() < sgemm.max() < 0.42
ratio = found["H200", "fused", 8192].flops / found["H200", "SGEMM", 8192].flops
library = shares.set_index("what")["TFLOP/s"]
gains = [
    library[f"{name}, n = 8192"] / library["SGEMM, n = 8192"] for name in ("three fp16 calls", "staged kernel, best")
]
assert all(0.9 < gain / ratio < 1.1 for gain in gains)
print(
    f"large products {100 * large['share'].min():.0f} to {100 * large['share'].max():.0f} %,",
    f"narrow SGEMM {100 * sgemm.min():.0f} to {100 * sgemm.max():.0f} %;",
    f"gain at n = 8192: bound {ratio:.2f}, measured {gains[0]:.2f} (calls), {gains[1]:.2f} (kernel)",
)

# %% [markdown]
# Large products reach 65 to 94 % of the bound. SGEMM and the emulation reach similar shares, so that the
# *ratio* of two rooflines predicts better than either: the measured gains are within a tenth of it. Where memory is the
# bound, the layout decides. With A and B stored by rows, as in this table, the library's SGEMM uses 21 to 41 % of the
# bandwidth. Stored by columns, TSM2's layout, it uses most of it:

# %%
fig5 = reproduce.committed("tsm2/fig5").frame
cublas = fig5[(fig5["contender"] == "cublas") & (fig5["M"] == 20480)].pivot(index="data", columns="N", values="share")
assert 0.58 < cublas.loc["fp32 columns"].min() < cublas.loc["fp32 columns"].max() < 0.83
assert cublas.loc["fp32 rows"].max() < 0.48
assert cublas.loc["fp64 columns"].min() > 0.97
(100 * cublas).map("{:.0f} %".format).rename_axis("share of a copy's bandwidth", axis=0).rename_axis("n", axis=1)

# %% [markdown]
# So on this GPU TSM2's room is at most the rest to a copy: a factor of 1.2 to 1.7 in fp32 and none in fp64, where its
# paper reports up to 3 on older GPUs.
#
# ## Choosing a tile
#
# ### LE-GEMM: the tile of Table 2, and what it hangs on
#
# LE-GEMM has three quantities for a tile (threads, operations per byte, registers), and says to maximize the first two
# within the limits. It prints neither the objective nor the constraints. With the plainest reading, operations per byte
# ($3 T_M T_N / 2(T_M+T_N)$, Eq. 15) times the share of SMs that get a block, both tiles of Table 2 come out. But a
# model that reproduces two tiles proves little. Change one assumption at a time:

# %%
page = experiments.load("legemm/table2").module
chosen = {
    reading: {gpu: str(legemm.choose(gpus.get(gpu), 8192, 8192, 8192, how).tile) for gpu in (*page.PUBLISHED, "H200")}
    for reading, how in page.READINGS.items()
}
chosen = pd.DataFrame(chosen).transpose()
published = {gpu: str(tile) for gpu, tile in page.PUBLISHED.items()}
chosen["Table 2"] = [all(row[gpu] == tile for gpu, tile in published.items()) for _, row in chosen.iterrows()]
assert chosen.loc["ours", "Table 2"]
assert chosen["Table 2"].drop("ours").sum() == 5
assert len(chosen) == 14
assert chosen.loc["two accumulators a tile", "A800"] == "(128, 128, 32)"
display(chosen)

# %% [markdown]
# Five of thirteen changes leave both tiles. What does not matter: whether whole rounds of blocks count or nothing but
# Eq. 15, and the registers for addresses. What does: two buffers, two fragments in $T_K$, one block an SM, powers of
# two, and no reward for threads beyond what fills the GPU. One row says something about the paper's kernel: with *both*
# accumulators of its Algorithm 1 in registers for the whole tile, $2\cdot 128\cdot 256$ words are all that an SM has.

# %%
tile = legemm.Tile(128, 256, 32)
assert 2 * tile.M * tile.N == gpus.get("A800").registers == 65536
for gpu in ("A800", "MI210"):
    try:
        legemm.check(tile, gpus.get(gpu))
        print(f"{gpu}: tile {tile} fits, {legemm.ratio(tile):.0f} operations per byte")
    except fpemu.InputError as problem:
        print(problem)

# %% [markdown]
# Section 4.3 allows (128, 256, 32) on the AMD GPU too. It would need 96 KB of shared memory where there are 64.
#
# ### H2SGEMM: which 512 K?
#
# The paper keeps $N_{\mathrm{fused}}$ blocks of A in the L1 buffer beside two of B (Eq. 8), with "L1" = 512 KB, and
# prints $N_{\mathrm{fused}} = 44$ for its best block (176, 64, 176) and an optimal $b_m = \sqrt{f L_1 / 2 N_{core}}$ of
# 86 to 90. Is L1 in bytes or in numbers? Arithmetic decides:

# %%
best = h2sgemm.PUBLISHED
readings = {}
for words, numbers in (("512 KB", 2**18), ("512 K numbers, 1 MB", 2**19)):
    f = h2sgemm.used(best, numbers)
    readings[words] = {"N_fused": h2sgemm.fused(best, numbers), "f": f, "optimal b_m": h2sgemm.optimal_bm(f, numbers)}
assert [row["N_fused"] for row in readings.values()] == [21, 44]
assert readings["512 K numbers, 1 MB"]["optimal b_m"] == 88
assert h2sgemm.ASCEND_910A.l1 == 2**20
pd.DataFrame(readings).transpose().round(3)

# %% [markdown]
# Only numbers give 44 and 88, and the maker's platform file has 1 MB. So $b_m$ should be about 88, and yet the best
# block in the paper's measurements has 176. Is it traffic that limits? Count the cycles of each engine for one step, a
# block of A against a block of B, at the rates of that file:

# %%
cycles = pd.DataFrame({part: h2sgemm.cycles(best, part) for part in h2sgemm.VECTOR})
slowest = cycles.max()
share = cycles.loc["cube"].sum() / slowest.sum()
steady = {pipeline: h2sgemm.steady(best, pipeline) / 1e12 for pipeline in h2sgemm.PIPELINES}
assert cycles.idxmax().tolist() == ["cube", "cube", "vector"]
assert np.isclose(steady["double"], share * h2sgemm.peak() / 1e12)
assert 65.3 / steady["double"] > 0.95
assert abs(41.7 / steady["single"] - 1) < 0.07
print(f"cube busy {100 * share:.1f} % of the time, two buffers; {', '.join(f'{k} {v:.1f}' for k, v in steady.items())}")
cycles.round(0)

# %% [markdown]
# Two buffers hide everything behind the slowest engine. For $AB$ and $R_AB$ that is the matrix unit (cube). For
# $AR_B$ it is the **vector unit**, which computes the residual of B again for every block row of A: five instructions
# an element, 902 cycles for the cube's 484. That alone takes the machine from its peak to 77.6 %; the paper measured
# 65.3 TFLOP/s, 77 % of its peak, and 41.7 with one buffer.
#
# So $b_m$ pulls two ways. The vector unit's work on a block of B is the same for any $b_m$, the cube's grows with it:

# %%
n, sides = 5632, range(16, 513, 16)
every = list(h2sgemm.blocks())
words = [min(h2sgemm.traffic(n, n, n, b).total for b in every if b.m == side) / n**3 for side in sides]
speeds = {
    pipeline: [max(h2sgemm.steady(b, pipeline) for b in every if b.m == side) / 1e12 for side in sides]
    for pipeline in ("double", "single")
}
with plotting.style():
    figure, axes = plotting.figure(2, height=2.7, share_y=False)
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
least = sides[int(np.argmin(words))]
enough = min(side for side, speed in zip(sides, speeds["double"], strict=True) if speed > 0.999 * h2sgemm.peak() / 1e12)
at88 = np.interp(88, sides, speeds["double"])
assert least in (80, 96)
assert enough == 352
assert at88 < 0.6 * steady["double"]
print(
    f"least traffic at b_m = {least}, the cube is the slowest engine from b_m = {enough} on; at 88: {at88:.0f} TFLOP/s"
)

# %% [markdown]
# The paper's optimum for traffic, 88, would run at little more than half the speed of its best block. 176 is a
# compromise that its formula does not contain. (352 is no recommendation: the model has no latencies, and so large a
# block leaves the 32 cores few rows of blocks to share.)
#
# ### MAGMA: how many products fit into one instruction?
#
# Thread blocks of $64^2$ read a quarter of what tiles of $16^2$ would (Figure 5), but only for large matrices, and
# MAGMA's are small. At $48^2$ one block covers the matrix, and the saving is 3. How many times fewer words are read:

# %%
reduction = {
    f"{b}²": [magma.traffic_reduction((b, b), (16, 16), size=size) for size in (None, 256, 48, 32)]
    for b in (16, 32, 48, 64)
}
reduction = pd.DataFrame(reduction, index=["large (printed)", "n = 256", "n = 48", "n = 32"])
assert reduction.loc["large (printed)"].tolist() == [1, 2, 3, 4]
assert reduction.loc["n = 48", "64²"] == 3
display(reduction)

# %% [markdown]
# For products of $4\times4$ the paper packs four into one $16\times16\times16$ instruction, on the diagonal of blocks,
# and calls $\lfloor 16/N\rfloor$ the maximum. A product may sit at any block row $r$ of A, column $q$ of B and step $s$
# between them, if no other step adds to its block of the result. That is the Ruzsa-Szemerédi problem on triangles in a
# graph, and its answer for a grid of four is **nine**, by integer programming:

# %%
packed = {n: [magma.pack(n, (16, 16, 16), paper=paper).products for paper in (True, False)] for n in (4, 5, 6, 8)}
assert packed == {4: [4, 9], 5: [3, 6], 6: [2, 2], 8: [2, 2]}
places = magma.arrange(4, 4, 4)
with plotting.style():
    figure, axes = plotting.figure(7, height=1.3)
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
# Block $i$ of A and block $i$ of B are the operands of product $i$, block $i$ of D its result; white blocks of A and B
# are zeros, those of D nobody reads. Multiply it out, in one emulated Hopper instruction:

# %%
rng, spec = np.random.default_rng(0), mma.spec("H200", "fp16")
pairs = rng.standard_normal((9, 2, 4, 4)).astype(np.float16)
A, B = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
for (r, q, s), (a, b) in zip(places, pairs, strict=True):
    A[4 * r : 4 * r + 4, 4 * s : 4 * s + 4] = a
    B[4 * s : 4 * s + 4, 4 * q : 4 * q + 4] = b
D = mma.gemm(A, B, None, spec)
assert spec.k == 16
for (r, q, _), (a, b) in zip(places, pairs, strict=True):
    assert np.array_equal(D[4 * r : 4 * r + 4, 4 * q : 4 * q + 4], mma.gemm(a, b, None, spec))
use = {paper: 100 * magma.utilisation(4, paper=paper) for paper in (True, False)}
print(f"nine products, bit for bit; {use[False]:.1f} % of the instruction, {use[True]:.2f} % on the diagonal")
assert use[False] < 25
assert abs(gpus.get("V100 SXM2").need("fp16") / gpus.get("V100 SXM2").need("fp16 matrix") - 0.25) < 0.01

# %% [markdown]
# It is still below 25 %, where a V100's ordinary fp16 cores are as fast: the paper's conclusion stands, its maximum
# does not.
#
# ### TSM2: check the units first
#
# TSM2 chooses $t_2$ (columns of B at a time) and $t_3$ (elements of A loaded ahead) by Little's law: to use the whole
# bandwidth, an SM must have latency × bandwidth in flight. Give every quantity a dimension, as a vector of exponents,
# and follow the printed equations:

# %%
second, byte, operation, fma, element, thread = np.eye(6, dtype=int)
nothing = 0 * second
bandwidth, peak, latency = byte - second, operation - second, second
in_flight = thread + (element - thread)  # the threads of an SM, t3 elements each
use = in_flight - (latency + bandwidth)
size = byte - element
threshold = peak - bandwidth + size
time = (element + size) - bandwidth - thread  # m k n / t2 elements, over bandwidth, use and SMs · occupancy
assert not np.array_equal(use, nothing)
assert np.array_equal(use + size, nothing)
assert np.array_equal(threshold, operation - element)
assert not np.array_equal(threshold, fma - element)
assert np.array_equal(time, second - thread)

# %% [markdown]
# Three slips. The use of bandwidth is elements over bytes: it lacks the size of an element. The times are divided by
# the number of threads, though the bandwidth is that of the whole GPU. And the threshold, peak / bandwidth × bytes, is
# in *operations* an element, but $t_2$ counts *multiply-adds*: two operations each, so the threshold is twice too
# large. The published thresholds are the printed ones:

# %%
page, size = experiments.load("tsm2/parameters").module, (20480, 20480, 16)
rows, curves = {}, {}
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
    rows[name] = {
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
    assert abs(printed.threshold() / there[0] - 1) < 0.05
    assert np.isclose(model.threshold(), printed.threshold() / 2)
    assert printed.compute_bound(16) == model.compute_bound(16)
assert [row["t2, best"] for row in rows.values()] == ["16", "4 to 16", "16"]
assert [rows[name]["t3 that suffices"] for name in rows] == [4, 1, 1]
assert {rows[name]["t3, as printed"] for name in rows} == {33}
assert curves["P100"][3] == 4
pd.DataFrame(rows.values(), index=rows).round(1)

# %% [markdown]
# For $n = 16$ each GPU is on the same side of both thresholds: the factor of two decided nothing. But as printed, with
# use unlimited, the model rewards ever larger $t_3$ and stops only where the registers do, at 33. Corrected, and with
# a latency of 400 cycles (the paper prints none), $t_3 = 4$ is what a K40c needs, as published; M40 and P100 would do
# with less. On the M40, bound by its cores, any $t_2$ from 4 on is best, 8 among them. The published $t_2 = 4$ on the
# P100 does not follow: it reads A four times, and takes four times as long as $t_2 = 16$.
#
# ## What accuracy costs
#
# Speed is half of the question. For the other half there is `theory.bound`: the error relative to $|A||B|$, a priori,
# from norms of the operands, the scheme's words and order, and the instruction's fields. *Probable* means that all
# entries keep it with a probability of 99 %, the operands taken as random; *worst* that nothing breaks it. Every scheme
# is a point: $M = N = 8192$, $K = 4096$, entries uniform in $[-1, 1]$ or in $[0, 1]$.

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
    # what is cut off depends on the grid of the numbers, and so fp64 schemes get the norms of fp64 data
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
assert set(missing) == {("MI210", "ootomo-tf32")}
assert (points["probable"] <= points["worst"]).all()
print(f"{len(points)} points; no tf32 on the MI210")

# %% [markdown]
# A few of them the emulator computes, with 16 or 32 rows and columns: the largest error must stay below the bounds. In
# the figure a thin line leads from the probable bound to the worst case (left out for slices), crosses are measured.

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
assert factor.min() > 1
assert factor.max() < 20

# %%
frontier = {}
with plotting.style():
    figure, axes = plotting.figure(2, 2, height=6.4)
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
    assert names[0] == "fp16"
    assert "staged" in names
    assert "sgemm" not in names
    assert ("dgemm" in names) == (gpu == "MI210")
at = points[points["count"] == 0].set_index(["gpu", "data", "scheme"]).sort_index()
for data in DATA:
    chain, promoted, plain, native = (at.loc["H200", data, name] for name in ("legemm", "staged", "fp16", "sgemm"))
    assert np.isclose(chain["speed"], promoted["speed"])
    print(
        f"H200, {data}, probable error: one chain {plain['probable'] / chain['probable']:.1f}× below plain fp16,",
        f"{chain['probable'] / native['probable']:.1f}× above SGEMM, {chain['probable'] / promoted['probable']:.0f}×",
        "above the promoted one",
    )
    assert chain["probable"] > 20 * promoted["probable"]
    assert chain["probable"] > 3 * native["probable"]
assert 2 < plain["probable"] / chain["probable"] < 3
own = points.set_index(["gpu", "data", "scheme", "count"]).sort_index()
falls = own["probable"]["H200", "zero mean", "ozimmu"].loc[2:7]
assert (falls / falls.shift(-1)).dropna().between(80, 130).all()
for _, point in points[(points["scheme"] == "ozimmu") & (points["count"] >= 4)].iterrows():
    other = own.loc[point["gpu"], point["data"], "ozaki2"]
    assert ((other["speed"] > point["speed"]) & (other["probable"] < point["probable"])).any()
for (gpu, data), here in points.groupby(["gpu", "data"]):
    sliced = here[here["scheme"].isin(PATHS) & (here["probable"] <= at.loc[gpu, data, "staged"]["probable"])]
    assert at.loc[gpu, data, "staged"]["speed"] > sliced["speed"].max()
rival = own.loc["H200", "zero mean", "ozaki2", 15]
assert rival["probable"] < at.loc["H200", "zero mean", "dgemm"]["probable"]
needed = library["DGEMM"] / rival["speed"]
assert round(100 * needed) == 71
assert round(100 * shares.set_index("what")["share"]["DGEMM"]) == 94
print(f"15 moduli beat the DGEMM measured above from {100 * needed:.0f} % of their roofline on")
peak = gpus.get("MI210").peak
assert peak["fp64 matrix"] == peak["fp32 matrix"]
assert peak["int8 matrix"] == peak["fp16 matrix"]

# %% [markdown]
# The grey line is the frontier: for the error allowed, the best speed. What it says:
#
# * **Where sums are kept matters more than which words.** Three products in one chain and three that promote the
#   running sum have one roofline; the promoted ones are more than twenty times as accurate on an H200. On positive
#   data the chain has a third of plain fp16's speed and not even a third of its error: what is left is truncation of
#   the sums, and SGEMM is better.
# * **On an H200 neither SGEMM nor DGEMM is on the frontier.** Something else is allowed to be faster and is more
#   accurate. But DGEMM reaches 94 % of its roofline, and 15 moduli must reach 71 % of theirs to beat it. On an MI210
#   DGEMM is on the frontier, over nearly eight orders of magnitude: its fp64 matrix unit is as fast as that for fp32,
#   and int8 is no faster than fp16.
# * **Slices are the path from fp32 to fp64 accuracy.** Every int8 slice takes the error down about a hundred times, at
#   $s(s+1)/2$ products for $s$ slices. Scheme II needs one product a modulus and one more: from four slices on, there
#   is a number of moduli that is faster and more accurate. At fp32's own accuracy words are faster than either.
#
# The bound's parts show the first point: LE-GEMM's chain on an H200, positive data. Splitting the operands and leaving
# out the smallest product cost nothing beside the bias of the sums.

# %%
limit = theory.bound("legemm", "H200", norms=sample["fp32"], M=8192, N=8192)
assert max(limit.parts, key=lambda part: part.rms).name.startswith("sums")
assert 1.1 * limit.bias > 0.9 * limit.probable()
print(limit)

# %% [markdown]
# As a table, the fastest scheme for an error wanted, and its roofline in TFLOP/s:

# %%
rows = {}
for target in (1e-4, 1e-6, 1e-7, 1e-9, 1e-12, 1e-15):
    for (gpu, data), here in points.groupby(["gpu", "data"]):
        row = here[here["probable"] <= target].sort_values(["speed", "probable"], ascending=[False, True]).iloc[0]
        count = f" {row['count']}" if row["count"] else ""
        rows.setdefault((gpu, data), {})[f"{target:.0e}"] = f"{row['scheme']}{count}, {row['speed']:.0f}"
assert rows["MI210", "zero mean"]["1e-09"].startswith("dgemm")
assert rows["H200", "zero mean"]["1e-09"].startswith("ozaki2")
assert 1e-6 < at.loc["H200", "positive", "staged"]["probable"] < 1.5e-6
pd.DataFrame(rows).rename_axis("error").transpose()

# %% [markdown]
# On positive data the promoted products just miss $10^{-6}$ on an H200, at their default interval of 64. Would another
# one reach it? Promoting costs nothing on the roofline here. For an interval of `stage` products, per entry:

# %%
rows = {}
for stage in (16, 32, 64, 128, 256, 512):
    limit = theory.bound("staged", "H200", norms=sample["fp32"], M=8192, N=8192, stage=stage)
    speed = roofline.time(roofline.work("staged", "H200", 8192, 8192, 4096, stage=stage), "H200").flops / 1e12
    rows[stage] = {"bias": limit.bias, "deviation": limit.deviation, "probable": limit.probable(), "TFLOP/s": speed}
stages = pd.DataFrame(rows).transpose().rename_axis("stage")
assert stages["bias"].is_monotonic_increasing
assert stages["deviation"].loc[:128].is_monotonic_decreasing
assert stages["probable"].idxmin() in (64, 128)
assert stages["probable"].min() > 1e-6
assert np.isclose(stages["probable"][64], at.loc["H200", "positive", "staged"]["probable"])
assert stages["TFLOP/s"].min() > 0.99 * stages["TFLOP/s"].max()
stages.map("{:.3g}".format)

# %% [markdown]
# No. Truncation inside the instruction leaves a bias that grows with the interval; rounding outside grows with the
# number of promotions. The least is between, and above $10^{-6}$ at this $K$.
#
# ### Ask, and be told
#
# `fpemu.advise` does this for one's own matrices: it takes norms from the data, tries the options of every scheme,
# counts the cost, and measures the error before it recommends anything. At $K = 1024$, $10^{-6}$ is within reach of
# three products:

# %%
A, B = fpemu.inputs.operands("uniform", 64, 64, 1024, 0, "fp32", low=0.0, high=1.0)
exact, S = fpemu.reference.matmul(A, B), fpemu.reference.matmul(np.abs(A), np.abs(B))
works = []
for gpu, confidence in (("H200", "probable"), ("H200", "worst"), ("MI210", "probable")):
    advice = fpemu.advise(1e-6, hardware=gpu, A=A, B=B, confidence=confidence)
    chosen = advice.chosen
    assert chosen.limit(confidence) <= 1e-6
    assert chosen.measured <= 1e-6
    D = fpemu.gemm(A, B, scheme=advice.scheme, hardware=gpu, on_range=chosen.candidate.on_range, **advice.options)
    assert np.max(np.abs(D - exact) / S) <= 1e-6
    works.append(chosen.candidate.cost.work)
    print(
        f"{gpu}, {confidence} bound {chosen.limit(confidence):.1e}, measured {chosen.measured:.1e},",
        f"{works[-1]:g} times the work of one fp16 product",
        advice.call(),
        "",
        sep="\n",
    )
    if confidence == "worst":
        assert advice.scheme in PATHS
assert works[0] < works[1]

# %% [markdown]
# A guarantee costs more than a probability: without any assumption on the data, a scheme with exact products is the
# cheapest way to $10^{-6}$ (its int8 products run at twice the rate of fp16). And where nothing will do, it says so,
# with the best that can be had:

# %%
try:
    fpemu.advise(1e-16, hardware="V100", A=A, B=B, confidence="worst")
    refused = False
except fpemu.InputError as problem:
    refused = True
    print(problem)
assert refused

# %% [markdown]
# ## What the models cannot say
#
# * **How fast a kernel will be.** A roofline knows no latency, no power limit, no clock below the maker's, no tile that
#   fills the GPU badly. The measured fp16 products above fall with $n$ where the bound is flat.
# * **Which of two equal tiles.** LE-GEMM's model gives (128, 256) and (256, 128) the same value; MAGMA's leaves many
#   configurations tied. Models exclude; what remains is to be measured.
# * **What your data are like.** The probable bound takes operands as random. Where they are not, the worst case is what
#   is left, five to over a thousand times larger; hence `advise` measures.
# * **What a closed library does.** SGEMM is one ascending chain here; cuBLAS may split K and then be more accurate. The
#   Ascend's bits are not public and assumed.

# %%
plain = shares[shares["what"].str.startswith("fp16, n")]["share"]
assert plain.is_monotonic_decreasing
assert plain.iloc[0] > plain.iloc[-1] + 0.05
tiles = [legemm.Tile(128, 256, 32), legemm.Tile(256, 128, 32)]
assert len({legemm.objective(tile, gpus.get("A800"), 8192, 8192) for tile in tiles}) == 1
ratio = at["worst"] / at["probable"]
assert 4 < ratio.min() < ratio.max() < 2000
print(
    f"fp16's share of the roofline: {', '.join(f'{100 * value:.0f} %' for value in plain)};",
    f"worst / probable: {ratio.min():.0f} to {ratio.max():.0f}",
)

# %% [markdown]
# ## What was learnt
#
# * Three fp16 products can beat SGEMM on all six GPUs, by a third on an MI210; the size from which they do depends on
#   where the split runs.
# * The ratio of two rooflines predicts a measured gain within a tenth; a single roofline is missed by up to a third.
# * A model that returns published parameters proves little: of thirteen changed assumptions of LE-GEMM's tile model
#   five return them too, and TSM2's printed equations, with their units made consistent, return two of three.
# * Of two schemes with one roofline the place of the rounding decides: promoted sums are more than twenty times as
#   accurate as one chain.
#
# Next: [legemm](legemm.ipynb), [h2sgemm](h2sgemm.ipynb), [magma](magma.ipynb) and [tsm2](tsm2.ipynb) for the papers'
# accuracy, [dgemm_tc](dgemm_tc.ipynb) for slices.
