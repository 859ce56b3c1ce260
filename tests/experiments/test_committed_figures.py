"""The figures of the repository against the code: cells evaluated again, here and as on other processors."""

import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core import _multiarray_umath as umath

from fpemu.reproduce import figures, pages
from fpemu.reproduce.figures import committed
from fpemu.sweep import tables

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "figures"
STEMS = sorted(path.with_suffix("") for path in (*FIGURES.glob("*/*.json"), *FIGURES.glob("full/*/*.json")))
NAMES = [stem.relative_to(FIGURES).as_posix() for stem in STEMS]


def _load(name):
    """The experiment of a figure, its size, and its rows as committed."""
    record = figures.load_record(FIGURES / f"{name}.json")
    experiment = pages.load(record.figure, ROOT / "experiments")
    return experiment, record.size, tables.read(FIGURES / f"{name}.csv")


def _sample(experiment, size, rows, count, part):
    """The cheapest cell, and others drawn at random from the cheaper part of the cells."""
    names = list(experiment.cells(size)[0])
    order = sorted(range(len(rows)), key=lambda i: (experiment.cost({name: rows[i][name] for name in names}), i))
    cheap = order[: max(1, round(part * len(order)))]
    chosen = random.Random(experiment.name).sample(cheap[1:], min(count, len(cheap)) - 1)
    return [rows[i] for i in sorted([cheap[0], *chosen])]


def _mismatches(experiment, size, rows):
    """The numbers of rows that a new evaluation gives otherwise in the written digits: cell, column, old, new."""
    names = list(experiment.cells(size)[0])
    cells = [{name: row[name] for name in names} for row in rows]
    found = []
    for cell, row in zip(cells, rows, strict=True):
        (again,) = figures.as_written(experiment, size, [cell | experiment.evaluate(cell)])
        for column in row | again:
            old, new = (repr(numbers.get(column)) for numbers in (row, again))
            found += [(str(cell), column, old, new)] * (old != new)
    return found


# --- here
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("full/")])
def test_a_cell_evaluated_again_gives_the_committed_numbers(name):
    """Figures of full size; `make reproduce ARGS=all` evaluates all cells of the others."""
    experiment, size, rows = _load(name)
    assert not _mismatches(experiment, size, _sample(experiment, size, rows, 1, 0.5))


def test_a_number_that_differs_in_its_last_written_digit_is_found():
    experiment, size, rows = _load("h2sgemm/underflow")
    (row,) = _sample(experiment, size, rows, 1, 1)
    column, value = next((name, x) for name, x in row.items() if isinstance(x, float) and len(repr(x)) > 10)
    for factor, found in ((1 + 1e-12, False), (1 + 2e-8, True)):
        changed = {**row, column: tables.rounded(value * factor)}
        assert bool(_mismatches(experiment, size, [changed])) == found
    assert [entry[1] for entry in _mismatches(experiment, size, [changed])] == [column]


@pytest.mark.parametrize("name", NAMES)
def test_records_name_the_evaluator_as_it_is(name):
    experiment, size, rows = _load(name)
    record = figures.load_record(FIGURES / f"{name}.json")
    assert record.version == experiment.page.version
    assert list(record.picture) == ["file", "sha256"]
    assert (FIGURES / f"{name}.csv").read_bytes() == tables.table(rows, figures.digits(experiment, size))


def test_writing_the_committed_figures_again_changes_no_file(tmp_path):
    """Figures of full size; `make reproduce ARGS="all --redraw"` writes the others."""
    for name in [name for name in NAMES if name.startswith("full/")][::7]:
        experiment, size, rows = _load(name)
        folder = tmp_path / "full"
        for suffix in ("png", "csv", "json", "md"):
            path = folder / f"{experiment.name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((FIGURES / f"{name}.{suffix}").read_bytes())
        assert figures.write(experiment, size, rows, folder).state == "unchanged", name


# --- as on other processors
SENSITIVE = {
    **dict.fromkeys(("frontier/points", "legemm/applications"), 3),
    **dict.fromkeys(("dgemm_tc/promise", "dgemm_tc/fig3", "bounds/ozaki", "bounds/ozimmu", "bounds/legemm"), 2),
    **dict.fromkeys(("bounds/dgemm", "magma/bias", "magma/updates", "models/yardsticks", "tsm2/accuracy"), 2),
    "ozaki2/yardsticks": 1,
}
"""Pages whose evaluators call BLAS, LAPACK, or exponentials of NumPy, and how many cells of each are evaluated."""
DISPATCHED = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]
CORES = {"x86_64": {"Haswell": "AVX2", "SkylakeX": "AVX512F"}, "aarch64": {"ARMV8": "NEON", "NEOVERSEN1": "ASIMDDP"}}
"""Core types of OpenBLAS with products of their own, and the processor feature that each needs."""
MACHINES = [
    {"OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": threads, "NPY_DISABLE_CPU_FEATURES": disabled}
    for (core, feature), threads, disabled in zip(
        CORES.get(platform.machine(), {}).items(), "12", (" ".join(DISPATCHED), ""), strict=False
    )
    if umath.__cpu_features__.get(feature)
]
CHILD = """
import json, sys
sys.path[:0] = sys.argv[1:]
import test_committed_figures as figures
print(json.dumps(figures.sensitive_mismatches()))
"""


def sensitive_mismatches():
    """The mismatches of the sensitive pages, and the instruction sets that NumPy uses."""
    found = {"dispatched": DISPATCHED}
    for name, count in SENSITIVE.items():
        experiment, size, rows = _load(name)
        part = 1 if name in ("frontier/points", "legemm/applications") else 0.5
        found[name] = _mismatches(experiment, size, _sample(experiment, size, rows, count, part))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine["OPENBLAS_CORETYPE"])
def test_other_processors_give_the_committed_numbers(machine):
    """Kernels of OpenBLAS and loops of NumPy for other processors, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(Path(__file__).parents[1]), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **machine},
    )
    found = json.loads(done.stdout)
    assert bool(found.pop("dispatched")) == (not machine["NPY_DISABLE_CPU_FEATURES"] and bool(DISPATCHED))
    assert {name: entries for name, entries in found.items() if entries} == {}


def test_the_other_processors_round_otherwise():
    """The machines above are a test only if their sums and exponentials have other last bits."""
    if len({machine["OPENBLAS_CORETYPE"] for machine in MACHINES}) < 2:
        pytest.skip("OpenBLAS has one core type for this processor")
    script = (
        "import numpy as np; x = np.random.default_rng(1).random((2, 300, 300)); "
        "print((x[0] @ x[1]).tobytes().hex()[:4000], np.exp(x[0]).tobytes().hex()[:4000])"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ, **machine}
        ).stdout.split()
        for machine in MACHINES
    ]
    products, exponentials = (set(texts) for texts in zip(*printed, strict=True))
    assert len(products) > 1
    assert len(exponentials) == 1 + ("X86_V4" in DISPATCHED)  # NumPy has an exponential for AVX-512


def test_a_least_speed_states_the_sizes_and_the_data_that_it_covers():
    page = committed("speed/sizes")
    variants = {m.variant for m in page.experiment.measures(page.rows) if m.name == "never_slower_over_n"}
    assert "staged, 7 sizes from n = 512 to 16384" in variants
    fewer = [row for row in page.rows if row["M"] != 512]
    variants = {m.variant for m in page.experiment.measures(fewer) if m.name == "never_slower_over_n"}
    assert "staged, 6 sizes from n = 1024 to 16384" in variants
    page = committed("speed/frontier")
    variants = {m.variant for m in page.experiment.measures(page.rows) if m.name == "int8_speed"}
    assert variants == {
        "staged-int8, 1 of 4 distributions",
        "staged-int8, 1/4 exact, 1 of 4 distributions",
        "staged-int8, 1/8 exact, 3 of 4 distributions",
    }
