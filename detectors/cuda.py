"""CUDA's error strings and their kin, wherever they are quoted: torch, NCCL, cuBLAS. Pure.

A GPU reports late: the traceback points at the next synchronisation, the string is what counts.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import SELF, SEV1, SEV2, Finding, Rule, Text, finding
from detectors.verdict import Kind, Tier

PROCESS, SYMPTOM = Tier.PROCESS, Tier.SYMPTOM

# fmt: off
RULES = (
    Rule("cuda.assert", Kind.USER_BUG, SEV2,
         ("device-side assert", "cudaerrorassert", "indexselect", "index out of bounds",
          "scattergatherkernel", "` failed.", "nll_loss"),
         r"device-side assert(?!ions)|cudaerrorassert|block: \[[^\n]*assertion|"
         r"assertion `[^`\n]+` failed", tier=Tier.DECISIVE, recurs=True),
    Rule("cuda.illegal_access", Kind.ILLEGAL_ACCESS, SEV2,
         ("illegal memory access", "cudaerrorillegaladdress", "cuda_error_illegal_address",
          "illegal address", "invalid address space", "memory access fault by gpu",
          "cudaerrorinvalidaddressspace", "hiperrorillegaladdress", "invalid __global__",
          "page not present or supervisor")),
    Rule("cuda.no_kernel", Kind.CONFIGURATION, SEV2,
         ("no kernel image is available", "invalid device ordinal",
          "is not compatible with the current pytorch installation", "not compiled with cuda",
          "invalid device function", "peer access is not supported", "no cuda gpus are available",
          "no cuda runtime", "attempting to deserialize object on cuda device",
          "attempting to deserialize object on a cuda device", "nvrtc: error: invalid value for"),
         recurs=True, unless="hip error"),
    Rule("cuda.fork", Kind.USER_BUG, SEV2,
         ("cannot re-initialize cuda in forked", "invalid resource handle", "context is destroyed"),
         recurs=True),
    Rule("cuda.cublas.alloc", Kind.GPU_OOM, SEV2,
         ("cublas_status_alloc_failed", "cudnn_status_alloc_failed",
          "cusolver_status_alloc_failed", "cufft_alloc_failed"), recurs=True),
    Rule("cuda.launch", Kind.CUDA, SEV2,
         ("unspecified launch failure", "cudaerrorlaunchfailure", "launch timed out",
          "illegal instruction was", "invalid program counter", "hardware stack error",
          "busy or unavailable", "cuda_error_launch_failed", "an illegal instruction",
          "too many resources requested for launch", "warp exception",
          "cudaerrorillegalinstruction", "cuda_error_illegal_instruction",
          "cudaerrorlaunchtimeout", "misaligned address", "cudaerrormisalignedaddress"),
         unless=r"illegal instruction \(core dumped\)"),
    Rule("cuda.library", Kind.CUDA, SEV2,
         ("cublas_status_", "cudnn_status_", "cusparse_status_", "cusolver_status_",
          "cudnn error", "cublas error", "unable to find an engine", "valid cudnn algorithm",
          "cufft_", "curand_status_", "cublaslt", "cublas runtime error"),
         "(cublas|cudnn|cusparse|cusolver|curand)_status_(?!success)|cu(dnn|blas) (runtime )?error|"
         r"cufft_(?!success)\w*(fail|error|invalid)|unable to find an engine|"
         "valid cudnn algorithm"),
    Rule("cuda.unhandled", Kind.CUDA, SEV2,
         ("unhandled cuda error", "ncclunhandledcudaerror", "cuda failure",
          "call to cuda function failed", "busy or unavailable"), tier=SYMPTOM,
         unless="driver shutting down"),
    Rule("cuda.unloading", Kind.EXITED, SEV2, ("driver shutting down", "cudaerrorcudartunloading"),
         "failure[^\\n]*driver shutting down|cudaerrorcudartunloading", tier=Tier.SUMMARY),
    Rule("cuda.error", Kind.CUDA, SEV2,
         ("cuda error", "cudaerror", "cuda_error", "cuda runtime error", "c10::cudaerror",
          "cuda kernel failed", "cuda exception", "cuda driver error", "nvrtc_error",
          "cuda initialization", "cuda unknown error", "cuda call failed", "gpuassert",
          "cuda_check", ") failed"),
         "cuda[ _]?error(?! handling)|cuda_error_|cuda runtime error|cuda kernel failed|"
         "cuda exception|cuda driver error|nvrtc_error|cuda initialization|cuda unknown error|"
         "cuda call failed|gpuassert|\\bcuda\\w+\\([^)\\n]*\\) failed", tier=SYMPTOM),
)
# fmt: on

OOM_WORDS = (
    "out of memory", "outofmemoryerror", "resource_exhausted", "cudaerrormemoryallocation",
    "cuda_error_out_of_memory", "failed to allocate", "oom when allocating",
)  # fmt: skip
OOM = re.compile(
    r"(cuda|hip|xpu|npu|musa|mps|hpu|gpu)[^\n]{0,40}out of memory|out ?of ?memory ?error|"
    r"resource_exhausted: |cudaerrormemoryallocation|cuda_error_out_of_memory|"
    r"oom when allocating|failed to allocate [^\n]*(on the device|device memory|gpu|hbm)|"
    r"out of memory while trying to allocate|cuda failure[^\n]*out of memory|nv_err_no_memory"
)
HOST_SIDE = re.compile(r"cpu allocator|defaultcpuallocator|host memory|killed process|oom-kill")
OTHER_PROCESS = re.compile(r"process \d+ has [\d.]+ [mkgt]ib memory in use")
MANY = 3  # other processes on one GPU: every rank opened its context there


def find_oom(text: Text) -> Iterator[Finding]:
    """Out of GPU memory recurs; many neighbours on the GPU are a wrong device mapping."""
    if not any(word in text.lower for word in OOM_WORDS):
        return
    match = OOM.search(text.lower)
    if match is None:
        return
    if HOST_SIDE.search(text.lower) and "cuda" not in match[0]:
        return
    if len(OTHER_PROCESS.findall(text.lower)) >= MANY:
        name, kind = "cuda.oom.crowded", Kind.USER_BUG
    else:
        name, kind = "cuda.oom", Kind.GPU_OOM
    yield finding(text, match.start(), PROCESS, name, kind, SEV2, SELF, recurs=True)


# fmt: off
NODE_RULES = (
    Rule("cuda.no_device", Kind.GPU_DRIVER, SEV1,
         ("no cuda-capable device", "cudaerrornodevice", "cuda_error_no_device"),
         tier=Tier.HARDWARE),
)
# fmt: on
