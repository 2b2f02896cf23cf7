"""What a run must remember across its starts: a small file in its output folder."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)
NAME = "record.json"


@dataclass(frozen=True, slots=True)
class Record:
    generation: int = 0  # the highest that was started
    requeues_without_progress: int = 0  # unattended ones


def read(folder: Path, restarts: int) -> Record:
    """A file that cannot be read says the worst: every restart was without progress."""
    try:
        body = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return Record(int(body["generation"]), int(body["requeues_without_progress"]))
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: %s", folder / NAME, error)
        return Record(requeues_without_progress=restarts)


def write(folder: Path, record: Record) -> None:
    partial = folder / f".{NAME}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(record)), encoding="utf-8")
        partial.replace(folder / NAME)
    except OSError as error:
        log.warning("%s cannot be kept: %s", folder / NAME, error)
