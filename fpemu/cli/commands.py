"""The tree of commands: ``app`` is the Typer application, ``command`` what :func:`fpemu.cli.main` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import fpemu
from fpemu.cli import bench, lab, listing, probe, product, verify
from fpemu.cli import options as cli
from fpemu.errors import unknown_name


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


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fpemu {fpemu.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="fpemu",
    cls=_Group,
    help="Emulate matrix units bit for bit, and the schemes that build FP32 and FP64 products from their products.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _fpemu(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _add_group(name: str, about: str, of_gpu: str | None = None, /, **commands: Callable[..., None]) -> None:
    """Add a group of commands. Without a command it prints its help, and on stderr what this machine lacks for it."""
    group = typer.Typer(cls=_Sweep if name == "sweep" else _Group, help=about)

    @group.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
            if of_gpu is not None and (missing := verify.missing()) is not None:
                cli.note(f"fpemu: {name}: {of_gpu}{missing}")

    for command, function in commands.items():
        cli.add_command(group, command, function)
    app.add_typer(group, name=name)


cli.add_command(app, "list", listing.listing)
cli.add_command(app, "gemm", product.gemm)
cli.add_command(app, "advise", product.advise)
cli.add_command(app, "reproduce", lab.reproduce)
cli.add_command(app, "ledger", lab.write_ledger)
cli.add_command(app, "reveal", probe.reveal)
cli.add_command(app, "characterize", probe.characterize)
# a number may begin with a minus sign
cli.add_command(app, "split", product.split, context_settings={"ignore_unknown_options": True})
_add_group(
    "sweep",
    "Evaluate the errors of schemes over a grid: 'fpemu sweep FILE'; 'fpemu sweep run -h' lists its options.",
    run=lab.sweep,
    scaling=lab.scaling,
    plane=lab.plane,
)
_add_group("bench", "Measure speed and memory on this machine.", cpu=bench.cpu, gpu=bench.gpu)
_add_group("tune", "Find the fastest configurations by measurements on this GPU.", "", batched=bench.tune_batched)
_add_group(
    "verify",
    "Verify a product, an instruction or a kernel against its bit-exact specification.",
    "all but gemm need a GPU: ",
    gemm=verify.gemm,
    instructions=verify.instructions,
    kernels=verify.kernels,
    batched=verify.batched,
    tallskinny=verify.tallskinny,
    arguments=verify.arguments,
    emulation=verify.emulation,
    library=verify.library,
)
command: Any = typer.main.get_command(app)
