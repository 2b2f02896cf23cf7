"""Handshakes by hand: no socket, no MUNGE; both generators run against each other."""

from __future__ import annotations

import pytest

from unicrond.errors import ProtocolError, Refused, Unavailable
from unicrond.link.fakecredentials import FakeRealm
from unicrond.link.handshake import (
    SPEAKS,
    Claim,
    Handshake,
    Identity,
    Judge,
    Open,
    Receive,
    Refusal,
    Seal,
    Send,
    Session,
    Verdict,
    Versions,
    accept_agent,
    accept_peer,
    dial_peer,
    dial_unicrond,
)

ME = Identity(7, "n1", "a1")
OTHER = Identity(7, "n2", "a2")
SECRET = b"s" * 32
KEY = b"k" * 32
DAEMON, USER = 64000, 1000
YES = Verdict("ok")


class Side:
    """One generator, its user's credentials, and how it ended."""

    def __init__(self, handshake: Handshake, credentials=None, verdict=YES) -> None:
        self.handshake, self.credentials, self.verdict = handshake, credentials, verdict
        self.judged: list[Claim] = []
        self.end: Session | Refusal | None = None
        self.wants = False
        self._go(None)

    def _go(self, result) -> None:
        """Runs until it wants a body or ends; what it sends piles up in `said`."""
        self.said = []
        while True:
            try:
                step = self.handshake.send(result)
            except StopIteration as stop:
                self.end, self.wants = stop.value, False
                return
            result = None
            while not isinstance(step, Send | Receive):
                try:
                    step = self._proven(step)
                except StopIteration as stop:
                    self.end, self.wants = stop.value, False
                    return
            if isinstance(step, Receive):
                self.wants = True
                return
            self.said.append(step.body)

    def _proven(self, step):
        try:
            if isinstance(step, Judge):
                self.judged.append(step.claim)
                return self.handshake.send(self.verdict)
            if isinstance(step, Seal):
                return self.handshake.send(self.credentials.seal(step.payload, step.for_uid))
            assert isinstance(step, Open)
            return self.handshake.send(self.credentials.open(step.text))
        except (Refused, Unavailable) as error:
            return self.handshake.throw(error)

    def hear(self, body) -> None:
        assert self.wants, "it was sent more than it waits for"
        self._go(body)


def play(acceptor: Side, dialer: Side, between=lambda body: body) -> None:
    """Carries messages to and fro; `between` may change them on the way."""
    turn = [(dialer, body) for body in acceptor.said]
    for _ in range(10):
        if not turn:
            return
        listener, body = turn.pop(0)
        listener.hear(between(body))
        speaker = acceptor if listener is dialer else dialer
        turn += [(speaker, said) for said in listener.said]
    raise AssertionError("the handshake does not end")


def agents(realm, uid=USER, trusted=(DAEMON,), speaks=(SPEAKS, SPEAKS), **options):
    acceptor = Side(accept_agent("n-d", KEY, speaks[0]), realm.user(DAEMON), **options)
    return acceptor, Side(dial_unicrond(ME, "n-a", trusted, speaks[1]), realm.user(uid))


def peers(secrets=(SECRET, SECRET), speaks=(SPEAKS, SPEAKS), me=ME, wanted="n2"):
    acceptor = Side(accept_peer(OTHER, ["n1", "n2"], secrets[0], "n-l", speaks[0]))
    return acceptor, Side(dial_peer(me, wanted, secrets[1], "n-d", speaks[1]))


def test_an_agent_and_unicrond_end_with_one_key() -> None:
    acceptor, dialer = agents(FakeRealm())
    play(acceptor, dialer)
    assert acceptor.end == Session(KEY, 1, ME, USER)
    assert dialer.end == Session(KEY, 1, None, DAEMON)
    assert acceptor.judged == [Claim(ME, USER, "127.0.0.1")]


def test_two_agents_end_with_one_key_that_the_wire_does_not_show() -> None:
    acceptor, dialer = peers()
    seen = []
    play(acceptor, dialer, lambda body: seen.append(body) or body)
    assert acceptor.end.peer == ME and dialer.end.peer == OTHER
    assert acceptor.end.key == dialer.end.key and len(acceptor.end.key) == 32
    assert acceptor.end.key.hex() not in repr(seen)


VERSIONS = [
    (Versions(1, 1), Versions(0, 1), 1),
    (Versions(1, 1), Versions(1, 2), 1),
    (Versions(0, 1), Versions(1, 1), 1),
    (Versions(1, 2), Versions(1, 1), 1),
    (Versions(1, 2), Versions(1, 2), 2),
    (Versions(1, 2), Versions(0, 1), 1),
    (Versions(1, 1), Versions(5, 6), None),
    (Versions(5, 6), Versions(1, 1), None),
]


@pytest.mark.parametrize(
    "make", [lambda s: agents(FakeRealm(), speaks=s), lambda s: peers(speaks=s)]
)
@pytest.mark.parametrize(("ours", "theirs", "common"), VERSIONS)
def test_the_highest_common_version_is_spoken_or_a_sentence_is(make, ours, theirs, common) -> None:
    acceptor, dialer = make((ours, theirs))
    play(acceptor, dialer)
    if common is None:
        assert isinstance(dialer.end, Refusal) and not dialer.end.retry
        assert "no common protocol version" in dialer.end.reason
        assert not isinstance(acceptor.end, Session)
    else:
        assert acceptor.end.version == dialer.end.version == common


def test_an_acceptor_tells_an_unknown_version_apart_with_a_sentence() -> None:
    acceptor, _ = agents(FakeRealm())
    acceptor.hear({"v": 6, "type": "prove", "speaks": [5, 6], "credential": "X"})
    assert acceptor.end == Refusal(acceptor.said[0]["reason"], retry=False)
    assert "speaks 1 to 1" in acceptor.end.reason and "5 to 6" in acceptor.end.reason


@pytest.mark.parametrize(
    "make", [lambda s: agents(FakeRealm(), speaks=s), lambda s: peers(speaks=s)]
)
def test_nobody_in_between_can_talk_both_sides_down_to_an_older_version(make) -> None:
    def old(body):
        return body | {"speaks": [1, 1]} if "speaks" in body else body

    acceptor, dialer = make((Versions(1, 2), Versions(1, 2)))
    play(acceptor, dialer, old)
    assert isinstance(acceptor.end, Refusal) and isinstance(dialer.end, Refusal)


def test_a_verdict_is_told_in_its_own_words() -> None:
    acceptor, dialer = agents(FakeRealm(), verdict=Verdict("retry", "job 7 is not known yet"))
    play(acceptor, dialer)
    assert dialer.end == Refusal("job 7 is not known yet", retry=True) == acceptor.end


def test_a_credential_that_answers_another_hello_is_refused() -> None:
    realm = FakeRealm()
    _, dialer = agents(realm)
    dialer.hear({"v": 1, "type": "hello", "speaks": [1, 1], "nonce": "another"})
    acceptor, _ = agents(realm)
    acceptor.hear(dialer.said[0])
    assert isinstance(acceptor.end, Refusal) and "another hello" in acceptor.end.reason


def test_a_credential_seen_before_is_refused() -> None:
    realm = FakeRealm()
    acceptor, dialer = agents(realm)
    dialer.hear(acceptor.said[0])
    prove = dialer.said[0]
    acceptor.hear(prove)
    second = Side(accept_agent("n-d", KEY), realm.user(DAEMON))  # even with the same nonce
    second.hear(prove)
    assert isinstance(second.end, Refusal) and "used before" in second.end.reason


def test_when_no_credential_service_answers_the_agent_is_to_try_again() -> None:
    realm = FakeRealm()
    acceptor, dialer = agents(realm)
    dialer.hear(acceptor.said[0])
    realm.available = False
    acceptor.hear(dialer.said[0])
    assert isinstance(acceptor.end, Refusal) and acceptor.end.retry


def test_an_agent_takes_no_key_from_a_user_it_does_not_trust() -> None:
    acceptor, dialer = agents(FakeRealm(), trusted=(0,))
    with pytest.raises(ProtocolError, match="64000, who is not trusted"):
        play(acceptor, dialer)
    assert dialer.end is None


def test_another_user_cannot_open_the_key() -> None:
    realm = FakeRealm()
    acceptor, dialer = agents(realm)
    dialer.hear(acceptor.said[0])
    acceptor.hear(dialer.said[0])
    with pytest.raises(Refused, match="another user"):
        realm.user(USER + 1).open(acceptor.said[0]["credential"])


def test_a_welcome_to_another_agent_is_refused() -> None:
    realm = FakeRealm()
    acceptor, dialer = agents(realm)
    dialer.hear(acceptor.said[0])
    stale = realm.user(DAEMON).seal(b'{"agent_nonce": "older", "key": ""}', USER)
    with pytest.raises(ProtocolError, match="another credential"):
        dialer.hear({"v": 1, "type": "welcome", "credential": stale})


def test_without_the_secret_nobody_is_a_peer() -> None:
    acceptor, dialer = peers(secrets=(SECRET, b"guessed" * 5))
    play(acceptor, dialer)
    assert isinstance(acceptor.end, Refusal) and isinstance(dialer.end, Refusal)


def test_a_listener_without_the_secret_is_not_believed() -> None:
    acceptor, dialer = peers()
    with pytest.raises(ProtocolError, match="is not n2"):
        play(acceptor, dialer, lambda b: b | {"mac": "0" * 64} if b["type"] == "welcome" else b)


def test_the_acceptors_proof_cannot_be_made_from_the_dialers() -> None:
    acceptor, dialer = peers()
    macs = {}

    def echo(body):
        macs.setdefault(body["type"], body.get("mac"))
        return body | {"mac": macs["prove"]} if body["type"] == "welcome" else body

    with pytest.raises(ProtocolError):
        play(acceptor, dialer, echo)


@pytest.mark.parametrize("me", [Identity(8, "n1", "a"), Identity(7, "n9", "a"), OTHER])
def test_only_another_node_of_the_same_run_is_a_peer(me: Identity) -> None:
    acceptor, dialer = peers(me=me)
    play(acceptor, dialer)
    assert isinstance(acceptor.end, Refusal)


def test_whoever_wants_one_node_is_not_content_with_another() -> None:
    acceptor, dialer = peers(wanted="n3")
    with pytest.raises(ProtocolError, match="is not n3"):
        play(acceptor, dialer)


@pytest.mark.parametrize(
    "body",
    [
        {"v": 1, "type": "beat"},
        {"v": 1, "type": "prove"},
        {"v": 1, "type": "prove", "speaks": [1]},
        {"v": 1, "type": "prove", "speaks": [1, "1"]},
        {"v": 1, "type": "prove", "speaks": [1, 1], "credential": 3},
        {"v": 1, "type": "prove", "speaks": [1, 1], "credential": "x" * 7000},
    ],
)
def test_a_handshake_out_of_turn_ends_it(body) -> None:
    acceptor, _ = agents(FakeRealm())
    with pytest.raises(ProtocolError):
        acceptor.hear(body)


@pytest.mark.parametrize("payload", [b"", b"[]", b"[" * 5000, b'{"nonce": "n-d"}', b"\xff"])
def test_a_credential_with_an_odd_payload_lets_nobody_in(payload: bytes) -> None:
    realm = FakeRealm()
    acceptor, _ = agents(realm)
    credential = realm.user(USER).seal(payload, None)
    prove = {"v": 1, "type": "prove", "speaks": [1, 1], "credential": credential}
    try:
        acceptor.hear(prove)
    except ProtocolError:
        return
    assert isinstance(acceptor.end, Refusal)
