"""Who computes what in a train step, and what counts after a failure."""

from __future__ import annotations

import itertools

import pytest

from unicron.dealing import NOTHING, Plan, Standing, deal, reconcile

BUCKETS = 3


@pytest.mark.parametrize(("count", "members"), [(1, 1), (16, 4), (7, 3), (2, 5), (12, 6)])
def test_each_micro_batch_is_dealt_once_and_evenly(count: int, members: int) -> None:
    for step in range(1, 9):
        shares = deal(step, count, members)
        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_who_has_one_more_changes_from_step_to_step() -> None:
    totals = [sum(len(deal(step, 7, 3)[rank]) for step in range(1, 4)) for rank in range(3)]
    assert totals == [7, 7, 7]


def standing(
    step: int, share: str = "", done: str = "", complete: int = 0, met: int = 1
) -> Standing:
    return Standing(step, met, tuple(map(int, share)), tuple(map(int, done)), complete)


def agreed(*standings: Standing, count: int = 8) -> Plan:
    plan = reconcile(standings, count, BUCKETS)
    assert plan is not None
    return plan


def test_where_nobody_holds_state_there_is_no_plan() -> None:
    assert reconcile([Standing(), Standing()], 8, BUCKETS) is None


def test_what_was_lost_goes_round_and_everyone_keeps_its_own() -> None:
    plan = agreed(standing(5, share="4", done="0"), standing(5, share="5", done="1"))
    assert plan == Plan(5, 0, frozenset(), (), ((4, 2, 6), (5, 3, 7)))


def test_who_joins_takes_from_what_is_left() -> None:
    plan = agreed(Standing(), standing(5, share="45", done="0123"))
    assert (plan.source, plan.copiers, plan.shares) == (1, {0}, ((6, 7), (4, 5)))


def test_who_is_past_the_optimizer_step_is_copied() -> None:
    behind = standing(5, done="0123", complete=0b11)
    plan = agreed(behind, standing(6, share="0246"), behind)
    assert (plan.step, plan.source, plan.copiers, plan.buckets) == (6, 1, {0, 2}, ())
    assert plan.shares == ((1, 5), (0, 2, 4, 6), (3, 7))


def test_a_bucket_that_is_complete_somewhere_is_handed_on_to_all() -> None:
    one, other = standing(5, done="0123", complete=0b011), standing(5, done="45", complete=0b110)
    assert agreed(one, other).buckets == ((0, 0), (2, 1)), "both have bucket 1"
    assert agreed(one, other, Standing()).buckets == ((0, 0), (1, 0), (2, 1))


def test_once_all_buckets_are_complete_somewhere_nothing_is_computed_again() -> None:
    plan = agreed(standing(5, done="01", complete=0b011), standing(5, done="2", complete=0b100))
    assert plan.shares == ((), ())
    half = agreed(standing(5, done="01", complete=0b011), standing(5, done="2"))
    assert sorted(itertools.chain(*half.shares)) == [3, 4, 5, 6, 7]


def test_who_missed_a_generation_has_nothing_that_counts() -> None:
    """Others may have computed the same since: it would count twice."""
    missed = standing(7, done="0123", complete=0b111, met=1)
    plan = agreed(missed, standing(5, done="01234567", met=2))
    assert (plan.step, plan.copiers, plan.buckets) == (5, {0}, ())
    assert plan.shares == ((), ())


def test_what_two_claim_is_computed_by_one() -> None:
    plan = agreed(standing(5, share="123"), standing(5, share="234", done="1"))
    shares = list(itertools.chain(*plan.shares))
    assert sorted(shares) == [0, 2, 3, 4, 5, 6, 7]


def test_every_plan_has_each_micro_batch_done_or_dealt_once() -> None:
    pool = [
        Standing(), standing(5, "01", "2"), standing(5, "3", "45"), standing(6, "7", "01", 0b1),
        standing(6, "", "23", 0b10), standing(4, "012", "3", met=NOTHING + 1),
    ]  # fmt: skip
    for size in (1, 2, 3):
        for some in itertools.permutations(pool, size):
            plan = reconcile(some, 8, BUCKETS)
            if plan is None:
                continue
            kept = [some[rank].done for rank in range(size) if rank not in plan.copiers]
            assert sorted(itertools.chain(*kept, *plan.shares)) == list(range(8))
            assert all(
                some[rank].step == plan.step for rank in range(size) if rank not in plan.copiers
            )
            assert plan.source not in plan.copiers
