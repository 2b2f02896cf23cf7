"""NCCL's own warnings and the errors that frameworks make of them. Pure.

NCCL's result codes say where a call stopped, not why: a remote error (6) surfaces as an internal
one (3) further up. So they are symptoms, and the warning beside them speaks.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

from detectors.rules import PEER, SEV1, SEV2, SEV3, UNKNOWN, Rule
from detectors.verdict import Kind, Tier

HINT, SYMPTOM, VICTIM = Tier.HINT, Tier.SYMPTOM, Tier.VICTIM
ENDING = "(abort|destroy) complete"
RESULT = r"nccl info \S+ -> {0}\b|retcode {0}\b"

# fmt: off
RULES = (
    Rule("nccl.link_local", Kind.CONFIGURATION, SEV2,
         ("connect to fe80", "no socket interface found", "bootstrap : no socket",
          "duplicate gpu detected", "mismatch in rank count", "rank count from procs",
          "failed to find reverse path", "no interface found in the same subnet",
          "bootstrap: no", "no usable network interface", "socket creation failed :",
          "unable to find interface"), recurs=True),
    Rule("nccl.set_up", Kind.CONFIGURATION, SEV2,
         ("nccl warn", "net/ofi"),
         r"(nccl warn|net/ofi)[^\n]*(ibv_create_\w+ failed|(couldn.t (open|find any)|"
         "creating new|unable to "
         "open|unable to register memory|no device match|no usable|no ip interface|no interface|"
         r"no \S*nic)|version mismatch|incompatible|mismatched nccl|not backwards compatible|"
         "library is too old|fi_getinfo\\(?\\)? call failed|too old version|invali[dg] config|"
         "invalid nccl_|no transport found|"
         "no path computed|protocol not available|function not implemented|"
         "operation not supported|no data available|minimum requirement|"
         "not supported (prior|by|on)|detected mixed|"
         r"different link|(rc: -22|error: -22|invalid argument)(?!'))",
         unless="cuda failure|reg_mr|modify_qp", recurs=True),
    Rule("nccl.nvml", Kind.GPU_DRIVER, SEV1, ("nccl warn",),
         r"nccl warn nvml\w+(\(\))? failed", tier=SYMPTOM),
    Rule("nccl.imex", Kind.NVSWITCH, SEV1, ("mnnvl", "imex"),
         "mnnvl[^\n]*(not working on this system|not healthy)|check the imex", tier=Tier.HARDWARE),
    Rule("nccl.misuse", Kind.USER_BUG, SEV2, ("nccl warn",),
         r"nccl warn[^\n]*(invalid (root|rank|type|reduction)|no algorithm/protocol|"
         "is not a valid pointer|argument is null|"
         "without a matching|symmetric registration check failed|mismatchs with nccl device|"
         "has already checked in|mismatch in info from procs)", recurs=True),
    Rule("nccl.protocol", Kind.SOFTWARE, SEV2, ("nccl warn",),
         r"nccl warn[^\n]*(wrong (type|magic|size)|message truncated|"
         "while attaching to shared memory segment|"
         r"corrupted comm|internal error|"
         "unknown message type|mismatched response)", tier=SYMPTOM),
    Rule("nccl.invalid", Kind.CONFIGURATION, SEV2,
         ("nccl error", "ncclinvalidargument", "ncclinvalidusage"),
         r"nccl error[^\n]*invalid (argument|usage)|ncclinvalid(argument|usage)", recurs=True),
    Rule("nccl.truncated", Kind.USER_BUG, SEV2,
         ("message truncated", "size mismatch between", "mismatched collective",
          "different sizes across ranks"), recurs=True, unless="bootstrap"),
    Rule("nccl.shm", Kind.SHM, SEV2,
         ("creating shared memory segment", "shared memory segment", "/dev/shm",
          "posix_fallocate", "unable to allocate shared memory", "shmopen",
          "unable to open shared memory", "insufficient shared memory", "shared memory limit",
          "out of shared memory"),
         r"shared memory segment[^\n]*(error|size|fail)|error[^\n]*shared memory segment|"
         r"failed to extend /dev/shm|/dev/shm[^\n]*(no space|full|100%|too small|bus error)|"
         r"no space left[^\n]*/dev/shm|posix_fallocate[^\n]*fail|unable to (allocate|"
         "open) shared memory|insufficient shared memory|shared memory limit|"
         "out of shared memory"),
    Rule("nccl.register", Kind.DMA, SEV1,
         ("ibv_reg_mr", "reg_mr", "allocate mr", "create mr", "register memory",
          "memory registration", "nvidia-peermem", "peermem", "nv_peer_mem", "ibv_reg_dmabuf"),
         r"reg_(mr|dmabuf)\w*[^\n]*(fail|error|bad address|cannot|invalid)|(couldn't|failed to|"
         "cannot|could not) (allocate|create|register) (mr|memory region)|"
         r"memory registration (failed|error)|(peermem|nv_peer_mem)[^\n]*(not loaded|failed|"
         "missing|unknown symbol|disagrees about version|invalid argument)", tier=Tier.HARDWARE),
    Rule("nccl.closed", Kind.LOST, SEV2,
         ("connection closed by remote peer", "remote process exited", "ncclremoteerror",
          "proxy call to rank", "could not receive type from", "failed to execute operation",
          "remote process exiting prematurely", "unexpected close", "peer has exited",
          "network connection closed", "failed while polling", "socket progress error"),
         blame=PEER, tier=VICTIM, unless="cuda failure|out of memory"),
    Rule("nccl.connect_timeout", Kind.NETWORK, SEV3,
         ("socketpollconnect", "socketstartconnect", "connect to ", "call to connect"),
         r"(socket\w*connect|connect to|call to connect)[^\n]*(timed out|timeout|unreachable|"
         "exceeded|no route)", blame=UNKNOWN, tier=SYMPTOM),
    Rule("nccl.system", Kind.NETWORK, SEV3, ("unhandled system error", "ncclsystemerror"),
         blame=UNKNOWN, tier=VICTIM, unless="connection closed by"),
    Rule("nccl.internal", Kind.SOFTWARE, SEV2,
         ("ncclinternalerror", "internal error - please report", "nccl error"),
         r"ncclinternalerror|internal error - please report|nccl error[^\n]*internal",
         blame=UNKNOWN, tier=Tier.SUMMARY),
    # NCCL warns where a call ends with an error, and hardly elsewhere.
    Rule("nccl.warning", Kind.SOFTWARE, SEV2, ("nccl warn",),
         r"nccl warn (?![^\n]*async (\w+ )?event)\S", tier=Tier.HINT),
    # Where only the trail of result codes is left of an error.
    Rule("nccl.trail.cuda", Kind.CUDA, SEV2, ("-> 1", "retcode 1"), RESULT.format(1), tier=HINT,
         unless=ENDING),
    Rule("nccl.trail.socket", Kind.LOST, SEV2, ("socket.cc:",),
         r"nccl info \S*socket\.cc:\d+ -> [236]\b", blame=PEER, tier=HINT, unless=ENDING),
    Rule("nccl.trail.internal", Kind.SOFTWARE, SEV2, ("-> 3", "retcode 3"), RESULT.format(3),
         tier=HINT, unless=ENDING),
    Rule("nccl.trail.usage", Kind.CONFIGURATION, SEV2, ("-> 4", "-> 5", "retcode 5"),
         RESULT.format("[45]"), tier=HINT, unless=ENDING),
    Rule("nccl.trail.remote", Kind.LOST, SEV2, ("-> 6", "retcode 6"), RESULT.format(6),
         blame=PEER, tier=HINT, unless=ENDING),
    Rule("nccl.files", Kind.CONFIGURATION, SEV2,
         ("too many open files", "[errno 24]", "items of ancdata"), recurs=True),
)
# fmt: on
