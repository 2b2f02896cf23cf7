"""Proof without MUNGE, by Slurm's own word: only a job's owner may write into its comment.

    unicron-run   writes the hash of the run's public key into the comment of its job
    agent         signs its claim with what this key and unicrond's, from agent.conf, have in common
    unicrond      finds the hash in Slurm's record: whoever holds the key acts for the job's owner

The Credentials port, as munge.py. Diffie-Hellman in group 14 of RFC 3526; HMAC-SHA256 signs, and
makes the pad under which the session's key travels. Each side's word proves it to the other, since
nobody else can know what both keys have in common.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unicrond.errors import BadInput, ProtocolError, Refused, Unavailable
from unicrond.link import fields
from unicrond.link.credentials import Credentials, Opened
from unicrond.link.frames import Body

COMMENT_KEY = "unicron_proof"
LEAST_BYTES = 32  # of a secret
KEY_LENGTH = 512  # of a public key, in hexadecimal digits
PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
ROOT = 0
_PREFIX = "JOB:"
_NONCE_BYTES = 16
_MOST_WAITING = 4096  # claims that were opened and are not answered yet


@dataclass(frozen=True, slots=True)
class JobWord:
    """What Slurm says of a job."""

    uid: int
    comment: str


def public_key(secret: bytes) -> str:
    return f"{pow(2, _exponent(secret), PRIME):0{KEY_LENGTH}x}"


def check_key(text: str) -> str:
    """Raises ValueError."""
    value = int(text, 16) if len(text) == KEY_LENGTH and text.isalnum() else 0
    if not 1 < value < PRIME - 1:
        raise ValueError(f"not a public key, which has {KEY_LENGTH} hexadecimal digits")
    return text.lower()


def read_secret(file: Path) -> bytes:
    """Of unicrond. Raises BadInput."""
    try:
        secret = base64.b64decode(file.read_bytes(), validate=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"proof_key: {file}: {error}; make it with `unicronctl proof-key`") from None
    if len(secret) < LEAST_BYTES:
        raise BadInput(f"proof_key: {file} holds {len(secret)} bytes, not {LEAST_BYTES}")
    return secret


def proved_in(comment: str, public: str) -> str:
    """The comment with the proof in it. Raises ValueError where it is somebody's own text."""
    found = json.loads(comment) if comment else {}
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return json.dumps({**found, COMMENT_KEY: _hash(public)}, separators=(",", ":"))


class JobProof:
    """An agent's side. `daemon_key` is root's word, who wrote agent.conf: so is what it proves."""

    def __init__(self, run_id: int, secret: bytes, daemon_key: str) -> None:
        self._run_id, self._public = run_id, public_key(secret)
        self._keys = _Keys.of(secret, daemon_key, self._public)

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        claim = {"job": self._run_id, "public": self._public, "payload": _text(payload)}
        return _packed(claim | {"mac": self._keys.mac("agent", payload).hex()})

    def open(self, text: str) -> Opened:
        box = _unpacked(text)
        nonce, hidden = _bytes(box, "nonce"), _bytes(box, "payload")
        if not _same(box, self._keys.mac("unicrond", nonce + hidden)):
            raise Refused("the answer is not by the unicrond whose unicrond_key is in agent.conf")
        return Opened(ROOT, self._keys.padded(nonce, hidden))


class CommentProofs:
    """unicrond's side. `job` tells Slurm's word, None while there is none."""

    def __init__(self, secret: bytes, job: Callable[[int], JobWord | None]) -> None:
        self._secret, self._job = secret, job
        self._waiting: OrderedDict[str, _Keys] = OrderedDict()  # by the claim's nonce

    def open(self, text: str) -> Opened:
        claim = _unpacked(text)
        run_id, payload = fields.integer(claim, "job"), _bytes(claim, "payload")
        try:
            public = check_key(fields.text(claim, "public", KEY_LENGTH))
        except ValueError as error:
            raise Refused(f"the claim's key is {error}") from None
        word = self._job(run_id)
        if word is None:
            raise Unavailable(f"Slurm has not told of job {run_id} yet")
        if not _is_in(word.comment, public):  # before the arithmetic, which costs milliseconds
            raise Unavailable(f"the comment of job {run_id} does not hold this run's proof")
        keys = _Keys.of(self._secret, public, public)
        if not _same(claim, keys.mac("agent", payload)):
            raise Refused("the claim is not by whoever holds the run's key")
        if not (nonce := _agent_nonce(payload)):
            raise Refused("the claim has no nonce")
        self._waiting[nonce] = keys
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)
        return Opened(word.uid, payload)

    def answers(self, payload: bytes) -> bool:
        return _agent_nonce(payload) in self._waiting

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        keys = self._waiting.pop(_agent_nonce(payload))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hidden = keys.padded(nonce, payload)
        mac = keys.mac("unicrond", nonce + hidden).hex()
        return _packed({"nonce": _text(nonce), "payload": _text(hidden), "mac": mac})


class EitherProof:
    """MUNGE, or the job's comment: as the agent has it."""

    def __init__(self, munge: Credentials, proofs: CommentProofs) -> None:
        self._munge, self._proofs = munge, proofs

    def open(self, text: str) -> Opened:
        return (self._proofs if text.startswith(_PREFIX) else self._munge).open(text)

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        mine = self._proofs.answers(payload)
        return (self._proofs if mine else self._munge).seal(payload, for_uid)


@dataclass(frozen=True, slots=True)
class _Keys:
    """What both sides can make and nobody else."""

    root: bytes

    @classmethod
    def of(cls, secret: bytes, other: str, run_public: str) -> _Keys:
        common = pow(int(other, 16), _exponent(secret), PRIME).to_bytes(KEY_LENGTH // 2, "big")
        return cls(hmac.digest(common, b"unicron job proof 1" + run_public.encode(), "sha256"))

    def mac(self, role: str, data: bytes) -> bytes:
        return hmac.digest(self._key(f"mac {role}"), data, "sha256")

    def padded(self, nonce: bytes, data: bytes) -> bytes:
        """Hides, and shows what was hidden under the same nonce."""
        key, pad = self._key("pad"), b""
        while len(pad) < len(data):
            pad += hmac.digest(key, nonce + len(pad).to_bytes(4, "big"), "sha256")
        return bytes(a ^ b for a, b in zip(data, pad[: len(data)], strict=True))

    def _key(self, purpose: str) -> bytes:
        return hmac.digest(self.root, purpose.encode(), "sha256")


def _exponent(secret: bytes) -> int:
    return int.from_bytes(hmac.digest(secret, b"unicron exponent", "sha512"), "big")


def _hash(public: str) -> str:
    return hashlib.sha256(public.encode()).hexdigest()


def _is_in(comment: str, public: str) -> bool:
    try:
        found = json.loads(comment)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get(COMMENT_KEY) == _hash(public)


def _agent_nonce(payload: bytes) -> str:
    try:
        nonce = json.loads(payload)["agent_nonce"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return nonce if isinstance(nonce, str) else ""


def _same(box: Body, mac: bytes) -> bool:
    return hmac.compare_digest(fields.text(box, "mac", 100).encode(), mac.hex().encode())


def _packed(box: Body) -> str:
    return _PREFIX + _text(json.dumps(box).encode())


def _unpacked(text: str) -> Body:
    try:
        box = json.loads(base64.b64decode(text.removeprefix(_PREFIX), validate=True))
    except (ValueError, RecursionError):
        box = None
    if not isinstance(box, dict):
        raise Refused("the credential is not valid")
    return box


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(box: Body, name: str) -> bytes:
    try:
        return base64.b64decode(fields.text(box, name, 4096), validate=True)
    except ValueError:
        raise ProtocolError(f"`{name}` is not base64") from None
