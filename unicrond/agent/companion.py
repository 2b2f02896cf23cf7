"""A companion job, by which a run grows: how an agent of the base submits it, as the user, and how
an agent in it knows whose it is. The order carries numbers and node names, never a command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unicrond.agent import orders, slurm
from unicrond.agent.orders import Result
from unicrond.errors import BadInput

if TYPE_CHECKING:
    from unicrond.agent.job import Job

VARIABLE = "UNICRON_BASE"
NICE = 1_000_000_000  # behind everybody who waits, and Slurm takes twice as much
LONGEST_VARIABLE = 120_000  # Linux takes 128 KiB
# With the variables of another job srun fails, and --export=NONE does not help.
_OF_THE_BASE = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|ROCR|ZE)_.*|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL"
    r"|UNICRON_(FACTS|SPAWNED|OUTPUT|BASE)"
)


@dataclass(frozen=True, slots=True)
class Base:
    """The job that is accompanied. Its nodes in Slurm's order, and where they are."""

    run_id: int
    restarts: int
    nodes: tuple[str, ...]
    addresses: Mapping[str, str]


def base_of(environment: Mapping[str, str]) -> Base | None:
    """None in a base itself. Raises BadInput."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        told = json.loads(text)
        return Base(
            int(told["run_id"]),
            int(told["restarts"]),
            tuple(map(str, told["nodes"])),
            {str(k): str(v) for k, v in told["addresses"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{VARIABLE} is damaged: only unicrond's orders set it") from error


@dataclass(frozen=True, slots=True)
class Order:
    """What unicrond says of a companion. `within`: seconds for it to start. `qos`, `partition`: the
    site's for companions, "" where it is its base's."""

    nodes: int
    exclude: Sequence[str]
    minutes: int
    within: int
    qos: str = ""
    partition: str = ""


def environment_of(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """For sbatch: nothing of the base's job but where Slurm is, and whose companion it is."""
    kept = {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not _OF_THE_BASE.fullmatch(name)
    }
    told = {
        "run_id": job.run_id,
        "restarts": job.restarts,
        "nodes": job.nodes,
        "addresses": {node: job.facts.address(node) for node in job.nodes},
    }
    return {**kept, VARIABLE: json.dumps(told, separators=(",", ":"))}


def command(
    job: Job,
    environment: Mapping[str, str],
    wrapper: Path,
    arguments: Sequence[str],
    order: Order,
) -> list[str]:
    """sbatch as the user would, for nodes like the base's, after everybody else."""
    name = environment.get("SLURM_JOB_NAME", "run")
    told = {
        "--account": environment.get("SLURM_JOB_ACCOUNT", ""),
        "--partition": order.partition or environment.get("SLURM_JOB_PARTITION", ""),
        "--qos": order.qos or environment.get("SLURM_JOB_QOS", ""),
        "--constraint": environment.get("SLURM_JOB_CONSTRAINTS", ""),
        "--cpus-per-task": environment.get("SLURM_CPUS_PER_TASK", ""),
        "--gpus-per-node": str(job.gpus or ""),
        "--exclude": ",".join(order.exclude),
    }
    comment = json.dumps({"unicron": {"companion_of": job.run_id}})
    # Slurm takes it from the queue once it could not end by then
    deadline = 60 * order.minutes + order.within
    return [
        "sbatch", "--parsable", "--no-requeue", "--no-kill", f"--nodes={order.nodes}",
        f"--job-name={name}+{job.run_id}", f"--comment={comment}", f"--nice={NICE}",
        f"--time={order.minutes}", f"--deadline=now+{deadline}",
        f"--output={job.output_folder}/companion-%j.log",
        *(f"{option}={value}" for option, value in told.items() if value),
        str(wrapper), *arguments,
    ]  # fmt: skip


def spawn(job: Job, job_id: int, node: str) -> subprocess.Popen[bytes]:
    """An agent that died in a companion, from the base. Raises SlurmUnavailable."""
    log = job.output_folder / f"agent-{node}.log"
    words = slurm.spawn_command(node, log, sys.orig_argv, job.facts.binds_cpus)
    environment = {**environment_of(job, os.environ), "UNICRON_SPAWNED": "1"}
    return slurm.start([words[0], f"--jobid={job_id}", *words[1:]], environment)


async def submit(job: Job, order: Order) -> Result:
    """Its job id is in the outcome. Raises SlurmUnavailable."""
    if job.is_companion:
        return orders.refused("this agent is in a companion itself")
    wrapper = Path(os.environ.get("UNICRON_HOME", "/opt/unicron"), "bin/unicron-run")
    if not wrapper.is_file():
        return orders.refused(f"{wrapper} is not there: the companion's batch script")
    environment = environment_of(job, os.environ)
    if len(environment[VARIABLE]) > LONGEST_VARIABLE:
        return orders.refused("the run has too many nodes to tell a companion of")
    words = command(job, os.environ, wrapper, sys.argv[2:], order)
    code, text = await slurm.submit(words, environment)
    found = re.match(r"(\d+)(;|$)", text.split("\n")[-1])
    if code or not found:
        return orders.failed(f"sbatch: {text[-300:]}")
    return orders.done(job_id=int(found[1]))
