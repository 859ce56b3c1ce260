"""What the package takes from the system: files, kernels on disk, threads, their floating-point state; and digests."""

from __future__ import annotations

import ctypes
import errno
import functools
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError, shown


# --- reading
def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file; a file that cannot be read or is not JSON raises InputError."""
    return _read(path, "JSON", json.loads)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a TOML file; a file that cannot be read or is not TOML raises InputError."""
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

    A content that has changed since raises InputError. With `loaded`, the process may have executed the file before the
    first call, so a file newer than the process raises InputError too.
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

    The default name is made of the whole path, so that it hides no other module.
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
    """Raise InputError before a computation if its output file cannot be written afterwards.

    With `make_folders`, missing folders are accepted, because `write_atomic` makes them.
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


def write_atomic(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> None:
    """Write a file: a temporary file in the same folder, then one rename. Missing folders are made.

    A symbolic link is followed. A device or a pipe is written in place. A replaced file passes its permissions on,
    unless `private`: then only this user may write to it. If the file cannot be written, an
    OSError with ``filename=path`` is raised and the former content is unchanged.
    """
    try:
        _write(_target(path), content, private)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror or str(problem), os.fspath(path)) from problem


def _write(path: Path, content: bytes, private: bool) -> None:
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
        if private:
            temporary.chmod(temporary.stat().st_mode & 0o755)
        elif path.exists():
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


# --- compiled kernels on disk: a damaged file counts as missing, and one that cannot be written is compiled again
_CHECKSUM = hashlib.sha256().digest_size  # bytes at the end of a file: the checksum of the bytes before them


class KernelCache:
    """Files of compiled kernels, written to the first writable folder and read from that and the folders before it.

    The folders are, in this order, `preferred`, ``$FPEMU_CACHE`` and the user's cache folder. Kernels are written to
    `folder`. A kernel is code, so a folder is skipped, and so is a file, unless this user or root owns it and no other
    user may write to it. If no folder is left, `folder` is None, and a note on stderr states that kernels cannot be
    saved.
    """

    def __init__(self, subfolder: str, *preferred: Path) -> None:
        self.folder: Path | None = None
        self._readable: list[Path] = []
        for folder in (*preferred, *_persistent_folders(subfolder)):
            writable = _is_writable(folder)  # makes the folder
            if not _is_private(folder):
                continue
            self._readable.append(folder)
            if writable:
                self.folder = folder
                return
        _note_unsaved()

    def load(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing, damaged, or may be the work of another user.

        Such a file is deleted, and so are an empty folder or a pipe in its place.
        """
        for folder in self._readable:
            path = folder / name
            with suppress(OSError):
                if path.is_file() and _is_private(folder) and _is_private(path):
                    content = path.read_bytes()
                    if hashlib.sha256(content[:-_CHECKSUM]).digest() == content[-_CHECKSUM:]:
                        return content[:-_CHECKSUM]
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)
        return None

    def save(self, name: str, content: bytes) -> None:
        """Write a file in one step, with its checksum; without effect if that fails."""
        if self.folder is None:
            return
        with suppress(OSError):  # a full disk, for example
            write_atomic(self.folder / name, content + hashlib.sha256(content).digest(), private=True)

    def discard(self, pattern: str, *, except_prefix: str | None = None) -> None:
        """Delete the files whose names match a pattern (as of `Path.glob`) and do not begin with a prefix."""
        for folder in self._readable:
            with suppress(OSError):
                for path in folder.glob(pattern):
                    if except_prefix is None or not path.name.startswith(except_prefix):
                        path.unlink(missing_ok=True)


def _persistent_folders(subfolder: str) -> Iterator[Path]:
    named = os.environ.get("FPEMU_CACHE")
    if named:
        yield Path(named).absolute() / subfolder
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user_cache.is_absolute():
        try:
            user_cache = Path.home() / ".cache"
        except RuntimeError:  # no HOME, and a user without an entry in the password database
            return
    yield user_cache / "fpemu" / subfolder


@cache
def _is_writable(folder: Path) -> bool:
    """Make the folder and a file in it: permissions alone do not show a read-only file system."""
    try:
        folder.mkdir(0o755, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _is_private(path: Path) -> bool:
    """Whether this user or root owns a file or folder, no link, that no other user may change."""
    if not hasattr(os, "geteuid"):
        return True  # Windows: the folders of a user are private
    try:
        status = path.lstat()
    except OSError:
        return False
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (0, os.geteuid()) and not others and not stat.S_ISLNK(status.st_mode)


@cache
def _note_unsaved() -> None:
    """Print a note once, and only in the main process."""
    import multiprocessing  # takes longer than all other imports of this module

    if multiprocessing.parent_process() is None:
        print(
            "fpemu: compiled kernels cannot be saved, so that each process compiles them again: set FPEMU_CACHE to a "
            "folder that persists and that you alone can write",
            file=sys.stderr,
        )


# --- threads
P = ParamSpec("P")
R = TypeVar("R")
_CHUNK = 2**15  # entries of an array that one task computes: NumPy's temporaries then stay in a core's cache


def cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def threads() -> int:
    """Number of threads to use: FPEMU_THREADS, else the number of cores."""
    setting = os.environ.get("FPEMU_THREADS", "")
    if not setting:
        return cores()
    if not re.fullmatch("0*[1-9][0-9]{0,8}", setting):
        raise InputError(f"FPEMU_THREADS = {shown(setting)} must be a positive integer below 10^9")
    return int(setting)


def map_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Apply a function to every item on threads, and return the results in order."""
    items = list(items)
    count = min(threads(), len(items))
    if count < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(count) as pool:
        try:
            # in a copy of the caller's context, which holds NumPy's treatment of overflow
            return [future.result() for future in [pool.submit(copy_context().run, function, x) for x in items]]
        except BaseException:  # after an error or Ctrl-C only the calls under way end
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def map_chunks(function: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
    """Apply an elementwise function to arrays of one shape, on threads where there are many entries.

    The function returns an array, or a tuple of arrays, of the shape of its arguments.
    """
    shape, size = arrays[0].shape, arrays[0].size
    if size <= 2 * _CHUNK:
        return function(*arrays)
    flat = [x.reshape(-1) for x in arrays]
    results = map_threads(
        lambda chunk: function(*(x[chunk] for x in flat)), [slice(i, i + _CHUNK) for i in range(0, size, _CHUNK)]
    )
    if isinstance(results[0], tuple):
        return tuple(np.concatenate(column).reshape(shape) for column in zip(*results, strict=True))
    return np.concatenate(results).reshape(shape)


def use_compiled(size: int) -> bool:
    """Whether an elementwise operation on so many entries runs compiled: fewer take less time than numba's import."""
    if size < (1 << 12 if "numba" in sys.modules else 1 << 16):
        return False
    import numba

    return not getattr(numba.config, "DISABLE_JIT", 0)


def map_tasks(task: Callable[[Any], R], items: Sequence[Any]) -> list[R]:
    """Apply a compiled function to every item on threads; to the first alone, because it may have to compile."""
    return [task(items[0]), *(_pool().map if threads() > 1 else map)(task, items[1:])]


def map_blocks(task: Callable[[slice], R], size: int, block: int = 1 << 16) -> list[R]:
    """Apply a compiled function to blocks of a range, as `map_tasks`."""
    if size <= block:
        return [task(slice(0, size))]
    return map_tasks(task, [slice(i, min(i + block, size)) for i in range(0, size, block)])


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), thread_name_prefix="fpemu", initializer=set_ieee)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


# --- the floating-point environment of a thread: IEEE's rounds to nearest and neither reads nor writes subnormals as 0
TINY, HALF, ONE = 2.0**-1022, 0.5, 1.0
BELOW, ABOVE = 2.0**-54, 3 * 2.0**-54  # 1 plus the first is rounded down to nearest, 1 plus the second up
_ENVIRONMENT = (
    "the floating-point environment of this thread flushes subnormal numbers to zero or rounds in a direction: undo it "
    "before this call; likely causes are torch.set_flush_denormal(True), a library built with -ffast-math, fesetround"
)


def ieee() -> bool:
    """Whether this thread rounds to nearest and computes with subnormal numbers."""
    # names, not literals: Python would evaluate a sum of literals when it compiles this function
    return TINY * HALF > 0.0 and ONE + BELOW < ONE + ABOVE


def in_ieee(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that computes: it runs in the IEEE environment, and then the caller's is restored.

    The threads that the function starts inherit the environment.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        # `ieee`, written out: a call of it would take as long again
        if TINY * HALF > 0.0 and ONE + BELOW < ONE + ABOVE:
            return function(*arguments, **keywords)
        with _environment():
            return function(*arguments, **keywords)

    return call


@contextmanager
def _environment() -> Iterator[None]:
    saved = ctypes.create_string_buffer(1024)  # fenv_t has 8 to 40 bytes
    known = _libm() is not None and _libm().fegetenv(saved) == 0
    set_ieee()
    try:
        check_ieee()
        yield
    finally:
        if known:
            _libm().fesetenv(saved)


def set_ieee() -> None:
    """Set the IEEE environment of this thread; without effect where the system's C library cannot."""
    if (libm := _libm()) is not None:
        try:
            default = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(libm, "_FE_DFL_ENV")))  # macOS
        except ValueError:
            default = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl
        libm.fesetenv(default)


def check_ieee() -> None:
    """Raise InputError unless this thread is in the IEEE environment."""
    if not ieee():
        raise InputError(_ENVIRONMENT)


@cache
def _libm() -> Any:
    """The C library with fesetenv; None on Windows, whose default environment has no address to pass."""
    for name in (None, "libm.so.6"):
        with suppress(OSError, TypeError, AttributeError):
            library = ctypes.CDLL(name)
            library.fegetenv, library.fesetenv  # noqa: B018 (AttributeError in a library without them)
            return library if sys.platform != "win32" else None
    return None


# --- digests of arrays of bit patterns, by which two machines compare outputs without exchanging them
def digest(D: NDArray[Any], first: int = 0) -> int:
    """Return the sum modulo 2^64 of a mixture of each code of D with its index, the first of which is `first`."""
    index = np.arange(first, first + D.size, dtype=np.uint64)
    return int(mix(mix(index) + D.reshape(-1).astype(np.uint64)).sum(dtype=np.uint64))


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood 2014) of each word."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def digest_text(D: NDArray[Any]) -> str:
    """Return the digest as 16 hexadecimal digits, its form in records."""
    return f"{digest(D):016x}"
