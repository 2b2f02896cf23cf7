"""What the states and counters of GPUs, ports and cgroups mean: two looks compared. Pure.

changed   this look against the last one
crept     this look against one of up to a minute ago: counters that also rise in good health
A counter that was above nought before the first look says nothing of this run; a state does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from detectors.rules import NONE, SEV1, SEV2, SEV3, Text
from detectors.verdict import Blame, Kind
from detectors.xid import find
from unicrond.model.incident import Severity

SLOWED_SECONDS = 10.0  # a shorter slow-down is the hardware's everyday
PORT_DOWN_SECONDS = 2.0  # what is back before was a flap
LINK_ERRORS = 100  # a minute
PCIE_REPLAYS = 100  # a minute
PORT_ERRORS = 100  # a minute
MEMORY_ERRORS = 1000  # a minute, corrected ones


@dataclass(frozen=True, slots=True)
class Sighting:
    """One fault of one device. `where` tells devices of a node apart: "gpu 3", "mlx5_0/1"."""

    source: str  # nvml | infiniband | cgroup | kernel | edac | output
    kind: Kind
    severity: Severity
    where: str
    evidence: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.source, self.kind, self.severity, self.where


@dataclass(frozen=True, slots=True)
class Printed(Sighting):
    """Words of a rank that lives; `where` is the name of its file."""

    blame: Blame = Blame.UNKNOWN


@dataclass(frozen=True, slots=True)
class Gpu:
    """One look at one GPU; what the driver does not tell stays as it is here."""

    lost: bool = False
    ecc_volatile: int = 0  # uncorrected errors since the driver was loaded
    ecc_aggregate: int = 0  # over the GPU's life
    remap_pending: bool = False
    remap_failed: bool = False
    links: frozenset[int] = field(default_factory=frozenset)  # NVLinks that are up
    link_errors: int = 0
    pcie_replays: int = 0
    slowed_seconds: float = 0.0  # for how long the hardware has been slowing it down
    recovery: int = 0  # the action that the driver asks for, 0 for none


def first_gpu(now: Gpu) -> Gpu:
    """What the first look is compared with: counts as they are, states as they should be."""
    return replace(now, lost=False, remap_failed=False, recovery=0, slowed_seconds=0.0)


def gpu_changed(where: str, before: Gpu, now: Gpu) -> Iterator[Sighting]:
    def told(kind: Kind, evidence: str) -> Sighting:
        return Sighting("nvml", kind, SEV1, where, f"{where}: {evidence}")

    if now.lost:
        if not before.lost:
            yield told(Kind.GPU_LOST, "GPU is lost, says NVML")
        return
    volatile = now.ecc_volatile - before.ecc_volatile
    aggregate = now.ecc_aggregate - before.ecc_aggregate
    if max(volatile, aggregate) > 0:
        yield told(Kind.ECC, f"{max(volatile, aggregate)} uncorrected ECC errors")
    if now.remap_failed and not before.remap_failed:
        yield told(Kind.ECC, "a memory row could not be remapped")
    if now.remap_pending and not before.remap_pending:
        yield told(Kind.ROW_REMAP, "a memory row waits for a reset to be remapped")
    if gone := before.links - now.links:
        yield told(Kind.NVLINK, f"NVLink {','.join(map(str, sorted(gone)))} went down")
    if now.recovery and now.recovery != before.recovery:
        yield told(Kind.GPU_DRIVER, f"the driver asks for recovery action {now.recovery}")
    if before.slowed_seconds < SLOWED_SECONDS <= now.slowed_seconds:
        yield told(Kind.THROTTLE, f"slowed down by its hardware for {now.slowed_seconds:.0f} s")


def gpu_crept(where: str, before: Gpu, now: Gpu) -> Iterator[Sighting]:
    errors = now.link_errors - before.link_errors
    if errors >= LINK_ERRORS:
        yield Sighting("nvml", Kind.NVLINK, SEV1, where, f"{where}: {errors} NVLink errors")
    replays = now.pcie_replays - before.pcie_replays
    if replays >= PCIE_REPLAYS:
        yield Sighting("nvml", Kind.PCIE_AER, SEV3, where, f"{where}: {replays} PCIe replays")


def xid_seen(where: str, bus: str, code: int) -> Sighting:
    """An Xid that NVML told by its number, judged as the driver's own line would be."""
    line = f"NVRM: Xid (PCI:{bus}): {code}, told by NVML"
    verdict = next(find(Text("dmesg", line, line.lower(), line.lower()))).verdict
    return Sighting("nvml", verdict.kind, verdict.severity, where, f"{where}: {line}")


@dataclass(frozen=True, slots=True)
class Port:
    active: bool
    downs: int = 0  # how often it went down, as it counts itself
    errors: int = 0
    inactive_seconds: float = 0.0


def port_changed(where: str, before: Port, now: Port) -> Iterator[Sighting]:
    """A port that was never up is not in use."""
    if before.inactive_seconds < PORT_DOWN_SECONDS <= now.inactive_seconds:
        yield Sighting("infiniband", Kind.PORT_DOWN, SEV1, where, f"{where}: port is down")
    elif now.active and (now.downs > before.downs or not before.active):
        yield Sighting("infiniband", Kind.FLAPPING, SEV3, where, f"{where}: link went down and up")


def port_crept(where: str, before: Port, now: Port) -> Iterator[Sighting]:
    errors = now.errors - before.errors
    if errors >= PORT_ERRORS:
        evidence = f"{where}: {errors} symbol and receive errors"
        yield Sighting("infiniband", Kind.NETWORK, SEV3, where, evidence)


@dataclass(frozen=True, slots=True)
class Memory:
    """What one memory controller has counted since the node was started."""

    uncorrected: int = 0
    corrected: int = 0


def memory_changed(where: str, before: Memory, now: Memory) -> Iterator[Sighting]:
    errors = now.uncorrected - before.uncorrected
    if errors > 0:
        evidence = f"{where}: {errors} uncorrected memory errors"
        yield Sighting("edac", Kind.HOST_MEMORY, SEV1, where, evidence)


def memory_crept(where: str, before: Memory, now: Memory) -> Iterator[Sighting]:
    errors = now.corrected - before.corrected
    if errors >= MEMORY_ERRORS:
        evidence = f"{where}: {errors} corrected memory errors within a minute"
        yield Sighting("edac", Kind.HOST_MEMORY, SEV3, where, evidence)


def oom_kills(before: int, now: int) -> Iterator[Sighting]:
    if now > before:
        evidence = f"the kernel killed {now - before} processes of this job for want of memory"
        yield Sighting("cgroup", Kind.HOST_OOM, SEV2, "memory", evidence)


def stuck(source: str, seconds: float) -> Sighting:
    evidence = f"no answer to sensor {source} for {seconds:.0f} s: it is off"
    return Sighting(source, Kind.SOFTWARE, NONE, "sensor", evidence)
