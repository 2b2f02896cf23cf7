"""One text, one verdict: the root line wins over what followed from it. Pure.

    text -> literal prefilter -> harmless lines out -> every family -> the highest tier, then
    the earliest position -> Verdict

Nearly all lines of a log end at the prefilter, so that is where the speed is.
May touch: the families of this package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from detectors import (
    collective,
    cuda,
    exits,
    foreign,
    gpu,
    host,
    nccl,
    network,
    program,
    slurm,
    storage,
    training,
    xid,
)
from detectors.harmless import kept_lines, plain
from detectors.rules import PEER, SEV2, UNKNOWN, Finding, Text, apply, blamed, finding
from detectors.verdict import HARMLESS, Kind, Tier, Verdict

WORDS = (
    "error", "fail", "xid", "exception", "traceback", "fatal", "abort", "kill", "timeout",
    "timed out", "nan", "finite", "s: inf", "s=inf", "': inf", "m: inf", "refused", "reset",
    "clos", "lost", "unreach", "no route", "corrupt", "space left", "quota", "stale", "read-only",
    "denied", "not found", "no such", "cannot", "can't", "unable", "couldn't", "could not",
    "invalid", "undefined", "illegal", "fault", "core dumped", "oom", "out of memory", "out_of_me",
    "panic", "lockup", "stall", "blocked for", "hung", "hang", "stuck", "machine check", "edac",
    "aer:", "corrected", "pcie", "dmar", "dma", "evict", "not responding", "will wait", "nvrm",
    "nvml", "nvlink", "nvswitch", "fabric", "throttl", "slowdown", "thermal", "temperature",
    "pending", "remap", "ecc", "down", "flap", "unplugged", "unhealthy", "dead", "died",
    "terminat", "cancel", "interrupt", "signal", "exit", "preempt", "node_fail", "not ready",
    "reboot", "missing", "mismatch", "straggler", "joined", "spike", "diverge", "explod",
    "unrecognized", "required", "expired", "credential", "munge", "prolog", "epilog", "low real",
    "mount", "address already", "busy", "lustre", "ceph", "most recent call", "multicast", "violation",
    "notify", "no available", "stopiteration", "nvidia driver", "cuda init", "bug:", "unavail", "heartbeat", "dbe", "extend",
    "zip file", "err!", "no devices", "uncorrectable", "check_", "no ib", "oomkilled", "not match", "expects",
    "expected", "only supports", "does not appear", "power state", "truncated", "above threshold",
    "not active", "inactive", "retr", "divisible",
    "unexpected", "completion", "duplicate", "no socket", "health", "limit", "count reported", "iommu", "oops", "not enough", "ran out", "no cuda", "on signal", "term_",
    "设备上", "已杀死", "段错误", "总线错误", "没有那个", "权限不够", "kein speicher",
    "aucun espace", "no queda", "空き領域", "speicherzugriff",
)  # fmt: skip
HEAD, TAIL = 16_384, 131_072  # characters of a long text that are read

Finder = Callable[[Text], Iterator[Finding]]
RULES = (
    *gpu.RULES, *host.RULES, *network.RULES, *storage.RULES, *cuda.RULES, *cuda.NODE_RULES,
    *nccl.RULES, *collective.RULES, *program.RULES, *exits.RULES, *slurm.RULES, *training.RULES,
    *foreign.RULES,
)  # fmt: skip
FINDERS: tuple[Finder, ...] = (
    xid.find, gpu.find_sxid, gpu.find_stuck_gpus, host.find_oom, host.find_faults, host.find_banks, network.find_links,
    network.find_completions, network.find_async_events, cuda.find_oom,
    collective.find_all_joined, program.find_exception, exits.find_codes, exits.find_killed,
    slurm.find_common_segfault, training.find_nan_value, training.find_spike,
)  # fmt: skip
HINT = re.compile(
    r"traceback \(most recent|\w(?:error|exception|failure)\b *(?::|$)|\bcore dumped\b|"
    r"^\W*[ef]\d{4} \d\d:|\[[ef]\d{3,4} \d\d:|(?:^|: |\] ?)(?:error|fatal|critical|panic)\b|"
    r"(?:unknown|application|unhandled|uncaught)[\w ]* exception|[\[|( ](?:error|fatal|critical)[\])|: ]|\bhas failed\b|\bfailed (?:to|with|:)|failure:|\baborted\b"
)
KERNEL_HINT = re.compile(r"\bfatal\b|\bpanic\b|\bcritical\b|device (?:heartbeat )?(?:lost|hang)")
NOT_A_HINT = re.compile(
    r"\bwarn(?:ing)?\b|^\W*w\d{4} \d\d:|\[w\d{3,4} \d\d:|^\W*\|? *[\w ]+ : *[\w ]+\|?$"
)


def classify(source_kind: str, text: str) -> Verdict:
    found = judge(source_kind, text)
    return HARMLESS if found is None else found.verdict


def judge(source_kind: str, text: str) -> Finding | None:
    """The finding that speaks for the text, or None where nothing is wrong."""
    if not is_suspicious(text):
        return None
    seen = read(source_kind, text)
    findings = list(apply(RULES, seen))
    for find in FINDERS:
        findings.extend(find(seen))
    if not findings:
        return _hint(seen)
    found = min(findings, key=lambda one: (-one.tier, one.position))
    return blamed(found, PEER) if "checkpointexception ranks:" in seen.lower else found


def is_suspicious(text: str) -> bool:
    lower = text.lower()
    if "\n" in lower:
        return True
    for word in WORDS:
        if word in lower:
            return True
    return False


def read(source_kind: str, text: str) -> Text:
    if len(text) > HEAD + TAIL:
        text = text[:HEAD] + "\n" + text[-TAIL:]
    text = plain(text)
    kept = unwrapped(kept_lines(text))
    return Text(source_kind, kept, kept.lower(), text.lower())


def unwrapped(text: str) -> str:
    """Tables of two columns (DCGM) break words over rows: the right-hand cells joined, added."""
    rows = [line.strip() for line in text.split("\n") if line.strip().startswith("|")]
    cells = [row.strip("|").split("|") for row in rows if row.count("|") == 3]
    if len(cells) < 2:
        return text
    joined = [""]
    for left, right in ((cell[0], cell[-1]) for cell in cells):
        if left.strip():
            joined.append(f"{left.strip()} {right.lstrip()}")
        else:
            joined[-1] += right.removeprefix(" ").rstrip(" ") if right.startswith("  ") else (
                right.lstrip()
            )
    return text + "\n" + "\n".join(joined)


def _hint(seen: Text) -> Finding | None:
    """Words of error that no rule knows; a warning is none."""
    position = 0
    hint = KERNEL_HINT if "dmesg" in seen.source_kind else HINT
    for line in seen.lower.split("\n"):
        match = hint.search(line)
        if match is not None and not NOT_A_HINT.search(line):
            return finding(seen, position + match.start(), Tier.HINT, "unknown", Kind.SOFTWARE,
                           SEV2, UNKNOWN)  # fmt: skip
        position += len(line) + 1
    return None
