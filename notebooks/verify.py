# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Is this product what it is said to be?
#
# `fpemu.conformance.verify`, on the command line `fpemu verify gemm`, holds a matrix product against a claim: which
# instruction, in which order over $K$, or which scheme. Equal means that every bit is. If one is not, the tool says
# where, and looks for the likeliest cause by trying what else the product may have been: other orders, promotions,
# roundings of the operands, epilogues, accumulators, hardware and schemes.
#
# Here it judges products of PyTorch (cuBLAS), of Triton kernels, and of fpemu's own kernels. Their operands can be
# drawn again anywhere (`fpemu.inputs`), so only the results had to be recorded: 24 rows and columns of each, by
# [data/products.py](data/products.py), which records them on any GPU. These come from this one:

# %%
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu.conformance import verify
from fpemu.mma import KOrder

sys.path.insert(0, "notebooks/data")
import products

cases = {case.name: case for case in products.cases()}
origin, results = products.load(Path("notebooks/data/products.npz"))
assert list(results) == list(cases)
assert not origin.pop("failed")
assert all(D.shape == (24, 24) for D in results.values())
print(*(f"{what}: {value}" for what, value in origin.items()), sep="\n")


# %%
def judge(name, **claim):
    """A recorded product against a claim: by default the H200's instruction of its format, in one chain."""
    A, B, C = cases[name].kept_operands()
    return verify(results[name], A, B, C, **{**cases[name].claim(), "seconds": 600, "most": 700, **claim})


verdicts = {name: judge(name) for name in results}


# %% [markdown]
# ## torch.mm
#
# A product of $512^3$ in fp16 with an fp32 result: one chain of instructions over $K$, as claimed.

# %%
verdict = verdicts["mm fp16"]
assert cases["mm fp16"].shape == (512, 512, 512)
assert verdict.equal
assert not verdict.alike
print(verdict)

# %% [markdown]
# At $100\times60\times1000$ the library splits $K$ so that more of the GPU has work, and the claim is wrong. The tool
# finds the slices' length, and that each slice takes the odd piece of its length first.

# %%
verdict = verdicts["mm fp16 odd"]
assert cases["mm fp16 odd"].shape == cases["mm fp16 odd TN"].shape == (100, 60, 1000)
assert not verdict.equal
assert verdict.causes[0].specification.order == KOrder(split=128, tile=64, residue_first=True)
print(verdict)

# %% [markdown]
# The same product with $B$ stored by columns is another kernel, with another order:

# %%
verdict = verdicts["mm fp16 odd TN"]
assert verdict.causes[0].specification.order == KOrder(split=112)
print(verdict)

# %% [markdown]
# ### tf32: a surprise
#
# The instruction takes fp32 words and ignores their low 13 bits, which is a rounding toward zero. The claim
# "operands as they are, one chain" fails in all entries, and by far: cuBLAS rounds them to nearest first.

# %%
verdict = verdicts["mm tf32"]
assert verdict.difference.patterns == ("all entries",)
assert verdict.causes[0].specification.inputs == ("tf32", "RNE")
print(verdict)

# %% [markdown]
# Two things can be wrong at once. At $160\times96\times512$ the operands are rounded, and $K$ is split:

# %%
verdict = verdicts["mm tf32 split"]
assert cases["mm tf32 split"].shape == (160, 96, 512)
assert set(verdict.causes[0].kinds) in ({"inputs", "order"}, {"inputs", "promotion"})
print(verdict)

# %% [markdown]
# ### fp32: ordinary cores
#
# A plain fp32 product runs as fused multiply-adds. In one chain at $1024^3$; at $512^3$ four accumulators take eight
# positions of $K$ in turn, and are added at the end.

# %%
assert (cases["mm fp32"].shape, cases["mm fp32 sliced"].shape) == (3 * (1024,), 3 * (512,))
assert verdicts["mm fp32"].equal
verdict = verdicts["mm fp32 sliced"]
assert "4 accumulators that take 8 of k in turn" in verdict.causes[0].text
print(verdict)

# %% [markdown]
# ### fp16 results
#
# With an fp16 result the same shape is split too. Here the partial sums go through a workspace in fp16, and are added
# in fp32: a second rounding that the claim does not have. After it the entries no longer tell whether a slice takes its
# odd piece first, and the verdict says so.

# %%
verdict = verdicts["mm fp16 to fp16 split"]
assert cases["mm fp16 to fp16 split"].shape == cases["mm fp16 odd"].shape
assert KOrder(split=128, tile=64, residue_first=True) in [cause.specification.order for cause in verdict.causes]
assert verdict.causes[0].specification.join is None
assert verdict.causes[0].specification.stored == "fp16"
print(verdict)

# %% [markdown]
# ### alpha and beta
#
# `torch.addmm` computes $\alpha AB+\beta C$. The product is right, but some entries differ in their last bits: the
# library's epilogue is a fused multiply-add, with one rounding less than two operations have.

# %%
verdict = verdicts["addmm fp32"]
assert verdict.causes[0].specification.epilogue == "fma"
print(verdict)

# %% [markdown]
# ## Everything that was recorded
#
# The default claim about each, and what the tool says. *Part* marks a cause that leaves some entries different.

# %%
rows = []
for name in results:
    found = verdicts[name]
    cause = found.causes[0] if found.causes else None
    mark = "" if cause is None or cause.left == 0 else f"part, {cause.left} left: "
    rows.append(
        {
            "product": name,
            "of": cases[name].by,
            "differ": 0 if found.equal else found.difference.entries,
            "cause": "equal" if found.equal else "not found" if cause is None else mark + cause.text,
        }
    )
with pd.option_context("display.max_colwidth", None, "display.width", 200):
    display(pd.DataFrame(rows).set_index("product"))

# %% [markdown]
# The rows of Triton: a plain `tl.dot` is one chain of `wgmma`, and so is `acc += tl.dot(...)`: the compiler gives the
# sum to the instruction's accumulator. A promotion has to be hidden from it, or asked for (`max_num_imprecise_acc`, for
# fp8). The plain tf32 dot leaves the operands to the instruction, which cuts them, where cuBLAS rounds.

# %%
assert all(verdicts[name].equal for name in ("dot fp16", "dot fp16 +=", "dot tf32", "dot ieee", "dot e4m3"))
assert judge("dot fp16 promoted", order=KOrder(promote=64)).equal
assert verdicts["dot e4m3 promoted"].causes[0].specification.order == KOrder(promote=32)
print(verdicts["dot e4m3 promoted"])

# %% [markdown]
# `input_precision="tf32x3"` is a scheme, close to that of Ootomo and Yokota. Each operand becomes
# two tf32 words, the first rounded to nearest, the second cut by the instruction; three products of words share an
# accumulator that starts anew every step of the loop. With these choices the claim holds bit for bit. Three entries
# tell that ties go away from zero; which of the two small products comes first, these operands do not tell:

# %%
print(verdicts["dot tf32x3"])
A, B, _ = cases["dot tf32x3"].kept_operands()
choices = {
    "high_rounding": "RNA",
    "residual_rounding": "RZ",
    "products": "rh,hr,hh",
    "accumulators": "one",
    "correction_step": 32,
    "promote": 32,
}
for other, entries in (({}, 0), ({"products": "hr,rh,hh"}, 0), ({"high_rounding": "RNE"}, 3)):
    claim = {"scheme": "ootomo-tf32", "hardware": "H200", **choices, **other}
    verdict = verify(results["dot tf32x3"], A, B, causes=False, **claim)
    assert (0 if verdict.equal else verdict.difference.entries) == entries

# %% [markdown]
# ## A callable can be asked again
#
# Given a function instead of a result, the tool calls it twice (a product that changes from call to call is refused),
# and where no order on its list fits, it probes the function for its summation tree.

# %%
spec = fpemu.mma.spec("H200", "fp16", "fp32")
A, B = fpemu.inputs.operands("normal", 16, 16, 300, seed=1, dtype="fp16")
odd = KOrder(split=92, tile=40, residue_first=True)
verdict = verify(lambda A, B: fpemu.mma.gemm(A, B, None, spec, odd), A, B, hardware="H200", seconds=600)
assert verdict.causes[0].specification.order == odd
print(verdict)

# %% [markdown]
# ## A scheme can be the claim
#
# Ootomo and Yokota's three products, said to be promoted every instruction; in truth every 64 of $K$:

# %%
A, B = fpemu.inputs.operands("normal", 32, 32, 512, seed=2)
D = fpemu.gemm(A, B, scheme="ootomo", hardware="H200", promote=64)
assert verify(D, A, B, scheme="ootomo", hardware="H200", promote=64).equal
verdict = verify(D, A, B, scheme="ootomo", hardware="H200", seconds=600)
assert verdict.causes[0].specification.scheme.promote == 64
print(verdict)

# %% [markdown]
# ## What the operands do not tell
#
# Equal bits prove a claim as far as the operands go. With small integers every sum is exact, and any order and any
# instruction gives the same bits. The verdict holds a claim that holds against such alternatives.

# %%
A, B = (np.rint(4 * x) for x in fpemu.inputs.operands("normal", 16, 16, 256, seed=4, dtype="fp16"))
verdict = verify(fpemu.mma.gemm(A, B, None, spec, KOrder(split=64)), A, B, hardware="H200")
assert verdict.equal
assert len(verdict.alike) == verdict.tried
print(verdict)

# %% [markdown]
# ## Where a difference sits
#
# The places of a difference tell much before any cause is tried. Here the first 32 rows were multiplied by a kernel
# that rounds the operands, the rows beyond that tile by one that leaves it to the instruction, as claimed. A rounding
# to fp16 would explain it too: it keeps as many bits as tf32, in a smaller range, which these operands do not leave.

# %%
A, B = fpemu.inputs.operands("normal", 48, 32, 128, seed=3)
tf32 = fpemu.mma.spec("H200", "tf32", "fp32")
near = [np.asarray(fpemu.round_to(x, "tf32")) for x in (A, B)]
D = fpemu.mma.gemm(A, B, None, tf32)
D[:32] = fpemu.mma.gemm(near[0][:32], near[1], None, tf32)
verdict = verify(D, A, B, hardware="H200", fmt="tf32", most=200)
assert verdict.difference.patterns == ("only in rows 0 to 31 (the first)",)
assert ("fp16", "RNE") in [cause.specification.inputs for cause in verdict.causes]
assert verdict.causes[0].specification.inputs == ("tf32", "RNE")
print(verdict)

# %% [markdown]
# ## What was learnt
#
# * cuBLAS splits $K$ by shape and layout, rounds tf32 operands to nearest, and scales by fused multiply-adds; each of
#   these was found from the results alone.
# * Triton leaves sums and tf32 operands to the instruction, unless the promotion is hidden from its compiler.
# * Equal bits prove a claim only as far as the operands tell its alternatives apart, and the verdict lists those it
#   cannot exclude.
