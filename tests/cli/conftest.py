"""Files that several tests of the command line read."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def folder(workdir):
    """A working directory with A.npy (8×32), B.npy (32×6), C.npy (8×6) in fp32."""
    generator = np.random.default_rng(1)
    for name, shape in (("A", (8, 32)), ("B", (32, 6)), ("C", (8, 6))):
        np.save(f"{name}.npy", generator.uniform(-1, 1, shape).astype(np.float32))
    return workdir
