"""What a failure is called, and what we say of one text: the nouns of this package.

May touch: unicrond.model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from unicrond.model.incident import Severity
from unicrond.model.strenum import StrEnum


class Kind(StrEnum):
    NON_FAILURE = "non-failure"
    # the node's hardware and driver
    ECC = "ECC error"
    ROW_REMAP = "row-remap pending"
    NVLINK = "NVLink error"
    NVSWITCH = "NVSwitch/fabric manager"
    GPU_LOST = "GPU fell off the bus"
    GPU_DRIVER = "GPU driver error"
    DRIVER_MISMATCH = "driver/library mismatch"
    THROTTLE = "thermal/power throttle"
    PCIE_AER = "PCIe AER"
    HOST_MEMORY = "host memory error (EDAC/MCE)"
    LOCKUP = "kernel panic/lockup"
    DMA = "invalid DMA mapping"
    # the network
    PORT_DOWN = "InfiniBand port down"
    FLAPPING = "link flapping"
    REFUSED = "connection refused/reset"
    LOST = "lost connection"
    NETWORK = "other network error"
    # the collective
    NCCL_TIMEOUT = "NCCL timeout"
    HANG = "task hang"
    STRAGGLER = "straggler"
    # the process
    ILLEGAL_ACCESS = "illegal memory access"
    CUDA = "CUDA error"
    GPU_OOM = "GPU out of memory"
    HOST_OOM = "host out-of-memory kill"
    SHM = "shared memory exhausted"
    EXITED = "exited abnormally"
    USER_BUG = "user code bug"
    CONFIGURATION = "configuration error"
    SOFTWARE = "other software error"
    NAN = "NaN/loss spike"
    # data at rest
    STORAGE = "storage error"
    CHECKPOINT = "checkpoint corrupted"
    # ends that somebody planned
    CANCELLED = "cancelled by user"
    TIME_LIMIT = "Slurm time limit"
    PREEMPTION = "Slurm preemption"


class Blame(StrEnum):
    SELF = "self"  # the fault is the reporter's own
    PEER = "peer"  # the reporter is the victim of another rank or node
    UNKNOWN = "unknown"  # this text alone cannot tell


class Tier(IntEnum):
    """How near to the root a finding is; of several in one text the highest speaks for it.

    A process that dies of an ECC error also prints a CUDA error, then its peers' closed
    connections, then its exit code: each tier is mostly the consequence of one above it.
    """

    HINT = 0  # an error word and nothing more
    SUMMARY = 1  # somebody counts the dead: exit codes, "Killed", the launcher's table
    VICTIM = 2  # a peer went away
    TIMEOUT = 3  # a collective or a wait did not end
    SYMPTOM = 4  # an error that something deeper usually explains
    PROCESS = 5  # a named error of this process
    HARDWARE = 6  # the kernel, the driver or a device says so
    DECISIVE = 7  # explains all else in the text


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: Kind
    severity: Severity
    blame: Blame
    recurs: bool  # a restart without a change is lost time
    rule: str
    evidence: str  # the words it rests on

    @property
    def is_failure(self) -> bool:
        return self.severity is not Severity.NONE


HARMLESS = Verdict(Kind.NON_FAILURE, Severity.NONE, Blame.UNKNOWN, False, "harmless", "")
