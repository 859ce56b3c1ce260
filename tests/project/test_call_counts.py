"""Limits of the Python calls, and of the changes of file between them, that repeated public calls make."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import schemes
from fpemu.cli import main
from tests.calls import count

GENERATOR = np.random.default_rng(0)
A, B = (GENERATOR.standard_normal((64, 64)).astype(np.float32) for _ in "AB")
HALF = A.astype(np.float16), B.astype(np.float16)
SPEC = fpemu.mma.spec("A100", "fp16", "fp32")
D = fpemu.mma.gemm(*HALF, spec=SPEC)

GEMM = {  # calls of fpemu.gemm (64 × 64 × 64, A100), changes of file, checks of an array by as_array
    "sgemm": (43, 25, 2),
    "dgemm": (47, 26, 2),
    "fp16": (68, 40, 2),
    "markidis": (68, 40, 2),
    "bf16x9": (143, 80, 2),
    "bf16x6": (105, 60, 2),
    "bf16x3": (86, 50, 2),
    "egemm": (68, 40, 2),
    "ootomo": (88, 50, 2),
    "ootomo-tf32": (92, 50, 2),
    "ape": (108, 60, 2),
    "multiword": (88, 50, 2),
    "legemm": (88, 50, 2),
    "h2sgemm": (108, 60, 2),
    "staged": (71, 41, 2),
    "staged-int8": (64, 31, 2),
    "ozaki": (338, 126, 2),
    "ozimmu": (273, 162, 2),
    "ozaki2": (250, 116, 2),
}
OTHERS = {
    "mma.gemm": (lambda: fpemu.mma.gemm(*HALF, spec=SPEC), (33, 21, 2)),
    "reference.matmul": (lambda: fpemu.reference.matmul(A, B), (73, 48, 2)),
    "conformance.verify": (lambda: fpemu.conformance.verify(D, *HALF, hardware="A100", fmt="fp16"), (1480, 552, 3)),
}


def _check(call, limits):
    call()  # imports, compilation, caches of configurations
    calls = count(call)
    measured = calls.total, calls.file_changes, calls.functions["arguments.py:as_array"]
    most = "\n".join(f"{n:5} {name}" for name, n in calls.functions.most_common(40))
    assert all(m <= limit for m, limit in zip(measured, limits, strict=True)), f"{measured} above {limits}\n{most}"


@pytest.mark.parametrize("scheme", schemes.names())
def test_calls_of_a_repeated_product(scheme):
    _check(lambda: fpemu.gemm(A, B, scheme=scheme, hardware="A100"), GEMM[scheme])


@pytest.mark.parametrize("name", OTHERS)
def test_calls_of_other_public_functions(name):
    _check(*OTHERS[name])


def test_calls_of_a_stored_page(workdir, capsys):
    _check(lambda: main(["reproduce", "h2sgemm/blocking", "-j", "1"]), (6000, 430, 0))
    assert "figures/h2sgemm/blocking.{png,csv,json,md}: unchanged" in capsys.readouterr().out


def test_calls_of_a_sweep_of_stored_cells(tmp_path):
    def sweep():
        grid = fpemu.sweep.Grid(["uniform"], ["ootomo", "h2sgemm"], hardware="ampere", M=16, N=16, K=[16, 32])
        with fpemu.sweep.Store(tmp_path / "cells.sqlite") as results:
            assert len(fpemu.sweep.run(grid, results=results)) == 4

    _check(sweep, (900, 520, 0))


def test_the_counter_excludes_imports_and_comprehensions():
    def call():
        fpemu.round_to([0.1], "fp16")

    call()
    calls = count(call)
    assert calls.functions["rounding.py:round_to"] >= 1
    assert not any(":<" in name for name in calls.functions)


CHECKS_ARRAYS = {  # the boundary, one module of a public subpackage: arrays are checked there and nowhere below
    "rounding.py",
    "formats/__init__.py",
    "formats/block.py",
    "reference/__init__.py",
    "metrics/analysis.py",
    "schemes/base.py",
    "mma/gemm.py",
    "mma/outer_scales.py",
    "batched/layouts.py",
    "conformance/compare.py",
    "library/emulation.py",
    "library/collectives.py",
    "probing/callables.py",
    "advice/search.py",
    "theory/norms.py",
    "plotting/bits.py",
    "inputs.py",  # the array that a user's distribution returns
    "sweep/operands.py",  # matrices of files
}


def test_arrays_are_checked_at_the_boundary_alone():
    root = Path(fpemu.__file__).parent
    importing = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and {"as_array", "as_float64"} & {name.name for name in node.names}
    }
    assert importing == CHECKS_ARRAYS
