"""Breaks things in a lab, and mends them. Every fault says exactly what it hit and when.

rank, process   kill-rank stop-rank kill-agent hang exception nan straggler mend-ranks
node            power-off power-on kill-slurmd start-slurmd
cable           cut-link restore-link cut-management restore-management slow-link
daemon          stop-slurmctld start-slurmctld kill-unicrond start-unicrond
hardware        xid ecc nvlink gpu-lost throttle ib-down ib-flap memory oom mend-hardware
disk            disk-full mend-disk
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lab import ailments, ground, mishaps, network, processes, services
from lab.errors import LabError
from lab.hardware import Hardware
from lab.layout import LabPaths, LabSpec, node_address
from lab.processes import Process


@dataclass(frozen=True)
class Target:
    """Which node, job, rank or GPU; a fault asks for what it needs. For slow-link: how slow."""

    node: str | None = None
    job: str | None = None
    rank: int | None = None
    keep_down: bool = False
    kilobit: int = 1000
    delay_milliseconds: int = 0
    gpu: int = 0
    code: int = 79  # of an Xid
    percent: float = 50.0  # that a straggler is slower
    folder: str | None = None  # that gets full


@dataclass(frozen=True)
class Hit:
    """A process as it was just before the fault; the process id is the host's."""

    pid: int
    node: str | None
    job: str | None
    rank: int | None
    command: str


@dataclass(frozen=True)
class Injection:
    """What was done, and the moment just before it was done."""

    kind: str
    node: str | None
    hits: tuple[Hit, ...]
    monotonic_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class Place:
    """The lab that faults act on."""

    paths: LabPaths
    spec: LabSpec
    head: int

    def node(self, target: Target) -> str:
        if target.node is None:
            raise LabError("which node? Give one, e.g. --node n2")
        if target.node not in self.spec.node_names:
            names = ", ".join(self.spec.node_names)
            raise LabError(f"node {target.node!r} is not in this lab, which has {names}")
        return target.node

    def init(self, target: Target) -> int:
        node = self.node(target)
        init = processes.node_inits(self.paths.name).get(node)
        if init is None:
            raise LabError(f"node {node} is without power: fault power-on first")
        return init


Strike = Callable[[], Sequence[Hit] | None]
"""A fault with its aim taken: looking for processes takes longer than many a thing that is timed
from the moment of the strike."""


def inject(kind: str, place: Place, target: Target) -> Injection:
    if kind not in FAULTS:
        raise LabError(f"no fault {kind!r}; there are: {', '.join(FAULTS)}")
    if target.node is not None:
        place.node(target)
    strike = FAULTS[kind](place, target)
    monotonic, wall = time.monotonic(), time.time()
    hits = strike()
    return Injection(kind, target.node, tuple(hits or ()), monotonic, wall)


def kill_rank(place: Place, target: Target) -> Strike:
    return partial(_signal, _ranks(place, target), signal.SIGKILL, "rank")


def stop_rank(place: Place, target: Target) -> Strike:
    return partial(_signal, _ranks(place, target), signal.SIGSTOP, "rank")


def kill_agent(place: Place, target: Target) -> Strike:
    if target.job is None and target.node is None:
        raise LabError("which agent? Give --node, --job or both")
    return partial(_signal, _found(place, target, _is_agent), signal.SIGKILL, "agent")


def _ranks(place: Place, target: Target) -> list[tuple[Process, Hit]]:
    if target.job is None and target.node is None:
        raise LabError("which rank? Give --job with --rank, or --node")
    return _found(place, target, _is_rank)


def _is_rank(process: Process, variables: dict[str, str]) -> bool:
    """The leader of its process group, and outermost: a rank's workers inherit its RANK."""
    outermost = "RANK" not in processes.environment(process.parent)
    return "RANK" in variables and outermost and processes.leads_its_group(process)


def _is_agent(process: Process, variables: dict[str, str]) -> bool:
    """Not the guardian, which the agent forks. srun and step daemons speak of it too."""
    if "RANK" in variables or process.name == "srun" or not _speaks_of_agent(process):
        return False
    parent = processes.read_process(process.parent)
    return parent is None or not _speaks_of_agent(parent)


def _speaks_of_agent(process: Process) -> bool:
    names = [word.rsplit("/", 1)[-1] for word in process.arguments[:3]]
    return "agent.pyz" in names or "unicron-agent" in names


def _found(
    place: Place, target: Target, wanted: Callable[[Process, dict[str, str]], bool]
) -> list[tuple[Process, Hit]]:
    inits = processes.node_inits(place.paths.name)
    return [
        (process, hit)
        for node, init in sorted(inits.items())
        if target.node in (None, node)
        for process in processes.living_in(init)
        if wanted(process, variables := processes.environment(process.pid))
        for hit in [_hit(process, node, variables)]
        if target.job in (None, hit.job) and target.rank in (None, hit.rank)
    ]


def _hit(process: Process, node: str | None, variables: dict[str, str]) -> Hit:
    rank = variables.get("RANK", "")
    command = " ".join(process.arguments)[:200]
    job = variables.get("SLURM_JOB_ID")
    return Hit(process.pid, node, job, int(rank) if rank.isdigit() else None, command)


def _signal(found: list[tuple[Process, Hit]], number: signal.Signals, what: str) -> list[Hit]:
    hits = [hit for process, hit in found if processes.send_signal(process, number)]
    if not hits:
        raise LabError(f"no such {what} runs: `lab status` counts the processes of each node")
    return hits


def _one_rank(place: Place, target: Target) -> tuple[int, Process, Hit]:
    """With the init of its node; the first of those that the target fits."""
    found = _ranks(place, target)
    if not found:
        raise LabError("no such rank runs: `lab status` counts the processes of each node")
    process, hit = found[0]
    return processes.node_inits(place.paths.name)[str(hit.node)], process, hit


def _order(word: str) -> Callable[[Place, Target], Strike]:
    def aim(place: Place, target: Target) -> Strike:
        init, rank, hit = _one_rank(place, target)

        def strike() -> list[Hit]:
            mishaps.order(init, rank, word)
            return [hit]

        return strike

    return aim


def straggler(place: Place, target: Target) -> Strike:
    if not 1 <= target.percent <= 1000:
        raise LabError(f"--percent {target.percent:g}: a rank gets 1 to 1000 per cent slower")
    init, rank, hit = _one_rank(place, target)

    def strike() -> list[Hit]:
        mishaps.slow(init, rank, target.percent)
        return [hit]

    return strike


def mend_ranks(place: Place, target: Target) -> Strike:
    init = place.init(target)
    return lambda: [_hit(process, target.node, {}) for process in mishaps.mend_ranks(init)]


def disk_full(place: Place, target: Target) -> Strike:
    return partial(mishaps.fill, place.init(target), _folder(target))


def mend_disk(place: Place, target: Target) -> Strike:
    return partial(mishaps.empty, place.init(target), _folder(target))


def _folder(target: Target) -> str:
    if target.folder is None or not target.folder.startswith("/"):
        raise LabError("which folder? Give its whole path, e.g. --folder /home/alice/checkpoints")
    return target.folder


def cut_link(place: Place, target: Target) -> Strike:
    place.init(target)
    return partial(network.cut, place.head, place.node(target))


def restore_link(place: Place, target: Target) -> Strike:
    """The cable as new: plugged in and at full speed."""
    node, init = place.node(target), place.init(target)

    def strike() -> None:
        network.speed_up(place.head, node, init)
        network.restore(place.head, node)

    return strike


def cut_management(place: Place, target: Target) -> Strike:
    place.init(target)
    return partial(network.cut_management, place.head, place.node(target))


def restore_management(place: Place, target: Target) -> Strike:
    return partial(network.restore_management, place.head, place.node(target))


def slow_link(place: Place, target: Target) -> Strike:
    node, init = place.node(target), place.init(target)
    rate, delay = target.kilobit, target.delay_milliseconds
    return partial(network.slow_down, place.head, node, init, rate, delay)


def power_off(place: Place, target: Target) -> Strike:
    """The cable first: a machine without power says no goodbye on its connections."""
    node, init = place.node(target), place.init(target)
    lost = [_hit(p, node, processes.environment(p.pid)) for p in processes.living_in(init)]
    first = processes.read_process(init)

    def strike() -> list[Hit]:
        network.cut(place.head, node)
        if first is not None:
            processes.kill_and_wait(first)
        network.unplug(place.head, node)
        return lost

    return strike


def power_on(place: Place, target: Target) -> Strike:
    node = place.node(target)
    if node in processes.node_inits(place.paths.name):
        raise LabError(f"node {node} has power already")

    def strike() -> None:
        init = boot(place, node)
        services.start_slurmd(node, init)
        if place.spec.unicrond:
            services.start_sensor(node, init)

    return strike


def boot(place: Place, node: str) -> int:
    """A node with its cable and its munged, before any other service."""
    init = ground.start_node(place.paths, place.head, node)
    network.plug_in(place.head, node, init)
    services.start_munge_of(init, node_address(node))
    Hardware(init).make(place.spec.gpus_per_node)
    return init


def kill_slurmd(place: Place, target: Target) -> Strike:
    node, init = place.node(target), place.init(target)
    return lambda: [_hit(process, node, {}) for process in services.kill_slurmd(node, init)]


def start_slurmd(place: Place, target: Target) -> Strike:
    return partial(services.start_slurmd, place.node(target), place.init(target))


def stop_slurmctld(place: Place, target: Target) -> Strike:
    return lambda: [_hit(services.stop_slurmctld(place.head), None, {})]


def start_slurmctld(place: Place, target: Target) -> Strike:
    return partial(services.start_slurmctld, place.head)


def kill_unicrond(place: Place, target: Target) -> Strike:
    loop, daemon = services.unicrond_processes(place.head)

    def strike() -> list[Hit]:
        killed = services.kill_unicrond(loop, daemon, keep_down=target.keep_down)
        return [_hit(process, None, {}) for process in killed]

    return strike


def start_unicrond(place: Place, target: Target) -> Strike:
    return partial(services.start_unicrond, place.head)


def xid(place: Place, target: Target) -> Strike:
    node = Hardware(place.init(target))
    return partial(ailments.xid, node, _gpu(place, target), target.code)


def memory(place: Place, target: Target) -> Strike:
    return Hardware(place.init(target)).memory_error


def mend_hardware(place: Place, target: Target) -> Strike:
    return partial(Hardware(place.init(target)).make, place.spec.gpus_per_node)


def oom(place: Place, target: Target) -> Strike:
    node = Hardware(place.init(target))
    _, process, hit = _one_rank(place, target)

    def strike() -> list[Hit]:
        ailments.oom(node, process)
        return [hit]

    return strike


def _gpu_fault(fault: Callable[[Hardware, int], None]) -> Callable[[Place, Target], Strike]:
    return lambda place, target: partial(fault, Hardware(place.init(target)), _gpu(place, target))


def _port_fault(fault: Callable[[Hardware], None]) -> Callable[[Place, Target], Strike]:
    return lambda place, target: partial(fault, Hardware(place.init(target)))


def _gpu(place: Place, target: Target) -> int:
    if not 0 <= target.gpu < place.spec.gpus_per_node:
        raise LabError(f"--gpu {target.gpu}: a node has GPUs 0 to {place.spec.gpus_per_node - 1}")
    return target.gpu


FAULTS: dict[str, Callable[[Place, Target], Strike]] = {
    "kill-rank": kill_rank,
    "stop-rank": stop_rank,
    "kill-agent": kill_agent,
    **{word: _order(word) for word in ("hang", "exception", "nan")},
    "straggler": straggler,
    "mend-ranks": mend_ranks,
    "cut-link": cut_link,
    "restore-link": restore_link,
    "cut-management": cut_management,
    "restore-management": restore_management,
    "slow-link": slow_link,
    "power-off": power_off,
    "power-on": power_on,
    "kill-slurmd": kill_slurmd,
    "start-slurmd": start_slurmd,
    "stop-slurmctld": stop_slurmctld,
    "start-slurmctld": start_slurmctld,
    "kill-unicrond": kill_unicrond,
    "start-unicrond": start_unicrond,
    "xid": xid,
    **{kind: _gpu_fault(fault) for kind, fault in ailments.GPU_FAULTS.items()},
    **{kind: _port_fault(fault) for kind, fault in ailments.PORT_FAULTS.items()},
    "memory": memory,
    "oom": oom,
    "mend-hardware": mend_hardware,
    "disk-full": disk_full,
    "mend-disk": mend_disk,
}
