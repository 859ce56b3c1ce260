"""The pages on the speed of small and of tall products: on records made after the papers and against them; the record
that is kept, its bits made again by the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import batched, record, shapes, suite
from benchmarks.gpu.case import SEED
from benchmarks.seeded import drawn
from fpemu import batched as emulated
from fpemu import simt
from fpemu._system import digest_text
from fpemu.reproduce import claims, pages

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "experiments" / "speed" / "h200_shapes.json"
PAGES = [f"magma/fig{n}" for n in (7, 10, 12, 14, 18)] + [f"tsm2/fig{n}" for n in (4, 5, 6, 10, 11, 12, 13)]


def test_the_pages_of_the_two_papers_and_no_others_have_rows_of_these_kinds():
    tasks = [task for kind in (shapes.BATCHED, shapes.TALL) for task in suite.module(kind).cases(False)]
    assert {page for task in tasks for page in task.figures} == set(PAGES)
    assert all(pages.load(name).page.kind == "G" for name in PAGES)


# --- pages
HEAD = {
    "format": 1,
    "device": {"gpu": "NVIDIA H200", "driver": "1", "library": "cuBLAS 13"},
    "runs": [{"date": "2026-01-01"}],
}
BATCHES = {
    "cublas": 6.0,
    "cublas in one": 5.0,
    "cublas fp16": 5.8,
    "ours": 1.0,
    "ours fp16": 1.0,
    "ours planar": 1.5,
    "ours three products": 1.1,
    "magma": 1.5,
    "tiny": 1.2,
}
TALL = {
    "V0": (12.0, 12.0),
    "V1": (4.2, 4.2),
    "V2": (2.4, 2.4),
    "V3": (1.4, 1.4),
    "hopper": (1.05, 1.05),
    "opt 1": (1.7, 1.8),
    "opt 2": (1.8, 1.7),
    "cublas": (1.9, 4.6),
}
"""Times, of tall products in fp32 and fp64, with which what the papers say, and what is aimed at, is true."""


def _slow(task):
    """How many times the least time a contender takes."""
    who, n = task.implementation, task.N
    if who.startswith("magma-small"):
        return 0.8 if n < 10 else 2.0
    if " tcf=" in who:
        return 2.0 if int(who.partition("=")[2]) < 64 else 4.0
    if who.startswith("magma "):
        return 1.2 if who in ("magma 16x16", "magma 32x8") else 2.0
    if n == shapes.LARGE_SIZES[0] and who == "ours":
        return 14.0
    if task.kind == shapes.TALL:
        if who == "cublas" and task.fmt == "fp32" and n == 16 and task.M == task.K:
            return 1.35
        return 2.5 if who == "V3" and task.K <= 16 else TALL[who][task.fmt == "fp64"]
    return (
        BATCHES[who]
        * (4.0 if n <= 8 and who.startswith("cublas") else 1.0)
        * (2.0 if task.data == "complex" and who.startswith("cublas") else 1.0)
    )


def _made_up(path, opposite=False):
    """A record with times made after `_slow`, or by its inverse and with everything else turned round too."""
    kept = record.Record(HEAD)
    for kind in (shapes.BATCHED, shapes.TALL):
        for task in suite.module(kind).cases(False):
            parts, size = (2 if task.data == "complex" else 1), {"fp16": 2, "fp32": 4, "fp64": 8}[task.fmt]
            moved = parts * size * (task.M * task.K + task.K * task.N + task.M * task.N) * task.batch
            worse = (task.implementation == "cublas") != opposite
            call = 1e-6 if moved < 1e8 else 0.0
            took = _slow(task) * (moved / 4e12 + call)
            if opposite:
                few = task.batch if kind == shapes.BATCHED else 2 * (task.K / shapes.INNER) ** 0.5
                took = (moved / 4e12 + call / 100) / _slow(task) * few
            kept.add(
                {
                    **task.fields,
                    "run": 0,
                    "rules": task.rules,
                    "fmt": task.fmt,
                    "copy_GBs": 4000.0,
                    "bytes": moved,
                    "operations": 2.0 * parts**2 * task.M * task.N * task.K * task.batch,
                    "first_s": took,
                    "loop_s": 1.1 * took,
                    "cold_s": 1.2 * took,
                    "launch_s": 1e-6,
                    "relative_l2": 2e-4 * (1 + worse),
                }
            )
    record.save(kept, path)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """Records after the papers and against them."""
    folder = tmp_path_factory.mktemp("records")
    for name in ("as", "against"):
        _made_up(folder / f"{name}.json", name == "against")
    return folder


def _rows(monkeypatch, made_up, name, page):
    monkeypatch.setenv("FPEMU_SPEED", str(made_up / f"{name}.json"))
    found = pages.load(page)
    return found, [{**cell, **found.evaluate(cell)} for cell in found.cells("quick")]


@pytest.mark.parametrize("name", PAGES)
def test_measures_follow_the_record(monkeypatch, made_up, name):
    paper = next(one for one in claims.papers() if one.folder == name.split("/")[0])
    criteria = {one.name: one.criterion for one in (*paper.claims, *paper.checks) if one.page == name}
    measured = []
    for record_name in ("as", "against"):
        page, rows = _rows(monkeypatch, made_up, record_name, name)
        measured.append({(one.name, one.reading, one.variant): one.value for one in page.measures(rows)})
        assert page.measures([]) == []
    kept, against = measured
    assert kept.keys() == against.keys()
    assert {key[0] for key in kept} == criteria.keys()
    assert any(kept[key] != pytest.approx(against[key], rel=0.01) for key in kept)
    judged = [key for key in kept if criteria[key[0]]]
    assert all(criteria[key[0]].met(kept[key]) for key in judged)
    assert not judged or not all(criteria[key[0]].met(against[key]) for key in judged)


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
