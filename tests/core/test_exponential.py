"""The exponential function against the correctly rounded one, and its bits as on AVX-512."""

from __future__ import annotations

import hashlib
import math

import flint
import numpy as np
import pytest
from numpy._core import _multiarray_umath as umath

from fpemu.inputs import _exp


def _arguments():
    generator = np.random.default_rng(1)
    return np.concatenate([scale * generator.standard_normal(2000) for scale in (1e-9, 1e-3, 0.5, 1.0, 8.0, 100.0)])


def test_errors_are_below_three_quarters_of_a_unit():
    x = _arguments()
    precision, flint.ctx.prec = flint.ctx.prec, 200
    try:
        for given, result in zip(x.tolist(), _exp(x).tolist(), strict=True):
            error = abs(flint.arb(given).exp() - result) / math.ulp(result)
            assert float(error.mid()) < 0.75
    finally:
        flint.ctx.prec = precision


def test_bits_are_the_same_on_every_processor():
    """The digest was taken from `numpy.exp` with AVX-512."""
    digest = hashlib.sha256(_exp(_arguments()).astype("<f8").tobytes()).hexdigest()
    assert digest == "fea05824ef5445cf93321543ed07bb21d811be3355a3a08886dcc699a79184e7"


@pytest.mark.skipif(not umath.__cpu_features__.get("AVX512_SKX"), reason="numpy.exp has other bits without AVX-512")
def test_bits_are_those_of_numpy_with_avx_512():
    x = _arguments()
    assert _exp(x).tobytes() == np.exp(x).tobytes()


def test_ends_of_the_range():
    x = np.array([0.0, -0.0, 5e-324, -5e-324, 709.7, 709.8, 1e308, np.inf, -745.0, -746.0, -1e308, -np.inf])
    assert _exp(x).tolist() == [math.exp(v) if v < 709.75 else math.inf for v in x.tolist()]
    assert _exp(np.zeros((0, 3))).shape == (0, 3)
    assert _exp(np.ones((2, 3)).T).shape == (3, 2)
    assert _exp(np.full((3, 4), 1.0)).tolist() == [[math.e] * 4] * 3
