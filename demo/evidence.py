"""What can be seen of a run from outside: the lines its training writes, and unicrond's API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One line that rank 0 wrote when the step was complete; `at` Unix seconds."""

    step: int
    loss: float
    world_size: int
    generation: int
    at: float


class TrainingLog:
    """Follows the file to which a training adds a line of JSON for each train step."""

    def __init__(self, path: Path) -> None:
        self.steps: list[TrainStep] = []
        self._path = path
        self._offset = 0

    def read(self) -> Sequence[TrainStep]:
        """What is new. A line that is only half written is left for the next time."""
        if not self._path.exists():
            return ()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole + newline)
        new = [_train_step(line) for line in whole.splitlines()]
        self.steps += new
        return new


def _train_step(line: bytes) -> TrainStep:
    said = json.loads(line)
    return TrainStep(
        said["step"], said["loss"], said["world_size"], said["generation"], said["time"]
    )


class Api:
    """unicrond's API over its Unix socket."""

    def __init__(self, socket: Path) -> None:
        transport = httpx.HTTPTransport(uds=str(socket))
        self._client = httpx.Client(
            transport=transport,
            base_url="http://unicrond",
            trust_env=False,
            timeout=TIMEOUT_SECONDS,
        )
        self.away = False

    def get(self, path: str, **parameters: str | int) -> Any:
        """None while unicrond is away, and for what it does not know."""
        try:
            answer = self._client.get(f"/v1{path}", params=parameters)
        except httpx.HTTPError:
            self.away = True
            return None
        self.away = False
        return answer.json() if answer.is_success else None

    def items(self, path: str, **parameters: str | int) -> list[dict[str, Any]]:
        answer = self.get(path, limit=1000, **parameters)
        return [] if answer is None else list(answer["items"])

    def close(self) -> None:
        self._client.close()
