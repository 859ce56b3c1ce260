"""Compile CUDA C++ to machine code with NVRTC (`cuda.core.Program`) and save it on disk.

No GPU and no driver is needed, so that the tests compile every kernel. The disk cache is `fpemu.kernelcache`, which the
kernels for the CPU use too.
"""

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
from fpemu.kernelcache import KernelCache

KERNELS = Path(__file__).parents[1] / "kernels"
_OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "fma": False,
    "device_as_default_execution_space": True,
    "device_int128": True,
}


@cache
def compiler_missing() -> str | None:
    """Return None if kernels can be compiled here, else one line that names the missing package."""
    try:
        version()
    except ImportError:
        return "cuda-core is not installed: pip install 'fpemu[gpu]'"
    except Exception as problem:  # cuda-pathfinder defines exceptions for a missing library
        return f"NVRTC is not usable ({first_line(problem)}): pip install 'fpemu[gpu]'"
    return None


def first_line(problem: BaseException) -> str:
    """Return the first line of an exception's message."""
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__


def check(returned: tuple[Any, ...]) -> Any:
    """Return the values of a CUDA call without its status, which comes first.

    Raises
    ------
    GpuError
        If the status is not success, with the name of the error and its meaning.
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
    """Return NVRTC's version, such as "13.0"."""
    import cuda.core  # noqa: F401 (the compiler needs it too)
    from cuda.bindings import nvrtc

    major, minor = check(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


@cache
def _headers() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(KERNELS.glob("*.cuh"))}


def kernel_source(name: str) -> str:
    """Return the text of ``kernels/<name>``."""
    return (KERNELS / name).read_text()


def compile(source: str, arch: str, *, name: str = "kernel.cu") -> bytes:
    """Compile a CUDA C++ source to a cubin, without contraction of products and sums to fused multiply-adds.

    Parameters
    ----------
    source : str
        It can include the headers ``kernels/*.cuh`` by name.
    arch : str
        "sm_80", "sm_90a", "sm_100a" ...
    name : str
        The source's name in the compiler's messages.

    Returns
    -------
    bytes
        The cubin.

    Raises
    ------
    GpuError
        The compiler's messages, if the source does not compile.
    """
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(name=name, arch=arch, include_path=str(KERNELS), **_OPTIONS)
    try:
        return bytes(Program(source, "c++", options).compile("cubin").code)
    except Exception as problem:  # the exceptions of cuda.core are not public
        raise GpuError(f"{name} does not compile for {arch}:\n{problem}") from None


def _cubins() -> KernelCache:
    """The saved cubins: folder ``cubins`` of $FPEMU_CACHE or of the user's cache folder."""
    return KernelCache("cubins")


def _cubin_name(source: str, arch: str) -> str:
    """The file name of a source's cubin."""
    words = [version(), arch, str(_OPTIONS), source, *(f"{name}\0{text}" for name, text in _headers().items())]
    return f"{hashlib.sha256(chr(0).join(words).encode()).hexdigest()}.cubin"


def compile_cached(source: str, arch: str, *, name: str = "kernel.cu") -> bytes:
    """Return the cubin of a source, saved on disk under its text, headers and compiler version.

    The parameters are those of `compile`. A damaged file is compiled again; a folder that cannot be written costs
    time, not the result.

    Raises
    ------
    GpuError
        The compiler's messages, if the source does not compile.
    """
    cubins, file = _cubins(), _cubin_name(source, arch)
    cubin = cubins.load(file)
    if cubin is None:
        cubin = compile(source, arch, name=name)
        cubins.save(file, cubin)
    return cubin


def compile_all(sources: Sequence[str], arch: str) -> None:
    """Compile and save the cubins that are missing, in parallel processes.

    A source that does not compile raises when it is used, not here.
    """
    cubins = _cubins()
    missing = [source for source in sources if cubins.load(_cubin_name(source, arch)) is None]
    workers = min(len(missing), os.cpu_count() or 1)
    if workers < 2 or cubins.folder is None:
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # the main process handles an interrupt
    with ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, ignore) as pool:
        try:
            for future in [pool.submit(compile_cached, source, arch) for source in missing]:
                with suppress(GpuError):
                    future.result()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
