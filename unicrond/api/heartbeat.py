"""What the loop says of itself, put into the store every few seconds under HEARTBEAT_KEY."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicrond.model.decision import Mode

HEARTBEAT_KEY = "heartbeat"
SILENT_AFTER_SECONDS = 15.0
"""Put it at least three times as often: past this age the loop counts as silent."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    at: float  # Unix seconds
    version: str
    mode: Mode
    agents_connected: int
    snapshot_at: float  # of the last one that Slurm answered, 0: none yet
    slurm_error: str = ""
    figures: dict[str, float] = field(default_factory=dict)  # by name: unicrond/figures.py
