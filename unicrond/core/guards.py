"""Budgets: what may be done without a person. Over budget a person is called."""

from __future__ import annotations

from collections.abc import Iterable

from unicrond.core.policy import Policy
from unicrond.core.state import State
from unicrond.model.decision import ActionKind
from unicrond.model.run import LossState, Run

OUR_REASON = "unicron: "
MANY = "many silent"  # the kind of an incident of which nothing but a silence is known


def restarts_left(run: Run, now: float, policy: Policy) -> bool:
    """Whether this run may restart once more within the hour."""
    return sum(t > now - 3600 for t in run.failures) < policy.restarts_per_hour


def drains_left(state: State, now: float) -> bool:
    """Whether one more node may be drained within the hour, over the whole cluster. Those under way
    count too."""
    under_way = sum(action.kind is ActionKind.DRAIN for action, _ in state.pending.values())
    done = sum(t > now - 3600 for t, _ in state.drains)
    return done + under_way < state.policy.drains_per_hour


def moves_left(state: State, run: Run, now: float) -> bool:
    """Whether one more run of this user may leave a node because the user's own agent says so."""
    mine = (other for other in state.runs.values() if other.uid == run.uid)
    done = sum(at > now - 3600 for other in mine for at in other.moves)
    return done < state.policy.user_moves_per_hour


def shunned_by_others(state: State, run: Run, node: str) -> bool:
    """Whether a run of another user moved off this node too: two witnesses who cannot collude."""
    return any(node in other.shunned and other.uid != run.uid for other in state.runs.values())


def lease_of(run: Run, policy: Policy) -> float:
    """Seconds after which a cut-off agent has stopped its ranks: as agents keep it, if longer."""
    return max(policy.lease_seconds, run.lease_seconds) + policy.lease_margin_seconds


def last_heard(run: Run, node: str) -> float:
    """Unix seconds, by us or by any of its peers: their word keeps its ranks going as ours does."""
    peers = (view.peers_heard.get(node, 0.0) for view in run.agents.values())
    return max(run.agents[node].last_heard, *peers)


def unreachable(state: State, run: Run, now: float) -> frozenset[str]:
    """Nodes whose agent takes no order now. After a start of ours, and of their own, they need a
    moment."""
    policy = state.policy
    if now < state.started_at + policy.startup_grace_seconds:
        return frozenset()
    oldest = now - policy.silence_seconds - state.lag_seconds
    views = run.agents.values()
    gone = (v.node for v in views if v.last_heard < oldest or (v.agent and not v.connected))
    return frozenset(gone)


def too_many_hidden(state: State, run: Run, hidden: Iterable[str]) -> bool:
    """Whether so many members take no order, or so many of other runs, that a decision without
    them would be about our own network. An agent that ended in front of our eyes is no such."""
    count = sum(not run.agents[node].closed_at for node in hidden)
    everywhere = any(i.kind == MANY and i.run_id is None for i in state.incidents.values())
    return count >= (1 if everywhere else state.policy.many_silent_minimum)


def drained_by_us(state: State, node: str) -> bool:
    """Whether Slurm keeps every job off this node on our word."""
    known = state.nodes.get(node)
    return known is not None and known.reason.startswith(OUR_REASON)


def drain_incident(state: State, node: str) -> int:
    """The incident for which we drained this node, as Slurm keeps it; 0 where we did not."""
    words = state.nodes[node].reason.split() if drained_by_us(state, node) else []
    number = next((word[9:] for word in words if word.startswith("incident=")), "")
    return int(number) if number.isdecimal() else 0


def avoided(state: State, run: Run) -> frozenset[str]:
    """Nodes that we drained or are about to: no generation starts there."""
    if state.drained_of is not state.nodes:  # looked for once in each look at Slurm
        state.drained_of = state.nodes
        state.drained = frozenset(name for name in state.nodes if drained_by_us(state, name))
    leaving = {
        loss.node
        for loss in run.losses
        if loss.state not in (LossState.SUSPECTED, LossState.RETURNED, LossState.UNCONFIRMED)
    }
    return state.drained | leaving
