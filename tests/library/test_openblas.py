"""OpenBLAS's orders: recorded products of every kernel, the OpenBLAS that NumPy carries, and the summation trees."""

import gzip
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fpemu import probing, simt
from fpemu.errors import InputError
from fpemu.library import emulate, openblas
from fpemu.library.openblas import Lanes
from fpemu.library.tables import digest_of, operands
from fpemu.mma.tree import canonical
from tests import hostile
from tests.hostile import bits, carrier
from tests.library.numpy_blas import NumpyBlas, paths

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "openblas_products.json.gz").read_bytes()))
ENTRIES = {f"{entry['kernel']}-{entry['version']}": entry for entry in RECORDED["kernels"]}
FORMATS = {"sgemm": "fp32", "dgemm": "fp64"}
DTYPES = {"sgemm": np.float32, "dgemm": np.float64}


def product(entry, routine, layout, M, N, K):
    A, B = operands(FORMATS[routine], M, N, K, RECORDED["seed"])
    return emulate("openblas", A, B, hardware=entry["kernel"], version=entry["version"], layout=layout)


@pytest.mark.parametrize("name", ENTRIES)
def test_recorded_products_are_replayed_bit_for_bit(name):
    entry = ENTRIES[name]
    assert len(entry["products"]) >= 50
    wrong = [row for *row, digest in entry["products"] if digest_of(product(entry, *row)) != digest]
    assert not wrong
    for *row, codes in entry["bits"]:
        D = product(entry, *row)
        assert D.astype(D.dtype.newbyteorder(">")).tobytes().hex() == codes, row


def test_every_kernel_of_the_table_has_recorded_products():
    assert {entry["kernel"] for entry in RECORDED["kernels"]} == set(openblas.kernels())


# --- the OpenBLAS that NumPy carries

CHILD = """
import json, sys
import numpy as np
from tests.library.test_openblas import drawn, numpys_openblas
library, outputs = numpys_openblas(), {}
for n, (dtype, layout, M, N, K) in enumerate(json.load(sys.stdin)):
    A, B = drawn(n, dtype, M, N, K)
    outputs[f"cblas{n}"] = library.multiply(A, B, layout)
    if min(M, N) > 1:
        outputs[f"numpy{n}"] = A @ (np.ascontiguousarray(B.T).T if layout == "TN" else B)
np.savez(sys.argv[1], kernel=library.kernel, version=library.version, **outputs)
"""


def drawn(seed, dtype, M, N, K):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (M, K)).astype(dtype), rng.uniform(-1, 1, (K, N)).astype(dtype)


def cases(kernel, version, count, seed=7):
    """Shapes with every edge from 1 to 70, K near multiples of a panel, and blocks of more than one GEMM_P."""
    rng = np.random.default_rng(seed)
    out = []
    for n in range(count):
        routine = ("sgemm", "dgemm")[n % 2]
        q = openblas.blocking(routine, kernel, version).q
        M, N = (int(x) for x in rng.integers(1, 71, 2))
        K = int(rng.choice([rng.integers(1, 100), rng.integers(1, 2500), q * rng.integers(1, 4) + rng.integers(-2, 3)]))
        if n % 20 < 2:
            M, N, K = int(rng.integers(1, 60)), int(rng.integers(300, 800)), min(K, 300)
        if n % 20 in (2, 3):
            M, N, K = int(rng.integers(300, 800)), int(rng.integers(1, 60)), min(K, 300)
        if n % 20 in (4, 5):
            M, N, K = int(rng.integers(80, 260)), int(rng.integers(80, 260)), min(K, 600)
        out.append((DTYPES[routine].__name__, ("NN", "TN")[n // 2 % 2], M, N, K))
    return out


@cache
def numpys_openblas():
    for path in paths():
        return NumpyBlas(path)
    pytest.skip("NumPy's BLAS is not OpenBLAS: numpy.show_config() names it")


@pytest.mark.parametrize(
    "kernel",
    [
        "Haswell",
        "SkylakeX",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("Zen", "Cooperlake", "Sandybridge")),
    ],
)
def test_numpys_openblas_with_each_kernel(kernel, tmp_path):
    numpys_openblas()
    features = np._core._multiarray_umath.__cpu_features__
    if not features.get({"SkylakeX": "AVX512_SKX", "Cooperlake": "AVX512_SKX"}.get(kernel, "FMA3")):
        pytest.skip(f"the processor lacks instructions of OpenBLAS's {kernel} kernel")
    known, path = openblas.kernels(), tmp_path / "products.npz"
    version = numpys_openblas().version
    shapes = cases(kernel, None, 120)
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(path)]
    root = Path(__file__).parents[2]
    subprocess.run(command, input=json.dumps(shapes), text=True, env=environment, cwd=root, check=True, timeout=300)
    products = np.load(path)
    used = str(products["kernel"])  # a library without the kernel takes a similar one
    if version not in known.get(used, []):
        pytest.skip(f"the table has no orders of OpenBLAS {version} with kernel {used}")
    for n, (dtype, layout, M, N, K) in enumerate(shapes):
        A, B = drawn(n, dtype, M, N, K)
        D = emulate("openblas", A, B, hardware=used, version=version, layout=layout)
        for source in ("cblas", "numpy"):
            if f"{source}{n}" in products:
                assert products[f"{source}{n}"].tobytes() == D.tobytes(), (source, used, dtype, layout, M, N, K)


def test_strides_choose_the_layout():
    A, B = drawn(0, "float32", 10, 17, 200)
    column_major = np.ascontiguousarray(B.T).T
    for given, layout in ((B, "NN"), (column_major, "TN")):
        D = emulate("openblas", A, given, hardware="SKYLAKEX")
        assert D.tobytes() == emulate("openblas", A, B, hardware="SKYLAKEX", layout=layout).tobytes()
    D, other = (emulate("openblas", A, B, hardware="SKYLAKEX", layout=layout) for layout in ("NN", "TN"))
    assert not np.array_equal(D, other), "small products have different orders in the two layouts"


# --- the evaluator


@pytest.mark.parametrize("routine", FORMATS)
@pytest.mark.parametrize("kernel", ["TSV110", "HASWELL", "SKYLAKEX", "SANDYBRIDGE"])
@pytest.mark.parametrize("kind", [k for k in hostile.CLASSES if k != "staircase"])
def test_reference_and_compiled_implementation_agree(kernel, routine, kind):
    name, rng = FORMATS[routine], np.random.default_rng(len(kind))
    M, N, K = (13, 21, 41) if name == "fp32" else (5, 9, 34)
    A = carrier(hostile.draw(name, kind, rng, (M, K)), name)
    B = carrier(hostile.draw(name, kind, rng, (N, K)), name).T
    blocks = openblas.blocking(routine, kernel, "0.3.21")
    for layout in ("NN", "TN"):
        compiled, reference = (
            openblas.multiply(A, B, blocks, layout=layout, backend=backend) for backend in ("compiled", "numpy")
        )
        assert (bits(compiled) == bits(reference)).all()


@pytest.mark.parametrize(
    ("kernel", "routine", "shape", "layout", "rows", "columns", "count"),
    [
        ("TSV110", "sgemm", (3, 4, 2100), "NN", [0, 2], [0, 3], 1),
        ("HASWELL", "sgemm", (16, 45, 700), "NN", [0, 6, 12, 15], [0, 8, 39, 44], 2),
        ("HASWELL", "dgemm", (13, 9, 300), "TN", [0, 12], [0, 7, 8], 2),
        ("SKYLAKEX", "sgemm", (9, 23, 77), "NN", [0, 8], [0, 16, 20, 22], 3),
        ("SKYLAKEX", "dgemm", (9, 11, 50), "TN", [0, 8], [0, 8, 10], 2),
        ("SKYLAKEX", "dgemm", (26, 207, 390), "NN", [0, 23, 24], [0, 200, 206], 3),
    ],
)
def test_trees_reproduce_the_elements(kernel, routine, shape, layout, rows, columns, count):
    M, N, K = shape
    A, B = drawn(1, DTYPES[routine], M, N, K)
    blocks = openblas.blocking(routine, kernel, "0.3.21")
    D = openblas.multiply(A, B, blocks, layout=layout)
    trees = set()
    for i in rows:
        for j in columns:
            order = openblas.tree(blocks, shape, (i, j), layout=layout)
            trees.add(order)
            element = simt.gemm(A[i : i + 1], B[:, j : j + 1], fmt=FORMATS[routine], order=order)
            assert element.tobytes() == D[i, j].tobytes(), (i, j)
    assert len(trees) == count


def test_probes_of_a_product_show_its_tree():
    blocks = openblas.blocking("sgemm", "HASWELL", "0.3.21")
    found = probing.reveal(lambda A, B: openblas.multiply(A, B, blocks), 44, simt.SPECS["fp32"], shape=(4, 24))
    assert found.tree == canonical(openblas.tree(blocks, (4, 24, 44)), True)


def test_panels():
    def lengths(kernel, routine, K):
        return openblas.blocking(routine, kernel, "0.3.21").panels(K)

    assert lengths("TSV110", "sgemm", 3000) == [1024, 992, 984]
    assert lengths("ARMV8", "sgemm", 704) == [352, 352]
    assert lengths("ARMV8", "sgemm", 703) == [352, 351]
    assert lengths("COOPERLAKE", "sgemm", 3000) == [320] * 8 + [224, 216]
    assert lengths("SKYLAKEX", "sgemm", 3000) == [448] * 5 + [384, 376]
    assert lengths("HASWELL", "dgemm", 2000) == [256] * 6 + [232, 232]


def test_reductions_of_interleaved_chains():
    def text(x, y):
        return f"({x}{y})"

    assert Lanes(4, 4).reduce(list("0123"), text) == "((01)(23))"
    assert Lanes(4, 4, "zeros", "halves").reduce(list("0123"), text) == "((02)(13))"


# --- arguments


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_products_are_zero(shape):
    M, N, K = shape
    D = emulate("openblas", np.ones((M, K)), np.ones((K, N)), hardware="HASWELL")
    assert D.shape == (M, N)
    assert not D.any()


def test_names_of_kernels_and_versions():
    A, B = drawn(2, "float64", 4, 5, 600)
    D = emulate("openblas", A, B, hardware="HASWELL", version="0.3.31")
    for hardware, version in (("Haswell", "0.3.31.188.0"), ("haswell", None)):
        assert emulate("openblas", A, B, hardware=hardware, version=version).tobytes() == D.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hardware": None}, "give the kernel as hardware=, one of ARMV8"),
        ({"hardware": "TSV111"}, "unknown kernel of openblas 'TSV111': did you mean 'TSV110'"),
        ({"version": "0.3.22"}, "unknown version of openblas with kernel TSV110 '0.3.22'.* known: 0.3.21"),
        ({"library": "openblass"}, "did you mean 'openblas'"),
        ({"layout": "TT"}, "layout"),
        ({"device": "x"}, "unknown device 'x'"),
        ({"device": "x", "rows": 0}, "unknown device 'x'"),
        ({"dtype": np.float16}, "openblas has no products of type fp16: float32 or float64"),
        ({"fmt": "tf32"}, "openblas has no products of type tf32"),
        ({"out": "fp16"}, "no fp32 products with fp16 results"),
        ({"hardware": "SANDYBRIDGE", "device": "cuda"}, "SANDYBRIDGE has no fused multiply-adds"),
        ({"version": "0.3.31", "rows": 1}, "gemv computes a product with M = 1 and N = 3"),
        ({"hardware": "HASWELL", "version": "0.3.31", "rows": 150_001}, "A has 150001 rows, .* up to 150000"),
    ],
)
def test_wrong_arguments(change, message):
    given = {"library": "openblas", "hardware": "TSV110", "version": "0.3.21", **change}
    rows, dtype = given.pop("rows", 4), given.pop("dtype", np.float32)
    with pytest.raises(InputError, match=message):
        emulate(given.pop("library"), np.ones((rows, 2), dtype), np.ones((2, 3), dtype), **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: openblas.blocking("cgemm", "HASWELL"), "unknown routine 'cgemm'"),
        (lambda: openblas.tree(openblas.blocking("sgemm", "HASWELL"), (2, 2, 4), (2, 0)), "the row in at = 2"),
        (lambda: openblas.tree(openblas.blocking("sgemm", "HASWELL"), (2, 2, 0)), "shape = .2, 2, 0. must be 3"),
        (lambda: openblas.tree(openblas.blocking("sgemm", "SANDYBRIDGE"), (4, 4, 4)), "which SANDYBRIDGE does not use"),
    ],
)
def test_arguments_outside_of_the_table_or_the_product(call, message):
    with pytest.raises(InputError, match=message):
        call()
