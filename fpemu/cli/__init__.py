"""The command line: one module for each command, each a thin layer over the library.

Exit status: 0 done, 1 a check failed, 2 bad arguments or input (one line on stderr), 130 interrupted. A closed pipe at
standard output (``fpemu list | head``) ends a command quietly with status 0.
"""

from __future__ import annotations

from typing import Any

from fpemu.cli._main import main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Import the commands when ``app`` is first used, so that :func:`main` handles an interrupt of this import too."""
    if name == "app":
        from fpemu.cli.commands import app

        return app
    raise AttributeError(f"module 'fpemu.cli' has no attribute {name!r}")
