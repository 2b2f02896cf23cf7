"""What a division is worth: the formula, term by term."""

import math
from dataclasses import replace

import numpy as np
import pytest
from plannerworld import TRANSITION, claim, cluster, table

from planner.kernels import ILLEGAL
from planner.objective import Change, Pool, Problem, Transition, gains


def worth(problem, place: int = 0):  # type: ignore[no-untyped-def]
    found = gains(problem, problem.claims, "gpu")
    return found.table[place] * found.unit


def test_a_run_that_keeps_its_size_pays_nothing() -> None:
    problem = cluster(claim(1, size=4, weight=2.0))
    assert worth(problem)[4] == pytest.approx(2.0 * table()[4] * 3600)


@pytest.mark.parametrize(
    ("size", "seconds"), [(8, TRANSITION.grow), (2, TRANSITION.shrink), (0, TRANSITION.requeue)]
)
def test_a_change_costs_what_the_run_yields_now_for_as_long_as_it_takes(
    size: int, seconds: float
) -> None:
    problem = cluster(claim(1, size=4, weight=2.0), margin=1.5)
    yields = 2.0 * table()[size] * 3600 if size else 0.0
    assert worth(problem)[size] == pytest.approx(yields - 1.5 * 2.0 * table()[4] * seconds)


def test_a_run_with_a_faulty_worker_pays_at_any_size() -> None:
    problem = cluster(claim(1, size=4, faulty=1))
    assert worth(problem)[4] == pytest.approx(table()[4] * (3600 - TRANSITION.swap))
    problem = cluster(claim(1, size=4, broken=True))
    assert worth(problem)[4] == pytest.approx(table()[4] * (3600 - TRANSITION.restart))


def test_a_run_that_waits_pays_nothing_to_start() -> None:
    assert worth(cluster(claim(1)))[8] == pytest.approx(table()[8] * 3600)


def test_only_sizes_of_the_table_between_floor_and_ceiling_are_legal() -> None:
    problem = cluster(claim(1, flops=table(unit=2, least=4), floor=6, ceiling=12), workers=20)
    found = gains(problem, problem.claims, "gpu").table[0]
    assert np.flatnonzero(found != ILLEGAL).tolist() == [6, 8, 10, 12]


def test_a_present_size_beyond_the_pool_still_sets_the_price() -> None:
    problem = cluster(claim(1, size=16, faulty=8), workers=8)
    expected = table()[8] * 3600 - table()[16] * TRANSITION.shrink
    assert worth(problem)[8] == pytest.approx(expected)


def test_rounding_loses_less_than_a_unit_and_units_are_fine() -> None:
    problem = cluster(*(claim(i, size=2, weight=math.pi * (i + 1)) for i in range(3)))
    found = gains(problem, problem.claims, "gpu")
    exact = np.empty(17)
    problem.claims[1].worths(problem, "gpu", exact)
    assert abs(found.table[1] * found.unit - exact).max() <= found.unit / 2
    assert found.unit < 1e-9 * exact.max()


def test_a_division_lasts_shorter_on_more_workers_and_never_past_the_horizon() -> None:
    problem = cluster(claim(1), other_changes_per_second=1e-4, horizon_seconds=1e6)
    unsafe = {"gpu": Pool("gpu", 100, failures_per_worker_second=1e-6)}
    assert problem.running_seconds == pytest.approx(1e4)
    assert replace(problem, pools=unsafe).running_seconds == pytest.approx(5000)
    assert replace(problem, other_changes_per_second=0.0).running_seconds == 1e6
    assert replace(problem, other_changes_per_second=1e-9).running_seconds == 1e6


def until_fewer(away: int, failures: float, returns: float, others: float) -> float:
    """From the equations of the Markov chain, as they stand."""
    rates = np.diag([float(failures + k * returns + others) for k in range(away + 1)])
    for k in range(away):
        rates[k, k + 1] = -failures
        rates[k + 1, k] = -(k + 1) * returns
    return float(np.linalg.solve(rates, np.ones(away + 1))[away])


@pytest.mark.parametrize("away", [0, 1, 5])
@pytest.mark.parametrize("others", [0.0, 2e-5])
def test_a_division_stands_until_fewer_workers_are_there(away: int, others: float) -> None:
    pools = {"gpu": Pool("gpu", 16, 1e-6, away, return_seconds=86400.0)}
    problem = cluster(claim(1), pools=pools, horizon_seconds=1e9, other_changes_per_second=others)
    expected = until_fewer(away, 16e-6, 1 / 86400, others)
    assert problem.running_seconds == pytest.approx(expected, rel=1e-9)


def test_two_pools_end_a_division_sooner_than_one() -> None:
    pools = {name: Pool(name, 16, 1e-6) for name in ("a", "b")}
    problem = Problem((), pools, other_changes_per_second=1e-5, horizon_seconds=1e9)
    assert problem.running_seconds == pytest.approx(1 / (32e-6 + 1e-5))


def test_many_nodes_away_that_hardly_ever_fail_are_no_trouble() -> None:
    pools = {"gpu": Pool("gpu", 16, 1e-15, away=5000, return_seconds=3600.0)}
    assert cluster(claim(1), pools=pools, horizon_seconds=7.0).running_seconds == 7.0


@pytest.mark.parametrize(
    ("run", "size", "pool", "change"),
    [
        (claim(1), 0, "gpu", Change.KEEP),
        (claim(1), 4, "gpu", Change.START),
        (claim(1, size=4), 4, "gpu", Change.KEEP),
        (claim(1, size=4), 4, "other", Change.REQUEUE),
        (claim(1, size=4), 0, "gpu", Change.REQUEUE),
        (claim(1, size=4), 2, "gpu", Change.SHRINK),
        (claim(1, size=4, pinned=3), 3, "gpu", Change.SHRINK),
        (claim(1, size=4), 6, "gpu", Change.GROW),
        (claim(1, size=4, faulty=1), 4, "gpu", Change.SWAP),
        (claim(1, size=4, faulty=1), 3, "gpu", Change.SHRINK),
        (claim(1, size=4, broken=True), 4, "gpu", Change.RESTART),
        (claim(1, size=4, pinned=3), 2, "gpu", Change.REQUEUE),
    ],
)
def test_each_change_has_its_kind(run, size: int, pool: str, change: Change) -> None:  # type: ignore[no-untyped-def]
    assert run.change(size, pool) is change


def test_every_kind_that_costs_has_its_seconds() -> None:
    free = {Change.KEEP, Change.START}
    assert set(Transition.__slots__) == {change.value for change in Change if change not in free}
    assert all(claim(1).seconds(change) == 0 for change in free)
    assert claim(1).seconds(Change.SWAP) == TRANSITION.swap
