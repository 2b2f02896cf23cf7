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

from detectors.rules import NONE, SELF, SEV1, SEV2, UNKNOWN, Finding, Text, finding
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


def _catalogue() -> dict[int, Xid]:
    app, hard, clean, note = (
        Origin.APPLICATION, Origin.HARDWARE, Origin.CLEAN_UP, Origin.NOTICE,
    )  # fmt: skip
    rows = [
        (8, "the GPU stopped processing a channel", app, Kind.CUDA),
        (11, "invalid or corrupted push buffer", app, Kind.CUDA),
        (12, "driver error handling a GPU exception", app, Kind.CUDA),
        (13, "graphics engine exception: mostly a kernel that reads or writes astray", app,
         Kind.CUDA),
        (18, "bus master time-out", hard, Kind.GPU_DRIVER),
        (24, "semaphore time-out", app, Kind.CUDA),
        (25, "illegal push buffer", app, Kind.CUDA),
        (26, "framebuffer time-out", hard, Kind.GPU_DRIVER),
        (30, "the GPU accessed a bad address", app, Kind.ILLEGAL_ACCESS),
        (31, "memory page fault: an address that is not mapped", app, Kind.ILLEGAL_ACCESS),
        (32, "corrupted push buffer on its way over PCIe", app, Kind.CUDA),
        (37, "driver firmware error", hard, Kind.GPU_DRIVER),
        (38, "driver firmware watchdog", hard, Kind.GPU_DRIVER),
        (43, "a channel was stopped for a fault of its own program", app, Kind.CUDA),
        (44, "fault during a context switch", app, Kind.CUDA),
        (45, "channels removed after an earlier error or a kill", clean, Kind.NON_FAILURE),
        (46, "the GPU stopped processing", hard, Kind.GPU_DRIVER),
        (48, "double-bit ECC error", hard, Kind.ECC),
        (54, "auxiliary power is not connected", hard, Kind.THROTTLE),
        (57, "framebuffer link training failed", hard, Kind.GPU_DRIVER),
        (58, "framebuffer memory error", hard, Kind.ECC),
        (59, "power-management unit error", hard, Kind.GPU_DRIVER),
        (61, INTERNAL_HALT, hard, Kind.GPU_DRIVER),
        (62, INTERNAL_HALT, hard, Kind.GPU_DRIVER),
        (63, "a memory row or page was marked for remapping", hard, Kind.ROW_REMAP),
        (64, "a memory row or page could not be remapped", hard, Kind.ECC),
        (66, "illegal access by the driver", hard, Kind.GPU_DRIVER),
        (67, "illegal access by the driver", hard, Kind.GPU_DRIVER),
        (69, "graphics engine class error", app, Kind.CUDA),
        (74, "NVLink error", hard, Kind.NVLINK),
        (78, "virtual GPU did not start", hard, Kind.GPU_DRIVER),
        (79, "the GPU fell off the bus", hard, Kind.GPU_LOST),
        (80, "data corrupted on its way to the GPU", app, Kind.CUDA),
        (81, "VGA subsystem error", note, Kind.NON_FAILURE),
        (90, "cache error", hard, Kind.GPU_DRIVER),
        (92, "many single-bit errors, all corrected", note, Kind.ECC),
        (94, "uncorrectable memory error, contained to one process", hard, Kind.ECC),
        (95, "uncorrectable memory error, not contained", hard, Kind.ECC),
        (108, "remote NVLink translation error", app, Kind.NVLINK),
        (109, "context switch time-out", app, Kind.CUDA),
        (110, "security fault", hard, Kind.GPU_DRIVER),
        (119, "the GPU's system processor (GSP) does not answer", hard, Kind.GPU_DRIVER),
        (120, "error inside the GPU's system processor (GSP)", hard, Kind.GPU_DRIVER),
        (121, "corrected errors on the link to the CPU", note, Kind.NVLINK),
        (122, "flash read failed", hard, Kind.GPU_DRIVER),
        (123, "flash write failed", hard, Kind.GPU_DRIVER),
        (124, "flash erase failed", hard, Kind.GPU_DRIVER),
        (125, "InfoROM file system error", hard, Kind.GPU_DRIVER),
        (136, "NVLink training failed", hard, Kind.NVLINK),
        (137, "a peer's memory was accessed without right over NVLink", app, Kind.NVLINK),
        (138, "deep learning accelerator error", app, Kind.CUDA),
        (140, "unrecovered ECC error", hard, Kind.ECC),
        (141, "CUDA fast path error", app, Kind.CUDA),
        (143, "the GPU did not initialise", hard, Kind.GPU_DRIVER),
        (151, "key rotation error", hard, Kind.GPU_DRIVER),
        (154, "the recovery action that the GPU needs has changed", note, Kind.GPU_DRIVER),
        (155, "an NVLink was taken down by software", hard, Kind.NVLINK),
        (156, "memory was retired; a reset makes it so", hard, Kind.ROW_REMAP),
        (157, "memory could not be retired", hard, Kind.ECC),
        (158, "fatal time-out of the GPU", hard, Kind.GPU_DRIVER),
        (159, "error on the coherent link to the CPU", app, Kind.NVLINK),
        (160, "a memory channel was retired", hard, Kind.ECC),
        (161, "a memory channel could not be retired", hard, Kind.ECC),
        (162, "power smoothing is back", note, Kind.THROTTLE),
        (163, "power smoothing is off", note, Kind.THROTTLE),
        (164, "power smoothing wears out", note, Kind.THROTTLE),
        (165, "power smoothing is worn out", note, Kind.THROTTLE),
        (166, "unencrypted traffic on a secure NVLink", hard, Kind.NVLINK),
        (167, "fatal PCIe time-out", hard, Kind.PCIE_AER),
        (168, "errors in protected memory", hard, Kind.ECC),
        (169, INTERNAL_HALT, hard, Kind.GPU_DRIVER),
        (170, "interrupt in confidential mode", hard, Kind.NVLINK),
        (171, "uncorrectable DRAM error", hard, Kind.ECC),
        (172, "uncorrectable SRAM error", hard, Kind.ECC),
        *((code, "copy engine exception", app, Kind.CUDA) for code in COPY_ENGINES),
        *((code, "video engine exception", app, Kind.CUDA) for code in VIDEO_ENGINES),
        *((code, "display event", note, Kind.NON_FAILURE) for code in DISPLAY),
        *((code, "setting or test", note, Kind.NON_FAILURE) for code in SETTINGS),
        *((code, "NVLink 5 error", hard, Kind.NVLINK) for code in NVLINK5),
    ]
    return {code: Xid(code, meaning, origin, kind) for code, meaning, origin, kind in rows}


CATALOGUE = _catalogue()
LINE = re.compile(r"\bxid\b(?: errors?)?(?: ?\((?:[^()\n]{1,40})\))?[ :=#]{0,3}(\d{1,3})\b([^\n]*)")
CAUSED_BY = re.compile(r"caused by previous xid (\d{1,3})")
ASTRAY = re.compile(r"out of range address|mmu fault|misaligned address|invalid address space")
RECOVERY = re.compile(r"gpu reset required|node reboot required|drain p2p|drain and reset")


def find(text: Text) -> Iterator[Finding]:
    if "xid" not in text.lower:
        return
    needs_reset = _recovery_needed(text.lower)
    for match in LINE.finditer(text.lower):
        yield _judge(text, match, needs_reset)


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
                       UNKNOWN)  # fmt: skip
    kind, severity, blame, tier = xid.kind, SEVERITY[xid.origin], _blame(xid), TIER[xid.origin]
    if code in (13, 43) and ASTRAY.search(text.lower):
        kind = Kind.ILLEGAL_ACCESS
    if code == 43:
        tier = Tier.SYMPTOM
    if code in NVLINK5:
        severity, blame, tier = _nvlink5(code, words)
    if code == 154:
        tier, kind = (Tier.SYMPTOM, kind) if needs_reset else (tier, Kind.NON_FAILURE)
    if needs_reset and xid.origin is not Origin.CLEAN_UP:
        severity, blame = SEV1, SELF
    if xid.kind is Kind.ROW_REMAP:
        tier = Tier.SYMPTOM
    return finding(text, match.start(), tier, f"xid.{code}", kind, severity, blame)


def _blame(xid: Xid) -> Blame:
    if xid.origin in (Origin.NOTICE, Origin.CLEAN_UP) or xid.code in (108, 137):
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
