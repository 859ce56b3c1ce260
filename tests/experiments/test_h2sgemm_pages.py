"""The pages of H2SGEMM's figures: their counts and their errors against slow exact loops."""

import ast
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fpemu import inputs, metrics, reference, schemes
from fpemu.reproduce import claims, pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"
RANDOM = ("fig8", "fig9", "plane", "promotion", "termwise", "underflow")
COUNTED = ("blocking", "fig2a", "fig2b", "fig5", "fig10", "fig11", "formats", "table1")


def page(name):
    """The module of a page, with the functions of its experiment in place of the page's own."""
    experiment = pages.load(f"h2sgemm/{name}", ROOT)
    functions = {of: getattr(experiment, of) for of in ("cells", "evaluate", "measures", "finding")}
    return SimpleNamespace(
        **{**vars(experiment.module), **functions, "page": experiment.page, "module": experiment.module}
    )


def rne16(x: Fraction) -> Fraction | None:
    """x > 0 rounded to fp16 by its definition; None: beyond the largest number."""
    exponent = max(math.floor(math.log2(x)), -14)  # x has at most 24 bits: the logarithm's floor is right
    step = Fraction(2) ** (exponent - 10)
    found = round(x / step) * step  # a tie goes to the even multiple
    return found if found < 65536 else None


def residual(m: int, e: int) -> tuple[Fraction, Fraction | None]:
    x = (2**23 + m) * Fraction(2) ** (e - 23)
    return x, None if (h := rne16(x)) is None else x - h


def log2(x: Fraction) -> int:
    return math.frexp(float(x))[1] - 1


@pytest.mark.parametrize("e", [-15, -14, -13, -10, 0, 3])
def test_probabilities_are_those_of_a_loop_over_fractions(e):
    two_a = page("fig2a")
    bits = two_a.period(e)
    rows = two_a.evaluate({"exponent": e, "mantissas": bits})
    tally = dict.fromkeys(rows, 0)
    for m in range(2**bits):
        x, d = residual(m, e)
        size, h = abs(d), x - d
        n = 12 if d == 0 else e - 12 - log2(size)
        for name, hit in (
            (f"{'R' if d < 0 else 'T'} {n}", True),
            (f"carry {12 if d == 0 else log2(h) - 12 - log2(size) if h else 0}", True),
            ("below normal", size < Fraction(2) ** -14),
            ("below least", size < Fraction(2) ** -24),
            ("gone", d != 0 and rne16(size) == 0),
            ("exact", d == 0),
        ):
            if hit and name in tally:
                tally[name] += 1
    assert rows == {name: count / 2**bits for name, count in tally.items()}


@pytest.mark.parametrize(
    ("e", "sb"), [(-14, 11), (-14, 12), (-3, 0), (-4, 0), (15, 11), (15, 12), (-20, 12), (-25, 12)]
)
def test_bits_kept_and_overflow_against_fractions(e, sb):
    two_b = page("fig2b")
    found = two_b.evaluate({"exponent": e, "sb": sb, "mantissas": 14})
    worst, over = Fraction(0), 0
    for m in range(2**14):
        _, d = residual(m, e)
        scaled = abs(d) * Fraction(2) ** sb
        r = rne16(scaled) if scaled else Fraction(0)
        over += r is None
        if r is not None:
            worst = max(worst, abs(abs(d) - r * Fraction(2) ** -sb))
    bits = max(b for b in range(25) if worst <= Fraction(2) ** (e - b))
    assert (found["bits"], found["r overflows"], found["h overflows"]) == (bits, over / 2**14, 0)


def test_equation_6_corrected_is_one_lower_at_both_ends_and_leaves_11():
    two_b = page("fig2b")
    assert two_b.equation_6(-14, 15) == (12, 12)
    assert two_b.equation_6(-14, 15, corrected=True) == (11, 11)


@pytest.mark.parametrize("reading", [0, 1])
@pytest.mark.parametrize(("method", "sb"), [("Markidis", 0), ("Ootomo", 11), ("H2SGEMM", 12)])
def test_bits_lost_against_fractions(method, sb, reading):
    """Truncation and rounding to nearest by their definitions, over all mantissas of 8 trailing bits."""
    table = page("table1")
    rounding = table.METHODS[method][1] if reading == 0 else "RNE"
    for e in (-13, -2, 3):
        lost = 0
        for m in range(0, 2**14, 3):
            x = (2**23 + m) * Fraction(2) ** (e - 23)
            h = nearest_or_cut(x, rounding)
            r = x - h
            word = nearest_or_cut(abs(r) * 2**sb, rounding) if r else 0
            if abs(r) * 2**sb != word:
                lost = max(lost, (m & -m).bit_length())
        cell = {"method": method, "reading": table.READINGS[reading], "exponent": e}
        assert table.evaluate(cell)["bits lost"] == lost


def nearest_or_cut(x, rounding):
    if rounding == "RNE":
        return rne16(x)
    step = Fraction(2) ** (max(math.floor(math.log2(x)), -14) - 10)
    return x // step * step


def test_the_claims_with_a_condition_fail_if_the_cube_truncated_its_sums():
    A, B, exact = page("fig8").methods.operands(
        {"inputs": "offset_nonnegative", "m": 8, "n": 8, "k": 2816, "seed": 0}, "cpu"
    )
    errors = {
        (hardware, combine): metrics.relative_l2(
            schemes.gemm(A, B, scheme="h2sgemm", hardware=hardware, combine=combine), exact
        )
        for hardware in ("ascend910a", "hopper")
        for combine in ("element-wise", "term-wise")
    }
    assert errors["ascend910a", "element-wise"] > 1.3 * errors["ascend910a", "term-wise"]
    assert errors["hopper", "element-wise"] < 0.1 * errors["hopper", "term-wise"]
    (paper,) = (one for one in claims.papers() if one.folder == "h2sgemm")
    conditional = {claim.name for claim in paper.claims if claim.condition}
    assert "termwise_outscales_elementwise" in conditional  # the others are judged with both roundings of the cube


@pytest.mark.slow
def test_sgemm_by_openblas_and_cublas_is_the_library_module():
    from fpemu import library

    methods = page("fig8").methods
    A, B = inputs.operands("offset_symmetric", 64, 64, 64, 0, exponent=0)
    same = methods.METHODS["SGEMM cuBLAS"](A, B, "cpu") == library.emulate("cublas", A, B)
    assert np.all(same)
    assert methods.METHODS["SGEMM cuBLAS"](A[:, :53], B[:53], "cpu") is None  # no shape with k = 53
    tsv = library.emulate("openblas", A, B, hardware="TSV110", version="0.3.21")
    assert np.all(methods.METHODS["SGEMM TSV110"](A, B, "cpu") == tsv)


def test_instruction_and_orders_of_the_page_termwise():
    why = page("termwise")
    cell = {"inputs": "offset_symmetric", "m": 4, "n": 4, "k": why.DETAIL, "exponent": -14, "seed": 1}
    found = why.evaluate(cell)
    A, B = inputs.operands("offset_symmetric", 4, 4, why.DETAIL, 1, exponent=-14)
    exact = reference.matmul(A, B)
    for combine, column in (("term-wise", "term-wise ascend910a"), ("element-wise", "element-wise")):
        D = schemes.gemm(A, B, scheme="h2sgemm", combine=combine, hardware="ascend910a")
        assert found[column] == metrics.relative_l2(D, exact)
    assert found["nearest 16"] == found["term-wise ascend910a"]
    assert found["truncated 16"] == found["term-wise hopper"]


def test_underflow_parts_add_up_to_the_error():
    under = page("underflow")
    cell = {"hardware": "ascend910a", "inputs": "offset_symmetric", "exponent": -18, "seed": 0, "m": 8, "n": 8, "k": 64}
    found = under.evaluate(cell)
    for sb in under.SCALES:
        parts = [found[f"sb={sb} {name}"] for name in under.PARTS[1:]]
        assert found[f"sb={sb} error"] <= sum(parts) * (1 + 1e-6)
        assert found[f"sb={sb} error"] >= max(parts) - (sum(parts) - max(parts))
    assert found["sb=12 left out"] > 10 * found["sb=12 words"]
    assert found["sb=12 four"] < found["sb=12 error"] / 10
    assert found["sb=0 left out"] == 0  # no residual survives


def test_promotion_never_is_the_scheme_as_published():
    cell = {"inputs": "offset_nonnegative", "seed": 1, "hardware": "hopper", "promote": 0, "k": 256, "m": 8, "n": 8}
    A, B = inputs.operands("offset_nonnegative", 8, 8, 256, 1, exponent=0)
    plain = metrics.relative_l2(schemes.gemm(A, B, scheme="h2sgemm", hardware="hopper"), reference.matmul(A, B))
    assert page("promotion").evaluate(cell) == {"error": plain}
    assert page("promotion").evaluate({**cell, "promote": 16})["error"] < plain / 2


@pytest.mark.parametrize("name", [*RANDOM, *COUNTED])
def test_no_cell_leaves_sums_to_the_blas(name):
    """fp64 products and norms of BLAS differ in their last bits from one machine to the next."""
    tree = ast.parse((ROOT / "h2sgemm" / f"{name}.py").read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) for node in ast.walk(tree))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert not {node.attr for node in attributes} & {"linalg", "dot", "einsum", "polyfit", "vdot", "inner"}
    assert not any(
        node.attr == "matmul" for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "np"
    )
