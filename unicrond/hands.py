"""How an action on Slurm becomes an outcome: one call of the port, every refusal a value."""

from __future__ import annotations

from collections.abc import Callable

from unicrond.errors import Refused, Unavailable
from unicrond.model.decision import Action, ActionKind, Outcome, OutcomeState
from unicrond.ports import Clock, Slurm

ORDERS = frozenset(
    {
        ActionKind.STOP_RANKS,
        ActionKind.HOLD_RANKS,
        ActionKind.PREPARE_RANKS,
        ActionKind.START_RANKS,
        ActionKind.SPAWN_AGENT,
        ActionKind.SUBMIT_COMPANION,
        ActionKind.END_RUN,
    }
)


def on_slurm(action: Action, slurm: Slurm, clock: Clock) -> Outcome:
    """Carries a Slurm action out. Blocks as long as Slurm's command does, which has a time-out."""
    try:
        _CALLS[action.kind](slurm, action)
    except Refused as error:
        return Outcome(action.key, clock.now(), OutcomeState.REFUSED, str(error))
    except Unavailable as error:
        return Outcome(action.key, clock.now(), OutcomeState.FAILED, str(error))
    return Outcome(action.key, clock.now(), OutcomeState.DONE)


def _names(value: object) -> list[str]:
    assert isinstance(value, (list, tuple))
    return [str(name) for name in value]


def _job(action: Action) -> int:
    """The run's own, or the companion that is named."""
    return int(str(action.args.get("job_id", action.run_id)))


_CALLS: dict[ActionKind, Callable[[Slurm, Action], None]] = {
    ActionKind.DRAIN: lambda slurm, a: slurm.drain(a.node, str(a.args["reason"])),
    ActionKind.RESUME: lambda slurm, a: slurm.resume(a.node, str(a.args["reason"])),
    ActionKind.SHRINK: lambda slurm, a: slurm.shrink(_job(a), _names(a.args["keep"])),
    ActionKind.CANCEL: lambda slurm, a: slurm.cancel(_job(a), int(str(a.args["uid"]))),
    ActionKind.REQUEUE: lambda slurm, a: slurm.requeue(_job(a), int(str(a.args["restarts"]))),
    ActionKind.RESERVE: lambda slurm, a: slurm.reserve(
        _job(a), str(a.args["user"]), _names(a.args["nodes"])
    ),
    ActionKind.EXPEDITE: lambda slurm, a: slurm.expedite(
        _job(a), _names(a.args["exclude"]), int(str(a.args.get("nodes", 0)))
    ),
}
