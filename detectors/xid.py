"""The NVIDIA driver's Xid codes: what each means for a training run. Pure.

The catalogue follows NVIDIA's published meanings (Ampere and later; older codes where they still
occur). Three things move a verdict away from the catalogue:
  - driver 565 and later print Xid 154 beside another one, with the recovery action that NVML
    reports: a reset or reboot takes the node out whatever the first code was; "None" adds nothing;
  - driver 570 and later print Xid 45 with "caused by previous Xid N": N is what happened;
  - the NVLink 5 codes 144 to 150 carry "Fatal" or "Nonfatal" in their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from detectors.rules import NONE, PEER, SELF, SEV1, SEV2, UNKNOWN, Finding, Text, blamed, finding
from detectors.verdict import Blame, Kind, Tier
from unicrond.model.incident import Severity


class Origin(Enum):
    APPLICATION = "application"  # the process did it, or it hit a fault that a restart clears
    HARDWARE = "hardware"  # GPU, link, firmware or driver: the GPU needs a reset at least
    CLEAN_UP = "clean-up"  # follows from another error, or from a kill
    NOTICE = "notice"  # nobody needs to act


@dataclass(frozen=True, slots=True)
class Xid:
    code: int
    meaning: str
    origin: Origin
    kind: Kind


SEVERITY = {
    Origin.APPLICATION: SEV2,
    Origin.HARDWARE: SEV1,
    Origin.CLEAN_UP: NONE,
    Origin.NOTICE: NONE,
}
TIER = {
    Origin.APPLICATION: Tier.PROCESS,
    Origin.HARDWARE: Tier.HARDWARE,
    Origin.CLEAN_UP: Tier.HINT,
    Origin.NOTICE: Tier.HINT,
}
COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
VIDEO_ENGINES = (
    20, 21, 22, 27, 28, 29, 33, 34, 35, 36, 42, 47, 60, 65, 68, 73, 82, 83, 84, 86, 88, 89,
    *range(96, 106), 139, 142,
)  # fmt: skip
DISPLAY = (15, 16, 19, 56, *range(111, 119))
SETTINGS = (14, 23, 49, 50, 51, 52, 53, 55, 87, 91, 93, 106, 107, 152, 153)
NVLINK5 = range(144, 151)
INTERNAL_HALT = "a micro-controller inside the GPU halted"
APP, HARD = Origin.APPLICATION, Origin.HARDWARE
CLEAN, NOTE = Origin.CLEAN_UP, Origin.NOTICE
# fmt: off
ROWS = (
    (8, "the GPU stopped processing a channel", APP, Kind.CUDA),
    (11, "invalid or corrupted push buffer", APP, Kind.CUDA),
    (12, "driver error handling a GPU exception", APP, Kind.CUDA),
    (13, "graphics engine exception: mostly a kernel that reads or writes astray", APP, Kind.CUDA),
    (18, "bus master time-out", HARD, Kind.GPU_DRIVER),
    (24, "semaphore time-out", APP, Kind.CUDA),
    (25, "illegal push buffer", APP, Kind.CUDA),
    (26, "framebuffer time-out", HARD, Kind.GPU_DRIVER),
    (30, "the GPU accessed a bad address", APP, Kind.ILLEGAL_ACCESS),
    (31, "memory page fault: an address that is not mapped", APP, Kind.ILLEGAL_ACCESS),
    (32, "corrupted push buffer on its way over PCIe", APP, Kind.CUDA),
    (37, "driver firmware error", HARD, Kind.GPU_DRIVER),
    (38, "driver firmware watchdog", HARD, Kind.GPU_DRIVER),
    (43, "a channel was stopped for a fault of its own program", APP, Kind.ILLEGAL_ACCESS),
    (44, "fault during a context switch", APP, Kind.CUDA),
    (45, "channels removed after an earlier error or a kill", CLEAN, Kind.NON_FAILURE),
    (46, "the GPU stopped processing", HARD, Kind.GPU_DRIVER),
    (48, "double-bit ECC error", HARD, Kind.ECC),
    (54, "auxiliary power is not connected", HARD, Kind.THROTTLE),
    (57, "framebuffer link training failed", HARD, Kind.GPU_DRIVER),
    (58, "framebuffer memory error", HARD, Kind.ECC),
    (59, "power-management unit error", HARD, Kind.GPU_DRIVER),
    (61, INTERNAL_HALT, HARD, Kind.GPU_DRIVER),
    (62, INTERNAL_HALT, HARD, Kind.GPU_DRIVER),
    (63, "a memory row or page was marked for remapping", HARD, Kind.ROW_REMAP),
    (64, "a memory row or page could not be remapped", HARD, Kind.ECC),
    (66, "illegal access by the driver", HARD, Kind.GPU_DRIVER),
    (67, "illegal access by the driver", HARD, Kind.GPU_DRIVER),
    (69, "graphics engine class error", APP, Kind.CUDA),
    (74, "NVLink error", HARD, Kind.NVLINK),
    (78, "virtual GPU did not start", HARD, Kind.GPU_DRIVER),
    (79, "the GPU fell off the bus", HARD, Kind.GPU_LOST),
    (80, "data corrupted on its way to the GPU", APP, Kind.CUDA),
    (81, "VGA subsystem error", NOTE, Kind.NON_FAILURE),
    (90, "cache error", HARD, Kind.GPU_DRIVER),
    (92, "many single-bit errors, all corrected", NOTE, Kind.ECC),
    (94, "uncorrectable memory error, contained to one process", HARD, Kind.ECC),
    (95, "uncorrectable memory error, not contained", HARD, Kind.ECC),
    (108, "remote NVLink translation error", APP, Kind.NVLINK),
    (109, "context switch time-out", APP, Kind.CUDA),
    (110, "security fault", HARD, Kind.GPU_DRIVER),
    (119, "the GPU's system processor (GSP) does not answer", HARD, Kind.GPU_DRIVER),
    (120, "error inside the GPU's system processor (GSP)", HARD, Kind.GPU_DRIVER),
    (121, "corrected errors on the link to the CPU", NOTE, Kind.NVLINK),
    (122, "flash read failed", HARD, Kind.GPU_DRIVER),
    (123, "flash write failed", HARD, Kind.GPU_DRIVER),
    (124, "flash erase failed", HARD, Kind.GPU_DRIVER),
    (125, "InfoROM file system error", HARD, Kind.GPU_DRIVER),
    (136, "NVLink training failed", HARD, Kind.NVLINK),
    (137, "a peer's memory was accessed without right over NVLink", APP, Kind.NVLINK),
    (138, "deep learning accelerator error", APP, Kind.CUDA),
    (140, "unrecovered ECC error", HARD, Kind.ECC),
    (141, "CUDA fast path error", APP, Kind.CUDA),
    (143, "the GPU did not initialise", HARD, Kind.GPU_DRIVER),
    (151, "key rotation error", HARD, Kind.GPU_DRIVER),
    (154, "the recovery action that the GPU needs has changed", NOTE, Kind.GPU_DRIVER),
    (155, "an NVLink was taken down by software", HARD, Kind.NVLINK),
    (156, "memory was retired; a reset makes it so", HARD, Kind.ROW_REMAP),
    (157, "memory could not be retired", HARD, Kind.ECC),
    (158, "fatal time-out of the GPU", HARD, Kind.GPU_DRIVER),
    (159, "error on the coherent link to the CPU", APP, Kind.NVLINK),
    (160, "a memory channel was retired", HARD, Kind.ECC),
    (161, "a memory channel could not be retired", HARD, Kind.ECC),
    (162, "power smoothing is back", NOTE, Kind.THROTTLE),
    (163, "power smoothing is off", NOTE, Kind.THROTTLE),
    (164, "power smoothing wears out", NOTE, Kind.THROTTLE),
    (165, "power smoothing is worn out", NOTE, Kind.THROTTLE),
    (166, "unencrypted traffic on a secure NVLink", HARD, Kind.NVLINK),
    (167, "fatal PCIe time-out", HARD, Kind.PCIE_AER),
    (168, "errors in protected memory", HARD, Kind.ECC),
    (169, INTERNAL_HALT, HARD, Kind.GPU_DRIVER),
    (170, "interrupt in confidential mode", HARD, Kind.NVLINK),
    (171, "uncorrectable DRAM error", HARD, Kind.ECC),
    (172, "uncorrectable SRAM error", HARD, Kind.ECC),
    *((code, "copy engine exception", APP, Kind.CUDA) for code in COPY_ENGINES),
    *((code, "video engine exception", APP, Kind.CUDA) for code in VIDEO_ENGINES),
    *((code, "display event", NOTE, Kind.NON_FAILURE) for code in DISPLAY),
    *((code, "setting or test", NOTE, Kind.NON_FAILURE) for code in SETTINGS),
    *((code, "NVLink 5 error", HARD, Kind.NVLINK) for code in NVLINK5),
)
# fmt: on
CATALOGUE = {row[0]: Xid(*row) for row in ROWS}
LINE = re.compile(r"\bxid\b(?: errors?)?(?: ?\((?:[^()\n]{1,40})\))?[ :=#]{0,3}(\d{1,3})\b([^\n]*)")
CAUSED_BY = re.compile(r"caused by previous xid (\d{1,3})")
ASTRAY = re.compile(r"out of range address|mmu fault|invalid address space")
ADDRESSED = re.compile(r"\bxid \((?:pci:)?([0-9a-f:.]+)\): 31, pid='?(\d+)")
MANY = 3  # programs that went astray on one GPU, and on no other: the GPU does it
RECOVERY = re.compile(r"gpu reset required|node reboot required|drain p2p|drain and reset")


def find(text: Text) -> Iterator[Finding]:
    if "xid" not in text.lower:
        return
    needs_reset = _recovery_needed(text.lower)
    several = len(set(CAUSED_BY.findall(text.lower))) > 1
    for match in LINE.finditer(text.lower):
        found = _judge(text, match, needs_reset)
        yield blamed(found, PEER) if several and "caused by" in match[2] else found
    if _one_gpu_for_all(text.lower):
        yield finding(text, 0, Tier.HARDWARE, "xid.31.device", Kind.GPU_DRIVER, SEV1)


def _one_gpu_for_all(lower: str) -> bool:
    faults = {match.groups() for match in ADDRESSED.finditer(lower)}
    return len(faults) >= MANY and len({gpu for gpu, _ in faults}) == 1


def _recovery_needed(lower: str) -> bool:
    """Whether Xid 154 ends in an action; "changed from X to Y" counts for Y alone."""
    for match in LINE.finditer(lower):
        if match[1] == "154" and RECOVERY.search(match[2].rsplit(" to ", 1)[-1]):
            return True
    return False


def _judge(text: Text, match: re.Match[str], needs_reset: bool) -> Finding:
    code, words = int(match[1]), match[2]
    cause = CAUSED_BY.search(words)
    if code == 45 and cause:
        code = int(cause[1])
    xid = CATALOGUE.get(code)
    if xid is None:
        return finding(text, match.start(), Tier.SYMPTOM, f"xid.{code}", Kind.GPU_DRIVER, SEV1,
                       SELF)  # fmt: skip
    kind, severity, blame, tier = xid.kind, SEVERITY[xid.origin], _blame(xid), TIER[xid.origin]
    if code == 13 and ASTRAY.search(text.lower):
        kind = Kind.ILLEGAL_ACCESS
    if code == 43:
        tier = Tier.SYMPTOM
    if code in NVLINK5:
        severity, blame, tier = _nvlink5(code, words)
    if code == 154:
        tier, kind = (Tier.SYMPTOM, kind) if needs_reset else (tier, Kind.NON_FAILURE)
    if needs_reset and xid.origin is not Origin.CLEAN_UP:
        severity, blame = SEV1, SELF
        kind = Kind.GPU_DRIVER if xid.origin is Origin.APPLICATION else kind
    if xid.kind is Kind.ROW_REMAP:
        tier = Tier.SYMPTOM
    return finding(text, match.start(), tier, f"xid.{code}", kind, severity, blame)


def _blame(xid: Xid) -> Blame:
    """What hardware put right by itself is still its own; links have two ends."""
    if xid.kind is Kind.NON_FAILURE or xid.code in (108, 137, 154):
        return UNKNOWN
    return SELF


def _nvlink5(code: int, words: str) -> tuple[Severity, Blame, Tier]:
    """A link that went down condemns its own GPU; an answer with an error may be the far side's."""
    nonfatal = "nonfatal" in words or "non-fatal" in words
    if code == 149 and not nonfatal:
        return SEV1, SELF, Tier.HARDWARE
    if "fatal" in words and not nonfatal:
        return SEV1, SELF, Tier.HARDWARE
    return SEV2, UNKNOWN, Tier.PROCESS
