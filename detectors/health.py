"""Node health checks (NHC and its kin): a check's name says what is wrong with the node. Pure.

A check that quotes the driver or the kernel leaves the judgement to what it quotes.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import SEV1, Finding, Text, finding
from detectors.verdict import Kind, Tier

CHECK = re.compile(r"health ?check failed:? +(?:check )?(\S[^\n]*)|\bcheck_(\w+: +[^\n]*)")
QUOTED = re.compile(r"xid|fallen off the bus|mismatch")
# The first that matches the check's name or words.
TABLE = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"flap", Kind.FLAPPING),
        (r"no ib port|not active", Kind.PORT_DOWN),
        (r"xgmi", Kind.NVLINK),
        (r"\bbus bw|stream test|bandwidth|_bw\b|latency|loopback|allreduce|gb/s", Kind.STRAGGLER),
        (r"nvlink", Kind.NVLINK),
        (r"nvswitch|fabric", Kind.NVSWITCH),
        (r"remap", Kind.ROW_REMAP),
        (r"ecc|double.bit", Kind.ECC),
        (r"throttl|thermal|temperature|slowdown", Kind.THROTTLE),
        (r"gpu_?count|found \d+ gpu|gpu[^\n]*(missing|lost|only found)", Kind.GPU_LOST),
        (r"hw_ib|ib_?port|hw_eth|ib_?link|hw_gm|ib_?status", Kind.PORT_DOWN),
        (r"fs_|not mounted|disk|filesystem|nvme", Kind.STORAGE),
        (r"mce|hw_(?:physmem|mem|swap)|dimm|edac", Kind.HOST_MEMORY),
        (r"pcie", Kind.PCIE_AER),
        (r"gpu|nvsmi|nvidia|cuda|dcgm", Kind.GPU_DRIVER),
    )
)


def find(text: Text) -> Iterator[Finding]:
    if "check" not in text.lower:
        return
    for match in CHECK.finditer(text.lower):
        words = match[1] or match[2]
        if "passed" in text.lower[: match.end()].rpartition("\n")[2]:
            continue
        if QUOTED.search(words):
            yield finding(text, match.start(), Tier.SUMMARY, "health.check", Kind.GPU_DRIVER, SEV1)
            continue
        kind = next((kind for pattern, kind in TABLE if pattern.search(words)), Kind.SOFTWARE)
        yield finding(text, match.start(), Tier.DECISIVE, "health.check", kind, SEV1)
