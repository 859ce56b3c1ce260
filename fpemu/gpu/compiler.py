"""CUDA C++ to machine code by NVRTC, kept on disk; no GPU is needed, which is how CI compiles every kernel."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fpemu.errors import GpuError
from fpemu.files import write_atomic

KERNELS = Path(__file__).parent / "kernels"
_OPTIONS = ("-std=c++17", "-default-device", "-fmad=false")


@cache
def compiler_missing() -> str | None:
    """None if kernels can be compiled here, else in one line what is missing."""
    try:
        version()
    except ImportError:
        return "cuda-bindings is not installed: pip install 'fpemu[gpu]'"
    except Exception as problem:  # the finder of the library has its own exceptions
        return f"NVRTC is not usable ({first_line(problem)}): pip install 'fpemu[gpu]'"
    return None


def first_line(problem: BaseException) -> str:
    """The first line of what an exception says."""
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__


def check(returned: tuple[Any, ...]) -> Any:
    """The values of a call of CUDA, whose first is its status.

    Raises
    ------
    GpuError
        If the status is not success: the name of the error and what it means.
    """
    status, *values = returned
    if int(status) != 0:
        raise GpuError(f"CUDA: {status.name}{_meaning(status)}")
    return values[0] if len(values) == 1 else tuple(values) if values else None


def _meaning(status: Any) -> str:
    if type(status).__name__ != "CUresult":
        return ""
    from cuda.bindings import driver

    with suppress(Exception):
        failed, text = driver.cuGetErrorString(status)
        if int(failed) == 0 and text:
            return f" ({text.decode() if isinstance(text, bytes) else text})"
    return ""


@cache
def version() -> str:
    """NVRTC's version: "13.0"."""
    from cuda.bindings import nvrtc

    major, minor = check(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


@cache
def _headers() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(KERNELS.glob("*.cuh"))}


def kernel_source(name: str) -> str:
    """The text of ``kernels/<name>``."""
    return (KERNELS / name).read_text()


def compile(source: str, arch: str, *, options: Sequence[str] = (), name: str = "kernel.cu") -> bytes:
    """The cubin of a CUDA C++ source; the headers ``kernels/*.cuh`` can be included by name. No GPU is needed.

    Parameters
    ----------
    source : str
    arch : str
        "sm_80", "sm_90a", "sm_100a" ...
    options : sequence of str
        Further options of NVRTC, such as "-DSIZE=8". Fused multiply-adds are off unless asked for.
    name : str
        What the compiler's messages call the source.

    Raises
    ------
    GpuError
        The compiler's messages, if the source does not compile.
    """
    from cuda.bindings import nvrtc

    headers = _headers()
    texts, names = [h.encode() for h in headers.values()], [n.encode() for n in headers]
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(names), texts, names))
    try:
        flags = [f"-arch={arch}".encode(), *(o.encode() for o in (*_OPTIONS, *options))]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        if int(status) != 0:
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            raise GpuError(f"{name} does not compile for {arch}:\n{log.decode(errors='replace')}")
        cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def cache_folder() -> Path:
    """Where cubins are kept: ``cubins`` in $FPEMU_CACHE, or in the user's cache folder."""
    named = os.environ.get("FPEMU_CACHE")
    if named:
        return Path(named) / "cubins"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fpemu" / "cubins"


def _kept(source: str, arch: str, options: Sequence[str] = ()) -> Path:
    """Where the cubin of a source is kept."""
    separator = "\0\0"
    parts = [version(), arch, *_OPTIONS, *options, source, *(f"{n}\0{t}" for n, t in _headers().items())]
    return cache_folder() / f"{hashlib.sha256(separator.join(parts).encode()).hexdigest()}.cubin"


def compile_cached(source: str, arch: str, *, options: Sequence[str] = (), name: str = "kernel.cu") -> bytes:
    """`compile`, from the disk where the same source, headers, options and compiler were seen before."""
    path = _kept(source, arch, options)
    with suppress(OSError):
        return path.read_bytes()
    cubin = compile(source, arch, options=options, name=name)
    with suppress(OSError):  # a folder that cannot be written costs time, not the result
        write_atomic(path, cubin)
    return cubin


def compile_all(sources: Sequence[str], arch: str) -> None:
    """Compile into the cache what is not there yet, by processes side by side; a fault shows where a source is used."""
    todo = [source for source in sources if not _kept(source, arch).exists()]
    workers = min(len(todo), os.cpu_count() or 1)
    if workers < 2:
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # an interrupt is the main process's business
    with ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, ignore) as pool:
        try:
            for done in [pool.submit(compile_cached, source, arch) for source in todo]:
                with suppress(GpuError):
                    done.result()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
