"""Lines that look like trouble and are none; they leave the text before rules read it. Pure.

A line stays out of sight only if its own words say so: a level below warning, a retry under way, a
count of nought, a notice that software prints on every healthy start or end.
"""

from __future__ import annotations

import re

from detectors.verdict import Blame

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|(?<!\x1b)\[(?:\d{1,2};)*\d{1,2}m")
LEVEL = re.compile(
    r"^.{0,100}?(?:^|[\s\[(|<:'\"-])(?:info|debug|trace|notice|verbose)(?:[\s\])|>:'\",-]|$)"
    r"|^\W*i\d{4} \d\d:|^[\d: .-]{8,40}: i \S+:\d+\]|\[i\d{3,4} \d\d:"
)
KEPT_AT_ANY_LEVEL = re.compile(
    r"blocked for more than|rcu|xid|oom|killed|lockup|loss is nan|nvrm|cancelled|signal sigusr|"
    r"straggler|spike|link is down|no available block|nccl info \S+ -> \d|"
    r"\[rank\d+\]: [\w.]*(?:error|exception): "
)
HARMLESS = re.compile(
    "|".join(
        (
            # Python
            r"\b(?:future|deprecation|pendingdeprecation|user|runtime|resource|import|syntax|"
            r"experimental|beta|bytes|unicode|encoding|lightning\w*|possibleuser|rank_zero_)"
            r"warning\b(?!.*(?:cuda initialization|error \d{3}))",
            r"exception ignored in|error in cpuinfo:|pip.s dependency resolver|monitoring disabled",
            r"^\W*warn(?:ing)?\b.*\b(?:fallback|falling back|instead\b|ignored|using default)",
            r"setting omp_num_threads|overloaded, please further tune",
            r"fatal: (?:not a git repository|detected dubious)|no cuda runtime is found, using|"
            r"this is not a failure|for benchmark choice|pmix error: not-found|running check:|"
            r"\(ignored\)$|\binsufficient nvidia\.com/gpu|cannot change locale|cannot modify limit|"
            r"(?:terminal|stty|standard input|tty)[^\n]*inappropriate ioctl|libibverbs: warning|"
            r"failed to load image python ext|"
            r"unable to resolve hostname to a \(local\)|pmix[^\n]*gds|leaked semaphore|"
            r"sys\.excepthook is missing|journal corrupted or uncleanly|file exists$",
            r"tokenizers: the current process just got forked",
            r"wandb: error dropped|^rm: cannot remove|failed: not supported$|"
            r"unable to remove step memory|detected 0 oom|cqn \S+ recovered|"
            r"unable to register cu\w+ factory|computation placer already registered|"
            r"could not load dynamic library|tf-trt warning|could not find tensorrt|"
            r"this tensorflow binary is optimized|cuda drivers on your machine, gpu will not",
            # torch
            r"destroy_process_group\(\) was not called|closing signal sig(term|int)|"
            r"sending process \d+ closing signal (?!sighup)|closing process \d+ via|"
            r"killing subprocess \d+|"
            r"warning: process group has not been destroyed|"
            r"failed to retrieve preemption notice",
            r"errno: (?:97|99) - (?:address family|cannot assign)",
            r"\boverflow!|gradient overflow|overflow detected\. skipping|grad scaler|hysteresis|"
            r"skipping (?:the )?(?:optimizer )?(?:step|update)|loss scaler|"
            r"', nvls disabled|not using it$|falling back to",
            r"nccl warn(?=[^\n]*(?:\bsetting |default|unsett|\bignor(?:ing|ed)|using\b.*instead|"
            r"fall(?:ing)? ?back|skipping|"
            r"not using|leaving it|gid table changed|re-?registration|lid change|sm change|iommu|"
            r"numa |real path|\bdisabled\.|maximum allowed|: no plugin))|"
            r"nccl (?:info|trace)\b(?! \S+ -> \d)|communicator encountered a fatal error|"
            r"^nccl version",
            r"accept failed (?:success|resource temporarily)|numa balancing|"
            r"could not find real path|"
            r"failed to open libibverbs|"
            r"failed to find (?:libcudart|cudadriver|cuda library)|missing \"?iommu=pt|"
            r"net/plugin: (?:no plugin|could not find|failed to find)|dmabuf is (?:un)?available",
            r"using devices used by this process is currently unknown|"
            r"\bdevice_ids? (?:in|to|is|was|not|argument|for)\b|specify \W?device_id",
            # launchers and Slurm
            r"(?<!no-)\bretry(?:ing)?\b(?!.{0,3}(?:count|exceeded|exc|counter|limit))"
            r"(?!.*(?:giv(?:e|ing) up|gave up|exhausted))",
            r"(?:x11|spank)[^\n]*(?:plugin|display)|cannot find name for (?:user|group) id|"
            r"requested nodes are busy|configuration not available now|temporarily disabled|"
            r"queued and waiting for resources|"
            r"srun: error: \S+ tasks? [\d,-]+: terminated|srun: debug|slurmd: debug|: debug\d?:|"
            r"done with job|extern step for|bypassing signal|could not open \w+ state file|"
            "state save file|"
            r"incomplete \w+ data checkpoint",
            r"exit(?:ed)? ?(?:with )?(?:exit )?(?:code|status):? 0\b(?!x)|exitcode *: 0\b|"
            r"completed +0:0|completed successfully|"
            r"successfully (?:un)?(?:registered|loaded|initialized)",
            # a count of nought, not GPU 0
            r"(?:(?<![\w.])(?<![a-z] )(?<!rank: )(?<!gpu: )|\b(?:with|and|detected|found|ha[sd]|"
            r"were|got|saw|of|passed|ok|succeeded|is|are|reported|reports|shows) )"
            r"(?:0|no|zero) (?:\w+ )?"
            r"(?:errors|failures|failed(?! (?:to|with|by|due|health|on|\())|warnings?|oom)\b|"
            r"health check passed|"
            r"\b(?:errors?|failures?|failed) ?[:=] ?0(?:\.0+)?\b(?! in )",
            r"\bexitcode\.ok\b|\bno [\w ]{0,30}\b(?:errors?|issues?|failures?|flaps?|problems?)"
            r"(?: (?:was|were|ha[sv]e? been))? (?:found|detected|reported|seen)|"
            r"\ball (?:\w+ ){0,3}(?:links|ports|gpus|checks|tests|ranks|nodes)[\w ]{0,20} "
            r"(?:up|passed|"
            r"healthy|ok|active|fine)\b",
            # the kernel's ordinary life
            r"masking unsupported request error|nvidia-nvswitch\d*: (?:open|probing|using)|"
            r"module verification failed|tainting kernel|tainted:|"
            r"nvrm: (?:loading|gpu board serial|persistence mode|installing)|"
            r"acpi (?:bios )?error|bios error \(bug\)|acpi: .*(?:error|fail)|"
            r"aer: enabled|(?:ras|hest|erst|ghes)\b.*(?:initialized|enabled|firmware first)|"
            r"edac .*(?:giving out|ver:|version)|mce: cpu\w* supports|mce: using|cmci storm|"
            r"nvidia-persistenced|nvidia-uvm: (?:loaded|unloaded)|"
            r"get_p2p_free_callback|firmware: failed to load .*(?:-2\)|direct)|"
            r"ext4-fs \([^)]*\): (?:mounted|unmounting|re-mounted|recovery complete)|"
            r"xfs \([^)]*\): (?:mounting|ending|unmounting)|perf: interrupt took too long|"
            r"error record serialization|"
            r"\[ *\d{1,2}\.\d+\] .*(?:cable unplugged|link (?:is )?down)",
            r"setting tmpdir to|load will be required|\bignoring\b|"
            r"task/(?:cgroup|affinity)[^\n]*(?:failing|unable to set)|not writeable|"
            r"nfs: server .* ok\b|connection restored to|port active|cable plugged|"
            r"connection was restored|reconnected|recovered from",
            # counters and settings
            r"^\W*\w+, *(?:counter|gauge|label|histogram|summary),|^# (?:help|type) \w+ ",
            r"^\W*[\w -]+ : *(?:not active|n/a|no|none|false|disabled)\s*$",
            r"thrown while requesting (?:head|get)",
            r"sw power cap *: *active|\bidle *: *active|applications clocks setting *: *active",
            r"\b(?:on|upon|if|when) (?:error|failure|exception)\b|fail[-_ ]?fast|error[-_ ]handl|"
            r"max_?retries|ignore_?errors?|raise_?error",
            r"\berrors?(?: rate)?[ :=|]{1,4}\d*\.\d+|(?:squared|absolute|mean|relative|word) error",
        )
    )
)
# Whom a harmless line is about, where it is about somebody: others leave, or the node is well.
OTHERS_LEAVE = re.compile(
    r"closing signal sig|terminating process \d+ via|closing process \d+ via|killing subprocess|"
    "preemption notice|"
    r"tasks? [\d,-]+: terminated|connection restored to"
)
NODE_IS_WELL = re.compile(r"sw power cap *: *active")
GUESSES = re.compile(
    r"(?i)(?:there are )?(?:some|many|several) (?:potential|common|possible|likely) "
    r"(?:root )?causes[^\n]*"
)
# An exception's own line: whatever words it holds, somebody raised it.
RAISED = re.compile(r"(?:\[rank\d+\]: ?)?[a-z_][\w.]*(?:error|exception): (?!0\b)")
FOLLOWS_IGNORED = re.compile(
    r"^\s|^traceback \(most recent|^[\w.]*(?:error|exception|exit|interrupt)\b.*$"
)


def plain(text: str) -> str:
    """Without colours; a progress bar's carriage returns end its line."""
    if "\x1b" in text or "[" in text:
        text = ANSI.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def facts(text: str) -> str:
    """Without what software lists as a cause that may be: the words are guesses, no facts."""
    return GUESSES.sub("", text) if " causes" in text else text


def kept_lines(text: str) -> str:
    """`text` without its harmless lines, and without what was raised where nobody cares."""
    kept: list[str] = []
    ignoring = False
    for line in text.split("\n"):
        lower = line.lower()
        ignoring = "exception ignored in" in lower or (
            ignoring and FOLLOWS_IGNORED.match(lower) is not None
        )
        if not ignoring and not is_harmless(lower):
            kept.append(line)
    return "\n".join(kept)


def about(text: str) -> Blame:
    if OTHERS_LEAVE.search(text):
        return Blame.PEER
    return Blame.SELF if NODE_IS_WELL.search(text) else Blame.UNKNOWN


def is_harmless(lower: str) -> bool:
    if RAISED.match(lower):
        return False
    if HARMLESS.search(lower):
        return True
    return LEVEL.match(lower) is not None and not KEPT_AT_ANY_LEVEL.search(lower)
