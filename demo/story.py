"""unicrond's journal as sentences of the demo: one line for what happened at one moment. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

_WORDS = {"signal": "noticed", "decision": "decided", "outcome": "outcome"}

Line = Mapping[str, Any]  # as the API tells it


@dataclass(frozen=True, slots=True)
class Sentence:
    at: float
    kind: str
    text: str


def sentences(lines: Sequence[Line], run: str) -> Iterator[Sentence]:
    """Actions of one moment become one sentence; an outcome is told when it says more than done."""
    seen = ""
    for (at, kind), group in groupby(lines, key=lambda line: (line["at"], line["kind"])):
        told = list(group)
        if kind == "plan":  # observed only, and long
            continue
        if kind == "action":
            yield Sentence(at, "acts", f"{run}: {_together([line['text'] for line in told])}")
            continue
        for line in told:
            if kind == "outcome" and line["text"].endswith(" done"):
                continue
            yield Sentence(at, _WORDS.get(kind, "unicrond"), f"{run}: {_news(line['text'], seen)}")
            yield from _weighed(at, line["decision"])
            seen = line["text"]


def _news(text: str, seen: str) -> str:
    """A decision begins with what was noticed, which was told just before."""
    return text.removeprefix(f"{seen}; ") if seen else text


def _weighed(at: float, decision: Line | None) -> Iterator[Sentence]:
    others = [a for a in (decision or {}).get("alternatives", ()) if not a["chosen"]]
    if others:
        words = "; ".join(f"{a['name']} ({a['price']})" for a in others)
        yield Sentence(at, "weighed", f"rather than {words}")


def _together(texts: Sequence[str]) -> str:
    """ "stop ranks on n1", "stop ranks on n2": "stop ranks on n1, n2"."""
    places: dict[str, list[str]] = {}
    for text in texts:
        what, on, where = text.rpartition(" on ")
        places.setdefault(what + on, []).append(where)
    return "; ".join(what + ", ".join(where) for what, where in places.items())
