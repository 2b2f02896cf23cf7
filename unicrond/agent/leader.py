"""What the run's leader does when unicrond gives no orders. Pure: a choice and its reason.

    no generation anywhere         all agents came, or start_timeout    -> StartFirst | Requeue
    every rank ended with 0                                             -> End 0
    a rank ended with 93                                                -> End 93
    broken, and no order for unattended_timeout (later for other hubs)
        an agent is gone, not asked for yet                             -> Spawn
        all nodes there, not tried yet since the last progress          -> Restart
        else                                                            -> Requeue
        requeued twice without progress                                 -> End with the rank's code

Whoever decides so has just been answered by slurmctld.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unicrond.model.run import Phase

DO_NOT_RESTART = 93
NEXT_HUB_SECONDS = 60.0  # by so much each hub waits longer than the one before it
UNSURE_SECONDS = 2.5  # agents speak each second: one that did not for so long may be gone
SPAWN_SECONDS = 20.0  # for an agent that was started again to be heard
REQUEUES_WITHOUT_PROGRESS = 2
FIRST_STARTS = 3


@dataclass(frozen=True, slots=True)
class Peer:
    """An agent of the run, ourselves included, as its last beat said."""

    age: float
    phase: Phase
    generation: int
    ranks: int  # that it would run
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class View:
    nodes: tuple[str, ...]  # of the job, in Slurm's order
    min_nodes: int
    max_nodes: int
    position: int  # among the hubs; 0 is the leader
    peers: Mapping[str, Peer]
    members: tuple[str, ...]  # nodes of the newest generation, () when there is none
    generation: int
    uptime: float  # seconds since this agent started
    quiet: float  # seconds since the generation broke, or an order was last carried out
    restarted: bool  # this fault was answered by a restart already
    spawned: frozenset[str]  # nodes asked for another agent
    spawn_age: float
    failed_starts: int  # of the first generation: a node could not be cleared
    requeues_without_progress: int


@dataclass(frozen=True, slots=True)
class Config:
    lease_seconds: float
    start_timeout_seconds: float
    unattended_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class StartFirst:
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Spawn:
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    reason: str
    exit_code: int = 1  # of the run, where it cannot be requeued


@dataclass(frozen=True, slots=True)
class End:
    exit_code: int
    reason: str


Choice = Wait | StartFirst | Restart | Spawn | Requeue | End


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a generation is broken; `missing` are nodes whose agent is not heard or knows nothing."""

    words: str = ""
    missing: tuple[str, ...] = field(default=())
    exit_code: int = 0
    unsure: bool = False  # about a node that is not heard any more and not missing yet


def decide(view: View, config: Config) -> Choice:
    if not view.members and view.generation:
        return Wait(f"asking who is in generation {view.generation}")
    if not view.members:
        return _first(view, config)
    if _finished(view) and view.position > 0:
        return Wait("the leader ends the run")
    if _finished(view):
        return End(0, f"all ranks of generation {view.generation} ended with 0")
    trouble = trouble_of(view, config.lease_seconds)
    if not trouble.words:
        return Wait("the generation is whole")
    if trouble.exit_code == DO_NOT_RESTART:
        return End(DO_NOT_RESTART, f"{trouble.words}: the program asks not to be restarted")
    patience = config.unattended_timeout_seconds + NEXT_HUB_SECONDS * view.position
    if view.quiet < patience:
        return Wait(f"{trouble.words}; {view.quiet:.0f} of {patience:.0f} s without an order")
    return _unattended(view, trouble)


def _first(view: View, config: Config) -> Choice:
    there = [n for n in view.nodes if n in view.peers and view.peers[n].age < config.lease_seconds]
    if view.position > 0:
        return Wait("the leader starts the first generation")
    if view.failed_starts >= FIRST_STARTS:
        return _requeue(view, Trouble(f"{view.failed_starts} starts failed"))
    if len(there) == len(view.nodes):
        return StartFirst(tuple(there[: view.max_nodes]), "all agents are here")
    words = f"{len(there)} of {len(view.nodes)} agents came"
    if view.uptime < config.start_timeout_seconds:
        return Wait(words)
    words += f" in {config.start_timeout_seconds:.0f} s"
    if len(there) >= view.min_nodes:
        return StartFirst(tuple(there[: view.max_nodes]), words)
    return _requeue(view, Trouble(f"{words}, {view.min_nodes} are needed"))


def _finished(view: View) -> bool:
    """A member node that is silent now has finished if its last word was so."""
    peers = (view.peers.get(node) for node in view.members)
    return all(
        peer and peer.generation == view.generation and peer.phase is Phase.DONE for peer in peers
    )


def trouble_of(view: View, lease_seconds: float) -> Trouble:
    missing, broken, exit_code, unsure = [], [], 0, False
    for node in view.members:
        peer = view.peers.get(node)
        unsure |= peer is not None and UNSURE_SECONDS < peer.age <= lease_seconds
        if peer is None or peer.age > lease_seconds:
            missing.append(node)
        elif peer.generation < view.generation or peer.phase in (Phase.IDLE, Phase.STOPPING):
            broken.append(f"{node} runs no rank of it")
        elif peer.phase is Phase.BROKEN:
            broken.append(f"{node} failed")
            exit_code = (
                DO_NOT_RESTART
                if DO_NOT_RESTART in (exit_code, peer.exit_code)
                else (exit_code or peer.exit_code)
            )
    if not missing and not broken:
        return Trouble()
    words = broken + [f"the agent on {node} is not heard" for node in missing]
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    text = f"generation {view.generation} is broken: {', '.join(words[:3])}{more}"
    return Trouble(text, tuple(missing), exit_code, unsure)


def _unattended(view: View, trouble: Trouble) -> Choice:
    if trouble.unsure:
        return Wait(f"{trouble.words}; another agent may be gone too")
    unasked = tuple(node for node in trouble.missing if node not in view.spawned)
    if unasked:
        return Spawn(unasked, f"{trouble.words}; starting it again")
    if trouble.missing and view.spawn_age < SPAWN_SECONDS:
        return Wait(f"{trouble.words}; started again {view.spawn_age:.0f} s ago")
    if not trouble.missing and not view.restarted:
        return Restart(view.members, f"{trouble.words}; nobody gives orders: restarting once")
    return _requeue(view, trouble)


def _requeue(view: View, trouble: Trouble) -> Choice:
    code = trouble.exit_code or 1
    if view.requeues_without_progress >= REQUEUES_WITHOUT_PROGRESS:
        count = view.requeues_without_progress
        return End(code, f"{trouble.words}; requeued {count} times without progress, giving up")
    return Requeue(f"{trouble.words}; requeueing the job", code)
