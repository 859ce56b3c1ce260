"""How launches are timed, without a GPU: what is counted, what is dropped, what is measured again."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from benchmarks import timing
from benchmarks.timing import Steady

TURN = 2.4e-3
ONCE = Steady(loop=0.0)


class Gpu:
    """A GPU and a host in a few lines. Up to a moment another process takes every second turn on the GPU."""

    def __init__(self, each, host=5e-6, start=0.0, others_until=0.0):
        self.each, self.host, self.start, self.until = each, host, start, others_until
        self.time = self.free = self.gone = 0.0
        self.cold, self.count, self.marks, self.slept = True, 0, {}, 0.0
        self.hiccups = set()

    def run(self, begun, seconds):
        """When work ends that begins at a moment, and the longest break in it."""
        longest = 0.0
        while begun < self.until:
            turn = begun // TURN
            end = (turn + 1) * TURN + 1e-12  # so that this turn is over then, rounded or not
            if turn % 2:
                begun, longest = end, TURN
            elif begun + seconds <= end:
                return begun + seconds, longest
            else:
                begun, seconds = end, seconds - (end - begun)
        return begun + seconds, longest

    def launch(self):
        self.count += 1
        self.time += self.host + (5e-3 if self.count in self.hiccups else 0.0)
        took = self.each(self.count) if callable(self.each) else self.each
        self.free, _ = self.run(max(self.free, self.time), took + (self.start if self.cold else 0.0))
        self.cold = False

    def hold(self, seconds):
        begun = max(self.free, self.time)
        self.free, gone = self.run(begun, 0.0)
        left = begun + seconds - self.free  # by the clock on the wall, not by its own time
        while left > 0:
            self.free, more = self.run(self.free, min(left, 1e-4))
            left = begun + seconds - self.free
            gone = max(gone, more)
        self.gone, self.cold = max(self.gone, gone), True

    def mark(self, which):
        self.marks[which] = max(self.free, self.time)

    def passed(self, which):
        return self.marks[which] <= self.time

    def intervals(self, count):
        self.synchronize()
        return [self.marks[i + 1] - self.marks[i] for i in range(count)]

    def away(self):
        self.synchronize()
        gone, self.gone = self.gone, 0.0
        return gone

    def synchronize(self):
        self.time = max(self.time, self.free)

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.slept += seconds
        self.time += seconds

    def watch(self):
        return SimpleNamespace(stop=lambda: None)

    def measure(self, rules=ONCE):
        return timing.measure(self.launch, rules, self)


# --- products that heat the chip
@pytest.mark.parametrize(("seconds", "host"), [(4e-3, 1e-5), (3e-6, 4e-5), (1e-4, 4e-5)])
def test_the_hosts_time_is_not_counted(seconds, host):
    found = Gpu(seconds, host).measure(timing.FULL)
    assert found.median == pytest.approx(seconds, rel=1e-6)
    assert found.sustained == pytest.approx(seconds, rel=1e-6)


def test_a_limiter_shows_in_the_second_half_and_not_in_the_first_launches():
    gpu: Gpu = Gpu(lambda count: 4e-3 * (2 if gpu.free > 1.2 else 1), 1e-5)
    found = gpu.measure(timing.FULL)
    assert found.median == pytest.approx(4e-3)
    assert found.sustained == pytest.approx(8e-3)
    assert gpu.slept == timing.FULL.idle


@pytest.mark.parametrize("each", [2e-5, 4e-4, 5e-3, 0.3])
@pytest.mark.parametrize("name", list(timing.RULES))
def test_the_duration_of_a_measurement_is_estimated(name, each):
    rules = timing.RULES[name][0]
    gpu = Gpu(each, 1e-5)
    gpu.measure(rules)
    assert gpu.time == pytest.approx(timing.seconds(rules, each), rel=0.5, abs=0.06)


# --- short launches
@pytest.mark.parametrize("each", [1e-6, 3e-5, 2e-3, 0.06])
@pytest.mark.parametrize("host", [5e-6, 8e-5])
def test_neither_the_host_nor_a_slow_start_is_counted(each, host):
    gpu = Gpu(each, host, start=4e-5)
    found = gpu.measure()
    assert [found.median, found.least, found.most] == pytest.approx([each] * 3, rel=1e-3)
    assert (found.tries, found.away, found.loop) == (1, 0.0, None)
    assert found.steady(ONCE)
    assert found.launches == max(1, min(160, round(4e-4 / each)))
    assert 3 <= found.samples <= 11


@pytest.mark.parametrize("each", [1e-6, 0.06])
def test_a_point_takes_tenths_of_a_second_at_most(each):
    gpu = Gpu(each)
    gpu.measure(Steady())
    assert gpu.time < (0.06 if each < 1e-3 else 12 * each)


def test_samples_for_which_the_host_was_late_are_dropped():
    gpu = Gpu(1e-6)
    gpu.hiccups = {60, 300, 700, 1100}
    found = gpu.measure()
    assert found.samples == ONCE.samples
    assert found.most == pytest.approx(1e-6)
    assert found.host > gpu.host  # waits were longer afterwards


@pytest.mark.parametrize("each", [1.2e-6, 3e-5, 2e-3])
def test_another_process_is_detected_and_the_measurement_repeated(each):
    found = Gpu(each, others_until=0.5).measure()
    assert found.median == pytest.approx(each)
    assert found.tries > 1
    assert found.steady(ONCE)
    assert "away_s" not in timing.fields(found)


@pytest.mark.parametrize("each", [1.2e-6, 2e-3, 4.8e-3])
def test_a_row_records_that_another_process_always_used_the_gpu(each):
    gpu = Gpu(each, others_until=math.inf)
    found = gpu.measure()
    assert found.tries == ONCE.tries
    assert not found.steady(ONCE)
    assert timing.fields(found)["away_s"] == pytest.approx(TURN)
    assert gpu.slept < 1


def test_samples_that_differ_are_taken_again_and_the_steadiest_are_kept():
    slow = Gpu(lambda count: 1e-5 * (1.5 if 100 < count < 260 else 1.0))
    found = slow.measure()
    assert found.tries == 2
    assert found.most == pytest.approx(1e-5)
    wild = Gpu(lambda count: 1e-5 * (1 + (count // 40) % 3)).measure()
    assert wild.tries == ONCE.tries
    assert wild.spread > ONCE.spread
    assert timing.fields(wild)["spread"] == wild.spread


def test_a_loop_is_timed_as_its_caller_sees_it():
    assert Gpu(1e-6, host=2e-5).measure(Steady()).loop == pytest.approx(2e-5, rel=0.02)
    assert Gpu(1e-4, host=2e-5).measure(Steady()).loop == pytest.approx(1e-4, rel=0.3)


@pytest.mark.parametrize(("wait", "seconds"), [(False, 2e-5), (True, 1e-4)])
def test_wall_time_counts_the_wait_for_the_gpu_only_on_request(wait, seconds):
    gpu = Gpu(1e-4, host=2e-5)
    found = timing.wall(gpu.launch, 50, 3, synchronize=gpu.synchronize, wait=wait, now=gpu.now)
    assert found == pytest.approx(seconds, rel=0.01)
    assert gpu.count == 150
