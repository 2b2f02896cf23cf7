"""Failure rates of pools, nodes and switches; lemons; and how long changes take."""

import numpy as np
import pytest

from planner import priors, transitions
from planner.reliability import DAY_SECONDS, NodeFailure, Reliability, Watched, learn, rate
from planner.transitions import Changed

DAYS = 100.0
NOW = DAYS * DAY_SECONDS


def nodes(count: int, switch_of: int = 10**6, days: float = DAYS) -> list[Watched]:
    return [Watched(f"n{i}", "gpu", days, 0.0, f"s{i // switch_of}") for i in range(count)]


def failures(node: str, *days: float, run: int | None = None) -> list[NodeFailure]:
    return [NodeFailure(day * DAY_SECONDS, node, run) for day in days]


def of(watched: list[Watched], *told: list[NodeFailure]) -> Reliability:
    return learn(watched, [failure for some in told for failure in some], NOW)


def test_without_history_the_published_rate_holds_within_a_wide_interval() -> None:
    pool = of(nodes(4, days=0.0)).pools[0]
    assert 1000 * pool.node.per_day == pytest.approx(4.2, abs=0.1)
    assert pool.node.low < 0.00234 and pool.node.high > 0.0065  # RSC-2 and RSC-1 are within
    assert pool.node.from_data == 0


def test_history_takes_over_from_the_prior() -> None:
    long = rate(200, 10_000.0, priors.NODE_FAILURES)
    short = rate(2, 100.0, priors.NODE_FAILURES)
    assert long.per_day == pytest.approx(0.02, rel=0.1)
    assert long.low < 0.02 < long.high
    assert short.high / short.low > 2 * long.high / long.low
    assert long.mtbf_days == pytest.approx(1 / long.per_day)


def test_a_pool_without_failures_is_better_than_published_the_longer_it_holds() -> None:
    found = [of(nodes(100, days=days)).pools[0].node.per_day for days in (0, 10, 100)]
    assert found == sorted(found, reverse=True)


def test_failures_within_an_hour_are_one() -> None:
    found = of(nodes(4), failures("n1", 5.0, 5.001, 5.02, 6.0))
    assert found.pools[0].node.failures == 2


def test_a_node_that_fails_again_and_again_is_a_lemon_and_ranks_first() -> None:
    found = of(nodes(50), failures("n7", 5, 20, 40, 41, 60, 80), failures("n3", 50))
    assert [(r.node, r.lemon) for r in found.nodes] == [("n7", True), ("n3", False)]
    assert found.lemons == {"n7"}
    assert found.nodes[0].times_pool > 3


def test_the_word_of_one_run_makes_no_lemon() -> None:
    told = (5, 20, 40, 41, 60, 80)
    assert of(nodes(50), failures("n7", *told, run=1)).lemons == frozenset()
    both = failures("n7", *told, run=1) + failures("n7", 90, run=2)
    assert of(nodes(50), both).lemons == {"n7"}


def test_one_failure_makes_no_lemon() -> None:
    assert of(nodes(50, days=1.0), failures("n7", 0.5)).lemons == frozenset()


def test_nodes_that_fail_together_are_a_failure_of_their_switch() -> None:
    together = [NodeFailure(1e6 + i, f"n{i}") for i in range(8)]
    pool = of(nodes(16, switch_of=8), together, failures("n12", 20)).pools[0]
    assert (pool.switch.failures, pool.node.failures) == (1, 1)
    assert pool.per_node_day == pytest.approx(pool.node.per_day + pool.switch.per_day / 8)


def test_two_switches_that_lose_a_node_each_have_not_failed() -> None:
    apart = [NodeFailure(1e6, "n0"), NodeFailure(1e6, "n15")]
    pool = of(nodes(16, switch_of=8), apart).pools[0]
    assert (pool.switch.failures, pool.node.failures) == (0, 2)


def test_a_node_that_is_gone_does_not_count() -> None:
    assert of(nodes(4), failures("old", 5, 6)).pools[0].node.failures == 0


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.0])
def test_the_shape_of_a_weibull_law_is_found_where_history_allows(shape: float) -> None:
    rng = np.random.default_rng(3)
    told = []
    for i in range(60):
        days = np.cumsum(20 * rng.weibull(shape, 40))
        told.append(failures(f"n{i}", *days[days < DAYS]))
    found = of(nodes(60), *told).pools[0].shape
    assert found is not None
    assert found.low * 0.9 < shape < found.high * 1.1


def aging(shape: float, last: float) -> float:
    """Of nodes whose last failure was `last` days ago."""
    rng, told = np.random.default_rng(3), []
    for i in range(60):
        days = np.cumsum(20 * rng.weibull(shape, 40))
        told.append(failures(f"n{i}", *days[days < DAYS - last - 5], DAYS - last - i / 1000))
    return of(nodes(60), *told).pools[0].aging


def test_nodes_that_wear_out_are_expected_to_fail_the_more_the_longer_they_held() -> None:
    assert aging(2.5, last=1.0) < 0.6 < 1.2 < aging(2.5, last=20.0)


def test_nodes_that_have_just_failed_are_expected_to_fail_again() -> None:
    assert aging(0.5, last=0.1) > 1.5
    assert aging(0.5, last=30.0) < 0.8


def test_without_a_shape_that_differs_from_one_age_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    days = [np.cumsum(rng.exponential(20, 40)) for _ in range(60)]
    told = [failures(f"n{i}", *mine[mine < DAYS]) for i, mine in enumerate(days)]
    assert of(nodes(60), *told).pools[0].aging == 1.0
    pool = of(nodes(4), failures("n1", 5, 6)).pools[0]
    assert (pool.shape, pool.aging) == (None, 1.0)


def test_too_few_failures_have_no_shape() -> None:
    assert of(nodes(4), failures("n1", 5, 6)).pools[0].shape is None


def changes(*seconds: float, run: int = 1, kind: str = "restart") -> list[Changed]:
    return [Changed(run, kind, s) for s in seconds]


def test_without_history_a_change_takes_what_is_assumed() -> None:
    found = transitions.learn([])
    assert found["restart"].seconds == pytest.approx(60)
    assert found["restart"].high > 3 * 60
    assert found["restart"].seen == 0


def test_measured_changes_take_over_and_one_that_hung_does_not() -> None:
    found = transitions.learn(changes(5, 6, 5, 7, 6, 5, 6, 5, 6, 5, 6, 3600))["restart"]
    assert 5 < found.seconds < 10
    assert found.seen == 12
    assert found.low < 6 < found.high


def test_a_run_that_differs_from_all_others_is_known_by_its_own_changes() -> None:
    told = changes(*[5.0] * 20) + changes(*[200.0] * 10, run=2)
    of_all = transitions.learn(told)
    assert transitions.of_run(2, told, of_all)["restart"].seconds > 60
    assert transitions.of_run(3, told, of_all)["restart"].seconds == pytest.approx(
        of_all["restart"].seconds
    )
    assert transitions.transition(of_all).requeue == pytest.approx(300)
