"""The pages on the speed of small and of tall products: the committed record,
and its bits by the emulator."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import batched, record, shapes, suite
from benchmarks.gpu.case import SEED
from benchmarks.seeded import drawn
from fpemu import batched as emulated
from fpemu import simt
from fpemu._system import digest_text
from fpemu.reproduce import pages

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "experiments" / "speed" / "h200_shapes.json"
PAGES = [f"magma/fig{n}" for n in (7, 10, 12, 14, 18)] + [f"tsm2/fig{n}" for n in (4, 5, 6, 10, 11, 12, 13)]


def test_the_pages_of_the_two_papers_and_no_others_have_rows_of_these_kinds():
    tasks = [task for kind in (shapes.BATCHED, shapes.TALL) for task in suite.module(kind).cases(False)]
    assert {page for task in tasks for page in task.figures} == set(PAGES)
    assert all(pages.load(name).page.kind == "G" for name in PAGES)


# --- the record that is kept
@pytest.fixture(scope="module")
def kept():
    return record.read(RECORD)


def test_the_record_is_whole_and_every_launch_gave_the_same_bits_twice(kept):
    assert RECORD.read_text(encoding="utf-8") == kept.text()
    good = [row for row in kept.rows if "failed" not in row]
    assert all(row["again"] and not row["lost"] for row in good)
    assert all(row["best_s"] <= row["first_s"] <= row["most_s"] for row in good)
    assert not any("away_s" in row for row in good)  # no other process had the GPU
    tasks = [task for kind in (shapes.BATCHED, shapes.TALL) for task in suite.module(kind).cases(False)]
    assert {record.key(row) for row in kept.rows} <= {record.key(task.fields) for task in tasks}


def test_ratios_are_of_one_run(kept):
    runs_of: dict = {}
    for row in kept.rows:
        if "failed" not in row:
            runs_of.setdefault((*record.key(row)[:5], row.get("batch", 1)), set()).add(row["run"])
    assert all(len(found) == 1 for found in runs_of.values())


def test_all_kernels_of_an_arithmetic_have_one_digest_on_a_product(kept):
    digests_of: dict = {}
    for row in kept.rows:
        who = row["contender"]
        if "failed" in row or who.startswith("cublas"):
            continue
        other = (
            who
            if who in ("magma-small", "magma-small fp32", "ours fp16", "ours planar", "ours three products")
            else "chains"
        )
        digests_of.setdefault((*record.key(row)[:5], row.get("batch", 1), other), {})[who] = row["digest"]
    several = [found for found in digests_of.values() if len(found) > 1]
    assert len(several) > 50
    assert all(len(set(found.values())) == 1 for found in several)


@pytest.mark.parametrize(
    ("data", "contender", "n"),
    [
        ("real", "ours", 2),
        ("real", "tiny", 5),
        ("real", "magma", 8),
        ("real", "magma-small", 16),
        ("real", "magma-small fp32", 3),
        ("real", "ours fp16", 4),
        ("real", "ours", 16),
        ("complex", "ours", 4),
        ("complex", "magma-small", 4),
        ("complex", "ours planar", 4),
        ("complex", "ours three products", 8),
    ],
)
def test_the_records_bits_are_the_emulators(kept, data, contender, n):
    """Operands drawn again here, the whole batch multiplied by the emulator, its digest that of the GPU's result."""
    row = _row(kept, data, contender, n)
    options = batched.options(contender, data == "complex")
    layout = options.pop("layout", None)
    parts, batch = (2 if layout else 1), row["batch"]
    A, B = (drawn("fp16", parts * batch * n * n, 2 * SEED + s, -1.0, 1.0).reshape(-1, batch, n, n) for s in (0, 1))
    hardware = {} if contender.startswith("magma-small") else {"hardware": "hopper", "instruction": "mma"}
    if layout is None:
        D = emulated.hgemm(A[0], B[0], **options, **hardware)
    else:
        A, B = (np.moveaxis(x, 0, -1) if layout == "interleaved" else x for x in (A, B))
        D = emulated.hcgemm(A, B, layout=layout, **options, **hardware)
    assert digest_text(np.ascontiguousarray(D).reshape(-1).view(np.uint32)) == row["digest"]


def _row(kept, data, contender, n):
    return next(
        row
        for row in kept.rows
        if row["kind"] == shapes.BATCHED
        and row["M"] == row["K"] == n
        and (row["data"], row["contender"], row["batch"]) == (data, contender, shapes.BATCH)
    )


@pytest.mark.parametrize("fmt", shapes.FORMATS)
def test_the_records_tall_products_are_chains(kept, fmt):
    M, n = shapes.ROWS[-1], 8
    found = [
        row
        for row in kept.rows
        if (row["kind"], row["M"], row["N"], row["K"], row["data"]) == (shapes.TALL, M, n, n, f"{fmt} columns")
        and row["contender"] != "cublas"
    ]
    A = drawn(fmt, M * n, 2 * SEED, 0.0, 1.0).reshape(n, M).T
    B = drawn(fmt, n * n, 2 * SEED + 1, 0.0, 1.0).reshape(n, n).T
    C = simt.tsm2(A, B, fmt=fmt)
    want = digest_text(np.ascontiguousarray(C.T).reshape(-1).view(np.uint32))
    assert {row["contender"] for row in found} == {"V3", "opt 1", "opt 2", "hopper"}
    assert {row["digest"] for row in found} == {want}
