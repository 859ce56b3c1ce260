"""Recorded runs: files, the first difference of two runs and its cause, and the orders of one run's products."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import fpemu
from fpemu import _system, formats
from fpemu.cli import main
from fpemu.conformance import replay, runs
from fpemu.errors import InputError
from fpemu.mma import KOrder

H200 = {"hardware": "H200", "torch": "2.11"}


def codes(x, kind):
    """The bytes of values of a format, as in the memory of a GPU."""
    fmt = formats.get(kind)
    return np.ascontiguousarray(fmt.encode(x) if kind in ("bf16", "e4m3") else x)


def words(x):
    content = x.tobytes()
    return np.frombuffer(content + bytes(-len(content) % 8), np.uint64)


class Run:
    """A run of NumPy's arrays, as `fpemu.torch.record` writes one of tensors."""

    def __init__(self, folder, **options):
        self.writer = runs.RunWriter(folder, H200, **options)
        self.count = 0

    def add(self, D, A, B, C=None, *, kinds=("bf16", "bf16", "bf16"), rows=16, columns=64, scales=(), **fields):
        scales = dict(zip(("scale_a", "scale_b"), scales, strict=False))
        types = dict(zip("ABD", kinds, strict=True)) | {"C": kinds[2], "scale_a": "fp32", "scale_b": "fp32"}
        arrays = {name: x for name, x in {"A": A, "B": B, "C": C, "D": D, **scales}.items() if x is not None}
        coded = {name: codes(x, types[name]) for name, x in arrays.items()}
        operands = {
            name: {"type": types[name], "shape": [*x.shape], "strides": [x.shape[1], 1],
                   "digest": _system.digest_text(words(x))}
            for name, x in coded.items()
        }  # fmt: skip
        (M, K), N = A.shape, B.shape[1]
        r, c = runs.sampled(M, rows), runs.sampled(N, columns)
        index = {"A": (r, slice(None)), "B": (slice(None), c), "C": np.ix_(r, c), "D": np.ix_(r, c)}
        for name, lines, axis in (("scale_a", r, 0), ("scale_b", c, 1)) if scales else ():
            of = lines if scales[name].shape[axis] == (M, N)[axis] else lines // 128
            index[name] = (of, slice(None)) if axis == 0 else (slice(None), of)
        samples = {name: x[index[name]] for name, x in coded.items()}
        product = runs.Recorded(
            self.count, "mm", (M, N, K), operands, "layer", beta=0.0 if C is None else 1.0,
            flags={"device": "cuda"} | fields, rows=tuple(r.tolist()), columns=tuple(c.tolist()),
            row_digests=tuple(_system.digest_text(words(coded["D"][i])) for i in r),
        )  # fmt: skip
        self.count += 1
        content = {name: (runs.CODES[types[name]], x.shape, x.tobytes()) for name, x in samples.items()}
        self.writer.add(product, content)
        self.writer.flush()


def operands(M, N, K, seed, kind="bf16"):
    return fpemu.inputs.operands("normal", M, N, K, seed=seed, dtype=kind)


def product(A, B, order=None, kind="bf16", out="bf16"):
    D = fpemu.mma.gemm(A, B, None, fpemu.mma.spec("H200", kind), order)
    return D if out == "fp32" else fpemu.round_to(D, out).astype(np.float32)


def test_the_files_hold_the_samples(tmp_path):
    A, B = operands(40, 100, 64, 1)
    D = product(A, B)
    run = Run(tmp_path / "run")
    run.add(D, A, B)
    run.add(D[:20], A[:20], B)  # its B is stored already
    first, second = runs.read(tmp_path / "run")
    assert (first.index, first.sizes, first.about, second.sizes) == (0, (40, 100, 64), H200, (20, 100, 64))
    rows, columns = [list(x) for x in (first.rows, first.columns)]
    assert (rows[:8], rows[-1], len(rows), columns[-1], len(columns)) == ([*range(8)], 39, 16, 99, 64)
    assert (first.sample("A") == A[rows]).all()
    assert (first.sample("D") == D[np.ix_(rows, columns)]).all()
    assert (second.sample("B") == B[:, columns]).all()
    assert first.sample("C") is None
    with pytest.raises(InputError, match="holds a run already"):
        Run(tmp_path / "run")
    with pytest.raises(InputError, match="holds no run"):
        runs.read(tmp_path)


@pytest.mark.parametrize(
    ("length", "count", "expected"), [(5, 9, [0, 1, 2, 3, 4]), (5, 1, [0]), (5, 2, [0, 4]), (9, 3, [0, 1, 8])]
)
def test_sampled_rows(length, count, expected):
    assert runs.sampled(length, count).tolist() == expected
    assert set(runs.sampled(1000, 16).tolist()) >= {*range(8), 999}


def test_an_interrupted_run_is_read_to_its_last_complete_product(tmp_path):
    A, B = operands(8, 8, 32, 1)
    run = Run(tmp_path)
    run.add(product(A, B), A, B)
    length = (tmp_path / "00000.run").stat().st_size
    run.add(product(A, B, KOrder(16)), A, B)
    content = (tmp_path / "00000.run").read_bytes()
    for end in range(length, len(content), 37):
        (tmp_path / "00000.run").write_bytes(content[:end])
        assert len(runs.read(tmp_path)) == 1
    (tmp_path / "00000.run").write_bytes(content)
    assert len(runs.read(tmp_path)) == 2
    (tmp_path / "00000.run").write_bytes(b"{}\n{")
    assert runs.read(tmp_path) == []
    (tmp_path / "00000.run").write_bytes(b"other")
    with pytest.raises(InputError, match="is no file of a run"):
        runs.read(tmp_path)


@pytest.mark.parametrize(("keep", "last"), [("first", False), ("last", True)])
def test_the_limit_of_disk_space(tmp_path, keep, last):
    A, B = operands(16, 16, 64, 1)
    run, limit = Run(tmp_path, limit=2**16, keep=keep), 2**16
    for _ in range(100):
        run.add(product(A, B), A, B)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.run"))
    kept = [p.index for p in runs.read(tmp_path)]
    assert limit / 2 < size < 2 * limit
    assert kept == [*range(kept[0], kept[-1] + 1)]
    assert ((kept[0], kept[-1] < 99, run.writer.dropped > 0) == (0, True, True)) is not last
    assert (kept[-1] == 99) is last
    assert runs.read(tmp_path)[-1].sample("B").shape == (64, 16)  # every file can be read alone


def two_runs(folder, first, second, *, equal=2):
    """Two runs with some equal products, and then a given product each."""
    for name, last in (("one", first), ("two", second)):
        run = Run(folder / name)
        for seed in range(equal):
            A, B = operands(32, 48, 256, seed)
            run.add(product(A, B), A, B)
        last(run)
    return folder / "one", folder / "two"


@pytest.mark.parametrize(
    ("order", "text"), [(KOrder(split=512), "split in slices of 512"), (KOrder(promote=128), "split in slices of 128")]
)
def test_a_planted_order_is_found(tmp_path, order, text):
    def several(order):
        def add(run):
            for seed in (7, 8, 9):  # layers of one shape, of which one alone would have several explanations
                A, B = operands(16, 256, 2048, seed)
                run.add(product(A, B, order), A, B, columns=256)

        return add

    found = replay.compare_runs(*two_runs(tmp_path, several(None), several(order)))
    assert (found.compared, found.unaligned, found.rows, found.before) == (3, (0, 0), 0, None)
    assert found.first[0].index == 2
    assert "one chain" in found.explanations[0].text
    assert text in found.explanations[1].text
    length = order.split or order.promote
    assert found.explanations[1].specification.order in (KOrder(length), KOrder(promote=length))  # the same order


def test_rows_of_two_batch_sizes_are_compared(tmp_path):
    A, B = operands(64, 128, 2048, 3, "fp16")
    kinds = ("fp16", "fp16", "fp32")
    paths = two_runs(
        tmp_path,
        lambda run: run.add(product(A[:8], B, KOrder(1024), "fp16", "fp32"), A[:8], B, kinds=kinds),
        lambda run: run.add(product(A, B, None, "fp16", "fp32"), A, B, kinds=kinds),
    )
    found = replay.compare_runs(*paths)
    assert (found.compared, found.rows) == (3, 8)
    assert "split in slices of 1024" in found.explanations[0].text
    assert "one chain" in found.explanations[1].text


def test_rows_with_another_addend_are_not_compared(tmp_path):
    A, B = operands(64, 128, 64, 3)
    C = np.zeros((64, 128), np.float32)
    other = C.copy()
    other[4:, 1] = 1

    def add(A, C):
        return lambda run: run.add(
            fpemu.round_to(product(A, B, out="fp32") + C, "bf16").astype("f4"), A, B, C, columns=128
        )

    found = replay.compare_runs(*two_runs(tmp_path / "a", add(A[:8], C[:8]), add(A, other)), seconds=0)
    assert (found.compared, found.first) == (3, None)  # rows 0 to 3 have equal addends
    found = replay.compare_runs(*two_runs(tmp_path / "b", add(A, C), add(A, other)), seconds=0)
    assert (found.compared, found.before[0].index) == (2, 2)


def test_tf32_is_found_with_its_setting(tmp_path, capsys):
    A, B = operands(16, 64, 256, 5, "fp32")
    kinds = ("fp32", "fp32", "fp32")
    rounded = [fpemu.round_to(x, "tf32").astype(np.float32) for x in (A, B)]
    paths = two_runs(
        tmp_path,
        lambda run: run.add(fpemu.simt.gemm(A, B), A, B, kinds=kinds, allow_tf32=False),
        lambda run: run.add(product(*rounded, None, "tf32", "fp32"), A, B, kinds=kinds, allow_tf32=True),
    )
    assert main(["compare", *map(str, paths)]) == 1
    text = capsys.readouterr().out
    assert "setting allow_tf32: False in run 1, True in run 2" in text
    assert text.splitlines()[-1] == "run 2: hopper wgmma m64nNk8 tf32->fp32, one chain, A and B rounded to tf32 by RNE"
    assert main(["replay", str(paths[1])]) == 0
    assert "1 of 1 reproduced: product 2 in layer mm: fp32 fp32 fp32 16 × 64 × 256" in capsys.readouterr().out


def test_equal_runs_and_different_operands(tmp_path, capsys):
    A, B = operands(8, 16, 64, 5)
    other = A.copy()
    other[:, 0] = 1

    def two(x):
        return lambda run: run.add(product(x, B), x, B)

    paths = two_runs(tmp_path / "a", two(A), two(A))
    assert replay.compare_runs(*paths).equal
    assert main(["compare", *map(str, paths), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared"] == 3
    found = replay.compare_runs(*two_runs(tmp_path / "b", two(A), two(other)))
    assert (found.compared, found.first, found.before[0].index) == (2, None, 2)
    assert "first different operands: A of product 2" in str(found)
    # a product more in one run
    found = replay.compare_runs(
        *two_runs(tmp_path / "c", two(A), lambda run: (two(A)(run), run.add(product(A.T.copy(), A), A.T.copy(), A)))
    )
    assert (found.compared, found.unaligned, found.equal) == (3, (0, 1), True)


def test_replay_explains_each_kind_of_product(tmp_path, capsys):
    run = Run(tmp_path)
    for seed in range(4):
        A, B = operands(16, 64, 512, seed)
        D = product(A, B, KOrder(128) if seed % 2 else None, out="fp32")
        run.add(D, A, B, kinds=("bf16", "bf16", "fp32"))
    A, B = operands(16, 64, 96, 1)
    C = np.full((16, 64), 0.5, np.float32)
    D = fpemu.round_to(product(A, B, None, out="fp32") + C, "bf16").astype(np.float32)
    run.add(D, A, B, C)
    D[3, 0] += 1
    run.add(D[:8], A[:8], B)
    assert main(["replay", str(tmp_path), "--seconds", "1", "--json"]) == 1
    first, addend, broken = json.loads(capsys.readouterr().out)
    assert (first["count"], first["explained"], len(first["texts"])) == (4, 4, 2)
    assert (addend["count"], addend["explained"]) == (1, 1)
    assert "beta = 1" in addend["texts"][0]
    assert (broken["count"], broken["explained"]) == (1, 0)


@pytest.mark.parametrize("block_of_b", [1, 128])
def test_scales_of_blocks_are_explained(tmp_path, block_of_b):
    A, B = operands(144, 272, 512, 1, "e4m3")
    rng = np.random.default_rng(2)
    a, b = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in ((144, 4), (4, -(-272 // block_of_b))))
    spec, kinds = fpemu.mma.spec("H200", "e4m3"), ("e4m3", "e4m3", "fp32")

    def add(scale=a, **options):
        D = fpemu.mma.scaled_gemm(A, B, scale, b, spec, block=128, **options)
        return lambda run: run.add(D, A, B, kinds=kinds, scales=(a, b))

    paths = two_runs(tmp_path, add(), add(fused=False), equal=0)
    (found,) = replay.replay_run(paths[0])
    rule = "(p a) b" if block_of_b == 1 else "(a b) p"
    assert (found.explained, found.texts[0].partition("the sum p of ")[2]) == (1, f"every 128 of k scaled as {rule}")
    found = replay.compare_runs(*paths)
    assert found.explanations[1].text.endswith(f"; a sum p is multiplied as {rule}, without FMA")
    add(np.roll(a, -1, axis=1))(run := Run(tmp_path / "three"))
    (p,) = runs.read(run.writer.folder)
    assert replay.explain(p).text.endswith("; the scales of A are those of the next block")


@pytest.mark.parametrize(
    ("K", "reason"), [(640, ": cuBLASLt reads scale_b in lines of 8 scales, and they are 5 apart"), (512, "")]
)
def test_scales_in_lines_of_no_multiple_of_four_are_the_reason(tmp_path, K, reason):
    A, B = operands(16, 272, K, 1, "e4m3")
    run, blocks = Run(tmp_path), -(-K // 128)
    run.add(A[:, :1] @ B[:1], A, B, kinds=("e4m3", "e4m3", "fp32"),
            scales=(np.ones((16, blocks), np.float32), np.ones((blocks, 3), np.float32)))  # fmt: skip
    (p,) = runs.read(tmp_path)
    p.operands["scale_b"]["strides"] = [1, blocks]
    assert re.fullmatch(rf"none of \d+ alternatives reproduces the sample{reason}", replay.explain(p).text)


def test_a_product_without_a_sample_has_a_reason(tmp_path):
    run = Run(tmp_path)
    A, B = operands(8, 8, 32, 1)
    run.add(product(A, B), A, B)
    (p,) = runs.read(tmp_path)
    assert replay.explain(replace(p, arrays={})).text == "no sample was recorded"
    assert replay.explain(replace(p, sizes=None)).text == "fused attention is not emulated"


@pytest.mark.parametrize("shape", [(64, 64, 4096), (43, 247, 2223)])
def test_replay_finds_the_order_of_cublas_without_a_search(tmp_path, shape):
    row = fpemu.library.lookup("cublas", "fp16", shape)
    A, B = (x.astype(np.float16) for x in operands(*shape, 3, "fp16"))
    run = Run(tmp_path)
    run.add(fpemu.library.predict(row, A, B), A, B, kinds=("fp16", "fp16", "fp32"), rows=32)
    (found,) = replay.replay_run(tmp_path, seconds=0)
    assert (found.count, found.explained) == (1, 1)
    of_a_kernel = replace(runs.read(tmp_path)[0], operator="triton")
    assert replay.explain(of_a_kernel, seconds=0).text == "none of the known orders"


def test_replay_rounds_a_sum_before_c_where_cublas_does(tmp_path):
    A, B = (x.astype(np.float16) for x in operands(64, 96, 512, 3, "fp16"))
    C = np.random.default_rng(4).standard_normal((64, 96)).astype(np.float16)
    D = fpemu.library.emulate("cublas", A, B, C, out="fp16")
    run = Run(tmp_path)
    run.add(D, A, B, C, kinds=("fp16", "fp16", "fp16"))
    (found,) = replay.replay_run(tmp_path, seconds=0)
    assert (found.explained, "epilogue = rounded" in found.texts[0]) == (1, True)
