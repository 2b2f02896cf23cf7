"""What living ranks print that tells of a failure. It moves nothing: it is kept for a while, and
explains why its rank ends without a word, or why all stand still."""

from __future__ import annotations

from dataclasses import dataclass, replace

from detectors.verdict import Blame, Kind
from unicrond.core.cycle import Cycle
from unicrond.core.state import State
from unicrond.model.incident import Severity, Signal
from unicrond.model.run import Run

EXPLAINS_SECONDS = 60.0  # an end that comes so soon after
MOST_RANKS = 256  # of one run that are remembered
MOST_CHARACTERS = 500
MOST_TOLD = 8  # of them, in the story of one generation
TELLING = frozenset(map(str, Severity)) - {str(Severity.NONE)}
_KINDS = frozenset(map(str, Kind))


@dataclass(frozen=True, slots=True)
class Words:
    at: float
    rank: int
    node: str
    kind: str
    text: str
    own: bool  # it blames itself

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} printed {self.text[:200]!r}"


def on_printed(cycle: Cycle, run: Run, signal: Signal) -> None:
    words = words_of(signal)
    if words is None:
        return
    seen = cycle.state.printed.setdefault(run.run_id, {})
    known = words_of(seen[words.rank]) if words.rank in seen else None
    if known is None and len(seen) >= MOST_RANKS:
        return
    if known is None and len(seen) < MOST_TOLD:
        cycle.note("signal", f"{words} ({words.kind})", run, node=words.node)
    if known is None or words.own or not known.own:
        told = {name: signal.data.get(name) for name in ("kind", "severity", "blame")}
        # a user's agent may tell any amount
        seen[words.rank] = replace(signal, text=words.text, data=told)


def words_of(signal: Signal) -> Words | None:
    """None when they make no sense."""
    kind, severity = str(signal.data.get("kind")), str(signal.data.get("severity"))
    if signal.rank is None or kind not in _KINDS or severity not in TELLING:
        return None
    own = signal.data.get("blame") == str(Blame.SELF)
    return Words(signal.at, signal.rank, signal.node, kind, signal.text[:MOST_CHARACTERS], own)


def before_end(state: State, run: Run, signal: Signal) -> Words | None:
    """What a rank printed shortly before it ended."""
    said = state.printed.get(run.run_id, {}).get(-1 if signal.rank is None else signal.rank)
    near = said is not None and abs(signal.at - said.at) <= EXPLAINS_SECONDS
    return words_of(said) if said and near else None


def before_silence(state: State, run: Run, since: float) -> list[Words]:
    """What ranks printed from a little before they stood still, whoever blames itself first."""
    said = state.printed.get(run.run_id, {}).values()
    near = (words_of(signal) for signal in said if signal.at >= since - EXPLAINS_SECONDS)
    return sorted(filter(None, near), key=lambda words: (not words.own, words.at))
