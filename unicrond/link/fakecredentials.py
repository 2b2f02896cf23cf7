"""Credentials without a service, for tests and simulations: a sealed box in one process' memory."""

from __future__ import annotations

import itertools

from unicrond.errors import Refused, Unavailable
from unicrond.link.credentials import Opened


class FakeRealm:
    """What munged is to a cluster: knows each credential, and whether it was opened before."""

    def __init__(self) -> None:
        self.available = True
        self.now = 0.0
        self.lifetime_seconds = 300.0
        self._numbers = itertools.count(1)
        self._boxes: dict[str, tuple[float, Opened, int | None]] = {}
        self._opened: set[str] = set()

    def user(self, uid: int, origin: str = "127.0.0.1") -> FakeCredentials:
        """The view of one user on one host."""
        return FakeCredentials(self, uid, origin)

    def seal(self, opened: Opened, for_uid: int | None) -> str:
        self._check_available()
        text = f"FAKE:{next(self._numbers)}:"
        self._boxes[text] = (self.now, opened, for_uid)
        return text

    def open(self, uid: int, text: str) -> Opened:
        self._check_available()
        if text not in self._boxes:
            raise Refused("the credential is not valid")
        sealed_at, opened, for_uid = self._boxes[text]
        if for_uid not in (None, uid):
            raise Refused("the credential is for another user")
        if self.now - sealed_at > self.lifetime_seconds:
            raise Refused("the credential has expired")
        if text in self._opened:
            raise Refused("the credential was used before")
        self._opened.add(text)
        return opened

    def _check_available(self) -> None:
        if not self.available:
            raise Unavailable("the credential service does not answer")


class FakeCredentials:
    """The Credentials port as one user sees it."""

    def __init__(self, realm: FakeRealm, uid: int, origin: str) -> None:
        self._realm = realm
        self._uid = uid
        self._origin = origin

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        return self._realm.seal(Opened(self._uid, payload, self._origin), for_uid)

    def open(self, text: str) -> Opened:
        return self._realm.open(self._uid, text)
