"""Collect the answers of cuBLASLt's heuristic on this GPU, and build ``fpemu/library/data/*-model.npz`` from them.

    python benchmarks/heuristic_model.py collect FOLDER --seeds 2 --seconds 90
    python benchmarks/heuristic_model.py layers FOLDER
    python benchmarks/heuristic_model.py train FOLDER --seeds 2,3 --network tf32 --sizes 768:6:60,576:5:45
    python benchmarks/heuristic_model.py build FOLDER --seeds 77
    python benchmarks/heuristic_model.py changes FOLDER --libraries libcublasLt.so.13,OTHER

A C++ program queries random shapes on all cores; the shapes follow from the seed, so that only the answers are saved.
Networks learn the configurations and tiles (`train`, on a GPU, by PyTorch); `build` joins them, and finds on held-out
answers the smallest probability from which at most `WRONG` of the answers are wrong.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fpemu.library.families import STREAM_K, Configuration, block_of, canonical, with_slices
from fpemu.library.heuristic import CODES, WORKSPACE, Heuristic
from fpemu.library.heuristic import FIELDS as HEURISTIC_FIELDS
from fpemu.library.model import NETWORKS, features, load

KINDS = [(kind, layout) for kind in ("fp16", "bf16", "tf32", "fp32", "fp64") for layout in ("NN", "TN")]
COUNT = 50_000_000  # shapes of a seed; the time limit ends the queries earlier
HELD_OUT = 240_000  # answers of each type and layout that determine a threshold
WRONG = 0.0008  # accepted share of wrong answers
RARE = 30  # fewer answers make no class
NARROW, BATCH, RATE = 128, 16384, 2e-3  # width of the last hidden layer; samples of a step; largest learning rate
FIELDS = (*Configuration._fields, "tile", "cluster", "blocks")
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

PROGRAM = r"""
#include <cublasLt.h>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
// argv: seconds, threads, workspace, file of int[3] shapes, file of short[FIELDS] results, and for each type and layout
// four codes and whether A is transposed; row n has entry n modulo their number
const int FIELDS = 8, MULTIPROCESSORS = 132;  // of an H100 or H200
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
        cublasLtMatmulAlgoConfigAttributes_t of[FIELDS - 1] = {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
          CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
          CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
        for (int k = 0; k < FIELDS - 1; k++) {
          int x = 0; size_t size;
          cublasLtMatmulAlgoConfigGetAttribute(&answer.algo, of[k], &x, k == FIELDS - 2 ? 2 : 4, &size);
          out[FIELDS * row + k] = x;
        }
        out[FIELDS * row + FIELDS - 1] = lround(answer.wavesCount * MULTIPROCESSORS);
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
    answers[answers[:, 0] != STREAM_K, 6:] = 0  # clusters and blocks have no effect but in stream-K
    print(f"{len(answers):,} of {len(shapes):,} answers", flush=True)
    with ProcessPoolExecutor() as pool:
        for start in range(0, len(kinds), PER_FILE):
            part = {i: answers[i :: len(kinds)] for i in range(start, min(len(kinds), start + PER_FILE))}
            pool.submit(_write, file.with_name(f"{file.name}-{start // PER_FILE}.npz"), part)


def _write(file: Path, parts: dict[int, np.ndarray]) -> None:
    arrays: dict[str, Any] = {}
    for n, answers in parts.items():
        columns = (answers.astype(np.int64) - answers.min(axis=0)).T
        codes = np.ravel_multi_index(tuple(columns), tuple(columns.max(axis=1) + 1))
        _, first, index = np.unique(codes, return_index=True, return_inverse=True)
        arrays |= {f"{n} table": answers[first], f"{n} index": index.ravel().astype(np.uint16)}
    _save(file, arrays)


def smooth(configs: np.ndarray, kind: str) -> np.ndarray:
    """Configurations without fields that have no effect for any K: smooth functions of the sizes separate them, unlike
    configurations that are merged because their orders are equal for one K."""
    out = configs.astype(np.int32)
    family, stages, splits, reduction, custom = out.T
    mma, plain = np.isin(family, (12, 21, 23, 24)) & (kind != "fp64"), np.isin(family, (20, 22))
    representative = {16: 6, 32: 9, 64: 13, 128: 19} if kind == "tf32" else {16: 1, 32: 7, 64: 13, 128: 19}
    blocks = np.array([representative[min(128, max(16, block_of(n)))] for n in range(64)])
    blocks[0] = blocks[0] if kind == "tf32" else 0
    stages[mma] = blocks[np.clip(stages, 0, 63)][mma]
    family[mma] = 21 if kind == "tf32" else 24
    reduced = np.isin(family, (20, 21, 22, 24, 35, 36, 43, 55, 63, 66)) & (splits > 0)
    reduction[reduced & ((splits == 1) | (kind not in ("fp16", "bf16")))] = 0
    custom[(family == 66) | plain] = 0
    stages[family == 66], stages[plain] = 35, 0
    stages[(family == 63) & (splits == 1)] = 15
    return out


def training_set(folder: Path, name: str, seeds: list[int]) -> tuple[Any, ...]:
    """Shapes, flags (layout and bf16), classes and their configurations for a network."""
    which = [n for n, (kind, _) in enumerate(KINDS) if NETWORKS[kind] == name]
    shapes, flags, tables, indices = [], [], [], []
    for seed in seeds:
        drawn = draw(seed, COUNT)
        for n in which:
            kind, layout = KINDS[n]
            with np.load(folder / f"answers-{seed}-{n // PER_FILE}.npz") as data:
                table, index = data[f"{n} table"], data[f"{n} index"]
            tables.append(np.c_[smooth(table[:, :5], kind), table[:, 5:]])
            indices.append(index)
            shapes.append(drawn[n :: len(KINDS)][: len(index)])
            flags.append(np.broadcast_to(np.array([layout == "TN", kind == "bf16"], np.float32), (len(index), 2)))
    rows = np.concatenate(tables)
    every, to = np.unique(rows[:, :-1], axis=0, return_inverse=True)
    blocks = np.zeros(len(every), np.int32)
    np.maximum.at(blocks, to.ravel(), rows[:, -1])  # those of a wave, also for products that have fewer
    every = np.c_[every, blocks]
    starts = np.cumsum([0, *map(len, tables)])
    y = np.concatenate([to.ravel()[start:][index] for start, index in zip(starts, indices, strict=False)])
    common = np.bincount(y, minlength=len(every)) >= RARE
    common[every[:, 0] < 0] = False
    number = np.where(common, np.cumsum(common), 0)  # class 0: rare ones
    every[every[:, 0] != STREAM_K, 5] = 0
    configurations = np.concatenate([np.full((1, len(FIELDS)), -1), every[common]]).astype(np.int16)
    return np.concatenate(shapes), np.concatenate(flags), number[y], configurations


def train(folder: Path, name: str, seeds: list[int], networks: list[tuple[int, int, float]]) -> None:
    """Train the networks of a type on this GPU: of each the width, bits of a weight and seconds."""
    import torch

    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    shapes, flags, y, configurations = training_set(folder, name, seeds)
    x = torch.empty((len(shapes), features(np.ones((1, 3)), np.zeros((1, 2))).shape[1]), dtype=torch.float32)
    for start in range(0, len(shapes), 1 << 18):
        part = slice(start, start + (1 << 18))
        sizes, two = (torch.asarray(a[part], dtype=torch.float64) for a in (shapes, flags))
        x[part] = features(sizes, two, torch)
    some = x[:: max(1, len(x) // 1_000_000)]
    mean, deviation = some.mean(0), some.std(0) + 1e-3
    for start in range(0, len(x), 1 << 20):
        x[start : start + (1 << 20)].sub_(mean).div_(deviation)
    labels = torch.asarray(y.astype(np.int64))
    arrays = {"mean": mean.cpu().numpy(), "deviation": deviation.cpu().numpy(), "configurations": configurations}
    print(f"{name}: {len(x):,} answers, {len(configurations)} classes", flush=True)
    for n, (width, bits, seconds) in enumerate(networks):
        layers = _trained(torch, x, labels, len(configurations), width, bits, seconds, seed=n)
        for i, (weight, step, bias) in enumerate(layers):
            parts = {"weight": weight, "step": step, "bias": bias}
            arrays |= {f"{n} {i} {part}": array for part, array in parts.items()}
        np.savez_compressed(folder / f"network-{name}.npz", **{f"{name} {k}": a for k, a in arrays.items()})


def _trained(torch: Any, x: Any, y: Any, classes: int, width: int, bits: int, seconds: float, seed: int) -> list[Any]:
    """The layers of a network: integer weights, the step of each row, and biases. Adam; the weights are rounded to
    their integers from the middle of the training on; the first layer has 8 bits."""
    torch.manual_seed(seed)
    sizes = (x.shape[1], width, width, width, NARROW, classes)
    shape = list(zip(sizes[1:], sizes[:-1], strict=True))
    weights = [
        (torch.randn(s) * (2 if i < 3 else 1) ** 0.5 / s[1] ** 0.5).requires_grad_() for i, s in enumerate(shape)
    ]
    biases = [torch.zeros(s[0], requires_grad=True) for s in shape]
    levels = [127, *[2 ** (bits - 1) - 1] * 4]
    rate = torch.tensor(0.0)
    given: dict[str, Any] = {"fused": True, "capturable": True} if x.is_cuda else {}
    optimizer = torch.optim.Adam([*weights, *biases], lr=rate, **given)
    chosen = torch.zeros(BATCH, dtype=torch.int64)
    total = torch.zeros(())

    def steps_of(i: int) -> Any:
        return weights[i].detach().abs().amax(1, keepdim=True) / levels[i]

    def step(rounded: bool) -> None:
        optimizer.zero_grad(set_to_none=True)
        h = x[chosen]
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            w = weight
            if rounded:
                w = weight + (torch.round(weight / steps_of(i)) * steps_of(i) - weight).detach()
            kind = torch.float32 if i == 0 else torch.bfloat16
            h = torch.nn.functional.linear(h.to(kind), w.to(kind), bias.to(kind))
            h = torch.nn.functional.silu(h) if i < 3 else h
        loss = torch.nn.functional.cross_entropy(h.float(), y[chosen])
        loss.backward()
        optimizer.step()
        total.mul_(0.99).add_(0.01 * loss.detach())

    def recorded(rounded: bool) -> Any:
        """The step as a CUDA graph."""
        if not x.is_cuda:
            return lambda: step(rounded)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(rounded)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            step(rounded)
        return graph.replay

    chosen.random_(len(x))
    plain, integer = recorded(False), recorded(True)
    began, count, done = time.time(), 0, 0.0
    while done < 1:
        if count % 20 == 0:
            if x.is_cuda:
                torch.cuda.synchronize()
            done = (time.time() - began) / seconds
            rate.fill_(RATE * min(1.0, count / 500) * max(1e-3, 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0))))
        chosen.random_(len(x))
        (plain if done < 0.5 else integer)()
        count += 1
    print(f"width {width}, {bits} bits: {count} steps of {BATCH}, loss {total.item():.4f}", flush=True)
    out = []
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        integers = torch.round(weight.detach() / steps_of(i)).to(torch.int8)
        out.append(tuple(a.cpu().numpy() for a in (integers, steps_of(i)[:, 0], bias.detach())))
    return out


def recorded(folder: Path) -> dict[str, Any]:
    """The arrays of `fpemu.library.model.Layers`: the answers of all numbers of rows as runs of one configuration."""
    pairs = layers()
    out: dict[str, Any] = {"layers": np.array(pairs, np.int32), "most rows": np.array(MOST_ROWS)}
    for n, (kind, layout) in enumerate(LAYER_KINDS):
        sizes, answers = _answers(folder / "layers", n, layout, rows(pairs)[:: len(LAYER_KINDS)])
        found = canonical(answers, sizes[:, 2], _narrow(kind))
        new = (np.diff(found, axis=0, prepend=-1) != 0).any(axis=1)
        new[::MOST_ROWS] = True
        at = np.flatnonzero(new)
        table, row = np.unique(found[at], axis=0, return_inverse=True)
        parts = {"layer": at // MOST_ROWS, "first": at % MOST_ROWS + 1, "row": row.ravel()}
        out |= {f"{kind} {layout} layers {name}": values.astype(np.uint16) for name, values in parts.items()}
        out[f"{kind} {layout} layers configurations"] = table.astype(np.int16)
    return out


def _answers(file: Path, n: int, layout: str, shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first shapes, those that have answers of `collect` for one type and layout, and their configurations."""
    with np.load(file.with_name(f"{file.name}-{n // PER_FILE}.npz")) as data:
        answers = data[f"{n} table"][data[f"{n} index"]]
    shapes = shapes[: len(answers)].astype(np.int64)
    return shapes, with_slices(answers, layout, shapes)


def _narrow(kind: str) -> str:
    """The type with 16-bit results, whose orders are distinguished by more fields."""
    return f"{kind}->{kind}" if kind in ("fp16", "bf16") else kind


def build(folder: Path, seeds: list[int]) -> None:
    """Write ``model.npz`` with the networks, the thresholds of held-out answers and the layers; print their shares.

    Held-out answers are those of `seeds`, which no network has seen.
    """
    arrays = recorded(folder)
    for name in dict.fromkeys(NETWORKS.values()):
        with np.load(folder / f"network-{name}.npz") as data:
            arrays |= {part: data[part] for part in data.files}
    file = folder / "model.npz"
    arrays |= {f"{kind} {layout} threshold": np.array(0.0) for kind, layout in KINDS}
    np.savez_compressed(file, **arrays)
    drawn = {seed: draw(seed, COUNT) for seed in seeds}
    for n, (kind, layout) in enumerate(KINDS):
        load.cache_clear()
        held = (_answers(folder / f"answers-{seed}", n, layout, drawn[seed][n :: len(KINDS)]) for seed in seeds)
        shapes, answers = (np.concatenate(parts)[:HELD_OUT] for parts in zip(*held, strict=True))
        model = load(file, kind, layout)
        assert model is not None
        votes = [model.votes(part, _narrow(kind)) for part in np.array_split(shapes, 60)]
        rows, share = (np.concatenate(part) for part in zip(*votes, strict=True))
        right = (rows == canonical(answers, shapes[:, 2], _narrow(kind))).all(axis=1)
        best = np.argsort(-share, kind="stable")
        wrong = np.cumsum(~right[best]) / np.arange(1, len(best) + 1)
        last = np.flatnonzero(wrong <= WRONG)[-1]
        arrays[f"{kind} {layout} threshold"] = share[best[last]]
        print(f"{kind} {layout}: right {right.mean():.4f}, answered {(last + 1) / len(best):.4f}", flush=True)
    np.savez_compressed(file, **arrays)


def changes(libraries: list[str], count: int = 20_000) -> None:
    """Print, for each file of cuBLASLt, the share of random shapes whose order differs from that of the first file."""
    shapes = draw(99, count)
    first: list[np.ndarray] = []
    for library in libraries:
        with ProcessPoolExecutor(len(KINDS)) as pool:
            answers = list(pool.map(_queried, KINDS, [library] * len(KINDS), [shapes] * len(KINDS)))
        orders = [canonical(x, shapes[:, 2], kind) for x, (kind, _) in zip(answers, KINDS, strict=True)]
        first = first or orders
        shares = ((a != b).any(axis=1).mean() for a, b in zip(orders, first, strict=True))
        print(library, *(f"{k} {layout} {x:.4f}" for (k, layout), x in zip(KINDS, shares, strict=True)), flush=True)


def _queried(of: tuple[str, str], library: str, shapes: np.ndarray) -> np.ndarray:
    rows = Heuristic(*of, path=library)(shapes)
    return with_slices(rows[:, [HEURISTIC_FIELDS.index(name) for name in FIELDS]], of[1], shapes)


def _save(file: Path, arrays: dict[str, Any]) -> None:
    """Write an .npz file compressed by LZMA, a fifth smaller than by numpy.savez_compressed."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("collect", "layers", "train", "build", "changes"))
    parser.add_argument("folder", type=Path, help="folder of the answers and networks")
    parser.add_argument("--seconds", type=float, default=120, help="collect: time of the queries")
    parser.add_argument(
        "--seeds",
        default="1",
        help="seeds of the shapes: one to collect; those of the training; other ones for the thresholds",
    )
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--network", choices=sorted(set(NETWORKS.values())), help="train: the type")
    parser.add_argument(
        "--sizes", default="768:6:60", help="train: width, bits of a weight and seconds of each network"
    )
    parser.add_argument("--libraries", default="", help="changes: files of cuBLASLt, separated by commas")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.step == "collect":
        collect(given.folder / f"answers-{seeds[0]}", draw(seeds[0], COUNT), KINDS, given.seconds, given.threads)
    elif given.step == "layers":
        collect(given.folder / "layers", rows(layers()), LAYER_KINDS, given.seconds, given.threads)
    elif given.step == "train":
        sizes = [size.split(":") for size in given.sizes.split(",")]
        train(given.folder, given.network, seeds, [(int(w), int(b), float(t)) for w, b, t in sizes])
    elif given.step == "changes":
        changes(given.libraries.split(","))
    else:
        build(given.folder, seeds)


if __name__ == "__main__":
    main()
