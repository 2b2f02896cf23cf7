"""What DCGM and the checks like it say of a GPU, a link or a switch: subject, number, limit. Pure.

Their sentences name a device and what was measured; most hold no word of error at all.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

from detectors.rules import NONE, SEV1, SEV2, Rule
from detectors.verdict import Kind, Tier

HARD, SYMPTOM = Tier.HARDWARE, Tier.SYMPTOM
DEVICE = r"(gpu|nv-?switch|nic|device|\bhca)s?\b"

# fmt: off
RULES = (
    Rule("dcgm.nvlink", Kind.NVLINK, SEV1, ("nvlink", "nv-link",
          "error count detected link", "links down",
          "links disabled", "gpuid "),
         r"nv-?link\w*[^\n]*(is (currently )?down|errors? found|errors (on|at) |exceed\w*)|"
         r"high (crc|recovery|replay)[\w ]* error count|[1-9]\d* links (down|disabled)|nvlinks "
         r"inactive|"
         r"\bber \S+ exceeds[^\n]*nvlink|unsuccessfully[^\n]*over nvlink|"
         r"p2p is disabled between nvlink|gpuid \d+:\s+([udx_] )*d( [udx_])+\b", tier=HARD,
         unless="no nvlink errors|sxid"),
    Rule("dcgm.switch", Kind.NVSWITCH, SEV1, ("nvswitch", "imex", "fabric"),
         r"(?<!non)(?<!non-)fatal (errors on )?nv-?switch|imex (domain |node |daemon )?\S+ "
         r"status is "
         r"(?!up|ok|ready)|fabric state( is)?:? (?!completed|success|n/a|not supported)\w|"
         r"fabric state[^\n]*(unhealthy|degraded)|unhealthy fabric|fabric manager \(cluster uuid|"
         "(bandwidth|route) (degraded|unhealthy)", tier=HARD),
    Rule("dcgm.peer", Kind.GPU_DRIVER, SEV1, ("unsuccessfully",),
         r"unsuccessfully (wrote|written|read)", tier=SYMPTOM),
    Rule("dcgm.recovery", Kind.GPU_DRIVER, SEV1, ("recovery action", "to recover from a fault"),
         r"recovery action: *\S* *\(?(gpu_reset|node_reboot|drain_\w+|gpu reset|node reboot)|"
         "requires a reset to recover", tier=SYMPTOM),
    Rule("dcgm.driver", Kind.GPU_DRIVER, SEV1, ("nvml", "eud "),
         r"error calling nvml|nvml returns is different|cannot get pointer to nvml|"
         r"nvml[^\n]*(unknown error|timed? ?out|uninitialized|gpu requires reset)|"
         r"eud (test|binary)[^\n]*fail", tier=SYMPTOM),
    Rule("dcgm.api", Kind.CUDA, SEV2, ("api call cu", "cuda api", "using cuda"),
         r"api call cu\w+ failed|error using cuda api", tier=SYMPTOM),
    Rule("dcgm.memory", Kind.ECC, SEV1,
         ("memory mismatch", "nan-value memory", "row remapping failed", "rows were remapped",
          "retired pages", "double-bit", "dbe", "memory elements", "remapped rows",
          "uncorrectable memory", "memory test failed", "uncorrected", "ecc error", "row remap"),
         r"memory mismatch was detected|nan-value memory|remapping failed|had uncorrectable memory|"
         r"[1-9]\d* (or more )?retired pages|retired pages due to dbe|"
         r"(?<![\d.])[1-9]\d* \S*dbe\S*|[1-9]\d* uncorrected \w+ errors? |"
         r"uncorrected[\w ]* errors?:? [1-9]|ecc uncorrected: [1-9]|uncorrectable/correctable ecc|"
         r"row remap (error|uncorrectable)|ecc errors? (found|detected) \(?(?!0)|found "
         r"[1-9]\d* ecc|but found [1-9]\d* on gpu",
         tier=SYMPTOM),
    Rule("dcgm.corrected", Kind.ECC, NONE, ("single-bit", "sbe"),
         r"single-bit ecc|volatile sbes|\d+ \S*sbe\S*", tier=Tier.HINT),
    Rule("dcgm.replay", Kind.PCIE_AER, SEV1, ("replay",),
         r"(pcie|host-side)[^\n]*replay violation|[1-9]\d* \S*pcie\S*replay\S*", tier=HARD),
    Rule("dcgm.slow", Kind.STRAGGLER, SEV1,
         ("link generation", "link width", "memory bandwidth of", "did not reach desired",
          "maximum allowed latency", "below the threshold", "below the minimum",
          "too low to attempt",
          "minimum required", "failing to meet"),
         r"below the minimum|only achieved|did not reach desired|exceeded maximum allowed latency|"
         r"too low to attempt|" + DEVICE + r"[^\n]*below the threshold|failing to meet|"
         r"(bandwidth|gb/s|latency)[^\n]*minimum required", tier=HARD),
    Rule("dcgm.hot", Kind.THROTTLE, SEV1,
         ("temperature", "clocks event", "slowdown", "power brake", "clocks_event"),
         r"temperature \S+ of \S+( \S+)? exceeded|temperature:? \d+[^\n]*(higher|above|over) |"
         r"clocks event for gpu|"
         r"slowdown[^\n]{0,180}(is|are|was) (engaged|active)|brake assertion being triggered",
         tier=HARD, unless="not active"),
    Rule("dcgm.count", Kind.GPU_LOST, SEV1, ("gpus",),
         r"number (of )?gpu.?s (present, \d+, is different|not correct)|number gpu.?s not correct|"
         r"(expected|found) \d+ gpus,? (but )?(found|got|expected) \d", tier=HARD),
    Rule("dcgm.ports", Kind.PORT_DOWN, SEV1, ("port(s) are active", "hcas found",
          "interfaces present"),
         r"only \d+ port\(s\) are active|\d+ hcas found, but expected|"
         r"interfaces present, \d+, is different", tier=HARD),
    Rule("dcgm.disk", Kind.STORAGE, SEV1, ("disk usage",), "above critical threshold", tier=HARD),
    Rule("dcgm.memory_short", Kind.GPU_OOM, SEV2, ("gpu memory on gpu",),
         "couldn't allocate at least", recurs=True),
    Rule("dcgm.setting", Kind.CONFIGURATION, SEV2, ("denylist", "mig configuration", "mig mode"),
         r"driver on the denylist|mig (configuration|mode)[^\n]*(incompatible|prevents|disagree)",
         recurs=True),
)
# fmt: on
