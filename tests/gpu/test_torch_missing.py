"""`fpemu.torch` where PyTorch is not installed, or hidden by the package's own folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys

sys.modules["torch"] = None
import fpemu

assert fpemu.torch.__all__
for call in (
    lambda: fpemu.torch.gemm(1, 1, scheme="staged"),
    lambda: fpemu.torch.hgemm(1, 1),
    lambda: fpemu.torch.hcgemm(1, 1),
    lambda: fpemu.torch.multiply(1, 1),
    lambda: fpemu.torch.matmul("staged"),
):
    try:
        call()
    except fpemu.InputError as error:
        print(error)
"""
HIDDEN = """
import sys

sys.path.insert(0, sys.argv[1])
try:
    import torch
except ImportError as error:
    print(error)
"""


def printed(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()


def test_every_function_names_the_missing_package():
    assert printed(WITHOUT) == ["the package torch is not installed: pip install 'torch'"] * 5


@pytest.mark.parametrize("folder", [ROOT / "fpemu"])
def test_the_package_does_not_pass_for_pytorch(folder):
    (line,) = printed(HIDDEN, str(folder))
    assert "hides PyTorch" in line
