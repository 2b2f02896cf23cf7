"""Handshakes as generators: they yield what they need done and are sent the result. Pure.

    agent ─> unicrond: dial_unicrond ··· accept_agent       (a MUNGE credential each way)
    agent ─> agent:    dial_peer     ··· accept_peer        (the run's secret)

    acceptor ── hello ──> dialer ── prove ──> acceptor ── welcome ──> dialer
             (either of the acceptor's messages may be a refuse, after which it closes)

Each ends with a Session or a Refusal. The bodies keep their form in every version, so that sides
of any age can read them; `v` in them is the sender's newest. Both offered ranges are part of what
is proved, so nobody between can talk two sides down to an old version.
Nonces and keys come in as parameters; session.py carries the steps out.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from unicrond.errors import ProtocolError, Refused, Unavailable
from unicrond.link import fields
from unicrond.link.credentials import Opened
from unicrond.link.frames import Body

KEY_BYTES = 32
_LONGEST_CREDENTIAL = 6 << 10
_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class Versions:
    """The range of protocol versions that one side speaks."""

    oldest: int
    newest: int

    def common(self, other: Versions) -> int | None:
        """The highest version that both speak."""
        version = min(self.newest, other.newest)
        return version if version >= max(self.oldest, other.oldest) else None


NO_RUN = 0  # no Slurm job has this id
SPEAKS = Versions(oldest=1, newest=1)  # keeps its last two; runs outlive daemons


@dataclass(frozen=True, slots=True)
class Identity:
    """One agent process: `agent` never repeats. With NO_RUN it is the root sensor of a node."""

    run_id: int
    node: str
    agent: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Who an agent says it is, the user who proved it, and the address of the host where."""

    identity: Identity
    uid: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds. "retry" when it may hold later, "refused" when it never will."""

    answer: Literal["ok", "retry", "refused"]
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A handshake that succeeded. `peer` is who is at the other end, None for unicrond."""

    key: bytes
    version: int
    peer: Identity | None
    uid: int = -1


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class Send:
    body: Body


@dataclass(frozen=True, slots=True)
class Receive:
    """Wants the other side's next body."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Wants a credential."""

    payload: bytes
    for_uid: int | None


@dataclass(frozen=True, slots=True)
class Open:
    """Wants an Opened."""

    text: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Wants a Verdict."""

    claim: Claim


Step = Send | Receive | Seal | Open | Judge
Handshake = Generator[Step, Any, Session | Refusal]


# ---------------------------------------------------------------- agent and unicrond


def accept_agent(nonce: str, key: bytes, speaks: Versions = SPEAKS) -> Handshake:
    """unicrond's side: asks for proof of the user, has the claim judged, hands the key over."""
    yield Send(_hello(nonce, speaks))
    prove: Body = yield Receive()
    offered, version = _agree(prove, "prove", speaks)
    if version is None:
        return (yield from _refuse(_no_common(speaks, offered), retry=False, speaks=speaks))
    try:
        opened: Opened = yield Open(fields.text(prove, "credential", _LONGEST_CREDENTIAL))
    except (Refused, Unavailable) as error:
        retry = isinstance(error, Unavailable)
        return (yield from _refuse(str(error), retry, speaks))
    payload = _payload(opened)
    if payload.get("nonce") != nonce:
        return (yield from _refuse("the credential answers another hello", True, speaks))
    if payload.get("ranges") != _ranges(speaks, offered):
        return (yield from _refuse("the credential names other versions", True, speaks))
    claim = Claim(_identity(payload), opened.uid, opened.origin)
    verdict: Verdict = yield Judge(claim)
    if verdict.answer != "ok":
        return (yield from _refuse(verdict.sentence, verdict.answer == "retry", speaks))
    return (yield from _hand_over(key, version, claim, payload, speaks))


def _hand_over(
    key: bytes, version: int, claim: Claim, payload: Body, speaks: Versions
) -> Handshake:
    agent_nonce = fields.text(payload, "agent_nonce", 100)
    answer = {"agent_nonce": agent_nonce, "key": base64.b64encode(key).decode()}
    try:
        credential: str = yield Seal(_json(answer), claim.uid)
    except (Refused, Unavailable) as error:
        return (yield from _refuse(str(error), True, speaks))
    yield Send({"v": speaks.newest, "type": "welcome", "credential": credential})
    return Session(key, version, claim.identity, claim.uid)


def dial_unicrond(
    identity: Identity, nonce: str, trusted_uids: Iterable[int], speaks: Versions = SPEAKS
) -> Handshake:
    """The agent's side: proves its user, and takes a key from a trusted user alone."""
    hello: Body = yield Receive()
    if refusal := _refusal(hello):
        return refusal
    offered, version = _agree(hello, "hello", speaks)
    if version is None:
        return Refusal(_no_common(offered, speaks), retry=False)
    claim = {
        "nonce": fields.text(hello, "nonce", 100),
        "agent_nonce": nonce,
        "ranges": _ranges(offered, speaks),
        "run_id": identity.run_id,
        "node": identity.node,
        "agent": identity.agent,
    }
    credential: str = yield Seal(_json(claim), None)
    yield Send(_prove(speaks) | {"credential": credential})
    welcome: Body = yield Receive()
    if refusal := _refusal(welcome):
        return refusal
    _expect(welcome, "welcome")
    opened: Opened = yield Open(fields.text(welcome, "credential", _LONGEST_CREDENTIAL))
    if opened.uid not in frozenset(trusted_uids):
        raise ProtocolError(f"the welcome is by user {opened.uid}, who is not trusted")
    payload = _payload(opened)
    if payload.get("agent_nonce") != nonce:
        raise ProtocolError("the welcome answers another credential")
    return Session(_key(payload), version, None, opened.uid)


# ---------------------------------------------------------------- agents among each other


def accept_peer(
    me: Identity,
    nodes: Iterable[str] | None,
    secret: bytes,
    nonce: str,
    speaks: Versions = SPEAKS,
) -> Handshake:
    """The listener's side; whoever knows the secret is an agent of the run. `nodes`: on one of
    these, None: on any."""
    yield Send(_hello(nonce, speaks))
    prove: Body = yield Receive()
    offered, version = _agree(prove, "prove", speaks)
    if version is None:
        return (yield from _refuse(_no_common(speaks, offered), retry=False, speaks=speaks))
    peer = _identity(prove)
    proof = _Proof(secret, nonce, fields.text(prove, "nonce", 100), _ranges(speaks, offered))
    if not proof.holds("dialer", peer, prove):
        return (yield from _refuse("the proof does not fit this run", False, speaks))
    stranger = nodes is not None and peer.node not in frozenset(nodes)
    if peer.run_id != me.run_id or peer.node == me.node or stranger:
        return (yield from _refuse(f"{peer.node} is no other node of this run", False, speaks))
    yield Send(
        {"v": speaks.newest, "type": "welcome", "node": me.node, "agent": me.agent}
        | {"mac": proof.mac("acceptor", me)}
    )
    return Session(proof.key(), version, peer)


def dial_peer(
    me: Identity, node: str, secret: bytes, nonce: str, speaks: Versions = SPEAKS
) -> Handshake:
    """The dialer's side; it wants the agent on `node` and no other."""
    hello: Body = yield Receive()
    if refusal := _refusal(hello):
        return refusal
    offered, version = _agree(hello, "hello", speaks)
    if version is None:
        return Refusal(_no_common(offered, speaks), retry=False)
    proof = _Proof(secret, fields.text(hello, "nonce", 100), nonce, _ranges(offered, speaks))
    claim = {"nonce": nonce, "run_id": me.run_id, "node": me.node, "agent": me.agent}
    yield Send(_prove(speaks) | claim | {"mac": proof.mac("dialer", me)})
    welcome: Body = yield Receive()
    if refusal := _refusal(welcome):
        return refusal
    _expect(welcome, "welcome")
    peer = _identity(welcome | {"run_id": me.run_id})
    if peer.node != node or not proof.holds("acceptor", peer, welcome):
        raise ProtocolError(f"whoever listens there is not {node} of this run")
    return Session(proof.key(), version, peer)


@dataclass(frozen=True, slots=True)
class _Proof:
    """What knowing the secret proves: both nonces, both ranges, role and identity."""

    secret: bytes
    acceptor_nonce: str
    dialer_nonce: str
    ranges: list[list[int]]

    def mac(self, role: str, who: Identity) -> str:
        return self._digest([role, who.run_id, who.node, who.agent]).hex()

    def holds(self, role: str, who: Identity, body: Body) -> bool:
        given = fields.text(body, "mac", 100)
        return hmac.compare_digest(given.encode(), self.mac(role, who).encode())

    def key(self) -> bytes:
        return self._digest(["session"])

    def _digest(self, words: list[str | int]) -> bytes:
        context = [self.acceptor_nonce, self.dialer_nonce, self.ranges, words]
        return hmac.digest(self.secret, _json(context), "sha256")


# ---------------------------------------------------------------- pieces of both


def _hello(nonce: str, speaks: Versions) -> Body:
    body = {"v": speaks.newest, "type": "hello", "nonce": nonce}
    return body | {"speaks": [speaks.oldest, speaks.newest]}


def _prove(speaks: Versions) -> Body:
    return {"v": speaks.newest, "type": "prove", "speaks": [speaks.oldest, speaks.newest]}


def _ranges(acceptor: Versions, dialer: Versions) -> list[list[int]]:
    return [[acceptor.oldest, acceptor.newest], [dialer.oldest, dialer.newest]]


def _agree(body: Body, kind: str, speaks: Versions) -> tuple[Versions, int | None]:
    """What the other side offers in a message of `kind`, and the version to speak."""
    _expect(body, kind)
    pair = body.get("speaks")
    if type(pair) is not list or len(pair) != 2 or any(type(end) is not int for end in pair):
        raise ProtocolError("`speaks` is not a pair of integers")
    offered = Versions(*pair)
    return offered, speaks.common(offered)


def _no_common(acceptor: Versions, dialer: Versions) -> str:
    return (
        f"no common protocol version: one side speaks {acceptor.oldest} to {acceptor.newest}, "
        f"the other {dialer.oldest} to {dialer.newest}"
    )


def _refuse(reason: str, retry: bool, speaks: Versions) -> Handshake:
    yield Send(refuse_body(reason, retry, speaks.newest))
    return Refusal(reason, retry)


def refuse_body(reason: str, retry: bool, version: int) -> Body:
    return {"v": version, "type": "refuse", "reason": reason[:_LONGEST_REASON], "retry": retry}


def _refusal(body: Body) -> Refusal | None:
    if body["type"] != "refuse":
        return None
    reason = fields.text(body, "reason", _LONGEST_REASON)
    return Refusal(reason, fields.boolean(body, "retry"))


def _expect(body: Body, kind: str) -> None:
    if body["type"] != kind:
        raise ProtocolError(f"a {kind} was expected, not this: {body['type'][:40]!r}")


def _identity(body: Body) -> Identity:
    return Identity(
        fields.integer(body, "run_id"), fields.name(body, "node"), fields.name(body, "agent")
    )


def _payload(opened: Opened) -> Body:
    try:
        payload = json.loads(opened.payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a credential's payload is not JSON") from error
    if not isinstance(payload, dict):
        raise ProtocolError("a credential's payload is not an object")
    return payload


def _key(payload: Body) -> bytes:
    try:
        key = base64.b64decode(fields.text(payload, "key", 100), validate=True)
    except ValueError as error:
        raise ProtocolError("the key is not base64") from error
    if len(key) != KEY_BYTES:
        raise ProtocolError(f"the key has {len(key)} bytes, not {KEY_BYTES}")
    return key


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
