"""The table of GPUs: what every description has, how names are found, and what is wrong in a user's file."""

import math

import pytest

from fpemu.errors import InputError
from fpemu.mma import catalog
from fpemu.roofline import gpus
from fpemu.roofline.gpus import Gpu

OWN = """
[Mine]
source = "a data sheet"
bandwidth = 1e12
sms = 10
peak = { fp32 = 1e13 }
"""


def written(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", gpus.names())
def test_every_gpu_has_what_a_roofline_needs_and_says_where_it_is_from(name):
    gpu = gpus.get(name)
    assert gpu.source
    assert gpu.bandwidth > 0
    assert gpu.memory > 0
    assert gpu.sms > 0
    assert gpu.peak
    assert gpu.copy_bandwidth is None or gpu.copy_bandwidth < gpu.bandwidth


@pytest.mark.parametrize("name", [n for n in gpus.names() if gpus.get(n).architecture])
def test_architectures_are_those_of_the_catalog_and_have_the_instructions_behind_the_peaks(name):
    gpu = gpus.get(name)
    assert gpu.architecture in catalog.architectures()
    if name in catalog.gpu_names():
        assert catalog.architecture(name) == gpu.architecture
    for unit in gpu.peak:
        if unit.endswith(" matrix"):
            fmt = unit.removesuffix(" matrix").replace("fp8", "e4m3")
            assert catalog.spec(gpu.architecture, fmt).architecture == gpu.architecture


LANES = {
    "K40c": 192,
    "M40": 128,
    "P100": 64,
    "P100 SXM2": 64,
    "V100": 64,
    "V100 SXM2": 64,
    "T4": 64,
    "Titan RTX": 64,
    "A100": 64,
    "RTX 3090": 128,
    "L40S": 128,
    "RTX 4090": 128,
    "H100": 128,
    "H100 PCIe": 128,
    "RTX 5090": 128,
    "MI100": 64,
    "MI210": 64,
    "MI250": 64,
    "MI300X": 128,
    "Ascend 910A": 64,
}
"""fp32 multiply-adds a cycle of an SM, by the architectures' white papers."""


@pytest.mark.parametrize("name", LANES)
def test_the_fp32_peak_is_cores_times_lanes_times_clock(name):
    gpu = gpus.get(name)
    assert math.isclose(gpu.peak["fp32"], 2 * LANES[name] * gpu.sms * gpu.clock, rel_tol=0.015)


DOUBLE = {
    "K40c": 64,
    "M40": 4,
    "P100": 32,
    "P100 SXM2": 32,
    "V100": 32,
    "V100 SXM2": 32,
    "T4": 2,
    "Titan RTX": 2,
    "A100": 32,
    "A800": 32,
    "L40S": 2,
    "H100": 64,
    "H200": 64,
    "H100 PCIe": 64,
    "MI100": 32,
    "MI210": 64,
    "MI250": 64,
    "MI300X": 64,
}
"""fp64 multiply-adds a cycle of an SM."""
MATRIX = {
    "V100": 512,
    "V100 SXM2": 512,
    "T4": 512,
    "Titan RTX": 512,
    "A100": 1024,
    "A800": 1024,
    "RTX 3090": 256,
    "L40S": 512,
    "RTX 4090": 256,
    "H100": 2048,
    "H200": 2048,
    "GH200": 2048,
    "RTX 5090": 256,
    "MI100": 512,
    "MI210": 512,
    "MI250": 512,
    "MI300X": 1024,
    "Ascend 910A": 4096,
    "Ascend 910B3": 4096,
}
"""fp16 multiply-adds a cycle of the matrix units of an SM."""


@pytest.mark.parametrize("name", DOUBLE)
def test_the_fp64_peak_is_units_times_clock(name):
    gpu = gpus.get(name)
    assert math.isclose(gpu.peak["fp64"], 2 * DOUBLE[name] * gpu.sms * gpu.clock, rel_tol=0.01)


@pytest.mark.parametrize("name", MATRIX)
def test_the_fp16_matrix_peak_is_units_times_clock(name):
    gpu = gpus.get(name)
    clock = 1.83e9 if gpu.architecture == "hopper" else gpu.clock  # NVIDIA states Hopper's peak at another clock
    assert math.isclose(gpu.peak["fp16 matrix"], 2 * MATRIX[name] * gpu.sms * clock, rel_tol=0.025)


def test_what_the_papers_print_is_in_the_table():
    assert gpus.get("Titan RTX").peak["fp64"] == 509.76e9
    assert gpus.get("V100").copy_bandwidth == 847e9
    assert gpus.get("A800").bandwidth == 2.04e12
    assert gpus.get("K40c").peak["fp64"] == 1430e9
    assert round(gpus.get("Ascend 910A").peak["fp16 matrix"] / 3e12, 1) == 85.3
    assert gpus.get("Ascend 910B3").peak["fp32 matrix"] == 73.73e12


def test_an_a800_computes_as_an_a100():
    one, other = gpus.get("A800"), gpus.get("A100")
    assert (one.peak, one.sms, one.clock, one.shared) == (other.peak, other.sms, other.clock, other.shared)


@pytest.mark.parametrize("name", ["titan rtx", "Titan-RTX", "NVIDIA Titan RTX", "TITANRTX"])
def test_case_blanks_dashes_and_the_maker_do_not_matter(name):
    assert gpus.get(name).name == "Titan RTX"


def test_an_unknown_name_shows_the_nearest():
    with pytest.raises(InputError, match="did you mean 'H200'"):
        gpus.get("H2000")


def test_a_description_passes_through():
    gpu = Gpu(name="x", source="y")
    assert gpus.get(gpu) is gpu


def test_what_is_missing_is_named_with_the_gpu():
    with pytest.raises(InputError, match=r"Mine: this model needs clock"):
        Gpu(name="Mine", source="s").need("clock")
    with pytest.raises(InputError, match=r"K40c: occupancy needs peak 'fp16 matrix'"):
        gpus.get("K40c").need("fp16 matrix", "occupancy")


def test_a_file_of_ones_own_is_read(tmp_path):
    path = written(tmp_path, OWN)
    gpu = gpus.get(str(path))
    assert (gpu.name, gpu.bandwidth, gpu.sms, dict(gpu.peak)) == ("Mine", 1e12, 10, {"fp32": 1e13})
    assert gpus.get(path) == gpu


def test_one_of_several_is_chosen_by_name(tmp_path):
    path = written(tmp_path, OWN + '[Other]\nlike = "Mine"\nsource = "b"\nsms = 20\n')
    assert gpus.get(f"{path}:other").sms == 20
    assert gpus.get(f"{path}:Other").bandwidth == 1e12
    with pytest.raises(InputError, match=r"describes Mine, Other: name one"):
        gpus.get(path)
    with pytest.raises(InputError, match=r"unknown GPU of .*'Third'"):
        gpus.get(f"{path}:Third")


def test_like_takes_peaks_one_by_one_from_the_package_too(tmp_path):
    path = written(tmp_path, '[Mine]\nlike = "H200"\nsource = "s"\npeak = { fp32 = 1e9 }\n')
    gpu, base = gpus.get(path), gpus.get("H200")
    assert gpu.peak == {**base.peak, "fp32": 1e9}
    assert gpu.source == "s"
    assert gpu.l2 == base.l2


def test_only_the_source_is_required(tmp_path):
    gpu = gpus.get(written(tmp_path, '[Mine]\nsource = "s"\n'))
    assert gpu == Gpu(name="Mine", source="s")
    with pytest.raises(InputError, match=r"mine\.toml, GPU 'Mine': source is missing"):
        gpus.read(written(tmp_path, "[Mine]\nsms = 10\n"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bandwith = 1e12", r"mine\.toml, GPU 'Mine':.*'bandwith': did you mean 'bandwidth'"),
        ("warp = 32.5", r"GPU 'Mine', warp = 32\.5 must be a positive integer"),
        ("warp = true", r"warp = True must be a positive integer"),
        ("clock = -1e9", r"GPU 'Mine', clock = -1000000000\.0 must be a positive number"),
        ("clock = nan", r"clock = nan must be a positive number"),
        ("clock = inf", r"clock = inf must be a positive number"),
        ('clock = "1 GHz"', r"clock = '1 GHz' must be a positive number"),
        ("l2 = 0", r"l2 = 0 must be a positive number"),
        ('architecture = "hoper"', r"architecture: unknown hardware 'hoper': did you mean 'hopper'"),
        ('like = "H2000"', r"unknown GPU in .*like 'H2000'"),
        ('like = "Mine"', r"unknown GPU in .*like 'Mine'"),
        ("like = 7", r"unknown GPU in .*like '7'"),
        ("clock = 1.98", r"clock = 1\.98 is too little, in Hz: is it in a larger unit"),
        ("copy_bandwidth = 4.27", r"copy_bandwidth = 4\.27 is too little, in bytes a second"),
        ("shared = 228", r"shared = 228 is too little, in bytes"),
        ("blocks = 99999999999999999999", "blocks = 99999999999999999999 must be a positive integer"),
        ("clock = 1e999", r"clock = inf must be a positive number"),
    ],
)
def test_a_wrong_field_is_named_with_file_gpu_and_value(tmp_path, line, message):
    path = written(tmp_path, f"{OWN}{line}\n")
    with pytest.raises(InputError, match=message):
        gpus.read(path)


@pytest.mark.parametrize(
    ("peak", "message"),
    [
        ('{ "fp16 matix" = 1e12 }', r"unit in .*'fp16 matix': did you mean 'fp16 matrix'"),
        ("{ fp16 = 78.0 }", r"peak 'fp16' = 78\.0 is too little, in operations a second"),
        ("{ fp16 = -1.0 }", r"peak 'fp16' = -1\.0 must be a positive number"),
        ("1e12", r"peak = 1000000000000\.0 must be a table of peaks by unit"),
    ],
)
def test_a_wrong_peak_is_named(tmp_path, peak, message):
    path = written(tmp_path, f'[Mine]\nsource = "s"\npeak = {peak}\n')
    with pytest.raises(InputError, match=message):
        gpus.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "describes no GPU"), ("x = 1\n", "x = 1 is outside"), ("[Mine\n", "not readable as TOML")],
)
def test_a_file_that_describes_no_gpu_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        gpus.read(written(tmp_path, text))


def test_two_tables_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="'Mine' and 'mi-ne' are the same name"):
        gpus.read(written(tmp_path, OWN + '[mi-ne]\nsource = "b"\n'))


def test_like_looks_at_tables_above_and_never_turns_in_a_circle(tmp_path):
    text = '[One]\nlike = "Two"\nsource = "a"\n[Two]\nlike = "One"\nsource = "b"\n'
    with pytest.raises(InputError, match="GPU 'One', like 'Two'"):
        gpus.read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sms": 1.5}, r"GPU 'x', sms = 1\.5 must be a positive integer"),
        ({"bandwidth": -1.0}, r"GPU 'x', bandwidth = -1\.0 must be a positive number"),
        ({"clock": 1.98}, "too little, in Hz"),
        ({"peak": {"fp61": 1e12}}, "unknown unit in GPU 'x', peak: 'fp61'"),
        ({"architecture": "hoper"}, "did you mean 'hopper'"),
        ({"memory": 10**400}, "memory = .* must be a positive number"),
    ],
)
def test_a_description_written_in_python_is_checked_too(fields, message):
    with pytest.raises(InputError, match=message):
        Gpu(name="x", source="s", **fields)


def test_a_field_that_no_gpu_has_is_named_with_the_nearest():
    with pytest.raises(InputError, match="unknown field of a GPU 'bandwith': did you mean 'bandwidth'"):
        gpus.get("H200").need("bandwith")


def test_what_is_assumed_or_was_not_looked_up_says_so():
    for name in ("H100", "H100 PCIe", "GH200"):
        assert gpus.get(name).compute_latency == gpus.get("H200").compute_latency
        assert "assumed" in gpus.get(name).source
    for name in ("K40c", "M40", "P100"):
        assert "atencies not looked up" in gpus.get(name).source
    assert "measured" in gpus.get("H200").source


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml: No such file"):
        gpus.get(tmp_path / "absent.toml")


def test_the_page_on_tsm2_uses_the_latency_that_the_table_has():
    from experiments.tsm2 import parameters

    assert gpus.get("H200").memory_latency == parameters.MEASURED
