"""An experiment with its rows, evaluated now or read from the data of a drawn figure.

In both cases the rows have the digits of the figure's CSV, so that both give the same statements.
"""

from __future__ import annotations

import contextlib
import html
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fpemu.errors import InputError, unknown_name
from fpemu.files import sha256
from fpemu.reproduce import experiments, figures, papers, verdicts
from fpemu.sweep import tables
from fpemu.sweep.run import Row, run
from fpemu.sweep.store import Store

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fpemu.mma.device import Device
    from fpemu.reproduce.experiments import Experiment
    from fpemu.reproduce.verdicts import Judgement


@dataclass(frozen=True)
class Reproduction:
    """A figure of a paper with its data, from `reproduce` or `committed`.

    Attributes
    ----------
    experiment : Experiment
        The figure's page.
    size : {"quick", "full"}
        Extent of the figure.
    rows : sequence of Row
        One dict per cell, with its parameters and its numbers, with the digits of the figure's CSV.
    """

    experiment: Experiment
    size: str
    rows: list[Row] = field(repr=False)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows as a table, a column for each parameter and number."""
        from fpemu.sweep.export import frame

        return frame(self.rows)

    def figure(self) -> Figure:
        """The figure, drawn anew."""
        return self.experiment.draw(self.rows)

    @property
    def judgements(self) -> list[Judgement]:
        """The claims and checks that this figure decides, each with its numbers and its verdict."""
        record = {"size": self.size, **figures.statements(self.experiment, self.size, self.rows)}
        return [
            verdicts.verdict_on(claim, record)
            for paper in papers.read(self.experiment.root)
            for claim in (*paper.claims, *paper.checks)
            if claim.page == self.experiment.name
        ]

    @property
    def finding(self) -> str | None:
        """A paragraph on the result of the figure; None where the page has none."""
        return self.experiment.finding(self.rows)

    def __repr__(self) -> str:
        return f"Reproduction({self.experiment.name!r}, {self.size!r}, {len(self.rows)} rows)"

    def _repr_html_(self) -> str:
        head = f"<p><b>{html.escape(self.experiment.name)}</b> ({self.size}): {html.escape(self.experiment.title)}</p>"
        head += "<table>" + "".join(f"<th>{name}</th>" for name in ("claim", "case", "measured", "verdict"))
        lines = [
            (judgement.claim.claim, case.label, verdicts.number(judgement.claim, case), case.verdict)
            for judgement in self.judgements
            for case in judgement.cases
        ]
        cells = ("".join(f"<td>{html.escape(text)}</td>" for text in line) for line in lines)
        return head + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


def reproduce(
    name: str, size: str = "quick", jobs: int = 1, results: Store | None = None, device: Device = "auto"
) -> Reproduction:
    """Evaluate the cells of an experiment that are not in the store, and return it with all its rows.

    Parameters
    ----------
    name : str
        ``paper/figure``.
    size : {"quick", "full"}
        Extent of the figure.
    jobs : int
        Number of local processes.
    results : Store, optional
        Default: the store of the command line (:func:`fpemu.sweep.store.default_path`).
    device : {"auto", "cpu", "cuda"}
        Where products are computed, as in :func:`fpemu.sweep.run`.

    Returns
    -------
    Reproduction
        The experiment with all its rows.

    Raises
    ------
    InputError
        If there is no such experiment, size or device.
    CellError
        If a cell fails.
    """
    experiment = experiments.load(name)
    with contextlib.nullcontext(results) if results is not None else Store() as store:
        rows = run(experiment, size, results=store, jobs=jobs, device=device)
    return Reproduction(experiment, size, figures.as_written(experiment, size, rows))


def committed(name: str, size: str = "quick", folder: str | os.PathLike[str] = "figures") -> Reproduction:
    """Return an experiment with the rows of its figure in ``folder`` (full size: ``folder/full``); evaluate nothing.

    Parameters
    ----------
    name : str
        ``paper/figure``.
    size : {"quick", "full"}
        Extent of the figure.
    folder : path-like
        A relative folder that is not in the working directory is looked for beside the experiments.

    Returns
    -------
    Reproduction
        The experiment with the rows of the figure's CSV.

    Raises
    ------
    InputError
        If there is no such experiment or figure, or its data are not those that it was drawn from.
    """
    experiment = experiments.load(name)
    if size not in experiments.SIZES:
        raise unknown_name("size", size, experiments.SIZES)
    stem = size_folder(folder, size) / name
    data, record = stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.json")
    if not data.is_file():
        raise InputError(f"there is no {data}: 'fpemu reproduce {name}{' --full' * (size == 'full')}' makes it")
    rows = tables.read(data)
    if record.is_file():
        known = figures.load_record(record)
        if known["data"].get("sha256") != sha256(data):
            raise InputError(f"{data} was changed after {record} was written")
        if (known["figure"], known["size"]) != (name, size):
            raise InputError(
                f"{record} is the record of {known['figure']} at {known['size']} size, not of {name} at {size}"
            )
    return Reproduction(experiment, size, rows)


def size_folder(folder: str | os.PathLike[str], size: str) -> Path:
    """Where the figures of a size are: full ones in ``full`` under the others."""
    where = Path(folder)
    if not where.is_absolute() and not where.is_dir():
        beside = experiments.root().parent / where
        where = beside if beside.is_dir() else where
    return where / "full" if size == "full" else where
