"""The tree of commands: `command` is what :func:`fpemu.cli.main` runs. A command's module is imported when it runs."""

from __future__ import annotations

import functools
import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import fpemu
from fpemu.cli.options import missing_gpu, note, with_options

SUMMARIES = {
    "list": "List hardware, schemes, experiments, formats, input distributions and error measures.",
    "gemm": "Multiply two matrices by split schemes and compare the results with the exact product.",
    "advise": "Find the cheapest scheme whose error bound and whose error measured on the data meet a target.",
    "reproduce": "Reproduce figures of papers: picture (PNG), data (CSV) and record of provenance and claims (JSON).",
    "ledger": "Write the ledger of published claims: LEDGER.md, LEDGER.csv and a page of details per paper in ledger/.",
    "reveal": "Find the summation tree of any GEMM by probes.",
    "invariant": "Find the sizes or settings at which a GEMM changes the summation order of a row.",
    "compare": "Find the first product of two recorded runs whose operands are equal and whose results are not.",
    "replay": "Emulate the products of a recorded run, and find the orders that reproduce them.",
    "library": "Look up the summation order of a library's product: 'fpemu library lookup cublas fp16 512x512x8192'.",
    "characterize": "Find the arithmetic of a matrix instruction by directed probes, and verify it by random operands.",
    "catalog": "Add the instructions that a probe kit measured to a file of catalogue rows.",
    "split": "Show the split of one number into words: the value of each word, its bits, and the lost bits.",
    "sweep": "Evaluate the errors of schemes over a grid in a file, or over the two axes of a map.",
    "bench": "Measure speed and memory on this machine.",
    "tune": "Find the fastest configurations by measurements on this GPU.",
    "verify": "Verify a product, an instruction or a kernel against its bit-exact specification.",
}
"""The first line of the help of every command, stated here because the help of `fpemu` imports no command."""
_FUNCTIONS: dict[str, str | dict[str, str]] = {
    "list": "listing.listing",
    "gemm": "product.gemm",
    "advise": "advise.advise",
    "reproduce": "lab.reproduce",
    "ledger": "lab.write_ledger",
    "reveal": "probe.reveal",
    "invariant": "invariant.invariant",
    "compare": "runs.compare",
    "replay": "runs.replay",
    "library": {"lookup": "probe.lookup", "replay": "probe.replay"},
    "characterize": "probe.characterize",
    "catalog": {"add": "probe.add_rows"},
    "split": "product.split",
    "sweep": {"run": "lab.sweep", "scaling": "lab.scaling", "plane": "lab.plane"},
    "bench": {"cpu": "bench.cpu", "gpu": "bench.gpu"},
    "tune": {"batched": "bench.tune_batched"},
    "verify": {
        name: f"verify.{name}"
        for name in (
            *("gemm", "instructions", "kernels", "batched", "tallskinny", "arguments", "emulation", "library"),
            "collective",
        )
    },
}
"""The function of every command, or those of its subcommands."""


class _Sweep(TyperGroup):
    """Take a first word that is no subcommand as a file: ``fpemu sweep FILE`` runs ``fpemu sweep run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        file = args and args[0] not in (*self.commands, "-h", "--help")
        return super().parse_args(ctx, ["run", *args] if file else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the subcommands, and the options of ``fpemu sweep FILE``."""
        super().format_help(ctx, formatter)
        run = self.commands["run"]
        run.format_help(type(ctx)(run, info_name="", parent=ctx), formatter)


class _Unloaded(TyperCommand):
    """The name and the summary of a command, which is loaded to parse its arguments."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        assert self.name is not None
        return load(self.name).make_context(info_name, args, *rest, **extra)


@functools.cache
def load(name: str) -> Any:
    """Import the module of a command and return the command with its options, a group with its subcommands."""
    functions, kind = _FUNCTIONS[name], _Sweep if name == "sweep" else TyperGroup
    app = typer.Typer(name=name, cls=kind, help=SUMMARIES[name], add_completion=False)
    if isinstance(functions, str):
        functions = {name: functions}
    else:
        app.callback(invoke_without_command=True)(_print_help)
    for word, path in functions.items():
        module, _, attribute = path.partition(".")
        function = getattr(importlib.import_module(f"fpemu.cli.{module}"), attribute)
        # each paragraph on one line: Typer would keep the line breaks
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in (function.__doc__ or "").split("\n\n"))
        with_its_options = function if hasattr(function, "__wrapped__") else with_options()(function)
        # split: a number may begin with a minus sign
        app.command(word, help=text, context_settings={"ignore_unknown_options": word == "split"})(with_its_options)
    return typer.main.get_command(app)


def load_all() -> Any:
    """Load every command, for the documentation of their options, and return `command`."""
    command.commands.update({name: load(name) for name in SUMMARIES})
    return command


def _print_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        if context.info_name in ("tune", "verify") and (missing := missing_gpu()) is not None:
            note(f"fpemu: {context.info_name}: commands on a GPU cannot run here: {missing}")


_app = typer.Typer(
    name="fpemu",
    help="Emulate matrix units bit for bit, and the schemes that build FP32 and FP64 products from their products.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@_app.callback(invoke_without_command=True)
def _fpemu(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"fpemu {fpemu.__version__}")
        raise typer.Exit
    _print_help(context)


command: Any = typer.main.get_command(_app)
command.commands = {name: _Unloaded(name, help=summary) for name, summary in SUMMARIES.items()}
