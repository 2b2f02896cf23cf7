"""Where the GPU-time went: each GPU's each millisecond to one cause, in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
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
class Diary:
    """Who was how, from when to when; `segments` are complete, in the order of their ends."""

    segments: list[Segment] = field(default_factory=list)
    lasting: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def note(self, now: Mapping[int, tuple[str, int]], at: int) -> None:
        """How everybody is from this moment on."""
        for who, (how, size, since) in list(self.lasting.items()):
            if now.get(who) != (how, size):
                del self.lasting[who]
                if since < at:
                    self.segments.append(Segment(who, how, size, since, at))
        for who, (how, size) in now.items():
            self.lasting.setdefault(who, (how, size, at))


@dataclass
class Ledger:
    """`spent` in GPU-milliseconds, `waf` in weighted FLOP; `lacked`: GPU-milliseconds that runs
    trained on less than the size they began with, from their arrival to their end."""

    records: bool = False
    waf: float = 0.0
    lacked: int = 0
    spent: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    rates: list[tuple[int, float]] = field(default_factory=list)
    runs: Diary = field(default_factory=Diary)
    nodes: Diary = field(default_factory=Diary)

    def advance(self, state: State, to: int) -> None:
        """Lets time pass in a state that does not change meanwhile."""
        lasted = to - state.now
        if lasted <= 0:
            return
        nodes, rate = dict.fromkeys(Cause, 0), 0.0
        for run in state.present():
            held = len(run.nodes)
            working = run.working if run.phase is Phase.TRAINING else 0
            self.lacked += max(0, run.home - working) * state.cluster.gpus * lasted
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
            self._record(state, rate)
        state.now = to

    def split(self, healthy_percent: float) -> None:
        """At the end: what trained at less than full speed."""
        trained = self.spent[Cause.USEFUL]
        self.spent[Cause.USEFUL] = round(trained * healthy_percent / 100)
        self.spent[Cause.SUB_HEALTHY] = trained - self.spent[Cause.USEFUL]

    def _record(self, state: State, rate: float) -> None:
        self.rates.append((state.now, rate))
        places = dict.fromkeys(state.free, ("idle", 1)) | dict.fromkeys(state.down, ("repair", 1))
        places |= dict.fromkeys(state.others, ("others", 1))
        runs = {}
        for run in state.present():
            runs[run.spec.run_id] = str(run.phase), len(run.nodes)
            places |= dict.fromkeys(run.nodes, (f"run {run.spec.run_id}", 1))
        self.runs.note(runs, state.now)
        self.nodes.note(places, state.now)

    def close(self, at: int) -> None:
        """The end: what lasts until then is complete."""
        self.runs.note({}, at)
        self.nodes.note({}, at)
