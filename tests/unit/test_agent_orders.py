"""The fence: which generation may start here, and which members may stay."""

from __future__ import annotations

from unicrond.agent.orders import divide, why_not_start
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


def divided(*slots: Slot, running: tuple[Slot, ...] = ()) -> tuple[list[Slot], list[Slot], str]:
    now = {slot.member: slot for slot in running}
    return divide(Assignment(5, "o", slots), slots, now, ["o.0", "old.2"])


OLD = Slot(2, "old.2", "n1", 2)


def test_members_of_another_order_are_kept_and_those_of_this_one_started() -> None:
    assert divided(A, OLD, running=(OLD,)) == ([OLD], [A], "")
    moved_up = Slot(0, "old.2", "n1", 2)
    assert divided(moved_up, running=(OLD,)) == ([moved_up], [], "")


def test_a_member_is_not_started_where_it_cannot_be_kept() -> None:
    assert "does not run on n1" in divided(A, OLD)[2]
    assert "GPU of local rank 2" in divided(Slot(2, "old.2", "n1", 0), running=(OLD,))[2]
    deaf = Slot(1, "old.1", "n1", 1)
    assert "no orders over the rank socket" in divided(A, deaf, running=(deaf,))[2]
    assert divided(A, deaf, running=(deaf,))[:2] == ([], [])


def test_no_member_is_started_twice() -> None:
    assert divided(A, running=(A,)) == ([A], [], "")
    assert "twice" in divided(A, A)[2]
