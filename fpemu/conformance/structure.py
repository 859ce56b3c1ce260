"""Structural defects of a product, by linear algebra on the result: terms, rows, tiles and factors in wrong places.

The residual of a result is compared with the rounding error of its specification. A hypothesis about indices or factors
is accepted if the product that it predicts, in float64, leaves a residual of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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


def _spread(wrong: NDArray[np.bool_], axis: int) -> Index:
    """A few of the rows (axis 1) or columns with wrong entries, the first and the last among them."""
    lines = np.flatnonzero(wrong.any(axis=axis))
    return lines[np.unique(np.linspace(0, len(lines) - 1, min(5, len(lines))).astype(np.int64))]


def defects(x: Residual) -> Iterator[Defect]:
    """The structural defects that explain a result, the simplest first."""
    if not x.wrong.any() or x.s.factors != "AB":
        return
    with np.errstate(all="ignore"):
        for search in (
            _relu,
            _scalars,
            _unwritten,
            _lines,
            _operands,
            _tiles,
            _weights,
            _permuted,
            _scaled,
            _functions,
        ):
            with suppress(np.linalg.LinAlgError):
                yield from search(x)


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
        for a in _likely(u * alpha, {alpha: "", 1.0: "alpha is left out", alpha**2: "alpha is applied twice"}):
            for b in _likely(v, {s.beta: "", 1.0: "", alpha * s.beta: "", 2 * s.beta: ""}) if C is not None else [0.0]:
                parts, epilogues = [words] if words else [], [s.epilogue]
                if a != alpha:
                    known = " (alpha is applied twice)" if a == alpha**2 else " (alpha is left out)" if a == 1 else ""
                    parts.append(f"alpha is {a:g}, not {alpha:g}{known}")
                    epilogues += ["alpha-twice"] if a == alpha**2 else []
                if b != s.beta:
                    names = {0.0: ["C is left out"], 1.0: ["C is added without beta"]}.get(b, [])
                    names += ["C is added twice"] if b == 2 * s.beta else []
                    parts.append(
                        f"{' or '.join(names) or 'C enters with another factor'}: beta is {b:g}, not {s.beta:g}"
                    )
                    epilogues += ["C-twice"] if b == 2 * s.beta else []
                for epilogue in epilogues if parts and not (s.is_integer and (a != 1 or b not in (0, 1))) else ():
                    twice = epilogue != s.epilogue  # a factor or C applied in two steps, each rounded
                    fields = {"epilogue": epilogue} if twice else {"alpha": a, "beta": b}
                    yield Defect("; ".join(parts), x.A, x.B, C if b else None, fields=fields)


def _likely(value: float, named: dict[float, str]) -> list[float]:
    """Values of few digits or bits near an estimate, the named ones first."""
    digits = [float(f"{value:.{n}g}") for n in (1, 2, 3, 4, 6)]
    power = float(np.copysign(2.0 ** np.round(np.log2(abs(value))), value)) if value else 0.0
    near = [v for v in (*named, power, *digits) if abs(v - value) <= 2e-3 * abs(value) + 1e-9]
    return list(dict.fromkeys(near))[:3]


_FACTORS = {
    "BA": "B A, the operands in the other order",
    "A'B": "the transpose of A times B",
    "AB'": "A times the transpose of B",
    "(AB)'": "the transpose of A B",
    "A'B'": "the transpose of A times the transpose of B",
}


def _operands(x: Residual) -> Iterator[Defect]:
    """Exchanged or transposed operands, operands read with another stride or start, and D written with another one."""
    (M, K), (_, N) = x.A.shape, x.B.shape
    a, b = x.a, x.b
    fits = {"BA": M == N == K, "A'B": M == K, "AB'": K == N, "(AB)'": M == N, "A'B'": M == N == K}
    for factors, text in _FACTORS.items():
        if fits[factors]:
            p, q = (b, a) if factors == "BA" else (a.T if factors[1] == "'" else a, b.T if factors[-2] == "B" else b)
            p, q = (b.T, a.T) if factors == "(AB)'" else (p, b.T if factors in ("AB'", "A'B'") else q)
            if x.product_of(p[x.rows], q[:, x.columns], x.rows, x.columns):
                yield Defect(f"the result is {text}", x.A, x.B, x.C, fields={"factors": factors})
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
    near = {width + n for n in range(-16, 17)} | {-(-width // n) * n for n in (8, 16, 32, 64, 128, 256)}
    near |= {width // n * n for n in (8, 16, 32, 64, 128)} | {width // 2, 2 * width, width + 32, width + 64, *sizes}
    for stride in sorted(near):
        if stride > 0 and stride != width:
            yield "rows", 0, stride
    near = {height, *sizes} | {height + n for n in range(-16, 17)}
    for stride in sorted(near):
        if stride > 0:
            yield "columns", 0, stride
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
        if mask.sum() >= 4 and not mask.all() and x.wrong[mask].mean() > 0.9:
            source = np.where(mask, -1, np.arange(mask.size).reshape(mask.shape))
            rest = x.agrees(x.d[~mask], x.T[~mask], x.size[~mask])
            if rest or mask.sum() >= 0.25 * x.wrong.sum():
                where = "; ".join(region(mask))
                if not where and mask.sum() > 64:  # zeros of a function such as ReLU
                    continue
                where = where or f"{mask.sum()} entries"
                text = f"{where.removeprefix('only in ')}: the entries {words}: not written, or written by other code"
                yield Defect(text, x.A, x.B, x.C, source)


def _lines(x: Residual) -> Iterator[Defect]:
    """Rows or columns of D that hold other rows or columns of the product."""
    M, N = x.D.shape
    for axis, name in ((1, "row"), (0, "column")):
        d, T, size = (y if axis else y.T for y in (x.d, x.T, x.size))
        bad = np.flatnonzero(np.mean(x.wrong, axis=axis) > 0.5)
        if not bad.size or len(T) == 1:
            continue
        apart = (d[bad] ** 2).sum(1)[:, None] + (T**2).sum(1) - 2 * d[bad] @ T.T
        origin = np.arange(len(T))
        origin[bad] = np.argmin(apart, axis=1)
        if x.agrees(d, T[origin], size[origin]):
            index = np.arange(M * N).reshape(M, N)
            source = index[origin] if axis else index[:, origin]
            yield Defect(f"{name}s of D are in wrong places: {_moved(origin, name)}", x.A, x.B, x.C, source)


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
    """Tiles of D that hold the values of other tiles, or their own transposed."""
    M, N = x.D.shape
    index = np.arange(M * N).reshape(M, N)
    at_rows, at_columns = (np.flatnonzero(x.wrong.any(axis=axis)) for axis in (1, 0))
    box = (at_rows[0], at_columns[0], np.ptp(at_rows) + 1, np.ptp(at_columns) + 1)
    grids: list[tuple[Any, ...]] = [(box[2], box[3], box[0], box[1])] if box[2] * box[3] < 0.9 * M * N else []
    grids += [(h, w, 0, 0) for h, w in product(_TILES, _TILES) if h <= M and w <= N and h * w < M * N]
    for h, w, top, left in grids:
        places = [
            (r, c)
            for r in range(top, M if not top else top + h, h)
            for c in range(left, N if not left else left + w, w)
            if x.wrong[r : r + h, c : c + w].any()
        ]
        full = all(x.wrong[r : r + h, c : c + w].mean() > 0.6 for r, c in places)
        if not full or len(places) > 64:
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
    v, _ = _solve(x, np.arange(K), x.d - x.T)
    suspects = np.flatnonzero(np.abs(v) > 0.05)
    if v.size and 0 < len(suspects) < K and len(np.unique(v)) < K:  # groups: their members one by one
        group = int(np.ceil(K / len(np.unique(_groups(K, x.D.shape)))))
        near = np.unique(np.clip(suspects[:, None] + np.arange(-group, group + 1), 0, K - 1))
        if len(near) <= min(_UNKNOWNS, x.D.size // 3):
            exact, _ = _solve(x, near, x.d - x.T, group=1)
            v = np.zeros(K)
            v[near] = exact
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
            yield from _other_terms(x, ks[ks < K])


def _groups(K: int, shape: tuple[int, ...]) -> Index:
    """The group of each k: as many groups as the entries of D determine."""
    most = max(1, min(_UNKNOWNS, shape[0] * shape[1] // 3))
    length = 1
    while -(-K // length) > most:
        length *= 2
    return np.arange(K) // length


def _solve(x: Residual, ks: Index, R: Array, group: int | None = None) -> tuple[Array, int]:
    """The v for which sum over k of v_k a_k b_k is nearest to R, for v constant in groups of k."""
    K = x.a.shape[1]
    of = _groups(K, x.D.shape)[ks] if group is None else np.arange(len(ks))
    count = int(of[-1]) + 1
    M, N = x.D.shape
    # about 16 equations for each unknown: further rows and columns add little
    lines = int(np.sqrt(16 * count)) + 8
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, lines)).astype(np.int64)) for n in (M, N))
    a, b, r = x.s.alpha * x.a[rows][:, ks], x.b[ks][:, columns], R[rows][:, columns]
    good = np.isfinite(r)
    r = np.where(good, r, 0.0)
    if count == len(ks) and good.all():
        gram, right = (a.T @ a) * (b @ b.T), ((a.T @ r) * b.T[: r.shape[1]].T).sum(1)
    else:
        terms = np.stack([(a[:, of == g] @ b[of == g])[good] for g in range(count)])
        gram, right = terms @ terms.T, terms @ r[good]
    gram = gram + np.diag(np.full(count, 1e-9 * np.trace(gram) / count))
    return np.linalg.solve(gram, right)[of], count


def _weighted(x: Residual, w: Array) -> Iterator[Defect]:
    """Terms left out, counted twice, read from another block, or multiplied by a factor."""
    K = len(w)
    zeros, twice = np.flatnonzero(w == 0), np.flatnonzero(w == 2)
    others = np.flatnonzero((w != 0) & (w != 1) & (w != 2))
    words = _ks(zeros)
    if zeros.size and not twice.size and not others.size:
        last = K - zeros[0] == len(zeros)
        text = f"k = {words} are left out (weight 0)" if len(zeros) > 1 else f"k = {words} is left out (weight 0)"
        if last:
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
        order = np.arange(K)
        runs = np.split(twice, np.flatnonzero(np.diff(twice) != 1) + 1)
        after = [k for run in np.split(order, [int(r[-1]) + 1 for r in runs]) for k in run]
        for run in reversed(runs):
            at = after.index(int(run[-1])) + 1
            after[at:at] = run.tolist()
        for ks in (np.array(after), np.concatenate([order, twice]), np.concatenate([twice, order])):
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
    """Columns of A, or rows of B, that are multiplied by the wrong ones of the other, where the weights vanish."""
    K, (M, N) = x.a.shape[1], x.D.shape
    if not 0 < len(zeros) < 0.9 * max(M, N):
        return
    keep = np.setdiff1d(np.arange(K), zeros)
    rest = (x.d if x.c is None else x.d - x.c) / x.s.alpha - x.a[:, keep] @ x.b[keep]
    for name, P, Q, R in (("A", x.a, x.b, rest), ("B", x.b.T, x.a.T, rest.T)):
        if len(zeros) <= 0.9 * R.shape[1]:
            Z = np.linalg.lstsq(Q[zeros].T, R.T, rcond=None)[0].T  # R = Z Q[zeros]
            apart = (Z**2).sum(0)[:, None] + (P**2).sum(0) - 2 * Z.T @ P
            ks = np.arange(K)
            ks[zeros] = np.argmin(apart, axis=1)
            if x.product_of(*((x.a[:, ks], x.b) if name == "A" else (x.a, x.b[ks]))):
                yield from _paired(x, ks, name)


def _paired(x: Residual, ks: Index, name: str) -> Iterator[Defect]:
    """k of one operand in other places than in the other operand."""
    moved = np.flatnonzero(ks != np.arange(len(ks)))
    within = "permuted" if np.array_equal(np.sort(ks), np.arange(len(ks))) else "read from other places"
    text = f"k of {name} is {within} against the other operand: {_moved(ks, 'k').replace('hold', 'read')}"
    period = next((p for p in reversed(_PERIODS) if (ks // p == np.arange(len(ks)) // p).all()), None)
    text += f"; within tiles of {period} of k" * (period is not None and moved.size > 0)
    yield Defect(text, x.A[:, ks] if name == "A" else x.A, x.B[ks] if name == "B" else x.B, x.C)
    if within == "permuted":
        back = np.argsort(ks)
        yield Defect(text, x.A if name == "A" else x.A[:, back], x.B if name == "B" else x.B[back], x.C)


def _permuted(x: Residual) -> Iterator[Defect]:
    """k of A permuted against k of B within every tile: likely permutations, and the best match of a_k and b_l."""
    K = x.a.shape[1]
    k = np.arange(K)
    d = (x.d if x.c is None else x.d - x.c) / x.s.alpha
    for ks in _permutations(K):
        if x.product_of(x.a[x.rows][:, ks], x.b[:, x.columns], x.rows, x.columns) and x.product_of(x.a[:, ks], x.b):
            yield from _paired(x, ks, "A")
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
                yield from _paired(x, ks, "A")
                return


def _permutations(K: int) -> Iterator[Index]:
    """Likely permutations of k within tiles."""
    k = np.arange(K)
    for period in (2, 4, 8, 16, 32, 64, 128, K):
        if K % period == 0 and period <= K:
            p = k % period
            base = k - p
            yield base + period - 1 - p
            half = period // 2
            if period % 2 == 0:
                yield base + (p % 2) * half + p // 2
                yield base + p % half * 2 + p // half
                yield base + (p + half) % period
            yield base + (p + 1) % period
            yield base + (p - 1) % period
            for step in (1, 2, 4, 8, 16):
                if step < period and period & (period - 1) == 0:
                    yield base + (p ^ step)
            for rows in (4, 8):
                if period % rows == 0 and period > rows:
                    yield base + p % rows * (period // rows) + p // rows


def _scaled(x: Residual) -> Iterator[Defect]:
    """Factors of whole rows or columns, and factors of blocks of k that differ by row of A or column of B."""
    M, N = x.D.shape
    K = x.a.shape[1]
    for name, d, T, a, b in (("row", x.d, x.T, x.a, x.b), ("column", x.d.T, x.T.T, x.b.T, x.a.T)):
        if x.c is not None or min(M, N) < 2:
            continue
        f = (d * T).sum(1) / (T * T).sum(1)
        if x.agrees(d, T * f[:, None], (x.size if name == "row" else x.size.T) * np.abs(f[:, None])):
            text = f"{name}s of D are multiplied by factors from {f.min():.4g} to {f.max():.4g}, as by wrong scales"
            power = 2.0 ** np.round(np.log2(np.abs(f))) * np.sign(f)
            f = np.where(np.abs(f / power - 1) < 1e-2, power, f)
            A = (x.A * f[:, None]).astype(x.A.dtype) if name == "row" else x.A
            yield Defect(text, A, x.B if name == "row" else (x.B * f).astype(x.B.dtype), x.C)
            return
        for length in (128, 64, 32, 16):
            if K % length or not 1 < K // length <= d.shape[1] // 2:
                continue
            few = x.rows if name == "row" else x.columns
            w = _factors_of_blocks(a[few], b, d[few] / x.s.alpha, length)
            scaled = a[few] * np.repeat(w, length, axis=1)
            places = (few, slice(None)) if name == "row" else (slice(None), few)
            if not x.product_of(*((scaled, b) if name == "row" else (b.T, scaled.T)), *places):
                continue
            w = _factors_of_blocks(a, b, d / x.s.alpha, length)
            scaled = a * np.repeat(w, length, axis=1)
            if x.product_of(*((scaled, b) if name == "row" else (b.T, scaled.T))):
                text = (
                    f"blocks of {length} of k are multiplied by factors from {w.min():.4g} to {w.max():.4g} that differ"
                )
                text += f" by {name}, as by scales of other blocks"
                full = np.repeat(w, length, axis=1)
                A = (x.A * full).astype(x.A.dtype) if name == "row" else x.A
                yield Defect(text, A, x.B if name == "row" else (x.B * full.T).astype(x.B.dtype), x.C)
                return


def _factors_of_blocks(a: Array, b: Array, d: Array, length: int) -> Array:
    """For each row of a, the factor of each block of k, by least squares over the row of d."""
    terms = np.einsum("mtk,tkn->mtn", a.reshape(len(a), -1, length), b.reshape(-1, length, b.shape[1]), optimize=True)
    gram = np.einsum("msn,mtn->mst", terms, terms, optimize=True)
    w = np.linalg.solve(gram, np.einsum("mtn,mn->mt", terms, d)[:, :, None])[:, :, 0]
    power = 2.0 ** np.round(np.log2(np.abs(w))) * np.sign(w)
    return np.asarray(np.where(np.abs(w / power - 1) < 2e-2, power, w))


def _relu(x: Residual) -> Iterator[Defect]:
    if not x.s.relu and (x.d >= 0).all() and x.agrees(x.d, np.maximum(x.T, 0), x.size):
        yield Defect("negative results are replaced by zero (ReLU)", x.A, x.B, x.C, fields={"relu": True})


def _functions(x: Residual) -> Iterator[Defect]:
    """A bias, or a function of every entry (an epilogue)."""
    from math import erf

    M, N = x.D.shape
    T, R = x.T, x.d - x.T
    for axis, name in ((0, "column"), (1, "row")):
        bias = np.median(R, axis=axis, keepdims=True)
        if x.C is None and min(M, N) > 3 and x.agrees(x.d, T + bias, x.size + np.abs(bias)):
            dtype = x.expected.dtype
            if dtype.kind == "f":
                # where D is small, the addition of the bias is exact: of eight such values, the one that fits best
                R = (x.d - x.expected.astype(np.float64)).astype(dtype)
                least = np.take(np.argsort(np.abs(x.d), axis=axis), range(8), axis=axis, mode="clip")
                values = np.moveaxis(np.take_along_axis(R, least, axis), axis, 0)
                half = np.spacing(np.abs(x.D)).astype(np.float64) / 2
                low, high = (R - half).max(axis), (R + half).min(axis)  # the bias is between, in every entry
                inside = low + (high - low) * np.linspace(0, 1, 9)[:, None]
                values = np.concatenate([values, inside.astype(dtype)])
                fits = [(x.expected + np.expand_dims(v, axis) == x.D).sum(axis) for v in values]
                best = np.take_along_axis(values, np.argmax(fits, axis=0)[None], 0)[0]
                bias = np.broadcast_to(np.expand_dims(best, axis), (M, N))
                text = f"a bias for each {name} is added, from {bias.min():.4g} to {bias.max():.4g}"
                yield Defect(text, x.A, x.B, bias, fields={"beta": 1.0})
    if x.agrees(x.d, T, x.size + np.abs(T)):
        return
    slope = float(x.d[T < 0] @ T[T < 0]) / max(float(T[T < 0] @ T[T < 0]), 1e-300)
    phi = 0.5 * (1 + np.vectorize(erf)(T / np.sqrt(2))) if T.size <= 2**18 else np.full_like(T, np.nan)
    low, high = float(np.nanmin(x.d)), float(np.nanmax(x.d))
    functions: dict[str, Callable[[], Array]] = {
        f"negative results are multiplied by {slope:.4g} (leaky ReLU)": lambda: np.where(T < 0, slope * T, T),
        "the absolute value of the result": lambda: np.abs(T),
        f"results are clamped to {low:.6g} ... {high:.6g}": lambda: np.clip(T, low, high),
        "GELU of the result": lambda: T * phi,
        "GELU of the result (tanh)": lambda: T / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (T + 0.044715 * T**3))),
        "SiLU of the result": lambda: T / (1 + np.exp(-T)),
        "the sigmoid of the result": lambda: 1 / (1 + np.exp(-T)),
        "tanh of the result": lambda: np.tanh(T),
    }
    for text, function in functions.items():
        value = function()
        if x.agrees(x.d, value, x.size + np.abs(value)):
            source = np.where(x.wrong, -1, np.arange(T.size).reshape(T.shape))
            yield Defect(f"the epilogue: {text}", x.A, x.B, x.C, source)
