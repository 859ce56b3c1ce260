"""Pages of made-up figures: a page's text in its folder, listed with its title in ``paper.toml``."""

from __future__ import annotations

from pathlib import Path

PAGE = (
    "\nfrom fpemu.reproduce import Page\n"
    'sized = lambda size="full": cells(size)\n'
    'PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, sized, evaluate, draw, quick={{"size": "quick"}}{})\n'
)
"""The last lines of a page; its ``cells`` take the size, and further arguments go into the braces."""


def write_page(root, name, text, title="a title"):
    """Write ``root/paper/figure.py``, and add the page to ``[titles]`` of a new or existing ``paper.toml``."""
    path = Path(root, f"{name}.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    table = path.with_name("paper.toml")
    content = table.read_text() if table.is_file() else 'title = "A paper"\nsource = "A journal."\n[titles]\n'
    if f"\n{path.stem} = " not in content:
        table.write_text(content.replace("[titles]\n", f'[titles]\n{path.stem} = "{title}"\n'))
    return path
