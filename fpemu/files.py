"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fpemu.errors import InputError


def check_writable(name: str | os.PathLike[str]) -> None:
    """InputError if a file cannot be written there: asked before a computation, not after it."""
    path = Path(name)
    if not str(name) or path.is_dir():
        raise InputError(f"{str(name)!r} is a folder" if str(name) else "the name of the output is empty")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{name}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{name}: cannot write in the folder {folder}")


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file: a temporary file in the same folder, then one rename. Missing folders are made.

    Parameters
    ----------
    path : path-like
    content : bytes

    Raises
    ------
    OSError
        If it cannot be written; what was there before is still there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 would hide the file from everyone else
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
