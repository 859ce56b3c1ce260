"""Configuration of Sphinx: `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import generate  # noqa: E402

import fpemu  # noqa: E402

project = "fpemu"
author = "The fpemu developers"
copyright = f"2026, {author}"
version = release = fpemu.__version__

extensions = ["myst_nb", "numpydoc", "sphinx_design", *(f"sphinx.ext.{x}" for x in ("autodoc", "autosummary"))]
exclude_patterns = ["_build", *(f"generated/{name}.md" for name in ("speed", "verified", "gallery"))]
suppress_warnings = ["autosummary.import_cycle", "myst.header"]  # summaries name their module; copied texts
default_role = "py:obj"
needs_sphinx = "9.0"

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = f"fpemu {version}"
html_static_path = ["_static"]
html_css_files = ["fpemu.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "fpemu"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}

myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False


def _as_restructured_text(app, what, name, obj, options, lines):
    """Keep what docstrings mean as text: the bars of |A||B|, the star of ``*batch``, and the formulas of modules."""
    if what == "module":
        lines[:] = "\n\n".join(map(_paragraph, "\n".join(lines).split("\n\n"))).splitlines()
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``|`[^`]*`)", line)
        escaped = [
            part if i % 2 else re.sub(r"(?<!\\)\||\*(?=batch)", r"\\\g<0>", part) for i, part in enumerate(parts)
        ]
        lines[number] = re.sub(r"(?<!`)(`\w+`)(?=[\w(])", r"\1\\ ", "".join(escaped))


def _paragraph(text):
    """A paragraph of a module's docstring; formulas, which its layout aligns, as a literal block."""
    aligned = any(line.startswith(" ") for line in text.splitlines())
    if not aligned or text.startswith(("* ", "1. ", "..", "=")):
        return text
    return "::\n\n" + "\n".join(f"    {line}" for line in text.splitlines())


def _formula(block):
    """Return a visitor that writes a formula as MathML, so that the pages need neither a network nor JavaScript."""

    def visit(self, node):
        tex = re.sub(r"\\tfrac(\d)(\d)", r"\\tfrac{\1}{\2}", node.astext()).replace(
            r"\dots", r"\ldots"
        )  # unknown to it
        self.body.append(tex2mathml(tex, as_block=block))
        raise nodes.SkipNode

    return visit


def _relinked(app, name, source):
    """Redirect the links of a page to files of the repository: to the pages of the site that have their content."""
    path = Path(app.srcdir, f"{name}.md")
    if path.is_file() and not name.startswith("generated/"):
        source[0] = generate.relink(source[0], path)
    if name == "reference/names":
        source[0] += "\n```{toctree}\n:hidden:\n\n../generated/api/index\n```\n"
        source[0] = source[0].replace("\n\n", "\n\n[All docstrings](../generated/api/index.md), by module.\n\n", 1)


def setup(app):
    """Write the generated pages before Sphinx looks for its sources."""
    app.add_html_math_renderer("mathml", (_formula(False), None), (_formula(True), None))
    app.connect("config-inited", lambda app, config: generate.write())
    app.connect("source-read", _relinked)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=900)
