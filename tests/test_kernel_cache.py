"""Compiled kernels are kept on disk: processes that start at the same time must not take one another's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from filelock import FileLock

COMPILE = """
import sys
import numpy as np
from fpemu import mma
from fpemu.mma.compiled import panel
print(panel.panel.stats.cache_path, flush=True)
sys.stdin.readline()
A = np.ones((2, 16), np.float16)
print(mma.gemm(A, A.T, None, mma.spec("ideal", "fp16", "fp32")).ravel().tolist())
"""


def test_a_process_waits_for_one_that_reads_or_writes_kernels(tmp_path):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    child = subprocess.Popen(
        [sys.executable, "-c", COMPILE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert child.stdin is not None
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    lock = FileLock(folder / "fpemu.lock")
    with lock:
        child.stdin.write("go\n")
        child.stdin.flush()
        time.sleep(2)
        assert child.poll() is None
        assert not list(folder.glob("*.nb?"))
    assert child.communicate()[0] == "[16.0, 16.0, 16.0, 16.0]\n"
    assert [f.suffix for f in sorted(folder.glob("*.nb?"))] == [".nbc", ".nbi"]
