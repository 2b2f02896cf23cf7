"""Proof by the job's comment: who is believed, and that nobody between hears the key."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicrond.errors import BadInput, ProtocolError, Refused, Unavailable
from unicrond.link.fakecredentials import FakeRealm
from unicrond.link.handshake import (
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
    accept_agent,
    dial_unicrond,
)
from unicrond.link.jobproof import (
    COMMENT_KEY,
    KEY_LENGTH,
    PRIME,
    CommentProofs,
    EitherProof,
    JobProof,
    JobWord,
    check_key,
    proved_in,
    public_key,
    read_secret,
)

SECRET, DAEMON, KEY = b"s" * 32, b"d" * 32, b"k" * 32
ALICE = 1000
WORD = JobWord(ALICE, proved_in('{"unicron": {"weight": 2}}', public_key(SECRET)))
CLAIM = b'{"agent_nonce": "n-a"}'


def unicrond(word: JobWord | None = WORD, secret: bytes = DAEMON) -> CommentProofs:
    return CommentProofs(secret, {7: word}.get)


def agent(secret: bytes = SECRET, run_id: int = 7, daemon: bytes = DAEMON) -> JobProof:
    return JobProof(run_id, secret, public_key(daemon))


def play(acceptor: Handshake, there: Any, dialer: Handshake, here: Any) -> tuple[Any, list[str]]:
    """Both ends of a handshake to their ends, and all that went over the wire."""
    wire: list[str] = []
    inbox: dict[int, list[Any]] = {0: [], 1: []}
    sides = [(acceptor, there), (dialer, here)]
    ends: dict[int, Any] = {}
    wanted: list[Any] = [None, None]
    steps: list[Any] = [next(acceptor), next(dialer)]
    while len(ends) < 2:
        for i, (side, proof) in enumerate(sides):
            if i in ends:
                continue
            step, error = steps[i], None
            if isinstance(step, Receive) and not inbox[i]:
                continue
            try:
                match step:
                    case Send():
                        wire.append(json.dumps(step.body))
                        inbox[1 - i].append(step.body)
                        wanted[i] = None
                    case Receive():
                        wanted[i] = inbox[i].pop(0)
                    case Seal():
                        wanted[i] = proof.seal(step.payload, step.for_uid)
                    case Open():
                        wanted[i] = proof.open(step.text)
                    case Judge():
                        assert step.claim == Claim(Identity(7, "n1", "a1"), ALICE)
                        wanted[i] = Verdict("ok")
            except (Refused, Unavailable) as refused:
                error = refused
            try:
                steps[i] = side.throw(error) if error else side.send(wanted[i])
            except StopIteration as stop:
                ends[i] = stop.value
    return (ends[0], ends[1]), wire


def met(there: Any, here: Any) -> tuple[Any, list[str]]:
    mine = dial_unicrond(Identity(7, "n1", "a1"), "n-a", {0})
    return play(accept_agent("n-d", KEY), there, mine, here)


@pytest.mark.parametrize("either", [False, True])
def test_an_agent_and_unicrond_shake_hands_and_the_wire_shows_no_key(either: bool) -> None:
    realm = FakeRealm()
    there = EitherProof(realm.user(99), unicrond()) if either else unicrond()
    (accepted, mine), wire = met(there, agent())
    assert accepted == Session(KEY, 1, Identity(7, "n1", "a1"), ALICE)
    assert mine == Session(KEY, 1, None, 0)
    shown = "".join(wire) + "".join(
        base64.b64decode(value[4:]).decode()
        for line in wire
        if str(value := json.loads(line).get("credential", "")).startswith("JOB:")
    )
    assert base64.b64encode(KEY).decode() not in shown
    assert "JOB:" in shown


def test_munge_is_taken_beside_it() -> None:
    realm = FakeRealm()
    theirs = realm.user(ALICE, "")
    text = EitherProof(realm.user(0), unicrond()).open(theirs.seal(b"x", None))
    assert text.uid == ALICE


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (None, "not told of job 7"),
        (JobWord(ALICE, ""), "does not hold this run's proof"),
        (JobWord(ALICE, "words"), "does not hold"),
        (JobWord(ALICE, proved_in("", public_key(b"other" * 8))), "does not hold"),
        (JobWord(ALICE, json.dumps([1])), "does not hold"),
    ],
)
def test_what_slurm_does_not_confirm_is_tried_again(word: JobWord | None, why: str) -> None:
    (accepted, mine), _ = met(unicrond(word), agent())
    assert isinstance(accepted, Refusal)
    assert accepted.retry
    assert why in accepted.reason
    assert mine == accepted


def test_who_knows_the_hash_but_not_the_key_is_refused() -> None:
    """A comment may be read by everybody, and so may the public key on the wire."""
    honest = agent().seal(CLAIM, None)
    claim = json.loads(base64.b64decode(honest[4:]))
    claim["payload"] = base64.b64encode(b'{"agent_nonce": "n-eve"}').decode()
    forged = "JOB:" + base64.b64encode(json.dumps(claim).encode()).decode()
    with pytest.raises(Refused, match="not by whoever holds"):
        unicrond().open(forged)


def test_another_jobs_key_proves_nothing_about_this_one() -> None:
    with pytest.raises(Unavailable, match="does not hold"):
        unicrond().open(agent(secret=b"mallory." * 4).seal(CLAIM, None))
    with pytest.raises(Unavailable, match="job 8"):
        unicrond().open(agent(run_id=8).seal(CLAIM, None))


def test_an_agent_takes_no_key_from_somebody_else_than_its_unicrond() -> None:
    false = unicrond(secret=b"false..." * 4)
    honest = agent(daemon=b"false..." * 4)
    false.open(honest.seal(CLAIM, None))  # as if it had the run's trust
    answer = false.seal(CLAIM, ALICE)
    with pytest.raises(Refused, match="not by the unicrond"):
        agent().open(answer)


def test_an_altered_answer_is_refused() -> None:
    there = unicrond()
    there.open(agent().seal(CLAIM, None))
    answer = json.loads(base64.b64decode(there.seal(CLAIM, ALICE)[4:]))
    hidden = bytearray(base64.b64decode(answer["payload"]))
    hidden[0] ^= 1
    answer["payload"] = base64.b64encode(hidden).decode()
    with pytest.raises(Refused):
        agent().open("JOB:" + base64.b64encode(json.dumps(answer).encode()).decode())


@settings(max_examples=30, deadline=None)  # arithmetic of milliseconds
@given(st.binary(max_size=200), st.booleans())
def test_nonsense_is_refused(data: bytes, coded: bool) -> None:
    text = "JOB:" + (base64.b64encode(data).decode() if coded else data.decode("latin1"))
    for side in (unicrond(), agent()):
        with pytest.raises((Refused, ProtocolError, Unavailable)):
            side.open(text)


@pytest.mark.parametrize("value", [0, 1, PRIME - 1, PRIME, PRIME + 1])
def test_keys_that_make_the_common_number_known_are_none(value: int) -> None:
    with pytest.raises(ValueError, match="not a public key"):
        check_key(f"{value:0{KEY_LENGTH}x}")


@pytest.mark.parametrize("text", ["", "0", "g" * KEY_LENGTH, " " + "2" * (KEY_LENGTH - 1)])
def test_text_that_is_no_key_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_key(text)


def test_other_words_of_the_comment_stay() -> None:
    comment = json.loads(WORD.comment)
    assert comment["unicron"] == {"weight": 2}
    assert set(comment) == {"unicron", COMMENT_KEY}
    assert proved_in(WORD.comment, public_key(SECRET)) == WORD.comment, "of a job that was requeued"
    for text in ("words", "[1]"):
        with pytest.raises(ValueError, match=r"."):
            proved_in(text, public_key(SECRET))


def test_a_secret_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "proof.key"
    with pytest.raises(BadInput, match="unicronctl proof-key"):
        read_secret(file)
    file.write_text("c2hvcnQ=")
    with pytest.raises(BadInput, match="holds 5 bytes"):
        read_secret(file)
