"""Ranks that die and nodes that are lost, on a real Slurm: the run goes on."""

from __future__ import annotations

import json

import pytest
from stage import EXAMPLE, LOCKSTEP, Stage, Step, Training, until

pytestmark = pytest.mark.slurm

LEASE_SECONDS = 5.0


def processes_of(steps: list[Step]) -> set[tuple[str, int]]:
    return {(step.node, step.pid) for step in steps}


def goes_on_from_the_checkpoint(training: Training, kept: int, generation: int) -> None:
    """`kept`: what the checkpoint held before the fault. Nothing is lost, nothing is left out."""
    first = min(step.step for step in training.of(generation))
    before = max(step.step for step in training.of(generation - 1))
    assert kept < first <= before + 1
    assert (first - 1) % 5 == 0, "from a checkpoint, not from where a rank happened to be"


def test_a_killed_rank_restarts_all_ranks_on_the_same_nodes_from_the_checkpoint(
    stage: Stage,
) -> None:
    training = stage.training(ranks_per_node=2)
    kept = training.checkpoint()["step"]
    training.kill_rank(3)
    training.goes_on(generation=2)
    old, new = training.of(1), training.of(2)
    assert {s.node for s in old} == {s.node for s in new} == {"n1", "n2", "n3"}
    assert {s.rank for s in new} == {0, 1, 2, 3, 4, 5}
    assert not processes_of(old) & processes_of(new)
    goes_on_from_the_checkpoint(training, kept, 2)
    healed = training.heals()
    assert (healed["severity"], healed["root_node"], healed["root_rank"]) == ("SEV2", "n2", 3)
    assert stage.reasons() == {}


def test_a_lost_node_leaves_its_run_which_goes_on_after_the_lease(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    cut = stage.lab.fault("cut-link", node="n2").wall_seconds
    training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n1", "n3"}
    assert {s.world for s in training.of(2)} == {2}
    assert min(s.time for s in training.of(2)) > cut + LEASE_SECONDS - 1, "the lease was waited for"
    training.until("Slurm's node is drained", lambda: "DRAIN" in stage.node_states()["n2"])
    assert stage.reason("n2").startswith("unicron: lost connection incident=")
    training.until("the job is shrunk", lambda: training.nodes() == ["n1", "n3"])
    training.until("unicrond sees it", lambda: training.run()["nodes"] == ["n1", "n3"])
    assert training.heals()["severity"] == "SEV1"
    assert training.kinds() >= {"stop_ranks", "start_ranks", "probe", "drain", "shrink"}


def test_a_lost_node_of_a_run_that_did_not_opt_in_requeues_it_at_full_size(stage: Stage) -> None:
    training = stage.training()
    stage.lab.fault("cut-link", node="n3")
    training.goes_on(generation=1001, within_seconds=100)  # in Slurm's queue alone it were 120
    assert {s.world for s in training.steps()} == {3}, "never another world size"
    assert "n3" not in {s.node for s in training.of(1001)}
    assert int(training.slurm("Restarts")) == 1
    assert min(s.step for s in training.of(1001)) > 5, "from the checkpoint"
    assert training.heals()["state"] == "resolved"
    assert "expedite" in training.kinds()


def test_the_example_trains_on_from_its_checkpoint(stage: Stage) -> None:
    training = stage.submit(
        f"{EXAMPLE} --steps=60 --step-seconds=0.1 --checkpoint-every=5 --batch=6 --layers=1"
        " --dim=32 --sequence=32 --log=losses.jsonl",
        nodes=2,
    )
    log = training.folder / "losses.jsonl"
    training.until("train steps", lambda: log.exists() and log.read_text().count("\n") > 25)
    training.kill_rank(1)
    training.ends("COMPLETED")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first, second = ([x for x in lines if x["generation"] == g] for g in (1, 2))
    assert len(first) + len(second) == len(lines)
    assert 0 <= first[-1]["step"] - (second[0]["step"] - 1) <= 6, "little is trained again"
    assert (second[0]["step"] - 1) % 5 == 0
    assert second[-1]["step"] == 60
    assert second[-1]["loss"] < first[0]["loss"] * 0.9, "what was learned is kept"
    files = {path.name for path in (training.folder / f"unicron-{training.job}").glob("g*.log")}
    assert files == {f"g{g}-rank{r}.log" for g in (1, 2) for r in (0, 1)}
    assert '[0] {"step": 60,' in training.output(), "a marked copy of what ranks print"


def test_two_runs_side_by_side_heal_for_themselves(stage: Stage) -> None:
    one, other = stage.submit(LOCKSTEP), stage.submit(LOCKSTEP, user="bob")
    for training in (one, other):
        training.until_step(6)
        until("unicrond knows it", lambda t=training: t.run().get("state") == "running")
    assert not set(one.nodes()) & set(other.nodes())
    one.kill_rank(1)
    one.goes_on(generation=2)
    other.goes_on()
    assert other.generations() == [1]
    other.kill_rank(2)
    other.goes_on(generation=2)
    one.goes_on()
    assert one.generations() == [1, 2]
    assert (len(one.incidents()), len(other.incidents())) == (1, 1)


def test_a_node_that_was_cut_off_writes_nothing_into_what_went_on_without_it(stage: Stage) -> None:
    """Ranks that wait for nobody: on the cut node they could write for ever, but for the lease."""
    training = stage.training(f"{LOCKSTEP} --alone --step-seconds=0.05", "--min-nodes=2")
    stage.lab.fault("cut-link", node="n1")  # rank 0, which keeps the checkpoint, and batch host
    training.until("the survivors", lambda: training.generations() == [1, 2])
    stage.lab.fault("restore-link", node="n1")
    training.until("the cut node is heard", lambda: training.agent("n1")["connected"])
    training.until("a checkpoint", lambda: training.checkpoint()["generation"] == 2)
    mark = training.goes_on(generation=2).time
    old = [s for s in training.of(1) if s.node == "n1"]
    new = min(s.time for s in training.of(2))
    assert max(s.time for s in old) < new < mark
    training.until("its own checkpoint", lambda: training.checkpoint()["generation"] == 2)
    training.until_step(max(s.step for s in training.of(2)) + 20, generation=2)
    assert training.checkpoint()["generation"] == 2, "and nobody of before writes over it"
    assert not any("lockstep" in line for line in stage.processes_of_users("n1"))


def test_a_persons_reason_for_a_drain_is_never_overwritten(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.lab.fault("cut-link", node="n2")
    training.until("its loss is known", lambda: training.run().get("healing"))
    stage.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=bad fan")
    training.goes_on(generation=2)
    drained = training.until(
        "the drain is decided",
        lambda: [a for a in training.actions() if a["kind"] == "drain" and a["outcome"]],
    )
    assert drained[0]["outcome"] == "refused"
    assert "bad fan" in drained[0]["detail"]
    assert stage.reason("n2").startswith("bad fan")
