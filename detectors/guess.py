"""What a line of error is most likely about when no rule knows it: its vocabulary decides. Pure.

The weakest verdicts there are; their rules are called `guess.*`, so that their record is their own.
None makes a node leave, unless the line comes from the kernel or from a tool of the driver.
A text without a word from here stays "other software error".
May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from dataclasses import replace

from detectors.rules import PEER, SELF, SEV1, SEV2, SEV3, UNKNOWN, Finding
from detectors.verdict import Kind

# Rules that know that something is wrong, and no more.
GUESSED = ("unknown", "nccl.warning", "python.other", "slurm.reason")
FOREIGN = re.compile(
    r"\b(hip|npu|ascend|triton|xla|tpu|neuron|habana|acl|(?:miopen|syn|hccl)\w*)\b|torch_npu|hccl"
)
DEVICES = ("dmesg", "nvidia-smi")  # source kinds
# The first whose words stand in the line.
TABLE = tuple(
    (name, re.compile(words), kind, severity, blame)
    for name, words, kind, severity, blame in (
        ("fabric", r"nvswitch|fabric ?manager", Kind.NVSWITCH, SEV1, SELF),
        ("nvlink", r"nvlink", Kind.NVLINK, SEV1, UNKNOWN),
        ("ecc", r"\becc\b|uncorrectable", Kind.ECC, SEV1, SELF),
        ("checkpoint", r"(load|read|restor|resum|deserial)\w* [^\n]*(checkpoint|ckpt|weights)",
         Kind.CHECKPOINT, SEV2, SELF),
        ("storage", r"(sav|writ)\w* [^\n]*(checkpoint|ckpt|file|disk)|filesystem|\b(disk|volume)\b",
         Kind.STORAGE, SEV2, SELF),
        ("rdma", r"infiniband|net/ib|\bibv?_|rdma|roce\b|\bqp\b|\bcqe?\b|mlx\d|\befa\b|"
                 r"libfabric|\bucx\b",
         Kind.NETWORK, SEV3, UNKNOWN),
        ("peer", r"disconnect|\bpeers?\b|remote (rank|process|worker)|heartbeat",
         Kind.LOST, SEV2, PEER),
        ("network", r"socket|\bconnect(ion)?\b|\bnetwork\b|\bdns\b|unreachable|timed? ?out",
         Kind.NETWORK, SEV3, UNKNOWN),
        # What Slurm's commands refuse was asked for wrongly.
        ("request", r"^\W*((sbatch|salloc): (error|fatal)|srun: fatal): |^\W*srun: error: "
                    r".*(invalid|"
         "specif|option|permit|cannot|allocat|requested)", Kind.CONFIGURATION, SEV2, SELF),
        ("cuda", r"\bcu(da|dnn|blas|fft)", Kind.CUDA, SEV2, SELF),
        ("configuration", r"\bconfig|argument|\boption\b|not (supported|installed|compatible)|"
         r"incompatible|\brequires\b|is only supported|\bno gpus? (found|available)|version "
         r"(mismatch|conflict)", Kind.CONFIGURATION, SEV2, SELF),
        # What a program raises without a name of its own is its own matter.
        ("raised", r"\b(runtimeerror|exception): |^traceback", Kind.USER_BUG, SEV2, SELF),
    )
)  # fmt: skip


def better(found: Finding, source_kind: str) -> Finding:
    """The finding itself where its rule knows, or nothing better can be guessed."""
    verdict = found.verdict
    line = verdict.evidence.lower()
    if verdict.rule not in GUESSED or FOREIGN.search(line):
        return found
    device = verdict.severity is SEV1 or any(name in source_kind for name in DEVICES)
    for name, words, kind, severity, blame in TABLE:
        if words.search(line) and (device or severity is not SEV1):
            guess = replace(verdict, kind=kind, severity=severity, blame=blame)
            return replace(found, verdict=replace(guess, rule=f"guess.{name}"))
    return found
