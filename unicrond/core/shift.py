"""The machine's clock was set: times that deadlines and silences are counted from move along.

Else a step forward makes silent agents of all that were heard a moment ago, and ends leases early.
"""

from __future__ import annotations

from dataclasses import replace

from unicrond.core.state import State
from unicrond.model.run import AgentView, Healing, Joining, Loss, Run


def shift(state: State, seconds: float) -> None:
    """What was noted before the step is as old as it was."""
    state.started_at += seconds
    for key, (action, at) in state.pending.items():
        state.pending[key] = action, at + seconds
    state.returning = {
        node: replace(back, since=back.since + seconds, asked_at=back.asked_at + seconds)
        for node, back in state.returning.items()
    }
    for run in state.live_runs():
        state.runs[run.run_id] = _run(run, seconds)


def _run(run: Run, seconds: float) -> Run:
    return replace(
        run,
        agents={node: _view(view, seconds) for node, view in run.agents.items()},
        healing=_healing(run.healing, seconds) if run.healing else None,
        joining=_joining(run.joining, seconds) if run.joining else None,
        losses=tuple(_loss(loss, seconds) for loss in run.losses),
        generation_since=run.generation_since + seconds,
        iteration_since=run.iteration_since + seconds,
        no_growth_until=run.no_growth_until and run.no_growth_until + seconds,
        hands_off_until=run.hands_off_until and run.hands_off_until + seconds,
    )


def _view(view: AgentView, seconds: float) -> AgentView:
    return replace(
        view,
        last_heard=view.last_heard + seconds,
        closed_at=view.closed_at and view.closed_at + seconds,
        peers_heard={node: at + seconds for node, at in view.peers_heard.items()},
    )


def _healing(healing: Healing, seconds: float) -> Healing:
    return replace(
        healing,
        since=healing.since + seconds,
        deadline=healing.deadline + seconds,
        proved_at=healing.proved_at and healing.proved_at + seconds,
        expedited_at=healing.expedited_at and healing.expedited_at + seconds,
    )


def _joining(joining: Joining, seconds: float) -> Joining:
    return replace(joining, deadline=joining.deadline + seconds)


def _loss(loss: Loss, seconds: float) -> Loss:
    return replace(
        loss,
        since=loss.since + seconds,
        deadline=loss.deadline + seconds,
        probed_at=loss.probed_at + seconds,
    )
