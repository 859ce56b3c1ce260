"""Collect the answers of cuBLASLt's heuristic on this GPU and build ``fpemu/library/data/*-model.npz``.

    python benchmarks/heuristic_model.py OUT.npz --seconds 120

A C++ program queries random shapes on all cores. A tree for each type and layout grows on four fifths of the answers
(Gini impurity). The last fifth estimates the error of each leaf, and the leaves with the smallest estimates are kept
until their answers would be wrong more often than `WRONG`. The shapes that judge the result are drawn last.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from fpemu.library.families import canonical
from fpemu.library.heuristic import CODES, WORKSPACE
from fpemu.library.model import LEAF, Forest, features, right_children

KINDS = ("fp16", "bf16", "tf32", "fp32", "fp64")  # with 16-bit results the answers are the same
WRONG = 0.0007  # accepted share of wrong answers, as the validation estimates it
SMALLEST = 24  # samples of a node that is not split further

PROGRAM = r"""
#include <cublasLt.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
// argv: seconds, threads, workspace, file of int[3] shapes, file of short[5] results, codes of each type
int main(int count, char **v) {
  double seconds = atof(v[1]); size_t workspace = atoll(v[3]); int kinds = (count - 6) / 4; const long chunk = 1000;
  FILE *f = fopen(v[4], "rb"); fseek(f, 0, SEEK_END); long n = ftell(f) / 12; rewind(f);
  std::vector<int> shapes(3 * n); if (fread(shapes.data(), 12, n, f) != (size_t)n) return 1; fclose(f);
  std::vector<short> out(5 * n, -1); std::atomic<long> next(0); std::vector<std::thread> running;
  auto begin = std::chrono::steady_clock::now();
  for (int t = 0; t < atoi(v[2]); t++) running.emplace_back([&] {
    cublasLtHandle_t h; if (cublasLtCreate(&h)) exit(2);
    std::vector<cublasLtMatmulDesc_t> desc(2 * kinds); std::vector<cublasLtMatrixLayout_t> a(kinds), b(kinds), c(kinds);
    cublasLtMatmulPreference_t p; cublasLtMatmulPreferenceCreate(&p);
    cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    for (int i = 0; i < kinds; i++) {
      auto code = [&](int k) { return atoi(v[6 + 4 * i + k]); };
      for (int TN = 0; TN < 2; TN++) {
        cublasLtMatmulDescCreate(&desc[2 * i + TN], (cublasComputeType_t)code(2), (cudaDataType_t)code(3));
        cublasOperation_t op = TN ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublasLtMatmulDescSetAttribute(desc[2 * i + TN], CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
      }
      cublasLtMatrixLayoutCreate(&a[i], (cudaDataType_t)code(0), 8, 8, 8);
      cublasLtMatrixLayoutCreate(&b[i], (cudaDataType_t)code(0), 8, 8, 8);
      cublasLtMatrixLayoutCreate(&c[i], (cudaDataType_t)code(1), 8, 8, 8);
    }
    auto resize = [](cublasLtMatrixLayout_t x, uint64_t rows, uint64_t columns) {
      cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, 8);
      cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, 8);
      cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_LD, &rows, 8);
    };
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
      long first = next.fetch_add(chunk);
      if (first >= n) break;
      for (long row = first; row < std::min(n, first + chunk); row++) {
        int M = shapes[3 * row], N = shapes[3 * row + 1], K = shapes[3 * row + 2];
        int which = row % (2 * kinds), i = which / 2, TN = which % 2;
        resize(a[i], TN ? K : N, TN ? N : K); resize(b[i], K, M); resize(c[i], N, M);
        cublasLtMatmulHeuristicResult_t answer; int found = 0;
        if (cublasLtMatmulAlgoGetHeuristic(h, desc[which], a[i], b[i], c[i], c[i], p, 1, &answer, &found) || !found)
          continue;
        cublasLtMatmulAlgoConfigAttributes_t of[5] = {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
          CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION};
        for (int k = 0; k < 5; k++) {
          int x = 0; size_t size; cublasLtMatmulAlgoConfigGetAttribute(&answer.algo, of[k], &x, 4, &size);
          out[5 * row + k] = x;
        }
      }
    }
  });
  for (auto &x : running) x.join();
  long done = std::min(n, next.load());
  f = fopen(v[5], "wb"); fwrite(out.data(), 10, done, f); fclose(f);
}
"""


def draw(seed: int, count: int) -> np.ndarray:
    """Shapes (count, 3), the same on every machine: log-uniform sizes up to 2048, 2048 and 8192, 70 % of them multiples
    of 8; a fifth are wide as in language models, most of them with N and K multiples of 64."""
    rng = np.random.default_rng(seed)
    shapes = np.exp2(rng.random((count, 3)) * [11, 11, 13]).astype(np.int32)
    shapes = np.where(rng.random((count, 3)) < 0.7, np.maximum(8, shapes // 8 * 8), shapes)
    wide = rng.random(count) < 0.2
    some = np.exp2(rng.random((int(wide.sum()), 3)) * [12.5, 7, 7] + [0, 7, 7]).astype(np.int32)
    some[:, 1:] = np.where(rng.random((len(some), 2)) < 0.7, some[:, 1:] // 64 * 64, some[:, 1:] // 8 * 8)
    shapes[wide] = some
    return shapes.astype(np.int32)


def combinations() -> list[tuple[str, str]]:
    """The type and layout of row n of the answers: entry n modulo their number."""
    return [(kind, layout) for kind in KINDS for layout in ("NN", "TN")]


def collect(out: Path, seconds: float, seed: int, count: int, threads: int) -> None:
    """Write the answers for the shapes of `draw` to four files: for each type and layout the distinct configurations,
    and the index of each answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import nvidia  # type: ignore[import-untyped]

        (folder / "queries.cu").write_text(PROGRAM)
        found = (p for root in nvidia.__path__ for p in Path(root).glob("*/lib"))
        libraries = next(p for p in found if list(p.glob("libcublasLt*")))
        link = [f"-L{libraries}", f"-l:{next(libraries.glob('libcublasLt.so.*')).name}", "-lpthread"]
        link += ["-Xlinker", "-rpath", "-Xlinker", str(libraries), f"-I{libraries.parent / 'include'}"]
        subprocess.run(
            ["nvcc", "-O2", "-std=c++17", str(folder / "queries.cu"), "-o", str(folder / "queries"), *link], check=True
        )
        draw(seed, count).tofile(folder / "shapes")
        codes = [str(code) for kind in KINDS for code in CODES[kind]]
        given = [str(seconds), str(threads), str(WORKSPACE), str(folder / "shapes"), str(folder / "answers")]
        subprocess.run([str(folder / "queries"), *given, *codes], check=True)
        answers = np.fromfile(folder / "answers", np.int16).reshape(-1, 5)
    print(f"{len(answers):,} of {count:,} answers, seed {seed}", flush=True)
    kinds = combinations()
    with ProcessPoolExecutor(4) as pool:
        parts = [[n for n in range(len(kinds)) if n % 4 == part] for part in range(4)]
        list(pool.map(_write, [out / f"answers{part}.npz" for part in range(4)], parts, [answers] * 4))


def _write(file: Path, which: list[int], answers: np.ndarray) -> None:
    arrays: dict[str, np.ndarray] = {}
    for n in which:
        table, index = np.unique(answers[n :: 2 * len(KINDS)], axis=0, return_inverse=True)
        arrays |= {f"{n} table": table, f"{n} index": index.ravel().astype(np.uint16)}
    np.savez_compressed(file, **arrays)


@njit(cache=True)
def _best(X, y, index, bins, classes, left, right, most):  # type: ignore[no-untyped-def]
    """Feature and bin with the smallest impurity, of every `stride`-th sample; feature -1 if none separates."""
    n = min(len(index), most)
    stride = len(index) // n
    labels = np.empty(n, np.int32)
    for i in range(n):
        labels[i] = y[index[i * stride]]
    best, feature, cut = -1.0, -1, 0
    values, order = np.empty(n, np.uint16), np.empty(n, np.int32)
    for f in range(len(X)):
        low, high = 65535, 0
        for i in range(n):
            values[i] = X[f, index[i * stride]]
            low, high = min(low, values[i]), max(high, values[i])
        if low == high:
            continue
        if high - low < 4 * n:
            starts = np.zeros(high - low + 2, np.int32)
            for i in range(n):
                starts[values[i] - low + 1] += 1
            for i in range(1, len(starts)):
                starts[i] += starts[i - 1]
            for i in range(n):
                order[starts[values[i] - low]] = i
                starts[values[i] - low] += 1
        else:
            order[:] = np.argsort(values)
        for i in range(n):
            left[labels[i]] = 0
            right[labels[i]] = 0
        total, before = 0.0, 0.0  # sums of squared counts on the right and on the left
        for i in range(n):
            total += 2 * right[labels[i]] + 1
            right[labels[i]] += 1
        for i in range(n - 1):
            k = labels[order[i]]
            before += 2 * left[k] + 1
            left[k] += 1
            total -= 2 * right[k] - 1
            right[k] -= 1
            if values[order[i]] != values[order[i + 1]]:
                score = before / (i + 1) + total / (n - i - 1)
                if score > best:
                    # a threshold in the middle of a gap errs least on unseen values
                    best, feature, cut = score, f, (int(values[order[i]]) + int(values[order[i + 1]])) // 2
    return feature, cut


@njit(cache=True)
def grow(X, y, bins, classes, smallest, most):  # type: ignore[no-untyped-def]
    """The nodes of a tree in preorder: feature (255: leaf), bin or class, and samples. X (features, samples): bins."""
    n = X.shape[1]
    index = np.arange(n).astype(np.int32)
    buffer = np.empty(n, np.int32)
    left, right = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    room = 4 * n // smallest + 1000
    feature, value, count = np.empty(room, np.uint8), np.empty(room, np.int32), np.empty(room, np.int32)
    nodes, stack = 0, [(0, n)]
    while stack:
        lo, hi = stack.pop()
        some = index[lo:hi]
        pure = True
        for i in range(1, len(some)):
            if y[some[i]] != y[some[0]]:
                pure = False
                break
        f, cut = -1, 0
        if not pure and hi - lo >= smallest:
            f, cut = _best(X, y, some, bins, classes, left, right, most)
        at = nodes
        nodes += 1
        count[at] = hi - lo
        if f >= 0:
            a, b = lo, 0
            for i in range(lo, hi):
                if X[f, index[i]] <= cut:
                    index[a] = index[i]
                    a += 1
                else:
                    buffer[b] = index[i]
                    b += 1
            index[a:hi] = buffer[:b]
            feature[at], value[at] = f, cut
            stack.append((a, hi))
            stack.append((lo, a))
        else:
            left[:] = 0
            for i in range(len(some)):
                left[y[some[i]]] += 1
            feature[at], value[at] = 255, np.argmax(left)
    return feature[:nodes], value[:nodes], count[:nodes]


def leaf_of(forest: Forest, x: list[np.ndarray]) -> np.ndarray:
    """The leaf of each sample."""
    node = np.zeros(len(x[0]), np.int64)
    inner = np.arange(len(node))
    columns = np.stack(x)
    while inner.size:
        at = node[inner]
        node[inner] = np.where(columns[forest.feature[at], inner] <= forest.value[at], at + 1, forest.right[at])
        inner = inner[forest.feature[node[inner]] != LEAF]
    return node


def build(kind: str, layout: str, rows: np.ndarray, held: np.ndarray) -> tuple[dict[str, Any], str]:
    """The arrays of one tree, and a line about it; `held` rows are used for the line alone."""
    begin = time.time()

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        M, N, K = rows["shape"].T
        return rows["shape"], canonical(rows["config"], K, kind), features(M, N, K)

    shapes, configs, x = read(rows)
    table, y = np.unique(configs, axis=0, return_inverse=True)
    y = y.ravel().astype(np.int32)
    train = len(y) * 4 // 5
    thresholds, X = [], np.empty((len(x), train), np.uint16)
    for f, values in enumerate(x):
        some = np.unique(values[:train])
        if len(some) > 60000:
            some = np.unique(np.quantile(values[:train], np.linspace(0, 1, 20000)).astype(np.float32))
        thresholds.append(some)
        X[f] = np.minimum(np.searchsorted(some, values[:train]), len(some) - 1)
    bins = np.array([len(t) for t in thresholds])
    feature, value, count = grow(X, y[:train], bins, len(table), SMALLEST, 60000)
    del X
    levels = value.astype(np.float32)
    for f, some in enumerate(thresholds):
        at = np.flatnonzero(feature == f)
        nearer = np.minimum(value[at] + 1, len(some) - 1)
        levels[at] = (some[value[at]].astype(np.float64) + some[nearer]) / 2
    tree = Forest(feature, levels, right_children(feature), table.astype(np.int16))
    check = [f[train:] for f in x]
    leaf = leaf_of(tree, check)
    hits = np.bincount(leaf, minlength=len(feature))
    errors = np.bincount(leaf, weights=tree.value[leaf] != y[train:], minlength=len(feature))
    # the estimate for a leaf: its errors, and those of leaves of its size
    size = np.log2(count).astype(int)
    usual = np.array([errors[s].sum() / max(1, hits[s].sum()) for s in (size == n for n in range(size.max() + 1))])
    estimate = (errors + 2 * usual[size]) / (hits + 2)
    unknown = (table < -1).any(axis=1) | (table[:, 0] < 0)
    leaves = np.flatnonzero((feature == LEAF) & (hits > 0) & ~unknown[np.minimum(value, len(table) - 1)])
    order = leaves[np.argsort(estimate[leaves], kind="stable")]
    share = np.cumsum(estimate[order] * hits[order]) / np.cumsum(hits[order])
    kept = np.zeros(len(feature), bool)
    kept[order[: np.searchsorted(share, WRONG, side="right")]] = True
    pruned = prune(tree, kept)
    shapes, configs, x = read(held)
    got = pruned(*shapes.T)
    line = (
        f"{kind} {layout}: {len(rows):,} answers, {len(table)} orders, {len(feature)} nodes, kept {len(pruned.feature)}"
    )
    narrow = (shapes[:, :2] <= 2048).all(axis=1) & (shapes[:, 2] <= 8192)
    for name, some in (("narrow", narrow), ("wide", ~narrow)):
        answered = (got[some] != -1).any(axis=1)
        wrong = (got[some] != configs[some]).any(axis=1)[answered].mean() if answered.any() else 0.0
        line += f"; {name} {some.sum():,}: answered {answered.mean():.4f}, wrong {wrong:.5f}"
    raw = leaf_of(tree, x)
    line += f"; tree alone {(tree.configurations[tree.value[raw].astype(int)] == configs).all(axis=1).mean():.4f}"
    names = ("feature", "value", "configurations")
    arrays = dict(zip(names, (pruned.feature, pruned.value, pruned.configurations), strict=True))
    return {f"{kind} {layout} {n}": a for n, a in arrays.items()}, f"{line}; {time.time() - begin:.0f} s"


def prune(tree: Forest, kept: np.ndarray) -> Forest:
    """The tree with index -1 in all leaves but `kept`, and one leaf where both children are equal leaves."""
    feature: list[int] = []
    value: list[float] = []
    result: list[tuple[list[int], list[float]]] = []
    for n in range(len(tree.feature) - 1, -1, -1):  # children follow their node
        if tree.feature[n] == LEAF:
            result.append(([LEAF], [float(tree.value[n]) if kept[n] else -1.0]))
            continue
        a, b = result.pop(), result.pop()
        if len(a[0]) == len(b[0]) == 1 and a[1] == b[1]:
            result.append(a)
        elif len(a[0]) + len(b[0]) < 64:
            result.append(([int(tree.feature[n]), *a[0], *b[0]], [float(tree.value[n]), *a[1], *b[1]]))
        else:
            joined = _Joined(int(tree.feature[n]), float(tree.value[n]), a, b)
            result.append((joined, joined))  # type: ignore[arg-type]
    stack: list[Any] = [result[0]]
    while stack:
        part = stack.pop()
        if isinstance(part[0], _Joined):
            feature.append(part[0].feature)
            value.append(part[0].value)
            stack += [part[0].b, part[0].a]
        else:
            feature += part[0]
            value += part[1]
    nodes = np.array(feature, np.uint8)
    return Forest(nodes, np.array(value, np.float32), right_children(nodes), tree.configurations)


class _Joined:
    """A large subtree, whose lists are not copied."""

    def __init__(self, feature: int, value: float, a: Any, b: Any) -> None:
        self.feature, self.value, self.a, self.b = feature, value, a, b

    def __len__(self) -> int:
        return 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("collect", "build"))
    parser.add_argument("folder", type=Path, help="folder of the answers")
    parser.add_argument("--seconds", type=float, default=120, help="collect: time of the queries")
    parser.add_argument("--seed", type=int, required=True, help="seed of the shapes")
    parser.add_argument("--count", type=int, required=True, help="number of shapes; the time limit may end earlier")
    parser.add_argument("--threads", type=int, default=16)
    given = parser.parse_args()
    if given.step == "collect":
        collect(given.folder, given.seconds, given.seed, given.count, given.threads)


if __name__ == "__main__":
    main()
