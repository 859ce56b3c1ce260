"""TSM2's parameters: Algorithm 5 by an optimiser, by the printed gradient descent, and by enumeration; ISM2's tcf.

Source: Rivera, Chen, Xiong, Song, Tao (2020), section 3.6 with Algorithm 5, and section 5. The equations with the
corrections below are in `fpemu.roofline.tallskinny`, since the GPU backend selects its parameters by them; with
``printed=True`` a `Model` evaluates the equations exactly as printed. The corrections:

* The shape: the paper's text calls the width of B k in section 3.6 and n in Algorithms 1 to 4. Here it is n.
* ``time_comp`` and ``time_mem`` divide by Peak · SMs · occupancy. A peak is a property of the whole GPU, and every one
  of SMs · occupancy threads executes t3 t2 multiply-adds, so that SMs · occupancy belongs in the numerators. In r it
  cancels.
* r counts t3 t2 multiply-adds against a peak in operations, a multiply-add as one; Algorithm 5's Total_flops counts it
  as two. The published thresholds (40, 6, 50) are Peak / Band · 8 bytes with the fp64 peaks of section 4.1: the peaks
  of the first kind. A multiply-add is two operations, so the thresholds are half of that, and only then are the two
  times of Algorithm 5 equal at the threshold.
* Concurrent_mem counts loads and Concurrent_max_mem bytes; Concurrent_comp multiply-adds and its maximum operations.
* Both uses can exceed one. Without a limit Algorithm 5 rewards ever larger t3, which it does not bound either. Here
  they end at one, and t3 ends where a thread has all its registers.
* Algorithm 5 takes the memory time of a kernel below the threshold, or the computing time of one above it, for its
  time; its last comparison sets one against the other. Here the time is the larger of the two.

`algorithm5` minimises with SciPy's SLSQP from t2 = t3 = 1: each branch of the printed form, or the one time of the
corrected form. `exhaustive` tries every pair of integers and returns all of the best: in the corrected form there are
many, since t3 has no effect once the bandwidth is used up. `descent` is the printed gradient descent, with steps of 0.1
and a stop at 1e-4; its outcome depends on the unit of time, which is not printed.

ISM2, section 5.1: "the algorithm loops k n / t2 times, and k is very small". `ism2_use` evaluates that for A m×k with
small k: each of n / t2 passes waits once for its first loads, and then k / t3 times with t3 loads per thread in flight,
on m threads at most. tcf lets a thread compute tcf rows: `most_tcf` is the largest with which m / tcf threads still
fill the GPU. The model does not say which smaller tcf is best.
"""

import math
from dataclasses import dataclass

from fpemu.roofline import tallskinny
from fpemu.roofline.tallskinny import (
    BYTES,
    MEMORY_LATENCY,
    SETUP,
    TIE,
    Choice,
    block_sizes,
    check,
    fastest,
    most_tcf,
    pairs,
)

__all__ = ["Choice", "Model", "algorithm5", "descent", "exhaustive", "ism2_use", "most_tcf"]
__all__ += ["BYTES", "MEMORY_LATENCY", "SETUP", "TIE", "block_sizes", "check"]


@dataclass(frozen=True)
class Model(tallskinny.Model):
    """The model on one GPU, in one format; ``printed`` evaluates the equations as printed.

    >>> from fpemu.roofline import gpus
    >>> f"{Model(gpus.get('K40c'), printed=True).threshold():.1f}"
    '39.7'
    """

    printed: bool = False

    def memory_use(self, t2: float, t3: float) -> float:
        """Util_mem; as printed, loads over bytes and without a limit."""
        if self.printed:
            return self.occupancy(t2, t3) * t3 / self.needed_memory()
        return super().memory_use(t2, t3)

    def compute_use(self, t2: float, t3: float) -> float:
        """Util_comp; as printed, multiply-adds over operations and without a limit."""
        if self.printed:
            return self.occupancy(t2, t3) * t3 * t2 / self.needed_compute()
        return super().compute_use(t2, t3)

    def threshold(self) -> float:
        """The t2 with r = 1; as printed, twice the t2 at which both times are equal."""
        return 2 * super().threshold() if self.printed else super().threshold()

    def passes(self, n: int, t2: float) -> float:
        """How many times A is read; as printed, not rounded."""
        return n / t2 if self.printed else super().passes(n, t2)

    def time(self, branch: str, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """The time that a branch of Algorithm 5 minimises."""
        times = {"memory": self.memory_time, "compute": self.compute_time, "both": self.seconds}
        return times[branch](m, k, n, t2, t3)

    def branches(self, n: int) -> list[tuple[str, float, float]]:
        """The minimisations of Algorithm 5: the time minimised, and the range of t2."""
        if not self.printed:
            return [("both", 1.0, float(n))]
        if not self.compute_bound(n):
            return [("memory", 1.0, float(n))]
        threshold = max(self.threshold(), 1.0)
        return [("compute", threshold, float(n)), ("memory", 1.0, threshold)]


def algorithm5(model: Model, m: int, k: int, n: int) -> Choice:
    """Return t2 and t3 by Algorithm 5: continuous optimisation, then the best of the neighbouring integers.

    >>> from fpemu.roofline import gpus
    >>> algorithm5(Model(gpus.get("K40c")), 20480, 20480, 16).t2
    16
    """
    choices: list[Choice] = []
    for branch, low, high in model.branches(n):
        t2, t3 = _slsqp(model, branch, m, k, n, low, high)
        # neighbouring integers within the branch and a thread's registers
        for whole2 in {math.floor(t2 + TIE), math.ceil(t2 - TIE)} & set(_whole(low, high)):
            for whole3 in {math.floor(t3 + TIE), math.ceil(t3 - TIE)}:
                if 1 <= whole3 <= model.most_t3(whole2):
                    choices.append(Choice(whole2, whole3, model.time(branch, m, k, n, whole2, whole3)))
    return min(choices, key=lambda choice: choice.seconds)


def exhaustive(model: Model, m: int, k: int, n: int) -> list[Choice]:
    """Return all pairs of integers t2, t3 with the least time of Algorithm 5's branches."""
    return fastest(
        Choice(*pair, model.time(branch, m, k, n, *pair))
        for branch, low, high in model.branches(n)
        for pair in pairs(model, _whole(low, high))
    )


def descent(
    model: Model, m: int, k: int, n: int, *, unit: float = 1e-3, step: float = 0.1, stop: float = 1e-4, most: int = 3000
) -> tuple[int, int]:
    """Return t2 and t3 by section 3.6.3's gradient descent on the memory time, in ``unit`` seconds.

    It starts from t2 = t3 = 1 and ends when the time falls by less than ``stop``, or after ``most`` steps. t2 is
    rounded within 1 to n, t3 within the registers of a thread.
    """
    point = (1.0, 1.0)

    def inside(t2: float, t3: float) -> tuple[float, float]:
        t2 = min(max(t2, 1.0), float(n))
        return t2, min(max(t3, 1.0), max(model.most_t3(t2), 1.0))

    def time(t2: float, t3: float) -> float:
        return model.memory_time(m, k, n, t2 + 1e-12, t3) / unit  # off the integers, so that passes stay continuous

    current, h = time(*point), 1e-5
    for _ in range(most):
        slopes = ((time(point[0] + h, point[1]) - current) / h, (time(point[0], point[1] + h) - current) / h)
        following = inside(point[0] - step * slopes[0], point[1] - step * slopes[1])
        later = time(*following)
        if not current - later > stop:
            # a step that overshoots and increases the time is not taken
            point = following if later < current else point
            break
        point, current = following, later
    t2 = round(point[0])
    return t2, min(round(point[1]), math.floor(model.most_t3(t2)))


def ism2_use(model: Model, m: int, k: int, n: int, t2: int, t3: int, tcf: int = 1) -> float:
    """Return the share of the bandwidth that loads of A use when k is small (section 5.1, Fig. 11).

    ``tcf`` is the number of rows per thread (optimisation 1, Algorithm 6).

    >>> from fpemu.roofline import gpus
    >>> model = Model(gpus.get("V100"), "fp32", memory_latency=375)
    >>> [f"{ism2_use(model, 15360, k, 16, 8, 4):.2f}" for k in (1, 4, 16, 64)]
    ['0.13', '0.50', '0.80', '0.95']
    """
    gpu, passes = model.gpu, -(-n // t2)
    resident = gpu.need("sms") * model.occupancy(t2, t3)
    waves = max(1.0, m / tcf / resident)
    waits = waves * tcf * passes * (1 + -(-k // t3)) * model.latency / gpu.need("clock")
    loaded = m * k * passes * model.bytes
    full = loaded / gpu.need("bandwidth")
    return float(full / max(waits, full))


def _whole(low: float, high: float) -> range:
    """The integers of a range of t2."""
    return range(math.ceil(low - TIE), math.floor(high + TIE) + 1)


def _slsqp(model: Model, branch: str, m: int, k: int, n: int, low: float, high: float) -> tuple[float, float]:
    """The least time over t2 and t3 in logarithms, in which the times are smooth but for their kinks."""
    from scipy.optimize import minimize

    scale = model.time(branch, m, k, n, low, 1.0)
    most = math.log(model.most_t3(low))

    def cost(x: list[float]) -> float:
        # slightly off the integers, so that passes are not rounded up
        t2, t3 = math.exp(x[0]) * (1 + 1e-12), math.exp(x[1])
        return math.log(model.time(branch, m, k, n, t2, t3) / scale)

    result = minimize(
        cost,
        [math.log(low), 0.0],
        method="SLSQP",
        bounds=[(math.log(low), math.log(high)), (0.0, most)],
        constraints={"type": "ineq", "fun": lambda x: model.most_t3(math.exp(x[0])) - math.exp(x[1])},
        options={"maxiter": 200, "ftol": 1e-10},
    )
    return math.exp(result.x[0]), math.exp(result.x[1])
