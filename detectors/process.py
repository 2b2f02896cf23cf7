"""What a process prints of its own faults: Python, CUDA, memory. Pure."""

from __future__ import annotations

from detectors.rules import Rule, rx
from detectors.verdict import Blame, Kind, Tier
from unicrond.model.incident import Severity

RULES = (
    Rule(
        "python.name", Kind.USER_BUG, Severity.SEV2, Blame.SELF, Tier.PROCESS,
        ("error",),
        rx(r"^(syntax|indentation|name|type|attribute|key|index|value|zerodivision|assertion)error\b"
           .replace("^", r"(?m:^)")),
        recurs=True,
    ),
    Rule(
        "cuda.oom", Kind.GPU_OOM, Severity.SEV2, Blame.SELF, Tier.PROCESS,
        ("cuda out of memory", "outofmemoryerror: cuda"), recurs=True,
    ),
)
