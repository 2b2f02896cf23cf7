"""A short run of scripts/bench detection-alarms: nothing that is ordinary is taken for a hang."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.detection_alarms import HANG_AT, LOADS, STEPS_SECONDS, live
from detectors.iterations import Judgement, Rhythm


@pytest.mark.parametrize("load", LOADS)
@settings(max_examples=8, deadline=None)
@given(st.sampled_from(STEPS_SECONDS), st.integers(0, 1 << 30))
def test_no_ordinary_iteration_is_overdue(load: str, step_seconds: float, seed: int) -> None:
    count = live(LOADS[load], step_seconds, 1_000, seed)
    assert (count.iterations, count.alarms) == (1_000, 0)


@pytest.mark.parametrize("load", LOADS)
def test_a_hang_is_overdue_in_the_end_whatever_came_before(load: str) -> None:
    count = live(LOADS[load], 2.0, HANG_AT + 1, seed=1)
    assert (count.hangs, count.missed) == (1, 0)


@given(st.lists(st.floats(0, 1e5, allow_nan=False), max_size=200))
def test_whatever_iterations_take_a_longer_one_is_judged_no_milder(seconds: list[float]) -> None:
    rhythm = Rhythm()
    for number, taken in enumerate(seconds):
        rhythm.add(number + 1, taken)
    order = list(Judgement)
    judged = [order.index(rhythm.judge(len(seconds) + 1, s)) for s in (0.1, 1, 10, 1e3, 1e5, 1e9)]
    assert judged == sorted(judged)
    assert judged[-1] == order.index(Judgement.OVERDUE)
