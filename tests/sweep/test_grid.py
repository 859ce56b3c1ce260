"""Grids: what their files mean, what is refused before anything runs, and the numbers of a cell."""

import itertools
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fpemu import inputs, metrics, mma, reference, schemes
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.mma import KOrder
from fpemu.sweep import Grid, Store, frame, run
from fpemu.sweep.grid import evaluate
from fpemu.sweep.run import estimate, survey
from fpemu.sweep.store import canonical, code
from fpemu.sweep.tables import export

TOML = """
title = "H2SGEMM over its scaling exponent"
metrics = ["relative_l2", "max_relative"]
hardware = ["ampere", "hopper"]
seeds = 3
M = 8
N = 4
K = [16, "32:48:16"]
[[inputs]]
name = "offset_symmetric"
exponent = "-10:0:5"
[[schemes]]
name = "h2sgemm"
sb = [0, 12]
combine = ["element-wise", "term-wise"]
[[schemes]]
name = "sgemm"
[[orders]]
[[orders]]
split = [16, 32]
join = "pairwise"
"""


@pytest.fixture
def file(workdir):
    path = workdir / "grid.toml"
    path.write_text(TOML)
    return path


def _small(**changes):
    given = {"inputs": ["uniform"], "schemes": ["sgemm"], "M": 4, "N": 4, "K": 8, **changes}
    return Grid(**given)


# --- what a grid means
def test_cells_are_the_product_of_the_axes(file):
    cells = Grid.read(file).cells()
    axes = itertools.product((16, 32, 48), (-10, -5, 0), (0, 1, 2), (None, 16, 32))
    expected = []
    for K, exponent, seed, split in axes:
        methods = [
            {"scheme": "h2sgemm", "scheme.sb": sb, "scheme.combine": combine, "hardware": machine}
            for sb in (0, 12)
            for combine in ("element-wise", "term-wise")
            for machine in ("ampere", "hopper")
        ]
        defaults = {f"scheme.{o.name}": o.default for o in schemes.get("h2sgemm").info.options}
        defaults["scheme.products"] = ",".join(defaults["scheme.products"])
        plain = [defaults | method for method in methods]
        for method in [*plain, {"scheme": "sgemm", "hardware": None}]:
            fields = asdict(KOrder(split=split, join="pairwise"))
            order = {} if split is None else {f"order.{name}": value for name, value in fields.items()}
            rest = {"on_range": "raise", "out": "fp64", "metrics": ["relative_l2", "max_relative"]}
            size = {"M": 8, "N": 4, "K": K, "inputs": "offset_symmetric", "inputs.exponent": exponent, "seed": seed}
            expected.append(size | {"inputs.scale": 1.0} | method | order | rest)
    assert sorted(map(canonical, cells)) == sorted(map(canonical, expected))


def test_cells_that_share_operands_are_neighbours(file):
    cells = Grid.read(file).cells()
    drawn = [(c["K"], c["inputs.exponent"], c["seed"]) for c in cells]
    assert len(list(itertools.groupby(drawn))) == len(set(drawn)) == 27


def test_python_and_toml_are_the_same_grid(file, tmp_path):
    other = tmp_path / "grid.py"
    other.write_text(
        textwrap.dedent("""
        from fpemu.sweep import Grid

        GRID = Grid(
            title="the same", metrics=["relative_l2", "max_relative"], hardware=["ampere", "hopper"], seeds=[0, 1, 2],
            M=8, N=4, K=range(16, 49, 16), inputs=[{"name": "offset_symmetric", "exponent": [-10, -5, 0]}],
            schemes=[{"name": "h2sgemm", "sb": [0, 12], "combine": ["element-wise", "term-wise"]}, "sgemm"],
            orders=[{}, {"split": [16, 32], "join": "pairwise"}],
        )
        """)
    )
    assert Grid.read(other).cells() == Grid.read(file).cells()


FOUR = """
from dataclasses import dataclass
from fpemu.schemes.base import register
from fpemu.schemes.markidis import Markidis
from fpemu.schemes.options import SchemeInfo

@register
@dataclass(frozen=True, kw_only=True)
class Four(Markidis):
    info = SchemeInfo(name="four")
"""
IN_FOUR = """
import four
from fpemu.sweep import Grid

GRID = Grid(["uniform"], ["four"], hardware="ampere", M=2, N=2, K=16)
"""


@pytest.mark.filterwarnings("ignore:.*the accumulators are not promoted:UserWarning")
def test_results_of_a_users_scheme_depend_on_its_file_and_workers_load_it(tmp_path, monkeypatch):
    monkeypatch.setattr(schemes.base, "_SCHEMES", dict(schemes.base._SCHEMES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "four", raising=False)
    monkeypatch.delitem(sys.modules, "basis", raising=False)
    (tmp_path / "grid.py").write_text(IN_FOUR)
    (tmp_path / "basis.py").write_text("from fpemu.schemes.markidis import Markidis\n\n\nclass Basis(Markidis): ...\n")
    derived = FOUR.replace("fpemu.schemes.markidis import Markidis", "basis import Basis as Markidis")
    plain, versions = code(_small().sources), []
    for text in (FOUR, FOUR + "    SCALE = 2\n", derived):
        (tmp_path / "four.py").write_text(text)
        grid = Grid.read(tmp_path / "grid.py")
        versions.append(code(grid.sources))
        sys.modules.pop("four")
        schemes.base._SCHEMES.pop("four")  # as in a worker process
        load, arguments = grid.loader
        loaded = load(*arguments)
        assert code(loaded.sources) == versions[-1]
        assert loaded.evaluate(grid.cells()[0], "cpu")["relative_l2"] > 0
        sys.modules.pop("four")
        schemes.base._SCHEMES.pop("four")
    sys.modules.pop("basis")
    assert len({plain, *versions}) == 4


@pytest.mark.filterwarnings("ignore:.*the accumulators are not promoted:UserWarning")
def test_a_grid_and_a_map_name_a_scheme_by_its_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(schemes.base, "_SCHEMES", dict(schemes.base._SCHEMES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPEMU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text(FOUR.replace('"four"', '"fourth"'))
    (cell,) = _small(schemes=["own.py:fourth"], hardware="A100").cells()
    assert (cell["scheme"], schemes.get("fourth").info.title) == ("fourth", "fourth")
    axes = ["-O", "k=8,16", "-P", "K=8,16", "--hardware", "A100", "--size", "4x4x8", "--seeds", "1"]
    assert main(["sweep", "plane", "own.py:fourth", *axes]) == 0
    assert (picture := next((tmp_path / "maps").glob("*fourth*.json")))
    assert "plane own.py:fourth" in picture.read_text()
    assert main(["sweep", "plane", "own.py:fifth", *axes]) == 2
    assert "unknown scheme 'fifth'" in capsys.readouterr().err
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match=r"broken\.py: ZeroDivisionError"):
        _small(schemes=["broken.py:any"])


def test_a_resolved_cell_has_the_defaults_of_omitted_options():
    (cell,) = _small(schemes=["h2sgemm"], hardware="A100").cells()
    short = {name: value for name, value in cell.items() if name not in ("scheme.sb", "scheme.k")}
    assert _small().resolved(short) == cell


@pytest.mark.filterwarnings("ignore:.*the accumulators are not promoted:UserWarning")
def test_a_users_scheme_that_changed_or_has_no_file_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(schemes.base, "_SCHEMES", dict(schemes.base._SCHEMES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "grid.py").write_text(FOUR + IN_FOUR.replace("import four", ""))
    grid = Grid.read(tmp_path / "grid.py")
    with (tmp_path / "grid.py").open("a") as stream:
        stream.write("SCALE = 2\n")
    with pytest.raises(InputError, match=r"grid\.py was changed after this process loaded it"):
        code(grid.sources)
    assert code(Grid.read(tmp_path / "grid.py").sources) != code(
        _small().sources
    )  # read again, the scheme registered again
    schemes.base._SCHEMES.pop("four")
    exec(FOUR, {"__name__": "a notebook"})
    with pytest.raises(InputError, match="'four' is defined in no file"):
        _ = _small(schemes=["four"], hardware="ampere").sources


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (4, [4]),
        ([4, 8], [4, 8]),
        ("4:7", [4, 5, 6, 7]),
        ("4:16:4", [4, 8, 12, 16]),
        ("4:15:4", [4, 8, 12]),
        ("2^1:2^3", [2, 4, 8]),
        ([2, "4:5", 2], [2, 4, 5]),
        (range(1, 4), [1, 2, 3]),
        (np.array([8, 16]), [8, 16]),
        (np.int64(4), [4]),
    ],
)
def test_axes(value, meant):
    sizes = [cell["K"] for cell in _small(K=value).cells()]
    assert sizes == meant
    assert {type(size) for size in sizes} == {int}


def test_decimal_ranges_do_not_drift():
    grid = _small(inputs=[{"name": "phi", "phi": "0.1:1:0.1"}])
    assert [cell["inputs.phi"] for cell in grid.cells()] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_square_sizes_and_the_word_none():
    grid = _small(
        M=[2, 3], N="M", K="M", hardware="ampere", schemes=[{"name": "ootomo", "promote": ["none", "instruction", 16]}]
    )
    assert {(c["M"], c["N"], c["K"]) for c in grid.cells()} == {(2, 2, 2), (3, 3, 3)}
    assert [c["scheme.promote"] for c in grid.cells()][:3] == [None, "instruction", 16]


def test_options_are_kept_as_the_scheme_keeps_them():
    def options(**given):
        return [c for c in _small(hardware="ampere", schemes=[{"name": "ootomo", **given}]).cells()]

    assert options(residual_scale=2048) == options(residual_scale=2048.0) == options(residual_scale=[2048, 2048.0])
    products = [["hh", "rh", "hr"], "hh,rh", "hh"]
    assert [c["scheme.products"] for c in options(products=products)] == ["hh,rh,hr", "hh,rh", "hh"]
    assert [c["scheme.accumulators"] for c in options(accumulators=["hh; rh, hr", "band"])] == ["hh;rh,hr", "band"]
    assert [c["scheme.step"] for c in options(correction_step=16)] == [16]
    with pytest.warns(DeprecationWarning, match="'strassen' is now 'staged'"):
        (cell,) = _small(hardware="ampere", schemes=["strassen"]).cells()
    assert (cell["scheme"], cell["scheme.levels"]) == ("staged", 1)


WGMMA, MMA = (mma.spec("H200", "fp16", "fp32", instruction) for instruction in ("wgmma", "mma"))
CHANGED = [
    (WGMMA, "hopper", WGMMA),
    (MMA, "hopper instruction=mma", MMA),
    (MMA.replace(F=23, final="RNE"), "hopper instruction=mma F=23 final=RNE", MMA.replace(F=23, final="RNE")),
    (mma.spec("A100", "fp16", "fp32", k=8), "ampere k=8", mma.spec("A100", "fp16", "fp32", k=8)),
    (mma.spec("MI300X", "fp16", "fp32"), "cdna3", mma.spec("MI300X", "fp16", "fp32")),
    ({"base": "H200", "final": "RNE", "F": 24}, "H200 final=RNE F=24", WGMMA.replace(final="RNE", F=24)),
    ({"base": "H200", "instruction": "mma", "E0": None}, "H200 instruction=mma E0=None", MMA.replace(E0=None)),
]


@pytest.mark.parametrize(("given", "name", "spec"), CHANGED, ids=[name for _, name, _ in CHANGED])
def test_changed_instructions_are_hardware(given, name, spec):
    grid = _small(schemes=["h2sgemm"], hardware=given, K=96)
    (cell,) = json.loads(json.dumps(grid.cells()))  # as a worker on another machine receives it
    assert cell["hardware"] == name
    A, B = inputs.operands("uniform", 4, 4, 96, 0, "fp32")
    D = schemes.gemm(A, B, scheme="h2sgemm", hardware=spec)
    assert evaluate(cell) == {"relative_l2": metrics.relative_l2(D, reference.matmul(A, B))}


def test_an_instruction_of_no_architecture_is_named_by_its_expression():
    own = mma.MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=13, E0=-131)
    (cell,) = _small(schemes=["h2sgemm"], hardware=own).cells()
    assert cell["hardware"] == repr(own)
    assert evaluate(cell) != evaluate({**cell, "hardware": "volta"})
    grid = _small(schemes=["h2sgemm"], hardware={"base": "A100", "final": ["RNE", "RZ"], "F": "22:24"})
    assert len({cell["hardware"] for cell in grid.cells()}) == 6


def test_own_distributions_are_part_of_the_key(workdir):
    Path("t.py").write_text("def t(rng, shape, df=3.0):\n    return rng.standard_t(df, shape)\n")
    grid = _small(inputs=[{"name": "t.py:t", "df": [2.0, 5.0], "exponent": "-4:0:4"}], schemes=["sgemm"], seeds=2)
    table = grid.run(jobs=2)
    assert len(table) == 8
    assert table["inputs.df"].tolist() == [2.0] * 4 + [5.0] * 4
    assert grid.sources[-1] == workdir / "t.py"


def test_none_is_a_value_of_an_option_and_absence_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("FPEMU_CACHE", str(tmp_path))
    grid = _small(hardware="ampere", schemes=["ootomo", {"name": "ootomo", "promote": "none"}, "sgemm"])
    table = grid.run()
    assert [*table["scheme.promote"].astype(object)[:2]] == ["instruction", "none"]
    assert table["scheme.promote"].isna().tolist() == [False, False, True]
    assert table.groupby([name for name in table if "." in name]).ngroups == 2
    every = [f"scheme.{option.name}" for option in schemes.get("ootomo").info.options]
    assert set(every) <= set(table)


def test_a_scheme_may_have_hardware_of_its_own():
    grid = _small(hardware=["volta", "ampere"], schemes=["fp16", {"name": "bf16x3", "hardware": "ampere"}, "sgemm"])
    found = [(c["scheme"], c["hardware"]) for c in grid.cells()]
    assert found == [("fp16", "volta"), ("fp16", "ampere"), ("bf16x3", "ampere"), ("sgemm", None)]


# --- what is refused
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schemes": ["h2sgem"]}, r"schemes 1 \(h2sgem\): unknown scheme 'h2sgem': did you mean 'h2sgemm'"),
        ({"schemes": [{"name": "h2sgemm", "combin": 3}]}, "unknown h2sgemm option 'combin': did you mean 'combine'"),
        ({"schemes": [{"name": "h2sgemm", "combine": ["term-wise", "termwise"]}]}, "did you mean 'term-wise'"),
        ({"schemes": ["fp16"], "hardware": []}, "the grid names no hardware"),
        ({"schemes": ["bf16x3"], "hardware": "volta"}, r"schemes 1 \(bf16x3\): .*volta"),
        ({"schemes": []}, "schemes is empty"),
        ({"schemes": [{"sb": 1}]}, "has no name"),
        ({"hardware": ["amperes"]}, "did you mean 'ampere'"),
        ({"schemes": ["fp16"], "hardware": {"final": "RNE"}}, r"hardware: .* has no \"base\", an architecture or GPU"),
        ({"schemes": ["fp16"], "hardware": {"base": "H200", "fina": 1}}, "instruction 'fina': did you mean 'final'"),
        ({"schemes": ["fp16"], "hardware": {"base": "H200", "F": [24, 99]}}, "F = 99 is not between 1 and 35"),
        ({"schemes": ["fp16"], "hardware": mma.spec("H200", "bf16")}, "takes bf16, bf16 and fp32"),
        ({"inputs": ["uniforn"]}, r"inputs 1 \(uniforn\): unknown distribution 'uniforn': did you mean 'uniform'"),
        ({"inputs": [{"name": "phi", "pi": 1}]}, "inputs phi: unknown parameter of 'phi' 'pi': did you mean 'phi'"),
        ({"inputs": [{"name": "phi", "phi": "big"}]}, "phi = 'big' must be a number"),
        ({"inputs": [{"name": "offset_symmetric", "exponent": [0, 200]}]}, "values beyond fp32"),
        ({"metrics": ["relativ_l2"]}, "metrics: unknown measure 'relativ_l2': did you mean 'relative_l2'"),
        ({"metrics": []}, "metrics is empty"),
        ({"on_range": "rais"}, "did you mean 'raise'"),
        ({"out": "fp65"}, "fp65"),
        ({"orders": [{"splt": 3}]}, "orders 1: order: unknown field 'splt': did you mean 'split'"),
        ({"orders": [{"split": 0}]}, "orders 1: order: KOrder: split = 0"),
        ({"K": 0}, "K is 0: a size is a positive integer"),
        ({"K": 2.5}, "K is 2.5"),
        ({"K": True}, "K is True"),
        ({"M": "M"}, "M is 'M'"),
        ({"K": []}, "K is empty"),
        ({"K": "8:4"}, "K: '8:4' ends below its start"),
        ({"seeds": 0}, "seeds is 0: at least one"),
        ({"seeds": [-1]}, "a seed is an integer"),
        ({"M": "1:1000", "N": "1:1000", "K": "1:1000"}, "cells; at most"),
        ({"M": [*range(1, 1001)], "N": "1:500", "K": "1:2", "seeds": 2}, "cells; at most"),
        ({"seeds": 300_000_000_000}, "too many values; a grid has at most 1000000 cells"),
        ({"schemes": [{"name": "h2sgemm", "sb": range(10**12)}]}, "too many values"),
        ({"M": np.float64(4)}, "M is 4.0"),
        ({"seeds": np.array([[1]])}, r"seeds has \[1\]: a seed is an integer"),
        ({"title": 3}, "title must be a text"),
        ({"M": 10**400}, r"^M has 10{56}\.\.\.: numbers lie between -1e300 and 1e300$"),
        ({"K": 2**31}, r"K is 2147483648: a size is a positive integer, at most 2\^31 - 1"),
        ({"M": float("inf")}, "M has inf: numbers lie between"),
        ({"seeds": 10**400}, r"^range\(0, 10{47}\.\.\. has too many values"),
        ({"seeds": [10**30]}, r"seeds has 10{30}: a seed is an integer, 0 or more and below 2\^63"),
        ({"seeds": float("nan")}, "seeds has nan: numbers lie between"),
        ({"schemes": [{"name": "h2sgemm", 3: 1}]}, r"schemes 1 \(h2sgemm\): unknown h2sgemm option 3"),
        ({"inputs": [{"name": "phi", "phi": float("nan")}]}, r"inputs 1 \(phi\): phi has nan: numbers lie between"),
        ({"schemes": [{"name": "ootomo", "promote": 16}], "orders": [{"promote": 32}], "hardware": "ampere"}, "twice"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(changes, message):
    with pytest.raises(InputError, match=message):
        _small(**{"hardware": "ampere", **changes})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.toml", TOML.replace("metrics", "metric", 1), r"g\.toml: unknown field 'metric': did you mean 'metrics'"),
        (
            "g.toml",
            TOML.replace("[[schemes]]", "[[scheme]]"),
            r"g\.toml: unknown field 'scheme': did you mean 'schemes'",
        ),
        ("g.toml", "inputs = ['uniform']", r"g\.toml: schemes is missing"),
        ("g.toml", "inputs = [", r"g\.toml is not readable as TOML: "),
        ("g.toml", TOML.replace("M = 8", f"M = {10**400}"), r"^[^ ]*g\.toml: M has 10{56}\.\.\.: numbers lie between"),
        ("g.py", "def f():\n    f()\nf()", r"g\.py: RecursionError"),
        ("g.toml", TOML.replace('["ampere", "hopper"]', "5"), r"g\.toml: schemes 1 .*unknown hardware 5"),
        ("g.py", "GRAD = 1", r"g\.py binds no GRID"),
        ("g.py", "1 / 0", r"g\.py: ZeroDivisionError"),
        ("g.py", "import sys\nsys.exit()", r"g\.py: SystemExit"),
        ("g.py", "from fpemu.sweep import Grid\nGRID = Grid([], [])", r"g\.py: inputs is empty"),
        ("g.json", "{}", r"g\.json: a grid is a \.toml file"),
        ("none.toml", None, "does not exist"),
        ("", None, "a grid is a"),
    ],
)
def test_files_that_are_no_grid(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        Grid.read(tmp_path / name)


# --- the numbers
def test_a_cell_is_what_the_library_gives():
    grid = _small(
        M=5,
        N=7,
        K=40,
        hardware="hopper",
        metrics=metrics.names(),
        seeds=[3],
        out="fp32",
        inputs=[{"name": "offset_symmetric", "exponent": -3}],
        schemes=[{"name": "h2sgemm", "sb": 6}, "sgemm", "dgemm", {"name": "ozimmu", "slices": 3}],
        orders=[{"split": 16, "join": "descending"}],
    )
    for cell, options in zip(grid.cells(), ({"sb": 6}, {}, {}, {"slices": 3}), strict=True):
        fmt = "fp64" if cell["scheme"] in ("dgemm", "ozimmu") else "fp32"
        A, B = inputs.operands("offset_symmetric", 5, 7, 40, 3, fmt, exponent=-3)
        order = mma.KOrder(split=16, join="descending")
        D = schemes.gemm(A, B, scheme=cell["scheme"], hardware="hopper", order=order, **options)
        R = reference.matmul(A, B, out="fp32")
        found = evaluate(cell)
        assert list(found) == metrics.names()
        assert found["normwise"] == metrics.normwise(D, R, A, B)
        assert found["max_ulps"] == metrics.max_ulps(D, reference.matmul(A, B, out=fmt), fmt)
        for name in set(metrics.names()) - {"normwise", "max_ulps"}:
            assert found[name] == metrics.get(name)(D, R)


def test_grids_share_cells(tmp_path):
    with Store(tmp_path / "r.sqlite") as results:
        first = run(_small(seeds=2), results=results)
        plan = survey(_small(seeds=3), "quick", results)
        assert (len(plan.stored), len(plan.todo)) == (2, 1)
        assert run(_small(seeds=3), results=results)[:2] == first


def test_the_estimate_grows_with_the_work(tmp_path):
    with Store(tmp_path / "r.sqlite") as results:
        small, large = _small(M=32, N=32, K=32, seeds=4), _small(M=512, N=512, K=512, seeds=40)
        seconds, basis = estimate(small, survey(small, "quick", results), 1)
        assert basis == "from one cell measured now"
        assert 0 < seconds < 60
        run(small, results=results)
        both = _small(M=[32, 512], N="M", K="M", seeds=4)
        stored, basis = estimate(both, survey(both, "quick", results), 1)
        assert basis == "from 4 stored cells"
        assert large.cost(large.cells()[0]) > 100 * small.cost(small.cells()[0])
        assert stored > seconds
        assert len(results) == 4


# --- tables
def test_tables_round_trip(tmp_path):
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), -0.0]
    rows = [
        {"n": n, "kind": None if n % 2 else "a,b", **({"scheme.sb": n} if n % 3 else {}), "flag": True, "value": value}
        for n, value in enumerate(values)
    ]
    export(rows, str(tmp_path / "t.csv"))
    export(rows, str(tmp_path / "t.parquet"))
    text = pd.read_csv(tmp_path / "t.csv", dtype={"value": str})
    text["value"] = [float(value) for value in text["value"]]
    for table in (text, pd.read_parquet(tmp_path / "t.parquet")):
        assert list(table.columns) == ["n", "kind", "scheme.sb", "flag", "value"]
        assert np.array(table["value"]).tobytes() == np.array(values).tobytes()
        assert table["scheme.sb"].isna().sum() == 3
        assert list(table["n"]) == list(range(8))
    parquet = pd.read_parquet(tmp_path / "t.parquet")
    assert [str(parquet[name].dtype) for name in ("n", "scheme.sb", "flag", "value")] == [
        "int64",
        "Int64",
        "bool",
        "float64",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.parquet"]


def test_a_mixed_column_is_text():
    table = frame([{"promote": "instruction"}, {"promote": 16}, {"promote": None}])
    assert table["promote"].tolist()[:2] == ["instruction", "16"]
    assert table["promote"].isna().tolist() == [False, False, True]


# --- the command
def test_the_command_from_dry_run_to_export(file, capsys):
    file.write_text(TOML.replace("seeds = 3", "seeds = 1"))
    assert main(["sweep", str(file), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "243 cells: 0 stored, 243 to do" in text
    assert "from one cell measured now" in text
    assert main(["sweep", "-j", "1", str(file), "--export", "out.csv", "--export", "out.parquet"]) == 0
    capsys.readouterr()
    table = pd.read_csv("out.csv")
    assert len(table) == len(pd.read_parquet("out.parquet")) == 243
    assert main(["sweep", str(file), "--dry-run"]) == 0
    assert "243 cells: 243 stored, 0 to do" in capsys.readouterr().out
    assert main(["sweep", str(file)]) == 0
    shown = capsys.readouterr()
    assert "sb=12 combine=term-wise" in shown.out
    assert "243 cells, results in" in shown.err
    line = next(line for line in shown.out.splitlines() if "sb=12 combine=term-wise" in line and "hopper" in line)
    mine = table[
        (table["scheme.sb"] == 12) & (table["scheme.combine"] == "term-wise") & (table["hardware"] == "hopper")
    ]
    assert f"{mine['relative_l2'].median():.3e}" in line


def test_failed_cells_are_exit_status_1(file, capsys):
    text = TOML.replace('"-10:0:5"', "[0, 20]").replace('"h2sgemm"', '"fp16"')
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("sb", "combine"))))
    assert main(["sweep", str(file), "-j", "1", "--export", "out.csv"]) == 1
    err = capsys.readouterr().err
    assert "54 of 162 cells failed; the first, {" in err
    table = pd.read_csv("out.csv")
    assert table["error"].notna().sum() == 54
    assert (table["error"].notna() == table["relative_l2"].isna()).all()
    assert main(["sweep", str(file), "--dry-run"]) == 0
    assert "54 to do, 54 of which failed before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml does not exist"),
        (["scalling"], "scalling does not exist: a grid is a .toml file"),
        (["grid.toml", "--executor", "dusk"], "unknown executor 'dusk': did you mean 'dask'"),
        (["grid.toml", "--executor", "processes", "--scheduler", "tcp://127.0.0.1:1"], "needs the executor dask"),
        (["grid.toml", "--export", "out.xls"], "out.xls: tables are written as .csv or .parquet"),
        (["grid.toml", "-j", "0"], "--jobs"),
        (["grid.toml", "--nonsense"], "--nonsense"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_status_2(file, capsys, arguments, message):
    assert main(["sweep", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()  # no progress bar before it
    assert message in line


def test_the_cost_of_a_cell_counts_its_products_of_words():
    grid = _small(M=100, N=100, K=100, schemes=["sgemm", "ootomo", "markidis"], hardware="ampere")
    assert [grid.cost(cell) / 1e6 - 1 for cell in grid.cells()] == [1, 3, 4]
