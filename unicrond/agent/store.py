"""The key-value store of one generation, as a rendezvous needs it. Pure; bounded."""

from __future__ import annotations

from unicrond.errors import Refused

MAX_BYTES = 64 << 20
MAX_KEYS = 100_000
MAX_KEY_CHARACTERS = 1024


class Store:
    """Lives as long as its generation; then it is revoked and refuses everything."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.revoked = False
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def set(self, key: str, value: bytes) -> None:
        self._check(key)
        grown = self._bytes + len(value) - len(self._values.get(key, b""))
        if grown > MAX_BYTES or (key not in self._values and len(self._values) >= MAX_KEYS):
            raise Refused("the store of this generation is full")
        self._values[key] = value
        self._bytes = grown

    def get(self, key: str) -> bytes | None:
        self._check(key)
        return self._values.get(key)

    def add(self, key: str, amount: int) -> int:
        self._check(key)
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError as error:
            raise Refused(f"the value of {key!r} is not a number") from error
        self.set(key, str(total).encode())
        return total

    def has_all(self, keys: list[str]) -> bool:
        return all(self.get(key) is not None for key in keys)

    def _check(self, key: str) -> None:
        if self.revoked:
            raise Refused(f"generation {self.generation} is over")
        if len(key) > MAX_KEY_CHARACTERS:
            raise Refused(f"a key may have {MAX_KEY_CHARACTERS} characters")
