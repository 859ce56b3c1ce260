"""Structural defects of a product, by linear algebra on the result: terms, rows, tiles and factors in wrong places.

The residual of a result is compared with the rounding error of its specification. A hypothesis about indices or factors
is accepted if the product that it predicts, in float64, leaves a residual of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.conformance.compare import region
from fpemu.conformance.specification import Specification
from fpemu.probing.callables import bits

Array = NDArray[Any]
Index = NDArray[np.int64]
_TILES = (256, 128, 64, 32, 16, 8)
_PERIODS = (128, 64, 32, 16, 8, 4, 2)
_UNKNOWNS = 1200  # weights along K that are solved for at once: a dense system of this size takes 0.1 s
_TYPICAL, _LARGEST = 3.0, 50.0  # root mean square and maximum of residuals that count as rounding, in typical errors


@dataclass(frozen=True)
class Defect:
    """A structural defect: the operands that were multiplied in effect, and the place of each entry of D.

    `source` has, for each entry of D, the flat index of the entry of the product that it holds; -1: the entry is
    explained by `text` alone. `fields` change the specification.
    """

    text: str
    A: Array
    B: Array
    C: Array | None
    source: Index | None = None
    fields: dict[str, Any] = field(default_factory=dict)


class Residual:
    """A result beside the product of its operands in float64."""

    line, name = "row", "A"  # of the left operand

    def __init__(self, s: Specification, A: Array, B: Array, C: Array | None, D: Array, expected: Array):
        self.s, self.A, self.B, self.C, self.D, self.expected = s, A, B, C, D, expected
        self.a, self.b = s.multiplied(A, B)
        self.c = None if C is None else s.beta * C.astype(np.float64)
        self.d, self.T = D.astype(np.float64), s.alpha * (self.a @ self.b)
        self.T = self.T if self.c is None else self.T + self.c
        self.size = self.sizes(self.a, self.b)
        error = np.abs(expected.astype(np.float64) - self.T) / self.size
        known = error[np.isfinite(error)]
        # products without rounding errors are compared with a small part of the last place of D
        self.unit = max(float(np.sqrt(np.mean(known**2))) if known.size else 0.0, 2.0**-30)
        z = np.abs(self.d - self.T) / (self.unit * self.size)
        same = (bits(D) == bits(expected)) | ~np.isfinite(expected.astype(np.float64))
        self.z = np.where(np.isfinite(z), z, np.where(same, 0.0, np.inf))
        self.wrong = self.z > _LARGEST
        self.rows, self.columns = _spread(self.wrong, 1), _spread(self.wrong, 0)

    def sizes(self, a: Array, b: Array) -> Array:
        """The typical size of a sum of the terms of each entry."""
        squares = s if (s := (a * a) @ (b * b)).all() else np.where(s == 0, 2.0**-300, s)
        return np.abs(self.s.alpha) * np.sqrt(squares) + (0.0 if self.c is None else np.abs(self.c).mean())

    @property
    def typical(self) -> float:
        """Root mean square of the residuals, in typical errors of the specification."""
        return float(np.sqrt(np.mean(np.minimum(self.z, 1e12) ** 2)))

    @property
    def relative(self) -> float:
        """Norm of the difference from the expected product, relative to it."""
        difference = self.d - self.expected.astype(np.float64)
        good = np.isfinite(difference)
        if (~good & np.isfinite(self.expected.astype(np.float64))).any():
            return np.inf
        norm = float(np.linalg.norm(self.expected.astype(np.float64)[good]))
        return float(np.linalg.norm(difference[good])) / norm if norm else float(np.linalg.norm(difference[good]) > 0)

    def agrees(self, d: Array, T: Array, size: Array, unit: float | None = None) -> bool:
        """Whether a predicted product leaves residuals of the size of rounding errors."""
        z = np.abs(d - T) / ((unit or self.unit) * size)
        return bool(z.size) and bool(np.sqrt(np.mean(z * z)) < _TYPICAL) and bool(z.max() < _LARGEST)

    def product_of(self, a: Array, b: Array, rows: Any = slice(None), columns: Any = slice(None)) -> bool:
        """Whether D, or some rows and columns of it, is the product of other operands."""
        T = self.s.alpha * (a @ b)
        T = T if self.c is None else T + self.c[rows][:, columns]
        return self.agrees(self.d[rows][:, columns], T, self.sizes(a, b))

    def transposed(self) -> Residual:
        """The same for the transposed product, D' = B' A'."""
        other = copy(self)
        other.A, other.B, other.a, other.b = self.B.T, self.A.T, self.b.T, self.a.T
        for name in ("C", "D", "expected", "c", "d", "T", "size", "z", "wrong"):
            value = getattr(self, name)
            setattr(other, name, None if value is None else value.T)
        other.rows, other.columns, other.line, other.name = self.columns, self.rows, "column", "B"
        return other


def _spread(wrong: NDArray[np.bool_], axis: int) -> Index:
    """A few of the rows (axis 1) or columns with wrong entries, the first and the last among them."""
    lines = np.flatnonzero(wrong.any(axis=axis))
    return lines[np.unique(np.linspace(0, len(lines) - 1, min(5, len(lines))).astype(np.int64))]


def defects(x: Residual) -> Iterator[Defect]:
    """The structural defects that explain a result, the simplest first."""
    if not x.wrong.any() or x.s.factors != "AB":
        return
    with np.errstate(all="ignore"):
        for search in (_relu, _scalars, _unwritten, _tiles, _operands, _weights, _permuted, _scaled, _bias):
            with suppress(np.linalg.LinAlgError):
                yield from _both(x, search) if search in (_scaled, _bias) else search(x)


def _both(x: Residual, search: Callable[..., Iterator[Defect]], *arguments: Any) -> Iterator[Defect]:
    """What a search finds in rows of D or in A, and by the transposed product in columns of D or in B."""
    yield from search(x, *arguments)
    for found in search(x.transposed(), *arguments):
        A, B = np.ascontiguousarray(found.B.T), np.ascontiguousarray(found.A.T)
        source = found.source
        if source is not None:
            N, M = source.shape
            source = np.where(source < 0, -1, source % M * N + source // M).T
        yield replace(found, A=A, B=B, C=None if found.C is None else found.C.T, source=source)


# --- factors, C, and whole operands


def _scalars(x: Residual) -> Iterator[Defect]:
    """Other values of alpha and beta, and other entries of C: D = u T + v C by least squares."""
    s, T, alpha = x.s, x.T if x.c is None else x.T - x.c, x.s.alpha
    addends: list[tuple[str, Array | None]] = [("", x.C)]
    if x.C is not None:
        M, N = x.C.shape
        addends += [("the transpose of C is added", x.C.T)] if M == N else []
        addends += [("the first row of C is added to every row", np.broadcast_to(x.C[:1], (M, N)))]
        addends += [("the first column of C is added to every column", np.broadcast_to(x.C[:, :1], (M, N)))]
    for words, C in addends:
        columns = [T.ravel()] + ([] if C is None else [C.astype(np.float64).ravel()])
        good = np.isfinite(x.d).ravel()
        factors, *_ = np.linalg.lstsq(np.stack(columns, 1)[good], x.d.ravel()[good], rcond=None)
        u, v = float(factors[0]), float(factors[1]) if len(factors) > 1 else 0.0
        if not x.agrees(x.d, sum(f * y for f, y in zip(factors, columns, strict=True)).reshape(T.shape), x.size):
            continue
        # if the product is left out, what remains in its factor is the error of the least squares
        u, v = (0.0 if abs(f) < 1e-4 else f for f in (u, v))
        alphas = {alpha: "", 1.0: " (alpha is left out)", alpha**2: " (alpha is applied twice)"}
        betas = _likely(v, (s.beta, 1.0, alpha * s.beta, 2 * s.beta)) if C is not None else [0.0]
        for a, b in product(_likely(u * alpha, alphas), betas):
            parts, epilogues = [words] if words else [], [s.epilogue]
            if a != alpha:
                parts.append(f"alpha is {a:g}, not {alpha:g}{alphas.get(a, '')}")
                epilogues += ["alpha-twice"] * (a == alpha**2)
            if b != s.beta:
                known = ((0.0, "C is left out"), (1.0, "C is added without beta"), (2 * s.beta, "C is added twice"))
                use = " or ".join(text for value, text in known if value == b) or "C enters with another factor"
                parts.append(f"{use}: beta is {b:g}, not {s.beta:g}")
                epilogues += ["C-twice"] * (b == 2 * s.beta)
            for epilogue in epilogues if parts and not (s.is_integer and (a != 1 or b not in (0, 1))) else ():
                twice = epilogue != s.epilogue  # a factor or C applied in two steps, each rounded
                fields = {"epilogue": epilogue} if twice else {"alpha": a, "beta": b}
                yield Defect("; ".join(parts), x.A, x.B, C if b else None, fields=fields)


def _likely(value: float, named: Iterable[float]) -> list[float]:
    """Values of few digits or bits near an estimate, the named ones first."""
    digits = [float(f"{value:.{n}g}") for n in (1, 2, 3, 4, 6)]
    power = float(np.copysign(2.0 ** np.round(np.log2(abs(value))), value)) if value else 0.0
    near = [v for v in (*named, power, *digits) if abs(v - value) <= 2e-3 * abs(value) + 1e-9]
    return list(dict.fromkeys(near))[:3]


def _operands(x: Residual) -> Iterator[Defect]:
    """Exchanged or transposed operands, operands read with another stride or start, and D written with another one."""
    (M, K), (_, N) = x.A.shape, x.B.shape
    a, b = x.a, x.b
    factors = {
        "BA": ("B A, the operands in the other order", b, a),
        "A'B": ("the transpose of A times B", a.T, b),
        "AB'": ("A times the transpose of B", a, b.T),
        "(AB)'": ("the transpose of A B", b.T, a.T),
        "A'B'": ("the transpose of A times the transpose of B", a.T, b.T),
    }
    for name, (text, p, q) in factors.items():
        fits = p.shape[1] == len(q) and (len(p), q.shape[1]) == (M, N)
        if fits and x.product_of(p[x.rows], q[:, x.columns], x.rows, x.columns):
            yield Defect(f"the result is {text}", x.A, x.B, x.C, fields={"factors": name})
    for name, X, (height, width), lines in (("A", a, (M, K), x.rows), ("B", b, (K, N), x.columns)):
        for way, start, stride in _strides(height, width, (M, N, K)):
            rows = lines[:, None] if name == "A" else np.arange(height)[:, None]
            index = _index(way, start, stride, rows, np.arange(width) if name == "A" else lines)
            for outside in ("wrap", "zero", "clip") if index.min() < 0 or index.max() >= X.size else ("wrap",):
                part = _read(X, index, outside)
                if x.product_of(*((part, b[:, x.columns]) if name == "A" else (a[x.rows], part)), x.rows, x.columns):
                    whole = _index(way, start, stride, np.arange(height)[:, None], np.arange(width))
                    new = _read(x.A if name == "A" else x.B, whole, outside)
                    text = f"{name} is read by {way} with leading dimension {stride}"
                    text += f" from position {start}" * (start != 0)
                    yield Defect(text, new if name == "A" else x.A, new if name == "B" else x.B, x.C)
    places = np.flatnonzero(x.wrong)
    places = places[np.unique(np.linspace(0, len(places) - 1, min(60, len(places))).astype(np.int64))]
    for way, start, stride in _strides(M, N, (M, N, K)) if min(M, N) > 1 else ():
        outer, inner = np.divmod(places - start, stride)
        i, j = (outer, inner) if way == "rows" else (inner, outer)
        inside = (i >= 0) & (i < M) & (j >= 0) & (j < N)
        at = i[inside], j[inside]
        if len(at[0]) > 8 and x.agrees(x.d.ravel()[places[inside]], x.T[at], x.size[at]):
            index = _index(way, start, stride, np.arange(M)[:, None], np.arange(N))
            inside = (index >= 0) & (index < index.size)
            source = np.full(index.size, -1)
            source[index[inside]] = np.flatnonzero(inside)
            text = f"D is written by {way} with leading dimension {stride}" + f" from position {start}" * (start != 0)
            yield Defect(text, x.A, x.B, x.C, source.reshape(M, N))


def _strides(height: int, width: int, sizes: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    """Likely ways to read a matrix in wrong places: by rows or columns, the first position, and the stride."""
    for way, length in (("rows", width), ("columns", height)):
        near = {*range(length - 16, length + 17), *sizes, length // 2, 2 * length, length + 32, length + 64}
        near |= {rounded * n for n in (8, 16, 32, 64, 128, 256) for rounded in (length // n, -(-length // n))}
        for stride in sorted(near):
            if stride > 0 and (way, stride) != ("rows", width):
                yield way, 0, stride
    for start in (*range(-16, 17), width, -width, 32, 64, -32, -64):
        if start:
            yield "rows", start, width


def _index(way: str, start: int, stride: int, rows: Index, columns: Index) -> Index:
    return start + (rows * stride + columns if way == "rows" else rows + columns * stride)


def _read(X: Array, index: Index, outside: str) -> Array:
    """Entries of a matrix in memory; outside of it they repeat, are zero, or are the last."""
    if outside == "zero":
        return np.where((index < 0) | (index >= X.size), X.dtype.type(0), X.ravel()[index % X.size])
    return X.ravel()[index % X.size if outside == "wrap" else np.clip(index, 0, X.size - 1)]


# --- places in D


def _unwritten(x: Residual) -> Iterator[Defect]:
    """Entries that hold one value, NaN, or C in place of the product."""
    values, counts = np.unique(bits(x.D)[x.wrong], return_counts=True)
    value = values[np.argmax(counts)].astype(values.dtype)
    shown = np.array([value]).view(x.D.dtype)[0]
    masks = [(f"hold {shown:g}", bits(x.D) == value)] if not np.isnan(shown) else []
    if shown == 0:  # zeros of either sign
        masks = [("hold 0", x.d == 0)]
    masks += [("hold NaN", np.isnan(x.D)), ("are infinite", np.isinf(x.D))] if x.D.dtype.kind == "f" else []
    masks += [] if x.C is None else [("hold C", x.d == x.C), ("hold beta C", x.d == x.c)]
    for words, mask in masks:
        mask = mask & (bits(x.D) != bits(x.expected))
        if mask.sum() < 4 or mask.all() or x.wrong[mask].mean() <= 0.9:
            continue
        where = "; ".join(region(mask))
        scattered = not where and mask.sum() > 64  # zeros of a function such as ReLU
        rest = x.agrees(x.d[~mask], x.T[~mask], x.size[~mask])
        if (rest or mask.sum() >= 0.25 * x.wrong.sum()) and not scattered:
            where = where.removeprefix("only in ") or f"{mask.sum()} entries"
            source = np.where(mask, -1, np.arange(mask.size).reshape(mask.shape))
            text = f"{where}: the entries {words}: not written, or written by other code"
            yield Defect(text, x.A, x.B, x.C, source)


def _moved(origin: Index, name: str) -> str:
    """A map of indices in words: its runs of equal displacement."""
    at = np.flatnonzero(origin != np.arange(len(origin)))
    cuts = np.flatnonzero((np.diff(at) != 1) | (np.diff(origin[at]) != 1)) + 1
    parts = []
    for run in np.split(at, cuts)[:4]:
        one = len(run) == 1
        first, last = int(origin[run[0]]), int(origin[run[-1]])
        ends = f"{name} {run[0]} holds {first}" if one else f"{name}s {run[0]} to {run[-1]} hold {first} to {last}"
        parts.append(ends)
    return ", ".join(parts) + f" ... ({len(at)} in all)" * (len(cuts) > 3)


def _tiles(x: Residual) -> Iterator[Defect]:
    """Rows, columns and tiles of D that hold the values of others, and tiles that hold their own transposed."""
    M, N = x.D.shape
    index = np.arange(M * N).reshape(M, N)
    at_rows, at_columns = (np.flatnonzero(x.wrong.any(axis=axis)) for axis in (1, 0))
    box = (np.ptp(at_rows) + 1, np.ptp(at_columns) + 1, at_rows[0], at_columns[0])
    grids: list[tuple[Any, ...]] = [(1, N, 0, 0), (M, 1, 0, 0), *([box] if box[0] * box[1] < 0.9 * M * N else [])]
    grids += [(h, w, 0, 0) for h, w in product(_TILES, _TILES) if h <= M and w <= N]
    for h, w, top, left in (grid for grid in grids if grid[0] * grid[1] < M * N):
        line = "row" if w == N and h == 1 else "column" if h == M and w == 1 else ""
        places = [
            (r, c)
            for r in range(top, M if not top else top + h, h)
            for c in range(left, N if not left else left + w, w)
            if x.wrong[r : r + h, c : c + w].any()
        ]
        full = all(x.wrong[r : r + h, c : c + w].mean() > (0.5 if line else 0.6) for r, c in places)
        if not full or (len(places) > 64 and not line):
            continue
        source, moves = index.copy(), []
        for r, c in places:
            tile = index[r : r + h, c : c + w]
            origin = _shift(x, r, c, *tile.shape)
            if origin is None and h == w == tile.shape[0] == tile.shape[1]:
                origin = tile.T if x.agrees(x.d.ravel()[tile], x.T.ravel()[tile.T], x.size.ravel()[tile.T]) else None
            if origin is None:
                break
            source[r : r + h, c : c + w] = origin
            row, column = divmod(int(origin[0, 0]), N)
            held = "is transposed" if (row, column) == (r, c) else f"holds the tile at [{row}, {column}]"
            moves.append(f"the tile at [{r}, {c}] {held}")
        else:
            more = f" ... ({len(moves)} tiles)" * (len(moves) > 3)
            text = f"tiles of {h} × {w} of D are in wrong places: {', '.join(moves[:3])}{more}"
            if line:
                origins = source[:, 0] // N if line == "row" else source[0]
                text = f"{line}s of D are in wrong places: {_moved(origins, line)}"
            yield Defect(text, x.A, x.B, x.C, source)
            return


def _shift(x: Residual, r: int, c: int, h: int, w: int) -> Index | None:
    """The entries of the product that a tile of D holds, if another tile of any position has its values."""
    M, N = x.D.shape
    rng = np.random.default_rng(0)
    apart = np.zeros((M - h + 1, N - w + 1))
    for i, j in zip(rng.integers(0, h, 12), rng.integers(0, w, 12), strict=True):
        apart += np.abs(x.T[i : i + M - h + 1, j : j + N - w + 1] - x.d[r + i, c + j])
    row, column = divmod(int(np.argmin(apart)), apart.shape[1])
    at = slice(row, row + h), slice(column, column + w)
    if not x.agrees(x.d[r : r + h, c : c + w], x.T[at], x.size[at]):
        return None
    return np.arange(M * N).reshape(M, N)[at]


# --- terms of the sums over k


def _weights(x: Residual) -> Iterator[Defect]:
    """Weights of the terms along k other than 1: by least squares, first of groups of k, then of every k in them."""
    K = x.a.shape[1]
    v = _solve(x, np.arange(K), _groups(K, x.D.shape))
    suspects = np.flatnonzero(np.abs(v) > 0.05)
    if v.size and 0 < len(suspects) < K and len(np.unique(v)) < K:  # groups: their members one by one
        group = int(np.ceil(K / len(np.unique(_groups(K, x.D.shape)))))
        near = np.unique(np.clip(suspects[:, None] + np.arange(-group, group + 1), 0, K - 1))
        if len(near) <= min(_UNKNOWNS, x.D.size // 3):
            v = np.zeros(K)
            v[near] = _solve(x, near, np.arange(len(near)))
    w = 1 + v
    nice = np.array([0.0, 1.0, 2.0, -1.0, 3.0, 4.0, 0.5, 0.25, 8.0, 0.125, 16.0, 0.0625, -2.0])
    nearest = nice[np.argmin(np.abs(w[:, None] - nice), axis=1)]
    snapped = np.where(np.abs(w - nearest) < 0.02 + 0.15 * np.abs(nearest), nearest, w)
    changed = np.flatnonzero(snapped != 1)
    if not changed.size:
        return
    if x.product_of(x.a * snapped, x.b):
        yield from _weighted(x, snapped)
        return
    # other terms in place of some: their weights are noisy, so that all k of their blocks are solved for
    suspects = np.flatnonzero(np.abs(v) > max(0.1, 6 * float(np.median(np.abs(v)))))
    tried = []
    for block in (1, 8, 16, 32, 64):
        ks = np.unique((suspects[:, None] // block * block + np.arange(block)).ravel())
        if ks[ks < K].tolist() not in tried:
            tried.append(ks[ks < K].tolist())
            yield from _both(x, _other_terms, ks[ks < K])


def _groups(K: int, shape: tuple[int, ...]) -> Index:
    """The group of each k: as many groups as the entries of D determine."""
    most = max(1, min(_UNKNOWNS, shape[0] * shape[1] // 3))
    length = 1
    while -(-K // length) > most:
        length *= 2
    return np.arange(K) // length


def _solve(x: Residual, ks: Index, of: Index) -> Array:
    """The v for which sum over k of v_k a_k b_k is nearest to the residual, for v constant in the groups `of` k."""
    count = int(of[-1]) + 1
    M, N = x.D.shape
    # about 16 equations for each unknown: further rows and columns add little
    lines = int(np.sqrt(16 * count)) + 8
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, lines)).astype(np.int64)) for n in (M, N))
    a, b, r = x.s.alpha * x.a[rows][:, ks], x.b[ks][:, columns], (x.d - x.T)[rows][:, columns]
    good = np.isfinite(r)
    r = np.where(good, r, 0.0)
    if count == len(ks) and good.all():
        gram, right = (a.T @ a) * (b @ b.T), ((a.T @ r) * b.T[: r.shape[1]].T).sum(1)
    else:
        terms = np.stack([(a[:, of == g] @ b[of == g])[good] for g in range(count)])
        gram, right = terms @ terms.T, terms @ r[good]
    gram = gram + np.diag(np.full(count, 1e-9 * np.trace(gram) / count))
    return np.asarray(np.linalg.solve(gram, right)[of])


def _weighted(x: Residual, w: Array) -> Iterator[Defect]:
    """Terms left out, counted twice, read from another block, or multiplied by a factor."""
    K = len(w)
    zeros, twice = np.flatnonzero(w == 0), np.flatnonzero(w == 2)
    others = np.flatnonzero((w != 0) & (w != 1) & (w != 2))
    words = _ks(zeros)
    if zeros.size and not twice.size and not others.size:
        text = f"k = {words} {'are' if len(zeros) > 1 else 'is'} left out (weight 0)"
        if K - zeros[0] == len(zeros):
            text = f"the last {len(zeros)} of k are left out" if len(zeros) > 1 else "the last k is left out"
            yield Defect(text, x.A, x.B, x.C, fields={"length": int(zeros[0])})
        keep = w != 0
        yield Defect(text, np.where(keep, x.A, x.A.dtype.type(0)), x.B, x.C)
        yield Defect(text, x.A[:, keep], x.B[keep], x.C)
    elif twice.size and not others.size and len(zeros) in (0, len(twice)):
        if zeros.size:
            ks = np.arange(K)
            ks[zeros] = twice
            text = f"k = {_ks(twice)} are read in place of k = {words}, which are left out"
            yield Defect(text, x.A[:, ks], x.B[ks], x.C)
        text = f"k = {_ks(twice)} are counted twice"
        order = after = np.arange(K)
        for run in reversed(np.split(twice, np.flatnonzero(np.diff(twice) != 1) + 1)):
            after = np.insert(after, run[-1] + 1, run)
        for ks in (after, np.concatenate([order, twice]), np.concatenate([twice, order])):
            ks = ks[w[ks] != 0]
            yield Defect(text, x.A[:, ks], x.B[ks], x.C)
        yield Defect(text, (x.A * w).astype(x.A.dtype), x.B, x.C)
    else:
        runs = np.split(np.arange(K), np.flatnonzero(np.diff(w)) + 1)
        shown = [f"{w[run[0]]:.4g} for k = {_ks(run)}" for run in runs if w[run[0]] != 1]
        more = f" ... ({len(shown)} ranges)" * (len(shown) > 4)
        text = f"terms have other weights than 1, as by scales of other blocks: {', '.join(shown[:4])}{more}"
        yield Defect(text, (x.A * w).astype(x.A.dtype), x.B, x.C)
        yield Defect(text, x.A, (x.B * w[:, None]).astype(x.B.dtype), x.C)


def _ks(ks: Index) -> str:
    """Positions as ranges."""
    runs = np.split(ks, np.flatnonzero(np.diff(ks) != 1) + 1)
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs if len(run)]
    return ", ".join(texts[:4]) + f" ... ({len(ks)} in all)" * (len(texts) > 4)


def _other_terms(x: Residual, zeros: Index) -> Iterator[Defect]:
    """Columns of A that are multiplied by the wrong rows of B, where the weights vanish."""
    K, N = x.a.shape[1], x.D.shape[1]
    if not 0 < len(zeros) < 0.9 * N:
        return
    keep = np.setdiff1d(np.arange(K), zeros)
    rest = (x.d if x.c is None else x.d - x.c) / x.s.alpha - x.a[:, keep] @ x.b[keep]
    Z = np.linalg.lstsq(x.b[zeros].T, rest.T, rcond=None)[0].T  # rest = Z b[zeros]
    apart = (Z**2).sum(0)[:, None] + (x.a**2).sum(0) - 2 * Z.T @ x.a
    ks = np.arange(K)
    ks[zeros] = np.argmin(apart, axis=1)
    if x.product_of(x.a[:, ks], x.b):
        yield from _paired(x, ks)


def _paired(x: Residual, ks: Index) -> Iterator[Defect]:
    """k of A in other places than in B."""
    moved = np.flatnonzero(ks != np.arange(len(ks)))
    within = "permuted" if np.array_equal(np.sort(ks), np.arange(len(ks))) else "read from other places"
    text = f"k of {x.name} is {within} against the other operand: {_moved(ks, 'k').replace('hold', 'read')}"
    period = next((p for p in reversed(_PERIODS) if (ks // p == np.arange(len(ks)) // p).all()), None)
    text += f"; within tiles of {period} of k" * (period is not None and moved.size > 0)
    yield Defect(text, x.A[:, ks], x.B, x.C)
    if within == "permuted":
        yield Defect(text, x.A, x.B[np.argsort(ks)], x.C)


def _permuted(x: Residual) -> Iterator[Defect]:
    """k of A permuted against k of B within every tile: likely permutations, and the best match of a_k and b_l."""
    K = x.a.shape[1]
    k = np.arange(K)
    d = (x.d if x.c is None else x.d - x.c) / x.s.alpha
    for ks in _permutations(K):
        if x.product_of(x.a[x.rows][:, ks], x.b[:, x.columns], x.rows, x.columns) and x.product_of(x.a[:, ks], x.b):
            yield from _paired(x, ks)
            return
    for period in _PERIODS:
        if K % period or period == K:
            continue
        a, b = x.a.reshape(len(x.a), -1, period), x.b.reshape(-1, period, x.b.shape[1])
        left = np.einsum("mtp,mn->tpn", a, d, optimize=True)
        match = np.einsum("tpn,tqn->tpq", left, b, optimize=True)
        norms = np.sqrt((a**2).sum(0)[:, :, None] * (b**2).sum(2)[:, None, :])
        match = match / np.where(norms == 0, 1, norms)
        for of in (np.broadcast_to(match.mean(0), match.shape), match):
            ks = (np.argmax(of, axis=1) + np.arange(0, K, period)[:, None]).ravel()
            if (ks != k).any() and x.product_of(x.a[:, ks], x.b):
                yield from _paired(x, ks)
                return


def _permutations(K: int) -> Iterator[Index]:
    """Reversed, exchanged, rotated and interleaved k: of all K, and of every tile of a likely length."""
    for period in (2, 4, 8, 16, 32, 64, 128, K):
        p = np.arange(period)
        places = [p[::-1], *(np.roll(p, n) for n in (1, -1, period // 2))]
        places += [p.reshape(n, -1).T.ravel() for n in (2, 4, 8, period // 2) if n and period % n == 0]
        for place in places if K % period == 0 else ():
            yield (np.arange(0, K, period)[:, None] + place).ravel()


def _scaled(x: Residual) -> Iterator[Defect]:
    """Factors of whole rows of D, and factors of blocks of k that differ by row."""
    K, N = x.a.shape[1], x.D.shape[1]
    if x.c is not None or min(x.D.shape) < 2:
        return
    for length in (K, 128, 64, 32, 16):
        if K % length or K // length > max(1, N // 2):
            continue
        for rows in (x.rows, np.arange(len(x.d))):
            w = _factors_of_blocks(x.a[rows], x.b, x.d[rows] / x.s.alpha, length)
            full = np.repeat(w, length, axis=1)
            same_in_all_rows = length < K and (w == w[0]).all()  # `_weights` has these
            if same_in_all_rows or not x.product_of(x.a[rows] * full, x.b, rows):
                break
        else:
            text = f"multiplied by factors from {w.min():.4g} to {w.max():.4g}"
            if length == K:
                text = f"{x.line}s of D are {text}, as by wrong scales"
            else:
                text = f"blocks of {length} of k are {text} that differ by {x.line}, as by scales of other blocks"
            yield Defect(text, (x.A * full).astype(x.A.dtype), x.B, x.C)
            return


def _factors_of_blocks(a: Array, b: Array, d: Array, length: int) -> Array:
    """For each row of a, the factor of each block of k, by least squares over the row of d."""
    terms = np.einsum("mtk,tkn->mtn", a.reshape(len(a), -1, length), b.reshape(-1, length, b.shape[1]), optimize=True)
    gram = np.einsum("msn,mtn->mst", terms, terms, optimize=True)
    w = np.linalg.solve(gram, np.einsum("mtn,mn->mt", terms, d)[:, :, None])[:, :, 0]
    power = 2.0 ** np.round(np.log2(np.abs(w))) * np.sign(w)
    return np.where(np.abs(w / power - 1) < 2e-2, power, np.where(np.abs(w) < 1e-4, 0.0, w))


def _relu(x: Residual) -> Iterator[Defect]:
    if not x.s.relu and (x.d >= 0).all() and x.agrees(x.d, np.maximum(x.T, 0), x.size):
        yield Defect("negative results are replaced by zero (ReLU)", x.A, x.B, x.C, fields={"relu": True})


def _bias(x: Residual) -> Iterator[Defect]:
    """A number for each row that is added to the product."""
    bias = np.median(x.d - x.T, axis=1)[:, None]
    if x.C is not None or min(x.D.shape) < 4 or x.D.dtype.kind != "f":
        return
    if x.agrees(x.d, x.T + bias, x.size + np.abs(bias)):
        # D - expected is the bias where D is small, because that addition is exact; eight such entries of each row are
        # candidates, and the candidate that reproduces the most entries of the row is the bias
        R = (x.d - x.expected.astype(np.float64)).astype(x.D.dtype)
        values = np.take_along_axis(R, np.argsort(np.abs(x.d), axis=1)[:, :8], 1)
        half = np.spacing(np.abs(x.D)).astype(np.float64) / 2
        low, high = (R - half).max(1), (R + half).min(1)  # the bias is between, in every entry
        inside = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 9)
        values = np.concatenate([values, inside.astype(R.dtype)], axis=1)
        fits = [(x.expected + v[:, None] == x.D).sum(1) for v in values.T]
        best = np.take_along_axis(values, np.argmax(fits, axis=0)[:, None], 1)
        text = f"a bias for each {x.line} is added, from {best.min():.4g} to {best.max():.4g}"
        yield Defect(text, x.A, x.B, np.broadcast_to(best, x.D.shape), fields={"beta": 1.0})
