"""The tree of commands: ``app`` is the Typer application that :func:`fpemu.cli.main` runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import fpemu
from fpemu.cli import bench, characterize, ledger, listing, planes, product, reproduce, reveal, sweep, verify
from fpemu.cli.common import add_command
from fpemu.errors import unknown_name


class _Group(TyperGroup):
    """Commands: an unknown name is an error that names the nearest ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_name("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="fpemu",
    cls=_Group,
    help="Emulate matrix units bit for bit, and the schemes that build FP32 and FP64 products from their products.",
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


def _add_group(name: str, about: str, commands: dict[str, Callable[..., None]], of_gpu: str | None = None) -> None:
    """Add a group of commands. Without a command it prints its help, and on stderr what this machine lacks for it."""
    group = typer.Typer(cls=_Group, help=about)

    @group.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
            if of_gpu is not None and (missing := verify.missing()) is not None:
                print(f"fpemu: {name}: {of_gpu}{missing}", file=sys.stderr)

    for command, function in commands.items():
        add_command(group, command, function)
    app.add_typer(group, name=name)


add_command(app, "list", listing.listing)
add_command(app, "gemm", product.gemm)
add_command(app, "advise", product.advise)
add_command(app, "reproduce", reproduce.reproduce)
add_command(app, "ledger", ledger.ledger)
add_command(app, "reveal", reveal.reveal)
add_command(app, "characterize", characterize.characterize)
# a number may begin with a minus sign
add_command(app, "split", product.split, context_settings={"ignore_unknown_options": True})
add_command(sweep.app, "scaling", planes.scaling)
add_command(sweep.app, "plane", planes.plane)
app.add_typer(sweep.app, name="sweep")
_add_group("bench", "Measure speed and memory on this machine.", {"cpu": bench.cpu, "gpu": bench.gpu})
_add_group(
    "tune", "Find the fastest configurations by measurements on this GPU.", {"batched": bench.tune_batched}, of_gpu=""
)
_add_group(
    "verify",
    "Verify a product, an instruction or a kernel against its bit-exact specification.",
    {
        "gemm": verify.gemm,
        "instructions": verify.instructions,
        "kernels": verify.kernels,
        "batched": verify.batched,
        "tallskinny": verify.tallskinny,
        "arguments": verify.arguments,
        "emulation": verify.emulation,
        "library": verify.library,
    },
    of_gpu="all but gemm need a GPU: ",
)
