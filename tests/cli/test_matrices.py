"""Matrix files: the matrices read, the files that raise, and that a written file reproduces every entry."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu.cli import main
from fpemu.cli import matrices as matrixio
from fpemu.errors import InputError

A = np.float32([[0.1, -2.5, 3e38], [1e-45, 0.0, -1e-3]])


pytestmark = pytest.mark.usefixtures("workdir")


@pytest.mark.parametrize("name", ["a.npy", "a.mtx", "a.MTX"])
@pytest.mark.parametrize("matrix", [A, np.eye(3), np.array([[0.1, 1 / 3], [5e-324, 1.7976931348623157e308]])])
def test_a_written_matrix_comes_back_bit_for_bit(name, matrix):
    matrixio.write(name, matrix)
    assert name == "a.npy" or b"array real general" in Path(name).read_bytes()  # symmetric ones are written in full
    back, note = matrixio.to_format(matrixio.read(name), name, {4: "fp32", 8: "fp64"}[matrix.itemsize])
    assert note is None
    assert back.tobytes() == matrix.tobytes()


def test_keys_of_an_archive():
    np.savez("one.npz", only=A)
    np.savez_compressed("two.npz", **{"a": A, "b:c": A[:1] / 2})
    np.savez("many.npz", **{f"array{i}": A for i in range(300)})
    assert (matrixio.read("one.npz") == A).all()
    assert (matrixio.read("two.npz:b:c") == A[:1] / 2).all()
    for name, complaint in (
        ("two.npz", r"holds 2 arrays.*a, b:c"),
        ("two.npz:c", "no array 'c': it holds a, b:c"),
        ("many.npz", r"holds 300 arrays.*array0.* and 292 more$"),
    ):
        with pytest.raises(InputError, match=complaint):
            matrixio.read(name)


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (A[0], r"shape \(3,\): a matrix has two axes"),
        (A[None], r"shape \(1, 2, 3\): a matrix has two axes"),
        (A[:0], "at least one entry"),
        (A + 1j, "complex"),
        (A > 0, "holds bool"),
        (np.array([["x", "y"]]), "holds <U1"),
    ],
)
def test_arrays_that_are_no_real_matrix(array, complaint):
    np.save("x.npy", array)
    with pytest.raises(InputError, match=complaint):
        matrixio.read("x.npy")


class _Bomb:
    def __reduce__(self):
        return (os.mkdir, ("bomb",))


def test_pickles_are_refused_unopened():
    np.save("object.npy", np.array([[_Bomb()]], dtype=object), allow_pickle=True)
    np.savez("object.npz", a=np.array([[_Bomb()]], dtype=object))
    with open("pickle.npy", "wb") as stream:
        pickle.dump(_Bomb(), stream)
    for name in ("object.npy", "object.npz"):
        with pytest.raises(InputError, match="Python objects"):
            matrixio.read(name)
    with pytest.raises(InputError, match="not an array written by numpy"):
        matrixio.read("pickle.npy")
    assert not os.path.exists("bomb")


def test_missing_files_and_folders():
    os.mkdir("folder.npy")
    for name in ("no.npy", "no.npz", "no.npz:a", "no.mtx", "folder.npy"):
        with pytest.raises(OSError, match=name.partition(":")[0]):
            matrixio.read(name)


@pytest.mark.parametrize(
    ("matrix", "fmt", "changed"),
    [
        (np.array([[0.1, 0.5, np.nan, np.inf, 1e-60]]), "fp32", 2),
        (np.float16([[65504.0, 6e-8]]), "fp32", 0),
        (np.array([[2**24 + 1, 3]]), "fp32", 1),
        (np.array([[0.1, 5e-324, np.nan], [1e300, -np.inf, -0.0]]), "fp64", 0),
        (np.array([[2**53 + 1, 2**53 + 2, 2**63 - 1]]), "fp64", 2),
        (np.array([[2**64 - 1, 2**64 - 2048]], np.uint64), "fp64", 1),
        (np.float32([[0.1]]), "fp64", 0),
    ],
)
def test_a_matrix_is_rounded_once_and_its_changed_entries_are_counted(matrix, fmt, changed):
    rounded, note = matrixio.to_format(matrix, "A.npy", fmt)
    assert rounded.tobytes() == matrix.astype({"fp32": np.float32, "fp64": np.float64}[fmt]).tobytes()
    expected = f"A.npy: {matrix.dtype} rounded to {fmt}, {changed} of {matrix.size} entries changed"
    assert note == (expected if changed else None)


def test_beyond_fp32_is_an_error_that_counts():
    with pytest.raises(InputError, match=r"A: beyond the range of fp32 in 1 of 2 entries, first at \[0, 1\]: 1e\+300"):
        matrixio.to_format(np.array([[1.0, 1e300]]), "A", "fp32")


def test_nan_has_no_place_in_matrix_market():
    with pytest.raises(InputError, match=r"no NaN or Inf \(1 of 2 entries, first at \[0, 1\]: nan\)"):
        matrixio.write("a.mtx", np.float32([[1, np.nan]]))
    assert os.listdir() == []


# --- sizes, before the entries are read


def _peak(call):
    """Bytes of memory that a call takes, and the message of its InputError."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as complaint:
            call()
        return tracemalloc.get_traced_memory()[1], str(complaint.value)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["zeros.npy", "fortran.npy", "zeros.npz:zeros", "zeros.mtx"])
def test_the_limit_holds_for_every_format_before_the_entries_are_read(name):
    zeros = np.zeros((2000, 1000))
    np.save("zeros.npy", zeros)
    np.save("fortran.npy", np.asfortranarray(zeros))
    np.savez_compressed("zeros.npz", other=zeros[:1], zeros=zeros)
    Path("zeros.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2000 1000 1\n1 1 0\n")
    assert matrixio.read(name, max_entries=2_000_000).shape == (2000, 1000)
    peak, message = _peak(lambda: matrixio.read(name, max_entries=1_999_999))
    assert message == f"{name} is 2000×1000: more entries than max_entries=1999999"
    assert peak < 1 << 20


def test_fortran_order_and_byte_order_are_read():
    for array in (
        np.asfortranarray(A),
        A.astype(">f8"),
        (A > 0).astype("<f2"),
        np.arange(6, dtype=">u2").reshape(2, 3),
    ):
        np.save("a.npy", array)
        np.savez_compressed("a.npz", array)
        for name in ("a.npy", "a.npz"):
            back = matrixio.read(name)
            assert back.dtype == array.dtype
            assert back.tobytes() == array.tobytes()
            assert back.flags.f_contiguous == array.flags.f_contiguous


def _header(shape, descr="<f8", fortran=False, length=None):
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text) if length is None else length) + text


def _zip(content, claimed=None, method=zipfile.ZIP_DEFLATED, flags=0):
    """An archive of one member; its directory claims another size, if one is given."""
    with zipfile.ZipFile("made.npz", "w", method) as archive:
        archive.writestr("a.npy", content)
    made = bytearray(Path("made.npz").read_bytes())
    at = made.index(b"PK\1\2")
    if claimed is not None:
        made[at + 24 : at + 28] = struct.pack("<I", claimed)
    made[at + 8] |= flags
    made[6] |= flags
    return bytes(made)


def _saved(save, **options):
    """The bytes that NumPy writes."""
    stream = io.BytesIO()
    save(stream, **options)
    return stream.getvalue()


HEAD = _header((2, 3))
GIANT = _header((30000, 30000))
NPY = _saved(np.save, arr=A)
NPZ = _saved(np.savez, a=A)
DAMAGED = {
    "empty.npy": lambda: b"",
    "empty.npz": lambda: b"",
    "empty.mtx": lambda: b"",
    "noise.npy": lambda: b"noise" * 40,
    "short.npy": lambda: NPY[:-3],
    "header.npy": lambda: NPY.replace(b"'<f4'", b"<f4''"),
    "short.npz": lambda: NPZ[:-40],
    "flipped.npz": lambda: NPZ[:170] + bytes([NPZ[170] ^ 0xFF]) + NPZ[171:],
    "npy.npz": lambda: NPY,
    "npz.npy": lambda: NPZ,
    "banner.mtx": lambda: b"hello\n1 1\n1\n",
    "text.txt": lambda: b"1 2\n3 4\n",
    "more.npy": lambda: HEAD + bytes(56),
    "fewer.npy": lambda: HEAD + bytes(40),
    "giant.npy": lambda: GIANT + bytes(100),
    "negative.npy": lambda: _header((-2, -3)) + bytes(48),
    "overflow.npy": lambda: _header((2**40, 2**40)) + bytes(48),
    "void.npy": lambda: _header((1, 1), "|V2000000000"),
    "text.npy": lambda: _header((1, 1), "<U500000000"),
    "fields.npy": lambda: _header((1, 1), [("a", "<f8")]) + bytes(8),
    "nested.npy": lambda: _header("(" * 4000),
    "version.npy": lambda: HEAD.replace(b"NUMPY\x02", b"NUMPY\x09") + bytes(48),
    "long.npy": lambda: _header((2, 3), length=2**31) + b" " * 20_000_000,
    "long.npz": lambda: _zip(_header((2, 3), length=2**31) + b" " * 20_000_000),
    "more.npz": lambda: _zip(HEAD + bytes(20_000_000)),
    "fewer.npz": lambda: _zip(HEAD + bytes(40)),
    "giant.npz": lambda: _zip(GIANT + bytes(100)),
    "claims_less.npz": lambda: _zip(HEAD + bytes(20_000_000), claimed=len(HEAD) + 48),
    "claims_more.npz": lambda: _zip(HEAD + bytes(8), claimed=len(HEAD) + 48),
    "bzip2.npz": lambda: _zip(HEAD + bytes(48), method=zipfile.ZIP_BZIP2),
    "lzma.npz": lambda: _zip(HEAD + bytes(48), method=zipfile.ZIP_LZMA),
    "encrypted.npz": lambda: _zip(HEAD + bytes(48), flags=1),
    "text.npz": lambda: _zip(b"hello"),
    "none.npz": lambda: b"PK\5\6" + bytes(18),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_clear_line_and_takes_no_memory(name):
    Path(name).write_bytes(DAMAGED[name]())
    peak, message = _peak(lambda: matrixio.read(name))
    assert message.startswith(name)
    assert "\n" not in message
    assert "allow_pickle" not in message
    assert len(message) < 250
    assert peak < 4 << 20


def test_the_examples_of_damaged_files_differ_from_a_good_file_in_one_respect():
    Path("good.npy").write_bytes(HEAD + bytes(48))
    Path("good.npz").write_bytes(_zip(HEAD + bytes(48)))
    assert (matrixio.read("good.npy") == np.zeros((2, 3))).all()
    assert (matrixio.read("good.npz") == np.zeros((2, 3))).all()


def test_changed_bytes_raise_one_line_or_change_a_number():
    np.savez_compressed("good.npz", A)
    np.save("good.npy", A)
    Path("good.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 4.5\n3 3 -1\n")
    rng = np.random.default_rng(3)
    outcomes = []
    for suffix in ("npz", "npy", "mtx"):
        good = Path(f"good.{suffix}").read_bytes()
        for _ in range(400):
            content = bytearray(good)
            for place in rng.integers(len(good), size=rng.integers(1, 4)):
                content[place] = rng.integers(256)
            Path(f"bad.{suffix}").write_bytes(content[: rng.integers(len(good) // 2, len(good) + 1)])
            try:
                outcomes.append(matrixio.read(f"bad.{suffix}", max_entries=1000))
            except InputError as problem:
                outcomes.append(str(problem))
    messages = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert 0 < len(messages) < len(outcomes)
    assert not any("\n" in message for message in messages)
    assert all(outcome.ndim == 2 for outcome in outcomes if not isinstance(outcome, str))


# --- Matrix Market


def _market(text):
    Path("x.mtx").write_text(f"%%MatrixMarket matrix {text}", encoding="utf-8", newline="")
    return matrixio.read("x.mtx")


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        ("array real general\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
        ("ARRAY Real General\r\n% text\r\n\r\n1 2\r\n1e0\r\n\r\n+2\r\n", [[1, 2]]),
        ("array real symmetric\n3 3\n1\n2\n3\n4\n5\n6\n", [[1, 2, 3], [2, 4, 5], [3, 5, 6]]),
        ("array integer skew-symmetric\n3 3\n1\n2\n3\n", [[0, -1, -2], [1, 0, -3], [2, 3, 0]]),
        ("array real skew-symmetric\n1 1\n", [[0]]),
        ("array real general\n  % text\n1 1\n2\n", [[2]]),
        ("array real general\n1 1\n 1.5 % text\n", [[1.5]]),
        ("coordinate real general\n2 3 0\n", [[0, 0, 0], [0, 0, 0]]),
        ("coordinate real general\n2 2 3\n1 2 5\n2 1 1\n1 2 6\n", [[0, 11], [1, 0]]),
        ("coordinate real symmetric\n3 3 2\n2 1 4.5\n3 3 -1\n", [[0, 4.5, 0], [4.5, 0, 0], [0, 0, -1]]),
        ("coordinate pattern symmetric\n2 2 2\n2 1\n2 2\n", [[0, 1], [1, 1]]),
        ("coordinate real skew-symmetric\n2 2 2\n2 1 5\n1 1 0\n", [[0, -5], [5, 0]]),
        ("coordinate real hermitian\n2 2 1\n1 2 5\n", [[0, 5], [5, 0]]),
        ("coordinate integer symmetric\n2 2 2\n2 1 5\n2 1 6\n", [[0, 11], [11, 0]]),
        (f"coordinate integer general\n1 1 2\n1 1 {2**63 - 1}\n1 1 {-(2**63)}\n", [[-1]]),
        (f"coordinate unsigned-integer general\n1 1 2\n1 1 {2**64 - 2}\n1 1 1\n", [[2**64 - 1]]),
        ("array unsigned-integer general\n1 1\n18446744073709551615\n", [[2**64 - 1]]),
    ],
)
def test_matrix_market(text, matrix):
    D = _market(text)
    assert D.tolist() == matrix
    kind = text.split()[1].lower()
    assert D.dtype == {"integer": np.int64, "unsigned-integer": np.uint64}.get(kind, np.float64)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("coordinate real symmetric\n8 16 1\n2 1 1\n", "symmetric, but 8×16: only a square matrix"),
        ("coordinate real skew-symmetric\n2 4 1\n2 1 1\n", "skew-symmetric, but 2×4"),
        ("coordinate complex hermitian\n2 2 1\n2 1 5 1\n", "holds complex numbers"),
        ("array real symmetric\n2 2\n1\n2\n", "declares 3 stored entries and has only 2"),
        ("coordinate real symmetric\n2 2 2\n2 1 5\n1 2 5\n", "both sides of the diagonal"),
        ("array pattern general\n2 2\n", "'array pattern general' in the first line"),
        ("coordinate pattern skew-symmetric\n2 2 1\n2 1\n", "'coordinate pattern skew-symmetric' in the first line"),
        ("coordinate pattern general\n2 2 1\n2 1 5\n", "requires 2 columns but 3 were found at row 1\\)"),
        ("coordinate real general\n2 2 1\n0 1 5\n", "negative axis 0 index: -1"),
        ("coordinate real general\n2 2 2\n1 1 5\n1 3 5\n", "axis 1 index 2 exceeds matrix dimension 2"),
        ("coordinate real general\n2 2 1\n1 1 5\n2 2 6\n", "declares 1 stored entries and has more"),
        ("coordinate real general\n2 2 3\n1 1 5\n2 2 6\n", "declares 3 stored entries and has only 2"),
        ("coordinate real general\n2 2 1000000000000\n1 1 5\n", "declares 1000000000000 stored entries and has only 1"),
        ("array real general\n1000000 1000000\n1\n", "is 1000000×1000000: more entries than max_entries"),
        ("coordinate real general\n2 2 -1\n", "NNZ can't be negative"),
        ("array real general\n% text\n2 2 7\n1\n2\n3\n4\n", "dimension line not of length 2"),
        ("array real general\n", "Premature EOF"),
        ("array real general\n99999999999999999999 1\n1\n", "Integer out of range"),
        ("array real general\n0 0\n", "at least one entry"),  # SciPy divides by zero there
        ("array real general\n1 2\n1\nnan\n", "no NaN or Inf"),
        ("array real general\n1 1\n1e400\n", "no NaN or Inf, and fp64 nothing larger"),
        ("array real general\n2 1\n1\n1d5\n", "could not convert string '1d5' to float64 at row 1,"),
        ("array real general\n1 1\n0x10\n", "could not convert string '0x10'"),
        ("array real general\n1 1\n1.5abc\n", "could not convert string '1.5abc'"),
        ("array real general\n1 1\n1_5\n", "could not convert string '1_5'"),
        ("array integer general\n1 1\n99999999999999999999\n", "could not convert string .* to int64"),
        ("coordinate real general\n2 2 1\n1.5 1 5\n", "could not convert string '1.5' to int64"),
        ("array real general\n1 1\n1 2 3\n", "requires 1 columns but 3 were found"),
        ("coordinate real general\n2 2 2\n1 1\n2 2 3\n", "requires 3 columns but 2 were found"),
        ("vector coordinate real general\n3 1\n1 5\n", "header element: vector"),
        ("array decimal general\n1 1\n1\n", "header element: decimal"),
        ("array unsigned-integer skew-symmetric\n2 2\n5\n", "a negative of entries is outside the range of uint64"),
        (f"array integer skew-symmetric\n2 2\n{-(2**63)}\n", "a negative of entries is outside the range of int64"),
        (f"coordinate integer general\n1 2 2\n1 2 {2**63 - 1}\n1 2 1\n", "outside the range of int64"),
        (f"coordinate integer symmetric\n2 2 2\n2 1 {-(2**63)}\n2 1 -1\n", "outside the range of int64"),
        (f"coordinate unsigned-integer general\n1 1 2\n1 1 {2**64 - 1}\n1 1 1\n", "is outside the range of uint64"),
        ("coordinate real general\n2 1 3\n1 1 1\n2 1 1e308\n2 1 1e308\n", "outside the range of float64"),
    ],
)
def test_matrix_market_files_that_contradict_themselves(text, complaint):
    with pytest.raises(InputError, match=complaint) as problem:
        _market(text)
    assert str(problem.value).startswith("x.mtx")
    assert "\n" not in str(problem.value)


def test_matrix_market_is_read_as_scipy_reads_it():
    from scipy import io, sparse

    rng = np.random.default_rng(5)
    S = sparse.random(40, 40, 0.3, format="coo", random_state=1)
    S.data = rng.standard_normal(S.nnz) * 10.0 ** rng.integers(-300, 300, S.nnz)
    square = S.toarray()
    for matrix, symmetry in (
        (S, "general"),
        (square, "general"),
        (S + S.T, "symmetric"),
        (square + square.T, "symmetric"),
        (S - S.T, "skew-symmetric"),
        (square - square.T, "skew-symmetric"),
    ):
        io.mmwrite("s.mtx", matrix, symmetry=symmetry, precision=17)
        assert symmetry in Path("s.mtx").read_text().partition("\n")[0]
        dense = matrix.toarray() if sparse.issparse(matrix) else matrix
        assert (matrixio.read("s.mtx") == dense).all()


# --- formats that NumPy lacks


NARROW = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz"}
VALUES = np.float32([[0.5, -2.0, 1.5], [0.0, 0.125, 3.0]])


def _safetensors(name, **tensors):
    """Write a file as the library does: the length of the header, the header, the bytes of the arrays."""
    header: dict[str, dict[str, object]] = {"__metadata__": {"format": "pt"}}
    data = b""
    for key, (kind, array) in tensors.items():
        end = len(data) + array.nbytes
        header[key] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    Path(name).write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("fmt", NARROW)
@pytest.mark.parametrize("archive", [False, True])
def test_arrays_of_ml_dtypes_and_their_codes(fmt, archive):
    array = VALUES.astype(getattr(pytest.importorskip("ml_dtypes"), NARROW[fmt]))
    for content in (array, array.view(f"u{array.itemsize}"), np.asfortranarray(array)):
        (np.savez if archive else np.save)("x", content)
        back = matrixio.read("x.npz" if archive else "x.npy", fmt=fmt)
        assert (back.dtype, back.tolist()) == (np.float32, VALUES.tolist())
    np.save("x.npy", array)
    if fmt in ("bf16", "e5m2"):  # the only one of its size, and one with another name, for numpy.save
        assert matrixio.read("x.npy").tolist() == VALUES.tolist()
    else:
        for other in (None, "fp16", "int8"):
            with pytest.raises(InputError, match=r"bytes without a type.*--format e4m3.*from float32"):
                matrixio.read("x.npy", fmt=other)


@pytest.mark.parametrize("fmt", [None, "fp16", "fp32", "int8", "e4m3"])
def test_integers_of_another_width_are_numbers(fmt):
    np.save("x.npy", np.uint16([[1, 2]]))
    assert matrixio.read("x.npy", fmt=fmt).tolist() == [[1, 2]]


def test_tensors_of_a_safetensors_file():
    codes = fpemu.BF16.encode(VALUES), fpemu.E4M3.encode(VALUES)
    _safetensors("a.safetensors", x=("F32", VALUES))
    _safetensors(
        "b.safetensors", **{"w:1": ("BF16", codes[0]), "w2": ("F8_E4M3", codes[1]), "n": ("I64", np.eye(2, dtype=int))}
    )
    assert matrixio.read("a.safetensors").tolist() == VALUES.tolist()
    assert matrixio.read("b.safetensors:w:1").tolist() == matrixio.read("b.safetensors:w2").tolist() == VALUES.tolist()
    assert matrixio.read("b.safetensors:n").dtype == np.int64
    with pytest.raises(InputError, match=r"holds 3 arrays: name one as b.safetensors:KEY, KEY one of w:1, w2, n"):
        matrixio.read("b.safetensors")
    with pytest.raises(InputError, match="more entries than max_entries=5"):
        matrixio.read("a.safetensors", max_entries=5)
    whole = Path("a.safetensors").read_bytes()
    for damaged in (
        b"",
        whole[:7],
        whole[:40],
        whole[:-1],
        b"\xff" * 8 + whole[8:],
        whole.replace(b"[0, 24]", b"[0, 23]"),
    ):
        Path("a.safetensors").write_bytes(damaged)
        with pytest.raises(InputError, match=r"^a.safetensors: "):
            matrixio.read("a.safetensors")


def test_a_product_of_bf16_files_is_verified():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    A, B = (np.random.default_rng(i).standard_normal((16, 16)).astype(ml_dtypes.bfloat16) for i in range(2))
    D = fpemu.mma.gemm(A.astype(np.float32), B.astype(np.float32), spec=fpemu.mma.spec("A100", "bf16"))
    np.save("D.npy", D)
    for view in (lambda x: x, lambda x: x.view(np.uint16)):
        np.save("A.npy", view(A))
        np.save("B.npy", view(B))
        assert main(["verify", "gemm", "A.npy", "B.npy", "--result", "D.npy", "-H", "A100", "--format", "bf16"]) == 0
    _safetensors("P.safetensors", A=("BF16", A.view(np.uint16)), B=("BF16", B.view(np.uint16)))
    names = ["P.safetensors:A", "P.safetensors:B"]
    assert main(["verify", "gemm", *names, "--result", "D.npy", "-H", "A100", "--format", "bf16"]) == 0
    assert main(["gemm", *names, "-s", "sgemm"]) == 0


# --- Matrix Market as its writers have it


def test_matrices_that_scipy_damages_are_refused():
    scipy_io = pytest.importorskip("scipy.io")
    tiny = np.float32([[1.2573021e-21, -3.0]])
    scipy_io.mmwrite("x.mtx", tiny, precision=17)
    if b"\0" not in Path("x.mtx").read_bytes():
        pytest.skip("this SciPy writes all digits")
    with pytest.raises(InputError, match=r"NUL bytes in place of digits.*again from float64"):
        matrixio.read("x.mtx")
    scipy_io.mmwrite("x.mtx", tiny.astype(np.float64), precision=17)
    assert (matrixio.read("x.mtx") == tiny).all()


@pytest.mark.parametrize("before", ["\t%", "  %", " \t % c", "%\n\t", "\t\n%"])
def test_blanks_and_tabs_before_comments(before):
    for header, sizes, lines in (("array", "1 2", "1\n2"), ("coordinate", "1\t2 2", "\t1 1\t1\n1 2 2")):
        text = f"%%MatrixMarket matrix {header} real general\n{before}\n{sizes}\n{lines}\n{before}\n"
        Path("x.mtx").write_text(text)
        assert matrixio.read("x.mtx").tolist() == [[1, 2]]


@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("field", ["real", "integer"])
def test_a_skew_symmetric_matrix_has_a_diagonal_of_zeros(layout, field):
    for diagonal in (0, 5):
        lines = f"2 2 2\n2 1 3\n1 1 {diagonal}" if layout == "coordinate" else f"2 2\n{diagonal}\n3\n0"
        Path("x.mtx").write_text(f"%%MatrixMarket matrix {layout} {field} skew-symmetric\n{lines}\n")
        if diagonal:
            with pytest.raises(InputError, match="declared skew-symmetric, but its diagonal is not zero: 1 of"):
                matrixio.read("x.mtx")
        else:
            assert matrixio.read("x.mtx").tolist() == [[0, -3], [3, 0]]


def test_what_to_do_with_complex_matrices():
    np.save("x.npy", A + 1j)
    Path("x.mtx").write_text("%%MatrixMarket matrix array complex general\n1 1\n3 1\n")
    for name in ("x.npy", "x.mtx"):
        with pytest.raises(InputError, match=r"complex numbers.*write its real and its imaginary part to two files"):
            matrixio.read(name)


def test_complex_matrices_of_every_symmetry():
    Z = np.array([[1 + 2j, 3 - 1j], [0.1j, -4]])
    for name in ("x.npy", "x.mtx"):
        matrixio.write(name, Z)
        assert (matrixio.read(name, complex_numbers=True) == Z).all()
    for symmetry, upper in (("symmetric", 5 + 6j), ("skew-symmetric", -5 - 6j), ("hermitian", 5 - 6j)):
        diagonal = 0 if symmetry == "skew-symmetric" else 2
        lines = f"2 2 2\n2 1 5 6\n1 1 {diagonal} 0\n"
        Path("x.mtx").write_text(f"%%MatrixMarket matrix coordinate complex {symmetry}\n{lines}")
        assert (matrixio.read("x.mtx", complex_numbers=True) == [[diagonal, upper], [5 + 6j, 0]]).all()
    rounded, note = matrixio.to_format(Z, "Z", "fp32")
    assert rounded.dtype == np.complex64
    assert note == "Z: complex128 rounded to fp32, 1 of 4 entries changed"
    with pytest.raises(InputError, match="beyond the range of fp32"):
        matrixio.to_format(Z * 1e300, "Z", "fp32")


def test_a_damaged_header_is_not_printed_in_full():
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1+" * 2000 + b"1,), }\n"
    Path("x.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header)
    with pytest.raises(InputError, match=r"x\.npy: not a readable \.npy file") as caught:
        matrixio.read("x.npy")
    assert len(str(caught.value)) < 200
