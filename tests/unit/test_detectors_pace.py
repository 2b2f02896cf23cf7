"""What iterations say of a rank's speed, and of the run's; what losses say."""

from __future__ import annotations

import random

from detectors.loss import LossWatch, Odd
from detectors.pace import WINDOW, Pacer
from detectors.stragglers import Comparison, Finding
from unicrond.model.pace import Pace


class Ranks:
    """A synchronous run: everybody waits for the slowest, then for the network."""

    def __init__(self, count: int, sigma: float = 0.01, seed: int = 1) -> None:
        self.dice = random.Random(seed)
        self.sigma, self.count, self.iterations = sigma, count, 0
        self.pacers = [Pacer() for _ in range(count)]
        self.comparison = Comparison(1, dict.fromkeys(range(count), "n1"))
        self.told: set[tuple[int, int]] = set()

    def train(self, iterations: int, slow: dict[int, float] | None = None) -> list[Finding]:
        found = []
        for _ in range(iterations):
            own = [
                (slow or {}).get(rank, 1.0) * self.dice.lognormvariate(0, self.sigma)
                for rank in range(self.count)
            ]
            self.iterations += 1
            seconds = max(own) + 0.05
            for rank, pacer in enumerate(self.pacers):
                pacer.add(float(self.iterations), self.iterations, seconds, seconds - own[rank])
            found += self._compare()
        return found

    def _compare(self) -> list[Finding]:
        """Agents tell what they told again; it is taken once."""
        return [
            finding
            for rank, pacer in enumerate(self.pacers)
            for pace in pacer.since(self.iterations - 3)
            for finding in self.comparison.take(rank, pace)
        ]


def test_a_rank_that_is_ten_per_cent_slow_is_found_within_twenty_iterations() -> None:
    for seed in range(10):
        ranks = Ranks(8, seed=seed)
        assert ranks.train(200 + seed) == []
        assert [f.rank for f in ranks.train(20, {5: 1.1})] == [5]


def test_of_two_ranks_the_slow_one_is_found() -> None:
    ranks = Ranks(2)
    ranks.train(200)
    found, *_ = ranks.train(25, {1: 1.15})
    assert (found.rank, round(found.ratio, 1), found.over) == (1, 1.2, False)


def test_one_that_is_slow_from_the_start_is_found_too() -> None:
    assert [f.rank for f in Ranks(4).train(60, {2: 1.15})] == [2]


def test_a_straggler_that_recovers_is_said_to() -> None:
    ranks = Ranks(4)
    ranks.train(100)
    ranks.train(40, {2: 1.2})
    assert [(f.rank, f.over) for f in ranks.train(60) if f.rank is not None] == [(2, True)]


def test_one_that_comes_and_goes_is_told_three_times() -> None:
    ranks = Ranks(4)
    ranks.train(100)
    told = []
    for _ in range(8):
        told += ranks.train(60, {2: 1.2}) + ranks.train(60)
    assert [f.over for f in told if f.rank == 2] == [False, True] * 3


def test_ranks_that_differ_by_design_are_no_stragglers() -> None:
    stages = {0: 1.3, 1: 0.8, 2: 1.0, 3: 1.2, 4: 0.9, 5: 0.7}
    assert Ranks(6).train(1000, stages) == []


def test_jitter_alone_finds_nobody_and_hides_a_slow_rank_only_for_a_while() -> None:
    ranks = Ranks(4, sigma=0.3)
    assert ranks.train(2_000) == []
    assert {f.rank for f in ranks.train(2_000, {1: 1.2})} == {1}


def test_a_run_that_becomes_slower_as_a_whole_is_told_and_so_is_its_end() -> None:
    ranks = Ranks(4)
    ranks.train(200)
    everyone = dict.fromkeys(range(4), 1.25)
    [found] = ranks.train(60, everyone)
    assert (found.rank, found.over) == (None, False)
    assert found.ratio > 1.2
    assert [(f.rank, f.over) for f in ranks.train(60)] == [(None, True)]


def test_up_to_a_tenth_is_ordinary_fluctuation() -> None:
    ranks = Ranks(4)
    ranks.train(200)
    assert ranks.train(400, dict.fromkeys(range(4), 1.08)) == []


def test_a_run_that_stays_slow_is_taken_for_what_it_is_in_the_end() -> None:
    ranks = Ranks(2)
    ranks.train(200)
    everyone = dict.fromkeys(range(2), 1.5)
    told = [f.over for f in ranks.train(2_500, everyone)]
    assert told == [False, True]


def test_ranks_that_are_never_heard_keep_little() -> None:
    comparison = Comparison(1, dict.fromkeys(range(4), "n1"))
    for window in range(10_000):
        assert comparison.take(0, Pace(window, 1.0, 1.0)) == []
    assert len(comparison._open) <= 9


def test_of_iterations_of_a_few_milliseconds_only_some_windows_are_told() -> None:
    pacer = Pacer()
    for number in range(1, 1001):
        pacer.add(number * 0.005, number, 0.005, 0.001)
    windows = [pace.window for pace in pacer.since(0.0)]
    assert len(windows) == 7
    assert all(window % 32 == 0 for window in windows)


def test_a_window_whose_waiting_is_not_known_has_no_time_of_its_own() -> None:
    pacer = Pacer()
    for number in range(1, WINDOW + 1):
        pacer.add(1.0, number, 1.0, None)
    assert list(pacer.since(0.0)) == [Pace(0, 1.0, None)]


def losses(watch: LossWatch, values: list[float], first: int = 1) -> list[Odd]:
    found = (watch.take(first + i, value) for i, value in enumerate(values))
    return [odd for odd in found if odd is not None]


def falling(count: int) -> list[float]:
    dice = random.Random(3)
    return [2 + 6 / (1 + i / 20) + dice.gauss(0, 0.1) for i in range(count)]


def test_a_loss_that_falls_is_ordinary() -> None:
    assert losses(LossWatch(), falling(2_000)) == []


def test_three_losses_that_are_no_number_are_told_once_with_the_first_iteration() -> None:
    watch = LossWatch()
    losses(watch, falling(50))
    [odd] = losses(watch, [float("nan")] * 40, first=51)
    assert (odd.not_a_number, odd.number) == (True, 51)


def test_one_skipped_step_of_a_gradient_scaler_is_nothing() -> None:
    watch = LossWatch()
    losses(watch, falling(50))
    assert losses(watch, [float("inf"), 4.0, float("nan"), float("nan"), 4.0]) == []


def test_a_spike_that_stays_is_told_and_told_again_after_calm() -> None:
    watch = LossWatch()
    losses(watch, falling(200))
    [odd] = losses(watch, [9.0] * 5)
    assert (odd.not_a_number, odd.loss) == (False, 9.0)
    assert losses(watch, [2.5] * 30 + [9.0] * 3) != []
