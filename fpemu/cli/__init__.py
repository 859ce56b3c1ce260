"""The command line: `main` runs a command; the modules hold the commands by subject, thin layers over the library.

Exit status: 0 done, 1 a check failed, 2 bad arguments or input (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from fpemu.errors import GpuError, GuaranteeError, InputError, require

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; report an error in its arguments or input as one line on stderr.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of this process.

    Returns
    -------
    int
        The exit status.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a terminal may lack Greek letters
    try:
        require("typer", "rich")
        return _run(words)
    except (GpuError, GuaranteeError) as problem:
        status, message = 1, str(problem)
    except InputError as problem:
        status, message = 2, str(problem)
    except MemoryError as problem:
        status, message = 2, f"not enough memory: {problem}"
    except BrokenPipeError:
        return 1  # the reader of standard output has left
    except OSError as problem:
        status, message = 2, ": ".join(str(x) for x in (problem.filename, problem.strerror or problem) if x is not None)
    except KeyboardInterrupt as problem:
        again = shlex.join(["fpemu", *(word for word in words if word != "--fresh")])
        status, message = 130, "interrupted" + (f"; {problem}: '{again}' continues from them" if problem.args else "")
    print(f"fpemu: {' '.join(message.split())}", file=sys.stderr)
    return status


def _run(words: list[str]) -> int:
    import typer

    from fpemu.cli.commands import command

    usage_error: Any = typer.BadParameter.__mro__[2]  # the base class in Click, or in typer's copy of Click
    try:
        with command.make_context("fpemu", words) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except usage_error as problem:
        raise InputError(problem.format_message()) from problem
    return 0
