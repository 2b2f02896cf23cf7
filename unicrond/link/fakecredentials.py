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
        self._boxes: dict[str, tuple[float, int, int | None, bytes]] = {}
        self._opened: set[str] = set()

    def user(self, uid: int) -> FakeCredentials:
        """The view of one user."""
        return FakeCredentials(self, uid)

    def seal(self, uid: int, payload: bytes, for_uid: int | None) -> str:
        self._check_available()
        text = f"FAKE:{next(self._numbers)}:"
        self._boxes[text] = (self.now, uid, for_uid, payload)
        return text

    def open(self, uid: int, text: str) -> Opened:
        self._check_available()
        if text not in self._boxes:
            raise Refused("the credential is not valid")
        sealed_at, by_uid, for_uid, payload = self._boxes[text]
        if for_uid not in (None, uid):
            raise Refused("the credential is for another user")
        if self.now - sealed_at > self.lifetime_seconds:
            raise Refused("the credential has expired")
        if text in self._opened:
            raise Refused("the credential was used before")
        self._opened.add(text)
        return Opened(by_uid, payload)

    def _check_available(self) -> None:
        if not self.available:
            raise Unavailable("the credential service does not answer")


class FakeCredentials:
    """The Credentials port as one user sees it."""

    def __init__(self, realm: FakeRealm, uid: int) -> None:
        self._realm = realm
        self._uid = uid

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        return self._realm.seal(self._uid, payload, for_uid)

    def open(self, text: str) -> Opened:
        return self._realm.open(self._uid, text)
