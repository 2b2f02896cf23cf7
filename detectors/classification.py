"""One text, one verdict: the root line wins over what followed from it. Pure.

    text -> literal prefilter -> harmless lines out -> every family -> the highest tier, then
    the earliest position -> Verdict

May touch: the families of this package.
"""

from __future__ import annotations

from detectors import exits, process
from detectors.rules import Finding, Text, apply, line_at, rx
from detectors.verdict import HARMLESS, Blame, Kind, Tier, Verdict
from unicrond.model.incident import Severity

RULES = exits.RULES + process.RULES
ERROR_WORDS = ("error", "fail", "exception", "traceback", "fatal", "abort", "killed", "panic")
HINT = rx(r"traceback|exception|error|fatal|panic|abort|failed|failure")


def classify(source_kind: str, text: str) -> Verdict:
    lower = text.lower()
    seen = Text(source_kind, text, lower, lower)
    findings = list(apply(RULES, seen))
    if findings:
        return best(findings).verdict
    hint = HINT.search(lower)
    if hint is None:
        return HARMLESS
    return Verdict(
        Kind.SOFTWARE, Severity.SEV2, Blame.UNKNOWN, False, "unknown.error",
        line_at(text, hint.start()),
    )


def best(findings: list[Finding]) -> Finding:
    return min(findings, key=lambda finding: (-finding.tier, finding.position))


__all__ = ["Tier", "best", "classify"]
