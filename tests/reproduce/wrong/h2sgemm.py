"""H2SGEMM: implementations with an error, by claim."""

import functools
from unittest import mock

import numpy as np

from fpemu import metrics, round_to, schemes

from . import Wrong


def _high(X):
    return X.astype(np.float16).astype(np.float32)


def _method(column, of, change=lambda A, B: (A, B)):
    """A column with the error of another method, or of changed operands."""

    def numbers(page, cell):
        A, B, exact = page.methods.operands(cell, "cpu")
        methods = page.methods.METHODS | page.methods.TRUNCATED
        return {column: metrics.relative_l2(methods[of](*change(A, B), "cpu"), exact)}

    return numbers


def _dropped(column, of=""):
    """H2SGEMM without the product of A's residual and B's high word."""
    return _method(column, of or column, lambda A, B: (_high(A), B))


def _first_tile(A, B):
    """Residuals of the first 16 rows of A alone."""
    return np.concatenate([A[:16], _high(A[16:])]), B


def _bf16(A, B):
    return round_to(A, "bf16").astype(np.float32), round_to(B, "bf16").astype(np.float32)


def _underflow(page, cell):
    A, B, exact = page.operands(cell, "cpu")
    D = schemes.gemm(_high(A), B, scheme="h2sgemm", hardware=cell["hardware"])
    return {"sb=12 error": metrics.relative_l2(D, exact)}


def _rounding(column, **options):
    def numbers(page, cell):
        A, B, exact = page.operands(cell, "cpu")
        D = schemes.gemm(A, B, scheme="h2sgemm", hardware=cell["hardware"], on_range="propagate", **options)
        return {column: metrics.relative_l2(D, exact) if np.isfinite(D).all() else float("inf")}

    return numbers


def _patched(module, name, change):
    """The page's evaluation with one function of its module replaced: `change` takes the right function."""

    def numbers(page, cell):
        of = getattr(page, module)
        with mock.patch.object(of, name, change(page, getattr(of, name))):
            return page.evaluate(cell)

    return numbers


def _truncated(page, function):
    return functools.partial(function, rounding="RZ", residual_rounding="RZ")


def _scale_off_by_one(page, function):
    return lambda exponent, sb, **more: function(exponent, sb - 1, **more)


def _both_scaled(page, function):
    return lambda exponent, sb, **more: function(exponent - 12, sb, **more)


def _buffers(count):
    """A number of buffers of B other than two."""
    return lambda page, function: (
        lambda block, l1: (
            (l1 - count * block.k * block.n) // (block.m * block.k)
            if function.__name__ == "fused"
            else (l1 - count * block.k * block.n) // (block.m * block.k) * block.m * block.k / l1
        )
    )


def _swapped(page, function):
    return lambda block, l1: function(page.Block(block.n, block.k, block.m), l1)


FIG8 = {"m": 16, "n": 16, "k": 1024, "seeds": 2}
FIG9 = {"rows_and_columns": (16, 48), "depths": (64, 256, 1024), "squares": (32, 64, 128), "seeds": 2}
SHIFTED = _patched("enumeration", "kept", _scale_off_by_one)
CUT = _patched("enumeration", "residuals", _truncated)
WRONG = {
    "termwise_beats_sgemm": Wrong("dropped product", _dropped("sb=12 term-wise"), {**FIG8, "exponents": (-8, 0)}),
    "elementwise_matches_sgemm": Wrong("dropped product", _dropped("sb=12 element-wise"), {**FIG8, "exponents": (0,)}),
    "unscaled_worse_than_sgemm": Wrong(
        "residuals scaled", _method("sb=0 term-wise", "sb=12 term-wise"), {**FIG8, "exponents": (-8,)}
    ),
    "hgemm_error": Wrong("operands rounded to bf16", _method("HGEMM", "HGEMM", _bf16), {**FIG8, "exponents": (0,)}),
    "hgemm_largest": Wrong("residuals kept", _method("HGEMM", "sb=12 term-wise"), {**FIG8, "exponents": (0,)}),
    "cancellation_amplifies": Wrong(
        "scale not undone",
        _method("HGEMM fp16", "HGEMM fp16", lambda A, B: (np.ldexp(A, -30), B)),
        {**FIG8, "exponents": (0,)},
    ),
    "scaling_gain": Wrong(
        "scale omitted", _method("sb=12 term-wise", "sb=0 term-wise"), {**FIG8, "k": 2816, "exponents": (-8,)}
    ),
    "sb6_poor": Wrong("wrong scale", _method("sb=6 term-wise", "sb=12 term-wise"), {**FIG8, "exponents": (-12,)}),
    "unscaled_alike": Wrong("dropped product", _dropped("sb=0 element-wise"), {**FIG8, "exponents": (0,)}),
    "termwise_beats_elementwise": Wrong("dropped product", _dropped("sb=12 term-wise"), {**FIG8, "exponents": (0,)}),
    "termwise_scales_better": Wrong("truncated sums", _method("sb=12 term-wise", "sb=12 term-wise RZ"), FIG9),
    "termwise_lower_over_k": Wrong("dropped product", _dropped("sb=12 term-wise"), FIG9),
    "termwise_outscales_elementwise": Wrong("truncated sums", _method("sb=12 term-wise", "sb=12 term-wise RZ"), FIG9),
    "stable_over_mn": Wrong(
        "residuals of the first tile alone", _method("sb=12 term-wise", "sb=12 term-wise", _first_tile), FIG9
    ),
    "small_first_is_the_reason": Wrong(
        "dropped product", _dropped("largest first", "sb=12 term-wise"), {"m": 8, "lengths": (4096,), "seeds": 2}
    ),
    "fourth_product_negligible": Wrong("dropped product", _underflow, {"m": 16, "seeds": 2, "step": 10}),
    "rn_beats_rz": Wrong(
        "words rounded to nearest", _rounding("words RZ"), {"m": 16, "k": 512, "seeds": 2, "bounds": ("2^0",)}
    ),
    "sb12_robust": Wrong(
        "scale off by one", _rounding("sb=12", sb=13), {"k": 2816, "m": 176, "seeds": 2, "bounds": ("2^15",)}
    ),
    "same_trends": Wrong("scale omitted", _method("sb=12 term-wise", "sb=0 term-wise"), {"m": 16, "seeds": 2}),
    "table1_bits": Wrong("wrong rounding", lambda page, cell: page.evaluate(cell | {"reading": page.READINGS[1]})),
    "eq6_upper": Wrong("scale off by one", SHIFTED),
    "eq6_lower": Wrong("scale off by one", SHIFTED),
    "rule1_collapse": Wrong("scale off by one", SHIFTED),
    "sb12_keeps_22_bits": Wrong("truncated words", _patched("enumeration", "kept", _truncated)),
    "remapped_range": Wrong("both words scaled", _patched("enumeration", "kept", _both_scaled)),
    "eq3_exact": Wrong("truncated words", CUT),
    "eq5_exact": Wrong("truncated words", CUT),
    "underflow_onset": Wrong("truncated words", CUT),
    "n_fused_44": Wrong("one buffer of B", _patched("h2sgemm", "fused", _buffers(1))),
    "f_range": Wrong("four buffers of B", _patched("h2sgemm", "used", _buffers(4))),
    "f_falls": Wrong("swapped sides of a block", _patched("h2sgemm", "used", _swapped)),
    "optimal_bm": Wrong(
        "factor of two dropped",
        _patched("h2sgemm", "optimal_bm", lambda page, function: lambda f, l1: 2**0.5 * function(f, l1)),
    ),
    "bm_96": Wrong(
        "28 cores in place of 32",
        _patched("h2sgemm", "optimal_bm", lambda page, function: lambda f, l1: (32 / 28) ** 0.5 * function(f, l1)),
    ),
    "l1_over_block": Wrong("bytes for numbers", lambda page, cell: _halved(page.evaluate(cell))),
}
WITHOUT: list[str] = []


def _halved(numbers):
    return {name: x / 2 for name, x in numbers.items() if name.startswith("L1 over block")}
