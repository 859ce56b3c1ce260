"""Recorded layers of language models, and versions that share a model."""

import numpy as np
import pytest

from fpemu import InputError, library


def test_a_layer_is_recorded_for_8192_rows_and_for_16_bit_results():
    assert library.lookup("cublas", "bf16", (8192, 4096, 4096), layout="TN").source == "table"
    rows = library.configurations("cublas", "bf16->bf16", [(8192, 4096, 4096), (8193, 4096, 4096)], layout="TN")
    np.testing.assert_array_equal(rows[:, 0] >= 0, [True, False])


def test_every_number_of_rows_of_a_wide_layer_has_an_order():
    found = library.invariance("cublas", "bf16", 28672, 8192, layout="TN", m=range(1, 4097))
    assert all(interval.orders for interval in found.intervals)


def test_versions_with_equal_choices_share_the_model():
    shape = (300, 400, 1000)
    base = library.lookup("cublas", "bf16", shape, layout="TN")
    other = library.lookup("cublas", "bf16", shape, layout="TN", version="12.9.1.4")
    assert (base.order, base.source) == (other.order, other.source)
    assert (base.version, other.version) == ("13.1.0.3", "12.9.1.4")
    with pytest.raises(InputError, match=r"cublas 12\.4\.5\.8 on H200: no order of bf16 TN 300x400x1000"):
        library.lookup("cublas", "bf16", shape, layout="TN", version="12.4.5.8")
    with pytest.raises(InputError, match="no order"):  # recorded layers are those of one version
        library.lookup("cublas", "bf16", (8192, 4096, 4096), layout="TN", version="12.9.1.4")
