"""The pages of H2SGEMM's figures: their counts against slow exact loops, their verdicts on rows with a known one."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fpemu.sweep import experiments

ROOT = Path(__file__).resolve().parents[1] / "experiments"
PAGES = ("fig2a", "fig2b", "fig9", "termwise", "promotion", "underflow")


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


@pytest.mark.parametrize("flip", [False, True])
def test_figure_2a_verdicts(flip):
    """Rows made by the printed formula agree with it, and no longer when one probability is moved."""
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
    found = two_a.claims(rows)
    assert verdicts(found, "Eq. 3 = counted, N from the exponent of x") == ["holds in part" if flip else "holds"]
    assert verdicts(found, "corrected P_u") == ["does not hold" if flip else "holds"]
    assert verdicts(found, "Eq. 5, P_u = residuals that become 0") == ["does not hold"]


def termwise_rows(large_first, chain=4.0):
    """Term-wise errs as the root of the roundings, SGEMM `chain` times as much as the cube."""
    why = page("termwise")
    rows = []
    for cell in why.cells("quick"):
        error = 1.0 if cell["hardware"] == "ascend910a" else chain
        if cell["block"]:
            error = 4.0 / math.sqrt(cell["block"])
            if cell["method"] == "large first":
                error *= large_first
        rows.append({**cell, "error": error * 1e-7})
    return rows


@pytest.mark.parametrize(
    ("large_first", "order", "rounding"), [(1.0, "does not hold", "holds"), (3.0, "holds", "holds")]
)
def test_the_reason_of_the_advantage_is_told_from_the_rows(large_first, order, rounding):
    found = page("termwise").claims(termwise_rows(large_first))
    assert set(verdicts(found, "smaller sums first")) == {order}
    assert set(verdicts(found, "rounding 16")) == {rounding}
    assert set(verdicts(found, "one chain", "Ascend")) == {"holds"}
    assert set(verdicts(found, "one chain", "Ampere")) == {"does not hold"}


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
