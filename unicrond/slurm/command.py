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

PLAIN = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}


class SlurmCommand:
    """`prefix` is what runs before it, such as nsenter into a lab."""

    def __init__(self, prefix: Sequence[str] = (), timeout_seconds: float = 10.0) -> None:
        self._prefix = list(prefix)
        self._timeout_seconds = timeout_seconds

    def run(self, *words: str) -> str:
        """Its output; raises Refused or SlurmUnavailable with Slurm's words."""
        # What runs before may begin a fresh environment: so it is set again behind it.
        plain = [f"{name}={value}" for name, value in PLAIN.items()]
        try:
            done = subprocess.run(
                [*self._prefix, "env", *plain, *words] if self._prefix else words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_seconds,
                env=plain_environment(os.environ),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmUnavailable(
                f"{' '.join(words[:3])}: no answer within {self._timeout_seconds:g} s"
            ) from error
        except OSError as error:
            raise SlurmUnavailable(f"{words[0]} cannot be started: {error}") from error
        if done.returncode != 0:
            raise trouble(words, done.returncode, done.stdout + done.stderr)
        return done.stdout.decode(errors="replace")


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
