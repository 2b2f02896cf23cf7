"""Accelerators and frameworks outside CUDA: the same kinds where the words are plain. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

from detectors.rules import PEER, SEV1, SEV2, SEV3, UNKNOWN, Rule
from detectors.verdict import Kind, Tier

# fmt: off
RULES = (
    Rule("hccl.timeout", Kind.NCCL_TIMEOUT, SEV3,
         ("ei0002", "notify register times out", "ei0006", "hcclcommunicat", "notify wait"),
         "ei000[26]|notify register times out|notify wait", blame=PEER, tier=Tier.TIMEOUT),
    # As Huawei numbers the errors of its NPUs and of their collectives.
    Rule("hccl.stuck", Kind.NCCL_TIMEOUT, SEV3,
         ("stream synchronize timeout", "stream sync timeout", "internal task times out",
          "in the specified timeout waiting event"), blame=UNKNOWN, tier=Tier.TIMEOUT),
    Rule("hccl.link", Kind.LOST, SEV2, ("ei0009", "ei0010", "ei0013", "ei0015"),
         r"\bei00(09|1[035]): ", blame=PEER, tier=Tier.VICTIM),
    Rule("hccl.settings", Kind.CONFIGURATION, SEV2, ("ei0001", "ei0004", "ei0005", "ei0008"),
         r"\bei000[1458]: ", recurs=True),
    Rule("hccl.memory", Kind.GPU_OOM, SEV2, ("el0004", "ei0007", "ei0011"),
         r"\b(el0004|ei0007|ei0011): ", recurs=True),
    Rule("rocm.page_fault", Kind.ILLEGAL_ACCESS, SEV2, ("amdgpu",), r"amdgpu[^\n]*page fault"),
    Rule("rocm.driver", Kind.GPU_DRIVER, SEV1, ("amdgpu", "radeon", "hw exception by gpu"),
         r"hw exception by gpu|(amdgpu|radeon)\b[^\n]*(gpu reset|ring \S+ timeout|hang|failed to|"
         r"fatal|smu:(?! driver| is init)|device lost|wedged|\*error\*|test failed|timed ?out|"
         r"soft_reset=0x(?!0+\b))",
         tier=Tier.HARDWARE),
    Rule("rocm.ecc", Kind.ECC, SEV1, ("amdgpu", "ras"),
         r"amdgpu[^\n]*(uncorrectable|ras error|bad page)", tier=Tier.DECISIVE),
    Rule("foreign.error", Kind.SOFTWARE, SEV2,
         ("hip error", "hsa_status_error", "hiperror", "synstatus", "habana", "hccl", "aclrt",
          "acl error", "ascend", "rccl", "oneccl", "tpu", "xla", "nrt_", "neuron", "miopen",
          "rocblas", "hipblas", ": inner error", "aicore", "levelzero", "ze_result_error", "musa"),
         "(hip|acl|xla|tpu|nrt|neuron|rccl|hccl|habana|ascend|miopen|rocblas|hipblas|musa|"
         r"oneccl)[^\n]*(error|fail|exception|fatal|timeout)|hsa_status_error|synstatus|"
         r"\be[a-z]\d{4}: inner error|aicore[^\n]*(exception|error)|ze_result_error",
         blame=UNKNOWN, tier=Tier.SUMMARY),
)
# fmt: on
