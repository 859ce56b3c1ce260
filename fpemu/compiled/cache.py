"""Compiled kernels saved between processes, in place of numba's own cache.

Numba's cache raises where no folder is writable or a file is damaged, checks only one source file for changes, and
confuses the kernels of two processes that save at the same time. Here a kernel has one file, named after everything
that determines its machine code.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import llvmlite
import numba

from fpemu._system import KernelCache

_FOLDER = Path(__file__).resolve().parent
_SOURCES = (_FOLDER, _FOLDER.parent / "mma" / "compiled")  # all kernels are compiled from the modules of these folders


def saved(kernel: Any) -> Any:
    """Return a jitted function with a cache on disk."""
    sources = [path for folder in _SOURCES for path in sorted(folder.glob("*.py"))]
    if sources:  # none where the package is imported from a zip archive
        kernel._cache = _Cache(kernel.__name__, hashlib.sha256(b"".join(path.read_bytes() for path in sources)))
    return kernel


class _Cache:
    """The methods that numba's dispatcher calls.

    They use numba's internals, which may change: any exception there means that the kernel is compiled again.
    """

    def __init__(self, name: str, sources: Any) -> None:
        self._prefix = f"{name}-{sources.hexdigest()[:16]}-"
        self._stale = f"{name}-*.kernel"
        # several installations may share a folder
        subfolder = f"kernels/{_FOLDER.name}_{hashlib.sha256(str(_FOLDER).encode()).hexdigest()[:16]}"
        numba_folder = getattr(numba.config, "CACHE_DIR", "")  # $NUMBA_CACHE_DIR
        preferred = [Path(numba_folder).absolute() / subfolder] if numba_folder else []
        self._files = KernelCache(subfolder, *preferred, _FOLDER / "__pycache__")

    @property
    def cache_path(self) -> str | None:
        return None if self._files.folder is None else str(self._files.folder)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        name = ""
        try:
            from numba.core.compiler import CompileResult

            target_context.refresh()
            name = self._name(signature, target_context.codegen())
            content = self._files.load(name)
            return None if content is None else CompileResult._rebuild(target_context, *pickle.loads(content))
        except Exception:
            if name:
                self._files.discard(name)
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        try:
            from numba.core.serialize import dumps

            if compiled.lifted or compiled.library.has_dynamic_globals:
                return
            name, content = self._name(signature, compiled.codegen), dumps(compiled._reduce())
        except Exception:
            return
        self._files.discard(self._stale, except_prefix=self._prefix)
        self._files.save(name, content)

    def flush(self) -> None:
        """Delete the kernels of the present sources."""
        self._files.discard(f"{self._prefix}*")

    def enable(self) -> None:
        """Without effect: the cache is always enabled."""

    def disable(self) -> None:
        """Without effect: the cache is always enabled."""

    def _name(self, signature: Any, codegen: Any) -> str:
        compiler = (sys.version, numba.__version__, llvmlite.__version__, codegen.magic_tuple())
        return f"{self._prefix}{hashlib.sha256(repr((signature, compiler)).encode()).hexdigest()[:32]}.kernel"
