"""The tree of commands: `command` is what :func:`fpemu.cli.main` runs. A command's module is imported when it runs."""

from __future__ import annotations

import functools
import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import fpemu
from fpemu.cli import options as cli
from fpemu.errors import unknown_name

COMMANDS: dict[str, tuple[str, str | dict[str, str], str]] = {
    "list": (
        "listing",
        "listing",
        "List hardware, schemes, experiments, formats, input distributions and error measures.",
    ),
    "gemm": (
        "product",
        "gemm",
        "Multiply two matrices by split schemes and compare the results with the exact product.",
    ),
    "advise": (
        "advise",
        "advise",
        "Find the cheapest scheme whose error bound and whose error measured on the data meet a target.",
    ),
    "reproduce": (
        "lab",
        "reproduce",
        "Reproduce figures of the papers: picture (PNG), data (CSV) and record of provenance and claims (JSON).",
    ),
    "ledger": (
        "lab",
        "write_ledger",
        "Write the ledger of published claims: LEDGER.md, LEDGER.csv and a page of details for each paper in ledger/.",
    ),
    "reveal": ("probe", "reveal", "Find the summation tree of any GEMM by probes."),
    "characterize": (
        "probe",
        "characterize",
        "Find the arithmetic of a matrix instruction by directed probes, and verify it with random operands.",
    ),
    "split": (
        "product",
        "split",
        "Show the split of one number into words: the value of each word, its bits, and the lost bits.",
    ),
    "sweep": (
        "lab",
        {"run": "sweep", "scaling": "scaling", "plane": "plane"},
        "Evaluate the errors of schemes over a grid: 'fpemu sweep FILE'; 'fpemu sweep run -h' lists its options.",
    ),
    "bench": ("bench", {"cpu": "cpu", "gpu": "gpu"}, "Measure speed and memory on this machine."),
    "tune": ("bench", {"batched": "tune_batched"}, "Find the fastest configurations by measurements on this GPU."),
    "verify": (
        "verify",
        {
            "gemm": "gemm",
            "instructions": "instructions",
            "kernels": "kernels",
            "batched": "batched",
            "tallskinny": "tallskinny",
            "arguments": "arguments",
            "emulation": "emulation",
            "library": "library",
        },
        "Verify a product, an instruction or a kernel against its bit-exact specification.",
    ),
}
"""By the name of a command: its module, its function, or the functions of its subcommands, and its summary."""
_OF_GPU = {"tune": "", "verify": "all but gemm need a GPU: "}
"""Groups that need a GPU: what precedes the reason that there is none."""


class _Group(TyperGroup):
    """Commands: an unknown name is an error that names the nearest ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_name("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


class _Sweep(TyperGroup):
    """Take a first word that is no subcommand as a file: ``fpemu sweep FILE`` runs ``fpemu sweep run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        file = args and args[0] not in (*self.commands, "-h", "--help")
        return super().parse_args(ctx, ["run", *args] if file else args)


class _Unloaded(TyperCommand):
    """The name and the summary of a command, which is loaded to parse its arguments."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        assert self.name is not None
        return load(self.name).make_context(info_name, args, *rest, **extra)


@functools.cache
def load(name: str) -> Any:
    """Import the module of a command and return the command with its options, a group with its subcommands."""
    module, functions, summary = COMMANDS[name]
    source = importlib.import_module(f"fpemu.cli.{module}")
    app = typer.Typer(name=name, cls=_Sweep if name == "sweep" else _Group, help=summary, add_completion=False)
    if isinstance(functions, str):
        # split: a number may begin with a minus sign
        settings = {"context_settings": {"ignore_unknown_options": True}} if name == "split" else {}
        cli.add_command(app, name, getattr(source, functions), **settings)
        return typer.main.get_command(app)

    @app.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        """Print the help, and on stderr what this machine lacks for the group."""
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
            if name in _OF_GPU and (missing := cli.missing_gpu()) is not None:
                cli.note(f"fpemu: {name}: {_OF_GPU[name]}{missing}")

    for subcommand, function in functions.items():
        cli.add_command(app, subcommand, getattr(source, function))
    return typer.main.get_command(app)


def load_all() -> Any:
    """Load every command, for the documentation of their options, and return `command`."""
    command.commands.update({name: load(name) for name in COMMANDS})
    return command


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fpemu {fpemu.__version__}")
        raise typer.Exit


_app = typer.Typer(
    name="fpemu",
    cls=_Group,
    help="Emulate matrix units bit for bit, and the schemes that build FP32 and FP64 products from their products.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@_app.callback(invoke_without_command=True)
def _fpemu(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


command: Any = typer.main.get_command(_app)
command.commands = {name: _Unloaded(name, help=summary) for name, (_, _, summary) in COMMANDS.items()}
