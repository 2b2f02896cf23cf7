"""What an agent submits as a companion, and what an agent in one knows of its run."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from unicrond.agent import slurm
from unicrond.agent.companion import NICE, VARIABLE, Order, base_of, command, environment_of
from unicrond.agent.facts import Facts
from unicrond.agent.job import job_of
from unicrond.errors import BadInput

FACTS = Facts(("n1", "n2"), {"n1": "10.0.0.1", "n2": "10.0.0.2"}, {}, 300, 30, 64030)
BASE = {
    "SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1", "SLURM_RESTART_COUNT": "2",
    "SLURM_JOB_NAME": "train", "SLURM_JOB_ACCOUNT": "physics", "SLURM_JOB_PARTITION": "gpu",
    "SLURM_GPUS_ON_NODE": "8", "SLURM_CONF": "/etc/slurm/slurm.conf", "SRUN_DEBUG": "3",
    "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/home/alice", "UNICRON_FACTS": "{}",
    "UNICRON_OUTPUT_DIR": "/home/alice/unicron-17", "UNICRON_BATCH_HOST": "n1",
    "UNICRON_SECRET": base64.b64encode(bytes(32)).decode(),
}  # fmt: skip
JOB = job_of(BASE, FACTS)


def test_nothing_of_the_bases_job_misleads_the_companions_srun() -> None:
    kept = environment_of(JOB, BASE)
    slurms = [name for name in kept if name.startswith(("SLURM", "SRUN", "SBATCH", "CUDA"))]
    assert slurms == ["SLURM_CONF"]
    assert "UNICRON_FACTS" not in kept
    assert kept["UNICRON_SECRET"] == BASE["UNICRON_SECRET"]


def test_it_is_submitted_as_its_user_would_with_the_bases_account_and_size_of_nodes() -> None:
    arguments = ["--max-nodes=4", "--", "python", "train.py"]
    wrapper, order = Path("/opt/unicron/bin/unicron-run"), Order(2, ["n7"], 90, 120)
    words = command(JOB, BASE, wrapper, arguments, order)
    assert words[0] == "sbatch"
    assert {"--nodes=2", "--account=physics", "--partition=gpu", "--gpus-per-node=8"} <= set(words)
    assert {"--time=90", "--exclude=n7", "--no-requeue", "--job-name=train+17"} <= set(words)
    assert not [word for word in words if word.startswith("--qos")]
    assert {f"--nice={NICE}", f"--deadline=now+{90 * 60 + 120}"} <= set(words)
    assert words[-5:] == ["/opt/unicron/bin/unicron-run", *arguments]


def test_the_sites_qos_and_partition_for_companions_win_over_the_bases() -> None:
    order = Order(1, [], 90, 120, "scavenge", "idle")
    words = command(JOB, {**BASE, "SLURM_JOB_QOS": "normal"}, Path("x"), [], order)
    assert {"--qos=scavenge", "--partition=idle"} <= set(words)
    assert not {"--qos=normal", "--partition=gpu"} & set(words)


def test_an_agent_in_it_belongs_to_the_bases_run_and_knows_its_nodes() -> None:
    own = {"SLURM_JOB_ID": "18", "SLURMD_NODENAME": "n5", "SLURM_GPUS_ON_NODE": "8"}
    here = replace(FACTS, nodes=("n5",), addresses={"n5": "10.0.0.5"})
    job = job_of({**environment_of(JOB, BASE), **own}, here)
    assert (job.run_id, job.restarts, job.nodes) == (17, 2, ("n1", "n2", "n5"))
    assert (job.in_slurm, job.is_companion, job.batch_host) == ((18, 0), True, "n1")
    assert job.facts.address("n2") == "10.0.0.2"
    assert job.output_folder == JOB.output_folder


def test_a_base_is_no_companion() -> None:
    assert base_of(BASE) is None
    assert (JOB.is_companion, JOB.in_slurm) == (False, (17, 2))


def test_a_damaged_word_of_the_base_is_refused() -> None:
    with pytest.raises(BadInput, match="UNICRON_BASE is damaged"):
        base_of({VARIABLE: "{"})


def test_a_task_of_an_array_is_requeued_alone() -> None:
    task = {**BASE, "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    assert slurm.subject(17, task) == "17_3"
    assert slurm.subject(17, BASE) == "17"
    assert slurm.subject(18, task) == "18", "another job"
