"""Matrix files: what is read, what is refused, and that a written file gives every entry back."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from fpemu import matrixio
from fpemu.errors import InputError

A = np.float32([[0.1, -2.5, 3e38], [1e-45, 0.0, -1e-3]])


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["a.npy", "a.mtx", "a.MTX"])
def test_written_matrix_comes_back_bit_for_bit(name):
    matrixio.write(name, A)
    back, note = matrixio.to_format(matrixio.read(name), name, "fp32")
    assert note is None
    assert (back.view(np.uint32) == A.view(np.uint32)).all()


def test_fp64_comes_back_from_matrix_market_too():
    wide = np.array([[0.1, 1 / 3], [5e-324, 1.7976931348623157e308]])
    matrixio.write("wide.mtx", wide)
    assert (matrixio.read("wide.mtx") == wide).all()


def test_a_symmetric_matrix_is_written_in_full():
    matrixio.write("i.mtx", np.eye(3, dtype=np.float32))
    assert "array real general" in Path("i.mtx").read_text()
    assert (matrixio.read("i.mtx") == np.eye(3)).all()


def test_sparse_matrix_market_is_made_dense():
    Path("s.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 4.5\n3 3 -1\n")
    assert (matrixio.read("s.mtx") == [[0, 4.5, 0], [4.5, 0, 0], [0, 0, -1]]).all()


def test_keys_of_an_archive():
    np.savez("one.npz", only=A)
    np.savez_compressed("two.npz", a=A, b=A[:1] / 2)
    assert (matrixio.read("one.npz") == A).all()
    assert (matrixio.read("two.npz:b") == A[:1] / 2).all()
    with pytest.raises(InputError, match=r"holds 2 arrays.*a, b"):
        matrixio.read("two.npz")
    with pytest.raises(InputError, match="no array 'c': it holds a, b"):
        matrixio.read("two.npz:c")


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (A[0], r"shape \(3,\): a matrix has two axes"),
        (A[None], r"shape \(1, 2, 3\): a matrix has two axes"),
        (A[:0], "no entries"),
        (A + 1j, "complex"),
        (A > 0, "bool, not numbers"),
        (np.array([["x", "y"]]), "not numbers"),
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
    for name in ("object.npy", "object.npz", "pickle.npy"):
        with pytest.raises(InputError, match="Python objects"):
            matrixio.read(name)
    assert not os.path.exists("bomb")


def _damaged():
    np.save("good.npy", A)
    good = Path("good.npy").read_bytes()
    np.savez("good.npz", a=A)
    archive = bytearray(Path("good.npz").read_bytes())
    flipped = archive.copy()
    flipped[170] ^= 0xFF
    return {
        "empty.npy": b"",
        "empty.npz": b"",
        "empty.mtx": b"",
        "noise.npy": b"noise" * 40,
        "short.npy": good[:-3],
        "huge.npy": good.replace(b"(2, 3), }            ", b"(3000000000000, 3), }"),
        "header.npy": good.replace(b"'<f4'", b"<f4''"),
        "short.npz": bytes(archive[:-40]),
        "flipped.npz": bytes(flipped),
        "npy.npz": good,
        "npz.npy": bytes(archive),
        "banner.mtx": b"hello\n1 1\n1\n",
        "word.mtx": b"%%MatrixMarket matrix array real general\n1 2\n1\nx\n",
        "few.mtx": b"%%MatrixMarket matrix array real general\n2 2\n1\n2\n",
        "outside.mtx": b"%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1\n",
        "complex.mtx": b"%%MatrixMarket matrix array complex general\n1 1\n1 2\n",
        "giant.mtx": b"%%MatrixMarket matrix coordinate real general\n1000000 1000000 1\n1 1 2\n",
        "text.txt": b"1 2\n3 4\n",
    }


@pytest.mark.parametrize("name", sorted([
    "empty.npy", "empty.npz", "empty.mtx", "noise.npy", "short.npy", "huge.npy", "header.npy", "short.npz",
    "flipped.npz", "npy.npz", "npz.npy", "banner.mtx", "word.mtx", "few.mtx", "outside.mtx", "complex.mtx",
    "giant.mtx", "text.txt",
]))  # fmt: skip
def test_damaged_files_are_one_clear_line(name):
    Path(name).write_bytes(_damaged()[name])
    with pytest.raises(InputError) as complaint:
        matrixio.read(name)
    assert name in str(complaint.value)
    assert "\n" not in str(complaint.value)
    assert "allow_pickle" not in str(complaint.value)


def test_missing_files_and_folders():
    os.mkdir("folder.npy")
    for name in ("no.npy", "no.npz", "no.npz:a", "no.mtx"):
        with pytest.raises(FileNotFoundError):
            matrixio.read(name)
    with pytest.raises(InputError, match="a folder"):
        matrixio.read("folder.npy")


def test_rounding_to_fp32_is_counted():
    single, note = matrixio.to_format(np.array([[0.1, 0.5, np.nan, np.inf, 1e-60]]), "A.npy", "fp32")
    assert note == "A.npy: float64 rounded to fp32, 2 of 5 entries changed"
    assert single[0, 0] == np.float32(0.1)
    assert np.isnan(single[0, 2])
    assert np.isinf(single[0, 3])
    assert matrixio.to_format(np.float16([[65504.0, 6e-8]]), "h", "fp32")[1] is None
    note = matrixio.to_format(np.array([[2**24 + 1, 3]]), "i", "fp32")[1]
    assert note == "i: int64 rounded to fp32, 1 of 2 entries changed"


def test_fp64_stays_as_it_is_and_wider_integers_are_rounded_with_a_note():
    wide = np.array([[0.1, 5e-324, np.nan], [1e300, -np.inf, -0.0]])
    same, note = matrixio.to_format(wide, "A.npy", "fp64")
    assert note is None
    assert same.dtype == np.float64
    assert (same.view(np.uint64) == wide.view(np.uint64)).all()
    rounded, note = matrixio.to_format(np.array([[2**53 + 1, 2**53]]), "i", "fp64")
    assert note == "i: int64 rounded to fp64, 1 of 2 entries changed"
    assert rounded.tolist() == [[2.0**53, 2.0**53]]
    assert matrixio.to_format(np.array([[2**53 + 2]]), "i", "fp64")[1] is None
    assert matrixio.to_format(np.float32([[0.1]]), "s", "fp64") == (np.float64(np.float32(0.1)), None)


def test_beyond_fp32_is_an_error_that_counts():
    with pytest.raises(InputError, match=r"A: beyond the range of fp32 in 1 of 2 entries, first at \[0, 1\]: 1e\+300"):
        matrixio.to_format(np.array([[1.0, 1e300]]), "A", "fp32")


def test_writing_elsewhere_is_refused_before_the_work():
    os.mkdir("folder.npy")
    for name, complaint in (("a.txt", "as .npy or .mtx"), ("no/a.npy", "no folder no"), ("folder.npy", "is a folder")):
        with pytest.raises(InputError, match=complaint):
            matrixio.check_output(name)


def test_a_failed_write_leaves_what_was_there(monkeypatch):
    matrixio.write("a.npy", A)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        matrixio.write("a.npy", A / 2)
    assert (matrixio.read("a.npy") == A).all()
    assert os.listdir() == ["a.npy"]


def test_nan_has_no_place_in_matrix_market():
    with pytest.raises(InputError, match=r"no NaN or Inf \(1 of 2 entries, first at \[0, 1\]: nan\)"):
        matrixio.write("a.mtx", np.float32([[1, np.nan]]))
    assert os.listdir() == []


def test_written_files_follow_the_umask():
    before = os.umask(0o022)
    try:
        matrixio.write("a.npy", A)
    finally:
        os.umask(before)
    assert os.stat("a.npy").st_mode & 0o777 == 0o644
