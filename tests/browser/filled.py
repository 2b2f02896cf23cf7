"""A store as a cluster of any size leaves it: nodes, runs, others' jobs, incidents, a plan."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace

from db.knowledge import Knowledge, Planned
from db.store import open_store
from unicrond.api.heartbeat import HEARTBEAT_KEY, Heartbeat
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.model.decision import (
    Action,
    ActionKey,
    ActionKind,
    Alternative,
    Decision,
    Mode,
    Outcome,
    OutcomeState,
)
from unicrond.model.incident import Incident, IncidentState, Scope, Severity
from unicrond.model.pause import Pause, PauseScope
from unicrond.model.run import AgentView, Assignment, Phase, Run, RunState, Slot
from unicrond.ports import Changes, JournalEntry

GPUS = 8
HEARD_SECONDS = 900.0  # no loop is here: it counts as heard for so long
NAMES = ("llama", "mixture", "vision", "protein", "climate", "speech")
HOSTILE = "<img src=x onerror=alert(1)>"
USERS = ("alice", "bob", "carol", "dave")
LEAF = 32  # nodes of a switch


@dataclass(frozen=True)
class Size:
    nodes: int
    runs: int
    incidents: int


SMALL = Size(nodes=24, runs=4, incidents=8)
LARGE = Size(nodes=10_000, runs=1_000, incidents=60)


def fill(url: str, size: Size, now: float) -> None:
    nodes = [_node(number, size.nodes) for number in range(1, size.nodes + 1)]
    healthy = [node.name for node in nodes if node.state is NodeState.UP]
    runs, jobs = _runs(healthy[: len(healthy) * 7 // 10], size.runs, now)
    others = _others(healthy[len(healthy) * 7 // 10 :], now)
    incidents = [_incident(number, size, runs, now) for number in range(1, size.incidents + 1)]
    stories = [_story(incident) for incident in incidents]
    with closing(open_store(url)) as store:
        for at, told in _phases(runs, incidents, now):
            store.save(Changes(runs=told, at=at))
        heard = now + HEARD_SECONDS
        store.put_meta(
            HEARTBEAT_KEY, Heartbeat(heard, "0.1.0", Mode.ACTIVE, size.nodes // 2, heard)
        )
        store.save(
            Changes(
                runs=tuple(runs),
                incidents=tuple(incidents),
                decisions=tuple(decision for decision, _, _ in stories),
                intents=tuple(action for _, action, _ in stories),
                outcomes=tuple(_outcome(a, d.at) for d, a, _ in stories[::2]),
                journal=tuple(
                    sorted(
                        [line for _, _, lines in stories for line in lines]
                        + [line for run in runs for line in _life(run, now)],
                        key=lambda line: line.at,
                    )
                ),
                snapshot=Snapshot(
                    now, {n.name: n for n in nodes}, {j.job_id: j for j in [*jobs, *others]}
                ),
                mode=Mode.ACTIVE,
                pauses=(Pause(PauseScope.ACTION, "drain", now, "ada", "the probe is broken"),),
                at=now,
            )
        )
        store.learn(Knowledge(plans=(_plan(runs, now),)))


def _node(number: int, of: int) -> Node:
    name, partition = f"gpu{number:0{len(str(of))}}", f"pod{(number - 1) // (LEAF * 32) + 1}"
    state, raw, reason = NodeState.UP, "MIXED", ""
    if number % 41 == 7:
        state, raw, reason = NodeState.DRAINED, "IDLE+DRAIN", "unicron: lost GPU incident=3"
    elif number % 97 == 13:
        state, raw, reason = NodeState.DOWN, "DOWN*", "Not responding"
    leaf = f"s{(number - 1) // LEAF + 1}"
    return Node(name, state, raw, GPUS, (partition,), reason, switch=leaf)


def _runs(nodes: list[str], count: int, now: float) -> tuple[list[Run], list[Allocation]]:
    each = max(1, len(nodes) // count)
    runs, jobs = [], []
    for at in range(count):
        held = tuple(nodes[at * each : (at + 1) * each])
        runs.append(_run(4700 + at, held))
        jobs.append(_job(4700 + at, held, runs[-1].name, runs[-1].user, now))
    return runs, jobs


def _run(run_id: int, held: tuple[str, ...]) -> Run:
    state = RunState.HEALING if run_id % 37 == 1 else RunState.RUNNING
    generation = 1 + run_id % 5
    slots = tuple(
        Slot(rank, f"m-{rank}", held[rank // GPUS], rank % GPUS) for rank in range(len(held) * GPUS)
    )
    agents = {
        node: AgentView(node, f"a-{node}", True, 9.5, Phase.RUNNING, generation, iteration=1200)
        for node in held
    }
    return Run(
        run_id=run_id, name=HOSTILE if run_id == 4701 else NAMES[run_id % len(NAMES)],
        user=USERS[run_id % len(USERS)],
        uid=1000 + run_id % len(USERS), weight=1.0 + run_id % 3, min_nodes=max(1, len(held) // 2),
        max_nodes=len(held) * 2, ranks_per_node=GPUS, nodes=held, batch_host=held[0], restarts=0,
        state=state, generation=generation, assignment=Assignment(generation, "o-1", slots),
        agents=agents, iteration=1200 + 37 * run_id,
    )  # fmt: skip


def _job(job_id: int, nodes: tuple[str, ...], name: str, user: str, now: float) -> Allocation:
    return Allocation(
        job_id, name, user, 1001, "ml", "pod1", JobState.RUNNING, nodes, nodes[0],
        GPUS * len(nodes), now - 90_000, now - 86_400,
    )  # fmt: skip


def _others(nodes: list[str], now: float) -> list[Allocation]:
    """Half of what is left, in jobs of four nodes each."""
    held = [tuple(nodes[at : at + 4]) for at in range(0, len(nodes) // 2, 4)]
    return [_job(90_000 + at, part, "inference", "erin", now) for at, part in enumerate(held)]


def _incident(number: int, size: Size, runs: list[Run], now: float) -> Incident:
    run = runs[(number * 7) % len(runs)]
    opened = now - (size.incidents - number) * 1700 - 40
    live = number > size.incidents * 2 // 3
    state = (
        (IncidentState.PERSON if number % 4 == 0 else IncidentState.HEALING)
        if live
        else (IncidentState.RESOLVED)
    )
    lost = number % 2 == 0
    node = run.nodes[0]
    return Incident(
        number, opened, "lost connection" if lost else "process exited",
        Severity.SEV1 if lost else Severity.SEV2, Scope.NODE if lost else Scope.RANK, run.run_id,
        run.generation, node, None if lost else 3, state,
        f"{node} is silent" if lost else f"rank 3 on {node} ended with signal 11", 2,
        first_signal_at=opened - 0.4, decided_at=opened + 0.1,
        cause_text=f"[{node}] Caught signal 11 (Segmentation fault: address not mapped)",
        closed_at=0.0 if live else opened + 21, rule="silence.lost" if lost else "exit.signal",
    )  # fmt: skip


def _story(incident: Incident) -> tuple[Decision, Action, list[JournalEntry]]:
    number, run, node, at = (
        incident.incident_id, incident.run_id, incident.root_node, incident.opened_at,
    )  # fmt: skip
    generation = incident.generation
    choice = "go on with fewer nodes" if incident.root_rank is None else "restart the ranks"
    reason = f"{incident.summary}: {choice}, on those nodes that are left, at once"
    decision = Decision(
        at + 0.1, number, run, generation, choice, reason, incident.state != IncidentState.PERSON,
        (
            Alternative(choice, True, "about 25 s of the run, then 12 % of its FLOP/s"),
            Alternative("wait for the node", False, "about 5 h idle"),
            Alternative("requeue", False, "the whole run waits in the queue: 40 min on average"),
        ),
    )  # fmt: skip
    action = Action(ActionKey(number, generation, number), ActionKind.STOP_RANKS, run, node, {})
    words = [
        (at - 0.4, "signal", incident.summary),
        (at + 0.1, "decision", reason),
        (at + 0.2, "action", f"stop the ranks on {node}"),
        (at + 0.9, "outcome", f"stop the ranks on {node} done"),
    ]
    lines = [JournalEntry(t, kind, text, run, number, node, generation) for t, kind, text in words]
    return decision, action, lines


def _outcome(action: Action, at: float) -> Outcome:
    return Outcome(action.key, at + 0.8, OutcomeState.DONE)


def _life(run: Run, now: float) -> list[JournalEntry]:
    size = len(run.nodes)
    lines = []
    for generation in range(1, run.generation + 1):
        nodes = size if generation % 2 else max(1, size - 1)
        text = f"running on {nodes} nodes, {nodes * GPUS} ranks, generation {generation}"
        at = now - 80_000 + generation * 14_000 + run.run_id % 1000
        lines.append(JournalEntry(at, "note", text, run.run_id, None, "", generation))
    return lines


def _phases(
    runs: list[Run], incidents: list[Incident], now: float
) -> list[tuple[float, tuple[Run, ...]]]:
    """What runs did in the last day: they started, they trained, some were healed."""
    by_id = {run.run_id: run for run in runs}
    found = [
        (now - 86_400, tuple(replace(run, state=RunState.STARTING) for run in runs)),
        (now - 86_300, tuple(replace(run, state=RunState.RUNNING) for run in runs)),
    ]
    for one in incidents:
        run = by_id[one.run_id or 0]
        if one.closed_at and one.opened_at > now - 80_000:
            found.append((one.opened_at, (replace(run, state=RunState.HEALING),)))
            found.append((one.closed_at, (replace(run, state=RunState.RUNNING),)))
    return sorted(found, key=lambda phase: phase[0])


def _plan(runs: list[Run], now: float) -> Planned:
    ways = [
        {"name": "stay", "chosen": True, "obstacle": "", "waf": 4.1e16, "price": 0.0,
         "gain": 4.7e20, "payback_seconds": None, "sizes": {}},
        {"name": "redivide", "chosen": False, "obstacle": "", "waf": 4.2e16, "price": 9.7e17,
         "gain": 4.6e20, "payback_seconds": 84.0, "sizes": {}},
        {"name": "swap", "chosen": False, "obstacle": "no spare node", "waf": 0.0, "price": 0.0,
         "gain": 0.0, "payback_seconds": None, "sizes": {}},
    ]  # fmt: skip
    shares = [{"id": run.run_id, "waf": 1e14 * len(run.nodes) * run.weight} for run in runs]
    answer = {"choice": "stay", "reason": "moving does not pay back", "proof": "exact", "gap": 0.0,
              "waf": 4.1e16, "runs": shares, "alternatives": ways}  # fmt: skip
    parts = {"today": answer, "unlimited": answer, "assumed": [], "questions": {}, "foreseen": ""}
    return Planned(now - 40, "SEV1", json.dumps(parts))


def end_a_run(url: str) -> None:
    with closing(open_store(url)) as store:
        run = next(run for run in store.load().runs if run.state is RunState.RUNNING)
        store.save(Changes(runs=(replace(run, state=RunState.COMPLETED),)))
