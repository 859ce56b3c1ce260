"""Whole-or-nothing output files, output checks before a computation, and readers of JSON, TOML and Python files."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from fpemu.errors import InputError


# --- reading
def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    dict, list, str, int, float, bool or None

    Raises
    ------
    InputError
        If the file cannot be read, is not JSON, or nests too deeply.
    """
    return _read(path, "JSON", json.loads)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If the file cannot be read, is not TOML, or nests too deeply.
    """
    content: dict[str, Any] = _read(path, "TOML", tomllib.loads)
    return content


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


STARTED = time.time_ns()
"""When ``import fpemu`` began: a module of the package with a newer file may have been executed in another version."""
_SEEN: dict[Path, tuple[tuple[int, int], str]] = {}


def note(path: Path) -> None:
    """Record the SHA-256 of a file that is about to be executed; `seen` compares the file with it later."""
    _SEEN.pop(path, None)
    seen(path)


def seen(path: Path, *, loaded: bool = False) -> str:
    """Return the SHA-256 of a file that was recorded by `note`, or else by the first call.

    Parameters
    ----------
    path : Path
    loaded : bool
        The process may have executed the file before the first call.

    Returns
    -------
    str
        Hexadecimal digits.

    Raises
    ------
    InputError
        If the content of the file has changed since.
    """
    status, known = path.stat(), _SEEN.get(path)
    stamp = status.st_mtime_ns, status.st_size
    if known is not None and known[0] == stamp:
        return known[1]
    digest = sha256(path)
    # the same content with another time is no change
    if (loaded and status.st_mtime_ns > STARTED) if known is None else known[1] != digest:
        raise InputError(f"{path} was changed after this process loaded it: start the process (or kernel) again")
    _SEEN[path] = stamp, digest
    return digest


def _read(path: str | os.PathLike[str], language: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(Path(path).read_bytes().decode("utf-8-sig"))  # some editors write a byte order mark
    except OSError as problem:
        raise InputError(f"{os.fspath(path)}: {problem.strerror or problem}") from problem
    except RecursionError:
        raise InputError(f"{os.fspath(path)} is not readable as {language}: its values are nested too deeply") from None
    except ValueError as problem:  # the parsers' own errors, UTF-8's, and integers of more than 4300 digits
        raise InputError(f"{os.fspath(path)} is not readable as {language}: {problem}") from problem


def execute(path: str | os.PathLike[str], name: str = "") -> ModuleType:
    """Execute a Python file as a module, which may import the modules of its folder, also later.

    Parameters
    ----------
    path : path-like
    name : str, optional
        Name of the module; default: a name of the whole path, which hides no other module.

    Returns
    -------
    module

    Raises
    ------
    Exception
        From the file.
    """
    path = Path(path).resolve()
    name = name or re.sub(r"\W", "_", f"fpemu_user_{path.with_suffix('')}")
    note(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # stays: a function of the file may import when it is called
    sys.modules[name] = module  # dataclasses, Triton kernels and the sweep look up the module there
    spec.loader.exec_module(module)
    return module


# --- writing
def check_writable(name: str | os.PathLike[str], *, make_folders: bool = False) -> None:
    """Raise before a computation if its output file cannot be written afterwards.

    Parameters
    ----------
    name : path-like
    make_folders : bool
        Accept missing folders, which :func:`write_atomic` makes.

    Raises
    ------
    InputError
        If the name is empty, too long or a folder's, the existing file is read-only, or its folder is missing or does
        not accept new files.
    """
    if not os.fspath(name):
        raise InputError("the name of the output is empty")
    try:
        path = _target(name)
        if path.is_dir():
            raise InputError(f"{str(name)!r} is a folder")
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe
                return
        folder = path.parent
        while make_folders and not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise InputError(f"{name}: there is no folder {folder}")
        _check_not_read_only(path)
    except (OSError, ValueError) as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{name}: {getattr(problem, 'strerror', None) or problem}") from problem
    try:
        tempfile.TemporaryFile(dir=folder).close()  # permissions, read-only file systems, /proc
    except OSError as problem:
        raise InputError(f"{name}: cannot write in the folder {folder}: {problem.strerror}") from problem


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file: a temporary file in the same folder, then one rename. Missing folders are made.

    A symbolic link is followed. A device or a pipe is written in place. A replaced file passes its permissions on.

    Parameters
    ----------
    path : path-like
    content : bytes

    Raises
    ------
    OSError
        If the file cannot be written; `filename` is ``path``, and its former content is unchanged.
    """
    try:
        _write(_target(path), content)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror or str(problem), os.fspath(path)) from problem


def _write(path: Path, content: bytes) -> None:
    if path.exists() and not path.is_file():  # a device or a pipe, which a rename would replace by a file
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_not_read_only(path)
    temporary = path.with_name(f".fpemu-{secrets.token_hex(8)}")  # short, whatever the name's length
    try:
        with open(temporary, "xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # before the rename: a crash must not leave an empty file under the name
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _target(name: str | os.PathLike[str]) -> Path:
    """The file that a name leads to, through symbolic links."""
    path = Path(name)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _check_not_read_only(path: Path) -> None:
    if path.exists() and not path.stat().st_mode & stat.S_IWUSR:
        raise PermissionError(errno.EACCES, "the file is read-only", str(path))
