"""What a rank finds in its environment, and what an agent reads from its own."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from unicrond.agent import facts
from unicrond.agent.environment import Place, rank_environment
from unicrond.agent.facts import Facts, facts_of, to_json
from unicrond.agent.job import gpus_of, job_of
from unicrond.agent.slurm import spawn_command, spawn_environment
from unicrond.errors import BadInput
from unicrond.model.run import Assignment, Slot

SLOTS = tuple(
    Slot(rank, f"a.{rank}", node, local)
    for rank, (node, local) in enumerate([("n2", 0), ("n2", 1), ("n7", 0)])
)
PLACE = Place(41, "41/n7/a", "10.0.0.2", 11234, "/tmp/s")
FACTS = Facts(("n1", "n2"), {"n1": "10.0.0.1"}, {}, 300, 30, 64030, binds_cpus=True)
SECRET = base64.b64encode(b"s" * 32).decode()
TASK = {"SLURM_JOB_ID": "41", "SLURMD_NODENAME": "n2", "UNICRON_SECRET": SECRET}


def of_rank(rank: int, **base: str) -> dict[str, str]:
    return rank_environment(base, Assignment(3, "o", SLOTS), SLOTS[rank], PLACE)


def test_a_rank_gets_what_torchrun_would_give_it() -> None:
    found = of_rank(2)
    expected = {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "11234",
        "TORCHELASTIC_RUN_ID": "41",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "UNICRON_GENERATION": "3",
        "UNICRON_MEMBER": "a.2",
    }
    assert {key: found[key] for key in expected} == expected


def test_slurms_rank_variables_are_those_of_the_rank_not_of_the_agents_task() -> None:
    found = of_rank(1, SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NTASKS="2", SLURM_NODEID="9")
    assert [found[f"SLURM_{name}"] for name in ("PROCID", "LOCALID", "NTASKS", "NODEID")] == [
        "1",
        "1",
        "3",
        "0",
    ]


def test_what_the_user_set_stays_and_the_secret_does_not_reach_ranks() -> None:
    found = of_rank(0, OMP_NUM_THREADS="4", CUDA_VISIBLE_DEVICES="0,1", UNICRON_SECRET="x")
    assert (found["OMP_NUM_THREADS"], found["CUDA_VISIBLE_DEVICES"]) == ("4", "0,1")
    assert "UNICRON_SECRET" not in found


def test_facts_survive_the_way_through_the_environment() -> None:
    placed = replace(FACTS, switches={"n2": "s1"})
    assert facts_of({"UNICRON_FACTS": to_json(placed)}) == placed


TOPOLOGY = """SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n3
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[1-2]
"""


def test_facts_name_the_lowest_switch_of_each_node_of_a_job_of_more_than_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scontrol(arguments: Sequence[str], notes: list[str]) -> str:
        answers = {"n[1,3-4]": "n1\nn3\nn4", "n[1-2]": "n1\nn2", "n3": "n3", "topology": TOPOLOGY}
        return answers.get(arguments[-1], "")

    monkeypatch.setattr(facts, "_scontrol", scontrol)
    assert facts.ask({"SLURM_JOB_NODELIST": "n[1,3-4]"}).switches == {"n1": "s1", "n3": "s2"}


def test_the_first_generation_is_above_all_of_earlier_starts_of_the_job() -> None:
    assert job_of(TASK, FACTS).first_generation == 1
    assert job_of({**TASK, "SLURM_RESTART_COUNT": "2"}, FACTS).first_generation == 2001


def test_no_two_agents_have_the_same_id() -> None:
    assert job_of(TASK, FACTS).agent != job_of(TASK, FACTS).agent


@pytest.mark.parametrize("secret", ["", "c2hvcnQ=", "***"])
def test_agents_of_several_nodes_need_the_runs_secret(secret: str) -> None:
    with pytest.raises(BadInput, match="UNICRON_SECRET"):
        job_of({**TASK, "UNICRON_SECRET": secret}, FACTS)


def test_one_node_needs_no_secret() -> None:
    alone = replace(FACTS, nodes=("n2",))
    assert len(job_of({**TASK, "UNICRON_SECRET": ""}, alone).secret) == 32


def test_outside_a_job_an_agent_says_so() -> None:
    with pytest.raises(BadInput, match="SLURM_JOB_ID"):
        job_of({}, FACTS)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_ON_NODE": "gpu:a100:2,gpu:h100:1"}, 3),
        ({"SLURM_JOB_GPUS": "0,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "5"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({}, 0),
    ],
)
def test_gpus_are_counted_wherever_slurm_tells_them(
    environment: dict[str, str], count: int
) -> None:
    assert gpus_of(environment) == count


def test_an_agent_started_again_is_not_misled_by_variables_of_the_old_step() -> None:
    kept = spawn_environment(
        {
            "SLURM_JOB_ID": "41",
            "SLURM_CONF": "/c",
            "SLURM_RESTART_COUNT": "1",
            "UNICRON_SECRET": "s",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "3",
            "SLURM_NTASKS": "4",
            "SLURM_NTASKS_PER_NODE": "1",
            "SRUN_DEBUG": "3",
        }
    )
    assert kept == {
        "SLURM_JOB_ID": "41",
        "SLURM_CONF": "/c",
        "SLURM_RESTART_COUNT": "1",
        "UNICRON_SECRET": "s",
        "UNICRON_SPAWNED": "1",
    }


def test_an_agent_is_started_beside_everything_else_of_the_job() -> None:
    command = spawn_command("n3", Path("/o/agent-n3.log"), ["python3", "agent.pyz"], True)
    assert command[0] == "srun" and command[-2:] == ["python3", "agent.pyz"]
    assert {"--overlap", "--no-kill", "--wait=0", "--open-mode=append"} <= set(command)
    assert command[command.index("-w") + 1] == "n3"
