"""The fence: which generation may start here, and which members may stay."""

from __future__ import annotations

from unicrond.agent.orders import to_start, why_not_start
from unicrond.model.run import Assignment, Slot

A = Slot(0, "o.0", "n1", 0)
B = Slot(1, "o.1", "n1", 1)


def fence(generation: int, order: str = "new", running: int = 4, stopped: int = 3) -> str:
    return why_not_start(Assignment(generation, order, (A,)), "old", running, stopped)


def test_only_a_generation_above_all_known_ones_may_start() -> None:
    assert fence(5) == ""
    assert "over" in fence(3, stopped=2)
    assert "over" in fence(4, order="old", running=4, stopped=4)
    assert "over" in fence(7, running=4, stopped=7)


def test_the_same_generation_under_another_order_is_refused() -> None:
    assert "old" in fence(4)


def test_the_same_order_again_is_no_offence() -> None:
    assert fence(4, order="old") == ""


def test_members_that_run_already_are_left_alone() -> None:
    assert to_start([A, B], {"o.0": A}) == ([B], "")


def test_a_member_that_would_change_its_place_is_refused() -> None:
    moved = Slot(1, "o.0", "n1", 0)
    assert "rank 0" in to_start([moved], {"o.0": A})[1]


def test_a_member_that_is_not_named_must_be_stopped_first() -> None:
    assert "stop it first" in to_start([B], {"o.0": A})[1]
