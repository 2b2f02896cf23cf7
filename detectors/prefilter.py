"""Whether a text is worth reading: settled in microseconds for nearly every line of a log. Pure.

A line is read if it holds one of a few stems anywhere, or one of many words whole. The words come
from the rules' own phrases, so a new rule cannot be out of reach.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

STEMS = (
    "error", "fail", "exception", "fatal", "abort", "kill", "timeout", "timed out", "xid",
    "nvswitch", "not found", "no such", "could not", "of memory", "out_of_me", "check_",
    "time limit", "count reported", "gpus found,", "count changed", "blocked for more", "nvme nvme",
    "shared memory", "got 0 bytes", "double free", "does not exist", "not ready", "not mounted",
    "device-side", ": f ", "cuda init", "ib port is", "must match", "nccl warn", "gres.conf",
)  # fmt: skip
FOREIGN = (
    "已杀死", "getötet", "убито", "強制終了", "processus arrêté", "processus tué", "段错误",
    "总线错误", "没有那个", "权限不够", "已放弃", "violación de segmento", "ошибка сегм",
)  # fmt: skip
WORDS = tuple(
    """down downed carrier flap flapping retrying duplicate busy stale quota required expired
    unhealthy unavailable straggler stragglers spike spiky nmi lockup uncorrectable uncorrected
    corrected pcie aer dma dmar iommu mce fabric thermal temperature pending ecc dbe dbes violation
    violations inactive divisible heartbeat truncated failures notify exhausted unplugged
    compromised lustre lnet nfs xfs raid superblock prolog epilog nhc responding rtr rts ibv peermem
    amdgpu habana hccl ascend triton ptxas glibc glibcxx undefined unrecognized walltime requeue
    requeing sigbus sigsegv sigabrt sighup sigusr1 sigusr2 dumped enqueued monitoredbarrier netdev
    fault faults faulted assertion recomputed unsupported revoked beyond segfault segmentation
    polling diverged wtermsig wexitstatus violates
    retirement downgraded joined raylet
    stopiteration slurmdbd incompatible inconsistent versionconflict credential munge couldn
    finite malloc swiotlb spot nan inf refused reset closed closing lost unreachable corrupt
    corrupted corruption invalid illegal cannot unable denied panic oom oomkilled signal exit exited
    exitcode exiting terminate terminated terminating termination cancelled cancelling canceled
    missing mismatch unexpected unexpectedly interrupt interrupted keyboardinterrupt hang hangs hung
    stuck stall stalled dead died evicted evicting nvrm nvlink nvlinks edac remap remapped remapping
    remappings remapper throttle throttled throttling slowdown preempted preempting preemption
    completion smmu jbd2 dpc pciehp ceph beegfs gpfs weka mmfs gcsfs sigfpe sigill sigint munmap
    nvcc nvrtc hangup remounting aicore neuron miopen rccl rdma""".split()  # noqa: SIM905 - a word list
)
ORDINARY = frozenset(
    """a accessible across adapter address after again all alloc allocate already and another any
    appear argument arguments associated available backward barrier batch be below blocked bounds
    buffer but by bytes call capable check collective command compiled configuration configured
    connect connection container core could count create creating cuda current daemon data
    dataloader deserialize destroyed detect detected dev device devices differs dimension
    directory disk dns does double driver dtype due dump dynamo empty encountered end ended
    environment epoch equal event exist expected expects file files folder for found from
    full get gloo google got gpu graph groups handler has have health host hw implemented in index
    infinite initialization initialized input interface is it job kernel key keys leader
    learning limit link local locked loss low machine mapping match mem memory model modify module
    mount mounted mounting name nccl ninja no node nodename nodes nothing number nvidia nvme of off
    on one only open operation or out output overflow owner page pair parser peer physical pool
    port power process processors procs progress proper proxy ran rank rate reached read ready real
    received reclaim reg register registration replay request requested requests require resource
    resources retired returned rpc run running runtime s3 scalar schedule scheduling segment
    server service shared short size sizes slurm socket space specification state status step
    steps still storage store submitted supported task tensor tensors that the this thread time
    timelimit to training transmit transport trying type unknown valid value values variable
    version virtual volatile wait waiting warning was watchdog with work worker world write wrong
    xla zero zip retry launch nvml compute service services path max min total user users group
    system ipv6 eth0 started starting stopped session accepted optimizer gradient eval train
    val test tests sample samples token tokens batches cache using set hash log logs info debug
    trace notice not cpu cpus use your were while many different left loaded init old bad block
    through without bound compatible attached checkpoint disabled distributed backend operations
    receive minimum corresponding partition algorithm specified supports noticed hardware
    bootstrap controller installation modified reduction variables signals exceeded
    byte central context image network manager conf tmp longer mask warn atomic join end
    attempting combination hostname reported gpus reason about above before during each every
    first last next previous new set ssh systemd daemon run runs job jobs grad norm lr
    lowering dynamic physical free usage util active enabled applying allocation allocated
    equal changed change moved done finished complete completed success successfully saving saved
    loading python module package packages torch pytorch main line lines file call
    detail details support install installed requires environment config double single
    point points shape shapes scale tensor layer layers model models weight weights param params
    parameter parameters are known lower object too access yet reduced broadcast ranks assigned
    bytes doesn enough permitted usable""".split()  # noqa: SIM905 - a word list
)
GLOG = re.compile(r"\W{0,5}[ef]\d{4} \d\d:")  # a line that its own program calls an error
COUNTER = "number of nan iterations"  # each line of Megatron's has it, mostly with 0
LONG = 7  # letters of a word that is worth a look by itself
SPACES = str.maketrans({chr(code): " " for code in range(128) if not chr(code).isalnum()})


class Prefilter:
    """What no line may hold to be passed over; `rare` and `whole` are made from phrases."""

    def __init__(self, alone: Iterable[str], hints: Iterable[str]) -> None:
        """`alone` settle a rule by themselves; `hints` have a pattern beside them that decides."""
        rare, keyed, foreign = set(WORDS), defaultdict[str, list[str]](list), list(FOREIGN)
        for phrase in alone:
            if _covered(phrase, rare):
                continue
            if not phrase.isascii():
                foreign.append(phrase)
            elif words := _rare_words(phrase):
                rare.add(max(words, key=len))
            else:
                keyed[max(_words(phrase), key=len)].append(phrase)
        for phrase in hints:
            if _covered(phrase, rare) or not phrase.isascii():
                continue
            if long := [word for word in _rare_words(phrase) if len(word) >= LONG]:
                rare.add(max(long, key=len))
            elif len(words := _words(phrase)) > 1:
                keyed[max(words, key=len)].append(phrase)
        self.rare = frozenset(rare)
        self.phrases = {word: tuple(phrases) for word, phrases in keyed.items()}
        self.keys = frozenset(self.phrases)  # ordinary words: the whole phrase has to be there
        self.foreign = tuple(foreign)  # beyond ASCII, so of no use to most lines

    def passes(self, text: str) -> bool:
        """Several lines always pass: what they mean together no single word tells."""
        return "\n" in text or self.holds(text)

    def holds(self, text: str) -> bool:
        """False where no line of it passes: a few lines at once cost half as much."""
        lower = text.lower().replace(COUNTER, "")
        for stem in STEMS:
            if stem in lower:
                return True
        if GLOG.match(lower):
            return True
        words = lower.translate(SPACES).split()
        if not self.rare.isdisjoint(words):
            return True
        for word in self.keys.intersection(words):
            if any(phrase in lower for phrase in self.phrases[word]):
                return True
        return not lower.isascii() and any(phrase in lower for phrase in self.foreign)


def _rare_words(phrase: str) -> list[str]:
    return [word for word in _words(phrase) if len(word) > 2 and word not in ORDINARY]


def _words(phrase: str) -> list[str]:
    return sorted(phrase.translate(SPACES).split())


def _covered(phrase: str, rare: set[str]) -> bool:
    if any(stem in phrase for stem in STEMS):
        return True
    return not rare.isdisjoint(phrase.translate(SPACES).split())
