# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Verification of matrix products against their specification
#
# `fpemu.verify`, on the command line `fpemu verify gemm`, compares a matrix product with its specification:
# an instruction and a summation order over $K$, or a scheme. The verdict is *equal* only if every bit is equal. If a
# bit differs, the verdict lists the positions of the mismatches and the likeliest cause: terms, rows, tiles or factors
# in wrong places, or a combination of other roundings of the operands, instructions, accumulators, orders, epilogues
# and schemes.
#
# This notebook verifies products of PyTorch (cuBLAS), of Triton kernels, and of fpemu's kernels on an H200. The
# argument: the bits of a result suffice to determine the order and the roundings of a closed library, as far as the
# operands distinguish the alternatives. The operands are functions of a seed (`fpemu.inputs`), so only results were
# recorded, 24 rows and columns of each product; [data/products.py](data/products.py) records them on any GPU. The
# present recordings were made with:

# %%
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu import verify
from fpemu.mma import KOrder

sys.path.insert(0, "notebooks/data")
sys.path.insert(0, "data")  # a kernel that starts in the notebooks' folder
import products


def print_wrapped(verdict):
    """Print a verdict in lines of at most 110 characters."""
    for line in str(verdict).splitlines():
        print(textwrap.fill(line, 110, subsequent_indent="    "))


cases = {case.name: case for case in products.cases()}
origin, results = products.load(Path(products.__file__).with_name("products.npz"))
failed = origin.pop("failed")
print(*(f"{name}: {value}" for name, value in origin.items()), sep="\n")


# %%
def judge(name, **specification):
    """Verify a recorded product, by default against one chain of the H200's instruction of its format."""
    A, B, C = cases[name].recorded_operands()
    return verify(results[name], A, B, C, **{**cases[name].specification(), "seconds": 600, **specification})


verdicts = {name: judge(name) for name in results}

# %% [markdown]
# ## torch.mm
#
# The specification of the first product, $512^3$ in fp16 with an fp32 result, is one chain of instructions over $K$.
# The product is equal.

# %%
verdict_fp16 = verdicts["mm fp16"]
print_wrapped(verdict_fp16)

# %% [markdown]
# For $100\times60\times1000$ the library splits $K$ to occupy more of the GPU, and one chain is the wrong
# specification. The verdict names the length of the slices, and the residue of each slice as the first tile.

# %%
verdict_odd = verdicts["mm fp16 odd"]
print_wrapped(verdict_odd)

# %% [markdown]
# The same product with $B$ stored by columns uses another kernel, with another order:

# %%
verdict_odd_tn = verdicts["mm fp16 odd TN"]
print_wrapped(verdict_odd_tn)

# %% [markdown]
# ### tf32: the rounding of the operands
#
# The instruction reads fp32 words and ignores their lowest 13 bits, which is a rounding toward zero. With the
# specification "operands unchanged, one chain" all entries mismatch by many ulps, because cuBLAS rounds the operands to
# nearest first.

# %%
verdict_tf32 = verdicts["mm tf32"]
print_wrapped(verdict_tf32)

# %% [markdown]
# A product may deviate in two properties. For $160\times96\times512$ the operands are rounded to nearest, and $K$ is
# split:

# %%
verdict_tf32_split = verdicts["mm tf32 split"]
print_wrapped(verdict_tf32_split)

# %% [markdown]
# ### fp32: ordinary cores
#
# A plain fp32 product consists of fused multiply-adds. At $1024^3$ each entry is one chain. At $512^3$ each entry has
# four accumulators, which alternate every eight positions of $K$ and are added at the end.

# %%
verdict_sliced = verdicts["mm fp32 sliced"]
print_wrapped(verdict_sliced)

# %% [markdown]
# ### fp16 results
#
# With an fp16 result the product $100\times60\times1000$ is split as well. Its partial sums are rounded to fp16 in a
# workspace and added in fp32, a second rounding that the specification does not contain. After this rounding the
# operands do not determine whether the residue of a slice comes first, and the verdict states this.

# %%
verdict_fp16_split = verdicts["mm fp16 to fp16 split"]
print_wrapped(verdict_fp16_split)

# %% [markdown]
# ### alpha and beta
#
# `torch.addmm` computes $\alpha AB+\beta C$. Some entries mismatch in their last bits: the epilogue of the library is a
# fused multiply-add, with one rounding, and the specification has a multiplication and an addition, with two roundings.

# %%
verdict_addmm = verdicts["addmm fp32"]
print_wrapped(verdict_addmm)

# %% [markdown]
# ## All recorded products
#
# The table lists the verdict on each product with its default specification. *Part* marks a cause that does not explain
# all mismatches, with the number of unexplained entries.

# %%
rows = []
for name in results:
    verdict = verdicts[name]
    cause = verdict.causes[0] if verdict.causes else None
    mark = "" if cause is None or cause.left == 0 else f"part, {cause.left} left: "
    rows.append(
        {
            "product": name,
            "of": cases[name].by,
            "differ": 0 if verdict.equal else verdict.difference.entries,
            "cause": "equal" if verdict.equal else "not found" if cause is None else mark + cause.text,
        }
    )
with pd.option_context("display.max_colwidth", None, "display.width", 200):
    display(pd.DataFrame(rows).set_index("product"))

# %% [markdown]
# In Triton a plain `tl.dot` is one chain of `wgmma`. The statement `acc += tl.dot(...)` is also one chain, because the
# compiler passes the sum to the instruction as its accumulator. A promotion requires code that the compiler cannot
# merge with the instruction, or `max_num_imprecise_acc` (fp8 only). The plain tf32 dot product passes the operands to
# the instruction, which truncates them; cuBLAS rounds them to nearest.

# %%
print_wrapped(verdicts["dot e4m3 promoted"])

# %% [markdown]
# `input_precision="tf32x3"` is a scheme similar to the scheme of Ootomo and Yokota. Each operand becomes two tf32
# words: the first word is rounded to nearest, and the instruction truncates the second. The three products of words
# share an accumulator that restarts in every iteration of the loop. With these options the product is equal to the
# specification. Three entries show that ties are rounded away from zero. The operands do not determine the order of the
# two products with a residual:

# %%
print_wrapped(verdicts["dot tf32x3"])
A_x3, B_x3, _ = cases["dot tf32x3"].recorded_operands()
options = {
    "high_rounding": "RNA",
    "residual_rounding": "RZ",
    "products": "rh,hr,hh",
    "accumulators": "one",
    "step": 32,
    "promote": 32,
}

# %% [markdown]
# ## Verification of a callable
#
# If a function is given instead of a result, `verify` calls it twice and raises an error if the results differ. If no
# order of its list reproduces the product, it probes the function for its summation tree.

# %%
spec = fpemu.mma.spec("H200", "fp16", "fp32")
A, B = fpemu.inputs.operands("normal", 16, 16, 300, seed=1, dtype="fp16")
odd = KOrder(split=92, tile=40, residue_first=True)
verdict_probed = verify(lambda A, B: fpemu.mma.gemm(A, B, None, spec, odd), A, B, hardware="H200", seconds=600)
print_wrapped(verdict_probed)

# %% [markdown]
# ## Verification of a scheme
#
# The specification is the scheme of Ootomo and Yokota with a promotion after every instruction. The product was
# promoted every 64 in $K$:

# %%
A_ootomo, B_ootomo = fpemu.inputs.operands("normal", 32, 32, 512, seed=2)
D_ootomo = fpemu.gemm(A_ootomo, B_ootomo, scheme="ootomo", hardware="H200", promote=64)
verdict_ootomo = verify(D_ootomo, A_ootomo, B_ootomo, scheme="ootomo", hardware="H200", seconds=600)
print_wrapped(verdict_ootomo)

# %% [markdown]
# ## Specifications that the operands do not distinguish
#
# Equal bits confirm a specification only against the alternatives that the operands distinguish. With small integers
# every sum is exact, so every order and every instruction return the same bits. The verdict lists the alternatives that
# return the same bits.

# %%
A, B = (np.rint(4 * x) for x in fpemu.inputs.operands("normal", 16, 16, 256, seed=4, dtype="fp16"))
verdict_integers = verify(fpemu.mma.gemm(A, B, None, spec, KOrder(split=64)), A, B, hardware="H200")
print_wrapped(verdict_integers)

# %% [markdown]
# ## The positions of mismatches
#
# The positions of the mismatches indicate the cause. In this product the first 32 rows come from a kernel that rounds
# the operands to nearest. The other rows come from a kernel that passes the operands unchanged, as the specification
# states.

# %%
A, B = fpemu.inputs.operands("normal", 48, 32, 128, seed=3)
tf32 = fpemu.mma.spec("H200", "tf32", "fp32")
rounded = [np.asarray(fpemu.round_to(x, "tf32")) for x in (A, B)]
D = fpemu.mma.gemm(A, B, None, tf32)
D[:32] = fpemu.mma.gemm(rounded[0][:32], rounded[1], None, tf32)
verdict = verify(D, A, B, hardware="H200", fmt="tf32", seconds=600)
print_wrapped(verdict)

# %% [markdown]
# ## Conclusions
#
# * cuBLAS selects the split of $K$ by shape and layout, rounds tf32 operands to nearest, and applies $\alpha$ and
#   $\beta$ by fused multiply-adds. The results alone determined each of these properties.
# * Triton's compiler passes sums to the instruction unless it cannot merge them, and tf32 operands unrounded.
# * Equal bits confirm a specification only against the alternatives that the operands distinguish, and the verdict
#   lists the other alternatives.

# %% [markdown]
# ## Checks
#
# Every number in the text follows from the results above.

# %%
# Verification of matrix products against their specification
assert list(results) == list(cases)
assert not failed
assert all(D.shape == (24, 24) for D in results.values())

# torch.mm
assert cases["mm fp16"].shape == (512, 512, 512)
assert verdict_fp16.equal
assert not verdict_fp16.alike
assert cases["mm fp16 odd"].shape == cases["mm fp16 odd TN"].shape == (100, 60, 1000)
assert not verdict_odd.equal
assert verdict_odd.causes[0].specification.order == KOrder(split=128, tile=64, residue_first=True)
assert verdict_odd_tn.causes[0].specification.order == KOrder(split=112)

# tf32: the rounding of the operands
assert verdict_tf32.difference.patterns == ("all entries",)
assert verdict_tf32.causes[0].specification.inputs == ("tf32", "RNE")
assert cases["mm tf32 split"].shape == (160, 96, 512)
assert set(verdict_tf32_split.causes[0].kinds) in ({"inputs", "order"}, {"inputs", "promotion"})

# fp32: ordinary cores
assert (cases["mm fp32"].shape, cases["mm fp32 sliced"].shape) == (3 * (1024,), 3 * (512,))
assert verdicts["mm fp32"].equal
assert "4 accumulators that alternate every 8 of k" in verdict_sliced.causes[0].text

# fp16 results
assert cases["mm fp16 to fp16 split"].shape == cases["mm fp16 odd"].shape
assert KOrder(split=128, tile=64, residue_first=True) in [
    cause.specification.order for cause in verdict_fp16_split.causes
]
assert verdict_fp16_split.causes[0].specification.join is None
assert verdict_fp16_split.causes[0].specification.stored == "fp16"

# alpha and beta
assert verdict_addmm.causes[0].specification.epilogue == "fma"

# All recorded products
assert all(verdicts[name].equal for name in ("dot fp16", "dot fp16 +=", "dot tf32", "dot ieee", "dot e4m3"))
assert judge("dot fp16 promoted", order=KOrder(promote=64)).equal
assert verdicts["dot e4m3 promoted"].causes[0].specification.order == KOrder(promote=32)
for other, entries in (({}, 0), ({"products": "hr,rh,hh"}, 0), ({"high_rounding": "RNE"}, 3)):
    specification = {"scheme": "ootomo-tf32", "hardware": "H200", **options, **other}
    x3 = verify(results["dot tf32x3"], A_x3, B_x3, causes=False, **specification)
    assert (0 if x3.equal else x3.difference.entries) == entries

# Verification of a callable
assert verdict_probed.causes[0].specification.order == odd

# Verification of a scheme
assert verify(D_ootomo, A_ootomo, B_ootomo, scheme="ootomo", hardware="H200", promote=64).equal
assert verdict_ootomo.causes[0].specification.scheme.promote == 64

# Specifications that the operands do not distinguish
assert verdict_integers.equal
assert len(verdict_integers.alike) == verdict_integers.tried

# The positions of mismatches
assert verdict.difference.patterns == ("only in rows 0 to 31 (the first)",)
assert verdict.causes[0].specification.inputs == ("tf32", "RNE")
