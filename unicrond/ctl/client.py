"""The API as unicronctl sees it: over the Unix socket, else, for reading, over TCP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from unicrond.config import DEFAULT_PATH, Settings, load_settings
from unicrond.errors import BadInput, Refused, Unavailable

TIMEOUT_SECONDS = 15.0
PAGE = 1000
MOST = 20_000  # items that a list shows

Answer = dict[str, Any]


class Client:
    def __init__(self, settings: Settings) -> None:
        self._socket, self._address = settings.api_socket, settings.api_listen

    def get(self, path: str, **parameters: object) -> Answer:
        try:
            return self._ask(self._over_unix(), "GET", path, params=_present(parameters))
        except httpx.ConnectError as unix:
            try:
                return self._ask(self._over_tcp(), "GET", path, params=_present(parameters))
            except httpx.ConnectError as tcp:
                raise Unavailable(self._absent(f"{unix}; on {self._address}: {tcp}")) from None

    def post(self, path: str, body: Answer) -> Answer:
        try:
            return self._ask(self._over_unix(), "POST", path, json=body)
        except httpx.ConnectError as error:
            raise Unavailable(self._absent(str(error))) from None

    def items(self, path: str, **parameters: object) -> list[Answer]:
        """Every page of a list, up to MOST items."""
        found: list[Answer] = []
        after: object = None
        while len(found) < MOST:
            page = self.get(path, limit=PAGE, after=after, **parameters)
            found += page["items"]
            after = page["next"]
            if after is None:
                break
        return found

    def _over_unix(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=self._socket)
        return httpx.Client(transport=transport, base_url="http://unicrond", trust_env=False)

    def _over_tcp(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://{self._address}", trust_env=False)

    def _absent(self, why: str) -> str:
        return (
            f"unicrond's API does not answer on {self._socket}: {why}. Is unicrond running here? "
            "See `systemctl status unicrond`"
        )

    def _ask(self, client: httpx.Client, method: str, path: str, **request: Any) -> Answer:
        with client, _in_time():
            response = client.request(method, f"/v1{path}", timeout=TIMEOUT_SECONDS, **request)
            answer = _object(response)
        if not response.is_success:
            raise _error(answer)
        return answer


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError:
        raise
    except httpx.HTTPError as error:
        raise Unavailable(
            f"unicrond's API did not answer: {error or type(error).__name__}"
        ) from None


def _object(response: httpx.Response) -> Answer:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unavailable(f"what answers is not unicrond's API (status {response.status_code})")
    return answer


def _error(answer: Answer) -> Exception:
    message = str(answer.get("message", answer))
    match answer.get("code"):
        case "bad_input" | "too_large":
            return BadInput(message)
        case "forbidden" | "not_found":
            return Refused(message)
        case _:
            return Unavailable(message)


def _present(parameters: dict[str, object]) -> dict[str, str]:
    """Without those that are None; true and false as JSON writes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in parameters.items()
        if value is not None
    }


def settings_for(path: Path | None) -> Settings:
    """The configuration may be closed to ordinary users, for the database's password: then the
    usual addresses hold."""
    if path is None and DEFAULT_PATH.exists() and not os.access(DEFAULT_PATH, os.R_OK):
        return Settings()
    return load_settings(path)
