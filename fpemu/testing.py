"""Assertions for the tests of GEMM kernels: equal bits, or an error within the bound of every summation order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, simt
from fpemu._system import in_ieee
from fpemu.arguments import choice, integer, number, product_shape
from fpemu.conformance.scaled import Scales, verify_scaled
from fpemu.conformance.specification import Specification
from fpemu.conformance.verdict import Verdict, _check_formats, limits, verify
from fpemu.errors import InputError
from fpemu.library import emulation, products, tables
from fpemu.mma import KOrder, MmaSpec
from fpemu.probing.callables import Operand, as_numbers

__all__ = ["assert_bits_equal", "assert_within_bound"]

Array = NDArray[Any]
Lines = NDArray[np.int64]
_WORK = 2**28  # multiply-adds of the emulation, about 0.4 s on two cores, above which a product is sampled
_LEAST = 64  # columns of a sampled row, and rows of a sampled column


@in_ieee
def assert_bits_equal(
    D: Any,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    hardware: Any = None,
    order: Any = None,
    scheme: Any = None,
    library: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    block: int | None = None,
    multiply: str | None = None,
    fused: bool = True,
    bias: Any = None,
    activation: str | None = None,
    out: str | None = None,
    seed: int | None = 0,
    seconds: float = 20.0,
    **fields: Any,
) -> None:
    """Assert that a product has the bits of its specification.

    Parameters
    ----------
    D : array (..., M, N)
        Product of the tested kernel. D and the operands are arrays of NumPy, PyTorch, CuPy, JAX or any library with
        DLPack, in any memory.
    A, B : arrays (..., M, K) and (..., K, N)
        Operands; leading axes are batch axes, which broadcast.
    C : array (..., M, N), optional
        Addend; its factor `beta` is 1 by default.
    hardware : str or MmaSpec, optional
        GPU, architecture or instruction, as in `fpemu.mma.spec`. With ``library="openblas"`` the name of its kernel.
    order : KOrder, tree, Revealed or dict, optional
        Summation order over K; default: one chain.
    scheme : str or Scheme, optional
        Scheme of `fpemu.gemm`.
    library : {"cublas", "openblas"}, optional
        Library whose summation order for this type, layout and shape is expected, as in `fpemu.library.emulate`.
    scale_a, scale_b : arrays, optional
        fp32 scales of fp8 operands, of the shapes of `fpemu.mma.scaled_gemm`: one scale of a tensor, a scale of each
        row of A and column of B, or one of each block of K. With a block-scaled instruction as `hardware`, its scales.
    block : int, optional
        Length in K of a block with a scale. Default: 128 if scale_a has ceil(K / 128) > 1 columns, else no blocks.
    multiply, fused : str, bool
        Order of the multiplications by the scales, as in `fpemu.mma.scaled_gemm`.
    bias : array (N,), optional
        Addend of each row of D, in place of C.
    activation : {"relu"}, optional
        Function of the sum, before its conversion to the format of D.
    out : str, optional
        Format of D; default: that of its dtype, at most the accumulator's.
    seed : int or None
        Seed of the sample of a product of more than 2^28 multiply-adds: some rows and some columns, the first and the
        last among them. None: all entries. Products of schemes and of OpenBLAS are never sampled.
    seconds : float
        Duration of the search for the cause of mismatches.
    **fields
        Further fields of `fpemu.conformance.Specification` (`alpha`, `beta`, `fmt`, `accumulate`, `epilogue`, `inputs`
        ...), and options of the scheme.

    Raises
    ------
    AssertionError
        Mismatches: their number and places, the first one with its bits, and the likeliest causes.
    InputError
        Operands, result and specification do not fit one another.

    Examples
    --------
    >>> import fpemu
    >>> A, B = fpemu.inputs.operands("normal", 8, 8, 96, seed=1, dtype="fp16")
    >>> D = fpemu.mma.gemm(A, B, None, fpemu.mma.spec("H200"), fpemu.mma.KOrder(split=48))
    >>> assert_bits_equal(D, A, B, hardware="H200", order={"split": 48})
    >>> try:
    ...     assert_bits_equal(D, A, B, hardware="H200")
    ... except AssertionError as error:
    ...     print(str(error).splitlines()[3][:39])
    likeliest cause: split in slices of 48,
    """
    __tracebackhide__ = True
    integer("seed", seed, 0, none=True)
    number("seconds", seconds, 0)
    s = _specification(hardware, order, scheme, out, activation, fields)
    scales = None if scale_a is None and scale_b is None else (scale_a, scale_b, block, multiply, fused)
    for x in _products(D, A, B, C, bias, s, scales, library, seed):
        for rows, columns in _lines(x, seed):
            if not x.verdict(rows, columns, causes=False).equal:
                verdict = x.verdict(rows, columns, causes=True, seconds=seconds)
                raise AssertionError(f"D does not have the specified bits\n{_located(verdict, x, rows, columns, seed)}")


@in_ieee
def assert_within_bound(
    D: Any,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    hardware: Any = None,
    order: KOrder | None = None,
    scheme: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    block: int | None = None,
    bias: Any = None,
    activation: str | None = None,
    out: str | None = None,
    seconds: float = 20.0,
    **fields: Any,
) -> None:
    """Assert that every entry of a product is as near to the exact one as each correct kernel of its arithmetic.

    Parameters
    ----------
    D, A, B, C : arrays
        Product and operands, as in `assert_bits_equal`.
    hardware : str or MmaSpec, optional
        GPU, architecture or instruction, as in `fpemu.mma.spec`.
    order : KOrder, optional
        Summation order over K, for a smaller bound. Default: every order whose instructions are at least half full.
    scheme : str or Scheme, optional
        Scheme of `fpemu.gemm`.
    scale_a, scale_b, block : arrays, int
        Scales of fp8 operands, as in `assert_bits_equal`.
    bias, activation, out : array, str, str
        Epilogue and format of D, as in `assert_bits_equal`.
    seconds : float
        Duration of the search for the cause of too large errors.
    **fields
        Further fields of `fpemu.conformance.Specification`, and options of the scheme.

    Raises
    ------
    AssertionError
        Entries with an error above their bound: their number, the one with the largest error relative to its bound,
        and the likeliest cause.
    InputError
        Operands, result and specification do not fit one another, or no bound is known.

    Notes
    -----
    The bound of entry (i, j) is proportional to the sum of |a_ik b_kj| over k: `fpemu.theory.chain` for a plain
    product, `fpemu.theory.entrywise` for a scheme. A tolerance relative to D would reject correct products with
    cancellation. The bound grows with the number of instructions in a chain; state `order` for fp8 on Hopper, whose
    sums have 13 bits, and for long K.

    Examples
    --------
    >>> import fpemu
    >>> A, B = fpemu.inputs.operands("normal", 8, 8, 96, seed=1, dtype="fp16")
    >>> D = (A.astype("f8") @ B.astype("f8")).astype("f4")
    >>> assert_within_bound(D, A, B, hardware="H200")
    >>> D[2, 3] += 1e-3
    >>> try:
    ...     assert_within_bound(D, A, B, hardware="H200")
    ... except AssertionError as error:
    ...     print(str(error)[:48])
    1 of 64 entries of D is farther from the exact p
    """
    __tracebackhide__ = True
    number("seconds", seconds, 0)
    s = _specification(hardware, order, scheme, out, activation, fields)
    if not isinstance(s.order, KOrder | None):
        raise InputError("a bound takes a KOrder as order=, or none: it then holds for every order")
    scales = None if scale_a is None and scale_b is None else (scale_a, scale_b, block, None, True)
    for x in _products(D, A, B, C, bias, s, scales, None, None):
        s, A, B = x.resolved()
        error, limit, exact = _errors(x, s, A, B)
        far = ~(error <= limit)
        if far.any():
            with np.errstate(all="ignore"):
                ratio = np.where(far, np.nan_to_num(error / limit, nan=np.inf, posinf=np.inf), 0.0)
            i, j = (int(n) for n in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
            count = int(far.sum())
            causes = x.verdict(*(np.arange(n) for n in far.shape), causes=True, seconds=seconds).causes
            raise AssertionError(
                f"{count} of {far.size} entries of D {'is' if count == 1 else 'are'} farther from the exact product "
                f"than {'any' if s.order is None else 'the'} summation order gives{x.place}\n"
                f"largest error relative to its bound: D[{i}, {j}] = {x.D[i, j]}, exact {exact[i, j]:.9g}, "
                f"error {error[i, j]:.3g}, bound {limit[i, j]:.3g}"
                + "".join(f"\nlikeliest cause: {cause.text}" for cause in causes[:1])
            )


class _Product(NamedTuple):
    """A product with its specification: arrays of NumPy, and the names of formats in `s`."""

    D: Array
    A: Array
    B: Array
    C: Array | None
    s: Specification
    operand: str | None  # format of A and B
    result: str | None  # format of D
    scales: Scales | None
    whole: bool  # whether it cannot be sampled
    place: str  # in a batch, or of a tile
    corner: tuple[int, int] = (0, 0)  # of a tile

    def resolved(self) -> tuple[Specification, Array, Array]:
        """The specification with an instruction or scheme in place of names, and the operands in its formats."""
        s, A, B = self.s._resolved(self.operand, self.result)._with_operands(self.A, self.B)
        _check_formats(self.D, self.C, s)
        return s, A, B

    def verdict(self, rows: Lines, columns: Lines, *, causes: bool, seconds: float = 20.0) -> Verdict:
        """The verdict on some rows and columns."""
        A, B, D = self.A[rows], self.B[:, columns], self.D[rows][:, columns]
        C = None if self.C is None else self.C[rows][:, columns]
        if self.scales is None:
            return verify(D, A, B, C, specification=self.s, causes=causes, seconds=seconds)
        s = self.resolved()[0]
        return verify_scaled(D, A, B, C, self.scales.at(rows, columns), s, causes=causes, seconds=seconds)


def _specification(
    hardware: Any, order: Any, scheme: Any, out: str | None, activation: str | None, fields: dict[str, Any]
) -> Specification:
    """The specification of the arguments of an assertion."""
    choice("activation", activation, ("relu",), none=True)
    given = {"hardware": hardware, "order": order, "scheme": scheme, "out": out, "relu": True if activation else None}
    fields = {**fields, **{name: value for name, value in given.items() if value is not None}}
    base = fields.pop("specification", None) or Specification()
    return base._changed(**fields)


def _products(
    D: Any,
    A: Any,
    B: Any,
    C: Any,
    bias: Any,
    s: Specification,
    scales: tuple[Any, ...] | None,
    library: str | None,
    seed: int | None,
) -> Iterator[_Product]:
    """The products of a batch, with their formats and the orders of a library in the specification."""
    if not any((s.hardware, s.scheme, library)):
        raise InputError("give hardware=, scheme= or library=: an assertion needs an arithmetic to compare with")
    if C is not None and bias is not None:
        raise InputError("give C or bias, not both: add them in the format of the kernel first")
    d, a, b = (as_numbers(x, name) for x, name in ((D, "D"), (A, "A"), (B, "B")))
    if min(x.values.ndim for x in (d, a, b)) < 2:
        raise InputError(f"D, A and B have the shapes {d.values.shape}, {a.values.shape}, {b.values.shape}: matrices")
    shape = product_shape(a.values, b.values)
    if d.values.shape != shape:
        raise InputError(f"D has shape {d.values.shape}: the product of A and B has {shape}")
    c = None if C is None else as_numbers(C, "C").values
    if bias is not None:
        c = as_numbers(bias, "bias").values
        if c.shape != shape[-1:]:
            raise InputError(f"bias has shape {c.shape}: it needs an entry for each of {shape[-1]} columns of D")
    if c is not None:
        c, s = np.broadcast_to(c, shape), (s if s.beta else replace(s, beta=1.0))
    s, operand = _formats(s, a, b)
    result = None if d.fmt == "fp64" else d.fmt
    if result and s.out is None and s.scheme is None and d.values.dtype == np.float32:
        s = replace(s, out=result)
    whole = s.scheme is not None or library == "openblas"
    lead, sizes = shape[:-2], (shape[-2], shape[-1], a.values.shape[-1])
    if scales and lead:
        raise InputError(f"scale_a and scale_b go with a product of two matrices: D has shape {shape}")
    A, B = (np.broadcast_to(x.values, (*lead, *x.values.shape[-2:])) for x in (a, b))
    for index in np.ndindex(*lead):
        place = f", product {list(index)} of a batch of shape {lead}" if lead else ""
        applied = _scales_of(scales, sizes, s, operand, result) if scales else None
        x = _Product(d.values[index], A[index], B[index], None if c is None else c[index], s, operand, result, applied,
                     whole, place)  # fmt: skip
        yield from [x] if library is None else _by_library(x, library, seed)


def _formats(s: Specification, a: Operand, b: Operand) -> tuple[Specification, str | None]:
    """The specification with the operands' formats, and the format of both."""
    if isinstance(s.hardware, MmaSpec) or s.scheme is not None or s.fmt is not None:
        return s, a.fmt
    if a.fmt != b.fmt and a.fmt and b.fmt and s.hardware is not None:
        return replace(s, hardware=mma.spec(s.hardware, (a.fmt, b.fmt), s.accumulate), accumulate=None), None
    fmt = a.fmt or {"f4": "fp32", "i1": "int8"}.get(a.values.dtype.str[1:])
    return replace(s, fmt=fmt), fmt


def _scales_of(
    given: tuple[Any, ...], sizes: tuple[int, int, int], s: Specification, operand: str | None, result: str | None
) -> Scales:
    """The scales of the arguments; missing ones are 1."""
    scale_a, scale_b, block, multiply, fused = given
    a, b = (
        np.float32(1) if x is None else as_numbers(x, n).values for x, n in ((scale_a, "scale_a"), (scale_b, "scale_b"))
    )
    spec = s._resolved(operand, result).spec
    if spec is None or s.scheme is not None:
        raise InputError("scale_a and scale_b go with a plain product: give hardware= without scheme=")
    M, N, K = sizes
    if spec.scale is not None:
        blocks = -(-K // (spec.scale_block or K))
        return Scales(np.broadcast_to(a, (M, blocks)), np.broadcast_to(b, (blocks, N)).T)
    if block is None and a.ndim == 2 and a.shape[1] == -(-K // 128) > 1:
        block = 128
    return Scales.of(a, b, sizes, block, multiply, fused)


def _by_library(x: _Product, library: str, seed: int | None) -> Iterator[_Product]:
    """The product in the order of a library; tile by tile where these have different orders."""
    choice("library", library, ("cublas", "openblas"))
    (M, K), N, s = x.A.shape, x.B.shape[1], x.s
    layout: Any = "TN" if emulation._column_major(x.B) else "NN"
    if library == "openblas":
        if s.hardware is None:
            raise InputError("library='openblas' needs hardware=, the name of its kernel, such as 'HASWELL'")
        wide = "fp64" if x.A.dtype == np.float64 else "fp32"
        named: Any = ("openblas", s.hardware, None, layout, "")
        yield x._replace(s=replace(s, library=named, hardware=simt.SPECS[wide], fmt=None))
        return
    out = {np.float16: "fp16"}.get(x.D.dtype.type) or (s.out if s.out not in (None, "fp32", "fp64") else None)
    kind: Any = emulation._type(x.A, x.B, s.fmt or x.operand, out)
    row = products.lookup("cublas", kind, (M, N, K), layout=layout, hardware=s.hardware or "H200")  # type: ignore[arg-type]
    base = replace(s, hardware=row.spec, fmt=None, inputs=(row.rounded, "RNE") if row.rounded else s.inputs)
    if not isinstance(row.order, tables.Tiles):
        yield x._replace(s=replace(base, order=row.order, stored=row.stored))
        return
    tiles, across = row.order, -(-N // row.order.columns)
    few = seed is not None and M * N * K > _WORK  # of a large product, a tile of each order
    rng = np.random.default_rng(seed)
    chosen = [int(rng.choice(np.flatnonzero(np.equal(tiles.of, n)))) for n in range(len(tiles.orders))]
    for of in chosen if few else range(len(tiles.of)):
        order, stored = tiles.orders[tiles.of[of]], tiles.stored[tiles.of[of]]
        i, j = of // across * tiles.rows, of % across * tiles.columns
        r, c = slice(i, i + tiles.rows), slice(j, j + tiles.columns)
        C = None if x.C is None else x.C[r, c]
        part = x._replace(D=x.D[r, c], A=x.A[r], B=x.B[:, c], C=C, s=replace(base, order=order, stored=stored))
        yield part._replace(corner=(i, j), place=f"{x.place}, a tile of {tiles.rows} × {tiles.columns} at [{i}, {j}]")


def _lines(x: _Product, seed: int | None) -> Iterator[tuple[Lines, Lines]]:
    """The compared rows and columns: all, or some rows with all columns and some columns with all rows."""
    (M, K), N = x.A.shape, x.B.shape[1]
    everything = np.arange(M), np.arange(N)
    if seed is None or x.whole or M * N * K <= _WORK:
        yield everything
        return
    rng = np.random.default_rng(seed)

    def some(length: int, count: int) -> Lines:
        inner = rng.permutation(np.arange(1, max(length - 1, 1)))[: max(0, count - 2)]
        return np.unique([0, *inner.tolist(), length - 1]).astype(np.int64)

    rows, columns = (max(2, _WORK // 2 // (K * n)) for n in (N, M))
    yield some(M, rows), some(N, max(_LEAST, _WORK // 2 // (rows * K)))
    yield some(M, max(_LEAST, _WORK // 2 // (columns * K))), some(N, columns)


def _located(verdict: Verdict, x: _Product, rows: Lines, columns: Lines, seed: int | None) -> Verdict:
    """The verdict on a sample with the places of the whole D."""
    assert verdict.difference is not None
    i, j = verdict.difference.first
    first = int(rows[i]) + x.corner[0], int(columns[j]) + x.corner[1]
    difference, place = replace(verdict.difference, first=first), x.place
    if len(rows) * len(columns) < x.D.size:
        M, N = x.D.shape
        patterns = tuple(p for p in difference.patterns if not p.startswith("only in"))
        difference = replace(difference, patterns=patterns or ("spread over the sample",))
        place += (
            f" (rows and columns of {M} × {N}, sampled with seed {seed}; rows and columns of a cause count in these)"
        )
    return replace(verdict, difference=difference, place=place)


def _errors(x: _Product, s: Specification, A: Array, B: Array) -> tuple[Array, Array, Array]:
    """The error of each entry, its bound in any summation order, and the exact product in float64."""
    a, b = s.multiplied(A, B)
    D = x.D.astype(np.float64)
    if x.scales is not None:
        K, z = a.shape[1], x.scales
        each = z.block or (s.spec.scale_block if s.spec and s.spec.scale is not None else K) or K
        a = a * np.repeat(z.a.astype(np.float64), each, axis=1)[:, :K]
        b = b * np.repeat(z.b.astype(np.float64), each, axis=1)[:, :K].T
    with np.errstate(all="ignore"):
        exact = s.alpha * (a @ b)
        added = 0.0 if x.C is None else s.beta * x.C.astype(np.float64)
        size = np.abs(exact) + np.abs(added)
        exact = np.maximum(exact + added, 0.0) if s.relu else exact + added
        half = 1 if s.spec is None else -(-s.spec.block // 2)
        order = cast(KOrder | None, s.order)
        limit = limits(s, A, B, np.abs(a) @ np.abs(b), size + np.abs(D), order, half)
        error = np.abs(D - exact)
        largest = 0.0 if s.is_integer else formats.get(s.result).max
        # overflow to Inf is correct where the bound reaches beyond the format; other values that are not finite agree
        beyond = ~np.isfinite(D) & (np.abs(exact) + limit > largest)
        error = np.where((beyond & ~np.isnan(D)) | (~np.isfinite(exact) & ~np.isfinite(D)), 0.0, error)
    return np.where(np.isnan(error), np.inf, error), np.where(np.isnan(limit), 0.0, limit), exact
