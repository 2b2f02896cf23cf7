"""From a generation that broke to the next: its ranks are held or stopped, then new ones start.

    hold ──┬──> start      who is held keeps its process; a node that cannot hold is stopped
    stop ──┘

What each step proves, and what follows where it fails, is in transition/steps.py.
"""

from __future__ import annotations

from dataclasses import replace

from transition.membership import Choice, Trouble, assign, keepable, kept_in
from transition.steps import STEPS, is_stopped
from unicrond.core import allocated
from unicrond.core.cycle import Cycle
from unicrond.core.guards import last_heard, lease_of, unreachable
from unicrond.model.decision import Action, ActionKind, Outcome, OutcomeState
from unicrond.model.run import Healing, HealStep, Run, RunState, Slot

ORDERS = frozenset(
    {
        ActionKind.STOP_RANKS,
        ActionKind.HOLD_RANKS,
        ActionKind.PREPARE_RANKS,
        ActionKind.START_RANKS,
        ActionKind.SPAWN_AGENT,
    }
)
LONGEST_HOLD_SECONDS = 300.0  # agents refuse to hold longer


# hold, stop
def begin(cycle: Cycle, run: Run, incident_id: int, trouble: Trouble, choice: Choice) -> None:
    """Orders every agent that is heard to hold its ranks, or to stop them; not those that join."""
    now, policy, hidden = cycle.now, cycle.state.policy, hidden_members(cycle, run, trouble)
    lease = lease_of(run, policy)
    holds = choice.step is HealStep.HOLD
    spawning = tuple(n for n in trouble.dead_agents if n in (*choice.nodes, *choice.later))
    wait = policy.regroup_timeout_seconds if holds else policy.stop_timeout_seconds
    wait = policy.spawn_timeout_seconds if spawning else wait
    healing = Healing(
        incident_id,
        choice.step,
        now,
        now + wait + (2 * lease if hidden else lease),
        nodes=choice.nodes,
        lost=(*trouble.lost, *_silent_strangers(cycle, run, trouble)),
        hidden=hidden,
        spawning=spawning,
        exclude=choice.shunned,
        holding=tuple(dict.fromkeys(slot.node for slot in choice.kept)),
        replaced=tuple(sorted(trouble.replaced)),
        joining=trouble.joining,
    )
    run = cycle.put(replace(run, healing=healing))
    for node, view in sorted(run.agents.items()):
        if view.connected and node not in (*trouble.dead_agents, *trouble.joining):
            _order_halt(cycle, run, healing, node)
    helper = next((n for n in choice.nodes if n not in spawning), "")
    for node in spawning:
        cycle.act(incident_id, run, ActionKind.PROBE, node)
        if helper:
            job = allocated.job_of(cycle.state, run, node)
            companion = job.job_id if job and job.job_id != run.run_id else 0
            spawn = ActionKind.SPAWN_AGENT
            cycle.act(incident_id, run, spawn, helper, target=node, companion=companion)


def hidden_members(cycle: Cycle, run: Run, trouble: Trouble) -> tuple[str, ...]:
    """Members that go on for all we know, and hear no order of ours."""
    members = run.assignment.nodes if run.assignment else ()
    known = {*trouble.lost, *trouble.dead_agents}
    silent = unreachable(cycle.state, run, cycle.now) - known
    return tuple(node for node in members if node in silent)


def _silent_strangers(cycle: Cycle, run: Run, trouble: Trouble) -> tuple[str, ...]:
    """No members any more: their leases prove what they cannot say."""
    members = run.assignment.nodes if run.assignment else ()
    known = {*members, *trouble.lost, *trouble.dead_agents, *trouble.joining}
    return tuple(sorted(unreachable(cycle.state, run, cycle.now) - known))


def why_apart(healing: Healing | None) -> str:
    """Why a heal that is decided anew keeps nobody any more."""
    return "they are being stopped" if healing and healing.step is HealStep.STOP else ""


def stop_all(cycle: Cycle, run: Run, healing: Healing) -> None:
    """Nobody is kept: every rank up to the present generation is stopped."""
    now, policy = cycle.now, cycle.state.policy
    lease = lease_of(run, policy)
    wait = policy.spawn_timeout_seconds if healing.spawning else policy.stop_timeout_seconds
    healing = replace(
        healing,
        step=HealStep.STOP,
        since=now,
        deadline=now + wait + (2 * lease if healing.hidden else lease),
        holding=(),
        held=(),
        joining=(),
        ports={},
        proved_at=0.0,
    )
    run = cycle.put(replace(run, state=RunState.HEALING, healing=healing))
    for node, view in sorted(run.agents.items()):
        if view.connected and node not in healing.spawning:
            order_stop(cycle, run, node)


def _order_halt(cycle: Cycle, run: Run, healing: Healing, node: str) -> None:
    if node not in healing.holding:
        order_stop(cycle, run, node)
        return
    longest = healing.deadline - cycle.now + cycle.state.policy.regroup_timeout_seconds
    cycle.act(
        healing.incident_id,
        run,
        ActionKind.HOLD_RANKS,
        node,
        generation=run.generation,
        seconds=min(longest, LONGEST_HOLD_SECONDS),
    )


def order_stop(cycle: Cycle, run: Run, node: str) -> None:
    """Orders one agent to stop every rank up to the present generation, and to prove it."""
    assert run.healing is not None
    cycle.act(run.healing.incident_id, run, ActionKind.STOP_RANKS, node, generation=run.generation)


def joined(cycle: Cycle, run: Run, healing: Healing, node: str, new: bool) -> None:
    """An agent came, or came back, while the ranks of all are being halted."""
    if healing.step is HealStep.HOLD and node in healing.holding and not new:
        if node not in healing.held and not _has_order(cycle, run, node):
            _order_halt(cycle, run, healing, node)
        return
    without = replace(
        healing,
        joining=tuple(n for n in healing.joining if n != node),
        spawning=tuple(n for n in healing.spawning if n != node),
        holding=tuple(n for n in healing.holding if n != node),
        held=tuple(n for n in healing.held if n != node),
    )
    run = cycle.put(replace(run, healing=without))
    order_stop(cycle, run, node)


def _has_order(cycle: Cycle, run: Run, node: str) -> bool:
    """Which is given again at once."""
    pending = (action for action, _ in cycle.state.pending.values())
    halts = (ActionKind.HOLD_RANKS, ActionKind.STOP_RANKS)
    return any((a.run_id, a.node) == (run.run_id, node) and a.kind in halts for a in pending)


def advance_halt(cycle: Cycle, run: Run, healing: Healing) -> str:
    """Starts the next generation once this one is over; why it came to nothing, past the limit."""
    unproved = STEPS[healing.step].unproved(run, healing)
    if not unproved and not healing.proved_at:
        healing = replace(healing, proved_at=cycle.now)
        run = cycle.put(replace(run, healing=healing))
    lost = [n for n in healing.lost if n in run.agents and not is_stopped(run.agents[n], run)]
    heard = [last_heard(run, node) for node in lost]
    if healing.hidden:  # their peers tell them that they stopped
        heard.append(healing.proved_at)
    lease_over = max(heard, default=0.0) + lease_of(run, cycle.state.policy)
    if not unproved and cycle.now >= lease_over and healing.nodes[0] in healing.ports:
        _begin_start(cycle, run, healing)
    elif cycle.now > healing.deadline:
        halted = "held nor gone" if healing.step is HealStep.HOLD else "gone"
        return f"ranks on {','.join(unproved)} were not proved {halted} in time"
    return ""


# start
def _begin_start(cycle: Cycle, run: Run, healing: Healing) -> None:
    now, policy = cycle.now, cycle.state.policy
    generation = run.generation + 1
    kept = _kept(run, healing)
    order = f"u:{healing.incident_id}.{generation}"
    assignment = assign(run, generation, order, healing.nodes, kept)
    master = healing.nodes[0]
    cycle.supersede(run, ORDERS, "the ranks wait, or are gone" if kept else "the ranks are gone")
    wait = policy.regroup_timeout_seconds if kept else policy.start_timeout_seconds
    run = cycle.put(
        replace(
            cycle.begin_generation(run, generation, assignment),
            failures=(*(t for t in run.failures if t > now - 3600), now),
            healing=replace(
                healing,
                step=HealStep.START,
                since=now,
                spawning=(),
                lost=(),
                hidden=(),
                replaced=(),
                joining=(),
                holding=tuple(dict.fromkeys(slot.node for slot in kept)),
                deadline=now + wait,
            ),
        )
    )
    for node in healing.nodes:
        cycle.act(
            healing.incident_id,
            run,
            ActionKind.START_RANKS,
            node,
            assignment=assignment,
            generation=generation,
            master_node=master,
            master_port=healing.ports[master],
        )


def _kept(run: Run, healing: Healing) -> tuple[Slot, ...]:
    """Of the nodes that hold their ranks, those that still wait."""
    if healing.step is not HealStep.HOLD:
        return ()
    trouble = Trouble("", replaced=frozenset(healing.replaced))
    return keepable(run, trouble, set(healing.held).intersection(healing.nodes))


def advance_start(cycle: Cycle, run: Run, healing: Healing) -> str:
    """Ends the heal once every rank runs; why it came to nothing, past the limit."""
    if not STEPS[HealStep.START].unproved(run, healing):
        cycle.supersede(run, ORDERS, "every agent reports its ranks running")
        cycle.put(replace(run, state=RunState.RUNNING, healing=None))
        kept = len(kept_in(run.assignment)) if run.assignment else 0
        cycle.resolve_older(
            run,
            f"ranks run again on {len(healing.nodes)} nodes as generation {run.generation}, "
            f"{cycle.now - noticed(cycle, healing):.1f} s after it was noticed"
            + (f"; {kept} of them in the processes that they had" if kept else ""),
        )
    elif cycle.now > healing.deadline:
        return f"generation {run.generation} did not start in time"
    return ""


def noticed(cycle: Cycle, healing: Healing) -> float:
    incident = cycle.state.incidents.get(healing.incident_id)
    return incident.first_signal_at if incident else healing.since


# outcomes
def on_halted(cycle: Cycle, run: Run, healing: Healing, action: Action, outcome: Outcome) -> None:
    """An agent stopped its ranks, or holds them, and found a port; or it cannot hold them."""
    done, node = outcome.state is OutcomeState.DONE, action.node
    if not done and action.kind is ActionKind.HOLD_RANKS and node in healing.holding:
        healing = replace(healing, holding=tuple(n for n in healing.holding if n != node))
        order_stop(cycle, cycle.put(replace(run, healing=healing)), node)
        return
    if not done:
        return
    view, port = run.agents.get(node), outcome.data.get("port")
    if action.kind is ActionKind.HOLD_RANKS and node in healing.holding:
        healing = replace(healing, held=tuple(dict.fromkeys((*healing.held, node))))
    elif action.kind is ActionKind.STOP_RANKS and view is not None:
        stopped = max(view.stopped_generation, int(str(action.args["generation"])))
        run.agents[node] = replace(view, stopped_generation=stopped)
    if isinstance(port, int):
        healing = replace(healing, ports={**healing.ports, node: port})
    cycle.put(replace(run, healing=healing))
