# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Two runs of one layer, and the product in which they differ
#
# The same rows of a batch pass through the same MLP (fp16 weights, sums in fp32) in three runs on an H200: 128 rows by
# cuBLAS, the first 8 of these rows by cuBLAS, and 128 rows with a Triton kernel for the second matrix.
# `fpemu.torch.record` wrote a record of each run; [data/runs.py](data/runs.py) repeats them on a GPU. This notebook
# finds the first product in which two runs differ, and its cause, without a GPU. The runs were made with:

# %%
# %matplotlib inline
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import display

import fpemu
from fpemu.conformance import compare_runs, replay_run
from fpemu.conformance.runs import read
from fpemu.plotting.intervals import picture
from fpemu.testing import assert_bits_equal

folder = next(path for path in (Path("notebooks/data/runs"), Path("data/runs")) if path.is_dir())


def print_wrapped(text):
    """Print a text in lines of at most 110 characters."""
    for line in str(text).splitlines():
        print(textwrap.fill(line, 110, subsequent_indent="    "))


print(*(f"{name}: {value}" for name, value in read(folder / "rows128")[0].about.items()), sep="\n")

# %% [markdown]
# ## A natural difference: the number of rows
#
# The 8 rows of the second run are rows of the first, so that their results could have equal bits. The results of the
# first matrix have them, those of the second have not. The record holds 4 rows of A, 8 columns of B and their 32
# entries of D, which suffice to determine the summation order of both products: cuBLAS divides $K$ in slices if there
# are 8 rows.

# %%
natural = compare_runs(folder / "rows128", folder / "rows8")
print_wrapped(natural)

# %% [markdown]
# Neither result is wrong. Both have the error of fp32 sums, and the entries differ from the exact product, rounded to
# fp32, in the last bits:

# %%
one, other = natural.first
common = [row for row in other.rows if row in one.rows]
A, B = other.sample("A"), other.sample("B")
exact = fpemu.reference.matmul(A, B, out="fp64")
results = {"128 rows": one.sample("D")[: len(common)], "8 rows": other.sample("D")[: len(common)]}
table = pd.DataFrame({name: D[0] for name, D in results.items()} | {"exact": exact[0]})
display(table)
errors = {name: fpemu.metrics.relative_l2(D, exact[: len(common)]) for name, D in results.items()}
print(*(f"{name}: relative error {error:.1e}" for name, error in errors.items()), sep="\n")

# %% [markdown]
# ## A planted difference: another kernel
#
# The Triton kernel of the third run adds slices of 512. The record has the name under which the program reported it.

# %%
planted = compare_runs(folder / "rows128", folder / "triton")
print_wrapped(planted)

# %% [markdown]
# ## Every product of a run
#
# Emulation reproduces all sampled entries of all products:

# %%
replayed = {name: replay_run(folder / name) for name in ("rows128", "rows8", "triton")}
for name, groups in replayed.items():
    for group in groups:
        print_wrapped(f"{name}: {group.explained} of {group.count} {group.example}: {'; '.join(group.texts)}")

# %% [markdown]
# ## Where the order changes
#
# `fpemu.library.invariance` compares cuBLAS's known orders over the number of rows, without a GPU. A batch-invariant
# kernel has one order for all of them:

# %%
cublas = fpemu.library.invariance("cublas", "fp16", 4096, 4096, m=[1, 8, 16, 128])
print(cublas)
display(picture(cublas))

# %% [markdown]
# ## A test without a tolerance
#
# If a layer must have the bits of a stated order, a test compares bits. Here it fails with the cause:

# %%
try:
    assert_bits_equal(results["8 rows"], A[: len(common)], B, hardware="H200")
    message = ""
except AssertionError as error:
    message = str(error)
print_wrapped(message)

# %%
assert natural.first[0].module == planted.first[0].module == "MLP.down"
assert "one chain" in natural.explanations[0].text
assert natural.explanations[1].text.startswith("split in slices of")
assert "split in slices of 512" in planted.explanations[1].text
assert all(group.explained == group.count for groups in replayed.values() for group in groups)
assert not cublas.invariant
assert "likeliest cause: " in message
assert max(errors.values()) < 1e-5
assert not np.array_equal(*results.values())
