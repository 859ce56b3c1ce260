"""Operand distributions: reproducible bits, ranges, formats, and what is refused."""

import math

import numpy as np
import pytest

from fpemu import formats, inputs, reference
from fpemu.errors import InputError

# parameters that keep a distribution within every format below
TAME = {"wide": {"low": -6, "high": 6}, "powers": {"low": -6, "high": 6}, "lognormal": {"sigma": 1}}


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64", "e4m3"])
@pytest.mark.parametrize("name", inputs.names())
def test_every_distribution_gives_values_of_the_format(name, dtype):
    fmt = formats.get(dtype)
    x = inputs.make(name, (7, 9), [3, 1], dtype, **TAME.get(name, {}))
    assert x.shape == (7, 9)
    assert x.dtype == fmt.dtype
    assert fmt.contains(x).all()
    assert np.isfinite(x).all()
    assert len(np.unique(x)) > 5
    again = inputs.make(name, (7, 9), [3, 1], dtype, **TAME.get(name, {}))
    assert (x.view(np.uint8) == again.view(np.uint8)).all()
    other = inputs.make(name, (7, 9), [3, 2], dtype, **TAME.get(name, {}))
    assert (x != other).mean() > 0.5


@pytest.mark.parametrize("name", inputs.names())
def test_operands_come_from_two_streams(name):
    A, B = inputs.operands(name, 6, 6, 6, seed=5, dtype="fp64")
    assert A.shape == B.shape == (6, 6)
    assert not np.isin(np.abs(A), np.abs(B)).any() or name == "powers"
    alone = inputs.make(name, (6, 6), 5, "fp64")
    assert (alone != A).any()
    assert (alone != B).any()


def test_shapes():
    A, B = inputs.operands("uniform", 2, 3, 4, seed=0, batch=(5, 6))
    assert (A.shape, B.shape) == ((5, 6, 2, 4), (5, 6, 4, 3))
    assert inputs.make("uniform", 3, 0).shape == (3,)
    assert inputs.make("uniform", (), 0).shape == ()
    for name in inputs.names():
        assert inputs.make(name, (0, 3), 0).shape == (0, 3)
        A, B = inputs.operands(name, 2, 2, 0, 0)
        assert (A.shape, B.shape) == ((2, 0), (0, 2))


# --- the papers' distributions
def test_uniform_is_numpys():
    u = np.random.default_rng([4, 2]).random((10, 10))
    assert (inputs.make("tsm2", (10, 10), [4, 2], "fp64") == u).all()
    assert (inputs.make("uniform", (10, 10), [4, 2], "fp64") == -1 + 2 * u).all()
    assert (inputs.make("uniform", (10, 10), [4, 2]) == (-1 + 2 * u).astype(np.float32)).all()
    assert (inputs.make("legemm_applications", (10, 10), [4, 2], "fp64") == 0.5 + 2 * u).all()
    assert (inputs.make("uniform", 5, np.int64(9), low=3, high=3) == 3).all()
    assert (inputs.make("uniform", 5, 9) == inputs.make("uniform", 5, [9])).all()


@pytest.mark.parametrize("exponent", [0, -14, -40, 3])
def test_offset_exponents(exponent):
    u = np.random.default_rng(8).random(1000)
    x = inputs.make("offset_symmetric", 1000, 8, "fp64", exponent=exponent)
    y = inputs.make("offset_nonnegative", 1000, 8, "fp64", exponent=exponent)
    assert (x == (2 * u - 1) * 2.0**exponent).all()
    assert (y == u * 2.0**exponent).all()
    assert inputs.make("offset_symmetric", 1000, 8, exponent=exponent).dtype == np.float32


def test_phi():
    rng = np.random.default_rng(6)
    rand = rng.random((30, 30))
    x = inputs.make("phi", (30, 30), 6, "fp64", phi=2)
    assert (x == (rand - 0.5) * inputs._exp(2.0 * rng.standard_normal((30, 30)))).all()
    assert (inputs.make("phi", (30, 30), 6, "fp64", phi=0) == rand - 0.5).all()


def test_the_range_widens_with_phi():
    spread = []
    for phi in (0.1, 1, 2):
        x = np.abs(inputs.make("phi", 10000, 1, "fp64", phi=phi))
        spread.append(x.max())
    assert 0.5 < spread[0] < 1 < spread[1] < 30 < spread[2] < 3000


# --- the hostile ones
def test_powers_and_wide():
    x = inputs.make("powers", 4000, 2, low=-3, high=5)
    mantissa, exponent = np.frexp(np.abs(x))
    assert (mantissa == 0.5).all()
    assert sorted(set((exponent - 1).tolist())) == list(range(-3, 6))
    assert 0.4 < (x < 0).mean() < 0.6
    x = inputs.make("wide", 4000, 2, "fp64", low=-1022, high=1023)
    exponents = np.frexp(x)[1] - 1
    assert exponents.min() < -1000
    assert exponents.max() > 1000
    assert np.isfinite(x).all()


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64", "e4m3"])
def test_subnormals(dtype):
    fmt = formats.get(dtype)
    x = np.abs(inputs.make("subnormals", 3000, 1, dtype).astype(np.float64))
    assert (x > 0).all()
    assert (x < fmt.min_normal).all()
    if dtype == "e4m3":
        assert set((x / fmt.min_subnormal).tolist()) == {1, 2, 3, 4, 5, 6, 7}


def test_all_bits():
    x = inputs.make("all_bits", 60000, 1, "e4m3")
    codes = set(formats.E4M3.encode(x).tolist())
    assert codes == set(range(256)) - {0x7F, 0xFF}
    x = inputs.make("all_bits", 60000, 1, "fp16", specials=True)
    assert np.isnan(x).any()
    assert np.isinf(x).any()
    nans = {int(b) for b in x.view(np.uint16)[np.isnan(x)]}
    assert len(nans) > 100  # the payloads are kept
    x = inputs.make("all_bits", 60000, 1, "fp16")
    assert np.isfinite(x).all()
    assert ((np.abs(x) < 2.0**-14) & (x != 0)).any()
    tf32 = inputs.make("all_bits", 100, 1, "tf32")
    assert (tf32.view(np.uint32) % 2**13 == 0).all()


def test_positive():
    x = inputs.make("positive", 10000, 1, "fp64")
    assert (x > 0).all()
    assert (x <= 1).all()


@pytest.mark.parametrize("K", [100, 101, 1, 2])
def test_cancellation(K):
    A, B = inputs.operands("cancellation", 8, 8, K, seed=4, dtype="fp64", bits=30)
    result = np.abs(reference.matmul(A, B))
    weight = np.abs(A) @ np.abs(B)
    if K > 1:
        assert (result < 2.0**-29 * weight).all()
    assert (result > 0).all()
    rows = inputs.make("cancellation", (8, K), 4, "fp64", bits=30)
    sums = reference.matmul(rows, np.ones((K, 1)))
    assert (np.abs(sums) < 2.0**-29 * K).all()


def test_values_are_rounded_once():
    x = inputs.make("uniform", 5000, 3, "fp64")
    assert (inputs.make("uniform", 5000, 3, "fp16") == x.astype(np.float16)).all()
    small = np.abs(inputs.make("uniform", 50000, 3).astype(np.float64))
    small = small[(small > 0) & (small < 2.0**-10)]
    assert (np.ldexp(small, 24) != np.trunc(np.ldexp(small, 24))).any()  # finer than the grid of 2^-24


# --- wrong arguments
FLUSH = formats.FloatFormat("flush", 11, -14, 15, subnormals=False)
SIZES = r"shape = .* must be an integer from 0 to 2\^48 or a sequence of them"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("unifrm", {}, "unknown distribution 'unifrm': did you mean 'uniform'"),
        ("uniform", {"hihg": 2}, "unknown parameter of 'uniform' 'hihg': did you mean 'high'"),
        ("positive", {"low": 2}, "unknown parameter of 'positive' 'low': known: exponent, scale"),
        ("all_bits", {"scale": 2.0}, "unknown parameter of 'all_bits' 'scale'"),
        ("normal", {"exponent": 0.5}, "exponent = 0.5 must be an integer"),
        ("normal", {"scale": "2"}, "scale = '2' must be a finite number"),
        ("normal", {"exponent": 200}, "values beyond fp32"),
        ("uniform", {"low": 2, "high": 1}, "low <= high"),
        ("uniform", {"low": -1e308, "high": 1e308}, "finite difference"),
        ("uniform", {"low": math.nan}, "low = .* must be a finite number"),
        ("uniform", {"low": "0"}, "low = .* must be a finite number"),
        ("offset_symmetric", {"exponent": 0.5}, "exponent = 0.5 must be an integer"),
        ("offset_nonnegative", {"exponent": 2000}, "exponent = 2000 must be an integer from -1074 to 1023"),
        ("phi", {"phi": -1}, "phi = -1 must be a number >= 0"),
        ("phi", {"phi": True}, "phi = True must be a number"),
        ("normal", {"deviation": -1}, "deviation"),
        ("lognormal", {"sigma": math.inf}, "sigma"),
        ("lognormal", {"sigma": 1000}, "values beyond fp32"),
        ("powers", {"low": 3, "high": 2}, "low=3 is above high=2"),
        ("wide", {"low": 0, "high": 1023}, "values beyond fp32"),
        ("all_bits", {"specials": 1}, "specials = 1 must be True or False"),
        ("all_bits", {"dtype": formats.FloatFormat("x", 4, -6, 5)}, "has codes that mean nothing"),
        ("cancellation", {"bits": -1}, "bits = -1 must be an integer"),
        ("cancellation", {"shape": ()}, "at least one axis"),
        ("subnormals", {"dtype": FLUSH}, "no subnormal numbers"),
        ("uniform", {"dtype": "fp31"}, "unknown format"),
        ("uniform", {"dtype": "e2m1", "low": -10, "high": 10}, "values beyond e2m1"),
        ("uniform", {"dtype": "e8m0"}, "no zero and no negative numbers"),
        *(("uniform", {"seed": seed}, r"seed = .* must") for seed in (-1, 0.5, None, "7", [], [1, -2], [1, "2"])),
        *(("uniform", {"shape": shape}, SIZES) for shape in (-1, (2, -3), (2, 0.5))),
    ],
)
def test_wrong_arguments(name, arguments, message):
    with pytest.raises(InputError, match=message):
        inputs.make(name, **{"shape": 100, "seed": 1, **arguments})


@pytest.mark.parametrize("name", [name for name in inputs.names() if name not in ("all_bits", "subnormals")])
def test_numbers_are_multiplied_by_scale_and_a_power_of_two(name):
    plain = inputs.make(name, 200, 3, "fp64")
    assert np.array_equal(inputs.make(name, 200, 3, "fp64", scale=3.0, exponent=-4), plain * 3.0 / 16)


def test_a_distribution_of_a_file(tmp_path):
    file = tmp_path / "student.py"
    file.write_text("""
def student(rng, shape, df=3.0):
    "Student's t-distribution"
    return rng.standard_t(df, shape)

def wrong(rng, shape):
    return [1.0]

def required(rng, shape, df):
    return rng.standard_t(df, shape)
""")
    rng = np.random.default_rng(np.random.SeedSequence([5], spawn_key=(1,)))
    _, B = inputs.operands(f"{file}:student", 4, 5, 6, 5, df=5.0, exponent=3)
    assert np.array_equal(B, (rng.standard_t(5.0, (6, 5)) * 8).astype(np.float32))
    assert inputs.describe(f"{file}:student") == "Student's t-distribution"
    for function, message in [
        ("studen", "the file has no function of this name"),
        ("wrong", r"returned an array of shape \(1,\) in place of \(3,\)"),
        ("required", "further parameters with defaults"),
    ]:
        with pytest.raises(InputError, match=message):
            inputs.make(f"{file}:{function}", 3, 0)
    with pytest.raises(InputError, match=r"nowhere\.py"):
        inputs.make("nowhere.py:draw", 3, 0)


def test_descriptions():
    for name in inputs.names():
        assert len(inputs.describe(name)) > 20
    with pytest.raises(InputError, match="unknown distribution"):
        inputs.describe("nothing")
