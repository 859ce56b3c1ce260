"""Compile CUDA C++ to machine code with NVRTC and save it on disk, both by cuda.core.

No GPU and no driver is needed, so that the tests compile every kernel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fpemu._system import KernelCache
from fpemu.errors import GpuError

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
    """Return the values of a CUDA call without its status, which comes first; GpuError if it is not success."""
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
def _headers() -> bytes:
    texts = (f"{path.name}\0{path.read_text()}\0" for path in sorted(KERNELS.glob("*.cuh")))
    return hashlib.sha256("".join(texts).encode()).digest()


@cache
def kernel_source(name: str) -> str:
    """Return the text of ``kernels/<name>``."""
    return (KERNELS / name).read_text()


def struct(values: Mapping[str, bool | int | float], name: str = "Config") -> str:
    """Return a C++ struct with one static constexpr member for each value; a Python float becomes a C++ float.

    Examples
    --------
    >>> print(struct({"STAGES": 4, "EXACT": True, "SCALE": 2.0**-11}))
    struct Config {
      static constexpr int STAGES = 4;
      static constexpr bool EXACT = true;
      static constexpr float SCALE = 0.00048828125f;
    };
    """
    return "\n".join([f"struct {name} {{", *(f"  static constexpr {_member(*item)};" for item in values.items()), "};"])


def _member(name: str, value: bool | int | float) -> str:
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    return f"float {name} = {value!r}f" if isinstance(value, float) else f"int {name} = {value}"


def compile(source: str, arch: str, *, name: str = "kernel.cu") -> bytes:
    """Compile a CUDA C++ source to a cubin, without contraction of products and sums to fused multiply-adds.

    The source can include the headers ``kernels/*.cuh`` by name. If it does not compile for the architecture ("sm_80",
    "sm_90a" ...), GpuError has the compiler's messages, in which it has the given name.
    """
    from cuda.core import Program

    try:
        return bytes(Program(source, "c++", _program_options(arch, name)).compile("cubin").code)
    except Exception as problem:  # the exceptions of cuda.core are not public
        raise GpuError(f"{name} does not compile for {arch}:\n{problem}") from None


def _program_options(arch: str, name: str) -> Any:
    from cuda.core import ProgramOptions

    return ProgramOptions(name=name, arch=arch, include_path=str(KERNELS), **_OPTIONS)


@cache
def saved() -> Any:
    """Return the cubins on disk, in a folder that no other user can write; None if there is none."""
    from cuda.core.utils import FileStreamProgramCache

    folder = KernelCache("cubins").folder
    if folder is None or (hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid()):
        return None
    folder.chmod(0o700)
    return FileStreamProgramCache(folder)


def program_key(source: str, arch: str) -> bytes:
    """Return the name of a cubin: its text, options, headers and compiler."""
    from cuda.core.utils import make_program_cache_key

    options = _program_options(arch, "kernel.cu")
    key: bytes = make_program_cache_key(
        code=source, code_type="c++", options=options, target_type="cubin", extra_digest=_headers()
    )
    return key


def cubin(source: str, arch: str, *, name: str = "kernel.cu") -> bytes:
    """Return the cubin of a source, compiled or from disk; the parameters and errors are those of `compile`."""
    kept, key = saved(), program_key(source, arch)
    code: bytes | None = None if kept is None else kept.get(key)
    if code is None:
        code = compile(source, arch, name=name)
        if kept is not None:
            with suppress(OSError):  # a full disk, for example
                kept[key] = code
    return code
