"""Execute the notebooks: ``python notebooks/build.py [NAME ...] [--check] [--no-pictures] [--output FOLDER]``.

The source of a notebook is ``NAME.py``, with cells in jupytext's percent format. This script executes it and writes
``NAME.ipynb`` with the outputs. Equal sources give equal files: times, versions and random ids are left out. The kernel
is the Python that runs this script, in the repository's root, without the user's IPython settings.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_TABLE = """<div style="overflow-x: auto">
<style scoped>
    .dataframe th, .dataframe td {
        padding: 0.2em 0.8em;
        text-align: right;
        vertical-align: top;
        font-variant-numeric: tabular-nums;
    }
</style>"""
_EMPTY_PICTURES = (
    "__import__('IPython.core.pylabtools', fromlist=['*']).print_figure = lambda *figure, **how: 'iVBORw0KGgo='"
)
Notebook = nbformat.NotebookNode


class _ThisPython(AsyncKernelManager):
    """A kernel on the running Python, independent of the registered kernels; it opens no port."""

    transport = "ipc" if os.name == "posix" else "tcp"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.transport == "ipc":  # a separate folder: kernels that start together would use equal names
            self._sockets = tempfile.TemporaryDirectory()
            self.ip = str(Path(self._sockets.name) / "kernel")

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


def names() -> list[str]:
    """Return the names of all notebooks."""
    return sorted(path.stem for path in HERE.glob("*.py") if path != Path(__file__).resolve())


def source(name: str) -> Notebook:
    """Read ``NAME.py`` as a notebook without outputs; the id of a cell follows from its text."""
    notebook = jupytext.read(HERE / f"{name}.py", fmt="py:percent")
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        mark = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:12]
        seen[mark] += 1
        cell.id = mark if seen[mark] == 1 else f"{mark}-{seen[mark]}"
        cell.metadata = {}
    notebook.metadata = nbformat.from_dict(_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: Notebook, pictures: bool = True) -> Notebook:
    """Execute the cells in place, in the repository's root; without ``pictures`` each PNG is empty.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    RuntimeError
        If a cell wrote to stderr, for example a warning.
    """
    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        kernel_manager_class=_ThisPython,
        resources={"metadata": {"path": str(ROOT)}},
        extra_arguments=[
            "--HistoryManager.enabled=False",
            *([] if pictures else [f"--InteractiveShellApp.code_to_run={_EMPTY_PICTURES}"]),
        ],
    )
    with tempfile.TemporaryDirectory() as settings:
        client.execute(env={**os.environ, "IPYTHONDIR": settings})
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = readable(output.data["text/html"])
            if output.get("name") == "stderr":
                raise RuntimeError(f"a cell wrote to stderr:\n{cell.source}\n{output.text}")
            if "metadata" in output:
                output.metadata = {}
    notebook.metadata = nbformat.from_dict(_METADATA)
    nbformat.validate(notebook)
    return notebook


def readable(html: str) -> str:
    """Return a table of pandas with padded cells, texts on the left, numbers on the right; a wide one scrolls."""
    html = re.sub("<div>\n<style scoped>.*?</style>", _TABLE, html, count=1, flags=re.DOTALL)
    return re.sub(r"<td>(?=(?!nan|inf|NaN|&)[^-+−\d<])", '<td style="text-align: left">', html)


def read(path: Path) -> Notebook:
    """Read a notebook file."""
    return nbformat.read(path, as_version=4)


def text(notebook: Notebook) -> str:
    """Return the content of a notebook file."""
    return nbformat.writes(notebook) + "\n"


def differences(name: str, executed: Notebook) -> list[str]:
    """Return the differences between an executed notebook and ``NAME.py``, one line each."""
    expected = source(name)
    problems = []
    cells = [
        [(cell.get("id"), cell.cell_type, cell.source) for cell in notebook.cells] for notebook in (expected, executed)
    ]
    if cells[0] != cells[1]:
        problems.append(f"{name}: the cells of {name}.ipynb are not those of {name}.py")
    if executed.metadata != expected.metadata:
        problems.append(f"{name}: the notebook's metadata are not those that build.py writes")
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        problems.append(f"{name}: the cells were not executed once each, in order")
    for cell in code:
        if any(output.output_type == "error" for output in cell.outputs):
            problems.append(f"{name}: a cell failed: {cell.source.splitlines()[0]}")
        elif shows(cell.source) and not cell.outputs:
            problems.append(f"{name}: no output of the cell that begins: {cell.source.splitlines()[0]}")
    return problems


def shows(code: str) -> bool:
    """Whether a cell has output: it ends with an expression, or prints."""
    tree = ast.parse("\n".join(line for line in code.splitlines() if not line.startswith(("%", "!"))))
    if not tree.body:
        return False
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return isinstance(tree.body[-1], ast.Expr) or bool(calls & {"print", "display"})


def outputs(notebook: Notebook) -> list[list[str]]:
    """Return the texts of each code cell, with folded blanks; "(picture)" stands for a picture."""
    return [[_plain(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _plain(output: Any) -> str:
    data = output.get("data", {})
    return "(picture)" if "image/png" in data else " ".join(output.get("text", data.get("text/plain", "")).split())


def main(arguments: list[str] | None = None) -> int:
    """Execute or check the given notebooks; return 0 if they agree with their sources."""
    parser = argparse.ArgumentParser(
        prog="build.py", description="Execute the notebooks and write them with their outputs."
    )
    parser.add_argument("name", nargs="*", help=f"default: all ({', '.join(names())})")
    parser.add_argument("--check", action="store_true", help="compare the .ipynb with the .py, without execution")
    parser.add_argument("--output", type=Path, default=HERE, metavar="FOLDER", help="default: beside the sources")
    parser.add_argument("--no-pictures", action="store_true", help="leave the pictures empty, to compare the texts")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.name) - set(names()))
    if unknown:
        parser.error(f"no notebook {unknown[0]!r} here; there are {', '.join(names())}")
    problems = []
    for name in chosen.name or names():
        path = chosen.output / f"{name}.ipynb"
        if not chosen.check:
            _write(path, text(execute(source(name), pictures=not chosen.no_pictures)))
            print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
        problems += differences(name, read(path)) if path.is_file() else [f"{name}: there is no {path.name}"]
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


def _write(path: Path, content: str) -> None:
    from fpemu._system import write_atomic

    write_atomic(path, content.encode())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
