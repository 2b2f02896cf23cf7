"""The API as unicronctl sees it: over the Unix socket of this host; else of another host over TLS;
else, for reading, over loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
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
        self._settings = settings
        self._socket, self._address = settings.api_socket, settings.api_listen

    def get(self, path: str, **parameters: object) -> Answer:
        return self._first("GET", path, params=_present(parameters))

    def post(self, path: str, body: Answer) -> Answer:
        return self._first("POST", path, json=body)

    def _first(self, method: str, path: str, **request: Any) -> Answer:
        """What the first of them answers that can be reached."""
        whys = []
        for where, connect in self._places(method):
            try:
                return _ask(connect(), method, path, **request)
            except httpx.ConnectError as error:
                whys.append(f"{where}: {error}")
        raise Unavailable(
            f"unicrond's API does not answer on {'; on '.join(whys)}. Is unicrond running here? "
            "See `systemctl status unicrond`; from another host, set api_urls"
        )

    def _places(self, method: str) -> Iterator[tuple[str, Callable[[], httpx.Client]]]:
        yield self._socket, partial(_over_unix, self._socket)
        for url in self._settings.api_urls:
            yield url, partial(self._elsewhere, url)
        if method == "GET" and not self._settings.api_urls:
            yield self._address, partial(_over_tcp, self._address)

    def _elsewhere(self, url: str) -> httpx.Client:
        from unicrond.ctl import remote  # slow to import

        return remote.client(self._settings, url)

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


def refusal(path: str) -> str:
    """Why nothing can be asked over this Unix socket, "" when it can."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _over_unix(path: str) -> httpx.Client:
    if why := refusal(path):
        raise httpx.ConnectError(why)
    transport = httpx.HTTPTransport(uds=path, verify=False)  # no TLS: to load roots takes 40 ms
    return httpx.Client(transport=transport, base_url="http://unicrond", trust_env=False)


def _over_tcp(address: str) -> httpx.Client:
    return httpx.Client(base_url=f"http://{address}", trust_env=False, verify=False)


def _ask(client: httpx.Client, method: str, path: str, **request: Any) -> Answer:
    try:
        with client:
            response = client.request(method, f"/v1{path}", timeout=TIMEOUT_SECONDS, **request)
    except httpx.ConnectError:
        raise
    except httpx.HTTPError as error:
        words = str(error) or type(error).__name__
        raise Unavailable(f"unicrond's API did not answer: {words}") from None
    answer = _object(response)
    if not response.is_success:
        raise _error(answer)
    return answer


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
        case "forbidden" | "not_found" | "unauthenticated":
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
    usual addresses hold, or those of the environment."""
    return load_settings(path, files=path is not None or os.access(DEFAULT_PATH, os.R_OK))
