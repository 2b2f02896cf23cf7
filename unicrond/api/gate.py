"""Tells who asks, and stops who asks too often.

over               by                                              is
the Unix socket    the kernel's word on the process at the end     that user
TLS                Authorization: Bearer TOKEN, or Slurm's own     the user of the token
                   header X-SLURM-USER-TOKEN: TOKEN
TLS                Authorization: MUNGE CREDENTIAL                 the user who sealed it
loopback           the same; or nothing                            a viewer without a name

A MUNGE credential holds exactly "unicron-api CLUSTER"; munged refuses one that was used before.
What a user is allowed follows from the configuration and Slurm's AdminLevel, whichever is more.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from dataclasses import dataclass, field

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from unicrond.api.callers import Caller, Role, Sight
from unicrond.api.directory import ALL, Directory, Known
from unicrond.api.errors import Unauthenticated
from unicrond.api.limits import COMMANDS, FAILURES, READS, Limit
from unicrond.api.tokens import Tokens
from unicrond.errors import Refused
from unicrond.link.credentials import Credentials

REMEDY = (
    'send "Authorization: Bearer TOKEN" with a token of `scontrol token`, or "Authorization: '
    'MUNGE CREDENTIAL"'
)


def munge_payload(cluster: str) -> bytes:
    return f"unicron-api {cluster}".encode()


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def uid_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


@dataclass(slots=True)
class Gate:
    """Without `tokens` or `munge` these are not taken."""

    cluster: str = ""
    admins: Collection[str] = ()
    operators: Collection[str] = ()
    directory: Directory = field(
        default_factory=lambda: Directory(known=Known(private=frozenset()))
    )
    tokens: Tokens | None = None
    munge: Credentials | None = None
    reads: Limit = field(default_factory=lambda: Limit(READS))
    commands: Limit = field(default_factory=lambda: Limit(COMMANDS))
    failures: Limit = field(default_factory=lambda: Limit(FAILURES))

    async def sight(self, request: Request) -> Sight:
        """Raises Unauthenticated, TooMany, Unavailable."""
        caller = await self._caller(request)
        self.reads.take(caller.user or caller.origin)
        if request.method != "GET":
            self.commands.take(caller.user or caller.origin)
        private = self.directory.known.private
        if private is None:  # Slurm has not told yet: whoever has a login there is trusted so far
            private = frozenset() if caller.via in ("unix", "loopback") else ALL
        return Sight(caller, private)

    async def _caller(self, request: Request) -> Caller:
        uid: int | None = request.scope.get("peer_uid")
        if uid is not None:
            return self.known(user_name(uid), uid, "unix", f"uid {uid}")
        origin = request.client.host if request.client else "unknown"
        scheme, _, words = request.headers.get("authorization", "").partition(" ")
        token = request.headers.get("x-slurm-user-token", "")
        if scheme.lower() == "munge":
            return await self._proved(origin, "munge", words.strip())
        if token or scheme.lower() == "bearer":
            return await self._proved(origin, "token", token or words.strip())
        if request.url.scheme == "https":
            raise Unauthenticated(f"who are you? {REMEDY}")
        return Caller("", None, Role.VIEWER, "loopback", origin)

    async def _proved(self, origin: str, via: str, proof: str) -> Caller:
        self.failures.check(origin)
        try:
            if via == "token":
                user = await run_in_threadpool(self._by_token, proof)
                return self.known(user, uid_of(user), via, origin)
            uid = await run_in_threadpool(self._by_munge, proof)
            return self.known(user_name(uid), uid, via, origin)
        except Refused as error:
            self.failures.take(origin)
            raise Unauthenticated(str(error)) from None

    def _by_token(self, token: str) -> str:
        if self.tokens is None:
            raise Refused("tokens are not taken here: see api_jwks and api_slurm_tokens")
        return self.tokens.user(token)

    def _by_munge(self, credential: str) -> int:
        if self.munge is None:
            raise Refused("MUNGE credentials are not taken here")
        opened = self.munge.open(credential)
        if opened.payload != munge_payload(self.cluster):
            raise Refused(f'the credential is for something else than "unicron-api {self.cluster}"')
        return opened.uid

    def known(self, user: str, uid: int | None, via: str, origin: str) -> Caller:
        told = self.directory.known
        roles = [Role.USER, told.roles.get(user, Role.USER)]
        if uid in (0, os.getuid()) or user in self.admins:
            roles.append(Role.ADMIN)
        if user in self.operators:
            roles.append(Role.OPERATOR)
        accounts = told.accounts.get(user, frozenset())
        return Caller(user, uid, max(roles), via, origin, accounts)
