"""What happens to runs and nodes, moment by moment, and where every GPU's time goes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simworld import broken, cluster, lost, policy, run

from simulator.engine import Outcome, simulate
from simulator.laws import Lasting, Laws, draw
from simulator.model import DAY, HOUR, Cause, Cluster, Failure, Freed, Policy, Queue
from simulator.rules import RULES

HOURS = 3600.0


def gpu_hours(outcome: Outcome) -> dict[str, float]:
    return {cause: spent / HOUR for cause, spent in outcome.spent.items() if spent}


def told(outcome: Outcome, run_id: int) -> list[tuple[str, int, float]]:
    return [
        (s.how, s.size, s.start / HOUR) for s in outcome.ledger.runs.segments if s.who == run_id
    ]


def test_without_failures_everything_is_useful() -> None:
    outcome = simulate(cluster(4, run(1, 4)), policy("replan"), ())
    assert gpu_hours(outcome) == {"useful": 4 * 8 * 100}
    assert outcome.waf == pytest.approx(4e15 * 100 * HOURS)
    assert (outcome.ettr, outcome.goodput, outcome.changes) == (1, 1, 0)


def test_a_failed_process_costs_detection_and_a_restart_of_its_whole_run() -> None:
    outcome = simulate(cluster(4, run(1, 4)), policy("replan"), [broken(2, 10)])
    assert gpu_hours(outcome)["detection"] == pytest.approx(32 * 100 / HOURS)
    assert gpu_hours(outcome)["transition"] == pytest.approx(32 * 1000 / HOURS)
    assert outcome.spent[Cause.REPAIR] == 0


def test_what_is_only_tried_again_costs_a_retry() -> None:
    failures = [broken(2, 10, "collective timeout")]
    outcome = simulate(cluster(4, run(1, 4)), policy("replan"), failures)
    assert gpu_hours(outcome)["transition"] == pytest.approx(32 * 100 / HOURS)


def test_a_run_that_lost_a_node_goes_on_smaller_and_grows_back() -> None:
    here = cluster(4, run(1, 4))
    outcome = simulate(here, policy("replan"), [lost(3, 10)], records=True)
    assert [(how, size) for how, size, _ in told(outcome, 1)] == [
        ("training", 4), ("detecting", 3), ("changing", 3), ("training", 3),
        ("changing", 4), ("training", 4),
    ]  # fmt: skip
    assert gpu_hours(outcome)["repair"] == 80


def test_a_run_that_waits_holds_its_sound_nodes_until_its_own_is_back() -> None:
    here, kept = cluster(8, run(1, 4), run(2, 4)), policy("wait", keeps_failed=True)
    outcome = simulate(here, kept, [lost(3, 10)])
    assert gpu_hours(outcome)["waiting"] == pytest.approx(3 * 8 * (10 - 100 / HOURS))
    assert gpu_hours(outcome)["transition"] == pytest.approx(32 * 1000 / HOURS)


def test_a_run_that_would_wait_takes_a_free_node_instead() -> None:
    outcome = simulate(cluster(5, run(1, 4)), policy("wait", keeps_failed=True), [lost(3, 10)])
    assert outcome.spent[Cause.WAITING] == 0
    assert outcome.changes == 1


def test_a_requeued_run_gives_its_nodes_up_and_another_queued_one_may_take_them() -> None:
    here = cluster(8, run(1, 4), run(2, 4))
    failures = [lost(0, 10, 50), lost(4, 20, 50)]
    outcome = simulate(here, policy("requeue"), failures, records=True)
    assert told(outcome, 1)[2] == ("queued", 0, pytest.approx(10 + 100 / HOURS))
    again = next(since for how, size, since in told(outcome, 1) if (how, size) == ("changing", 4))
    assert again == pytest.approx(20 + 100 / HOURS), "the nodes that run 2 gave up"


def test_an_elastic_run_without_a_legal_size_left_waits() -> None:
    outcome = simulate(cluster(2, run(1, 2, least=2)), policy("elastic"), [lost(1, 10)])
    assert gpu_hours(outcome)["waiting"] == pytest.approx(8 * (10 - 100 / HOURS))


def test_a_failure_in_the_middle_of_a_change_begins_detection_anew() -> None:
    failures = [broken(0, 10), broken(1, 10 + 600 / HOURS)]
    outcome = simulate(cluster(4, run(1, 4)), policy("replan"), failures)
    assert gpu_hours(outcome)["detection"] == pytest.approx(32 * 200 / HOURS)
    assert gpu_hours(outcome)["transition"] == pytest.approx(32 * 1500 / HOURS)


def test_a_switch_takes_all_of_its_nodes() -> None:
    failure = Failure(10 * HOUR, (0, 1, 2, 3), "switch lost", 10 * HOUR)
    outcome = simulate(cluster(8, run(1, 6, least=2)), policy("replan"), [failure], records=True)
    assert gpu_hours(outcome)["repair"] == 4 * 80
    assert ("training", 4) in [(how, size) for how, size, _ in told(outcome, 1)]


def test_a_run_ends_with_its_work_and_leaves_its_nodes_to_others() -> None:
    short = run(1, 4, work=4e15 * 10 * HOURS)
    outcome = simulate(cluster(8, short, run(2, 4)), policy("replan"), (), records=True)
    assert told(outcome, 1) == [("training", 4, 0)]
    assert told(outcome, 2)[1:] == [
        ("changing", 8, pytest.approx(10)), ("training", 8, pytest.approx(10 + 1000 / HOURS)),
    ]  # fmt: skip


def test_a_run_that_arrives_gets_nodes() -> None:
    here = cluster(4, run(1, 4), run(2, arrives=10 * HOUR, least=2))
    outcome = simulate(here, policy("replan"), (), records=True)
    assert told(outcome, 2)[0] == ("changing", 2, 10)


def test_what_slurm_gives_to_others_is_theirs_and_comes_back() -> None:
    queue = Queue(Freed.SLURM, others_waiting=1.0, others_hold=5 * HOUR)
    here = cluster(4, run(1, 4), queue=queue)
    outcome = simulate(here, policy("replan"), [lost(3, 10)], seed=1)
    assert gpu_hours(outcome)["others"] == pytest.approx(8 * 80), "somebody always waits"
    assert outcome.spent[Cause.IDLE] == 0


def test_a_slower_policy_pays_in_sub_healthy_time() -> None:
    outcome = simulate(cluster(4, run(1, 4)), policy("wait", healthy_percent=25), ())
    assert gpu_hours(outcome) == {"useful": 800, "sub_healthy": 2400}


def a_cluster(nodes: int, seed: int, freed: Freed) -> tuple[Cluster, tuple[Failure, ...]]:
    queue = Queue(freed, others_waiting=0.5, others_hold=2 * HOUR)
    runs = (
        run(1, least=1 + seed % 3),
        run(2, weight=1.7, work=3e15 * 20 * HOURS),
        run(3, weight=0.5, arrives=15 * HOUR),
    )
    here = cluster(nodes, *runs, hours=60, queue=queue)
    laws = Laws(
        Lasting("weibull", 6 * HOUR, 0.7), between=Lasting("weibull", 12 * HOUR, 0.8),
        switches_per_year=365 / 60 * 3,
    )  # fmt: skip
    return here, draw(laws, nodes, here.nodes_per_switch, here.length, seed)


rules = st.sampled_from(sorted(RULES))


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 16), st.integers(0, 10**6), rules, st.booleans(), st.sampled_from(Freed))
def test_every_gpu_is_accounted_for_at_every_moment(
    nodes: int, seed: int, rule: str, keeps: bool, freed: Freed
) -> None:
    here, failures = a_cluster(nodes, seed, freed)
    told_by: Policy = policy(rule, keeps_failed=keeps, healthy_percent=73.1)
    outcome = simulate(here, told_by, failures, seed, records=True)
    assert sum(outcome.spent.values()) == here.nodes * here.gpus * here.length
    assert min(outcome.spent.values()) >= 0
    lasted = dict.fromkeys(range(nodes), 0)
    for segment in outcome.ledger.nodes.segments:
        lasted[segment.who] += segment.end - segment.start
    assert set(lasted.values()) == {here.length}, "each node is in one place at a time"


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 16), st.integers(0, 10**6), rules)
def test_nobody_does_better_than_the_bound(nodes: int, seed: int, rule: str) -> None:
    here, failures = a_cluster(nodes, seed, Freed.OURS)
    here = cluster(nodes, *(run(i, weight=i / 2) for i in (1, 2, 3)), hours=60)
    bound = simulate(here, policy("replan", 0, 0, floors=False), failures)
    assert simulate(here, policy(rule), failures).waf <= bound.waf * (1 + 1e-12)


def test_the_same_seed_is_the_same_story() -> None:
    first, second = (
        simulate(*_seeded(a_cluster(8, 5, Freed.SLURM), policy("replan"))) for _ in range(2)
    )
    assert (first.waf, first.spent, first.events) == (second.waf, second.spent, second.events)


def _seeded(
    told: tuple[Cluster, tuple[Failure, ...]], told_by: Policy
) -> tuple[Cluster, Policy, tuple[Failure, ...], int]:
    return told[0], told_by, told[1], 5


def test_counts_are_exact_and_no_node_fails_while_it_is_repaired() -> None:
    laws = Laws(Lasting("exponential", 2 * DAY), severe=40, others=25)
    failures = draw(laws, 16, 8, 56 * DAY, 3)
    assert sum(failure.repair > 0 for failure in failures) == 40
    assert len(failures) == 65
    until = dict.fromkeys(range(16), 0)
    for failure in failures:
        for node in failure.nodes:
            assert failure.at >= until[node] - 1
            until[node] = failure.at + failure.repair


@pytest.mark.parametrize("law", ["exponential", "weibull", "lognormal", "constant"])
def test_laws_have_the_mean_that_was_asked_for(law: str) -> None:
    import numpy as np

    drawn = Lasting(law, 1000.0, 0.7).draw_many(np.random.default_rng(1), 200_000)  # type: ignore[arg-type]
    assert drawn.mean() == pytest.approx(1000, rel=0.02)
