"""What a lab looks like right now. Reads only."""

import re
from dataclasses import dataclass

from lab import network, processes, services
from lab.errors import LabError
from lab.layout import LabSpec

DAEMONS = ("mariadbd", "munged", "slurmdbd", "slurmctld")


@dataclass(frozen=True)
class NodeStatus:
    name: str
    powered: bool
    slurm_state: str | None
    """As Slurm says it, e.g. IDLE, or DOWN*+DRAIN; None while slurmctld does not answer."""
    link_up: bool
    management_cut: bool
    slow: bool
    slurmd: bool
    processes: int


@dataclass(frozen=True)
class LabStatus:
    name: str
    complete: bool
    """False for one whose making was interrupted."""
    daemons: dict[str, bool]
    nodes: list[NodeStatus]


def read_status(name: str, complete: bool, spec: LabSpec, head: int) -> LabStatus:
    inits = processes.node_inits(name)
    links = network.links(head, spec.node_names)
    states = slurm_states(head)
    running = {process.name for process in processes.living_in(head)}
    daemons = {daemon: daemon in running for daemon in DAEMONS}
    daemons["unicrond"] = services.unicrond_running(head)
    nodes = [_node(node, inits.get(node), links.get(node), states) for node in spec.node_names]
    return LabStatus(name, complete, daemons, nodes)


def _node(
    name: str, init: int | None, link: network.Link | None, states: dict[str, str]
) -> NodeStatus:
    inside = processes.living_in(init) if init is not None else []
    return NodeStatus(
        name=name,
        powered=init is not None,
        slurm_state=states.get(name),
        link_up=link is not None and link.up,
        management_cut=link is not None and link.management_cut,
        slow=link is not None and link.slow,
        slurmd=any(process.name == "slurmd" for process in inside),
        processes=sum(not _of_the_node(process) for process in inside),
    )


def _of_the_node(process: processes.Process) -> bool:
    """Its own daemons, not a job's."""
    return process.name in ("slurmd", "munged", "sleep") or "unicrond.sensor" in process.arguments


def slurm_states(head: int) -> dict[str, str]:
    """Empty while slurmctld does not answer: unknown, not 'no nodes'."""
    try:
        shown = services.run_in(head, "root", ["scontrol", "show", "node", "-o"])
    except LabError:
        return {}
    return dict(re.findall(r"NodeName=(\S+) .*?\bState=(\S+)", shown))
