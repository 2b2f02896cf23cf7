"""How processes end: exit codes, signals, and who counts the dead. Pure."""

from __future__ import annotations

from detectors.rules import Rule
from detectors.verdict import HARMLESS, Blame, Kind, Tier, Verdict
from unicrond.model.incident import Severity

RULES: tuple[Rule, ...] = (
    Rule(
        "exit.killed", Kind.HOST_OOM, Severity.SEV2, Blame.SELF, Tier.SUMMARY,
        ("exitcode: -9", "oom-kill event", "out of memory: killed process"),
    ),
)
SIGNAL_BASE = 128
SIGNALS = {
    6: ("SIGABRT", Kind.EXITED, Blame.SELF),
    7: ("SIGBUS", Kind.SHM, Blame.SELF),
    9: ("SIGKILL", Kind.EXITED, Blame.UNKNOWN),
    11: ("SIGSEGV", Kind.EXITED, Blame.SELF),
    15: ("SIGTERM", Kind.EXITED, Blame.UNKNOWN),
}


def classify_exit(exit_code: int | None, signal: int | None, stderr: str) -> Verdict:
    """What a rank's end means; its last words, where they say something, weigh more."""
    from detectors.classification import classify

    if exit_code == 0 and not signal:
        return HARMLESS
    said = classify("stderr/traceback", stderr)
    if said.is_failure:
        return said
    number = signal or ((exit_code or 0) - SIGNAL_BASE if (exit_code or 0) > SIGNAL_BASE else 0)
    name, kind, blame = SIGNALS.get(number, (f"signal {number}", Kind.EXITED, Blame.SELF))
    words = f"killed by {name}" if number else f"exit code {exit_code}"
    return Verdict(kind, Severity.SEV2, blame, False, "exit.signal" if number else "exit.code", words)
