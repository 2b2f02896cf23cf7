"""The kernel log of a node: memory, PCIe, lock-ups, the out-of-memory killer. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import NONE, SELF, SEV1, SEV2, UNKNOWN, Finding, Rule, Text, finding
from detectors.verdict import Kind, Tier

HARD = Tier.HARDWARE

# fmt: off
RULES = (
    # As the board's own controller logs it.
    Rule("board.memory", Kind.HOST_MEMORY, SEV1, ("asserted", "sel entry"),
         r"memory[^|\n]*\|[^\n]*(uncorrectable|parity|critical)[^\n]*\| *asserted|"
         r"sel entry[^\n]*\bdimm\b[^\n]* assertion", tier=Tier.DECISIVE),
    Rule("board.bus", Kind.PCIE_AER, SEV1, ("asserted",),
         r"(pci [sp]err|bus (fatal|uncorrectable) error)[^\n]*\| *asserted", tier=Tier.DECISIVE),
    Rule("memory.uncorrected", Kind.HOST_MEMORY, SEV1,
         ("[hardware error]", "edac", "mce:", "memory failure:", "machine check",
          "this is not a software error"),
         r"edac [^\n]*\bue\b|edac[^\n]*uncorrect|uncorrected|memory failure: 0x|"
         r"machine check exception|fatal machine check|mc\d+_status\[[^\]\n]*\|ue\||"
         "system fatal error|"
         r"event severity: (fatal|recoverable)|"
         r"handling mce memory error(?![^\n]*\bce\b)|uncorrectable (memory|ecc|error)", tier=HARD,
         unless=r"edac [^\n]*\d+ ce (?!.*\bue\b)|section_type: pcie"),
    Rule("pcie.firmware", Kind.PCIE_AER, SEV1, ("section_type: pcie",),
         r"(?s)severity: (fatal|recoverable).*section_type: pcie", tier=HARD),
    Rule("memory.poison", Kind.HOST_MEMORY, SEV1,
         ("hardware memory corruption", "hwpoison", "mca: ", "memory error on dimm",
          "check_hw_physmem", "check_hw_mcelog", "memory errors  "), tier=HARD),
    Rule("memory.corrected", Kind.HOST_MEMORY, NONE,
         ("edac", "[hardware error]", "mce:", "corrected", "this is not a software error"),
         r"edac [^\n]*\bce\b|event severity: corrected|"
         r"(?<!un)corrected[ _](read |write )?error(, no action|$| bank|, n_)|"
         "patrol scrub corrected|"
         "corrected (memory|hardware|machine check) error|machine check events logged|"
         "has been corrected by h/w", tier=Tier.HINT),
    Rule("pcie.fatal", Kind.PCIE_AER, SEV1,
         ("aer:", "pcie bus error", "dpc:", "pciehp", "pcie fatal", "link retraining", "pcie link"),
         r"severity=uncorrect|uncorrect[a-z]* \((non-)?fatal\)|uncorrectable \(?(non-)?fatal|"
         r"device recovery failed|can't recover|dpc: containment|pciehp[^\n]*(link down|"
         "card not present)|pcie link (is )?down|unsupported request error|link retraining "
         "failed", tier=HARD),
    Rule("pcie.corrected", Kind.PCIE_AER, NONE, ("aer:", "pcie bus error"),
         "severity=correct(ed|able)|correct(ed|able) error", tier=Tier.HINT),
    Rule("pcie.power", Kind.THROTTLE, NONE, ("insufficient power on the pcie slot",),
         tier=Tier.HINT),
    Rule("pcie.narrow", Kind.STRAGGLER, SEV1, ("available pcie bandwidth, limited by",),
         r"(mlx\d|nvidia|bnxt|efa|hfi1)\S* [^\n]*available pcie bandwidth, limited by", tier=HARD),
    Rule("pcie.narrow.field", Kind.STRAGGLER, SEV1, ("downgraded", "pcie link width",
          "link width\n"),
         r"lnksta:[^\n]*\(downgraded\)|link width\s+max *: *(\d+)x\s+current *: *(?!\1x)\d|"
         r"pcie link width[^\n]*(expected|should be|degraded)",
         tier=HARD),
    Rule("kernel.lockup", Kind.LOCKUP, SEV1,
         ("soft lockup", "hard lockup", "kernel panic", "self-detected stall",
          "detected stalls on", "_state detected stall", "unable to handle kernel",
          "null pointer dereference",
          "kernel bug at", "rcu_sched kthread starved", "unable to handle page fault", "oops:",
          "nmi watchdog: watchdog detected", "not syncing", "scheduling while atomic",
          "bad page state", "watchdog: bug", "workqueue lockup", "kernel oops",
          "rcu_preempt detected", "lbug", ") assertion("), tier=HARD,
         unless=r"kernel\.(panic|hung)\w* *="),
    Rule("kernel.gpf", Kind.LOCKUP, SEV1, ("general protection fault",),
         r"(?<!traps: )\bgeneral protection fault[:,]", tier=HARD,
         unless=r"traps: [^\n]*general protection"),
    Rule("kernel.hung_task", Kind.HANG, SEV1, ("blocked for more than", "state:d"),
         r"task [^\n]*blocked for more than \d+ seconds|task:\S+ +state:d\b", tier=HARD),
    Rule("kernel.iommu", Kind.DMA, SEV1,
         ("dmar:", "io_page_fault", "sw-iommu", "swiotlb buffer is full", "iommu", "arm-smmu",
          "amd-vi:"),
         r"dmar: (drhd: handling fault|\[dma|\[intr)|io_page_fault|out of sw-iommu space|"
         r"swiotlb buffer is full|iommu[^\n]*(\bfault|failed to map)|smmu[^\n]*(fault|"
         "unhandled context)|fault addr|amd-vi: [^\\n]*timed out", tier=HARD),
    Rule("dma.mapping", Kind.DMA, SEV1,
         ("dma map", "dma_map", "dma mapping", "mapping of buffer object failed",
          "nvidia_p2p_get_pages failed", "peer memory register failed", "dma-buf"),
         r"(dma[ _]map\w*|p2p_get_pages|memory register|dma-buf|buffer object)[^\n]*(fail|"
         "invalid|error|cannot|unable)|invalid dma mapping", tier=HARD),
    Rule("host.disk", Kind.STORAGE, SEV1,
         ("i/o error", "jbd2", "medium error", "aborting journal", "failed command", "md/raid",
          "superblock", "ext4-fs error", "xfs (", "btrfs error", "nvme nvme", "buffer i/o",
          "read-only", "hostbyte=did_", "device offlined", "beyond end of device", "disk failure",
          "no available path", "to offline device", "capacity change",
          "loading journal", "can't read", "sense key", "unrecovered read"),
         r"ext4-fs error|(ext4|btrfs)[^\n]*: (i/o error|remounting)|jbd2: no valid|"
         r"(ext4-fs|xfs) \([^)]*\): (error loading|unable to read|can't read)|"
         r"sense key ?: (medium|hardware) error|unrecovered read error|"
         r"xfs \([^)]*\): [^\n]*(i/o error|corruption|crc error|xfs_repair|shutting down|"
         r"shutdown|error -\d|internal error)|hostbyte=did_(?!ok)|device offlined|"
         r"btrfs[^\n]*error|(buffer |critical |metadata )?i/o error[, ][^\n]*(dev|sector)|"
         r"nvme nvme\d+: [^\n]*(timeout(?! set)|controller is down|removing after|aborting|"
         "identify controller failed|reset failure)|capacity change from [1-9]\\d* to 0\\b|"
         "critical (medium|target) error|jbd2: error|"
         "aborting journal|"
         r"ata\d[^\n]*failed command|nvme\d+n\d+: i/o cmd[^\n]*i/o error|"
         r"raid\d*[^\n]*disk failure|md/raid[^\n]*failed|beyond end of device|no available path|"
         "to offline device|"
         r"superblock write|remounting filesystem read-only|"
         "blk_update_request", tier=HARD),
)
# fmt: on

BYSTANDER = re.compile(
    r"^(httpd|nginx|apache|mysqld|postgres|redis|java_agent|snmpd|ntpd|xorg|gnome|firefox|chrome|"
    r"clamd|epilog|prolog|lustre|kcompact|vector|fluent|td-agent|filebeat|telegraf|collectd|"
    r"node_expo|prometheus|dcgm|nv-hostengine|"
    r"datadog|agent|sshd|systemd|rsyslog|journal|snapd|kubelet|dockerd|containerd|slurmd|"
    r"slurmstepd|nvidia-smi|nvidia-persiste|nscd|sssd|chronyd|promtail|grafana|cadvisor|otel|"
    r"logrotate|cron|polkitd|dbus|networkd|irqbalance|zabbix|nagios|ganglia|gmond|wazuh|auditd|"
    r"tmux|sftp|rsync|unattended|packagekit|apt|dnf|yum|node$|code|falcon|osqueryd|munged|lnet|"
    r"s3fs|goofys|fwupd|tuned|puppet|chef|salt)"
)
VICTIM = re.compile(
    r"killed process \d+,? ?\(([^)]*)\)|reaped process \d+ \(([^)]*)\)|"
    r"task=([^,\s]+),pid=|victim process: ([^,\s]+)|\b([\w.:/-]+) invoked oom-killer"
)
FAULTED = re.compile(
    r"([\w.:-]+)\[\d+\]:? (?:segfault at [0-9a-f]+ ip|trap |general protection)|"
    r"\bsegfault at [0-9a-f]+ ip"
)
OOM_WORDS = (
    "oom-killer", "oom_reaper", "out of memory: kill", "oom-kill", "oom_kill", "memory cgroup out",
    "oom encountered", "total-vm:",
)  # fmt: skip


def find_oom(text: Text) -> Iterator[Finding]:
    """The victim decides: a log shipper that the kernel shot is nobody's failure.

    Who *invoked* the killer only asked for memory; its name counts when no victim is named.
    """
    at = min((i for i in map(text.lower.find, OOM_WORDS) if i >= 0), default=-1)
    if at < 0 or _none_counted(text.lower):
        return
    killed: list[str] = []
    invoked: list[str] = []
    for match in VICTIM.finditer(text.lower):
        (invoked if match[5] else killed).append(next(filter(None, match.groups()), ""))
    names = killed or invoked
    if names and all(BYSTANDER.match(name.strip('"')) for name in names):
        yield finding(text, at, HARD, "oom.bystander", Kind.HOST_OOM, NONE, UNKNOWN)
    else:
        yield finding(text, at, HARD, "oom.kill", Kind.HOST_OOM, SEV2, SELF)


BANK = re.compile(r"\bbank \d+: ([0-9a-f]{16})\b")
UNCORRECTED_BIT = 61  # of a machine-check bank's status


def find_banks(text: Text) -> Iterator[Finding]:
    """The processor's own word on whether it corrected the error."""
    for match in BANK.finditer(text.lower):
        if int(match[1], 16) >> UNCORRECTED_BIT & 1:
            severity, tier = SEV1, HARD
        else:
            severity, tier = NONE, Tier.HINT
        yield finding(text, match.start(), tier, "memory.bank", Kind.HOST_MEMORY, severity)


def find_faults(text: Text) -> Iterator[Finding]:
    """A program that the kernel saw fault; a daemon's is no failure of the training."""
    if "segfault" not in text.lower and "traps:" not in text.lower:
        return
    for match in FAULTED.finditer(text.lower):
        if match[1] and BYSTANDER.match(match[1]):
            yield finding(text, match.start(), Tier.HINT, "kernel.bystander", Kind.NON_FAILURE,
                          NONE, UNKNOWN)  # fmt: skip
        else:
            yield finding(text, match.start(), Tier.PROCESS, "kernel.segfault", Kind.EXITED, SEV2)


def _none_counted(lower: str) -> bool:
    """A cgroup's event counters, all at nought."""
    counts = re.findall(r"oom_(?:group_)?kill (\d+)\b", lower)
    return bool(counts) and not any(map(int, counts))
