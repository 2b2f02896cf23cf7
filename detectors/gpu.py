"""What the driver, nvidia-smi, DCGM and the fabric manager say of GPUs, beside Xids. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import (
    SELF,
    SEV1,
    SEV2,
    SEV3,
    UNKNOWN,
    Finding,
    Rule,
    Text,
    finding,
)
from detectors.verdict import Kind, Tier

HARD = Tier.HARDWARE
MISMATCH = (
    "driver/library version mismatch",
    "nvrm: api mismatch",
    "cuda driver version is insufficient",
    "the nvidia driver on your system is too old",
    "forward compatibility was attempted",
    "unsupported display driver / cuda driver combination",
    "compiled with an unsupported toolchain",
    "the cuda driver is too old",
    "driver/library mismatch",
    "cudaerrorinsufficientdriver",
    "please update your driver",
    "unsatisfied condition: cuda",
    "unsatisfied condition: driver",
)

# fmt: off
RULES = (
    Rule("gpu.lost", Kind.GPU_LOST, SEV1,
         ("fallen off the bus", "config space inaccessible", "device inaccessible",
          "gpu is lost", "gpu_is_lost",
          "gpu lost", "err!", "unable to determine the device handle for gpu",
          "gpu is no longer accessible", "failed to get details on gpu",
          "api_gpu_attached_sanity_check failed", "gpu_in_fullchip_reset"), tier=HARD),
    Rule("gpu.power_state", Kind.GPU_LOST, SEV1, ("power state",),
         r"(nvidia|amdgpu)[^\n]*(refused to|unable to|can't) change power state", tier=HARD),
    Rule("gpu.missing", Kind.GPU_LOST, SEV1,
         ("count reported lower than configured", "gpu count mismatch", "gpus found,",
          "count changed for node", "gres.conf file", "gres/gpu"),
         r"lower than configured|count mismatch|\d gpus found, \d+ expected|"
         r"gres/gpu[^\n]*count (changed|too low)|gres/gpu[^\n]*inconsistent with|gres\.conf "
         r"file /dev/(nvidia|dri)", tier=HARD),
    Rule("gpu.no_config", Kind.GPU_LOST, SEV1, ("(rev ff)",), r"nvidia[^\n]*\(rev ff\)", tier=HARD),
    Rule("gpu.mismatch", Kind.DRIVER_MISMATCH, SEV1, MISMATCH, tier=Tier.DECISIVE),
    Rule("gpu.unhealthy", Kind.GPU_DRIVER, SEV1,
         ("device marked unhealthy", "device as unhealthy", "unavailable for nvidia.com/gpu",
          "nvidia-container-cli: "),
         r"marked unhealthy|device as unhealthy|unavailable for nvidia\.com|"
         r"nvidia-container-cli: [^\n]*(error|failed|unknown)", tier=Tier.PROCESS),
    Rule("gpu.driver", Kind.GPU_DRIVER, SEV1,
         ("rminitadapter failed", "rm_init_adapter failed", "kgsprpc", "gsp rpc",
          "rpc from gsp", "gsp task", "gsp-rm", "gsp heartbeat", "gsp firmware",
          "couldn't communicate with the nvidia driver", "failed to initialize nvml: unknown",
          "failed to initialize nvml: driver not loaded", "nvml: driver not loaded",
          "no devices were found", "cuda driver initialization failed", "found no nvidia driver",
          "inforom is corrupted", "nvrm: gpu initialization failed",
          "the nvidia probe routine failed", "failed to allocate nvkms", "nvidia_uvm: failed",
          "pci i/o region assigned to your", "initialization error: nvml", "detection error: nvml",
          "nvml_error_unknown",
          "failed to copy vbios", "nvidia: probe of", "no nvidia graphics adapter",
          "nvidia probe routine was not called", "no nvidia gpu found",
          "gpu lockup (", "in reset required state", "corrupt inforom",
          "reset required [nv_err", "gpu requires reset", "power cables not attached",
          "interrupt issue with a gpu",
          "failed to create a cuda context", "corresponding cuda device for gpu",
          "no longer bound to a cuda context"), tier=HARD),
    Rule("gpu.driver.assert", Kind.GPU_DRIVER, SEV1, ("nvrm",),
         r"nvrm:? .*(\w*rpc\w*:? [^\n]*failed|\bgsp\w* failed|booter\w* failed|execute booter|"
         "cannot bootstrap|gsp timeout|rpc.*time.?out|timed? ?out.*(rpc|gsp)|heartbeat timed "
         "out|gsp timeout|"
         "subsystem error|gpu at [^\\n]*is not responding|failed to (load|init|boot)|probably "
         "locked|"
         "unable to (reset|recover)|is not supported by|"
         "cannot (attach|initialize|map|start|boot|proceed)|bailing out|failed to start|"
         r"\b(rm_?init|osinit|nv_?init|request_irq)\w*(\(\))?:? failed|"
         "no(ne of the)? nvidia devices (probed|were))", tier=HARD),
    Rule("gpu.smi.hang", Kind.GPU_DRIVER, SEV1, ("nvidia-smi", "dcgm"),
         r"(nvidia-smi|dcgm)[^\n]{0,60}(timed out|timeout|hangs|hung|"
         "(did|has|have) not (return|respond))",
         tier=HARD),
    Rule("gpu.ecc", Kind.ECC, SEV1,
         ("uncorrectable ecc", "uncorrectable double bit", "double bit ecc", "double-bit ecc",
          "dbe ecc", "ecc uncorrectable", "cudaerroreccuncorrectable", "eccuncorrectable",
          "row remap failure", "row remapping failure", "uncorrectable sram",
          "uncorrectable dram", "volatile dbe", "dbes detected", "dbe detected",
          "dbe (double bit", "sram threshold exceeded", "retired pages limit",
          "page retirement failure", "memory page retirement limit", "faulty memory elements",
          "miscompare failure", "contained error", "ram uncorrectable error",
          "uncorrectable row remap limit",
          "sram threshold count exceeded"),
         "(uncorrectable ecc|double.bit ecc|dbe ecc|ecc ?uncorrectable|remap(ping)? failure|"
         "uncorrectable [sd]ram|volatile dbe|dbes? detected|threshold exceeded|double bit error|"
         "retired pages limit|retirement (failure|limit)|uncorrectable double|faulty memory el|"
         "miscompare failure|contained error|[sd]ram uncorrectable error|row remap limit|"
         "count exceeded)(?! *(errors?|"
         r"count|occurred)? *: *(0|no)\b)", tier=HARD),
    Rule("gpu.ecc.field", Kind.ECC, SEV1, ("volatile",),
         r"(?s)volatile(?:(?!aggregate).)*[sd]ram uncorrectable[\w -]*: *[1-9]", tier=HARD),
    Rule("gpu.row_remap", Kind.ROW_REMAP, SEV1,
         ("remappings are pending", "remapping is pending", "row remap pending",
          "pending row remap", "remapped rows pending", "pages pending retirement",
          "pending retired pages", "pending page retirement", "rows remapped pending",
          "pending remapped row", "pending remappings", "pending retired page has been"),
          tier=HARD),
    Rule("gpu.recovery", Kind.GPU_DRIVER, SEV1, ("recovery action",),
         "recovery action *: *(reset|reboot|drain|gpu reset|node reboot)", tier=Tier.SYMPTOM),
    Rule("gpu.row_remap.field", Kind.ROW_REMAP, SEV1, ("pending ", "pending:"),
         r"\bpending *(page blacklist)? *: *yes\b", tier=HARD),
    Rule("gpu.row_remap.failed", Kind.ECC, SEV1, ("remapping failure occurred",),
         r"remapping failure occurred *: *yes\b", tier=HARD),
    Rule("gpu.thermal", Kind.THROTTLE, SEV1,
         ("thermal violation", "power violation", "thermal slowdown", "power brake",
          "hw slowdown", "hw_slowdown", "hw_thermal_slowdown", "clock throttling"),
         "(thermal|power) violations? (totaling|detected)|(hw slowdown|(hw|sw) thermal slowdown|"
         r"hw power brake slowdown) *: *active\b|(hw|sw)_(thermal_|"
         r"power_brake_)?slowdown['\"]?[ :=,]+['\"]?(active|true|1)\b|clock throttling due to|"
         "(thermal|power brake|hw) slowdown (is |was )?(active|detected|engaged)|"
         r"slowdown events? [^\n]*exceeded", tier=HARD),
    Rule("gpu.hot", Kind.THROTTLE, SEV1,
         ("temperature above", "temperature is above threshold", "over temperature", "overtemp",
          "high temperature", "temperature exceeds", "critical temperature",
          "event due to thermal violation",
          "event due to power violation", "temp_hw_slowdown_violation", "clock throttled",
          "clock is throttled", "cable error, high temperature", "high temperature detected"),
         tier=HARD, unless=r"\bcritical temperature *: *\d"),
    Rule("nvlink.down", Kind.NVLINK, SEV1,
         ("uncorrectable nvlink", "nvlink fatal", "nvlink is down", "nvlink down",
          "nvlinks are down", "nvlink uncorrectable", "nvlink error", "fatal nvlink",
          "nvlink link down", "nvlink training", "nvlinks are up out of the expected",
          "all links are inactive", "links are inactive",
          "nvlink crc flit error", "nvlink errors on gpu", "rx detect link mask",
          "postrxdetlinkmask failed", "link training failed", "link is currently down",
          "nvlink link"),
         "(?<!gpu )nvlink|rx ?detect|links? (are )?(inactive|training)|"
         "currently down|rx detect link mask", tier=HARD,
         unless=r"0 nvlink error|nvlink errors?: *0\b|no nvlink error"),
    Rule("nvlink.contained", Kind.NVLINK, SEV1,
         ("peer gpu memory over nvlink", "cudaerrorcontained", "nvlink error detected during the",
          "cudaerrornvlinkuncorrectable"), blame=UNKNOWN, tier=Tier.DECISIVE),
    Rule("nvlink.counter", Kind.NVLINK, SEV1, ("link ",),
         r"(replay|recovery|crc flit|crc data) errors?(?: counter)?: *[1-9]\d{2,}", tier=HARD),
    Rule("fabric.manager", Kind.NVSWITCH, SEV1,
         ("aborting fabric manager", "fabric manager is not running", "nv_warn_nothing_to_do",
          "system not yet initialized", "nvswitch fatal", "fatal error on nvswitch",
          "nvidia-fabricmanager.service: failed", "nvidia-fabricmanager.service failed",
          "failed to start nvidia fabric manager", "failed to start fabric manager",
          "fabricmanager.service: main process exited", "detected nvswitch fatal",
          "failed to initialize fabric manager", "fabric manager terminated",
          "fabric manager failed", "imex daemon", "cudaerrorsystemnotready",
          "fabric state: error", "fabric is not initialized", "number of nvswitches",
          "multicast team", "nvlink sharp (nvls) multicast",
          "nvlink sharp (nvls) support is available but failed"), tier=HARD,
         unless="imex daemon.{0,40}(ready|started|connected)"),
    Rule("fabric.manager.nonfatal", Kind.NVSWITCH, SEV3,
         ("nvswitch non-fatal error", "nonfatal errors on nvswitch"),
         blame=UNKNOWN, tier=Tier.SYMPTOM),
    Rule("fabric.manager.log", Kind.NVSWITCH, SEV1, ("fabric manager", "fabricmanager", "nvswitch"),
         r"\[error\][^\n]*(nvswitch|nvlink|fabric|\bgpu)|nv-?fabric-?manager[^\n]*(\berror\b|"
         r"failed|fatal|exited)|(fabric manager|nvswitch)[^\n]*(failed|fatal error|timed out|"
         "unavailable|not running|degraded|mismatch|exit code: [1-9]|invalid value)", tier=HARD,
         unless="nvswitch non-fatal error"),
    Rule("fabric.field", Kind.NVSWITCH, SEV1, ("fabric",),
         r"fabric[^\n]*\n[^\n]*state *: *(in progress|not started|error)|"
         r"fabric[^\n]*\n(?:[^\n]*\n)?[^\n]*status *: *(insufficient|error|fail|timeout)",
         tier=HARD),
    Rule("pcie.replay", Kind.PCIE_AER, SEV1, ("pcie replay", "pci replay"),
         r"pcie? replay[^\n]*(detected|exceed|above|warning|fail|high)|(detected|"
         r"more than) [^\n]*pcie? replays", tier=HARD),
    Rule("gpu.diag", Kind.GPU_DRIVER, SEV1, ("fail",),
         r"\| *(deployment|gpu memory|memory|diagnostic|pcie|targeted (stress|power)|sm stress|"
         r"memtest|nvbandwidth|pulse test|software|hardware)[^\n|]*\|[^\n|]*\bfail",
         tier=Tier.SYMPTOM),
    Rule("nvlink.smi", Kind.NVLINK, SEV1, ("<inactive>", "inactive"),
         r"link \d+: <?inactive>?", tier=HARD),
)
# fmt: on

SXID = re.compile(r"\bsxid\b[^\n]{0,40}?: *(\d{5})\b([^\n]*)")


def find_sxid(text: Text) -> Iterator[Finding]:
    """A switch error names its own weight; lines with raw data follow the one that does."""
    if "sxid" not in text.lower:
        return
    for match in SXID.finditer(text.lower):
        words = match[2]
        if re.search(r"non-?fatal|severity [02-9]", words):
            severity, blame, tier = SEV3, UNKNOWN, Tier.SYMPTOM
        elif "fatal" in words or "severity" in words:
            severity, blame, tier = SEV1, SELF, HARD
        else:
            severity, blame, tier = SEV1, SELF, Tier.SYMPTOM
        yield finding(text, match.start(), tier, f"sxid.{match[1]}", Kind.NVSWITCH, severity, blame)


ROW = re.compile(r"(?P<watts>\d+)w */ *(?P<limit>\d+)w *\|[^|]*\| *(?P<busy>\d+)% ", re.MULTILINE)
STUCK_POWER = 0.35  # a GPU that spins in a collective draws little; one that computes does not


def find_stuck_gpus(text: Text) -> Iterator[Finding]:
    """nvidia-smi during a hang: those who wait show 100 % at low power, the culprit shows 0 %."""
    waiting, idle, rows = stuck_rows(text.lower)
    if len(waiting) >= 2 and len(waiting) + len(idle) == rows:
        where = (idle or waiting)[0].start()
        blame = SELF if idle else UNKNOWN
        yield finding(text, where, Tier.TIMEOUT, "gpu.stuck", Kind.HANG, SEV2, blame)


def stuck_rows(lower: str) -> tuple[list[re.Match[str]], list[re.Match[str]], int]:
    """GPUs that spin at low power, GPUs that do nothing, and how many are listed."""
    if "%" not in lower or "mib /" not in lower:
        return [], [], 0
    rows = list(ROW.finditer(lower))
    resting = [row for row in rows if _share(row) <= STUCK_POWER]
    waiting = [row for row in resting if int(row["busy"]) >= 95]
    return waiting, [row for row in resting if int(row["busy"]) == 0], len(rows)


def _share(row: re.Match[str]) -> float:
    return int(row["watts"]) / max(1, int(row["limit"]))
