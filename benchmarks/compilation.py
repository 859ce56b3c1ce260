"""Kernels compiled side by side before a measurement."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

from fpemu.errors import GpuError
from fpemu.gpu.runtime import compiler


def compile_all(sources: Sequence[str], arch: str) -> None:
    """Compile and save the cubins that are missing, in parallel processes.

    A source that does not compile raises when it is used, not here.
    """
    saved = compiler.saved()
    missing = (
        [] if saved is None else [source for source in sources if saved.get(compiler.program_key(source, arch)) is None]
    )
    workers = min(len(missing), os.cpu_count() or 1)
    if workers < 2:
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # the main process handles an interrupt
    with ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, ignore) as pool:
        try:
            for future in [pool.submit(compiler.cubin, source, arch) for source in missing]:
                with suppress(GpuError):
                    future.result()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
