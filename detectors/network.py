"""Ports, links and sockets, as the kernel, the verbs libraries and programs report them. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import (
    NONE,
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

HARD, VICTIM, SYMPTOM = Tier.HARDWARE, Tier.VICTIM, Tier.SYMPTOM

# fmt: off
RULES = (
    Rule("port.gone", Kind.PORT_DOWN, SEV1,
         ("cable unplugged", "port state change to down", "no ib port", "check_hw_ib",
          "ib port is down", "port is not active", "health compromised", "mlx5_core",
          "physical state: disabled", "physical state: polling", "state: down", "port_down",
          "no active ib port", "ib_query_port", "infinibandchardevicecheck",
          "infinibandstatecheck", "ethernetstatecheck", "port module event",
          "linkstate:", "physlinkstate:",
          "linkup ports"),
         r"cable unplugged|(port|link)[^\n]*(to|is|not) (down|active)\b|no ib port|check_hw_ib|"
         r"health compromised|mlx5_core(?![^\n]*pcie bus error)[^\n]*(fatal|internal error|"
         r"in error state|reset failed|handling bad device|\) timeout)|ib_query_port failed|"
         r"(infiniband|ethernet)\w*isnothealthy|"
         r"\bstate: *(down|1: down)|physical state: *(disabled|"
         r"polling|sleep)|state:\s+port_down|no active ib port|linkstate:[. ]*(down|disabled|"
         r"polling|sleep)|(only \d+|not enough) linkup ports|"
         r"port module event[^\n]*error(?![^\n]*high temperature)", tier=HARD),
    Rule("port.absent", Kind.PORT_DOWN, SEV1,
         ("sys files not found", "no ib devices", "no infiniband devices", "no rdma devices",
          "no hca found"), tier=HARD),
    Rule("port.driver", Kind.NETWORK, SEV1, ("mlx5_core", "mlx4_core", "bnxt_en", "infiniband "),
         r"\binfiniband \w+_\d+: failed to|"
         r"(mlx\d_core|bnxt_en)\b[^\n]*(load_one failed|probe [^\n]*failed|"
         "failed to (load|initialize))", tier=HARD),
    Rule("net.resolve", Kind.NETWORK, SEV3,
         ("name or service not known", "temporary failure in name resolution", "unknown host",
          "name resolution", "nodename nor servname", "could not resolve host", "dns srv",
          "no address associated with hostname", "getaddrinfo failed", "enotfound", "gai error",
          "can't find address for host", "can't find an address"),
         blame=UNKNOWN, tier=SYMPTOM),
    Rule("net.unreachable", Kind.NETWORK, SEV3,
         ("no route to host", "network is unreachable", "host is unreachable", "network is down",
          "host unreachable", "ehostunreach", "enetunreach", "errno: 113", "errno 113"),
         blame=UNKNOWN, tier=SYMPTOM),
    Rule("net.retry_exceeded", Kind.NETWORK, SEV3,
         ("transport retry count", "retry exceeded", "retry counter exceeded", "retry_exc_err",
          "rnr retry", "completed with error. rc", "transmit timeout", "unresponsive receiver",
          "endpoint timeout", "unreachable remote"), blame=UNKNOWN, tier=SYMPTOM),
    Rule("net.qp", Kind.NETWORK, SEV3,
         ("to rtr", "to rts", "ibv_modify_qp", "modify qp", "rdma_resolve_addr",
          "rdma_resolve_route", "rdma cm event"),
         r"(to rt[rs]|modify[_ ]qp|rdma_resolve\w*|rdma cm event)[^\n]*(timed out|no route|"
         "unreachable|110|113|rejected|error|fail)", blame=UNKNOWN, tier=SYMPTOM,
         unless=r"modify_qp[^\n]*(invalid argument|no data)"),
    Rule("net.qp.invalid", Kind.CONFIGURATION, SEV2, ("modify_qp", "modify qp", "gid"),
         r"modify[_ ]qp[^\n]*(invalid argument|no data available)|invalid gid|"
         r"gid index \d+ (is )?(invalid|not)|failed to (query|get) gid", recurs=True),
    Rule("net.memlock", Kind.CONFIGURATION, SEV2,
         ("ibv_create_qp", "ibv_create_cq", "memlock", "locked memory"),
         r"ibv_create_[qc][pq][^\n]*cannot allocate|(memlock|locked memory)[^\n]*(limit|low|"
         "ulimit|insufficient)", recurs=True),
    Rule("net.timeout", Kind.NETWORK, SEV3,
         ("connection timed out", "etimedout", "errno 110", "errno: 110", "connect timeout",
          "connecttimeout", "read timed out", "readtimeout", "i/o timeout", "socket timed out",
          "tls handshake timeout", "gateway time", "operation timed out", "connect timed out",
          "connect() timed out"), blame=UNKNOWN, tier=VICTIM),
    Rule("net.http", Kind.NETWORK, SEV3,
         ("max retries exceeded", "couldn't connect to", "connectionerror", "remotedisconnected",
          "protocolerror", "too many requests", "server error", "service unavailable",
          "httperror", "http error", "sslerror", "ssleoferror", "incompleteread",
          "chunkedencodingerror", "status code 5", "offlinemodeisenabled",
          "localentrynotfounderror", "commerror"),
         r"errors\.commerror|max retries exceeded|couldn't connect to '?http|(requests|urllib3|"
         r"httpx|aiohttp)[\w.]*(error|exception)|remotedisconnected|protocolerror|429 |"
         r"too many requests|\b50[0234] (server|internal|bad|service|gateway)|ssl(eof)?error|"
         r"incompleteread|chunkedencodingerror|status code 5\d\d|localentrynotfounderror",
         blame=UNKNOWN, tier=SYMPTOM,
         unless=r"\b40[134] client error|unauthorized for url|forbidden for url"),
    Rule("net.refused", Kind.REFUSED, SEV3,
         ("connection refused", "connectionrefusederror", "econnrefused", "errno: 111",
          "errno 111"), blame=PEER, tier=VICTIM),
    Rule("net.connect_reset", Kind.REFUSED, SEV3, ("connect to ", "call to connect"),
         r"(connect to|call to connect)[^\n]*reset by peer", blame=PEER, tier=SYMPTOM),
    Rule("net.reset", Kind.LOST, SEV2,
         ("connection reset by peer", "connectionreseterror", "econnreset", "reset by peer",
          "connection was reset", "broken pipe", "brokenpipeerror", "connection closed by",
          "closed the connection", "connection closed", "connection was closed",
          "connection lost", "lost connection", "eof received", "socket closed",
          "connection aborted", "remote end closed", "end of file on socket",
          "connection was likely closed", "peer closed", "closed by remote host",
          "remote_disconnect"),
          blame=PEER, tier=VICTIM),
    # libfabric aborts where its consumer did not ask to hear of errors.
    Rule("net.libfabric.abort", Kind.NETWORK, SEV2, ("unable to write to eq", "prov_errno"),
         "unable to write to eq|prov_errno: (unknown error )?-?[1-9]", tier=SYMPTOM),
    Rule("net.libfabric", Kind.NETWORK, SEV3, ("libfabric:",),
         r"libfabric:\S+(cq|error)[^\n]*<(warn|error)>[^\n]*err: *-?\d", blame=UNKNOWN,
         tier=SYMPTOM),
    Rule("net.flushed", Kind.NETWORK, SEV3, ("request flushed error", "wr_flush_err"),
         tier=VICTIM),
    Rule("net.abort", Kind.REFUSED, SEV3, ("software caused connection abort",),
         r"connect[^\n]*software caused connection abort", blame=UNKNOWN, tier=SYMPTOM),
    Rule("net.connect", Kind.REFUSED, SEV3, ("-> 2",),
         r"nccl info (misc/socket|bootstrap)\S* -> 2\b",
         blame=UNKNOWN, tier=Tier.HINT),
    Rule("net.failover", Kind.FLAPPING, SEV3,
         ("marked as failed. initiating recovery? yes", "resiliency"),
         "marked as failed. initiating recovery. yes", tier=HARD),
    Rule("link.counter", Kind.FLAPPING, SEV3, ("link_downed", "linkdowned"),
         r"link_?downed(counter)?['\"]?[ :=.]+[1-9]", tier=HARD,
         unless=r"\[linkdownedcounter == "),  # since whenever the fabric's counters were cleared
    Rule("net.cqe", Kind.NETWORK, SEV3, ("dump error cqe", "dump_cqe", "error cqe"),
         blame=UNKNOWN, tier=SYMPTOM),
    Rule("net.mpi", Kind.NETWORK, SEV3, ("btl_tcp_endpoint",), blame=UNKNOWN, tier=SYMPTOM),
    Rule("net.watchdog", Kind.NETWORK, SEV1,
         ("netdev watchdog", "transmit queue", "tx timeout", "tx unit hang", "keep alive watchdog",
          "failed to process command"),
         r"netdev watchdog|transmit queue \d+ timed out|: tx timeout|tx unit hang|"
         r"keep alive watchdog timeout|\b(efa|ena) [^\n]*failed to process command", tier=HARD),
    Rule("net.device_fatal", Kind.PORT_DOWN, SEV1,
         ("device fatal", "catastrophic error", "fw fatal", "firmware fatal",
          "firmware not responding"), tier=HARD),
)
# fmt: on

LINK_DOWN = re.compile(
    r"\blink is (not ready|down)|link down|link status definitely down|link becomes down|"
    r"\bport error\b|state changed to port_down|ibv_event_port_err|lost carrier|"
    r"port (number )?\d+ (is|state is) down|"
    r"port down|link flap|flapping"
)
LINK_UP = re.compile(
    r"\blink is up|link up|link status definitely up|link becomes ready|port active|"
    r"ibv_event_port_active|gained carrier|port \d+ is up|port up"
)
LINK_WORDS = (
    "link",
    "port error",
    "port_err",
    "port_down",
    "carrier",
    "port down",
    "flap",
    "is down",
)


def find_links(text: Text) -> Iterator[Finding]:
    """A port that came back was a flap, and over if the library saw it come; else it is down."""
    if not any(word in text.lower for word in LINK_WORDS):
        return
    down = LINK_DOWN.search(text.lower)
    if down is None or _other_link(text.lower, down):
        return
    ups = [match.start() for match in LINK_UP.finditer(text.whole)]
    flapped = "flap" in down[0] or any(up > down.start() for up in ups)
    program = "async" in text.lower or "port_err" in down[0]
    if flapped and program and "flap" not in down[0]:
        yield finding(text, down.start(), Tier.HINT, "link.recovered", Kind.FLAPPING, NONE, SELF)
    elif flapped or "carrier" in down[0]:
        yield finding(text, down.start(), HARD, "link.flap", Kind.FLAPPING, SEV3, SELF)
    else:
        severity = SEV3 if program else SEV1
        yield finding(text, down.start(), HARD, "port.down", Kind.PORT_DOWN, severity, SELF)


def _other_link(lower: str, down: re.Match[str]) -> bool:
    """NVLink, PCIe and storage have links of their own; virtual interfaces come and go."""
    start = lower.rfind("\n", 0, down.start()) + 1
    end = lower.find("\n", down.end())
    line = lower[start : end if end >= 0 else len(lower)]
    others = ("nvlink", "netir", "pcie", "sata", "ata", "veth", "docker", "cali", "xid", "usb",
              "addrconf")  # fmt: skip
    return any(re.search(rf"\b{word}", line) for word in others)


COMPLETION = re.compile(
    r"(?:got completion (?:from|with)|completion with error)[^\n]*?"
    r"(?:\n?[^\n]*failed status|status|error)[ =]*(?:(\w+)\()?(\d+)\b([^\n]*)"
)
ASYNC = re.compile(
    r"(?:got (?:non-fatal )?async (?:error |fatal )?event|"
    r"async fatal event on \w+(?: \([^)]*\))?) ?: ?([^\n]*)"
)


def find_completions(text: Text) -> Iterator[Finding]:
    """Failed work on a queue pair, as NCCL prints it over its versions.

    1 to 4 are the reporter's own buffers, 9 to 11 the far side's; 5 follows from any other;
    12 and 13 are answers that never came. What CUDA says after it comes of the tear-down.
    """
    for match in COMPLETION.finditer(text.lower):
        code = int(match[2])
        if code == 4:
            yield finding(text, match.start(), HARD, "ib.local", Kind.DMA, SEV1, SELF)
        elif code in (9, 10, 11):
            yield finding(text, match.start(), Tier.DECISIVE, "ib.remote", Kind.DMA, SEV1, PEER)
        elif code != 0:
            tier, blame = (VICTIM, SELF) if code == 5 else (Tier.PROCESS, UNKNOWN)
            yield finding(text, match.start(), tier, "ib.completion", Kind.NETWORK, SEV3, blame)


def find_async_events(text: Text) -> Iterator[Finding]:
    for match in ASYNC.finditer(text.lower):
        event = match[1]
        if "work queue error" in event or ("access" in event and "error" in event):
            yield finding(text, match.start(), HARD, "ib.access", Kind.DMA, SEV1, SELF)
        elif "fatal" in event or "catastrophic" in event:
            yield finding(text, match.start(), HARD, "ib.fatal", Kind.PORT_DOWN, SEV1, SELF)
        elif "port" not in event and "error" not in event:
            yield finding(text, match.start(), Tier.HINT, "ib.event", Kind.NON_FAILURE, NONE,
                          UNKNOWN)  # fmt: skip
