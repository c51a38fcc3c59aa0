"""Paired timing. A clock that only the timed work moves stands for the machine's where figures are exact."""

import gc
import time

import numpy as np
import pytest
import torch

from autoprec.envs.accelerator import clock_of
from autoprec.envs.measure import FRESH_TIMING
from autoprec.envs.timing import TimingSettings, median_interval, time_pairs


class Machine:
    """A clock that stands still but for the work, which can slow down as it goes."""

    def __init__(self, monkeypatch, drift=0.0, noise=0.0):
        self.now = 0.0
        self.calls = []
        self._drift = drift
        self._rng = np.random.default_rng(0)
        self._noise = noise
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self, name, seconds):
        def call():
            self.calls.append(name)
            noisy = seconds * float(np.exp(self._noise * self._rng.standard_normal()))
            self.now += noisy * (1 + self._drift * self.now)

        return call


def test_the_ratio_is_that_of_the_work(monkeypatch):
    machine = Machine(monkeypatch)
    found = time_pairs(machine.work("a", 0.03), machine.work("b", 0.02), TimingSettings(min_pairs=8))
    assert found.ratio == pytest.approx(1.5)
    assert found.low == pytest.approx(1.5) and found.high == pytest.approx(1.5)
    assert (found.a_seconds, found.b_seconds) == (pytest.approx(0.03), pytest.approx(0.02))
    assert found.pairs == 8  # nothing varies, so the first look is the last


def test_sides_are_interleaved_and_take_turns_in_going_first(monkeypatch):
    machine = Machine(monkeypatch)
    time_pairs(machine.work("a", 0.03), machine.work("b", 0.02), TimingSettings(warmup=2, min_pairs=4))
    timed = "".join(machine.calls[4:])
    assert "".join(machine.calls[:4]) == "abab"
    assert timed == "abbabaababbabaab"


def test_a_machine_that_slows_down_changes_no_ratio(monkeypatch):
    machine = Machine(monkeypatch, drift=0.2)  # after 5 s everything takes twice as long
    found = time_pairs(machine.work("a", 0.03), machine.work("b", 0.02), TimingSettings(max_seconds=5.0))
    assert found.ratio == pytest.approx(1.5, rel=0.01)


def test_short_calls_are_repeated_until_a_sample_is_long_enough(monkeypatch):
    machine = Machine(monkeypatch)
    settings = TimingSettings(warmup=0, min_pairs=3, max_pairs=3, min_sample_seconds=0.004)
    found = time_pairs(machine.work("a", 0.001), machine.work("b", 0.0005), settings)
    # One call of each to warm up, and one to see how long they take when warm.
    assert "".join(machine.calls[:4]) == "abab"
    assert machine.calls[4:8] == ["a"] * 4 and machine.calls[8:16] == ["b"] * 8
    assert found.ratio == pytest.approx(2.0)
    assert (found.a_seconds, found.b_seconds) == (pytest.approx(0.001), pytest.approx(0.0005))


def test_repeating_stops_when_the_interval_is_narrow_enough(monkeypatch):
    def pairs(target):
        machine = Machine(monkeypatch, noise=0.05)
        settings = TimingSettings(target=target, max_seconds=1e9, max_pairs=100_000)
        found = time_pairs(machine.work("a", 0.03), machine.work("b", 0.02), settings)
        assert (found.high - found.low) / 2 <= target * found.ratio
        return found.pairs

    assert pairs(0.05) < pairs(0.01) < pairs(0.004)


@pytest.mark.parametrize(("settings", "pairs"), [
    (TimingSettings(target=0.0, max_seconds=1e9, max_pairs=50), 50),
    (TimingSettings(target=0.0, max_seconds=1.05), 11),
    (TimingSettings(target=0.0, max_seconds=0.0), 3),
    (TimingSettings(target=0.0, max_seconds=0.0, fewest_pairs=6), 6),
])  # fmt: skip
def test_repeating_stops_at_either_cap(monkeypatch, settings, pairs):
    machine = Machine(monkeypatch, noise=1e-6)
    found = time_pairs(machine.work("a", 0.03), machine.work("b", 0.02), settings)
    assert found.pairs == pairs


def test_work_that_raises_leaves_garbage_collection_as_it_was(monkeypatch):
    def fails():
        assert not calls or not gc.isenabled()
        calls.append(1)
        if len(calls) > 10:
            raise RuntimeError("stop")

    calls = []
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="stop"):
        time_pairs(fails, lambda: None, TimingSettings(warmup=0, min_sample_seconds=0.0))
    assert gc.isenabled()


def test_real_work_four_times_as_long_is_seen_as_such():
    """On the real clock, with bounds that only a machine stopped for seconds could break."""

    def work(n):
        return lambda: sum(range(n))

    found = time_pairs(work(80_000), work(20_000), TimingSettings(max_seconds=2.0))
    assert 2.0 < found.ratio < 8.0
    assert found.low <= found.ratio <= found.high
    same = time_pairs(work(20_000), work(20_000), TimingSettings(max_seconds=2.0))
    assert 0.5 < same.ratio < 2.0
    assert 3 <= same.pairs <= 400 and same.low <= same.ratio <= same.high


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        median, low, high = median_interval(np.exp(0.1 * rng.standard_normal(40)))
        assert low <= median <= high
        covered += low <= 1.0 <= high
    assert covered >= 180  # 95% of 200, less three standard deviations of that count


def test_what_goes_on_a_plan_is_never_from_so_few_pairs_that_no_interval_covers_95_percent():
    rng = np.random.default_rng(1)
    intervals = [
        median_interval(np.exp(0.1 * rng.standard_normal(FRESH_TIMING.fewest_pairs))) for _ in range(200)
    ]
    assert sum(low <= 1.0 <= high for _, low, high in intervals) >= 180


def test_the_interval_is_the_same_each_time_and_grows_narrow_with_more_values():
    values = np.random.default_rng(2).normal(1.0, 0.1, 400)
    assert median_interval(values) == median_interval(values.tolist())
    few, many = median_interval(values[:20]), median_interval(values)
    assert many[2] - many[1] < few[2] - few[1]


@pytest.mark.parametrize(("values", "interval"), [
    ([2.0], (2.0, 2.0, 2.0)), ([1.0, 3.0], (2.0, 1.0, 3.0)), ([5.0] * 9, (5.0, 5.0, 5.0)),
])  # fmt: skip
def test_few_or_equal_values_need_no_resampling(values, interval):
    assert median_interval(values) == interval


def test_one_stalled_sample_does_not_move_the_median():
    median, low, high = median_interval([1.0] * 20 + [1.01] * 20 + [50.0])
    assert 1.0 <= low <= median <= high <= 1.01


def test_the_clock_of_a_cpu_is_the_machines_itself():
    assert clock_of(torch.device("cpu")) is time.perf_counter


def test_a_clock_that_is_given_is_the_one_that_is_read():
    read, moved = iter(range(10_000)), []
    settings = TimingSettings(warmup=1, max_pairs=2, min_pairs=2, max_seconds=1e6, min_sample_seconds=0.0)
    found = time_pairs(lambda: moved.append("a"), lambda: moved.append("b"), settings, lambda: next(read))
    assert (found.a_seconds, found.b_seconds, found.pairs) == (1.0, 1.0, 2)  # each sample reads it twice
