"""The pages of H2SGEMM's figures: their counts against slow exact loops, their verdicts on rows with a known one."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fpemu.reproduce import experiments

ROOT = Path(__file__).resolve().parents[2] / "experiments"
PAGES = ("fig2a", "fig2b", "fig9", "formats", "termwise", "promotion", "underflow")


def page(name):
    return experiments.load(f"h2sgemm/{name}", ROOT).module


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
    rows = two_a.evaluate({"exponent": e, "mantissas": bits, "seed": 0})
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


@pytest.mark.parametrize("e", [-16, -14, -3, 5])
def test_one_period_of_mantissas_stands_for_all(e):
    two_a, two_b = page("fig2a"), page("fig2b")
    few, many = two_a.period(e), two_a.period(e) + 3
    less, more = (two_a.evaluate({"exponent": e, "mantissas": bits, "seed": 0}) for bits in (few, many))
    assert less == more
    for sb in (0, 11, 12, 26 - e, 27 - e):
        cell = {"exponent": e, "sb": sb, "seed": 0}
        assert two_b.evaluate({**cell, "mantissas": few}) == two_b.evaluate({**cell, "mantissas": many})
    assert two_b.period(e) == few


def test_half_a_period_does_not():
    two_a = page("fig2a")
    less, whole = (two_a.evaluate({"exponent": -12, "mantissas": bits, "seed": 0}) for bits in (13, 14))
    assert less != whole


def test_equations_3_to_5_are_as_printed_and_the_correction_counts_what_is_gone():
    two_a = page("fig2a")
    assert sum(two_a.equation_3(n, x) for n in range(-3, 15) for x in "TR") == 1
    assert two_a.equation_5(0, gradual=True) == 2**-3 - 2**-13
    assert two_a.equation_5(-13, gradual=False) == 1 - 2**-13
    for e in range(-14, 6):
        gone = sum(0 < abs(i) <= 2.0 ** (-2 - e) for i in range(-4095, 4097))  # the residual is i 2^(e - 23)
        assert two_a.gone(e) == gone / 2**13, e


@pytest.mark.parametrize(
    ("e", "sb"), [(-14, 11), (-14, 12), (-3, 0), (-4, 0), (15, 11), (15, 12), (-20, 12), (-25, 12)]
)
def test_bits_kept_and_overflow_against_fractions(e, sb):
    two_b = page("fig2b")
    found = two_b.evaluate({"exponent": e, "sb": sb, "mantissas": 14, "seed": 0})
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


def split_rows(lower=-3, upper=26):
    """Rows of figure 2(b): the error is 2^(E - 22) at sb = lower - E, and r overflows above sb = upper - E."""
    two_b = page("fig2b")
    return [
        {
            **cell,
            "bits": float(max(0, min(24, 22 + cell["sb"] - lower + cell["exponent"]))),
            "h overflows": float(cell["exponent"] > 15),
            "r overflows": float(cell["sb"] > upper - cell["exponent"]),
        }
        for cell in two_b.cells("quick")
    ]


@pytest.mark.parametrize("wrong", range(-4, 5))
def test_equation_6_holds_only_if_its_bounds_are_the_measured_ones(monkeypatch, wrong):
    two_b = page("fig2b")
    monkeypatch.setattr(two_b, "equation_6", lambda low, high, corrected=False: (wrong - 3 - low, wrong + 26 - high))
    found = [c for c in two_b.claims(split_rows()) if c.claim.startswith("Eq. 6 as printed: the")]
    by_bits = {"E - 22": 0, "E - 23": 1, "no r overflows": 0}
    for what, right in by_bits.items():
        assert verdicts(found, what) == ["holds" if wrong == right else "does not hold"], what
    assert len(found) == len(by_bits)
    assert all(claim.published for claim in found)


def test_equation_6_is_not_judged_where_the_rows_do_not_show_a_bound():
    two_b = page("fig2b")
    rows = [row for row in split_rows() if row["bits"] >= 22]
    assert verdicts(two_b.claims(rows), "as printed", "E - 22") == ["cannot be decided"]


def test_what_no_paper_claims_is_an_own_check():
    found = page("fig2b").claims(split_rows()) + page("fig9").claims(fig9_rows()) + page("fig2a").claims(formula_rows())
    ours = [claim for claim in found if "corrected" in claim.claim or claim.claim.endswith("HGEMM")]
    assert len(ours) == 3 + 4 + 1
    assert not any(claim.published for claim in ours)
    assert all(claim.published for claim in found if claim not in ours)


@pytest.mark.parametrize(("bits", "verdict"), [(12, "holds"), (21, "holds"), (22, "does not hold")])
def test_below_the_smallest_number_both_parts_must_be_scaled_for_22_bits(bits, verdict):
    rows = [row | {"bits": bits} if row["exponent"] < -24 else row for row in split_rows()]
    assert verdicts(page("fig2b").claims(rows), "both parts") == [verdict]


def test_finding_of_figure_2b_says_what_the_rows_say():
    two_b = page("fig2b")
    text = two_b.finding(split_rows())
    assert text.count("is 1 too high at every exponent") == 2
    assert "as measured at every exponent" in text
    assert "whatever sb" in text
    text = two_b.finding([row | {"h overflows": 0.0} for row in split_rows(lower=-1, upper=27)])
    assert "too high" not in text
    for found, which in (("1 too low", "2^(E - 22)"), ("2 too low", "2^(E - 23)"), ("as measured", "overflows")):
        assert f"{which}, is {found} at every exponent" in text
    assert "whatever sb" not in text
    assert "of a tie" not in text  # nothing overflows
    three = [row | {"r overflows": row["r overflows"] * 3 / 2**13} for row in split_rows()]
    assert (
        "overflow at E = 15: sb = 12: 3, sb = 11: 0. Those with sb = 12 lie within 1 fp32 place of a tie"
        in two_b.finding(three)
    )


def format_rows(**columns):
    """Rows of the page of formats: bits are lost below emin + p - sb, and residuals overflow above emax + p - sb."""
    of = page("formats")
    rows = []
    for cell in of.cells("quick"):
        p, here = of.formats.get(cell["narrow"]).precision, {**cell, "gone": 0.5, "counted gone": 0.5}
        low = cell["end"] == "emin"
        for sb in of.SCALES:
            short = low and cell["distance"] < p - sb
            here[f"bits {sb}"] = float(of.wanted(cell) - short)
            here[f"mean {sb}"] = 1.0
            here[f"overflows {sb}"] = float(not low and cell["distance"] < sb - p)
        here |= {"counted bits": here[f"bits {p}"], "counted mean": 1.0, "counted overflows": here[f"overflows {p}"]}
        rows.append(here | columns)
    return rows


def test_the_page_of_formats_judges_the_window_of_exponents():
    of = page("formats")
    rows = format_rows()
    some = [row for row in rows if row["narrow"] == "bf16" and row["rounding"] == "RNE"]
    assert [of.lost(some, sb) for sb in (0, 8, 12)] == [
        {"bits": 8, "overflow": 0},
        {"bits": 0, "overflow": 0},
        {"bits": 0, "overflow": 4},
    ]
    found = of.claims(rows)
    assert set(verdicts(found, "formula = counted")) == {"holds"}
    assert set(verdicts(found, "no sb loses fewer")) == {"holds"}
    assert verdicts(found, "serves every exponent") == ["holds", "does not hold"]
    assert "sb = p (0) for fp16, bf16, tf32, e5m2, e4m3" in of.finding(rows)
    assert "exponents at the top with overflows: 1." in of.finding(rows)


def test_the_page_of_formats_sees_a_formula_that_is_not_the_count():
    of = page("formats")
    found = of.claims(format_rows(**{"counted mean": 1.0 + 2.0**-40, "counted gone": 0.25}))
    assert verdicts(found, "formula = counted", "mean") == verdicts(found, "become 0, sb") == ["does not hold"]
    assert verdicts(found, "formula = counted", "worst") == ["holds"]
    for row in (rows := format_rows()):
        row["bits 11"] -= row["narrow"] == "fp16" and row["end"] == "emin"
    assert "holds in part" in verdicts(of.claims(rows), "serves every exponent")
    assert "sb = p + 1" in of.finding(rows)


def verdicts(found, *words):
    return [claim.verdict for claim in found if all(word in claim.claim for word in words)]


def fig9_rows(seeds=(0,), slope=0.5):
    """SGEMM ~ k^0.5, term-wise ~ k^slope and half as large, everything else like SGEMM and flat in m = n."""
    nine = page("fig9")
    rows = []
    for cell in nine.cells("quick"):
        if cell["seed"] in seeds:
            values = dict.fromkeys(nine.SETTINGS, 1e-8 * cell["k"] ** 0.5)
            values["sb=12 term-wise"] = 0.5e-8 * cell["k"] ** slope
            rows.append({**cell, **values})
    return rows


def test_figure_9_judges_growth_and_size():
    nine = page("fig9")
    assert nine.growth([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    better = nine.claims(fig9_rows(slope=0.3))
    assert set(verdicts(better, "grows less", "SGEMM")) == {"holds"}
    assert set(verdicts(better, "stable")) == {"holds"}
    assert set(verdicts(better, "SGEMM / term-wise")) == {"holds"}
    worse = nine.claims(fig9_rows(slope=0.9))
    assert set(verdicts(worse, "grows less", "SGEMM")) == {"does not hold"}
    assert "holds" not in verdicts(worse, "SGEMM / term-wise")


def test_figure_9_sees_an_error_that_depends_on_m():
    rows = fig9_rows()
    for row in rows:
        row["HGEMM"] *= row["m"]
    assert "holds" not in verdicts(page("fig9").claims(rows), "stable")


def formula_rows(flip=False):
    two_a = page("fig2a")
    rows = []
    for e in range(-14, 5):
        row = {"exponent": e, "mantissas": 23, "seed": 0, "exact": 2.0**-13}
        row |= {f"{x} {n}": two_a.equation_3(n, x) for n in two_a.N_RANGE for x in "TR"}
        row |= {f"carry {n}": row[f"T {n}"] + row[f"R {n}"] for n in two_a.N_RANGE}
        row |= {"below normal": two_a.equation_5(e, gradual=True), "below least": two_a.equation_5(e, gradual=False)}
        row["gone"] = two_a.gone(e)
        if flip:
            row["T 3"] += 2.0**-20
            row["gone"] += 2.0**-20
        rows.append(row)
    return rows


def test_finding_of_figure_2a_says_what_the_rows_say():
    two_a = page("fig2a")
    assert "is exact" in two_a.finding(formula_rows())
    assert "is exact" not in two_a.finding(formula_rows(flip=True))
    agree = [row | {"gone": row["below least"]} for row in formula_rows()]
    assert "Equation 5 counts the residuals that become 0." in two_a.finding(agree)
    assert "for gone" not in two_a.finding([row | {"gone": 1.5} for row in agree])


@pytest.mark.parametrize("flip", [False, True])
def test_figure_2a_verdicts(flip):
    """Rows made by the printed formula agree with it, and no longer when one probability is moved."""
    found = page("fig2a").claims(formula_rows(flip))
    assert verdicts(found, "Eq. 3 = counted, N from the exponent of x") == ["holds in part" if flip else "holds"]
    assert verdicts(found, "corrected P_u") == ["does not hold" if flip else "holds"]
    assert verdicts(found, "Eq. 5, P_u = residuals that become 0") == ["does not hold"]


def termwise_rows(large_first=1.0, element_wise=1.0, chain=4.0, pairwise=4.0):
    """Term-wise errs as the root of the roundings; SGEMM and the other ways that many times as much as the cube."""
    why = page("termwise")
    other = {"large first": large_first, "element-wise": element_wise, "SGEMM pairwise": pairwise}
    rows = []
    for cell in why.cells("quick"):
        error = 1.0 if cell["hardware"] == "ascend910a" else chain
        if cell["block"]:
            error = 4.0 / math.sqrt(cell["block"])
        error *= other.get(cell["method"], 1.0) / (chain if cell["method"] == "SGEMM pairwise" else 1.0)
        rows.append({**cell, "error": error * 1e-7})
    return rows


@pytest.mark.parametrize(
    ("large_first", "element_wise", "order", "apart", "lower"),
    [
        (1.0, 1.0, "does not hold", "does not hold", "does not hold"),
        (3.0, 1.0, "holds", "does not hold", "does not hold"),
        (1.0, 1.5, "does not hold", "does not hold", "holds"),
        (1.0, 3.0, "does not hold", "holds", "holds"),
    ],
)
def test_the_reason_of_the_advantage_is_told_from_the_rows(large_first, element_wise, order, apart, lower):
    why, rows = page("termwise"), termwise_rows(large_first, element_wise)
    found = why.claims(rows)
    assert set(verdicts(found, "smaller sums first")) == {order}
    assert set(verdicts(found, "comes from summing each product")) == {apart}
    assert set(verdicts(found, "element-wise / term-wise")) == {lower}
    assert set(verdicts(found, "rounding 16")) == {"holds"}
    assert set(verdicts(found, "one chain", "Ascend")) == {"holds"}
    assert set(verdicts(found, "one chain", "Ampere")) == {"does not hold"}
    text = why.finding(rows)
    assert ("The order of the three sums is not the reason" in text) == (order == "does not hold")
    assert ("The order of the three sums is the reason" in text) == (order == "holds")
    assert ("lesser part" in text) == (apart == "does not hold")
    assert ("greater part" in text) == (apart == "holds")


def test_small_exponents_count_in_the_reason():
    """The order matters at e = -14 alone: no word on it that covers all exponents."""
    rows = termwise_rows()
    for row in rows:
        if (row["method"], row["exponent"]) == ("large first", -14):
            row["error"] *= 3
    why = page("termwise")
    assert all("(at 1 of 3 points)" in c.measured for c in why.claims(rows) if "smaller sums first" in c.claim)
    assert "of the three sums" not in why.finding(rows)


def test_termwise_ends_with_the_chain_only_if_the_rows_say_so():
    def mixed(**given):
        rows = termwise_rows(**given)
        for row in rows:  # truncating hardware errs more than SGEMM's chain
            row["error"] *= 2 if row["hardware"] in ("ampere", "hopper") else 1
        return page("termwise").finding(rows)

    assert "over one chain of FMAs" in mixed(pairwise=0.5)
    assert "over one chain of FMAs" not in mixed(pairwise=2.0)
    assert "over one chain of FMAs" not in page("termwise").finding(termwise_rows(pairwise=0.5))


def test_the_instruction_as_it_is_and_element_wise_are_what_their_names_say():
    from fpemu import inputs, metrics, reference, schemes

    why = page("termwise")
    cell = {
        "inputs": "offset_symmetric",
        "m": 8,
        "n": 8,
        "k": 256,
        "exponent": -14,
        "seed": 1,
        "hardware": "ascend910a",
    }
    A, B = inputs.operands("offset_symmetric", 8, 8, 256, 1, exponent=-14)
    for method in ("term-wise", "element-wise"):
        D = schemes.gemm(A, B, scheme="h2sgemm", combine=method, hardware="ascend910a")
        error = metrics.relative_l2(D, reference.matmul(A, B))
        assert why.evaluate({**cell, "method": method, "block": 0}) == {"error": error}
    blocks = {**cell, "hardware": "", "method": "large first", "block": 16}  # the cube's own length
    assert why.evaluate({**cell, "method": "large first", "block": 0}) == why.evaluate(blocks)


def underflow_rows(**columns):
    under = page("underflow")
    names = ["HGEMM", "SGEMM chain", "SGEMM pairwise", "sb=12 four"]
    names += [f"sb={sb} {name}" for sb in under.SCALES for name in under.PARTS]
    return [{**cell, **dict.fromkeys(names, 1e-7), **columns} for cell in under.cells("quick")]


def test_finding_of_underflow_says_what_the_rows_say():
    finding = page("underflow").finding
    assert "random sign" not in finding(underflow_rows())  # the same error on positive data
    rows = underflow_rows()
    for row in rows:
        row["HGEMM"] = 4e-6 if row["inputs"] == "offset_symmetric" else 1e-7
        row["sb=12 left out"] = 1e-7 * 3.0 ** -row["exponent"]
    assert "random sign" in finding(rows)
    assert "Factor of r_A r_B for every exponent, e = -16 to -20: 3." in finding(rows)
    assert "the larger loss is the product called negligible" in finding(rows)
    rows = underflow_rows(**{"sb=12 words": 2e-7})
    assert "the larger loss is not held by the words" in finding(rows)
    rows[0]["sb=12 words"] = 0.0
    for row in rows[1:3]:
        row["sb=12 words"] = 0.0
    assert "larger loss" not in finding(rows)
    for row in rows:
        row["sb=0 error"] *= 0.5 if row["exponent"] in (-4, -10) else 1
    assert "better than: SGEMM chain at e = -10, -4" in finding(rows)


@pytest.mark.parametrize("name", PAGES)
def test_no_cell_leaves_sums_to_the_blas(name):
    """fp64 products and norms of BLAS differ in their last bits from one machine to the next."""
    import ast

    tree = ast.parse((ROOT / "h2sgemm" / f"{name}.py").read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) for node in ast.walk(tree))
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"linalg", "dot", "einsum", "polyfit", "vdot", "inner"}
    assert "matmul" not in {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    }


def test_underflow_parts_add_up_to_the_error():
    """Without its roundings the four-product scheme is the words' product: what is left out is r r, exactly."""
    under = page("underflow")
    cell = {"hardware": "ideal", "inputs": "offset_symmetric", "exponent": -18, "seed": 0, "m": 8, "n": 8, "k": 64}
    found = under.evaluate(cell)
    for sb in under.SCALES:
        parts = [found[f"sb={sb} {name}"] for name in under.PARTS[1:]]
        assert found[f"sb={sb} error"] <= sum(parts) * (1 + 1e-6)
        assert found[f"sb={sb} error"] >= max(parts) - (sum(parts) - max(parts))
    assert found["sb=12 left out"] > 10 * found["sb=12 words"]
    assert found["sb=12 four"] < found["sb=12 error"] / 10
    assert found["sb=0 left out"] == 0  # no residual survives


@pytest.mark.parametrize(
    ("better", "text"),
    [
        ((), "never better than SGEMM"),
        ((16, 64), "better than SGEMM up to P = 64"),
        ((64, 1024), "better than SGEMM at P = 64, 1024 alone"),
        ((16, 0), "better than SGEMM at P = 16, never alone"),
        ((16, 64, 256, 1024, 0), "better than SGEMM at every P"),
    ],
)
def test_finding_of_promotion_names_the_intervals_that_are_better(better, text):
    promotion = page("promotion")
    rows = [
        {**cell, "error": 1e-7 if not cell["hardware"] else 5e-8 if cell["promote"] in better else 2e-7}
        for cell in promotion.cells("quick")
    ]
    assert promotion.finding(rows).count(text) == len(promotion.KINDS) * len(promotion.HARDWARE)


def test_promotion_never_is_the_scheme_as_published():
    from fpemu import inputs, metrics, reference, schemes

    cell = {"inputs": "offset_nonnegative", "seed": 1, "hardware": "hopper", "promote": 0, "k": 256, "m": 8, "n": 8}
    A, B = inputs.operands("offset_nonnegative", 8, 8, 256, 1, exponent=0)
    plain = metrics.relative_l2(schemes.gemm(A, B, scheme="h2sgemm", hardware="hopper"), reference.matmul(A, B))
    assert page("promotion").evaluate(cell) == {"error": plain}
    assert page("promotion").evaluate({**cell, "promote": 16})["error"] < plain / 2


@pytest.mark.parametrize("name", PAGES)
def test_claims_and_findings_work_on_one_seed_and_keep_their_number(name):
    """Every cell of the quick size with made-up numbers: all seeds, and one of them."""
    module = page(name)
    cells = module.cells("quick")
    columns = {
        "fig9": module.SETTINGS if name == "fig9" else (),
        "termwise": ("error",),
        "promotion": ("error",),
        "fig2b": ("bits", "h overflows", "r overflows"),
    }.get(name)
    if columns is None:
        small = {**cells[0], **({"mantissas": 14} if name == "fig2a" else {"m": 8, "n": 8, "k": 32})}
        columns = module.evaluate(small)
    rng = np.random.default_rng(7)
    rows = [{**cell, **{column: float(rng.uniform(0.5, 1.5)) for column in columns}} for cell in cells]
    one = [row for row in rows if row["seed"] == 0]
    assert [claim.claim for claim in module.claims(rows)] == [claim.claim for claim in module.claims(one)]
    assert isinstance(module.finding(rows), str)
    assert isinstance(module.finding(one), str)
    if name != "promotion":
        assert module.claims(one)
