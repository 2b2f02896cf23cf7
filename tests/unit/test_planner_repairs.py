"""How long nodes stay away: learned from those that came back, and from those that did not."""

from __future__ import annotations

import pytest

from planner.cluster import pool_of
from planner.repairs import Away, learn
from unicrond.model.cluster import Node, NodeState
from unicrond.planning.learning import Absences

HOUR = 3600.0


def test_without_history_a_day_is_assumed_within_a_wide_interval() -> None:
    told = learn([], ["gpu"])["gpu"]
    assert (told.hours, told.seen) == (24.0, 0)
    assert told.low < 12 and told.high > 100


def test_returns_take_over_from_what_was_assumed() -> None:
    told = learn([Away("gpu", 6.0, True)] * 100, ["gpu", "old"])
    assert told["gpu"].hours == pytest.approx(6.35, abs=0.01)
    assert told["gpu"].low < 6.35 < told["gpu"].high < 8
    assert told["old"].hours == 24.0


def test_a_node_that_is_not_back_yet_counts_with_its_hours_so_far() -> None:
    back = [Away("gpu", 6.0, True)] * 10
    slow = learn([*back, Away("gpu", 200.0, False)], ["gpu"])["gpu"]
    assert slow.hours > 2 * learn(back, ["gpu"])["gpu"].hours


def node(state: NodeState) -> dict[str, Node]:
    return {"n1": Node("n1", state, "", 8, ("gpu",))}


def absences(*told: tuple[float, NodeState]) -> Absences:
    found = Absences(None)
    for hours, state in told:
        found.look(hours * HOUR, node(state))
    return found


UP, DOWN, DRAINED = NodeState.UP, NodeState.DOWN, NodeState.DRAINED
POOL = pool_of(node(UP)["n1"])


def test_an_absence_lasts_from_when_the_node_went_until_it_is_up_again() -> None:
    gone = [(1.0, DOWN), (1.05, DRAINED), (1.1, NodeState.UNKNOWN), (1.15, DRAINED)]
    (still,) = absences((0.95, UP), *gone).seen()
    assert (still.pool, still.back) == (POOL, False)
    assert still.hours == pytest.approx(0.15)
    (ended,) = absences((0.95, UP), *gone, (1.2, UP)).seen()
    assert ended.back
    assert ended.hours == pytest.approx(0.2)


def test_a_blink_is_no_repair_and_what_nobody_watched_has_no_length() -> None:
    assert absences((0.0, UP), (0.01, DOWN), (0.03, UP)).seen() == []
    assert absences((0.0, UP), (0.05, DOWN), (9.0, UP)).seen() == []


def test_absences_outlive_the_process() -> None:
    first = absences((0.95, UP), (1.0, DOWN), (1.05, UP), (1.1, DOWN))
    again = Absences(first.saved())
    again.look(1.15 * HOUR, node(DOWN))
    assert [(away.back, round(away.hours, 3)) for away in again.seen()] == [
        (True, 0.05),
        (False, 0.05),
    ]
