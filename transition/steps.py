"""The steps of a heal as data: what each proves, what comes next, and what takes over when its
deadline passes. Pure: each looks at what is known of the run, so it may be resumed at any point.

    hold ──> start ──> the run goes on      proved by the agents' own word, and by leases
      v        v
    stop ──> start ──> the run goes on
      v        v
    requeue ──> the run goes on, or a person is called
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unicrond.model.run import AgentView, Healing, HealStep, Phase, Run


@dataclass(frozen=True, slots=True)
class Step:
    """`unproved`: nodes for which what it proves does not hold yet."""

    proves: str
    unproved: Callable[[Run, Healing], list[str]]
    then: HealStep | None  # None: the heal is over
    otherwise: HealStep | None  # the next tier; None: a person is called


def unstopped(run: Run, healing: Healing) -> list[str]:
    """Agents that are heard or are being started again, and nodes of the next generation."""
    return [n for n in _at_hand(run, healing) if not is_stopped(run.agents.get(n), run)]


def unheld(run: Run, healing: Healing) -> list[str]:
    held = {n for n in healing.held if _connected(run.agents.get(n))}
    return [n for n in unstopped(run, healing) if n not in held]


def unstarted(run: Run, healing: Healing | None = None) -> list[str]:
    """Members that do not say yet that their ranks run, under the same order."""
    nodes = run.assignment.nodes if run.assignment else ()
    return [node for node in nodes if not _runs(run.agents.get(node), run)]


def nothing(run: Run, healing: Healing) -> list[str]:
    """What Slurm has to say proves it."""
    return []


def is_stopped(view: AgentView | None, run: Run) -> bool:
    """Whether the agent has proved ranks of the present generation gone."""
    return view is not None and view.connected and view.stopped_generation >= run.generation


def _at_hand(run: Run, healing: Healing) -> list[str]:
    connected = {node for node, view in run.agents.items() if view.connected}
    apart = {*healing.lost, *healing.hidden, *healing.joining}
    return sorted({*connected, *healing.nodes, *healing.spawning} - apart)


def _connected(view: AgentView | None) -> bool:
    return view is not None and view.connected


def _runs(view: AgentView | None, run: Run) -> bool:
    if view is None or run.assignment is None:
        return False
    same = (view.generation, view.order) == (run.generation, run.assignment.order)
    return same and view.phase in (Phase.RUNNING, Phase.DONE)


STEPS: Mapping[HealStep, Step] = {
    HealStep.HOLD: Step(
        "survivors wait to be kept; other ranks are gone, or their leases have run out",
        unheld,
        HealStep.START,
        HealStep.STOP,
    ),
    HealStep.STOP: Step(
        "all ranks are gone, or their leases have run out",
        unstopped,
        HealStep.START,
        HealStep.REQUEUE,
    ),
    HealStep.START: Step(
        "every agent says that its ranks of the new generation run",
        unstarted,
        None,
        HealStep.REQUEUE,
    ),
    HealStep.RELEASE: Step("lost nodes left the job", nothing, HealStep.REQUEUE, HealStep.REQUEUE),
    HealStep.REQUEUE: Step("Slurm started the job again", nothing, None, None),
    HealStep.END: Step("the job is over", nothing, None, None),
}
BEFORE_START = (HealStep.HOLD, HealStep.STOP, HealStep.RELEASE)


def next_tier(healing: Healing) -> HealStep | None:
    """What takes over when this step came to nothing. Where ranks were to be kept, none is next."""
    if healing.step is HealStep.START and healing.holding:
        return HealStep.STOP
    return STEPS[healing.step].otherwise
