"""A lost node on its way out: confirmed, drained, given back. The heal waits for none of it.

suspected ──(Slurm says down, or three probes failed)──> confirmed
suspected ──(taken from the job by a person, and well)──> released, not drained
confirmed ──(lease over, budget left)──> drain ──> shrink ──> released
suspected ──(heard again)──> returned;  ──(nobody confirms in time)──> unconfirmed, left alone
left, drained by us while it is well enough to be heard ──> shrink ──> released
"""

from __future__ import annotations

from dataclasses import replace

from unicrond.core import allocated, record
from unicrond.core.cycle import Cycle
from unicrond.core.guards import OUR_REASON, drain_incident, drains_left, lease_of
from unicrond.model.cluster import Allocation, JobState, NodeState
from unicrond.model.decision import Action, ActionKind, Outcome, OutcomeState
from unicrond.model.incident import Proof
from unicrond.model.run import Loss, LossState, Run, RunState

PROBE_EVERY_SECONDS = 3.0


def advance(cycle: Cycle, run: Run) -> None:
    """Takes each unsettled loss of this run one step further, where we may act."""
    if not cycle.state.acts_for(run):
        return
    run = _with_left(cycle, run)
    for loss in run.losses:
        if loss.state.settled or loss.waiting:
            continue
        run = cycle.state.runs[run.run_id]
        if loss.state is not LossState.DRAINED and is_back(run, loss.node):
            returned(cycle, run, loss.node)
        elif loss.state is LossState.SUSPECTED:
            _confirm(cycle, run, loss)
        elif loss.state is LossState.CONFIRMED:
            _drain(cycle, run, loss)
        elif loss.state is not LossState.LEFT or _goes_on_without(run, loss.node):
            _give_back(cycle, run, loss)


def on_outcome(cycle: Cycle, run: Run, action: Action, outcome: Outcome) -> None:
    """What the end of a probe, a drain or a shrink means for the loss it was for."""
    done = outcome.state is OutcomeState.DONE
    if action.kind is ActionKind.DRAIN and done:
        cycle.state.drains.append((cycle.now, action.node))
    loss = run.loss_of(action.node)
    if loss is None or loss.incident_id != outcome.key.incident_id or loss.state.settled:
        return
    loss = replace(loss, waiting=False)
    if action.kind is ActionKind.PROBE and loss.state is LossState.SUSPECTED:
        failed = done and outcome.data.get("passed") is False
        if failed and _witnessed(run, loss):
            _put(cycle, run, replace(loss, state=LossState.CONFIRMED), "its slurmd does not answer")
        elif done and not failed and _taken(cycle, run, loss.node):
            words = "it was taken from the job and is well: not drained"
            _put(cycle, run, replace(loss, state=LossState.RELEASED), words)
        else:
            _put(cycle, run, loss)
    elif not done and not cycle.state.acts_for(run):
        _put(cycle, run, loss)  # refused by the mode: later, perhaps
    elif action.kind is ActionKind.DRAIN:
        back = not done and is_back(run, loss.node)
        _put(cycle, run, replace(loss, state=LossState.RETURNED if back else LossState.DRAINED))
    elif action.kind in (ActionKind.SHRINK, ActionKind.CANCEL):
        _put(cycle, run, replace(loss, state=LossState.RELEASED if done else LossState.KEPT))


def returned(cycle: Cycle, run: Run, node: str) -> None:
    """A lost node is heard again. One that is being drained already is not taken back."""
    loss = run.loss_of(node)
    if loss and not loss.waiting and loss.state in (LossState.SUSPECTED, LossState.CONFIRMED):
        _put(cycle, run, replace(loss, state=LossState.RETURNED), "it is heard again: not drained")
        record.loss_returned(cycle, run, loss)


def _confirm(cycle: Cycle, run: Run, loss: Loss) -> None:
    node = cycle.state.nodes.get(loss.node)
    if node is not None and node.state is NodeState.DOWN:
        _put(cycle, run, replace(loss, state=LossState.CONFIRMED), "Slurm says it is down")
    elif cycle.now > loss.deadline:
        _put(
            cycle,
            run,
            replace(loss, state=LossState.UNCONFIRMED),
            "nobody confirmed its loss: not drained",
        )
    elif cycle.now >= loss.probed_at + PROBE_EVERY_SECONDS:
        _put(cycle, run, replace(loss, waiting=True, probed_at=cycle.now))
        cycle.act(loss.incident_id, run, ActionKind.PROBE, loss.node)


def is_back(run: Run, node: str) -> bool:
    """Whether a lost node was heard since."""
    view, loss = run.agents.get(node), run.loss_of(node)
    if view is None or loss is None or loss.state.settled or loss.state is LossState.LEFT:
        return False
    return view.connected and view.last_heard > loss.since


def _witnessed(run: Run, loss: Loss) -> bool:
    """A probe counts only beside a second witness: an agent of the run that misses the node too."""
    return any(
        view.connected and name != loss.node and view.peers_heard.get(loss.node, 0.0) < loss.since
        for name, view in run.agents.items()
    )


def _drain(cycle: Cycle, run: Run, loss: Loss) -> None:
    view = run.agents.get(loss.node)
    if view and cycle.now < view.last_heard + lease_of(run, cycle.state.policy):
        return
    if drain(cycle, run, loss.incident_id, loss.node, "lost connection"):
        _put(cycle, run, replace(loss, waiting=True))
    else:
        _put(cycle, run, replace(loss, state=LossState.KEPT), "over the budget of drains an hour")


def drain(cycle: Cycle, run: Run, incident_id: int, node: str, kind: str) -> bool:
    """Within the budget; beyond it a person is called."""
    if not drains_left(cycle.state, cycle.now):
        why = f"{node} is to be drained ({kind}), which would exceed the budget"
        cycle.act(incident_id, run, ActionKind.NOTIFY, reason=why)
        return False
    reason = f"{OUR_REASON}{kind} incident={incident_id}"
    cycle.act(incident_id, run, ActionKind.DRAIN, node, reason=reason)
    return True


def _give_back(cycle: Cycle, run: Run, loss: Loss) -> None:
    allocation = allocated.job_of(cycle.state, run, loss.node)
    if allocation is None:
        _put(cycle, run, replace(loss, state=LossState.RELEASED))
    elif allocation.job_id != run.run_id:
        _give_back_companion(cycle, run, loss, allocation)
    elif loss.node not in allocation.nodes:
        _put(cycle, run, replace(loss, state=LossState.RELEASED), "Slurm took it from the job")
    elif loss.node != allocation.batch_host and not _batch_host_lost(run, allocation):
        keep = [n for n in allocation.nodes if n not in _given_back(run)]
        _put(cycle, run, replace(loss, waiting=True))
        cycle.act(loss.incident_id, run, ActionKind.SHRINK, loss.node, keep=keep)
    elif cycle.now > loss.deadline:
        _put(
            cycle,
            run,
            replace(loss, state=LossState.KEPT),
            "the batch host cannot be given back; Slurm will take it",
        )


def _give_back_companion(cycle: Cycle, run: Run, loss: Loss, job: Allocation) -> None:
    """All of it, where it would be left without its batch host or without a node."""
    keep = [n for n in job.nodes if n not in _given_back(run)]
    _put(cycle, run, replace(loss, waiting=True))
    if job.batch_host in keep:
        number, shrink = loss.incident_id, ActionKind.SHRINK
        cycle.act(number, run, shrink, loss.node, keep=keep, job_id=job.job_id)
    else:
        number, cancel = loss.incident_id, ActionKind.CANCEL
        cycle.act(number, run, cancel, loss.node, job_id=job.job_id, uid=run.uid)


def _goes_on_without(run: Run, node: str) -> bool:
    """Its ranks there are proved gone."""
    if run.state is not RunState.RUNNING or run.healing is not None or run.assignment is None:
        return False
    return node not in run.assignment.nodes


def _with_left(cycle: Cycle, run: Run) -> Run:
    """Nodes that we drained, once a generation runs without them: their ranks are proved gone."""
    allocation = _allocation(cycle, run)
    if not run.shunned or allocation is None or run.assignment is None:
        return run
    if run.state is not RunState.RUNNING or run.healing is not None:
        return run
    kept = {*run.assignment.nodes, allocation.batch_host}
    deadline = cycle.now + cycle.state.policy.confirm_timeout_seconds
    left = tuple(
        Loss(node, incident_id, cycle.now, deadline, LossState.LEFT)
        for node in run.nodes
        if node in run.shunned and node not in kept and _is_unseen(run, node)
        if (incident_id := drain_incident(cycle.state, node))
    )
    return cycle.put(replace(run, losses=(*run.losses, *left)[-64:])) if left else run


def _is_unseen(run: Run, node: str) -> bool:
    loss = run.loss_of(node)
    return loss is None or loss.state in (LossState.RETURNED, LossState.UNCONFIRMED)


def _given_back(run: Run) -> set[str]:
    """Slurm refuses to keep what it has taken already, and that is seen a little later."""
    leaving = (LossState.DRAINED, LossState.LEFT, LossState.RELEASED)
    return {loss.node for loss in run.losses if loss.state in leaving}


def _batch_host_lost(run: Run, allocation: Allocation) -> bool:
    loss = run.loss_of(allocation.batch_host)
    return loss is not None and loss.state is not LossState.RETURNED


def _taken(cycle: Cycle, run: Run, node: str) -> bool:
    allocation = _allocation(cycle, run)
    if allocation is None or not allocation.nodes:
        return False
    return node not in allocated.held_nodes(cycle.state, run, allocation)


def _allocation(cycle: Cycle, run: Run) -> Allocation | None:
    """The running allocation, if the last good snapshot is newer than the loss."""
    allocation = cycle.state.allocations.get(run.run_id)
    return allocation if allocation and allocation.state is JobState.RUNNING else None


def _put(cycle: Cycle, run: Run, loss: Loss, why: str = "") -> None:
    run = cycle.state.runs[run.run_id]
    losses = tuple(
        loss if (old.node, old.since) == (loss.node, loss.since) else old for old in run.losses
    )
    cycle.put(replace(run, losses=losses))
    if loss.state is LossState.CONFIRMED:
        record.outcome(cycle, loss.incident_id, Proof.CONFIRMED, f"{loss.node} is confirmed lost")
    if why:
        cycle.note("note", f"{loss.node}: {why}", run, incident=loss.incident_id, node=loss.node)
