"""Pages of the documentation that follow from the package: ``python docs/generate.py`` writes them.

The catalogue, the schemes, the formats, the command line and the list of public names come from the package itself and
are committed in docs/reference, the pictures of bits in docs/explanation. All others are in docs/generated, which git
ignores: the full documentation of each name, the gallery, and copies of the ledger, the notebooks and the texts of the
repository. Links of the documentation name the files of the repository; `relink` redirects them to pages of the site.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUT = DOCS / "generated"
REFERENCE = DOCS / "reference"
TEXTS = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
API = {
    "Formats and rounding": "formats formats.block rounding errors",
    "Schemes": "schemes schemes.ozaki schemes.strassen",
    "Matrix instructions": "mma mma.catalog mma.tree mma.exactness mma.serialise simt",
    "Exact products, errors, operands": "reference metrics inputs",
    "Bounds, performance models, choice of a scheme": "theory theory.errorfree roofline roofline.gpus advice",
    "Other software": "testing triton probing probing.trees probing.kit conformance library",
    "Batches": "batched",
    "GPUs": "gpu gpu.batched gpu.tallskinny torch verification verification.instructions verification.records",
    "Sweeps and figures": "sweep reproduce plotting plotting.bits plotting.trees",
}
"""The public modules by subject."""


def write() -> None:
    """Write all generated pages; files whose content did not change keep their time."""
    pages: dict[Path, str | bytes] = {}
    for name, text in {
        "verified.md": verified(),
        "speed.md": speed(),
        "calls.md": calls(),
        "gallery.md": gallery(),
        "record.schema.json": json.dumps(record_schema(), indent=1) + "\n",
    }.items():
        pages[OUT / name] = text
    pages.update({**committed(), **api(), **ledger(), **notebooks(), **texts(), **pictures()})
    for path, content in pages.items():
        _save(path, content if isinstance(content, bytes) else content.encode())
    for path in set(OUT.rglob("*.*")) - set(pages) - _COPIED:
        path.unlink()


def committed() -> dict[Path, str]:
    """Return the reference pages, which are committed so that they can be read in the source tree."""
    texts = {"hardware": hardware, "schemes": schemes, "formats": formats, "measures": measures, "commands": commands}
    return {REFERENCE / f"{name}.md": text().rstrip("\n") + "\n" for name, text in {**texts, "names": names}.items()}


_COPIED: set[Path] = set()
"""Pictures and tables that a page links."""


def _save(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table in Markdown."""
    head = list(header)
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines) + "\n"


def hardware() -> str:
    """Return the page of the hardware catalogue: every instruction with its evidence."""
    from fpemu.cli.listing import block_fields, results
    from fpemu.mma import catalog
    from fpemu.mma.spec import EVIDENCE

    parts = [
        "# Hardware catalogue\n\nEvery row is one matrix instruction, `fpemu.mma.spec(hardware, ab_format, cd_format)`."
        " *L*: products per rounding. *F*: alignment width, the number of binary places kept below the largest"
        " exponent of a block. *E₀*: minimum alignment exponent. *final*: rounding of D. The command"
        " `fpemu list hardware` prints the same rows; [How a tensor core adds](../explanation/tensor-core.md)"
        " explains the columns. A row with scales has the format of a scale and the number of k that share it. An"
        " asterisk marks a field that the recordings of a replayed row do not determine: its"
        ' evidence is "documented".\n\n'
        'A and B of one instruction may have two formats of fp8 (`ab_format=("e4m3", "e5m2")`); tcgen05 and mma'
        " m16n8k32 of blackwell-rtx take any two of e4m3, e5m2, e3m2, e2m3 and e2m1. `spec`, and every other argument"
        " `hardware`, also takes the name of an instruction that one architecture has"
        " (`wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16`, `v_mfma_f32_16x16x16_f16`); that of one of several"
        " architectures is given as `instruction` beside the hardware (`HMMA.16816.F32`). On CDNA2,"
        ' `spec("MI250", "bf16", k=8)` is refused: `v_mfma_f32_16x16x8bf16` adds two products at a time and'
        " `v_mfma_f32_32x32x8bf16_1k` four.\n\n"
        "## Evidence\n\n",
        table(("word", "meaning"), EVIDENCE.items()),
    ]
    named: dict[str, list[str]] = {}
    for gpu, architecture in catalog.gpu_names().items():
        named.setdefault(architecture, []).append(gpu)
    for architecture in catalog.architectures():
        every = (*catalog.rows(), *catalog.block_scaled())
        rows = [row for row in every if row.architecture == architecture]
        also = ", ".join(named.get(architecture, []))
        parts.append(f"## {architecture}\n\n" + (f"Other names: {also}.\n\n" if also else ""))
        sources = list(dict.fromkeys(row.source for row in rows))
        lines = []
        for row in rows:
            numbers = ("–" if x == "-" else x.replace("-", "−").replace("*", r"\*") for x in block_fields(row))
            final = "–" if row.is_integer else f"{row.final}{f' to {row.fraction_bits} bits' * bool(row.fraction_bits)}"
            lines.append(
                (
                    f"{row.instruction} {row.shape}",
                    f"{row.a_format}{f' × {row.scale}/{row.scale_block}' * bool(row.scale)}",
                    results(row),
                    row.arithmetic,
                    *numbers,
                    final,
                    f"{row.evidence} [{sources.index(row.source) + 1}]",
                )
            )
        parts.append(table(("instruction", "A, B", "C, D", "arithmetic", "L", "F", "E₀", "final", "evidence"), lines))
        parts += [f"{number}. {source}\n" for number, source in enumerate(sources, 1)] + ["\n"]
    return "".join(parts)


def schemes() -> str:
    """Return the page of all schemes with their options."""
    from fpemu import schemes

    infos = [schemes.get(name).info for name in schemes.names()]
    parts = [
        "# Schemes\n\nThe schemes of `fpemu.gemm(A, B, scheme=NAME, hardware=GPU, **options)`. RNE16 is rounding to "
        "nearest in fp16, RZ16 rounding toward zero, and `bit-cut` LE-GEMM's truncation of the significand; h is the "
        "high part and r the residual. In a product of two letters the first is the word of A. The formula of an "
        "error is relative to |A||B| unless it contains absolute values: K is the length of the sums, k the length of "
        "the instruction, L its block length, and eps the relative error of the sum of one block. "
        "`fpemu.theory.bound` evaluates the error, and `fpemu list schemes NAME` prints one scheme.\n\n",
        table(
            ("scheme", "words", "products", "paper"),
            ((f"[{i.name}](#{i.name})", "; ".join(i.parts), " ".join(i.products), i.paper or "–") for i in infos),
        ),
    ]
    for info in infos:
        doi = f", [DOI {info.doi}](https://doi.org/{info.doi})" if info.doi else ""
        parts.append(f"## {info.name}\n\n{info.title}.{f' {info.paper}{doi}.' if info.paper else ''}\n\n")
        parts.append(f"Range\n: {info.range}\n\nError\n: {info.bound}\n\n")
        options = [(f"`{o.name}`", f"`{o.default}`", o.values, o.meaning) for o in info.options]
        parts.append(table(("option", "default", "values", "meaning"), options) if options else "No options.\n\n")
    parts.append(
        "## Names of frameworks\n\n`scheme` also takes a framework's name of a product:"
        ' `fpemu.gemm(A, B, scheme="jax:BF16_BF16_F32_X6", hardware="H200")`. Options beside it replace these.'
        " XLA on a CPU (JAX 0.10.2) returns the bits of `F32_F32_F32` for the presets `BF16_BF16_F32`, `_X3`"
        " and `_X6`. In Triton's kernels `promote` is the tile's length in k; a tile's products share one accumulator"
        " that starts from zero, and its sum is added to the total in fp32.\n\n"
    )
    names = []
    for entry in schemes.aliases():
        given = ", ".join(f"{name}={value!r}" for name, value in entry.options.items())
        names.append((f"`{entry.name}`", entry.scheme, f"`{given}`" if given else "–", entry.evidence))
    parts.append(table(("name", "scheme", "options", "evidence"), names))
    return "".join(parts)


def formats() -> str:
    """Return the page of the floating-point formats."""
    from fpemu import formats

    rows = []
    for name in formats.names():
        f = formats.get(name)
        powers = [f"2^{math.frexp(x)[1] - 1}" for x in (f.min_normal, f.min_subnormal, f.unit_roundoff)]
        rows.append([name, f.width, f.precision, f.emin, f.emax, f"{f.max:.6g}", *powers])
    head = (
        *("format", "width, bits", "precision, bits", "emin", "emax", "largest"),
        *("smallest normal", "smallest subnormal", "unit roundoff"),
    )
    return (
        "# Formats\n\nA format is a `fpemu.FloatFormat`, for example `fpemu.FP16` or `fpemu.formats.get('fp16')`. The "
        "precision includes the leading bit. Arrays hold the values exactly: float16 for fp16, float32 for fp32, tf32, "
        "bf16 and the formats of eight bits or fewer. `fmt.encode(x)` returns the bit patterns of values and "
        "`fmt.decode(bits)` the values of bit patterns; `fpemu.round_to(x, fmt, mode)` rounds once.\n\n"
        + table(head, rows)
    )


def measures() -> str:
    """Return the page of operand distributions and error measures."""
    from fpemu import inputs, metrics

    distributions = ((f"`{name}`", inputs.describe(name)) for name in inputs.names())
    first = ((f"`{n}`", _definition(metrics.get(n))) for n in metrics.names())
    return (
        "# Operands and error measures\n\n## Operand distributions\n\n`fpemu.inputs.make(name, shape, seed)` and the "
        "key `inputs` of a sweep.\n\n" + table(("name", "entries"), distributions) + "## Error measures\n\n"
        "`fpemu.metrics.NAME(D, exact)` and the key `metrics` of a sweep. C and p denote the result, R and s the "
        "reference.\n\n" + table(("name", "definition"), first)
    )


def _definition(measure: Any) -> str:
    """The first line of a docstring as a noun phrase, without the verb."""
    line = (measure.__doc__ or "").strip().partition("\n")[0].removeprefix("Return ").removeprefix("the ")
    return line[:1].upper() + line[1:]


def verified() -> str:
    """Return the table of the committed records of verifications."""
    rows = []
    for path in sorted((ROOT / "tests" / "data" / "verified").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        if totals := record.get("totals"):
            numbers = (f"{totals[n]:,}" for n in ("groups", "cases", "outputs", "mismatches", "failed"))
            rows.append((f"`{path.name}`", record["date"][:10], *numbers))
    return table(("record", "date", "groups", "cases", "outputs", "mismatches", "failed cases"), rows)


def speed() -> str:
    """Return the table of error and throughput on an H200, from the data of the committed figure."""
    import csv

    with (ROOT / "figures" / "speed" / "frontier.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["data"] == "symmetric"]
    shown = sorted(rows, key=lambda row: -float(row["first"]))
    formats = {"first": ".0f", "sustained": ".0f", "first / sgemm": ".2f", "relative_l2": ".2e"}
    # a run without SGEMM has no ratio to it
    lines = ((r["contender"], *(format(float(r[n]), f) if r[n] else "" for n, f in formats.items())) for r in shown)
    head = ("implementation", "first, TFLOP/s", "sustained, TFLOP/s", "first / SGEMM", "relative L2 error")
    return table(head, lines)


def calls() -> str:
    """Return the table of whole calls on an H200, from the data of the committed figure."""
    import csv

    from experiments.speed.calls import LIBRARY, SECTIONS

    shown = {  # a selection from the sections: all others are shown as measured
        "host": lambda row: row["case"] == "staged" and row["way"] in (LIBRARY[0], "eager", "plan", "replayed"),
        "batches": lambda row: row["case"].split(" ")[0] in ("8", "32", "64", "128"),
        "products": lambda row: row["way"].removesuffix(" graph") in ("SGEMM", "staged"),
        "ozaki2": lambda row: row["way"] != "invariant",
    }
    with (ROOT / "figures" / "speed" / "calls.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines: list[tuple[str, ...]] = []
    for kind, name in SECTIONS.items():
        selected = [row for row in rows if row["kind"] == kind and shown.get(kind, bool)(row)]
        cases = dict.fromkeys(row["case"] for row in selected)
        lines += [] if cases else [(name, "", "not measured", "")]
        for case in cases:
            of = [row for row in selected if row["case"] == case]
            library = next(row["way"] for name in LIBRARY for row in of if row["way"] == name)
            texts = [
                f"{r['way']} {float(r['time_us']):.4g} ({float(r['ratio']):.3g})" for r in of if r["way"] != library
            ]
            base = next(float(row["time_us"]) for row in of if row["way"] == library)
            lines.append((name, case.strip('"'), f"{library} {base:.4g}", ", ".join(texts)))
    return table(("section", "case", "compared with, µs", "calls, µs (ratio)"), lines)


def record_schema() -> dict[str, Any]:
    """Return the JSON schema of the records that `fpemu verify` writes, from the dataclasses of a record."""
    from fpemu.verification.records import SCHEMA, Outcome, Record

    types: dict[str, dict[str, Any]] = {
        "str": {"type": "string"},
        "int": {"type": "integer"},
        "dict[str, str]": {"type": "object", "additionalProperties": {"type": "string"}},
        "dict[str, int]": {"type": "object", "additionalProperties": {"type": "integer"}},
        "dict[str, Any]": {"type": "object"},
        "list[str]": {"type": "array", "items": {"type": "string"}},
    }
    outcome = {
        "type": "object",
        "properties": {field.name: types[str(field.type)] for field in dataclasses.fields(Outcome)},
        "required": ["group", "outputs", "mismatches"],
        "additionalProperties": False,
    }
    fields = {f.name: types[str(f.type)] for f in dataclasses.fields(Record) if f.name != "outcomes"}
    properties = {
        "schema": {"const": SCHEMA},
        **fields,
        "totals": types["dict[str, int]"],
        "digest": types["str"],
        "outcomes": {"type": "array", "items": outcome},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Record of a verification",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def commands() -> str:
    """Return the page of the command line, from the help texts."""
    from fpemu.cli.commands import load_all

    parts = [
        "# Command line\n\n`fpemu COMMAND -h` prints the same text. Exit status: 0, done; 1, a check failed; 2, an "
        "invalid argument or file, reported in one line; 130, interrupted.\n\n"
    ]
    parts += _command(load_all(), "fpemu", 1)
    return "".join(parts)


def _command(command: Any, name: str, level: int) -> list[str]:
    parts = []
    if level > 1:
        text = inspect.cleandoc(command.help or "").replace("\b\n", "")
        parts.append(f"{'#' * min(level, 3)} {name}\n\n{_plain(text)}\n\n")
        given = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
        rows = []
        for p in given:
            option = p.param_type_name == "option"
            flags = ", ".join(f"`{x}`" for x in (*p.opts, *p.secondary_opts)) if option else f"`{p.metavar or p.name}`"
            unstated = p.default is False or p.default in (None, "", ()) or callable(p.default)
            value = f"{p.default:g}" if isinstance(p.default, float) else p.default
            default = "" if unstated else f" Default: `{value}`."
            rows.append((flags, _plain(" ".join((getattr(p, "help", "") or "").split())) + default))
        if rows:
            parts.append(table(("argument or option", "meaning"), rows))
    for sub, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            parts += _command(child, f"{name} {sub}", level + 1)
    return parts


def _plain(text: str) -> str:
    """A help text as Markdown: quoted commands as code, and nothing else that Markdown would interpret."""
    pieces = re.split(r"('fpemu [^']*')", text)
    return "".join(f"`{p[1:-1]}`" if i % 2 else re.sub(r"([*_<\[\]$])", r"\\\1", p) for i, p in enumerate(pieces))


def api() -> dict[Path, str]:
    """Return one page for each public module: a table of its names, then their documentation."""
    pages: dict[Path, str] = {}
    documented: dict[int, str] = {}
    index = [
        "# Documentation of each name\n\nThe public names by module; `import fpemu` loads a module when it is first "
        "used.\n"
    ]
    pages[OUT / "api" / "fpemu.rst"] = _module("fpemu", _callables("fpemu"), documented)
    toctree = ["fpemu"]
    index.append(f"\n## Package\n\n{table(('module', 'subject'), [_entry('fpemu')])}")
    for subject, modules in API.items():
        names = [f"fpemu.{module}" for module in modules.split()]
        for name in names:
            pages[OUT / "api" / f"{name}.rst"] = _module(name, _callables(name), documented)
        toctree += names
        index.append(f"\n## {subject}\n\n{table(('module', 'subject'), map(_entry, names))}")
    index.append("\n```{toctree}\n:hidden:\n\n" + "\n".join(toctree) + "\n```\n")
    return pages | {OUT / "api" / "index.md": "".join(index)}


def names() -> str:
    """Return the page of all public names with their parameters and their first sentence."""
    parts = [
        "# Python names\n\nThe public names by module, with their parameters and the first sentence of their "
        "docstring. `help(fpemu.gemm)` prints a whole docstring.\n"
    ]
    for module in ["fpemu", *(f"fpemu.{one}" for modules in API.values() for one in modules.split())]:
        listed = [
            (f"`{name}{_parameters(value)}`", _plain(_summary(value).replace("`", "")))
            for name, value in _callables(module).items()
        ]
        summary = _plain(_summary(importlib.import_module(module)).replace("`", ""))
        parts.append(f"\n## {module}\n\n{summary}\n\n" + (table(("name", "content"), listed) if listed else ""))
    return "".join(parts)


def _parameters(value: Any) -> str:
    """The names of the parameters of a function or a class, without annotations and defaults."""
    try:
        return "(" + ", ".join(inspect.signature(value).parameters) + ")"
    except (TypeError, ValueError):
        return ""


def gallery() -> str:
    """Return a card for each figure: thumbnail, title, first sentence of the finding, verdicts, and the command."""
    from fpemu.reproduce import claims, figures

    parts = []
    for paper in claims.papers():
        cards = []
        for name in paper.pages:
            sizes = (Path("figures", size, f"{name}.png") for size in ("full", ""))
            file = next((path for path in sizes if (ROOT / path).is_file()), None)
            if file is None:
                continue
            record = figures.load_record((ROOT / file).with_suffix(".json"))
            _copy(ROOT / file, OUT / file)
            verdicts = [claims.verdict_on(claim, record).verdict for claim in claims.on_page(name)]
            counts = ", ".join(f"{word}: {verdicts.count(word)}" for word in dict.fromkeys(verdicts))
            sentence = re.split(r"(?<=[.])\s+(?=[A-Z(])", record.finding or record.caption, maxsplit=1)[0]
            words = _plain(sentence if len(sentence) < 300 else record.title)
            text = f"{words}\n\n*{counts or 'No claim'}*\n\n`{record.command}`"
            title = f"{name.partition('/')[2]}: {_plain(record.title)}"
            cards.append(f":::{{grid-item-card}} {title}\n:img-top: /generated/{file.as_posix()}\n\n{text}\n:::\n")
        if cards:
            parts.append(f"## {paper.title}\n\n::::{{grid}} 1 2 3 3\n:gutter: 2\n\n" + "\n".join(cards) + "::::\n")
    return "\n".join(parts)


def _entry(name: str) -> tuple[str, str]:
    return f"[{name}]({name}.rst)", _summary(importlib.import_module(name))


def _summary(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def _callables(name: str) -> dict[str, Any]:
    """The classes and functions of a module that its `__all__` lists, or that it defines and documents."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    values = {n: getattr(module, n) for n in names}
    values = {n: v for n, v in values.items() if callable(v) and inspect.getdoc(v) and hasattr(v, "__qualname__")}
    if not hasattr(module, "__all__"):
        values = {n: v for n, v in values.items() if v.__module__ == name}
    return values


def _module(name: str, values: dict[str, Any], documented: dict[int, str]) -> str:
    """Return the page of a module; a name that an earlier page documents is only listed."""
    text = [f"{name}\n{'=' * len(name)}\n", f".. automodule:: {name}\n   :no-members:\n"]
    text.append(f".. currentmodule:: {name}\n")
    new = {n: value for n, value in values.items() if id(value) not in documented}
    documented |= {id(value): f"{name}.{n}" for n, value in new.items()}
    if values:
        listed = "\n".join(f"   ~{documented[id(value)]}" for value in values.values())
        text.append(f".. autosummary::\n   :nosignatures:\n\n{listed}\n")
    for n, value in new.items():
        members = "\n   :members:" * inspect.isclass(value)
        text.append(f".. auto{'class' if inspect.isclass(value) else 'function'}:: {name}.{n}{members}\n")
    return "\n".join(text)


def _site() -> dict[Path, Path]:
    """The pages of the site that stand for files of the repository."""
    pages = {ROOT / name: OUT / page for name, page in TEXTS.items()}
    pages[ROOT / "README.md"] = DOCS / "index.md"
    pages |= {path: OUT / "notebooks" / path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    ledgers = [ROOT / "figures" / "LEDGER.md", *(ROOT / "figures" / "ledger").glob("*.md")]
    return pages | {path: OUT / path.relative_to(ROOT) for path in ledgers}


def relink(text: str, source: Path) -> str:
    """Redirect the links of a text of the repository: to pages of the site, and to copies of pictures and tables.

    A link to another file becomes its text, since the site does not contain the sources.
    """
    page = _site().get(source, source)

    def link(match: re.Match[str]) -> str:
        bang, label, target = match.groups()
        address, _, anchor = target.partition("#")
        if "://" in target or not address:
            return match[0] if address or f'id="{anchor}"' not in text else f'<a href="#{anchor}">{label}</a>'
        file = (source.parent / address).resolve()
        if file.is_relative_to(DOCS) and source.is_relative_to(DOCS):
            return match[0]
        place = _site().get(file)
        if place is None and file.is_file() and file.suffix in (".png", ".csv", ".json") and file.is_relative_to(ROOT):
            place = OUT / file.relative_to(ROOT)
            _copy(file, place)
        if place is None:
            return label
        relative = os.path.relpath(place, page.parent)
        return f"{bang}[{label}]({relative}{'#' + anchor if anchor else ''})"

    return re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)", link, text)


def _copy(file: Path, place: Path) -> None:
    _COPIED.add(place)
    if not place.is_file() or place.stat().st_mtime < file.stat().st_mtime:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)


def texts() -> dict[Path, str]:
    """Return ARCHITECTURE, CONTRIBUTING and CHANGELOG."""
    return {OUT / page: relink((ROOT / name).read_text("utf-8"), ROOT / name) for name, page in TEXTS.items()}


def ledger() -> dict[Path, str]:
    """Return the ledger's summary and its pages of details."""
    sources = [path for path in _site() if path.is_relative_to(ROOT / "figures") and path.is_file()]
    pages = {_site()[path]: relink(path.read_text("utf-8"), path) for path in sources}
    details = sorted(f"ledger/{path.stem}" for path in pages if path.parent.name == "ledger")
    if details:
        pages[OUT / "figures" / "LEDGER.md"] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(details) + "\n```\n"
    return pages


def notebooks() -> dict[Path, str]:
    """Return the committed notebooks with their outputs; notebooks/build.py executed them."""
    pages: dict[Path, str] = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        content = json.loads(path.read_text("utf-8"))
        for cell in content["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = relink("".join(cell["source"]), path)
            elif "%matplotlib" in "".join(cell["source"]):
                cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
        pages[OUT / "notebooks" / path.name] = json.dumps(content, indent=1, ensure_ascii=False)
    names = "\n".join(f"notebooks/{path.stem}" for path in pages)
    return pages | {OUT / "notebooks.md": f"# Notebooks\n\n```{{toctree}}\n\n{names}\n```\n"}


def pictures() -> dict[Path, bytes]:
    """Return the pictures of the page on tensor-core addition, drawn by fpemu.plotting.bits."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from PIL import Image

    from fpemu import plotting
    from fpemu.plotting import bits

    gpus = ("V100", "A100", "H200", "MI100")
    rng = np.random.default_rng(65)
    a = np.float16(rng.uniform(1, 2, 4) * 2.0 ** -np.arange(0, 16, 4))
    b = np.float16(rng.uniform(1, 2, 4) * [1, -1, 1, 1])
    c = np.float32(-rng.uniform(1, 2) / 8)
    small = 2.0**-20
    subnormal = [([2.0**-24, small], [1.0, small]), ([2.0**-12, small], [2.0**-12, small])]
    blocks: dict[str, list[Any]] = {
        "known-answer": [_block([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23, g) for g in gpus],
        "random": [_block(a, b, c, gpu) for gpu in gpus],
        "subnormal": [_block(x, y, 0.0, "H200") for x, y in subnormal],
    }
    files = {}
    for name, pictured in blocks.items():
        path, file = DOCS / "explanation" / f"{name}.png", io.BytesIO()
        bits.draw(pictured).savefig(file, dpi=130, metadata={"Software": None})
        image = Image.open(file).convert("RGB").quantize(32)  # a fifth of the bytes
        image.save(file := io.BytesIO(), "PNG", optimize=True)
        drawn = file.getvalue()
        before = path.read_bytes() if path.is_file() else None
        # the bytes of a PNG depend on the version of FreeType too
        files[path] = before if before is not None and plotting.look_alike(before, drawn) else drawn
    return files


def _block(a: Any, b: Any, c: Any, gpu: str) -> Any:
    from fpemu import mma
    from fpemu.plotting import bits

    return bits.blocks(a, b, c, spec=mma.spec(gpu, "fp16", "fp32"))[0]


if __name__ == "__main__":
    write()
