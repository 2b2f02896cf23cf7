"""The user's program: exceptions, configuration, environment, data loading. Pure.

These recur: the same code meets the same fault again, so a restart without a change is lost time.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import SEV2, UNKNOWN, Finding, Rule, Text, finding
from detectors.verdict import Kind, Tier

PROCESS, SYMPTOM, SUMMARY = Tier.PROCESS, Tier.SYMPTOM, Tier.SUMMARY

# What an exception says of settings that do not go together: nobody's code is wrong.
SETTINGS = (
    r"(?:value|assertion|runtime|notimplemented)error: [^\n]*(?:\b(?:not |in)compatible with\b|"
    r"\bconfig(?:uration)? (?:values?|options?|keys?|entr|fields?|file)|trainingarguments|"
    r"cuda_visible_devices|\blocal_rank\b|please (?:set|specify|upgrade|correct) |"
    r"[ `'\"(]--[a-z][\w-]+)"
)
# fmt: off
RULES = (
    Rule("config.import", Kind.CONFIGURATION, SEV2,
         ("modulenotfounderror", "no module named", "cannot open shared object file",
          "undefined symbol", "glibc_", "glibcxx_", "importerror", "command not found",
          "dll load failed", "pkg_resources", "versionconflict", "version conflict",
          "incompatible version", "does not match the version torch was compiled with",
          "only supports ampere", "does not appear to have a file", "ninja is required",
          "mismatches the version that was used", "version incompatibility", "was not found",
          "error while loading shared libraries",
          "oci runtime", "could not select device driver", "container creation failed",
          "please install", "was not built with", "link time reference"),
         "modulenotfounderror|no module named|cannot open shared object|undefined symbol|"
         "with link time reference|"
         "version .?glibc(xx)?_|importerror: |command not found|dll load failed|versionconflict|"
         "incompatible version|version torch was compiled with|only supports ampere|"
         "does not appear to have a file|ninja is required|mismatches the version that was|"
         r"version incompatibility|distributionnotfound|"
         r"error while loading shared|oci runtime \w+ failed|could not select device driver|"
         r"container creation failed|binary was not found|error: [^\n]*please install|was not "
         r"built with",
         recurs=True),
    Rule("config.file", Kind.CONFIGURATION, SEV2,
         ("filenotfounderror", "no such file or directory", "notadirectoryerror",
          "isadirectoryerror", "can't open file", "cannot open file", "does not exist",
          "file not found", "没有那个文件或目录", "fileexistserror", "repositorynotfound",
          "entrynotfounderror", "is not a local folder", "[errno 17]", "error no file named",
          "can't load ", "datasetnotfounderror", "couldn't find a dataset", ": not found"),
         r"filenotfounderror|(?m:^[^\n]*(error|exception|cannot|can't|fatal|python3?\S*:|execve|"
         r"failed)[^\n]*(no such file|does not exist|not found))|notadirectoryerror|"
         "isadirectoryerror|can.?t open file|fileexistserror|repositorynotfound|没有那个文件或目录|"
         r"(repo|dataset|(?<!local)entry)\w*notfounderror|is not a local folder|"
         "error no file named|"
         r"oserror: can't load |(sh|exec): (\d+: )?(exec: )?\S+: not found", recurs=True,
         unless="nccl warn"),
    Rule("config.permission", Kind.CONFIGURATION, SEV2,
         ("permissionerror", "permission denied", "[errno 13]", "operation not permitted",
          "unauthorized for url", "gatedrepoerror", "401 client error", "403 client error",
          "access denied", "权限不够"), recurs=True,
         unless=r"cu(da|dnn|blas)\w* (error|failure)"),
    Rule("config.arguments", Kind.CONFIGURATION, SEV2,
         ("unrecognized arguments", "the following arguments are required", "invalid choice:",
          "expected one argument", "no such option", "misconfigurationexception",
          "configattributeerror", "configkeyerror", "missingconfigexception", "validationerror",
          "validation error", "hydra.errors", "omegaconf.errors", "yaml.scanner", "yaml.parser",
          "jsondecodeerror", "tomldecodeerror", "invalid configuration", "config error",
          "configuration error", "is not divisible by", "must be divisible",
          "not evenly divisible", "invalid value for", "missing required", "unknown option",
          "unknown argument", "config file", "configuration file", "world size", "valueerror: ",
          "assertionerror: ", "runtimeerror: ", "environment variable", "environment variables",
          "invalid literal for int", "unsupported argument", "invalid argument:",
          "is not equal to micro_batch", "arguments are not used", "unused arguments",
          "assertion failed: "),
         "unrecognized arguments|arguments are required|invalid choice:|expected one argument|"
         "no such option|misconfigurationexception|config(attribute|key|value|type)error|"
         r"missingconfigexception|validation ?errors? for|validationerror|hydra\.errors|"
         r"omegaconf\.errors|yaml\.(scanner|parser)|jsondecodeerror|tomldecodeerror|"
         "invalid configuration|config(uration)? ?error|(is not|must be|not evenly) divisible|"
         r"error: [^\n]*(invalid value|missing required|unknown (option|argument))|(error|"
         r"exception)[^\n]*\bconfig(uration)? file[^\n]*(unknown|invalid|missing|unexpected|"
         r"unsupported)|(error|"
         r"exception)[^\n]*world.?size[^\n]*(but|not|must|!=|greater|less|mismatch)|(error|"
         r"exception)[^\n]*environment variable|micro_batch|arguments are not used|"
         r"unused arguments|" + SETTINGS + "|"
         r"assertion failed: [^\n]*(world|mpi|tp|pp|dp)_?(size)?\b", recurs=True),
    Rule("python.bug", Kind.USER_BUG, SEV2, ("error", "exception", "stopiteration"),
         r"(?m)^[^\n]{0,120}?(?<![\w.])((syntax|indentation|tab|name|type|attribute|key|index|"
         "value|zerodivision|assertion|unboundlocal|recursion|notimplemented|lookup|"
         "unicodedecode|unicodeencode|overflow|floatingpoint|arithmetic|reference|buffer)error|"
         r"stopiteration)\b *(:|$)", tier=Tier.TIMEOUT, recurs=True),
    Rule("python.assert", Kind.USER_BUG, SEV2, ("assert ",),
         r"(?m)^ +assert [\w(]", tier=SYMPTOM, recurs=True),
    Rule("torch.bug", Kind.USER_BUG, SEV2,
         ("shapes cannot be multiplied", "size mismatch", "expected all tensors",
          "expected scalar type", "the size of tensor a", "does not require grad",
          "backward through the graph a second time", "modified by an inplace operation",
          "error(s) in loading state_dict", "missing key(s) in state_dict",
          "unexpected key(s) in state_dict", "sizes of tensors must match", "must match the size",
          "invalid for input of size", "input type", "mat1 and mat2", "expected input",
          "expected tensor", "dimension out of range", "index out of range", "shape mismatch",
          "not implemented for", "leaf variable", "stack expects each tensor",
          "view size is not compatible", "torch._dynamo", "graph break", "same dtype",
          "should be the same", "missing key in checkpoint", "takes no arguments",
          "unexpected keyword argument", "given groups=", "appears not to match",
          "ddp expects same", "expected a non-empty", "expected a proper", "to have the same",
          "recomputed values", "not receive grad",
          "tensors must be", "invalid scalar type", "internal assert failed"),
         "shapes cannot be multiplied|size mismatch for|expected all tensors|"
         "expected scalar type|the size of tensor a|does not require grad|graph a second time|"
         r"inplace operation|loading state_dict|key\(s\) in state_dict|"
         "sizes of tensors must match|must match the size|invalid for input of size|"
         "mat1 and mat2|dimension out of range|index out of range|shape mismatch|"
         r'\" ?not implemented for|leaf variable|stack expects each|view size is not|same dtype|'
         "should be the same|given groups=|appears not to match|ddp expects same|"
         r"expected a (non-empty|proper)|missing key in checkpoint|input type \(|"
         r"unexpected keyword argument|expected (input|tensor)[^\n]*(but|to have)|"
         "recomputed values|did not receive grad|tensors must be|invalid scalar type|"
         "internal assert failed|"
         r"torch\._dynamo\.exc\.(unsupported|usererror|torchruntimeerror)", recurs=True),
    Rule("memory.host", Kind.HOST_OOM, SEV2,
         ("memoryerror", "cannot allocate memory", "can't allocate memory", "[errno 12]",
          "std::bad_alloc", "defaultcpuallocator", "fork: cannot allocate", "arraymemoryerror",
          "out of host memory", "not enough memory: you tried"),
         r"(?<!cuda)(?<!cuda out of )memoryerror|can(no|')t allocate memory|\[errno 12\]|"
         "std::bad_alloc|defaultcpuallocator|out of host memory|not enough memory: you tried",
         recurs=True, unless="ibv_|/torch_|shared memory|hugepage"),
    Rule("memory.shared", Kind.SHM, SEV2,
         ("insufficient shared memory", "out of shared memory", "unable to mmap",
          "unable to write to file </torch", "unexpected bus error encountered", "sigbus",
          "bus error", "shared memory object", "exitcode: -7", "exit code 135", "signal 7",
          "unable to open shared memory object", "总线错误"),
         r"insufficient shared memory|out of shared memory|unable to mmap \d+|"
         r"write to file </torch|(?<!pcie )bus error|\bsigbus\b|shared memory object|"
         r"exitcode *: -7\b|exit code 135\b|signal 7\b|总线错误",
         unless="mce|hardware memory corruption|pci bus error"),
    Rule("loader.worker", Kind.EXITED, SEV2,
         ("dataloader worker", "encountered in worker", "worker process", "process pool",
          "pin memory thread"),
         r"dataloader worker[^\n]*(killed by signal|exited unexpectedly)|"
         r"unexpected \w+ ?\w* encountered in worker|brokenprocesspool|pin memory thread exited|"
         "process pool was terminated abruptly", tier=PROCESS,
         unless="bus error|killed by signal: (killed|terminated)|out of shared memory"),
    Rule("loader.terminated", Kind.EXITED, SEV2, ("killed by signal: terminated",),
         blame=UNKNOWN, tier=Tier.VICTIM),
    Rule("loader.killed", Kind.HOST_OOM, SEV2, ("dataloader worker",),
         r"dataloader worker[^\n]*killed by signal: killed"),
    Rule("compile.other", Kind.SOFTWARE, SEV2,
         ("triton", "inductorerror", "backendcompilerfailed", "ptxas", "nvcc", "ninja",
          "compilationerror", "nvrtc", "outofresources", "loweringexception",
          "error building extension", "subprocess-exited-with-error"),
         r"triton[\w.]*(error|exception)|inductorerror|backendcompilerfailed|ptxas[^\n]*(error|"
         r"fatal)|compilationerror|nvrtc[^\n]*error|outofresources|loweringexception|"
         "error building extension|subprocess-exited-with-error|nvcc fatal",
         tier=SYMPTOM, recurs=True),
    Rule("program.check", Kind.SOFTWARE, SEV2, ("check failed:",), r"\bcheck failed: \S",
         tier=Tier.SYMPTOM, unless="health check failed|internal assert"),
    Rule("program.crash", Kind.EXITED, SEV2,
         ("segmentation fault", "sigsegv", "double free", "corrupted", "free(): invalid",
          "malloc(): ", "munmap_chunk", "stack smashing", "illegal instruction",
          "fatal python error", "sigfpe", "sigill", "floating point exception", "segfault",
          "段错误", "speicherzugriffsfehler", "erreur de segmentation", "violación de segmento",
          "ошибка сегментирования", "access violation", "pure virtual method",
          "stack overflow", ": assertion "),
         "segmentation fault|sigsegv|double free|corrupted (size|double|unsorted|top)|"
         r"free\(\): invalid|malloc\(\): |munmap_chunk|stack smashing|illegal instruction|"
         r"fatal python error: (?!abort)|sig(fpe|ill)\b|floating point exception|"
         r"\bsegfault(?! at)\b|段错误|speicherzugriffsfehler|erreur de segmentation|"
         "violación de segmento|ошибка сегментирования|access violation|pure virtual|"
         r"stack overflow|(?m:^\S+: [^\n]*: assertion [`'])", tier=SYMPTOM,
         unless="potential root causes|possible (root )?causes"),
    Rule("program.aborted", Kind.EXITED, SEV2,
         ("aborted", "core dumped",
          "dumped core", "sigabrt", "hangup", "systemexit", "terminated",
                                    "已放弃"),
         r"\baborted\b(?! before step)|已放弃|core dumped|dumped core|sigabrt|(?m:^hangup$)|"
         r"systemexit: [1-9]|"
         r"(?m:^terminated$)|"
         r"line \d+: +\d+ terminated", tier=Tier.HINT),
    Rule("program.uncaught", Kind.EXITED, SEV2, ("terminate called",), tier=Tier.SUMMARY),
    Rule("program.threads", Kind.CONFIGURATION, SEV2,
         ("can't start new thread", "resource temporarily unavailable", "fork: retry",
          "cannot fork", "blockingioerror"),
         "can't start new thread|fork: retry|cannot fork|blockingioerror|(fork|thread|"
         r"openblas)[^\n]*resource temporarily unavailable", recurs=True),
)
# fmt: on

LAST_LINE = re.compile(
    r"(?m)^[^\n]{0,60}?(?<![\w.])((?:[a-z_]\w*\.)*(?!childfailed|calledprocess|processexited|"
    r"processraised|signalexc)"
    r"[a-z_]\w*(?<!_)(?:error|exception|failure))\b *(?::|$)|"
    r"^(?:\[?rank ?\d+\]?: )?(exception): \S"
)


def find_exception(text: Text) -> Iterator[Finding]:
    """An exception that no rule knows."""
    match = LAST_LINE.search(text.lower)
    if match is not None:
        yield finding(
            text,
            match.start(1 if match[1] else 2),
            SUMMARY,
            "python.other",
            Kind.SOFTWARE,
            SEV2,
            UNKNOWN,
        )
