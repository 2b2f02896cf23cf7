"""What a person has to mend where a restart without a change is lost time. Pure.

May touch: this package's nouns.
"""

from __future__ import annotations

from collections.abc import Mapping

from detectors.verdict import Kind, Verdict

REMEDIES: Mapping[Kind, str] = {
    Kind.USER_BUG: "mend the program",
    Kind.CONFIGURATION: "correct the program's configuration, arguments or paths",
    Kind.GPU_OOM: "make the batch, the sequence or the model per GPU smaller",
    Kind.HOST_OOM: "use less host memory, or ask Slurm for more",
    Kind.STORAGE: "make room on the file system, or write elsewhere",
    Kind.CHECKPOINT: "remove the damaged checkpoint, so that an older one is loaded",
}
ANYTHING_ELSE = "change what it says"


def remedy(verdict: Verdict) -> str:
    """Empty where a restart may help."""
    if not verdict.recurs:
        return ""
    words = REMEDIES.get(verdict.kind, ANYTHING_ELSE)
    return f"{words} ({verdict.evidence})" if verdict.evidence else words
