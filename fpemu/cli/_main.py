"""Run a command, and turn its errors into one line and an exit status."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from fpemu.errors import GpuError, GuaranteeError, InputError, require


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; report an error in its arguments or input as one line on stderr.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of this process, which must then exit with the status returned.

    Returns
    -------
    int
        The exit status.
    """
    try:
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, io.TextIOWrapper):
                output.reconfigure(errors="replace")  # a terminal may lack Greek letters
        status = _finish(_run(sys.argv[1:] if arguments is None else list(arguments)))
    except InputError as problem:
        status = _finish(_complain(str(problem)))
    except KeyboardInterrupt:
        status = _finish(_complain("interrupted", 130))
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of Python's own exit shows no traceback
    return status


@functools.cache
def _command() -> Any:
    """The commands as Click objects, which typer takes 30 ms to build from the annotations."""
    import typer

    from fpemu.cli.commands import app

    return typer.main.get_command(app)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit status; raise InputError for bad arguments."""
    require("typer", "rich")
    import typer

    usage_error: Any = typer.BadParameter.__mro__[2]  # the base class in Click, or in the copy of Click in typer 0.2x
    command = _command()
    try:
        with command.make_context("fpemu", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return _complain("interrupted", 130)
    except usage_error as problem:
        return _complain(problem.format_message())
    except MemoryError as problem:
        return _complain(f"not enough memory: {problem}")
    except _failed_checks() as problem:
        return _complain(str(problem), 1)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) and problem.filename is None:
            return 0  # the reader of standard output has left
        full = problem.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO)
        where = "standard output" if full and problem.filename is None else problem.filename
        return _complain(": ".join(str(x) for x in (where, problem.strerror or problem) if x is not None))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return 0  # rich turns the one into the other
        raise
    return 0


def _failed_checks() -> tuple[type[Exception], ...]:
    """The errors of a command whose arguments were right; `CellError` only where its module is loaded."""
    run = sys.modules.get("fpemu.sweep.run")
    return (GpuError, GuaranteeError, *([] if run is None else [run.CellError]))


def _finish(status: int) -> int:
    """Flush both outputs. One that fails is replaced by the null device, so that Python's flush at exit succeeds."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by the shell
        try:
            stream.flush()
        except OSError as problem:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and not status and not isinstance(problem, BrokenPipeError):
                status = _complain(f"standard output: {problem.strerror}")
    return status


def _complain(message: str, status: int = 2) -> int:
    """Print one line on stderr, without control characters and the rest of endless words of an argument."""
    words = (word if len(word) <= 400 else f"{word[:200]}..." for word in message.split())
    line = "".join(c if c.isprintable() else "?" for c in " ".join(words))
    with contextlib.suppress(OSError):  # of a closed or full stderr
        print(f"fpemu: {line}", file=sys.stderr, flush=True)
    return status
