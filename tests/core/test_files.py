"""Output files: whole or unchanged, checked before a computation; and readers of JSON and TOML."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fpemu import _system
from fpemu.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_is_written_whole_with_the_permissions_of_the_umask(tmp_path):
    path = tmp_path / "new" / "folder" / "x.bin"
    _system.write_atomic(path, b"one")
    _system.write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["x.bin"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o644])
def test_a_replaced_file_passes_its_permissions_on(tmp_path, mode):
    path = tmp_path / "x.bin"
    path.write_bytes(b"one")
    path.chmod(mode)
    _system.write_atomic(path, b"two")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"two", mode)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch, call):
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left") as caught:
        _system.write_atomic(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_a_command_names_the_output_for_which_the_disk_has_no_room(tmp_path):
    """A limit on the size of files stands for a full disk."""
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import numpy as np\n"
        "np.save('A.npy', np.ones((64, 64), np.float32))\n"
        "from fpemu.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "sys.exit(main(['gemm', 'A.npy', 'A.npy', '-s', 'sgemm', '-o', 'D.npy']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FPEMU_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert done.stderr.splitlines()[-1] == "fpemu: D.npy: File too large"
    assert done.returncode == 2
    assert sorted(os.listdir(tmp_path)) == ["A.npy"]


def test_devices_and_pipes_are_written_in_place(tmp_path):
    _system.check_writable("/dev/null")
    _system.write_atomic("/dev/null", b"content")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space left") as caught:
        _system.write_atomic("/dev/full", b"content")
    assert caught.value.filename == "/dev/full"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    _system.check_writable(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    _system.write_atomic(pipe, b"content")
    reader.join(10)
    assert received == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    for target in (tmp_path / "there" / "old", tmp_path / "there" / "new"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        _system.check_writable(link)
        _system.write_atomic(link, b"content")
        assert link.is_symlink()
        assert target.read_bytes() == b"content"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "the name of the output is empty"),
        (".", "is a folder"),
        ("x" * 256, "File name too long"),
        ("no/x", "there is no folder no"),
        ("file/x", "there is no folder file"),
        ("loop", "symbolic links"),
        ("read-only", "read-only: the file is read-only"),
        ("a\0b", "null"),
        ("/proc/x", "cannot write in the folder /proc"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch, name, complaint):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    Path("read-only").touch()
    Path("read-only").chmod(0o444)
    before = sorted(os.listdir())
    with pytest.raises(InputError, match=complaint):
        _system.check_writable(name)
    if name == "read-only":
        with pytest.raises(PermissionError, match="read-only"):
            _system.write_atomic(name, b"")
    assert sorted(os.listdir()) == before


def test_missing_folders_are_accepted_on_demand(tmp_path):
    _system.check_writable(tmp_path / "a" / "b" / "x", make_folders=True)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="there is no folder"):
        _system.check_writable(tmp_path / "file" / "b" / "x", make_folders=True)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("read", "value", "text"), [(_system.read_json, 3, b'{"a": 3}'), (_system.read_toml, 3, b"a = 3")]
)
def test_values_are_read(tmp_path, read, value, text):
    for mark in (b"", b"\xef\xbb\xbf"):  # a byte order mark, which some editors write
        (tmp_path / "x").write_bytes(mark + text)
        assert read(tmp_path / "x") == {"a": value}


@pytest.mark.parametrize("language", ["JSON", "TOML"])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "is not readable as .*: 'utf-8' codec"),
        (b"1" * 5000, "is not readable as"),
        (b"{", "is not readable as"),
        (None, "No such file"),
    ],
)
def test_unreadable_files_are_one_line(tmp_path, language, content, complaint):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content if language == "JSON" else b"a = " + content)
    read = _system.read_json if language == "JSON" else _system.read_toml
    with pytest.raises(InputError, match=complaint) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
