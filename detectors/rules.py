"""A rule says what some words mean; families are tables of rules. Pure.

May touch: this package's nouns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from detectors.verdict import Blame, Kind, Tier, Verdict
from unicrond.model.incident import Severity

EVIDENCE_LENGTH = 240


@dataclass(frozen=True, slots=True)
class Text:
    """What is left to judge once harmless lines are out, beside what was there at first."""

    source_kind: str
    kept: str
    lower: str
    whole: str  # lower case, harmless lines included: company in which words mean something else


@dataclass(frozen=True, slots=True)
class Finding:
    tier: Tier
    position: int  # of the evidence in the text: what came first is nearer to the root
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """Holds where one of `says` (lower case) stands in the text and `pattern`, if any, is found.

    `says` alone decides for nearly every rule on nearly every text, at the price of `in`.
    """

    name: str
    kind: Kind
    severity: Severity
    blame: Blame
    tier: Tier
    says: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None  # searched in the whole text
    recurs: bool = False

    def find(self, text: Text) -> Finding | None:
        position = self._position(text)
        if position < 0 or (self.unless is not None and self.unless.search(text.whole)):
            return None
        evidence = line_at(text.kept, position)
        verdict = Verdict(
            self.kind, self.severity, self.blame, self.recurs, self.name, evidence
        )
        return Finding(self.tier, position, verdict)

    def _position(self, text: Text) -> int:
        found = [at for at in map(text.lower.find, self.says) if at >= 0]
        if not found:
            return -1
        if self.pattern is None:
            return min(found)
        match = self.pattern.search(text.lower)
        return match.start() if match else -1


def rx(pattern: str) -> re.Pattern[str]:
    """Patterns are matched against lower-cased text; `.` stays within a line."""
    return re.compile(pattern)


def line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)].strip()
    if len(line) <= EVIDENCE_LENGTH:
        return line
    offset = max(0, min(position - start - 40, len(line) - EVIDENCE_LENGTH))
    return line[offset : offset + EVIDENCE_LENGTH]


def apply(rules: tuple[Rule, ...], text: Text) -> Iterator[Finding]:
    for rule in rules:
        finding = rule.find(text)
        if finding is not None:
            yield finding
