"""Compiled kernels saved on disk: unwritable folders, damaged files, full disks and processes that save at once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import fpemu
from fpemu import _system
from fpemu._system import KernelCache
from fpemu.compiled.cache import saved

COMPILE = """
import numpy as np
from fpemu.compiled.measures import _largest
c = np.arange(4.0)
print(*map(int, np.array(_largest(c, 2 * c)).view(np.int64)))
stats = _largest.stats
print(stats.cache_path, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
RESULT = " ".join(str(np.float64(x).view(np.int64)) for x in (3.0, 3.0, 6.0))
UNWRITABLE = "/dev/null/folder"  # for root too, who may write in every folder


@pytest.fixture
def no_folder(monkeypatch, tmp_path):
    """No folder is writable, apart from those that a test names."""
    monkeypatch.setenv("HOME", UNWRITABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FPEMU_CACHE", raising=False)
    _system._note_unsaved.cache_clear()
    yield tmp_path
    _system._note_unsaved.cache_clear()


# --- folders


def test_the_first_writable_folder_is_used(no_folder, monkeypatch, capsys):
    preferred, named, user = no_folder / "preferred", no_folder / "named", no_folder / "user"
    assert KernelCache("kernels", preferred).folder == preferred
    monkeypatch.setenv("FPEMU_CACHE", str(named))
    monkeypatch.setenv("XDG_CACHE_HOME", str(user))
    assert KernelCache("kernels", preferred).folder == preferred
    assert KernelCache("kernels", Path(UNWRITABLE)).folder == named / "kernels"
    monkeypatch.setenv("FPEMU_CACHE", UNWRITABLE)
    assert KernelCache("kernels", Path(UNWRITABLE)).folder == user / "fpemu" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(user))
    assert KernelCache("kernels").folder == user / ".cache" / "fpemu" / "kernels"
    assert capsys.readouterr().err == ""


def test_a_read_only_folder_before_the_writable_one_is_read(no_folder, monkeypatch):
    first, second = no_folder / "first", no_folder / "second"
    KernelCache("kernels", first).save("a", b"kernel")
    writable = _system._is_writable
    monkeypatch.setattr(_system, "_is_writable", lambda folder: folder != first and writable(folder))
    files = KernelCache("kernels", first, second)
    assert files.folder == second
    assert files.load("a") == b"kernel"
    files.save("b", b"another")
    assert [path.name for path in second.iterdir()] == ["b"]


def test_a_user_without_a_home_saves_nothing_and_gets_one_note(no_folder, monkeypatch, capsys):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    files = KernelCache("kernels")
    assert files.folder is KernelCache("cubins").folder is None
    files.save("a", b"kernel")
    assert files.load("a") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "each process compiles them again: set FPEMU_CACHE" in line


def _tampered(path, how):
    if how == "another owner":
        os.chown(path, 12345, 12345)
    elif how == "a link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    else:
        path.chmod(path.stat().st_mode | how)


OTHERS = [0o020, 0o002, "a link", pytest.param("another owner", marks=pytest.mark.skipif(os.getuid(), reason="root"))]


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("what", ["folder", "file"])
def test_kernels_that_another_user_may_have_written_are_not_loaded(no_folder, what, how):
    first, second = no_folder / "first", no_folder / "second"
    first.mkdir()  # before the class, which makes folders that it trusts
    KernelCache("kernels", first, second).save("a", b"kernel")
    _tampered(first if what == "folder" else first / "a", how)
    _system._is_writable.cache_clear()
    files = KernelCache("kernels", first, second)
    assert files.load("a") is None
    assert files.folder == (second if what == "folder" else first)
    files.save("a", b"another")
    assert files.load("a") == b"another"


def test_a_folder_that_changes_after_the_start_is_not_read(tmp_path):
    files = KernelCache("kernels", tmp_path / "kernels")
    files.save("a", b"kernel")
    (tmp_path / "kernels").chmod(0o777)
    assert files.load("a") is None


def test_saved_kernels_are_trusted_with_a_permissive_umask(no_folder):
    before = os.umask(0)
    try:
        files = KernelCache("kernels", no_folder / "new")
        files.save("a", b"kernel")
    finally:
        os.umask(before)
    assert files.load("a") == b"kernel"


# --- files


DAMAGES = {
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "short": lambda content: content[:7],
    "one byte less": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\0",
    "one bit": lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
    "another object": lambda content: pickle.dumps(("wrong", 1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_deleted_and_can_be_saved_again(tmp_path, damage):
    files = KernelCache("kernels", tmp_path)
    content = bytes(range(256)) * 10
    files.save("a", content)
    assert files.load("a") == content
    path = tmp_path / "a"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert files.load("a") is None
    assert not path.exists()
    files.save("a", content)
    assert files.load("a") == content


def test_folders_and_pipes_in_the_place_of_a_file(tmp_path):
    files = KernelCache("kernels", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "x").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "full", "pipe"):
        assert files.load(name) is None
        files.save(name, b"kernel")
    assert files.load("empty") == files.load("pipe") == b"kernel"
    assert files.load("full") is None
    assert (tmp_path / "full" / "x").is_dir()


# --- kernels of numba


def _fresh():
    @saved
    @numba.njit
    def _kernel(x):
        return 2 * x + 1

    return _kernel


def _hits(kernel):
    assert kernel(np.float64(3.0)) == 7.0
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture
def numba_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_kernel_is_compiled_once_and_for_each_type(numba_folder):
    assert _hits(_fresh()) == 0
    assert _hits(_fresh()) == 1
    kernel = _fresh()
    assert kernel(3) == 7
    assert type(kernel(3)) is int
    assert sum(kernel.stats.cache_hits.values()) == 0
    (path, _) = numba_folder.rglob("*.kernel")
    assert kernel.stats.cache_path == str(path.parent)


@pytest.mark.parametrize("content", [None, pickle.dumps(("wrong", 1)), pickle.dumps(None), b"no pickle", b""])
def test_a_damaged_file_and_one_of_another_numba_are_compiled_again(numba_folder, content):
    _hits(_fresh())
    (path,) = numba_folder.rglob("*.kernel")
    if content is None:
        path.write_bytes(path.read_bytes()[:-1])
    else:  # the checksum is right
        KernelCache("kernels", path.parent).save(path.name, content)
    assert _hits(_fresh()) == 0
    assert _hits(_fresh()) == 1


def test_kernels_of_older_sources_are_deleted_and_others_stay(numba_folder):
    _hits(_fresh())
    (path,) = numba_folder.rglob("*.kernel")
    for name in ("_kernel-0123456789abcdef-0.kernel", "other-0123456789abcdef-0.kernel"):
        (path.parent / name).touch()
    _fresh()(3)
    assert sorted(p.name.partition("-")[0] for p in path.parent.iterdir()) == ["_kernel", "_kernel", "other"]
    kernel = _fresh()
    kernel._cache.flush()
    assert [p.name.partition("-")[0] for p in path.parent.iterdir()] == ["other"]


@pytest.mark.parametrize("method", ["_reduce", "_rebuild"])
def test_a_numba_with_other_internals_compiles_in_every_process(numba_folder, monkeypatch, method):
    from numba.core.compiler import CompileResult

    monkeypatch.delattr(CompileResult, method)
    assert _hits(_fresh()) == 0
    assert _hits(_fresh()) == 0


# --- processes


def _python(code, *arguments, environment=None, **options):
    root = str(Path(fpemu.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, **(environment or {})}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


@pytest.mark.slow
def test_processes_that_compile_at_once_save_kernels_that_others_load(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    for process in [_python(COMPILE, environment=environment) for _ in range(2)]:
        out, err = process.communicate()
        assert (out.splitlines()[0], err) == (RESULT, "")
    out, err = _python(COMPILE, environment=environment).communicate()
    assert err == ""
    (path,) = tmp_path.rglob("*.kernel")
    assert out.splitlines() == [RESULT, f"{path.parent} 1 0"]


def test_without_numba_s_compiler_a_product_is_one_line():
    script = "import fpemu, numpy as np\ntry:\n    fpemu.gemm(np.ones((2, 2)), np.ones((2, 2)), scheme='sgemm')\n"
    script += "except fpemu.InputError as problem:\n    print(problem)"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == "NUMBA_DISABLE_JIT is set, and the kernels need numba's compiler: unset it\n", done.stderr
