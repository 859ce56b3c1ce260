"""DGEMM-TC: implementations with an error, by claim."""

import itertools

import numpy as np

from fpemu import inputs, metrics, mma, reference, schemes
from fpemu.mma.exactness import published_bits
from fpemu.schemes import ozaki

from . import Wrong, once


def _product(cell, precision="fp64", **options):
    """Operands of figures 3 and 8, their exact product and the scheme's."""
    A, B = inputs.operands("phi", cell["rows"], cell["rows"], cell["n"], cell["seed"], precision, phi=cell["phi"])
    exact = reference.matmul(A, B, out=precision)
    return exact, schemes.gemm(A, B, scheme="ozaki", hardware=cell["hardware"], **options)


def _fewer_slices(mode, precision, slices):
    def numbers(page, cell):
        exact, D = _product(cell, precision, mode=mode, slices=slices)
        return {"TC": metrics.max_relative(D, exact)}

    return numbers


def _sum_in_fp64(page, cell):
    exact, D = _product(cell, slices=64, fast=False)
    return {"CR differing": float(np.count_nonzero(exact != D))}


def _family(page, cell, **options):
    A, B = page._operands(cell["family"], cell["n"], cell["seed"])
    exact = reference.matmul(A, B)
    return A, B, exact, schemes.gemm(A, B, hardware=cell["hardware"], **options)


def _three_slices(page, cell):
    A, B, exact, D = _family(page, cell, scheme="ozaki", slices=3)
    return {"printed relative": metrics.max_relative(D, exact), "printed normwise": metrics.normwise(D, exact, A, B)}


def _in_fp32(page, cell):
    with np.errstate(over="ignore"):
        return [x.astype(np.float32) for x in page._operands(cell["family"], cell["n"], cell["seed"])]


def _dgemm_in_fp32(page, cell):
    if cell["family"] != "X·X":
        return {}
    A, B = _in_fp32(page, cell)
    exact, D = reference.matmul(A, B), schemes.gemm(A, B, scheme="sgemm")
    bound = 2 * np.sqrt(A.shape[1]) * 2.0**-53 * (abs(A) @ abs(B).astype(np.float64).sum(axis=1))
    return {"DGEMM equation 1": float(np.max(abs(D - exact).sum(axis=1) / bound))}


def _unsplit(page, cell):
    A, B = _in_fp32(page, cell)
    options = {"scheme": "fp16", "hardware": cell["hardware"], "on_range": "propagate"}
    one, other = (schemes.gemm(A, B, order=order, **options) for order in (mma.KOrder(), mma.KOrder(split=16)))
    return {"DP irreproducible": float(np.count_nonzero(one != other))}


def _one_bit_more(page, cell):
    spec = mma.spec("turing", "fp16")
    if cell["instruction"] not in {one.name for one in page.CLASSES["fp16, NVIDIA"]}:
        return {}
    share = page._inexact(spec, published_bits(cell["k"]) + 2, **{k: cell[k] for k in ("m", "n", "k", "seed")})
    return dict(zip(("formula inexact one sign", "formula inexact uniform"), share, strict=True))


def _bits_of(classes, bits):
    def numbers(page, cell):
        names = {one.name for name in classes for one in page.CLASSES[name]}
        return {"derived bits": float(bits)} if cell["instruction"] in names else {}

    return numbers


def _last_slice_first(page, cell):
    if cell["n"] != page.N:
        return {}
    x = inputs.make("phi", (page.N,), (cell["seed"], 0), "fp64", phi=cell["phi"])
    slices: list[np.ndarray] = []
    while x.any():
        _, high = page._first_slice(x)
        slices.insert(0, abs(high))
        x = x - high
    pairs = [(a < b)[(a > 0) & (b > 0)] for a, b in itertools.pairwise(slices)]
    return {"scaled smaller": float(np.concatenate(pairs).mean())}


def _one_diagonal_less(page, cell):
    A, B = inputs.operands("phi", cell["rows"], cell["rows"], cell["n"], cell["seed"], "fp64", phi=cell["phi"])
    d = ozaki.algorithm3(A, B, printed=True)
    exact = reference.matmul(A, B)
    D = schemes.gemm(A, B, scheme="ozaki", hardware=cell["hardware"], slices=d - 2)
    numbers = {"fast largest": metrics.max_relative(D, exact), "fast L2": metrics.relative_l2(D, exact)}
    return numbers | {"fast products": float((d - 1) * (d - 2) / 2)}


def _counted(**changed):
    """Counts of products or slices, each a function of the page's own numbers."""
    return lambda page, cell: {
        name.replace("_", " "): change(once(page.evaluate, cell, page.evaluate))  # of the changed columns alone
        for name, change in changed.items()
    }


def _range(page, cell):
    other = once(page.evaluate, {**cell, "phi": 2.0}, page.evaluate)
    return {name: other[name] for name in ("smallest", "largest")}


COUNTS = {"recorded": False, "rows": 128, "seeds": 1}
SMALL = {"lengths": (256,), "rows": 16, "seeds": 2}
FAMILIES = {"n": 64, "seeds": 1}
INSTRUCTIONS = {"m": 2, "n": 2, "runs": 1}
FAST = {"lengths": (1024,), "rows": 8, "seeds": 1}
WRONG = {
    "dp_equivalent": Wrong("two slices in place of those of Algorithm 3", _fewer_slices("DP", "fp64", 2), SMALL),
    "sp_equivalent": Wrong("one slice in place of those of Algorithm 3", _fewer_slices("SP", "fp32", 1), SMALL),
    "cr_zero_dp": Wrong("sums in fp64 in place of one rounding", _sum_in_fp64, SMALL),
    "slices_exact": Wrong("slices two bits too long", _one_bit_more, INSTRUCTIONS),
    "fp16_sums_more_slices": Wrong(
        "fp16 sums counted as fp32 sums", _bits_of(("fp16, NVIDIA", "fp16 to fp16"), 5), INSTRUCTIONS
    ),
    "integers_fewer_slices": Wrong("four bits in an int8 word", _bits_of(("int8",), 4), INSTRUCTIONS),
    "slices_decrease": Wrong("slices in reverse order", _last_slice_first),
    "dp_products": Wrong(
        "all products in place of fast mode",
        _counted(DP_products=lambda of: of["DP slices A"] ** 2),
        COUNTS | {"lengths": (7168,)},
    ),
    "expected_speed": Wrong(
        "all products in place of fast mode",
        _counted(DP_products=lambda of: of["DP slices A"] ** 2),
        COUNTS | {"lengths": (10240,)},
    ),
    "wider_more_slices": Wrong(
        "slices for φ = 0.1 on all inputs",
        lambda page, cell: {"DP slices A": once(page.evaluate, {**cell, "phi": 0.1}, page.evaluate)["DP slices A"]},
        COUNTS | {"lengths": (1024,)},
    ),
    "cr_more_products": Wrong(
        "the slices and the fast mode of DP mode",
        _counted(CR_products=lambda of: of["DP products"]),
        COUNTS | {"lengths": (1024,)},
    ),
    "memory": Wrong(
        "slices of half as many bits",
        _counted(DP_slices_A=lambda of: 2 * of["DP slices A"], DP_slices_B=lambda of: 2 * of["DP slices B"]),
        COUNTS | {"lengths": (7168,)},
    ),
    "algorithm3_accuracy": Wrong("three slices in place of those of Algorithm 3", _three_slices, FAMILIES),
    "equation1": Wrong("sums in fp32", _dgemm_in_fp32, FAMILIES),
    "reproducible": Wrong("one product of fp16 words", _unsplit, FAMILIES),
    "fast_loss": Wrong("p + q at most d - 1", _one_diagonal_less, FAST),
    "fast_products": Wrong("p + q at most d - 1", _one_diagonal_less, FAST),
    "sp_fewer_slices": Wrong(
        "the bound of fp64 in SP mode",
        lambda page, cell: (
            {"slices A": page.evaluate({**cell, "implementation": "DP"})["slices A"]}
            if cell["implementation"] == "SP"
            else {}
        ),
    ),
    "input_range": Wrong("φ = 2 for all inputs", _range),
    "input_largest": Wrong("φ = 2 for all inputs", _range),
}
WITHOUT: list[str] = []
