"""Who this agent is and where: read from the environment that Slurm and the wrapper made. Pure but
for the choice of an id."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from unicrond.agent.companion import base_of
from unicrond.agent.facts import Facts
from unicrond.errors import BadInput


@dataclass(frozen=True, slots=True)
class Job:
    run_id: int
    node: str
    agent: str  # id of this agent process; never repeats
    nodes: tuple[str, ...]
    batch_host: str
    restarts: int  # Slurm's count of requeues
    secret: bytes
    gpus: int  # of this node, allocated to the job
    output_folder: Path
    output: Path | None  # the job's usual output file, when it is one
    spawned: bool  # started again by another agent, not by the job's own srun
    facts: Facts
    companion_id: int = 0  # of the Slurm job that it is in, where that is not the base
    base_nodes: tuple[str, ...] = ()  # the same

    @property
    def is_companion(self) -> bool:
        return self.companion_id != 0

    @property
    def in_slurm(self) -> tuple[int, int]:
        """The Slurm job that it is in, and which start of it."""
        return (self.companion_id, 0) if self.companion_id else (self.run_id, self.restarts)

    @property
    def first_generation(self) -> int:
        """docs/adr/0001: generations never fall, across requeues either."""
        return 1 + 1000 * self.restarts


def job_of(environment: Mapping[str, str], facts: Facts) -> Job:
    """Raises BadInput when this is not a task of a job."""
    run_id = environment.get("SLURM_JOB_ID", "")
    node = environment.get("SLURMD_NODENAME", "")
    if not run_id.isdigit() or not node:
        raise BadInput("SLURM_JOB_ID or SLURMD_NODENAME is not set: start me inside a Slurm job")
    nodes = facts.nodes or (node,)
    base = base_of(environment)
    if base is not None:
        facts = replace(facts, addresses={**base.addresses, **facts.addresses})
    output = environment.get("UNICRON_OUTPUT", "")
    folder = environment.get("UNICRON_OUTPUT_DIR", "") or f"unicron-{run_id}"
    return Job(
        run_id=base.run_id if base else int(run_id),
        node=node,
        agent=f"{node}-{os.getpid()}-{secrets.token_hex(4)}",
        nodes=(*base.nodes, *nodes) if base else nodes,
        batch_host=environment.get("UNICRON_BATCH_HOST", "") or nodes[0],
        restarts=base.restarts if base else _whole(environment.get("SLURM_RESTART_COUNT", "")),
        secret=secret_of(environment, len(nodes) + bool(base)),
        gpus=gpus_of(environment),
        output_folder=Path(folder).absolute(),
        output=Path(output) if output else None,
        spawned=environment.get("UNICRON_SPAWNED") == "1",
        facts=facts,
        companion_id=int(run_id) if base else 0,
        base_nodes=base.nodes if base else (),
    )


def gpus_of(environment: Mapping[str, str]) -> int:
    """GPUs of this node that the job got."""
    on_node = environment.get("SLURM_GPUS_ON_NODE", "")
    if on_node:
        return int(on_node) if on_node.isdigit() else sum(map(int, re.findall(r":(\d+)", on_node)))
    for variable in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        listed = [part for part in environment.get(variable, "").split(",") if part.strip()]
        if listed and listed != ["NoDevFiles"]:
            return len(listed)
    return 0


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def secret_of(environment: Mapping[str, str], nodes: int = 0) -> bytes:
    """Of the run, made by unicron-run; one node alone can do without. Raises BadInput."""
    text = environment.get("UNICRON_SECRET", "")
    if not text and nodes == 1:
        return secrets.token_bytes(32)
    try:
        secret = base64.b64decode(text, validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) < 32:
        raise BadInput("UNICRON_SECRET is missing or damaged: start agents with unicron-run")
    return secret
