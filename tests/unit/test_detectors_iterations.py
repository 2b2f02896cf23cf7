"""An iteration that takes too long is noticed; checkpoints, jitter and resizes are not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from detectors.iterations import FIRST_SECONDS, Judgement, Rhythm, Watch

STEP = 0.1
FINE, SUSPICION, OVERDUE = Judgement.FINE, Judgement.SUSPICION, Judgement.OVERDUE


def lived(
    durations: Iterable[float], rhythm: Rhythm | None = None
) -> tuple[Rhythm, list[Judgement]]:
    """What was made of each iteration just before its end."""
    rhythm = rhythm or Rhythm()
    found = []
    for seconds in durations:
        number = rhythm.count + 1
        found.append(rhythm.judge(number, seconds))
        rhythm.add(number, seconds)
    return rhythm, found


def now_takes(rhythm: Rhythm, seconds: float) -> Judgement:
    return rhythm.judge(rhythm.count + 1, seconds)


def test_a_hang_is_suspected_after_three_times_the_usual_and_overdue_later() -> None:
    rhythm, _ = lived([STEP] * 50)
    assert [now_takes(rhythm, s) for s in (0.29, 0.31, 601)] == [FINE, SUSPICION, OVERDUE]


def test_a_slow_first_iteration_spoils_nothing() -> None:
    rhythm, found = lived([60.0, *[STEP] * 20])
    assert set(found) == {FINE}
    assert now_takes(rhythm, 0.4) is SUSPICION


def test_before_there_are_habits_only_the_longest_start_is_too_long() -> None:
    assert now_takes(Rhythm(), FIRST_SECONDS - 1) is FINE
    assert now_takes(Rhythm(), FIRST_SECONDS) is OVERDUE


def test_a_run_that_becomes_slower_for_good_is_learned() -> None:
    rhythm, found = lived([STEP] * 100 + [5 * STEP] * 200)
    assert OVERDUE not in found
    assert found.count(SUSPICION) < 10
    assert now_takes(rhythm, 12 * STEP) is FINE
    assert now_takes(rhythm, 16 * STEP) is SUSPICION


def test_lengths_of_work_that_vary_fourfold_are_learned() -> None:
    dice = random.Random(1)
    _, found = lived(STEP * dice.choice((1, 1, 1, 4)) for _ in range(500))
    assert SUSPICION not in found[64:]


def test_a_checkpoint_that_nobody_announced_is_expected_when_it_is_due_and_only_then() -> None:
    rhythm, found = lived(STEP * (20 if i % 50 == 0 else 1) for i in range(1, 400))
    assert found.count(SUSPICION) == 2
    assert [rhythm.judge(400, s * STEP) for s in (20, 40)] == [FINE, SUSPICION]
    assert rhythm.judge(405, 20 * STEP) is SUSPICION


def test_one_that_comes_by_the_clock_is_known_after_three_times() -> None:
    dice = random.Random(2)
    long = sorted(dice.sample(range(50, 3000), 12))
    _, found = lived(STEP * (20 if i in long else 1) for i in range(3000))
    assert [found[i] for i in long[:3]] == [SUSPICION] * 3
    assert found.count(SUSPICION) <= 4


def test_slow_iterations_of_a_minute_get_half_an_hour_for_their_checkpoint() -> None:
    _, found = lived(60.0 * (20 if i % 50 == 0 else 1) for i in range(1, 120))
    assert OVERDUE not in found


def jittered(dice: random.Random, count: int) -> Iterator[float]:
    """Log-normal steps, an evaluation each 100 of ten times, a checkpoint each 50 of twenty."""
    for i in range(1, count + 1):
        longer = 20 if i % 50 == 0 else 10 if i % 100 == 25 else 1
        yield STEP * longer * dice.lognormvariate(0, 0.3)


@pytest.mark.parametrize("seed", range(3))
def test_jitter_evaluations_and_checkpoints_are_never_overdue(seed: int) -> None:
    _, found = lived(jittered(random.Random(seed), 5_000))
    assert OVERDUE not in found


def test_every_hang_in_a_jittery_run_is_overdue_in_the_end() -> None:
    rhythm, _ = lived(jittered(random.Random(7), 2_000))
    assert now_takes(rhythm, 700) is OVERDUE


def steady(count: int = 20) -> Watch:
    """A rank at its iteration after `count`, 100 s after the start of its clock."""
    watch = Watch()
    watch.learn([(n, STEP) for n in range(1, count + 1)])
    assert watch.look(100.0, count, 100.0, "", 0.0) is FINE
    return watch


def test_nothing_is_said_of_a_rank_that_tells_no_iterations() -> None:
    assert Watch().look(1e6, 0, 0.0, "", 0.0) is FINE


def test_an_announced_phase_is_judged_by_its_own_habits() -> None:
    watch = steady()
    seen = [watch.look(100.0 + s, 20, 100.0, "checkpoint", 100.0) for s in (1, 2, 3)]
    assert watch.look(103.2, 20, 100.0, "", 103.1) is FINE
    assert seen == [FINE] * 3
    assert watch.habits.usual_seconds("checkpoint") == pytest.approx(3.1)


def test_time_in_which_nobody_looked_is_not_held_against_the_rank() -> None:
    watch = steady()
    assert watch.look(5_000.0, 20, 100.0, "", 0.0) is SUSPICION, "a second of it counts"
    assert watch.look(5_000.25, 20, 100.0, "", 0.0) is SUSPICION
    watch = steady()
    for quarter in range(1, 2_500):
        last = watch.look(100 + quarter / 4, 20, 100.0, "", 0.0)
    assert last is OVERDUE
