"""Collectives, process groups and rendezvous: torch, gloo and those alike. Pure.

Whose time-out was printed first is chance: all who wait time out together. What counts is who is
named as missing, and whether all came.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import (
    PEER,
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

TIMEOUT, VICTIM, SYMPTOM = Tier.TIMEOUT, Tier.VICTIM, Tier.SYMPTOM

# fmt: off
RULES = (
    Rule("collective.named", Kind.NCCL_TIMEOUT, SEV3,
         ("failed to pass monitoredbarrier", "ncclabortedcomm", "dump signal",
          "rank(s) timed out", "not received the notify record", "from another rank",
          "timed out waiting for", "missing ranks", "hasn't joined", "have not joined",
          "haven't joined", "didn't join", "reached monitoredbarrier, but"),
         r"monitoredbarrier(?! (time|call))|ncclabortedcomm|dump signal[^\n]*(from|"
         r"due to)(?![^\n]*this local rank)|"
         r"notify record|"
         "has(n't| not) joined|have(n't| not) joined|didn't join|(timeout|exception|"
         "error) from another rank", blame=PEER, tier=TIMEOUT),
    Rule("collective.timeout", Kind.NCCL_TIMEOUT, SEV3,
         ("caught collective operation timeout", "timeout at nccl work", "timeout at collective",
          "nccl operations have failed or timed out", "collective operation timeout",
          "watchdog caught collective", "timed out waiting", "rank(s) timed out",
          "collective timeout", "timed out in collective", "monitoredbarrier",
          "application timeout caused pair closure", "last enqueued nccl work", "wait timeout",
          "operation timed out", "nccl timeout", "nccl communicator was aborted",
          "heartbeat of the collective", "hccl_exec_timeout", "notify wait", "allreduce timeout",
          "collective operation timed out", "to avoid data inconsistency", "abort timed out",
          "detected by watchdog at work"),
         "collective (operation )?tim(eout|ed out)|timeout at (nccl work|collective)|"
         r"nccl operations have failed or timed out|timed out waiting \d+ ?ms|"
         r"rank\(s\) timed out|timed out in collective|monitoredbarrier|pair closure|"
         "last enqueued nccl work|nccl timeout|communicator was aborted|"
         r"nccl[^\n]*operation timed out|exec_timeout|notify wait|allreduce timeout|"
         "collective operation timed out|to avoid data inconsistency|abort timed out|"
         "failure detected by watchdog",
         blame=UNKNOWN,
         tier=TIMEOUT, unless=r"original reason[^\n]*(remote process|network error)"),
    Rule("collective.hang", Kind.HANG, SEV2,
         ("watchdog got stuck", "watchdog hang", "heartbeat monitor timed out",
          "did not get subsequent heartbeat", "did not get initial heartbeat",
          "dataloader timed out", "hang detected", "detected a hang", "watchdog timeout",
          "job hang", "is hung", "training hang", "process hang", "no progress for",
          "without making progress", "stuck for", "not send heartbeat", "missed heartbeat",
          "watchdog has been stuck", "no heartbeat of its watchdog", "may hang in"),
         "watchdog (got stuck|hang|timeout|has been stuck)|heartbeat monitor timed out|"
         "did not get (subsequent|initial) heartbeat|dataloader timed out|hang detected|"
         r"detected a hang|(job|training|process) hang|is hung|no progress for \d+|"
         "without making progress|not send heartbeat|missed heartbeat|"
         r"no heartbeat of its|may hang in|"
         r"(?<!cpu)stuck for \d+ ?(s|min|h)", tier=TIMEOUT, unless=r"soft lockup|cpu#\d+ stuck|"
                                                                   r"keep alive watchdog"),
    Rule("collective.queue", Kind.HANG, SEV2,
         ("no available block found", "tensors were submitted to be reduced", "stalled ranks",
          "stalled ops", "[missing ranks:", "not all of them arrived",
          "to join the rendezvous"), blame=PEER, tier=TIMEOUT),
    Rule("node.dead", Kind.LOST, SEV1,
         ("node it was running on is dead", "node has crashed", "its node has died",
          "has been marked dead because the", "nodediederror"),
         blame=PEER, tier=Tier.PROCESS),
    Rule("ras.missing", Kind.LOST, SEV2, ("missing communicator data", "the missing rank"),
         blame=PEER, tier=VICTIM),
    Rule("ras.behind", Kind.HANG, SEV2,
         ("operation counts", "not all ranks joining", "culprit rank"),
         r"different \w+ operation counts|not all ranks joining|culprit rank", blame=PEER,
         tier=TIMEOUT),
    Rule("collective.mismatch", Kind.USER_BUG, SEV2,
         ("detected mismatch between collectives", "collective mismatch",
          "rank is running collective", "expected to have finished reduction", "ready only once",
          "process group has not been initialized", "process group is not initialized",
          "no backend type associated", "joined but didn't finish", "but got different",
          "shapes are not the same across", "inconsistent tensor", "size_or_syntax_mismatch",
          "collective_type_mismatch"),
         "mismatch between collectives|(syntax|type)_mismatch|collective mismatch|"
         "expected to have finished|"
         "ready only once|process group (has|is) not (been )?initialized|no backend type|"
         "across (all )?ranks", recurs=True, unless="watchdog caught"),
    Rule("store.lost", Kind.LOST, SEV2,
         ("failed to check the \"should dump\"", "exception dump flag from the global store",
          "got 0 bytes", "sendbytes failed", "recvvector failed", "recvvalue failed",
          "rendezvousclosederror", "rendezvousconnectionerror",
          "rendezvous is closed", "rendezvous closed",
          "rendezvousgracefulexiterror", "tcpstore server has shut down", "diststoreerror",
          "distnetworkerror", "store is closed", "the connection to the c10d store has failed",
          "pair was closed", "peer closed", "failed to get exception from", "leader task",
          "another task died", "coordination service",
          "barriererror", "unhealthy task", "horovod has been shut",
          "deadline_exceeded: barrier", "deadline_exceeded: deadline"),
         "should dump|horovod has been shut down|dump flag|got 0 bytes|sendbytes failed|"
         "recv(vector|value) failed|"
         "rendezvous(closed|connection|gracefulexit)error|rendezvous (is )?closed|"
         "server has shut down|diststoreerror: (?!timed)|"
         "distnetworkerror: (?!.*(failed to (listen|bind)|timed out))|c10d store has failed|"
         "pair was closed|leader task|another task died|coordination service|store is closed|"
         "deadline_exceeded: (barrier|deadline)", blame=PEER, tier=VICTIM,
         unless="failed to retrieve preemption notice"),
    # To set a communicator up, each rank waits for what another one is to publish.
    Rule("collective.set_up", Kind.NCCL_TIMEOUT, SEV3, ("store->get",),
         r"store->get\([^\n]*time(out|d out)", blame=PEER, tier=TIMEOUT),
    Rule("store.join", Kind.LOST, SEV2,
         ("clients joined", "store based barrier", "rendezvoustimeouterror", "wait timeout after",
          "store->get", "timed out after", "waiting for clients", "socket timeout", "get key",
          "rendezvous timeout", "rendezvous timed out"),
         r"clients joined|store based barrier[^\n]*|rendezvous ?timeout|wait timeout after|"
         r"store->get\([^\n]*|socket timeout|waiting for clients|rendezvous timed out",
         blame=PEER, tier=VICTIM, unless="completed store-based barrier"),
    Rule("store.connect_timeout", Kind.NETWORK, SEV3,
         ("while trying to connect to", "timed out connecting to"), blame=UNKNOWN, tier=VICTIM),
    Rule("store.bind", Kind.SOFTWARE, SEV2,
         ("address already in use", "failed to listen on any local network address", "eaddrinuse",
          "errno: 98", "errno 98"), tier=Tier.PROCESS),
    Rule("gloo.connect", Kind.NETWORK, SEV3,
         ("connect failed", "unable to connect to", "unable to resolve"),
         blame=UNKNOWN, tier=Tier.SUMMARY),
    Rule("gloo.mesh", Kind.NETWORK, SEV3, ("connectfullmesh failed", "unable to find address for"),
         blame=UNKNOWN, tier=VICTIM),
)
# fmt: on

RANKS = re.compile(r"\[([\d, ]{1,4000})\] joined but didn't finish collective")
MISSING = re.compile(r"(hasn't|haven't|has not|have not|didn't|did not) (yet )?join")
STATUS = re.compile(r"last started work: (\d+)[^\n]*\s+last completed work: (\d+)")


def find_all_joined(text: Text) -> Iterator[Finding]:
    """Every rank came to the collective and none finished: the program is wrong, no rank is.

    The same holds where work between the completed and the started one was jumped over.
    """
    if "joined but didn't finish" not in text.lower:
        return
    match = RANKS.search(text.lower)
    if match is None or MISSING.search(text.lower):
        return
    status = STATUS.search(text.lower)
    skipped = status is not None and int(status[1]) > int(status[2]) + 1
    tier = Tier.DECISIVE if skipped else SYMPTOM
    yield finding(text, match.start(), tier, "collective.all_joined", Kind.USER_BUG, SEV2, SELF,
                  recurs=True)  # fmt: skip
