"""The command line: one module a command, each thin over the library.

Exit status: 0 done, 1 a check failed, 2 bad arguments or input (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import fpemu
from fpemu.cli import (
    advise,
    bench,
    characterize,
    conformance,
    gemm,
    kernels,
    ledger,
    library,
    listing,
    reproduce,
    reveal,
    split,
    sweep,
    tune,
    verify,
    verify_batched,
    verify_tallskinny,
)
from fpemu.errors import GpuError, GuaranteeError, InputError, unknown_name
from fpemu.sweep.run import CellError

# typer 0.2x carries its own copy of click; the classes are taken from typer so that either kind is caught
_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]


class _Group(TyperGroup):
    """Commands whose unknown names are answered with the nearest known ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_name("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="fpemu",
    cls=_Group,
    help="GEMM on tensor cores, bit for bit, and every scheme that makes FP32 and FP64 out of it.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fpemu {fpemu.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _fpemu(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("list")(listing.listing)
app.command("gemm")(gemm.gemm)
app.command("advise")(advise.advise)
# a number may begin with a minus sign
app.command("split", context_settings={"ignore_unknown_options": True})(split.split)
app.command("reproduce")(reproduce.reproduce)
app.command("ledger")(ledger.ledger)
app.command("reveal")(reveal.reveal)
app.command("characterize")(characterize.characterize)
app.add_typer(sweep.app, name="sweep")


def _commands(
    name: str, about: str, commands: dict[str, Callable[..., None]], lacking: Callable[[], str | None]
) -> None:
    """Enter a group of commands. Alone it prints its help, and on stderr what it lacks here."""
    group = typer.Typer(cls=_Group, help=about)

    @group.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
            missing = lacking()
            if missing is not None:
                print(f"fpemu: {name}: {missing}", file=sys.stderr)

    for command, function in commands.items():
        group.command(command)(function)
    app.add_typer(group, name=name)


_commands("bench", "Speed and memory, measured here.", {"cpu": bench.cpu, "gpu": bench.gpu}, lambda: None)
_commands("tune", "The fastest configurations, measured here.", {"batched": tune.batched}, verify.missing)
_commands(
    "verify",
    "Is it what it should be, bit for bit? A product that anybody made (gemm), or what the GPU here computes.",
    {
        "gemm": conformance.gemm,
        "instructions": verify.instructions,
        "kernels": kernels.kernels,
        "batched": verify_batched.batched,
        "tallskinny": verify_tallskinny.tallskinny,
        "emulation": verify.emulation,
        "library": library.library,
    },
    lambda: (lacking := verify.missing()) and f"all but gemm need a GPU: {lacking}",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit status; what the user got wrong is one line on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or β gets a question mark
    try:
        status = app(args=list(arguments) if arguments is not None else None, prog_name="fpemu", standalone_mode=False)
        sys.stdout.flush()
        return int(status or 0)
    except InputError as problem:
        return _complain(str(problem))
    except MemoryError as problem:
        return _complain(f"not enough memory: {problem}")
    except BrokenPipeError:
        # the reader of a pipe went away (fpemu list | head): nothing more to say, and nothing to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (CellError, GpuError, GuaranteeError) as problem:
        return _complain(str(problem), 1)
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        return _complain(where + (problem.strerror or str(problem)))
    except (typer.Abort, KeyboardInterrupt):
        print("fpemu: interrupted", file=sys.stderr)
        return 130
    except _USAGE_ERROR as problem:
        return _complain(problem.format_message())


def _complain(message: str, status: int = 2) -> int:
    print("fpemu: " + " ".join(message.split()), file=sys.stderr)
    return status
