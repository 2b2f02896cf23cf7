"""Where the GPU-time went: each GPU's each millisecond to one cause, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.model import Cause
from simulator.state import CAUSE, Phase, State


@dataclass(frozen=True, slots=True)
class Segment:
    """Something, a run or a node, was so for a time."""

    who: int
    how: str
    size: int
    start: int
    end: int


@dataclass
class Ledger:
    """`spent` in GPU-milliseconds, `waf` in weighted FLOP."""

    records: bool = False
    waf: float = 0.0
    spent: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    rates: list[tuple[int, float]] = field(default_factory=list)
    runs: list[Segment] = field(default_factory=list)
    nodes: list[Segment] = field(default_factory=list)

    def advance(self, state: State, to: int) -> None:
        """Lets time pass in a state that does not change meanwhile."""
        lasted = to - state.now
        if lasted <= 0:
            return
        nodes, rate = dict.fromkeys(Cause, 0), 0.0
        for run in state.present():
            held = len(run.nodes)
            if run.phase is Phase.TRAINING:
                nodes[Cause.USEFUL] += run.working
                nodes[Cause.IDLE] += held - run.working
                run.trained += lasted
                run.done += run.speed * lasted / 1000
                rate += run.spec.weight * run.speed
            elif held:
                nodes[CAUSE[run.phase]] += held
        nodes[Cause.IDLE] += len(state.free)
        nodes[Cause.REPAIR] += len(state.down)
        nodes[Cause.OTHERS] += len(state.others)
        for cause, count in nodes.items():
            self.spent[cause] += count * state.cluster.gpus * lasted
        self.waf += rate * lasted / 1000
        if self.records:
            self._record(state, to, rate)
        state.now = to

    def split(self, healthy_percent: float) -> None:
        """At the end: what trained at less than full speed."""
        trained = self.spent[Cause.USEFUL]
        self.spent[Cause.USEFUL] = round(trained * healthy_percent / 100)
        self.spent[Cause.SUB_HEALTHY] = trained - self.spent[Cause.USEFUL]

    def _record(self, state: State, to: int, rate: float) -> None:
        self.rates.append((state.now, rate))
        owner = dict.fromkeys(state.free, "idle") | dict.fromkeys(state.down, "repair")
        owner |= dict.fromkeys(state.others, "others")
        for run in state.present():
            self.runs.append(Segment(run.spec.run_id, run.phase, len(run.nodes), state.now, to))
            owner |= dict.fromkeys(run.nodes, f"run {run.spec.run_id}")
        self.nodes += [Segment(node, how, 1, state.now, to) for node, how in owner.items()]


def merged(segments: list[Segment]) -> list[Segment]:
    """Neighbours in time that are alike, as one."""
    done: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (s.who, s.start)):
        last = done[-1] if done else None
        same = last and (last.who, last.how, last.size, last.end) == (
            segment.who, segment.how, segment.size, segment.start,
        )  # fmt: skip
        if last and same:
            done[-1] = Segment(last.who, last.how, last.size, last.start, segment.end)
        else:
            done.append(segment)
    return done
