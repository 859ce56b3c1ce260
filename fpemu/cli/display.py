"""Tables that wrap at words, and progress bars that appear with their first task."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, ConsoleOptions, RenderResult


class WordTable(Table):
    """A plain table of text whose columns are never narrower than their longest word.

    Where the words of all columns do not fit side by side, each row is printed as a paragraph of its cells, each with
    its heading.

    Parameters
    ----------
    title : str
    *columns : str
        Headings; they wrap where the table is narrow.
    numbers : int
        The last columns that hold numbers, which are aligned right.
    """

    def __init__(self, title: str, *columns: str, numbers: int = 0) -> None:
        super().__init__(
            title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False
        )
        self.lines: list[tuple[str, ...]] = []
        for index, column in enumerate(columns):
            number = index >= len(columns) - numbers
            self.add_column(Text(column), justify="right" if number else "left", overflow="fold")

    def add_row(self, *cells: Any, **settings: Any) -> None:
        """Add a row of strings."""
        self.lines.append(cells)
        super().add_row(*map(Text, cells), **settings)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gaps = len(self.columns) - 1
        least, most = zip(*map(self._widths, range(gaps + 1)), strict=True)
        self.collapse_padding = sum(most) + 3 * gaps + 2 > options.max_width  # columns 2 apart instead of 3
        room = options.max_width - 2 * gaps - 2
        if self.collapse_padding and sum(least) > room:
            yield from self._paragraphs(options.max_width)
            return
        widths, cut = most, max(most)
        while self.collapse_padding and sum(widths) > room:
            cut -= 1
            widths = tuple(min(m, max(w, cut)) for w, m in zip(least, most, strict=True))
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _widths(self, index: int) -> tuple[int, int]:
        """The width of a column wrapped at words, and unwrapped."""
        heading, cells = str(self.columns[index].header), [line[index] for line in self.lines if index < len(line)]
        words = [*heading.split(), *(cells if self.columns[index].no_wrap else " ".join(cells).split())]
        return max(map(len, words), default=0), max(map(len, [heading, *cells]))

    def _paragraphs(self, width: int) -> RenderResult:
        headings = [str(column.header) for column in self.columns]
        yield Text(f"{self.title}\n", style="bold")
        for line in self.lines:
            cells = [f"{heading} {cell}".strip() for heading, cell in zip(headings, line, strict=False) if cell]
            text = ": ".join(filter(None, [*cells[:1], "; ".join(cells[1:])]))
            yield Text(textwrap.fill(text, max(width, 10), subsequent_indent="    ", break_on_hyphens=False))
        yield Text("")


class Bars(Progress):
    """Progress bars that appear with the first task, so that an error before it shows none.

    A ``with`` block ends the display; it does not begin it.
    """

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live.is_started:
            # a display without bars ends without the line break that Progress.stop prints
            self.stop() if self.tasks else self.live.stop()

    def add_task(self, *arguments: Any, **settings: Any) -> TaskID:
        """Begin the display and add a bar: see `rich.progress.Progress.add_task`."""
        self.start()
        return super().add_task(*arguments, **settings)
