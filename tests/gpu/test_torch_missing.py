"""`fpemu.torch` where PyTorch is not installed, or hidden by the package's own folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys

sys.modules["torch"] = None
from fpemu.torch import gemm, hcgemm, hgemm, matmul, multiply, record

products = (gemm, (1, 1)), (hgemm, (1, 1)), (hcgemm, (1, 1)), (multiply, (1, 1))
for call, arguments in (*products, (matmul, ()), (record, (1,))):
    try:
        call(*arguments, **({"scheme": "staged"} if call in (gemm, matmul) else {}))
    except ValueError as error:
        print(error)
"""


def printed(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_every_function_names_the_missing_package():
    assert printed(WITHOUT) == "the package torch is not installed: pip install 'torch'\n" * 6


def test_the_package_does_not_pass_for_pytorch():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'fpemu')!r})\ntry: import torch\nexcept ImportError as e: print(e)"
    )
    assert "hides PyTorch" in printed(code)
