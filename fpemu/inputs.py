"""Operand distributions of the five papers, and extreme distributions that test a scheme's limits.

Randomness is NumPy's PCG64, seeded as by `numpy.random.default_rng`. All distributions but three use only the raw words
of PCG64 and float64 additions, multiplications and scalings by powers of two, and so return the same bits on every
machine; a uniform u in [0, 1) equals the result of ``default_rng(seed).random``. "normal", "lognormal" and "phi" use
NumPy's normal deviates: those above 3.65 (one in 4000) call the C library's logarithm, whose last bit may depend on the
machine, and so may the last bit of the powers of two of "lognormal".

Values are drawn in float64 and rounded once (RNE) to the requested format, so a uniform fp32 matrix is uniform over the
reals rounded to fp32, not over multiples of 2^-24.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, isqrt, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import execute, in_ieee, map_threads, use_compiled
from fpemu.arguments import as_array, choice, flag, integer, integers, keywords, number
from fpemu.errors import InputError, entries, shown
from fpemu.formats import FloatFormat
from fpemu.rounding import _round_to

Floats = NDArray[Any]
Seed = int | Sequence[int]


@in_ieee
def make(name: str, shape: Any, seed: Seed, dtype: FloatFormat | str = "fp32", **parameters: Any) -> Floats:
    """Return an array drawn from a named distribution.

    Parameters
    ----------
    name : str
        Distribution, one of `names`; `describe` states its definition, parameters and source. "FILE.py:FUNCTION" is a
        distribution of the user, whose file is executed: ``FUNCTION(rng, shape, parameter=default, ...)`` returns an
        array of real numbers of the shape, drawn with the `numpy.random.Generator` rng.
    shape : int or tuple of int
        Shape of the array.
    seed : int >= 0 or a sequence of them
        Two seeds that differ only in trailing zeros of a sequence are the same seed, as in NumPy.
    dtype : FloatFormat or str
        Format of the values; the array has its carrier dtype (fp16 float16, fp32 and bf16 float32, fp64 float64).
    **parameters
        Parameters of the distribution; those left out keep their defaults. Every distribution but "all_bits" also has
        ``scale`` and ``exponent``: its numbers are multiplied by scale · 2^exponent before they are rounded to the
        format ("offset_symmetric" and "offset_nonnegative" have an exponent already).

    Returns
    -------
    array
        Values of ``dtype``, with the same bits for the same arguments.

    Raises
    ------
    InputError
        Unknown names (the nearest known one is named), parameters out of range, values beyond the format's largest.

    Examples
    --------
    >>> make("uniform", (2, 2), seed=1).dtype
    dtype('float32')
    >>> float(make("uniform", 100, seed=1, low=0.5, high=2.5).min()) >= 0.5
    True
    """
    return _draw(name, _shape(shape), np.random.SeedSequence(_seed(seed)), formats.get(dtype), parameters)


@in_ieee
def operands(
    name: str,
    M: int,
    N: int,
    K: int,
    seed: Seed,
    dtype: FloatFormat | str = "fp32",
    *,
    batch: Any = (),
    **parameters: Any,
) -> tuple[Floats, Floats]:
    """Return operands A and B of a product, drawn from a named distribution.

    Parameters
    ----------
    name : str
        Distribution, as in `make`.
    M, N, K : int
        Sizes of the product, each >= 0.
    seed, dtype : object
        As in `make`; the matrices are independent streams of the seed.
    batch : int or tuple of int
        Leading axes of A and B.
    **parameters
        As in `make`.

    Returns
    -------
    A, B : arrays (*batch, M, K) and (*batch, K, N)
        Values of ``dtype``.

    Raises
    ------
    InputError
        Unknown names, parameters out of range, or values beyond the format's largest.

    Notes
    -----
    The streams are the children (0,) and (1,) of the seed in the sense of `numpy.random.SeedSequence`. "cancellation"
    returns a pair whose product cancels: A as `make` returns it, B uniform in [-1, 1] with its rows equal two by two.

    Examples
    --------
    >>> [X.shape for X in operands("normal", 2, 3, 4, seed=1)]
    [(2, 4), (4, 3)]
    """
    fmt, lead = formats.get(dtype), _shape(batch)
    first, second = (np.random.SeedSequence(_seed(seed), spawn_key=(i,)) for i in (0, 1))
    M, N, K = (integer(size, value, 0, _MOST) for size, value in (("M", M), ("N", N), ("K", K)))
    if name != "cancellation" and use_compiled(max(M, N) * K):
        jobs = ((*lead, M, K), first), ((*lead, K, N), second)
        A, B = map_threads(lambda job: _draw(name, _shape(job[0]), job[1], fmt, parameters), jobs)
        return A, B
    A = _draw(name, _shape((*lead, M, K)), first, fmt, parameters)
    if name == "cancellation":
        rows = _draw("uniform", _shape((*lead, (K + 1) // 2, N)), second, fmt, {})
        return A, np.ascontiguousarray(np.repeat(rows, 2, axis=-2)[..., :K, :])
    return A, _draw(name, _shape((*lead, K, N)), second, fmt, parameters)


def names() -> list[str]:
    """Return the names of the distributions.

    Returns
    -------
    list of str
        Names that `make` and `operands` accept.

    Examples
    --------
    >>> names()[:2]
    ['uniform', 'legemm_applications']
    """
    return list(_KNOWN)


def describe(name: str) -> str:
    """Return one line on a distribution, with its parameters, their defaults and its source.

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    str
        Description without a line break.

    Raises
    ------
    InputError
        Unknown name; the message shows the nearest known one.

    Examples
    --------
    >>> describe("tsm2")
    'uniform in [low=0, high=1]: TSM2 and ISM2'
    """
    return _get(name).text


# --- the machinery
class _Stream:
    """Random words of PCG64, for a draw of a whole array, or of its blocks in order.

    A draw of blocks passes the number of all entries, `total`. The draw of each block makes the same calls as a draw of
    the whole array, and call i of every block continues where call i of the block before ended, i · total words after
    the start. A call of `normal`, which consumes a varying number of words, must then be the last.
    """

    def __init__(self, seed: np.random.SeedSequence, total: int | None = None) -> None:
        self.source = np.random.PCG64(seed)
        self._seed, self._total, self._sources, self._calls = seed, total, [np.random.Generator(self.source)], 0

    def next_block(self) -> _Stream:
        """The stream, at the first call of the next block."""
        self._calls = 0
        return self

    def _generator(self) -> np.random.Generator:
        if self._total is None:
            return self._sources[0]
        if self._calls == len(self._sources):
            self._sources.append(np.random.Generator(np.random.PCG64(self._seed).advance(self._calls * self._total)))
        self._calls += 1
        return self._sources[self._calls - 1]

    def words(self, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """Uniform 64-bit words."""
        return np.asarray(self._generator().bit_generator.random_raw(prod(shape)), dtype=np.uint64).reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> Floats:
        """Multiples of 2^-53 in [0, 1): the upper 53 bits of a word."""
        return self._generator().random(shape)

    def signs(self, shape: tuple[int, ...]) -> Floats:
        """-1.0 or 1.0."""
        words = self.words(shape)
        return (words & np.uint64(1 << 63) | np.float64(1).view(np.uint64)).view(np.float64)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Integers from low to high, both included, by the remainder of a word: uniform to n 2^-64 for n values."""
        return low + (self.words(shape) % np.uint64(high - low + 1)).astype(np.int64)

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """Standard normal deviates by NumPy's own method."""
        return self._generator().standard_normal(shape)


Draw = Callable[..., Floats]


@dataclass(frozen=True)
class _Distribution:
    draw: Draw  # (stream, shape, format, **own) -> float64, or values of the format
    own: dict[str, Any]
    text: str

    @property
    def factors(self) -> dict[str, Any]:
        """The factors of the numbers, scale and 2^exponent, that the distribution does not define itself."""
        every = {} if self.draw is _all_bits else {"exponent": 0, "scale": 1.0}
        return {name: value for name, value in every.items() if name not in self.own}

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of omitted parameters."""
        return self.own | self.factors


def _get(name: str) -> _Distribution:
    file, _, function = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if file.endswith(".py"):
        return _of_file(file, function, Path(file).resolve())
    return _KNOWN[choice("distribution", name, _KNOWN)]


@functools.lru_cache(maxsize=64)
def _of_file(file: str, function: str, path: Path) -> _Distribution:
    """The distribution that a function of a Python file draws; ``file`` is its name in messages."""
    where = f"distribution {shown(f'{file}:{function}')}"
    try:
        user = getattr(execute(path), function, None)
    except (Exception, SystemExit) as problem:
        raise InputError(f"{where}: {type(problem).__name__}: {problem}") from problem
    if not callable(user):
        raise InputError(f"{where}: the file has no function of this name")
    parameters = list(inspect.signature(user).parameters.values())
    own = {parameter.name: parameter.default for parameter in parameters[2:]}
    if len(parameters) < 2 or inspect.Parameter.empty in own.values():
        raise InputError(f"{where}: the function takes (rng, shape), and further parameters with defaults")

    def draw(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, **chosen: Any) -> Floats:
        values = as_array(user(np.random.Generator(stream.source), shape, **chosen), where)
        if values.shape != shape:
            raise InputError(f"{where} returned an array of shape {values.shape} in place of {shape}")
        return values.astype(np.float64)

    return _Distribution(draw, own, inspect.getdoc(user) or "")


def _draw(
    name: str, shape: tuple[int, ...], seed: np.random.SeedSequence, fmt: FloatFormat, parameters: dict[str, Any]
) -> Floats:
    known = _get(name)
    keywords(f"parameter of {name!r}", parameters, known.defaults)
    chosen = known.defaults | parameters
    factors = {key: chosen.pop(key) for key in known.factors}
    clipped = not (fmt.inf or fmt.has_nan)  # a format in which an overflow has no value
    total = prod(shape)

    def numbers(stream: _Stream, shape: tuple[int, ...]) -> tuple[Floats, Floats, NDArray[np.bool_] | None]:
        """Drawn numbers, rounded numbers, and which overflow."""
        with np.errstate(over="ignore", under="ignore"):
            values = known.draw(stream, shape, fmt, **chosen)
            if factors != known.factors:
                exponent = integer("exponent", factors.get("exponent", 0), -1074, 1023)
                values = np.ldexp(values * number("scale", factors["scale"]), exponent)
        if known.draw is _all_bits:
            return values, values, None  # codes decoded: values of the format already, NaN payloads included
        rounded = _round_to(values, fmt, saturate=clipped)
        overflow = np.abs(values) > fmt.max if clipped else ~np.isfinite(rounded)
        return values, rounded, overflow if overflow.any() else None

    if known.draw in _ELEMENTWISE and total > _BLOCK:
        use_compiled(total)  # imports numba for large arrays, so that the blocks use it
        stream, out = _Stream(seed, total), np.empty(total, fmt.dtype)
        for start in range(0, total, _BLOCK):
            block = out[start : start + _BLOCK]
            _, block[:], overflow = numbers(stream.next_block(), block.shape)
            if overflow is not None:
                break  # the error below has the entries of the whole array
        else:
            return out.reshape(shape)
    values, rounded, overflow = numbers(_Stream(seed), shape)
    if overflow is not None:
        refused = ", no zero and no negative numbers" if fmt.positive else ", no negative numbers" * (fmt.min >= 0)
        limits = f"largest {fmt.max}{refused}"
        raise InputError(f"inputs {name!r}: values beyond {fmt} ({limits}): {entries(overflow, values)}")
    return rounded


_MOST = 2**48  # entries, more than any memory holds; for larger shapes NumPy raises other errors


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = integers("shape", shape, 0, _MOST, one=True)
    if len(sizes) > 64 or prod(sizes) > _MOST:
        raise InputError(f"shape = {shown(shape)} has more than 64 axes or 2^48 entries")
    return sizes


def _seed(seed: Any) -> list[int]:
    words = integers("seed", seed, one=True)
    if not words:
        raise InputError(f"seed = {shown(seed)} must have an entry")
    return list(words)


# --- the distributions
def _uniform(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, low: Any, high: Any) -> Floats:
    low, high = number("low", low), number("high", high)
    if not low <= high or not isfinite(high - low):
        raise InputError(f"inputs: uniform needs low <= high with a finite difference, not low={low}, high={high}")
    return low + (high - low) * stream.uniform(shape)


def _symmetric(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, exponent: Any) -> Floats:
    return np.ldexp(2.0 * stream.uniform(shape) - 1.0, integer("exponent", exponent, -1074, 1023))


def _nonnegative(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, exponent: Any) -> Floats:
    return np.ldexp(stream.uniform(shape), integer("exponent", exponent, -1074, 1023))


def _phi(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, phi: Any) -> Floats:
    phi = number("phi", phi, 0, 1e6)
    centred = stream.uniform(shape) - 0.5
    return centred * _exp(phi * stream.normal(shape))


def _normal(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, mean: Any, deviation: Any) -> Floats:
    return number("mean", mean) + number("deviation", deviation, 0, 1e308) * stream.normal(shape)


def _lognormal(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, sigma: Any) -> Floats:
    sigma = number("sigma", sigma, 0, 1e6)
    signs = stream.signs(shape)
    return signs * np.exp2(sigma * stream.normal(shape))


def _powers(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, low: Any, high: Any) -> Floats:
    low, high = (integer(n, v, -1074, 1023) for n, v in (("low", low), ("high", high)))
    if low > high:
        raise InputError(f"inputs: low={low} is above high={high}")
    exponents = stream.integers(low, high, shape)
    return np.ldexp(stream.signs(shape), exponents.astype(np.int32))


def _wide(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, low: Any, high: Any) -> Floats:
    return _powers(stream, shape, fmt, low, high) * (1.0 + stream.uniform(shape))


def _positive(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat) -> Floats:
    return 1.0 - stream.uniform(shape)


def _subnormals(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat) -> Floats:
    if not fmt.subnormals or not fmt.fraction_bits:
        raise InputError(f"inputs 'subnormals': {fmt} has no subnormal numbers")
    steps = stream.integers(1, (1 << fmt.fraction_bits) - 1, shape)
    return stream.signs(shape) * np.ldexp(steps.astype(np.float64), fmt.emin - fmt.fraction_bits)


def _all_bits(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, specials: Any) -> Floats:
    specials = flag("specials", specials)
    drop = np.uint64(64 - fmt.width + fmt.padding)
    fields = -(-fmt._first_special >> fmt.fraction_bits)  # with numbers
    if fmt.emax + fmt.bias + 1 < fields:
        raise InputError(f"inputs 'all_bits': {fmt} has codes that mean nothing")

    def draw(shape: tuple[int, ...]) -> Floats:
        return np.asarray(fmt.decode(stream.words(shape) >> drop << np.uint64(fmt.padding)))

    values = draw(shape)
    while not specials and not (fine := np.isfinite(values)).all():
        values[~fine] = draw((int(np.count_nonzero(~fine)),))
    return values


def _cancellation(stream: _Stream, shape: tuple[int, ...], fmt: FloatFormat, bits: Any) -> Floats:
    if not shape:
        raise InputError("inputs 'cancellation' needs at least one axis, whose entries cancel two by two")
    bits = fmt.precision // 2 if bits is None else integer("bits", bits, 0, 1000)
    half = (*shape[:-1], (shape[-1] + 1) // 2)
    x = stream.signs(half) * (1.0 + stream.uniform(half)) / 2.0
    small = np.ldexp(2.0 * stream.uniform(half) - 1.0, -bits)
    pairs = np.stack([x, -x - x * small], axis=-1).reshape(*half[:-1], 2 * half[-1])
    if shape[-1] % 2:  # the entry without a partner is as small as the sum of a pair
        pairs[..., -2] = (x * small)[..., -1]
    return pairs[..., : shape[-1]]


_ELEMENTWISE = (_uniform, _symmetric, _nonnegative, _phi, _normal, _lognormal, _powers, _wide, _positive, _subnormals)
"""Draws of any block of entries by the same calls of a stream."""
_BLOCK = 1 << 14
"""Entries drawn at a time: their intermediate values stay in a core's cache."""
_KNOWN = {
    "uniform": _Distribution(
        _uniform, {"low": -1.0, "high": 1.0}, "uniform in [low=-1, high=1]: LE-GEMM's comparisons (section 5)"
    ),
    "legemm_applications": _Distribution(
        _uniform, {"low": 0.5, "high": 2.5}, "uniform in [low=0.5, high=2.5]: LE-GEMM's applications (Fig. 15, 16)"
    ),
    "tsm2": _Distribution(_uniform, {"low": 0.0, "high": 1.0}, "uniform in [low=0, high=1]: TSM2 and ISM2"),
    "offset_symmetric": _Distribution(
        _symmetric, {"exponent": 0}, "uniform in [-2^exponent, 2^exponent], exponent=0: H2SGEMM, Fig. 8a"
    ),
    "offset_nonnegative": _Distribution(
        _nonnegative, {"exponent": 0}, "uniform in [0, 2^exponent], exponent=0: H2SGEMM, Fig. 8b"
    ),
    "phi": _Distribution(_phi, {"phi": 1.0}, "(rand - 0.5) * exp(phi * randn), phi=1: DGEMM-TC (section 5.1)"),
    "normal": _Distribution(_normal, {"mean": 0.0, "deviation": 1.0}, "normal: mean=0, deviation=1"),
    "lognormal": _Distribution(
        _lognormal, {"sigma": 3.0}, "+-2^(sigma * randn), sigma=3: exponents spread normally around 0"
    ),
    "wide": _Distribution(
        _wide, {"low": -20, "high": 20}, "+-(1 + u) 2^e, e uniform among the integers of [low=-20, high=20]"
    ),
    "powers": _Distribution(
        _powers, {"low": -10, "high": 10}, "+-2^e, e uniform among the integers of [low=-10, high=10]"
    ),
    "positive": _Distribution(_positive, {}, "uniform in (0, 1]: sums without cancellation"),
    "subnormals": _Distribution(_subnormals, {}, "the subnormal numbers of the format, all equally likely"),
    "all_bits": _Distribution(
        _all_bits, {"specials": False}, "the codes of the format, all equally likely; specials=True: Inf and NaN too"
    ),
    "cancellation": _Distribution(
        _cancellation,
        {"bits": None},
        "pairs x, -x(1 + d) along the last axis, |d| <= 2^-bits (default: half the precision): sums lose those bits",
    ),
}


# --- the exponential function, with the same bits on every processor
# The bits of `numpy.exp` depend on the processor: with AVX-512 it calls Intel's vector library, elsewhere the C
# library, and the two differ in one result of twenty, so that operands drawn with it would differ. `_exp` is a fixed
# sequence of additions, multiplications and scalings by powers of two. Its bits are those of NumPy's Linux wheels on
# AVX-512, with which the figures and records of this package were first computed.
def _sixteenths() -> tuple[Floats, Floats]:
    """2^(j/16), j = 0 to 15, rounded to nearest, and the relative remainder of each."""
    exact = [Fraction(isqrt(isqrt(isqrt(isqrt(1 << (j + 16 * 200))))), 1 << 200) for j in range(16)]
    near = [float(power) for power in exact]
    rest = [float(power / Fraction(nearest) - 1) for power, nearest in zip(exact, near, strict=True)]
    return np.array(near), np.array(rest)


_NEAR, _REST = _sixteenths()
_STEPS = 16 * float.fromhex("0x1.71547652b82fep+0")  # 16 / ln 2
_LN2, _LN2_REST = float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")
_POLYNOMIAL = tuple(
    map(
        float.fromhex,
        (
            "0x1.7411836940c04p-10",
            "0x1.1101cbbc265c0p-7",
            "0x1.55557242d68fep-5",
            "0x1.5555553939732p-3",
            "0x1.000000000d008p-1",
            "0x1.fffffffffff70p-1",
        ),
    )
)
"""(e^r - 1) / r for r from 0 to ln 2 / 16, the highest power first."""


def _exp(x: Floats) -> Floats:
    """Return e^x elementwise, with an error below 0.75 units in the last place.

    x = (n / 16) ln 2 + r with an integer n and 0 <= r <= ln 2 / 16, so that e^x = 2^(n / 16) e^r: a table of 16 powers
    and a polynomial of degree 6 (P. T. P. Tang, ACM Transactions on Mathematical Software 15, 144-157, 1989).

    >>> _exp(np.array([0.0, 1.0, -np.inf])).tolist()
    [1.0, 2.718281828459045, 0.0]
    """
    x = np.asarray(x, np.float64)
    if use_compiled(x.size):
        from fpemu.compiled import draws

        out = np.empty(x.shape)
        draws.exp(x.reshape(-1), out.reshape(-1), _NEAR, _REST, _STEPS, _LN2, _LN2_REST, np.array(_POLYNOMIAL))
        return out
    x = np.clip(x, -800.0, 800.0)  # e^x is 0 or overflows beyond, and n fits in int32
    high, low = _product(x, _STEPS)
    n = np.floor(high)
    n -= (n == high) & (low < 0)  # the floor of the exact product
    r = _fma(n / -16, _LN2_REST, _fma(n / -16, _LN2, x))
    square = r * r
    a, b, c = (_fma(r, _POLYNOMIAL[i], _POLYNOMIAL[i + 1]) for i in (0, 2, 4))
    ratio = _fma(square, _fma(square, a, b), c)
    whole = n.astype(np.int32)
    power, rest = _NEAR[whole & 15], _REST[whole & 15]
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(_fma(power, _fma(ratio, r, rest), power), whole >> 4))


def _fma(a: Floats, b: Floats | float, c: Floats | float) -> Floats:
    """Return a b + c rounded once, except that within 2^-104 of a tie the other neighbour may result."""
    product, error = _product(a, b)
    high = product + c
    part = high - product
    low = (product - (high - part)) + (c - part)
    return np.asarray(high + (low + error))


def _product(a: Floats, b: Floats | float) -> tuple[Floats, Floats]:
    """The rounded product and its error, which is a float64 too (Dekker)."""
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(x: Floats | float) -> tuple[Floats | float, Floats | float]:
    """26 leading bits and the rest."""
    scaled = x * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high
