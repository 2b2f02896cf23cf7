"""How many nodes a pending job asks for, in the words that each version of Slurm needs. Pure.

24.11, 26.05    NumNodes=k
22.05           ignores that, or never starts the job, unless NumTasks and NumCPUs fit
"""

from __future__ import annotations

import re

from unicrond.errors import Refused

NODES_SUFFICE = (24, 11)  # the oldest version of which it was measured
# NumNodes of a job that was shrunk before its requeue may be wrong, what it requests is not.
_NUMBERS = (r" NumCPUs=(\d+)", r" NumTasks=(\d+)", r" (?:Req)?TRES=\S*?\bnode=(\d+)")


def version_of(config: str) -> tuple[int, int]:
    """(22, 5) of `scontrol show config`; (0, 0) where it is not told."""
    found = re.search(r"^SLURM_VERSION\s*=\s*(\d+)\.(\d+)", config, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def words(record: str, nodes: int, version: tuple[int, int]) -> list[str]:
    """For `scontrol update` of the job that this record shows; as many tasks a node as before."""
    found = [re.findall(pattern, record) for pattern in _NUMBERS]
    if any(len(values) != 1 for values in found):  # its owner can write such words into its name
        raise Refused("the size of the job is unknown: NumCPUs, NumTasks, TRES do not stand once")
    cpus, tasks, before = (int(values[0]) for values in found)
    if nodes == before:
        return []
    if version >= NODES_SUFFICE:
        return [f"NumNodes={nodes}"]
    each_tasks, each_cpus = (max(number // max(before, 1), 1) for number in (tasks, cpus))
    return [
        f"NumTasks={each_tasks * nodes}",
        f"NumNodes={nodes}-{nodes}",
        f"NumCPUs={each_cpus * nodes}",
    ]
