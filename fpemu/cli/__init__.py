"""The command line: one module for each command, each a thin layer over the library.

Exit status: 0 done, 1 a check failed, 2 bad arguments or input (one line on stderr), 130 interrupted. A closed pipe at
standard output (``fpemu list | head``) ends a command quietly with status 0.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # an interrupt while signal imports enum would show a traceback
import os


def _end(*_: object) -> None:
    """End the process as `main` does after an interrupt; nothing that must be closed is open yet."""
    os.write(2, b"fpemu: interrupted\n")
    os._exit(130)


_handler = _signal.getsignal(_signal.SIGINT)
try:
    _signal.signal(_signal.SIGINT, _end)  # until the imports below are complete
except ValueError:  # not the main thread
    _handler = None

from typing import Any  # noqa: E402

from fpemu.cli._main import main  # noqa: E402

__all__ = ["app", "main"]

if _handler is not None:
    _signal.signal(_signal.SIGINT, _handler)


def __getattr__(name: str) -> Any:
    """Import the commands when ``app`` is first used, so that :func:`main` handles an interrupt of this import too."""
    if name == "app":
        from fpemu.cli.commands import app

        return app
    raise AttributeError(f"module 'fpemu.cli' has no attribute {name!r}")
