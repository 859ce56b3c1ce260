"""Figures of a sweep's table: what the curves and the maps show, what is refused, and the command that draws them."""

import numpy as np
import pytest

from fpemu import plotting
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.sweep import Grid

SBS, EXPONENTS = [0, 4, 12], [-12, -4, 0]
TOML = """
hardware = ["A100", {base = "A100", final = "RNE"}]
seeds = 3
M = 4
N = 4
K = 32
on_range = "propagate"
[[inputs]]
name = "normal"
exponent = [-12, -4, 0]
[[schemes]]
name = "h2sgemm"
sb = [0, 4, 12]
[[schemes]]
name = "sgemm"
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    (folder / "grid.toml").write_text(TOML)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FPEMU_CACHE", str(folder))
        return Grid.read(folder / "grid.toml").run()


def test_curves_are_medians_at_the_sampled_values(table):
    rows = table[table["inputs.exponent"] == -12]
    figure = plotting.curves(rows, x="scheme.sb", hue=["scheme", "hardware"])
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["h2sgemm, A100", "h2sgemm, A100 final=RNE", "sgemm"]
    for label, hardware in (("h2sgemm, A100", "A100"), ("h2sgemm, A100 final=RNE", "A100 final=RNE")):
        chosen = rows[rows["hardware"] == hardware]
        medians = [np.median(chosen.loc[chosen["scheme.sb"] == sb, "relative_l2"]) for sb in SBS]
        assert lines[label].get_ydata().tolist() == medians
    sgemm = np.median(rows.loc[rows["scheme"] == "sgemm", "relative_l2"])
    assert set(lines["sgemm"].get_ydata()) == {sgemm}  # a scheme without sb: one level
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "4", "12"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(lines)
    assert legend.get_title().get_text() == "median and quartiles of 3 seeds"
    assert figure.get_size_inches()[0] == plotting.SINGLE
    assert plotting.pdf(figure).startswith(b"%PDF")


def test_a_map_shows_the_mean_of_the_seeds(table):
    rows = table[(table["scheme"] == "h2sgemm") & (table["hardware"] == "A100")]
    figure = plotting.plane(rows, x="inputs.exponent", y="scheme.sb")
    shown = figure.axes[0].collections[0].get_array().reshape(3, 3)
    means = rows.pivot_table(index="scheme.sb", columns="inputs.exponent", values="relative_l2", aggfunc="mean")
    assert np.allclose(np.asarray(shown, float), means.to_numpy(float), rtol=1e-15)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["0", "4", "12"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": "sb"}, "unknown column 'sb'"),
        ({"x": "scheme.sb", "y": "scheme"}, "column 'scheme' is not of numbers"),
        ({"x": "scheme.sb"}, "would mix values of inputs.exponent, hardware: name each as hue"),
        ({"x": "scheme.sb", "hue": ["hardware", "inputs.exponent", "scheme"], "width": "wide"}, "unknown width"),
        ({"x": "scheme.sb", "hue": ["hardware", "inputs.exponent", "scheme"], "font": "mono"}, "unknown font"),
    ],
)
def test_what_curves_refuse(table, arguments, message):
    with pytest.raises(InputError, match=message):
        plotting.curves(table, **arguments)


def test_the_command_draws_a_grid(workdir, capsys):
    (workdir / "grid.toml").write_text(TOML)
    for words in ("sb", "x=scheme.sb", "x=scheme.sb,z=seed", "x=,y=relative_l2"):
        assert main(["sweep", "grid.toml", "--plot", words]) == 2
    assert main(["sweep", "grid.toml", "--plot", "x=scheme.sb,y=relative_l2", "--picture", "a.gif"]) == 2
    assert main(["sweep", "grid.toml", "--picture", "a.pdf"]) == 2
    assert "--picture a.pdf needs --plot" in capsys.readouterr().err
    assert not (workdir / ".fpemu").exists()
    curves = "x=scheme.sb,y=relative_l2,hue=hardware,hue=inputs.exponent,hue=scheme"
    assert main(["sweep", "grid.toml", "--plot", curves, "--picture", "a.pdf", "--width", "double"]) == 0
    assert (workdir / "a.pdf").read_bytes().startswith(b"%PDF")
    assert main(["sweep", "grid.toml", "--plot", "x=scheme.sb,y=inputs.exponent,map=relative_l2"]) == 2
    assert "would mix values of" in capsys.readouterr().err
