"""A site's own past: what it lost, what it does not tell, what a policy would have saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simworld import policy

from simulator.engine import Outcome, simulate
from simulator.history import Fault, Past, Told, past
from simulator.model import HOUR, Cause, Occupied
from unicrond.ctl import simulate as command
from unicrond.errors import BadInput
from unicrond.model.accounting import Spell

DOCS = Path(__file__).parents[2] / "docs"
HOURS = 3600.0


def spell(
    began: float, ended: float | None, state: str = "COMPLETED", nodes: str = "abcd",
    job: int = 1, gpus: int = 8, **more: Any,
) -> Spell:  # fmt: skip
    """Times in hours, nodes by their letters."""
    told = {"user": "ada", "name": f"job {job}", "submitted": began * HOURS, **more}
    until = None if ended is None else ended * HOURS
    return Spell(job, state=state, began=began * HOURS, ended=until,
                 gpus=gpus * len(nodes), nodes=tuple(nodes), **told)  # fmt: skip


def read(
    *spells: Spell, faults: Sequence[Fault] | None = None, told: dict[int, Told] | None = None
) -> Past:
    return past(spells, faults, told or {}, least_nodes=2, repair_hours=24.0)


def gpu_hours(found: Past) -> dict[str, float]:
    happened = found.happened
    return {
        name: getattr(happened, name) / HOURS
        for name in ("stopped", "smaller", "standing", "again")
        if getattr(happened, name)
    }


def played(found: Past, rule: str = "elastic", **more: Any) -> Outcome:
    return simulate(found.cluster, policy(rule, **more), found.failures)


def gaps(found: Past) -> str:
    return "\n".join(found.gaps)


def test_a_quiet_past_lost_nothing_and_no_policy_saves_or_loses() -> None:
    found = read(spell(0, 10), spell(2, 5, nodes="ef", job=2))
    assert gpu_hours(found) == {}
    assert found.failures == ()
    assert [run.work for run in found.cluster.runs] == [4 * 8 * 10 * HOURS, 2 * 8 * 3 * HOURS]
    free = policy("elastic")
    outcome = simulate(found.cluster, free, ())
    assert outcome.ledger.lacked / HOUR == pytest.approx(6 * 8 * 1000 / HOURS), "first starts"


def test_a_lost_node_costs_the_time_until_the_next_start_and_work_done_again() -> None:
    found = read(spell(0, 10, "NODE_FAIL"), spell(13, 20, nodes="abce"))
    assert gpu_hours(found) == {"stopped": 3 * 32, "again": 0.25 * 32}
    (failure,) = found.failures
    assert (failure.at, failure.repair, failure.run_id) == (10 * HOUR, 24 * HOUR, 1)
    assert found.cluster.runs[0].work == (10 - 0.25 + 7) * 4 * HOURS * 8


def test_a_node_worked_again_at_the_latest_when_its_next_job_began() -> None:
    found = read(
        spell(0, 10, "NODE_FAIL"), spell(13, 20, nodes="abce"), spell(16, 17, nodes="d", job=2)
    )
    assert found.failures[0].repair == 6 * HOUR
    assert "repairs whose length is not in the data: 1; 24 h each" in gaps(found)


def test_which_node_was_lost_is_named_as_unknown_where_it_is() -> None:
    found = read(spell(0, 10, "NODE_FAIL"), spell(13, 20))
    assert "lost nodes whose name is not in the data: 1" in gaps(found)


def test_a_requeue_is_a_failure_of_a_process_and_said_to_be_a_guess() -> None:
    found = read(spell(0, 10, "REQUEUED"), spell(11, 20))
    assert (found.failures[0].kind, found.failures[0].repair) == ("exited abnormally", 0)
    assert "requeues and restarts without a reason: 1" in gaps(found)


def test_a_preempted_job_is_two_runs_and_nobody_saves_its_wait() -> None:
    found = read(spell(0, 10, "PREEMPTED"), spell(15, 20))
    assert len(found.cluster.runs) == 2
    assert (gpu_hours(found), found.failures) == ({}, ())
    assert "preemptions and other stops that are no failures: 1" in gaps(found)


def test_a_shrunken_job_lacks_the_nodes_that_it_gave_back() -> None:
    found = read(spell(0, 10, "RESIZING"), spell(10, 14, nodes="abc"))
    assert gpu_hours(found) == {"smaller": 4 * 8}
    assert found.failures == ()


def test_a_job_submitted_again_after_a_lost_node_is_the_same_run() -> None:
    again = spell(16, 20, job=2, name="job 1")
    found = read(spell(0, 10, "NODE_FAIL"), again)
    assert len(found.cluster.runs) == 1
    assert gpu_hours(found)["stopped"] == 6 * 32
    late = read(spell(0, 10, "NODE_FAIL"), spell(40, 50, job=2, name="job 1"))
    assert len(late.cluster.runs) == 2
    assert "runs ended by a lost node and not started again: 1" in gaps(late)


def test_an_incident_tells_what_the_accounting_does_not() -> None:
    fault = Fault(1, 5 * HOURS, 5.5 * HOURS, 1, "b")
    found = read(spell(0, 10), faults=[fault], told={1: Told(2.0, 3)})
    assert gpu_hours(found) == {"standing": 0.5 * 32, "again": 0.25 * 32}
    run = found.cluster.runs[0]
    assert (run.weight, run.least) == (2.0, 3)
    assert "incidents are not given" not in gaps(found)
    assert "weight" not in gaps(found)


def test_an_incident_and_the_end_that_it_led_to_are_one_failure() -> None:
    fault = Fault(1, 9.9 * HOURS, None, 1, "b")
    found = read(spell(0, 10, "NODE_FAIL"), spell(13, 20, nodes="acde"), faults=[fault])
    (failure,) = found.failures
    assert failure.at == round(9.9 * HOUR)
    assert gpu_hours(found)["standing"] == pytest.approx(0.1 * 32)
    assert "incidents without an end" not in gaps(found)


def test_an_incident_that_nobody_closed_is_named() -> None:
    found = read(spell(0, 10), faults=[Fault(1, 5 * HOURS, None, 2)])
    assert gpu_hours(found) == {"again": 0.25 * 32}
    assert "incidents without an end: 1" in gaps(found)


def test_incidents_of_jobs_that_the_accounting_does_not_have_are_counted() -> None:
    faults = [Fault(9, 5 * HOURS, None, 1), Fault(1, 50 * HOURS, None, 1)]
    found = read(spell(0, 10), spell(0, 60, nodes="ef", job=2), faults=faults)
    assert found.failures == ()
    assert "incidents while no run of theirs ran, as far as the data go: 2; left out" in found.gaps


def test_a_failure_hits_its_run_wherever_that_is_and_nobody_once_it_has_ended() -> None:
    found = read(
        spell(0, 10, "NODE_FAIL"), spell(13, 20, nodes="abce"), spell(0, 60, nodes="fg", job=2)
    )
    lost = found.failures[0]
    hit = simulate(found.cluster, policy("wait"), [lost])
    assert hit.spent[Cause.REPAIR] == 24 * 8 * HOUR
    assert hit.spent[Cause.DETECTION] == 3 * 8 * 100 * 1000
    late = simulate(found.cluster, policy("wait"), [replace(lost, at=30 * HOUR)])
    assert late.spent[Cause.REPAIR] == late.spent[Cause.DETECTION] == 0


def test_of_two_jobs_of_one_name_the_one_submitted_after_the_loss_goes_on() -> None:
    side = spell(9, 12, nodes="ef", job=2, name="job 1")
    found = read(spell(0, 10, "NODE_FAIL"), side, spell(16, 20, job=3, name="job 1"))
    assert [run.start_nodes for run in found.cluster.runs] == [4, 2]


def test_what_a_policy_lacks_is_its_detection_change_and_smaller_size() -> None:
    found = read(spell(0, 10, "NODE_FAIL", nodes="ab"), spell(13, 40, nodes="ab"))
    outcome = played(found)
    stands, starts = 1100 / HOURS, 1000 / HOURS
    smaller = 24 - stands
    expected = 8 * (2 * starts + 2 * stands + smaller + 2 * starts)
    assert outcome.ledger.lacked / HOUR == pytest.approx(expected, rel=1e-3)


def test_others_keep_their_nodes_and_give_them_back() -> None:
    found = read(
        spell(0, 10, "NODE_FAIL", nodes="ab"), spell(13, 40, nodes="bc"),
        spell(5, 20, nodes="c", job=2), spell(19, 25, nodes="c", job=3),
    )  # fmt: skip
    assert found.cluster.others == (Occupied(5 * HOUR, 25 * HOUR, 1),)
    outcome = played(found)
    assert outcome.spent[Cause.OTHERS] == 20 * 8 * HOUR
    assert outcome.ledger.lacked / HOUR > 8 * 14, "no spare until others end"


def test_smaller_jobs_and_jobs_without_gpus_are_no_runs() -> None:
    found = read(spell(0, 10), spell(0, 3, nodes="e", job=2), spell(0, 3, nodes="f", job=3, gpus=0))
    assert (len(found.cluster.runs), found.cluster.nodes) == (1, 5)
    assert "spells without a GPU: 1; left out" in gaps(found)


def test_what_still_runs_is_followed_to_the_end_of_the_data() -> None:
    found = read(spell(0, None), spell(0, 30, nodes="ef", job=2))
    assert found.cluster.runs[0].work is None
    assert "runs that went on at the end of the data: 1" in gaps(found)


@pytest.mark.parametrize(
    ("spells", "said"),
    [
        ([], "--history: no job with GPUs ran"),
        ([spell(0, 1, gpus=0)], "--history: no job with GPUs ran"),
        ([spell(0, 1, nodes="a")], "--least-nodes: no job with GPUs ran on 2 nodes or more"),
    ],
)
def test_where_there_is_nothing_to_play_it_is_said(spells: list[Spell], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read(*spells)


def test_too_many_runs_are_refused() -> None:
    with pytest.raises(BadInput, match="--least-nodes: 2001 runs of 2 nodes or more, at most 2000"):
        read(*(spell(i, i + 1, job=i, nodes="ab") for i in range(2001)))


# the command, on the documented example

EXAMPLE = {
    "history": str(DOCS / "history.txt"), "incidents": str(DOCS / "history-incidents.json"),
}  # fmt: skip


def test_the_documented_example_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    command.simulate(**EXAMPLE, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["failures"], found["lost_nodes"]) == (4, 4, 2)
    parts = found["happened_gpu_hours"]
    assert found["lost_gpu_hours"] == pytest.approx(sum(parts.values()))
    ours = found["policies"][0]
    assert ours["saved_gpu_hours"] == pytest.approx(
        found["lost_gpu_hours"] - ours["lost_gpu_hours"]
    )
    command.simulate(**EXAMPLE, policy=["unicron", "megatron"])
    shown = capsys.readouterr().out
    assert "4 runs on 9 nodes, 72 GPUs" in shown
    assert shown.count("\n- ") == len(found["gaps"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "--incidents: .* is no JSON"),
        ('[{"severity": "SEV1", "run_id": "x"}]', "--incidents: incidents.0.run_id"),
        ('{"incidents": [], "runs": [{"run_id": 1, "weight": 0}]}', "--incidents: runs.0.weight"),
    ],
)
def test_malformed_incidents_are_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "i.json").write_text(text)
    with pytest.raises(BadInput, match=said):
        command.simulate(history=EXAMPLE["history"], incidents=str(tmp_path / "i.json"))


def test_what_says_nothing_of_a_past_is_refused_beside_it() -> None:
    with pytest.raises(BadInput, match="--runs: says nothing of a past"):
        command.simulate(**EXAMPLE, runs="case-1")


def test_a_history_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--history: cannot read .*: No such file"):
        command.simulate(history=str(tmp_path / "absent"))


def test_the_line_of_a_malformed_history_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h.txt"
    path.write_text(Path(EXAMPLE["history"]).read_text().replace("2026-10-03T02:11:00", "then", 1))
    with pytest.raises(BadInput, match=f"{path}: line 2: End: 'then' is no time"):
        command.simulate(history=str(path))
