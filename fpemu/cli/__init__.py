"""The command line: `main` runs a command; the modules hold the commands by subject, thin layers over the library.

Exit status: 0 done, 1 a check failed, 2 bad arguments or input (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # without imports at the start: an interrupt of them cannot be handled
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

__all__ = ["main"]
_AGAIN = 0.05  # seconds from a lost interrupt to its repetition: longer than a finaliser takes


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
    try:
        return _main(words)
    except KeyboardInterrupt as problem:
        message = "interrupted"
        if problem.args:
            import shlex

            again = shlex.join(["fpemu", *(word for word in words if word != "--fresh")])
            message += f"; {problem}: '{again}' continues from them"
    print(f"fpemu: {message}", file=sys.stderr)
    return 130


def _main(words: list[str]) -> int:
    import io

    from fpemu.errors import GpuError, GuaranteeError, InputError, require

    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a terminal may lack Greek letters
    try:
        require("typer", "rich")
        return _until_interrupted(lambda: _run(words))
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
    print(f"fpemu: {' '.join(message.split())}", file=sys.stderr)
    return status


def _until_interrupted(run: Callable[[], int]) -> int:
    """Call a function, and repeat an interrupt that is lost.

    Python prints and drops an exception that is raised in a finaliser, or in a callback from compiled code such as
    LLVM's: a hook receives it, and a KeyboardInterrupt comes again once the finaliser has ended. The hook is a method
    of a queue in C, since an interrupt that arrives in a hook written in Python would be printed and dropped too.
    """
    import _thread
    import threading
    from queue import SimpleQueue

    dropped: SimpleQueue[Any] = SimpleQueue()
    lost: list[type] = []
    before, ended = sys.unraisablehook, threading.Event()

    def repeat() -> None:
        for exception in iter(dropped.get, None):
            if not issubclass(exception.exc_type, KeyboardInterrupt):
                before(exception)
                continue
            lost.append(exception.exc_type)
            if not ended.wait(_AGAIN):
                _thread.interrupt_main()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    sys.unraisablehook = dropped.put
    try:
        status = run()
    finally:
        sys.unraisablehook = before
        ended.set()
        dropped.put(None)
        thread.join()
    if lost and status == 0:
        raise KeyboardInterrupt
    return status


def _run(words: list[str]) -> int:
    import typer

    from fpemu.cli.commands import command
    from fpemu.errors import InputError

    usage_error: Any = typer.BadParameter.__mro__[2]  # the base class in Click, or in typer's copy of Click
    try:
        with command.make_context("fpemu", words) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except usage_error as problem:
        raise InputError(problem.format_message()) from problem
    return 0
