"""One text, one verdict: the root line wins over what followed from it. Pure.

    text -> literal prefilter -> harmless lines out -> every family -> the highest tier, then
    the earliest position -> Verdict

Nearly all lines of a log end at the prefilter, so that is where the speed is.
May touch: the families of this package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from detectors import (
    collective,
    cuda,
    dcgm,
    exits,
    foreign,
    gpu,
    health,
    host,
    mpi,
    nccl,
    network,
    program,
    slurm,
    storage,
    training,
    xid,
)
from detectors.guess import better
from detectors.harmless import about, facts, kept_lines, plain
from detectors.prefilter import Prefilter
from detectors.rules import NONE, PEER, SELF, SEV2, UNKNOWN, Finding, Text, apply, blamed, finding
from detectors.verdict import HARMLESS, Kind, Tier, Verdict

# Of a file system these are its fault.
PROGRAMS = ("config.", "python.", "torch.", "compile.")  # of no meaning in a kernel's log
FILE_RULES = ("net.timeout", "python.other", "unknown")
# Slurm's daemons log as errors much that no job notices; what they die of is "fatal".
DAEMON = re.compile(
    r"(?:[^\n]{0,80}\b(?:slurmd|slurmctld)\[\d+\]: )?(?:\[[\dTt:.-]+\] )?(?:slurmd|"
    r"slurmctld)?(?:: )?"
    r"error: (?!.*fatal)"
)
HOUSEKEEPING = ("config.file", "config.permission", "config.arguments")
# Who hears of a lost peer after its own last step has lost nothing.
FINISHED = re.compile(r"\b(\d+)(?:it)?/\1(?:it)?\b[^\n]*(?:loss|rate|elapsed|it/s|\[)")
TERSE = ("nvidia-smi", "slurm", "checkpoint", "exit status")  # source kinds
HEAD, TAIL = 8_192, 32_768  # characters of a long text that are read
LINE_HEAD, LINE_TAIL = 900, 300  # and of a long line: patterns cost its square

Finder = Callable[[Text], Iterator[Finding]]
RULES = (
    *gpu.RULES, *dcgm.RULES, *host.RULES, *network.RULES, *storage.RULES, *cuda.RULES,
    *cuda.NODE_RULES,
    *nccl.RULES, *mpi.RULES, *collective.RULES, *program.RULES, *exits.RULES, *slurm.RULES,
    *training.RULES,
    *foreign.RULES,
)  # fmt: skip
FINDERS: tuple[Finder, ...] = (
    xid.find, gpu.find_sxid, gpu.find_stuck_gpus, host.find_oom, host.find_faults,
    host.find_banks, network.find_links, network.find_completions, network.find_async_events,
    cuda.find_oom, health.find,
    collective.find_all_joined, program.find_exception, exits.find_codes, exits.find_killed,
    slurm.find_common_segfault, training.find_nan_value, training.find_spike,
)  # fmt: skip
PREFILTER = Prefilter(
    alone=[phrase for rule in RULES if not rule.pattern for phrase in rule.says],
    hints=[phrase for rule in RULES if rule.pattern for phrase in rule.says],
)
HINT = re.compile(
    r"traceback \(most recent call last\):|[a-z0-9](?:error|exception|failure)\b *(?::|$)|"
    r"\bcore dumped\b|"
    r"^\W*[ef]\d{4} \d\d:|\d: [ef] \S+:\d+\]|\d\d:\d\d[,.]\d+ [efc] \d+ \d+\]|"
    r"\[[ef]\d{3,4} \d\d:|(?:^|: |\] ?)(?:error|fatal|critical|panic)\b|"
    r"(?:unknown|application|unhandled|uncaught)[\w ]* exception|"
    r"[\[|( ](?:error|fatal|critical)[\])|: ]|\bhas failed\b|\bfailed (?:to|with|because|due|:)|"
    r"failed, ret|\bfailure:|"
    r"\baborted\b"
)
FATAL = re.compile(r"(?:^|\W)f(?:\d{3,4} \d\d:| \S+:\d+\])")  # what its own program dies of
KERNEL_HINT = re.compile(r"\bfatal\b|\bpanic\b|\bcritical\b|device (?:heartbeat )?(?:lost|hang)")
NOT_A_HINT = re.compile(
    r"\bwarn(?:ing)?\b|^\W*w\d{4} \d\d:|\[w(?:\d{3,4} \d\d:| \S+:\d+\])|: w \S+:\d+\]|^\W*\|"
    r"? *[\w ]+ : *[\w ]+\|?$"
)


def classify(source_kind: str, text: str) -> Verdict:
    if not _worth_reading(source_kind, text):
        return HARMLESS
    found = judge(source_kind, text)
    if found is None:
        return replace(HARMLESS, blame=about(clipped(text).lower()))
    return found.verdict


def judge(source_kind: str, text: str) -> Finding | None:
    """The finding that speaks for the text, or None where nothing is wrong."""
    if not _worth_reading(source_kind, text):
        return None
    seen = read(source_kind, text)
    findings = list(apply(RULES, seen))
    for find in FINDERS:
        findings.extend(find(seen))
    if "slurm" in source_kind:
        findings = [one for one in findings if not _housekeeping(one.verdict)]
    if "dmesg" in source_kind:
        findings = [one for one in findings if not one.verdict.rule.startswith(PROGRAMS)]
    found = min(findings, key=lambda one: (-one.tier, one.position), default=None) or _hint(seen)
    return None if found is None else _in_company(found, seen)


def _worth_reading(source_kind: str, text: str) -> bool:
    """Tools and daemons say little, and what they say seldom holds a word of error."""
    return any(name in source_kind for name in TERSE) or PREFILTER.passes(text)


def _housekeeping(verdict: Verdict) -> bool:
    return verdict.rule in HOUSEKEEPING and DAEMON.match(verdict.evidence) is not None


def _in_company(found: Finding, seen: Text) -> Finding:
    """What the rest of the text, or where it comes from, makes of the finding."""
    found = better(found, seen.source_kind)
    if "checkpointexception ranks:" in seen.lower:  # every rank prints the faults of all
        found = blamed(found, PEER)
    if found.tier <= Tier.VICTIM and FINISHED.search(seen.whole):
        return replace(found, verdict=replace(
            found.verdict, kind=Kind.SOFTWARE, severity=NONE, blame=PEER))  # fmt: skip
    if "filesystem" in seen.source_kind and found.verdict.rule in FILE_RULES:
        verdict = replace(found.verdict, kind=Kind.STORAGE)
        own = verdict.rule in ("python.other", "unknown")
        found = replace(found, verdict=replace(verdict, blame=SELF) if own else verdict)
    return found


def read(source_kind: str, text: str) -> Text:
    text = clipped(text)
    kept = unwrapped(kept_lines(facts(text)))
    return Text(source_kind, kept, kept.lower(), text.lower())


def clipped(text: str) -> str:
    """As much as is read of a text, without colours: a user's rank may print anything."""
    if len(text) > HEAD + TAIL:
        text = text[:HEAD] + "\n" + text[-TAIL:]
    return "\n".join(map(_clipped, plain(text).split("\n")))


def _clipped(line: str) -> str:
    if len(line) <= LINE_HEAD + LINE_TAIL:
        return line
    return f"{line[:LINE_HEAD]} ... {line[-LINE_TAIL:]}"


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
            joined[-1] += (
                right.removeprefix(" ").rstrip(" ") if right.startswith("  ") else (right.lstrip())
            )
    return text + "\n" + "\n".join(joined)


def _hint(seen: Text) -> Finding | None:
    """Words of error that no rule knows; a warning is none."""
    position = 0
    hint = KERNEL_HINT if "dmesg" in seen.source_kind else HINT
    for line in seen.lower.split("\n"):
        match = hint.search(line)
        daemon = "slurm" in seen.source_kind and DAEMON.match(line) is not None
        if match is not None and not daemon and not NOT_A_HINT.search(line):
            blame = SELF if FATAL.search(match[0]) else UNKNOWN
            return finding(seen, position + match.start(), Tier.HINT, "unknown", Kind.SOFTWARE,
                           SEV2, blame)  # fmt: skip
        position += len(line) + 1
    return None
