"""Slurm's tokens (JWT): who is meant, once it is proved that this cluster issued them.

RS256, ES256 ...  by the public keys in a JWKS file, as Slurm itself verifies them
HS256             by Slurm: one command with the user's own token, its answer kept for a while. The
                  key that makes such tokens makes them for anybody, so unicrond never has it.

Tokens go to Slurm's command in its environment: not in a command line, not in a log.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jwt

from unicrond.errors import BadInput, Refused, Unavailable
from unicrond.slurm.command import plain_environment, trouble

ASYMMETRIC = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "EdDSA")
MOST_BYTES = 8 << 10
MOST_KNOWN = 1_000
KEPT_SECONDS = 60.0  # an answer of Slurm's; a token that is revoked is believed for so long
REFUSAL_KEPT_SECONDS = 10.0
# What scontrol says then: slurmctld 22.05 closes the connection without a word.
_NOT_TAKEN = (b"uthentication", b"Zero Bytes were transmitted")
USER_CLAIMS = ("sun", "preferred_username", "username", "sub")  # Slurm's own first


class AskSlurm(Protocol):
    def __call__(self, token: str) -> None:
        """Returns where Slurm takes the token; raises Refused, Unavailable."""


@dataclass(frozen=True, slots=True)
class _Answer:
    until: float
    refusal: str


class Tokens:
    """`jwks`: the file with the public keys, None where there is none. Blocks."""

    def __init__(
        self, jwks: Path | None, ask_slurm: AskSlurm | None, now: Callable[[], float] = time.time
    ) -> None:
        self._jwks, self._ask_slurm, self._now = jwks, ask_slurm, now
        self._keys: tuple[float, jwt.PyJWKSet | None] = (0.0, None)
        self._known: OrderedDict[bytes, _Answer] = OrderedDict()

    def user(self, token: str) -> str:
        """Raises Refused, and Unavailable where it cannot be told now."""
        if len(token) > MOST_BYTES:
            raise Refused("the token is too long")
        try:
            head = jwt.get_unverified_header(token)
            if head.get("alg") in ASYMMETRIC:
                return _user(self._by_key(token, head))
            if head.get("alg") == "HS256":
                return _user(self._by_slurm(token))
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Refused(f"the token is not valid: {_words(error)}") from None
        raise Refused("the token is not valid: its algorithm is not one of those taken here")

    def _by_key(self, token: str, head: Mapping[str, Any]) -> Mapping[str, Any]:
        keys = [k for k in self._public().keys if head.get("kid") in (None, k.key_id)]
        if len(keys) != 1:
            raise Refused("the token is not valid: it is signed by no key of this cluster's")
        claims: Mapping[str, Any] = jwt.decode(
            token, keys[0], algorithms=[str(head["alg"])],
            options={"require": ["exp"], "verify_aud": False},
        )  # fmt: skip
        return claims

    def _public(self) -> jwt.PyJWKSet:
        """Read anew when the file changed: keys are rotated."""
        if self._jwks is None:
            raise Refused("tokens with a public key are not taken here: api_jwks names no file")
        try:
            changed = self._jwks.stat().st_mtime
            if self._keys[1] is None or self._keys[0] != changed:
                self._keys = (changed, jwt.PyJWKSet.from_json(self._jwks.read_text()))
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise Unavailable(f"api_jwks: the keys cannot be read: {_words(error)}") from None
        assert self._keys[1] is not None
        return self._keys[1]

    def _by_slurm(self, token: str) -> Mapping[str, Any]:
        if self._ask_slurm is None:
            raise Refused("HS256 tokens are not taken here: see api_slurm_tokens")
        claims: Mapping[str, Any] = jwt.decode(token, options={"verify_signature": False})
        until = float(claims.get("exp", 0))
        if until <= self._now():
            raise Refused("the token has expired")
        name = hashlib.sha256(token.encode()).digest()
        answer = self._known.get(name)
        if answer is None or answer.until <= self._now():
            answer = self._asked(token, until)
            self._known[name] = answer
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        if answer.refusal:
            raise Refused(answer.refusal)
        return claims

    def _asked(self, token: str, until: float) -> _Answer:
        assert self._ask_slurm is not None
        try:
            self._ask_slurm(token)
        except Refused as error:
            return _Answer(self._now() + REFUSAL_KEPT_SECONDS, f"Slurm refuses the token: {error}")
        return _Answer(min(until, self._now() + KEPT_SECONDS), "")


def _user(claims: Mapping[str, Any]) -> str:
    for name in USER_CLAIMS:
        user = claims.get(name)
        if isinstance(user, str) and 0 < len(user) <= 255:
            return user
    raise Refused(f"the token names no user in any of {', '.join(USER_CLAIMS)}")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def ask_slurm(timeout_seconds: float) -> AskSlurm:
    """By `scontrol show partition`, which slurmctld answers to a token that it takes."""

    def ask(token: str) -> None:
        words = ("scontrol", "--oneliner", "show", "partition")
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds,
                env=plain_environment(os.environ) | {"SLURM_JWT": token}, check=False,
            )  # fmt: skip
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Unavailable(f"scontrol does not tell whether a token is good: {error}") from None
        said = done.stdout + done.stderr
        if done.returncode == 0:
            return
        if any(words in said for words in _NOT_TAKEN):
            raise Refused("authentication failed")
        raise Unavailable(str(trouble(words, done.returncode, said)))

    return ask


def check_file(path: str) -> Path | None:
    """At the start, so that a wrong file is told then and not to the first user."""
    if not path:
        return None
    try:
        jwt.PyJWKSet.from_json(Path(path).read_text())
    except (OSError, ValueError, jwt.PyJWTError) as error:
        raise BadInput(f"api_jwks: {path}: {_words(error)}; name a JWKS file") from None
    return Path(path)
