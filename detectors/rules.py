"""A rule says what some words mean; families are tables of rules. Pure.

May touch: this package's nouns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from detectors.verdict import Blame, Kind, Tier, Verdict
from unicrond.model.incident import Severity

EVIDENCE_LENGTH = 240
SEV1, SEV2, SEV3, NONE = Severity.SEV1, Severity.SEV2, Severity.SEV3, Severity.NONE
SELF, PEER, UNKNOWN = Blame.SELF, Blame.PEER, Blame.UNKNOWN


@dataclass(frozen=True, slots=True)
class Text:
    """What is left to judge once harmless lines are out, beside what was there at first."""

    source_kind: str
    kept: str
    lower: str
    whole: str  # lower case, harmless lines included: the company that words are in


@dataclass(frozen=True, slots=True)
class Finding:
    tier: Tier
    position: int  # of the evidence in the text: what came first is nearer to the root
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """Holds where one of `says` (lower case) stands in the text and `pattern`, if any, is found.

    `says` alone settles nearly every rule on nearly every text, at the price of `in`.
    Patterns see lower-cased text, one or many lines.
    """

    name: str
    kind: Kind
    severity: Severity
    says: tuple[str, ...]
    pattern: str = ""
    blame: Blame = SELF
    tier: Tier = Tier.PROCESS
    unless: str = ""  # searched in the whole text
    recurs: bool = False

    def find(self, text: Text) -> Finding | None:
        position = self._position(text.lower)
        if position < 0 or (self.unless and re.search(self.unless, text.whole)):
            return None
        return finding(
            text, position, self.tier, self.name, self.kind, self.severity, self.blame, self.recurs
        )

    def _position(self, lower: str) -> int:
        found = [at for at in map(lower.find, self.says) if at >= 0]
        if not found or not self.pattern:
            return min(found, default=-1)
        match = re.search(self.pattern, lower)
        return match.start() if match else -1


def finding(
    text: Text,
    position: int,
    tier: Tier,
    name: str,
    kind: Kind,
    severity: Severity,
    blame: Blame = SELF,
    recurs: bool = False,
) -> Finding:
    evidence = line_at(text.kept, position)
    return Finding(tier, position, Verdict(kind, severity, blame, recurs, name, evidence))


def blamed(found: Finding, blame: Blame) -> Finding:
    return replace(found, verdict=replace(found.verdict, blame=blame))


def line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    offset = max(0, min(position - start - 40, len(line) - EVIDENCE_LENGTH))
    return line[offset : offset + EVIDENCE_LENGTH].strip()


def apply(rules: tuple[Rule, ...], text: Text) -> Iterator[Finding]:
    for rule in rules:
        found = rule.find(text)
        if found is not None:
            yield found
