"""Compiled kernels on disk: the folders they are saved in, and a checksum of each file.

A damaged file counts as missing, and a file that cannot be written costs only the time to compile the kernel again.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from fpemu.files import write_atomic

_DIGEST = hashlib.sha256().digest_size  # bytes at the end of a file: the checksum of the bytes before them


class KernelCache:
    """Files of compiled kernels, written to the first writable folder and read from that and the folders before it.

    The folders are the preferred ones, ``$FPEMU_CACHE`` and the user's cache folder; `folder` is the one that kernels
    are written to. A temporary folder is not used: kernels that another user may have put there would be code of that
    user. If no folder is writable, `folder` is None, and a note on stderr states that kernels cannot be saved.
    """

    def __init__(self, subfolder: str, *preferred: Path) -> None:
        self.folder: Path | None = None
        self._readable: list[Path] = []
        for folder in (*preferred, *_persistent_folders(subfolder)):
            self._readable.append(folder)
            if _is_writable(folder):
                self.folder = folder
                return
        _note()

    def load(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing or damaged.

        A damaged file is deleted, and so are an empty folder or a pipe in its place.
        """
        for folder in self._readable:
            path = folder / name
            with suppress(OSError):
                if path.is_file():
                    content = path.read_bytes()
                    if hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]:
                        return content[:-_DIGEST]
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
            write_atomic(self.folder / name, content + hashlib.sha256(content).digest())

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
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@cache
def _note() -> None:
    """Print a note once, and only in the main process."""
    if multiprocessing.parent_process() is None:
        print(
            "fpemu: compiled kernels cannot be saved, so that each process compiles them again: set FPEMU_CACHE to a "
            "folder that is writable and persists",
            file=sys.stderr,
        )
