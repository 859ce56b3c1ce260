"""Ozaki scheme II: implementations with an error, by claim."""

from fpemu import inputs, schemes

from . import Wrong


def _median(page, cell, precision, **setting):
    rows = cell["rows"]
    A, B = inputs.operands(cell["inputs"], rows, rows, cell["k"], cell["seed"], precision, phi=cell["phi"])
    D = schemes.gemm(A, B, hardware=cell["hardware"], **setting)
    return page.median(D, *page.product_in_two(A, B))


def _plain_fp16(page, cell):
    if cell["precision"] != "fp32":
        return {}
    return {"fp16 corrected, scaled": _median(page, cell, "fp32", scheme="fp16", on_range="scale")}


def _another(name, **setting):
    return lambda page, cell: {name: _median(page, cell, "fp64", **setting)}


ONE = {"rows": 16, "seeds": 1}
WRONG = {
    "medians": Wrong("dropped corrections", _plain_fp16, ONE | {"lengths": (4096,)}),
    "ozimmu_medians": Wrong(
        "one slice less", _another("ozIMMU s = 8, each product in fp64", scheme="ozimmu", slices=7), ONE
    ),
    "ozaki2_medians": Wrong(
        "one modulus less", _another("Ozaki II N = 14, accurate mode", scheme="ozaki2", moduli=13), ONE
    ),
}
WITHOUT: list[str] = []
