"""The choice, its alternatives and the reason."""

from collections.abc import Sequence

import pytest
from plannerworld import claim, cluster, sizes, table

from planner.advice import Advice, Option, advise, duration
from planner.objective import Claim, Pool, Problem

EVEN = table(unit=2)


def option(advice: Advice, name: str) -> Option:
    return next(option for option in advice.options if option.name == name)


def names(options: Sequence[Option]) -> list[str]:
    return [option.name for option in options]


def test_a_calm_cluster_stays_and_says_why() -> None:
    advice = advise(cluster(claim(1, size=8), claim(2, size=8), horizon_seconds=120.0))
    assert names(advice.options) == ["stay", "redivide"]
    assert advice.choice.name == "stay"
    assert advice.reason == (
        "every run keeps what it has: no change pays back its price within 2.0 min"
    )


def test_a_lost_worker_is_swapped_for_a_spare_where_that_is_best() -> None:
    advice = advise(cluster(claim(1, size=8, faulty=2, flops=EVEN), workers=8))
    assert names(advice.options) == ["stay", "swap", "requeue", "shrink", "redivide"]
    assert advice.choice.name == "swap"
    assert "run 1 stays at 8 workers with 2 replaced" in advice.reason


def test_without_a_spare_the_swap_shows_its_obstacle_and_the_run_shrinks() -> None:
    advice = advise(cluster(claim(1, size=8, faulty=2, flops=EVEN), workers=6))
    assert option(advice, "swap").obstacle == "8 workers needed in pool gpu, 6 are there"
    assert advice.choice.name == "shrink"
    assert "run 1 shrinks from 8 to 6 workers (-21% of its FLOP/s)" in advice.reason
    assert "the next best, requeue" in advice.reason


def test_a_run_that_holds_no_legal_size_has_nothing_to_shrink_to() -> None:
    stubborn = claim(1, size=8, faulty=2, flops=table(unit=8))
    advice = advise(cluster(stubborn, workers=6))
    assert advice.choice.name == "requeue"
    assert advice.reason.startswith("run 1 gives back its workers and waits in the queue")


def test_failed_processes_restart_where_no_worker_is_lost() -> None:
    advice = advise(cluster(claim(1, size=8, broken=True), workers=8))
    assert names(advice.options) == ["stay", "restart", "requeue", "redivide"]
    assert advice.choice.name == "restart"
    assert "run 1 restarts on its 8 workers" in advice.reason


def test_all_is_divided_anew_where_a_heavier_run_is_hurt() -> None:
    heavy, light = claim(1, size=8, faulty=2, flops=EVEN, weight=5.0), claim(2, size=8, flops=EVEN)
    advice = advise(cluster(heavy, light, workers=14))
    assert advice.choice.name == "redivide"
    assert sizes(advice.plan)[0] >= 8
    assert option(advice, "shrink").gain < advice.choice.gain


def test_prices_wafs_and_pay_back_add_up() -> None:
    problem = cluster(claim(1, size=8, faulty=2, flops=EVEN, weight=2.0), workers=6, margin=1.5)
    shrink = option(advise(problem), "shrink")
    assert shrink.waf == pytest.approx(2 * EVEN[6])
    assert shrink.price == pytest.approx(2 * EVEN[8] * 30)
    assert shrink.gain == pytest.approx(shrink.waf * 3600 - 1.5 * shrink.price)
    assert shrink.payback_seconds == pytest.approx(shrink.price / shrink.waf), "staying yields 0"


def test_no_alternative_that_could_be_done_is_better_than_the_choice() -> None:
    problem = cluster(claim(1, size=6, faulty=2, flops=EVEN), claim(2, size=6, flops=EVEN))
    advice = advise(problem)
    possible = [option for option in advice.options if not option.obstacle]
    assert advice.choice.gain >= max(o.gain for o in possible if o.name != "stay") * (1 - 1e-12)


def test_a_floor_forbids_the_alternatives_below_it() -> None:
    advice = advise(cluster(claim(1, size=8, faulty=2, floor=8), workers=8))
    assert option(advice, "requeue").obstacle == "0 is no legal size of run 1"
    assert advice.choice.name == "swap"


def test_many_changes_are_counted_and_moves_between_pools_named() -> None:
    def mover(run_id: int) -> Claim:
        return claim(run_id, size=1, pool="old", throughput={"old": table(8), "new": 9 * table(8)})

    pools = {"old": Pool("old", 8), "new": Pool("new", 8)}
    advice = advise(Problem(tuple(mover(i) for i in range(8)), pools, horizon_seconds=1e6))
    assert (
        "run 1 is requeued to go from 1 to 1 workers of new (+800% of its FLOP/s)" in advice.reason
    )
    assert "4 more runs change" in advice.reason


def test_a_run_that_waits_starts() -> None:
    assert "run 1 starts with 16 workers of gpu" in advise(cluster(claim(1))).reason


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "59 s"), (150, "2.5 min"), (9000, "2.5 h"), (216000, "2.5 d")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
