"""The table of GPUs: what every description has, how names are found, and what is wrong in a user's file."""

import math

import pytest

from fpemu.errors import InputError
from fpemu.mma import catalog
from fpemu.roofline import gpus, time, work
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


PER_CYCLE = {
    "fp32": {
        192: "K40c",
        128: "M40, RTX 3090, L40S, RTX 4090, H100, H100 PCIe, RTX 5090, MI300X",
        64: "P100, P100 SXM2, V100, V100 SXM2, T4, Titan RTX, A100, MI100, MI210, MI250, Ascend 910A",
    },
    "fp64": {
        64: "K40c, H100, H200, H100 PCIe, MI210, MI250, MI300X",
        4: "M40",
        32: "P100, P100 SXM2, V100, V100 SXM2, A100, A800, MI100",
        2: "T4, Titan RTX, L40S",
    },
    "fp16 matrix": {
        512: "V100, V100 SXM2, T4, Titan RTX, L40S, MI100, MI210, MI250",
        1024: "A100, A800, MI300X",
        256: "RTX 3090, RTX 4090, RTX 5090",
        2048: "H100, H200, GH200",
        4096: "Ascend 910A, Ascend 910B3",
    },
}
"""Multiply-adds per cycle of an SM by the architectures' white papers, and the GPUs with that rate."""


@pytest.mark.parametrize(
    ("unit", "rate", "name"),
    [(u, rate, n) for u, rates in PER_CYCLE.items() for rate, names in rates.items() for n in names.split(", ")],
)
def test_a_peak_is_sms_times_rate_times_clock(unit, rate, name):
    gpu = gpus.get(name)
    # NVIDIA states the matrix peak of Hopper at another clock
    clock = 1.83e9 if gpu.architecture == "hopper" and unit == "fp16 matrix" else gpu.clock
    tolerance = {"fp32": 0.015, "fp64": 0.01, "fp16 matrix": 0.025}[unit]
    assert math.isclose(gpu.peak[unit], 2 * rate * gpu.sms * clock, rel_tol=tolerance)


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


def test_what_is_assumed_or_was_not_looked_up_says_so():
    for name in ("H100", "H100 PCIe", "GH200"):
        assert gpus.get(name).compute_latency == gpus.get("H200").compute_latency
        assert "assumed" in gpus.get(name).source
    for name in ("K40c", "M40", "P100"):
        assert "atencies not looked up" in gpus.get(name).source
    assert "measured" in gpus.get("H200").source


def test_the_page_on_tsm2_uses_the_latency_that_the_table_has():
    from experiments.tsm2 import parameters

    assert gpus.get("H200").memory_latency == parameters.MEASURED


def test_a_description_may_name_its_architecture_by_a_gpu():
    described = Gpu(name="mine", source="me", architecture="H100", peak=gpus.get("H200").peak, bandwidth=4.8e12)
    assert described.architecture == "hopper"
    assert time(work("ootomo", described, 64, 64, 64), described).seconds > 0


# --- refusals
REFUSED_FILES = [
    *(
        (f"{OWN}{line}\n", rf"mine\.toml, GPU 'Mine'.*{message}")
        for line, message in (
            ("bandwith = 1e12", "'bandwith': did you mean 'bandwidth'"),
            ("warp = 32.5", r"warp is 32\.5, not an integer"),
            ("warp = true", "warp is True, not an integer"),
            ("clock = -1e9", r"Gpu: clock = -1000000000\.0 must be a positive number"),
            ("clock = nan", "clock = nan must be a positive number"),
            ("clock = 1e999", "clock = inf must be a positive number"),
            ('clock = "1 GHz"', "clock is '1 GHz', not a number"),
            ("l2 = 0", "l2 = 0.0 must be a positive number"),
            ('architecture = "hoper"', "unknown hardware 'hoper': did you mean 'hopper'"),
            ("clock = 1.98", r"clock = 1\.98 is too little, in Hz: is it in a larger unit"),
            ("copy_bandwidth = 4.27", r"copy_bandwidth = 4\.27 is too little, in bytes a second"),
            ("shared = 228", "shared = 228.0 is too little, in bytes"),
            ("blocks = 99999999999999999999", "blocks = 99999999999999999999 must be a positive integer"),
        )
    ),
    *(
        (f"{OWN}like = {value}\n", rf"unknown GPU in .*like '{name}'")
        for value, name in (('"H2000"', "H2000"), ("7", "7"))
    ),
    *(
        (f'[Mine]\nsource = "s"\npeak = {peak}\n', message)
        for peak, message in (
            ('{ "fp16 matix" = 1e12 }', r"unit in .*'fp16 matix': did you mean 'fp16 matrix'"),
            ("{ fp16 = 78.0 }", r"peak 'fp16' = 78\.0 is too little, in operations a second"),
            ("{ fp16 = -1.0 }", r"peak 'fp16' = -1\.0 must be a positive number"),
            ("1e12", r"peak is 1000000000000\.0, not a table"),
        )
    ),
    ("[Mine]\nsms = 10\n", r"mine\.toml, GPU 'Mine': source is missing"),
    ("", "describes no GPU"),
    ("x = 1\n", "x = 1 is outside"),
    ("[Mine\n", "not readable as TOML"),
    (OWN + '[mi-ne]\nsource = "b"\n', "'Mine' and 'mi-ne' are the same name"),
    # tables above alone are read, so that no circle is possible
    ('[One]\nlike = "Two"\nsource = "a"\n[Two]\nlike = "One"\nsource = "b"\n', "GPU 'One', like 'Two'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED_FILES)
def test_a_wrong_file_is_refused_with_file_gpu_field_and_value(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        gpus.read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpus.get("absent.toml"), r"absent\.toml: No such file"),
        (lambda: gpus.get("H2000"), "did you mean 'H200'"),
        (lambda: gpus.get("H200").need("bandwith"), "unknown field of a GPU 'bandwith': did you mean 'bandwidth'"),
        (lambda: gpus.get("K40c").need("fp16 matrix", "occupancy"), "K40c: occupancy needs peak 'fp16 matrix'"),
        (lambda: Gpu(name="Mine", source="s").need("clock"), "Mine: this model needs clock"),
        (lambda: Gpu(name="x", source="s", sms=1.5), r"Gpu: sms = 1\.5 must be a positive integer"),
        (lambda: Gpu(name="x", source="s", bandwidth=-1.0), r"Gpu: bandwidth = -1\.0 must be a positive number"),
        (lambda: Gpu(name="x", source="s", clock=1.98), "too little, in Hz"),
        (lambda: Gpu(name="x", source="s", peak={"fp61": 1e12}), "unknown unit in Gpu: peak: 'fp61'"),
        (lambda: Gpu(name="x", source="s", architecture="hoper"), "did you mean 'hopper'"),
        (lambda: Gpu(name="x", source="s", memory=10**400), "memory = .* must be a positive number"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
