"""What Slurm says of this job, asked once: by the wrapper's check, which hands it on to the agents
through the environment, so that a thousand agents do not ask slurmctld the same thing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMMAND_TIMEOUT_SECONDS = 20.0
LONGEST_VARIABLE = 120_000  # Linux takes 128 KiB; the agents of a larger job ask for themselves
VARIABLE = "UNICRON_FACTS"
MOST_LEAVES = 100  # each takes a call of scontrol
_LEAF = re.compile(
    r"^(?:SwitchName=(\S+) Level=0 .*?|BlockName=(\S+) .*?)\bNodes=(\S+)", re.MULTILINE
)
_GRES = re.compile(r"NodeName=(\S+) .*?\bGres=(\S+)")


@dataclass(frozen=True, slots=True)
class Facts:
    """`nodes` in Slurm's order; `addresses` by node, where Slurm named one."""

    nodes: tuple[str, ...]
    addresses: Mapping[str, str]
    gpus: Mapping[str, int]  # that a node has, not what the job got; not handed on
    slurmd_timeout_seconds: int
    kill_wait_seconds: int
    slurm_uid: int  # of SlurmUser, 0 when unknown
    binds_cpus: bool = False  # srun would tie each task to few CPUs
    switches: Mapping[str, str] = field(default_factory=dict)  # by node, where Slurm knows them
    notes: tuple[str, ...] = ()  # what could not be read, and what was taken instead

    def address(self, node: str) -> str:
        return self.addresses.get(node, node)


def facts_of(environment: Mapping[str, str]) -> Facts:
    """From the wrapper if it left them, else from Slurm."""
    try:
        return _from_json(environment[VARIABLE])
    except (KeyError, ValueError, TypeError, AttributeError):
        return ask(environment)


def to_json(facts: Facts) -> str:
    return json.dumps(
        {
            "nodes": facts.nodes,
            "addresses": {n: a for n, a in facts.addresses.items() if n != a},
            "slurmd_timeout_seconds": facts.slurmd_timeout_seconds,
            "kill_wait_seconds": facts.kill_wait_seconds,
            "slurm_uid": facts.slurm_uid,
            "binds_cpus": facts.binds_cpus,
            "switches": [facts.switches.get(node, "") for node in facts.nodes],
        },
        separators=(",", ":"),
    )


def _from_json(text: str) -> Facts:
    body = json.loads(text)
    nodes = tuple(map(str, body["nodes"]))
    placed = zip(nodes, map(str, body["switches"]), strict=True)
    return Facts(
        nodes=nodes,
        addresses={str(k): str(v) for k, v in body["addresses"].items()},
        gpus={},
        slurmd_timeout_seconds=int(body["slurmd_timeout_seconds"]),
        kill_wait_seconds=int(body["kill_wait_seconds"]),
        slurm_uid=int(body["slurm_uid"]),
        binds_cpus=bool(body["binds_cpus"]),
        switches={node: switch for node, switch in placed if switch},
    )


def ask(environment: Mapping[str, str]) -> Facts:
    notes: list[str] = []
    nodelist = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST", "")
    names = _scontrol(["show", "hostnames", nodelist], notes).split()
    config = _scontrol(["show", "config"], notes)
    nodes = _scontrol(["show", "node", "-o", nodelist], notes)
    return Facts(
        nodes=tuple(names),
        addresses=dict(re.findall(r"NodeName=(\S+) .*?\bNodeAddr=(\S+)", nodes)),
        gpus={name: _gpus(gres) for name, gres in _GRES.findall(nodes)},
        slurmd_timeout_seconds=_number(config, r"SlurmdTimeout\s*=\s*", 300),
        kill_wait_seconds=_number(config, r"KillWait\s*=\s*", 30),
        slurm_uid=_number(config, r"SlurmUser\s*=\s*\S+\(", 0),
        binds_cpus=re.search(r"^TaskPlugin\s*=.*(affinity|cgroup)", config, re.MULTILINE)
        is not None,
        switches=_switches(names, notes) if len(names) > 2 else {},
        notes=tuple(notes),
    )


def _switches(nodes: Sequence[str], notes: list[str]) -> dict[str, str]:
    """Of each node the lowest switch, or the block; those of a network with very many are not
    looked at."""
    leaves = _LEAF.findall(_scontrol(["show", "topology"], notes))
    found: dict[str, str] = {}
    for switch, block, hosts in leaves if len(leaves) <= MOST_LEAVES else ():
        for node in _scontrol(["show", "hostnames", hosts], notes).split():
            found.setdefault(node, switch or block)
    return {node: found[node] for node in nodes if node in found}


def record_of(environment: Mapping[str, str]) -> str:
    """Slurm's record of this job, "" where it cannot be had."""
    return _scontrol(["show", "job", "-o", environment.get("SLURM_JOB_ID", "")], [])


def _number(config: str, before: str, default: int) -> int:
    found = re.search(rf"^{before}(\d+)", config, re.MULTILINE)
    return int(found.group(1)) if found else default


def _gpus(gres: str) -> int:
    return sum(int(n) for n in re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", gres))


def _scontrol(arguments: Sequence[str], notes: list[str]) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        notes.append(f"scontrol {' '.join(arguments[:2])}: {error}; going on with defaults")
        return ""
    return done.stdout
