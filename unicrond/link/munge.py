"""Credentials by MUNGE, through its two commands; the payload goes through stdin, never argv."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from unicrond.errors import Refused, Unavailable
from unicrond.link.credentials import Opened

TIMEOUT_SECONDS = 5.0
_CREDENTIAL_LIMIT_BYTES = 8 << 10
_NO_SERVICE = frozenset({6, 7})  # EMUNGE_SOCKET, EMUNGE_TIMEOUT
_BAD = {
    15: "the credential has expired (do the clocks of the two machines agree?)",
    16: "the credential comes from the future (do the clocks of the two machines agree?)",
    17: "the credential was used before",
    18: "the credential is for another user",
}


class MungeCredentials:
    """`socket` of munged, "" for the default one."""

    def __init__(self, socket: str = "", timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._options = [f"--socket={socket}"] if socket else []
        self._timeout_seconds = timeout_seconds

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        restrict = [] if for_uid is None else [f"--restrict-uid={for_uid}"]
        done = self._call(["munge", *self._options, *restrict], payload)
        text = done.stdout.decode("ascii", "replace").strip()
        if not (text.startswith("MUNGE:") and text.endswith(":")):
            raise Unavailable(_words(done, "munge gave no credential"))
        return text

    def open(self, text: str) -> Opened:
        if len(text) > _CREDENTIAL_LIMIT_BYTES or not text.isascii():
            raise Refused("the credential is too long or not text")
        command = ["unmunge", *self._options, "--numeric", "--keys=STATUS,UID,ENCODE_HOST"]
        done = self._call(command, text.encode("ascii"))
        metadata, separator, payload = done.stdout.partition(b"\n\n")
        values = dict(_pair(line) for line in metadata.decode("ascii", "replace").splitlines())
        # The exit status alone is not trusted: where all children are reaped it may read 0.
        if done.returncode == 0 and separator and values.get("STATUS") == "0":
            return Opened(int(values["UID"]), payload, values.get("ENCODE_HOST", ""))
        if done.returncode in _NO_SERVICE or (done.returncode == 0 and "STATUS" not in values):
            raise Unavailable(_words(done, "unmunge did not answer"))
        raise Refused(_BAD.get(done.returncode, _words(done, "the credential is not valid")))

    def _call(self, command: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                command, input=data, capture_output=True, timeout=self._timeout_seconds
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{command[0]} did not answer within {self._timeout_seconds} s"
            ) from error
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error}") from error


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _words(done: subprocess.CompletedProcess[bytes], otherwise: str) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else otherwise
