"""How processes end: exit codes, signals, and launchers that count the dead. Pure.

May touch: this package's nouns, rules and `classify`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import NONE, PEER, SELF, SEV2, UNKNOWN, Finding, Rule, Text, finding
from detectors.verdict import HARMLESS, Blame, Kind, Tier, Verdict

SUMMARY, VICTIM = Tier.SUMMARY, Tier.VICTIM
SIGNAL_BASE = 128
SIGHUP, SIGINT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM = (
    1, 2, 4, 6, 7, 8, 9, 11, 15,
)  # fmt: skip
DEADLY = (SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM)
NAMES = {
    SIGHUP: "SIGHUP", SIGINT: "SIGINT", 3: "SIGQUIT", SIGILL: "SIGILL", SIGABRT: "SIGABRT",
    SIGBUS: "SIGBUS", SIGFPE: "SIGFPE", SIGKILL: "SIGKILL", 10: "SIGUSR1", SIGSEGV: "SIGSEGV",
    12: "SIGUSR2", 13: "SIGPIPE", SIGTERM: "SIGTERM", 24: "SIGXCPU",
}  # fmt: skip

# fmt: off
RULES = (
    Rule("exit.interrupted", Kind.CANCELLED, NONE,
         ("keyboardinterrupt", "term_owner", "got signal: 2", "received 2 death signal",
          "exit code 130", "exitcode: -2",
          "cancelled by user", "interrupted by user", "sigint"),
         r"keyboardinterrupt|term_owner|got signal: 2\b|received 2 death|exit code 130\b|"
         r"exitcode *: -2\b|"
         "(cancelled|interrupted) by user|(received|caught|signal) sigint", tier=Tier.DECISIVE,
         unless=r"(?m)^\w*(?!keyboard)(error|exception): |out of memory|timed out"),
    Rule("exit.actor", Kind.EXITED, SEV2,
         ("actor is dead", "actordiederror", "worker exit type", "workercrashederror",
          "actor died unexpectedly", "worker unexpectedly exits", "raylet", "actor unavailable",
          "engine process failed", "enginedeaderror", "engine core proc", "worker died",
          "crashed during start"),
         "actor is dead|actordiederror|worker exit type|workercrashederror|actor died|"
         r"worker unexpectedly exits|engine ?(process|dead|core)[^\n]*(fail|died|error)|"
         "enginedeaderror|worker died|crashed during start", blame=PEER, tier=VICTIM),
    Rule("exit.terminated", Kind.EXITED, SEV2,
         ("death signal", "got signal: 15", "got signal: 1\n", "signalexception", "sighup",
          "sigtermexception"),
         r"received \S+ death signal|got signal: (1|15)\b|(received|caught|signal) sighup|"
         "closing signal sighup|sigtermexception",
         blame=UNKNOWN, tier=Tier.HINT),
    Rule("exit.engine", Kind.EXITED, SEV2,
         ("enginecore failed", "enginecore hit", "enginecore encountered", "workerproc "),
         "enginecore (failed|hit|encountered)|workerproc[^\n]*(fail|died)", tier=SUMMARY),
    Rule("exit.said", Kind.EXITED, SEV2,
         ("exited immediately because", "your workers crashed", "workers have died",
          "worker crashed", "died (pid"), blame=UNKNOWN, tier=VICTIM),
    Rule("exit.container", Kind.EXITED, SEV2, ("container failed", "status failed cmd"),
         r"container failed|status failed cmd[^\n]*code -?\d", tier=SUMMARY),
    Rule("kubernetes.pod", Kind.EXITED, SEV2, ("crashloopbackoff", " error "),
         r"\b\d/\d +(error|crashloopbackoff) +\d", tier=SUMMARY),
    Rule("exit.oomkilled", Kind.HOST_OOM, SEV2, ("oomkilled", "oom killed", "job killed: mem"),
         tier=Tier.HARDWARE),
    Rule("exit.status_137", Kind.HOST_OOM, SEV2, ("bad status 137", "with status 137"),
         blame=UNKNOWN, tier=SUMMARY),
    Rule("exit.windows", Kind.EXITED, SEV2,
         ("3221225477", "3221226505", "0xc0000005", "0xc0000409", "-1073741819", "-1073740791",
          "0xc00000fd", "3221225725"), tier=SUMMARY),
    # A child that is started anew reads what to do from its parent.
    Rule("exit.parent", Kind.EXITED, SEV2, ("load(from_parent",), blame=PEER, tier=Tier.VICTIM),
    Rule("exit.mpi", Kind.EXITED, SEV2,
         ("mpi_abort", "exited on signal", "mpirun noticed", "bad termination of one of your",
          "exited with non-zero", "primary job terminated"), tier=Tier.HINT),
    Rule("exit.failed", Kind.EXITED, SEV2,
         ("childfailederror", "failed (exitcode", "exited with exit code", "returned non-zero",
          "exit status", "exit code", "exitcode", "return code", "exited with code",
          "non-zero exit",
          "processexitedexception", "process exited", "processraisedexception",
          "terminated with the following error", "restarting failed container"),
         "childfailederror|(exitcode|return code) *[:=]? *-?[1-9]|exited with exit code [1-9]|"
         "returned non-zero|exit (status|code):? *-?[1-9]|exited with (code|status):? [1-9]|"
         "non-zero exit|process(exited|raised)exception|restarting failed container",
         tier=Tier.HINT),
)
# fmt: on

CODE = re.compile(
    r"(?:exitcode|return code|return_code) *[:=] *(-?\d+)|"
    r"exit(?:ed)?(?: with)? (?:exit )?(?:code|status|status code):? *(-?\d+)|"
    r"got signal: (\d+)|killed by signal:? (\d+)|signal (\d+) \(sig|"
    r"exited on signal (\d+)|terminated by signal:? (\d+)|\(status=0x0*([0-9a-f]{2,4})\b|"
    r"<signals\.sig\w+: (\d+)>|code=(?:killed|dumped), status=(\d+)/|"
    r"(?:return(?:ed)?(?: with)? (?:exit status|code)|(?:sent|got) code) (-?\d+)"
)
NAMED = re.compile(
    r"(?:terminated|killed|died|exited|crashed)[^\n]{0,20} (?:with|by|on|"
    r"from)[: ]+(?:signal )?(sig[a-z]+)\b"
)
# A bare 137 tells less than a signal that somebody saw.
SIGKILL_SAID = re.compile(r"kill|\boom|memory|-9\b|signal:? 9")
# As bash prints them in the languages that clusters are run in.
KILLED_ABROAD = ("已杀死", "getötet", "убито", "強制終了", "processus arrêté", "processus tué")
KILLED = re.compile(
    r"(?m)^(?:[^\n]*: line \d+: +\d+ +|\s*|[^\n]*\d+ )killed\b|" + "|".join(KILLED_ABROAD)
)


def find_codes(text: Text) -> Iterator[Finding]:
    """A launcher's table: the first code that is no clean-up speaks."""
    if not any(word in text.lower for word in ("exit", "signal", "status=", " code ")):
        return
    ends = [(match.start(), _signal(match)) for match in CODE.finditer(text.lower)]
    numbers = {name.lower(): number for number, name in NAMES.items()}
    ends += [(named.start(), numbers.get(named[1], 0)) for named in NAMED.finditer(text.lower)]
    deaths = sorted((at, number) for at, number in ends if number)
    said = SIGKILL_SAID.search(text.lower) is not None
    for at, number in [one for one in deaths if one[1] != SIGTERM] or deaths:
        kind, blame = _printed(number)
        if number == SIGKILL and not said:
            blame = UNKNOWN
        yield finding(text, at, SUMMARY, f"exit.{_name(number)}", kind, SEV2, blame)


def _signal(match: re.Match[str]) -> int:
    """The signal's number from whichever way it was printed; 0 where there is none."""
    if match[8]:
        status = int(match[8], 16)
        number = (status >> 8) - SIGNAL_BASE if status > 255 else status & 127
    else:
        number = int(next(group for group in match.groups() if group))
        if match[1] or match[2] or match[11]:
            number = _of_code(number)
    return number if 0 < number <= 64 else 0


def _of_code(code: int) -> int:
    """-9, 137 and 247 all mean SIGKILL: as Python, a shell and a byte without a sign put it."""
    if code < 0:
        return -code
    if code <= SIGNAL_BASE + 64:
        return code - SIGNAL_BASE
    return 256 - code if 256 - code in DEADLY else 0


def _printed(number: int) -> tuple[Kind, Blame]:
    """Without a kernel log at hand, a SIGKILL that nobody announced is mostly memory."""
    if number == SIGKILL:
        return Kind.HOST_OOM, SELF
    if number == SIGBUS:
        return Kind.SHM, SELF
    return Kind.EXITED, UNKNOWN if number in (SIGHUP, SIGTERM) else SELF


def find_killed(text: Text) -> Iterator[Finding]:
    """A shell's bare word is mostly the out-of-memory killer; a batch script's may be anything."""
    match = KILLED.search(text.lower)
    if match is None:
        return
    script = "slurm_script" in match[0] or "task " in match[0]
    kind, blame = (Kind.EXITED, UNKNOWN) if script else (Kind.HOST_OOM, SELF)
    yield finding(text, match.end() - 1, SUMMARY, "exit.killed", kind, SEV2, blame)


def _name(number: int) -> str:
    return NAMES.get(number, f"signal {number}").lower()


def classify_exit(exit_code: int | None, signal: int | None, stderr: str) -> Verdict:
    """What a rank's end means. Its last words, where they say more than "died", weigh more.

    Here an agent saw the signal itself: a SIGKILL without an out-of-memory event beside it was
    sent by somebody, so it is not taken for one.
    """
    from detectors.classification import judge

    if not exit_code and not signal:
        return HARMLESS
    said = judge("stderr/traceback", stderr)
    if said is not None and said.tier > SUMMARY and said.verdict.is_failure:
        return said.verdict
    return _by_number(exit_code or 0, signal or 0)


def _by_number(exit_code: int, signal: int) -> Verdict:
    number = signal or (_of_code(exit_code) if exit_code < 0 or exit_code > SIGNAL_BASE else 0)
    number = number if number <= 64 else 0
    if not number:
        known = {126: "not executable", 127: "program not found"}.get(exit_code)
        kind = Kind.CONFIGURATION if known else Kind.EXITED
        words = f"exit code {exit_code}" + (f": {known}" if known else "")
        return Verdict(kind, SEV2, SELF, known is not None, "exit.code", words)
    kind = Kind.SHM if number == SIGBUS else Kind.EXITED
    blame = UNKNOWN if number in (SIGKILL, SIGTERM) else SELF
    name = NAMES.get(number, f"signal {number}")
    return Verdict(kind, SEV2, blame, False, f"exit.{name.lower()}", f"killed by {name}")
