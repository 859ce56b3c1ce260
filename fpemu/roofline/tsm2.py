"""TSM2's parameters: Algorithm 5 by an optimiser, by gradient descent as printed, and by trying all; ISM2's tcf.

Source: Rivera, Chen, Xiong, Song, Tao (2020), Algorithm 5 (section 3.6.3) and section 5. The equations, and what had to
be corrected in them, are in `tsm2_model`.

`algorithm5` minimises with SciPy's SLSQP from t2 = t3 = 1, in the printed form with its branches, in the corrected form
the one time. `exhaustive` tries every pair of integers and returns all that are best: in the corrected form these are
many, since t3 does not matter once the bandwidth is used up. `descent` is the printed gradient descent, steps of 0.1
and a stop at 1e-4; its outcome depends on the unit of time, which is not printed.

ISM2, section 5.1: "the algorithm loops k n / t2 times, and k is very small". `ism2_use` is that in numbers, for
A m×k with small k: each of n / t2 passes waits once for its first loads, and then k / t3 times with t3 loads a thread
under way, whose number also ends at m threads. tcf lets a thread do tcf rows: `most_tcf` is the largest with which
m / tcf threads still fill the GPU. Beyond that there is nothing in the model that says which tcf is best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fpemu.arguments import checked, positive, sizes
from fpemu.roofline.tsm2_model import BYTES, MEMORY_LATENCY, SETUP, Model, block_sizes, check

__all__ = [
    "BYTES",
    "MEMORY_LATENCY",
    "SETUP",
    "Choice",
    "Model",
    "algorithm5",
    "block_sizes",
    "check",
    "descent",
    "exhaustive",
    "ism2_use",
    "most_tcf",
]

TIE = 1e-9
"""Times that differ relatively by no more are the same."""


@dataclass(frozen=True)
class Choice:
    """Parameters and the modelled time with them.

    Attributes
    ----------
    t2 : int
        Columns of C at a time.
    t3 : int
        Elements of A at a time.
    seconds : float
        Modelled time, seconds.
    branch : {"memory", "compute"}
        Which time was minimised; with the corrected form, the larger one.
    """

    t2: int
    t3: int
    seconds: float
    branch: str


@checked
def algorithm5(model: Model, m: int, k: int, n: int) -> Choice:
    """Return t2 and t3 by Algorithm 5: continuous optimisation, then the best of the integers around.

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    m, k, n : int
        A is m×k, B is k×n.

    Returns
    -------
    Choice
        The parameters and the modelled time.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> algorithm5(Model(gpus.get("K40c")), 20480, 20480, 16).t2
    16
    """
    sizes(m=m, k=k, n=n)
    found: list[Choice] = []
    for branch, low, high in _branches(model, n):
        t2, t3 = _slsqp(model, branch, m, k, n, low, high)
        # the integers around, so that rounding costs nothing; they must not leave the branch, nor the registers
        for whole2 in {math.floor(t2 + TIE), math.ceil(t2 - TIE)} & set(_whole(low, high)):
            for whole3 in {math.floor(t3 + TIE), math.ceil(t3 - TIE)}:
                if 1 <= whole3 <= model.most_t3(whole2):
                    found.append(_choice(model, branch, m, k, n, whole2, whole3))
    return min(found, key=lambda choice: choice.seconds)


@checked
def exhaustive(model: Model, m: int, k: int, n: int) -> list[Choice]:
    """Return all pairs of integers t2, t3 with the least time.

    The pairs are those of Algorithm 5's branches that fit within a thread's registers.

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    m, k, n : int
        Sizes: A is m×k, B is k×n.

    Returns
    -------
    list of Choice
        Pairs whose times differ by rounding errors only.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> best = exhaustive(Model(gpus.get("V100")), 20480, 20480, 16)
    >>> sorted({choice.t2 for choice in best})
    [16]
    """
    sizes(m=m, k=k, n=n)
    tried = []
    for branch, low, high in _branches(model, n):
        for t2 in _whole(low, high):
            for t3 in range(1, math.floor(model.most_t3(t2)) + 1):
                tried.append(_choice(model, branch, m, k, n, t2, t3))
    least = min(choice.seconds for choice in tried)
    return [choice for choice in tried if choice.seconds <= least * (1 + TIE)]


@checked
def descent(
    model: Model, m: int, k: int, n: int, *, unit: float = 1e-3, step: float = 0.1, stop: float = 1e-4, most: int = 3000
) -> tuple[int, int]:
    """Minimise the memory time by section 3.6.3's gradient descent.

    It starts from t2 = t3 = 1 and ends when the time falls by less than ``stop``.

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    m, k, n : int
        Sizes: A is m×k, B is k×n.
    unit : float
        Unit of time in seconds, which the paper does not print.
    step, stop : float
        Step length and stopping criterion, as printed.
    most : int
        Largest number of steps.

    Returns
    -------
    t2 : int
        Columns of C at a time, rounded; from 1 to n.
    t3 : int
        Elements of A at a time, rounded; within the registers of a thread.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.
    """
    sizes(m=m, k=k, n=n, most=most)
    positive(unit=unit, step=step, stop=stop)
    here = (1.0, 1.0)

    def inside(t2: float, t3: float) -> tuple[float, float]:
        t2 = min(max(t2, 1.0), float(n))
        return t2, min(max(t3, 1.0), max(model.most_t3(t2), 1.0))

    def time(t2: float, t3: float) -> float:
        return model.memory_time(m, k, n, t2 + 1e-12, t3) / unit  # not whole: passes stay continuous

    now, h = time(*here), 1e-5
    for _ in range(most):
        slopes = ((time(here[0] + h, here[1]) - now) / h, (time(here[0], here[1] + h) - now) / h)
        there = inside(here[0] - step * slopes[0], here[1] - step * slopes[1])
        then = time(*there)
        if not now - then > stop:
            # a step that overshoots and climbs ends the descent where it was
            here = there if then < now else here
            break
        here, now = there, then
    t2 = round(here[0])
    return t2, min(round(here[1]), math.floor(model.most_t3(t2)))


@checked
def ism2_use(model: Model, m: int, k: int, n: int, t2: int, t3: int, tcf: int = 1) -> float:
    """Return the share of the bandwidth that loads of A use when k is small (section 5.1, Fig. 11).

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    m, k, n : int
        Sizes: A is m×k, B is k×n.
    t2, t3, tcf : int
        Tiles, and the rows for which a thread repeats its work (optimisation 1, Algorithm 6).

    Returns
    -------
    float
        Share from 0 to 1.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> model = Model(gpus.get("V100"), "fp32", memory_latency=375)
    >>> [f"{ism2_use(model, 15360, k, 16, 8, 4):.2f}" for k in (1, 4, 16, 64)]
    ['0.13', '0.50', '0.80', '0.95']
    """
    sizes(m=m, k=k, n=n, t2=t2, t3=t3, tcf=tcf)
    gpu, passes = model.gpu, -(-n // t2)
    held = gpu.need("sms") * model.occupancy(t2, t3)
    waves = max(1.0, m / tcf / held)
    waits = waves * tcf * passes * (1 + -(-k // t3)) * model.latency / gpu.need("clock")
    loaded = m * k * passes * model.bytes
    full = loaded / gpu.need("bandwidth")
    return float(full / max(waits, full))


@checked
def most_tcf(model: Model, m: int, t2: int = 1, t3: int = 1) -> int:
    """Return the largest tcf with which m / tcf threads still fill every SM to its occupancy.

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    m : int
        Rows of A.
    t2, t3 : int
        Tiles.

    Returns
    -------
    int
        Rows a thread, at least 1.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> [most_tcf(Model(gpus.get("V100"), "fp32"), 10**e) for e in (4, 5, 6, 7)]
    [1, 1, 6, 61]
    """
    sizes(m=m, t2=t2, t3=t3)
    return max(1, int(m / (model.gpu.need("sms") * model.occupancy(t2, t3))))


def _branches(model: Model, n: int) -> list[tuple[str, float, float]]:
    """The minimisations of Algorithm 5: what, and the range of t2."""
    if not model.printed:
        return [("both", 1.0, float(n))]
    threshold = model.threshold()
    if not model.compute_bound(n):
        return [("memory", 1.0, float(n))]
    return [("compute", max(threshold, 1.0), float(n)), ("memory", 1.0, max(threshold, 1.0))]


def _time(model: Model, branch: str, m: int, k: int, n: int, t2: float, t3: float) -> float:
    if branch == "both":
        return model.seconds(m, k, n, t2, t3)
    return model.memory_time(m, k, n, t2, t3) if branch == "memory" else model.compute_time(m, k, n, t2, t3)


def _whole(low: float, high: float) -> range:
    """The integers of a range of t2."""
    return range(math.ceil(low - TIE), math.floor(high + TIE) + 1)


def _choice(model: Model, branch: str, m: int, k: int, n: int, t2: int, t3: int) -> Choice:
    seconds = _time(model, branch, m, k, n, t2, t3)
    if branch == "both":
        branch = "compute" if seconds > model.memory_time(m, k, n, t2, t3) else "memory"
    return Choice(t2, t3, seconds, branch)


def _slsqp(model: Model, branch: str, m: int, k: int, n: int, low: float, high: float) -> tuple[float, float]:
    """The least time over t2 and t3 in logarithms, in which the times are smooth but for their kinks."""
    from scipy.optimize import minimize

    scale = _time(model, branch, m, k, n, low, 1.0)
    most = math.log(model.most_t3(low))

    def cost(x: list[float]) -> float:
        # off the integers by a hair, so that passes are not rounded up
        t2, t3 = math.exp(x[0]) * (1 + 1e-12), math.exp(x[1])
        return math.log(_time(model, branch, m, k, n, t2, t3) / scale)

    found = minimize(
        cost,
        [math.log(low), 0.0],
        method="SLSQP",
        bounds=[(math.log(low), math.log(high)), (0.0, most)],
        constraints={"type": "ineq", "fun": lambda x: model.most_t3(math.exp(x[0])) - math.exp(x[1])},
        options={"maxiter": 200, "ftol": 1e-10},
    )
    return math.exp(found.x[0]), math.exp(found.x[1])
