"""Runs one Slurm command with a time-out and sorts what went wrong. Touches processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from unicrond.errors import Refused, SlurmUnavailable

# In Slurm's words: nobody answered, or not now. Everything else is an answer, and it is no.
_NOT_NOW = (
    "unable to contact",
    "timed out",
    "connection refused",
    "connect failure",
    "communication connection failure",
    "zero bytes were transmitted",
    "insane message length",
    "unexpected message",
    "standby mode",
    "could not establish a configuration source",
    "authentication",
    "munge",
    "incompatible versions",
    "try again later",
    "temporarily unable",
    "no route to host",
    "transport endpoint",
)

# Of coreutils' timeout, which ends a command: it took too long, or it could not be started.
_NO_ANSWER = (-9, 124, 125, 126, 127, 137)
ACT_GRACE_SECONDS = 1.0  # for timeout to be quicker than this process

PLAIN = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}


class SlurmCommand:
    """`prefix` is what runs before it, such as nsenter into a lab."""

    def __init__(self, prefix: Sequence[str] = (), timeout_seconds: float = 10.0) -> None:
        self._prefix = list(prefix)
        self._timeout_seconds = timeout_seconds

    def run(self, *words: str) -> str:
        """Its output; raises Refused or SlurmUnavailable with Slurm's words."""
        return self._run(words, words, self._timeout_seconds)

    def act(self, *words: str) -> str:
        """The same for a command that changes something: it ends in time also where this process is
        killed or stopped meanwhile, and another one acts in its place."""
        bound = ("timeout", "--signal=KILL", f"{self._timeout_seconds:g}", *words)
        return self._run(bound, words, self._timeout_seconds + ACT_GRACE_SECONDS)

    def _run(self, command: Sequence[str], words: Sequence[str], seconds: float) -> str:
        # What runs before may begin a fresh environment: so it is set again behind it.
        plain = [f"{name}={value}" for name, value in PLAIN.items()]
        try:
            done = subprocess.run(
                [*self._prefix, "env", *plain, *command] if self._prefix else command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                env=plain_environment(os.environ),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmUnavailable(self._silent(words)) from error
        except OSError as error:
            raise SlurmUnavailable(f"{words[0]} cannot be started: {error}") from error
        if command is not words and done.returncode in _NO_ANSWER:
            raise SlurmUnavailable(done.stderr.decode(errors="replace") or self._silent(words))
        if done.returncode != 0:
            raise trouble(words, done.returncode, done.stdout + done.stderr)
        return done.stdout.decode(errors="replace")

    def _silent(self, words: Sequence[str]) -> str:
        return f"{' '.join(words[:3])}: no answer within {self._timeout_seconds:g} s"


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Nothing that changes what Slurm prints or asks; times in UTC, words in English."""
    kept = {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SCONTROL_", "SQUEUE_", "LC_"))
    }
    return {**kept, **PLAIN}


def trouble(words: Sequence[str], status: int, output: bytes) -> Refused | SlurmUnavailable:
    """What a failed command means."""
    said = " ".join(output.decode(errors="replace").split())[-500:] or f"exit status {status}"
    kind = SlurmUnavailable if any(word in said.lower() for word in _NOT_NOW) else Refused
    return kind(f"{' '.join(words[:3])}: {said}")
