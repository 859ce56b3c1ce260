"""Collect the answers of cuBLASLt's heuristic on this GPU, and build ``fpemu/library/data/*-model.npz`` from them.

    python benchmarks/heuristic_model.py collect FOLDER --seed 1 --count 40000000 --seconds 120
    python benchmarks/heuristic_model.py layers FOLDER
    python benchmarks/heuristic_model.py build FOLDER --seed 1 --count 40000000

A C++ program queries random shapes on all cores; the shapes follow from the seed, so that only the answers are saved.
Several trees for each type and layout grow on the answers (Gini impurity, random features at each node); held-out
answers determine the share of votes from which at most `WRONG` of the answers are wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from fpemu.library.families import Configuration, block_of, canonical
from fpemu.library.heuristic import CODES, WORKSPACE
from fpemu.library.model import Forest, Tree, features, right_children

KINDS = [(kind, layout) for kind in ("fp16", "bf16", "tf32", "fp32", "fp64") for layout in ("NN", "TN")]
FIELDS = (*Configuration._fields, "tile")
LAYER_KINDS = [(kind, "TN") for kind in ("fp16", "bf16", "tf32", "fp32")]  # 16-bit results have the same answers
MOST_ROWS = 8192
PER_FILE = 2  # types and layouts
# width of the model, of the queries, and of the keys or values; of the inner layer; size of the vocabulary
MODELS = {
    "GPT-2": (768, 768, 768, 3072, 50257),
    "GPT-2 XL": (1600, 1600, 1600, 6400, 50257),
    "Llama 3.2 1B": (2048, 2048, 512, 8192, 128256),
    "Llama 3.2 3B": (3072, 3072, 1024, 8192, 128256),
    "Llama 3 8B": (4096, 4096, 1024, 14336, 128256),
    "Llama 3 70B": (8192, 8192, 1024, 28672, 128256),
    "Llama 3 405B": (16384, 16384, 1024, 53248, 128256),
    "Qwen3 0.6B": (1024, 2048, 1024, 3072, 151936),
    "Qwen3 1.7B": (2048, 2048, 1024, 6144, 151936),
    "Qwen3 4B": (2560, 4096, 1024, 9728, 151936),
    "Qwen3 8B": (4096, 4096, 1024, 12288, 151936),
    "Qwen3 14B": (5120, 5120, 1024, 17408, 151936),
    "Qwen3 32B": (5120, 8192, 1024, 25600, 151936),
    "Gemma 2 9B": (3584, 4096, 2048, 14336, 256000),
    "Mistral Nemo": (5120, 4096, 1024, 14336, 131072),
    "Phi-4": (5120, 5120, 1280, 17920, 100352),
    "gpt-oss": (2880, 4096, 512, 2880, 201088),
}
# DeepSeek-V3: down and up projections of queries, keys and values; output; inner layers; experts; router; head
OTHER_LAYERS = (
    *((1536, 7168), (24576, 1536), (576, 7168), (32768, 512), (7168, 16384), (18432, 7168), (36864, 7168)),
    *((7168, 18432), (2048, 7168), (4096, 7168), (7168, 2048), (256, 7168), (129280, 7168)),
)
WRONG = 0.0006  # accepted share of wrong answers
FLOOR = 0.965  # smallest threshold: layers of language models had 3 wrong answers in 132 without it, none with it
SMALLEST = 12  # samples of a node that is not split further

PROGRAM = r"""
#include <cublasLt.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
// argv: seconds, threads, workspace, file of int[3] shapes, file of short[FIELDS] results, and for each type and layout
// four codes and whether A is transposed; row n has entry n modulo their number
const int FIELDS = 6;
int main(int count, char **v) {
  double seconds = atof(v[1]); size_t workspace = atoll(v[3]); int kinds = (count - 6) / 5; const long chunk = 1000;
  FILE *f = fopen(v[4], "rb"); fseek(f, 0, SEEK_END); long n = ftell(f) / 12; rewind(f);
  std::vector<int> shapes(3 * n); if (fread(shapes.data(), 12, n, f) != (size_t)n) return 1; fclose(f);
  std::vector<short> out(FIELDS * n, -1); std::atomic<long> next(0); std::vector<std::thread> running;
  auto begin = std::chrono::steady_clock::now();
  for (int t = 0; t < atoi(v[2]); t++) running.emplace_back([&] {
    cublasLtHandle_t h; if (cublasLtCreate(&h)) exit(2);
    std::vector<cublasLtMatmulDesc_t> desc(kinds); std::vector<cublasLtMatrixLayout_t> a(kinds), b(kinds), c(kinds);
    std::vector<bool> transposed(kinds);
    cublasLtMatmulPreference_t p; cublasLtMatmulPreferenceCreate(&p);
    cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    for (int i = 0; i < kinds; i++) {
      auto code = [&](int k) { return atoi(v[6 + 5 * i + k]); };
      transposed[i] = code(4);
      cublasLtMatmulDescCreate(&desc[i], (cublasComputeType_t)code(2), (cudaDataType_t)code(3));
      cublasOperation_t op = code(4) ? CUBLAS_OP_T : CUBLAS_OP_N;
      cublasLtMatmulDescSetAttribute(desc[i], CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
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
        int i = row % kinds;
        resize(a[i], transposed[i] ? K : N, transposed[i] ? N : K); resize(b[i], K, M); resize(c[i], N, M);
        cublasLtMatmulHeuristicResult_t answer; int found = 0;
        if (cublasLtMatmulAlgoGetHeuristic(h, desc[i], a[i], b[i], c[i], c[i], p, 1, &answer, &found) || !found)
          continue;
        cublasLtMatmulAlgoConfigAttributes_t of[FIELDS] = {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
          CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
          CUBLASLT_ALGO_CONFIG_TILE_ID};
        for (int k = 0; k < FIELDS; k++) {
          int x = 0; size_t size; cublasLtMatmulAlgoConfigGetAttribute(&answer.algo, of[k], &x, 4, &size);
          out[FIELDS * row + k] = x;
        }
      }
    }
  });
  for (auto &x : running) x.join();
  long done = std::min(n, next.load());
  f = fopen(v[5], "wb"); fwrite(out.data(), 2 * FIELDS, done, f); fclose(f);
}
"""


def draw(seed: int, count: int) -> np.ndarray:
    """Shapes (count, 3), the same on every machine: sizes up to 2048, 2048 and 8192, log-uniform or, an eighth of them,
    uniform; 70 % of them are multiples of 8."""
    rng = np.random.default_rng(seed)
    shapes = np.exp2(rng.random((count, 3)) * [11, 11, 13]).astype(np.int32)
    even = rng.random(count) < 1 / 8
    shapes[even] = rng.integers(1, [2049, 2049, 8193], (int(even.sum()), 3))
    return np.where(rng.random((count, 3)) < 0.7, np.maximum(8, shapes // 8 * 8), shapes).astype(np.int32)


def layers() -> list[tuple[int, int]]:
    """N and K of the linear layers of `MODELS`, whole and divided among 2, 4 and 8 GPUs."""
    found = set()
    for width, queries, keys, inner, vocabulary in MODELS.values():
        columns = (queries, keys, queries + 2 * keys, inner, 2 * inner, vocabulary)
        for ranks in (1, 2, 4, 8):
            found |= {(N // ranks, width) for N in columns if N % ranks == 0}
            found |= {(width, K // ranks) for K in (queries, inner) if K % ranks == 0}
    return sorted(found | set(OTHER_LAYERS))


def rows(pairs: list[tuple[int, int]]) -> np.ndarray:
    """The shapes of all numbers of rows of layers, each once for each of `LAYER_KINDS`."""
    sizes = np.array([(M, N, K) for N, K in pairs for M in range(1, MOST_ROWS + 1)], np.int32)
    return np.repeat(sizes, len(LAYER_KINDS), axis=0)


def collect(file: Path, shapes: np.ndarray, kinds: list[tuple[str, str]], seconds: float, threads: int) -> None:
    """Write the answers to files ``file-0.npz`` and so on, each for `PER_FILE` of `kinds`: the distinct configurations,
    and the index of each answer. Row n of `shapes` has the entry n of `kinds` modulo their number."""
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
        shapes.tofile(folder / "shapes")
        codes = [str(code) for kind, layout in kinds for code in (*CODES[kind], int(layout == "TN"))]
        given = [str(seconds), str(threads), str(WORKSPACE), str(folder / "shapes"), str(folder / "answers")]
        subprocess.run([str(folder / "queries"), *given, *codes], check=True)
        answers = np.fromfile(folder / "answers", np.int16).reshape(-1, len(FIELDS))
    print(f"{len(answers):,} of {len(shapes):,} answers", flush=True)
    with ProcessPoolExecutor(PER_FILE) as pool:
        for start in range(0, len(kinds), PER_FILE):
            part = {i: answers[i :: len(kinds)] for i in range(start, min(len(kinds), start + PER_FILE))}
            pool.submit(_write, file.with_name(f"{file.name}-{start // PER_FILE}.npz"), part)


def _write(file: Path, parts: dict[int, np.ndarray]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for n, answers in parts.items():
            codes = answers.astype(np.int64) @ (1 << 10) ** np.arange(len(FIELDS))
            _, first, index = np.unique(codes, return_index=True, return_inverse=True)
            for name, array in (("table", answers[first]), ("index", index.ravel().astype(np.uint16))):
                with archive.open(f"{n} {name}.npy", "w", force_zip64=True) as member:
                    np.save(member, array)


@njit(cache=True)
def _best(X, y, index, left, right, most, share):  # type: ignore[no-untyped-def]
    """Feature and bin with the smallest impurity, of a random share of the features; feature -1 if none separates."""
    n = min(len(index), most)
    stride = len(index) // n
    labels = np.empty(n, np.int32)
    for i in range(n):
        labels[i] = y[index[i * stride]]
    best, feature, cut = -1.0, -1, 0
    values, order = np.empty(n, np.uint16), np.empty(n, np.int32)
    for f in range(len(X)):
        if np.random.random() > share:
            continue
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
                    # the middle of a gap separates unseen values best
                    best, feature, cut = score, f, (int(values[order[i]]) + int(values[order[i + 1]])) // 2
    return feature, cut


@njit(cache=True)
def grow(X, y, classes, smallest, most, share, seed):  # type: ignore[no-untyped-def]
    """The nodes of a tree in preorder: feature (255: leaf), and bin or class. X (features, samples): bins."""
    np.random.seed(seed)
    n = X.shape[1]
    index = np.arange(n).astype(np.int32)
    buffer = np.empty(n, np.int32)
    left, right = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    room = 4 * n // smallest + 1000
    feature, value = np.empty(room, np.uint8), np.empty(room, np.int32)
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
            f, cut = _best(X, y, some, left, right, most, share)
        at = nodes
        nodes += 1
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
    return feature[:nodes], value[:nodes]


def smooth(configs: np.ndarray, kind: str) -> np.ndarray:
    """Configurations without fields that have no effect for any K: a tree separates them by smooth functions of the
    sizes, unlike configurations that are merged because their orders are equal for one K."""
    out = configs.astype(np.int32)
    family, stages, splits, reduction, custom = out.T
    mma, plain = np.isin(family, (12, 21, 23, 24)), np.isin(family, (20, 22))
    representative = {16: 6, 32: 9, 64: 13, 128: 19} if kind == "tf32" else {16: 1, 32: 7, 64: 13, 128: 19}
    blocks = np.array([representative[min(128, max(16, block_of(n)))] for n in range(64)])
    blocks[0] = blocks[0] if kind == "tf32" else 0
    stages[mma] = blocks[np.clip(stages, 0, 63)][mma]
    family[mma] = 21 if kind == "tf32" else 24
    reduced = np.isin(family, (20, 21, 22, 24, 35, 36, 55, 63, 66)) & (splits > 0)
    reduction[reduced & ((splits == 1) | (kind not in ("fp16", "bf16")))] = 0
    custom[(family == 66) | plain] = 0
    stages[family == 66], stages[plain] = 35, 0
    stages[(family == 63) & (splits == 1)] = 15
    return out


def build(folder: Path, n: int, shapes: np.ndarray, trees: int) -> tuple[dict[str, Any], str]:
    """The arrays of a type and layout, and a line about them. A sixteenth of the answers determines the threshold,
    another one the shares of the line."""
    kind, layout = KINDS[n]
    with np.load(folder / f"answers{n % 4}.npz") as data:
        configs = data[f"{n} table"][data[f"{n} index"]]
    shapes = shapes[n :: 2 * len(KINDS)][: len(configs)].astype(np.int64)
    used = (configs[:, 0] >= 0) & (shapes[:, :2] <= 2048).all(axis=1) & (shapes[:, 2] <= 8192)
    shapes, configs = shapes[used], configs[used]
    table, y = np.unique(smooth(configs, kind), axis=0, return_inverse=True)
    y = y.ravel().astype(np.int32)
    count = len(y) * 14 // 16
    x = [values[:count] for values in features(*shapes.T)]
    thresholds, X = [], np.empty((len(x), count), np.uint16)
    for f, values in enumerate(x):
        some = np.unique(values)
        if len(some) > 60000:
            some = np.unique(np.quantile(values, np.linspace(0, 1, 20000)).astype(np.float32))
        thresholds.append(some)
        X[f] = np.minimum(np.searchsorted(some, values), len(some) - 1)
    grown, columns = [], np.stack(x)
    for seed in range(trees):
        feature, value = grow(X, y[:count], len(table), SMALLEST, 40000, 0.35, seed)
        levels = value.astype(np.float32)
        for f, some in enumerate(thresholds):
            at = np.flatnonzero(feature == f)
            levels[at] = (some[value[at]].astype(np.float64) + some[np.minimum(value[at] + 1, len(some) - 1)]) / 2
        tree = Tree(feature, levels, np.zeros(len(feature), np.uint8), right_children(feature))
        leaf = tree.leaves(columns)
        hits = np.bincount(leaf, weights=value[leaf] == y[:count], minlength=len(feature))
        purity = 255 * hits / (np.bincount(leaf, minlength=len(feature)) + 0.5)
        grown.append(tree._replace(purity=np.round(purity).astype(np.uint8)))
    narrow = f"{kind}->{kind}" if kind in ("fp16", "bf16") else kind  # its orders are distinguished by more fields
    forest, held = Forest(tuple(grown), table.astype(np.int16), 0.0), slice(count, None)
    rows, share = forest.votes(shapes[held], narrow)
    right = (rows == canonical(configs[held], shapes[held, 2], narrow)).all(axis=1)
    half = len(right) // 2
    best = np.argsort(-share[:half], kind="stable")
    wrong = np.cumsum(~right[best]) / np.arange(1, half + 1)
    threshold = max(FLOOR, share[best[np.flatnonzero(wrong <= WRONG)[-1]]])
    sure = share[half:] >= threshold
    errors = (~right[half:][sure]).mean()
    line = f"{kind} {layout}: {count:,} answers; answered {sure.mean():.4f} of {len(sure):,}, wrong {errors:.5f}"
    parts = {part: np.concatenate([getattr(tree, part) for tree in grown]) for part in ("feature", "value", "purity")}
    parts |= {"sizes": np.array([len(tree.feature) for tree in grown]), "configurations": forest.configurations}
    return {f"{kind} {layout} {name}": a for name, a in {**parts, "threshold": threshold}.items()}, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("collect", "layers", "build"))
    parser.add_argument("folder", type=Path, help="folder of the answers")
    parser.add_argument("--seconds", type=float, default=120, help="collect: time of the queries")
    parser.add_argument("--seed", type=int, default=1, help="seed of the shapes")
    parser.add_argument("--count", type=int, default=40_000_000, help="shapes; the time limit may end earlier")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--trees", type=int, default=6, help="build: trees of a type and layout")
    given = parser.parse_args()
    if given.step == "collect":
        collect(given.folder / "answers", draw(given.seed, given.count), KINDS, given.seconds, given.threads)
        return
    if given.step == "layers":
        collect(given.folder / "layers", rows(layers()), LAYER_KINDS, given.seconds, given.threads)
        return
    shapes = draw(given.seed, given.count)
    arrays: dict[str, Any] = {}
    for n in range(2 * len(KINDS)):
        made, line = build(given.folder, n, shapes, given.trees)
        arrays |= made
        print(line, flush=True)
    np.savez_compressed(given.folder / "model.npz", **arrays)


if __name__ == "__main__":
    main()
