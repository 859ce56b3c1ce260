"""Maps over two parameters: axes as they are written, the best setting, Equation 6, the commands, the page."""

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest

from fpemu import plotting, schemes
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.plotting import planes
from fpemu.sweep import maps, tables
from fpemu.sweep.ranges import LARGEST, parse_range
from tests.commands import refusal


# --- axes
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-2:24", list(range(-2, 25))),
        ("-20:-5:5", [-20, -15, -10, -5]),
        ("0:10:3", [0, 3, 6, 9]),
        ("0:4:0.5", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]),
        ("0:1:0.1", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        ("7", [7]),
        ("3:3", [3]),
        (" 5 , -1,2.5", [5, -1, 2.5]),
        ("0:2,8", [0, 1, 2, 8]),
        ("1e-3", [0.001]),
        ("2^-1:2**2", [0.5, 1, 2, 4]),
        ("2^0:2^12:2^4", [1, 16, 256, 4096]),
        ("256,2**10", [256, 1024]),
    ],
)
def test_axes_are_read_exactly(text, values):
    found = parse_range("--axis", text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "lacks a number"),
        (":", "lacks a number"),
        ("1:", "lacks a number"),
        ("1,,2", "lacks a number"),
        ("a:b", "'a:b' has 'a', which is not a number"),
        ("nan:3", "'nan'"),
        ("0:inf", "'inf'"),
        ("1_0:20", "'1_0'"),
        ("١:٣", "not a number"),
        ("−2:3", "not a number"),
        ("0x10", "not a number"),
        ("1:2:3:4", "too many colons"),
        ("0:5:0", "'0:5:0' has a step that is not positive"),
        ("5:0:-1", "not positive"),
        ("5:0", "ends below its start"),
        ("0:1e9", f"more than {LARGEST} values"),
        ("0:1:1e-300", f"more than {LARGEST} values"),
        ("0:999,2000:2999", f"more than {LARGEST} values"),
        ("1,2,1", "has a value twice"),
        ("0:4,2.0", "has a value twice"),
        ("1e999", "beyond fp64"),
        ("2^9999", "beyond fp64"),
        ("2^1:3^4", "mixes powers"),
        ("2^1:8", "mixes powers"),
        ("9" * 5000, "not a number"),
        ("1:2," * 100_000, f"more than {LARGEST} values"),
        ("1;rm -rf", "not a number"),
        ("1\n:2\x00", "not a number"),
    ],
)
def test_what_is_no_axis_is_refused_in_its_name(text, complaint):
    with pytest.raises(InputError) as refused:
        parse_range("--axis", text)
    assert str(refused.value).startswith("--axis: ")
    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 250


# --- the best setting
def _rows(table, x="e", y="sb"):
    """Rows of {(x, y): [errors of the runs]}."""
    return [{x: a, y: b, "error": error} for (a, b), runs in table.items() for error in runs]


def test_the_best_of_each_column_with_ties_and_without_numbers():
    # the runs of sb = 1, 2, 3 at each e: 1.04 is a tie; a run without a number spoils its cell; None is a failed run
    columns = [
        ([4.0, 2.0], [1.0, 1.0], [1.0, 1.08]),
        ([1.0, math.nan], [math.inf, 0.1], [8.0, 8.0]),
        ([math.nan], [math.inf], [None]),
        ([0.0], [0.0], [1e-300]),
    ]
    table = {(e, sb): runs for e, column in enumerate(columns) for sb, runs in enumerate(column, start=1)}
    plane = planes.plane(_rows(table), "e", "sb", "error")
    assert (plane.xs, plane.ys, plane.errors.shape) == ((0, 1, 2, 3), (1, 2, 3), (3, 4))
    found = planes.best(plane)
    assert [(one.x, one.ys) for one in found] == [(0, (2, 3)), (1, (3,)), (2, ()), (3, (1, 2))]
    assert [one.error for one in found[:2]] == [1.0, 8.0]
    assert math.isnan(found[2].error)
    assert planes.best(plane, tie=3.0)[0].ys == (1, 2, 3)
    expected = [[3.0, np.inf, np.nan, 1.0], [1.0, np.inf, np.nan, 1.0], [1.04, 1.0, np.nan, np.inf]]
    np.testing.assert_array_equal(planes.losses(plane), expected)


def test_a_cell_that_no_run_fills_has_no_error():
    plane = planes.plane([{"e": 0, "sb": 1, "error": 1.0}, {"e": 1, "sb": 2, "error": 2.0}], "e", "sb", "error")
    np.testing.assert_array_equal(plane.errors, [[1.0, np.nan], [np.nan, 2.0]])
    with pytest.raises(InputError, match="no rows"):
        planes.plane([], "e", "sb", "error")


def test_the_single_setting_is_near_the_best_at_the_most_points():
    columns = [(1.0, 1.4, 9.0), (9.0, 1.2, 1.0), (9.0, 9.0, 1.0), (math.inf, math.nan, math.inf)]
    table = {(e, sb): [error] for e, column in enumerate(columns) for sb, error in enumerate(column, start=1)}
    plane = planes.plane(_rows(table), "e", "sb", "error")
    assert planes.single(plane, 1.5) == planes.Single((2, 3), 2, 3)
    assert planes.single(plane, 1.0) == planes.Single((3,), 2, 3)
    assert planes.single(plane, 10.0) == planes.Single((1, 2, 3), 3, 3)
    assert maps.answer(plane, 1.0) == (
        "sb = 3 is within a factor of 1 of the best at 2 of 3 values of e; at 1 more no sb has a finite error"
    )
    assert "each of sb = 2 to 3 is within a factor of 1.5" in maps.answer(plane, 1.5)
    nothing = planes.plane(_rows({(0, 1): [math.nan]}), "e", "sb", "error")
    assert planes.single(nothing, 2.0) == planes.Single((), 0, 0)
    assert maps.answer(nothing, 2.0) == "no sb has a finite error anywhere"


@pytest.mark.parametrize(
    ("chosen", "every", "text"),
    [
        ((), (1, 2, 3), "none"),
        ((3,), (1, 2, 3), "3"),
        ((1, 2, 3, 5), (1, 2, 3, 4, 5), "1 to 3, 5"),
        ((1, 3, 5), (1, 2, 3, 4, 5), "1, 3, 5"),
        ((8, 13), (5, 8, 13), "8 to 13"),
    ],
)
def test_neighbours_are_joined(chosen, every, text):
    assert planes.spans(chosen, every) == text


# --- Equation 6
def _binade(exponent):
    """Numbers of a binade: four high parts, each with all 2^13 low parts of fp32's significand."""
    high = np.array([0, 1, 682, 1023])[:, None] if exponent < 15 else np.array([0, 1, 682, 1022])[:, None]
    steps = ((1 << 23) + (high << 13) + np.arange(1 << 13)).ravel()
    return np.ldexp(steps.astype(np.float64), exponent - 23)


def _worst(exponent, sb):
    """The largest error of a binade's numbers, in units of 2^(E-23); inf if a part overflows."""
    x = _binade(exponent)
    h, r = (part.astype(np.float64) for part in schemes.build("h2sgemm", {"sb": sb}).split(x))
    return float(np.max(np.where(np.isfinite(h + r), np.abs(x - h - np.ldexp(r, -sb)), np.inf))) * 2.0 ** (
        23 - exponent
    )


@pytest.mark.parametrize("exponent", [-14, -13, -8, -2, 0, 7, 14])
def test_equation_6_by_enumeration(exponent):
    held, printed = planes.equation6(exponent, exponent), planes.equation6(exponent, exponent, printed=True)
    assert (printed.start, printed.stop - 1) == (-24 + 22 - exponent, 15 + 12 - exponent)
    good = [sb for sb in range(-2 - exponent - 3, 27 - exponent + 3) if _worst(exponent, sb) <= 1]
    assert good == list(held)
    assert _worst(exponent, held.start - 1) == 2  # one bit less than the 22
    assert math.isinf(_worst(exponent, printed.stop - 1))


def test_in_the_last_binade_h_overflows_whatever_the_scale():
    assert all(math.isinf(schemes.build("h2sgemm", {"sb": sb}).split(np.float64(65520.0))[0]) for sb in (-17, 0, 11))
    assert not planes.equation6(15, 15)
    assert planes.equation6(15, 15, printed=True) == range(-17, 13)


def test_below_the_normal_range_no_scale_keeps_22_bits():
    assert all(_worst(-15, sb) > 1 for sb in range(0, 41))
    assert not planes.equation6(-15, 0)
    assert not planes.equation6(0, 16)
    assert list(planes.equation6(-14, 15, printed=True)) == [12]
    assert list(planes.equation6(-14, 15)) == []
    assert list(planes.equation6(-14, 14)) == [12]
    with pytest.raises(InputError, match="above the highest"):
        planes.equation6(3, 2)


# --- the picture
def _lines(plane):
    figure, axes = plotting.figure(width=5.4, height=4.2)
    planes.draw(axes[0, 0], plane, lines=planes.bounds(plane, int))
    plotting.legend_below(figure, axes[0, 0], 3)
    return axes[0, 0], {line.get_label(): line.get_xydata() for line in axes[0, 0].lines}


def test_the_bounds_part_the_cells_that_equation_6_allows():
    with plotting.style():
        plane = planes.plane(
            _rows({(e, sb): [1e-7] for e in range(-16, 17) for sb in range(-2, 25)}), "e", "sb", "error"
        )
        axis, lines = _lines(plane)
        assert list(lines) == ["Eq. 6, lower", "Eq. 6, upper, as printed", "upper bound that holds"]
        for e in (-14, -3, 5, 14):
            allowed, printed = planes.equation6(e, e), planes.equation6(e, e, printed=True)
            heights = [points[points[:, 0] == e - 0.5][-1][1] for points in lines.values()]
            ends = (allowed.start - 0.5, printed.stop - 0.5, allowed.stop - 0.5)
            for height, end in zip(heights, ends, strict=True):
                assert height == end or (math.isnan(height) and not -2 < end < 24)
        for e in (-16, -15, 16):
            assert all(math.isnan(points[points[:, 0] == e + 0.5][0][1]) for points in lines.values())
        assert axis.get_xlim() == (-16.5, 16.5)


# --- the commands
@pytest.fixture
def folder(workdir):
    return workdir


_A100 = ("-H", "A100")
_SMALL = ("--size", "8x8x32", "--seeds", "2", "-j", "1")


def _written(words):
    """The record and the rows of the map that was written under these words and a hash."""
    (path,) = Path("maps").glob(f"{words}-????????.json")
    return json.loads(path.read_text()), tables.read(path.with_suffix(".csv"))


@pytest.mark.slow
def test_maps_of_other_sizes_ranges_seeds_and_metrics_are_other_files(folder, capsys):
    plain = shlex.split("sweep scaling -H A100 --sb 0,12 --offset -9,0 --size 4x4x8 --seeds 1 --dry-run")
    others = [[], ["--sb", "0:12"], ["--offset", "-9:0"], ["--size", "4x4x16"], ["--seeds", "2"], ["--metric", "mred"]]
    names = []
    for other in [*others, []]:
        assert main([*plain, *other]) == 0
        names.append(capsys.readouterr().out.splitlines()[-1])
    assert len(set(names)) == len(others)
    assert names[-1] == names[0]


def test_scaling_writes_a_map_and_says_what_is_best(folder, capsys):
    arguments = ["sweep", "scaling", "-H", "ascend910a", "--sb", "-2:24:13", "--offset", "-10:14:12", *_SMALL]
    assert main([*arguments, "--export", "rows.csv"]) == 0
    out = capsys.readouterr().out
    record, rows = _written("scaling-h2sgemm-ascend910a-offset_symmetric-relative_l2-8x8x32")
    files = {path.name: path.read_bytes() for path in Path("maps").iterdir()}
    assert {name.rpartition(".")[2] for name in files} == set(maps.SUFFIXES)
    assert len(rows) == 3 * 3 * 2 == len((folder / "rows.csv").read_text().splitlines()) - 1
    for row in rows:  # term-wise loses the residual at -10 without a scale, overflows at 14 with 2^24
        assert math.isinf(row["relative_l2"]) == (row["inputs.exponent"] + row["scheme.sb"] >= 28)
    assert record["best"][0]["sb"] == [11, 24]
    assert record["best"][2]["sb"] == [-2, 11]
    assert record["answer"] == "sb = 11 is within a factor of 1.5 of the best at 3 of 3 values of offset exponent"
    assert record["answer"] in out
    assert record["hardware"]["name"].startswith("ascend910a")
    assert record["equation 6"][0] == {"offset exponent": -10, "printed": [9, 38], "holds": [9, 37]}
    assert record["parameters"]["seed"] == [0, 1]

    again = [*shlex.split(record["command"])[1:], "-o", "again", "-j", "1"]
    assert main([*again, "--fresh"]) == 0
    assert {path.name: path.read_bytes() for path in Path("again").iterdir()} == files


def test_schemes_with_a_residual_scale_take_its_exponent(folder, capsys):
    arguments = ["-s", "ootomo", "-H", "ampere", "--inputs", "offset_nonnegative", "--sb", "0:22:11"]
    assert main(["sweep", "scaling", *arguments, "--offset", "-9,2", *_SMALL]) == 0
    record, _ = _written("scaling-ootomo-ampere-offset_nonnegative-relative_l2-8x8x32")
    assert record["parameters"]["scheme.residual_scale"] == [1.0, 2048.0, 2.0**22]
    assert [one["sb"] for one in record["best"]] == [[11, 22], [0, 11, 22]]
    assert record["equation 6"][1]["holds"] == [-3, 25]


def test_any_option_over_any_parameter(folder, capsys):
    arguments = ["ozimmu", "-O", "slices=4:8:2", "-O", "split=nearest", *_A100, "--inputs", "phi", "-P", "phi=0:1:0.5"]
    assert main(["sweep", "plane", *arguments, *_SMALL]) == 0
    assert "slices = 8 is within a factor of 1.5 of the best at 3 of 3 values of phi" in capsys.readouterr().out
    _, rows = _written("plane-ozimmu-slices-phi-phi-split=nearest-A100-relative_l2-8x8x32")
    assert {row["scheme.split"] for row in rows} == {"nearest"}
    assert {row["inputs.phi"] for row in rows} == {0.0, 0.5, 1.0}


def test_an_option_and_a_parameter_of_one_name_are_two_axes(folder):
    arguments = ["ozaki", "-O", "bits=3:5", "-O", "k=16", "--inputs", "cancellation", "-P", "bits=10:13", *_A100]
    assert main(["sweep", "plane", *arguments, *_SMALL]) == 0
    record, rows = _written("plane-ozaki-bits-cancellation-bits-k=16-A100-relative_l2-8x8x32")
    assert {row["scheme.bits"] for row in rows} == {3, 4, 5}
    assert [one["inputs.bits"] for one in record["best"]] == [10, 11, 12, 13]
    for one in record["best"]:
        runs = {
            bits: [
                row["relative_l2"]
                for row in rows
                if row["inputs.bits"] == one["inputs.bits"] and row["scheme.bits"] == bits
            ]
            for bits in (3, 4, 5)
        }
        assert one["error"] == min(np.mean(errors) for errors in runs.values())
        assert all(np.mean(runs[bits]) <= planes.TIE * one["error"] for bits in one["scheme.bits"])


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "column", "values"), [("K=16,64", "K", {16, 64}), ("seed=3:5", "seed", {3, 4, 5})])
def test_sizes_and_the_seed_are_axes_too(folder, capsys, axis, column, values):
    assert main(["sweep", "plane", "h2sgemm", "-O", "sb=0,12", "-P", axis, "-P", "low=0.5", *_A100, *_SMALL]) == 0
    size = {"K": "8x8xK", "seed": "8x8x32"}[column]
    _, rows = _written(f"plane-h2sgemm-sb-uniform-{column}-low=0.5-A100-relative_l2-{size}")
    assert {row[column] for row in rows} == values
    assert {row["inputs.low"] for row in rows} == {0.5}


def test_a_dry_run_counts_and_writes_nothing(folder, capsys):
    assert main(shlex.split("sweep scaling -H A100 --sb -2:24 --offset -20:15 --seeds 5 --dry-run")) == 0
    assert f"{27 * 36 * 5} cells: 0 stored" in capsys.readouterr().out
    assert not (folder / "maps").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["scaling", "--sb", "-2:24:0"], "--sb: '-2:24:0' has a step that is not positive"),
        (["scaling", "--sb", "3"], "an axis of a map needs two or more integers"),
        (["scaling", "--sb", "0:2:0.5"], "--sb: an axis of a map needs two or more integers"),
        (["scaling", "--sb", "0:70"], "between 2^-60 and 2^60"),
        (["scaling", "--offset", "5:-5"], "--offset: '5:-5' ends below its start"),
        (["scaling", "-s", "sgemm"], "sgemm does not scale a residual; the schemes that do: markidis"),
        (["scaling", "-s", "otomo"], "did you mean 'ootomo'"),
        (["scaling", "-s", "markidis"], "accumulators='band'"),
        (["scaling", "-O", "sb=3"], "leave it out of --option"),
        (["scaling", "-O", "combin=x"], "did you mean 'combine'"),
        (["scaling", "--inputs", "uniform"], "unknown distribution with an offset exponent 'uniform'"),
        (["scaling", "--inputs", "unform"], "known: offset_nonnegative, offset_symmetric"),
        (["scaling", "--hardware", "h2o"], "unknown hardware 'h2o'"),
        (["scaling", "--metric", "effective_bits"], "grows as the error shrinks"),
        (["scaling", "--metric", "relative"], "unknown measure"),
        (["scaling", "--size", "8x8"], "is not MxNxK"),
        (["scaling", "--seeds", "0"], "at least one is needed"),
        (["scaling", "--factor", "0.9"], "'--factor': Input should be greater"),
        (["scaling", "--factor", "inf"], "'--factor': Input should be less"),
        (["scaling", "-o", "file"], "there is no folder file"),
        (["plane", "h2sgemm", "-O", "sb=1:3"], "--parameter"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "K=64"], "--parameter has no range of two values or more"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-O", "k=16,32", "-P", "K=8,16"], "--option has sb and k"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "K=8,16", "-P", "K=3"], "'K' is given twice"),
        (["plane", "h2sgemm", "-O", "sbb=1:3", "-P", "K=8,16"], "did you mean 'sb'"),
        (["plane", "h2sgemm", "-O", "sb=1:99", "-P", "K=8,16"], "from -60 to 60"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "phi=1,2"], "unknown parameter of 'uniform' 'phi'"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "phi=1,2", "-P", "name=phi"], "the distribution is uniform, and"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "K=0,2"], "a size is a positive integer"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "seed=-1:1"], "a seed is an integer, 0 or more"),
        (["plane", "h2sgemm", "-O", "sb 1:3", "-P", "K=8,16"], "is not name=value"),
        (["plane", "h2sgemm", "-O", "sb=1:3", "-P", "K=8,16", "--inputs", "phy"], "unknown distribution"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(folder, capsys, arguments, complaint):
    (folder / "file").write_text("")
    assert complaint in refusal(capsys, "sweep", *arguments, *([] if "--hardware" in arguments else [*_A100]))
    assert not (folder / "maps").exists()
