"""An iteration that takes too long is noticed; checkpoints, jitter and resizes are not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from detectors.iterations import Judgement, Watch, observe

STEP = 0.1


def lived(
    durations: Iterator[float] | list[float], watch: Watch | None = None
) -> tuple[Watch, float, int, list[Judgement]]:
    """A rank that lives through iterations, looked at every quarter of a second."""
    watch = watch or Watch()
    now, done, last, found = 100.0, 0, 100.0, []
    for seconds in durations:
        end = now + seconds
        while now + 0.25 < end:
            now += 0.25
            watch, judgement = observe(watch, now, done, last, "", 0.0)
            found.append(judgement)
        now, done, last = end, done + 1, end
        watch, judgement = observe(watch, now, done, last, "", 0.0)
        found.append(judgement)
    return watch, last, done, found


def test_a_hang_is_suspected_after_three_times_the_average_and_overdue_later() -> None:
    watch, last, done, _ = lived([STEP] * 50)
    _, soon = observe(watch, last + 0.29, done, last, "", 0.0)
    _, late = observe(watch, last + 0.31, done, last, "", 0.0)
    _, gone = observe(watch, last + 601, done, last, "", 0.0)
    assert (soon, late, gone) == (Judgement.FINE, Judgement.SUSPICION, Judgement.OVERDUE)


def test_nothing_is_said_of_a_rank_that_tells_no_iterations() -> None:
    assert observe(Watch(), 1e6, 0, 0.0, "", 0.0)[1] is Judgement.FINE


def test_a_slow_first_iteration_spoils_nothing() -> None:
    watch, last, done, found = lived([60.0, *[STEP] * 20])
    assert Judgement.OVERDUE not in found
    assert observe(watch, last + 0.4, done, last, "", 0.0)[1] is Judgement.SUSPICION


def test_an_announced_phase_is_judged_by_its_own_habits() -> None:
    watch, last, done, _ = lived([STEP] * 20)
    watch, during = observe(watch, last + 50, done, last, "checkpoint", last + 0.01)
    assert during is Judgement.FINE
    watch, after = observe(watch, last + 50.2, done, last, "", last + 50.1)
    assert after is Judgement.FINE


def test_a_resize_that_changes_the_mean_is_learned() -> None:
    watch, last, done, found = lived([STEP] * 100 + [2.5 * STEP] * 200)
    assert Judgement.OVERDUE not in found
    assert observe(watch, last + 0.6, done, last, "", 0.0)[1] is Judgement.FINE


def jittered(dice: random.Random, count: int) -> Iterator[float]:
    """Log-normal steps, an evaluation each 100 of ten times, a checkpoint each 50 of twenty."""
    for i in range(1, count + 1):
        longer = 20 if i % 50 == 0 else 10 if i % 100 == 25 else 1
        yield STEP * longer * dice.lognormvariate(0, 0.3)


@pytest.mark.parametrize("seed", range(3))
def test_jitter_evaluations_and_checkpoints_are_never_overdue(seed: int) -> None:
    *_, found = lived(jittered(random.Random(seed), 20_000))
    assert Judgement.OVERDUE not in found


def test_every_hang_in_a_jittery_run_is_overdue_in_the_end() -> None:
    watch, last, done, _ = lived(jittered(random.Random(7), 2_000))
    assert observe(watch, last + 700, done, last, "", 0.0)[1] is Judgement.OVERDUE
