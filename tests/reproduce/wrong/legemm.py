"""LE-GEMM: implementations with an error, by claim."""

import dataclasses
import functools
import itertools

import numpy as np

from fpemu import inputs, metrics, reference, schemes

from . import Wrong


def _cut(X):
    """The high words: ten bits of the fraction."""
    return (X.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _method(name, product):
    """The columns of a method in ``legemm/accumulation`` whose result is ``product(A, B, hardware)``."""

    def numbers(page, cell):
        A, B, results = page.problem(cell["data"], cell["n"], cell["seed"])
        return page.errors_of(name, product(A, B, cell["hardware"]), cell, results)

    return numbers


def _scale_off_by_one(A, B, hardware):
    """LE-GEMM's products, with residuals that are divided by 2^9 in place of 2^10 after their products."""
    return schemes.gemm(*(2 * X - _cut(X) for X in (A, B)), scheme="sgemm", hardware=hardware)


def _dropped(A, B, hardware):
    """Ootomo's method without the product of B's residual."""
    return schemes.gemm(A, B, scheme="ootomo", hardware=hardware, products=("hh", "rh"))


def _to_nearest(A, B, hardware):
    """LE-GEMM on a unit that rounds each sum to nearest in place of truncating its terms."""
    return schemes.gemm(A, B, scheme="legemm", hardware="ideal")


def _not_flushed(A, B, hardware):
    """Markidis' method with the subnormal words that CDNA2 replaces by zero."""
    return schemes.gemm(A, B, scheme="markidis", hardware="cdna1" if hardware == "cdna2" else hardware)


SCALE = Wrong(
    "scale of the residuals off by one",
    _method("LE-GEMM", _scale_off_by_one),
    {"lengths": (64, 128), "normal": (), "histogram": 64, "runs": 2},
)
DROPPED = dataclasses.replace(
    SCALE, what="dropped product of Ootomo's method", numbers=_method("Ootomo, outside", _dropped)
)


def _wrong_sign(page, cell):
    """LE-GEMM's result with the wrong sign: each error is as large as the entry, at each n and K."""
    n, k, m = (cell.get(side, cell["n"]) for side in ("n", "K", "m"))
    low, high = page.RANGES[cell["data"]] if "data" in cell else (-1.0, 1.0)
    A, B = inputs.operands("uniform", m, n, k, cell["seed"], low=low, high=high)
    P = -schemes.gemm(A, B, scheme="legemm", hardware=cell["hardware"])
    against = {"s": schemes.gemm(A, B, scheme="sgemm"), "exact": reference.matmul(A, B)}
    name = "" if "K" in cell else "LE-GEMM "
    errors = {"max_error": metrics.max_error_legemm, "mred": metrics.mred}
    return {f"{name}{measure} {ref}": float(of(P, against[ref])) for measure, of in errors.items() for ref in against}


def _rounded_split_without_a_product(page, cell):
    """The rounded split without the product of B's residual, in the order of LE-GEMM."""
    A, B, exact = page.operands(cell, "cpu")
    numbers = {}
    for name, options in page.ACCUMULATIONS.items():
        D = schemes.gemm(
            A, B, scheme="legemm", hardware=cell["hardware"], products=("hh", "rh"), **page.SPLITS["rounded"], **options
        )
        numbers[f"legemm {name} rounded"] = metrics.relative_l2(D, exact)
    return numbers


def _budget_without_a_product(page, cell):
    """LE-GEMM without the product of A's residual, so that its effect counts as the effect of the omitted product."""
    A, B = inputs.operands("uniform", cell["rows"], cell["rows"], cell["k"], cell["seed"], low=-1.0, high=1.0)
    short = dataclasses.replace(schemes.get("legemm"), products=("hh", "hr"))
    return {f"legemm {what}": value for what, value in page.budget(A, B, short, cell["hardware"]).items()}


def _single_words(page, cell):
    """Words of four bytes in place of two."""
    return {f"KB for (128, 256, {k})": 2 * page.legemm.shared(page.Tile(128, 256, k), 2) / 1024 for k in (16, 32)}


def _inverted_ratio(page, cell):
    """Equation 15 with its two sides swapped: bytes over operations."""
    if cell["reading"] != "ours":
        return {}
    tiles = [page.Tile(side, side, 32) for side in page.SIDES]
    tlp, ratio = functools.partial(page.legemm.tlp, cell["n"], cell["n"], wavefronts=4, warp=64), page.legemm.ratio
    pairs = list(itertools.combinations(tiles, 2))
    return {"opposite, square": float(np.mean([(tlp(a) > tlp(b)) == (1 / ratio(a) < 1 / ratio(b)) for a, b in pairs]))}


def _two_products(page, cell):
    """Ootomo's method without a second product."""
    return {"products ootomo": float(len(schemes.get("ootomo").plan().products) - 1)}


SIGN = Wrong("sign", _wrong_sign, {"lengths": (8, 16, 24, 32), "runs": 2})
SIGN_OF_APPLICATIONS = Wrong("sign", _wrong_sign, {"kmeans": (1024, 8), "bert": (8, 96), "llm": (128, 256), "runs": 1})
WRONG = {
    **dict.fromkeys(
        (
            "mred_below_plain",
            "mred_below_markidis",
            "mred_factors",
            "max_error_below_others",
            "max_error_factors",
            "plain_is_widest",
            "narrower_than_markidis",
            "distribution_like_ootomo",
        ),
        SCALE,
    ),
    **dict.fromkeys(("mred_below_ootomo", "concentrated_more_than_ootomo"), DROPPED),
    "single_precision_accuracy": Wrong(
        "sums rounded to nearest",
        _method("LE-GEMM", _to_nearest),
        {"lengths": (256,), "normal": (), "histogram": 0, "runs": 2},
    ),
    "markidis_gap_larger_on_mi210": dataclasses.replace(
        SCALE, what="subnormal words as they are", numbers=_method("Markidis, K", _not_flushed)
    ),
    "errors_grow_with_n": SIGN,
    "error_between_fast16f_and_64f": SIGN,
    "error_grows_with_K": SIGN_OF_APPLICATIONS,
    "K_decides_the_error": SIGN_OF_APPLICATIONS,
    "bit_cut_beats_rounding": Wrong(
        "dropped product", _rounded_split_without_a_product, {"rows": 8, "lengths": (64,), "runs": 2}
    ),
    "product_of_residuals_is_negligible": Wrong(
        "dropped product", _budget_without_a_product, {"rows": 8, "lengths": (1024,), "runs": 2}
    ),
    "tile_128_256_fits_the_MI210": Wrong("scale of the bytes", _single_words),
    "tlp_and_ratio_are_inverse": Wrong("swapped operand", _inverted_ratio),
    "ootomo_saves_a_product": Wrong("dropped product", _two_products),
}
WITHOUT: list[str] = []
