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
    Rule("rocm.page_fault", Kind.ILLEGAL_ACCESS, SEV2, ("amdgpu",), r"amdgpu[^\n]*page fault"),
    Rule("rocm.driver", Kind.GPU_DRIVER, SEV1, ("amdgpu", "hw exception by gpu"),
         r"hw exception by gpu|amdgpu[^\n]*(gpu reset|ring \S+ timeout|hang|failed to|fatal|"
         r"smu:|device lost|wedged)",
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
